"""A line in JupyterLab under a cell that takes long, such as "3 of 4 ranks finished, 12 s"; it goes when the cell ends.

It is shown only where somebody looks. A program that runs a notebook (papermill, nbclient) says that it
answers no questions, and gets the same outputs as if this module did not exist.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

#: Seconds that a cell runs before the line appears, and between two states of it.
PATIENCE, EVERY = 5.0, 1.0

#: What is going on now, the innermost last: functions that say it in a few words.
_doing: list[Callable[[], str]] = []
_line: _Line | None = None


@contextlib.contextmanager
def doing(say: Callable[[], str]) -> Iterator[None]:
    """While the block runs, the line begins with what `say` returns. It is called in another thread."""
    _doing.append(say)
    try:
        yield
    finally:
        _doing.remove(say)


def watch_cells() -> None:
    """From the next cell on, show the line under each one that takes long; does nothing outside a notebook."""
    shell = _shell()
    if shell is None or getattr(shell, "_ranks_watches_cells", False):
        return
    shell._ranks_watches_cells = True
    shell.events.register("pre_run_cell", _before)
    shell.events.register("post_run_cell", _after)


def _shell() -> Any:
    """IPython's shell in a notebook's kernel; None anywhere else."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell if hasattr(shell, "kernel") else None


def _before(_info: Any) -> None:
    global _line
    shell = _shell()
    parent = shell.kernel.get_parent("shell") or {}
    if _line is None and parent.get("content", {}).get("allow_stdin"):
        _line = _Line(shell.display_pub)


def _after(_result: Any) -> None:
    global _line
    if _line is not None:
        _line.end()
        _line = None


class _Line:
    """The line of one cell, written by a thread of its own."""

    def __init__(self, publisher: Any):
        self.publisher, self.name = publisher, uuid.uuid4().hex
        self.start, self.shown = time.monotonic(), False
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._follow, name="ranks-progress", daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        pause = PATIENCE
        while not self.over.wait(pause):
            pause = EVERY
            parts = [say() for say in _doing[-1:]]
            self._write({"text/plain": ", ".join([*parts, f"{time.monotonic() - self.start:.0f} s"])})

    def _write(self, data: dict[str, str]) -> None:
        self.publisher.publish(data, transient={"display_id": self.name}, update=self.shown)
        self.shown = True

    def end(self) -> None:
        """The cell has ended: take the line away."""
        self.over.set()
        self.thread.join()
        if self.shown:
            self._write({})
