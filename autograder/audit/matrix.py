"""The matrix: the properties of each exercise, and which known wrong answers fail which.

A property that no known wrong answer fails alone may be one that no student needs, or one that another check tries as
well. Where that cannot be otherwise, it stands in `SHARED`, with the reason.
"""

from __future__ import annotations

from typing import NamedTuple

import nbformat

from autograder import properties
from autograder.answers import wrong
from autograder.answers.answer import Answer
from autograder.answers.verdicts import Losses
from autograder.grade.nbgrader import scoring
from autograder.grade.outcome import CellOutcome
from autograder.lesson import notebook

#: The weight of a check without points, which none of an exercise's points survive (`properties`).
VETO = "veto"

FORGED = "only ranks that learn of each other without messages fail it, which attacks do (tests/attacks)"

#: Checks that no known wrong answer fails alone → why.
SHARED = {
    "all_gather_needs_nothing_but_its_messages": FORGED,
    "all_reduce_needs_nothing_but_its_messages": FORGED,
    "tree_needs_nothing_but_its_messages": FORGED,
    "halving_needs_nothing_but_its_messages": FORGED,
    "all_to_all_needs_nothing_but_its_messages": FORGED,
    "each_bucket_has_one_all_reduce": "the buckets that are waited for count messages as well",
    "lost_examples_are_caught": "workers that hold the same examples hide averaged updates, too",
    "a_killed_save_leaves_the_last_checkpoint": "it kills what the check of the commit watches",
    "parts_go_to_their_ranks": "attention needs parts in their places as well",
    "nobody_returns_before_the_commit": "who returns early does not learn that the commit failed",
    "refuses_damage_on_every_rank": "ranks that refuse alone do so without a manifest, too",
    "boxes_follow_the_mesh": "coordinates that are wrong are wrong for two axes of one dimension, too",
    "the_interval_loses_least": "a formula that is wrong for cheap saves is wrong for expensive ones, too",
    "tensors_are_copied": "who copies no tensors copies none in lists, either",
    "faults_that_spread_are_found": "who looks at a fault where it has spread misses where it began",
    "checkpoints_are_read_back": "what is not read back is not compared in its numbers, either",
    "matrices_decay": "a decay that is wrong is wrong at every rate",
}


class Row(NamedTuple):
    """A check: its exercise, its weight, the known wrong answers that fail it, and those of them that fail it alone.

    Who misses the idea of an exercise, or plays a trick, fails more than the core or the veto, so for these all that
    fail them count as `alone`.
    """

    exercise: str
    check: str
    weight: str
    failing: list[str]
    alone: list[str]


def matrix_rows(lesson: str) -> list[Row]:
    """The matrix of a lesson, from what its known wrong answers are recorded to fail."""
    rows, nb = [], notebook.read(lesson)
    for exercise, found in _properties(nb).items():
        core = found[0]
        recorded = [answer for answer in wrong.of_exercise(exercise) if answer.breaks]
        failed = {answer.name: answer.fails or (core.name,) for answer in recorded}
        for one in found:
            failing = [name for name, fails in failed.items() if one.name in fails]
            alone = [name for name in failing if one is core or not one.points or len(failed[name]) == 1]
            rows.append(Row(exercise, one.name, f"{one.points:g}" if one.points else VETO, failing, alone))
    return rows


def losses(nb: nbformat.NotebookNode, answer: Answer, lost: dict[str, CellOutcome]) -> Losses:
    """What an answer was seen to lose: its own test, then the others; and the checks of its own, none for `core`.

    lost: what became of the tests that have lost marks.
    """
    own_test = f"{answer.cell}-test"
    found = [one.name for one in _properties(nb).get(answer.cell, [])]
    checks = tuple(name for name in found if name in failing(lost[own_test]))
    others = [cell.id for cell in nb.cells if cell.id in lost.keys() - {own_test}]
    return Losses((own_test, *others), () if checks == tuple(found[:1]) else checks)


def failing(test: CellOutcome) -> dict[str, str]:
    """The checks of a test that fail, each with what is said of it; VISIBLE for the visible part."""
    return {one.reason.check or one.name: scoring.why(one.reason) for one in test.lost}


def problems(lesson: str) -> list[str]:
    """A line for each check that no known wrong answer fails alone, and for each needless reason in SHARED."""
    rows = matrix_rows(lesson)
    return [
        *(f"{row.check}: no known wrong answer to {row.exercise} fails it alone"
          for row in rows if not row.alone and row.check not in SHARED),
        *(f"{row.check}: {row.alone[0]} fails it alone: remove it from SHARED"
          for row in rows if row.alone and row.check in SHARED),
    ]  # fmt: skip


def text(lesson: str) -> str:
    """The matrix as a table: for each check its weight, and how many known wrong answers fail it, and alone."""
    lines, last = [f"{lesson:<64}{'points':>8}{'wrong answers':>16}{'alone':>8}"], ""
    for row in matrix_rows(lesson):
        lines += [row.exercise] if row.exercise != last else []
        last = row.exercise
        lines.append(f"  {row.check:<62}{row.weight:>8}{len(row.failing):>16}{len(row.alone):>8}")
    return "\n".join(lines)


def _properties(nb: nbformat.NotebookNode) -> dict[str, list[properties.Property]]:
    """Exercise → its properties, the core first, for the exercises whose tests call checks."""
    tests = [cell for cell in nb.cells if notebook.nbgrader_role(cell) == "grade"]
    found = {cell.id.removesuffix("-test"): properties.of_test(cell) for cell in tests}
    return {exercise: [one for one in of_test if one.name] for exercise, of_test in found.items() if of_test[0].name}
