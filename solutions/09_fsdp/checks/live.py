"""Stacks of equal units, and what is alive of them."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autograder.checks.cases import ANYTHING, Case, at_most, close, fact
from autograder.checks.instruments.memory import LiveBytes, Resident

from .models import flat, padded

UNITS, WIDTH = 16, 64
UNIT_BYTES = 4 * WIDTH * WIDTH
#: The rank that counts. The others do the same work, and are faster without a count.
COUNTING = 1


class _Factor(nn.Linear):
    """A layer of two inputs: x, which may require a gradient, and a factor, which does not; or in the other order."""

    def __init__(self, number: int):
        super().__init__(WIDTH, WIDTH, bias=False)
        self.first = number % 2

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs[1 - self.first]) * inputs[self.first]


class _Factors(nn.Sequential):
    """Such layers, each called with both inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self:
            factor = torch.full((1,), 1.5)
            x = layer(x, factor) if layer.first else layer(factor, x)
        return x


#: For the cases of the memory: are all but two units frozen, are units pairs of layers, do they have two inputs?
STACKS = {
    "units": (False, False, False),
    "units of two layers,": (False, True, False),
    "units, 14 frozen": (True, False, False),
    "units of two inputs, 14 frozen": (True, False, True),
}


def stack(frozen: bool = False, pairs: bool = False, factors: bool = False) -> nn.Sequential:
    """Units of one layer, or of two: then the second one's weight begins in the middle of the flat vector.

    factors: of layers with two inputs, of which one requires no gradient.
    """

    def pair() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH // 2, WIDTH, bias=False))

    torch.manual_seed(0)
    if factors:
        model: nn.Sequential = _Factors(*[_Factor(number) for number in range(UNITS)])
    else:
        model = nn.Sequential(*[pair() if pairs else nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(UNITS)])
    if frozen:
        model[1:-1].requires_grad_(False)
    return model


class UnitMeter:
    """A `LiveBytes` on the rank that counts, and nothing on the others; all in units' bytes.

    allowed: how much more than before may be alive at the peak.
    """

    def __init__(self, rank: int, allowed: float = math.inf):
        gc.collect()
        self.live = LiveBytes() if rank == COUNTING else None
        self.before = self.live.now() if self.live else 0
        if self.live:
            self.live.limit = self.before + allowed * UNIT_BYTES

    def __enter__(self) -> None:
        if self.live:
            self.live.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.__exit__(*error)

    def above(self, allowed: float) -> float:
        """How much more than before is alive now; looked at again while it is more than allowed."""
        return self._units(self.live.settled(self.before + allowed * UNIT_BYTES)) if self.live else 0.0

    @property
    def peak(self) -> float:
        """How much more than before was alive after an operation, at the most."""
        return self._units(self.live.peak) if self.live else 0.0

    def _units(self, nbytes: int) -> float:
        return round((nbytes - self.before) / UNIT_BYTES, 2)


@dataclass
class Alive:
    """A step of a stack: what it computes, so that nobody passes who does nothing, and what is alive, in S.

    Which bounds are broken is evidence, and not by how much: a thread may hold one tensor for longer.
    """

    loss: Any = fact("the loss")
    direction: list[Any] = fact("the gradient of shard {}, scaled to length 1,")
    peak: float = fact("the S alive at the peak besides the shards and their gradients", seen=lambda s: s > 8)
    between: float = fact("the S alive between forward and backward besides the shards", seen=lambda s: s > 2)
    after: float = fact("the S alive after backward besides the shards and their gradients", seen=lambda s: s > 0.9)


def _drive_step(rank: int, world_size: int, unit_class: Any, kind: tuple, room: int, link: Any) -> Alive:
    # With neighbors every unit is asked for: how others are forgotten is the business of another check.
    model, x = stack(*kind), torch.randn(1, WIDTH, requires_grad=link is not None)
    trained = sum(p.requires_grad for p in model.parameters()) / (2 if kind[1] else 1) / world_size
    units = [unit_class(layer) for layer in model]
    if link:
        link(units)
    meter = UnitMeter(rank, trained + room)
    with meter:
        loss = model(x).square().mean()
        between = meter.above(2)
        loss.backward()
        number = loss.item()
        del loss
        after = meter.above(trained + 0.9)
    gradients = [torch.zeros(1) if unit.shard.grad is None else unit.shard.grad for unit in units]
    directions = [g / (g.norm() or 1) for g, unit in zip(gradients, units, strict=True) if unit.shard.numel()]
    return Alive(number, directions, meter.peak - trained, between, after - trained)


def freed(unit_class: Any, stacks: list[str], room: int, link: Any = None) -> Iterator[Case]:
    """On two ranks, stacks of units peak at no more than their gradients and `room` units more, and end without them.

    link: called with the units in the order of the forward.
    """
    n = 2
    for name in stacks:
        model, x = stack(*STACKS[name]), torch.randn(1, WIDTH)
        loss = model(x).square().mean()
        loss.backward()
        grads = [flat(p.grad for p in unit.parameters() if p.requires_grad) for unit in model]
        pieces = [padded(grad, n).reshape(n, -1) for grad in grads if len(grad)]
        expect = [
            Alive(
                close(loss.item(), rtol=1e-4) if rank == COUNTING else ANYTHING,
                [close(piece[rank] / (float((piece[rank] ** 2).sum()) ** 0.5 or 1), rtol=1e-3) for piece in pieces],
                at_most(room, slack=0.05),
                at_most(0, slack=2),
                at_most(0, slack=0.9),
            )
            for rank in range(n)
        ]
        args = (unit_class, STACKS[name], room, link)
        yield Case(f"{UNITS} {name} of S bytes", n, _drive_step, args, expect, shows=f"{UNITS} {name} of S bytes")


# ---- by whatever they are held ----

#: Units of which each stands out in the memory of a process.
FEW, LARGE = 12, 1024
#: Units' bytes that a process may have more than what is counted: threads and libraries keep some.
MORE = 5
KEPT = "whole parameters are kept, in tensors or elsewhere"


@dataclass
class Kept:
    """How many units' bytes more a process has than before."""

    between: float = fact("the S that its process has more between forward and backward", KEPT, lambda s: s > MORE)
    after: float = fact("the S that its process has more after backward, gradients left out,", KEPT, lambda s: s > MORE)


def _drive_resident(rank: int, world_size: int, unit_class: Any) -> Kept:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(LARGE, LARGE, bias=False) for _ in range(FEW)])
    sharded = [unit_class(layer) for layer in model]
    with torch.no_grad():
        torch.zeros(1, LARGE) @ torch.zeros(LARGE, LARGE)  # prepares what later products need
    dist.all_reduce(torch.zeros(1))
    size, gradients = 4 * LARGE**2, len(sharded) / world_size
    memory = Resident()
    loss = model(torch.randn(1, LARGE)).square().mean()
    between = memory.above(MORE * size) / size
    loss.backward()
    return Kept(round(between, 1), round(memory.above((gradients + MORE) * size) / size - gradients, 1))


def nothing_kept(unit_class: Any) -> Case:
    """No rank's process holds whole parameters between forward and backward, nor afterwards, in whatever form."""
    expect = [Kept(at_most(MORE), at_most(MORE))] * 2
    name = f"{FEW} units of S = {4 * LARGE**2 / 1e6:.0f} MB"
    return Case(name, 2, _drive_resident, (unit_class,), expect, parts=0)
