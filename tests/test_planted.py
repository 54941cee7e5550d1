"""Bugs that are planted in a copy of the repository, and what must fail for each (`planted.md`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_BUG = re.compile(r"^### (.+)\n(.+)\n```diff (\S+)\n-(.*)\n\+(.*)\n```$", re.MULTILINE)
BUGS = {bug[0]: bug[1:] for bug in _BUG.findall((ROOT / "tests" / "planted.md").read_text())}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the repository, without what is built."""
    root = tmp_path_factory.mktemp("planted") / "repository"
    left_out = shutil.ignore_patterns(".*", "_build", "__pycache__", "*.egg-info", "submitted", "*.mine*.ipynb")
    shutil.copytree(ROOT, root, ignore=left_out)
    return root


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_makes_a_test_fail(copy, name):
    files, place, right, wrong = BUGS[name]
    path = copy / place
    before = path.read_text()
    assert before.count(f"{right}\n") == 1, "the line is another now: plant the bug anew"
    path.write_text(before.replace(f"{right}\n", f"{wrong}\n"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-m", "not thorough and not slow", *files.split()]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=1800)
    finally:
        path.write_text(before)
    assert done.returncode == 1 and re.search(r"^(FAILED|ERROR) tests/", done.stdout, re.MULTILINE), done.stdout[-3000:]
