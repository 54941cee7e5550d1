"""Exercises 1 to 4: a worker's gradient, the mean over workers, Adam, the average of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import as_array, fail
from autograder.checks.step.common import (
    EDGES,
    autograd,
    draw_state,
    evidence_of,
    examples,
    expect_float64,
    expect_near,
    expect_pure,
    nearly_cancelling,
    torch_ema,
    torch_update,
)

# --- exercise 1 -------------------------------------------------------------------------------------------


@check("03-ex1-worker-gradient")
def gradient_is_that_of_the_mean_loss(worker_gradient: Callable, *, rng: np.random.Generator) -> None:
    """The gradient is that of the mean squared error over all the worker's examples, as autograd computes it."""
    for accum_steps, batch, d in [(3, 4, 5), *(shape[1:] for shape in EDGES), (7, 2, 3)]:
        x, y, w = examples(rng, (accum_steps, batch), d)
        case = f"accum_steps = {accum_steps}, B = {batch}, d = {d}"
        got = worker_gradient(x.copy(), y.copy(), w.copy())
        because = "it should be that of the mean loss over all accum_steps * B examples"
        expect_near(case, got, autograd(x, y, w), "the gradient", because=because)
    x, y, w = examples(rng, (3, 4), 2)
    got = worker_gradient(x.copy(), np.asfortranarray(y), w.copy())
    expect_near("y lies in memory column by column", got, autograd(x, y, w), "the gradient", because=because)


