"""Lesson 01, exercises 4, 5 and 6: three ways to give every rank the sum."""

from __future__ import annotations

from math import ceil, log2

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, fail
from autograder.checks.collectives.common import (
    WORLD_SIZES,
    Case,
    Trial,
    cases_of_4,
    chunk_bytes,
    expect_neighbors,
    expect_refusals,
    expect_rounds,
    expect_sent,
    expect_values,
    large_case,
    megabytes,
    run_cases,
    run_cases_alone,
    shaped_cases,
    sum_of,
    turned,
    vector_cases,
    vectors,
)


def _expect_sums(trials: list[Trial]) -> None:
    """On every rank the tensor itself has become the sum."""
    for trial in trials:
        total = sum_of(trial.case)
        expect_values(trial, lambda rank, total=total: total, in_place=True)


# ---- 4 · all_reduce ----


@check("01-ex4-all-reduce", points=2)
def all_reduce_sums_at_the_price_of_a_ring(all_reduce, *, rng):
    """Every rank's tensor becomes the sum, for the bytes of a ring's reduce-scatter and its all-gather."""
    for world_size in WORLD_SIZES:
        cases = vector_cases(rng, world_size) + shaped_cases(rng, world_size) + large_case(rng, world_size)
        _expect_all_reduces(run_cases(all_reduce, cases))


def _expect_all_reduces(trials: list[Trial]) -> None:
    _expect_sums(trials)
    for trial in trials:
        sizes = chunk_bytes(trial.case)
        expect_neighbors(trial, 2 * (trial.case.world_size - 1))
        both = ([2 * sum(sizes) - a - b for a, b in zip(sizes, turned(sizes, by), strict=True)] for by in (1, -1))
        expect_sent(trial, *both)


@check("01-ex4-all-reduce", core=True)
def all_reduce_needs_nothing_but_its_messages(all_reduce, *, rng):
    """A rank that works alone, from its input and the messages that it was sent, sends and ends with the same."""
    _expect_all_reduces(run_cases_alone(all_reduce, cases_of_4(rng), rng))


# ---- 5 · tree_all_reduce ----


@check("01-ex5-tree-all-reduce", points=2)
def tree_all_reduce_sums_within_its_budget(tree_all_reduce, *, rng):
    """Every rank's tensor becomes the sum, in at most 2⌈log2 N⌉ rounds, 2(N−1) messages and 2(N−1)·T bytes."""
    for world_size in WORLD_SIZES:
        cases = vector_cases(rng, world_size) + shaped_cases(rng, world_size) + megabytes(rng, world_size)
        _expect_trees(run_cases(tree_all_reduce, cases))


def _expect_trees(trials: list[Trial]) -> None:
    _expect_sums(trials)
    for trial in (trial for trial in trials if trial.case.inputs[0].size):
        world_size, sent, count = trial.case.world_size, trial.ledger.bytes_sent(), len(trial.ledger.sends())
        expected = 2 * (world_size - 1)
        if count != expected:
            fail(f"the ranks sent {count} messages in all, expected {expected}", trial.case.name, (count, sent))
        size = expected * trial.case.inputs[0].nbytes
        if sum(sent) != size:
            fail(f"the ranks sent {sum(sent)} bytes in all, expected {size}", trial.case.name, sent)
        expect_rounds(trial, 2 * ceil(log2(world_size)))


@check("01-ex5-tree-all-reduce", core=True)
def tree_needs_nothing_but_its_messages(tree_all_reduce, *, rng):
    """A rank that works alone, from its input and the messages that it was sent, sends and ends with the same."""
    _expect_trees(run_cases_alone(tree_all_reduce, cases_of_4(rng), rng))


# ---- 6 · halving_all_reduce ----


@check("01-ex6-halving-all-reduce", points=3.5)
def halving_sums_within_its_budget(halving_all_reduce, *, rng):
    """Every rank's tensor becomes the sum, in at most 2 log2 N rounds, for the bytes of a ring of equal chunks."""
    # A rank that exchanges the wrong halves crashes if they differ in length: equal halves first show what is wrong.
    _expect_halvings(run_cases(halving_all_reduce, [Case("4 ranks, 8 numbers", vectors(rng, 4, 8, "float64"))]))
    for world_size in (size for size in WORLD_SIZES if size & (size - 1) == 0):
        cases = vector_cases(rng, world_size) + shaped_cases(rng, world_size) + large_case(rng, world_size)
        _expect_halvings(run_cases(halving_all_reduce, cases))


def _expect_halvings(trials: list[Trial]) -> None:
    _expect_sums(trials)
    for trial in trials:
        world_size, sent, counts = trial.case.world_size, trial.ledger.bytes_sent(), trial.ledger.messages_sent()
        most = 2 * (world_size - 1) * max(chunk_bytes(trial.case))
        for rank, got in enumerate(sent):
            if got > most:
                text = f"rank {rank} sent {got} bytes, at most {most} are needed (all ranks: {sent})"
                fail(text, trial.case.name, sent)
        rounds = 2 * round(log2(world_size))
        expect_rounds(trial, rounds)
        if max(counts) > rounds:
            fail(f"a rank sent {max(counts)} messages, expected at most {rounds}", trial.case.name, counts)


@check("01-ex6-halving-all-reduce", core=True)
def halving_needs_nothing_but_its_messages(halving_all_reduce, *, rng):
    """A rank that works alone, from its input and the messages that it was sent, sends and ends with the same."""
    _expect_halvings(run_cases_alone(halving_all_reduce, cases_of_4(rng), rng))


@check("01-ex6-halving-all-reduce", points=0.5)
def halving_refuses_other_numbers_of_ranks(halving_all_reduce, *, rng):
    """If `world_size` is not a power of two, every rank raises a ValueError that names it, before any message."""
    for world_size in (3, 4, 6):
        case = Case(count_of_ranks(world_size), vectors(rng, world_size, 12, "float32"))
        if world_size == 4:
            _expect_halvings(run_cases(halving_all_reduce, [case]))
        else:
            expect_refusals(halving_all_reduce, [case], "world_size")
