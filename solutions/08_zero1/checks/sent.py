"""Exercise 6: the bytes that a rank sends in a step, by stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autograder.checks.cases import Call
from autograder.checks.check import check
from autograder.checks.expect import ceil_div

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


def _cases(function: Any, sizes: list[int], counts: tuple[int, ...]) -> Iterator[Call]:
    for parameters in sizes:
        for n in (1, 2, 4, 64):
            for count in counts:
                for stage in range(4):
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
    yield from _cases(sent_per_step, [64, 64 * int(rng.integers(100, 10**6))], (1,))


@check(SENT, points=0.25)
def what_has_no_room_is_sent_every_time(sent_per_step, *, rng):
    """With several micro-batches a stage sends again what it has no room to keep, and nothing else."""
    yield from _cases(sent_per_step, [64 * int(rng.integers(100, 10**6))], (2, int(rng.integers(3, 33))))


@check(SENT, points=0.25)
def chunks_are_padded(sent_per_step, *, rng):
    """Where N does not divide the parameters, chunks are rounded up."""
    for parameters in (10, 64 * int(rng.integers(100, 10**6)) + 1):
        for n in (4, 64):
            full = n * ceil_div(parameters, n)
            name = f"{parameters} and {full} parameters on {n} ranks"
            args = (_both, sent_per_step, parameters, full, n)
            yield Call(*args, gives=True, name=name, what="whether both send the same, and more than nothing")


def _both(function: Any, parameters: int, full: int, n: int) -> bool:
    return bool(function(parameters, n, 1, 1) == function(full, n, 1, 1) > 0)
