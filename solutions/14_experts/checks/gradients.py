"""Exercise 5: which gradients are averaged and which only divided, and the norm of them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Case, at_most, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.inputs import eighths

GRADIENTS = "14-ex5-gradients"
#: name → shape. Those whose names begin with "own" only this rank has.
SHAPES = {"first": (3, 2), "own": (4,), "second": (5,), "own too": (2, 3), "last": ()}
#: A rank's gradients; None where there is none.
Gradients = dict[str, np.ndarray | None]


@dataclass
class After:
    """What a rank has afterwards; the gradient of a parameter without one is "None"."""

    gradients: Any = fact("the gradient of {}")
    norm: Any = fact("the norm that clip_gradients returns")


def _drawn(rng: np.random.Generator, missing: tuple[str, ...] = ()) -> Gradients:
    return {name: None if name in missing else eighths(rng, shape, 64) for name, shape in SHAPES.items()}


def _module(gradients: Gradients) -> tuple[nn.Module, list[nn.Parameter]]:
    """A module whose parameters have these gradients, and the list of its local ones."""
    module = nn.Module()
    module.part = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()})
    for name, p in module.part.items():
        p.grad = None if gradients[name] is None else torch.from_numpy(gradients[name].copy())
    return module, [p for name, p in module.part.items() if name.startswith("own")]


def _left(module: nn.Module) -> dict[str, Any]:
    return {name: "None" if p.grad is None else p.grad for name, p in module.part.items()}


# ---- average_gradients ----


def _average(rank: int, world_size: int, average_gradients: Callable, gradients: list[Gradients], which: str) -> After:
    module, local = _module(gradients[rank])
    average_gradients(module, local)
    left = _left(module)
    return After({name: left[name] for name in _names(which)})


def _names(which: str) -> list[str]:
    """The parameters that are the rank's "own", or "shared", or all of them for ""."""
    return [name for name in SHAPES if which in ("", "own" if name.startswith("own") else "shared")]


def _averaged(function: Callable, gradients: list[Gradients], name: str, which: str = "", **more: Any) -> Case:
    """The gradients become those of the mean of the ranks' losses. which: "own", "shared", or all of them."""
    n, right = len(gradients), []
    for mine in gradients:
        totals = {name: mine[name] if name.startswith("own") else sum(g[name] for g in gradients) for name in SHAPES}
        right.append(After({name: close(totals[name] / n, rtol=1e-6) for name in _names(which)}))
    return Case(name, n, _average, (function, gradients, which), right, **more)


@check(GRADIENTS, points=0.5)
def shared_gradients_become_the_mean(average_gradients, *, rng):
    """Gradients of parameters that all ranks have become the mean over the ranks."""
    for n in (2, 3, 1):
        yield _averaged(average_gradients, [_drawn(rng) for _ in range(n)], "every parameter has a gradient", "shared")


@check(GRADIENTS, points=0.5)
def local_gradients_are_divided(average_gradients, *, rng):
    """Local gradients are divided by N."""
    for n in (2, 3):
        yield _averaged(average_gradients, [_drawn(rng) for _ in range(n)], "every parameter has a gradient", "own")


@dataclass
class Missing:
    """What becomes of gradients that some ranks lack. ratio: to a shared gradient that was 1 on all ranks."""

    idle: str = sentence()
    lacks: str = sentence()
    ratio: Any = fact("the gradient that rank 0 lacked, over one that is 1 on all ranks,")
    local: Any = fact("the local gradient that there was not")


def _average_missing(rank: int, world_size: int, average_gradients: Callable, gradients: list[Gradients]) -> Missing:
    module, local = _module(gradients[rank])
    average_gradients(module, local)
    left = _left(module)
    same = all(g is None or np.array_equal(left[name], g) for name, g in gradients[rank].items())
    idle = "average_gradients left all gradients as they were" if same else ""
    if isinstance(left["second"], str):
        lacks = "average_gradients left the gradient of 'second' None, expected the mean"
        return Missing(idle, lacks, None, left["own"])
    return Missing(idle, "", left["second"] / left["last"], left["own"])


def _missing(rng: np.random.Generator, function: Callable, n: int, lack: range, **right: Any) -> Case:
    """These ranks have no gradient of the shared parameter "second"; or none has one of its local parameter "own"."""
    gradients = [_drawn(rng, ("second",) * (rank in lack) if lack else ("own",)) for rank in range(n)]
    gradients = [mine | {"last": np.ones((), np.float32)} for mine in gradients]
    mean = np.zeros(5) + sum(0 if g["second"] is None else g["second"] for g in gradients) / n
    name = "no rank has a gradient of 'second'" if len(lack) == n else "all ranks but 0 have a gradient of 'second'"
    expect = [Missing(**(right or {"lacks": "", "ratio": close(mean, rtol=1e-6, atol=1e-6)})) for _ in range(n)]
    return Case(name if lack else "no rank has a gradient of 'own'", n, _average_missing, (function, gradients), expect)


