"""Lesson 01, exercises 1, 2, 3 and 7: collectives that copy, or that leave each rank with a piece."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checks.collectives.common import (
    OTHERS,
    POWERS,
    Try,
    all_of,
    anything,
    cases,
    chunk_bytes,
    equal_lengths,
    expect_alone,
    expect_no_padding,
    log2_up,
    messages,
    ring,
    rounds,
    run_tries,
    sent,
    sent_at_most,
    turned,
    uneven_lengths,
    vectors,
)

# ---- 1 · broadcast ----


def _broadcast(rng: np.random.Generator, n: int, src: int, shape: tuple[int, ...]) -> Try:
    given = vectors(rng, n, shape)
    name = f"src = {src}, shape {shape}"
    return Try(name, given, [given[src]] * n, rounds(log2_up(n)), extra=(src,), in_place=True)


@check("01-ex1-broadcast", points=1.5)
def broadcast_doubles_in_each_round(broadcast, *, rng):
    """From rank 0, every rank's tensor becomes the source's in at most log2 N rounds, for N = 1, 2, 4 and 8."""
    for n in POWERS:
        yield from cases(broadcast, (_broadcast(rng, n, 0, shape) for shape in ((int(rng.integers(2, 40)),), (3, 2))))


@check("01-ex1-broadcast", points=0.75)
def broadcast_starts_at_any_source(broadcast, *, rng):
    """The source may be any rank."""
    for n in (2, 4, 8):
        sources = range(1, n) if n < 8 else (3, int(rng.integers(4, 8)))
        yield from cases(broadcast, (replace(_broadcast(rng, n, src, (5,)), budget=anything) for src in sources))


@check("01-ex1-broadcast", points=0.75)
def broadcast_reaches_any_number_of_ranks(broadcast, *, rng):
    """N need not be a power of two: at most ⌈log2 N⌉ rounds for N = 3, 5 and 6."""
    for n in OTHERS:
        yield _broadcast(rng, n, 0, (int(rng.integers(2, 40)),)).case(broadcast)


@check("01-ex1-broadcast", veto=True)
def broadcast_needs_nothing_but_its_messages(broadcast, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone(broadcast, [_broadcast(rng, 4, 0, (1003,)) for _ in range(4)], rng)


# ---- 2 · reduce_scatter ----


def _scatter(rng: np.random.Generator, n: int, numel: int, **how: Any) -> Try:
    """The sum, a chunk on each rank. Which chunk is on which rank has a check of its own, and so have the bytes."""
    given = vectors(rng, n, numel)
    how = {"budget": anything, "turns": True} | how
    return Try(f"{numel} elements", given, np.array_split(sum(given), n), **how)


def _all_but_one(numel: int, n: int) -> list[list[int]]:
    """The bytes that each rank sends if it sends every chunk but one, by which one it is."""
    sizes = chunk_bytes(numel, n)
    return [[4 * numel - other for other in turned(sizes, by)] for by in range(n)]


@check("01-ex2-reduce-scatter", points=1.75)
def reduce_scatter_sums_chunk_by_chunk(reduce_scatter, *, rng):
    """With equal chunks, the ranks return the N chunks of the sum, one each, and no rank sends more than T bytes."""
    for n in (2, 3, 4, 8):
        lengths = equal_lengths(rng, n)
        run_tries(reduce_scatter, [_scatter(rng, n, numel, budget=sent_at_most(4 * numel)) for numel in lengths])


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_sends_all_chunks_but_one(reduce_scatter, *, rng):
    """Each rank sends T − c bytes, every chunk but one and none of them padded, in at most N − 1 messages."""
    for n in (2, 3, 4):
        numel = equal_lengths(rng, n)[1]
        budget = all_of(sent(*_all_but_one(numel, n)), messages(n - 1))
        run_tries(reduce_scatter, [_scatter(rng, n, numel, budget=budget, values=False)])
    expect_no_padding(reduce_scatter, uneven_lengths(rng, 4), lambda numel: _scatter(rng, 4, numel))


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_leaves_chunk_r_on_rank_r(reduce_scatter, *, rng):
    """The chunk that rank r returns is chunk r."""
    for n in (2, 3, 4):
        run_tries(reduce_scatter, [_scatter(rng, n, equal_lengths(rng, n)[1], turns=False, loose=True)])


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_stays_on_the_ring(reduce_scatter, *, rng):
    """Each rank sends to and receives from its neighbors only."""
    for n in (4, 5):
        run_tries(reduce_scatter, [_scatter(rng, n, equal_lengths(rng, n)[1], budget=ring(), loose=True)])


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_cuts_as_tensor_split_does(reduce_scatter, *, rng):
    """The length need not be a multiple of N, and may be less than N."""
    for n in (2, 3, 4):
        run_tries(reduce_scatter, [_scatter(rng, n, numel, loose=True) for numel in uneven_lengths(rng, n)])


@check("01-ex2-reduce-scatter", points=0.25)
def reduce_scatter_leaves_its_input_alone(reduce_scatter, *, rng):
    """The input stays as it was, and the result is a new tensor, with one rank, too."""
    for n in (1, 3):
        run_tries(reduce_scatter, [_scatter(rng, n, equal_lengths(rng, n)[1], loose=True, keeps=True)])


@check("01-ex2-reduce-scatter", veto=True)
def reduce_scatter_needs_nothing_but_its_messages(reduce_scatter, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone(reduce_scatter, [_scatter(rng, 4, 1004) for _ in range(4)], rng)


# ---- 3 · all_gather ----


def _gather(rng: np.random.Generator, n: int, numel: int, **how: Any) -> Try:
    (whole,) = vectors(rng, 1, numel)
    return Try(f"{numel} elements", np.array_split(whole, n), [whole] * n, extra=(numel,), **{"budget": anything} | how)


@check("01-ex3-all-gather", points=1.25)
def all_gather_joins_the_chunks(all_gather, *, rng):
    """With equal chunks, every rank returns the whole vector."""
    for n in (2, 3, 4, 8):
        yield from cases(all_gather, (_gather(rng, n, numel) for numel in equal_lengths(rng, n)))


@check("01-ex3-all-gather", points=0.5)
def all_gather_sends_all_chunks_but_one(all_gather, *, rng):
    """Each rank sends T − c bytes, every chunk but one and none of them padded, in at most N − 1 messages."""
    for n in (2, 3, 4):
        numel = equal_lengths(rng, n)[1]
        # Sending straight to everybody costs as many bytes; that it is no ring has a check of its own.
        budget = all_of(sent(*_all_but_one(numel, n)), messages(n - 1))
        run_tries(all_gather, [_gather(rng, n, numel, budget=budget, values=False)])
    expect_no_padding(all_gather, uneven_lengths(rng, 4), lambda numel: _gather(rng, 4, numel))


@check("01-ex3-all-gather", points=0.5)
def all_gather_stays_on_the_ring(all_gather, *, rng):
    """Each rank sends to and receives from its neighbors only."""
    for n in (4, 5):
        yield _gather(rng, n, equal_lengths(rng, n)[1], budget=ring()).case(all_gather)


@check("01-ex3-all-gather", points=0.5)
def all_gather_joins_unequal_chunks(all_gather, *, rng):
    """`numel` need not be a multiple of N, and may be less than N."""
    for n in (2, 3, 4):
        yield from cases(all_gather, (_gather(rng, n, numel) for numel in uneven_lengths(rng, n)))


@check("01-ex3-all-gather", points=0.25)
def all_gather_leaves_its_input_alone(all_gather, *, rng):
    """The chunk stays as it was, and the result is a new tensor, with one rank, too."""
    for n in (1, 3):
        run_tries(all_gather, [_gather(rng, n, equal_lengths(rng, n)[1], keeps=True)])


@check("01-ex3-all-gather", veto=True)
def all_gather_needs_nothing_but_its_messages(all_gather, *, rng):
    """A rank uses its own chunk and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone(all_gather, [_gather(rng, 4, 1004) for _ in range(4)], rng)


