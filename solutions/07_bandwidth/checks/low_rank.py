"""Lesson 07, exercise 3: thin matrices instead of a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank
from autograder.checking.stage import run_ranks


def _drive(rank, world_size, power_sgd, start, grads) -> dict:
    """Inside a rank: one compressor, called on one gradient after the other; what it returned and what it changed."""
    q = torch.from_numpy(start.copy())
    compressor, means, changed = power_sgd(q), [], []
    for step, grad in enumerate(grads[rank]):
        given = torch.from_numpy(grad.copy())
        mean = compressor.mean(given)
        means.append(mean.detach().numpy().copy() if isinstance(mean, torch.Tensor) else None)
        if not np.array_equal(given.numpy(), grad):
            changed.append(f"the gradient of step {step}")
        if not np.array_equal(q.numpy(), start):
            changed.append(f"the matrix q of the caller, in step {step}")
        given.fill_(99.0)  # like an optimizer that clears gradients: what the answer keeps must not change
        if isinstance(mean, torch.Tensor):
            mean.fill_(99.0)  # the caller may scale the mean in place: again, what the answer keeps must not change
    dist.barrier()
    return {"means": means, "changed": changed}


def _projected(start: np.ndarray, grads: np.ndarray) -> list[np.ndarray]:
    """The means of the steps, [step], of gradients [rank, step, n, m]: one process that compresses the ranks' mean.

    What is kept is a projection of the mean onto the columns of (mean · q). It depends on their span alone, so the
    singular vectors serve here as well as any other basis.
    """
    q, owed, means = start.astype(np.float64), np.zeros(grads.shape[2:]), []
    for mean in grads.astype(np.float64).mean(axis=0):
        corrected = mean + owed
        basis = np.linalg.svd(corrected @ q, full_matrices=False)[0]
        q = corrected.T @ basis
        means.append(basis @ q.T)
        owed = corrected - means[-1]
    return means


def _runs(rng: np.random.Generator, power_sgd: Any, world_size: int, shape: tuple, rank: int, dtype: str, steps: int):
    start = rng.normal(size=(shape[1], rank)).astype(dtype)
    grads = (rng.normal(size=(world_size, steps, *shape)) + rng.normal(size=shape)).astype(dtype)
    return start, grads, run_ranks(_drive, world_size, (power_sgd, start, grads))


@check("07-ex3-power-sgd", points=2.5)
def low_rank_follows_one_process(PowerSGD, *, rng):
    """In each step all ranks get what one process gets if it compresses the mean and keeps the rest for later."""
    for world_size, shape, rank, dtype in [
        (2, (6, 4), 2, "float64"),
        (3, (3, 8), 1, "float32"),
        (1, (5, 5), 3, "float64"),
    ]:
        case = f"{count_of_ranks(world_size)}, a {shape[0]} × {shape[1]} gradient in {dtype}, rank {rank}"
        start, grads, results = _runs(rng, PowerSGD, world_size, shape, rank, dtype, steps=4)
        _expect_means(case, results, _projected(start, grads), dtype)


def _expect_means(case: str, results: list, expected: list[np.ndarray], dtype: str) -> None:
    for one, result in each_rank(case, results, evidence=lambda result: result["means"]):
        for step, mean in enumerate(result["means"]):
            kind = "no tensor" if mean is None else str(mean.dtype)
            one.expect(kind == dtype, f"the mean of step {step} is {kind}, expected {dtype}", ["dtype", kind])
            # Four steps of products of few terms; a basis of few vectors amplifies what float32 rounds.
            rtol = 1e-9 if dtype == "float64" else 1e-3
            one.expect_close(mean, expected[step], what=f"the mean of step {step}", rtol=rtol)


@check("07-ex3-power-sgd", points=1)
def low_rank_sends_thin_matrices(PowerSGD, *, rng):
    """A rank puts r(n + m) numbers into its all-reduces in each step, and calls nothing else."""
    for world_size, shape, rank, dtype in [(2, (24, 16), 2, "float32"), (3, (5, 32), 1, "float64")]:
        case = f"{count_of_ranks(world_size)}, a {shape[0]} × {shape[1]} gradient in {dtype}, rank {rank}"
        start, grads, results = _runs(rng, PowerSGD, world_size, shape, rank, dtype, steps=2)
        _expect_means(case, results, _projected(start, grads), dtype)  # else an answer could send nothing
        most = 2 * rank * sum(shape) * start.itemsize
        calls = [[m for m in results.ledger.of(number) if m.call != "barrier"] for number in range(world_size)]
        sent = [[sum(m.bytes for m in mine), sorted({m.call for m in mine})] for mine in calls]
        for one, (spent, names) in each_rank(case, sent):
            others = [name for name in names if name != "all_reduce"]
            one.expect(not others, f"{', '.join(others)} was called, only all_reduce is allowed")
            one.expect(spent <= most, f"{spent} bytes were put into all-reduces in 2 steps, {most} are enough")


@check("07-ex3-power-sgd", points=0.5)
def low_rank_leaves_inputs_alone(PowerSGD, *, rng):
    """The caller's gradient and q stay as they were."""
    for world_size in (1, 2):
        case = f"{count_of_ranks(world_size)}, a 4 × 3 gradient, rank 2"
        start, grads, results = _runs(rng, PowerSGD, world_size, (4, 3), 2, "float64", steps=3)
        for one, result in each_rank(case, results, evidence=lambda result: result["changed"]):
            one.expect(not result["changed"], f"{', '.join(result['changed'])} was changed: work on a copy")
        _expect_means(case, results, _projected(start, grads), "float64")
