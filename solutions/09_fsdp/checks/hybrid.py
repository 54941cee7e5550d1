"""Exercise 7: shards within a group of ranks, copies between groups, and whether these agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, close, fact
from autograder.checks.check import check
from autograder.checks.expect import ceil_div, collective
from autograder.checks.inputs import eighths

from .models import padded

HYBRID = "09-ex7-hybrid"
#: (ranks, size): shard groups and copy groups of different sizes; shards on one rank, and on all.
WORLDS = ((6, 2), (6, 3), (4, 1), (3, 3), (1, 1))


def _lists(world_size: int, size: int) -> tuple[list[list[int]], list[list[int]]]:
    """The members of each shard group, and of each copy group."""
    table = np.arange(world_size).reshape(-1, size)
    return table.tolist(), table.T.tolist()


def _own(rank: int, world_size: int, size: int) -> list[list[int]]:
    """The members of the rank's shard group, and of its copy group."""
    return [next(one for one in lists if rank in one) for lists in _lists(world_size, size)]


@dataclass
class Members:
    """The groups of a rank."""

    shard: list[int] = fact("the list of members of the shard group")
    copy: list[int] = fact("the list of members of the copy group")


def _drive_groups(rank: int, world_size: int, make: Any, size: int) -> Members:
    shard_group, copy_group = make(size)
    return Members(*(sorted(dist.get_process_group_ranks(group)) for group in (shard_group, copy_group)))


@check(HYBRID, points=0.5)
def groups_are_neighbors_and_copies(hybrid_groups, *, rng):
    """Shard groups are consecutive ranks; a copy group has the same place in each of them."""
    for n, size in rng.permutation((*WORLDS, (4, 2))).tolist():
        expect = [Members(*_own(rank, n, size)) for rank in range(n)]
        yield Case(f"size = {size}", n, _drive_groups, (hybrid_groups, size), expect)


@dataclass
class Reduced:
    """What hybrid_reduce returned."""

    shard: Any = fact("the shard")
    direction: Any = fact("the shard, with all shards together scaled to length 1,")


def _drive_reduce(rank: int, world_size: int, reduce: Any, size: int, gradients: list) -> Reduced:
    """With groups that are made here: those of the student are judged by themselves."""
    mine = []
    for lists in _lists(world_size, size):
        groups = [(one, dist.new_group(one)) for one in lists]
        mine.append(next(group for one, group in groups if rank in one))
    return Reduced(reduce(torch.tensor(gradients[rank]), *mine).detach().clone())


def _scaled(returned: list[Reduced]) -> list[Reduced]:
    length = sum(one.shard.double().square().sum().item() for one in returned) ** 0.5 or 1.0
    return [Reduced(one.shard, one.shard.double() / length) for one in returned]


