"""The lessons' checks: `autograder.checks.TOPIC` is `solutions/NN_topic/checks/`, or `checks.py` in that folder.

A lesson's folder cannot be a package, because its name begins with a digit. So this package finds the checks in it.
What a check is: see `autograder.checking.check`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

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
