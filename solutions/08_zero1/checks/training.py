"""Runs of steps of a sharded optimizer, and the unsharded one that they must follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.expect import ceil_div
from autograder.checks.inputs import eighths
from autograder.checks.instruments.memory import bytes_held

#: Of the largest parameter, after a few steps.
STEP_ERROR = 5e-6
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.02}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.1}),
}


@dataclass
class Run:
    """Some steps of one optimizer: `parameters[i]` is the i-th tensor, `gradients[step][rank][i]` what rank has for it.

    frozen: indices of parameters that do not require a gradient. repeated: indices given twice. dtypes: torch's
    names. rates: step → the learning rate from this step on. clip: the bounds, one per step, or None.
    """

    name: str
    optimizer: str
    parameters: list[np.ndarray]
    gradients: list[list[list[np.ndarray | None]]]
    frozen: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    rates: dict[int, float] = field(default_factory=dict)
    clip: list[float] | None = None

    @property
    def numel(self) -> int:
        """How many trainable numbers there are."""
        return sum(p.size for i, p in enumerate(self.parameters) if i not in self.frozen)

    @property
    def ranks(self) -> int:
        """How many ranks there are gradients for."""
        return len(self.gradients[0])

    @property
    def size(self) -> int:
        """How many numbers a shard has."""
        return ceil_div(self.numel, self.ranks)

    def make_parameters(self) -> list[nn.Parameter]:
        """Fresh ones."""
        dtypes = self.dtypes or ("float32",) * len(self.parameters)
        return [
            nn.Parameter(torch.tensor(p).to(getattr(torch, dtype)), requires_grad=i not in self.frozen)
            for i, (p, dtype) in enumerate(zip(self.parameters, dtypes, strict=True))
        ]


@dataclass
class Made:
    """A rank's optimizer before the first step."""

    when: str
    odd: str = sentence()
    master: Any = fact("self.master")


@dataclass
class Stepped:
    """What one rank holds after a step, and what the step did."""

    when: str
    left: str = sentence()
    held: int = fact("the number of bytes held")
    said: int = fact("what state_bytes() says")
    norm: float = fact("the returned norm")
    touched: list[str] = sentence()  # what the step did to a p.grad
    moved: bool = fact("whether a parameter was moved")
    parameters: list[np.ndarray] = fact("parameter {}", "it must be the unsharded optimizer's")
    replaced: list[str] = sentence()  # what it did to a parameter, besides its numbers


def drive(rank: int, world_size: int, optimizer_class: Any, run: Run) -> list[Made | Stepped]:
    """Inside a rank: all steps of a run."""
    params, norm = run.make_parameters(), math.nan
    before = [(p.dtype, p.requires_grad) for p in params]
    last = numbers_of(params)
    optimizer = make_optimizer(optimizer_class, run, [*params, *(params[i] for i in run.repeated)])
    master = getattr(optimizer, "master", None)
    odd = "" if isinstance(master, nn.Parameter) else f"self.master is a {type(master).__name__}, not an nn.Parameter"
    found: list[Made | Stepped] = [Made("before the first step", odd, None if odd else master.detach().clone())]
    for step, gradients in enumerate(run.gradients):
        optimizer.zero_grad()
        if step in run.rates:
            optimizer.param_groups[0]["lr"] = run.rates[step]
        set_gradients(params, gradients[rank])
        given = [None if p.grad is None else p.grad.clone() for p in params]
        if run.clip:
            norm = float(optimizer.clip_grad_norm_(run.clip[step]))
        optimizer.step()
        numbers = numbers_of(params)
        moved = not all(map(np.array_equal, last, numbers))
        last = numbers
        held, said = bytes_held(optimizer, besides=params), int(optimizer.state_bytes())
        touched = [change_of_grad("step()", p.grad, g) for p, g in zip(params, given, strict=True)]
        replaced = [_replaced(i, before[i], (p.dtype, p.requires_grad)) for i, p in enumerate(params)]
        when = f"after step {step + 1}"
        found.append(Stepped(when, _left(optimizer), held, said, norm, touched, moved, numbers, replaced))
    return found


def make_optimizer(optimizer_class: Any, run: Run, params: list[nn.Parameter]) -> Any:
    """The student's optimizer of a run, given a generator."""
    inner, kwargs = OPTIMIZERS[run.optimizer]
    return optimizer_class((p for p in params), inner, **kwargs)


def set_gradients(params: list[nn.Parameter], gradients: list[np.ndarray | None]) -> None:
    """Set each `.grad`, in the parameter's dtype; None where there is none."""
    for p, g in zip(params, gradients, strict=True):
        p.grad = None if g is None else torch.tensor(g).to(p.dtype)


def numbers_of(params: list[nn.Parameter]) -> list[np.ndarray]:
    """Copies of the parameters' numbers in float64."""
    return [p.detach().double().numpy().copy() for p in params]


def _left(optimizer: Any) -> str:
    """In words: which gradients of the shard are still there, or ""."""
    places = {
        "self.gradient": getattr(optimizer, "gradient", None),
        "self.master.grad": getattr(getattr(optimizer, "master", None), "grad", None),
    }
    left = " and ".join(name for name, gradient in places.items() if gradient is not None)
    return f"{left} outlived the step, which must set both gradients of the shard to None" if left else ""


