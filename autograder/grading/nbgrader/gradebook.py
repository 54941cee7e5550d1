"""The grades of a class, read from nbgrader's gradebook: rows, sums, a table, a CSV file."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from autograder.grading.limits import csv_cell, csv_text, printable


class Row(NamedTuple):
    """One exercise of one submission."""

    student: str
    lesson: str
    exercise: str
    score: float
    max_score: float
    auto_score: float | None
    manual_score: float | None
    needs_manual_grade: bool
    penalty: float | None

    @property
    def waits(self) -> bool:
        """Is there no score yet?"""
        return self.manual_score is None and (self.auto_score is None or self.needs_manual_grade)

    @property
    def outdated(self) -> bool:
        """Did a person give the score for an answer that has been handed in anew since?"""
        return self.manual_score is not None and self.needs_manual_grade


def read_rows(gradebook: Any) -> list[Row]:
    """Every grade in an open gradebook of nbgrader's."""
    from nbgrader import api

    found = (
        gradebook.db.query(
            api.SubmittedAssignment.student_id,
            api.Assignment.name,
            api.GradeCell.name,
            api.Grade.score,
            api.GradeCell.max_score,
            api.Grade.auto_score,
            api.Grade.manual_score,
            api.Grade.needs_manual_grade,
            api.SubmittedNotebook.late_submission_penalty,
        )
        .select_from(api.Grade)
        .join(api.SubmittedNotebook, api.Grade.notebook_id == api.SubmittedNotebook.id)
        .join(api.GradeCell, api.Grade.cell_id == api.GradeCell.id)
    )
    rows = _with_lesson(found)
    return [Row(student, lesson, test.removesuffix("-test"), *rest) for student, lesson, test, *rest in rows]


def _with_lesson(query: Any) -> Any:
    """A query over submitted notebooks, joined with their submissions and lessons."""
    from nbgrader import api

    return query.join(api.SubmittedAssignment, api.SubmittedNotebook.assignment_id == api.SubmittedAssignment.id).join(
        api.Assignment, api.SubmittedAssignment.assignment_id == api.Assignment.id
    )


def read_comments(gradebook: Any) -> dict[tuple[str, str, str], str]:
    """(student, lesson, exercise) → the autograder's comment. nbgrader keeps it with the answer cell."""
    from nbgrader import api

    found = (
        gradebook.db.query(
            api.SubmittedAssignment.student_id, api.Assignment.name, api.SolutionCell.name, api.Comment.auto_comment
        )
        .select_from(api.Comment)
        .join(api.SubmittedNotebook, api.Comment.notebook_id == api.SubmittedNotebook.id)
        .join(api.SolutionCell, api.Comment.cell_id == api.SolutionCell.id)
    )
    return {(student, lesson, cell): text or "" for student, lesson, cell, text in _with_lesson(found)}


def entered(gradebook: Any, job: tuple[str, str] | None = None) -> dict[tuple[str, str], str]:
    """(student, lesson) → a digest of all in the gradebook on which its page depends. job: of this one only.

    That is its points, comments, extra credit and late penalty, its time and extension, and the lesson's due date.
    """
    from nbgrader import api

    of_job = api.SubmittedAssignment.student_id, api.Assignment.name
    submission, notebook = api.SubmittedAssignment, api.SubmittedNotebook
    dates = submission.timestamp, submission.extension, api.Assignment.duedate, notebook.late_submission_penalty
    grade = api.Grade
    points = api.BaseCell.name, grade.auto_score, grade.manual_score, grade.extra_credit, grade.needs_manual_grade
    found: dict[tuple[str, str], list[str]] = {}
    for kind, columns in (
        (notebook, dates),
        (api.Grade, points),
        (api.Comment, (api.BaseCell.name, api.Comment.auto_comment, api.Comment.manual_comment)),
    ):
        query = gradebook.db.query(*of_job, *columns).select_from(kind)
        if kind is not notebook:
            query = query.join(api.BaseCell, kind.cell_id == api.BaseCell.id).join(
                notebook, kind.notebook_id == notebook.id
            )
        query = _with_lesson(query)
        if job is not None:
            query = query.filter(submission.student_id == job[0], api.Assignment.name == job[1])
        for student, lesson, *values in query:
            found.setdefault((student, lesson), []).append(repr(values))
    return {one: hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest() for one, lines in found.items()}


def scores_of(rows: list[Row]) -> dict[tuple[str, str, str], tuple[float, float]]:
    """(student, lesson, exercise) → (score, most)."""
    return {row[:3]: (row.score, row.max_score) for row in rows}


def totals_of(rows: list[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """(student, lesson) → (score, most), late penalties taken off."""
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        score, most = totals.get(row[:2], (-(row.penalty or 0.0), 0.0))
        totals[row[:2]] = (score + row.score, most + row.max_score)
    return totals


def csv_of(rows: list[Row]) -> str:
    """grades.csv: a row for each student and lesson, with a column for each exercise's points."""
    scores: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for row in rows:
        scores.setdefault((row.student, row.lesson), []).append((row.exercise, row.score))
    exercises = {job: _by_number(found) for job, found in scores.items()}
    width = max(map(len, exercises.values()), default=0)
    lines = [["student_id", "assignment", "score", "max_score", *(f"ex{n + 1}" for n in range(width))]]
    for (student, lesson), (score, most) in sorted(totals_of(rows).items()):
        points = [f"{value:g}" if value is not None else "" for value in exercises[student, lesson]]
        lines.append([csv_cell(student), lesson, f"{score:g}", f"{most:g}", *points])
    return csv_text(lines)


def _by_number(found: list[tuple[str, float]]) -> list[float | None]:
    """The points of a submission's exercises in the columns of their numbers; None for one that the course left out."""
    numbers = [re.match(r"\d+-ex(\d+)-", exercise) for exercise, _ in sorted(found)]
    values = [value for _, value in sorted(found)]
    if not all(numbers) or len({match[1] for match in numbers if match}) < len(values):
        return list(values)
    by_number = {int(match[1]): value for match, value in zip(numbers, values, strict=True) if match}
    return [by_number.get(number + 1) for number in range(max(by_number))]


def table_of(rows: list[Row]) -> str:
    """Students down, lessons across: points of points. For a terminal: no name gives it orders."""
    totals = totals_of(rows)
    lessons = sorted({lesson for _, lesson in totals})
    students = sorted({student for student, _ in totals})
    lines = [["student", *lessons]]
    for student in students:
        cells = [totals.get((student, lesson)) for lesson in lessons]
        lines.append([printable(student), *(f"{cell[0]:g}/{cell[1]:g}" if cell else "–" for cell in cells)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([texts[0], "  ".join("─" * width for width in widths), *texts[1:]])
