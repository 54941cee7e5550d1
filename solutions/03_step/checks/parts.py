"""Exercises 1 to 4: a worker's gradient, the mean over workers, Adam, the average of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Call, close, evidence, fact
from autograder.checks.check import check
from autograder.checks.expect import as_array, fail

from .common import (
    EDGES,
    SHOWN,
    USUAL,
    autograd,
    draw_state,
    examples,
    near,
    torch_ema,
    torch_update,
)

# --- exercise 1 -------------------------------------------------------------------------------------------


SHAPES = [(3, 4, 5), *(shape[1:] for shape in EDGES), (7, 2, 3)]


@check("03-ex1-worker-gradient", points=2)
def gradient_has_the_right_direction(worker_gradient, *, rng):
    """Up to a factor, the gradient is that of all the worker's examples, as autograd computes it."""
    how = {"what": "the gradient, divided by its length,", "because": "all accum_steps * B examples count"}
    for accum_steps, batch, d in SHAPES:
        x, y, w = examples(rng, (accum_steps, batch), d)
        name = f"accum_steps = {accum_steps}, B = {batch}, d = {d}"
        gives = near(_direction(autograd(x, y, w)))
        yield Call(worker_gradient, x, y, w, sees=_direction, gives=gives, name=name, **how)


@check("03-ex1-worker-gradient", points=1)
def gradient_is_that_of_a_mean_of_squares(worker_gradient, *, rng):
    """The gradient of one micro-batch is as long as that of its mean squared error."""
    for accum_steps, batch, d in ((1, 4, 5), (1, 3, 1), (1, 1, 2)):
        x, y, w = examples(rng, (accum_steps, batch), d)
        how = {"what": "the gradient's length", "name": f"accum_steps = 1, B = {batch}, d = {d}"}
        yield Call(worker_gradient, x, y, w, sees=_length, gives=near(_length(autograd(x, y, w))), **how)


