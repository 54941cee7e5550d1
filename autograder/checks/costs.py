"""Lesson 02: what must hold of the costs of communication, one function for each property.

No oracle evaluates the formula that a solution does. The times come from playing the rounds, one after the other,
in exact rational arithmetic; the crossover from two points of each of those lines; the fits from the conditions for
a minimum, in rational arithmetic too. Python's `Fraction` takes every float as the exact number that it is, so only
the student's own rounding is left to compare.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import as_array, digits_that_differ, fail

#: A few float64 operations on positive numbers are off by about 1e-15 of the result. Where differences are taken (the
#: fits), the inputs are drawn so that fewer than four digits cancel; sums that are not centered may lose four more.
RTOL = 1e-9


# ---- 1 · ring_time, tree_time ----


@check("02-ex1-ring-and-tree")
def ring_takes_its_rounds(ring_time: Callable, *, rng: np.random.Generator) -> None:
    """The time is that of a ring all-reduce, played round by round with chunks of exactly T/N bytes."""
    because = "a ring passes on chunks of T/N bytes, in a reduce-scatter and then an all-gather"
    _expect_times(ring_time, "ring_time", _ring_seconds, because, rng)


@check("02-ex1-ring-and-tree")
def tree_takes_its_rounds(tree_time: Callable, *, rng: np.random.Generator) -> None:
    """The time is that of a tree all-reduce, played round by round with whole vectors, up to the root and down."""
    because = "a tree sends whole vectors, up to the root and then down again"
    _expect_times(tree_time, "tree_time", _tree_seconds, because, rng)


@check("02-ex1-ring-and-tree")
def ring_refuses_nonsense(ring_time: Callable, *, rng: np.random.Generator) -> None:
    """n below 1 and a negative nbytes, alpha or beta raise a ValueError that names the argument."""
    _expect_refusals(ring_time)


@check("02-ex1-ring-and-tree")
def tree_refuses_nonsense(tree_time: Callable, *, rng: np.random.Generator) -> None:
    """n below 1 and a negative nbytes, alpha or beta raise a ValueError that names the argument."""
    _expect_refusals(tree_time)


def _expect_times(function: Callable, name: str, oracle: Callable, because: str, rng: np.random.Generator) -> None:
    for n in (5, 4, 2, 3, 8, 7, 16, 17, 64, 1000, 1024):
        nbytes = int(rng.integers(1, 1000)) * 1000 + 7  # divisible by hardly any n
        alpha, beta = _prices(rng, nbytes / n)
        _expect_time(function, oracle, name, f"N = {n}", because, nbytes, n, alpha, beta)
    nbytes = float(rng.uniform(1e3, 1e6))
    alpha, beta = _prices(rng, nbytes / 6)
    _expect_time(function, oracle, name, "bytes that are no whole number", because, nbytes, 6, alpha, beta)
    _expect_time(function, oracle, name, "fewer bytes than ranks", because, 3, 8, 0.0, beta)
    _expect_time(function, oracle, name, "T = 0", "every message still costs alpha", 0, 6, alpha, beta)
    _expect_time(function, oracle, name, "alpha = 0", because, nbytes, 6, 0, beta)
    _expect_time(function, oracle, name, "beta = 0", because, nbytes, 6, alpha, 0)
    _expect_time(function, oracle, name, "whole numbers", because, 7, 6, 2, 3)
    _expect_time(function, oracle, name, "N = 1", "one rank sends nothing", nbytes, 1, alpha, beta)
    _expect_time(function, oracle, name, "N = 1, T = 0", "one rank sends nothing", 0, 1, alpha, 0.0)


def _expect_time(
    function: Callable,
    oracle: Callable,
    name: str,
    case: str,
    because: str,
    nbytes: float,
    n: int,
    alpha: float,
    beta: float,
) -> None:
    call = f"{name}({nbytes}, {n}, {alpha:.6g}, {beta:.6g})"
    got = _call(case, call, function, nbytes, n, alpha, beta)
    _expect_number(case, got, oracle(nbytes, n, alpha, beta), call, because)


def _expect_refusals(function: Callable) -> None:
    right = {"nbytes": 1000, "n": 4, "alpha": 1e-5, "beta": 1e-9}
    for name, value in (("n", 0), ("n", -3), ("nbytes", -1), ("alpha", -1e-9), ("beta", -1e-12)):
        _expect_value_error(f"{name} = {value}", name, function, *(right | {name: value}).values())


def _prices(rng: np.random.Generator, nbytes: float) -> tuple[float, float]:
    """alpha and beta for which starting a message of `nbytes` costs about as much as its bytes do."""
    beta = float(10 ** rng.uniform(-11, -9))
    return float(beta * nbytes * rng.uniform(0.5, 2)), beta


def _ring_seconds(nbytes: float, n: int, alpha: float, beta: float) -> Fraction:
    """Play a ring: in each round every rank passes on a chunk; each half ends when a chunk has visited every rank."""
    message = Fraction(alpha) + Fraction(beta) * Fraction(nbytes) / n
    seconds = Fraction(0)
    for _half in ("reduce-scatter", "all-gather"):
        visited = {0}
        while len(visited) < n:
            visited.add((max(visited) + 1) % n)
            seconds += message
    return seconds


def _tree_seconds(nbytes: float, n: int, alpha: float, beta: float) -> Fraction:
    """Play a tree: up, each round halves the ranks that hold a partial sum; down, it doubles those with the result."""
    message = Fraction(alpha) + Fraction(beta) * Fraction(nbytes)
    seconds, holding = Fraction(0), n
    while holding > 1:
        holding = (holding + 1) // 2
        seconds += message
    while holding < n:
        holding = min(2 * holding, n)
        seconds += message
    return seconds


# ---- 2 · crossover_bytes ----


@check("02-ex2-crossover")
def crossover_is_where_the_lines_meet(crossover_bytes: Callable, *, rng: np.random.Generator) -> None:
    """Above the returned T the ring is faster than the tree: 0 if it is never slower, inf if it never gets faster."""
    for n in (5, 4, 8, 6, 64, 1000):
        alpha, beta = _prices(rng, 10 ** rng.uniform(3, 5))
        because = "there ring_time and tree_time are equal"
        _expect_crossover(crossover_bytes, f"N = {n}", because, n, alpha, beta)
    for n in (3, 2, 1):
        because = "the ring has no more rounds than the tree and smaller messages: it is never slower"
        _expect_crossover(crossover_bytes, f"N = {n}", because, n, alpha, beta)
    because = "if starting a message is free, the ring is faster from the first byte on"
    _expect_crossover(crossover_bytes, "alpha = 0", because, 8, 0, beta)
    because = "if bytes are free, only rounds count, and the ring has more of them"
    _expect_crossover(crossover_bytes, "beta = 0", because, 8, alpha, 0)
    because = "the ring has no more rounds than the tree: it is never slower, even if bytes are free"
    _expect_crossover(crossover_bytes, "beta = 0, N = 3", because, 3, alpha, 0.0)
    _expect_crossover(crossover_bytes, "alpha = beta = 0", "both take no time: the ring is never slower", 8, 0.0, 0.0)


def _expect_crossover(function: Callable, case: str, because: str, n: int, alpha: float, beta: float) -> None:
    call = f"crossover_bytes({n}, {alpha:.6g}, {beta:.6g})"
    got = _call(case, call, function, n, alpha, beta)
    _expect_number(case, got, _meeting_point(n, alpha, beta), call, because)


def _meeting_point(n: int, alpha: float, beta: float) -> Fraction | float:
    """The T at which the ring's line falls below the tree's: both times are lines in T, so two points of each do."""
    ahead, at_1 = (_ring_seconds(t, n, alpha, beta) - _tree_seconds(t, n, alpha, beta) for t in (0, 1))
    if ahead <= 0:
        return Fraction(0)
    gained = ahead - at_1  # seconds for each byte
    return ahead / gained if gained > 0 else math.inf


# ---- 3 · fit_alpha_beta ----


@check("02-ex3-fit")
def fit_minimizes_the_squared_errors(fit_alpha_beta: Callable, *, rng: np.random.Generator) -> None:
    """alpha and beta are those of the line with the least sum of squared errors in seconds."""
    for case, sizes, seconds in _line_cases(rng):
        before = copy.deepcopy((sizes, seconds))
        got = _call(case, "fit_alpha_beta(sizes, seconds)", fit_alpha_beta, sizes, seconds)
        _expect_inputs_unchanged(case, before, (sizes, seconds), ("sizes", "seconds"))
        if isinstance(got, str) or not hasattr(got, "__len__") or len(got) != 2:
            fail("fit_alpha_beta should return the pair (alpha, beta)", case, type(got).__name__)
        names = ("alpha", "beta")
        got = [_number(case, part, what) for part, what in zip(got, names, strict=True)]
        # A price that happens to be near zero is compared on the scale of the times that it comes from.
        scales = (max(seconds), max(seconds) / (max(sizes) - min(sizes)))
        because = "the line has the smallest sum of squared errors in seconds, every point counted alike"
        for part, expected, what, scale in zip(got, _best_line(sizes, seconds), names, scales, strict=True):
            _expect_number(case, part, expected, what, because, scale=float(scale), evidence=got)


@check("02-ex3-fit")
def fit_refuses_what_has_no_line(fit_alpha_beta: Callable, *, rng: np.random.Generator) -> None:
    """Lengths that differ and fewer than two distinct sizes raise a ValueError that names sizes."""
    for case, sizes, seconds in (
        ("more sizes than seconds", [1, 2, 3], [1.0, 2.0]),
        ("more seconds than sizes", [1, 2], [1.0, 2.0, 3.0]),
        ("one time for three sizes", [1, 2, 3], [1.0]),
        ("three times the same size", [64, 64, 64], [1.0, 2.0, 3.0]),
        ("one point", [64], [1.0]),
        ("no points", [], []),
    ):
        _expect_value_error(case, "sizes", fit_alpha_beta, sizes, seconds)


def _line_cases(rng: np.random.Generator) -> list[tuple[str, Any, Any]]:
    """(case, sizes, seconds) of links with ordinary prices, exact and noisy, as arrays, lists and tuples."""
    sizes = rng.permutation(np.unique(rng.integers(1_000, 1_000_000, 12))).astype(np.float64)
    alpha, beta = _prices(rng, 300_000)
    exact = alpha + beta * sizes
    noisy = exact * rng.uniform(0.7, 1.3, len(sizes))
    # A parabola, with short times at the small sizes: the best line is below zero seconds at zero bytes.
    bent = np.sort(sizes) ** 2 * beta / 1e6
    # The squares of such sizes do not fit into 64 bits.
    huge = [int(2**k - rng.integers(2**20)) for k in (28, 30, 31, 32)]
    slow = [alpha + beta * m * float(rng.uniform(0.7, 1.3)) for m in huge]
    return [
        ("noisy times, arrays", sizes, noisy),
        ("exact times, arrays", sizes, exact),
        ("a line below zero at 0 bytes", np.sort(sizes), bent),
        ("every size twice, lists", [*sizes.tolist(), *sizes.tolist()], [*noisy.tolist(), *exact.tolist()]),
        ("two points, tuples", (64, 4096), (float(rng.uniform(1, 2)), float(rng.uniform(3, 4)))),
        ("whole numbers of bytes and seconds", [3, 1, 2, 7], [int(v) for v in rng.integers(1, 100, 4)]),
        ("sizes of gigabytes, whole numbers", huge, slow),
        ("sizes of gigabytes, an array of int64", np.array(huge), np.array(slow)),
    ]


def _best_line(sizes: Sequence, seconds: Sequence) -> tuple[Fraction, Fraction]:
    """alpha and beta of the least squares: Σ(t − α − βm) = 0 and Σ(t − α − βm)·m = 0, solved by Cramer's rule."""
    m = [Fraction(_exact(v)) for v in sizes]
    t = [Fraction(_exact(v)) for v in seconds]
    count, sum_m, sum_mm = len(m), sum(m), sum(a * a for a in m)
    sum_t, sum_mt = sum(t), sum(a * b for a, b in zip(m, t, strict=True))
    determinant = count * sum_mm - sum_m * sum_m
    return (sum_t * sum_mm - sum_m * sum_mt) / determinant, (count * sum_mt - sum_m * sum_t) / determinant


