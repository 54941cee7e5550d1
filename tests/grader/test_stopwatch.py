"""Limits of time hold beside busy processes: seconds in which others had the processor do not count."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

import ranks
from ranks.stopwatch import Stopwatch, family

SPIN = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a thread has waited")


@contextlib.contextmanager
def busy(count, *where):
    """This many processes that compute, at the places (`taskset`) that are named, as long as the `with` lasts."""
    # In sessions of their own: Linux shares a core between sessions before it does between their processes.
    command = [*where, sys.executable, "-c", SPIN, "600"]
    started = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def watched(seconds, processes):
    """(by the clock, by a stopwatch) for so many seconds, which these processes had."""
    stopwatch, began = Stopwatch(lambda: processes), time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(0.2)
        stopwatch.seconds()
    return time.monotonic() - began, stopwatch.seconds()


@linux
def test_a_second_in_which_others_compute_does_not_count():
    """Eight processes on one core: each has an eighth of it."""
    core = str(min(os.sched_getaffinity(0)))
    with busy(8, "taskset", "-c", core) as pids:
        time.sleep(0.5)
        passed, counted = watched(4, pids[:1])
    assert counted < passed / 2


@linux
def test_what_processes_use_themselves_counts():
    """Those of one program that keep each other waiting have the time that they compute."""
    core = str(min(os.sched_getaffinity(0)))
    with busy(4, "taskset", "-c", core) as pids:
        before = cpu_seconds(pids)
        _, counted = watched(4, pids)
        assert counted >= 0.8 * (cpu_seconds(pids) - before)


def cpu_seconds(pids):
    """The processor time of these processes."""
    return sum(int(open(f"/proc/{pid}/schedstat").read().split()[0]) for pid in pids) / 1e9


def test_a_process_that_waits_for_nothing_has_every_second():
    """A program that sleeps or hangs must meet its limit, however busy the machine is."""
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        time.sleep(1)
        with busy(4):
            passed, counted = watched(2, [sleeper.pid])
    finally:
        sleeper.kill()
        sleeper.wait()
    assert counted > 0.9 * passed


@linux
def test_descendants_are_counted_with_their_parents():
    source = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    parent = subprocess.Popen([sys.executable, "-c", source])
    try:
        until = time.monotonic() + 60
        while len(found := family(parent.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert found[0] == parent.pid and len(found) == 2
        assert family(parent.pid, most=1) == [parent.pid]
    finally:
        for pid in family(parent.pid):
            os.kill(pid, 9)
        parent.wait()


def test_where_the_system_tells_nothing_every_second_counts(monkeypatch):
    monkeypatch.setattr("ranks.stopwatch._used", lambda processes: {})
    passed, counted = watched(0.7, [os.getpid()])
    assert 0 < passed - counted < 0.3


def test_a_handler_may_ask_while_its_thread_is_being_answered():
    """A deadlock would end the test at the limit of the whole run."""
    asked = []

    def interrupted():
        if asked:
            asked.append(stopwatch.seconds())
        return []

    stopwatch = Stopwatch(interrupted)
    asked.append("asks from now on")
    time.sleep(0.3)
    assert stopwatch.seconds() >= 0.3 and asked[1:] == [0.0]


@linux
@pytest.mark.thorough
def test_a_run_has_its_limit_for_itself_and_says_so():
    """One second of computing, next to nine others on the same core, takes ten; the limit is three."""
    core = min(os.sched_getaffinity(0))

    def computes(rank, world_size, seconds):
        os.sched_setaffinity(0, {core})
        while time.process_time() < seconds:
            pass
        return rank

    with busy(9, "taskset", "-c", str(core)):
        assert ranks.run(computes, 1, (time_of_start() + 1.0,), timeout=3, echo=False) == [0]
        with pytest.raises(ranks.HangError, match=r"did not finish within 1 s of their own time \(\d+ s by the clock"):
            ranks.run(computes, 1, (600.0,), timeout=1, echo=False)


def time_of_start():
    """The processor time that a rank has used when its worker begins."""
    return ranks.run(lambda rank, world_size: time.process_time(), 1, echo=False)[0]
