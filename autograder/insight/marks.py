"""What the gradebook and the autograded notebooks say about a class, as plain data for the report and the CSV files.

Nothing here grades and nothing is written. What a notebook says is text for people, to be escaped like any other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from autograder.grading.course import Course
from autograder.grading.restore import natural


class Student(NamedTuple):
    """Somebody in the class; all but the id is empty unless an instructor has put it into the gradebook."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_user_id: str = ""

    @property
    def name(self) -> str:
        """First and last name, as far as they are known."""
        return " ".join(f"{self.first_name} {self.last_name}".split())


class Mark(NamedTuple):
    """One exercise of one submission. auto: what the autograder gave. comment: what it wrote about that.

    by_hand: did an instructor give the points?
    """

    exercise: str
    score: float
    most: float
    auto: float | None
    comment: str
    by_hand: bool = False

    @property
    def lost(self) -> bool:
        """Has it less than full points?"""
        return self.score < self.most


@dataclass
class Submission:
    """One graded notebook.

    problem: why it could not be read. notes: exercise → what was missing or changed. seeds: exercise → the seed that
    repeats its failure, for those whose checks failed.
    """

    student: str
    lesson: str
    score: float
    most: float
    marks: list[Mark]
    problem: str = ""
    notes: dict[str, list[str]] = field(default_factory=dict)
    seeds: dict[str, str] = field(default_factory=dict)


@dataclass
class ClassMarks:
    """A class: its folder, its students, what is graded, and what was handed in but is not graded yet."""

    root: Path
    students: list[Student]
    submissions: list[Submission]
    waiting: list[tuple[str, str]]

    @property
    def lessons(self) -> list[str]:
        """The lessons of which something is graded, in order."""
        return sorted({one.lesson for one in self.submissions})

    def of_lesson(self, lesson: str) -> list[Submission]:
        """The graded submissions of one lesson, in the order of their students."""
        return [one for one in self.submissions if one.lesson == lesson]

    def most(self, lesson: str) -> float:
        """The points of a lesson."""
        return max(one.most for one in self.of_lesson(lesson))

    def absent(self, lesson: str) -> list[str]:
        """Who has handed in nothing of a lesson."""
        there = {one.student for one in self.of_lesson(lesson)} | {who for who, what in self.waiting if what == lesson}
        return [student.id for student in self.students if student.id not in there]


def read(course: Course, lessons: list[str] | None = None) -> ClassMarks:
    """The class in `course`, or what it has to do with some lessons."""
    jobs = course.jobs(lessons)
    if not course.has_gradebook():
        return ClassMarks(course.root, [Student(name) for name in sorted({who for who, _ in jobs})], [], jobs)
    marks = by_submission(course)
    unfinished = {row[:2] for row in course.rows() if row.waits}
    totals = course.totals()
    submissions = [Submission(*job, *totals[job], marks[job]) for job in jobs if job in totals]
    for one in submissions:
        one.problem, one.notes, one.seeds = _autograded(
            course.root / "autograded" / one.student / one.lesson / f"{one.lesson}.ipynb"
        )
    waiting = [job for job in jobs if job not in totals or job in unfinished]
    return ClassMarks(course.root, _students(course), submissions, waiting)


def by_submission(course: Course) -> dict[tuple[str, str], list[Mark]]:
    """(student, lesson) → its marks in the order of the exercises, for what is in `submitted/` now."""
    if not course.has_gradebook():
        return {}
    comments, found = _comments(course), {}
    for row in sorted(course.rows(), key=lambda row: natural(row.exercise)):
        by_hand, comment = row.manual_score is not None, comments.get(row[:3], "")
        mark = Mark(row.exercise, row.score, row.max_score, row.auto_score, comment, by_hand)
        found.setdefault(row[:2], []).append(mark)
    return found


def _comments(course: Course) -> dict[tuple[str, str, str], str]:
    """(student, lesson, exercise) → the autograder's comment. nbgrader keeps it with the answer cell."""
    from nbgrader import api

    with course.gradebook() as gradebook:
        rows = (
            gradebook.db.query(
                api.SubmittedAssignment.student_id, api.Assignment.name, api.SolutionCell.name, api.Comment.auto_comment
            )
            .select_from(api.Comment)
            .join(api.SubmittedNotebook, api.Comment.notebook_id == api.SubmittedNotebook.id)
            .join(api.SubmittedAssignment, api.SubmittedNotebook.assignment_id == api.SubmittedAssignment.id)
            .join(api.Assignment, api.SubmittedAssignment.assignment_id == api.Assignment.id)
            .join(api.SolutionCell, api.Comment.cell_id == api.SolutionCell.id)
            .all()
        )
    return {(student, lesson, cell): text or "" for student, lesson, cell, text in rows}


def _students(course: Course) -> list[Student]:
    """Who has handed in anything, and whom an instructor has put into the gradebook."""
    here = {student for student, _ in course.jobs()}
    with course.gradebook() as gradebook:
        known = [
            Student(one.id, *(text or "" for text in (one.first_name, one.last_name, one.email, one.lms_user_id)))
            for one in gradebook.students
            # Whose folder was taken out of submitted/ stays in the gradebook, but is in the class no longer.
            if one.id in here or one.first_name or one.last_name or one.email or one.lms_user_id or not one.submissions
        ]
    strangers = here - {student.id for student in known}
    return sorted([*known, *map(Student, strangers)], key=lambda student: natural(student.id))


def _autograded(path: Path) -> tuple[str, dict[str, list[str]], dict[str, str]]:
    """Why this notebook could not be read ("" if it could), and a submission's `notes` and `seeds`."""
    try:
        nb = json.loads(path.read_text(encoding="utf-8"))
        notes, seeds = {}, {}
        for cell in nb["cells"]:
            ours = cell["metadata"].get("autograder", {})
            exercise = cell["metadata"].get("nbgrader", {}).get("grade_id", "").removesuffix("-test")
            if ours.get("notes"):
                notes[exercise] = list(map(str, ours["notes"]))
            if ours.get("seed"):
                seeds[exercise] = str(ours["seed"])
        return str(nb["metadata"].get("autograder", {}).get("problem", "")), notes, seeds
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return "", {}, {}  # there is none when the autograder failed, which the comments say; or somebody has edited it
