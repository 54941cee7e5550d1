"""Other answers to an exercise, right or wrong, kept as ordinary linted Python.

An answer is written as a function whose body is the replacement for one solution cell. The function is
never called: its body is read as source, so that it runs in the notebook's namespace like any cell.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat

from autograder.lessons import notebook


@dataclass(frozen=True)
class Answer:
    """A replacement for the solution cell `cell` of `lesson`.

    hint: its docstring, as one line. breaks: the grade cells that must lose marks (none for a variant). fails: those
    checks of its own exercise that it fails; empty for one that fails the core.
    """

    name: str
    lesson: str
    cell: str
    source: str
    hint: str
    breaks: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()


def decorator(kind: str) -> Callable:
    """The decorator `@mutant(...)` or `@variant(...)`: reads the function below it into an Answer."""

    def answer(
        cell: str, breaks: list[str] | tuple[str, ...] = (), fails: list[str] | tuple[str, ...] = ()
    ) -> Callable[[Callable], Answer]:
        if (kind == "mutants") != bool(breaks):
            raise ValueError(f"{cell}: a mutant names the grade cells it breaks, a variant breaks none")

        def read(function: Callable) -> Answer:
            if not function.__doc__:
                raise ValueError(f"{kind}: {function.__name__} needs a docstring")
            return Answer(
                name=function.__name__,
                lesson=notebook.lesson_of(cell),
                cell=cell,
                source=_body(function),
                hint=" ".join(function.__doc__.split()),
                breaks=tuple(breaks),
                fails=tuple(fails),
            )

        return read

    return answer


def edit(
    cell: str,
    hint: str,
    *changes: tuple[str, str],
    base: Answer | None = None,
    breaks: list[str] | tuple[str, ...] = (),
    fails: list[str] | tuple[str, ...] = (),
) -> Answer:
    """An answer that is another one with some passages changed: (old, new), each old one there exactly once.

    base: the answer that is changed, to the same cell; if none is given, the solution. Changes are made in turn.
    The answer's name is the one that it is given in its module. ValueError: a passage that is not there exactly
    once, a base in another cell, a cell that does not exist.
    """
    if base is not None and base.cell != cell:
        raise ValueError(f"{cell}: the base is an answer to another cell, {base.cell}")
    source = _solution(cell) if base is None else base.source
    for old, new in changes:
        if source.count(old) != 1:
            origin = "the solution" if base is None else "the base"
            raise ValueError(f"{cell}: {origin} has {source.count(old)} passages {old!r}, expected one")
        source = source.replace(old, new)
    return Answer("", notebook.lesson_of(cell), cell, source, " ".join(hint.split()), tuple(breaks), tuple(fails))


@functools.cache
def load(kind: str, lesson: str) -> list[Answer]:
    """The answers in `autograder/answers/<kind>/<topic>.py`; an empty list when the lesson has no such file.

    <topic> may be a package: then the answers in its modules, in the order of the modules' names. Answers whose
    name begins with an underscore are left out: they are only there as the base of others.
    """
    name = f"autograder.answers.{kind}.{lesson.split('_', 1)[1]}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return []
    parts = [part.name for part in pkgutil.iter_modules(getattr(module, "__path__", []), f"{name}.")]
    modules = [module, *map(importlib.import_module, parts)]
    answers = [(name, value) for module in modules for name, value in vars(module).items() if isinstance(value, Answer)]
    return [dataclasses.replace(answer, name=name) for name, answer in answers if not name.startswith("_")]


def _solution(cell: str) -> str:
    """The source of a solution cell."""
    path = notebook.solution_path(notebook.lesson_of(cell))
    cells = _cells(path, path.stat().st_mtime_ns)
    if cell not in cells:
        raise ValueError(f"{path.name} has no cell {cell!r}")
    return cells[cell]


@functools.cache
def _cells(path: Path, mtime_ns: int) -> dict[str, str]:
    """The sources of a notebook's cells by id. A module of answers asks for them once for each edit."""
    return {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}


def _body(function: Callable) -> str:
    """The source of a function's body without its docstring, moved to the left margin."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    definition = ast.parse("\n".join(lines)).body[0]
    assert isinstance(definition, ast.FunctionDef)
    first = definition.body[1]  # body[0] is the docstring
    start = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    return textwrap.dedent("\n".join(lines[start - 1 :])) + "\n"
