"""A failed check keeps its seed, and `retry` fails it again in the same way."""

from __future__ import annotations

import nbformat
import pytest

from autograder.__main__ import main
from autograder.answers import wrong
from autograder.checks import check, hints
from autograder.checks.expect import CheckFailed, fail
from autograder.desk import marks
from autograder.grade.course import Course
from autograder.lesson import notebook

LESSON, EXERCISE = "03_step", "03-ex1-worker-gradient"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """One graded student, whose first exercise is wrong, whose second is right and whose others are not written."""
    root = tmp_path_factory.mktemp("class")
    nb = nbformat.read(notebook.NOTEBOOKS / LESSON / f"{LESSON}.ipynb", as_version=4)
    solution = {cell.id: cell.source for cell in notebook.read(LESSON).cells}
    known = next(known for known in wrong.of_exercise(EXERCISE) if known.name == "keeps_the_last_micro_batch")
    for cell in nb.cells:
        if cell.id == EXERCISE:
            cell.source = known.source
        if cell.id == "03-ex2-all-reduce-mean":
            cell.source = solution[cell.id]
    folder = root / "submitted" / "ada" / LESSON
    folder.mkdir(parents=True)
    nbformat.write(nb, folder / f"{LESSON}.ipynb")
    assert main(["grade", "--course", str(root), "--jobs", "1"]) == 0
    return root


def graded_test(course):
    nb = nbformat.read(course / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb", as_version=4)
    return next(cell for cell in nb.cells if cell.id == f"{EXERCISE}-test").metadata.autograder


def seed_of(test) -> str:
    """The seed of the property that failed."""
    return next(one.seed for one in test.properties if "seed" in one)


@pytest.mark.jail
def test_a_failure_is_repeated_to_the_digit(course, capsys, monkeypatch):
    monkeypatch.setenv(check.SEED, "1")  # a setting that is somebody else's: the seed that was kept counts
    graded = graded_test(course)
    assert main(["retry", "ada", LESSON, "03-ex1", "--course", str(course)]) == 1
    said = capsys.readouterr().out
    assert f"{check.SEED}={seed_of(graded)}" in said and graded.comment in said
    assert "another failure" not in said


@pytest.mark.jail
def test_another_seed_gives_other_numbers(course, capsys):
    path = course / "autograded" / "ada" / LESSON / f"{LESSON}.ipynb"
    kept = path.read_text()
    try:
        path.write_text(kept.replace(seed_of(graded_test(course)), "12345"))
        assert main(["retry", "ada", LESSON, EXERCISE, "--course", str(course)]) == 1
    finally:
        path.write_text(kept)
    assert "fails differently" in capsys.readouterr().out


@pytest.mark.jail
def test_the_seed_is_in_the_report_and_not_on_the_students_page(course, capsys):
    seed = seed_of(graded_test(course))
    assert main(["report", "--course", str(course)]) == 0
    assert seed in (course / "report.html").read_text()
    assert seed not in (course / "feedback" / "ada" / LESSON / f"{LESSON}.html").read_text()
    assert marks.read(Course(course)).submissions[0].outcomes[EXERCISE].lost[0].seed == seed


@pytest.mark.jail
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ada", LESSON, "03-ex2"], "did not fail: there is nothing to retry"),
        (["ada", LESSON, "03-ex9"], "has no exercise '03-ex9'; it has: 03-ex1-worker-gradient"),
        (["ada", LESSON, "nonsense"], "has no exercise 'nonsense'"),
        (["bob", LESSON, "03-ex1"], "03_step of 'bob' has not been graded here"),
        (["../ada", LESSON, "03-ex1"], "has not been graded here"),
        (["ada", "99_nothing", "03-ex1"], "no lesson '99_nothing'"),
    ],
)
def test_bad_input_is_one_line(course, capsys, arguments, says):
    assert main(["retry", *arguments, "--course", str(course)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


@check.check("03-ex1-worker-gradient", points=1)
def draws_a_number(function, *, rng):
    """Fails on every input."""
    number = int(rng.integers(10**9))
    fail(f"drew {number}", "case", number)


@pytest.mark.parametrize("shared", [None, 5])
def test_the_environment_sets_the_seed(monkeypatch, shared):
    monkeypatch.setattr("autograder.answers.wrong.of_exercise", lambda exercise: [])
    monkeypatch.setenv(check.SEED, "7")
    failures = []
    for _ in range(2):
        with hints.under(seed=shared), pytest.raises(CheckFailed) as caught:
            draws_a_number(None)
        failures.append(caught.value)
    assert [one.seed for one in failures] == [7, 7] and failures[0].failure.message == failures[1].failure.message
    monkeypatch.delenv(check.SEED)
    with hints.under(seed=shared), pytest.raises(CheckFailed) as caught:
        draws_a_number(None)
    assert caught.value.seed != 7 and (shared is None or caught.value.seed == shared)
    assert caught.value.failure.message != failures[0].failure.message


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", " 7", "٧"])
def test_a_seed_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv(check.SEED, text)
    with pytest.raises(ValueError, match="AUTOGRADER_SEED must be a whole number, 0 or more"):
        check.fresh_seed()
    with pytest.raises(ValueError, match="AUTOGRADER_SEED"):
        check.share_inputs()
