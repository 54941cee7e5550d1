"""The record of a class, `record.json` beside the gradebook: grades, what people have entered, dates, what was graded.

It is the one truth. nbgrader's gradebook shows it, and what people enter there is read back from it (`nbgrader.view`).
Whoever changes the record holds the course's lock.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.lesson.files import write_whole

FILE = "record.json"


class DamagedRecordError(ValueError):
    """The record, or a file of before, holds something else."""


#: (lesson, student, exercise): the place of an entry; without the last, or the last two, of a submission or a lesson;
#: of a student, without a lesson.
Key = tuple[str, str, str]


@dataclass
class Entry:
    """One exercise of one submission, or one question."""

    auto: float | None = None
    """The points by the tests; none before they have run, and for a question that a person has to grade."""
    comment: str | None = None
    """What the machine says."""
    manual: float | None = None
    """The points by hand, which take precedence."""
    extra: float | None = None
    """Extra credit by hand."""
    remark: str | None = None
    """A person's comment, in place of the machine's."""
    to_grade: bool = True
    """Does formgrader list it, because it has no points or because those by hand are for an earlier answer?"""

    @property
    def score(self) -> float:
        """What counts, as nbgrader computes it."""
        points = self.auto if self.manual is None else self.manual
        return 0.0 if points is None else points + (self.extra or 0.0)


@dataclass
class Submission:
    """One student's work on one lesson."""

    handed_in: str | None = None
    """When: a time as nbgrader keeps it, in UTC without saying so."""
    extension: float | None = None
    """The seconds after the due date that a person has entered."""
    penalty: float | None = None
    """The points that being late costs."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """By exercise, those included that the lesson does not have any more."""


@dataclass
class Lesson:
    """One lesson, as the gradebook knows it, and the work on it."""

    state: str = ""
    """The fingerprint of the version that is in the gradebook."""
    tried: str = ""
    """The fingerprint with which its own solution had all points."""
    due: str | None = None
    """The due date that a person has entered, as a submission's time."""
    most: dict[str, float] = field(default_factory=dict)
    """Exercise or question → its points."""
    questions: list[str] = field(default_factory=list)
    """Those that only a person grades."""
    earlier: dict[str, list[str]] = field(default_factory=dict)
    """Test → digests of what students got of it in earlier versions."""
    graded: dict[str, str] = field(default_factory=dict)
    """Student → the fingerprint of what was graded."""
    imported: dict[str, str] = field(default_factory=dict)
    """Student → the name under which the LMS knows what was imported."""
    submissions: dict[str, Submission] = field(default_factory=dict)
    """By student."""


@dataclass
class Student:
    """What people have entered about a student in the gradebook."""

    first_name: str | None = None
    last_name: str | None = None
    email: str | None = None
    lms_user_id: str | None = None


@dataclass
class Record:
    """The record of a class."""

    lessons: dict[str, Lesson] = field(default_factory=dict)
    """By name."""
    students: dict[str, Student] = field(default_factory=dict)
    """By login."""
    conflicts: list[str] = field(default_factory=list)
    """Where the gradebook and this file had different entries by hand: a sentence each, with both."""
    written: dict[str, list[Any]] = field(default_factory=dict)
    """Place → dates of `course.toml` in a gradebook that does not say what it shows."""
    version: int = 0
    """How often it was written."""

    def at(self, lesson: str, student: str = "", exercise: str = "") -> Any:
        """What has this place, made if there is nothing yet."""
        if not lesson:
            return self.students.setdefault(student, Student())
        found: Any = self.lessons.setdefault(lesson, Lesson())
        found = found.submissions.setdefault(student, Submission()) if student else found
        return found.entries.setdefault(exercise, Entry()) if exercise else found

    def places(self) -> Iterator[Key]:
        """All places."""
        yield from (("", student, "") for student in self.students)
        for name, lesson in self.lessons.items():
            yield name, "", ""
            for student, submission in lesson.submissions.items():
                yield name, student, ""
                yield from ((name, student, exercise) for exercise in submission.entries)

    def homeless(self, lesson: str) -> str:
        """A line about what people have entered for exercises that a lesson does not have any more, or ''."""
        of = self.lessons[lesson]
        kept = [
            (exercise, student)
            for student, one in of.submissions.items()
            for exercise, entry in one.entries.items()
            if exercise not in of.most and {entry.manual, entry.extra, entry.remark} != {None}
        ]
        if not kept:
            return ""
        gone, students = (", ".join(sorted(set(part))) for part in zip(*kept, strict=True))
        what = f"the points and comments by hand of {students} for that"
        return f"{lesson} has no {gone} any more: {what} are kept in {FILE} and come back with the exercise"


