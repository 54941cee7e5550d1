"""A graded class with one of everything, made without a kernel, and its scores as the database itself has them."""

from __future__ import annotations

import copy
import sqlite3
from dataclasses import replace
from pathlib import Path

import nbformat
from nbformat.v4 import new_notebook

from autograder.answers.answer import Answer
from autograder.checks.expect import CheckFailed, Hint
from autograder.grade import outcome
from autograder.grade.nbgrader import restore, scoring
from autograder.grade.outcome import CellOutcome, Tried
from autograder.grade.running import run_cells
from autograder.grade.running.kernels import Reply
from autograder.grade.running.run_cells import is_test
from tests.helpers.toy_course import LESSON, Toy, lesson

#: A second lesson, with the same exercises.
MORE = "08_more"
#: Known wrong answers to LESSON.
TESTS = ("07-ex1-double-test", "07-ex2-square-test", "07-ex3-half-test")
ADDS = Answer("adds", LESSON, TESTS[0][:-5], "", "You added two\n    to the number. Multiply <it> by two.", TESTS[:1])
TWICE = Answer("twice", LESSON, TESTS[0][:-5], "", "You doubled twice.", TESTS)
ROOT_OF = Answer("root_of", LESSON, TESTS[1][:-5], "", "You took the root.", TESTS[1:2])
#: What must never run: a script, and the name of a student.
SCRIPT = "<script>document.title='planted'</script>"
EVE = "<img src=x onerror=document.title='planted'>"


def stopped(status: str, name: str = "", text: str = "", **more) -> CellOutcome:
    """What is written down about a test that ended with this status, or with an error."""
    return CellOutcome(status, run_cells.failure_of(Reply(status, error=(name, text))), **more)


def failed(*answers: Answer) -> CellOutcome:
    """What is written down about a test whose check failed as these known wrong answers do."""
    raised = CheckFailed("double(3) is 5")
    raised.failure = replace(raised.failure, hints=[Hint(one.name, one.hint) for one in answers])
    return CellOutcome("error", run_cells.failure_of(Reply("error", raised=raised)))


UNWRITTEN = stopped("error", "NotImplementedError", "write this function", unwritten=True)
WRONG = stopped("error", "AssertionError", "double(3) is 0")


def fill(toy: Toy, student: str, name: str = LESSON, problem: str = "", **found: CellOutcome) -> None:
    """A graded submission. found: `ex1=stopped("died")`, what a run would have written down about that test."""
    (toy.root / "submitted" / student / name).mkdir(parents=True, exist_ok=True)
    with toy.course.writing() as (record, gradebook):
        cells = {cell.id: cell for cell in restore.restore([], restore.source_cells(gradebook, name, name)).cells}
        for cell in cells.values():
            seen = CellOutcome("" if problem else "ok")
            if is_test(cell):
                seen = copy.deepcopy(found.get(cell.id.split("-")[1], seen))
                of_test = seen.status, seen.failure, seen.seed
                seen.properties = [] if problem else [Tried(*of_test, points=cell.metadata.nbgrader.points)]
                seen.comment = scoring.comment(seen, CellOutcome("ok"), problem)
            outcome.to_metadata(cell, seen)
        tests = {name: cell for name, cell in cells.items() if is_test(cell)}
        scoring.save(record, student, name, tests, changed=tests)
    path = toy.root / "autograded" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=list(cells.values()), metadata={"autograder": {"problem": problem}}), path)


def give(toy: Toy, student: str, test: str, score: float) -> None:
    """Points by hand."""
    with toy.course.gradebook() as gradebook:
        gradebook.find_grade(test, LESSON, LESSON, student).manual_score = score
        gradebook.db.commit()


def build(folder: Path) -> Toy:
    """The class, in two lessons."""
    toy = Toy(folder)
    more = toy.root / "solutions" / MORE
    more.mkdir()
    nbformat.write(lesson(), more / f"{MORE}.ipynb")
    toy.course.prepare(MORE)
    fill(toy, "ada")
    fill(toy, "ada", MORE)
    fill(toy, "bob", ex1=failed(ADDS), ex2=stopped("error", "TypeError", "no number"))
    fill(toy, "bob", MORE, ex1=failed(ADDS))
    fill(toy, "cyd", ex1=failed(ADDS, TWICE), ex2=WRONG, ex3=UNWRITTEN)
    fill(toy, "dan", ex1=UNWRITTEN, ex2=UNWRITTEN, ex3=UNWRITTEN)
    fill(toy, EVE, problem=f"The file is {SCRIPT}.")
    hostile = stopped("error", SCRIPT, f"{SCRIPT} Hint: {ADDS.hint}")
    fill(toy, "fay", ex1=hostile, ex2=stopped("timeout"), ex3=stopped("died"))
    (toy.root / "submitted" / "gus" / LESSON).mkdir(parents=True)
    toy.course.write_grade("gus", LESSON, None, RuntimeError("the autograder failed"))
    missing, changed = ["The test cell was missing."], ["The test cell had been changed."]
    repaired = {"ex1": missing, "ex2": changed, "ex3": missing}
    fill(toy, "ivy", **{name: CellOutcome("ok", notes=notes) for name, notes in repaired.items()})
    fill(toy, "jon", ex1=WRONG, ex2=WRONG, ex3=WRONG)
    fill(toy, "kim", ex2=WRONG)
    give(toy, "kim", "07-ex2-square-test", 1.5)
    give(toy, "kim", "07-ex3-half-test", 2.0)
    (toy.root / "submitted" / "mia" / LESSON).mkdir(parents=True)
    fill(toy, "zoe")
    (toy.root / "submitted" / "zoe" / LESSON).rmdir()  # left the class
    with toy.course.gradebook() as gradebook:
        gradebook.add_student(
            "lea", first_name="Lea", last_name=f"O'Neill, {SCRIPT}", email="lea@example.org", lms_user_id="4711"
        )
    feedback = toy.root / "feedback" / EVE / LESSON
    feedback.mkdir(parents=True)
    (feedback / f"{LESSON}.html").write_text("feedback")
    return toy


QUERY = """
SELECT submitted_assignment.student_id, assignment.name, base_cell.name,
       COALESCE(grade.manual_score, grade.auto_score), grade_cells.max_score
FROM grade JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id
JOIN submitted_assignment ON submitted_notebook.assignment_id = submitted_assignment.id
JOIN assignment ON submitted_assignment.assignment_id = assignment.id
JOIN base_cell ON grade.cell_id = base_cell.id JOIN grade_cells ON grade.cell_id = grade_cells.id
"""


def count(toy: Toy) -> dict[tuple[str, str, str], tuple[float, float]]:
    """(student, lesson, test) → (score, most), without those who left."""
    with sqlite3.connect(toy.root / "gradebook.db") as db:
        rows = db.execute(QUERY).fetchall()
    return {row[:3]: row[3:] for row in rows if row[0] != "zoe"}


def totals(counted: dict, name: str) -> dict[str, float]:
    """student → the score of one lesson."""
    found = {}
    for (student, where, _), (score, _) in counted.items():
        if where == name:
            found[student] = found.get(student, 0) + score
    return found
