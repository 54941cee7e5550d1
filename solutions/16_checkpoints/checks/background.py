"""Exercise 6: saves that go on while the ranks train."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank
from autograder.checking.instruments.calls import calls_on_default_group
from autograder.checking.instruments.filesystem import watch
from autograder.checking.stage import run_ranks
from autograder.checks.checkpoints.format import draw, expect_content, scratch_folder, write_checkpoint
from autograder.checks.checkpoints.states import Attempt, attempt, expect_error, expect_returned, state_of

#: What `_async_driver` observes, in order: what is right, and what is wrong otherwise.
OBSERVATIONS: list[tuple[bool | int | str, str]] = [
    (True, "wait returned before the save had ended"),
    (0, "the saver sent its messages over the default group"),
    (False, "save did not return before the checkpoint was there"),
    (True, "wait returned before the second save had ended"),
    ("", "a second wait raised an error"),
]


def _async_driver(rank, world_size, folder, saver_class, saves):
    """A save and a wait; then two saves, the first held back, while the state changes and the ranks talk.

    Returns what it observed, for `OBSERVATIONS`. The first mistake ends the run at once: two saves on one group, or two
    threads, may end the process.
    """
    seen: list[bool | int | str] = []

    def is_wrong(observed: bool | int | str) -> bool:
        seen.append(observed)
        return observed != OBSERVATIONS[len(seen) - 1][0]

    root, gate, slow = folder / "root", threading.Event(), {"first": True}
    there = [root / saved.name for saved in saves]

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if slow.pop("first", False):
            time.sleep(0.05)
        if not slow:
            gate.wait(2.0)
            gate.set()
        yield

    saver = saver_class()
    watch(root, at, saver_class, type(saver).save)
    states = [state_of(saved, rank) for saved in saves]
    dist.barrier()
    gate.set()
    known = calls_on_default_group()
    saver.save(states[0], root, saves[0].step)
    saver.wait()
    if is_wrong(os.path.isdir(there[0])) or is_wrong(calls_on_default_group() - known):
        return seen
    gate.clear()
    saver.save(states[1], root, saves[1].step)
    if is_wrong(gate.is_set() or os.path.isdir(there[1])):
        return seen
    for state in states[:2]:
        _spoil(state)
    total = torch.ones(1)
    dist.all_reduce(total)  # the ranks train on
    threading.Timer(0.15, gate.set).start()
    saver.save(states[2], root, saves[2].step)
    if not os.path.isdir(there[1]):
        raise RuntimeError("the second save returned before the first had ended")
    _spoil(states[2])
    saver.wait()
    if is_wrong(os.path.isdir(there[2])):
        return seen
    is_wrong(attempt(saver.wait).raised)
    dist.barrier()
    return seen


def _spoil(state: dict) -> None:
    """What training does to a state: everything in it changes in place."""
    for value in state.values():
        if isinstance(value, torch.Tensor):
            value.data.view(-1).copy_(torch.zeros_like(value))
        elif isinstance(value, list):
            value.append("later")
        elif isinstance(value, dict):
            value["later"] = True
            for inner in value.values():
                if isinstance(inner, list):
                    inner.append("later")


@check("16-ex6-async", points=2)
def saving_goes_on_in_the_background(AsyncSaver, *, rng):
    """`save` copies the state and returns before it is saved; one save runs at a time, over a group of its own."""
    for world_size in (2, 3):
        case, saves = count_of_ranks(world_size), [draw(rng, world_size, step) for step in (10, 20, 30)]
        with scratch_folder() as folder:
            (folder / "root").mkdir()
            results = run_ranks(_async_driver, world_size, (folder, AsyncSaver, saves), timeout=10.0)
            for rank, seen in each_rank(case, results):
                for (right, wrong), observed in zip(OBSERVATIONS, seen, strict=False):
                    if type(observed) is not type(right) or observed != right:
                        rank.fail(wrong, evidence=wrong)
                if len(seen) != len(OBSERVATIONS):
                    rank.fail("not all saves were observed", evidence=len(seen))
            for saved in saves[1:]:
                expect_content(case, folder / "root" / saved.name, saved, f"the checkpoint of step {saved.step}")


#: What `_error_driver` calls, in order, and the error that each must raise: its kind and what it must contain.
ERRORS = {
    "wait before any save": None,
    "the first save": None,
    "wait after a save that failed": ("CheckpointError", "step_00000010"),
    "a second wait": None,
    "another save that fails": None,
    "the save after it": ("CheckpointError", "step_00000010"),
    "wait after save has raised": None,
    "a good save": None,
    "wait after a good save": None,
    "a save of a matrix": None,
    "wait after a save of a matrix": ("ValueError", "w"),
}


@dataclass
class ErrorsSeen:
    """What each of the calls of `ERRORS` did, and whether "the save after it" left a checkpoint.

    default: whether saves called the default group, up to the first error and after it.
    """

    calls: list[Attempt]
    saved: bool
    default: list[bool]


def _error_driver(rank, world_size, saver_class, root, saved):
    saver, calls = saver_class(), []
    late = replace(saved, step=saved.step + 1)

    def save(this=saved):
        calls.append(attempt(saver.save, state_of(this, rank), root, this.step, plain=str))

    def wait():
        calls.append(attempt(saver.wait, plain=str))

    known = calls_on_default_group()
    wait()
    save()  # the step is there
    wait()
    default = [calls_on_default_group() > known]
    known = calls_on_default_group()
    wait()
    save()  # again
    save(late)
    there = os.path.isdir(Path(root, late.name))
    wait()
    known -= calls_on_default_group()
    dist.barrier()
    known += calls_on_default_group()
    save(late)
    wait()
    calls.append(attempt(saver.save, {"w": torch.ones(2, 2)}, root, late.step + 1, plain=str))
    wait()
    default.append(calls_on_default_group() > known)
    return ErrorsSeen(calls, there, default)


@check("16-ex6-async", points=1)
def background_errors_are_told_once(AsyncSaver, *, rng):
    """An error in the background is raised by the next call, as what it was, and only once; later saves succeed."""
    case = "saves of a step that is there"
    with scratch_folder() as folder:
        saved = draw(rng, 2, 10)
        write_checkpoint(folder, draw(rng, 3, 10))
        results = run_ranks(_error_driver, 2, (AsyncSaver, str(folder), saved))
        for rank, seen in each_rank(case, results):
            for (what, error), call in zip(ERRORS.items(), seen.calls, strict=True):
                if error:
                    expect_error(f"{case}: {what}", call, *error, rank.rank)
                else:
                    expect_returned(f"{case}: {what}", call, f"on rank {rank.rank}, {what}")
            if seen.saved:
                rank.fail("save raised the error of the one before, and saved all the same", evidence="saved")
            if any(seen.default):
                when = "" if seen.default[0] else "after an error, "
                rank.fail(f"{when}the saver sent its messages over the default group", evidence=seen.default)
        expect_content(case, folder / "step_00000011", replace(saved, step=11), "the checkpoint after the errors")
