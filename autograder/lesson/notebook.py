"""Lessons as notebooks: find them, run their cells, swap one cell for another, take functions out of them.

`solutions/NN_topic/NN_topic.ipynb` is the source of every assignment. Beside it are the lesson's checks, its known
answers and, in `files/`, what the notebook reads (`companions`). A cell is named by its id, which equals its nbgrader
`grade_id` where it has one. A lesson's functions need only the cells tagged `setup` or `parameters` and the solution
cells; the others demonstrate, ask or test.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import io
import linecache
import re
import sys
import traceback
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = ROOT / "solutions"
NOTEBOOKS = ROOT / "notebooks"
#: The packages of this repository that notebooks import.
PACKAGES = ("ranks", "machines")
#: The kernel that a solution notebook names.
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
#: What each lesson's folder contains for students' assistants.
AGENTS = Path(__file__).parent / "templates" / "AGENTS.md"
#: A stub contains the first of these, in words the second; an answer cell without them holds somebody's work.
STUB, STUB_IN_WORDS = "NotImplementedError", "YOUR ANSWER HERE"


class UnknownLessonError(ValueError):
    """There is no such lesson."""


def lessons(folder: Path | None = None) -> list[str]:
    """The names of all lessons in `solutions/`, or in another folder, in order: `["01_collectives", …]`."""
    found = (folder or SOLUTIONS).glob("*/*.ipynb")
    return sorted(path.parent.name for path in found if path.stem == path.parent.name)


def pick(names: Iterable[str] | None, folder: Path | None = None) -> list[str]:
    """These lessons, or all if none is named; "03" stands for "03_step".

    UnknownLessonError names the lessons that exist.
    """
    known = lessons(folder)
    by_number = {lesson.split("_")[0]: lesson for lesson in known}
    picked = [by_number.get(name, name) for name in names or known]
    for name in picked:
        if name not in known:
            raise UnknownLessonError(f"no lesson {name!r}; there are: {', '.join(known)}")
    return picked


def solution_path(lesson: str) -> Path:
    """Where a lesson's solution notebook is. UnknownLessonError names the lessons that exist."""
    (lesson,) = pick([lesson])
    return SOLUTIONS / lesson / f"{lesson}.ipynb"


def lesson_of(cell: str) -> str:
    """The lesson that a grade_id such as `03-ex1-worker-gradient` belongs to."""
    number = cell.split("-", 1)[0]
    for lesson in lessons():
        if lesson.startswith(number + "_"):
            return lesson
    raise UnknownLessonError(f"no lesson {number} for the cell {cell!r}")


def place(cell: str) -> str:
    """Where a cell of a solution notebook is, as `path:line`; its id for a cell of no lesson in the repository."""
    with contextlib.suppress(UnknownLessonError):
        path = solution_path(lesson_of(cell))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if f'"id": "{cell}"' in line:
                return f"{path.relative_to(ROOT)}:{number}"
    return cell


def stored(nb: nbformat.NotebookNode) -> str:
    """The text of a solution notebook as it is stored: without outputs, and without what editors write into it."""
    nb = copy.deepcopy(nb)
    kernel = nb.metadata.get("kernelspec", {})
    known = set(kernel.items()) <= set(KERNEL.items()) and {"name", "display_name"} <= set(kernel)
    nb.metadata = {"kernelspec": kernel if known else KERNEL, "language_info": {"name": "python"}}
    nb.nbformat_minor = 5
    for cell in nb.cells:
        cell.metadata = {key: cell.metadata[key] for key in ("tags", "nbgrader") if key in cell.metadata}
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return nbformat.writes(nb) + "\n"


def refuse_what_is_no_python(lesson: str) -> None:
    """ValueError, in one line, for the first code cell of a solution notebook that is no Python."""
    _refuse_what_is_no_python(solution_path(lesson), solution_path(lesson).stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _refuse_what_is_no_python(path: Path, _changed: int) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            try:
                ast.parse(cell.source)
            except SyntaxError as error:
                line = f"{place(cell.id)}: line {error.lineno} of {cell.id} is no Python"
                raise ValueError(f"{line}: {_why(error)}: correct it in the notebook") from None


def fault_of(error: Exception, folder: Path) -> str:
    """What is wrong in a module of this folder that could not be imported, in a line that begins with file and line."""
    if isinstance(error, SyntaxError):
        file, line, text = error.filename or "", error.lineno, f"no Python: {_why(error)}: correct it"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)][-1:]
        file, line = (last[0].filename, last[0].lineno) if last else (str(folder), 0)
        text = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}: correct it"
    name = str(Path(file).relative_to(ROOT)) if Path(file).is_relative_to(ROOT) else file
    return text if text.startswith(f"{name}:") else f"{name}:{line}: {text}"


def _why(error: SyntaxError) -> str:
    line = (error.text or "").strip()
    return f"{error.msg}: {line!r}" if line else error.msg


def read(lesson: str, swap: dict[str, str] | None = None) -> nbformat.NotebookNode:
    """A lesson's solution notebook. swap: cell id → other source."""
    nb = named(nbformat.read(solution_path(lesson), as_version=4))
    for cell in nb.cells:
        cell.source = (swap or {}).get(cell.id, cell.source)
    return nb


