"""What is in a submission's folder, and which files its cells find next to the notebook.

A student can leave anything there. Nothing here follows a link, and nothing raises an exception because of what it
finds: no right to read, names that are not text, folders in folders without end.
"""

from __future__ import annotations

import codecs
import contextlib
import datetime
import fnmatch
import hashlib
import itertools
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import nbformat

from autograder.grade import limits
from autograder.lesson import adapted, course_settings, notebook
from autograder.lesson.notebook import AGENTS


def lesson_notebook(source: Path, own: course_settings.Settings) -> nbformat.NotebookNode:
    """The instructor's notebook of a lesson, with the course's own settings; ValueError if it is missing."""
    if not source.is_file():
        raise ValueError(f"{source} is needed for grading: the grade cells build on its setup cells")
    return adapted.adapted(notebook.named(nbformat.read(source, as_version=4)), source.parent.name, own)


#: Names that a browser, an editor or a system gives to a notebook's file, such as `x.ipynb.txt` and `x.ipynb (1)`.
LIKE_A_NOTEBOOK = re.compile(r"\.ipynb([.~ _-][^/]*)?$", re.IGNORECASE)

#: What nbgrader's exchange puts next to a notebook. Without them it cannot give back the feedback.
EXCHANGE_FILES = ("timestamp.txt", "submission_secret.txt")


class NotTakenError(Exception):
    """Why a file is not taken: the rest of a sentence that begins with its name."""


