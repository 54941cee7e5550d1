"""Exercise 5: positions exchanged for heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check

from .blocks import ERROR
from .layouts import NAMES, positions
from .ring import Sequence, sequence, whole_forward

EXCHANGE = "13-ex5-exchange"


@dataclass
class Exchanged:
    """What an exchange gives a rank, forward and back."""

    shape: str = sentence()
    result: Any = fact("the result")
    gradient: Any = fact("the gradient of x")


def _exchange(
    rank: int, world_size: int, Exchange: Any, x: np.ndarray, back: np.ndarray, dims: tuple, both_ways: bool
) -> Exchanged:
    own = torch.from_numpy(x[rank]).requires_grad_()
    y = Exchange.apply(own, *dims)
    dist.barrier()
    wanted = torch.from_numpy(back[rank])
    shape = "" if y.shape == wanted.shape else f"the result has shape {tuple(y.shape)}, expected {tuple(wanted.shape)}"
    if both_ways and not shape:
        y.backward(wanted)
    return Exchanged(shape, y.detach(), own.grad)


def _all_to_alls(nbytes: int, most: int) -> Callable:
    """In each part of a case: at most so many all-to-alls, of so many bytes in all, and nothing else."""

    def judge(rank: int, parts: list) -> str:
        for part in parts:
            if other := [m.call for m in part if not m.call.startswith("all_to_all")]:
                return f"rank {rank} called {other[0]}, expected all-to-alls only"
            if len(part) > most:
                return f"rank {rank} made {len(part)} all-to-alls, expected at most {most}"
            if (sent := sum(m.bytes for m in part)) != nbytes:
                return f"rank {rank} put {sent} bytes into all-to-alls, expected {nbytes}"
        return ""

    return judge


def _swapped(arrays: np.ndarray, dims: tuple[int, int]) -> np.ndarray:
    """What each rank should get of these arrays."""
    n = len(arrays)
    pieces = [np.split(array, n, axis=dims[0]) for array in arrays]
    return np.stack([np.concatenate([pieces[s][r] for s in range(n)], axis=dims[1]) for r in range(n)])


def _swaps(
    rng: np.random.Generator, Exchange: Any, n: int, compared: tuple[str, ...], judge: Callable | None = None
) -> Iterator[Case]:
    """Exchanges of four shapes. compared: the facts; judge: (bytes of x) → what judges a case's messages."""
    shapes = {(2, 2 * n, 3, 2): (1, 2), (2, 2, 3 * n, 2): (2, 1), (n, 3): (0, 1), (2, 3, 2 * n): (2, 0)}
    for shape, dims in shapes.items():
        x = rng.integers(-99, 100, (n, *shape)).astype(np.float32)
        there = _swapped(x, dims)
        back = rng.integers(-99, 100, there.shape).astype(np.float32)
        facts = {"result": there, "gradient": _swapped(back, dims[::-1])}
        expect = [Exchanged("", **{fact: close(facts[fact][rank]) for fact in compared}) for rank in range(n)]
        name = f"shape {shape}, scatter_dim {dims[0]}, gather_dim {dims[1]}"
        watch = judge(x[0].nbytes, 1) if judge else None
        args = (Exchange, x, back, dims, "result" not in compared)
        yield Case(name, n, _exchange, args, expect, parts=2, judge=watch)


@check(EXCHANGE, points=0.5)
def parts_go_to_their_ranks(Exchange, *, rng):
    """Rank d gets part d of every rank, in the order of the ranks."""
    for n in (2, 3, 4, 1):
        yield from _swaps(rng, Exchange, n, ("result",))


@dataclass
class Attended:
    """What `ulysses_attention` gives a rank."""

    missing: str = sentence()
    out: Any = fact("out")


def _forward(rank: int, world_size: int, ulysses_attention: Callable, given: Sequence) -> Attended:
    (*parts, _), where = given.of(rank)
    return Attended("", ulysses_attention(*(part.requires_grad_() for part in parts), where).detach())


def _both_ways(rank: int, world_size: int, ulysses_attention: Callable, given: Sequence) -> Attended:
    (*parts, grad), where = given.of(rank)
    parts = [part.requires_grad_() for part in parts]
    out = ulysses_attention(*parts, where)
    if not out.requires_grad:
        return Attended("out has no graph", None)
    out.backward(grad)
    lost = [name for name, part in zip("qkv", parts, strict=True) if part.grad is None]
    return Attended(f"no gradient reaches {lost[0]}" if lost else "", out.detach())


def _attention(
    rng: np.random.Generator, function: Callable, n: int, layout: str, run: Callable = _both_ways, **more: Any
) -> Case:
    given = sequence(rng, positions(16, n, layout), (2, 4, 3))
    out = whole_forward(given)[0]
    expect = [Attended("", close(out[:, :, own], ERROR, ERROR) if run is _forward else ...) for own in given.shards]
    return Case(f"16 positions, {layout}, 4 heads", n, run, (function, given), expect, **more)


@check(EXCHANGE, points=0.75)
def heads_are_exchanged_for_positions(Exchange, ulysses_attention, *, rng):
    """out is that of one process with the whole sequence, in every layout."""
    # A result of the wrong shape would be an error in `attend`, which is right.
    for case in _swaps(rng, Exchange, 2, ("result",)):
        case.expect = [Exchanged("")] * 2
        yield case
    for n in (2, 4, 1):
        for layout in NAMES:
            yield _attention(rng, ulysses_attention, n, layout, _forward)


@check(EXCHANGE, points=0.5)
def gradients_go_back_to_their_owners(Exchange, ulysses_attention, *, rng):
    """Backward gives each gradient to the rank and the place of its number; through attention it reaches q, k and v."""
    for n in (2, 3, 4, 1):
        yield from _swaps(rng, Exchange, n, ("gradient",))
    yield _attention(rng, ulysses_attention, 2, "striped")


@check(EXCHANGE, points=0.25)
def one_all_to_all_for_each_tensor(Exchange, ulysses_attention, *, rng):
    """Exchange makes one all-to-all of x's numbers each way; attention exchanges q, k, v and out, and nothing else."""
    for n in (2, 4):
        yield from _swaps(rng, Exchange, n, (), _all_to_alls)
        yield _attention(rng, ulysses_attention, n, "contiguous", judge=_all_to_alls(8 * 4 * 2 * 4 * 16 // n * 3, 8))
