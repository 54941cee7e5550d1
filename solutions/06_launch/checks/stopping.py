"""Lesson 06, exercise 5: train until a signal comes, save, resume on another number of ranks."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import each_rank, fail
from autograder.checking.stage import run_ranks
from autograder.checks.launch.batches import deal

LENGTH, BATCH = 29, 8  # 4 steps an epoch, the last of 5 examples


class Signalled(torch.nn.Module):
    """Two layers and a buffer, in float64, that can send their own process a signal.

    `at`: the forward pass, counted from 1, in which the signal is sent; 0 while the model is made; None never.
    """

    at: int | None = None
    within = False  # is the answer running?
    missed = False  # did a signal reach the handler from before the call while it ran?
    latest: Signalled

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(3, 6), torch.nn.Linear(6, 4)
        self.register_buffer("scale", torch.tensor(1.5))
        self.double()
        self.calls, Signalled.latest = 0, self
        self.seed, self.draws = torch.initial_seed(), []
        self._send(0)

    def _send(self, number: int) -> None:
        if Signalled.at == number:
            os.kill(os.getpid(), signal.SIGTERM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, 3). Returns the logits of 4 classes, (B, 4)."""
        self.calls += 1
        self._send(self.calls)
        self.draws.append(torch.rand((), dtype=torch.float64).item())  # what dropout would do
        return self.outer(torch.tanh(self.inner(x)) * self.scale)


def _data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.standard_normal((LENGTH, 3))), torch.from_numpy(generator.integers(0, 4, LENGTH))


