"""Every lesson can be graded in the jail, where nothing of the autograder can be imported.

`grade` first grades the lesson's own solution there, and refuses a class if that loses a mark. So two notebooks per
lesson try three things: the solution, other right answers, and wrong answers. They take the whole way from the released
notebook to the gradebook; `test_audit` tries single answers in the jail.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import nbformat
import pytest

from autograder.__main__ import main
from autograder.answers import right, wrong
from autograder.answers.answer import Answer
from autograder.author import drafts
from autograder.lesson import names, notebook

pytestmark = [pytest.mark.jail, pytest.mark.slow, pytest.mark.apart]


def submit(root: Path, student: str, lesson: str, answers: dict[str, str]) -> None:
    """Hand in the released notebook with these answers, and with the lesson's own to all other exercises."""
    solution = {cell.id: cell.source for cell in notebook.read(lesson).cells}
    folder = root / "submitted" / student / lesson
    shutil.copytree(notebook.NOTEBOOKS / lesson, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.mine*"))
    nb = nbformat.read(folder / f"{lesson}.ipynb", as_version=4)
    for cell in nb.cells:
        if notebook.nbgrader_role(cell) == "solution":
            cell.source = answers.get(cell.id, solution[cell.id])
    nbformat.write(nb, folder / f"{lesson}.ipynb")


def independent(lesson: str, known: list[Answer]) -> list[Answer]:
    """Known answers to exercises of which none breaks another's test, or builds on another.

    Next to a wrong answer on which it builds, one may fail in another way than the one that its hint explains. Nor do
    right ones always go together: torch forbids to change what a reduce of lesson 12 returns, if it returns a view.
    """
    solution = notebook.read(lesson)
    below = names.builds_on({answer.cell for answer in known}, solution.cells, solution)
    found: list[Answer] = []
    for one in known:
        pairs = [pair for other in found for pair in ((one, other), (other, one))]
        if not any(a.cell == b.cell or f"{a.cell}-test" in b.breaks or a.cell in below[b.cell] for a, b in pairs):
            found.append(one)
    return found


def found_in(root: Path, student: str, lesson: str) -> dict[str, str]:
    """What the grader says of each test in which the student lost marks, by the test's own exercise."""
    nb = nbformat.read(root / "autograded" / student / lesson / f"{lesson}.ipynb", as_version=4)
    tests = [cell for cell in nb.cells if notebook.nbgrader_role(cell) == "grade"]
    return {
        test.id: test.metadata.autograder.comment
        for test in tests
        if any(one.status != "ok" and "carried" not in one for one in test.metadata.autograder.properties)
    }


@pytest.mark.thorough
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_known_answers_are_graded_in_the_jail_as_the_audit_says(lesson, tmp_path, capsys):
    """One notebook has other right answers, one wrong ones, to as many exercises as do not touch each other."""
    others, mistakes = (independent(lesson, load(lesson)) for load in (right.load_right, wrong.load_wrong))
    submit(tmp_path, "right", lesson, {answer.cell: answer.source for answer in others})
    submit(tmp_path, "wrong", lesson, {answer.cell: answer.source for answer in mistakes})
    assert main(["grade", "--course", str(tmp_path), "--jobs", "1", lesson]) == 0, capsys.readouterr().err
    rows = {row["student_id"]: row for row in csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())}
    assert rows["right"]["score"] == rows["right"]["max_score"], found_in(tmp_path, "right", lesson)
    said = found_in(tmp_path, "wrong", lesson)
    assert set(said) == {f"{answer.cell}-test" for answer in mistakes}, said
    assert not [answer.name for answer in mistakes if answer.hint not in said[f"{answer.cell}-test"]], said
    assert float(rows["wrong"]["score"]) < float(rows["wrong"]["max_score"])


@pytest.mark.thorough
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_the_solution_gets_all_marks_in_the_jail(lesson, tmp_path, capsys):
    folder = tmp_path / "submitted" / "ada" / lesson
    shutil.copytree(notebook.NOTEBOOKS / lesson, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    assert main(["grade", "--course", str(tmp_path), "--jobs", "1", lesson]) == 0, capsys.readouterr().err
    [row] = csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())
    least = 0 if drafts.is_draft(lesson) else 10
    assert row["score"] == "0" and float(row["max_score"]) > least, "what is handed in is not answered"
