"""A course's own settings: `course.toml` in the course's folder, beside `submitted/`.

git ignores that file, so that no update of the repository touches it. `course.example.toml` shows every setting.
Without the file, everything is as the repository has it.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import math
import re
import tomllib
import zoneinfo
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import nbformat

from autograder.lesson import notebook

FILE = "course.toml"
#: Where the notebooks of a course with settings of its own are put, in its folder.
RELEASE = "release"

CORES = ("adds up", "all or nothing")
DAY = datetime.timedelta(days=1)


class BadSettingError(ValueError):
    """A line on what is wrong in `course.toml`."""


@dataclass(frozen=True)
class Late:
    """What a late submission costs.

    penalty_per_day: the part of its points that each day takes. late_days: free days, for each student, over all
    lessons. grace: how late is not late yet, on each day.
    """

    penalty_per_day: float = 0.0
    late_days: int = 0
    grace: datetime.timedelta = datetime.timedelta()


@dataclass(frozen=True)
class Lesson:
    """The settings of one lesson. Times are in UTC.

    points: test cell → its points. drop, given: exercises, such as `03-ex4`. drop also has cells of no exercise.
    all_or_nothing: does nothing count without the core? hints: do students see them?
    """

    release: datetime.datetime | None = None
    due: datetime.datetime | None = None
    text: str = ""
    points: Mapping[str, float] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    all_or_nothing: bool = False
    hints: bool = True


@dataclass(frozen=True)
class Settings:
    """All settings of a course.

    exists: is there a file? solutions: the folder of its lessons. lessons: those that belong to it; without any, all.
    others: the settings of a lesson that is not in lessons. extensions: (student, lesson) → another due date, or so
    much more time. anonymous: does formgrader hide names from those who grade by hand?
    """

    exists: bool = False
    solutions: Path = notebook.SOLUTIONS
    zone: datetime.tzinfo | None = None
    lessons: Mapping[str, Lesson] = field(default_factory=dict)
    others: Lesson = Lesson()
    late: Late | None = None
    anonymous: bool = False
    extensions: Mapping[tuple[str, str], datetime.datetime | datetime.timedelta] = field(default_factory=dict)

    def names(self) -> list[str]:
        """The lessons of the course, in order."""
        known = notebook.lessons(self.solutions)
        return [name for name in known if name in self.lessons] if self.lessons else known

    def pick(self, lessons: Iterable[str] | None) -> list[str]:
        """These lessons, or all of the course if none is named; UnknownLessonError for one that is not in it."""
        picked, known = notebook.pick(lessons, self.solutions) if lessons else self.names(), self.names()
        for name in picked:
            if name not in known:
                raise notebook.UnknownLessonError(f"{FILE} does not have {name}; it has {', '.join(known)}")
        return picked

    def not_yet(self, lesson: str, now: datetime.datetime | None = None) -> datetime.datetime | None:
        """When a lesson is released, in the course's time zone; None if that time has come, or there is none."""
        when = self.of(lesson).release
        return self.local(when) if when and when > (now or datetime.datetime.now(datetime.UTC)) else None

    def of(self, lesson: str) -> Lesson:
        """The settings of a lesson."""
        return self.lessons.get(lesson, self.others)

    def local(self, when: datetime.datetime) -> datetime.datetime:
        """A time in the course's time zone."""
        return when.astimezone(self.zone)

    def later(self, when: datetime.datetime, by: datetime.timedelta) -> datetime.datetime:
        """A time so much later, in UTC: whole days are those of the calendar, and end at the same time of the clock."""
        day = self.local(when).replace(tzinfo=None) + datetime.timedelta(by.days)
        moved = (day.replace(tzinfo=self.zone) if self.zone else day) if by.days else when
        return moved.astimezone(datetime.UTC) + datetime.timedelta(seconds=by.seconds, microseconds=by.microseconds)

    def days_between(self, begin: datetime.datetime, end: datetime.datetime) -> int:
        """How many days of the calendar have begun from a time to a later one."""
        passed = self.local(end).replace(tzinfo=None) - self.local(begin).replace(tzinfo=None)
        return max(1, math.ceil(passed / DAY))

    def has_dates(self) -> bool:
        """Does the file say anything about when work is late, or what that costs?"""
        return self.late is not None or bool(self.extensions) or any(one.due for one in self.lessons.values())

    def marks(self, lesson: str) -> str:
        """What the marks of a lesson depend on; '' if all is as the repository has it."""
        own = self.of(lesson)
        changed = sorted(own.points.items()), own.drop, own.given, own.all_or_nothing
        return repr(changed) if any(changed) else ""


def of(root: Path | str) -> Settings:
    """The settings of the course in a folder. BadSettingError for the first mistake in its file."""
    solutions, path = solutions_of(Path(root)), Path(root) / FILE
    if not path.is_file():
        return Settings(solutions=solutions)
    sources = tuple(notebook_path.stat().st_mtime_ns for notebook_path in sorted(solutions.glob("*/*.ipynb")))
    return _read(path, solutions, path.read_bytes(), sources)


