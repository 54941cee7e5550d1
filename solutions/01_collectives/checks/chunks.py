"""Lesson 01, exercises 1, 2, 3 and 7: collectives that copy, or that leave each rank with a piece."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2
from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks
from autograder.checks.collectives.common import (
    WORLD_SIZES,
    Case,
    Chunks,
    Trial,
    cases_of_4,
    chunk_bytes,
    expect_fresh,
    expect_neighbors,
    expect_received,
    expect_refusals,
    expect_rounds,
    expect_sent,
    expect_values,
    large_case,
    megabytes,
    numbers,
    run_cases,
    run_cases_alone,
    shaped_cases,
    strided_case,
    sum_of,
    turned,
    vector_cases,
    vectors,
)

# ---- 1 · broadcast ----


@check("01-ex1-broadcast", points=2.5)
def broadcast_delivers_in_logarithmic_rounds(broadcast, *, rng):
    """Every rank's tensor becomes the source's, whatever the source, shape and dtype, in at most ⌈log2 N⌉ rounds."""
    for world_size in WORLD_SIZES:
        cases = []
        for src in range(world_size) if world_size <= 5 else (0, 3, 7):
            name = f"{count_of_ranks(world_size)}, 7 numbers, float64"
            plain = Case(name, vectors(rng, world_size, 7, "float64"))
            tried = [plain] if src else [plain, *shaped_cases(rng, world_size), strided_case(rng, world_size)]
            cases += [Case(f"{case.name}, src = {src}", case.inputs, (src,), case.layout) for case in tried]
        _expect_broadcasts(run_cases(broadcast, cases + large_case(rng, world_size, src=2)))


def _expect_broadcasts(trials: list[Trial]) -> None:
    for trial in trials:
        source = trial.case.seen(trial.case.inputs[trial.case.extra[0]])
        expect_values(trial, lambda rank, source=source: source, in_place=True)
    for trial in trials:
        expect_received(trial)
        expect_rounds(trial, ceil(log2(trial.case.world_size)))


@check("01-ex1-broadcast", core=True)
def broadcast_needs_nothing_but_its_messages(broadcast, *, rng):
    """A rank that works alone, from its input and the messages that it was sent, sends and ends with the same."""
    src = int(rng.integers(4))  # one for all cases: each rank is at another distance from it
    cases = [replace(case, extra=(src,)) for case in cases_of_4(rng)]
    _expect_broadcasts(run_cases_alone(broadcast, cases, rng))


@check("01-ex1-broadcast", points=0.5)
def broadcast_refuses_a_source_that_is_no_rank(broadcast, *, rng):
    """A `src` outside 0…N−1 raises a ValueError that names `src`, on every rank, before any message."""
    for world_size in (1, 3):
        cases = [
            Case(f"{count_of_ranks(world_size)}, src = {src}", vectors(rng, world_size, 3, "float32"), (src,))
            for src in (-1, world_size, world_size + 5)
        ]
        src = world_size - 1
        last = Case(f"{count_of_ranks(world_size)}, src = {src}", vectors(rng, world_size, 3, "float32"), (src,))
        expect_refusals(broadcast, cases, "src", last, _expect_broadcasts)


# ---- 2 · reduce_scatter ----


@check("01-ex2-reduce-scatter", points=3.5)
def reduce_scatter_sums_chunks_at_the_price_of_a_ring(reduce_scatter, *, rng):
    """Rank r returns chunk r of the sum, in memory of its own, and sends T − c_r bytes, only to its neighbors."""
    for world_size in WORLD_SIZES:
        _expect_reduce_scatters(run_cases(reduce_scatter, vector_cases(rng, world_size) + megabytes(rng, world_size)))


def _expect_reduce_scatters(trials: list[Trial]) -> None:
    for trial in trials:
        chunks = np.array_split(sum_of(trial.case), trial.case.world_size)
        expect_values(trial, chunks.__getitem__, in_place=False)
    for trial in trials:
        sizes = chunk_bytes(trial.case)
        expect_neighbors(trial, trial.case.world_size - 1)
        expect_sent(trial, [sum(sizes) - own for own in sizes])
    for trial in trials:
        expect_fresh(trial)


@check("01-ex2-reduce-scatter", core=True)
def reduce_scatter_needs_nothing_but_its_messages(reduce_scatter, *, rng):
    """A rank that works alone, from its input and the messages that it was sent, sends and returns the same."""
    _expect_reduce_scatters(run_cases_alone(reduce_scatter, cases_of_4(rng), rng))


@check("01-ex2-reduce-scatter", points=0.5)
def reduce_scatter_refuses_what_is_not_1d(reduce_scatter, *, rng):
    """A `tensor` that is not 1-D raises a ValueError that names it, on every rank, before any message."""
    _expect_refusals_of_shapes(reduce_scatter, _expect_reduce_scatters, rng)


def _expect_refusals_of_shapes(function: Any, expect: Any, rng: np.random.Generator) -> None:
    for world_size in (2, 1):
        ranks, shapes = count_of_ranks(world_size), ((4, 2), (), (2, 1), (2, 1, 2))
        cases = [Case(f"{ranks}, shape {shape}", [numbers(rng, shape, "float32")] * world_size) for shape in shapes]
        flat = Case(f"{ranks}, shape (4,)", vectors(rng, world_size, 4, "float32"))
        expect_refusals(function, cases, "tensor", flat, expect)


# ---- 3 · all_gather ----


@check("01-ex3-all-gather", points=2.5)
def all_gather_delivers_at_the_price_of_a_ring(all_gather, *, rng):
    """Every rank returns the whole vector, in memory of its own, and sends its neighbors all chunks but one."""
    for world_size in WORLD_SIZES:
        cases = vector_cases(rng, world_size) + megabytes(rng, world_size)
        _expect_all_gathers(run_cases(all_gather, [_in_chunks(case) for case in cases]))


def _in_chunks(case: Case) -> Case:
    """The case in which rank r passes chunk r of the vector that rank 0 had."""
    return Case(case.name, Chunks(case.inputs), (case.inputs[0].size,), case.layout)


def _expect_all_gathers(trials: list[Trial]) -> None:
    for trial in trials:
        whole = np.concatenate(trial.case.inputs)
        expect_values(trial, lambda rank, whole=whole: whole, in_place=False)
    for trial in trials:
        sizes = [part.nbytes for part in trial.case.inputs]
        expect_neighbors(trial, trial.case.world_size - 1)
        expect_sent(trial, *([sum(sizes) - other for other in turned(sizes, by)] for by in (1, -1)))
    for trial in trials:
        expect_fresh(trial)


@check("01-ex3-all-gather", core=True)
def all_gather_needs_nothing_but_its_messages(all_gather, *, rng):
    """A rank that works alone, from its input and the messages that it was sent, sends and returns the same."""
    _expect_all_gathers(run_cases_alone(all_gather, [_in_chunks(case) for case in cases_of_4(rng)], rng))


@check("01-ex3-all-gather", points=0.5)
def all_gather_refuses_a_chunk_that_does_not_fit(all_gather, *, rng):
    """A `chunk` of a wrong length, or one that is not 1-D, raises a ValueError that names it, before any message."""
    cases = [
        Case("3 ranks, one number too many", [numbers(rng, (n + 1,), "float32") for n in (3, 2, 2)], (7,)),
        Case("3 ranks, one number too few", [numbers(rng, (n - 1,), "float32") for n in (3, 2, 2)], (7,)),
        Case("3 ranks, chunks as long as other ranks'", [numbers(rng, (n,), "float32") for n in (2, 3, 3)], (7,)),
        Case("3 ranks, a matrix", [numbers(rng, (2, 1), "float32") for _ in range(3)], (6,)),
        Case("3 ranks, a number of shape ()", [numbers(rng, (), "float32") for _ in range(3)], (3,)),
    ]
    right = Case("3 ranks, chunks that fit", [numbers(rng, (n,), "float32") for n in (3, 2, 2)], (7,))
    expect_refusals(all_gather, cases, "chunk", right, _expect_all_gathers)
    alone = [
        Case("1 rank, one number too many", [numbers(rng, (4,), "float32")], (3,)),
        Case("1 rank, a matrix", [numbers(rng, (2, 1), "float32")], (2,)),
    ]
    right = Case("1 rank, a chunk that fits", [numbers(rng, (3,), "float32")], (3,))
    expect_refusals(all_gather, alone, "chunk", right, _expect_all_gathers)


# ---- 7 · all_to_all ----


@check("01-ex7-all-to-all", points=1.5)
def all_to_all_delivers_in_the_order_of_the_ranks(all_to_all, *, rng):
    """Rank r returns chunk r of every rank, in memory of its own, and sends T − c_r bytes in at most N−1 rounds."""
    for world_size in WORLD_SIZES:
        _expect_exchanges(run_cases(all_to_all, vector_cases(rng, world_size) + megabytes(rng, world_size)))


def _expect_exchanges(trials: list[Trial]) -> None:
    for trial in trials:
        cut = [np.array_split(vector, trial.case.world_size) for vector in trial.case.inputs]
        expect_values(trial, lambda rank, cut=cut: np.concatenate([chunks[rank] for chunks in cut]), in_place=False)
    for trial in trials:
        sizes = chunk_bytes(trial.case)
        expect_sent(trial, [sum(sizes) - own for own in sizes])
    for trial in trials:
        expect_rounds(trial, trial.case.world_size - 1)
        expect_fresh(trial)


@check("01-ex7-all-to-all", core=True)
def all_to_all_needs_nothing_but_its_messages(all_to_all, *, rng):
    """A rank that works alone, from its input and the messages that it was sent, sends and returns the same."""
    _expect_exchanges(run_cases_alone(all_to_all, cases_of_4(rng), rng))


@check("01-ex7-all-to-all", points=0.5)
def all_to_all_refuses_what_is_not_1d(all_to_all, *, rng):
    """A `tensor` that is not 1-D raises a ValueError that names it, on every rank, before any message."""
    _expect_refusals_of_shapes(all_to_all, _expect_exchanges, rng)
