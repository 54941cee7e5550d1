"""Lesson 03: what must hold of one training step by hand, one function for each property.

The oracles are torch's own: autograd for the gradient, the functional form of `torch.optim.Adam`, and
`torch.optim.swa_utils.get_ema_avg_fn`, all in float64. They share no line with a solution in numpy.

Adam hides constant factors: ten times the gradient moves the weights just as far. So the moments are compared
too, and each small function is also tried by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim.adam import adam as torch_adam
from torch.optim.swa_utils import get_ema_avg_fn

from autograder.checking.check import check
from autograder.checking.expect import as_array, expect_close, expect_raises, expect_unchanged, fail

#: Two float64 sums of K terms differ by at most about 2·K·2⁻⁵³ times the sum of magnitudes. Here K ≤ 500 and
#: the magnitudes add up to less than 100 times the largest result: 2·500·1.1e-16·100 ≈ 1.1e-11.
RTOL = 1e-10
#: Where terms of order 1 cancel, a result near 0 carries the same rounding errors: they need a bound of their own.
ATOL = 1e-12
#: Elements that are not all finite, of which this many are observed.
EVIDENCE = 2_048
#: A float64 result rounded once to float32 is off by 2⁻²⁴ of itself; twice that allows for ties.
ROUNDED_ONCE = 2.0**-23

PARTS = ("the new weights", "the new EMA weights", "the new m", "the new v")
#: (N, accum_steps, B, d), with each dimension in turn equal to 1.
EDGES = [(1, 3, 4, 2), (3, 1, 4, 2), (2, 3, 1, 4), (2, 2, 3, 1), (1, 1, 1, 1), (5, 2, 3, 7)]


# --- exercise 1 -------------------------------------------------------------------------------------------


@check("03-ex1-worker-gradient")
def gradient_is_that_of_the_mean_loss(worker_gradient: Callable, *, rng: np.random.Generator) -> None:
    """The gradient is that of the mean squared error over all the worker's examples, as autograd computes it."""
    for accum_steps, batch, d in [(3, 4, 5), *(shape[1:] for shape in EDGES), (7, 2, 3)]:
        x, y, w = _examples(rng, (accum_steps, batch), d)
        case = f"accum_steps = {accum_steps}, B = {batch}, d = {d}"
        got = worker_gradient(x.copy(), y.copy(), w.copy())
        because = "it should be that of the mean loss over all accum_steps * B examples"
        _expect_close(case, got, _autograd(x, y, w), "the gradient", because=because)


