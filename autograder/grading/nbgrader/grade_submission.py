"""Writes what a worker found: into the gradebook, into `autograded/` and into `feedback/`.

nbgrader's commands do the same with a submission that they run themselves, with the steps of `nbgrader_config.py`.
Here those steps take a notebook that was run. Nothing of the submission runs in this process.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.converters.base import BaseConverter
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import parse_utc

from autograder.grading.nbgrader import submission_files
from autograder.grading.nbgrader.preprocessors import RunCells

if TYPE_CHECKING:
    from traitlets.config import Config


def grade_submission(config: Config, student: str, lesson: str, executed: str) -> None:
    """Write the grade of a submission and its page. executed: the restored notebook as a worker has run it, as text."""
    course = CourseDirectory(config=config)
    folder = Path(course.format_path(course.submitted_directory, student, lesson))
    files = submission_files.exchange_files(folder)
    nb = nbformat.reads(executed, as_version=4)
    patterns = RunCells(config=config).data_files
    nb.metadata.autograder.left_out = submission_files.submitted_files(folder, patterns)[1]
    with Gradebook(course.db_url, course.course_id) as gradebook:
        gradebook.update_or_create_student(student)
        when = submitted_at(files)
        gradebook.update_or_create_submission(lesson, student, **({"timestamp": when} if when else {}))
    steps = config.Autograde.autograde_preprocessors
    where = {"student": student, "assignment": lesson, "notebook": lesson, "db_url": course.db_url}
    nb, _ = _taken(steps[steps.index(RunCells) + 1 :], config, nb, where)
    _replace(Autograde, course, config, where, {f"{lesson}.ipynb": nbformat.writes(nb), **files})
    write_page(config, student, lesson, nb, files)


def write_page(config: Config, student: str, lesson: str, nb: nbformat.NotebookNode, files: dict[str, bytes]) -> None:
    """Write the feedback on an autograded notebook, with the scores and comments of the gradebook."""
    course = CourseDirectory(config=config)
    where = {"student": student, "assignment": lesson, "notebook": lesson, "db_url": course.db_url}
    nb, where = _taken(config.GenerateFeedback.preprocessors, config, nb, where)
    page, _ = config.GenerateFeedback.exporter_class(config=config).from_notebook_node(nb, {"nbgrader": where})
    _replace(GenerateFeedback, course, config, where, {f"{lesson}.html": page, **files})


def submitted_at(files: dict[str, bytes]) -> datetime.datetime | None:
    """The time in the exchange's file, in UTC; None if there is none, or none that can be read."""
    with contextlib.suppress(Exception):  # a student can write anything there, and dateutil raises many things
        return parse_utc(files["timestamp.txt"].decode().strip())
    return None


def _taken(steps: list[type], config: Config, nb: nbformat.NotebookNode, where: dict[str, Any]) -> tuple:
    """The notebook after nbgrader's steps, and what they found. where: nbgrader's student, assignment, and so on."""
    resources: dict[str, Any] = {"nbgrader": where}
    for step in steps:
        nb, resources = step(config=config).preprocess(nb, resources)
    return nb, resources["nbgrader"]


def _replace(
    converter: type[BaseConverter], course: CourseDirectory, config: Config, where: dict, files: dict[str, Any]
) -> None:
    """Put these files, and nothing else, where nbgrader's converter writes, with its permissions."""
    writer = converter(coursedir=course, config=config)
    target = Path(writer._format_dest(where["assignment"], where["student"]))
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        for name, content in files.items():
            (new / name).write_bytes(content.encode() if isinstance(content, str) else content)
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # what a full disk leaves
    writer.set_permissions(where["assignment"], where["student"])
