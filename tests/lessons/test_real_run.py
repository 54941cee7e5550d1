"""The real run of lesson 17 trains, loses a rank, resumes bit for bit, and goes on with other ranks."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest

from autograder.lesson import notebook

SCRIPT = notebook.ROOT / "examples" / "real_run" / "run.py"
#: The second: each attempt opens a store of its own, or it may find addresses of the last one (lesson 06).
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def rows_of(path):
    """The rows of a log, in the order in which they ran."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def expect_equal_again(rows):
    """Some step ran twice, and each such step is equal in loss, norm and parameters."""
    told = {}
    again = 0
    for row in rows:
        seen = [row[name] for name in ("loss", "norm", "parameters")]
        again += row["step"] in told
        assert told.setdefault(row["step"], seen) == seen, f"step {row['step']} is another one the second time"
    assert again >= 1
    return sorted(told)


def baselines():
    """Bits per byte of the book's held-out text, if all tokens are equally likely, and by their frequencies."""
    run = runpy.run_path(str(SCRIPT), run_name="real_run_script")  # another program is imported as `run`
    config = run["Config"]()
    texts, _ = run["prepared"](config)
    train, held_out = texts["train"].numpy(), texts["held_out"].numpy()
    counts = 1 + np.bincount(train, minlength=config.vocab)
    per_byte = 1 / texts["held_out_bytes"]
    by_frequency = -np.log2(counts[held_out] / counts.sum()).sum() * per_byte
    return np.log2(len(counts)) * len(held_out) * per_byte, by_frequency


def test_the_measured_run_is_whole_and_resumed_bit_for_bit():
    rows = rows_of(notebook.ROOT / "benchmarks" / "measured" / "real_run.jsonl")
    assert expect_equal_again(rows) == list(range(1, 321))


@pytest.mark.slow
@pytest.mark.thorough
def test_the_quick_run_learns_is_killed_and_goes_on(tmp_path):
    command = [sys.executable, SCRIPT, "--quick", "--out", tmp_path]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert "rank 2 was killed by SIGKILL" in done.stdout
    rows = rows_of(tmp_path / "log.jsonl")
    assert expect_equal_again(rows) == list(range(1, 41))
    uniform, frequencies = baselines()
    assert abs(rows[0]["loss"] - uniform) < 0.1 and rows[-1]["validation"] < frequencies + 0.03
    apart = float(re.search(r"again on 2 ranks: losses at most (\S+) bits", done.stdout)[1])
    assert apart < 1e-5


@pytest.mark.slow
@pytest.mark.thorough
def test_it_survives_a_death_under_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", SCRIPT, "--quick", "--out", tmp_path, "--kill", "1:10"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    assert expect_equal_again(rows_of(tmp_path / "log.jsonl")) == list(range(1, 41))
