"""What the checks of lesson 01 share: calls of a collective, what its ranks may send, and a rank that runs alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.cases import Case, close, clue, complaint, fact
from autograder.checking.expect import CheckFailed, count_of_ranks, expect_close, fail
from autograder.checking.replay import Recording, Sent, expect_same_alone, run_recorded
from autograder.checking.stage import apart
from ranks.ledger import Ledger

#: A power of two each, and numbers that are none.
POWERS, OTHERS = (1, 2, 4, 8), (3, 5, 6)


@dataclass
class Held:
    """What a rank holds after the call. returned: what a function that works in place returned all the same."""

    missing: str = complaint()
    result: Any = fact("the result")
    kept: Any = clue()
    returned: Any = clue()


@dataclass(frozen=True)
class Try:
    """One call on all ranks: rank r passes `given[r]` and then `extra`, and must end with `wanted[r]`.

    budget: the messages of all ranks → what is wrong with them, or "".
    in_place: a rank must end there in the tensor that it passed; else it returns a tensor. turns: `wanted` may be dealt
    out one rank further, or any number of ranks. loose: the mean may come for the sum, and in place of a change in
    place; other checks take points for these. values: False if the messages alone count. keeps: the input stays as it
    was, and the result is a new tensor.
    """

    name: str
    given: list[np.ndarray]
    wanted: list[np.ndarray]
    budget: Callable[[Ledger], str]
    extra: tuple = ()
    in_place: bool = False
    turns: bool = False
    loose: bool = False
    values: bool = True
    keeps: bool = False

    def case(self, function: Any) -> Case:
        """The case that tries a student's function in this way, unless it `turns` or is `loose`."""
        n, args = len(self.given), (function, self.given, self.extra, self.in_place)
        expect = [Held("", close(wanted, dtype="float32")) for wanted in self.wanted]
        return Case(self.name, n, call, args, expect=expect, judge=_Messages(n, self.budget))

    def judge(self, held: list[Held], messages: Ledger) -> None:
        """As the case does, of a run that was recorded."""
        name = f"{count_of_ranks(len(self.given))}, {self.name}"
        if self.values and not self._fits(held):
            for (rank, one), wanted in zip(enumerate(held), self.wanted, strict=True):
                if one.missing:
                    fail(f"on rank {rank}, {one.missing}", name, "missing")
                expect_close(name, one.result, wanted, what=f"the result on rank {rank}", rtol=0)
        if self.keeps and any(one.kept for one in held):
            fail(next(one.kept for one in held if one.kept), name, [one.kept for one in held])
        if text := over_budget(messages, self.budget):
            fail(text, name, ["sent", messages.bytes_sent(), messages.rounds()])

    def _fits(self, held: list[Held]) -> bool:
        """Do the ranks hold what they should, or what `turns` and `loose` allow?"""
        n = len(held)
        of_ranks = [[one.result for one in held], *([[one.returned for one in held]] if self.loose else [])]
        for results, by in itertools.product(of_ranks, range(n if self.turns else 1)):
            wanted = [self.wanted[(rank + by) % n] for rank in range(n)]
            for factor in (1, n) if self.loose else (1,):
                if all(_is(found, one, factor) for found, one in zip(results, wanted, strict=True)):
                    return True
        return False


def _is(found: Any, wanted: np.ndarray, factor: int) -> bool:
    """Is an array what it should be, after a multiplication by this factor?"""
    if not isinstance(found, np.ndarray) or found.shape != wanted.shape:
        return False
    return np.array_equal(found, wanted) if factor == 1 else np.allclose(factor * found, wanted, rtol=1e-5, atol=1e-4)


def call(rank: int, world_size: int, function: Any, given: list, extra: tuple, in_place: bool) -> Held:
    """Inside a rank: the call, and what the rank holds then."""
    tensor = torch.from_numpy(given[rank].copy())
    result = returned = function(tensor, *extra)
    result = tensor if in_place else result
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

    def __init__(self, n: int, budget: Callable[[Ledger], str]):
        self.n, self.budget, self.seen = n, budget, []

    def __call__(self, rank: int, parts: list[Ledger]) -> str:
        self.seen = [*(self.seen if rank else []), *parts[0]]
        return over_budget(Ledger(self.seen, self.n), self.budget) if rank == self.n - 1 else ""


def over_budget(ledger: Ledger, budget: Callable[[Ledger], str]) -> str:
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


# ---- budgets ----


def anything(ledger: Ledger) -> str:
    """Whatever the ranks send."""
    return ""


def all_of(*budgets: Callable[[Ledger], str]) -> Callable[[Ledger], str]:
    """The first complaint of several budgets."""
    return lambda ledger: next(filter(None, (budget(ledger) for budget in budgets)), "")


def rounds(most: int) -> Callable[[Ledger], str]:
    """At most so many rounds."""

    def judge(ledger: Ledger) -> str:
        got = ledger.rounds()
        return f"the messages took {got} rounds, expected at most {most}" if got > most else ""

    return judge


def sent(*allowed: list[int]) -> Callable[[Ledger], str]:
    """Each rank sends exactly so many bytes; there are two lists where a ring may turn either way."""

    def judge(ledger: Ledger) -> str:
        got = ledger.bytes_sent()
        return "" if got in allowed else f"the ranks sent {got} bytes, expected {allowed[0]}"

    return judge


