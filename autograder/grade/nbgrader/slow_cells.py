"""Which of a student's cells took the time, where a limit of time was met."""

from __future__ import annotations

from collections.abc import Iterable

import nbformat

from autograder.grade import limits, outcome
from autograder.grade.running.run_cells import is_test
from autograder.lesson import notebook

#: A cell is named that took at least this part of the slowest one's time; at most so many cells.
PART, MOST = 0.1, 3
#: Characters that are repeated of a cell's first line, comments and imports aside.
LINE = 60


def remark(cells: Iterable[nbformat.NotebookNode]) -> str:
    """A sentence that names the slowest cells, the slowest first; "" if no limit of time was met.

    cells: a submission as `run_cells` leaves it. An exercise's tests take the time that the student's answer takes.
    """
    code = [cell for cell in cells if cell.cell_type == "code"]
    found = [outcome.of_metadata(cell) for cell in code]
    if not any(one.met_limit for one in found):
        return ""
    timed = sorted(((one.seconds, n) for n, one in enumerate(found)), reverse=True)
    slow = [(seconds, n) for seconds, n in timed[:MOST] if seconds >= max(0.1, PART * timed[0][0])]
    parts = [f"{_named(code, n)} ({_seconds(found[n], is_test(code[n]))})" for _, n in slow]
    return f"A limit of time was met. Most of the time went into {limits.listed(parts)}." if parts else ""


def _named(code: list[nbformat.NotebookNode], at: int) -> str:
    """What a student calls a cell: the answer or the tests of an exercise; for others, the first line and the place."""
    cell = code[at]
    if is_test(cell):
        return f"the tests of {_exercise(cell)}"
    if notebook.nbgrader_role(cell):
        return f"your answer to {_exercise(cell)}"
    lines = [line.strip() for line in cell.source.splitlines()]
    line = next((one for one in lines if one and not one.startswith(("#", "import ", "from "))), "")
    line = line if len(line) <= LINE else f"{line[: LINE - 2]} …"
    above = next((one for one in code[at:] if notebook.nbgrader_role(one)), None)
    return f"the cell “{line}” {f'above {_exercise(above)}' if above is not None else 'at the end'}"


def _exercise(cell: nbformat.NotebookNode) -> str:
    _, name, *_ = cell.id.split("-")
    return name.replace("ex", "exercise ").replace("q", "question ") if name[-1].isdigit() else cell.id


def _seconds(ours: outcome.CellOutcome, of_test: bool) -> str:
    said = f"{ours.seconds:.0f} s" if ours.seconds >= 10 else f"{ours.seconds:.1f} s"
    again = f", run {ours.runs} times" if ours.runs > 1 and not of_test else ""
    return f"{said}{again}{', then left out' if ours.left_out else ''}"
