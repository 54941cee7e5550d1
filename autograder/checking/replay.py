"""Do ranks tell each other what they know by messages alone? Then each can do its part again without the others.

A ledger is written by the ranks themselves, and whoever runs there can write what never was. So here the messages
must be enough. Ranks work on one case after another, and what they send is kept. Then each rank is put where it is
alone, in the jail in a process that has seen nothing of this: with its own input for one case, numbers drawn anew in
place of the others', and the messages that it was sent. From these it has to make the same messages and the same
result; and, given only the first few, what it sent before the next arrived. Numbers that came any other way, by a
file, a collective that nobody has recorded or the variables of a driver, are not there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
import torch.distributed as dist

from autograder.checking.expect import count_of_ranks, fail
from autograder.checking.stage import run_ranks
from ranks.ledger import Ledger, Message, pairs


@dataclass
class Sent:
    """A message: to which rank, and what was in it; None where that is withheld."""

    to: int
    tag: int
    numbers: torch.Tensor | None


@dataclass
class Noted:
    """A case as its ranks have noted it, and the rank that does its part again.

    args: the worker's, for that rank. sent: what each rank sent. ledger: the messages of all.
    """

    rank: int
    args: tuple
    sent: list[list[Sent]]
    ledger: Ledger


@dataclass
class Part:
    """What one rank is given when it works alone.

    args: the worker's. incoming: what the others sent it, and which of them did. sources: who sent what it receives
    from anybody, in its order.
    """

    rank: int
    args: tuple
    incoming: list[tuple[int, Sent]]
    sources: list[int]


def _message(group: Any, tensors: list[torch.Tensor], to: int, tag: int) -> Sent:
    """What a group is asked to send, as it is now."""
    return Sent(dist.get_global_rank(group, to), tag, tensors[0].detach().clone())


def noted(rank: int, world_size: int, worker: Callable, args: tuple) -> tuple[Any, list[Sent]]:
    """Inside a rank: the worker's result, and a copy of each message that it sent."""
    sent, send = [], dist.ProcessGroup.send

    def note(group: Any, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        sent.append(_message(group, tensors, to, tag))
        return send(group, tensors, to, tag)

    dist.ProcessGroup.send = note
    try:
        return worker(rank, world_size, *args), sent
    finally:
        dist.ProcessGroup.send = send


class _NoMore(BaseException):
    """A rank waits for a message that it is not given. No Exception: the student's own handlers are not meant."""


def alone(number: int, _: int, world_size: int, worker: Callable, parts: list[Part]) -> tuple[Any, list[Sent]]:
    """Inside a process that plays the rank of `parts[number]` of a group that is not there: as `noted`.

    The result is None where the messages were not enough.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    part, sent = parts[number], []
    waiting, sources = list(part.incoming), list(part.sources)
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=part.rank, world_size=world_size)

    class Work:
        """What torch gives for a send or a receive: a message to be taken over when it is waited for, if any."""

        def __init__(self, source: int = -1, message: Sent | None = None, into: torch.Tensor | None = None):
            self.source, self.message, self.into = source, message, into

        def wait(self, *_: Any) -> bool:
            if self.into is not None:
                if self.message is None or self.message.numbers is None:
                    raise _NoMore
                self.into.copy_(self.message.numbers.view(self.into.dtype).view(self.into.shape))
                self.into = None
            return True

        def is_completed(self) -> bool:
            return self.into is None  # gloo, too, only knows it after the wait

        def _source_rank(self) -> int:
            return self.source

    def send(group: Any, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Work:
        sent.append(_message(group, tensors, to, tag))
        return Work()

    def receive(group: Any, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Work:
        source = dist.get_global_rank(group, source)
        place = next((at for at, (sender, one) in enumerate(waiting) if (sender, one.tag) == (source, tag)), None)
        return Work(source, None if place is None else waiting.pop(place)[1], tensors[0])

    def receive_from_any(group: Any, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        source = sources.pop(0) if sources else part.rank
        return receive(group, tensors, dist.get_group_rank(group, source), tag)

    dist.ProcessGroup.send, dist.ProcessGroup.recv = send, receive
    dist.ProcessGroup.recv_anysource = receive_from_any
    try:
        return worker(part.rank, world_size, *part.args), sent
    except _NoMore:
        return None, sent


def run_noted(worker: Callable, world_size: int, args: tuple) -> tuple[list[Any], list[list[Sent]], Ledger]:
    """What the ranks returned, what they sent, rank by rank, and their ledger, which must agree with it."""
    results = run_ranks(noted, world_size, (worker, args), recorded=True)
    case = count_of_ranks(world_size)
    for rank, (_, sent) in enumerate(_sound(results, case)):
        of_ledger = [(m.peer, m.tag, m.bytes) for m in sorted(results.ledger.of(rank).sends(), key=lambda m: m.posted)]
        if of_ledger != [(one.to, one.tag, one.numbers.nbytes) for one in sent]:
            text = f"the ledger has {len(of_ledger)} messages of rank {rank}'s, and it sent {len(sent)}, or others"
            fail(f"{text}: send and receive with torch.distributed's functions", case, "unrecorded")
    return [value for value, _ in results], [sent for _, sent in results], results.ledger


def expect_same_alone(worker: Callable, world_size: int, cases: list[Noted]) -> list[Any]:
    """What the ranks of `cases` return when each works alone; they must send what was noted that they sent.

    worker and the arguments are those of the run that was noted, but for the submission's own objects: take them from
    `stage.apart`. It does not return None. Each rank has a case of its own: processes that play two ranks of one could
    still tell each other something.
    """
    parts = [_part(case) for case in cases]
    # First with a part of the messages: who has seen all of them might leave the rest to who has not.
    before = [_withhold(case, part) for case, part in zip(cases, parts, strict=True)]
    replayed = _replay(worker, world_size, [part for part, _, _ in before])
    for case, (part, most, count), (_, got) in zip(cases, before, replayed, strict=True):
        if not _same(got[:count], case.sent[case.rank][:count]):
            _fail_alone(part, world_size, f"and {most} of the messages that it was sent")
    values = []
    for case, part, (value, got) in zip(cases, parts, _replay(worker, world_size, parts), strict=True):
        if value is None or not _same(got, case.sent[case.rank]):
            _fail_alone(part, world_size, "and the messages that it was sent")
        values.append(value)
    return values


def _part(case: Noted) -> Part:
    incoming = [(rank, one) for rank, sent in enumerate(case.sent) for one in sent if one.to == case.rank]
    receives = sorted(case.ledger.of(case.rank), key=lambda m: m.posted)
    return Part(case.rank, case.args, incoming, [m.peer for m in receives if m.from_any])


def _withhold(case: Noted, part: Part) -> tuple[Part, int, int]:
    """The part with the first few of its messages, how many, and how many its rank says it sent before the next.

    What is withheld is not there: the submission can look at all that its process holds.
    """
    mine = case.ledger.of(case.rank)
    ended = sorted((m for m in mine if m.is_receive), key=_end)
    if not ended:
        return part, 0, 0
    most = secrets.randbelow(len(ended))
    given = {id(m) for m in ended[:most]}
    received = {id(send): id(receive) in given for send, receive in pairs(case.ledger)}
    sends = sorted((m for m in case.ledger.sends() if m.peer == case.rank), key=lambda m: (m.rank, m.posted))
    incoming = [
        (source, one if received.get(id(send)) else replace(one, numbers=None))
        for (source, one), send in zip(part.incoming, sends, strict=True)
    ]
    return replace(part, incoming=incoming), most, sum(m.posted < _end(ended[most]) for m in mine.sends())


def _end(message: Message) -> float:
    return inf if message.completed is None else message.completed


def _replay(worker: Callable, world_size: int, parts: list[Part]) -> list[tuple[Any, list[Sent]]]:
    results = run_ranks(alone, len(parts), (world_size, worker, parts))
    return _sound(results, count_of_ranks(world_size))


def _same(got: list[Sent], expected: list[Sent]) -> bool:
    """The same messages: to whom, and bit for bit what."""
    return len(got) == len(expected) and all(
        (a.to, a.tag, _bytes(a.numbers)) == (b.to, b.tag, _bytes(b.numbers)) for a, b in zip(got, expected, strict=True)
    )


def _bytes(numbers: torch.Tensor) -> bytes:
    return numbers.reshape(-1).view(torch.uint8).numpy().tobytes()


def _fail_alone(part: Part, world_size: int, given: str) -> None:
    text = f"rank {part.rank} does not do the same again when it is alone, with its own input {given}"
    fail(f"{text}: all that a rank learns of the others must come in messages", count_of_ranks(world_size), "not alone")


def _sound(results: list, case: str) -> list[tuple[Any, list[Sent]]]:
    """The results, if they are what `noted` and `alone` return; a submission that runs beside them may say anything."""
    for one in results:
        pair = isinstance(one, (tuple, list)) and len(one) == 2 and isinstance(one[1], list)
        if not pair or not all(
            isinstance(sent, Sent)
            and (type(sent.to), type(sent.tag)) == (int, int)
            and isinstance(sent.numbers, torch.Tensor)
            for sent in one[1]
        ):
            fail("what the ranks say that they sent makes no sense", case, "unsound")
    return results
