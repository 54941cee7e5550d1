"""Is a visible assertion stricter than every check? Then what it refuses costs marks for what no property names.

The lesson's own answers are tried with results of another type: a tuple for a list, a tensor for a number, another
dtype. Where the visible part of a test cell refuses that, a check has to refuse it as well, or the assertion has to go.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autograder import properties
from autograder.checks import hints
from autograder.lesson import notebook
from autograder.lesson.notebook import answer_of

_OTHER: dict[Any, Any] = {list: tuple, tuple: list, torch.float32: torch.float64, torch.float64: torch.float32}


def _container(result: Any) -> Any:
    return _OTHER[type(result)](result) if type(result) in _OTHER else result


def _number(result: Any) -> Any:
    if type(result) in (list, tuple):
        return type(result)(map(_number, result))
    return torch.tensor(result, dtype=torch.float64) if type(result) is float else result


def _dtype(result: Any) -> Any:
    if type(result) in (list, tuple):
        return type(result)(map(_dtype, result))
    return result.to(_OTHER[result.dtype]) if getattr(result, "dtype", None) in _OTHER else result


DISGUISES = {
    "a tuple for a list, or the other way round": _container,
    "a tensor for a float": _number,
    "float64 for float32, or the other way round": _dtype,
}


def problems(lesson: str) -> Iterator[str]:
    """The exercises of a lesson whose visible part refuses a result that no check refuses, a sentence each."""
    cells, space = {cell.id: cell for cell in notebook.read(lesson).cells}, notebook.functions(lesson)
    for test in cells.values():
        if notebook.nbgrader_role(test) != "grade":
            continue
        *tried, visible = properties.of_test(test)
        if visible.name != properties.VISIBLE or not tried:
            continue
        body = ast.parse(cells[answer_of(test.id)].source).body
        functions = [one.name for one in body if isinstance(one, ast.FunctionDef)]
        for what, disguise in DISGUISES.items():
            others = {**space, **{name: _disguised(space[name], disguise) for name in functions}}
            if not _holds(visible.source, others) and all(_holds(one.source, others) for one in tried):
                said = f"the visible part refuses {what}, and no check does: let one, or drop it"
                yield f"{notebook.place(test.id)}: {said}"


def _disguised(function: Callable, disguise: Callable[[Any], Any]) -> Callable:
    @functools.wraps(function)
    def other(*args: Any, **kwargs: Any) -> Any:
        return disguise(function(*args, **kwargs))

    return other


def _holds(source: str, space: dict[str, Any]) -> bool:
    """Does a part of a test hold? What it does to names and to the working folder is lost."""
    with tempfile.TemporaryDirectory(prefix="lesson-") as folder, contextlib.chdir(folder), hints.later():
        return notebook.execute("part of a test", source, dict(space)) is None
