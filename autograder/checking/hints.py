"""Which known wrong answers fail a check as the student's answer did, and what their authors would say to it."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from autograder.checking.expect import CheckFailed, Hint
from autograder.checking.stage import Launches

#: At most this many hints are shown: two wrong answers can look alike from outside.
MAX_HINTS = 2

#: Runs a check's body on subjects, with a seed and at most this many launches: `check.attempt`.
Attempt = Callable[..., CheckFailed | None]


class Shared:
    """What the checks of this process share, once `check.share_inputs` was called."""

    seed: int | None = None
    #: Failed checks do not search for hints; whoever catches their error may (`later`).
    later: bool = False
    #: Hints are searched for among this one known wrong answer only.
    suspect: str | None = None
    #: (exercise, check, known wrong answer) → how it failed, after how many launches, and how many it was allowed.
    twins: ClassVar[dict[tuple[str, str, str], tuple[CheckFailed | None, int, float]]] = {}


@contextlib.contextmanager
def only(suspect: str | None) -> Iterator[None]:
    """Inside, what failed is compared with the known wrong answer of this name alone; with all, if it is None."""
    Shared.suspect = suspect
    try:
        yield
    finally:
        Shared.suspect = None


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Inside, failed checks do not search for hints: their errors have `find_hints` for those that will be shown."""
    before, Shared.later = Shared.later, True
    try:
        yield
    finally:
        Shared.later = before


def matching(
    exercise: str, body: Callable, seed: int, compared: Any, attempt: Attempt, launches: int
) -> tuple[Hint, ...]:
    """The hints of the known wrong answers that fail this check, on these inputs, as the student's did.

    compared: what has to be the same (`CheckFailed.compared`). launches: how often the check had started ranks when it
    failed.
    """
    from autograder.answers import wrong

    names = [p.name for p in inspect.signature(body).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    found = []
    for known in wrong.of_exercise(exercise):
        if Shared.suspect not in (None, known.name):
            continue
        if known.fails and body.__name__ not in known.fails:
            continue  # it passes this check, which the audit has tried
        other = twin(exercise, body, names, known, seed, launches, attempt)
        if other is not None and same_evidence(other.compared, compared):
            found.append(Hint(known.name, known.hint))
            if len(found) == MAX_HINTS:
                break
    return tuple(found)


def twin(
    exercise: str, body: Callable, names: list[str], known: Any, seed: int, launches: float, attempt: Attempt
) -> CheckFailed | None:
    """How a known wrong answer fails a check on the inputs of `seed`, within `launches` launches; None if it passes."""
    from autograder.lessons import notebook

    key = (exercise, body.__name__, known.name)
    shared = Shared.seed is not None and Shared.seed == seed
    if shared and key in Shared.twins:
        failure, took, allowed = Shared.twins[key]
        if failure is not None or allowed >= launches:
            return failure if took <= launches else None
    space = notebook.functions(known.lesson, swap={known.cell: known.source})
    failure = attempt(body, tuple(space[name] for name in names), seed, launches)
    # With what a submission has returned, memory may be scarce here. That says nothing of the known answer, and must
    # not cost later students the hint.
    if shared and not isinstance(getattr(failure, "__cause__", None), MemoryError):
        to_the_end = Launches.count <= launches
        Shared.twins[key] = (failure, Launches.count, math.inf if to_the_end else launches)
    return failure


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
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.isclose(a, b, rtol=1e-5, equal_nan=True))
    return type(a) is type(b) and a == b
