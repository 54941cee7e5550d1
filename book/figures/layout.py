"""The still of the layouts: seventy billion parameters on 512 H100s, costed by lesson 15's functions."""

from __future__ import annotations

from itertools import product
from typing import Any

from autograder.lessons import notebook

CAPTION = "Layouts of 70 billion parameters on 512 GPUs"
BATCH, SIZES = 512, (1, 2, 4, 8, 16)
#: In units of the picture: the space for labels, a cell's width and height.
LEFT, WIDE, HIGH = 44, 68, 26


def best_layouts() -> dict[tuple[int, int], dict[str, Any]]:
    """(tp, pp) → the fastest layout that fits, or the first that runs out of memory, or the first of all."""
    lesson = notebook.functions("15_layout")
    model, cluster = lesson["SEVENTY"], lesson["CLUSTER"]
    found = {}
    for tp, pp in product(SIZES, SIZES):
        tried = [
            lesson["cost"](
                model,
                cluster,
                {"tp": tp, "pp": pp, "dp": 512 // (tp * pp), "micro": b, "chunks": v, "recompute": again},
                BATCH,
                1,
            )
            for b, v, again in product((1, 2, 4), (1, 2, 4, 8), (False, True))
        ]
        fit = [one for one in tried if one["reason"] is None]
        full = [one for one in tried if one["reason"] == "memory"]
        found[tp, pp] = min(fit, key=lambda one: one["seconds"]) if fit else (full or tried)[0]
    return found


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    layouts = best_layouts()
    top = max(one["mfu"] or 0 for one in layouts.values())
    marks = [
        f'<text class="still-label" x="{LEFT + k * WIDE + 18}" y="12">tp {tp}</text>' for k, tp in enumerate(SIZES)
    ]
    for row, pp in enumerate(SIZES):
        y = 20 + row * HIGH
        marks.append(f'<text class="still-label" x="0" y="{y + 16}">pp {pp}</text>')
        for column, tp in enumerate(SIZES):
            one, x = layouts[tp, pp], LEFT + column * WIDE
            share = 0.7 * one["mfu"] / top if one["mfu"] else 0
            look = f"fill: var(--rank-2); fill-opacity: {share:.2f}; opacity: 1"
            words = f"{100 * one['mfu']:.1f} %" if one["mfu"] else one["reason"]
            marks += [
                f'<rect class="still-box" x="{x}" y="{y}" width="{WIDE - 3}" height="{HIGH - 3}" style="{look}"/>',
                f'<text class="still-label" x="{x + 14}" y="{y + 16}">{words}</text>',
            ]
    (tp, pp), best = max(layouts.items(), key=lambda item: item[1]["mfu"] or 0)
    alt = (
        f"MFU of layouts of 70 billion parameters on 512 H100s, by tensor and pipeline parallelism. Best is tp {tp}, "
        f"pp {pp}, with {100 * best['mfu']:.1f} %; with little of both, memory is too small."
    )
    size = f"{LEFT + len(SIZES) * WIDE} {20 + len(SIZES) * HIGH}"
    return f'<svg viewBox="0 0 {size}" xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt
