"""Lesson 11: schedules that are complete, fast and small, and a pipeline of real ranks that runs them.

A schedule is laid out here as a graph (an entry waits for the one before it on its stage and for what its numbers
need) whose longest path gives the times; bounds on bubble and peaks are formulas. A pipeline's gradients are compared
with torch's own on the whole model and the whole batch. Whether its ranks work at the same time is read from what they
did, in which order, with the seconds replaced by the schedule's: a loaded machine cannot change that. Only a pipeline
that is late by this count, and then three times by the clock as well, has failed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, expect_close, expect_raises, fail
from autograder.checking.stage import run_ranks

#: Relative, on times and fractions.
TIME_ERROR = 1e-9
#: Of the loss and of gradients, which are of the order of 1.
GRADIENT_ERROR = 1e-6
#: Stages and micro-batches: more of these, fewer, as many, one.
COUNTS = [(4, 8), (4, 2), (3, 3), (1, 4), (5, 1), (1, 1), (2, 7), (8, 16), (6, 4)]
#: Seconds of a forward and of a backward.
TIMES = [(1.0, 1.0), (1.0, 2.0), (3.0, 1.0)]


# ---- schedules ----


def _entries(case: str, schedule: Any, stages: int, chunks: int | None = None) -> list[list[tuple[str, int, int]]]:
    """A student's schedule as lists of (kind, micro_batch, chunk); anything else fails."""
    fields = 2 if chunks is None else 3
    try:
        lists = [[tuple(entry) for entry in mine] for mine in schedule]
        good = all(len(entry) == fields for mine in lists for entry in mine)
        read = [[(str(kind), *map(int, rest), 0)[:3] for kind, *rest in mine] for mine in lists] if good else []
    except (TypeError, ValueError):
        good, read = False, []
    if not good:
        form = '("F" or "B", micro_batch)' if fields == 2 else '("F" or "B", micro_batch, chunk)'
        fail(f"a schedule should be a list with a list of {form} for each stage", case, repr(schedule)[:200])
    if len(read) != stages:
        fail(f"the schedule has {len(read)} stages, expected {stages}", case, len(read))
    return read


def _graph(schedule: list[list[tuple[str, int, int]]]) -> dict[tuple, list[tuple]]:
    """(kind, micro_batch, virtual stage) → what must be over before; an entry that is nowhere cannot be over."""
    stages = len(schedule)
    last = stages * (1 + max(chunk for mine in schedule for _, _, chunk in mine)) - 1
    needs: dict[tuple, list[tuple]] = {}
    for stage, mine in enumerate(schedule):
        before: list[tuple] = []
        for kind, m, chunk in mine:
            v = chunk * stages + stage
            needs[kind, m, v] = list(before)
            if kind == "F" and v > 0:
                needs[kind, m, v].append(("F", m, v - 1))
            if kind == "B":
                needs[kind, m, v] += [("F", m, v)] + ([("B", m, v + 1)] if v < last else [])
            before = [(kind, m, v)]
    return needs


def _ends(schedule: list[list[tuple[str, int, int]]], forward: list[float], backward: list[float]) -> dict | None:
    """When each (kind, micro_batch, virtual stage) is over, by the longest path; None if something waits on itself."""
    needs, stages = _graph(schedule), len(schedule)
    ends: dict[tuple, float] = {}
    left = {node: len(set(before)) for node, before in needs.items()}
    after: dict[tuple, list[tuple]] = {}
    for node, before in needs.items():
        for other in set(before):
            after.setdefault(other, []).append(node)
    ready = [node for node, count in left.items() if not count]
    while ready:
        node = ready.pop()
        seconds = (forward if node[0] == "F" else backward)[node[2] % stages]
        ends[node] = max((ends[other] for other in needs[node]), default=0.0) + seconds
        for other in after.get(node, ()):
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return ends if len(ends) == len(needs) else None


def _bubble(schedule: list[list[tuple[str, int, int]]], forward: list[float], backward: list[float]) -> float:
    busy = sum((forward if kind == "F" else backward)[s] for s, mine in enumerate(schedule) for kind, _, _ in mine)
    return 1 - busy / (len(schedule) * max(_ends(schedule, forward, backward).values()))


def _peaks(schedule: Iterable[Iterable[tuple]]) -> list[int]:
    return [max(itertools.accumulate(1 if entry[0] == "F" else -1 for entry in mine)) for mine in schedule]


def _shown(schedule: list[list[tuple[str, int, int]]]) -> list[list[str]]:
    return [[f"{kind}{m}.{chunk}" for kind, m, chunk in mine] for mine in schedule]


