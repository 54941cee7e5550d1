"""`run`: start N ranks, follow them to their end, and return their results or explain what went wrong."""

from __future__ import annotations

import contextlib
import numbers
import operator
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ranks import hang, processes, progress, sending, source
from ranks.errors import HangError, RankError
from ranks.ledger import Ledger, Record, ledger_of, read_records
from ranks.stopwatch import Stopwatch, all_sleep

if TYPE_CHECKING:
    from ranks.figure import Figure

#: Seconds between two looks at the ranks' records. If nothing has changed between them, the run is searched for a hang.
_LOOK_EVERY = 0.15
#: Seconds to wait for other ranks' errors after the first one, so that the cause is reported and not its consequence.
_GRACE = 0.25
#: Seconds of their own that ranks whose collectives differ get before they count as stuck: gloo may be ending one.
_DEATH = 1.0
#: Seconds that a new fork server may take, on a very busy machine, until it has imported torch and forked the ranks.
_START = 900.0
#: The longest timeout in seconds: 11 days.
LONGEST = 1_000_000
#: A rank that prints more than this many bytes is ended.
OUTPUT_LIMIT = 16 * 2**20

#: Seconds without a new record, and looks that found every thread of the ranks asleep, after which they are searched
#: for a hang that the records alone do not prove.
_STILL, _ASLEEP = 3.0, 3
#: The files of torch in which a rank waits for others; backward() is in `graph.py`, DTensor's calls in `_ops.py`.
_WAITS = re.compile(r"[/\\]torch[/\\](distributed[/\\](?!checkpoint|elastic)|nn[/\\]parallel|autograd[/\\]graph|_ops)")

#: What gloo says on the ranks that lost their peer: the consequence of a failure on another rank.
_ECHO = re.compile(r"Connection (closed by peer|reset by peer|refused)|Broken pipe|recv.*-1|Application timeout")

#: What the gloo of PyTorch 2.8 prints for each new group; nobody's worker has written it.
_GREETING = re.compile(r"^\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. Expected number .*\n?", re.MULTILINE)


class Results(list[Any]):
    """What the ranks returned: entry r is rank r's value.

    ledger: every message of the run (`Ledger`). stdout: what rank r printed, to stderr too, is entry r.
    """

    def __init__(self, values: Iterable[Any], ledger: Ledger, stdout: list[str]):
        super().__init__(values)
        self.ledger, self.stdout = ledger, stdout

    def timeline(self, title: str | None = None, by: str = "time") -> Figure:
        """A figure of the ledger, with one row and one color a rank.

        by: "time" draws every call on an axis in milliseconds, with an arrow for each message and, above the calls,
        the stretches that the worker marked with `torch.profiler.record_function`. "round" draws only the
        point-to-point messages, in one column a round (see `Ledger.rounds`); it is the same in every run.
        """
        from ranks import timeline  # matplotlib is slow to import

        if by not in ("time", "round"):
            raise ValueError(f'by must be "time" or "round", got {by!r}')
        more = {} if title is None else {"title": title}
        if by == "round":
            return timeline.draw_rounds(self.ledger, len(self), **more)
        return timeline.draw(self.ledger, len(self), **more)


