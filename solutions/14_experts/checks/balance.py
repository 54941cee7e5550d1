"""Exercise 6: how even the choices of all ranks are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, expect_close
from autograder.checking.stage import run_ranks
from autograder.checks.experts.routing import softmax

BALANCE = "14-ex6-balance"
RATE = 0.125


@dataclass(frozen=True)
class Case:
    """probabilities[r] (n_r, E) and chosen[r] (n_r, k) of each rank; a bias (E,)."""

    name: str
    probabilities: list[np.ndarray]
    chosen: list[np.ndarray]
    bias: np.ndarray
    dtype: str

    @property
    def counts(self) -> np.ndarray:
        """Choices of each expert, over all ranks."""
        return np.bincount(np.concatenate([one.ravel() for one in self.chosen]), minlength=len(self.bias))


def _case(rng: np.random.Generator, sizes: tuple[int, ...], num_experts: int, k: int, dtype: str) -> Case:
    probabilities = [softmax(rng.standard_normal((n, num_experts))) for n in sizes]
    likely = softmax(rng.standard_normal((1, num_experts)))[0]
    chosen = [
        np.array([rng.choice(num_experts, k, replace=False, p=likely) for _ in range(n)], np.int64).reshape(n, k)
        for n in sizes
    ]
    name = f"{count_of_ranks(len(sizes))}, tokens {list(sizes)}, {num_experts} experts, k = {k}, {dtype}"
    return Case(name, probabilities, chosen, rng.integers(-8, 9, num_experts) / 8, dtype)


def _cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    even, uneven = (6,) * world_size, (7, 2, 0, 5)[:world_size]
    cases = [
        _case(rng, even, 4, 1, "float64"),
        _case(rng, uneven, 5, 2, "float64"),
        _case(rng, uneven, 3, 2, "float32"),
    ]
    # Every expert equally often, over all ranks; on each rank, one expert only.
    probabilities = [softmax(rng.standard_normal((4, world_size))) for _ in range(world_size)]
    chosen = [np.full((4, 1), rank, np.int64) for rank in range(world_size)]
    name = f"{count_of_ranks(world_size)}, each of which chooses another expert"
    return [*cases, Case(name, probabilities, chosen, np.zeros(world_size), "float64")]


def _drive(rank: int, world_size: int, functions: tuple[Any, Any], cases: list[Case]) -> list[dict[str, Any]]:
    """Inside a rank: for each case the loss, its backward and a nudge, where asked for, with barriers in between."""
    balance_loss, nudge = functions
    seen = []
    for case in cases:
        kind = getattr(torch, case.dtype)
        p = torch.from_numpy(case.probabilities[rank]).to(kind).requires_grad_()
        chosen, bias = torch.from_numpy(case.chosen[rank].copy()), torch.from_numpy(case.bias).to(kind)
        one: dict[str, Any] = {}
        dist.barrier()
        if balance_loss is not None:
            loss = balance_loss(p, chosen)
            one["shape"], one["loss"] = list(loss.shape), float(loss.detach())
        dist.barrier()
        if balance_loss is not None and loss.requires_grad:
            loss.backward()
        one["grad"] = None if p.grad is None else p.grad.double().numpy().copy()
        dist.barrier()
        if nudge is not None:
            moved = nudge(bias, chosen, RATE)
            one["bias"], one["kind"] = moved.detach().double().numpy().copy(), str(moved.dtype)[6:]
            one["stays"] = bool(np.array_equal(bias.double().numpy(), case.bias))
        seen.append(one)
    dist.barrier()
    return seen


@check(BALANCE, points=1.5)
def the_balance_is_that_of_all_tokens(balance_loss, *, rng):
    """The mean of the ranks' results is E · Σ f·P over all ranks' tokens, and so is its gradient; f has none."""
    for world_size in (1, 2, 3, 4):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, ((balance_loss, None), cases))
        for c, case in enumerate(cases):
            _expect_balance(case, [mine[c] for mine in results])


def _expect_balance(case: Case, seen: list[dict]) -> None:
    """The ranks' results and gradients are those of all tokens."""
    shares = case.counts / case.counts.sum()
    tokens = sum(map(len, case.probabilities))
    want = len(shares) * float(shares @ np.concatenate(case.probabilities).mean(axis=0))
    rtol = 1e-5
    evidence = [[one["loss"], "None" if one["grad"] is None else one["grad"]] for one in seen]
    for rank, one in each_rank(case.name, seen, evidence=lambda _: evidence):
        rank.expect_equal(one["shape"], [], what="the shape of the result")
    mean = np.array(np.mean([one["loss"] for one in seen]))
    expect_close(case.name, mean, np.array(want), what="the mean of the results", rtol=rtol, evidence=evidence)
    for rank, one in each_rank(case.name, seen, evidence=lambda _: evidence):
        rank.expect(one["grad"] is not None, "no gradient reaches the probabilities")
        rows = len(case.probabilities[rank.rank])
        slope = np.tile(len(shares) * shares * len(seen) / tokens, (rows, 1))
        rank.expect_close(one["grad"], slope, what="the gradient of the probabilities", rtol=rtol)


@check(BALANCE, points=1)
def the_bias_follows_all_counts(nudge, *, rng):
    """By all ranks' counts, a bias goes up by the rate below the mean, down above it; the given tensor stays."""
    for world_size in (1, 2, 3, 4):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, ((None, nudge), cases))
        for c, case in enumerate(cases):
            want = case.bias + RATE * np.sign(case.counts.mean() - case.counts)
            outcomes = [mine[c] for mine in results]
            for rank, one in each_rank(case.name, outcomes, evidence=lambda one: [one["bias"], one["stays"]]):
                rank.expect_close(one["bias"], want, what="the new bias", rtol=1e-6)
                rank.expect_equal(one["kind"], case.dtype, what="its dtype")
                rank.expect(one["stays"], "the given bias was changed: return a new one")


@check(BALANCE, points=0.5)
def one_all_reduce_tells_the_counts(balance_loss, nudge, *, rng):
    """balance_loss and nudge make one all-reduce each, of a number for each expert, and backward makes none."""
    for world_size in (2, 3):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, ((balance_loss, nudge), cases))
        parts = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for c, case in enumerate(cases):
            for place, what in ((1, "balance_loss"), (2, "its backward"), (3, "nudge")):
                calls = [[(m.call, m.bytes) for m in mine[3 * c + place]] for mine in parts]
                for rank, mine in each_rank(f"{case.name}, {what}", calls):
                    if what == "its backward":
                        rank.expect(not mine, f"backward called {mine}, expected nothing")
                    else:
                        right = len(mine) == 1 and mine[0][0] == "all_reduce" and mine[0][1] <= 8 * len(case.bias)
                        rank.expect(right, f"{what} called {mine}, expected one all-reduce of {len(case.bias)} numbers")
            _expect_balance(case, [mine[c] for mine in results])
