"""The step of nbgrader's autograding that runs a submission, and the same step for a worker, which has no course.

A submission's cells run in a jail, its grade cells outside.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Integer, List, Unicode

from autograder.checking import hints
from autograder.grading import bar, carried
from autograder.grading.kernels import Kernel, LocalKernel
from autograder.grading.run_cells import Limits, add_hints, run_cells
from autograder.grading.submission_files import companion_files, lesson_notebook, submitted_files
from autograder.lessons import properties, skippable


class RunCells(NbGraderPreprocessor):
    """Takes the place of nbgrader's Execute: a submission's cells run in a jail, its grade cells outside."""

    timeout = Integer(60, help="Seconds for one cell.").tag(config=True)
    test_timeout = Integer(120, help="Seconds for one test cell.").tag(config=True)
    notebook_timeout = Integer(900, help="Seconds for the whole notebook.").tag(config=True)
    jail = Bool(True, help="Run submissions in a jail. Off, they run with your own rights.").tag(config=True)
    demonstrations = Bool(
        False, help="Also run the lesson's unchanged demonstrations, on which no answer and no test depends."
    ).tag(config=True)
    data_files = List(Unicode(), help="Patterns of files that are taken from a submission.").tag(config=True)

    executed = Unicode(help="The notebook as a worker has run it, as text; if empty, it is run now.").tag(config=True)

    @property
    def limits(self) -> Limits:
        """The three times together."""
        return Limits(self.timeout, self.test_timeout, self.notebook_timeout)

    def preprocess(self, nb: nbformat.NotebookNode, resources: dict) -> tuple[nbformat.NotebookNode, dict]:
        """Run the restored notebook. If the submission could not be read, no kernel is started."""
        if nb.metadata.autograder.problem:
            return nb, resources
        where = resources["nbgrader"]
        course = CourseDirectory(config=self.config)
        handed_in = Path(course.format_path(course.submitted_directory, where["student"], where["assignment"]))
        files, left_out = submitted_files(handed_in, self.data_files)
        if self.executed:
            adopt(nb, self.executed)
        else:
            source = Path(course.format_path(course.source_directory, ".", where["assignment"]))
            lesson = lesson_notebook(source / f"{where['notebook']}.ipynb")
            run_submission(nb.cells, lesson, {**files, **companion_files(source)}, self)
        nb.metadata.autograder.left_out = left_out
        return nb, resources


def run_submission(cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode, files: dict, how: Any) -> None:
    """Run the cells of a restored submission (`run_cells`), in kernels that `kernels_for` starts.

    Exercises that fail are tried again without the errors of those on which they build (`carried`). Hints are searched
    for after that, for what has failed for good.

    how: has `limits`, `jail` and `demonstrations`; a RunCells or a worker's task, which may have `progress` (`bar`).
    """
    properties.copy_weights(cells, lesson)
    skip = () if how.demonstrations else skippable.skippable_cells(cells, lesson)
    with kernels_for(lesson, files, how.jail) as new_kernel:
        passed = functools.partial(bar.tick, getattr(how, "progress", ""))
        with hints.later():
            failures = run_cells(cells, new_kernel, how.limits, skip, passed)
            carried.try_again(cells, lesson, new_kernel, how.limits)
    add_hints(failures, how.limits.notebook)


def adopt(nb: nbformat.NotebookNode, executed: str) -> None:
    """Copy outputs and outcomes from a notebook that a worker has run.

    ValueError if the worker has run other cells: nothing of a submission may run in the process that writes grades.
    """
    others = nbformat.reads(executed, as_version=4).cells
    if [(cell.id, cell.source) for cell in others] != [(cell.id, cell.source) for cell in nb.cells]:
        raise ValueError("the worker did not run the cells that are to be graded: grade it again with --force")
    for cell, other in zip(nb.cells, others, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = other.outputs, other.execution_count
            cell.metadata["autograder"] = other.metadata.get("autograder", {})


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
