"""`python -m autograder report`: every number on the page is true, and nothing on it runs."""

import json
import re
import statistics
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urljoin

import nbformat
import pytest

from autograder.__main__ import main
from autograder.answers import wrong
from autograder.answers.answer import Answer
from autograder.checking.expect import count_of_ranks
from autograder.grading import scoring
from autograder.insight import charts, marks, mistakes, report
from tests.helpers import browser
from tests.helpers.graded_class import ADDS, EVE, MORE, ROOT_OF, SCRIPT, TWICE, build, count, totals
from tests.helpers.toy_course import LESSON, Toy, submission


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build(tmp_path_factory.mktemp("class"))


def known_wrong(name):
    return {LESSON: [TWICE, ADDS, ROOT_OF]}.get(name, [])


@pytest.fixture(scope="module")
def page(toy):
    """The page on that class, as text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrong, "of_lesson", known_wrong)
        assert main(["report", "--course", str(toy.root)]) == 0
    return (toy.root / "report.html").read_text(encoding="utf-8")


class Parsed(HTMLParser):
    """A page as its reader has it: tables by caption, pictures, links, headings, text; and every tag."""

    def __init__(self, page):
        super().__init__()
        self.tables, self.images, self.links, self.headings, self.tags = {}, [], [], [], []
        self._rows, self._text, self.text = [], None, ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag == "img":
            self.images.append(attributes)
        elif tag == "a":
            self.links.append(attributes["href"])
        if tag in ("td", "th", "caption", "h1", "h2", "h3"):
            self._text = ""
        elif tag in ("br", "li") and self._text:
            self._text += " "

    def handle_data(self, data):
        self.text += data
        if self._text is not None:
            self._text += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._rows[-1].append(" ".join(self._text.split()))
        elif tag == "caption":
            self._caption = self._text
        elif tag == "table":
            self.tables.setdefault(self._caption, []).append(self._rows)
        elif tag in ("h1", "h2", "h3"):
            self.headings.append((int(tag[1]), self._text))
        if tag in ("td", "th", "caption", "h1", "h2", "h3"):
            self._text = None

    def table(self, caption, number=0):
        """The rows below the head of a table, by the first words of its caption."""
        (rows,) = [tables for name, tables in self.tables.items() if name.startswith(caption)]
        return rows[number][1:]


@pytest.fixture(scope="module")
def parsed(page):
    return Parsed(page)


@pytest.fixture(scope="module")
def counted(toy):
    return count(toy)


# --- the numbers ----------------------------------------------------------------------------------------


def test_the_table_of_scores_is_the_gradebook(parsed, counted):
    toy, more = totals(counted, LESSON), totals(counted, MORE)
    assert len(toy) == 10 and len(more) == 2
    rows = {row[0]: row[1:] for row in parsed.table("Scores in points")}
    assert set(rows) == {*toy, *more, "mia"} | {f"lea Lea O'Neill, {SCRIPT}"}
    for student in toy:
        scores = [f"{found[student]:g}" if student in found else "–" for found in (toy, more)]
        assert rows[student] == [*scores, f"{toy[student] + more.get(student, 0):g}"], student
    assert rows["mia"] == ["–", "–", "0"]
    assert (toy["kim"], toy["ada"], toy["gus"]) == (4.5, 6, 0)


@pytest.mark.parametrize("name", [LESSON, MORE])
def test_a_lesson_s_sentence_says_what_the_gradebook_says(parsed, counted, name):
    scores = list(totals(counted, name).values())
    said = re.sub(r"\s+", " ", parsed.text)
    full = sum(score == 6 for score in scores)
    assert (
        f"{len(scores)} submissions; mean {round(statistics.mean(scores), 2):g}, "
        f"median {statistics.median(scores):g} of 6 points; full points: {full}."
    ) in said


@pytest.mark.parametrize("name", [LESSON, MORE])
def test_the_exercises_are_counted(parsed, counted, name):
    rows = parsed.table("Submissions with full points for each exercise", [LESSON, MORE].index(name))
    assert [row[0] for row in rows] == ["Exercise 1: double", "Exercise 2: square", "Exercise 3: half"]
    for row, test in zip(rows, ("07-ex1-double-test", "07-ex2-square-test", "07-ex3-half-test"), strict=True):
        marks = [mark for (_, where, cell), mark in counted.items() if (where, cell) == (name, test)]
        right = sum(score == most for score, most in marks)
        points = f"{marks[0][1]:g}"
        assert row[1:] == [points, f"{right} of {len(marks)}", f"{round(100 * right / len(marks))} %"]


def test_the_pictures_say_the_same_numbers(parsed, counted):
    assert len(parsed.images) == 4
    histogram, bars = (image["alt"] for image in parsed.images[:2])
    found = re.findall(r"(\d+) from ([\d.]+) to (\d+(?:\.\d+)?)", histogram)
    scores = totals(counted, LESSON).values()
    assert sum(int(number) for number, _, _ in found) == len(scores)
    for number, *ends in found:
        low, high = map(float, ends)
        assert int(number) == sum(low <= score < high or score == high == 6 for score in scores)
    for row in parsed.table("Submissions with full points for each exercise"):
        assert f"{row[0]}: {row[2]}" in bars


def test_lost_marks_are_counted_by_known_mistake(parsed):
    assert parsed.table("Known mistakes") == [
        ["You added two to the number. Multiply <it> by two.", "Exercise 1: double", "2", "bob, cyd"],
        ["You doubled twice.", "Exercise 1: double", "1", "cyd"],
    ]


def test_the_other_lost_marks_are_counted_by_what_happened(parsed, counted):
    rows = parsed.table("Marks lost without a known mistake")
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
    assert f"{len(lost)} lost marks: exercises without full points" in parsed.text
    # A lesson without known mistakes: what a known mistake of another lesson would say is none of its own.
    assert parsed.table("Marks lost without a known mistake", 1) == [[mistakes.WRONG, "1", "bob (1)"]]


def test_who_needs_a_look_and_why(parsed):
    rows = {row[0]: row[1] for row in parsed.table("8 submissions that a person should look at")}
    assert rows == {
        f"{EVE}, {LESSON}: feedback": f"The file is {SCRIPT}.",
        f"cyd, {LESSON}": "No points, although answers are written.",
        f"fay, {LESSON}": f"Exercise 2: {mistakes.ENDLESS}. Exercise 3: {mistakes.DIED}. "
        "No points, although answers are written.",
        f"gus, {LESSON}": "The autograder failed on it, so it has no points for now; .nbgrader.log says more.",
        f"ivy, {LESSON}": "Exercises 1, 3: The test cell was missing. Exercise 2: The test cell had been changed.",
        f"jon, {LESSON}": "No points, although answers are written.",
        f"kim, {LESSON}": "Exercise 2: square: 1.5 by hand, 0 from the autograder. "
        "Exercise 3: half: 2 by hand, 3 from the autograder.",
        f"mia, {LESSON}": "Not graded yet, or not completely: run python -m autograder grade.",
    }


def test_who_handed_in_nothing(parsed):
    rows = parsed.table("Students who have not handed in")
    assert rows[0] == [LESSON, "1", "lea"]
    assert rows[1][:2] == [MORE, "10"]
    assert set(rows[1][2].split(", ")) == {EVE, "cyd", "dan", "fay", "gus", "ivy", "jon", "kim", "lea", "mia"}


def test_links_lead_to_the_feedback(toy, parsed):
    (link,) = {link for link in parsed.links if not link.startswith("#")}
    assert browser_path(toy.root / "report.html", link).read_text() == "feedback"
    assert {link for link in parsed.links if link.startswith("#")} == {"#lesson-1", "#lesson-2"}


def browser_path(page, link):
    return Path(unquote(urljoin(page.as_uri(), link).removeprefix("file://")))


def test_links_also_lead_there_from_another_folder(toy, tmp_path):
    target = tmp_path / "here" / "class.html"
    assert main(["report", LESSON, "--course", str(toy.root), "--output", str(target)]) == 0
    found = Parsed(target.read_text(encoding="utf-8"))
    (link,) = {link for link in found.links if not link.startswith("#")}
    assert browser_path(target, link).read_text() == "feedback"
    assert MORE not in found.text


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


# --- what the comments mean -----------------------------------------------------------------------------


def test_what_grading_really_writes_is_understood(tmp_path, monkeypatch):
    toy = Toy(tmp_path / "class")
    nb = submission(ex1="def double(x):\n    return 0\n", ex2="def square(x):\n    return 1 / 0\n", ex3=None)
    del nb.cells[next(at for at, cell in enumerate(nb.cells) if cell.id == "07-ex3-half-test")]
    toy.grade(nb)
    (one,) = marks.read(toy.course).submissions
    hint = Answer("zero", LESSON, "07-ex1-double", "", "think of double", ("",))
    monkeypatch.setattr(wrong, "of_lesson", lambda name: [hint])
    assert [mistakes.answers_of(LESSON, mark) for mark in one.marks] == [[hint], [], []]
    kinds = [mistakes.kind(mark) for mark in one.marks]
    assert kinds == [mistakes.WRONG, "Raised ZeroDivisionError", mistakes.UNWRITTEN]
    assert list(one.notes) == ["07-ex3-half"] and "missing" in one.notes["07-ex3-half"][0]
    assert report.link(toy.root, toy.root / "report.html", "ada", LESSON) == f"feedback/ada/{LESSON}/{LESSON}.html"


def in_ranks(text):
    return f"With {count_of_ranks(4)}, {text}"


@pytest.mark.parametrize(
    ("comment", "kind"),
    [
        ("expected ValueError, got KeyError: 'x'", mistakes.WRONG),
        ("expected ValueError, but nothing was raised", mistakes.WRONG),
        ("Your code raised TypeError: no number", "Raised TypeError"),
        ("Your answer cell stopped with SyntaxError: ':'. The test stopped with NameError: half", "Raised SyntaxError"),
        ("rank 1: save_sharded raised OSError: no space", "Raised OSError"),
        ("The test stopped with no words", mistakes.WRONG),
        ("", mistakes.WRONG),
    ],
)
def test_kinds_of_lost_marks(comment, kind):
    assert mistakes.kind(marks.Mark("07-ex1-double", 0, 1, 0, comment)) == kind


def test_kinds_of_what_ranks_do():
    from ranks import errors, hang

    hung = [hang.headline([0, 1, 2, 3], 4), hang.headline([1], 4), hang.headline([1, 2], 4)]
    texts = {in_ranks(errors.HangError(text, ["rank 0: waits"], "", None)): mistakes.WAITING for text in hung}
    texts[in_ranks("the ranks did not finish within 20 s")] = mistakes.WAITING
    texts[in_ranks(errors.RankError(1, "KeyError", "'x'").headline)] = "Raised KeyError"
    died = errors.RankError(1, "", "was killed by SIGKILL without finishing the worker")
    texts[in_ranks(died.headline)] = mistakes.DIED
    for text, kind in texts.items():
        assert mistakes.kind(marks.Mark("07-ex1-double", 0, 1, 0, text)) == kind, text


@pytest.mark.parametrize("status", ["timeout", "out of time", "died"])
def test_an_answer_that_was_left_out_is_told_by_why(status):
    test = nbformat.from_dict(
        {"metadata": {"autograder": {"properties": [{"status": "error", "error": ["NameError", "half"]}]}}}
    )
    answer = nbformat.from_dict({"metadata": {"autograder": {"status": status}}})
    mark = marks.Mark("07-ex3-half", 0, 3, 0, scoring.reason(test, answer))
    assert mistakes.kind(mark) == (mistakes.DIED if status == "died" else mistakes.ENDLESS)


def test_a_hint_whose_end_was_cut_off_is_still_known(monkeypatch):
    long = Answer("long", LESSON, "07-ex1-double", "", "You did this " + "and that " * 20, ("",))
    monkeypatch.setattr(wrong, "of_lesson", lambda name: [TWICE, long])
    text = f"{'x' * (scoring.MAX_MESSAGE - 60)}\nHint: {long.hint}"[: scoring.MAX_MESSAGE]
    assert mistakes.answers_of(LESSON, marks.Mark("07-ex1-double", 0, 1, 0, text)) == [long]
    assert mistakes.answers_of(LESSON, marks.Mark("07-ex1-double", 0, 1, 0, text[-60:])) == []


# --- the page -------------------------------------------------------------------------------------------


def test_the_page_runs_and_fetches_nothing(page, parsed):
    assert SCRIPT not in page and "<img src=x" not in page
    assert SCRIPT in parsed.text and EVE in parsed.text
    assert not {"script", "iframe", "link", "object", "embed", "form", "base"} & {tag for tag, _ in parsed.tags}
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert attributes.get("src", "data:").startswith("data:image/svg+xml;base64,") or tag != "img"
    assert "http" not in re.sub('base64,[^"]*', "", page).replace("http-equiv", "")


def test_a_screen_reader_finds_its_way(parsed):
    levels = [level for level, _ in parsed.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    tags = [tag for tag, _ in parsed.tags]
    assert tags.count("table") == tags.count("caption") > 5
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in parsed.tags if tag == "th")
    assert all(len(image["alt"]) > 40 for image in parsed.images)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    named = {attributes["aria-labelledby"] for _, attributes in parsed.tags if "aria-labelledby" in attributes}
    assert len(set(ids)) == len(ids) and named <= set(ids)


def test_the_same_class_makes_the_same_page(toy, page):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrong, "of_lesson", known_wrong)
        assert report.page(marks.read(toy.course), toy.root / "report.html") == page


@pytest.mark.browser
def test_the_page_in_a_browser(toy, page):
    with browser.chromium() as chromium:
        tab = browser.Tab(chromium, 390, 800)
        tab.open((toy.root / "report.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.evaluate("document.title") == "Report: 12 submissions of 12 students"
        assert tab.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        assert not tab.outside and not tab.errors
        light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.page.emulate_media(color_scheme="dark")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light


# --- the command ----------------------------------------------------------------------------------------


def one_line(text):
    assert text.count("\n") == 1, text
    return text


def test_an_empty_course_is_one_line_and_stays_empty(tmp_path, capsys):
    assert main(["report", "--course", str(tmp_path), "--canvas", str(tmp_path / "c.csv")]) == 0
    assert f"nothing is graded in {tmp_path}; run `python -m autograder grade`" in one_line(capsys.readouterr().out)
    assert not list(tmp_path.iterdir())


def test_a_lesson_that_nobody_handed_in_is_one_line(tmp_path, capsys):
    assert main(["report", "03_step", "--course", str(tmp_path)]) == 0
    assert "nothing of 03_step is graded" in one_line(capsys.readouterr().out)


def test_an_unknown_lesson_is_one_line(capsys):
    assert main(["report", "99_nothing"]) == 2
    assert "no lesson '99_nothing'" in one_line(capsys.readouterr().err)


def test_a_missing_folder_is_one_line(tmp_path, capsys):
    assert main(["report", "--course", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in one_line(capsys.readouterr().err)


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
