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
from autograder.checking.expect import each_rank
from autograder.checking.stage import run_ranks
from autograder.checks.launch.batches import deal

LENGTH, BATCH = 29, 8  # 4 steps an epoch, the last of 5 examples


class Signalled(torch.nn.Module):
    """Two layers and a buffer, in float64, that can send their own process a signal.

    `at`: the forward pass, counted from 1, in which the signal is sent; 0 while the model is made; None never.
    """

    names = ("inner.weight", "inner.bias", "outer.weight", "outer.bias", "scale")
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
        self._send(0)

    def _send(self, number: int) -> None:
        if Signalled.at == number:
            os.kill(os.getpid(), signal.SIGTERM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, 3). Returns the logits of 4 classes, (B, 4)."""
        self.calls += 1
        self._send(self.calls)
        return self.outer(torch.tanh(self.inner(x)) * self.scale)


def _data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.standard_normal((LENGTH, 3))), torch.from_numpy(generator.integers(0, 4, LENGTH))


@functools.cache
def one_process(
    data_seed: int, steps: int, lr: float, seed: int
) -> tuple[list[float], dict[str, np.ndarray], list[np.ndarray]]:
    """The oracle: one process, no optimizer object, one global batch after the other.

    (losses, name → array, momentum of each parameter).
    """
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
    state = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    return losses, state, [v.numpy().copy() for v in momentum]


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
    before = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    if rank == 0 and settings.get("slow_disk"):
        _slow_down()
    _Saves.made = 0
    Signalled.within = True
    result = train(rank, world_size, *arguments, **options)
    Signalled.within = False
    seen = {"there": os.path.exists(path) and os.stat(path).st_mtime_ns > before, "saves": _Saves.made}
    Signalled.at = None
    if settings.get("again"):
        dist.barrier()  # the answer's waiting is another property
        result = train(rank, world_size, *arguments, **options)
    seen |= _plain(result) | {"steps": Signalled.latest.calls, "missed": Signalled.missed, "up": dist.is_initialized()}
    dist.barrier()
    saved = torch.load(path, weights_only=True) if os.path.exists(path) else {"losses": [], "model": {}}
    seen["file"] = len(saved["losses"])
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
    return {"problem": "", "done": result["done"], "losses": [float(loss) for loss in losses], "state": arrays}


def _call(train: Callable, rng: np.random.Generator, world_size: int, more: dict) -> tuple[list[dict], dict]:
    """What each rank has seen in a call on so many ranks, and the call's settings; done: steps of the file before it.

    That file is the work of one process that nobody disturbed.
    """
    settings = {"steps": 5, "lr": float(rng.choice([0.05, 0.1])), "seed": int(rng.integers(1, 2**20)), "tell": {}}
    settings |= {"data": int(rng.integers(2**31)), "done": 0} | more
    with tempfile.TemporaryDirectory(prefix="stopping-") as folder:
        if settings["done"]:
            losses, state, momentum = one_process(*(settings[name] for name in ("data", "done", "lr", "seed")))
            _write(os.path.join(folder, "checkpoint"), losses, state, momentum, settings["lr"])
        results = run_ranks(_run, world_size, (train, settings["data"], folder, settings), timeout=12.0)
    for one, seen in each_rank(_name(world_size, settings), results, lambda seen: seen["problem"]):
        one.expect(not seen["problem"], seen["problem"])
    return results, settings


def _name(world_size: int, settings: dict) -> str:
    """The case in words."""
    done, steps = settings["done"], settings["steps"]
    told = [
        f"rank {rank} gets the signal " + (f"in step {done + at} of {steps}" if at else "while its model is made")
        for rank, at in settings["tell"].items()
    ]
    ranks = f"{world_size} rank{'s' * (world_size > 1)}"
    return f"{ranks}, {done} of {steps} steps done before, {', '.join(told) or 'no signal'}"


def _write(path: str, losses: list[float], state: dict, momentum: list[np.ndarray], lr: float) -> None:
    """The checkpoint of a run that has done so many steps."""
    model = Signalled()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for p, value in zip(model.parameters(), momentum, strict=True):
        optimizer.state[p]["momentum_buffer"] = torch.from_numpy(value)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": list(losses)}
    torch.save(saved, path)


def _count(results: list[dict]) -> list[int]:
    return [len(seen["losses"]) for seen in results]


@check("06-ex5-train-until-told", points=1)
def a_told_run_stops_together(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """A signal on any rank stops all ranks after the same step, and what they have done is in the file."""
    cases = [(2, {1: 3}), (3, {2: 2}), (3, {0: 2, 1: 2}), (2, {0: 1}), (1, {0: 2})]
    for world_size, tell in cases:
        results, settings = _call(train_until_told, rng, world_size, {"tell": tell, "steps": 6})
        told = max(tell.values())
        for one, seen in each_rank(
            _name(world_size, settings), results, lambda seen: [len(seen["losses"]), seen["file"]]
        ):
            counts = _count(results)
            one.expect(len(set(counts)) == 1, f"the ranks have done {counts} steps")
            one.expect(told <= counts[0] <= told + 1, f"{counts[0]} steps are done", counts[0])
            one.expect(
                seen["steps"] == counts[0], f"{seen['steps']} steps were trained, and there are {counts[0]} losses"
            )
            one.expect(seen["up"], "the process group is no longer up", "down")
            text = f"{counts[0]} steps are done, and the file has {seen['file']}"
            one.expect(seen["file"] == counts[0], text, ["file", seen["file"]])


@check("06-ex5-train-until-told", points=0.75)
def a_later_call_goes_on(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """A call without a signal goes on from the file, on any number of ranks, and ends where an undisturbed run ends."""
    for world_size, done, steps in ((1, 0, 3), (2, 0, 5), (2, 3, 7), (3, 2, 6), (1, 5, 9), (2, 4, 4)):
        results, settings = _call(train_until_told, rng, world_size, {"done": done, "steps": steps})
        losses, state, _ = one_process(settings["data"], steps, settings["lr"], settings["seed"])
        case = _name(world_size, settings)
        for one, seen in each_rank(case, results, lambda seen: [len(seen["losses"]), seen["steps"]]):
            one.expect(len(seen["losses"]) == steps, f"there are {len(seen['losses'])} losses")
            text = f"{seen['steps']} steps were trained, and {done} of {steps} had been done before"
            one.expect(seen["steps"] == steps - done, text)
            one.expect_close(np.array(seen["losses"]), np.array(losses), what="the list of losses", rtol=1e-9)
            for name, value in state.items():
                got = seen["state"].get(name, seen["state"].get(f"module.{name}"))  # the names are another property
                one.expect(got is not None, f"state_dict has no {name}", ["names", sorted(seen["state"])])
                one.expect_close(got, value, what=name, rtol=1e-9, atol=1e-12)


@check("06-ex5-train-until-told", points=0.25)
def no_rank_returns_before_the_file_is_there(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """When a rank returns, the new checkpoint is there, on a slow disk as well."""
    for done in (0, 1):
        more = {"slow_disk": True, "steps": 2 + done + int(rng.integers(2)), "done": done}
        results, settings = _call(train_until_told, rng, 2, more)
        case = f"{_name(2, settings)}, saving takes half a second"
        for one, seen in each_rank(case, results, lambda seen: seen["there"]):
            one.expect(seen["there"], "the call returned before the new checkpoint was there")


@check("06-ex5-train-until-told", points=0.25)
def rank_0_alone_saves(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """Rank 0 saves, and no other rank does."""
    for world_size in (2, 3):
        results, settings = _call(train_until_told, rng, world_size, {"steps": 1 + int(rng.integers(1, 4))})
        for one, seen in each_rank(_name(world_size, settings), results, lambda seen: ["saves", seen["saves"]]):
            text = f"save was called {seen['saves']} times; only rank 0 saves"
            one.expect(bool(seen["saves"]) == (one.rank == 0), text)


@check("06-ex5-train-until-told", points=0.25)
def done_is_true_if_all_steps_are_done(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """done says whether all steps are done, also if the signal came in the last of them."""
    steps = int(rng.integers(3, 6))
    for world_size, tell in ((1, {}), (2, {0: steps, 1: steps}), (2, {0: 1, 1: 1})):
        results, settings = _call(train_until_told, rng, world_size, {"tell": tell, "steps": steps})
        for one, seen in each_rank(_name(world_size, settings), results, lambda seen: ["done", bool(seen["done"])]):
            count = len(seen["losses"])
            text = f"done is {seen['done']!r}, and {count} of {steps} steps are done"
            one.expect(bool(seen["done"]) == (count == steps), text)


@check("06-ex5-train-until-told", points=0.25)
def state_dict_has_the_models_names(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """state_dict is that of the model, and not of DDP around it."""
    results, settings = _call(train_until_told, rng, 2, {"steps": int(rng.integers(1, 4))})
    for one, seen in each_rank(_name(2, settings), results, lambda seen: ["names", sorted(seen["state"])]):
        names = sorted(seen["state"])
        one.expect(names == sorted(Signalled.names), f"it has {names}, the model {sorted(Signalled.names)}")


@check("06-ex5-train-until-told", points=0.25)
def a_signal_may_come_early(train_until_told: Callable, *, rng: np.random.Generator) -> None:
    """A signal that comes while the model is made stops the run; one of an earlier call does not."""
    steps = int(rng.integers(3, 6))
    results, settings = _call(train_until_told, rng, 2, {"tell": {0: 0, 1: 0}, "steps": steps})
    for one, seen in each_rank(_name(2, settings), results, lambda seen: [seen["steps"], seen["missed"]]):
        one.expect(not seen["missed"], "the handler was not yet installed when the signal came")
        one.expect(seen["steps"] <= 1, f"{seen['steps']} steps were trained")
    results, settings = _call(train_until_told, rng, 2, {"tell": {0: 1, 1: 1}, "steps": steps, "again": True})
    case = f"{_name(2, settings)}, and then a second call in the same processes, without a signal"
    for one, seen in each_rank(case, results, lambda seen: ["again", len(seen["losses"])]):
        one.expect(len(seen["losses"]) == steps, f"{len(seen['losses'])} of {steps} steps are done")
