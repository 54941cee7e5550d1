"""Exercise 5: what the wrapper sends, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.cases import Case, close, complaint, fact
from autograder.checking.check import check
from autograder.checking.expect import HANG, CheckFailed, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    PATIENCE,
    RTOL,
    arrays_of,
    calls_inside,
    case_of,
    expect_sent,
    expected_buckets,
    rows_of,
    sent_by,
    span_of,
    spec_bytes,
)
from autograder.checks.ddp.models import Towers, output_of
from ranks.ledger import Ledger, Message


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

    def __init__(self, seed: int, layers: int, dtypes: list[str], dead: bool):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=getattr(torch, dtypes[k])) for k in range(layers))
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


_LAYERS = 5
#: dtype of each layer and bucket_bytes: a layer has 48 bytes in float32, 96 in float64. Has it a dead layer?
_STACKS: dict[str, tuple[list[str], int, bool]] = {
    "a bucket a layer": (["float32"] * _LAYERS, 48, False),
    "two layers a bucket": (["float32"] * _LAYERS, 100, False),
    "a bucket a parameter": (["float64"] * _LAYERS, 1, False),
    "two dtypes": (["float32", "float32", "float64", "float64", "float32"], 2**20, False),
    "gradients of zeros in the first layer": (["float32"] * _LAYERS, 48, True),
}


def _drive_stacks(rank: int, world_size: int, ddp_class: Any, seed: int) -> None:
    """Inside a rank: two steps of each stack, with spans for the construction, each step and each layer."""
    for name, (dtypes, bucket_bytes, dead) in _STACKS.items():
        stack = _Stack(seed, _LAYERS, dtypes, dead)
        with record_function(f"{name} made"):
            ddp = ddp_class(stack, bucket_bytes=bucket_bytes)
        for step in range(2):
            stack.prefix = f"{name} step {step}"
            ddp.zero_grad()
            with record_function(stack.prefix):
                ddp(rows_of(seed, rank, step)).square().sum().backward()
                with record_function(f"{stack.prefix} finish"):
                    ddp.finish_gradient_sync()


def _stack_specs(dtypes: list[str]) -> list[tuple]:
    return [spec for dtype in dtypes for spec in (((3, 3), dtype, True), ((3,), dtype, True))]


@check("05-ex5-ddp", points=1.25)
def buckets_are_sent_while_backward_runs(DistributedDataParallel, *, rng):
    """The all-reduce of a bucket starts before backward goes on to the layers after it."""
    for world_size in (2, 3):
        results = run_ranks(_drive_stacks, world_size, (DistributedDataParallel, inputs.seed(rng)))
        for name, (dtypes, _, _) in _STACKS.items():
            for step in range(2):
                for rank in range(world_size):
                    span = f"{name} step {step}"
                    calls = [m for m in calls_inside(results.ledger, rank, span) if m.call == "all_reduce"]
                    buckets = _buckets_of(calls, _stack_specs(dtypes))
                    case = case_of(world_size, name, f"step {step + 1}")
                    _expect_overlap(case, results.ledger, rank, span, calls, buckets)


def _buckets_of(calls: list[Message], specs: list[tuple]) -> list[list[int]]:
    """The parameters in each all-reduce, by its bytes, from the last on. How large buckets should be is not asked."""
    left, buckets = list(range(len(specs))), []
    for message in calls:
        bucket: list[int] = []
        while left and sum(spec_bytes(specs[i]) for i in bucket) < message.bytes:
            bucket.append(left.pop())
        buckets.append(bucket or [0])
    return buckets


@check("05-ex5-ddp", points=0.25)
def a_step_sends_each_bucket_once(DistributedDataParallel, *, rng):
    """A step sends one all-reduce for each bucket of `bucket_bytes`, in their order, and nothing else."""
    for world_size in (1, 2):
        results = run_ranks(_drive_stacks, world_size, (DistributedDataParallel, inputs.seed(rng)))
        for name, (dtypes, bucket_bytes, _) in _STACKS.items():
            specs = _stack_specs(dtypes)
            buckets = expected_buckets(specs, bucket_bytes)
            expected = [("all_reduce", sum(spec_bytes(specs[i]) for i in bucket)) for bucket in buckets]
            for step in range(2):
                case = case_of(world_size, name, f"step {step + 1}")
                span = f"{name} step {step}"
                sent = [sent_by(calls_inside(results.ledger, rank, span)) for rank in range(world_size)]
                expect_sent(case, sent, expected, "the step, from forward to finish,")


def _drive_late_peer(rank: int, world_size: int, ddp_class: Any, seed: int) -> bool:
    """Inside a rank: rank 1 begins backward only when it hears that rank 0's has ended."""
    ddp = ddp_class(_Stack(seed, _LAYERS, ["float32"] * _LAYERS, False), bucket_bytes=48)
    loss = ddp(rows_of(seed, rank)).square().sum()
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    loss.backward()
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    ddp.finish_gradient_sync()
    return True


