"""Exercise 6: the tokens of a rank, and the loss of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import between_barriers, count_of_ranks, each_rank, expect_equal, fail
from autograder.checking.stage import run_ranks

LOSS = "13-ex6-loss"
IGNORED = -100


@check(LOSS, points=0.5)
def targets_are_the_next_tokens(cut_batch, *, rng):
    """x holds the tokens at this rank's positions, y the tokens after them, for any positions, or none."""
    tokens = rng.integers(0, 99, (3, 14))
    for where in ([0, 1, 2], [12], [], sorted(rng.choice(13, 5, replace=False).tolist()), [7, 2, 11]):
        case = f"positions {where}"
        got = cut_batch(torch.from_numpy(tokens.copy()), torch.tensor(where, dtype=torch.int64))
        if not (isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(t, torch.Tensor) for t in got)):
            fail("cut_batch should return two tensors (x, y)", case, type(got).__name__)
        kinds = [str(t.dtype)[6:] for t in got]
        expect_equal(case, kinds, ["int64"] * 2, what="the list of the dtypes of x and y")
        expect_equal(case, got[0].tolist(), tokens[:, where].tolist(), what="x")
        expect_equal(case, got[1].tolist(), tokens[:, [w + 1 for w in where]].tolist(), what="y")


@dataclass(frozen=True)
class Case:
    """logits[r] (B, L_r, V) and y[r] (B, L_r) of each rank. trained: do the logits ask for a gradient?"""

    name: str
    logits: list[np.ndarray]
    y: list[np.ndarray]
    dtype: str
    trained: bool = True

    def wanted(self) -> tuple[float, list[np.ndarray]]:
        """The mean over all counted tokens, and each rank's part of its gradient: softmax minus target, over all."""
        count = sum(int((y != IGNORED).sum()) for y in self.y)
        total, grads = 0.0, []
        for logits, y in zip(self.logits, self.y, strict=True):
            logits = torch.from_numpy(logits).to(getattr(torch, self.dtype)).double().numpy()
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True)) if logits.size else logits
            shares = powers / powers.sum(axis=-1, keepdims=True) if logits.size else logits
            grad = np.zeros(logits.shape)
            for place in zip(*np.nonzero(y != IGNORED), strict=True):
                total -= float(np.log(shares[place][y[place]]))
                grad[place] = shares[place] / count
                grad[place][y[place]] -= 1 / count
            grads.append(grad)
        return total / count, grads


def _case(rng: np.random.Generator, sizes: tuple[int, ...], dtype: str, masked: tuple[int, ...], words: str) -> Case:
    logits = [2 * rng.standard_normal((2, n, 5)) for n in sizes]
    y = [np.where(rng.random((2, n)) < 0.3, IGNORED, rng.integers(0, 5, (2, n))) for n in sizes]
    for rank, mine in enumerate(y):
        if rank in masked:
            mine[:] = IGNORED
        elif mine.size:
            mine.flat[0], mine.flat[-1] = 1, IGNORED
    return Case(f"{count_of_ranks(len(sizes))}, tokens {list(sizes)}, {dtype}{words}", logits, y, dtype)


def _cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    sizes = (4, 1, 6, 3)[:world_size]
    cases = [_case(rng, sizes, "float64", (), ""), _case(rng, sizes, "float32", (), "")]
    if world_size > 1:
        last = world_size - 1
        cases.append(_case(rng, sizes, "float64", (last,), f", none of rank {last} counts"))
        cases.append(_case(rng, (*sizes[:-1], 0), "float64", (), ""))
        cases.append(replace(_case(rng, sizes, "float64", (), ", logits without a gradient"), trained=False))
    return cases


def _drive(rank: int, world_size: int, sequence_loss: Any, cases: list[Case]) -> list[Any]:
    """Inside a rank: the loss and the gradient of the logits, with barriers before forward and backward."""
    seen: list[Any] = []
    for case in cases:
        logits = torch.from_numpy(case.logits[rank].copy()).to(getattr(torch, case.dtype)).requires_grad_(case.trained)
        y = torch.from_numpy(case.y[rank].copy())
        dist.barrier()
        try:
            loss = sequence_loss(logits, y)
        except ValueError as error:
            dist.barrier()
            seen.append(str(error))
            continue
        dist.barrier()
        if not isinstance(loss, torch.Tensor):
            seen.append((type(loss).__name__, [], 0.0, None))
            continue
        if loss.requires_grad and loss.dim() == 0:
            loss.backward()
        number = float(loss.detach()) if loss.numel() == 1 else float("nan")
        grad = None if logits.grad is None else logits.grad.double().numpy().copy()
        seen.append(("Tensor", list(loss.shape), number, grad))
    dist.barrier()
    return seen


