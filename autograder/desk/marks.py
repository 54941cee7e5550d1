"""What the record and the autograded notebooks say about a class, as plain data for the report and the CSV files.

This module only reads. Texts from notebooks are not trusted: escape them like any other text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from autograder.checks.expect import Failure
from autograder.grade import outcome
from autograder.grade.course import Course
from autograder.grade.nbgrader import scoring, submission_files
from autograder.grade.nbgrader.gradebook import Row, penalties_of, totals_of
from autograder.grade.nbgrader.late import Lateness, of_students
from autograder.grade.outcome import CellOutcome
from autograder.grade.record import Record
from autograder.grade.running.run_cells import is_test
from autograder.lesson.course_settings import Settings
from autograder.lesson.notebook import answer_of, natural


class Student(NamedTuple):
    """One student; all but the id is empty unless an instructor has entered it in the gradebook."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    lms_user_id: str = ""

    @property
    def name(self) -> str:
        """First and last name, as far as known."""
        return " ".join(f"{self.first_name} {self.last_name}".split())


class Mark(NamedTuple):
    """One exercise of one submission. auto: the points from the autograder. comment: its reason for them.

    by_hand: did an instructor give the points? outdated: for an answer that was handed in anew since? question: can
    only a person give points? waits: and has nobody yet?
    """

    exercise: str
    score: float
    most: float
    auto: float | None
    comment: str
    by_hand: bool = False
    outdated: bool = False
    question: bool = False
    waits: bool = False

    @property
    def lost(self) -> bool:
        """Is it graded, and does it have less than full points?"""
        return self.score < self.most and not self.waits


@dataclass
class Submission:
    """One graded notebook. score: of what is graded. most: of all its exercises.

    problem: why it could not be read. outcomes: exercise or question → what became of its test. stopped: exercise → why
    its answer's cell did not run to its end. ungraded: the autograder failed on it. beside: what is to be said of other
    notebooks in its folder. unreadable_time: its time was not understood. late: how late it was. penalty: the points
    that this has cost.
    """

    student: str
    lesson: str
    score: float
    most: float
    marks: list[Mark]
    problem: str = ""
    outcomes: dict[str, CellOutcome] = field(default_factory=dict)
    stopped: dict[str, Failure] = field(default_factory=dict)
    ungraded: bool = False
    beside: list[str] = field(default_factory=list)
    unreadable_time: bool = False
    late: Lateness = Lateness()  # noqa: RUF009
    penalty: float = 0.0

    def failures(self, exercise: str) -> list[Failure]:
        """Why an exercise's answer did not run to its end, and why properties do not hold."""
        lost = self.outcomes.get(exercise, CellOutcome()).lost
        stopped = [self.stopped[exercise]] if exercise in self.stopped else []
        return stopped + [one.reason for one in lost]

    @property
    def waiting(self) -> float:
        """The points of the questions that nobody has graded yet."""
        return sum(mark.most for mark in self.marks if mark.waits)


@dataclass
class ClassMarks:
    """A class: its folder, its students, the graded submissions, and those that are not graded yet (`waiting`).

    misplaced_files: what could be somebody's work and lies where nothing is graded. own: the course's own settings.
    """

    root: Path
    students: list[Student]
    submissions: list[Submission]
    waiting: list[tuple[str, str]]
    misplaced_files: list[str] = field(default_factory=list)
    own: Settings = field(default_factory=Settings)

    @property
    def lessons(self) -> list[str]:
        """The lessons that have graded submissions, in order."""
        return sorted({one.lesson for one in self.submissions})

    def submissions_of(self, lesson: str) -> list[Submission]:
        """The graded submissions of one lesson, in the order of their students."""
        return [one for one in self.submissions if one.lesson == lesson]

    def most(self, lesson: str) -> float:
        """The points of a lesson."""
        return max(one.most for one in self.submissions_of(lesson))

    def absent(self, lesson: str) -> list[str]:
        """The students who have not handed in a lesson."""
        graded = {one.student for one in self.submissions if one.lesson == lesson}
        present = graded | {student for student, name in self.waiting if name == lesson}
        return [student.id for student in self.students if student.id not in present]


