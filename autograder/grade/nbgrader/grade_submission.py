"""Writes what a worker found: into the record, into `autograded/` and into `feedback/`; and what a person enters.

The steps of `nbgrader_config.py` take a notebook that was run. Nothing of the submission runs in this process.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbgrader.converters import Autograde, GenerateFeedback
from nbgrader.converters.base import BaseConverter
from nbgrader.coursedir import CourseDirectory

from autograder.grade import outcome
from autograder.grade import record as records
from autograder.grade.nbgrader import late, reading, restore, scoring, submission_files, view
from autograder.lesson import course_settings

if TYPE_CHECKING:
    from traitlets.config import Config

#: Where a page says on which state of the gradebook it is based.
BASED_ON = re.compile(rb'<meta name="gradebook" content="(\w+)">')


def grade_submission(
    config: Config, student: str, lesson: str, nb: nbformat.NotebookNode, files: dict[str, bytes]
) -> None:
    """Write the grade of a submission and its page. nb: restored, as a worker has run it. files: the exchange's own."""
    course, when = CourseDirectory(config=config), submission_files.submitted_at(files)
    where = _names(course, student, lesson) | {
        "changed": reading.changed_answers(_autograded(course, student, lesson), nb),
        # None, too: the time of what was handed in before is not this one's.
        "handed_in": when and when.isoformat(),
    }
    nb, _ = _after(config.Autograde.autograde_preprocessors, config, nb, where)
    _replace(Autograde(coursedir=course, config=config), where, {f"{lesson}.ipynb": nbformat.writes(nb), **files})
    write_page(course, config, student, lesson, nb)


def record_failure(config: Config, student: str, lesson: str, why: str) -> None:
    """Give a submission that could not be graded 0 points for now, so that neither old scores nor old reasons stand."""
    course = CourseDirectory(config=config)
    shutil.rmtree(course.format_path(course.autograded_directory, student, lesson), ignore_errors=True)
    with view.writing(course, (student, lesson)) as (record, gradebook):
        sources = restore.source_cells(gradebook, lesson, lesson)
        nb = reading.notebook_of(restore.restore([], sources).cells, outcome.NotebookOutcome(why))
        for cell in nb.cells:
            outcome.to_metadata(cell, outcome.CellOutcome(comment=why))
        scoring.save(record, student, lesson, {cell.id: cell for cell in nb.cells}, changed=())
    write_page(course, config, student, lesson, nb)


def write_page(course: CourseDirectory, config: Config, student: str, lesson: str, nb: nbformat.NotebookNode) -> None:
    """Write the feedback on an autograded notebook, with the scores and comments of the record."""
    where = _names(course, student, lesson) | {"based_on": _state(course, student, lesson)}
    nb, where = _after(config.GenerateFeedback.preprocessors, config, nb, where)
    page, _ = config.GenerateFeedback.exporter_class(config=config).from_notebook_node(nb, {"nbgrader": where})
    folder = Path(course.format_path(course.autograded_directory, student, lesson))
    files = submission_files.exchange_files(folder)
    _replace(GenerateFeedback(coursedir=course, config=config), where, {f"{lesson}.html": page, **files})


def follow_gradebook(config: Config, course: CourseDirectory | None = None) -> list[tuple[str, str]]:
    """Bring late penalties and pages up to date with what stands in the gradebook now; (student, lesson) of the pages.

    No notebook is run. Points, comments and extra credit by hand, due dates and extensions need nothing else to count.
    """
    course, rewritten = course or CourseDirectory(config=config), []
    with view.writing(course) as (record, _):
        late.write_penalties(record, config, course_settings.of(course.root))
    for lesson, student in [key[:2] for key in record.places() if key[0] and key[1] and not key[2]]:
        page = Path(course.format_path(course.feedback_directory, student, lesson), f"{lesson}.html")
        is_old = page.is_file() and _based_on(page) != _state(course, student, lesson)
        nb = _autograded(course, student, lesson) if is_old else None
        if nb is not None:
            write_page(course, config, student, lesson, nb)
            rewritten.append((student, lesson))
    return rewritten


def _state(course: CourseDirectory, student: str, lesson: str) -> str:
    """A digest of all on which a page depends beside the notebook."""
    own, record = course_settings.of(course.root), records.of(view.root_of(course))
    delay = late.of_students(record, own, student).get((student, lesson)) if own.has_dates() else None
    parts = record.at(lesson, student), record.lessons[lesson].most, record.lessons[lesson].due, delay
    return hashlib.sha256(repr((*parts, own.of(lesson).hints, own.late)).encode("utf-8", "surrogatepass")).hexdigest()


def _based_on(page: Path) -> str:
    with open(page, "rb") as file:
        found = BASED_ON.search(file.read(4000))
    return found[1].decode() if found else ""


def _autograded(course: CourseDirectory, student: str, lesson: str) -> nbformat.NotebookNode | None:
    """The notebook as it was graded; None if there is none, or somebody has broken it."""
    path = Path(course.format_path(course.autograded_directory, student, lesson), f"{lesson}.ipynb")
    with contextlib.suppress(OSError, ValueError, nbformat.reader.NotJSONError):
        return nbformat.read(path, as_version=4)
    return None


def _names(course: CourseDirectory, student: str, lesson: str) -> dict[str, Any]:
    """How nbgrader's steps are told what they work on."""
    return {"student": student, "assignment": lesson, "notebook": lesson, "db_url": course.db_url}


def _after(steps: list[type], config: Config, nb: nbformat.NotebookNode, where: dict[str, Any]) -> tuple:
    """The notebook after these of nbgrader's steps, and what they have added to `where`."""
    resources: dict[str, Any] = {"nbgrader": where}
    for step in steps:
        nb, resources = step(config=config).preprocess(nb, resources)
    return nb, resources["nbgrader"]


def _replace(converter: BaseConverter, where: dict[str, Any], files: dict[str, str | bytes]) -> None:
    """Put these files, and nothing else, where nbgrader's converter writes, with its permissions."""
    job = where["assignment"], where["student"]
    target = Path(converter._format_dest(*job))
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
    converter.set_permissions(*job)
