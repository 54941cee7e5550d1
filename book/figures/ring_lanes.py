"""Attention of one layer of Llama 3 8B on a zigzag ring of four H100s on four nodes, in time, to scale.

Forward, and backward in both orders, for long and for short pieces: compute as long as a published kernel takes for so
many tokens, hops as long as `machines.cluster` says for one network port. Keys and values travel in bf16, their
gradients in float32.
"""

from __future__ import annotations

from typing import NamedTuple

from drawing import box, drawing, label

from machines.cluster import find
from machines.model import LLAMA3_8B

CAPTION = "One layer's attention, zigzag ring of four H100s on four nodes: a rank's lanes; gradients in fp32"
RANKS = 4
#: Tokens per rank: TFLOP/s of cuDNN on an H100, forward and backward, head dimension 128, without a mask, as a zigzag's
#: later blocks are (FlashAttention-3, arXiv 2407.08608, figures 5 and 6).
SPEEDS = {2048: (617, 465), 4096: (609, 499), 8192: (600, 518)}
DRAWN = (8192, 4096)
WAYS = ("forward", "backward, owner first", "backward, owner last")
#: Units of the picture per millisecond, and milliseconds of the scale bar.
SCALE, BAR = 36, 1
LEFT, HIGH, GAP = 54, 22, 24


class Times(NamedTuple):
    """Milliseconds of one step's compute and of the hop of a block, and of its gradients."""

    forward: float
    backward: float
    hop: float
    gradients: float


def times(tokens: int) -> Times:
    """One step of a zigzag ring: half of the pairs of a block."""
    m, h100, (forward, backward) = LLAMA3_8B, find("H100"), SPEEDS[tokens]
    flops = 4 * m.heads * m.head_dim * tokens**2 / 2
    block = 2 * m.kv_heads * m.head_dim * tokens
    hop, gradients = (1e3 * h100.send_seconds(size * block, h100.domain) for size in (2, 4))
    return Times(flops / forward / 1e9, 2.5 * flops / backward / 1e9, hop, gradients)


def bars(found: Times, way: int) -> list[tuple[str, int, float, float]]:
    """(what, step, start, end) on one rank; all ranks do the same at the same time. way: an index of `WAYS`.

    A block goes on when this rank begins to compute with it, its gradients when this rank has added its own. If the
    owner comes last, its own gradients need not travel.
    """
    jobs: list[tuple[str, int, float, float]] = []
    compute = network = arrived = 0.0
    gradients = 0.0  # when those of the block at hand are here
    for step in range(RANKS):
        begin = max(compute, arrived)
        compute = begin + (found.backward if way else found.forward)
        jobs.append(("compute", step, begin, compute))
        if step < RANKS - 1:
            start = max(network, begin)
            network = arrived = start + found.hop
            jobs.append(("hop", step, start, network))
        if way == 1 or (way == 2 and step < RANKS - 1):
            start = max(network, compute, gradients)
            network = gradients = start + found.gradients
            jobs.append(("gradients", step, start, network))
    return jobs


def exposed(found: Times, way: int) -> float:
    """Milliseconds in which the rank does not compute."""
    jobs = bars(found, way)
    return max(end for *_, end in jobs) - sum(end - start for what, _, start, end in jobs if what == "compute")


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said, y, wide = [], [], 0.0, 0.0
    for way, name in enumerate(WAYS):  # a row for each, so that the two orders of backward stand below each other
        x = float(LEFT)
        marks.append(label(0, y + 13, name, "still-title"))
        marks += [label(0, y + 37, "compute"), label(0, y + 65, "network")]
        for tokens in DRAWN:
            found = times(tokens)
            jobs = bars(found, way)
            for what, step, start, end in jobs:
                lane = y + (22 if what == "compute" else 50)
                kind = {"compute": "passed", "hop": "lane-gather", "gradients": "lane-scatter"}[what]
                marks.append(box(x + SCALE * start, lane, SCALE * (end - start), HIGH, kind, 0))
                if SCALE * (end - start) >= 8:
                    marks.append(label(x + SCALE * (start + end) / 2, lane + 15, str(step), anchor="middle"))
            end = max(end for *_, end in jobs)
            text = f"{tokens:,} tokens per GPU: {exposed(found, way):.1f} of {end:.1f} ms"
            marks.append(label(x, y + 90, text))
            said.append(f"{name}, {text} exposed")
            x += max(SCALE * end, 6.0 * len(text)) + GAP
        wide = max(wide, x - GAP)
        y += 112
    for x, kind, text in (
        (0, "passed", "attention with one block"),
        (170, "lane-gather", "keys and values"),
        (290, "lane-scatter", "their gradients"),
    ):
        marks += [box(x, y - 10, 14, 12, kind, 0), label(x + 20, y, text)]
    marks.append(f'<path class="scale" d="M{420:g} {y - 4:g}h{SCALE * BAR:g}"/>')
    marks += [label(426 + SCALE * BAR, y, f"{BAR:g} ms"), label(510, y, "under each: exposed time")]
    alt = (
        "Timelines to one scale, with a lane for compute and one for the network, for pieces of two lengths: a forward "
        f"of four steps, and a backward in two orders. {'; '.join(said)}. If the owner comes first, nothing is left to "
        "hide the last gradients; if it comes last, its own block hides them."
    )
    return drawing(wide + 4, y + 8, marks), alt
