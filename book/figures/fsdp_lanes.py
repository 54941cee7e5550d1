"""The first layers of a fully sharded forward and backward, to scale, on 64 and on 2,048 GPUs: what is hidden?

Llama 3 8B on H100s, a layer per unit. Compute takes as long as one layer was measured to take, collectives as long as
`machines.cluster` says. As in FSDP2 by default, one communicator runs one collective at a time, in the order of the
calls (in backward, a layer's reduce-scatter goes before the all-gather that the next layer's hook asks for), and
there is one buffer for what is reduced, so that a layer computes only when the reduce-scatter of two layers earlier
is over.
"""

from __future__ import annotations

from typing import NamedTuple

from drawing import box, drawing, label

from benchmarks.measured import results
from machines.cluster import find
from machines.model import LLAMA3_8B, attention_parameters, mlp_parameters

CAPTION = "The first layers of a forward and of a backward of Llama 3 8B, 4,096 tokens per GPU, to scale"
SIZES, TOKENS = (64, 2048), 4096
#: How many layers of a forward and of a backward are shown.
LAYERS = (3, 5)
#: Parameters of a layer, its two norms included.
LAYER = attention_parameters(LLAMA3_8B) + mlp_parameters(LLAMA3_8B, LLAMA3_8B.ffn) + 2 * LLAMA3_8B.hidden
#: In units of the picture: the space for labels, a lane, per millisecond, between forward and backward.
LEFT, HIGH, SCALE, GAP = 54, 22, 5.2, 16


class Times(NamedTuple):
    """Milliseconds of one layer: its forward, backward, all-gather in bf16, reduce-scatter in fp32."""

    forward: float
    backward: float
    gather: float
    scatter: float


def times(n: int, tokens: int = TOKENS, dearer: float = 1.0) -> Times:
    """A layer on `n` H100s; dearer: a factor for every collective. Compute grows with the tokens."""
    layer = results()["one layer, recomputation none"]
    forward, both = (layer[key] * tokens / layer["tokens"] for key in ("forward_ms", "measured_ms"))
    gather, scatter = find("H100").all_gather_seconds(2 * LAYER, n), find("H100").reduce_scatter_seconds(4 * LAYER, n)
    return Times(forward, both - forward, 1e3 * dearer * gather, 1e3 * dearer * scatter)


def bars(found: Times, backward: bool) -> list[tuple[str, int, float, float]]:
    """(what, layer, start, end) of the first layers of a forward, or of a backward whose first layer is whole."""
    jobs: list[tuple[str, int, float, float]] = []
    network = compute = 0.0

    def send(what: str, layer: int, earliest: float, lasts: float) -> float:
        nonlocal network
        begin = max(network, earliest)
        network = begin + lasts
        jobs.append((what, layer, begin, network))
        return network

    lasts = found.backward if backward else found.forward
    ready = 0.0 if backward else send("gather", 0, 0.0, found.gather)
    reduced = 0.0  # when the last reduce-scatter is over, and its buffer free
    for layer in range(LAYERS[backward]):
        if backward and layer:
            compute = max(compute, reduced)
            reduced = send("scatter", layer - 1, compute, found.scatter)
        begin = max(compute, ready)
        ready = send("gather", layer + 1, begin, found.gather)
        compute = begin + lasts
        jobs.append(("compute", layer, begin, compute))
    if backward:
        send("scatter", LAYERS[backward] - 1, compute, found.scatter)
    return jobs


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    marks, said, y, wide = [], [], 0, 0.0
    last = LLAMA3_8B.layers - 1
    for n in SIZES:
        found = times(n)
        spare = (found.forward - found.gather, found.backward - found.gather - found.scatter)
        what = "to spare" if min(spare) > 0 else "exposed"
        title = f"{n:,} GPUs: per layer {abs(spare[0]):.1f} ms {what} in forward, {abs(spare[1]):.1f} in backward"
        marks.append(label(0, y + 13, title, "still-title"))
        marks += [label(0, y + 37, "compute"), label(0, y + 65, "network")]
        start = 0.0
        for backward in (False, True):
            jobs = bars(found, backward)
            for job, layer, begin, end in jobs:
                x, width = LEFT + SCALE * (start + begin) + GAP * backward, SCALE * (end - begin)
                kind = "passed" + " passed-next" * (not backward) if job == "compute" else f"lane-{job}"
                top = y + (22 if job == "compute" else 50)
                marks.append(box(x, top, width, HIGH, kind, 0))
                if width > 14:
                    number = str(last - layer if backward else layer)
                    marks.append(label(x + width / 2, top + 15, number, "still-label", "middle"))
            start += max(end for *_, end in jobs)
        wide = max(wide, LEFT + GAP + SCALE * start)
        said.append(f"{title}.")
        y += 96
    for x, kind, text in (
        (0, "passed passed-next", "forward"),
        (82, "passed", "backward"),
        (176, "lane-gather", "all-gather"),
        (268, "lane-scatter", "reduce-scatter"),
    ):
        marks += [box(x, y - 8, 14, 12, kind, 0), label(x + 20, y + 2, text)]
    marks.append(f'<path class="scale" d="M{wide - 46 - SCALE * 10:g} {y - 2}h{SCALE * 10:g}"/>')
    marks.append(label(wide - 42, y + 2, "10 ms"))
    alt = (
        "Two timelines, to scale, each with a lane for compute and one for the network: the first layers of a forward, "
        f"then the first layers of a backward. {' '.join(said)}"
    )
    return drawing(wide + 4, y + 10, marks), alt
