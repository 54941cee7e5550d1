"""Lesson NN, exercise 0: Replace this. The oracle is a quotient of fractions."""

from __future__ import annotations

from fractions import Fraction

from autograder.checks.cases import Call, close
from autograder.checks.check import check


@check("NN-ex0-new-function", points=1)
def new_function_is_bytes_over_seconds(new_function, *, rng):
    """Replace this. The bytes divided by the seconds, a float."""
    for nbytes in (0, 1, int(rng.integers(2, 10**6))):
        seconds = int(rng.integers(9, 64)) / 8
        expected = float(Fraction(nbytes) / Fraction(seconds))
        yield Call(new_function, nbytes, seconds, gives=close(expected, 1e-12, dtype="float64"), what="the rate")
