"""Exercise 2: a save by all ranks, its commit, and saves that must fail. (Those that are killed: `saves_killed`.)"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checks.cases import Case, at_most, fact, sentence
from autograder.checks.check import check
from autograder.checks.instruments.calls import calls_on_default_group, objects_sent
from autograder.checks.instruments.filesystem import Event, Log, id_of, read_log, watch

from .durability import expect_durable, logged, what_it_says
from .format import (
    BOOKKEEPING,
    Saved,
    contents,
    contents_of,
    draw,
    manifest_of,
    scratch,
    write_checkpoint,
)
from .states import fair, refused, state_of, told

SAVE = "16-ex2-save"


@dataclass
class Save:
    """One rank's save. checkpoint, root and durable are seen from outside, on rank 0."""

    raised: str = sentence()
    path: Any = fact("what save_sharded returns, as its last name")
    there: Any = fact("whether the checkpoint is there when save_sharded returns:")
    wrote: Any = fact("the number of bytes written by save_sharded", seen=lambda count: count > BOOKKEEPING)
    sent: Any = fact("the number of bytes in messages", "tensors need not be sent", lambda count: count > BOOKKEEPING)
    default: Any = fact("the number of calls on the default group", "all messages go over the group", bool)
    checkpoint: Any = fact("{} in the checkpoint")
    root: Any = fact("the list of what is in root")
    durable: str = sentence()


def _save(
    rank: int, world_size: int, folder: Path, save_sharded: Any, saved: Saved, members: list[int] | None, slow: bool
) -> Save:
    """One save by all ranks, or by some as a group of their own. The last rank begins late, the rename takes long.

    slow: making a folder takes long, on all ranks, so that two of them that make the same one meet.
    """
    root, group = folder / "files", dist.new_group(members) if members else None
    log, late = Log(folder / "log", rank, root), {"begin": rank == world_size - 1 and not slow}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if late.pop("begin", False) or (kind == "rename" and Path(target) == root / saved.name):
            time.sleep(0.1)
        if slow and kind == "make":
            time.sleep(0.2)
        with log.at(kind, path, target, fd):
            yield

    watch(root, at, save_sharded)
    dist.barrier()
    known, found = calls_on_default_group(), Save()
    if members is None or rank in members:
        own = members.index(rank) if members else rank
        with objects_sent() as sizes, fair(save_sharded):
            path, said = told(save_sharded, state_of(saved, own), root, saved.step, *([group] if members else []))
        there = os.path.isdir(root / saved.name)
        log.returned()
        wrote = sum(event.bytes for event in log.events() if event.rank == rank)
        calls = calls_on_default_group() - known
        name = path if path is None else Path(path).name
        found = Save(f"save_sharded raised {said}" if said else "", name, there, wrote, sum(sizes), calls)
    dist.barrier()
    return found


def _case(
    name: str,
    ranks: int,
    save_sharded: Any,
    saved: Saved,
    expect: list[Save],
    members: list[int] | None = None,
    slow: bool = False,
) -> Case:
    """A save; on rank 0 also what its folder holds, and whether it came there durably."""
    folder = scratch()
    (folder / "files").mkdir()

    def sees(found: list[Save]) -> list[Save]:
        path, events = folder / "files" / saved.name, read_log(folder / "log")
        durable = what_it_says(expect_durable, "", events, path, "save_sharded") if path.is_dir() else ""
        if any(e.kind in ("create", "make") and saved.name in Path(e.path).parts for e in events):
            durable = f"save_sharded wrote into {saved.name} itself: nothing may have this name before the rename"
        root = sorted(entry.name for entry in path.parent.iterdir())
        return [replace(found[0], checkpoint=contents(path), root=root, durable=durable), *found[1:]]

    args = (folder, save_sharded, saved, members, slow)
    return Case(name, ranks, _save, args, expect, parts=0, sees=sees)


