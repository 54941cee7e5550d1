"""Exercise 5: the whole step, against torch in one process that sees all examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checks.cases import Call, close, evidence, sentence
from autograder.checks.check import check

from .common import (
    EDGES,
    STEP_SHOWN,
    STEP_USUAL,
    Parts,
    blocks_of,
    closest,
    draw_step_state,
    examples,
    near,
    torch_step,
)


@dataclass
class Averaged:
    """Whether some part of the result averages the old EMA weights and another part."""

    fits: str = sentence()
    whole: Any = evidence()


def _sees_parts(expected: list[np.ndarray]) -> Callable:
    """m, v and the weights, wherever in the result they stand."""

    def sees(result: Any, *_: Any) -> Parts:
        blocks = blocks_of(len(expected[0]), result, of_any_shape=True)
        w, _, m, v = (closest(blocks, part) for part in expected)
        return Parts(m, v, w, whole=np.concatenate(blocks))

    return sees


def _steps(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray, np.ndarray, list[np.ndarray], dict, int]]:
    """name, xs, ys, state, hyperparameters and t of single steps, and of thirty in a row."""
    xs, ys, _ = examples(rng, (3, 2, 4), 5)
    yield "one step at t = 3, N, accum_steps, B, d = (3, 2, 4, 5)", xs, ys, draw_step_state(rng, 5), STEP_SHOWN, 3

    for shape in [(2, 2, 2, 3), *EDGES]:
        xs, ys, w = examples(rng, shape[:3], shape[3])
        state = [w, rng.normal(size=shape[3]), np.zeros(shape[3]), np.zeros(shape[3])]
        yield f"t = 1, N, accum_steps, B, d = {shape}", xs, ys, state, STEP_SHOWN, 1

    state, name = draw_step_state(rng, shape[3]), f"t = 1, m and v not zero, N, accum_steps, B, d = {shape}"
    yield name, xs, ys, state, STEP_SHOWN, 1

    w = rng.normal(size=7)
    state = [w, w.copy(), np.zeros(7), np.zeros(7)]
    for t in range(1, 31):
        xs, ys, _ = examples(rng, (4, 2, 3), 7)
        yield f"30 steps in a row, t = {t}", xs, ys, state, STEP_USUAL, t
        state = torch_step(xs, ys, state, STEP_USUAL, t)
    yield "t = 1,000,000", xs, ys, state, STEP_USUAL, 10**6

    x, y, _ = examples(rng, (24,), 3)
    state = draw_step_state(rng, 3)
    for deal in [(1, 1, 24), (4, 3, 2), (24, 1, 1), (1, 24, 1), (6, 2, 2)]:
        name = f"24 examples dealt as N, accum_steps, B = {deal}"
        yield name, x.reshape(*deal, 3), y.reshape(deal), state, STEP_SHOWN, 4


@check("03-ex5-training-step", points=1.5)
def step_follows_torch(distributed_training_step, *, rng):
    """m, v and the weights are torch's after a step of one process on all examples, however these are dealt."""
    for name, xs, ys, state, hyper, t in _steps(rng):
        expected = torch_step(xs, ys, state, hyper, t)
        w, _, m, v = map(near, expected)
        arguments = (xs, ys, *state, *hyper.values(), t)
        gives = Parts(m, v, w)
        yield Call(distributed_training_step, *arguments, sees=_sees_parts(expected), gives=gives, name=name)


@check("03-ex5-training-step", points=0.5)
def average_follows_the_new_weights(distributed_training_step, *, rng):
    """The EMA weights are the average of the old ones and the new weights, in the first step, too."""
    for t in (1, 3):
        (xs, ys, _), state = examples(rng, (3, 2, 4), 5), draw_step_state(rng, 5)

        def sees(result: Any, *_: Any, old: np.ndarray = state[1]) -> Averaged:
            blocks, decay = blocks_of(5, result, of_any_shape=True), STEP_SHOWN["decay"]
            averages = [decay * old + (1 - decay) * block for block in blocks]
            fits = any(np.allclose(a, b, rtol=1e-9) for a in averages for b in blocks)
            text = "no part of the result is decay * ema_weights + (1 - decay) * the new weights"
            return Averaged("" if fits else text, np.concatenate(blocks))

        arguments = (xs, ys, *state, *STEP_SHOWN.values(), t)
        yield Call(distributed_training_step, *arguments, sees=sees, gives=Averaged(""), name=f"one step at t = {t}")


@check("03-ex5-training-step", points=0.5)
def parts_stand_in_their_order(distributed_training_step, *, rng):
    """The result has the shape (4*d,): new weights, new EMA weights, new m, new v."""
    xs, ys, w = examples(rng, (3, 2, 4), 5)
    # So far apart that each part is known by its size, whatever else is wrong with it.
    state = [w, 1e4 * (2 + rng.uniform(size=5)), 1e2 * (2 + rng.uniform(size=5)), 1e7 * (2 + rng.uniform(size=5))]
    order = ["weights", "EMA weights", "m", "v"]

    def sees(result: Any, *_: Any) -> Any:
        sizes = [np.log10(np.abs(part).max() + 1e-9) for part in state]
        found = [np.log10(np.abs(block).max() + 1e-9) for block in blocks_of(5, result)]
        return [order[int(np.argmin([abs(one - size) for size in sizes]))] for one in found]

    arguments = (xs, ys, *state, *STEP_SHOWN.values(), 3)
    how = {"what": "the order of the parts", "name": "a step whose weights, EMA weights, m and v differ in size"}
    yield Call(distributed_training_step, *arguments, sees=sees, gives=order, **how)


def _apart(step: Callable, nested: tuple, arrays: tuple, more: tuple) -> float:
    """The largest difference of the results for lists and for arrays; infinite if they are no results of a step."""
    first, second = (np.ravel(np.asarray(step(*given, *more), dtype=float)) for given in (nested, arrays))
    if first.size != second.size or first.size != 4 * len(more[0]) or not np.any(second):
        return float("inf")
    return float(np.abs(first - second).max())


@check("03-ex5-training-step", points=0.5)
def step_takes_lists(distributed_training_step, *, rng):
    """A list of the workers' arrays, or a list of lists, gives the result that one array gives."""
    for what, nest in (("arrays", list), ("lists of arrays", lambda a: [list(worker) for worker in a])):
        xs, ys, _ = examples(rng, (3, 2, 4), 5)
        more = (*draw_step_state(rng, 5), *STEP_SHOWN.values(), 3)
        arguments = (distributed_training_step, (nest(xs), nest(ys)), (xs, ys), more)
        how = {"what": "the largest difference from the result for arrays", "name": f"lists of {what}"}
        yield Call(_apart, *arguments, gives=close(0.0, atol=1e-9), **how)
