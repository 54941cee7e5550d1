"""Lesson 02, exercises 1 to 3: a ring and a tree, where they cross, and a line through measured times."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import fail
from autograder.checks.costs.common import (
    draw_prices,
    exactly,
    expect_inputs_unchanged,
    expect_number,
    expect_value_error,
    number_of,
    result_of,
    ring_seconds,
)


@check("02-ex1-ring-and-tree")
def ring_takes_its_rounds(ring_time: Callable, *, rng: np.random.Generator) -> None:
    """The time, a float, is that of a ring all-reduce, played round by round with chunks of exactly T/N bytes."""
    because = "a ring passes on chunks of T/N bytes, in a reduce-scatter and then an all-gather"
    _expect_times(ring_time, "ring_time", ring_seconds, because, rng)


@check("02-ex1-ring-and-tree")
def tree_takes_its_rounds(tree_time: Callable, *, rng: np.random.Generator) -> None:
    """The time, a float, is that of a tree all-reduce, played round by round with whole vectors, up and then down."""
    because = "a tree sends whole vectors, up to the root and then down again"
    _expect_times(tree_time, "tree_time", _tree_seconds, because, rng)
    for n in (2**29 - 1, 2**29, 2**29 + 1, 2**31):
        _expect_time(tree_time, _tree_seconds, "tree_time", f"N = {n}", because, 1000, n, 1e-5, 1e-9)


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
        alpha, beta = draw_prices(rng, nbytes / n)
        _expect_time(function, oracle, name, f"N = {n}", because, nbytes, n, alpha, beta)
    nbytes = float(rng.uniform(1e3, 1e6))
    alpha, beta = draw_prices(rng, nbytes / 6)
    _expect_time(function, oracle, name, "bytes that are no whole number", because, nbytes, 6, alpha, beta)
    _expect_time(function, oracle, name, "fewer bytes than ranks", because, 3, 8, 0.0, beta)
    _expect_time(function, oracle, name, "T = 0", "every message still costs alpha", 0, 6, alpha, beta)
    _expect_time(function, oracle, name, "alpha = 0", because, nbytes, 6, 0, beta)
    _expect_time(function, oracle, name, "beta = 0", because, nbytes, 6, alpha, 0)
    _expect_time(function, oracle, name, "whole numbers", because, 7, 6, 2, 3)
    _expect_time(function, oracle, name, "N = 1", "one rank sends nothing", nbytes, 1, alpha, beta)
    for n, t, a, b in itertools.product((1, 2, 3, 6), (0, 7, nbytes), (0, 2, alpha), (0, 3, beta)):
        _expect_time(function, oracle, name, f"N = {n}, T = {t:g}, alpha = {a:g}, beta = {b:g}", because, t, n, a, b)


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
    got = result_of(case, call, function, nbytes, n, alpha, beta)
    expect_number(case, got, oracle(nbytes, n, alpha, beta), call, because)


def _expect_refusals(function: Callable) -> None:
    wrong = (("n", 0), ("n", -3), ("nbytes", -1), ("alpha", -1e-9), ("beta", -1e-12))
    for right in ({"nbytes": 1000, "n": 4, "alpha": 1e-5, "beta": 1e-9}, {"nbytes": 0, "n": 1, "alpha": 0, "beta": 0}):
        for name, value in wrong:
            case = f"{name} = {value}" if right["n"] > 1 else f"{name} = {value}, the others at their borders"
            expect_value_error(case, name, function, *(right | {name: value}).values())


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


@check("02-ex2-crossover")
def crossover_is_where_the_lines_meet(crossover_bytes: Callable, *, rng: np.random.Generator) -> None:
    """Above the float returned the ring is faster than the tree: 0 if it is never slower, inf if never faster."""
    for n in (5, 4, 8, 6, 64, 1000):
        alpha, beta = draw_prices(rng, 10 ** rng.uniform(3, 5))
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
    because = "the ring's smaller messages win from some size on, however fast the link is"
    _expect_crossover(crossover_bytes, "a link of 1.8 TB/s", because, 8, alpha, 1 / 1.8e12)
    _expect_crossover(crossover_bytes, "a message starts in 1 ns", because, 8, 1e-9, beta)
    _expect_crossover(crossover_bytes, "alpha = beta = 0", "both take no time: the ring is never slower", 8, 0.0, 0.0)


def _expect_crossover(function: Callable, case: str, because: str, n: int, alpha: float, beta: float) -> None:
    call = f"crossover_bytes({n}, {alpha:.6g}, {beta:.6g})"
    got = result_of(case, call, function, n, alpha, beta)
    expect_number(case, got, _meeting_point(n, alpha, beta), call, because)


def _meeting_point(n: int, alpha: float, beta: float) -> Fraction | float:
    """The T at which the ring's line falls below the tree's: both times are lines in T, so two points of each do."""
    ahead, at_1 = (ring_seconds(t, n, alpha, beta) - _tree_seconds(t, n, alpha, beta) for t in (0, 1))
    if ahead <= 0:
        return Fraction(0)
    gained = ahead - at_1  # seconds for each byte
    return ahead / gained if gained > 0 else math.inf


@check("02-ex3-fit")
def fit_minimizes_the_squared_errors(fit_alpha_beta: Callable, *, rng: np.random.Generator) -> None:
    """alpha and beta, two floats, are those of the line with the least sum of squared errors in seconds."""
    for case, sizes, seconds in _line_cases(rng):
        before = copy.deepcopy((sizes, seconds))
        got = result_of(case, "fit_alpha_beta(sizes, seconds)", fit_alpha_beta, sizes, seconds)
        expect_inputs_unchanged(case, before, (sizes, seconds), ("sizes", "seconds"))
        if isinstance(got, str) or not hasattr(got, "__len__") or len(got) != 2:
            fail("fit_alpha_beta should return the pair (alpha, beta)", case, type(got).__name__)
        names = ("alpha", "beta")
        both = [number_of(case, part, what) for part, what in zip(got, names, strict=True)]
        # A price that happens to be near zero is compared on the scale of the times that it comes from.
        scales = (max(seconds), max(seconds) / (max(sizes) - min(sizes)))
        because = "the line has the smallest sum of squared errors in seconds, every point counted alike"
        for part, expected, what, scale in zip(got, _best_line(sizes, seconds), names, scales, strict=True):
            expect_number(case, part, expected, what, because, scale=float(scale), evidence=both)


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
        expect_value_error(case, "sizes", fit_alpha_beta, sizes, seconds)


def _line_cases(rng: np.random.Generator) -> list[tuple[str, Any, Any]]:
    """(case, sizes, seconds) of links with ordinary prices, exact and noisy, as arrays, lists and tuples."""
    sizes = rng.permutation(np.unique(rng.integers(1_000, 1_000_000, 12))).astype(np.float64)
    alpha, beta = draw_prices(rng, 300_000)
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
        ("the last size is the first, lists", [64, 4096, 64], [float(t) for t in rng.uniform(1, 2, 3)]),
        ("two points, tuples", (64, 4096), (float(rng.uniform(1, 2)), float(rng.uniform(3, 4)))),
        ("whole numbers of bytes and seconds", [3, 1, 2, 7], [int(v) for v in rng.integers(1, 100, 4)]),
        ("sizes of gigabytes, whole numbers", huge, slow),
        ("sizes of gigabytes, an array of int64", np.array(huge), np.array(slow)),
    ]


def _best_line(sizes: Sequence, seconds: Sequence) -> tuple[Fraction, Fraction]:
    """alpha and beta of the least squares: Σ(t − α − βm) = 0 and Σ(t − α − βm)·m = 0, solved by Cramer's rule."""
    m = [Fraction(exactly(v)) for v in sizes]
    t = [Fraction(exactly(v)) for v in seconds]
    count, sum_m, sum_mm = len(m), sum(m), sum(a * a for a in m)
    sum_t, sum_mt = sum(t), sum(a * b for a, b in zip(m, t, strict=True))
    determinant = count * sum_mm - sum_m * sum_m
    return (sum_t * sum_mm - sum_m * sum_mt) / determinant, (count * sum_mt - sum_m * sum_t) / determinant
