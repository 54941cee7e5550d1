"""Why a run does not go on: which rank waits for which, and where the ranks' calls do not fit together.

`stuck` reads the ranks' records and names only ranks that can certainly never go on: a message counts as sent as soon
as its sender has begun the call, and a rank with background threads, or that waits for a limited time, counts as able
to do anything.
`headline`, `describe_wait` and `parted` put the answer into sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ranks.ledger import NEW_GROUP, Message, Record, pairs
from ranks.source import place


@dataclass(frozen=True)
class Waits:
    """Rank `rank` is blocked in `message` and waits for the ranks `on`: all of them, or any if it receives from any."""

    rank: int
    message: Message
    on: tuple[int, ...]
    mismatch: bool = False  # every member called a collective, but not the same one


def blocked(records: list[Record], finished: set[int]) -> dict[int, Waits]:
    """The ranks in a call that the other side has not begun, or in a collective that its members called differently."""
    result = {}
    for rank, record in enumerate(records):
        message = record.waiting
        if rank in finished or message is None or record.threaded or record.beside:
            continue
        waits = _collective_waits(records, message) if message.is_collective else _peer_waits(records, message)
        if waits is not None:
            result[rank] = waits
    return result


def stuck(records: list[Record], finished: set[int]) -> dict[int, Waits]:
    """The ranks that can never go on, because the ranks that they wait for are stuck too or have finished."""
    waiting = blocked(records, finished)
    able = {rank for rank in range(len(records)) if rank not in waiting and rank not in finished}
    while True:
        freed = {
            rank
            for rank, waits in waiting.items()
            if rank not in able and not waits.mismatch and _may_come(waits, able)
        }
        if not freed:
            return {rank: waits for rank, waits in waiting.items() if rank not in able}
        able |= freed


def _may_come(waits: Waits, able: set[int]) -> bool:
    if waits.message.from_any:
        return any(rank in able for rank in waits.on)
    return all(rank in able for rank in waits.on)


def _peer_waits(records: list[Record], message: Message) -> Waits | None:
    """A send waits for its receive, a receive for its send; None once the other side has begun that call."""
    wanted, begun = _counts(records, message)
    if begun >= wanted:
        return None
    others = tuple(rank for rank in range(len(records)) if rank != message.rank)
    return Waits(message.rank, message, others if message.peer is None else (message.peer,))


def _counts(records: list[Record], message: Message) -> tuple[int, int]:
    """How many calls like `message` its rank has begun, this one included, and how many were begun to match them."""
    mine = records[message.rank].messages
    if message.peer is None:  # a receive from any rank
        sent = sum(m.is_send and m.peer == message.rank for record in records for m in record.messages)
        return sum(m.is_receive for m in mine), sent
    wanted = sum(
        not m.is_collective
        and m.is_send == message.is_send
        and m.tag == message.tag
        and m.peer == message.peer
        and m.posted <= message.posted
        for m in mine
    )
    begun = sum(
        (m.is_receive if message.is_send else m.is_send)
        and m.tag == message.tag
        and (m.peer == message.rank or (m.from_any and m.completed is None))
        for m in records[message.peer].messages
    )
    return wanted, begun


def _collective_waits(records: list[Record], message: Message) -> Waits | None:
    """A collective waits for the members of its group that have not called it, or that called another one."""
    sequence = _sequence(message)
    members = sequence or tuple(range(len(records)))
    place = _collectives(records[message.rank], sequence).index(message)
    absent, differs = [], False
    for member in members:
        calls = _collectives(records[member], sequence)
        if len(calls) <= place:
            absent.append(member)
        elif (
            not _fit([calls[place], message]) and message.call != NEW_GROUP
        ):  # other groups may come about all the same
            differs = True
    if differs:
        return Waits(message.rank, message, tuple(m for m in members if m != message.rank), mismatch=True)
    return Waits(message.rank, message, tuple(absent)) if absent else None


def _sequence(message: Message) -> tuple[int, ...] | None:
    """The calls among which a collective has its place: those of its group; () for those that make groups."""
    return () if message.call == NEW_GROUP else message.group


def _collectives(record: Record, sequence: tuple[int, ...] | None) -> list[Message]:
    return [m for m in record.messages if m.is_collective and _sequence(m) == sequence]


def _fit(calls: Sequence[Message]) -> bool:
    """Are these calls one collective? Name, root, dtype and reduction are the same, and `each` where it is known."""
    sizes = {call.each for call in calls if call.each is not None}
    alike = {(call.call, call.root, call.dtype, call.op, call.group) for call in calls}
    return len(alike) == 1 and len(sizes) <= 1


#: How the state of a rank begins that waits in a call of torch's that is not recorded.
IN_TORCH = "waits inside torch"


def headline(stuck: list[int], world_size: int) -> str:
    """The first line of the explanation: who is stuck."""
    who = "every rank" if len(stuck) == world_size else _ranks(stuck)
    return f"{who} {'wait' if who.startswith('ranks') else 'waits'} forever"


def parted(records: list[Record], states: dict[int, str]) -> str:
    """The first point at which the ranks' calls do not fit together, as a sentence; "" if there is none.

    states: what each rank that is not in a call does instead ("has returned", "is computing at …").
    """
    # A message that nobody waited for comes first: ranks part at a later barrier because of it.
    for explain in (_never_waited, _parted_collectives, _cycle, _unmatched, _inside_torch):
        if sentence := explain(records, states):
            return sentence
    return ""


def _parted_collectives(records: list[Record], states: dict[int, str]) -> str:
    for group, members in _groups(records):
        sequences = {rank: _collectives(records[rank], group) for rank in members}
        place = 0
        while all(len(calls) > place for calls in sequences.values()) and (
            _fit([calls[place] for calls in sequences.values()])
        ):
            place += 1
        if all(len(calls) == place for calls in sequences.values()):
            continue
        said = {
            rank: _called(calls[place])
            if len(calls) > place
            else f"called none: it {_doing(records[rank], states, rank)}"
            for rank, calls in sequences.items()
        }
        sides = "".join(f"\n  {side}" for side in _sides(said))
        if group == ():
            rule = "Every rank must call new_group for each group, in the same order, and also for groups without it."
            return f"The ranks diverge at group number {place + 1} that they make:{sides}\n{rule}"
        inside = "" if group is None else f" of the group {list(group)}"
        return f"The ranks diverge at collective number {place + 1}{inside}:{sides}"
    return ""


def _cycle(records: list[Record], states: dict[int, str]) -> str:
    waiting = blocked(records, set(states))
    for start in waiting:
        path = [start]
        while path[-1] in waiting and len(waiting[path[-1]].on) == 1:
            following = waiting[path[-1]].on[0]
            if following in path:
                circle = path[path.index(following) :]
                return _describe_cycle([waiting[rank].message for rank in circle])
            path.append(following)
    return ""


def _describe_cycle(calls: list[Message]) -> str:
    """calls: one a rank, each waiting for the rank of the next, the last for the rank of the first."""
    kinds = {"sends" if call.is_send else "receives" for call in calls}
    kind = kinds.pop() if len(kinds) == 1 else "sends and receives"
    chain = " → ".join(str(call.rank) for call in [*calls, calls[0]])
    advice = "One rank must do the opposite first, or use isend, which does not wait."
    if any(call.call == "isend" for call in calls):
        advice = "Waiting for an isend waits for its receive: first receive what the others send, then wait."
    if len(calls) == 2 and calls[0].is_send != calls[1].is_send:
        advice = "The tags differ: a receive takes only a message with its own tag."
    return f"A cycle of {kind}, each waiting for the next: {chain}. {advice}"


def _unmatched(records: list[Record], states: dict[int, str]) -> str:
    for rank, waits in sorted(blocked(records, set(states)).items()):
        message = waits.message
        if message.is_collective:
            continue
        wanted, begun = _counts(records, message)
        nth = _ordinal(wanted)
        if message.peer is None:
            sent = f"only {begun}" if begun else "no"
            were = "message was" if begun < 2 else "messages were"
            return f"Rank {rank} receives from any rank for the {nth} time, but {sent} {were} sent to it."
        if message.peer in states:
            mine, theirs = ("send", "receive") if message.is_send else ("receive", "send")
            tag = f" with tag {message.tag}" if message.tag else ""
            return (
                f"Rank {rank}'s {nth} {mine} {'to' if message.is_send else 'from'} rank {message.peer}{tag} has no "
                f"matching {theirs}: rank {message.peer} made {begun or 'no'} such {theirs}{'s' if begun > 1 else ''} "
                f"and {states[message.peer]}."
            )
    return ""


def _never_waited(records: list[Record], states: dict[int, str]) -> str:
    """An isend or irecv that its rank never waited for: the message may never leave or arrive."""
    for m in _unwaited(records, states):
        to, happen = ("to", "leave") if m.is_send else ("from", "arrive")
        return (
            f"Rank {m.rank}'s {m.call} {to} rank {m.peer} {_at(m.file, m.line)} was never waited for, so its "
            f"message may never {happen}: keep the object that {m.call} returns, and call its wait()."
        )
    return ""


def _unwaited(records: list[Record], states: dict[int, str]) -> list[Message]:
    """Messages that were never waited for, between two ranks of which one waits for the other, the likeliest first."""
    unmatched = blocked(records, set(states))
    found = []
    for rank, record in enumerate(records):
        waiting = record.waiting
        if rank in states or rank in unmatched or waiting is None:
            continue  # else the other side has begun, and yet the message has not come
        if waiting.is_collective:  # gloo's thread may be busy with a message that nobody takes, and do nothing else
            found += [m for m in record.messages if "dropped" in record.notes[m.posted] and m.is_receive]
        if waiting.peer is None:
            continue
        between = [
            m
            for here, there in ((rank, waiting.peer), (waiting.peer, rank))
            for m in records[here].messages
            if m.peer == there and m.call in ("isend", "irecv") and m.completed is None and m.waiting_at is None
        ]
        found += sorted(between, key=lambda m: (m.is_send == waiting.is_send, m.tag != waiting.tag))
    return found


def dropped(records: list[Record], states: dict[int, str]) -> bool:
    """Does a rank wait for another, with a message between them for which nobody can wait any more?"""
    return any(
        "dropped" in records[m.rank].notes[m.posted]
        for m in _unwaited(records, states)
        if not ((waiting := records[m.rank].waiting) and waiting.is_collective)  # that may just take long
    )


def _inside_torch(records: list[Record], states: dict[int, str]) -> str:
    """Ranks that wait in calls of torch that are not recorded, while others have returned or wait elsewhere."""
    inside = [rank for rank, state in states.items() if state.startswith(IN_TORCH)]
    if not inside or len(inside) == len(records):
        return ""
    reason = "What torch sends by itself is not recorded, such as the gradients of DistributedDataParallel"
    passes = "every rank must make the same calls, with as many forward and backward passes"
    return f"{reason}: {passes} (join() of DistributedDataParallel helps if one has fewer batches)."


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"


def describe_wait(records: list[Record], rank: int, states: dict[int, str]) -> str:
    """One sentence: what a rank is doing, in which call, with which rank, at which line."""
    message = records[rank].waiting
    if message is None or rank in states:
        return f"rank {rank} {_doing(records[rank], states, rank)}"
    waiting = blocked(records, set(states)).get(rank)
    on = ""
    if waiting is not None and message.is_collective and not waiting.mismatch:
        on = f" for {_ranks(list(waiting.on))}"
    return f"rank {rank} waits in {_describe(message)}{on} {_waiting_at(message)}"


def shape_of(records: list[Record], states: dict[int, str]) -> tuple[Any, ...]:
    """The hang as plain data, the same in each run of a program: (rank, call, peer) or (rank, state) a rank."""
    return tuple(
        (rank, record.waiting.call, record.waiting.peer)
        if record.waiting and rank not in states
        else (rank, states.get(rank, "computing").split(" at ")[0])
        for rank, record in enumerate(records)
    )


def oversized(records: list[Record], places: bool = True) -> str:
    """A message longer than the buffer of its receiver, whose process gloo then ends; "" if there is none.

    places: say the lines of code, too.
    """
    for send, receive in pairs([m for record in records for m in record.messages]):
        if send.bytes > receive.bytes and receive.completed is None:
            return (
                f"rank {send.rank} sent {send.bytes} bytes{_at_line(send, places)}, but rank {receive.rank}'s "
                f"buffer holds {receive.bytes} bytes{_at_line(receive, places)}"
            )
    return ""


def remarks(records: list[Record]) -> list[str]:
    """What may have gone wrong without a word in a run that has ended: of each kind the first case, as a sentence."""
    found = [look(records) for look in (unlike, _laid_out_otherwise, _sharing_memory, _never_waited_for)]
    return [sentence for sentence in found if sentence]


def _laid_out_otherwise(records: list[Record]) -> str:
    """The first collective of tensors whose elements do not lie in memory in the order in which gloo takes them."""
    kinds = {"": "a contiguous tensor", "several": "tensors in several orders", "with gaps": "a tensor with gaps"}
    for sequence, members in _groups(records):
        for calls in zip(*(_collectives(records[rank], sequence) for rank in members), strict=False):
            layouts = {call.rank: records[call.rank].notes[call.posted].get("layout", "") for call in calls}
            if len(set(layouts.values())) == 1 and not {"with gaps", "several"} & set(layouts.values()):
                continue  # contiguous everywhere, or in another order, but the same everywhere
            what = {rank: kinds.get(how, f"a tensor {how}") for rank, how in layouts.items() if how}
            said = {
                call.rank: f"called {_describe(call)} of {what[call.rank]} {_at(call.file, call.line)}"
                for call in calls
                if call.rank in what
            }
            return (
                f"{'; '.join(_sides(said))}: gloo takes the bytes as they lie in memory, from the first element on, so "
                "numbers end up in wrong places; pass x.contiguous(), and copy the result back into x"
            )
    return ""


def _sharing_memory(records: list[Record]) -> str:
    for record in records:
        for m in record.messages:
            if "shared" in record.notes[m.posted]:
                return (
                    f"rank {m.rank} gave {m.call} {_at(m.file, m.line)} tensors for the results that share memory, as "
                    "those of [x] * n do: each result overwrites the one before; make a tensor for each"
                )
    return ""


def _never_waited_for(records: list[Record]) -> str:
    """A message or asynchronous collective of which the worker kept no track: nothing says that it was over."""
    for record in records:
        for m in record.messages:
            note = record.notes[m.posted]
            if m.completed is None and "direct" in note and "asked" not in note:
                what = "its message may not have left" if m.is_send else "its result may not have been there"
                return (
                    f"rank {m.rank}'s {_describe(m)} {_at(m.file, m.line)} was never waited for, so {what}: keep the "
                    f"object that {m.call} returns, and call its wait()"
                )
    return ""


def unlike(records: list[Record]) -> str:
    """The first calls that met although they differ in dtype, size or reduction, in a run that has ended; or "".

    Neither torch nor gloo looks at this, nor at the reductions, of which each rank applies its own to its part.
    """
    as_they_come = "nothing compares the two, the bytes are taken as they come, and no number is converted"
    for send, receive in pairs([m for record in records for m in record.messages]):
        if receive.completed is not None and (send.dtype, send.bytes) != (receive.dtype, receive.bytes):
            sent = f"rank {send.rank} sent {_contents(send)} {_at(send.file, send.line)}"
            received = f"rank {receive.rank} received {_contents(receive)} {_at(receive.file, receive.line)}"
            return f"{sent}, and {received}: {as_they_come}"
    apart = mismatched(records)
    return f"{apart}: {as_they_come}" if apart else ""


def _contents(message: Message) -> str:
    return f"{message.bytes} bytes of {message.dtype}"


def mismatched(records: list[Record], places: bool = True) -> str:
    """The first collective that all members called, but not in the same way; "" if there is none.

    places: say the lines of code, too.
    """
    for group, members in _groups(records):
        for number, calls in enumerate(zip(*(_collectives(records[rank], group) for rank in members), strict=False)):
            if not _fit(calls):
                several = {name for name in ("dtype", "op", "each") if len({getattr(call, name) for call in calls}) > 1}
                said = {rank: _called(call, places, several) for rank, call in zip(members, calls, strict=True)}
                return f"at collective number {number + 1}, {'; '.join(_sides(said))}"
    return ""


def _called(message: Message, places: bool = True, several: Collection[str] = ()) -> str:
    """several: the fields in which the ranks differ."""
    dtype = f" of {message.dtype}" if "dtype" in several and message.dtype else ""
    op = f" with {message.op}" if "op" in several and message.op else ""
    counts = "each" in several and message.each is not None and message.each != message.bytes
    each = f" for {message.each} bytes per rank" if counts else ""
    return f"called {_describe(message)}{dtype}{op}{each}{_at_line(message, places)}"


def _at_line(message: Message, places: bool) -> str:
    return f" {_at(message.file, message.line)}" if places else ""


def _sides(said: dict[int, str]) -> list[str]:
    """One sentence for all ranks that did the same: "ranks 0 and 2 called …"."""
    together: dict[str, list[int]] = {}
    for rank, text in said.items():
        together.setdefault(text, []).append(rank)
    return [
        f"{_ranks(ranks)} {text if len(ranks) == 1 else text.replace('called none: it', 'called none: each', 1)}"
        for text, ranks in together.items()
    ]


def _groups(records: list[Record]) -> list[tuple[tuple[int, ...] | None, tuple[int, ...]]]:
    """The groups that called collectives, with their members; the group of all ranks (None) first."""
    groups = {_sequence(m) for record in records for m in record.messages if m.is_collective}
    in_order = sorted(groups, key=lambda group: (group is not None, group or ()))
    return [(group, group or tuple(range(len(records)))) for group in in_order]


def _doing(record: Record, states: dict[int, str], rank: int) -> str:
    if rank in states:
        return states[rank]
    if record.waiting:
        return f"waits in {_describe(record.waiting)} {_waiting_at(record.waiting)}"
    return "is computing"


def _describe(message: Message) -> str:
    """The call and its details: "send to rank 1 (64 bytes, tag 2)"."""
    if message.call == NEW_GROUP:
        return f"new_group({list(message.group or ())})"
    if message.is_collective:
        preposition = "to" if message.call.startswith(("reduce", "gather")) else "from"
        text = message.call if message.root is None else f"{message.call} {preposition} rank {message.root}"
    else:
        peer = "any rank" if message.peer is None else f"rank {message.peer}"
        text = f"{message.call} {'to' if message.is_send else 'from'} {peer}"
    details = [f"{message.bytes} bytes"] if message.bytes or not message.is_collective else []
    details += [f"tag {message.tag}"] if message.tag else []
    return f"{text} ({', '.join(details)})" if details else text


def _ranks(ranks: list[int]) -> str:
    """'rank 2' or 'ranks 0, 1 and 3'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _at(file: str, line: int) -> str:
    return f"at {place(file, line)}"


def _waiting_at(message: Message) -> str:
    """Where its rank is blocked: in the call itself, or in the wait for it."""
    return _at(*(message.waiting_at or (message.file, message.line)))
