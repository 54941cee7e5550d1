"""Exercises 2 and 3: what a schedule costs in time and in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import expect_close, expect_raises, fail
from autograder.checks.pipeline.schedules import (
    TIME_ERROR,
    bubble_of,
    copied,
    end_times,
    in_full,
    peaks_of,
    random_schedule,
)


def _timed(rng: np.random.Generator) -> list[tuple]:
    """(name, schedule, times, …): hand-made and random ones; equal times and one a stage; with W in some."""
    gpipe = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)]] * 2
    looped = [[("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)]] * 2
    mixed = [[("F", 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)]] * 2
    cases = [
        ("two stages, two micro-batches, 1 s and 2 s", gpipe, 1.0, 2.0),
        ("the same, whole numbers", gpipe, 1, 2),
        ("the same, a slow first stage", gpipe, [5.0, 1.0], [1.0, 2.0]),
        ("two stages, one micro-batch, two chunks", looped, 1.0, 1.0),
        ("one stage", [[("F", 1), ("B", 1), ("F", 0), ("B", 0)]], 0.5, (0.25,)),
        ("two stages, entries of two and of three parts", mixed, 1.0, 2.0),
        # Stage 1 ends last, after 9 s: neither the first stage's end, 7 s, nor any stage's own span, at most 8 s.
        ("two stages, the second one's W ends last", [[("F", 0), ("B", 0), ("W", 0)]] * 2, 1.0, 2.0, [1.0, 5.0]),
    ]
    for stages, count, chunks in ((3, 4, None), (4, 3, 2), (2, 3, 3), (5, 2, None)):
        schedule = random_schedule(rng, stages, count, chunks)
        times = [[float(t) for t in rng.integers(1, 9, stages) / 7] for _ in range(2)]
        name = f"a random order of {stages} stages, {count} micro-batches" + (f", {chunks} chunks" if chunks else "")
        cases += [(name, schedule, 0.5, 1.25), (f"{name}, each stage with times of its own", schedule, *times)]
    for stages, count, chunks in ((3, 4, None), (2, 3, 2)):
        schedule = random_schedule(rng, stages, count, chunks, kinds="FBW")
        times = [[float(t) for t in rng.integers(1, 9, stages) / 7] for _ in range(3)]
        name = f"a random order of {stages} stages, {count} micro-batches, with W" + (", two chunks" if chunks else "")
        cases += [(name, schedule, 0.5, 1.25), (f"{name}, each stage with times of its own", schedule, *times)]
    return cases


def _one_a_stage(times: Any, stages: int) -> list[float]:
    """One time for each stage."""
    return [float(times)] * stages if np.ndim(times) == 0 else [float(t) for t in times]


@check("11-ex2-simulate", points=2.5)
def simulation_starts_each_entry_at_once(simulate, *, rng):
    """Each entry starts once its stage is free and its needs are over, and takes its time; the schedule is kept."""
    for case, schedule, *times in _timed(rng):
        stages, given = len(schedule), copied(schedule)
        spans = simulate(given, *times)
        each = [_one_a_stage(time, stages) for time in [*times, 1.0][:3]]
        ends = end_times(in_full(schedule), *each)
        if not isinstance(spans, (list, tuple)) or [len(mine) for mine in spans] != [len(mine) for mine in schedule]:
            text = "simulate should return for each stage a list with one (start, end) for each of its entries"
            fail(text, case, repr(spans)[:200])
        for stage, mine in enumerate(in_full(schedule)):
            seconds = {kind: lasts[stage] for kind, lasts in zip("FBW", each, strict=True)}
            over = [ends[kind, m, chunk * stages + stage] for kind, m, chunk in mine]
            want = [(end - seconds[kind], end) for end, (kind, _, _) in zip(over, mine, strict=True)]
            got = [tuple(pair) for pair in spans[stage]]
            expect_close(case, got, np.array(want), what=f"(start, end) on stage {stage}", rtol=TIME_ERROR)
        if given != copied(schedule):
            fail("the schedule was changed in place: work on a copy", case, "changed")


@check("11-ex2-simulate", points=1)
def bubble_is_the_idle_share(bubble_fraction, *, rng):
    """The bubble is the share of all stages' time, from the first start to the last end, in which they are idle."""
    for case, schedule, *times in _timed(rng):
        want = bubble_of(in_full(schedule), *(_one_a_stage(time, len(schedule)) for time in times))
        got = bubble_fraction(copied(schedule), *times)
        expect_close(case, got, np.array(want), what="the bubble", rtol=0.0, atol=TIME_ERROR)


@check("11-ex2-simulate", points=0.5, fixed=REFUSALS)
def what_cannot_run_is_refused(simulate, bubble_fraction):
    """An empty schedule, one that cannot run, and times that are not positive or not one per stage are a ValueError."""
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
        "all stages have B0 in place of B1": [[("F", 0), ("F", 1), ("B", 0), ("B", 0)]] * 2,
        "all stages have F0 in place of B0": [[("F", 0), ("F", 0), ("F", 1), ("B", 1)]] * 2,
        "no entries": [[], []],
        "a W before its B": [[("F", 0), ("W", 0), ("B", 0)]],
        "one stage lacks its W": [[("F", 0), ("B", 0), ("W", 0)], [("F", 0), ("B", 0)]],
        "only micro-batch 0 has a W": [[("F", 0), ("B", 0), ("F", 1), ("B", 1), ("W", 0)]],
    }
    times = {
        "forward_time": [0, -1.0, [1.0, 0.0], [1.0], [1.0, 1.0, 1.0], math.nan],
        "backward_time": [0.0, -2, [-1.0, 1.0], [], [1.0] * 4],
        "weight_time": [0.0, [1.0], [1.0, -1.0]],
    }
    for name, function in (("simulate", simulate), ("bubble_fraction", bubble_fraction)):
        for what, schedule in schedules.items():
            case = f"{name}, {what}"
            expect_raises(case, function, copied(schedule), 1.0, 1.0, error=ValueError, mentions="schedule")
        got = function(copied(good), 1.0, 1.0)
        if function is simulate:
            spans = [[(0, 1), (1, 2), (4, 5), (5, 6)], [(1, 2), (2, 3), (3, 4), (4, 5)]]
            expect_close("simulate, two stages", got, np.array(spans), what="the list of (start, end)", rtol=TIME_ERROR)
        for word, wrong in times.items():
            for value in wrong:
                given = [value if one == word else 1.0 for one in times]
                case = f"{name}, two stages, {word}={value}"
                expect_raises(case, function, copied(good), *given, error=ValueError, mentions=word)


# ---- 3 · peak_activations ----


@check("11-ex3-peaks", points=1)
def peaks_count_what_is_alive(peak_activations, *, rng):
    """For each stage, the peak is the largest number of forwards whose `W`, or `B` if there is none, is not over."""
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
    some = [(f"a random order of {n} stages, {m} micro-batches", random_schedule(rng, n, m, c)) for n, m, c in shapes]
    for n, m, c in shapes:
        schedule = random_schedule(rng, n, m, c, kinds="FBW")
        some.append((f"a random order of {n} stages, {m} micro-batches, with W", schedule))
    for case, schedule in [*fixed, *some]:
        given = copied(schedule)
        got = peak_activations(given)
        want = peaks_of(schedule)
        expect_close(case, got, np.array(want), what="the list of peaks", rtol=0.0)
        if given != copied(schedule):
            fail("the schedule was changed in place: work on a copy", case, "changed")
