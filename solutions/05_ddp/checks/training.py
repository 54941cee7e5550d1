"""Exercise 5: training with the wrapper, against one process and against torch's wrapper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autograder.checks import inputs
from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check

from .common import RTOL, grads_of


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


@dataclass
class Trained:
    """What a rank has after a step."""

    when: str
    loss: Any = fact("the mean of the ranks' losses", "it is the whole batch's if parameters and buffers are all equal")
    gradients: list = fact("gradient {}")
    parameters: list = fact("parameter or buffer {}")
    state: list = fact("tensor {} of the optimizer's state")
    other: str = sentence()


def _train(
    model: nn.Module, name: str, seed: int, n: int, ranks: list[int], finish: Callable = lambda: None, group: Any = None
) -> list[Trained]:
    """Steps on the parts of these of n ranks. group: of the ranks whose mean loss is taken, if there is one."""
    make, _, zeros = _OPTIMIZERS[name]
    inner = getattr(model, "module", model)
    optimizer = make(model.parameters())
    history = []
    for step in range(STEPS):
        g = torch.Generator().manual_seed(seed + step)
        x, y = (torch.randn(n, ROWS, width, generator=g, dtype=torch.float64)[ranks].flatten(0, 1) for width in (4, 3))
        optimizer.zero_grad(set_to_none=not zeros)
        loss = (model(x) - y).square().mean()
        loss.backward()
        finish()
        gradients = grads_of(inner.parameters())
        optimizer.step()
        mean = loss.detach().clone()
        if group:
            dist.all_reduce(mean, group=group)
            mean /= n
        parameters = [tensor.detach().clone() for tensor in (*inner.parameters(), *inner.buffers())]
        of_each = [optimizer.state[p] for p in inner.parameters() if p in optimizer.state]
        state = [torch.as_tensor(one[key]).clone() for one in of_each for key in sorted(one) if one[key] is not None]
        history.append(Trained(f"after step {step + 1}", mean, gradients, parameters, state))
    return history


def _numbers(one: Trained) -> torch.Tensor:
    """All of it as one vector."""
    return torch.cat([t.flatten().double() for t in (one.loss, *one.gradients, *one.parameters, *one.state)])


def _train_both(rank: int, world_size: int, ddp_class: Any, name: str, seed: int) -> list[Trained]:
    """The student's wrapper, and torch's on a group of its own."""
    group, (_, bucket_bytes, _) = dist.new_group(), _OPTIMIZERS[name]
    ours = ddp_class(_Zoo(seed + rank), **({} if bucket_bytes is None else {"bucket_bytes": bucket_bytes}))
    theirs = nn.parallel.DistributedDataParallel(_Zoo(seed + rank), process_group=group)
    history = _train(ours, name, seed, world_size, [rank], ours.finish_gradient_sync, group)
    for one, right in zip(history, _train(theirs, name, seed, world_size, [rank], group=group), strict=True):
        mine, its = _numbers(one), _numbers(right)
        same = mine.shape == its.shape and torch.allclose(mine, its, RTOL, 1e-12)
        one.other = "" if same else f"torch's DDP has other losses, gradients, parameters or optimizer state {one.when}"
    return history


def _near(tensors: list[torch.Tensor]) -> list[close]:
    return [close(t.numpy(), RTOL, RTOL * 1e-3, str(t.dtype).removeprefix("torch.")) for t in tensors]


@check("05-ex5-ddp", points=1.25)
def ddp_trains_like_one_process_and_like_torch(DistributedDataParallel, *, rng):
    """At each step losses, gradients, parameters and optimizer state are those of one process and of torch's DDP."""
    for n in (1, 2, 3, 4):
        seed = inputs.seed(rng)
        for name in _OPTIMIZERS:
            expect = [
                Trained("", *_near([one.loss]), *map(_near, (one.gradients, one.parameters, one.state)), "")
                for one in _train(_Zoo(seed), name, seed, n, list(range(n)))
            ]
            yield Case(name, n, _train_both, (DistributedDataParallel, name, seed), [expect] * n)
