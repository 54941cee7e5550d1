"""Exercises 1, 4 and 5: schedules that are complete, fast and small."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checks.cases import Call, evidence, sentence
from autograder.checks.check import check

from .schedules import (
    TIME_ERROR,
    as_evidence,
    bubble_of,
    delayed,
    end_times,
    in_full,
    one_f_one_b,
    peaks_of,
)

#: Seconds of a forward and of a backward.
TIMES = [(1.0, 1.0), (1.0, 2.0), (3.0, 1.0)]


@dataclass
class Judged:
    """What is wrong with a schedule, "" where nothing is."""

    incomplete: str = sentence()
    mixed: str = sentence()
    alive: str = sentence()
    slow: str = sentence()
    schedule: Any = evidence()


FINE = Judged("", "", "", "")


def _incomplete(rows: list, kinds: str, micro_batches: int, chunks: int) -> str:
    """The first entry that a stage lacks, repeats or should not have, or that the schedule waits on itself."""
    wanted = sorted(itertools.product(kinds, range(micro_batches), range(chunks or 1)))
    parts = 3 if chunks else 2
    for stage, row in enumerate(rows):
        for entry in row:
            if entry not in wanted:
                return f"stage {stage} has the entry {entry[:parts]}, which is none of this pipeline's"
            if row.count(entry) > 1:
                return f"stage {stage} has the entry {entry[:parts]} more than once"
        if lacking := [entry for entry in wanted if entry not in row]:
            return f"stage {stage} lacks the entry {lacking[0][:parts]}"
    ones = [1.0] * len(rows)
    return "" if end_times(rows, ones, ones) else "the schedule deadlocks: at some moment every stage waits for another"


def judge(
    stages: int,
    micro_batches: int,
    chunks: int = 0,
    kinds: str = "FB",
    *,
    forwards_first: bool = False,
    peaks: list[int] | None = None,
    bubble: float | None = None,
    makespan: float | None = None,
) -> Callable:
    """What `Call(sees=…)` wants: the faults of a schedule by the limits given. chunks: 0 if entries name none.

    makespan: in seconds, if each entry takes one.
    """

    def sees(found: Any, *_: Any) -> Judged:
        try:
            rows = [[tuple(entry) for entry in row] for row in found]
        except TypeError:
            return Judged(f"expected a list of lists of tuples, got {found!r:.100}", "", "", "", repr(found)[:200])
        if len(rows) != stages:
            return Judged(
                f"the schedule has {len(rows)} lists, expected one for each of {stages} stages", "", "", "", rows
            )
        if odd := [entry for row in rows for entry in row if len(entry) != (3 if chunks else 2)]:
            return Judged(f"the entry {odd[0]} should have {3 if chunks else 2} parts", "", "", "", rows)
        rows = [[(*entry, 0)[:3] for entry in row] for row in rows]
        schedule = as_evidence(rows)
        if text := _incomplete(rows, kinds, micro_batches, chunks):
            return Judged(text, "", "", "", schedule)
        mixed = [s for s, row in enumerate(rows) if "BF" in "".join(kind for kind, *_ in row)] if forwards_first else []
        high = [(s, k, most) for s, (k, most) in enumerate(zip(peaks_of(rows), peaks or [], strict=False)) if k > most]
        return Judged(
            "",
            f"stage {mixed[0]} runs a backward before its last forward" if mixed else "",
            "stage {} keeps {} activations alive, expected at most {}".format(*high[0]) if high else "",
            _slow(rows, bubble, makespan),
            schedule,
        )

    return sees


def _slow(rows: list, bubble: float | None, makespan: float | None) -> str:
    """How a schedule exceeds its bubble or its makespan, or ""."""
    for forward, backward in TIMES if bubble is not None else ():
        got = bubble_of(rows, [forward] * len(rows), [backward] * len(rows))
        if got > bubble + TIME_ERROR:
            times = f"with {forward:g} s for a forward and {backward:g} s for a backward"
            return f"{times}, the bubble is {got:.4f}, expected at most {bubble:.4f}"
    ones = [1.0] * len(rows)
    if makespan and (last := max(end_times(rows, ones, ones, ones).values())) > makespan + TIME_ERROR:
        return f"the makespan is {last:g} s, expected at most {makespan:g} s"
    return ""


def many(rng: np.random.Generator) -> list[tuple[int, int]]:
    """(stages, micro-batches) with at least as many micro-batches as stages."""
    return [(4, 8), (3, 3), (1, 4), *[(int(n), int(n + rng.integers(0, 9))) for n in rng.integers(2, 7, 2)]]


def few(rng: np.random.Generator) -> list[tuple[int, int]]:
    """(stages, micro-batches) with fewer micro-batches than stages."""
    return [(4, 2), (3, 1), *[(int(n), int(rng.integers(1, n))) for n in rng.integers(4, 9, 2)]]


# ---- 1 · GPipe and 1F1B ----


@check("11-ex1-schedules", points=1)
def gpipe_fills_and_drains(gpipe_schedule, *, rng):
    """Each stage runs all its forwards, then all its backwards; only filling and draining leave it idle."""
    for n, m in [*many(rng), *few(rng)]:
        sees = judge(n, m, forwards_first=True, bubble=(n - 1) / (m + n - 1))
        yield Call(gpipe_schedule, n, m, gives=FINE, sees=sees)


@check("11-ex1-schedules", points=0.75)
def one_f_one_b_keeps_few_alive(one_f_one_b_schedule, *, rng):
    """With M ≥ N, 1F1B has GPipe's bubble, and stage s has at most N − s activations alive."""
    for n, m in many(rng):
        sees = judge(n, m, peaks=[n - s for s in range(n)], bubble=(n - 1) / (m + n - 1))
        yield Call(one_f_one_b_schedule, n, m, gives=FINE, sees=sees)


