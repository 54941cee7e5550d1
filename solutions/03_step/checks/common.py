"""What the checks of lesson 03 share: inputs, torch as the oracle, what is expected of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim.adam import adam as torch_adam
from torch.optim.swa_utils import get_ema_avg_fn

from autograder.checks.cases import Call, close, evidence, fact
from autograder.checks.expect import as_array, fail

#: Two float64 sums of K terms differ by at most about 2·K·2⁻⁵³ times the sum of magnitudes. Here K ≤ 500 and
#: the magnitudes add up to less than 100 times the largest result: 2·500·1.1e-16·100 ≈ 1.1e-11.
RTOL = 1e-10
#: Where terms of order 1 cancel, a result near 0 carries the same rounding errors: they need a bound of their own.
ATOL = 1e-12
#: (N, accum_steps, B, d), with each dimension in turn equal to 1.
EDGES = [(1, 3, 4, 2), (3, 1, 4, 2), (2, 3, 1, 4), (2, 2, 3, 1), (1, 1, 1, 1), (5, 2, 3, 7)]
#: Adam's hyperparameters: ones of which each shows in every update, and usual ones; then those of a whole step.
SHOWN = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05}
USUAL = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
STEP_SHOWN, STEP_USUAL = SHOWN | {"decay": 0.7}, USUAL | {"decay": 0.99}


def examples(rng: np.random.Generator, many: tuple[int, ...], d: int) -> tuple[np.ndarray, ...]:
    """x (*many, d), y (*many,) and w (d,), standard normal, float64."""
    return rng.normal(size=(*many, d)), rng.normal(size=many), rng.normal(size=d)


def draw_state(rng: np.random.Generator, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights w and moments m and v, (d,) each, as training leaves them: v is positive."""
    return rng.normal(size=d), rng.normal(size=d), rng.uniform(0.5, 2.0, size=d)


def draw_step_state(rng: np.random.Generator, d: int) -> list[np.ndarray]:
    """Weights, EMA weights, m and v, (d,) each."""
    w, m, v = draw_state(rng, d)
    return [w, rng.normal(size=d), m, v]


def autograd(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The gradient of the mean squared error over all examples, by torch's autograd."""
    weights = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    examples, targets = torch.tensor(x.reshape(-1, x.shape[-1])), torch.tensor(y.reshape(-1))
    torch.nn.functional.mse_loss(examples @ weights, targets).backward()
    return weights.grad.numpy()


def torch_update(w: Any, g: Any, m: Any, v: Any, hyper: dict, t: int) -> list[np.ndarray]:
    """New w, m, v by the function that torch.optim.Adam calls; the class itself takes a second to import."""
    w, g, m, v = (torch.tensor(np.asarray(a, dtype=np.float64)) for a in (w, g, m, v))
    torch_adam(
        [w], [g], [m], [v], [], [torch.tensor(float(t - 1))], foreach=False, amsgrad=False, maximize=False,
        weight_decay=0.0, lr=hyper["lr"], beta1=hyper["beta1"], beta2=hyper["beta2"], eps=hyper["eps"],
    )  # fmt: skip
    return [w.numpy(), m.numpy(), v.numpy()]


def torch_ema(ema: np.ndarray, w: np.ndarray, decay: float) -> np.ndarray:
    return get_ema_avg_fn(decay)(torch.tensor(ema), torch.tensor(w), 0).numpy()


def torch_step(x: Any, y: Any, state: list[np.ndarray], hyper: dict, t: int, factor: int = 1) -> list[np.ndarray]:
    """The new weights, EMA weights, m and v of one process that sees all examples at once. factor: of the gradient."""
    w, ema, m, v = state
    w, m, v = torch_update(w, factor * autograd(x, y, w), m, v, hyper, t)
    return [w, torch_ema(np.asarray(ema, dtype=np.float64), w, hyper["decay"]), m, v]


def near(numbers: np.ndarray) -> close:
    """Expected: these numbers, with this lesson's bounds."""
    return close(numbers, rtol=RTOL, atol=ATOL)


@dataclass
class Parts:
    """The parts of a step's flat result. The moments first: when m is wrong, so are the weights, and their EMA."""

    m: Any = fact("the new m (entries 2*d to 3*d)")
    v: Any = fact("the new v (entries 3*d to 4*d)")
    weights: Any = fact("the new weights (entries 0*d to 1*d)")
    ema: Any = fact("the new EMA weights (entries 1*d to 2*d)")
    whole: Any = evidence()


def step_call(step: Callable, xs: Any, ys: Any, *more: Any, expected: list[np.ndarray], name: str) -> Call:
    """A call of a step. more: its arguments after the examples. expected: the new weights, EMA weights, m and v."""
    w, ema, m, v = (near(part) for part in expected)
    sees = functools.partial(_parts_of, len(expected[0]))
    return Call(step, xs, ys, *more, sees=sees, gives=Parts(m, v, w, ema), name=name)


def _parts_of(d: int, result: Any, *_: Any) -> Parts:
    w, ema, m, v = blocks_of(d, result)
    return Parts(m, v, w, ema, np.concatenate([w, ema, m, v]))


def blocks_of(d: int, result: Any, of_any_shape: bool = False) -> list[np.ndarray]:
    """The four parts of a step's result, in whatever order they came."""
    flat = as_array("", result, "the result")
    if flat.size != 4 * d or (flat.ndim != 1 and not of_any_shape):
        fail(f"the result has shape {flat.shape}, expected ({4 * d},)", "", flat)
    return list(np.reshape(flat, (4, d)))


def closest(blocks: list[np.ndarray], expected: np.ndarray) -> np.ndarray:
    """The part that is nearest to this one."""
    return min(blocks, key=lambda block: float(np.abs(block - expected).max()))
