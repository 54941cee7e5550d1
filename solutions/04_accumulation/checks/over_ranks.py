"""Lesson 04, exercises 4 and 5: an evaluation over ranks that is exact, and the noise in the ranks' gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import caught, each_rank, fail
from autograder.checking.stage import run_ranks

EVALUATE, NOISE = "04-ex4-evaluate", "04-ex5-noise-scale"

# ---- 4 · evaluate ----

WORLD_SIZES = (1, 2, 3, 4)
#: How many examples each evaluation has, and whether they have a loss other than 0. The same length comes again with
#: other losses.
EVALUATIONS = ((12, True), (10, True), (7, True), (3, True), (1, True), (101, True), (12, True), (12, False))


def _losses(seed: int, length: int, some: bool) -> torch.Tensor:
    """Losses of very different size, half of them below zero, (length,), float64: a sum in float32 would show."""
    drawn = torch.rand(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 4 * 1000 - 100
    return drawn if some else torch.zeros_like(drawn)


def _evaluated(rank: int, world_size: int, evaluate: Any, seed: int, evaluations: tuple) -> list[dict]:
    """On one rank, in each evaluation: what was returned, of which type, and which examples were asked for."""
    seen = []
    for k, (length, some) in enumerate(evaluations):
        values, asked, odd = _losses(seed + k, length, some), [], []

        def losses(indices, values=values, asked=asked, odd=odd):
            if type(indices) is not list:
                odd.append(f"a {type(indices).__name__}")
            odd.extend(f"a list with a {type(i).__name__} in it" for i in indices if type(i) is not int)
            indices = [int(i) for i in indices]
            asked.extend(indices)
            return values[indices]

        got = evaluate(rank, world_size, length, losses)
        number = isinstance(got, (int, float, torch.Tensor, np.generic)) and np.size(got) == 1
        seen.append({"got": float(got) if number else None, "type": type(got).__name__, "asked": asked, "odd": odd[:1]})
    return seen


def _refused(rank: int, world_size: int, evaluate: Any, length: int) -> tuple[str, str]:
    return caught(evaluate, rank, world_size, length, lambda indices: torch.zeros(len(indices), dtype=torch.float64))


@check(EVALUATE, points=2)
def evaluation_is_the_mean_over_all_examples(evaluate, *, rng):
    """Every rank returns the mean over all examples, to twelve digits, for lengths that the ranks do not divide."""
    seed = inputs.seed(rng)
    for world_size in WORLD_SIZES:
        results = run_ranks(_evaluated, world_size, (evaluate, seed, EVALUATIONS))
        for k, (length, some) in enumerate(EVALUATIONS):
            case = _case(k, length, some, world_size)
            _expect_mean(case, [outcome[k] for outcome in results], _losses(seed + k, length, some))


def _case(k: int, length: int, some: bool, world_size: int) -> str:
    again = any(length == before for before, _ in EVALUATIONS[:k])
    losses = ", other losses" if again and some else "" if some else ", all losses 0"
    return f"{length} examples{losses}, N = {world_size}"


def _expect_mean(case: str, seen: list[dict], losses: torch.Tensor) -> None:
    """Every rank has returned the mean loss of all examples."""
    expected, size = losses.numpy().mean(), losses.abs().mean().item()

    def evidence(one: dict) -> list:
        """An error of a float32 sum differs from a smaller one."""
        return [str(one["type"]), one["got"], one["got"] is not None and abs(one["got"] - expected) > 1e-10 * size]

    for rank, outcome in each_rank(case, seen, evidence):
        if outcome["got"] is None:
            rank.fail(f"evaluate returned {outcome['type']}, expected a float")
        rank.expect_close(outcome["got"], expected, what="the mean loss", rtol=0, atol=1e-12 * size)
        rank.expect(outcome["type"] in ("float", "float64"), f"got {outcome['type']}, expected a float")


@check(EVALUATE, points=0.5)
def evaluation_asks_for_each_example_once(evaluate, *, rng):
    """Each example is evaluated once, on one rank, and the ranks' numbers of examples differ by at most one."""
    seed = inputs.seed(rng)
    for world_size in (2, 4):
        results = run_ranks(_evaluated, world_size, (evaluate, seed, EVALUATIONS))
        for k, (length, some) in enumerate(EVALUATIONS):
            case, asked = _case(k, length, some, world_size), [outcome[k]["asked"] for outcome in results]
            every, sizes = sorted(i for mine in asked for i in mine), [len(mine) for mine in asked]
            for [odd] in (outcome[k]["odd"] for outcome in results if outcome[k]["odd"]):
                fail(f"losses was called with {odd}, expected a list of ints", case, odd)
            if every != list(range(length)):
                fail(f"the ranks evaluate {len(every)} examples, expected each of {length} once", case, asked)
            if max(sizes) - min(sizes) > 1:
                fail(f"the ranks have {sizes} examples, which differ by more than one", case, asked)
            _expect_mean(case, [outcome[k] for outcome in results], _losses(seed + k, length, some))


