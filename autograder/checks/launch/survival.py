"""Launches by torchrun, and by an agent that is played, of a script whose rank is killed and started again."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from autograder.checking.expect import fail
from autograder.checking.stage import run_ranks
from autograder.checks.launch.common import (
    LAUNCH_TIMEOUT,
    expect_result,
    forget_launcher,
    one_process,
    parts_module,
    per_rank,
    plain_result,
    script_with,
)


def _launch(rank, world_size, whose: Callable, nproc: int, folder: str, settings: dict, real: bool) -> dict:
    """Inside a rank of its own, so that nothing is left behind: start `train.py` there and report.

    whose: the function that the script is made of. Where it lives, its script runs.
    """
    dist.destroy_process_group()
    forget_launcher()
    os.makedirs(os.path.join(folder, "tmp"))
    tempfile.tempdir = None
    os.environ.update(
        CHECK_LAUNCH=json.dumps(settings),
        DDP_BACKEND="gloo",
        CUDA_VISIBLE_DEVICES="",
        TMPDIR=os.path.join(folder, "tmp"),
    )
    script = os.path.join(folder, "train.py")
    sys.path.insert(0, folder)
    arguments = ["--model", "parts:Model", "--data", "parts:Examples", "--epochs", str(settings["epochs"])]
    arguments += ["--checkpoint", os.path.join(folder, "checkpoint"), "--out", os.path.join(folder, "result")]
    status = (_torchrun if real else _agent)(script, arguments, nproc)
    reads = {file.name[6:]: file.stat().st_size for file in Path(folder).glob("reads.*")}
    result = os.path.join(folder, "result")
    return {
        "status": status,
        "reads": reads,
        "result": plain_result(torch.load(result, weights_only=True)) if os.path.exists(result) else None,
    }


def _torchrun(script: str, arguments: list[str], nproc: int) -> int:
    """The real thing, as a user types it; its exit status, or -1 when it takes too long."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    command = [*launcher, f"--nproc_per_node={nproc}", script, *arguments]
    started = subprocess.Popen(command, start_new_session=True)
    try:
        return started.wait(LAUNCH_TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        return -1


def _agent(script: str, arguments: list[str], nproc: int) -> int:
    """torchrun's agent, store and restarts, with ranks that are forked from this process: much faster."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id="check",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        monitor_interval=0.05,
        start_method="fork",
    )
    try:
        elastic_launch(config, _run_script)(script, arguments)
    except Exception:
        return 1
    return 0


def _run_script(script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def expect_survival(function: Callable, nproc: int, seed: int, real: bool) -> None:
    """Rank 1 kills itself in the middle of epoch 2 of 3: the run ends as if nothing had happened."""
    case = f"{'torchrun' if real else 'torchrun’s agent'}, {nproc} ranks, rank 1 killed in epoch 2"
    each, text = per_rank(nproc), script_with(function)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        Path(folder, "train.py").write_text(f'{text}\n\nif __name__ == "__main__":\n    main()\n')
        Path(folder, "parts.py").write_text(parts_module())
        settings = {"seed": seed, "folder": folder, "kill_at": each + each * 2 // 3, "epochs": 3}
        seen = run_ranks(_launch, 1, (function, nproc, folder, settings, real), timeout=LAUNCH_TIMEOUT + 10)[0]
    if seen["status"] != 0 or seen["result"] is None:
        attempts = len({name.split(".")[0] for name in seen["reads"]})
        how = "did not end in time" if seen["status"] == -1 else f"ended with exit status {seen['status']}"
        fail(f"the run {how} after {attempts} attempt{'s' * (attempts > 1)}", case, (seen["status"] != 0, attempts))
    again = [seen["reads"].get(f"1.{rank}", 0) for rank in range(nproc)]
    if again != [2 * each] * nproc:
        text = f"the second attempt read {again} examples, rank by rank; epochs 2 and 3 are {2 * each} for each"
        fail(text, case, again)
    expect_result(seen["result"], one_process(seed, nproc, 3), 0, case)
