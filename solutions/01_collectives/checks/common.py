"""What the checks of lesson 01 share: cases of a collective, what its ranks may send, and a rank that runs alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, close, evidence, fact, sentence
from autograder.checks.expect import CheckFailed, count_of_ranks, fail
from autograder.checks.replay import Recording, Sent, expect_same_alone, run_recorded
from autograder.checks.stage import apart
from ranks.ledger import Ledger

#: A power of two each, and numbers that are none.
POWERS, OTHERS = (1, 2, 4, 8), (3, 5, 6)
#: The messages of all ranks → what is wrong with them, or "".
Budget = Callable[[Ledger], str]


@dataclass
class Held:
    """What a rank holds after the call. returned: what a function that works in place returned all the same."""

    missing: str = sentence()
    result: Any = fact("the result")
    kept: str = sentence()
    returned: Any = evidence()


def case_of(
    function: Any,
    name: str,
    given: list[np.ndarray],
    wanted: list[np.ndarray],
    budget: Budget,
    *,
    extra: tuple = (),
    in_place: bool = False,
    turns: bool = False,
    loose: bool = False,
    values: bool = True,
    keeps: bool = False,
) -> Case:
    """One call on all ranks: rank r passes `given[r]` and then `extra`, and must end with `wanted[r]`.

    in_place: a rank must end there in the tensor that it passed; else it returns a tensor. turns: `wanted` may be dealt
    out one rank further, or any number of ranks. loose: the mean may come for the sum, and in place of a change in
    place; other checks take points for these. values: False if the messages alone count. keeps: the input stays as it
    was, and the result is a new tensor.
    """
    n = len(given)
    kept = {"kept": ""} if keeps else {}
    expect = [Held("", close(one, dtype="float32"), **kept) if values else Held() for one in wanted]

    def forgive(held: list[Held]) -> list[Held]:
        of_ranks = [[one.result for one in held], *([[one.returned for one in held]] if loose else [])]
        for results, by, factor in itertools.product(of_ranks, range(n if turns else 1), (1, n) if loose else (1,)):
            if all(_is(found, wanted[(rank + by) % n], factor) for rank, found in enumerate(results)):
                return [replace(one, missing="", result=right) for one, right in zip(held, wanted, strict=True)]
        return held

    args, sees = (function, given, extra, in_place), forgive if turns or loose else None
    return Case(name, n, call, args, expect, judge=_Messages(n, budget), sees=sees)


def _is(found: Any, wanted: np.ndarray, factor: int) -> bool:
    """Is an array what it should be, after a multiplication by this factor?"""
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape:
        return False
    return np.array_equal(found, wanted) if factor == 1 else np.allclose(factor * found, wanted, rtol=1e-5, atol=1e-4)


def call(rank: int, world_size: int, function: Any, given: list, extra: tuple, in_place: bool) -> Held:
    """Inside a rank: the call, and what the rank holds then."""
    tensor = torch.from_numpy(given[rank].copy())
    returned = function(tensor, *extra)
    result = tensor if in_place else returned
    if not isinstance(result, torch.Tensor):
        return Held("no tensor came back: does the function return one?", np.zeros(0, np.float32), "", None)
    kept = ""
    if not np.array_equal(tensor.numpy(), given[rank]):
        kept = "the function has changed its input, which should stay as it was"
    elif result.numel() and result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        kept = "the result is the input's memory, not a new tensor: whoever changes the one changes the other"
    also = returned.detach().numpy().copy() if isinstance(returned, torch.Tensor) else None
    return Held("", result.detach().numpy().copy(), kept, also)


class _Messages:
    """Judges the messages of all ranks at once, although a case shows those of one rank after the other."""

    def __init__(self, n: int, budget: Budget):
        self.n, self.budget, self.seen = n, budget, []

    def __call__(self, rank: int, parts: list[Ledger]) -> str:
        self.seen = [*(self.seen if rank else []), *parts[0]]
        return over_budget(Ledger(self.seen, self.n), self.budget) if rank == self.n - 1 else ""


def over_budget(ledger: Ledger, budget: Budget) -> str:
    """What is wrong with the messages of a call, in a sentence, or ""."""
    others = [message.call for message in ledger if message.is_collective]
    return f"{others[0]} was called, but only send and receive are allowed" if others else budget(ledger)


# ---- inputs ----


def numbers(rng: np.random.Generator, shape: Any) -> np.ndarray:
    """Random numbers of which up to 8 have a sum that is exact in float32."""
    return np.asarray(rng.integers(-(2**12), 2**12, shape) / 256, np.float32)


def vectors(rng: np.random.Generator, n: int, shape: Any) -> list[np.ndarray]:
    """Random numbers for each of n ranks."""
    return [numbers(rng, shape) for _ in range(n)]


def equal_lengths(rng: np.random.Generator, n: int) -> tuple[int, int]:
    """Two lengths that n ranks cut into equal chunks; the second is drawn."""
    return 3 * n, n * int(rng.integers(4, 40))


def uneven_lengths(rng: np.random.Generator, n: int) -> tuple[int, ...]:
    """Lengths that n ranks, at least 2, cut into unequal chunks; the last one leaves ranks without an element."""
    return 2 * n + 1, n * int(rng.integers(4, 40)) + int(rng.integers(1, n)), n - 1


def chunk_bytes(numel: int, n: int) -> list[int]:
    """The bytes of each rank's chunk in float32, as tensor_split cuts."""
    return [4 * len(chunk) for chunk in np.array_split(np.empty(numel, np.int8), n)]


