"""The ledger of a run: every message that a rank sent or received, read from the files of `ranks.record`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

SENDS, RECEIVES = ("send", "isend"), ("recv", "irecv")


@dataclass
class Message:
    """One call of a communication function by one rank.

    rank: who called. call: the function's name in `torch.distributed`. peer: the other rank of a send or
    receive (None for a collective). bytes: what this rank put in, for a receive the size of its buffer.
    start, end: seconds since the run's first event; end is None while the call has not ended (an `isend`
    that was never waited for stays so). line: the line of the cell or file that made the call.
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
    #: Places in this rank's sequence of events: when the call began and when it was known to be done.
    posted: int = 0
    completed: int | None = None
    #: Where this rank is blocked on it at the end of the record, as (file, line); None if it is not.
    waiting_at: tuple[str, int] | None = None
    #: A receive that named no source, whoever turned out to have sent.
    from_any: bool = False
    #: When an asynchronous collective was over, in seconds; `end` is when this rank's wait for it returned.
    over: float | None = None

    @property
    def until(self) -> float | None:
        """When the operation was over: when torch said so, or its call or wait returned, whichever came first."""
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
        """A call that a whole group makes together."""
        return not (self.is_send or self.is_receive)


@dataclass
class Span:
    """A stretch of a rank's time that its worker named with `torch.profiler.record_function(name)`.

    start, end: seconds since the run's first event, on the clock of the messages; end is None if it was not left.
    """

    rank: int
    name: str
    start: float
    end: float | None = None


@dataclass
class Record:
    """What one rank's file says: its messages and spans, in the order of their starts, and whether threads talked."""

    messages: list[Message] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    threaded: bool = False

    @property
    def waiting(self) -> Message | None:
        """The call in which this rank is blocked, if it is."""
        return next((m for m in reversed(self.messages) if m.waiting_at), None)


class Ledger(list[Message]):
    """All messages of a run, in the order of their starts, with the sums that one asks for most."""

    def __init__(self, messages: Iterable[Message] = (), world_size: int | None = None, spans: Iterable[Span] = ()):
        super().__init__(messages)
        #: The stretches of time that the workers named, in the order of their starts.
        self.spans = list(spans)
        #: How many ranks the run had; those that sent nothing count too.
        self.world_size = max((m.rank for m in self), default=-1) + 1 if world_size is None else world_size

    def of(self, rank: int) -> Ledger:
        """The messages and spans of one rank."""
        return Ledger((m for m in self if m.rank == rank), self.world_size, (s for s in self.spans if s.rank == rank))

    def sends(self) -> Ledger:
        """The point-to-point sends: each message that crossed, once."""
        return Ledger((m for m in self if m.is_send), self.world_size)

    def collectives(self) -> Ledger:
        """The collective calls: one a rank for each collective."""
        return Ledger((m for m in self if m.is_collective), self.world_size)

    def bytes_sent(self) -> list[int]:
        """Bytes that each rank sent point to point, rank by rank."""
        return [sum(m.bytes for m in self.of(rank).sends()) for rank in range(self.world_size)]

    def messages_sent(self) -> list[int]:
        """How many point-to-point messages each rank sent, rank by rank."""
        return [len(self.of(rank).sends()) for rank in range(self.world_size)]

    def between_barriers(self) -> list[Ledger]:
        """One rank's messages, cut at its barriers: what came before the first, between the first two, and so on."""
        parts = [Ledger(world_size=self.world_size)]
        for m in sorted(self, key=lambda m: m.posted):
            if m.call == "barrier":
                parts.append(Ledger(world_size=self.world_size))
            else:
                parts[-1].append(m)
        return parts

    def rounds(self) -> int:
        """The least number of rounds in which these sends can happen, a measure of latency.

        In a round a rank sends at most one message and receives at most one. A rank can only send after
        it has received what it received before in its program, and keeps the order of its sends.
        """
        return max((number for _, number in schedule(self)), default=0)

    def __str__(self) -> str:
        rows = [f"{'rank':>4}  {'call':<12}{'peer':>4}{'bytes':>10}{'start ms':>10}{'end ms':>10}  line"]
        for m in self:
            peer = "" if m.peer is None else m.peer
            end = "" if m.end is None else f"{m.end * 1e3:.2f}"
            rows.append(f"{m.rank:>4}  {m.call:<12}{peer:>4}{m.bytes:>10}{m.start * 1e3:>10.2f}{end:>10}  {m.line}")
        return "\n".join(rows)


def read_records(folder: Path, world_size: int) -> list[Record]:
    """What each rank has written so far; a line that is still being written is left out."""
    events = [list(_events(folder / f"events.{rank}")) for rank in range(world_size)]
    first = min((mine[0]["t"] for mine in events if mine), default=0.0)
    return [_record(rank, mine, first) for rank, mine in enumerate(events)]


def _events(path: Path) -> Iterable[dict]:
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def _record(rank: int, events: list[dict], first: float) -> Record:
    record, by_number, spans = Record(), {}, {}
    for ordinal, event in enumerate(events):
        record.threaded |= "thread" in event
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
                posted=ordinal,
                waiting_at=at if event["blocking"] else None,
                from_any=event["op"] in RECEIVES and event.get("peer") is None,
            )
            record.messages.append(message)
        elif event["e"] == "wait":
            by_number[event["i"]].waiting_at = tuple(event["at"])
        elif event["e"] == "begin":
            spans[event["i"]] = Span(rank, event["name"], time)
            record.spans.append(spans[event["i"]])
        elif event["e"] == "end":
            spans[event["i"]].end = time
        elif event["e"] == "over":
            by_number[event["i"]].over = time
        else:
            message = by_number[event["i"]]
            message.end, message.completed, message.waiting_at = time, ordinal, None
            if message.from_any:
                message.peer = event.get("peer", message.peer)
    return record


def pairs(ledger: Iterable[Message]) -> list[tuple[Message, Message]]:
    """(send, receive) for each message that crossed: the k-th send of r to d meets d's k-th receive from r."""
    queues: dict[tuple, list[Message]] = {}
    for m in ledger:
        if m.is_receive and m.peer is not None:
            queues.setdefault((m.peer, m.rank, m.tag), []).append(m)
    for queue in queues.values():
        queue.sort(key=lambda m: m.posted, reverse=True)
    sends = sorted((m for m in ledger if m.is_send), key=lambda m: (m.rank, m.posted))
    return [(m, queues[key].pop()) for m in sends if queues.get(key := (m.rank, m.peer, m.tag))]


def schedule(ledger: Iterable[Message]) -> list[tuple[Message, int]]:
    """Each send that met a receive, with the number of its round, as early as `Ledger.rounds` allows."""
    todo = pairs(ledger)
    rounds: dict[int, int] = {}  # id(send) → round

    def ready_after(send: Message, receive: Message) -> int | None:
        """The last round that must be over before this message; None while that is not yet known."""
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
        if len(rounds) == before:  # not from a run that ended
            raise ValueError("these messages wait for one another")
    return [(send, rounds[id(send)]) for send, _ in todo]
