"""Exercise 2: a save by all ranks, its commit, and saves that must fail. (Those that are killed: `kills`.)"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, fail
from autograder.checking.instruments.filesystem import Event, Log, id_of, read_log, watch
from autograder.checking.stage import run_ranks
from autograder.checks.checkpoints.durability import expect_durable, logged
from autograder.checks.checkpoints.format import (
    BOOKKEEPING,
    Saved,
    draw,
    expect_content,
    fingerprint,
    manifest_of,
    scratch_folder,
    write_checkpoint,
)
from autograder.checks.checkpoints.states import (
    Attempt,
    attempt,
    expect_error,
    expect_returned,
    piece_of,
    state_of,
)
from ranks import stopwatch

#: Seconds that one rank waits for another to begin to write; they write at the same time, so it need not wait.
PATIENCE = 3.0
#: The name of the stretch of a run in which a save over a group of its own goes on.
OWN_GROUP = "own group"


def _as_path(value: Any) -> str:
    return str(value) if value is None else os.fspath(value)


# ---- what a save leaves ----


@dataclass
class SaveSeen:
    """One rank's save: what the call did (value: the path it returned), and whether the state is as before."""

    call: Attempt
    unchanged: bool


def _save_driver(rank, world_size, folder, save_sharded, cases):
    """Save every case, the last one over a group of its own, with a barrier before each and one at the end."""
    log = logged(folder, rank, save_sharded)
    seen, group = [], dist.new_group()
    for saved, root in cases:
        state = state_of(saved, rank)
        before = _shown(state)
        dist.barrier()
        log.add("begin", str(root))
        if saved is cases[-1][0]:
            with record_function(OWN_GROUP):
                call = attempt(save_sharded, state, root, saved.step, group, plain=_as_path)
        else:
            call = attempt(save_sharded, state, root, saved.step, plain=_as_path)
        log.returned(str(root))
        seen.append(SaveSeen(call, before == _shown(state)))
    dist.barrier()
    return seen


def _shown(state: dict) -> str:
    """Text that changes with a state."""
    return repr({name: piece_of(v) if isinstance(v, torch.Tensor) else v for name, v in state.items()})


@check("16-ex2-save", points=2)
def saves_what_the_manifest_says(save_sharded, *, rng):
    """Each rank writes its own pieces, sends no tensor and keeps to the group; root then holds only the checkpoint."""
    for world_size in (3, 1, 2):
        with scratch_folder() as folder:
            root, of = folder / "files" / "new" / "root", count_of_ranks(world_size)
            cases = [(draw(rng, world_size, 10), str(root)), (draw(rng, world_size, 123456789), root)]
            cases += [(draw(rng, world_size, 9, numel=60_000), root)]
            cases += [(draw(rng, world_size, 0, tensors=False), str(root))]
            (folder / "files").mkdir()
            results = run_ranks(_save_driver, world_size, (folder, save_sharded, cases))
            for number, (saved, _) in enumerate(cases):
                case = f"{of}, step {saved.step}"
                for rank, seen in each_rank(case, [mine[number] for mine in results]):
                    expect_returned(case, seen.call, f"save_sharded on rank {rank.rank}")
                    name = Path(seen.call.value).name
                    if Path(seen.call.value) != root / saved.name:
                        rank.fail(f"save_sharded returned …/{name}, expected …/{saved.name}", ["path", name])
                    if not seen.unchanged:
                        rank.fail("save_sharded changed the state that it was given", "changed")
                expect_content(case, root / saved.name, saved)
            more = len({p.name for p in root.iterdir()} - {saved.name for saved, _ in cases})
            if more:
                fail(f"save_sharded left {_entries(more)} in root that are no checkpoints", of, more)
            _expect_own_share(of, read_log(folder / "log"), cases, results.ledger)
            _expect_own_group(f"{of}, a group of their own", results.ledger)
    _expect_saved_by_some(save_sharded, draw(rng, 2, 50))


def _some_driver(rank, world_size, save_sharded, root, saved):
    """All ranks but rank 0 save, as a group."""
    group, call = dist.new_group(range(1, world_size)), None
    if rank:
        call = attempt(save_sharded, state_of(saved, rank - 1), root, saved.step, group, plain=_as_path)
    dist.barrier()
    return call


def _expect_saved_by_some(save_sharded: Any, saved: Saved) -> None:
    """A group without rank 0 of the run saves a checkpoint of its own ranks, which are counted from 0."""
    case = "the group of ranks 1 and 2 of 3"
    with scratch_folder() as folder:
        for rank, call in enumerate(run_ranks(_some_driver, 3, (save_sharded, folder, saved))):
            if rank:
                expect_returned(case, call, f"save_sharded on rank {rank}")
        expect_content(case, folder / saved.name, saved)


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"


