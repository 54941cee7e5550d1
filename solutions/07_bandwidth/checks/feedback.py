"""Exercise 2: what compression leaves out is added to the next gradient."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Call, fact, sentence
from autograder.checks.check import check

from .entries import strange_pair

FEEDBACK = "07-ex2-error-feedback"
#: Whole numbers whose sums over a few steps float32 holds exactly.
LIMIT = 10**6
#: A key that no other case uses, where memories that objects share are not what is judged.
_KEYS = itertools.count()


@dataclass
class Steps:
    """Some calls of compress: what is wrong with what was returned, kept and sent, by call."""

    odd: str = sentence()
    residuals: Any = fact("the residual after call {}", "gradients so far = what was sent + what is kept")
    chosen: list[str] = sentence()
    counts: list[int] = fact("the number of entries sent in call {}")


def _drive(feedback_class: Any, ratios: list[float], calls: list[tuple], refilled: bool) -> list[tuple]:
    """Calls (number of the object, key, gradient): what each returned, and the residual of its key.

    refilled: do all gradients arrive in one tensor, as a parameter's do in p.grad?
    """
    objects, found = [feedback_class(ratio) for ratio in ratios], []
    buffer = torch.empty(calls[0][2].shape)
    for number, key, grad in calls:
        given = buffer if refilled else torch.empty(grad.shape)
        got = objects[number].compress(key, given.copy_(torch.from_numpy(grad)))
        kept = objects[number].residual.get(key)
        pair = strange_pair(got) or tuple(part.detach().clone() for part in got)
        found.append((pair, kept.detach().numpy().copy() if isinstance(kept, torch.Tensor) else type(kept).__name__))
    return found


def _steps(found: list[tuple], _driver: Any, _ratios: list[float], calls: list[tuple], _refilled: bool) -> Steps:
    """What the residuals have too much is compared with zeros."""
    owed: dict[tuple, np.ndarray] = {}
    before: dict[tuple, np.ndarray] = {}
    steps = Steps("", [], [], [])
    for (number, key, grad), (pair, kept) in zip(calls, found, strict=True):
        steps.odd = pair if isinstance(pair, str) else ""
        if not steps.odd and (isinstance(kept, str) or kept.shape != grad.shape):
            what = kept if isinstance(kept, str) else f"a tensor of shape {kept.shape}"
            steps.odd = f".residual[{key!r}] is {what}, not a tensor of shape {grad.shape}"
        if steps.odd:
            return steps
        values, indices = (part.numpy() for part in pair)
        place = number, key
        steps.chosen.append(_chosen((grad + before.get(place, 0)).reshape(-1), values, indices))
        owed[place] = owed.get(place, 0.0) + grad.reshape(-1)
        np.subtract.at(owed[place], indices, values)
        before[place] = kept
        steps.residuals.append((kept.reshape(-1) - owed[place]).tolist())
        steps.counts.append(len(indices))
    return steps


def _chosen(owed: np.ndarray, values: np.ndarray, indices: np.ndarray) -> str:
    """What is wrong with the choice of what is sent, where gradient + residual is `owed`; "" for nothing."""
    wrong = [int(i) for i, value in zip(indices, values, strict=True) if owed[i] != value]
    if wrong:
        sent = values[list(indices).index(wrong[0])]
        return f"entry {wrong[0]} of gradient + residual is {owed[wrong[0]]:g}, and {sent:g} was sent of it"
    left = np.delete(np.abs(owed), indices)
    if left.size and left.max() > np.abs(values).min(initial=np.inf):
        return f"of gradient + residual, {np.abs(values).min():g} was sent, and {left.max():g} was not"
    return ""


def _call(feedback: Any, ratios: list[float], calls: list[tuple], name: str, *facts: str) -> Call:
    right = {
        "residuals": [[0.0] * grad.size for _, _, grad in calls],
        "chosen": [""] * len(calls),
        "counts": [max(1, math.floor(ratios[number] * grad.size)) for number, _, grad in calls],
    }
    gives = Steps("", **{fact_: right[fact_] for fact_ in facts})
    args = (feedback, ratios, calls, "residuals" in facts)
    return Call(_drive, *args, gives=gives, sees=_steps, name=name)


def _grads(rng: np.random.Generator, shape: tuple[int, ...], count: int) -> list[np.ndarray]:
    return [rng.integers(-LIMIT, LIMIT + 1, shape).astype(np.float32) for _ in range(count)]


def _single(feedback: Any, rng: np.random.Generator, fact_: str) -> Iterable[Call]:
    """One object with one key, in some calls."""
    for shape, ratio in (((16,), 0.25), ((3, 2 * int(rng.integers(2, 6))), 0.5), ((40,), 0.05)):
        key = f"w{next(_KEYS)}"
        calls = [(0, key, grad) for grad in _grads(rng, shape, 6)]
        yield _call(feedback, [ratio], calls, f"6 gradients of shape {shape}, ratio {ratio}", fact_)


@check(FEEDBACK, points=1.25)
def nothing_is_lost(ErrorFeedback, *, rng):
    """At any time, what was sent plus the residual is the sum of all gradients, bit for bit; all come in one tensor."""
    yield from _single(ErrorFeedback, rng, "residuals")


@check(FEEDBACK, points=1)
def what_is_sent_is_the_largest_of_the_sum(ErrorFeedback, *, rng):
    """What is sent are the largest entries of gradient + residual, and nothing else."""
    yield from _single(ErrorFeedback, rng, "chosen")


@check(FEEDBACK, points=0.5)
def each_key_has_a_residual(ErrorFeedback, *, rng):
    """Each key of an object begins without a residual of others; a key can be anything that a dict takes."""
    keys = (next(_KEYS), f"w{next(_KEYS)}", (3, f"b{next(_KEYS)}"))
    calls = [(0, key, grad) for key, grad in zip(keys, _grads(rng, (8,), 3), strict=True)]
    yield _call(ErrorFeedback, [0.25], calls, "a gradient for each of three keys", "chosen")


@check(FEEDBACK, points=0.25)
def each_object_has_residuals(ErrorFeedback, *, rng):
    """A second object begins without residuals, and has a ratio of its own."""
    key = f"w{next(_KEYS)}"
    calls = [(number, key, grad) for number, grad in enumerate(_grads(rng, (8,), 2))]
    yield _call(ErrorFeedback, [0.25, 0.5], calls, "a gradient for each of two objects", "chosen", "counts")
