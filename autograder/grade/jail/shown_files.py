"""What the jail shows of the system: programs and libraries, by name, and nothing that lies next to them.

A course may lie anywhere, in `/usr/src` of a container as well. nbgrader's exchange lies in `/usr/local/share` unless
it is told otherwise. An environment may be made in the folder of the course. So of the system's folders and of Python's
the jail shows only the parts that hold what notebooks need.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

#: The parts of a folder of programs, such as /usr or a Python's, that are shown.
PARTS = ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "openssl", "pyvenv.cfg")
#: Data of the system's that programs read.
DATA = tuple(f"/usr/share/{name}" for name in ("fonts", "matplotlib", "terminfo", "zoneinfo"))
SETTINGS = ("ld.so.cache", "fonts", "localtime", "hosts", "nsswitch.conf", "mime.types")


def options(places: list[str], links: list[tuple[str, str]]) -> list[str]:
    """What bubblewrap has to be called with, after a /tmp of the jail's own, to show what `shown` has returned."""
    found = [option for target, link in links for option in ("--symlink", target, link)]
    found += [option for place in places for option in ("--ro-bind", place, place)]
    for name in SETTINGS:
        found += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for number, place in enumerate(below_tmp(places)):
        found += ["--ro-bind", place, f"/jail/kept/{number}"]
    for own in _own_packages():
        found += ["--tmpfs", own]
    return found


def shown() -> tuple[list[str], list[tuple[str, str]]]:
    """The places that the jail shows, those above others first; and its links, each with where it leads."""
    folders = [f"{folder.rstrip('/')}/{part}" for folder in ("/", *_folders()) for part in PARTS]
    there = [place for place in dict.fromkeys([*folders, *DATA]) if os.path.exists(place)]
    links = [(os.readlink(place), place) for place in there if os.path.islink(place)]
    return sorted(place for place in there if not os.path.islink(place)), links


def below_tmp(places: list[str]) -> list[str]:
    """Those of these places that a submission's own /tmp would hide."""
    return [place for place in places if place.startswith("/tmp/")]


def pythons() -> list[str]:
    """The folders of this Python and of its environment."""
    return list(dict.fromkeys([sys.base_prefix, sys.prefix]))


def refuse(place: Path) -> None:
    """ValueError if the jail would show this place, which is the course's."""
    real = place.resolve()
    hidden = any(real.is_relative_to(Path(own).resolve()) for own in _own_packages())
    for one in shown()[0]:
        if real.exists() and real.is_relative_to(Path(one).resolve()) and not hidden:
            raise ValueError(f"the jail shows {one} to all submissions, and {place} lies there: move it elsewhere")


def _folders() -> list[str]:
    return list(dict.fromkeys(["/usr", "/usr/local", *pythons()]))


def _own_packages() -> list[str]:
    """Where answers are installed inside the environment that the jail sees, if they are; to be hidden."""
    library = Path(sysconfig.get_paths()["purelib"])
    return [str(library / name) for name in ("autograder", "solutions") if (library / name).is_dir()]
