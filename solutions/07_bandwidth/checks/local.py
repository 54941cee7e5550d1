"""Exercise 5: many steps alone, then one exchange."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check

from .forms import not_of_shape

DILOCO = "07-ex5-diloco"
#: float32, over a dozen steps.
ERROR = 1e-5
LR = 0.125


@dataclass
class Trained:
    """What a rank got, and the steps that its gradient was asked for."""

    odd: str = sentence()
    weights: Any = fact("the result")
    steps: Any = fact("the list of steps that gradient was called with")


@dataclass
class Moved:
    """How far the ways of all rounds have moved the weights on a rank."""

    odd: str = sentence()
    multiples: Any = fact("how far the way of each round moves w, in multiples of what the defaults make of it,")


def _slope(w: np.ndarray, rank: int, shift: np.ndarray) -> np.ndarray:
    """A gradient that depends on the rank, and on w along a curve."""
    return np.tanh(w * (rank + 1)) + shift[rank]


def _drive(rank: int, world_size: int, diloco: Any, start: np.ndarray, shift: np.ndarray, how: dict) -> Trained:
    steps = []

    def gradient(w, step):
        steps.append(int(step))
        return torch.from_numpy(_slope(w.detach().numpy(), rank, shift))

    result = diloco(torch.from_numpy(start.copy()), gradient, **how)
    if odd := not_of_shape(result, start.shape):
        return Trained(f"the result is {odd}", start, steps)
    return Trained("", result.detach().clone(), steps)


def _move(rank: int, world_size: int, diloco: Any, rounds: int, how: dict) -> Moved:
    """Rounds of one step, in each of which another entry of the weights has a slope."""
    moved = []
    for outer in ({}, how):
        slopes = itertools.cycle(torch.eye(rounds))
        result = diloco(torch.zeros(rounds), lambda w, step, slopes=slopes: next(slopes), rounds, 1, LR, **outer)
        if odd := not_of_shape(result, (rounds,)):
            return Moved(f"the result is {odd}", 0)
        moved.append(result.detach().clone())
    return Moved("", moved[1] / moved[0])


def _trained(start: np.ndarray, shift: np.ndarray, rounds: int, inner_steps: int) -> np.ndarray:
    """One process with a copy of the weights for each rank."""
    shared = start.astype(np.float64)
    for _ in range(rounds):
        copies = [shared.copy() for _ in shift]
        for rank, copy in enumerate(copies):
            for _ in range(inner_steps):
                copy -= LR * _slope(copy, rank, shift)
        shared = np.mean(copies, axis=0)
    return shared


def _case(diloco: Any, rng: np.random.Generator, n: int, shape: tuple, judged: str, **how: int) -> Case:
    """judged: "weights", "steps" or "sends". how: rounds and inner_steps."""
    start = rng.normal(size=shape).astype(np.float32)
    shift = rng.normal(size=(n, *shape)).astype(np.float32)
    right = {
        "weights": Trained("", close(_trained(start, shift, **how), rtol=ERROR)),
        "steps": Trained(steps=list(range(how["rounds"] * how["inner_steps"]))),
        "sends": Trained(),
    }[judged]
    name = ", ".join([f"shape {shape}", *(f"{key} {value}" for key, value in how.items()), f"lr {LR}"])
    sends = [("all_reduce", start.nbytes)] * how["rounds"] if judged == "sends" else None
    return Case(name, n, _drive, (diloco, start, shift, how | {"lr": LR}), [right] * n, sends=sends)


def _outer(diloco: Any, multiples: list[float], **how: float) -> Case:
    """One rank, and multiples of the answer's own ways: what is wrong with means is judged elsewhere."""
    slopes = f"{len(multiples)} rounds of 1 step, gradient 1 in another entry each"
    name = ", ".join([slopes, *(f"{key} {value}" for key, value in how.items())])
    return Case(name, 1, _move, (diloco, len(multiples), how), [Moved("", close(multiples, rtol=ERROR))])


@check(DILOCO, points=1.25)
def each_round_moves_by_the_mean_way(diloco, *, rng):
    """Without momentum and with outer_lr 1, each round moves w by the mean way; with H = 1 that is synchronous SGD."""
    for n, shape, rounds, inner_steps in ((2, (6,), 3, 1), (3, (2, 3), 3, 4), (4, (5,), 1, 3), (1, (1, 1), 2, 2)):
        yield _case(diloco, rng, n, shape, "weights", rounds=rounds, inner_steps=inner_steps)


@check(DILOCO, points=0.25)
def the_outer_rate_scales_the_step(diloco, *, rng):
    """With another outer_lr the step is so many times the one with outer_lr 1."""
    rate = int(rng.integers(1, 8)) / 8
    yield _outer(diloco, [rate], outer_lr=rate)


@check(DILOCO, points=0.25)
def steps_are_counted_on(diloco, *, rng):
    """gradient is called with the steps 0, 1, 2, … through all rounds."""
    for rounds, inner_steps in ((3, 2), (int(rng.integers(2, 6)), 3)):
        yield _case(diloco, rng, 2, (4,), "steps", rounds=rounds, inner_steps=inner_steps)


@check(DILOCO, points=0.75)
def outer_steps_are_nesterov(diloco, *, rng):
    """With momentum the outer steps are those of SGD with Nesterov momentum."""
    momentum = int(rng.integers(3, 8)) / 8
    # A round's own step takes 1 + momentum times its way, the one that is `age` rounds later momentum^(age + 1) times.
    steps = [momentum ** (age + 1) + (age == 0) for age in range(4)]
    yield _outer(diloco, np.cumsum(steps)[::-1].tolist(), momentum=momentum)


@check(DILOCO, points=0.5)
def a_round_is_one_all_reduce(diloco, *, rng):
    """One all-reduce of the weights' size per round, and nothing else."""
    for n, inner_steps in ((2, 50), (3, 1)):
        yield _case(diloco, rng, n, (int(rng.integers(5, 50)),), "sends", rounds=3, inner_steps=inner_steps)
