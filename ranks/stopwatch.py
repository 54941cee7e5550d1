"""Counts the seconds that some processes have had, so that limits of time hold on a busy machine as well.

A limit says how long a program may take on a machine of its own. Next to sixteen busy processes the same program takes
ten times as long, and a limit by the clock would stop it for what others do.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

#: Seconds between two looks at the processes, which take some 20 microseconds for each of their threads.
_LOOK_EVERY = 0.2


class Stopwatch:
    """Counts seconds in which processes compute or wait for something else than a processor.

    processes: gives their process ids, at each look; children are counted with their parents. Of a second the part is
    left out in which their threads wanted a processor that other programs used, but they have at least as many seconds
    as they computed. Of the process that asks, only the main thread counts: others watch. Linux tells how long each
    thread has waited (`/proc/PID/task/TID/schedstat`); elsewhere every second counts. Between two calls of `seconds`, a
    process that comes and goes is not seen, and its waiting counts: call it a few times a second. May be called from
    several threads and from a signal's handler.
    """

    def __init__(self, processes: Callable[[], Iterable[int]]):
        self._processes, self._lock = processes, threading.Lock()
        self._at, self._counted = time.monotonic(), 0.0
        self._before = _used(processes())

    def seconds(self) -> float:
        """The seconds so far."""
        # Never waits for the lock: a signal's handler may ask while its own thread is in here.
        if self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._counted

    def _look(self) -> None:
        if (passed := time.monotonic() - self._at) < _LOOK_EVERY:
            return
        now = _used(self._processes())
        computed = waited = 0
        for thread, (cpu, queue) in now.items():
            cpu_before, queue_before = self._before.get(thread, (0, 0))
            computed += max(0, cpu - cpu_before)
            waited += max(0, queue - queue_before)
        self._counted += min(passed, max(computed / 1e9, passed - waited / 1e9))
        self._at, self._before = self._at + passed, now


def own() -> Stopwatch:
    """A stopwatch for this process alone, as seen from its main thread."""
    return Stopwatch(lambda: [os.getpid()])


def family(pid: int, most: int = 5000) -> list[int]:
    """A process and its descendants, parents first; at most `most`. Only itself where the system does not tell."""
    found, todo = list[int](), [pid]
    while todo and len(found) < most:
        pid = todo.pop(0)
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                todo += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def all_sleep(processes: Iterable[int]) -> bool:
    """Does every thread of these processes and their children wait for something? False where no system tells."""
    states = (state for one in processes for pid in family(one) for state in _states(pid))
    return next(states, b"") == b"S" and all(state == b"S" for state in states)


def _states(pid: int) -> Iterable[bytes]:
    """The state of each thread of a process: R runs or could run, S sleeps."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                yield Path(f"/proc/{pid}/task/{task}/stat").read_bytes().rpartition(b")")[2].split()[0]


def _used(processes: Iterable[int]) -> dict[tuple[int, str], tuple[int, int]]:
    """(process, thread) → nanoseconds for which it has computed, and for which it has waited for a processor."""
    found = {}
    for pid in dict.fromkeys(child for parent in processes for child in family(parent)):
        with contextlib.suppress(OSError):
            for task in [str(pid)] if pid == os.getpid() else os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
                    cpu, queue, _ = file.read().split()
                    found[pid, task] = int(cpu), int(queue)
    return found
