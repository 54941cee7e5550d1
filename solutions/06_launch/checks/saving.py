"""Lesson 06, exercise 4: save and load."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autograder.checking.cases import Call
from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, fail
from autograder.checking.instruments.pickles import Bomb
from autograder.checking.stage import run_ranks

#: Neither float32 nor few digits hold these.
LOSSES = [0.5, 0.1, 1 / 3]
CHANGED = "SGD, and lr has changed on the way"


class Counted(torch.nn.Module):
    """Two layers in float64, with a buffer that counts the calls and takes part in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))  # BatchNorm has such a one, too
        self.inner.bias.requires_grad_(False)  # frozen, and part of the model all the same
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, 3). Returns (B, 1)."""
        self.calls += 1
        self.batches += 1
        return self.outer(torch.tanh(self.inner(x))) * (1 + 0.1 * self.calls)


def _new(kind: str, seed: int) -> tuple[Counted, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Counted()
    if kind == "Adam":
        return model, torch.optim.Adam(model.parameters(), lr=0.05)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _steps(model: Counted, optimizer: torch.optim.Optimizer, times: int) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
        optimizer.step()


def _weights(model: Counted) -> np.ndarray:
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).numpy().copy()


def _save_twice(rank: int, world_size: int, save: Callable, folder: str, kind: str, seed: int) -> dict:
    """Three steps, a save after the first and after the third, two more: the weights at the save and at the end."""
    path, (model, optimizer) = os.path.join(folder, "checkpoint"), _new(kind, seed)
    for times, losses in ((1, LOSSES[:1]), (2, LOSSES)):  # the second save replaces the first
        _steps(model, optimizer, times)
        if kind == CHANGED:
            optimizer.param_groups[0]["lr"] /= 4
        before = _weights(model)
        save(path, model, optimizer, list(losses))
    saved, trains = _weights(model), all(part.training for part in model.modules())
    same = bool(np.array_equal(before, saved)) and trains
    _steps(model, optimizer, 2)
    return {"there": os.path.exists(path), "unchanged": same, "saved": saved, "whole": _weights(model)}


def _resume(rank: int, world_size: int, load: Callable, folder: str, kind: str, seed: int) -> dict:
    """A fresh model of another seed loads and takes two steps: what load returned, the weights after it, and then."""
    model, optimizer = _new(kind, seed + 1)
    got = load(os.path.join(folder, "checkpoint"), model, optimizer)
    loaded, trains = _weights(model), all(part.training for part in model.modules())
    _steps(model, optimizer, 2)
    return {"losses": got, "loaded": loaded, "trains": trains, "resumed": _weights(model)}


@check("06-ex4-save-load", points=1)
def resumed_run_goes_on(save: Callable, load: Callable, *, rng: np.random.Generator) -> None:
    """In another process, a fresh model that loads takes the steps of the one that never stopped, also with Adam."""
    seed = int(rng.integers(2**20))
    for kind in ("SGD with momentum", "Adam", CHANGED):
        # In two processes: what is not in the file is gone.
        with tempfile.TemporaryDirectory(prefix="saving-") as folder:
            seen = run_ranks(_save_twice, 1, (save, folder, kind, seed))[0]
            if not seen["there"]:
                fail("there is no file at path after save", kind, "no file")
            if not seen["unchanged"]:
                fail("save has changed the model, its weights or its train() mode", kind, "changed by save")
            seen |= run_ranks(_resume, 1, (load, folder, kind, seed))[0]
        expect_equal(kind, seen["losses"], LOSSES, what="what load returns")
        if not seen["trains"]:
            fail("load has put the model into eval() mode: dropout and BatchNorm would go on in it", kind, "eval")
        evidence = [seen["loaded"], seen["resumed"]]
        names = ("loaded", "saved", "the model's state after load"), ("resumed", "whole", "the state two steps later")
        for got, expected, what in names:
            expect_close(kind, seen[got], seen[expected], what=what, rtol=1e-12, evidence=evidence)


class _Watch:
    """Inside a rank: who renames and removes what in a folder, and what is in a file when it is renamed."""

    def __init__(self, folder: str):
        self.folder: str = folder
        self.events: list[tuple] = []
        self.renamed: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple) -> None:
        if event in ("os.rename", "os.remove"):  # a rename comes here before it happens
            paths = [os.path.abspath(os.fsdecode(path)) for path in arguments if isinstance(path, (str, bytes, Path))]
            if any(path.startswith(self.folder) for path in paths):
                folders = ["here" if os.path.dirname(path) == self.folder else "elsewhere" for path in paths]
                self.events.append((event, os.path.basename(paths[-1]), *folders))
                if event == "os.rename" and paths[-1] == os.path.join(self.folder, "checkpoint"):
                    self.renamed.append(_content(paths[0]) if os.path.isfile(paths[0]) else "")
                if event == "os.rename" and paths[0] == os.path.join(self.folder, "checkpoint"):
                    self.events.append(("os.remove", "checkpoint", "here"))


def _watched(rank: int, world_size: int, save: Callable, load: Callable, seed: int) -> dict:
    """Two saves, the second next to a link to the first file; then one that is cut off in torch.save, and one more."""
    with tempfile.TemporaryDirectory(prefix="saving-") as root:
        folder = os.path.join(root, "run")
        os.mkdir(folder)
        path, kept = os.path.join(folder, "checkpoint"), os.path.join(root, "kept")
        watch, (model, optimizer) = _Watch(folder), _new("SGD", seed)
        save(path, model, optimizer, [1.0])
        os.link(path, kept)
        before = _content(kept)
        save(path, model, optimizer, [1.0, 0.5])
        seen: dict = {"left": sorted(os.listdir(folder))}
        seen["complete"] = not watch.renamed or watch.renamed[-1] == _content(path)
        there = os.getcwd()
        os.chdir(folder)
        with contextlib.suppress(Exception):  # then there is a rename less
            save("checkpoint", model, optimizer, [1.0, 0.5])
        os.chdir(there)
        seen["events"] = list(watch.events)
        seen["whole"] = before == _content(kept) and not os.path.samefile(kept, path)
        second = _content(path)
        with _cut_off(), contextlib.suppress(KeyboardInterrupt):
            save(path, model, optimizer, [1.0, 0.5, 0.25])
        seen["survives"] = os.path.exists(path) and _content(path) == second
        try:
            seen["resumes"] = load(path, model, optimizer)
        except NotImplementedError:
            raise
        except Exception as error:
            seen["resumes"] = f"{type(error).__name__}"
        try:
            save(path, model, optimizer, [1.0, 0.5, 0.25])
            seen["after"] = load(path, model, optimizer)
        except NotImplementedError:
            raise
        except Exception as error:
            seen["after"] = f"{type(error).__name__}"
        with contextlib.suppress(Exception):  # what it did before says why
            save(path, model, optimizer, [1.0])
            seen["shorter"] = load(path, model, optimizer)
        return seen


@contextlib.contextmanager
def _cut_off() -> Any:
    """torch.save writes half of what it should, and then the process is interrupted."""
    real = torch.save

    def half(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        real(obj, f, *args, **kwargs)
        if isinstance(f, (str, os.PathLike)):
            os.truncate(f, os.path.getsize(f) // 2)
        else:
            f.flush()
            f.truncate(f.tell() // 2)
        raise KeyboardInterrupt

    torch.save = half
    try:
        yield
    finally:
        torch.save = real


def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@check("06-ex4-save-load", points=0.5)
def file_is_complete_at_every_moment(save: Callable, load: Callable, *, rng: np.random.Generator) -> None:
    """The file gets its name by a rename in its folder, when it is complete; nothing else remains or does harm."""
    case = "a second save over a first one"
    seen = run_ranks(_watched, 1, (save, load, int(rng.integers(2**20))))[0]
    if [event for event in seen["events"] if event[:2] == ("os.remove", "checkpoint")]:
        text = "the old checkpoint is removed before the new one has its name: for a moment there is none"
        fail(text, case, "removed")
    if not seen["whole"]:
        fail("the file at path is written over while it is the only one", case, "in place")
    renames = [event for event in seen["events"] if event[:2] == ("os.rename", "checkpoint")]
    if surplus := [name for name in seen["left"] if name != "checkpoint"]:
        fail(f"other files remain in the folder: {surplus}", case, "left behind")
    if len(renames) < 3:
        fail(f"three saves, but only {len(renames)} renames to the checkpoint's name", case, ("renames", len(renames)))
    if ("os.rename", "checkpoint", "elsewhere", "here") in renames:
        text = "the new checkpoint is renamed from another folder: across file systems that is a copy, not a rename"
        fail(text, case, "another folder")
    if not seen["complete"]:
        text = "the file gets the checkpoint's name before all of it is written: its last bytes are still in a buffer"
        fail(text, case, "not yet complete")
    case = "after a save that was cut off"
    if not seen["survives"]:
        fail("the last complete checkpoint is gone", case, "gone")
    if seen["resumes"] != [1.0, 0.5]:
        fail(f"load gives {seen['resumes']!r}, the last checkpoint has [1.0, 0.5]", case, str(seen["resumes"]))
    if seen["after"] != [1.0, 0.5, 0.25]:
        fail(f"the next save and load give {seen['after']!r}", case, ["after", str(seen["after"])])
    shorter = seen.get("shorter")
    if shorter != [1.0]:
        text = f"a run that began anew has saved [1.0] over a longer one, and load gives {shorter!r}"
        fail(text, "a save with fewer losses than the one before", str(shorter))


def _without_a_file(load: Callable, seed: int) -> Any:
    """What load returns in an empty folder, or the name of its error."""
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        try:
            return load(os.path.join(folder, "checkpoint"), *_new("SGD", seed))
        except OSError as error:
            return type(error).__name__


@check("06-ex4-save-load", points=0.25)
def start_without_a_file_is_an_empty_list(load: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """Without a file, load returns an empty list."""
    seed = int(rng.integers(2**20))
    yield Call(_without_a_file, load, seed, gives=[], what="what load returns or raises", name="no file at path")


def _plant(rank: int, world_size: int, save: Callable, load: Callable) -> str:
    """Put a program into a checkpoint and load it: "" if it did not run."""
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        path, marker = os.path.join(folder, "checkpoint"), os.path.join(folder, "marker")
        (model, optimizer), (other, fresh) = _new("SGD", 0), _new("SGD", 1)
        save(path, model, optimizer, [1.0])
        if load(path, other, fresh) != [1.0] or not np.array_equal(_weights(other), _weights(model)):
            return "not what was saved"
        try:
            saved = torch.load(path, weights_only=True)
        except Exception:
            return "cannot be loaded"
        torch.save({**saved, "bomb": Bomb(marker)} if isinstance(saved, dict) else [*saved, Bomb(marker)], path)
        with contextlib.suppress(Exception):
            load(path, model, optimizer)
        return "ran" if os.path.exists(marker) else ""


@check("06-ex4-save-load", points=0.25, fixed="one program stands for all: none may run")
def programs_in_a_file_do_not_run(save: Callable, load: Callable, *, rng: np.random.Generator) -> None:
    """A program that somebody has put into the checkpoint does not run when it is loaded."""
    bomb = run_ranks(_plant, 1, (save, load))[0]
    if bomb:
        text = {
            "ran": "a program hidden in the checkpoint ran when load opened it",
            "cannot be loaded": "the file cannot be loaded with weights_only=True",
            "not what was saved": "without a hidden program, load does not give back what was saved",
        }
        fail(text[bomb], "a hidden program", bomb)
