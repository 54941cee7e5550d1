"""Lesson 06, exercise 3: training that resumes and that equals one process."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, fail
from autograder.checking.instruments.pickles import Bomb
from autograder.checking.stage import run_ranks
from autograder.checks.launch.common import (
    Examples,
    Model,
    expect_result,
    one_process,
    per_rank,
    plain_result,
)
from autograder.checks.launch.survival import expect_survival


def _train_cases(rank: int, world_size: int, train_ddp: Callable, data_seed: int, cases: list[dict]) -> list[dict]:
    seen = []
    for case in cases:
        case, data, printed = dict(case), Examples(data_seed), io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = train_ddp(rank, world_size, Model, data, case.pop("epochs"), **case)
        up = dist.is_initialized()
        with torch.no_grad():
            for p in Model.latest.parameters():
                p.add_(1.0)  # the returned dict is a copy, so it must not see this
        seen.append({"up": up, "printed": printed.getvalue(), **plain_result(result)})
        if not up:
            break
    return seen


@check("06-ex3-train-ddp")
def training_equals_one_process(train_ddp, *, rng):
    """N = 1…4 ranks: the losses and parameters of one process on the joined batches, on every rank."""
    data_seed, seed = int(rng.integers(2**31)), int(rng.integers(1, 2**20))
    cases = [
        {"epochs": 3},
        {"epochs": 2, "batch_size": 7, "lr": 0.03, "seed": seed},
        {"epochs": 0, "seed": seed},
    ]
    for world_size in (1, 2, 3, 4):
        results = run_ranks(_train_cases, world_size, (train_ddp, data_seed, cases))
        for number, case in enumerate(cases):
            name = f"{world_size} rank{'s' * (world_size > 1)}, " + ", ".join(f"{k} = {v}" for k, v in case.items())
            name = name.replace(str(seed), "…")
            for rank, mine in enumerate(results):
                if number >= len(mine):
                    fail("the process group is no longer up after train_ddp", name, "ended")
                expect_result(mine[number], one_process(data_seed, world_size, **case), rank, name)
                _expect_lines(mine[number], range(case["epochs"]) if rank == 0 else (), rank, name)
        if not all(seen["up"] for mine in results for seen in mine):
            fail("the process group is no longer up after train_ddp", count_of_ranks(world_size), "ended")


def _expect_lines(seen: dict, epochs: Any, rank: int, case: str) -> None:
    """One line for each of these epochs, with its number from 1 and its loss; nothing else."""
    lines = [line for line in seen["printed"].splitlines() if line.strip()]
    if len(lines) != len(epochs):
        wanted = f"one line for each of {len(epochs)} epochs" if rank == 0 else "only rank 0 prints"
        fail(f"rank {rank} printed {len(lines)} lines: {wanted}", case, (rank, len(lines)))
    for line, epoch in zip(lines, epochs, strict=True):
        numbers = re.findall(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?", line)
        told = [float(number) for number in numbers]
        if str(epoch + 1) not in numbers:
            fail(f"the line {line!r} does not name epoch {epoch + 1}", case, "epoch")
        if not any(abs(number - seen["losses"][epoch]) < 1e-3 for number in told):
            fail(f"the line {line!r} does not give the loss {seen['losses'][epoch]:.4f}", case, "loss")


class _Watch:
    """Inside a rank: who saves, renames and removes what in a folder."""

    def __init__(self, folder: str):
        self.folder, self.events = folder, []
        sys.addaudithook(self._audit)
        self._save, torch.save = torch.save, self._saving

    def _audit(self, event: str, arguments: tuple) -> None:
        if event in ("os.rename", "os.remove"):
            paths = [os.path.abspath(os.fsdecode(path)) for path in arguments if not isinstance(path, int)]
            if any(path.startswith(self.folder) for path in paths):
                folders = ["here" if os.path.dirname(path) == self.folder else "elsewhere" for path in paths]
                self.events.append((event, os.path.basename(paths[-1]), *folders))

    def _saving(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            self.events.append(("torch.save",))
        return self._save(obj, f, *args, **kwargs)


def _resume(rank: int, world_size: int, train_ddp: Callable, data_seed: int, root: str) -> dict:
    """One epoch, two, an interruption in the fourth, the rest, and once more; what there was to see."""
    folder = os.path.join(root, "run")
    checkpoint, kept = os.path.join(folder, "checkpoint"), os.path.join(root, "kept")
    watch, each, seen = _Watch(folder), per_rank(world_size), {"stages": {}}

    def stage(name: str, epochs: int, interrupt_at: int | None = None) -> bool:
        """Train; True if no rank failed."""
        data, printed = Examples(data_seed, interrupt_at), io.StringIO()
        record = seen["stages"][name] = {"error": ""}
        try:
            with contextlib.redirect_stdout(printed):
                record |= plain_result(train_ddp(rank, world_size, Model, data, epochs, seed=3, checkpoint=checkpoint))
        except NotImplementedError:
            raise
        except Exception as error:
            record["error"] = type(error).__name__
        record |= {"reads": len(data.reads), "printed": printed.getvalue()}
        seen["events"] = watch.events
        wrong = torch.tensor([record["error"] not in ("", "Interrupted")], dtype=torch.int64)
        dist.all_reduce(wrong)
        return not wrong.item()

    if not stage("first", 1) or not os.path.exists(checkpoint):
        return seen
    if not stage("second", 2):
        return seen
    if rank == 0:
        os.link(checkpoint, kept)
        seen["before"] = _content(checkpoint)
    dist.barrier()
    if not stage("interrupted", 5, interrupt_at=each + each * 2 // 3) or not stage("rest", 5) or not stage("done", 5):
        return seen
    if rank == 0:
        seen["after"], seen["renamed"] = _content(kept), not os.path.samefile(kept, checkpoint)
        seen["left"] = sorted(os.listdir(folder))
        if world_size == 1:
            seen["bomb"] = _plant(checkpoint, train_ddp, data_seed, os.path.join(root, "marker"))
    return seen


def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _plant(checkpoint: str, train_ddp: Callable, data_seed: int, marker: str) -> str:
    """Put a program into the checkpoint and train on from it: "" if it did not run."""
    try:
        saved = torch.load(checkpoint, weights_only=True)
    except Exception:
        return "cannot be loaded"
    bomb = {**saved, "bomb": Bomb(marker)} if isinstance(saved, dict) else [saved, Bomb(marker)]
    torch.save(bomb, checkpoint)
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        train_ddp(0, 1, Model, Examples(data_seed), 6, seed=3, checkpoint=checkpoint)
    return "ran" if os.path.exists(marker) else ""


@check("06-ex3-train-ddp")
def training_resumes(train_ddp, *, rng):
    """An interrupted run goes on from a file that was whole at every moment, and ends where it would have ended."""
    data_seed = int(rng.integers(2**31))
    for world_size in (1, 2, 3):
        with tempfile.TemporaryDirectory(prefix="resume-") as root:
            os.mkdir(os.path.join(root, "run"))
            Path(root, "run", "checkpoint.tmp").write_bytes(b"half a file")
            results = run_ranks(_resume, world_size, (train_ddp, data_seed, root), timeout=30.0)
        _expect_one_writer(results, world_size)
        _expect_stages(results, world_size, data_seed)
        _expect_whole_files(results[0], world_size)


def _expect_one_writer(results: list[dict], world_size: int) -> None:
    case = f"{count_of_ranks(world_size)} with a checkpoint"
    for rank, seen in enumerate(results):
        if rank and seen["events"]:
            fail(f"rank {rank} has written files too; only rank 0 saves", case, "another rank writes")


def _expect_stages(results: list[dict], world_size: int, data_seed: int) -> None:
    each = per_rank(world_size)
    wanted = {"first": (1, 1), "second": (2, 1), "interrupted": (5, 2), "rest": (5, 2), "done": (5, 0)}
    names = {
        "first": "the first epoch",
        "second": "one epoch more",
        "interrupted": "three epochs more, interrupted in the middle of the fourth",
        "rest": "resumed after the interruption",
        "done": "started again when all is done",
    }
    for name, (epochs, new) in wanted.items():
        case = f"{world_size} rank{'s' * (world_size > 1)}, {names[name]}"
        for rank, seen in enumerate(results):
            if name not in seen["stages"]:
                fail("there is no file at checkpoint after an epoch", case, "no file")
            record = seen["stages"][name]
            if record["error"] not in ("", "Interrupted"):
                fail(f"train_ddp raised {record['error']} on rank {rank}", case, record["error"])
        for rank, seen in enumerate(results):
            record = seen["stages"][name]
            if name == "interrupted":
                reads = record["reads"]
                if reads != each + each * 2 // 3:
                    fail(f"rank {rank} read {reads} examples before the interruption", case, reads)
                continue
            if record["reads"] != new * each:
                text = f"rank {rank} read {record['reads']} examples; {new} epochs were left to run, of {each} each"
                fail(text, case, (rank, record["reads"]))
            expect_result(record, one_process(data_seed, world_size, epochs, seed=3), rank, case)
            _expect_lines(record, range(epochs - new, epochs) if rank == 0 else (), rank, case)


def _expect_whole_files(seen: dict, world_size: int) -> None:
    case = f"{world_size} rank{'s' * (world_size > 1)} with a checkpoint"
    removed = [event for event in seen["events"] if event[:2] == ("os.remove", "checkpoint")]
    if removed:
        text = "the old checkpoint is removed before the new one has its name: for a moment there is none"
        fail(text, case, "removed")
    if seen["before"] != seen["after"] or not seen["renamed"]:
        fail("the file at checkpoint is written over while it is the only one", case, "in place")
    renames = [event for event in seen["events"] if event[:2] == ("os.rename", "checkpoint")]
    if len(renames) < 5:
        text = f"5 epochs were saved, but only {len(renames)} times did a finished file get the checkpoint's name"
        fail(text, case, ("renames", len(renames)))
    if ("os.rename", "checkpoint", "elsewhere", "here") in renames:
        text = "the new checkpoint is renamed from another folder: across file systems that is a copy, not a rename"
        fail(text, case, "another folder")
    surplus = [name for name in seen["left"] if name not in ("checkpoint", "checkpoint.tmp")]
    if surplus:
        fail(f"files are left beside the checkpoint: {surplus}", case, "left behind")
    if bomb := seen.get("bomb"):
        text = "a program hidden in the checkpoint ran when train_ddp loaded it"
        fail(text if bomb == "ran" else "the checkpoint cannot be loaded with weights_only=True", case, bomb)


@check("06-ex3-train-ddp")
def training_survives_torchrun_and_a_kill(train_ddp, *, rng):
    """A real torchrun, 4 ranks, rank 1 killed in mid-epoch: exit 0 and the undisturbed run's parameters."""
    expect_survival(train_ddp, 4, int(rng.integers(2**31)), real=True)
