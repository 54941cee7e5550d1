"""Runs of training steps, for units alone and for the wrapper, and the plain module that they must follow."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.cases import ANYTHING, Case, at_most, close, complaint, fact
from autograder.checking.expect import ceil_div
from autograder.checks.fsdp.cut import wrong_gathers
from autograder.checks.fsdp.models import ERROR, OPTIMIZERS, as_numpy, batch, build, divide, flat, groups, padded

#: For each number of ranks the models, by their places in MODELS: all where most goes wrong, some elsewhere.
PLAN = {3: (0, 1, 2, 3, 4, 5), 1: (3, 1), 5: (4,), 2: (0,), 4: (4,)}


@dataclass
class Training:
    """Some steps of a model. halves: two backwards a step, over halves of the batch."""

    model: str
    optimizer: str
    seed: int
    steps: int = 3
    halves: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """The model, the optimizer and what is special."""
        more = [", two backwards a step"] if self.halves else []
        more += [f", {self.dtype}"] if self.dtype != "float32" else []
        return f"{self.model}, {self.optimizer}{''.join(more)}"


class _Bare:
    """Units without a wrapper, for the exercise before it."""

    def __init__(self, unit_class: Any, module: nn.Module, units: list[nn.Module], *dtype: torch.dtype):
        self.module, self.units = module, [unit_class(unit, *dtype) for unit in units]

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)

    def parameters(self) -> list[nn.Parameter]:
        return [unit.shard for unit in self.units if unit.shard.numel()]


@dataclass
class Built:
    """What a rank has before the first step."""

    frozen: int = fact("the number of frozen numbers in parameters()")
    buffers: list[str] = fact("the list of the dtypes of the buffers")
    kinds: list[str] = fact("the list of the trainable shards")


@dataclass
class Stepped:
    """What a rank has after a step, and the gradients with which it was made."""

    when: str
    missing: str = complaint()
    gradients: list[Any] = fact("the gradient of trainable shard {}")
    shards: list[Any] = fact("trainable shard {}")


@dataclass
class Ended:
    """What a rank computes without gradients after the last step."""

    output: Any = fact("the output under no_grad")
    buffers: list[str] = fact("the list of the dtypes of the buffers at the end")
    whole: str = complaint()


def _drive_steps(rank: int, world_size: int, subject: Any, training: Training, bare: bool, link: Any) -> list[Any]:
    """Two barriers around each step."""
    module, units = build(training.model, training.seed + (0 if bare else 7 * rank))
    dtype = [getattr(torch, training.dtype)] if training.dtype != "float32" else []
    wrapped = _Bare(subject, module, units, *dtype) if bare else subject(module, units, *dtype)
    if link:
        link(wrapped.units)
    params = list(wrapped.parameters())
    # Empty ones have a check of their own: `only_what_trains_has_a_trainable_shard`.
    trained = [p for p in params if p.requires_grad and p.numel()]
    optimizer = OPTIMIZERS[training.optimizer](wrapped.parameters())
    kinds = [f"{p.dim()}-D {str(p.dtype)[6:]} of {p.numel()}" for p in trained]
    frozen = sum(p.numel() for p in params if not p.requires_grad)
    found: list[Any] = [Built(frozen, [str(b.dtype)[6:] for b in module.buffers()], kinds)]
    for step in range(training.steps):
        x, y = batch(training.model, training.seed, step, rank)
        if bare and x.is_floating_point():
            x = x.to(*dtype) if dtype else x
        parts = [(x, y)] if not training.halves else list(zip(x.chunk(2), y.chunk(2), strict=True))
        dist.barrier()
        for part, target in parts:
            loss = (wrapped(part).float() - target).square().mean() / len(parts)
            loss.backward()
        missing = [
            f"trainable shard {u} has no .grad after backward() in step {step + 1}"
            for u, p in enumerate(trained)
            if p.grad is None
        ]
        gradients = [torch.zeros(0) if p.grad is None else p.grad.clone() for p in trained]
        optimizer.step()
        dist.barrier()
        shards = [p.detach().clone() for p in trained]
        found.append(Stepped(f"in step {step + 1}", next(iter(missing), ""), gradients, shards))
        optimizer.zero_grad()
    x, _ = batch(training.model, training.seed, training.steps, 0)
    with torch.no_grad():
        output = wrapped(x.to(*dtype) if bare and dtype and x.is_floating_point() else x)
    left = [u for u, unit in enumerate(wrapped.units) if unit.whole is not None] if bare else []
    whole = f"after a forward under no_grad, unit {left[0]} is still whole" if left else ""
    return [*found, Ended(output.clone(), [str(b.dtype)[6:] for b in module.buffers()], whole)]


def follow(case: Training, world_size: int) -> dict:
    """The plain module in this process, on all ranks' batches together (bf16: on each, cast, and added up)."""
    module, units = build(case.model, case.seed)
    parts = [groups(params) for params in divide(module, units)]
    trained = [p for trainable, _ in parts for p in trainable]
    optimizer, want = OPTIMIZERS[case.optimizer](trained), {"gradients": [], "shards": []}
    for step in range(case.steps):
        batches = [batch(case.model, case.seed, step, rank) for rank in range(world_size)]
        optimizer.zero_grad()
        if case.dtype == "float32":
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            (module(x) - y).square().mean().backward()
        else:
            _sum_of_casts(module, trained, batches)
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        want["gradients"].append([flat(p.grad for p in trainable) for trainable, _ in parts if trainable])
        optimizer.step()
        want["shards"].append([flat(trainable) for trainable, _ in parts if trainable])
    x, _ = batch(case.model, case.seed, case.steps, 0)
    if case.dtype == "float32":
        with torch.no_grad():
            want["output"] = as_numpy(module(x))
    want["frozen"] = [sum(p.numel() for p in frozen) for _, frozen in parts]
    want["trained"] = [sum(p.numel() for p in trainable) for trainable, _ in parts]
    want["module"] = module
    want["buffer dtypes"] = [str(b.dtype)[6:] for b in module.buffers()]
    return want