@check("03-ex1-worker-gradient")
def gradient_is_computed_in_float64(worker_gradient: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer arrays too, the gradient is computed and returned in float64."""
    x, y, w = _nearly_cancelling(rng, (3, 4), 5)
    wide = _autograd(*(a.astype(np.float64) for a in (x, y, w)))
    case = "float32 arrays, residuals much smaller than y"
    got = worker_gradient(x.copy(), y.copy(), w.copy())
    _expect_float64(case, got, wide, what="the gradient")

    x, y, w = (rng.integers(-100, 100, shape).astype(np.int8) for shape in ((3, 4, 5), (3, 4), (5,)))
    wide = _autograd(*(a.astype(np.float64) for a in (x, y, w)))
    _expect_float64("int8 arrays", worker_gradient(x.copy(), y.copy(), w.copy()), wide, what="the gradient")


@check("03-ex1-worker-gradient")
def gradient_leaves_its_inputs_alone(worker_gradient: Callable, *, rng: np.random.Generator) -> None:
    """x, y and w are not changed, and the result shares no memory with them."""
    for accum_steps, batch in [(3, 4), (1, 1)]:
        inputs = dict(zip(("x", "y", "w"), _examples(rng, (accum_steps, batch), 5), strict=True))
        _expect_pure(f"accum_steps = {accum_steps}, B = {batch}", worker_gradient, inputs)


# --- exercise 2 -------------------------------------------------------------------------------------------


@check("03-ex2-all-reduce-mean")
def mean_is_over_the_workers(all_reduce_mean: Callable, *, rng: np.random.Generator) -> None:
    """The result is the mean over the workers, from one array and from a list of arrays."""
    for n, d in [(4, 3), (3, 3), (1, 5), (5, 1), (1, 1), (8, 2)]:
        grads = rng.normal(size=(n, d)) + np.arange(n)[:, None]
        expected = torch.from_numpy(grads).mean(dim=0).numpy()
        for kind, given in (("an array", grads.copy()), ("a list of arrays", [row.copy() for row in grads])):
            got = all_reduce_mean(given)
            _expect_close(f"N = {n}, d = {d}, {kind}", got, expected, "the mean gradient")


@check("03-ex2-all-reduce-mean")
def mean_is_computed_in_float64(all_reduce_mean: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer gradients too, the mean is computed and returned in float64."""
    grads = (1e4 + rng.normal(size=(7, 3))).astype(np.float32)
    expected = torch.from_numpy(grads).double().mean(dim=0).numpy()
    _expect_float64("float32 gradients", all_reduce_mean(grads.copy()), expected, what="the mean gradient")

    grads = rng.integers(60, 120, (4, 3)).astype(np.int8)
    grads[0] += 1 - grads.sum(axis=0, dtype=int).astype(np.int8) % 4  # no mean is a whole number
    expected = torch.from_numpy(grads).double().mean(dim=0).numpy()
    _expect_float64("int8 gradients", all_reduce_mean(grads.copy()), expected, what="the mean gradient")


@check("03-ex2-all-reduce-mean")
def mean_leaves_its_inputs_alone(all_reduce_mean: Callable, *, rng: np.random.Generator) -> None:
    """No worker's gradient is changed, and the result shares no memory with one, even with one worker."""
    for n in (3, 1):
        _expect_pure(f"N = {n}, an array", all_reduce_mean, {"worker_grads": rng.normal(size=(n, 4))})
        _expect_pure(f"N = {n}, a list of arrays", all_reduce_mean, {"worker_grads": list(rng.normal(size=(n, 4)))})


# --- exercise 3 -------------------------------------------------------------------------------------------


@check("03-ex3-adam-update")
def adam_follows_torch(adam_update: Callable, *, rng: np.random.Generator) -> None:
    """w, m and v after an update are those of torch's Adam, from the first update to one at t = 1,000,000."""
    hyper = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05}
    state = _state(rng, 4)
    _expect_adam("one update at t = 3", adam_update, *state, rng.normal(size=4), hyper, 3)

    w, m, v = rng.normal(size=4), np.zeros(4), np.zeros(4)
    _expect_adam("t = 1, m and v zero", adam_update, w, m, v, rng.normal(size=4), hyper, 1)

    hyper = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    for t in range(1, 31):
        g = rng.normal(size=4) * 10.0 ** rng.integers(-3, 3)
        w, m, v = _expect_adam(f"30 updates in a row, t = {t}", adam_update, w, m, v, g, hyper, t)
    _expect_adam("t = 1,000,000", adam_update, *_state(rng, 1), rng.normal(size=1), hyper, 10**6)


