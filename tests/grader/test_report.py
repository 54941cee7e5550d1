"""`autograder report`: every number on its page and in its files for Canvas and Moodle is true, and nothing runs."""

import csv
import io
import json
import re
import statistics
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urljoin

import nbformat
import pytest
from bs4 import BeautifulSoup

import ranks
from autograder.__main__ import main
from autograder.answers import wrong
from autograder.checks import check, expect, hints, stage
from autograder.checks.expect import CheckFailed, Failure
from autograder.desk import charts, lms, marks, mistakes, report
from autograder.grade.outcome import CellOutcome, Tried
from autograder.grade.pages import feedback
from autograder.grade.running import run_cells
from autograder.grade.running.kernels import Reply
from ranks.errors import HangError, RankError
from tests.helpers import browser
from tests.helpers.graded_class import ADDS, EVE, MORE, ROOT_OF, SCRIPT, TWICE, build, count, totals
from tests.helpers.report_tables import rows_of_table
from tests.helpers.toy_course import LESSON, Toy, submission


def test_each_check_has_the_share_that_passes(tmp_path):
    graded = [
        marks.Submission(f"s{i}", LESSON, 4.0, 4.0, [marks.Mark("07-ex1-double", 4.0, 4.0, 4.0, "")]) for i in range(4)
    ]
    for i, one in enumerate(graded):
        tried = [Tried("ok" if i else "error", says="It doubles."), Tried("ok", says="It takes 0.")][: 1 + i % 2]
        one.outcomes = {"07-ex1-double": CellOutcome(properties=tried)}
    graded[3].problem = "No notebook."
    rows = [("07-ex1-double", "It doubles.", 2, 3), ("07-ex1-double", "It takes 0.", 1, 1)]
    assert mistakes.properties(graded) == rows
    page = report.page(marks.ClassMarks(tmp_path, [], graded, []), tmp_path / "report.html")
    assert "2 of 3" in page and "67 %" in page


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build(tmp_path_factory.mktemp("class"))


ADDS_HINT = "You added two to the number. Multiply <it> by two."


def known_wrong(name):
    return {LESSON: [TWICE, ADDS, ROOT_OF]}.get(name, [])


@pytest.fixture(scope="module")
def page(toy):
    """The page on that class, as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrong, "load_wrong", known_wrong)
        assert main(["report", "--course", str(toy.root)]) == 0
    return (toy.root / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parsed(page):
    return BeautifulSoup(page, "html.parser")


@pytest.fixture(scope="module")
def counted(toy):
    return count(toy)


# --- the numbers ----------------------------------------------------------------------------------------


def test_the_table_of_scores_is_the_gradebook(parsed, counted):
    toy, more = totals(counted, LESSON), totals(counted, MORE)
    assert len(toy) == 10 and len(more) == 2
    rows = {row[0]: row[1:] for row in rows_of_table(parsed, "Scores in points")}
    assert set(rows) == {*toy, *more, "mia"} | {f"lea Lea O'Neill, {SCRIPT}"}
    for student in toy:
        scores = [f"{found[student]:g}" if student in found else "–" for found in (toy, more)]
        assert rows[student] == [*scores, f"{toy[student] + more.get(student, 0):g}"], student
    assert rows["mia"] == ["–", "–", "0"]
    assert (toy["kim"], toy["ada"], toy["gus"]) == (4.5, 6, 0)


@pytest.mark.parametrize("name", [LESSON, MORE])
def test_a_lesson_s_sentence_says_what_the_gradebook_says(parsed, counted, name):
    scores = list(totals(counted, name).values())
    said = re.sub(r"\s+", " ", parsed.get_text())
    full = sum(score == 6 for score in scores)
    assert (
        f"{len(scores)} submissions; mean {round(statistics.mean(scores), 2):g}, "
        f"median {statistics.median(scores):g} of 6 points; full points: {full}."
    ) in said


@pytest.mark.parametrize("name", [LESSON, MORE])
def test_the_exercises_are_counted(parsed, counted, name):
    rows = rows_of_table(parsed, "Submissions with full points for each exercise", [LESSON, MORE].index(name))
    assert [row[0] for row in rows] == ["Exercise 1: double", "Exercise 2: square", "Exercise 3: half"]
    for row, test in zip(rows, ("07-ex1-double-test", "07-ex2-square-test", "07-ex3-half-test"), strict=True):
        marks = [mark for (_, where, cell), mark in counted.items() if (where, cell) == (name, test)]
        right = sum(score == most for score, most in marks)
        points = f"{marks[0][1]:g}"
        assert row[1:] == [points, f"{right} of {len(marks)}", f"{round(100 * right / len(marks))} %"]


def test_the_pictures_say_the_same_numbers(parsed, counted):
    assert len(parsed.find_all("img")) == 4
    histogram, bars = (image["alt"] for image in parsed.find_all("img")[:2])
    found = re.findall(r"(\d+) from ([\d.]+) to (\d+(?:\.\d+)?)", histogram)
    scores = totals(counted, LESSON).values()
    assert sum(int(number) for number, _, _ in found) == len(scores)
    for number, *ends in found:
        low, high = map(float, ends)
        assert int(number) == sum(low <= score < high or score == high == 6 for score in scores)
    for row in rows_of_table(parsed, "Submissions with full points for each exercise"):
        assert f"{row[0]}: {row[2]}" in bars


def test_lost_marks_are_counted_by_known_mistake(parsed):
    """And fay's error, whose own text says `Hint:` and what a hint says, is not counted."""
    assert rows_of_table(parsed, "Known mistakes") == [
        [ADDS_HINT, "Exercise 1: double", "2", "bob, cyd"],
        ["You doubled twice.", "Exercise 1: double", "1", "cyd"],
    ]