# ---- 4 · amdahl_speedup, fit_parallel_fraction ----


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
        got = _call(case, call, amdahl_speedup, fraction, n)
        _expect_inputs_unchanged(case, (before,), (n,), ("n",))
        expected = [1 / (1 - Fraction(fraction) + Fraction(fraction) / Fraction(_exact(m))) for m in np.ravel(n)]
        _expect_array(case, got, expected, np.shape(n), call, "only the parallel part is shared")


@check("02-ex4-amdahl")
def speedup_refuses_what_is_no_fraction(amdahl_speedup: Callable, *, rng: np.random.Generator) -> None:
    """A parallel_fraction outside [0, 1] and any n below 1 raise a ValueError that names the argument."""
    _expect_value_error("parallel_fraction = 1.01", "parallel_fraction", amdahl_speedup, 1.01, 4)
    _expect_value_error("parallel_fraction = -0.01", "parallel_fraction", amdahl_speedup, -0.01, np.array([2, 4]))
    _expect_value_error("n = 0", "n", amdahl_speedup, 0.5, 0)
    _expect_value_error("n = 0.5", "n", amdahl_speedup, 0.5, 0.5)
    _expect_value_error("one n of three below 1", "n", amdahl_speedup, 0.5, [4, 0.9, 2])
    _expect_value_error("one n of three below 1, an array", "n", amdahl_speedup, 0.5, np.array([4, 2, -1]))


