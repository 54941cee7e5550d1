"""`autograder retry STUDENT LESSON EXERCISE`: run a failed test again, on the inputs on which it failed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import nbformat

from autograder.checks.check import SEED, read_seed
from autograder.grade import command as grade
from autograder.grade import limits, outcome
from autograder.grade.course import Course
from autograder.lesson import notebook


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `retry`."""
    parser = subparsers.add_parser("retry", help="run a failed test again, on the same inputs")
    parser.add_argument("student", metavar="STUDENT")
    parser.add_argument("lesson", metavar="LESSON")
    parser.add_argument("exercise", metavar="EXERCISE", help="for instance 08-ex3 or 08-ex3-step")
    grade.add_course_arguments(parser)
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status: 1 when the test fails again, 0 when it passes now."""
    arguments.lessons = [arguments.lesson]
    course = grade.course_of(arguments)
    arguments.lesson = arguments.lessons[0]  # the whole name
    test = failed_test(course, arguments.student, arguments.lesson, arguments.exercise)
    seed = next((one.seed for one in outcome.of_metadata(test).properties if one.seed), "")
    if not seed:
        print(f"{test.id}: no check failed, so no seed was kept; it runs with fresh inputs.")
    else:
        os.environ[SEED] = str(read_seed(seed))
        print(f"{test.id}: {SEED}={seed}")
    again, why = run_again(course, arguments.student, arguments.lesson, test.id)
    print(limits.printable(why) or "It passes now.")
    if why and _first_failure(again) != _first_failure(test):
        print("The test fails differently than when it was graded: something has changed, or depends on chance.")
    return 1 if why else 0


def _first_failure(test: nbformat.NotebookNode) -> tuple[str, ...]:
    """How the first property failed that does not hold, if one does not: the seed is that of its inputs."""
    first = next((one.reason for one in outcome.of_metadata(test).lost), None)
    return (first.check, first.kind, first.message, first.case) if first else ()


def failed_test(course: Course, student: str, lesson: str, exercise: str) -> nbformat.NotebookNode:
    """The test cell of an exercise, as it was graded. ValueError if it does not exist or did not fail."""
    path = course.root / "autograded" / student / lesson / f"{lesson}.ipynb"
    if Path(student).name != student or not path.is_file():
        how = f"run `autograder grade {lesson}` first"
        raise ValueError(f"{lesson} of {student!r} has not been graded here: {how}")
    tests = [cell for cell in nbformat.read(path, as_version=4).cells if notebook.nbgrader_role(cell) == "grade"]
    found = [cell for cell in tests if cell.id == f"{exercise}-test" or cell.id.startswith(f"{exercise}-")]
    if len(found) != 1:
        names = ", ".join(cell.id.removesuffix("-test") for cell in tests)
        raise ValueError(f"{lesson} has no exercise {exercise!r}; it has: {names}")
    if outcome.of_metadata(found[0]).passed:
        raise ValueError(f"{student}'s {found[0].id} did not fail: there is nothing to retry")
    return found[0]


def run_again(course: Course, student: str, lesson: str, test: str) -> tuple[nbformat.NotebookNode, str]:
    """Run a submission with only this test: the test's cell, and why it has no points, "" if it passes."""
    from autograder.grade.nbgrader import scoring
    from autograder.grade.running import workers

    course.prepare(lesson)
    task = course.task(student, lesson)
    task.nb.cells = [cell for cell in task.nb.cells if notebook.nbgrader_role(cell) != "grade" or cell.id == test]
    executed = workers.execute(task)
    cells = {cell.id: cell for cell in executed.cells}
    found = {name: outcome.of_metadata(cell) for name, cell in cells.items()}
    problem = outcome.of_notebook(executed).problem
    return cells[test], scoring.comment(found[test], found.get(test.removesuffix("-test")), problem)
