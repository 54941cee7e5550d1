"""The properties of an exercise: what its test tries one by one, and how its points are shared among them.

A property is a check that the hidden part of a test cell calls, on a line of its own. The weights stand in the metadata
of the test cell, in the solution notebook::

    "properties": {"follows_the_definition": 2, "leaves_its_inputs_alone": 0.5, "works_alone": "core"}

The property with the most points is the core (of two, the one that is called first). Without it, nothing else counts.
The properties whose weight is "core" belong to it. The others are tried by themselves, after it.

Whatever else the cell does is its visible part: assertions, mostly, that show a student what some of the properties
mean. It is tried last. If it fails alone, the exercise has no points. If another property fails, too, that property
explains the failure, and only its points are lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import nbformat

#: Where checks are imported from.
CHECKS = "autograder.checks"

#: The weight of a property that belongs to the core and has no points of its own.
CORE = "core"

#: The name of the visible part, among the properties of an exercise.
VISIBLE = ""


@dataclass(frozen=True)
class Property:
    """One property of an exercise, or its core.

    name: of its check, VISIBLE for what calls none. points: its share. source: the part of the test cell that tries it.
    checks: each check that this part calls → that call alone.
    """

    name: str
    points: float
    source: str
    checks: dict[str, str]


def of_test(test: nbformat.NotebookNode) -> list[Property]:
    """The properties of an exercise, its core first and its visible part last, with no points of its own.

    test: the test cell with `metadata.properties`.
    ValueError, in one line, for weights that do not fit the cell.
    """
    calls, points = _calls(test), float(test.metadata.nbgrader.points)
    weights = _weights(test, list(calls), points)
    if not calls:
        return [Property(VISIBLE, points, test.source, {})]
    core = _core(test.id, weights, points)
    others = [name for name in calls if name != core and weights[name] != CORE]
    lines, imports = test.source.split("\n"), set(_lines(_imports(test)))
    alone = {name: _only(lines, imports | set(_lines(statements))) for name, statements in calls.items()}
    joined = [name for name in calls if name not in others]
    together = _only(lines, imports | {line for name in joined for line in _lines(calls[name])})
    return [
        Property(core, float(weights[core]), together, {name: alone[name] for name in joined}),
        *(Property(name, float(weights[name]), alone[name], {name: alone[name]}) for name in others),
        *([Property(VISIBLE, 0.0, rest_of(test), {})] if _has_visible_part(test) else []),
    ]


def rest_of(test: nbformat.NotebookNode) -> str:
    """What a test cell does besides calling checks: its visible assertions, and what they need."""
    called = {line for calls in _calls(test).values() for line in _lines(calls)}
    lines = test.source.split("\n")
    return _only(lines, set(range(len(lines))) - called)


def earned(tried: Sequence[tuple[str, float, bool]]) -> float:
    """The points for the properties that hold. tried: (name, points, whether it holds) of each, the core first.

    None without the core, and none if only the visible part does not hold.
    """
    failed = [name for name, _, holds in tried if not holds]
    if failed == [VISIBLE] or (tried and tried[0][0] in failed):
        return 0.0
    return sum(points for _, points, holds in tried if holds)


def copy_weights(cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode) -> None:
    """Give the test cells of a restored submission the weights that stand in the lesson."""
    ours = {cell.id: cell.metadata["properties"] for cell in lesson.cells if "properties" in cell.metadata}
    for cell in cells:
        cell.metadata.pop("properties", None)
        if cell.id in ours and cell.metadata.get("nbgrader", {}).get("grade"):
            cell.metadata["properties"] = ours[cell.id]


def _weights(test: nbformat.NotebookNode, called: list[str], points: float) -> dict[str, float | str]:
    """The weight of each property; all points if there is only one, and no weight is given."""
    weights = dict(test.metadata.get("properties") or ({called[0]: points} if len(called) == 1 else {}))
    for name in called:
        if name not in weights:
            raise ValueError(f"{test.id}: the property {name} has no weight")
    for name, weight in weights.items():
        if name not in called:
            raise ValueError(f"{test.id}: there is a weight for {name}, which the cell does not call")
        if weight != CORE and not (type(weight) in (int, float) and weight > 0):
            raise ValueError(f"{test.id}: the weight of {name} is {weight!r}, not a number above 0 or {CORE!r}")
    total = sum(weight for weight in weights.values() if weight != CORE)
    if called and total != points:
        raise ValueError(f"{test.id}: the weights add up to {total:g}, but the exercise has {points:g} points")
    return {name: weights[name] for name in called}


def _core(test: str, weights: dict[str, float | str], points: float) -> str:
    most = max(weight for weight in weights.values() if weight != CORE)
    core = next(name for name, weight in weights.items() if weight == most)
    if 2 * float(most) < points:
        raise ValueError(f"{test}: the core, {core}, has {most:g} of {points:g} points: give it at least half")
    return core


def _imports(test: nbformat.NotebookNode) -> list[ast.stmt]:
    """The statements that import checks."""
    statements = ast.parse(test.source).body
    return [one for one in statements if isinstance(one, ast.ImportFrom) and one.module == CHECKS]


def _has_visible_part(test: nbformat.NotebookNode) -> bool:
    """Does a test cell do more than import and call checks?"""
    return any(not isinstance(one, ast.Import | ast.ImportFrom) and not _is_text(one)
               for one in ast.parse(rest_of(test)).body)  # fmt: skip


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _calls(test: nbformat.NotebookNode) -> dict[str, list[ast.stmt]]:
    """Each check that the cell calls → the statements that do, in order.

    Inside other statements the module's name may mean something else; a caller that knows the checks looks there
    (`grading.checklist`).
    """
    modules = {
        name.asname or name.name for one in _imports(test) if isinstance(one, ast.ImportFrom) for name in one.names
    }
    statements = ast.parse(test.source).body
    found: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(module), name))) if module in modules:
                found.setdefault(name, []).append(statement)
    for name, calls in found.items():
        if sum(bool(set(_lines([one])) & set(_lines(calls))) for one in statements) > len(calls):
            raise ValueError(f"{test.id}: {name} is not called on a line of its own")
    return found


def _lines(statements: list[ast.stmt]) -> Iterator[int]:
    """The numbers, from 0, of the lines on which these statements stand."""
    for one in statements:
        yield from range(one.lineno - 1, one.end_lineno or one.lineno)


def _only(lines: list[str], kept: set[int]) -> str:
    """The source with the other lines left empty, so that line numbers stay."""
    return "\n".join(line if number in kept else "" for number, line in enumerate(lines))
