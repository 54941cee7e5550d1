"""Exercises 4 to 6: a step's time and its slow part, the tokens that hide gradients, a multiplication's roofline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from autograder.checks.cases import Call, close, evidence, fact
from autograder.checks.check import check
from autograder.checks.stage import Oracle

from .common import near, ratio

STEP, TOKENS, ROOFLINE = "02-ex4-step", "02-ex5-tokens", "02-ex6-roofline"
#: Bytes of the gradients, and seconds of a healthy job: per token, per byte, and per piece besides its bytes.
GRADIENTS = 4e9
HEALTHY = {"gpu": 6e9 / (0.4 * 989e12), "links": 1 / 400e9, "start-ups": 200e-6}


@dataclass
class Blamed:
    """What what_is_slow returned, and which experiments it made: that tells mistakes apart."""

    said: Any = fact("the slow part")
    bare: bool = evidence()  # gradients in one piece took longer than what hid them
    pieces: bool = evidence()  # so did start-ups of short pieces, which took longer than the bytes
    computing: bool = evidence()  # there were so many tokens that nearly all of the step was computation


class _Job:
    """A job with a slow part, or None, and which experiments were made on it."""

    def __init__(self, slow: str | None, factor: float, noise: float, seed: int):
        self.random, self.noise, self.made = Random(seed), noise, [(0.0, 0.0, 0.0)]
        self.prices = {part: price * (factor if part == slow else 1) for part, price in HEALTHY.items()}

    def seconds(self, tokens: float, piece: float) -> float:
        """What what_is_slow may ask: the seconds of a step."""
        if not (tokens >= 1 and 1e6 <= piece <= GRADIENTS):
            raise ValueError(f"seconds takes 1 or more tokens and pieces of 10⁶ to 4·10⁹ bytes, got {tokens}, {piece}")
        works = [tokens, GRADIENTS, GRADIENTS / piece]
        self.made.append(tuple(work * price for work, price in zip(works, HEALTHY.values(), strict=True)))
        computing, sending, starting = (work * price for work, price in zip(works, self.prices.values(), strict=True))
        begin = computing / 3  # the forward pass
        return max(computing, begin + sending + starting) * self.random.uniform(1, 1 + self.noise)

    def blamed(self, said: Any) -> Blamed:
        """The facts about an answer."""
        bare = any(sending > computing and sending > starting for computing, sending, starting in self.made)
        pieces = any(starting > computing and starting > sending for computing, sending, starting in self.made)
        computing = any(computing > 10 * (sending + starting) for computing, sending, starting in self.made)
        return Blamed(said, bare, pieces, computing)


def _job(what_is_slow, rng, slow: str | None, factor: float = 1.0, noise: float = 0.0) -> Call:
    job = _Job(slow, factor, noise, int(rng.integers(2**32)))
    name = f"a job whose {slow} takes {factor:.3g} times as long" if slow else "a healthy job"
    how = {"sees": lambda said, *_: job.blamed(said), "name": name.replace("s takes", "s take")}
    return Call(what_is_slow, Oracle(job.seconds), gives=Blamed(slow), **how)


@check(STEP, points=1)
def each_slow_part_is_found(what_is_slow, *, rng):
    """The GPU, the links or the start-ups are found to be slow, each where the others do not hide it."""
    for _ in range(2):
        for part in HEALTHY:
            yield _job(what_is_slow, rng, part, float(rng.uniform(3, 10)))


@check(STEP, points=0.25)
def a_healthy_job_has_none_and_twice_is_slow(what_is_slow, *, rng):
    """If all is well, None is returned, although measurements vary; a part that is just twice as slow is found."""
    yield _job(what_is_slow, rng, None, noise=0.05)
    for part in HEALTHY:
        yield _job(what_is_slow, rng, part, 2.0)
        yield _job(what_is_slow, rng, None, noise=0.05)


@check(STEP, points=0.5)
def only_the_last_backward_hides(step_time, *, rng):
    """A step takes its computation and what the last micro-batch's backward pass does not hide of the gradients."""
    for micro_batches in (1, 4, 1, 2, 16, int(rng.integers(3, 40))):
        yield from _steps(step_time, rng, micro_batches, ratios=(1.2, 3.0))


