"""Exercise 7: the loss from logits of which every rank has some columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, fail
from autograder.checking.stage import run_ranks
from autograder.checks.tensor.compare import WORLD_SIZES, as_float64, differences, expect_near, own_part, stretches
from autograder.checks.tensor.layers import BOUNDS

#: Numbers that may be sent for each token: a maximum, a sum, the target's logit, and one to spare.
MOST = 4


@dataclass
class Tokens:
    """Whole logits (n, V) and targets (n,), and the gradient that comes back to the loss.

    columns: does each rank's part lie in memory column by column?
    """

    name: str
    logits: np.ndarray
    targets: np.ndarray
    upstream: float
    dtype: str = "float64"
    columns: bool = False


def _part(case: Tokens, rank: int, world_size: int) -> torch.Tensor:
    """This rank's columns, a leaf of autograd."""
    part = torch.tensor(own_part(case.logits, rank, world_size, 1), dtype=getattr(torch, case.dtype))
    return (part.t().contiguous().t() if case.columns else part).requires_grad_()


def _drive_loss(rank: int, world_size: int, vocabulary_parallel_loss: Any, cases: list[Tokens]) -> list[dict]:
    """Inside a rank: every case forward and backward, each between barriers."""
    seen = []
    for case in cases:
        logits, targets = _part(case, rank, world_size), torch.from_numpy(case.targets.copy())
        before = as_float64(logits)
        dist.barrier()
        loss = vocabulary_parallel_loss(logits, targets)
        dist.barrier()
        (loss * case.upstream).backward()
        dist.barrier()
        same = np.array_equal(as_float64(logits), before) and np.array_equal(targets.numpy(), case.targets)
        seen.append(
            {"arrays": {"the loss": as_float64(loss), "the gradient": as_float64(logits.grad)}, "stays": bool(same)}
        )
    return seen


def _oracle(case: Tokens) -> dict[str, np.ndarray]:
    """The mean cross entropy and the gradient of the whole logits, in float64, from the definition."""
    logits = case.logits.astype(np.float32 if case.dtype == "float32" else np.float64).astype(np.float64)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    tokens = np.arange(len(logits))
    logarithms = logits - logits.max(axis=1, keepdims=True) - np.log(exponentials.sum(axis=1, keepdims=True))
    gradient = probabilities.copy()
    gradient[tokens, case.targets] -= 1
    loss = -logarithms[tokens, case.targets].mean()
    return {"the loss": np.asarray(loss), "the gradient": gradient * case.upstream / len(logits)}


def _compare(vocabulary_parallel_loss: Any, make: Any) -> None:
    """Run the cases that `make` gives for each world size, and compare loss and gradient on every rank."""
    for world_size in WORLD_SIZES:
        cases = list(make(world_size))
        results = run_ranks(_drive_loss, world_size, (vocabulary_parallel_loss, cases))
        for number, case in enumerate(cases):
            name, seen = f"{count_of_ranks(world_size)}, {case.name}", [mine[number] for mine in results]
            _expect_numbers(case, name, seen)
            for rank, mine in each_rank(name, seen, evidence=lambda s: s["stays"]):
                if not mine["stays"]:
                    rank.fail("logits or targets were changed in place")


def _expect_numbers(case: Tokens, name: str, seen: list[dict]) -> None:
    """Loss and gradient on every rank are those of the whole logits."""
    world_size, want = len(seen), _oracle(case)
    losses = [mine["arrays"]["the loss"] for mine in seen]
    gradients = [mine["arrays"]["the gradient"] for mine in seen]
    # Both come from differences of numbers as large as the logits.
    bound = BOUNDS[case.dtype] * max(1.0, float(np.abs(case.logits).max()))
    scale = abs(case.upstream) / len(case.logits)
    pieces = [own_part(want["the gradient"], rank, world_size, 1) for rank in range(world_size)]
    for what, got, wants, size in (
        ("the loss on rank {}", losses, [want["the loss"]] * world_size, 1.0),
        ("the gradient of rank {}'s logits", gradients, pieces, scale),
    ):
        off = differences(got, wants, bound * size)
        for rank in range(world_size):
            expect_near(name, what.format(rank), got, rank, wants[rank], bound, size, evidence=off)
    if len({float(loss) for loss in losses}) > 1:
        fail("the ranks return different losses", name, losses)


def _upstream(rng: np.random.Generator) -> float:
    """A factor that is not 1, so that an answer that ignores it shows."""
    return float(rng.uniform(2, 4))


