"""Exercise 1: the bounds of a shard, and tensors as one flat vector."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking.cases import Call, close, complaint, fact, refused
from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import ceil_div


@check("08-ex1-shard-bounds", points=1)
def bounds_cut_into_equal_shards(shard_bounds, *, rng):
    """The shards are equal pieces of ⌈numel/N⌉, one after the other, clipped to the vector, for any whole numel."""
    # The last is 3 more than a multiple of 16: half of it, rounded up, is no float64.
    sizes = [0, 1, 2, 5, 10, 12, int(rng.integers(20, 5000)), 10**17 + 16 * int(rng.integers(1, 1000)) + 3]
    for n in (1, 2, 3, 4, 7, 16):
        for numel in sizes:
            size = ceil_div(numel, n)
            for rank in range(n):
                pair = min(rank * size, numel), min((rank + 1) * size, numel)
                yield Call(shard_bounds, numel, rank, n, sees=_pair, gives=pair, what=BOUNDS.format(rank))


BOUNDS = "the pair of bounds of rank {}"


def _pair(bounds: Any, *_: int) -> Any:
    """Two whole numbers as a tuple; anything else as it is."""
    try:
        start, end = bounds
        return (int(start), int(end)) if start == int(start) and end == int(end) else bounds
    except (TypeError, ValueError):
        return bounds


@check("08-ex1-shard-bounds", points=0.25, fixed=REFUSALS)
def bounds_refuse_what_makes_no_sense(shard_bounds, *, rng):
    """A world size below 1, a rank outside it or a negative length is a ValueError that names it."""
    right = {"numel": 10, "rank": 3, "world_size": 4}
    wrong = [{"world_size": 0, "rank": 0}, {"rank": -1}, {"rank": 4}, {"numel": -1, "rank": 0}]
    yield from refused(shard_bounds, right, wrong=wrong, gives=(9, 10), sees=_pair, what=BOUNDS.format(3))


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
    wrong: str = complaint()


def _look(before: list[torch.Tensor], flat: Any, tensors: list[torch.Tensor]) -> Flat:
    """What there is to say of a flat vector of `tensors`, which held the numbers of `before`."""
    if not isinstance(flat, torch.Tensor) or flat.dtype != torch.float32:
        return Flat(flat, f"the flat vector is {getattr(flat, 'dtype', type(flat).__name__)}, expected torch.float32")
    numbers = flat.detach().clone()
    if flat.requires_grad:
        return Flat(numbers, "the flat vector requires a gradient")
    flat.add_(1)
    kept = all(torch.equal(t, old) for t, old in zip(tensors, before, strict=True))
    return Flat(numbers, "" if kept else "the flat vector shares its memory with a tensor")


@check("08-ex1-shard-bounds", points=0.75)
def flatten_lays_numbers_end_to_end(flatten, *, rng):
    """The flat vector holds all numbers in order, in 1-D float32, in memory of its own, without a gradient."""
    for name, tensors in _tensors(rng).items():
        parts = [t.detach().to(torch.float64).numpy().reshape(-1) for t in tensors]
        flat = Flat(close(np.concatenate([*parts, np.zeros(0)])), wrong="")
        yield Call(flatten, tensors, sees=functools.partial(_look, tensors), gives=flat, name=name)