# ---- 7 · all_to_all ----


def _exchange(rng: np.random.Generator, n: int, numel: int, **how: Any) -> Try:
    given = vectors(rng, n, numel)
    cut = [np.array_split(vector, n) for vector in given]
    wanted = [np.concatenate([chunks[rank] for chunks in cut]) for rank in range(n)]
    return Try(f"{numel} elements", given, wanted, **{"budget": anything} | how)


@check("01-ex7-all-to-all", points=0.75)
def all_to_all_delivers_in_the_order_of_the_ranks(all_to_all, *, rng):
    """With equal chunks, rank r returns chunk r of every rank, in the order of the ranks."""
    for n in (2, 3, 4, 8):
        yield from cases(all_to_all, (_exchange(rng, n, numel) for numel in equal_lengths(rng, n)))


@check("01-ex7-all-to-all", points=0.5)
def all_to_all_takes_n_minus_1_rounds(all_to_all, *, rng):
    """No rank waits while others queue at one rank: at most N − 1 rounds."""
    for n in (3, 4, 8):
        yield _exchange(rng, n, equal_lengths(rng, n)[1], budget=rounds(n - 1)).case(all_to_all)


@check("01-ex7-all-to-all", points=0.25)
def all_to_all_sends_what_others_want(all_to_all, *, rng):
    """A rank sends T − c bytes: every chunk but its own, and none of them padded."""
    for n in (2, 3, 4):
        numel = equal_lengths(rng, n)[1]
        budget = sent([4 * numel - own for own in chunk_bytes(numel, n)])
        run_tries(all_to_all, [_exchange(rng, n, numel, budget=budget, values=False)])
    expect_no_padding(all_to_all, uneven_lengths(rng, 4), lambda numel: _exchange(rng, 4, numel))


@check("01-ex7-all-to-all", points=0.25)
def all_to_all_cuts_as_tensor_split_does(all_to_all, *, rng):
    """The length need not be a multiple of N, and may be less than N."""
    for n in (2, 3, 4):
        yield from cases(all_to_all, (_exchange(rng, n, numel) for numel in uneven_lengths(rng, n)))


@check("01-ex7-all-to-all", points=0.25)
def all_to_all_leaves_its_input_alone(all_to_all, *, rng):
    """The input stays as it was, and the result is a new tensor, with one rank, too."""
    for n in (1, 3):
        run_tries(all_to_all, [_exchange(rng, n, equal_lengths(rng, n)[1], keeps=True)])


@check("01-ex7-all-to-all", veto=True)
def all_to_all_needs_nothing_but_its_messages(all_to_all, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone(all_to_all, [_exchange(rng, 4, 1004) for _ in range(4)], rng)
