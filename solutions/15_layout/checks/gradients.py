"""Exercise 5: the end of a step on a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.inputs import eighths
from ranks.ledger import Ledger

FINISH = "15-ex5-finish"
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


def _wanted(mesh: Mesh, rank: int) -> list[np.ndarray]:
    """The gradients of the mean loss over all tokens, before they are clipped."""
    found = []
    for i, kind in enumerate(mesh.kinds):
        places = range(mesh.tp) if kind == "partial" else [rank % mesh.tp]
        total = sum(mesh.grads[j * mesh.tp + t][i].astype(float) for j in range(mesh.dp) for t in places)
        found.append(total / sum(mesh.counts))
    return found


def _norm(mesh: Mesh) -> float:
    """The norm of the whole gradient: the pieces of all ranks of tp, and once what is whole on each rank."""
    pieces = [(i, rank) for i, kind in enumerate(mesh.kinds) for rank in range(mesh.tp if kind == "sharded" else 1)]
    return _length(_wanted(mesh, rank)[i] for i, rank in pieces)


def _loss(mesh: Mesh) -> float:
    """The mean over all tokens that count."""
    return sum(mesh.loss_sums) / sum(mesh.counts)


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
    ratio: Any = fact("the returned norm, divided by the length of the gradients that the ranks hold,")
    grads: Any = fact("the gradient of parameter {}")
    direction: Any = fact("the gradient of parameter {}, with all that the rank holds scaled to length 1,")
    kinds: str = sentence()


def _groups(rank: int, tp: int, dp: int) -> list[Any]:
    """This rank's groups of tp and of dp."""
    over_tp = [list(range(j * tp, (j + 1) * tp)) for j in range(dp)]
    over_dp = [list(range(t, tp * dp, tp)) for t in range(tp)]
    groups = [(members, dist.new_group(members)) for members in over_tp + over_dp]
    return [group for members, group in groups if rank in members]


def _params(grads: list[np.ndarray]) -> list[nn.Parameter]:
    """Fresh parameters with these gradients."""
    params = []
    for grad in grads:
        p = nn.Parameter(torch.zeros(grad.shape))
        p.grad = torch.tensor(grad)
        params.append(p)
    return params


def _length(arrays: Iterable[np.ndarray]) -> float:
    """The length of the vector of all their numbers."""
    return math.sqrt(sum(float(np.square(array.astype(float)).sum()) for array in arrays))


def _whole_length(grads: list[np.ndarray], kinds: tuple[str, ...], tp: Any) -> float:
    """The length of the whole gradient, of which this rank holds its pieces and everything that is whole."""
    pieces = [g for g, kind in zip(grads, kinds, strict=True) if kind == "sharded"]
    whole = [g for g, kind in zip(grads, kinds, strict=True) if kind != "sharded"]
    squares = torch.tensor(_length(pieces) ** 2, dtype=torch.float64)
    dist.all_reduce(squares, group=tp)
    return math.hypot(math.sqrt(squares), _length(whole))


def _drive(rank: int, world_size: int, function: Any, mesh: Mesh, max_norm: float) -> Finished:
    """One call on a mesh whose groups have been made; a barrier, and then what the ranks hold."""
    groups, params, j = _groups(rank, mesh.tp, mesh.dp), _params(mesh.grads[rank]), rank // mesh.tp
    loss, norm = function(params, list(mesh.kinds), mesh.loss_sums[j], mesh.counts[j], *groups, max_norm)
    dist.barrier()
    grads = {_name(i, mesh): p.grad.numpy().copy() for i, p in enumerate(params)}
    held, whole = _whole_length(list(grads.values()), mesh.kinds, groups[0]), _length(grads.values())
    odd = [type(value).__name__ for value in (loss, norm) if not isinstance(value, float) or not value > 0]
    kinds = f"the results are no positive floats: {', '.join(odd)}" if odd else ""
    direction = {name: g / whole if whole else g for name, g in grads.items()}
    return Finished(float(loss), float(norm) / held if held else 0.0, grads, direction, kinds)


def _name(i: int, mesh: Mesh) -> str:
    return f"{i}, {mesh.kinds[i]},"


def _case(function: Any, mesh: Mesh, *names: str, max_norm: float = math.inf, judge: Any = None) -> Case:
    """names: of the facts that are compared."""
    expect = []
    for rank in range(mesh.tp * mesh.dp):
        wanted = {_name(i, mesh): grad for i, grad in enumerate(_wanted(mesh, rank))}
        length = _length(wanted.values())
        facts: dict[str, Any] = {"loss": close(_loss(mesh), 1e-6), "ratio": close(1.0, 1e-5), "kinds": ""}
        facts["grads"] = {name: close(grad, 2e-5) for name, grad in wanted.items()}
        facts["direction"] = {name: close(grad / length, 2e-5) for name, grad in wanted.items()}
        expect.append(Finished(**{name: facts[name] for name in names}))
    name = f"tp = {mesh.tp}, dp = {mesh.dp}, counts {mesh.counts}, max_norm = {max_norm:.4g}"
    return Case(name, mesh.tp * mesh.dp, _drive, (function, mesh, max_norm), expect, judge=judge, parts=2)


