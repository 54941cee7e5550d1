"""Exercises 4 and 5: an evaluation over ranks that is exact, and the noise in the ranks' gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, close, evidence, fact, sentence
from autograder.checks.check import check

EVALUATE, NOISE = "04-ex4-evaluate", "04-ex5-noise-scale"

# ---- 4 · evaluate ----


@dataclass
class Evaluated:
    """What evaluate returned on a rank, and what that rank asked for."""

    mean: Any = fact("the mean loss")
    kind: str = fact("the type of the mean loss")
    repeated: str = sentence()
    uneven: str = sentence()
    strange: str = sentence()
    asked: list = evidence()


def _evaluate(rank: int, world_size: int, evaluate: Any, values: np.ndarray) -> Evaluated:
    asked: list[int] = []

    def losses(indices):
        indices = [int(i) for i in indices]
        asked.extend(indices)
        return torch.from_numpy(values[indices])

    mean = evaluate(rank, world_size, len(values), losses)
    of_ranks: list[Any] = [None] * world_size
    dist.all_gather_object(of_ranks, asked)
    sizes, every = [len(one) for one in of_ranks], sorted(i for one in of_ranks for i in one)
    repeated = uneven = ""
    if every != list(range(len(values))):
        repeated = f"the ranks evaluate {len(every)} examples, expected each of {len(values)} once"
    if max(sizes) - min(sizes) > 1 or not every:
        uneven = f"the ranks have {sizes} examples, expected numbers that differ by at most one"
    number = isinstance(mean, int | float | np.generic) or (isinstance(mean, torch.Tensor) and mean.numel() == 1)
    strange = "" if number and math.isfinite(mean) and mean else f"{mean!r} is returned, expected the mean"
    kind = type(mean).__name__.replace("float64", "float")
    return Evaluated(float(mean) if number else mean, kind, repeated, uneven, strange, asked)


def _evaluation(evaluate: Any, rng: np.random.Generator, n: int, length: int, rtol: float = 0, **facts: Any) -> Case:
    """An evaluation of drawn losses. rtol: of the mean; 0 where the mean is not compared."""
    # Of very different size, some below zero: a sum in float32 would show in the seventh digit.
    values = rng.random(length) ** 4 * 1000 - 100
    if rtol:
        facts["mean"] = close(values.mean(), atol=rtol * np.abs(values).max())
    return Case(f"{length} examples", n, _evaluate, (evaluate, values), [Evaluated(**facts)] * n)


@check(EVALUATE, points=0.75)
def evaluation_is_the_mean_over_all_examples(evaluate, *, rng):
    """Every rank returns the mean over all examples, for lengths that the ranks do not divide."""
    for n in (2, 3, 4, 1):
        for length in (12, 10, 7, 101, int(rng.integers(5, 60))):
            yield _evaluation(evaluate, rng, n, length, rtol=1e-5)


@check(EVALUATE, points=0.5)
def every_example_is_evaluated_once(evaluate, *, rng):
    """Each example is evaluated once, on one rank."""
    for n in (2, 4):
        for length in (12, 10, 7, int(rng.integers(5, 60))):
            yield _evaluation(evaluate, rng, n, length, repeated="")


@check(EVALUATE, points=0.25)
def ranks_have_equally_many_examples(evaluate, *, rng):
    """The ranks' numbers of examples differ by at most one."""
    for n in (2, 4):
        for length in (10, 7, int(rng.integers(5, 60))):
            yield _evaluation(evaluate, rng, n, length, uneven="")


@check(EVALUATE, points=0.25)
def ranks_without_examples_take_part(evaluate, *, rng):
    """With fewer examples than ranks, those without an example take part, and return a number."""
    for length in (1, 3):
        yield _evaluation(evaluate, rng, 4, length, strange="")


@check(EVALUATE, points=0.25)
def means_are_exact_floats(evaluate, *, rng):
    """The mean is a float, and that of one process up to a relative error of 1e-12."""
    for n in (2, 3):
        yield _evaluation(evaluate, rng, n, 102, rtol=1e-12, kind="float")  # equally many on each rank


# ---- 5 · noise and signal ----

#: float32 does as well where the ranks' gradients differ; `small_differences_survive` tells it from float64.
NOISE_RTOL = 1e-4
OPPOSITE, NEARLY_EQUAL = "opposite gradients", "nearly equal gradients"


@dataclass
class Estimated:
    """What noise_and_signal returned on a rank."""

    noise: Any = fact("the noise")
    signal: Any = fact("the signal")
    changed: str = sentence()
    kinds: list = fact("the list of the types that it returns")
    ratio: Any = fact("the noise, over the noise of other gradients of as many ranks and examples,")


def _estimate(rank: int, world_size: int, noise_and_signal: Any, grads: list, rows: int, other: list) -> Estimated:
    """other: gradients whose noise that of `grads` is divided by."""
    grad = torch.from_numpy(grads[rank].copy())
    got = noise_and_signal(rank, world_size, grad, rows)
    changed = "" if np.array_equal(grad.numpy(), grads[rank]) else "the gradient was changed: all-reduce a copy"
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Estimated(got, got, changed, [type(got).__name__], got)
    kinds = ["float" if isinstance(one, float) else type(one).__name__ for one in got]
    noise, signal = (float(one) for one in got)
    ratio = math.nan
    if other:
        beside = float(noise_and_signal(rank, world_size, torch.from_numpy(other[rank].copy()), rows)[0])
        ratio = noise / beside if beside else math.nan
    # A signal that is right but for its noise is right: the noise has checks of its own.
    wide = np.stack(grads).astype(np.float64)
    squares, scatter = (wide.mean(axis=0) ** 2).sum(), wide.var(axis=0, ddof=1).sum()
    if abs(signal - (squares - noise / (rows * world_size))) <= NOISE_RTOL * (squares + abs(noise)):
        signal = squares - scatter / world_size
    return Estimated(noise, signal, changed, kinds, ratio)


