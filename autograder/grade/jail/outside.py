"""Starts the jail, and in it one process for each submission; ends them, whatever they do.

The walls are bubblewrap's and the system's (see `namespace` for what each submission adds): the jail holds nothing of
the course, cannot write to anything outside, and has no network. When a submission's first process ends, all its others
end too.
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
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

from autograder.grade import jail as package
from autograder.grade.jail import DOES_NOT_START, FILES_INSIDE, MISSING, control_groups, own_user, shown_files, wire
from autograder.grade.limits import unbound_memory
from autograder.grade.running import clock
from autograder.grade.running.kernels import NotStartedError
from autograder.lesson import notebook
from ranks.stopwatch import family

HERE = Path(__file__).resolve().parent
#: Variables by which the libraries of linear algebra choose their kernels. A known wrong answer, which runs outside,
#: has to round in float32 as the student's does inside: with other kernels, the fourth digit of a residual differed.
CHOOSES_KERNELS = re.compile("(OPENBLAS|MKL|NVPL|DNNL|ONEDNN|ATEN|NPY|BLIS)_")

#: Why a submission was ended that sent a message which the jail's own code would not send.
UNREADABLE = "the submission sent a reply that cannot be read"


class JailError(NotStartedError):
    """The jail cannot be used on this machine."""


class DiedError(BaseException):
    """The submission's process has ended. A BaseException, so that no check takes it for an answer."""


class TooLongError(BaseException):
    """The time for a cell is up. A BaseException for the same reason."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use. memory: bytes of data of each process. total: bytes of all its processes.

    files, shared: bytes of temporary files, and of shared memory. file: bytes of one file. processes: how many
    at a time, threads included. sessions: how many these may make where no control group shares out the processors: the
    system shares them out between sessions. open_files: of each process. signals: under way, and timers, of all
    processes. The system counts descriptors that are under way between processes, and watches of epoll, for all
    programs of a user together: few open files keep both low.
    """

    memory: int = 4 * 2**30
    total: int = 6 * 2**30
    files: int = 1 * 2**30
    shared: int = 1 * 2**30
    file: int = 512 * 2**20
    processes: int = 400
    sessions: int = 16
    open_files: int = 128
    signals: int = 1000


