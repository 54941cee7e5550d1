"""Runs of training steps, for units alone and for the wrapper, and the plain module that they must follow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checks.cases import ANYTHING, Case, close, fact, sentence
from autograder.checks.expect import ceil_div

from .cut import wrong_gathers
from .models import ERROR, as_numpy, batch, build, divide, flat, groups, optimizer_of, padded


@dataclass
class Training:
    """Some steps of a model. halves: two backwards per step, over half a batch each. bare: units without a wrapper."""

    model: str
    seed: int
    steps: int = 2
    halves: bool = False
    dtype: str = "float32"
    bare: bool = True

    @property
    def name(self) -> str:
        """The model, and what is special."""
        more = [", two backwards per step"] if self.halves else []
        more += [f", {self.dtype}"] if self.dtype != "float32" else []
        return f"{self.model}{''.join(more)}"


class _Bare:
    """Units without a wrapper, for the exercises on units."""

    def __init__(self, unit_class: Any, module: nn.Module, units: list[nn.Module], *dtype: torch.dtype):
        self.module, self.units = module, [unit_class(unit, *dtype) for unit in units]

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)

    def parameters(self) -> list[nn.Parameter]:
        return [unit.shard for unit in self.units if unit.shard.numel()]


@dataclass
class Built:
    """What a rank has before the first step."""

    sizes: list[int] = fact("the list of the lengths of the trained shards")


@dataclass
class Stepped:
    """What a rank has after a step, and the gradients with which it was made. when: "in step 1"."""

    when: str
    missing: str = sentence()
    gradients: list[Any] = fact("the gradient of trained shard {}")
    directions: list[Any] = fact("the gradient of trained shard {}, with those of all ranks scaled to length 1,")
    shards: list[Any] = fact("trained shard {}")


def _drive_steps(rank: int, world_size: int, subject: Any, training: Training, link: Any) -> list[Any]:
    """Two barriers around each step. Ranks of a wrapper start from different seeds."""
    module, units = build(training.model, training.seed + (0 if training.bare else 7 * rank))
    dtype = [getattr(torch, training.dtype)] if training.dtype != "float32" else []
    wrapped = _Bare(subject, module, units, *dtype) if training.bare else subject(module, units, *dtype)
    if link:
        link(wrapped.units)
    params = list(wrapped.parameters())
    trained = [p for p in params if p.requires_grad]
    optimizer = optimizer_of(trained)
    found: list[Any] = [Built([p.numel() for p in trained])]
    for step in range(training.steps):
        x, y = batch(training.model, training.seed, step, rank)
        if training.bare and x.is_floating_point():
            x = x.to(*dtype) if dtype else x
        parts = [(x, y)] if not training.halves else list(zip(x.chunk(2), y.chunk(2), strict=True))
        dist.barrier()
        for part, target in parts:
            loss = (wrapped(part).float() - target).square().mean() / len(parts)
            loss.backward()
        missing = [
            f"trained shard {u} has no .grad after backward() in step {step + 1}"
            for u, p in enumerate(trained)
            if p.grad is None
        ]
        gradients = [torch.zeros(0) if p.grad is None else p.grad.clone() for p in trained]
        optimizer.step()
        dist.barrier()
        shards = [p.detach().clone() for p in trained]
        found.append(Stepped(f"in step {step + 1}", next(iter(missing), ""), gradients, shards=shards))
        optimizer.zero_grad()
    return found


def follow(case: Training, world_size: int) -> dict:
    """The plain module in this process, on all ranks' batches together (bf16: on each, cast, and added up)."""
    module, units = build(case.model, case.seed)
    parts = [groups(params) for params in divide(module, units)]
    trained = [p for trainable, _ in parts for p in trainable]
    optimizer = optimizer_of(trained)
    want: dict[str, Any] = {"gradients": [], "shards": [], "module": module}
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
    want["frozen"] = [sum(p.numel() for p in frozen) for _, frozen in parts]
    want["trained"] = [sum(p.numel() for p in trainable) for trainable, _ in parts]
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


