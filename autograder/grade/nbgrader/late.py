"""What is late, and what that costs: by `course.toml`, or by the dates that people have entered where it has none."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple

from nbgrader.preprocessors import AssignLatePenalties

from autograder.grade.record import Record
from autograder.lesson import course_settings
from autograder.lesson.course_settings import Settings

if TYPE_CHECKING:
    from traitlets.config import Config


NO_TIME = datetime.timedelta()
#: Somebody can write any time. Beyond this one, other time zones have none.
LAST = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC)


class Lateness(NamedTuple):
    """How late a submission is: in seconds, and in days of the calendar that have begun; how many of these are free.

    until: when it was due, in UTC, which may be later than for others (extended). handed_in: when it came.
    """

    seconds: float = 0.0
    days: int = 0
    free: int = 0
    until: datetime.datetime | None = None
    extended: bool = False
    handed_in: datetime.datetime | None = None

    def penalty(self, score: float, own: Settings) -> float:
        """The points that it costs, of so many."""
        part = (self.days - self.free) * (own.late.penalty_per_day if own.late else 0.0)
        return round(score * min(part, 1.0), 2)

    @property
    def words(self) -> str:
        """What the page says of it; '' for one in time."""
        if not self.days:
            return ""
        free = f", {self.free} of them free (late days)" if self.free else ""
        return f"{self.days} day{'' if self.days == 1 else 's'} late{free}"


def of_students(record: Record, own: Settings, student: str = "") -> dict[tuple[str, str], Lateness]:
    """(student, lesson) → how late each submission is. student: those of this one alone.

    Late days are used up in the order of the due dates.
    """
    far, late = datetime.datetime.max.replace(tzinfo=datetime.UTC), list[tuple[datetime.datetime, str, str, Lateness]]()
    everything = ((lesson, who) for lesson in record.lessons for who in record.lessons[lesson].submissions)
    for lesson, who in (place for place in everything if student in ("", place[1])):
        submission = record.lessons[lesson].submissions[who]
        due, handed_in = own.of(lesson).due or _utc(record.lessons[lesson].due), _utc(submission.handed_in)
        entered = None if submission.extension is None else datetime.timedelta(seconds=submission.extension)
        given = own.extensions.get((who, lesson), entered)
        until = given if isinstance(given, datetime.datetime) else due and own.later(due, given or NO_TIME)
        seconds = max(0.0, (handed_in - until).total_seconds()) if handed_in and until else 0.0
        late.append((due or until or far, lesson, who, Lateness(seconds, 0, 0, until, bool(given), handed_in)))
    found, left = {}, dict[str, int]()
    policy = own.late or course_settings.Late()
    for _, lesson, who, one in sorted(late, key=lambda found: found[:3]):
        days = 0
        if one.until and one.handed_in and one.seconds > policy.grace.total_seconds():
            days = own.days_between(one.until, one.handed_in - policy.grace)
        free = min(days, left.setdefault(who, policy.late_days))
        left[who] -= free
        found[who, lesson] = one._replace(days=days, free=free)
    return found


def write_penalties(record: Record, config: Config, own: Settings, student: str = "") -> None:
    """Write into the record what being late costs: by `course.toml`, or by nbgrader's settings if it says nothing."""
    nbgraders = AssignLatePenalties(config=config)
    nbgraders.init_plugin()
    for (who, lesson), late in of_students(record, own, student).items():
        submission, most = record.at(lesson, who), record.lessons[lesson].most
        score = sum(entry.score for name, entry in submission.entries.items() if name in most)
        penalty = late.penalty(score, own)
        if own.late is None and late.seconds:
            cost = nbgraders.plugin_inst.late_submission_penalty(who, score, late.seconds)
            penalty = min(max(cost or 0.0, 0.0), score)
        submission.penalty = penalty or None


def _utc(time: str | None) -> datetime.datetime | None:
    """A time of the record's, which are in UTC and do not say so."""
    return min(datetime.datetime.fromisoformat(time).replace(tzinfo=datetime.UTC), LAST) if time else None
