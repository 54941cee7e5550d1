"""`autograder release`: make the notebooks that students get from the solutions, with nbgrader.

nbgrader removes the solutions and the hidden tests, with the settings of `nbgrader_config.py`, in a scratch
folder with a scratch gradebook. Each lesson also gets AGENTS.md, which asks an assistant to be a tutor. The result
replaces the file in `notebooks/` only when a byte differs.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autograder.grade.nbgrader import library
from autograder.lesson import adapted, course_settings, notebook, pieces
from autograder.lesson.course_settings import Settings
from autograder.lesson.files import write_whole


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the subcommand `release`."""
    parser = subparsers.add_parser("release", help="regenerate notebooks/ from solutions/")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 and name what is stale")
    parser.add_argument("--course", metavar="DIR", help="the folder with course.toml (default: the repository)")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    if arguments.check:
        problems = stale(arguments.lessons)
        for problem in problems:
            print(f"{problem}: run `make notebooks`")
        return 1 if problems else 0
    for line in release(arguments.lessons) if arguments.course is None else []:
        print(line)
    course = Path(arguments.course or notebook.ROOT).expanduser()
    for line in release_to_course(course, arguments.lessons):
        print(line)
    return 0


def stale(lessons: list[str] | None = None) -> list[str]:
    """One line for each released file that differs from what its solution gives now."""
    problems = []
    with generated(lessons) as made:
        for lesson, folder in made:
            for path in _files(folder):
                target = notebook.NOTEBOOKS / lesson / path.relative_to(folder)
                if not target.is_file():
                    problems.append(f"notebooks/{lesson}/{target.name} is missing")
                elif target.read_bytes() != path.read_bytes():
                    problems.append(f"notebooks/{lesson}/{target.name} is stale")
    return problems + [f"notebooks/{name} has no solution" for name in ([] if lessons else _orphans())]


def release(lessons: list[str] | None = None) -> list[str]:
    """Bring `notebooks/` up to date; one line for each file that changed.

    A notebook that holds answers is never lost: it is kept next to the new one as `….mine.ipynb`.
    UnknownLessonError for a lesson that does not exist; ValueError for a solution that nbgrader refuses.
    """
    with generated(lessons) as made:
        lines = _write_what_differs(made, notebook.NOTEBOOKS)
    for name in [] if lessons else _orphans():
        if any(_holds_answers(path) for path in (notebook.NOTEBOOKS / name).glob("*.ipynb")):
            lines.append(f"notebooks/{name} has no solution any more; it holds answers and stays")
        else:
            shutil.rmtree(notebook.NOTEBOOKS / name)
            lines.append(f"notebooks/{name} removed: it has no solution any more")
    return lines


def release_to_course(course: Path, lessons: list[str] | None = None) -> list[str]:
    """Make the notebooks of a course with settings of its own, in its folder `release`; a line for each change.

    `notebooks/` stays as it is, so that an update of the repository meets no changes there. Lessons that are not
    released yet are left out, each with a line. BadSettingError for a mistake in `course.toml`.
    """
    own = course_settings.of(course)
    if not own.exists:
        return []
    asked = notebook.pick(lessons, own.solutions)
    picked = [name for name in own.names() if name in asked]
    lines = [line for name in picked if (line := waits(own, name))]
    with generated([name for name in picked if not own.not_yet(name)], own) as made:
        return lines + _write_what_differs(made, course / course_settings.RELEASE)


def waits(own: Settings, lesson: str) -> str:
    """A line on a lesson that is not released yet, or ''."""
    when = own.not_yet(lesson)
    return f"{lesson} is left out: {course_settings.FILE} releases it on {when:%Y-%m-%d at %H:%M}" if when else ""


def _write_what_differs(made: list[tuple[str, Path]], to: Path) -> list[str]:
    """Bring the folders of these lessons up to date; a line for each file that is written."""
    lines = []
    for lesson, folder in made:
        for path in _files(folder):
            target = to / lesson / path.relative_to(folder)
            if target.is_file() and target.read_bytes() == path.read_bytes():
                continue
            if target.is_file() and _holds_answers(target):
                kept = _keep(target)
                lines.append(f"{to.name}/{lesson}: your answers are kept in {kept.name}")
            write_whole(target, path.read_bytes())
            lines.append(f"{to.name}/{lesson}/{target.name} written")
    return lines


@contextlib.contextmanager
def generated(lessons: list[str] | None, own: Settings | None = None) -> Iterator[list[tuple[str, Path]]]:
    """What nbgrader makes of these lessons now: (lesson, folder) pairs in a scratch folder.

    own: the settings of the course that they are for. Without, all is as in the repository, and no lessons means all.
    """
    names = list(lessons or ()) if own else notebook.pick(lessons)
    solutions = own.solutions if own else notebook.SOLUTIONS
    # Resolved, because nbgrader compares paths as text and a temporary folder may be a link.
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        course = Path(folder).resolve()
        _empty_gradebook(course / "gradebook.db")
        for name in names:
            pieces.copy_companions(solutions / name, course / "source" / name / "files")
            (course / "source" / name).mkdir(parents=True, exist_ok=True)
            adapted.copy(solutions, course / "source", name, own)
            _generate_assignment(course, name)
            shutil.copy(notebook.AGENTS, course / "release" / name)
        yield [(name, course / "release" / name) for name in names]


def _generate_assignment(course: Path, lesson: str) -> None:
    """nbgrader's own conversion of `source/<lesson>` into `release/<lesson>`."""
    config = library.settings()
    config.CourseDirectory.update(
        root=str(course),
        source_directory="source",
        release_directory="release",
        db_url=f"sqlite:///{course / 'gradebook.db'}",
        assignment_id=lesson,
    )
    problem = library.generate_assignment(config)
    if problem:
        raise ValueError(f"nbgrader refuses solutions/{lesson}: {problem}")


def _empty_gradebook(path: Path) -> None:
    """A scratch gradebook. Without it nbgrader would run `alembic`, which takes two seconds, to record its version."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.commit()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _orphans() -> list[str]:
    """Folders in `notebooks/` whose lesson has no solution."""
    return sorted({path.parent.name for path in notebook.NOTEBOOKS.glob("*/*.ipynb")} - set(notebook.lessons()))


def _holds_answers(path: Path) -> bool:
    """Has somebody worked in this notebook, that is, run a cell or replaced a stub?"""
    import nbformat

    if path.suffix != ".ipynb":
        return False
    try:
        nb = nbformat.read(path, as_version=4)
    except Exception:  # not a notebook: it was not made by this command, so it is kept
        return True
    for cell in nb.cells:
        if cell.cell_type == "code" and (cell.execution_count or cell.outputs):
            return True
    return any(
        not any(stub in cell.source for stub in (notebook.STUB, notebook.STUB_IN_WORDS))
        for cell in notebook.answer_cells(nb)
    )


def _keep(path: Path) -> Path:
    """Move a notebook aside under a name that is still free."""
    for number in range(1, 1000):
        aside = path.with_name(f"{path.stem}.mine{'' if number == 1 else f'-{number}'}.ipynb")
        if not aside.exists():
            return path.rename(aside)
    raise ValueError(f"{path.parent} holds 1,000 kept copies: remove some")
