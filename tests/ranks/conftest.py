"""What the tests of `ranks` share. Nothing here may need more than `ranks`, its dependencies and pytest."""

from __future__ import annotations

import subprocess
import tempfile
import time

import pytest

from ranks import processes


def pytest_configure(config):
    """Declare the marks, which pyproject.toml declares where it is there."""
    for mark in ("slow: takes more than ten seconds", "thorough: part of `make thorough`, not of `make test`"):
        config.addinivalue_line("markers", mark)


@pytest.fixture
def no_leftovers(tmp_path, monkeypatch):
    """After the test there is no process of a run and no file of one."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # nobody else's runs are in there
    yield
    until = time.monotonic() + 60
    while (left := [*_running(), *folder.glob("ranks-*")]) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, f"left behind: {left}"


def _running() -> list[str]:
    """The fork server's children; none where ranks are spawned, because the test's own process ends those itself."""
    if not processes.can_fork() or processes._server is None:
        return []
    rows = subprocess.run(["ps", "-A", "-o", "ppid=,pid=,args="], capture_output=True, text=True).stdout.splitlines()
    return [row for row in rows if row.split()[0] == str(processes._server.pid)]
