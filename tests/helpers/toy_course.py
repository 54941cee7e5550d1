"""A lesson of three tiny exercises in a course of its own: fast, and every submission is written in a line.

`submission(...)` is the released notebook with answers filled in; a test then does to it what students do.
"""

from __future__ import annotations

import copy
import csv
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.grade import jail
from autograder.grade.course import Course
from autograder.grade.nbgrader import library
from autograder.lesson import notebook

LESSON = "07_toy"
RIGHT = {
    "07-ex1-double": "def double(x):\n    return 2 * x\n",
    "07-ex2-square": "def square(x):\n    return x * x\n",
    "07-ex3-half": "def half(x):\n    return x / 2\n",
}
#: A second answer without points.
WRONG_SQUARE = "def square(x):\n    return 0\n"
HIDDEN = "secret_inputs = [3, 5, 8]"
POINTS = {"07-ex1-double": 1.0, "07-ex2-square": 2.0, "07-ex3-half": 3.0}


def _answer(name: str) -> nbformat.NotebookNode:
    head, body = RIGHT[name].split("\n", 1)
    source = f'{head}\n    """Of a number."""\n    ### BEGIN SOLUTION\n{body}    ### END SOLUTION'
    role = {"grade": False, "solution": True, "locked": False, "task": False, "grade_id": name, "schema_version": 3}
    return new_code_cell(id=name, source=source, metadata={"nbgrader": role})


def _test(name: str) -> nbformat.NotebookNode:
    function = name.split("-")[-1]
    right = {"double": "2 * x", "square": "x * x", "half": "x / 2"}[function]
    source = (
        f'"""{function} of some numbers."""\n'
        f"assert {function}(2) is not None\n"
        "### BEGIN HIDDEN TESTS\n"
        f"{HIDDEN}\n"
        f"for x in secret_inputs:\n"
        f'    assert {function}(x) == {right}, f"{function}({{x}}) is {{{function}(x)}}: think of {function}"\n'
        "### END HIDDEN TESTS"
    )
    role = {"grade": True, "solution": False, "locked": True, "task": False, "points": POINTS[name]}
    role |= {"grade_id": f"{name}-test", "schema_version": 3}
    return new_code_cell(id=f"{name}-test", source=source, metadata={"nbgrader": role})


def lesson() -> nbformat.NotebookNode:
    """The solution notebook."""
    cells = [new_markdown_cell("# Toy", id="07-title"), new_code_cell("import math", id="07-imports")]
    for name in RIGHT:
        cells += [new_markdown_cell(f"### {name}", id=f"{name}-text"), _answer(name), _test(name)]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def released() -> nbformat.NotebookNode:
    """What students get."""
    nb = lesson()
    for cell in nb.cells:
        lines, skip = [], False
        for line in cell.source.split("\n"):
            if "BEGIN" in line:
                skip = True
                if "SOLUTION" in line:
                    lines.append('    raise NotImplementedError("write this function")')
            elif "END" in line:
                skip = False
            elif not skip:
                lines.append(line)
        cell.source = "\n".join(lines)
    return nb


def submission(**answers: str) -> nbformat.NotebookNode:
    """The released notebook with right answers; `ex1="…"` puts in another one, `ex1=None` leaves the stub."""
    nb = released()
    for name, right in RIGHT.items():
        source = answers.get(name.split("-")[1], right)
        if source is not None:
            cell(nb, name).source = source
    return nb


