"""One notebook in two halves: the submission's cells run in the jail, the grade cells in this process.

A grade cell runs in a namespace that the student cannot reach: it holds the names that the lesson's own setup cells
define, and a handle (`handles`) for each name of the submission that the cell mentions.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import io
import linecache
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import nbformat

from autograder.grade import limits
from autograder.grade.jail import control_groups, handles, outside
from autograder.grade.running import clock
from autograder.grade.running.kernels import Outputs, Reply
from autograder.lesson import names, notebook

#: Seconds within which a submission's process must answer after a failed test; else a new one is started.
HEALTHY = 10

#: Packages that few lessons use. They take a second to import, and with them each fork takes a third longer.
LARGE = ("sklearn", "scipy")

#: The folders that the jail and this process share files in, one for each running process of a submission.
_folders: set[str] = set()


def prepare() -> None:
    """Start this process's jail."""
    outside.shared()


@contextlib.contextmanager
def kernels_for(lesson: nbformat.NotebookNode, files: dict[str, bytes]) -> Iterator[Callable[[], JailedKernel]]:
    """Makes kernels in this process's jail, which has loaded the large modules that the lesson imports."""
    modules = large_modules(lesson)
    yield lambda: JailedKernel(outside.shared(modules), lesson, files)


def large_modules(lesson: nbformat.NotebookNode) -> frozenset[str]:
    """The modules of large packages that a lesson's own cells import."""
    found: set[str] = set()
    for cell in lesson.cells:
        if cell.cell_type == "code" and any(package in cell.source for package in LARGE):
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module)
                elif isinstance(node, ast.Import):
                    found.update(alias.name for alias in node.names)
    return frozenset(name for name in found if name.split(".")[0] in LARGE)


def leave_nothing() -> None:
    """End the jails of this process and remove its folders; for a process that has to end in the middle of its work."""
    outside.close_all()
    for folder in list(_folders):
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a shared folder. A folder that cannot be removed must not stop the grading of the next submission."""
    with contextlib.suppress(Exception):
        shutil.rmtree(folder, ignore_errors=True)
    _folders.discard(folder)


#: Seconds after which the folder of a process that is gone is removed: longer than any submission runs.
FORGOTTEN = 4 * 3600


@functools.cache
def _sweep(owner: int) -> None:
    """Once per process, remove shared folders of graders that were killed. owner: this process."""
    for folder in control_groups.left_by_the_dead(Path("/tmp"), "grade"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > FORGOTTEN:
                shutil.rmtree(folder, ignore_errors=True)


class JailedKernel:
    """Takes the place of `kernels.LocalKernel`: the same calls, but nothing of the submission runs outside.

    jail: where it runs. lesson: the instructor's notebook, whose setup cells the grade cells build on. files: the
    other files in the notebook's folder, by name.
    """

    def __init__(self, jail: outside.Jail, lesson: nbformat.NotebookNode, files: dict[str, bytes]):
        self.jail, self.files = jail, files
        self.answers, self.setup = names.defined_by_answers(lesson), setup_of(lesson)
        self.jailed: outside.Jailed | None = None
        #: Processes that have ended because a test asked for another one that runs the same cells.
        self.former: list[outside.Jailed] = []
        #: The cells that have run, and the seconds that they took.
        self.cells: list[str] = []
        self.took = 0.0
        #: The seconds in which they ran again, for a test that asked for another process.
        self.ran_again = 0.0
        #: The process no longer answers as it should, and has to be replaced.
        self.broken = False

    def start(self) -> None:
        """Start a fresh process, in which nothing has run."""
        self.cells, self.took, self.broken = [], 0.0, False
        self.jailed = self._new_jailed()

    @property
    def running(self) -> outside.Jailed:
        """The submission's process, after `start`."""
        assert self.jailed is not None
        return self.jailed

    def _new_jailed(self) -> outside.Jailed:
        _sweep(os.getpid())
        folder = tempfile.mkdtemp(prefix=f"grade-{os.getpid()}-", dir="/tmp")  # the same path in the jail
        _folders.add(folder)
        try:
            return self.jail.start(folder, self.files)
        except BaseException:
            _remove(folder)
            raise

    def stop(self) -> None:
        """End the submission and every process it started; does nothing if none runs."""
        for jailed in (*self.former, self.jailed):
            if jailed is not None:
                jailed.end()
                _remove(jailed.folder)
        self.jailed, self.former = None, []

    def other(self) -> outside.Jailed:
        """Another process that has run all cells so far; the first one ends before this one starts.

        Two processes at a time could pass each other what a test has given to one of them. From now on, the other
        process takes the place of the first for all that follows. The test's timer is paused while it runs the cells.
        """
        first, began = self.running, clock.now()
        with _clock_stopped(first):
            first.end()
            self.former.append(first)
            second = first.successor = self.jailed = self._new_jailed()
            second.deadline = clock.now() + max(60, 3 * self.took)
            for source in self.cells:
                second.ask("cell", source=source)
        second.deadline = first.deadline
        self.ran_again += clock.now() - began
        tempfile.tempdir = second.folder  # until the test has ended
        return second

    def run(self, source: str, timeout: float) -> Reply:
        """Run one of the submission's cells. After "timeout", "died" or "unstarted", stop the kernel."""
        began, jailed = clock.now(), self.running
        jailed.deadline = began + max(timeout, 0.01)
        reply, collected = Reply("unstarted"), Outputs()
        if self.broken:
            return reply
        try:
            jailed.ask("names")
            reply.status = "died"
            said = jailed.ask("cell", collected.add_untrusted, source=source)
        except outside.TooLongError:
            reply.status = "timeout"
        except outside.DiedError as died:
            reply.why = str(died)
        else:
            raised, count = said.get("raised"), said.get("count")
            reply.status = "ok" if raised is None else "error"
            if isinstance(raised, dict):
                reply.error = (_text(raised.get("name")), _text(raised.get("text")))
                frames = raised.get("frames")
                reply.traceback = [_text(frame) for frame in frames[-5:]] if isinstance(frames, list) else []
            reply.execution_count = count if type(count) is int and 0 < count < 10**9 else None
            self.cells.append(source)
            self.took += clock.now() - began
        reply.outputs = collected.finished()
        return reply

    def run_test(self, source: str, timeout: float) -> Reply:
        """Run a grade cell in this process. It sees the lesson's own names, and handles of the submission's."""
        jailed, self.ran_again = self.running, 0.0
        jailed.deadline = clock.now() + max(timeout, 0.01)
        reply = Reply("unstarted")
        if self.broken:
            return reply
        try:
            ready = jailed.ask("ready")
            if ready.get("raised") is not None:
                return reply  # a fresh kernel may answer
            known = ready.get("names")
            reply.status = "died"
            theirs = {name for name in known if isinstance(name, str)} if isinstance(known, list) else set()
            code, space = self._prepare(source, theirs)
            with _graded_in(jailed, timeout, space, self.other):
                exec(code, space)
            reply.status = "ok"
        except outside.TooLongError:
            reply.status = "timeout"
        except outside.DiedError as died:
            reply.why = str(died)
        except Exception as error:
            reply.status, reply.raised, reply.seed = "error", error, getattr(error, "seed", None)
            reply.error = (type(error).__name__, _said(error))
            reply.traceback = frames_of(error)
            self.broken = not self._can_be_asked()
        reply.ran_again = self.ran_again
        return reply

    def _can_be_asked(self) -> bool:
        """Can the submission go on after a failed test? It may have removed what its own process needs."""
        self.running.deadline = clock.now() + HEALTHY
        try:
            return self.running.ask("ready").get("raised") is None
        except (outside.DiedError, outside.TooLongError):
            return False

    def _prepare(self, source: str, known: set[str]) -> tuple[CodeType, dict]:
        """The cell as code, and the namespace for it. known: the names that the submission defines."""
        file = f"<test {abs(hash(source))}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        space = _namespace_after(self.setup)
        for name in names.of_source(source, file).reads - space.keys() - vars(builtins).keys():
            if name in known:
                space[name] = handles.Handle(self.running, name)
        for name in self.answers & known:
            space[name] = handles.Handle(self.running, name)
        return notebook.compiled(source, file), space