@check(STEP, points=0.25)
def hidden_gradients_cost_nothing(step_time, *, rng):
    """If the last backward pass is longer than the gradients' time, a step takes its computation, and no less."""
    for micro_batches in (1, int(rng.integers(2, 40))):
        yield from _steps(step_time, rng, micro_batches, ratios=(0.0, 0.3, 0.8))
        compute, name = float(rng.uniform(1, 9)), f"gradients that take twice as long as {micro_batches} micro-batches"
        how = {"sees": lambda seconds, compute, *_: bool(seconds > compute), "name": name, "what": "a longer step"}
        yield Call(step_time, compute, 2 * compute, micro_batches, gives=True, **how)


def _steps(step_time, rng, micro_batches: int, ratios: tuple[float, ...]):
    """Steps with these ratios, nearly, of the gradients' time to what hides them."""
    for factor in ratios:
        compute = float(rng.uniform(0.1, 10))
        last_backward = Fraction(compute) / micro_batches * Fraction(2, 3)
        communication = float(last_backward) * factor * float(rng.uniform(0.9, 1.1))
        exposed = max(Fraction(0), Fraction(communication) - last_backward)
        because = f"{float(last_backward):.6g} s of backward pass come last"
        expected = near(Fraction(compute) + exposed)
        yield Call(step_time, compute, communication, micro_batches, gives=expected, what="it", because=because)


def _machine(rng) -> tuple[float, float, float, float]:
    """sent, bandwidth, flops, share of a machine that is drawn, on which gradients need thousands of tokens."""
    sent, bandwidth = float(rng.choice([2, 4, 8])), float(rng.uniform(1e9, 1.5e10))
    return sent, bandwidth, float(rng.uniform(3e14, 3e15)), float(rng.uniform(0.2, 0.8))


def _compared(function, first: tuple, second: tuple, expected: float, because: str) -> Call:
    """The second arguments take `expected` times as many tokens as the first, give or take a rounded token."""
    name = f"tokens_to_hide{second}, compared with tokens_to_hide{first}"
    how = {"what": "the factor between the tokens", "because": because, "name": name}
    return Call(ratio, function, first, second, gives=close(expected, rtol=2e-3), **how)


@check(TOKENS, points=1)
def tokens_follow_the_machine(tokens_to_hide, *, rng):
    """More bytes or FLOP/s take more tokens, more bandwidth fewer, in proportion; the size of a dense model none."""
    because = "what the gradients take grows with it as much as what a token computes, or the other way round"
    for place, power in ((0, 1), (1, -1), (2, 1), (3, 1), (None, 0)):
        size, machine, factor = float(rng.uniform(1e9, 1e11)), list(_machine(rng)), float(rng.uniform(1.1, 1.25))
        other, larger = list(machine), size * (1 if place is not None else factor)
        if place is not None:
            other[place] *= factor
        yield _compared(tokens_to_hide, (size, size, *machine), (larger, larger, *other), factor**power, because)


@check(TOKENS, points=0.5)
def the_backward_pass_hides(tokens_to_hide, *, rng):
    """The backward pass of so many tokens of a dense model takes as long as its gradients; rounding does not matter."""
    for size in (1e9, 70e9, float(rng.uniform(1e8, 1e12))):
        sent, bandwidth, flops, share = _machine(rng)
        backward = 4 * Fraction(size) / (Fraction(flops) * Fraction(share))  # seconds per token
        communicating = Fraction(size) * Fraction(sent) / Fraction(bandwidth)
        because = f"the gradients take {float(communicating):.6g} s, a token's backward pass {float(backward):.6g} s"
        expected = close(float(communicating / backward), rtol=1e-9, atol=1)
        arguments = (size, size, sent, bandwidth, flops, share)
        yield Call(tokens_to_hide, *arguments, gives=expected, what="the number of tokens", because=because)


@check(TOKENS, points=0.5)
def experts_travel_but_do_not_compute(tokens_to_hide, *, rng):
    """With experts, all gradients travel, and only the active parameters compute."""
    because = "gradients of all parameters travel, and a token computes with the active ones"
    for total, active in ((671e9, 37e9), (30e9, 3e9), (float(rng.uniform(5e10, 1e12)), float(rng.uniform(1e9, 4e10)))):
        machine = _machine(rng)
        yield _compared(tokens_to_hide, (total, total, *machine), (total, active, *machine), total / active, because)


