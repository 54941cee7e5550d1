"""Exercises 1 to 4: a worker's gradient, the mean over workers, Adam, the average of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checking.cases import Call, clue, fact
from autograder.checking.check import check
from autograder.checking.expect import fail
from autograder.checks.step.common import (
    EDGES,
    autograd,
    draw_state,
    examples,
    near,
    nearly_cancelling,
    pure_call,
    torch_ema,
    torch_update,
)

#: How to say that a result of narrower inputs is wrong.
IN_FLOAT64 = "compute in float64 from the start"

# --- exercise 1 -------------------------------------------------------------------------------------------


@check("03-ex1-worker-gradient", points=3)
def gradient_is_that_of_the_mean_loss(worker_gradient, *, rng):
    """The gradient is that of the mean squared error over all the worker's examples, as autograd computes it."""
    how = {"what": "the gradient", "because": "it should be that of the mean loss over all accum_steps * B examples"}
    for accum_steps, batch, d in [(3, 4, 5), *(shape[1:] for shape in EDGES), (7, 2, 3)]:
        x, y, w = examples(rng, (accum_steps, batch), d)
        name = f"accum_steps = {accum_steps}, B = {batch}, d = {d}"
        yield Call(worker_gradient, x, y, w, gives=near(autograd(x, y, w)), name=name, **how)
    x, y, w = examples(rng, (3, 4), 2)
    name = "y lies in memory column by column"
    yield Call(worker_gradient, x, np.asfortranarray(y), w, gives=near(autograd(x, y, w)), name=name, **how)


@check("03-ex1-worker-gradient", points=0.5)
def gradient_is_computed_in_float64(worker_gradient, *, rng):
    """From float32 or integer arrays too, the gradient is computed and returned in float64."""
    x, y, w = nearly_cancelling(rng, (3, 4), 5)
    wide = 300 * rng.normal(size=5)
    close_to_wide = (x.astype(np.float64) @ wide + rng.normal(size=(3, 4))).astype(np.float32)
    ints = [rng.integers(-100, 100, shape).astype(np.int8) for shape in ((3, 4, 5), (3, 4), (5,))]
    for name, given in (
        ("float32 arrays, residuals much smaller than y", (x, y, w)),
        ("float32 examples, float64 weights", (x, close_to_wide, wide)),
        ("int8 arrays", ints),
    ):
        expected = near(autograd(*(a.astype(np.float64) for a in given)), "float64")
        yield Call(worker_gradient, *given, gives=expected, name=name, what="the gradient", because=IN_FLOAT64)


@check("03-ex1-worker-gradient", points=0.5)
def gradient_leaves_its_inputs_alone(worker_gradient, *, rng):
    """x, y and w are not changed, and the result shares no memory with them."""
    for accum_steps, batch in [(3, 4), (1, 1)]:
        x, y, w = examples(rng, (accum_steps, batch), 5)
        name = f"accum_steps = {accum_steps}, B = {batch}"
        yield pure_call(worker_gradient, {"x": x, "y": y, "w": w}, gives=autograd(x, y, w), name=name)


# --- exercise 2 -------------------------------------------------------------------------------------------


def _mean(grads: np.ndarray) -> np.ndarray:
    return torch.from_numpy(grads).double().mean(dim=0).numpy()


@check("03-ex2-all-reduce-mean", points=1.5)
def mean_is_over_the_workers(all_reduce_mean, *, rng):
    """The result is the mean over the workers, from one array and from a list of arrays."""
    for n, d in [(4, 3), (3, 3), (1, 5), (5, 1), (1, 1), (8, 2)]:
        grads = rng.normal(size=(n, d)) + np.arange(n)[:, None]
        for kind, given in (("an array", grads), ("a list of arrays", list(grads))):
            name = f"N = {n}, d = {d}, {kind}"
            yield Call(all_reduce_mean, given, gives=near(_mean(grads)), name=name, what="the mean gradient")


@check("03-ex2-all-reduce-mean", points=0.25)
def mean_is_computed_in_float64(all_reduce_mean, *, rng):
    """From float32 or integer gradients too, the mean is computed and returned in float64."""
    ints = rng.integers(60, 120, (4, 3)).astype(np.int8)
    ints[0] += 1 - ints.sum(axis=0, dtype=int).astype(np.int8) % 4  # no mean is a whole number
    for grads in ((1e4 + rng.normal(size=(7, 3))).astype(np.float32), ints):
        expected = near(_mean(grads), "float64")
        for name, given in ((f"{grads.dtype} gradients", grads), (f"a list of {grads.dtype} gradients", list(grads))):
            yield Call(all_reduce_mean, given, gives=expected, name=name, what="the mean gradient", because=IN_FLOAT64)


@check("03-ex2-all-reduce-mean", points=0.25)
def mean_leaves_its_inputs_alone(all_reduce_mean, *, rng):
    """No worker's gradient is changed, and the result shares no memory with one, even with one worker."""
    for n in (3, 1):
        for kind, given in (("an array", np.array), ("a list of arrays", list)):
            grads = rng.normal(size=(n, 4))
            inputs = {"worker_grads": given(grads)}
            yield pure_call(all_reduce_mean, inputs, gives=_mean(grads), name=f"N = {n}, {kind}")


# --- exercise 3 -------------------------------------------------------------------------------------------


@dataclass
class Updated:
    """What adam_update returned. The moments first: when m is wrong, so is w."""

    m: Any = fact("the new m")
    v: Any = fact("the new v")
    w: Any = fact("the new w")
    all: Any = clue()


