"""nbgrader's own commands: they copy only what is listed, grade as we do, and only one at a time writes grades."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.grade.nbgrader import lock, submission_files, view
from autograder.grade.record import DamagedRecordError
from autograder.lesson import course_settings, pieces

if TYPE_CHECKING:
    from traitlets.config import Config


def copy_only_what_is_listed() -> None:
    """Make nbgrader's converters copy no file that lies next to a notebook, but those that are listed.

    In a lesson's folder these are the files that its notebook finds beside itself, in a graded submission's those of
    the exchange; of a submission none, since whoever grades it (`grade_with`) writes them. nbgrader copies all that
    lies there: checks and answers to what students get, to the graded notebooks and to the feedback; and of a
    submission also what a link leads to. `nbgrader_config.py` calls this, so that nbgrader's commands and formgrader do
    it, too.
    """
    from nbgrader import converters, coursedir

    # nbgrader's own fails for what is no time.
    coursedir.CourseDirectory.get_existing_timestamp = lambda _, folder: _time_in(Path(folder))
    for converter, listed in (
        (converters.GenerateAssignment, pieces.companions),
        (converters.GenerateSolution, pieces.companions),
        (converters.Autograde, lambda _: {}),
        (converters.GenerateFeedback, submission_files.exchange_files),
    ):
        if not hasattr(converter.init_assignment, "__wrapped__"):  # the settings are read more than once
            converter.init_assignment = _copying(listed, converter.init_assignment)
            converter.init_notebooks = _without_others(converter.init_notebooks)


def _time_in(folder: Path) -> datetime.datetime | None:
    return submission_files.submitted_at(submission_files.exchange_files(folder))


def _copying(listed: Callable[[Path], dict[str, bytes]], init_assignment: Callable) -> Callable:
    """nbgrader's method, of which no file is copied but those that `listed` returns for the folder."""

    @functools.wraps(init_assignment)
    def init(self: Any, assignment_id: str, student_id: str) -> None:
        ignored = self.coursedir.ignore
        self.coursedir.ignore = [*ignored, "*"]
        files = listed(Path(self._format_source(assignment_id, student_id)))
        try:
            init_assignment(self, assignment_id, student_id)
        finally:
            self.coursedir.ignore = ignored
        target = Path(self._format_dest(assignment_id, student_id))
        target.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(content)

    return init


def grade_with(grade: Callable[[Config, Path, str, str], str]) -> None:
    """Let `nbgrader autograde`, and formgrader's button, grade a submission with this function.

    It takes nbgrader's configuration, the course's folder, the student and the lesson; '' or, in one line, why it was
    not possible. It replaces what was graded before, so nbgrader need not remove it first: the answers in it tell which
    scores given by hand still hold.
    """
    from nbgrader import converters

    def convert(self: Any, path: str) -> None:
        folder = Path(path).parent
        if problem := grade(self.config, view.root_of(self.coursedir), folder.parent.name, folder.name):
            raise converters.NbGraderException(problem)

    converters.Autograde.convert_single_notebook = convert
    if not hasattr(converters.Autograde.init_destination, "__wrapped__"):
        converters.Autograde.init_destination = _removing_nothing(converters.Autograde.init_destination)


def _removing_nothing(init_destination: Callable) -> Callable:
    """nbgrader's method, which says whether to grade a submission, and with --force removes nothing."""

    @functools.wraps(init_destination)
    def init(self: Any, assignment_id: str, student_id: str) -> bool:
        excluded = student_id in self.coursedir.student_id_exclude.split(",")
        return not excluded and (self.force or init_destination(self, assignment_id, student_id))

    return init


def one_at_a_time() -> None:
    """Make nbgrader's commands and the formgrader's buttons wait their turn: those that write grades hold the lock."""
    from nbgrader import converters

    for command in ("autograde", "generate_assignment", "generate_feedback"):
        converter = getattr(converters, command.title().replace("_", ""))
        if not hasattr(converter.start, "__wrapped__"):
            converter.start = _alone(converter.start, f"nbgrader {command}")


def _alone(start: Callable, what: str) -> Callable:
    """nbgrader's method, under the lock of its course, with the gradebook as the record has it.

    NbGraderException, after one line in its log, if the lock is taken, or `course.toml` or the record has a mistake.
    """

    @functools.wraps(start)
    def alone(self: Any) -> None:
        from nbgrader.converters import NbGraderException

        try:
            with lock.held(view.root_of(self.coursedir), what):
                with view.writing(self.coursedir):
                    pass
                start(self)
        except (lock.CourseInUseError, course_settings.BadSettingError, DamagedRecordError) as error:
            self.log.error("%s", error)
            raise NbGraderException(str(error)) from None

    return alone


def _without_others(init_notebooks: Callable) -> Callable:
    """nbgrader's method, which finds in each folder only the notebook of its name."""

    @functools.wraps(init_notebooks)
    def init(self: Any) -> None:
        init_notebooks(self)
        for folder, found in self.assignments.items():
            self.assignments[folder] = [path for path in found if Path(path).stem == Path(folder).name]

    return init