def test_the_other_lost_marks_are_counted_by_what_happened(parsed, counted):
    rows = rows_of_table(parsed, "Marks lost without a known mistake")
    assert rows == [
        [mistakes.WRONG, "5", "fay (1), jon (1, 2, 3), kim (2)"],
        [mistakes.UNWRITTEN, "4", "cyd (3), dan (1, 2, 3)"],
        [mistakes.UNREADABLE, "3", f"{EVE} (1, 2, 3)"],
        [mistakes.FAILED, "3", "gus (1, 2, 3)"],
        [mistakes.ENDLESS, "1", "fay (2)"],
        [mistakes.DIED, "1", "fay (3)"],
        [mistakes.RAISED.format("TypeError"), "1", "bob (2)"],
        [mistakes.FOLLOWS, "1", "cyd (2)"],
        [mistakes.BY_HAND, "1", "kim (3)"],
    ]
    lost = [key for key, (score, most) in counted.items() if key[1] == LESSON and score < most]
    assert len(lost) == 2 + sum(int(row[1]) for row in rows)  # bob's and cyd's are known
    assert f"{len(lost)} lost marks: exercises without full points" in parsed.get_text()
    assert rows_of_table(parsed, "Known mistakes", 1) == [[ADDS_HINT, "Exercise 1: double", "1", "bob"]]


def test_who_needs_a_look_and_why(parsed):
    rows = {row[0]: row[1] for row in rows_of_table(parsed, "8 submissions that a person should look at")}
    assert rows == {
        f"{EVE}, {LESSON}: feedback": f"The file is {SCRIPT}.",
        f"cyd, {LESSON}": "No points, although answers are written.",
        f"fay, {LESSON}": f"Exercise 2: {mistakes.ENDLESS}. Exercise 3: {mistakes.DIED}. "
        "No points, although answers are written.",
        f"gus, {LESSON}: feedback": "The autograder failed on it, so it has no points for now; "
        ".nbgrader.log says more.",
        f"ivy, {LESSON}": "Exercises 1, 3: The test cell was missing. Exercise 2: The test cell had been changed.",
        f"jon, {LESSON}": "No points, although answers are written.",
        f"kim, {LESSON}": "Exercise 2: square: 1.5 by hand, 0 from the autograder. "
        "Exercise 3: half: 2 by hand, 3 from the autograder.",
        f"mia, {LESSON}": "Not graded yet, or not completely: run autograder grade.",
    }


def test_who_handed_in_nothing(parsed):
    rows = rows_of_table(parsed, "Students who have not handed in")
    assert rows[0] == [LESSON, "1", "lea"]
    assert rows[1][:2] == [MORE, "10"]
    assert set(rows[1][2].split(", ")) == {EVE, "cyd", "dan", "fay", "gus", "ivy", "jon", "kim", "lea", "mia"}


def test_links_lead_to_the_feedback(toy, parsed):
    links = {one["href"] for one in parsed.find_all("a")}
    (link,) = {link for link in links if not link.startswith("#") and "gus" not in link}
    assert browser_path(toy.root / "report.html", link).read_text() == "feedback"
    assert {link for link in links if link.startswith("#")} == {"#lesson-1", "#lesson-2"}


def browser_path(page, link):
    return Path(unquote(urljoin(page.as_uri(), link).removeprefix("file://")))


def test_links_also_lead_there_from_another_folder(toy, tmp_path):
    target = tmp_path / "here" / "class.html"
    assert main(["report", LESSON, "--course", str(toy.root), "--output", str(target)]) == 0
    found = BeautifulSoup(target.read_text(encoding="utf-8"), "html.parser")
    links = {one["href"] for one in found.find_all("a")}
    (link,) = {link for link in links if not link.startswith("#") and "gus" not in link}
    assert browser_path(target, link).read_text() == "feedback"
    assert MORE not in found.get_text()