def _adam(name: str, adam_update: Callable, w: Any, m: Any, v: Any, g: Any, hyper: dict, t: int, dtype="") -> Call:
    """A call that gives torch's new w, m, v."""
    new_w, new_m, new_v = (near(new, dtype) for new in torch_update(w, g, m, v, hyper, t))
    gives = Updated(new_m, new_v, new_w)
    return Call(adam_update, w, g, m, v, *hyper.values(), t, sees=_updated, gives=gives, name=name)


def _updated(result: Any, *_: Any) -> Updated:
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        fail(f"expected three arrays (w, m, v), got {type(result).__name__}", "", type(result).__name__)
    w, m, v = result
    return Updated(m, v, w, list(result))


@check("03-ex3-adam-update", points=4)
def adam_follows_torch(adam_update, *, rng):
    """w, m and v after an update are those of torch's Adam, from the first update to one at t = 1,000,000."""
    hyper = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05}
    state = draw_state(rng, 4)
    yield _adam("one update at t = 3", adam_update, *state, rng.normal(size=4), hyper, 3)

    w, m, v = rng.normal(size=4), np.zeros(4), np.zeros(4)
    yield _adam("t = 1, m and v zero", adam_update, w, m, v, rng.normal(size=4), hyper, 1)

    hyper = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    for t in range(1, 31):
        g = rng.normal(size=4) * 10.0 ** rng.integers(-3, 3)
        yield _adam(f"30 updates in a row, t = {t}", adam_update, w, m, v, g, hyper, t)
        w, m, v = torch_update(w, g, m, v, hyper, t)
    yield _adam("t = 1,000,000", adam_update, *draw_state(rng, 1), rng.normal(size=1), hyper, 10**6)
    yield _adam("t = 2,000", adam_update, *draw_state(rng, 4), rng.normal(size=4), hyper, 2000)
    yield _adam("t = 1, m and v not zero", adam_update, *draw_state(rng, 4), rng.normal(size=4), hyper, 1)
    g = np.array([0.0, 1.0, 0.0, -1.0])
    yield _adam("t = 3, two entries of g are 0", adam_update, *draw_state(rng, 4), g, hyper, 3)
    yield _adam("t = 3, all of g is 0", adam_update, *draw_state(rng, 4), 0 * g, hyper, 3)


@check("03-ex3-adam-update", points=0.5)
def adam_is_computed_in_float64(adam_update, *, rng):
    """From float32 or integer arrays too, the new w, m and v are computed and returned in float64."""
    hyper = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05}
    for dtype, scale in ((np.float32, 1.0), (np.int64, 9.0)):
        w, m, v = (np.ceil(scale * a).astype(dtype) if scale > 1 else a.astype(dtype) for a in draw_state(rng, 4))
        g = (scale * rng.normal(size=4)).astype(dtype)
        yield _adam(f"{np.dtype(dtype)} arrays", adam_update, w, m, v, g, hyper, 5, dtype="float64")


@check("03-ex3-adam-update", points=0.5)
def adam_leaves_its_inputs_alone(adam_update, *, rng):
    """w, g, m and v are not changed, and the results share no memory with them."""
    w, m, v = draw_state(rng, 4)
    for name, lr in (("t = 2", 0.1), ("t = 2, lr = 0", 0.0)):
        inputs = {"w": w, "g": rng.normal(size=4), "m": m, "v": v}
        hyper = {"lr": lr, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}
        new = np.hstack(torch_update(*inputs.values(), hyper, 2))
        yield pure_call(adam_update, inputs, *hyper.values(), 2, gives=new, name=name)


# --- exercise 4 -------------------------------------------------------------------------------------------


@check("03-ex4-ema-update", points=1.5)
def ema_follows_torch(ema_update, *, rng):
    """The average is that of torch's `get_ema_avg_fn(decay)`, for one update and for twenty, and for decay 0 and 1."""
    sizes = [(4, 0.9), (1, 0.75), (3, 0.0), (3, 1.0)]
    tried = [(f"d = {d}, decay = {decay}", rng.normal(size=d), decay) for d, decay in sizes]
    tried += [("the average is still zero", np.zeros(3), 0.9)]
    for name, ema, decay in tried:
        w = rng.normal(size=len(ema))
        yield Call(ema_update, ema, w, decay, gives=near(torch_ema(ema, w, decay)), name=name, what="the EMA")

    ema = rng.normal(size=4)
    for step in range(20):
        w, old = rng.normal(size=4), ema
        ema = torch_ema(old, w, 0.9)
        yield Call(
            ema_update, old, w, 0.9, gives=near(ema), name=f"20 updates in a row, number {step + 1}", what="the EMA"
        )


@check("03-ex4-ema-update", points=0.25)
def ema_is_computed_in_float64(ema_update, *, rng):
    """From float32 or integer arrays too, the average is computed and returned in float64."""
    for dtype in (np.float32, np.int64):
        ema, w = (rng.uniform(10, 99, size=5).astype(dtype) for _ in range(2))
        expected = near(torch_ema(ema.astype(np.float64), w.astype(np.float64), 0.99), "float64")
        how = {"name": f"{np.dtype(dtype)} arrays", "what": "the EMA", "because": IN_FLOAT64}
        yield Call(ema_update, ema, w, 0.99, gives=expected, **how)


@check("03-ex4-ema-update", points=0.25)
def ema_leaves_its_inputs_alone(ema_update, *, rng):
    """ema and w are not changed, and the result shares no memory with them, even for decay 0 and 1."""
    for decay in (0.9, 0.0, 1.0):
        inputs = {"ema": rng.normal(size=4), "w": rng.normal(size=4)}
        yield pure_call(ema_update, inputs, decay, gives=torch_ema(*inputs.values(), decay), name=f"decay = {decay}")
