"""Lesson 17, exercises 7 and 8: the schedule, the decay of a shard, and bits per byte of a text.

The oracles are torch's AdamW with two groups on the mean gradient, in one process, and a sum over all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Call, Case, at_most, close, fact
from autograder.checks.check import check

from .common import equip

DECAY, EVALUATE = "17-ex7-decay", "17-ex8-evaluate"
#: The learning rate with which an optimizer is made.
LR = 0.123


def _rates(rate: Any, rng: np.random.Generator, runs: tuple[tuple[int, float], ...]) -> Iterator[Call]:
    """The rate in each step of runs of (steps, warmup)."""
    for steps, warmup in runs:
        peak, warm = float(rng.uniform(1e-3, 1e-2)), min(steps - 1, max(1, round(warmup * steps)))
        ends = [*range(1, warm + 1)], [*range(warm, steps + 1)]
        rising = np.interp(ends[0], [0, warm], [0.0, peak])
        falling = peak / 20 + peak * 0.95 * np.cos(np.linspace(0, math.pi / 2, len(ends[1]))) ** 2
        for step, expected in zip(range(1, steps + 1), [*rising, *falling[1:]], strict=True):
            name = f"step {step} of {steps}, warm-up {warmup:.2f} of them, peak {peak:.4f}"
            yield Call(
                rate, step, steps, peak, warmup, gives=close(expected, atol=1e-9 * peak), name=name, what="the rate"
            )


@check(DECAY, points=1)
def the_rate_rises_and_falls(rate, *, rng):
    """A linear warm-up that ends at the peak, then half a cosine that ends at a twentieth of it."""
    drawn = (int(rng.integers(20, 99)), float(rng.uniform(0.05, 0.4)))
    yield from _rates(rate, rng, ((10, 0.2), (320, 0.1), (7, 0.0), drawn))


@check(DECAY, points=0.25)
def the_warm_up_leaves_a_step_for_the_fall(rate, *, rng):
    """A warm-up of all steps, or nearly all, ends one step before the last, which has a twentieth of the peak."""
    yield from _rates(rate, rng, ((int(rng.integers(5, 30)), 1.0), (int(rng.integers(5, 9)), 0.99)))


@dataclass
class Stepped:
    """One rank's parameters after each step."""

    matrices: Any = fact("the list of all entries of matrices after step {}")
    vectors: Any = fact("the list of all entries of vectors after step {}")


def _flat(params: list[nn.Parameter], vectors: bool) -> np.ndarray:
    parts = [param.detach().numpy().reshape(-1) for param in params if (param.dim() < 2) == vectors]
    return np.concatenate(parts) if parts else np.zeros(1)


def _step(
    rank: int, world_size: int, optimizer_class: Any, shapes: list, decay: float, rates: list[float], seed: int
) -> Stepped:
    equip(optimizer_class)
    params = [nn.Parameter(value) for value in _values(shapes, seed)]
    optimizer, found = optimizer_class(params, decay, lr=LR, betas=(0.9, 0.95)), Stepped({}, {})
    for step, lr in enumerate(rates):
        optimizer.zero_grad()
        for param, gradient in zip(params, _values(shapes, seed + 1000 * (step + 1) + rank), strict=True):
            param.grad = gradient
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        found.matrices[step + 1], found.vectors[step + 1] = _flat(params, False), _flat(params, True)
    return found


