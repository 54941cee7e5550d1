"""Lesson 02, exercises 1 to 3: all-reduces on one level and on two, and the assumption that failed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_equal
from autograder.checking.stage import called_at_once
from autograder.checks.costs.common import (
    draw_prices,
    expect_number,
    expect_value_error,
    halving_seconds,
    result_of,
    ring_seconds,
    tree_seconds,
    two_level_seconds,
)

RING = "a ring passes on chunks of T/N bytes, in a reduce-scatter and then an all-gather"
TREE = "a tree sends whole vectors, up to the root and then down again"
HALVING = "the messages are T/2, T/4, ... down to T/N bytes, and then the same in reverse"


@check("02-ex1-all-reduce-times", points=2)
def times_are_those_of_the_rounds(
    ring_time: Callable, tree_time: Callable, halving_time: Callable, *, rng: np.random.Generator
) -> None:
    """The three times are floats, those of the rounds in the table, played one by one with exact pieces."""
    for function, name, oracle, because in (
        (ring_time, "ring_time", ring_seconds, RING),
        (tree_time, "tree_time", tree_seconds, TREE),
        (halving_time, "halving_time", halving_seconds, HALVING),
    ):
        cases = _all_reduces(rng, powers=name == "halving_time")
        answered = called_at_once(function, (tuple(arguments) for _, *arguments in cases))
        for case, *arguments in cases:
            _expect_time(answered, name, oracle, because, case, *arguments)
    for n in (2**29 - 1, 2**29, 2**29 + 1, 2**31):
        _expect_time(tree_time, "tree_time", tree_seconds, TREE, f"N = {n}", 1000, n, 1e-5, 1e-9)
    _expect_time(halving_time, "halving_time", halving_seconds, HALVING, "N = 2^20", 1000, 2**20, 1e-5, 1e-9)


def _all_reduces(rng: np.random.Generator, powers: bool) -> list[tuple]:
    """(case, nbytes, n, alpha, beta): plain cases first, then all combinations of special values."""
    cases = []
    for n in (4, 2, 8, 16, 64, 1024) if powers else (5, 4, 2, 3, 8, 7, 16, 17, 64, 1000, 1024):
        nbytes = int(rng.integers(1, 1000)) * 1000 + 7  # divisible by hardly any n
        cases.append((f"N = {n}", nbytes, n, *draw_prices(rng, nbytes / n)))
    nbytes, alpha, beta = float(rng.uniform(1e3, 1e6)), 1.5e-5, 2e-10
    several = 8 if powers else 6
    cases += [
        ("bytes that are no whole number", nbytes, several, alpha, beta),
        ("fewer bytes than ranks", 3, 8, 0.0, beta),
        ("T = 0", 0, several, alpha, beta),
        ("N = 1", nbytes, 1, alpha, beta),
    ]
    for n, t, a, b in itertools.product((1, 2, 4, several), (0, 7, nbytes), (0, 2, alpha), (0, 3, beta)):
        cases.append((f"N = {n}, T = {t:g}, alpha = {a:g}, beta = {b:g}", t, n, a, b))
    return cases


def _expect_time(
    function: Callable,
    name: str,
    oracle: Callable,
    because: str,
    case: str,
    nbytes: float,
    n: int,
    alpha: float,
    beta: float,
) -> None:
    call = f"{name}({nbytes}, {n}, {alpha:.6g}, {beta:.6g})"
    got = result_of(case, call, function, nbytes, n, alpha, beta)
    because = "one rank sends nothing" if n == 1 else because
    expect_number(case, got, oracle(nbytes, n, alpha, beta), call, because, evidence=[name, got])


@check("02-ex1-all-reduce-times", points=0.5)
def nonsense_is_refused(
    ring_time: Callable, tree_time: Callable, halving_time: Callable, *, rng: np.random.Generator
) -> None:
    """In each function, n below 1 and a negative nbytes, alpha or beta raise a ValueError that names the argument."""
    wrong = (("n", 0), ("n", -4), ("nbytes", -1), ("alpha", -1e-9), ("beta", -1e-12))
    for function, what, oracle, because in (
        (ring_time, "ring_time", ring_seconds, RING),
        (tree_time, "tree_time", tree_seconds, TREE),
        (halving_time, "halving_time", halving_seconds, HALVING),
    ):
        for right in (
            {"nbytes": 1000, "n": 4, "alpha": 1e-5, "beta": 1e-9},
            {"nbytes": 0, "n": 1, "alpha": 0, "beta": 0},
        ):
            for name, value in wrong:
                border = "" if right["n"] > 1 else ", the others at their borders"
                arguments = (right | {name: value}).values()
                expect_value_error(f"{what}, {name} = {value}{border}", name, function, *arguments)
                _expect_time(function, what, oracle, because, f"{what}, nothing wrong{border}", *right.values())


@check("02-ex1-all-reduce-times", points=0.5)
def halving_needs_a_power_of_two(halving_time: Callable, *, rng: np.random.Generator) -> None:
    """halving_time raises a ValueError that names n for every n that is not a power of two."""
    for n in (3, 6, 7, 12, 1000, int(rng.integers(2**9 + 1, 2**10))):
        expect_value_error(f"N = {n}", "n", halving_time, 1000, n, 1e-5, 1e-9)
    for n in (1, 8):
        _expect_time(halving_time, "halving_time", halving_seconds, HALVING, f"N = {n}", 1000, n, 1e-5, 1e-9)
    expect_value_error("N = 6, T = 0", "n", halving_time, 0, 6, 1e-5, 1e-9)
    expect_value_error("N = 6, nothing costs anything", "n", halving_time, 1000, 6, 0, 0)


@check("02-ex2-two-level", points=2.5)
def two_levels_are_played(two_level_time: Callable, *, rng: np.random.Generator) -> None:
    """The time, a float, is that of the three phases; in the second, a node's bytes are shared by the ports in use."""
    inside, network = (3.4e-6, 1 / 450e9), (14e-6, 1 / 50e9)
    cases = [
        ("as many ports as GPUs", 4, 8, 8),
        ("one port for all GPUs", 4, 8, 1),
        ("two GPUs share a port", 3, 8, 4),
        ("ports that do not divide the GPUs", 5, 8, 3),
        ("more ports than GPUs", 3, 2, 8),
        ("one GPU a node", 6, 1, 1),
        ("one node", 1, 8, 2),
        ("one node of one GPU", 1, 1, 1),
        ("many nodes", 128, 8, 8),
    ]
    for case, nodes, gpus, ports in cases:
        nbytes = int(rng.integers(10, 1000)) * 1_000_000 + 7
        for prices in ((inside, network), (draw_prices(rng, nbytes / gpus), draw_prices(rng, nbytes / gpus / nodes))):
            _expect_two_levels(two_level_time, case, nbytes, nodes, gpus, ports, *prices)
    _expect_two_levels(two_level_time, "T = 0", 0, 4, 8, 2, inside, network)
    _expect_two_levels(two_level_time, "the network costs nothing", 1e9, 4, 8, 2, inside, (0, 0))
    _expect_two_levels(two_level_time, "the inside costs nothing", 1e9, 4, 8, 2, (0, 0), network)
    _expect_two_levels(two_level_time, "only starting costs", 1e9, 4, 8, 2, (2, 0), (5, 0))
    for nodes, gpus, ports in itertools.product((1, 2, 3), (1, 2, 5), (1, 2, 5)):
        case = f"{nodes} nodes, {gpus} GPUs, {ports} ports a node"
        _expect_two_levels(two_level_time, case, 600, nodes, gpus, ports, (2, 3), (5, 7))


