"""Exercise 5: what the wrapper sends, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checks import inputs
from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check
from ranks.ledger import Ledger

from .common import RTOL, SIZES, grads_of, in_words, rows_of

DDP = "05-ex5-ddp"


@dataclass
class Synced:
    """What a rank has after a step."""

    when: str = ""
    changed: str = sentence()
    gradients: list = fact("the gradient of parameter {}")
    ended: str = sentence()
    arguments: str = sentence()
    hooked: str = sentence()


class _Mark(torch.autograd.Function):
    """The identity; its backward leaves a span in the ledger, before the backward of the layer in front of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name = name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        with record_function(ctx.name):
            return grad, None


class _Stack(nn.Module):
    """Layers in a row with a mark after each: layer k's span begins before the layer's gradients exist.

    dead: the second layer passes nothing on, so that the first one's gradients are zeros.
    """

    def __init__(self, seed: int, dtypes: list[str], dead: bool = False):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=getattr(torch, dtype)) for dtype in dtypes)
        self.register_buffer("shift", torch.randn(3))
        self.prefix = ""
        if dead:
            nn.init.zeros_(self.layers[1].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3) → (B, 3)"""
        x = x + self.shift
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
            x = _Mark.apply(x, f"{self.prefix} layer {number}")
        return x


_FLOATS = ["float32"] * 5
#: dtype of each layer and bucket_bytes: a layer has 48 bytes in float32, 96 in float64. Has it a dead layer?
_STACKS: dict[str, tuple[list[str], int, bool]] = {
    "a bucket a layer": (_FLOATS, 48, False),
    "two layers a bucket": (_FLOATS, 100, False),
    "a bucket a parameter": (["float64"] * 5, 1, False),
    "two dtypes": (["float32", "float32", "float64", "float64", "float32"], 2**20, False),
    "gradients of zeros in the first layer": (_FLOATS, 48, True),
}


def _two_steps(rank: int, world_size: int, ddp_class: Any, seed: int, name: str) -> Synced:
    """Two steps of a stack, with spans for each step, its layers and its finish, whose names begin with the stack's."""
    dtypes, bucket_bytes, dead = _STACKS[name]
    stack = _Stack(seed, dtypes, dead)
    ddp = ddp_class(stack, bucket_bytes=bucket_bytes)
    for step in range(2):
        stack.prefix = f"{name} step {step}"
        ddp.zero_grad()
        with record_function(stack.prefix):
            ddp(rows_of(seed, rank, step)).square().sum().backward()
            with record_function(f"{stack.prefix} finish"):
                ddp.finish_gradient_sync()
    return Synced()


def _stack_case(ddp_class: Any, rng: np.random.Generator, n: int, name: str, wrong: Callable[..., str]) -> Case:
    """Two steps of a stack. wrong: (the stack, the ledger of a rank, the span of a step) → what is wrong in it."""

    def judge(rank: int, parts: list[Ledger]) -> Any:
        texts = (wrong(_STACKS[name], parts[0], f"{name} step {step}") for step in range(2))
        text = next(filter(None, texts), "")
        return text and (f"on rank {rank}, {text}", text)

    return Case(name, n, _two_steps, (ddp_class, inputs.seed(rng), name), [Synced()] * n, judge=judge)


def _parameters(dtypes: list[str]) -> list[tuple[int, str, int]]:
    """(layer, dtype, bytes) of each parameter of a stack."""
    return [(layer, dtype, count * SIZES[dtype]) for layer, dtype in enumerate(dtypes) for count in (9, 3)]


def _late(stack: tuple, ledger: Ledger, span: str) -> str:
    """Which bucket started after backward had gone on to the layers after it."""
    calls = [m for m in ledger.within(span) if m.call == "all_reduce"]
    begins = {mark.name: mark.start for mark in ledger.spans}
    late, left = [], _parameters(stack[0])
    for number, message in enumerate(calls):
        # Which parameters a bucket has, its bytes say. How large buckets should be is not asked.
        layer = nbytes = 0
        while left and nbytes < message.bytes:
            layer, _, more = left.pop()
            nbytes += more
        if message.start > begins[f"{span} layer {layer - 1}" if layer else f"{span} finish"]:
            late.append(number)
    if late and calls[0].start > begins[f"{span} finish"]:
        return "no bucket started during backward"
    if late and calls[0].start > begins[f"{span} layer 0"]:
        return "no bucket started before backward had reached the first layer"
    if late:
        return f"bucket {late[0]} started late: all its gradients were there before backward went on to other layers"
    return "wait() was never called on an all-reduce" if any(m.end is None for m in calls) else ""