def turned(sizes: list[int], by: int) -> list[int]:
    """For each rank, the size of the rank that is `by` places further on the ring."""
    return [sizes[(rank + by) % len(sizes)] for rank in range(len(sizes))]


def log2_up(n: int) -> int:
    """⌈log2 n⌉."""
    return (n - 1).bit_length()


# ---- budgets ----


def anything(ledger: Ledger) -> str:
    """Whatever the ranks send."""
    return ""


def all_of(*budgets: Budget) -> Budget:
    """The first sentence of several budgets."""
    return lambda ledger: next(filter(None, (budget(ledger) for budget in budgets)), "")


def _at_most(most: int, words: str, count: Callable[[Ledger], int]) -> Budget:
    """No larger count. words: a sentence with {} for it."""

    def judge(ledger: Ledger) -> str:
        got = count(ledger)
        return f"{words.format(got)}, expected at most {most}" if got > most else ""

    return judge


def rounds(most: int) -> Budget:
    """At most so many rounds."""
    return _at_most(most, "the messages took {} rounds", Ledger.rounds)


def sent_at_most(most: int) -> Budget:
    """No rank sends more bytes."""
    return _at_most(most, "a rank sent {} bytes", lambda ledger: max(ledger.bytes_sent()))


def messages(most: int) -> Budget:
    """Each rank sends at most so many messages."""
    return _at_most(most, "a rank sent {} messages", lambda ledger: max(ledger.messages_sent()))


def sent(*allowed: list[int]) -> Budget:
    """Each rank sends exactly so many bytes; there are two lists where a ring may turn either way."""

    def judge(ledger: Ledger) -> str:
        got = ledger.bytes_sent()
        return "" if got in allowed else f"the ranks sent {got} bytes, expected {allowed[0]}"

    return judge


def ring(ledger: Ledger) -> str:
    """Each rank sends only to ranks next to it."""
    n = ledger.world_size
    for message in ledger:
        if message.peer not in {(message.rank + 1) % n, (message.rank - 1) % n}:
            verb = "sent to" if message.is_send else "received from"
            return f"rank {message.rank} {verb} rank {message.peer}, which is not its neighbor"
    return ""


# ---- recorded runs ----


def expect_no_padding(cases: Iterable[Case]) -> None:
    """Chunks of unequal lengths travel as they are, and not padded to the longest.

    Whatever else is wrong with such chunks costs another property.
    """
    for case in cases:
        try:
            _, (ledger,), _ = _run([case])
        except CheckFailed:
            continue
        _, given, extra, _ = case.args
        sizes = chunk_bytes(extra[0] if extra else len(given[0]), case.ranks)
        if (got := ledger.bytes_sent()) == [(case.ranks - 1) * sizes[0]] * case.ranks:
            text = f"the ranks sent {got} bytes, as if all chunks were as long as the longest: they have {sizes} bytes"
            fail(text, case.name, got)


def _run(cases: list[Case]) -> tuple[list[list[Sent]], list[Ledger], list[list[Held]]]:
    """What each rank sent, the messages of each case, and what the ranks held after it, in one launch."""
    n = cases[0].ranks
    held, sent_by, ledger = run_recorded(_in_turn, n, ([case.args for case in cases],))
    parts = [ledger.of(rank).between_barriers() for rank in range(n)]
    if any(len(mine) != len(cases) + 2 for mine in parts):
        fail("barrier was called, but only send and receive are allowed", count_of_ranks(n), "barrier")
    of_cases = [[message for mine in parts for message in mine[1 + number]] for number in range(len(cases))]
    return sent_by, [Ledger(one, n) for one in of_cases], [list(of_case) for of_case in zip(*held, strict=True)]


def expect_alone(cases: list[Case], rng: np.random.Generator) -> None:
    """Try rank r on `cases[r]`, with the others and then again without them, given only the messages that it was sent.

    The second time the other ranks' inputs are other numbers. A rank whose result was wrong has nothing to hide, and is
    not tried alone: other checks see to it.
    """
    sent_by, messages, after = _run(cases)
    for case, ledger in zip(cases, messages, strict=True):
        if text := over_budget(ledger, anything):
            fail(text, case.name, "collective")
    queues, recordings = [iter(mine) for mine in sent_by], []
    for number, (case, ledger) in enumerate(zip(cases, messages, strict=True)):
        contents = [[next(queue) for _ in ledger.of(rank).sends()] for rank, queue in enumerate(queues)]
        if not any(np.array_equal(after[number][number].result, one.result.numbers) for one in case.expect):
            continue
        function, given, *how = case.args
        given = [x if rank == number else numbers(rng, x.shape) for rank, x in enumerate(given)]
        recordings.append(Recording(number, ([(apart(function), given, *how)],), contents, ledger))
    alone = expect_same_alone(_in_turn, len(cases), recordings) if recordings else []
    for rank, (again,) in zip((one.rank for one in recordings), alone, strict=True):
        if not np.array_equal(again.result, after[rank][rank].result):
            text = f"rank {rank}'s result changes when the rank runs alone, with its input and the messages that it got"
            fail(text, cases[rank].name, "not alone")


def _in_turn(rank: int, world_size: int, todo: list[tuple]) -> list[Held]:
    """Inside a rank: one call after the other, with a barrier before and after each."""
    held = []
    for args in todo:
        dist.barrier()
        held.append(call(rank, world_size, *args))
    dist.barrier()
    return held
