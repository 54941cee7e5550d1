"""What a check hands to a student's function holds no answer: not in its closure, and in no frame above the call.

A function that is given another one to ask, such as a faulty trainer, could read from it what it is to find out. What a
check knows stays on its own side (`stage.Oracle`).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from autograder import checks
from autograder.checking import stage
from autograder.checking.check import attempt
from autograder.checking.stage import Launches
from autograder.lessons import notebook

#: Texts and lists of these lengths, and more, are not there by accident.
LONG = 2


def reachable(value: Any, depth: int = 4) -> Iterator[Any]:
    """What can be read from a callable that is handed over: its closure, its defaults, what it is bound to."""
    yield value
    if depth and not isinstance(value, stage.Oracle):
        inside: list[Any] = [one.cell_contents for one in getattr(value, "__closure__", None) or ()]
        inside += getattr(value, "__defaults__", None) or ()
        inside += [value.__self__] if inspect.ismethod(value) else []
        inside += [value.func, *value.args] if isinstance(value, functools.partial) else []
        inside += value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
        inside += vars(value).values() if type(value).__module__.startswith("autograder.") else []
        for one in inside:
            yield from reachable(one, depth - 1)


def above(frame: FrameType | None) -> Iterator[Any]:
    """The local variables of a check's own functions up the stack, as far as they run next to the submission."""
    while frame is not None and frame.f_code is not stage.call_inside.__code__:
        if frame.f_globals.get("__name__", "").startswith("autograder.checks."):
            yield from frame.f_locals.values()
        frame = frame.f_back


def watched(function: Callable, ours: set[str], found: set[str]) -> Callable:
    """A function of the solution that adds its name to `found` if what it is handed holds what it returns."""

    @functools.wraps(function)
    def watching(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        handed = [
            one for one in (*args, *kwargs.values()) if callable(one) and getattr(one, "__name__", "") not in ours
        ]
        if handed and isinstance(result, (str, list, tuple)) and len(result) >= LONG:
            readable = [value for one in (*handed, *above(sys._getframe(1))) for value in reachable(one)]
            if any(type(value) is type(result) and repr(value) == repr(result) for value in readable):
                found.add(function.__name__)
        return result

    return watching


def holding_answers(lesson: str) -> set[str]:
    """The functions of a lesson that are handed the answer, where no ranks run."""
    space, found = notebook.functions(lesson), set[str]()
    ours = {name for name, value in space.items() if callable(value)}
    for cell in notebook.read(lesson).cells:
        for one in checks.of_exercise(cell.id) if notebook.nbgrader_role(cell) == "solution" else ():
            subjects = [space[name] for name in one.parameters]
            watching = [one if isinstance(one, type) else watched(one, ours, found) for one in subjects]
            assert attempt(one.run.__wrapped__, tuple(watching), 11, Launches(0)) is None, one.name
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lesson", notebook.lessons())
def test_what_a_function_is_handed_holds_no_answer(lesson):
    assert not holding_answers(lesson)


def test_an_answer_in_a_closure_or_in_a_frame_is_found():
    found: set[str] = set()

    def find(ask):
        return "cards" if ask() else "ports"

    def handed(fault: str, hide: bool) -> None:
        def ask() -> bool:
            return fault == "cards"

        watched(find, set(), found)(stage.Oracle(ask) if hide else ask)

    handed("cards", hide=True)
    assert not found
    handed("cards", hide=False)
    assert found == {"find"}
