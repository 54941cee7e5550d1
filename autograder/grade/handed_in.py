"""What lies in a course's `submitted/`: the folders that are graded, and all else that could be somebody's work."""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from autograder.grade import limits
from autograder.grade.limits import printable

#: What is said of one in the wrong place, of so many of them at most.
EXPECTED = "put it at submitted/STUDENT/LESSON/LESSON.ipynb"
MOST_NAMED = 10


def could_be_work(name: str) -> bool:
    """Is this the name of a file that somebody may have handed in?"""
    return bool(limits.COULD_BE_WORK.search(name)) and not name.startswith(limits.OF_A_SYSTEM)


def folders(root: Path) -> list[tuple[str, str]]:
    """(student, name) of the folders in the students' folders, in order; links count as folders."""
    found = []
    for student in sorted((root / "submitted").glob("*")):
        with contextlib.suppress(OSError), os.scandir(student) as entries:
            # A student's folder may forbid to look at more than the names and kinds of what is in it.
            names = [one.name for one in entries if one.is_symlink() or one.is_dir(follow_symlinks=False)]
            found += [(student.name, name) for name in names]
    return sorted(found)


def misplaced_files(root: Path, lessons: Collection[str]) -> list[str]:
    """Files below `submitted/` that could be somebody's work and are graded nowhere, in order.

    They lie too high or too deep, or in a folder whose name is not a lesson's. Links are not followed.
    """
    found: list[str] = []
    for folder, below, names in os.walk(root / "submitted"):
        place = Path(folder).relative_to(root / "submitted").parts
        below[:] = sorted(name for name in below if not name.startswith(limits.OF_A_SYSTEM))
        if len(place) >= limits.DEPTH or len(found) >= limits.NAMES:
            below[:] = []
        if len(place) == 2 and place[1] in lessons:
            below[:] = []  # what lies in a submission's folder stands on its page, and in the report
        else:
            found += ["/".join(("submitted", *place, name)) for name in names if could_be_work(name)]
    return sorted(found)


def use_usual_accents(root: Path) -> None:
    """Rename students' folders whose accents are signs of their own, as macOS writes them, if the usual name is free.

    No list of names from elsewhere would find them.
    """
    for student in sorted((root / "submitted").glob("*")):
        usual = student.with_name(unicodedata.normalize("NFC", student.name))
        if usual != student and not usual.exists():
            student.rename(usual)


def problems(root: Path, lessons: Collection[str]) -> Iterator[str]:
    """What is not graded, or not as it seems, in a line each."""
    from autograder.grade.nbgrader import submission_files

    for student in sorted((root / "submitted").glob("*")):
        folder = f"submitted/{printable(student.name)}"
        why = limits.why_no_student(student.name)
        if student.is_dir() and not os.access(student, os.R_OK):
            yield f"{folder} cannot be read and is skipped"
        elif student.is_dir() and why and not student.name.startswith(limits.OF_A_SYSTEM):
            yield f"{folder!r} is skipped: {why}"
    alike: dict[str, str] = {}
    for name in sorted(path.name for path in (root / "submitted").glob("[!.]*") if path.is_dir()):
        if (other := alike.setdefault(name.casefold(), name)) != name:
            yield f"submitted/{printable(other)} and submitted/{printable(name)} are graded as two students: is it one?"
    no_lessons: Counter[str] = Counter()
    for job in folders(root):
        place = printable("/".join(("submitted", *job)))
        if job[1] in lessons and submission_files.has_unreadable_time(root.joinpath("submitted", *job)):
            yield f"the time in {place}/timestamp.txt cannot be read: no late penalty was computed"
        elif job[1] not in lessons and not any(part.startswith(limits.OF_A_SYSTEM) for part in job):
            no_lessons[job[0]] += 1
            if no_lessons[job[0]] <= MOST_NAMED:
                yield f"{place} is not a lesson and is skipped: check its name"
    for name, count in no_lessons.items():
        if count > MOST_NAMED:
            yield f"… and {count - MOST_NAMED:,} more folders in submitted/{printable(name)} are no lessons"
    found = misplaced_files(root, lessons)
    yield from (f"{printable(file)} is not graded: {EXPECTED}" for file in found[:MOST_NAMED])
    if found[MOST_NAMED:]:
        yield f"… and {len(found) - MOST_NAMED} more files, which the report lists"


def gone(root: Path, lessons: Collection[str], jobs: Collection[tuple[str, str]]) -> Iterator[str]:
    """A line on graded work that is not in `submitted/` any more. jobs: what is there, (student, lesson)."""
    graded = (path for path in (root / "autograded").glob("[!.]*/*") if path.name in lessons)
    found = sorted(f"{path.parent.name} {path.name}" for path in graded if (path.parent.name, path.name) not in jobs)
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if found[MOST_NAMED:] else ""
        names = printable(", ".join(found[:MOST_NAMED])) + more
        how = "if they have left the course, remove their folders in autograded/ and feedback/ as well"
        yield f"graded before, not in submitted/ any more, and so in no table: {names}; {how}"
