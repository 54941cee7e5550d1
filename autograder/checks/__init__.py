"""The lessons' checks: `autograder.checks.TOPIC` is `solutions/NN_topic/checks/`, or `checks.py` in that folder.

A lesson's folder cannot be a package, since its name begins with a digit. So this package finds the checks in it, under
names that say nothing of where they are. What a check is: see `autograder.checking.check`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

from autograder.lessons import notebook


class _Finder:
    """Finds a lesson's checks. The modules of a package of checks are found by Python itself."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        package, _, topic = name.rpartition(".")
        if package == __name__:
            for folder in notebook.SOLUTIONS.glob(f"[0-9][0-9]_{topic}"):
                for place, inside in (
                    (folder / "checks" / "__init__.py", [str(folder / "checks")]),
                    (folder / "checks.py", None),
                ):
                    if place.is_file():
                        return spec_from_file_location(name, place, submodule_search_locations=inside)
        return None


sys.meta_path.append(_Finder)
