"""Which cells of a submission need not run for its grade: what the lesson shows, where nothing graded depends on it.

Between setup, answers and tests, a released notebook has cells that draw a figure, measure, or train for a while. They
take more than half of a notebook's time. As long as a student has not changed one of them it is ours: what it does is
known, and if no cell that runs reads a name that it defines, it changes no grade. A cell that was changed, or that is
the student's own, always runs.
"""

from __future__ import annotations

import re
import symtable
from collections.abc import Iterable

import nbformat

from autograder.lessons import notebook

#: Ways to read a name that the text does not show. Where a student's cell has one of them, every cell runs.
DYNAMIC = re.compile(
    r"(?<![\w.])(globals|locals|vars|eval|exec|get_ipython)\b|\b(In|Out)\[|sys\.modules|__(main|globals)__"
)


def idle(cells: Iterable[nbformat.NotebookNode], lesson: nbformat.NotebookNode) -> set[str]:
    """The ids of the cells of a restored submission that need not run.

    lesson: the instructor's notebook. One in which no cell is tagged as setup does not say what its functions need, so
    all of it runs.
    """
    if not any(notebook.is_setup(cell) and not notebook.nbgrader_role(cell) for cell in lesson.cells):
        return set()
    ours = {cell.source.strip(): cell for cell in lesson.cells if cell.cell_type == "code"}
    code = [cell for cell in cells if cell.cell_type == "code"]
    left = {cell.id for cell in code if _shows(ours.get(cell.source.strip()))}
    theirs = {cell.id for cell in code if cell.source.strip() not in ours}
    if any(DYNAMIC.search(cell.source) for cell in code if cell.id in theirs):
        return set()
    try:
        tables = {cell.id: symtable.symtable(cell.source, cell.id, "exec") for cell in code}
    except (SyntaxError, ValueError):  # no Python, a magic for one: who knows what it reads
        return set()
    defines = {name: notebook.names_defined_by(table) for name, table in tables.items()}
    reads = {name: notebook.names_read_by(table) for name, table in tables.items()}
    for name in reads.keys() - theirs:  # our cells read at their top what they have defined there themselves
        reads[name] -= defines[name]
    while True:
        wanted = set().union(*(reads[name] for name in reads if name not in left))
        needed = {name for name in left if defines[name] & wanted}
        if not needed:
            return left
        left -= needed


def _shows(cell: nbformat.NotebookNode | None) -> bool:
    """Is this a cell of a lesson that neither a function nor a test needs?"""
    return cell is not None and not notebook.is_setup(cell) and not notebook.nbgrader_role(cell)
