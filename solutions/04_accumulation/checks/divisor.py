"""Exercise 2: what a training loop divides its gradients by, found by experiments."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from autograder.checks.cases import Call, evidence, fact
from autograder.checks.check import check
from autograder.checks.expect import fail
from autograder.checks.stage import Oracle, call_inside

DIVISOR = "04-ex2-divisor"
#: Rounding to bfloat16 changes a number by up to this share of it.
ROUNDING = 2.0**-8


@dataclass
class Found:
    """What find_divisor returned, and what it tried: that tells mistakes apart."""

    said: Any = fact("the fault that was found")
    ranks: bool = evidence()  # there were several ranks
    micro_batches: bool = evidence()  # there were several micro-batches on a rank
    parallel: bool = evidence()  # there were several GPUs per rank
    masked: bool = evidence()  # an item was masked


def _mean(items: list) -> float:
    """The mean of the items that count; NaN where none does."""
    counting = [item for item in items if item is not None]
    return sum(counting) / len(counting) if counting else float("nan")


class _Trainer:
    """A training loop with a fault, whose gradients are off by up to `rounding`; and what was tried on it."""

    def __init__(self, fault: str | None, rounding: float = 0.0, seed: int = 0):
        self.fault, self.rounding, self.random = fault, rounding, Random(seed)
        self.tried = [(0, 0, 1, False)]

    def gradient(self, batch: Any, tensor_parallel: int = 1) -> float:
        """What find_divisor may ask: the gradient of a batch, a list of micro-batches for each rank."""
        if len({len(rank) for rank in batch}) != 1:
            raise ValueError("every rank needs as many micro-batches as the others")
        of_ranks = [[item for items in rank for item in items] for rank in batch]
        everything = [item for rank in of_ranks for item in rank]
        self.tried.append((len(batch), len(batch[0]), tensor_parallel, None in everything))
        value = _mean(everything)
        if self.fault == "micro-batches":
            value = _mean([_mean(items) for rank in batch for items in rank])
        if self.fault == "ranks":
            value = _mean([_mean(rank) for rank in of_ranks])
        if self.fault == "processes":
            value *= tensor_parallel
        if self.fault == "masked":
            value = _mean([item or 0.0 for item in everything])
        return value * (1 + self.random.uniform(-self.rounding, self.rounding))

    def found(self, said: Any) -> Found:
        """The facts about an answer."""
        ranks, micro_batches, parallel, masked = (max(column) for column in zip(*self.tried, strict=True))
        return Found(said, ranks > 1, micro_batches > 1, parallel > 1, masked)


def _case(find_divisor: Any, rng, fault: str | None, rounding: float = 0.0) -> Call:
    """Where nothing is rounded, there is nothing to draw: the trainer is a function of the batch alone."""
    name = f"a trainer {'without a fault' if fault is None else f'with the fault {fault!r}'}"
    trainer = _Trainer(fault, rounding, int(rng.integers(2**32)))
    # It answers on this side: find_divisor could read the fault from a function of its own process.
    asks, sees = Oracle(trainer.gradient), lambda said, *_: trainer.found(said)
    return Call(find_divisor, asks, gives=Found(fault), sees=sees, name=f"{name}{', rounded' if rounding else ''}")


@check(DIVISOR, points=1.5)
def means_of_micro_batches_are_found(find_divisor, *, rng):
    """A mean over micro-batches and the right division are told apart."""
    for fault in ("micro-batches", None):
        yield _case(find_divisor, rng, fault)


@check(DIVISOR, points=1)
def means_of_ranks_are_found(find_divisor, *, rng):
    """A mean over ranks is distinguished from a mean over micro-batches and from the right division."""
    yield _case(find_divisor, rng, "ranks")


@check(DIVISOR, points=0.5)
def processes_are_found(find_divisor, *, rng):
    """A gradient that grows with the GPUs per data-parallel rank is found."""
    yield _case(find_divisor, rng, "processes")


@check(DIVISOR, points=0.5)
def masked_items_are_found(find_divisor, *, rng):
    """A division by all items, masked ones too, is found."""
    yield _case(find_divisor, rng, "masked")


@check(DIVISOR, points=0.5)
def rounding_is_no_fault(find_divisor, *, rng):
    """What is found without rounding is found where every gradient is rounded to bfloat16."""
    faults = (None, "micro-batches", "ranks", "processes", "masked")
    found = [fault for fault in faults if call_inside(find_divisor, Oracle(_Trainer(fault).gradient)) == fault]
    if len(found) < 2:
        fail("no two trainers are told apart", "all trainers", found)
    for fault in found * 8:
        yield _case(find_divisor, rng, fault, ROUNDING)
