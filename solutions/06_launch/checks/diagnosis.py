"""Lesson 06, exercise 1: jobs are played, a fault is planted, and the dumps must tell of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np

from autograder.checking.cases import Call
from autograder.checking.check import check

DIAGNOSE = "06-ex1-diagnose"
NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:broadcast")
#: 2026-01-01 in nanoseconds since 1970.
BEGIN = 1_767_225_600_000_000_000
QUARTER = 250_000_000


@dataclass
class Job:
    """A program of collectives on several ranks, played until one rank is at fault.

    program: for each slot "world" or "half" (each rank in the group of its own parity), a name and sizes. The fault
    is at slot `at`. unit: the time between two slots, in ns. states: of what is not completed. drops: how many entries
    each rank's ring buffer has lost; none if empty.
    """

    n: int
    program: list[tuple[str, str, list[list[int]]]]
    kind: str
    culprit: int
    at: int
    unit: int
    differs: tuple[str, list[list[int]]] | None = None
    states: tuple[str, ...] = ("scheduled", "started")
    drops: list[int] = field(default_factory=list)
    entries: list[list[dict]] = field(default_factory=list)

    def group(self, slot: int, rank: int) -> str:
        """The group in which a rank runs this slot: "0" is the world, "1" and "2" the even and the odd ranks."""
        return "0" if self.program[slot][0] == "world" else str(1 + rank % 2)

    def members(self, group: str) -> list[int]:
        return [rank for rank in range(self.n) if group == "0" or str(1 + rank % 2) == group]

    def play(self, rng: np.random.Generator) -> tuple[list[dict | None], tuple]:
        """(dumps, what is to be found)."""
        self.entries = [[] for _ in range(self.n)]
        clock, counts = [BEGIN] * self.n, [dict.fromkeys("012", 0) for _ in range(self.n)]
        blocked: set[int] = set()
        found = None
        for slot, (_, name, sizes) in enumerate(self.program):
            for group in sorted({self.group(slot, rank) for rank in range(self.n)}):
                members = self.members(group)
                faulty = slot == self.at and self.culprit in members
                calling = [rank for rank in members if rank not in blocked]
                if faulty and self.kind != "different":
                    calling.remove(self.culprit)
                for rank in calling:
                    clock[rank] += self.unit + int(rng.integers(self.unit // 100 + 1))
                whole = len(calling) == len(members) and not (faulty and self.kind == "different")
                end = max((clock[rank] for rank in calling), default=0) + self.unit // 10
                for rank in members:
                    counts[rank][group] += rank in calling
                    number = counts[rank][group]
                    if rank in calling:
                        other = faulty and rank == self.culprit and self.differs
                        self._record(rng, rank, group, number, *(other or (name, sizes)), clock[rank], whole, end)
                if faulty:
                    # If the two groups of a slot run it at once, this one is the culprit's.
                    number = counts[next(rank for rank in members if rank != self.culprit)][group]
                    found = (self.kind, self.culprit, (group, number, name))
                for rank in calling:
                    clock[rank] = end
                blocked |= set() if whole else {self.culprit, *calling} if faulty else set(calling)
        assert found
        return self._dumps(), found

    def _record(self, rng, rank, group, number, name, sizes, created, whole, end) -> None:
        mine = self.entries[rank]
        mine.append({
            "record_id": len(mine),
            "pg_id": int(group),
            "process_group": (group, {"0": "default_pg", "1": "even", "2": "odd"}[group]),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": name,
            "time_created_ns": created,
            "input_sizes": sizes,
            "input_dtypes": ["Float"] * len(sizes),
            "output_sizes": sizes,
            "output_dtypes": ["Float"] * len(sizes),
            "state": "completed" if whole else str(rng.choice(self.states)),
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": end if whole else None,
            "retired": whole,
            "timeout_ms": 600_000,
            "is_p2p": False,
        })  # fmt: skip

    def _dumps(self) -> list[dict | None]:
        halves = any(scope == "half" for scope, *_ in self.program)
        dumps: list[dict | None] = []
        for rank, mine in enumerate(self.entries):
            if self.kind == "dead" and rank == self.culprit:
                dumps.append(None)
                continue
            groups = ["0", *([str(1 + rank % 2)] if halves else [])]
            config = {
                name: {
                    "name": name,
                    "desc": {"0": "default_pg", "1": "even", "2": "odd"}[name],
                    "ranks": str(self.members(name)),
                }
                for name in groups
            }
            dropped = self.drops[rank] if self.drops else 0
            dumps.append({"version": "2.10", "pg_config": config, "entries": mine[dropped:]})
        return dumps


class _Call(NamedTuple):
    """An operation of a job that is written by hand: who called it when, in quarters of a second since BEGIN."""

    group: str
    number: int
    times: dict[int, int]
    name: str = NAMES[0]
    state: str = "completed"
    others: dict[int, str] = {}  # noqa: RUF012  rank → the name that this rank called

    def entry(self, rank: int) -> dict:
        return {
            "record_id": self.number,
            "pg_id": int(self.group),
            "process_group": (self.group, {"0": "default_pg"}.get(self.group, f"pair {self.group}")),
            "collective_seq_id": self.number,
            "profiling_name": self.others.get(rank, self.name),
            "time_created_ns": BEGIN + self.times[rank] * QUARTER,
            "input_sizes": [[8]],
            "state": self.state,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }


def _case_of(
    diagnose: Callable,
    name: str,
    groups: dict[str, list[int]],
    calls: list[_Call],
    found: tuple,
    sees: Callable | None = None,
) -> Call:
    """The diagnosis of these calls, in the order in which they were made.

    A rank that is found to be dead leaves no dump, whatever it has called.
    """
    n = 1 + max(max(members) for members in groups.values())
    dumps: list[dict | None] = []
    for rank in range(n):
        if found[:2] == ("dead", rank):
            dumps.append(None)
            continue
        config = {
            group: {"name": group, "desc": "default_pg" if group == "0" else f"pair {group}", "ranks": str(members)}
            for group, members in groups.items()
            if rank in members
        }
        mine = sorted((call for call in calls if rank in call.times), key=lambda call: call.times[rank])
        dumps.append({"version": "2.10", "pg_config": config, "entries": [call.entry(rank) for call in mine]})
    return _case(diagnose, name, dumps, found, sees)


def _case(diagnose: Callable, name: str, dumps: list, found: tuple, sees: Callable | None = None) -> Call:
    """sees: the part of a diagnosis that is compared, if not all of it."""
    sees = sees or _whole
    name = f"{name}: rank {found[1]} of {len(dumps)} is {found[0]}{_written(dumps) if found[0] != 'different' else ''}"
    what = {
        _without_name: "(kind, rank, (group, number))",
        _who: "(kind, rank)",
        _where: "the operation's (group, number)",
        _name: "the operation's name",
    }
    how = {"sees": lambda got, *_: sees(_in_tuples(got)), "what": what.get(sees, "the diagnosis")}
    return Call(diagnose, dumps, gives=sees(found), name=name, **how)


def _whole(diagnosis: Any) -> Any:
    """All of it."""
    return diagnosis


def _who(diagnosis: Any) -> Any:
    """Kind and rank."""
    return diagnosis[:2] if isinstance(diagnosis, tuple) else diagnosis


def _where(diagnosis: Any) -> Any:
    """The operation's group and number."""
    return diagnosis[2][:2] if isinstance(diagnosis, tuple) and len(diagnosis) == 3 else diagnosis


