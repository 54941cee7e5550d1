"""The example class: a small made-up class whose grades are known, made and graded in a scratch folder."""

from __future__ import annotations

import csv
import runpy
import shutil
from pathlib import Path

from autograder.grade.course import Course
from autograder.grade.nbgrader import library
from autograder.lesson import notebook

EXAMPLE = notebook.ROOT / "examples" / "class"
EXAMPLE_COURSE = notebook.ROOT / "_build" / "example-class"


def example_course(timeout: int | None = None, jail: bool = True) -> Course:
    """The example class, in a scratch folder of its own."""
    EXAMPLE_COURSE.mkdir(parents=True, exist_ok=True)
    runpy.run_path(str(EXAMPLE / "make.py"))["make"](EXAMPLE_COURSE)
    shutil.rmtree(EXAMPLE_COURSE / "solutions", ignore_errors=True)
    shutil.copytree(notebook.SOLUTIONS, EXAMPLE_COURSE / "solutions", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(notebook.ROOT / library.CONFIG, EXAMPLE_COURSE / library.CONFIG)
    return Course(EXAMPLE_COURSE, timeout, jail)


def read_expected(path: Path) -> dict[tuple[str, str, str], float]:
    """(student, lesson, exercise) → points, from a file with the columns student_id, assignment, exercise, score."""
    with open(path, newline="", encoding="utf-8") as file:
        return {
            (row["student_id"], row["assignment"], row["exercise"]): float(row["score"]) for row in csv.DictReader(file)
        }


def differences(scores: dict, expected: dict, lessons: list[str] | None = None) -> dict[tuple[str, str, str], str]:
    """(student, lesson, exercise) → one line, for each exercise whose points are not the expected ones."""
    lines = {}
    for key in sorted(scores.keys() | expected.keys()):
        if lessons and key[1] not in lessons:
            continue
        got = scores[key][0] if key in scores else None
        if got != expected.get(key):
            lines[key] = f"{' '.join(key)}: got {got}, expected {expected.get(key)}"
    return lines
