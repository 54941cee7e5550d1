"""Runs of steps of a sharded optimizer, and the unsharded one that they must follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.expect import ceil_div, collective, count_of_ranks, digits_that_differ, each_rank, fail
from autograder.checking.inputs import eighths
from autograder.checking.instruments.memory import bytes_held
from autograder.checking.stage import run_ranks

#: Of the largest parameter, after a few steps.
STEP_ERROR = 5e-6
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.02}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.1}),
}


@dataclass
class Case:
    """Some steps of one optimizer: `parameters[i]` is the i-th tensor, `gradients[step][rank][i]` what rank has for it.

    frozen: indices of parameters that do not require a gradient. repeated: indices given twice. dtypes: torch's
    names. rates: step → the learning rate from this step on. clip: the bounds, one a step, or None. options: the
    optimizer's arguments, in the place of those in `OPTIMIZERS`.
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
    options: dict[str, float] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        """How many trainable numbers there are."""
        return sum(p.size for i, p in enumerate(self.parameters) if i not in self.frozen)

    def tensors(self) -> list[nn.Parameter]:
        """Fresh parameters."""
        dtypes = self.dtypes or ("float32",) * len(self.parameters)
        return [
            nn.Parameter(torch.tensor(p).to(getattr(torch, dtype)), requires_grad=i not in self.frozen)
            for i, (p, dtype) in enumerate(zip(self.parameters, dtypes, strict=True))
        ]


@dataclass
class Outcome:
    """What one rank held after each step of a case, and what its methods returned."""

    parameters: list[list[np.ndarray]]
    held: list[int]  # bytes found by walking over the object
    said: list[int]  # what state_bytes() returned
    norms: list[float]
    master: Any = None  # self.master before the first step: its numbers, or what it is instead
    left: list[str] = field(default_factory=list)  # gradients of the shard that outlived a step
    complaint: str = ""  # what a step did to a parameter, besides its numbers
    gradients: str = ""  # what a step did to a p.grad


def drive(rank: int, world_size: int, optimizer_class: Any, cases: list[Case]) -> list[Outcome]:
    """Inside a rank: every case, with a barrier before each and one at the end."""
    outcomes = []
    for case in cases:
        dist.barrier()
        outcomes.append(_run(rank, optimizer_class, case))
    dist.barrier()
    return outcomes


def _run(rank: int, optimizer_class: Any, case: Case) -> Outcome:
    inner, kwargs = OPTIMIZERS[case.optimizer]
    kwargs = kwargs | case.options
    tensors = case.tensors()
    before = [(p.dtype, p.requires_grad) for p in tensors]
    given = (tensors[i] for i in [*range(len(tensors)), *case.repeated])
    optimizer, outcome = optimizer_class(given, inner, **kwargs), Outcome([], [], [], [])
    outcome.master = _master(optimizer)
    for step, gradients in enumerate(case.gradients):
        optimizer.zero_grad()
        if step in case.rates:
            optimizer.param_groups[0]["lr"] = case.rates[step]
        for p, g in zip(tensors, gradients[rank], strict=True):
            p.grad = None if g is None else torch.tensor(g).to(p.dtype)
        if case.clip:
            outcome.norms.append(float(optimizer.clip_grad_norm_(case.clip[step])))
        optimizer.step()
        outcome.parameters.append([p.detach().double().numpy().copy() for p in tensors])
        outcome.held.append(bytes_held(optimizer, besides=tensors))
        outcome.said.append(int(optimizer.state_bytes()))
        outcome.left = outcome.left or _left(optimizer)
        for p, g in zip(tensors, gradients[rank], strict=True):
            outcome.gradients = outcome.gradients or _touched(
                p.grad, None if g is None else torch.tensor(g).to(p.dtype)
            )
        now = [(p.dtype, p.requires_grad) for p in tensors]
        for i, (old, new) in enumerate(zip(before, now, strict=True)):
            if old != new:
                outcome.complaint = outcome.complaint or f"parameter {i} {_replaced(old, new)} after step {step + 1}"
    return outcome


