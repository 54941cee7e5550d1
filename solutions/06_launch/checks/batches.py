"""Lesson 06, exercise 3: which examples a rank trains on in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from autograder.checking.cases import Call, fact
from autograder.checking.check import check

INDICES = "06-ex3-indices-of"


@dataclass
class Dealt:
    """What the ranks read in each step."""

    whole: Any = fact("what all ranks together read in step {}, sorted,", "the step determines the global batch")
    hands: Any = fact("the list of the ranks' indices in step {}", "a rank gets every N-th of the global batch")


def deal(steps: int, world_size: int, length: int, global_batch: int, seed: int) -> list[list[list[int]]]:
    """The oracle: deal out one epoch after the other, card by card. [step][rank] → indices."""
    dealt: list[list[list[int]]] = []
    epoch = 0
    while len(dealt) < steps:
        cards = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()[::-1]
        while cards:
            hands: list[list[int]] = [[] for _ in range(world_size)]
            for number in range(min(global_batch, len(cards))):
                hands[number % world_size].append(cards.pop())
            dealt.append(hands)
        epoch += 1
    return dealt[:steps]


def _read(indices_of: Callable, sizes: list[int], length: int, global_batch: int, seed: int) -> Dealt:
    """What the ranks read in each step; sizes: how many ranks there are in it."""
    hands = [
        [[int(i) for i in indices_of(step, rank, n, length, global_batch, seed)] for rank in range(n)]
        for step, n in enumerate(sizes)
    ]
    return _told(hands)


def _told(dealt: list[list[list[int]]]) -> Dealt:
    return Dealt([sorted(i for hand in hands for i in hand) for hands in dealt], dealt)


def _case(indices_of: Callable, rng: Any, length: int, batch: int, sizes: tuple[int, ...], dealt: bool = False) -> Call:
    """Three epochs. sizes: the numbers of ranks, which take turns. dealt: does it matter who reads what?"""
    seed = int(rng.integers(1, 2**20)) | 3  # so that no seed + e is seed ^ e or seed | e
    steps = 3 * -(length // -batch) + 1
    of_step = [sizes[step % len(sizes)] for step in range(steps)]
    expected = [deal(steps, n, length, batch, seed)[step] for step, n in enumerate(of_step)]
    ranks = f"{sizes[0]} rank{'s' * (sizes[0] > 1)}" if len(sizes) == 1 else "another number of ranks in each step"
    name = f"{length} examples, global batches of {batch}, {ranks}"
    gives = _told(expected) if dealt else replace(_told(expected), hands=...)
    return Call(_read, indices_of, of_step, length, batch, seed, gives=gives, name=name)


@check(INDICES, points=1)
def batches_follow_the_step(indices_of, *, rng) -> Iterator[Call]:
    """In each step all ranks together read the global batch that its number says; where batches divide the epoch."""
    for length, batch, sizes in ((12, 4, (2,)), (12, 4, (1,)), (64, 16, (4,)), (60, 12, (4, 3, 2))):
        yield _case(indices_of, rng, length, batch, sizes)
    n, steps = (int(rng.integers(2, 6)) for _ in range(2))
    yield _case(indices_of, rng, 4 * n * steps, 4 * n, (n,))


@check(INDICES, points=0.5)
def the_last_step_takes_what_is_left(indices_of, *, rng) -> Iterator[Call]:
    """The last step of an epoch has the examples that are left, and the next epoch begins with whole batches."""
    for length, batch, sizes in ((10, 4, (1,)), (101, 16, (1,)), (5, 8, (1,)), (int(rng.integers(30, 90)), 7, (1,))):
        yield _case(indices_of, rng, length, batch, sizes)


@check(INDICES, points=0.5)
def each_rank_gets_every_nth(indices_of, *, rng) -> Iterator[Call]:
    """A rank gets every N-th example of the global batch; some may get less than others, or nothing."""
    for length, batch, n in ((12, 4, 3), (12, 3, 4), (16, 2, 8), (35, 7, int(rng.integers(2, 6)))):
        yield _case(indices_of, rng, length, batch, (n,), dealt=True)