@check("11-ex1-schedules", points=0.25)
def few_micro_batches_run_to_their_end(one_f_one_b_schedule, *, rng):
    """With fewer micro-batches than stages, 1F1B is complete and has GPipe's bubble."""
    for n, m in few(rng):
        yield Call(one_f_one_b_schedule, n, m, gives=FINE, sees=judge(n, m, bubble=(n - 1) / (m + n - 1)))


# ---- 4 · interleaved ----


def _chunked(rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """(stages, micro-batches, chunks)."""
    some = [(int(n), int(n * rng.integers(2, 5)), int(rng.integers(2, 6))) for n in rng.integers(3, 8, 2)]
    return [(4, 8, 2), (2, 4, 3), (1, 3, 2), (4, 8, 1), *some]


@check("11-ex4-interleaved", points=1)
def interleaved_divides_the_bubble(interleaved_schedule, *, rng):
    """An interleaved schedule is complete, and its bubble is at most (N − 1)/(C·M + N − 1)."""
    for n, m, c in _chunked(rng):
        yield Call(interleaved_schedule, n, m, c, gives=FINE, sees=judge(n, m, c, bubble=(n - 1) / (c * m + n - 1)))


@check("11-ex4-interleaved", points=0.75)
def interleaved_keeps_few_alive(interleaved_schedule, *, rng):
    """Stage s has at most 2(N − 1 − s) + (C − 1)N + 1 entries alive."""
    for n, m, c in _chunked(rng):
        peaks = [2 * (n - 1 - s) + (c - 1) * n + 1 for s in range(n)]
        yield Call(interleaved_schedule, n, m, c, gives=FINE, sees=judge(n, m, c, peaks=peaks))


@check("11-ex4-interleaved", points=0.25)
def one_group_is_enough(interleaved_schedule, *, rng):
    """With M = N, where a warm-up may have all forwards, the schedule is complete and has the same bubble."""
    for n, c in ((3, 2), [int(k) for k in rng.integers([3, 2], [7, 5])]):
        yield Call(interleaved_schedule, n, n, c, gives=FINE, sees=judge(n, n, c, bubble=(n - 1) / (c * n + n - 1)))


# ---- 5 · backwards in two parts ----


def _least(n: int, m: int) -> int:
    """The seconds that a schedule in the memory of 1F1B takes at the least, if each entry takes one.

    The last stage begins after n − 1 forwards and has 3 · m entries. The first one holds at most min(n, m) activations
    when it waits for its first backward, which ends after 2 · n seconds.
    """
    return 2 * m + n - 1 + max(m, n)


def _at_once(n: int, m: int) -> float:
    """The seconds of 1F1B with each W right after its B."""
    ones = [1.0] * n
    return max(end_times(in_full(delayed(one_f_one_b(n, m), [0] * n)), ones, ones).values())


def _more(rng: np.random.Generator) -> list[tuple[int, int]]:
    """(stages, micro-batches) with more micro-batches than stages; the first are many, which tells mistakes apart."""
    return [*((n, m + 1) for n, m in many(rng)), (6, 7)]


@check("11-ex5-zero-bubble", points=1.5)
def weight_gradients_fill_the_bubble(zero_bubble_schedule, *, rng):
    """With M > N, the schedule is complete and can run, and keeps to the time that is stated."""
    for n, m in _more(rng):
        yield Call(zero_bubble_schedule, n, m, gives=FINE, sees=judge(n, m, kinds="BFW", makespan=_least(n, m)))


@check("11-ex5-zero-bubble", points=1)
def the_memory_is_that_of_1f1b(zero_bubble_schedule, *, rng):
    """With M > N, no stage has more than N activations alive, in a schedule faster than the run `cut, W at once`."""
    for n, m in _more(rng):
        sees = judge(n, m, kinds="BFW", peaks=[n] * n, makespan=max(_least(n, m), _at_once(n, m) - 1))
        yield Call(zero_bubble_schedule, n, m, gives=FINE, sees=sees)


@check("11-ex5-zero-bubble", points=0.5)
def few_micro_batches_are_enough(zero_bubble_schedule, *, rng):
    """The same holds with as many micro-batches as stages, or fewer."""
    for n, m in [(3, 3), *few(rng)]:
        sees = judge(n, m, kinds="BFW", peaks=[m] * n, makespan=_least(n, m))
        yield Call(zero_bubble_schedule, n, m, gives=FINE, sees=sees)
