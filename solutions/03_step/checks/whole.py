"""Exercise 5: the whole step, against torch in one process that sees all examples."""

from __future__ import annotations

import numpy as np

from autograder.checking.cases import Call
from autograder.checking.check import check
from autograder.checks.step.common import EDGES, MID_TRAINING, USUAL, draw_state, examples, step_call, torch_step


def _step(name: str, step, xs, ys, state: list[np.ndarray], hyper: dict, t: int) -> Call:
    """A call that gives torch's new weights, EMA weights, m, v."""
    expected = torch_step(xs.reshape(-1, xs.shape[-1]), ys.reshape(-1), state, hyper, t)
    return step_call(step, xs, ys, *state, *hyper.values(), t, expected=expected, name=name)


@check("03-ex5-training-step", points=2.5)
def step_follows_torch(distributed_training_step, *, rng):
    """The result, (4*d,), is torch's after a step of one process on all examples, however these are dealt."""
    shape = (3, 2, 4, 5)
    xs, ys, w = examples(rng, shape[:3], shape[3])
    _, m, v = draw_state(rng, 5)
    state = [w, rng.normal(size=5), m, v]
    name = f"one step at t = 3, N, accum_steps, B, d = {shape}"
    yield _step(name, distributed_training_step, xs, ys, state, MID_TRAINING, 3)

    for shape in [(2, 2, 2, 3), *EDGES]:
        xs, ys, w = examples(rng, shape[:3], shape[3])
        state = [w, rng.normal(size=shape[3]), np.zeros(shape[3]), np.zeros(shape[3])]
        name = f"t = 1, N, accum_steps, B, d = {shape}"
        yield _step(name, distributed_training_step, xs, ys, state, MID_TRAINING, 1)

    state = [*state[:2], *draw_state(rng, shape[3])[1:]]
    name = f"t = 1, m and v not zero, N, accum_steps, B, d = {shape}"
    yield _step(name, distributed_training_step, xs, ys, state, MID_TRAINING, 1)

    w = rng.normal(size=7)
    state = [w, w.copy(), np.zeros(7), np.zeros(7)]
    for t in range(1, 31):
        xs, ys, _ = examples(rng, (4, 2, 3), 7)
        yield _step(f"30 steps in a row, t = {t}", distributed_training_step, xs, ys, state, USUAL, t)
        state = torch_step(xs.reshape(-1, 7), ys.reshape(-1), state, USUAL, t)
    yield _step("t = 1,000,000", distributed_training_step, xs, ys, state, USUAL, 10**6)

    x, y, w = examples(rng, (24,), 3)
    state = [w, rng.normal(size=3), *draw_state(rng, 3)[1:]]
    for deal in [(1, 1, 24), (4, 3, 2), (24, 1, 1), (1, 24, 1), (6, 2, 2)]:
        name = f"24 examples dealt as N, accum_steps, B = {deal}"
        yield _step(name, distributed_training_step, x.reshape(*deal, 3), y.reshape(deal), state, MID_TRAINING, 4)


@check("03-ex5-training-step", points=0.5)
def step_takes_lists(distributed_training_step, *, rng):
    """A list of the workers' arrays, or a list of lists, gives the result that one array gives."""
    for what, nest in (("arrays", list), ("lists of arrays", lambda a: [list(worker) for worker in a])):
        xs, ys, w = examples(rng, (3, 2, 4), 5)
        state = [w, rng.normal(size=5), *draw_state(rng, 5)[1:]]
        expected = torch_step(xs.reshape(-1, 5), ys.reshape(-1), state, MID_TRAINING, 3)
        more = (*state, *MID_TRAINING.values(), 3)
        yield step_call(
            distributed_training_step, nest(xs), nest(ys), *more, expected=expected, name=f"lists of {what}"
        )
