"""Exercise 2: the mean gradient, a shard on each rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checks.cases import ANYTHING, Case, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.inputs import eighths

from .training import change_of_grad, set_gradients

#: A mean of multiples of 1/8 up to 4, divided before the sum or after it.
ROUNDING = {"rtol": 1e-6, "atol": 1e-6}
#: Parameters as (shape, dtype, trainable). Together they have 15 trainable numbers.
MIXED = [((3, 2), "float32", True), ((4,), "float32", False), ((5,), "bfloat16", True), ((), "float64", True)]
MIXED += [((3,), "float32", True)]
#: Added to eighths, so that no sum over fewer than eight ranks is 0.
OFFSET = np.float32(1 / 64)
KINDS = {
    "2 parameters of 7 numbers": [((2, 2), "float32", True), ((3,), "float32", True)],
    "1 number": [((1,), "float32", True)],
}


def mean_shards(gradients: list[list[np.ndarray]]) -> np.ndarray:
    """The mean over the ranks of what each has, end to end and padded, (N, ⌈P/N⌉): row r is rank r's shard."""
    n = len(gradients)
    # Numbers with three bits after the point: their sums are exact.
    mean = np.mean([np.concatenate([np.reshape(g, -1) for g in mine]) for mine in gradients], axis=0, dtype=np.float64)
    return np.concatenate([mean, np.zeros(-len(mean) % n)]).reshape(n, -1)


@dataclass
class Reduced:
    """What a rank has after `reduced_gradient()`."""

    shard: Any = fact("the reduced gradient")
    direction: Any = fact("the reduced gradient, with all shards together scaled to length 1,")
    numel: int = fact("self.numel")
    size: int = fact("self.size")
    params: list[int] = fact("self.params, as positions in the given list,")
    changed: list[str] = sentence()


def _reduce(rank: int, world_size: int, sharded_class: Any, kinds: list, gradients: list, *repeated: int) -> Reduced:
    """repeated: places of the parameters that are given twice."""
    params = [nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)), trained) for shape, dtype, trained in kinds]
    sharded = sharded_class(params[i] for i in [*range(len(params)), *repeated])
    set_gradients(params, gradients[rank])
    given = [None if p.grad is None else p.grad.clone() for p in params]
    shard = sharded.reduced_gradient()
    changed = [change_of_grad("reduced_gradient()", p.grad, g) for p, g in zip(params, given, strict=True)]
    places = _places(sharded.params, params)
    return Reduced(shard.detach().clone(), None, sharded.numel, sharded.size, places, changed)


def _reduce_and_scale(rank: int, world_size: int, *args: Any) -> Reduced:
    reduced = _reduce(rank, world_size, *args)
    return replace(reduced, direction=scaled([reduced.shard])[0])


def scaled(shards: list[torch.Tensor]) -> list[torch.Tensor]:
    """Shards in float64, divided by the length of all shards of all ranks together."""
    squares = sum((shard.detach().double().square().sum() for shard in shards), torch.zeros((), dtype=torch.float64))
    dist.all_reduce(squares)
    return [shard.detach().double() / squares.sqrt().clamp(min=1e-30) for shard in shards]


def direction(shards: np.ndarray) -> list[close]:
    """What each rank's `scaled` shard must be, from the rows of `mean_shards`."""
    return [close(row / np.linalg.norm(shards), **ROUNDING) for row in shards]


def _places(found: Any, params: list) -> list[int]:
    """Where in `params` each element of a list stands; [] if it is no list, or has something else."""
    if not isinstance(found, list):
        return []
    places = [i for p in found for i, known in enumerate(params) if p is known]
    return places if len(places) == len(found) else []


def _drawn(rng: np.random.Generator, counts: tuple[int, ...]) -> Iterator[tuple[str, int, list, list]]:
    """name, N, the parameters and `gradients[rank][i]`, where all are trained."""
    for n in counts:
        for name, kinds in KINDS.items():
            yield name, n, kinds, [[eighths(rng, shape) + OFFSET for shape, _, _ in kinds] for _ in range(n)]


@check("08-ex2-gradient", points=0.75)
def shards_are_parts_of_the_gradients_sum(ShardedGradient, *, rng):
    """A shard is the rank's part of the gradient of all ranks, up to a common factor, for any N and sizes."""
    for name, n, kinds, gradients in _drawn(rng, (1, 2, 3, 4, 5)):
        expect = [Reduced(direction=one) for one in direction(mean_shards(gradients))]
        yield Case(name, n, _reduce_and_scale, (ShardedGradient, kinds, gradients), expect)


@check("08-ex2-gradient", points=0.25)
def the_sum_is_divided_by_the_ranks(ShardedGradient, *, rng):
    """The gradient is the mean over the ranks."""
    for name, n, kinds, gradients in _drawn(rng, (2, 3, 5)):
        expect = [Reduced(close(row, **ROUNDING)) for row in mean_shards(gradients)]
        yield Case(name, n, _reduce, (ShardedGradient, kinds, gradients), expect)


