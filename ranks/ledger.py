"""The ledger of a run: each send, receive and collective that a rank called, read from the files of `ranks.record`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The call that makes a group, in which ranks wait for each other, but send nothing of theirs: in no ledger.
NEW_GROUP = "new_group"

SENDS, RECEIVES = ("send", "isend"), ("recv", "irecv")


@dataclass
class Message:
    """One call of a communication function by one rank.

    rank: the rank that called. call: the function's name in `torch.distributed`. peer: the other rank of a send or
    receive, None for a collective. bytes: the size of what this rank put in, for a receive the size of its buffer.
    start, end: seconds since the run's first event; end is None if the call has not ended, as for an `isend` that
    its rank never waited for. file, line: the line of code that made the call. dtype: the tensor's, as a string. group:
    the ranks of the collective's group, None for all ranks. root: the `src` or `dst` of a collective. op: the name of a
    reduction, such as "SUM". each: the bytes that must be as many on every rank of a collective, None if any will do.
    """

    rank: int
    call: str
    peer: int | None
    bytes: int
    start: float
    end: float | None = None
    file: str = ""
    line: int = 0
    dtype: str | None = None
    tag: int = 0
    group: tuple[int, ...] | None = None
    root: int | None = None
    op: str = ""
    each: int | None = None
    #: Positions in this rank's sequence of events: the beginning of the call, and its end if it has ended.
    posted: int = 0
    completed: int | None = None
    #: (file, line) of the code that waits for it at the end of the record; None if this rank does not wait for it.
    waiting_at: tuple[str, int] | None = None
    #: A receive from any rank. `peer` is then the rank whose message came, None before one has come.
    from_any: bool = False
    #: When an asynchronous collective was over, in seconds; `end` is when this rank's `wait` for it returned.
    over: float | None = None

    @property
    def until(self) -> float | None:
        """When the operation was over, in seconds: the earlier of `over` and `end`, None if it was not."""
        return min((time for time in (self.over, self.end) if time is not None), default=None)

    @property
    def is_send(self) -> bool:
        """A point-to-point send, blocking or not."""
        return self.call in SENDS

    @property
    def is_receive(self) -> bool:
        """A point-to-point receive, blocking or not."""
        return self.call in RECEIVES

    @property
    def is_collective(self) -> bool:
        """A call that all ranks of a group make together, or all ranks for a new group."""
        return not (self.is_send or self.is_receive)


@dataclass
class Span:
    """A stretch of a rank's time that the worker marked with `torch.profiler.record_function(name)`.

    start, end: seconds since the run's first event, on the clock of the messages; end is None if the worker never left
    the stretch.
    """

    rank: int
    name: str
    start: float
    end: float | None = None


@dataclass
class Record:
    """One rank's file: its messages and spans in the order of their starts.

    threaded: did a background thread of the rank communicate? beside: may the rank go on before its last call returns?
    "thread" if it had other threads then, "limit" if the call waits for a limited time.
    notes: of a message, by its place `posted`: layout, shared, direct, asked, dropped (see `ranks.record`). left:
    (file, line) of the code that ended the group of all ranks.
    """

    messages: list[Message] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    threaded: bool = False
    beside: str = ""
    notes: dict[int, dict[str, Any]] = field(default_factory=dict)
    left: tuple[str, int] | None = None

    @property
    def waiting(self) -> Message | None:
        """The call in which this rank is blocked, if it is."""
        return next((m for m in reversed(self.messages) if m.waiting_at), None)


class Ledger(list[Message]):
    """The messages of a run in the order of their starts, with its spans, and the sums that are asked for most.

    spans: the marked stretches of time, in the order of their starts. world_size: the number of ranks of the run,
    those that sent nothing included; by default, one more than the highest rank in `messages`.
    """

    def __init__(self, messages: Iterable[Message] = (), world_size: int | None = None, spans: Iterable[Span] = ()):
        super().__init__(messages)
        self.spans = list(spans)
        self.world_size = max((m.rank for m in self), default=-1) + 1 if world_size is None else world_size

    def of(self, rank: int) -> Ledger:
        """The messages and spans of one rank."""
        return Ledger((m for m in self if m.rank == rank), self.world_size, (s for s in self.spans if s.rank == rank))

    def within(self, name: str) -> Ledger:
        """What each rank began inside the stretches that it marked with `torch.profiler.record_function(name)`.

        A message belongs to the stretch in which its call began, however late it ended. The spans are those that were
        marked inside, without the stretch itself. Times stay seconds since the run's first event. A rank that did not
        mark `name` contributes nothing. Raises ValueError if no rank marked it.
        """
        marked = [span for span in self.spans if span.name == name]
        if not marked:
            names = ", ".join(repr(name) for name in dict.fromkeys(span.name for span in self.spans))
            raise ValueError(f"no rank marked {name!r} with record_function; marked are: {names or 'none'}")
        inside = [span for span in self.spans if any(_began_in(mark, span) for mark in marked if mark is not span)]
        return Ledger(
            (message for message in self if any(_began_in(mark, message) for mark in marked)), self.world_size, inside
        )

    def sends(self) -> Ledger:
        """The point-to-point sends, and all spans: each message that was sent is in it once."""
        return Ledger((m for m in self if m.is_send), self.world_size, self.spans)

    def collectives(self) -> Ledger:
        """The collective calls, and all spans: each collective is in it once for each rank that called it."""
        return Ledger((m for m in self if m.is_collective), self.world_size, self.spans)

    def bytes_sent(self) -> list[int]:
        """The bytes that each rank sent point to point: entry r is rank r's."""
        return [sum(m.bytes for m in self.of(rank).sends()) for rank in range(self.world_size)]

    def messages_sent(self) -> list[int]:
        """The number of point-to-point messages that each rank sent: entry r is rank r's."""
        return [len(self.of(rank).sends()) for rank in range(self.world_size)]

    def between_barriers(self) -> list[Ledger]:
        """One rank's messages cut at its barriers: those before the first, between the first and the second, and so on.

        For one rank: `ledger.of(rank).between_barriers()`. The barriers and the spans are in no part.
        """
        parts = [Ledger(world_size=self.world_size)]
        for m in sorted(self, key=lambda m: m.posted):
            if m.call == "barrier":
                parts.append(Ledger(world_size=self.world_size))
            else:
                parts[-1].append(m)
        return parts

    def rounds(self) -> int:
        """The least number of rounds in which these messages can be sent, a measure of latency.

        In one round a rank sends at most one message and receives at most one. A rank keeps the order of its sends and
        that of its receives, and sends a message only in a later round than those that it had received by then.
        """
        return max((number for _, number in schedule(self)), default=0)

    def __str__(self) -> str:
        wide = max([12, *(len(m.call) + 2 for m in self)])
        rows = [f"{'rank':>4}  {'call':<{wide}}{'peer':>4}{'bytes':>10}{'start ms':>10}{'end ms':>10}  line"]
        for m in self:
            peer = "" if m.peer is None else m.peer
            end = "" if m.end is None else f"{m.end * 1e3:.2f}"
            rows.append(f"{m.rank:>4}  {m.call:<{wide}}{peer:>4}{m.bytes:>10}{m.start * 1e3:>10.2f}{end:>10}  {m.line}")
        return "\n".join(rows)


