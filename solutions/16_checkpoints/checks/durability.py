"""What a log of the file system must show: bytes are on the disk before the name of a checkpoint is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autograder.checks.expect import CheckFailed, fail
from autograder.checks.instruments.filesystem import Event, Log, id_of, watch


def logged(folder: Path, rank: int, *subjects: Any) -> Log:
    """Inside a rank: a log of everything that it does from now on below `folder`/files."""
    log = Log(folder / "log", rank, folder / "files")
    watch(log.root, log.at, *subjects)
    return log


def what_it_says(expect: Callable, *args: Any) -> str:
    """What an expectation below says that is wrong, or ""."""
    try:
        expect(*args)
    except CheckFailed as error:
        return error.failure.message
    return ""


def during(events: list[Event], name: str) -> list[Event]:
    """The events from the begin of the call of this name until it had returned, both included."""
    begin, end = (
        next(i for i, e in enumerate(events) if (e.kind, e.path) == (kind, name)) for kind in ("begin", "returned")
    )
    return events[begin : end + 1]


def expect_synced(case: str, events: list[Event], name: str, file: Path, who: str) -> None:
    """The call `name` fsynced the file before it returned, and after its last write."""
    number = id_of(events, file)
    inside = during(events, name)
    if "fsynced" not in [e.kind for e in inside[:-1] if e.id == number]:
        fail(f"{who} returned without an fsync of its file", case, "no fsync")
    # Python may write what is left in its buffer after the call has returned.
    later = [e.kind for e in events[events.index(inside[0]) :] if e.id == number]
    if "written" in later[len(later) - later[::-1].index("fsynced") :]:
        fail(f"{who} called fsync before all bytes had left Python's buffer", case, "fsync before write")
    _expect_on_disk(case, [e for e in inside if e.kind == "fsynced" and e.id == number], file, who)


def expect_durable(case: str, events: list[Event], path: Path, who: str) -> None:
    """Everything in the checkpoint `path` was fsynced before the one rename, the folder above after it."""
    renames = [i for i, e in enumerate(events) if e.kind == "rename" and Path(e.target) == path]
    if len(renames) != 1:
        fail(f"{who} made {len(renames)} renames to {path.name}, expected 1", case, ["renames", len(renames)])
    at = renames[0]
    for file in sorted(path.iterdir()):
        _expect_file_synced(case, events, file, at, who)
    source = Path(events[at].path)
    filled = [i for i, e in enumerate(events) if e.kind == "created" and Path(e.path).parent == source]
    synced = _syncs(events, path)
    if not any(max(filled, default=-1) < i < at for i in synced):
        text = f"{who} did not fsync the checkpoint's folder between creating its last file and the rename"
        fail(text, case, "folder not synced")
    returns = [i for i, e in enumerate(events) if e.kind == "returned" and e.rank == events[at].rank and i > at]
    after = [i for i in _syncs(events, path.parent) if i > at]
    if not after or (returns and min(after) > min(returns)):
        fail(f"{who} did not fsync the folder above after the rename", case, "root not synced")


def _expect_file_synced(case: str, events: list[Event], file: Path, rename: int, who: str) -> None:
    """The file's last write, then an fsync of it, then the rename, which is at this place in the log."""
    number = id_of(events, file)
    last = max((i for i, e in enumerate(events) if e.id == number and e.kind == "written"), default=-1)
    if last > rename:
        fail(f"{who} wrote {file.name} after the rename", case, ["written late", file.name])
    synced = [i for i in _syncs(events, file) if last < i]
    if not synced:
        fail(f"{who} did not fsync {file.name} after its last byte was written", case, ["no fsync", file.name])
    if min(synced) > rename:
        fail(f"{who} renamed before {file.name} was fsynced", case, ["fsync late", file.name])
    _expect_on_disk(case, [events[i] for i in synced if i < rename], file, who)


def _expect_on_disk(case: str, syncs: list[Event], file: Path, who: str) -> None:
    """At one of these fsyncs the file held what it holds now: a file can change in ways that no log shows."""
    held = {event.holds for event in syncs} - {""}
    if held and hashlib.sha256(file.read_bytes()).hexdigest() not in held:
        fail(f"{who} changed {file.name} after its fsync: its last bytes are not on the disk", case, "changed later")


def _syncs(events: list[Event], path: Path) -> list[int]:
    """The places in the log at which an fsync of this file or folder has ended."""
    number = id_of(events, path)
    return [i for i, e in enumerate(events) if e.kind == "fsynced" and e.id == number]