def _gradients(rng: np.random.Generator, n: int, numel: int, dtype: str, kind: str) -> list[np.ndarray]:
    """The ranks' gradients: a part that all share and noise of their own, or ones that cancel in the mean."""
    if kind == OPPOSITE:
        one = rng.normal(size=numel)
        return [(one * math.cos(2 * math.pi * rank / n)).astype(dtype) for rank in range(n)]
    if kind == NEARLY_EQUAL:  # whole numbers, which float32 holds, and their sum, but not the sum of their squares
        whole = rng.integers(1000, 2000, numel)
        return [(whole + rng.integers(-3, 4, numel)).astype(dtype) for _ in range(n)]
    shared = rng.random(numel)
    return [(shared + rng.normal(size=numel)).astype(dtype) for _ in range(n)]


def _estimation(
    function: Any, rng, n: int, numel: int, rows: int, *facts: str, dtype="float64", kind="", **how
) -> Case:
    """An estimate of which these facts are compared."""
    grads = _gradients(rng, n, numel, dtype, kind)
    wide = np.stack(grads).astype(np.float64)
    noise = rows * wide.var(axis=0, ddof=1).sum()
    signal = (wide.mean(axis=0) ** 2).sum() - noise / (rows * n)
    other = _gradients(rng, n, numel, "float64", "") if "ratio" in facts else []
    beside = rows * np.stack(other).var(axis=0, ddof=1).sum() if other else 1.0
    expected = {"noise": close(noise, NOISE_RTOL), "ratio": close(noise / beside, NOISE_RTOL), "changed": ""}
    # The signal is a difference: both parts bound its rounding error.
    expected |= {"signal": close(signal, NOISE_RTOL, atol=NOISE_RTOL * noise), "kinds": ["float"] * 2}
    name = f"B = {rows}, {numel} parameters, {dtype}{kind and ', ' + kind}"
    expect = [Estimated(**{fact: expected[fact] for fact in facts})] * n
    return Case(name, n, _estimate, (function, grads, rows, other), expect=expect, **how)


def _of_any_size(function: Any, rng, fact: str):
    for n in (2, 3, 4):
        yield _estimation(function, rng, n, 5, 8, fact)
        yield _estimation(function, rng, n, int(rng.integers(2, 30)), int(rng.integers(1, 50)), fact)
        yield _estimation(function, rng, n, 5, 8, fact, kind=OPPOSITE)


@check(NOISE, points=1)
def noise_grows_with_the_scatter(noise_and_signal, *, rng):
    """Every rank returns a noise in proportion to the squared distances of the ranks' gradients from their mean."""
    yield from _of_any_size(noise_and_signal, rng, "ratio")


@check(NOISE, points=0.5)
def noise_is_unbiased(noise_and_signal, *, rng):
    """Every rank returns the unbiased estimate of the noise, from N gradients of B examples each."""
    yield from _of_any_size(noise_and_signal, rng, "noise")


@check(NOISE, points=0.5)
def signal_is_unbiased(noise_and_signal, *, rng):
    """Every rank returns the unbiased estimate of the signal, from its estimate of the noise."""
    yield from _of_any_size(noise_and_signal, rng, "signal")


@check(NOISE, points=0.25)
def small_differences_survive(noise_and_signal, *, rng):
    """All is computed in float64, float32 gradients too: where the ranks nearly agree, the noise is still right."""
    for n in (2, 4):
        yield _estimation(noise_and_signal, rng, n, 300, 32, "ratio", dtype="float32", kind=NEARLY_EQUAL)


@check(NOISE, points=0.25)
def noise_costs_one_all_reduce(noise_and_signal, *, rng):
    """Each rank communicates at most 8 numbers more than the gradient has, and gathers no gradients."""
    # Of the values nothing is compared here, so nothing needs to be drawn.
    yield _estimation(noise_and_signal, rng, 4, 5_000, 4, dtype="float32", judge=_sends(4, 5_000))


def _sends(world_size: int, numel: float = math.inf) -> Callable[[int, list], str]:
    """A judge of messages: something is sent, and no more than a gradient of `numel` numbers and eight more."""

    def judge(rank: int, parts: list) -> str:
        numbers = sum(_numbers(message, world_size) for messages in parts for message in messages)
        if not numbers:
            return f"rank {rank} sends nothing, and the scatter of the ranks' gradients is known to none of them alone"
        if numbers > numel + 8:
            return f"rank {rank} communicates {numbers:,} numbers, but the gradient has only {numel:,}"
        return ""

    return judge


def _numbers(message: Any, world_size: int) -> int:
    """How many numbers a call costs a rank, in units of an all-reduce; whole gradients that are gathered cost N."""
    if message.call == "barrier":
        return 0
    size = 8 if "64" in (message.dtype or "") else 4
    return message.bytes // size * (world_size if "gather" in message.call else 1)


@check(NOISE, points=0.25)
def noise_and_signal_are_floats(noise_and_signal, *, rng):
    """Every rank returns two floats."""
    yield _estimation(noise_and_signal, rng, 2, 5, 8, "kinds")


@check(NOISE, points=0.25)
def noise_leaves_the_gradient_alone(noise_and_signal, *, rng):
    """The gradient that is given stays as it was, on every rank, though all ranks' gradients are reduced."""
    for dtype in ("float64", "float32"):
        yield _estimation(noise_and_signal, rng, 2, 5, 8, "changed", dtype=dtype, judge=_sends(2))
