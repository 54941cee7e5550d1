"""Exercise 2: which rank has which positions, and how long it waits."""

from __future__ import annotations

import math

import numpy as np
import torch

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import digits_that_differ, expect_equal, expect_raises, expect_type, fail

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


@check(LAYOUTS, points=1)
def layouts_deal_out_every_position(shard_positions, *, rng):
    """Each rank has the positions of its layout, int64, ascending, for lengths that divide and that do not."""
    for layout in NAMES:
        for length, world_size in ((12, 3), (16, 4), (13, 4), (3, 5), (0, 2), (7, 1), (int(rng.integers(20, 40)), 6)):
            for rank, want in enumerate(positions(length, world_size, layout)):
                case = f"{layout}, {length} positions, rank {rank} of {world_size}"
                got = shard_positions(length, rank, world_size, layout)
                if not isinstance(got, torch.Tensor) or got.dtype != torch.int64:
                    fail(f"expected an int64 tensor, got {getattr(got, 'dtype', type(got).__name__)}", case, "kind")
                expect_equal(case, got.tolist(), want, what="the list of positions")


@check(LAYOUTS, points=0.5)
def pairs_are_those_that_causality_allows(pair_counts, *, rng):
    """Entry [s, r] counts the keys of rank (r − s) mod N that rank r's queries may look at, int64."""
    for layout in NAMES:
        for length, world_size in ((16, 4), (13, 3), (3, 4), (5, 1), (int(rng.integers(17, 60)), 5)):
            case = f"{layout}, {length} positions, {world_size} ranks"
            shards = positions(length, world_size, layout)
            want = [
                [sum(key <= query for query in shards[r] for key in shards[(r - s) % world_size])
                 for r in range(world_size)]
                for s in range(world_size)
            ]  # fmt: skip
            got = pair_counts(length, world_size, layout)
            if not isinstance(got, torch.Tensor) or got.dtype != torch.int64:
                fail(f"expected an int64 tensor, got {getattr(got, 'dtype', type(got).__name__)}", case, "kind")
            expect_equal(case, got.tolist(), want, what="the table of pairs")


@check(LAYOUTS, points=0.25)
def the_busiest_rank_sets_the_time(idle_fraction, *, rng):
    """1 minus all pairs over N times the sum of each step's largest count, a float; 0.0 if there are no pairs."""
    # In the second table another rank is the busiest in each step.
    tables = [np.array([[3, 3], [0, 4]]), np.array([[3, 1], [0, 4]]), np.array([[5]]), np.zeros((3, 3), int),
              rng.integers(1, 9, (4, 4)), rng.integers(2**52, 2**53, (2, 2))]  # fmt: skip
    for pairs in tables:
        case = f"pairs {pairs.tolist()}"
        slots = sum(max(row) for row in pairs.tolist()) * len(pairs)
        want = (slots - sum(map(sum, pairs.tolist()))) / slots if slots else 0.0
        got = idle_fraction(torch.from_numpy(pairs.astype("int64")))
        expect_type(case, got, float, what="what idle_fraction returns")
        if not math.isclose(got, want, rel_tol=1e-5, abs_tol=1e-6):
            one, other = digits_that_differ(got, want)
            fail(f"idle_fraction returned {one}, expected {other}", case, got)


@check(LAYOUTS, points=0.25, fixed=REFUSALS)
def other_ranks_and_layouts_are_refused(shard_positions):
    """A rank outside 0 … N − 1, or another layout, is a ValueError that names it."""
    for length, rank, world_size, layout, named in (
        (8, 2, 2, "contiguous", "rank"), (8, -1, 2, "striped", "rank"), (8, 5, 2, "zigzag", "rank"),
        (8, 0, 2, "stripes", "layout"), (8, 1, 2, "striped", ""), (0, 0, 2, "stripes", "layout"),
        (8, 0, 1, "stripes", "layout"), (0, 2, 2, "striped", "rank"), (8, 1, 1, "zigzag", "rank"),
    ):  # fmt: skip
        case = f"shard_positions({length}, {rank}, {world_size}, {layout!r})"
        if named:
            expect_raises(case, shard_positions, length, rank, world_size, layout, error=ValueError, mentions=named)
        else:
            got = np.asarray(shard_positions(length, rank, world_size, layout)).tolist()
            expect_equal(case, got, positions(length, world_size, layout)[rank], what="the list of positions")