@check(LOSS, points=1)
def the_loss_is_that_of_one_process(sequence_loss, *, rng):
    """On every rank the mean over all ranks' counted tokens; each rank's logits get their part of its gradient."""
    for world_size in (1, 2, 3, 4):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (sequence_loss, cases))
        for c, case in enumerate(cases):
            _expect_numbers(case, [mine[c] for mine in results])


def _plain(one: Any) -> Any:
    """Evidence: the text of a ValueError, or what was returned: its type, shape, number and gradient."""
    return one if isinstance(one, str) else [*one[:3], "None" if one[3] is None else one[3]]


def _expect_numbers(case: Case, outcomes: list) -> None:
    """Each rank's loss and gradient are those of one process."""
    mean, grads = case.wanted()
    rtol = 5e-6 if case.dtype == "float32" else 1e-12
    for rank, one in each_rank(case.name, outcomes, evidence=_plain):
        rank.expect(not isinstance(one, str), f"raised a ValueError: {one}")
        rank.expect(one[0] == "Tensor" and one[1] == [], f"expected a scalar tensor, got {one[0]} {one[1]}")
        rank.expect_close(np.array(one[2]), np.array(mean), what="the loss", rtol=rtol)
        if case.logits[rank.rank].size and case.trained:
            rank.expect(one[3] is not None, "no gradient reaches the logits")
            rank.expect_close(one[3], grads[rank.rank], what="the gradient of the logits", rtol=0.0, atol=rtol)


@check(LOSS, points=0.25)
def two_numbers_are_all_reduced(sequence_loss, *, rng):
    """The forward pass sends only all-reduces, of two numbers in all; the backward pass sends nothing."""
    for world_size in (2, 3):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (sequence_loss, cases))
        parts = between_barriers(results, world_size, 2 * len(cases) + 1, "expected all-reduces only")
        for c, case in enumerate(cases):
            forward = [[(m.call, m.bytes) for m in mine[2 * c + 1]] for mine in parts]
            for rank, mine in each_rank(f"{case.name}, forward", forward):
                other = [call for call, _ in mine if call != "all_reduce"]
                rank.expect(not other, f"{(other or [''])[0]} was called, expected all-reduces only")
                number = sum(n for _, n in mine)
                rank.expect(number <= 16, f"{number} bytes were put into all-reduces, expected two numbers")
            backward = [[m.call for m in mine[2 * c + 2]] for mine in parts]
            for rank, mine in each_rank(f"{case.name}, backward", backward):
                rank.expect(not mine, f"backward called {mine}, expected no message")
            _expect_numbers(case, [mine[c] for mine in results])


@check(LOSS, points=0.25)
def a_batch_without_targets_is_refused(sequence_loss, *, rng):
    """If no token counts on any rank, every rank raises a ValueError that names y."""
    for world_size in (3, 1):  # several ranks show which rank does not take part
        sizes = (2, 3, 0)[:world_size]
        case = _case(rng, sizes, "float64", tuple(range(world_size)), ", none counts")
        good = _case(rng, sizes, "float64", tuple(range(1, world_size)), ", those of rank 0 count alone")
        results = run_ranks(_drive, world_size, (sequence_loss, [case, good, case]))
        for number in (0, 2):
            # What an answer does with the good case tells apart two mistakes that both raise nothing.
            pairs = [(mine[number], _plain(mine[1])) for mine in results]
            for rank, (one, _) in each_rank(case.name, pairs, evidence=lambda p: [isinstance(p[0], str), p[1]]):
                rank.expect(isinstance(one, str), "raised nothing, expected a ValueError that names y")
                named = any(word.strip("'\"`.,:;()") == "y" for word in str(one).split())
                rank.expect(named, f"the ValueError should name 'y', but it says {one!r}")
        _expect_numbers(good, [mine[1] for mine in results])
