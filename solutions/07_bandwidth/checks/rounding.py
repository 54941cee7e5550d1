"""Exercise 4: which of four ways of adding rounds where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking import inputs
from autograder.checking.cases import Case, fact
from autograder.checking.check import check

ROUNDS = "07-ex4-rounds"
NAMES = ("nowhere", "in every hop", "once", "at random")


@dataclass
class Named:
    """What a rank says of a sum."""

    name: Any = fact("what where_it_rounds returns")


def _once(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16()


def _at_random(x: torch.Tensor) -> torch.Tensor:
    """To one of the two neighbors in bf16, to the nearer one more often."""
    down = (x.view(torch.int32) & -(2**16)).view(torch.float32)
    up = ((x.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
    return torch.where(torch.rand(x.shape) < (x - down) / (up - down), up, down).bfloat16()


def _sum(x: torch.Tensor, name: str, first: int) -> torch.Tensor:
    """The sum over the ranks, rounded in the way that `name` says; a ring begins at rank `first`."""
    n = dist.get_world_size()
    if name != "in every hop":
        sent = {"nowhere": torch.clone, "once": _once, "at random": _at_random}[name](x)
        received = [torch.empty_like(sent) for _ in range(n)]
        dist.all_gather(received, sent)
        return torch.stack(received).float().sum(dim=0)
    every = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(every, x)
    partial = every[first].bfloat16()
    for hop in range(1, n):
        partial = (partial.float() + every[(first + hop) % n]).bfloat16()
    return partial.float()


def _drive(rank: int, world_size: int, where_it_rounds: Any, name: str, first: int, seed: int) -> Named:
    torch.manual_seed(seed + rank)
    return Named(where_it_rounds(lambda x: _sum(x, name, first)))


def _cases(function: Any, rng: np.random.Generator, n: int, first: int = 0, names: Any = NAMES) -> Iterator[Case]:
    for name in rng.permutation(names).tolist():
        begins = f", a ring that begins at rank {first}" if first else ""
        args = (function, name, first, inputs.seed(rng))
        yield Case(f"a sum that is rounded {name}{begins}", n, _drive, args, [Named(name)] * n)


@check(ROUNDS, points=1)
def the_four_are_told_apart(where_it_rounds, *, rng):
    """On four ranks, with a ring that begins at rank 0, each of the four sums is named."""
    for _ in range(2):
        yield from _cases(where_it_rounds, rng, 4)


@check(ROUNDS, points=0.5)
def any_number_of_ranks_will_do(where_it_rounds, *, rng):
    """On 2 to 6 ranks, a sum that is rounded nowhere and one that is rounded in every hop are named."""
    for n in (2, 3, 5, 6):
        yield from _cases(where_it_rounds, rng, n, names=NAMES[:2])


@check(ROUNDS, points=0.5)
def a_ring_begins_anywhere(where_it_rounds, *, rng):
    """A sum that is rounded in every hop is named wherever its ring begins."""
    for first in rng.permutation([1, 2, 3]).tolist():
        yield from _cases(where_it_rounds, rng, 4, first, ["in every hop"])