class Jail:
    """One bubblewrap with a Python that has loaded what notebooks use. Slow to start (seconds), fast to fork from.

    modules: what it loads besides. Closed by `close()`, by the end of this process, or by leaving a `with`.
    """

    def __init__(self, limits: Limits | None = None, modules: Iterable[str] = ()):
        _refuse_to_show(notebook.SOLUTIONS)
        self.limits, self.owner = limits or Limits(), os.getpid()
        self.places, self.links = shown_files.shown()
        ours, theirs = socket.socketpair()
        python = "import gc, sys; gc.disable(); from jail import inside; inside.main(int(sys.argv[1]), sys.argv[2:])"
        shown = [*shown_files.pythons(), *(str(_package(name)) for name in notebook.PACKAGES), str(HERE)]
        users = own_user.Mapping() if own_user.possible(shown) else None
        #: The submissions' user number inside: 0 for that of the jail's own processes, which is this user's outside.
        self.user = own_user.INSIDE if users else 0
        options = users.options() if users else []
        command = [*_bubblewrap(), *self._inside(), *options, sys.executable, "-c", python, str(theirs.fileno())]
        command += sorted(modules)
        self.process: subprocess.Popen[bytes] | None = None
        self.requests = ours
        with theirs, _starting:
            if _ending:
                raise JailError("this process is ending: no jail is started in it")
            self.control_groups = control_groups.ControlGroups(self.limits.processes, self.limits.total)
            _jails.add(self)
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno(), *(users.passed if users else ())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=functools.partial(_begin, self.control_groups),
            )
        if users:
            users.write(self.process.pid)
        self._expect_ready(self.process)

    def _inside(self) -> list[str]:
        """Options of bubblewrap: what is there in the jail."""
        found = shown_files.options(self.places, self.links)
        for name in notebook.PACKAGES:
            found += ["--ro-bind", str(_package(name)), f"/jail/{name}"]
        for name in FILES_INSIDE:
            found += ["--ro-bind", str(HERE / name), f"/jail/jail/{name}"]
        return found

    @property
    def pid(self) -> int:
        """The process number of bubblewrap."""
        assert self.process is not None
        return self.process.pid

    def _expect_ready(self, process: subprocess.Popen[bytes]) -> None:
        self.requests.settimeout(900)  # it imports torch, which takes minutes on a very busy machine
        try:
            wire.receive(self.requests)
        except (EOFError, OSError, wire.WireError):
            process.kill()
            said = process.communicate()[1].decode(errors="replace").strip().splitlines()
            self.close()
            raise JailError(DOES_NOT_START.format(why=said[-1] if said else "it ended without a word")) from None
        # Nobody reads its errors any more, and a full pipe would block the writer.
        threading.Thread(target=shutil.copyfileobj, args=(process.stderr, _Nowhere()), daemon=True).start()

    def start(self, folder: str, files: dict[str, bytes] | None = None) -> Jailed:
        """A fresh process in namespaces of its own, with `files` in its working directory. folder: see `Jailed`."""
        ours, theirs = socket.socketpair()
        environment = {
            "HOME": "/tmp/home", "USER": "student", "LOGNAME": "student", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": "/jail",
            "OMP_NUM_THREADS": "1", "NBGRADER_EXECUTION": "autograde", "MPLCONFIGDIR": "/tmp/home",
            "IPYTHONDIR": "/tmp/home/.ipython",
        }  # fmt: skip
        request: dict[str, Any] = {"what": "start", "limits": asdict(self.limits), "environment": environment}
        links = [link for link in self.links if shown_files.below_tmp([link[1]])]
        request |= {"kept": shown_files.below_tmp(self.places), "links": links, "user": self.user}
        content = wire.encoded(files or {})  # before anything is started: they may be too large
        with theirs, self._whole_or_closed():
            socket.send_fds(self.requests, [b"!"], [theirs.fileno()])
            wire.send(self.requests, request)
            pid = wire.receive(self.requests)["pid"]
        return Jailed(self, ours, pid, folder, content)

    def end(self, pid: int) -> None:
        """End a submission and everything that it started."""
        with contextlib.suppress(OSError, EOFError, wire.WireError), self._whole_or_closed():
            self.requests.sendall(b"!")
            wire.send(self.requests, {"what": "end", "pid": pid})
            wire.receive(self.requests)

    @contextlib.contextmanager
    def _whole_or_closed(self) -> Iterator[None]:
        """Close the jail if a request is broken off: the next one would read this one's reply, or be read as its rest.

        The next submission then gets a new jail (`shared`).
        """
        try:
            yield
        except BaseException:
            self.close()
            raise

    def is_alive(self) -> bool:
        """Does bubblewrap run?"""
        return self.process is not None and self.process.poll() is None

    def close(self) -> None:
        """End everything."""
        self.requests.close()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
        self.control_groups.take_down()
        _jails.discard(self)  # last: `close_all` in another thread must not miss what is not yet over

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Jailed:
    """One submission's process. folder: shares files with it, at the same path on both sides; new and empty outside.

    files: the message with those of its working directory. They go to this process alone: what its jail has once held
    is in the memory of all processes that are forked there later. Nothing that it sends can be trusted. `deadline`:
    when its time is up (`clock.now`).
    """

    def __init__(self, jail: Jail, connection: socket.socket, pid: int, folder: str, files: list[bytes]):
        self.jail, self.connection, self.pid, self.folder = jail, connection, pid, folder
        self.deadline = clock.now() + 60
        self.why_ended = ""
        #: The process of the same submission that has taken the place of this one.
        self.successor: Jailed | None = None
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._keep_limits, daemon=True)
        with contextlib.suppress(OSError):  # it has ended, and may have said why
            for part in files:
                wire.send_all(connection, part, self.left)
        first = self._receive()
        if not (isinstance(first, dict) and first.get("up")):
            why = str(first.get("broken", ""))[-500:] if isinstance(first, dict) else ""
            self.end()
            raise JailError(DOES_NOT_START.format(why=(why.strip().splitlines() or ["it ended without a word"])[-1]))
        self._watch.start()

    def ask(
        self, what: str, on_output: Any = None, classes: dict | None = None, oracles: Sequence = (), **request: Any
    ) -> dict:
        """Send a request and wait for its reply, which is a dict; output that comes meanwhile goes to `on_output`.

        oracles: our functions that it may call meanwhile, by their numbers, with plain data (`stage.Oracle`).
        TooLongError after the deadline, DiedError if the process ends or sends a reply that cannot be read.
        """
        if self.left() <= 0:
            raise TooLongError
        self._send({"what": what, **request})
        while True:
            message = self._receive(classes)
            if not isinstance(message, dict):
                raise DiedError(UNREADABLE)
            if isinstance(message.get("reply"), dict):
                return message["reply"]
            if "asks" in message:
                self._send({"told": _told(oracles, message)})
                continue
            kind, content = message.get("output"), message.get("content")
            if not isinstance(kind, str) or not isinstance(content, dict):
                raise DiedError(UNREADABLE)
            if on_output is not None:
                on_output(kind, content)

    def _send(self, message: dict) -> None:
        try:
            for part in wire.encoded(message):
                wire.send_all(self.connection, part, self.left)
        except TimeoutError:
            raise TooLongError from None
        except OSError:
            raise DiedError(self.why_ended) from None

    def left(self) -> float:
        """Seconds until its time is up."""
        return self.deadline - clock.now()

    def _receive(self, classes: dict | None = None) -> Any:
        try:
            return wire.receive(self.connection, classes, self.left)
        except TimeoutError:
            raise TooLongError from None
        except (EOFError, OSError, wire.WireError):
            raise DiedError(self.why_ended) from None

    def carried(self) -> int | None:
        """Bytes that its own network has carried so far, headers included; None if the system does not say.

        A submission can raise this number, but not lower it.
        """
        with contextlib.suppress(OSError):
            found = re.search(r"^ *lo: *(\d+)", self._network.read_text(), re.MULTILINE)
            return int(found[1]) if found else None
        return None

    @functools.cached_property
    def _network(self) -> Path:
        """The file in which the system counts what its network has carried: that of its first process."""
        for pid in family(self.jail.pid, self.jail.limits.processes + _OWN):
            with contextlib.suppress(OSError):
                found = re.search(r"^NSpid:(.*)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
                if found and found[1].split() == [str(pid), str(self.pid)]:  # its numbers outside and in the jail
                    return Path(f"/proc/{pid}/net/dev")
        return Path(os.devnull)

    @property
    def latest(self) -> Jailed:
        """The process that has taken the place of this one, or this one."""
        return self if self.successor is None else self.successor.latest

    def end(self) -> None:
        """End it and everything that it started. May be called again."""
        if not self._ended.is_set():
            self._ended.set()
            self.connection.close()
            self.jail.end(self.pid)

    def _keep_limits(self) -> None:
        """End it when it uses too much: limits on each process do not bound their sum."""
        limits = self.jail.limits
        while not self._ended.wait(0.2):
            with contextlib.suppress(MemoryError):  # of this process; it must go on watching
                clock.now()  # which wants to be asked a few times a second
                self._look(limits)
            if self.why_ended:
                return

    def _look(self, limits: Limits) -> None:
        """End it if it uses too much now."""
        mine = family(self.jail.pid, limits.processes + 1)
        if len(mine) > limits.processes:
            self.why_ended = "it started too many processes"
        elif (
            "processors" not in self.jail.control_groups.holds
            and len(set(map(_session, mine[_OWN:]))) > limits.sessions
        ):
            self.why_ended = "it started too many sessions (`os.setsid`)"
        # Resident bytes count shared pages once per process: too much, but cheap to read, so they are read first.
        elif sum(map(_resident, mine[_OWN:])) > limits.total and sum(map(_memory, mine[_OWN:])) > limits.total:
            self.why_ended = "it used too much memory"
        if self.why_ended:
            # When its first process ends, the system ends all others at once. A submission can be there twice, each
            # time with two processes that come first in this list. Killed directly, not by a request to the jail:
            # another thread may be in the middle of one.
            for pid in mine[_OWN : _OWN + 4]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

#: bubblewrap, its first process, and the Python that is forked; all later processes are the submission's.
_OWN = 3


_jails: set[Jail] = set()
_shared: dict[frozenset[str], Jail] = {}
#: Held while a jail's control groups and its bubblewrap are made: `close_all` then finds both or neither.
_starting = threading.Lock()
_ending = False


def _told(oracles: Sequence, message: dict) -> dict:
    """What one of our functions answers a submission, whose message can say anything: a value, or an error."""
    try:
        return {"value": oracles[message["asks"]](*message["args"], **message["kwargs"])}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}


