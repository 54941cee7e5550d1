"""What the checks of lesson 01 share: calls of a collective, what its ranks may send, and a rank that runs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.cases import Case, close, complaint, fact
from autograder.checking.expect import count_of_ranks, expect_close, fail
from autograder.checking.replay import Recording, Sent, expect_same_alone, run_recorded
from autograder.checking.stage import apart
from ranks.ledger import Ledger

#: A power of two each, and numbers that are none.
POWERS, OTHERS = (1, 2, 4, 8), (3, 5, 6)


@dataclass
class Held:
    """What a rank holds after the call."""

    missing: str = complaint()
    result: Any = fact("the result")


@dataclass(frozen=True)
class Try:
    """One call on all ranks: rank r passes `given[r]` and then `extra`, and must end with `wanted[r]`.

    budget: the messages of all ranks → what is wrong with them, or "".
    in_place: a rank must end there in the tensor that it passed; else it returns a tensor. turns: `wanted` may be dealt
    out one rank further, or any number of ranks.
    """

    name: str
    given: list[np.ndarray]
    wanted: list[np.ndarray]
    budget: Callable[[Ledger], str]
    extra: tuple = ()
    in_place: bool = False
    turns: bool = False

    def case(self, function: Any) -> Case:
        """The case that tries a student's function in this way, unless it `turns`."""
        n, args = len(self.given), (function, self.given, self.extra, self.in_place)
        expect = [Held("", close(wanted, dtype="float32")) for wanted in self.wanted]
        return Case(self.name, n, call, args, expect=expect, judge=_Messages(n, self.budget))

    def judge(self, held: list[Held], messages: Ledger) -> None:
        """As the case does, of a run that was recorded."""
        n, name = len(self.given), f"{count_of_ranks(len(self.given))}, {self.name}"
        for by in range(n) if self.turns else ():
            if all(np.array_equal(h.result, self.wanted[(rank + by) % n]) for rank, h in enumerate(held)):
                break
        else:
            for (rank, one), wanted in zip(enumerate(held), self.wanted, strict=True):
                if one.missing:
                    fail(f"on rank {rank}, {one.missing}", name, "missing")
                expect_close(name, one.result, wanted, what=f"the result on rank {rank}", rtol=0)
        if text := over_budget(messages, self.budget):
            fail(text, name, ["sent", messages.bytes_sent(), messages.rounds()])


def call(rank: int, world_size: int, function: Any, given: list, extra: tuple, in_place: bool) -> Held:
    """Inside a rank: the call, and what the rank holds then."""
    tensor = torch.from_numpy(given[rank].copy())
    result = function(tensor, *extra)
    result = tensor if in_place else result
    if not isinstance(result, torch.Tensor):
        return Held("no tensor came back: does the function return one?", np.zeros(0, np.float32))
    return Held("", result.detach().numpy().copy())


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


def ring(most: int) -> Callable[[Ledger], str]:
    """Each rank sends at most so many messages, and only to ranks next to it."""

    def judge(ledger: Ledger) -> str:
        n = ledger.world_size
        for message in ledger:
            if message.peer not in {(message.rank + 1) % n, (message.rank - 1) % n}:
                verb = "sent to" if message.is_send else "received from"
                return f"rank {message.rank} {verb} rank {message.peer}, which is not its neighbor"
        count = max(ledger.messages_sent(), default=0)
        return f"a rank sent {count} messages, expected at most {most}" if count > most else ""

    return judge


# ---- recorded runs ----


def run_tries(function: Any, tries: list[Try]) -> tuple[list[list[Sent]], list[Ledger], list[list[Held]]]:
    """What each rank sent, the messages of each try, and what the ranks held after it, all of it as it should be.

    The tries, on equally many ranks, run one after the other in one launch. All is judged at the end.
    """
    n = len(tries[0].given)
    held, sent_by, ledger = run_recorded(_in_turn, n, (function, [(t.given, t.extra, t.in_place) for t in tries]))
    parts = [ledger.of(rank).between_barriers() for rank in range(n)]
    if any(len(mine) != len(tries) + 2 for mine in parts):
        fail("barrier was called, but only send and receive are allowed", count_of_ranks(n), "barrier")
    messages = [Ledger(chain.from_iterable(mine[1 + number] for mine in parts), n) for number in range(len(tries))]
    after = [list(of_try) for of_try in zip(*held, strict=True)]
    for one, of_try, ledger in zip(tries, after, messages, strict=True):
        one.judge(of_try, ledger)
    return sent_by, messages, after


def expect_alone(function: Any, tries: list[Try], rng: np.random.Generator) -> None:
    """Try rank r on `tries[r]`, with the others and then again without them, given only the messages that it was sent.

    The second time the other ranks' inputs are other numbers.
    """
    sent_by, messages, after = run_tries(function, tries)
    queues, recordings, other = [iter(mine) for mine in sent_by], [], apart(function)
    for number, (one, ledger) in enumerate(zip(tries, messages, strict=True)):
        contents = [[next(queue) for _ in ledger.of(rank).sends()] for rank, queue in enumerate(queues)]
        given = [x if rank == number else numbers(rng, x.shape) for rank, x in enumerate(one.given)]
        recordings.append(Recording(number, (other, [(given, one.extra, one.in_place)]), contents, ledger))
    for rank, (again,) in enumerate(expect_same_alone(_in_turn, len(tries), recordings)):
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