def _sum_of_casts(module: nn.Module, trained: list[nn.Parameter], batches: list) -> None:
    """p.grad = the mean over ranks of the cast module's gradients, each cast to float32 before they are added."""
    masters, params = {}, list(module.parameters())
    for p in params:
        masters[p], p.data, p.grad = p.data, p.data.bfloat16(), None
    sums = {p: torch.zeros(p.shape) for p in trained}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a rank: more of them round sums in bf16 otherwise
    for x, y in batches:
        out = module(x.bfloat16() if x.is_floating_point() else x)
        (out.float() - y).square().mean().backward()
        for p in trained:
            if p.grad is not None:
                sums[p] += p.grad.float()
            p.grad = None
    torch.set_num_threads(threads)
    for p in params:
        p.data = masters[p]
    for p in trained:
        p.grad = sums[p] / len(batches)


def steps_of(subject: Any, training: Training, n: int, bare: bool, link: Any = None) -> Case:
    """A training on n ranks follows the plain module, with two all-gathers and a reduce-scatter per unit and backward.

    bare: `subject` is the class of a unit, not of a wrapper. link: called with the units.
    """
    want = follow(training, n)
    sizes = [ceil_div(numel, n) for numel in want["trained"] if numel]
    frozen = at_most(sum(ceil_div(numel, n) for numel in want["frozen"]))
    built = Built(frozen, want["buffer dtypes"], [f"1-D float32 of {size}" for size in sizes])
    gradients, shards = ([_pieces(vectors, n) for vectors in want[what]] for what in ("gradients", "shards"))
    output = close(want["output"], rtol=5 * ERROR, atol=ERROR) if "output" in want else ANYTHING
    ended = Ended(output, want["buffer dtypes"], "")
    steps = list(zip(gradients, shards, strict=True))
    expect = [[built, *(Stepped("", "", g[rank], s[rank]) for g, s in steps), ended] for rank in range(n)]
    judge = functools.partial(_wrong_wire, training, want, n, link is not None)
    args = (subject, training, bare, link)
    return Case(training.name, n, _drive_steps, args, expect, parts=2 * training.steps + 1, judge=judge)


def _pieces(vectors: list[np.ndarray], n: int) -> list[list[close]]:
    """rank → its pieces of these vectors, each within a bound that is relative to the whole vector."""
    bounds = [ERROR * max(1.0, float(np.max(np.abs(vector), initial=0.0))) for vector in vectors]
    cut = [padded(vector, n).reshape(n, -1) for vector in vectors]
    return [
        [close(piece[rank], atol=bound, dtype="float32") for piece, bound in zip(cut, bounds, strict=True)]
        for rank in range(n)
    ]


def _wrong_wire(training: Training, want: dict, n: int, ahead: bool, rank: int, parts: list) -> str:
    """In words: what a rank should not have sent in a step, or, if it gathers `ahead`, never waited for; or ""."""
    for part in parts[1::2] if n > 1 else []:
        sent = [(m.call, m.bytes, m.dtype) for m in part if m.bytes]
        times, itemsize = 2 if training.halves else 1, 2 if training.dtype == "bfloat16" else 4
        reduced = sorted(nbytes for call, nbytes, _ in sent if call.startswith("reduce_scatter"))
        expected = sorted(4 * n * ceil_div(numel, n) for numel in want["trained"] if numel for _ in range(times))
        if reduced != expected:
            return f"rank {rank} put {reduced} bytes into its reduce-scatters, expected {expected}"
        wrong = {dtype for call, _, dtype in sent if call.startswith("reduce_scatter")} - {"torch.float32"}
        if wrong:
            return f"rank {rank} reduced gradients as {wrong.pop()}, expected torch.float32"
        pairs = zip(want["trained"], want["frozen"], strict=True)
        units = [(ceil_div(p, n) + ceil_div(f, n)) * itemsize for p, f in pairs]
        rest = [(call, nbytes) for call, nbytes, _ in sent if not call.startswith("reduce_scatter")]
        if text := wrong_gathers(rank, rest, 2 * times * units, n):
            return text
    if ahead and any(m.end is None for part in parts for m in part):
        return f"rank {rank} never waited for an all-gather that it had started"
    return ""