def read(course: Course, lessons: list[str] | None = None) -> ClassMarks:
    """The class in `course`. lessons: only these; all if there are none."""
    jobs = course.jobs(lessons)
    rows = course.rows()
    marks, totals = by_submission(rows), totals_of(rows)
    unfinished = {row[:2] for row in rows if row.waits and not row.question}
    penalties, record = penalties_of(rows), course.record()
    delays = of_students(record, course.own)
    submissions = [
        Submission(*job, totals[job][0], sum(mark.most for mark in marks[job]), marks[job])
        for job in jobs
        if job in totals
    ]
    for one in submissions:
        _read_autograded(course.root / "autograded" / one.student / one.lesson / f"{one.lesson}.ipynb", one)
        one.unreadable_time = submission_files.has_unreadable_time(course.root / "submitted" / one.student / one.lesson)
        one.late, one.penalty = delays[one.student, one.lesson], penalties[one.student, one.lesson]
    waiting = [job for job in jobs if job not in totals or job in unfinished]
    return ClassMarks(course.root, _students(record, jobs), submissions, waiting, course.misplaced_files(), course.own)


def without_names(course: Course, found: ClassMarks) -> ClassMarks:
    """The same class without students: a notebook is called by its number in formgrader, such as `#7`.

    What is not in formgrader, sentences with names of files, and who was late, are left out.
    """
    numbers: dict[tuple[str, str], int] = {}
    with course.gradebook() as gradebook:
        for lesson in found.lessons:
            students = [one.student.id for one in sorted(gradebook.notebook_submissions(lesson, lesson), key=_id)]
            graded = course.root / "autograded"
            listed = [one for one in students if (graded / one / lesson / f"{lesson}.ipynb").is_file()]
            numbers |= {(student, lesson): number for number, student in enumerate(listed, start=1)}
    nobody: dict[str, Any] = {"beside": [], "late": Lateness(), "penalty": 0.0}
    submissions = [
        replace(one, student=f"#{numbers[one.student, one.lesson]}", **nobody)
        for one in found.submissions
        if (one.student, one.lesson) in numbers
    ]
    # By number: the order of their logins would tell who is who.
    submissions.sort(key=lambda one: (one.lesson, natural(one.student)))
    own = replace(found.own, late=None)
    return replace(found, students=[], submissions=submissions, waiting=[], misplaced_files=[], own=own)


def _id(submitted: Any) -> str:
    return str(submitted.id)


def by_submission(rows: list[Row]) -> dict[tuple[str, str], list[Mark]]:
    """(student, lesson) → marks in the order of the exercises."""
    found: dict[tuple[str, str], list[Mark]] = {}
    for row in sorted(rows, key=lambda row: natural(row.exercise)):
        by_hand, of_person = row.manual_score is not None, (row.question, row.question and row.waits)
        points = row.score, row.max_score, row.auto_score
        mark = Mark(row.exercise, *points, row.comment, by_hand, row.outdated, *of_person)
        found.setdefault(row[:2], []).append(mark)
    return found


def _students(record: Record, jobs: list[tuple[str, str]]) -> list[Student]:
    """The students who have handed in something, and those whom an instructor has entered in the gradebook."""
    handed_in = {student for student, _ in jobs}
    # A student whose folder was removed from submitted/ is still in the record, but not in the class.
    gone = {student for lesson in record.lessons.values() for student in lesson.submissions} - handed_in
    found = {login: Student(login) for login in handed_in}
    for login, known in record.students.items():
        texts = [text or "" for text in vars(known).values()]
        found |= {login: Student(login, *texts)} if login not in gone or any(texts) else {}
    return sorted(found.values(), key=lambda student: natural(student.id))


def _read_autograded(path: Path, submission: Submission) -> None:
    """Add what the autograded notebook says: `problem`, `beside`, `outcomes` and `stopped`.

    It is missing where the autograder failed. What somebody has broken afterwards is left out.
    """
    try:
        nb = nbformat.from_dict(json.loads(path.read_text(encoding="utf-8")))
        whole = outcome.of_notebook(nb)
        submission.problem, submission.beside = whole.problem, [*whole.remarks, *_notebooks(whole.left_out)]
        cells = {cell.get("id"): cell for cell in nb.cells}
        for test in nb.cells:
            if not is_test(test) and not scoring.is_question(test):
                continue
            exercise, ours = answer_of(test.metadata.nbgrader.grade_id), outcome.of_metadata(test)
            submission.outcomes[exercise] = ours
            about = outcome.of_metadata(cells[exercise]).why_stopped if exercise in cells else None
            submission.stopped |= {exercise: about} if about else {}
    except FileNotFoundError:
        submission.ungraded = True
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass


def _notebooks(left_out: list[str]) -> list[str]:
    """Of the files that were left out, those that could be what a student meant to hand in, a sentence each."""
    names = [str(line).split(": ")[0] for line in left_out]
    found = filter(submission_files.LIKE_A_NOTEBOOK.search, names)
    return [f"{name} lies beside the notebook and was not graded." for name in found]
