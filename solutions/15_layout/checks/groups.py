"""Exercises 1 and 2: coordinates of ranks, and the groups that they form."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Call, Case, fact
from autograder.checks.check import check

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
    drawn = {name: int(rng.integers(1, 5)) for name in ("tp", "cp", "dp", "pp")}
    return [{"tp": 2, "dp": 3}, {"tp": 2, "cp": 2, "dp": 2, "pp": 2}, {"tp": 2, "etp": 3, "pp": 1}, drawn]


def _choices(sizes: dict[str, int]) -> list[str | tuple[str, ...]]:
    """Every name alone, and every two or more of them."""
    several = [chosen for n in range(2, len(sizes) + 1) for chosen in itertools.combinations(sizes, n)]
    return [*sizes, *several, several[0][::-1]]


def _sets(found: Any, *_: Any) -> Any:
    """The groups without the order of groups and ranks; anything else as it is."""
    try:
        return sorted(sorted(int(rank) for rank in group) for group in found)
    except (TypeError, ValueError):
        return found


@check(GROUPS, points=0.75)
def groups_differ_in_one_name(rank_groups, *, rng):
    """The groups of one name: ranks that differ in it alone, the first name changing fastest, in any order."""
    for sizes in _meshes(rng):
        for name in sizes:
            yield Call(rank_groups, dict(sizes), name, sees=_sets, gives=groups(sizes, name), what="the list of groups")


@check(GROUPS, points=0.25)
def groups_over_several_names(rank_groups, *, rng):
    """The groups over a tuple of names: ranks that differ in these alone, in any order."""
    for sizes in _meshes(rng):
        for names in _choices(sizes)[len(sizes) :]:
            gives = groups(sizes, names)
            yield Call(rank_groups, dict(sizes), names, sees=_sets, gives=gives, what="the list of groups")


def _in_order(found: Any, sizes: dict[str, int], names: str | tuple[str, ...]) -> str:
    """In words: which rule on lists and their order the groups break, whoever is in them; "" for none."""
    if not isinstance(found, list) or not all(isinstance(group, list) for group in found):
        return "not a list of lists"
    if sorted(itertools.chain(*found)) != list(range(int(np.prod(list(sizes.values()))))):
        return "not every rank once"
    if len({len(group) for group in found}) > 1:
        return "groups of several sizes"
    if any(group != sorted(group) for group in found):
        return "a group that does not ascend"
    return "" if found == sorted(found) else "groups that are not in the order of their first ranks"


@check(GROUPS, points=0.25)
def lists_ascend_the_lowest_first(rank_groups, *, rng):
    """The result is a list of lists: each ascends, and the group with the lowest first rank comes first."""
    for sizes in _meshes(rng):
        for names in _choices(sizes):
            yield Call(rank_groups, dict(sizes), names, sees=_in_order, gives="", what="the list of groups")


@dataclass
class Crossing:
    """What crosses_nodes says for each question, or what is wrong with it if it does not fit its own groups either."""

    said: dict[str, Any] = fact("the answer to {}")


def _ask(crosses_nodes: Any, rank_groups: Any, questions: dict[str, tuple]) -> list[dict[str, Any]]:
    """The answers, and rank_groups' own groups for the same questions."""
    answers = {words: crosses_nodes(*question) for words, question in questions.items()}
    own = {}
    for words, (sizes, names, _) in questions.items():
        try:
            own[words] = [list(map(int, group)) for group in rank_groups(dict(sizes), names)]
        except Exception:
            own[words] = None
    return [answers, own]


def _fitting(found: Any, crosses_nodes: Any, rank_groups: Any, questions: dict[str, tuple]) -> Crossing:
    """The answers; those that follow from the answer's own groups count as right, if these are groups at all."""
    answers, own = found
    for words, (sizes, names, _) in questions.items():
        if own[words] is None or _in_order(sorted(map(sorted, own[words])), sizes, names):
            return Crossing(answers)
    follows = {words: _crosses(own[words], per_node) for words, (_, _, per_node) in questions.items()}
    return Crossing(_right(questions) if answers == follows and len(set(follows.values())) == 2 else answers)


def _right(questions: dict[str, tuple]) -> dict[str, bool]:
    return {words: _crosses(groups(sizes, names), per_node) for words, (sizes, names, per_node) in questions.items()}


def _crosses(found: list[list[int]], per_node: int) -> bool:
    return any(len({rank // per_node for rank in group}) > 1 for group in found)


@check(GROUPS, points=0.75)
def groups_of_two_nodes_are_found(crosses_nodes, rank_groups, *, rng):
    """A group crosses nodes if its ranks, in blocks of `per_node`, lie in more than one block."""
    questions = {
        f"sizes {sizes}, names {names!r}, {per_node} ranks per node": (dict(sizes), names, per_node)
        for sizes in _meshes(rng)
        for names, per_node in itertools.product(_choices(sizes)[:6], (1, 2, 3, 4, 8))
    }
    gives = Crossing(_right(questions))
    yield Call(_ask, crosses_nodes, rank_groups, questions, sees=_fitting, gives=gives, name="four meshes")


# ---- 2 · make_groups ----


@dataclass
class Made:
    """Of each axis, by its name as text: who is in the group that this rank got, and the sum of 2**rank in it."""

    keys: list[str] = fact("the list of the axes in the dict")
    members: dict[str, Any] = fact("the list of members of the group of {}")
    sums: dict[str, Any] = fact("a sum of 2**rank over the group of {}")


def _drive(rank: int, world_size: int, make_groups: Any, sizes: dict, axes: list) -> Made:
    found = make_groups(dict(sizes), list(axes))
    members, sums = {}, {}
    for axis in axes:
        if axis in found:
            number = torch.tensor(2**rank)
            dist.all_reduce(number, group=found[axis])
            members[str(axis)], sums[str(axis)] = dist.get_process_group_ranks(found[axis]), number.item()
    return Made(sorted(map(str, found)), members, sums)


def _case(make_groups: Any, sizes: dict[str, int], axes: list) -> Case:
    n = int(np.prod(list(sizes.values())))
    expect = []
    for rank in range(n):
        members = {str(axis): next(one for one in groups(sizes, axis) if rank in one) for axis in axes}
        sums = {axis: sum(2**other for other in one) for axis, one in members.items()}
        expect.append(Made(sorted(members), members, sums))
    return Case(f"sizes {sizes}, axes {axes}", n, _drive, (make_groups, sizes, axes), expect)


@check(MAKE, points=1.25)
def every_rank_gets_its_groups(make_groups, *, rng):
    """Each rank gets, for each name, the process group that it belongs to."""
    drawn = [int(n) for n in rng.permutation([2, 3])]
    for sizes in ({"tp": 2, "dp": 2}, dict(zip(("tp", "dp"), drawn, strict=True)), {"tp": 2, "dp": 2, "pp": 2}):
        yield _case(make_groups, sizes, list(sizes))


@check(MAKE, points=0.5)
def tuples_of_names_are_axes_too(make_groups, *, rng):
    """The group over several names is there under the tuple of these names."""
    drawn = [int(n) for n in rng.permutation([2, 3])]
    for ep, edp in ((2, 2), drawn):  # all ranks form one group
        yield _case(make_groups, {"ep": ep, "edp": edp}, [("ep", "edp")])


@check(MAKE, points=0.25)
def an_axis_of_one_has_a_group(make_groups, *, rng):
    """On an axis of size 1 each rank gets a group in which it is alone."""
    for n in (2, int(rng.integers(3, 5))):
        yield _case(make_groups, {"pp": 1, "tp": n}, ["pp", "tp"])
