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
from autograder.checking.expect import expect_close, fail
from autograder.checking.instruments.pickles import Bomb
from autograder.checking.stage import run_ranks

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


def _goes_on(save: Callable, load: Callable, kind: str, seed: int) -> None:
    """Fail unless a fresh model that loads takes the steps of the one that never stopped."""
    # In two processes: what is not in the file is gone.
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        seen = run_ranks(_save_twice, 1, (save, folder, kind, seed))[0]
        if not seen["there"]:
            fail("there is no file at path after save", kind, "no file")
        seen |= run_ranks(_resume, 1, (load, folder, kind, seed))[0]
    if kind != PLAIN and not seen["unchanged"]:
        fail("save has changed the model, its weights or its train() mode", kind, "changed by save")
    if kind != PLAIN and not seen["trains"]:
        fail("load has put the model into eval() mode: dropout and BatchNorm would go on in it", kind, "eval")
    evidence = [seen["loaded"], seen["resumed"]]
    same = np.allclose(seen["loaded"], seen["saved"], rtol=1e-12)
    later = "a weight two steps later" + " (those after load are right: it is the optimizer's state)" * same
    for got, expected, what in (("loaded", "saved", "the model's state after load"), ("resumed", "whole", later)):
        expect_close(kind, seen[got], seen[expected], what=what, rtol=1e-12, evidence=evidence)


@check("06-ex4-save-load", points=0.75)
def resumed_run_goes_on(save: Callable, load: Callable, *, rng: np.random.Generator) -> None:
    """In another process, a fresh model that loads takes the steps of the one that never stopped."""
    _goes_on(save, load, PLAIN, int(rng.integers(2**20)))


@check("06-ex4-save-load", points=0.25)
def all_of_the_state_is_kept(save: Callable, load: Callable, *, rng: np.random.Generator) -> None:
    """The same with buffers and frozen parameters, with Adam, and when the learning rate has changed on the way."""
    for kind in ("SGD, and the model has buffers", "Adam", CHANGED):
        _goes_on(save, load, kind, int(rng.integers(2**20)))


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


@check("06-ex4-save-load", points=0.25)
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


def _watched(rank: int, world_size: int, save: Callable, load: Callable, seed: int) -> dict:
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
        seen: dict = {"left": sorted(os.listdir(folder))}
        seen["complete"] = not watch.renamed or watch.renamed[-1] == _content(path)
        seen["events"] = list(watch.events)
        seen["whole"] = before == _content(kept) and not os.path.samefile(kept, path)
        second, weights = _content(path), _weights(model)
        _steps(model, optimizer, 1)
        with _cut_off(), contextlib.suppress(KeyboardInterrupt):
            save(path, model, optimizer, [1.0, 0.5, 0.25])
        seen["survives"] = os.path.exists(path) and _content(path) == second
        seen["resumes"] = _restores(load, path, weights, seed)
        try:
            save(path, model, optimizer, [1.0, 0.5, 0.25])
            seen["after"] = _restores(load, path, _weights(model), seed)
        except NotImplementedError:
            raise
        except Exception as error:
            seen["after"] = f"raises {type(error).__name__}"
        return seen


def _restores(load: Callable, path: str, weights: np.ndarray, seed: int) -> str:
    """Does load put these weights into a fresh model? What it does instead, or ""."""
    model, optimizer = _new(PLAIN, seed + 1)
    try:
        load(path, model, optimizer)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "" if np.array_equal(_weights(model), weights) else "gives other weights"


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
    if len(renames) < 2:
        fail(f"two saves, but only {len(renames)} renames to the checkpoint's name", case, ("renames", len(renames)))
    if ("os.rename", "checkpoint", "elsewhere", "here") in renames:
        text = (
            "the new checkpoint comes from another folder: if that is on another file system, os.replace raises "
            "'Invalid cross-device link', and shutil.move copies byte by byte"
        )
        fail(text, case, "another folder")
    if not seen["complete"]:
        text = "the file gets the checkpoint's name before all of it is written: its last bytes are still in a buffer"
        fail(text, case, "not yet complete")
    case = "after a save that was cut off"
    if not seen["survives"]:
        fail("the last complete checkpoint is gone", case, "gone")
    if seen["resumes"]:
        fail(f"load of the last complete checkpoint {seen['resumes']}", case, seen["resumes"])
    if seen["after"]:
        fail(f"the next save and load: {seen['after']}", case, ["after", seen["after"]])


def _plant(rank: int, world_size: int, save: Callable, load: Callable) -> str:
    """Put a program into a checkpoint and load it: "" if it did not run."""
    with tempfile.TemporaryDirectory(prefix="saving-") as folder:
        path, marker = os.path.join(folder, "checkpoint"), os.path.join(folder, "marker")
        model, optimizer = _new(PLAIN, 0)
        save(path, model, optimizer, [1.0])
        if _restores(load, path, _weights(model), 0):
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
def programs_in_a_file_do_not_run(save: Callable, load: Callable) -> None:
    """A program that somebody has put into the checkpoint does not run when it is loaded."""
    bomb = run_ranks(_plant, 1, (save, load))[0]
    if bomb:
        text = {
            "ran": "a program hidden in the checkpoint ran when load opened it",
            "cannot be loaded": "the file cannot be loaded with weights_only=True",
            "not what was saved": "without a hidden program, load does not give back what was saved",
        }
        fail(text[bomb], "a hidden program", bomb)