@check(EVALUATE, points=0.5)
def evaluation_refuses_an_empty_set(evaluate, *, rng):
    """A length below 1 raises a ValueError that names length, on every rank."""
    seed = inputs.seed(rng)
    for length in (0, 1, -3):
        if length == 1:
            results = run_ranks(_evaluated, 2, (evaluate, seed, ((length, True),)))
            _expect_mean("1 example, N = 2", [outcome[0] for outcome in results], _losses(seed, length, True))
            continue
        results = run_ranks(_refused, 2, (evaluate, length))
        for rank, (kind, text) in each_rank(f"{length} examples, N = 2", results):
            rank.expect(kind == "ValueError", f"expected a ValueError, got {kind or 'nothing'}")
            rank.expect("length" in text, f"the ValueError should name length, but it says {text!r}")


# ---- 5 · noise_scale ----


OPPOSITE, NEARLY_EQUAL = "opposite gradients", "nearly equal gradients"


def _gradient(seed: int, rank: int, world_size: int, numel: int, dtype: str, kind: str) -> torch.Tensor:
    """A rank's gradient: a part that all share, and noise of its own; or ones that cancel in the mean."""
    for_all, for_one = (torch.Generator().manual_seed(s) for s in (seed, seed + 1 + rank))
    if kind == OPPOSITE:
        one = torch.randn(numel, generator=for_all, dtype=torch.float64)
        return (one * math.cos(2 * math.pi * rank / world_size)).to(getattr(torch, dtype))
    if kind == NEARLY_EQUAL:
        whole = torch.randint(1000, 2000, (numel,), generator=for_all)
        return (whole + torch.randint(-3, 4, (numel,), generator=for_one)).to(getattr(torch, dtype))
    shared = torch.rand(numel, generator=for_all, dtype=torch.float64)
    own = torch.randn(numel, generator=for_one, dtype=torch.float64)
    return (shared + own).to(getattr(torch, dtype))


def _measured(rank: int, world_size: int, noise_and_signal: Any, seed: int, cases: tuple) -> list[dict]:
    """On one rank, in each case: what was returned, and whether the gradient is what it was."""
    seen = []
    for numel, rows, dtype, kind in cases:
        grad = _gradient(seed, rank, world_size, numel, dtype, kind)
        before = grad.clone()
        got = noise_and_signal(rank, world_size, grad, rows)
        pair = isinstance(got, (tuple, list)) and len(got) == 2
        numbers = [float(one) for one in got] if pair else None
        seen.append({"got": numbers, "type": type(got).__name__, "same": torch.equal(grad, before)})
    return seen


#: (parameters, rows, dtype, what is special about the gradients). Of opposite ones the signal is -noise / (N B). Nearly
#: equal ones are whole numbers: float32 holds them and their sum, but not the sum of their squares.
CASES = (
    (5, 8, "float64", ""),
    (1, 1, "float64", ""),
    (300, 32, "float32", ""),
    (5, 8, "float64", OPPOSITE),
    (300, 32, "float32", NEARLY_EQUAL),
)


