"""`autograder new-lesson 18_routing`, a small lesson that is whole, and `autograder new-exercise 02 bus_bandwidth`.

An exercise gets its cells, checks, known wrong and other right answers from `templates/exercise/` or, on several ranks,
`templates/exercise_on_ranks/`: there NN stands for the lesson's number, 0 for that of the exercise, and a function's
name for that of its own. What the title cell and the chapter say of all exercises becomes true. It passes `make check`
but for the lines that are to be replaced, which it names (`rules.not_replaced`). A lesson is made from
`templates/lesson/`, with the exercise on ranks as its first. All texts are made before the first is written, and if
anything fails after that, everything is put back as it was.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import keyword
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat

from autograder import properties
from autograder.answers import answer, right, wrong
from autograder.author import drafts, rules, where
from autograder.grade.nbgrader import release
from autograder.lesson import adapted, names, notebook
from autograder.lesson.files import write_whole

TEMPLATES = Path(__file__).parent / "templates"
#: Is it on several ranks? → its folder in TEMPLATES, and the function in there.
EXERCISES = {False: ("exercise", "new_function"), True: ("exercise_on_ranks", "mean_over_ranks")}
#: What an exercise on ranks finds in the lesson's setup cells.
ON_RANKS = {"torch", "dist", "ranks"}
#: The points of a new lesson's exercise.
POINTS = 3.0
#: Characters of a function's name: the template's lines hold so many.
LONGEST = 40

#: What the table of the lessons says of the exercise in the template.
WHAT = "the mean of a tensor over the ranks, with one all-reduce"

_LESSON = re.compile(r"(?P<number>\d\d)_(?P<topic>[a-z][a-z0-9]*(_[a-z0-9]+)*)")
_ROW = re.compile(r"^\| (?P<number>\d\d) \| (?P<name>.*?) \| (?P<what>.*) \| (?P<state>.*?) \|\n", re.MULTILINE)
_CHAPTER = re.compile(r"^( *)- file: book/(\d\d)_\w+\n(?:\1 +.*\n)*", re.MULTILINE)
_CELL = re.compile(r"^# %% (\S+)\n", re.MULTILINE)


def add_parser(subparsers: Any) -> None:
    """Add the subcommands `new-lesson` and `new-exercise`."""
    parser = subparsers.add_parser("new-lesson", help="make a small, complete lesson to start from")
    parser.add_argument("lesson", metavar="NN_topic", help="its number and its topic, as in 18_routing")
    parser.set_defaults(run=new_lesson)
    parser = subparsers.add_parser("new-exercise", help="add a small, complete exercise to a lesson, to start from")
    parser.add_argument("lesson", metavar="LESSON", help="a number or a name, as in 02 or 02_costs")
    parser.add_argument("function", metavar="NAME", help="the function that students write, as in bus_bandwidth")
    parser.add_argument("--points", type=float, default=1.0, help="in quarters of a point (default: 1)")
    parser.add_argument("--ranks", action="store_true", help="students' functions run on several ranks")
    parser.set_defaults(run=new_exercise)


def new_lesson(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    lesson, root = arguments.lesson, notebook.ROOT
    refuse_lesson(root, lesson)
    texts, planned = lesson_texts(root, lesson), planned_title(root, lesson[:2])
    _write(root, lesson, texts, [f"solutions/{lesson}", f"notebooks/{lesson}"])
    if planned:
        print(f"the lesson's title is {planned!r}, as planned for the number {lesson[:2]}")
    print(drafts.line(lesson))
    print(f"next: autograder audit {lesson}, then replace its exercise (CONTRIBUTING.md)")
    return 0


def new_exercise(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    (lesson,), root = notebook.pick([arguments.lesson]), notebook.ROOT
    refuse_exercise(lesson, arguments.function, arguments.points, arguments.ranks)
    _write(root, lesson, exercise_texts(root, lesson, arguments.function, arguments.points, arguments.ranks))
    exercise = next(reversed(answer.solutions(lesson)))
    print(f"\n{rules.short_of(exercise)} passes its tests. Replace what it holds:\n")
    where.command(argparse.Namespace(exercise=exercise))
    print(f"\nnext: autograder try {rules.short_of(exercise)}")
    return 0


def _write(root: Path, lesson: str, texts: dict[str, str], folders: Iterable[str] = ()) -> None:
    """Write the texts and what follows from them, and say so; folders: those that are new."""
    released = [f"notebooks/{lesson}/{lesson}.ipynb", f"notebooks/{lesson}/{notebook.AGENTS.name}"]
    with all_or_nothing(root, texts, folders, released):
        with contextlib.redirect_stdout(io.StringIO()):
            properties.command(argparse.Namespace(lessons=[lesson]))
        said = release.release([lesson])
    print("\n".join([*(f"{name} written" for name in texts), *said]))


# ---- what cannot be ----


def refuse_lesson(root: Path, lesson: str) -> None:
    """ValueError, in one line, for a name that no new lesson of the repository in `root` can have."""
    match = _LESSON.fullmatch(lesson)
    if not match:
        raise ValueError(
            f"{lesson!r} is not a lesson's name: write two digits and a topic in small letters, 18_routing"
        )
    if match["number"] == "00":
        raise ValueError("lessons have numbers from 01 to 99")
    for other in notebook.lessons(root / "solutions"):
        if other.startswith(f"{match['number']}_"):
            raise ValueError(f"the number {match['number']} is taken: {other}")
    for name in (f"solutions/{lesson}", f"book/{lesson}.md", f"notebooks/{lesson}"):
        if (root / name).exists():
            raise ValueError(f"{name} exists, though there is no lesson {lesson}: move it away first")


def refuse_exercise(lesson: str, function: str, points: float, on_ranks: bool = False) -> None:
    """ValueError, in one line, for an exercise that the lesson cannot have."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", function) or keyword.iskeyword(function) or len(function) > LONGEST:
        raise ValueError(
            f"{function!r} is no name for a function: write small letters, digits and _, at most {LONGEST} of them"
        )
    if not (points > 0 and points * 4 % 1 == 0):
        raise ValueError(f"an exercise has points in quarters, such as 0.5 or 2, not {points:g}")
    if on_ranks and points < 1:
        raise ValueError(f"an exercise on ranks has three checks, and so 1 point or more, not {points:g}")
    nb, setup = notebook.read(lesson), set[str]()
    for cell in nb.cells:
        if cell.cell_type == "code":
            defined = names.of_source(cell.source, "").defines
            if function in defined:
                raise ValueError(f"the name {function} is taken: {notebook.place(cell.id)} defines it")
            setup |= set(defined) if "setup" in cell.metadata.get("tags", []) else set()
    if on_ranks and (lacking := ON_RANKS - setup):
        raise ValueError(f"no setup cell of {lesson} imports {' and '.join(sorted(lacking))}: import it there first")
    if size := full(lesson):
        have = f"it has {size.got} {size.what}, and a lesson has at most {size.most}"
        room = ", ".join(other[:2] for other in notebook.lessons() if not full(other))
        others = f"in lessons {room} there is room" if room else "and so are all others"
        raise ValueError(f"{lesson} is full: {have}; {others}, and `autograder new-lesson` begins another one")
    names_taken = {one.name for one in [*wrong.load_wrong(lesson), *right.load_right(lesson)]}
    cell = f"{lesson[:2]}-ex{len(answer.solutions(lesson)) + 1}"
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


