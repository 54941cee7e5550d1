"""Exercise 6: the tokens of a rank, and the loss of all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Call, Case, close, fact, sentence
from autograder.checks.check import check

from .blocks import ERROR

LOSS = "13-ex6-loss"
IGNORED = -100


def _both(found: Any, *_: Any) -> Any:
    return [x.tolist() for x in found]


@check(LOSS, points=0.5)
def targets_are_the_next_tokens(cut_batch, *, rng):
    """x holds the tokens at this rank's positions, y the tokens after them, for any positions, or none."""
    tokens = rng.integers(0, 99, (3, 14))
    for where in ([0, 1, 2], [12], [], sorted(rng.choice(13, 5, replace=False).tolist())):
        expected = [tokens[:, where].tolist(), tokens[:, [w + 1 for w in where]].tolist()]
        given = torch.from_numpy(tokens), torch.tensor(where, dtype=torch.int64)
        yield Call(cut_batch, *given, gives=expected, sees=_both, name=f"positions {where}", what="(x, y)")


@dataclass
class Loss:
    """What `sequence_loss` gives a rank."""

    form: str = sentence()
    loss: Any = fact("the loss")
    gradient: Any = fact("the gradient of the logits")
    apart: Any = fact("the difference between its loss and the others'")


def _backward(rank: int, world_size: int, sequence_loss: Callable, logits: list, y: list) -> Loss:
    own = torch.from_numpy(logits[rank]).requires_grad_()
    loss = sequence_loss(own, torch.from_numpy(y[rank]))
    dist.barrier()
    if not isinstance(loss, torch.Tensor) or loss.dim() or not loss.requires_grad:
        return Loss(f"expected a scalar tensor with a graph, got {loss!r:.80}", None, None)
    loss.backward()
    if own.grad is None:
        return Loss("no gradient reaches the logits", None, None)
    return Loss("", loss.detach(), own.grad)


def _right(logits: list[np.ndarray], y: list[np.ndarray]) -> list[Loss]:
    """The mean over all counted tokens, and each rank's part of its gradient: softmax minus target, over all."""
    count, total, gradients = sum(int((one != IGNORED).sum()) for one in y), 0.0, []
    for scores, targets in zip(logits, y, strict=True):
        powers = np.exp(scores.astype(np.float64))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        gradient = np.zeros(scores.shape)
        for place in zip(*np.nonzero(targets != IGNORED), strict=True):
            total -= float(np.log(shares[place][targets[place]]))
            gradient[place] = shares[place] / count
            gradient[place][targets[place]] -= 1 / count
        gradients.append(gradient)
    return [Loss("", close(total / count, ERROR), close(g, atol=ERROR)) for g in gradients]


def _case(rng: np.random.Generator, function: Callable, sizes: tuple[int, ...], silent: int = -1, **more: Any) -> Case:
    """silent: a rank of which no token counts."""
    logits = [2 * rng.standard_normal((2, size, 5)).astype(np.float32) for size in sizes]
    y = [np.where(rng.random((2, size)) < 0.3, IGNORED, rng.integers(0, 5, (2, size))) for size in sizes]
    for rank, targets in enumerate(y):
        if rank == silent:
            targets[:] = IGNORED
        elif targets.size:
            targets.flat[0], targets.flat[-1] = 1, IGNORED
    name = f"tokens {list(sizes)}" + (f", none of rank {silent} counts" if silent >= 0 else "")
    return Case(name, len(sizes), _backward, (function, logits, y), _right(logits, y), parts=2, **more)


@check(LOSS, points=1)
def the_loss_is_that_of_one_process(sequence_loss, *, rng):
    """On every rank the mean over all ranks' counted tokens; each rank's logits get their part of its gradient."""
    for sizes in ((4, 1), (5, 2, 6), (4, 3, 6, 2), (7,)):
        for _ in range(2):
            yield _case(rng, sequence_loss, sizes)


def _beside(facts: list[Loss], other: int) -> list[Loss]:
    """The facts, with what each loss has above that of a rank with tokens."""
    if any(one.form for one in facts):
        return facts
    return [replace(one, apart=float(one.loss) - float(facts[other].loss)) for one in facts]


@check(LOSS, points=0.25)
def ranks_without_targets_take_part(sequence_loss, *, rng):
    """A rank of which no token counts, or that has none, has the loss of the others, and a gradient of zeros."""
    for sizes, silent in (((4, 3), 1), ((2, 5, 3), 0), ((4, 0), -1), ((0, 2, 3), -1)):
        quiet = silent if silent >= 0 else sizes.index(0)
        sees = functools.partial(_beside, other=1 if quiet == 0 else 0)
        case = _case(rng, sequence_loss, sizes, silent, sees=sees)
        zeros = Loss("", gradient=close(np.zeros((2, sizes[quiet], 5))), apart=close(0.0, atol=ERROR))
        case.expect = [zeros if rank == quiet else Loss("") for rank in range(len(sizes))]
        yield case


def _two_numbers(rank: int, parts: list) -> str:
    """All-reduces of two numbers at most in forward, nothing in backward."""
    forward, backward = parts
    if other := [m.call for m in forward if m.call != "all_reduce"]:
        return f"rank {rank} called {other[0]} in forward, expected all-reduces only"
    if not 0 < (nbytes := sum(m.bytes for m in forward)) <= 16:
        return f"rank {rank} put {nbytes} bytes into all-reduces, expected two numbers"
    return f"rank {rank} called {backward[0].call} in backward, expected no message" if backward else ""


@check(LOSS, points=0.25)
def two_numbers_are_all_reduced(sequence_loss, *, rng):
    """The forward pass sends only all-reduces, of two numbers in all; the backward pass sends nothing."""
    for sizes in ((4, 1), (5, 2, 6)):
        case = _case(rng, sequence_loss, sizes, judge=_two_numbers)
        case.expect = [Loss("")] * len(sizes)
        yield case
