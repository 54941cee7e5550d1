"""Exercises 3 and 4: linear layers, split by columns and by rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, fail
from autograder.checking.instruments.memory import Resident
from autograder.checking.stage import run_ranks
from autograder.checks.tensor.layers import FLOAT32, FLOAT64, Case, Refused, draw, fill, try_layers


def _column_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    cases = []
    for leading, bias, dtype, needs_grad in (
        ((2, 3), True, FLOAT64, True),
        ((2,), True, FLOAT32, True),
        ((2, 3), False, FLOAT32, True),
        ((), False, FLOAT64, True),
        ((2, 1, 3), True, FLOAT64, False),
    ):
        linear = fill(rng, nn.Linear(5, 8, bias=bias), dtype)
        words = [f"Linear(5, 8) {'with' if bias else 'without'} bias", f"x {(*leading, 5)}"]
        words += [] if needs_grad else ["x without a gradient"]
        x, grad = draw(rng, *leading, 5, dtype=dtype), draw(rng, *leading, 8, dtype=dtype)
        backward = {"all_reduce": x.numel()} if needs_grad else {}
        axes = {"weight": 0, "bias": 0}
        cases.append(Case(", ".join(words), linear, x, grad, axes, {}, backward, cut_grad=True, needs_grad=needs_grad))
    wrong = [
        Refused(f"{count_of_ranks(n)}, Linear(8, {size})", nn.Linear(8, size), "out_features")
        for n, size in ((2, 7), (4, 6), (4, 3))
        if n == world_size
    ]
    return cases, wrong


def _row_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    cases = []
    for leading, bias, dtype in (
        ((2, 3), True, FLOAT64),
        ((2,), True, FLOAT64),
        ((2, 3), False, FLOAT32),
        ((), False, FLOAT32),
        ((2, 1, 3), True, FLOAT32),
    ):
        linear = fill(rng, nn.Linear(8, 5, bias=bias), dtype)
        words = [f"Linear(8, 5) {'with' if bias else 'without'} bias", f"x {(*leading, 8)}"]
        x, grad = draw(rng, *leading, 8, dtype=dtype), draw(rng, *leading, 5, dtype=dtype)
        axes, forward = {"weight": 1, "bias": None}, {"all_reduce": grad.numel()}
        cases.append(Case(", ".join(words), linear, x, grad, axes, forward, {}, cut_x=True))
    wrong = [
        Refused(f"{count_of_ranks(n)}, Linear({size}, 8)", nn.Linear(size, 8), "in_features")
        for n, size in ((2, 7), (4, 6), (4, 3))
        if n == world_size
    ]
    return cases, wrong


@check("12-ex3-column", points=3)
def column_layer_equals_the_unsplit_one(ColumnParallelLinear, *, rng):
    """Rows are copies, outputs and gradients right in any layout, with no more messages than a column layer needs."""
    try_layers(ColumnParallelLinear, lambda world_size: _column_cases(rng, world_size))
    _expect_a_piece(ColumnParallelLinear, inputs.seed(rng))


@check("12-ex4-row", points=3)
def row_layer_equals_the_unsplit_one(RowParallelLinear, *, rng):
    """Columns are copies, outputs and gradients right in any layout, with no more messages than a row layer needs."""
    try_layers(RowParallelLinear, lambda world_size: _row_cases(rng, world_size))
    _expect_a_piece(RowParallelLinear, inputs.seed(rng))


#: Rows and columns of a layer that stands out in the memory of a process.
LARGE = 2048


def _held(rank: int, world_size: int, layer_class: Any, seed: int) -> int:
    """Bytes that the process of this rank has for the layer, once the unsplit one is gone."""
    torch.manual_seed(seed)
    memory = Resident()
    unsplit = nn.Linear(LARGE, LARGE)
    layer = layer_class(unsplit)
    del unsplit
    held = memory.above(2 * 4 * LARGE**2 / world_size)
    return held if list(layer.parameters()) else 0  # it is in use until here


def _expect_a_piece(layer_class: Any, seed: int) -> None:
    """No rank's process keeps the unsplit layer, in whatever form."""
    world_size, whole = 4, 4 * LARGE**2
    piece = f"a piece has {whole / world_size / 1e6:.0f} MB"
    case = f"{count_of_ranks(world_size)}, Linear({LARGE}, {LARGE}) of {whole / 1e6:.0f} MB"
    for rank, held in enumerate(run_ranks(_held, world_size, (layer_class, seed))):
        if held > 2 * whole / world_size:
            text = f"the process of rank {rank} holds {held / 1e6:.0f} MB of it, and {piece}"
            fail(f"{text}: the unsplit layer is kept, in the module or elsewhere", case, "resident")
