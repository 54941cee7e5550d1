"""`autograder regrade`: grade again after a test has changed, and print what changed for each student.

A grade depends on the submission, the lesson and the grader; a submission is graded again if one of them has changed.
Points and comments given by hand are kept and still take precedence.
"""

from __future__ import annotations

import argparse

from autograder.desk import marks
from autograder.desk.marks import Mark
from autograder.grade import command as grade
from autograder.grade.course import Course
from autograder.grade.limits import printable
from autograder.grade.nbgrader.gradebook import penalties_of

#: A reason is cut after this many characters; all of it is in the feedback.
MAX_REASON = 200


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `regrade`."""
    parser = subparsers.add_parser("regrade", help="after a change of a test: grade again and print what changed")
    grade.add_arguments(parser)
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status: 1 if a submission could not be graded."""
    course = grade.course_of(arguments)
    before = marks_of(course, arguments.lessons)
    if not before:
        print("Nothing has been graded yet: run `autograder grade` first.")
        return 0
    late = penalties_of(course.rows())
    problems = course.grade(arguments.lessons, arguments.force, **grade.workers_of(arguments))
    for (student, lesson), cost in sorted(penalties_of(course.rows()).items()):
        if cost != late.get((student, lesson), cost):
            print(f"{student}  {lesson}: lateness costs {cost:g} points now, {late[student, lesson]:g} before")
    print(table(before, marks_of(course, arguments.lessons)))
    return 1 if problems else 0


def marks_of(course: Course, lessons: list[str]) -> dict[tuple[str, str, str], Mark]:
    """(student, lesson, exercise) → mark, for graded submissions that are in `submitted/`. No lessons: all of them."""
    jobs = set(course.jobs(lessons))
    return {
        (*job, mark.exercise): mark
        for job, found in marks.by_submission(course.rows()).items() if job in jobs
        for mark in found
    }  # fmt: skip


def table(before: dict[tuple[str, str, str], Mark], after: dict[tuple[str, str, str], Mark]) -> str:
    """What changed, by student: a line for each exercise with its points before and after, and the reason."""
    lines, students = [], set()
    for key in sorted(before.keys() | after.keys()):
        change = difference(before.get(key), after.get(key))
        if change:
            student, lesson, exercise = key
            if student not in students:
                lines.append(student)
            students.add(student)
            lines.append(f"  {lesson}  {exercise}: {change}")
    if not lines:
        return f"None of the {len(after)} marks has changed."
    changed = len(lines) - len(students)
    return "\n".join(
        [
            *lines,
            f"{changed} of {len(after)} marks changed, of {len(students)} student{'' if len(students) == 1 else 's'}.",
        ]
    )


def difference(old: Mark | None, new: Mark | None) -> str:
    """What happened to one mark; '' if nothing."""
    if old is None or new is None:
        return f"new, {_points(new)}" if new else "no longer there"
    if (old.score, old.most, old.auto) == (new.score, new.most, new.auto):
        return ""
    if new.waits:
        return f"{_points(old)} → not graded yet: it waits for points by hand"
    change = f"{_points(old)} → {_points(new)}"
    if new.by_hand:
        automatic = f"the autograder now gives {_number(new.auto)} instead of {_number(old.auto)}"
        return f"{change}, given by hand, stays; {automatic}" if old.score == new.score else f"{change}; {automatic}"
    if (new.auto or 0) >= new.most and (old.auto or 0) >= old.most:
        return f"{change}: it passed before, too, and is worth other points now"
    if (new.auto or 0) >= new.most:
        return f"{change}: it passes now; before: {_short(old.comment)}" if old.comment else f"{change}: it passes now"
    if (old.auto or 0) >= old.most:
        return f"{change}: it passed before; now: {_short(new.comment)}"
    return f"{change}: {_short(new.comment)}"


def _points(mark: Mark) -> str:
    return f"{mark.score:g} of {mark.most:g}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 2]} …"
