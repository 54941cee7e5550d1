"""Exercise 7: shards within a group of ranks, copies between groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import caught, ceil_div, collective, count_of_ranks, each_rank
from autograder.checking.inputs import eighths
from autograder.checking.stage import run_ranks

HYBRID = "09-ex7-hybrid"
#: (ranks, size): shard groups and copy groups of different sizes; shards on one rank, and on all.
WORLDS = ((6, 2), (6, 3), (4, 1), (3, 3), (1, 1))


@dataclass
class Gradients:
    """The flat gradients of a unit, one a rank: multiples of 1/8, so that their sums are exact."""

    name: str
    of: list[np.ndarray]


def _cases(rng: np.random.Generator, world_size: int, size: int) -> list[Gradients]:
    """Lengths that `size` divides, that it does not, and that are smaller than it."""
    where = f"{count_of_ranks(world_size)}, size = {size}"
    lengths = {2 * size, 5 * size + 1, max(1, size - 1), int(rng.integers(6, 40))}
    return [
        Gradients(f"{where}, {length} numbers", [eighths(rng, (length,), limit=64) for _ in range(world_size)])
        for length in sorted(lengths)
    ]


def _members(rank: int, world_size: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks of this rank's shard group, and of its copy group."""
    first = rank // size * size
    return tuple(range(first, first + size)), tuple(range(rank % size, world_size, size))


def _drive(rank: int, world_size: int, functions: tuple, size: int, cases: list[Gradients]) -> dict[str, Any]:
    """Inside a rank: the groups, and each gradient reduced between barriers."""
    make, reduce = functions
    shard_group, copy_group = make(size)
    members = [sorted(dist.get_process_group_ranks(group)) for group in (shard_group, copy_group)]
    seen = []
    for case in cases:
        gradient = torch.tensor(case.of[rank], dtype=torch.float32)
        before = gradient.clone()
        dist.barrier()
        shard = reduce(gradient, shard_group, copy_group)
        seen.append((shard.detach().numpy().copy(), str(shard.dtype)[6:], bool(torch.equal(gradient, before))))
    dist.barrier()
    return {"members": members, "seen": seen}


def _shard(case: Gradients, rank: int, size: int) -> np.ndarray:
    """This rank's piece of the mean over all ranks, padded with zeros."""
    mean = np.mean([one.astype(np.float64) for one in case.of], axis=0)
    length = ceil_div(len(mean), size)
    padded = np.concatenate([mean, np.zeros(size * length - len(mean))])
    return padded[rank % size * length :][:length]


@check(HYBRID, points=1)
def hybrid_shards_are_the_mean_over_all_ranks(hybrid_groups, hybrid_reduce, *, rng):
    """Groups are right, and each rank gets its shard of the mean over all ranks; the given gradient is not changed."""
    for world_size, size in WORLDS:
        cases = _cases(rng, world_size, size)
        results = run_ranks(_drive, world_size, ((hybrid_groups, hybrid_reduce), size, cases))
        where = f"{count_of_ranks(world_size)}, size = {size}"
        for rank, mine in each_rank(where, results, evidence=lambda one: one["members"]):
            inside, across = _members(rank.rank, world_size, size)
            rank.expect_equal(mine["members"][0], list(inside), what="the list of members of its shard group")
            rank.expect_equal(mine["members"][1], list(across), what="the list of members of its copy group")
        for number, case in enumerate(cases):
            _expect_shards(case, size, [mine["seen"][number] for mine in results])


def _expect_shards(case: Gradients, size: int, outcomes: list) -> None:
    """Each rank got its shard of the mean, and its gradient stays as it was."""
    for rank, (got, dtype, same) in each_rank(case.name, outcomes, evidence=lambda one: one[0]):
        rank.expect_equal(dtype, "float32", what="the dtype of the shard")
        rank.expect_close(got.astype(float), _shard(case, rank.rank, size), what="the shard", rtol=1e-6, atol=1e-6)
        rank.expect(same, "gradient was changed in place")


@check(HYBRID, points=0.5)
def only_shards_pass_between_copies(hybrid_groups, hybrid_reduce, *, rng):
    """One reduce-scatter of the padded gradient over the shard group, then one all-reduce of the shard, no more."""
    for world_size, size in WORLDS[:2]:
        cases = _cases(rng, world_size, size)
        results = run_ranks(_drive, world_size, ((hybrid_groups, hybrid_reduce), size, cases))
        parts = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for number, case in enumerate(cases):
            calls = [[(collective(m.call), m.bytes, m.group) for m in mine[number + 1]] for mine in parts]
            each = 4 * ceil_div(len(case.of[0]), size)
            for rank, mine in each_rank(
                case.name, calls, evidence=lambda one: [[kind, count, list(group or ())] for kind, count, group in one]
            ):
                inside, across = _members(rank.rank, world_size, size)
                names = {inside: "the shard group", across: "the copy group"}
                got = [
                    f"{kind} of {nbytes} bytes over {names.get(where, 'other ranks')}" for kind, nbytes, where in mine
                ]
                want = [
                    f"reduce_scatter of {size * each} bytes over the shard group",
                    f"all_reduce of {each} bytes over the copy group",
                ]
                rank.expect_equal(got, want, what="the list of collectives")
            _expect_shards(case, size, [mine["seen"][number] for mine in results])


def _drive_sizes(rank: int, world_size: int, make: Any, sizes: list[int]) -> list[str]:
    """Inside a rank: what is wrong with what was raised for each size, "" for nothing.

    No group is really made: it would wait for ranks on which an answer has raised.
    """
    said, made, original = [], [], dist.new_group

    def new_group(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return dist.group.WORLD

    dist.new_group = new_group
    try:
        for size in sizes:
            made.clear()
            kind, text = caught(make, size)
            if world_size % max(size, 1) or size < 1:
                said.append(_refusal(kind, text, bool(made)))
            else:
                said.append(kind and f"raised {kind}: {text}")
    finally:
        dist.new_group = original
    return said


def _refusal(kind: str, text: str, too_late: bool) -> str:
    """What is wrong with an error, by its name and text; "" for a ValueError in time that names size."""
    if kind != "ValueError":
        return f"raised {kind}: {text}" if kind else "raised nothing"
    if too_late:
        return "raised a ValueError after a group was made"
    return "" if "size" in text else f"raised a ValueError that does not name size: {text}"


@check(HYBRID, points=0.5, fixed=REFUSALS)
def sizes_that_do_not_divide_are_refused(hybrid_groups):
    """A `size` below 1, or that does not divide the ranks, is a ValueError that names it, before any group is made."""
    sizes = [3, 0, 4, -2, 8]
    results = run_ranks(_drive_sizes, 4, (hybrid_groups, sizes))
    for number, size in enumerate(sizes):
        for rank, mine in each_rank(f"4 ranks, size = {size}", results, evidence=lambda one, n=number: one[n]):
            wanted = "no error" if size == 4 else "a ValueError that names size"
            rank.expect(not mine[number], f"hybrid_groups {mine[number]}, expected {wanted}")
