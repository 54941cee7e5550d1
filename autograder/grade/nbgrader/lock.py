"""One grader at a time: whoever writes the grades of a course holds its lock.

The lock is the system's, on a file in the course's folder: it belongs to a process, and is free as soon as that ends,
however it ends. What stands in the file is only for the message. Points and comments by hand do not need it.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import getpass
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

NAME = ".grading.lock"

#: The locks of this process: its number (a fork has none of them) and the file.
_held: set[tuple[int, Path]] = set()


class CourseInUseError(ValueError):
    """Another process writes the grades of this course."""


@contextlib.contextmanager
def held(root: Path, what: str) -> Iterator[None]:
    """Inside, no other process writes grades of the course in this folder. what: what is done, for its message.

    A process that holds the lock already goes on. CourseInUseError says in one line who holds it, and since when.
    """
    path = Path(root).resolve() / NAME
    mine = os.getpid(), path
    if mine in _held:
        yield
        return
    # Not flock, which a fork would hold as well and keep. With lockf, the file must not be opened again while it is
    # held: closing any descriptor of it frees the lock.
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise CourseInUseError(_who(file.read(), path.parent)) from None
        file.truncate(0)
        now = datetime.datetime.now().astimezone()
        json.dump({"what": what, "since": now.isoformat(), "by": _user(), "process": mine[0], "host": _host()}, file)
        file.flush()
        _held.add(mine)
        try:
            yield
        finally:
            _held.discard(mine)
            file.truncate(0)


def _who(text: str, root: Path) -> str:
    """The message about a lock that somebody else holds. text: what they wrote into it, perhaps in part."""
    try:
        found = json.loads(text)
        since = datetime.datetime.fromisoformat(found["since"]).astimezone()
        day = "" if since.date() == datetime.date.today() else f" on {since:%Y-%m-%d}"
        where = f"process {found['process']} of {found['by']} on {found['host']}"
        who = f"`{found['what']}` has been running since {since:%H:%M}{day} ({where})"
    except (ValueError, KeyError, TypeError):
        who = "another process is writing them"
    return f"the grades in {root} are being written: {who}; wait until it ends, and run this again"


def _user() -> str:
    with contextlib.suppress(Exception):  # where the number has no name, Python raises OSError or KeyError
        return getpass.getuser()
    return str(os.getuid())


def _host() -> str:
    return socket.gethostname()
