"""Lesson 01, exercises 1, 2, 3 and 7: collectives that copy, or that leave each rank with a piece."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.checks.cases import Case
from autograder.checks.check import check

from .common import (
    OTHERS,
    POWERS,
    all_of,
    anything,
    case_of,
    chunk_bytes,
    equal_lengths,
    expect_alone,
    expect_no_padding,
    log2_up,
    messages,
    ring,
    rounds,
    sent,
    sent_at_most,
    turned,
    uneven_lengths,
    vectors,
)

# ---- 1 · broadcast ----


def _broadcast(broadcast: Any, rng: np.random.Generator, n: int, src: int, shape: tuple, budget: Any = None) -> Case:
    """The source's tensor, on every rank. budget: as many rounds as a tree needs, if not given."""
    given, budget = vectors(rng, n, shape), budget or rounds(log2_up(n))
    return case_of(
        broadcast, f"src = {src}, shape {shape}", given, [given[src]] * n, budget, extra=(src,), in_place=True
    )


@check("01-ex1-broadcast", points=1.5)
def broadcast_doubles_in_each_round(broadcast, *, rng):
    """From rank 0, every rank's tensor becomes the source's in at most log2 N rounds, for N = 1, 2, 4 and 8."""
    for n in POWERS:
        for shape in ((int(rng.integers(2, 40)),), (3, 2)):
            yield _broadcast(broadcast, rng, n, 0, shape)


@check("01-ex1-broadcast", points=0.75)
def broadcast_starts_at_any_source(broadcast, *, rng):
    """The source may be any rank."""
    for n in (2, 4, 8):
        for src in range(1, n) if n < 8 else (3, int(rng.integers(4, 8))):
            yield _broadcast(broadcast, rng, n, src, (5,), anything)


@check("01-ex1-broadcast", points=0.75)
def broadcast_reaches_any_number_of_ranks(broadcast, *, rng):
    """N need not be a power of two: at most ⌈log2 N⌉ rounds for N = 3, 5 and 6."""
    for n in OTHERS:
        yield _broadcast(broadcast, rng, n, 0, (int(rng.integers(2, 40)),))


