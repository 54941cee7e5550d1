"""Runs a notebook's cells for grading, whatever they do: raise errors, loop forever, end the kernel.

`run_cells` decides which cells run, what happens when one of them ends the kernel, and what is recorded for each test.
`kernels` starts kernels, sends them cells and stops them.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import nbformat
from nbformat.v4 import new_output

from autograder import checks, properties
from autograder.checks.expect import HANG, RAISED, UNWRITTEN, WRONG, CheckFailed, Failure, Hint
from autograder.grade import outcome
from autograder.grade.limits import ALL_OUTPUT, ONE_OUTPUT, well_formed
from autograder.grade.limits import ERROR as ERROR_TEXT
from autograder.grade.outcome import ERROR, NOT_RUN, NOT_TRIED, OK, OUT_OF_TIME, CellOutcome, Outcome, Tried
from autograder.grade.running import clock
from autograder.grade.running.kernels import ANSI, Kernel, Reply
from autograder.grade.running.pictures import picture_of
from autograder.lesson import notebook
from autograder.lesson.notebook import answer_of, natural


@dataclass
class Limits:
    """Seconds (`clock.now`): for a cell, for a test cell, for the whole notebook.

    A third of the notebook's is kept for the exercises' tests and a third for all other cells, in equal parts. What a
    cell does not need of its part goes to those after it, and no cell takes from theirs: one that is slow, or does not
    end, costs no exercise but its own. For what runs again in fresh kernels there is as much time once more.
    """

    cell: float = 60
    test: float = 120
    notebook: float = 900

    @property
    def kept(self) -> float:
        """Seconds that are kept for all tests together, and for all other cells."""
        return self.notebook / 3


#: Seconds after which a kernel that still lives is believed to have survived what its cells started.
MOMENT = 5.0


def run_cells(
    cells: list[nbformat.NotebookNode],
    new_kernel: Callable[[], Kernel],
    limits: Limits,
    skip: Collection[str] = (),
    again: bool = False,
    brief: bool = False,
    whole: Collection[str] | None = None,
) -> dict[str, CellOutcome]:
    """Run the code cells in order and write their outputs into them; id → what became of each.

    skip: the ids of cells that need not run (`skippable`). again: the cells have run before; tests that hold do not run
    once more. brief: no picture is drawn. whole: the tests of which all properties are tried, if not of all; in the
    others, none is tried after a core that does not hold. A cell that ends the kernel or does not end is left out from
    then on: a fresh kernel re-runs the cells before it, except tests, and goes on after it.
    """
    code = [cell for cell in cells if cell.cell_type == "code"]
    run = _Run(new_kernel, limits, again, brief, whole)
    run.outcomes = {cell.id: outcome.of_metadata(cell) for cell in code}
    run.keep_time([cell for cell in code if cell.id not in skip and not run.holds_already(cell)])
    try:
        for cell in code:
            _run_cell(run, cell, skip)
    finally:
        run.kernel.stop()
    for name, seconds in run.took.items():
        run.outcomes[name].seconds, run.outcomes[name].runs = round(seconds, 1), run.runs[name]
    return run.outcomes


def add_hints(tests: Iterable[CellOutcome], seconds: float) -> None:
    """Add to the failures that still count what the authors of known wrong answers would say to them.

    A submission can make its evidence so large that it cannot be compared; then it gets no hint, and its grade all the
    same. No search begins after `seconds`.
    """
    until = clock.now() + seconds
    for test in tests:
        passed = [one.name for one in test.properties if one.holds]
        failed = [one.name for one in test.properties if one.name and one.is_lost]
        for one in test.properties:
            if one.failure and one.find_hints and clock.now() < until:
                told = list(_found_by(functools.partial(one.find_hints, passed=passed, failed=failed)))
                one.failure = replace(one.failure, hints=told)


def _found_by(find_hints: Callable[[], tuple[Hint, ...]]) -> tuple[Hint, ...]:
    try:
        return find_hints()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # what is asked of an object that stayed in the jail raises errors that are no Exception
        return ()


def _run_cell(run: _Run, cell: nbformat.NotebookNode, skip: Collection[str]) -> None:
    """Run one code cell and write down what became of it."""
    if run.holds_already(cell):
        return
    run.begin(cell)
    ours = run.outcomes[cell.id]
    run.forget(ours)
    if cell.id in skip:
        ours.status = NOT_RUN
    elif is_test(cell):
        _run_test(run, cell, ours)
    else:
        reply = run.step(cell, cell.source)
        cell.outputs, cell.execution_count = run.bounded(reply.outputs), reply.execution_count
        _write_down(run, reply, ours)


def _run_test(run: _Run, test: nbformat.NotebookNode, ours: CellOutcome) -> None:
    """Try an exercise's properties one after another, each by itself, and write down what became of each.

    After one that ended the kernel or the time, no other is tried; and none is where nothing is written yet.
    """
    sentences = {one.name: one.sentence for one in checks.of_exercise(answer_of(test.id))}
    test.outputs, test.execution_count, hopeless = [], None, False
    tried = properties.of_test(test)
    if len(tried) > 1:
        sentences[properties.VISIBLE] = "The visible part of the test cell."
    for one in tried:
        found = Tried(NOT_TRIED, name=one.name, says=sentences.get(one.name, ""), points=one.points)
        ours.properties.append(found)
        if hopeless:
            continue
        reply = run.step(test, one.source)
        test.outputs += run.bounded(reply.outputs)
        _write_down(run, reply, found)
        found.tries = 2 if run.again and found.status != OK else 0
        if isinstance(reply.raised, CheckFailed):
            found.find_hints = reply.raised.find_hints
        hopeless = reply.status not in (OK, ERROR) or found.reason.kind == UNWRITTEN
        hopeless |= run.whole is not None and test.id not in run.whole and ours.properties[0].status != OK
    ours.status = next((one.status for one in ours.properties if one.status != OK), OK)


def _write_down(run: _Run, reply: Reply, found: Outcome) -> None:
    """What became of a cell, or of a property."""
    found.status = reply.status
    if reply.status != OK:
        found.failure = failure_of(reply)
        found.seed = "" if reply.seed is None else str(reply.seed)
    if reply.status == ERROR:
        found.where = [frame[-ERROR_TEXT:] for frame in run.own_frames(reply)]
        found.picture = {} if run.brief else picture_of(reply.raised)
    run.account_for(found)


def failure_of(reply: Reply) -> Failure:
    """Why a cell did not run to its end."""
    name, text = reply.error
    if isinstance(reply.raised, CheckFailed):
        found = reply.raised.failure
    else:
        kinds = {"AssertionError": WRONG, "NotImplementedError": UNWRITTEN, "HangError": HANG}
        found = Failure(kinds.get(name, RAISED) if reply.status == ERROR else reply.status, name, text)
    return _cut(replace(found, limit=reply.limit, why=reply.why), ERROR_TEXT)


def _cut(failure: Failure, most: int) -> Failure:
    """A failure with at most so many characters of each text that a submission can have made."""
    error, message, case = (well_formed(text[:most]) for text in (failure.error, failure.message, failure.case))
    return replace(failure, error=error, message=message, case=case)


class _Run:
    """One pass over a notebook: the live kernel, and which cells it has seen."""

    def __init__(
        self,
        new_kernel: Callable[[], Kernel],
        limits: Limits,
        again: bool = False,
        brief: bool = False,
        whole: Collection[str] | None = None,
    ):
        self.new_kernel, self.limits, self.again, self.brief, self.whole = new_kernel, limits, again, brief, whole
        self.deadline, self.kept = clock.now() + limits.notebook, dict[str, float]()
        self.left_again = limits.notebook  # seconds for what runs again in fresh kernels
        self.took: dict[str, float] = {}  # seconds of all runs of a cell
        self.runs: Counter[str] = Counter()
        self.kernel, self.fresh = new_kernel(), True
        self.since = time.monotonic()  # when the live kernel had seen the cells before
        self.seen: list[nbformat.NotebookNode] = []  # what a fresh kernel has to re-run
        self.outcomes: dict[str, CellOutcome] = {}
        self.shown = 0  # characters of all outputs so far
        self.counts: set[int] = set()  # execution counts of the student's cells in the live kernel
        self.tested: set[str] = set()  # the tests that the live kernel has seen

    def holds_already(self, cell: nbformat.NotebookNode) -> bool:
        """Is this a test that held in an earlier run?"""
        return self.again and is_test(cell) and self.outcomes[cell.id].status == OK

    def forget(self, found: CellOutcome) -> None:
        """Forget what an earlier run said of a cell."""
        vars(found).update(vars(Outcome()), left_out=False, properties=[])

    def keep_time(self, cells: list[nbformat.NotebookNode]) -> None:
        """Keep a part of the time for each of these cells, which are to be run (`Limits`)."""
        tests = sum(map(is_test, cells))
        self.kept = {c.id: self.limits.kept / (tests if is_test(c) else len(cells) - tests) for c in cells}

    def begin(self, cell: nbformat.NotebookNode) -> None:
        """From now on this cell runs, and no time is kept for it any more."""
        self.kept.pop(cell.id, None)

    def left(self) -> float:
        """Seconds for the cell that runs now: all that is left but what is kept for others."""
        return max(0.0, self.deadline - sum(self.kept.values()) - clock.now())

    def step(self, cell: nbformat.NotebookNode, source: str) -> Reply:
        """Run one cell, or the part of a test that is given, in a kernel that has seen the cells before it.

        A test runs in a kernel that has seen no test of a later exercise: such a test may bring right answers to
        earlier ones with it, so that it fails for no mistake in those, and what runs in the kernel can keep them.
        """
        retried = False
        if is_test(cell) and any(natural(cell.id) < natural(other) for other in self.tested):
            self._end()
        while self.left() > 0:
            if self.fresh:
                with self._apart():
                    self._leave_out_what_is_too_slow()
                    if not self._replay(list(self.seen)):
                        continue
            reply = self._run(cell, source)
            if reply.status == "unstarted" and not retried:
                # The kernel had ended before the cell began, or at once: a fresh one shows whether the cell can run.
                retried = True
                self._end()
                continue
            if reply.status in (OK, ERROR) and not is_test(cell):
                self.seen.append(cell)
            elif reply.status not in (OK, ERROR):
                reply.status = "died" if reply.status == "unstarted" else reply.status
                lived = time.monotonic() - self.since
                with self._apart():
                    self._end()
                    if reply.status == "died" and self._leave_out_what_kills_later(lived):
                        continue
            return reply
        return Reply(OUT_OF_TIME, limit=self.limits.notebook)

    def bounded(self, outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
        """A cell's outputs, or a line in their place when those of all cells are too long together."""
        size = sum(len(str(output)) + ONE_OUTPUT for output in outputs)
        if size and self.shown + size > ALL_OUTPUT:
            return [new_output("stream", text="… this output was cut: the notebook shows too much.\n")]
        self.shown += size
        return outputs

    def account_for(self, found: Outcome) -> None:
        """Count what is written down about a cell; without frames and picture when the notebook shows too much."""
        self.shown += len(str(found))
        if self.shown > ALL_OUTPUT:
            found.where, found.picture = [], {}
            if found.failure:
                found.failure = _cut(found.failure, 100)

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Inside, cells run again for a fresh kernel: that is not counted as time of the cell that needs it."""
        began = clock.now()
        try:
            yield
        finally:
            self._ran_again(clock.now() - began)

    def _ran_again(self, seconds: float) -> None:
        """Take these seconds from those for fresh kernels, as far as there are any, and not from those of cells."""
        apart = min(seconds, self.left_again)
        self.left_again -= apart
        self.deadline += apart

    def _leave_out_what_is_too_slow(self) -> None:
        """Before cells run again: leave out the slowest from now on, until there is time for the others."""

        def seconds(cell: nbformat.NotebookNode) -> float:
            return self.took[cell.id] / self.runs[cell.id]

        enough = self.limits.kept / max(1, len(self.seen))
        while self.seen and sum(map(seconds, self.seen)) > self.left_again:
            slowest = max(self.seen, key=seconds)
            if seconds(slowest) <= enough:
                return
            self._drop(slowest)
            self.outcomes[slowest.id].left_out = True

    def _leave_out_what_kills_later(self, lived: float) -> bool:
        """After a kernel has ended: was it ended by something that an earlier cell started, such as a timer?

        If so, a kernel that has seen the cells before ends by itself, too, within the `lived` seconds of the first. The
        cell that does it is left out from now on. If not, that kernel is the one in which the run goes on.
        """
        cells, pause = list(self.seen), min(lived + 0.5, MOMENT)

        def survives(count: int) -> bool:
            self._end()
            if not self._replay(cells[:count]):
                return False
            time.sleep(pause)
            return self.kernel.run("", self.limits.cell).status == "ok"

        if not cells or self.left_again <= 0 or survives(len(cells)):
            return False
        self._drop(cells[bisect_left(range(1, len(cells)), True, key=lambda count: not survives(count))])
        return True

    def own_frames(self, reply: Reply) -> list[str]:
        """The parts of a traceback that show the student's own cells, without color."""
        frames = [ANSI.sub("", part) for part in reply.traceback]
        numbers = [(re.match(r"\s*Cell In\s?\[(\d{1,9})\]", frame), frame) for frame in frames]
        return [frame for match, frame in numbers if match and int(match[1]) in self.counts][-3:]

    def _replay(self, cells: list[nbformat.NotebookNode]) -> bool:
        """Start a kernel and re-run cells; False if one of them ended the kernel, and is left out from now on."""
        self.kernel.start()
        self.fresh, self.counts = False, set()
        for cell in cells:
            if self._run(cell, cell.source, again=True).status not in (OK, ERROR):
                self._drop(cell)
                return False
        self.since = time.monotonic()
        return True

    def _run(self, cell: nbformat.NotebookNode, source: str, again: bool = False) -> Reply:
        """Run a cell in the live kernel; again: because the kernel is a fresh one."""
        limit = self.limits.test if is_test(cell) else self.limits.cell
        left = max(self.left(), self.left_again) if again else self.left()
        run, began = self.kernel.run_test if is_test(cell) else self.kernel.run, clock.now()
        if is_test(cell):
            self.tested.add(cell.id)
        reply = run(source, min(limit, left))
        self.took[cell.id] = self.took.get(cell.id, 0.0) + clock.now() - began - reply.ran_again
        self.runs[cell.id] += 1
        self._ran_again(reply.ran_again)
        if reply.status == "timeout":
            reply.limit = limit
            if left < limit:
                reply.status, reply.limit = OUT_OF_TIME, self.limits.notebook
        if reply.execution_count and not is_test(cell):
            self.counts.add(reply.execution_count)
        return reply

    def _drop(self, cell: nbformat.NotebookNode) -> None:
        self.seen = [other for other in self.seen if other is not cell]
        self._end()

    def _end(self) -> None:
        self.kernel.stop()
        self.kernel, self.fresh, self.tested = self.new_kernel(), True, set()


def is_test(cell: nbformat.NotebookNode) -> bool:
    """Is this a cell whose outcome gives points?"""
    return notebook.nbgrader_role(cell) == "grade"