def setup_of(lesson: nbformat.NotebookNode) -> list[CodeType]:
    """A lesson's own setup and parameter cells, without its answers."""
    cells = [cell for cell in lesson.cells if notebook.is_setup(cell) and notebook.nbgrader_role(cell) != "solution"]
    return [notebook.compiled(cell.source, f"<cell {cell.id}>") for cell in cells]


def _namespace_after(setup: list[CodeType]) -> dict[str, Any]:
    """What these cells define."""
    space = notebook.fresh_namespace()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for code in setup:
            exec(code, space)
    return space


def frames_of(error: BaseException | None) -> list[str]:
    """The frames in the student's cells of an exception that was raised in the jail, or of the one that caused it."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if frames := getattr(error, "frames", None):
            return [_said(frame) for frame in frames]
        error = error.__cause__ or error.__context__
    return []


@contextlib.contextmanager
def _graded_in(
    jailed: outside.Jailed, timeout: float, space: dict[str, Any], other: Callable[[], outside.Jailed]
) -> Iterator[None]:
    """For a grade cell: `ranks.run` runs in the jail where it must, temporary files are shared, time is limited."""
    before, streams = tempfile.tempdir, (sys.stdout, sys.stderr)
    tempfile.tempdir = jailed.folder
    in_main = threading.current_thread() is threading.main_thread()

    def time_is_up(*_: Any) -> None:
        if (left := jailed.latest.left()) > 0:  # on a busy machine less of it has passed than by the clock
            signal.setitimer(signal.ITIMER_REAL, left + 1)
        else:
            raise outside.TooLongError

    if in_main:
        previous = signal.signal(signal.SIGALRM, time_is_up)
        signal.setitimer(signal.ITIMER_REAL, max(timeout, 0.01) + 1)  # the jail's own deadline comes first
    try:
        with (
            handles.in_jail(space, other),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        if in_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        tempfile.tempdir = before
        sys.stdout, sys.stderr = streams


@contextlib.contextmanager
def _clock_stopped(jailed: outside.Jailed) -> Iterator[None]:
    """Pauses the grade cell's timer."""
    in_main = threading.current_thread() is threading.main_thread()
    began, left = clock.now(), signal.setitimer(signal.ITIMER_REAL, 0)[0] if in_main else 0.0
    try:
        yield
    finally:
        jailed.deadline += clock.now() - began
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)


def _text(value: Any) -> str:
    """A text that a submission's process has sent; '' for anything else, which may take minutes to be written."""
    return limits.well_formed(value[:20_000]) if isinstance(value, str) else ""


def _said(value: Any) -> str:
    """An exception or a frame of this process, as text."""
    try:
        return _text(str(value))
    except Exception as error:
        return f"(a text that cannot be read: {type(error).__name__})"
