"""Known other right answers: the same contract met in another way. None of them may lose a mark.

`solutions/NN_topic/right.py` holds those of a lesson, as ordinary linted Python. An answer is a function whose body
replaces an answer cell, and whose docstring says how it differs from the solution::

    @answer_to("08-ex1-shard-bounds")
    def bounds_with_divmod():
        '''Rounds up with divmod and cuts a range.'''

        def shard_bounds(numel, rank, world_size):
            ...

The function is never called: its body is read as source, so that it runs in the notebook's namespace like any cell.
"""

from __future__ import annotations

import ast
import functools
import inspect
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path

from autograder.answers import answer
from autograder.answers.answer import Answer
from autograder.lesson import notebook


def load_right(lesson: str) -> list[Answer]:
    """The right answers of a lesson, in the order in which they are written; none if there is no such file.

    ValueError, in one line with file and line, for a file that cannot be read.
    """
    return _load(answer.state(answer.folder(lesson) / "right.py"))


def answer_to(cell: str) -> Callable[[Callable], Answer]:
    """Reads the function below it into an answer to `cell`."""

    def read(function: Callable) -> Answer:
        if not function.__doc__:
            raise ValueError(f"the right answer {function.__name__} has no docstring that says how it differs")
        hint = " ".join(function.__doc__.split())
        return Answer(function.__name__, notebook.lesson_of(cell), cell, _body(function), hint)

    return read


@functools.cache
def _load(files: tuple[tuple[Path, int], ...]) -> list[Answer]:
    try:
        modules = [runpy.run_path(str(path)) for path, changed in files if changed]
    except Exception as error:
        raise ValueError(notebook.fault_of(error, files[0][0])) from None
    return [value for module in modules for value in module.values() if isinstance(value, Answer)]


def _body(function: Callable) -> str:
    """The source of a function's body without its docstring, moved to the left margin."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    definition = ast.parse("\n".join(lines)).body[0]
    assert isinstance(definition, ast.FunctionDef)
    first = definition.body[1]  # body[0] is the docstring
    start = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    return textwrap.dedent("\n".join(lines[start - 1 :])) + "\n"