@dataclass(frozen=True)
class Submission:
    """What is used of a submission, as it was when it was read, once.

    notebook: what its file holds; None if there is none, and then `problem` says why. remarks: on how it was found.
    files: the declared data files. left_out: a line for each other file. exchange: the exchange's own files.
    """

    notebook: bytes | None
    problem: str = ""
    remarks: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    exchange: dict[str, bytes] = field(default_factory=dict)

    def digest(self) -> str:
        """Another one whenever anything of this is another."""
        named = {"notebook": self.notebook or b"", **self.exchange, **self.files}
        parts = [(name, hashlib.sha256(content).hexdigest()) for name, content in named.items()]
        parts += [(self.problem, ""), *((line, "") for line in (*self.remarks, *self.left_out))]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def read_folder(folder: Path, patterns: list[str]) -> Submission:
    """Read once what is used of a submission's folder, `…/STUDENT/LESSON`, whatever happens in it meanwhile.

    patterns: of the data files.
    """
    try:
        with opened(folder) as top:
            submission, graded = _notebook_in(top, f"{folder.name}.ipynb")
            exchange = _exchange_files(top)
            files, left_out = _submitted_files(top, patterns, graded)
            return replace(submission, files=files, left_out=left_out, exchange=exchange)
    except NotTakenError as error:
        return Submission(None, f"What was handed in {error}.")


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A descriptor of a submission's folder; neither it nor its student's folder may be a link.

    A descriptor stays what it is if somebody puts something else in the folder's place. NotTakenError if there is none.
    """
    above = None
    with contextlib.ExitStack() as stack:
        for name in (folder.parent.parent, folder.parent.name, folder.name):
            flags = os.O_RDONLY | os.O_DIRECTORY | (0 if above is None else os.O_NOFOLLOW)
            try:
                above = os.open(name, flags, dir_fd=above)
            except OSError as error:
                raise NotTakenError(_why(name, above, error)) from None
            stack.callback(os.close, above)
        assert above is not None
        yield above


def content(name: str, most: int, folder: int) -> bytes:
    """What the regular file of this name, in a folder that is open, holds; NotTakenError if it cannot be had.

    It may belong to whoever owns the folder, to root and to this user, and to nobody who owns another student's folder
    beside this one: with a second name for a file, somebody could hand in what another one has written.
    """
    try:
        # O_NONBLOCK: a pipe that nobody writes to is opened at once.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise NotTakenError(_why(name, folder, error)) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise NotTakenError("is not a regular file: hand in the notebook itself")
    with open(descriptor, "rb") as file:
        if found.st_uid not in (os.fstat(folder).st_uid, os.geteuid(), 0) and _is_another_students(found, folder):
            raise NotTakenError("belongs to another student: hand in a file of your own")
        try:
            read = b"" if found.st_size > most else file.read(most + 1)  # it may have grown
        except OSError as error:
            raise NotTakenError(f"cannot be read ({error.strerror}): hand it in again") from None
        if found.st_size > most or len(read) > most:
            raise NotTakenError("is too large: clear the outputs, save, and hand it in again")
        return read


def _why(name: Path | str, folder: int | None, error: OSError) -> str:
    """Why something could not be opened."""
    with contextlib.suppress(OSError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            return "is a link: hand in the notebook itself"
    return f"cannot be read ({error.strerror}): hand it in again"


def _is_another_students(file: os.stat_result, folder: int) -> bool:
    """Does the owner of a file own another folder beside the student's, and not this one? folder: the lesson's."""
    own = os.stat("..", dir_fd=folder)
    if file.st_uid == own.st_uid:
        return False
    beside = os.open("../..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
    try:
        with os.scandir(beside) as entries:
            others = [one.stat(follow_symlinks=False) for one in entries]
    finally:
        os.close(beside)
    return any(other.st_uid == file.st_uid and other.st_ino != own.st_ino for other in others)


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


def files_below(top: int, depth: int = limits.DEPTH) -> Iterator[tuple[str, str, int]]:
    """What is not a folder, below an open one: the folder it is in, its name, and a descriptor of that folder.

    A descriptor stays what it is if somebody puts a link in the folder's place meanwhile. Folders that lie deeper than
    `depth` are not looked at, nor one that may be listed and not entered.
    """
    with contextlib.suppress(PermissionError):  # fwalk raises it for the first folder alone
        for place, folders, names, inner in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            links = [name for name in folders if _is_link(name, inner)]
            folders[:] = sorted(folders) if place.count(os.sep) < depth else []
            for name in sorted([*links, *names]):
                yield os.path.normpath(place), name, inner


def _is_link(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode)
    return False


def _notebook_in(top: int, name: str) -> tuple[Submission, str]:
    """The notebook of this name in an open folder, or the only one beside it or deeper; and where it is.

    The only one is the only one of this name, or the only one at all.
    """
    remarks, place, folder, graded = [], name, top, name
    with contextlib.ExitStack() as stack:
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                raise FileNotFoundError  # what is in it is found like what is in any other folder
        except FileNotFoundError:
            others = sorted(_others(top), key=lambda one: not limits.COULD_BE_WORK.search(one[1]))
            notebooks = [one for one in others if LIKE_A_NOTEBOOK.search(one[1])]
            of_this_name = [one for one in notebooks if one[1] == name]
            found = of_this_name if len(of_this_name) == 1 else notebooks
            named = found or others or [one for one in _others(top, hidden=True) if LIKE_A_NOTEBOOK.search(one[1])]
            names = [os.path.normpath(os.path.join(*one)) for one in named]
            if len(found) != 1:
                there = ", and the folder holds no other notebook: hand it in again"
                if names:
                    what = "one under that name" if found else "the notebook itself"
                    there = f" (found {limits.printable(', '.join(names[:5]))}): hand in {what}"
                return Submission(None, f"There is no {name}{there}."), name
            graded = names[0]
            remarks, place = [f"{limits.printable(graded)} was graded, since there is no {name}."], found[0][1]
            with contextlib.suppress(OSError):  # it may be gone: the next step says so
                folder = _folder_below(top, found[0][0], stack)
        except OSError:
            pass  # the next step says why
        try:
            return Submission(content(place, 4 * limits.FILE + 1, folder), remarks=remarks), graded
        except NotTakenError as error:
            return Submission(None, f"The file {error}."), graded


def _others(top: int, hidden: bool = False) -> Iterator[tuple[str, str]]:
    """What a student may have put into an open folder or deeper, (folder, name): no folders, no links.

    hidden: instead, what a system or an editor has put there.
    """
    for place, name, inner in itertools.islice(files_below(top), limits.SCANNED):
        parts = () if place == "." else place.split(os.sep)
        of_a_system = any(part.startswith(limits.OF_A_SYSTEM) for part in (*parts, name))
        if of_a_system == hidden and not _is_link(name, inner) and name not in (*EXCHANGE_FILES, AGENTS.name):
            yield place, name


def _folder_below(top: int, place: str, stack: contextlib.ExitStack) -> int:
    """A descriptor of a folder below an open one, which `stack` closes. No part of its path may be a link."""
    for part in place.split(os.sep):
        top = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        stack.callback(os.close, top)
    return top


def exchange_files(folder: Path) -> dict[str, bytes]:
    """The exchange's own files in a submission's folder. Its student can change them: no links, nothing large."""
    with contextlib.suppress(NotTakenError), opened(folder) as top:
        return _exchange_files(top)
    return {}


def _exchange_files(top: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in EXCHANGE_FILES:
        with contextlib.suppress(NotTakenError):
            found[name] = content(name, 1000, top)
    return found


def submitted_at(files: dict[str, bytes]) -> datetime.datetime | None:
    """The time in the exchange's file, in UTC; None if there is none, or none that can be read in one way only."""
    with contextlib.suppress(Exception):  # a student can write anything there, and dateutil raises many things
        text = files["timestamp.txt"]
        wide = text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return _in_utc(text.decode("utf-16" if wide else "utf-8-sig").strip())
    return None