@check("01-ex1-broadcast", veto=True)
def broadcast_needs_nothing_but_its_messages(broadcast, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone([_broadcast(broadcast, rng, 4, 0, (1003,)) for _ in range(4)], rng)


# ---- 2 · reduce_scatter ----


def _scatter(function: Any, rng: np.random.Generator, n: int, numel: int, budget: Any = anything, **how: Any) -> Case:
    """The sum, a chunk on each rank. Which chunk is on which rank has a check of its own, and so have the bytes."""
    given, how = vectors(rng, n, numel), {"turns": True} | how
    return case_of(function, f"{numel} elements", given, np.array_split(sum(given), n), budget, **how)


def _all_but_one(numel: int, n: int) -> list[list[int]]:
    """The bytes that each rank sends if it sends every chunk but one, by which one it is."""
    sizes = chunk_bytes(numel, n)
    return [[4 * numel - other for other in turned(sizes, by)] for by in range(n)]


@check("01-ex2-reduce-scatter", points=1.75)
def reduce_scatter_sums_chunk_by_chunk(reduce_scatter, *, rng):
    """With equal chunks, the ranks return the N chunks of the sum, one each, and no rank sends more than T bytes."""
    for n in (2, 3, 4, 8):
        for numel in equal_lengths(rng, n):
            yield _scatter(reduce_scatter, rng, n, numel, sent_at_most(4 * numel))


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_sends_all_chunks_but_one(reduce_scatter, *, rng):
    """Each rank sends T − c bytes, every chunk but one and none of them padded, in at most N − 1 messages."""
    for n in (2, 3, 4):
        numel = equal_lengths(rng, n)[1]
        budget = all_of(sent(*_all_but_one(numel, n)), messages(n - 1))
        yield _scatter(reduce_scatter, rng, n, numel, budget, values=False)
    expect_no_padding(_scatter(reduce_scatter, rng, 4, numel) for numel in uneven_lengths(rng, 4))


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_leaves_chunk_r_on_rank_r(reduce_scatter, *, rng):
    """The chunk that rank r returns is chunk r."""
    for n in (2, 3, 4):
        yield _scatter(reduce_scatter, rng, n, equal_lengths(rng, n)[1], turns=False, loose=True)


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_stays_on_the_ring(reduce_scatter, *, rng):
    """Each rank sends to and receives from its neighbors only."""
    for n in (4, 5):
        yield _scatter(reduce_scatter, rng, n, equal_lengths(rng, n)[1], ring, loose=True)


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_cuts_as_tensor_split_does(reduce_scatter, *, rng):
    """The length need not be a multiple of N, and may be less than N."""
    for n in (2, 3, 4):
        for numel in uneven_lengths(rng, n):
            yield _scatter(reduce_scatter, rng, n, numel, loose=True)


@check("01-ex2-reduce-scatter", points=0.25)
def reduce_scatter_leaves_its_input_alone(reduce_scatter, *, rng):
    """The input stays as it was, and the result is a new tensor, with one rank, too."""
    for n in (1, 3):
        yield _scatter(reduce_scatter, rng, n, equal_lengths(rng, n)[1], loose=True, keeps=True)


@check("01-ex2-reduce-scatter", veto=True)
def reduce_scatter_needs_nothing_but_its_messages(reduce_scatter, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone([_scatter(reduce_scatter, rng, 4, 1004) for _ in range(4)], rng)


# ---- 3 · all_gather ----


def _gather(function: Any, rng: np.random.Generator, n: int, numel: int, budget: Any = anything, **how: Any) -> Case:
    [whole] = vectors(rng, 1, numel)
    given, name = np.array_split(whole, n), f"{numel} elements"
    return case_of(function, name, given, [whole] * n, budget, extra=(numel,), **how)


@check("01-ex3-all-gather", points=1.25)
def all_gather_joins_the_chunks(all_gather, *, rng):
    """With equal chunks, every rank returns the whole vector."""
    for n in (2, 3, 4, 8):
        for numel in equal_lengths(rng, n):
            yield _gather(all_gather, rng, n, numel)


@check("01-ex3-all-gather", points=0.5)
def all_gather_sends_all_chunks_but_one(all_gather, *, rng):
    """Each rank sends T − c bytes, every chunk but one and none of them padded, in at most N − 1 messages."""
    for n in (2, 3, 4):
        numel = equal_lengths(rng, n)[1]
        # Sending straight to everybody costs as many bytes; that it is no ring has a check of its own.
        budget = all_of(sent(*_all_but_one(numel, n)), messages(n - 1))
        yield _gather(all_gather, rng, n, numel, budget, values=False)
    expect_no_padding(_gather(all_gather, rng, 4, numel) for numel in uneven_lengths(rng, 4))


@check("01-ex3-all-gather", points=0.5)
def all_gather_stays_on_the_ring(all_gather, *, rng):
    """Each rank sends to and receives from its neighbors only."""
    for n in (4, 5):
        yield _gather(all_gather, rng, n, equal_lengths(rng, n)[1], ring)


@check("01-ex3-all-gather", points=0.5)
def all_gather_joins_unequal_chunks(all_gather, *, rng):
    """`numel` need not be a multiple of N, and may be less than N."""
    for n in (2, 3, 4):
        for numel in uneven_lengths(rng, n):
            yield _gather(all_gather, rng, n, numel)


@check("01-ex3-all-gather", points=0.25)
def all_gather_leaves_its_input_alone(all_gather, *, rng):
    """The chunk stays as it was, and the result is a new tensor, with one rank, too."""
    for n in (1, 3):
        yield _gather(all_gather, rng, n, equal_lengths(rng, n)[1], keeps=True)


@check("01-ex3-all-gather", veto=True)
def all_gather_needs_nothing_but_its_messages(all_gather, *, rng):
    """A rank uses its own chunk and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone([_gather(all_gather, rng, 4, 1004) for _ in range(4)], rng)


# ---- 7 · all_to_all ----


def _exchange(function: Any, rng: np.random.Generator, n: int, numel: int, budget: Any = anything, **how: Any) -> Case:
    given = vectors(rng, n, numel)
    cut = [np.array_split(vector, n) for vector in given]
    wanted = [np.concatenate([chunks[rank] for chunks in cut]) for rank in range(n)]
    return case_of(function, f"{numel} elements", given, wanted, budget, **how)


@check("01-ex7-all-to-all", points=0.75)
def all_to_all_delivers_in_the_order_of_the_ranks(all_to_all, *, rng):
    """With equal chunks, rank r returns chunk r of every rank, in the order of the ranks."""
    for n in (2, 3, 4, 8):
        for numel in equal_lengths(rng, n):
            yield _exchange(all_to_all, rng, n, numel)


@check("01-ex7-all-to-all", points=0.5)
def all_to_all_takes_n_minus_1_rounds(all_to_all, *, rng):
    """No rank waits while others queue at one rank: at most N − 1 rounds."""
    for n in (3, 4, 8):
        yield _exchange(all_to_all, rng, n, equal_lengths(rng, n)[1], rounds(n - 1))


@check("01-ex7-all-to-all", points=0.25)
def all_to_all_sends_what_others_want(all_to_all, *, rng):
    """A rank sends T − c bytes: every chunk but its own, and none of them padded."""
    for n in (2, 3, 4):
        numel = equal_lengths(rng, n)[1]
        budget = sent([4 * numel - own for own in chunk_bytes(numel, n)])
        yield _exchange(all_to_all, rng, n, numel, budget, values=False)
    expect_no_padding(_exchange(all_to_all, rng, 4, numel) for numel in uneven_lengths(rng, 4))


@check("01-ex7-all-to-all", points=0.25)
def all_to_all_cuts_as_tensor_split_does(all_to_all, *, rng):
    """The length need not be a multiple of N, and may be less than N."""
    for n in (2, 3, 4):
        for numel in uneven_lengths(rng, n):
            yield _exchange(all_to_all, rng, n, numel)


@check("01-ex7-all-to-all", points=0.25)
def all_to_all_leaves_its_input_alone(all_to_all, *, rng):
    """The input stays as it was, and the result is a new tensor, with one rank, too."""
    for n in (1, 3):
        yield _exchange(all_to_all, rng, n, equal_lengths(rng, n)[1], keeps=True)


@check("01-ex7-all-to-all", veto=True)
def all_to_all_needs_nothing_but_its_messages(all_to_all, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone([_exchange(all_to_all, rng, 4, 1004) for _ in range(4)], rng)
