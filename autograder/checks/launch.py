"""Lesson 06: a script that starts its group, trains, resumes and can be launched.

Most properties are tried inside `ranks.run`: a launcher is nothing but an environment and a store, and both
can be played there in a tenth of a second. What only the real thing shows is tried with the real thing: one
run of torchrun's own agent with forked ranks, one real `torchrun` whose rank 1 is killed, one real `mp.spawn`.

Each function is graded alone: for a script, the others come from the solution (`_script`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import io
import json
import linecache
import os
import pickle
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from autograder.checking.check import check
from autograder.checking.expect import CheckFailed, expect_raises, fail
from autograder.checking.instruments.pickles import Bomb
from autograder.checking.stage import call_inside, run_ranks

LESSON = "06_launch"
NAMES = ("setup_ddp", "cleanup_ddp", "train_ddp", "launch_distributed")
LENGTH = 101  # a prime: no number of ranks divides it
#: Everything that a launcher may have said; the checks say it anew.
LAUNCHER = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DDP_BACKEND"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"),
)
#: Seconds that a real launch may take: many times what it takes, and less than what grading gives a test cell.
LAUNCH_TIMEOUT = 90.0


# ---- the checker's own model and data; `_parts` makes a module of them, which new processes can import ----


class Model(torch.nn.Module):
    """Two layers and a buffer, in float64."""

    latest: Model  # the last one that was made in this process

    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(3, 6), torch.nn.Linear(6, 4)
        self.register_buffer("scale", torch.tensor(1.5))
        self.double()
        Model.latest = self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, 3). Returns the logits of 4 classes, (B, 4)."""
        return self.outer(torch.tanh(self.inner(x)) * self.scale)


class Interrupted(Exception):
    """What a dataset raises where a crash is played."""


