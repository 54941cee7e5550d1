"""Lesson 06, exercise 1: jobs are played, a fault is planted, and the dumps must tell of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any

import numpy as np

from autograder.checks.cases import Call
from autograder.checks.check import check

DIAGNOSE = "06-ex1-diagnose"
NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:broadcast")
#: 2026-01-01 in nanoseconds since 1970.
BEGIN = 1_767_225_600_000_000_000
#: A quarter of a second.
QUARTER = 250_000_000


@dataclass
class _Called:
    """An operation of a group. times: rank → when it was called, in `tick` ns since BEGIN.

    others: rank → the name and sizes that it called. states: of ranks where it is not `state`.
    """

    group: str
    number: int
    times: dict[int, int]
    name: str = NAMES[0]
    state: str = "completed"
    others: dict[int, tuple[str, list]] = field(default_factory=dict)
    sizes: list[list[int]] = field(default_factory=lambda: [[8]])
    states: dict[int, str] = field(default_factory=dict)
    tick: int = QUARTER

    def entry(self, rank: int, place: int) -> dict:
        """As the flight recorder of a rank writes it."""
        name, sizes = self.others.get(rank, (self.name, self.sizes))
        state = self.states.get(rank, self.state)
        end = BEGIN + (max(self.times.values()) + 1) * self.tick
        return {
            "record_id": place,
            "pg_id": int(self.group),
            "process_group": (self.group, _description(self.group)),
            "collective_seq_id": self.number,
            "p2p_seq_id": 0,
            "op_id": self.number,
            "profiling_name": name,
            "time_created_ns": BEGIN + self.times[rank] * self.tick,
            "input_sizes": sizes,
            "input_dtypes": ["Float"] * len(sizes),
            "output_sizes": sizes,
            "output_dtypes": ["Float"] * len(sizes),
            "state": state,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": end if state == "completed" else None,
            "retired": state == "completed",
            "timeout_ms": 600_000,
            "is_p2p": False,
        }


def _description(group: str) -> str:
    return "default_pg" if group == "0" else f"group {group}"


def _dumps(groups: dict[str, list[int]], calls: list[_Called], found: tuple, drops: list[int] | None = None) -> list:
    """What the ranks leave of these calls; a dead one nothing. drops: how many entries each ring buffer has lost."""
    dumps: list[dict | None] = []
    for rank in groups["0"]:
        config = {
            group: {"name": group, "desc": _description(group), "ranks": str(members)}
            for group, members in groups.items()
            if rank in members
        }
        mine = sorted((call for call in calls if rank in call.times), key=lambda call: call.times[rank])
        entries = [call.entry(rank, place) for place, call in enumerate(mine)][drops[rank] if drops else 0 :]
        dead = found[:2] == ("dead", rank)
        dumps.append(None if dead else {"version": "2.10", "pg_config": config, "entries": entries})
    return dumps


def _played(
    rng: np.random.Generator,
    kind: str,
    n: int,
    culprit: int | None = None,
    *,
    at: tuple[int, int] = (2, 6),
    halves: bool = False,
    scope: str = "world",
    differs: str = "",
    states: tuple[str, ...] = ("scheduled", "started"),
    drops: list[int] | None = None,
) -> tuple[list[dict | None], tuple]:
    """Play a job of n ranks until one is at fault: (dumps, what is to be found).

    culprit, at: who is at fault, and in which of the job's slots; drawn if not given, or between two. halves: some
    slots run in the groups of even and of odd ranks; scope: that of the fault, "world" or "half". differs: what a
    different operation has of its own. states: of what is not completed. drops: as in `_dumps`.
    """
    fault, after = int(rng.integers(*at)), int(rng.choice([0, 2]))  # who is not stuck may still compute
    scopes = [str(rng.choice(["world", "half"])) if halves else "world" for _ in range(fault)]
    scopes += [scope, *["world"] * after]
    culprit = int(rng.integers(n)) if culprit is None else culprit
    unit = int(10 ** rng.uniform(6, 9.5))  # nanoseconds between two slots
    everybody = list(range(n))
    world, parities = {"0": everybody}, {"1": everybody[::2], "2": everybody[1::2]}
    calls: list[_Called] = []
    clock, counts, blocked = [0] * n, Counter[str](), set[int]()
    found: tuple = ()
    for slot, where in enumerate(scopes):
        name, sizes = str(rng.choice(NAMES)), [[int(size)] for size in rng.integers(2, 99, int(rng.integers(1, 3)))]
        if slot == fault and differs in ("shape", "size of the second tensor"):  # "shape": of as many numbers
            sizes = [[2, 4], [6]]
        for group, members in (world if where == "world" else parities).items():
            faulty = slot == fault and culprit in members
            absent = {culprit} if faulty and kind != "different" else set()
            calling = [rank for rank in members if rank not in blocked | absent]
            counts[group] += bool(calling)
            for rank in calling:
                clock[rank] += unit + int(rng.integers(unit // 100 + 1))
            whole = len(calling) == len(members) and not (faulty and kind == "different")
            states_of = {} if whole else {rank: str(rng.choice(states)) for rank in calling}
            others = {culprit: _other(differs, name, sizes)} if faulty and differs else {}
            times = {rank: clock[rank] for rank in calling}
            call = _Called(group, counts[group], times, name, others=others, sizes=sizes, states=states_of, tick=1)
            calls.append(call)
            if faulty:
                found = (kind, culprit, (group, call.number, name))
            if not whole:
                blocked |= {*calling, *absent}
            for rank in calling:
                clock[rank] = max(times.values()) + unit // 10
    return _dumps(world | parities if "half" in scopes else world, calls, found, drops), found


def _other(differs: str, name: str, sizes: list[list[int]]) -> tuple[str, list[list[int]]]:
    """Another operation than this one."""
    return {
        "name": (NAMES[(NAMES.index(name) + 1) % len(NAMES)], sizes),
        "sizes": (name, [[sizes[0][0] + 1], *sizes[1:]]),
        "shape": (name, [[8], [6]]),
        "size of the second tensor": (name, [[2, 4], [7]]),
    }[differs]


#: Parts of a diagnosis, of which a case may compare one.
WHO, WHERE, NAME = "(kind, rank)", "the operation's (group, number)", "the operation's name"
WITHOUT_NAME = "(kind, rank, (group, number))"
_PARTS: dict[str, Callable[[tuple], Any]] = {
    WHO: lambda diagnosis: diagnosis[:2],
    WHERE: lambda diagnosis: diagnosis[2][:2],
    NAME: lambda diagnosis: diagnosis[2][-1],
    WITHOUT_NAME: lambda diagnosis: (*diagnosis[:2], diagnosis[2][:2]),
}


def _case(diagnose: Callable, name: str, dumps: list, found: tuple, part: str) -> Call:
    """The diagnosis of these dumps, of which one part is compared."""

    def sees(got: Any, *_: Any) -> Any:
        got = _in_tuples(got)
        try:
            return _PARTS[part](got)
        except (TypeError, IndexError):
            return got

    name = f"{name}: rank {found[1]} of {len(dumps)} is {found[0]}{_written(dumps) if found[0] != 'different' else ''}"
    return Call(diagnose, dumps, gives=sees(found), sees=sees, what=part, name=name)


def _written(dumps: list) -> str:
    """The numbers of the ranks' entries, where they are few and of one group; a star if an entry is not completed."""
    entries = [one for dump in dumps if dump for one in dump["entries"]]
    if len(entries) > 20 or len({one["process_group"][0] for one in entries}) > 1:
        return ""
    texts = []
    for rank, dump in enumerate(dumps):
        calls = [
            f"{one['collective_seq_id']}{'*' * (one['state'] != 'completed')}"
            for one in (dump or {"entries": []})["entries"]
        ]
        texts.append(f"rank {rank}: {' '.join(calls) or 'no entry' if dump else 'None'}")
    return f" ({'; '.join(texts)}; *: not completed)"


