"""Exercise 6: how even the choices of all ranks are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check

from .routing import softmax

BALANCE = "14-ex6-balance"
RATE = 0.125


@dataclass
class Balanced:
    """What a rank computes; the loss is compared as the mean of the ranks' results."""

    loss: Any = fact("the mean of the ranks' results")
    gradient: Any = fact("the gradient of the probabilities, scaled to the right mean of the results,")
    nan: str = sentence()
    bias: Any = fact("the new bias")
    changed: str = sentence()


@dataclass(frozen=True)
class Batch:
    """probabilities[r] (n_r, E) and chosen[r] (n_r, k) of each rank."""

    name: str
    probabilities: list[np.ndarray]
    chosen: list[np.ndarray]


def _counts(batch: Batch) -> np.ndarray:
    """Choices of each expert, over all ranks."""
    return np.bincount(np.concatenate([c.ravel() for c in batch.chosen]), minlength=batch.probabilities[0].shape[1])


def _batches(rng: np.random.Generator, n: int) -> list[Batch]:
    found, some = [], 3 if n == 2 else 2  # k is not N, so that a number that is off tells by which of them
    for sizes, experts, k in (((6,) * n, 4, 1), ((7, 2, 4, 5)[:n], 5, some), ((3, 8, 4, 1)[:n], 4, some)):
        likely = softmax(rng.standard_normal((1, experts)))[0]
        chosen = [
            np.array([rng.choice(experts, k, replace=False, p=likely) for _ in range(m)], np.int64).reshape(m, k)
            for m in sizes
        ]
        name = f"tokens {list(sizes)}, {experts} experts, k = {k}"
        found.append(Batch(name, [_probable(rng, m, experts) for m in sizes], chosen))
    chosen = [np.full((4, 1), rank, np.int64) for rank in range(n)]
    name = "each rank chooses another expert, all equally often"
    return [*found, Batch(name, [_probable(rng, 4, n) for _ in range(n)], chosen)]


def _probable(rng: np.random.Generator, tokens: int, experts: int) -> np.ndarray:
    return softmax(rng.standard_normal((tokens, experts))).astype(np.float32)


def _without_tokens(rng: np.random.Generator, n: int) -> Batch:
    """Rank 1 has none."""
    sizes = (5, 0, 3)[:n]
    chosen = [rng.integers(0, 4, (m, 2)) for m in sizes]
    return Batch(f"tokens {list(sizes)}, 4 experts, k = 2", [_probable(rng, m, 4) for m in sizes], chosen)


def _drive_loss(rank: int, world_size: int, balance_loss: Callable, batch: Batch) -> Balanced:
    p = torch.from_numpy(batch.probabilities[rank]).requires_grad_()
    loss = balance_loss(p, torch.from_numpy(batch.chosen[rank]))
    (loss + 0.0 * p.sum()).backward()  # as next to the task's loss
    return Balanced(float(loss.detach()), torch.zeros_like(p) if p.grad is None else p.grad)


def _mean(facts: list[Balanced]) -> float:
    return float(np.mean([one.loss for one in facts]))


def _loss_of(balance_loss: Callable, batch: Batch, which: str, **more: Any) -> Case:
    """which: of the mean of the results and its gradient, what is compared.

    A factor that is wrong in both is seen in the mean alone: gradients are multiplied by the right mean over theirs.
    """
    shares, tokens, n = _counts(batch) / _counts(batch).sum(), sum(map(len, batch.chosen)), len(batch.chosen)
    loss = len(shares) * float(shares @ np.concatenate(batch.probabilities).mean(axis=0, dtype=np.float64))
    slope = len(shares) * shares * n / tokens

    def sees(facts: list[Balanced]) -> list[Balanced]:
        mean = _mean(facts)
        factor = loss / mean if mean and np.isfinite(mean) else 1.0
        return [Balanced(mean, np.asarray(one.gradient) * factor) for one in facts]

    right = {"loss": lambda _: close(loss, rtol=1e-5), "gradient": lambda m: close(np.tile(slope, (m, 1)), rtol=1e-5)}
    expect = [Balanced(**{which: right[which](len(mine))}) if which else Balanced() for mine in batch.chosen]
    return Case(batch.name, n, _drive_loss, (balance_loss, batch), expect, sees=sees, **more)


