"""Which known wrong answers fail a check as the student's answer did, and what their authors would say to it.

A hint says "you did this", so it is shown only if that is likely. A known wrong answer is suspected if it fails the
same check in the same case with the same evidence, and no other check that the student's answer passes. Up to
MAX_HINTS suspects are named; of more, none: the evidence does not tell them apart. Only a single suspect that fails
just the checks that the student's answer fails, with evidence that has numbers in it which few mistakes give, is named
as a fact; all others are what the student "perhaps" did, since "no error was raised" can have many reasons, of which
some are not known.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autograder.checks.expect import CheckFailed, Hint
from autograder.checks.stage import Launches

#: So many wrong answers may look alike from outside for their hints to be shown.
MAX_HINTS = 2

#: Runs a check's body on subjects, with a seed, and counts its launches: `check.attempt`.
Attempt = Callable[..., CheckFailed | None]


@dataclass
class Grading:
    """What the checks that one grader runs have in common.

    seed: of their inputs; without one, each check draws its own. later: failed checks do not search for hints, whoever
    catches their error may. suspect: hints are searched for among this one known wrong answer only. known_failures:
    (exercise, check, known wrong answer) → how it failed, after how many launches, and how many it was allowed.
    """

    seed: int | None = None
    later: bool = False
    suspect: str | None = None
    known_failures: dict[tuple[str, str, str], tuple[CheckFailed | None, int, float]] = field(default_factory=dict)


#: That of all threads of this process, where `under` says nothing else.
_process = Grading()
_grading: ContextVar[Grading] = ContextVar("grading", default=_process)


def grading() -> Grading:
    """What the checks that run here have in common."""
    return _grading.get()


@contextlib.contextmanager
def under(**changes: Any) -> Iterator[None]:
    """Inside, these fields of `grading()` are others."""
    token = _grading.set(replace(grading(), **changes))
    try:
        yield
    finally:
        _grading.reset(token)


def only(suspect: str | None) -> contextlib.AbstractContextManager[None]:
    """Inside, what failed is compared with the known wrong answer of this name alone; with all, if it is None."""
    return under(suspect=suspect)


def later() -> contextlib.AbstractContextManager[None]:
    """Inside, failed checks do not search for hints: their errors have `find_hints` for those that will be shown."""
    return under(later=True)


def matching(
    exercise: str,
    body: Callable,
    seed: int,
    compared: Any,
    attempt: Attempt,
    launches: int,
    passed: Collection[str] = (),
    failed: Collection[str] | None = None,
    core: str = "",
) -> tuple[Hint, ...]:
    """The hints of the known wrong answers that fail this check, on these inputs, as the student's did.

    compared: what has to be the same (`CheckFailed.compared`). launches: how often the check had started ranks when it
    failed. passed, failed: the exercise's checks that the student's answer passes, and fails, None if not known.
    core: the exercise's core.
    """
    from autograder.answers import wrong

    names = [p.name for p in inspect.signature(body).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    found = []
    for known in wrong.of_exercise(exercise):
        if grading().suspect not in (None, known.name):
            continue
        fails = _fails(known, core)
        if fails and (body.__name__ not in fails or fails & set(passed)):
            continue  # it passes this check, or fails one that the student's answer passes, as the audit has recorded
        other = known_failure(exercise, body, names, known, seed, launches, attempt)
        if other is not None and same_evidence(other.compared, compared):
            found.append(known)
            if len(found) > MAX_HINTS:
                return ()
    sure = len(found) == 1 and is_telling(compared) and (failed is None or set(failed) <= _fails(found[0], core))
    return tuple(Hint(known.name, known.hint, sure) for known in found)


def _fails(known: Any, core: str) -> set[str]:
    """The checks that a known wrong answer is recorded to fail; none if nothing is recorded."""
    return set(known.fails or [core]) if known.breaks else set(known.fails)


def known_failure(
    exercise: str, body: Callable, names: list[str], known: Any, seed: int, launches: float, attempt: Attempt
) -> CheckFailed | None:
    """How a known wrong answer fails a check on the inputs of `seed`, within `launches` launches; None if it passes."""
    from autograder.lesson import notebook

    key = (exercise, body.__name__, known.name)
    met, shared = grading().known_failures, grading().seed == seed
    if shared and key in met:
        failure, took, allowed = met[key]
        if failure is not None or allowed >= launches:
            return failure if took <= launches else None
    space = notebook.functions(known.lesson, swap={known.cell: known.source})
    counted = Launches(launches)
    failure = attempt(body, tuple(space[name] for name in names), seed, counted)
    # With what a submission has returned, memory may be scarce here. That says nothing of the known answer, and must
    # not cost later students the hint.
    if shared and not isinstance(getattr(failure, "__cause__", None), MemoryError):
        to_the_end = counted.count <= launches
        met[key] = (failure, counted.count, math.inf if to_the_end else launches)
    return failure


#: Small whole numbers, such as those of ranks, are no evidence of one mistake rather than another.
SMALL = 8


def is_telling(evidence: Any) -> bool:
    """Is there a number in an observation that another mistake would hardly give?"""
    if isinstance(evidence, dict):
        return any(map(is_telling, evidence.values()))
    if isinstance(evidence, (list, tuple)):
        return any(map(is_telling, evidence))
    if isinstance(evidence, np.ndarray) and evidence.dtype.kind == "O":
        return any(map(is_telling, evidence.flat))
    if np.asarray(evidence).dtype.kind in "iuf" or (isinstance(evidence, int) and not isinstance(evidence, bool)):
        numbers = np.asarray(evidence)
        with np.errstate(invalid="ignore"):
            odd = (numbers > SMALL) | (numbers < 0) | (numbers % 1 != 0)
        return bool(np.any(odd))
    return False


def same_evidence(a: Any, b: Any) -> bool:
    """Are two observations the same, numbers up to rounding? Arrays, numbers, strings, and lists of them."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_evidence(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_evidence(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        try:
            a, b = np.asarray(a), np.asarray(b)
        except ValueError:  # a list that is no array: its items differ in shape
            return False
        if a.shape != b.shape or not all(np.issubdtype(x.dtype, np.number) for x in (a, b)):
            return False
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=0.0)
        return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6 * scale, equal_nan=True))
    if isinstance(a, (float, np.floating)) and isinstance(b, (float, np.floating)):
        return bool(np.isclose(a, b, rtol=1e-5, equal_nan=True))
    return type(a) is type(b) and a == b
