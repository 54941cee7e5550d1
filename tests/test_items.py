"""What the report says about the exercises themselves: difficulty, discrimination, and which checks hold."""

import itertools
import math
import re

import pytest

from autograder.insight import items, report
from autograder.insight.marks import ClassMarks, Mark, Student, Submission

NAMES = ("07-ex1-double", "07-ex2-square", "07-ex3-half")


def submission(number, scores, **more):
    """One notebook of three exercises of 4 points."""
    marks = [Mark(name, score, 4.0, score, "") for name, score in zip(NAMES, scores, strict=True)]
    return Submission(f"s{number:02}", "07_toy", sum(scores), 12.0, marks, **more)


def of_class(count=24):
    """Exercise 1 goes with the others, exercise 2 against them, exercise 3 is right in every notebook."""
    scores = [(good, 4.0 - good / 2, 4.0) for good in itertools.islice(itertools.cycle((0.0, 1.0, 3.0, 4.0)), count)]
    return [submission(number, points) for number, points in enumerate(scores)]


def page(graded, tmp_path):
    students = [Student(one.student) for one in graded]
    return report.page(ClassMarks(tmp_path, students, graded, []), tmp_path / "report.html")


def correlation(left, right):
    """Pearson's, from its definition."""
    a, b = (sum(values) / len(values) for values in (left, right))
    both = sum((x - a) * (y - b) for x, y in zip(left, right, strict=True))
    return both / math.sqrt(sum((x - a) ** 2 for x in left) * sum((y - b) ** 2 for y in right))


def test_numbers_are_those_of_test_theory():
    graded = of_class()
    graded[0].marks[0] = graded[0].marks[0]._replace(score=4.0)
    found = items.of_submissions(graded)
    for name in NAMES[:2]:
        own = [mark.score / 4 for one in graded for mark in one.marks if mark.exercise == name]
        rest = [sum(mark.score for mark in one.marks if mark.exercise != name) for one in graded]
        assert found[name].difficulty == pytest.approx(sum(own) / len(own))
        assert found[name].discrimination == pytest.approx(correlation(own, rest))
    assert found[NAMES[2]] == (1.0, None)


def test_an_exercise_is_not_correlated_with_itself():
    """Points that have nothing to do with the rest do not separate, although they are part of the total."""
    scores = itertools.product((0.0, 4.0), (0.0, 4.0), (0.0, 2.0, 4.0), (0, 1))
    graded = [submission(number, points[:3]) for number, points in enumerate(scores)]
    assert all(item.discrimination == pytest.approx(0) for item in items.of_submissions(graded).values())


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ((0.2, 0.5), "hard; separates"),
        ((0.95, 0.1), "easy; hardly separates"),
        ((0.5, -0.1), "neither easy nor hard; hardly separates"),
        ((0.5, -0.9), "neither easy nor hard; who did well in the rest did worse here"),
        ((1.0, None), "easy; it cannot separate"),
    ],
)
def test_numbers_are_said_in_words(item, said):
    assert items.in_words(items.Item(*item), 24).startswith(said)


def test_the_page_has_numbers_and_words(tmp_path):
    text = page(of_class(), tmp_path)
    (row,) = re.findall(r"<th[^>]*>Exercise 2: square<br>(.*?)</tr>", text, re.DOTALL)
    assert re.findall(r">([-\d.]+)</td>", row) == ["4", "0.75", "-1.00"] and "look at its statement" in row
    assert "chance alone takes it up to 0.41 from 0" in text


def test_of_a_small_class_the_page_says_why_there_are_none(tmp_path):
    text = page(of_class(items.LEAST - 1), tmp_path)
    assert "shown from 20 readable submissions on" in text and "Discrimination" not in text
    assert "Discrimination" in page(of_class(items.LEAST), tmp_path)


def test_what_could_not_be_read_or_is_not_graded_says_nothing_about_an_exercise():
    graded = [
        *of_class(20),
        submission(90, (0, 0, 0), problem="No notebook."),
        submission(91, (0, 0, 0), ungraded=True),
    ]
    assert items.of_submissions(graded) == items.of_submissions(graded[:20])
    graded[0].marks[1] = graded[0].marks[1]._replace(waits=True)
    assert NAMES[1] not in items.of_submissions(graded), "19 are too few"


def test_each_check_has_the_share_that_passes(tmp_path):
    graded = of_class(4)
    for number, one in enumerate(graded):
        one.tried = {NAMES[0]: [("It doubles.", number > 0), ("It takes 0.", True)][: 1 + number % 2]}
    graded[3].problem = "No notebook."
    assert items.properties(graded) == [(NAMES[0], "It doubles.", 2, 3), (NAMES[0], "It takes 0.", 1, 1)]
    assert "2 of 3" in page(graded, tmp_path) and "67 %" in page(graded, tmp_path)