@check(BALANCE, points=0.75)
def the_balance_is_that_of_all_tokens(balance_loss, *, rng):
    """The mean of the ranks' results is E · Σ f·P over all ranks' tokens."""
    for n in (2, 3, 4, 1):
        for batch in _batches(rng, n):
            yield _loss_of(balance_loss, batch, "loss")


@check(BALANCE, points=0.25)
def each_rank_has_the_gradient_of_its_tokens(balance_loss, *, rng):
    """Each rank's gradient is that of E · Σ f·P for its own tokens, where f counts as a constant."""
    for n in (2, 3, 1):
        for batch in _batches(rng, n):
            yield _loss_of(balance_loss, batch, "gradient")


@check(BALANCE, points=0.5)
def a_rank_without_tokens_takes_part(balance_loss, *, rng):
    """With no token on some rank, balance_loss ends on all ranks, and all results are numbers."""

    def sees(facts: list[Balanced]) -> list[Balanced]:
        return [Balanced(nan="" if np.isfinite(one.loss) else f"the result is {one.loss}") for one in facts]

    for n in (2, 3):
        case = _loss_of(balance_loss, _without_tokens(rng, n), "")
        case.sees, case.expect = sees, [Balanced(nan="")] * n
        yield case


@check(BALANCE, points=0.25)
def one_all_reduce_tells_the_counts(balance_loss, *, rng):
    """balance_loss makes one all-reduce, of a number for each expert, and backward makes none."""
    for n in (2, 3):
        for batch in (*_batches(rng, n), _without_tokens(rng, n)):
            experts = len(_counts(batch))

            def judge(rank: int, parts: list, experts: int = experts) -> str:
                sent = [(m.call, m.bytes) for part in parts for m in part]
                right = len(sent) == 1 and sent[0][0] == "all_reduce" and sent[0][1] <= 8 * experts
                return "" if right else f"rank {rank} called {sent}, expected one all-reduce of {experts} numbers"

            yield _loss_of(balance_loss, batch, "", judge=judge)


def _drive_bias(rank: int, world_size: int, nudge: Callable, bias: np.ndarray, chosen: list[np.ndarray]) -> Balanced:
    given = torch.from_numpy(bias.copy())
    moved = nudge(given, torch.from_numpy(chosen[rank]), RATE).clone()
    changed = "" if np.array_equal(given.numpy(), bias) else "nudge changed the bias that it was given"
    if not np.any(moved.numpy()) or np.array_equal(moved.numpy(), bias):
        changed = "nudge returned no bias that was moved"
    return Balanced(bias=moved, changed=changed and f"{changed}, expected a new one")


def _nudged(rng: np.random.Generator, nudge: Callable, batch: Batch) -> Case:
    bias = (rng.integers(-8, 9, len(_counts(batch))) / 8).astype(np.float32)
    right = Balanced(bias=close(bias + RATE * np.sign(_counts(batch).mean() - _counts(batch)), rtol=1e-6))
    n = len(batch.chosen)
    return Case(batch.name, n, _drive_bias, (nudge, bias, batch.chosen), [right] * n)


@check(BALANCE, points=0.75)
def the_bias_follows_all_counts(nudge, *, rng):
    """By all ranks' counts, a bias goes up by the rate below the mean, and down by it above."""
    for n in (2, 3, 1):
        for batch in _batches(rng, n)[:3]:
            if np.all(_counts(batch) != _counts(batch).mean()):
                yield _nudged(rng, nudge, batch)
        uneven = [np.array([[0], [1], [1]][: 3 - (rank > 0)], np.int64) for rank in range(n)]
        yield _nudged(rng, nudge, Batch("experts 0 and 1", [softmax(np.zeros((len(c), 2))) for c in uneven], uneven))


@check(BALANCE, points=0.25)
def nudge_returns_a_new_bias(nudge, *, rng):
    """nudge leaves the bias that it is given as it was."""
    for n in (1, 2):
        case = _nudged(rng, nudge, _batches(rng, n)[1])
        case.expect = [Balanced(changed="")] * n
        yield case


@dataclass
class Even:
    """What nudge makes of even counts."""

    idle: str = sentence()
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
        chosen = [rng.permutation(np.arange(4))[:, None] for _ in range(n)]
        bias = (rng.integers(-8, 9, 4) / 8).astype(np.float32)
        expect = [Even("", close(bias))] * n
        yield Case("all four experts equally often", n, _drive_even, (nudge, bias, chosen), expect)
