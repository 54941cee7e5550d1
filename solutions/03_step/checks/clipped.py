"""Exercise 7: clipping by the global norm, and AdamW's decay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Call, evidence, fact
from autograder.checks.check import check
from autograder.checks.expect import fail

from .common import SHOWN, near, torch_update

#: (N, the sizes of the layers)
SHAPES = [(3, (4, 2)), (1, (3, 3, 1)), (4, (2, 5)), (2, (1,))]


@dataclass
class Clipped:
    """What clipped_adamw returned, each list end to end."""

    norm: Any = fact("the norm", "it should be that of the mean gradient of all layers, before clipping")
    m: Any = fact("the new m, all layers")
    v: Any = fact("the new v, all layers")
    weights: Any = fact("the new weights, all layers")
    all: Any = evidence()


def _clipped(result: Any, *_: Any) -> Clipped:
    if not isinstance(result, (tuple, list)) or len(result) != 4:
        fail(f"expected four things, (norm, weights, m, v), got {type(result).__name__}", "", type(result).__name__)
    norm, *state = result
    weights, m, v = (np.concatenate([np.ravel(layer) for layer in layers]) for layers in state)
    return Clipped(norm, m, v, weights, (norm, weights, m, v))


def _try(step: Callable, rng: np.random.Generator, shape: tuple, share: float, decay: float, *facts: str) -> Call:
    """A call in which the bound is this share of the norm. facts: what is compared."""
    n, sizes = shape
    grads = rng.normal(size=(n, sum(sizes))) + 1
    state = [rng.normal(size=sum(sizes)), rng.normal(size=sum(sizes)), rng.uniform(0.5, 2, size=sum(sizes))]
    mean = torch.from_numpy(grads).mean(dim=0)
    norm = torch.linalg.vector_norm(mean).item()
    w, m, v = torch_update(state[0], mean.numpy() * min(1.0, share), *state[1:], SHOWN, 3)
    expected = {"norm": near(np.array(norm)), "m": near(m), "v": near(v)}
    expected["weights"] = near(w - SHOWN["lr"] * decay * state[0])
    cuts = np.cumsum(sizes)[:-1]
    given = [[np.split(g, cuts) for g in grads], *(np.split(part, cuts) for part in state)]
    name = f"N = {n}, layers of {sizes}, max_norm {share} times the norm, weight_decay {decay}"
    gives = Clipped(**{name: expected[name] for name in facts})
    return Call(step, *given, *SHOWN.values(), 3, share * norm, decay, sees=_clipped, gives=gives, name=name)


@check("03-ex7-clip-and-decay", points=1.5)
def mean_is_clipped_by_its_global_norm(clipped_adamw, *, rng):
    """Without decay, m, v and the weights are torch's for the mean gradient, scaled by one factor if it is too long."""
    for shape in SHAPES:
        for share in (0.25, 4.0):
            yield _try(clipped_adamw, rng, shape, share, 0.0, "m", "v", "weights")


@check("03-ex7-clip-and-decay", points=1)
def weights_decay_beside_the_update(clipped_adamw, *, rng):
    """With decay, m and v stay the same, and the weights lose lr * weight_decay of what they were."""
    for share in (0.25, 4.0):
        yield _try(clipped_adamw, rng, SHAPES[0], share, 0.1, "m", "v", "weights")


@check("03-ex7-clip-and-decay", points=0.5)
def norm_is_that_before_clipping(clipped_adamw, *, rng):
    """The norm that is returned is that of the mean gradient before clipping, whether it is clipped or not."""
    for share in (0.25, 4.0):
        yield _try(clipped_adamw, rng, SHAPES[0], share, 0.0, "norm")