def _in_tuples(got: Any) -> Any:
    """A diagnosis whose lists, if there are any, are tuples."""
    return tuple(map(_in_tuples, got)) if isinstance(got, (tuple, list)) else got


@check(DIAGNOSE, points=1)
def faults_are_named(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """In one group, a rank that is dead or hung is named, and which of the two it is."""
    for n in (3, 2, 4, 5):
        for kind in ("hung", "dead"):
            for culprit in range(n):
                yield _case(diagnose, "one group", *_played(rng, kind, n, culprit), WHO)


@check(DIAGNOSE, points=0.5)
def ring_buffers_begin_anywhere(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """The operation is one that the rank did not call, and not one that its or another ring buffer has dropped."""
    for n in (3, 4):
        for kind in ("hung", "dead"):
            for culprit in range(n):
                for its, theirs in ((0, 2), (2, 0), (1, 1)):
                    drops = [its if rank == culprit else theirs + int(rng.integers(2)) for rank in range(n)]
                    played = _played(rng, kind, n, culprit, at=(3, 5), drops=drops)
                    yield _case(diagnose, "one group, buffers begin at different operations", *played, WITHOUT_NAME)


@check(DIAGNOSE, points=0.5)
def groups_are_followed(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """With several groups, each counts its own operations, and a rank that is not in a group is not missing there."""
    for n in (6, 4, 5):
        for scope in ("half", "world"):
            for kind in ("hung", "dead"):
                for culprit in range(n):
                    how = {"at": (10, 16), "halves": True, "scope": scope, "states": ("started",)}
                    name = f"groups of even and odd ranks, stuck in {scope}"
                    yield _case(diagnose, name, *_played(rng, kind, n, culprit, **how), WHO)


def _chains(rng: np.random.Generator) -> Iterator[tuple[str, dict[str, list[int]], list[_Called], tuple]]:
    """a waits for b in one pair, and b for c in another; c may be missing in the world's operation, too."""
    kinds, states = ("hung", "dead"), (("started", "scheduled"), ("scheduled", "started"))
    theirs, its = (str(name) for name in rng.choice(NAMES[1:], 2, replace=False))
    for (a, b, c), kind, (earlier, later) in product(permutations(range(3)), kinds, states):
        groups = {"0": [0, 1, 2], "1": sorted((a, b)), "2": sorted((b, c))}
        calls = [_Called("0", 1, {0: 0, 1: 0, 2: 0}), _Called("2", 1, {b: 2, c: 2})]
        stuck = _Called("2", 2, {b: 10}, its, later)
        first = _Called("1", 1, {a: 6}, theirs, earlier)
        found = kind, c, ("2", 2, its)
        yield f"pairs, one waits for another, the last call is {later}", groups, [*calls, first, stuck], found
        # b has not waited at once, and in between it has met a fourth rank.
        groups |= {"0": [0, 1, 2, 3], "3": sorted((b, 3))}
        calls[0] = _Called("0", 1, dict.fromkeys(range(4), 0))
        met = _Called("3", 1, {b: 12, 3: 12})
        name = "pairs, one waits for another, and a later call of it is completed"
        yield name, groups, [*calls, first, stuck, met], found
        for when, where in ((6, ("0", 2, theirs)), (14, ("2", 2, its))):
            first = _Called("0", 2, {a: when, 3: 30}, theirs, earlier)
            yield "missing in two operations", groups, [*calls, first, stuck, met], (kind, c, where)


@check(DIAGNOSE, points=0.5)
def who_waits_elsewhere_is_not_at_fault(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """A rank that is missing in an operation because it waits in another is not named."""
    for name, groups, calls, found in _chains(rng):
        yield _case(diagnose, name, _dumps(groups, calls, found), found, WHO)


@check(DIAGNOSE, points=0.25)
def the_operation_is_the_first(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """Of two operations that the rank at fault did not call, it is the one that another rank called first."""
    for name, groups, calls, found in _chains(rng):
        if name == "missing in two operations":
            yield _case(diagnose, name, _dumps(groups, calls, found), found, WHERE)


@check(DIAGNOSE, points=0.5)
def differences_are_found(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """The one rank that calls another operation than all others is named, with the first that differs."""
    for n in (3, 4, 5):
        for culprit in range(n):
            played = _played(rng, "different", n, culprit, differs="name")
            yield _case(diagnose, "another name", *played, WITHOUT_NAME)
    gather, add = NAMES[1], NAMES[0]
    for odd in range(3):  # it goes on, an operation ahead of the others
        calls = [_Called("0", 1, dict.fromkeys(range(3), 0), NAMES[3], "completed")]
        for number, theirs, its in ((2, gather, add), (3, add, gather)):
            others = {odd: (its, [[8]])}
            calls.append(_Called("0", number, dict.fromkeys(range(3), number), theirs, "started", others))
        found = "different", odd, ("0", 2, gather)
        yield _case(diagnose, "two operations differ", _dumps({"0": [0, 1, 2]}, calls, found), found, WITHOUT_NAME)


@check(DIAGNOSE, points=0.25)
def sizes_are_compared(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """A rank that calls the same operation with other sizes is named, also if they have as many numbers."""
    for what in ("sizes", "shape", "size of the second tensor"):
        for n in (3, 4):
            played = _played(rng, "different", n, int(rng.integers(1, n)), differs=what)
            yield _case(diagnose, f"another {what}", *played, WHO)


@check(DIAGNOSE, points=0.25)
def the_name_is_the_others(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """The operation's name is the one that the others called, whatever the fault."""
    for kind in ("hung", "dead"):
        yield _case(diagnose, "one group", *_played(rng, kind, 3), NAME)
    for n in (3, 4, 5):
        played = _played(rng, "different", n, int(rng.integers(1, n)), differs="name")
        yield _case(diagnose, "another name", *played, NAME)


@check(DIAGNOSE, points=0.25)
def silent_ranks_are_hung(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """A rank that has left a dump without a single call is hung, and not dead."""
    for n in (2, 3, int(rng.integers(4, 9))):
        silent, name = int(rng.integers(n)), str(rng.choice(NAMES))
        others = [rank for rank in range(n) if rank != silent]
        calls = [_Called("0", 1, {rank: int(rng.integers(20)) for rank in others}, name, "started")]
        found = "hung", silent, ("0", 1, name)
        yield _case(diagnose, "it has called nothing", _dumps({"0": list(range(n))}, calls, found), found, WHO)
