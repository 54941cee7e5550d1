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


def _drive(rank: int, world_size: int, where_it_rounds: Any, name: str, first: int, seed: int, times: int) -> Named:
    torch.manual_seed(seed + rank)
    said = [where_it_rounds(lambda x: _sum(x, name, first)) for _ in range(times)]
    return Named(next((other for other in said if other != name), name))


def _cases(
    function: Any, rng: np.random.Generator, n: int, names: Any, first: int = 0, times: int = 1
) -> Iterator[Case]:
    for name in rng.permutation(names).tolist():
        begins = f", a ring that begins at rank {first}" if first else ""
        asked = f", asked about {times} times" if times > 1 else ""
        args = (function, name, first, inputs.seed(rng), times)
        title = f"a sum that is rounded {name}{begins}{asked}"
        yield Case(title, n, _drive, args, [Named(name)] * n, shows=f"reduce that adds as SUMS[{name!r}] does{begins}")


@check(ROUNDS, points=0.75)
def what_chance_does_not_touch_is_told_apart(where_it_rounds, *, rng):
    """On four ranks, with a ring that begins at rank 0, the three sums that are the same each time are named."""
    for _ in range(2):
        yield from _cases(where_it_rounds, rng, 4, NAMES[:3])


@check(ROUNDS, points=0.5)
def a_sum_that_is_rounded_at_random_is_named(where_it_rounds, *, rng):
    """A sum that is rounded at random is named, on four ranks, and on two each of 300 times."""
    yield from _cases(where_it_rounds, rng, 4, NAMES[3:])
    yield from _cases(where_it_rounds, rng, 2, NAMES[3:], times=300)


@check(ROUNDS, points=0.25)
def any_number_of_ranks_will_do(where_it_rounds, *, rng):
    """On 2 to 6 ranks, a sum that is rounded nowhere and one that is rounded in every hop are named."""
    for n in (2, 3, 5, 6):
        yield from _cases(where_it_rounds, rng, n, NAMES[:2])


@check(ROUNDS, points=0.5)
def a_ring_begins_anywhere(where_it_rounds, *, rng):
    """A sum that is rounded in every hop is named wherever its ring begins, on 3 to 5 ranks."""
    for n in (3, 4, 5):
        for first in range(1, n):
            yield from _cases(where_it_rounds, rng, n, ["in every hop"], first)
