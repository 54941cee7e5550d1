"""Exercise 5: positions exchanged for heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import record_function

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import between_barriers, caught, count_of_ranks, each_rank
from autograder.checking.stage import run_ranks
from autograder.checks.context.blocks import RTOL
from autograder.checks.context.layouts import positions
from autograder.checks.context.ring import Case as Sequence
from autograder.checks.context.ring import _whole as whole_of

EXCHANGE = "13-ex5-exchange"


@dataclass(frozen=True)
class Case:
    """One exchange. x[r] and back[r]: rank r's tensor and the gradient of what it gets, whole numbers."""

    name: str
    x: list[np.ndarray]
    dims: tuple[int, int]
    dtype: str
    layout: str = ""

    def got(self, arrays: list[np.ndarray], dims: tuple[int, int]) -> list[np.ndarray]:
        """What each rank should get of these arrays."""
        world_size = len(arrays)
        pieces = [np.split(array, world_size, axis=dims[0]) for array in arrays]
        return [np.concatenate([pieces[s][r] for s in range(world_size)], axis=dims[1]) for r in range(world_size)]


def _cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    n = world_size
    kinds = [
        ((2, 2 * n, 3, 2), (1, 2), "float64", ""),
        ((2, 2, 3 * n, 2), (2, 1), "float32", ""),
        ((2, n, 3, 2), (1, 3), "bfloat16", "transposed"),
        ((n, 3), (0, 1), "float64", "expanded"),
        ((2, 3, 2 * n), (-1, 0), "float32", ""),
        ((2, 2 * n, 3), (1, 1), "float64", ""),
    ]
    found = []
    for shape, dims, dtype, layout in kinds:
        x = [rng.integers(-99, 100, shape).astype(float) for _ in range(n)]
        words = f"{count_of_ranks(n)}, shape {shape}, scatter_dim {dims[0]}, gather_dim {dims[1]}, {dtype}"
        found.append(Case(words + (f", {layout}" if layout else ""), x, dims, dtype, layout))
    return found


def _laid_out(array: np.ndarray, dtype: str, layout: str) -> torch.Tensor:
    x = torch.from_numpy(array.copy()).to(getattr(torch, dtype))
    if layout == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    return x[..., :1].expand(x.shape) if layout == "expanded" else x


def _expanded(array: np.ndarray, layout: str) -> np.ndarray:
    return np.broadcast_to(array[..., :1], array.shape) if layout == "expanded" else array


def _drive(rank: int, world_size: int, function: Any, cases: list[Case], backs: list[list[np.ndarray]]) -> list[Any]:
    """Inside a rank, for each case: an exchange, and its backward twice, with a barrier before each."""
    seen = []
    for case, back in zip(cases, backs, strict=True):
        x = _laid_out(case.x[rank], case.dtype, case.layout).detach().requires_grad_()
        dist.barrier()
        y = function.apply(x, *case.dims)
        dist.barrier()
        grad = _laid_out(back[rank], case.dtype, "" if case.layout == "expanded" else case.layout)
        y.backward(grad, retain_graph=True)
        found, kinds = [y, x.grad], [str(t.dtype)[6:] for t in (y, x.grad)]
        dist.barrier()
        x.grad = None
        error, _ = caught(lambda y=y, grad=grad: y.backward(grad, retain_graph=True))
        found += [x.grad] if x.grad is not None else []
        seen.append((kinds, [t.detach().double().numpy().copy() for t in found], error))
    dist.barrier()
    return seen


def _backs(rng: np.random.Generator, cases: list[Case]) -> list[list[np.ndarray]]:
    return [[rng.integers(-99, 100, y.shape).astype(float) for y in case.got(case.x, case.dims)] for case in cases]


@check(EXCHANGE, points=1.5)
def parts_go_to_their_ranks_and_back(Exchange, *, rng):
    """Rank d gets part d of every rank, in the order of the ranks; backward gives gradients to their owners."""
    for world_size in (1, 2, 3, 4):
        cases = _cases(rng, world_size)
        backs = _backs(rng, cases)
        results = run_ranks(_drive, world_size, (Exchange, cases, backs))
        for c, (case, back) in enumerate(zip(cases, backs, strict=True)):
            _expect_parts(case, back, [mine[c] for mine in results])


