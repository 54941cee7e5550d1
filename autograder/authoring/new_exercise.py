"""`autograder new-exercise 02 bus_bandwidth --points 2`: a whole exercise at a lesson's end, to replace.

It gets its cells, a check, a known wrong and another right answer, from `templates/exercise/`, in which NN stands for
the lesson's number, 0 for that of the exercise and new_function for its function; and what the title cell and the
chapter say of all exercises becomes true. Everything passes `make check` but for the lines that are to be replaced,
which it names (`rules.not_replaced`).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import io
import keyword
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

from autograder import properties
from autograder.answers import answer, right, wrong
from autograder.authoring import drafts, new_lesson, rules, where
from autograder.lessons import adapted, names, notebook, release

TEMPLATES = new_lesson.TEMPLATES / "exercise"
#: Characters of a function's name: the template's lines hold so many.
LONGEST = 40

_CELL = re.compile(r"^# %% (\S+)\n", re.MULTILINE)


def add_parser(subparsers: Any) -> None:
    """Add the subcommand `new-exercise`."""
    parser = subparsers.add_parser("new-exercise", help="add a small, complete exercise to a lesson, to start from")
    parser.add_argument("lesson", metavar="LESSON", help="a number or a name, as in 02 or 02_costs")
    parser.add_argument("function", metavar="NAME", help="the function that students write, as in bus_bandwidth")
    parser.add_argument("--points", type=float, default=1.0, help="in quarters of a point (default: 1)")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    (lesson,), root = notebook.pick([arguments.lesson]), notebook.ROOT
    refuse(lesson, arguments.function, arguments.points)
    texts = plan(root, lesson, arguments.function, arguments.points)
    released = [f"notebooks/{lesson}/{lesson}.ipynb", f"notebooks/{lesson}/{release.AGENTS.name}"]
    with new_lesson.all_or_nothing(root, texts, [], released):
        with contextlib.redirect_stdout(io.StringIO()):
            properties.command(argparse.Namespace(lessons=[lesson]))
        said = release.release([lesson])
    for name in texts:
        print(f"{name} written")
    for line in said:
        print(line)
    exercise = next(reversed(answer.solutions(lesson)))
    print(f"\n{rules.short_of(exercise)} passes its tests. Replace what it holds:\n")
    where.command(argparse.Namespace(exercise=exercise))
    print(f"\nnext: autograder try {rules.short_of(exercise)}")
    return 0


def refuse(lesson: str, function: str, points: float) -> None:
    """ValueError, in one line, for an exercise that the lesson cannot have."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", function) or keyword.iskeyword(function) or len(function) > LONGEST:
        raise ValueError(
            f"{function!r} is no name for a function: write small letters, digits and _, at most {LONGEST} of them"
        )
    if not (points > 0 and points * 4 % 1 == 0):
        raise ValueError(f"an exercise has points in quarters, such as 0.5 or 2, not {points:g}")
    nb = notebook.read(lesson)
    for cell in nb.cells:
        if cell.cell_type == "code" and function in names.of_source(cell.source, "").defines:
            raise ValueError(f"the name {function} is taken: {notebook.place(cell.id)} defines it")
    answers = answer.solutions(lesson)
    if size := full(lesson):
        have = f"it has {size.got} {size.what}, and a lesson has at most {size.most}"
        room = ", ".join(other[:2] for other in notebook.lessons() if not full(other))
        others = f"in lessons {room} there is room" if room else "and so are all others"
        raise ValueError(f"{lesson} is full: {have}; {others}, and `autograder new-lesson` begins another one")
    names_taken = {one.name for one in [*wrong.of_lesson(lesson), *right.of_lesson(lesson)]}
    cell = f"{lesson[:2]}-ex{len(answers) + 1}"
    if any(name.startswith(f"{function}_") for name in names_taken):
        raise ValueError(f"a known answer of {lesson} is named {function}_… already: choose another name")
    if any(rules.short_of(other.id) == cell for other in nb.cells):
        raise ValueError(f"{lesson} has cells of {cell}, but no answer: {notebook.place(cell)}")
    module = answer.folder(lesson) / "checks" / f"{function}.py"
    if module.exists():
        raise ValueError(f"{module.relative_to(notebook.ROOT)} exists: move it away first, or choose another name")


