"""The matrix: the properties of each exercise, and which known wrong answers fail which.

A property that no known wrong answer fails alone may be one that no student needs, or one that another check tries as
well. Where that cannot be otherwise, it stands in `SHARED`, with the reason.
"""

from __future__ import annotations

from typing import NamedTuple

import nbformat

from autograder.answers import mutants
from autograder.answers.answer import Answer
from autograder.lessons import notebook, properties

#: Checks that no known wrong answer fails alone → why there can be none.
SHARED: dict[str, str] = {}


class Row(NamedTuple):
    """A check: its exercise, its weight, the known wrong answers that fail it, and those of them that fail it alone.

    Where one of the core's checks fails, nothing else counts: such an answer fails that check alone.
    """

    exercise: str
    check: str
    weight: str
    failing: list[str]
    alone: list[str]


def of_lesson(lesson: str) -> list[Row]:
    """The matrix of a lesson, from what its known wrong answers say that they fail."""
    rows, nb = [], notebook.read(lesson)
    for exercise, found in _properties(nb).items():
        core = found[0]
        wrong = {answer.name: answer.fails or (core.name,) for answer in mutants.of_exercise(exercise)}
        weights = {one.name: f"{one.points:g}" for one in found}
        for check in (name for one in found for name in one.checks):
            failing = [name for name, fails in wrong.items() if check in fails]
            alone = [name for name in failing if len(wrong[name]) == 1]
            rows.append(Row(exercise, check, weights.get(check, "core"), failing, alone))
    return rows


def differences(nb: nbformat.NotebookNode, answer: Answer, broken: dict[str, str]) -> list[str]:
    """In which checks of its exercise an answer differs from what it says that it fails, a sentence each.

    broken: the checks that it failed, as `notebook.grade` tells them.
    """
    core = _properties(nb)[answer.cell][0]
    said, failed = set(answer.fails or (core.name,)), broken.keys() - {""}
    return [
        *(f"it says that it fails {name}, but it does not" for name in sorted(said - failed)),
        *(f"it fails {name}, but does not say so: {broken[name]}" for name in sorted(failed - said)),
    ]


def complaints(lesson: str) -> list[str]:
    """A line for each check that no known wrong answer fails alone, and for each needless reason in SHARED."""
    rows = of_lesson(lesson)
    return [
        *(f"{row.check}: no known wrong answer to {row.exercise} fails it alone"
          for row in rows if not row.alone and row.check not in SHARED),
        *(f"{row.check}: {row.alone[0]} fails it alone: remove it from SHARED"
          for row in rows if row.alone and row.check in SHARED),
    ]  # fmt: skip


def text(lesson: str) -> str:
    """The matrix as a table: for each check its weight, and how many known wrong answers fail it, and alone."""
    lines, last = [f"{lesson:<64}{'points':>8}{'wrong answers':>16}{'alone':>8}"], ""
    for row in of_lesson(lesson):
        lines += [row.exercise] if row.exercise != last else []
        last = row.exercise
        lines.append(f"  {row.check:<62}{row.weight:>8}{len(row.failing):>16}{len(row.alone):>8}")
    return "\n".join(lines)


def _properties(nb: nbformat.NotebookNode) -> dict[str, list[properties.Property]]:
    """Exercise → its properties, the core first, for the exercises whose tests call checks."""
    tests = [cell for cell in nb.cells if notebook.nbgrader_role(cell) == "grade"]
    found = {cell.id.removesuffix("-test"): properties.of_test(cell) for cell in tests}
    return {exercise: of_test for exercise, of_test in found.items() if of_test[0].name}
