"""Where submissions run: in a jail or, where a person says so, with the rights of whoever grades.

No other module names the jail (`pyproject.toml`). What runs submissions gets the name of a module that makes kernels
(`running.kernels.Kernels`), which travels to other processes and machines as it is.
"""

from __future__ import annotations

from pathlib import Path

from autograder.grade import jail
from autograder.grade.running.kernels import LOCAL


def kernels(jailed: bool) -> str:
    """The module that makes the kernels of submissions."""
    return "autograder.grade.jail.kernel" if jailed else LOCAL


def refuse(*folders: Path) -> None:
    """ValueError if there is no jail on this machine, or if it would show one of these folders."""
    from autograder.grade.jail import shown_files

    if jail.missing():
        raise ValueError(jail.MISSING)
    for folder in folders:
        shown_files.refuse(folder)


def limits_here() -> str:
    """Which limits on a jail as a whole hold on this machine, in a sentence."""
    from autograder.grade.jail import control_groups, outside

    most = outside.Limits()
    return control_groups.limits_here(most.processes, most.total)
