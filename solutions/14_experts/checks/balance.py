"""Exercise 6: how even the choices of all ranks are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checking.cases import Case, close, complaint, fact
from autograder.checking.check import check

from .routing import softmax

BALANCE = "14-ex6-balance"
RATE = 0.125


@dataclass
class Balanced:
    """What a rank computes; the loss is compared as the mean of the ranks' results."""

    loss: Any = fact("the mean of the ranks' results")
    gradient: Any = fact("the gradient of the probabilities")
    bias: Any = fact("the new bias")


@dataclass(frozen=True)
class Batch:
    """probabilities[r] (n_r, E) and chosen[r] (n_r, k) of each rank."""

    name: str
    probabilities: list[np.ndarray]
    chosen: list[np.ndarray]

    @property
    def counts(self) -> np.ndarray:
        """Choices of each expert, over all ranks."""
        return np.bincount(np.concatenate([c.ravel() for c in self.chosen]), minlength=self.probabilities[0].shape[1])


def _batches(rng: np.random.Generator, n: int) -> list[Batch]:
    found = []
    for sizes, experts, k in (((6,) * n, 4, 1), ((7, 2, 0, 5)[:n], 5, 2), ((3, 8, 4, 0)[:n], 3, 2)):
        likely = softmax(rng.standard_normal((1, experts)))[0]
        chosen = [
            np.array([rng.choice(experts, k, replace=False, p=likely) for _ in range(m)], np.int64).reshape(m, k)
            for m in sizes
        ]
        name = f"tokens {list(sizes)}, {experts} experts, k = {k}"
        found.append(Batch(name, [softmax(rng.standard_normal((m, experts))) for m in sizes], chosen))
    chosen = [np.full((4, 1), rank, np.int64) for rank in range(n)]
    name = "each rank chooses another expert, all equally often"
    return [*found, Batch(name, [softmax(rng.standard_normal((4, n))) for _ in range(n)], chosen)]


def _drive_loss(rank: int, world_size: int, balance_loss: Callable, batch: Batch) -> Balanced:
    p = torch.from_numpy(batch.probabilities[rank]).requires_grad_()
    loss = balance_loss(p, torch.from_numpy(batch.chosen[rank]))
    loss.backward()
    return Balanced(float(loss.detach()), torch.zeros_like(p) if p.grad is None else p.grad)


def _mean(facts: list[Balanced]) -> list[Balanced]:
    mean = float(np.mean([one.loss for one in facts]))
    return [Balanced(mean, one.gradient) for one in facts]


def _loss_of(balance_loss: Callable, batch: Batch, **more: Any) -> Case:
    shares, tokens, n = batch.counts / batch.counts.sum(), sum(map(len, batch.chosen)), len(batch.chosen)
    loss = close(len(shares) * float(shares @ np.concatenate(batch.probabilities).mean(axis=0)), rtol=1e-6)
    slope = len(shares) * shares * n / tokens
    expect = [Balanced(loss, close(np.tile(slope, (len(mine), 1)), rtol=1e-6)) for mine in batch.chosen]
    return Case(batch.name, n, _drive_loss, (balance_loss, batch), expect, sees=_mean, **more)


@check(BALANCE, points=1.5)
def the_balance_is_that_of_all_tokens(balance_loss, *, rng):
    """The mean of the ranks' results is E · Σ f·P over all ranks' tokens, and so is its gradient; f has none."""
    for n in (2, 3, 4, 1):
        for batch in _batches(rng, n):
            yield _loss_of(balance_loss, batch)


@check(BALANCE, points=0.25)
def one_all_reduce_tells_the_counts(balance_loss, *, rng):
    """balance_loss makes one all-reduce, of a number for each expert, and backward makes none."""
    for n in (2, 3):
        for batch in _batches(rng, n):
            experts = len(batch.counts)

            def judge(rank: int, parts: list, experts: int = experts) -> str:
                sent = [(m.call, m.bytes) for part in parts for m in part]
                right = len(sent) == 1 and sent[0][0] == "all_reduce" and sent[0][1] <= 8 * experts
                return "" if right else f"rank {rank} called {sent}, expected one all-reduce of {experts} numbers"

            case = _loss_of(balance_loss, batch, judge=judge)
            case.expect = [Balanced()] * n
            yield case


def _drive_bias(rank: int, world_size: int, nudge: Callable, bias: np.ndarray, chosen: list[np.ndarray]) -> Balanced:
    return Balanced(bias=nudge(torch.from_numpy(bias), torch.from_numpy(chosen[rank]), RATE))


def _nudged(rng: np.random.Generator, nudge: Callable, batch: Batch) -> Case:
    bias = rng.integers(-8, 9, len(batch.counts)) / 8
    right = Balanced(bias=close(bias + RATE * np.sign(batch.counts.mean() - batch.counts), rtol=1e-6))
    n = len(batch.chosen)
    return Case(batch.name, n, _drive_bias, (nudge, bias, batch.chosen), [right] * n)


@check(BALANCE, points=1)
def the_bias_follows_all_counts(nudge, *, rng):
    """By all ranks' counts, a bias goes up by the rate below the mean, and down by it above."""
    for n in (2, 3, 1):
        for batch in _batches(rng, n)[:3]:
            if np.all(batch.counts != batch.counts.mean()):
                yield _nudged(rng, nudge, batch)
        uneven = [np.array([[0], [1], [1]][: 3 - (rank > 0)], np.int64) for rank in range(n)]
        yield _nudged(rng, nudge, Batch("experts 0 and 1", [softmax(np.zeros((len(c), 2))) for c in uneven], uneven))


@dataclass
class Even:
    """What nudge makes of even counts."""

    idle: str = complaint()
    bias: Any = fact("the new bias")


def _drive_even(rank: int, world_size: int, nudge: Callable, bias: np.ndarray, chosen: list[np.ndarray]) -> Even:
    given = torch.from_numpy(bias)
    moved = nudge(given.clone(), torch.zeros(4, 1, dtype=torch.int64), RATE)
    text = "nudge moves no bias where all tokens choose expert 0" if torch.equal(moved, given) else ""
    return Even(text, nudge(given.clone(), torch.from_numpy(chosen[rank]), RATE))


@check(BALANCE, points=0.25)
def even_experts_stay(nudge, *, rng):
    """The bias of an expert whose count is the mean stays."""
    for n in (2, 3):
        chosen, bias = [rng.permutation(np.arange(4))[:, None] for _ in range(n)], rng.integers(-8, 9, 4) / 8
        expect = [Even("", close(bias))] * n
        yield Case("all four experts equally often", n, _drive_even, (nudge, bias, chosen), expect)
