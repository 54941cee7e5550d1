"""What is in a submission's folder, and which files its cells find next to the notebook.

A student can leave anything there. Nothing here follows a link, and nothing raises an exception because of what it
finds: no right to read, names that are not text, folders in folders without end.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import hashlib
import itertools
import os
import stat
from pathlib import Path

import nbformat

from autograder.grading import limits
from autograder.lessons import adapted, course_settings, notebook
from autograder.lessons.release import AGENTS


def lesson_notebook(source: Path, own: course_settings.Settings) -> nbformat.NotebookNode:
    """The instructor's notebook of a lesson, with the course's own settings; ValueError if it is missing."""
    if not source.is_file():
        raise ValueError(f"{source} is needed for grading: the grade cells build on its setup cells")
    return adapted.adapted(notebook.named(nbformat.read(source, as_version=4)), source.parent.name, own)


#: What nbgrader's exchange puts next to a notebook. Without them it cannot give back the feedback.
EXCHANGE_FILES = ("timestamp.txt", "submission_secret.txt")


def contents(folder: Path) -> dict[str, Path]:
    """What is below a submission's folder, in order: name → path. Without hidden names, and without folders.

    A folder that lies too deep is there like a file.
    """
    found: dict[str, Path] = {}
    todo = [] if os.path.islink(folder) else [("", folder, 0)]
    while todo and len(found) < limits.NAMES:
        above, place, depth = todo.pop()
        for name in _names_in(place):
            path = place / name
            if name.startswith("."):
                continue
            if os.path.isdir(path) and not os.path.islink(path) and depth < limits.DEPTH:
                todo.append((f"{above}{name}/", path, depth + 1))
            else:
                found[f"{above}{name}"] = path
    return dict(sorted(found.items())[: limits.NAMES])


def digest(folder: Path) -> str:
    """Another one whenever something in a submission's folder is another."""
    found = hashlib.sha256()
    for name, path in contents(folder).items():
        content = read(path, limits.FILE)
        found.update(os.fsencode(name) + b"\0" + hashlib.sha256(_state(path) if content is None else content).digest())
    return found.hexdigest()


def read(path: Path | str, most: int, folder: int | None = None) -> bytes | None:
    """What a regular file of at most `most` bytes holds; None for anything else, and for what cannot be read.

    folder: a descriptor of the folder in which `path` lies; then the file must also belong to the folder's owner.
    """
    with contextlib.suppress(OSError):
        # O_NONBLOCK: a pipe that nobody writes to is opened at once.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            owned = folder is None or found.st_uid == os.fstat(folder).st_uid
            if stat.S_ISREG(found.st_mode) and found.st_size <= most and owned:
                content = file.read(most + 1)  # it may have grown
                return content if len(content) <= most else None
    return None


def _state(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        found = path.lstat()
        return f"{found.st_mode} {found.st_size} {found.st_mtime_ns}".encode()
    return b"nothing"


def _names_in(folder: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return sorted(entry.name for entry in itertools.islice(entries, limits.NAMES))
    return []


def exchange_files(folder: Path) -> dict[str, bytes]:
    """The exchange's own files in a submission's folder. Its student can change them: no links, nothing large."""
    found = {} if os.path.islink(folder) else {name: read(folder / name, 1000) for name in EXCHANGE_FILES}
    return {name: content for name, content in found.items() if content is not None}


def submitted_at(files: dict[str, bytes]) -> datetime.datetime | None:
    """The time in the exchange's file, in UTC; None if there is none, or none that can be read."""
    from nbgrader.utils import parse_utc

    with contextlib.suppress(Exception):  # a student can write anything there, and dateutil raises many things
        return parse_utc(files["timestamp.txt"].decode("utf-8-sig").strip())
    return None


def has_unreadable_time(folder: Path) -> bool:
    """Does a submission's folder have a file with its time that says none?"""
    return os.path.lexists(folder / "timestamp.txt") and submitted_at(exchange_files(folder)) is None


def submitted_files(folder: Path, patterns: list[str]) -> tuple[dict[str, bytes], list[str]]:
    """The declared data files of a submission, name → bytes; and for every other file why it was left out."""
    taken: dict[str, bytes] = {}
    left_out: list[str] = []
    for name, path in contents(folder).items():
        if name in (f"{folder.name}.ipynb", AGENTS.name, *EXCHANGE_FILES):
            continue
        why, content = _refused(name, path, patterns, taken), None
        if not why:
            content = read(path, limits.DATA_FILE)
            why = "" if content is not None else "too large, cannot be read, or not a regular file"
        if content is not None and sum(map(len, taken.values())) + len(content) > limits.ALL_DATA:
            why = f"all files together are too large ({limits.ALL_DATA >> 20} MiB at most)"
        if why:
            left_out.append(f"{limits.printable(name)}: {why}")
        elif content is not None:
            taken[name] = content
    return taken, left_out


def next_to(ours: dict[str, bytes], theirs: dict[str, bytes]) -> dict[str, bytes]:
    """The lesson's files and, of a submission's, those that do not want the place of one or of its folder."""

    def is_free(name: str) -> bool:
        return not any(
            name == other or f"{name}/".startswith(f"{other}/") or other.startswith(f"{name}/") for other in ours
        )

    return {**{name: content for name, content in theirs.items() if is_free(name)}, **ours}


def _refused(name: str, path: Path, patterns: list[str], taken: dict[str, bytes]) -> str:
    """Why a file is not even looked at; '' if it is."""
    if os.path.islink(path):
        return "a link"
    if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
        return "not asked for"
    if not name.isprintable():
        return "its name is not plain text"
    if len(taken) >= limits.DATA_FILES:
        return "one file too many"
    return "a program, not data" if path.suffix in (".py", ".pth", ".so", ".pyc", ".ipynb") else ""
