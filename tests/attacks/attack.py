"""What an attack is, and the words in which attacks are written.

An attack is a submission: the released notebook with honest answers to all exercises but the second, and something
hostile that wants the points of that one, more points than there are, or harm to somebody else. Its source may name
places, as an attacker could who knows the instructor's machine: @COURSE@ is the folder of the class, @HOST@ the one
that it lies in, @HOME@ the instructor's home, @REPO@ this repository, @PORT@ a port of an accomplice on this machine.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell

from tests.attacks import lessons
from tests.helpers import toy_course

FULL = {"ex1": 1.0, "ex2": 2.0, "ex3": 3.0}
WITHOUT_EX2 = FULL | {"ex2": 0.0}
NOTHING = dict.fromkeys(FULL, 0.0)


@dataclass(frozen=True)
class Attack:
    """One hostile submission.

    name, tries: what it is called, and one sentence on what it tries. make: does it to a notebook with right answers;
    a str or bytes that it returns is handed in instead. worth: the points of its honest part, by exercise.
    beside: puts files next to the notebook. after: what must hold after grading, besides what must hold for all.
    aims: "marks" it wants points, "harm" it wants to change or stop something, "wire" it aims at what carries
    results out of a jail and can do nothing to a grader that has none, "check" at what one check knows.
    """

    name: str
    tries: str
    make: Callable[[nbformat.NotebookNode], Any]
    worth: dict[str, float]
    aims: str = "marks"
    lesson: str = toy_course.LESSON
    beside: Callable[[Path, dict[str, str]], None] | None = None
    after: Callable[[Any], None] | None = None

    def content(self, places: dict[str, str]) -> bytes:
        """The file that is handed in."""
        nb = lessons.right(self.lesson)
        made = self.make(nb)
        if isinstance(made, bytes):
            return made
        return fill(made if isinstance(made, str) else json.dumps(nb), places).encode()

    def hand_in(self, folder: Path, places: dict[str, str]) -> None:
        """Write the submission into `folder`, which is the student's folder of this lesson."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        content = self.content(places)
        if content:
            (folder / f"{self.lesson}.ipynb").write_bytes(content)
        if self.beside:
            self.beside(folder, places)


def fill(text: str, places: dict[str, str]) -> str:
    """`text` with the names of places replaced by the places."""
    for name, place in places.items():
        text = text.replace(f"@{name}@", place)
    return text


def code(source: str) -> str:
    """Source as it is written in these files: indented, with line breaks around it."""
    return textwrap.dedent(source).strip() + "\n"


def square(source: str) -> Callable[[nbformat.NotebookNode], None]:
    """Make: the second answer is this source."""
    return lambda nb: set_answer(nb, "ex2", source)


def cells(before: str, answer: str = "def square(x):\n    return 0\n") -> Callable[[nbformat.NotebookNode], None]:
    """Make: a cell of the student's own below the imports, and a wrong second answer."""

    def make(nb: nbformat.NotebookNode) -> None:
        set_answer(nb, "ex2", answer)
        nb.cells.insert(2, new_code_cell(code(before), id="mine"))

    return make


def set_answer(nb: nbformat.NotebookNode, exercise: str, source: str) -> None:
    """Put `source` into the answer cell of an exercise."""
    answer(nb, exercise).source = code(source)


def answer(nb: nbformat.NotebookNode, exercise: str) -> nbformat.NotebookNode:
    """The answer cell of `ex2`."""
    return next(one for one in nb.cells if f"-{exercise}-" in one.id and "solution" in roles(one))


def test(nb: nbformat.NotebookNode, exercise: str) -> nbformat.NotebookNode:
    """The test cell of `ex2`."""
    return next(one for one in nb.cells if f"-{exercise}-" in one.id and "grade" in roles(one))


def roles(cell: nbformat.NotebookNode) -> set[str]:
    """What nbgrader's metadata calls a cell: "solution", "grade"."""
    return {role for role in ("solution", "grade") if cell.metadata.get("nbgrader", {}).get(role)}


#: Finds what a test compares with, once its text is known.
SOLVE = code(
    """
    import re

    def solve(text, x):
        found = re.search(r"assert square\\(x\\) == (.+?), f", text)
        return eval(found[1], {"x": x}) if found else 0
    """
)
