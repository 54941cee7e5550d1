"""Which cell of a notebook defines which names, which it reads, and which cells build on which."""

from __future__ import annotations

import builtins
import functools
import symtable
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import nbformat

from autograder.lesson.notebook import is_setup, nbgrader_role

#: What parsing a source may raise: it is no Python, or nested too deeply or too large for the parser.
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
#: What was found in a source of at most this many characters is remembered.
KEPT = 20_000

#: Names that a kernel defines before the first cell.
IPYTHON = ("__name__", "get_ipython", "display", "In", "Out")


@dataclass(frozen=True)
class Found:
    """Names of a source.

    assigned: what it assigns, functions and classes included. defines: with what it imports. reads: what it reads from
    its notebook.
    """

    assigned: frozenset[str]
    defines: frozenset[str]
    reads: frozenset[str]


def of_source(source: str, name: str) -> Found:
    """The names of a source. One of UNPARSABLE if it is not Python."""
    find = _of_source if len(source) <= KEPT else _of_source.__wrapped__
    return find(source, name)


def of_cell(cell: nbformat.NotebookNode) -> Found:
    """The names of a code cell. One of UNPARSABLE if it is not Python."""
    return of_source(cell.source, cell.id)


@functools.lru_cache(maxsize=256)
def _of_source(source: str, name: str) -> Found:
    table = symtable.symtable(source, name, "exec")
    assigned = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    return Found(frozenset(assigned), frozenset(names_defined_by(table)), frozenset(names_read_by(table)))


def names_defined_by(table: symtable.SymbolTable) -> set[str]:
    """The names that code defines at its top level. Assignments to global names inside functions are not found."""
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def names_read_by(table: symtable.SymbolTable) -> set[str]:
    """The names that code reads from its notebook, at its top level or inside its functions."""
    top = table.get_type() == "module"
    mine = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return mine.union(*(names_read_by(child) for child in table.get_children()))


class Names:
    """What the code cells of a notebook define for each other and read from each other, by the cells' ids.

    A test cell defines nothing: the tests of an exercise run by themselves. A cell does not read from others what it
    defines itself, because it defines a name before it reads it. Of the cells in `unsure` that is not known. `unknown`
    has the cells that are not Python, a magic command perhaps; nothing is known of them.
    """

    def __init__(self, cells: Iterable[nbformat.NotebookNode], unsure: Collection[str] = ()):
        self.defines: dict[str, set[str]] = {}
        self.reads: dict[str, set[str]] = {}
        self.unknown: set[str] = set()
        for cell in cells:
            if cell.cell_type != "code":
                continue
            try:
                found = of_cell(cell)
            except UNPARSABLE:
                self.unknown.add(cell.id)
                continue
            self._add(
                cell.id,
                set() if nbgrader_role(cell) == "grade" else found.defines,
                found.reads if cell.id in unsure else found.reads - found.defines,
            )

    def _add(self, cell: str, defines: Iterable[str], reads: Iterable[str]) -> None:
        self.defines.setdefault(cell, set()).update(defines)
        self.reads.setdefault(cell, set()).update(reads)

    def __or__(self, other: Names) -> Names:
        """Both together. A cell that stands in both defines and reads what either of them says."""
        both = Names([])
        for names in (self, other):
            for cell, defines in names.defines.items():
                both._add(cell, defines, names.reads[cell])
            both.unknown |= names.unknown
        return both

    def needed_by(self, cells: Iterable[str]) -> set[str]:
        """These cells and all that define what they read, directly or through other cells."""
        return self._closure(cells, self.reads, self.defines)

    def depending_on(self, cells: Iterable[str]) -> set[str]:
        """These cells and all that read what they define, directly or through other cells."""
        return self._closure(cells, self.defines, self.reads)

    @staticmethod
    def _closure(cells: Iterable[str], here: dict[str, set[str]], there: dict[str, set[str]]) -> set[str]:
        """The cells to which a name leads that is in `here` for one cell and in `there` for the next."""
        found, new = set[str](), here.keys() & set(cells)
        while new:
            found |= new
            names = set().union(*(here[cell] for cell in new))
            new = {cell for cell in there.keys() - found if there[cell] & names}
        return found


def dependents(nb: nbformat.NotebookNode, cell_id: str) -> set[str]:
    """The grade cells whose outcome depends on the cell `cell_id`, directly or through other cells.

    A cell depends on another if it reads a name that the other defines; no other kind of dependence is looked for.
    """
    tests = {cell.id for cell in nb.cells if nbgrader_role(cell) == "grade"}
    return Names(cell for cell in nb.cells if is_setup(cell) or cell.id in tests).depending_on([cell_id]) & tests


def builds_on(
    answers: Iterable[str], cells: Iterable[nbformat.NotebookNode], lesson: nbformat.NotebookNode
) -> dict[str, set[str]]:
    """Each answer → the other answers on which its exercise builds, directly or not, by their cells' names.

    A cell builds on another if it reads a name that the other defines, in the submission or in the lesson. An exercise
    builds also on what its test reads. It builds on a later exercise only if the lesson's own cells do: a student who
    has the first exercise call the third would otherwise be given the third.
    """
    order = [cell.id for cell in lesson.cells if nbgrader_role(cell) == "solution"]
    ours = Names(lesson.cells)
    both = Names(cells) | ours
    found = {}
    for answer in answers:
        exercise = answer, f"{answer}-test"
        earlier = set(order[: order.index(answer)] if answer in order else order)
        allowed = earlier | (ours.needed_by(exercise) & set(order))
        found[answer] = (both.needed_by(exercise) & allowed) - {answer}
    return found


def undefined_names(nb: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """(cell, name) for each name that a code cell reads and that no cell of the notebook defines.

    None is found where it cannot be known: next to `import *` and to a cell that is not Python.
    """
    names = Names(nb.cells)
    if names.unknown or any("import *" in cell.source for cell in nb.cells if cell.cell_type == "code"):
        return []
    known = {*vars(builtins), *IPYTHON}.union(*names.defines.values())
    return [(cell, name) for cell, reads in names.reads.items() for name in sorted(reads - known)]


def defined_by_answers(lesson: nbformat.NotebookNode) -> set[str]:
    """The names that a lesson's answer cells assign."""
    answers = (cell for cell in lesson.cells if cell.cell_type == "code" and nbgrader_role(cell) == "solution")
    return set().union(*(of_cell(cell).assigned for cell in answers))
