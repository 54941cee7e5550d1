"""Lesson 06, exercise 5: train until a signal comes, save, resume on another number of ranks."""

from __future__ import annotations

import inspect
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, at_most, close, fact, sentence
from autograder.checks.check import check

from .batches import deal

TRAIN = "06-ex5-train-until-told"
LENGTH, BATCH = 29, 8  # 4 steps an epoch, the last of 5 examples


class Signalled(torch.nn.Module):
    """Two layers and a buffer, in float64, that can send their own process a signal.

    `at`: the forward pass, counted from 1, in which the signal is sent; 0 while the model is made; None never.
    """

    names = ("inner.weight", "inner.bias", "outer.weight", "outer.bias", "scale")
    at: int | None = None
    within = False  # is the answer running?
    missed = False  # did a signal reach the handler from before the call while it ran?
    saved = 0  # how often this rank has saved
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


def _undisturbed(settings: dict, steps: int) -> tuple[list[float], dict[str, np.ndarray], list[np.ndarray]]:
    """The oracle: losses, state and momentum of one process, no optimizer object, one global batch after the other."""
    x, y = _data(settings["data"])
    with torch.random.fork_rng():
        torch.manual_seed(settings["seed"])
        model = Signalled()
    parameters = list(model.parameters())
    momentum = [torch.zeros_like(p) for p in parameters]
    losses = []
    for [batch] in deal(steps, 1, LENGTH, BATCH, settings["seed"]):
        loss = -torch.log_softmax(model(x[batch]), 1)[torch.arange(len(batch)), y[batch]].mean()
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(loss.item())
        with torch.no_grad():
            for p, v, g in zip(parameters, momentum, gradients, strict=True):
                v.mul_(0.9).add_(g)
                p.sub_(settings["lr"] * v)
    state = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    return losses, state, [v.numpy().copy() for v in momentum]


@dataclass
class Ran:
    """What a rank has after a call."""

    problem: str = sentence()
    missed: str = sentence()
    count: Any = fact("the number of losses")
    trained: Any = fact("the number of steps that were trained")
    torn: list = sentence()
    losses: Any = fact("the list of losses")
    state: Any = fact("{}")
    names: Any = fact("the list of names in state_dict")
    late: str = sentence()
    saves: Any = fact("the number of times that save was called", "only rank 0 saves")
    undone: str = sentence()


def _earlier_handler(*_: Any) -> None:
    """What somebody has installed before the call."""
    Signalled.missed = Signalled.missed or Signalled.within


def _run(rank: int, world_size: int, train: Callable, settings: dict, before: tuple) -> Ran:
    """One call. before: losses, state and momentum of the file, if there is one."""
    # What the answer calls by these names, it finds to be right: each exercise is graded alone.
    inspect.unwrap(train).__globals__.update(save=_save, load=_load, one_step=_one_step)
    signal.signal(signal.SIGTERM, _earlier_handler)
    options = {"global_batch": BATCH, "lr": settings["lr"], "seed": settings["seed"]}
    with tempfile.TemporaryDirectory(prefix="stopping-") as own:
        folders = [own]
        dist.broadcast_object_list(folders)
        path = os.path.join(folders[0], "checkpoint")
        if rank == 0 and before:
            _write(path, *before, settings["lr"])
        dist.barrier()
        written = os.stat(path).st_mtime_ns if before else 0
        if rank == 0 and settings["slow_disk"]:
            _slow_down()
        arguments = (rank, world_size, Signalled, _data(settings["data"]), settings["steps"], path)
        Signalled.at, Signalled.missed = settings["tell"].get(rank), False
        Signalled.saved, Signalled.within = 0, True
        result = train(*arguments, **options)
        Signalled.within, Signalled.at = False, None
        there, saves = os.path.exists(path) and os.stat(path).st_mtime_ns > written, Signalled.saved
        if settings["again"]:
            dist.barrier()  # the answer's waiting is another property
            result = train(*arguments, **options)
        problem, losses, state, done = _parts(result)
        trained, counts = Signalled.latest.calls, [0] * world_size
        dist.all_gather_object(counts, len(losses))
        kept = len(torch.load(path, weights_only=True)["losses"]) if os.path.exists(path) else 0
        dist.barrier()
    count, steps, torn = len(losses), settings["steps"], []
    if len(set(counts)) > 1:
        torn.append(f"the ranks have done {counts} steps")
    if trained != count:
        torn.append(f"{trained} steps were trained, and there are {count} losses")
    if kept != count:
        torn.append(f"{count} steps are done, and the file has {kept}")
    missed = "the handler was not yet installed when the signal came" if Signalled.missed else ""
    late = "" if there else "the call returned before the new checkpoint was there"
    undone = f"done is {done!r}, and {count} of {steps} steps are done" if bool(done) != (count == steps) else ""
    own_names = {name.removeprefix("module."): value for name, value in state.items()}  # the names are another property
    return Ran(problem, missed, count, trained, torn, losses, own_names, sorted(state), late, saves, undone)


