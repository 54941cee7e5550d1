"""Exercise 4: the sizes at which messages take as long as arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from autograder.checks.cases import Call, close
from autograder.checks.check import check

ARITHMETIC = "15-ex4-arithmetic"


def _played(kind: str, n: int, peak: float, bandwidth: float, itemsize: int) -> float:
    """The size at which both times are equal, by adding up a ring's messages for one unit of the size.

    fsdp, for each weight: FLOPs grow with the tokens, messages do not. tp and pp, for each token: FLOPs grow with the
    square of the width (pp: times the layers), messages with the width.
    """
    chunk = Fraction(itemsize, n)  # of one number, cut over the ring
    rounds = range(n - 1)
    if kind == "fsdp":
        sent = sum(chunk for _ in range(3) for _ in rounds)
        flops = Fraction(6)
    elif kind == "tp":
        sent = sum(chunk for _ in range(4) for _ in range(2) for _ in rounds)
        flops = Fraction(6 * 12, n)
    else:
        sent, flops = Fraction(2 * itemsize), Fraction(6 * 12)
    return float(sent / Fraction(bandwidth) * Fraction(peak) / flops)


def _cases(critical: Any, kind: str, rng: np.random.Generator) -> Iterator[Call]:
    """Rings of several lengths on machines whose peak and links are drawn, with numbers of 2 bytes."""
    for n in (8, 2, int(rng.integers(3, 1000))):
        peak, bandwidth = _machine(rng)
        expected = close(_played(kind, n, peak, bandwidth, 2), 1e-9, dtype="float64")
        yield Call(critical, kind, n, peak, bandwidth, gives=expected, what="the size")


def _machine(rng: np.random.Generator) -> tuple[float, float]:
    return float(rng.integers(100, 3000)) * 1e12, float(rng.integers(10, 1000)) * 1e9


@check(ARITHMETIC, points=0.5)
def the_width_makes_both_times_equal(critical, *, rng):
    """At the width for "tp", a ring's messages take exactly as long as the FLOPs."""
    yield from _cases(critical, "tp", rng)


@check(ARITHMETIC, points=0.5)
def the_tokens_make_both_times_equal(critical, *, rng):
    """At the number of tokens for "fsdp", gathering and reducing take exactly as long as the FLOPs."""
    yield from _cases(critical, "fsdp", rng)


@check(ARITHMETIC, points=0.5)
def the_stage_makes_both_times_equal(critical, *, rng):
    """At width times layers for "pp", a stage's messages take exactly as long as its FLOPs."""
    yield from _cases(critical, "pp", rng)


def _growth(critical: Any, kind: str, n: int, peak: float, bandwidth: float, itemsize: int) -> float:
    """How many times larger the size is with `itemsize` bytes than with one."""
    one, more = (float(critical(kind, n, peak, bandwidth, size)) for size in (1, itemsize))
    return more / one if one else 0.0


@check(ARITHMETIC, points=0.25)
def the_size_grows_with_the_bytes_of_a_number(critical, *, rng):
    """With numbers of `itemsize` bytes each size is `itemsize` times that with numbers of one byte."""
    for kind in ("fsdp", "tp", "pp"):
        n, itemsize = int(rng.integers(3, 100)), int(rng.integers(2, 9))
        name = f"{kind!r}, {n} ranks, {itemsize} bytes against one"
        args = (critical, kind, n, *_machine(rng), itemsize)
        yield Call(_growth, *args, gives=close(itemsize, 1e-9), name=name, what="the growth of the size")


@check(ARITHMETIC, points=0.25)
def a_single_rank_sends_nothing(critical, *, rng):
    """For a single rank the size for "fsdp" and for "tp" is 0, and for two ranks it is not."""
    for kind in ("fsdp", "tp"):
        peak, bandwidth = _machine(rng)
        yield Call(critical, kind, 1, peak, bandwidth, gives=close(0.0), what="the size")
        how = {"name": f"{kind!r}, two ranks", "what": "whether it is positive"}
        yield Call(critical, kind, 2, peak, bandwidth, sees=lambda size, *_: bool(size > 0), gives=True, **how)
