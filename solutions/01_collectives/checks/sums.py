"""Lesson 01, exercises 4, 5 and 6: three ways to give every rank the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.checks.cases import Case
from autograder.checks.check import check
from ranks.ledger import Ledger

from .common import (
    OTHERS,
    POWERS,
    Budget,
    all_of,
    anything,
    case_of,
    chunk_bytes,
    equal_lengths,
    expect_alone,
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


def _any(n: int, numel: int) -> Budget:
    return anything


def _sum(
    function: Any,
    rng: np.random.Generator,
    n: int,
    shape: Any,
    budget: Callable[[int, int], Budget] = _any,
    **how: Any,
) -> Case:
    """Every rank's tensor must become the sum. budget: (number of ranks, of elements) → what may be sent."""
    given = vectors(rng, n, shape)
    name = f"{shape} elements" if isinstance(shape, int) else f"shape {shape}"
    return case_of(function, name, given, [np.asarray(sum(given))] * n, budget(n, given[0].size), in_place=True, **how)


# ---- 4 · all_reduce ----


def _two_rings(n: int, numel: int) -> Budget:
    """The bytes of a ring's reduce-scatter and of its all-gather, which may turn either way."""
    sizes = chunk_bytes(numel, n)
    of_rings = [[8 * numel - a - b for a, b in zip(sizes, turned(sizes, by), strict=True)] for by in (1, -1)]
    return all_of(sent(*of_rings), messages(2 * (n - 1)), ring)


@check("01-ex4-all-reduce", points=1)
def all_reduce_gives_every_rank_the_sum(all_reduce, *, rng):
    """Every rank's tensor becomes the sum, with equal chunks."""
    for n in (1, 2, 3, 4, 8):
        for numel in equal_lengths(rng, n):
            yield _sum(all_reduce, rng, n, numel)


@check("01-ex4-all-reduce", points=0.5)
def all_reduce_sends_what_a_ring_does(all_reduce, *, rng):
    """Each rank sends the bytes of the two rings, 2 (N − 1)/N · T with equal chunks, to its neighbors alone."""
    for n in (2, 3, 4, 8):
        for numel in equal_lengths(rng, n):
            yield _sum(all_reduce, rng, n, numel, _two_rings, values=False)


@check("01-ex4-all-reduce", points=0.5)
def all_reduce_takes_any_shape(all_reduce, *, rng):
    """A matrix, a single number of shape (), and lengths that are no multiple of N."""
    for n in (2, 3, 4):
        for shape in ((), (n, int(rng.integers(2, 6)), 3), *uneven_lengths(rng, n)):
            yield _sum(all_reduce, rng, n, shape, loose=True)


