"""Exercise 6: a step with the sum bug planted, and the student's test, tried on steps that it has not seen.

The planted steps are written here, in plain numpy. They differ only in how they combine the gradients of the workers'
micro-batches. So all of them look alike from outside, and the rest is the same in each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checks.cases import Call, evidence, sentence
from autograder.checks.check import check
from autograder.checks.expect import shown

from .common import STEP_SHOWN, draw_step_state, examples, step_call, torch_step

#: The gradients (N, accum_steps, d) of all micro-batches → the one (d,) with which Adam updates, or several (K, d).
Combine = Callable[[np.ndarray], np.ndarray]

BUG = "03-ex6-sum-bug"

RIGHT: dict[str, Combine] = {
    "is right": lambda grads: grads.mean(axis=(0, 1)),
    "is right, and adds the workers in reverse order": lambda grads: sum(grads.mean(axis=1)[::-1]) / len(grads),
    "is right, and divides before it adds": lambda grads: sum(grads.reshape(-1, grads.shape[2]) / grads[..., 0].size),
}

SUMMED: dict[str, Combine] = {"adds the workers' gradients": lambda grads: grads.mean(axis=1).sum(axis=0)}

DIVISIONS: dict[str, Combine] = {
    "adds the micro-batches' gradients": lambda grads: grads.sum(axis=1).mean(axis=0),
    "divides by the number of workers twice": lambda grads: grads.mean(axis=(0, 1)) / len(grads),
    "divides by accum_steps twice": lambda grads: grads.mean(axis=(0, 1)) / grads.shape[1],
    "divides by the larger of N and accum_steps": lambda grads: grads.sum(axis=(0, 1)) / max(grads.shape[:2]),
} | {
    f"divides by {k}, whatever the number of {what}": lambda grads, k=k, axis=axis: (
        grads.mean(axis=1 - axis).sum(axis=0) / k
    )
    for k in range(2, 9)
    for axis, what in enumerate(("workers", "micro-batches"))
}

LOST: dict[str, Combine] = {
    "uses worker 0 alone": lambda grads: grads[0].mean(axis=0),
    "leaves the last worker out": lambda grads: grads[: max(1, len(grads) - 1)].mean(axis=(0, 1)),
    "uses each worker's last micro-batch alone": lambda grads: grads[:, -1].mean(axis=0),
    "leaves each worker's first micro-batch out": lambda grads: grads[:, int(grads.shape[1] > 1) :].mean(axis=(0, 1)),
    "counts worker 0 twice and the last one never": lambda grads: grads[[0, *range(len(grads) - 1)]].mean(axis=(0, 1)),
}

UPDATES: dict[str, Combine] = {
    "averages the workers' Adam updates and moments": lambda grads: grads.mean(axis=1),
    "averages the micro-batches' Adam updates and moments": lambda grads: grads.mean(axis=0),
}

EVERY = RIGHT | SUMMED | DIVISIONS | LOST | UPDATES


@dataclass
class Verdicts:
    """What the student's test says of all steps, in the order of `EVERY` and `PROBES`."""

    wrong: list[str] = sentence()
    said: list[str] = evidence()


def _say(step_is_right: Callable, steps: list[Callable]) -> list:
    """What the student's test says of each step; runs next to it."""
    return [step_is_right(step) for step in steps]


def _verdicts(step_is_right: Callable, planted: dict[str, Combine], rng: np.random.Generator) -> Call:
    """The student's test must say True of all right steps, and False of the wrong ones in `planted`.

    It is asked about all steps, in random order: what it says of each tells one mistake from another.
    """
    steps = [_planted(combine) for combine in EVERY.values()]
    steps += [_planted(RIGHT["is right"], part, off) for part, off in PROBES]
    order = rng.permutation(len(steps))
    sees = functools.partial(_look_at, planted, order)
    shuffled = [steps[i] for i in order]
    return Call(_say, step_is_right, shuffled, sees=sees, gives=Verdicts(""), name="steps in random order")


