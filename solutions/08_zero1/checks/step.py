"""Exercises 3 and 4: a sharded step, and clipping by the norm of the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checks import inputs
from autograder.checks.cases import Case, at_most, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.instruments.memory import Resident

from .gradient import mean_shards
from .training import OPTIMIZERS, Run, make_run, mixed_run, steps_of, usual_runs

STEP = "08-ex3-step"
WORLD_SIZES = (1, 2, 3, 4, 5)
#: bf16 has 8 significant bits.
BF16_ERROR = 2.0**-8
#: Tensors with a dimension that an optimizer keeps for each parameter, the master copy among them.
KEPT = {"SGD": 1, "SGD with momentum": 2, "Adam": 3, "AdamW": 3}


@check(STEP, points=1.5)
def steps_follow_the_unsharded_optimizer(ShardedOptimizer, *, rng):
    """After each step the parameters on every rank are the unsharded optimizer's."""
    for n in WORLD_SIZES:
        for run in usual_runs(rng, n):
            yield steps_of(ShardedOptimizer, run)


@check(STEP, points=0.25)
def a_step_is_two_collectives(ShardedOptimizer, *, rng):
    """A step sends one reduce-scatter of the padded float32 vector and one all-gather of the masters, nothing else."""
    for n in (2, 3):
        for name in ("SGD", "AdamW"):
            yield steps_of(ShardedOptimizer, make_run(rng, n, name, [(3, 4), (5,)]), sends=True, parameters=False)


@check(STEP, points=0.25)
def only_trained_parameters_are_stepped(ShardedOptimizer, *, rng):
    """A frozen parameter stays, one given twice is stepped once, one without a gradient gets the step of zeros."""
    for n in (2, 3):
        yield steps_of(ShardedOptimizer, mixed_run(rng, n))


@check(STEP, points=0.5)
def a_changed_rate_holds_from_the_next_step(ShardedOptimizer, *, rng):
    """A learning rate that was changed through param_groups[0]["lr"] holds from the next step on."""
    also = ", the learning rate changed before steps 2 and 4"
    for n in (1, 3):
        for name in ("SGD", "AdamW"):
            run = make_run(rng, n, name, [(3, 2), (5,)], also=also, rates={1: 0.3, 3: 0.002})
            yield steps_of(ShardedOptimizer, run)


@check(STEP, points=0.25)
def state_bytes_are_counted(ShardedOptimizer, *, rng):
    """state_bytes() is the bytes of the master and of the optimizer's tensors with a dimension for it."""
    for n in (3, 4):
        for name in OPTIMIZERS:
            run = make_run(rng, n, name, [(7, int(rng.integers(2, 9))), (2,)])
            yield steps_of(ShardedOptimizer, run, parameters=False, said=4 * KEPT[name] * run.size)


@check(STEP, points=0.5)
def state_is_a_shard(ShardedOptimizer, *, rng):
    """self.master starts as the shard, then zeros; after a step, only it and the optimizer's state for it are held."""
    for n in (3, 4, 1):
        for name in OPTIMIZERS:
            run = make_run(rng, n, name, [(7, 5), (2,)])
            masters = [close(m, dtype="float32") for m in mean_shards([run.parameters] * n)]
            nbytes = 4 * KEPT[name] * run.size
            # With one rank a master may lie in a parameter's own memory; then the object holds less.
            yield steps_of(ShardedOptimizer, run, parameters=False, masters=masters, left="", held=at_most(nbytes))
    expect = [Grown(at_most(3 * LARGE**2, slack=2 * LARGE**2))] * 4
    yield Case(f"a matrix of {LARGE} × {LARGE}", 4, _grow, (ShardedOptimizer, inputs.seed(rng)), expect)


#: Rows and columns of a matrix that stands out in the memory of a process.
LARGE = 2048


@dataclass
class Grown:
    """How much more a rank's process holds after a step than before the optimizer was made."""

    nbytes: int = fact(
        "the number of bytes that a step of Adam leaves in the process",
        "so many have a shard and its state: something is kept whole",
        seen=lambda nbytes: nbytes > 5 * LARGE**2,
    )


def _grow(rank: int, world_size: int, optimizer_class: Any, seed: int) -> Grown:
    generator = torch.Generator().manual_seed(seed)
    p = nn.Parameter(torch.rand(LARGE, LARGE, generator=generator))
    p.grad = torch.rand(LARGE, LARGE, generator=generator)
    dist.all_reduce(torch.zeros(1))  # a first collective prepares what later ones need
    memory = Resident()
    optimizer = optimizer_class([p])
    optimizer.step()
    return Grown(memory.above(5 * LARGE**2))


