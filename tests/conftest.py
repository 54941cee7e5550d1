"""Fixtures that several test files share."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import pytest


@pytest.fixture
def no_leftovers():
    """After the test there is no process of a run and no file of one."""
    from ranks import processes

    folders = set(Path(tempfile.gettempdir()).glob("ranks-*"))
    yield
    server = processes._server
    until = time.monotonic() + 2
    while (left := _children(server[1].pid)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"processes left behind: {left}"
    assert set(Path(tempfile.gettempdir()).glob("ranks-*")) <= folders, "a folder was left behind"


def _children(pid: int) -> list[str]:
    rows = subprocess.run(["ps", "-A", "-o", "ppid=,pid=,args="], capture_output=True, text=True).stdout.splitlines()
    return [row for row in rows if row.split()[0] == str(pid)]
