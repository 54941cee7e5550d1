"""Exercise 5: the whole step, against torch in one process that sees all examples."""

from __future__ import annotations

import numpy as np

from autograder.checking.cases import Call, refused
from autograder.checking.check import check
from autograder.checks.step.common import (
    EDGES,
    MID_TRAINING,
    USUAL,
    autograd,
    draw_state,
    examples,
    nearly_cancelling,
    pure_call,
    step_call,
    torch_step,
)


def _step(name: str, step, xs, ys, state: list[np.ndarray], hyper: dict, t: int) -> Call:
    """A call that gives torch's new weights, EMA weights, m, v."""
    expected = torch_step(xs.reshape(-1, xs.shape[-1]), ys.reshape(-1), state, hyper, t)
    return step_call(step, xs, ys, *state, *hyper.values(), t, expected=expected, name=name)


@check("03-ex5-training-step", points=4)
def step_follows_torch(distributed_training_step, *, rng):
    """The result, (4*d,), holds the weights, EMA weights, m and v that torch has after a step on all examples."""
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


@check("03-ex5-training-step", points=1)
def step_does_not_depend_on_the_deal(distributed_training_step, *, rng):
    """The result stays the same when the same examples are dealt to other workers and micro-batches."""
    x, y, w = examples(rng, (24,), 3)
    state = [w, rng.normal(size=3), *draw_state(rng, 3)[1:]]
    expected = torch_step(x, y, state, MID_TRAINING, 4)
    more = (*state, *MID_TRAINING.values(), 4)
    for deal in [(1, 1, 24), (4, 3, 2), (24, 1, 1), (1, 24, 1), (2, 3, 4), (3, 8, 1), (6, 2, 2)]:
        order = rng.permutation(24)
        xs, ys = x[order].reshape(*deal, 3), y[order].reshape(deal)
        name = f"24 examples dealt as N, accum_steps, B = {deal}"
        yield step_call(distributed_training_step, xs, ys, *more, expected=expected, name=name)


@check("03-ex5-training-step", points=0.5)
def step_takes_lists_and_any_dtype(distributed_training_step, *, rng):
    """Lists of arrays, and float32 or integer arrays, give the float64 result that float64 arrays give."""
    xs, ys, w = nearly_cancelling(rng, (3, 2, 4), 5)
    narrow = [a.astype(np.float32) for a in (w, rng.normal(size=5), *draw_state(rng, 5)[1:])]
    wide = [a.astype(np.float64) for a in narrow]
    x64, y64 = xs.astype(np.float64), ys.astype(np.float64)
    ints = [rng.integers(-100, 100, shape) for shape in ((3, 2, 4, 5), (3, 2, 4), (5,), (5,), (5,))]
    ints.append(rng.integers(1, 100, 5))
    for name, given in (
        ("lists of float64 arrays", (list(x64), list(y64), *wide)),
        ("lists of lists of float64 arrays", ([list(x) for x in x64], [list(y) for y in y64], *wide)),
        ("int64 arrays", ints),
        ("int64 weights, EMA weights, m and v; float64 examples", (x64, y64, *ints[2:])),
        ("int8 examples", (ints[0].astype(np.int8), ints[1].astype(np.int8), *wide)),
        ("float32 arrays", (xs, ys, *narrow)),
        ("float32 arrays, m and the EMA nearly cancelled", (xs, ys, *_cancelled_state(xs, ys, narrow))),
        ("lists of float32 arrays", (list(xs), list(ys), *narrow)),
    ):
        x, y, *state = (np.asarray(a, dtype=np.float64) for a in given)
        new = torch_step(x.reshape(-1, 5), y.reshape(-1), state, MID_TRAINING, 3)
        more = (*MID_TRAINING.values(), 3)
        yield step_call(distributed_training_step, *given, *more, expected=new, dtype="float64", name=name)


@check("03-ex5-training-step", points=0.5)
def step_leaves_its_inputs_alone(distributed_training_step, *, rng):
    """No array is changed, not even inside lists, and the result shares no memory with one."""
    for name, nest in (
        ("arrays", lambda a: a),
        ("lists of arrays", list),
        ("lists of lists of arrays", lambda a: [list(inner) for inner in a]),
    ):
        xs, ys, w = examples(rng, (3, 2, 4), 5)
        _, m, v = draw_state(rng, 5)
        inputs = {"worker_xs": nest(xs), "worker_ys": nest(ys), "weights": w, "ema_weights": rng.normal(size=5)}
        inputs |= {"m": m, "v": v}
        new = np.hstack(torch_step(xs.reshape(-1, 5), ys.reshape(-1), [*inputs.values()][2:], USUAL, 2))
        yield pure_call(distributed_training_step, inputs, *USUAL.values(), 2, gives=new, name=name)