def run(
    worker: Callable[..., Any],
    world_size: int = 4,
    args: tuple[Any, ...] | list[Any] = (),
    timeout: float = 60.0,
    *,
    seed: int = 0,
    echo: bool = True,
) -> Results:
    """Call `worker(rank, world_size, *args)` in each of `world_size` new processes; return what they returned.

    The processes form a gloo process group on this machine, so `torch.distributed` works in them. The worker may be
    defined in a notebook cell. On rank r the random numbers of torch, numpy and Python are seeded with seed + r.

    world_size: from 1 to 128. timeout: seconds for the run, once its processes have started; on a busy machine, those
    in which other programs keep the ranks from computing are not counted (`Stopwatch`). echo: print what the ranks
    print, each line with its rank. Raises RankError if a rank raises or dies, HangError if ranks wait forever or time
    is up, ValueError for arguments that cannot work. When it returns or raises, every process has ended and no
    temporary file is left.
    """
    __tracebackhide__ = True  # a traceback ends at the caller's cell
    world_size, timeout, seed = _check(worker, world_size, args, timeout, seed)
    payload, cwd = _pack(worker, args), _working_folder()
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
            "cwd": cwd,
            "sys_path": list(sys.path),
            "environment": {**os.environ, "RANKS_INSIDE": "rank", "OMP_NUM_THREADS": "1"},
        }
        following = _Run(started, job, echo)
        with progress.doing(following.so_far):
            return following.follow()
    finally:
        if started is not None:
            started.end()
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One run, from handing out the job to the last answer."""

    def __init__(self, started: processes.ForkedRanks | processes.SpawnedRanks, job: dict[str, Any], echo: bool):
        self.ranks, self.job, self.echo = started, job, echo
        self.world_size, self.folder = job["world_size"], Path(job["folder"])
        self.answers: dict[int, tuple[Any, ...]] = {}
        self.output = [_Output(self.folder / f"output.{rank}", rank, echo) for rank in range(self.world_size)]
        self.stopwatch = Stopwatch(lambda: self.ranks.pids)
        self._still_since, self._asleep, self._patience = time.monotonic(), 0, _STILL
        self.began = time.monotonic()
        self._progress_before: tuple[Any, ...] | None = None
        self._examined: tuple[Any, ...] | None = None
        self._next_look = time.monotonic() + _LOOK_EVERY

    def follow(self) -> Results:
        """Hand out the job, wait for every rank, and return or raise."""
        __tracebackhide__ = True
        for connection in self.ranks.connections:
            try:
                connection.send(self.job)
            except OSError:  # it has already died; its exit status will say how
                continue
        self._await_start()
        while len(self.answers) < self.world_size:
            self._wait_for_news()
            self._raise_for_failures()
            if len(self.answers) < self.world_size:
                self._raise_for_hangs()
        values = [pickle.loads(self.answers[rank][1]) for rank in range(self.world_size)]
        self._release()
        records = self._records()
        for remark in hang.remarks(records):
            warnings.warn(remark, RuntimeWarning, stacklevel=3)
        return Results(values, ledger_of(records), [output.text() for output in self.output])

    def so_far(self) -> str:
        """How far the run is, in a few words."""
        return f"{len(self.answers)} of {self.world_size} ranks finished"

    def _await_start(self) -> None:
        """Wait until the ranks have been forked: the run's time begins then, not while a new server imports torch."""
        until = time.monotonic() + _START
        while not self.ranks.pids and self.ranks.events and (left := until - time.monotonic()) > 0:
            wait(self.ranks.events, timeout=left)
            self.ranks.collect_exits()
        self.stopwatch = Stopwatch(lambda: self.ranks.pids)
        self.began = time.monotonic()
        self._next_look = self.began + _LOOK_EVERY

    def _release(self) -> None:
        """Every rank has answered: let them end."""
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
        sleep = max(0.0, self._next_look - time.monotonic())
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
        """A rank's connection has closed: wait for its exit status, which follows at once."""
        until = time.monotonic() + 60
        while rank not in self.ranks.exits and time.monotonic() < until:
            wait(self.ranks.events, timeout=0.05)
            self.ranks.collect_exits()
        self.ranks.exits.setdefault(rank, processes.KILLED)

    def _raise_for_failures(self) -> None:
        """If a rank has failed: wait a moment for the others, then raise the error of the rank that caused the rest."""
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
        if type_name and _ECHO.search(reason):
            reason += self._who_left()
        error = RankError(rank, type_name, reason, source.stack_text(chain), source.where(chain))
        error.evidence = ("rank failed", rank, type_name, self._failures(places=False)[rank][2])
        raise error

    def _failures(self, places: bool = True) -> dict[int, tuple[Any, ...]]:
        """("error", class of the exception or "", reason, chain of exceptions) for each rank that has failed.

        places: say the lines of code in what a rank did before it died.
        """
        failures = {rank: answer for rank, answer in self.answers.items() if answer[0] == "error"}
        for rank, status in self.ranks.exits.items():
            if rank not in self.answers:
                failures[rank] = ("error", "", self._how_it_died(status, places), [])
        for output in self.output:
            if output.over:
                failures[output.rank] = ("error", "", f"printed more than {OUTPUT_LIMIT >> 20} MiB", [])
        return failures

    def _who_left(self) -> str:
        """What ended the connections, if it was a rank that ended its group."""
        left = {rank: record.left for rank, record in enumerate(self._records()) if record.left}
        return "".join(
            f"\nrank {rank} had ended its group: it called destroy_process_group() at {source.place(*place)}"
            for rank, place in left.items()
        )

    def _blame(self, item: tuple[int, tuple[Any, ...]]) -> tuple[bool, bool, int]:
        """Sort key: the cause comes first. A death counts as a cause, a lost connection as a consequence."""
        rank, (_, type_name, reason, _chain) = item
        return (bool(type_name and _ECHO.search(reason)), bool(type_name), rank)

    def _how_it_died(self, status: int, places: bool) -> str:
        how = f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"
        records = self._records()
        if too_long := hang.oversized(records, places):
            return f"{how}: {too_long}; make both the same size"
        if apart := hang.mismatched(records, places):
            return f"{how}: {apart}"
        return f"{how} without finishing the worker"

    def _raise_for_hangs(self) -> None:
        __tracebackhide__ = True
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY
        if self.stopwatch.seconds() >= self.job["timeout"]:
            self._raise_hang(f"the ranks did not finish within {self._limit()}", kind="timeout")
        progress = self._progress()
        if progress == self._progress_before and progress != self._examined:
            self._examined = progress
            stuck = hang.stuck(self._records(), set(self.answers))
            if stuck and progress == self._progress():  # nothing has moved while the records were read
                if any(waits.mismatch for waits in stuck.values()):
                    self._raise_for_deaths()
                self._raise_hang(hang.headline(sorted(stuck), self.world_size), kind="stuck")
        left = [rank for rank in range(self.world_size) if rank not in self.answers]
        if progress != self._progress_before:
            self._still_since, self._asleep, self._patience = now, 0, _STILL
        elif self.ranks.pids:
            self._asleep += all_sleep(self.ranks.pids[rank] for rank in left)
        if now - self._still_since >= self._patience:
            self._raise_if_stuck_in_torch(left)
            self._asleep, self._patience = 0, 2 * self._patience  # asking for stacks interrupts the ranks
        self._progress_before = progress

    def _raise_for_deaths(self) -> None:
        """Raise if a rank fails within `_DEATH` seconds: a thread of gloo that ends the process records nothing."""
        __tracebackhide__ = True
        had = Stopwatch(lambda: self.ranks.pids)
        while had.seconds() < _DEATH and not self._failures():
            self._next_look = time.monotonic() + 0.05
            self._wait_for_news()
        self._raise_for_failures()

    def _raise_if_stuck_in_torch(self, left: list[int]) -> None:
        """Raise if each of the ranks `left`, which have not returned, is in a call of torch's that waits for others.

        Nothing has moved for some time, and no thread has work left, or one tries without end to take a message for
        which nobody waits. The records alone prove nothing of such a message, nor of those that torch sends by itself.
        """
        __tracebackhide__ = True
        records = self._records()
        if any(records[rank].threaded or records[rank].beside for rank in left):
            return
        if self._asleep < _ASLEEP and not hang.dropped(records, dict.fromkeys(self.answers, "")):
            return
        computing = [rank for rank in left if records[rank].waiting is None]
        if all((self.folder / f"events.{rank}").exists() for rank in left):  # from then on they answer signals
            states = self._where_they_compute(computing) if computing else {}
            if all(state.startswith(hang.IN_TORCH) for state in states.values()):
                self._raise_hang(hang.headline(left, self.world_size), kind="stuck", states=states)

    def _limit(self) -> str:
        """The limit of time, and how long that was on a busy machine."""
        limit, passed = self.job["timeout"], time.monotonic() - self.began
        busy = f" of their own time ({passed:.0f} s by the clock, since the machine is busy)"
        return f"{limit:g} s" + (busy if passed > 2 * limit + 1 else "")

    def _progress(self) -> tuple[Any, ...]:
        """A value that changes whenever a rank writes to its record or delivers its answer."""
        sizes = tuple(_size(self.folder / f"events.{rank}") for rank in range(self.world_size))
        return sizes, tuple(sorted(self.answers))

    def _raise_hang(self, headline: str, kind: str, states: dict[int, str] | None = None) -> None:
        """states: what the ranks that are in no call are doing, if that is known."""
        __tracebackhide__ = True
        records = self._records()
        states = {**dict.fromkeys(self.answers, "has returned"), **(states or {})}
        computing = [r for r in range(self.world_size) if r not in states and records[r].waiting is None]
        states |= self._where_they_compute(computing) if computing else {}
        waits = [hang.describe_wait(records, rank, states) for rank in range(self.world_size)]
        parted = hang.parted(records, states)
        raise HangError(headline, waits, parted, (kind, hang.shape_of(records, states)), ledger_of(records))

    def _where_they_compute(self, ranks: list[int]) -> dict[int, str]:
        """Ask the ranks that are in no call for their stacks, which `faulthandler` prints even inside C++."""
        result = dict.fromkeys(ranks, "is computing")
        self.ranks.collect_exits()
        if not hasattr(signal, "SIGUSR1") or not self.ranks.pids:
            return result
        before = {rank: _size(self.folder / f"stack.{rank}") for rank in ranks}
        for rank in ranks:
            if rank not in self.ranks.exits:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(self.ranks.pids[rank], signal.SIGUSR1)
        had = Stopwatch(lambda: self.ranks.pids)
        while had.seconds() < 0.5 and not all(_size(self.folder / f"stack.{r}") > before[r] for r in ranks):
            time.sleep(0.01)
        for rank in ranks:
            frames = _frames(self.folder / f"stack.{rank}", before[rank])
            own = next(((file, line) for file, line in frames if not source.foreign(file)), None)
            if own:
                waits = _WAITS.search(frames[0][0]) and all_sleep([self.ranks.pids[rank]])
                result[rank] = f"{hang.IN_TORCH if waits else 'is computing'} at {source.place(*own)}"
        return result

    def _records(self) -> list[Record]:
        return read_records(self.folder, self.world_size)


