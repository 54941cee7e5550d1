"""The modules of all lessons' checks."""

from __future__ import annotations

import importlib
from types import ModuleType

from autograder.lessons import notebook


def import_checks() -> list[ModuleType]:
    """Import every module of every lesson's checks, each lesson's package first."""
    names = []
    for lesson in notebook.lessons():
        for path in notebook.checks_of(lesson):
            inside = path.relative_to(notebook.SOLUTIONS / lesson).with_suffix("").parts[1:]
            names.append(".".join(["autograder.checks", lesson.split("_", 1)[1], *inside]).removesuffix(".__init__"))
    return [importlib.import_module(name) for name in names]
