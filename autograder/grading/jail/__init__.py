"""Grading in two halves: a submission's cells run in a jail, the grade cells outside, in a process that one can trust.

    wire.py      what may cross between the two: plain data, and nothing that runs
    inside.py    the half in the jail: a Python with torch loaded, forked once for each submission
    namespace.py how a forked process locks itself in: its own processes, network, files, limits
    outside.py   starts bubblewrap, starts and ends the submissions in it
    handles.py   a student's function as the grade cells see it: calling it is a message to the jail
    kernel.py    one notebook: its cells there, its grade cells here

The first three are all that the jail can see of this package.
"""

from __future__ import annotations

import shutil
import sys

MISSING = (
    "submissions are graded in a jail, which needs bubblewrap (Debian: apt-get install bubblewrap) and a Linux that "
    "lets it work; to run them with your own rights instead, say --no-jail"
)


def missing() -> bool:
    """Is there no bubblewrap here?"""
    return sys.platform != "linux" or shutil.which("bwrap") is None
