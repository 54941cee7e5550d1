"""Lesson 06, exercise 4: save and load."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Call, Case, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.expect import caught
from autograder.checks.instruments.pickles import Bomb

SAVE = "06-ex4-save-load"
#: Neither float32 nor few digits hold these.
LOSSES = [0.5, 0.1, 1 / 3]
PLAIN = "SGD with momentum"
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


def _new(kind: str, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer; PLAIN has no buffers, no frozen parameters and a fixed learning rate."""
    torch.manual_seed(seed)
    if kind == PLAIN:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model = Counted()
    if kind == "Adam":
        return model, torch.optim.Adam(model.parameters(), lr=0.05)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, times: int) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
        optimizer.step()


def _weights(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).numpy().copy()


def _three_steps(kind: str, seed: int, save: Callable = lambda *_: None) -> tuple:
    """Model and optimizer after three steps, with a save after the first and after the third."""
    model, optimizer = _new(kind, seed)
    for times, losses in ((1, LOSSES[:1]), (2, LOSSES)):  # the second save replaces the first
        _steps(model, optimizer, times)
        if kind == CHANGED:
            optimizer.param_groups[0]["lr"] /= 4
        save(model, optimizer, list(losses))
    return model, optimizer


@dataclass
class Resumed:
    """What became of a run that rank 0 saves and rank 1 goes on with."""

    missing: str = sentence()
    changed: str = sentence()
    loaded: Any = fact("the model's state after load")
    resumed: Any = fact("the model's state two steps later", "after load it is right: this is the optimizer's state")


def _resume(rank: int, world_size: int, save: Callable, load: Callable, kind: str, seed: int) -> Resumed:
    """Rank 0 saves. Rank 1, another process, which has the file alone, loads it into a fresh model of another seed."""
    with tempfile.TemporaryDirectory(prefix="saving-") as own:
        folders = [own]
        dist.broadcast_object_list(folders)
        path = os.path.join(folders[0], "checkpoint")
        missing = changed = ""
        if rank == 0:
            model, _ = _three_steps(kind, seed, lambda *state: save(path, *state))
            missing = "" if os.path.exists(path) else "there is no file at path after save"
            same = np.array_equal(_weights(model), _weights(_three_steps(kind, seed)[0]))
            if not same or not all(part.training for part in model.modules()):
                changed = "save has changed the model, its weights or its train() mode"
        dist.barrier()
        loaded = resumed = np.zeros(0)
        if rank == 1 and os.path.exists(path):
            model, optimizer = _new(kind, seed + 1)
            load(path, model, optimizer)
            if not all(part.training for part in model.modules()):
                changed = "load has put the model into eval() mode: dropout and BatchNorm would go on in it"
            loaded = _weights(model)
            _steps(model, optimizer, 2)
            resumed = _weights(model)
        dist.barrier()
        return Resumed(missing, changed, loaded, resumed)


def _goes_on(save: Callable, load: Callable, kind: str, seed: int) -> Case:
    """A fresh model that loads takes the steps of the one that never stopped."""
    model, optimizer = _three_steps(kind, seed)
    loaded = close(_weights(model), rtol=1e-12)
    _steps(model, optimizer, 2)
    right = Resumed("", loaded=loaded, resumed=close(_weights(model), rtol=1e-12))
    expect = [Resumed(""), right]
    if kind != PLAIN:
        expect[0].changed = expect[1].changed = ""
    return Case(f"{kind}, another process loads", 2, _resume, (save, load, kind, seed), expect, parts=0)