@check("02-ex4-amdahl")
def fraction_minimizes_the_squared_errors(fit_parallel_fraction: Callable, *, rng: np.random.Generator) -> None:
    """The result is the p in [0, 1] with the least sum of squared errors in 1/S."""
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
        ("whole numbers", [1, 2, 8, 3], [1, 2, 4, 2]),
        ("one slower than one process", [2, 4, 8], [0.8, 1.5, 2.0]),
    ):
        before = copy.deepcopy((given, speedups))
        got = _call(case, "fit_parallel_fraction(ns, speedups)", fit_parallel_fraction, given, speedups)
        _expect_inputs_unchanged(case, before, (given, speedups), ("ns", "speedups"))
        because = "no other p in [0, 1] has a smaller sum of squared errors in 1/S"
        _expect_number(case, got, _best_fraction(given, speedups), "the parallel fraction", because)


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
        _expect_value_error(case, name, fit_parallel_fraction, ns, speedups)


def _best_fraction(ns: Sequence, speedups: Sequence) -> Fraction:
    """The sum of squares is a parabola in p: three of its values give its lowest point, which [0, 1] clips."""
    points = [(Fraction(_exact(n)), 1 / Fraction(_exact(s))) for n, s in zip(ns, speedups, strict=True)]

    def error(p: Fraction) -> Fraction:
        return sum((left - (1 - p) - p / n) ** 2 for n, left in points)

    at_0, at_half, at_1 = (error(Fraction(k, 2)) for k in range(3))
    curvature = at_0 - 2 * at_half + at_1
    lowest = Fraction(1, 2) - (at_1 - at_0) / (4 * curvature)
    return min(Fraction(1), max(Fraction(0), lowest))