def _expect_parts(case: Case, back: list[np.ndarray], outcomes: list) -> None:
    """Each rank got its parts, and the gradients of what it had."""
    wanted = case.got([_expanded(x, case.layout) for x in case.x], case.dims)
    owners = case.got(back, case.dims[::-1])
    for rank, (kinds, numbers, error) in each_rank(case.name, outcomes, evidence=lambda one: one[1:]):
        rank.expect_equal(kinds, [case.dtype] * 2, what="the list of the dtypes of the result and the gradient")
        rank.expect_close(numbers[0], wanted[rank.rank], what="the result", rtol=0.0)
        rank.expect_close(numbers[1], owners[rank.rank], what="the gradient of x", rtol=0.0)
        rank.expect(not error and len(numbers) == 3, f"a second backward raised {error or 'nothing and gave nothing'}")
        rank.expect_close(numbers[2], owners[rank.rank], what="the gradient of x in a second backward", rtol=0.0)


def _drive_attention(rank: int, world_size: int, function: Any, cases: list[Sequence]) -> list[Any]:
    """Inside a rank: out and the gradients of q, k and v, with barriers before forward and backward."""
    seen = []
    for case in cases:
        *parts, grad = case.mine(rank)
        parts = [part.detach().requires_grad_() for part in parts]
        dist.barrier()
        out = function(*parts, case.positions())
        dist.barrier()
        if out.requires_grad:
            out.backward(grad)
        found = [out, *(part.grad for part in parts)]
        seen.append([None if t is None else t.detach().double().numpy().copy() for t in found])
    dist.barrier()
    return seen


def _sequences(rng: np.random.Generator, world_size: int) -> list[Sequence]:
    name = count_of_ranks(world_size)
    cases = []
    for layout, dtype in (("contiguous", "float64"), ("zigzag", "float64"), ("striped", "float32")):
        shards = positions(16, world_size, layout)
        words = f"{name}, 16 positions, {layout}, 4 heads, {dtype}"
        cases.append(Sequence(words, shards, whole_of(rng, 16, (2, 4, 3)), dtype, strided=layout == "zigzag"))
    return cases


@check(EXCHANGE, points=1)
def heads_are_exchanged_for_positions(ulysses_attention, *, rng):
    """out, and the gradients of q, k and v, are those of one process with the whole sequence, in every layout."""
    for world_size in (1, 2, 4):
        cases = _sequences(rng, world_size)
        results = run_ranks(_drive_attention, world_size, (ulysses_attention, cases))
        for c, case in enumerate(cases):
            out, _ = case.forward()
            wanted = [out, *case.gradients()]
            evidence = [["None" if t is None else t for t in mine[c]] for mine in results]
            for rank, one in each_rank(case.name, [mine[c] for mine in results], evidence=lambda _, e=evidence: e):
                where = case.shards[rank.rank]
                for name, got, want in zip(("out", "dq", "dk", "dv"), one, wanted, strict=True):
                    rank.expect(got is not None, f"no gradient reaches {name[1:]}")
                    scale = max(1.0, float(np.abs(want).max()))
                    rank.expect_close(got, want[:, :, where], what=name, rtol=0.0, atol=4 * RTOL[case.dtype] * scale)


