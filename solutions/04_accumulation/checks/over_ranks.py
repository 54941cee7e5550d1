"""Exercises 4 and 5: an evaluation over ranks that is exact, and the noise in the ranks' gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checking.cases import Case, close, clue, complaint, fact
from autograder.checking.check import check

EVALUATE, NOISE = "04-ex4-evaluate", "04-ex5-noise-scale"

# ---- 4 · evaluate ----


@dataclass
class Evaluated:
    """What evaluate returned on a rank, and what that rank asked for."""

    mean: Any = fact("the mean loss")
    kind: str = fact("the type of the mean loss")
    repeated: str = complaint()
    uneven: str = complaint()
    strange: str = complaint()
    asked: list = clue()


def _evaluate(rank: int, world_size: int, evaluate: Any, values: np.ndarray) -> Evaluated:
    import torch.distributed as dist

    asked: list[int] = []

    def losses(indices):
        asked.extend(int(i) for i in indices)
        return torch.from_numpy(values[[int(i) for i in indices]].copy())

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
    return Evaluated(
        float(mean) if number else mean,
        type(mean).__name__.replace("float64", "float"),
        repeated,
        uneven,
        strange,
        asked,
    )


def _evaluation(evaluate: Any, n: int, values: np.ndarray, rtol: float = 1e-5, **facts: Any) -> Case:
    """Losses of which every rank must return the mean, or what `facts` name instead."""
    scale = float(np.abs(values).max())
    expected = Evaluated(**facts) if facts else Evaluated(mean=close(values.mean(), atol=rtol * scale))
    return Case(f"{len(values)} examples", n, _evaluate, (evaluate, values), expect=[expected] * n)


def _losses(rng: np.random.Generator, length: int) -> np.ndarray:
    """Losses of very different size, some below zero: a sum in float32 would show in the seventh digit."""
    return rng.random(length) ** 4 * 1000 - 100


@check(EVALUATE, points=0.75)
def evaluation_is_the_mean_over_all_examples(evaluate, *, rng):
    """Every rank returns the mean over all examples, for lengths that the ranks do not divide."""
    for n in (2, 3, 4, 1):
        for length in (12, 10, 7, 101, int(rng.integers(5, 60))):
            yield _evaluation(evaluate, n, _losses(rng, length))


@check(EVALUATE, points=0.5)
def every_example_is_evaluated_once(evaluate, *, rng):
    """Each example is evaluated once, on one rank."""
    for n in (2, 4):
        for length in (12, 10, 7, int(rng.integers(5, 60))):
            yield _evaluation(evaluate, n, _losses(rng, length), repeated="")


@check(EVALUATE, points=0.25)
def ranks_have_equally_many_examples(evaluate, *, rng):
    """The ranks' numbers of examples differ by at most one."""
    for n in (2, 4):
        for length in (10, 7, int(rng.integers(5, 60))):
            yield _evaluation(evaluate, n, _losses(rng, length), uneven="")


@check(EVALUATE, points=0.25)
def ranks_without_examples_take_part(evaluate, *, rng):
    """With fewer examples than ranks, those without an example take part, and return a number."""
    for length in (1, 3):
        yield _evaluation(evaluate, 4, _losses(rng, length), strange="")


@check(EVALUATE, points=0.25)
def means_are_exact_floats(evaluate, *, rng):
    """The mean is a float, and that of one process up to a relative error of 1e-12."""
    for n in (2, 3):
        values = _losses(rng, 102)  # equally many on each rank
        yield _evaluation(
            evaluate, n, values, kind="float", mean=close(values.mean(), atol=1e-12 * np.abs(values).max())
        )


# ---- 5 · noise and signal ----

#: float32 does as well where the ranks' gradients differ; `small_differences_survive` tells it from float64.
NOISE_RTOL = 1e-4
OPPOSITE, NEARLY_EQUAL = "opposite gradients", "nearly equal gradients"


@dataclass
class Estimated:
    """What noise_and_signal returned on a rank."""

    noise: Any = fact("the noise")
    signal: Any = fact("the signal")
    changed: str = complaint()
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
    function: Any, rng, n: int, numel: int, rows: int, dtype="float64", kind="", what="noise", facts=None, **how
) -> Case:
    """Gradients of which every rank must return the noise or the signal, or what `facts` name instead."""
    grads = _gradients(rng, n, numel, dtype, kind)
    wide = np.stack(grads).astype(np.float64)
    noise = rows * wide.var(axis=0, ddof=1).sum()
    signal = (wide.mean(axis=0) ** 2).sum() - noise / (rows * n)
    # The signal is a difference: both parts bound its rounding error.
    other = _gradients(rng, n, numel, "float64", "") if what == "ratio" else []
    beside = rows * np.stack(other).var(axis=0, ddof=1).sum() if other else 1.0
    near = close(noise / beside, rtol=NOISE_RTOL)
    if what == "signal":
        near = close(signal, rtol=NOISE_RTOL, atol=NOISE_RTOL * noise)
    name = f"B = {rows}, {numel} parameters, {dtype}{kind and ', ' + kind}"
    expect = [facts or Estimated(**{what: near})] * n
    return Case(name, n, _estimate, (function, grads, rows, other), expect=expect, **how)


def _of_any_size(function: Any, rng, what: str):
    """Gradients on 2, 3 and 4 ranks, of which `what` is compared."""
    for n in (2, 3, 4):
        yield _estimation(function, rng, n, 5, 8, what=what)
        yield _estimation(function, rng, n, int(rng.integers(2, 30)), int(rng.integers(1, 50)), what=what)
        yield _estimation(function, rng, n, 5, 8, kind=OPPOSITE, what=what)


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
        yield _estimation(noise_and_signal, rng, n, 300, 32, "float32", NEARLY_EQUAL, what="ratio")


@check(NOISE, points=0.25)
def noise_costs_one_all_reduce(noise_and_signal, *, rng):
    """Each rank communicates at most 8 numbers more than the gradient has, and gathers no gradients."""
    # Of the values nothing is compared here, so nothing needs to be drawn.
    yield _estimation(noise_and_signal, rng, 4, 5_000, 4, "float32", facts=Estimated(), judge=_sends(4, 5_000))


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
    yield _estimation(noise_and_signal, rng, 2, 5, 8, facts=Estimated(kinds=["float"] * 2))


@check(NOISE, points=0.25)
def noise_leaves_the_gradient_alone(noise_and_signal, *, rng):
    """The gradient that is given stays as it was, on every rank, though all ranks' gradients are reduced."""
    for dtype in ("float64", "float32"):
        judge = _sends(2)
        yield _estimation(noise_and_signal, rng, 2, 5, 8, dtype, facts=Estimated(changed=""), judge=judge)
