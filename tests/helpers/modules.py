"""The modules of all lessons' checks."""

from __future__ import annotations

from types import ModuleType

from autograder.checks import module
from autograder.lesson import notebook


def import_checks() -> list[ModuleType]:
    """Import every module of every lesson's checks, each lesson's package first."""
    found = []
    for lesson in notebook.lessons():
        for path in notebook.checks_of(lesson):
            inside = path.relative_to(notebook.SOLUTIONS / lesson).with_suffix("").parts[1:]
            found.append(module(lesson, ".".join(inside).removesuffix("__init__")))
    return found
