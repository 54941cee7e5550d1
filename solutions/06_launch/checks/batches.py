"""Lesson 06, exercise 3: which examples a rank trains on in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from autograder.checks.cases import Call, fact
from autograder.checks.check import check

INDICES = "06-ex3-indices-of"


@dataclass
class Dealt:
    """What the ranks read in each step."""

    whole: Any = fact("what all ranks together read in step {}, sorted,", "the step determines the global batch")


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


def _read(indices_of: Callable, sizes: dict[int, int], length: int, global_batch: int, seed: int) -> Dealt:
    """What the ranks read in each step; sizes: step → how many ranks there are in it."""
    hands = {
        step: [indices_of(step, rank, n, length, global_batch, seed) for rank in range(n)] for step, n in sizes.items()
    }
    return _told(hands)


def _told(dealt: dict[int, list[list[int]]]) -> Dealt:
    """dealt: step → the ranks' indices."""
    return Dealt({step: sorted(int(i) for hand in hands for i in hand) for step, hands in dealt.items()})


def _case(
    indices_of: Callable,
    rng: Any,
    length: int,
    batch: int,
    sizes: tuple[int, ...],
    *,
    epochs: tuple[int, int] = (0, 1),
) -> Call:
    """The steps of some epochs, from the first to before the last. sizes: the numbers of ranks, which take turns."""
    seed = int(rng.integers(1, 2**20)) | 3  # so that no seed + e is seed ^ e or seed | e
    first, last = (epoch * -(length // -batch) for epoch in epochs)
    of_step = {step: sizes[step % len(sizes)] for step in range(first, last)}
    expected = {step: deal(last, n, length, batch, seed)[step] for step, n in of_step.items()}
    ranks = f"{sizes[0]} rank{'s' * (sizes[0] > 1)}" if len(sizes) == 1 else "another number of ranks in each step"
    when = "" if epochs[0] == 0 else f", from epoch {epochs[0]} on"
    name = f"{length} examples, global batches of {batch}, {ranks}{when}"
    return Call(_read, indices_of, of_step, length, batch, seed, gives=_told(expected), name=name)


@check(INDICES, points=0.75)
def batches_follow_the_step(indices_of, *, rng) -> Iterator[Call]:
    """In each step all ranks together read the global batch that its number says; in an epoch that batches divide."""
    for length, batch, sizes in ((12, 4, (2,)), (12, 4, (1,)), (64, 16, (4,)), (60, 12, (4, 3, 2))):
        yield _case(indices_of, rng, length, batch, sizes)
    n, steps = (int(rng.integers(2, 6)) for _ in range(2))
    yield _case(indices_of, rng, 4 * n * steps, 4 * n, (n,))


@check(INDICES, points=0.25)
def each_epoch_has_its_order(indices_of, *, rng) -> Iterator[Call]:
    """Epoch 1 begins when epoch 0 is through, with an order of its own; and so on."""
    for length, batch in ((12, 4), (64, 16), (6 * int(rng.integers(2, 9)), 6)):
        yield _case(indices_of, rng, length, batch, (1,), epochs=(1, 3))


def _sizes(indices_of: Callable, length: int, global_batch: int, seed: int) -> list[int]:
    """How many examples one rank reads in each step of epoch 0, and how many different ones in all."""
    steps = [indices_of(step, 0, 1, length, global_batch, seed) for step in range(-(length // -global_batch))]
    return [*map(len, steps), len({int(i) for step in steps for i in step})]


@check(INDICES, points=0.25)
def the_last_step_takes_what_is_left(indices_of, *, rng) -> Iterator[Call]:
    """The last step of an epoch has the examples that are left, so that each is read once."""
    for length, batch in ((10, 4), (101, 16), (5, 8), (int(rng.integers(30, 90)) | 1, 8)):
        gives = [len(hand) for [hand] in deal(-(length // -batch), 1, length, batch, 0)]
        name = f"{length} examples, global batches of {batch}, 1 rank"
        what = "how many examples it reads in the steps of epoch 0, and how many different ones in all,"
        yield Call(
            _sizes, indices_of, length, batch, int(rng.integers(99)), gives=[*gives, length], what=what, name=name
        )


def _dealt(indices_of: Callable, n: int, length: int, global_batch: int, seed: int) -> str:
    """How n ranks share the batches that a single rank reads in epoch 0: the first fault, or how many are right."""
    right = 0
    for step in range(-(length // -global_batch)):
        batch = [int(i) for i in indices_of(step, 0, 1, length, global_batch, seed)]
        for rank in range(n):
            hand = [int(i) for i in indices_of(step, rank, n, length, global_batch, seed)]
            if hand != batch[rank::n]:
                return f"step {step}: a single rank reads {batch}, and rank {rank} of {n} reads {hand}"
            right += len(hand)
    return f"every N-th, of {right} examples"


@check(INDICES, points=0.5)
def each_rank_gets_every_nth(indices_of, *, rng) -> Iterator[Call]:
    """A rank gets every N-th example of the global batch; some may get less than others, or nothing."""
    for length, batch, n in ((12, 4, 3), (12, 3, 4), (16, 2, 8), (35, 7, int(rng.integers(2, 6)))):
        name, seed = f"{length} examples, global batches of {batch}, {n} ranks", int(rng.integers(2**20))
        gives = f"every N-th, of {length} examples"
        yield Call(_dealt, indices_of, n, length, batch, seed, gives=gives, what="what a rank reads", name=name)


def _global_draws(indices_of: Callable, seed: int, length: int) -> list[list[float]]:
    """What torch's global generator gives without a call, after one, and after one with another seed; what was read."""
    draws = []
    with torch.random.fork_rng(devices=[]):
        for own in (None, seed, seed + 5):
            torch.manual_seed(1)
            read = [] if own is None else indices_of(0, 0, 1, length, 4, own)
            draws.append([*torch.rand(2).tolist(), float(len(read))])
    return draws


@check(INDICES, points=0.25)
def the_global_generator_stays(indices_of, *, rng) -> Iterator[Call]:
    """torch's global generator gives the numbers that it would give without the call."""
    seed, length = int(rng.integers(2, 2**20)), int(rng.integers(8, 20))
    undisturbed = torch.rand(2, generator=torch.Generator().manual_seed(1)).tolist()
    because = "the order has a generator of its own, so that a model's dropout does not depend on it"
    what = "torch.rand(2) after torch.manual_seed(1), and the number of indices, without a call and after calls"
    name = f"{length} examples, seed {seed}"
    gives = [[*undisturbed, 0.0], *[[*undisturbed, 4.0]] * 2]
    yield Call(_global_draws, indices_of, seed, length, gives=gives, what=what, because=because, name=name)
