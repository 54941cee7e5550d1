"""Do ranks learn about each other by messages alone? Then each can do its part again without the others.

The ranks write the ledger themselves, and code that runs in a rank can write entries for messages that were never
sent. So the messages have to be enough. The ranks work on several cases, one after another, and the content of every
message is recorded. Then each rank runs again alone, in the jail in a process that has seen none of this. It is given
its own input for one case, fresh random numbers in place of the others' inputs, and the messages that it was sent.
From these it has to make the same messages and the same result. Given only the first few messages, it has to make
those that it sent before the next one arrived. Numbers that reached it any other way, through a file, a collective
that is not recorded or the variables of a driver, are then missing.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
import torch.distributed as dist

from autograder.checks.expect import count_of_ranks, fail
from autograder.checks.stage import run_ranks
from ranks.ledger import Ledger, Message, pairs


@dataclass
class Sent:
    """A message: the rank that it goes to, and its content; None if that is withheld."""

    to: int
    tag: int
    numbers: torch.Tensor | None

    @property
    def content(self) -> torch.Tensor:
        """The numbers of a message that is not withheld."""
        assert self.numbers is not None
        return self.numbers


@dataclass
class Recording:
    """A case as it was recorded, and the rank that is to do its part again.

    args: the worker's, for that rank. sent: what each rank sent. ledger: the messages of all.
    """

    rank: int
    args: tuple
    sent: list[list[Sent]]
    ledger: Ledger


@dataclass
class Part:
    """What one rank is given when it runs alone.

    args: the worker's. incoming: each message that it was sent, with the sender's rank. sources: for each of its
    receives that take a message from any rank, in their order, the sender; -1 if it got none.
    """

    rank: int
    args: tuple
    incoming: list[tuple[int, Sent]]
    sources: list[int]


def _message(group: Any, tensors: list[torch.Tensor], to: int, tag: int) -> Sent:
    """A copy of what a group is asked to send."""
    return Sent(dist.get_global_rank(group, to), tag, tensors[0].detach().clone())


@contextlib.contextmanager
def _patched(**methods: Callable) -> Iterator[None]:
    """Inside, these methods of torch's process groups are replaced."""
    before = {name: getattr(dist.ProcessGroup, name) for name in methods}
    try:
        for name, method in methods.items():
            setattr(dist.ProcessGroup, name, method)
        yield
    finally:
        for name, method in before.items():
            setattr(dist.ProcessGroup, name, method)