@check("08-ex2-gradient", points=0.25)
def only_a_reduce_scatter_is_sent(ShardedGradient, *, rng):
    """On several ranks, one reduce-scatter of the padded float32 vector is all that is sent."""
    for name, n, kinds, gradients in _drawn(rng, (2, 3)):
        sends = [("reduce_scatter", 4 * mean_shards(gradients).size, "the padded vector in float32")]
        yield Case(name, n, _reduce, (ShardedGradient, kinds, gradients), [Reduced()] * n, sends)


@check("08-ex2-gradient", points=0.25)
def trainable_parameters_count_once(ShardedGradient, *, rng):
    """Frozen parameters and second mentions are left out, a missing gradient is zeros, and no .grad is changed."""
    trained = [i for i, (_, _, trained) in enumerate(MIXED) if trained]
    for n in (2, 3):
        gradients = [[eighths(rng, shape) if t else None for shape, _, t in MIXED] for _ in range(n)]
        for rank, mine in enumerate(gradients):
            mine[0] = mine[0] if rank == 1 else None  # missing on all ranks but one
            mine[3] = None  # on all
        mean = mean_shards([[np.zeros(MIXED[i][0]) if g[i] is None else g[i] for i in trained] for g in gradients])
        numel, size = sum(int(np.prod(MIXED[i][0])) for i in trained), mean.shape[1]
        expect = [Reduced(ANYTHING, one, numel, size, trained, changed="") for one in direction(mean)]
        name = "one parameter frozen, one given twice, one without a gradient"
        yield Case(name, n, _reduce_and_scale, (ShardedGradient, MIXED, gradients, 0), expect)


@dataclass
class Repeated:
    """What a rank has after two calls of `reduced_gradient()`, a `zero_grad()` and a third one on 4 times as much."""

    wrong: str = sentence()


def _reduce_often(rank: int, world_size: int, sharded_class: Any, gradients: list[np.ndarray]) -> Repeated:
    """Two calls; after a barrier, zero_grad() and a third one."""
    p, wrong = nn.Parameter(torch.zeros(gradients[0].size)), ""
    sharded = sharded_class([p])
    p.grad = torch.tensor(gradients[rank])
    first = sharded.reduced_gradient()
    if sharded.reduced_gradient() is not first:
        wrong = "the second call does not return the first one's tensor"
    elif sharded.gradient is not first:
        wrong = "self.gradient is not the tensor that was returned"
    reduced = first.detach().clone()
    dist.barrier()
    sharded.zero_grad()  # what was reduced is void
    p.grad = 4 * torch.tensor(gradients[rank])
    fresh = sharded.reduced_gradient()
    if not wrong and not torch.allclose(fresh, 4 * reduced):
        wrong = "after zero_grad and four times the gradients, the reduced gradient is not four times the first one"
    return Repeated(wrong if reduced.abs().sum() > 0 else "the reduced gradient is all zeros")


def _not_once(rank: int, parts: list) -> str:
    count = len(parts[0])
    return "" if count == 1 else f"on rank {rank}, two calls of reduced_gradient() made {count} collectives, expected 1"


@check("08-ex2-gradient", points=0.25)
def gradient_is_reduced_once(ShardedGradient, *, rng):
    """A second call gives the first one's tensor and sends nothing; zero_grad forgets it."""
    for n in (2, 3):
        gradients = [eighths(rng, (7 * n,)) + OFFSET for _ in range(n)]
        args = (ShardedGradient, gradients)
        yield Case(f"{7 * n} parameters", n, _reduce_often, args, [Repeated("")] * n, parts=2, judge=_not_once)


@check("08-ex2-gradient", points=0.25)
def bf16_is_summed_in_float32(ShardedGradient, *, rng):
    """Gradients in bf16 are summed in float32, and the shard is float32."""
    for n in (2, 3):
        # Each fits into the 8 bits of bf16, and no sum of an odd and even ones above 256 does.
        odd, *even = 225 + 2 * rng.integers(0, 16, (1, 5)), *(32 + 2 * rng.integers(0, 16, (n - 1, 5)))
        gradients = [[np.asarray(g, np.float32).reshape(-1) / np.float32(8)] for g in (odd, *even)]
        mean = mean_shards(gradients)
        float32 = [close(row, dtype="float32", rtol=math.inf) for row in mean]  # its numbers are the direction's matter
        expect = [Reduced(*facts) for facts in zip(float32, direction(mean), strict=True)]
        args = (ShardedGradient, [((5,), "bfloat16", True)], gradients)
        yield Case("5 parameters in bfloat16", n, _reduce_and_scale, args, expect)
