"""Exercise 2: the mean gradient, a shard on each rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import ceil_div, count_of_ranks, expect_close, expect_equal, fail
from autograder.checking.inputs import eighths
from autograder.checking.stage import run_ranks

#: A mean of multiples of 1/8 up to 4, divided before the sum or after it.
ROUNDING = 1e-6
#: Parameters as (shape, dtype, trainable). Together they have 15 trainable numbers.
MIXED = [((3, 2), "float32", True), ((4,), "float32", False), ((5,), "bfloat16", True), ((), "float64", True)]
MIXED += [((3,), "float32", True)]


def _reduce(rank: int, world_size: int, sharded_class: Any, kinds: list, repeated: bool, gradients: list) -> dict:
    """Shards of the parameters' gradients, with None where `gradients[rank][i]` is."""
    params = [nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)), trained) for shape, dtype, trained in kinds]
    given = (params[i] for i in [*range(len(params)), *([0] if repeated else [])])
    sharded = sharded_class(given)
    for p, g in zip(params, gradients[rank], strict=True):
        p.grad = None if g is None else torch.tensor(g).to(p.dtype)
    dist.barrier()
    shard = sharded.reduced_gradient()
    dist.barrier()
    left = [_same(p.grad, g) for p, g in zip(params, gradients[rank], strict=True)]
    facts = {"numel": sharded.numel, "size": sharded.size, "params": _places(sharded.params, params)}
    return {"shard": shard.detach().clone(), "left": all(left), **facts}


def _same(grad: torch.Tensor | None, given: np.ndarray | None) -> bool:
    """Is `.grad` what was given? Eighths are exact in each dtype."""
    if grad is None or given is None:
        return grad is None and given is None
    return bool(np.array_equal(grad.double().numpy(), given.astype(np.float64)))


def _places(found: Any, params: list) -> list[int]:
    """Where in `params` each element of a list stands; [] if it is no list, or has something else."""
    places = [i for p in found for i, known in enumerate(params) if p is known] if isinstance(found, list) else []
    return places if isinstance(found, list) and len(places) == len(found) else []


@check("08-ex2-gradient")
def shards_are_those_of_the_mean_gradient(ShardedGradient, *, rng):  # noqa: N803
    """A shard is the rank's part of the mean gradient of all trainable parameters, in float32, for any N and sizes."""
    for world_size in (1, 2, 3, 4, 5):
        cases = [("2 parameters of 7 numbers", [((2, 2), "float32", True), ((3,), "float32", True)], False)]
        cases += [("1 number", [((1,), "float32", True)], False)]
        cases += [("one parameter frozen, one given twice, one without a gradient, three dtypes", MIXED, True)]
        for name, kinds, repeated in cases:
            gradients = [[_gradient(rng, shape, trained) for shape, _, trained in kinds] for _ in range(world_size)]
            if repeated:
                for rank in range(world_size):
                    if rank != 1:
                        gradients[rank][0] = None  # on all ranks but one
                    gradients[rank][3] = None  # on all
            _expect_shards(ShardedGradient, f"{count_of_ranks(world_size)}, {name}", kinds, repeated, gradients)


def _gradient(rng: np.random.Generator, shape: tuple[int, ...], trained: bool) -> np.ndarray | None:
    return eighths(rng, shape) if trained else None


def _expect_shards(subject: Any, case: str, kinds: list, repeated: bool, gradients: list) -> None:
    world_size = len(gradients)
    results = run_ranks(_reduce, world_size, (subject, kinds, repeated, gradients))
    trained = [i for i, (_, _, trained) in enumerate(kinds) if trained]
    flat = [
        [np.zeros(kinds[i][0]) if mine[i] is None else mine[i] for i in trained] for mine in gradients
    ]  # float32 numbers with three bits after the point: their sums are exact
    mean = np.mean([np.concatenate([np.reshape(g, -1) for g in mine]) for mine in flat], axis=0, dtype=np.float64)
    size = ceil_div(len(mean), world_size)
    padded = np.concatenate([mean, np.zeros(size * world_size - len(mean))]).reshape(world_size, size)
    for rank, got in enumerate(results):
        where, shards = f"{case}, rank {rank}", [mine["shard"].double().numpy() for mine in results]
        expect_close(
            where, got["shard"], padded[rank], what="the reduced gradient", rtol=1e-6, atol=ROUNDING, evidence=shards
        )
        expect_equal(where, str(got["shard"].dtype), "torch.float32", what="the dtype of the reduced gradient")
        for name, want in (("numel", len(mean)), ("size", size), ("params", trained)):
            what = "self.params, as positions in the given list," if name == "params" else f"self.{name}"
            expect_equal(where, got[name], want, what=what)
        if not got["left"]:
            fail("reduced_gradient() changed a parameter's .grad", where, "changed")
        calls = [(m.call, m.bytes) for m in results.ledger.of(rank).between_barriers()[1]]
        wanted = [4 * size * world_size] * (world_size > 1)
        sent = [nbytes for call, nbytes in calls if call.startswith("reduce_scatter")]
        if len(sent) != len(calls) or sent[: len(wanted)] != wanted or len(sent) > 1:
            text = f"the calls are {calls}, expected one reduce_scatter of the {4 * size * world_size} bytes"
            fail(f"{text} of the padded vector", where, calls)


def _reduce_often(rank: int, world_size: int, sharded_class: Any, gradients: list[np.ndarray]) -> dict:
    p = nn.Parameter(torch.zeros(gradients[0].size))
    sharded = sharded_class([p])
    p.grad = torch.tensor(gradients[rank])
    dist.barrier()
    first = sharded.reduced_gradient()
    again = sharded.reduced_gradient()
    dist.barrier()
    kept, reduced = sharded.gradient is first, first.detach().clone()
    sharded.zero_grad()  # what was reduced is void
    p.grad = 4 * torch.tensor(gradients[rank])
    return {"same": again is first, "kept": kept, "first": reduced, "fresh": sharded.reduced_gradient().clone()}


@check("08-ex2-gradient")
def gradient_is_reduced_once(ShardedGradient, *, rng):  # noqa: N803
    """A second call returns the same tensor, which self.gradient keeps, and sends nothing; zero_grad forgets it."""
    for world_size in (2, 3):
        gradients = [eighths(rng, (7,)) for _ in range(world_size)]
        results = run_ranks(_reduce_often, world_size, (ShardedGradient, gradients))
        size = ceil_div(7, world_size)
        padded = np.zeros(size * world_size)
        padded[:7] = np.mean(gradients, axis=0, dtype=np.float64)
        for rank, got in enumerate(results):
            case = f"{count_of_ranks(world_size)}, 7 parameters, rank {rank}"
            expect_equal(case, got["same"], True, what="whether the second call returns the first one's tensor")
            expect_equal(case, got["kept"], True, what="whether self.gradient is the tensor that was returned")
            want = 4 * padded[rank * size : (rank + 1) * size]
            expect_close(
                case, got["fresh"], want, what="the reduced gradient after zero_grad", rtol=1e-6, atol=ROUNDING
            )
            between = [m.call for m in results.ledger.of(rank).between_barriers()[1]]
            if len(between) != 1:
                fail(f"two calls of reduced_gradient() made {len(between)} collectives, expected 1", case, between)
            expect_close(case, got["first"], want / 4, what="the reduced gradient", rtol=1e-6, atol=ROUNDING)
