"""A lesson's setup cells in a submission: where one was changed or lost, the lesson's own is run as well.

A setup cell that raises an error in its middle, is no Python, ends the kernel or is not there any more leaves every
exercise without its imports. So the lesson's own cell is put back in front of the student's, which still runs and whose
definitions count. What is in the notebook unchanged, above the exercises that need it, is not run twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import nbformat

from autograder.grade import outcome
from autograder.grade.nbgrader import scoring
from autograder.grade.outcome import NOT_RUN, OK, CellOutcome
from autograder.lesson import notebook

#: At most this many characters of an error are repeated in a remark.
MOST = 300


#: Before which cell of a submission a cell belongs, and the cell.
Placed = tuple[int, nbformat.NotebookNode]


def missing(cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode) -> list[Placed]:
    """(place, cell) for each setup cell of the lesson that the submission lacks, in the lesson's order.

    cells: a restored submission, in which every answer and test of the lesson stands under its name. The cell belongs
    before `cells[place]`: behind what comes before it in the lesson, and above every exercise that comes after it.
    """
    code = [cell for cell in lesson.cells if cell.cell_type == "code"]
    texts = [cell.source.strip() if cell.cell_type == "code" else None for cell in cells]
    names = {cell.id: at for at, cell in enumerate(cells) if notebook.nbgrader_role(cell)}
    found, behind = [], 0
    for number, cell in enumerate(code):
        if notebook.nbgrader_role(cell):
            behind = names.get(cell.id, behind - 1) + 1
            continue
        above = min((names[later.id] for later in code[number:] if later.id in names), default=len(cells))
        if cell.source.strip() in texts[:above]:
            behind = texts.index(cell.source.strip()) + 1
        elif notebook.is_setup(cell):
            found.append((min(behind, above), cell))
    return found


def put_back(cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode) -> None:
    """Insert into a restored submission the lesson's setup cells that it lacks, and mark them for `remarks`."""
    for place, cell in reversed(missing(cells, lesson)):
        ours = nbformat.v4.new_code_cell(cell.source, id=cell.id)
        outcome.to_metadata(ours, CellOutcome(setup=True))
        cells.insert(place, ours)
    texts = {cell.source.strip() for cell in lesson.cells}
    in_place = ""  # of which setup cell the student's cells here can be another version
    for cell in (cell for cell in cells if cell.cell_type == "code"):
        ours = outcome.of_metadata(cell)
        if ours.setup:
            in_place = cell.id
        elif notebook.nbgrader_role(cell) or cell.source.strip() in texts:
            in_place = ""
        elif in_place:
            ours.instead_of = in_place
            outcome.to_metadata(cell, ours)


def remarks(cells: Iterable[nbformat.NotebookNode]) -> list[str]:
    """For the feedback page: which setup cells were put back, and what became of the student's. cells: as they ran."""
    put, stopped = list[str](), list[str]()
    for cell in cells:
        ours = outcome.of_metadata(cell)
        if ours.setup:
            put.append(cell.id)
        elif ours.instead_of and ours.status not in ("", OK, NOT_RUN):
            stopped.append(_how_it_stopped(ours))
    if not put:
        return []
    one = len(put) == 1
    what = f"{'cell' if one else 'cells'} {', '.join(put)}"
    why = f"because {'it was' if one else 'they were'} changed or missing in your notebook"
    return [f"The lesson's own setup {what} ran before your cells, {why}.", *stopped[:3]]


def _how_it_stopped(ours: CellOutcome) -> str:
    """A sentence on a cell that stands in the place of a setup cell and did not run to its end."""
    failure = ours.reason
    if failure.kind in scoring.STOPPED:
        return scoring.STOPPED[failure.kind].format(what="your setup cell", What="Your setup cell")
    name, text = failure.error, failure.message
    return f"Your setup cell stopped with {name}: {text[:MOST]}" if text else f"Your setup cell stopped with {name}."