def cell(nb: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The cell with this id."""
    return next(cell for cell in nb.cells if cell.id == name)


def at(nb: nbformat.NotebookNode, name: str) -> int:
    """The position of the cell with this id."""
    return next(index for index, cell in enumerate(nb.cells) if cell.id == name)


@functools.cache
def _prepared() -> dict[str, bytes]:
    """A gradebook that knows the lesson: nbgrader takes seconds to make one."""
    with tempfile.TemporaryDirectory() as folder:
        course = Course(Path(folder))
        source = course.root / "solutions" / LESSON
        source.mkdir(parents=True)
        nbformat.write(lesson(), source / f"{LESSON}.ipynb")
        Course(course.root).prepare(LESSON)
        return {name: (course.root / name).read_bytes() for name in ("gradebook.db", "record.json")}


class Toy:
    """A course in `folder`."""

    def __init__(self, folder: Path, timeout: int = 5):
        self.root = Path(folder).resolve()
        source = self.root / "solutions" / LESSON
        source.mkdir(parents=True)
        nbformat.write(lesson(), source / f"{LESSON}.ipynb")
        shutil.copy(notebook.ROOT / library.CONFIG, self.root / library.CONFIG)
        self.course = Course(self.root, timeout, not jail.missing())
        for name, content in _prepared().items():
            (self.root / name).parent.mkdir(exist_ok=True)
            (self.root / name).write_bytes(content)
        self.course.prepare(LESSON)

    def copy(self, folder: Path) -> Toy:
        """This class as it is now, in another folder."""
        shutil.copytree(self.root, folder, dirs_exist_ok=True)
        twin = copy.copy(self)
        twin.root = Path(folder).resolve()
        twin.course = Course(twin.root, self.course.timeout, self.course.jail)
        return twin

    def teach(self, change: Callable[[nbformat.NotebookNode], object] = lambda nb: None) -> None:
        """Replace the solution by `lesson()` with this change; what is graded next is graded by it."""
        nb = lesson()
        change(nb)
        nbformat.write(nb, self.root / "solutions" / LESSON / f"{LESSON}.ipynb")

    def hand_in(self, student: str, nb: nbformat.NotebookNode | str | bytes | None) -> Path:
        """Put a notebook, or the bytes of something else, into `submitted/`; None makes an empty folder."""
        folder = self.root / "submitted" / student / LESSON
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{LESSON}.ipynb"
        if isinstance(nb, bytes):
            path.write_bytes(nb)
        elif nb is not None:
            text = nb if isinstance(nb, str) else json.dumps(nb)
            path.write_text(text, encoding="utf-8")
        return path

    def grade(self, nb=None, student: str = "ada") -> dict[str, float]:
        """Hand in, grade: points by exercise number, such as {"ex1": 1.0, …}."""
        self.hand_in(student, nb)
        problem = self.course.grade_one(student, LESSON)
        assert not problem, problem
        return self.points(student)

    def enter(
        self, student: str, name: str, points: float | None = None, comment: str | None = None, extra=None
    ) -> None:
        """What formgrader writes when a person grades this exercise or question."""
        with self.course.gradebook() as gradebook:
            found = gradebook.find_grade(f"{name}-test" if name in RIGHT else name, LESSON, LESSON, student)
            found.manual_score, found.extra_credit, found.needs_manual_grade = points, extra, False
            gradebook.find_comment(name, LESSON, LESSON, student).manual_comment = comment
            gradebook.db.commit()

    def row(self, student: str = "ada") -> dict[str, str]:
        """The student's line of grades.csv."""
        with open(self.root / "grades.csv", encoding="utf-8") as file:
            return next(line for line in csv.DictReader(file) if line["student_id"] == student)

    def points(self, student: str = "ada") -> dict[str, float]:
        """The scores in the gradebook, as nbgrader itself reads them."""
        with self.course.gradebook() as gradebook:
            nb = gradebook.find_submission_notebook(LESSON, LESSON, student)
            assert not nb.needs_manual_grade
            assert all(grade.auto_score is not None for grade in nb.grades)
            return {grade.name.split("-")[1]: grade.score for grade in sorted(nb.grades, key=lambda g: g.name)}

    def comment(self, exercise: str, student: str = "ada") -> str:
        """The sentence in the gradebook for `ex1`, `ex2` or `ex3`."""
        with self.course.gradebook() as gradebook:
            nb = gradebook.find_submission_notebook(LESSON, LESSON, student)
            return next(c.auto_comment or "" for c in nb.comments if c.name.split("-")[1] == exercise)

    def page(self, student: str = "ada") -> str:
        """The feedback page."""
        return (self.root / "feedback" / student / LESSON / f"{LESSON}.html").read_text(encoding="utf-8")