def read_records(folder: Path, world_size: int) -> list[Record]:
    """What each rank has recorded so far; a line that is still being written is left out."""
    events = [list(_events(folder / f"events.{rank}")) for rank in range(world_size)]
    first = min((mine[0]["t"] for mine in events if mine), default=0.0)
    return [_record(rank, mine, first) for rank, mine in enumerate(events)]


def ledger_of(records: list[Record]) -> Ledger:
    """What all ranks recorded, as one ledger."""
    made = (m for record in records for m in record.messages if m.call != NEW_GROUP)
    messages = sorted(made, key=lambda m: (m.start, m.rank))
    spans = sorted((s for record in records for s in record.spans), key=lambda s: (s.start, s.rank))
    return Ledger(messages, len(records), spans)


def _began_in(mark: Span, event: Message | Span) -> bool:
    """Did this event of the same rank begin between the mark's start and its end?"""
    return event.rank == mark.rank and mark.start <= event.start and (mark.end is None or event.start <= mark.end)


def _events(path: Path) -> Iterable[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def _record(rank: int, events: list[dict[str, Any]], first: float) -> Record:
    record = Record()
    by_number: dict[int, Message] = {}
    spans: dict[int, Span] = {}
    for ordinal, event in enumerate(events):
        record.threaded |= "thread" in event
        record.beside = event.get("beside", "") if event["e"] in ("call", "wait") else record.beside
        time = event["t"] - first
        if event["e"] == "call":
            at = tuple(event["at"])
            by_number[event["i"]] = message = Message(
                rank=rank,
                call=event["op"],
                peer=event.get("peer"),
                bytes=event["bytes"],
                start=time,
                file=at[0],
                line=at[1],
                dtype=event.get("dtype"),
                tag=event.get("tag", 0),
                group=tuple(event["group"]) if event.get("group") is not None else None,
                root=event.get("root"),
                op=event.get("op_name", ""),
                each=event.get("each"),
                posted=ordinal,
                waiting_at=at if event["blocking"] else None,
                from_any=event["op"] in RECEIVES and event.get("peer") is None,
            )
            record.messages.append(message)
            record.notes[ordinal] = {key: event[key] for key in ("layout", "shared", "direct") if key in event}
        elif event["e"] == "wait":
            by_number[event["i"]].waiting_at = tuple(event["at"])
        elif event["e"] == "begin":
            spans[event["i"]] = Span(rank, event["name"], time)
            record.spans.append(spans[event["i"]])
        elif event["e"] == "end":
            spans[event["i"]].end = time
        elif event["e"] == "over":
            by_number[event["i"]].over = time
        elif event["e"] == "left":
            record.left = tuple(event["at"])
        elif event["e"] in ("asked", "dropped"):
            record.notes[by_number[event["i"]].posted][event["e"]] = True
        elif event["e"] == "failed":
            by_number[event["i"]].waiting_at = None
            record.notes[by_number[event["i"]].posted]["asked"] = True
            if not event["begun"]:  # torch refused it: it is no message, and nobody meets it
                record.messages.remove(by_number[event["i"]])
        else:
            message = by_number[event["i"]]
            message.end, message.completed, message.waiting_at = time, ordinal, None
            if message.from_any:
                message.peer = event.get("peer", message.peer)
    return record


def pairs(ledger: Iterable[Message]) -> list[tuple[Message, Message]]:
    """(send, receive) for each message that was sent and received.

    The k-th send from r to d belongs to d's k-th receive from r, counted for each tag.
    """
    queues: dict[tuple[int, int, int], list[Message]] = {}
    for m in ledger:
        if m.is_receive and m.peer is not None:
            queues.setdefault((m.peer, m.rank, m.tag), []).append(m)
    for queue in queues.values():
        queue.sort(key=lambda m: m.posted, reverse=True)
    found = []
    for send in sorted((m for m in ledger if m.is_send), key=lambda m: (m.rank, m.posted)):
        if send.peer is not None and (left := queues.get((send.rank, send.peer, send.tag))):
            found.append((send, left.pop()))
    return found


def schedule(ledger: Iterable[Message]) -> list[tuple[Message, int]]:
    """Each send that has a receive, with the number of its round: the earliest that `Ledger.rounds` allows."""
    todo = pairs(ledger)
    rounds: dict[int, int] = {}  # id(send) → round

    def ready_after(send: Message, receive: Message) -> int | None:
        """The last round that must be over before this message is sent; None while it is not known."""
        latest = 0
        for other, its_receive in todo:
            before_send = other.rank == send.rank and other.posted < send.posted
            before_receive = its_receive.rank == receive.rank and its_receive.posted < receive.posted
            known_to_sender = (
                its_receive.rank == send.rank
                and its_receive.completed is not None
                and its_receive.completed < send.posted
            )
            if before_send or before_receive or known_to_sender:
                if id(other) not in rounds:
                    return None
                latest = max(latest, rounds[id(other)])
        return latest

    while len(rounds) < len(todo):
        before = len(rounds)
        for send, receive in todo:
            if id(send) not in rounds and (after := ready_after(send, receive)) is not None:
                rounds[id(send)] = after + 1
        if len(rounds) == before:  # no run that ended has such messages
            raise ValueError("the messages of this ledger wait for one another in a cycle")
    return [(send, rounds[id(send)]) for send, _ in todo]
