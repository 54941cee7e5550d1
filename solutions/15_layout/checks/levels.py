"""Exercise 3: an all-reduce in two levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.cases import Case, close, complaint, fact
from autograder.checking.check import check
from autograder.checking.expect import ceil_div
from autograder.checking.inputs import eighths

LEVELS = "15-ex3-two-levels"
#: (nodes, ranks per node).
MESHES = ((2, 2), (3, 2), (2, 3))


@dataclass
class Summed:
    """What the tensor holds after the call."""

    numbers: Any = fact("the tensor")
    moved: str = complaint()


def _drive(rank: int, world_size: int, function: Any, per_node: int, vectors: list) -> Summed:
    """One call, after the groups have been made; the barrier keeps those who make them from being counted."""
    groups = []
    for members in (
        *(list(range(start, start + per_node)) for start in range(0, world_size, per_node)),
        *(list(range(place, world_size, per_node)) for place in range(per_node)),
    ):
        group = dist.new_group(members)
        if rank in members:
            groups.append(group)
    tensor = torch.from_numpy(vectors[rank].copy())
    before = tensor.data_ptr()
    function(tensor, *groups)
    moved = "" if tensor.data_ptr() == before else "the tensor has other memory than before: write into what it had"
    return Summed(tensor.numpy().copy(), moved)


def _case(function: Any, rng: np.random.Generator, nodes: int, per_node: int, numel: int, **more: Any) -> Case:
    vectors = [eighths(rng, (numel,)) for _ in range(nodes * per_node)]
    expect = [Summed(close(np.sum(vectors, axis=0, dtype="float64"), 1e-6), "")] * len(vectors)
    name = f"{nodes} nodes of {per_node}, {numel} numbers"
    return Case(name, len(vectors), _drive, (function, per_node, vectors), expect, **more)


def _sends(per_node: int, numel: int) -> list[tuple]:
    part = 4 * ceil_div(numel, per_node)
    return [
        ("reduce_scatter", per_node * part, "over inner"), ("all_reduce", part, "over outer"),
        ("all_gather", part, "over inner"),
    ]  # fmt: skip


@check(LEVELS, points=1.25)
def both_levels_add_up(two_level_all_reduce, *, rng):
    """Every rank's tensor becomes the sum over all ranks, in place, where the length divides."""
    for nodes, per_node in MESHES:
        yield _case(two_level_all_reduce, rng, nodes, per_node, per_node * int(rng.integers(1, 9)))


@check(LEVELS, points=0.5)
def only_a_part_crosses_nodes(two_level_all_reduce, *, rng):
    """A rank makes a reduce-scatter and an all-gather over inner, an all-reduce of ⌈n/g⌉ over outer, nothing else."""
    for nodes, per_node in MESHES:
        numel = 6 * int(rng.integers(2, 9))
        yield _case(two_level_all_reduce, rng, nodes, per_node, numel, sends=_sends(per_node, numel))


@check(LEVELS, points=0.25)
def any_length_is_padded(two_level_all_reduce, *, rng):
    """A length that g does not divide, and one below g: the last parts are filled up with zeros."""
    for nodes, per_node in ((2, 2), (2, 3)):
        for numel in (per_node - 1, 1 + per_node * int(rng.integers(1, 6))):
            yield _case(two_level_all_reduce, rng, nodes, per_node, numel)
