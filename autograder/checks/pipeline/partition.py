"""Exercise 5: layers cut into stages."""

from __future__ import annotations

import math

from autograder.checking.check import check
from autograder.checking.expect import digits_that_differ, expect_raises, fail, shown
from autograder.checks.pipeline.schedules import TIME_ERROR


def _least_sum(costs: list[float], stages: int) -> float:
    """The smallest largest sum: of all sums of neighbors the first that `stages` runs can keep to."""
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
    """The parts follow each other, cover all layers, none is empty, and the largest cost is as small as possible."""
    cases = [
        ([1, 1, 1, 1, 4], 2), ([1, 8, 3, 2, 1], 3), ([5, 1, 1, 1, 1, 1], 3), ([2, 3, 4, 5, 6], 3),
        ([1, 1, 1, 9, 1, 1, 1], 4), ([9, 0, 0, 0], 3), ([0, 0, 0, 0], 3), ([3], 1), ([4, 2, 4], 3),
        ([7, 1, 1, 1, 1, 1, 1, 7], 2), ([1.5, 0.25, 2.0], 2),
    ]  # fmt: skip
    for _ in range(12):
        length = int(rng.integers(4, 13))
        cases.append(([int(c) for c in rng.integers(0, 20, length)], int(rng.integers(2, length + 1))))
        cases.append(([float(c) / 64 for c in rng.integers(0, 90, length)], int(rng.integers(2, length))))
    cases += [([0.0625, 0.015625, 0.015625, 0.015625], 2), ([float(c) for c in rng.random(24)], 4)]
    for costs, stages in cases:
        case, given = f"costs {costs if len(costs) < 16 else '(24 of them)'}, {stages} stages", list(costs)
        cut = partition(given, stages)
        if given != costs:
            fail("costs was changed in place: work on a copy", case, "changed")
        try:
            cut = [(int(start), int(end)) for start, end in cut]
        except (TypeError, ValueError):
            text = f"partition returned {shown(cut)}, expected a list of (start, end), one for each stage"
            fail(text, case, repr(cut)[:200])
        borders = [0, *(end for _, end in cut)]
        if len(cut) != stages or borders[-1] != len(costs) or [start for start, _ in cut] != borders[:-1]:
            text = f"{cut} does not cut the layers 0 to {len(costs) - 1} into {stages} part{'s' if stages > 1 else ''}"
            fail(f"{text} that follow each other", case, cut)
        if any(start >= end for start, end in cut):
            fail(f"{cut} has an empty part", case, cut)
        largest, least = max(math.fsum(costs[start:end]) for start, end in cut), _least_sum(costs, stages)
        if largest > least * (1 + TIME_ERROR):
            one, other = digits_that_differ(largest, least)
            fail(f"the largest part of {cut} costs {one}, another cut's costs {other}", case, cut)


@check("11-ex5-partition")
def partition_refuses_what_makes_no_sense(partition, *, rng):
    """More stages than layers, no stage or a negative cost is a ValueError that names the argument."""
    for arguments, word in (
        (([1, 2], 3), "stages"),
        (([1, 2], 0), "stages"),
        (([], 1), "stages"),
        (([1, -1], 1), "costs"),
    ):
        expect_raises(f"partition{arguments}", partition, *arguments, error=ValueError, mentions=word)
