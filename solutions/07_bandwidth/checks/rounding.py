"""Exercise 4: which of four ways of adding rounds where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks import inputs
from autograder.checks.cases import Case, fact
from autograder.checks.check import check

ROUNDS = "07-ex4-rounds"
NAMES = ("nowhere", "in every hop", "once", "at random")
#: What the draws of a sum that is rounded at random do.
LUCK = ("free", "repeat those of the call before", "are alike from entry to entry", "go to the nearest")
#: How often an answer may be wrong.
LEAST = 1e-6


@dataclass
class Named:
    """What a rank says of a sum."""

    name: Any = fact("what where_it_rounds returns")


def _once(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16()


class _AtRandom:
    """To one of the two neighbors in bf16, to the nearer one more often.

    x: (entries, ranks). luck: one of LUCK, which decides the draws as long as the chance of all that it has decided
    is at least LEAST. The draw with which it would not be is the opposite one, and all later ones are free: a pattern
    that is rarer than LEAST does not come about.
    """

    def __init__(self, luck: str, seed: int):
        self.luck, self.generator = luck, torch.Generator().manual_seed(seed)
        self.chance, self.last = torch.ones(1, dtype=torch.float64), torch.empty(0, 1, dtype=torch.bool)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        down = (x.view(torch.int32) & -(2**16)).view(torch.float32)
        up = ((x.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
        part = ((x - down) / (up - down)).double()
        goes_up = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) < part
        rows, wanted = {
            "free": (slice(0), goes_up[:0]),
            "repeat those of the call before": (slice(len(self.last)), self.last[: len(x)]),
            "are alike from entry to entry": (slice(1, None), goes_up[:1].expand(len(x) - 1, -1)),
            "go to the nearest": (slice(None), x.bfloat16() != down),
        }[self.luck]
        wanted = wanted & (part[rows] > 0)
        steps = torch.where(wanted, part[rows], 1 - part[rows]).reshape(-1)
        chances = torch.cat([self.chance, steps]).cumprod(0)
        before, after = (some.view_as(wanted) for some in (chances[:-1], chances[1:]))
        goes_up[rows] = torch.where(before >= LEAST, wanted ^ (after < LEAST), goes_up[rows])
        self.chance = chances[-1:]
        self.last = goes_up if part.any() else self.last  # numbers that bf16 has leave nothing to repeat
        return torch.where(goes_up, up, down).bfloat16()


def _sum(x: torch.Tensor, name: str, first: int, at_random: _AtRandom) -> torch.Tensor:
    """The sum over the ranks, rounded in the way that `name` says; a ring begins at rank `first`."""
    n = dist.get_world_size()
    every = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(every, x.contiguous())
    if name != "in every hop":
        rounded = {"nowhere": torch.clone, "once": _once, "at random": at_random}[name]
        return rounded(torch.stack(every, dim=1)).float().sum(dim=1)
    partial = every[first].bfloat16()
    for hop in range(1, n):
        partial = (partial.float() + every[(first + hop) % n]).bfloat16()
    return partial.float()


def _drive(rank: int, world_size: int, where_it_rounds: Any, name: str, first: int, luck: str, seed: int) -> Named:
    at_random = _AtRandom(luck, seed)
    return Named(where_it_rounds(lambda x: _sum(x, name, first, at_random)))


def _cases(
    function: Any, rng: np.random.Generator, n: int, names: Any, first: int = 0, luck: str = "free"
) -> Iterator[Case]:
    for name in rng.permutation(names).tolist():
        how = f", a ring that begins at rank {first}" * bool(first) + f", where draws {luck}" * (luck != "free")
        args = (function, name, first, luck, inputs.seed(rng))
        shows = f"reduce that adds as SUMS[{name!r}] does{how}"
        yield Case(f"a sum that is rounded {name}{how}", n, _drive, args, [Named(name)] * n, shows=shows)


@check(ROUNDS, points=0.75)
def what_chance_does_not_touch_is_told_apart(where_it_rounds, *, rng):
    """On four ranks, with a ring that begins at rank 0, the three sums that are the same each time are named."""
    for _ in range(2):
        yield from _cases(where_it_rounds, rng, 4, NAMES[:3])


@check(ROUNDS, points=0.5)
def a_sum_that_is_rounded_at_random_is_named(where_it_rounds, *, rng):
    """A sum that is rounded at random is named, also where draws repeat, are alike or go to the nearest.

    They do so only as long as this happens more often than once in a million times.
    """
    for n in (4, 2):
        for luck in LUCK:
            yield from _cases(where_it_rounds, rng, n, NAMES[3:], luck=luck)


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
