"""The clock by which limits of time are kept while submissions run."""

from __future__ import annotations

import os

from ranks.stopwatch import Stopwatch

_stopwatch: tuple[int, Stopwatch] | None = None


def now() -> float:
    """Seconds that this process and all that it has started have had, since it first asked; other programs' excluded.

    `ranks.stopwatch` says what is counted. On a busy machine limits that are kept by this clock end later.
    """
    global _stopwatch
    pid = os.getpid()
    if _stopwatch is None or _stopwatch[0] != pid:  # this process has been forked
        _stopwatch = pid, Stopwatch(lambda: [pid])
    return _stopwatch[1].seconds()
