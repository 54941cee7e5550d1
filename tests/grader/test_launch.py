"""Lesson 06: its scripts leave when they are told to; the jobs of its checks write what the flight recorder writes."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs

import ranks
from autograder.checks import module
from autograder.lesson import notebook

diagnosis = module("06_launch", "diagnosis")

pytestmark = pytest.mark.skipif("06_launch" not in notebook.lessons(), reason="the lesson is not there")


def recorded(rank, world_size):
    """A rank's own dump after one all-reduce."""
    dist.all_reduce(torch.ones(3))
    return json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))


def played(kind, seed=0):
    """(dumps, what is to be found) of a job with this fault."""
    rng = np.random.default_rng(seed)
    return diagnosis._played(rng, kind, 4)


def test_a_played_dump_has_the_fields_of_a_real_one():
    real = ranks.run(recorded, 2, echo=False)[0]
    mine = next(dump for dump in played("hung")[0] if dump)
    assert set(mine) <= set(real)
    entry, real_entry = mine["entries"][-1], real["entries"][-1]
    assert set(entry) <= set(real_entry)
    assert set(mine["pg_config"]["0"]) == set(next(iter(real["pg_config"].values())))
    for name in ("collective_seq_id", "profiling_name", "input_sizes", "time_created_ns", "timeout_ms", "state"):
        assert type(entry[name]) is type(real_entry[name]), name
    assert real_entry["process_group"] == ["0", "default_pg"] and entry["process_group"][0] == "0"


def test_only_a_dead_rank_leaves_no_dump_and_only_the_culprit_is_missing():
    for kind in ("dead", "hung"):
        for seed in range(20):
            dumps, (said, culprit, (group, number, _)) = played(kind, seed)
            assert said == kind and [rank for rank, dump in enumerate(dumps) if dump is None] == [culprit] * (
                kind == "dead"
            )
            called = [
                rank
                for rank, dump in enumerate(dumps)
                for entry in (dump or {"entries": []})["entries"]
                if (entry["process_group"][0], entry["collective_seq_id"]) == (group, number)
            ]
            assert called == [rank for rank in range(4) if rank != culprit]


# The loops that call train_until_told


class ToldInStep(torch.nn.Linear):
    """A model whose forward number TOLD_IN_STEP in a process sends SIGTERM to rank 1."""

    steps = 0

    def __init__(self):
        super().__init__(2, 3, dtype=torch.float64)

    def forward(self, x):
        ToldInStep.steps += 1
        if (os.environ["RANK"], str(ToldInStep.steps)) == ("1", os.environ["TOLD_IN_STEP"]):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().forward(x)


def runs_the_notebooks_script(rank, world_size, folder, told_in_step):
    """The cell under "Put together", whose script asks four times for three more steps."""
    [cell] = [cell.source for cell in notebook.read("06_launch").cells if "\ndef script(folder)" in cell.source]
    points = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = points, (points[:, 0] > 0).long()
    space = {**notebook.functions("06_launch"), "Model": ToldInStep, "data": data}
    exec(cell, space)
    os.environ.update(TORCHELASTIC_RESTART_COUNT="1", TOLD_IN_STEP=str(told_in_step))
    space["script"](folder)


def test_the_notebooks_script_leaves_when_it_is_told_to_and_goes_on(tmp_path):
    for told_in_step in (5, 0):  # in the middle of the second three steps; in none
        ranks.run(runs_the_notebooks_script, 2, (str(tmp_path), told_in_step), echo=False, timeout=120)
    lines = re.findall(r"train to step (\d+): (\d+) are", (tmp_path / "log").read_text())
    assert [f"{done} of {asked}" for asked, done in lines[:2]] == ["3 of 3", "5 of 6"]
    assert [f"{done} of {asked}" for asked, done in lines[2:]] == ["5 of 3", "6 of 6", "9 of 9", "12 of 12"]
    assert torch.load(tmp_path / "result.0", weights_only=True)["done"]