# ---- texts ----


def lesson_texts(root: Path, lesson: str) -> dict[str, str]:
    """The texts of a new lesson's files, and of those that list the lessons, by name below `root`.

    ValueError for a file in which the place for the lesson cannot be found.
    """
    number, topic = lesson.split("_", 1)
    title = planned_title(root, number) or topic.replace("_", " ").capitalize()
    begun = _filled("lesson", {"NN": number, "TOPIC": topic, "TITLE": title})
    begun |= {"wrong.md": f"# Wrong answers to lesson {number}\n", "verdicts.txt": ""}
    begun[f"{lesson}.ipynb"], chapter = begun.pop("notebook.ipynb"), begun.pop("chapter.md")
    made = with_exercise(begun, lesson, EXERCISES[True][1], POINTS, on_ranks=True)
    # The whole lesson is a draft, and says so in its title cell.
    texts = {f"solutions/{lesson}/{name}": re.sub(f"{rules.TO_REPLACE}[.] ", "", text) for name, text in made.items()}
    texts |= {f"book/{lesson}.md": chapter, rules.TOC: in_toc((root / rules.TOC).read_text("utf-8"), lesson, title)}
    for name, folder in rules.TABLES.items():
        texts[name] = in_table((root / name).read_text(encoding="utf-8"), name, lesson, title, folder)
    return texts


