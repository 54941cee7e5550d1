"""Which files a submission's cells find next to the notebook."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import nbformat

from autograder.grading import limits
from autograder.lessons.release import AGENTS


def lesson_notebook(source: Path) -> nbformat.NotebookNode:
    """The instructor's notebook of a lesson; ValueError if it is missing."""
    if not source.is_file():
        raise ValueError(f"{source} is needed for grading: the grade cells build on its setup cells")
    return nbformat.read(source, as_version=4)


def companion_files(folder: Path) -> dict[str, bytes]:
    """The other files in a lesson's folder, programs included: name → bytes. No notebooks, no hidden files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
        if path.is_file() and not hidden and path.suffix != ".ipynb":
            found[str(name)] = path.read_bytes()
    return found


#: What nbgrader's exchange puts next to a notebook. Without them it cannot give back the feedback.
EXCHANGE_FILES = ("timestamp.txt", "submission_secret.txt")


def exchange_files(folder: Path) -> list[Path]:
    """The exchange's own files in a submission's folder. Its student can change them: no links, nothing large."""
    paths = [] if folder.is_symlink() else [folder / name for name in EXCHANGE_FILES]
    return [path for path in paths if path.is_file() and not path.is_symlink() and path.stat().st_size <= 1000]


def submitted_files(folder: Path, patterns: list[str]) -> tuple[dict[str, bytes], list[str]]:
    """The declared data files of a submission, name → bytes; and for every other file why it was left out."""
    taken: dict[str, bytes] = {}
    left_out: list[str] = []
    for path in sorted(folder.rglob("*"))[:1000] if folder.is_dir() and not folder.is_symlink() else []:
        name = str(path.relative_to(folder))
        expected = (f"{folder.name}.ipynb", AGENTS.name, *EXCHANGE_FILES)
        if name in expected or any(part.startswith(".") for part in Path(name).parts):
            continue
        if path.is_symlink() or any((folder / parent).is_symlink() for parent in Path(name).parents):
            left_out.append(f"{name}: a link")
        elif path.is_dir():
            continue
        elif not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            left_out.append(f"{name}: not asked for")
        elif not path.is_file() or path.stat().st_size > limits.DATA_FILE or len(taken) >= limits.DATA_FILES:
            left_out.append(f"{name}: too large, one file too many, or not a regular file")
        elif sum(map(len, taken.values())) + path.stat().st_size > limits.ALL_DATA:
            left_out.append(f"{name}: all files together are too large ({limits.ALL_DATA >> 20} MiB at most)")
        elif path.suffix in (".py", ".pth", ".so", ".pyc", ".ipynb"):
            left_out.append(f"{name}: a program, not data")
        else:
            taken[name] = path.read_bytes()
    return taken, left_out