def _in_utc(text: str) -> datetime.datetime:
    """A time as programs and people write it, as nbgrader keeps it: in UTC, without saying so; an exception for others.

    nbgrader's own reader takes 2.11.2026 for a day in February, a zone that it does not know for UTC, -0500 for
    seconds, and what is missing from today.
    """
    from nbgrader.utils import dateutil

    def zone(name: str | None, seconds: int | None) -> datetime.tzinfo:
        if seconds is not None:
            return datetime.timezone(datetime.timedelta(seconds=seconds))
        tz = dateutil.tz
        found = tz.UTC if name is None else tz.tzlocal() if name in time.tzname else tz.gettz(name)
        if found is None:
            raise ValueError(f"no such time zone: {name}")
        return found

    if re.fullmatch(r"\d{10}(\.\d+)?|\d{13}", text):  # seconds or milliseconds since 1970
        return datetime.datetime.fromtimestamp(float(text[:10]), datetime.UTC).replace(tzinfo=None)
    text = re.sub(r"^(\d{1,2})\. ?(\d{1,2})\. ?(\d{4})\b,?", r"\3-\2-\1", text)  # with dots, the day is always first
    if (slashes := re.match(r"(\d{1,2})/(\d{1,2})/", text)) and max(int(slashes[1]), int(slashes[2])) <= 12:
        raise ValueError("the day or the month may come first")
    text, last = text.rsplit(" ", 1) if re.search(r" [A-Z]\w+/\w+$", text) else (text, None)
    # What is missing would be taken from the default: then the two differ.
    times = [
        dateutil.parser.parse(text, default=datetime.datetime(*day), tzinfos=zone)
        for day in ((2000, 1, 1), (2001, 2, 2))
    ]
    if times[0] != times[1]:
        raise ValueError("no whole date")
    when = times[0].replace(tzinfo=zone(last, None)) if last else times[0]
    return when.astimezone(datetime.UTC).replace(tzinfo=None)


def has_unreadable_time(folder: Path) -> bool:
    """Does a submission's folder have a file with its time that says none?"""
    return os.path.lexists(folder / "timestamp.txt") and submitted_at(exchange_files(folder)) is None


def _submitted_files(top: int, patterns: list[str], notebook: str) -> tuple[dict[str, bytes], list[str]]:
    """The declared data files of a submission, name → bytes; and for every other file why it was left out."""
    taken: dict[str, bytes] = {}
    left_out: list[str] = []
    for number, (place, base, inner) in enumerate(files_below(top)):
        if number >= limits.SCANNED:
            left_out.append(f"… more than {limits.SCANNED:,} files: the rest was not looked at")
            break
        name = os.path.normpath(os.path.join(place, base))
        if any(part.startswith(".") for part in name.split(os.sep)):
            continue
        if name in (notebook, AGENTS.name, *EXCHANGE_FILES):
            continue
        why = "a link" if _is_link(base, inner) else _refused(name, patterns, taken)
        why = f"only {limits.printable(notebook)} is graded" if why and LIKE_A_NOTEBOOK.search(name) else why
        if not why:
            left = limits.ALL_DATA - sum(map(len, taken.values()))
            try:
                taken[name] = content(base, min(limits.DATA_FILE, left), inner)
            except NotTakenError:
                why = "too large, cannot be read, or not a regular file"
                if left < _size(base, inner) <= limits.DATA_FILE:
                    why = f"all files together are too large ({limits.ALL_DATA >> 20} MiB at most)"
        if why:
            left_out.append(f"{limits.printable(name)}: {why}")
    if len(left_out) > limits.NAMES:
        left_out[limits.NAMES :] = [f"… and {len(left_out) - limits.NAMES:,} more files"]
    return dict(sorted(taken.items())), sorted(left_out, key=lambda line: (line.startswith("…"), line))


def next_to(ours: dict[str, bytes], theirs: dict[str, bytes]) -> dict[str, bytes]:
    """The lesson's files and, of a submission's, those that do not want the place of one or of its folder."""

    def is_free(name: str) -> bool:
        return not any(
            name == other or f"{name}/".startswith(f"{other}/") or other.startswith(f"{name}/") for other in ours
        )

    return {**{name: content for name, content in theirs.items() if is_free(name)}, **ours}


def _size(name: str, folder: int) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(name, dir_fd=folder).st_size
    return 0


def _refused(name: str, patterns: list[str], taken: dict[str, bytes]) -> str:
    """Why a file is not even looked at; '' if it is."""
    if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
        return "not asked for"
    if not name.isprintable():
        return "its name is not plain text"
    if len(taken) >= limits.DATA_FILES:
        return "one file too many"
    return "a program, not data" if Path(name).suffix in (".py", ".pth", ".so", ".pyc", ".ipynb") else ""
