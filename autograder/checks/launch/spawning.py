"""Lesson 06, exercise 4: processes started from Python."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

from autograder.checking.check import check
from autograder.checking.expect import expect_raises, fail
from autograder.checking.stage import run_ranks
from autograder.checks.launch.common import (
    LAUNCH_TIMEOUT,
    expect_result,
    forget_launcher,
    one_process,
    parts_module,
    plain_result,
    script_with,
)

#: In place of the solution's functions: they say what they were called with, and train nothing.
STAND_INS = """
import json as _json
import os as _os


def _note(rank, **what):
    path = _os.path.join(_os.environ["CHECK_NOTES"], f"{rank}")
    with open(path, "a") as file:
        file.write(_json.dumps(what) + "\\n")


def train_ddp(rank, world_size, model_class, data, epochs, *, batch_size=16, lr=0.1, seed=0, checkpoint=None):
    import torch
    import torch.distributed as dist

    up = dist.is_initialized()
    arguments = [rank, world_size, model_class.__name__, data, epochs, batch_size, lr, seed, checkpoint]
    note = {"arguments": arguments, "up": up}
    if up:
        store = dist.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        total = torch.ones(1)
        dist.all_reduce(total)
        note |= {"group": [dist.get_rank(), dist.get_world_size(), total.item()]}
        note |= {"store": type(store).__name__}
    _note(rank, **note)
    if data == "bad" and rank == world_size - 1:
        raise ArithmeticError("the data of this rank are bad")
    return {"losses": [float(rank), 0.5], "state_dict": {"weight": torch.full((3,), 10.0 + rank)}}


def setup_ddp(rank, world_size):
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError("setup_ddp found no group, and no environment that describes one")


def cleanup_ddp():
    import torch.distributed as dist

    if dist.is_initialized():
        _note(dist.get_rank(), cleanup=True)
        dist.destroy_process_group()
"""


def _modules(folder: str, *texts: str) -> list[Any]:
    """The modules with these texts, imported by names that new processes can import too."""
    names = [f"exported_{os.path.basename(folder).replace('-', '_')}_{number}" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(folder, f"{name}.py").write_text(text)
    sys.path.insert(0, folder)
    return [importlib.import_module(name) for name in names]


def _forking_spawn(fn: Callable, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False, **_: Any):
    """mp.spawn with forked processes, which start at once. As spawn does, it sends the function and args by pickle."""
    fn = pickle.loads(pickle.dumps(fn))
    with contextlib.suppress(RuntimeError):  # a queue may be sent while a process starts, and at no other time
        args = pickle.loads(pickle.dumps(args))
    return mp.start_processes(fn, args, nprocs, join, daemon, start_method="fork")


def _noting_places(init_process_group: Callable) -> Callable:
    """init_process_group that first notes the file in which the ranks are to meet, if it is one."""

    def noting(*args: Any, **kwargs: Any) -> None:
        named = inspect.signature(init_process_group).bind_partial(*args, **kwargs).arguments
        place = getattr(named.get("store"), "path", None) or str(named.get("init_method")).partition("file://")[2]
        if place:
            Path(os.environ["CHECK_NOTES"], f"place-{os.getpid()}").write_text(place)
        return init_process_group(*args, **kwargs)

    return noting


def _launch_forked(rank, world_size, whose: Callable, folder: str, text: str, parts: str, calls: list) -> dict:
    """Inside a rank of its own: some launches with stand-ins, and what the processes noted."""
    dist.destroy_process_group()
    forget_launcher()
    notes = Path(folder, "notes")
    temporary = Path(folder, "tmp")
    temporary.mkdir()
    os.environ.update(CUDA_VISIBLE_DEVICES="", TMPDIR=str(temporary))
    tempfile.tempdir = None
    import torch.multiprocessing.spawn  # noqa: F401  the module, which the function of this name hides

    sys.modules["torch.multiprocessing.spawn"].spawn = mp.spawn = _forking_spawn
    dist.init_process_group = _noting_places(dist.init_process_group)
    module, own = _modules(folder, text, parts)
    seen = []
    for number, (nprocs, kwargs) in enumerate(calls):
        here = notes / str(number)
        here.mkdir(parents=True)
        os.environ["CHECK_NOTES"] = str(here)
        record = {"error": None, "result": None}
        try:
            record["result"] = plain_result(module.launch_distributed(nprocs, model_class=own.Model, **kwargs))
        except NotImplementedError:
            raise
        except Exception as error:
            record["error"] = (type(error).__name__, str(error))
        record["places"] = sorted({note.read_text().partition("?")[0] for note in here.glob("place-*")})
        record["running"] = bool(mp.active_children())
        if record["running"]:  # how far they came is luck: nothing that they noted counts
            seen.append(record)
            for process in mp.active_children():
                process.kill()
            break
        record["notes"] = {int(f.name): [json.loads(line) for line in f.open()] for f in here.glob("[0-9]*")}
        seen.append(record)
    # What multiprocessing and mp.spawn themselves leave begins with these names.
    left = [name for name in os.listdir(temporary) if not name.startswith(("pymp-", "torch_", "pytorch-errorfile"))]
    return {"calls": seen, "left": len(left)}


@check("06-ex4-launch-distributed")
def launching_brings_back_what_rank_0_returns(launch_distributed, *, rng):
    """Every argument arrives, the ranks meet in a new file, rank 0's result comes back, errors are raised."""
    for wrong in (0, -3):
        case = f"world_size = {wrong}"
        expect_raises(case, launch_distributed, wrong, error=ValueError, mentions="world_size")
    some = {"epochs": int(rng.integers(1, 50)), "lr": float(rng.random()), "seed": int(rng.integers(100))}
    every = {**some, "batch_size": int(rng.integers(2, 64)), "checkpoint": "some/where"}
    common = {"data": "good"}
    calls = [(2, common | some), (3, common | every), (1, common | some), (2, common | {"data": "bad", "epochs": 1})]
    text = script_with(launch_distributed, STAND_INS)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        seen = run_ranks(_launch_forked, 1, (launch_distributed, folder, text, parts_module(), calls))[0]
    # Before anything else: whether ranks that meet in an old file find each other, and what they raise, is luck.
    places = [place for record in seen["calls"] for place in record["places"]]
    if len(set(places)) < len(places):
        fail("two launches have met in the same file", "several launches", "same file")
    for (nprocs, kwargs), record in zip(calls[:-1], seen["calls"], strict=False):
        _expect_launch(nprocs, kwargs, record)
    case = "an exception in rank 1"
    error = seen["calls"][-1]["error"]
    if error is None:
        fail("nothing was raised", case, "nothing raised")
    if "the data of this rank are bad" not in error[1]:
        fail(f"what was raised does not tell what went wrong in the rank: {error[0]}", case, error[0])
    if seen["left"]:
        fail(f"{seen['left']} files or folders are left in the folder for temporary files", "files", seen["left"])