def _expect_runs(case: str, schedule: Any, stages: int, micro_batches: int, chunks: int | None = None) -> list:
    """Every entry once on every stage, in an order in which all of them get their turn."""
    read = _entries(case, schedule, stages, chunks)
    wanted = set(itertools.product("FB", range(micro_batches), range(chunks or 1)))
    for stage, mine in enumerate(read):
        shown = _shown(read)
        for entry in mine:
            if entry not in wanted:
                fail(f"stage {stage} has the entry {entry[: 2 if chunks is None else 3]}", case, shown)
        if len(mine) != len(wanted) or set(mine) != wanted:
            text = f"stage {stage} has {len(mine)} entries, {len(set(mine))} different ones, expected {len(wanted)}"
            fail(text, case, shown)
    if _ends(read, [1.0] * stages, [1.0] * stages) is None:
        fail("the schedule waits on itself: no stage can go on", case, _shown(read))
    return read


def _expect_bubble(case: str, schedule: list, most: float, exactly: bool) -> None:
    """The simulated bubble against the formula's, for several ratios of the two times."""
    for forward, backward in TIMES:
        got = _bubble(schedule, [forward] * len(schedule), [backward] * len(schedule))
        if got > most + TIME_ERROR or (exactly and got < most - TIME_ERROR):
            what = f"with {forward:g} s a forward and {backward:g} s a backward, the bubble is {got:.4f}"
            fail(f"{what}, expected {'' if exactly else 'at most '}{most:.4f}", case, _shown(schedule))


def _expect_peaks(case: str, schedule: list, most: list[int]) -> None:
    got = _peaks(schedule)
    for stage, (mine, limit) in enumerate(zip(got, most, strict=True)):
        if mine > limit:
            fail(f"stage {stage} keeps {mine} activations alive, expected at most {limit}", case, _shown(schedule))


# ---- 1 · GPipe and 1F1B ----


@check("11-ex1-schedules")
def gpipe_fills_and_drains(gpipe_schedule, *, rng):
    """All forwards, then all backwards, and no bubble but the filling and the draining."""
    for stages, count in [*COUNTS, (int(rng.integers(2, 7)), int(rng.integers(2, 12)))]:
        case = f"GPipe, {stages} stages, {count} micro-batches"
        schedule = _expect_runs(case, gpipe_schedule(stages, count), stages, count)
        for stage, mine in enumerate(schedule):
            if [kind for kind, _, _ in mine] != ["F"] * count + ["B"] * count:
                fail(f"stage {stage} runs a backward before its last forward", case, _shown(schedule))
        _expect_bubble(case, schedule, (stages - 1) / (count + stages - 1), exactly=True)


@check("11-ex1-schedules")
def one_f_one_b_keeps_few_alive(one_f_one_b_schedule, *, rng):
    """GPipe's bubble with min(M, N − s) activations on stage s."""
    for stages, count in [*COUNTS, (int(rng.integers(2, 7)), int(rng.integers(2, 12)))]:
        case = f"1F1B, {stages} stages, {count} micro-batches"
        schedule = _expect_runs(case, one_f_one_b_schedule(stages, count), stages, count)
        _expect_peaks(case, schedule, [min(count, stages - s) for s in range(stages)])
        _expect_bubble(case, schedule, (stages - 1) / (count + stages - 1), exactly=True)


@check("11-ex1-schedules")
def schedules_refuse_counts_below_one(gpipe_schedule, one_f_one_b_schedule, *, rng):
    """No stages or no micro-batches is a ValueError that names them."""
    for name, function in (("gpipe_schedule", gpipe_schedule), ("one_f_one_b_schedule", one_f_one_b_schedule)):
        for arguments, word in (((0, 4), "stages"), ((4, 0), "micro_batches"), ((-1, 2), "stages")):
            expect_raises(f"{name}{arguments}", function, *arguments, error=ValueError, mentions=word)


# ---- 2 · simulate and bubble_fraction ----


