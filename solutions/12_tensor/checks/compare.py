"""What is compared, and how: numbers of all ranks, and what was sent between barriers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autograder.checking.expect import collective, count_of_ranks, digits_that_differ, fail

#: The world sizes of the syllabus; every mistake shows with two ranks already.
WORLD_SIZES = (2, 4, 1)


def as_float64(tensor: torch.Tensor | None) -> np.ndarray | None:
    """A copy in float64, or None."""
    if tensor is None:
        return None
    return tensor.detach().to(torch.float64).clone(memory_format=torch.contiguous_format).numpy()


def as_evidence(arrays: list[np.ndarray | None]) -> list:
    """The arrays of all ranks as evidence."""
    return ["None" if array is None else array for array in arrays]


def own_part(array: np.ndarray, rank: int, world_size: int, axis: int) -> np.ndarray:
    """A rank's part of an array that is cut along an axis."""
    return np.split(array, world_size, axis=axis)[rank]


def differences(got: list, wants: list[np.ndarray], allowed: float) -> list:
    """By how much the arrays of all ranks are off, as evidence; what is allowed counts as 0.

    Where a mistake is small, the numbers themselves would look like those of any other small mistake.
    """
    found = []
    for array, want in zip(got, wants, strict=True):
        if array is None or array.shape != want.shape:
            return as_evidence(got)
        with np.errstate(invalid="ignore"):
            found.append(np.where(np.abs(array - want) <= allowed, 0.0, array - want))
    return found


def expect_near(
    case: str, what: str, got: list, rank: int, want: np.ndarray, bound: float, scale=-1.0, evidence=None
) -> None:
    """`got[rank]` is `want` within `bound` of its largest entry (or of `scale`); the evidence is all ranks' numbers."""
    mine, seen = got[rank], as_evidence(got) if evidence is None else evidence
    if mine is None:
        fail(f"{what} is None", case, seen)
    if mine.shape != want.shape:
        fail(f"{what} has shape {mine.shape}, expected {want.shape}", case, seen)
    allowed = bound * (float(np.max(np.abs(want), initial=0.0)) if scale < 0 else scale)
    off = np.abs(mine - want)
    if not np.all(off <= allowed):
        at = np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off))), off.shape)
        place = f" at index {tuple(int(i) for i in at)}" if off.ndim else ""
        one, other = digits_that_differ(mine[at], want[at])
        fail(f"{what} is wrong{place}: got {one}, expected {other}", case, seen)


def stretches(results: Any, world_size: int, cases: int, barriers: int) -> list[list[list]]:
    """rank → what it sent in each stretch between the driver's barriers."""
    calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
    if any(len(parts) != cases * barriers + 1 for parts in calls):
        fail("the code called barrier, which no layer needs", count_of_ranks(world_size), "barrier")
    return [[[parts[c * barriers + 1 + part] for part in range(barriers - 1)] for c in range(cases)] for parts in calls]


def expect_calls(
    case: str, when: str, calls: list, number: int, part: int, allowed: dict[str, int], dtype: str
) -> None:
    """In one stretch every rank made exactly the collectives in `allowed` (kind → numbers put in), each once.

    With one rank they may be missing.
    """
    width = getattr(torch, dtype).itemsize
    for rank, mine in enumerate(calls):
        got = [(m.call, m.bytes) for m in mine[number][part]]
        for call, nbytes in got:
            kind = collective(call)
            if kind not in allowed:
                fail(f"{when}, rank {rank} called {call}, which is not needed there", case, [when, got])
            if nbytes != allowed[kind] * width:
                text = f"{when}, rank {rank} put {nbytes} bytes into {call}, expected {allowed[kind] * width}"
                fail(f"{text} ({allowed[kind]} numbers)", case, [when, got])
        if len(got) > len(allowed) or (len(got) < len(allowed) and len(calls) > 1):
            text = f"{when}, rank {rank} made {len(got)} collectives, expected {len(allowed)}"
            fail(text, case, [when, got])
