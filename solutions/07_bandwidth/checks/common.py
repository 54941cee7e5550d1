"""What the checks of lesson 07 share: constants, inputs, what top-k keeps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from autograder.checking.expect import expect_equal, fail

GATHERS = ("all_gather", "all_gather_single", "all_gather_into_tensor")
DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
#: Bytes that a message of the server may have in addition to its numbers: a step number, a request.
HEADER = 16
#: Seconds that a gated worker waits at most; then it goes on.
PATIENCE = 5.0


def count_kept(numel: int, ratio: float) -> int:
    """How many entries top-k keeps."""
    return min(numel, max(1, math.floor(ratio * numel)))


def distinct_numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers of both signs whose magnitudes all differ; the larger half of them more often negative."""
    numel = math.prod(shape)
    signs = np.where(np.arange(numel) % 3 == 0, 1.0, -1.0)
    return np.asarray((rng.permutation((np.arange(numel) + 1) * signs) / 8.0).reshape(shape), dtype)


def laid_out(array: np.ndarray, layout: str) -> torch.Tensor:
    """`array` as a tensor: contiguous, as the transpose of one that is, or as every second element of a larger one."""
    x = torch.from_numpy(array.copy())
    if layout == "transposed":
        return x.t().contiguous().t()
    return torch.stack([x, torch.full_like(x, 99.0)], dim=-1)[..., 0] if layout == "strided" else x


def pair_of(case: str, got: Any, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """(values, indices) as arrays, when they are two 1-D tensors of the right dtypes and of the same length."""
    if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(part, torch.Tensor) for part in got)):
        fail(f"expected a pair of tensors (values, indices), got {type(got).__name__}", case, type(got).__name__)
    values, indices = got
    shapes = (tuple(values.shape), tuple(indices.shape))
    if values.dim() != 1 or indices.dim() != 1 or len(values) != len(indices):
        fail(f"values and indices must be 1-D and equally long, they have the shapes {shapes}", case, shapes)
    if values.dtype != dtype or indices.dtype != torch.int64:
        dtypes = (str(values.dtype), str(indices.dtype))
        fail(f"values must be {dtype} and indices torch.int64, got {dtypes[0]} and {dtypes[1]}", case, dtypes)
    return values.detach().numpy().copy(), indices.numpy().copy()


def expect_largest(case: str, values: np.ndarray, indices: np.ndarray, flat: np.ndarray, ratio: float) -> None:
    """k distinct places of `flat`, its entries there, and none left that is larger than one that was taken."""
    k, got = count_kept(flat.size, ratio), [values, indices]
    what = f"the number of entries kept of {flat.size} with ratio {ratio}"
    expect_equal(case, len(values), k, what=what, evidence=got)
    if not k:
        return
    if indices.min() < 0 or indices.max() >= flat.size or len(set(indices.tolist())) != k:
        fail(f"indices must be different places in 0…{flat.size - 1}, got {indices.tolist()}", case, got)
    wrong = np.flatnonzero(values != flat[indices])
    if wrong.size:
        at = int(wrong[0])
        there = f"grad.reshape(-1)[{indices[at]}] is {flat[indices[at]]}"
        fail(f"values[{at}] is {values[at]}, but {there}", case, got)
    largest = np.sort(np.abs(flat))[::-1][:k]
    if np.any(np.sort(np.abs(values))[::-1] != largest):
        fail(f"entry {largest[-1]} by magnitude was left out for a smaller one", case, got)


def shares_memory(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    """Whether a tensor lies in the storage of one of the others."""
    taken = {other.untyped_storage().data_ptr() for other in others if other.numel()}
    return bool(tensor.numel()) and tensor.untyped_storage().data_ptr() in taken