def _save(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    Signalled.saved += 1
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


def _parts(result: Any) -> tuple[str, list[float], dict[str, np.ndarray], Any]:
    """Losses, state and `done` of the returned dict, behind what is wrong with it, or ""."""
    if not isinstance(result, dict) or not {"done", "losses", "state_dict"} <= set(result):
        return f"it returned {type(result).__name__}, not a dict with done, losses and state_dict", [], {}, None
    losses, state = result["losses"], result["state_dict"]
    if not isinstance(losses, (list, tuple)) or not all(isinstance(loss, (int, float)) for loss in losses):
        return "losses is not a list of floats", [], {}, None
    arrays = {str(name): value.detach().numpy().copy() for name, value in state.items()}
    return "", [float(loss) for loss in losses], arrays, result["done"]


def _settings(rng: np.random.Generator, **more: Any) -> dict:
    """Of a call. tell: rank → the step in which it gets the signal. done: steps that are done before.

    slow_disk: saving takes a while. again: a second call in the same processes, without a signal.
    """
    drawn = {
        "lr": float(rng.choice([0.05, 0.1])),
        "seed": int(rng.integers(1, 2**20)),
        "data": int(rng.integers(2**31)),
    }
    return {"steps": 5, "tell": {}, "done": 0, "slow_disk": False, "again": False} | drawn | more


def _case(train: Callable, n: int, settings: dict, expect: Ran | list[Ran]) -> Case:
    """A call on n ranks; what was done before is in the file, the work of one process that nobody disturbed."""
    expect = [replace(one, problem="") for one in (expect if isinstance(expect, list) else [expect] * n)]
    before = _undisturbed(settings, settings["done"]) if settings["done"] else ()
    return Case(_name(settings), n, _run, (train, settings, before), expect, parts=0)


def _name(settings: dict) -> str:
    """The case in words."""
    done, steps = settings["done"], settings["steps"]
    told = [
        f"rank {rank} gets the signal " + (f"in step {done + at} of {steps}" if at else "while its model is made")
        for rank, at in settings["tell"].items()
    ]
    also = [", saving takes half a second"] * settings["slow_disk"]
    also += [", and then a second call in the same processes, without a signal"] * settings["again"]
    return f"{done} of {steps} steps done before, {', '.join(told) or 'no signal'}{''.join(also)}"


def _write(path: str, losses: list[float], state: dict, momentum: list[np.ndarray], lr: float) -> None:
    """The checkpoint of a run that has done so many steps."""
    model = Signalled()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for p, value in zip(model.parameters(), momentum, strict=True):
        optimizer.state[p]["momentum_buffer"] = torch.from_numpy(value)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": list(losses)}
    torch.save(saved, path)


@check(TRAIN, points=1)
def a_told_run_stops_together(train_until_told: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """A signal on any rank stops all ranks after the same step, and what they have done is in the file."""
    for n, tell in ((2, {1: 3}), (3, {2: 2}), (3, {0: 2, 1: 2}), (2, {0: 1}), (1, {0: 2})):
        told = max(tell.values())
        facts = Ran(count=at_most(told + 1, least=told), torn=[])
        yield _case(train_until_told, n, _settings(rng, tell=tell, steps=6), facts)


@check(TRAIN, points=0.75)
def a_later_call_goes_on(train_until_told: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """A call without a signal goes on from the file, on any number of ranks, and ends where an undisturbed run ends."""
    for n, done, steps in ((1, 0, 3), (2, 0, 5), (2, 3, 7), (3, 2, 6), (1, 5, 9), (2, 4, 4)):
        settings = _settings(rng, done=done, steps=steps)
        losses, state, _ = _undisturbed(settings, steps)
        near = {name: close(value, rtol=1e-9, atol=1e-12) for name, value in state.items()}
        facts = Ran(count=steps, trained=steps - done, losses=close(losses, rtol=1e-9), state=near)
        yield _case(train_until_told, n, settings, facts)


@check(TRAIN, points=0.25)
def no_rank_returns_before_the_file_is_there(train_until_told: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """When a rank returns, the new checkpoint is there, on a slow disk as well."""
    for done in (0, 1):
        settings = _settings(rng, slow_disk=True, steps=2 + done + int(rng.integers(2)), done=done)
        yield _case(train_until_told, 2, settings, Ran(late=""))


@check(TRAIN, points=0.25)
def rank_0_alone_saves(train_until_told: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """Rank 0 saves, and no other rank does."""
    for n in (2, 3):
        facts = [Ran(saves=at_most(inf, least=1)), *[Ran(saves=0)] * (n - 1)]
        yield _case(train_until_told, n, _settings(rng, steps=1 + int(rng.integers(1, 4))), facts)


@check(TRAIN, points=0.25)
def done_is_true_if_all_steps_are_done(train_until_told: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """done says whether all steps are done, also if the signal came in the last of them."""
    steps = int(rng.integers(3, 6))
    for n, tell in ((1, {}), (2, {0: steps, 1: steps}), (2, {0: 1, 1: 1})):
        yield _case(train_until_told, n, _settings(rng, tell=tell, steps=steps), Ran(undone=""))


@check(TRAIN, points=0.25)
def state_dict_has_the_models_names(train_until_told: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """state_dict is that of the model, and not of DDP around it."""
    facts = Ran(names=sorted(Signalled.names))
    yield _case(train_until_told, 2, _settings(rng, steps=int(rng.integers(1, 4))), facts)


@check(TRAIN, points=0.25)
def a_signal_may_come_early(train_until_told: Callable, *, rng: np.random.Generator) -> Iterator[Case]:
    """A signal that comes while the model is made stops the run; one of an earlier call does not."""
    steps = int(rng.integers(3, 6))
    early = _settings(rng, tell={0: 0, 1: 0}, steps=steps)
    yield _case(train_until_told, 2, early, Ran(missed="", trained=at_most(1)))
    again = _settings(rng, tell={0: 1, 1: 1}, steps=steps, again=True)
    yield _case(train_until_told, 2, again, Ran(count=steps))