def _sizes(rng) -> tuple[int, int, int, float, float]:
    """rows, inner, outer, FLOP/s and bytes per second of a multiplication; of 1 to 2,000 FLOPs per byte."""
    rows, inner, outer = (int(10 ** rng.uniform(0, 4)) + 1 for _ in range(3))
    bandwidth = float(rng.uniform(1e12, 9e12))
    return rows, inner, outer, bandwidth * float(10 ** rng.uniform(0, 3.3)), bandwidth


def _work(rows: float, inner: float, outer: float) -> tuple[Fraction, Fraction]:
    """(FLOPs, bytes) of a multiplication in bf16: an addition and a product for each term, each matrix moved once."""
    moved = [Fraction(a) * Fraction(b) for a, b in ((rows, inner), (inner, outer), (rows, outer))]
    return 2 * Fraction(rows) * inner * outer, 2 * sum(moved, Fraction(0))


@check(ROOFLINE, points=1)
def slower_of_computing_and_moving_decides(matmul_time, *, rng):
    """matmul_time is the time of computing or of moving the matrices in bf16, whichever is longer, to 2 %."""
    for flops in (3e12, 3e14, 9e14):  # 1 to 300 FLOPs per byte; the result has less than a hundredth of the bytes
        rows, outer, inner, bandwidth = 64, int(rng.integers(32, 64)), int(rng.integers(9000, 20000)), 3e12
        yield _multiplied(matmul_time, rows, inner, outer, flops, bandwidth, rtol=0.02)


@check(ROOFLINE, points=0.5)
def all_three_matrices_move_once(matmul_time, *, rng):
    """Both factors are read and the result is written, two bytes for each of their elements."""
    calls = [(rows, 4096, 14336, 989e12, 3.35e12) for rows in (1, 64, 4096)]
    for arguments in [*calls, *(_sizes(rng) for _ in range(12))]:
        yield _multiplied(matmul_time, *arguments, rtol=1e-9)


def _multiplied(matmul_time, rows: int, inner: int, outer: int, flops: float, bandwidth: float, rtol: float) -> Call:
    counted, moved = _work(rows, inner, outer)
    computing, moving = counted / Fraction(flops), moved / Fraction(bandwidth)
    because = f"computing takes {float(computing):.6g} s, moving {float(moving):.6g} s"
    arguments = (rows, inner, outer, flops, bandwidth)
    expected = close(float(max(computing, moving)), rtol=rtol)
    return Call(matmul_time, *arguments, gives=expected, what="the time", because=because)


@check(ROOFLINE, points=1)
def computing_takes_as_long_as_moving(compute_bound_rows, *, rng):
    """With compute_bound_rows rows, computing takes as long as moving; rounding does not matter."""
    for inner, outer, least in ((4096, 14336, 300), (7168, 2048, 300), (1024, 1024, 1000)):
        rows, bandwidth = least * float(rng.uniform(1, 2)), float(rng.uniform(1e12, 9e12))
        counted, moved = _work(rows, inner, outer)
        arguments = (inner, outer, float(counted / moved * Fraction(bandwidth)), bandwidth)
        how = {"what": "the number of rows", "because": "with so many rows, computing takes as long as moving"}
        yield Call(compute_bound_rows, *arguments, gives=close(rows, rtol=1e-9, atol=1), **how)


@check(ROOFLINE, points=0.5)
def narrow_matrices_are_never_compute_bound(compute_bound_rows, *, rng):
    """If a row takes longer to move than to compute, no number of rows is enough: math.inf."""
    for inner, outer in ((128, 4096), (4096, 128), (64, 64), (int(rng.integers(1, 200)), 1000)):
        intensity = inner * outer / (inner + outer)  # FLOPs per byte with infinitely many rows
        flops = 1e12 * intensity * float(rng.uniform(5, 20))  # so far that another error does not matter
        because = f"a row has {intensity:.4g} FLOPs per byte, and the GPU does more"
        call = (inner, outer, flops, 1e12)
        how = {"sees": lambda rows, *_: float(rows), "what": "the number of rows", "because": because}
        yield Call(compute_bound_rows, *call, gives=math.inf, **how)
