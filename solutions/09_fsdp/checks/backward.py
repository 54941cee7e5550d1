"""Exercise 3: the backward of sharded units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autograder.checks import inputs
from autograder.checks.cases import Case, at_most, close, fact
from autograder.checks.check import MEMORY, check

from .live import WIDTH, UnitMeter, freed, nothing_kept
from .models import FEW, FROZEN, LAYERS, ONE_UNIT, TIED, TOKENS, as_numpy, batch, freeze
from .steps import Training, only_what_is_needed, reduced_in_float32, steps_of

BACKWARD = "09-ex3-backward"
#: For each number of ranks the models: all where most goes wrong, some elsewhere.
PLAN = {3: (LAYERS, FROZEN, TIED, FEW, ONE_UNIT, TOKENS), 1: (TIED,), 5: (FEW,), 2: (LAYERS,)}


@check(BACKWARD, points=2)
def shards_get_the_gradient(TrainableUnit, *, rng):
    """After backward() each shard has its piece of all ranks' gradients, up to a common factor."""
    for n, models in PLAN.items():
        for model in models:
            yield steps_of(TrainableUnit, Training(model, inputs.seed(rng), steps=1), n, "directions")


@check(BACKWARD, points=0.25)
def gradients_are_means(TrainableUnit, *, rng):
    """The gradients are those of the mean over the ranks."""
    for n in (2, 3):
        yield steps_of(TrainableUnit, Training(LAYERS, inputs.seed(rng), steps=1), n, "gradients")


@check(BACKWARD, points=0.25)
def a_second_backward_adds(TrainableUnit, *, rng):
    """Two backwards over halves of a batch give the gradient of the batch, up to a common factor."""
    for n, model in ((3, TIED), (2, FROZEN)):
        yield steps_of(TrainableUnit, Training(model, inputs.seed(rng), steps=1, halves=True), n, "directions")


@check(BACKWARD, points=0.5)
def bf16_is_added_up_in_float32(TrainableUnit, *, rng):
    """Units that compute in bf16 have float32 gradients, which are cast before they are added up."""
    for n, model in ((3, LAYERS), (3, TIED), (2, TOKENS)):
        training = Training(model, inputs.seed(rng), steps=1, dtype="bfloat16")
        yield steps_of(TrainableUnit, training, n, "directions", wire=reduced_in_float32)


@check(BACKWARD, points=0.25)
def two_gathers_and_a_reduction(TrainableUnit, *, rng):
    """A forward and backward makes at most two all-gathers and one reduce-scatter per unit."""
    for n, model in ((3, ONE_UNIT), (2, TIED), (2, FROZEN)):
        training = Training(model, inputs.seed(rng), steps=1)
        yield steps_of(TrainableUnit, training, n, "directions", wire=only_what_is_needed)


@check(BACKWARD, points=1.25, fixed=MEMORY)
def trained_units_are_whole_while_they_compute(TrainableUnit):
    """Nothing whole is alive between forward and backward, nor afterwards, and at most five units' bytes meanwhile."""
    yield from freed(TrainableUnit, ["units", "units of two layers,"], room=5)
    yield nothing_kept(TrainableUnit)


@check(BACKWARD, points=0.25, fixed=MEMORY)
def frozen_units_are_freed_too(TrainableUnit):
    """So it is with frozen units, whichever of their inputs requires a gradient, and where these come from."""
    yield from freed(TrainableUnit, ["units, 14 frozen", "units of two inputs, 14 frozen"], room=5)
    torch.manual_seed(0)
    module, inputs = _Early(), _leaves()
    module(*inputs).sum().backward()
    right = Left([close(as_numpy(x.grad), rtol=1e-4) for x in inputs], at_most(0, slack=0.9))
    name = "a frozen unit q(a + tanh(p(b))), where nothing computes a and b"
    yield Case(name, 2, _drive_left, (TrainableUnit,), [right] * 2, shows=name)


class _Early(nn.Module):
    """q(a + tanh(p(b))), frozen: a's gradient is complete while p is still to be computed."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = (nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False) for _ in range(2))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.q(a + self.p(b).tanh())


def _leaves() -> list[torch.Tensor]:
    return [torch.full((1, WIDTH), value, requires_grad=True) for value in (0.25, 0.5)]


@dataclass
class Left:
    """What a backward of one frozen unit leaves."""

    gradients: list[Any] = fact("the gradient of input {}")
    after: float = fact("the S alive after backward besides the shards", seen=lambda s: s > 0.9)


def _drive_left(rank: int, world_size: int, unit_class: Any) -> Left:
    torch.manual_seed(0)
    module, inputs = _Early(), _leaves()
    unit_class(module)
    meter = UnitMeter(rank)
    with meter:
        module(*inputs).sum().backward()
        after = meter.above(0.9)
    return Left([x.grad for x in inputs], after)


@dataclass
class Noisy:
    """What a rank has after a forward and backward of layers that notice how often they run."""

    directions: list[Any] = fact("the gradient of unit {}'s shard, scaled to length 1,")
    buffers: list[Any] = fact("BatchNorm buffer {}")
    input: Any = fact("the gradient of the input of a frozen unit")


def _noisy(seed: int) -> tuple[nn.Module, list[nn.Module]]:
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5))
    m = nn.Sequential(first, nn.Dropout(0.3), nn.Linear(5, 3))
    return m, [first, m[2]]


def _two_inputs(seed: int, rank: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return freeze(nn.Bilinear(4, 4, 3), "all"), batch("", seed, 0, rank)[0].requires_grad_()


def _drive_noisy(rank: int, world_size: int, unit_class: Any, seed: int) -> Noisy:
    """Without a unit class: the plain module's. The ranks have the same batch and the same dropout."""
    module, parts = _noisy(seed)
    units = [unit_class(unit) if unit_class else unit for unit in parts]
    x, y = batch("", seed, 0, 0, count=8)
    torch.manual_seed(seed)
    (module(x) - y).square().mean().backward()
    frozen, leaf = _two_inputs(seed, rank)
    if unit_class:
        unit_class(frozen)
    frozen(leaf, leaf * 2).square().sum().backward()
    buffers = [as_numpy(b) for b in module.buffers()]
    if unit_class:
        return Noisy([g / (g.norm() or 1) for g in (unit.shard.grad for unit in units)], buffers, leaf.grad)
    whole = [torch.cat([p.grad.reshape(-1) for p in unit.parameters()]) for unit in units]
    pieces = [nn.functional.pad(g, (0, -len(g) % world_size)).view(world_size, -1)[rank] for g in whole]
    return Noisy([g / (g.norm() or 1) for g in pieces], buffers, leaf.grad)


def _noisy_cases(unit_class: Any, seed: int, n: int) -> Iterator[Case]:
    expect = []
    for rank in range(n):
        want = _drive_noisy(rank, n, None, seed)
        numbers = [
            [close(as_numpy(torch.as_tensor(one)), 1e-5, 1e-6) for one in of] for of in (want.directions, want.buffers)
        ]
        expect.append(Noisy(*numbers, close(as_numpy(want.input), 1e-5)))
    yield Case("dropout and BatchNorm, and a frozen unit of two inputs", n, _drive_noisy, (unit_class, seed), expect)


@check(BACKWARD, points=0.25)
def one_forward_is_seen(TrainableUnit, *, rng):
    """Dropout and BatchNorm see one forward and its own backward, and inputs get their own rank's gradient."""
    for n in (2, 3):
        yield from _noisy_cases(TrainableUnit, inputs.seed(rng), n)
