"""`autograder regrade`: what a corrected test changes, student by student; points by hand stay."""

import pytest

from autograder.__main__ import main
from autograder.desk.marks import Mark
from autograder.desk.regrade import difference
from tests.helpers.toy_course import LESSON, Toy, cell, submission

pytestmark = pytest.mark.jail

#: The hidden test of exercise 2 tried only these numbers at first, and let this answer pass.
NARROW = "def square(x):\n    return {3: 9, 5: 25, 8: 64}.get(x, 0)\n"


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Three students, graded: ada is right, bob's answer knows the hidden inputs, cid has left exercise 1."""
    toy = Toy(tmp_path_factory.mktemp("class"))
    toy.hand_in("ada", submission())
    toy.hand_in("bob", submission(ex2=NARROW))
    toy.hand_in("cid", submission(ex1=None))
    assert not toy.course.grade()
    return toy


@pytest.fixture
def course(graded, tmp_path):
    return graded.copy(tmp_path)


def add_an_input(nb):
    test = cell(nb, "07-ex2-square-test")
    test.source = test.source.replace("[3, 5, 8]", "[3, 5, 8, 11]")


def regrade(course, capsys, *more):
    capsys.readouterr()
    status = main(["regrade", "--course", str(course.root), "--timeout", "5", *more])
    return status, capsys.readouterr().out


def test_only_the_student_whose_mark_changes_is_named_with_the_reason(course, capsys):
    course.teach(add_an_input)
    status, out = regrade(course, capsys)
    assert status == 0
    assert out.splitlines() == [
        "bob",
        f"  {LESSON}  07-ex2-square: 2 of 2 → 0 of 2: it passed before; now: square(11) is 0: think of square",
        "1 of 9 marks changed, of 1 student.",
    ]
    assert course.points("bob") == {"ex1": 1.0, "ex2": 0.0, "ex3": 3.0}


def test_points_by_hand_stay_and_are_said_to(course, capsys):
    course.enter("bob", "07-ex2-square", 1.5, "See me.")
    course.teach(add_an_input)
    status, out = regrade(course, capsys)
    assert status == 0
    assert "1.5 of 2 → 1.5 of 2, given by hand, stays; the autograder now gives 0 instead of 2" in out
    assert course.points("bob")["ex2"] == 1.5
    with course.course.gradebook() as gradebook:
        assert gradebook.find_comment("07-ex2-square", LESSON, LESSON, "bob").comment == "See me."


def test_nothing_is_graded_where_nothing_has_changed(course, capsys):
    page = course.root / "feedback" / "ada" / LESSON / f"{LESSON}.html"
    before = page.stat().st_mtime_ns
    assert regrade(course, capsys) == (0, "None of the 9 marks has changed.\n")
    assert page.stat().st_mtime_ns == before
    assert regrade(course, capsys, "--force") == (0, "None of the 9 marks has changed.\n")
    assert page.stat().st_mtime_ns > before


def test_a_test_that_became_kinder_says_what_was_wrong_before(course, capsys):
    course.teach(lambda nb: cell(nb, "07-ex1-double-test").update(source='"""Anything will do."""'))
    status, out = regrade(course, capsys)
    assert status == 0
    assert "07-ex1-double: 0 of 1 → 1 of 1: it passes now; before: This exercise is not written yet." in out


def test_an_extension_that_changes_a_total_is_said(course, capsys):
    (course.root / "submitted" / "ada" / LESSON / "timestamp.txt").write_text("2026-11-03 12:00:00 UTC")
    late = "[late]\npenalty_per_day = 0.25\n[lessons.07]\ndue = 2026-11-01T12:00:00\n"
    (course.root / "course.toml").write_text(late)
    assert f"ada  {LESSON}: lateness costs 3 points now, 0 before\n" in regrade(course, capsys)[1]
    (course.root / "course.toml").write_text(f"{late}[extensions.ada]\n07 = 2026-11-05\n")
    assert f"ada  {LESSON}: lateness costs 0 points now, 3 before\nNone of the 9" in regrade(course, capsys)[1]


def test_other_points_for_what_passed_before_are_no_new_pass():
    old = Mark("07-ex1-double", 6, 6, 6, "")
    assert difference(old, Mark("07-ex1-double", 8, 8, 8, "")) == (
        "6 of 6 → 8 of 8: it passed before, too, and is worth other points now"
    )


def test_before_anything_was_graded_it_says_so(tmp_path, capsys):
    toy = Toy(tmp_path / "class")
    toy.hand_in("ada", submission())
    status, out = regrade(toy, capsys)
    assert status == 0
    assert out == "Nothing has been graded yet: run `autograder grade` first.\n"
