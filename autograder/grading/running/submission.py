"""Runs one submission, in a jail or without one. Workers import this; it needs nothing of nbgrader."""

from __future__ import annotations

import ast
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat

from autograder.checking import hints
from autograder.grading import outcome
from autograder.grading.running import carried_forward
from autograder.grading.running.kernels import Kernel, LocalKernel
from autograder.grading.running.run_cells import add_hints, run_cells
from autograder.lessons import skippable


def run_submission(cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode, files: dict, how: Any) -> None:
    """Run the cells of a restored submission (`run_cells`), in kernels that `kernels_for` starts.

    Exercises that fail are tried again without the errors of those on which they build (`carried_forward`). Hints are
    searched for after that, for what has failed for good.

    how: has `limits`, `jail` and `demonstrations`; a RunCells or a worker's task, which may have `again`
    (`run_cells`).
    """
    skip = () if how.demonstrations else skippable.skippable_cells(cells, lesson)
    with kernels_for(lesson, files, how.jail) as new_kernel, hints.later():
        outcomes = run_cells(cells, new_kernel, how.limits, skip, getattr(how, "again", False))
        carried_forward.try_again(cells, outcomes, lesson, new_kernel, how.limits)
    add_hints(outcomes.values(), how.limits.notebook)
    for cell in cells:
        if cell.id in outcomes:
            outcome.to_metadata(cell, outcomes[cell.id])


@contextlib.contextmanager
def kernels_for(lesson: nbformat.NotebookNode, files: dict[str, bytes], jail: bool) -> Iterator[Callable[[], Kernel]]:
    """A function that makes kernels for a submission to this lesson, in this process's jail or without one.

    files: the other files in the notebook's folder, by name.
    """
    from autograder.grading.jail import kernel, outside

    if jail:
        modules = large_modules(lesson)
        yield lambda: kernel.JailedKernel(outside.shared(modules), lesson, files)
        return
    with tempfile.TemporaryDirectory(prefix="submission-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield lambda: LocalKernel(folder)


#: Packages that few lessons use. They take a second to import, and with them each fork takes a third longer.
LARGE = ("sklearn", "scipy")


def large_modules(lesson: nbformat.NotebookNode) -> frozenset[str]:
    """The modules of large packages that a lesson's own cells import."""
    found: set[str] = set()
    for cell in lesson.cells:
        if cell.cell_type == "code" and any(package in cell.source for package in LARGE):
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module)
                elif isinstance(node, ast.Import):
                    found.update(alias.name for alias in node.names)
    return frozenset(name for name in found if name.split(".")[0] in LARGE)
