"""Grading with many workers gives what grading with one gives: here, on a Dask cluster, and when workers die."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.__main__ import main
from autograder.grade import outcome
from autograder.grade.course import _decided_by_others
from autograder.grade.jail import outside
from autograder.grade.outcome import failed_by_time
from autograder.grade.running import kernels, workers
from autograder.grade.running.kernels import Reply
from autograder.grade.running.run_cells import Limits, is_test, run_cells
from ranks import stopwatch
from tests.helpers import toy_course
from tests.helpers.graded_class import stopped
from tests.helpers.patience import PATIENCE
from tests.helpers.toy_course import LESSON, WRONG_SQUARE, Toy, submission

pytestmark = pytest.mark.jail


@pytest.fixture
def course(tmp_path):
    """Nine submissions: every third one is wrong, one is no notebook."""
    toy = Toy(tmp_path / "class")
    for number in range(8):
        toy.hand_in(f"student-{number}", submission(ex2=WRONG_SQUARE) if number % 3 == 0 else submission())
    toy.hand_in("student-8", "no notebook")
    return toy


def points(course):
    return {f"student-{number}": course.points(f"student-{number}") for number in range(9)}


RIGHT = {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
EXPECTED = {f"student-{number}": RIGHT | ({"ex2": 0.0} if number % 3 == 0 else {}) for number in range(8)}
EXPECTED["student-8"] = dict.fromkeys(RIGHT, 0.0)


def test_two_workers_grade_as_one_does(course, capsys):
    assert main(["grade", "--course", str(course.root), "--jobs", "2", "--timeout", "10"]) == 0
    _out, err = capsys.readouterr()
    assert points(course) == EXPECTED
    assert "10/10" in err, "nine submissions and the lesson's own solution"
    assert re.search(r"\d\d:\d\d<\d\d:\d\d", err), "the time left"
    assert len(list(course.root.glob("feedback/*/*/*.html"))) == 9


def test_no_jobs_is_one_line(course, capsys):
    assert main(["grade", "--course", str(course.root), "--jobs", "0"]) == 2
    assert "--jobs must be at least 1" in capsys.readouterr().err


def test_when_a_worker_dies_its_task_is_tried_by_itself(course, monkeypatch):
    tasks = [course.course.task(f"student-{number}", LESSON) for number in range(5)]
    # A worker that meets this one ends, as one that the system kills for its memory does.
    broken = replace(tasks[2], nb=new_notebook())
    monkeypatch.setattr(workers, "execute", ends_at_an_empty_task)
    with workers.Workers(8, jobs=2) as pool:
        found = {task.name[0]: error for task, _, error in pool.run([*tasks[:2], broken, *tasks[3:]])}
    assert found.keys() == {f"student-{number}" for number in range(5)}
    assert [type(found[f"student-{number}"]).__name__ for number in range(5)] == [
        "NoneType", "NoneType", "BrokenProcessPool", "NoneType", "NoneType",
    ]  # fmt: skip


def test_tasks_are_prepared_while_workers_start():
    pool, started, made = workers.Workers(8), threading.Event(), []
    pool.starting = threading.Thread(target=started.wait)
    pool.starting.start()

    def tasks(count):
        for number in range(count):
            made.append(number)
            yield number

    assert list(pool.prepared(tasks(3))) == [0, 1, 2], "there need not be many"
    made.clear()
    given = pool.prepared(tasks(2 * workers.PREPARED))
    assert len(made) == workers.PREPARED
    started.set()
    pool.starting.join()
    assert list(given) == list(range(2 * workers.PREPARED))
    made.clear()
    given = pool.prepared(tasks(3))
    assert not made and list(given) == [0, 1, 2]


def test_what_workers_import_has_nothing_of_nbgrader():
    """It takes a third of a second, in which no submission is graded."""
    code = "import sys, autograder.grade.preload; print([n for n in sys.modules if n.startswith('nbgrader')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def ends_at_an_empty_task(task):
    if not task.nb.cells:
        os._exit(9)
    time.sleep(0.2)
    return task.nb


def start_grader(course):
    command = [sys.executable, "-m", "autograder", "grade", "--course", str(course.root), "--jobs", "2"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


@pytest.mark.thorough
def test_workers_end_when_the_grader_is_killed(course):
    grader = start_grader(course)
    family, until = [], time.monotonic() + PATIENCE
    before = made()  # by graders that other tests killed; numbers of processes come round again
    while not any("bwrap" in command_of(pid) for pid in family) and time.monotonic() < until:
        time.sleep(0.1)
        family = stopwatch.family(grader.pid)
    assert len(family) > 4, "the grader, what workers are forked from, workers, and jails"
    grader.kill()
    grader.wait()
    until = time.monotonic() + PATIENCE
    while any(map(command_of, family)) and time.monotonic() < until:
        time.sleep(0.1)
    assert [command for command in map(command_of, family) if command] == []
    left = [path for path in left_by(family) if path not in before]
    assert left == [], {group: [(pid, command_of(pid)) for pid in members(group)] for group in left}


def members(group):
    """The processes in a control group."""
    with contextlib.suppress(OSError):
        return (group / "cgroup.procs").read_text().split()
    return []


def made():
    """What graders have made and not removed: folders in which files cross, and control groups."""
    groups = os.walk("/sys/fs/cgroup")  # which, unlike Path.glob, goes on where a group ends meanwhile
    found = [Path(folder, name) for folder, below, _ in groups for name in below if name.startswith("autograder-")]
    return [*Path("/tmp").glob("grade-*"), *found]


def left_by(processes):
    """What these processes have made and not removed."""
    return [path for path in made() if path.name.split("-")[1] in map(str, processes)]


def test_a_process_that_ends_starts_no_other_jail(monkeypatch):
    monkeypatch.setattr(outside, "_ending", False)
    monkeypatch.setattr(outside, "_jails", set())
    outside.close_all()
    before = left_by([os.getpid()])  # of jails of other tests
    with pytest.raises(outside.JailError, match="is ending"):
        outside.Jail()
    assert left_by([os.getpid()]) == before


@pytest.mark.slow
@pytest.mark.thorough
def test_a_grader_that_ends_leaves_nothing(course):
    grader = start_grader(course)
    family, most = set(), 0
    while grader.poll() is None:
        family |= set(stopwatch.family(grader.pid))
        most = max(most, len(left_by(family)))
        time.sleep(0.1)
    assert grader.returncode == 0 and most > 1, "there were things to be removed"
    assert left_by(family) == []


def command_of(pid):
    """What a process runs; nothing if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