#: Folder → the state of its file, the record, and what was written last.
_known: dict[Path, tuple[Any, Record, str]] = {}


def of(root: Path) -> Record:
    """The record of this folder's course, for the holder of its lock: the same one until another process writes."""
    if root not in _known or _known[root][0] != _state(root):
        _known[root] = _state(root), read(root), ""
    return _known[root][1]


def drop(root: Path) -> None:
    """Forget what was changed in the record and not saved."""
    _known.pop(root, None)


def save(root: Path, record: Record) -> None:
    """Write the record, if it has changed.

    One file, and as JSON: for 120 students, 17 lessons and 6 exercises that takes a tenth of a second.
    """
    text = json.dumps({"version": 0} | _plain(record) | {"version": 0}, default=_plain)
    if (root in _known and _known[root][2] == text) or record == Record():
        return
    record.version += 1
    write_whole(root / FILE, text.replace('"version": 0', f'"version": {record.version}', 1))
    _known[root] = _state(root), record, text
    for file in list(_old_files(root)):
        file.unlink()


def read(root: Path) -> Record:
    """The record as the file has it now, or as the files of a course do that have none yet. DamagedRecordError."""
    file = root / FILE
    if not file.is_file():
        return _taken_over(root)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return _made(Record, found)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        how = "restore a copy, or move it away: then what stands in gradebook.db is taken from there"
        raise DamagedRecordError(f"{file} is damaged ({error}): {how}") from None


#: What a new one of each part holds, and of what kind the parts below these names are.
_NEW = {kind: vars(kind()) for kind in (Record, Lesson, Student, Submission, Entry)}
_PARTS: dict[str, Any] = {"lessons": Lesson, "students": Student, "submissions": Submission, "entries": Entry}


def _plain(one: Any) -> dict[str, Any]:
    """A part of the record as a dictionary, without what is as in a new one."""
    new = _NEW[type(one)]
    return {name: value for name, value in vars(one).items() if value != new[name]}


def _made(kind: Any, found: dict[str, Any]) -> Any:
    """A part of the record from its dictionary."""
    for name in _PARTS.keys() & found.keys():
        found[name] = {key: _made(_PARTS[name], one) for key, one in found[name].items()}
    return kind(**found)


def _state(root: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        found = (root / FILE).stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return None


# --- folders as they were before there was a record -------------------------------------------------------


def _old_files(root: Path) -> Iterator[Path]:
    yield from (root / "submitted").glob(".imported-*.json")
    for pattern in (".graded.json", ".by-hand-*.json", ".earlier-*.json", ".dates.json"):
        yield from (root / "autograded").glob(pattern)


def _taken_over(root: Path) -> Record:
    """What these files say. What stands in the gradebook, `nbgrader.view` reads from there."""
    record = Record()
    for file in _old_files(root):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DamagedRecordError(f"{file} is damaged ({error}): restore a copy, or remove it") from None
        kind, _, name = file.stem.lstrip(".").removeprefix("by-").partition("-")
        lesson = record.at(name) if name else Lesson()
        if kind == "graded":
            for place, state in found.items():
                student, slash, name = place.rpartition("/")
                if student:
                    record.at(name).graded[student] = state
                else:
                    setattr(record.at(name), "tried" if slash else "state", state)
        elif kind == "dates":
            for place, one in found.items():
                student, _, name = place.rpartition("/")
                record.written[f"{name}/{student}/"] = one["written"]
                dated, date = record.at(name, student), "extension" if student else "due"
                if getattr(dated, date) in (None, *one["written"]):
                    setattr(dated, date, one["entered"])
        elif kind == "hand":
            lesson.due = found.get("duedate") or lesson.due
            for student, one in found["students"].items():
                submission = record.at(name, student)
                submission.handed_in, submission.extension = one.get("timestamp"), one.get("extension")
                for test, (manual, extra, to_grade) in one.get("points", {}).items():
                    entry = record.at(name, student, test.removesuffix("-test"))
                    entry.manual, entry.extra, entry.to_grade = manual, extra, to_grade
                for exercise, remark in one.get("comments", {}).items():
                    record.at(name, student, exercise).remark = remark
        else:
            setattr(lesson, kind, found)
    return record
