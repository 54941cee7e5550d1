"""What a process does to a folder: each call that changes it, watched before it is made, and a log that ranks share.

`watch` puts a hook around every call that changes a folder: opening, writing (once before and once in the middle of
each write), fsync, rename and so on. The hook may kill the process there, play a full disk, copy the folder, or add a
line to a `Log`, whose order is the order of events on all ranks.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import hashlib
import inspect
import io
import json
import os
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: `with at(kind, path, target, fd):` stands around a change. target: of a rename, else "". fd: of an open file, if any.
At = Callable[..., contextlib.AbstractContextManager]


def watch(root: Path | str, at: At, *subjects: Any) -> None:
    """From now on, every call of this process that changes something below `root` is made inside `at`'s block.

    kind: create, write, half (a write is half done), fsync, rename, remove, make. What `subjects`, functions or
    classes of a notebook, have imported by name is replaced as well. There is no way back: for a rank, which ends.
    """
    _Watch(os.fspath(root), at).install(subjects)


class _Raw(io.FileIO):
    """The raw layer of a watched file: it sees when Python's buffers are really written."""

    watch: _Watch

    def write(self, data: Any) -> int:
        return self.watch.in_halves(super().write, data, self.fileno())

    def truncate(self, size: int | None = None) -> int:
        with self.watch.change("write", path_of(self.fileno()), fd=self.fileno()):
            return super().truncate(size)


class _Watch:
    """The functions that take the place of os's and of `open`."""

    def __init__(self, root: str, at: At):
        self.root, self.at = root, at
        self.real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name))}
        self.real_open, self.inside = io.open, threading.local()

    def install(self, subjects: tuple) -> None:
        """Replace the functions in os, in builtins, and where the subjects have them by name."""
        new = {name: function for name, function in self.replacements().items() if name in self.real}
        swap = {id(self.real[name]): function for name, function in new.items()} | {id(self.real_open): self.open}
        for name, function in new.items():
            setattr(os, name, function)
        builtins.open = io.open = self.open
        # shutil decides by these sets: its rmtree would otherwise take other paths for a changed os.
        for names in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            names |= {function for name, function in new.items() if self.real[name] in names}
        for space in namespaces(subjects):
            for name, value in list(space.items()):
                if id(value) in swap:
                    space[name] = swap[id(value)]
                elif getattr(value, "__wrapped__", None) is self.real_open:  # a notebook's own `open` is IPython's
                    space[name] = self.open

    def replacements(self) -> dict[str, Callable]:
        """os's functions that change a folder, watched."""
        new: dict[str, Callable] = {"open": self.os_open, "write": self.os_write}
        new |= {name: self.on_fd(name, "fsync") for name in ("fsync", "fdatasync")}
        new |= {name: self.on_fd(name, "write") for name in ("pwrite", "writev", "pwritev", "sendfile", "ftruncate")}
        new |= {name: self.on_two_paths(name, "rename") for name in ("rename", "replace")}
        new |= {name: self.on_two_paths(name, "make") for name in ("link", "symlink")}
        new |= {name: self.on_path(name, "remove") for name in ("unlink", "remove", "rmdir")}
        return new | {"mkdir": self.on_path("mkdir", "make"), "truncate": self.on_path("truncate", "write")}

    def below(self, path: str) -> bool:
        """Is this path the root, or in it?"""
        return path == self.root or path.startswith(self.root + os.sep)

    @contextlib.contextmanager
    def change(self, kind: str, path: str, target: str = "", fd: int | None = None) -> Iterator[None]:
        """Around a change: `at`'s block, if it is below the root and `at` did not make it itself."""
        if getattr(self.inside, "busy", False) or not (self.below(path) or (target and self.below(target))):
            yield
            return
        self.inside.busy = True
        try:
            with self.at(kind, path, target, fd):
                yield
        finally:
            self.inside.busy = False

    def in_halves(self, write: Callable, data: Any, fd: int) -> int:
        """Write the first half, then the second one, each a change of its own."""
        data, path = memoryview(data).cast("B"), path_of(fd)
        half = len(data) // 2
        with self.change("write", path, fd=fd):
            done = write(data[:half] if half else data)
        if half:
            with self.change("half", path, fd=fd):
                done += write(data[half:])
        return done

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """`open`, with `_Raw` under the buffers of a file that is opened to be written."""
        path = _full_path(file)
        if not set(mode) & set("wax+") or not self.below(path):
            return self.real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        with self.change("create", path):
            raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.watch = self
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffer = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffer
        text: Any = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode
        return text

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """`os.open`."""
        if not flags & (os.O_CREAT | os.O_TRUNC):
            return self.real["open"](path, flags, mode, dir_fd=dir_fd)
        with self.change("create", _full_path(path, dir_fd)):
            return self.real["open"](path, flags, mode, dir_fd=dir_fd)

    def os_write(self, fd: int, data: Any) -> int:
        """`os.write`."""
        if not self.below(path_of(fd)):
            return self.real["write"](fd, data)
        return self.in_halves(lambda part: self.real["write"](fd, part), data, fd)

    def on_fd(self, name: str, kind: str) -> Callable:
        """A function of os whose first argument is an open file."""

        def call(fd: Any, *args: Any, **kwargs: Any) -> Any:
            number = fd if isinstance(fd, int) else fd.fileno()
            with self.change(kind, path_of(number), fd=number):
                return self.real[name](fd, *args, **kwargs)

        return call

    def on_path(self, name: str, kind: str) -> Callable:
        """A function of os whose first argument is a path."""

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            with self.change(kind, _full_path(path, kwargs.get("dir_fd"))):
                return self.real[name](path, *args, **kwargs)

        return call

    def on_two_paths(self, name: str, kind: str) -> Callable:
        """A function of os that takes an old path and a new one."""

        def call(src: Any, dst: Any, **kwargs: Any) -> Any:
            old = _full_path(src, kwargs.get("src_dir_fd"))
            with self.change(kind, old, _full_path(dst, kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))):
                return self.real[name](src, dst, **kwargs)

        return call


