"""What the checks share: bounds, the oracle for buckets, readings of the ledger, comparisons."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from autograder.checking.expect import OneRank, count_of_ranks, digits_that_differ, each_rank, fail
from ranks.ledger import Ledger, Message, Span

WORLD_SIZES = (1, 2, 3, 4)
#: Seconds for a launch in which mixed-up collectives may wait for ever; it needs less than one.
PATIENCE = 8.0
#: float64 sums of at most four ranks, in any order, through a few layers and optimizer steps.
RTOL = 1e-9
#: The same in float32, for one backward.
RTOL32 = 2e-5
#: Bytes of a number of each dtype.
SIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


def case_of(world_size: int, *what: object) -> str:
    """The name of a case: "3 ranks, src = 1"."""
    return ", ".join([count_of_ranks(world_size), *map(str, what)])


def arrays_of(tensors: Iterable[torch.Tensor | None]) -> list[np.ndarray | None]:
    """Copies as numpy arrays; None stays None."""
    return [None if t is None else t.detach().clone(memory_format=torch.contiguous_format).numpy() for t in tensors]


def evidence_of(arrays: Iterable[np.ndarray | None]) -> list:
    """Arrays as evidence; "None" for None."""
    return ["None" if array is None else array for array in arrays]


def rows_of(seed: int, rank: int, step: int = 0) -> torch.Tensor:
    """A rank's batch in a step, (4, 3), float64."""
    g = torch.Generator().manual_seed(seed + 17 * rank + 1013 * step)
    return torch.randn(4, 3, generator=g, dtype=torch.float64)


# ---- buckets ----


def expected_buckets(specs: list[tuple], bucket_bytes: int) -> list[list[int]]:
    """What the exercise's rules give for these sizes alone: indices into `specs`, bucket by bucket."""
    buckets: list[list[int]] = []
    dtype_now, room = "", 0
    for index in range(len(specs) - 1, -1, -1):
        if specs[index][0] == "again" or not specs[index][2]:
            continue
        shape, dtype, _ = specs[index]
        size = int(np.prod(shape, dtype=np.int64)) * SIZES[dtype]
        if not buckets or dtype != dtype_now or size > room:
            buckets.append([])
            dtype_now, room = dtype, bucket_bytes
        buckets[-1].append(index)
        room -= size
    return buckets


def spec_bytes(spec: tuple) -> int:
    """The bytes of a parameter, given as (shape, dtype, trainable)."""
    return int(np.prod(spec[0], dtype=np.int64)) * SIZES[spec[1]]


# ---- the ledger ----


def calls_inside(ledger: Ledger, rank: int, name: str) -> list[Message]:
    """The calls that a rank began inside its span `name`, in order."""
    span = span_of(ledger, rank, name)
    mine = [m for m in ledger if m.rank == rank and span.start <= m.start <= span.end]
    return sorted(mine, key=lambda m: m.posted)


def span_of(ledger: Ledger, rank: int, name: str) -> Span:
    """A rank's span of this name."""
    return next(span for span in ledger.spans if span.rank == rank and span.name == name)


def sent_by(messages: list[Message]) -> list[tuple[str, int]]:
    """The call and the bytes of each message."""
    return [(m.call, m.bytes) for m in messages]


def in_words(sent: list[tuple[str, int]]) -> str:
    """What `sent_by` gave, as a message shows it."""
    return ", ".join(f"{call} of {size} bytes" for call, size in sent) or "nothing"


def expect_sent(case: str, sent: list[list[tuple[str, int]]], expected: list[tuple[str, int]], where: str) -> None:
    """Each rank made exactly these calls, in this order. A single rank may have made none."""
    if sent == [[]]:
        return
    for rank, mine in each_rank(case, sent):
        rank.expect(mine == expected, f"{where} sent {in_words(mine)}, expected {in_words(expected)}")


# ---- comparisons ----


def expect_same(case: str, what: str, got: list[list], expected: list, whose: str, rtol: float = RTOL) -> None:
    """Every rank's arrays are the expected ones, within `rtol` of the largest entry; None where None is expected.

    what: the arrays' kind, in the singular. whose: a subject and a verb for the expected values.
    """
    for rank, arrays in each_rank(case, got, evidence=evidence_of):
        expect_arrays(rank, what, arrays, expected, whose, rtol)


def expect_arrays(rank: OneRank, what: str, got: list, expected: list, whose: str, rtol: float = RTOL) -> None:
    """Like `expect_same`, on one rank."""
    counts = f"there are {len(got)} tensors ({what}), but {whose} {len(expected)}"
    rank.expect(len(got) == len(expected), counts)
    for number, (array, right) in enumerate(zip(got, expected, strict=True)):
        name = f"{what} {number}"
        if (array is None) != (right is None):
            has, wanted = ("None", "a tensor") if array is None else ("a tensor", "None")
            rank.fail(f"{name} is {has}, but {whose} {wanted}")
        if array is None:
            continue
        if array.shape != right.shape or array.dtype != right.dtype:
            rank.fail(f"{name} is {array.dtype} {array.shape}, but {whose} {right.dtype} {right.shape}")
        bound = rtol * max(float(np.max(np.abs(right), initial=0.0)), 1e-3)
        off = np.abs(array.astype(np.float64) - right)
        if not np.all(off <= bound):
            at = np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off))), off.shape)
            one, other = digits_that_differ(array[at], right[at])
            place = f" at index {tuple(map(int, at))}" if at else ""
            rank.fail(f"{name} is wrong{place}: it holds {one}, but {whose} {other}")


def expect_error(case: str, text: str | None, names: Iterable[str]) -> None:
    """A RuntimeError was raised whose text holds each of `names`."""
    if text is None:
        fail("expected a RuntimeError, but nothing was raised", case, "nothing raised")
    if lacking := [name for name in names if name not in text]:
        fail(f"the RuntimeError should name {', '.join(lacking)}, but it says {text!r}", case, ("lacks", lacking))
