"""`autograder grade`: grade a class's submissions, with a reason for every lost mark."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from autograder.grade import isolation, limits
from autograder.grade.course import Course
from autograder.grade.nbgrader import gradebook
from autograder.lesson import notebook


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `grade`."""
    parser = subparsers.add_parser("grade", help="grade a class: autograde, feedback, grades.csv")
    add_arguments(parser)
    parser.add_argument("--example", action="store_true", help="grade the example class in a scratch folder")
    parser.set_defaults(run=command)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that grades a class."""
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson that was handed in")
    parser.add_argument(
        "--student",
        dest="students",
        action="append",
        default=[],
        metavar="NAME",
        help="grade only this one; can be repeated",
    )
    parser.add_argument("--force", action="store_true", help="grade all of it again, even what did not change")
    parser.add_argument("--jobs", type=int, metavar="N", help="worker processes (default: one per core)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler whose workers run the notebooks")
    add_course_arguments(parser)


def add_course_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a course and say how its submissions run."""
    parser.add_argument("--course", metavar="DIR", help="the folder with submitted/ (default: the repository)")
    parser.add_argument(
        "--timeout", type=int, metavar="SECONDS", help="limit for one cell; a test cell gets twice that"
    )
    parser.add_argument("--no-jail", action="store_true", help="run submissions without a jail, with your own rights")


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status: 1 if a submission could not be graded, or differs from what is expected."""
    if arguments.example:
        return _example(arguments)
    course = course_of(arguments)
    if not course.jobs(arguments.lessons):
        where = folder_of(arguments) / "submitted" / "STUDENT" / "LESSON" / "LESSON.ipynb"
        print(f"Nothing to grade: put each notebook at {where} and run this again.")
        if misplaced := course.misplaced_files():
            print(f"There are {len(misplaced)} files in other places, such as {limits.printable(misplaced[0])}.")
        return 0
    gc.set_threshold(50_000, 20, 100)  # nbgrader makes millions of objects and few cycles
    problems = course.grade(arguments.lessons, arguments.force, **workers_of(arguments))
    print(gradebook.table_of(course.rows()))
    folder = folder_of(arguments)
    print(f"\nFeedback pages are in {folder / 'feedback'}, all points in {folder / 'grades.csv'}.")
    if course.jail:
        print(isolation.limits_here())
    return 1 if problems else 0


def folder_of(arguments: argparse.Namespace) -> Path:
    """The course's folder, as a short path for messages."""
    return Path(arguments.course).expanduser() if arguments.course else Path(os.path.relpath(notebook.ROOT))


def course_of(arguments: argparse.Namespace) -> Course:
    """The course that the command line names. ValueError for a folder or lesson that does not exist."""
    folder = folder_of(arguments)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: name the one that holds submitted/")
    course = Course(folder, arguments.timeout, not arguments.no_jail, getattr(arguments, "students", ()))
    arguments.lessons = course.whole_names(arguments.lessons)
    return course


def workers_of(arguments: argparse.Namespace) -> dict:
    """What the command line says about workers, for `Course.grade`."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {arguments.jobs}")
    return {"jobs": arguments.jobs, "scheduler": arguments.scheduler or ""}


def _example(arguments: argparse.Namespace) -> int:
    from autograder.grade import example_class

    course = example_class.example_course(arguments.timeout or 20, not arguments.no_jail)  # some submissions never end
    arguments.lessons = course.whole_names(arguments.lessons)
    # Without the solutions first: the expected points show a broken test or jail as well.
    problems = course.grade(arguments.lessons, arguments.force, **workers_of(arguments), solutions=False)
    print(gradebook.table_of(course.rows()))
    expected = example_class.read_expected(example_class.EXAMPLE / "expected.csv")
    wrong = example_class.differences(course.scores(), expected, arguments.lessons)
    comments = {row[:3]: row.comment for row in course.rows()} if wrong else {}
    for key, line in wrong.items():
        why = comments.get(key, "").split("\n")[0]
        print(f"{line}: {limits.printable(why)}" if why else line, file=sys.stderr)
    course.forget(key[:2] for key in wrong)  # or the next `make` would only repeat these lines
    folder = example_class.EXAMPLE_COURSE.relative_to(notebook.ROOT)
    print(f"\nThe example class is in {folder}: feedback pages in {folder / 'feedback'}.")
    return 1 if problems or wrong else 0
