"""What the checks of lesson 06 share: a model, data, one process as the oracle, scripts around one answer."""

from __future__ import annotations

import functools
import inspect
import json
import linecache
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.expect import digits_that_differ, fail
from autograder.checking.stage import call_inside

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
def parts_module() -> str:
    """Model and Examples as the text of a module."""
    imports = ["json", "os", "signal", "numpy as np", "torch"]
    head = "\n".join(["from __future__ import annotations", *(f"import {name}" for name in imports)])
    return "\n\n".join([head, f"LENGTH = {LENGTH}", *map(inspect.getsource, (Model, Interrupted, Examples))])


def _shard(rank: int, world_size: int, epoch: int, seed: int) -> list[int]:
    """The indices that rank `rank` reads in an epoch: shuffled, filled up from the start, every N-th."""
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    padded = order + order[: -LENGTH % world_size]
    return padded[rank::world_size]


def per_rank(world_size: int) -> int:
    return -(-LENGTH // world_size)


@functools.cache
def one_process(data_seed: int, world_size: int, epochs: int, batch_size: int = 16, lr: float = 0.1, seed: int = 0):
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
        for start in range(0, per_rank(world_size), batch_size):
            joined = [index for shard in shards for index in shard[start : start + batch_size]]
            picked = torch.log_softmax(model(data.x[joined]), 1)[torch.arange(len(joined)), data.y[joined]]
            gradients = torch.autograd.grad(-picked.mean(), parameters)
            total += -picked.sum().item()
            with torch.no_grad():
                for p, v, g in zip(parameters, momentum, gradients, strict=True):
                    v.mul_(0.9).add_(g)
                    p.sub_(lr * v)
        losses.append(total / (per_rank(world_size) * world_size))
    return losses, {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


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


def script_with(function: Callable, extra: str = "") -> str:
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


def meet_all(store: dist.Store, place: str, world_size: int) -> None:
    """Wait in a store of the checker's own until all ranks are here: whoever ends its group then, disturbs nobody."""
    store.add(place, 1)
    while store.add(place, 0) < world_size:
        time.sleep(0.002)


def forget_launcher() -> None:
    for name in LAUNCHER:
        os.environ.pop(name, None)


def plain_result(result: Any) -> dict:
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


def expect_result(got: dict, expected: tuple[list[float], dict], rank: int, case: str) -> None:
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
            one, other = digits_that_differ(mine, loss)
            text = f"rank {rank}'s loss of epoch {epoch + 1} is {one}, the mean over all examples is {other}"
            fail(f"{text}; the parameters are right", case, evidence)