@functools.cache
def one_process(data_seed: int, steps: int, lr: float, seed: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """The oracle: one process, no optimizer object, one global batch after the other. (losses, name → array)."""
    x, y = _data(data_seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Signalled()
    parameters = list(model.parameters())
    momentum = [torch.zeros_like(p) for p in parameters]
    losses = []
    for [batch] in deal(steps, 1, LENGTH, BATCH, seed):
        loss = -torch.log_softmax(model(x[batch]), 1)[torch.arange(len(batch)), y[batch]].mean()
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(loss.item())
        with torch.no_grad():
            for p, v, g in zip(parameters, momentum, gradients, strict=True):
                v.mul_(0.9).add_(g)
                p.sub_(lr * v)
    return losses, {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def _earlier_handler(*_: Any) -> None:
    """What somebody has installed before the call."""
    Signalled.missed = Signalled.missed or Signalled.within


def _run(rank: int, world_size: int, train: Callable, data_seed: int, folder: str, settings: dict) -> dict:
    """One call; signals at settings["tell"][rank]. What it returned, and what else there was to see, as plain data."""
    Signalled.at, Signalled.missed = settings["tell"].get(rank), False
    # What the answer calls by these names, it finds to be right: each exercise is graded alone.
    inspect.unwrap(train).__globals__.update(save=_save, load=_load, one_step=_one_step)
    path = os.path.join(folder, "checkpoint")
    signal.signal(signal.SIGTERM, _earlier_handler)
    arguments = (Signalled, _data(data_seed), settings["steps"], path)
    options = {"global_batch": BATCH, "lr": settings["lr"], "seed": settings["seed"]}
    if settings.get("begun"):
        train(rank, world_size, *arguments[:2], settings["begun"], path, **options)
        dist.barrier()
    before = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    if rank == 0 and settings.get("slow_disk"):
        _slow_down()
    _Saves.made = 0
    Signalled.within = True
    result = train(rank, world_size, *arguments, **options)
    Signalled.within = False
    if settings.get("again"):
        Signalled.at = None
        dist.barrier()  # the answer's waiting is another property
        result = train(rank, world_size, *arguments, **options)
    there = os.path.exists(path) and os.stat(path).st_mtime_ns > before
    seen = {
        "there": there,
        "saves": _Saves.made,
        "up": dist.is_initialized(),
    }
    Signalled.at = None
    seen |= _plain(result) | {"steps": Signalled.latest.calls, "missed": Signalled.missed}
    seen |= {"seed": Signalled.latest.seed, "draws": Signalled.latest.draws}
    dist.barrier()
    return seen


class _Saves:
    """How often this rank has saved."""

    made = 0


def _save(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    _Saves.made += 1
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    torch.save(state, f"{path}.new.{dist.get_rank()}")
    os.rename(f"{path}.new.{dist.get_rank()}", path)


def _load(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    if not os.path.exists(path):
        return []
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["losses"]


def _one_step(
    ddp: Any, optimizer: torch.optim.Optimizer, data: tuple, step: int, global_batch: int, seed: int
) -> float:
    """The notebook's `one_step` with the checker's own batches."""
    x, y = data
    mine = deal(step + 1, dist.get_world_size(), len(x), global_batch, seed)[step][dist.get_rank()]
    loss = torch.nn.functional.cross_entropy(ddp(x[mine]), y[mine], reduction="sum")
    sums = torch.tensor([loss.item(), len(mine)], dtype=torch.float64)
    dist.all_reduce(sums)
    optimizer.zero_grad()
    (loss * dist.get_world_size() / sums[1]).backward()
    optimizer.step()
    return (sums[0] / sums[1]).item()


def _slow_down() -> None:
    """From now on, torch.save takes its time before it writes."""
    real = torch.save

    def slow(*args: Any, **kwargs: Any) -> None:
        time.sleep(0.5)
        real(*args, **kwargs)

    torch.save = slow


def _plain(result: Any) -> dict:
    """The returned dict as plain data; `problem` says why it is not the one that was asked for."""
    if not isinstance(result, dict) or not {"done", "losses", "state_dict"} <= set(result):
        return {"problem": f"it returned {type(result).__name__}, not a dict with done, losses and state_dict"}
    losses, state = result["losses"], result["state_dict"]
    if not isinstance(losses, (list, tuple)) or not all(isinstance(loss, (int, float)) for loss in losses):
        return {"problem": "losses is not a list of floats"}
    arrays = {str(name): value.detach().numpy().copy() for name, value in state.items()}
    return {"problem": "", "done": bool(result["done"]), "losses": [float(loss) for loss in losses], "state": arrays}


def _expect(case: str, results: list[dict], settings: dict, data_seed: int, start: int, told: int | None) -> int:
    """Every rank has done the oracle's steps, as many as the others; how many. told: in which step a signal came."""
    steps = settings["steps"]
    most = steps if told is None else min(steps, told + 1)
    least = steps if told is None else told
    for one, seen in each_rank(case, results, lambda seen: seen.get("losses", seen["problem"])):
        one.expect(not seen["problem"], seen["problem"])
        one.expect(seen["up"], "the process group is no longer up")
        count = len(seen["losses"])
        when = "no rank got a signal" if told is None else f"the signal came in step {told} of {steps}"
        one.expect(least <= count <= most, f"there are {count} losses; {when}", [start, count, seen["steps"]])
        one.expect(
            count == len(results[0]["losses"]), f"there are {count} losses, {len(results[0]['losses'])} on rank 0"
        )
        one.expect(seen["done"] == (count == steps), f"done is {seen['done']}, {count} of {steps} steps are", "done")
        text = f"{seen['steps']} steps were trained, and {start} had been done before: {count} should be done"
        one.expect(seen["steps"] == count - start, text)
        losses, state = one_process(data_seed, count, settings["lr"], settings["seed"])
        for name, value in state.items():
            names = sorted(seen["state"])
            one.expect(name in seen["state"], f"state_dict has no {name}; it has {names}", ["names", names])
            one.expect_close(seen["state"][name], value, what=name, rtol=1e-9, atol=1e-12)
        one.expect_close(np.array(seen["losses"]), np.array(losses), what="the list of losses", rtol=1e-9)
        text = "the model was made after torch.manual_seed of another number than seed"
        one.expect(seen["seed"] == settings["seed"], text, "another seed")
        text = "torch's global generator was seeded again between two steps: dropout would do the same in both"
        one.expect(len(set(seen["draws"])) == len(seen["draws"]), text, "seeded again")
    return len(results[0]["losses"])


def _jobs(train: Callable, rng: np.random.Generator, jobs: list[tuple[int, dict, int | None]], steps: int) -> None:
    """Calls on one checkpoint, one after the other. jobs: (ranks, rank → forward pass of the signal, its step)."""
    data_seed = int(rng.integers(2**31))
    settings = {"steps": steps, "lr": float(rng.choice([0.05, 0.1])), "seed": int(rng.integers(1, 2**20))}
    done = 0
    with tempfile.TemporaryDirectory(prefix="stopping-") as folder:
        for world_size, tell, told in jobs:
            who = ", ".join(f"rank {rank} gets the signal in step {done + at} of {steps}" for rank, at in tell.items())
            case = f"{world_size} rank{'s' * (world_size > 1)}, {done} steps done before, {who or 'no signal'}"
            now = settings | {"tell": tell}
            results = run_ranks(_run, world_size, (train, data_seed, folder, now), timeout=12.0)
            done = _expect(case, results, settings, data_seed, done, told and done + told)


@check("06-ex5-train-until-told", points=1.25)
def told_run_stops_and_resumes(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """A signal on any rank stops all after the same step; later calls, on other world sizes, end as if undisturbed."""
    _jobs(train_until_told, rng, [(1, {}, None), (1, {}, None)], 5)
    _jobs(train_until_told, rng, [(2, {1: 3}, 3), (3, {2: 2}, 2), (1, {}, None)], 12)
    _jobs(train_until_told, rng, [(3, {0: 2, 1: 2}, 2), (2, {}, None)], 9)
    _jobs(train_until_told, rng, [(2, {1: 3}, 3)], 3)
    results, *_ = _one_call(train_until_told, rng, {"tell": {1: 1}, "steps": 6, "again": True})
    case = "2 ranks, a second call in the same processes, after a signal in the first"
    for one, seen in each_rank(case, results, lambda seen: [len(seen["losses"]), seen["done"]]):
        text = (
            f"{len(seen['losses'])} of 6 steps are done and done is {seen['done']}; no signal came in the second call"
        )
        one.expect(len(seen["losses"]) == 6 and seen["done"], text)


@check("06-ex5-train-until-told", points=0.5)
def no_rank_returns_before_the_file_is_there(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """Rank 0 alone saves, and when a rank returns, the new checkpoint is there, on a slow disk as well."""
    runs: list[tuple] = []
    for told, case, begun in (
        ({}, "no signal", 0),
        ({1: 1}, "a signal in step 1", 0),
        ({}, "a checkpoint is there", 1),
    ):
        results, *run = _one_call(train_until_told, rng, {"slow_disk": True, "tell": told, "begun": begun})
        slow = f"2 ranks, {case}, saving takes half a second"
        for one, seen in each_rank(slow, results, lambda seen: seen["there"]):
            one.expect(seen["there"], "the call returned before the new checkpoint was there")
        runs.append((slow, results, run, bool(told), begun))
    for one, seen in each_rank("2 ranks", results, lambda seen: ["saves", seen["saves"]]):
        one.expect(bool(seen["saves"]) == (one.rank == 0), f"save was called {seen['saves']} times; only rank 0 saves")
    case = "2 ranks, no step is asked for"
    none, *_ = _one_call(train_until_told, rng, {"steps": 0})
    for one, seen in each_rank(case, none, lambda seen: ["no step", seen["there"]]):
        one.expect(seen["there"], "all is done, and nothing was saved")
    for slow, results, run, told, begun in runs:
        # How soon a signal stops the run is another check's.
        stopped = max(1, len(results[0]["losses"]) - 1) if told else None
        _expect(slow, results, *run, start=begun, told=stopped)


@check("06-ex5-train-until-told", points=0.25)
def signal_may_come_early(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """A signal that comes while the model is made stops the run after at most one step."""
    for tell, who in (({0: 0, 1: 0}, "each gets the signal"), ({1: 0}, "rank 1 gets the signal")):
        results, *run = _one_call(train_until_told, rng, {"tell": tell})
        case = f"2 ranks, {who} while its model is made"
        for one, seen in each_rank(case, results, lambda seen: [seen["steps"], seen["missed"]]):
            one.expect(not results[1]["missed"], "the handler was not yet installed when the signal came to rank 1")
            one.expect(seen["steps"] <= 1, f"{seen['steps']} steps were trained")
        _expect(case, results, *run, start=0, told=0)


def _one_call(train: Callable, rng: np.random.Generator, more: dict) -> tuple[list[dict], dict, int]:
    """What each rank has seen in a call on two ranks; its settings and the seed of its data, for `_expect`."""
    data_seed = int(rng.integers(2**31))
    settings = {"steps": 3, "lr": 0.1, "seed": 1, "tell": {}} | more
    with tempfile.TemporaryDirectory(prefix="stopping-") as folder:
        results = run_ranks(_run, 2, (train, data_seed, folder, settings), timeout=12.0)
    for seen in results:
        if seen["problem"]:
            fail(seen["problem"], "2 ranks", seen["problem"])
    return results, settings, data_seed
