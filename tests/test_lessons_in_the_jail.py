"""Every lesson can be graded in the jail, where nothing of the autograder can be imported.

`grade` first grades the lesson's own solution there, and refuses a class if that loses a mark.
"""

from __future__ import annotations

import csv
import shutil

import pytest

from autograder.__main__ import main
from autograder.authoring import drafts
from autograder.lessons import notebook

pytestmark = [pytest.mark.jail, pytest.mark.slow, pytest.mark.thorough, pytest.mark.apart]


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_the_solution_gets_all_marks_in_the_jail(lesson, tmp_path, capsys):
    folder = tmp_path / "submitted" / "ada" / lesson
    shutil.copytree(notebook.NOTEBOOKS / lesson, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    assert main(["grade", "--course", str(tmp_path), "--jobs", "1", lesson]) == 0, capsys.readouterr().err
    [row] = csv.DictReader((tmp_path / "grades.csv").read_text().splitlines())
    least = 0 if drafts.is_draft(lesson) else 10
    assert row["score"] == "0" and float(row["max_score"]) > least, "what is handed in is not answered"