@check(DDP, points=1.25)
def buckets_are_sent_while_backward_runs(DistributedDataParallel, *, rng):
    """The all-reduce of a bucket starts before backward goes on to the layers after it."""
    for n in (2, 3):
        for name in _STACKS:
            yield _stack_case(DistributedDataParallel, rng, n, name, _late)


def _other_buckets(stack: tuple, ledger: Ledger, span: str) -> str:
    """What a step sent, if that is not one all-reduce for each bucket; a single rank may send nothing."""
    dtypes, bucket_bytes, _ = stack
    buckets, dtype_now = [], ""
    for _, dtype, nbytes in reversed(_parameters(dtypes)):
        if dtype != dtype_now or buckets[-1] + nbytes > bucket_bytes:
            buckets.append(0)
        buckets[-1] += nbytes
        dtype_now = dtype
    expected = ", ".join(f"all_reduce of {nbytes} bytes" for nbytes in buckets)
    sent = in_words(ledger.within(span))
    if sent == expected or (ledger.world_size == 1 and sent == "nothing"):
        return ""
    return f"the step, from forward to finish, sent {sent}, expected {expected}"


@check(DDP, points=0.25)
def a_step_sends_each_bucket_once(DistributedDataParallel, *, rng):
    """A step sends one all-reduce for each bucket of `bucket_bytes`, in their order, and nothing else."""
    for n in (1, 2):
        for name in _STACKS:
            yield _stack_case(DistributedDataParallel, rng, n, name, _other_buckets)


def _late_peer(rank: int, world_size: int, ddp_class: Any, seed: int) -> Synced:
    """Rank 1 begins backward only when it hears that rank 0's has ended."""
    ddp = ddp_class(_Stack(seed, _FLOATS), bucket_bytes=48)
    loss = ddp(rows_of(seed, rank)).square().sum()
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    loss.backward()
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    ddp.finish_gradient_sync()
    return Synced(ended="")


@check(DDP, points=0.25)
def backward_waits_for_nobody(DistributedDataParallel, *, rng):
    """A rank's backward ends although another rank has not begun its own."""
    must = "backward must not wait for an all-reduce. Here rank 1 begins its backward only after rank 0's has ended."
    args = (DistributedDataParallel, inputs.seed(rng))
    yield Case("rank 1 is late", 2, _late_peer, args, [Synced(ended="")] * 2, must=must)


class _Towers(nn.Module):
    """Two towers of the same size, which are told beforehand which to use, and which first, or are told so in forward.

    It returns a tuple: the output and the left tower's.
    """

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.left, self.right = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def plan(self, rank: int, step: int) -> _Towers:
        """Rank 0 uses one tower only in the second step; even ranks use the left one first."""
        self.how = (rank % 2 == 0, "left" if step and rank == 0 else "both")
        return self

    def forward(self, x: torch.Tensor, left_first: bool | None = None, use: str = "both") -> tuple:
        """(B, 3) → (B, 3) twice. use: the towers, "both" or "left"."""
        left_first, use = self.how if left_first is None else (left_first, use)
        if use == "left":
            left = torch.tanh(self.left(x))
            return left, left
        if left_first:
            left, right = torch.tanh(self.left(x)), self.right(x).square()
        else:
            right, left = self.right(x).square(), torch.tanh(self.left(x))
        return left - right, left