@check(GRADIENTS, points=0.25)
def a_missing_gradient_counts_as_zeros(average_gradients, *, rng):
    """A shared gradient that one rank lacks counts as zeros there, and becomes the mean."""
    for n in (2, 3):
        yield _missing(rng, average_gradients, n, range(1))


@check(GRADIENTS, points=0.25)
def where_no_rank_has_one_it_becomes_zeros(average_gradients, *, rng):
    """A shared gradient that no rank has becomes zeros, with a single rank as well."""
    for n in (2, 3, 1):
        yield _missing(rng, average_gradients, n, range(n))


@check(GRADIENTS, points=0.25)
def a_missing_local_gradient_stays(average_gradients, *, rng):
    """A local gradient that is None stays None."""
    for n in (2, 3):
        yield _missing(rng, average_gradients, n, range(0), idle="", local="None")


@check(GRADIENTS, points=0.25)
def shared_elements_are_reduced_once(average_gradients, *, rng):
    """Each element of the shared gradients goes into an all-reduce once, and nothing else is sent."""
    want = 4 * sum(int(np.prod(shape)) for name, shape in SHAPES.items() if "own" not in name)

    def judge(rank: int, parts: list) -> str:
        sent = [message for part in parts for message in part]
        if other := [m.call for m in sent if m.call != "all_reduce"]:
            return f"rank {rank} called {other[0]}, expected all-reduces only"
        got = sum(m.bytes for m in sent)
        return "" if got == want else f"rank {rank} put {got} bytes into all-reduces, expected {want}"

    for n in (2, 3):
        case = _averaged(average_gradients, [_drawn(rng) for _ in range(n)], "all present", judge=judge)
        case.expect = [After()] * n
        yield case


# ---- clip_gradients ----


def _clip(
    rank: int,
    world_size: int,
    clip_gradients: Callable,
    gradients: list[Gradients],
    most: float,
    clips: bool,
    names: list,
) -> After:
    """After clipping; these gradients as they must have been before, by the norm that was returned."""
    module, local = _module(gradients[rank])
    norm = clip_gradients(module, local, most)
    left = _left(module)
    factor = float(norm) / most if clips else 1.0
    return After({name: left[name] * factor for name in names}, norm)


def _clipped(
    rng: np.random.Generator, function: Callable, n: int, share: float, what: str, missing: tuple = (), **more: Any
) -> Case:
    """what: the fact that is compared. share: of the norm that is allowed. missing: on rank 0."""
    shared = _drawn(rng)
    gradients = [_drawn(rng, missing if rank == 0 else ()) for rank in range(n)]
    gradients = [{name: g if "own" in name else shared[name] for name, g in mine.items()} for mine in gradients]
    squares = [{name: 0.0 if g is None else float(np.sum(g**2)) for name, g in mine.items()} for mine in gradients]
    norm = sum(squares[0][name] for name in shared if "own" not in name)
    norm = float(np.sqrt(norm + sum(mine[name] for mine in squares for name in shared if "own" in name)))
    right, names = [], [name for name in SHAPES if "own" not in name or not missing]
    for mine in gradients:
        before = {name: close(mine[name], rtol=1e-5) for name in names}
        right.append(After(**{what: {"gradients": before, "norm": close(norm, rtol=1e-5)}[what]}))
    name = f"at most {share:g} times the norm is allowed" + (", rank 0 has no local gradient" if missing else "")
    return Case(name, n, _clip, (function, gradients, share * norm, share < 1, names), right, **more)


@check(GRADIENTS, points=1)
def every_parameter_counts_once(clip_gradients, *, rng):
    """The norm is the whole model's, the same on all ranks: shared gradients once, and every rank's local ones."""
    for n in (2, 3, 4, 1):
        yield _clipped(rng, clip_gradients, n, 0.5, "norm")


@check(GRADIENTS, points=0.5)
def all_are_scaled_or_none(clip_gradients, *, rng):
    """Above max_norm every gradient is multiplied by max_norm over the returned norm, below it none."""
    for n in (2, 1):
        for share in (0.25, 4.0):
            yield _clipped(rng, clip_gradients, n, share, "gradients")


@check(GRADIENTS, points=0.25)
def a_rank_without_local_gradients_takes_part(clip_gradients, *, rng):
    """Where no token came to a rank's experts, their gradients are None, and the rank takes part in clipping."""
    for n in (2, 3):
        yield _clipped(rng, clip_gradients, n, 0.25, "gradients", ("own", "own too"))


@check(GRADIENTS, points=0.25)
def one_number_is_reduced(clip_gradients, *, rng):
    """Clipping takes one all-reduce of one number."""

    def judge(rank: int, parts: list) -> str:
        sent = [(m.call, m.bytes) for part in parts for m in part]
        right = sent[1:] == [] and all(call == "all_reduce" and nbytes <= 8 for call, nbytes in sent)
        return "" if right else f"rank {rank} called {sent}, expected one all-reduce of one number"

    for n in (2, 3):
        case = _clipped(rng, clip_gradients, n, 0.5, "norm", judge=judge)
        case.expect = [After(norm=at_most(1e6, least=0.01))] * n
        yield case