@check("03-ex1-worker-gradient")
def gradient_is_computed_in_float64(worker_gradient: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer arrays too, the gradient is computed and returned in float64."""
    x, y, w = nearly_cancelling(rng, (3, 4), 5)
    wide = autograd(*(a.astype(np.float64) for a in (x, y, w)))
    case = "float32 arrays, residuals much smaller than y"
    got = worker_gradient(x.copy(), y.copy(), w.copy())
    expect_float64(case, got, wide, what="the gradient")

    w = 300 * rng.normal(size=5)
    y = (x.astype(np.float64) @ w + rng.normal(size=(3, 4))).astype(np.float32)
    wide = autograd(x.astype(np.float64), y.astype(np.float64), w)
    expect_float64("float32 examples, float64 weights", worker_gradient(x.copy(), y, w), wide, what="the gradient")

    x, y, w = (rng.integers(-100, 100, shape).astype(np.int8) for shape in ((3, 4, 5), (3, 4), (5,)))
    wide = autograd(*(a.astype(np.float64) for a in (x, y, w)))
    expect_float64("int8 arrays", worker_gradient(x.copy(), y.copy(), w.copy()), wide, what="the gradient")


@check("03-ex1-worker-gradient")
def gradient_leaves_its_inputs_alone(worker_gradient: Callable, *, rng: np.random.Generator) -> None:
    """x, y and w are not changed, and the result shares no memory with them."""
    for accum_steps, batch in [(3, 4), (1, 1)]:
        x, y, w = examples(rng, (accum_steps, batch), 5)
        case, expected = f"accum_steps = {accum_steps}, B = {batch}", autograd(x, y, w)
        expect_pure(case, worker_gradient, {"x": x, "y": y, "w": w}, expected)


# --- exercise 2 -------------------------------------------------------------------------------------------


@check("03-ex2-all-reduce-mean")
def mean_is_over_the_workers(all_reduce_mean: Callable, *, rng: np.random.Generator) -> None:
    """The result is the mean over the workers, from one array and from a list of arrays."""
    for n, d in [(4, 3), (3, 3), (1, 5), (5, 1), (1, 1), (8, 2)]:
        grads = rng.normal(size=(n, d)) + np.arange(n)[:, None]
        expected = torch.from_numpy(grads).mean(dim=0).numpy()
        for kind, given in (("an array", grads.copy()), ("a list of arrays", [row.copy() for row in grads])):
            got = all_reduce_mean(given)
            expect_near(f"N = {n}, d = {d}, {kind}", got, expected, "the mean gradient")


@check("03-ex2-all-reduce-mean")
def mean_is_computed_in_float64(all_reduce_mean: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer gradients too, the mean is computed and returned in float64."""
    grads = (1e4 + rng.normal(size=(7, 3))).astype(np.float32)
    expected = torch.from_numpy(grads).double().mean(dim=0).numpy()
    expect_float64("float32 gradients", all_reduce_mean(grads.copy()), expected, what="the mean gradient")
    expect_float64("a list of float32 gradients", all_reduce_mean(list(grads)), expected, what="the mean gradient")

    grads = rng.integers(60, 120, (4, 3)).astype(np.int8)
    grads[0] += 1 - grads.sum(axis=0, dtype=int).astype(np.int8) % 4  # no mean is a whole number
    expected = torch.from_numpy(grads).double().mean(dim=0).numpy()
    expect_float64("int8 gradients", all_reduce_mean(grads.copy()), expected, what="the mean gradient")
    expect_float64("a list of int8 gradients", all_reduce_mean(list(grads)), expected, what="the mean gradient")


@check("03-ex2-all-reduce-mean")
def mean_leaves_its_inputs_alone(all_reduce_mean: Callable, *, rng: np.random.Generator) -> None:
    """No worker's gradient is changed, and the result shares no memory with one, even with one worker."""
    for n in (3, 1):
        for kind, given in (("an array", np.array), ("a list of arrays", list)):
            grads = rng.normal(size=(n, 4))
            expected = torch.from_numpy(grads).mean(dim=0).numpy()
            expect_pure(f"N = {n}, {kind}", all_reduce_mean, {"worker_grads": given(grads)}, expected)


# --- exercise 3 -------------------------------------------------------------------------------------------


@check("03-ex3-adam-update")
def adam_follows_torch(adam_update: Callable, *, rng: np.random.Generator) -> None:
    """w, m and v after an update are those of torch's Adam, from the first update to one at t = 1,000,000."""
    hyper = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05}
    state = draw_state(rng, 4)
    _expect_adam("one update at t = 3", adam_update, *state, rng.normal(size=4), hyper, 3)

    w, m, v = rng.normal(size=4), np.zeros(4), np.zeros(4)
    _expect_adam("t = 1, m and v zero", adam_update, w, m, v, rng.normal(size=4), hyper, 1)

    hyper = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    for t in range(1, 31):
        g = rng.normal(size=4) * 10.0 ** rng.integers(-3, 3)
        w, m, v = _expect_adam(f"30 updates in a row, t = {t}", adam_update, w, m, v, g, hyper, t)
    _expect_adam("t = 1,000,000", adam_update, *draw_state(rng, 1), rng.normal(size=1), hyper, 10**6)
    _expect_adam("t = 2,000", adam_update, *draw_state(rng, 4), rng.normal(size=4), hyper, 2000)
    _expect_adam("t = 1, m and v not zero", adam_update, *draw_state(rng, 4), rng.normal(size=4), hyper, 1)
    g = np.array([0.0, 1.0, 0.0, -1.0])
    _expect_adam("t = 3, two entries of g are 0", adam_update, *draw_state(rng, 4), g, hyper, 3)
    _expect_adam("t = 3, all of g is 0", adam_update, *draw_state(rng, 4), 0 * g, hyper, 3)