def _master(optimizer: Any) -> Any:
    """The numbers of self.master; in words what it is, if it is no float32 nn.Parameter."""
    master = getattr(optimizer, "master", None)
    if not isinstance(master, nn.Parameter):
        return f"a {type(master).__name__}, not an nn.Parameter"
    if master.dtype != torch.float32:
        return f"{master.dtype}, not torch.float32"
    return master.detach().double().numpy().copy()


def _left(optimizer: Any) -> list[str]:
    """Which gradients of the shard are still there."""
    places = {
        "self.gradient": getattr(optimizer, "gradient", None),
        "self.master.grad": getattr(getattr(optimizer, "master", None), "grad", None),
    }
    return [name for name, gradient in places.items() if gradient is not None]


def _touched(grad: torch.Tensor | None, given: torch.Tensor | None) -> str:
    """In words: what a step did to a p.grad, or ""."""
    if given is None:
        return "" if grad is None else "step() set a p.grad that was None; it must stay None"
    if grad is None:
        return "step() removed p.grad; it must stay as it was"
    return "" if torch.equal(grad, given) else "step() changed the numbers in p.grad; it must stay as it was"


def _replaced(old: tuple, new: tuple) -> str:
    """In words: what differs between a parameter's (dtype, requires_grad) before and after a step."""
    if old[0] != new[0]:
        return f"is {new[0]}, expected {old[0]} as before,"
    return f"has requires_grad={new[1]}, expected {old[1]} as before,"


def unsharded(case: Case, world_size: int) -> list[list[np.ndarray]]:
    """The parameters after each step of torch's own optimizer on whole float32 parameters and mean gradients."""
    inner, kwargs = OPTIMIZERS[case.optimizer]
    kwargs = kwargs | case.options
    masters = [nn.Parameter(p.detach().float()) for p in case.tensors()]
    trained = [p for i, p in enumerate(masters) if i not in case.frozen]
    optimizer, after = inner(trained, **kwargs), []
    for step, gradients in enumerate(case.gradients):
        optimizer.param_groups[0]["lr"] = case.rates.get(step, optimizer.param_groups[0]["lr"])
        for i, p in enumerate(masters):
            parts = [np.zeros(p.shape) if mine[i] is None else mine[i].astype(np.float64) for mine in gradients]
            p.grad = None if i in case.frozen else torch.tensor(np.mean(parts, axis=0)).float().reshape(p.shape)
        if case.clip:
            nn.utils.clip_grad_norm_(trained, case.clip[step])
        optimizer.step()
        after.append([p.detach().double().numpy().copy() for p in masters])
    return after


# ---- inputs ----


def _gradients(rng: np.random.Generator, world_size: int, shapes: list[tuple[int, ...]]) -> list[list[np.ndarray]]:
    """What each rank has for each parameter: of one sign in each element.

    Where the ranks' gradients cancelled, Adam would make a long step of what rounding left.
    """
    signs = [rng.choice([-1, 1], shape) for shape in shapes]
    return [[np.asarray(s * rng.integers(1, 33, s.shape) / 8, np.float32) for s in signs] for _ in range(world_size)]


def make_case(rng, world_size: int, optimizer: str, shapes: list[tuple[int, ...]], steps: int = 4, **more: Any) -> Case:
    """A case with fresh parameters of these shapes and gradients for each step and rank."""
    gradients = [_gradients(rng, world_size, shapes) for _ in range(steps)]
    parameters = [eighths(rng, shape) for shape in shapes]
    numel = sum(math.prod(shape) for shape in shapes)
    name = f"{count_of_ranks(world_size)}, {optimizer}, {numel} parameter{'' if numel == 1 else 's'}"
    return Case(name, optimizer, parameters, gradients, **more)


