"""`run`: one call that starts N ranks, follows them to their end, and says what happened."""

from __future__ import annotations

import math
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranks import hang, processes, source
from ranks.errors import HangError, RankError
from ranks.ledger import Ledger, read_records

if TYPE_CHECKING:
    from ranks.figure import Figure

#: How often the records of a silent run are looked at, in seconds; two equal looks make it "quiet".
_LOOK_EVERY = 0.15
#: How long other ranks' errors may follow the first, so that the cause is told and not its echo.
_GRACE = 0.25
#: A rank that prints more than this many bytes is ended.
OUTPUT_LIMIT = 16 * 2**20

#: What gloo says in the ranks that lost their peer: an echo of a failure elsewhere.
_ECHO = re.compile(r"Connection (closed by peer|reset by peer|refused)|Broken pipe|recv.*-1|Application timeout")


class Results(list):
    """What the ranks returned, in their order, and what they did on the way.

    ledger: every message (`ranks.ledger.Ledger`). stdout: what each rank printed, a string a rank.
    """

    def __init__(self, values: Iterable[Any], ledger: Ledger, stdout: list[str]):
        super().__init__(values)
        self.ledger, self.stdout = ledger, stdout

    def timeline(self, title: str | None = None, by: str = "time") -> Figure:
        """A figure of the ledger, with one row and one color a rank.

        by: "time" puts every call on an axis in milliseconds, with an arrow for each message, below the stretches
        that the worker marked with `torch.profiler.record_function`; "round" has one column a round of
        point-to-point messages (see `Ledger.rounds`), the same in every run.
        """
        from ranks import timeline  # matplotlib is slow to import

        if by not in ("time", "round"):
            raise ValueError(f'by must be "time" or "round", got {by!r}')
        draw = timeline.draw if by == "time" else timeline.draw_rounds
        return draw(self.ledger, world_size=len(self), **({} if title is None else {"title": title}))


