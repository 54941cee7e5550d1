"""Exercise 6: the bytes that a rank sends in a step, by stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autograder.checking.cases import Call
from autograder.checking.check import check
from autograder.checking.expect import ceil_div

SENT = "08-ex6-sent"


def _played(parameters: int, n: int, stage: int, micro_batches: int) -> int:
    """The messages of a step one by one: every chunk of every collective in every micro-batch."""
    chunk, chunks = ceil_div(parameters, n), range(n - 1)
    scatter, gather = sum(4 * chunk for _ in chunks), sum(2 * chunk for _ in chunks)
    sent = 0
    for number in range(micro_batches):
        sent += 2 * gather if stage == 3 else 0  # forward and backward
        sent += scatter if stage >= 2 or number == micro_batches - 1 else 0
    return sent + {0: scatter, 1: gather, 2: gather, 3: 0}[stage]


def _cases(function: Any, rng: np.random.Generator, stages: tuple[int, ...], several: bool) -> Iterator[Call]:
    # The last is 3 more than a multiple of 16: half of it, rounded up, is no float64.
    for parameters in (64, 64 * int(rng.integers(100, 10**6)), 10**17 + 16 * int(rng.integers(1, 1000)) + 3):
        for n in (1, 2, 4, 64):
            count = int(rng.integers(2, 33)) if several else 1
            for stage in stages:
                nbytes = _played(parameters, n, stage, count)
                what = f"the number of bytes at stage {stage}"
                yield Call(function, parameters, n, stage, count, sees=_as_int, gives=nbytes, what=what)


def _as_int(number: Any, *_: int) -> Any:
    """A whole number of numpy's, or a float that is whole and small, as one of Python's; anything else as it is."""
    whole = isinstance(number, np.integer) or (isinstance(number, float) and number == int(number))
    return int(number) if whole else number


@check(SENT, points=0.5)
def a_step_of_one_micro_batch(sent_per_step, *, rng):
    """With one micro-batch each stage sends the halves of an all-reduce, in the right dtypes."""
    yield from _cases(sent_per_step, rng, (0, 1, 2, 3), several=False)


@check(SENT, points=0.5)
def what_has_no_room_is_sent_every_time(sent_per_step, *, rng):
    """With several micro-batches a stage sends again what it has no room to keep, and nothing else."""
    yield from _cases(sent_per_step, rng, (0, 1, 2, 3), several=True)
