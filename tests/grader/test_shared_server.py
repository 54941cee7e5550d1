"""Notebooks that run together share one process that has imported torch; each works without it as well."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autograder.lesson.shared_server import share_server
from tests.helpers.patience import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

#: Without a Python to start a server of its own, a program depends on the shared one.
HELPLESS = "import sys\nsys.executable = '/bin/false'\n"
RUN = "import ranks\nprint(ranks.run(lambda rank, world_size: rank, world_size=2, echo=False))\n"


def script(*lines: str, **environment: str) -> subprocess.CompletedProcess:
    """Run these lines as a program."""
    return subprocess.run(
        [sys.executable, "-c", "".join(lines)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture
def listening(monkeypatch, tmp_path):
    """A function: the processes that fork servers for others, and that this test has started."""
    # A mark in their environment: other tests that run at the same time share servers, too.
    name = "STARTED_BY_TEST_SHARED_SERVER"
    monkeypatch.setenv(name, str(tmp_path))

    def found() -> set[int]:
        pids = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = f"{name}={tmp_path}\0".encode() in (folder / "environ").read_bytes()
                if ours and b"server.listen(" in (folder / "cmdline").read_bytes():
                    pids.add(int(folder.name))
        return pids

    return found


def until(holds):
    end = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    assert holds()


def test_programs_fork_their_ranks_from_a_process_that_they_share(listening):
    with share_server():
        until(lambda: len(listening()) == 1)
        with share_server():
            assert len(listening()) == 1
        for _ in range(2):
            done = script(HELPLESS, RUN)
            assert done.stdout == "[0, 1]\n", done.stderr
    assert "RANKS_SERVER" not in os.environ
    assert not listening(), "it goes with the block"
    assert "no rank was started" in script(HELPLESS, RUN).stderr


def test_ranks_are_as_those_of_a_server_of_the_program_itself():
    """They read nothing, start in the program's folder, import what it imports, and are in no session of its own."""
    worker = (
        "import os, sys\n"
        "def worker(rank, world_size):\n"
        "    return sys.stdin.read(), os.getcwd(), sys.path, os.getsid(0) == os.getpgid(0), os.environ['MINE']\n"
        "import ranks\n"
        "if __name__ == '__main__':\n"
        "    for (read, *rest) in ranks.run(worker, world_size=2, echo=False):\n"
        "        print(repr(read), rest)\n"
    )
    alone = script(worker, MINE="set")
    with share_server():
        shared = script(HELPLESS, worker, MINE="set")
    assert alone.stdout == shared.stdout and alone.stdout.startswith("'' ["), alone.stderr + shared.stderr


def test_a_program_whose_shared_server_ends_starts_its_own(listening):
    with share_server():
        until(listening)
        (pid,) = listening()
        end_it = (
            "import os, signal, time\n"
            f"servers = open('/proc/{pid}/task/{pid}/children').read().split()\n"
            f"for pid in ['{pid}', *servers]:\n    os.kill(int(pid), signal.SIGKILL)\n"
            f"while ') Z ' not in open('/proc/{pid}/stat').read():\n    time.sleep(0.01)\n"
            "while ranks.processes._server.lives():\n    time.sleep(0.01)\n"
        )
        done = script(RUN, end_it, RUN)
    assert done.stdout == "[0, 1]\n[0, 1]\n", done.stderr


def test_a_path_at_which_nobody_listens_does_no_harm(tmp_path):
    assert script(RUN, RANKS_SERVER=str(tmp_path / "nobody")).stdout == "[0, 1]\n"
    assert script(RUN, RANKS_SERVER="x" * 1000).stdout == "[0, 1]\n"


def test_it_ends_with_the_program_that_shares_it(listening):
    shares = "from autograder.lesson.shared_server import share_server\nimport time\n"
    shares += "with share_server():\n    time.sleep(60)\n"
    owner = subprocess.Popen([sys.executable, "-c", shares])
    until(listening)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until(lambda: not listening())
