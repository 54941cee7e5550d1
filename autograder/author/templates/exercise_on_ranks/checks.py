"""Lesson NN, exercise 0: Replace this. The mean of a tensor over the ranks, and what it may cost.

The oracle is numpy's mean of the ranks' inputs, in float64. Inputs are multiples of 1/8, so that their sums are exact,
and what differs by more than a rounding for each rank is a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import ANYTHING, Case, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.inputs import eighths
from ranks import Ledger


@dataclass
class Outcome:
    """What one rank returned, and what became of its own tensor."""

    mean: Any = fact("the mean")
    changed: str = sentence()


def _drive(rank: int, world_size: int, function: Any, inputs: list[np.ndarray]) -> Outcome:
    """Inside a rank: one call."""
    x = torch.from_numpy(inputs[rank].copy())
    mean = function(x)
    same = np.array_equal(x.numpy(), inputs[rank])
    return Outcome(mean, "" if same else "the input was changed in place: work on a copy")


def _cases(rng: np.random.Generator, function: Any, looks_at: str) -> Iterator[Case]:
    """Tensors of several shapes and dtypes on up to 5 ranks: the mean, the calls or the input is looked at."""
    for n in (1, 2, 3, 4, 5) if looks_at == "mean" else (2, 3, 4, 5):
        for shape in ((3,), (2, 5), (), (0, 4)):
            for dtype in ("float32", "float64"):
                inputs = [eighths(rng, shape).astype(dtype) for _ in range(n)]
                error = n * np.finfo(dtype).eps * float(np.max(np.abs(inputs), initial=0.0))
                mean = close(np.mean(inputs, axis=0, dtype=np.float64), atol=error, dtype=dtype)
                facts = Outcome(mean if looks_at == "mean" else ANYTHING, "" if looks_at == "input" else ANYTHING)
                more = {"sends": [("all_reduce", inputs[0].nbytes)]} if looks_at == "calls" else {}
                more |= {"judge": _says_nothing} if looks_at == "input" else {}
                yield Case(f"shape {shape}, {dtype}", n, _drive, (function, inputs), [facts] * n, **more)


def _says_nothing(rank: int, messages: list[Ledger]) -> str:
    """An answer that does nothing leaves its input alone, too."""
    return "" if any(messages) else f"rank {rank} made no call, so it cannot have the mean"


@check("NN-ex0-mean-over-ranks", points=1)
def mean_over_ranks_is_the_mean(mean_over_ranks, *, rng):
    """Replace this. Every rank returns the mean of all ranks' tensors, in their shape and dtype."""
    yield from _cases(rng, mean_over_ranks, "mean")


@check("NN-ex0-mean-over-ranks", points=0.5)
def mean_over_ranks_sends_it_once(mean_over_ranks, *, rng):
    """Replace this. Two ranks or more make one all-reduce of the tensor's bytes, and no other communication."""
    yield from _cases(rng, mean_over_ranks, "calls")


@check("NN-ex0-mean-over-ranks", points=0.25)
def mean_over_ranks_keeps_its_input(mean_over_ranks, *, rng):
    """Replace this. A rank's own tensor stays as it was, though all ranks' tensors are averaged."""
    yield from _cases(rng, mean_over_ranks, "input")
