"""A jail for tests, a submission in it, and a way to run a cell there."""

import os
import tempfile

import pytest

from autograder.grade.jail import outside
from autograder.grade.running import clock


@pytest.fixture(scope="module")
def jail():
    with outside.Jail(outside.Limits(memory=2**30, total=2 * 2**30, files=64 * 2**20, processes=150)) as jail:
        yield jail


@pytest.fixture
def jailed(jail):
    folder = tempfile.mkdtemp(dir="/tmp")
    jailed = jail.start(folder, {"data/numbers.txt": b"1 2"})
    yield jailed
    jailed.end()
    os.rmdir(folder)


def run(jailed, source, seconds=30):
    """Run a cell; what it printed, and the name of what it raised."""
    printed = []
    jailed.deadline = clock.now() + seconds
    reply = jailed.ask("cell", lambda kind, content: printed.append(str(content.get("text", ""))), source=source)
    return "".join(printed), (reply["raised"] or {}).get("name")
