"""Lesson 06, exercise 6: jobs are played, a fault is planted, and the dumps must tell of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_equal, fail

NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:broadcast")
#: 2026-01-01 in nanoseconds since 1970.
BEGIN = 1_767_225_600_000_000_000
QUARTER = 250_000_000


@dataclass
class Job:
    """A program of collectives on several ranks, played until one rank is at fault.

    program: for each slot "world" or "half" (each rank in the group of its own parity), a name and sizes. The fault
    is at slot `at`. unit: the time between two slots, in ns. lag: how much later than the others the rank comes to
    each operation. waited: how long after the first call of the stuck operation the dumps are written.
    """

    n: int
    program: list[tuple[str, str, list[list[int]]]]
    kind: str
    culprit: int
    at: int
    unit: int
    lag: int
    waited: int
    differs: tuple[str, list[list[int]]] | None = None
    entries: list[list[dict]] = field(default_factory=list)

    def group(self, slot: int, rank: int) -> str:
        """The group in which a rank runs this slot: "0" is the world, "1" and "2" the even and the odd ranks."""
        return "0" if self.program[slot][0] == "world" else str(1 + rank % 2)

    def members(self, group: str) -> list[int]:
        return [rank for rank in range(self.n) if group == "0" or str(1 + rank % 2) == group]

    def play(self, rng: np.random.Generator) -> tuple[list[dict | None], int, tuple]:
        """(dumps, now, what is to be found)."""
        self.entries = [[] for _ in range(self.n)]
        clock, counts = [BEGIN] * self.n, [dict.fromkeys("012", 0) for _ in range(self.n)]
        blocked: set[int] = set()
        found, first_call = None, 0
        for slot, (_, name, sizes) in enumerate(self.program):
            for group in sorted({self.group(slot, rank) for rank in range(self.n)}):
                members = self.members(group)
                faulty = slot == self.at and self.culprit in members
                calling = [rank for rank in members if rank not in blocked]
                if faulty and self.kind != "different":
                    calling.remove(self.culprit)
                for rank in calling:
                    late = self.lag if rank == self.culprit else 0
                    clock[rank] += self.unit + late + int(rng.integers(self.unit // 100 + 1))
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
                    first_call = min(clock[rank] for rank in calling)
                for rank in calling:
                    clock[rank] = end
                blocked |= set() if whole else {self.culprit, *calling} if faulty else set(calling)
        assert found
        return self._dumps(rng), first_call + self.waited, found

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
            "state": "completed" if whole else str(rng.choice(["scheduled", "started"])),
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": end if whole else None,
            "retired": whole,
            "timeout_ms": 600_000,
            "is_p2p": False,
        })  # fmt: skip

    def _dumps(self, rng: np.random.Generator) -> list[dict | None]:
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
            dropped = int(rng.integers(0, max(1, min(self.at - 3, 6))))
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


def _expect_of(
    diagnose: Callable, name: str, groups: dict[str, list[int]], calls: list[_Call], now: int, found: tuple
) -> None:
    """The diagnosis of these calls, in the order in which they were made, at the time `now` in quarters.

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
    _expect_found(diagnose, f"{name}: rank {found[1]} of {n} is {found[0]}", dumps, BEGIN + now * QUARTER, found)


def _job(rng: np.random.Generator, kind: str, *, n: int, halves: bool = False, scope: str = "world") -> Job:
    """A job with this fault. halves: some operations run in groups of even and odd ranks; scope: of the stuck one."""
    at, after = int(rng.integers(10, 16)), int(rng.choice([0, 2]))  # who is not stuck may still compute
    scopes = [str(rng.choice(["world", "half"])) if halves else "world" for _ in range(at + 1 + after)]
    scopes[at] = scope
    scopes[at + 1 :] = ["world"] * after
    sizes = [[[int(size)] for size in rng.integers(2, 99, int(rng.integers(1, 3)))] for _ in scopes]
    program = [(where, str(rng.choice(NAMES)), what) for where, what in zip(scopes, sizes, strict=True)]
    unit = int(10 ** rng.uniform(6, 9.5))
    lag = int(unit * rng.uniform(2, 4)) if kind == "slow" else 0
    waited = int(lag * rng.uniform(0.5, 2)) if kind == "slow" else int(unit * rng.uniform(20, 100))
    return Job(n, program, kind, int(rng.integers(n)), at, unit, lag, waited)


