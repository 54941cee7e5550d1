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
    torch_ema,
    torch_update,
)

# --- exercise 1 -------------------------------------------------------------------------------------------


@check("03-ex1-worker-gradient", points=4)
def gradient_is_that_of_the_mean_loss(worker_gradient, *, rng):
    """The gradient is that of the mean squared error over all the worker's examples, as autograd computes it."""
    how = {"what": "the gradient", "because": "it should be that of the mean loss over all accum_steps * B examples"}
    for accum_steps, batch, d in [(3, 4, 5), *(shape[1:] for shape in EDGES), (7, 2, 3)]:
        x, y, w = examples(rng, (accum_steps, batch), d)
        name = f"accum_steps = {accum_steps}, B = {batch}, d = {d}"
        yield Call(worker_gradient, x, y, w, gives=near(autograd(x, y, w)), name=name, **how)


# --- exercise 2 -------------------------------------------------------------------------------------------


def _mean(grads: np.ndarray) -> np.ndarray:
    return torch.from_numpy(grads).double().mean(dim=0).numpy()


@check("03-ex2-all-reduce-mean", points=1.5)
def mean_is_over_the_workers(all_reduce_mean, *, rng):
    """The result is the mean over several workers, whose gradients are the rows of one array."""
    for n, d in [(4, 3), (3, 3), (5, 1), (8, 2)]:
        grads = rng.normal(size=(n, d)) + np.arange(n)[:, None]
        yield Call(all_reduce_mean, grads, gives=near(_mean(grads)), name=f"N = {n}, d = {d}", what="the mean gradient")


@check("03-ex2-all-reduce-mean", points=0.25)
def mean_takes_a_list(all_reduce_mean, *, rng):
    """A list of the workers' gradients gives the same."""
    for n, d in [(4, 3), (5, 1)]:
        grads = rng.normal(size=(n, d)) + np.arange(n)[:, None]
        name = f"a list of {n} arrays, d = {d}"
        yield Call(all_reduce_mean, list(grads), gives=near(_mean(grads)), name=name, what="the mean gradient")


@check("03-ex2-all-reduce-mean", points=0.25)
def one_worker_keeps_its_gradient(all_reduce_mean, *, rng):
    """The mean of one worker is its gradient, of shape (d,)."""
    for d in (5, 1):
        grads = rng.normal(size=(1, d))
        yield Call(all_reduce_mean, grads, gives=near(grads[0]), name=f"N = 1, d = {d}", what="the mean gradient")


# --- exercise 3 -------------------------------------------------------------------------------------------


@dataclass
class Updated:
    """What adam_update returned. The moments first: when m is wrong, so is w."""

    m: Any = fact("the new m")
    v: Any = fact("the new v")
    w: Any = fact("the new w")
    all: Any = clue()


def _adam(name: str, adam_update: Callable, w: Any, m: Any, v: Any, g: Any, hyper: dict, t: int) -> Call:
    """A call that gives torch's new w, m, v."""
    new_w, new_m, new_v = (near(new) for new in torch_update(w, g, m, v, hyper, t))
    gives = Updated(new_m, new_v, new_w)
    return Call(adam_update, w, g, m, v, *hyper.values(), t, sees=_updated, gives=gives, name=name)


def _updated(result: Any, *_: Any) -> Updated:
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        fail(f"expected three arrays (w, m, v), got {type(result).__name__}", "", type(result).__name__)
    w, m, v = result
    return Updated(m, v, w, list(result))


@check("03-ex3-adam-update", points=4)
def adam_follows_torch(adam_update, *, rng):
    """w, m and v after an update are those of torch's Adam, in the first update and in thirty in a row."""
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
    yield _adam("t = 1, m and v not zero", adam_update, *draw_state(rng, 4), rng.normal(size=4), hyper, 1)


@check("03-ex3-adam-update", points=0.5)
def adam_corrects_late_updates_too(adam_update, *, rng):
    """The bias correction is that of torch after thousands of updates, too."""
    hyper = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    for t in (2000, 10**6):
        yield _adam(f"t = {t:,}", adam_update, *draw_state(rng, 4), rng.normal(size=4), hyper, t)


@check("03-ex3-adam-update", points=0.5)
def adam_moves_without_a_gradient(adam_update, *, rng):
    """Where g is 0, m and v decay all the same, and the weights move on with m."""
    hyper = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    g = rng.normal(size=4) * np.array([0, 1, 0, 1])
    yield _adam("t = 3, two entries of g are 0", adam_update, *draw_state(rng, 4), g, hyper, 3)
    yield _adam("t = 3, all of g is 0", adam_update, *draw_state(rng, 4), 0 * g, hyper, 3)


# --- exercise 4 -------------------------------------------------------------------------------------------


@check("03-ex4-ema-update", points=1.75)
def ema_follows_torch(ema_update, *, rng):
    """The average is that of torch's `get_ema_avg_fn(decay)`, for one update and for twenty."""
    tried = [(f"d = {d}, decay = {decay}", rng.normal(size=d), decay) for d, decay in [(4, 0.9), (1, 0.75)]]
    tried += [("the average is still zero", np.zeros(3), 0.9)]
    for name, ema, decay in tried:
        w = rng.normal(size=len(ema))
        yield Call(ema_update, ema, w, decay, gives=near(torch_ema(ema, w, decay)), name=name, what="the EMA")

    ema = rng.normal(size=4)
    for step in range(20):
        w, old = rng.normal(size=4), ema
        ema, name = torch_ema(old, w, 0.9), f"20 updates in a row, number {step + 1}"
        yield Call(ema_update, old, w, 0.9, gives=near(ema), name=name, what="the EMA")


@check("03-ex4-ema-update", points=0.25)
def ema_follows_torch_at_the_ends(ema_update, *, rng):
    """With decay 0 the average is the new weights, with decay 1 it stays as it was."""
    for decay in (0.0, 1.0):
        ema, w = rng.normal(size=(2, 4))
        expected = near(torch_ema(ema, w, decay))
        yield Call(ema_update, ema, w, decay, gives=expected, name=f"decay = {decay}", what="the EMA")
