"""Exercise 6: saves that go on while the ranks train."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, fact, sentence
from autograder.checks.check import check
from autograder.checks.instruments.calls import calls_on_default_group
from autograder.checks.instruments.filesystem import watch

from .format import Saved, contents, contents_of, draw, scratch, write_checkpoint
from .states import state_of, told

ASYNC = "16-ex6-async"


@dataclass
class Saves:
    """A save and a wait, then two saves of which the first is held back; what the folders hold, on rank 0."""

    waited: str = sentence()
    blocked: str = sentence()
    piled: str = sentence()
    first: Any = fact("{} in the checkpoint that was held back", "the state changes after save has returned")
    second: Any = fact("{} in the next checkpoint", "the state changes after save has returned")


def _saves(rank: int, world_size: int, folder: Path, saver_class: Any, saves: list[Saved]) -> Saves:
    """The first mistake ends it at once: two saves on one group, or two threads, may end the process."""
    root, gate, held = folder / "root", threading.Event(), {"begun": False}
    there = [root / saved.name for saved in saves]

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if not held["begun"]:
            held["begun"] = True
            time.sleep(0.05)
        gate.wait(2.0)
        gate.set()
        yield

    run = threading.Thread.run

    def late(thread: threading.Thread) -> None:
        time.sleep(0.1)  # what is copied in the thread is copied too late
        run(thread)

    threading.Thread.run = late
    saver = saver_class()
    watch(root, at, saver_class, type(saver).save)
    states = [state_of(saved, rank) for saved in saves]
    gate.set()
    dist.barrier()
    known = calls_on_default_group()
    saver.save(states[0], root, saves[0].step)
    saver.wait()
    if not os.path.isdir(there[0]):
        return Saves("wait returned before the save had ended", "", "")
    calls = calls_on_default_group() - known
    dist.barrier()
    gate.clear()
    saver.save(states[1], root, saves[1].step)
    waits = gate.is_set() or os.path.isdir(there[1])
    blocked = "save did not return before the checkpoint was there" if waits else ""
    _change(states[1])
    if not calls:  # else the two would meet in one group, and end the process
        dist.all_reduce(torch.ones(1))  # the ranks train on
    threading.Timer(0.15, gate.set).start()
    saver.save(states[2], root, saves[2].step)
    piled = "" if os.path.isdir(there[1]) else "the second save returned before the first had ended"
    if piled:
        raise RuntimeError(piled)
    _change(states[2])
    saver.wait()
    dist.barrier()
    return Saves("", blocked, "")


def _change(state: dict) -> None:
    """What training does to a state: everything in it changes in place."""
    for value in state.values():
        if isinstance(value, torch.Tensor):
            value.zero_()
        elif isinstance(value, list):
            value.append("later")
        elif isinstance(value, dict):
            value["later"] = True
            value["list"].append("later")


def _held_back(AsyncSaver: Any, saves: list[Saved], of: str) -> Case:
    """of: what is compared; "" for when the calls return, else the "values" or the "files" in the checkpoints."""
    folder = scratch()
    (folder / "root").mkdir()

    def seen(found: dict) -> dict:
        manifest = found["manifest"] if isinstance(found["manifest"], dict) else {}
        files = {name: data for name, data in found.items() if name.endswith(".bin")}
        return {"values": manifest.get("values")} if of == "values" else files

    def sees(found: list[Saves]) -> list[Saves]:
        first, second = (seen(contents(folder / "root" / saved.name)) for saved in saves[1:])
        return [replace(found[0], first=first, second=second), *found[1:]]

    expect = [Saves("", "", "") if not of else Saves("") for _ in saves[0].pieces]
    if of:
        expect[0].first, expect[0].second = (seen(contents_of(saved)) for saved in saves[1:])
    name = "a save, and two of which the first is held back"
    return Case(name, len(expect), _saves, (folder, AsyncSaver, saves), expect, parts=0, sees=sees)


@check(ASYNC, points=0.75)
def saving_goes_on_in_the_background(AsyncSaver: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """`save` returns before the state is saved; one save runs at a time, and `wait` waits for it."""
    yield _held_back(AsyncSaver, [draw(rng, 3, step, values=False) for step in (10, 20, 30)], "")


@check(ASYNC, points=0.5)
def tensors_are_copied(AsyncSaver: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """Tensors are saved as they were when `save` was called."""
    yield _held_back(AsyncSaver, [draw(rng, 2, step, values=False) for step in (10, 20, 30)], "files")


@dataclass
class Group:
    """A save and a wait, without another thread that sends."""

    raised: str = sentence()
    default: Any = fact(
        "the number of calls on the default group during a save", "the saver has a group of its own", bool
    )
    there: Any = fact("whether the checkpoint is there after wait:")


def _alone(rank: int, world_size: int, saver_class: Any, root: str, saved: Saved) -> Group:
    saver, state, known = saver_class(), state_of(saved, rank), calls_on_default_group()
    said = told(saver.save, state, root, saved.step)[1] or told(saver.wait)[1]
    calls = calls_on_default_group() - known
    dist.barrier()
    return Group(f"save or wait raised {said}" if said else "", calls, os.path.isdir(Path(root, saved.name)))


@check(ASYNC, points=0.75)
def saves_have_a_group_of_their_own(AsyncSaver: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """A save sends nothing over the default group, which training uses."""
    saved, root = draw(rng, 3, int(rng.integers(10, 99))), scratch()
    yield Case("a save and a wait", 3, _alone, (AsyncSaver, str(root), saved), [Group("", 0, True)] * 3, parts=0)


@check(ASYNC, points=0.5)
def lists_and_dicts_are_copied_too(AsyncSaver: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """What is inside a state's lists and dicts is saved as it was when `save` was called."""
    yield _held_back(AsyncSaver, [draw(rng, 2, step) for step in (10, 20, 30)], "values")


