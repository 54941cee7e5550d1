"""Lesson 05, exercise 5: what the wrapper sends, when, and from which hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import each_rank, fail
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
    in_words,
    rows_of,
    sent_by,
    span_of,
    spec_bytes,
)
from autograder.checks.ddp.models import Towers
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
    """Layers in a row with a mark after each: layer k's span begins before the layer's gradients exist."""

    def __init__(self, seed: int, layers: int, dtypes: list[str]):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=getattr(torch, dtypes[k])) for k in range(layers))
        self.prefix = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3) → (B, 3)"""
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
            x = _Mark.apply(x, f"{self.prefix} layer {number}")
        return x


_LAYERS = 5
#: dtype of each layer and bucket_bytes: a layer has 48 bytes in float32, 96 in float64.
_STACKS: dict[str, tuple[list[str], int]] = {
    "a bucket a layer": (["float32"] * _LAYERS, 48),
    "two layers a bucket": (["float32"] * _LAYERS, 100),
    "a bucket a parameter": (["float64"] * _LAYERS, 1),
    "two dtypes": (["float32", "float32", "float64", "float64", "float32"], 2**20),
}


def _drive_stacks(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: two steps of each stack, with spans for the construction, each step and each layer."""
    gradients = {}
    for name, (dtypes, bucket_bytes) in _STACKS.items():
        stack = _Stack(seed + rank, _LAYERS, dtypes)
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


@check("05-ex5-ddp")
def ddp_sends_each_bucket_once_while_backward_runs(DistributedDataParallel, *, rng):  # noqa: N803
    """One all-reduce for each bucket, in bucket order, starts as soon as it can; the wait for it comes at the end."""
    for world_size in (1, 2, 3):
        seed = inputs.seed(rng)
        results = run_ranks(_drive_stacks, world_size, (DistributedDataParallel, seed))
        ledger, each = results.ledger, range(world_size)
        for name, (dtypes, bucket_bytes) in _STACKS.items():
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
            _expect_stack_gradients(case_of(world_size, name), results, name, dtypes, seed)
    for world_size in (2, 3):
        _expect_order_kept(DistributedDataParallel, world_size, inputs.seed(rng))


def _expect_overlap(
    case: str, ledger: Ledger, rank: int, span: str, calls: list[Message], buckets: list[list[int]]
) -> None:
    """A bucket starts before backward goes on to the next layer, and no rank waits before the end of backward."""
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
        fail(f"on rank {rank}, {text}", case, late)
    begin = span_of(ledger, rank, f"{span} layer 0").start
    if any(message.end is None for message in calls):
        fail(f"on rank {rank}, wait() was never called on an all-reduce", case, "never waited")
    if calls[0].end < begin and len(calls) > 1:
        text = f"rank {rank} waited for an all-reduce before backward had ended: start it asynchronously"
        fail(text, case, "waits")


def _expect_stack_gradients(case: str, results: list, name: str, dtypes: list[str], seed: int) -> None:
    model = _Stack(seed, _LAYERS, dtypes)
    for rank in range(len(results)):
        (model(rows_of(seed, rank, 1)).square().sum() / len(results)).backward()
    expected = arrays_of(p.grad for p in model.parameters())
    got = [result[name] for result in results]
    expect_same(case, "gradient", got, expected, "the mean over the ranks is", RTOL32)


def _drive_towers(rank: int, world_size: int, ddp_class: Any, seed: int) -> list[list]:
    gradients = []
    for bucket_bytes in (1, 100):
        towers = Towers(seed + rank)
        ddp = ddp_class(towers, bucket_bytes=bucket_bytes)
        for step in range(2):  # the second adds to the means of the first
            ddp(rows_of(seed, rank, step), left_first=rank % 2 == 0).sum().backward()
            ddp.finish_gradient_sync()
        gradients.append(arrays_of(p.grad for p in towers.parameters()))
    return gradients


def _expect_order_kept(ddp_class: Any, world_size: int, seed: int) -> None:
    """Ranks whose gradients arrive in different orders still add up the same buckets."""
    results = run_ranks(_drive_towers, world_size, (ddp_class, seed), PATIENCE)
    model = Towers(seed)
    for rank in range(world_size):
        for step in range(2):
            (model(rows_of(seed, rank, step), rank % 2 == 0).sum() / world_size).backward()
    expected = arrays_of(p.grad for p in model.parameters())
    for number, bucket_bytes in enumerate((1, 100)):
        case = case_of(world_size, f"bucket_bytes = {bucket_bytes}", "gradients arrive in different orders, two steps")
        got = [result[number] for result in results]
        expect_same(case, "gradient", got, expected, "the mean over the ranks is")


# ---- the hooks ----


def _drive_hooks(rank: int, world_size: int, ddp_class: Any, seed: int) -> list:
    """Inside a rank: the parameters for which a subclass's on_gradient is called, and their gradients then."""
    calls: list[tuple[str, bool]] = []

    class Listening(ddp_class):  # type: ignore[misc]
        def on_gradient(self, param: nn.Parameter) -> None:
            calls.append((names.get(id(param), "something else"), param.grad is not None))

    towers = Towers(seed + rank)
    towers.left.bias.requires_grad_(False)
    names = {id(p): name for name, p in towers.named_parameters()}
    ddp = Listening(towers, bucket_bytes=1)
    loss = ddp(rows_of(seed, rank), True).sum()
    with record_function("backward"):
        loss.backward()
    return sorted(calls)


@check("05-ex5-ddp")
def ddp_hooks_call_on_gradient(DistributedDataParallel, *, rng):  # noqa: N803
    """Each trainable parameter's hook calls on_gradient, also a subclass's, once the gradient is in .grad."""
    expected = [(name, True) for name in ("left.weight", "right.bias", "right.weight")]
    for world_size in (2,):
        results = run_ranks(_drive_hooks, world_size, (DistributedDataParallel, inputs.seed(rng)))
        case = case_of(world_size, "a subclass overrides on_gradient; one parameter is frozen")
        for rank, calls in each_rank(case, [list(map(tuple, result)) for result in results]):
            if sent := sent_by(calls_inside(results.ledger, rank.rank, "backward")):
                rank.fail(f"the overridden on_gradient starts nothing, but backward sent {in_words(sent)}", "sent")
            got = [name for name, _ in calls]
            rank.expect_equal(got, [name for name, _ in expected], what="the list of parameters it was called for")
            rank.expect(calls == expected, "on_gradient was called before the gradient was in .grad")