@contextlib.contextmanager
def cluster(folder):
    """A scheduler and two workers, each a program of its own; the scheduler's address."""
    file = folder / "scheduler.json"
    environment = {**os.environ, "DASK_DISTRIBUTED__DASHBOARD__LINK": "", "DASK_LOGGING__DISTRIBUTED": "error"}
    common = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "dask"]
    commands = [
        ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)],
        *[["worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard", "--memory-limit", "0"]] * 2,
    ]
    started = []
    try:
        for command in commands:
            started.append(subprocess.Popen([*dask, *command], start_new_session=True, **common))
            until = time.monotonic() + PATIENCE
            while not (file.exists() and file.stat().st_size) and time.monotonic() < until:  # written in two steps
                time.sleep(0.1)
        yield json.loads(file.read_text())["address"]
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=PATIENCE)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_dask_cluster_grades_as_this_machine_does(course, tmp_path, capsys):
    from dask.distributed import Client

    with cluster(tmp_path) as address:
        with Client(address, timeout=PATIENCE) as client:
            client.wait_for_workers(2, timeout=PATIENCE)
        status = main(["grade", "--course", str(course.root), "--scheduler", address, "--timeout", "20"])
    assert status == 0, capsys.readouterr().err
    assert points(course) == EXPECTED


@pytest.mark.thorough
def test_a_scheduler_that_does_not_answer_is_one_line(course, capsys):
    assert main(["grade", "--course", str(course.root), "--scheduler", "tcp://127.0.0.1:9"]) == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err


def three_tasks():
    """Empty notebooks of three students."""
    names = [(f"student-{number}", LESSON) for number in range(3)]
    return [workers.Task(name, new_notebook(), new_notebook(), kernels.LOCAL) for name in names]


