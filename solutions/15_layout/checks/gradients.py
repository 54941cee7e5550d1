"""Exercise 5: the end of a step on a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.cases import ANYTHING, Case, close, fact
from autograder.checking.check import check
from autograder.checking.inputs import eighths
from ranks.ledger import Ledger

FINISH = "15-ex5-finish"
MESHES = ((2, 2), (1, 2), (4, 1), (2, 3))
SPECS = (
    ("sharded", (3, 2)), ("partial", (4,)), ("replicated", (2, 3)), ("sharded", (5,)), ("partial", (2, 2)),
    ("replicated", ()),
)  # fmt: skip
#: More sharded weights than the numbers that may be sent over tp.
MANY = (*SPECS, *[("sharded", (2,))] * 4)
#: Added to eighths, so that no sum over fewer than eight ranks is 0.
OFFSET = 1 / 64


@dataclass(frozen=True)
class Mesh:
    """tp × dp ranks. grads[rank][i]; loss_sums[j] and counts[j] of data-parallel place j."""

    tp: int
    dp: int
    kinds: tuple[str, ...]
    grads: list[list[np.ndarray]]
    loss_sums: list[float]
    counts: list[int]

    def wanted(self, rank: int) -> list[np.ndarray]:
        """The gradients of the mean loss over all tokens, before they are clipped."""
        found = []
        for i, kind in enumerate(self.kinds):
            places = range(self.tp) if kind == "partial" else [rank % self.tp]
            total = sum(self.grads[j * self.tp + t][i].astype(float) for j in range(self.dp) for t in places)
            found.append(total / sum(self.counts))
        return found

    @property
    def norm(self) -> float:
        """The norm of the whole gradient: the pieces of all ranks of tp, and once what is whole on each rank."""
        squares = 0.0
        for i, kind in enumerate(self.kinds):
            for rank in range(self.tp if kind == "sharded" else 1):
                squares += float(np.square(self.wanted(rank)[i]).sum())
        return math.sqrt(squares)

    @property
    def loss(self) -> float:
        """The mean over all tokens that count."""
        return sum(self.loss_sums) / sum(self.counts)


def _mesh(rng: np.random.Generator, tp: int, dp: int, specs: tuple = SPECS, empty: bool = False) -> Mesh:
    """Drawn gradients and counts. empty: the first data-parallel place has no token that counts."""
    grads: list[list[np.ndarray]] = [[] for _ in range(tp * dp)]
    for kind, shape in specs:
        for j in range(dp):
            whole = eighths(rng, shape) + np.float32(OFFSET)
            for t in range(tp):
                own = whole if kind == "replicated" else eighths(rng, shape) + np.float32(OFFSET)
                grads[j * tp + t].append(own * np.float32(not (empty and j == 0)))
    counts = [int(n) for n in rng.permutation(np.arange(2, 2 + 3 * dp))[:dp]]
    loss_sums = [float(rng.integers(8, 800)) / 8 for _ in range(dp)]
    if empty:
        counts[0], loss_sums[0] = 0, 0.0
    return Mesh(tp, dp, tuple(kind for kind, _ in specs), grads, loss_sums, counts)


@dataclass
class Finished:
    """What a rank has after the call."""

    loss: Any = fact("the returned loss")
    norm: Any = fact("the returned norm")
    grads: Any = fact("the gradient of parameter {}")


def _drive(rank: int, world_size: int, function: Any, mesh: Mesh, max_norm: float) -> Finished:
    """One call on a mesh whose groups have been made."""
    tp, dp, groups = mesh.tp, mesh.dp, []
    for members in (
        *(list(range(j * tp, (j + 1) * tp)) for j in range(dp)),
        *(list(range(t, tp * dp, tp)) for t in range(tp)),
    ):
        group = dist.new_group(members)
        if rank in members:
            groups.append(group)
    params = []
    for grad in mesh.grads[rank]:
        p = nn.Parameter(torch.zeros(grad.shape))
        p.grad = torch.tensor(grad)
        params.append(p)
    j = rank // tp
    loss, norm = function(params, list(mesh.kinds), mesh.loss_sums[j], mesh.counts[j], *groups, max_norm)
    grads = {f"{i}, {kind},": p.grad.numpy().copy() for i, (kind, p) in enumerate(zip(mesh.kinds, params, strict=True))}
    return Finished(float(loss), float(norm), grads)


def _case(
    function: Any, mesh: Mesh, words: str = "", max_norm: float = math.inf, judge: Any = None, **compared: bool
) -> Case:
    """compared: the facts to compare, all of them if none is named."""
    scale, norm = 1.0, mesh.norm
    if norm > max_norm:
        scale = max_norm / (norm + 1e-6)
    expect = []
    for rank in range(mesh.tp * mesh.dp):
        grads = {
            f"{i}, {kind},": close(grad * scale, 2e-5)
            for i, (kind, grad) in enumerate(zip(mesh.kinds, mesh.wanted(rank), strict=True))
        }
        facts = {"loss": close(mesh.loss, 1e-6), "norm": close(norm, 1e-5), "grads": grads}
        expect.append(Finished(**{name: value if compared.get(name) else ANYTHING for name, value in facts.items()}))
    name = f"tp = {mesh.tp}, dp = {mesh.dp}, counts {mesh.counts}{words and ', '}{words}"
    return Case(name, mesh.tp * mesh.dp, _drive, (function, mesh, max_norm), expect, judge=judge)


@check(FINISH, points=2.5)
def gradients_are_those_of_the_mean_over_all_tokens(finish_gradients, *, rng):
    """Every .grad and the loss are those of all losses over all counts, also with unequal counts and a count of 0."""
    for tp, dp in MESHES:
        for empty in (False, True)[:dp]:
            yield _case(finish_gradients, _mesh(rng, tp, dp, empty=empty), loss=True, grads=True)


@check(FINISH, points=1.25)
def each_number_of_the_model_counts_once(finish_gradients, *, rng):
    """The norm is that of the whole gradient, each number of the model counted once."""
    for tp, dp in MESHES:
        yield _case(finish_gradients, _mesh(rng, tp, dp), norm=True)


@check(FINISH, points=0.75)
def gradients_above_the_bound_are_scaled(finish_gradients, *, rng):
    """Above max_norm every .grad is scaled to it, below none is; the norm returned is the one before."""
    for tp, dp in ((1, 2), (1, 3)):  # without tp: whose squares count is another check's question
        for factor, words in ((0.3, "0.3 times the norm"), (1.7, "1.7 times the norm")):
            mesh = _mesh(rng, tp, dp)
            yield _case(finish_gradients, mesh, f"max_norm {words}", factor * mesh.norm, norm=True, grads=True)


def _too_much(mesh: Mesh) -> Callable[[int, list[Ledger]], str]:
    """A judge: what a rank sends beyond each gradient over dp, the partial ones over tp, and a few numbers."""
    numel = {"all": 0, "partial": 0}
    for kind, grad in zip(mesh.kinds, mesh.grads[0], strict=True):
        numel["all"] += grad.size
        numel["partial"] += grad.size * (kind == "partial")
    most = {"dp": numel["all"] + 2, "tp": numel["partial"] + 4}

    def judge(rank: int, parts: list[Ledger]) -> str:
        tp, over = mesh.tp, {"tp": 0, "dp": 0}
        first = rank // tp * tp
        axes = {tuple(range(rank % tp, tp * mesh.dp, tp)): "dp", tuple(range(first, first + tp)): "tp"}
        for message in (message for part in parts for message in part):
            if message.call != "all_reduce":
                return f"rank {rank} called {message.call}, expected all-reduces only"
            if message.group not in axes:
                return f"rank {rank} all-reduced over other ranks than those of tp or of dp"
            itemsize = getattr(torch, (message.dtype or "torch.float32").removeprefix("torch.")).itemsize
            over[axes[message.group]] += message.bytes // itemsize
        for axis, count in over.items():
            if count > most[axis]:
                return f"rank {rank} put {count} numbers into all-reduces over {axis}, expected at most {most[axis]}"
        return ""

    return judge


@check(FINISH, points=0.5)
def each_gradient_is_sent_once(finish_gradients, *, rng):
    """Only all-reduces: over dp the gradients once and two numbers, over tp the partial ones and four at most."""
    for tp, dp in ((2, 2), (2, 3)):
        mesh = _mesh(rng, tp, dp, MANY)
        yield _case(finish_gradients, mesh, judge=_too_much(mesh))
        yield _case(finish_gradients, mesh, "max_norm half the norm", mesh.norm / 2, judge=_too_much(mesh))
