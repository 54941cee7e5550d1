"""Exercise 6: thin matrices instead of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check
from ranks.ledger import Ledger

from .forms import not_of_shape

POWER = "07-ex6-power-sgd"
#: Of the largest entry: float32, through a basis of a few columns at angles that are not small.
ERROR = 1e-3


@dataclass
class Mean:
    """What one call of mean returned on a rank."""

    when: str
    odd: str = sentence()
    mean: Any = fact("the result")


def _drive(rank: int, world_size: int, power_sgd: Any, q: np.ndarray, grads: np.ndarray) -> list[Mean]:
    """One compressor, called on one gradient after the other: grads[rank, call]."""
    compressor, found = power_sgd(torch.from_numpy(q.copy())), []
    for call, grad in enumerate(grads[rank]):
        result, when = compressor.mean(torch.from_numpy(grad.copy())), f"of call {call + 1}"
        if odd := not_of_shape(result, grad.shape):
            found.append(Mean(when, f"mean returns {odd}", grad))
        else:
            found.append(Mean(when, "", result.detach().clone()))
    return found


def _columns(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """Orthonormal columns in a random direction."""
    return np.linalg.qr(rng.normal(size=(n, count)))[0]


def _apart(rng: np.random.Generator, n: int, means: list[np.ndarray]) -> np.ndarray:
    """[rank, call]: gradients of n ranks that differ, with these means."""
    noise = rng.normal(size=(n, len(means), *means[0].shape))
    return (np.stack(means) + noise - noise.mean(axis=0)).astype(np.float32)


def _case(power_sgd: Any, name: str, q: np.ndarray, grads: np.ndarray, right: list[np.ndarray | None]) -> Case:
    """right: the mean of each call, None where it is not compared."""
    expect = [Mean("") if one is None else Mean("", "", close(one, rtol=ERROR)) for one in right]
    return Case(name, len(grads), _drive, (power_sgd, q.astype(np.float32), grads), [expect] * len(grads))


def _projected(mean: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The projection of a mean onto the columns of mean · q. Any basis of their span will do: the singular vectors."""
    basis = np.linalg.svd(mean @ q, full_matrices=False)[0]
    return basis @ basis.T @ mean


@check(POWER, points=1.75)
def a_call_projects_the_mean(PowerSGD, *, rng):
    """The first call gives all ranks the projection of the mean gradient onto the columns of mean · q."""
    for n, shape, r in ((2, (6, 4), 2), (3, (3, 8), 1), (4, (int(rng.integers(6, 12)), 5), 3), (1, (5, 5), 2)):
        mean, q = 2 * rng.normal(size=shape), _columns(rng, shape[1], r)
        grads = _apart(rng, n, [mean])
        right = [_projected(grads.astype(np.float64).mean(axis=0)[0], q.astype(np.float32))]
        yield _case(PowerSGD, f"a {shape[0]} × {shape[1]} gradient, r = {r}", q, grads, right)


@check(POWER, points=1)
def what_is_owed_comes_later(PowerSGD, *, rng):
    """What a call could not hold is added to the gradients of the next calls, until it fits."""
    # Three directions u v: the first call holds the first, and owes the others until a gradient points to theirs. Each
    # time C · q has the same direction for the first q as for the last one. One rank, so that means are not judged.
    for _ in range(2):
        u, v = _columns(rng, 7, 3), _columns(rng, 6, 3)
        owed = [np.outer(u[:, i], v[:, i]) * size for i, size in enumerate(rng.uniform(1, 2, 3))]
        turned = [np.outer(u[:, i], v[:, 0]) * size for i, size in enumerate(rng.uniform(2, 3, 3))]
        grads = _apart(rng, 1, [sum(owed), turned[1], turned[2]])
        right = [owed[0], turned[1] + owed[1], turned[2] + owed[2]]
        yield _case(PowerSGD, "3 calls, r = 1", v[:, :1], grads, right)


@check(POWER, points=0.5)
def a_call_begins_with_the_last_q(PowerSGD, *, rng):
    """The next call begins with the Q of the call before."""
    # The first gradient has rank one, so that nothing is owed, and Q then points to v. One rank, as above.
    for _ in range(2):
        u, v, q = _columns(rng, 6, 1), _columns(rng, 5, 1), np.ones((5, 1))
        v *= np.sign(v.sum()) or 1.0
        second = rng.normal(size=(6, 5))
        grads = _apart(rng, 1, [3 * u @ (v + 0.2).T, second])
        yield _case(PowerSGD, "2 calls, r = 1", q, grads, [None, _projected(second, v + 0.2)])


@check(POWER, points=0.75)
def only_thin_matrices_travel(PowerSGD, *, rng):
    """At most r(n + m) entries go into all-reduces in each call, and nothing else is called."""
    for n, shape, r in ((2, (24, 16), 2), (3, (5, int(rng.integers(20, 40))), 1)):
        grads = _apart(rng, n, [rng.normal(size=shape)] * 2)
        args = (PowerSGD, _columns(rng, shape[1], r).astype(np.float32), grads)
        name = f"a {shape[0]} × {shape[1]} gradient, r = {r}, 2 calls"
        yield Case(name, n, _drive, args, [[Mean("")] * 2] * n, judge=_at_most(2 * 4 * r * sum(shape)))


def _at_most(most: int) -> Callable[[int, list[Ledger]], str]:
    """A judge of the bytes that go into all-reduces."""

    def judge(rank: int, parts: list[Ledger]) -> str:
        messages = [m for part in parts for m in part]
        if others := [m for m in messages if m.call != "all_reduce"]:
            return f"rank {rank} calls {others[0].call}, which is not needed"
        put = sum(m.bytes for m in messages)
        if not 0 < put <= most:
            return f"rank {rank} puts {put} bytes into all-reduces in 2 calls, {most} are enough"
        return ""

    return judge