def test_the_chapters_script_leaves_when_it_is_told_to_and_goes_on(tmp_path):
    text = (notebook.ROOT / "book" / "06_launch.md").read_text()
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [cell] = [cell for cell in cells if "train.py" in cell]
    definitions = cell[cell.index("NAMES =") : cell.index("scratch =")]
    space = {"lesson": notebook.functions("06_launch")}
    exec(definitions, space)
    functions = [inspect.getsource(space["lesson"][name]) for name in space["NAMES"]]
    script = space["HEAD"] + "\n\n".join(functions) + space["MAIN"]
    assert script.count("== (1, 0, 8)") == script.count("SIGKILL") == 1
    script = script.replace("== (1, 0, 8)", "== (0, 0, 5)").replace("SIGKILL", "SIGTERM")  # rank 0, in its fifth step
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "train.py"]
    for attempt, steps in enumerate((5, 12)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {**os.environ, **place, "TORCHELASTIC_RESTART_COUNT": str(attempt), "DDP_BACKEND": "gloo"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        result = torch.load(tmp_path / "result.0", weights_only=True)
        assert (result["done"], len(result["losses"])) == (steps == 12, steps)


def runs_the_end_of_a_train_py(rank, world_size, folder, told_in_step):
    """The chapter's loop, three steps a call, with exercise 5's function and one more argument of it."""
    text = (notebook.ROOT / "book" / "06_launch.md").read_text()
    [end] = re.findall(r"^```python\n(told = .*?)^```$", text, re.MULTILINE | re.DOTALL)
    space = notebook.functions("06_launch")
    source = inspect.getsource(space["train_until_told"])
    assert source.count("*, global_batch") == source.count("    told = []\n") == 1
    exec(source.replace("*, global_batch", "*, told, global_batch").replace("    told = []\n", ""), space)
    points = torch.randn(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    space |= {"rank": rank, "n": world_size, "Model": ToldInStep, "data": (points, (points[:, 0] > 0).long())}
    space |= {"EVERY": 3, "LAST": 9, "Path": Path, "options": SimpleNamespace(checkpoint=f"{folder}/checkpoint")}
    os.environ["TOLD_IN_STEP"] = str(told_in_step)
    exec(end, space)


@pytest.mark.parametrize(("told_in_step", "taken"), [(2, 2), (3, 4), (9, 9)])
def test_the_end_of_a_train_py_leaves_also_when_told_in_the_last_step_of_a_call(tmp_path, told_in_step, taken):
    ranks.run(runs_the_end_of_a_train_py, 2, (str(tmp_path), told_in_step), echo=False, timeout=120)
    assert (tmp_path / "step").read_text() == str(taken)
    assert (tmp_path / "done").exists() == (taken == 9)


# What the chapter says


def code_of_the_chapter(start):
    """The chapter's cell with this text, from there on."""
    text = (notebook.ROOT / "book" / "06_launch.md").read_text()
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [cell] = [cell for cell in cells if start in cell]
    return cell[cell.index(start) :]


def test_of_errors_in_one_second_the_one_that_is_not_about_communication_is_first(tmp_path):
    gloo = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    nccl = "DistBackendError: NCCL error in: NCCLUtils.cpp: remote process exited or there was a network error"
    messages = {0: gloo, 2: "TimeoutError: the connection to the storage timed out", 3: nccl}
    for rank, message in messages.items():
        path = tmp_path / f"node_{rank // 2}" / "attempt_0" / str(rank % 2) / "error.json"  # a folder per local rank
        path.parent.mkdir(parents=True)
        path.with_name("who").write_text(f"rank {rank} on node {rank // 2}")
        about = {"message": message, "extraInfo": {"timestamp": "1700000001" if rank else "1700000002"}}
        path.write_text(json.dumps({"message": about}))
    space = {"Path": Path, "json": json, "re": re}
    exec(code_of_the_chapter("def errors(folder)"), space)
    assert [(who, message) for *_, who, message in space["errors"](tmp_path)] == [
        (f"rank {rank} on node {rank // 2}", messages[rank]) for rank in (2, 3, 0)
    ]


def test_torch_still_does_what_the_chapter_says_of_agents_and_times():
    """The claims that name a version: read them again, and the chapter, when this fails after an update of torch."""
    agent = inspect.getsource(SimpleElasticAgent._invoke_run)
    healthy = agent[agent.index("state == WorkerState.HEALTHY") :]
    assert healthy.count("_restart_workers") == healthy.count("num_nodes_waiting > 0") == 1
    header = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d" / "FlightRecorder.hpp"
    words = " ".join(header.read_text().replace("//", " ").split())
    assert (
        "likely close to the time the work was 'enqueued'- not necessarily started c10::time_t time_created_" in words
    )
    assert "timing must also be enabled for compute_duration" in words
    nccl = " ".join(header.with_name("ProcessGroupNCCL.hpp").read_text().replace("//", " ").split())
    assert "Enable recording start-events for all ProcessGroupNCCL collectives" in nccl  # by TORCH_NCCL_ENABLE_TIMING
    assert "can increase chances of a watchdog hang" in nccl and "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC" in nccl
    detail = header.with_name("FlightRecorderDetail.hpp").read_text()
    assert '{"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 2000)' in header.read_text()
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in nccl and 'c10::str(fileStem, rank, ".pipe")' in nccl
    assert "if (r.start_ != nullptr)" in detail and "e.time_discovered_started_.has_value()" in detail
    assert 'mkdtemp(prefix="torchelastic_")' in inspect.getsource(DefaultLogsSpecs)  # of error files, below /tmp


def test_torchs_analyzer_still_tells_the_hangs_apart_as_the_chapter_says(tmp_path):
    """The rows of the table, by their dumps: a rank is missing, differs, or has not started; all have started."""
    group = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    fixed = {"pg_id": 0, "p2p_seq_id": 0, "process_group": ("0", "default_pg"), "is_p2p": False, "time_created_ns": 0}
    fixed |= {"input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    fixed |= {f"time_discovered_{state}_ns": None for state in ("started", "completed")}
    fixed |= {"retired": False, "timeout_ms": 600_000, "frames": [], "record_id": 0, "op_id": 1, "collective_seq_id": 1}

    def says(*states, name="nccl:all_reduce"):
        """What it prints of three ranks: a state, or "" for a rank that has not called, or None for no dump."""
        for path in tmp_path.iterdir():
            path.unlink()
        for rank, state in enumerate(states):
            entry = {**fixed, "state": state, "profiling_name": name if rank == 2 else "nccl:all_reduce"}
            dump = {"version": "2.10", "pg_config": group, "entries": [entry] if state else []}
            if state is not None:
                (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump))
        command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        return done.stdout + done.stderr

    assert "missing ranks: {2}" in says("started", "started", "")
    assert "COLLECTIVE_TYPE_MISMATCH" in says("started", "started", "started", name="nccl:all_gather")
    assert "COLLECTIVE_STATE_MISMATCH" in says("started", "started", "scheduled")
    assert not re.search("missing|MISMATCH", says("started", "started", "started"))
    assert "Missing dump files from ranks {2}" in says("started", "started", None)
