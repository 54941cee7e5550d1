"""Lesson 01: what the five collectives must do, and what they may cost.

Every property is tried with 1, 2, 3, 4, 5 and 8 ranks. The numbers that are added are small enough for
their sums to be exact in the dtype that was asked for, so results are compared bit for bit: any order of
additions gives them, and an addition in a smaller dtype does not. What was sent is read from the ledger;
a barrier of the driver's own separates one case from the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.check import check, expect_unchanged, fail, run_ranks

WORLD_SIZES = (1, 2, 3, 4, 5, 8)
#: Where the bytes of a ring are counted: chunks are equal, unequal or empty.
WIRE_SIZES = (1, 2, 3, 4, 5)
OTHER_DTYPES = ("float32", "int64")
#: Lengths that divide by no N, by some, by all; 0 and 1 leave ranks without a chunk.
LENGTHS = (0, 1, 3, 7, 12, 1003, 840)
#: Values of one case are multiples of this, so that float64 is needed to add float64 inputs exactly.
_FINE = {"float32": 2.0**-8, "float64": 2.0**-40, "int64": 1}


@dataclass(frozen=True)
class Case:
    """One call: `inputs[r]` is what rank r brings, `extra` what it passes besides."""

    name: str
    inputs: Sequence[np.ndarray]
    extra: tuple = ()
    transposed: bool = False  # hand it over as a transposed view, which is not contiguous


@dataclass
class Outcome:
    """What one rank returned in one case, and what its tensors held."""

    result: np.ndarray | None  # what the function returned, read after all cases were run
    after: np.ndarray  # the input, after the call
    fresh: bool  # is the result's memory its own?
    error: tuple[str, str] | None = None  # the exception's type and text


def _drive(rank: int, world_size: int, function: Any, cases: list[Case]) -> list[Outcome]:
    """Inside a rank: one call a case, with a barrier before and after each."""
    kept, outcomes = [], []
    for case in cases:
        x = torch.from_numpy(case.inputs[rank].copy())
        x = x.t() if case.transposed else x
        dist.barrier()
        try:
            result = function(x, *case.extra)
            error = None
        except ValueError as raised:
            result, error = None, (type(raised).__name__, str(raised))
        is_tensor = isinstance(result, torch.Tensor)
        fresh = not is_tensor or result.numel() == 0 or _own_memory(result, [x, *(k for k in kept if k is not None)])
        kept.append(result if is_tensor else None)
        outcomes.append(Outcome(None, x.numpy().copy(), fresh, error))
    dist.barrier()
    for outcome, result in zip(outcomes, kept, strict=True):
        outcome.result = None if result is None else result.numpy().copy()
    return outcomes


def _own_memory(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    pointer = tensor.untyped_storage().data_ptr()
    return all(other.untyped_storage().data_ptr() != pointer for other in others if other.numel())


def _run(function: Any, world_size: int, cases: list[Case]) -> tuple[list[list[Outcome]], list[list[list]]]:
    """(outcomes[rank][case], messages[case][rank]) of one launch that tries all cases."""
    results = run_ranks(_drive, world_size, (function, cases))
    messages: list[list[list]] = [[[] for _ in range(world_size)] for _ in cases]
    for rank in range(world_size):
        place = -1
        for message in sorted(results.ledger.of(rank), key=lambda m: m.posted):
            if message.call == "barrier":
                place += 1
            elif message.is_collective:
                fail(f"{message.call} was called, but only send and receive are allowed", "collective", message.call)
            else:
                messages[min(max(place, 0), len(cases) - 1)][rank].append(message)
        if place != len(cases):
            fail("barrier was called, but only send and receive are allowed", "collective", "barrier")
    return list(results), messages


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random numbers whose sum over 8 ranks is exact in `dtype`."""
    whole = rng.integers(-(2**12), 2**12, shape) if dtype == "float32" else rng.integers(-(2**48), 2**48, shape)
    return np.asarray(whole * _FINE[dtype], dtype)


def _total(case: Case) -> np.ndarray:
    return np.asarray(np.sum(list(case.inputs), axis=0, dtype=case.inputs[0].dtype))


def _vectors(rng: np.random.Generator, world_size: int, numel: int, dtype: str) -> list[np.ndarray]:
    return [_numbers(rng, (numel,), dtype) for _ in range(world_size)]