def _values(shapes: list, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _by_torch(world_size: int, shapes: list, decay: float, rates: list[float], seed: int) -> Stepped:
    """One process: torch's AdamW with a group that decays and one that does not."""
    params, found = [nn.Parameter(value) for value in _values(shapes, seed)], Stepped({}, {})
    groups = [{"params": [p for p in params if p.dim() > 1], "weight_decay": decay}]
    groups.append({"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0})
    adam = torch.optim.AdamW([group for group in groups if group["params"]], lr=LR, betas=(0.9, 0.95))
    for step, lr in enumerate(rates):
        gradients = [_values(shapes, seed + 1000 * (step + 1) + rank) for rank in range(world_size)]
        for param, parts in zip(params, zip(*gradients, strict=True), strict=True):
            param.grad = torch.stack(parts).mean(0)
        for group in adam.param_groups:
            group["lr"] = lr
        adam.step()
        found.matrices[step + 1] = close(_flat(params, False), atol=1e-5)
        found.vectors[step + 1] = close(_flat(params, True), atol=1e-5)
    return found


def _steps(optimizer_class: Any, name: str, world_size: int, shapes: list, seed: int, rates: list[float]) -> Case:
    expected = _by_torch(world_size, shapes, 0.1, rates, seed)
    if any(len(shape) < 2 for shape in shapes):
        expected.matrices = ...
    arguments = (optimizer_class, shapes, 0.1, rates, seed)
    shows = f"parameters of the shapes {shapes}, decay 0.1, the rates {[round(lr, 3) for lr in rates]}"
    return Case(name, world_size, _step, arguments, expect=[expected] * world_size, shows=shows)


def _matrices(optimizer_class: Any, rng: np.random.Generator, rates: list[float]) -> Iterator[Case]:
    for world_size in (1, 2, 4):
        shapes = [(4, 2 * world_size), (8, 4, world_size)]
        yield _steps(optimizer_class, "matrices alone", world_size, shapes, int(rng.integers(10**6)), rates)


@check(DECAY, points=1)
def matrices_decay(DecayedOptimizer, *, rng):
    """With a constant rate a step is torch's AdamW on matrices, on 1 to 4 ranks with equal shards."""
    yield from _matrices(DecayedOptimizer, rng, [LR] * 3)


@check(DECAY, points=0.75)
def the_rate_of_the_step_counts(DecayedOptimizer, *, rng):
    """Where the rate changes, each step decays with the rate that it uses."""
    yield from _matrices(DecayedOptimizer, rng, [float(rate) for rate in rng.uniform(0.2, 0.5, 3)])


@check(DECAY, points=1)
def vectors_do_not_decay(DecayedOptimizer, *, rng):
    """Biases and norms do not decay, wherever in a shard they begin, and sizes need not divide."""
    for world_size in (1, 3, 4):
        width = int(rng.integers(3, 9))
        shapes = [(width,), (width, 5), (5,), (1, 7), (7,), (3, 1, 2)]
        rates = [LR] * 2
        name = f"matrices and vectors, the first {width} long"
        yield _steps(DecayedOptimizer, name, world_size, shapes, int(rng.integers(10**6)), rates)


# ---- 8 · bits per byte ----


@dataclass
class Told:
    """What a rank returns, for one text or in the ratio to another, and how the model was called."""

    bits: Any = fact("bits per byte")
    ratio: Any = fact("bits per byte, divided by those of another text with as many bytes,")
    longest: Any = fact("the tokens of the longest sequence that the model was called with")


def _evaluate(
    rank: int,
    world_size: int,
    evaluate: Any,
    kind: str,
    table: Any,
    ids: list[int],
    other: list[int],
    nbytes: int,
    context: int,
) -> Told:
    equip(evaluate)
    logits, longest = torch.tensor(table), [0]

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            longest.append(x.shape[1])
            if kind == "counts tokens":  # sure of the token, unless it has fewer than half a window before it
                known = torch.arange(1, x.shape[1] + 1)[None, :, None] > context // 2
                return torch.where(known, 0.0, logits[x])
            return logits[x]

    bits = float(evaluate(Model(), torch.tensor(ids), nbytes, context))
    kind = ""
    return Told(bits, bits / float(evaluate(Model(), torch.tensor(other), nbytes, context)), max(longest))


def _nats(table: np.ndarray, ids: list[int], exempt: int = 0) -> float:
    """Of all tokens but the first, by a table of logits of the token before; after the first ones, of equal logits."""
    total = 0.0
    for at in range(1, len(ids)):
        row = table[ids[at - 1]] if not exempt or at <= exempt else np.zeros(len(table))
        total += float(np.log(np.exp(row).sum()) - row[ids[at]])
    return total


def _texts(evaluate: Any, rng: np.random.Generator, lengths: Callable[[int], int], kind: str = "") -> Iterator[Case]:
    """kind: "" to compare the bits, else their ratio to those of a text of whole windows."""
    for world_size in (1, 3, 4):
        context = 2 * int(rng.integers(2, 6))
        ids, other = (rng.integers(0, 8, count).tolist() for count in (lengths(context), 12 * context + 1))
        table = np.round(rng.normal(0, 2, (8, 8)), 2).astype(np.float32)
        nbytes = len(ids) * int(rng.integers(2, 4)) + 1
        nats = _nats(table.astype(float), ids, context // 2 if kind == "counts tokens" else 0)
        bits, ratio = close(nats / math.log(2) / nbytes, rtol=1e-5), nats / _nats(table.astype(float), other)
        name = f"{len(ids)} tokens, context {context}"
        facts = Told(..., close(ratio, rtol=1e-5), at_most(context)) if kind else Told(bits, ..., at_most(context))
        arguments = (evaluate, kind, table.tolist(), ids, other, nbytes, context)
        yield Case(name, world_size, _evaluate, arguments, expect=[facts] * world_size)


@check(EVALUATE, points=1.5)
def each_token_counts_once(bits_per_byte, *, rng):
    """Bits, not nats, per byte, not per token, over all tokens but the first; the same on all ranks."""
    yield from _texts(bits_per_byte, rng, lambda context: 6 * context * int(rng.integers(2, 4)) + 1)


@check(EVALUATE, points=0.75)
def half_a_window_stands_before_each(bits_per_byte, *, rng):
    """Each token is predicted from the tokens that the statement names: half a window, and those of its own piece."""
    yield from _texts(bits_per_byte, rng, lambda context: 12 * context + 1, "counts tokens")


@check(EVALUATE, points=0.75)
def the_last_piece_counts(bits_per_byte, *, rng):
    """A text of any length counts to its end, also where some ranks have no piece of it."""
    yield from _texts(bits_per_byte, rng, lambda context: 3 * context + int(rng.integers(2, context // 2 + 1)), "ratio")
    yield from _texts(bits_per_byte, rng, lambda context: 2, "ratio")
    yield from _texts(bits_per_byte, rng, lambda context: context // 2 + 1, "ratio")
