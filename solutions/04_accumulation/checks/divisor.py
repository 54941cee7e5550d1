"""Exercise 2: what a training loop divides its gradients by, found by experiments."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from autograder.checking.cases import Call, clue, complaint, fact
from autograder.checking.check import check

DIVISOR = "04-ex2-divisor"
#: Rounding to bfloat16 changes a number by up to this share of it.
ROUNDING = 2.0**-8


@dataclass
class Found:
    """What find_divisor returned, and what it tried: that tells mistakes apart."""

    said: Any = fact("the fault that was found")
    ranks: bool = clue()  # there were several ranks
    micro_batches: bool = clue()  # there were several micro-batches on a rank
    parallel: bool = clue()  # there were several GPUs per rank
    masked: bool = clue()  # an item was masked


def _share(items: list, of: list) -> float:
    """The sum of the items that count over the number of those of `of`; NaN where these are none."""
    return sum(item for item in items if item is not None) / len(of) if of else float("nan")


def _counting(items: list) -> list:
    return [item for item in items if item is not None]


def _find(find_divisor: Any, fault: str | None, rounding: float, seed: int) -> Found:
    """What `find_divisor` says of a trainer with this fault, whose gradients are off by up to `rounding`."""
    random, tried = Random(seed), [(0, 0, 1, False)]

    def gradient(batch, tensor_parallel=1):
        if len({len(rank) for rank in batch}) != 1:
            raise ValueError("every rank needs as many micro-batches as the others")
        of_ranks = [[item for items in rank for item in items] for rank in batch]
        everything = [item for rank in of_ranks for item in rank]
        tried.append((len(batch), len(batch[0]), tensor_parallel, None in everything))
        value = _share(everything, _counting(everything))
        if fault == "micro-batches":
            means = [_share(items, _counting(items)) for rank in batch for items in rank]
            value = sum(means) / len(means)
        if fault == "ranks":
            value = sum(_share(rank, _counting(rank)) for rank in of_ranks) / len(batch)
        if fault == "processes":
            value *= tensor_parallel
        if fault == "masked":
            value = _share(everything, everything)
        return value * (1 + random.uniform(-rounding, rounding))

    said = find_divisor(gradient)
    ranks, micro_batches, parallel, masked = (max(column) for column in zip(*tried, strict=True))
    return Found(said, ranks > 1, micro_batches > 1, parallel > 1, masked)


def _case(find_divisor: Any, rng, fault: str | None) -> Call:
    name = f"a trainer {'without a fault' if fault is None else f'with the fault {fault!r}'}"
    return Call(_find, find_divisor, fault, 0.0, int(rng.integers(2**32)), gives=Found(fault), name=name)


@check(DIVISOR, points=1.5)
def means_of_micro_batches_are_found(find_divisor, *, rng):
    """A mean over micro-batches and the right division are told apart."""
    # Where nothing is rounded, there is nothing to draw: the trainer is a function of the batch alone.
    for fault in ("micro-batches", None):
        yield _case(find_divisor, rng, fault)


@check(DIVISOR, points=1)
def means_of_ranks_are_found(find_divisor, *, rng):
    """A mean over ranks is distinguished from a mean over micro-batches and from the right division."""
    # As above: nothing to draw.
    yield _case(find_divisor, rng, "ranks")


@check(DIVISOR, points=0.5)
def processes_are_found(find_divisor, *, rng):
    """A gradient that grows with the GPUs per data-parallel rank is found."""
    # As above: nothing to draw.
    yield _case(find_divisor, rng, "processes")


@check(DIVISOR, points=0.5)
def masked_items_are_found(find_divisor, *, rng):
    """A division by all items, masked ones too, is found."""
    # As above: nothing to draw.
    yield _case(find_divisor, rng, "masked")


@dataclass
class Rounded:
    """Whether rounding changes what find_divisor says."""

    wrong: str = complaint()


def _with_rounding(find_divisor: Any, seed: int) -> Rounded:
    """Of the trainers that are found where nothing is rounded, whether they are found where every gradient is."""
    random, found = Random(seed), 0
    for fault in (None, "micro-batches", "ranks", "processes", "masked"):
        if _find(find_divisor, fault, 0.0, 0).said != fault:
            continue
        found += 1
        for _ in range(8):
            said = _find(find_divisor, fault, ROUNDING, random.getrandbits(32)).said
            if said != fault:
                kind = "without a fault" if fault is None else f"with the fault {fault!r}"
                return Rounded(f"a trainer {kind} is found if nothing is rounded; with rounding, you say {said!r}")
    return Rounded("" if found > 1 else "no two trainers are told apart")


@check(DIVISOR, points=0.5)
def rounding_is_no_fault(find_divisor, *, rng):
    """What is found without rounding is found where every gradient is rounded to bfloat16."""
    seed = int(rng.integers(2**32))
    yield Call(_with_rounding, find_divisor, seed, gives=Rounded(""), name="all trainers")