def _ordinary(rng: np.random.Generator, world_size: int) -> Iterator[Tokens]:
    """Logits of ordinary size: targets of every rank, all of one rank, one token, a column a rank, another layout."""
    width = 3
    vocabulary = world_size * width
    every = np.concatenate([np.arange(vocabulary), rng.integers(0, vocabulary, 3)])
    last = np.full(4, vocabulary - 1)
    for name, targets, columns, dtype, among in (
        ("targets on every rank", rng.permutation(every), False, "float64", vocabulary),
        ("all targets on the last rank", last, False, "float64", vocabulary),
        ("one token, its target on rank 0", np.zeros(1, dtype=np.int64), False, "float64", vocabulary),
        ("logits that lie in memory column by column", rng.permutation(every), True, "float64", vocabulary),
        ("float32", rng.permutation(every), False, "float32", vocabulary),
        ("one column a rank", rng.permutation(np.arange(world_size)), False, "float64", world_size),
    ):
        logits = rng.normal(0, 2, (len(targets), among))
        yield Tokens(f"{name}, {among} columns in all", logits, targets, _upstream(rng), dtype, columns)


def _large(rng: np.random.Generator, world_size: int) -> Iterator[Tokens]:
    """Logits whose exponentials overflow, or all vanish, if another number than the largest of all is subtracted."""
    vocabulary, n = 3 * world_size, 5
    for name, far in (("logits around 10,000", 1e4), ("logits around -10,000", -1e4)):
        logits = far + rng.normal(0, 2, (n, vocabulary))
        yield Tokens(name, logits, rng.integers(0, vocabulary, n), _upstream(rng))
    apart = rng.normal(0, 2, (n, vocabulary)) + np.repeat(np.linspace(-9e3, 9e3, world_size), 3)
    far = rng.permutation([1e4, -1e4, 0.0, 0.0, 3e3, 0.0])[:, None]
    each = far + rng.normal(0, 2, (6, vocabulary))
    yield Tokens(
        "tokens with logits around ±10,000 and around 0 in one batch",
        each,
        rng.integers(0, vocabulary, 6),
        _upstream(rng),
    )
    yield Tokens("logits from -9,000 on rank 0 to 9,000 on the last", apart, rng.integers(0, 3, n), _upstream(rng))


@check("12-ex7-loss", points=2)
def loss_equals_the_unsplit_one(vocabulary_parallel_loss, *, rng):
    """Every rank returns the same loss, the mean over the tokens, and each rank's logits get their gradient."""
    _compare(vocabulary_parallel_loss, lambda world_size: _ordinary(rng, world_size))


@check("12-ex7-loss", points=0.5)
def loss_stays_finite(vocabulary_parallel_loss, *, rng):
    """Loss and gradient are also right for logits around ±10,000, far apart on ranks, or next to small ones."""
    _compare(vocabulary_parallel_loss, lambda world_size: _large(rng, world_size))


@check("12-ex7-loss", points=0.5)
def loss_sends_a_few_numbers_a_token(vocabulary_parallel_loss, *, rng):
    """In forward only all-reduces are sent, of at most 4 numbers a token together; in backward nothing is sent."""
    for world_size in (2, 4):
        n, vocabulary = int(rng.integers(3, 7)), 16 * world_size
        logits, targets = rng.normal(0, 2, (n, vocabulary)), rng.integers(0, vocabulary, n)
        case = Tokens(f"{n} tokens, {vocabulary} columns in all", logits, targets, _upstream(rng))
        results = run_ranks(_drive_loss, world_size, (vocabulary_parallel_loss, [case]))
        name = f"{count_of_ranks(world_size)}, {case.name}"
        for rank, (mine,) in enumerate(stretches(results, world_size, 1, 3)):
            forward, backward = ([(m.call, m.bytes // 8) for m in part] for part in mine)
            for call, _ in forward:
                if call != "all_reduce":
                    fail(f"rank {rank} called {call}, where all-reduces are enough", name, forward)
            sent = sum(m.bytes for m in mine[0]) / 8
            if sent > MOST * n:
                fail(f"rank {rank} put {sent:g} numbers into all-reduces, expected at most {MOST * n}", name, forward)
            if backward:
                fail(f"in backward, rank {rank} sent {backward}, expected nothing", name, backward)
        _expect_numbers(case, name, [mine[0] for mine in results])
