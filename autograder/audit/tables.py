"""Does a check hold for an answer that knows its fixed cases, and nothing else?

A student who hands in again and again can read from the feedback what a check expected of each case that it does not
draw, and write that into a table. So one is made here: the lesson's own answer is called by the check on two draws of
inputs, and what it gave for arguments that came both times is the table. With a table in the place of each function the
check must fail on a third draw, unless it says why it draws nothing (`check(…, fixed=…)`).
"""

from __future__ import annotations

import copy
import functools
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from autograder import checks
from autograder.checks.check import Check, attempt
from autograder.checks.stage import Launches
from autograder.lesson import notebook

#: Three draws. Any will do.
SEEDS = (101, 202, 303)


class UnknownCaseError(Exception):
    """A table is asked for what is not in it."""


def problems(lesson: str) -> Iterator[str]:
    """The checks of a lesson that a table passes, a sentence each."""
    space = notebook.functions(lesson)
    for cell in notebook.read(lesson).cells:
        for one in checks.of_exercise(cell.id) if notebook.nbgrader_role(cell) == "solution" else ():
            if not one.fixed and (count := known_by_heart(one, space)):
                text = f"passes for an answer that knows {count} cases by heart and nothing else"
                yield f"{one.place}: {one.name} {text}: draw one from rng, or say why not (fixed=…)"


def known_by_heart(one: Check, space: dict[str, Any]) -> int:
    """The number of cases in a table that passes this check; 0 if no table does.

    Classes, and what runs in ranks, have no table: what is fixed there a reader has to see.
    """
    subjects = [space[name] for name in one.parameters]
    if any(isinstance(subject, type) for subject in subjects):
        return 0
    first, second = ([dict[bytes, Any]() for _ in subjects] for _ in range(2))
    for seed, tables in zip(SEEDS, (first, second), strict=False):
        launches = Launches(0)
        asked = tuple(map(_recording, subjects, tables))
        if attempt(_body(one), asked, seed, launches) is not None or launches.count:
            return 0
    if any(mine.keys() != other.keys() for mine, other in zip(first, second, strict=True)):
        return 0  # something is drawn
    failure = attempt(_body(one), tuple(map(_answering, subjects, first)), SEEDS[2], Launches(math.inf))
    return 0 if failure else sum(map(len, first))


def _body(one: Check) -> Callable:
    return one.run.__wrapped__  # type: ignore[attr-defined]


def _recording(function: Callable, table: dict[bytes, Any]) -> Callable:
    """The function, which writes into the table what it gives for what, errors included."""

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        key = pickle.dumps((args, kwargs))
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            table[key] = error
            raise
        table[key] = copy.deepcopy(result)
        return result

    return asked


def _answering(function: Callable, table: dict[bytes, Any]) -> Callable:
    """What knows the table, and nothing else."""

    @functools.wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Any:
        found = table.get(pickle.dumps((args, kwargs)), UnknownCaseError())
        if isinstance(found, Exception):
            raise found
        return copy.deepcopy(found)

    return answer
