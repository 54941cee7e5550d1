"""Exercise 4: the sizes at which messages take as long as arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from autograder.checking.cases import Call, close
from autograder.checking.check import check

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
    """Rings of several lengths on machines whose peak and links are drawn, with numbers of 2 and of 4 bytes."""
    for n in (8, 1, 2, int(rng.integers(3, 1000))):
        for itemsize in (2, 4):
            peak, bandwidth = float(rng.integers(100, 3000)) * 1e12, float(rng.integers(10, 1000)) * 1e9
            right = _played(kind, n, peak, bandwidth, itemsize)
            expected = close(right, 1e-9, dtype="float64")
            yield Call(critical, kind, n, peak, bandwidth, itemsize, gives=expected, what="the size")


@check(ARITHMETIC, points=1)
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