@check("03-ex3-adam-update")
def adam_is_computed_in_float64(adam_update: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer arrays too, the new w, m and v are computed and returned in float64."""
    hyper = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05}
    for dtype, scale in ((np.float32, 1.0), (np.int64, 9.0)):
        w, m, v = (np.ceil(scale * a).astype(dtype) if scale > 1 else a.astype(dtype) for a in _state(rng, 4))
        g = (scale * rng.normal(size=4)).astype(dtype)
        _expect_adam(f"{np.dtype(dtype)} arrays", adam_update, w, m, v, g, hyper, 5, check_dtype=True)


@check("03-ex3-adam-update")
def adam_leaves_its_inputs_alone(adam_update: Callable, *, rng: np.random.Generator) -> None:
    """w, g, m and v are not changed, and the results share no memory with them."""
    w, m, v = _state(rng, 4)
    inputs = {"w": w, "g": rng.normal(size=4), "m": m, "v": v}
    _expect_pure("t = 2", lambda *arrays: adam_update(*arrays, 0.1, 0.9, 0.99, 1e-8, 2), inputs)


# --- exercise 4 -------------------------------------------------------------------------------------------


@check("03-ex4-ema-update")
def ema_follows_torch(ema_update: Callable, *, rng: np.random.Generator) -> None:
    """The average is that of torch's `get_ema_avg_fn(decay)`, for one update and for twenty, and for decay 0 and 1."""
    for d, decay in [(4, 0.9), (1, 0.75), (3, 0.0), (3, 1.0)]:
        ema, w = rng.normal(size=d), rng.normal(size=d)
        got = ema_update(ema.copy(), w.copy(), decay)
        _expect_close(f"d = {d}, decay = {decay}", got, _ema(ema, w, decay), "the EMA")

    ema = rng.normal(size=4)
    for step in range(20):
        w = rng.normal(size=4)
        got = ema_update(ema.copy(), w.copy(), 0.9)
        ema = _ema(ema, w, 0.9)
        _expect_close(f"20 updates in a row, number {step + 1}", got, ema, "the EMA")


@check("03-ex4-ema-update")
def ema_is_computed_in_float64(ema_update: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer arrays too, the average is computed and returned in float64."""
    for dtype in (np.float32, np.int64):
        ema, w = (rng.uniform(10, 99, size=5).astype(dtype) for _ in range(2))
        expected = _ema(ema.astype(np.float64), w.astype(np.float64), 0.99)
        got = ema_update(ema.copy(), w.copy(), 0.99)
        _expect_float64(f"{np.dtype(dtype)} arrays", got, expected, what="the EMA")


@check("03-ex4-ema-update")
def ema_leaves_its_inputs_alone(ema_update: Callable, *, rng: np.random.Generator) -> None:
    """ema and w are not changed, and the result shares no memory with them, even for decay 0 and 1."""
    for decay in (0.9, 0.0, 1.0):
        inputs = {"ema": rng.normal(size=4), "w": rng.normal(size=4)}
        _expect_pure(f"decay = {decay}", lambda ema, w, decay=decay: ema_update(ema, w, decay), inputs)


# --- exercise 5 -------------------------------------------------------------------------------------------

MID_TRAINING = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05, "decay": 0.7}
USUAL = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.99}


@check("03-ex5-training-step")
def step_follows_torch(distributed_training_step: Callable, *, rng: np.random.Generator) -> None:
    """The result, (4*d,), holds the weights, EMA weights, m and v that torch has after a step on all examples."""
    shape = (3, 2, 4, 5)
    xs, ys, w = _examples(rng, shape[:3], shape[3])
    _, m, v = _state(rng, 5)
    state = [w, rng.normal(size=5), m, v]
    case = f"one step at t = 3, N, accum_steps, B, d = {shape}"
    _expect_step(case, distributed_training_step, xs, ys, state, MID_TRAINING, 3)

    for shape in [(2, 2, 2, 3), *EDGES]:
        xs, ys, w = _examples(rng, shape[:3], shape[3])
        state = [w, rng.normal(size=shape[3]), np.zeros(shape[3]), np.zeros(shape[3])]
        case = f"t = 1, N, accum_steps, B, d = {shape}"
        _expect_step(case, distributed_training_step, xs, ys, state, MID_TRAINING, 1)

    for t in range(1, 31):
        xs, ys, _ = _examples(rng, (4, 2, 3), 7)
        if t == 1:
            w = rng.normal(size=7)
            state = [w, w.copy(), np.zeros(7), np.zeros(7)]
        state = _expect_step(f"30 steps in a row, t = {t}", distributed_training_step, xs, ys, state, USUAL, t)
    _expect_step("t = 1,000,000", distributed_training_step, xs, ys, state, USUAL, 10**6)


@check("03-ex5-training-step")
def step_does_not_depend_on_the_deal(distributed_training_step: Callable, *, rng: np.random.Generator) -> None:
    """The result stays the same when the same examples are dealt to other workers and micro-batches."""
    x, y, w = _examples(rng, (24,), 3)
    state = [w, rng.normal(size=3), *_state(rng, 3)[1:]]
    expected = _torch_step(x, y, state, MID_TRAINING, 4)
    for deal in [(1, 1, 24), (4, 3, 2), (24, 1, 1), (1, 24, 1), (2, 3, 4), (3, 8, 1), (6, 2, 2)]:
        order = rng.permutation(24)
        xs, ys = x[order].reshape(*deal, 3), y[order].reshape(deal)
        got = distributed_training_step(xs, ys, *(a.copy() for a in state), *MID_TRAINING.values(), 4)
        _compare_parts(f"24 examples dealt as N, accum_steps, B = {deal}", got, expected, RTOL)


@check("03-ex5-training-step")
def step_keeps_to_its_types(distributed_training_step: Callable, *, rng: np.random.Generator) -> None:
    """The result is float32 if all inputs are, else float64; lists and integers give what float64 arrays give."""
    xs, ys, w = _nearly_cancelling(rng, (3, 2, 4), 5)
    narrow = [a.astype(np.float32) for a in (w, rng.normal(size=5), *_state(rng, 5)[1:])]
    wide = [a.astype(np.float64) for a in narrow]
    x64, y64 = xs.astype(np.float64), ys.astype(np.float64)
    ints = [rng.integers(-100, 100, shape) for shape in ((3, 2, 4, 5), (3, 2, 4), (5,), (5,), (5,))]
    ints.append(rng.integers(1, 100, 5))
    for case, dtype, (given_xs, given_ys, *given) in (
        ("lists of float64 arrays", np.float64, (list(x64), list(y64), *wide)),
        (
            "lists of lists of float64 arrays",
            np.float64,
            ([list(x) for x in x64], [list(y) for y in y64], *wide),
        ),
        ("int64 arrays", np.float64, ints),
        ("int64 weights, EMA weights, m and v; float64 examples", np.float64, (x64, y64, *ints[2:])),
        ("int8 examples", np.float64, (ints[0].astype(np.int8), ints[1].astype(np.int8), *wide)),
        ("all float32", np.float32, (xs, ys, *narrow)),
        ("all float32, m and the EMA nearly cancelled", np.float32, (xs, ys, *_cancelled_state(xs, ys, narrow))),
        ("lists of float32 arrays", np.float32, (list(xs), list(ys), *narrow)),
        ("float32 but for float64 examples", np.float64, (x64, y64, *narrow)),
        ("float32 but for int8 examples", np.float64, (ints[0].astype(np.int8), ints[1].astype(np.int8), *narrow)),
        ("float32 but for float16 examples", np.float64, (xs.astype(np.float16), ys.astype(np.float16), *narrow)),
        ("float32 but for a float64 EMA", np.float64, (xs, ys, narrow[0], wide[1], *narrow[2:])),
    ):
        flat = [np.asarray(a, dtype=np.float64) for a in (given_xs, given_ys, *given)]
        expected = _torch_step(flat[0].reshape(-1, 5), flat[1].reshape(-1), flat[2:], MID_TRAINING, 3)
        got = distributed_training_step(given_xs, given_ys, *given, *MID_TRAINING.values(), 3)
        got_dtype = as_array(case, got, "the result").dtype
        if got_dtype != dtype:
            fail(f"the result is {got_dtype}, expected {np.dtype(dtype)}", case, str(got_dtype))
        _compare_parts(case, got, expected, ROUNDED_ONCE if dtype is np.float32 else RTOL)


@check("03-ex5-training-step")
def step_leaves_its_inputs_alone(distributed_training_step: Callable, *, rng: np.random.Generator) -> None:
    """No array is changed, not even inside lists, and the result shares no memory with one."""
    for case, nest in (
        ("arrays", lambda a: a),
        ("lists of arrays", list),
        ("lists of lists of arrays", lambda a: [list(inner) for inner in a]),
    ):
        xs, ys, w = _examples(rng, (3, 2, 4), 5)
        _, m, v = _state(rng, 5)
        inputs = {
            "worker_xs": nest(xs),
            "worker_ys": nest(ys),
            "weights": w,
            "ema_weights": rng.normal(size=5),
        }
        inputs |= {"m": m, "v": v}
        _expect_pure(case, lambda *arrays: distributed_training_step(*arrays, *USUAL.values(), 2), inputs)


@check("03-ex5-training-step")
def step_rejects_what_does_not_fit(distributed_training_step: Callable, *, rng: np.random.Generator) -> None:
    """t below 1 and shapes that do not fit raise a ValueError; it names the argument, where one argument is wrong."""
    xs, ys, w = _examples(rng, (3, 2, 4), 5)
    right = {"worker_xs": xs, "worker_ys": ys, "weights": w, "ema_weights": w, "m": w, "v": w * w} | USUAL
    right["t"] = 1
    for name, why, value in (
        ("t", "t = 0", 0),
        ("t", "t = -1", -1),
        ("worker_xs", "worker_xs (accum_steps, B, d), no N", xs[0]),
        ("worker_ys", "worker_ys (N, accum_steps, B, 1)", ys[..., None]),
        ("worker_ys", "worker_ys for another N", ys[:2]),
        ("worker_ys", "worker_ys for another accum_steps", ys[:, :1]),
        ("worker_ys", "worker_ys for another B", ys[:, :, :1]),
        ("weights", "weights (d, 1)", w[:, None]),
        ("weights", "weights (d + 1,)", np.ones(6)),
        ("ema_weights", "ema_weights (1,)", np.ones(1)),
        ("ema_weights", "ema_weights (1, d)", np.ones((1, 5))),
        ("m", "m a number", 0.0),
        ("m", "m (1, d)", np.zeros((1, 5))),
        ("v", "v (1,)", np.zeros(1)),
        ("v", "v (d, 1)", np.zeros((5, 1))),
        ("", "a worker with fewer micro-batches", [xs[0], xs[1], xs[2][:1]]),
        ("", "a micro-batch with fewer examples", [list(xs[0]), list(xs[1]), [xs[2][0], xs[2][1][:1]]]),
    ):
        arguments = right | {name or "worker_xs": value}
        if not name:  # x and y fit each other: the workers differ
            arguments["worker_ys"] = [[micro[:, 0] for micro in worker] for worker in value]
        # One evidence for all: what else happened depends on where numpy failed first, and the mistake is the same.
        expect_raises(
            why,
            distributed_training_step,
            *arguments.values(),
            error=ValueError,
            mentions=name,
            evidence="not rejected",
        )


# --- inputs, oracles, comparisons -------------------------------------------------------------------------


def _examples(rng: np.random.Generator, many: tuple[int, ...], d: int) -> tuple[np.ndarray, ...]:
    """x (*many, d), y (*many,) and w (d,), standard normal, float64."""
    return rng.normal(size=(*many, d)), rng.normal(size=many), rng.normal(size=d)


def _nearly_cancelling(rng: np.random.Generator, many: tuple[int, ...], d: int) -> tuple[np.ndarray, ...]:
    """The same in float32, with y so near to x @ w that a residual in float32 loses digits."""
    x, w = rng.normal(size=(*many, d)).astype(np.float32), (300 * rng.normal(size=d)).astype(np.float32)
    y = x.astype(np.float64) @ w.astype(np.float64) + rng.normal(size=many)
    return x, y.astype(np.float32), w


def _cancelled_state(xs: np.ndarray, ys: np.ndarray, state: list[np.ndarray]) -> list[np.ndarray]:
    """A float32 state whose new m and new EMA are as small as the rounding of their two terms.

    So a gradient, or new weights, that are rounded to float32 on the way show: the error is as large as the result.
    """
    x, y = xs.astype(np.float64).reshape(-1, xs.shape[-1]), ys.astype(np.float64).reshape(-1)
    w, ema, m, v = state
    beta1, decay = MID_TRAINING["beta1"], MID_TRAINING["decay"]
    m = (-(1 - beta1) / beta1 * _autograd(x, y, w.astype(np.float64))).astype(np.float32)
    wide = [a.astype(np.float64) for a in (w, ema, m, v)]
    ema = (-(1 - decay) / decay * _torch_step(x, y, wide, MID_TRAINING, 3)[0]).astype(np.float32)
    return [w, ema, m, v]


def _state(rng: np.random.Generator, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights w and moments m and v, (d,) each, as training leaves them: v is positive."""
    return rng.normal(size=d), rng.normal(size=d), rng.uniform(0.5, 2.0, size=d)


def _autograd(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The gradient of the mean squared error over all examples, by torch's autograd."""
    weights = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    examples, targets = torch.tensor(x.reshape(-1, x.shape[-1])), torch.tensor(y.reshape(-1))
    torch.nn.functional.mse_loss(examples @ weights, targets).backward()
    return weights.grad.numpy()


def _adam(w: Any, g: Any, m: Any, v: Any, hyper: dict, t: int) -> list[np.ndarray]:
    """New w, m, v by the function that torch.optim.Adam calls; the class itself takes a second to import."""
    w, g, m, v = (torch.tensor(np.asarray(a, dtype=np.float64)) for a in (w, g, m, v))
    torch_adam(
        [w], [g], [m], [v], [], [torch.tensor(float(t - 1))], foreach=False, amsgrad=False, maximize=False,
        weight_decay=0.0, lr=hyper["lr"], beta1=hyper["beta1"], beta2=hyper["beta2"], eps=hyper["eps"],
    )  # fmt: skip
    return [w.numpy(), m.numpy(), v.numpy()]


def _ema(ema: np.ndarray, w: np.ndarray, decay: float) -> np.ndarray:
    return get_ema_avg_fn(decay)(torch.tensor(ema), torch.tensor(w), 0).numpy()


def _torch_step(x: np.ndarray, y: np.ndarray, state: list[np.ndarray], hyper: dict, t: int) -> list[np.ndarray]:
    """The new weights, EMA weights, m and v of one process that sees all examples at once."""
    w, ema, m, v = state
    w, m, v = _adam(w, _autograd(x, y, w), m, v, hyper, t)
    return [w, _ema(np.asarray(ema, dtype=np.float64), w, hyper["decay"]), m, v]


def _expect_adam(
    case: str,
    adam_update: Callable,
    w: Any,
    m: Any,
    v: Any,
    g: Any,
    hyper: dict,
    t: int,
    check_dtype: bool = False,
) -> list[np.ndarray]:
    """Compare one update with torch's. Returns torch's new w, m, v."""
    expected = _adam(w, g, m, v, hyper, t)
    given = adam_update(w.copy(), g.copy(), m.copy(), v.copy(), *hyper.values(), t)
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        fail(f"expected three arrays (w, m, v), got {type(given).__name__}", case, type(given).__name__)
    names = ("the new w", "the new m", "the new v")
    got = [as_array(case, part, what) for part, what in zip(given, names, strict=True)]
    evidence = [_evidence(part) for part in got]
    # The moments first: when m is wrong, so is w.
    for i in (1, 2, 0):
        if check_dtype and got[i].dtype != np.float64:
            fail(f"{names[i]} is {got[i].dtype}, expected float64", case, str(got[i].dtype))
        _expect_close(case, got[i], expected[i], names[i], evidence=evidence)
    return expected


def _expect_step(
    case: str, step: Callable, xs: np.ndarray, ys: np.ndarray, state: list[np.ndarray], hyper: dict, t: int
) -> list[np.ndarray]:
    """Compare one step with torch's. Returns torch's new weights, EMA weights, m, v."""
    expected = _torch_step(xs.reshape(-1, xs.shape[-1]), ys.reshape(-1), state, hyper, t)
    got = step(xs.copy(), ys.copy(), *(a.copy() for a in state), *hyper.values(), t)
    _compare_parts(case, got, expected, RTOL)
    return expected


def _compare_parts(case: str, got: Any, expected: list[np.ndarray], rtol: float) -> None:
    """Compare the four parts of the flat result, each with a bound relative to its own largest entry."""
    got = as_array(case, got, "the result")
    if got.shape != (4 * len(expected[0]),):
        fail(f"the result has shape {got.shape}, expected ({4 * len(expected[0])},)", case, [_evidence(got)])
    parts = np.split(got, 4)
    evidence = [_evidence(part) for part in parts]
    # The moments first: when m is wrong, so are the weights, and their EMA.
    for i in (2, 3, 0, 1):
        what = f"{PARTS[i]} (entries {i}*d to {i + 1}*d)"
        _expect_close(case, parts[i], expected[i], what, rtol=rtol, evidence=evidence)


def _expect_close(
    case: str,
    got: Any,
    expected: np.ndarray,
    what: str,
    *,
    rtol: float = RTOL,
    evidence: Any = None,
    because: str = "",
) -> None:
    """`expect_close` with this lesson's bounds. evidence: for where `got` is only a part of what was observed."""
    got = as_array(case, got, what)
    evidence = [_evidence(got)] if evidence is None else evidence
    expect_close(case, got, expected, what=what, rtol=rtol, atol=ATOL, because=because, evidence=evidence)


def _evidence(array: np.ndarray) -> Any:
    """An array that can be compared with another; as strings if not all is finite, since inf and NaN have no scale.

    Of many elements, the shape and the first ones are enough.
    """
    if np.all(np.isfinite(array)):
        return array
    return [str(array.shape), *(str(value) for value in array.reshape(-1)[:EVIDENCE])]


def _expect_float64(case: str, got: Any, expected: np.ndarray, *, what: str) -> None:
    dtype = as_array(case, got, what).dtype
    if dtype != np.float64:
        fail(f"{what} is {dtype}, expected float64", case, str(dtype))
    _expect_close(case, got, expected, what, because="compute in float64 from the start")


def _expect_pure(case: str, function: Callable, inputs: dict[str, Any]) -> None:
    """`function(*inputs.values())` changes no input, and its results share no memory with one."""
    before = {name: [leaf.copy() for leaf in _leaves(value)] for name, value in inputs.items()}
    results = function(*inputs.values())
    for name, value in inputs.items():
        after = _leaves(value)
        if len(after) != len(before[name]):
            fail(f"{name} was changed in place: work on a copy", case, ("changed", name))
        for old, new in zip(before[name], after, strict=True):
            expect_unchanged(case, old, new, what=name)
    for result in _leaves(results):
        for name, value in inputs.items():
            if any(np.shares_memory(result, leaf) for leaf in _leaves(value)):
                fail(f"the result shares memory with {name}: return a new array", case, ("shared", name))


def _leaves(value: Any) -> list[np.ndarray]:
    """The arrays in nested lists and tuples of arrays."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [np.asarray(value)]
