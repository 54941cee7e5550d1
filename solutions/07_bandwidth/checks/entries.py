"""Exercise 1: the entries of largest magnitude, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Call, close, fact, sentence
from autograder.checks.check import check

from .forms import no_pair

TOP_K = "07-ex1-top-k"


@dataclass
class Kept:
    """What was kept of a gradient, in the order of the places."""

    odd: str = sentence()
    count: int = fact("the number of entries kept")
    places: list[int] = fact("the sorted list of indices")
    values: list[float] = fact("the list of values, in the order of their indices,")


def strange_pair(got: Any) -> str:
    """What is wrong with the form of (values, indices), or ""."""
    if odd := no_pair(got, "(values, indices)"):
        return odd
    values, indices = got
    if values.dim() != 1 or values.shape != indices.shape:
        return f"values and indices have the shapes {tuple(values.shape)} and {tuple(indices.shape)}, not both (k,)"
    return "" if indices.dtype == torch.int64 else f"indices are {indices.dtype}, not torch.int64"


def _kept(got: Any, *_: Any) -> Kept:
    if odd := strange_pair(got):
        return Kept(odd, 0, [], [])
    places, order = torch.sort(got[1])
    return Kept("", len(places), places.tolist(), got[0][order].tolist())


def distinct_numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers whose magnitudes all differ, two in three of them negative."""
    magnitudes = np.arange(math.prod(shape)) + 1.0
    signs = np.where(magnitudes % 3 == 0, 1.0, -1.0)
    return np.asarray(rng.permutation(magnitudes * signs).reshape(shape) / 8, np.float32)


def _call(top_k_compress: Any, array: np.ndarray, ratio: float, count: int) -> Call:
    flat = array.reshape(-1)
    places = sorted(np.argsort(-np.abs(flat))[:count].tolist())
    gives = Kept("", count, places, flat[places].tolist())
    name = f"shape {array.shape}, ratio {ratio}"
    return Call(top_k_compress, torch.from_numpy(array), ratio, gives=gives, sees=_kept, name=name)


@check(TOP_K, points=1)
def top_k_takes_the_largest(top_k_compress, *, rng):
    """The entries of largest magnitude, with their signs, and their places in the flattened gradient."""
    for shape, ratio in (((16,), 0.25), ((4, 2 * int(rng.integers(2, 9))), 0.5), ((2, 3, 4), 0.125), ((7,), 1.0)):
        array = distinct_numbers(rng, shape)
        yield _call(top_k_compress, array, ratio, int(ratio * array.size))


@check(TOP_K, points=0.25)
def k_is_rounded_down_to_no_less_than_one(top_k_compress, *, rng):
    """Where ratio · numel is no whole number, k is rounded down; below 1 it is 1."""
    for numel, ratio, count in ((11, 0.25, 2), (10, 0.375, 3), (int(rng.integers(2, 30)), 2.0**-6, 1), (1, 0.5, 1)):
        yield _call(top_k_compress, np.abs(distinct_numbers(rng, (numel,))), ratio, count)


@check(TOP_K, points=0.75)
def decompress_puts_values_back(top_k_decompress, *, rng):
    """The values are at their places in the shape that was asked for, zero elsewhere."""
    for shape in ((7,), (3, int(rng.integers(2, 8))), (2, 3, 2)):
        numel = math.prod(shape)
        count = int(rng.integers(1, numel))
        values = distinct_numbers(rng, (numel,))[:count]
        places = rng.permutation(numel)[:count]
        right = np.zeros(numel, np.float32)
        right[places] = values
        args = (torch.from_numpy(values), torch.from_numpy(places), shape)
        yield Call(
            top_k_decompress, *args, gives=close(right.reshape(shape)), name=f"{count} values into shape {shape}"
        )
