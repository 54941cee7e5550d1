"""`autograder run`: run every solution notebook from top to bottom, in a fresh kernel, with papermill.

The executed copies go to `_build/executed/`. A notebook that ran without an error is run again only after something
that it depends on has changed (`keys`), or with its test cells if it ran without them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

from autograder.lesson import keys, notebook, pieces
from autograder.lesson.executing import CellFailedError, at_once, execute, first_line
from autograder.lesson.files import write_whole

EXECUTED = notebook.ROOT / "_build" / "executed"

#: What follows the fingerprint of a notebook that ran without its test cells.
UNTESTED = " without tests"


class NotebookFailedError(RuntimeError):
    """A cell of a notebook raised, or its kernel died."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `run`."""
    parser = subparsers.add_parser("run", help="run the solution notebooks with papermill")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson")
    parser.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a parameter, as in -p WORLD_SIZE 2; can be repeated",
    )
    parser.add_argument("--force", action="store_true", help="run even what has not changed")
    parser.add_argument("--no-tests", action="store_true", help="leave the test cells out, which takes half the time")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at once (default: 2)")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status: 0 when every notebook ran to its end."""
    names = notebook.pick(arguments.lessons)
    parameters = {name: _value(text) for name, text in arguments.parameters}
    todo = []
    for name in names:
        if arguments.force or parameters or not is_current(name, tests=not arguments.no_tests):
            todo.append((name, parameters))
        else:
            print(f"{name}: unchanged since it last ran")
    outcomes = run_all(todo, arguments.jobs, progress=True, tests=not arguments.no_tests)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for error in failures:
        print(f"autograder: {error}", file=sys.stderr)
    return 1 if failures else 0


def run_all(
    todo: list[tuple[str, dict[str, Any]]], jobs: int, progress: bool = False, **how: Any
) -> list[Path | Exception]:
    """Run notebooks, `jobs` at a time. For each (lesson, parameters), in order: the executed copy or the error.

    A single notebook runs in this process. how: `folder` and `tests`, as for `run`.
    """
    if len(todo) < 2 or jobs < 2:
        return [_attempt(lesson, parameters, progress, **how) for lesson, parameters in todo]
    # The largest first, so that no process is left alone with a long one at the end.
    order = sorted(range(len(todo)), key=lambda i: -notebook.solution_path(todo[i][0]).stat().st_size)
    attempt = functools.partial(_attempt, progress=False, **how)
    found = {order[n]: one for n, one in at_once(attempt, [todo[i] for i in order], jobs, "solutions", progress)}
    return [found[i] for i in range(len(todo))]


def _attempt(lesson: str, parameters: dict[str, Any], progress: bool, **how: Any) -> Path | Exception:
    try:
        return run(lesson, parameters, progress, **how)
    except (NotebookFailedError, ValueError) as error:
        return error


def run(
    lesson: str,
    parameters: dict[str, Any] | None = None,
    progress: bool = True,
    folder: Path | None = None,
    tests: bool = True,
) -> Path:
    """Run one solution notebook in a scratch folder; the path of its executed copy, in `folder` or in EXECUTED.

    tests: run the test cells too. They ignore the notebook's parameters.

    NotebookFailedError names the cell, its error and the notebook as far as it ran; ValueError for a file that is not
    a notebook, or for a parameter that it does not have.
    """
    nb = read(lesson)
    known = parameters_of(nb)
    for name in sorted(set(parameters or {}) - known):
        raise ValueError(f"{lesson} has no parameter {name!r}; it has: {', '.join(sorted(known)) or 'none'}")
    executed = folder or EXECUTED
    executed.mkdir(parents=True, exist_ok=True)
    done = executed / f"{lesson}.ipynb"
    failed = executed / f"{lesson}.failed.ipynb"
    record = executed / f"{lesson}.sha256"
    for old in (failed, record):
        old.unlink(missing_ok=True)
    fingerprint = keys.lesson_key(lesson)
    with tempfile.TemporaryDirectory(prefix=f"run-{lesson}-") as scratch:
        output = Path(scratch) / f"{lesson}.ipynb"
        work = Path(scratch) / "work"
        work.mkdir()
        pieces.copy_companions(notebook.solution_path(lesson).parent, work)
        source = Path(scratch) / "source.ipynb"
        nb.cells = [cell for cell in nb.cells if tests or notebook.nbgrader_role(cell) != "grade"]
        nbformat.write(nb, source)
        try:
            execute(source, output, work, lesson if progress else "", parameters)
        except CellFailedError as error:
            raise NotebookFailedError(f"solutions/{lesson}, {error}{_kept(output, failed)}") from error
        write_whole(done, output.read_bytes())
    if not parameters:
        record.write_text(fingerprint if tests else fingerprint + UNTESTED)
    return done


def parameters_of(nb: Any) -> set[str]:
    """The names of the parameters that a notebook has."""
    return {name for cell in nb.cells if "parameters" in cell.metadata.get("tags", []) for name in _assigned(cell)}


def is_current(lesson: str, tests: bool = True) -> bool:
    """Did the last run of this notebook, with the code as it is now, end without an error?

    tests: a run without the test cells does not count.
    """
    record = EXECUTED / f"{lesson}.sha256"
    done = EXECUTED / f"{lesson}.ipynb"
    if not (record.is_file() and done.is_file()):
        return False
    fingerprint = keys.lesson_key(lesson)
    return record.read_text() in ([fingerprint] if tests else [fingerprint, fingerprint + UNTESTED])


def read(lesson: str) -> nbformat.NotebookNode:
    """A lesson's solution notebook; ValueError names a file that is not a notebook."""
    try:
        return notebook.read(lesson)
    except notebook.UnknownLessonError:
        raise
    except Exception as error:
        raise ValueError(f"solutions/{lesson}/{lesson}.ipynb is not a notebook: {first_line(error)}") from error


def _assigned(cell: nbformat.NotebookNode) -> list[str]:
    """The names that a parameters cell sets."""
    import ast

    targets: list[ast.expr] = []
    for statement in ast.parse(cell.source).body:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets.append(statement.target)
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _value(text: str) -> Any:
    """A parameter as papermill's own command line reads it: a number, true, false, a list, or else a string."""
    import yaml

    return yaml.safe_load(text)


def _kept(output: Path, failed: Path) -> str:
    """Keep the notebook as far as it ran in `failed`; words that say where."""
    with contextlib.suppress(OSError):
        write_whole(failed, output.read_bytes())
    return f"; see {os.path.relpath(failed, notebook.ROOT)}" if failed.is_file() else ""
