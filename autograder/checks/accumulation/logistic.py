"""Lesson 04, exercises 3 and 4: the gradient of a logistic regression, and one step on the shards of all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from autograder.checking.check import check
from autograder.checking.expect import as_array, expect_close, expect_unchanged, fail

# ---- 3 · local_gradient ----


def _examples(rng: np.random.Generator, rows: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rng.normal(size=(rows, d)), rng.integers(0, 2, rows).astype(float), rng.normal(size=d)


def _autograd(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The gradient of torch's own mean logistic loss, in float64."""
    x, y, w = (torch.from_numpy(np.array(a, dtype=np.float64)) for a in (x, y, w))
    w.requires_grad_()
    binary_cross_entropy_with_logits(x @ w, y).backward()
    return w.grad.numpy()


def _expect_gradient(case: str, function: Any, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
    """The gradient is torch's, within 1e-12 of the largest |x|, which bounds every entry: |σ − y| is at most 1."""
    expected = _autograd(x, y, w)
    atol = 1e-12 * float(np.max(np.abs(np.asarray(x, dtype=np.float64)), initial=0.0))
    got = as_array(case, function(x.copy(), y.copy(), w.copy()), "the gradient")
    if got.dtype != np.float64:
        fail(f"the gradient is {got.dtype}, expected float64", case, str(got.dtype))
    # A small error hides in the numbers that it is in, so the difference is evidence too: it tells mistakes apart.
    evidence = [got, got - expected] if got.shape == expected.shape else got
    expect_close(case, got, expected, what="the gradient", rtol=0.0, atol=atol, evidence=evidence)


@check("04-ex3-local-gradient")
def local_gradient_follows_the_formula(local_gradient, *, rng):
    """The gradient is that of torch's mean logistic loss."""
    for rows, d in [(8, 3), (1, 4), (5, 1), (1, 1), (300, 20)]:
        _expect_gradient(f"B = {rows}, d = {d}", local_gradient, *_examples(rng, rows, d))
    for label in (0.0, 1.0):
        x, y, w = _examples(rng, 6, 2)
        _expect_gradient(f"B = 6, d = 2, every label {label:.0f}", local_gradient, x, np.full_like(y, label), w)


@check("04-ex3-local-gradient")
def local_gradient_is_computed_in_float64(local_gradient, *, rng):
    """From float32 or integer arrays too, the gradient is computed and returned in float64."""
    x, y, w = _examples(rng, 50, 4)
    for dtype in ("int64", "uint8"):
        _expect_gradient(f"float64 x and w, {dtype} y", local_gradient, x, y.astype(dtype), w)
    # Large x whose logits are small: they cancel, which float32 does badly. Logits that are large have another check.
    single = [a.astype(np.float32) for a in (x + 100, y, w - w.mean())]
    _expect_gradient("all float32", local_gradient, *single)
    x, w = rng.integers(-3, 4, (9, 3)), rng.integers(-1, 2, 3)
    _expect_gradient("all int64", local_gradient, x, rng.integers(0, 2, 9), w)
    # Logits between 140 and 254 of either sign, which eight bits cannot hold.
    x = (rng.integers(70, 128, (8, 2)) * np.array([[1], [-1]] * 4)).astype(np.int8)
    labels = np.array([0, 1, 1, 0] * 2)
    _expect_gradient("all int8, logits above 127", local_gradient, x, labels.astype(np.int8), np.ones(2, np.int8))


@check("04-ex3-local-gradient")
def local_gradient_survives_large_logits(local_gradient, *, rng):
    """The gradient stays right for logits up to 10⁴ of either sign, with either label."""
    for size in (30.0, 800.0, 1e4):
        z = np.array([size, -size, size, -size, 0.3, -1.2, 7.0, -7.0])
        x = np.stack([z, rng.normal(size=8)], axis=1)
        y, w = np.array([0.0, 1, 1, 0, 1, 0, 1, 0]), np.array([1.0, 0.0])
        _expect_gradient(f"|Xw| up to {size:g}", local_gradient, x, y, w)
        _expect_gradient(f"|Xw| up to {size:g}, labels on the right side", local_gradient, x[2:], y[2:], w)


@check("04-ex3-local-gradient")
def local_gradient_leaves_its_inputs_alone(local_gradient, *, rng):
    """x, y and w are not changed."""
    inputs = dict(zip(("x", "y", "w"), _examples(rng, 6, 3), strict=True))
    before = {name: array.copy() for name, array in inputs.items()}
    local_gradient(*inputs.values())
    for name, array in inputs.items():
        expect_unchanged("B = 6, d = 3", before[name], array, what=name)


@check("04-ex3-local-gradient")
def local_gradient_refuses_what_does_not_fit(local_gradient, *, rng):
    """No rows, and shapes that do not fit, raise a ValueError that names the argument."""
    x, y, w = _examples(rng, 4, 3)
    for case, word, args in [
        ("B = 0", "x", (x[:0], y[:0], w)),
        ("x of shape (3,)", "x", (x[0], y[:3], w)),
        ("x of shape (2, 4, 3)", "x", (np.stack([x, x]), y, w)),
        ("y of shape (4, 1)", "y", (x, y[:, None], w)),
        ("y of shape (1, 4)", "y", (x, y[None], w)),
        ("y of shape (1,) for B = 4", "y", (x, y[:1], w)),
        ("y of shape () for B = 4", "y", (x, np.array(1.0), w)),
        ("w of shape (3, 1)", "w", (x, y, w[:, None])),
        ("w of shape (2,) for d = 3", "w", (x, y, w[:2])),
        ("w of shape () for d = 3", "w", (x, y, np.array(1.0))),
    ]:
        _expect_value_error(case, local_gradient, args, word)


def _expect_value_error(case: str, function: Any, args: tuple, *words: str) -> None:
    """A ValueError is raised whose text contains one of the words, as a whole word."""
    try:
        function(*args)
    except ValueError as error:
        if not any(re.search(rf"\b{word}\b", str(error)) for word in words):
            fail(f"the ValueError should name {' or '.join(words)}, it says {str(error)!r}", case, "unnamed")
        return
    except NotImplementedError:
        raise
    except Exception as error:
        fail(f"expected a ValueError, got {type(error).__name__}: {error}", case, type(error).__name__)
    fail("expected a ValueError, but nothing was raised", case, "nothing raised")


# ---- 4 · data_parallel_step ----

#: Rows of each shard.
CUTS = [(40,), (3, 3, 3), (5, 0, 1, 4), (1, 2, 9), (0, 7), (1,) * 7, (0, 0, 3, 0, 2, 6, 1)]
LARGE_CUT = (100, 4_900, 1, 14_999)


def _shards(rng: np.random.Generator, sizes: Sequence[int], d: int) -> tuple[list, list, np.ndarray]:
    """Shards with very different gradients: the rows of each shard lie around a point of its own."""
    xs = [rng.normal(size=(n, d)) + 2 * rng.normal(size=d) for n in sizes]
    ys = [rng.integers(0, 2, n).astype(float) for n in sizes]
    return xs, ys, 0.15 * rng.normal(size=d)


@check("04-ex4-data-parallel-step")
def step_is_one_step_on_all_rows(data_parallel_step, *, rng):
    """The new w, in float64, is w − lr times the gradient over all rows of all shards, equal, unequal or empty."""
    for sizes in [*CUTS, LARGE_CUT]:
        xs, ys, w = _shards(rng, sizes, 20 if sizes is LARGE_CUT else 3)
        expected = w - 0.7 * _autograd(np.concatenate(xs), np.concatenate(ys), w)
        case = f"shards of {', '.join(map(str, sizes))} rows"
        got = data_parallel_step([x.copy() for x in xs], [y.copy() for y in ys], w.copy(), 0.7)
        expect_close(case, got, expected, what="the new w", rtol=1e-12, atol=1e-12)
    for dtype in ("float32", "int64"):
        xs, ys, _ = _shards(rng, (2, 0, 4), 3)
        xs = [0.5 * x for x in xs]
        w = rng.integers(-1, 2, 3).astype(dtype)  # local_gradient has tests of its own for x in other dtypes
        case = f"shards of 2, 0, 4 rows, {dtype} w"
        got = as_array(case, data_parallel_step([*xs], [*ys], w.copy(), 0.3), "the new w")
        if got.dtype != np.float64:
            fail(f"the new w is {got.dtype}, expected float64", case, str(got.dtype))
        expected = w.astype(np.float64) - 0.3 * _autograd(np.concatenate(xs), np.concatenate(ys), w)
        expect_close(case, got, expected, what="the new w", rtol=1e-12, atol=1e-12)
    xs, ys, w = _shards(rng, (2, 3), 2)
    steps = [w]
    for _ in range(3):
        expected = steps[-1] - 0.2 * _autograd(np.concatenate(xs), np.concatenate(ys), steps[-1])
        got = data_parallel_step(xs, ys, steps[-1].copy(), 0.2)
        expect_close(f"3 steps in a row, number {len(steps)}", got, expected, what="the new w", rtol=1e-12, atol=1e-12)
        steps.append(expected)


@check("04-ex4-data-parallel-step")
def step_leaves_its_inputs_alone(data_parallel_step, *, rng):
    """w, the lists and their arrays are not changed, and the result shares no memory with w, even for lr = 0."""
    for lr in (0.5, 0.0):
        xs, ys, w = _shards(rng, (4, 0, 2), 3)
        kept = [w.copy(), *(a.copy() for a in xs + ys)]
        given_xs, given_ys = list(xs), list(ys)
        got = data_parallel_step(given_xs, given_ys, w, lr)
        case = f"shards of 4, 0, 2 rows, lr = {lr}"
        if len(given_xs) != 3 or len(given_ys) != 3:
            fail("the list xs or ys was changed", case, "list changed")
        if any(a is not b for a, b in zip(given_xs + given_ys, xs + ys, strict=True)):
            fail("an entry of xs or ys was replaced", case, "entry replaced")
        for name, before, after in zip(["w", *["xs"] * 3, *["ys"] * 3], kept, [w, *xs, *ys], strict=True):
            expect_unchanged(case, before, after, what=name)
        if isinstance(got, np.ndarray) and np.shares_memory(got, w):
            fail("the result shares its memory with w", case, "shared")


@check("04-ex4-data-parallel-step")
def step_refuses_what_cannot_be_stepped(data_parallel_step, *, rng):
    """Lists of different lengths raise a ValueError that names xs or ys; shards without any row one that names xs."""
    xs, ys, w = _shards(rng, (4, 2), 3)
    for case, words, args in [
        ("two shards in xs, one in ys", ("xs", "ys"), (xs, ys[:1])),
        ("one shard in xs, two in ys", ("xs", "ys"), (xs[:1], ys)),
        ("no shards", ("xs",), ([], [])),
        ("two shards of 0 rows", ("xs",), ([xs[0][:0], xs[1][:0]], [ys[0][:0], ys[1][:0]])),
    ]:
        _expect_value_error(case, data_parallel_step, (*args, w, 0.1), *words)
