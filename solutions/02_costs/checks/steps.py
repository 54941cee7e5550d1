"""Lesson 02, exercises 4 to 6: the time of a step, the tokens that hide communication, the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_type, fail
from autograder.checks.costs.common import expect_number, expect_value_error, result_of


@check("02-ex4-step", points=0.5)
def computation_takes_six_operations(compute_time: Callable, *, rng: np.random.Generator) -> None:
    """The seconds, a float, are those of 6 operations per parameter and token at the fraction `mfu` of the peak."""
    because = "2 operations per parameter and token forward, 4 backward, at mfu times the peak"
    for case, parameters, tokens, flops, mfu in (
        ("an H100", 1e9, 8192, 989e12, 0.4),
        ("small numbers", int(rng.integers(2, 99)), int(rng.integers(2, 99)), float(rng.uniform(10, 99)), 0.25),
        ("mfu = 1", 7e9, int(rng.integers(100, 9999)), 312e12, 1),
        ("no tokens", 7e9, 0, 312e12, 0.5),
        ("whole numbers", 3, 5, 30, 1),
        ("tokens that are no whole number", 1e8, float(rng.uniform(1, 1e4)), 1e14, float(rng.uniform(0.1, 0.9))),
    ):
        call = f"compute_time({parameters:g}, {tokens:g}, {flops:g}, {mfu:g})"
        got = result_of(case, call, compute_time, parameters, tokens, flops, mfu)
        forward = 2 * Fraction(parameters) * Fraction(tokens)
        seconds = (forward + 2 * forward) / (Fraction(flops) * Fraction(mfu))
        expect_number(case, got, seconds, call, because)


@check("02-ex4-step", points=1)
def step_shows_what_sticks_out(step_time: Callable, *, rng: np.random.Generator) -> None:
    """A step takes, as a float, its computation and the part of the all-reduce that the overlap does not hide."""
    for case, compute, ratio, overlap in (
        ("the all-reduce sticks out", rng.uniform(0.1, 1), rng.uniform(0.8, 1.5), 0.4),
        ("the all-reduce is hidden", rng.uniform(0.1, 1), rng.uniform(0.1, 0.3), 0.4),
        ("it sticks out of a long backward pass", rng.uniform(0.1, 1), rng.uniform(1.2, 2), 2 / 3),
        ("overlap 0", rng.uniform(0.1, 1), rng.uniform(0.3, 2), 0),
        ("overlap 1, the all-reduce is longer", rng.uniform(0.1, 1), rng.uniform(1.2, 2), 1),
        ("overlap 1, the all-reduce is shorter", rng.uniform(0.1, 1), rng.uniform(0.3, 0.8), 1),
        ("no communication", rng.uniform(0.1, 1), 0.0, 0.2),
    ):
        _expect_step(step_time, case, float(compute), float(ratio * compute), overlap)
    for compute in (0, 3, 0.5):
        for communication in (0, 2, 0.7):
            for overlap in (0, 0.5, 1):
                case = f"compute = {compute}, communication = {communication}, overlap = {overlap}"
                _expect_step(step_time, case, compute, communication, overlap)


def _expect_step(step_time: Callable, case: str, compute: float, communication: float, overlap: float) -> None:
    hidden = min(Fraction(communication), Fraction(overlap) * Fraction(compute))
    call = f"step_time({compute:.6g}, {communication:.6g}, {overlap:.3g})"
    got = result_of(case, call, step_time, compute, communication, overlap)
    because = f"{float(hidden):.6g} s of the all-reduce are hidden"
    expect_number(case, got, Fraction(compute) + Fraction(communication) - hidden, call, because)


@check("02-ex4-step", points=0.5)
def shares_outside_their_range_are_refused(
    compute_time: Callable, step_time: Callable, *, rng: np.random.Generator
) -> None:
    """An mfu outside (0, 1] and an overlap outside [0, 1] raise a ValueError that names the argument."""
    for mfu in (0, 1.01, -0.4):
        expect_value_error(f"mfu = {mfu}", "mfu", compute_time, 1e9, 1000, 1e15, mfu)
    call = "compute_time(1e9, 1000, 1e15, 0.5)"
    expect_type("mfu = 0.5", result_of("mfu = 0.5", call, compute_time, 1e9, 1000, 1e15, 0.5), float, what=call)
    expect_value_error("mfu = 0, no tokens", "mfu", compute_time, 1e9, 0, 1e15, 0)
    for overlap in (1.01, -0.01, 2):
        expect_value_error(f"overlap = {overlap}", "overlap", step_time, 0.1, 0.2, overlap)
    for overlap in (0, 1):
        _expect_step(step_time, f"overlap = {overlap}", 0.1, 0.2, overlap)
    expect_value_error("overlap = 2, no communication", "overlap", step_time, 0.1, 0, 2)


@check("02-ex5-tokens", points=3)
def tokens_are_the_fewest_that_hide(tokens_to_hide: Callable, *, rng: np.random.Generator) -> None:
    """The number, an int, hides the all-reduce, and one token fewer does not; math.inf if nothing can overlap."""
    for case, parameters, flops, mfu, overlap in (
        ("a billion parameters", 1e9, 989e12, 0.4, 2 / 3),
        ("seventy billion parameters", 70e9, 989e12, 0.4, 2 / 3),
        ("everything overlaps", 1e9, 312e12, 0.5, 1),
        ("little overlaps", 8e9, 312e12, float(rng.uniform(0.2, 0.6)), float(rng.uniform(0.05, 0.2))),
    ):
        per_token = _hidden_by_one_token(parameters, flops, mfu, overlap)
        for tokens, spare in ((int(rng.integers(7, 30)), 0.3), (int(rng.integers(1000, 9000)), 0.7), (1, 0.6)):
            # Far from whole numbers of tokens, so that no right formula rounds to the wrong side.
            communication = float(per_token * (tokens - Fraction(spare)))
            _expect_tokens(
                tokens_to_hide,
                f"{case}, {spare} of a token to spare",
                tokens,
                parameters,
                communication,
                flops,
                mfu,
                overlap,
            )
    # Powers of two, with which no right formula rounds: exactly this many tokens hide the all-reduce.
    for tokens in (1, 2, 5, 4096, 4097):
        case = f"exactly what {tokens} tokens hide" if tokens > 1 else "exactly what one token hides"
        _expect_tokens(tokens_to_hide, case, tokens, 2**10, 3.0 * tokens, 2**11, 0.5, 0.5)
    # Hardly more communication, which no right formula rounds to a whole number of tokens.
    more = 3.0 * 5 * (1 + 2.0**-14)
    _expect_tokens(tokens_to_hide, "hardly more than what 5 tokens hide", 6, 2**10, more, 2**11, 0.5, 0.5)
    many = 3.0 * 200_000
    _expect_tokens(tokens_to_hide, "what 200,000 tokens hide", 200_000, 2**10, many, 2**11, 0.5, 0.5)
    for overlap in (0, 0.5):
        _expect_tokens(tokens_to_hide, f"no communication, overlap {overlap}", 0, 1e9, 0, 989e12, 0.4, overlap)
    _expect_tokens(tokens_to_hide, "no overlap", math.inf, 1e9, 0.01, 989e12, 0.4, 0)


def _hidden_by_one_token(parameters: float, flops: float, mfu: float, overlap: float) -> Fraction:
    """The seconds of an all-reduce that the computation for one token can hide."""
    return 6 * Fraction(parameters) / (Fraction(flops) * Fraction(mfu)) * Fraction(overlap)


def _expect_tokens(
    function: Callable,
    case: str,
    expected: float,
    parameters: float,
    communication: float,
    flops: float,
    mfu: float,
    overlap: float,
) -> None:
    call = f"tokens_to_hide({parameters:g}, {communication:.6g}, {flops:g}, {mfu:.4g}, {overlap:.4g})"
    got = result_of(case, call, function, parameters, communication, flops, mfu, overlap)
    if got != expected:
        fail(f"{call}: got {got!r}, expected {expected}", case, [got])
    if expected != math.inf:
        expect_type(case, got, (int, np.integer), what=call)


@check("02-ex6-scaled-lr", points=1)
def rate_climbs_in_a_straight_line(scaled_lr: Callable, *, rng: np.random.Generator) -> None:
    """The rate, a float, goes from base_lr in equal steps to k times base_lr, and then stays there."""
    for case, base_batch, batch, warmup, steps in (
        ("a batch 8 times as large", 64, 512, 7, (3, 0, 1, 6, 7, 8, 100)),
        ("k is no whole number", 256, 384, 10, (4, 0, 9, 10, 11)),
        ("a smaller batch", 512, 64, 7, (3, 0, 6, 7, 8)),
        ("no warm-up", 64, 512, 0, (0, 1, 50)),
        ("one warm-up step", 64, 512, 1, (0, 1, 2)),
        ("the same batch", 64, 64, 5, (0, 3, 5, 9)),
        ("a batch of one example", 4, 1, 5, (3, 5)),
        ("batches of one example before", 1, 4, 5, (3, 5)),
        ("Goyal et al., 5 warm-up steps", 256, 8192, 5, tuple(range(8))),
    ):
        base_lr = 0.1 if "Goyal" in case else float(rng.uniform(0.01, 1))
        for step in steps:
            _expect_rate(scaled_lr, case, (base_lr, base_batch, batch, step, warmup), Fraction(batch, base_batch))
        last = (base_lr, base_batch, batch, steps[0], warmup, "linear")
        _expect_rate(scaled_lr, f"{case}, the rule given", last, Fraction(batch, base_batch))
    for step, warmup in ((0, 5), (2, 5), (5, 5), (0, 0)):
        _expect_rate(scaled_lr, "base_lr a whole number", (2, 64, 128, step, warmup), Fraction(2))


@check("02-ex6-scaled-lr", points=0.5)
def square_root_rule_scales_by_the_root(scaled_lr: Callable, *, rng: np.random.Generator) -> None:
    """With the rule "sqrt" the target is the square root of k times base_lr; warm-up is the same."""
    for case, base_batch, batch, root in (
        ("a batch 4 times as large", 64, 256, Fraction(2)),
        ("a batch 2.25 times as large", 256, 576, Fraction(3, 2)),
        ("a quarter of the batch", 512, 128, Fraction(1, 2)),
        ("twice the batch", 64, 128, Fraction(math.isqrt(2 * 10**40), 10**20)),
        ("the same batch", 64, 64, Fraction(1)),
    ):
        base_lr = float(rng.uniform(0.01, 1))
        for step, warmup in ((3, 7), (0, 7), (7, 7), (50, 7), (0, 0)):
            _expect_rate(scaled_lr, case, (base_lr, base_batch, batch, step, warmup, "sqrt"), root)


def _expect_rate(scaled_lr: Callable, case: str, arguments: tuple, factor: Fraction) -> None:
    """The rate is found by adding up the warm-up's increments, one for each step."""
    base_lr, _, _, step, warmup = arguments[:5]
    target = Fraction(base_lr) * factor
    rate = Fraction(base_lr) if warmup else target
    for _ in range(min(step, warmup)):
        rate += (target - Fraction(base_lr)) / warmup
    call = f"scaled_lr({base_lr:.6g}, {', '.join(map(repr, arguments[1:]))})"
    got = result_of(case, call, scaled_lr, *arguments)
    because = f"the rate goes in a straight line from base_lr in step 0 to the target in step {warmup}"
    expect_number(f"{case}, step {step}", got, rate, call, because)


