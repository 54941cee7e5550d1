"""Exercise 4: where to cut a chain of layers, and the chain cut there."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, expect_raises, fail
from autograder.checking.instruments.memory import LiveBytes
from autograder.checking.stage import call_inside
from autograder.checks.memory.layers import Counted, Scaled, Sines, bits

SEGMENTS = "10-ex4-segments"
#: Inputs that may be alive above the plan: outputs, gradients, and what a derivative computes on the way.
SLACK = 5


def _peak(saved: list[int], edges: list[int], starts: list[int]) -> int:
    """Backward through the cuts, from the last segment to the first: the most that is alive."""
    alive, most = sum(edges[s] for s in starts[:-1]), 0
    for j in reversed(range(len(starts))):
        end = starts[j + 1] if j + 1 < len(starts) else len(saved)
        most = max(most, alive + sum(saved[starts[j] : end]))
        alive -= edges[starts[j - 1]] if j else 0
    return most


def _least(saved: list[int], edges: list[int]) -> int:
    """The least peak of all cuts: for each layer, the best of what may follow, by the bytes of the inputs before it."""

    @functools.cache
    def best(start: int, before: int) -> int:
        ends = range(start + 1, len(saved) + 1)
        mine = {end: before + sum(saved[start:end]) for end in ends}
        return min(mine[end] if end == len(saved) else max(mine[end], best(end, before + edges[start])) for end in ends)

    return best(0, 0)


def _chains(rng: np.random.Generator) -> dict[str, tuple[list[int], list[int]]]:
    chains: dict[str, tuple[list[int], list[int]]] = {
        "9 equal layers": ([4] * 9, [1] * 9),
        "12 layers of saved = edge": ([1] * 12, [1] * 12),
        "12 layers that are best alone": ([100] * 12, [1] * 12),
        "one layer": ([7], [3]),
        "two layers, the second one large": ([5, 50], [2, 3]),
        "edges as large as what is saved": ([10] * 5, [10] * 5),
        "a costly edge in the middle": ([60, 60, 60, 60], [1, 1, 55, 1]),
        "a cheap first edge": ([30] * 6, [1, 20, 20, 1, 20, 20]),
        "a large last layer": ([10] * 7 + [90], [2] * 8),
        "a large first layer": ([90] + [10] * 7, [2] * 8),
    }
    for number in range(12):
        n = 12 if number < 2 else int(rng.integers(2, 10))
        edges = [int(e) for e in rng.integers(1, 40, n)]
        chains[f"random chain {number}"] = ([e + int(rng.integers(0, 120)) for e in edges], edges)
    return chains


@check(SEGMENTS, points=1.5)
def the_best_cut_has_the_least_peak(best_segments, *, rng):
    """`best_segments` returns starts, ascending from 0, and their peak, which is the least of all cuts."""
    chains = _chains(rng)
    results = {name: _as_plain(best_segments(list(saved), list(edges))) for name, (saved, edges) in chains.items()}
    for case, (saved, edges) in chains.items():
        if results[case] is None:
            fail("best_segments should return a tuple of a list of whole numbers and a number", case, "no pair")
        starts, peak = results[case]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= len(saved):
            fail(f"starts should ascend from 0 and name layers, they are {starts}", case, results)
        least = _least(saved, edges)
        if peak != _peak(saved, edges, starts):
            text = f"the peak of {starts} is {_peak(saved, edges, starts)}, best_segments says {peak:g}"
            fail(f"saved {saved}, edges {edges}: {text}", case, results)
        if peak != least:
            fail(f"saved {saved}, edges {edges}: {starts} peak at {peak:g}, another cut at {least}", case, results)


@check(SEGMENTS, points=0.25)
def what_cannot_be_cut_is_refused(best_segments, *, rng):
    """`best_segments` raises ValueError for empty lists, and for lists of two lengths."""
    n = int(rng.integers(1, 9))
    cases = {"no layers": ([], []), "one edge too few": ([3] * (n + 1), [1] * n), "no edges": ([3] * n, [])}
    cases["one layer"] = ([3], [1])
    cases["one edge too many"] = ([3] * n, [1] * (n + 1))
    for case, lists in cases.items():
        if case == "one layer":
            expect_equal(case, _as_plain(best_segments(*lists)), ([0], 3.0), what="what best_segments returns")
        else:
            expect_raises(case, best_segments, *lists, error=ValueError)


class Chain(nn.Module):
    """Layers one after the other, each with a count of its calls."""

    def __init__(self, count: int, width: int):
        super().__init__()
        self.layers = nn.ModuleList(Counted(Sines(width)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    @property
    def calls(self) -> list[int]:
        """How often each layer was called so far."""
        return [layer.calls for layer in self.layers]


def _chain(rows: int, seed: int) -> tuple[Chain, torch.Tensor]:
    """Nine layers and their input, with gradients of zeros."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        chain, x = Chain(9, 16), torch.randn(rows, 16, requires_grad=True)
    for t in (x, *chain.parameters()):
        t.grad = torch.zeros_like(t)
    return chain, x


def _numbers(run: Callable, cuts: list[list[int]], seed: int) -> list[tuple[list, list]]:
    """Where the submission runs: for each cut, how often layers are called, and the output and all gradients.

    run: checkpoint_sequential, or outside `_one_by_one`.
    """
    seen = []
    for starts in cuts:
        chain, x = _chain(8, seed)
        output = run(list(chain.layers), x, list(starts))
        forward = chain.calls
        output.sum().backward()
        seen.append(([forward, chain.calls], bits([output, x.grad, *(p.grad for p in chain.parameters())])))
    return seen


