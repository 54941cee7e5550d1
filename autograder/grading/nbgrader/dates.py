"""Writes the due dates and extensions of `course.toml` into the gradebook, so that nbgrader's own lists show them.

A date of `course.toml` counts before one that somebody has entered in the gradebook. That one is named in a line, kept,
and back in its place as soon as `course.toml` says nothing about it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from nbgrader.coursedir import CourseDirectory

from autograder.lessons import course_settings
from autograder.lessons.course_settings import DAY, Settings
from autograder.lessons.files import write_whole

#: In `autograded/`: what was written into the gradebook, and what a person had entered there.
FILE = ".dates.json"


def write(course: CourseDirectory) -> list[str]:
    """Bring the gradebook's dates up to date with `course.toml`; a line for each other that a person entered."""
    own, file = course_settings.of(course.root), Path(course.root, "autograded", FILE)
    before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not own.has_dates() and not before:
        return []
    kept, lines = dict(before), list[str]()
    with Gradebook(course.db_url, course.course_id) as gradebook:
        for lesson in own.names():
            lines += _due(gradebook, lesson, own, kept)
        students = {student for student, _ in own.extensions} | {key.split("/")[0] for key in kept if "/" in key}
        with_one = SubmittedAssignment.student_id.in_(students)
        for submission in gradebook.db.query(SubmittedAssignment).filter(with_one) if students else ():
            lines += _extension(submission, own, kept)
        file.parent.mkdir(exist_ok=True)
        # If this ends before all is written, both the old and the new dates are known as those of `course.toml`.
        if kept != before:
            _save(file, {**before, **kept})
        gradebook.db.commit()
        if (final := {key: {**one, "written": one["written"][:1]} for key, one in kept.items()}) != before:
            _save(file, final)
    return lines


def _save(file: Path, kept: dict[str, Any]) -> None:
    write_whole(file, json.dumps(kept, indent=1, sort_keys=True))


def _due(gradebook: Gradebook, lesson: str, own: Settings, kept: dict[str, Any]) -> list[str]:
    """Write the due date of a lesson. A lesson that the gradebook does not know yet is added if it has one."""
    due, assignment = own.of(lesson).due, None
    wanted = due.replace(tzinfo=None) if due else None  # nbgrader's times are in UTC and do not say so
    with contextlib.suppress(MissingEntry):
        assignment = gradebook.find_assignment(lesson)
    if assignment is None and wanted is None:
        return []
    assignment = assignment or gradebook.add_assignment(lesson)
    found, assignment.duedate = assignment.duedate, wanted
    entered = _entered(kept, lesson, _text(found), _text(wanted))
    if wanted is None:
        assignment.duedate = datetime.datetime.fromisoformat(entered) if entered else None
    if due is None or not entered or _text(found) != entered or found == wanted:
        return []
    other = own.local(found.replace(tzinfo=datetime.UTC))
    return [_told(f"{lesson} is due on {own.local(due):%Y-%m-%d at %H:%M}", f"{other:%Y-%m-%d at %H:%M}")]


def _extension(submission: SubmittedAssignment, own: Settings, kept: dict[str, Any]) -> list[str]:
    """Write a student's extension, which nbgrader counts from the due date: without one, it can have none."""
    student, lesson, due = submission.student_id, submission.assignment.name, submission.assignment.duedate
    wanted = own.extensions.get((student, lesson)) if due else None
    key = f"{student}/{lesson}"
    if wanted is None and key not in kept:
        return []
    if wanted is not None:
        begins = due.replace(tzinfo=datetime.UTC)
        wanted = (wanted if isinstance(wanted, datetime.datetime) else own.later(begins, wanted)) - begins
    found, submission.extension = submission.extension, wanted
    entered = _entered(kept, key, found and found.total_seconds(), wanted and wanted.total_seconds())
    if wanted is None:
        submission.extension = datetime.timedelta(seconds=entered) if entered else None
    if wanted is None or not entered or found is None or found.total_seconds() != entered or found == wanted:
        return []
    return [_told(f"{student} has {wanted / DAY:.4g} more days for {lesson}", f"{found / DAY:.4g} days")]


def _entered(kept: dict[str, Any], key: str, found: Any, wanted: Any) -> Any:
    """What a person has entered, of what is `found` in the gradebook. Notes in `kept` that `wanted` takes its place."""
    old = kept.pop(key, {"written": [], "entered": None})
    entered = old["entered"] if found is None or found in old["written"] else found
    if wanted is not None:
        kept[key] = {"written": list(dict.fromkeys([wanted, *old["written"]])), "entered": entered}
    return entered


def _text(time: datetime.datetime | None) -> str | None:
    return time.isoformat() if time else None


def _told(says: str, other: str) -> str:
    file = course_settings.FILE
    return f"{file}: {says}; {other}, which was entered in the gradebook, does not count: change it in {file}"
