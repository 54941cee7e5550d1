"""The lessons' checks: `autograder.checks.TOPIC` is `solutions/NN_topic/checks/`, or `checks.py` in that folder.

A lesson's folder cannot be a package, because its name begins with a digit. So this package finds the checks in it.
What a check is: see `autograder.checking.check`.

A test cell tries the checks of its exercise with one line, which is made from them (`autograder.properties`)::

    try_exercise("08-ex1-shard-bounds", shard_bounds=shard_bounds, flatten=flatten)
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from autograder.answers import answer
from autograder.checking.check import REGISTERED, Check
from autograder.lessons import notebook

_SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"


class _Finder:
    """Finds the checks of a lesson; Python itself finds the modules in a package of them."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        package, _, topic = name.rpartition(".")
        for folder in _SOLUTIONS.glob(f"[0-9][0-9]_{topic}") if package == __name__ else ():
            places = {folder / "checks" / "__init__.py": [str(folder / "checks")], folder / "checks.py": None}
            for place in filter(Path.is_file, places):
                return spec_from_file_location(name, place, submodule_search_locations=places[place])
        return None


sys.meta_path.append(_Finder)


def of_exercise(exercise: str) -> list[Check]:
    """The checks of an exercise in the order in which they stand in their file; of several files, the first by name.

    Imports all checks of its lesson. ValueError, in one line with file and line, for checks that cannot be imported.
    """
    try:
        topic = notebook.lesson_of(exercise).split("_", 1)[1]
    except notebook.UnknownLessonError:
        return []
    _load(topic)
    own = [one for one in REGISTERED.values() if one.exercise == exercise and one.topic == topic]
    return sorted(own, key=lambda one: one.position)


def refuse_checks_of_nothing(lesson: str) -> None:
    """ValueError, in one line with file and line, for a check of no exercise of its lesson: nothing would call it."""
    from autograder.lessons.course_settings import did_you_mean

    exercises, topic = answer.solutions(lesson), lesson.split("_", 1)[1]
    _load(topic)
    for one in REGISTERED.values():
        if one.topic == topic and one.exercise not in exercises:
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


def _load(topic: str) -> None:
    """Import a lesson's checks, so that they register."""
    name = f"{__name__}.{topic}"
    try:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            importlib.import_module(f"{name}.{module.name}")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return  # a lesson without checks
        raise ValueError(notebook.fault_of(error, _SOLUTIONS)) from error
