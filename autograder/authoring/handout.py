"""`python -m autograder handout`: the folder and the zip that students get, without answers and hidden tests.

Everything in them is listed here, is made from what is listed here, or is in a lesson's `files/`: what somebody leaves
elsewhere in the repository cannot slip in. The notebooks are made anew from the solutions, so that nobody's own work in
`notebooks/` is handed out.
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from pathlib import Path
from typing import Any

import yaml

from autograder.lessons import notebook, release

#: Where the folder goes; the zip is next to it.
FOLDER = notebook.ROOT / "_build" / "handout"
#: What the zip unpacks to.
NAME = "distributed-training"
#: Files of the repository that are handed out as they are, besides the modules of `ranks`.
COPIED = ("LICENSE", "LICENSE-CODE", "LICENSE-TEXT", "requirements.lock")
#: Patterns of what is handed out of the folder `ranks`.
RANKS = ("*.py", "py.typed", "README.md")
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
    parser.set_defaults(run=command)


def command(arguments: argparse.Namespace) -> int:
    """Run the subcommand; its exit status."""
    for line in write(FOLDER, arguments.lessons):
        print(line)
    return 0


def write(folder: Path, lessons: list[str] | None = None) -> list[str]:
    """Write the folder for these lessons and its zip, in the place of older ones; what to print about it.

    No lessons: all but those in `LATER`. UnknownLessonError for a lesson that does not exist.
    """
    picked = notebook.pick(lessons)
    held_back = [] if lessons else [name for name in picked if name in LATER]
    picked = [name for name in picked if name not in held_back]
    made = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    notes = [f"{name} is left out: {LATER[name]}" for name in held_back]
    _write_notebooks(made, picked)
    for path in (path for pattern in RANKS for path in sorted((notebook.ROOT / "ranks").glob(pattern))):
        _copy(path, made / "ranks" / path.name)
    for name in COPIED:
        _copy(notebook.ROOT / name, made / name)
    (made / "pyproject.toml").write_text(_project(), encoding="utf-8")
    (made / "README.md").write_text(_readme(picked), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    packed = folder.with_suffix(".zip")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, f"{NAME}/{path.relative_to(folder)}")
    return [*notes, f"Hand out {packed} ({len(picked)} lessons), which is the folder {folder}."]


def _write_notebooks(made: Path, lessons: list[str]) -> None:
    """Make the notebooks of these lessons below a folder, with the files that they find beside themselves."""
    with release.generated(lessons) as generated:
        for lesson, source in generated:
            for name in (f"{lesson}.ipynb", release.AGENTS.name, *notebook.companions(notebook.SOLUTIONS / lesson)):
                _copy(source / name, made / "notebooks" / lesson / name)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _project() -> str:
    """The part of pyproject.toml about `ranks` and what the notebooks import, without the settings of tools."""
    return (notebook.ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\n[tool.ruff]\n")[0]


def _readme(lessons: list[str]) -> str:
    """What students read first."""
    config = yaml.safe_load((notebook.ROOT / "_config.yml").read_text(encoding="utf-8"))
    address = config["sphinx"]["config"].get("html_baseurl")
    named = ", ".join(f"`{lesson}`" for lesson in lessons)
    return (
        README.read_text(encoding="utf-8")
        .replace("{lessons}", f"The assignments of these lessons are in `notebooks/`: {named}.")
        .replace("{book}", f"The book: {address}" if address else "Your instructor says where you can read the book.")
    )