class _Output:
    """What one rank prints, read from its file as it grows."""

    def __init__(self, path: Path, rank: int, echo: bool):
        self.path, self.rank, self.echo = path, rank, echo
        self._data, self._printed = b"", 0

    @property
    def over(self) -> bool:
        """Has the rank printed too much?"""
        return len(self._data) > OUTPUT_LIMIT

    def read(self) -> None:
        """Read what is new, and print the lines that are complete."""
        if self.over or not _size(self.path) > len(self._data):
            return
        with self.path.open("rb") as file:
            file.seek(len(self._data))
            self._data += file.read(OUTPUT_LIMIT + 1 - len(self._data))
        end = self._data.rfind(b"\n") + 1
        if self.echo and end > self._printed:
            lines = _last_states(_worker_text(self._data[self._printed : end]))
            if lines:
                print("\n".join(f"[rank {self.rank}] {line}" for line in lines), flush=True)
            self._printed = end

    def text(self) -> str:
        """The whole text; a last line without a newline is printed now."""
        self.read()
        if self.echo and self._printed < len(self._data):
            for last in _last_states(_worker_text(self._data[self._printed :])):
                print(f"[rank {self.rank}] {last}", flush=True)
            self._printed = len(self._data)
        return _worker_text(self._data)


def _worker_text(data: bytes) -> str:
    """What a rank printed, as text, without gloo's own lines."""
    return _GREETING.sub("", data.decode(errors="replace"))