def named(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A lesson's notebook whose graded cells have their grade_id as cell id, which JupyterLab cannot set."""
    for cell in nb.cells:
        if nbgrader_role(cell):
            cell.id = cell.metadata.nbgrader.get("grade_id", cell.id)
    return nb


def companions(folder: Path) -> dict[str, bytes]:
    """The files that a lesson's notebook finds beside itself, name → bytes: those in `files/` of the lesson's folder.

    They and the notebook are all of this folder that students, kernels and the jail get, and for the capstone what
    `pieces.companions` adds. The rest holds answers and hidden tests. Links, notebooks and hidden files in `files/` are
    left out.
    """
    found = {}
    for path in sorted((folder / "files").rglob("*")):
        name = path.relative_to(folder / "files")
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
        if path.is_file() and not path.is_symlink() and not hidden and path.suffix != ".ipynb":
            found[str(name)] = path.read_bytes()
    return found


def checks_of(lesson: str) -> list[Path]:
    """The files of a lesson's checks: the module `checks.py`, or the modules of the package `checks`."""
    folder = SOLUTIONS / lesson
    return [path for path in [folder / "checks.py"] if path.is_file()] or sorted((folder / "checks").rglob("*.py"))


def nbgrader_role(cell: nbformat.NotebookNode) -> str:
    """'solution', 'grade', 'question' for what a person grades, or '' for a cell that nbgrader leaves alone.

    A question is an answer without a test, in words or code, or a task, which students answer in cells of their own.
    """
    meta = cell.metadata.get("nbgrader", {})
    if is_task(cell) or (meta.get("grade") and meta.get("solution")):
        return "question"
    if meta.get("solution"):
        return "solution"
    return "grade" if meta.get("grade") else ""


def is_task(cell: nbformat.NotebookNode) -> bool:
    """Is this the statement of a task of nbgrader's?"""
    return bool(cell.metadata.get("nbgrader", {}).get("task"))


def answer_cells(nb: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells that hold a student's answers, those to questions included."""
    return [cell for cell in nb.cells if nbgrader_role(cell) in ("solution", "question") and not is_task(cell)]


def answer_of(test: str) -> str:
    """The answer cell that a test cell belongs to: `03-ex1-worker-gradient-test` tests `03-ex1-worker-gradient`."""
    return test.removesuffix("-test")


def address_of(attachment: str) -> re.Pattern[str]:
    """How a cell's text names one of the pictures attached to it, in a link or in a tag."""
    names = "|".join({re.escape(attachment), re.escape(urllib.parse.quote(attachment))})
    return re.compile(rf"attachment:(?:{names})(?=[\s)\"'>]|$)")


def natural(name: str) -> list:
    """A sort key with numbers by value: ex2 before ex10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def is_setup(cell: nbformat.NotebookNode) -> bool:
    """Do a lesson's functions need this cell?"""
    tags = set(cell.metadata.get("tags", []))
    needed = tags & {"setup", "parameters"} or nbgrader_role(cell) == "solution"
    return cell.cell_type == "code" and bool(needed)


@functools.lru_cache(maxsize=256)
def compiled(source: str, filename: str) -> CodeType:
    """The code of a lesson's cell, as a kernel compiles it: annotations are not postponed as they are in this file."""
    return compile(source, filename, "exec", dont_inherit=True)


def functions(lesson: str, swap: dict[str, str] | None = None) -> dict[str, Any]:
    """The namespace after a lesson's setup and solution cells: its functions by name.

    swap: cell id → other source. RuntimeError names a cell that raises, and its error.
    """
    space = fresh_namespace()
    for name, source in _setup_cells(lesson, solution_path(lesson).stat().st_mtime_ns):
        if error := execute(name, (swap or {}).get(name, source), space):
            said = "".join(traceback.format_exception_only(error)).strip()
            raise RuntimeError(f"{lesson}, cell {name}: {said}")
    return space


@functools.lru_cache(maxsize=8)
def _setup_cells(lesson: str, _changed: int) -> list[tuple[str, str]]:
    """(id, source) of a lesson's setup and solution cells; they are read again when the file has changed."""
    return [(cell.id, cell.source) for cell in read(lesson).cells if is_setup(cell)]


def fresh_namespace() -> dict[str, Any]:
    """What a notebook's first cell finds."""
    # Modules beside a notebook can be imported, by its ranks too, as in a kernel that works where they are.
    sys.path += sorted({str(path.parent) for path in NOTEBOOKS.glob("*/*.py")} - set(sys.path))
    # As in a kernel: functions defined in __main__ are sent to the ranks by value.
    return {"__name__": "__main__", "__builtins__": __builtins__}


def execute(name: str, source: str, space: dict[str, Any]) -> Exception | None:
    """Run a cell of this name, without what it prints; the error that it raises, if it does."""
    filename = f"<cell {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compiled(source, filename), space)
    except Exception as error:
        return error
    return None
