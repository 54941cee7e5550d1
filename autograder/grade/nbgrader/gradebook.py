"""The grades of a class, of its record: rows, sums, a table, a CSV file.

A question that a person grades counts once it has its points: until then, neither these nor what it is worth are in a
sum.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from autograder.grade.limits import csv_cell, csv_text, printable
from autograder.grade.record import Entry, Record
from autograder.lesson.notebook import natural


class Row(NamedTuple):
    """One exercise of one submission. question: is it graded by a person alone? comment: the autograder's."""

    student: str
    lesson: str
    exercise: str
    score: float
    max_score: float
    auto_score: float | None
    manual_score: float | None
    needs_manual_grade: bool
    penalty: float | None
    question: bool = False
    comment: str = ""

    @property
    def waits(self) -> bool:
        """Is there no score yet?"""
        return self.manual_score is None and (self.auto_score is None or self.needs_manual_grade)

    @property
    def outdated(self) -> bool:
        """Did a person give the score for an answer that has been handed in anew since?"""
        return self.manual_score is not None and self.needs_manual_grade


def rows_of(record: Record) -> list[Row]:
    """Every grade of the exercises that the lessons have now."""
    found = []
    for name, lesson in record.lessons.items():
        for student, submission in lesson.submissions.items():
            for exercise, most in lesson.most.items():
                entry = submission.entries.get(exercise, Entry())
                points = entry.score, most, entry.auto, entry.manual, entry.to_grade, submission.penalty
                found.append(Row(student, name, exercise, *points, exercise in lesson.questions, entry.comment or ""))
    return found


def scores_of(rows: list[Row]) -> dict[tuple[str, str, str], tuple[float, float]]:
    """(student, lesson, exercise) → (score, most)."""
    return {row[:3]: (row.score, row.max_score) for row in rows}


def totals_of(rows: list[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """(student, lesson) → (score, most), late penalties taken off, of what is graded."""
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        score, most = totals.get(row[:2], (-(row.penalty or 0.0), 0.0))
        counts = not (row.question and row.waits)
        totals[row[:2]] = (score + row.score, most + row.max_score) if counts else (score, most)
    return totals


def penalties_of(rows: list[Row]) -> dict[tuple[str, str], float]:
    """(student, lesson) → the points that being late has cost."""
    return {row[:2]: row.penalty or 0.0 for row in rows}


def csv_of(rows: list[Row]) -> str:
    """grades.csv: a row for each student and lesson, with a column for each exercise's points and each question's.

    The column of a question that is not graded yet is empty, and so is one of an exercise that the course left out. If
    anything has cost points by being late, the last column says how many; they are taken off the score.
    """
    points: dict[tuple[str, str], tuple[list[tuple[str, str]], list[str]]] = {}
    for row in sorted(rows, key=lambda row: natural(row.exercise)):
        tested, by_hand = points.setdefault(row[:2], ([], []))
        if row.question:
            by_hand.append("" if row.waits else f"{row.score:g}")
        else:
            tested.append((row.exercise, f"{row.score:g}"))
    columns_of = {job: _by_number(tested) for job, (tested, _) in points.items()}
    wide = max(map(len, columns_of.values()), default=0)
    wider = max((len(by_hand) for _, by_hand in points.values()), default=0)
    columns = [*(f"ex{n + 1}" for n in range(wide)), *(f"q{n + 1}" for n in range(wider))]
    penalties = {row[:2]: row.penalty for row in rows}
    columns += ["late_penalty"] if any(penalties.values()) else []
    lines = [["student_id", "assignment", "score", "max_score", *columns]]
    for (student, lesson), (score, most) in sorted(totals_of(rows).items()):
        scores, by_hand = columns_of[student, lesson], points[student, lesson][1]
        line = [csv_cell(student), lesson, f"{score:g}", f"{most:g}", *scores]
        if wider:
            line += [*[""] * (wide - len(scores)), *by_hand]
        if any(penalties.values()):
            line += [*[""] * (len(lines[0]) - 1 - len(line)), f"{penalties[student, lesson] or 0:g}"]
        lines.append(line)
    return csv_text(lines)


def _by_number(found: list[tuple[str, str]]) -> list[str]:
    """The points of exercises, in order, in the columns of their numbers; "" for one that was left out."""
    numbers = [re.match(r"\d+-ex(\d+)-", exercise) for exercise, _ in found]
    values = [value for _, value in found]
    if not all(numbers) or len({match[1] for match in numbers if match}) < len(values):
        return values
    by_number = {int(match[1]): value for match, value in zip(numbers, values, strict=True) if match}
    return [by_number.get(number + 1, "") for number in range(max(by_number, default=0))]


def table_of(rows: list[Row]) -> str:
    """Students down, lessons across: points of points. For a terminal: no name gives it orders."""
    totals, waiting = totals_of(rows), {row[:2] for row in rows if row.question and row.waits}
    lessons = sorted({lesson for _, lesson in totals})
    students = sorted({student for student, _ in totals})
    lines = [["student", *lessons]]
    for student in students:
        cells = [(totals.get((student, lesson)), (student, lesson) in waiting) for lesson in lessons]
        shown = (f"{cell[0]:g}/{cell[1]:g}{' …' if waits else ''}" if cell else "–" for cell, waits in cells)
        lines.append([printable(student), *shown])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    legend = ["", "…: questions of this notebook wait for points by hand and are not in its sum"] if waiting else []
    return "\n".join([texts[0], "  ".join("─" * width for width in widths), *texts[1:], *legend])
