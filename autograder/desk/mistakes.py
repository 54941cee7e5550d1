"""The mistakes that a class has made: lost marks, counted by known wrong answer, else by what happened.

What happened is read from the autograded notebooks, where grading has left it (`outcome`): the hints that
were found name the known wrong answers that failed in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from autograder.answers import wrong
from autograder.checks import expect
from autograder.checks.expect import Failure
from autograder.desk.marks import Mark, Submission
from autograder.grade import outcome
from autograder.lesson.notebook import natural

UNWRITTEN = "Not written yet"
ENDLESS = "Did not end in the time allowed"
WAITING = "The ranks waited for each other, or did not finish"
DIED = "Python itself ended: a call to exit, a crash, or too little memory"
RAISED = "Raised {}"
FOLLOWS = "Follows from a known mistake in another exercise"
WRONG = "Wrong, without a known mistake"
UNREADABLE = "The file could not be read"
FAILED = "The autograder failed"
OUTDATED = "No reason is kept, as by an earlier version of the grader: run autograder grade --force"
BY_HAND = "Taken off by hand"

#: The order of kinds that cost equally many marks; every error takes the place of RAISED.
ORDER = (UNWRITTEN, ENDLESS, WAITING, DIED, RAISED, FOLLOWS, WRONG, UNREADABLE, FAILED, OUTDATED, BY_HAND)

#: The kinds of failure, in the order in which they explain a lost mark, and what the report says of them.
_KINDS = {
    outcome.TIMEOUT: ENDLESS,
    outcome.OUT_OF_TIME: ENDLESS,
    expect.DIED: DIED,
    expect.UNWRITTEN: UNWRITTEN,
    expect.HANG: WAITING,
    outcome.OUTDATED: OUTDATED,
}


#: The name of an error class is repeated if it has at most this many characters.
LONGEST = 60


class Known(NamedTuple):
    """A known wrong answer to an exercise, by its name and its hint, and the students who gave it."""

    exercise: str
    name: str
    hint: str
    students: list[str]


class Other(NamedTuple):
    """Another way to lose a mark, and the marks lost that way, as (student, exercise)."""

    kind: str
    marks: list[tuple[str, str]]


def of_submissions(lesson: str, submissions: Iterable[Submission]) -> tuple[list[Known], list[Other]]:
    """The lost marks of a lesson, the most frequent mistakes first.

    A mark with the hints of two known wrong answers, which tests cannot tell apart, is counted with both.
    """
    known: dict[str, Known] = {}
    other: dict[str, Other] = {}
    breaks = {answer.name: answer.breaks for answer in wrong.load_wrong(lesson)}
    for one in submissions:
        matching = {mark: hints_of(one.failures(mark.exercise)) for mark in one.marks if mark.lost}
        broken = {test for hints in matching.values() for name in hints for test in breaks.get(name, ())}
        for mark, hints in matching.items():
            for name, hint in hints.items():
                known.setdefault(name, Known(mark.exercise, name, hint, [])).students.append(one.student)
            if not hints:
                why = kind(mark, one)
                if f"{mark.exercise}-test" in broken and why not in (UNWRITTEN, BY_HAND):
                    why = FOLLOWS
                other.setdefault(why, Other(why, [])).marks.append((one.student, mark.exercise))
    return (
        sorted(known.values(), key=lambda found: (-len(found.students), natural(found.exercise), found.name)),
        sorted(other.values(), key=lambda found: (-len(found.marks), _place(found.kind), found.kind)),
    )


def hints_of(failures: Iterable[Failure]) -> dict[str, str]:
    """The known wrong answers that failed as an exercise did: name → hint."""
    return {hint.name: hint.text for failure in failures for hint in failure.hints}


def kind(mark: Mark, submission: Submission) -> str:
    """How a mark was lost, if not by a known mistake."""
    if mark.by_hand and (mark.auto is None or mark.auto >= mark.most):
        return BY_HAND
    if submission.ungraded:
        return OUTDATED if any(other.auto for other in submission.marks) else FAILED
    if submission.problem:
        return UNREADABLE
    if mark.question:  # what has no points without a person was not answered
        return UNWRITTEN
    failures = submission.failures(mark.exercise)
    kinds = {failure.kind for failure in failures}
    if found := [said for one, said in _KINDS.items() if one in kinds]:
        return found[0]
    raised = next((failure.error for failure in failures if failure.kind == expect.RAISED), "")
    return RAISED.format(raised) if raised.isidentifier() and len(raised) <= LONGEST else WRONG


def _place(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else ORDER.index(RAISED)


def properties(graded: Iterable[Submission]) -> list[tuple[str, str, int, int]]:
    """(exercise, its property, in how many submissions it holds, of how many in which it was tried), in order."""
    found: dict[tuple[str, str], list[bool]] = {}
    for one in graded:
        if not one.problem and not one.ungraded:
            for exercise, test in one.outcomes.items():
                for tried in test.properties:
                    if tried.status != outcome.NOT_TRIED:
                        found.setdefault((exercise, tried.says or "All of its test."), []).append(tried.holds)
    return [(*key, sum(held), len(held)) for key, held in found.items()]
