"""Keys: digests of everything that a result depends on. A result whose key is unchanged need not be computed again.

Results are a lesson's executed notebook, its grades, its audit verdicts and a chapter's outputs. A lesson's key covers
the code that all lessons share, its notebook, its checks and its known answers, and nothing of another lesson.
So after a hint is edited, only its own lesson is run, graded and audited again.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from autograder.lesson import notebook, pieces

#: What every lesson's results depend on: folders and files below the repository.
SHARED = (
    *notebook.PACKAGES,
    "autograder/lesson",
    "autograder/checks",
    "autograder/answers",
    "autograder/properties.py",
    "requirements.lock",
)
#: What a grade depends on as well.
GRADING = ("autograder/grade", "nbgrader_config.py")
#: What a verdict of the audit depends on as well.
AUDIT = ("autograder/audit", "autograder/grade")

#: A lesson's name in a chapter's cells, as in `functions("05_ddp")`.
_LESSON = re.compile(r"""["'](\d\d_[a-z0-9_]+)["']""")
#: A file of the repository, as in `notebook.ROOT / "benchmarks" / "measured" / "h100_ddp_trace.json"`.
_FILE = re.compile(r"""notebook\.ROOT((?: / ["'][\w.-]+["'])+)""")
#: That cells import something of the grader besides `autograder.lesson`.
_GRADER = re.compile(r"^\s*(?:from|import)\s+autograder\.(?!lesson\b)", re.MULTILINE)
_CELL = re.compile(r"^```\{code-cell\}.*?^```", re.MULTILINE | re.DOTALL)


def lesson_key(lesson: str, solutions: Path | None = None, more: Iterable[str] = (), verdicts: bool = True) -> str:
    """The key of a lesson.

    solutions: where its folder is, if not in the repository. more: GRADING or AUDIT. verdicts: with what its wrong
    answers are recorded to fail, on which hints depend. The audit, which makes that record, looks at it itself.
    """
    places = [notebook.ROOT / name for name in (*SHARED, *more)]
    return digest([*places, *_solution(lesson, solutions), *_own_code(lesson, verdicts)])


def of_chapter(chapter: Path) -> str:
    """The key of a chapter's outputs: the runtime, the files that its cells name, and the solutions of their functions.

    If cells import checks or known answers, also those of these lessons, and the code that all lessons share.
    """
    cells = "".join(_CELL.findall(chapter.read_text(encoding="utf-8")))
    named = set(_LESSON.findall(cells))
    used = [one for one in notebook.lessons() if one in named]
    places = [place for lesson in used for place in _solution(lesson)]
    places += [notebook.ROOT.joinpath(*re.findall(r"[\w.-]+", path)) for path in _FILE.findall(cells)]
    if _GRADER.search(cells):
        places += [notebook.ROOT / name for name in SHARED]
        places += [place for lesson in used for place in _own_code(lesson, verdicts=True)]
    shared = (*notebook.PACKAGES, "autograder/lesson/notebook.py")
    return digest([*(notebook.ROOT / name for name in shared), *places])


def digest(places: Iterable[Path]) -> str:
    """SHA-256 over Python's version and the names and bytes of these files and of all files in these folders.

    Links, compiled files and hidden files and folders do not count. A missing place counts as an empty one.
    """
    found = hashlib.sha256(sys.version.encode())
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        found.update(f"{place.name}/\0".encode())
        for path in files:
            name = path.relative_to(place) if path != place else Path(path.name)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            if path.is_file() and not path.is_symlink() and not hidden:
                state = path.stat()
                found.update(f"{name}\0".encode() + _of_file(path, state.st_mtime_ns, state.st_size))
    return found.hexdigest()


@functools.lru_cache(maxsize=10_000)
def _of_file(path: Path, changed: int, size: int) -> bytes:
    """A file's digest; read again only when its time of change or its size is another."""
    return hashlib.sha256(path.read_bytes()).digest()


def _solution(lesson: str, solutions: Path | None = None) -> list[Path]:
    """A lesson's notebook, and what it finds beside itself or is made of. solutions: as for `lesson_key`."""
    folder = solutions or notebook.SOLUTIONS
    others = [folder / other / f"{other}.ipynb" for other in pieces.PIECES] if lesson == pieces.LESSON else []
    return [*(folder / lesson / name for name in (f"{lesson}.ipynb", "files")), *others]


def _own_code(lesson: str, verdicts: bool) -> list[Path]:
    """A lesson's checks and its known answers; with the `verdicts` on these."""
    names = ["checks.py", "checks", "wrong.md", "right.py", *(["verdicts.txt"] if verdicts else [])]
    return [notebook.SOLUTIONS / lesson / name for name in names]
