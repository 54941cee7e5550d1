"""Start and end the processes of one run: forked from the fork server on Linux, spawned on other systems."""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from ranks.server import LENGTH

#: The largest number of ranks. The request for a run carries one file descriptor a rank, and at most about 250.
MAX_WORLD_SIZE = 128

#: The exit status of a rank that ended without one, as if killed by SIGKILL, a name that Windows does not have.
KILLED = -9

_NO_SERVER = (
    "no rank was started: the process that forks the ranks has ended; to see why, set the environment variable "
    "RANKS_DEBUG=1 and call ranks.run again"
)

#: Modules that the fork server imports once, before it forks, so that the ranks need not import them in every run; a
#: spawned rank imports them before the run's time begins. They must not change while the server lives.
PRELOAD: set[str] = set()

_lock = threading.Lock()
_server: _Server | None = None


#: The folder that holds this package, so that a server can import it from there.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def can_fork() -> bool:
    """Are ranks forked? RANKS_START=fork or =spawn says so; otherwise they are on Linux alone.

    On macOS, forking a process that uses the system's libraries may crash the child, so Python itself spawns there.
    """
    start = os.environ.get("RANKS_START") or ("fork" if sys.platform == "linux" else "spawn")
    return start == "fork" and hasattr(os, "fork")


class _Server:
    """A fork server of this process's: started, forked, or joined. It ends when `requests` is closed here.

    pid: its number, if it is a child of this process, else 0. started: its process, if Python started it.
    """

    def __init__(self, requests: socket.socket, pid: int = 0, started: subprocess.Popen[bytes] | None = None):
        self.owner, self.requests, self.pid, self.started = os.getpid(), requests, pid, started

    def lives(self) -> bool:
        """Is it there, and this process's? It sends nothing: what can be read is the end of its socket."""
        if self.owner != os.getpid():
            return False
        try:
            return bool(self.requests.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError as error:
            return isinstance(error, BlockingIOError)

    def end(self) -> None:
        """Let it end. Where Python started it, wait for that, for at most five seconds."""
        if self.owner != os.getpid():
            return
        self.requests.close()
        if self.started is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.started.wait(timeout=5)
        elif self.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


def _ensure_server() -> socket.socket:
    """The socket for requests to this process's fork server: the one that runs, one to join, or a new one."""
    global _server
    if _server is None or not _server.lives():
        if _server is not None:
            _server.end()
        _server = _joined() or _started()
    return _server.requests


def _started() -> _Server:
    """A server in a Python of its own, which imports torch first."""
    ours, theirs = socket.socketpair()
    # -c and not -m: the folder of the notebook must not shadow what the server imports.
    start = "import sys; sys.path[:] = eval(sys.argv[2]); import ranks.server as s; s.main(int(sys.argv[1]))"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            start,
            str(theirs.fileno()),
            repr([*map(os.path.abspath, filter(None, sys.path)), _OURS]),
        ],
        pass_fds=[theirs.fileno()],
        cwd="/",  # the current folder may be removed before the server has imported everything
        start_new_session=True,  # Ctrl-C in a terminal must not reach the server
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("RANKS_DEBUG") else subprocess.DEVNULL,
        env={**os.environ, "RANKS_INSIDE": "server", "OMP_NUM_THREADS": "1"},
    )
    theirs.close()
    server = _Server(ours, process.pid, process)
    atexit.register(server.end)
    return server


def _joined() -> _Server | None:
    """A server that another process forks for this one (`server.listen`).

    RANKS_SERVER is the path of that process's socket. None if it is not set, or nobody listens there.
    """
    if not (path := os.environ.get("RANKS_SERVER")):
        return None
    requests = socket.socket(socket.AF_UNIX)
    try:
        requests.connect(path)
    except OSError:
        requests.close()
        return None
    return _Server(requests)


def fork_server() -> None:
    """Fork the server from this process, which has no other threads and is prepared as `server.serve` says."""
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
            server.serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    _server = _Server(ours, pid)


def _ask_for_ranks(request: bytes, fds: list[int]) -> None:
    """Send a request to the server, or to a new server if the old one has ended."""
    with _lock:
        for _ in range(2):
            with contextlib.suppress(ConnectionError):
                server = _ensure_server()
                socket.send_fds(server, [len(request).to_bytes(LENGTH, "big")], fds)
                server.sendall(request)
                return
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
        """What becomes readable when a process of the run has ended."""
        return [] if self._control.closed else [self._control]

    def collect_exits(self) -> None:
        """Put the ranks' process ids into `pids`, and into `exits` the exit status of each rank that has ended."""
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
                self.exits.setdefault(rank, KILLED)

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
    """The processes of one run, started by multiprocessing's spawn: slow, for systems where ranks are not forked."""

    _warned = False

    def __init__(self, world_size: int):
        if not SpawnedRanks._warned:
            SpawnedRanks._warned = True
            warnings.warn(
                "ranks are not forked: each ranks.run starts new Python processes, which takes seconds", stacklevel=4
            )
        self.connections, theirs = _pairs(world_size)
        self.exits: dict[int, int] = {}
        context = multiprocessing.get_context("spawn")
        from ranks import spawned

        self._processes = [
            context.Process(target=spawned.main, args=(end, rank, sorted(PRELOAD)), daemon=True)
            for rank, end in enumerate(theirs)
        ]
        with _without_main():
            for process in self._processes:
                process.start()
        for end in theirs:
            end.close()
        self.pids: list[int] = []
        self._importing = set(self.connections)

    @property
    def events(self) -> list[Any]:
        """What becomes readable when a process of the run has ended, or has imported what it needs."""
        return [p.sentinel for rank, p in enumerate(self._processes) if rank not in self.exits] + [*self._importing]

    def collect_exits(self) -> None:
        """Put into `exits` the exit status of each rank that has ended; into `pids` all ids, once all are ready."""
        for rank, process in enumerate(self._processes):
            if process.exitcode is not None:
                self.exits[rank] = process.exitcode
        for connection in [end for end in self._importing if end.poll()]:
            with contextlib.suppress(EOFError, OSError):
                connection.recv()  # "ready"
            self._importing.remove(connection)
        if not self._importing:
            self.pids = [process.pid for process in self._processes if process.pid is not None]

    def end(self) -> None:
        """End every process of the run; return when they are gone."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self.connections:
            connection.close()


def start(world_size: int, folder: str) -> ForkedRanks | SpawnedRanks:
    """Start `world_size` processes, each waiting for a job on its connection. folder: the run's temporary folder."""
    return ForkedRanks(world_size, folder) if can_fork() else SpawnedRanks(world_size)


def too_few_files(world_size: int) -> str:
    """A line if this system lets a process open fewer files than it takes to start so many ranks, else ''."""
    if sys.platform == "win32":
        return ""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = 2 * world_size + 64  # both ends of a connection to each rank, and what Python and a notebook have open
    if most == resource.RLIM_INFINITY or needed <= most:
        return ""
    return (
        f"{world_size} ranks need about {needed} open files, and this system allows a process {most}: raise the limit "
        "(`ulimit -n 1024` in the shell that starts Python), or start fewer ranks"
    )


def _pairs(count: int) -> tuple[list[Any], list[Any]]:
    pairs = [multiprocessing.Pipe() for _ in range(count)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep spawn from running the user's script again in each rank, which gets the worker by value."""
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    hidden: dict[str, Any] = {name: main.__dict__.pop(name) for name in names if name in main.__dict__}
    try:
        main.__spec__ = None
        yield
    finally:
        main.__dict__.update(hidden)
