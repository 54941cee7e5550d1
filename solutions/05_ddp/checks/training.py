"""Exercise 5: training with the wrapper, against one process and against torch's wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import digits_that_differ, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    RTOL,
    WORLD_SIZES,
    arrays_of,
    case_of,
    expect_same,
)


class _Zoo(nn.Module):
    """A small model with special cases: layers tied, frozen and reused, a single number, a buffer, another order."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.head = nn.Linear(6, 3)  # registered first, used last
        self.embed = nn.Linear(4, 6)
        self.twice = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.rand(()) + 0.5)
        self.tied = nn.Linear(6, 4, bias=False)
        self.tied.weight = nn.Parameter(torch.randn(4, 6) / 2)
        self.back = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(6, 4, bias=False)
        self.again.weight = self.tied.weight
        self.out = nn.Linear(4, 6)
        self.register_buffer("shift", torch.rand(6) - 0.5)
        self.frozen.requires_grad_(False)
        with torch.no_grad():  # LayerNorm starts with ones and zeros everywhere
            for p in self.norm.parameters():
                p += 0.3 * torch.randn(6)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 4) → (B, 3)"""
        h = torch.tanh(self.embed(x) + self.shift)
        h = self.twice(torch.tanh(self.twice(h)))
        h = self.norm(h) + self.frozen(h)
        h = self.tied(h) * self.scale + self.again(torch.tanh(h))
        return self.head(torch.tanh(self.out(self.back(h))))


STEPS, ROWS = 4, 5  # rows a rank
#: Optimizer, bucket_bytes (None: the default), and whether zero_grad leaves zeros instead of None.
_OPTIMIZERS: dict[str, tuple[Callable, int | None, bool]] = {
    "SGD": (lambda params: torch.optim.SGD(params, lr=0.1), 1, False),
    "momentum": (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), 400, True),
    "Adam": (lambda params: torch.optim.Adam(params, lr=0.01), None, False),
}


def _batch(seed: int, step: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step, for all ranks together."""
    g = torch.Generator().manual_seed(seed + step)
    rows = ROWS * world_size
    return (
        torch.randn(rows, 4, generator=g, dtype=torch.float64),
        torch.randn(rows, 3, generator=g, dtype=torch.float64),
    )


def _train(model: nn.Module, name: str, seed: int, world_size: int, rank: int | None, finish: Callable) -> list[dict]:
    """Loss, gradients, parameters and optimizer state after each of four steps. rank None: one process, whole batch."""
    make, _, zeros = _OPTIMIZERS[name]
    inner = getattr(model, "module", model)
    optimizer = make(model.parameters())
    history = []
    for step in range(STEPS):
        x, y = _batch(seed, step, world_size)
        if rank is not None:
            x, y = x[rank::world_size], y[rank::world_size]
        optimizer.zero_grad(set_to_none=not zeros)
        loss = (model(x) - y).square().mean()
        loss.backward()
        finish()
        grads = arrays_of(p.grad for p in inner.parameters())
        optimizer.step()
        state = optimizer.state
        slots = [state[p][key] for p in inner.parameters() if p in state for key in sorted(state[p])]
        slots = arrays_of(torch.as_tensor(slot) for slot in slots if slot is not None)
        params = arrays_of([*inner.parameters(), *inner.buffers()])
        history.append({"loss": loss.item(), "gradient": grads, "parameter": params, "optimizer state": slots})
    return history


def _drive_training(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: for each optimizer, the student's wrapper and torch's on a group of its own."""
    group = dist.new_group()
    results = {}
    for name, (_, bucket_bytes, _) in _OPTIMIZERS.items():
        ours = ddp_class(_Zoo(seed + rank), **({} if bucket_bytes is None else {"bucket_bytes": bucket_bytes}))
        mine = _train(ours, name, seed, world_size, rank, ours.finish_gradient_sync)
        theirs = nn.parallel.DistributedDataParallel(_Zoo(seed + rank), process_group=group)
        results[name] = (mine, _train(theirs, name, seed, world_size, rank, lambda: None))
    return results


@check("05-ex5-ddp", points=1.25)
def ddp_trains_like_one_process_and_like_torch(DistributedDataParallel, *, rng):
    """At each step losses, gradients, parameters and optimizer state are those of one process and of torch's DDP."""
    for world_size in WORLD_SIZES:
        seed = inputs.seed(rng)
        results = run_ranks(_drive_training, world_size, (DistributedDataParallel, seed))
        for name in _OPTIMIZERS:
            one = _train(_Zoo(seed), name, seed, world_size, None, lambda: None)
            for step in range(STEPS):
                case = case_of(world_size, name, f"step {step + 1}")
                mine = [result[name][0][step] for result in results]
                _expect_loss(case, [seen["loss"] for seen in mine], one[step]["loss"])
                for what in ("gradient", "parameter", "optimizer state"):
                    expect_same(case, what, [seen[what] for seen in mine], one[step][what], "one process has")
                    theirs = results[0][name][1][step][what]
                    expect_same(case, what, [seen[what] for seen in mine], theirs, "torch's DDP has")


def _expect_loss(case: str, losses: list[float], expected: float) -> None:
    """The mean of the ranks' losses is the loss of the whole batch."""
    mean = float(np.mean(losses))
    if not abs(mean - expected) <= RTOL * abs(expected):
        one, other = digits_that_differ(mean, expected)
        text = f"the ranks' losses {losses} have the mean {one}, but the loss of the whole batch is {other}"
        fail(f"{text}: the ranks' parameters or buffers are not those of one process", case, [*losses])
