"""Exercise 3: an all-reduce in two levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import between_barriers, collective, each_rank
from autograder.checking.stage import run_ranks

LEVELS = "15-ex3-two-levels"


@dataclass(frozen=True)
class Case:
    """One call. inputs[r]: what rank r brings. layout: "", or "transposed" for a tensor that is not contiguous."""

    name: str
    inputs: list[np.ndarray]
    layout: str = ""


def _cases(rng: np.random.Generator, inner: int, outer: int) -> list[Case]:
    mesh = f"{outer} nodes of {inner}"

    def drawn(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
        return [rng.integers(-(2**20), 2**20, shape).astype(dtype) for _ in range(inner * outer)]

    cases = [
        Case(f"{mesh}, {n} numbers, {dtype}", drawn((n,), dtype))
        for n, dtype in ((12, "float32"), (7, "float32"), (2, "float32"), (1, "float64"), (5, "int64"))
    ]
    huge = [one * 2**40 + int(rng.integers(99)) for one in drawn((5,), "int64")]
    return [
        *cases,
        Case(f"{mesh}, large int64 numbers", huge),
        Case(f"{mesh}, 2 × 3 numbers", drawn((2, 3), "float32")),
        Case(f"{mesh}, 3 × 4 numbers, transposed", drawn((3, 4), "float32"), "transposed"),
        Case(f"{mesh}, a number without a dimension", drawn((), "float32")),
    ]


def _drive(rank: int, world_size: int, function: Any, inner: int, cases: list[Case]) -> list[Any]:
    """Inside a rank: one call for each case, between barriers; what the tensor holds afterwards."""
    groups = []
    for members in (
        *(list(range(start, start + inner)) for start in range(0, world_size, inner)),
        *(list(range(place, world_size, inner)) for place in range(inner)),
    ):
        group = dist.new_group(members)
        if rank in members:
            groups.append(group)
    seen = []
    for case in cases:
        tensor = torch.from_numpy(np.array(case.inputs[rank]))
        if case.layout:
            tensor = tensor.t().contiguous().t()
        before = tensor.detach()  # the same memory
        dist.barrier()
        function(tensor, groups[0], groups[1])
        moved = tensor.data_ptr() != before.data_ptr()
        seen.append((str(tensor.dtype)[6:], tensor.numpy().copy(), moved))
    dist.barrier()
    return seen


@check(LEVELS, points=1.75)
def both_levels_add_up(two_level_all_reduce, *, rng):
    """Every rank's tensor becomes the sum over all ranks, in place, for any shape, layout, length and dtype."""
    for outer, inner in ((2, 2), (3, 2), (2, 3), (1, 4), (4, 1)):
        cases = _cases(rng, inner, outer)
        results = run_ranks(_drive, inner * outer, (two_level_all_reduce, inner, cases))
        for c, case in enumerate(cases):
            _expect_sums(case, [mine[c] for mine in results])


def _expect_sums(case: Case, outcomes: list) -> None:
    """Each rank's tensor is the sum, in the memory that it had."""
    want = np.sum([one.astype("int64") for one in case.inputs], axis=0)
    for rank, (dtype, got, moved) in each_rank(case.name, outcomes, evidence=lambda one: [one[1], one[2]]):
        rank.expect(not moved, "the tensor has other memory than before: write into the memory that it had")
        rank.expect_equal(dtype, str(case.inputs[0].dtype), what="the dtype of the tensor")
        if dtype == "int64":
            rank.expect_equal(got.tolist(), want.tolist(), what="the tensor")
        rank.expect_close(got, want.astype(float), what="the tensor", rtol=1e-6)


@check(LEVELS, points=1.25)
def only_a_part_crosses_nodes(two_level_all_reduce, *, rng):
    """A rank makes a reduce-scatter and an all-gather over inner, an all-reduce of ⌈n/g⌉ over outer, nothing else."""
    for outer, inner in ((2, 2), (3, 2), (2, 3), (1, 4), (4, 1)):
        cases = _cases(rng, inner, outer)
        results = run_ranks(_drive, inner * outer, (two_level_all_reduce, inner, cases))
        nodes = f"{outer} nodes of {inner}"
        parts = between_barriers(results, inner * outer, len(cases) + 1, "which no step needs", nodes)
        for c, case in enumerate(cases):
            each = -(-case.inputs[0].size // inner) * case.inputs[0].dtype.itemsize
            calls = [[(collective(m.call), m.bytes, m.group) for m in mine[c + 1]] for mine in parts]
            for rank, mine in each_rank(case.name, calls, evidence=lambda one: [list(call[:2]) for call in one]):
                start = rank.rank // inner * inner
                node = tuple(range(start, start + inner))
                across = tuple(range(rank.rank % inner, inner * outer, inner))
                for kind, nbytes, members in mine:
                    where = "inner" if members == node else "outer" if members == across else "neither inner nor outer"
                    size = {("reduce_scatter", "inner"): inner * each, ("all_reduce", "outer"): each,
                            ("all_gather", "inner"): each}.get((kind, where))  # fmt: skip
                    rank.expect(size is not None, f"{kind} was called over {where}, which no step needs")
                    rank.expect(nbytes == size, f"{nbytes} bytes were put into {kind} over {where}, expected {size}")
                least = 2 * (inner > 1) + (outer > 1)  # a group of one may be left out
                text = f"{len(mine)} collectives were called, expected 3"
                rank.expect(least <= len(mine) <= 3 and len(set(mine)) == len(mine), text)
            _expect_sums(case, [mine[c] for mine in results])