@check(STEP, points=0.5)
def masters_keep_what_bf16_loses(ShardedOptimizer, *, rng):
    """After every step bf16 parameters are the float32 masters, rounded, so that small updates add up."""
    tiny, ones = np.full(5, -(2.0**-10) / 0.1, np.float32), np.ones(5, np.float32)
    for n in (1, 3):
        for name in ("SGD with momentum", "AdamW"):
            run = make_run(rng, n, name, [(3, 4), (5,), (3,)], dtypes=("bfloat16", "float32", "bfloat16"))
            yield steps_of(ShardedOptimizer, run, rtol=BF16_ERROR)
        run = Run("128 updates of 2^-10 to 1.0 in bf16", "SGD", [ones], [[[tiny]] * n] * 128, dtypes=("bfloat16",))
        yield steps_of(ShardedOptimizer, run, rtol=BF16_ERROR)


@check(STEP, points=0.25)
def gradients_stay_as_they_were(ShardedOptimizer, *, rng):
    """After step() each p.grad is as it was before: the same numbers, or None."""
    for n in (1, 3):
        for run in (make_run(rng, n, "Adam", [(3,)]), mixed_run(rng, n)):
            yield steps_of(ShardedOptimizer, run, touched="", parameters=False)


def _clipped(rng: np.random.Generator, n: int, bounds: list[float]) -> list[Run]:
    """Runs with one bound per step."""
    return [
        make_run(rng, n, optimizer, shapes, also=", clipped", clip=bounds)
        for shapes in ([(3, 4), (5,)], [(2,)], [(5,), (2, 3), (1,)])
        for optimizer in ("SGD", "Adam")
    ]


@check("08-ex4-clip", points=1)
def the_norm_is_the_whole_gradients(ClippingOptimizer, *, rng):
    """Without a bound, every rank gets the norm of the whole mean gradient."""
    for n in WORLD_SIZES:
        for run in _clipped(rng, n, [math.inf] * 4):
            norms = [close(np.linalg.norm(mean_shards(gradients)), rtol=1e-5) for gradients in run.gradients]
            yield steps_of(ClippingOptimizer, run, norm=norms, parameters=False)


@dataclass
class Clipped:
    """Two steps from the same place: without a bound, and with one that is a multiple of the norm returned then."""

    norm: float = fact("the norm returned with a bound, divided by that without,")
    scale: float = fact("the length of the step with a bound, divided by what the norms allow,")
    bent: str = sentence()


def _clip(rank: int, world_size: int, optimizer_class: Any, gradients: list[np.ndarray], factor: float) -> Clipped:
    """factor: of the norm, the bound. SGD at rate 1 steps by the gradient."""
    norms: list[float] = []
    steps = []
    for _ in range(2):
        p = nn.Parameter(torch.zeros(len(gradients[rank])))
        optimizer = optimizer_class([p], torch.optim.SGD, lr=1.0)
        p.grad = torch.tensor(gradients[rank])
        bound = factor * norms[0] if norms else math.inf
        norms.append(float(optimizer.clip_grad_norm_(bound)))
        optimizer.step()
        steps.append(p.detach().double())
    scale = float(steps[1] @ steps[0] / (steps[0] @ steps[0]))
    off = float((steps[1] - scale * steps[0]).norm() / steps[0].norm())
    right = min(1.0, bound / (norms[0] + 1e-6))
    bent = "" if off < 1e-4 else "clipping changed the direction of the step"
    return Clipped(norms[1] / norms[0], scale / right, bent)


def _scaled(optimizer_class: Any, rng: np.random.Generator, factors: tuple[float, ...], size: float) -> Iterator[Case]:
    """Cases with gradients of about this size."""
    for n, count in ((1, 5), (2, 7), (3, 8)):
        gradients = [np.float32(size) * rng.integers(1, 33, count).astype(np.float32) for _ in range(n)]
        for factor in factors:
            name = f"{count} parameters, a bound of {factor} times the norm, gradients of about {16 * size:.0e}"
            expect = [Clipped(close(1.0, 1e-3), close(1.0, 1e-3), "")] * n
            yield Case(name, n, _clip, (optimizer_class, gradients, factor), expect)


@check("08-ex4-clip", points=0.5)
def longer_gradients_are_scaled(ClippingOptimizer, *, rng):
    """Only a gradient that is longer than the bound is scaled, to it; the norm returned is the one before."""
    yield from _scaled(ClippingOptimizer, rng, (0.3, 1.7), 1 / 8)


@check("08-ex4-clip", points=0.25)
def the_scale_has_torchs_small_number(ClippingOptimizer, *, rng):
    """The factor is max_norm / (norm + 1e-6), which matters for a tiny gradient."""
    yield from _scaled(ClippingOptimizer, rng, (0.4,), 2.0**-25)


@check("08-ex4-clip", points=0.25)
def clipping_sends_one_number(ClippingOptimizer, *, rng):
    """Clipping sends only one number more than the step."""
    for n in (2, 3):
        for run in _clipped(rng, n, [1.0, math.inf, 0.25, 1e4]):
            yield steps_of(ClippingOptimizer, run, sends=True, parameters=False)