@check(EXCHANGE, points=0.25)
def one_all_to_all_for_each_tensor(Exchange, ulysses_attention, *, rng):
    """Exchange makes one all-to-all of x's numbers each way; attention exchanges q, k, v and out, and nothing else."""
    for world_size in (2, 4):
        cases = _cases(rng, world_size)
        backs = _backs(rng, cases)
        results = run_ranks(_drive, world_size, (Exchange, cases, backs))
        parts = between_barriers(results, world_size, 3 * len(cases) + 1, "expected all-to-alls only")
        for c, case in enumerate(cases):
            nbytes = case.x[0].size * getattr(torch, case.dtype).itemsize
            for place, way in ((3 * c + 1, "forward"), (3 * c + 2, "backward")):
                _expect_exchanges(f"{case.name}, {way}", [part[place] for part in parts], nbytes, 1)
            _expect_parts(case, backs[c], [mine[c] for mine in results])
        sequences = _sequences(rng, world_size)
        results = run_ranks(_drive_attention, world_size, (ulysses_attention, sequences))
        parts = between_barriers(results, world_size, 2 * len(sequences) + 1, "expected all-to-alls only")
        for c, case in enumerate(sequences):
            nbytes = 4 * case.mine(0)[0].numel() * getattr(torch, case.dtype).itemsize
            for place, way in ((2 * c + 1, "forward"), (2 * c + 2, "backward")):
                _expect_exchanges(f"{case.name}, {way}", [part[place] for part in parts], nbytes, 4)


def _expect_exchanges(case: str, stretch: list[list], nbytes: int, most: int) -> None:
    """In one stretch of each rank: at most `most` all-to-alls, of `nbytes` bytes in total, and nothing else."""
    for rank, mine in each_rank(case, [[(m.call, m.bytes) for m in part] for part in stretch]):
        other = [call for call, _ in mine if not call.startswith("all_to_all")]
        rank.expect(not other, f"{(other or [''])[0]} was called, expected all-to-alls only")
        rank.expect(len(mine) <= most, f"{len(mine)} all-to-alls were made, expected at most {most}")
        rank.expect_equal(sum(n for _, n in mine), nbytes, what="the number of bytes put into all-to-alls")


#: Calls by 2 ranks → what the ValueError names; "" for those in which nothing is wrong.
REFUSED = {
    "a size of 3, scatter_dim 0": "scatter_dim",
    "a size of 2, scatter_dim 0": "",
    "a size of 5, scatter_dim -1": "scatter_dim",
    "2 heads": "",
    "3 heads": "heads",
}


def _drive_refused(rank: int, world_size: int, exchange: Any, attention: Any) -> list[tuple[str, str]]:
    """Inside a rank: (kind, text) of what each call of `REFUSED` raises; the ledger has a stretch for each."""
    three, two = torch.zeros(1, 3, 2, 4), torch.zeros(1, 2, 2, 4)
    shards = [torch.arange(2) + 2 * r for r in range(world_size)]
    calls = (
        (exchange.apply, torch.zeros(3, 4), 0, 1),
        (exchange.apply, torch.zeros(2, 5), 0, 1),
        (exchange.apply, torch.zeros(4, 5), -1, 0),
        (attention, two, two, two, shards),
        (attention, three, three, three, shards),
    )
    found = []
    for name, (function, *arguments) in zip(REFUSED, calls, strict=True):
        with record_function(name):
            found.append(caught(function, *arguments))
    return found


@check(EXCHANGE, points=0.25, fixed=REFUSALS)
def what_cannot_be_shared_is_refused(Exchange, ulysses_attention):
    """A size that N does not divide raises a ValueError that names scatter_dim, or heads; nothing is sent before."""
    results = run_ranks(_drive_refused, 2, (Exchange, ulysses_attention))
    for c, (name, word) in enumerate(REFUSED.items()):
        sent = [len(results.ledger.of(rank).within(name)) for rank in range(2)]
        pairs = [(*mine[c], number) for mine, number in zip(results, sent, strict=True)]
        for rank, (kind, text, messages) in each_rank(f"2 ranks, {name}", pairs):
            if not word:
                rank.expect(not kind, f"raised {kind}: {text}, expected no error", raised=kind)
                continue
            rank.expect(kind == "ValueError", f"raised {kind or 'nothing'}, expected a ValueError that names {word}")
            rank.expect(word in text, f"the ValueError should name {word!r}, but it says {text!r}")
            rank.expect(not messages, "called a collective before the ValueError")