@check("01-ex4-all-reduce", veto=True)
def all_reduce_needs_nothing_but_its_messages(all_reduce, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone([_sum(all_reduce, rng, 4, 1004, _two_rings) for _ in range(4)], rng)


# ---- 5 · tree_all_reduce ----


def _few(n: int, numel: int) -> Budget:
    """2 ⌈log2 N⌉ rounds."""
    return rounds(2 * log2_up(n))


def _tree(n: int, numel: int) -> Budget:
    """2 (N − 1) messages of T bytes in all."""

    def judge(ledger: Ledger) -> str:
        got, count, most = sum(ledger.bytes_sent()), len(ledger.sends()), 2 * (n - 1)
        if count != most:
            return f"the ranks sent {count} messages in all, expected {most}"
        size = most * 4 * numel
        return f"the ranks sent {got} bytes in all, expected {size}" if got != size else ""

    return judge


@check("01-ex5-tree-all-reduce", points=1)
def tree_adds_up_and_tells_all(tree_all_reduce, *, rng):
    """Every rank's tensor becomes the sum, in 2 (N − 1) messages of T bytes, for N = 1, 2, 4 and 8."""
    for n in POWERS:
        for shape in (int(rng.integers(2, 40)), (3, 2)):
            yield _sum(tree_all_reduce, rng, n, shape, _tree)


@check("01-ex5-tree-all-reduce", points=0.5)
def tree_takes_few_rounds(tree_all_reduce, *, rng):
    """At most 2 ⌈log2 N⌉ rounds, up and down, for N = 2 to 6 and 8."""
    for n in (2, 3, 4, 5, 6, 8):
        power = n in POWERS  # of other numbers of ranks the sums have a check of their own
        yield _sum(tree_all_reduce, rng, n, int(rng.integers(2, 40)), _few, loose=True, values=power)


@check("01-ex5-tree-all-reduce", points=0.5)
def tree_reaches_any_number_of_ranks(tree_all_reduce, *, rng):
    """N need not be a power of two: N = 3, 5 and 6."""
    for n in OTHERS:
        yield _sum(tree_all_reduce, rng, n, int(rng.integers(2, 40)), loose=True)


@check("01-ex5-tree-all-reduce", veto=True)
def tree_needs_nothing_but_its_messages(tree_all_reduce, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone([_sum(tree_all_reduce, rng, 4, 1004, _tree) for _ in range(4)], rng)


# ---- 6 · halving_all_reduce ----


def _halves(n: int, numel: int) -> Budget:
    """2 log2 N messages per rank, and the bytes of a ring with the largest chunk."""
    return all_of(sent_at_most(2 * (n - 1) * max(chunk_bytes(numel, n))), messages(2 * log2_up(n)))


@check("01-ex6-halving-all-reduce", points=1.5)
def halving_sums_within_its_budget(halving_all_reduce, *, rng):
    """Every rank's tensor becomes the sum, in 2 log2 N messages, for the bytes of a ring, if N divides its length."""
    for n in POWERS:
        for numel in equal_lengths(rng, n):
            yield _sum(halving_all_reduce, rng, n, numel, _halves)


@check("01-ex6-halving-all-reduce", points=0.5)
def halving_exchanges_at_once(halving_all_reduce, *, rng):
    """Partners send to each other in the same round: at most 2 log2 N rounds."""
    for n in POWERS[1:]:
        yield _sum(halving_all_reduce, rng, n, equal_lengths(rng, n)[1], _few, loose=True)


@check("01-ex6-halving-all-reduce", points=1)
def halving_takes_any_length_and_shape(halving_all_reduce, *, rng):
    """The length need not be a multiple of N, and the tensor may be a matrix."""
    for n in (2, 4, 8):
        for shape in ((2, n, 3), *uneven_lengths(rng, n)[:2]):
            yield _sum(halving_all_reduce, rng, n, shape, _halves, loose=True)


def _out_of_node(n: int, numel: int) -> Budget:
    """No more than T bytes leave each half of the ranks."""

    def judge(ledger: Ledger) -> str:
        for node in (0, 1):
            crossing = [m for m in ledger.sends() if 2 * m.rank // n == node != 2 * m.peer // n]
            if (got := sum(m.bytes for m in crossing)) > 4 * numel:
                ranks = f"{node * n // 2} to {(node + 1) * n // 2 - 1}"
                return f"{got / 4 / numel:g} T leave the node of ranks {ranks}, 1 T is enough"
        return ""

    return judge


@check("01-ex6-halving-all-reduce", points=1)
def halving_keeps_bytes_in_the_node(halving_all_reduce, *, rng):
    """If the ranks of each half form a node, at most T bytes leave it."""
    for n in (4, 8):
        for numel in equal_lengths(rng, n):
            yield _sum(halving_all_reduce, rng, n, numel, _out_of_node, loose=True)


@check("01-ex6-halving-all-reduce", veto=True)
def halving_needs_nothing_but_its_messages(halving_all_reduce, *, rng):
    """A rank uses its own tensor and the messages it gets, and nothing else: without the others it does the same."""
    expect_alone([_sum(halving_all_reduce, rng, 4, 1004, _halves) for _ in range(4)], rng)
