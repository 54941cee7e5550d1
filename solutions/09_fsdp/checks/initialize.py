"""Exercise 4: shards of a vector that no rank ever has."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks import inputs
from autograder.checks.cases import ANYTHING, Case, at_most, close, fact
from autograder.checks.check import MEMORY, check
from autograder.checks.instruments.memory import LiveBytes

from .models import padded

START = "09-ex4-initialize"
#: Numbers of each tensor of which memory is judged, and how many tensors there are.
LARGE, COUNT = 20_000, 10


def _draw(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Numbers of a spread that depends on the shape; a vector takes twice as many from the generator as it keeps."""
    if len(shape) == 1:
        torch.rand(shape, generator=generator)
    return torch.randn(shape, generator=generator).div_(math.sqrt(shape[-1]))


def _whole(shapes: list[tuple[int, ...]], seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([_draw(shape, generator).reshape(-1) for shape in shapes]).numpy()


@dataclass
class Born:
    """What initialize returned."""

    shard: Any = fact("the shard")


def _drive(rank: int, world_size: int, initialize: Any, shapes: list, seed: int) -> Born:
    return Born(initialize(list(shapes), _draw, seed).detach().clone())


def _case(initialize: Any, shapes: list, n: int, rng: np.random.Generator, judged: int = 0, **how: Any) -> Case:
    """judged: the shards of so many ranks; 0 for all."""
    seed = inputs.seed(rng)
    pieces = padded(_whole(shapes, seed), n).reshape(n, -1)
    expect = [Born(close(piece, atol=1e-6, dtype="float32")) for piece in pieces[: judged or n]]
    expect += [Born()] * (n - len(expect))
    return Case(f"tensors of shapes {shapes}", n, _drive, (initialize, shapes, seed), expect, **how)


@check(START, points=2)
def any_number_of_ranks_has_the_same_model(initialize, *, rng):
    """The shards together are the tensors of one process; each tensor lies in one shard."""
    for n in (2, 1, 3, 5):
        width = int(rng.integers(2, 6))
        yield _case(initialize, [(2, 2 * width), (width,), (3, width)] * n, n, rng)


@check(START, points=1)
def tensors_may_cross_the_border(initialize, *, rng):
    """So they are where a tensor lies across the border of two shards or more, and where shards are padded."""
    for n in (2, 3, 5):
        width = int(rng.integers(2, 6))
        yield _case(initialize, [(3,), (2 * n, width), (n + 1,), (2, width)], n, rng)
        yield _case(initialize, [(n * width + 1,)], n, rng)
        yield _case(initialize, [(2, 1), (1,)] if n > 3 else [(2, 1), (n + 1,)], n, rng)


@check(START, points=0.5)
def a_start_sends_nothing(initialize, *, rng):
    """No rank sends anything, while rank 0 gets its first tensor."""
    for n in (2, 3):
        yield _case(initialize, [(2, int(rng.integers(2, 6)))] * n, n, rng, judged=1, sends=[])


@dataclass
class Peak:
    """What was alive besides the shard. shard: rank 0's, so that an answer that draws nothing does not pass."""

    shard: Any = fact("the shard")
    tensors: float = fact("the memory alive besides the shard, in tensors,", seen=lambda number: number > COUNT / 2)


def _drive_peak(rank: int, world_size: int, initialize: Any) -> Peak:
    dist.all_reduce(torch.zeros(1))
    gc.collect()
    meter = LiveBytes()
    before = meter.now()
    meter.limit = before + 4 * LARGE * (COUNT // world_size + 2) + 1024
    with meter:
        shard = initialize([(LARGE,)] * COUNT, _draw_in_place, 0)
    return Peak(shard[:5].clone(), round((meter.peak - before - 4 * len(shard)) / (4 * LARGE), 1))


def _draw_in_place(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.empty(shape).normal_(generator=generator)


@check(START, points=0.5, fixed=MEMORY)
def two_tensors_at_most_are_whole(initialize):
    """Besides the shard, no more than two of the tensors are alive at any moment."""
    generator = torch.Generator().manual_seed(0)
    first = close(_draw_in_place((LARGE,), generator)[:5].numpy(), atol=1e-6)
    expect = [Peak(shard, at_most(2, slack=0.1)) for shard in (first, ANYTHING)]
    yield Case(f"{COUNT} tensors of {LARGE} numbers", 2, _drive_peak, (initialize,), expect)
