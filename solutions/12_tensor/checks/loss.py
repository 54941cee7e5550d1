"""Exercise 6: the loss from logits of which every rank has some columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, at_most, close, fact
from autograder.checks.check import check
from autograder.checks.expect import collective, same
from ranks.ledger import Ledger

from .layers import KEEP

WORLD_SIZES = (2, 4, 1)
#: Elements that may be sent per position: a maximum, a sum, the target's logit, and one to spare. The sum must be.
MOST = 4


@dataclass
class Lost:
    """What a rank has after forward and backward."""

    shape: Any = fact("the shape of the loss")
    loss: Any = fact("the loss")
    moved: Any = fact("the loss, minus that of the same logits without their offsets,")
    gradient: Any = fact("the gradient of this rank's logits")
    changed: Any = fact("the list of the arguments that changed", KEEP)
    different: Any = fact("the number of different numbers in the gradient of this rank's logits")


def _lose(rank: int, world_size: int, loss_of: Any, logits: np.ndarray, targets: np.ndarray, upstream: float) -> Lost:
    mine = torch.tensor(np.split(logits, world_size, axis=1)[rank], requires_grad=True)
    loss = loss_of(mine, torch.tensor(targets))
    dist.barrier()
    (loss * upstream).sum().backward()
    return Lost(list(loss.shape), loss.detach(), gradient=mine.grad)


def _given(rank: int, world_size: int, loss_of: Any, logits: np.ndarray, targets: np.ndarray) -> Lost:
    arrays = {"logits": np.split(logits, world_size, axis=1)[rank], "targets": targets}
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    loss_of(given["logits"].requires_grad_(), given["targets"]).sum().backward()
    changed = [name for name, array in arrays.items() if not same(given[name], torch.tensor(array))]
    return Lost(changed=changed, different=len(given["logits"].grad.unique()))


def _offset(rank: int, world_size: int, loss_of: Any, logits: np.ndarray, targets: np.ndarray, far: np.ndarray) -> Lost:
    near, far = (torch.tensor(np.split(one, world_size, axis=1)[rank]) for one in (logits, far))
    return Lost(moved=loss_of(far, torch.tensor(targets)) - loss_of(near, torch.tensor(targets)))


def _case(
    rng: np.random.Generator, n: int, name: str, loss_of: Any, logits: np.ndarray, targets: Any, judged: str = "loss"
) -> Case:
    """judged: loss, gradient, or sends. The loss is scaled, so that an answer that ignores what comes back shows."""
    count, upstream, targets = len(logits), float(rng.uniform(2, 4)), np.asarray(targets, dtype=np.int64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    gradient = exponentials / exponentials.sum(axis=1, keepdims=True)
    gradient[np.arange(count), targets] -= 1
    loss = np.log(exponentials.sum(axis=1)) - shifted[np.arange(count), targets]
    backs = np.split(gradient * upstream / count, n, axis=1)
    expect = {
        "loss": [Lost([], close(loss.mean(), atol=1e-12))] * n,
        "gradient": [Lost(gradient=close(back, atol=1e-12)) for back in backs],
        "sends": [Lost()] * n,
    }

    def judge(rank: int, parts: list[Ledger]) -> str:
        forward, backward = ([(collective(m.call), m.bytes // 8) for m in part] for part in parts)
        if other := [call for call, _ in forward if call != "all_reduce"]:
            return f"in forward, rank {rank} sends {other[0]}, and all-reduces are enough"
        if not count <= (sent := sum(size for _, size in forward)) <= MOST * count:
            return f"rank {rank} puts {sent} elements into all-reduces, expected {count} to {MOST * count}"
        return f"in backward, rank {rank} sends {backward[0][0]}, expected nothing" if backward else ""

    def of_the_mean(runs: list[Lost]) -> list[Lost]:
        """Where loss and gradient are the same multiple of what they should be, the loss is charged for it."""
        return [
            replace(run, gradient=torch.tensor(back)) if _same_multiple(run, loss.mean(), back) else run
            for run, back in zip(runs, backs, strict=True)
        ]

    about, args = f"{name}, {logits.shape[1]} columns in all", (loss_of, logits, targets, upstream)
    more = {"sends": {"judge": judge}, "gradient": {"sees": of_the_mean}}.get(judged, {})
    return Case(about, n, _lose, args, expect[judged], parts=2, **more)


def _same_multiple(run: Lost, loss: float, back: np.ndarray) -> bool:
    if not (loss > 0 and isinstance(run.loss, torch.Tensor) and isinstance(run.gradient, torch.Tensor)):
        return False
    given = float(run.loss.mean())  # 0 is no multiple: an answer may do nothing
    return given > 0 and np.allclose(run.gradient.numpy() * loss, given * back, rtol=1e-9, atol=1e-12)


def _ordinary(rng: np.random.Generator, loss_of: Any, judged: str) -> Iterator[Case]:
    """Logits of ordinary size: targets of every rank, all of one rank, one position, one column per rank."""
    for n in WORLD_SIZES:
        vocabulary = 3 * n
        every = rng.permutation(np.concatenate([np.arange(vocabulary), rng.integers(0, vocabulary, 3)]))
        for name, targets, columns in (
            ("targets on every rank", every, vocabulary),
            ("all targets on the last rank", [vocabulary - 1] * 4, vocabulary),
            ("one position", [int(rng.integers(vocabulary))], vocabulary),
            ("one column per rank", rng.permutation(n), n),
        ):
            yield _case(rng, n, name, loss_of, rng.normal(0, 2, (len(targets), columns)), targets, judged)


@check("12-ex6-loss", points=1)
def loss_equals_the_unsplit_one(vocabulary_parallel_loss, *, rng):
    """Every rank returns the mean over the positions, a scalar."""
    yield from _ordinary(rng, vocabulary_parallel_loss, "loss")


@check("12-ex6-loss", points=0.75)
def gradient_equals_the_unsplit_one(vocabulary_parallel_loss, *, rng):
    """Each rank's logits get their columns of the gradient, times what comes back to the loss."""
    yield from _ordinary(rng, vocabulary_parallel_loss, "gradient")


