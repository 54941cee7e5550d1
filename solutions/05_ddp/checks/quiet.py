"""Lesson 05, exercise 6: no_sync, and what there is to finish."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import each_rank, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    arrays_of,
    calls_inside,
    case_of,
    evidence_of,
    expect_arrays,
    in_words,
    rows_of,
    sent_by,
    spec_bytes,
)
from autograder.checks.ddp.models import Towers, output_of

_BUCKET_BYTES = 80
#: The bytes that a synchronized step sends, however they are divided among buckets.
_STEP = 2 * (spec_bytes(((3, 3), "float64", True)) + spec_bytes(((3,), "float64", True)))


class _Batch(NamedTuple):
    """One micro-batch of a driver.

    name: in the message. adds: the micro-batches whose gradients are in .grad afterwards. mean: as a mean over the
    ranks? The last of them is this one. silent: inside no_sync. finish: is finish_gradient_sync called, and how often?
    look: a forward under no_grad "between" forward and backward, or "first", and then a finish; or the finish of a
    wrapper that has seen no forward, "fresh". around: what no_sync does before, whether it is "left" before backward,
    or "deep" inside another; "eval": the module is in eval() mode; "other": all is inside another wrapper's no_sync.
    """

    name: str
    adds: tuple[int, ...]
    mean: bool
    silent: bool = False
    finish: int = 1
    look: str = ""
    around: str = ""


class _Interrupt(Exception):
    """Raised by a driver inside no_sync()."""


#: For what a batch raises inside no_sync.
_RAISED = {"interrupted": _Interrupt, "stopped": KeyboardInterrupt}


def _drive_batches(rank: int, world_size: int, ddp_class: Any, seed: int, batches: list[tuple]) -> list[list | str]:
    """Inside a rank: the gradients after each micro-batch; spans for it, its parts, and each further finish.

    Instead of the gradients, what went wrong with an exception.
    """
    wrappers = [ddp_class(Towers(seed + rank), bucket_bytes=_BUCKET_BYTES) for _ in range(2)]
    seen: list[list | str] = []
    for batch in (_Batch(*fields) for fields in batches):
        try:
            swallowed = _drive_batch(rank, *wrappers, seed, batch)
        except RuntimeError as error:
            if type(error) is RuntimeError:  # say when
                error.args = (f"{error} ({batch.name})",)
            raise
        seen.append("swallowed" if swallowed else arrays_of(p.grad for p in wrappers[0].module.parameters()))
    return seen


def _drive_batch(rank: int, ddp: Any, other: Any, seed: int, batch: _Batch) -> bool:
    """Inside a rank: one micro-batch. Has no_sync swallowed an exception?"""
    if len(batch.adds) == 1:
        ddp.zero_grad()
    ddp.training = batch.around != "eval"
    ddp.module.train(ddp.training)
    swallowed = False
    if kind := _RAISED.get(batch.around):
        try:
            with ddp.no_sync():
                raise kind
        except kind:
            pass
        else:
            swallowed = True
    if batch.look in ("first", "fresh"):
        with record_function(f"{batch.name}, again"):
            if batch.look == "first":
                _look(ddp, seed, rank)
            (ddp if batch.look == "first" else other).finish_gradient_sync()
    with record_function(batch.name), ExitStack() as outer:
        inner = outer.enter_context(ExitStack())
        if batch.silent or batch.around in ("nested", "deep"):
            inner.enter_context(ddp.no_sync())
        if batch.around == "deep":
            inner.enter_context(ddp.no_sync())
        if batch.around == "nested":
            with ddp.no_sync():
                pass
        if batch.around == "other":
            inner.enter_context(other.no_sync())
        loss = output_of(ddp(rows_of(seed, rank, batch.adds[-1]), True)).sum()
        if batch.look == "between":
            _look(ddp, seed, rank)
        if batch.around == "left":
            inner.close()
        with record_function(f"{batch.name}, backward"):
            loss.backward()
        with record_function(f"{batch.name}, finish"):
            for _ in range(min(batch.finish, 1)):
                ddp.finish_gradient_sync()
    with record_function(f"{batch.name}, again"):
        for _ in range(batch.finish - 1):
            ddp.finish_gradient_sync()
    return swallowed


def _look(ddp: Any, seed: int, rank: int) -> None:
    with torch.no_grad():
        ddp(rows_of(seed, rank), True)


def _expect_batches(ddp_class: Any, seed: int, batches: list[_Batch], world_sizes: tuple[int, ...] = (2,)) -> None:
    """Each micro-batch sends what it has to and leaves the gradients that it has to."""
    for world_size in world_sizes:
        plain = [tuple(batch) for batch in batches]
        results = run_ranks(_drive_batches, world_size, (ddp_class, seed, plain))
        ledger, each = results.ledger, range(world_size)
        for number, batch in enumerate(batches):
            case = case_of(world_size, batch.name)
            spans = {"all": "", "backward": ", backward", "finish": ", finish"}
            sent = [
                {part: sent_by(calls_inside(ledger, r, batch.name + end)) for part, end in spans.items()} for r in each
            ]
            for one, parts in each_rank(case, sent):
                mine = parts["all"]
                wanted = _STEP if batch.mean and (world_size > 1 or mine) else 0
                text = f"the micro-batch, from forward to finish, sent {in_words(mine)}, expected {wanted} bytes"
                one.expect({call for call, _ in mine} <= {"all_reduce"} and sum(n for _, n in mine) == wanted, text)
            for rank in each:
                if again := sent_by(calls_inside(ledger, rank, f"{batch.name}, again")):
                    text = f"on rank {rank}, finish_gradient_sync() had nothing to finish, but sent {in_words(again)}"
                    fail(text, case, again)
            local = [_own_gradients(seed, rank, batch.adds) for rank in each]
            mean = [np.mean(arrays, axis=0) for arrays in zip(*local, strict=True)]
            whose = "the mean over the ranks is" if batch.mean else "this rank's own sum is"
            got = [result[number] for result in results]
            if "swallowed" in got:
                fail("no_sync swallowed an exception: it must come out", case, "swallowed")
            for one, arrays in each_rank(case, got, evidence=evidence_of):
                expect_arrays(one, "gradient", arrays, mean if batch.mean else local[one.rank], whose)


def _own_gradients(seed: int, rank: int, numbers: tuple[int, ...]) -> list:
    model = Towers(seed)
    for number in numbers:
        output_of(model(rows_of(seed, rank, number), True)).sum().backward()
    return arrays_of(p.grad for p in model.parameters())


@check("05-ex6-no-sync", points=1.5)
def no_sync_sends_nothing_and_adds_up(QuietDataParallel, *, rng):  # noqa: N803  the notebook's name
    """Inside no_sync nothing is sent and gradients add up; the next synchronized backward averages all of them."""
    _expect_batches(
        QuietDataParallel,
        inputs.seed(rng),
        [
            _Batch("a synchronized micro-batch", (0,), True),
            _Batch("the first of two micro-batches inside no_sync", (1,), False, silent=True, finish=0),
            _Batch("the second of two micro-batches inside no_sync", (1, 2), False, silent=True, finish=0),
            _Batch("a third micro-batch, outside no_sync", (1, 2, 3), True),
            _Batch("a second synchronized step without zero_grad", (1, 2, 3, 4), True),
            _Batch("a synchronized micro-batch in eval() mode", (5,), True, around="eval"),
            _Batch(
                "a forward inside no_sync, its backward after it", (6,), False, silent=True, finish=0, around="left"
            ),
        ],
        (1, 2, 3),
    )


@check("05-ex6-no-sync", points=0.5)
def finishing_twice_sends_nothing(QuietDataParallel, *, rng):  # noqa: N803
    """finish_gradient_sync() does nothing after a silent backward, and nothing when it is called again."""
    _expect_batches(
        QuietDataParallel,
        inputs.seed(rng),
        [
            _Batch("a silent micro-batch with a finish inside no_sync", (0,), False, silent=True),
            _Batch("a silent micro-batch with a second finish, after no_sync", (0, 1), False, silent=True, finish=2),
            _Batch("a synchronized micro-batch that is finished twice", (0, 1, 2), True, finish=2),
            _Batch("a synchronized micro-batch", (0, 1, 2, 3), True),
        ],
    )


@check("05-ex6-no-sync", points=0.5)
def looking_decides_nothing(QuietDataParallel, *, rng):  # noqa: N803
    """A forward under torch.no_grad() decides neither what the backward is nor whether there is something to finish."""
    _expect_batches(
        QuietDataParallel,
        inputs.seed(rng),
        [
            _Batch("a silent micro-batch that is finished after no_sync", (6,), False, silent=True, finish=2),
            _Batch("a forward under no_grad, and then finish_gradient_sync()", (7,), True, look="first"),
            _Batch("finish_gradient_sync() of a wrapper that has seen no forward", (8,), True, look="fresh"),
            _Batch("a forward under no_grad before a synchronized backward", (0,), True, look="between"),
            _Batch("a forward under no_grad before a silent backward", (1,), False, silent=True, look="between"),
            _Batch("a synchronized micro-batch", (1, 2), True),
        ],
    )


@check("05-ex6-no-sync", points=0.5)
def no_sync_restores_what_was(QuietDataParallel, *, rng):  # noqa: N803
    """When a no_sync ends, even a nested one or one that raised, forwards decide as they did before it."""
    _expect_batches(
        QuietDataParallel,
        inputs.seed(rng),
        [
            _Batch("a micro-batch inside no_sync", (6,), False, silent=True),
            _Batch("a micro-batch inside an inner no_sync", (0,), False, around="deep"),
            _Batch("after an inner no_sync has ended, inside the outer one", (1,), False, around="nested"),
            _Batch("a synchronized micro-batch after both have ended", (1, 2), True),
            _Batch("a synchronized micro-batch after an exception left no_sync", (3,), True, around="interrupted"),
            _Batch("a synchronized micro-batch after a KeyboardInterrupt left no_sync", (4,), True, around="stopped"),
            _Batch("a synchronized micro-batch inside another wrapper's no_sync", (5,), True, around="other"),
        ],
    )
