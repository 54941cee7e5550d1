"""Exercises 1 and 2: the operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank
from autograder.checking.inputs import eighths
from autograder.checking.stage import run_ranks
from autograder.checks.tensor.compare import WORLD_SIZES, as_float64, expect_calls, expect_near, own_part, stretches


@dataclass
class Passing:
    """One pass through an operator: what each rank puts in, and the gradient that comes back to it."""

    operator: str
    layout: str
    dtype: str
    x: list[np.ndarray]
    grad: list[np.ndarray]

    @property
    def name(self) -> str:
        """The case, for a message."""
        return f"{self.operator} of shape {self.x[0].shape}, {self.dtype}, {self.layout}"


#: A layout in which the ranks' memory is ordered in different ways.
MIXED = "transposed on every second rank"


def _laid_out(array: np.ndarray, layout: str, dtype: str, rank: int = 0) -> torch.Tensor:
    """The numbers in a memory layout, with memory enough after them for a write that ignores the layout."""
    numbers = torch.tensor(array, dtype=getattr(torch, dtype))
    if layout == MIXED:
        layout = "transposed" if rank % 2 else "contiguous"
    memory = torch.zeros(4 * numbers.numel() + 16, dtype=numbers.dtype)
    if layout == "contiguous":
        result = memory[: numbers.numel()].view(numbers.shape)
    elif layout == "transposed":
        result = memory[: numbers.numel()].view(*numbers.shape[:-2], numbers.shape[-1], numbers.shape[-2])
        result = result.transpose(-1, -2)
    elif layout == "every second column":
        result = memory[: 2 * numbers.numel()].view(*numbers.shape[:-1], -1)[..., ::2]
    else:  # expanded along the first dimension, of which all entries are equal
        result = memory[: numbers[0].numel()].view(1, *numbers.shape[1:]).expand(numbers.shape)
        result[0].copy_(numbers[0])
        return result
    result.copy_(numbers)
    return result


def _drive_operators(rank: int, world_size: int, operators: dict[str, Any], cases: list[Passing]) -> list[dict]:
    """Inside a rank: every case forward and backward, each between barriers."""
    seen = []
    for case in cases:
        x, grad = (_laid_out(arrays[rank], case.layout, case.dtype, rank) for arrays in (case.x, case.grad))
        before = [as_float64(t) for t in (x, grad)]
        x.requires_grad_()
        dist.barrier()
        y = operators[case.operator].apply(x)
        dist.barrier()
        y.backward(grad)
        dist.barrier()
        arrays = {"the output": as_float64(y), "the gradient of x": as_float64(x.grad)}
        changed = [
            what
            for what, t, old in zip(("x", "the gradient"), (x, grad), before, strict=True)
            if not np.array_equal(as_float64(t), old)
        ]
        dtypes = [str(t.dtype).replace("torch.", "") for t in (y, x.grad)]
        seen.append({"arrays": arrays, "changed": changed, "dtypes": dtypes})
    return seen


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], layout: str) -> np.ndarray:
    array = eighths(rng, shape, limit=64).astype(np.float64)
    return np.broadcast_to(array[:1], shape).copy() if layout == "expanded" else array


def _passings(rng: np.random.Generator, world_size: int, operators: tuple[str, ...]) -> Iterator[Passing]:
    """Every operator on several shapes, dtypes and layouts."""
    kinds = [
        ("contiguous", "float32", (2, 3, 2)),
        ("every second column", "float32", (3, 4)),
        ("transposed", "float64", (2, 3, 2)),
        (MIXED, "float32", (3, 2)),
        ("expanded", "float32", (3, 2)),
        ("contiguous", "float64", (3,)),
        ("contiguous", "float32", ()),
        ("contiguous", "bfloat16", (2, 2)),
    ]
    for operator in operators:
        for layout, dtype, shape in kinds:
            long = (world_size * shape[0], *shape[1:]) if shape else ()
            if operator in ("Copy", "Reduce"):
                takes = gives = shape
            elif not shape:
                continue
            else:
                takes, gives = (shape, long) if operator == "Enter" else (long, shape)
            x = [_numbers(rng, takes, layout) for _ in range(world_size)]
            grad = [_numbers(rng, gives, layout) for _ in range(world_size)]
            if dtype == "bfloat16":  # eight bits: sums of four such numbers are exact
                x, grad = ([np.round(a / 2) for a in arrays] for arrays in (x, grad))
            yield Passing(operator, layout, dtype, x, grad)


def _operator_oracle(case: Passing, rank: int, world_size: int) -> dict[str, np.ndarray]:
    forward = {
        "Copy": lambda: case.x[rank],
        "Reduce": lambda: sum(case.x),
        "Enter": lambda: np.concatenate(case.x),
        "Leave": lambda: own_part(np.sum(case.x, axis=0), rank, world_size, 0),
    }
    backward = {
        "Copy": lambda: sum(case.grad),
        "Reduce": lambda: case.grad[rank],
        "Enter": lambda: own_part(np.sum(case.grad, axis=0), rank, world_size, 0),
        "Leave": lambda: np.concatenate(case.grad),
    }
    pair = forward[case.operator](), backward[case.operator]()
    return dict(zip(("the output", "the gradient of x"), pair, strict=True))


#: operator → what it may send forward and backward.
_OPERATOR_CALLS = {
    "Copy": (None, "all_reduce"),
    "Reduce": ("all_reduce", None),
    "Enter": ("all_gather", "reduce_scatter"),
    "Leave": ("reduce_scatter", "all_gather"),
}


def _try_operators(rng: np.random.Generator, operators: dict[str, Any]) -> None:
    for world_size in WORLD_SIZES:
        cases = list(_passings(rng, world_size, tuple(operators)))
        results = run_ranks(_drive_operators, world_size, (operators, cases))
        calls = stretches(results, world_size, len(cases), 3)
        for number, case in enumerate(cases):
            name, seen = f"{count_of_ranks(world_size)}, {case.name}", [mine[number] for mine in results]
            for what in ("the output", "the gradient of x"):
                got = [mine["arrays"][what] for mine in seen]
                for rank in range(world_size):
                    want = np.asarray(_operator_oracle(case, rank, world_size)[what])
                    expect_near(name, f"{what} of {case.operator} on rank {rank}", got, rank, want, 0.0)
            for rank, mine in each_rank(name, seen, evidence=lambda s: s["changed"]):
                if mine["changed"]:
                    rank.fail(f"{case.operator} changed {mine['changed'][0]} in place")
                if set(mine["dtypes"]) != {case.dtype}:
                    dtypes = " and ".join(mine["dtypes"])
                    text = f"{case.operator} returned {dtypes} forward and backward, expected {case.dtype}"
                    rank.fail(text, mine["dtypes"])
            pair = _OPERATOR_CALLS[case.operator]
            sizes = [case.x[0].size if pair[0] else 0, case.grad[0].size if pair[1] else 0]
            for at, (direction, kind, size) in enumerate(zip(("forward", "backward"), pair, sizes, strict=True)):
                allowed = {} if kind is None else {kind: size}
                expect_calls(name, f"in {case.operator}'s {direction}", calls, number, at, allowed, case.dtype)


@check("12-ex1-operators", points=3)
def operators_are_conjugate(Copy, Reduce, *, rng):
    """Copy passes x on and adds up gradients, Reduce the other way round, in any layout and never in place."""
    _try_operators(rng, {"Copy": Copy, "Reduce": Reduce})


@check("12-ex2-enter-leave", points=2)
def positions_are_joined_and_summed(Enter, Leave, *, rng):
    """Enter joins rows and sums gradients, Leave the other way round, in any layout, with one collective each way."""
    _try_operators(rng, {"Enter": Enter, "Leave": Leave})
