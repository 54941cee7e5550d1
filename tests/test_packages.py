"""Who may import whom: the order of the packages in pyproject.toml, lazy imports included."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.grading import jail

ROOT = Path(__file__).resolve().parent.parent


def lint(folder: Path) -> subprocess.CompletedProcess:
    """import-linter's verdict on the packages in a folder."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--config", str(ROOT / "pyproject.toml")]
    return subprocess.run([*command, "--no-cache"], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path):
    """A copy of both packages."""
    for name in ("ranks", "autograder"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_packages_import_downwards(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("autograder/lessons/files.py", "from autograder.grading import course"),
        ("autograder/checking/inputs.py", "from autograder.checks import step"),
        ("autograder/grading/scoring.py", "from autograder.soundness import audit"),
        ("ranks/errors.py", "import autograder.lessons.notebook"),
    ],
)
def test_a_lazy_import_upwards_is_found(copy, file, line):
    path = copy / file
    path.write_text(f"{path.read_text()}\n\ndef lazy():\n    {line}\n")
    done = lint(copy)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout


@pytest.mark.parametrize("name", jail.FILES_INSIDE)
def test_the_half_in_the_jail_needs_nothing_of_this_package(name):
    """There it is the package `jail`, which has these files and no others."""
    imported = set()
    for node in ast.walk(ast.parse((ROOT / "autograder" / "grading" / "jail" / name).read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import may name a file that is not there"
            imported |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "jail" else {node.module}
            )
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    there = {f"jail.{file.removesuffix('.py')}" for file in jail.FILES_INSIDE}
    strange = {module for module in imported if module.split(".")[0] in ("autograder", "jail")} - there
    assert imported and not strange