def _expect_launch(nprocs: int, kwargs: dict, record: dict) -> None:
    case = f"{nprocs} processes" if nprocs > 1 else "1 process"
    if record["running"]:
        fail("launch_distributed ended while its processes were still running", case, "still running")
    notes = record["notes"]
    if set(notes) == set(range(nprocs)) and all("arguments" in mine[0] for mine in notes.values()):
        for rank, mine in notes.items():
            _expect_note(rank, nprocs, kwargs, mine, case)
    if record["error"]:
        name, text = record["error"]
        lines = [line for line in text.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        # A rank's own error comes as text, in which a port differs; those of others may name temporary files. In which
        # way ranks do not find each other is luck.
        told = re.sub(r"\d+", "#", last) if name.startswith("Process") else ""
        evidence = "no connection" if re.search("gloo|connect", text, re.IGNORECASE) else (name, told)
        fail(f"launch_distributed raised {name}: {last}", case, evidence)
    if set(notes) != set(range(nprocs)):
        fail(f"train_ddp was called on the ranks {sorted(notes)}, not on all of {nprocs}", case, sorted(notes))
    got = record["result"]
    if got["problem"]:
        fail(f"launch_distributed {got['problem']}", case, got["problem"])
    if got["losses"] != [0.0, 0.5] or list(got["state"]) != ["weight"] or got["state"]["weight"].tolist() != [10.0] * 3:
        fail("launch_distributed did not return what rank 0's train_ddp has returned", case, str(got["losses"]))


def _expect_note(rank: int, nprocs: int, kwargs: dict, mine: list[dict], case: str) -> None:
    note = mine[0]
    full = {"batch_size": 16, "lr": 0.1, "seed": 0, "checkpoint": None, **kwargs}
    order = ("data", "epochs", "batch_size", "lr", "seed", "checkpoint")
    wanted = [rank, nprocs, "Model", *(full[name] for name in order)]
    names = ("rank", "world_size", "model_class", *order)
    for name, got, expected in zip(names, note["arguments"], wanted, strict=True):
        if got != expected:
            fail(f"train_ddp got {name} = {got!r} on rank {rank}, not {expected!r}", case, (name, "wrong"))
    if not note["up"]:
        fail("there is no process group when train_ddp is called", case, "no group")
    if note["group"] != [rank, nprocs, float(nprocs)]:
        fail(f"rank {rank} of {nprocs} is rank {note['group'][0]} of {note['group'][1]} in its group", case, "ranks")
    if note["store"] != "FileStore":
        fail(f"the ranks have met in a {note['store']}, not in a file: its port may be taken", case, note["store"])
    if {"cleanup": True} not in mine:
        fail("cleanup_ddp was not called after train_ddp", case, "no cleanup")


def _launch_spawned(rank, world_size, whose: Callable, folder: str, text: str, parts: str, settings: dict) -> dict:
    """Inside a rank of its own: one launch with the real mp.spawn and the real train_ddp."""
    dist.destroy_process_group()
    forget_launcher()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.stdout.flush()
    module, own = _modules(folder, text, parts)
    data = own.Examples(settings["seed"])
    return plain_result(
        module.launch_distributed(2, model_class=own.Model, data=data, epochs=settings["epochs"], lr=0.05)
    )


@check("06-ex4-launch-distributed")
def launching_works_with_fresh_processes(launch_distributed, *, rng):
    """The real mp.spawn, with 2 new Pythons that train: what one process gets."""
    seed, case = int(rng.integers(2**31)), "2 new Python processes"
    text = script_with(launch_distributed)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        arguments = (launch_distributed, folder, text, parts_module(), {"seed": seed, "epochs": 2})
        got = run_ranks(_launch_spawned, 1, arguments, timeout=LAUNCH_TIMEOUT)[0]
    expect_result(got, one_process(seed, 2, 2, lr=0.05), 0, case)
