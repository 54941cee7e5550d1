"""The CSV files for Canvas and Moodle hold every score, come back as they went out, and run nothing."""

import csv
import io
import re

import pytest

from autograder.__main__ import main
from autograder.insight import lms, marks, report
from tests.helpers.graded_class import MORE, SCRIPT, build, count, totals
from tests.helpers.toy_course import LESSON


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build(tmp_path_factory.mktemp("class"))


@pytest.fixture(scope="module")
def counted(toy):
    return count(toy)


def back(text):
    """A name as it was before `lms.cell`, as its docstring says."""
    return re.sub(r"^'(?='*\s*[=+\-@\t\r])", "", text)


def rows_of(text):
    return list(csv.reader(io.StringIO(text, newline="")))


def test_canvas_gets_every_score(toy, counted, tmp_path, capsys):
    target = tmp_path / "canvas.csv"
    assert main(["report", "--course", str(toy.root), "--canvas", str(target)]) == 0
    assert f"{LESSON} (6), {MORE} (6)" in capsys.readouterr().out
    header, points, *rows = rows_of(target.read_text(encoding="utf-8"))
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", LESSON, MORE]
    assert points[0].strip() == "Points Possible" and points[1:] == ["", "", "", "", "6", "6"]
    assert {row[3] for row in rows} == {*totals(counted, LESSON), "lea", "mia"}
    for row in rows:
        for name, score in zip((LESSON, MORE), row[5:], strict=True):
            assert (float(score) if score else None) == totals(counted, name).get(row[3])
    (lea,) = [row for row in rows if row[3] == "lea"]
    assert lea == [f"O'Neill, {SCRIPT}, Lea", "4711", "", "lea", "", "", ""]


def test_moodle_gets_every_score(toy, counted, tmp_path):
    target = tmp_path / "moodle.csv"
    assert main(["report", "--course", str(toy.root), "--moodle", str(target)]) == 0
    header, *rows = rows_of(target.read_text(encoding="utf-8"))
    assert header == ["username", "email", "id", LESSON, MORE]
    assert {row[0] for row in rows} == {*totals(counted, LESSON), "lea", "mia"}
    for row in rows:
        for name, score in zip((LESSON, MORE), row[3:], strict=True):
            assert (None if score == "-" else float(score)) == totals(counted, name).get(row[0])
    assert ["lea", "lea@example.org", "4711", "-", "-"] in rows


ODD = ["=1+1", "'=1+1", "''=1+1", "'quoted", "-ada", "+1", "@bob", " =1+1", "\t=1", 'a"b', "a,b", "a;b", "ä ö", "0042"]


@pytest.mark.parametrize("kind", ["canvas", "moodle"])
def test_odd_ids_come_back_and_none_becomes_a_formula(kind, tmp_path):
    scores = {student: 1 / 3 + number for number, student in enumerate(ODD)}
    there = [marks.Submission(student, LESSON, score, 20.0, []) for student, score in scores.items()]
    found = marks.ClassMarks(tmp_path, [marks.Student(student) for student in ODD], there, [])
    rows = rows_of(getattr(lms, kind)(found))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not [text for row in rows for text in row if text.strip() and text.lstrip()[0] in "=+-@"]
    column, skip = (3, 2) if kind == "canvas" else (0, 1)
    got = {back(row[column]): float(row[-1]) for row in rows[skip:]}
    assert got == pytest.approx(scores)
    assert lms.quoted(found) == [student for student in ODD if re.match(r"'*\s*[=+@-]", student)]


def test_names_and_numbers_of_the_lms(tmp_path):
    students = [
        marks.Student("a", "Ann", "Lee", lms_user_id="17"),
        marks.Student("b", "Bo\nb", "", "=b@example.org", "sis-17"),
        marks.Student("c", "", "=Cy", lms_user_id="-3"),
    ]
    found = marks.ClassMarks(tmp_path, students, [marks.Submission("a", LESSON, 2.5, 6.0, [])], [("b", LESSON)])
    assert [row[:5] for row in rows_of(lms.canvas(found))[2:]] == [
        ["Lee, Ann", "17", "", "a", ""],
        ["Bo b", "", "sis-17", "b", ""],  # Canvas would read 17x as 17: no number, no ID
        ["'=Cy", "", "'-3", "c", ""],
    ]
    assert rows_of(lms.moodle(found)) == [
        ["username", "email", "id", LESSON],
        ["a", "", "17", "2.5"],
        ["b", "'=b@example.org", "sis-17", "-"],
        ["c", "", "'-3", "-"],
    ]


def test_an_id_with_an_apostrophe_is_told(tmp_path, capsys, monkeypatch):
    found = marks.ClassMarks(tmp_path, [marks.Student("-ada")], [marks.Submission("-ada", LESSON, 1, 6, [])], [])
    report._export(found, lms.moodle(found), tmp_path / "m.csv", "Moodle")
    assert "'-ada' would be a formula" in capsys.readouterr().err