def _dealt(worker_gradient: Callable, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """The length of the gradient, over that with all examples in one micro-batch; 0 if they are no gradients."""
    one, many = worker_gradient(x.reshape(1, -1, x.shape[-1]), y.reshape(1, -1), w), worker_gradient(x, y, w)
    gradients = np.shape(one) == np.shape(many) == w.shape and np.any(one)
    return float(np.linalg.norm(many) / np.linalg.norm(one)) if gradients else 0.0


@check("03-ex1-worker-gradient", points=1)
def micro_batches_are_averaged(worker_gradient, *, rng):
    """The gradient is as long however the same examples are dealt to micro-batches."""
    because = "the mean over micro-batches is the mean over examples"
    for accum_steps, batch, d in ((3, 4, 5), (7, 2, 3), (2, 1, 4)):
        name = f"{accum_steps} micro-batches of {batch}, d = {d}"
        how = {"what": "the gradient's length, over that of one large micro-batch,", "because": because, "name": name}
        yield Call(_dealt, worker_gradient, *examples(rng, (accum_steps, batch), d), gives=close(1.0, rtol=1e-9), **how)


def _direction(gradient: Any, *_: Any) -> np.ndarray:
    """A gradient divided by its length."""
    found = as_array("", gradient, "the gradient")
    length = np.linalg.norm(found)
    return found / length if length else found


def _length(gradient: Any, *_: Any) -> float:
    return float(np.linalg.norm(as_array("", gradient, "the gradient")))


# --- exercise 2 -------------------------------------------------------------------------------------------


def _mean(grads: np.ndarray) -> np.ndarray:
    return torch.from_numpy(grads).double().mean(dim=0).numpy()


@check("03-ex2-all-reduce-mean", points=1)
def workers_are_added(all_reduce_mean, *, rng):
    """Up to a factor, the result is the mean over several workers, whose gradients are the rows of one array."""
    for n, d in [(4, 3), (3, 3), (5, 2), (8, 2)]:
        grads, how = _gradients(rng, n, d)
        yield Call(all_reduce_mean, grads, name=f"N = {n}, d = {d}", **how)


@check("03-ex2-all-reduce-mean", points=0.5)
def the_sum_is_divided_by_the_workers(all_reduce_mean, *, rng):
    """The result is as long as the mean."""
    for n, d in [(4, 3), (5, 1)]:
        grads, _ = _gradients(rng, n, d)
        how = {"what": "the length of the result", "name": f"N = {n}, d = {d}"}
        yield Call(all_reduce_mean, grads, sees=_length, gives=near(_length(_mean(grads))), **how)


@check("03-ex2-all-reduce-mean", points=0.25)
def mean_takes_a_list(all_reduce_mean, *, rng):
    """A list of the workers' gradients gives the same."""
    for n, d in [(4, 3), (5, 2)]:
        grads, how = _gradients(rng, n, d)
        yield Call(all_reduce_mean, list(grads), name=f"a list of {n} arrays, d = {d}", **how)


def _gradients(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Gradients of n workers, and what a call must give for them, up to a factor."""
    grads = rng.normal(size=(n, d)) + np.arange(n)[:, None]
    how = {"sees": _direction, "gives": near(_direction(_mean(grads)))}
    return grads, {**how, "what": "the result, divided by its length,"}


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
    w: Any = fact("the new w", "it should be w - lr * m_hat / (sqrt(v_hat) + eps)")
    all: Any = evidence()


@dataclass
class Moved:
    """Which entries without a gradient an update changes."""

    m: Any = fact("which entries of m, whose g is 0, change")
    v: Any = fact("which entries of v, whose g is 0, change")
    w: Any = fact("which weights, whose g is 0, change")


def _updated(result: Any, *_: Any) -> Updated:
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        fail(f"expected three arrays (w, m, v), got {type(result).__name__}", "", type(result).__name__)
    w, m, v = (as_array("", part, f"the new {name}") for part, name in zip(result, "wmv", strict=True))
    return Updated(m, v, w, [w, m, v])


def _weights(adam_update: Callable, state: Any, g: Any, hyper: dict, t: int, name: str, rtol: float = 1e-9) -> Call:
    """A call whose weights are torch's, or what Adam makes of the moments that the call returns."""
    w, m, v = state
    right = torch_update(w, g, m, v, hyper, t)[0]

    def sees(result: Any, *_: Any) -> Updated:
        new = _updated(result)
        with np.errstate(all="ignore"):
            m_hat, v_hat = new.m / (1 - hyper["beta1"] ** t), new.v / (1 - hyper["beta2"] ** t)
            own = w - hyper["lr"] * m_hat / (np.sqrt(v_hat) + hyper["eps"])
        same_as_own = new.w.shape == own.shape and np.allclose(new.w - w, own - w, rtol=rtol, atol=1e-12)
        return replace(new, w=right) if same_as_own else new

    gives = Updated(w=close(right, rtol=0, atol=rtol * float(np.abs(right - w).max()) + 1e-12))
    return Call(adam_update, w, g, m, v, *hyper.values(), t, sees=sees, gives=gives, name=name)


def _updates(rng: np.random.Generator, eps: float) -> Iterator[tuple[str, list, np.ndarray, dict, int]]:
    """name, state, gradient, hyperparameters and t of single updates, and of thirty in a row."""
    hyper = SHOWN | {"eps": eps}
    yield "one update at t = 3", list(draw_state(rng, 4)), rng.normal(size=4), hyper, 3
    yield "t = 1, m and v zero", [rng.normal(size=4), np.zeros(4), np.zeros(4)], rng.normal(size=4), hyper, 1
    state, hyper = [rng.normal(size=4), np.zeros(4), np.zeros(4)], USUAL | {"eps": eps}
    for t in range(1, 31):
        g = rng.normal(size=4) * 10.0 ** rng.integers(-3, 3)
        yield f"30 updates in a row, t = {t}", state, g, hyper, t
        state = torch_update(state[0], g, *state[1:], hyper, t)
    yield "t = 1, m and v not zero", list(draw_state(rng, 4)), rng.normal(size=4), hyper, 1


@check("03-ex3-adam-update", points=2)
def weights_move_by_the_corrected_quotient(adam_update, *, rng):
    """The weights move by lr times m over √v, both corrected as torch does it, in thirty updates in a row."""
    for name, state, g, hyper, t in _updates(rng, 1e-16):
        yield _weights(adam_update, state, g, hyper, t, name, rtol=1e-6)


@check("03-ex3-adam-update", points=1.5)
def moments_follow_torch(adam_update, *, rng):
    """m and v after an update are those of torch's Adam, uncorrected, in this order."""
    for name, (w, m, v), g, hyper, t in _updates(rng, 1e-8):
        _, new_m, new_v = torch_update(w, g, m, v, hyper, t)
        gives = Updated(near(new_m), near(new_v))
        yield Call(adam_update, w, g, m, v, *hyper.values(), t, sees=_updated, gives=gives, name=name)


@check("03-ex3-adam-update", points=0.5)
def epsilon_stands_beside_the_corrected_root(adam_update, *, rng):
    """ε is added to the corrected root, neither inside it nor before the correction."""
    for t in (1, 3, int(rng.integers(4, 20))):
        yield _weights(adam_update, draw_state(rng, 4), rng.normal(size=4), SHOWN, t, f"t = {t}, eps = {SHOWN['eps']}")


@check("03-ex3-adam-update", points=0.5)
def adam_corrects_late_updates_too(adam_update, *, rng):
    """The bias correction goes on after thousands of updates."""
    for t in (1001, 2000):
        yield _weights(adam_update, draw_state(rng, 4), rng.normal(size=4), USUAL, t, f"t = {t:,}", rtol=0.02)


@check("03-ex3-adam-update", points=0.5)
def adam_moves_without_a_gradient(adam_update, *, rng):
    """Where g is 0, m and v decay all the same, and the weights move on with m."""
    for name, there in (("two entries of g are 0", np.array([0, 1, 0, 1])), ("all of g is 0", np.zeros(4))):
        w, m, v = draw_state(rng, 4)
        g, none = rng.normal(size=4) * there, there == 0

        def sees(result: Any, *_: Any, old: tuple = (w, m, v), none: np.ndarray = none) -> Moved:
            new_w, new_m, new_v = (
                (new != before)[none] if new.shape == before.shape else np.zeros(none.sum(), bool)
                for new, before in zip(_updated(result).all, old, strict=True)
            )
            return Moved(new_m.tolist(), new_v.tolist(), new_w.tolist())

        gives = Moved(*([True] * int(none.sum()) for _ in range(3)))
        yield Call(adam_update, w, g, m, v, *USUAL.values(), 3, sees=sees, gives=gives, name=f"t = 3, {name}")


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
