"""What is wrong with the form of what an answer returned, in words."""

from __future__ import annotations

from typing import Any

import torch


def no_pair(got: Any, names: str) -> str:
    """What is returned instead of a pair of tensors, or "". names: of the two, as in "(values, indices)"."""
    if isinstance(got, (tuple, list)) and len(got) == 2 and all(isinstance(part, torch.Tensor) for part in got):
        return ""
    return f"what is returned is no pair of tensors {names}, but {type(got).__name__}"


def not_of_shape(got: Any, shape: tuple[int, ...]) -> str:
    """What `got` is instead of a tensor of this shape, as the end of a sentence, or ""."""
    if isinstance(got, torch.Tensor) and got.shape == shape:
        return ""
    kind = f"a tensor of shape {tuple(got.shape)}" if isinstance(got, torch.Tensor) else type(got).__name__
    return f"{kind}, expected a tensor of shape {shape}"