def _last_states(text: str) -> list[str]:
    """The lines as a terminal shows them: of one that a progress bar has written again and again, the last state."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")] if text else []


def _check(worker: Any, world_size: Any, args: Any, timeout: Any, seed: Any = 0) -> tuple[int, float, int]:
    """The number of ranks, the seconds and the seed, as Python's own numbers; ValueError for what cannot work."""
    __tracebackhide__ = True
    if not callable(worker):
        raise ValueError(f"worker must be a function worker(rank, world_size, *args), got {worker!r}")
    count = _whole_number(world_size)
    if count is None or count < 1:
        raise ValueError(f"world_size must be a whole number of ranks, at least 1, got {world_size!r}")
    if count > processes.MAX_WORLD_SIZE:
        raise ValueError(f"world_size must be at most {processes.MAX_WORLD_SIZE} on one machine, got {count}")
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"args must be a tuple, got {type(args).__name__}: write args=(x,) for one argument")
    if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or not 0 < float(timeout) <= LONGEST:
        raise ValueError(f"timeout must be a number of seconds above 0, at most {LONGEST:,}, got {timeout!r}")
    if (number := _whole_number(seed)) is None or not 0 <= number < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, got {seed!r}")
    if "RANKS_INSIDE" in os.environ:
        raise ValueError("ranks.run was called inside a rank: call it only from the notebook or script itself")
    if short := processes.too_few_files(count):
        raise ValueError(short)
    return count, float(timeout), number


def _whole_number(value: Any) -> int | None:
    """A whole number of any type as Python's own; None for anything else, such as True."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ValueError("the working folder is gone: change to one that exists, and call ranks.run again") from None


def _pack(worker: Callable[..., Any], args: Iterable[Any]) -> bytes:
    try:
        return sending.packed((worker, tuple(args), sending.MAIN_NAMES))
    except Exception as error:
        raise ValueError(
            f"the worker or its args cannot be sent to the ranks ({error}); "
            "pass plain data, and create files, locks and generators inside the worker"
        ) from None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a system without this signal, such as SIGKILL on Windows
        return f"signal {number}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _frames(path: Path, skip: int) -> list[tuple[str, int]]:
    """(file, line) of each frame in a dump of `faulthandler`, the innermost first. skip: bytes of earlier dumps."""
    if not path.exists():
        return []
    dump = path.read_bytes()[skip:].decode(errors="replace")
    return [(file, int(line)) for file, line in re.findall(r'File "(.*)", line (\d+) in', dump)]