# ---- 5 · scaling_efficiency, step_time ----


@check("02-ex5-step")
def efficiency_is_relative_to_the_smallest_n(scaling_efficiency: Callable, *, rng: np.random.Generator) -> None:
    """The efficiency of each n, in the order given, is relative to the process-seconds that the smallest n needs."""
    ns = np.array([8, 3, 32, 16])
    seconds = 100 * ns**-0.7 * rng.uniform(0.9, 1.1, len(ns))
    for case, given, times in (
        ("the smallest n in the middle, arrays", ns, seconds),
        ("arrays of float64", ns.astype(np.float64), seconds),
        ("rising n from 1, lists", [1, 2, 4, 8], [float(t) for t in sorted(seconds)[::-1]]),
        ("falling n, tuples", (16, 4, 2), (float(seconds[2]), float(seconds[0]), float(seconds[1]))),
        ("better than linear", [2, 4], [10.0, float(rng.uniform(3, 4.5))]),
        ("whole numbers", [3, 1, 2], [int(t) for t in rng.integers(5, 50, 3)]),
        ("one measurement", [4], [float(seconds[0])]),
    ):
        before = copy.deepcopy((given, times))
        got = _call(case, "scaling_efficiency(ns, seconds)", scaling_efficiency, given, times)
        _expect_inputs_unchanged(case, before, (given, times), ("ns", "seconds"))
        work = [Fraction(_exact(n)) * Fraction(_exact(t)) for n, t in zip(given, times, strict=True)]
        base = min(zip(map(_exact, given), work, strict=True))[1]
        because = "process-seconds of the smallest n over those of each n, in the order given"
        _expect_array(case, got, [base / w for w in work], (len(work),), "scaling_efficiency(ns, seconds)", because)


