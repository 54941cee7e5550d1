"""Exercise 1: the bounds of a shard, and tensors as one flat vector."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import ANYTHING, Call, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.expect import ceil_div


@check("08-ex1-shard-bounds", points=0.75)
def bounds_cut_into_equal_shards(shard_bounds, *, rng):
    """The shards are equal pieces of ⌈numel/N⌉, one after the other, and the last one ends with the vector."""
    for n in (1, 2, 3, 4, 7, 16):
        for numel in (16 * n, 20 * n - n // 2, n * int(rng.integers(20, 500)) - int(rng.integers(n))):
            yield from _bounds(shard_bounds, numel, n)


@check("08-ex1-shard-bounds", points=0.25)
def bounds_stay_inside_the_vector(shard_bounds, *, rng):
    """Where the last ranks have only padding, both of their bounds are numel."""
    for n in (3, 4, 7, 16):
        for numel in (0, 1, 5, int(rng.integers(1, n))):
            yield from _bounds(shard_bounds, numel, n)


def _bounds(shard_bounds: Any, numel: int, n: int) -> Iterator[Call]:
    size = ceil_div(numel, n)
    for rank in range(n):
        pair = min(rank * size, numel), min((rank + 1) * size, numel)
        yield Call(shard_bounds, numel, rank, n, sees=_pair, gives=pair, what=f"the pair of bounds of rank {rank}")


def _pair(bounds: Any, *_: int) -> Any:
    """Two whole numbers as a tuple; anything else as it is."""
    try:
        start, end = bounds
        return (int(start), int(end)) if start == int(start) and end == int(end) else bounds
    except (TypeError, ValueError):
        return bounds


def _tensors(rng: np.random.Generator) -> dict[str, list[torch.Tensor]]:
    """Lists of tensors of several shapes, dtypes and layouts, whose numbers bf16 holds exactly."""

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.from_numpy(np.asarray(rng.integers(-64, 64, shape) / 8)).to(dtype)

    return {
        "one tensor": [numbers(3, 2)],
        "parameters": [nn.Parameter(numbers(2, 3)), nn.Parameter(numbers(4)), nn.Parameter(numbers())],
        "a transposed matrix": [numbers(3, 4).t(), numbers(2)],
        "three dtypes": [numbers(5, dtype=torch.bfloat16), numbers(2, 2, dtype=torch.float64), numbers(3)],
        "an empty tensor": [numbers(0, 3), numbers(2)],
        "an empty list": [],
    }


@dataclass
class Flat:
    """What flatten returned, and what is wrong with it besides its numbers."""

    numbers: Any = fact("the flat vector")
    wrong: str = sentence()


def _look(before: list[torch.Tensor], flat: Any, tensors: list[torch.Tensor]) -> Flat:
    """What there is to say of a flat vector of `tensors`, which held the numbers of `before`."""
    if not isinstance(flat, torch.Tensor):
        return Flat(flat, f"the flat vector is a {type(flat).__name__}, expected a tensor")
    numbers = flat.detach().clone()
    if flat.dim() != 1:
        return Flat(numbers, f"the flat vector has {flat.dim()} dimensions, expected one")
    if flat.dtype != torch.float32:
        return Flat(numbers, f"the flat vector is {flat.dtype}, expected torch.float32")
    if flat.requires_grad:
        return Flat(numbers, "the flat vector requires a gradient")
    flat.add_(1)
    kept = all(torch.equal(t, old) for t, old in zip(tensors, before, strict=True))
    return Flat(numbers, "" if kept else "the flat vector shares its memory with a tensor")


def _flat(flatten: Any, name: str, tensors: list[torch.Tensor], wrong: Any) -> Call:
    """wrong: "" where dtype, memory and gradient count, too."""
    parts = [t.detach().to(torch.float64).numpy().reshape(-1) for t in tensors]
    gives = Flat(close(np.concatenate([*parts, np.zeros(0)])), wrong=wrong)
    return Call(flatten, tensors, sees=functools.partial(_look, tensors), gives=gives, name=name)


@check("08-ex1-shard-bounds", points=0.5)
def flatten_lays_numbers_end_to_end(flatten, *, rng):
    """The flat vector holds all numbers in order, each tensor's in the order of reshape(-1)."""
    for name, tensors in _tensors(rng).items():
        if tensors:
            yield _flat(flatten, name, tensors, ANYTHING)


@check("08-ex1-shard-bounds", points=0.5)
def flat_vectors_are_new(flatten, *, rng):
    """The flat vector is 1-D and float32, has memory of its own and no gradient, also for one tensor and for none."""
    for name, tensors in _tensors(rng).items():
        if name != "a transposed matrix":
            yield _flat(flatten, name, tensors, "")
