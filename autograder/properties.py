"""The properties of an exercise: what its test tries one by one, and how its points are shared among them.

A property is a check. Its decorator says what it is worth::

    @check("08-ex3-step", points=0.75)
    @check("01-ex1-broadcast", veto=True)

Each is tried by itself, and the points of those that hold add up. The check with the most points is the core (of two,
the one that comes first), and is tried first; a course can have it that without the core nothing else counts. A check
with `veto=True` has no points: an answer that fails it is none, and earns nothing.

The hidden part of a test cell tries them all. `autograder hidden-tests` makes it from the checks. It names
the student's functions, because what an exercise builds on is read from the sources of its cells.

Whatever else the cell does is its visible part: assertions, mostly, that show a student what some of the properties
mean. It is tried last. If it fails alone, that costs a tenth of the exercise (`VISIBLE_SHARE`). If another property
fails, too, that property explains the failure, and only its points are lost.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import nbformat

from autograder import checks
from autograder.checks.check import Check
from autograder.lesson import adapted, notebook
from autograder.lesson.files import write_whole
from autograder.lesson.notebook import answer_of

#: The name of the visible part, among the properties of an exercise.
VISIBLE = ""
#: The part of an exercise's points that is lost if its visible part alone does not hold.
VISIBLE_SHARE = 0.1

_IMPORT = "from autograder.checks import try_exercise"
#: The part of a test cell that is made from its checks.
_HIDDEN = re.compile(rf"### BEGIN HIDDEN TESTS\n{re.escape(_IMPORT)}\n.*?\n### END HIDDEN TESTS", re.DOTALL)


@dataclass(frozen=True)
class Property:
    """One property of an exercise.

    name: of its check, VISIBLE for what calls none. points: its share, 0 for a veto and for the visible part beside
    others. source: the part of the test cell that tries it.
    """

    name: str
    points: float
    source: str


def of_test(test: nbformat.NotebookNode) -> list[Property]:
    """The properties of an exercise: its core, its vetoes, the others, and the visible part, with no points of its own.

    Where a course gives the exercise other points (`adapted`), the properties share these in the same proportions.
    ValueError, in one line, for points that do not add up, and for a hidden part that is not the one that the checks
    need.
    """
    exercise, found = answer_of(test.id), checks.of_exercise(answer_of(test.id))
    if with_hidden_part(test) != test.source:
        raise ValueError(f"{notebook.place(test.id)}: the hidden tests of {exercise} are stale: run `make notebooks`")
    if not found:
        return [Property(VISIBLE, float(test.metadata.nbgrader.points), test.source)]
    core = _core(found, test)
    found.sort(key=lambda one: (one is not core, not one.veto))
    worth = _of_course([float(one.points) for one in found], test)
    return [
        *(Property(one.name, points, f"{_IMPORT}\n{_call(one.parameters, exercise, one.name)}")
          for one, points in zip(found, worth, strict=True)),
        *([Property(VISIBLE, 0.0, rest_of(test))] if _has_visible_part(test) else []),
    ]  # fmt: skip


def with_hidden_part(test: nbformat.NotebookNode) -> str:
    """The source of a test cell with the hidden part that its checks need, below its docstring; with none for none."""
    found, source = checks.of_exercise(answer_of(test.id)), test.source
    call = _call([name for one in found for name in one.parameters], answer_of(test.id))
    part = f"### BEGIN HIDDEN TESTS\n{_IMPORT}\n\n{call}\n### END HIDDEN TESTS" if found else ""
    if match := _HIDDEN.search(source):
        return source[: match.start()] + part + source[match.end() :]
    body, lines = ast.parse(source).body, source.split("\n")
    above = (body[0].end_lineno or 1) if body and _is_text(body[0]) else 0
    return "\n".join([*lines[:above], part, *lines[above:]]) if part else source


def rest_of(test: nbformat.NotebookNode) -> str:
    """What a test cell does besides trying checks: its visible assertions, and what they need, on their own lines."""
    return _HIDDEN.sub(lambda match: "\n" * match[0].count("\n"), test.source)


def earned(tried: Sequence[tuple[str, float, bool]], all_or_nothing: bool = False) -> float:
    """The points for the properties that hold. tried: (name, points, whether it holds) of each, the core first.

    None where a veto does not hold, or, if a course has it `all_or_nothing`, the core. A tenth less if only the visible
    part does not hold.
    """
    failed = [name for name, _, holds in tried if not holds]
    vetoes = {name for name, points, _ in tried if not points and name != VISIBLE}
    if vetoes & set(failed) or (all_or_nothing and tried and tried[0][0] in failed):
        return 0.0
    points = sum(points for _, points, holds in tried if holds)
    return round(points * (1 - VISIBLE_SHARE), 2) if failed == [VISIBLE] else round(points, 6)


def strange_parameter(cell: str, name: str) -> str:
    """A line on the check, if there is one, because of which the test `cell` reads `name`; else ''."""
    for one in checks.of_exercise(answer_of(cell)):
        if name in one.parameters:
            return f"{one.place}: {one.name} takes {name}, which no cell of the lesson defines"
    return ""


def _call(functions: Iterable[str], *names: str) -> str:
    """The line that tries an exercise's checks on these functions. names: the exercise, and the check if it is one."""
    arguments = [*(f'"{name}"' for name in names), *(f"{name}={name}" for name in dict.fromkeys(functions))]
    line = f"try_exercise({', '.join(arguments)})"
    return line if len(line) <= 120 else f"{line}  # noqa: E501"


def _core(found: list[Check], test: nbformat.NotebookNode) -> Check:
    """The check with the most points. ValueError for points that do not add up to those of the test cell."""
    exercise, total = found[0].exercise, sum(one.points for one in found)
    points = test.metadata.get(adapted.SHARED, test.metadata.nbgrader.points)
    core = max(found, key=lambda one: one.points)
    if total != points:
        where = f"in all, but {notebook.place(test.id)}, its test cell, has {points:g}"
        raise ValueError(f"{core.place}: the checks of {exercise} have {total:g} points {where}")
    return core


def _of_course(points: list[float], test: nbformat.NotebookNode) -> list[float]:
    """The points of the properties, the core's first, with the sum that the test cell has, in hundredths of a point."""
    shared, most = test.metadata.get(adapted.SHARED), float(test.metadata.nbgrader.points)
    if not shared:
        return points
    others = [round(one * most / shared, 2) for one in points[1:]]
    return [round(most - sum(others), 6), *others]


def _has_visible_part(test: nbformat.NotebookNode) -> bool:
    """Does a test cell do more than import and try checks?"""
    return any(not isinstance(one, ast.Import | ast.ImportFrom) and not _is_text(one)
               for one in ast.parse(rest_of(test)).body)  # fmt: skip


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `hidden-tests`."""
    parser = subparsers.add_parser("hidden-tests", help="write the hidden part of each test cell, and remove outputs")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    for lesson in notebook.pick(arguments.lessons):
        notebook.refuse_what_is_no_python(lesson)
        nb, path = notebook.read(lesson), notebook.solution_path(lesson)
        for test in nb.cells:
            if notebook.nbgrader_role(test) == "grade" and test.source != (source := with_hidden_part(test)):
                test.source = source
                print(f"{notebook.place(test.id)}: the hidden tests of {answer_of(test.id)} written")
        before, text = path.read_text(encoding="utf-8"), notebook.stored(nb)
        if notebook.stored(notebook.read(lesson)) != before:
            print(f"{path.relative_to(notebook.ROOT)}: outputs, and what an editor wrote besides the cells, removed")
        if text != before:
            write_whole(path, text)
    return 0
