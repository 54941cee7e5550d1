"""A lesson's notebook as a course wants it: its points, its exercises, its own text (`course_settings`)."""

from __future__ import annotations

import re
import shutil
from copy import deepcopy
from pathlib import Path

import nbformat

from autograder.lesson import names, notebook
from autograder.lesson.course_settings import FILE, Lesson, Settings, short_name

#: In a test cell's metadata: the points that its checks share, where the course gives others.
SHARED = "shared_points"
#: In the notebook's metadata: without the core of an exercise, its other properties earn nothing.
ALL_OR_NOTHING = "all_or_nothing"

_MARKERS = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION[ \t]*\n?", re.MULTILINE)


def adapted(nb: nbformat.NotebookNode, lesson: str, settings: Settings) -> nbformat.NotebookNode:
    """A lesson's solution notebook with the course's settings; the same object where they change nothing.

    ValueError, in one line, if what is left needs an exercise that was dropped.
    """
    own = settings.of(lesson)
    if own == Lesson(release=own.release, due=own.due, hints=own.hints):
        return nb
    nb, whole = deepcopy(nb), nb
    if own.all_or_nothing:
        nb.metadata[ALL_OR_NOTHING] = True
    nb.cells = [cell for cell in nb.cells if short_name(_name(cell)) not in own.drop]
    if own.drop:
        _refuse_what_needs_them(nb, whole, lesson, own)
    _give(nb, own)
    for cell in nb.cells:
        role = cell.metadata.get("nbgrader", {})
        if role.get("grade_id") in own.points:
            cell.metadata[SHARED], role["points"] = role.points, _whole(own.points[role.grade_id])
            _head(nb, short_name(role.grade_id), _points(role["points"]))
    if own.points or own.drop or own.given:
        total = sum(cell.metadata.nbgrader.get("points", 0) for cell in nb.cells if "nbgrader" in cell.metadata)
        nb.cells[0].source = with_total(nb.cells[0].source, total)
    if own.text:
        nb.cells.insert(1, nbformat.v4.new_markdown_cell(own.text, id=f"{lesson.split('_')[0]}-course"))
    return nb


def copy(solutions: Path, to: Path, lesson: str, settings: Settings | None = None) -> None:
    """Copy a lesson's solution notebook into the folder `lesson` of another folder, with the course's settings."""
    path, target = solutions / lesson / f"{lesson}.ipynb", to / lesson / f"{lesson}.ipynb"
    nb = nbformat.read(path, as_version=4) if settings and settings.exists else None
    ours = adapted(nb, lesson, settings) if nb is not None and settings is not None else None
    if ours is nb:
        shutil.copy(path, target)
    else:
        nbformat.write(ours, target)


def with_total(title: str, total: float) -> str:
    """A title cell's text with another number of points."""
    return re.sub(r"· [\d.]+ points?", f"· {_points(total)}", title)


def _give(nb: nbformat.NotebookNode, own: Lesson) -> None:
    """Show the answers of these exercises, and take away their tests."""
    nb.cells = [
        cell for cell in nb.cells if notebook.nbgrader_role(cell) != "grade" or short_name(_name(cell)) not in own.given
    ]
    for cell in nb.cells:
        if notebook.nbgrader_role(cell) == "solution" and short_name(_name(cell)) in own.given:
            cell.id, cell.source = _name(cell), _MARKERS.sub("", cell.source).rstrip()
            cell.metadata = nbformat.from_dict({"tags": ["setup"]})
    for exercise in own.given:
        _head(nb, exercise, "its answer is given")


def _head(nb: nbformat.NotebookNode, exercise: str, worth: str) -> None:
    """Write into the heading of an exercise what it is worth."""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and short_name(cell.id) == exercise:
            cell.source = re.sub(r"^(#+ .*)\([\d.]+ points?\)", rf"\1({worth})", cell.source, flags=re.MULTILINE)


def _refuse_what_needs_them(nb: nbformat.NotebookNode, whole: nbformat.NotebookNode, lesson: str, own: Lesson) -> None:
    ours, all_cells = names.Names(nb.cells), names.Names(whole.cells)
    known = set[str]().union(*ours.defines.values())
    for other in (cell for cell in all_cells.defines if cell not in ours.defines):
        gone = all_cells.defines[other] - known
        if needing := list(dict.fromkeys(short_name(cell) for cell, reads in ours.reads.items() if reads & gone)):
            what = ", ".join(sorted(gone & set[str]().union(*ours.reads.values())))
            remedy = f'write given = ["{short_name(other)}"] instead, which shows its answer, or drop these, too'
            by = f"{what} of {short_name(other)} is needed by {', '.join(needing)}"
            raise ValueError(f"{FILE}: lessons.{lesson}.drop: {by}: {remedy}")


def _name(cell: nbformat.NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id") or cell.id


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def _points(number: float) -> str:
    return f"{number:g} point{'' if number == 1 else 's'}"
