"""Starts the jail, and in it one process for each submission; ends them, whatever they do.

The walls are bubblewrap's and the system's (see `namespace` for what each submission adds): nothing of the
course is in there, nothing outside can be written, there is no network, and what is left of a submission ends
when its first process does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

from autograder.grading import jail as package
from autograder.grading.jail import MISSING, wire

HERE = Path(__file__).resolve().parent


class JailError(RuntimeError):
    """The jail cannot be used here."""


class DiedError(BaseException):
    """The submission's process has ended. A BaseException: no check may take it for an answer."""


class TooLongError(BaseException):
    """The time for a cell is up. A BaseException for the same reason."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use. memory: bytes of data of each process. total: bytes of all of them together.

    files, shared: bytes of temporary files, and of shared memory. file: bytes of one file. processes: how many
    at a time, threads included.
    """

    memory: int = 4 * 2**30
    total: int = 6 * 2**30
    files: int = 1 * 2**30
    shared: int = 1 * 2**30
    file: int = 512 * 2**20
    processes: int = 400


class Jail:
    """One bubblewrap with a Python that has loaded what notebooks use. Slow to start (seconds), fast to fork from.

    Closed by `close()`, by the end of this process, or by leaving a `with`.
    """

    def __init__(self, limits: Limits | None = None):
        self.limits, self.owner = limits or Limits(), os.getpid()
        ours, theirs = socket.socketpair()
        python = "import sys; from jail import inside; inside.main(int(sys.argv[1]))"
        command = [*_bubblewrap(), sys.executable, "-c", python, str(theirs.fileno())]
        self.fence = _fence(self.limits.processes)
        self.process, self.requests = None, ours
        _jails.add(self)
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=(lambda: (self.fence / "cgroup.procs").write_text("0")) if self.fence else None,
        )
        theirs.close()
        self._expect_ready()

    def _expect_ready(self) -> None:
        self.requests.settimeout(120)
        try:
            wire.receive(self.requests)
        except (EOFError, OSError, wire.WireError):
            self.process.kill()
            said = self.process.communicate()[1].decode(errors="replace").strip().splitlines()
            self.close()
            raise JailError(f"{MISSING} ({said[-1] if said else 'it did not start'})") from None
        # Nobody reads it any more, and a full pipe would stop who writes.
        threading.Thread(target=shutil.copyfileobj, args=(self.process.stderr, _Nowhere()), daemon=True).start()

    def start(self, folder: str, files: dict[str, bytes] | None = None) -> Inmate:
        """A fresh process in namespaces of its own; `files` lie beside the notebook. folder: see `Inmate`."""
        ours, theirs = socket.socketpair()
        environment = {
            "HOME": "/tmp/home", "USER": "student", "LOGNAME": "student", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": "/jail",
            "OMP_NUM_THREADS": "1", "NBGRADER_EXECUTION": "autograde", "MPLCONFIGDIR": "/tmp/home",
            "IPYTHONDIR": "/tmp/home/.ipython",
        }  # fmt: skip
        request = {"what": "start", "limits": asdict(self.limits), "environment": environment, "files": files or {}}
        request["kept"] = _below_tmp()
        with theirs:
            socket.send_fds(self.requests, [b"!"], [theirs.fileno()])
            wire.send(self.requests, request)
            pid = wire.receive(self.requests)["pid"]
        return Inmate(self, ours, pid, folder)

    def end(self, pid: int) -> None:
        """End a submission and everything that it started."""
        with contextlib.suppress(OSError, EOFError):
            self.requests.sendall(b"!")
            wire.send(self.requests, {"what": "end", "pid": pid})
            wire.receive(self.requests)

    def close(self) -> None:
        """End everything."""
        _jails.discard(self)
        self.requests.close()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
        if self.fence:
            _take_down(self.fence)

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Inmate:
    """One submission's process. folder: where files cross, at the same path on both sides; new and empty here.

    Everything that it says is data from a stranger. `deadline`: when its time is up (`time.monotonic`).
    """

    def __init__(self, jail: Jail, connection: socket.socket, pid: int, folder: str):
        self.jail, self.connection, self.pid, self.folder = jail, connection, pid, folder
        self.deadline = time.monotonic() + 60
        self.why_ended = ""
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._keep_limits, daemon=True)
        first = self._receive()
        if not (isinstance(first, dict) and first.get("up")):
            why = str(first.get("broken", ""))[-500:] if isinstance(first, dict) else ""
            self.end()
            raise JailError(f"{MISSING} ({(why.strip().splitlines() or ['it did not start'])[-1]})")
        self._watch.start()

    def ask(self, what: str, on_output: Any = None, classes: dict | None = None, **request: Any) -> dict:
        """Send a request and wait for its reply, which is a dict; what is printed meanwhile goes to `on_output`.

        TooLongError behind the deadline, DiedError when the process ends or says what makes no sense.
        """
        if time.monotonic() > self.deadline:
            raise TooLongError
        try:
            self.connection.settimeout(max(0.01, self.deadline - time.monotonic()))
            wire.send(self.connection, {"what": what, **request})
        except TimeoutError:
            raise TooLongError from None
        except OSError:
            raise DiedError(self.why_ended) from None
        while True:
            message = self._receive(classes)
            if isinstance(message, dict) and isinstance(message.get("reply"), dict):
                return message["reply"]
            if not isinstance(message, dict) or not isinstance(message.get("content"), dict):
                raise DiedError("it said what makes no sense")
            if on_output is not None:
                on_output(str(message.get("output")), message["content"])

    def _receive(self, classes: dict | None = None) -> Any:
        try:
            return wire.receive(self.connection, classes, self.deadline)
        except TimeoutError:
            raise TooLongError from None
        except (EOFError, OSError, wire.WireError):
            raise DiedError(self.why_ended) from None

    def carried(self) -> int | None:
        """Bytes that its own network has carried so far, headers included; None where the system does not say.

        What happens in there can add to this number, and nothing in there can take from it.
        """
        with contextlib.suppress(OSError, TypeError):
            return int(re.search(r"^ *lo: *(\d+)", self._network.read_text(), re.MULTILINE)[1])
        return None

    @functools.cached_property
    def _network(self) -> Path:
        """Where the system tells what its network has carried: at its first process, found by its number there."""
        for pid in _descendants(self.jail.process.pid, self.jail.limits.processes + _OWN):
            with contextlib.suppress(OSError, TypeError):
                numbers = re.search(r"^NSpid:(.*)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1].split()
                if numbers == [str(pid), str(self.pid)]:  # as seen from here, and in the jail
                    return Path(f"/proc/{pid}/net/dev")
        return Path(os.devnull)

    def end(self) -> None:
        """End it and everything that it started. May be called again."""
        if not self._ended.is_set():
            self._ended.set()
            self.connection.close()
            self.jail.end(self.pid)

    def _keep_limits(self) -> None:
        """End it when it uses too much: limits for each process alone do not bound their sum."""
        limits = self.jail.limits
        while not self._ended.wait(0.2):
            mine = _descendants(self.jail.process.pid, limits.processes + 1)
            if len(mine) > limits.processes:
                self.why_ended = "it started too many processes"
            # What is shared counts for each process here, which is too much but cheap to find out.
            elif sum(map(_resident, mine[_OWN:])) > limits.total and sum(map(_memory, mine[_OWN:])) > limits.total:
                self.why_ended = "it used too much memory"
            if self.why_ended:
                # With its first process the system ends all others, at once; a submission can be there twice, each with
                # two processes that come before all others here. Not by request: another thread asks.
                for pid in mine[_OWN : _OWN + 4]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

#: bubblewrap, its first process, and the Python that is forked: what comes behind them is the submission's.
_OWN = 3


_jails: set[Jail] = set()
_shared: Jail | None = None


def shared() -> Jail:
    """The jail of this process, started when it is first needed."""
    global _shared
    if _shared is None or _shared.owner != os.getpid() or _shared.process.poll() is not None:
        _shared = Jail()
        util.Finalize(None, close_all, exitpriority=10)  # as atexit, and in processes of multiprocessing's, too
    return _shared


def close_all() -> None:
    """End the jails of this process, those too that are just starting."""
    for jail in list(_jails):
        if jail.owner == os.getpid():
            jail.close()


def _bubblewrap() -> list[str]:
    if package.missing():
        raise JailError(MISSING)
    command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--hostname", "localhost"]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--dev", "/dev"]
    # The system's own /proc, covered before anything runs (`namespace`). With bubblewrap's, parts of which are masked
    # when root starts it, a submission could not be given a /proc of its own processes.
    command += ["--bind", "/proc", "/proc"]
    command += ["--tmpfs", "/tmp", "--chdir", "/tmp"]
    # What `namespace` needs; no submission keeps them.
    for capability in ("SYS_ADMIN", "NET_ADMIN", "SETPCAP", "SYS_RESOURCE"):
        command += ["--cap-add", f"CAP_{capability}"]
    for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(folder):
            command += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            command += ["--ro-bind", folder, folder]
    for name in ("ld.so.cache", "fonts", "localtime", "hosts", "nsswitch.conf", "mime.types"):
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for folder in _pythons():
        command += ["--ro-bind", folder, folder]
    for number, folder in enumerate(_below_tmp()):
        command += ["--ro-bind", folder, f"/jail/kept/{number}"]
    for own in _own_packages():
        command += ["--tmpfs", own]
    ranks = Path(importlib.util.find_spec("ranks").origin).parent
    command += ["--ro-bind", str(ranks), "/jail/ranks"]
    for name in ("__init__.py", "wire.py", "namespace.py", "inside.py"):
        command += ["--ro-bind", str(HERE / name), f"/jail/jail/{name}"]
    command += ["--setenv", "PYTHONPATH", "/jail", "--setenv", "HOME", "/tmp", "--setenv", "OMP_NUM_THREADS", "1"]
    command += ["--setenv", "PYTHONDONTWRITEBYTECODE", "1", "--setenv", "RANKS_INSIDE", "jail"]
    command += ["--setenv", "IPYTHONDIR", "/tmp/ipython", "--setenv", "MPLCONFIGDIR", "/tmp"]
    return command