def _random_schedule(rng: np.random.Generator, stages: int, count: int, chunks: int | None) -> list[list[tuple]]:
    """Some order in which everything gets its turn: in each round any stage may take any entry that is ready."""
    last, done = stages * (chunks or 1) - 1, set()
    schedule: list[list[tuple]] = [[] for _ in range(stages)]
    while len(done) < 2 * count * (last + 1):
        ready = [
            (kind, m, v)
            for kind, m, v in itertools.product("FB", range(count), range(last + 1))
            if (kind, m, v) not in done
            and (v == 0 or kind == "B" or ("F", m, v - 1) in done)
            and (kind == "F" or (("F", m, v) in done and (v == last or ("B", m, v + 1) in done)))
        ]
        kind, m, v = ready[rng.integers(len(ready))]
        done.add((kind, m, v))
        schedule[v % stages].append((kind, m) if chunks is None else (kind, m, v // stages))
    return schedule


def _in_full(schedule: list[list[tuple]]) -> list[list[tuple[str, int, int]]]:
    return [[(*entry, 0)[:3] for entry in mine] for mine in schedule]


def _timed(rng: np.random.Generator) -> list[tuple[str, list, Any, Any]]:
    """Schedules with times: hand-made and random ones; equal times and one for each stage."""
    gpipe = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)]] * 2
    looped = [[("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)]] * 2
    cases = [
        ("two stages, two micro-batches, 1 s and 2 s", gpipe, 1.0, 2.0),
        ("the same, whole numbers", gpipe, 1, 2),
        ("the same, a slow first stage", gpipe, [5.0, 1.0], [1.0, 2.0]),
        ("two stages, one micro-batch, two chunks", looped, 1.0, 1.0),
        ("one stage", [[("F", 1), ("B", 1), ("F", 0), ("B", 0)]], 0.5, (0.25,)),
    ]
    for stages, count, chunks in ((3, 4, None), (4, 3, 2), (2, 3, 3), (5, 2, None)):
        schedule = _random_schedule(rng, stages, count, chunks)
        times = [[float(t) for t in rng.integers(1, 9, stages) / 4] for _ in range(2)]
        name = f"some order of {stages} stages, {count} micro-batches" + (f", {chunks} chunks" if chunks else "")
        cases += [(name, schedule, 0.5, 1.25), (f"{name}, each stage with its times", schedule, *times)]
    return cases


def _list(times: Any, stages: int) -> list[float]:
    return [float(times)] * stages if np.ndim(times) == 0 else [float(t) for t in times]


def _frozen(schedule: list[list[tuple]]) -> list[list[tuple]]:
    return [list(mine) for mine in schedule]


@check("11-ex2-simulate")
def simulation_starts_each_entry_at_once(simulate, *, rng):
    """Each entry starts when its stage is free and what it needs is over, and takes its stage's time."""
    for case, schedule, forward, backward in _timed(rng):
        stages, given = len(schedule), _frozen(schedule)
        spans = simulate(given, forward, backward)
        forwards, backwards = _list(forward, stages), _list(backward, stages)
        ends = _ends(_in_full(schedule), forwards, backwards)
        if not isinstance(spans, (list, tuple)) or [len(mine) for mine in spans] != [len(mine) for mine in schedule]:
            fail(
                "expected for each stage a list with one (start, end) for each of its entries", case, repr(spans)[:200]
            )
        for stage, mine in enumerate(_in_full(schedule)):
            seconds = {"F": forwards[stage], "B": backwards[stage]}
            over = [ends[kind, m, chunk * stages + stage] for kind, m, chunk in mine]
            want = [(end - seconds[kind], end) for end, (kind, _, _) in zip(over, mine, strict=True)]
            got = [tuple(pair) for pair in spans[stage]]
            expect_close(case, got, np.array(want), what=f"(start, end) on stage {stage}", rtol=TIME_ERROR)
        if given != _frozen(schedule):
            fail("the schedule was changed in place: work on a copy", case, "changed")


@check("11-ex2-simulate")
def bubble_is_the_idle_share(bubble_fraction, *, rng):
    """1 − seconds of all entries / (stages · makespan)."""
    for case, schedule, forward, backward in _timed(rng):
        stages = len(schedule)
        want = _bubble(_in_full(schedule), _list(forward, stages), _list(backward, stages))
        got = bubble_fraction(_frozen(schedule), forward, backward)
        expect_close(case, got, np.array(want), what="the bubble", rtol=0.0, atol=TIME_ERROR)


@check("11-ex2-simulate")
def what_cannot_run_is_refused(simulate, bubble_fraction, *, rng):
    """Entries that wait on each other, lack or come twice; times that are not positive or not one a stage."""
    good = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)]] * 2
    schedules = {
        "stage 0 runs B0 before F1, stage 1 F1 before B0": [[("F", 0), ("B", 0), ("F", 1), ("B", 1)], good[1]],
        "a backward before its forward": [good[0], [("B", 0), ("F", 0), ("F", 1), ("B", 1)]],
        "a chunk too early": [[("F", 0, 1), ("F", 0, 0), ("B", 0, 1), ("B", 0, 0)]],
        "one stage lacks B1": [good[0], good[1][:3]],
        "no stage has a backward": [[("F", 0), ("F", 1)]] * 2,
        "all stages lack micro-batch 0": [[("F", 1), ("B", 1)]] * 2,
        "one stage lacks micro-batch 1": [good[0], [("F", 0), ("B", 0)]],
        "one stage lacks chunk 1": [[("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)], [("F", 0, 0), ("B", 0, 0)]],
        "F0 comes twice": [[("F", 0), *good[0]], good[1]],
        "B1 comes twice": [good[0], [*good[1], ("B", 1)]],
        "all stages have B0 in the place of B1": [[("F", 0), ("F", 1), ("B", 0), ("B", 0)]] * 2,
        "all stages have F0 in the place of B0": [[("F", 0), ("F", 0), ("F", 1), ("B", 1)]] * 2,
        "no entries": [[], []],
    }
    times = {
        "forward_time": [0, -1.0, [1.0, 0.0], [1.0], [1.0, 1.0, 1.0], math.nan],
        "backward_time": [0.0, -2, [-1.0, 1.0], [], [1.0] * 4],
    }
    for name, function in (("simulate", simulate), ("bubble_fraction", bubble_fraction)):
        for what, schedule in schedules.items():
            case = f"{name}, {what}"
            expect_raises(case, function, _frozen(schedule), 1.0, 1.0, error=ValueError, mentions="schedule")
        for word, wrong in times.items():
            for value in wrong:
                pair = (value, 1.0) if word == "forward_time" else (1.0, value)
                case = f"{name}, two stages, {word}={value}"
                expect_raises(case, function, _frozen(good), *pair, error=ValueError, mentions=word)


# ---- 3 · peak_activations ----


@check("11-ex3-peaks")
def peaks_count_what_is_alive(peak_activations, *, rng):
    """The largest number of forwards whose backward has not come yet, stage by stage, in entries."""
    fixed = [
        (
            "1F1B on two stages",
            [[("F", 0), ("F", 1), ("B", 0), ("F", 2), ("B", 1), ("B", 2)], [("F", 0), ("B", 0)] * 3],
        ),
        ("a late peak", [[("F", 0), ("B", 0), ("F", 1), ("F", 2), ("F", 3), ("B", 1), ("B", 2), ("B", 3)]]),
        ("two chunks", [[("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)]] * 2),
    ]
    fixed[0][1][1] = [(kind, k // 2) for k, (kind, _) in enumerate(fixed[0][1][1])]
    shapes = [(3, 5, None), (4, 3, 2), (2, 4, 3), (1, 6, None)]
    some = [(f"some order of {n} stages, {m} micro-batches", _random_schedule(rng, n, m, c)) for n, m, c in shapes]
    for case, schedule in [*fixed, *some]:
        given = _frozen(schedule)
        got = peak_activations(given)
        want = _peaks(schedule)
        expect_close(case, got, np.array(want), what="the peaks", rtol=0.0)
        if given != _frozen(schedule):
            fail("the schedule was changed in place: work on a copy", case, "changed")


# ---- 4 · interleaved ----


@check("11-ex4-interleaved")
def interleaved_divides_the_bubble(interleaved_schedule, *, rng):
    """Complete, a bubble of at most (N−1)/(C·M+N−1), and no more alive than Megatron's order."""
    counts = [(4, 8, 2), (2, 4, 3), (4, 4, 2), (3, 9, 2), (1, 3, 2), (4, 8, 1), (5, 5, 3), (8, 16, 4), (3, 3, 1)]
    for n, m, c in counts:
        case = f"{n} stages, {m} micro-batches, {c} chunks"
        schedule = _expect_runs(case, interleaved_schedule(n, m, c), n, m, c)
        _expect_bubble(case, schedule, (n - 1) / (c * m + n - 1), exactly=False)
        _expect_peaks(case, schedule, [min(m * c, 2 * (n - 1 - s) + (c - 1) * n + 1) for s in range(n)])


@check("11-ex4-interleaved")
def interleaved_refuses_what_does_not_fit(interleaved_schedule, *, rng):
    """Counts below 1, and micro-batches that are not a multiple of the stages, are ValueErrors that name them."""
    wrong = [((4, 6, 2), "micro_batches"), ((4, 2, 2), "micro_batches"), ((0, 4, 2), "stages")]
    wrong += [((4, 0, 2), "micro_batches"), ((4, 4, 0), "chunks"), ((2, 3, 1), "micro_batches")]
    for arguments, word in wrong:
        case = f"interleaved_schedule{arguments}"
        expect_raises(case, interleaved_schedule, *arguments, error=ValueError, mentions=word)


# ---- 5 · partition ----


def _least_sum(costs: list[float], stages: int) -> float:
    """The smallest largest sum: the first of all sums of runs that `stages` runs can keep to."""
    sums = sorted({math.fsum(costs[i:j]) for i in range(len(costs)) for j in range(i + 1, len(costs) + 1)})
    for most in sums:
        used, load = 1, 0.0
        for cost in costs:
            if cost > most * (1 + TIME_ERROR):
                used = stages + 1
                break
            if load + cost > most * (1 + TIME_ERROR):
                used, load = used + 1, 0.0
            load += cost
        if used <= stages:
            return most
    raise AssertionError("the whole is one run")


@check("11-ex5-partition")
def partition_has_the_least_largest_sum(partition, *, rng):
    """Contiguous, covering, none empty, and the largest sum as small as it can be."""
    cases = [
        ([1, 1, 1, 1, 4], 2), ([1, 8, 3, 2, 1], 3), ([5, 1, 1, 1, 1, 1], 3), ([2, 3, 4, 5, 6], 3),
        ([1, 1, 1, 9, 1, 1, 1], 4), ([9, 0, 0, 0], 3), ([0, 0, 0, 0], 3), ([3], 1), ([4, 2, 4], 3),
        ([7, 1, 1, 1, 1, 1, 1, 7], 2), ([1.5, 0.25, 2.0], 2),
    ]  # fmt: skip
    for _ in range(12):
        length = int(rng.integers(4, 13))
        cases.append(([int(c) for c in rng.integers(0, 20, length)], int(rng.integers(2, length + 1))))
    cases.append(([float(c) for c in rng.random(24)], 4))
    for costs, stages in cases:
        case, given = f"costs {costs if len(costs) < 16 else '(24 of them)'}, {stages} stages", list(costs)
        cut = partition(given, stages)
        if given != costs:
            fail("costs was changed in place: work on a copy", case, "changed")
        try:
            cut = [(int(start), int(end)) for start, end in cut]
        except (TypeError, ValueError):
            fail("expected a list of (start, end), one a stage", case, repr(cut)[:200])
        borders = [0, *(end for _, end in cut)]
        if len(cut) != stages or borders[-1] != len(costs) or [start for start, _ in cut] != borders[:-1]:
            fail(f"{cut} does not cut 0…{len(costs)} into {stages} parts, one after the other", case, cut)
        if any(start >= end for start, end in cut):
            fail(f"{cut} has an empty part", case, cut)
        largest, least = max(math.fsum(costs[start:end]) for start, end in cut), _least_sum(costs, stages)
        if largest > least * (1 + TIME_ERROR):
            fail(f"the largest part of {cut} costs {largest:g}, another cut has {least:g}", case, cut)


@check("11-ex5-partition")
def partition_refuses_what_makes_no_sense(partition, *, rng):
    """More stages than layers, no stage, a negative cost: ValueErrors that name the argument."""
    for arguments, word in (
        (([1, 2], 3), "stages"),
        (([1, 2], 0), "stages"),
        (([], 1), "stages"),
        (([1, -1], 1), "costs"),
    ):
        expect_raises(f"partition{arguments}", partition, *arguments, error=ValueError, mentions=word)


# ---- 6 · pipeline_step: what runs in the ranks ----


@dataclass
class Probe:
    """What one stage did: its forwards and backwards in order, by size, and how many it kept alive."""

    log: list[tuple[str, int]] = field(default_factory=list)
    alive: int = 0
    peak: int = 0


class _Token:
    """Stands for a tensor that a stage saved for its backward; autograd drops it when the tensor is let go."""

    def __init__(self, tensor: torch.Tensor, probe: Probe):
        self.tensor, self.probe = tensor, probe
        probe.alive += 1
        probe.peak = max(probe.peak, probe.alive)

    def __del__(self):
        self.probe.alive -= 1


class _Watch(torch.autograd.Function):
    """Identity that saves one tensor, writes down when it runs, and may take its time."""

    @staticmethod
    def forward(ctx, h, probe, seconds):
        ctx.probe, ctx.seconds = probe, seconds
        ctx.save_for_backward(torch.ones(()))
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        with record_function("B"):
            ctx.probe.log.append(("B", len(gradient)))
            (one,) = ctx.saved_tensors
            time.sleep(ctx.seconds)
            return gradient * one, None, None


class Stage(nn.Module):
    """A layer with tanh (or an embedding) whose activations are `hidden` in shape, watched by a probe."""

    def __init__(self, weights: dict[str, np.ndarray], hidden: tuple[int, ...], transposed: bool, sleep=(0.0, 0.0)):
        super().__init__()
        self.params = nn.ParameterDict({name: nn.Parameter(torch.tensor(w)) for name, w in weights.items()})
        self.hidden, self.transposed, self.sleep, self.probe = hidden, transposed, sleep, Probe()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `(B, *hidden)`, or the first stage's input, to `(B, *hidden)`."""
        with record_function("F"):
            self.probe.log.append(("F", len(x)))
            time.sleep(self.sleep[0])
            h = self.layer(x)
            probe = self.probe
            with torch.autograd.graph.saved_tensors_hooks(lambda t: _Token(t, probe), lambda token: token.tensor):
                h = _Watch.apply(h, self.probe, self.sleep[1])
            return h.transpose(1, 2).contiguous().transpose(1, 2) if self.transposed else h

    def layer(self, x: torch.Tensor) -> torch.Tensor:
        """The same without being watched."""
        if "table" in self.params:
            h = self.params["table"][x]
        else:
            h = x.reshape(len(x), -1) @ self.params["weight"] + self.params["bias"]
        return torch.tanh(h).reshape(len(x), *self.hidden)


@dataclass
class Case:
    """One step of one pipeline; its micro-batches differ in size, so that sizes tell them apart, but for one case."""

    name: str
    stages: list[dict[str, np.ndarray]]
    hidden: tuple[int, ...]
    schedule: list[list[tuple[str, int]]]
    batch: list[tuple[np.ndarray, np.ndarray]]
    transposed: bool = False
    sleep: tuple[float, float] = (0.0, 0.0)

    def build(self, stage: int) -> Stage:
        return Stage(self.stages[stage], self.hidden, self.transposed, self.sleep)

    def rows(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.tensor(x), torch.tensor(y)) for x, y in self.batch]


def _loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean over examples of a squared distance; large enough for gradients of the order of 1."""
    return 4 * (output.reshape(len(output), -1) - y).square().sum(dim=1).mean()


def _drive(rank: int, world_size: int, step: Callable, cases: list[Case]) -> list[dict]:
    """Inside a rank: two calls for each case, the second into the gradients of the first."""
    outcomes = []
    for case in cases:
        stage, rows = case.build(rank), case.rows()
        dist.barrier()
        first = step(stage, rows, case.schedule, _loss, case.hidden)
        log, peak, left = list(stage.probe.log), stage.probe.peak, stage.probe.alive
        dist.barrier()
        once = {name: p.grad.clone() for name, p in stage.params.items() if p.grad is not None}
        step(stage, case.rows(), case.schedule, _loss, case.hidden)
        twice = {name: p.grad.clone() for name, p in stage.params.items() if p.grad is not None}
        pairs = [(t, a) for row, old in zip(rows, case.batch, strict=True) for t, a in zip(row, old, strict=True)]
        same = all(np.array_equal(t.detach().numpy(), a) for t, a in pairs)
        outcomes.append({
            "loss": float(first) if isinstance(first, torch.Tensor) and first.dim() == 0 else first,
            "once": {name: g.numpy() for name, g in once.items()},
            "twice": {name: g.numpy() for name, g in twice.items()},
            "log": log,
            "peak": peak,
            "left": left,
            "inputs": same and not any(t.requires_grad for row in rows for t in row),
        })  # fmt: skip
    dist.barrier()
    return outcomes


def _expected(case: Case) -> tuple[float, list[dict[str, np.ndarray]]]:
    """Loss and gradients of the unsplit model on the whole batch."""
    stages = [case.build(s) for s in range(len(case.stages))]
    x, y = (torch.cat(parts) for parts in zip(*case.rows(), strict=True))
    for stage in stages:
        x = stage.layer(x)
    loss = _loss(x, y)
    loss.backward()
    return loss.item(), [{name: p.grad.numpy() for name, p in stage.params.items()} for stage in stages]


# ---- 6 · pipeline_step: inputs ----


def _gpipe(stages: int, count: int) -> list[list[tuple[str, int]]]:
    return [[(kind, m) for kind in "FB" for m in range(count)] for _ in range(stages)]


def _one_f_one_b(stages: int, count: int) -> list[list[tuple[str, int]]]:
    """Each stage runs a backward as soon as it holds stages − s forwards, a forward otherwise."""
    schedule = []
    for s in range(stages):
        forwards, backwards, mine = 0, 0, []
        while backwards < count:
            if forwards < count and forwards - backwards < stages - s:
                mine.append(("F", forwards))
                forwards += 1
            else:
                mine.append(("B", backwards))
                backwards += 1
        schedule.append(mine)
    return schedule


def _case(
    rng: np.random.Generator,
    name: str,
    schedule: list,
    count: int,
    hidden: tuple[int, ...],
    tokens=False,
    equal=False,
    **more: Any,
) -> Case:
    stages, width = len(schedule), math.prod(hidden)
    sizes = [3] * count if equal else [int(n) for n in rng.permutation(np.arange(1, count + 1))]

    def numbers(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    weights = [{"weight": numbers(width, width) / math.sqrt(width) * 2, "bias": numbers(width)} for _ in range(stages)]
    weights[0] = {"table": numbers(7, width)} if tokens else {"weight": numbers(3, width), "bias": numbers(width)}
    weights = [{key: w.astype(np.float32) for key, w in mine.items()} for mine in weights]
    inputs = [rng.integers(0, 7, n) if tokens else numbers(n, 3) for n in sizes]
    batch = [(x, numbers(len(x), width)) for x in inputs]
    where = f"{count_of_ranks(stages)}, {count} micro-batches"
    return Case(f"{name}, {where}", weights, hidden, schedule, batch, **more)


def _cases(rng: np.random.Generator, n: int) -> list[Case]:
    """The usual schedules first, then few micro-batches, stages that go through them in orders of their own."""
    late_first = [[(kind, 4 - m) if kind == "B" else (kind, m) for kind, m in mine] for mine in _gpipe(n, 5)]
    return [
        _case(rng, "1F1B", _one_f_one_b(n, 6), 6, (5,)),
        _case(rng, "GPipe", _gpipe(n, 4), 4, (2, 3), tokens=True),
        _case(rng, "1F1B, stages whose output is not contiguous", _one_f_one_b(n, 3), 3, (2, 3), transposed=True),
        _case(rng, "GPipe, the last backward first", late_first, 5, (4,)),
        _case(rng, "1F1B", _one_f_one_b(n, 2), 2, (5,)),
        # Of equal sizes: a longer message than its receiver expects would end the process.
        _case(rng, "each stage in its own order", _random_schedule(rng, n, 4, None), 4, (5,), equal=True),
        _case(rng, "1F1B", _one_f_one_b(n, 1), 1, (4,)),
    ]


# ---- 6 · pipeline_step: checks ----


@check("11-ex6-pipeline-step")
def pipeline_equals_the_unsplit_model(pipeline_step, *, rng):
    """Loss and gradients, the order of work, what is alive, and the bytes between neighbors."""
    for world_size in (4, 2, 5, 1):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (pipeline_step, cases))
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        if any(len(parts) != 2 * len(cases) + 2 for parts in calls):
            fail("barrier was called: ranks need only their neighbors' messages", f"{world_size} ranks", "barrier")
        for c, case in enumerate(cases):
            outcomes = [mine[c] for mine in results]
            _expect_order(case, outcomes)
            _expect_numbers(case, outcomes)
            _expect_alive(case, outcomes)
            _expect_wire(case, [parts[2 * c + 1] for parts in calls])


def _expect_order(case: Case, outcomes: list[dict]) -> None:
    logs = [[f"{kind} of {size}" for kind, size in outcome["log"]] for outcome in outcomes]
    for rank, got in enumerate(logs):
        want = [f"{kind} of {len(case.batch[m][0])}" for kind, m in case.schedule[rank]]
        if got != want:
            at = next((k for k, pair in enumerate(zip(got, want, strict=False)) if pair[0] != pair[1]), None)
            if at is None:
                text = f"rank {rank} ran {len(got)} entries, its schedule has {len(want)}"
            else:
                text = f"rank {rank}'s entry {at} was {got[at]} examples, its schedule says {want[at]}"
            fail(text, case.name, [rank, *got])


def _expect_numbers(case: Case, outcomes: list[dict]) -> None:
    loss, gradients = _expected(case)
    last = len(outcomes) - 1
    for rank, outcome in enumerate(outcomes):
        if rank < last and outcome["loss"] is not None:
            fail(f"rank {rank} returned {outcome['loss']!r}, only the last rank returns a loss", case.name, "returned")
        for what, factor in (("once", 1), ("twice", 2)):
            if set(outcome[what]) != set(gradients[rank]):
                fail(f"rank {rank} has parameters without a gradient", case.name, sorted(outcome[what]))
            for name, want in gradients[rank].items():
                label = f"rank {rank}'s gradient of {name!r}" + (
                    " after two steps without zeroing" if factor == 2 else ""
                )
                scale = max(1.0, float(np.max(np.abs(factor * want))))
                bound = GRADIENT_ERROR * scale
                expect_close(case.name, outcome[what][name], factor * want, what=label, rtol=0.0, atol=bound)
        if not outcome["inputs"]:
            fail(f"a micro-batch on rank {rank} was changed, or its requires_grad set", case.name, "inputs")
    if not isinstance(outcomes[last]["loss"], (int, float)):
        fail(f"the last rank returned {outcomes[last]['loss']!r}, expected the loss", case.name, "no loss")
    bound = GRADIENT_ERROR * max(1.0, abs(loss))
    expect_close(case.name, outcomes[last]["loss"], np.array(loss), what="the loss", rtol=0.0, atol=bound)


def _expect_alive(case: Case, outcomes: list[dict]) -> None:
    got = [[outcome["peak"], outcome["left"]] for outcome in outcomes]
    for rank, (outcome, most) in enumerate(zip(outcomes, _peaks(case.schedule), strict=True)):
        if outcome["peak"] > most:
            text = (
                f"rank {rank} kept the activations of {outcome['peak']} micro-batches alive, its schedule needs {most}"
            )
            fail(text, case.name, got)


def _expect_wire(case: Case, calls: list[list]) -> None:
    """Activations to the right, gradients to the left, once each, in float32; no collective."""
    whole = 4 * math.prod(case.hidden) * sum(len(x) for x, _ in case.batch)
    last = len(calls) - 1
    for rank, mine in enumerate(calls):
        sent = {peer: sum(m.bytes for m in mine if m.is_send and m.peer == peer) for peer in range(last + 1)}
        if collective := [m.call for m in mine if m.is_collective]:
            fail(f"rank {rank} called {collective[0]}, which no stage needs", case.name, collective)
        for peer, nbytes in sent.items():
            want = whole if abs(peer - rank) == 1 else 0
            if nbytes != want:
                fail(
                    f"rank {rank} sent {nbytes} bytes to rank {peer}, expected {want}",
                    case.name,
                    [rank, *sent.values()],
                )


# ---- 6 · pipeline_step: time ----

#: Seconds of a forward and of a backward, and how far bubble and makespan may be from the prediction.
SLEEPS, BUBBLE_ERROR, MAKESPAN_ERROR = (0.03, 0.06), 0.05, 0.10
TRIES = 3


def _step_once(rank: int, world_size: int, step: Callable, cases: list[Case]) -> None:
    for case in cases:
        stage, rows = case.build(rank), case.rows()
        dist.barrier()
        step(stage, rows, case.schedule, _loss, case.hidden)
    dist.barrier()


def _events(ledger: Any) -> list[list[tuple[float, str, Any]]]:
    """One rank's work, calls and ends of calls in the order of time, cut at its barriers."""
    barriers = sorted(m.start for m in ledger if m.call == "barrier")
    events = [(span.start, "work", span.name) for span in ledger.spans]
    for message in ledger:
        if not message.is_collective:
            events.append((message.start, "call", message))
            if message.end is not None:
                events.append((message.end, "end", message))
    events.sort(key=lambda event: event[0])
    parts: list[list] = [[] for _ in range(len(barriers) + 1)]
    for event in events:
        parts[sum(start < event[0] for start in barriers)].append(event)
    return parts


def _replayed(parts: list[list[tuple[float, str, Any]]], seconds: dict[str, float]) -> float:
    """The makespan if work took `seconds` and messages no time: who waited for whom, without the clock."""
    from ranks.ledger import pairs

    partner = {}
    for send, receive in pairs([e[2] for part in parts for e in part if e[1] == "call"]):
        partner[id(send)], partner[id(receive)] = receive, send
    clock, position, called = [0.0] * len(parts), [0] * len(parts), {}
    moved = True
    while moved:
        moved = False
        for rank, part in enumerate(parts):
            while position[rank] < len(part):
                _, what, thing = part[position[rank]]
                if what == "work":
                    clock[rank] += seconds[thing]
                elif what == "call":
                    called[id(thing)] = clock[rank]
                elif id(thing) in partner:  # a receive ends after its send began, a send after its receive did
                    if id(partner[id(thing)]) not in called:
                        break
                    clock[rank] = max(clock[rank], called[id(partner[id(thing)])])
                position[rank] += 1
                moved = True
    return max(clock)


def _measured(ledger: Any, world_size: int) -> tuple[float, float]:
    """Makespan and bubble by the clock."""
    makespan = max(span.end for span in ledger.spans) - min(span.start for span in ledger.spans)
    busy = sum(span.end - span.start for span in ledger.spans)
    return makespan, 1 - busy / (world_size * makespan)


@check("11-ex6-pipeline-step")
def stages_work_at_the_same_time(pipeline_step, *, rng):
    """The run takes as long as its schedule says: by who waits for whom, or else by the clock, once in three tries."""
    n, count = 4, 8
    schedules = {"1F1B": _one_f_one_b(n, count), "GPipe": _gpipe(n, count)}
    cases = [_case(rng, name, schedule, count, (5,)) for name, schedule in schedules.items()]
    ledger = run_ranks(_step_once, n, (pipeline_step, cases)).ledger
    parts = [_events(ledger.of(rank)) for rank in range(n)]
    late = [_replayed([mine[c + 1] for mine in parts], {"F": 1.0, "B": 2.0}) for c in range(len(cases))]
    for c, case in enumerate(cases):
        if late[c] > (1 + TIME_ERROR) * _makespan(case.schedule, 1.0, 2.0) and not _in_time(pipeline_step, case):
            ratio = late[c] / _makespan(case.schedule, 1.0, 2.0)
            text = f"stages wait for what they do not need: the run takes {ratio:.2f} times as long as its schedule"
            fail(f"with forwards of 30 ms and backwards of 60 ms, {text}", case.name, late)


def _makespan(schedule: list[list[tuple]], forward: float, backward: float) -> float:
    return max(_ends(_in_full(schedule), [forward] * len(schedule), [backward] * len(schedule)).values())


def _in_time(pipeline_step: Callable, case: Case) -> bool:
    """Does a run with sleeps keep to the prediction, by the clock, in one of some tries?"""
    n, case.sleep = len(case.schedule), SLEEPS
    bubble = _bubble(_in_full(case.schedule), [SLEEPS[0]] * n, [SLEEPS[1]] * n)
    makespan = _makespan(case.schedule, *SLEEPS)
    for _ in range(TRIES):
        seconds, idle = _measured(run_ranks(_step_once, n, (pipeline_step, [case])).ledger, n)
        if abs(idle - bubble) <= BUBBLE_ERROR and abs(seconds - makespan) <= MAKESPAN_ERROR * makespan:
            return True
    return False