@check("03-ex3-adam-update")
def adam_is_computed_in_float64(adam_update: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer arrays too, the new w, m and v are computed and returned in float64."""
    hyper = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05}
    for dtype, scale in ((np.float32, 1.0), (np.int64, 9.0)):
        w, m, v = (np.ceil(scale * a).astype(dtype) if scale > 1 else a.astype(dtype) for a in draw_state(rng, 4))
        g = (scale * rng.normal(size=4)).astype(dtype)
        _expect_adam(f"{np.dtype(dtype)} arrays", adam_update, w, m, v, g, hyper, 5, check_dtype=True)


@check("03-ex3-adam-update")
def adam_leaves_its_inputs_alone(adam_update: Callable, *, rng: np.random.Generator) -> None:
    """w, g, m and v are not changed, and the results share no memory with them."""
    w, m, v = draw_state(rng, 4)
    for case, lr in (("t = 2", 0.1), ("t = 2, lr = 0", 0.0)):
        inputs = {"w": w, "g": rng.normal(size=4), "m": m, "v": v}
        hyper = {"lr": lr, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
        expected = np.hstack(torch_update(*inputs.values(), hyper, 2))
        expect_pure(case, lambda *arrays, hyper=hyper: adam_update(*arrays, *hyper.values(), 2), inputs, expected)


# --- exercise 4 -------------------------------------------------------------------------------------------


@check("03-ex4-ema-update")
def ema_follows_torch(ema_update: Callable, *, rng: np.random.Generator) -> None:
    """The average is that of torch's `get_ema_avg_fn(decay)`, for one update and for twenty, and for decay 0 and 1."""
    for d, decay in [(4, 0.9), (1, 0.75), (3, 0.0), (3, 1.0)]:
        ema, w = rng.normal(size=d), rng.normal(size=d)
        got = ema_update(ema.copy(), w.copy(), decay)
        expect_near(f"d = {d}, decay = {decay}", got, torch_ema(ema, w, decay), "the EMA")
    ema, w = np.zeros(3), rng.normal(size=3)
    expect_near("the average is still zero", ema_update(ema.copy(), w.copy(), 0.9), torch_ema(ema, w, 0.9), "the EMA")

    ema = rng.normal(size=4)
    for step in range(20):
        w = rng.normal(size=4)
        got = ema_update(ema.copy(), w.copy(), 0.9)
        ema = torch_ema(ema, w, 0.9)
        expect_near(f"20 updates in a row, number {step + 1}", got, ema, "the EMA")


@check("03-ex4-ema-update")
def ema_is_computed_in_float64(ema_update: Callable, *, rng: np.random.Generator) -> None:
    """From float32 or integer arrays too, the average is computed and returned in float64."""
    for dtype in (np.float32, np.int64):
        ema, w = (rng.uniform(10, 99, size=5).astype(dtype) for _ in range(2))
        expected = torch_ema(ema.astype(np.float64), w.astype(np.float64), 0.99)
        got = ema_update(ema.copy(), w.copy(), 0.99)
        expect_float64(f"{np.dtype(dtype)} arrays", got, expected, what="the EMA")


@check("03-ex4-ema-update")
def ema_leaves_its_inputs_alone(ema_update: Callable, *, rng: np.random.Generator) -> None:
    """ema and w are not changed, and the result shares no memory with them, even for decay 0 and 1."""
    for decay in (0.9, 0.0, 1.0):
        inputs = {"ema": rng.normal(size=4), "w": rng.normal(size=4)}
        expected = torch_ema(*inputs.values(), decay)
        expect_pure(f"decay = {decay}", lambda ema, w, decay=decay: ema_update(ema, w, decay), inputs, expected)


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
    expected = torch_update(w, g, m, v, hyper, t)
    given = adam_update(w.copy(), g.copy(), m.copy(), v.copy(), *hyper.values(), t)
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        fail(f"expected three arrays (w, m, v), got {type(given).__name__}", case, type(given).__name__)
    names = ("the new w", "the new m", "the new v")
    got = [as_array(case, part, what) for part, what in zip(given, names, strict=True)]
    evidence = [evidence_of(part) for part in got]
    # The moments first: when m is wrong, so is w.
    for i in (1, 2, 0):
        if check_dtype and got[i].dtype != np.float64:
            fail(f"{names[i]} is {got[i].dtype}, expected float64", case, str(got[i].dtype))
        expect_near(case, got[i], expected[i], names[i], evidence=evidence)
    return expected