def _expect_own_group(case: str, ledger: Any) -> None:
    """While a save with a group goes on, nothing is sent over the default one."""
    for rank in range(ledger.world_size):
        calls = sorted({m.call for m in ledger.of(rank).within(OWN_GROUP) if m.group is None})
        if calls:
            fail(f"rank {rank} called {calls[0]} over the default group, not over the given one", case, calls)


def _expect_own_share(case: str, events: list[Event], cases: list, ledger: Any) -> None:
    """Each rank wrote its own pieces and little more; and sent little."""
    owned = [sum(len(d) for saved, _ in cases for _, d in saved.pieces[r].values()) for r in range(ledger.world_size)]
    wrote = [sum(e.bytes for e in events if e.rank == rank) for rank in range(ledger.world_size)]
    sent = [sum(m.bytes for m in ledger.of(rank)) for rank in range(ledger.world_size)]
    for rank in range(ledger.world_size):
        if wrote[rank] > owned[rank] + BOOKKEEPING:
            text = f"rank {rank} wrote {wrote[rank]} bytes, its own pieces have {owned[rank]}"
            fail(text, case, ["wrote", [w > o + BOOKKEEPING for w, o in zip(wrote, owned, strict=True)]])
        if sent[rank] > BOOKKEEPING:
            fail(f"rank {rank} sent {sent[rank]} bytes to other ranks; tensors need not be sent", case, "sent")


# ---- the commit ----


def _commit_driver(rank, world_size, folder, commit, manifest):
    log = logged(folder, 0, commit)
    log.add("begin")
    commit(log.root / ".tmp_x", log.root / "step_00000010", manifest)
    log.returned()


@dataclass
class SlowSave:
    """One rank's save: what the call did, was the checkpoint there then, did it wait in vain for the others' fsync."""

    call: Attempt
    there: bool
    alone: bool


def _slow_driver(rank, world_size, folder, save_sharded, saved):
    """One save in which the last rank is late, each waits in its fsync for the others', and the rename takes long."""
    root = folder / "files"
    log, seen = Log(folder / "log", rank, root), {"late": rank == world_size - 1, "alone": False}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if seen.pop("late", False):
            time.sleep(0.1)
        if kind == "rename" and Path(target) == root / saved.name:
            time.sleep(0.1)
        with log.at(kind, path, target, fd):
            if kind == "fsync" and "waited" not in seen and not os.path.isdir(path):
                seen["waited"] = True
                seen["alone"] = not _all_ranks_sync(log, world_size)
            yield

    watch(root, at, save_sharded)
    dist.barrier()
    call = attempt(save_sharded, state_of(saved, rank), root, saved.step, plain=_as_path)
    there = os.path.isdir(root / saved.name)
    log.returned()
    dist.barrier()
    return SlowSave(call, there, seen["alone"])


def _all_ranks_sync(log: Log, world_size: int) -> bool:
    """Wait until all ranks have begun an fsync, unless another has waited for that in vain."""
    waited = stopwatch.own()
    while waited.seconds() < PATIENCE:
        events = log.events()
        if len({e.rank for e in events if e.kind == "fsync"}) == world_size:
            return True
        if any(e.kind == "alone" for e in events):
            return False
        time.sleep(0.003)
    log.add("alone")
    return False


@check("16-ex2-save", points=0.5)
def commits_durably_by_one_rename(commit, save_sharded, *, rng):
    """The checkpoint gets its name by one rename, after all of it is on the disk and before any rank returns."""
    with scratch_folder() as folder:
        saved, root, case = draw(rng, 2, 10), folder / "files", "one process"
        write_checkpoint(root, saved).rename(root / ".tmp_x")
        for name in ("manifest.json", "manifest.sha256"):
            (root / ".tmp_x" / name).unlink()
        run_ranks(_commit_driver, 1, (folder, commit, manifest_of(saved)[0]))
        expect_content(case, root / "step_00000010", saved, "the checkpoint after commit")
        events = read_log(folder / "log")
        if any(Path(e.path).suffix == ".bin" and e.kind == "create" for e in events):
            fail("commit wrote a shard anew; it only adds the manifest", case, "shards written")
        events = [*_synced_before(events, root / "step_00000010"), *events]
        expect_durable(case, events, root / "step_00000010", "commit")
    with scratch_folder() as folder:
        saved, root, case = draw(rng, 3, 20), folder / "files", "3 ranks, one of them late"
        root.mkdir()
        results = run_ranks(_slow_driver, 3, (folder, save_sharded, saved))
        events = read_log(folder / "log")
        for rank, seen in enumerate(results):
            expect_returned(case, seen.call, f"save_sharded on rank {rank}")
        if any(e.kind in ("create", "make") and saved.name in Path(e.path).parts for e in events):
            text = f"save_sharded wrote into {saved.name} itself: nothing may have this name before the rename"
            fail(text, case, "named")
        expect_content(case, root / saved.name, saved)
        expect_durable(case, events, root / saved.name, "save_sharded")
        for rank, seen in enumerate(results):
            if not seen.there:
                fail(f"save_sharded returned on rank {rank} before the checkpoint was there", case, ["early", rank])
        if any(seen.alone for seen in results):
            fail("the ranks wrote one after another, not at the same time", case, "in turn")