def _expect(diagnose: Callable, rng: np.random.Generator, job: Job, name: str) -> None:
    dumps, now, found = job.play(rng)
    _expect_found(diagnose, f"{name}: rank {found[1]} of {job.n} is {found[0]}", dumps, now, found)


def _expect_found(diagnose: Callable, case: str, dumps: list, now: int, found: tuple) -> None:
    try:
        got = diagnose(dumps, now)
    except NotImplementedError:
        raise
    except Exception as error:
        kind = type(error).__name__
        fail(f"diagnose raised {kind}: {error}", case, f"raised {kind}", kind)
    if isinstance(got, (tuple, list)) and len(got) == 3 and isinstance(got[2], (tuple, list)):
        got = (got[0], got[1], tuple(got[2]))
    expect_equal(case, got, found, what="the diagnosis")


@check("06-ex6-diagnose", points=1.5)
def faults_are_named(diagnose: Callable, *, rng: np.random.Generator) -> None:
    """In one group of 2 to 5 ranks, a rank that is dead or hung is named, with the operation that it did not call."""
    for n in (3, 2, 4, 5):
        for kind in ("hung", "dead"):
            for culprit in range(n):
                job = _job(rng, kind, n=n)
                job.culprit = culprit
                _expect(diagnose, rng, job, "one group")


@check("06-ex6-diagnose", points=0.5)
def groups_are_followed(diagnose: Callable, *, rng: np.random.Generator) -> None:
    """With several groups: a rank that is not in a group is not missing there, nor one that waits in another."""
    for n in (6, 4, 5):
        for scope in ("half", "world"):
            for kind in ("hung", "dead"):
                for culprit in range(n):
                    job = _job(rng, kind, n=n, halves=True, scope=scope)
                    if scope == "half" and sum(rank % 2 == culprit % 2 for rank in range(n)) < 2:
                        continue
                    job.culprit = culprit
                    _expect(diagnose, rng, job, f"groups of even and odd ranks, stuck in {scope}")
    # a waits for b in one pair, b for c in another; c may be missing in the world's operation, too.
    kinds, states = ("hung", "dead"), (("started", "scheduled"), ("scheduled", "started"))
    for (a, b, c), kind, (earlier, later) in product(permutations(range(3)), kinds, states):
        groups = {"0": [0, 1, 2], "1": sorted((a, b)), "2": sorted((b, c))}
        calls = [_Call("0", 1, {0: 0, 1: 0, 2: 0}), _Call("2", 1, {b: 2, c: 2})]
        stuck = _Call("2", 2, {b: 10}, NAMES[1], later)
        first = _Call("1", 1, {a: 6}, NAMES[2], earlier)
        found = kind, c, ("2", 2, NAMES[1])
        said = f"pairs, one waits for another, the last call is {later}"
        _expect_of(diagnose, said, groups, [*calls, first, stuck], 90, found)
        # b has not waited at once, and in between it has met a fourth rank.
        groups |= {"0": [0, 1, 2, 3], "3": sorted((b, 3))}
        calls[0] = _Call("0", 1, dict.fromkeys(range(4), 0))
        met = _Call("3", 1, {b: 12, 3: 12})
        said = "pairs, one waits for another, and a later call of it is completed"
        _expect_of(diagnose, said, groups, [*calls, first, stuck, met], 90, found)
        first = _Call("0", 2, {a: 6, 3: 30}, NAMES[2], earlier)
        found = kind, c, ("0", 2, NAMES[2])
        _expect_of(diagnose, "missing in two operations", groups, [*calls, first, stuck, met], 90, found)


