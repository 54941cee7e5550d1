"""Lesson 07, exercise 2: what compression leaves out is added to the next gradient."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, expect_type, expect_unchanged, fail
from autograder.checking.stage import call_inside
from autograder.checks.bandwidth.common import count_kept, expect_largest, laid_out, pair_of, shares_memory


class _Fed:
    """An ErrorFeedback, and the gradients that it was given."""

    def __init__(self, ErrorFeedback: Any, ratio: float):
        self.feedback, self.given = ErrorFeedback(ratio), []

    def compress(self, key: Any, array: np.ndarray, layout: str) -> tuple[Any, Any]:
        """What the feedback makes of a gradient, and its residuals, as copies."""
        self.given.append(laid_out(array, layout))
        sent = copied(self.feedback.compress(key, self.given[-1]))
        return sent, copied(getattr(self.feedback, "residual", None))

    def afterwards(self, key: Any) -> tuple[list[np.ndarray], bool]:
        """The gradients as they are now; does the residual share memory with one of them?"""
        return [grad.numpy().copy() for grad in self.given], shares_memory(self.feedback.residual[key], self.given)


def copied(value: Any) -> Any:
    """A value with its tensors copied, also those inside lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if type(value) is list or isinstance(value, tuple):
        return (list if type(value) is list else tuple)(map(copied, value))
    return value


def _residual_of(case: str, residual: Any, key: Any, grad: torch.Tensor) -> np.ndarray:
    """The residual of one key, a tensor like its gradient, as an array."""
    expect_type(case, residual, dict, what=".residual")
    kept = residual.get(key)
    if not isinstance(kept, torch.Tensor) or kept.shape != grad.shape or kept.dtype != grad.dtype:
        what = f"{tuple(kept.shape)}, {kept.dtype}" if isinstance(kept, torch.Tensor) else type(kept).__name__
        wanted = f"a tensor of shape {tuple(grad.shape)} and dtype {grad.dtype}"
        fail(f".residual[{key!r}] must be {wanted}, got {what}", case, what)
    return kept.detach().numpy().copy()


@check("07-ex2-error-feedback", points=2)
def feedback_loses_nothing(ErrorFeedback, *, rng):
    """In each step the largest of gradient plus residual; sent + residual = sum of all gradients."""
    for shape, layout, ratio, whole in [
        ((16,), "", 0.25, True),
        ((4, 6), "transposed", 0.125, True),
        ((3, 5), "", 2.0**-6, False),
        ((2, 3, 4), "strided", 0.5, False),
        ((7,), "", 1.0, True),
        ((), "", 0.5, False),
        ((0, 3), "", 0.5, False),
    ]:
        dtype = "float32" if whole else "float64"
        case = f"{layout} shape {shape}, ratio {ratio}, {'whole numbers' if whole else 'float64'}".strip()
        feedback, numel = call_inside(_Fed, ErrorFeedback, ratio), math.prod(shape)
        before, sent, total, handed_in, history = np.zeros(shape, dtype), np.zeros(numel), np.zeros(shape), [], []
        for _ in range(6):
            array = rng.integers(-9, 10, shape) if whole else rng.normal(size=shape) + 0.3
            array = np.asarray(array, dtype)
            grad = torch.from_numpy(array)
            handed_in.append(array)
            got, residual = feedback.compress("w", array, layout)
            values, indices = pair_of(case, got, grad.dtype)
            kept = _residual_of(case, residual, "w", grad)
            history += [values, indices, kept]
            corrected = np.asarray(array + before, dtype)
            expect_largest(case, values, indices, corrected.reshape(-1), ratio)
            sent[indices] += values
            total += array
            # Six sums of numbers of order 1 in float64 are off by a few 1e-16; whole numbers are exact.
            rest = total.reshape(-1) - sent
            bound = {"rtol": 0.0, "atol": 0.0 if whole else 1e-12}
            why = "the gradients so far must add up to what was sent and what is kept"
            expect_close(case, kept.reshape(-1), rest, what="the residual", **bound, because=why, evidence=history)
            before = kept
        now, shares = feedback.afterwards("w")
        for array, grad in zip(handed_in, now, strict=True):
            expect_unchanged(case, array, grad, what="a gradient that was handed in")
        if shares:
            fail("the residual shares its memory with a gradient: keep a copy", case, "shared")


@check("07-ex2-error-feedback", points=1)
def feedback_keeps_keys_and_objects_apart(ErrorFeedback, *, rng):
    """Each key and each object has a residual of its own; a key can be anything hashable."""
    ratios = (0.25, 0.5)
    objects = [call_inside(_Fed, ErrorFeedback, ratio) for ratio in ratios]
    keys = {0: (8,), 1: (8,), "layer.weight": (2, 4), (3, "b"): (4,)}
    sums = [{key: np.zeros(shape) for key, shape in keys.items()} for _ in objects]
    history, residuals = [], [{}, {}]
    for step in range(4):
        for number, feedback in enumerate(objects):
            for key, shape in keys.items():
                case = f"object {number}, key {key!r}, step {step}"
                grad = torch.from_numpy(rng.integers(-9, 10, shape).astype(np.float64))
                got, residuals[number] = feedback.compress(key, grad.numpy(), "")
                values, indices = pair_of(case, got, grad.dtype)
                kept = _residual_of(case, residuals[number], key, grad)
                history += [values, kept]
                k = count_kept(grad.numel(), ratios[number])
                expect_equal(case, len(values), k, what="the number of entries sent", evidence=history)
                total = sums[number][key].reshape(-1)
                total += grad.numpy().reshape(-1)
                total[indices] -= values  # what is still to be sent
                why = "this object's gradients of this key must add up to what was sent and what is kept"
                how = {"what": "the residual", "rtol": 0.0, "because": why, "evidence": history}
                expect_close(case, kept.reshape(-1), total, **how)
                corrected = total.copy()
                corrected[indices] += values
                expect_largest(case, values, indices, corrected, ratios[number])
    for residual in residuals:
        expect_equal("at the end", sorted(map(repr, residual)), sorted(map(repr, keys)), what="the keys of .residual")
