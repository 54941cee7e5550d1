"""The lessons that attacks are handed in for: the toy lesson, one on arrays, pieces of lessons 01 and 17 with ranks."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import nbformat
from nbformat.v4 import new_notebook

from autograder.lesson import notebook
from tests.helpers import toy_course

ARRAYS = "08_arrays"
RING = "09_ring"
CAPSTONE = "10_capstone"
#: Those that start ranks.
ON_RANKS = (RING, CAPSTONE)
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}

#: The tests import what they compare with; the libraries are those of whoever runs them.
ARRAY_TESTS = {
    "08-ex1-double-test": """\
import numpy as np
assert double(np.zeros(2)) is not None
### BEGIN HIDDEN TESTS
x = np.linspace(1, 2, 7)
np.testing.assert_allclose(double(x.copy()), 2 * x)
### END HIDDEN TESTS
""",
    "08-ex2-square-test": """\
import numpy as np
assert square(np.zeros(2)) is not None
### BEGIN HIDDEN TESTS
x = np.linspace(3, 4, 7)
got = square(x.copy())
assert isinstance(got, np.ndarray), "not an array"
assert np.allclose(got, x * x), "not the squares"
assert max(abs(got - x * x)) < 1e-9, "not quite the squares"
### END HIDDEN TESTS
""",
    "08-ex3-half-test": """\
import torch
assert half(torch.zeros(2)) is not None
### BEGIN HIDDEN TESTS
x = torch.linspace(5, 6, 7)
got = half(x.clone())
assert isinstance(got, torch.Tensor), "not a tensor"
assert torch.equal(got, x / 2), "not the halves"
### END HIDDEN TESTS
""",
}
RING_CELLS = ("01-imports", "01-ex1-broadcast", "01-ex1-broadcast-test", "01-ex3-all-gather", "01-ex3-all-gather-test")
#: The exercises of lesson 17 that are attacked; the others are in the lesson without their tests.
CAPSTONE_TESTS = tuple(f"17-{name}-test" for name in ("ex1-faults", "ex3-invariants", "ex5-verify"))


def solution(lesson: str) -> nbformat.NotebookNode:
    """The solution notebook of one of the four."""
    return {toy_course.LESSON: toy_course.lesson, ARRAYS: _arrays, RING: _ring, CAPSTONE: _capstone}[lesson]()


def files(lesson: str) -> list[Path]:
    """The files that the notebook finds beside itself, as students get them."""
    return sorted((notebook.NOTEBOOKS / "17_capstone").glob("*.py")) if lesson == CAPSTONE else []


def right(lesson: str) -> nbformat.NotebookNode:
    """The released notebook with the right answers."""
    return nbformat.from_dict(json.loads(_right(lesson)))


def full(lesson: str) -> dict[str, float]:
    """All points of one of the four, by exercise."""
    roles = [cell.metadata.get("nbgrader", {}) for cell in solution(lesson).cells]
    return {role["grade_id"].split("-")[1]: float(role["points"]) for role in roles if role.get("grade")}


@functools.cache
def _right(lesson: str) -> str:
    nb = solution(lesson)
    for cell in nb.cells:
        lines, hidden = [], False
        for line in cell.source.split("\n"):
            if "HIDDEN TESTS" in line:
                hidden = "BEGIN" in line
            elif not hidden and "### " not in line:
                lines.append(line)
        cell.source = "\n".join(lines)
    return json.dumps(nb)


def _arrays() -> nbformat.NotebookNode:
    """The toy lesson with other tests, and without texts."""
    nb = nbformat.from_dict(json.loads(json.dumps(toy_course.lesson()).replace('"07-', '"08-')))
    nb.cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    for cell in nb.cells:
        cell.source = ARRAY_TESTS.get(cell.id, cell.source)
    return nb


def _ring() -> nbformat.NotebookNode:
    """Two exercises of lesson 01, with their own tests: one that may use few rounds, one that may send few bytes."""
    cells = {cell.id: cell for cell in notebook.read("01_collectives").cells}
    return new_notebook(cells=[cells[name] for name in RING_CELLS], metadata=KERNEL)


def _capstone() -> nbformat.NotebookNode:
    """Lesson 17 without what only shows something, and with the tests of a few exercises."""
    kept = [cell for cell in notebook.read("17_capstone").cells if cell.cell_type == "code" and _is_kept(cell)]
    return new_notebook(cells=kept, metadata=KERNEL)


def _is_kept(cell: nbformat.NotebookNode) -> bool:
    role = cell.metadata.get("nbgrader", {})
    if role.get("grade"):
        return cell.id in CAPSTONE_TESTS
    return bool(role.get("solution")) or not cell.id.endswith(("-try", "-run", "-memory"))