@check("06-ex6-diagnose", points=0.5)
def differences_are_found(diagnose: Callable, *, rng: np.random.Generator) -> None:
    """The one rank that calls another operation, or the same with other sizes, is named."""
    for n in (3, 4, 5):
        for what in ("name", "sizes", "shape", "size of the second tensor"):
            for culprit in range(n):
                job = _job(rng, "different", n=n)
                job.culprit = culprit
                where, name, sizes = job.program[job.at]
                if what not in ("name", "sizes"):  # "shape": of as many numbers
                    sizes = [[2, 4], [6]]
                    job.program[job.at] = where, name, sizes
                other = NAMES[(NAMES.index(name) + 1) % len(NAMES)]
                differs = {"name": (other, sizes), "sizes": (name, [[sizes[0][0] + 1], *sizes[1:]])}
                job.differs = differs.get(what, (name, [[8], [6]] if what == "shape" else [[2, 4], [7]]))
                _expect(diagnose, rng, job, f"another {what}")
    gather, add = NAMES[1], NAMES[0]
    for odd in range(3):  # it goes on, an operation ahead of the others
        calls = [_Call("0", 1, dict.fromkeys(range(3), 0), NAMES[3], "completed")]
        for number, theirs, its in ((2, gather, add), (3, add, gather)):
            calls.append(_Call("0", number, dict.fromkeys(range(3), number), theirs, "started", {odd: its}))
        found = "different", odd, ("0", 2, gather)
        _expect_of(diagnose, "two operations differ", {"0": [0, 1, 2]}, calls, 40, found)
        groups = {"0": [0, 1, 2, 3], "1": [odd, 3]}
        calls = [_Call("0", 1, dict.fromkeys(range(4), 0), NAMES[3], "completed"), calls[1]]
        calls.append(_Call("1", 7, {3: 12}, NAMES[2], "started"))
        _expect_of(diagnose, "another name, while the fourth rank waits for it in a pair", groups, calls, 40, found)


@check("06-ex6-diagnose", points=0.5)
def slow_ranks_are_not_hung(diagnose: Callable, *, rng: np.random.Generator) -> None:
    """A rank is slow, not hung, if the others have waited for it as long before; long and short waits in one job."""
    for n in (3, 2, 4):
        for culprit in range(n):
            job = _job(rng, "slow", n=n)
            job.culprit = culprit
            _expect(diagnose, rng, job, "one group")
            job.kind, job.waited = "hung", job.lag * 10
            _expect(diagnose, rng, job, "one group, always late")
    # Whole quarters of a second: exact as seconds, too. The others wait from 20 on.
    alone = {"0": [0, 1, 2]}
    for late in range(3):
        a, b = (rank for rank in range(3) if rank != late)
        for name, times, b_calls, whole in (
            ("once late", [{a: 0, b: 0, late: 8}], 20, ((35, "slow"), (42, "slow"), (44, "slow"), (45, "hung"))),
            ("late after two others", [{a: 0, b: 4, late: 8}], 20, ((44, "slow"),)),
            ("once late, the others call one after the other", [{a: 0, b: 0, late: 8}], 22, ((45, "hung"),)),
            ("late, then less", [{a: 0, b: 0, late: 8}, {a: 10, b: 10, late: 11}], 20, ((33, "slow"), (44, "slow"))),
            ("another rank was later", [{a: 0, b: 8, late: 1}], 20, ((23, "slow"), (24, "hung"))),
            ("once late, and one buffer no longer has it", [{b: 0, late: 8}], 20, ((44, "slow"), (45, "hung"))),
            ("it has called nothing", [], 20, ((21, "hung"),)),
        ):
            calls = [_Call("0", number, one) for number, one in enumerate(times, start=1)]
            number = len(calls) + 1
            stuck = _Call("0", number, {a: 20, b: b_calls}, NAMES[0], "started")
            for now, kind in whole:
                said, found = f"{name}, missing for {(now - 20) / 4} s", (kind, late, ("0", number, NAMES[0]))
                _expect_of(diagnose, said, alone, [*calls, stuck], now, found)
        pair = {"0": [0, 1, 2], "1": sorted((a, late))}
        calls = [_Call("1", 5, {a: 0, late: 8}), _Call("0", 1, dict.fromkeys(range(3), 10))]
        for name, said in ((NAMES[0], "late in another group"), (NAMES[1], "late in an operation of another name")):
            stuck = _Call("0", 2, {a: 20, b: 22}, name, "started")
            _expect_of(diagnose, said, pair, [*calls, stuck], 44, ("slow", late, ("0", 2, name)))