def _look_at(planted: dict[str, Combine], order: np.ndarray, answers: list, *_: Any) -> Verdicts:
    said = [answer for _, answer in sorted(zip(order, answers, strict=True), key=lambda pair: pair[0])]
    asked = [(name, answer) for name, answer in zip(EVERY, said, strict=False) if name in planted or name in RIGHT]
    return Verdicts([_objection(*one) for one in asked], list(map(str, said)))


def _objection(name: str, answer: Any) -> str:
    if not isinstance(answer, (bool, np.bool_)):
        return f"step_is_right returns {shown(answer)} for a step that {name}, expected True or False"
    return "" if bool(answer) == (name in RIGHT) else f"step_is_right says {answer} of a step that {name}"


@check(BUG, points=4)
def sum_is_told_from_mean(step_is_right, *, rng):
    """`step_is_right` returns True for right steps, in any order of addition, and False where workers are added."""
    yield _verdicts(step_is_right, SUMMED, rng)


@check(BUG, points=1.25)
def wrong_divisions_are_caught(step_is_right, *, rng):
    """It returns False where a division is missing or done twice, or where the divisor is a fixed number."""
    yield _verdicts(step_is_right, DIVISIONS, rng)


@check(BUG, points=1.25)
def lost_examples_are_caught(step_is_right, *, rng):
    """It returns False where a worker or a micro-batch is left out or counted twice."""
    yield _verdicts(step_is_right, LOST, rng)


@check(BUG, points=0.75)
def averaged_updates_are_caught(step_is_right, *, rng):
    """It returns False where updates and moments are averaged in place of gradients."""
    yield _verdicts(step_is_right, UPDATES, rng)


@check(BUG, points=0.75)
def planted_step_adds_the_workers(summing_step, *, rng):
    """`summing_step` is the step of exercise 5, but Adam gets the sum of the workers' gradients."""
    for shape in [(3, 2, 4, 5), (4, 1, 2, 3), (1, 3, 2, 2)]:
        xs, ys, _ = examples(rng, shape[:3], shape[3])
        state = draw_step_state(rng, shape[3])
        expected = torch_step(xs, ys, state, STEP_SHOWN, 3, factor=shape[0])
        more = (*state, *STEP_SHOWN.values(), 3)
        yield step_call(summing_step, xs, ys, *more, expected=expected, name=f"N, accum_steps, B, d = {shape}")


def _planted(
    combine: Combine, part: int = 0, off: Callable[[int, int], float] = lambda n, accum_steps: 0.0
) -> Callable:
    """A training step with the arguments and the result of exercise 5; `combine` says what becomes of the gradients.

    off: (N, accum_steps) → what is added to part number `part` of the result.
    """
    return functools.partial(_step, combine, part, off)  # one function for all steps: sending each costs time


def _step(combine, part, off, worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
    arrays = (worker_xs, worker_ys, weights, ema_weights, m, v)
    xs, ys, w, ema, m, v = (np.asarray(array, dtype=np.float64) for array in arrays)
    residuals = np.einsum("nabd,d->nab", xs, w) - ys
    grads = 2 / ys.shape[2] * np.einsum("nab,nabd->nad", residuals, xs)
    g = np.atleast_2d(combine(grads))  # (K, d)
    new_m = beta1 * m + (1 - beta1) * g
    new_v = beta2 * v + (1 - beta2) * g * g
    new_w = w - lr * new_m / (1 - beta1**t) / (np.sqrt(new_v / (1 - beta2**t)) + eps)
    w, m, v = (parts.mean(axis=0) for parts in (new_w, new_m, new_v))
    parts = [w, decay * ema + (1 - decay) * w, m, v]
    parts[part] = parts[part] + off(*ys.shape[:2])
    return np.concatenate(parts)


#: Steps that no mark depends on: what the student's test says of them tells one mistake from another.
PROBES = [
    *((part, lambda n, accum_steps: 1e3 * accum_steps) for part in range(4)),
    (2, lambda n, accum_steps: 1e3 * n),
    (2, lambda n, accum_steps: 1e-3 * n * accum_steps),
]
