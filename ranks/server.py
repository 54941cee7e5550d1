"""The fork server: a process that has imported torch, from which ranks are forked. `python -m ranks.server FD`.

Starting Python and importing torch takes seconds; forking a process that has done so takes milliseconds. The server
imports torch, stays single-threaded, and waits for requests. For each run it forks a supervisor. The supervisor forks
the ranks and reports how they end. When the run is over or the notebook's kernel dies, it ends every process left.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_HUGE_PAGE, _MADV_COLLAPSE = 2**21, 25

#: Bytes before a request, with its file descriptors, that say how long it is.
LENGTH = 4


def main(fd: int) -> None:
    """Serve runs until the other end of the socket `fd` is closed."""
    preload()
    make_forks_cheap()
    serve(socket.socket(fileno=fd))


def listen(fd: int) -> None:
    """Fork a server for each program that connects to the listening socket `fd`, until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = socket.socket(fileno=fd)
    preload()
    make_forks_cheap()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        requests, _ = listening.accept()
        if os.fork() == 0:
            try:
                os.setsid()
                listening.close()
                os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # a rank reads nothing
                serve(requests)
            finally:
                os._exit(0)
        requests.close()


def serve(requests: socket.socket) -> None:
    """Fork a supervisor for each request, until the other end of the socket is closed.

    This process has been prepared by `preload` and `make_forks_cheap`, or was forked from one that has.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the supervisors
    while True:
        try:
            size, fds, _, _ = socket.recv_fds(requests, LENGTH, 256)
            request = json.loads(_read(requests, int.from_bytes(size, "big"))) if size else None
        except ConnectionError:
            return
        if request is None:
            return
        import_once(request.pop("preload"))
        if os.fork() == 0:
            requests.close()
            _supervise(fds=fds, **request)
        for received in fds:
            os.close(received)


def _read(requests: socket.socket, size: int) -> bytes:
    """A request of this many bytes; the system may deliver it in pieces. ConnectionError if the other end closes."""
    found = b""
    while len(found) < size:
        piece = requests.recv(size - len(found))
        if not piece:
            raise ConnectionError("the request was cut off")
        found += piece
    return found


def import_once(modules: list[str]) -> None:
    """Import the modules that are not there yet. If an import fails, the ranks try it again and report the error."""
    for name in modules:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
                gc.freeze()


def preload() -> None:
    """Import what ranks need. `make_forks_cheap` comes next: until then, no garbage is collected."""
    gc.disable()  # imports make none, and each search for it would look at all that has been imported
    import torch
    import torch.distributed
    import torch.nn.parallel

    import ranks.rank  # noqa: F401
    from ranks import sending

    sending.pickler()

    # The first optimizer of a process imports another large part of torch, and its first step some more.
    w = torch.zeros(1, requires_grad=True)
    w.grad = torch.zeros(1)
    torch.optim.Adam([w]).step()


def make_forks_cheap() -> None:
    """Prepare what this process has in memory for being shared with the processes that it forks."""
    # Or the garbage collector would write to every page in every rank, and so copy it. Nothing is collected before:
    # imports leave little garbage, and what it leaves free would be filled, and copied, page by page.
    gc.freeze()
    gc.enable()
    if sys.platform == "linux":
        _gather_in_huge_pages()


def _gather_in_huge_pages() -> None:
    """Move this process's own memory to pages of 2 MiB, so that a fork copies hundreds of entries instead of 50,000.

    A forked process that writes to such a page copies 4 KiB of it, as before. Linux before 6.1 refuses, which does no
    harm.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        if access == "rw-p" and (not name or name == ["[heap]"]):
            first, last = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-first // _HUGE_PAGE) * _HUGE_PAGE, last // _HUGE_PAGE * _HUGE_PAGE
            if start < end:
                madvise(start, end - start, _MADV_COLLAPSE)


def _supervise(world_size: int, folder: str, fds: list[int]) -> None:
    """Fork the ranks, report their ends over the control connection, and end every process that is left."""
    os.setsid()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    control = Connection(fds[0])
    pids = []
    for rank, fd in enumerate(fds[1 : 1 + world_size]):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, fd, [*(f for f in fds if f != fd), wake_read, wake_write])
        pids.append(pid)
    for fd in fds[1:]:
        os.close(fd)
    told_to_stop = False
    try:
        control.send(("started", pids))
        told_to_stop = _report_ends(control, wake_read, pids)
    finally:
        _end_descendants()
        if not told_to_stop:  # the kernel has died and cannot remove the folder itself
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _be_rank(rank: int, fd: int, others: list[int]) -> None:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for other in others:
            os.close(other)
        from ranks import rank as rank_module

        rank_module.main(Connection(fd), rank)
    finally:
        os._exit(1)


def _report_ends(control: Connection, wake: int, pids: list[int]) -> bool:
    """Send ("exit", rank, status) for each rank that ends. True if the parent says stop, False if it has died."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in pids:
                    control.send(("exit", pids.index(ended[0]), os.waitstatus_to_exitcode(ended[1])))
        watched: list[Connection | int] = [control, wake]
        readable, _, _ = select.select(watched, [], [])
        if wake in readable:
            os.read(wake, 4096)
        if control in readable:
            try:
                return bool(control.recv() == "stop")
            except (EOFError, OSError):
                return False


def _end_descendants() -> None:
    """Kill every process below this one. On Linux this includes daemons, which a subreaper inherits."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # none left
        time.sleep(0.002)


def _children() -> list[int]:
    """This process's children, from /proc if the system has it, otherwise from ps."""
    me = os.getpid()
    listing = Path(f"/proc/{me}/task/{me}/children")
    if listing.exists():
        return [int(pid) for pid in listing.read_text().split()]
    rows = os.popen("ps -A -o ppid= -o pid=").read().splitlines()
    return [int(row.split()[1]) for row in rows if row.split()[0] == str(me)]


def _prctl(option: int, value: int) -> None:
    """Set a process attribute, on Linux only. On other systems the supervisor still ends its own children."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
