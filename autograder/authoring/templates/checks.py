"""Lesson NN: the mean of a tensor over the ranks, and what it may cost.

The oracle is numpy's mean of the ranks' inputs, in float64. Inputs are multiples of 1/8, so that their sums are exact,
and what differs by more than a rounding for each rank is a mistake. What was sent is read from the ledger; a barrier
of the driver's own separates one case from the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, fail
from autograder.checking.inputs import eighths
from autograder.checking.stage import run_ranks

WORLD_SIZES = (1, 2, 3, 4, 5)
SHAPES = ((3,), (2, 5), (), (0, 4))
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Case:
    """One call: rank r brings `inputs[r]`."""

    name: str
    inputs: list[np.ndarray]

    @property
    def mean(self) -> np.ndarray:
        """What every rank should get."""
        return np.mean(self.inputs, axis=0, dtype=np.float64)

    @property
    def error(self) -> float:
        """A rounding of the largest input for each rank."""
        return len(self.inputs) * np.finfo(self.inputs[0].dtype).eps * float(np.max(np.abs(self.inputs), initial=0.0))


@dataclass(frozen=True)
class Outcome:
    """What one rank returned, and what its input held afterwards."""

    kind: str  # what was returned: "float32 tensor", or the name of its type
    mean: np.ndarray | None  # None for what is no tensor
    after: np.ndarray


@check("NN-ex1-mean-over-ranks", points=2)
def every_rank_gets_the_mean(mean_over_ranks, *, rng):
    """Every rank returns the mean of all ranks' tensors, in their shape and dtype; its own tensor stays as it was."""
    for case, outcomes, _ in _tries(mean_over_ranks, rng):
        seen = each_rank(case.name, outcomes, evidence=lambda outcome: [outcome.kind, outcome.mean, outcome.after])
        for rank, outcome in seen:
            rank.expect_equal(outcome.kind, f"{case.inputs[0].dtype} tensor", what="what is returned")
            rank.expect_close(outcome.mean, case.mean, what="the mean", rtol=0.0, atol=case.error)
            unchanged = np.array_equal(outcome.after, case.inputs[rank.rank])
            rank.expect(unchanged, "the input was changed in place: work on a copy")


@check("NN-ex1-mean-over-ranks", points=1)
def one_all_reduce_carries_the_mean(mean_over_ranks, *, rng):
    """With two ranks or more: one all-reduce of as many bytes as the tensor has, and no other communication."""
    for case, _, calls in _tries(mean_over_ranks, rng):
        if len(calls) == 1:
            continue
        for rank, mine in each_rank(case.name, calls):
            rank.expect_equal(
                mine, [("all_reduce", case.inputs[0].nbytes)], what="the list of calls, with their bytes,"
            )


def _tries(function: Any, rng: np.random.Generator) -> Any:
    """For each case of each number of ranks: the case, the ranks' outcomes, and the calls that each rank made."""
    for world_size in WORLD_SIZES:
        cases = [_case(rng, world_size, shape, dtype) for shape in SHAPES for dtype in DTYPES]
        results = run_ranks(_drive, world_size, (function, cases))
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        if any(len(parts) != len(cases) + 2 for parts in calls):
            fail("barrier was called, which no mean needs", count_of_ranks(world_size), "barrier")
        for c, case in enumerate(cases):
            sent = [[(m.call, m.bytes) for m in parts[c + 1]] for parts in calls]  # part 0 is before the first case
            yield case, [mine[c] for mine in results], sent


def _case(rng: np.random.Generator, world_size: int, shape: tuple[int, ...], dtype: str) -> Case:
    inputs = [eighths(rng, shape).astype(dtype) for _ in range(world_size)]
    return Case(f"{count_of_ranks(world_size)}, shape {shape}, {dtype}", inputs)


def _drive(rank: int, world_size: int, function: Any, cases: list[Case]) -> list[Outcome]:
    """Inside a rank: one call for each case, with a barrier before each and one at the end."""
    outcomes = []
    for case in cases:
        x = torch.from_numpy(case.inputs[rank].copy())
        dist.barrier()
        got = function(x)
        kind, mean = type(got).__name__, None
        if isinstance(got, torch.Tensor):
            mean = got.detach().numpy().copy()
            kind = f"{mean.dtype} tensor"
        outcomes.append(Outcome(kind, mean, x.numpy().copy()))
    dist.barrier()
    return outcomes
