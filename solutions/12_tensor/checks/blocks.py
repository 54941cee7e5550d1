"""Exercises 5 and 6: the MLP and attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking.cases import Case as OfFacts
from autograder.checking.cases import fact
from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks
from autograder.checks.tensor.layers import FLOAT32, FLOAT64, Case, Refused, draw, fill, try_layers


class MLP(nn.Module):
    """An unsplit MLP that has only what the statement names."""

    def __init__(self, width: int):
        super().__init__()
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def unsplit(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x @ self.fc.weight.T + (0 if self.fc.bias is None else self.fc.bias)
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return hidden @ self.out.weight.T + (0 if self.out.bias is None else self.out.bias)


class Attention(nn.Module):
    """An unsplit attention block that has only what the statement names."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def unsplit(self, x: torch.Tensor) -> torch.Tensor:
        mixed, size = [], x.shape[-1] // self.heads
        earlier = torch.ones(x.shape[1], x.shape[1]).tril() > 0
        q, k, v = torch.split(self.qkv(x), x.shape[-1], dim=-1)
        for head in range(self.heads):
            mine = slice(head * size, (head + 1) * size)
            scores = q[..., mine] @ k[..., mine].transpose(1, 2) / math.sqrt(size)
            mixed.append(torch.softmax(scores.masked_fill(~earlier, -math.inf), -1) @ v[..., mine])
        return self.proj(torch.cat(mixed, dim=-1))


def _block_case(
    rng: np.random.Generator, module: nn.Module, x_shape: tuple, without: str, dtype: torch.dtype, axes: dict, name: str
) -> Case:
    for layer in without.split():
        getattr(module, layer).bias = None
    fill(rng, module, dtype)
    x, grad = draw(rng, *x_shape, dtype=dtype), draw(rng, *x_shape, dtype=dtype)
    name += f", x {x_shape}" + (f", no bias in {' and '.join(without.split())}" if without else "")
    sends = {"all_reduce": x.numel()}
    return Case(name, module, x, grad, axes, sends, sends)


def _mlp_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    axes = {"fc.weight": 0, "fc.bias": 0, "out.weight": 1, "out.bias": None}
    kinds = [
        (6, (2, 3, 6), "", FLOAT64),
        (3, (1, 4, 3), "out", FLOAT32),
        (4, (3, 1, 4), "fc", FLOAT64),
        (5, (2, 2, 5), "fc out", FLOAT32),
    ]
    return [_block_case(rng, MLP(c), shape, none, dtype, axes, f"width {c}") for c, shape, none, dtype in kinds], []


def _attention_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    axes = {"qkv.weight": "heads", "qkv.bias": "heads", "proj.weight": 1, "proj.bias": None}
    kinds = [
        (12, 4, (2, 3, 12), "", FLOAT64),
        (16, 8, (1, 5, 16), "proj", FLOAT32),
        (8, 4, (2, 4, 8), "qkv", FLOAT64),
        (4, 4, (3, 1, 4), "qkv proj", FLOAT32),
    ]
    cases = [
        _block_case(rng, Attention(c, h), shape, none, dtype, axes, f"width {c}, {h} heads")
        for c, h, shape, none, dtype in kinds
    ]
    # The width can be divided, the heads cannot.
    wrong = [
        Refused(f"{count_of_ranks(n)}, width {12 * h}, {h} heads", Attention(12 * h, h), "heads")
        for n, h in ((2, 3), (4, 6), (4, 1), (2, 1))
        if n == world_size
    ]
    return cases, wrong


@dataclass
class Made:
    """Of what a rank's block is made."""

    kinds: Any = fact("the class of {}")


def _kinds(rank: int, world_size: int, block_class: Any, block: nn.Module, names: dict[str, str]) -> Made:
    """Of each of these layers the class that is asked for, if it is of that class or of one derived from it."""
    found, made = {}, block_class(block)
    for name, asked in names.items():
        classes = [one.__name__ for one in type(getattr(made, name, None)).__mro__]
        found[f".{name}"] = asked if asked in classes else classes[0]
    return Made(found)


def _made_of(block_class: Any, rng: np.random.Generator, block: nn.Module, **names: str) -> OfFacts:
    """The case that asks for the classes of a block's layers."""
    fill(rng, block, FLOAT64)
    expected = Made({f".{name}": asked for name, asked in names.items()})
    return OfFacts("the layers of a block", 2, _kinds, (block_class, block, names), expect=[expected] * 2)


@check("12-ex5-mlp", points=1.5)
def mlp_equals_the_unsplit_block(ParallelMLP, *, rng):
    """Output, loss and every gradient are the unsplit MLP's, with one all-reduce in forward and one in backward."""
    try_layers(ParallelMLP, lambda world_size: _mlp_cases(rng, world_size))


@check("12-ex5-mlp", points=0.5)
def mlp_is_made_of_the_two_layers(ParallelMLP, *, rng):
    """`.fc` is a `ColumnParallelLinear`, `.out` a `RowParallelLinear`."""
    width = int(rng.integers(1, 5))
    yield _made_of(ParallelMLP, rng, MLP(width), fc="ColumnParallelLinear", out="RowParallelLinear")


@check("12-ex6-attention", points=0.5)
def attention_ends_in_a_row_parallel_layer(ParallelAttention, *, rng):
    """`.proj` is a `RowParallelLinear`."""
    width = 4 * int(rng.integers(1, 5))
    yield _made_of(ParallelAttention, rng, Attention(width, 4), proj="RowParallelLinear")


@check("12-ex6-attention", points=3.5)
def attention_equals_the_unsplit_block(ParallelAttention, *, rng):
    """Output, loss and every gradient are the unsplit block's, with one all-reduce in forward and one in backward."""
    try_layers(ParallelAttention, lambda world_size: _attention_cases(rng, world_size))