def _name(diagnosis: Any) -> Any:
    """The operation's name."""
    return diagnosis[2][-1] if isinstance(diagnosis, tuple) and len(diagnosis) == 3 else diagnosis


def _without_name(diagnosis: Any) -> Any:
    """All but the operation's name."""
    return (*_who(diagnosis), _where(diagnosis)) if isinstance(diagnosis, tuple) else diagnosis


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


def _job(
    rng: np.random.Generator, kind: str, *, n: int, halves: bool = False, scope: str = "world", at: tuple = (10, 16)
) -> Job:
    """A job with this fault. halves: some operations run in groups of even and odd ranks; scope: of the stuck one."""
    slot, after = int(rng.integers(*at)), int(rng.choice([0, 2]))  # who is not stuck may still compute
    scopes = [str(rng.choice(["world", "half"])) if halves else "world" for _ in range(slot + 1 + after)]
    scopes[slot] = scope
    scopes[slot + 1 :] = ["world"] * after
    sizes = [[[int(size)] for size in rng.integers(2, 99, int(rng.integers(1, 3)))] for _ in scopes]
    program = [(where, str(rng.choice(NAMES)), what) for where, what in zip(scopes, sizes, strict=True)]
    return Job(n, program, kind, int(rng.integers(n)), slot, int(10 ** rng.uniform(6, 9.5)))