def run(
    worker: Callable,
    world_size: int = 4,
    args: tuple = (),
    timeout: float = 60.0,
    *,
    seed: int = 0,
    echo: bool = True,
) -> Results:
    """Call `worker(rank, world_size, *args)` in each of `world_size` processes; return what they returned.

    The processes form a gloo process group on this machine, so everything in `torch.distributed` works in
    them. The worker may be defined in a notebook cell. Rank r's random numbers are seeded with seed + r.

    timeout: seconds for the whole run. echo: print what the ranks print, each line with its rank.
    Raises RankError when a rank raises or dies, HangError when the ranks wait for one another or time is
    up, ValueError for arguments that cannot work. When it returns or raises, no process and no file is left.
    """
    __tracebackhide__ = True  # what the reader of an error wants to see is the cell
    _check(worker, world_size, args, timeout)
    payload = _pack(worker, args)
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    started = None
    try:
        started = processes.start(world_size, str(folder))
        job = {
            "payload": payload,
            "world_size": world_size,
            "folder": str(folder),
            "timeout": timeout,
            "seed": seed,
            "cwd": os.getcwd(),
            "sys_path": list(sys.path),
            "environment": {**os.environ, "RANKS_INSIDE": "rank", "OMP_NUM_THREADS": "1"},
        }
        return _Run(started, job, echo).follow()
    finally:
        if started is not None:
            started.end()
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One run from its first job to its last answer."""

    def __init__(self, started: Any, job: dict, echo: bool):
        self.ranks, self.job, self.echo = started, job, echo
        self.world_size, self.folder = job["world_size"], Path(job["folder"])
        self.answers: dict[int, tuple] = {}
        self.output = [_Output(self.folder / f"output.{rank}", rank, echo) for rank in range(self.world_size)]
        self.deadline = time.monotonic() + job["timeout"]
        self._progress_before: tuple | None = None
        self._examined: tuple | None = None
        self._next_look = time.monotonic() + _LOOK_EVERY

    def follow(self) -> Results:
        """Hand out the job, wait for every rank, and return or raise."""
        __tracebackhide__ = True
        for connection in self.ranks.connections:
            try:
                connection.send(self.job)
            except OSError:  # it died at birth; its exit status will say how
                continue
        while len(self.answers) < self.world_size:
            self._wait_for_news()
            self._raise_for_failures()
            if len(self.answers) < self.world_size:
                self._raise_for_hangs()
        values = [pickle.loads(self.answers[rank][1]) for rank in range(self.world_size)]
        self._release()
        records = self._records()
        messages = sorted((m for record in records for m in record.messages), key=lambda m: (m.start, m.rank))
        spans = sorted((s for record in records for s in record.spans), key=lambda s: (s.start, s.rank))
        ledger = Ledger(messages, self.world_size, spans)
        return Results(values, ledger, [output.text() for output in self.output])

    def _release(self) -> None:
        """Everybody has answered: let the ranks end."""
        for connection in self.ranks.connections:
            try:
                connection.send("done")
            except OSError:
                continue

    def _wait_for_news(self) -> None:
        open_ranks = {
            self.ranks.connections[rank]: rank
            for rank in range(self.world_size)
            if rank not in self.answers and rank not in self.ranks.exits
        }
        sleep = max(0.0, min(self._next_look, self.deadline) - time.monotonic())
        ready = wait([*open_ranks, *self.ranks.events], timeout=sleep)
        for connection, rank in open_ranks.items():
            if connection in ready:
                try:
                    self.answers[rank] = connection.recv()
                except (EOFError, OSError):
                    connection.close()
                    self._await_exit(rank)
        self.ranks.collect_exits()
        for output in self.output:
            output.read()

    def _await_exit(self, rank: int) -> None:
        """A rank's connection has closed: its exit status follows at once."""
        until = time.monotonic() + 2
        while rank not in self.ranks.exits and time.monotonic() < until:
            wait(self.ranks.events, timeout=0.05)
            self.ranks.collect_exits()
        self.ranks.exits.setdefault(rank, -signal.SIGKILL)

    def _raise_for_failures(self) -> None:
        """If a rank has failed: wait a moment for the others, then blame the one that failed by itself."""
        __tracebackhide__ = True
        if not self._failures():
            return
        until = time.monotonic() + _GRACE
        while time.monotonic() < until and len(self.answers) + len(self.ranks.exits) < self.world_size:
            self._next_look = until
            self._wait_for_news()
        for output in self.output:
            output.read()
        rank, (_, type_name, reason, chain) = min(self._failures().items(), key=self._blame)
        raise RankError(rank, type_name, reason, source.stack_text(chain), source.where(chain))

    def _failures(self) -> dict[int, tuple]:
        failures = {rank: answer for rank, answer in self.answers.items() if answer[0] == "error"}
        for rank, status in self.ranks.exits.items():
            if rank not in self.answers:
                failures[rank] = ("error", "", self._how_it_died(status), [])
        for output in self.output:
            if output.over:
                failures[output.rank] = ("error", "", f"printed more than {OUTPUT_LIMIT >> 20} MiB", [])
        return failures

    def _blame(self, item: tuple[int, tuple]) -> tuple:
        """Sort key: a cause before its echoes. A death counts as a cause, a lost connection as an echo."""
        rank, (_, type_name, reason, _chain) = item
        return (bool(type_name and _ECHO.search(reason)), bool(type_name), rank)

    def _how_it_died(self, status: int) -> str:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        records = self._records()
        if too_long := hang.oversized(records):
            return f"{how}: {too_long}; make both the same size"
        if apart := hang.mismatched(records):
            return f"{how}: {apart}"
        return f"{how} without finishing the worker"

    def _raise_for_hangs(self) -> None:
        __tracebackhide__ = True
        now = time.monotonic()
        if now >= self.deadline:
            self._raise_hang(f"the ranks did not finish within {self.job['timeout']:g} s", kind="timeout")
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY
        progress = self._progress()
        if progress == self._progress_before and progress != self._examined:
            self._examined = progress
            stuck = hang.stuck(self._records(), set(self.answers))
            if stuck and progress == self._progress():  # nothing has moved while the records were read
                self._raise_hang(hang.headline(sorted(stuck), self.world_size), kind="stuck")
        self._progress_before = progress

    def _progress(self) -> tuple:
        """Changes whenever a rank writes to its record or delivers its answer."""
        sizes = tuple(_size(self.folder / f"events.{rank}") for rank in range(self.world_size))
        return sizes, tuple(sorted(self.answers))

    def _raise_hang(self, headline: str, kind: str) -> None:
        __tracebackhide__ = True
        records = self._records()
        states = dict.fromkeys(self.answers, "has returned")
        computing = [r for r in range(self.world_size) if r not in states and records[r].waiting is None]
        states |= self._where_they_compute(computing) if computing else {}
        waits = [hang.describe_wait(records, rank, states) for rank in range(self.world_size)]
        parted = hang.parted(records, states)
        raise HangError(headline, waits, parted, (kind, hang.shape_of(records, states)))

    def _where_they_compute(self, ranks: list[int]) -> dict[int, str]:
        """Ask the ranks that are in no call for their stack: `faulthandler` prints it even from C++."""
        result = dict.fromkeys(ranks, "is computing")
        self.ranks.collect_exits()
        if not hasattr(signal, "SIGUSR1") or not self.ranks.pids:
            return result
        for rank in ranks:
            if rank not in self.ranks.exits:
                os.kill(self.ranks.pids[rank], signal.SIGUSR1)
        until = time.monotonic() + 0.5
        while time.monotonic() < until and not all(_size(self.folder / f"stack.{r}") for r in ranks):
            time.sleep(0.01)
        for rank in ranks:
            if found := _innermost_own_frame(self.folder / f"stack.{rank}"):
                result[rank] = f"is computing at {source.place(*found)}"
        return result

    def _records(self) -> list:
        return read_records(self.folder, self.world_size)