def _pythons() -> list[str]:
    """Where this Python and its environment are, unless that is in /usr."""
    return [folder for folder in dict.fromkeys([sys.base_prefix, sys.prefix]) if not f"{folder}/".startswith("/usr/")]


def _below_tmp() -> list[str]:
    """Those of them that each submission's own /tmp would hide."""
    return [folder for folder in _pythons() if folder.startswith("/tmp/")]


def _own_packages() -> list[str]:
    """Where this package is installed inside the environment that the jail sees, if it is: answers lie there."""
    library = Path(sysconfig.get_paths()["purelib"])
    return [str(library / name) for name in ("autograder", "solutions") if (library / name).is_dir()]


def _fence(processes: int) -> Path | None:
    """A control group that bounds how many processes there are, where this user may make one.

    The system does not count root's processes against their limit, so that of `namespace` does not hold for root.
    """
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = root / f"autograder-{os.getpid()}-{time.monotonic_ns()}"
        if not (root / "cgroup.procs").exists():
            continue
        _sweep(root)
        try:
            group.mkdir()
            (group / "pids.max").write_text(str(processes))
            return group
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
    return None


def _sweep(root: Path) -> None:
    """Remove the control groups that were left by processes that have been killed; the system keeps those in use."""
    for group in root.glob("autograder-*"):
        if not os.path.exists(f"/proc/{group.name.split('-')[1]}"):
            with contextlib.suppress(OSError):
                group.rmdir()


def _take_down(group: Path) -> None:
    """Remove a control group as soon as the system has buried who was in it."""
    until = time.monotonic() + 10
    while group.exists() and time.monotonic() < until:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)


def _descendants(pid: int, most: int = 5000) -> list[int]:
    """A process and those below it, parents first; no more than `most`."""
    found, todo = [], [pid]
    while todo and len(found) < most:
        pid = todo.pop(0)
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                todo += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _memory(pid: int) -> int:
    """Bytes of a process, shared ones divided among those who share them."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)
