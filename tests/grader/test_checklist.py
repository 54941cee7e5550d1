"""The list "What the grader checks" under each exercise: what it shows is what is graded."""

import re

import nbformat
import pytest

from autograder import checks
from autograder.checks.check import Check
from autograder.grade.nbgrader import checklist
from autograder.lesson import notebook

#: What stands in front of a sentence where there are several: what it is worth.
WORTH = re.compile(r"^(?:([\d.]+) points?|No points without this): ")
LIST = re.compile(r"<details><summary>What the grader checks</summary>\n\n(.*?)\n\n</details>\Z", re.DOTALL)


def listed(lesson: str) -> dict[str, list[str]]:
    """Exercise, such as 08-ex3 → the sentences that its released statement lists."""
    nb = nbformat.read(notebook.NOTEBOOKS / lesson / f"{lesson}.ipynb", as_version=4)
    found = {cell.id: LIST.search(cell.source) for cell in nb.cells if cell.cell_type == "markdown"}
    return {name: [line.removeprefix("- ") for line in match[1].split("\n")] for name, match in found.items() if match}


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_each_check_is_listed_under_its_exercise_and_nothing_else(lesson):
    exercises = [cell.id for cell in notebook.read(lesson).cells if notebook.nbgrader_role(cell) == "solution"]
    sentences = {
        checklist.statement_of(exercise): {one.sentence for one in checks.of_exercise(exercise)}
        for exercise in exercises
    }
    assert {name: {WORTH.sub("", line) for line in lines} for name, lines in listed(lesson).items()} == sentences


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_the_list_says_in_sentences_what_each_property_is_worth(lesson):
    tests = [cell for cell in notebook.read(lesson).cells if notebook.nbgrader_role(cell) == "grade"]
    for test in tests:
        lines = listed(lesson).get(checklist.statement_of(test.id), [])
        for text in (WORTH.sub("", line) for line in lines):
            assert text[-1] == "." and text[0] != "#" and len(text) < 130, text
        worth, points = [WORTH.match(line) for line in lines], test.metadata.nbgrader.points
        numbers = [float(match[1]) for match in worth if match and match[1]]
        assert {number % 0.25 for number in (points, *numbers)} == {0.0}, f"{test.id}: quarters of a point"
        if len(lines) > 1:
            assert all(worth) and sum(numbers) == points and numbers[0] == max(numbers), test.id


def test_a_check_without_a_docstring_is_named():
    def a_property(answer, *, rng):
        pass

    says = r"^tests/grader/test_checklist\.py:\d+: a_property needs a docstring whose first line says what it checks$"
    with pytest.raises(ValueError, match=says):
        _ = Check("98-ex1-a", 1.0, False, a_property).sentence