@dataclass
class Errors:
    """What each call raised, in order; and whether the save that raised made a checkpoint."""

    calls: Any = fact("what {} raises")
    saved: Any = fact("whether the save that raised an earlier error went on:")
    after: Any = fact("{} in the checkpoint after the errors")


#: What is called, in order, and the error that it must raise.
CALLS = {
    "wait before any save": "",
    "a save of a step that is there": "",
    "wait after it": "CheckpointError",
    "a second wait": "",
    "another save of that step": "",
    "the save after it": "CheckpointError",
    "wait after that": "",
    "a good save": "",
    "wait after a good save": "",
}


def _errors(rank: int, world_size: int, saver_class: Any, root: str, saved: Saved) -> Errors:
    saver, late = saver_class(), replace(saved, step=saved.step + 1)
    steps = [None, saved, None, None, saved, late, None, late, None]
    calls, went_on = {}, False
    for name, step in zip(CALLS, steps, strict=True):
        if step is None:
            _, said = told(saver.wait)
        else:
            _, said = told(saver.save, state_of(step, rank), root, step.step)
        calls[name] = said.split(":")[0]
        if name == "wait after that":
            went_on = os.path.isdir(Path(root, late.name))
            dist.barrier()  # before the good save
    return Errors(calls, went_on)


@check(ASYNC, points=0.5)
def background_errors_are_told_once(AsyncSaver: Any, *, rng: np.random.Generator) -> Iterator[Case]:
    """An error in the background is raised by the next call, and only once; later saves succeed."""
    root, saved = scratch(), draw(rng, 2, 10)
    write_checkpoint(root, draw(rng, 3, 10))
    late = replace(saved, step=11)

    def sees(found: list[Errors]) -> list[Errors]:
        return [replace(found[0], after=contents(root / late.name)), *found[1:]]

    expect = [Errors(CALLS, False, contents_of(late)), Errors(CALLS, False)]
    yield Case("saves of a step that is there", 2, _errors, (AsyncSaver, str(root), saved), expect, parts=0, sees=sees)
