"""Lesson NN, exercise 0: Replace this with what the oracle is. Here it is a quotient of fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_type


@check("NN-ex0-new-function", points=1)
def new_function_is_bytes_over_seconds(new_function, *, rng):
    """Replace this sentence, which students read: the bytes divided by the seconds, a float."""
    for nbytes in (0, 1, int(rng.integers(2, 10**6))):
        seconds = int(rng.integers(9, 64)) / 8
        case = f"{nbytes} bytes in {seconds} s"
        got = new_function(nbytes, seconds)
        expect_type(case, got, float, what="the result")
        expect_close(case, got, np.float64(Fraction(nbytes) / Fraction(seconds)), what="the result", rtol=1e-12)
