"""Lesson 06 as a script: what it says when it cannot start, and that a real launch leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from autograder.checking.expect import CheckFailed
from autograder.checks.launch import common, survival
from autograder.lessons import notebook

pytestmark = pytest.mark.skipif("06_launch" not in notebook.lessons(), reason="the lesson is not there")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The solution's functions, exported to a script."""
    lesson = notebook.functions("06_launch")
    path = tmp_path_factory.mktemp("script") / "train.py"
    names = ("setup_ddp", "cleanup_ddp", "train_ddp", "launch_distributed", "main")
    lesson["export"](path, *(lesson[name] for name in names))
    return path


PLAIN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "DDP_BACKEND": "gloo", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
def test_what_cannot_start_is_told_in_one_line(script):
    with socket.create_server(("", 0)) as taken:
        plain = {**PLAIN, "MASTER_PORT": str(taken.getsockname()[1])}
        starts = [
            ({}, [], "RANK is not set"),
            ({**plain, "WORLD_SIZE": "four"}, [], "invalid literal for int() with base 10: 'four'"),
            ({**plain, "DDP_BACKEND": "nccl"}, [], "DDP_BACKEND=nccl needs a GPU for local rank 0"),
            (plain, ["--world-size", "8"], "WORLD_SIZE is 1, expected 8"),
            (plain, [], f"MASTER_PORT {plain['MASTER_PORT']} on 127.0.0.1: in use"),
        ]
        started = []
        for variables, more, _ in starts:
            clean = {name: value for name, value in os.environ.items() if name not in common.LAUNCHER}
            command = [sys.executable, str(script), "--model", "m:M", "--data", "m:D", "--epochs", "1", *more]
            started.append(subprocess.Popen(command, env={**clean, **variables}, stderr=subprocess.PIPE, text=True))
        for process, (_, _, says) in zip(started, starts, strict=True):
            error = process.communicate(timeout=100)[1]
            assert process.returncode == 1 and error.startswith(f"train.py: {says}") and error.count("\n") == 1, error


def test_a_script_holds_what_its_functions_use(script):
    text = script.read_text()
    compile(text, str(script), "exec")
    for name in ("choose_backend", "device_of_rank", "train_in_process", "main"):
        assert text.count(f"def {name}(") == 1
    assert "import ranks" not in text and text.endswith("main()\n")


def test_a_students_function_stands_among_the_solutions():
    """Each is graded alone: the other three are the solution's, whatever the student's are."""
    lesson = notebook.functions("06_launch")
    text = common.script_with(lesson["launch_distributed"])
    assert text.rindex("\ntrain_ddp = _train_ddp") > text.rindex("def train_ddp(")
    assert "launch_distributed = _launch_distributed" not in text


@pytest.mark.slow
def test_a_launch_that_takes_too_long_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(survival, "LAUNCH_TIMEOUT", -7.0)  # 10 more for the run that it is a part of
    stuck = "import time\n\n\ndef main():\n    time.sleep(600)\n"
    monkeypatch.setattr(survival, "script_with", lambda function: stuck)
    before = set(Path(tempfile.gettempdir()).glob("launch-*"))
    for real in (False, True):
        with pytest.raises(CheckFailed):
            survival.expect_survival(len, 2, 0, real=real)
    until = time.monotonic() + 5
    while (left := _launched()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left and set(Path(tempfile.gettempdir()).glob("launch-*")) == before


def _launched() -> list[str]:
    rows = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True).stdout.splitlines()
    return [row for row in rows if "train.py" in row and "launch-" in row]
