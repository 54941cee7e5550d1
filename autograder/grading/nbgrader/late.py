"""What is late, and what that costs: by `course.toml`, and by the dates in the gradebook where it says nothing.

A date of `course.toml` comes before one that somebody has entered in the gradebook (`dates`).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple

from nbgrader.api import Gradebook
from nbgrader.preprocessors import AssignLatePenalties

from autograder.grading.nbgrader import library
from autograder.lessons import course_settings
from autograder.lessons.course_settings import Settings

if TYPE_CHECKING:
    import nbformat


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


def of_students(gradebook: Gradebook, own: Settings, student: str = "") -> dict[tuple[str, str], Lateness]:
    """(student, lesson) → how late each submission is. student: those of this one alone.

    Late days are used up in the order of the due dates.
    """
    from nbgrader import api

    columns = api.SubmittedAssignment.timestamp, api.SubmittedAssignment.extension, api.Assignment.duedate
    query = (
        gradebook.db.query(api.SubmittedAssignment.student_id, api.Assignment.name, *columns)
        .select_from(api.SubmittedAssignment)
        .join(api.Assignment, api.SubmittedAssignment.assignment_id == api.Assignment.id)
    )
    if student:
        query = query.filter(api.SubmittedAssignment.student_id == student)
    far, late = datetime.datetime.max.replace(tzinfo=datetime.UTC), list[tuple[datetime.datetime, str, str, Lateness]]()
    rows = query.all()
    extensions = {(who, lesson): extension for who, lesson, _, extension, _ in rows} | dict(own.extensions)
    for who, lesson, timestamp, _, entered in rows:
        due, handed_in = own.of(lesson).due or _utc(entered), _utc(timestamp)
        given = extensions.get((who, lesson))
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


class LatePenalties(AssignLatePenalties):
    """As nbgrader's AssignLatePenalties, with the dates and the late policy of `course.toml`."""

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Write the penalty of a submission into the gradebook."""
        own = library.course_settings_of(self.config)
        if not own.has_dates():
            return super().preprocess(nb, resources)
        where = resources["nbgrader"]
        self.init_plugin()
        with Gradebook(where["db_url"]) as gradebook:
            late = of_students(gradebook, own, where["student"])[where["student"], where["assignment"]]
            found = gradebook.find_submission_notebook(where["notebook"], where["assignment"], where["student"])
            penalty = late.penalty(found.score, own)
            if own.late is None and late.seconds:
                plugin = self.plugin_inst.late_submission_penalty(where["student"], found.score, late.seconds)
                penalty = self._check_late_penalty(found, plugin) if plugin is not None else 0.0
            found.late_submission_penalty = penalty or None
            gradebook.db.commit()
        return nb, resources


def _utc(time: datetime.datetime | None) -> datetime.datetime | None:
    """A time of the gradebook's, which are in UTC and do not say so."""
    return time and min(time.replace(tzinfo=datetime.UTC), LAST)
