"""What need not run for a grade does not, and everything else does."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.lesson import notebook, skippable


def cell(name: str, source: str, role: str = "", *tags: str) -> nbformat.NotebookNode:
    """A code cell of a lesson; role: "solution", "grade" or "" as `notebook.nbgrader_role` has it."""
    meta = {"nbgrader": {"solution": role == "solution", "grade": role == "grade"}} if role else {}
    return new_code_cell(source, id=name, metadata={**meta, "tags": list(tags)})


def lesson() -> nbformat.NotebookNode:
    """A setup cell, an answer, two cells that show something, and a test."""
    cells = [
        cell("setup", "import math\nfactor = 2", "", "setup"),
        cell("ex1", "def twice(x):\n    return factor * x", "solution"),
        cell("draw", "def draw(x):\n    return twice(x)\n\nnumbers = [1, 2]"),
        cell("show", "picture = draw(2)"),
        cell("ex1-test", "numbers = [3]\nassert [twice(x) for x in numbers] == [6]", "grade"),
    ]
    return new_notebook(cells=cells)


def skipped(changed: dict[str, str], more: list[str] = ()) -> set[str]:
    """What need not run where a student has changed cells, and added some."""
    cells = [cell(one.id, changed.get(one.id, one.source), notebook.nbgrader_role(one)) for one in lesson().cells]
    cells += [cell(f"own-{number}", source) for number, source in enumerate(more)]
    return skippable.skippable_cells(cells, lesson())


BOTH = {"draw", "show"}


@pytest.mark.parametrize(
    ("changed", "more", "unneeded"),
    [
        ({}, [], BOTH),
        ({"ex1": "def twice(x):\n    numbers = x\n    return x + numbers"}, [], BOTH),
        ({"ex1": "def twice(x):\n    return numbers[1] * x"}, [], {"show"}),
        ({"ex1": "def twice(x):\n    return picture"}, [], set()),  # which is made with what the other one defines
        ({"show": "picture = draw(3)"}, [], set()),
        ({"draw": "def draw(x):\n    return x"}, [], {"show"}),
        ({}, ["print(picture)"], set()),
        ({}, ["print(3)"], BOTH),
        ({"ex1": "def twice(model):\n    return model.eval()"}, [], BOTH),  # a method of that name reads nothing else
    ],
)
def test_only_what_an_answer_reads_and_a_student_changed_or_added_runs(changed, more, unneeded):
    assert skipped(changed, more) == unneeded


UNCERTAIN = [
    "globals()['draw']", "eval('picture')", "%run -n draw", "sys.modules['__main__']", "def f(:", "Out[3]",
    "locals()['draw']", "def f(x=vars()):\n    return x", "[locals() for _ in range(2)]",
]  # fmt: skip


@pytest.mark.parametrize("source", UNCERTAIN)
def test_where_nobody_can_say_what_is_read_everything_runs(source):
    assert skipped({}, [source]) == set()


def test_a_lesson_without_a_setup_cell_runs_whole():
    nb = lesson()
    nb.cells[0].metadata.tags = []
    assert skippable.skippable_cells(nb.cells, lesson()) == BOTH
    assert skippable.skippable_cells(nb.cells, nb) == set()


@pytest.mark.parametrize("call", ["locals()['factor']", "vars()", "vars(x)", "[locals() for _ in x]"])
def test_in_a_function_locals_are_its_own(call):
    assert skipped({"ex1": f"def twice(x, factor=2):\n    return {call} * x"}) == BOTH
    assert skipped({"ex1": f"class Twice:\n    def __call__(self, x):\n        return {call} * x"}) == BOTH


@pytest.mark.parametrize("name", notebook.lessons())
def test_a_right_notebook_needs_none_of_a_lessons_demonstrations(name):
    nb = notebook.read(name)
    code = [one for one in nb.cells if one.cell_type == "code"]
    needed = {one.id for one in code if notebook.is_setup(one) or notebook.nbgrader_role(one)}
    assert skippable.skippable_cells(nb.cells, nb) == {one.id for one in code} - needed != set()
