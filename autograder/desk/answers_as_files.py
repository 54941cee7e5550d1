"""`autograder answers FOLDER`: the answers of a class as Python files, for programs that look for copies.

`FOLDER/LESSON/submissions/STUDENT/EXERCISE.py` holds each answer cell as it was graded, without the cells that all
have in common, and `FOLDER/LESSON/base/EXERCISE.py` what students were given, which these programs can leave out. An
answer in words is in `EXERCISE.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import nbformat

from autograder.grade import command as grade
from autograder.grade.course import Course
from autograder.grade.limits import printable
from autograder.lesson import notebook

#: In a lesson's folder: the command may replace what it has written there.
MARK = ".answers"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `answers`."""
    parser = subparsers.add_parser("answers", help="write all answers as Python files, to look for copies")
    parser.add_argument("folder", metavar="FOLDER", help="where to; what an earlier run wrote there is replaced")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson that was graded")
    parser.add_argument("--course", metavar="DIR", help="the folder with submitted/ (default: the repository)")
    parser.set_defaults(run=command, timeout=None, no_jail=True)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    course = grade.course_of(arguments)
    target, count = Path(arguments.folder).expanduser(), 0
    lessons = sorted({lesson for _, lesson in course.jobs(arguments.lessons)})
    for folder in (target / lesson for lesson in lessons):
        if os.path.lexists(folder) and not (folder / MARK).is_file():
            raise ValueError(f"{folder} exists, and `autograder answers` has not written it: name another folder")
    for lesson in lessons:
        for part in ("base", "submissions"):
            shutil.rmtree(target / lesson / part, ignore_errors=True)
        students = sorted({student for student, _ in course.jobs([lesson])})
        found = {student: answers for student in students if (answers := answers_of(course, student, lesson))}
        if found:
            write(target / lesson / "base", given(course, lesson))
            write(target / lesson, {MARK: "`autograder answers` replaces base and submissions."})
        for student, answers in found.items():
            write(target / lesson / "submissions" / student, answers)
        for student in set(students) - found.keys():
            print(f"{printable(student)} {lesson}: not graded yet, so it is left out", file=sys.stderr)
        count += len(found)
    print(f"The answers in {count} notebooks are in {target}." if count else "Nothing has been graded yet.")
    return 0


def answers_of(course: Course, student: str, lesson: str) -> dict[str, str]:
    """file → the answer that was graded; empty if there is no graded notebook, or it cannot be read."""
    try:
        nb = nbformat.read(course.root / "autograded" / student / lesson / f"{lesson}.ipynb", as_version=4)
    except (OSError, ValueError):
        return {}
    return answers_in(nb)


def answers_in(nb: nbformat.NotebookNode) -> dict[str, str]:
    """file → the answer, of a graded notebook."""
    return {_file(cell.id, cell.cell_type): cell.source for cell in notebook.answer_cells(nb)}


def _file(exercise: str, cell_type: str) -> str:
    return f"{exercise}.{'py' if cell_type == 'code' else 'md'}"


def given(course: Course, lesson: str) -> dict[str, str]:
    """file → the stub that students were given."""
    from autograder.grade.nbgrader import restore

    with course.gradebook() as gradebook:
        sources = restore.source_cells(gradebook, lesson, lesson)
    answers = [source for source in sources if not source.is_test and not source.is_task]
    return {_file(source.name, source.cell_type): source.source for source in answers}


def write(folder: Path, files: dict[str, str]) -> None:
    """Write each source as a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        (folder / name).write_text(source.rstrip() + "\n", encoding="utf-8")
