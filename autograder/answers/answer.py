"""What a known answer is, right or wrong, and where those of a lesson are."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import nbformat

from autograder.lesson import notebook


@dataclass(frozen=True)
class Answer:
    """A replacement for the answer cell `cell` of `lesson`.

    hint: what is wrong with it, or how it differs from the solution. breaks: the test cells that lose marks. fails: the
    checks of its own exercise that it fails; empty for one that fails the core. Both are as recorded (`verdicts`), and
    empty for a right answer and for a wrong one that has not been recorded.
    """

    name: str
    lesson: str
    cell: str
    source: str
    hint: str
    breaks: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()


def folder(lesson: str) -> Path:
    """The folder of a lesson's known answers: `wrong.md`, `verdicts.txt` and `right.py`."""
    return notebook.SOLUTIONS / lesson


def state(*paths: Path) -> tuple[tuple[Path, int], ...]:
    """Files and their times of change, 0 for one that does not exist: the key under which what they say is kept."""
    return tuple((path, path.stat().st_mtime_ns if path.is_file() else 0) for path in paths)


def solutions(lesson: str) -> dict[str, str]:
    """The answer cells of a lesson, by id, with the solution in them. ValueError for a cell that is no Python."""
    notebook.refuse_what_is_no_python(lesson)
    return _answer_cells(state(notebook.solution_path(lesson)))


@functools.cache
def _answer_cells(notebooks: tuple[tuple[Path, int], ...]) -> dict[str, str]:
    cells = [cell for path, _ in notebooks for cell in nbformat.read(path, as_version=4).cells]
    return {cell.id: cell.source for cell in cells if notebook.nbgrader_role(cell) == "solution"}
