"""Runs one submission. Workers import this; it needs nothing of nbgrader."""

from __future__ import annotations

from typing import Any

import nbformat

from autograder.checks import hints
from autograder.grade import outcome
from autograder.grade.running import carried_forward, kernels
from autograder.grade.running.run_cells import add_hints, run_cells
from autograder.lesson import skippable


def run_submission(cells: list[nbformat.NotebookNode], lesson: nbformat.NotebookNode, files: dict, how: Any) -> None:
    """Run the cells of a restored submission (`run_cells`).

    Exercises that fail are tried again without the errors of those on which they build (`carried_forward`). Hints are
    searched for after that, for what has failed for good.

    how: has `limits`, `kernels` and `demonstrations`; a RunCells or a worker's task, which may have `again`
    (`run_cells`).
    """
    skip = () if how.demonstrations else skippable.skippable_cells(cells, lesson)
    with kernels.module(how.kernels).kernels_for(lesson, files) as new_kernel, hints.later():
        outcomes = run_cells(cells, new_kernel, how.limits, skip, getattr(how, "again", False))
        carried_forward.try_again(cells, outcomes, lesson, new_kernel, how.limits)
    add_hints(outcomes.values(), how.limits.notebook)
    for cell in cells:
        if cell.id in outcomes:
            outcome.to_metadata(cell, outcomes[cell.id])