def full(lesson: str) -> drafts.Size | None:
    """Of what a lesson has too much already for one more exercise, or None."""
    more = {"exercises": 1, "cells": 4}
    sizes = (one for one in drafts.sizes(lesson) if one.what in more and one.most is not None)
    return next((one for one in sizes if one.got + more[one.what] > (one.most or 0)), None)


def plan(root: Path, lesson: str, function: str, points: float) -> dict[str, str]:
    """The texts of the files that change or come, by name below `root`."""
    folder, number = answer.folder(lesson), len(answer.solutions(lesson)) + 1
    worth = f"{points:g}"
    values = {
        "NN": lesson[:2],
        "ex0": f"ex{number}",
        "xercise 0": f"xercise {number}",
        "new-function": function.replace("_", "-").strip("-"),
        "new_function": function,
        "(1 point)": f"({worth} point{'' if points == 1 else 's'})",
        "points=1": f"points={worth}",
    }
    part = {path.name: new_lesson.fill(path.read_text(encoding="utf-8"), values) for path in TEMPLATES.iterdir()}
    nb = with_cells(lesson, part["cells.py"], points)
    package = (folder / "checks").is_dir()
    checks = Path("checks", f"{function}.py") if package else Path("checks.py")
    new = {
        f"{lesson}.ipynb": nbformat.writes(nb) + "\n",
        str(checks): part["checks.py"] if package else appended(folder / checks, part["checks.py"]),
        "right.py": appended(folder / "right.py", part["right.py"]),
        "wrong.md": (folder / "wrong.md").read_text(encoding="utf-8") + part["wrong.md"],
        "verdicts.txt": (folder / "verdicts.txt").read_text(encoding="utf-8") + part["verdicts.txt"],
    }
    texts = {f"solutions/{lesson}/{name}": text for name, text in new.items()}
    chapter = root / "book" / f"{lesson}.md"
    before = chapter.read_text(encoding="utf-8") if chapter.is_file() else ""
    if (after := rules.with_totals(before, nb.cells)) != before:
        texts[f"book/{lesson}.md"] = after
    return texts


def with_cells(lesson: str, text: str, points: float) -> nbformat.NotebookNode:
    """The lesson's notebook with the new cells after those of its last exercise, and with its points in its title.

    text: the template of the cells, filled in. Their metadata are those of the exercise that `new-lesson` makes.
    """
    nb = notebook.read(lesson)
    _, *parts = _CELL.split(text)
    of_lesson = nbformat.read(new_lesson.TEMPLATES / "notebook.ipynb", as_version=4).cells
    models = [cell for cell in of_lesson if cell.id.startswith("NN-ex1")]
    new = []
    for model, name, source in zip(copy.deepcopy(models), parts[::2], parts[1::2], strict=True):
        model.id, model.source = name, source.strip()
        if model.cell_type == "markdown":
            model.source = re.sub("^# ?", "", model.source, flags=re.MULTILINE)
        if role := notebook.nbgrader_role(model):
            model.metadata.nbgrader.grade_id = name
            if role == "grade":
                model.metadata.nbgrader.points = int(points) if points == int(points) else points
        new.append(model)
    short = rules.short_of(next(reversed(answer.solutions(lesson))))
    last = max(at for at, cell in enumerate(nb.cells) if rules.short_of(cell.id) == short)
    nb.cells[last + 1 : last + 1] = new
    roles = ("grade", "question")
    total = sum(cell.metadata.nbgrader.points for cell in nb.cells if notebook.nbgrader_role(cell) in roles)
    title = nb.cells[0]
    title.source = adapted.with_total(title.source, total)
    return nb


def appended(path: Path, template: str) -> str:
    """A module with a template's code at its end, and with what the template imports at its top, sorted by ruff."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(template)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = template.splitlines()
    code = "\n".join(lines[imports[-1].end_lineno or 0 :]).strip()
    own = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    at = own[-1].end_lineno or 0
    before = text.splitlines()
    new = [ast.unparse(node) for node in imports if getattr(node, "module", "") != "__future__"]
    whole = "\n".join([*before[:at], *new, *before[at:], "", "", code, ""])
    ruff = str(Path(sys.executable).with_name("ruff"))
    sort = [ruff, "check", "--quiet", "--select", "I", "--fix", "--stdin-filename", str(path), "-"]
    done = subprocess.run(sort, input=whole, capture_output=True, text=True, cwd=notebook.ROOT)
    if done.returncode:
        raise ValueError(f"{path.relative_to(notebook.ROOT)}: ruff cannot sort its imports: {done.stderr.strip()}")
    return done.stdout