@check("02-ex5-step")
def step_shows_what_sticks_out(step_time: Callable, *, rng: np.random.Generator) -> None:
    """A step takes its computation and the part of the ring all-reduce that the overlap does not hide."""
    for case, n, compute, ratio, overlap in (
        ("the ring sticks out", 5, rng.uniform(0.1, 1), rng.uniform(0.8, 1.5), 0.4),
        ("the ring is hidden", 6, rng.uniform(0.1, 1), rng.uniform(0.1, 0.3), 0.4),
        ("the ring sticks out of a long backward", 8, rng.uniform(0.1, 1), rng.uniform(1.2, 2), 2 / 3),
        ("overlap 0", 4, rng.uniform(0.1, 1), rng.uniform(0.3, 2), 0),
        ("overlap 1, the ring is longer", 4, rng.uniform(0.1, 1), rng.uniform(1.2, 2), 1),
        ("overlap 1, the ring is shorter", 4, rng.uniform(0.1, 1), rng.uniform(0.3, 0.8), 1),
        ("no computation", 4, 0.0, 0.7, 0.5),
        ("one rank", 1, rng.uniform(0.1, 1), 0.7, 0.2),
    ):
        nbytes = int(rng.integers(1, 1000)) * 1000 + 7
        wanted = Fraction(float(ratio * (compute or 1.0)))
        # Half of the ring's time for its bytes, half for its messages.
        rounds = 2 * max(1, n - 1)
        alpha, beta = float(wanted / 2 / rounds), float(wanted / 2 / rounds * n / nbytes)
        _expect_step(step_time, case, float(compute), nbytes, n, alpha, beta, overlap)
    _expect_step(step_time, "chunks of 2.5 bytes", 0.0, 10, 4, 0, 1e-9, 0)
    _expect_step(step_time, "whole numbers", 3, 10, 2, 0, 1, 0)


@check("02-ex5-step")
def step_refuses_an_overlap_outside_0_to_1(step_time: Callable, *, rng: np.random.Generator) -> None:
    """An overlap below 0 or above 1 raises a ValueError that names it."""
    for overlap in (1.01, -0.01, 2):
        _expect_value_error(f"overlap = {overlap}", "overlap", step_time, 0.1, 1000, 4, 1e-5, 1e-9, overlap)


def _expect_step(
    step_time: Callable, case: str, compute: float, nbytes: float, n: int, alpha: float, beta: float, overlap: float
) -> None:
    ring = _ring_seconds(nbytes, n, alpha, beta)
    hidden = min(ring, Fraction(overlap) * Fraction(compute))
    call = f"step_time({compute:.6g}, {nbytes}, {n}, {alpha:.6g}, {beta:.6g}, {overlap:.3g})"
    got = _call(case, call, step_time, compute, nbytes, n, alpha, beta, overlap)
    because = f"the ring takes {float(ring):.6g} s, of which {float(hidden):.6g} s are hidden"
    _expect_number(case, got, Fraction(compute) + ring - hidden, call, because)


# ---- 6 · scaled_lr ----


@check("02-ex6-scaled-lr")
def rate_climbs_in_a_straight_line(scaled_lr: Callable, *, rng: np.random.Generator) -> None:
    """The rate grows from base_lr to the target in equal steps during warm-up, and then stays at the target."""
    for case, base_batch, batch, warmup, steps in (
        ("a batch 8 times as large", 64, 512, 7, (3, 0, 1, 6, 7, 8, 100)),
        ("k is no whole number", 256, 384, 10, (4, 0, 9, 10, 11)),
        ("a smaller batch", 512, 64, 7, (3, 0, 6, 7, 8)),
        ("no warm-up", 64, 512, 0, (0, 1, 50)),
        ("one warm-up step", 64, 512, 1, (0, 1, 2)),
        ("the same batch", 64, 64, 5, (0, 3, 5, 9)),
        ("Goyal et al., 5 warm-up steps", 256, 8192, 5, tuple(range(8))),
    ):
        base_lr = 0.1 if "Goyal" in case else float(rng.uniform(0.01, 1))
        target = Fraction(base_lr) * batch / base_batch
        for step in steps:
            rate = Fraction(base_lr) if warmup else target
            for _ in range(min(step, warmup)):
                rate += (target - Fraction(base_lr)) / warmup
            call = f"scaled_lr({base_lr:.6g}, {base_batch}, {batch}, {step}, {warmup})"
            got = _call(case, call, scaled_lr, base_lr, base_batch, batch, step, warmup)
            because = f"the rate goes in a straight line from base_lr in step 0 to the target in step {warmup}"
            _expect_number(f"{case}, step {step}", got, rate, call, because)


