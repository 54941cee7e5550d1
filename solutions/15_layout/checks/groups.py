"""Exercises 1 and 2: coordinates of ranks, and the groups that they form."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, expect_equal, expect_raises
from autograder.checking.stage import run_ranks

GROUPS, MAKE = "15-ex1-rank-groups", "15-ex2-make-groups"


def groups(sizes: dict[str, int], names: str | tuple[str, ...]) -> list[list[int]]:
    """By an array of ranks whose last axis changes fastest: the names in reverse order."""
    names = (names,) if isinstance(names, str) else names
    order = list(reversed(sizes))
    mesh = np.arange(int(np.prod([sizes[name] for name in order]))).reshape([sizes[name] for name in order])
    inside = [order.index(name) for name in order if name in names]
    outside = [order.index(name) for name in order if name not in names]
    width = int(np.prod([mesh.shape[axis] for axis in inside], dtype=int))
    return sorted(sorted(one) for one in mesh.transpose(outside + inside).reshape(-1, width).tolist())


def _meshes(rng: np.random.Generator) -> list[dict[str, int]]:
    drawn = {name: int(rng.integers(1, 5)) for name in ("a", "b", "c", "d")}
    return [
        {"tp": 2, "pp": 3},
        {"tp": 2, "cp": 2, "pp": 2, "dp": 2},
        {"tp": 4, "pp": 1, "ep": 2, "edp": 3},
        {"tp": 2, "etp": 3},
        {"dp": 5},
        {"x": 1, "y": 1},
        drawn,
    ]


def _choices(sizes: dict[str, int]) -> list[str | tuple[str, ...]]:
    """Every name alone, then every set of two or more, in the order of the sizes and against it."""
    several = [c for n in range(2, len(sizes) + 1) for c in itertools.combinations(sizes, n)]
    return [*sizes, *several, *(one[::-1] for one in several)]


@check(GROUPS, points=1.25)
def groups_differ_in_their_names_alone(rank_groups, *, rng):
    """Ranks of a group differ in `names` alone, one or several; lists ascend, the lowest first rank comes first."""
    for sizes in _meshes(rng):
        for names in _choices(sizes):
            got = rank_groups(dict(sizes), names)
            expect_equal(f"sizes {sizes}, names {names!r}", got, groups(sizes, names), what="the list of groups")


@check(GROUPS, points=0.5)
def groups_of_two_nodes_are_found(crosses_nodes, *, rng):
    """A group crosses nodes if its ranks, in blocks of `per_node`, lie in more than one block."""
    asked, said = [], []
    for sizes in _meshes(rng):
        for names, per_node in itertools.product(_choices(sizes)[:8], (1, 2, 3, 4, 6, 100)):
            case = f"sizes {sizes}, names {names!r}, {per_node} ranks a node"
            want = any(len(set(np.array(group) // per_node)) > 1 for group in groups(sizes, names))
            asked.append((case, want))
            said.append(crosses_nodes(dict(sizes), names, per_node))
    answers = [str(got) for got in said]  # one wrong answer alone does not tell one mistake from another
    for (case, want), got in zip(asked, said, strict=True):
        expect_equal(case, got, want, what="the answer", evidence=answers)


def _keeping(function: Any, returned: list[Any]) -> Any:
    """The function, made to append to the list, as text, what it returns or the kind of its error."""

    def call(*arguments: Any) -> Any:
        try:
            returned.append(str(function(*arguments)))
        except Exception as error:
            returned.append(type(error).__name__)
            raise

    return call


@check(GROUPS, points=0.25)
def unknown_names_and_empty_axes_are_refused(rank_groups, *, rng):
    """A name that is not in `sizes`, and a size below 1, are a ValueError that contains the name."""
    for sizes, names, named in (
        ({"tp": 2, "dp": 2}, "pp", "pp"),
        ({"tp": 2, "dp": 2}, ("tp", "dp", "cp"), "cp"),
        ({"tp": 2, "dp": 1}, "tp", ""),
        ({"tp": 2, "dp": 0}, "tp", "dp"),
        ({"tp": -1, "dp": 2}, "tp", "tp"),
    ):
        returned: list[Any] = []
        case = f"sizes {sizes}, names {names!r}"
        function = _keeping(rank_groups, returned)
        if named:
            expect_raises(case, function, sizes, names, error=ValueError, mentions=named, evidence=returned)
        else:
            expect_equal(case, rank_groups(dict(sizes), names), groups(sizes, names), what="the list of groups")


# ---- 2 · make_groups ----


def _drive(rank: int, world_size: int, make_groups: Any, cases: list[tuple]) -> list[Any]:
    """Inside a rank: for each case the members of each group, and the sum of 2**rank in it."""
    seen = []
    for sizes, axes in cases:
        found = make_groups(dict(sizes), list(axes))
        if not isinstance(found, dict) or set(found) != set(axes):
            seen.append(f"a {type(found).__name__}" if not isinstance(found, dict) else f"the keys {list(found)}")
            continue
        one = []
        for axis in axes:
            number = torch.tensor(2**rank)
            dist.all_reduce(number, group=found[axis])
            one.append([dist.get_process_group_ranks(found[axis]), number.item()])
        seen.append(one)
    return seen


@check(MAKE, points=1.5)
def every_rank_gets_its_groups(make_groups, *, rng):
    """Each rank gets, for each axis, a name or a tuple of names, the process group that it belongs to."""
    for world_size, sizes in ((4, {"tp": 2, "dp": 2}), (6, {"a": 3, "b": 2}), (4, {"tp": 2, "pp": 1, "dp": 2}),
                              (8, {"tp": 2, "pp": 2, "dp": 2})):  # fmt: skip
        cases = [(sizes, [*sizes]), (sizes, [tuple(sizes), tuple(sizes)[1:]])]
        results = run_ranks(_drive, world_size, (make_groups, cases), timeout=12)
        for c, (_, axes) in enumerate(cases):
            case = f"{count_of_ranks(world_size)}, sizes {sizes}, axes {axes}"
            for rank, seen in each_rank(case, [mine[c] for mine in results]):
                rank.expect(
                    isinstance(seen, list), f"make_groups returned {seen}, expected a dict with a group an axis"
                )
                for axis, (members, total) in zip(axes, seen, strict=True):
                    want = next(group for group in groups(sizes, axis) if rank.rank in group)
                    rank.expect_equal(members, want, what=f"the list of members of its group of {axis!r}")
                    rank.expect_equal(total, sum(2**r for r in want), what=f"a sum of 2**rank over {axis!r}")


def _drive_refused(rank: int, world_size: int, make_groups: Any, cases: list[tuple]) -> list[str]:
    said = []
    for sizes, axes in cases:
        try:
            make_groups(dict(sizes), list(axes))
            said.append("")
        except ValueError as error:
            said.append(str(error) or "an empty text")
    return said


@check(MAKE, points=0.5)
def a_mesh_must_fill_the_world(make_groups, *, rng):
    """Sizes whose product is not the number of ranks are a ValueError that names `sizes`, on every rank."""
    cases = [
        ({"tp": 2, "dp": 1}, ["tp", "dp"]),
        ({"tp": 2, "dp": 3}, ["tp", "dp"]),
        ({"tp": 4, "dp": 1}, ["tp", "dp"]),
        ({"tp": 5}, ["tp"]),
        ({"tp": 2, "dp": 2}, ["dp"]),
        ({"tp": 2, "pp": 2, "dp": 2}, ["tp", "pp"]),
    ]
    results = run_ranks(_drive_refused, 4, (make_groups, cases), timeout=12)
    which = [[one and ("sizes" in one or "another text") for one in mine] for mine in results]
    for c, (sizes, axes) in enumerate(cases):
        outcomes = [mine[c] for mine in results]
        for rank, said in each_rank(f"4 ranks, sizes {sizes}, axes {axes}", outcomes, evidence=lambda _: which):
            if np.prod(list(sizes.values())) == 4:
                rank.expect(not said, f"raised a ValueError: {said}, expected no error")
                continue
            rank.expect(bool(said), "raised nothing, expected a ValueError that names sizes")
            rank.expect("sizes" in said, f"the ValueError should name 'sizes', but it says {said!r}")
