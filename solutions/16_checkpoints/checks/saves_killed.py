"""Exercise 2: saves that are killed.

A save is killed for real (`a_killed_save_leaves_the_last_checkpoint`): for each place in each of two ranks two
processes are forked, join a group of their own and save over an older checkpoint; one ends itself with SIGKILL, the
other is left to itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from autograder.checks.cases import Case, fact, sentence
from autograder.checks.check import check
from autograder.checks.expect import fail
from autograder.checks.instruments.filesystem import watch
from autograder.checks.stage import run_ranks
from ranks import record, stopwatch

from .format import Saved, contents, contents_of, draw, scratch, scratch_folder
from .states import fair, state_of, told

#: Seconds for a save to end of itself once its other rank was killed.
GRACE = 5.0

# ---- a copy of the folder at every moment ----


@dataclass
class Again:
    """What a save by one rank raised, over the first copy that it could not deal with, and what it left."""

    raised: str = sentence()
    left: Any = fact("what is in root after another save:", "what killed saves left is cleared away")


def _copied(rank: int, world_size: int, folder: Path, save_sharded: Any, old: Saved, new: Saved) -> Again:
    """Two ranks save over an older checkpoint; root is copied before each change: that is what kills leave."""
    root, count = folder / "root", iter(range(10**6))
    lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT)

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        fcntl.flock(lock, fcntl.LOCK_EX)  # nothing moves while it is copied
        try:
            shutil.copytree(root, folder / "copies" / f"{rank}.{next(count):03d}", symlinks=True)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    with fair(save_sharded):
        save_sharded(state_of(old, rank), root, old.step)
        dist.barrier()
        watch(root, at, save_sharded)
        save_sharded(state_of(new, rank), root, new.step)
        dist.barrier()
    return Again("")


def _again(rank: int, world_size: int, folder: Path, save_sharded: Any, saved: Saved) -> Again:
    for over in folder.glob(f"copies/*/{saved.name}"):
        shutil.rmtree(over.parent)
    copies = sorted(folder.glob("copies/*"))
    with fair(save_sharded):
        raised = [told(save_sharded, state_of(saved, 0), copy, saved.step)[1] for copy in copies]
    return Again(next((f"save_sharded raised {said}" for said in raised if said), ""))


@check("16-ex2-save", points=0.25)
def leftovers_of_a_killed_save_are_cleared(save_sharded: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """After a save was killed, at any moment, fewer ranks can save, and nothing of the killed save is left."""
    folder = scratch()
    old, new, alone = (draw(rng, ranks, step, values=False) for ranks, step in ((2, 10), (2, 20), (1, 20)))
    (folder / "copies").mkdir()

    def sees(found: list[Again]) -> list[Again]:
        found[0].left = [[], False]  # as it is seen where the save changed nothing
        for copy in sorted(folder.glob("copies/*")):
            names = sorted(path.name for path in copy.iterdir() if path.name != old.name)
            found[0].left = [names, contents(copy / alone.name) == contents_of(alone)]
            if found[0].left != [[alone.name], True]:
                break
        return found

    yield Case("save", 2, _copied, (folder, save_sharded, old, new), [Again("")] * 2, parts=0)
    expect = [Again("", [[alone.name], True])]
    yield Case(
        "a save after one by 2 ranks was killed", 1, _again, (folder, save_sharded, alone), expect, parts=0, sees=sees
    )


# ---- SIGKILL ----


def _forked(folder: Path, save_sharded: Callable, saved: Saved, rank: int, world_size: int, kill_at: int) -> None:
    """A process that saves as one of two ranks, and ends itself at a change of the folder; never returns."""
    record.detach()  # what this process sends is not the rank's
    c10d = dist.distributed_c10d
    _forked.kept = c10d._world  # the parent's group; its threads do not run in this process
    c10d._world, dist.GroupMember.WORLD = c10d._World(), None
    store = dist.FileStore(str(folder / "rendezvous"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    kinds: list[str] = []

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        kinds.append(kind)
        if len(kinds) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        yield

    watch(folder / "root", at, save_sharded)
    with contextlib.suppress(Exception), fair(save_sharded):  # the other rank may be dead
        save_sharded(state_of(saved, rank), folder / "root", saved.step)
    (folder / f"kinds.{rank}").write_text(" ".join(kinds))
    os._exit(0)


def _start(folder: Path, save_sharded: Callable, saved: Saved, victim: int, kill_at: int) -> list[int]:
    """Fork two processes that save together; their ids."""
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                _forked(folder, save_sharded, saved, rank, 2, kill_at if rank == victim else -1)
            finally:
                os._exit(1)
        pids.append(pid)
    return pids


def _finish(pids: list[int]) -> list[int]:
    """The exit codes of processes; those that still run after `GRACE` seconds of their own are ended."""
    had, codes = stopwatch.Stopwatch(lambda: pids), {}
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if had.seconds() > GRACE:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return [codes[pid] for pid in pids]


def kill_driver(rank, world_size, folder, save_sharded, old, new):
    """Two processes save `old` and then, once for each change of each of them, `new`, where one is killed.

    Returns the places, (victim, number, kind) each: for each process the changes that it makes, in order; `folder`/i
    is what the i-th kill left. [] if a save in which no process was killed did not end. Two saves run at a time.
    """
    base = folder / "base"
    base.mkdir()
    if _finish(_start(base, save_sharded, old, -1, 0)) != [0, 0]:
        return []
    count = folder / "count"
    _after(base, count)
    if _finish(_start(count, save_sharded, new, -1, 0)) != [0, 0]:
        return []
    kinds = [(count / f"kinds.{victim}").read_text().split() for victim in range(2)]
    places = [(victim, at, kind) for victim in range(2) for at, kind in enumerate(kinds[victim], start=1)]
    running: list = []
    for number, (victim, at, _) in enumerate(places):
        _after(base, folder / str(number))
        running.append(_start(folder / str(number), save_sharded, new, victim, at))
        if len(running) == 2:
            _finish(running.pop(0))
    for pids in running:
        _finish(pids)
    return places


def _after(base: Path, folder: Path) -> None:
    """A folder in which the older checkpoint was saved."""
    folder.mkdir()
    shutil.copytree(base / "root", folder / "root")


# Cases have a launch of their own for seconds; these kills take a minute on a loaded machine.
@check("16-ex2-save", points=0.25)
def a_killed_save_leaves_the_last_checkpoint(save_sharded: Any, *, rng: np.random.Generator) -> None:
    """Whichever rank is killed, at any change of the folder, each checkpoint that is left is whole, and one is left."""
    old, new = (draw(rng, 2, step, values=False) for step in (10, 20))
    with scratch_folder() as folder:
        places = run_ranks(kill_driver, 1, (folder, save_sharded, old, new), timeout=60.0)[0]
        if not places:
            fail("a save in which no rank was killed did not end", "2 ranks", "not even once")
        for number, (victim, _, kind) in enumerate(places):
            if text := what_is_left(folder / str(number) / "root", old, new):
                place = f"rank {victim} was killed just before it would {'finish a write' if kind == 'half' else kind}"
                fail(f"{place}: {text}", "a save over an older checkpoint", text)


def what_is_left(root: Path, old: Saved, new: Saved) -> str:
    """What is wrong with what a killed save left; "" if every checkpoint is `old` or `new`."""
    right = {saved.name: contents_of(saved) for saved in (old, new)}
    found = sorted(root.glob("step_*"))
    broken = [path.name for path in found if contents(path) != right.get(path.name)]
    return f"{broken[0]} is there, but not whole" if broken else "" if found else "no checkpoint is left"