def _lengths(step: list[Stepped]) -> list[Stepped]:
    """The facts of all ranks after a step, with the gradients' directions."""
    squares = sum(np.square(as_numpy(one).astype(float)).sum() for facts in step for one in facts.gradients)
    length = float(squares) ** 0.5 or 1.0
    return [
        Stepped(one.when, one.missing, one.gradients, [g.double() / length for g in one.gradients], one.shards)
        for one in step
    ]


def _with_directions(returned: list[list[Any]]) -> list[list[Any]]:
    moments = [_lengths(list(step)) for step in zip(*(of_rank[1:] for of_rank in returned), strict=True)]
    return [[of_rank[0], *(step[rank] for step in moments)] for rank, of_rank in enumerate(returned)]


def steps_of(
    subject: Any, training: Training, n: int, what: str = "shards", link: Any = None, wire: Callable | None = None
) -> Case:
    """A training on n ranks follows the plain module.

    what: is compared after each step: "shards" (and with them "gradients"), "gradients", or "directions" (the gradients
    up to a common factor). link: is called with the units. wire: (training, the plain module's numbers, n, rank,
    parts) → what is wrong with what was sent.
    """
    want = follow(training, n)
    sizes = [ceil_div(numel, n) for numel in want["trained"] if numel]
    built = Built(sizes if what == "shards" else ANYTHING)
    steps: list[list[Stepped]] = []
    for gradients, shards in zip(want["gradients"], want["shards"], strict=True):
        length = float(np.sqrt(sum(np.square(g.astype(float)).sum() for g in gradients)))
        pieces, masters = _pieces(gradients, n), _pieces(shards, n)
        directions = _pieces([g.astype(float) / length for g in gradients], n, dtype="")
        steps.append(
            [
                Stepped(
                    "",
                    "",
                    pieces[rank] if what in ("shards", "gradients") else ANYTHING,
                    directions[rank] if what == "directions" else ANYTHING,
                    masters[rank] if what == "shards" else ANYTHING,
                )
                for rank in range(n)
            ]
        )
    expect = [[built, *(step[rank] for step in steps)] for rank in range(n)]
    judge = functools.partial(wire, training, want, n) if wire else None
    args, parts = (subject, training, link), 2 * training.steps + 1
    return Case(training.name, n, _drive_steps, args, expect, parts=parts, judge=judge, sees=_with_directions)


def _pieces(vectors: list[np.ndarray], n: int, dtype: str = "float32") -> list[list[close]]:
    """rank → its pieces of these vectors, each within a bound that is relative to the whole vector."""
    bounds = [ERROR * max(1.0, float(np.max(np.abs(vector), initial=0.0))) for vector in vectors]
    cut = [padded(vector, n).reshape(n, -1) for vector in vectors]
    return [
        [close(piece[rank], atol=bound, dtype=dtype) for piece, bound in zip(cut, bounds, strict=True)]
        for rank in range(n)
    ]


def only_what_is_needed(training: Training, want: dict, n: int, rank: int, parts: list) -> str:
    """In words: what a rank sends in a step besides two all-gathers and a reduce-scatter per unit and backward."""
    for part in parts[1::2] if n > 1 else []:
        sent = [(m.call, m.bytes) for m in part if m.bytes]
        times, itemsize = 2 if training.halves else 1, 2 if training.dtype == "bfloat16" else 4
        reduced = sorted(nbytes for call, nbytes in sent if call.startswith("reduce_scatter"))
        expected = sorted(4 * n * ceil_div(numel, n) for numel in want["trained"] if numel for _ in range(times))
        if reduced != expected:
            return f"rank {rank} put {reduced} bytes into its reduce-scatters, expected {expected}"
        pairs = zip(want["trained"], want["frozen"], strict=True)
        units = [(ceil_div(p, n) + ceil_div(f, n)) * itemsize for p, f in pairs]
        rest = [(call, nbytes) for call, nbytes in sent if not call.startswith("reduce_scatter")]
        if text := wrong_gathers(rank, rest, 2 * times * units, n):
            return text
    return ""


def reduced_in_float32(training: Training, want: dict, n: int, rank: int, parts: list) -> str:
    """In words: that gradients were added up in another dtype."""
    sent = {m.dtype for part in parts for m in part if m.bytes and "reduce" in m.call} - {"torch.float32"}
    return f"rank {rank} reduced gradients as {sent.pop()}, expected torch.float32" if sent else ""
