"""Exercise 5: what the wrapper sends, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import HANG, CheckFailed, each_rank, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    PATIENCE,
    RTOL32,
    arrays_of,
    calls_inside,
    case_of,
    expect_same,
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


def _drive_stacks(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: two steps of each stack, with spans for the construction, each step and each layer."""
    gradients = {}
    for name, (dtypes, bucket_bytes, dead) in _STACKS.items():
        stack = _Stack(seed + rank, _LAYERS, dtypes, dead)
        with record_function(f"{name} made"):
            ddp = ddp_class(stack, bucket_bytes=bucket_bytes)
        for step in range(2):
            stack.prefix = f"{name} step {step}"
            ddp.zero_grad()
            with record_function(stack.prefix):
                ddp(rows_of(seed, rank, step)).square().sum().backward()
                with record_function(f"{stack.prefix} finish"):
                    ddp.finish_gradient_sync()
        gradients[name] = arrays_of(p.grad for p in stack.parameters())
    return gradients


def _stack_specs(dtypes: list[str]) -> list[tuple]:
    return [spec for dtype in dtypes for spec in (((3, 3), dtype, True), ((3,), dtype, True))]


@check("05-ex5-ddp", points=1)
def ddp_sends_each_bucket_once_while_backward_runs(DistributedDataParallel, *, rng):  # noqa: N803
    """One all-reduce for each bucket, in bucket order, starts as soon as the bucket is complete."""
    for world_size in (1, 2, 3):
        seed = inputs.seed(rng)
        results = run_ranks(_drive_stacks, world_size, (DistributedDataParallel, seed))
        ledger, each = results.ledger, range(world_size)
        for name, (dtypes, bucket_bytes, dead) in _STACKS.items():
            specs = _stack_specs(dtypes)
            buckets = expected_buckets(specs, bucket_bytes)
            expected = [("all_reduce", sum(spec_bytes(specs[i]) for i in bucket)) for bucket in buckets]
            for step in range(2):
                case = case_of(world_size, name, f"step {step + 1}")
                span = f"{name} step {step}"
                calls = [calls_inside(ledger, rank, span) for rank in each]
                expect_sent(
                    case, [sent_by(messages) for messages in calls], expected, "the step, from forward to finish,"
                )
                for rank in each if world_size > 1 else ():
                    _expect_overlap(case, ledger, rank, span, calls[rank], buckets)
            _expect_stack_gradients(case_of(world_size, name), results, name, _Stack(seed, _LAYERS, dtypes, dead), seed)


@check("05-ex5-ddp", points=0.5)
def ddp_keeps_the_order_of_buckets(DistributedDataParallel, *, rng):  # noqa: N803
    """Ranks whose gradients arrive in different orders, or not at all, still add up the same buckets."""
    for world_size in (2, 3):
        _expect_order_kept(DistributedDataParallel, world_size, inputs.seed(rng))


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


@check("05-ex5-ddp", points=0.5)
def backward_waits_for_nobody(DistributedDataParallel, *, rng):  # noqa: N803
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


def _expect_stack_gradients(case: str, results: list, name: str, model: _Stack, seed: int) -> None:
    for rank in range(len(results)):
        (model(rows_of(seed, rank, 1)).square().sum() / len(results)).backward()
    expected = arrays_of(p.grad for p in model.parameters())
    got = [result[name] for result in results]
    expect_same(case, "gradient", got, expected, "the mean over the ranks is", RTOL32)


#: The steps of _drive_towers. Only the last clears the gradients before. In the last two rank 0 uses one tower only.
_TOWER_STEPS = (
    "gradients arrive in different orders",
    "a second step without zero_grad",
    "rank 0 skips a tower",
    "rank 0 skips a tower after zero_grad",
)


def _use(rank: int, step: int) -> str:
    return "left" if step >= 2 and rank == 0 else "both"


def _drive_towers(rank: int, world_size: int, ddp_class: Any, seed: int) -> list[list[dict]]:
    """Inside a rank: the gradients after each step, and whether its forward has changed what was there."""
    observed = []
    for bucket_bytes in (1, 100):
        towers = Towers(seed + rank)
        ddp = ddp_class(towers, bucket_bytes=bucket_bytes)
        steps: list[dict] = []
        for step in range(len(_TOWER_STEPS)):
            if step == 3:
                ddp.zero_grad()
            before = arrays_of(p.grad for p in towers.parameters())
            out = output_of(ddp(rows_of(seed, rank, step), left_first=rank % 2 == 0, use=_use(rank, step)))
            changed = not all(map(np.array_equal, arrays_of(p.grad for p in towers.parameters()), before))
            out.sum().backward()
            ddp.finish_gradient_sync()
            steps.append({"changed": changed, "gradients": arrays_of(p.grad for p in towers.parameters())})
        observed.append(steps)
    return observed


def _expect_order_kept(ddp_class: Any, world_size: int, seed: int) -> None:
    """Ranks whose gradients arrive in different orders, or not at all, still add up the same buckets."""
    results = run_ranks(_drive_towers, world_size, (ddp_class, seed), PATIENCE)
    model = Towers(seed)
    for step, name in enumerate(_TOWER_STEPS):
        if step == 3:
            model.zero_grad()
        for rank in range(world_size):
            out = output_of(model(rows_of(seed, rank, step), rank % 2 == 0, _use(rank, step)))
            (out.sum() / world_size).backward()
        expected = arrays_of(p.grad for p in model.parameters())
        for number, bucket_bytes in enumerate((1, 100)):
            case = case_of(world_size, f"bucket_bytes = {bucket_bytes}", name)
            seen = [result[number][step] for result in results]
            for rank, changed in each_rank(case, [one["changed"] for one in seen]):
                rank.expect(not changed, "forward changed the gradients that were there before")
            got = [one["gradients"] for one in seen]
            expect_same(case, "gradient", got, expected, "the mean over the ranks of what was there is")