class _Output:
    """What one rank prints, read from its file as it grows."""

    def __init__(self, path: Path, rank: int, echo: bool):
        self.path, self.rank, self.echo = path, rank, echo
        self._data, self._printed = b"", 0

    @property
    def over(self) -> bool:
        """Has it printed too much?"""
        return len(self._data) > OUTPUT_LIMIT

    def read(self) -> None:
        """Take in what is new, and print the lines that are whole."""
        if self.over or not _size(self.path) > len(self._data):
            return
        with self.path.open("rb") as file:
            file.seek(len(self._data))
            self._data += file.read(OUTPUT_LIMIT + 1 - len(self._data))
        end = self._data.rfind(b"\n") + 1
        if self.echo and end > self._printed:
            lines = self._data[self._printed : end].decode(errors="replace").splitlines()
            print("\n".join(f"[rank {self.rank}] {line}" for line in lines), flush=True)
            self._printed = end

    def text(self) -> str:
        """All of it; a last line without its newline is printed now."""
        self.read()
        if self.echo and self._printed < len(self._data):
            print(f"[rank {self.rank}] {self._data[self._printed :].decode(errors='replace')}", flush=True)
            self._printed = len(self._data)
        return self._data.decode(errors="replace")


def _check(worker: Any, world_size: Any, args: Any, timeout: Any) -> None:
    __tracebackhide__ = True
    if not callable(worker):
        raise ValueError(f"worker must be a function worker(rank, world_size, *args), got {worker!r}")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size must be a whole number of ranks, at least 1, got {world_size!r}")
    if world_size > processes.MAX_WORLD_SIZE:
        raise ValueError(f"world_size must be at most {processes.MAX_WORLD_SIZE} on one machine, got {world_size}")
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"args must be a tuple, got {type(args).__name__}: write args=(x,) for one argument")
    if not timeout > 0 or math.isinf(timeout):
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
    if "RANKS_INSIDE" in os.environ:
        raise ValueError("ranks.run was called inside a rank: start runs from the notebook only")


def _pack(worker: Callable, args: Iterable) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((worker, tuple(args)))
    except Exception as error:
        raise ValueError(
            f"the worker or its args cannot be sent to the ranks ({error}); "
            "pass plain data and open files, locks and generators inside the worker"
        ) from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _innermost_own_frame(path: Path) -> tuple[str, int] | None:
    """From a faulthandler dump: the innermost frame that is neither torch's nor ours."""
    if not path.exists():
        return None
    for file, line in re.findall(r'File "(.*)", line (\d+) in', path.read_text(errors="replace")):
        if not source.foreign(file):
            return file, int(line)
    return None
