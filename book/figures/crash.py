"""What crashes leave of a save by lesson 16's own functions, at each of its calls; and the still that shows it.

Two ranks save step 20 over step 10, call by call, and the folder is copied after each call: that is what a kill leaves.
What a power cut may leave is computed from the calls. Bytes that were not fsynced may be there, lost or zeros, and
names in a folder that was not fsynced are there or not. All of this is written down and loaded by `load_sharded`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ranks
from autograder.checks import module
from autograder.checks.instruments.filesystem import Log, path_of, read_log, watch
from autograder.lesson import notebook

scratch_folder = module("16_checkpoints", "format").scratch_folder

CAPTION = "A crash at any moment of a save"
RANKS, OLD = 2, "step_00000010"
#: Which fsyncs are left out, and the still's words for what is fsynced.
LEFT = {"none": "all", "files": "folders", "folders": "files", "both": "nothing"}
#: In units of the picture: the space for labels, a column's width, a line's height.
LABEL, WIDE, LINE = 112, 84, 15
#: What a crash leaves besides step 10: a folder's name or None, and in it each file's bytes.
State = tuple[str | None, frozenset[tuple[str, bytes]]]


class Moment:
    """A call (kind "left" is an fsync that is left out), and what is found after a kill or a power cut behind it."""

    def __init__(self, kind: str, rank: int, name: str, here: State):
        self.kind, self.rank, self.name, self.here = kind, rank, name, here
        self.killed, self.cut = "", set()


def _save(rank, world_size, folder, save_sharded):
    """Save step 20 over step 10 in each way, with a line in a log and a copy of the folder after each call.

    A shard is one byte, which is written in one call.
    """
    roots = {left: folder / "saves" / left / "root" for left in LEFT}
    logs = {left: Log(folder / f"{left}.log", rank, root) for left, root in roots.items()}

    @contextlib.contextmanager
    def at(kind, path, target="", fd=None):
        if "shard_" in path:  # the ranks take turns, so that the copies are those of one order of calls
            turn = world_size * next(turns) + rank
            while sum("shard_" in event.path for event in logs[left].events()) < turn:
                time.sleep(0.002)
        yield
        copy = folder / f"{left}.{rank}.{time.monotonic_ns()}"
        shutil.copytree(roots[left], copy)
        logs[left].add(kind, path, str(copy))

    def fsync(fd):
        kind = "folders" if stat.S_ISDIR(os.fstat(fd).st_mode) else "files"
        if left not in (kind, "both"):
            return watched(fd)
        with at("left", path_of(fd)):
            pass

    def all_gather_object(*args, **kwargs):
        gather(*args, **kwargs)
        logs[left].add("together")

    for root in roots.values():
        save_sharded({"w": torch.tensor([10 + rank], dtype=torch.uint8)}, root, 10)
    watch(folder / "saves", at, save_sharded)
    watched, os.fsync = os.fsync, fsync
    gather, dist.all_gather_object = dist.all_gather_object, all_gather_object
    for left in LEFT:  # which the functions above look at
        turns = itertools.count()
        dist.barrier()
        save_sharded({"w": torch.tensor([20 + rank], dtype=torch.uint8)}, roots[left], 20)


def _recorded(log: Path) -> list[Moment]:
    """The calls of a save in the order in which they were made; the ranks' meetings once, as rank 0's."""
    moments: list[Moment] = []
    for event in read_log(log):
        if event.kind == "together":
            moments += [Moment("together", 0, "", moments[-1].here)] if event.rank == 0 else []
            continue
        kind = event.kind
        if kind == "half":  # the second part of the same write
            kind = moments.pop().kind
        new = next((path for path in Path(event.target).iterdir() if path.name != OLD), None)
        held = frozenset((path.name, path.read_bytes()) for path in new.iterdir()) if new else frozenset()
        moments.append(Moment(kind, event.rank, Path(event.path).name, (new and new.name, held)))
    return moments


def _after_power_cut(moments: list[Moment]) -> set[State]:
    """Everything that the disk may hold if power is cut behind the last of these moments."""
    entries, named, synced = [None], set(), {}
    for moment in moments:
        entry, files = moment.here[0], dict(moment.here[1])
        if moment.kind in ("make", "rename"):
            entries.append(entry)
        elif moment.kind == "fsync" and moment.name == "root":
            entries = [entry]
        elif moment.kind == "fsync" and moment.name == entry:
            named = set(files)
        elif moment.kind == "fsync":
            synced[moment.name] = files[moment.name]
    choices = []
    for name, data in files.items():
        kept = {data} if synced.get(name) == data else {data, b"", bytes(len(data))}
        choices.append([(name, content) for content in kept] + ([] if name in named else [None]))
    return {
        (entry, frozenset(filter(None, chosen)) if entry else frozenset())
        for entry in entries
        for chosen in itertools.product(*choices)
    }


def _find(rank, world_size, roots, checkpoints, latest, load_sharded):
    """What is found in each folder: "step 10", "step 20", or by what the newest checkpoint shows that it is damaged."""
    found = []
    for root in roots:
        newest = checkpoints(root)[-1]
        try:
            state, manifest = load_sharded(newest)
            assert state["w"].tolist() == [manifest["step"] + rank], "loaded, but not what was saved"
            found.append(f"step {manifest['step']}")
        except RuntimeError as error:
            assert type(error).__name__ == "CheckpointError", error
            found.append("digest" if latest(root) == newest else "manifest")
    return found


def study() -> dict[str, list[Moment]]:
    """For each choice of fsyncs to leave out: all calls, with what is found after a crash behind each."""
    lesson = notebook.functions("16_checkpoints")
    with scratch_folder() as folder:
        ranks.run(_save, RANKS, (folder, lesson["save_sharded"]))
        saves = {left: _recorded(folder / f"{left}.log") for left in LEFT}
        cuts = {left: [_after_power_cut(save[: k + 1]) for k in range(len(save))] for left, save in saves.items()}
        kills = {moment.here for save in saves.values() for moment in save}
        states = list(kills.union(*(disks for save in cuts.values() for disks in save)))
        roots = [folder / str(number) for number in range(len(states))]
        for root, (entry, files) in zip(roots, states, strict=True):
            shutil.copytree(folder / "saves" / "none" / "root" / OLD, root / OLD)
            if entry:
                (root / entry).mkdir()
            for name, data in files:
                (root / entry / name).write_bytes(data)
        functions = [lesson[name] for name in ("checkpoints", "latest", "load_sharded")]
        found = ranks.run(_find, RANKS, (roots, *functions))
    assert found[0] == found[1], "the ranks do not find the same"
    finds = dict(zip(states, found[0], strict=True))
    for left, save in saves.items():
        for moment, disks in zip(save, cuts[left], strict=True):
            moment.killed, moment.cut = finds[moment.here], {finds[disk] for disk in disks}
    return saves


def still() -> tuple[str, str]:
    """The picture and its text alternative: what is found after a crash in each stretch of calls."""
    saves = study()
    calls = saves["none"]
    columns = {"killed": [{save[k].killed for save in saves.values()} for k in range(len(calls))]}
    columns |= {words: [moment.cut for moment in saves[left]] for left, words in LEFT.items()}
    rows = [k for k in range(len(calls)) if k == 0 or any(cell[k] != cell[k - 1] for cell in columns.values())]
    power = LABEL + WIDE
    marks = [_text(power, 12, "power cut, after fsync of", "title"), _text(LABEL, 28, "killed", "title")]
    marks += [_text(power + k * WIDE, 28, words, "title") for k, words in enumerate(LEFT.values())]
    said, y = [], 50
    for k in rows:
        name = {"make": "Before the rename", "rename": "After the rename"}.get(calls[k].kind, "At the end")
        marks += [f'<path class="still-box" d="M0 {y - 14}H{power + len(LEFT) * WIDE}"/>', _text(0, y, name)]
        cells = {words: _shown(cell[k]) for words, cell in columns.items()}
        for column, found in enumerate(cells.values()):
            marks += [_text(LABEL + column * WIDE, y + LINE * line, words) for line, words in enumerate(found)]
        told = [f"{words}: {' or '.join(found)}" for words, found in cells.items()]
        said.append(f"{name}, {told[0]}; power cut, after fsync of {', '.join(told[1:])}")
        y += LINE * max(map(len, cells.values())) + 10
    alt = f"What load_sharded finds after a crash during a save of step 20 over step 10. {'. '.join(said)}."
    size = f'viewBox="0 0 {power + len(LEFT) * WIDE} {y - 10}"'
    return f'<svg {size} xmlns="http://www.w3.org/2000/svg">{"".join(marks)}</svg>', alt


def _shown(found: set[str]) -> list[str]:
    """What may be found, in words."""
    return sorted(found - {"digest", "manifest"}) + ["damaged"] * bool(found & {"digest", "manifest"})


def _text(x: float, y: float, words: str, look: str = "label") -> str:
    bold = ' style="font-weight: 600"' if words == "damaged" else ""
    return f'<text class="still-{look}" x="{x}" y="{y}"{bold}>{words}</text>'