@check(FINISH, points=1.25)
def gradients_are_those_of_the_mean_over_all_tokens(finish_gradients, *, rng):
    """Over dp: every .grad is that of all losses over all counts, also with unequal counts."""
    for tp, dp in ((1, 2), (1, 3)):
        yield _case(finish_gradients, _mesh(rng, tp, dp), "grads")
    pieces = tuple(spec for spec in SPECS if spec[0] == "sharded")
    for tp, dp in ((2, 2), (2, 3)):
        yield _case(finish_gradients, _mesh(rng, tp, dp, pieces), "grads")


@check(FINISH, points=1)
def partial_gradients_alone_are_added_up_over_tp(finish_gradients, *, rng):
    """Over tp: partial gradients are added up, sharded and replicated ones are not, whatever the divisor."""
    for tp in (2, 4):
        yield _case(finish_gradients, _mesh(rng, tp, 1), "direction")


@check(FINISH, points=1)
def each_number_of_the_model_counts_once(finish_gradients, *, rng):
    """The norm is that of the whole gradient as the ranks then hold it, each number of the model counted once."""
    for tp, dp in ((2, 2), (1, 2), (4, 1), (2, 3)):
        yield _case(finish_gradients, _mesh(rng, tp, dp), "ratio")


@check(FINISH, points=0.5)
def the_loss_is_the_mean_over_all_tokens(finish_gradients, *, rng):
    """The loss is the sum of all losses over that of all counts, with unequal counts."""
    for tp, dp in ((1, 3), (2, 2)):
        yield _case(finish_gradients, _mesh(rng, tp, dp), "loss")


@check(FINISH, points=0.25)
def a_replica_may_have_no_tokens(finish_gradients, *, rng):
    """Where the tokens of one replica do not count, every .grad is a multiple of the other replicas' sum."""
    for tp, dp in ((1, 2), (1, 3)):
        yield _case(finish_gradients, _mesh(rng, tp, dp, empty=True), "direction")


@dataclass
class Clipped:
    """Two calls on the same gradients: without a bound, and with one that is a multiple of the norm returned then."""

    norm: Any = fact("the norm returned with a bound, divided by that without,")
    scale: Any = fact("the factor of the gradients with a bound against those without")
    bent: str = sentence()


def _clip(rank: int, world_size: int, function: Any, mesh: Mesh, factor: float) -> Clipped:
    """factor: of the norm, the bound."""
    groups, j = _groups(rank, mesh.tp, mesh.dp), rank // mesh.tp
    flat, norms = [], []
    for _ in range(2):
        params = _params(mesh.grads[rank])
        bound = factor * norms[0] if norms else math.inf
        _, norm = function(params, list(mesh.kinds), mesh.loss_sums[j], mesh.counts[j], *groups, bound)
        flat.append(torch.cat([p.grad.double().reshape(-1) for p in params]))
        norms.append(float(norm))
    scale = float(flat[1] @ flat[0] / (flat[0] @ flat[0]))
    off = float((flat[1] - scale * flat[0]).norm() / flat[0].norm())
    bent = "" if off < 1e-4 else "not every .grad was scaled by the same factor"
    return Clipped(norms[1] / norms[0], scale, bent)


@check(FINISH, points=0.5)
def gradients_above_the_bound_are_scaled(finish_gradients, *, rng):
    """Above max_norm every .grad is scaled to it, below none is; the norm returned is the one before."""
    for dp in (2, 3):  # without tp: whose squares count is another check's question
        for factor in (0.3, 1.7):
            mesh = _mesh(rng, 1, dp)
            expect = [Clipped(close(1.0, 1e-4), close(min(factor, 1.0), 1e-4), "")] * dp
            name = f"tp = 1, dp = {dp}, max_norm {factor} times the norm"
            yield Case(name, dp, _clip, (finish_gradients, mesh, factor), expect)


def _too_much(mesh: Mesh) -> Callable[[int, list[Ledger]], str]:
    """A judge: what a rank sends beyond each gradient over dp, the partial ones over tp, and a few numbers."""
    sizes = [grad.size for grad in mesh.grads[0]]
    partial = sum(size for size, kind in zip(sizes, mesh.kinds, strict=True) if kind == "partial")
    most = {"dp": sum(sizes) + 2, "tp": partial + 4}

    def judge(rank: int, parts: list[Ledger]) -> str:
        tp, over = mesh.tp, {"tp": 0, "dp": 0}
        first = rank // tp * tp
        axes = {tuple(range(rank % tp, tp * mesh.dp, tp)): "dp", tuple(range(first, first + tp)): "tp"}
        for message in parts[0]:
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


@check(FINISH, points=0.25)
def each_gradient_is_sent_once(finish_gradients, *, rng):
    """Only all-reduces: over dp the gradients once and two numbers, over tp the partial ones and four at most."""
    for tp, dp in ((2, 2), (2, 3)):
        mesh = _mesh(rng, tp, dp, MANY)
        for max_norm in (math.inf, _norm(mesh) / 2):
            yield _case(finish_gradients, mesh, max_norm=max_norm, judge=_too_much(mesh))


@check(FINISH, points=0.25)
def loss_and_norm_are_floats(finish_gradients, *, rng):
    """Loss and norm are returned as two floats of Python."""
    yield _case(finish_gradients, _mesh(rng, 2, 2), "kinds")