def namespaces(subjects: tuple) -> list[dict]:
    """The globals of functions, and of the methods of classes."""
    functions = [f for s in subjects for f in (vars(s).values() if isinstance(s, type) else [s])]
    return [
        f.__globals__ for f in map(inspect.unwrap, filter(callable, functions)) if isinstance(f, types.FunctionType)
    ]


def path_of(fd: int) -> str:
    """Where an open file is; "" if the system does not say."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        if not hasattr(fcntl, "F_GETPATH"):
            return ""
    try:
        return fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode()
    except OSError:
        return ""


def _full_path(path: Any, dir_fd: int | None = None) -> str:
    if isinstance(path, int):
        return path_of(path)
    folder = path_of(dir_fd) if dir_fd is not None else os.getcwd()
    return os.path.normpath(os.path.join(folder, os.fsdecode(os.fspath(path))))


# ---- a log that ranks share ----

#: A change that was made, by the name of the one that is about to be.
DONE = {"write": "written", "half": "written", "fsync": "fsynced", "rename": "renamed", "create": "created"}
DONE |= {"make": "made"}


@dataclass
class Event:
    """A line of a log.

    kind: a change that is about to be made, one that was made (`DONE`), or a word of the driver's. id: [device, inode]
    of what is at `path`, whatever it is called later. bytes: by how much a write made its file longer. there: for
    "returned", the id of everything in the folder then (a copy of it, which the check may see, has other ids). holds:
    for "fsynced", the SHA-256 of what the file held: by whatever way it was written, this is on the disk.
    """

    rank: int
    kind: str
    path: str = ""
    target: str = ""
    id: list[int] | None = None
    bytes: int = 0
    holds: str = ""
    there: dict[str, list[int] | None] = field(default_factory=dict)


class Log:
    """A file to which all ranks append what they do to the folder `root`; its order is the order of events."""

    def __init__(self, path: Path, rank: int, root: Path):
        self.path, self.rank, self.root, self.write = path, rank, root, os.write
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, kind: str, path: str = "", target: str = "", fd: int | None = None, **more: Any) -> None:
        """Append one event."""
        event = Event(self.rank, kind, path, target, _id(path, fd), **more)
        self.write(self.fd, (json.dumps(asdict(event)) + "\n").encode())

    def returned(self, name: str = "") -> None:
        """Append that the call under test has returned, with what is in the folder now."""
        walk = os.walk(self.root)
        there = [os.path.join(place, name) for place, folders, files in walk for name in ("", *folders, *files)]
        self.add("returned", name, there={os.path.normpath(path): _id(path) for path in there})

    @contextlib.contextmanager
    def at(self, kind: str, path: str, target: str = "", fd: int | None = None) -> Iterator[None]:
        """The hook for `watch`: a line before the change, and another one after it."""
        writes = kind in ("write", "half")
        before = os.fstat(fd).st_size if fd is not None and writes else 0
        self.add(kind, path, target, fd)
        yield
        if kind in DONE:
            more = max(0, os.fstat(fd).st_size - before) if fd is not None and writes else 0
            holds = _digest(path) if kind == "fsync" else ""
            self.add(DONE[kind], target if kind == "rename" else path, target, fd, bytes=more, holds=holds)

    def events(self) -> list[Event]:
        """Everything so far, of all ranks."""
        return read_log(self.path)


def _digest(path: str) -> str:
    """The SHA-256 of what a file holds; "" for a folder."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _id(path: str, fd: int | None = None) -> list[int] | None:
    try:
        found = os.fstat(fd) if fd is not None else os.stat(path)
    except OSError:
        return None
    return [found.st_dev, found.st_ino]


def read_log(path: Path) -> list[Event]:
    """The events in a log, in order. A line that is not yet whole does not count."""
    return [Event(**json.loads(line)) for line in path.read_bytes().split(b"\n")[:-1]]


def id_of(events: list[Event], path: Path) -> list[int]:
    """The id of a file or folder when the last call had returned; [] if there was none."""
    found = [event.there[str(path)] for event in events if str(path) in event.there]
    return found[-1] if found and found[-1] else []
