"""`autograder handout`: the folder and the zip that students get, without answers and hidden tests.

Everything in them is listed here, is made from what is listed here, or is in a lesson's `files/`: what somebody leaves
elsewhere in the repository cannot slip in. The notebooks are made anew from the solutions, so that nobody's own work in
`notebooks/` is handed out. A course with settings of its own (`course_settings`) hands out its lessons, those that
are released, as it wants them.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml

from autograder.grade.nbgrader import release
from autograder.lesson import course_settings, notebook, pieces
from autograder.lesson.course_settings import Settings

#: Where the folder goes; the zip is next to it.
FOLDER = notebook.ROOT / "_build" / "handout"
#: What the zip unpacks to.
NAME = "distributed-training"
#: Files of the repository that are handed out as they are, besides `notebook.PACKAGES`.
COPIED = ("LICENSE", "LICENSE-CODE", "LICENSE-TEXT", "requirements.lock")
#: Patterns of what is handed out of the packages that notebooks import.
PATTERNS = ("*.py", "py.typed", "README.md")
README = Path(__file__).parent / "templates" / "handout.md"

#: Lessons that are handed out only by name, and why.
LATER = {
    "17_capstone": "its pieces.py contains answers to lessons 05, 08, 12 and 16. When these have been handed in, run "
    "`make handout LESSONS=17_capstone`"
}


def add_parser(subparsers: Any) -> None:
    """Add the subcommand `handout`."""
    parser = subparsers.add_parser("handout", help="write the folder and the zip that students get")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="default: every lesson but the capstone")
    parser.add_argument("--course", metavar="DIR", help="the folder with course.toml (default: the repository)")
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    course = Path(arguments.course).expanduser() if arguments.course else notebook.ROOT
    for line in write(course / FOLDER.relative_to(notebook.ROOT), arguments.lessons, course):
        print(line)
    return 0


def write(folder: Path, lessons: list[str] | None = None, course: Path = notebook.ROOT) -> list[str]:
    """Write the folder for these lessons and its zip, in the place of older ones; what to print about it.

    No lessons: all that the course has released, but those in `LATER` that it gives no date. UnknownLessonError for a
    lesson that does not belong to the course; ValueError if none is released.
    """
    own = course_settings.of(course)
    notes, picked = list[str](), list[str]()
    for name in own.pick(lessons):
        if line := release.waits(own, name):
            notes.append(line)
        elif name in LATER and not lessons and own.of(name).release is None:
            notes.append(f"{name} is left out: {LATER[name]}")
        else:
            picked.append(name)
    if not picked:
        raise ValueError(f"there is nothing to hand out yet: {notes[0]}")
    made = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    _write_notebooks(made, picked, own)
    for package, pattern in itertools.product(notebook.PACKAGES, PATTERNS):
        for path in sorted((notebook.ROOT / package).glob(pattern)):
            _copy(path, made / package / path.name)
    for name in COPIED:
        _copy(notebook.ROOT / name, made / name)
    (made / "pyproject.toml").write_text(_project(), encoding="utf-8")
    (made / "README.md").write_text(_readme(picked, own), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    packed = folder.with_suffix(".zip")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, f"{NAME}/{path.relative_to(folder)}")
    return [*notes, f"Hand out {packed} ({len(picked)} lessons), which is the folder {folder}."]


def _write_notebooks(made: Path, lessons: list[str], own: Settings) -> None:
    """Make the notebooks of these lessons below a folder, with the files that they find beside themselves."""
    with release.generated(lessons, own) as generated:
        for lesson, source in generated:
            for name in (f"{lesson}.ipynb", notebook.AGENTS.name, *pieces.companions(own.solutions / lesson)):
                _copy(source / name, made / "notebooks" / lesson / name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _project() -> str:
    """The part of pyproject.toml about the packages and what notebooks import, without the settings of tools."""
    return (notebook.ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.ruff]\n")[0]


def _readme(lessons: list[str], own: Settings) -> str:
    """What students read first."""
    config = yaml.safe_load((notebook.ROOT / "_config.yml").read_text(encoding="utf-8"))
    address = config["sphinx"]["config"].get("html_baseurl")
    named = ", ".join(f"`{lesson}`{_until(lesson, own)}" for lesson in lessons)
    return (
        README.read_text(encoding="utf-8")
        .replace("{lessons}", f"The assignments of these lessons are in `notebooks/`: {named}.")
        .replace("{python}", ".".join(map(str, sys.version_info[:2])))
        .replace("{book}", f"The book: {address}" if address else "Your instructor says where you can read the book.")
    )


def _until(lesson: str, own: Settings) -> str:
    due = own.of(lesson).due
    return f" (due {own.local(due):%Y-%m-%d, %H:%M})" if due else ""