def exercise_texts(root: Path, lesson: str, function: str, points: float, on_ranks: bool = False) -> dict[str, str]:
    """The texts of the files that change or come with a new exercise, by name below `root`."""
    folder = answer.folder(lesson)
    files = [f"{lesson}.ipynb", "right.py", "wrong.md", "verdicts.txt"]
    files += [] if (folder / "checks").is_dir() else ["checks.py"]
    before = {name: (folder / name).read_text(encoding="utf-8") for name in files}
    new = with_exercise(before, lesson, function, points, on_ranks)
    texts = {f"solutions/{lesson}/{name}": text for name, text in new.items()}
    chapter = root / "book" / f"{lesson}.md"
    if chapter.is_file():
        text = chapter.read_text(encoding="utf-8")
        with_new = rules.with_totals(text, nbformat.reads(new[f"{lesson}.ipynb"], as_version=4).cells)
        texts |= {f"book/{lesson}.md": with_new} if with_new != text else {}
    return texts


def with_exercise(
    files: dict[str, str], lesson: str, function: str, points: float, on_ranks: bool = False
) -> dict[str, str]:
    """The texts of a lesson's files, by name, with a new exercise behind its last.

    files: without `checks.py`, the checks become a module of the lesson's package `checks/`, if it has exercises.
    """
    template, name = EXERCISES[on_ranks]
    nb = nbformat.reads(files[f"{lesson}.ipynb"], as_version=4)
    number = 1 + sum(notebook.nbgrader_role(cell) == "solution" for cell in nb.cells)
    often = max(0.25, points / 3 * 4 // 1 / 4)  # for what an answer sends
    core = points - often - 0.25 if on_ranks else points
    values = {
        "NN": lesson[:2],
        "ex0": f"ex{number}",
        "xercise 0": f"xercise {number}",
        name.replace("_", "-"): function.replace("_", "-").strip("-"),
        name: function,
        "(1 point)": f"({points:g} point{'' if points == 1 else 's'})",
        "points=1)": f"points={core:g})",
        "points=0.5)": f"points={often:g})",
    }
    part = _filled(template, values)
    checks = "checks.py" if "checks.py" in files or number == 1 else f"checks/{function}.py"
    path = answer.folder(lesson)
    return {
        f"{lesson}.ipynb": nbformat.writes(with_cells(nb, part["cells.py"], points)) + "\n",
        checks: appended(path / checks, files[checks], part["checks.py"]) if checks in files else part["checks.py"],
        "wrong.md": files["wrong.md"] + part["wrong.md"],
        "verdicts.txt": files["verdicts.txt"] + part["verdicts.txt"],
        "right.py": appended(path / "right.py", files["right.py"], part["right.py"]),
    }


def _filled(folder: str, values: dict[str, str]) -> dict[str, str]:
    """The templates of a folder by name, with these values in the places of their names."""
    pattern = re.compile("|".join(map(re.escape, values)))
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((TEMPLATES / folder).iterdir())}
    return {name: pattern.sub(lambda match: values[match.group()], text) for name, text in texts.items()}


def with_cells(nb: nbformat.NotebookNode, text: str, points: float) -> nbformat.NotebookNode:
    """A lesson's notebook with the new cells behind its last exercise or before its end, and its points in its title.

    text: the template of the cells, filled in: the statement, the answer, the example, the test.
    """
    _, *parts = _CELL.split(text)
    new = []
    for place, (name, source) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        if place == 0:
            statement = re.sub("^# ?", "", source.strip(), flags=re.MULTILINE)
            new.append(nbformat.v4.new_markdown_cell(statement, id=name))
            continue
        new.append(nbformat.v4.new_code_cell(source.strip(), id=name))
        if place == 1:
            new[-1].metadata.nbgrader = {"grade_id": name, **rules.ANSWER_ROLE}
        if place == 3:
            worth = int(points) if points == int(points) else points
            new[-1].metadata.nbgrader = {"grade_id": name, "points": worth, **rules.TEST_ROLE}
    exercises = [rules.short_of(cell.id) for cell in nb.cells if notebook.nbgrader_role(cell) == "solution"]
    places = [at for at, cell in enumerate(nb.cells) if rules.short_of(cell.id) in exercises[-1:]]
    behind = places[-1] + 1 if places else len(nb.cells) - 1
    nb.cells[behind:behind] = new
    roles = ("grade", "question")
    total = sum(cell.metadata.nbgrader.points for cell in nb.cells if notebook.nbgrader_role(cell) in roles)
    nb.cells[0].source = adapted.with_total(nb.cells[0].source, total)
    return nb


