"""The matrix of properties and known wrong answers: each property is needed, and nobody loses more than is said."""

import dataclasses

import pytest

from autograder.answers import wrong
from autograder.audit import audit, matrix
from autograder.lesson import notebook

STEP, ADAM = "03_step", "03-ex3-adam-update"


@pytest.mark.parametrize("lesson", notebook.lessons())
def test_each_property_is_the_only_one_that_some_wrong_answer_fails(lesson):
    assert matrix.problems(lesson) == []


def test_exceptions_are_checks_and_lessons_that_exist():
    known = {row.check for lesson in notebook.lessons() for row in matrix.matrix_rows(lesson)}
    assert matrix.SHARED.keys() <= known


def test_a_property_that_nothing_fails_alone_is_named(monkeypatch):
    kept = [known for known in wrong.load_wrong(STEP) if "adam_corrects_late_updates_too" not in known.fails]
    monkeypatch.setattr("autograder.answers.wrong.load_wrong", lambda lesson: kept)
    said = f"adam_corrects_late_updates_too: no known wrong answer to {ADAM} fails it alone"
    assert matrix.problems(STEP) == [said]
    monkeypatch.setitem(matrix.SHARED, "weights_move_by_the_corrected_quotient", "no reason")
    line = next(one for one in matrix.problems(STEP) if one != said)
    assert line.startswith("weights_move_by_the_corrected_quotient: ")
    assert line.endswith(" fails it alone: remove it from SHARED")


@pytest.mark.parametrize("fails", [(), ("adam_moves_without_a_gradient",)])
def test_the_audit_notices_an_answer_that_fails_something_else(monkeypatch, fails):
    known = next(one for one in wrong.of_exercise(ADAM) if one.fails == ("adam_corrects_late_updates_too",))
    case = audit.Case(STEP, "wrong", known.name)
    assert audit.examine(case, thorough=False).problems == ()
    changed = dataclasses.replace(known, fails=fails)
    monkeypatch.setattr("autograder.answers.wrong.load_wrong", lambda lesson: [changed])
    said, old, new, why, *more = audit.examine(case, thorough=False).problems
    assert said == "what it fails has changed; if that is right: make audit LESSONS=03-ex3 RECORD=1"
    assert old.startswith(f"-  {known.name}: {fails[0] if fails else 'core'}")
    assert new == f"+  {known.name}: adam_corrects_late_updates_too"
    assert why.startswith("adam_corrects_late_updates_too fails: ")
    # No hint is searched for among the answers that are recorded to pass a check.
    assert [line[:46] for line in more] == ["03-ex3-adam-update-test does not show the hint"]


def test_the_table_has_a_line_for_each_property():
    lines = matrix.text(STEP).split("\n")
    assert lines[0].split() == ["03_step", "points", "wrong", "answers", "alone"]
    exercises = {row.exercise for row in matrix.matrix_rows(STEP)}
    assert len(lines) == 1 + len(exercises) + len(matrix.matrix_rows(STEP))
    rows = {row.check: row for row in matrix.matrix_rows(STEP)}
    line = next(line for line in lines if "weights_move_by_the_corrected_quotient" in line)
    assert line.split()[1:] == ["2", *[str(len(rows["weights_move_by_the_corrected_quotient"].failing))] * 2]