@check("02-ex6-scaled-lr")
def rate_refuses_nonsense(scaled_lr: Callable, *, rng: np.random.Generator) -> None:
    """Batch sizes below 1 and negative steps raise a ValueError that names the argument."""
    right = {"base_lr": 0.1, "base_batch": 64, "batch": 128, "step": 3, "warmup_steps": 5}
    for name, value in (("base_batch", 0), ("batch", 0), ("step", -1), ("warmup_steps", -1), ("batch", -64)):
        _expect_value_error(f"{name} = {value}", name, scaled_lr, *(right | {name: value}).values())


# ---- calls and comparisons ----


def _call(case: str, call: str, function: Callable, *arguments: Any) -> Any:
    """What the function returns; an exception is a failed property, and the message shows the call that raised it."""
    try:
        return function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        fail(f"{call} raised {type(error).__name__}: {error}", case, f"raised {type(error).__name__}")


def _expect_value_error(case: str, name: str, function: Callable, *arguments: Any) -> None:
    """A ValueError is raised whose text contains `name`. To raise another error or none is one mistake."""
    try:
        function(*arguments)
    except NotImplementedError:
        raise
    except ValueError as error:
        if name not in str(error):
            fail(f"the ValueError should name {name}, it says {str(error)!r}", case, "not named")
    except Exception as error:
        fail(f"expected a ValueError that names {name}, got {type(error).__name__}: {error}", case, "not refused")
    else:
        fail(f"expected a ValueError that names {name}, but nothing was raised", case, "not refused")


def _number(case: str, got: Any, what: str) -> float:
    array = as_array(case, got, what)
    if array.shape != () or np.iscomplexobj(array):
        fail(f"{what} should be one number, got {array.dtype} of shape {array.shape}", case, array)
    return float(array)


def _expect_number(
    case: str,
    got: Any,
    expected: Fraction | float,
    what: str,
    because: str,
    *,
    scale: float | None = None,
    evidence: Any = None,
) -> None:
    number, wanted = _number(case, got, what), float(expected)
    bound = RTOL * (abs(wanted) if scale is None else scale)
    good = number == wanted if math.isinf(wanted) else abs(number - wanted) <= bound
    if not good:
        got, expected = digits_that_differ(number, wanted)
        fail(f"{what}: got {got}, expected {expected}; {because}", case, evidence or [number])


def _expect_array(
    case: str, got: Any, expected: list[Fraction], shape: tuple[int, ...], what: str, because: str
) -> None:
    array = as_array(case, got, what)
    if array.shape != shape or np.iscomplexobj(array):
        fail(f"{what}: got {array.dtype} of shape {array.shape}, expected shape {shape}", case, array)
    for index, (number, wanted) in enumerate(zip(array.ravel(), map(float, expected), strict=True)):
        if not abs(float(number) - wanted) <= RTOL * abs(wanted):
            where = f" (entry {index})" if shape else ""
            one, other = digits_that_differ(number, wanted)
            fail(f"{what}{where}: got {one}, expected {other}; {because}", case, array)


def _expect_inputs_unchanged(case: str, before: Sequence, after: Sequence, names: Sequence[str]) -> None:
    for old, new, name in zip(before, after, names, strict=True):
        if type(old) is not type(new) or np.shape(old) != np.shape(new) or not np.array_equal(old, new):
            fail(f"{name} was changed in place: work on a copy", case, f"{name} changed")


def _exact(number: Any) -> int | float:
    """A number of numpy's as Python's own, which Fraction takes exactly."""
    return number.item() if isinstance(number, np.generic) else number
