"""Exercise 3: rows of unequal numbers go to their ranks, and their gradients come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Case, close, fact
from autograder.checks.check import check
from autograder.checks.inputs import eighths

EXCHANGE = "14-ex3-all-to-all"


@dataclass
class Exchanged:
    """What a rank has after an exchange and its backward."""

    received: Any = fact("what arrives")
    gradient: Any = fact("the gradient of the rows")


def _drive(rank: int, world_size: int, function: Any, counts: np.ndarray, rows: list, slopes: list) -> Exchanged:
    x = torch.from_numpy(rows[rank]).requires_grad_()
    received = function.apply(x, counts[:, rank].tolist(), counts[rank].tolist())
    received.backward(torch.from_numpy(slopes[rank]))
    return Exchanged(received, x.grad)


def _travelled(counts: np.ndarray, rows: list[np.ndarray]) -> list[np.ndarray]:
    """What each rank gets when rank s sends its first counts[s, 0] rows to rank 0, the next to rank 1, …"""
    parts = [np.split(mine, np.cumsum(sent)[:-1]) for mine, sent in zip(rows, counts, strict=True)]
    return [np.concatenate([mine[rank] for mine in parts]) for rank in range(len(counts))]


def _case(
    rng: np.random.Generator, function: Any, counts: np.ndarray, name: str, facts: tuple = (), **more: Any
) -> Case:
    """An exchange and its backward, of which these facts are compared."""
    rows = [eighths(rng, (int(sent), 3)) for sent in counts.sum(axis=1)]
    slopes = [eighths(rng, (int(received), 3)) for received in counts.sum(axis=0)]
    there, back = _travelled(counts, rows), _travelled(counts.T, slopes)
    right = [{"received": close(a), "gradient": close(b)} for a, b in zip(there, back, strict=True)]
    expect = [Exchanged(**{fact: one[fact] for fact in facts}) for one in right]
    return Case(name, len(counts), _drive, (function, counts, rows, slopes), expect, **more)


def _cases(rng: np.random.Generator, function: Any, fact: str):
    for n in (2, 3, 4, 1):
        yield _case(rng, function, rng.integers(1, 5, (n, n)), "all splits positive", (fact,))
        counts = rng.integers(0, 4, (n, n))
        counts[rng.integers(n)] = 0
        counts[:, rng.integers(n)] = 0
        yield _case(rng, function, counts, "some splits 0", (fact,))


@check(EXCHANGE, points=1)
def gradients_go_back_where_rows_came_from(AllToAll, *, rng):
    """Each gradient returns to the rank that sent its row, in the order of the rows."""
    yield from _cases(rng, AllToAll, "gradient")


def _drive_forward(rank: int, world_size: int, function: Any, counts: np.ndarray, rows: list, _: list) -> Exchanged:
    received = function.apply(torch.from_numpy(rows[rank]), counts[:, rank].tolist(), counts[rank].tolist())
    return Exchanged(received)


@check(EXCHANGE, points=0.75)
def rows_reach_their_ranks(AllToAll, *, rng):
    """Rows reach their ranks, in the order of the senders' ranks."""
    for case in _cases(rng, AllToAll, "received"):
        case.run = _drive_forward
        yield case


@check(EXCHANGE, points=0.25)
def an_exchange_is_one_call_each_way(AllToAll, *, rng):
    """Forward and backward make one all-to-all each."""
    for n in (2, 3):
        counts = np.roll(np.full((n, n), 2), 1)
        sends = [("all_to_all_single", 24 * n), ("all_to_all_single", 24 * n)]
        case = _case(rng, AllToAll, counts, "2 rows for every rank", sends=sends)
        case.expect = [Exchanged()] * n
        yield case
