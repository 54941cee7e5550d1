"""Lesson 02, exercises 5 and 6: efficiency, the time of a step, the learning rate."""

from __future__ import annotations

import copy
from collections.abc import Callable
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
    ring_seconds,
)


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
        got = result_of(case, "scaling_efficiency(ns, seconds)", scaling_efficiency, given, times)
        expect_inputs_unchanged(case, before, (given, times), ("ns", "seconds"))
        work = [Fraction(exactly(n)) * Fraction(exactly(t)) for n, t in zip(given, times, strict=True)]
        base = min(zip(map(exactly, given), work, strict=True))[1]
        because = "process-seconds of the smallest n over those of each n, in the order given"
        expect_array(case, got, [base / w for w in work], (len(work),), "scaling_efficiency(ns, seconds)", because)


@check("02-ex5-step")
def step_shows_what_sticks_out(step_time: Callable, *, rng: np.random.Generator) -> None:
    """A step takes, as a float, its computation and the part of the ring all-reduce that the overlap does not hide."""
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
        expect_value_error(f"overlap = {overlap}", "overlap", step_time, 0.1, 1000, 4, 1e-5, 1e-9, overlap)


def _expect_step(
    step_time: Callable, case: str, compute: float, nbytes: float, n: int, alpha: float, beta: float, overlap: float
) -> None:
    ring = ring_seconds(nbytes, n, alpha, beta)
    hidden = min(ring, Fraction(overlap) * Fraction(compute))
    call = f"step_time({compute:.6g}, {nbytes}, {n}, {alpha:.6g}, {beta:.6g}, {overlap:.3g})"
    got = result_of(case, call, step_time, compute, nbytes, n, alpha, beta, overlap)
    because = f"the ring takes {float(ring):.6g} s, of which {float(hidden):.6g} s are hidden"
    expect_number(case, got, Fraction(compute) + ring - hidden, call, because)


@check("02-ex6-scaled-lr")
def rate_climbs_in_a_straight_line(scaled_lr: Callable, *, rng: np.random.Generator) -> None:
    """The rate, a float, grows from base_lr to the target in equal steps during warm-up, and then stays there."""
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
            got = result_of(case, call, scaled_lr, base_lr, base_batch, batch, step, warmup)
            because = f"the rate goes in a straight line from base_lr in step 0 to the target in step {warmup}"
            expect_number(f"{case}, step {step}", got, rate, call, because)


@check("02-ex6-scaled-lr")
def rate_refuses_nonsense(scaled_lr: Callable, *, rng: np.random.Generator) -> None:
    """Batch sizes below 1 and negative steps raise a ValueError that names the argument."""
    wrong = (("base_batch", 0), ("batch", 0), ("step", -1), ("warmup_steps", -1), ("batch", -64))
    right = {"base_lr": 0.1, "base_batch": 64, "batch": 128, "step": 3, "warmup_steps": 5}
    for name, value in wrong:
        expect_value_error(f"{name} = {value}", name, scaled_lr, *(right | {name: value}).values())
    for case, others in (
        ("no warm-up", {"warmup_steps": 0, "step": 0}),
        ("after warm-up", {"step": 9}),
        ("the same batch", {"batch": 64}),
    ):
        for name, value in wrong:
            arguments = right | others | {name: value}
            expect_value_error(f"{name} = {value}, {case}", name, scaled_lr, *arguments.values())
