"""nbgrader's exchange as the instructor uses it: `nbgrader collect` and `nbgrader release_feedback`.

Everybody can put anything into the exchange's folder `inbound`, under any name. nbgrader follows links there with the
rights of whoever collects, believes the name that a folder bears, and stops at the first thing that is broken. Here
only folders and regular files are copied, a submission counts only if it comes from the student whose name it bears,
and what is wrong with one submission stops no other.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pwd
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nbgrader.exchange.default import ExchangeCollect, ExchangeReleaseFeedback
from nbgrader.utils import parse_utc

from autograder.grade import limits
from autograder.grade.limits import printable
from autograder.grade.nbgrader import lock, submission_files

#: By how much the times of a submission may differ: it takes a while to copy one.
SLACK = timedelta(minutes=10)

#: What a program runs only because of its name, in the folder in which it is called.
RUN_BY_NAME = re.compile(r"\.(py|pyc|pyd|so|pth)$|_config\.json$", re.IGNORECASE)

#: Stands for the name of a submission that is not collected.
_NOBODY = ""


class Collect(ExchangeCollect):
    """Collects each student's newest submission."""

    src_records: list[dict[str, Any]]

    def start(self) -> None:
        """As nbgrader's, while nobody else writes into the course."""
        with _alone(self, "nbgrader collect"):
            super().start()

    def init_src(self) -> None:
        """As nbgrader's, without the submissions that cannot be what they say."""
        _expect_no_other_course(self)
        self._owners: dict[str, set[int]] = {}
        super().init_src()
        found = {record["username"]: record for record in self.src_records}
        self.src_records = [
            record for name, record in found.items() if name != _NOBODY and not self._has_several_owners(name)
        ]
        for record in self.src_records:  # the newest by their names; from here on the time is that which counts
            with contextlib.suppress(OSError):
                path = os.path.join(self.inbound_path, record["filename"])
                changed = datetime.fromtimestamp(os.lstat(path).st_ctime, UTC).replace(tzinfo=None)
                if changed - record["timestamp"] > SLACK:
                    record["timestamp"] = changed

    def _path_to_record(self, path: str) -> dict[str, Any]:
        why = self._refuse(path)
        if not why:
            return super()._path_to_record(path)
        self.log.warning("%s is not collected: %s", printable(os.path.basename(path)), why)
        return {"username": _NOBODY, "filename": "", "timestamp": datetime.min}

    def _refuse(self, path: str) -> str:
        """Why a folder in `inbound` is not a submission of the student whose name it bears; '' if it is one."""
        student, lesson, time = [*os.path.basename(path).rsplit("+", 3), ""][:3]
        try:
            found = os.lstat(path)
        except OSError as error:  # it may have been there a moment ago
            return str(error.strerror)
        if not stat.S_ISDIR(found.st_mode):
            return "it is not a folder"
        if not (lesson == self.coursedir.assignment_id and _is_time(time)):
            return "its name is not STUDENT+LESSON+TIME"
        if not limits.is_students_name(student):
            return "its name is not a student's"
        if self.check_owner:
            self._owners.setdefault(student, set()).add(found.st_uid)
            if _account(student) not in (None, found.st_uid):
                return f"it does not belong to the account {student}"
        return ""

    def _has_several_owners(self, student: str) -> bool:
        """Have several accounts handed in under a name that is not an account's? Nobody here knows whose it is."""
        owners = sorted(self._owners.get(student, set()))
        if _account(student) is not None or len(owners) < 2:
            return False
        numbers = ", ".join(map(str, owners))
        self.log.error(
            "Nothing of %s is collected: the accounts %s have handed in under this name. Remove from %s what is not "
            "the student's.",
            *(student, numbers, self.inbound_path),
        )
        return True

    def copy_files(self) -> None:
        """As nbgrader's, for one student after the other."""
        records = self.src_records
        for record in records:
            self.src_records = [record]
            with _no_other_stopped(self, "collected", record["username"]):
                super().copy_files()

    def do_copy(self, src: str, dest: str, log: Any = None) -> None:
        """Copy the folders and regular files of a submission; everything else is named and left out."""
        top = os.open(src, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.makedirs(dest)
            self._copy_files_of(top, Path(src), Path(dest))
            self._write_latest_time(os.path.basename(src), os.fstat(top).st_ctime, Path(dest, "timestamp.txt"))
        finally:
            os.close(top)
        if self.coursedir.groupshared:
            self.set_perms(dest, 0o664, 0o2775)

    def _write_latest_time(self, name: str, changed: float, file: Path) -> None:
        """Let the latest of three times count: the folder's name and its file say what the student likes.

        changed: when the system last saw a change of the folder, which nobody can set.
        """
        student, _, said = name.rsplit("+", 3)[:3]
        times = {"the folder's name": _parsed(said), "the system": datetime.fromtimestamp(changed, UTC)}
        with contextlib.suppress(OSError, UnicodeDecodeError):
            times["timestamp.txt"] = _parsed(file.read_text(encoding="utf-8-sig").strip())
        known = {who: time for who, time in times.items() if time is not None}
        latest = max(known.values())
        if latest - min(known.values()) > SLACK:
            told = ", ".join(f"{who} says {time:%Y-%m-%d %H:%M}" for who, time in known.items())
            self.log.warning("%s: the times differ, and the latest one counts (UTC): %s", printable(student), told)
        if latest - min(known.values()) > SLACK or "timestamp.txt" not in known:
            file.write_text(f"{latest:%Y-%m-%d %H:%M:%S.%f} UTC\n", encoding="utf-8")

    def _copy_files_of(self, top: int, src: Path, dest: Path) -> None:
        left = 1000 * self.coursedir.max_dir_size
        for number, (place, name, folder) in enumerate(submission_files.files_below(top)):
            if number >= limits.NAMES or place.count(os.sep) >= limits.DEPTH:
                self.log.warning("%s: too many files, or too deep ones: the rest is left out", printable(str(src)))
                return
            if not self._is_wanted(name, place):
                continue
            content = submission_files.read(name, min(left, 1000 * self.coursedir.max_file_size), folder)
            if content is None:
                where = printable(str(src / place / name))
                self.log.warning("%s is left out: it is too large, cannot be read, or is not a regular file", where)
                continue
            left -= len(content)
            (dest / place).mkdir(parents=True, exist_ok=True)
            (dest / place / self._harmless(name)).write_bytes(content)

    def _harmless(self, name: str) -> str:
        """The name under which a file is kept: `json.py.txt` for `json.py`, unless the course's settings ask for it.

        Python takes modules, and nbgrader its settings, from the folder in which somebody calls them.
        """
        wanted = self.config.RunCells.get("data_files", [])
        if not RUN_BY_NAME.search(name) or any(fnmatch.fnmatch(name, pattern) for pattern in wanted):
            return name
        return f"{name}.txt"

    def _is_wanted(self, name: str, place: str) -> bool:
        """Is a file to be copied, by nbgrader's settings `ignore` and `include`?"""
        parts, settings = [*Path(place).parts, name], self.coursedir
        ignored = any(fnmatch.fnmatch(part, pattern) for part in parts for pattern in settings.ignore)
        return not ignored and any(fnmatch.fnmatch(name, pattern) for pattern in settings.include)


class ReleaseFeedback(ExchangeReleaseFeedback):
    """Releases the feedback of one student after the other."""

    def start(self) -> None:
        """As nbgrader's, of pages that are up to date, while nobody else writes into the course."""
        from autograder.grade.nbgrader.grade_submission import follow_gradebook

        with _alone(self, "nbgrader release_feedback"):
            follow_gradebook(self.config, self.coursedir)
            super().start()

    def init_src(self) -> None:
        """As nbgrader's."""
        _expect_no_other_course(self)
        super().init_src()

    def copy_files(self) -> None:
        """As nbgrader's. A student whose submission did not come through the exchange is named."""
        feedback = Path(self.coursedir.root, self.coursedir.feedback_directory)
        names = [path.name for path in sorted(feedback.glob("*"))]
        lesson = self.coursedir.assignment_id
        for student in fnmatch.filter(names, self.coursedir.student_id or "*"):
            self.src_path = str(feedback / student / lesson)
            with _no_other_stopped(self, "released", student):
                super().copy_files()


@contextlib.contextmanager
def _alone(exchange: Any, what: str) -> Iterator[None]:
    """Inside, `what` is done under the lock of the course; ExchangeError if somebody else holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.held(Path(exchange.coursedir.root), what))
        except lock.CourseInUseError as error:
            exchange.fail(str(error))
        yield


def _expect_no_other_course(exchange: Any) -> None:
    """ExchangeError if somebody may have put a folder of their own in the place of the course's.

    Everybody who may write into a folder may rename what is in it, unless the folder is sticky, like /tmp. nbgrader
    wants the exchange to be writable by everybody.
    """
    found, course = os.stat(exchange.root), os.path.join(exchange.root, exchange.coursedir.course_id)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        exchange.fail(f"Everybody can replace the course in {exchange.root}: call `chmod +t {exchange.root}`")
    for folder in (course, os.path.join(course, "inbound")):
        if os.path.islink(folder) or (os.path.isdir(folder) and os.geteuid() not in (0, os.stat(folder).st_uid)):
            exchange.fail(f"{folder} is not yours: somebody may have put it there")


@contextlib.contextmanager
def _no_other_stopped(exchange: Any, done: str, student: str) -> Iterator[None]:
    """Say what went wrong with one student, and go on."""
    try:
        yield
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}")
        exchange.log.error("%s is not %s: %s", printable(student), done, why)


def _is_time(text: str) -> bool:
    """Does nbgrader read this as a time?"""
    return _parsed(text) is not None


def _parsed(text: str) -> datetime | None:
    """A time as nbgrader reads it; None if it reads none."""
    with contextlib.suppress(Exception):  # the parser that it uses names no kinds
        return parse_utc(text).replace(tzinfo=UTC)
    return None


def _account(name: str) -> int | None:
    """The number of the account of this name on this machine, if there is one."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return None