def _vector_cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    """1-D inputs: all lengths in float64, two of them in the other dtypes."""
    lengths = LENGTHS if world_size <= 5 else (3, 1003)
    kinds = [(numel, "float64") for numel in lengths] + [(numel, dtype) for numel in (7, 12) for dtype in OTHER_DTYPES]
    return [
        Case(f"{world_size} ranks, {numel} numbers, {dtype}", _vectors(rng, world_size, numel, dtype))
        for numel, dtype in kinds
    ]


@dataclass(frozen=True)
class _Drawn(Sequence):
    """8 MB for each of 4 ranks, drawn where they are needed: megabytes that need not travel to the ranks."""

    seed: int

    def __len__(self) -> int:
        return 4

    def __getitem__(self, rank: int) -> np.ndarray:
        if not 0 <= rank < 4:
            raise IndexError(rank)
        return _numbers(np.random.default_rng([self.seed, rank]), (2 * 2**20,), "float32")


def _large_case(rng: np.random.Generator, world_size: int, **extra: int) -> list[Case]:
    """With 4 ranks, 8 MB: far more than what a socket holds."""
    if world_size != 4:
        return []
    name = ", ".join(["4 ranks, 8 MB, float32", *(f"{key} = {value}" for key, value in extra.items())])
    return [Case(name, _Drawn(int(rng.integers(2**32))), tuple(extra.values()))]


def _wire_cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    """1-D inputs whose messages are counted: sizes that divide, and sizes that do not."""
    return [
        Case(f"{world_size} ranks, {numel} numbers, {dtype}", _vectors(rng, world_size, numel, dtype))
        for numel, dtype in ((0, "float32"), (1, "float32"), (7, "float64"), (12, "float32"), (840, "float32"))
    ]


def _shaped_cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    """Inputs of several shapes, some of them not contiguous."""
    shapes = [((), False), ((2, 3, 4), False), ((4, 3), True), ((5, 1), False), ((0, 3), False)]
    cases = []
    for shape, transposed in shapes:
        for dtype in ("float32", "int64"):
            name = f"{world_size} ranks, {'transposed ' if transposed else ''}shape {shape}, {dtype}"
            cases.append(Case(name, [_numbers(rng, shape, dtype) for _ in range(world_size)], transposed=transposed))
    return cases


def _expect_equal(case: Case, rank: int, got: np.ndarray | None, expected: np.ndarray, all_got: list) -> None:
    """Bit for bit the expected numbers; `all_got` is the evidence: what every rank has."""
    if got is None:
        fail(f"rank {rank} got no tensor back: does the function return it?", case.name, "None")
    if got.dtype != expected.dtype:
        fail(f"rank {rank}'s result is {got.dtype}, expected {expected.dtype}", case.name, str(got.dtype))
    if got.shape != expected.shape:
        fail(f"rank {rank}'s result has shape {got.shape}, expected {expected.shape}", case.name, _evidence(all_got))
    wrong = np.flatnonzero(got.reshape(-1) != expected.reshape(-1))
    if wrong.size:
        at = int(wrong[0])
        values = f"element {at} is {got.reshape(-1)[at]}, expected {expected.reshape(-1)[at]}"
        fail(
            f"rank {rank}'s result is wrong in {wrong.size} of {got.size} elements: {values}",
            case.name,
            _evidence(all_got),
        )


def _evidence(arrays: list) -> list:
    """What all ranks hold, cut to a length at which comparing stays cheap."""
    return ["None" if a is None else np.asarray(a).reshape(-1)[:2048] for a in arrays]