def appended(path: Path, text: str, template: str) -> str:
    """A module's text with a template's code at its end, and its imports at the top, sorted by ruff as in `path`.

    ValueError if both define a name.
    """
    tree, own = ast.parse(template), ast.parse(text)
    named = (ast.FunctionDef, ast.ClassDef)
    if both := {n.name for n in tree.body if isinstance(n, named)} & {n.name for n in own.body if isinstance(n, named)}:
        place = path.relative_to(notebook.ROOT)
        raise ValueError(
            f"{place} defines {min(both)} already: make a package of it, checks/, with a module of its own"
        )
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    code = "\n".join(template.splitlines()[imports[-1].end_lineno or 0 :]).strip()
    at = [node for node in own.body if isinstance(node, ast.Import | ast.ImportFrom)][-1].end_lineno or 0
    before = text.splitlines()
    new = [ast.unparse(node) for node in imports if getattr(node, "module", "") != "__future__"]
    whole = "\n".join([*before[:at], *new, *before[at:], "", "", code, ""])
    ruff = str(Path(sys.executable).with_name("ruff"))
    sort = [ruff, "check", "--quiet", "--select", "I", "--fix", "--stdin-filename", str(path), "-"]
    done = subprocess.run(sort, input=whole, capture_output=True, text=True, cwd=notebook.ROOT)
    if done.returncode:
        raise ValueError(f"{path.relative_to(notebook.ROOT)}: ruff cannot sort its imports: {done.stderr.strip()}")
    return done.stdout


def planned_title(root: Path, number: str) -> str | None:
    """The title that the table of the lessons has for this number already."""
    rows = _ROW.finditer((root / next(iter(rules.TABLES))).read_text(encoding="utf-8"))
    return next((row["name"] for row in rows if row["number"] == number), None)


def in_table(text: str, name: str, lesson: str, title: str, folder: str) -> str:
    """A table of the lessons with a row for the new one: in the place of a planned one, or after the number before it.

    name: the page, for messages. folder: where its links to chapters begin.
    """
    number, root = lesson[:2], "" if folder else "../"
    rows = list(_ROW.finditer(text))
    if not rows:
        raise ValueError(f"{name} has no table of the lessons, with rows such as | 01 | … | … | … |")
    planned = [row for row in rows if row["number"] == number]
    what = planned[0]["what"] if planned else WHAT
    assignment = f"[assignment]({root}notebooks/{lesson}/{lesson}.ipynb)"
    row = f"| {number} | [{title}]({folder}{lesson}.md) | {what} | {assignment} |\n"
    if planned:
        return text[: planned[0].start()] + row + text[planned[0].end() :]
    return _inserted(text, row, [(row["number"], *row.span()) for row in rows], number)


def in_toc(text: str, lesson: str, title: str) -> str:
    """The list of the book's pages with the lesson's chapter and notebook after those of the number before it."""
    chapters = list(_CHAPTER.finditer(text))
    if not chapters:
        raise ValueError(f"{rules.TOC} lists no chapter, such as - file: book/01_collectives")
    indent = chapters[0][1]
    lines = [
        f"- file: book/{lesson}",
        f"  title: {lesson[:2]} · {title}",
        "  sections:",
        f"    - file: notebooks/{lesson}/{lesson}",
        "      title: The assignment",
    ]
    entry = "".join(f"{indent}{line}\n" for line in lines)
    return _inserted(text, entry, [(chapter[2], *chapter.span()) for chapter in chapters], lesson[:2])


def _inserted(text: str, entry: str, others: list[tuple[str, int, int]], number: str) -> str:
    """`text` with `entry` after the last of the others, (number, start, end), that has a lower number."""
    before = [end for other, _, end in others if other < number]
    at = before[-1] if before else others[0][1]
    return text[:at] + entry + text[at:]


@contextlib.contextmanager
def all_or_nothing(
    root: Path, texts: dict[str, str], folders: Iterable[str], others: Iterable[str] = ()
) -> Iterator[None]:
    """Write the texts. If that fails, or what is done inside, everything is as it was before.

    texts: by name below `root`. folders: new folders, also those that are made inside; on failure they are removed.
    others: files that may be written inside.
    """
    kept = [*texts, *others]
    before = {name: (root / name).read_bytes() if (root / name).is_file() else None for name in kept}
    try:
        for name, text in texts.items():
            write_whole(root / name, text)
        yield
    except BaseException:
        for folder in folders:
            shutil.rmtree(root / folder, ignore_errors=True)
        for name, content in before.items():
            if content is None:
                (root / name).unlink(missing_ok=True)
            else:
                write_whole(root / name, content)
        raise
