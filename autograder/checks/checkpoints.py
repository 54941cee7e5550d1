"""Lesson 16: checkpoints that are whole or not there, and that load whole or not at all.

What is on the disk is read by a reader of this module's own (`_content`), and damaged checkpoints come from a writer
of its own (`write_checkpoint`): json, hashlib and bytes, no tensors. Inside a rank `_watch` stands before every call
that changes a folder: opening, writing (once before and once in the middle of each write), fsync, rename and so on.
There a process is killed, a disk is full, a copy of the folder is taken, or a line is added to a log that all ranks
share, whose order is that in which things happened.

A save is killed for real (`a_killed_save_leaves_the_last_checkpoint`): for each place in each of two ranks two
processes are forked, join a group of their own and save over an older checkpoint; one ends itself with SIGKILL, the
other is left to itself.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import datetime
import errno
import fcntl
import hashlib
import inspect
import io
import json
import os
import pickle
import re
import shutil
import signal
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.profiler import record_function

from autograder.checking.check import check
from autograder.checking.expect import fail
from autograder.checking.instruments.pickles import Bomb
from autograder.checking.stage import jailed, run_ranks

#: Bytes of a number, by the name of its dtype.
SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1}
SIZES |= {"uint8": 1, "bool": 1}
#: What a rank may write besides its own pieces: the manifest, and room for another's bookkeeping.
BOOKKEEPING = 64 * 1024
#: Seconds that one rank waits for another to begin to write; they write at the same time, so it need not wait.
PATIENCE = 3.0
#: Where fsync costs nothing, if there is such a place.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=None if jailed() else FAST) as folder:
        yield Path(folder).resolve()


# ---- a checkpoint as plain data, its writer and its reader ----


@dataclass
class Saved:
    """A checkpoint: `pieces[rank]` maps names to (dtype's name, bytes)."""

    step: int
    pieces: list[dict[str, tuple[str, bytes]]]
    values: dict

    @property
    def name(self) -> str:
        """Its folder's name."""
        return "step_" + str(self.step).rjust(8, "0")


def _bytes(rng: np.random.Generator, dtype: str, numel: int) -> bytes:
    """Numbers with any bits, NaN and -0.0 among them."""
    if dtype == "bool":
        return rng.integers(0, 2, numel, dtype=np.uint8).tobytes()
    return rng.bytes(numel * SIZES[dtype])


def draw(rng: np.random.Generator, world_size: int, step: int, numel: int = 0, tensors: bool = True) -> Saved:
    """Tensors of several dtypes, in pieces of any length, some empty; or one float32 tensor of `numel` a rank."""
    kinds = {
        "master": "float32",
        "exp_avg": "bfloat16",
        "count": "int64",
        "mask": "bool",
        "x": "float16",
        "y": "float64",
    }
    lengths = {name: rng.integers(1, 9, world_size) for name in kinds}
    if world_size > 1:
        lengths["count"][rng.integers(world_size)] = 0
        lengths["master"][-1] = 0
    pieces = [
        {name: (kind, _bytes(rng, kind, int(lengths[name][r]))) for name, kind in kinds.items()}
        for r in range(world_size)
    ]
    if numel:
        pieces = [{"w": ("float32", _bytes(rng, "float32", numel + r))} for r in range(world_size)]
    values = {
        "step": step,
        "lr": float(rng.random() / 3),
        "name": "Adam, β₂ = 0.999",
        "betas": [0.9, float(rng.random())],
        "nested": {
            "tokens": int(rng.integers(2**53, 2**62)),
            "list": [1, 2.0, None, True, {"deep": [1e-300]}],
            "empty": {},
        },
    }
    return Saved(step, pieces if tensors else [{} for _ in pieces], values)


def _manifest(saved: Saved) -> tuple[dict, list[bytes]]:
    """The manifest of a checkpoint, and its files' contents."""
    shards, files = [], []
    for rank, tensors in enumerate(saved.pieces):
        data, table = b"", {}
        for name, (dtype, piece) in tensors.items():
            table[name] = {"dtype": dtype, "offset": len(data), "numel": len(piece) // SIZES[dtype]}
            data += piece
        digest = hashlib.sha256(data).hexdigest()
        file = f"shard_{rank:05d}.bin"
        shards.append({"rank": rank, "file": file, "bytes": len(data), "sha256": digest, "tensors": table})
        files.append(data)
    created = "2026-01-31T12:00:00+00:00"
    manifest = {"schema": 1, "step": saved.step, "world_size": len(files), "created": created, "values": saved.values}
    return {**manifest, "shards": shards}, files


def write_checkpoint(root: Path, saved: Saved) -> Path:
    """A checkpoint on the disk, as it should be."""
    path = root / saved.name
    path.mkdir(parents=True)
    manifest, files = _manifest(saved)
    for entry, data in zip(manifest["shards"], files, strict=True):
        (path / entry["file"]).write_bytes(data)
    put_manifest(path, manifest)
    return path


def put_manifest(path: Path, manifest: Any) -> None:
    data = json.dumps(manifest, indent=2).encode()
    (path / "manifest.json").write_bytes(data)
    (path / "manifest.sha256").write_text(hashlib.sha256(data).hexdigest())


def _content(path: Path) -> Saved | str:
    """What a checkpoint holds; or, in a sentence, why it is none."""
    files = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    for name in ("manifest.json", "manifest.sha256"):
        if name not in files:
            return f"{name} is not there"
    data, digest = files.pop("manifest.json"), files.pop("manifest.sha256")
    if hashlib.sha256(data).hexdigest().encode() != digest.strip():
        return "manifest.sha256 does not hold the SHA-256 of manifest.json"
    try:
        return _from_manifest(json.loads(data), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"manifest.json is not as described: {type(error).__name__} {error}"


def _from_manifest(manifest: dict, files: dict[str, bytes]) -> Saved | str:
    if manifest["schema"] != 1:
        return f"the manifest's schema is {manifest['schema']!r}"
    if datetime.datetime.fromisoformat(manifest["created"]).tzinfo is None:
        return f"created is {manifest['created']!r}, without a time zone"
    if [entry["rank"] for entry in manifest["shards"]] != list(range(manifest["world_size"])):
        return f"the manifest's shards are not one for each of {manifest['world_size']} ranks"
    if set(files) != {entry["file"] for entry in manifest["shards"]}:
        return f"the files are {sorted(files)}, the manifest lists {[e['file'] for e in manifest['shards']]}"
    pieces = []
    for rank, entry in enumerate(manifest["shards"]):
        if entry["file"] != f"shard_{rank:05d}.bin":
            return f"rank {rank}'s file is called {entry['file']}"
        tensors = _tensors_in(entry, files[entry["file"]])
        if isinstance(tensors, str):
            return tensors
        pieces.append(tensors)
    return Saved(manifest["step"], pieces, manifest["values"])


def _tensors_in(entry: dict, data: bytes) -> dict[str, tuple[str, bytes]] | str:
    """The pieces in a shard's file; or, in a sentence, what is wrong with it."""
    if set(entry) != {"rank", "file", "bytes", "sha256", "tensors"}:
        return f"{entry.get('file')}: its entry has {sorted(entry)}"
    if entry["bytes"] != len(data):
        return f"{entry['file']} has {len(data)} bytes, its entry says {entry['bytes']}"
    if entry["sha256"] != hashlib.sha256(data).hexdigest():
        return f"{entry['file']} has another SHA-256 than its entry says"
    tensors, end = {}, 0
    for name, place in entry["tensors"].items():
        if set(place) != {"dtype", "offset", "numel"} or place["dtype"] not in SIZES:
            return f"{entry['file']}: {name!r} is described by {place}"
        if place["offset"] != end:
            return f"{entry['file']}: {name!r} begins at byte {place['offset']}, the one before ends at {end}"
        end += place["numel"] * SIZES[place["dtype"]]
        tensors[name] = (place["dtype"], data[place["offset"] : end])
    return tensors if end == len(data) else f"{entry['file']} has {len(data)} bytes, its tensors {end}"


def _expect_content(case: str, path: Path, want: Saved, what: str = "the checkpoint") -> None:
    """A checkpoint on the disk is the one that it should be."""
    if not path.is_dir():
        there = (
            sorted(re.sub(r"\d{3,}|[a-z0-9_]{8}$", "…", p.name) for p in path.parent.iterdir())
            if path.parent.is_dir()
            else []
        )
        fail(f"there is no folder {path.name} where {what} should be", case, ["no folder", there])
    got = _content(path)
    if isinstance(got, str):
        fail(f"{what}: {got}", case, got)
    if got.step != want.step:
        fail(f"{what} says that it is of step {got.step}, expected {want.step}", case, ["step", got.step])
    _expect_pieces(case, got.pieces, want.pieces, what)
    if not _same(got.values, want.values):
        fail(f"{what} has the plain values {got.values}, expected {want.values}", case, ["values", repr(got.values)])


def _expect_pieces(case: str, got: list[dict], want: list[dict], what: str) -> None:
    lengths = [{name: (dtype, len(data)) for name, (dtype, data) in mine.items()} for mine in got]
    if len(got) != len(want):
        fail(f"{what} has {len(got)} shards, expected {len(want)}", case, lengths)
    for rank, (mine, expected) in enumerate(zip(got, want, strict=True)):
        if list(mine) != list(expected):
            fail(f"{what}: rank {rank}'s tensors are {list(mine)}, expected {list(expected)}", case, list(mine))
        for name, (dtype, data) in expected.items():
            if mine[name][0] != dtype or len(mine[name][1]) != len(data):
                held = f"{len(mine[name][1])} bytes of {mine[name][0]}"
                fail(f"{what}: {name!r} of rank {rank} is {held}, expected {len(data)} of {dtype}", case, lengths)
            if mine[name][1] != data:
                fail(
                    f"{what}: {name!r} of rank {rank} has other bytes than were saved",
                    case,
                    [name, rank, mine[name][1].hex()],
                )


def _same(a: Any, b: Any) -> bool:
    """Equal, and of the same types."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return type(a) is type(b) and a == b


def _fingerprint(path: Path) -> dict[str, str]:
    """Every file below a folder, with its digest."""
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


# ---- inside a rank: tensors ----


def _tensor(dtype: str, data: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)


def _state(saved: Saved, rank: int) -> dict:
    """A rank's state, values and tensors mixed: one is strided, some are slices, of which one requires a gradient."""
    tensors = {name: _tensor(*piece) for name, piece in saved.pieces[rank].items()}
    for name, style in zip(list(tensors), ("strided", "slice", "plain", "slice", "gradient"), strict=False):
        numel = len(tensors[name])
        if style == "strided" and numel > 1:  # torch takes a shorter one for contiguous, whatever its stride
            wide = torch.zeros(2 * numel, dtype=tensors[name].dtype)
            wide[::2] = tensors[name]
            tensors[name] = wide[::2]
        elif style == "slice":
            long = torch.zeros(numel + 5, dtype=tensors[name].dtype)
            long[3 : 3 + numel] = tensors[name]
            tensors[name] = long[3 : 3 + numel]
        elif style == "gradient":
            whole = torch.cat([tensors[name], tensors[name]]).requires_grad_()
            tensors[name] = whole[:numel]  # no leaf
    values = copy.deepcopy(saved.values)
    first = next(iter(values))
    return {first: values.pop(first), **tensors, **values}


def _piece(value: torch.Tensor) -> tuple[str, bytes]:
    dense = value.detach().clone(memory_format=torch.contiguous_format)
    return str(value.dtype).removeprefix("torch."), dense.view(torch.uint8).numpy().tobytes() if value.numel() else b""


def _plain(state: Any) -> Any:
    """A state that was loaded, as plain data: (pieces, values), or what is wrong with it."""
    if not isinstance(state, dict):
        return f"a {type(state).__name__}, not a dict"
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    for name, value in tensors.items():
        if value.dim() != 1:
            return f"{name!r} has {value.dim()} dimensions"
    plain = {name: _piece(value) for name, value in tensors.items()}
    # Memory of its own, which can be written to. Python keeps one object for each bytes of length 1, so no bytes here.
    views = {name: value.detach().view(torch.uint8) for name, value in tensors.items() if value.numel()}
    before = {name: view.clone() for name, view in views.items()}
    for name, view in views.items():
        view.bitwise_xor_(1)
        if any(not torch.equal(views[other], before[other]) for other in views if other != name):
            return f"{name!r} shares its memory with another tensor"
        view.bitwise_xor_(1)
    return plain, {name: value for name, value in state.items() if name not in tensors}


def _try(function: Callable, *args: Any) -> tuple[str, Any]:
    """("returned", value), or the names of the error's classes and its text."""
    try:
        return "returned", function(*args)
    except NotImplementedError:
        raise
    except Exception as error:
        return " ".join(kind.__name__ for kind in type(error).__mro__), str(error)


def _expect_error(
    case: str, outcome: tuple[str, Any], kind: str, mentions: str | tuple[str, ...], where: str = ""
) -> None:
    """An outcome of `_try` is an error of this kind that says what is wrong."""
    names, text = outcome
    if names == "returned":
        fail(f"{where}no {kind} was raised", case, ["nothing raised", where])
    if kind not in names.split():
        # What else was raised is told; its text may name places and times.
        fail(f"{where}expected {kind}, got {names.split()[0]}: {text}", case, [names.split()[0], where])
    for word in (mentions,) if isinstance(mentions, str) else mentions:
        if word not in text:
            fail(f"{where}the {kind} should contain {word!r}, it says {text!r}", case, ["not named", word, where])


# ---- inside a rank: standing before every change of a folder ----

At = Callable[..., contextlib.AbstractContextManager]


def _watch(root: str, at: At, *subjects: Any) -> None:
    """From now on, `with at(kind, path, target, fd):` is round every call of this process that changes a folder.

    kind: create, write, half (a write has been half done), fsync, rename, remove, make. Python's files get a raw layer
    of ours, so that it is seen when their buffers are really written. What `subjects`, functions or classes of a
    notebook, have imported by name is replaced as well.
    """
    real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
    real_open, inside = io.open, threading.local()

    def below(path: str) -> bool:
        return path == root or path.startswith(root + os.sep)

    def full(path: Any, dir_fd: int | None = None) -> str:
        if isinstance(path, int):
            return _path_of(path)
        path = os.fsdecode(os.fspath(path))
        folder = _path_of(dir_fd) if dir_fd is not None else os.getcwd()
        return os.path.normpath(os.path.join(folder, path))

    @contextlib.contextmanager
    def told(kind: str, path: str, target: str = "", fd: int | None = None) -> Iterator[None]:
        if getattr(inside, "busy", False) or not (below(path) or (target and below(target))):
            yield
            return
        inside.busy = True
        try:
            with at(kind, path, target, fd):
                yield
        finally:
            inside.busy = False

    def in_halves(write: Callable, data: Any, path: str, fd: int) -> int:
        data = memoryview(data).cast("B")
        half = len(data) // 2
        with told("write", path, "", fd):
            done = write(data[:half] if half else data)
        if half:
            with told("half", path, "", fd):
                done += write(data[half:])
        return done

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            return in_halves(super().write, data, _path_of(self.fileno()), self.fileno())

        def truncate(self, size: int | None = None) -> int:
            with told("write", _path_of(self.fileno()), "", self.fileno()):
                return super().truncate(size)

    def watched_open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        path = full(file)
        if not set(mode) & set("wax+") or not below(path):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        with told("create", path):
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffer = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode
        return text

    def on_fd(name: str, kind: str) -> Callable:
        def call(fd, *args, **kwargs):
            number = fd if isinstance(fd, int) else fd.fileno()
            with told(kind, _path_of(number), "", number):
                return real[name](fd, *args, **kwargs)

        return call

    def on_path(name: str, kind: str) -> Callable:
        def call(path, *args, **kwargs):
            with told(kind, full(path, kwargs.get("dir_fd"))):
                return real[name](path, *args, **kwargs)

        return call

    def on_two(name: str, kind: str) -> Callable:
        def call(src, dst, **kwargs):
            places = full(src, kwargs.get("src_dir_fd")), full(dst, kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
            with told(kind, *places):
                return real[name](src, dst, **kwargs)

        return call

    def os_open(path, flags, mode=0o777, *, dir_fd=None):
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return real["open"](path, flags, mode, dir_fd=dir_fd)
        with told("create", full(path, dir_fd)):
            return real["open"](path, flags, mode, dir_fd=dir_fd)

    def os_write(fd, data):
        path = _path_of(fd)
        if not below(path):
            return real["write"](fd, data)
        return in_halves(lambda part: real["write"](fd, part), data, path, fd)

    new: dict[str, Callable] = {"open": os_open, "write": os_write}
    new |= {name: on_fd(name, "fsync") for name in ("fsync", "fdatasync")}
    new |= {name: on_fd(name, "write") for name in ("pwrite", "writev", "pwritev", "sendfile", "ftruncate")}
    new |= {name: on_two(name, "rename") for name in ("rename", "replace")}
    new |= {name: on_two(name, "make") for name in ("link", "symlink")}
    new |= {name: on_path(name, "remove") for name in ("unlink", "remove", "rmdir")}
    new |= {name: on_path(name, "make") for name in ("mkdir",)} | {"truncate": on_path("truncate", "write")}
    new = {name: function for name, function in new.items() if name in real}
    swap = {id(real[name]): function for name, function in new.items()} | {id(real_open): watched_open}
    for name, function in new.items():
        setattr(os, name, function)
    builtins.open = io.open = watched_open
    # What shutil decides by: its rmtree would otherwise take other paths for a changed os.
    for names in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        names |= {function for name, function in new.items() if real[name] in names}
    for space in _namespaces(subjects):
        for name, value in list(space.items()):
            if id(value) in swap:
                space[name] = swap[id(value)]
            elif getattr(value, "__wrapped__", None) is real_open:  # a notebook's own `open`, which is IPython's
                space[name] = watched_open


def _namespaces(subjects: tuple) -> list[dict]:
    """The globals of functions, and of the methods of classes."""
    functions = [f for s in subjects for f in (vars(s).values() if isinstance(s, type) else [s])]
    return [
        f.__globals__ for f in map(inspect.unwrap, filter(callable, functions)) if isinstance(f, types.FunctionType)
    ]


def _path_of(fd: int) -> str:
    """Where an open file is."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        if not hasattr(fcntl, "F_GETPATH"):
            return ""
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode()
    except OSError:
        return ""


class _Log:
    """A file to which all ranks append what they do, a JSON line each; its order is that of the events."""

    def __init__(self, path: Path, rank: int):
        self.path, self.rank, self.write = path, rank, os.write
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.real = os.fstat

    def add(self, kind: str, path: str = "", target: str = "", fd: int | None = None, **more: Any) -> None:
        if kind == "returned":  # what is where now: a copy of it, which the check may see, has other ids
            walk = os.walk(self.path.parent / "files")
            there = [os.path.join(place, name) for place, folders, files in walk for name in ("", *folders, *files)]
            more["there"] = {os.path.normpath(path): self._id(path, None) for path in there}
        line = {"rank": self.rank, "kind": kind, "path": path, "target": target, "id": self._id(path, fd), **more}
        self.write(self.fd, (json.dumps(line) + "\n").encode())

    def _id(self, path: str, fd: int | None) -> list | None:
        try:
            found = os.fstat(fd) if fd is not None else os.stat(path)
        except OSError:
            return None
        return [found.st_dev, found.st_ino]

    @contextlib.contextmanager
    def at(self, kind: str, path: str, target: str = "", fd: int | None = None) -> Iterator[None]:
        """Write down a call before it is made, and an fsync or rename after it as well."""
        before = os.fstat(fd).st_size if fd is not None and kind in ("write", "half") else 0
        self.add(kind, path, target, fd)
        yield
        if kind in ("write", "half"):
            self.add("written", path, target, fd, bytes=max(0, os.fstat(fd).st_size - before) if fd is not None else 0)
        if kind in ("fsync", "rename", "create", "make"):
            self.add(kind + "ed", path if kind != "rename" else target, target, fd)

    def lines(self) -> list[dict]:
        """Everything so far, of all ranks."""
        return _lines(self.path)


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _number(lines: list[dict], path: Path) -> list:
    """What a file or folder was known by in the log when the last call had returned."""
    found = [e["there"][str(path)] for e in lines if str(path) in e.get("there", ())]
    return found[-1] if found else []


# ---- what a log must show ----


def _expect_durable(case: str, lines: list[dict], path: Path, who: str) -> None:
    """Everything in the checkpoint `path` was fsynced before the one rename, the folder above after it."""
    renames = [i for i, e in enumerate(lines) if e["kind"] == "rename" and Path(e["target"]) == path]
    if len(renames) != 1:
        text = f"{who} made {len(renames)} renames to {path.name}, expected one"
        fail(text, case, ["renames", len(renames)])
    at = renames[0]
    for file in sorted(path.iterdir()):
        number = _number(lines, file)
        mine = [(i, e["kind"]) for i, e in enumerate(lines) if e["id"] == number]
        last = max((i for i, kind in mine if kind == "written"), default=-1)
        if last > at:
            fail(f"{who} wrote {file.name} after the rename", case, ["written late", file.name])
        synced = [i for i, kind in mine if kind == "fsynced" and last < i]
        if not synced:
            fail(f"{who} did not fsync {file.name} after its last byte was written", case, ["no fsync", file.name])
        if min(synced) > at:
            fail(f"{who} renamed before {file.name} was fsynced", case, ["fsync late", file.name])
    folder = _number(lines, path)
    filled = [
        i for i, e in enumerate(lines) if e["kind"] == "created" and Path(lines[at]["path"]) == Path(e["path"]).parent
    ]
    synced = [i for i, e in enumerate(lines) if e["kind"] == "fsynced" and e["id"] == folder]
    if not any(max(filled, default=-1) < i < at for i in synced):
        fail(
            f"{who} did not fsync the folder of the shards between its last file and the rename",
            case,
            "folder not synced",
        )
    above = _number(lines, path.parent)
    after = [i for i, e in enumerate(lines) if e["kind"] == "fsynced" and e["id"] == above and i > at]
    returns = [i for i, e in enumerate(lines) if e["kind"] == "returned" and e["rank"] == lines[at]["rank"] and i > at]
    if not after or (returns and min(after) > min(returns)):
        fail(f"{who} did not fsync the folder above after the rename", case, "root not synced")


# ---- 1 · a shard ----


def _shard_driver(rank, world_size, folder, functions, cases):
    """Write and read every case; what was returned, and what the log says."""
    write_durably, write_shard, read_shard = functions
    log = _Log(folder / "log", 0)
    _watch(str(folder / "files"), log.at, *functions)
    target = folder / "files" / "plain.bin"
    target.write_bytes(bytes(100))
    log.add("begin", "durably")
    digest = write_durably(target, b"twelve bytes")
    log.add("returned", "durably")
    outcomes = []
    for number, saved in enumerate(cases):
        where = folder / "files" / str(number)
        state = {name: v for name, v in _state(saved, 0).items() if isinstance(v, torch.Tensor)}
        before = {name: _piece(v) for name, v in state.items()}
        log.add("begin", str(number))
        entry = write_shard(where, 100 * number + 3, state)
        log.add("returned", str(number))
        same = before == {name: _piece(v) for name, v in state.items()}
        try:
            text = json.dumps(entry)
        except (TypeError, ValueError):
            text = ""
        outcomes.append({"entry": text, "same": same, "read": _plain_outcome(_try(read_shard, where, entry))})
    return digest, outcomes


def _plain_outcome(outcome: tuple[str, Any]) -> tuple[str, Any]:
    return (outcome[0], _plain(outcome[1])) if outcome[0] == "returned" else outcome


@check("16-ex1-shard")
def shard_files_hold_the_bytes(write_durably, write_shard, read_shard, *, rng):
    """A file with the tensors' bytes end to end, fsynced, described by its entry, and read back as it was."""
    cases = [draw(rng, 1, 0), replace(draw(rng, 3, 0), step=1), draw(rng, 1, 0, tensors=False)]
    cases[1].pieces[0] = cases[1].pieces[2]
    cases.append(replace(cases[2], pieces=[{"a": ("uint8", b"\x07"), "b": ("uint8", b"\x07")}]))
    names = ["six dtypes", "an empty tensor among others", "no tensors", "two tensors of one byte, the same"]
    with scratch_folder() as folder:
        for number in range(len(cases)):
            (folder / "files" / str(number)).mkdir(parents=True)
        functions = (write_durably, write_shard, read_shard)
        digest, outcomes = run_ranks(_shard_driver, 1, (folder, functions, cases))[0]
        lines, target = _lines(folder / "log"), folder / "files" / "plain.bin"
        case = "12 bytes over a file of 100"
        if target.read_bytes() != b"twelve bytes":
            fail("write_durably left other bytes in the file than it was given", case, len(target.read_bytes()))
        if digest != hashlib.sha256(b"twelve bytes").hexdigest():
            fail("write_durably did not return the SHA-256 of its bytes as 64 hexadecimal digits", case, str(digest))
        _expect_synced(case, lines, "durably", target, "write_durably")
        for number, (case, saved, outcome) in enumerate(zip(names, cases, outcomes, strict=True)):
            file = folder / "files" / str(number) / f"shard_{100 * number + 3:05d}.bin"
            if not file.is_file():
                there = sorted(p.name for p in file.parent.iterdir())
                fail(f"write_shard wrote no {file.name}; there is {there}", case, there)
            if not outcome["entry"]:
                fail("write_shard's entry cannot be written as JSON: use plain values", case, "no JSON")
            entry = json.loads(outcome["entry"])
            if not isinstance(entry, dict) or (entry.get("rank"), entry.get("file")) != (100 * number + 3, file.name):
                fail(f"write_shard returned the entry {entry}", case, ["entry", repr(entry)])
            got = _tensors_in(entry, file.read_bytes())
            if isinstance(got, str):
                fail(f"write_shard: {got}", case, got)
            _expect_pieces(case, [got], [saved.pieces[0]], "write_shard")
            _expect_synced(case, lines, str(number), file, "write_shard")
            if not outcome["same"]:
                fail("write_shard changed the tensors that it was given", case, "changed")
            _expect_read(case, outcome["read"], saved.pieces[0])


def _expect_synced(case: str, lines: list[dict], name: str, file: Path, who: str) -> None:
    """Between `begin` and `returned` the file was fsynced, after its last write."""
    begin, end = (
        next(i for i, e in enumerate(lines) if (e["kind"], e["path"]) == (k, name)) for k in ("begin", "returned")
    )
    number = _number(lines, file)
    mine = [e["kind"] for e in lines[begin:end] if e["id"] == number]
    if "fsynced" not in mine:
        fail(f"{who} returned without an fsync of its file", case, "no fsync")
    late = [e["kind"] for e in lines[begin:] if e["id"] == number]
    if "written" in late[len(late) - late[::-1].index("fsynced") :]:
        fail(f"{who} called fsync before all bytes had left Python's buffer", case, "fsync before write")


def _expect_read(case: str, outcome: tuple[str, Any], want: dict) -> None:
    kind, got = outcome
    if kind != "returned":
        fail(f"read_shard raised {kind.split()[0]} for an intact file: {got}", case, ["raised", kind.split()[0]])
    if isinstance(got, str):
        fail(f"read_shard returned {got}", case, got)
    _expect_pieces(case, [got[0]], [want], "read_shard")


def _read_driver(rank, world_size, read_shard, cases):
    return [_plain_outcome(_try(read_shard, Path(folder), entry)) for folder, entry in cases]


@check("16-ex1-shard")
def damaged_shards_are_refused(read_shard, *, rng):
    """One byte more, less or other is a CheckpointError that names the file; a pickle is bytes like all others."""
    saved = replace(draw(rng, 2, 5), values={})
    with scratch_folder() as folder:
        cases, names = [], ["one bit of the first byte", "one bit of the last byte", "the last byte is gone", "empty"]
        names += ["one byte more", "the file is gone", "another shard's bytes, as many"]
        names += ["the entry has another length, and the file's digest"]
        for number, name in enumerate(names):
            path = write_checkpoint(folder / str(number), saved)
            entry = _manifest(saved)[0]["shards"][1]
            _damage(path / entry["file"], name)
            if name.startswith("the entry"):
                entry = {**entry, "bytes": entry["bytes"] + 1}
            cases.append((str(path), entry))
        marker = folder / "marker"
        bomb = {"w": ("uint8", pickle.dumps(Bomb(str(marker))))}
        path = write_checkpoint(folder / "bomb", replace(saved, pieces=[bomb]))
        cases.append((str(path), _manifest(replace(saved, pieces=[bomb]))[0]["shards"][0]))
        outcomes = run_ranks(_read_driver, 1, (read_shard, cases))[0]
        for name, outcome in zip(names, outcomes, strict=False):
            _expect_error(name, outcome, "CheckpointError", "shard_00001.bin")
        if marker.exists():
            fail("read_shard executed what stood in the file", "a pickle", "executed")
        _expect_read("a pickle as bytes", outcomes[-1], bomb)


def _damage(file: Path, how: str) -> None:
    data = bytearray(file.read_bytes())
    if how == "the file is gone":
        file.unlink()
        return
    if how == "one bit of the first byte":
        data[0] ^= 1
    elif how == "one bit of the last byte":
        data[-1] ^= 128
    elif how == "the last byte is gone":
        del data[-1]
    elif how == "empty":
        data.clear()
    elif how == "one byte more":
        data.append(0)
    elif how == "another shard's bytes, as many":
        data = data[1:] + data[:1] if data[1:] != data[:-1] else bytearray(b ^ 255 for b in data)
    file.write_bytes(data)


# ---- 2 · commit and save ----


def _save_driver(rank, world_size, folder, save_sharded, cases):
    """Save every case, the last one over a group of its own, with a barrier before each and one at the end."""
    log = _Log(folder / "log", rank)
    _watch(str(folder / "files"), log.at, save_sharded)
    outcomes, group = [], dist.new_group()
    for saved, root in cases:
        state = _state(saved, rank)
        before = _unchanged(state)
        dist.barrier()
        log.add("begin", str(root))
        if saved is cases[-1][0]:
            with record_function("own group"):
                kind, path = _try(save_sharded, state, root, saved.step, group)
        else:
            kind, path = _try(save_sharded, state, root, saved.step)
        there = os.path.isdir(Path(root, saved.name))
        log.add("returned", str(root))
        path = os.fspath(path) if kind == "returned" and path is not None else str(path)
        outcomes.append({"kind": kind, "path": path, "there": there, "same": before == _unchanged(state)})
    dist.barrier()
    return outcomes


def _unchanged(state: dict) -> str:
    """Something that changes with a state."""
    return repr({name: _piece(v) if isinstance(v, torch.Tensor) else v for name, v in state.items()})


@check("16-ex2-save")
def saves_what_the_manifest_says(save_sharded, *, rng):
    """Every rank's bytes in a shard of its own, written by itself; the values; the names; nothing else in root."""
    for world_size in (3, 1, 2):
        with scratch_folder() as folder:
            root = folder / "files" / "new" / "root"
            cases = [(draw(rng, world_size, 10), str(root)), (draw(rng, world_size, 123456789), root)]
            cases += [
                (draw(rng, world_size, 9, numel=60_000), root),
                (draw(rng, world_size, 0, tensors=False), str(root)),
            ]
            (folder / "files").mkdir()
            results = run_ranks(_save_driver, world_size, (folder, save_sharded, cases))
            for number, (saved, _) in enumerate(cases):
                case = f"{world_size} ranks, step {saved.step}"
                for rank, mine in enumerate(results):
                    got = mine[number]
                    if got["kind"] != "returned":
                        kind = got["kind"].split()[0]
                        fail(f"rank {rank}: save_sharded raised {kind}: {got['path']}", case, kind)
                    if Path(got["path"]) != root / saved.name:
                        text = f"rank {rank}: save_sharded returned …/{Path(got['path']).name}, expected …/{saved.name}"
                        fail(text, case, ["path", Path(got["path"]).name])
                    if not got["same"]:
                        fail(f"save_sharded changed rank {rank}'s state", case, "changed")
                _expect_content(case, root / saved.name, saved)
            left = sorted({p.name for p in root.iterdir()} - {saved.name for saved, _ in cases})
            if left:
                fail(
                    f"besides the checkpoints save_sharded left {len(left)} entries in root",
                    f"{world_size} ranks",
                    len(left),
                )
            _expect_own_share(f"{world_size} ranks", _lines(folder / "log"), root, cases, results.ledger)
            _expect_own_group(f"{world_size} ranks, a group of their own", results.ledger)


def _expect_own_group(case: str, ledger: Any) -> None:
    """While a save with a group goes on, nothing is sent over the default one."""
    for rank in range(ledger.world_size):
        mine = ledger.of(rank)
        span = next(span for span in mine.spans if span.name == "own group")
        calls = sorted({m.call for m in mine if m.group is None and span.start <= m.start <= span.end})
        if calls:
            fail(f"rank {rank} called {calls[0]} over the default group, not over the one that was given", case, calls)


def _expect_own_share(case: str, lines: list[dict], root: Path, cases: list, ledger: Any) -> None:
    """Each rank wrote its own pieces and little more; and sent little."""
    owned = [sum(len(d) for saved, _ in cases for _, d in saved.pieces[r].values()) for r in range(ledger.world_size)]
    wrote = [sum(e.get("bytes", 0) for e in lines if e["rank"] == rank) for rank in range(ledger.world_size)]
    sent = [sum(m.bytes for m in ledger.of(rank)) for rank in range(ledger.world_size)]
    for rank in range(ledger.world_size):
        if wrote[rank] > owned[rank] + BOOKKEEPING:
            text = f"rank {rank} wrote {wrote[rank]} bytes, its own pieces have {owned[rank]}"
            fail(text, case, ["wrote", [w > o + BOOKKEEPING for w, o in zip(wrote, owned, strict=True)]])
        if sent[rank] > BOOKKEEPING:
            fail(f"rank {rank} sent {sent[rank]} bytes to other ranks; tensors need not be sent", case, "sent")


def _commit_driver(rank, world_size, folder, commit, manifest):
    log = _Log(folder / "log", 0)
    root = folder / "files"
    _watch(str(root), log.at, commit)
    log.add("begin")
    commit(root / ".tmp_x", root / "step_00000010", manifest)
    log.add("returned")


def _slow_driver(rank, world_size, folder, save_sharded, saved):
    """One save in which the last rank is late, each waits in its fsync for the others', and the rename takes long."""
    log, root, seen = _Log(folder / "log", rank), folder / "files", {"late": rank == world_size - 1, "alone": False}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if seen.pop("late", False):
            time.sleep(0.1)
        if kind == "rename" and Path(target) == root / saved.name:
            time.sleep(0.1)
        with log.at(kind, path, target, fd):
            if kind == "fsync" and "waited" not in seen and not os.path.isdir(path):
                seen["waited"] = True
                seen["alone"] = not _everybody(log, world_size)
            yield

    _watch(str(root), at, save_sharded)
    dist.barrier()
    kind, got = _try(save_sharded, _state(saved, rank), root, saved.step)
    there = os.path.isdir(root / saved.name)
    log.add("returned")
    dist.barrier()
    return {"raised": "" if kind == "returned" else [kind, str(got)], "there": there, "alone": seen["alone"]}


def _everybody(log: _Log, world_size: int) -> bool:
    """Wait until all ranks have begun an fsync, unless another has waited for that in vain."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        lines = log.lines()
        if len({e["rank"] for e in lines if e["kind"] == "fsync"}) == world_size:
            return True
        if any(e["kind"] == "alone" for e in lines):
            return False
        time.sleep(0.003)
    log.add("alone")
    return False


@check("16-ex2-save")
def commits_durably_by_one_rename(commit, save_sharded, *, rng):
    """Files, then their folder, then one rename, then the folder above; after every rank, and before any returns."""
    with scratch_folder() as folder:
        saved, root = draw(rng, 2, 10), folder / "files"
        write_checkpoint(root, saved).rename(root / ".tmp_x")
        for name in ("manifest.json", "manifest.sha256"):
            (root / ".tmp_x" / name).unlink()
        run_ranks(_commit_driver, 1, (folder, commit, _manifest(saved)[0]))
        _expect_content("one process", root / "step_00000010", saved, "after commit, the checkpoint")
        lines = _lines(folder / "log")
        shards = [e["path"] for e in lines if Path(e["path"]).suffix == ".bin" and e["kind"] == "create"]
        if shards:
            fail("commit wrote a shard anew; it only adds the manifest", "one process", "shards written")
        lines = [*_as_synced(lines, root / "step_00000010"), *lines]
        _expect_durable("one process", lines, root / "step_00000010", "commit")
    with scratch_folder() as folder:
        saved, root = draw(rng, 3, 20), folder / "files"
        root.mkdir()
        results = run_ranks(_slow_driver, 3, (folder, save_sharded, saved))
        case, lines = "3 ranks, one of them late", _lines(folder / "log")
        for rank, seen in enumerate(results):
            if seen["raised"]:
                kind, text = seen["raised"]
                fail(f"rank {rank}: save_sharded raised {kind.split()[0]}: {text}", case, kind.split()[0])
        named = [e for e in lines if e["kind"] in ("create", "make") and saved.name in Path(e["path"]).parts]
        if named:
            fail(
                f"save_sharded wrote into {saved.name} itself: until the rename nothing may have this name",
                case,
                "named",
            )
        _expect_content(case, root / saved.name, saved)
        _expect_durable(case, lines, root / saved.name, "save_sharded")
        for rank, seen in enumerate(results):
            if not seen["there"]:
                fail(f"save_sharded returned on rank {rank} before the checkpoint was there", case, ["early", rank])
        if any(seen["alone"] for seen in results):
            fail("the ranks wrote one after another, not at the same time", case, "in turn")


def _as_synced(lines: list[dict], path: Path) -> list[dict]:
    """The lines of whoever wrote and fsynced these shards before."""
    found = [_number(lines, file) for file in sorted(path.glob("shard_*.bin"))]
    return [{"rank": 0, "kind": "fsynced", "path": "", "target": "", "id": number} for number in found]


def _failing_driver(rank, world_size, folder, save_sharded, cases):
    """Saves that must fail, one after another; a full disk is played on one rank."""
    full = {"suffix": None}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        if kind in ("write", "create") and full["suffix"] and path.endswith(full["suffix"]):
            raise OSError(errno.ENOSPC, "No space left on device")
        yield

    _watch(str(folder / "files"), at, save_sharded)
    outcomes = []
    for case in cases:
        state = _state(case["saved"], rank)
        if "shape" in case:
            state["matrix"] = torch.zeros(case["shape"])
        dist.barrier()
        full["suffix"] = case.get("full", {}).get(rank)
        outcome = _try(save_sharded, state, case["root"], case["saved"].step)
        full["suffix"] = None
        outcomes.append((outcome[0], str(outcome[1])))
    dist.barrier()
    return outcomes


@check("16-ex2-save")
def saving_fails_on_all_ranks(save_sharded, *, rng):
    """A step that is there, a full disk, a matrix: the same error on every rank, and nothing is committed."""
    world_size = 3
    with scratch_folder() as folder:
        root = folder / "files" / "root"
        old = draw(rng, 2, 20)
        before = _fingerprint(write_checkpoint(root, old))
        wanted = [
            ("the step is there already", {"saved": draw(rng, 3, 20)}, "CheckpointError", "step_00000020"),
            ("rank 1's disk is full", {"full": {1: ".bin"}}, "CheckpointError", "No space left"),
            ("rank 0's disk is full", {"full": {0: ".bin"}}, "CheckpointError", "No space left"),
            (
                "no space for the manifest",
                {"full": dict.fromkeys(range(3), ".json")},
                "CheckpointError",
                "No space left",
            ),
            ("a matrix", {"shape": (2, 3)}, "ValueError", "matrix"),
            ("a tensor without a dimension", {"shape": ()}, "ValueError", "matrix"),
            ("step -1", {"saved": draw(rng, 3, -1)}, "ValueError", "step"),
        ]
        cases = [{"saved": draw(rng, 3, 30 + i), "root": root, **more} for i, (_, more, *_) in enumerate(wanted)]
        cases.append({"saved": draw(rng, 3, 40), "root": root})
        results = run_ranks(_failing_driver, world_size, (folder, save_sharded, cases))
        for number, (name, _, kind, mentions) in enumerate(wanted):
            for rank in range(world_size):
                _expect_error(name, results[rank][number], kind, mentions, f"rank {rank}: ")
            if number == 0 and _fingerprint(root / old.name) != before:
                fail("the checkpoint that was there already has changed", name, "overwritten")
            if number and (root / cases[number]["saved"].name).exists():
                fail(f"{cases[number]['saved'].name} was committed all the same", name, "committed")
        for rank in range(world_size):
            if results[rank][-1][0] != "returned":
                kind, text = results[rank][-1]
                fail(f"rank {rank}: {kind.split()[0]}: {text}", "a save after those that failed", kind.split()[0])
        _expect_content("a save after those that failed", root / "step_00000040", cases[-1]["saved"])
        left = sorted(p.name for p in root.iterdir())
        if left != ["step_00000020", "step_00000040"]:
            fail(
                f"besides the checkpoints there are {len(left) - 2} entries in root",
                "a save after those that failed",
                len(left),
            )


# ---- a save that is killed ----


def _copying_driver(rank, world_size, folder, save_sharded, old, new, loads=()):
    """Save over an older checkpoint with a copy of root before each change; then load from each copy."""
    root, copies = folder / "root", folder / "copies"
    count = iter(range(10**6))
    lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT)

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        fcntl.flock(lock, fcntl.LOCK_EX)  # nothing moves while it is copied
        try:
            shutil.copytree(root, copies / f"{rank}.{next(count):03d}.{kind}", symlinks=True)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    save_sharded(_state(old, rank), root, old.step)
    dist.barrier()
    _watch(str(root), at, save_sharded, *loads)
    save_sharded(_state(new, rank), root, new.step)
    dist.barrier()
    outcomes = []
    for path in sorted(copies.iterdir()) if loads else ():
        latest, load_sharded = loads
        kind, found = _try(latest, path)
        if kind == "returned" and found is not None:
            kind, got = _try(load_sharded, found)
            outcomes.append((path.name, Path(found).name, kind, _plain(got[0]) if kind == "returned" else got))
        else:
            outcomes.append((path.name, "", kind, found))
    return outcomes


def _again_driver(rank, world_size, save_sharded, roots, states):
    return [
        _try(save_sharded, _state(saved, 0), root, saved.step)[0] for root, saved in zip(roots, states, strict=True)
    ]


@check("16-ex2-save")
def leftovers_of_a_killed_save_are_cleared(save_sharded, *, rng):
    """After a save by two ranks was killed, at any moment, one rank saves: its checkpoint is right, and alone."""
    old, new = draw(rng, 2, 10), draw(rng, 2, 20)
    with scratch_folder() as folder:
        (folder / "copies").mkdir()
        run_ranks(_copying_driver, 2, (folder, save_sharded, old, new))
        roots = sorted((folder / "copies").iterdir())
        states = [draw(rng, 1, 30 if (root / new.name).exists() else 20) for root in roots]
        outcomes = run_ranks(_again_driver, 1, (save_sharded, roots, states))[0]
        case = "a save by one rank after one by two ranks was killed"
        for root, saved, outcome in zip(roots, states, outcomes, strict=True):
            if outcome != "returned":
                fail(f"it raised {outcome.split()[0]}", case, outcome.split()[0])
            _expect_content(case, root / saved.name, saved)
            left = sorted(p.name for p in root.iterdir() if not re.fullmatch(r"step_\d{8}", p.name))
            if left:
                fail(f"{len(left)} entries of the killed save are still in root", case, "not cleared")


def _forked(folder: Path, save_sharded: Callable, saved: Saved, rank: int, world_size: int, kill_at: int) -> None:
    """A process that saves as one of two ranks, and ends itself at a change of the folder; never returns."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), inspect.getclosurevars(dist.barrier).nonlocals["recorder"]._file)
    c10d = dist.distributed_c10d
    _forked.kept = c10d._world  # the group of the process above; its threads are not here
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

    _watch(str(folder / "root"), at, save_sharded)
    with contextlib.suppress(Exception):  # whoever lost its peer
        save_sharded(_state(saved, rank), folder / "root", saved.step)
    (folder / f"kinds.{rank}").write_text(" ".join(kinds))
    os._exit(0)


def _start(folder: Path, save_sharded: Callable, saved: Saved, victim: int, kill_at: int) -> list[int]:
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
    """The exit codes of processes; whoever is not done after a while is ended."""
    until, codes = time.monotonic() + 5, {}
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return [codes[pid] for pid in pids]


def kill_driver(rank, world_size, folder, save_sharded, old, new):
    """Two processes save `old` and then, once for each change of each of them, `new`, where one is killed.

    The places: for each process the changes that it makes, in order. Two saves run at a time.
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
    folder.mkdir()
    shutil.copytree(base / "root", folder / "root")


@check("16-ex2-save")
def a_killed_save_leaves_the_last_checkpoint(save_sharded, *, rng):
    """SIGKILL at every change of the folder, on either rank: the newest is intact."""
    old, new = draw(rng, 2, 10), draw(rng, 2, 20)
    with scratch_folder() as folder:
        places = run_ranks(kill_driver, 1, (folder, save_sharded, old, new), timeout=60.0)[0]
        if not places:
            fail("a save in which nobody was killed did not end", "2 ranks", "not even once")
        broken = {}
        for number, (victim, _, kind) in enumerate(places):
            text = what_is_left(folder / str(number) / "root", old, new)
            if text:
                broken.setdefault((victim, kind, text), number)
        if broken:
            victim, kind, text = next(iter(broken))
            place = f"rank {victim} was killed just before it would {'finish a write' if kind == 'half' else kind}"
            fail(f"{place}: {text}", "a save over an older checkpoint", sorted({found for *_, found in broken}))


def what_is_left(root: Path, old: Saved, new: Saved) -> str:
    """What is wrong with what a killed save left; '' if the newest checkpoint is `old` or `new`."""
    found = sorted(p for p in root.iterdir() if re.fullmatch(r"step_\d{8,}", p.name))
    if not found:
        return "no checkpoint is left"
    for path in found:
        saved = _content(path)
        want = {old.name: old, new.name: new}.get(path.name)
        if isinstance(saved, str) or want is None:
            return f"{path.name} is there, but not whole"
        if saved.pieces != want.pieces or saved.step != want.step:
            return f"{path.name} holds other bytes than were saved"
    return ""


# ---- 3 · verify and load ----


def _tampered(folder: Path, rng: np.random.Generator, world_size: int) -> list[tuple[str, Path, tuple[str, ...]]]:
    """Checkpoints of step 10 with which something is wrong: (what, where, what the error must contain)."""
    saved, found = draw(rng, world_size, 10), []

    def another(what: str, *mentions: str) -> Path:
        path = write_checkpoint(folder / str(len(found)), saved)
        found.append((what, path, mentions))
        return path

    for rank in range(world_size):
        name = f"shard_{rank:05d}.bin"
        (another(f"{name} is missing", name) / name).unlink()
        _damage(another(f"{name} has one byte less", name) / name, "the last byte is gone")
        _damage(another(f"{name} has one byte more", name) / name, "one byte more")
    (another("a shard too many", "shard_00099.bin") / "shard_00099.bin").write_bytes(b"from elsewhere")
    (another("a file that nobody lists", "shard_00000.bin.part") / "shard_00000.bin.part").write_bytes(b"")
    (another("a folder that nobody lists", "of_yesterday") / "of_yesterday").mkdir()
    (another("no manifest.json", "manifest") / "manifest.json").unlink()
    (another("no manifest.sha256", "manifest") / "manifest.sha256").unlink()
    shutil.rmtree(another("no folder at all", "manifest"))
    file = another("one bit of the manifest", "manifest") / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"step": 10', b'"step": 11'))
    file = another("the manifest is cut", "manifest") / "manifest.json"
    file.write_bytes(file.read_bytes()[:-40])
    (another("the manifest's digest is empty", "manifest") / "manifest.sha256").write_text("")
    path = another("the manifest's digest is of something else", "manifest")
    (path / "manifest.sha256").write_text(hashlib.sha256(b"").hexdigest())
    manifest = _manifest(saved)[0]
    put_manifest(
        another("schema 2, which has other keys", "schema"), {"schema": 2, "ranks": 1, "shards": {"0": "zstd"}}
    )
    put_manifest(another("schema 2, otherwise the same", "schema"), {**manifest, "schema": 2})
    put_manifest(another("no schema", "schema"), {k: v for k, v in manifest.items() if k != "schema"})
    if world_size > 1:
        path = another("a shard is not listed", "shards")
        put_manifest(path, {**manifest, "shards": manifest["shards"][:-1]})
        (path / manifest["shards"][-1]["file"]).unlink()
        put_manifest(another("rank 0 is listed last", "shards"), {**manifest, "shards": manifest["shards"][::-1]})
        path = another("a rank is listed twice", "shards")
        put_manifest(path, {**manifest, "shards": [manifest["shards"][0], *manifest["shards"][:-1]]})
        (path / manifest["shards"][-1]["file"]).unlink()
    return found


def _manifest_driver(rank, world_size, read_manifest, paths):
    return [_try(read_manifest, path) for path in paths]


@check("16-ex3-load")
def manifests_are_verified(read_manifest, *, rng):
    """The manifest, its schema, the list of shards and the files; each thing that is wrong is named."""
    with scratch_folder() as folder:
        good = draw(rng, 3, 10)
        path = write_checkpoint(folder / "good", good)
        wrong = _tampered(folder, rng, 3)
        before = _fingerprint(folder)
        outcomes = run_ranks(_manifest_driver, 1, (read_manifest, [path, str(path), *(p for _, p, _ in wrong)]))[0]
        for kind, got in outcomes[:2]:
            if kind != "returned":
                fail(f"read_manifest raised {kind.split()[0]}: {got}", "an intact checkpoint", kind.split()[0])
            if not _same(got, _manifest(good)[0]):
                fail("read_manifest did not return what manifest.json holds", "an intact checkpoint", repr(got))
        for (case, _, mentions), outcome in zip(wrong, outcomes[2:], strict=True):
            _expect_error(case, outcome, "CheckpointError", mentions)
        if _fingerprint(folder) != before:
            fail("read_manifest changed a checkpoint", "all of them", "changed")


def _load_driver(rank, world_size, load_sharded, paths):
    """Load each, with a barrier before: (kind, (state, manifest) as plain data or text) each; the largest object sent.

    A list in place of a path has one path a rank.
    """
    outcomes, sizes, pickled = [], [0], distributed_c10d._object_to_tensor

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = pickled(*args, **kwargs)
        sizes.append(result[0].numel())
        return result

    distributed_c10d._object_to_tensor = watched  # the ledger does not know how large an object is
    for path in paths:
        dist.barrier()
        kind, got = _try(load_sharded, path[rank] if isinstance(path, list) else path)
        if kind == "returned":
            pair = isinstance(got, (tuple, list)) and len(got) == 2
            got = (_plain(got[0]), got[1]) if pair else f"a {type(got).__name__}, not a state and a manifest"
        outcomes.append((kind, got))
    dist.barrier()
    return outcomes, max(sizes)


def _expect_loaded(case: str, rank: int, outcome: tuple[str, Any], saved: Saved) -> None:
    kind, got = outcome
    if kind != "returned":
        fail(f"rank {rank}: load_sharded raised {kind.split()[0]}: {got}", case, [rank, kind.split()[0]])
    if isinstance(got, str):
        fail(f"rank {rank}: load_sharded returned {got}", case, got)
    state, manifest = got
    if isinstance(state, str):
        fail(f"rank {rank}: load_sharded returned {state}", case, state)
    pieces, values = state
    if not _same(values, saved.values):
        fail(f"rank {rank}: the plain values are {values}, expected {saved.values}", case, ["values", repr(values)])
    if set(pieces) != set(saved.pieces[rank]):
        fail(
            f"rank {rank} has the tensors {sorted(pieces)}, expected {sorted(saved.pieces[rank])}", case, sorted(pieces)
        )
    ordered = {name: pieces[name] for name in saved.pieces[rank]}
    _expect_pieces(f"{case}, rank {rank}", [ordered], [saved.pieces[rank]], "load_sharded's state")
    if not _same(manifest, _manifest(saved)[0]):
        fail(f"rank {rank}: the second thing that load_sharded returned is not the manifest", case, repr(manifest))


@check("16-ex3-load")
def loads_what_was_saved(load_sharded, *, rng):
    """Each rank has its own pieces, byte for byte, and the values; nothing on the disk changes, nothing is executed."""
    for world_size in (3, 1):
        with scratch_folder() as folder:
            marker = folder / "marker"
            bomb = pickle.dumps(Bomb(str(marker)))
            cases = [draw(rng, world_size, 10), draw(rng, world_size, 20, tensors=False)]
            cases.append(replace(cases[0], step=30, pieces=[{"w": ("uint8", bomb)} for _ in range(world_size)]))
            cases.append(draw(rng, world_size, 40, numel=60_000))
            paths = [write_checkpoint(folder / "root", saved) for saved in cases]
            before = _fingerprint(folder)
            results = run_ranks(_load_driver, world_size, (load_sharded, [str(paths[0]), *paths[1:]]))
            if marker.exists():
                fail("load_sharded executed what stood in a file", f"{world_size} ranks", "executed")
            for number, saved in enumerate(cases):
                for rank, (mine, _) in enumerate(results):
                    _expect_loaded(f"{world_size} ranks, step {saved.step}", rank, mine[number], saved)
            if _fingerprint(folder) != before:
                fail("load_sharded changed a checkpoint", f"{world_size} ranks", "changed")
            for rank, (_, largest) in enumerate(results):
                sent = max([largest, *(m.bytes for m in results.ledger.of(rank))])
                if sent > BOOKKEEPING:
                    text = f"rank {rank} put {sent} bytes into one message; tensors need not be sent"
                    fail(text, f"{world_size} ranks, step 40", "sent")


@check("16-ex3-load")
def refuses_damage_on_every_rank(load_sharded, *, rng):
    """Whatever is wrong, wherever it is seen: the same error on every rank; then an intact checkpoint loads."""
    world_size = 3
    with scratch_folder() as folder:
        wrong = []
        for number, (rank, how) in enumerate(
            [(1, "one bit of the first byte"), (2, "one bit of the last byte"), (0, "one bit of the first byte")]
        ):
            path, name = (
                write_checkpoint(
                    folder / f"flip{number}", replace(draw(rng, 4, 10), pieces=draw(rng, 4, 10).pieces[:3])
                ),
                f"shard_{rank:05d}.bin",
            )
            _damage(path / name, how)
            wrong.append((f"{how} of {name}", path, (name,)))
        for other in (2, 4):
            mentions = ("reshard", str(other), str(world_size))
            wrong.append(
                (f"saved by {other} ranks", write_checkpoint(folder / f"of{other}", draw(rng, other, 10)), mentions)
            )
        wrong += _tampered(folder, rng, world_size)
        good = draw(rng, world_size, 20)
        elsewhere = write_checkpoint(folder / "elsewhere", good)
        apart = [elsewhere, folder / "nowhere", elsewhere]
        wrong.append(("the folder is missing, as rank 1 sees it", apart, ("manifest",)))
        paths = [path for _, path, _ in wrong]
        results = run_ranks(_load_driver, world_size, (load_sharded, [*paths, write_checkpoint(folder / "good", good)]))
        for number, (case, _, mentions) in enumerate(wrong):
            # A rank that got a state while another did not is the worst that can happen: say this first.
            kinds = ["state" if mine[number][0] == "returned" else "error" for mine, _ in results]
            if len(set(kinds)) > 1:
                which = kinds.index("state")
                fail(f"half loaded: rank {which} has a state, rank {kinds.index('error')} an error", case, kinds)
            for rank, (mine, _) in enumerate(results):
                kind, got = mine[number]
                _expect_error(
                    case, (kind, got if kind != "returned" else ""), "CheckpointError", mentions, f"rank {rank}: "
                )
        for rank, (mine, _) in enumerate(results):
            _expect_loaded("an intact checkpoint after all those", rank, mine[-1], good)


# ---- 4 · which one, and how many ----


def _roots(folder: Path, rng: np.random.Generator) -> list[tuple[str, Path, list[int], int | None]]:
    """(what, root, the steps that checkpoints lists, the step that latest returns)."""
    roots = []

    def root(what: str, steps: list[int], newest: int | None) -> Path:
        path = folder / str(len(roots))
        path.mkdir()
        for step in rng.permutation(steps):
            write_checkpoint(path, draw(rng, 2, int(step)))
        roots.append((what, path, sorted(steps), newest))
        return path

    root("an empty root", [], None)
    root("three steps", [10, 20, 30], 30)
    root("eight and nine digits", [99_999_999, 100_000_000, 7], 100_000_000)
    path = root("the newest was touched first", [10, 20], 20)
    os.utime(path / "step_00000020", (1, 1))
    path = root("things that are no checkpoints", [10], 10)
    (path / "step_00000030").write_text("a file")
    for name in (
        "step_00000040.bak",
        ".tmp_step_00000050",
        "step_latest",
        "step_60",
        "old_step_00000070",
        "step_00000080x",
    ):
        shutil.copytree(path / "step_00000010", path / name)
    path = root("a byte in a shard of the newest is flipped, which latest need not see", [10, 20], 20)
    _damage(path / "step_00000020" / "shard_00001.bin", "one bit of the last byte")
    path = root("the newest has no manifest", [10, 20, 30], 20)
    (path / "step_00000030" / "manifest.json").unlink()
    path = root("the newest lacks a shard, the one before is of a newer schema", [10, 20, 30], 10)
    (path / "step_00000030" / "shard_00001.bin").unlink()
    put_manifest(path / "step_00000020", {"schema": 2})
    path = root("the only one is an empty folder", [10], None)
    shutil.rmtree(path / "step_00000010")
    (path / "step_00000010").mkdir()
    roots.append(("a root that is not there", folder / "nowhere", [], None))
    return roots


def _latest_driver(rank, world_size, checkpoints, latest, roots):
    def plain(outcome: tuple[str, Any]) -> tuple[str, Any]:
        kind, got = outcome
        if kind != "returned" or got is None:
            return kind, got
        return kind, [os.fspath(p) for p in got] if isinstance(got, (list, tuple)) else os.fspath(got)

    return [(plain(_try(checkpoints, root)), plain(_try(latest, root))) for root in roots]


@check("16-ex4-latest")
def newest_by_number_that_is_complete(checkpoints, latest, *, rng):
    """Folders by number, whatever else is there; the newest of them that is complete, or None."""
    with scratch_folder() as folder:
        roots = _roots(folder, rng)
        given = [str(root) if i % 2 else root for i, (_, root, *_) in enumerate(roots)]
        outcomes = run_ranks(_latest_driver, 1, (checkpoints, latest, given))[0]
        for (case, root, steps, newest), (listed, found) in zip(roots, outcomes, strict=True):
            for name, (kind, got) in (("checkpoints", listed), ("latest", found)):
                if kind != "returned":
                    fail(f"{name} raised {kind.split()[0]}: {got}", case, [name, kind.split()[0]])
            want = [f"step_{step:08d}" for step in steps]
            got = [Path(p).name for p in listed[1]] if isinstance(listed[1], list) else listed[1]
            if got != want or [Path(p).parent for p in listed[1]] != [root] * len(want):
                fail(f"checkpoints returned {got}, expected {want}, each with its root", case, got)
            got, want = None if found[1] is None else str(found[1]), newest and str(root / f"step_{newest:08d}")
            if got != want:
                names = [None if p is None else Path(p).name for p in (got, want)]
                fail(f"latest returned {names[0]}, expected {names[1]}", case, names[0])


@dataclass
class Rotation:
    """A root with `steps`, some spoiled, of which `keep_last` are to be kept: `left` remain."""

    name: str
    steps: list[int]
    keep_last: int
    left: list[int]
    flipped: tuple[int, ...] = ()  # complete, but a shard's byte is another
    headless: tuple[int, ...] = ()  # without a manifest


ROTATIONS = [
    Rotation("keep 2 of 5", [10, 20, 30, 40, 50], 2, [40, 50]),
    Rotation("keep 1 of 2, eight and nine digits", [99_999_999, 100_000_000], 1, [100_000_000]),
    Rotation("keep 3 of 2", [10, 20], 3, [10, 20]),
    Rotation("keep 1 of 4, a byte of the newest is flipped", [10, 20, 30, 40], 1, [30, 40], flipped=(40,)),
    Rotation(
        "keep 2 of 4, the newest two are damaged", [10, 20, 30, 40], 2, [20, 30, 40], flipped=(30,), headless=(40,)
    ),
    Rotation("keep 1 of 3, the last but one is damaged", [10, 20, 30], 1, [30], headless=(20,)),
    Rotation("keep 1 of 3, none of which loads", [10, 20, 30], 1, [10, 20, 30], flipped=(10, 30), headless=(20,)),
    Rotation("nothing there", [], 1, []),
]


def _rotate_driver(rank, world_size, folder, rotate, keeps):
    """Rotate every root; before each change of one, note which of its checkpoints have lost a file."""
    torn: dict[int, bool] = {}
    now = {"number": 0}

    def whole(path: Path) -> int:
        return len(os.listdir(path))

    sizes = {path: whole(path) for path in folder.glob("*/step_*") if path.is_dir()}

    @contextlib.contextmanager
    def at(kind, path, target, fd):
        root = folder / str(now["number"])
        lost = [p for p in root.glob("step_*") if p.is_dir() and whole(p) != sizes.get(p)]
        torn[now["number"]] = torn.get(now["number"], False) or bool(lost)
        yield

    _watch(str(folder), at, rotate)
    outcomes = []
    for number, keep_last in enumerate(keeps):
        now["number"] = number
        kind, got = _try(rotate, str(folder / str(number)) if number % 2 else folder / str(number), keep_last)
        if kind == "returned":
            got = [os.fspath(path) for path in got] if isinstance(got, (list, tuple)) else repr(got)
        outcomes.append((kind, got))
    return outcomes, torn


@check("16-ex4-latest")
def rotation_keeps_one_that_loads(rotate, *, rng):
    """The last ones stay, and the newest that loads; a folder loses its name before it loses a file."""
    with scratch_folder() as folder:
        for number, rotation in enumerate(ROTATIONS):
            root = folder / str(number)
            root.mkdir()
            for step in rotation.steps:
                path = write_checkpoint(root, draw(rng, 2, step))
                if step in rotation.flipped:
                    _damage(path / "shard_00001.bin", "one bit of the last byte")
                if step in rotation.headless:
                    (path / "manifest.json").unlink()
            (root / "notes.txt").write_text("not ours")
            (root / "step_00000001.bak").mkdir()
        last = folder / str(len(ROTATIONS))
        write_checkpoint(last, draw(rng, 2, 10))
        keeps = [*(rotation.keep_last for rotation in ROTATIONS), 0]
        outcomes, torn = run_ranks(_rotate_driver, 1, (folder, rotate, keeps))[0]
        for number, rotation in enumerate(ROTATIONS):
            kind, got = outcomes[number]
            case, root = rotation.name, folder / str(number)
            if kind != "returned":
                fail(f"rotate raised {kind.split()[0]}: {got}", case, kind.split()[0])
            left = sorted(int(p.name[5:]) for p in root.iterdir() if re.fullmatch(r"step_\d+", p.name))
            if left != rotation.left:
                fail(f"rotate left the steps {left}, expected {rotation.left}", case, left)
            want = [str(root / f"step_{step:08d}") for step in rotation.steps if step not in rotation.left]
            if got != want:
                shown = [Path(p).name for p in got] if isinstance(got, list) else got
                fail(f"rotate returned {shown}, expected the paths of {[Path(p).name for p in want]}", case, shown)
            if not (root / "notes.txt").exists() or not (root / "step_00000001.bak").exists():
                fail("rotate deleted something that is no checkpoint", case, "others")
            more = len(list(root.iterdir())) - len(left) - 2
            if more:
                fail(f"rotate left {more} entries that are no checkpoints", case, ["left over", more])
            if torn.get(number):
                fail("killed then, rotate would have left half a folder under a checkpoint's name", case, "torn")
        _expect_error("keep_last = 0", outcomes[-1], "ValueError", "keep_last")


@check("16-ex4-latest")
def what_a_kill_leaves_loads(save_sharded, latest, load_sharded, *, rng):
    """From what is on the disk before any change of a save, `latest` and `load_sharded` get a whole checkpoint."""
    old, new = draw(rng, 2, 10), draw(rng, 2, 20)
    with scratch_folder() as folder:
        (folder / "copies").mkdir()
        results = run_ranks(_copying_driver, 2, (folder, save_sharded, old, new, (latest, load_sharded)))
        case = "every moment of a save over an older checkpoint"
        for rank, mine in enumerate(results):
            for place, found, kind, got in mine:
                if kind != "returned":
                    fail(
                        f"killed before a {place[6:]}: rank {rank} got {kind.split()[0]}: {got}", case, kind.split()[0]
                    )
                if not found:
                    fail(f"killed before a {place[6:]}: latest found nothing", case, "nothing")
                want = new if found == new.name else old
                if isinstance(got, str) or found not in (old.name, new.name) or got != (want.pieces[rank], want.values):
                    fail(
                        f"killed before a {place[6:]}: rank {rank} loaded something that was never saved", case, "other"
                    )


# ---- 5 · reshard ----


def _recut(saved: Saved, world_size: int) -> Saved:
    """The same numbers in pieces of ⌈P/N⌉."""
    pieces: list[dict] = [{} for _ in range(world_size)]
    for name, (dtype, _) in saved.pieces[0].items():
        whole = b"".join(piece[name][1] for piece in saved.pieces)
        length = -(-(len(whole) // SIZES[dtype]) // world_size) * SIZES[dtype]
        for rank in range(world_size):
            pieces[rank][name] = (dtype, whole[rank * length : (rank + 1) * length])
    return replace(saved, pieces=pieces)


def _reshard_driver(rank, world_size, folder, reshard, cases):
    outcomes = []
    log = _Log(folder / "log", 0)
    _watch(str(folder / "files"), log.at, reshard)
    for path, target, count in cases:
        log.add("begin", str(target))
        kind, got = _try(reshard, path, target, count)
        log.add("returned", str(target))
        outcomes.append((kind, os.fspath(got) if kind == "returned" and got is not None else str(got)))
    return outcomes


@check("16-ex5-reshard")
def resharding_keeps_every_byte(reshard, *, rng):
    """4 → 2 → 3 → 4 and others: the logical state's bytes, dtypes, order and values; durable, one rename."""
    with scratch_folder() as folder:
        files, cases, wanted = folder / "files", [], []
        first = draw(rng, 4, 1234)
        for number, counts in enumerate([(2, 3, 4), (1,), (7,)]):
            path, saved = write_checkpoint(files / f"source{number}", first), first
            for hop, count in enumerate(counts):
                target = files / f"target{number}.{hop}"
                cases.append((path, str(target) if hop % 2 else target, count))
                before, saved = saved, _recut(saved, count)
                wanted.append((f"{len(before.pieces)} to {count} ranks", target / saved.name, saved))
                path = target / saved.name
        leftover = files / "target0.0" / ".tmp_step_00001234"
        leftover.mkdir(parents=True)
        (leftover / "shard_00005.bin").write_bytes(b"of a killed save")
        plain = replace(draw(rng, 2, 6, tensors=False))
        cases.append((write_checkpoint(files / "plain", plain), files / "target3", 3))
        wanted.append(("no tensors, 2 to 3 ranks", files / "target3" / plain.name, replace(plain, pieces=[{}, {}, {}])))
        sources = list(files.glob("source*"))
        before = [_fingerprint(path) for path in sources]
        outcomes = run_ranks(_reshard_driver, 1, (folder, reshard, cases))[0]
        lines = _lines(folder / "log")
        for (case, path, saved), (kind, got), (_, target, _) in zip(wanted, outcomes, cases, strict=True):
            if kind != "returned":
                fail(f"reshard raised {kind.split()[0]}: {got}", case, kind.split()[0])
            _expect_content(case, path, saved, "the new checkpoint")
            if Path(got) != path:
                fail(f"reshard returned …/{Path(got).name}, expected the new checkpoint's path", case, Path(got).name)
            if [p.name for p in path.parent.iterdir()] != [path.name]:
                fail("besides the new checkpoint there is more in target_root", case, "left over")
            created = json.loads((path / "manifest.json").read_bytes())["created"]
            if created == "2026-01-31T12:00:00+00:00":
                fail("created is still that of the original", case, "created")
            begin = next(i for i, e in enumerate(lines) if (e["kind"], e["path"]) == ("begin", str(target)))
            end = next(i for i, e in enumerate(lines) if (e["kind"], e["path"]) == ("returned", str(target)))
            made = [
                e
                for e in lines[begin:end]
                if e["kind"] in ("create", "make") and path in (Path(e["path"]), Path(e["path"]).parent)
            ]
            if made:
                fail(
                    f"reshard wrote into {path.name} itself: until the rename nothing may have this name", case, "named"
                )
            _expect_durable(case, lines[begin : end + 1], path, "reshard")
        if [_fingerprint(path) for path in sources] != before:
            fail("reshard changed the original", "4 to 2 ranks", "original changed")


@check("16-ex5-reshard")
def resharding_refuses_damage(reshard, *, rng):
    """A damaged original gets no new digests; a step that is there stays; no world size below 1."""
    with scratch_folder() as folder:
        files = folder / "files"
        files.mkdir()
        flipped = write_checkpoint(files / "flipped", draw(rng, 3, 10))
        _damage(flipped / "shard_00001.bin", "one bit of the first byte")
        wrong = [("one bit of a shard", flipped, ("shard_00001.bin",)), *_tampered(files, rng, 3)]
        cases = [(path, files / f"target{i}", 2) for i, (_, path, _) in enumerate(wrong)]
        good = write_checkpoint(files / "good", draw(rng, 2, 20))
        there = write_checkpoint(files / "there", draw(rng, 3, 20))
        before = _fingerprint(there)
        cases += [(good, files / "there", 3), (good, files / "none", 0), (good, files / "good", 1)]
        outcomes = run_ranks(_reshard_driver, 1, (folder, reshard, cases))[0]
        for i, ((case, _, mentions), outcome) in enumerate(zip(wrong, outcomes, strict=False)):
            _expect_error(case, outcome, "CheckpointError", mentions)
            target = files / f"target{i}"
            if target.is_dir() and list(target.iterdir()):
                fail("something was written before the error", case, "written")
        _expect_error("the step is there already", outcomes[-3], "CheckpointError", "step_00000020")
        if _fingerprint(there) != before:
            fail("the checkpoint that was there has changed", "the step is there already", "overwritten")
        if [path.name for path in there.parent.iterdir()] != [there.name]:
            fail("something was written before the error", "the step is there already", "written beside")
        _expect_error("world_size = 0", outcomes[-2], "ValueError", "world_size")
        _expect_error("target_root is the original's own root", outcomes[-1], "CheckpointError", "step_00000020")


# ---- 6 · in the background ----


def _async_driver(rank, world_size, folder, saver_class, saves):
    """A save and a wait; then two saves, the first held back, while the state changes and the ranks talk.

    What is found to be wrong ends the run at once: two saves on one group, or two threads, may end the process.
    """
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
    _watch(str(root), at, saver_class, type(saver).save)
    states = [_state(saved, rank) for saved in saves]
    dist.barrier()
    gate.set()
    known = _default_group_calls()
    saver.save(states[0], root, saves[0].step)
    saver.wait()
    if not os.path.isdir(there[0]):
        return "wait returned, and the save had not ended"
    if _default_group_calls() != known:
        return "the saver's messages went over the default group"
    gate.clear()
    saver.save(states[1], root, saves[1].step)
    if gate.is_set() or os.path.isdir(there[1]):
        return "save did not return before the checkpoint was there"
    for state in states[:2]:
        _spoil(state)
    total = torch.ones(1)
    dist.all_reduce(total)  # the ranks train on
    threading.Timer(0.15, gate.set).start()
    saver.save(states[2], root, saves[2].step)
    if not os.path.isdir(there[1]):
        raise RuntimeError("the second save returned, and the first had not ended")
    _spoil(states[2])
    saver.wait()
    if not os.path.isdir(there[2]):
        return "wait returned, and the second save had not ended"
    again = _try(saver.wait)[0]
    dist.barrier()
    return "" if again == "returned" else f"a second wait raised {again.split()[0]}"


def _default_group_calls() -> int:
    """How often this rank has called a collective on the default group so far."""
    recorder = inspect.getclosurevars(dist.barrier).nonlocals["recorder"]
    events = _lines(Path(_path_of(recorder._file)))
    return sum(event["e"] == "call" and event.get("group") is None for event in events)


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


@check("16-ex6-async")
def saving_goes_on_in_the_background(AsyncSaver, *, rng):  # noqa: N803
    """`save` returns before anything is on the disk; a copy is saved; one save at a time, over a group of its own."""
    for world_size in (2, 3):
        case, saves = f"{world_size} ranks", [draw(rng, world_size, step) for step in (10, 20, 30)]
        with scratch_folder() as folder:
            (folder / "root").mkdir()
            results = run_ranks(_async_driver, world_size, (folder, AsyncSaver, saves), timeout=10.0)
            for rank, text in enumerate(results):
                if text:
                    fail(f"rank {rank}: {text}", case, text)
            for saved in saves[1:]:
                _expect_content(case, folder / "root" / saved.name, saved, f"the checkpoint of step {saved.step}")


def _error_driver(rank, world_size, saver_class, root, saved):
    saver, outcomes = saver_class(), []
    late = replace(saved, step=saved.step + 1)

    def plain(function: Callable, *args: Any) -> tuple[str, str]:
        kind, got = _try(function, *args)
        return kind, str(got)

    outcomes.append(plain(saver.wait))
    outcomes.append(plain(saver.save, _state(saved, rank), root, saved.step))  # the step is there
    outcomes.append(plain(saver.wait))
    outcomes.append(plain(saver.wait))
    outcomes.append(plain(saver.save, _state(saved, rank), root, saved.step))  # again
    outcomes.append(plain(saver.save, _state(late, rank), root, late.step))
    there = os.path.isdir(Path(root, late.name))
    outcomes.append(plain(saver.wait))
    dist.barrier()
    outcomes.append(plain(saver.save, _state(late, rank), root, late.step))
    outcomes.append(plain(saver.wait))
    outcomes.append(plain(saver.save, {"w": torch.ones(2, 2)}, root, late.step + 1))
    outcomes.append(plain(saver.wait))
    return outcomes, there


@check("16-ex6-async")
def background_errors_are_told_once(AsyncSaver, *, rng):  # noqa: N803
    """What went wrong in the background is raised by the next call, as what it was, once; then all is as if new."""
    case = "saves of a step that is there"
    with scratch_folder() as folder:
        saved = draw(rng, 2, 10)
        write_checkpoint(folder, draw(rng, 3, 10))
        results = run_ranks(_error_driver, 2, (AsyncSaver, str(folder), saved))
        for rank, (outcomes, there) in enumerate(results):
            words = [("wait, before any save", None), ("the first save", None), ("wait, after a save that failed", 1)]
            words += [("a second wait", None), ("another save that fails", None), ("the save after it", 1)]
            words += [("wait, when save has raised", None), ("a good save", None), ("wait, after a good save", None)]
            words += [("a save of a matrix", None), ("wait, after a save of a matrix", 2)]
            for (what, wrong), outcome in zip(words, outcomes, strict=True):
                if wrong == 2:
                    _expect_error(what, outcome, "ValueError", "w", f"rank {rank}: ")
                elif wrong:
                    _expect_error(f"{case}: {what}", outcome, "CheckpointError", "step_00000010", f"rank {rank}: ")
                elif outcome[0] != "returned":
                    text = f"rank {rank}: {what} raised {outcome[0].split()[0]}: {outcome[1]}"
                    fail(text, f"{case}: {what}", outcome[0].split()[0])
            if there:
                fail(f"rank {rank}: save raised the error of the one before, and saved all the same", case, "saved")
        _expect_content(case, folder / "step_00000011", replace(saved, step=11), "the checkpoint after the errors")
