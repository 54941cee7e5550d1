"""What a check is made of: expectations, runs on ranks, hints, inputs, instruments; and the lessons' checks (`find`).

`solutions/08_zero1/checks/step.py` is the module `autograder.checks.08_zero1.checks.step`. What `find` offers is here,
too, but imported only when it is asked for: many import other modules of this package alone, which is quicker.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autograder.checks.find import module, of_exercise, refuse_checks_of_nothing, try_exercise

__all__ = ["module", "of_exercise", "refuse_checks_of_nothing", "try_exercise"]

__path__.append(str(Path(__file__).resolve().parents[2] / "solutions"))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autograder.checks import find

    return getattr(find, name)
