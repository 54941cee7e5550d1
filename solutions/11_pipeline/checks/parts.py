"""Exercise 5: backwards in two parts."""

from __future__ import annotations

from typing import Any

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import expect_raises, fail
from autograder.checks.pipeline.order import NEGATIVE
from autograder.checks.pipeline.schedules import TIME_ERROR, as_evidence, end_times, expect_complete, expect_peaks


def _expect_fast_and_small(stages: int, count: int, schedule: Any) -> None:
    """Complete, at most as much alive as in 1F1B, and as fast as that memory allows when all entries take 1 s.

    The last stage begins after stages − 1 forwards and has 3 · count entries. The first one holds at most
    min(stages, count) activations when it waits for its first backward, which ends after 2 · stages seconds.
    """
    case = f"{stages} stages, {count} micro-batches"
    read = expect_complete(case, schedule, stages, count, kinds="FBW")
    expect_peaks(case, read, [min(count, stages)] * stages)
    most = 2 * count + stages - 1 + max(count, stages)
    got = max(end_times(read, [1.0] * stages, [1.0] * stages, [1.0] * stages).values())
    if got > most * (1 + TIME_ERROR):
        fail(f"the makespan is {got:g} s, expected at most {most} s", case, as_evidence(read))


@check("11-ex5-zero-bubble", points=2.25)
def weight_gradients_fill_the_bubble(zero_bubble_schedule, *, rng):
    """With M ≥ N, the schedule is complete and can run, and keeps to the memory and to the time that are stated."""
    counts = [(4, 8), (2, 3), (3, 3), (1, 4), (1, 1), (5, 5), (4, 5), (8, 24), (6, 7)]
    for stages in rng.integers(2, 8, 3):
        counts.append((int(stages), int(stages + rng.integers(0, 12))))
    for stages, count in counts:
        _expect_fast_and_small(stages, count, zero_bubble_schedule(stages, count))


@check("11-ex5-zero-bubble", points=0.5)
def few_micro_batches_are_enough(zero_bubble_schedule, *, rng):
    """The same holds with fewer micro-batches than stages."""
    counts = [(4, 2), (5, 1), (2, 1), (6, 4), (8, 7), (3, 2)]
    for stages in rng.integers(3, 9, 2):
        counts.append((int(stages), int(rng.integers(1, stages))))
    for stages, count in counts:
        _expect_fast_and_small(stages, count, zero_bubble_schedule(stages, count))


@check("11-ex5-zero-bubble", points=0.25, fixed=REFUSALS)
def zero_bubble_refuses_counts_below_one(zero_bubble_schedule):
    """A count of stages or micro-batches below 1 is a ValueError that names it."""
    for arguments, word in (((0, 4), "stages"), ((4, 0), "micro_batches"), ((1, 1), ""), *NEGATIVE):
        case = f"zero_bubble_schedule{arguments}"
        if word:
            expect_raises(case, zero_bubble_schedule, *arguments, error=ValueError, mentions=word)
        else:
            expect_complete(case, zero_bubble_schedule(*arguments), *arguments, kinds="FBW")
