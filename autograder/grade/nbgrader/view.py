"""nbgrader's gradebook as a view of the record: what it shows, and what people have entered in it since.

What is shown is noted in the gradebook itself, in the same transaction. So whatever differs from that was entered by a
person, whenever a grader was killed, and also where a copy of the gradebook or of the record was put back.

A date of `course.toml` is shown before one that somebody has entered. That one is named in a line, stays in the record,
and is back in its place as soon as `course.toml` says nothing about it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from sqlalchemy import text
from tqdm import tqdm

from autograder.grade import record as records
from autograder.grade.limits import printable
from autograder.grade.nbgrader import lock
from autograder.grade.record import Entry, Key, Record
from autograder.lesson import course_settings
from autograder.lesson.course_settings import DAY, Settings
from autograder.lesson.notebook import answer_of

STUDENT = ("first_name", "last_name", "email", "lms_user_id")
#: What people can change in the gradebook, by its names in the record; all else is the machine's.
ENTERED = (*STUDENT, "due", "handed_in", "extension", "manual", "extra", "remark", "to_grade")
#: Where submissions stand in the gradebook, what belongs to their cells, and the cells of lessons.
SUBMISSIONS = """submitted_assignment s JOIN assignment a ON s.assignment_id = a.id
LEFT JOIN submitted_notebook n ON n.assignment_id = s.id"""
CELLS = SUBMISSIONS + " JOIN {} x ON x.notebook_id = n.id JOIN base_cell c ON x.cell_id = c.id"
LESSONS = """base_cell c LEFT JOIN grade_cells g ON g.id = c.id LEFT JOIN task_cells t ON t.id = c.id
JOIN notebook n ON c.notebook_id = n.id JOIN assignment a ON n.assignment_id = a.id"""
EPOCH = datetime.datetime(1970, 1, 1)


def root_of(course: CourseDirectory) -> Path:
    """The folder of a course: that of its gradebook, also while nbgrader works in a scratch folder."""
    return Path(course.db_url.removeprefix("sqlite:///")).resolve().parent


@contextlib.contextmanager
def writing(course: CourseDirectory, job: tuple[str, str] | None = None) -> Iterator[tuple[Record, Gradebook]]:
    """The record with all that people have entered, to be changed; at the end it is saved, and the gradebook shows it.

    All of it under the course's lock, and in one transaction, so that nobody enters anything in between. job: only what
    belongs to this student and lesson is read back and shown. Conflicts and dates that do not count are told on stderr.
    """
    root = root_of(course)
    with lock.held(root, "autograder"), Gradebook(course.db_url, course.course_id) as gradebook:
        gradebook.db.execute(text("BEGIN IMMEDIATE"))
        # nbgrader's methods end with a commit each, after which its objects are read anew.
        commit, gradebook.db.commit = gradebook.db.commit, lambda: (gradebook.db.flush(), gradebook.db.expire_all())
        try:
            record = records.of(root)
            if _noted(record, gradebook) is None:
                job = None
            lines = read_back(record, gradebook, job)
            yield record, gradebook
            records.save(root, record)
            lines += show(record, gradebook, job)
            commit()
        except BaseException:
            records.drop(root)
            raise
    for line in lines:
        tqdm.write(printable(line), file=sys.stderr)


def read_back(record: Record, gradebook: Gradebook, job: tuple[str, str] | None = None) -> list[str]:
    """Take what people have entered since it was shown into the record; a line for each conflict.

    There is one where the record has changed as well, or a copy of it was put back. Then the gradebook's entry counts,
    and both are kept. What the record does not know at all is taken as it stands in the gradebook.
    """
    known, noted, own, lines = set(record.places()), _noted(record, gradebook), _own(gradebook), list[str]()
    found = _found(gradebook, job)
    for key, theirs in found.items():
        ours, place = record.at(*key), "/".join(key)
        for name, value in theirs.items():
            before = getattr(ours, name)
            if name not in ENTERED:
                if key not in known or name in ("most", "questions"):
                    setattr(ours, name, value)
                continue
            default = getattr(type(ours), name)
            was = (noted or {}).get(place, {}).get(name, default)
            dates = record.written.get(place, []) if noted is None else []
            if noted is None and name in ("due", "extension"):
                dates = [*dates, _wanted(record, own, key)[name]]
            if value in (was, before, *dates):
                continue
            if before != was and name != "to_grade":
                there, here = f"{value!r} in the gradebook counts", f"{before!r} in the record does not"
                what = f"{place.strip('/')}, {name}: {there}, {here}"
                record.conflicts.append(what)
                lines.append(f"{what}; {records.FILE} keeps both: if the other one is right, enter it in formgrader")
            setattr(ours, name, value)
    for name in record.lessons if job is None else ():
        if "most" not in found.get((name, "", ""), {}):
            record.lessons[name].state = ""
    return lines


def show(record: Record, gradebook: Gradebook, job: tuple[str, str] | None = None) -> list[str]:
    """Write into the gradebook what differs from the record; a line for each entered date that does not count.

    A lesson that the gradebook does not know is not shown, but for the date on which `course.toml` says that it is due.
    """
    own, found, lines = _own(gradebook), _found(gradebook, job), list[str]()
    for lesson in own.names() if job is None else ():
        if own.of(lesson).due and (lesson, "", "") not in found:
            gradebook.add_assignment(lesson)
            record.at(lesson)
            found[lesson, "", ""] = {"due": None}
    shown, changed = dict[str, Any](), dict[tuple[str, str], None]()
    for key in filter(functools.partial(_concerns, job), list(record.places())):
        lesson, student, exercise = key
        here, ours, there = found.get((lesson, "", "")), record.at(*key), found.get(key, {})
        if lesson and (here is None or (student and "most" not in here) or (exercise and exercise not in here["most"])):
            continue
        wanted = _wanted(record, own, key)
        noted = {name: wanted[name] for name in wanted if name in ENTERED and wanted[name] != getattr(type(ours), name)}
        shown |= {"/".join(key): noted} if noted else {}
        if there and all(there.get(name, value) == value for name, value in wanted.items()):
            continue
        lines += [
            _does_not_count(own, key, there[name], wanted[name])
            for name in {"due", "extension"} & there.keys()
            if there[name] not in (None, wanted[name]) and there[name] == getattr(ours, name)
        ]
        if not lesson:
            gradebook.update_or_create_student(student, **wanted)
        elif not student:
            gradebook.find_assignment(lesson).duedate = _time(wanted["due"])
        else:
            changed[lesson, student] = None
    with gradebook.db.no_autoflush:
        for lesson, student in changed:
            _show_submission(record, gradebook, lesson, student, _wanted(record, own, (lesson, student, "")))
    others = (_noted(record, gradebook) or {}) if job else {}
    _note(record, gradebook, {place: one for place, one in others.items() if not _concerns(job, _key(place))} | shown)
    return lines


def _show_submission(record: Record, gradebook: Gradebook, lesson: str, student: str, wanted: dict[str, Any]) -> None:
    gradebook.update_or_create_student(student)
    row, entries = gradebook.update_or_create_submission(lesson, student), record.at(lesson, student).entries
    row.timestamp, extension = _time(wanted["handed_in"]), wanted["extension"]
    row.extension = None if extension is None else datetime.timedelta(seconds=extension)
    for nb in row.notebooks:
        nb.late_submission_penalty = wanted["penalty"]
        for grade in nb.grades:
            entry = entries.get(answer_of(grade.name), Entry())
            grade.auto_score, grade.manual_score, grade.extra_credit = entry.auto, entry.manual, entry.extra
            grade.needs_manual_grade = entry.to_grade
        for comment in nb.comments:
            entry = entries.get(comment.name, Entry())
            comment.auto_comment, comment.manual_comment = entry.comment, entry.remark


def _noted(record: Record, gradebook: Gradebook) -> dict[str, dict[str, Any]] | None:
    """Place → all that the gradebook shows there and that is not empty; None if it does not say so.

    Nor does it where the record is an older one, which somebody has put back.
    """
    if not gradebook.db.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'shown'")).first():
        return None
    found = json.loads(gradebook.db.execute(text("SELECT state FROM shown")).scalar_one())
    return dict(found["places"]) if found["version"] <= record.version else None


def _note(record: Record, gradebook: Gradebook, places: dict[str, Any]) -> None:
    gradebook.db.execute(text("CREATE TABLE IF NOT EXISTS shown (state TEXT)"))
    gradebook.db.execute(text("DELETE FROM shown"))
    state = json.dumps({"version": record.version, "places": places})
    gradebook.db.execute(text("INSERT INTO shown VALUES (:state)"), {"state": state})


def _found(gradebook: Gradebook, job: tuple[str, str] | None) -> dict[Key, dict[str, Any]]:
    """What stands in the gradebook, by its names in the record. job: only what concerns this student and lesson."""
    found = dict[Key, dict[str, Any]]()

    def rows(columns: str, source: str, student: str = "", lesson: str = "") -> Any:
        of = {column: value for column, value in zip((student, lesson), job, strict=True) if column} if job else {}
        where = " AND ".join(f"{column} = :value{number}" for number, column in enumerate(of)) or "1"
        values = {f"value{number}": value for number, value in enumerate(of.values())}
        return gradebook.db.execute(text(f"SELECT {columns} FROM {source} WHERE {where}"), values)

    for student, *names in rows(f"id, {', '.join(STUDENT)}", "student", student="id"):
        found["", student, ""] = dict(zip(STUDENT, names, strict=True))
    for lesson, due in rows("name, duedate", "assignment", lesson="name"):
        found[lesson, "", ""] = {"due": _iso(due)}
    cells = rows("a.name, c.name, c.type, coalesce(g.max_score, t.max_score)", LESSONS, lesson="a.name").all()
    # An answer that a person grades is there twice, as what gives points and as an answer.
    answers = {(lesson, name) for lesson, name, kind, _ in cells if kind != "GradeCell"}
    for lesson, name, kind, most in cells:
        one = found[lesson, "", ""]
        if kind != "SolutionCell":
            one.setdefault("most", {})[answer_of(name)] = most
            one.setdefault("questions", []).extend([name] if (lesson, name) in answers else [])
    both = {"student": "s.student_id", "lesson": "a.name"}
    columns = "a.name, s.student_id, s.timestamp, s.extension, n.late_submission_penalty"
    for lesson, student, when, extension, penalty in rows(columns, SUBMISSIONS, **both):
        # The database keeps a length of time as the moment so long after the first of 1970.
        seconds = (datetime.datetime.fromisoformat(extension) - EPOCH).total_seconds() if extension else None
        found[lesson, student, ""] = {"handed_in": _iso(when), "extension": seconds, "penalty": penalty}
    columns = "a.name, s.student_id, c.name, x.auto_score, x.manual_score, x.extra_credit, x.needs_manual_grade"
    for lesson, student, name, auto, manual, extra, to_grade in rows(columns, CELLS.format("grade"), **both):
        entry = {"auto": auto, "manual": manual, "extra": extra, "to_grade": bool(to_grade)}
        found[lesson, student, answer_of(name)] = entry
    columns = "a.name, s.student_id, c.name, x.auto_comment, x.manual_comment"
    for lesson, student, name, comment, remark in rows(columns, CELLS.format("comment"), **both):
        found.setdefault((lesson, student, name), {}).update(comment=comment, remark=remark)
    return found


def _key(place: str) -> Key:
    lesson, student, exercise = place.split("/", 2)
    return lesson, student, exercise


def _concerns(job: tuple[str, str] | None, key: Key) -> bool:
    lesson, student, _ = key
    return job is None or (student in ("", job[0]) and lesson in ("", job[1]))


def _wanted(record: Record, own: Settings, key: Key) -> dict[str, Any]:
    """What the gradebook shows at a place: what the record has there, and the dates of `course.toml` before others."""
    lesson, student, exercise = key
    ours = {name: value for name, value in vars(record.at(*key)).items() if name != "entries"}
    if not lesson or exercise:
        return ours
    due = own.of(lesson).due
    shown_due = _iso(due.replace(tzinfo=None)) if due else record.lessons[lesson].due
    if not student:
        return {"due": shown_due}
    # nbgrader counts an extension from the due date: without one, it can have none.
    given = own.extensions.get((student, lesson))
    if shown_due and given is not None:
        begins = datetime.datetime.fromisoformat(shown_due).replace(tzinfo=datetime.UTC)
        until = given if isinstance(given, datetime.datetime) else own.later(begins, given)
        ours["extension"] = (until - begins).total_seconds()
    return ours


def _does_not_count(own: Settings, key: Key, entered: Any, wanted: Any) -> str:
    lesson, student, _ = key
    if student:
        days, other = (f"{seconds / DAY.total_seconds():.4g}" for seconds in (wanted, entered))
        says, other = f"{student} has {days} more days for {lesson}", f"{other} days"
    else:
        times = (datetime.datetime.fromisoformat(one).replace(tzinfo=datetime.UTC) for one in (wanted, entered))
        due, other = (f"{own.local(time):%Y-%m-%d at %H:%M}" for time in times)
        says = f"{lesson} is due on {due}"
    file = course_settings.FILE
    return f"{file}: {says}; {other}, which was entered in the gradebook, does not count: change it in {file}"


def _own(gradebook: Gradebook) -> Settings:
    return course_settings.of(Path(gradebook.engine.url.database).parent)


def _iso(time: datetime.datetime | str | None) -> str | None:
    """A time as the record has it, of one from nbgrader or from its database."""
    return datetime.datetime.fromisoformat(str(time)).isoformat() if time else None


def _time(time: str | None) -> datetime.datetime | None:
    return datetime.datetime.fromisoformat(time) if time else None
