"""`autograder where 08-ex3`: every place that belongs to an exercise, as `path:line  what`.

An exercise is found by its name: cells of the notebook carry it, checks and known answers are written for it. What
tests and chapters say of it is found by the names of its functions, checks and answers.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.answers import answer, wrong
from autograder.lesson import notebook, pieces
from autograder.lesson.names import of_source

_NAME = re.compile(r"(?P<exercise>(?P<number>\d\d)-ex\d+)(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Place:
    """A line of a file below the repository, and what is there: a `kind` of thing, and its name."""

    path: Path
    line: int
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(notebook.ROOT)}:{self.line}"


@dataclass(frozen=True)
class Exercise:
    """An exercise: its lesson, the id of its answer cell ("08-ex3-step"), and the names that this cell defines."""

    lesson: str
    cell: str
    functions: tuple[str, ...]

    @property
    def short(self) -> str:
        """What all its cells begin with: "08-ex3"."""
        return "-".join(self.cell.split("-")[:2])

    def owns(self, cell: str) -> bool:
        """Does the cell with this id belong to the exercise?"""
        return cell == self.short or cell.startswith(f"{self.short}-")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand `where`."""
    parser = subparsers.add_parser("where", help="every place that belongs to an exercise")
    parser.add_argument("exercise", metavar="NN-exN", help="as in 08-ex3, or in full, as in 08-ex3-step")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    groups = [group for group in places(find(arguments.exercise)) if group]
    width = max(len(str(place)) for group in groups for place in group)
    print(
        "\n\n".join("\n".join(f"{place!s:<{width}}  {place.kind} {place.name}" for place in group) for group in groups)
    )
    return 0


def find(name: str) -> Exercise:
    """The exercise of this name, or of the cell of this name. ValueError says which exercises there are."""
    match = _NAME.fullmatch(name)
    if not match:
        raise ValueError(f"{name!r} does not name an exercise: write it as 08-ex3, or in full as 08-ex3-step")
    there = {lesson.split("_")[0]: lesson for lesson in notebook.lessons()}
    if match["number"] not in there:
        raise ValueError(f"no lesson {match['number']}; there are: {', '.join(there.values())}")
    lesson = there[match["number"]]
    notebook.refuse_what_is_no_python(lesson)
    answers = [cell for cell in notebook.read(lesson).cells if notebook.nbgrader_role(cell) == "solution"]
    exercises = [Exercise(lesson, cell.id, tuple(_defined_in(cell.source))) for cell in answers]
    whole = name.removesuffix("-test")
    for exercise in exercises:
        if whole == exercise.cell or name == exercise.short:
            return exercise
    raise ValueError(f"{lesson} has no exercise {name}; it has: {', '.join(one.cell for one in exercises)}")


def places(exercise: Exercise) -> list[list[Place]]:
    """All places, in groups: cells, checks, wrong answers, right answers, users, mentions. A group may be empty."""
    checks = list(_checks(exercise))
    mistakes, others = list(_wrong_answers(exercise)), list(_right_answers(exercise))
    used = [*_in_example_class(exercise, {place.name for place in mistakes}), *_as_piece(exercise)]
    mentions = _mentions(exercise, [place.name for place in [*checks, *mistakes, *others]])
    return [_cells(exercise), checks, mistakes, others, used, list(mentions)]


# ---- cells ----


def _cells(exercise: Exercise) -> list[Place]:
    solution = notebook.solution_path(exercise.lesson)
    released = notebook.NOTEBOOKS / exercise.lesson / solution.name
    found = []
    for cell in notebook.read(exercise.lesson).cells:
        if exercise.owns(cell.id):
            role = {"solution": "answer", "grade": "test"}.get(notebook.nbgrader_role(cell))
            plain = "example" if cell.cell_type == "code" else "statement" if cell.id == exercise.short else "text"
            found += _line_with(f'"id": "{cell.id}"', solution, role or plain, cell.id)
    return [*found, *_line_with(f'"id": "{exercise.cell}"', released, "released", exercise.cell)]