def _one_by_one(layers: list[nn.Module], x: torch.Tensor, starts: list[int]) -> torch.Tensor:
    """The layers one after the other, nothing recomputed."""
    return nn.Sequential(*layers)(x)


def _live_peaks(
    checkpoint_sequential: Any, cuts: list[list[int]], rows: int, seed: int
) -> tuple[list[int], list[float], np.ndarray]:
    """Where the submission runs: for each cut, the most bytes that are alive in a step, the input among them.

    Also the loss of each step, and the gradient of the input after all of them.
    """
    chain, x = _chain(rows, seed)
    gc.collect()
    meter, peaks, losses = LiveBytes(), [], []
    before = meter.now() - x.nbytes
    for starts in cuts:
        meter.peak = 0
        with meter:
            loss = checkpoint_sequential(list(chain.layers), x, list(starts)).sum()
            loss.backward()
            losses.append(loss.item())
            del loss
        peaks.append(meter.peak - before)
    return peaks, losses, x.grad.numpy().copy()


_STARTS = [[0, 2, 4, 6, 8], [0, 3, 6], [0], [0, 1, 8], [0, 8], list(range(9)), [0, 4]]


@check(SEGMENTS, points=0.75)
def each_layer_runs_as_often_as_its_segment(checkpoint_sequential, *, rng):
    """`checkpoint_sequential` calls layers twice, those of the last segment once; the numbers are the plain chain's."""
    seed = inputs.seed(rng)
    seen = call_inside(_numbers, checkpoint_sequential, [list(starts) for starts in _STARTS], seed)
    ((_, want),) = _numbers(_one_by_one, [[0]], seed)
    observed = [(calls, got == want) for calls, got in seen]
    for starts, (calls, same) in zip(_STARTS, observed, strict=True):
        case = f"9 layers, starts {starts}"
        wanted = [[1] * 9, [2] * starts[-1] + [1] * (9 - starts[-1])]
        what = "the list of each layer's calls, after forward and after backward,"
        expect_equal(case, calls, wanted, what=what, evidence=observed)
        if not same:
            fail("the output or a gradient differs from that of the layers one after the other", case, observed)
    x = torch.from_numpy(rng.standard_normal((3, 4)))
    first = torch.autograd.functional.jacobian(lambda y: _one_by_one([Scaled() for _ in range(9)], y, [0]).sum(), x)
    for starts, got in zip(_STARTS, call_inside(_slopes, checkpoint_sequential, _STARTS, x), strict=True):
        if len(starts) > 1 and got is not None and np.allclose(got, first.numpy()):
            case = f"9 layers that become others between forward and backward, starts {starts}"
            fail("backward uses what the first run of the layers computed, not what the second one does", case, "kept")


def _slopes(checkpoint_sequential: Any, cuts: list[list[int]], x: torch.Tensor) -> list[Any]:
    """Where the submission runs: for each cut the gradient of x, if all layers double their number before backward."""
    seen = []
    for starts in cuts:
        layers, source = [Scaled() for _ in range(9)], x.clone().requires_grad_()
        output = checkpoint_sequential(list(layers), source, list(starts))
        for layer in layers:
            layer.scale = 2.0
        output.sum().backward()
        seen.append(None if source.grad is None else source.grad.numpy().copy())
    return seen


@check(SEGMENTS, points=0.5)
def memory_follows_the_plan(checkpoint_sequential, *, rng):
    """At the peak of a step, at most five inputs more are alive than were planned for the cut."""
    rows = 64 * int(rng.integers(12, 20))
    unit = 4 * rows * 16
    cuts = _STARTS[:2]
    seed = inputs.seed(rng)
    peaks, losses, slope = call_inside(
        _live_peaks, checkpoint_sequential, [list(starts) for starts in cuts], rows, seed
    )
    peaks = [peak / unit for peak in peaks]
    # What is metered must be right as well: layers that are never called keep nothing.
    chain, x = _chain(rows, seed)
    loss = chain(x).sum()
    loss.backward()
    case = f"9 layers, {rows} rows"
    for got in losses:
        expect_close(case, np.array(got), np.array(loss.item()), what="the sum of the output", rtol=1e-4, atol=1e-2)
    expect_close(case, slope, len(cuts) * x.grad.numpy(), what="the gradient of the input, added up", rtol=1e-4)
    for starts, peak in zip(cuts, peaks, strict=True):
        planned = _peak([4] * 9, [1] * 9, starts)
        if peak > planned + SLACK + 0.5:
            case = f"9 layers that keep 4 inputs each, starts {starts}"
            text = f"{peak:.1f} inputs were alive at the peak; planned {planned}, expected at most {planned + SLACK}"
            fail(text, case, [round(peak) for peak in peaks])


def _as_plain(result: Any) -> Any:
    """A returned pair with its starts as a list of ints, or None."""
    if not isinstance(result, tuple) or len(result) != 2:
        return None
    starts, peak = result
    try:
        whole = [int(s) for s in starts]
        return (whole, float(peak)) if whole == list(starts) else None
    except (TypeError, ValueError):
        return None