@pytest.mark.parametrize(
    ("scores", "most", "bins"),
    [
        ([0, 0.5, 1, 9.9, 10, 10], 10, [2, 1, 0, 0, 0, 0, 0, 0, 0, 3]),
        ([3 * 0.1], 1, [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
        ([-1, 12], 10, [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ([0], 0, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_every_score_is_in_one_bar(scores, most, bins):
    assert charts.distribution(scores, most) == bins
    assert "alt" in charts.scores("07_toy", scores, most)._fields


# --- what grading leaves ---------------------------------------------------------------------------------


def test_what_grading_really_writes_is_understood(tmp_path):
    toy = Toy(tmp_path / "class")
    nb = submission(ex1="def double(x):\n    return 0\n", ex2="def square(x):\n    return 1 / 0\n", ex3=None)
    del nb.cells[next(at for at, cell in enumerate(nb.cells) if cell.id == "07-ex3-half-test")]
    toy.grade(nb)
    (one,) = marks.read(toy.course).submissions
    kinds = [mistakes.kind(mark, one) for mark in one.marks]
    assert kinds == [mistakes.WRONG, "Raised ZeroDivisionError", mistakes.UNWRITTEN]
    assert [name for name, test in one.outcomes.items() if test.notes] == ["07-ex3-half"]
    assert "missing" in one.outcomes["07-ex3-half"].notes[0]
    assert report.link(toy.root, toy.root / "report.html", "ada", LESSON) == f"feedback/ada/{LESSON}/{LESSON}.html"


LOST = marks.Mark("07-ex1-double", 0, 1, 0, "")


def lost_by(*failures, **more):
    """A submission whose exercise 1 failed so."""
    test = CellOutcome(properties=[Tried("error", failure) for failure in failures])
    return marks.Submission("ada", LESSON, 0, 1, [LOST], outcomes={LOST.exercise: test}, **more)


def why(status, name="", text=""):
    return run_cells.failure_of(Reply(status, error=(name, text)))


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ([why("error", "AssertionError", "it raised TypeError")], mistakes.WRONG),
        ([why("error", "TypeError", "no number")], "Raised TypeError"),
        ([why("error", "SyntaxError", ":"), why("error", "NameError", "half")], "Raised SyntaxError"),
        ([why("timeout"), why("error", "NameError", "half")], mistakes.ENDLESS),
        ([why("out of time")], mistakes.ENDLESS),
        ([why("died")], mistakes.DIED),
        ([why("error", "NotImplementedError", "write this function")], mistakes.UNWRITTEN),
        ([why("error", "AssertionError"), why("error", "NotImplementedError")], mistakes.UNWRITTEN),
        ([why("error", "Long" * 20, "")], mistakes.WRONG),
        ([why("error", SCRIPT, "")], mistakes.WRONG),
        ([Failure("outdated")], mistakes.OUTDATED),
        ([], mistakes.WRONG),
    ],
)
def test_kinds_of_lost_marks(failures, kind):
    assert mistakes.kind(LOST, lost_by(*failures)) == kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (HangError("rank 1 waits forever", ["rank 1: waits"], "", None), mistakes.WAITING),
        (RankError(1, "KeyError", "'x'"), "Raised KeyError"),
        (RankError(1, "", "was killed by SIGKILL without finishing the worker"), mistakes.DIED),
        (RankError(1, "NotImplementedError", "write this function"), mistakes.UNWRITTEN),
        (KeyError("x"), "Raised KeyError"),
        (CheckFailed("rank 1: save_sharded raised OSError: no space"), mistakes.WRONG),
    ],
)
def test_kinds_of_what_a_check_sees(monkeypatch, error, kind):
    """Whether the ranks are started by the check or by the answer."""

    def run(*_, **__):
        raise error

    monkeypatch.setattr(ranks, "run", run)
    for body in (lambda *, rng: stage.run_ranks(print, 4, ()), lambda *, rng: ranks.run()):
        with pytest.raises(CheckFailed) as caught, hints.later():
            check.check("07-ex1-double", points=1)(body)()
        assert mistakes.kind(LOST, lost_by(run_cells.failure_of(Reply("error", raised=caught.value)))) == kind


def test_an_error_that_a_check_caught_and_tells_is_counted_as_one():
    with pytest.raises(CheckFailed) as caught:
        expect.fail("rank 1 raised OSError: no space", "2 ranks", [], "OSError")
    assert mistakes.kind(LOST, lost_by(run_cells.failure_of(Reply("error", raised=caught.value)))) == "Raised OSError"


def test_a_class_of_an_earlier_version_is_read_without_its_reasons(tmp_path):
    """Before failures were records, a notebook kept sentences: nobody reads them, and nothing stops."""
    toy = Toy(tmp_path / "class")
    toy.grade(submission(ex1="def double(x):\n    return 0\n"))
    path = toy.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb"
    nb = nbformat.read(path, as_version=4)
    (one,) = next(cell for cell in nb.cells if cell.id == "07-ex1-double-test").metadata.autograder.properties
    one.error = ["CheckFailed", "double(3) is 0\nHint: think"]
    del one["failure"]
    nbformat.write(nb, path)
    assert main(["report", "--course", str(toy.root)]) == 0
    assert mistakes.OUTDATED in (toy.root / "report.html").read_text()
    page = feedback.page(nb, {"notebook": LESSON, "student": "ada", "score": 5.0, "max_score": 6.0})
    assert "an earlier version of the grader ran it" in page and "Hint: think" not in page
    path.unlink()
    (one,) = marks.read(toy.course).submissions
    assert mistakes.kind(one.marks[0], one) == mistakes.OUTDATED, "it has points, so the autograder did not fail"


# --- the page -------------------------------------------------------------------------------------------


def test_the_page_runs_and_fetches_nothing(page, parsed):
    assert SCRIPT not in page and "<img src=x" not in page
    assert SCRIPT in parsed.get_text() and EVE in parsed.get_text()
    assert not parsed.find_all(["script", "iframe", "link", "object", "embed", "form", "base"])
    assert not [tag for tag in parsed.find_all(True) if any(name.startswith("on") for name in tag.attrs)]
    assert all(image.get("src", "data:").startswith("data:image/svg+xml;base64,") for image in parsed.find_all("img"))
    assert "http" not in re.sub('base64,[^"]*', "", page).replace("http-equiv", "")


def test_a_screen_reader_finds_its_way(parsed):
    levels = [int(heading.name[1]) for heading in parsed.find_all(["h1", "h2", "h3"])]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(parsed.find_all("table")) == len(parsed.find_all("caption")) > 5
    assert all(head.get("scope") in ("row", "col") for head in parsed.find_all("th"))
    assert all(len(image["alt"]) > 40 for image in parsed.find_all("img"))
    ids = [tag["id"] for tag in parsed.find_all(id=True)]
    named = {tag["aria-labelledby"] for tag in parsed.find_all(attrs={"aria-labelledby": True})}
    assert len(set(ids)) == len(ids) and named <= set(ids)


def test_the_same_class_makes_the_same_page(toy, page):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrong, "load_wrong", known_wrong)
        assert report.page(marks.read(toy.course), toy.root / "report.html") == page


@pytest.mark.browser
def test_the_page_in_a_browser(toy, page, chromium):
    tab = browser.Tab(chromium, 390, 800)
    tab.open((toy.root / "report.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.evaluate("document.title") == "Report: 12 submissions of 12 students"
    assert tab.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert not tab.outside and not tab.errors
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.page.emulate_media(color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light


# --- the files for Canvas and Moodle ----------------------------------------------------------------------


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
    graded = [marks.Submission("a", LESSON, 2.5, 6.0, []), marks.Submission("c", LESSON, 1.0, 6.0, [])]
    found = marks.ClassMarks(tmp_path, students, graded, [("b", LESSON), ("c", LESSON)])  # c has handed in anew
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


# --- the command ----------------------------------------------------------------------------------------


def one_line(text):
    assert text.count("\n") == 1, text
    return text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--canvas", "c.csv"], "nothing is graded in {}; run `autograder grade`"),
        (["03_step"], "nothing of 03_step is graded"),
    ],
)
def test_where_nothing_is_graded_it_says_so_in_one_line_and_writes_nothing(
    tmp_path, monkeypatch, capsys, arguments, said
):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--course", str(tmp_path), *arguments]) == 0
    assert said.format(tmp_path) in one_line(capsys.readouterr().out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["grade", "report"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["99_nothing"], "no lesson '99_nothing'"), (["--course", "/nowhere"], "there is no folder /nowhere: ")],
)
def test_a_lesson_or_folder_that_does_not_exist_is_one_line(capsys, command, arguments, said):
    assert main([command, *arguments]) == 2
    assert said in one_line(capsys.readouterr().err)


def test_a_folder_as_output_is_one_line(toy, tmp_path, capsys):
    assert main(["report", "--course", str(toy.root), "--output", str(tmp_path)]) == 2
    assert "is a folder: name a file in it" in one_line(capsys.readouterr().err)


def test_a_notebook_that_somebody_broke_afterwards_does_not_stop_the_report(toy):
    path = toy.root / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb"
    before = path.read_text()
    try:
        for text in ("", "{", "[]", json.dumps({"cells": [{"metadata": None}], "metadata": {}})):
            path.write_text(text)
            assert {one.student for one in marks.read(toy.course).submissions} >= {"ada"}
    finally:
        path.write_text(before)