@check("05-ex5-ddp", points=0.25)
def backward_waits_for_nobody(DistributedDataParallel, *, rng):
    """A rank's backward ends although another rank has not begun its own."""
    must = "backward must not wait for an all-reduce. Here rank 1 begins its backward only after rank 0's has ended."
    try:
        run_ranks(_drive_late_peer, 2, (DistributedDataParallel, inputs.seed(rng)), PATIENCE)
    except CheckFailed as error:
        if error.kind != HANG:
            raise
        raise CheckFailed(f"{must} {error.message}", "2 ranks, rank 1 is late", error.got, (), HANG) from error


def _expect_overlap(
    case: str, ledger: Ledger, rank: int, span: str, calls: list[Message], buckets: list[list[int]]
) -> None:
    """A bucket starts before backward goes on to the next layer."""
    late = []
    for number, (bucket, message) in enumerate(zip(buckets, calls, strict=True)):
        layer = min(bucket) // 2  # the last of its layers to get gradients
        after = f"{span} layer {layer - 1}" if layer else f"{span} finish"
        if message.start > span_of(ledger, rank, after).start:
            late.append(number)
    if late:
        text = f"bucket {late[0]} started late: all its gradients were there before backward went on to other layers"
        if calls[0].start > span_of(ledger, rank, f"{span} finish").start:
            text = "no bucket started during backward"
        elif calls[0].start > span_of(ledger, rank, f"{span} layer 0").start:
            text = "no bucket started before backward had reached the first layer"
        fail(f"on rank {rank}, {text}", case, [text, late])
    if any(message.end is None for message in calls):
        fail(f"on rank {rank}, wait() was never called on an all-reduce", case, "never waited")


@dataclass
class Synced:
    """What a rank has after a step."""

    when: str
    changed: str = complaint()
    gradients: list = fact("the gradient of parameter {}")
    arguments: str = complaint()
    hooked: str = complaint()