def _expect_two_levels(
    function: Callable, case: str, nbytes: float, nodes: int, gpus: int, ports: int, inside: tuple, network: tuple
) -> None:
    shown = ", ".join(f"({alpha:.6g}, {beta:.6g})" for alpha, beta in (inside, network))
    call = f"two_level_time({nbytes}, {nodes}, {gpus}, {ports}, {shown})"
    got = result_of(case, call, function, nbytes, nodes, gpus, ports, inside, network)
    expected = two_level_seconds(nbytes, nodes, gpus, ports, inside, network)
    within = ring_seconds(nbytes, gpus, *inside)
    because = f"phases 1 and 3 take {float(within):.6g} s, phase 2 takes {float(expected - within):.6g} s"
    expect_number(case, got, expected, call, because)


@check("02-ex2-two-level", points=0.5)
def two_levels_refuse_nonsense(two_level_time: Callable, *, rng: np.random.Generator) -> None:
    """nodes, gpus and ports below 1 raise a ValueError that names the argument."""
    for right in ({"nodes": 4, "gpus": 8, "ports": 2}, {"nodes": 1, "gpus": 1, "ports": 1}):
        for name, value in itertools.product(right, (0, -1)):
            case = f"{name} = {value}" + ("" if right["nodes"] > 1 else ", the others 1")
            sizes = (right | {name: value}).values()
            expect_value_error(case, name, two_level_time, 1000, *sizes, (1e-6, 1e-9), (1e-5, 1e-9))
        case = ", ".join(f"{name} = {value}" for name, value in right.items())
        _expect_two_levels(two_level_time, case, 1000, *right.values(), (1e-6, 1e-9), (1e-5, 1e-9))


@check("02-ex3-assumptions", points=2)
def each_change_is_judged_by_itself(failed_assumptions: Callable, *, rng: np.random.Generator) -> None:
    """The sorted list has each assumption whose own change makes the time grow by more than a quarter, and no other."""
    grows = {True: lambda: rng.uniform(1.3, 6), False: lambda: rng.uniform(0.85, 1.2)}
    for failing in sorted(itertools.product((False, True), repeat=4), key=sum):
        times = [float(rng.uniform(1e-5, 1e-3))]
        for fails in failing:
            times.append(times[-1] * float(grows[fails]()))
        _expect_failed(failed_assumptions, times)
    for case in ((4, 5, 5, 5, 5), (4, 4, 4, 5, 5), (8, 8, 4, 6, 6), (64, 16, 16, 16, 24), (4, 3, 4, 4, 4)):
        _expect_failed(failed_assumptions, list(case))
    _expect_failed(failed_assumptions, [400, 501, 625, 783, 783])  # a little more than a quarter, and a little less
    _expect_failed(failed_assumptions, [8e-9, 8e-9, 16e-9, 16e-9, 19e-9])


def _expect_failed(function: Callable, times: list[float]) -> None:
    order = (4, 2, 1, 3)  # what the step from each experiment to the next one tests
    growth = [Fraction(after) / Fraction(before) for before, after in itertools.pairwise(times)]
    expected = sorted(number for number, factor in zip(order, growth, strict=True) if factor > Fraction(5, 4))
    shown = ", ".join(f"{seconds:.4g}" for seconds in times)
    case = f"assumptions {', '.join(map(str, expected)) or 'none'} failed, times {shown}"
    got = result_of(case, f"failed_assumptions({shown})", function, *times)
    expect_equal(case, got, expected, what=f"failed_assumptions({shown})", evidence=[got])
