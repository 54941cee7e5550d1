"""nbgrader as a library: its converters and its gradebook, with this course's settings; errors in one line."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.lesson import course_settings, notebook
from autograder.lesson.files import write_whole

if TYPE_CHECKING:
    from nbgrader.api import Gradebook as Gradebook
    from nbgrader.coursedir import CourseDirectory as CourseDirectory  # for those outside this package, too

#: nbgrader's settings for this course, in the repository's folder.
CONFIG = "nbgrader_config.py"


def settings() -> Any:
    """What `nbgrader_config.py` says, as a traitlets Config of the caller's own."""
    from traitlets.config import PyFileConfigLoader

    return PyFileConfigLoader(CONFIG, path=str(notebook.ROOT)).load_config()


def directory(config: Any) -> CourseDirectory:
    """What nbgrader knows of the folder of a course, by its configuration."""
    from nbgrader import coursedir

    return coursedir.CourseDirectory(config=config)


def course_settings_of(config: Any) -> course_settings.Settings:
    """The settings of `course.toml` in the course's folder that a configuration names."""
    return course_settings.of(directory(config).root)


#: How the file begins that `write_settings` has written.
_WRITTEN = (
    '"""nbgrader\'s settings for this course, written by `autograder grade`: those of the lessons\' repository."""\n'
)


def write_settings(root: Path, source: str) -> None:
    """Write a course's own settings file, so that nbgrader's commands there grade as ours do, and not without a jail.

    source: the folder with the solutions, as it is called from the course's. The repository's file, and one that
    somebody has written, stay as they are.
    """
    file, ours = root / CONFIG, notebook.ROOT / CONFIG
    if root == notebook.ROOT or (file.exists() and not file.read_text(encoding="utf-8").startswith(_WRITTEN)):
        return
    # nbgrader goes on without the settings after any other error, and would run submissions with the caller's rights.
    text = f"""{_WRITTEN}
from pathlib import Path

try:
    exec(compile(Path({str(ours)!r}).read_text(encoding="utf-8"), {str(ours)!r}, "exec"))
except Exception as error:
    raise SystemExit(f"{{__file__}}: {{error}}: activate the repository's environment, or run `autograder grade` again")
c.CourseDirectory.source_directory = {source!r}
"""
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_whole(file, text)


def gradebook(url: str, course_id: str) -> Gradebook:
    """The gradebook at this address, made if there is none; to be used in a `with`."""
    from nbgrader import api

    return api.Gradebook(url, course_id)


def generate_assignment(config: Any, log_file: Path | None = None) -> str:
    """Store a lesson in the gradebook, and its notebook for students in the release folder; as `convert`."""
    from nbgrader.converters import GenerateAssignment

    return convert(GenerateAssignment, config, log_file)


def convert(converter: type, config: Any, log_file: Path | None = None) -> str:
    """Run one of nbgrader's converters, as `--force` would; '' or the first line of what went wrong.

    log_file: where nbgrader's own log goes, if anywhere. nbgrader changes the working directory; it is restored.
    """
    from nbgrader.coursedir import CourseDirectory

    with logged(log_file) as log:
        running = converter(coursedir=CourseDirectory(config=config, log=log), config=config, log=log)
        running.force = True
        running.start()
    return log.problem


class Log(logging.Logger):
    """Where nbgrader logs. problem: the first error's first line, or '' if there was none."""

    problem = ""

    def __init__(self) -> None:
        super().__init__("nbgrader", level=logging.INFO)
        self.complaints = _Complaints()
        self.addHandler(self.complaints)


@contextlib.contextmanager
def logged(log_file: Path | None = None) -> Iterator[Log]:
    """Inside, nbgrader does something; what it raises is logged, and told in one line by `Log.problem`.

    An error of the database or a full disk is raised: it would meet the next submission as well. log_file: as for
    `convert`.
    """
    from sqlalchemy.exc import SAWarning

    log = Log()
    file = logging.FileHandler(log_file, encoding="utf-8") if log_file else logging.NullHandler()
    log.addHandler(file)
    before = os.getcwd()
    # nbgrader logs an error of the database, with its traceback, before it raises it.
    elsewhere = logging.getLogger("tornado.application")
    elsewhere.addFilter(_is_not_nbgraders)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # nbgrader's, about its own queries
            yield log
    except (Exception, SystemExit) as error:  # nbgrader raises SystemExit for metadata in an older format
        log.error("%s", error, exc_info=True)
        if (cause := _about_machine(error)) is not None:
            raise cause from None
        log.problem = log.complaints.first or f"{type(error).__name__}: {error}"
    finally:
        os.chdir(before)
        file.close()
        elsewhere.removeFilter(_is_not_nbgraders)


def _is_not_nbgraders(record: logging.LogRecord) -> bool:
    return record.module != "api" or not record.getMessage().startswith("Rolling back session")


@contextlib.contextmanager
def one_engine() -> Iterator[None]:
    """Inside, all of nbgrader's gradebooks of one file share SQLAlchemy's engine.

    The gradebook is opened several times for each submission. With an engine of its own, each opening compiles
    all its queries anew. While somebody else writes, such as a person who grades by hand, it waits for half a minute.
    """
    from nbgrader import api

    before = api.create_engine
    api.create_engine = functools.cache(functools.partial(before, connect_args={"timeout": 30}))
    try:
        yield
    finally:
        api.create_engine = before


def trouble_with_gradebook(error: BaseException) -> str:
    """What a person can do about an error of the gradebook's database, in one line; '' for any other error."""
    from sqlalchemy.exc import DBAPIError

    if not isinstance(error, DBAPIError):
        return ""
    said = str(error.orig)
    found = next((remedy for words, remedy in REMEDIES.items() if words in said), f"the gradebook: {said}")
    return f"{found} (what was finished is kept)"


_UPGRADE = "another version of nbgrader made gradebook.db: keep a copy of it, and run `nbgrader db upgrade`"
_RIGHTS = "the gradebook cannot be opened or written: check its owner and its rights, and those of its folder"
_DAMAGED = "gradebook.db is damaged: move it away and restore a copy, or grade again without it"
#: What SQLite says → what to do.
REMEDIES = {
    "locked": "the gradebook is in use by another program, such as a DB browser: close it, and run this again",
    "disk is full": "the disk is full: make room, and run this again",
    "disk I/O error": "gradebook.db cannot be written on its disk: check its room and quota, and run this again",
    "no such column": _UPGRADE,
    "no such table": _UPGRADE,
    "readonly": _RIGHTS,
    "unable to open": _RIGHTS,
    "not a database": _DAMAGED,
    "malformed": _DAMAGED,
}


def _about_machine(error: BaseException | None) -> BaseException | None:
    """The error of the database or of a full disk because of which this one was raised, if it was."""
    from sqlalchemy.exc import DBAPIError

    while error is not None:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or isinstance(error, DBAPIError):
            return error
        error = error.__cause__ or error.__context__
    return None


class _Complaints(logging.Handler):
    """Keeps the first error that nbgrader logs: the exception that it raises afterwards says less."""

    first = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().strip()
        if record.levelno >= logging.ERROR and not self.first and not text.startswith("There was an error"):
            lines = text.splitlines()
            if lines[0].startswith("Traceback"):  # what was raised may have a message of several lines
                start = max((at for at, line in enumerate(lines) if re.match(r"[\w.]+(:|$)", line)), default=-1)
                lines = [" ".join(" ".join(lines[start:]).split())]
            self.first = lines[0]
