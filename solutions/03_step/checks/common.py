"""What the checks of lesson 03 share: inputs, torch as the oracle, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim.adam import adam as torch_adam
from torch.optim.swa_utils import get_ema_avg_fn

from autograder.checking.expect import as_array, expect_close, expect_unchanged, fail

#: Two float64 sums of K terms differ by at most about 2·K·2⁻⁵³ times the sum of magnitudes. Here K ≤ 500 and
#: the magnitudes add up to less than 100 times the largest result: 2·500·1.1e-16·100 ≈ 1.1e-11.
RTOL = 1e-10
#: Where terms of order 1 cancel, a result near 0 carries the same rounding errors: they need a bound of their own.
ATOL = 1e-12
#: How many elements are observed where not all of them are finite.
EVIDENCE = 2_048

PARTS = ("the new weights", "the new EMA weights", "the new m", "the new v")
#: (N, accum_steps, B, d), with each dimension in turn equal to 1.
EDGES = [(1, 3, 4, 2), (3, 1, 4, 2), (2, 3, 1, 4), (2, 2, 3, 1), (1, 1, 1, 1), (5, 2, 3, 7)]
MID_TRAINING = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "eps": 0.05, "decay": 0.7}
USUAL = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.99}


def examples(rng: np.random.Generator, many: tuple[int, ...], d: int) -> tuple[np.ndarray, ...]:
    """x (*many, d), y (*many,) and w (d,), standard normal, float64."""
    return rng.normal(size=(*many, d)), rng.normal(size=many), rng.normal(size=d)


def nearly_cancelling(rng: np.random.Generator, many: tuple[int, ...], d: int) -> tuple[np.ndarray, ...]:
    """The same in float32, with y so near to x @ w that a residual in float32 loses digits."""
    x, w = rng.normal(size=(*many, d)).astype(np.float32), (300 * rng.normal(size=d)).astype(np.float32)
    y = x.astype(np.float64) @ w.astype(np.float64) + rng.normal(size=many)
    return x, y.astype(np.float32), w


def draw_state(rng: np.random.Generator, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights w and moments m and v, (d,) each, as training leaves them: v is positive."""
    return rng.normal(size=d), rng.normal(size=d), rng.uniform(0.5, 2.0, size=d)


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


def torch_step(x: np.ndarray, y: np.ndarray, state: list[np.ndarray], hyper: dict, t: int) -> list[np.ndarray]:
    """The new weights, EMA weights, m and v of one process that sees all examples at once."""
    w, ema, m, v = state
    w, m, v = torch_update(w, autograd(x, y, w), m, v, hyper, t)
    return [w, torch_ema(np.asarray(ema, dtype=np.float64), w, hyper["decay"]), m, v]


def compare_parts(case: str, got: Any, expected: list[np.ndarray], rtol: float) -> None:
    """Compare the four parts of the flat result, each with a bound relative to its own largest entry."""
    got = as_array(case, got, "the result")
    if got.shape != (4 * len(expected[0]),):
        fail(f"the result has shape {got.shape}, expected ({4 * len(expected[0])},)", case, [evidence_of(got)])
    parts = np.split(got, 4)
    evidence = [evidence_of(part) for part in parts]
    # The moments first: when m is wrong, so are the weights, and their EMA.
    for i in (2, 3, 0, 1):
        what = f"{PARTS[i]} (entries {i}*d to {i + 1}*d)"
        expect_near(case, parts[i], expected[i], what, rtol=rtol, evidence=evidence)


def expect_near(
    case: str,
    got: Any,
    expected: np.ndarray,
    what: str,
    *,
    rtol: float = RTOL,
    evidence: Any = None,
    because: str = "",
) -> None:
    """`expect_close` with this lesson's bounds. evidence: what was observed, where `got` is only a part of it."""
    got = as_array(case, got, what)
    evidence = [evidence_of(got)] if evidence is None else evidence
    expect_close(case, got, expected, what=what, rtol=rtol, atol=ATOL, because=because, evidence=evidence)


def evidence_of(array: np.ndarray) -> Any:
    """An array that can be compared with another; as strings unless all is finite: inf and NaN have no scale.

    If there are many elements, the shape and the first ones are enough.
    """
    if np.all(np.isfinite(array)):
        return array
    return [str(array.shape), *(str(value) for value in array.reshape(-1)[:EVIDENCE])]


def expect_float64(case: str, got: Any, expected: np.ndarray, *, what: str) -> None:
    dtype = as_array(case, got, what).dtype
    if dtype != np.float64:
        fail(f"{what} is {dtype}, expected float64", case, str(dtype))
    expect_near(case, got, expected, what, because="compute in float64 from the start")


def expect_pure(case: str, function: Callable, inputs: dict[str, Any], expected: np.ndarray) -> None:
    """`function(*inputs.values())` changes no input, and its result, `expected`, shares no memory with one."""
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
    got = np.hstack(_leaves(results)) if isinstance(results, (list, tuple)) else results
    expect_near(case, got, expected, "the result")


def _leaves(value: Any) -> list[np.ndarray]:
    """The arrays in nested lists and tuples of arrays."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [np.asarray(value)]
