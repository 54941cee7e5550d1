"""The bar of `grade`: it moves from the first second, also while a single notebook is graded.

A worker appends a byte to a file for each code cell that it has passed; a thread looks at these files. The workers of a
cluster do not see the file. Then the bar moves from notebook to notebook.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

from autograder.grading import limits

if TYPE_CHECKING:
    from autograder.grading.running.workers import Task

#: As tqdm writes it; `whole` counts notebooks, of which the bar itself also shows parts.
FORMAT = "{percentage:3.0f}%|{bar:24}| {whole} [{elapsed}, {remaining} left] {desc}"


class Bar:
    """A bar over the notebooks that are graded, the lessons' solutions included. To be used in a `with`.

    hidden: nothing is shown, and no file is made.
    """

    def __init__(self, hidden: bool = False):
        from tqdm import tqdm

        class Counting(tqdm):
            whole = ""

            @property
            def format_dict(self) -> dict[str, Any]:
                return {**super().format_dict, "whole": self.whole}

        self.hidden, self.every = hidden, 0.5 if sys.stderr.isatty() else 10.0  # a log needs fewer lines
        self.folder = tempfile.TemporaryDirectory(prefix="grading-")
        self.cells: dict[tuple[str, str], int] = {}
        self.finished = 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.bar = Counting(total=1, desc="preparing", disable=hidden, bar_format=FORMAT)

    def __enter__(self) -> Bar:
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.over.set()
        self.thread.join()
        self._show()
        self.bar.leave = bool(self.finished)  # nothing had changed
        self.bar.close()
        self.folder.cleanup()

    def expect(self, notebooks: int) -> None:
        """Set how many notebooks will be graded."""
        self.bar.total = max(1, notebooks)
        self._show()

    def say(self, text: str) -> None:
        """What is going on, after the bar."""
        self.bar.set_description_str(text, refresh=False)
        self._show()

    def note(self, text: str) -> None:
        """A line for the person who grades, which stays above the bar."""
        self.bar.write(limits.printable(text), file=sys.stderr)

    def watched(self, task: Task) -> Task:
        """The same task, whose worker notes its cells."""
        cells = nbformat.reads(task.cells, as_version=4).cells
        self.cells[task.name] = max(1, sum(cell.cell_type == "code" for cell in cells))
        return replace(task, progress=str(self._file(task.name)))

    def done(self, name: tuple[str, str]) -> None:
        """This notebook has been graded."""
        self.cells.pop(name, None)
        self.finished += 1
        self._show()

    def _file(self, name: tuple[str, str]) -> Path:
        return Path(self.folder.name, str(abs(hash(name))))

    def _follow(self) -> None:
        while not self.over.wait(self.every):
            self._show()

    def _show(self) -> None:
        if self.hidden:
            return
        with self.lock:
            begun = 0.0
            for name, cells in list(self.cells.items()):
                with contextlib.suppress(OSError):
                    begun += min(0.95, self._file(name).stat().st_size / cells)
            self.bar.whole = f"{self.finished}/{self.bar.total}"
            self.bar.n = max(self.bar.n, self.finished + begun)
            self.bar.refresh()
