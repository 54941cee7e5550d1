"""A user number of its own for the submissions of each jail, where root grades.

The system counts some things for all programs of one user together: processes, signals under way, descriptors under
way between processes, watches of epoll, pages of pipes. With a number of its own, a jail can only use up its own
share. It also holds nothing any more that belongs to the user who grades, and the limit on the number of processes is
the system's: it does not count those of root.

Only root can give numbers away. For an ordinary user, all jails have the number of that user.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

#: The number inside the jail, and the first of the numbers outside. A jail's is that much more than the number of its
#: process, of which there are at most MOST. No system gives such numbers to people.
INSIDE, FIRST, MOST = 1, 2_000_000_000, 2**22
#: The rights that one needs to give numbers away: CAP_SETUID and CAP_SETFCAP.
_RIGHTS = 1 << 7 | 1 << 31


def possible(folders: Iterable[str]) -> bool:
    """Can this process give numbers away, and may everybody read what the jail shows of these folders?"""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    with contextlib.suppress(OSError, ValueError, IndexError):
        rights = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
        lines = Path("/proc/self/uid_map").read_text().splitlines()
        numbers = [[int(number) for number in line.split()] for line in lines]
        given = any(first <= FIRST and first + count >= FIRST + MOST for first, _, count in numbers)
        return rights & _RIGHTS == _RIGHTS and given and all(map(_is_open, [*folders, *_of_python()]))
    return False


def _of_python() -> list[str]:
    """Places of Python: where one of these is open to everybody, the others are as well, unless somebody tried hard."""
    paths = sysconfig.get_paths()
    return [os.__file__, sys.executable, paths["purelib"], f"{paths['purelib']}/torch/__init__.py"]


def _is_open(place: str) -> bool:
    mode = os.stat(place).st_mode
    return bool(mode & 0o4) and (not os.path.isdir(place) or bool(mode & 0o1))


class Mapping:
    """Tells a bubblewrap that is being started which user numbers it has: root's as 0, and INSIDE."""

    def __init__(self) -> None:
        self._said, told_at = os.pipe()
        waits_at, self._go = os.pipe()
        #: The descriptors that bubblewrap needs.
        self.passed = [told_at, waits_at]

    def options(self) -> list[str]:
        """What bubblewrap has to be called with."""
        return ["--info-fd", str(self.passed[0]), "--userns-block-fd", str(self.passed[1])]

    def write(self, pid: int) -> None:
        """Give the jail its numbers; bubblewrap, whose number is `pid`, waits for it. If it has ended, do nothing."""
        for descriptor in self.passed:
            os.close(descriptor)
        with contextlib.suppress(OSError, ValueError, KeyError):
            said = b""
            while not said.endswith(b"}\n") and (more := os.read(self._said, 1000)):
                said += more
            child = json.loads(said)["child-pid"]
            Path(f"/proc/{child}/uid_map").write_text(f"0 0 1\n{INSIDE} {FIRST + pid} 1\n")
            Path(f"/proc/{child}/gid_map").write_text("0 0 1\n")
            os.write(self._go, b"1")
        for descriptor in (self._said, self._go):
            os.close(descriptor)
