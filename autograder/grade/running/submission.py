"""Runs one submission. Workers import this; it needs nothing of nbgrader."""

from __future__ import annotations

from typing import Any

import nbformat

from autograder.checks import hints
from autograder.grade import outcome
from autograder.grade.running import carried_forward, kernels
from autograder.grade.running.run_cells import add_hints, run_cells
from autograder.lesson import skippable


def run_submission(cells: list[nbformat.NotebookNode], task: Any) -> None:
    """Run the cells of a restored submission (`run_cells`), as its task says (`workers.Task`).

    Exercises that fail are tried again without the errors of those on which they build (`carried_forward`). Hints are
    searched for after that, for what has failed for good.
    """
    skip = () if task.demonstrations else skippable.skippable_cells(cells, task.lesson)
    with kernels.module(task.kernels).kernels_for(task.lesson, task.files) as new_kernel, hints.later():
        outcomes = run_cells(cells, new_kernel, task.limits, skip, task.again)
        carried_forward.try_again(cells, outcomes, task.lesson, new_kernel, task.limits)
    add_hints(outcomes.values(), task.limits.notebook)
    for cell in cells:
        if cell.id in outcomes:
            outcome.to_metadata(cell, outcomes[cell.id])