def _line_with(text: str, path: Path, kind: str, name: str) -> list[Place]:
    """The first line of a file that contains `text`, as a list of one place, or of none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [Place(path, number, kind, name) for number, line in enumerate(lines, start=1) if text in line][:1]


# ---- checks and answers ----


def _checks(exercise: Exercise) -> Iterator[Place]:
    """The functions below `@check("<cell>")`."""
    for path in notebook.checks_of(exercise.lesson):
        yield from _decorated(path, "check", exercise.cell, "check")


def _decorated(path: Path, decorator: str, cell: str, kind: str) -> Iterator[Place]:
    """The functions of a file that are decorated with `@decorator("<cell>")`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            calls = [d for d in node.decorator_list if isinstance(d, ast.Call) and d.args]
            named = [d for d in calls if decorator in (getattr(d.func, "id", None), getattr(d.func, "attr", None))]
            if cell in [_text(d.args[0], constants) for d in named]:
                yield Place(path, node.lineno, kind, node.name)


def _wrong_answers(exercise: Exercise) -> Iterator[Place]:
    """The entries of `wrong.md`."""
    path = answer.folder(exercise.lesson) / "wrong.md"
    for entry in wrong.entries(exercise.lesson):
        if entry.cell == exercise.cell:
            yield Place(path, entry.line, "wrong answer", entry.name)


def _right_answers(exercise: Exercise) -> Iterator[Place]:
    """The functions below `@answer_to("<cell>")`."""
    path = answer.folder(exercise.lesson) / "right.py"
    yield from _decorated(path, "answer_to", exercise.cell, "right answer")


# ---- users ----


def _in_example_class(exercise: Exercise, wrong: set[str]) -> Iterator[Place]:
    """The papers of the example class that name the exercise, or a wrong answer to it."""
    path = notebook.ROOT / "examples" / "class" / "make.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _constants(tree)
    for papers in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        for lesson, paper in zip(papers.keys, papers.values, strict=True):
            if lesson is not None and _text(lesson, constants) == exercise.lesson:
                used = {_text(node, constants) for node in ast.walk(paper)} & {exercise.cell, *wrong}
                yield from (Place(path, paper.lineno, "example class:", name) for name in sorted(used))


def _as_piece(exercise: Exercise) -> Iterator[Place]:
    """The row of the capstone's pieces that takes a function of the exercise, or one that needs it."""
    wanted = pieces.PIECES.get(exercise.lesson)
    if not wanted:
        return
    statements = pieces.statements_for(notebook.solution_path(exercise.lesson), wanted)
    taken = set().union(*(_defined_in(text) for text in statements)) & set(exercise.functions)
    if taken:
        row = f'"{exercise.lesson}":'
        yield from _line_with(row, Path(pieces.__file__), f"piece of {pieces.LESSON}:", ", ".join(sorted(taken)))


def _mentions(exercise: Exercise, names: list[str]) -> Iterator[Place]:
    """Chapters, tests and benchmarks that name the exercise, a function of it, a check or an answer: the first line."""
    quoted = [f"[\"']{re.escape(name)}[\"']" for name in exercise.functions]
    pattern = re.compile("|".join([*quoted, *(rf"\b{re.escape(name)}\b" for name in [exercise.cell, *names])]))
    for folder in ("book", "tests", "benchmarks"):
        for path in sorted(path for end in ("md", "py") for path in (notebook.ROOT / folder).rglob(f"*.{end}")):
            text = path.read_text(encoding="utf-8")
            if exercise.lesson in text or exercise.cell in text:
                found = [
                    (n, match[0]) for n, line in enumerate(text.splitlines(), 1) if (match := pattern.search(line))
                ]
                more = f" (lines with such names: {len(found)})" if len(found) > 1 else ""
                yield from (Place(path, n, "names", name.strip("\"'") + more) for n, name in found[:1])


# ---- reading Python ----


def _constants(tree: ast.Module) -> dict[str, str]:
    """The names that a module gives to texts at its top: STEP = "08-ex3-step", also several at once."""
    found: dict[str, str] = {}
    for node in (node for node in tree.body if isinstance(node, ast.Assign)):
        for target in node.targets:
            one = isinstance(target, ast.Name)
            values = [node.value] if one else getattr(node.value, "elts", [])
            names = [target] if one else getattr(target, "elts", [])
            pairs = zip(names, values, strict=False)
            found |= {n.id: str(v.value) for n, v in pairs if isinstance(n, ast.Name) and isinstance(v, ast.Constant)}
    return found


def _text(node: ast.AST, constants: dict[str, str]) -> Any:
    """The text that an expression stands for: a literal, or the name of one; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def _defined_in(source: str) -> Iterable[str]:
    """The names that code defines at its top, in order."""
    statements = map(ast.unparse, ast.parse(source).body)
    return [name for statement in statements for name in sorted(of_source(statement, "").defines)]