@check(DIAGNOSE, points=1)
def faults_are_named(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """In one group, a rank that is dead or hung is named, and which of the two it is."""
    for n in (3, 2, 4, 5):
        for kind in ("hung", "dead"):
            for culprit in range(n):
                job = _job(rng, kind, n=n, at=(2, 6))
                job.culprit = culprit
                yield _case(diagnose, "one group", *job.play(rng), _who)


@check(DIAGNOSE, points=0.5)
def ring_buffers_begin_anywhere(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """The operation is one that the rank did not call, and not one that its or another ring buffer has dropped."""
    for n in (3, 4):
        for kind in ("hung", "dead"):
            for culprit in range(n):
                for its, theirs in ((0, 2), (2, 0), (1, 1)):
                    job = _job(rng, kind, n=n, at=(3, 5))
                    job.culprit = culprit
                    job.drops = [its if rank == culprit else theirs + int(rng.integers(2)) for rank in range(n)]
                    name = "one group, buffers begin at different operations"
                    yield _case(diagnose, name, *job.play(rng), _without_name)


@check(DIAGNOSE, points=0.5)
def groups_are_followed(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """With several groups, each counts its own operations, and a rank that is not in a group is not missing there."""
    for n in (6, 4, 5):
        for scope in ("half", "world"):
            for kind in ("hung", "dead"):
                for culprit in range(n):
                    job = _job(rng, kind, n=n, halves=True, scope=scope)
                    if scope == "half" and sum(rank % 2 == culprit % 2 for rank in range(n)) < 2:
                        continue
                    job.culprit, job.states = culprit, ("started",)
                    name = f"groups of even and odd ranks, stuck in {scope}"
                    yield _case(diagnose, name, *job.play(rng), _who)


def _chains(rng: np.random.Generator) -> Iterator[tuple[str, dict[str, list[int]], list[_Call], tuple]]:
    """a waits for b in one pair, and b for c in another; c may be missing in the world's operation, too."""
    kinds, states = ("hung", "dead"), (("started", "scheduled"), ("scheduled", "started"))
    theirs, its = (str(name) for name in rng.choice(NAMES[1:], 2, replace=False))
    for (a, b, c), kind, (earlier, later) in product(permutations(range(3)), kinds, states):
        groups = {"0": [0, 1, 2], "1": sorted((a, b)), "2": sorted((b, c))}
        calls = [_Call("0", 1, {0: 0, 1: 0, 2: 0}), _Call("2", 1, {b: 2, c: 2})]
        stuck = _Call("2", 2, {b: 10}, its, later)
        first = _Call("1", 1, {a: 6}, theirs, earlier)
        found = kind, c, ("2", 2, its)
        yield f"pairs, one waits for another, the last call is {later}", groups, [*calls, first, stuck], found
        # b has not waited at once, and in between it has met a fourth rank.
        groups |= {"0": [0, 1, 2, 3], "3": sorted((b, 3))}
        calls[0] = _Call("0", 1, dict.fromkeys(range(4), 0))
        met = _Call("3", 1, {b: 12, 3: 12})
        name = "pairs, one waits for another, and a later call of it is completed"
        yield name, groups, [*calls, first, stuck, met], found
        for when, where in ((6, ("0", 2, theirs)), (14, ("2", 2, its))):
            first = _Call("0", 2, {a: when, 3: 30}, theirs, earlier)
            yield "missing in two operations", groups, [*calls, first, stuck, met], (kind, c, where)


@check(DIAGNOSE, points=0.5)
def who_waits_elsewhere_is_not_at_fault(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """A rank that is missing in an operation because it waits in another is not named."""
    for case in _chains(rng):
        yield _case_of(diagnose, *case, _who)


@check(DIAGNOSE, points=0.25)
def the_operation_is_the_first(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """Of two operations that the rank at fault did not call, it is the one that another rank called first."""
    for name, *case in _chains(rng):
        if name == "missing in two operations":
            yield _case_of(diagnose, name, *case, _where)


def _different(rng: np.random.Generator, n: int, what: str, culprit: int) -> Job:
    """A job in which one rank calls another operation, or the same with other sizes."""
    job = _job(rng, "different", n=n, at=(2, 6))
    job.culprit = culprit
    where, name, sizes = job.program[job.at]
    if what not in ("name", "sizes"):  # "shape": of as many numbers
        sizes = [[2, 4], [6]]
        job.program[job.at] = where, name, sizes
    other = NAMES[(NAMES.index(name) + 1) % len(NAMES)]
    differs = {"name": (other, sizes), "sizes": (name, [[sizes[0][0] + 1], *sizes[1:]])}
    job.differs = differs.get(what, (name, [[8], [6]] if what == "shape" else [[2, 4], [7]]))
    return job


@check(DIAGNOSE, points=0.5)
def differences_are_found(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """The one rank that calls another operation than all others is named, with the first that differs."""
    for n in (3, 4, 5):
        for culprit in range(n):
            yield _case(diagnose, "another name", *_different(rng, n, "name", culprit).play(rng), _without_name)
    gather, add = NAMES[1], NAMES[0]
    for odd in range(3):  # it goes on, an operation ahead of the others
        calls = [_Call("0", 1, dict.fromkeys(range(3), 0), NAMES[3], "completed")]
        for number, theirs, its in ((2, gather, add), (3, add, gather)):
            calls.append(_Call("0", number, dict.fromkeys(range(3), number), theirs, "started", {odd: its}))
        found = "different", odd, ("0", 2, gather)
        yield _case_of(diagnose, "two operations differ", {"0": [0, 1, 2]}, calls, found, _without_name)


@check(DIAGNOSE, points=0.25)
def sizes_are_compared(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """A rank that calls the same operation with other sizes is named, also if they have as many numbers."""
    for what in ("sizes", "shape", "size of the second tensor"):
        for n in (3, 4):
            job = _different(rng, n, what, int(rng.integers(1, n)))
            yield _case(diagnose, f"another {what}", *job.play(rng), _who)


@check(DIAGNOSE, points=0.25)
def the_name_is_the_others(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """The operation's name is the one that the others called, whatever the fault."""
    for kind in ("hung", "dead"):
        yield _case(diagnose, "one group", *_job(rng, kind, n=3, at=(2, 6)).play(rng), _name)
    for n in (3, 4, 5):
        dumps, found = _different(rng, n, "name", int(rng.integers(1, n))).play(rng)
        yield _case(diagnose, "another name", dumps, found, _name)


@check(DIAGNOSE, points=0.25)
def silent_ranks_are_hung(diagnose: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """A rank that has left a dump without a single call is hung, and not dead."""
    for n in (2, 3, int(rng.integers(4, 9))):
        silent, name = int(rng.integers(n)), str(rng.choice(NAMES))
        others = [rank for rank in range(n) if rank != silent]
        calls = [_Call("0", 1, {rank: int(rng.integers(20)) for rank in others}, name, "started")]
        found = "hung", silent, ("0", 1, name)
        yield _case_of(diagnose, "it has called nothing", {"0": list(range(n))}, calls, found, _who)
