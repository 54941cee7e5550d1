"""The still of the buckets: 24 gradients in 24, 6 and 2 buckets, timed as in lesson 05."""

from __future__ import annotations

import math

from autograder.lesson import notebook

CAPTION = "Gradients in buckets, computed and sent"
COUNT, BYTES, EACH = 24, 4e6, 1.2e-3
RANKS, ALPHA, SPEED = 16, 20e-6, 10e9
#: Seconds of a ring all-reduce: once, and for each gradient.
START_UP, PER_GRADIENT = 2 * (RANKS - 1) * ALPHA, 2 * (RANKS - 1) / RANKS * BYTES / SPEED
SIZES = (1, 4, 12)
#: In units of the picture: the space for labels, a millisecond, a row's height, the space between sizes.
LEFT, WIDE, HIGH, GAP = 66, 13, 20, 40


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said, y, width = [], [], 0, 0.0
    for size in SIZES:
        rows, end, decides = _bars(size)
        exposed = 1e3 * (end - COUNT * EACH)
        title = f"{COUNT // size} buckets of {size * 4} MB: {exposed:.1f} ms exposed, bucket {decides} decides"
        marks.append(f'<text class="still-title" x="0" y="{y + 14}">{title}</text>')
        for row, (name, bars) in enumerate(rows.items()):
            top = y + 22 + row * (HIGH + 4)
            marks.append(f'<text class="still-label" x="0" y="{top + 14}">{name}</text>')
            for k, (start, stop) in enumerate(bars):
                color = "var(--rank-1)" if k == decides else "var(--rank-0)"
                look = f"fill: {color}; fill-opacity: {0.9 if k == decides else 0.55 - 0.25 * (k % 2)}; opacity: 1"
                x, wide = LEFT + 1e3 * start * WIDE, 1e3 * (stop - start) * WIDE
                box = (
                    f'<rect class="still-box" x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{HIGH}" style="{look}"/>'
                )
                marks.append(box)
                width = max(width, x + wide)
        said.append(title)
        y += 2 * (HIGH + 4) + GAP
    alt = f"Backward and network in time for three sizes of buckets. {'. '.join(said)}."
    return f'<svg viewBox="0 0 {width + 6:.0f} {y}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def _bars(size: int) -> tuple[dict[str, list[tuple[float, float]]], float, int]:
    """The bars of both rows, when the last sum arrives, and the last bucket that found the network idle."""
    end_of = notebook.functions("05_ddp")["end_of"]
    gradients = [(j + 1) * EACH for j in range(COUNT)]
    split = [size] * (COUNT // size)
    ready = gradients[size - 1 :: size]
    ends = [end_of(split[: k + 1], gradients, START_UP, PER_GRADIENT) for k in range(len(split))]
    fill = [(there - size * EACH, there) for there in ready]
    cost = START_UP + PER_GRADIENT * size
    send = [(end - cost, end) for end in ends]
    found_idle = [k for k, (there, end) in enumerate(zip(ready, ends, strict=True)) if math.isclose(end, there + cost)]
    return {"backward": fill, "network": send}, ends[-1], found_idle[-1]
