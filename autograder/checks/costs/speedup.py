"""Lesson 02, exercise 4: Amdahl's law, and the parallel fraction that fits measured speedups."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from autograder.checking.check import check
from autograder.checks.costs.common import (
    exactly,
    expect_array,
    expect_inputs_unchanged,
    expect_number,
    expect_value_error,
    result_of,
)


@check("02-ex4-amdahl")
def speedup_follows_amdahl(amdahl_speedup: Callable, *, rng: np.random.Generator) -> None:
    """The speedup is that of Amdahl's law, for one n and for arrays, lists and tuples of n, in their shape."""
    p = float(rng.uniform(0.3, 0.95))
    many = rng.uniform(1, 100, 6)
    whole = rng.integers(1, 1000, (2, 3))
    for case, fraction, n in (
        ("a number", p, int(rng.integers(2, 50))),
        ("a float", p, float(rng.uniform(2, 50))),
        ("n = 1", p, 1),
        ("an array", p, many),
        ("an array of whole numbers, (2, 3)", p, whole),
        ("a list", p, [int(n) for n in whole[0]]),
        ("a tuple", p, (1, 2, 4)),
        ("an array of one n", p, np.array([8])),
        ("p = 0", 0, [1, 2, 1000]),
        ("p = 1", 1, [1, 2, 1000]),
        ("p = 1.0, a number", 1.0, 7),
    ):
        call = f"amdahl_speedup({fraction:.6g}, n) for {case}" if np.ndim(n) else f"amdahl_speedup({fraction:.6g}, {n})"
        before = copy.deepcopy(n)
        got = result_of(case, call, amdahl_speedup, fraction, n)
        expect_inputs_unchanged(case, (before,), (n,), ("n",))
        expected = [1 / (1 - Fraction(fraction) + Fraction(fraction) / Fraction(exactly(m))) for m in np.ravel(n)]
        expect_array(case, got, expected, np.shape(n), call, "only the parallel part is shared")


@check("02-ex4-amdahl")
def speedup_refuses_what_is_no_fraction(amdahl_speedup: Callable, *, rng: np.random.Generator) -> None:
    """A parallel_fraction outside [0, 1] and any n below 1 raise a ValueError that names the argument."""
    expect_value_error("parallel_fraction = 1.01", "parallel_fraction", amdahl_speedup, 1.01, 4)
    expect_value_error("parallel_fraction = -0.01", "parallel_fraction", amdahl_speedup, -0.01, np.array([2, 4]))
    expect_value_error("n = 0", "n", amdahl_speedup, 0.5, 0)
    expect_value_error("n = 0.5", "n", amdahl_speedup, 0.5, 0.5)
    expect_value_error("one n of three below 1", "n", amdahl_speedup, 0.5, [4, 0.9, 2])
    expect_value_error("one n of three below 1, an array", "n", amdahl_speedup, 0.5, np.array([4, 2, -1]))


@check("02-ex4-amdahl")
def fraction_minimizes_the_squared_errors(fit_parallel_fraction: Callable, *, rng: np.random.Generator) -> None:
    """The result is the float p in [0, 1] with the least sum of squared errors in 1/S."""
    ns = np.array([4, 1, 2, 16, 8])
    p = float(rng.uniform(0.5, 0.9))
    exact = 1 / (1 - p + p / ns)
    noisy = exact * rng.uniform(0.9, 1.1, len(ns))
    later = [3, 5, 9, 27]
    measured = [float(s) for s in rng.uniform(1.2, 2.8, 4)]
    for case, given, speedups in (
        ("noisy speedups, arrays", ns, noisy),
        ("exact speedups, arrays", ns, exact),
        ("no n = 1, lists", later, measured),
        ("one n above 1, tuples", (1, 6), (1.0, measured[0])),
        ("better than linear", [1, 2, 4], [1, 2.5, 6]),
        ("slower than one process", [1, 2, 4], [1.0, 0.8, 0.5]),
        ("the same n twice", [4, 4], measured[:2]),
        ("one better than linear", [2, 4, 8], [2.4, *sorted(measured[:2])]),
        ("whole numbers", [1, 2, 8, 3], [1, 2, 4, 2]),
        ("one slower than one process", [2, 4, 8], [0.8, 1.5, 2.0]),
    ):
        before = copy.deepcopy((given, speedups))
        got = result_of(case, "fit_parallel_fraction(ns, speedups)", fit_parallel_fraction, given, speedups)
        expect_inputs_unchanged(case, before, (given, speedups), ("ns", "speedups"))
        because = "no other p in [0, 1] has a smaller sum of squared errors in 1/S"
        expect_number(case, got, _best_fraction(given, speedups), "the parallel fraction", because)


@check("02-ex4-amdahl")
def fraction_refuses_what_has_no_fit(fit_parallel_fraction: Callable, *, rng: np.random.Generator) -> None:
    """Unequal lengths, no n above 1 and speedups that are not positive raise a ValueError that names ns or speedups."""
    for case, name, ns, speedups in (
        ("more ns than speedups", "ns", [1, 2, 4], [1.0, 1.5]),
        ("more speedups than ns", "ns", [1, 2], [1.0, 1.5, 2.0]),
        ("one speedup for three ns", "ns", [1, 2, 4], [1.0]),
        ("only n = 1", "ns", [1, 1], [1.0, 1.1]),
        ("a speedup of 0", "speedups", [1, 2, 4], [1.0, 0.0, 2.0]),
        ("a negative speedup", "speedups", [1, 2, 4], [1.0, 1.5, -2.0]),
    ):
        expect_value_error(case, name, fit_parallel_fraction, ns, speedups)


def _best_fraction(ns: Sequence, speedups: Sequence) -> Fraction:
    """The sum of squares is a parabola in p: three of its values give its lowest point, which [0, 1] clips."""
    points = [(Fraction(exactly(n)), 1 / Fraction(exactly(s))) for n, s in zip(ns, speedups, strict=True)]

    def error(p: Fraction) -> Fraction:
        return sum((left - (1 - p) - p / n) ** 2 for n, left in points)

    at_0, at_half, at_1 = (error(Fraction(k, 2)) for k in range(3))
    curvature = at_0 - 2 * at_half + at_1
    lowest = Fraction(1, 2) - (at_1 - at_0) / (4 * curvature)
    return min(Fraction(1), max(Fraction(0), lowest))
