"""The mistakes that a class has made: lost marks, counted by known wrong answer, else by what happened.

A comment on a lost mark ends with the hints of the known wrong answers that failed in the same way
(`autograder/checking/check.py`). No two of an exercise have the same hint, so it identifies the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from autograder.answers import wrong
from autograder.answers.answer import Answer
from autograder.grading import scoring
from autograder.insight.marks import Mark, Submission
from autograder.lessons.notebook import natural

UNWRITTEN = "Not written yet"
ENDLESS = "Did not end in the time allowed"
WAITING = "The ranks waited for each other, or did not finish"
DIED = "Python itself ended: a call to exit, a crash, or too little memory"
RAISED = "Raised {}"
FOLLOWS = "Follows from a known mistake in another exercise"
WRONG = "Wrong, without a known mistake"
UNREADABLE = "The file could not be read"
FAILED = "The autograder failed"
BY_HAND = "Taken off by hand"

#: The order of kinds that cost equally many marks; every error takes the place of RAISED.
ORDER = (UNWRITTEN, ENDLESS, WAITING, DIED, RAISED, FOLLOWS, WRONG, UNREADABLE, FAILED, BY_HAND)

#: Passages of the comments, in the words of `scoring` and `check`; the first one that is found counts.
_PASSAGES = [
    (FAILED, scoring.FAILED),
    (FAILED, scoring.ENDED),
    *(
        (kind, scoring.STOPPED[status].format(what=what, What=what.capitalize()))
        for status, kind in (("timeout", ENDLESS), ("out of time", ENDLESS), ("died", DIED))
        for what in ("the test", "your answer cell")
    ),
    (UNWRITTEN, "This exercise is not written yet."),
]
#: In the words of `stage.run_ranks` and of the errors of `ranks`.
_WAITING = re.compile(
    r"With \d+ ranks?, (the ranks (did not finish within|wait for one another)|.{1,80}waits? forever)"
)
_DIED = re.compile(r"With \d+ ranks?, rank \d+ (was killed by|exited with status)")
_RAISED = re.compile(r"\b(?:stopped with|raised) ([A-Z][\w.]*)")


class Known(NamedTuple):
    """A known wrong answer, and the students who gave it."""

    answer: Answer
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
    for one in submissions:
        matching = {mark: answers_of(lesson, mark) for mark in one.marks if mark.lost}
        broken = {test for found in matching.values() for answer in found for test in answer.breaks}
        for mark, found in matching.items():
            for answer in found:
                known.setdefault(answer.name, Known(answer, [])).students.append(one.student)
            if not found:
                why = kind(mark, one.problem)
                if f"{mark.exercise}-test" in broken and why not in (UNWRITTEN, BY_HAND):
                    why = FOLLOWS
                other.setdefault(why, Other(why, [])).marks.append((one.student, mark.exercise))
    return (
        sorted(known.values(), key=lambda found: (-len(found.students), natural(found.answer.cell), found.answer.name)),
        sorted(other.values(), key=lambda found: (-len(found.marks), _place(found.kind), found.kind)),
    )


def answers_of(lesson: str, mark: Mark) -> list[Answer]:
    """The known wrong answers whose hints are in the comment on a mark."""
    own = [answer for answer in wrong.of_lesson(lesson) if answer.cell == mark.exercise]
    by_hint = {" ".join(answer.hint.split()): answer for answer in own}
    pieces = [" ".join(piece.split()) for piece in re.findall(r"Hint: (.*(?:\n(?!\n|Hint: ).+)*)", mark.comment)]
    found = [by_hint[piece] for piece in dict.fromkeys(pieces) if piece in by_hint]
    if len(mark.comment) >= scoring.MAX_MESSAGE:  # a long message is cut
        for piece in pieces:
            if piece not in by_hint and len(piece) >= 20:
                found += [answer for hint, answer in by_hint.items() if hint.startswith(piece)][:1]
    return found


def kind(mark: Mark, problem: str = "") -> str:
    """How a mark was lost, if not by a known mistake. problem: why the notebook was not run."""
    text = " ".join(mark.comment.split())
    if mark.auto is not None and mark.auto >= mark.most:
        return BY_HAND
    for found, passage in _PASSAGES:
        if passage in text:
            return found
    if problem:
        return UNREADABLE
    if _WAITING.search(text):
        return WAITING
    if _DIED.search(text):
        return DIED
    raised = _RAISED.search(text)
    return RAISED.format(raised[1]) if raised else WRONG


def _place(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else ORDER.index(RAISED)
