"""Exercise 2: the mean gradient, a shard on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.cases import Case, close, complaint, fact
from autograder.checking.check import check
from autograder.checking.inputs import eighths

#: A mean of multiples of 1/8 up to 4, divided before the sum or after it.
ROUNDING = {"rtol": 1e-6, "atol": 1e-6}
#: Parameters as (shape, dtype, trainable). Together they have 15 trainable numbers.
MIXED = [((3, 2), "float32", True), ((4,), "float32", False), ((5,), "bfloat16", True), ((), "float64", True)]
MIXED += [((3,), "float32", True)]
KINDS = {
    "2 parameters of 7 numbers": [((2, 2), "float32", True), ((3,), "float32", True)],
    "1 number": [((1,), "float32", True)],
    "one parameter frozen, one given twice, one without a gradient, three dtypes": MIXED,
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
    numel: int = fact("self.numel")
    size: int = fact("self.size")
    params: list[int] = fact("self.params, as positions in the given list,")
    changed: str = complaint()


def _reduce(rank: int, world_size: int, sharded_class: Any, kinds: list, repeated: bool, gradients: list) -> Reduced:
    """Shards of the parameters' gradients, with None where `gradients[rank][i]` is."""
    params = [nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)), trained) for shape, dtype, trained in kinds]
    sharded = sharded_class(params[i] for i in [*range(len(params)), *([0] if repeated else [])])
    for p, g in zip(params, gradients[rank], strict=True):
        p.grad = None if g is None else torch.tensor(g).to(p.dtype)
    shard = sharded.reduced_gradient()
    same = all(_same(p.grad, g) for p, g in zip(params, gradients[rank], strict=True))
    changed = "" if same else "reduced_gradient() changed a parameter's .grad"
    return Reduced(shard.detach().clone(), sharded.numel, sharded.size, _places(sharded.params, params), changed)


def _same(grad: torch.Tensor | None, given: np.ndarray | None) -> bool:
    """Is `.grad` what was given? Eighths are exact in each dtype."""
    if grad is None or given is None:
        return grad is None and given is None
    return bool(np.array_equal(grad.double().numpy(), given.astype(np.float64)))


def _places(found: Any, params: list) -> list[int]:
    """Where in `params` each element of a list stands; [] if it is no list, or has something else."""
    places = [i for p in found for i, known in enumerate(params) if p is known] if isinstance(found, list) else []
    return places if isinstance(found, list) and len(places) == len(found) else []


@check("08-ex2-gradient", points=1.5)
def shards_are_those_of_the_mean_gradient(ShardedGradient, *, rng):  # noqa: N803
    """A shard is the rank's part of the mean gradient of all trainable parameters, in float32, for any N and sizes."""
    for n in (1, 2, 3, 4, 5):
        for name, kinds in KINDS.items():
            trained = [i for i, (_, _, trained) in enumerate(kinds) if trained]
            gradients = [[eighths(rng, shape) if trained else None for shape, _, trained in kinds] for _ in range(n)]
            if kinds is MIXED:
                for rank, mine in enumerate(gradients):
                    mine[0] = mine[0] if rank == 1 else None  # missing on all ranks but one
                    mine[3] = None  # on all
            mean = mean_shards([[np.zeros(kinds[i][0]) if g[i] is None else g[i] for i in trained] for g in gradients])
            numel, size = sum(int(np.prod(kinds[i][0])) for i in trained), mean.shape[1]
            yield Case(
                name,
                n,
                _reduce,
                (ShardedGradient, kinds, kinds is MIXED, gradients),
                expect=[Reduced(close(m, **ROUNDING, dtype="float32"), numel, size, trained, changed="") for m in mean],
                sends=[("reduce_scatter", 4 * mean.size, "the padded vector in float32")],
            )


@dataclass
class Repeated:
    """What a rank has after two calls of `reduced_gradient()`, a `zero_grad()` and a third one on 4 times as much."""

    wrong: str = complaint()
    fresh: Any = fact("the reduced gradient after zero_grad")
    first: Any = fact("the reduced gradient")


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
    return Repeated(wrong, sharded.reduced_gradient().clone(), reduced)


def _not_once(rank: int, parts: list) -> str:
    count = len(parts[0])
    return "" if count == 1 else f"on rank {rank}, two calls of reduced_gradient() made {count} collectives, expected 1"


@check("08-ex2-gradient", points=0.5)
def gradient_is_reduced_once(ShardedGradient, *, rng):  # noqa: N803
    """A second call gives the first one's tensor and sends nothing; zero_grad forgets it. bf16 is summed in float32."""
    for n in (2, 3):
        gradients = [eighths(rng, (7,)) for _ in range(n)]
        mean = mean_shards([[g] for g in gradients])
        expect = [Repeated("", close(4 * m, **ROUNDING), close(m, **ROUNDING)) for m in mean]
        args = (ShardedGradient, gradients)
        yield Case("7 parameters", n, _reduce_often, args, expect, parts=2, judge=_not_once)
    gradients = [[eighths(rng, (5,))] for _ in range(2)]
    mean = mean_shards(gradients)
    yield Case(
        "5 parameters, in bfloat16",
        2,
        _reduce,
        (ShardedGradient, [((5,), "bfloat16", True)], False, gradients),
        expect=[Reduced(close(m, **ROUNDING, dtype="float32"), 5, 3, [0], changed="") for m in mean],
        sends=[("reduce_scatter", 4 * mean.size, "the padded vector in float32")],
    )
