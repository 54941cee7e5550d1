"""Exercise 7: which fault a recorded run has. The runs are computed here, without ranks."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from autograder.checks.cases import Call
from autograder.checks.check import check

#: What a comparison with one process shows.
SHOWN = ("bias before the sum", "no sum in f", "two sums in g")


def _recorded(rng: np.random.Generator, fault: str, size: float) -> dict:
    """What the ranks have after a pass of a split MLP with this fault; without one, b1 is zero, as in a new model.

    size: of outputs and of their gradients.
    """
    n, width, share, rows = (int(rng.integers(2, 5)) for _ in range(4))

    def draw(*shape: int, size: float = 1.0) -> torch.Tensor:
        return torch.from_numpy((size * rng.standard_normal(shape)).astype(np.float32))

    x, y_grad, b2 = draw(rows, width), draw(rows, width, size=size), draw(width, size=size)
    drawn = ((draw(share, width), draw(share), draw(width, share, size=size)) for _ in range(n))
    parts = [{"w1": w1, "b1": b1, "w2": w2, "b2": b2} for w1, b1, w2 in drawn]
    parts = [part | {"b1": torch.zeros(share)} for part in parts] if fault == "none" else parts
    parts = [parts[0]] * n if fault == "equal parts" else parts
    given = [x.clone().requires_grad_() for _ in parts]
    terms = [
        functional.linear(functional.gelu(functional.linear(one, part["w1"], part["b1"])), part["w2"])
        for one, part in zip(given, parts, strict=True)
    ]
    y = sum(term.detach() for term in terms) + b2 * (n if fault == "bias before the sum" else 1)
    for term in terms:
        term.backward(y_grad * (n if fault == "two sums in g" else 1))
    own = [one.grad for one in given]
    x_grads = own if fault == "no sum in f" else [sum(own)] * n
    return {"x": x, "y_grad": y_grad, "parts": parts, "y": [y] * n, "x_grad": x_grads}


def _told(rng: np.random.Generator, diagnose, *faults: str, sizes: tuple[float, ...] = (1, 1, 1)):
    for size in sizes:
        for fault in map(str, rng.permutation(faults)):
            run = _recorded(rng, fault, size)
            name = f"a run on {len(run['parts'])} ranks{'' if size == 1 else f', outputs of about {size:g}'}"
            yield Call(diagnose, run, gives=fault, name=name, what="the fault")


@check("12-ex7-diagnose", points=0.5)
def faults_that_a_comparison_shows(diagnose, *, rng):
    """A bias before the sum, no sum in f and two sums in g are told apart, on 2 to 4 ranks, for outputs of any size."""
    yield from _told(rng, diagnose, *SHOWN, sizes=(1, 1, 1, 1e-5, 1e5))


@check("12-ex7-diagnose", points=0.25)
def equal_parts_are_seen(diagnose, *, rng):
    """Equal parts are named, and not taken for another fault or for none."""
    yield from _told(rng, diagnose, "equal parts", SHOWN[0])


@check("12-ex7-diagnose", points=0.25)
def right_runs_are_right(diagnose, *, rng):
    """A run without fault is "none"."""
    yield from _told(rng, diagnose, "none", SHOWN[1])
