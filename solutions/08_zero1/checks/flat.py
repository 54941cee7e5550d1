"""Exercise 1: the bounds of a shard, and tensors as one flat vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import ceil_div, count_of_ranks, expect_close, expect_equal, expect_raises, fail


@check("08-ex1-shard-bounds")
def bounds_cut_into_equal_shards(shard_bounds, *, rng):
    """The shards are equal pieces of ⌈numel/N⌉, one after the other, clipped to the vector, for any whole numel."""
    # The last is 3 more than a multiple of 16: half of it, rounded up, is no float64.
    sizes = [0, 1, 2, 5, 10, 12, int(rng.integers(20, 5000)), 10**17 + 16 * int(rng.integers(1, 1000)) + 3]
    for world_size in (1, 2, 3, 4, 7, 16):
        for numel in sizes:
            size = ceil_div(numel, world_size)
            expected = [(min(r * size, numel), min((r + 1) * size, numel)) for r in range(world_size)]
            got = [_pair(shard_bounds(numel, rank, world_size)) for rank in range(world_size)]
            if got != expected:
                rank = next(r for r in range(world_size) if got[r] != expected[r])
                case = f"{numel} numbers on {count_of_ranks(world_size)}"
                fail(f"rank {rank} has the bounds {got[rank]}, expected {expected[rank]}", case, got)


def _pair(bounds: Any) -> Any:
    """Two whole numbers as a tuple; anything else as it would be shown."""
    try:
        start, end = bounds
        if start != int(start) or end != int(end):
            return repr(bounds)
        return int(start), int(end)
    except (TypeError, ValueError):
        return repr(bounds)


@check("08-ex1-shard-bounds")
def bounds_refuse_what_makes_no_sense(shard_bounds, *, rng):
    """A world size below 1, a rank outside it or a negative length is a ValueError that names it."""
    wrong = [((10, 0, 0), "world_size"), ((10, -1, 4), "rank"), ((10, 4, 4), "rank"), ((-1, 0, 4), "numel")]
    for arguments, name in wrong:
        got = _pair(shard_bounds(10, 3, 4))
        expect_equal("10 numbers on 4 ranks", got, (9, 10), what="the bounds of rank 3")
        expect_raises(f"shard_bounds{arguments}", shard_bounds, *arguments, error=ValueError, mentions=name)


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


@check("08-ex1-shard-bounds")
def flatten_lays_numbers_end_to_end(flatten, *, rng):
    """The flat vector holds all numbers in order, in 1-D float32, in memory of its own, without a gradient."""
    for case, tensors in _tensors(rng).items():
        before = [t.detach().clone() for t in tensors]
        got = flatten(tensors)
        parts = [t.detach().to(torch.float64).numpy().reshape(-1) for t in tensors]
        expect_close(case, got, np.concatenate([*parts, np.zeros(0)]), what="the flat vector", rtol=0.0)
        if not isinstance(got, torch.Tensor) or got.dtype != torch.float32:
            kind = str(getattr(got, "dtype", type(got).__name__))
            fail(f"the flat vector is {kind}, expected a torch.float32 tensor", case, kind)
        if got.requires_grad:
            fail("the flat vector requires a gradient", case, "requires_grad")
        got.add_(1)
        if any(not torch.equal(t.detach(), old) for t, old in zip(tensors, before, strict=True)):
            fail("the flat vector shares its memory with a tensor", case, "shared")
