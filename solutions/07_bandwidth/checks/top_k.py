"""Lesson 07, exercise 1: the entries of largest magnitude, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, expect_raises, expect_unchanged, fail
from autograder.checks.bandwidth.common import (
    DTYPES,
    distinct_numbers,
    expect_largest,
    laid_out,
    pair_of,
    shares_memory,
)


@check("07-ex1-top-k", points=1.5)
def top_k_takes_the_largest(top_k_compress, *, rng):
    """k entries of largest magnitude, signed, at their places in reading order, in memory of their own."""
    shapes = [((12,), ""), ((4, 6), "transposed"), ((4, 6), ""), ((3, 2, 4), "strided"), ((), ""), ((1,), "")]
    shapes += [((0,), ""), ((3, 0), ""), ((37,), "")]
    for shape, layout in shapes:
        for ratio, dtype in (
            (0.25, "float32"),
            (0.75, "float32"),
            (2.0**-6, "float64"),
            (1.0, "float32"),
            (0.5, "float16"),
        ):
            case = f"{layout} shape {shape}, {dtype}, ratio {ratio}".strip()
            array = distinct_numbers(rng, shape, dtype)
            grad = laid_out(array, layout)
            got = top_k_compress(grad, ratio)
            values, indices = pair_of(case, got, DTYPES[dtype])
            expect_largest(case, values, indices, array.reshape(-1), ratio)
            expect_unchanged(case, array, grad.numpy(), what="grad")
            if shares_memory(got[0], [grad]) or shares_memory(got[1], [grad]):
                fail("values share their memory with grad, so a change of one changes the other", case, "shared")
    ties = np.asarray(rng.permutation([2.0, -2.0, 2.0, 1.0, -1.0, 0.0, 0.0, 2.0]))
    for ratio in (0.25, 0.5, 0.75, 1.0):
        case = f"entries of the same magnitude, ratio {ratio}"
        values, indices = pair_of(case, top_k_compress(torch.from_numpy(ties.copy()), ratio), torch.float64)
        expect_largest(case, values, indices, ties, ratio)
    _expect_close_ones_told_apart(top_k_compress)


def _expect_close_ones_told_apart(top_k_compress: Any) -> None:
    """Magnitudes that are equal in fewer digits, and magnitudes whose squares are infinite or 0.

    In both orders: an answer to which all are equal takes the same places each time, and in one of the two they are
    the wrong ones.
    """
    count = np.arange(8)
    for words, array in [
        ("float64 numbers that are equal in float32", 1 + count * 1e-12),
        ("float16 numbers of about 300", (300 + count).astype(np.float16)),
        ("float32 numbers of about 1e-30", ((300 + count) * 1e-32).astype(np.float32)),
    ]:
        for order, ordered in (("ascending", array), ("descending", array[::-1])):
            case = f"{words}, {order}, ratio 0.25"
            got = top_k_compress(torch.from_numpy(ordered.copy()), 0.25)
            values, indices = pair_of(case, got, DTYPES[array.dtype.name])
            expect_largest(case, values, indices, ordered, 0.25)


@check("07-ex1-top-k", points=0.25)
def top_k_refuses_a_ratio(top_k_compress, *, rng):
    """A ratio outside (0, 1] is a ValueError that names it."""
    grad = torch.from_numpy(rng.normal(size=8))
    for ratio in (0.0, -0.5, 1.5, 2):
        expect_raises(f"ratio {ratio}", top_k_compress, grad, ratio, error=ValueError, mentions="ratio")
    values, indices = pair_of("ratio 1", top_k_compress(grad, 1), grad.dtype)
    expect_largest("ratio 1", values, indices, grad.numpy(), 1)
    empty = torch.zeros(0)
    expect_raises("ratio 1.5, an empty gradient", top_k_compress, empty, 1.5, error=ValueError, mentions="ratio")


@check("07-ex1-top-k", points=1)
def decompress_puts_values_back(top_k_decompress, *, rng):
    """The values are at their places, zero elsewhere, in the dtype of the values and the shape that was asked for."""
    for shape, k, dtype in [
        ((7,), 3, "float32"),
        ((3, 4), 5, "float64"),
        ((2, 3, 2), 12, "float16"),
        ((), 1, "float64"),
        ((0, 3), 0, "float32"),
        ((2, 2), 0, "float64"),
    ]:
        case = f"{k} values of {dtype} into shape {shape}"
        numel = math.prod(shape)
        values = torch.from_numpy(distinct_numbers(rng, (numel,), dtype)[:k].copy())
        indices = torch.from_numpy(rng.permutation(numel)[:k].astype(np.int64))
        inputs = values.clone(), indices.clone()
        got = top_k_decompress(values, indices, torch.Size(shape) if k % 2 else shape)
        expected = np.zeros(numel, dtype)
        expected[indices.numpy()] = values.numpy()
        if isinstance(got, torch.Tensor):
            why = "that of the values is kept"
            expect_equal(case, str(got.dtype), str(values.dtype), what="the dtype of the result", because=why)
        expect_close(case, got, expected.reshape(shape), what="the decompressed tensor", rtol=0.0)
        for name, before, after in zip(("values", "indices"), inputs, (values, indices), strict=True):
            expect_unchanged(case, before.numpy(), after.numpy(), what=name)
        if isinstance(got, torch.Tensor) and shares_memory(got, [values]):
            fail("the result shares its memory with values", case, "shared")


@check("07-ex1-top-k", points=0.25)
def decompress_refuses_what_does_not_fit(top_k_decompress, *, rng):
    """Different lengths, or an index outside the shape, are a ValueError that names the indices."""
    values = torch.from_numpy(rng.normal(size=3))
    for case, many, places, shape in [
        ("one index too few", 3, [0, 4], (2, 3)),
        ("one value only for two indices", 1, [0, 4], (2, 3)),
        ("an index equal to the number of elements", 3, [0, 6, 1], (2, 3)),
        ("indices that fit", 3, [0, 5, 1], (2, 3)),
        ("a negative index", 3, [0, -1, 1], (2, 3)),
        ("a single index, −1", 1, [-1], (2, 3)),
        ("an index into a shape without elements", 1, [0], (0, 3)),
    ]:
        arguments = (values[:many], torch.tensor(places), shape)
        if case == "indices that fit":
            expected = np.zeros(shape)
            expected.flat[places] = values.numpy()
            expect_close(case, top_k_decompress(*arguments), expected, what="the decompressed tensor", rtol=1e-6)
            continue
        expect_raises(case, top_k_decompress, *arguments, error=ValueError, mentions="indices")