class _Planned(Towers):
    """Towers that are told beforehand which to use, and which first."""

    def plan(self, rank: int, step: int) -> _Planned:
        """Rank 0 uses one tower only in the second step; even ranks use the left one first."""
        self.how = (rank % 2 == 0, "left" if step and rank == 0 else "both")
        return self

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, 3) → (B, 3) twice."""
        return super().forward(x, *self.how)


def _drive_towers(rank: int, world_size: int, ddp_class: Any, seed: int, clear: bool) -> list[Synced]:
    """Inside a rank: a first step, in which all is used, and a second, in which rank 0 uses one tower only.

    clear: whether gradients are set to None before the second.
    """
    towers, observed = _Planned(seed), []
    ddp = ddp_class(towers, bucket_bytes=100)
    for step in range(2):
        if step and clear:
            ddp.zero_grad()
        before = arrays_of(p.grad for p in towers.parameters())
        towers.plan(rank, step)
        out = output_of(ddp(rows_of(seed, rank, step)))
        same = all(map(np.array_equal, arrays_of(p.grad for p in towers.parameters()), before))
        out.sum().backward()
        ddp.finish_gradient_sync()
        changed = "" if same else "forward changed the gradients that were there before"
        grads = [torch.zeros(0) if p.grad is None else p.grad.detach().clone() for p in towers.parameters()]
        observed.append(Synced(f"after step {step + 1}", changed, grads))
    return observed


def _tower_case(ddp_class: Any, world_size: int, seed: int, clear: bool, second: bool) -> Case:
    """Two steps, of which the first is judged, or the second."""
    model, expect = _Planned(seed), []
    for step in range(2):
        if step and clear:
            model.zero_grad()
        for rank in range(world_size):
            out = output_of(model.plan(rank, step)(rows_of(seed, rank, step)))
            (out.sum() / world_size).backward()
        means = [close(p.grad.clone().numpy(), rtol=RTOL, atol=1e-12) for p in model.parameters()]
        expect.append(Synced("", "", means) if step == second else Synced(""))
    name = f"rank 0 skips a tower, {'after' if clear else 'without'} zero_grad" if second else "orders differ"
    return Case(name, world_size, _drive_towers, (ddp_class, seed, clear), [expect] * world_size)


@check("05-ex5-ddp", points=0.5)
def what_was_in_grad_is_averaged(DistributedDataParallel, *, rng):
    """Each rank has the mean of what .grad was on the ranks, where None counts as zeros, in whatever order it came."""
    yield _tower_case(DistributedDataParallel, 2, inputs.seed(rng), clear=True, second=False)
    for world_size, clear in ((2, False), (3, True)):
        yield _tower_case(DistributedDataParallel, world_size, inputs.seed(rng), clear, second=True)


def _drive_arguments(rank: int, world_size: int, ddp_class: Any, seed: int) -> Synced:
    """Inside a rank: a forward with keyword arguments, against the module's own."""
    towers, x = Towers(seed), rows_of(seed, rank)
    ddp = ddp_class(towers)
    for left_first in (False, True):
        got, right = ddp(x, use="both", left_first=left_first), towers(x, left_first)
        if not isinstance(got, tuple) or len(got) != 2 or not all(map(torch.equal, got, right)):
            return Synced("", arguments="forward gives something else than the module, called with keyword arguments")
    return Synced("", arguments="")


@check("05-ex5-ddp", points=0.25)
def forward_is_the_modules(DistributedDataParallel, *, rng):
    """forward hands on all its arguments, named ones too, and returns what the module returns."""
    case = (DistributedDataParallel, inputs.seed(rng))
    yield Case("a module that returns a tuple", 1, _drive_arguments, case, [Synced("", arguments="")])


def _drive_hooks(rank: int, world_size: int, ddp_class: Any, seed: int) -> Synced:
    """Inside a rank: a subclass that looks at what on_gradient is called with."""
    seen: list[int] = []

    class Watched(ddp_class):
        def on_gradient(self, param: nn.Parameter) -> None:
            seen.append(id(param))
            super().on_gradient(param)

    towers = _Planned(seed).plan(rank, 0)
    ddp = Watched(towers)
    ddp(rows_of(seed, rank))[0].sum().backward()
    ddp.finish_gradient_sync()
    times = [seen.count(id(p)) for p in towers.parameters()]
    said = (
        f"an on_gradient that a subclass overrides is called {times} times for the parameters, expected once for each"
    )
    return Synced("", hooked="" if times == [1] * len(times) else said)


@check("05-ex5-ddp", points=0.25)
def hooks_call_on_gradient(DistributedDataParallel, *, rng):
    """The hooks call self.on_gradient, so that a subclass can override it."""
    yield Case("a subclass", 2, _drive_hooks, (DistributedDataParallel, inputs.seed(rng)), [Synced("", hooked="")] * 2)