def shared(modules: frozenset[str] = frozenset()) -> Jail:
    """The jail of this process that has loaded these modules, started when it is first needed."""
    jail = _shared.get(modules)
    if jail is None or jail.owner != os.getpid() or not jail.is_alive():
        # Like atexit, and also in processes of multiprocessing. First, for a jail that does not come to be.
        util.Finalize(None, close_all, exitpriority=10)
        jail = _shared[modules] = Jail(modules=modules)
    return jail


def close_all() -> None:
    """End the jails of this process, including any that are just starting; no other one is started in it."""
    global _ending
    with _starting:
        _ending = True
    for jail in list(_jails):
        if jail.owner == os.getpid():
            jail.close()


def _bubblewrap() -> list[str]:
    if package.missing():
        raise JailError(MISSING)
    command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--hostname", "localhost"]
    command += ["--die-with-parent", "--new-session", "--clearenv", "--dev", "/dev"]
    # The system's own /proc, which `namespace` covers before anything runs. When root starts bubblewrap, parts of its
    # own /proc are masked, and then a submission could not get a /proc of its own processes.
    command += ["--bind", "/proc", "/proc"]
    command += ["--tmpfs", "/tmp", "--chdir", "/tmp"]
    # `namespace` needs these rights; no submission keeps them.
    for capability in ("SYS_ADMIN", "NET_ADMIN", "SETPCAP", "SYS_RESOURCE", "SETUID", "CHOWN", "KILL"):
        command += ["--cap-add", f"CAP_{capability}"]
    command += ["--setenv", "PYTHONPATH", "/jail", "--setenv", "HOME", "/tmp", "--setenv", "OMP_NUM_THREADS", "1"]
    command += ["--setenv", "PYTHONDONTWRITEBYTECODE", "1", "--setenv", "RANKS_INSIDE", "jail"]
    command += ["--setenv", "IPYTHONDIR", "/tmp/ipython", "--setenv", "MPLCONFIGDIR", "/tmp"]
    for name in filter(CHOOSES_KERNELS.match, sorted(os.environ)):
        command += ["--setenv", name, os.environ[name]]
    return command


def _refuse_to_show(place: Path) -> None:
    try:
        shown_files.refuse(place)
    except ValueError as error:
        raise JailError(str(error)) from None


def _package(name: str) -> Path:
    """The folder of a package that is installed here."""
    found = importlib.util.find_spec(name)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def _begin(mine: control_groups.ControlGroups) -> None:
    """In the process that becomes bubblewrap: its limits are those of the jail, not those of a worker."""
    mine.enter()
    unbound_memory()


def _session(pid: int) -> str:
    """The session of a process; that of all that have ended is one."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[3]
    return ""


def _resident(pid: int) -> int:
    """Bytes of memory in which a process has pages."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _memory(pid: int) -> int:
    """Bytes of memory of a process; shared pages are divided among the processes that share them."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)
