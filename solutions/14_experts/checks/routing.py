"""Exercises 1 and 2: which experts a token goes to, and which of them serve it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Call, close, fact, sentence
from autograder.checks.check import check

ROUTE, PLAN = "14-ex1-route", "14-ex2-plan"
#: Sums of probability and bias that are compared for a choice differ by at least this.
APART = 1e-4


# ---- 1 · route ----


@dataclass
class Routed:
    """What route returns; off: the gates without the probabilities of the experts that were chosen."""

    probabilities: Any = fact("the table of probabilities")
    chosen: Any = fact("the table of chosen experts")
    off: Any = fact("the gates, minus the chosen experts' probabilities,")


def _facts(result: tuple, logits: torch.Tensor, *_: Any) -> Routed:
    probabilities, chosen, gates = result
    right = softmax(logits.double().numpy())
    return Routed(probabilities, chosen, gates.detach().double().numpy() - np.take_along_axis(right, chosen.numpy(), 1))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row by row."""
    powers = np.exp(logits - np.max(logits, axis=1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=1, keepdims=True)


def _drawn(rng: np.random.Generator, tokens: int, experts: int, dtype: str, biased: bool) -> tuple:
    """Fresh logits and a bias, or None, drawn again until no two sums in a row come near each other."""
    while True:
        logits = torch.from_numpy(2 * rng.standard_normal((tokens, experts))).to(getattr(torch, dtype))
        bias = rng.integers(-8, 9, experts) / 16 if biased else np.zeros(experts)
        scores = np.sort(softmax(logits.double().numpy()) + bias, axis=1)
        if np.all(np.diff(scores, axis=1) > APART):
            return logits, torch.from_numpy(bias).float() if biased else None


SIZES = ((6, 4, 1, False), (5, 6, 3, False), (7, 4, 2, True), (4, 5, 2, True), (1, 3, 3, False), (0, 4, 2, True))


@check(ROUTE, points=1)
def the_most_probable_are_chosen(route, *, rng):
    """The k experts with the largest probability + bias are chosen, the largest first."""
    for tokens, experts, k, biased in SIZES:
        logits, bias = _drawn(rng, tokens, experts, "float32", biased)
        right = softmax(logits.double().numpy())
        chosen = np.argsort(-(right + (0 if bias is None else bias.numpy())), axis=1)[:, :k]
        yield Call(route, logits, k, bias, gives=Routed(close(right, rtol=1e-5), close(chosen)), sees=_facts)


@check(ROUTE, points=0.5)
def gates_are_the_probabilities_of_the_chosen(route, *, rng):
    """The gates are the chosen experts' probabilities among all, without the bias, not divided by their sum."""
    for tokens, experts, k, biased in SIZES[:4]:
        logits, bias = _drawn(rng, tokens, experts, "float32", biased)
        yield Call(route, logits, k, bias, gives=Routed(off=close(np.zeros((tokens, k)), atol=1e-5)), sees=_facts)


@check(ROUTE, points=0.25)
def small_differences_decide(route, *, rng):
    """For bfloat16 and float16 logits the softmax is computed in float32."""
    for dtype in ("bfloat16", "float16"):
        logits, _ = _drawn(rng, 5, 4, dtype, False)
        right = close(softmax(logits.double().numpy()), rtol=1e-5, dtype="float32")
        yield Call(route, logits, 2, gives=Routed(right), sees=_facts, name=f"{dtype} logits of 5 tokens")


def _backward(route: Callable, logits: np.ndarray, through: int, slopes: np.ndarray) -> np.ndarray:
    """The logits' gradient if a loss is reached through the probabilities (0) or the gates (2) of all experts."""
    x = torch.from_numpy(logits).requires_grad_()
    results = route(x, logits.shape[1])
    slope = torch.from_numpy(slopes) if through == 0 else torch.from_numpy(slopes).gather(1, results[1])
    loss = (results[through] * slope).sum()
    if loss.requires_grad:
        loss.backward()
    return np.zeros_like(logits) if x.grad is None else x.grad.numpy()


@check(ROUTE, points=0.25)
def gradients_flow_through_both(route, *, rng):
    """The logits get a gradient through the probabilities, and through the gates."""
    logits, slopes = (rng.standard_normal((5, 4)).astype(np.float32) for _ in range(2))
    p = softmax(logits.astype(np.float64))
    right = close(p * (slopes - (p * slopes).sum(axis=1, keepdims=True)), rtol=1e-5)
    for through, name in ((0, "the probabilities"), (2, "the gates")):
        what = f"the gradient of the logits through {name}"
        yield Call(_backward, route, logits, through, slopes, gives=right, name="5 tokens, k = E = 4", what=what)


# ---- 2 · plan ----


@dataclass
class Planned:
    """What plan returns; cut: what is wrong with what a capacity leaves of the order without one."""

    order: Any = fact("the order")
    counts: Any = fact("the list of counts")
    cut: str = sentence()


def places(chosen: np.ndarray, experts: int, most: int | None) -> list[list[int]]:
    """By the definition: expert → the places token · k + choice that it keeps, in their order."""
    tokens, k = chosen.shape
    mine = [[t * k + c for c in range(k) for t in range(tokens) if chosen[t, c] == e] for e in range(experts)]
    return [one[:most] for one in mine]


def _plans(plan: Callable, rng: np.random.Generator, kinds: list[tuple], *facts: str):
    """Calls of plan in which some experts are chosen more often; these facts are compared."""
    for tokens, experts, k, most in kinds:
        likely = 1.0 / np.arange(1, experts + 1)
        drawn = [rng.choice(experts, k, replace=False, p=likely / likely.sum()) for _ in range(tokens)]
        chosen = np.array(drawn, np.int64).reshape(tokens, k)
        kept = places(chosen, experts, most)
        right = {"order": [p for mine in kept for p in mine], "counts": [len(mine) for mine in kept]}
        yield Call(
            plan, torch.from_numpy(chosen), experts, most,
            gives=Planned(**{name: right[name] for name in facts}), sees=_planned,
            shows=f"chosen = {chosen.tolist()}",
        )  # fmt: skip


def _planned(result: tuple, *_: Any) -> Planned:
    return Planned(*(tensor.tolist() for tensor in result))


@check(PLAN, points=1)
def places_are_ordered(plan, *, rng):
    """Order: expert after expert, for each of them all first choices before all second ones, and so on."""
    yield from _plans(plan, rng, [(5, 3, 1, None), (9, 4, 2, None), (8, 5, 3, None), (0, 4, 2, None)], "order")


def _twice(plan: Callable, chosen: torch.Tensor, experts: int, most: int) -> list[list[int]]:
    """The orders without and with the capacity."""
    return [plan(chosen.clone(), experts, limit)[0].tolist() for limit in (None, most)]


def _cut(orders: list[list[int]], _: Callable, chosen: torch.Tensor, experts: int, most: int) -> Planned:
    """Are the places of each expert, in the order with the capacity, its first ones in the order without?"""
    (whole, left), start = orders, 0
    if sorted(whole) != list(range(chosen.numel())):
        return Planned(cut=f"without a capacity the order is {whole}, in which not each place stands once")
    expected = []
    for count in np.bincount(chosen.flatten().numpy(), minlength=experts):
        expected += whole[start : start + min(count, most)]
        start += count
    return Planned(cut="" if left == expected else f"of the order {whole} it leaves {left}, expected {expected}")


def _cuts(plan: Callable, rng: np.random.Generator, kinds: list[tuple]):
    for call in _plans(plan, rng, kinds, "order"):
        name = f"a capacity of {call.args[2]}, {len(call.args[0])} tokens, k = {call.args[0].shape[1]}"
        yield Call(_twice, plan, *call.args, gives=Planned(cut=""), sees=_cut, name=name, shows=call.shows)


@check(PLAN, points=0.5)
def the_first_ones_stay(plan, *, rng):
    """With a capacity, the first places of each expert stay, of those that it has without one."""
    yield from _cuts(plan, rng, [(12, 4, 1, 3), (9, 3, 2, 3), (8, 4, 3, 2), (6, 3, 1, 6)])


@check(PLAN, points=0.25)
def a_capacity_of_0_keeps_none(plan, *, rng):
    """With a capacity of 0 no place stays."""
    yield from _plans(plan, rng, [(5, 3, 1, 0), (4, 3, 2, 0)], "order")


@check(PLAN, points=0.25)
def kept_places_are_counted(plan, *, rng):
    """The counts are those of the kept places, with zeros."""
    yield from _plans(plan, rng, [(3, 8, 1, None), (9, 4, 2, 2), (6, 3, 3, 4)], "counts")