@check(SAVE, points=0.75)
def saves_what_the_manifest_says(save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """Each rank writes its own pieces and sends no tensor; the folder, made by one, holds them and the manifest."""
    drawn = (draw(rng, 3, 123456789, values=False), draw(rng, 1, 10, values=False))
    for ranks, saved in zip((3, 1, 2), (*drawn, draw(rng, 2, 9, numel=60_000, values=False)), strict=True):
        owned = [sum(len(data) for _, data in one.values()) for one in saved.pieces]
        expect = [Save("", saved.name, ANY, at_most(own + BOOKKEEPING), at_most(BOOKKEEPING)) for own in owned]
        expect[0].checkpoint, expect[0].root = contents_of(saved), [saved.name]
        yield _case(f"step {saved.step}", ranks, save_sharded, saved, expect, slow=ranks == 3)


@check(SAVE, points=0.5)
def plain_values_stay_what_they_are(save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """Numbers, strings, lists and dicts of the state are the manifest's values."""
    saved = draw(rng, 2, int(rng.integers(10, 99)))
    expect = [Save("", saved.name), Save("", saved.name)]
    expect[0].checkpoint = contents_of(saved)
    yield _case(f"step {saved.step}", 2, save_sharded, saved, expect)


ANY = Save().there


@check(SAVE, points=0.5)
def messages_keep_to_the_group(save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """All messages go over the given group, whose own rank 0 commits and whose ranks name the shards."""
    saved = draw(rng, 2, 50, values=False)
    expect = [Save(), Save("", saved.name, default=0), Save("", saved.name, default=0)]
    expect[0].checkpoint = contents_of(saved)
    yield _case("ranks 1 and 2 save as a group", 3, save_sharded, saved, expect, members=[1, 2])


@check(SAVE, points=0.5)
def nobody_returns_before_the_commit(save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """The checkpoint is there when `save_sharded` returns, on every rank."""
    saved = draw(rng, 3, 20)
    yield _case("the rename takes long", 3, save_sharded, saved, [Save("", there=True)] * 3)


# ---- the commit ----


@dataclass
class Commit:
    """What `commit` left of a folder of shards, seen from outside."""

    checkpoint: Any = fact("{} in the checkpoint")
    durable: str = sentence()


def _commit(rank: int, world_size: int, folder: Path, commit: Any, manifest: dict) -> Commit:
    log = logged(folder, 0, commit)
    log.add("begin")
    with fair(commit):
        commit(log.root / ".tmp_x", log.root / "step_00000010", manifest)
    log.returned()
    return Commit()


@check(SAVE, points=0.5)
def commits_durably_by_one_rename(commit: Any, save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """A checkpoint gets its name by one rename, after all of it is on the disk; then the folder above is synced."""
    folder, saved = scratch(), draw(rng, 2, 10)
    root, final = folder / "files", folder / "files" / saved.name
    write_checkpoint(root, saved).rename(root / ".tmp_x")
    for name in ("manifest.json", "manifest.sha256"):
        (root / ".tmp_x" / name).unlink()

    def sees(found: list[Commit]) -> list[Commit]:
        events = read_log(folder / "log")  # of the shards, which were written and fsynced before it began:
        events = [*(Event(0, "fsynced", id=id_of(events, file)) for file in final.glob("shard_*.bin")), *events]
        durable = what_it_says(expect_durable, "", events, final, "commit") if final.is_dir() else ""
        return [Commit(contents(final), durable)]

    expect = [Commit(contents_of(saved), "")]
    yield Case("commit", 1, _commit, (folder, commit, manifest_of(saved)[0]), expect, sees=sees)
    saved = draw(rng, 3, 20)
    yield _case("one of them late", 3, save_sharded, saved, [Save("", durable=""), Save(), Save()])


# ---- saves that must fail ----

#: What is wrong, the step, what the error must contain, and the ends of the names of files for which disks are full.
Faults = list[tuple[str, int, str, dict[int, str]]]
FAILING: Faults = [
    ("the step is there already", 20, "step_00000020", {}),
    ("the step is there already, an empty folder", 21, "step_00000021", {}),
    ("rank 1's disk is full", 31, "No space left", {1: ".bin"}),
    ("rank 0's disk is full", 32, "No space left", {0: ".bin"}),
]
UNCOMMITTED: Faults = [
    ("rank 0's disk is full when it writes the manifest", 33, "No space left", {0: "manifest.json"}),
    ("rank 0's disk is full when it writes the manifest's digest", 34, "No space left", {0: "manifest.sha256"}),
]


@dataclass
class Failing:
    """A save that must fail on every rank, or one after those; root: from outside, on rank 0."""

    wrong: str = sentence()
    root: Any = fact("what root holds under names of checkpoints, as {}")
    when: str = ""


def _fail(
    rank: int, world_size: int, folder: Path, save_sharded: Any, faults: Faults, saves: list[Saved]
) -> list[Failing]:
    root, full = folder / "files", {"suffix": ""}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if kind in ("write", "create") and full["suffix"] and path.endswith(full["suffix"]):
            raise OSError(errno.ENOSPC, "No space left on device")
        yield

    watch(root, at, save_sharded)
    found = []
    for saved, (what, _, mentions, disks) in zip(saves, faults, strict=False):
        dist.barrier()
        full["suffix"] = disks.get(rank, "")
        with fair(save_sharded):
            wrong = refused((mentions,), save_sharded, state_of(saved, rank), root, saved.step)
        full["suffix"] = ""
        found.append(Failing(f"{what}: {wrong}" if wrong else ""))
    dist.barrier()
    with fair(save_sharded):
        _, said = told(save_sharded, state_of(saves[-1], rank), root, saves[-1].step)
    dist.barrier()
    return [*found, Failing(f"a save after those that failed raised {said}" if said else "")]


@check(SAVE, points=0.5)
def saving_fails_on_all_ranks(save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """A save that cannot succeed raises the same error on every rank, commits nothing, and leaves the next one free."""
    folder, there = scratch(), draw(rng, 2, 20)
    write_checkpoint(folder / "files", there)
    (folder / "files" / "step_00000021").mkdir()
    empty = contents(folder / "files" / "step_00000021")
    yield _failing(save_sharded, rng, folder, FAILING, {there.name: contents_of(there), "step_00000021": empty})


@check(SAVE, points=0.25)
def failed_commits_are_told_to_all(save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """If rank 0 cannot write the manifest, every rank raises its error, and nothing is committed."""
    folder = scratch()
    (folder / "files").mkdir()
    yield _failing(save_sharded, rng, folder, UNCOMMITTED, None)


def _failing(save_sharded: Any, rng: np.random.Generator, folder: Path, faults: Faults, right: dict | None) -> Case:
    """Saves that must fail, and one that must not. right: what is in the folder before it, if that counts."""
    saves = [draw(rng, 3, step, values=False) for step in (*(fault[1] for fault in faults), 40)]

    def sees(found: list[list[Failing]]) -> list[list[Failing]]:
        # What has a temporary name is looked at by leftovers_of_a_killed_save_are_cleared.
        found[0][-1].root = {path.name: contents(path) for path in (folder / "files").glob("step_*")}
        return found

    expect = [[Failing("") for _ in saves] for _ in range(3)]
    if right is not None:
        expect[0][-1].root = {**right, saves[-1].name: contents_of(saves[-1])}
    args = (folder, save_sharded, faults, saves)
    return Case("saves that fail, and one", 3, _fail, args, expect, parts=0, sees=sees)
