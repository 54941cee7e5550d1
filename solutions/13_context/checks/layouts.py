"""Exercise 2: which rank has which positions, and how long it waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Call, close, evidence, sentence
from autograder.checks.check import check

LAYOUTS = "13-ex2-layouts"
NAMES = ("contiguous", "striped", "zigzag")


def positions(length: int, world_size: int, layout: str) -> list[list[int]]:
    """Rank by rank, from the owner of each position."""

    def part(i: int, parts: int) -> int:
        short, longer = divmod(length, parts)  # the first `longer` parts have one more
        edge = longer * (short + 1)
        return i // (short + 1) if i < edge else longer + (i - edge) // max(short, 1)

    def owner(i: int) -> int:
        if layout == "striped":
            return i % world_size
        if layout == "contiguous":
            return part(i, world_size)
        place = part(i, 2 * world_size)
        return min(place, 2 * world_size - 1 - place)

    return [[i for i in range(length) if owner(i) == rank] for rank in range(world_size)]


def counted(shards: list[list[int]], ends: list[int]) -> list[list[int]]:
    """The pairs of each step and rank, where a query looks at its own document alone."""
    document = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    n = len(shards)
    table = []
    for step in range(n):
        row = []
        for rank in range(n):
            own, keys = np.array(shards[rank], int), np.array(shards[(rank - step) % n], int)
            same = document[own][:, None] == document[keys][None, :]
            row.append(int((same & (keys[None, :] <= own[:, None])).sum()))
        table.append(row)
    return table


def waiting(table: list[list[int]]) -> float:
    """The idle share of a table of pairs."""
    slots = len(table) * sum(max(row) for row in table)
    return 1 - sum(map(sum, table)) / slots if slots else 0.0


def _listed(found: Any, *_: Any) -> Any:
    return found.tolist() if isinstance(found, torch.Tensor) else found


def _of_layouts(shard_positions: Callable, sizes: tuple[tuple[int, int], ...]) -> Iterator[Call]:
    """All ranks' positions in all layouts. sizes: (length, number of ranks)."""
    for layout in NAMES:
        for length, n in sizes:
            for rank, expected in enumerate(positions(length, n, layout)):
                yield Call(shard_positions, length, rank, n, layout, gives=expected, sees=_listed, what="the list")


@check(LAYOUTS, points=0.75)
def layouts_deal_out_every_position(shard_positions, *, rng):
    """Each rank has the positions of its layout, ascending, for lengths that 2N divides."""
    yield from _of_layouts(shard_positions, ((12, 3), (24, 4), (8, 1), (12 * int(rng.integers(2, 20)), 6)))


@check(LAYOUTS, points=0.5)
def layouts_deal_out_any_length(shard_positions, *, rng):
    """Each rank has the positions of its layout for lengths that 2N does not divide, also shorter than 2N."""
    yield from _of_layouts(
        shard_positions, ((13, 4), (3, 5), (7, 1), (int(12 * rng.integers(2, 9) + rng.integers(1, 12)), 6))
    )


def _ranks(n: int) -> str:
    return f"{n} rank{'s' * (n > 1)}"


def _tensors(shards: list[list[int]]) -> list[torch.Tensor]:
    return [torch.tensor(shard, dtype=torch.int64) for shard in shards]


@check(LAYOUTS, points=0.5)
def pairs_are_those_that_causality_allows(pair_counts, *, rng):
    """Entry [s, r] counts the keys of rank (r − s) mod N that rank r's queries may look at."""
    for length, n in ((13, 3), (3, 4), (5, 1), (int(rng.integers(17, 40)), 5)):
        for layout in NAMES:
            shards, name = positions(length, n, layout), f"{length} positions on {_ranks(n)}, {layout}"
            expected = counted(shards, [0, length])
            yield Call(pair_counts, _tensors(shards), gives=expected, sees=_listed, name=name, what="the table")


def _taken_away(pair_counts: Callable, shards: list[torch.Tensor], ends: torch.Tensor) -> int:
    """How many pairs are gone because documents do not see each other."""
    return int(pair_counts(shards).sum()) - int(pair_counts(shards, ends).sum())


@check(LAYOUTS, points=0.5)
def documents_do_not_see_each_other(pair_counts, *, rng):
    """With cu_seqlens, a query looks at its own document alone."""
    for n in (1, 3):
        ends = [0, *sorted(int(x) for x in rng.choice(np.arange(1, 20), 3, replace=False)), 20]
        for layout in NAMES:
            shards = positions(20, n, layout)
            gone = sum(map(sum, counted(shards, [0, 20]))) - sum(map(sum, counted(shards, ends)))
            given = pair_counts, _tensors(shards), torch.tensor(ends)
            name, what = f"20 positions on {_ranks(n)}, {layout}", f"the number of pairs that cu_seqlens {ends} forbids"
            yield Call(_taken_away, *given, gives=gone, name=name, what=what)


@check(LAYOUTS, points=0.25)
def the_busiest_rank_sets_the_time(idle_fraction, *, rng):
    """1 minus all pairs over N times the sum of each step's largest count; 0.0 if there are no pairs."""
    # In the second table another rank is the busiest in each step.
    for pairs in ([[3, 3], [0, 4]], [[3, 1], [0, 4]], [[5]], [[0] * 3] * 3, rng.integers(1, 9, (4, 4)).tolist()):
        gives = close(waiting(pairs), atol=1e-6)
        yield Call(idle_fraction, torch.tensor(pairs), gives=gives, name=f"pairs {pairs}", what="the share")


@dataclass
class Dealt:
    """What is wrong with how documents were dealt out, "" where nothing is."""

    lost: str = sentence()
    runs: str = sentence()
    idle: str = sentence()
    shards: Any = evidence()


def _deal(shard_documents: Callable, ends: torch.Tensor, n: int) -> list[list[int]]:
    """All ranks' positions."""
    return [_listed(shard_documents(ends.clone(), rank, n)) for rank in range(n)]


def _dealt(shards: list[list[int]], _: Any, given: torch.Tensor, n: int) -> Dealt:
    ends = given.tolist()
    if sorted(i for shard in shards for i in shard) != list(range(ends[-1])) or any(s != sorted(s) for s in shards):
        return Dealt("the ranks should have each position once, in ascending order", "", "", shards)
    runs = 0
    for shard in shards:
        for a, b in itertools.pairwise(ends):
            own = [i for i in shard if a <= i < b]
            runs = max(runs, sum(i - 1 not in own for i in own))
    idle = waiting(counted(shards, ends))
    return Dealt(
        "",
        f"a rank has {runs} runs of consecutive positions of one document, expected at most 2" if runs > 2 else "",
        f"the ranks wait for {100 * idle:.1f} % of the time, expected less than 1 %" if idle >= 0.01 else "",
        shards,
    )


@check(LAYOUTS, points=0.5)
def documents_are_dealt_out_fairly(shard_documents, *, rng):
    """Every position once, at most two runs of each document on a rank, and less than 1 % of the time idle."""
    for n in (1, 2, 4):
        ends = np.cumsum([0, *(2 * n * rng.integers(1, 9, 5))])
        name = f"{_ranks(n)}, cu_seqlens {ends.tolist()}"
        yield Call(_deal, shard_documents, torch.from_numpy(ends), n, gives=Dealt("", "", ""), sees=_dealt, name=name)