def usual_cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    """All optimizers on sizes that do not divide, tiny ones, and parameters of every kind."""
    usual = [(3, 4), (5,), (), (2, 1)]
    cases = [make_case(rng, world_size, name, usual) for name in OPTIMIZERS]
    cases += [make_case(rng, world_size, "Adam", [(1,)]), make_case(rng, world_size, "SGD with momentum", [(2,), (1,)])]
    mixed = make_case(rng, world_size, "SGD with momentum", [(3, 3), (4,), (2,), (6,)], frozen=(1,), repeated=(0,))
    mixed.name += ", one frozen, one given twice, one sometimes without a gradient"
    for step, gradients in enumerate(mixed.gradients):
        for rank, mine in enumerate(gradients):
            mine[1] = None
            if step != 1 or rank == 0:
                mine[2] = None
    return [*cases, mixed]


# ---- running and judging ----


def try_cases(optimizer_class: Any, cases: list[Case], world_size: int) -> list[tuple[Case, list[Outcome], list[list]]]:
    """One launch for all cases: for each case the outcomes by rank, and the messages by rank."""
    results = run_ranks(drive, world_size, (optimizer_class, cases))
    calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
    if any(len(parts) != len(cases) + 2 for parts in calls):
        fail("the optimizer called barrier, which no step needs", "communication", "barrier")
    each = enumerate(cases, start=1)  # part 0 stands before the first case
    return [(case, [mine[c - 1] for mine in results], [parts[c] for parts in calls]) for c, case in each]


def expect_steps(case: Case, outcomes: list[Outcome], world_size: int, rtol: float = STEP_ERROR) -> None:
    """On every rank, after every step, every parameter is the unsharded optimizer's."""
    for step, expected in enumerate(unsharded(case, world_size)):
        got = [outcome.parameters[step] for outcome in outcomes]
        for i, want in enumerate(expected):
            for rank in range(world_size):
                bound = rtol * max(1.0, float(np.max(np.abs(want), initial=0.0)))
                off = np.abs(got[rank][i] - want)
                if not np.all(off <= bound):
                    at = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
                    one, other = digits_that_differ(got[rank][i][at], want[at])
                    where = f"after step {step + 1}, on rank {rank}, an element of parameter {i}"
                    text = f"{where} is {one}, expected {other} as with the unsharded optimizer"
                    flat = [np.concatenate([p.reshape(-1) for p in mine]) for mine in got]
                    fail(text, case.name, [step, *flat])
    for rank, outcome in each_rank(case.name, outcomes, evidence=lambda o: o.complaint):
        rank.expect(not outcome.complaint, outcome.complaint)


def expect_wire(case: Case, calls: list[list], world_size: int) -> None:
    """A step is one reduce-scatter of the padded float32 vector and one all-gather; clipping adds one number."""
    size, steps = ceil_div(case.numel, world_size), len(case.gradients)
    if case.clip and size <= 2:
        return  # a shard as small as a norm: from outside they look alike
    wanted = {"reduce_scatter": 4 * size * world_size, "all_gather": 4 * size}
    for rank, mine in enumerate(calls):
        kinds = [_kind_of(message, bool(case.clip)) for message in mine]
        got = [(kind, m.bytes) for kind, m in zip(kinds, mine, strict=True)]
        for kind in kinds:
            if kind not in (*wanted, "number"):
                fail(f"rank {rank} called {kind}, which a sharded step does not need", case.name, got)
        for kind, nbytes in wanted.items():
            sizes = [n for k, n in got if k == kind]
            if len(sizes) > steps or (world_size > 1 and len(sizes) < steps):
                text = f"rank {rank} called {kind} {len(sizes)} times in {steps} steps, expected one a step"
                fail(text, case.name, got)
            if any(n != nbytes for n in sizes):
                text = f"rank {rank} put {sizes[0]} bytes into {kind}, expected {nbytes}: the padded vector in float32"
                fail(text, case.name, got)
        if kinds.count("number") > steps:
            text = f"rank {rank} made {kinds.count('number')} small collectives in {steps} steps, expected one a step"
            fail(text, case.name, got)


def _kind_of(message: Any, clips: bool) -> str:
    """A collective by what it does; with clipping, one of at most a float64 is the norm's."""
    if clips and message.is_collective and message.bytes <= 8:
        return "number"
    return collective(message.call)
