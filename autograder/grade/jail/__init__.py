"""Grading in two halves: a submission's cells run in a jail, the grade cells outside, in a trusted process.

    wire.py           messages between the two: plain data, nothing that runs
    inside.py         the half in the jail: a Python with torch loaded, forked once for each submission
    namespace.py      how a forked process locks itself in: its own processes, network, files, limits
    system_calls.py   the calls of the system that it may make
    shown_files.py    what the jail shows of the system
    outside.py        starts bubblewrap, starts and ends the submissions in it
    control_groups.py control groups, which bound all processes of a jail together
    own_user.py       where root grades, a user number of its own for the submissions of each jail
    handles.py        a student's function as the grade cells see it: a call is a message to the jail
    kernel.py         one notebook: its cells run in the jail, its grade cells outside

The jail sees those files of this package that `FILES_INSIDE` names, and no others.
"""

from __future__ import annotations

import shutil
import sys

#: The files that the jail sees. They import nothing of the course but each other, as `jail`, and `ranks`.
FILES_INSIDE = ("__init__.py", "wire.py", "namespace.py", "system_calls.py", "inside.py")

MISSING = (
    "submissions are graded in a jail, which needs bubblewrap (Debian: apt-get install bubblewrap) and a Linux that "
    "lets it work; to run them with your own rights instead, pass --no-jail"
)
#: Said where it is there and does not start, with what it said itself.
DOES_NOT_START = (
    "submissions are graded in a jail, and the system does not let bubblewrap, which is installed, make one: {why}; on "
    "Ubuntu 24.04 and newer, AppArmor forbids it (sysctl kernel.apparmor_restrict_unprivileged_userns=0 allows it), in "
    "a container its settings do; to run submissions with your own rights instead, pass --no-jail"
)


def missing() -> bool:
    """Is bubblewrap missing on this machine?"""
    return sys.platform != "linux" or shutil.which("bwrap") is None
