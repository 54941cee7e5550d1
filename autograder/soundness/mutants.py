"""`autograder mutants`: how strong are the checks against small changes of the solution?

Each exercise's solution is changed in one small way after the other (`mutation`), and each mutant is graded as the
audit grades a known wrong answer. A mutant that loses marks is killed. One that survives is either equivalent, so that
nobody could see a difference, or a check is too weak: the author decides. Nothing is recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import math
import multiprocessing
import os
import resource
import signal
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from autograder import properties
from autograder.answers import answer
from autograder.lessons import notebook
from autograder.soundness import audit, matrix, mutation
from autograder.soundness.mutation import Mutant
from ranks.stopwatch import Stopwatch, family

#: A mutant is ended after this many times the seconds of the solution, and this many more, by the stopwatch of its
#: processes. So one that hangs costs seconds, and not the limits of all the launches of a test.
_TIMES, _SECONDS = 5.0, 5.0
#: Bytes of address space that a mutant may take, beyond what its process begins with.
_MEMORY = 6 * 2**30
#: What counts as the check that kills a mutant which has no result.
HUNG, DIED = "(ended: no result in time)", "(ended: its process died)"


@dataclass
class Tried:
    """What became of the mutants of an exercise.

    made: how many there are; those of a sample were tried. killed: mutant → the checks that it fails, the first one
    first. survivors: the mutants that survived once, each with what killed it on other inputs, "" for nothing.
    """

    lesson: str
    cell: str
    made: int
    killed: dict[Mutant, list[str]] = field(default_factory=dict)
    survivors: dict[Mutant, str] = field(default_factory=dict)


def failed_checks(lesson: str, cell: str, source: str) -> dict[str, str]:
    """Grade a lesson with another source of one answer cell, in this process: each check of its test that fails → why.

    The checks draw new inputs. The visible part of the test counts as a check of the name VISIBLE.
    """
    [test], _ = audit.tested(notebook.read(lesson, {cell: source}), lesson, {f"{cell}-test"})
    return matrix.failing(test)


def try_mutants(lesson: str, cell: str, most: int, seed: int) -> Tried:
    """Grade a sample of the mutants of an exercise. A survivor is tried a second time, on other inputs.

    ValueError, in one line, if the solution fails.
    """
    solution = answer.solutions(lesson)[cell]
    found = mutation.mutants(solution)
    tried = Tried(lesson, cell, len(found))
    with contextlib.closing(_Grader(lesson, cell, solution)) as grader:
        for mutant in mutation.sample(found, most, seed):
            if failed := grader.failed_checks(mutant.source):
                tried.killed[mutant] = failed
            else:
                tried.survivors[mutant] = next(iter(grader.failed_checks(mutant.source)), "")
    return tried


class _Grader:
    """A process that grades mutants. One that takes too long is ended with all its ranks, and another one begins."""

    def __init__(self, lesson: str, cell: str, solution: str):
        self._exercise, self._limit = (lesson, cell, solution), math.inf
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")  # for what ended processes leave behind
        if failed := self._start():
            self.close()
            why = " ".join(next(iter(failed.values())).split())
            raise ValueError(f"{cell}: the solution fails, so its mutants say nothing: {why}")
        stopwatch = self._stopwatch()
        self.failed_checks(solution)
        self._limit = _TIMES * stopwatch.seconds() + _SECONDS

    def failed_checks(self, source: str) -> list[str]:
        """The checks that a mutant fails, the first one first; HUNG or DIED for one without a result."""
        stopwatch = self._stopwatch()
        with contextlib.suppress(EOFError, ConnectionError):
            self._connection.send(source)
            while not self._connection.poll(0.1):
                if stopwatch.seconds() > self._limit:
                    self._restart()
                    return [HUNG]
            return list(self._connection.recv())
        self._restart()
        return [DIED]

    def close(self) -> None:
        """End the process and all that it has started."""
        self._end()
        self._folder.cleanup()

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(lambda: [self._process.pid or 0])

    def _start(self) -> dict[str, str]:
        """Start a process; what the solution fails in it."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(*self._exercise, self._folder.name, theirs))
        self._process.start()
        theirs.close()
        try:
            return dict(self._connection.recv())
        except EOFError:
            return {DIED: "its process died"}

    def _restart(self) -> None:
        self._end()
        self._start()

    def _end(self) -> None:
        for pid in family(self._process.pid or 0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.join()
        self._connection.close()


def _serve(lesson: str, cell: str, solution: str, folder: str, connection: Connection) -> None:
    """Grade the solution, so that all is loaded and the ranks' server runs; then each mutant that comes."""
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    connection.send(failed_checks(lesson, cell, solution))
    with contextlib.suppress(OSError):  # not on macOS
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with contextlib.suppress(EOFError):
        while True:
            connection.send(failed_checks(lesson, cell, connection.recv()))


# ---- the report ----


def text(tried: Tried) -> str:
    """What an author reads of an exercise: how many mutants each check kills, and the survivors as diffs."""
    ended = Counter(failed[0] for failed in tried.killed.values() if failed[0] in (HUNG, DIED))
    count = len(tried.killed) + len(tried.survivors)
    how = f", {ended[HUNG]} of them hung" * (HUNG in ended) + f", {ended[DIED]} died" * (DIED in ended)
    lines = [f"{tried.cell}: {count} of {tried.made} mutants: {len(tried.killed)} killed{how}; "
             f"{len(tried.survivors)} survive", f"  {'killed by':<64}{'first':>6}{'all':>6}"]  # fmt: skip
    first = Counter(failed[0] for failed in tried.killed.values())
    every = Counter(name for failed in tried.killed.values() for name in failed)
    for name in dict.fromkeys([*_checks(tried), *every]):
        lines.append(f"  {name or '(the visible tests)':<64}{first[name]:>6}{every[name]:>6}")
    before = answer.solutions(tried.lesson)[tried.cell]
    path = notebook.solution_path(tried.lesson).relative_to(notebook.ROOT)
    for mutant, killed_by in tried.survivors.items():
        some = f", on other inputs killed by {killed_by}" if killed_by else ""
        lines.append(f"  survives: {path}:{_line_in_file(tried, mutant.line)}  {mutant.operator}{some}")
        lines += [f"    {line}" for line in diff(before, mutant.source)]
    return "\n".join(lines)


def diff(before: str, after: str) -> list[str]:
    """The lines that differ; if none goes, with their neighbors."""
    for context in (0, 1):
        lines = difflib.unified_diff(before.split("\n"), after.split("\n"), n=context, lineterm="")
        found = [line for line in list(lines)[2:] if not line.startswith("@@")]
        if any(line.startswith("-") for line in found):
            break
    return found


def _checks(tried: Tried) -> list[str]:
    """The checks of an exercise, those of the core first."""
    test = next(cell for cell in notebook.read(tried.lesson).cells if cell.id == f"{tried.cell}-test")
    return [one.name for one in properties.of_test(test) if one.name]


def _line_in_file(tried: Tried, line: int) -> int:
    """The line of the notebook's file that holds this line of the answer cell."""
    lines = notebook.solution_path(tried.lesson).read_text(encoding="utf-8").split("\n")
    cell = int(notebook.place(tried.cell).rpartition(":")[2])
    return lines.index('   "source": [', cell) + 1 + line


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """`mutants [LESSON or EXERCISE…] [--most N] [--seed S] [--jobs N]`."""
    parser = subparsers.add_parser("mutants", help="grade the solutions with small changes, to test the checks")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a lesson (08_zero1) or an exercise (08-ex3); default: all"
    )
    parser.add_argument("--most", type=int, default=20, help="mutants of each exercise; 0: all (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which of them are drawn (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="exercises tried at once (default: 2)")
    parser.set_defaults(run=_main)


def _main(arguments: argparse.Namespace) -> int:
    if arguments.most < 0:
        raise ValueError(f"--most must be 0 or more, got {arguments.most}")
    todo = [(lesson, name) for lesson, name in audit.named(arguments.names) if name in answer.solutions(lesson)]
    of_each = f"at most {arguments.most}" if arguments.most else "all"
    print(f"{of_each} mutants of each exercise, drawn with --seed {arguments.seed}", flush=True)
    all_tried, status = list[Tried](), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        for running in [pool.submit(try_mutants, *one, arguments.most, arguments.seed) for one in todo]:
            try:
                all_tried.append(running.result())
                print(f"\n{text(all_tried[-1])}", flush=True)
            except ValueError as error:
                status = 1
                print(f"\n{error}", flush=True)
    killed, survivors = (sum(len(getattr(one, name)) for one in all_tried) for name in ("killed", "survivors"))
    print(f"\n{killed + survivors} mutants of {len(all_tried)} exercises: {killed} killed, {survivors} survive")
    return status
