"""Lesson 07, exercise 4: numbers of eight bits, and their all-reduce."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import (
    count_of_ranks,
    each_rank,
    expect_close,
    expect_equal,
    expect_type,
    expect_unchanged,
    fail,
)
from autograder.checking.stage import run_ranks
from autograder.checks.bandwidth.common import GATHERS

_EXCHANGES = (*GATHERS, "all_to_all", "all_to_all_single")


@check("07-ex4-int8", points=1)
def quantize_is_within_half_a_step(quantize, *, rng):
    """Integers of −127 to 127, and a float32 scale; each number comes back to within half a scale, zeros as zeros."""
    numbers = rng.normal(size=257).astype(np.float32)
    for case, array in [
        ("257 normal numbers", numbers),
        ("the largest is negative", np.where(np.arange(257) == 9, -8, numbers).astype(np.float32)),
        ("numbers of about 1e-8", numbers * np.float32(1e-8)),
        ("numbers of about 1e-30", numbers * np.float32(1e-30)),
        ("numbers of about 1e8", numbers * np.float32(1e8)),
        ("zeros", np.zeros(5, np.float32)),
        ("one number", np.asarray([-0.7], np.float32)),
    ]:
        x = torch.from_numpy(array.copy())
        got = quantize(x)
        expect_type(case, got, (tuple, list), what="what quantize returns")
        expect_equal(case, len(got), 2, what="the length of what quantize returns")
        q, scale = got
        for what, part, wanted in (("q", q, [torch.int8, len(array)]), ("scale", scale, [torch.float32, 1])):
            seen = [part.dtype, part.numel()] if isinstance(part, torch.Tensor) else [type(part).__name__, 0]
            shown = [str(item) for item in seen]
            expect_equal(case, shown, [str(item) for item in wanted], what=f"[dtype, elements] of {what}")
        whole, step = q.numpy().astype(np.float64).reshape(-1), float(scale.numpy().reshape(-1)[0])
        evidence = [whole, step]
        largest = float(np.abs(array).max())
        limit = 127.0 if largest else 0.0
        how = {"rtol": 0.0, "evidence": evidence}
        expect_close(case, np.abs(whole).max(), np.asarray(limit), what="the largest magnitude in q", **how)
        back = whole * step if largest else whole
        # Rounding to the nearest is off by half a step; the division in float32 by 1e-5 steps more.
        worst = float(np.abs(back - array).max())
        if not worst <= 0.5001 * step + 1e-12 * largest:
            fail(f"a number comes back {worst:.3g} off, half of the scale is {step / 2:.3g}", case, evidence)
        expect_unchanged(case, array, x.numpy(), what="x")


def _drive(rank, world_size, all_reduce_int8, grads) -> dict:
    """Inside a rank: the mean of one gradient after the other; whether a gradient was changed."""
    means, changed = [], []
    for step, grad in enumerate(grads[rank]):
        given = torch.from_numpy(grad.copy())
        mean = all_reduce_int8(given)
        means.append(mean.detach().numpy().copy() if isinstance(mean, torch.Tensor) else None)
        if not np.array_equal(given.numpy(), grad):
            changed.append(step)
    dist.barrier()
    return {"means": means, "changed": changed}


def _rounded(chunk: np.ndarray) -> np.ndarray:
    """A chunk in float64, as it comes back from eight bits."""
    largest = np.abs(chunk).max(initial=0.0)
    return np.rint(chunk * (127 / largest)) * (largest / 127) if largest else chunk


def _expected(grads: np.ndarray) -> np.ndarray:
    """The mean of gradients [rank, entry], with each chunk rounded before and after the sum."""
    chunks = grads.astype(np.float64).reshape(len(grads), len(grads), -1)
    means = [np.mean([_rounded(mine[owner]) for mine in chunks], axis=0) for owner in range(len(grads))]
    return np.concatenate([_rounded(mean) for mean in means])


def _grads(rng: np.random.Generator, world_size: int, numel: int) -> np.ndarray:
    """Gradients [rank, step, entry] whose chunks differ in size by powers of ten; the last one has a chunk of zeros."""
    sizes = 10.0 ** rng.integers(-3, 3, size=(world_size, 3, world_size, 1))
    grads = rng.normal(size=(world_size, 3, world_size, numel // world_size)) * sizes
    grads[:, 2, 0] = 0.0
    return grads.reshape(world_size, 3, numel).astype(np.float32)


@check("07-ex4-int8", points=2)
def int8_mean_follows_one_process(all_reduce_int8, *, rng):
    """The mean is that of one process that rounds each chunk to eight bits before the sum and after it."""
    for world_size, numel in [(2, 64), (3, 48), (1, 16)]:
        case = f"{count_of_ranks(world_size)}, {numel} entries"
        grads = _grads(rng, world_size, numel)
        results = run_ranks(_drive, world_size, (all_reduce_int8, grads))
        _expect_means(case, results, grads, forgiven=1)


def _expect_means(case: str, results: list, grads: np.ndarray, forgiven: int) -> None:
    """forgiven: entries of a mean that may be off by a step, in the middle between two as float32 rounds."""
    numel, world_size = grads.shape[-1], len(grads)
    for rank, result in each_rank(case, results, evidence=lambda result: result["means"]):
        rank.expect(not result["changed"], "the gradient that was passed was changed: work on a copy", "changed")
        for step, mean in enumerate(result["means"]):
            kind = "no tensor" if mean is None else f"{mean.dtype} of shape {mean.shape}"
            wanted = f"float32 of shape {(numel,)}"
            rank.expect(kind == wanted, f"the mean is {kind}, expected {wanted}", ["kind", kind])
            rank.expect(np.isfinite(mean).all(), "the mean contains nan or inf", ["not finite", mean])
            _expect_chunks(rank, mean, _expected(grads[:, step]), world_size, step, forgiven)


def _expect_chunks(rank, mean: np.ndarray, expected: np.ndarray, world_size: int, step: int, most: int) -> None:
    off = 0
    for number, (got, right) in enumerate(zip(np.split(mean, world_size), np.split(expected, world_size), strict=True)):
        largest = np.abs(right).max()
        wrong = np.abs(got - right) > 1e-4 * largest / 127
        off += int(wrong.sum())
        forgiven = off <= most and not (np.abs(got - right) > 1.01 * largest / 127).any()
        if wrong.any() and not forgiven:
            what = f"chunk {number} of the mean of gradient {step}"
            rank.expect_close(got, right, what=what, rtol=1e-6)


@check("07-ex4-int8", points=1)
def int8_sends_bytes(all_reduce_int8, *, rng):
    """At most P + 4N bytes of a rank go into all-to-alls, P/N + 4 into all-gathers, and nothing else is called."""
    for world_size, numel in [(2, 2048), (3, 3000)]:
        case = f"{count_of_ranks(world_size)}, {numel} entries"
        grads = _grads(rng, world_size, numel)
        results = run_ranks(_drive, world_size, (all_reduce_int8, grads))
        # The means must be right, too: else an answer could send nothing. One entry in a thousand lies in the middle.
        _expect_means(case, results, grads, forgiven=max(2, numel // 500))
        most = {"all-gathers": 3 * (numel // world_size + 4), "all-to-alls": 3 * (numel + 4 * world_size)}
        calls = [[m for m in results.ledger.of(number) if m.call != "barrier"] for number in range(world_size)]
        sent = [[_spent(mine), sorted({m.call for m in mine})] for mine in calls]
        for rank, (spent, names) in each_rank(case, sent):
            others = [name for name in names if name not in _EXCHANGES]
            rank.expect(not others, f"{', '.join(others)} was called, only all-to-alls and all-gathers are allowed")
            for kind, enough in most.items():
                put = f"{spent[kind]} bytes were put into {kind} for 3 gradients"
                rank.expect(spent[kind] <= enough, f"{put}, {enough} are enough")


def _spent(messages: list) -> dict[str, int]:
    """How many bytes a rank put into each kind of collective."""
    gathers = sum(m.bytes for m in messages if m.call in GATHERS)
    return {"all-gathers": gathers, "all-to-alls": sum(m.bytes for m in messages) - gathers}
