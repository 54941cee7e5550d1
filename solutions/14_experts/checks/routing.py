"""Exercises 1 and 2: which experts a token goes to, and which of them serve it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import expect_close, expect_equal, expect_raises, expect_type, fail
from autograder.checking.stage import call_inside

ROUTE, PLAN = "14-ex1-route", "14-ex2-plan"
#: Sums of probability and bias that are compared for a choice differ by at least this.
APART = 1e-4


# ---- 1 · route ----


@dataclass(frozen=True)
class Routing:
    """One call of route. logits: (n, E), float64, as the dtype holds them."""

    name: str
    dtype: str
    logits: np.ndarray
    k: int
    bias: np.ndarray | None

    @property
    def probabilities(self) -> np.ndarray:
        """The softmax in float64, (n, E)."""
        return softmax(self.logits)

    @property
    def chosen(self) -> np.ndarray:
        """(n, k), the largest first."""
        scores = self.probabilities + (0 if self.bias is None else self.bias)
        return np.argsort(-scores, axis=1)[:, : self.k]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row by row."""
    powers = np.exp(logits - np.max(logits, axis=1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=1, keepdims=True)


def _routing(rng: np.random.Generator, tokens: int, num_experts: int, k: int, dtype: str, biased: bool) -> Routing:
    """Fresh logits, drawn again until no two sums in a row come near each other."""
    name = f"{tokens} tokens, {num_experts} experts, k = {k}, {dtype}{', with a bias' if biased else ''}"
    while True:
        drawn = torch.from_numpy(2 * rng.standard_normal((tokens, num_experts))).to(getattr(torch, dtype))
        bias = rng.integers(-8, 9, num_experts) / 16 if biased else None
        one = Routing(name, dtype, drawn.double().numpy(), k, bias)
        scores = np.sort(one.probabilities + (0 if bias is None else bias), axis=1)
        if np.all(np.diff(scores, axis=1) > APART):
            return one


def _routings(rng: np.random.Generator) -> list[Routing]:
    return [
        _routing(rng, 6, 4, 1, "float32", False),
        _routing(rng, 5, 6, 3, "float64", False),
        _routing(rng, 7, 4, 2, "float32", True),
        _routing(rng, 4, 5, 2, "float64", True),
        _routing(rng, 1, 3, 3, "float32", False),
        _routing(rng, 0, 4, 2, "float32", True),
        _routing(rng, 5, 4, 2, "bfloat16", False),
        _routing(rng, 5, 4, 1, "float16", True),
    ]


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _tensors(dtype: str, logits: np.ndarray, bias: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = torch.from_numpy(logits.copy()).to(getattr(torch, dtype))
    return x, None if bias is None else torch.from_numpy(bias).to(getattr(torch, _wide(dtype)))


def _route(route: Any, asked: list[tuple]) -> list[Any]:
    """Where the submission runs: what each call returns, with the dtypes."""
    seen: list[Any] = []
    for dtype, logits, k, bias in asked:
        x, b = _tensors(dtype, logits, bias)
        result = route(x, k) if b is None else route(x, k, b)
        if not isinstance(result, (tuple, list)) or not all(isinstance(t, torch.Tensor) for t in result):
            seen.append(type(result).__name__)
            continue
        kinds = [str(t.dtype)[6:] for t in result]
        seen.append([kinds, [t.detach().to(torch.float64).numpy().copy() for t in result]])
    return seen


@check(ROUTE, points=1.25)
def the_most_probable_are_chosen(route, *, rng):
    """Probabilities are float32 or float64; with the bias, the k largest are chosen; the gates are without it."""
    cases = _routings(rng)
    everything = call_inside(_route, route, [(one.dtype, one.logits, one.k, one.bias) for one in cases])
    for one, seen in zip(cases, everything, strict=True):
        if isinstance(seen, str) or len(seen[0]) != 3:
            fail("route should return a tuple of three tensors", one.name, "no triple")
        kinds, (probabilities, chosen, gates) = seen
        evidence = [kinds, chosen, gates]
        rtol = 1e-12 if one.dtype == "float64" else 1e-5
        wide = _wide(one.dtype)
        expect_equal(one.name, kinds, [wide, "int64", wide], what="the list of the dtypes", evidence=evidence)
        expect_close(one.name, probabilities, one.probabilities, what="probabilities", rtol=rtol, evidence=evidence)
        expect_close(one.name, chosen, one.chosen, what="chosen", rtol=0.0, evidence=evidence)
        want = np.take_along_axis(one.probabilities, one.chosen, axis=1)
        expect_close(one.name, gates, want, what="gates", rtol=rtol, evidence=evidence)


def _backward(route: Any, logits: np.ndarray, k: int, bias: np.ndarray, slopes: list[np.ndarray]) -> list[Any]:
    """Where the submission runs: the gradient of the logits, through the gates alone and through both."""
    found = []
    for weights in ([0.0, 1.0], [1.0, 1.0]):
        x = torch.from_numpy(logits.copy()).requires_grad_()
        probabilities, _, gates = route(x, k, torch.from_numpy(bias))
        ways = [weights[0] * (probabilities * torch.from_numpy(slopes[0])), gates * torch.from_numpy(slopes[1])]
        loss = ways[0].sum() + ways[1].sum()
        if loss.requires_grad:
            loss.backward()
        found.append(None if x.grad is None else x.grad.numpy().copy())
    return found


@check(ROUTE, points=0.5)
def gradients_flow_through_the_gates(route, *, rng):
    """The logits get their gradients through the gates, and through the probabilities of all experts."""
    one = _routing(rng, 5, 6, 2, "float64", True)
    slopes = [rng.standard_normal((5, 6)), rng.standard_normal((5, 2))]
    found = call_inside(_backward, route, one.logits, one.k, one.bias, slopes)
    p, evidence = one.probabilities, ["None" if grad is None else grad for grad in found]
    for what, grad, through in zip(("the gates", "gates and probabilities"), found, (0.0, 1.0), strict=True):
        of_p = through * slopes[0]
        np.put_along_axis(of_p, one.chosen, np.take_along_axis(of_p, one.chosen, 1) + slopes[1], axis=1)
        want = p * (of_p - (p * of_p).sum(axis=1, keepdims=True))
        if grad is None:
            fail(f"no gradient reaches the logits through {what}", one.name, evidence)
        label = f"the gradient of the logits through {what}"
        expect_close(one.name, grad, want, what=label, rtol=1e-10, evidence=evidence)


@check(ROUTE, points=0.25)
def a_k_out_of_range_is_refused(route, *, rng):
    """A `k` below 1 or above the number of experts is a ValueError that names it."""
    logits = torch.from_numpy(rng.standard_normal((3, 4)))
    for k in (0, 5, 4, -1):
        if k != 4:
            expect_raises(f"4 experts, k = {k}", route, logits, k, error=ValueError, mentions="k")
        else:
            want = np.argsort(-logits.numpy(), axis=1)
            expect_close(f"4 experts, k = {k}", route(logits, k)[1], want, what="chosen", rtol=0.0)


# ---- 2 · plan ----


def places(chosen: np.ndarray, num_experts: int, most: int | None) -> list[list[int]]:
    """By the definition: expert → the places token · k + choice that it keeps, in their order."""
    tokens, k = chosen.shape
    kept = []
    for expert in range(num_experts):
        mine = [t * k + c for c in range(k) for t in range(tokens) if chosen[t, c] == expert]
        kept.append(mine if most is None else mine[:most])
    return kept


def _choices(rng: np.random.Generator, tokens: int, num_experts: int, k: int) -> np.ndarray:
    """k different experts for each token; the first experts are chosen more often."""
    likely = 1.0 / np.arange(1, num_experts + 1)
    drawn = [rng.choice(num_experts, k, replace=False, p=likely / likely.sum()) for _ in range(tokens)]
    return np.array(drawn, np.int64).reshape(tokens, k)


@check(PLAN, points=2)
def places_are_kept_in_order(plan, *, rng):
    """Order: by expert, then first choices before second ones, then by token; the first `capacity` of each stay."""
    kinds = [
        (5, 3, 1, None),
        (9, 4, 2, None),
        (12, 4, 2, 3),
        (10, 5, 3, 4),
        (8, 8, 2, 1),
        (6, 3, 3, 5),
        (0, 4, 2, None),
    ]
    kinds += [(7, 2, 2, 0), (0, 3, 1, 0)]
    cases = [(*kind, _choices(rng, *kind[:3])) for kind in kinds]
    results = [plan(torch.from_numpy(chosen.copy()), e, most) for _, e, _, most, chosen in cases]
    evidence = [[np.asarray(t) for t in one] if isinstance(one, (tuple, list)) else "no pair" for one in results]
    for (tokens, num_experts, k, most, chosen), result in zip(cases, results, strict=True):
        case = f"{tokens} tokens, {num_experts} experts, k = {k}, capacity {most}"
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            fail("plan should return a tuple of order and counts", case, evidence)
        kept = places(chosen, num_experts, most)
        wanted = {"order": [p for mine in kept for p in mine], "counts": [len(mine) for mine in kept]}
        for (what, want), got in zip(wanted.items(), result, strict=True):
            kind = str(getattr(got, "dtype", type(got).__name__)).removeprefix("torch.")
            if kind != "int64":
                fail(f"{what} should be an int64 tensor, it is {kind}", case, evidence)
            expect_equal(case, np.asarray(got).tolist(), want, what=what, evidence=evidence)


@check(PLAN, points=0.75)
def capacity_is_rounded_up(capacity, *, rng):
    """The capacity is the smallest int that is at least factor · k · tokens / experts."""
    for num_experts, factors in ((4, (0.25, 0.5, 1.0, 1.25, 2.0)), (8, (0.5, 1.0, 1.5)), (3, (1.0, 2.0)), (1, (1.0,))):
        for factor in factors:
            for k in (1, 2):
                for tokens in (0, 1, 6, 10, 64, int(rng.integers(11, 500))):
                    case = f"{tokens} tokens, {num_experts} experts, k = {k}, factor {factor:g}"
                    got = capacity(tokens, num_experts, k, factor)
                    expect_type(case, got, int, what="the capacity")
                    want = math.ceil(Fraction(factor) * k * tokens / num_experts)
                    expect_equal(case, got, want, what="the capacity")


@check(PLAN, points=0.25, fixed=REFUSALS)
def a_factor_must_be_positive(capacity):
    """A capacity factor of 0 or below is a ValueError that names `factor`."""
    for factor in (0.0, -1.0, 0.25, -0.25, 0):
        if factor <= 0:
            expect_raises(f"factor {factor}", capacity, 8, 4, 2, factor, error=ValueError, mentions="factor")
        else:
            expect_close(f"factor {factor}", capacity(8, 4, 2, factor), np.array(1), what="the capacity", rtol=0.0)
