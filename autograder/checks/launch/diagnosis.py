"""Lesson 06, exercise 6: jobs are played, a fault is planted, and the dumps must tell of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_equal, fail

NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:broadcast")
#: 2026-01-01 in nanoseconds since 1970.
BEGIN = 1_767_225_600_000_000_000


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
    case = f"{name}: rank {found[1]} of {job.n} is {found[0]}"
    try:
        got = diagnose(dumps, now)
    except NotImplementedError:
        raise
    except Exception as error:
        fail(f"diagnose raised {type(error).__name__}: {error}", case, f"raised {type(error).__name__}")
    if isinstance(got, (tuple, list)) and len(got) == 3 and isinstance(got[2], (tuple, list)):
        got = (got[0], got[1], tuple(got[2]))
    expect_equal(case, got, found, what="the diagnosis")


@check("06-ex6-diagnose")
def faults_are_named(diagnose: Callable, *, rng: np.random.Generator) -> None:
    """In one group of 2 to 5 ranks, a rank that is dead or hung is named, with the operation that it did not call."""
    for n in (3, 2, 4, 5):
        for kind in ("hung", "dead"):
            for culprit in range(n):
                job = _job(rng, kind, n=n)
                job.culprit = culprit
                _expect(diagnose, rng, job, "one group")


@check("06-ex6-diagnose")
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


@check("06-ex6-diagnose")
def differences_are_found(diagnose: Callable, *, rng: np.random.Generator) -> None:
    """The one rank that calls another operation, or the same with other sizes, is named."""
    for n in (3, 4, 5):
        for what in ("name", "sizes"):
            for culprit in range(n):
                job = _job(rng, "different", n=n)
                job.culprit = culprit
                _, name, sizes = job.program[job.at]
                other = NAMES[(NAMES.index(name) + 1) % len(NAMES)]
                job.differs = (other, sizes) if what == "name" else (name, [[sizes[0][0] + 1], *sizes[1:]])
                _expect(diagnose, rng, job, f"another {what}")


@check("06-ex6-diagnose")
def slow_ranks_are_not_hung(diagnose: Callable, *, rng: np.random.Generator) -> None:
    """A rank is slow, not hung, if the others have waited for it as long before; long and short waits in one job."""
    for n in (3, 2, 4):
        for culprit in range(n):
            job = _job(rng, "slow", n=n)
            job.culprit = culprit
            _expect(diagnose, rng, job, "one group")
            job.kind, job.waited = "hung", job.lag * 10
            _expect(diagnose, rng, job, "one group, always late")
