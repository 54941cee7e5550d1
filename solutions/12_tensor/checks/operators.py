"""Exercises 1 and 2: the operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.checks.cases import Case, at_most, close, fact
from autograder.checks.check import check
from autograder.checks.inputs import eighths

WORLD_SIZES = (2, 4, 3, 1)
#: Layouts and dtypes of what ranks have; in the last, they lie in different order on every second rank.
UNUSUAL = [
    ("transposed", "float64"),
    ("every second column", "float32"),
    ("contiguous", "bfloat16"),
    ("transposed on every second rank", "float32"),
]


@dataclass
class Passed:
    """What a rank has after a pass forward and backward through an operator."""

    output: Any = fact("the output")
    gradient: Any = fact("the gradient of x")


def _laid_out(array: np.ndarray, layout: str, dtype: str, rank: int) -> torch.Tensor:
    """The elements of a 2-D array in a memory layout, with memory enough after them for a write that ignores it."""
    elements, (rows, columns) = torch.tensor(array, dtype=getattr(torch, dtype)), array.shape
    memory = torch.zeros(4 * elements.numel() + 16, dtype=elements.dtype)
    if layout == "every second column":
        result = memory[: 2 * elements.numel()].view(rows, 2 * columns)[:, ::2]
    elif layout == "transposed" or (layout != "contiguous" and rank % 2):
        result = memory[: elements.numel()].view(columns, rows).t()
    else:
        result = memory[: elements.numel()].view(rows, columns)
    return result.copy_(elements)


def _there_and_back(rank: int, world_size: int, operator: Any, xs: list, grads: list, *kind: str) -> Passed:
    x, grad = (_laid_out(arrays[rank], *kind, rank) for arrays in (xs, grads))
    y = operator.apply(x.requires_grad_())
    y.backward(grad)
    return Passed(y.detach().clone(), x.grad.clone())


@dataclass
class Moved:
    """How far a pass is from one with the same tensors in contiguous memory."""

    output: Any = fact("the output, minus that for the same tensors in contiguous memory,")
    gradient: Any = fact("the gradient of x, minus that for the same tensors in contiguous memory,")


def _moved(rank: int, world_size: int, operator: Any, xs: list, grads: list, layout: str, dtype: str) -> Moved:
    args = rank, world_size, operator, xs, grads
    plain, other = (_there_and_back(*args, one, dtype) for one in ("contiguous", layout))
    return Moved(other.output - plain.output, other.gradient - plain.gradient)


@dataclass
class Kept:
    """Whether an operator left what it was given, though it took in what other ranks put in."""

    x: Any = fact("x, after forward and backward,", "it is the caller's: work on a copy")
    grad: Any = fact("the gradient that arrived, after backward,", "others may get the same tensor: work on a copy")
    sums: Any = fact("the sum of the absolute values in the output and in the gradient of x")


def _given(rank: int, world_size: int, operator: Any, xs: list, grads: list) -> Kept:
    x, grad = torch.tensor(xs[rank], requires_grad=True), torch.tensor(grads[rank])
    y = operator.apply(x)
    y.backward(grad)
    return Kept(x.detach(), grad, float(y.abs().sum() + x.grad.abs().sum()))


def _own(arrays: list) -> list:
    return arrays


def _added(arrays: list) -> list:
    return [sum(arrays)] * len(arrays)


def _joined(arrays: list) -> list:
    return [np.concatenate(arrays)] * len(arrays)


def _added_and_cut(arrays: list) -> list:
    return np.split(sum(arrays), len(arrays))


#: Operator → what becomes of the ranks' tensors forward and backward, and what it sends each way.
OPERATORS = {
    "Copy": (_own, _added, "", "all_reduce"),
    "Reduce": (_added, _own, "all_reduce", ""),
    "Enter": (_joined, _added_and_cut, "all_gather", "reduce_scatter"),
    "Leave": (_added_and_cut, _joined, "reduce_scatter", "all_gather"),
}


def _drawn(rng: np.random.Generator, name: str, n: int, shape: tuple, dtype: str = "float32") -> tuple[list, list]:
    """What the ranks put in, and the gradients that come back; sums of bfloat16's are exact, too."""
    long = (n * shape[0], *shape[1:])
    takes, gives = {"Enter": (shape, long), "Leave": (long, shape)}.get(name, (shape, shape))
    limit = 8 if dtype == "bfloat16" else 64
    xs, grads = ([eighths(rng, size, limit) for _ in range(n)] for size in (takes, gives))
    return xs, grads