@check(SAVE, points=0.75)
def resumed_run_goes_on(save: Callable, load: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """In another process, a fresh model that loads takes the steps of the one that never stopped."""
    yield _goes_on(save, load, PLAIN, int(rng.integers(2**20)))


@check(SAVE, points=0.25)
def all_of_the_state_is_kept(save: Callable, load: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """The same with buffers and frozen parameters, with Adam, and when the learning rate has changed on the way."""
    for kind in ("SGD, and the model has buffers", "Adam", CHANGED):
        yield _goes_on(save, load, kind, int(rng.integers(2**20)))


def _losses(save: Callable, load: Callable, losses: list[float], seed: int) -> list[Any]:
    """What load returns before there is a file, or the name of its error, and after a save of these losses."""
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        path, (model, optimizer) = os.path.join(folder, "checkpoint"), _new(PLAIN, seed)
        try:
            first = load(path, model, optimizer)
        except OSError as error:
            first = type(error).__name__
        save(path, model, optimizer, list(losses))
        return [first, load(path, model, optimizer)]


@check(SAVE, points=0.25)
def load_returns_the_losses(save: Callable, load: Callable, *, rng: np.random.Generator) -> Iterator[Call]:
    """load returns the list of losses; without a file, an empty list."""
    losses, seed = [*LOSSES, float(rng.uniform(0, 1))], int(rng.integers(2**20))
    what = "what load returns without a file (or raises), and after a save"
    yield Call(_losses, save, load, losses, seed, gives=[[], losses], what=what, name=f"a save of {losses}")


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
                folders = ["here" if path.startswith(self.folder + os.sep) else "elsewhere" for path in paths]
                self.events.append((event, os.path.basename(paths[-1]), *folders))
                if event == "os.rename" and paths[-1] == os.path.join(self.folder, "checkpoint"):
                    self.renamed.append(_content(paths[0]) if os.path.isfile(paths[0]) else "")
                if event == "os.rename" and paths[0] == os.path.join(self.folder, "checkpoint"):
                    self.events.append(("os.remove", "checkpoint", "here"))


@dataclass
class Saved:
    """What is wrong with saves, and what is in their folder."""

    wrong: list = sentence()
    left: Any = fact("the list of files in the folder after a second save", "no other file may remain", len)
    later: list = sentence()


def _watched(rank: int, world_size: int, save: Callable, load: Callable, seed: int) -> Saved:
    """Two saves, the second next to a link to the first file; then one that is cut off in torch.save, and one more."""
    with tempfile.TemporaryDirectory(prefix="saving-") as root:
        folder = os.path.join(root, "run")
        os.mkdir(folder)
        path, kept = os.path.join(folder, "checkpoint"), os.path.join(root, "kept")
        watch, (model, optimizer) = _Watch(folder), _new(PLAIN, seed)
        save(path, model, optimizer, [1.0])
        os.link(path, kept)
        before = _content(kept)
        _steps(model, optimizer, 1)
        save(path, model, optimizer, [1.0, 0.5])
        wrong, left = [], sorted(os.listdir(folder))
        renames = [event for event in watch.events if event[:2] == ("os.rename", "checkpoint")]
        if any(event[:2] == ("os.remove", "checkpoint") for event in watch.events):
            wrong.append("the old checkpoint is removed before the new one has its name: for a moment there is none")
        if before != _content(kept) or os.path.samefile(kept, path):
            wrong.append("the file at path is written over while it is the only one")
        if len(renames) < 2:
            wrong.append(f"two saves make only {len(renames)} renames to the checkpoint's name")
        if ("os.rename", "checkpoint", "elsewhere", "here") in renames:
            wrong.append(
                "the new checkpoint comes from another folder: if that is on another file system, os.replace raises "
                "'Invalid cross-device link', and shutil.move copies byte by byte"
            )
        if watch.renamed and watch.renamed[-1] != _content(path):
            wrong.append("the file gets the checkpoint's name before its last bytes are written, from a buffer")
        second, weights, later = _content(path), _weights(model), []
        _steps(model, optimizer, 1)
        with _cut_off(), contextlib.suppress(KeyboardInterrupt):
            save(path, model, optimizer, [1.0, 0.5, 0.25])
        if not os.path.exists(path) or _content(path) != second:
            later.append("after a save that was cut off, the last complete checkpoint is gone")
        if text := _restores(load, path, weights, seed):
            later.append(f"after a save that was cut off, load of the last complete checkpoint {text}")
        error, _ = caught(save, path, model, optimizer, [1.0, 0.5, 0.25])
        if text := f"raises {error}" if error else _restores(load, path, _weights(model), seed):
            later.append(f"after a save that was cut off, the next save and load: {text}")
        return Saved(wrong, left, later)


def _restores(load: Callable, path: str, weights: np.ndarray, seed: int) -> str:
    """Does load put these weights into a fresh model? What it does instead, or ""."""
    model, optimizer = _new(PLAIN, seed + 1)
    error, _ = caught(load, path, model, optimizer)
    return f"raises {error}" if error else "" if np.array_equal(_weights(model), weights) else "gives other weights"


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


@check(SAVE, points=0.5)
def file_is_complete_at_every_moment(save: Callable, load: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """The file gets its name by a rename in its folder, when it is complete; nothing else remains or does harm."""
    args, right = (save, load, int(rng.integers(2**20))), Saved([], ["checkpoint"], [])
    yield Case("a second save over a first one, and one that is cut off", 1, _watched, args, [right], parts=0)


def _plant(rank: int, world_size: int, save: Callable, load: Callable) -> Saved:
    """Put a program into a checkpoint and load it."""
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        path, marker = os.path.join(folder, "checkpoint"), os.path.join(folder, "marker")
        model, optimizer = _new(PLAIN, 0)
        save(path, model, optimizer, [1.0])
        if _restores(load, path, _weights(model), 0):
            return Saved(["without a hidden program, load does not give back what was saved"])
        try:
            saved = torch.load(path, weights_only=True)
        except Exception:
            return Saved(["the file cannot be loaded with weights_only=True"])
        torch.save({**saved, "bomb": Bomb(marker)} if isinstance(saved, dict) else [*saved, Bomb(marker)], path)
        with contextlib.suppress(Exception):
            load(path, model, optimizer)
        return Saved(["a program hidden in the checkpoint ran when load opened it"] * os.path.exists(marker))


@check(SAVE, points=0.25, fixed="one program stands for all: none may run")
def programs_in_a_file_do_not_run(save: Callable, load: Callable) -> Iterator[Case]:
    """A program that somebody has put into the checkpoint does not run when it is loaded."""
    yield Case("a hidden program", 1, _plant, (save, load), [Saved([])], parts=0)