def sent_at_most(most: int) -> Callable[[Ledger], str]:
    """No rank sends more bytes."""

    def judge(ledger: Ledger) -> str:
        got = ledger.bytes_sent()
        return f"the ranks sent {got} bytes, expected at most {most} from each" if max(got) > most else ""

    return judge


def messages(most: int) -> Callable[[Ledger], str]:
    """Each rank sends at most so many messages."""

    def judge(ledger: Ledger) -> str:
        count = max(ledger.messages_sent(), default=0)
        return f"a rank sent {count} messages, expected at most {most}" if count > most else ""

    return judge


def ring() -> Callable[[Ledger], str]:
    """Each rank sends only to ranks next to it."""

    def judge(ledger: Ledger) -> str:
        n = ledger.world_size
        for message in ledger:
            if message.peer not in {(message.rank + 1) % n, (message.rank - 1) % n}:
                verb = "sent to" if message.is_send else "received from"
                return f"rank {message.rank} {verb} rank {message.peer}, which is not its neighbor"
        return ""

    return judge


# ---- recorded runs ----


def run_tries(function: Any, tries: list[Try]) -> None:
    """The tries, on equally many ranks, run one after the other in one launch. All is judged at the end."""
    _, messages, after = _run(function, tries)
    for one, of_try, ledger in zip(tries, after, messages, strict=True):
        one.judge(of_try, ledger)


def expect_no_padding(function: Any, lengths: Iterable[int], make: Callable[[int], Try]) -> None:
    """Chunks of unequal lengths travel as they are, and not padded to the longest. make: the try of so many elements.

    Whatever else is wrong with such chunks costs another property.
    """
    for numel in lengths:
        one = make(numel)
        n = len(one.given)
        try:
            _, (ledger,), _ = _run(function, [one])
        except CheckFailed:
            continue
        sizes = chunk_bytes(numel, n)
        if (got := ledger.bytes_sent()) == [(n - 1) * sizes[0]] * n:
            text = f"the ranks sent {got} bytes, as if all chunks were as long as the longest: they have {sizes} bytes"
            fail(text, f"{count_of_ranks(n)}, {one.name}", got)


def _run(function: Any, tries: list[Try]) -> tuple[list[list[Sent]], list[Ledger], list[list[Held]]]:
    """What each rank sent, the messages of each try, and what the ranks held after it."""
    n = len(tries[0].given)
    held, sent_by, ledger = run_recorded(_in_turn, n, (function, [(t.given, t.extra, t.in_place) for t in tries]))
    parts = [ledger.of(rank).between_barriers() for rank in range(n)]
    if any(len(mine) != len(tries) + 2 for mine in parts):
        fail("barrier was called, but only send and receive are allowed", count_of_ranks(n), "barrier")
    of_tries = [[message for mine in parts for message in mine[1 + number]] for number in range(len(tries))]
    messages = [Ledger(one, n) for one in of_tries]
    return sent_by, messages, [list(of_try) for of_try in zip(*held, strict=True)]


def expect_alone(function: Any, tries: list[Try], rng: np.random.Generator) -> None:
    """Try rank r on `tries[r]`, with the others and then again without them, given only the messages that it was sent.

    The second time the other ranks' inputs are other numbers. A rank whose result was wrong has nothing to hide, and is
    not tried alone: other checks see to it.
    """
    sent_by, messages, after = _run(function, tries)
    for one, ledger in zip(tries, messages, strict=True):
        if text := over_budget(ledger, anything):
            fail(text, f"4 ranks, {one.name}", "collective")
    queues, recordings, other = [iter(mine) for mine in sent_by], [], apart(function)
    for number, (one, ledger) in enumerate(zip(tries, messages, strict=True)):
        contents = [[next(queue) for _ in ledger.of(rank).sends()] for rank, queue in enumerate(queues)]
        if not any(np.array_equal(after[number][number].result, wanted) for wanted in one.wanted):
            continue
        given = [x if rank == number else numbers(rng, x.shape) for rank, x in enumerate(one.given)]
        recordings.append(Recording(number, (other, [(given, one.extra, one.in_place)]), contents, ledger))
    alone = expect_same_alone(_in_turn, len(tries), recordings) if recordings else []
    for rank, (again,) in zip((one.rank for one in recordings), alone, strict=True):
        if not np.array_equal(again.result, after[rank][rank].result):
            text = f"rank {rank}'s result changes when the rank runs alone, with its input and the messages that it got"
            fail(text, f"4 ranks, {tries[rank].name}", "not alone")


def _in_turn(rank: int, world_size: int, function: Any, todo: list[tuple]) -> list[Held]:
    """Inside a rank: one call after the other, with a barrier before and after each."""
    held = []
    for given, extra, in_place in todo:
        dist.barrier()
        held.append(call(rank, world_size, function, given, extra, in_place))
    dist.barrier()
    return held


def cases(function: Any, tries: Iterable[Try]) -> Iterable[Case]:
    """The cases of several tries."""
    return (one.case(function) for one in tries)


def log2_up(n: int) -> int:
    """⌈log2 n⌉."""
    return (n - 1).bit_length()