def _passes(rng: np.random.Generator, name: str, operator: Any, sends: bool = False) -> Iterator[Case]:
    """An operator on contiguous tensors; either its values are compared, or what it sends."""
    forward, backward, *calls = OPERATORS[name]
    for n in (2, 3) if sends else WORLD_SIZES:
        xs, grads = _drawn(rng, name, n, (int(rng.integers(2, 4)), int(rng.integers(2, 5))))
        facts = [Passed(close(y), close(g)) for y, g in zip(forward(xs), backward(grads), strict=True)]
        sent = [(call, 4 * arrays[0].size) for call, arrays in zip(calls, (xs, grads), strict=True) if call]
        args = operator, xs, grads, "contiguous", "float32"
        if sends:
            yield Case(f"{name} of {xs[0].shape}", n, _there_and_back, args, [Passed()] * n, sent)
        else:
            yield Case(f"{name} of {xs[0].shape}", n, _there_and_back, args, facts)


def _unusual(rng: np.random.Generator, name: str, operator: Any) -> Iterator[Case]:
    """An operator on tensors of other layouts and dtypes, beside itself on contiguous ones."""
    for n in (2, 3):
        for layout, dtype in UNUSUAL:
            xs, grads = _drawn(rng, name, n, (2, int(rng.integers(3, 5))), dtype)
            args = operator, xs, grads, layout, dtype
            expect = [Moved(*(close(np.zeros(size), dtype=dtype) for size in (grads[0].shape, xs[0].shape)))] * n
            yield Case(f"{name} of {xs[0].shape}, {dtype}, {layout}", n, _moved, args, expect)


@check("12-ex1-operators", points=1.25)
def copy_adds_up_gradients(Copy, *, rng):
    """Copy passes x on, and backward every rank gets the sum of the ranks' gradients."""
    yield from _passes(rng, "Copy", Copy)


@check("12-ex1-operators", points=1.25)
def reduce_adds_up_outputs(Reduce, *, rng):
    """Reduce gives every rank the sum of the ranks' x, and backward passes the gradient on."""
    yield from _passes(rng, "Reduce", Reduce)


@check("12-ex1-operators", points=0.25)
def operators_take_any_layout(Copy, Reduce, *, rng):
    """The same in any dtype and layout, and neither x nor the gradient that arrives is changed in place."""
    for name, operator in (("Copy", Copy), ("Reduce", Reduce)):
        for n in (2, 3):
            xs, grads = _drawn(rng, name, n, (3, 2))
            xs[0], grads[0] = np.zeros_like(xs[0]), np.zeros_like(grads[0])
            expect = [Kept(close(x), close(grad)) for x, grad in zip(xs, grads, strict=True)]
            expect[0].sums = at_most(math.inf, least=1 / 64)  # of what the other ranks put in
            yield Case(f"{name} of (3, 2), zeros on rank 0", n, _given, (operator, xs, grads), expect)
        yield from _unusual(rng, name, operator)


@check("12-ex1-operators", points=0.25)
def operators_send_one_all_reduce(Copy, Reduce, *, rng):
    """Copy sends one all-reduce backward, Reduce one forward, and nothing else."""
    yield from _passes(rng, "Copy", Copy, sends=True)
    yield from _passes(rng, "Reduce", Reduce, sends=True)


@check("12-ex2-enter-leave", points=0.75)
def enter_joins_and_adds_up_backward(Enter, *, rng):
    """Enter joins the ranks' rows, and backward each rank gets its rows of the summed gradient."""
    yield from _passes(rng, "Enter", Enter)


@check("12-ex2-enter-leave", points=0.75)
def leave_adds_up_and_joins_backward(Leave, *, rng):
    """Leave gives each rank its rows of the sum, and backward joins the ranks' gradients."""
    yield from _passes(rng, "Leave", Leave)


@check("12-ex2-enter-leave", points=0.25)
def positions_take_any_layout(Enter, Leave, *, rng):
    """The same in any dtype and layout."""
    yield from _unusual(rng, "Enter", Enter)
    yield from _unusual(rng, "Leave", Leave)


@check("12-ex2-enter-leave", points=0.25)
def positions_send_one_collective_each_way(Enter, Leave, *, rng):
    """An all-gather of (T/N, …) joins, a reduce-scatter of (T, …) adds up, and nothing else is sent."""
    yield from _passes(rng, "Enter", Enter, sends=True)
    yield from _passes(rng, "Leave", Leave, sends=True)
