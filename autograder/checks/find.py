"""Finds lessons' checks: `solutions/08_zero1/checks/step.py` is the module `autograder.checks.08_zero1.checks.step`.

A statement cannot name such a module, because a lesson's name begins with a digit. Within a lesson, imports are
relative; others ask `module`. What a check is: see `autograder.checks.check`.

A test cell tries the checks of its exercise with one line, which is made from them (`autograder.properties`)::

    try_exercise("08-ex1-shard-bounds", shard_bounds=shard_bounds, flatten=flatten)
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from autograder.answers import answer
from autograder.checks.check import REGISTERED, Check
from autograder.lesson import notebook


def module(lesson: str, name: str = "") -> ModuleType:
    """The package of a lesson's checks, or its module of this name; also a lesson's one module of checks."""
    return importlib.import_module(f"{__package__}.{lesson}.checks.{name}".rstrip("."))


def of_exercise(exercise: str) -> list[Check]:
    """The checks of an exercise in the order in which they stand in their file; of several files, the first by name.

    Imports all checks of its lesson. ValueError, in one line with file and line, for checks that cannot be imported.
    """
    try:
        lesson = notebook.lesson_of(exercise)
    except notebook.UnknownLessonError:
        return []
    _load(lesson)
    own = [one for one in REGISTERED.values() if one.exercise == exercise and one.lesson == lesson]
    return sorted(own, key=lambda one: one.position)


def refuse_checks_of_nothing(lesson: str) -> None:
    """ValueError, in one line with file and line, for a check of no exercise of its lesson: nothing would call it."""
    from autograder.lesson.course_settings import did_you_mean

    exercises = answer.solutions(lesson)
    _load(lesson)
    for one in REGISTERED.values():
        if one.lesson == lesson and one.exercise not in exercises:
            meant = did_you_mean(one.exercise, exercises) or ": it has none"
            raise ValueError(f"{one.place}: {one.name} is a check of {one.exercise}, no exercise of {lesson}{meant}")


def try_exercise(exercise: str, only: str = "", /, **functions: Any) -> None:
    """Try the checks of an exercise, or only the one of this name. CheckFailed for the first that fails.

    functions: the student's functions and classes, by the names of the checks' parameters. ValueError where there is
    nothing to try.
    """
    found = [one for one in of_exercise(exercise) if only in ("", one.name)]
    if not found:
        raise ValueError(f"{exercise} has no check {only}".rstrip() + ": run `make notebooks`")
    for one in found:
        for name in one.parameters:
            if name not in functions:
                raise TypeError(f"{one.name} takes {name}, which this line does not name: run `make notebooks`")
        one.run(*(functions[name] for name in one.parameters))


def _load(lesson: str) -> None:
    """Import a lesson's checks, so that they register; a lesson may have none."""
    package = f"{__package__}.{lesson}"
    try:
        for one in pkgutil.iter_modules(getattr(module(lesson), "__path__", ())):
            module(lesson, one.name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (package, f"{package}.checks"):
            return
        raise ValueError(notebook.fault_of(error, notebook.SOLUTIONS)) from error
