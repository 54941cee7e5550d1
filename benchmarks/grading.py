"""Grades one class twice, with plain nbgrader and with our grader, and compares times and gradebooks.

    .venv/bin/python benchmarks/grading.py [--students 30] [--jobs 2] [LESSON LESSON]

Every student hands in each lesson: right answers, other right answers, known mistakes, half-done and untouched
notebooks, in turn. Plain nbgrader is `nbgrader autograde` with its own preprocessors; only the names of the folders are
ours. Our grader is `autograder grade`, in the jail, feedback included. They run one after the other and start
from the same gradebook. Prints both times, their ratio, and each row in which the two gradebooks differ.
"""

from __future__ import annotations

import argparse
import itertools
import runpy
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat

from autograder.answers import right, wrong
from autograder.grading import example_class
from autograder.grading.course import Course
from autograder.lessons import nbgrader_api, notebook

MAKE = runpy.run_path(str(example_class.EXAMPLE / "make.py"))
STOCK = """
c = get_config()
c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "notebooks"
c.Execute.timeout = 240
"""


def hand_in(root: Path, lesson: str, students: int) -> None:
    """Write a notebook for each student into `root/submitted`."""
    solution = notebook.read(lesson)
    released = nbformat.read(notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb", as_version=4)
    kinds = itertools.cycle(range(6))
    mistakes, others = itertools.cycle(wrong.of_lesson(lesson)), itertools.cycle(right.of_lesson(lesson))
    for number, kind in zip(range(students), kinds, strict=False):
        paper = MAKE["Paper"](lesson, nbformat.from_dict(released), solution)
        paper.nb = nbformat.reads(nbformat.writes(released), as_version=4)
        if kind == 5 and number % 12 == 5:
            paper.leave(*paper.answers)
        elif kind == 5:
            paper.write(*paper.answers[: len(paper.answers) // 2])
        else:
            paper.write(*paper.answers)
        if kind in (1, 2, 3):
            mistake = next(mistakes)
            paper.cell(mistake.cell).source = mistake.source.rstrip("\n")
        if kind == 4:
            answer = next(others)
            paper.cell(answer.cell).source = answer.source.rstrip("\n")
        path = root / "submitted" / f"student-{number + 1:02d}" / lesson / f"{lesson}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(paper.nb, path)


def gradebook(root: Path) -> dict[tuple[str, str, str], float]:
    """(student, lesson, test) → automatic score."""
    query = """select sa.student_id, a.name, gc.name, g.auto_score from grade g
        join submitted_notebook sn on g.notebook_id = sn.id join submitted_assignment sa on sn.assignment_id = sa.id
        join assignment a on sa.assignment_id = a.id join base_cell gc on g.cell_id = gc.id"""
    with sqlite3.connect(root / "gradebook.db") as database:
        return {tuple(row[:3]): row[3] for row in database.execute(query)}


def timed(command: list[str], root: Path) -> float:
    """Seconds that a command takes in `root`; a failure is printed."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", *command], cwd=root, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        print(f"{' '.join(command[:2])} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return seconds


def main() -> None:
    """Make the class, grade it twice, print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lessons", nargs="*", default=["03_step", "01_collectives"])
    parser.add_argument("--students", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="class-") as folder:
        ours, stock = Path(folder).resolve() / "ours", Path(folder).resolve() / "stock"
        for lesson in arguments.lessons:
            shutil.copytree(notebook.SOLUTIONS / lesson, ours / "solutions" / lesson)
            Course(ours).prepare(lesson)
            hand_in(ours, lesson, arguments.students)
        shutil.copytree(ours, stock)
        (stock / nbgrader_api.CONFIG).write_text(STOCK)
        shutil.copy(notebook.ROOT / nbgrader_api.CONFIG, ours / nbgrader_api.CONFIG)
        theirs = sum(timed(["nbgrader", "autograde", lesson], stock) for lesson in arguments.lessons)
        count = arguments.students * len(arguments.lessons)
        print(f"nbgrader autograde: {count} notebooks in {theirs:.0f} s, {theirs / count:.2f} s each", flush=True)
        mine = timed(["autograder", "grade", "--course", str(ours), "--jobs", str(arguments.jobs)], ours)
        print(f"ours, {arguments.jobs} workers, jailed: {mine:.0f} s, {mine / count:.2f} s each")
        print(f"ratio: {theirs / mine:.1f}")
        one, other = gradebook(stock), gradebook(ours)
        differing = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        print(f"{len(differing)} of {len(other)} rows differ")
        for key in differing:
            print(f"  {' '.join(key)}: nbgrader {one.get(key)}, ours {other.get(key)}")


if __name__ == "__main__":
    main()