@check(NOISE, points=2)
def noise_and_signal_are_unbiased(noise_and_signal, *, rng):
    """Every rank returns the unbiased estimates of tr Σ and of |G|², from N gradients of B examples each."""
    seed = inputs.seed(rng)
    for world_size in (2, 3, 4):
        results = run_ranks(_measured, world_size, (noise_and_signal, seed, CASES))
        for k, (numel, rows, dtype, kind) in enumerate(CASES):
            case = f"N = {world_size}, B = {rows}, {numel} parameters, {dtype}{kind and ', ' + kind}"
            _expect_estimates(case, [outcome[k] for outcome in results], seed, CASES[k])


def _expect_estimates(case: str, outcomes: list[dict], seed: int, inputs_of: tuple) -> None:
    """Every rank has returned the noise and the signal of all ranks' gradients. inputs_of: one of `CASES`."""
    numel, rows, dtype, kind = inputs_of
    world_size = len(outcomes)
    drawn = [_gradient(seed, rank, world_size, numel, dtype, kind) for rank in range(world_size)]
    grads = np.stack([grad.double().numpy() for grad in drawn])
    noise = rows * grads.var(axis=0, ddof=1).sum()
    signal = (grads.mean(axis=0) ** 2).sum() - noise / (rows * world_size)
    rtol = 1e-9 if dtype == "float64" else 1e-4
    for rank, outcome in each_rank(case, outcomes, lambda one: [one["type"], *(one["got"] or [])]):
        if outcome["got"] is None:
            rank.fail(f"expected a pair of floats, got {outcome['type']}")
        for name, got, expected in zip(("noise", "signal"), outcome["got"], (noise, signal), strict=True):
            # The signal is a difference: both parts bound its rounding error.
            rank.expect_close(got, np.array(expected), what=f"the {name}", rtol=rtol, atol=rtol * noise)


@check(NOISE, points=0.5)
def noise_costs_one_all_reduce(noise_and_signal, *, rng):
    """Each rank all-reduces as many numbers as the gradient has, and at most 8 more; it gathers no gradients."""
    numel = 5_000
    case = f"N = 4, {numel:,} float32 parameters"
    seed, drawn = inputs.seed(rng), (numel, 4, "float32", "")
    results = run_ranks(_measured, 4, (noise_and_signal, seed, (drawn,)))
    numbers = [sum(_numbers(m, 4) for m in results.ledger.of(rank)) for rank in range(4)]
    for rank, sent in enumerate(numbers):
        if sent > numel + 8:
            text = f"rank {rank} communicates {sent:,} numbers, but the gradient has only {numel:,}"
            fail(text, case, numbers)
        reduced = sum(_numbers(m, 4) for m in results.ledger.of(rank) if m.call == "all_reduce")
        if reduced < numel:
            text = (
                f"rank {rank} all-reduces {reduced:,} numbers, the gradient has {numel:,}: do not send it another way"
            )
            fail(text, case, [*numbers, reduced])
    _expect_estimates(case, [outcome[0] for outcome in results], seed, drawn)


def _numbers(message: Any, world_size: int) -> int:
    """How many numbers a call costs a rank, in units of an all-reduce; whole gradients that are gathered cost N."""
    if message.call == "barrier":
        return 0
    size = 8 if "64" in (message.dtype or "") else 4
    return message.bytes // size * (world_size if "gather" in message.call else 1)


@check(NOISE, points=0.5)
def noise_leaves_the_gradient_alone(noise_and_signal, *, rng):
    """The gradient that is given stays as it was, on every rank."""
    seed = inputs.seed(rng)
    results = run_ranks(_measured, 2, (noise_and_signal, seed, CASES))
    for rank, outcomes in each_rank("N = 2", results, lambda all_cases: [one["same"] for one in all_cases]):
        rank.expect(all(one["same"] for one in outcomes), "the gradient was changed: all-reduce a copy")
    for k, drawn in enumerate(CASES):
        _expect_estimates(f"N = 2, {drawn[0]} parameters", [outcome[k] for outcome in results], seed, drawn)
