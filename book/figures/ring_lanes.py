"""Attention of one layer of Llama 3 8B on a zigzag ring of four H100s on four nodes, in time, to scale.

Forward and backward, for long and for short pieces: compute as long as an H100 was measured to take for so many tokens,
hops as long as `machines.cluster` says for one network port. Keys and values travel in bf16, their gradients in
float32.
"""

from __future__ import annotations

from typing import NamedTuple

from drawing import box, drawing, label

from benchmarks.measured import results
from machines.cluster import find
from machines.model import LLAMA3_8B

CAPTION = "Attention of one layer of Llama 3 8B on a ring of four H100s on four nodes: one rank's lanes"
RANKS = 4
#: (tokens per rank, units of the picture per millisecond, milliseconds of the scale bar).
ROWS = ((8192, 26, 2), (2048, 130, 0.5))
LEFT, HIGH, GAP = 54, 22, 18


class Times(NamedTuple):
    """Milliseconds of one step's compute and of the hop of a block, and of its gradients."""

    forward: float
    backward: float
    hop: float
    gradients: float


def times(tokens: int) -> Times:
    """One step of a zigzag ring: half of the pairs of a block."""
    m, h100, kernel = LLAMA3_8B, find("H100"), results()[f"cudnn attention, {tokens} tokens"]
    flops = 4 * m.heads * m.head_dim * tokens**2 / 2
    forward, backward = (kernel[f"measured_{way}_tflops"] * 1e12 for way in ("forward", "backward"))
    block = 2 * m.kv_heads * m.head_dim * tokens
    hop, gradients = (1e3 * h100.send_seconds(size * block, h100.domain) for size in (2, 4))
    return Times(1e3 * flops / forward, 2.5e3 * flops / backward, hop, gradients)


def bars(found: Times, backward: bool) -> list[tuple[str, int, float, float]]:
    """(what, step, start, end) on one rank; all ranks do the same at the same time.

    A block goes on when this rank begins to compute with it, its gradients when this rank has added its own.
    """
    jobs: list[tuple[str, int, float, float]] = []
    compute = network = arrived = 0.0
    gradients = 0.0  # when those of the block at hand are here
    for step in range(RANKS):
        begin = max(compute, arrived)
        compute = begin + (found.backward if backward else found.forward)
        jobs.append(("compute", step, begin, compute))
        if step < RANKS - 1:
            start = max(network, begin)
            network = arrived = start + found.hop
            jobs.append(("hop", step, start, network))
        if backward:
            start = max(network, compute, gradients)
            network = gradients = start + found.gradients
            jobs.append(("gradients", step, start, network))
    return jobs


def exposed(found: Times, backward: bool) -> float:
    """Milliseconds in which the rank does not compute."""
    jobs = bars(found, backward)
    return max(end for *_, end in jobs) - sum(end - start for what, _, start, end in jobs if what == "compute")


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said, y, wide = [], [], 0.0, 0.0
    for tokens, scale, bar in ROWS:
        found, x = times(tokens), float(LEFT)
        marks.append(label(0, y + 13, f"{tokens:,} tokens per GPU", "still-title"))
        marks += [label(0, y + 37, "compute"), label(0, y + 65, "network")]
        for backward in (False, True):
            jobs = bars(found, backward)
            for what, step, start, end in jobs:
                lane = y + (22 if what == "compute" else 50)
                kind = {"compute": "passed", "hop": "lane-gather", "gradients": "lane-scatter"}[what]
                marks.append(box(x + scale * start, lane, scale * (end - start), HIGH, kind, 0))
                if what == "compute":
                    marks.append(label(x + scale * (start + end) / 2, lane + 15, str(step), anchor="middle"))
            end = max(end for *_, end in jobs)
            way = "backward" if backward else "forward"
            text = f"{way}: {exposed(found, backward):.2f} of {end:.1f} ms exposed"
            marks.append(label(x, y + 90, text))
            said.append(f"{tokens:,} tokens, {text}")
            x += max(scale * end, 6.0 * len(text)) + GAP
        wide = max(wide, x - GAP)
        marks.append(f'<path class="scale" d="M{LEFT + 300:g} {y + 9:g}h{scale * bar:g}"/>')
        marks.append(label(LEFT + 306 + scale * bar, y + 13, f"{bar:g} ms"))
        y += 112
    for x, kind, text in (
        (0, "passed", "attention with one block"),
        (170, "lane-gather", "keys and values"),
        (290, "lane-scatter", "their gradients"),
    ):
        marks += [box(x, y - 10, 14, 12, kind, 0), label(x + 20, y, text)]
    alt = (
        "Timelines to scale, with a lane for compute and one for the network, for pieces of two lengths: a forward of "
        f"four steps, then a backward. {'; '.join(said)}. In this backward nothing is left to hide the last gradients."
    )
    return drawing(wide + 4, y + 8, marks), alt
