"""Lesson 05: the model that the checks of several exercises share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Towers(nn.Module):
    """Two towers of the same size; even ranks use one of them first, odd ranks the other.

    It returns a tuple: the output and the left tower's.
    """

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.left, self.right = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: torch.Tensor, left_first: bool, use: str = "both") -> tuple[torch.Tensor, torch.Tensor]:
        """(B, 3) → (B, 3) twice. use: the towers, "both" or "left"."""
        if use == "left":
            left = torch.tanh(self.left(x))
            return left, left
        if left_first:
            left = torch.tanh(self.left(x))
            return left - self.right(x).square(), left
        right = self.right(x).square()
        left = torch.tanh(self.left(x))
        return left - right, left


def output_of(pair: Any) -> torch.Tensor:
    """The output in what a wrapper of Towers returned. Anything but a tuple of two is a TypeError."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"forward should return what the module returns, a tuple of two, it gave a {type(pair).__name__}"
        )
    return pair[0]
