"""Start and end the processes of one run: forked from the server, or spawned where there is no fork."""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from multiprocessing.connection import Connection
from typing import Any

#: At most so many ranks: one message can carry about 250 file descriptors.
MAX_WORLD_SIZE = 128

_NO_SERVER = "no rank was started: the process that forks them has ended (with RANKS_DEBUG=1 it says why)"

#: Modules that the server imports before it forks, once: what every rank of many runs would import anew. They must
#: not change while the server lives.
PRELOAD: set[str] = set()

_lock = threading.Lock()
#: Its owner's pid, its process, and the socket for requests.
_server: tuple[int, subprocess.Popen | _ForkedServer, socket.socket] | None = None


def can_fork() -> bool:
    """Fork is there on Linux and macOS; RANKS_START=spawn turns it off."""
    return hasattr(os, "fork") and os.environ.get("RANKS_START") != "spawn"


def start_server() -> None:
    """Start the fork server in the background, unless it runs already or this process is a rank."""
    global _server
    if not can_fork() or "RANKS_INSIDE" in os.environ:
        return
    with _lock:
        _ensure_server()


def _ensure_server() -> socket.socket:
    global _server
    if _server and _server[0] == os.getpid() and _server[1].poll() is None:
        return _server[2]
    ours, theirs = socket.socketpair()
    # -c and not -m: the folder of the notebook must not shadow what the server imports.
    start = "import sys; sys.path[:] = eval(sys.argv[2]); import ranks.server as s; s.main(int(sys.argv[1]))"
    process = subprocess.Popen(
        [sys.executable, "-c", start, str(theirs.fileno()), repr([os.path.abspath(p) for p in sys.path if p])],
        pass_fds=[theirs.fileno()],
        cwd="/",  # the folder that we are in may be gone before the server has imported everything
        start_new_session=True,  # Ctrl-C in a terminal is for the notebook, not for the server
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("RANKS_DEBUG") else subprocess.DEVNULL,
        env={**os.environ, "RANKS_INSIDE": "server", "OMP_NUM_THREADS": "1"},
    )
    theirs.close()
    _server = (os.getpid(), process, ours)
    atexit.register(_stop_server, *_server)
    return ours


def fork_server() -> None:
    """Fork the server from this process instead, which has imported what ranks need and has no other threads."""
    global _server
    from ranks import server

    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            os.environ.update(RANKS_INSIDE="server", OMP_NUM_THREADS="1")
            os.setsid()
            os.chdir("/")
            server.main(theirs.detach())
        finally:
            os._exit(0)
    theirs.close()
    _server = (os.getpid(), _ForkedServer(pid), ours)


class _ForkedServer:
    """Of subprocess.Popen what is needed here, for a server that was forked."""

    def __init__(self, pid: int):
        self.pid, self.status = pid, None

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        if self.status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end."""
        if self.status is None:
            with contextlib.suppress(ChildProcessError):
                self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status


def _stop_server(owner: int, process: subprocess.Popen, requests: socket.socket) -> None:
    if owner == os.getpid():
        requests.close()  # the server ends at the end of file
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)


def _ask_for_ranks(request: bytes, fds: list[int]) -> None:
    """Send a request to the server, to a new one where it has ended."""
    with _lock:
        for _ in range(2):
            try:
                socket.send_fds(_ensure_server(), [request], fds)
                return
            except ConnectionError:
                _server[1].wait()
    raise RuntimeError(_NO_SERVER)


class ForkedRanks:
    """The processes of one run, forked from the server. `connections[r]` talks to rank r."""

    def __init__(self, world_size: int, folder: str):
        self.connections, theirs = _pairs(world_size)
        self._control, control = multiprocessing.Pipe()
        self.pids: list[int] = []
        self.exits: dict[int, int] = {}
        fds = [control.fileno(), *(end.fileno() for end in theirs)]
        request = {"world_size": world_size, "folder": folder, "preload": sorted(PRELOAD)}
        _ask_for_ranks(json.dumps(request).encode(), fds)
        for end in (control, *theirs):
            end.close()

    @property
    def events(self) -> list[Any]:
        """What to wait on for news of processes that ended."""
        return [] if self._control.closed else [self._control]

    def collect_exits(self) -> None:
        """Take in the news: `pids`, and in `exits` the exit status of each rank that has ended."""
        try:
            while self._control.poll():
                kind, *rest = self._control.recv()
                if kind == "started":
                    self.pids = rest[0]
                else:
                    self.exits[rest[0]] = rest[1]
        except (EOFError, OSError):
            self._control.close()
            if not self.pids:
                raise RuntimeError(_NO_SERVER) from None
            for rank in range(len(self.connections)):
                self.exits.setdefault(rank, -signal.SIGKILL)

    def end(self) -> None:
        """End every process of the run; return when they are gone."""
        with contextlib.suppress(OSError, EOFError):
            if not self._control.closed:
                self._control.send("stop")
                while True:
                    self._control.recv()  # the supervisor closes its end last
        for connection in (self._control, *self.connections):
            with contextlib.suppress(OSError):
                connection.close()


class SpawnedRanks:
    """The same by multiprocessing's spawn: slow, for systems without fork."""

    def __init__(self, world_size: int):
        warnings.warn("no fork on this system: every ranks.run starts new Pythons, seconds each", stacklevel=4)
        self.connections, theirs = _pairs(world_size)
        self.exits: dict[int, int] = {}
        context = multiprocessing.get_context("spawn")
        from ranks import spawned

        self._processes = [
            context.Process(target=spawned.main, args=(end, rank), daemon=True) for rank, end in enumerate(theirs)
        ]
        with _without_main():
            for process in self._processes:
                process.start()
        self.pids = [process.pid for process in self._processes]
        for end in theirs:
            end.close()

    @property
    def events(self) -> list[Any]:
        """What to wait on for news of processes that ended."""
        return [p.sentinel for rank, p in enumerate(self._processes) if rank not in self.exits]

    def collect_exits(self) -> None:
        """Put into `exits` the exit status of each rank that has ended."""
        for rank, process in enumerate(self._processes):
            if process.exitcode is not None:
                self.exits[rank] = process.exitcode

    def end(self) -> None:
        """End every process of the run; return when they are gone."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self.connections:
            connection.close()


def start(world_size: int, folder: str) -> ForkedRanks | SpawnedRanks:
    """Start `world_size` processes that wait for a job on their connections; `folder` is the run's own."""
    return ForkedRanks(world_size, folder) if can_fork() else SpawnedRanks(world_size)


def _pairs(count: int) -> tuple[list[Connection], list[Connection]]:
    pairs = [multiprocessing.Pipe() for _ in range(count)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


@contextlib.contextmanager
def _without_main():
    """Keep spawn from running the user's script again in each rank: workers travel by value."""
    main = sys.modules["__main__"]
    hidden = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
    try:
        main.__spec__ = None
        yield
    finally:
        main.__dict__.update(hidden)
