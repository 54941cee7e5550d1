"""Lesson 05, exercise 5: what the wrapper sends and when, with and without no_sync."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
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
    evidence_of,
    expect_arrays,
    expect_same,
    expect_sent,
    expected_buckets,
    in_words,
    rows_of,
    sent_by,
    span_of,
    spec_bytes,
)
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


class _Towers(nn.Module):
    """Two towers of the same size; even ranks use one of them first, odd ranks the other."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.left, self.right = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: torch.Tensor, left_first: bool) -> torch.Tensor:
        """(B, 3) → (B, 3)"""
        if left_first:
            return torch.tanh(self.left(x)) - self.right(x).square()
        right = self.right(x).square()
        return torch.tanh(self.left(x)) - right


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
                for rank in each:
                    _expect_overlap(case, ledger, rank, span, calls[rank], buckets)
            _expect_stack_gradients(case_of(world_size, name), results, name, dtypes, seed)
    for world_size in (2, 3):
        _expect_order_kept(DistributedDataParallel, world_size, inputs.seed(rng))


def _expect_overlap(
    case: str, ledger: Ledger, rank: int, span: str, calls: list[Message], buckets: list[list[int]]
) -> None:
    """A bucket starts at most one layer late, and no rank waits for all-reduces before the end of backward."""
    late = []
    for number, (bucket, message) in enumerate(zip(buckets, calls, strict=True)):
        layer = min(bucket) // 2  # the last of its layers to get gradients
        if layer >= 2 and message.start > span_of(ledger, rank, f"{span} layer {layer - 2}").start:
            late.append(number)
    if late:
        text = f"bucket {late[0]} started late: it could have started while backward was at earlier layers"
        text = text if len(late) < len(buckets) else "no bucket started during backward"
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
        towers = _Towers(seed + rank)
        ddp = ddp_class(towers, bucket_bytes=bucket_bytes)
        ddp(rows_of(seed, rank), left_first=rank % 2 == 0).sum().backward()
        ddp.finish_gradient_sync()
        gradients.append(arrays_of(p.grad for p in towers.parameters()))
    return gradients


def _expect_order_kept(ddp_class: Any, world_size: int, seed: int) -> None:
    """Ranks whose gradients arrive in different orders still add up the same buckets."""
    results = run_ranks(_drive_towers, world_size, (ddp_class, seed), PATIENCE)
    model = _Towers(seed)
    for rank in range(world_size):
        (model(rows_of(seed, rank), rank % 2 == 0).sum() / world_size).backward()
    expected = arrays_of(p.grad for p in model.parameters())
    for number, bucket_bytes in enumerate((1, 100)):
        case = case_of(world_size, f"bucket_bytes = {bucket_bytes}", "gradients arrive in different orders")
        got = [result[number] for result in results]
        expect_same(case, "gradient", got, expected, "the mean over the ranks is")


# ---- no_sync ----


class _Interrupt(Exception):
    """Raised by a driver inside no_sync()."""


def _drive_no_sync(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: micro-batches with and without no_sync, each in a span of its own."""
    stack = _Towers(seed + rank)
    ddp = ddp_class(stack, bucket_bytes=80)

    def micro_batch(name: str, number: int, silent: bool = False, finish: bool = True) -> list:
        with record_function(name), ddp.no_sync() if silent else nullcontext():
            loss = ddp(rows_of(seed, rank, number), True).sum()
            with torch.no_grad():  # looking at the model in between changes nothing
                ddp(rows_of(seed, rank, number), True)
            loss.backward()
        with record_function(f"{name} finish"):
            if finish:
                ddp.finish_gradient_sync()
        return arrays_of(p.grad for p in stack.parameters())

    seen = {}
    for k in range(2):
        seen[f"k3 silent {k}"] = micro_batch(f"k3 silent {k}", k, silent=True)
    seen["k3 last"] = micro_batch("k3 last", 2)
    with record_function("again"):
        ddp.finish_gradient_sync()
    ddp.zero_grad()
    for k in range(2):  # finish is only called after the last one
        micro_batch(f"rare silent {k}", k, silent=True, finish=False)
    seen["rare last"] = micro_batch("rare last", 2)
    ddp.zero_grad()
    try:
        with ddp.no_sync():
            raise _Interrupt
    except _Interrupt:
        pass
    seen["interrupted"] = micro_batch("interrupted", 3)
    ddp.zero_grad()
    with ddp.no_sync():
        with ddp.no_sync():
            pass
        seen["nested"] = micro_batch("nested", 4)
    seen["kept up"] = micro_batch("kept up", 5)  # without zero_grad: local gradients of micro-batch 4 and these
    seen["added"] = micro_batch("added", 6)  # added to means
    return seen


#: For each span of `_drive_no_sync`: the micro-batches whose gradients are then added up, and whether as a mean.
_NO_SYNC = {
    "k3 silent 0": ([0], False),
    "k3 silent 1": ([0, 1], False),
    "k3 last": ([0, 1, 2], True),
    "rare last": ([0, 1, 2], True),
    "interrupted": ([3], True),
    "nested": ([4], False),
    "kept up": ([4, 5], True),
    "added": ([4, 5, 6], True),
}
_NO_SYNC_NAMES = {
    "k3 silent 0": "the first of two micro-batches inside no_sync",
    "k3 silent 1": "the second of two micro-batches inside no_sync",
    "k3 last": "the last of three micro-batches, outside no_sync",
    "rare last": "the last of three micro-batches, finish_gradient_sync called only after it",
    "interrupted": "a synchronized step after an exception left no_sync",
    "nested": "a micro-batch after an inner no_sync has ended, inside the outer one",
    "kept up": "a synchronized step after a silent one",
    "added": "a second synchronized step without zero_grad",
}


@check("05-ex5-ddp")
def ddp_syncs_once_for_many_micro_batches(DistributedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """Inside no_sync nothing is sent and gradients add up; the next synchronized backward averages all of them."""
    specs = [((3, 3), "float64", True), ((3,), "float64", True)] * 2
    one_step = [("all_reduce", sum(spec_bytes(specs[i]) for i in bucket)) for bucket in expected_buckets(specs, 80)]
    for world_size in (1, 2, 3):
        seed = inputs.seed(rng)
        results = run_ranks(_drive_no_sync, world_size, (DistributedDataParallel, seed))
        ledger, each = results.ledger, range(world_size)
        for name, (numbers, is_mean) in _NO_SYNC.items():
            case = case_of(world_size, _NO_SYNC_NAMES[name])
            sent = [sent_by(calls_inside(ledger, r, name) + calls_inside(ledger, r, f"{name} finish")) for r in each]
            expect_sent(case, sent, one_step if is_mean else [], "the micro-batch, from forward to finish,")
            model = _Towers(seed)
            local = []
            for rank in each:
                model.zero_grad()
                for number in numbers:
                    model(rows_of(seed, rank, number), True).sum().backward()
                local.append(arrays_of(p.grad for p in model.parameters()))
            mean = [np.mean(arrays, axis=0) for arrays in zip(*local, strict=True)]
            got = [result[name] for result in results]
            whose = "the mean over the ranks is" if is_mean else "this rank's own sum is"
            for rank, arrays in each_rank(case, got, evidence=evidence_of):
                expect_arrays(rank, "gradient", arrays, mean if is_mean else local[rank.rank], whose)
        for rank in each:
            if again := sent_by(calls_inside(ledger, rank, "again")):
                text = f"on rank {rank}, a second finish_gradient_sync() sent {in_words(again)}, expected nothing"
                fail(text, case_of(world_size), again)