@pytest.mark.parametrize("error", [OSError(109, "Too many references"), outside.JailError("it did not start")])
def test_a_task_whose_jail_did_not_start_is_tried_again_at_the_end(monkeypatch, error):
    tasks = three_tasks()
    tried = []

    def attempt(task):
        tried.append(task.name[0])
        return (task, None, error) if len(tried) == 1 else (task, new_notebook(), None)

    monkeypatch.setattr(workers, "_attempt", attempt)
    with workers.Workers(3) as pool:
        outcomes = list(pool.run(tasks))
    assert tried == ["student-0", "student-1", "student-2", "student-0"]
    assert [(task.name[0], problem) for task, _, problem in outcomes] == [
        ("student-1", None), ("student-2", None), ("student-0", None)
    ]  # fmt: skip


def executed(found):
    """A notebook whose only test has run, as a worker returns it."""
    nb = new_notebook(cells=[new_code_cell(), new_code_cell()])
    tried = outcome.Tried(found.status, found.failure)
    outcome.to_metadata(nb.cells[1], outcome.CellOutcome(found.status, found.failure, properties=[tried]))
    return nb


PASSED = executed(outcome.CellOutcome("ok"))


@pytest.mark.parametrize("bad", [stopped("timeout"), stopped("error", "HangError")])
def test_what_fails_by_time_or_a_hang_is_tried_again_alone_before_it_counts(monkeypatch, bad):
    """Beside hundreds of busy processes of another submission, right answers met limits of time."""
    tasks = three_tasks()
    tried = []

    def attempt(task):
        tried.append((task.name[0], task.again))
        return task, executed(bad) if len(tried) in (1, 3) else PASSED, None

    monkeypatch.setattr(workers, "_attempt", attempt)
    with workers.Workers(3) as pool:
        outcomes = list(pool.run(tasks))
    assert tried == [
        ("student-0", False), ("student-1", False), ("student-2", False), ("student-0", True), ("student-2", True)
    ]  # fmt: skip
    assert sorted(task.name[0] for task, _, _ in outcomes) == ["student-0", "student-1", "student-2"]
    assert all(found is PASSED for _, found, _ in outcomes)


def test_other_failures_are_not_tried_again():
    for found in (executed(outcome.CellOutcome("error")), PASSED):
        assert not failed_by_time(map(outcome.of_metadata, found.cells))


def test_a_second_run_tries_only_the_tests_that_failed():
    """The other marks stay, and so does what was said of them."""
    lesson, asked = nbformat.from_dict(toy_course.lesson()), []

    def run_test(source, timeout):
        """That of the second exercise does not end, the first time."""
        asked.append(next(name for name in ("double", "square", "half") if name in source))
        return Reply("timeout" if asked.count("square") == 1 and asked[-1] == "square" else "ok")

    kernel = SimpleNamespace(
        start=lambda: None, stop=lambda: None, run=lambda source, timeout: Reply("ok"), run_test=run_test
    )
    first = run_cells(lesson.cells, lambda: kernel, Limits())
    assert asked == ["double", "square", "half"] and failed_by_time(first.values())
    for one in filter(is_test, lesson.cells):
        outcome.to_metadata(one, first[one.id])
    second = run_cells(lesson.cells, lambda: kernel, Limits(), again=True)
    assert asked == ["double", "square", "half", "square"] and not failed_by_time(second.values())


def test_a_limit_is_named_beside_the_points_and_so_is_the_second_try(tmp_path):
    toy = Toy(tmp_path, timeout=2)
    assert toy.grade(submission(ex2="def square(x):\n    while True: pass\n"))["ex2"] == 0.0
    said = toy.comment("ex2")
    assert "The limit is 4 s." in said and "second try, during which nothing else was graded" in said
    assert "second try" not in toy.comment("ex1") + toy.comment("ex3")


@pytest.mark.parametrize("busy", [True, False])
def test_a_time_limit_met_on_a_busy_machine_may_be_the_fault_of_others(busy):
    """What follows from that is in `test_grading.py`."""
    nb = executed(stopped("timeout"))
    outcome.to_metadata(nb, outcome.NotebookOutcome(busy=busy))
    assert _decided_by_others(nb) == busy