def _reduce_case(reduce: Any, rng: np.random.Generator, n: int, size: int, numel: int, mean=False, judge=None) -> Case:
    """The shards are those of the mean, or, if that is not asked for, of a multiple of it."""
    gradients = [eighths(rng, (numel,), limit=64) for _ in range(n)]
    whole = padded(np.mean([one.astype(np.float64) for one in gradients], axis=0), size).reshape(size, -1)
    length = np.linalg.norm(np.tile(whole, (n // size, 1))) or 1.0
    expect = [
        Reduced(close(whole[rank % size], 1e-6, 1e-6, "float32"))
        if mean
        else Reduced(direction=close(whole[rank % size] / length, 1e-5))
        for rank in range(n)
    ]
    name, args = f"size = {size}, {numel} numbers", (reduce, size, gradients)
    return Case(name, n, _drive_reduce, args, expect, judge=judge, sees=_scaled)


@check(HYBRID, points=0.75)
def shards_come_from_all_ranks(hybrid_reduce, *, rng):
    """Each rank gets its shard of the sum over all ranks, up to a common factor."""
    for n, size in WORLDS:
        yield _reduce_case(hybrid_reduce, rng, n, size, size * int(rng.integers(2, 7)))


@check(HYBRID, points=0.25)
def the_shards_are_means(hybrid_reduce, *, rng):
    """The factor is that of the mean over all ranks."""
    for n, size in ((6, 2), (6, 3)):
        yield _reduce_case(hybrid_reduce, rng, n, size, size * int(rng.integers(2, 7)), mean=True)


@check(HYBRID, points=0.25)
def shards_are_padded_with_zeros(hybrid_reduce, *, rng):
    """Where `size` does not divide the gradient, the last shard ends with zeros."""
    for n, size in ((6, 2), (6, 3)):
        yield _reduce_case(hybrid_reduce, rng, n, size, size * int(rng.integers(2, 7)) + 1)


def _one_of_each(n: int, size: int, numel: int) -> Any:
    """A judge: one reduce-scatter over the shard group, then one all-reduce over the copy group."""
    each = 4 * ceil_div(numel, size)

    def judge(rank: int, parts: list) -> str:
        names = dict(zip(map(tuple, _own(rank, n, size)), ("the shard group", "the copy group"), strict=True))
        sent = [
            f"{collective(m.call)} of {m.bytes} bytes over {names.get(tuple(sorted(m.group)), 'other ranks')}"
            for part in parts
            for m in part
        ]
        want = [f"reduce_scatter of {size * each} bytes over the shard group"]
        want += [f"all_reduce of {each} bytes over the copy group"]
        if sent == want:
            return ""
        return f"rank {rank} makes {', then '.join(sent) or 'no collective'}; expected {', then '.join(want)}"

    return judge


@check(HYBRID, points=0.25)
def only_shards_pass_between_copies(hybrid_reduce, *, rng):
    """There is one reduce-scatter of the padded gradient over the shard group, then one all-reduce of the shard."""
    for n, size in ((6, 2), (6, 3)):
        numel = size * int(rng.integers(2, 7))
        yield _reduce_case(hybrid_reduce, rng, n, size, numel, judge=_one_of_each(n, size, numel))


# ---- do copies agree? ----


@dataclass
class Judged:
    """What copies_agree returned."""

    agree: bool = fact("what it returns")


def _drive_copies(rank: int, world_size: int, agree: Any, shards: list) -> Judged:
    return Judged(agree(torch.tensor(shards[rank]), dist.group.WORLD))


def _copies_case(agree: Any, shards: list[np.ndarray], name: str, on: int | None = None, judge: Any = None) -> Case:
    """on: the only rank whose answer counts."""
    n, same = len(shards), all(one.tobytes() == shards[0].tobytes() for one in shards)
    expect = [Judged(same) if on in (None, rank) else Judged() for rank in range(n)]
    return Case(name, n, _drive_copies, (agree, shards), expect, judge=judge)


@check(HYBRID, points=0.5)
def copies_of_other_numbers_do_not_agree(copies_agree, *, rng):
    """Equal shards agree, and a shard with other numbers, on whichever rank, does not; all ranks say the same."""
    for n in (2, 3, 4):
        shard = eighths(rng, (int(rng.integers(5, 40)),))
        yield _copies_case(copies_agree, [shard] * n, "equal shards")
        for other in range(n):
            shards = [shard + np.float32(rank == other) for rank in range(n)]
            yield _copies_case(copies_agree, shards, f"rank {other}'s is larger by 1")


@check(HYBRID, points=0.25)
def a_single_bit_is_noticed(copies_agree, *, rng):
    """A rank whose shard has two numbers exchanged, or differs in one number's last bit, says no."""
    for n in (2, 3):
        shard = rng.permutation(np.arange(1, 30, dtype=np.float32))
        exchanged, rounded = shard[[1, 0, *range(2, 29)]], shard.copy()
        rounded[3] = np.nextafter(rounded[3], np.float32(100))
        for name, changed in (("two numbers are exchanged", exchanged), ("a number differs in its last bit", rounded)):
            yield _copies_case(copies_agree, [shard] * (n - 1) + [changed], f"on the last rank {name}", on=n - 1)


def _few_bytes(rank: int, parts: list) -> str:
    """What is wrong if a rank puts more than 16 bytes into its collectives."""
    sent = sum(m.bytes for part in parts for m in part)
    return f"rank {rank} puts {sent} bytes into its collectives, expected at most 16" if sent > 16 else ""


@check(HYBRID, points=0.25)
def a_comparison_sends_sixteen_bytes(copies_agree, *, rng):
    """A rank puts at most 16 bytes into its collectives."""
    for n in (2, 4):
        shard = eighths(rng, (int(rng.integers(50, 90)),))
        yield _copies_case(copies_agree, [shard] * n, f"equal shards of {len(shard)} numbers", judge=_few_bytes)
