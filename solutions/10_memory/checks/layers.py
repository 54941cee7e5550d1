"""Modules whose parts and calls are easy to count, and tensors as bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Counted(nn.Module):
    """A module or function, with a count of its calls."""

    def __init__(self, inside: Any):
        super().__init__()
        self.inside, self.calls = inside, 0

    def forward(self, *inputs: torch.Tensor) -> Any:
        self.calls += 1
        return self.inside(*inputs)


class Scaled(nn.Module):
    """The sine of x times a number, which can change between forward and backward: a second run shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.full_like(x, self.scale)).sin()  # a tensor of numbers, which the graph keeps


class Sines(nn.Module):
    """x (rows, width) → the same shape. The graph keeps four tensors of this size, x among them, and no output."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width) + 0.3 * torch.randn(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).sin().sin().sin()


def bits(thing: Any) -> Any:
    """Tensors as bytes with their dtype and shape, item by item in lists and tuples; None stays None."""
    if isinstance(thing, list | tuple):
        return [bits(one) for one in thing]
    if thing is None:
        return None
    t = thing.detach().contiguous()
    return f"{str(t.dtype)[6:]} {tuple(t.shape)}", t.view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