class Examples(torch.utils.data.Dataset):
    """101 examples drawn from a seed. `reads` lists the indices that were read, in order.

    interrupt_at: raise when so many have been read. In a launched process, all comes from the variable
    CHECK_LAUNCH: the seed, a folder to write the reads into, and when rank 1 shall kill itself.
    """

    def __init__(self, seed: int | None = None, interrupt_at: int | None = None):
        self.settings = json.loads(os.environ.get("CHECK_LAUNCH", "{}")) if seed is None else {}
        generator = np.random.default_rng(self.settings.get("seed", seed))
        self.x = torch.from_numpy(generator.standard_normal((LENGTH, 3)))
        self.y = torch.from_numpy(generator.integers(0, 4, LENGTH))
        self.reads: list[int] = []
        self.interrupt_at = interrupt_at

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.reads.append(int(index))
        if len(self.reads) == self.interrupt_at:
            raise Interrupted
        if self.settings:
            self._write_down()
        return self.x[index], self.y[index]

    def _write_down(self) -> None:
        rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        with open(os.path.join(self.settings["folder"], f"reads.{attempt}.{rank}"), "a") as file:
            file.write(".")
        if (rank, attempt) == ("1", "0") and len(self.reads) == self.settings["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)


@functools.cache
def _parts() -> str:
    """Model and Examples as the text of a module."""
    imports = ["json", "os", "signal", "numpy as np", "torch"]
    head = "\n".join(["from __future__ import annotations", *(f"import {name}" for name in imports)])
    return "\n\n".join([head, f"LENGTH = {LENGTH}", *map(inspect.getsource, (Model, Interrupted, Examples))])


def _shard(rank: int, world_size: int, epoch: int, seed: int) -> list[int]:
    """The indices that rank `rank` reads in an epoch: shuffled, filled up from the start, every N-th."""
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    padded = order + order[: -LENGTH % world_size]
    return padded[rank::world_size]


def _per_rank(world_size: int) -> int:
    return -(-LENGTH // world_size)


@functools.cache
def _one_process(data_seed: int, world_size: int, epochs: int, batch_size: int = 16, lr: float = 0.1, seed: int = 0):
    """The oracle: one process, no optimizer object, on the ranks' joined batches. (losses, name → array)."""
    data = Examples(data_seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Model()
    parameters = list(model.parameters())
    momentum = [torch.zeros_like(p) for p in parameters]
    losses = []
    for epoch in range(epochs):
        shards = [_shard(rank, world_size, epoch, seed) for rank in range(world_size)]
        total = 0.0
        for start in range(0, _per_rank(world_size), batch_size):
            joined = [index for shard in shards for index in shard[start : start + batch_size]]
            picked = torch.log_softmax(model(data.x[joined]), 1)[torch.arange(len(joined)), data.y[joined]]
            gradients = torch.autograd.grad(-picked.mean(), parameters)
            total += -picked.sum().item()
            with torch.no_grad():
                for p, v, g in zip(parameters, momentum, gradients, strict=True):
                    v.mul_(0.9).add_(g)
                    p.sub_(lr * v)
        losses.append(total / (_per_rank(world_size) * world_size))
    return losses, {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


# ---- scripts: the student's function among the solution's ----


@functools.cache
def _solution() -> tuple[str, Callable]:
    """The solution's functions as the text of a module, and the notebook's `export`.

    A cell's source is looked up by the cell's name, so running the solution's cells hides the student's:
    what was there is put back.
    """
    from autograder.lessons import notebook

    before = dict(linecache.cache)
    try:
        space = notebook.functions(LESSON)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "script.py")
            space["export"](path, *(space[name] for name in (*NAMES, "main")))
            text = path.read_text()
    finally:
        linecache.cache.clear()
        linecache.cache.update(before)
    return text.split('if __name__ == "__main__":')[0], space["export"]


def _script(function: Callable, extra: str = "") -> str:
    """A module with the student's function and what it uses, and the solution's other three; then `extra`."""
    text, export = _solution()
    own, name_of_it = call_inside(_exported, export, function)
    others = [name for name in NAMES if name != name_of_it]
    keep = "\n".join(f"_{name} = {name}" for name in others)
    back = "\n".join(f"{name} = _{name}" for name in others)
    return "\n\n".join([text, keep, own, back, extra])


def _exported(export: Callable, function: Callable) -> tuple[str, str]:
    """The function and what it uses as the text of a module, and its name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        export(path, inspect.unwrap(function))
        return path.read_text(), function.__name__


def _meet(store: dist.Store, place: str, world_size: int) -> None:
    """Wait in a store of the checker's own until all ranks are here: whoever ends its group then, disturbs nobody."""
    store.add(place, 1)
    while store.add(place, 0) < world_size:
        time.sleep(0.002)


def _forget_launcher() -> None:
    for name in LAUNCHER:
        os.environ.pop(name, None)


# ---- 1 · setup_ddp ----


def _in_a_running_group(rank: int, world_size: int, setup_ddp: Callable) -> dict:
    """A group is up and the environment is none: nothing may happen."""
    _forget_launcher()
    before = dist.group.WORLD
    setup_ddp(rank, world_size)
    total = torch.ones(1)
    same = dist.group.WORLD is before
    dist.all_reduce(total)
    return {"same": same, "total": total.item()}


def _scenes(rank: int, world_size: int, setup_ddp: Callable, scenes: list[dict]) -> list[dict]:
    """Start from an environment, look, end the group; once a scene."""
    dist.destroy_process_group()
    seen = []
    for scene in scenes:
        _forget_launcher()
        with _busy_port() if scene.get("busy") else contextlib.nullcontext(scene.get("port") or _free_port()) as port:
            plain = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            plain |= scene.get("environment", {})
            os.environ.update({name: str(value) for name, value in plain.items() if value is not None})
            seen.append(_look(setup_ddp, rank, world_size))
    return seen


def _look(setup_ddp: Callable, rank: int, world_size: int) -> dict:
    """What one call of setup_ddp did, as plain data."""
    before, look = dict(os.environ), {"error": None}
    try:
        setup_ddp(rank, world_size)
    except NotImplementedError:
        raise
    except (Exception, SystemExit) as error:
        if world_size > 1:  # the others may wait for this one: fail as a whole, with a text that is always the same
            text = str(error).replace(os.environ.get("MASTER_PORT", "?"), "…")
            raise RuntimeError(f"setup_ddp raised {type(error).__name__}: {text}") from None
        kinds = [kind.__name__ for kind in type(error).__mro__]
        look["error"] = {"kinds": kinds, "text": str(error), "lines": str(error).count("\n") + 1}
    changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
    # torch.distributed sets the first of these itself when it is imported or when a store is made.
    look["changed"] = sorted(name for name in changed if not name.startswith("TORCH"))
    look["up"] = dist.is_initialized()
    if look["up"]:
        look["ranks"], look["backend"] = (dist.get_rank(), dist.get_world_size()), dist.get_backend()
        options = dist.group.WORLD._get_backend(torch.device("cpu")).options
        look["timeout"] = options._timeout.total_seconds()
        total = torch.ones(1)
        dist.all_reduce(total)
        look["total"] = total.item()
        if world_size == 1:  # more ranks play one scene only, and may leave the group as it is
            dist.destroy_process_group()
    return look


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextlib.contextmanager
def _busy_port() -> Iterator[int]:
    """A port at which another program listens, on every address of this machine."""
    with socket.create_server(("", 0)) as taken:
        yield taken.getsockname()[1]


@check("06-ex1-setup-ddp")
def setup_starts_what_the_environment_describes(setup_ddp, *, rng):
    """A running group is left alone; else a group with the right ranks, a short timeout, the same environment."""
    for rank, seen in enumerate(run_ranks(_in_a_running_group, 2, (setup_ddp,))):
        if not seen["same"] or seen["total"] != 2:
            fail(f"on rank {rank} a group was up, and setup_ddp did not leave it alone", "a group is up", seen)
    for world_size in (1, 2):
        scene = {"environment": {"DDP_BACKEND": "gloo"}} | ({"port": _free_port()} if world_size > 1 else {})
        case = f"started by hand, {world_size} rank{'s' * (world_size > 1)}"
        try:
            results = run_ranks(_scenes, world_size, (setup_ddp, [scene]))
        except CheckFailed as failure:  # whichever of the ranks it was
            raise CheckFailed(failure.message, case, "did not start") from failure
        for rank, (seen,) in enumerate(results):
            if seen["changed"]:
                text = f"setup_ddp changed {', '.join(seen['changed'])} in the environment, which the launcher has set"
                fail(text, case, seen["changed"])
            if seen["error"]:
                _fail_for_error(seen, rank, case)
            if not seen["up"]:
                fail(f"rank {rank} has no process group after setup_ddp", case, "no group")
            if seen["ranks"] != (rank, world_size) or seen["total"] != world_size:
                told = f"rank {seen['ranks'][0]} of {seen['ranks'][1]}"
                fail(f"rank {rank} of {world_size} became {told}", case, seen["ranks"])
            if not 0 < seen["timeout"] <= 60:
                text = f"the group's timeout is {seen['timeout']:g} s, at most 60 s were asked for"
                fail(text, case, f"timeout {seen['timeout']:g}")


def _fail_for_error(seen: dict, rank: int, case: str) -> None:
    error = seen["error"]
    text = error["text"].splitlines()[0] if error["text"] else ""
    fail(f"setup_ddp raised {error['kinds'][0]} on rank {rank}: {text}", case, error["kinds"][0])


@check("06-ex1-setup-ddp")
def setup_refuses_what_cannot_work(setup_ddp, *, rng):
    """Each start that cannot work is an error of one line that names what is wrong."""
    other = int(rng.integers(2, 9))
    wanted = [
        ("MASTER_ADDR is not set", {"MASTER_ADDR": None}, "ValueError", "MASTER_ADDR"),
        ("MASTER_PORT is not set", {"MASTER_PORT": None}, "ValueError", "MASTER_PORT"),
        ("WORLD_SIZE is not set", {"WORLD_SIZE": None}, "ValueError", "WORLD_SIZE"),
        ("RANK is not set", {"RANK": None}, "ValueError", "RANK"),
        ("WORLD_SIZE is another number", {"WORLD_SIZE": other}, "ValueError", "WORLD_SIZE"),
        ("RANK is another number", {"RANK": other - 1}, "ValueError", "RANK"),
        ("NCCL without a GPU", {"DDP_BACKEND": "nccl", "CUDA_VISIBLE_DEVICES": ""}, "ValueError", "nccl"),
        ("the port is in use", {}, "RuntimeError", "MASTER_PORT"),
    ]
    scenes = [
        {"environment": {"DDP_BACKEND": "gloo", **environment}, "busy": name == "the port is in use"}
        for name, environment, *_ in wanted
    ]
    for seen, (case, _, kind, mentions) in zip(run_ranks(_scenes, 1, (setup_ddp, scenes))[0], wanted, strict=True):
        error = seen["error"]
        if error is None:
            fail(f"setup_ddp raised no {kind}", case, "nothing raised")
        if kind not in error["kinds"]:
            fail(f"setup_ddp should raise {kind}, it raised {error['kinds'][0]}", case, error["kinds"][0])
        if not re.search(mentions, error["text"], re.IGNORECASE):
            told = error["text"].splitlines()[0] if error["text"] else ""
            fail(f"the {kind} should name {mentions}, it says {told!r}", case, "not named")
        if error["lines"] > 1:
            text = f"the error's text has {error['lines']} lines; whoever reads a log wants one that says what is wrong"
            fail(text, case, "many lines")
        if seen["up"]:
            fail("a group was started all the same", case, "started")


def _attempts(rank: int, world_size: int, setup_ddp: Callable) -> list[dict]:
    """Two attempts under a launcher whose store, here rank 0's, outlives them: what is in the store after each."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    told = [store and store.port]
    dist.broadcast_object_list(told)
    [port] = told
    dist.destroy_process_group()
    agent = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    found = []
    for attempt in range(2):
        _forget_launcher()
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world_size),
            LOCAL_WORLD_SIZE=str(world_size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            DDP_BACKEND="gloo",
            TORCHELASTIC_RUN_ID="0123",
            TORCHELASTIC_RESTART_COUNT=str(attempt),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        setup_ddp(rank, world_size)
        total = torch.ones(1)
        dist.all_reduce(total)
        _meet(agent, f"joined {attempt}", world_size)
        keys = {key: agent.get(key).hex() for key in sorted(agent.list_keys()) if "//" in key}
        found.append({"total": total.item(), "keys": keys})
        _meet(agent, f"looked {attempt}", world_size)
        dist.destroy_process_group()
    agent.add("gone", 1)
    while rank == 0 and agent.add("gone", 0) < world_size:  # the store ends with this process
        time.sleep(0.002)
    return found


@check("06-ex1-setup-ddp")
def setup_gives_each_attempt_keys_of_its_own(setup_ddp, *, rng):
    """Under torchrun the ranks meet at the agent's store, and a second attempt touches no key of the first.

    One rank comes first. It connects to nobody, so that what it finds in the store cannot make it fail.
    """
    for world_size in (1, 2, 3):
        first, second = run_ranks(_attempts, world_size, (setup_ddp,))[0]
        case = f"under torchrun, {world_size} rank{'s' * (world_size > 1)}"
        if first["total"] != world_size or second["total"] != world_size:
            totals = (first["total"], second["total"])
            fail(f"{world_size} ranks that each bring 1 add up to {totals}", case, str(totals))
        if not first["keys"]:
            text = "the ranks have not met at the store at MASTER_ADDR and MASTER_PORT, which the agent has opened"
            fail(text, case, "elsewhere")
        fresh = set(second["keys"]) - set(first["keys"])
        touched = [key for key, value in first["keys"].items() if second["keys"].get(key) != value]
        if touched or not fresh:
            kept = sorted(first["keys"])
            text = f"the second attempt has used keys of the first, such as {kept[0]}: after a crash it would read"
            fail(f"{text} what dead ranks have left there", case, kept)


@check("06-ex1-setup-ddp")
def setup_survives_a_restart(setup_ddp, *, rng):
    """With torchrun's own agent, on 3 ranks: rank 1 is killed, all are started again, and the run ends well."""
    _expect_survival(setup_ddp, 3, int(rng.integers(2**31)), real=False)


# ---- launching ----


def _launch(rank, world_size, whose: Callable, nproc: int, folder: str, settings: dict, real: bool) -> dict:
    """Inside a rank of its own, so that nothing is left behind: start `train.py` there and report.

    whose: the function that the script is made of. Where it lives, its script runs.
    """
    dist.destroy_process_group()
    _forget_launcher()
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
        "result": _plain(torch.load(result, weights_only=True)) if os.path.exists(result) else None,
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


def _expect_survival(function: Callable, nproc: int, seed: int, real: bool) -> None:
    """Rank 1 kills itself in the middle of epoch 2 of 3: the run ends as if nothing had happened."""
    case = f"{'torchrun' if real else 'torchrun’s agent'}, {nproc} ranks, rank 1 killed in epoch 2"
    each, text = _per_rank(nproc), _script(function)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        Path(folder, "train.py").write_text(f'{text}\n\nif __name__ == "__main__":\n    main()\n')
        Path(folder, "parts.py").write_text(_parts())
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
    _expect_result(seen["result"], _one_process(seed, nproc, 3), 0, case)


# ---- 2 · cleanup_ddp ----


def _clean_up(rank: int, world_size: int, cleanup_ddp: Callable, folder: str) -> dict:
    """End the group, end it again, start and end a new one, then rank 0 alone ends one more."""
    seen, meeting = {}, dist.FileStore(os.path.join(folder, "meeting"), world_size)
    _meet(meeting, "start", world_size)
    cleanup_ddp()
    seen["ended"] = not dist.is_initialized()
    try:
        cleanup_ddp()
        seen["twice"] = ""
    except Exception as error:
        seen["twice"] = type(error).__name__
        return seen
    if not seen["ended"]:
        return seen
    for name in ("again", "alone"):
        store = dist.FileStore(os.path.join(folder, name), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        _meet(meeting, name, world_size)
        if name == "again" or rank == 0:  # alone, the other ranks return at once
            cleanup_ddp()
            seen[name] = not dist.is_initialized()
    return seen


@check("06-ex2-cleanup-ddp")
def cleanup_ends_the_group(cleanup_ddp, *, rng):
    """Once, twice, after a new start, and without the other ranks."""
    for world_size in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            results = run_ranks(_clean_up, world_size, (cleanup_ddp, folder))
        case = f"{world_size} rank{'s' * (world_size > 1)}"
        for rank, seen in enumerate(results):
            if seen["twice"]:
                fail(f"the second cleanup_ddp() raised {seen['twice']} on rank {rank}", case, seen["twice"])
            if not seen["ended"]:
                fail(f"the group of rank {rank} is still up after cleanup_ddp()", case, "still up")
            if not seen["again"]:
                fail(f"a new group of rank {rank} is still up after cleanup_ddp()", case, "second group still up")
            if not seen.get("alone", True):
                fail("the group is still up after cleanup_ddp() on rank 0 alone", case, "alone")


# ---- 3 · train_ddp ----


def _plain(result: Any) -> dict:
    """What train_ddp returned as plain data; `problem` says why it is not the dict that was asked for."""
    if not isinstance(result, dict) or not {"losses", "state_dict"} <= set(result):
        kind = f"a dict with {sorted(map(str, result))}" if isinstance(result, dict) else type(result).__name__
        return {"problem": f"returned {'None' if result is None else kind}, not a dict with losses and state_dict"}
    losses, state = result["losses"], result["state_dict"]
    if not isinstance(losses, (list, tuple)) or not all(isinstance(loss, (int, float)) for loss in losses):
        return {"problem": "returned losses that are not a list of floats"}
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        return {"problem": "returned a state_dict that is not a dict of tensors"}
    if any(value.device.type != "cpu" for value in state.values()):
        return {"problem": "returned a state_dict that is not on the CPU"}
    arrays = {str(name): value.detach().numpy().copy() for name, value in state.items()}
    return {"problem": "", "losses": [float(loss) for loss in losses], "state": arrays}


def _expect_result(got: dict, expected: tuple[list[float], dict], rank: int, case: str) -> None:
    """What one rank returned equals the oracle, within 1e-9."""
    losses, state = expected
    if got["problem"]:
        fail(f"rank {rank} {got['problem']}", case, got["problem"])
    if set(got["state"]) != set(state):
        surplus, missing = sorted(set(got["state"]) - set(state)), sorted(set(state) - set(got["state"]))
        told = f"surplus {surplus}, missing {missing}"
        fail(f"rank {rank}'s state_dict has other names than model_class(): {told}", case, sorted(got["state"]))
    if len(got["losses"]) != len(losses):
        text = f"rank {rank} returned {len(got['losses'])} losses for {len(losses)} epochs"
        fail(text, case, (rank, got["losses"]))
    evidence = [np.array(got["losses"]), *(got["state"][name].reshape(-1) for name in sorted(state))]
    for name, value in state.items():
        mine = got["state"][name]
        if mine.shape != value.shape or not np.allclose(mine, value, rtol=1e-9, atol=1e-9):
            text = f"rank {rank}'s {name} is not what one process gets on the ranks' joined batches"
            off = "" if mine.shape != value.shape else f": off by up to {np.abs(mine - value).max():.2g}"
            fail(text + off, case, evidence)
    for epoch, (mine, loss) in enumerate(zip(got["losses"], losses, strict=True)):
        if not abs(mine - loss) <= 1e-9 * max(1.0, abs(loss)):
            text = f"rank {rank}'s loss of epoch {epoch + 1} is {mine:.6g}, the mean over all examples is {loss:.6g}"
            fail(f"{text}; the parameters are right", case, evidence)


def _train_cases(rank: int, world_size: int, train_ddp: Callable, data_seed: int, cases: list[dict]) -> list[dict]:
    seen = []
    for case in cases:
        case, data, printed = dict(case), Examples(data_seed), io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = train_ddp(rank, world_size, Model, data, case.pop("epochs"), **case)
        up = dist.is_initialized()
        with torch.no_grad():
            for p in Model.latest.parameters():
                p.add_(1.0)  # the returned dict is a copy, so it must not see this
        seen.append({"up": up, "printed": printed.getvalue(), **_plain(result)})
        if not up:
            break
    return seen


@check("06-ex3-train-ddp")
def training_equals_one_process(train_ddp, *, rng):
    """N = 1…4 ranks: the losses and parameters of one process on the joined batches, on every rank."""
    data_seed, seed = int(rng.integers(2**31)), int(rng.integers(1, 2**20))
    cases = [
        {"epochs": 3},
        {"epochs": 2, "batch_size": 7, "lr": 0.03, "seed": seed},
        {"epochs": 0, "seed": seed},
    ]
    for world_size in (1, 2, 3, 4):
        results = run_ranks(_train_cases, world_size, (train_ddp, data_seed, cases))
        for number, case in enumerate(cases):
            name = f"{world_size} rank{'s' * (world_size > 1)}, " + ", ".join(f"{k} = {v}" for k, v in case.items())
            name = name.replace(str(seed), "…")
            for rank, mine in enumerate(results):
                if number >= len(mine):
                    fail("the process group is no longer up after train_ddp", name, "ended")
                _expect_result(mine[number], _one_process(data_seed, world_size, **case), rank, name)
                _expect_lines(mine[number], range(case["epochs"]) if rank == 0 else (), rank, name)
        if not all(seen["up"] for mine in results for seen in mine):
            fail("the process group is no longer up after train_ddp", f"{world_size} ranks", "ended")


def _expect_lines(seen: dict, epochs: Any, rank: int, case: str) -> None:
    """One line for each of these epochs, with its number from 1 and its loss; nothing else."""
    lines = [line for line in seen["printed"].splitlines() if line.strip()]
    if len(lines) != len(epochs):
        wanted = f"one line for each of {len(epochs)} epochs" if rank == 0 else "only rank 0 prints"
        fail(f"rank {rank} printed {len(lines)} lines: {wanted}", case, (rank, len(lines)))
    for line, epoch in zip(lines, epochs, strict=True):
        numbers = re.findall(r"-?\d+\.?\d*(?:[eE][-+]?\d+)?", line)
        told = [float(number) for number in numbers]
        if str(epoch + 1) not in numbers:
            fail(f"the line {line!r} does not name epoch {epoch + 1}", case, "epoch")
        if not any(abs(number - seen["losses"][epoch]) < 1e-3 for number in told):
            fail(f"the line {line!r} does not give the loss {seen['losses'][epoch]:.4f}", case, "loss")


class _Watch:
    """Inside a rank: who saves, renames and removes what in a folder."""

    def __init__(self, folder: str):
        self.folder, self.events = folder, []
        sys.addaudithook(self._audit)
        self._save, torch.save = torch.save, self._saving

    def _audit(self, event: str, arguments: tuple) -> None:
        if event in ("os.rename", "os.remove"):
            paths = [os.path.abspath(os.fsdecode(path)) for path in arguments if not isinstance(path, int)]
            if any(path.startswith(self.folder) for path in paths):
                folders = ["here" if os.path.dirname(path) == self.folder else "elsewhere" for path in paths]
                self.events.append((event, os.path.basename(paths[-1]), *folders))

    def _saving(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            self.events.append(("torch.save",))
        return self._save(obj, f, *args, **kwargs)


def _resume(rank: int, world_size: int, train_ddp: Callable, data_seed: int, root: str) -> dict:
    """One epoch, two, an interruption in the fourth, the rest, and once more; what there was to see."""
    folder = os.path.join(root, "run")
    checkpoint, kept = os.path.join(folder, "checkpoint"), os.path.join(root, "kept")
    watch, each, seen = _Watch(folder), _per_rank(world_size), {"stages": {}}

    def stage(name: str, epochs: int, interrupt_at: int | None = None) -> bool:
        """Train; True if no rank failed."""
        data, printed = Examples(data_seed, interrupt_at), io.StringIO()
        record = seen["stages"][name] = {"error": ""}
        try:
            with contextlib.redirect_stdout(printed):
                record |= _plain(train_ddp(rank, world_size, Model, data, epochs, seed=3, checkpoint=checkpoint))
        except NotImplementedError:
            raise
        except Exception as error:
            record["error"] = type(error).__name__
        record |= {"reads": len(data.reads), "printed": printed.getvalue()}
        seen["events"] = watch.events
        wrong = torch.tensor([record["error"] not in ("", "Interrupted")], dtype=torch.int64)
        dist.all_reduce(wrong)
        return not wrong.item()

    if not stage("first", 1) or not os.path.exists(checkpoint):
        return seen
    if not stage("second", 2):
        return seen
    if rank == 0:
        os.link(checkpoint, kept)
        seen["before"] = _content(checkpoint)
    dist.barrier()
    if not stage("interrupted", 5, interrupt_at=each + each * 2 // 3) or not stage("rest", 5) or not stage("done", 5):
        return seen
    if rank == 0:
        seen["after"], seen["renamed"] = _content(kept), not os.path.samefile(kept, checkpoint)
        seen["left"] = sorted(os.listdir(folder))
        if world_size == 1:
            seen["bomb"] = _plant(checkpoint, train_ddp, data_seed, os.path.join(root, "marker"))
    return seen


def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _plant(checkpoint: str, train_ddp: Callable, data_seed: int, marker: str) -> str:
    """Put a program into the checkpoint and train on from it: "" if it did not run."""
    try:
        saved = torch.load(checkpoint, weights_only=True)
    except Exception:
        return "cannot be loaded"
    bomb = {**saved, "bomb": Bomb(marker)} if isinstance(saved, dict) else [saved, Bomb(marker)]
    torch.save(bomb, checkpoint)
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        train_ddp(0, 1, Model, Examples(data_seed), 6, seed=3, checkpoint=checkpoint)
    return "ran" if os.path.exists(marker) else ""


@check("06-ex3-train-ddp")
def training_resumes(train_ddp, *, rng):
    """An interrupted run goes on from a file that was whole at every moment, and ends where it would have ended."""
    data_seed = int(rng.integers(2**31))
    for world_size in (1, 2, 3):
        with tempfile.TemporaryDirectory(prefix="resume-") as root:
            os.mkdir(os.path.join(root, "run"))
            Path(root, "run", "checkpoint.tmp").write_bytes(b"half a file")
            results = run_ranks(_resume, world_size, (train_ddp, data_seed, root), timeout=30.0)
        _expect_one_writer(results, world_size)
        _expect_stages(results, world_size, data_seed)
        _expect_whole_files(results[0], world_size)


def _expect_one_writer(results: list[dict], world_size: int) -> None:
    case = f"{world_size} ranks with a checkpoint"
    for rank, seen in enumerate(results):
        if rank and seen["events"]:
            fail(f"rank {rank} has written files too; only rank 0 saves", case, "another rank writes")


def _expect_stages(results: list[dict], world_size: int, data_seed: int) -> None:
    each = _per_rank(world_size)
    wanted = {"first": (1, 1), "second": (2, 1), "interrupted": (5, 2), "rest": (5, 2), "done": (5, 0)}
    names = {
        "first": "the first epoch",
        "second": "one epoch more",
        "interrupted": "three epochs more, interrupted in the middle of the fourth",
        "rest": "resumed after the interruption",
        "done": "started again when all is done",
    }
    for name, (epochs, new) in wanted.items():
        case = f"{world_size} rank{'s' * (world_size > 1)}, {names[name]}"
        for rank, seen in enumerate(results):
            if name not in seen["stages"]:
                fail("there is no file at checkpoint after an epoch", case, "no file")
            record = seen["stages"][name]
            if record["error"] not in ("", "Interrupted"):
                fail(f"train_ddp raised {record['error']} on rank {rank}", case, record["error"])
        for rank, seen in enumerate(results):
            record = seen["stages"][name]
            if name == "interrupted":
                reads = record["reads"]
                if reads != each + each * 2 // 3:
                    fail(f"rank {rank} read {reads} examples before the interruption", case, reads)
                continue
            if record["reads"] != new * each:
                text = f"rank {rank} read {record['reads']} examples; {new} epochs were left to run, of {each} each"
                fail(text, case, (rank, record["reads"]))
            _expect_result(record, _one_process(data_seed, world_size, epochs, seed=3), rank, case)
            _expect_lines(record, range(epochs - new, epochs) if rank == 0 else (), rank, case)


def _expect_whole_files(seen: dict, world_size: int) -> None:
    case = f"{world_size} rank{'s' * (world_size > 1)} with a checkpoint"
    removed = [event for event in seen["events"] if event[:2] == ("os.remove", "checkpoint")]
    if removed:
        text = "the old checkpoint is removed before the new one has its name: for a moment there is none"
        fail(text, case, "removed")
    if seen["before"] != seen["after"] or not seen["renamed"]:
        fail("the file at checkpoint is written over while it is the only one", case, "in place")
    renames = [event for event in seen["events"] if event[:2] == ("os.rename", "checkpoint")]
    if len(renames) < 5:
        text = f"5 epochs were saved, but only {len(renames)} times did a finished file get the checkpoint's name"
        fail(text, case, ("renames", len(renames)))
    if ("os.rename", "checkpoint", "elsewhere", "here") in renames:
        text = "the new checkpoint is renamed from another folder: across file systems that is a copy, not a rename"
        fail(text, case, "another folder")
    surplus = [name for name in seen["left"] if name not in ("checkpoint", "checkpoint.tmp")]
    if surplus:
        fail(f"files are left beside the checkpoint: {surplus}", case, "left behind")
    if bomb := seen.get("bomb"):
        text = "a program hidden in the checkpoint ran when train_ddp loaded it"
        fail(text if bomb == "ran" else "the checkpoint cannot be loaded with weights_only=True", case, bomb)


@check("06-ex3-train-ddp")
def training_survives_torchrun_and_a_kill(train_ddp, *, rng):
    """A real torchrun, 4 ranks, rank 1 killed in mid-epoch: exit 0 and the undisturbed run's parameters."""
    _expect_survival(train_ddp, 4, int(rng.integers(2**31)), real=True)


# ---- 4 · launch_distributed ----

#: In place of the solution's functions: they say what they were called with, and train nothing.
STAND_INS = """
import json as _json
import os as _os


def _note(rank, **what):
    path = _os.path.join(_os.environ["CHECK_NOTES"], f"{rank}")
    with open(path, "a") as file:
        file.write(_json.dumps(what) + "\\n")


def train_ddp(rank, world_size, model_class, data, epochs, *, batch_size=16, lr=0.1, seed=0, checkpoint=None):
    import torch
    import torch.distributed as dist

    up = dist.is_initialized()
    arguments = [rank, world_size, model_class.__name__, data, epochs, batch_size, lr, seed, checkpoint]
    note = {"arguments": arguments, "up": up}
    if up:
        store = dist.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        total = torch.ones(1)
        dist.all_reduce(total)
        note |= {"group": [dist.get_rank(), dist.get_world_size(), total.item()]}
        note |= {"store": type(store).__name__}
    _note(rank, **note)
    if data == "bad" and rank == world_size - 1:
        raise ArithmeticError("the data of this rank are bad")
    return {"losses": [float(rank), 0.5], "state_dict": {"weight": torch.full((3,), 10.0 + rank)}}


def setup_ddp(rank, world_size):
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError("setup_ddp found no group, and no environment that describes one")


def cleanup_ddp():
    import torch.distributed as dist

    if dist.is_initialized():
        _note(dist.get_rank(), cleanup=True)
        dist.destroy_process_group()
"""


def _modules(folder: str, *texts: str) -> list[Any]:
    """The modules with these texts, imported by names that new processes can import too."""
    names = [f"exported_{os.path.basename(folder).replace('-', '_')}_{number}" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        Path(folder, f"{name}.py").write_text(text)
    sys.path.insert(0, folder)
    return [importlib.import_module(name) for name in names]


def _forking_spawn(fn: Callable, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False, **_: Any):
    """mp.spawn with forked processes, which start at once. As spawn does, it sends the function and args by pickle."""
    fn = pickle.loads(pickle.dumps(fn))
    with contextlib.suppress(RuntimeError):  # a queue may be sent while a process starts, and at no other time
        args = pickle.loads(pickle.dumps(args))
    return mp.start_processes(fn, args, nprocs, join, daemon, start_method="fork")


def _noting_places(init_process_group: Callable) -> Callable:
    """init_process_group that first notes the file in which the ranks are to meet, if it is one."""

    def noting(*args: Any, **kwargs: Any) -> None:
        named = inspect.signature(init_process_group).bind_partial(*args, **kwargs).arguments
        place = getattr(named.get("store"), "path", None) or str(named.get("init_method")).partition("file://")[2]
        if place:
            Path(os.environ["CHECK_NOTES"], f"place-{os.getpid()}").write_text(place)
        return init_process_group(*args, **kwargs)

    return noting


def _launch_forked(rank, world_size, whose: Callable, folder: str, text: str, parts: str, calls: list) -> dict:
    """Inside a rank of its own: some launches with stand-ins, and what the processes noted."""
    dist.destroy_process_group()
    _forget_launcher()
    notes = Path(folder, "notes")
    temporary = Path(folder, "tmp")
    temporary.mkdir()
    os.environ.update(CUDA_VISIBLE_DEVICES="", TMPDIR=str(temporary))
    tempfile.tempdir = None
    import torch.multiprocessing.spawn  # noqa: F401  the module, which the function of this name hides

    sys.modules["torch.multiprocessing.spawn"].spawn = mp.spawn = _forking_spawn
    dist.init_process_group = _noting_places(dist.init_process_group)
    module, own = _modules(folder, text, parts)
    seen = []
    for number, (nprocs, kwargs) in enumerate(calls):
        here = notes / str(number)
        here.mkdir(parents=True)
        os.environ["CHECK_NOTES"] = str(here)
        record = {"error": None, "result": None}
        try:
            record["result"] = _plain(module.launch_distributed(nprocs, model_class=own.Model, **kwargs))
        except NotImplementedError:
            raise
        except Exception as error:
            record["error"] = (type(error).__name__, str(error))
        record["places"] = sorted({note.read_text().partition("?")[0] for note in here.glob("place-*")})
        record["running"] = bool(mp.active_children())
        if record["running"]:  # how far they came is luck: nothing that they noted counts
            seen.append(record)
            for process in mp.active_children():
                process.kill()
            break
        record["notes"] = {int(f.name): [json.loads(line) for line in f.open()] for f in here.glob("[0-9]*")}
        seen.append(record)
    # What multiprocessing and mp.spawn themselves leave begins with these names.
    left = [name for name in os.listdir(temporary) if not name.startswith(("pymp-", "torch_", "pytorch-errorfile"))]
    return {"calls": seen, "left": len(left)}


@check("06-ex4-launch-distributed")
def launching_brings_back_what_rank_0_returns(launch_distributed, *, rng):
    """Every argument arrives, the ranks meet in a new file, rank 0's result comes back, errors are raised."""
    for wrong in (0, -3):
        case = f"world_size = {wrong}"
        expect_raises(case, launch_distributed, wrong, error=ValueError, mentions="world_size")
    some = {"epochs": int(rng.integers(1, 50)), "lr": float(rng.random()), "seed": int(rng.integers(100))}
    every = {**some, "batch_size": int(rng.integers(2, 64)), "checkpoint": "some/where"}
    common = {"data": "good"}
    calls = [(2, common | some), (3, common | every), (1, common | some), (2, common | {"data": "bad", "epochs": 1})]
    text = _script(launch_distributed, STAND_INS)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        seen = run_ranks(_launch_forked, 1, (launch_distributed, folder, text, _parts(), calls))[0]
    # Before anything else: whether ranks that meet in an old file find each other, and what they raise, is luck.
    places = [place for record in seen["calls"] for place in record["places"]]
    if len(set(places)) < len(places):
        fail("two launches have met in the same file", "several launches", "same file")
    for (nprocs, kwargs), record in zip(calls[:-1], seen["calls"], strict=False):
        _expect_launch(nprocs, kwargs, record)
    case = "an exception in rank 1"
    error = seen["calls"][-1]["error"]
    if error is None:
        fail("nothing was raised", case, "nothing raised")
    if "the data of this rank are bad" not in error[1]:
        fail(f"what was raised does not tell what went wrong in the rank: {error[0]}", case, error[0])
    if seen["left"]:
        fail(f"{seen['left']} files or folders are left in the folder for temporary files", "files", seen["left"])


def _expect_launch(nprocs: int, kwargs: dict, record: dict) -> None:
    case = f"{nprocs} processes" if nprocs > 1 else "1 process"
    if record["running"]:
        fail("launch_distributed ended while its processes were still running", case, "still running")
    notes = record["notes"]
    if set(notes) == set(range(nprocs)) and all("arguments" in mine[0] for mine in notes.values()):
        for rank, mine in notes.items():
            _expect_note(rank, nprocs, kwargs, mine, case)
    if record["error"]:
        name, text = record["error"]
        lines = [line for line in text.splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        # A rank's own error comes as text, in which a port differs; those of others may name temporary files. In which
        # way ranks do not find each other is luck.
        told = re.sub(r"\d+", "#", last) if name.startswith("Process") else ""
        evidence = "no connection" if re.search("gloo|connect", text, re.IGNORECASE) else (name, told)
        fail(f"launch_distributed raised {name}: {last}", case, evidence)
    if set(notes) != set(range(nprocs)):
        fail(f"train_ddp was called on the ranks {sorted(notes)}, not on all of {nprocs}", case, sorted(notes))
    got = record["result"]
    if got["problem"]:
        fail(f"launch_distributed {got['problem']}", case, got["problem"])
    if got["losses"] != [0.0, 0.5] or list(got["state"]) != ["weight"] or got["state"]["weight"].tolist() != [10.0] * 3:
        fail("launch_distributed did not return what rank 0's train_ddp has returned", case, str(got["losses"]))


def _expect_note(rank: int, nprocs: int, kwargs: dict, mine: list[dict], case: str) -> None:
    note = mine[0]
    full = {"batch_size": 16, "lr": 0.1, "seed": 0, "checkpoint": None, **kwargs}
    order = ("data", "epochs", "batch_size", "lr", "seed", "checkpoint")
    wanted = [rank, nprocs, "Model", *(full[name] for name in order)]
    names = ("rank", "world_size", "model_class", *order)
    for name, got, expected in zip(names, note["arguments"], wanted, strict=True):
        if got != expected:
            fail(f"train_ddp got {name} = {got!r} on rank {rank}, not {expected!r}", case, (name, "wrong"))
    if not note["up"]:
        fail("there is no process group when train_ddp is called", case, "no group")
    if note["group"] != [rank, nprocs, float(nprocs)]:
        fail(f"rank {rank} of {nprocs} is rank {note['group'][0]} of {note['group'][1]} in its group", case, "ranks")
    if note["store"] != "FileStore":
        fail(f"the ranks have met in a {note['store']}, not in a file: its port may be taken", case, note["store"])
    if {"cleanup": True} not in mine:
        fail("cleanup_ddp was not called after train_ddp", case, "no cleanup")


def _launch_spawned(rank, world_size, whose: Callable, folder: str, text: str, parts: str, settings: dict) -> dict:
    """Inside a rank of its own: one launch with the real mp.spawn and the real train_ddp."""
    dist.destroy_process_group()
    _forget_launcher()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.stdout.flush()
    module, own = _modules(folder, text, parts)
    data = own.Examples(settings["seed"])
    return _plain(module.launch_distributed(2, model_class=own.Model, data=data, epochs=settings["epochs"], lr=0.05))


@check("06-ex4-launch-distributed")
def launching_works_with_fresh_processes(launch_distributed, *, rng):
    """The real mp.spawn, with 2 new Pythons that train: what one process gets."""
    seed, case = int(rng.integers(2**31)), "2 new Python processes"
    text = _script(launch_distributed)
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        arguments = (launch_distributed, folder, text, _parts(), {"seed": seed, "epochs": 2})
        got = run_ranks(_launch_spawned, 1, arguments, timeout=LAUNCH_TIMEOUT)[0]
    _expect_result(got, _one_process(seed, 2, 2, lr=0.05), 0, case)