def run_and_record(rank: int, world_size: int, worker: Callable, args: tuple) -> tuple[Any, list[Sent]]:
    """Inside a rank: the worker's result, and a copy of each message that it sent."""
    sent: list[Sent] = []
    send = dist.ProcessGroup.send

    def record(group: Any, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        sent.append(_message(group, tensors, to, tag))
        return send(group, tensors, to, tag)

    with _patched(send=record):
        return worker(rank, world_size, *args), sent


class _NotSentError(BaseException):
    """A rank waits for a message that it is not given. A BaseException: no handler of the student's may catch it."""


def replay_alone(number: int, _: int, world_size: int, worker: Callable, parts: list[Part]) -> tuple[Any, list[Sent]]:
    """As `run_and_record`, in a process that plays the rank of `parts[number]`; the other ranks do not exist.

    The result is None if the messages were not enough.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ranks import record

    # Nobody sends what this process will receive. The search for hangs would take a slow receive for an endless one.
    record.detach()
    part = parts[number]
    sent: list[Sent] = []
    waiting, sources = list(part.incoming), list(part.sources)
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=part.rank, world_size=world_size)

    class Work:
        """What torch returns for a send or a receive. The wait for a receive copies the message into its tensor."""

        def __init__(self, source: int = -1, message: Sent | None = None, into: torch.Tensor | None = None):
            self.source, self.message, self.into = source, message, into

        def wait(self, *_: Any) -> bool:
            if self.into is not None:
                if self.message is None or self.message.numbers is None:
                    raise _NotSentError
                self.into.copy_(self.message.numbers.view(self.into.dtype).view(self.into.shape))
                self.into = None
            return True

        def is_completed(self) -> bool:
            return self.into is None  # as with gloo, only after the wait

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

    with _patched(send=send, recv=receive, recv_anysource=receive_from_any):
        try:
            return worker(part.rank, world_size, *part.args), sent
        except _NotSentError:
            return None, sent


def run_recorded(worker: Callable, world_size: int, args: tuple) -> tuple[list[Any], list[list[Sent]], Ledger]:
    """What the ranks returned, what each of them sent, and their ledger, which must agree with what they sent."""
    results = run_ranks(run_and_record, world_size, (worker, args), recorded=True)
    case = count_of_ranks(world_size)
    for rank, (_, sent) in enumerate(_well_formed(results, case)):
        of_ledger = [(m.peer, m.tag, m.bytes) for m in sorted(results.ledger.of(rank).sends(), key=lambda m: m.posted)]
        if of_ledger != [(one.to, one.tag, one.content.nbytes) for one in sent]:
            text = f"the ledger's {len(of_ledger)} messages from rank {rank} are not the {len(sent)} that it sent"
            fail(f"{text}: send and receive with torch.distributed's functions", case, "unrecorded")
    return [value for value, _ in results], [sent for _, sent in results], results.ledger


def expect_same_alone(worker: Callable, world_size: int, cases: list[Recording]) -> list[Any]:
    """What the ranks of `cases` return when each runs alone; they must send again what the recording says they sent.

    The worker and the arguments are those of the recorded run, but the submission's own objects have to come from
    `stage.apart`. The worker must not return None. Each rank has a case of its own, since processes that play two ranks
    of the same case could pass numbers to each other.
    """
    parts = [_part(case) for case in cases]
    # First with some messages withheld: a process that was given all of them could leave them for a later one.
    before = [_withhold(case, part) for case, part in zip(cases, parts, strict=True)]
    replayed = _replay(worker, world_size, [part for part, _, _ in before])
    for case, (part, most, count), (_, got) in zip(cases, before, replayed, strict=True):
        if not _same(got[:count], case.sent[case.rank][:count]):
            _fail_alone(part, world_size, f"{most} of the messages that it was sent")
    values = []
    for case, part, (value, got) in zip(cases, parts, _replay(worker, world_size, parts), strict=True):
        if value is None or not _same(got, case.sent[case.rank]):
            _fail_alone(part, world_size, "the messages that it was sent")
        values.append(value)
    return values


def _part(case: Recording) -> Part:
    incoming = [(rank, one) for rank, sent in enumerate(case.sent) for one in sent if one.to == case.rank]
    receives = sorted(case.ledger.of(case.rank), key=lambda m: m.posted)
    sources = [-1 if m.peer is None else m.peer for m in receives if m.from_any]
    return Part(case.rank, case.args, incoming, sources)


def _withhold(case: Recording, part: Part) -> tuple[Part, int, int]:
    """The part with only its first few messages, their number, and how many its rank sent before the next, as it says.

    The content of a withheld message is removed from the part: the submission can read everything in its process.
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
    results = run_ranks(replay_alone, len(parts), (world_size, worker, parts))
    return _well_formed(results, count_of_ranks(world_size))


def _same(got: list[Sent], expected: list[Sent]) -> bool:
    """Are these the same messages, to the same ranks and bit for bit?"""
    return len(got) == len(expected) and all(
        (a.to, a.tag, _bytes(a.content)) == (b.to, b.tag, _bytes(b.content)) for a, b in zip(got, expected, strict=True)
    )


def _bytes(numbers: torch.Tensor) -> bytes:
    # One element may have any stride and still count as contiguous; torch views no such tensor as bytes.
    return numbers.contiguous().as_strided((numbers.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def _fail_alone(part: Part, world_size: int, given: str) -> None:
    text = f"rank {part.rank} does not do the same when it runs again alone, with only its own input and {given}"
    fail(f"{text}: a rank may learn about the others by messages only", count_of_ranks(world_size), "not alone")


def _well_formed(results: list, case: str) -> list[tuple[Any, list[Sent]]]:
    """The results, if they have the form that `run_and_record` and `replay_alone` return; else the check fails.

    A submission that runs in the same process can make them anything.
    """
    for one in results:
        pair = isinstance(one, (tuple, list)) and len(one) == 2 and isinstance(one[1], list)
        if not pair or not all(
            isinstance(sent, Sent)
            and (type(sent.to), type(sent.tag)) == (int, int)
            and isinstance(sent.numbers, torch.Tensor)
            for sent in one[1]
        ):
            fail("the ranks' record of the messages that they sent cannot be read", case, "unsound")
    return results
