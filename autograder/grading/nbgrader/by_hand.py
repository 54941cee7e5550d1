"""What people have entered about a lesson: kept when its exercises change, for which nbgrader must forget the lesson.

It lies in a file until all of it is back in the gradebook, so that nothing is lost if the grader is ended in between.
What belongs to an exercise that is gone stays there, and comes back with the exercise.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.lessons.files import write_whole

if TYPE_CHECKING:
    from nbgrader.api import Gradebook


def take_out(gradebook: Gradebook, lesson: str, file: Path) -> None:
    """Write all that people have entered about a lesson into `file`, with what is there already; forget the lesson."""
    kept = _read(file)
    assignment = gradebook.find_assignment(lesson)
    kept["duedate"] = assignment.duedate and assignment.duedate.isoformat()
    for submission in assignment.submissions:
        entry = kept.setdefault("students", {}).setdefault(submission.student.id, {})
        entry["timestamp"] = submission.timestamp and submission.timestamp.isoformat()
        entry["extension"] = submission.extension and submission.extension.total_seconds()
        for nb in submission.notebooks:
            for grade in nb.grades:
                if grade.manual_score is not None or grade.extra_credit:
                    entered = grade.manual_score, grade.extra_credit, grade.needs_manual_grade
                    entry.setdefault("points", {})[grade.name] = entered
            for comment in nb.comments:
                if comment.manual_comment:
                    entry.setdefault("comments", {})[comment.name] = comment.manual_comment
    write_whole(file, json.dumps(kept, indent=1, sort_keys=True))
    gradebook.remove_assignment(lesson)


def put_back(gradebook: Gradebook, lesson: str, file: Path) -> str:
    """Enter what `file` holds, where the lesson has the exercise. A line about what has no place there now, or ''."""
    kept = _read(file)
    if not kept:
        return ""
    students = kept.get("students", {})
    if kept.get("duedate"):
        gradebook.find_assignment(lesson).duedate = datetime.datetime.fromisoformat(kept.pop("duedate"))
    for student, entry in students.items():
        gradebook.update_or_create_student(student)
        when, extra = entry.pop("timestamp", None), entry.pop("extension", None)
        submission = gradebook.update_or_create_submission(
            lesson, student, **({"timestamp": datetime.datetime.fromisoformat(when)} if when else {})
        )
        submission.extension = datetime.timedelta(seconds=extra) if extra else None
        for nb in submission.notebooks:
            for grade in nb.grades:
                if grade.name in entry.get("points", {}):
                    grade.manual_score, grade.extra_credit, grade.needs_manual_grade = entry["points"].pop(grade.name)
            for comment in nb.comments:
                if comment.name in entry.get("comments", {}):
                    comment.manual_comment = entry["comments"].pop(comment.name)
    gradebook.db.commit()
    left = {student: entry for student, entry in students.items() if any(entry.values())}
    if not left:
        file.unlink()
        return ""
    write_whole(file, json.dumps({"students": left}, indent=1, sort_keys=True))
    gone = sorted({name for entry in left.values() for name in _exercises(entry)})
    return (
        f"{lesson} has no {', '.join(gone)} any more: the points and comments by hand of {', '.join(sorted(left))} for "
        f"that are kept in {file} and come back with the exercise"
    )


def _exercises(entry: dict[str, Any]) -> Iterator[str]:
    for kind in ("points", "comments"):
        yield from (name.removesuffix("-test") for name in entry.get(kind, {}))


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
