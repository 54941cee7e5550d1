"""Which cells of a submission need not run for its grade: demonstrations on which nothing graded depends.

Between setup, answers and tests, a released notebook has demonstrations: cells that draw a figure, measure something
or train for a while. They take more than half of a notebook's time. What an unchanged demonstration does is known; if
no cell that runs reads a name that it defines, it changes no grade. A cell that the student changed or added always
runs.
"""

from __future__ import annotations

import re
import symtable
from collections.abc import Iterable

import nbformat

from autograder.lesson import names, notebook

#: Ways to read a name that the source does not show. If a student's cell uses one of them, every cell runs.
DYNAMIC = re.compile(r"(?<![\w.])(globals|eval|exec|get_ipython)\b|\b(In|Out)\[|sys\.modules|__(main|globals)__")
#: Two more outside of functions. In a function they find its own names.
OWN_NAMES = {"locals", "vars"}


def skippable_cells(cells: Iterable[nbformat.NotebookNode], lesson: nbformat.NotebookNode) -> set[str]:
    """The ids of the cells of a restored submission that need not run.

    lesson: the instructor's notebook. If none of its cells is tagged as setup, nothing says what its functions need,
    and no cell can be skipped.
    """
    if not any(notebook.is_setup(cell) and not notebook.nbgrader_role(cell) for cell in lesson.cells):
        return set()
    ours = {cell.source.strip(): cell for cell in lesson.cells if cell.cell_type == "code"}
    code = [cell for cell in cells if cell.cell_type == "code"]
    skipped = {cell.id for cell in code if _is_demonstration(ours.get(cell.source.strip()))}
    theirs = {cell.id for cell in code if cell.source.strip() not in ours}
    known = names.Names(code, unsure=theirs)  # the lesson's own cells define their names before they read them
    if known.unknown or any(_reads_unseen_names(cell) for cell in code if cell.id in theirs):
        return set()
    return skipped - known.needed_by(known.reads.keys() - skipped)


def _reads_unseen_names(cell: nbformat.NotebookNode) -> bool:
    """May it read names that its source does not show?"""
    if DYNAMIC.search(cell.source):
        return True
    mentions = any(name in cell.source for name in OWN_NAMES)
    return mentions and not OWN_NAMES.isdisjoint(_read_at_top(symtable.symtable(cell.source, cell.id, "exec")))


def _read_at_top(table: symtable.SymbolTable) -> set[str]:
    """The names that are read outside of functions, in comprehensions as well: newer Pythons run these in place."""
    comprehensions = [one for one in table.get_children() if one.get_name().endswith(("comp", "genexpr"))]
    return {s.get_name() for s in table.get_symbols() if s.is_referenced()}.union(*map(_read_at_top, comprehensions))


def _is_demonstration(cell: nbformat.NotebookNode | None) -> bool:
    """Is this a cell of the lesson that is neither setup nor an answer nor a test?"""
    return cell is not None and not notebook.is_setup(cell) and not notebook.nbgrader_role(cell)
