"""What a check hands to a student's function holds no answer: not in its closure, and in no frame above the call.

A function that is given another one to ask, such as a faulty trainer, could read from it what it is to find out. What a
check knows stays on its own side (`stage.Oracle`).
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, MethodType
from typing import Any

import pytest

from autograder import checks
from autograder.audit import audit
from autograder.checks import stage
from autograder.checks.check import attempt
from autograder.checks.stage import Launches
from autograder.lesson import notebook

#: What is handed over to be called; a class or a model is not.
FUNCTIONS = (FunctionType, MethodType, functools.partial, stage.Oracle)
#: Texts and lists of these lengths, and more, are not there by accident.
LONG = 2
#: The modules of the lessons' checks, and those that lesson 17's make.
OF_A_LESSON = re.compile(r"autograder\.checks\.(\d|capstone_)")


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
        if OF_A_LESSON.match(frame.f_globals.get("__name__", "")):
            yield from frame.f_locals.values()
        frame = frame.f_back


def watched(function: Callable, ours: set[str], found: set[str]) -> Callable:
    """A function of the solution that adds its name to `found` if what it is handed holds what it returns."""

    @functools.wraps(function)
    def watching(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, FUNCTIONS)]
        handed = [one for one in given if getattr(one, "__name__", "") not in ours]
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


#: A function of each lesson's that looks for what it is to find out: in the closure of what it is handed, in the frames
#: above it. What it is to ask it does not ask.
LOOKS = """
import sys

def _seen(ask):
    found = [cell.cell_contents for cell in getattr(ask, "__closure__", None) or ()]
    frame = sys._getframe(1)
    while frame is not None:
        found.extend(frame.f_locals.values())
        frame = frame.f_back
    for one in list(found):
        found.extend(vars(one).values() if hasattr(one, "__dict__") else ())
    return found
"""
DIAGNOSES = """
def diagnose(seconds, nodes):
    return next((one for one in _seen(seconds) if one in ("cards", "ports", "switches")), None)
"""
DIVIDES = """
def find_divisor(gradient):
    return next((one for one in _seen(gradient) if one in ("micro-batches", "ranks", "processes", "masked")), None)
"""
TESTS_NODES = """
def slow_nodes(measure, n):
    measure([[0, 1]])
    seen = [one for one in _seen(measure) if type(one) in (list, set) and one]
    return next((sorted(one) for one in seen if all(type(node) is int for node in one)), [])
"""
COPIES_THE_CLOCK = """
import sys
import time
import torch
import torch.distributed as dist

class Cadence:
    def __init__(self, seconds, clock=time.monotonic):
        self.seconds, self.last = seconds, 0.0

    def due(self):
        now = sys._getframe(1).f_locals.get("time", 0.0)
        now = now if isinstance(now, float) else 0.0
        due = now - self.last >= self.seconds
        self.last = now if due else self.last
        return bool(due)
"""
#: lesson, cell, its source, the properties that it must not have.
LOOKING = {
    "diagnose": (
        "02_costs", "02-ex3-diagnosis", LOOKS + DIAGNOSES,
        {"slow_cards_and_a_shared_port_are_told_apart", "slow_switches_are_found", "a_bad_node_is_found"},
    ),
    "find_divisor": (
        "04_accumulation", "04-ex2-divisor", LOOKS + DIVIDES,
        {"means_of_micro_batches_are_found", "means_of_ranks_are_found", "processes_are_found"},
    ),
    "slow_nodes": (
        "06_launch", "06-ex2-preflight", LOOKS + TESTS_NODES, {"a_slow_node_is_found", "several_slow_nodes_are_found"},
    ),
    "Cadence": ("17_capstone", "17-ex6-watch", COPIES_THE_CLOCK, {"one_clock_decides_for_all"}),
}  # fmt: skip


@pytest.mark.jail
@pytest.mark.slow
@pytest.mark.parametrize("name", LOOKING)
def test_who_looks_for_the_answer_finds_none(name):
    lesson, cell, source, expected = LOOKING[name]
    if name == "Cadence":  # the rest of the cell stays
        answer = next(one.source for one in notebook.read(lesson).cells if one.id == cell)
        source += answer[answer.index("class Guard") :]
    nb = notebook.read(lesson, {cell: source})
    [test] = audit.tested(nb, lesson, {f"{cell}-test"}, jailed=True).values()
    assert expected <= {one.name for one in test.lost}