@check("03-ex5-training-step", points=1)
def step_rejects_what_does_not_fit(distributed_training_step, *, rng):
    """t below 1 and shapes that do not fit raise a ValueError; it names the argument, where one argument is wrong."""
    xs, ys, w = examples(rng, (3, 2, 4), 5)
    right = {"worker_xs": xs, "worker_ys": ys, "weights": w, "ema_weights": w, "m": w, "v": w * w} | USUAL | {"t": 1}
    wrong = {
        "t = 0": {"t": 0},
        "t = -1": {"t": -1},
        "worker_xs (accum_steps, B, d), no N": {"worker_xs": xs[0]},
        "worker_xs (N, accum_steps, B, d, 1)": {"worker_xs": xs[..., None]},
        "worker_ys (N, accum_steps, B, 1)": {"worker_ys": ys[..., None]},
        "worker_ys for another N": {"worker_ys": ys[:2]},
        "worker_ys for another accum_steps": {"worker_ys": ys[:, :1]},
        "worker_ys for another B": {"worker_ys": ys[:, :, :1]},
        "weights (d, 1)": {"weights": w[:, None]},
        "weights (d + 1,)": {"weights": np.ones(6)},
        "ema_weights (1,)": {"ema_weights": np.ones(1)},
        "ema_weights (1, d)": {"ema_weights": np.ones((1, 5))},
        "m (1, d)": {"m": np.zeros((1, 5))},
        "m a number": {"m": 0.0},
        "v (1,)": {"v": np.zeros(1)},
        "v (d, 1)": {"v": np.zeros((5, 1))},
    }
    yield from _refused(distributed_training_step, right, wrong, "all shapes fit, t = 1")
    for name, workers in (
        ("a worker with fewer micro-batches", [xs[0], xs[1], xs[2][:1]]),
        ("a micro-batch with fewer examples", [list(xs[0]), list(xs[1]), [xs[2][0], xs[2][1][:1]]]),
    ):  # x and y fit each other: the workers differ
        uneven = right | {"worker_xs": workers, "worker_ys": [[micro[:, 0] for micro in worker] for worker in workers]}
        yield Call(distributed_training_step, *uneven.values(), raises=ValueError, name=name, evidence=REFUSAL)
    state = ("weights", "ema_weights", "m", "v")
    right |= {"worker_xs": xs[..., :1]} | {name: np.ones(1) for name in state}
    wrong = {f"{name} a number, d = 1": {name: 1.0} for name in state}
    yield from _refused(distributed_training_step, right, wrong, "all shapes fit, t = 1, d = 1")


#: One evidence for all: what else happened depends on where numpy failed first, and the mistake is the same.
REFUSAL = "not rejected"


def _refused(step, right: dict, wrong: dict, name: str):
    """These arguments are refused, and the right ones give torch's step."""
    xs, ys, *state = [*right.values()][:6]
    fits = _step(name, step, xs, ys, state, USUAL, right["t"])
    return refused(step, right, wrong=wrong, gives=fits.gives, sees=fits.sees, right_name=name, evidence=REFUSAL)


def _cancelled_state(xs: np.ndarray, ys: np.ndarray, state: list[np.ndarray]) -> list[np.ndarray]:
    """A float32 state whose new m and new EMA are as small as the rounding of their two terms.

    So rounding the gradient or the new weights to float32 on the way shows: the error is as large as the result.
    """
    x, y = xs.astype(np.float64).reshape(-1, xs.shape[-1]), ys.astype(np.float64).reshape(-1)
    w, ema, m, v = state
    beta1, decay = MID_TRAINING["beta1"], MID_TRAINING["decay"]
    m = (-(1 - beta1) / beta1 * autograd(x, y, w.astype(np.float64))).astype(np.float32)
    wide = [a.astype(np.float64) for a in (w, ema, m, v)]
    ema = (-(1 - decay) / decay * torch_step(x, y, wide, MID_TRAINING, 3)[0]).astype(np.float32)
    return [w, ema, m, v]