def solutions_of(root: Path) -> Path:
    """The lessons of a course: `solutions/` in its folder if it exists, else the repository's."""
    own = root.resolve() / "solutions"
    return own if own.is_dir() and own.parent != notebook.ROOT else notebook.SOLUTIONS


def released_to(root: Path | str) -> str:
    """The folder in a course's folder that holds what students get."""
    return RELEASE if (Path(root) / FILE).is_file() else notebook.NOTEBOOKS.name


@functools.lru_cache(maxsize=64)
def _read(path: Path, solutions: Path, content: bytes, _changed: tuple[int, ...]) -> Settings:
    try:
        found = tomllib.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise BadSettingError(f"{path.name}: {error}: correct it, or look at course.example.toml") from None
    return _Reader(path.name, solutions).settings(found)


class _Reader:
    """Makes Settings of what tomllib has read; everything that is not as it should be is a BadSettingError."""

    def __init__(self, file: str, solutions: Path):
        self.file, self.solutions = file, solutions
        self.zone: datetime.tzinfo | None = None

    def settings(self, found: dict[str, Any]) -> Settings:
        known = ("timezone", "core", "hints", "anonymous", "late", "lessons", "extensions")
        self._only(found, "", known)
        if "timezone" in found:
            self.zone = self._zone(found["timezone"])
        others = Lesson(**self._how_it_counts(found, "", Lesson()))
        lessons: dict[str, Lesson] = {}
        for name, table in self._table(found, "lessons", "").items():
            lesson = self._lesson_name(name, "lessons", notebook.lessons(self.solutions))
            if lesson in lessons:
                self._refuse("lessons", f"{lesson} is there twice: write one table for it")
            lessons[lesson] = self._lesson(lesson, self._is_table(table, f"lessons.{name}"), f"lessons.{name}", others)
        return Settings(
            exists=True,
            solutions=self.solutions,
            zone=self.zone,
            lessons=lessons,
            others=others,
            late=self._late(self._table(found, "late", "")) if "late" in found else None,
            anonymous=self._is(found.get("anonymous", False), bool, "anonymous", "true or false"),
            extensions=self._extensions(self._table(found, "extensions", ""), lessons),
        )

    def _how_it_counts(self, table: dict[str, Any], place: str, default: Lesson) -> dict[str, Any]:
        """What this table says of the core and of hints. default: what holds where it says nothing."""
        core, hints = (f"{place}.{key}".lstrip(".") for key in ("core", "hints"))
        found = table.get("core", CORES[default.all_or_nothing])
        if found not in CORES:
            self._refuse(core, f"it is {found!r}: write {CORES[0]!r} or {CORES[1]!r}")
        shown = self._is(table.get("hints", default.hints), bool, hints, "true or false")
        return {"all_or_nothing": found == CORES[1], "hints": shown}

    def _late(self, table: dict[str, Any]) -> Late:
        self._only(table, "late", ("penalty_per_day", "late_days", "grace_minutes"))
        part = self._number(table.get("penalty_per_day", 0), "late.penalty_per_day")
        if part > 1:
            self._refuse("late.penalty_per_day", f"it is {part:g}: write the part of the points, such as 0.1 for 10 %")
        days = self._is(table.get("late_days", 0), int, "late.late_days", "a whole number of days")
        if days < 0:
            self._refuse("late.late_days", "it is below 0")
        minutes = self._number(table.get("grace_minutes", 0), "late.grace_minutes")
        return Late(part, days, datetime.timedelta(minutes=minutes))

    def _lesson(self, lesson: str, table: dict[str, Any], place: str, default: Lesson) -> Lesson:
        self._only(table, place, ("release", "due", "text", "points", "drop", "given", "core", "hints"))
        exercises, others = _parts(self.solutions / lesson / f"{lesson}.ipynb")
        points: dict[str, float] = {}
        for name, worth in self._table(table, "points", place).items():
            tests = exercises[self._exercise(name, exercises, f"{place}.points")]
            number = self._number(worth, f"{place}.points.{name}")
            if not number or len(tests) != 1:
                self._refuse(f"{place}.points.{name}", "an exercise has points above 0; to leave it out, use drop")
            points[tests[0]] = number
        drop, given = (
            tuple(self._exercise(name, known, f"{place}.{key}") for name in self._names(table, key, place))
            for key, known in (("drop", {**exercises, **{name: [] for name in others}}), ("given", exercises))
        )
        for name in (*drop, *given):
            if (*drop, *given).count(name) > 1 or any(test in points for test in exercises.get(name, ())):
                self._refuse(place, f"{name} is in more than one of points, drop and given: leave it in one")
        if set(drop) | set(given) >= set(exercises):
            self._refuse(place, "no exercise is left: leave the whole lesson out instead")
        return Lesson(
            self._time(table["release"], f"{place}.release", datetime.time()) if "release" in table else None,
            self._time(table["due"], f"{place}.due", datetime.time(23, 59, 59)) if "due" in table else None,
            self._is(table.get("text", ""), str, f"{place}.text", "a text").strip(),
            points,
            drop,
            given,
            **self._how_it_counts(table, place, default),
        )

    def _extensions(
        self, table: dict[str, Any], lessons: Collection[str]
    ) -> dict[tuple[str, str], datetime.datetime | datetime.timedelta]:
        found: dict[tuple[str, str], datetime.datetime | datetime.timedelta] = {}
        known = list(lessons) or notebook.lessons(self.solutions)
        for student, entry in table.items():
            place = f"extensions.{student}"
            for name, value in self._is_table(entry, place).items():
                lesson = self._lesson_name(name, place, known)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found[student, lesson] = DAY * self._number(value, f"{place}.{name}")
                else:
                    found[student, lesson] = self._time(value, f"{place}.{name}", datetime.time(23, 59, 59), " or days")
        return found

    def _lesson_name(self, name: str, place: str, known: list[str]) -> str:
        whole = {lesson.split("_")[0]: lesson for lesson in known}.get(name, name)
        if whole not in known:
            self._refuse(place, f"no lesson {name!r}{did_you_mean(name, known)}")
        return whole

    def _exercise(self, name: str, exercises: Mapping[str, list[str]], place: str) -> str:
        short = {one: one for one in exercises} | {one.split("-", 1)[-1]: one for one in exercises}
        short |= {test.removesuffix("-test"): one for one, tests in exercises.items() for test in tests}
        if name not in short:
            self._refuse(place, f"no exercise {name!r}{did_you_mean(name, short)}")
        return short[name]

    def _time(self, value: object, place: str, end: datetime.time, other: str = "") -> datetime.datetime:
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime.combine(value, end)
        if not isinstance(value, datetime.datetime):
            self._refuse(place, f"{value!r} is no date{other}: write 2026-10-19 or 2026-10-19T18:00:00, without quotes")
        if value.tzinfo is None and self.zone is not None:
            value = value.replace(tzinfo=self.zone)
        return value.astimezone(datetime.UTC)

    def _zone(self, name: object) -> datetime.tzinfo:
        try:
            return zoneinfo.ZoneInfo(self._is(name, str, "timezone", 'a name such as "Europe/Berlin"'))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            self._refuse("timezone", f"no time zone {name!r}{did_you_mean(str(name), zoneinfo.available_timezones())}")

    def _table(self, table: dict[str, Any], key: str, place: str) -> dict[str, Any]:
        return self._is_table(table.get(key, {}), f"{place}.{key}".lstrip("."))

    def _is_table(self, value: object, place: str) -> dict[str, Any]:
        return self._is(value, dict, place, f"a table, such as [{place}]")

    def _names(self, table: dict[str, Any], key: str, place: str) -> list[str]:
        names = self._is(table.get(key, []), list, f"{place}.{key}", 'a list, such as ["ex3"]')
        return [self._is(name, str, f"{place}.{key}", 'a list of names, such as ["ex3"]') for name in names]

    def _number(self, value: object, place: str) -> float:
        number = float(self._is(value, int | float, place, "a number"))
        if isinstance(value, bool) or not 0 <= number < 1e6:
            self._refuse(place, f"it is {value!r}: write a number from 0 on")
        return number

    def _is(self, value: Any, kind: Any, place: str, words: str) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self._refuse(place, f"it is {value!r}: write {words}")
        return value

    def _only(self, table: dict[str, Any], place: str, known: Iterable[str]) -> None:
        for key in table:
            if key not in known:
                self._refuse(place, f"no setting {key!r}{did_you_mean(key, known)}")

    def _refuse(self, place: str, why: str) -> NoReturn:
        raise BadSettingError(f"{self.file}: {place}{': ' if place else ''}{why}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a line about a name that is not known: the nearest known one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0)
    return f": did you mean {near[0]}?" if near else ""


def short_name(cell: str) -> str:
    """The exercise that a cell belongs to: `08-ex3` for `08-ex3-step-test`; its own name for one of another form."""
    match = re.match(r"(\d+-ex\d+)(-|$)", cell)
    return match[1] if match else cell.removesuffix("-test")


def _parts(path: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Exercise → the cells with its points, in the order of a lesson's notebook; and the cells of no exercise."""
    found: dict[str, list[str]] = {}
    cells = nbformat.read(path, as_version=4).cells
    for cell in cells:
        role = cell.metadata.get("nbgrader", {})
        if role.get("grade") or role.get("task"):
            found.setdefault(short_name(role.grade_id), []).append(role.grade_id)
    return found, [
        cell.id for cell in cells[1:] if short_name(cell.id) not in found and "nbgrader" not in cell.metadata
    ]