def _synced_before(events: list[Event], path: Path) -> list[Event]:
    """The events of the processes that wrote and fsynced these shards before the log began."""
    return [Event(0, "fsynced", id=id_of(events, file)) for file in sorted(path.glob("shard_*.bin"))]


# ---- saves that must fail ----


@dataclass
class FailingSave:
    """A save of 3 ranks that must fail.

    full: rank → the end of the names of the files for which its disk is full. shape: of a tensor to be added to the
    state, "matrix". step: the step to save. kind, mentions: the error, and what it must contain.
    """

    name: str
    step: int
    kind: str
    mentions: str
    full: dict[int, str]
    shape: tuple[int, ...] | None = None


FAILING_SAVES = [
    FailingSave("the step is there already", 20, "CheckpointError", "step_00000020", {}),
    FailingSave("the step is there already, an empty folder", 21, "CheckpointError", "step_00000021", {}),
    FailingSave("rank 1's disk is full", 31, "CheckpointError", "No space left", {1: ".bin"}),
    FailingSave("rank 0's disk is full", 32, "CheckpointError", "No space left", {0: ".bin"}),
    FailingSave("no space for the manifest", 33, "CheckpointError", "No space left", dict.fromkeys(range(3), ".json")),
    FailingSave("a matrix", 34, "ValueError", "matrix", {}, (2, 3)),
    FailingSave("a tensor without a dimension", 35, "ValueError", "matrix", {}, ()),
    FailingSave("step -1", -1, "ValueError", "step", {}),
]


def _failing_driver(rank, world_size, folder, save_sharded, root, cases):
    """Saves that must fail and one that must not, one after another: (its state, a `FailingSave` or None) each.

    Returns for each what came of it, and whether it changed the names in `root`.
    """
    full = {"suffix": None}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if kind in ("write", "create") and full["suffix"] and path.endswith(full["suffix"]):
            raise OSError(errno.ENOSPC, "No space left on device")
        yield

    watch(folder / "files", at, save_sharded)
    outcomes = []
    for saved, wrong in cases:
        state = state_of(saved, rank)
        if wrong is not None and wrong.shape is not None:
            state["matrix"] = torch.zeros(wrong.shape)
        dist.barrier()
        before = _names(root)
        dist.barrier()
        full["suffix"] = wrong.full.get(rank) if wrong else None
        outcome = attempt(save_sharded, state, root, saved.step, plain=_as_path)
        full["suffix"] = None
        dist.barrier()
        outcomes.append((outcome, _names(root) != before))
    dist.barrier()
    return outcomes


def _names(root: Path) -> list[str]:
    """The files and folders below a folder, each with the number by which the file system knows it."""
    return sorted(f"{path.relative_to(root)} {path.stat().st_ino}" for path in root.rglob("*"))


@check("16-ex2-save", points=0.5)
def saving_fails_on_all_ranks(save_sharded, *, rng):
    """A save that cannot succeed raises the same error on every rank, commits nothing, and leaves the next one free."""
    with scratch_folder() as folder:
        root = folder / "files" / "root"
        there = [write_checkpoint(root, draw(rng, 2, 20)), root / "step_00000021"]
        there[1].mkdir()
        before = [fingerprint(path) for path in there]
        cases = [(draw(rng, 3, wrong.step), wrong) for wrong in FAILING_SAVES]
        cases.append((draw(rng, 3, 40), None))
        results = run_ranks(_failing_driver, 3, (folder, save_sharded, root, cases))
        for number, (saved, wrong) in enumerate(cases[:-1]):
            for rank, mine in enumerate(results):
                outcome, changed = mine[number]
                expect_error(wrong.name, outcome, wrong.kind, wrong.mentions, rank)
                if wrong.kind == "ValueError" and changed:
                    fail("save_sharded wrote into root before it raised the ValueError", wrong.name, "too late")
            if number < len(there) and fingerprint(there[number]) != before[number]:
                fail("the checkpoint that was there already has changed", wrong.name, "overwritten")
            if number >= len(there) and (root / saved.name).exists():
                fail(f"{saved.name} was committed all the same", wrong.name, "committed")
        case = "a save after those that failed"
        for rank, mine in enumerate(results):
            expect_returned(case, mine[-1][0], f"save_sharded on rank {rank}")
        expect_content(case, root / "step_00000040", cases[-1][0])
        left = sorted(p.name for p in root.iterdir())
        if left != ["step_00000020", "step_00000021", "step_00000040"]:
            fail(f"root holds {_entries(len(left) - 3)} that are no checkpoints", case, len(left))
