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
import textwrap
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A replacement for the solution cell `cell` of `lesson`.

    hint: its docstring, as one line. breaks: the grade cells that must lose their marks (none for a variant).
    """

    name: str
    lesson: str
    cell: str
    source: str
    hint: str
    breaks: tuple[str, ...] = ()


def decorator(kind: str) -> Callable:
    """The decorator `@mutant(...)` or `@variant(...)`: reads the function below it into an Answer."""

    def answer(cell: str, breaks: list[str] | tuple[str, ...] = ()) -> Callable[[Callable], Answer]:
        from autograder.lessons.notebook import lesson_of

        if (kind == "mutants") != bool(breaks):
            raise ValueError(f"{cell}: a mutant names the grade cells it breaks, a variant breaks none")

        def read(function: Callable) -> Answer:
            if not function.__doc__:
                raise ValueError(f"{kind}: {function.__name__} needs a docstring")
            return Answer(
                name=function.__name__,
                lesson=lesson_of(cell),
                cell=cell,
                source=_body(function),
                hint=" ".join(function.__doc__.split()),
                breaks=tuple(breaks),
            )

        return read

    return answer


def edit(cell: str, hint: str, *changes: tuple[str, str], breaks: list[str] | tuple[str, ...] = ()) -> Answer:
    """An answer that is the solution with some passages changed: (old, new), each old one there exactly once.

    Meant for cells that hold a whole class, of which a mistake changes a line. Its name is the one that it is
    given in its module.
    """
    from autograder.lessons import notebook

    source = next(c.source for c in notebook.read(notebook.lesson_of(cell)).cells if c.id == cell)
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"{cell}: the solution has {source.count(old)} passages {old!r}, expected one")
        source = source.replace(old, new)
    return Answer("", notebook.lesson_of(cell), cell, source, " ".join(hint.split()), tuple(breaks))


@functools.cache
def load(kind: str, lesson: str) -> list[Answer]:
    """The answers in `autograder/answers/<kind>/<topic>.py`; an empty list when the lesson has no such file."""
    name = f"autograder.answers.{kind}.{lesson.split('_', 1)[1]}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return []
    answers = [(name, value) for name, value in vars(module).items() if isinstance(value, Answer)]
    return [dataclasses.replace(answer, name=name) for name, answer in answers]


def _body(function: Callable) -> str:
    """The source of a function's body without its docstring, moved to the left margin."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    definition = ast.parse("\n".join(lines)).body[0]
    assert isinstance(definition, ast.FunctionDef)
    first = definition.body[1]  # body[0] is the docstring
    start = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    return textwrap.dedent("\n".join(lines[start - 1 :])) + "\n"