def _no_error(case: Case, outcomes: list[Outcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        if outcome.error:
            kind, text = outcome.error
            fail(f"rank {rank} raised {kind}: {text}", case.name, (kind, text))


def _in_place_sums(function: Any, rng: np.random.Generator) -> None:
    for world_size in WORLD_SIZES:
        cases = _vector_cases(rng, world_size) + _shaped_cases(rng, world_size) + _large_case(rng, world_size)
        outcomes, _ = _run(function, world_size, cases)
        for c, case in enumerate(cases):
            of_case = [outcomes[rank][c] for rank in range(world_size)]
            _no_error(case, of_case)
            total = _total(case).T if case.transposed else _total(case)
            for rank, outcome in enumerate(of_case):
                _expect_equal(case, rank, outcome.after, total, [o.after for o in of_case])


def _chunk_sizes(numel: int, world_size: int) -> list[int]:
    """Lengths of `tensor_split(world_size)`: the first `numel mod N` are one longer."""
    quotient, rest = divmod(numel, world_size)
    return [quotient + (rank < rest) for rank in range(world_size)]


def _expect_neighbors(case: Case, world_size: int, messages: list[list], most: int) -> None:
    """Each rank sends at most `most` messages that are not empty, and only to ranks next to it on the ring."""
    for rank, mine in enumerate(messages):
        neighbors = {(rank + 1) % world_size, (rank - 1) % world_size}
        for message in mine:
            if message.peer not in neighbors:
                verb = "sent to" if message.is_send else "received from"
                got = [sorted({m.peer for m in each}) for each in messages]
                fail(f"rank {rank} {verb} rank {message.peer}, which is not its neighbor", case.name, got)
        count = sum(m.is_send for m in mine)
        if count > most:
            counts = [sum(m.is_send for m in each) for each in messages]
            fail(f"rank {rank} sent {count} messages, at most {most} are needed", case.name, counts)


def _sent(messages: list[list]) -> list[int]:
    return [sum(m.bytes for m in mine if m.is_send) for mine in messages]


# ---- 1 · broadcast ----


@check("01-ex1-broadcast")
def broadcast_delivers(broadcast, *, rng):
    """Every rank's tensor becomes the source's, for every source, shape and dtype."""
    for world_size in WORLD_SIZES:
        cases = []
        for src in range(world_size) if world_size <= 5 else (0, 3, 7):
            plain = Case(f"{world_size} ranks, 7 numbers, float64", _vectors(rng, world_size, 7, "float64"))
            tried = [plain] if src else [plain, *_shaped_cases(rng, world_size)]
            cases += [Case(f"{case.name}, src = {src}", case.inputs, (src,), case.transposed) for case in tried]
        cases += _large_case(rng, world_size, src=2)
        outcomes, _ = _run(broadcast, world_size, cases)
        for c, case in enumerate(cases):
            of_case = [outcomes[rank][c] for rank in range(world_size)]
            _no_error(case, of_case)
            source = case.inputs[case.extra[0]]
            source = source.T if case.transposed else source
            for rank, outcome in enumerate(of_case):
                _expect_equal(case, rank, outcome.after, source, [o.after for o in of_case])


@check("01-ex1-broadcast")
def broadcast_takes_logarithmic_rounds(broadcast, *, rng):
    """At most ⌈log2 N⌉ rounds, from every source."""
    for world_size in WORLD_SIZES:
        cases = [
            Case(f"{world_size} ranks, src = {src}", _vectors(rng, world_size, 5, "float32"), (src,))
            for src in (0, world_size - 1)
        ]
        _, messages = _run(broadcast, world_size, cases)
        for case, of_case in zip(cases, messages, strict=True):
            _expect_rounds(case, of_case, ceil(log2(world_size)))


def _expect_rounds(case: Case, messages: list[list], most: int) -> None:
    from ranks.ledger import Ledger

    rounds = Ledger(m for mine in messages for m in mine).rounds()
    if rounds > most:
        sent = [sorted(m.peer for m in mine if m.is_send) for mine in messages]
        fail(f"it took {rounds} rounds, {most} are enough", case.name, (rounds, sent))


@check("01-ex1-broadcast")
def broadcast_refuses_a_source_that_is_no_rank(broadcast, *, rng):
    """`src` outside 0…N−1 is a ValueError that names it, on every rank, before any message."""
    for world_size in (1, 3):
        cases = [
            Case(f"{world_size} ranks, src = {src}", _vectors(rng, world_size, 3, "float32"), (src,))
            for src in (-1, world_size, world_size + 5)
        ]
        _expect_refusals(broadcast, world_size, cases, "src")


def _expect_refusals(function: Any, world_size: int, cases: list[Case], name: str) -> None:
    outcomes, messages = _run(function, world_size, cases)
    for c, case in enumerate(cases):
        for rank in range(world_size):
            error = outcomes[rank][c].error
            if error is None:
                fail(f"rank {rank} raised no ValueError", case.name, "nothing raised")
            if name not in error[1]:
                fail(f"rank {rank}'s ValueError should name {name!r}, it says {error[1]!r}", case.name, "not named")
        if any(messages[c]):
            fail("messages were sent before the ValueError", case.name, "sent first")


# ---- 2 · reduce_scatter ----


@check("01-ex2-reduce-scatter")
def reduce_scatter_sums_chunks(reduce_scatter, *, rng):
    """Rank r returns chunk r of `tensor_split(N)` of the sum."""
    for world_size in WORLD_SIZES:
        cases = _vector_cases(rng, world_size)
        outcomes, _ = _run(reduce_scatter, world_size, cases)
        for c, case in enumerate(cases):
            of_case = [outcomes[rank][c] for rank in range(world_size)]
            _no_error(case, of_case)
            total = _total(case)
            for rank, expected in enumerate(np.array_split(total, world_size)):
                _expect_equal(case, rank, of_case[rank].result, expected, [o.result for o in of_case])


@check("01-ex2-reduce-scatter")
def reduce_scatter_sends_every_chunk_but_its_own(reduce_scatter, *, rng):
    """Rank r sends T − c_r bytes in at most N−1 messages, to its neighbors only."""
    for world_size in WIRE_SIZES:
        cases = _wire_cases(rng, world_size)
        _, messages = _run(reduce_scatter, world_size, cases)
        for case, of_case in zip(cases, messages, strict=True):
            _expect_neighbors(case, world_size, of_case, world_size - 1)
            item = case.inputs[0].itemsize
            sizes = [item * size for size in _chunk_sizes(case.inputs[0].size, world_size)]
            expected = [sum(sizes) - own for own in sizes]
            if _sent(of_case) != expected:
                fail(f"the ranks sent {_sent(of_case)} bytes, expected {expected}", case.name, _sent(of_case))


@check("01-ex2-reduce-scatter")
def reduce_scatter_leaves_its_input_alone(reduce_scatter, *, rng):
    """The input keeps its numbers, and the result is memory of its own."""
    _expect_fresh(reduce_scatter, rng, lambda world_size, x: ((x,) * world_size, ()))


def _expect_fresh(function: Any, rng: np.random.Generator, deal: Any) -> None:
    """deal(world_size, vector) → (what each rank brings, the other arguments)."""
    for world_size in (1, 2, 3, 4):
        cases = []
        for numel in (world_size, 7, 7, 12):  # the same length twice: a buffer used again would show
            parts, extra = deal(world_size, _numbers(rng, (numel,), "float64"))
            cases.append(Case(f"{world_size} ranks, {numel} numbers", [np.array(part) for part in parts], extra))
        outcomes, _ = _run(function, world_size, cases)
        for c, case in enumerate(cases):
            for rank in range(world_size):
                outcome = outcomes[rank][c]
                _no_error(case, [outcome])
                expect_unchanged(case.name, case.inputs[rank], outcome.after, what="the input")
                if not outcome.fresh:
                    fail("the result shares its memory with an input or an earlier result", case.name, "shared")


@check("01-ex2-reduce-scatter")
def reduce_scatter_refuses_what_is_not_1d(reduce_scatter, *, rng):
    """An input that is not 1-D is a ValueError that names it."""
    cases = [Case(f"shape {shape}", [_numbers(rng, shape, "float32")] * 2) for shape in ((4, 2), (), (2, 1))]
    _expect_refusals(reduce_scatter, 2, cases, "tensor")


# ---- 3 · all_gather ----


def _dealt(case: Case, world_size: int) -> Case:
    """Rank 0's vector of a case, cut into one chunk a rank, as `all_gather` takes them."""
    whole = case.inputs[0]
    return Case(case.name, np.array_split(whole, world_size), (whole.size,))


@check("01-ex3-all-gather")
def all_gather_delivers(all_gather, *, rng):
    """Every rank returns the whole vector."""
    for world_size in WORLD_SIZES:
        cases = [_dealt(case, world_size) for case in _vector_cases(rng, world_size)]
        outcomes, _ = _run(all_gather, world_size, cases)
        for c, case in enumerate(cases):
            whole = np.concatenate(case.inputs)
            of_case = [outcomes[rank][c] for rank in range(world_size)]
            _no_error(case, of_case)
            for rank, outcome in enumerate(of_case):
                _expect_equal(case, rank, outcome.result, whole, [o.result for o in of_case])


@check("01-ex3-all-gather")
def all_gather_sends_every_chunk_but_one(all_gather, *, rng):
    """Rank r sends T − c_{r+1} bytes (or all ranks T − c_{r−1}), in at most N−1 messages, to neighbors only."""
    for world_size in WIRE_SIZES:
        cases = [_dealt(case, world_size) for case in _wire_cases(rng, world_size)]
        _, messages = _run(all_gather, world_size, cases)
        for case, of_case in zip(cases, messages, strict=True):
            _expect_neighbors(case, world_size, of_case, world_size - 1)
            sizes = [part.nbytes for part in case.inputs]
            turns = [[sum(sizes) - sizes[(r + d) % world_size] for r in range(world_size)] for d in (1, -1)]
            if _sent(of_case) not in turns:
                fail(f"the ranks sent {_sent(of_case)} bytes, expected {turns[0]}", case.name, _sent(of_case))


@check("01-ex3-all-gather")
def all_gather_leaves_its_input_alone(all_gather, *, rng):
    """The chunk keeps its numbers, and the result is memory of its own."""
    _expect_fresh(all_gather, rng, lambda world_size, x: (np.array_split(x, world_size), (x.size,)))


@check("01-ex3-all-gather")
def all_gather_refuses_a_chunk_that_does_not_fit(all_gather, *, rng):
    """A chunk of another length, or one that is not 1-D, is a ValueError that names it."""
    cases = [
        Case("3 ranks, one number too many", [_numbers(rng, (n + 1,), "float32") for n in (3, 2, 2)], (7,)),
        Case("3 ranks, one number too few", [_numbers(rng, (n - 1,), "float32") for n in (3, 2, 2)], (7,)),
        Case("3 ranks, equal lengths for 7 numbers", [_numbers(rng, (n,), "float32") for n in (2, 3, 3)], (7,)),
        Case("3 ranks, a matrix", [_numbers(rng, (2, 1), "float32") for _ in range(3)], (6,)),
    ]
    _expect_refusals(all_gather, 3, cases, "chunk")


# ---- 4 · all_reduce ----


@check("01-ex4-all-reduce")
def all_reduce_sums(all_reduce, *, rng):
    """Every rank's tensor becomes the sum, for every shape, contiguity and dtype."""
    _in_place_sums(all_reduce, rng)


@check("01-ex4-all-reduce")
def all_reduce_sends_the_bytes_of_a_ring(all_reduce, *, rng):
    """The bytes of the reduce-scatter and of the all-gather, in at most 2(N−1) messages, to neighbors only."""
    for world_size in WIRE_SIZES:
        cases = _wire_cases(rng, world_size)
        _, messages = _run(all_reduce, world_size, cases)
        for case, of_case in zip(cases, messages, strict=True):
            _expect_neighbors(case, world_size, of_case, 2 * (world_size - 1))
            item = case.inputs[0].itemsize
            sizes = [item * size for size in _chunk_sizes(case.inputs[0].size, world_size)]
            turns = [
                [2 * sum(sizes) - sizes[r] - sizes[(r + d) % world_size] for r in range(world_size)] for d in (1, -1)
            ]
            if _sent(of_case) not in turns:
                fail(f"the ranks sent {_sent(of_case)} bytes, expected {turns[0]}", case.name, _sent(of_case))


# ---- 5 · tree_all_reduce ----


@check("01-ex5-tree-all-reduce")
def tree_all_reduce_sums(tree_all_reduce, *, rng):
    """Every rank's tensor becomes the sum, for every shape, contiguity and dtype."""
    _in_place_sums(tree_all_reduce, rng)


@check("01-ex5-tree-all-reduce")
def tree_all_reduce_keeps_its_budget(tree_all_reduce, *, rng):
    """At most 2⌈log2 N⌉ rounds, 2(N−1) messages and 2(N−1)·T bytes in all."""
    for world_size in WORLD_SIZES:
        cases = [
            Case(f"{world_size} ranks, {numel} numbers", _vectors(rng, world_size, numel, "float64"))
            for numel in (1, 13)
        ]
        _, messages = _run(tree_all_reduce, world_size, cases)
        for case, of_case in zip(cases, messages, strict=True):
            count = sum(m.is_send for mine in of_case for m in mine)
            if count != 2 * (world_size - 1):
                fail(f"{count} messages in all, expected {2 * (world_size - 1)}", case.name, (count, _sent(of_case)))
            total, expected = sum(_sent(of_case)), 2 * (world_size - 1) * case.inputs[0].nbytes
            if total != expected:
                fail(f"{total} bytes in all, expected {expected}", case.name, _sent(of_case))
            _expect_rounds(case, of_case, 2 * ceil(log2(world_size)))
