"""What a class's results say about the exercises: how hard each is, how well it separates, which checks hold.

Only notebooks that could be read and graded count. Both numbers are classical test theory's: the difficulty is the mean
share of an exercise's points, the discrimination its correlation with the points of the rest of the notebook. The
correlation of so few results is mostly chance, so both are left out below LEAST submissions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autograder.insight.marks import Submission

#: Submissions from which on the numbers are shown. Of 20, chance alone moves a correlation by up to 0.45.
LEAST = 20
#: Difficulties below the first are called hard, from the second on easy; discriminations below the third are weak.
HARD, EASY, WEAK = 0.3, 0.9, 0.2


class Item(NamedTuple):
    """An exercise: from 0 to 1, the mean share of its points; from -1 to 1, how its points go with all others.

    discrimination: None if everybody has the same points in it, or in everything else.
    """

    difficulty: float
    discrimination: float | None


class Property(NamedTuple):
    """A check of an exercise: its sentence, in how many submissions it holds, and of how many in which it was tried."""

    exercise: str
    says: str
    passed: int
    tried: int


def counted(graded: Iterable[Submission]) -> list[Submission]:
    """The submissions that say something about the exercises."""
    return [one for one in graded if not one.problem and not one.ungraded]


def of_submissions(graded: Sequence[Submission]) -> dict[str, Item]:
    """exercise → its numbers, from these submissions to one lesson; one that is graded in too few is left out."""
    shares: dict[str, list[tuple[float, float]]] = {}
    for one in counted(graded):
        total = sum(mark.score for mark in one.marks if not mark.waits)
        for mark in one.marks:
            if mark.most and not mark.waits:
                shares.setdefault(mark.exercise, []).append((mark.score / mark.most, total - mark.score))
    return {name: _item(found) for name, found in shares.items() if len(found) >= LEAST}


def _item(found: list[tuple[float, float]]) -> Item:
    own, rest = zip(*found, strict=True)
    varies = len(set(own)) > 1 and len(set(rest)) > 1
    return Item(statistics.fmean(own), statistics.correlation(own, rest) if varies else None)


def margin(count: int) -> float:
    """How far from 0 chance alone takes the discrimination in 19 of 20 classes of this size: 1.96/√(n - 1)."""
    return 1.96 / math.sqrt(count - 1)


def in_words(item: Item, count: int) -> str:
    """What the numbers of an exercise mean. count: of how many submissions."""
    how_hard = "hard" if item.difficulty < HARD else "easy" if item.difficulty >= EASY else "neither easy nor hard"
    if item.discrimination is None:
        return f"{how_hard}; it cannot separate, since everybody has the same points in it or in the rest"
    if item.discrimination < -margin(count):
        return f"{how_hard}; who did well in the rest did worse here: look at its statement and its tests"
    if item.discrimination < WEAK:
        return f"{how_hard}; hardly separates who did well in the rest from who did not"
    return f"{how_hard}; separates who did well in the rest from who did not"


def properties(graded: Sequence[Submission]) -> list[Property]:
    """The checks of a lesson's exercises, in order."""
    found: dict[tuple[str, str], list[bool]] = {}
    for one in counted(graded):
        for exercise, tried in one.tried.items():
            for says, holds in tried:
                found.setdefault((exercise, says or "All of its test."), []).append(holds)
    return [Property(*key, sum(held), len(held)) for key, held in found.items()]
