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
from dataclasses import dataclass, field
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
    """

    name: str
    tries: str
    make: Callable[[nbformat.NotebookNode], Any]
    worth: dict[str, float] = field(default_factory=WITHOUT_EX2.copy)
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
    """Source without the indentation and the line breaks that it has in these files."""
    return textwrap.dedent(source).strip() + "\n"


def written(text: str, **kinds: Callable[[str, str, str], Attack]) -> list[Attack]:
    """Attacks that are written one below the other.

    Each is a line `=== kind: name`, a comment that says what it tries, and its source. kinds: what makes an attack of
    the three, besides those that `by_answer`, `by_cell` and `beside_answers` make.
    """
    kinds = {"answer": by_answer, "cell": by_cell, "honest": beside_answers} | kinds
    found = []
    for part in text.split("\n=== ")[1:]:
        head, tries, source = part.split("\n", 2)
        kind, name = head.split(": ")
        found.append(kinds[kind](name, tries.removeprefix("# "), source))
    return found


def by_answer(name: str, tries: str, source: str, head: str = "", **more: Any) -> Attack:
    """An attack by the second answer, which begins with `head`."""
    return Attack(name, tries, with_answers(ex2=head + code(source)), **more)


def by_cell(name: str, tries: str, source: str, head: str = "", **more: Any) -> Attack:
    """An attack by a cell of the student's own, which begins with `head`; the second answer is wrong."""
    return Attack(name, tries, with_answers(head + code(source), ex2=toy_course.WRONG_SQUARE), **more)


def beside_answers(name: str, tries: str, source: str) -> Attack:
    """An attack by a cell of the student's own; all answers are right."""
    return Attack(name, tries, with_answers(source), FULL)


def with_answers(cell: str = "", place: int = 2, **answers: str) -> Callable[[nbformat.NotebookNode], None]:
    """Make: these answers, as in `ex2="…"`, and a cell of the student's own at this place, below the imports."""

    def make(nb: nbformat.NotebookNode) -> None:
        for exercise, source in answers.items():
            set_answer(nb, exercise, source)
        if cell:
            nb.cells.insert(place, new_code_cell(code(cell), id="mine"))

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