@check("12-ex6-loss", points=0.5)
def loss_stays_finite(vocabulary_parallel_loss, *, rng):
    """Adding up to ±10,000 to all logits of a position does not change the loss."""
    for n in WORLD_SIZES:
        for name, offsets in (
            ("10,000 added to all logits", 1e4),
            ("10,000 subtracted from all logits", -1e4),
            ("±10,000, 3,000 and 0 added to positions", rng.permutation([1e4, -1e4, 0.0, 0.0, 3e3, 0.0])[:, None]),
        ):
            logits, targets = rng.normal(0, 2, (6, 3 * n)), rng.integers(0, 3 * n, 6)
            args = vocabulary_parallel_loss, logits, targets, logits + offsets
            yield Case(name, n, _offset, args, [Lost(moved=close(0.0, atol=1e-9))] * n)


@check("12-ex6-loss", points=0.5)
def loss_sends_a_few_elements_per_position(vocabulary_parallel_loss, *, rng):
    """In forward only all-reduces are sent, of 1 to 4 elements per position together; in backward nothing is."""
    for n in (2, 4):
        count = int(rng.integers(3, 7))
        logits, targets = rng.normal(0, 2, (count, 16 * n)), rng.integers(0, 16 * n, count)
        yield _case(rng, n, f"{count} positions", vocabulary_parallel_loss, logits, targets, "sends")


@check("12-ex6-loss", points=0.25)
def loss_leaves_its_arguments(vocabulary_parallel_loss, *, rng):
    """Logits and targets are as they were after forward and backward."""
    for n in (2, 3):
        args = vocabulary_parallel_loss, rng.normal(0, 2, (3 * n, 3 * n)), rng.permutation(3 * n)
        kept = Lost(changed=[], different=at_most(math.inf, least=2))  # what does nothing leaves everything
        yield Case(f"{3 * n} positions and columns, targets on every rank", n, _given, args, [kept] * n)