def _output(pair: Any) -> torch.Tensor:
    """The output in what a wrapper of towers returned. Anything but a tuple of two is a TypeError."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        kind = type(pair).__name__
        raise TypeError(f"forward should return what the module returns, a tuple of two, it gave a {kind}")
    return pair[0]


def _towers(rank: int, world_size: int, ddp_class: Any, seed: int, clear: bool) -> list[Synced]:
    """A first step, in which all is used, and a second, in which rank 0 uses one tower only.

    clear: whether gradients are set to None before the second.
    """
    towers, observed = _Towers(seed), []
    ddp = ddp_class(towers, bucket_bytes=100)
    for step in range(2):
        if step and clear:
            ddp.zero_grad()
        before = grads_of(towers.parameters())
        towers.plan(rank, step)
        out = _output(ddp(rows_of(seed, rank, step)))
        same = all(map(torch.equal, grads_of(towers.parameters()), before))
        out.sum().backward()
        ddp.finish_gradient_sync()
        changed = "" if same else "forward changed the gradients that were there before"
        observed.append(Synced(f"after step {step + 1}", changed, grads_of(towers.parameters())))
    return observed


def _tower_case(ddp_class: Any, world_size: int, seed: int, clear: bool, second: bool) -> Case:
    """Two steps, of which the first is judged, or the second."""
    model, expect = _Towers(seed), []
    for step in range(2):
        if step and clear:
            model.zero_grad()
        for rank in range(world_size):
            out, _ = model.plan(rank, step)(rows_of(seed, rank, step))
            (out.sum() / world_size).backward()
        means = [close(p.grad.clone().numpy(), rtol=RTOL, atol=1e-12) for p in model.parameters()]
        expect.append(Synced("", "", means) if step == second else Synced())
    name = f"rank 0 skips a tower, {'after' if clear else 'without'} zero_grad" if second else "orders differ"
    return Case(name, world_size, _towers, (ddp_class, seed, clear), [expect] * world_size)


@check(DDP, points=0.5)
def what_was_in_grad_is_averaged(DistributedDataParallel, *, rng):
    """Each rank has the mean of what .grad was on the ranks, where None counts as zeros, in whatever order it came."""
    yield _tower_case(DistributedDataParallel, 2, inputs.seed(rng), clear=True, second=False)
    for world_size, clear in ((2, False), (3, True)):
        yield _tower_case(DistributedDataParallel, world_size, inputs.seed(rng), clear, second=True)


def _arguments(rank: int, world_size: int, ddp_class: Any, seed: int) -> Synced:
    """A forward with keyword arguments, against the module's own."""
    towers, x = _Towers(seed), rows_of(seed, rank)
    ddp = ddp_class(towers)
    for left_first in (False, True):
        got, right = ddp(x, use="both", left_first=left_first), towers(x, left_first)
        if not isinstance(got, tuple) or len(got) != 2 or not all(map(torch.equal, got, right)):
            return Synced(arguments="forward gives something else than the module, called with keyword arguments")
    return Synced(arguments="")


@check(DDP, points=0.25)
def forward_is_the_modules(DistributedDataParallel, *, rng):
    """forward hands on all its arguments, named ones too, and returns what the module returns."""
    args = (DistributedDataParallel, inputs.seed(rng))
    yield Case("a module that returns a tuple", 1, _arguments, args, [Synced(arguments="")])


def _hooks(rank: int, world_size: int, ddp_class: Any, seed: int) -> Synced:
    """A subclass looks at what on_gradient is called with."""
    seen: list[int] = []

    class Watched(ddp_class):
        def on_gradient(self, param: nn.Parameter) -> None:
            seen.append(id(param))
            super().on_gradient(param)

    towers = _Towers(seed).plan(rank, 0)
    ddp = Watched(towers)
    ddp(rows_of(seed, rank))[0].sum().backward()
    ddp.finish_gradient_sync()
    times = [seen.count(id(p)) for p in towers.parameters()]
    text = f"an on_gradient that a subclass overrides is called {times} times for the parameters, expected once each"
    return Synced(hooked="" if times == [1] * len(times) else text)


@check(DDP, points=0.25)
def hooks_call_on_gradient(DistributedDataParallel, *, rng):
    """The hooks call self.on_gradient, so that a subclass can override it."""
    yield Case("a subclass", 2, _hooks, (DistributedDataParallel, inputs.seed(rng)), [Synced(hooked="")] * 2)
