"""A step of ZeRO-1 in time, to scale: one part after the other on two ranks, and overlapped in four buckets on one.

Llama 3 8B on 64 H100s, 8,192 tokens per micro-batch. Compute takes as long as a published speed says, collectives as
long as `machines.cluster` says.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from drawing import box, drawing, label

from autograder.lesson import notebook
from machines.cluster import Cluster, find
from machines.model import LLAMA3_8B, attention_parameters, mlp_parameters, parameters

CAPTION = "A step of ZeRO-1 in time, to scale. Above: without overlap. Below: in four buckets of eight layers"
RANKS, TOKENS, BUCKETS = 64, 8192, 4
#: The published run whose speed gives the time of forward and backward: end to end, so compute alone is faster.
RUN = "torchao 8B H100 bf16"
#: Milliseconds that are shown: before the end of backward, and of forward. Units of the picture per millisecond.
BEFORE, AFTER, SCALE = 300.0, 225.0, 0.59
LEFT, HIGH = 54, 22


class Times(NamedTuple):
    """Milliseconds. buckets: (name, reduce-scatter, all-gather), in the order of backward."""

    forward: float
    backward: float
    adam: float
    buckets: list[tuple[str, float, float]]


def times(machine: Cluster, n: int = RANKS, dearer: float = 1.0) -> Times:
    """The parts of a step on `n` GPUs; dearer: a factor for every collective."""
    m, total = LLAMA3_8B, parameters(LLAMA3_8B).total
    rows = json.loads((notebook.ROOT / "benchmarks" / "published_runs.json").read_text(encoding="utf-8"))
    speed = next(row for row in rows if row["name"] == RUN)["published"]["tokens_per_gpu_per_second"]
    step = 1e3 * TOKENS / speed
    layers = m.layers // BUCKETS
    block = layers * (attention_parameters(m) + mlp_parameters(m, m.ffn) + 2 * m.hidden)
    table = m.vocab * m.hidden
    sizes = [
        block + table + m.hidden,
        block,
        block,
        block + table,
    ]  # the first has the output layer, the last the embedding
    assert sum(sizes) == total
    found = []
    for k, size in enumerate(sizes):
        name = f"{m.layers - layers * (k + 1)}–{m.layers - layers * k - 1}"
        scatter, gather = machine.reduce_scatter_seconds(4 * size, n), machine.all_gather_seconds(2 * size, n)
        found.append((name, 1e3 * dearer * scatter, 1e3 * dearer * gather))
    # Adam reads and writes master weights, moments, gradient and bf16 parameter: 30 bytes per parameter.
    return Times(step / 3, 2 * step / 3, 1e3 * 30 * total / n / machine.memory_bandwidth, found)


def exposed(found: Times) -> tuple[float, float]:
    """Milliseconds in which compute waits: one part after the other, and overlapped."""
    scatters, gathers = ([bucket[k] for bucket in found.buckets] for k in (1, 2))
    one_by_one = sum(scatters) + found.adam + sum(gathers)
    last = 0.0  # when the network is done with the buckets so far, after backward begins
    for k, scatter in enumerate(scatters, 1):
        last = max(last, found.backward * k / BUCKETS) + scatter
    ready = 0.0  # when forward may go on, after the all-gather begins
    came = 0.0
    for gather in reversed(gathers):
        came += gather
        ready = max(ready, came) + found.forward / BUCKETS
    return one_by_one, last - found.backward + found.adam + ready - found.forward


def _x(ms: float) -> float:
    """Where a moment after the end of backward stands."""
    return LEFT + SCALE * (BEFORE + ms)


def _bar(start: float, seconds: float, y: float, kind: str, text: str = "") -> list[str]:
    """A bar, cut at both ends of the picture, with its text in the middle of what is shown."""
    first, last = max(start, -BEFORE), min(start + seconds, AFTER)
    if last <= first:
        return []
    marks = [box(_x(first), y, SCALE * (last - first), HIGH, kind, 0)]
    if SCALE * (last - first) < 5.8 * len(text):  # too narrow for its text
        return marks
    return [*marks, label(_x((first + last) / 2), y + 15, text, "still-label", "middle")]


def still() -> tuple[str, str]:
    """The picture and its text alternative."""
    found = times(find("H100"))
    scatter, gather = (sum(bucket[k] for bucket in found.buckets) for k in (1, 2))
    one_by_one, hidden = exposed(found)
    wide = _x(AFTER) + 4
    marks = [label(0, 13, "One after the other: compute waits", "still-title")]
    for rank in (0, 1):
        y = 22 + 30 * rank
        marks.append(label(0, y + 15, f"rank {rank}", "still-label"))
        marks += _bar(-found.backward, found.backward, y, "passed", "backward")
        marks += _bar(0, scatter, y, "lane-scatter")
        marks += _bar(scatter, found.adam, y, "lane-adam")
        marks += _bar(scatter + found.adam, gather, y, "lane-gather")
        marks += _bar(one_by_one, found.forward, y, "passed passed-next", "forward")
    marks.append(_brace(0, one_by_one, 78))
    marks.append(label(_x(one_by_one / 2), 98, f"{one_by_one:.0f} ms exposed", "still-title", "middle"))

    marks.append(label(0, 128, "Overlapped, on one rank", "still-title"))
    compute, network = 138, 166
    marks += [label(0, compute + 15, "compute"), label(0, network + 15, "network")]
    done = -found.backward
    for k, (name, seconds, _) in enumerate(found.buckets):
        part = found.backward / BUCKETS
        marks += _bar(-found.backward + k * part, part, compute, "passed", f"backward {name}")
        done = max(done, -found.backward + (k + 1) * part)
        marks += _bar(done, seconds, network, "lane-scatter")
        done += seconds
    marks += _bar(done, found.adam, compute, "lane-adam")
    came = ready = done + found.adam
    for name, _, seconds in reversed(found.buckets):
        marks += _bar(came, seconds, network, "lane-gather")
        came += seconds
        ready = max(ready, came)
        marks += _bar(ready, found.forward / BUCKETS, compute, "passed passed-next", f"forward {name}")
        ready += found.forward / BUCKETS
    marks.append(_brace(0, hidden, network + HIGH + 4))
    marks.append(label(_x(hidden / 2), network + HIGH + 24, f"{hidden:.0f} ms exposed", "still-title", "middle"))
    y = network + HIGH + 42
    for x, kind, text in (
        (0, "lane-scatter", "reduce-scatter"),
        (108, "lane-adam", "Adam"),
        (170, "lane-gather", "all-gather"),
    ):
        marks += [box(x, y - 10, 14, 12, kind, 0), label(x + 20, y, text)]
    marks.append(f'<path class="scale" d="M{wide - 46 - SCALE * 50:g} {y - 4}h{SCALE * 50:g}"/>')
    marks.append(label(wide - 42, y, "50 ms"))
    last, first = found.buckets[-1], found.buckets[0]
    alt = (
        f"Two timelines, to scale. Above, two ranks do the same: backward of {found.backward:.0f} ms, whose end is "
        f"shown, a reduce-scatter of {scatter:.0f} ms, Adam on the own shard, {found.adam:.0f} ms, an all-gather of "
        f"{gather:.0f} ms, then the next forward. Below, one rank with lanes for compute and network: a bucket is "
        "reduce-scattered while backward computes the next one, and the parameters of later layers are gathered while "
        f"forward computes earlier ones. Only the reduce-scatter of layers {last[0]}, Adam and the first all-gather "
        f"are exposed: {hidden:.0f} ms instead of {one_by_one:.0f}. Layers {first[0]} come first in backward."
    )
    return drawing(wide, y + 8, marks), alt


def _brace(start: float, end: float, y: float) -> str:
    return f'<path class="brace" d="M{_x(start):.1f} {y}v5H{_x(end):.1f}v-5"/>'