@check("02-ex6-scaled-lr", points=0.5)
def rate_refuses_nonsense(scaled_lr: Callable, *, rng: np.random.Generator) -> None:
    """Batch sizes below 1, negative steps and another rule raise a ValueError that names the argument."""
    wrong = (("base_batch", 0), ("batch", 0), ("step", -1), ("warmup_steps", -1), ("batch", -64), ("rule", "cubic"),
             ("rule", "Linear"), ("rule", "sqrt2"))  # fmt: skip
    right = {"base_lr": 0.1, "base_batch": 64, "batch": 128, "step": 3, "warmup_steps": 5, "rule": "linear"}
    for name, value in wrong:
        expect_value_error(f"{name} = {value}", name, scaled_lr, *(right | {name: value}).values())
    for steps in ({}, {"step": 0, "warmup_steps": 0}):
        _expect_rate(scaled_lr, "nothing wrong", tuple((right | steps).values()), Fraction(2))
    for case, others in (
        ("no warm-up", {"warmup_steps": 0, "step": 0}),
        ("after warm-up", {"step": 9}),
        ("the same batch", {"batch": 64}),
        ("the square-root rule", {"rule": "sqrt"}),
    ):
        for name, value in wrong:
            arguments = right | others | {name: value}
            expect_value_error(f"{name} = {value}, {case}", name, scaled_lr, *arguments.values())
