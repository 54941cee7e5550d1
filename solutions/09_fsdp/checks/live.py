"""Stacks of equal units, and what is alive of them."""

from __future__ import annotations

import gc
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.expect import count_of_ranks, fail
from autograder.checking.instruments.memory import LiveBytes, Resident
from autograder.checking.stage import run_ranks

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


def stack(frozen: bool, pairs: bool, factors: bool = False) -> nn.Sequential:
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
        return (nbytes - self.before) / UNIT_BYTES


# ---- by whatever they are held ----

#: Units of which each stands out in the memory of a process.
FEW, LARGE = 12, 1024


def _drive_resident(rank: int, world_size: int, shard: Any, units: bool) -> tuple[float, float]:
    """How many units' bytes more the process has between forward and backward than before, and after backward."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(LARGE, LARGE, bias=False) for _ in range(FEW)])
    sharded = [shard(layer) for layer in model] if units else shard(model, list(model))
    with torch.no_grad():
        torch.zeros(1, LARGE) @ torch.zeros(LARGE, LARGE)  # prepares what later products need
    dist.all_reduce(torch.zeros(1))
    size = 4 * LARGE**2
    memory = Resident()
    loss = (model if units else sharded)(torch.randn(1, LARGE)).square().mean()
    between = memory.above(MORE * size) / size
    loss.backward()
    return between, memory.above((FEW / world_size + MORE) * size) / size


#: Units' bytes that a process may have more than what is counted: threads and libraries keep some.
MORE = 5


def expect_nothing_kept(subject: Any, units: bool) -> None:
    """No rank's process holds whole parameters between forward and backward, nor afterwards, in whatever form.

    units: `subject` takes a unit; else a module and its units.
    """
    world_size = 2
    case = f"{count_of_ranks(world_size)}, {FEW} units of S = {4 * LARGE**2 / 1e6:.0f} MB"
    for rank, (between, after) in enumerate(run_ranks(_drive_resident, world_size, (subject, units))):
        for more, most, when in (
            (between, MORE, "between forward and backward"),
            (after, FEW / world_size + MORE, "after backward"),
        ):
            if more > most:
                text = f"{when} the process of rank {rank} holds {more:.1f} S more than before, expected at most"
                fail(f"{text} {most:g} S: whole parameters are kept, in tensors or elsewhere", case, ["resident", when])