def change_of_grad(call: str, grad: torch.Tensor | None, given: torch.Tensor | None) -> str:
    """In words: what a call did to a p.grad, or ""."""
    if given is None:
        return "" if grad is None else f"{call} set a p.grad that was None; it must stay None"
    if grad is None:
        return f"{call} removed p.grad; it must stay as it was"
    return "" if torch.equal(grad, given) else f"{call} changed the numbers in p.grad; it must stay as it was"


def _replaced(number: int, old: tuple, new: tuple) -> str:
    """In words: what differs between a parameter's (dtype, requires_grad) before and after a step."""
    if old[0] != new[0]:
        return f"step() made parameter {number} {new[0]}, expected {old[0]} as before"
    return "" if old == new else f"step() gave parameter {number} requires_grad={new[1]}, expected {old[1]} as before"


def unsharded(run: Run) -> list[list[np.ndarray]]:
    """The parameters after each step of torch's own optimizer on whole float32 parameters and mean gradients."""
    inner, kwargs = OPTIMIZERS[run.optimizer]
    masters = [nn.Parameter(p.detach().float()) for p in run.make_parameters()]
    trained = [p for i, p in enumerate(masters) if i not in run.frozen]
    optimizer, after = inner(trained, **kwargs), []
    for step, gradients in enumerate(run.gradients):
        optimizer.param_groups[0]["lr"] = run.rates.get(step, optimizer.param_groups[0]["lr"])
        for i, p in enumerate(masters):
            parts = [np.zeros(p.shape) if mine[i] is None else mine[i].astype(np.float64) for mine in gradients]
            p.grad = None if i in run.frozen else torch.tensor(np.mean(parts, axis=0)).float().reshape(p.shape)
        if run.clip:
            nn.utils.clip_grad_norm_(trained, run.clip[step])
        optimizer.step()
        after.append(numbers_of(masters))
    return after


def _gradients(rng: np.random.Generator, n: int, shapes: list[tuple[int, ...]]) -> list[list[np.ndarray]]:
    """What each rank has for each parameter: of one sign in each element.

    Where the ranks' gradients cancelled, Adam would make a long step of what rounding left.
    """
    signs = [rng.choice([-1, 1], shape) for shape in shapes]
    return [[np.asarray(s * rng.integers(1, 33, s.shape) / 8, np.float32) for s in signs] for _ in range(n)]


def make_run(rng, n: int, optimizer: str, shapes: list[tuple[int, ...]], steps: int = 4, also="", **more: Any) -> Run:
    """A run with fresh parameters of these shapes and gradients for each step and rank. also: for its name."""
    gradients = [_gradients(rng, n, shapes) for _ in range(steps)]
    parameters = [eighths(rng, shape) for shape in shapes]
    numel = sum(math.prod(shape) for shape in shapes)
    name = f"{optimizer}, {numel} parameter{'' if numel == 1 else 's'}{also}"
    return Run(name, optimizer, parameters, gradients, **more)


def mixed_run(rng: np.random.Generator, n: int) -> Run:
    """Parameters of every kind."""
    also = ", one frozen, one given twice, one sometimes without a gradient"
    shapes = [(3, 3), (4,), (2,), (6,)]
    mixed = make_run(rng, n, "SGD with momentum", shapes, also=also, frozen=(1,), repeated=(0,))
    for step, gradients in enumerate(mixed.gradients):
        for rank, mine in enumerate(gradients):
            mine[1] = None
            mine[2] = mine[2] if step == 1 and rank > 0 else None
    return mixed


def usual_runs(rng: np.random.Generator, n: int) -> list[Run]:
    """All optimizers on sizes that do not divide, and tiny ones."""
    runs = [make_run(rng, n, name, [(3, 4), (5,), (), (2, 1)]) for name in OPTIMIZERS]
    runs += [make_run(rng, n, "Adam", [(1,)]), make_run(rng, n, "SGD with momentum", [(2,), (1,)])]
    return runs


def steps_of(
    optimizer_class: Any,
    run: Run,
    rtol: float = STEP_ERROR,
    sends: bool = False,
    masters: Any = None,
    parameters: bool = True,
    **also: Any,
) -> Case:
    """A case: after each step each rank has the unsharded optimizer's parameters, or only moved ones.

    sends: a step is one reduce-scatter of the padded float32 vector and one all-gather. masters: of each rank before
    the first step, if they matter. also: further facts of each step; a list has one for each step.
    """
    stepped = []
    for number, whole in enumerate(unsharded(run)):
        more = {name: value[number] if isinstance(value, list) else value for name, value in also.items()}
        numbers = [close(p, atol=rtol * max(1.0, float(np.max(np.abs(p), initial=0.0)))) for p in whole]
        last = number == len(run.gradients) - 1
        judged = {"parameters": numbers, "replaced": ""} if parameters else {"moved": True} if last else {}
        stepped.append(Stepped("", **judged, **more))
    made = [Made("")] * run.ranks if masters is None else [Made("", "", m) for m in masters]
    step = [("reduce_scatter", 4 * run.size * run.ranks, "the padded vector in float32")]
    wire = [*step, ("all_gather", 4 * run.size, "the shard of the masters in float32")] * len(run.gradients)
    # A shard as small as a norm: from outside they look alike.
    tells = sends and not (run.clip and run.size <= 2)
    numbers = len(run.gradients) if run.clip else 0
    expect = [[first, *stepped] for first in made]
    return Case(run.name, run.ranks, drive, (optimizer_class, run), expect, wire if tells else None, numbers)
