"""A GPT layer whose saved tensors are known, and modules whose parts are easy to count."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """The core of attention: qkv (b, s, 3h) → (b, s, h). flash: fused, so that no scores are kept."""

    def __init__(self, heads: int, p: float, flash: bool):
        super().__init__()
        self.heads, self.p, self.flash = heads, p, flash

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in qkv.unflatten(-1, (3, self.heads, -1)).unbind(2))
        if self.flash:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        length = qkv.shape[1]
        future = torch.full((length, length), -math.inf, dtype=qkv.dtype).triu(1)
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + future).softmax(-1)
        return (drop(weights, self.p) @ v).transpose(1, 2).flatten(2)


def drop(x: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout that keeps a mask of one byte a number."""
    return x * (torch.rand(x.shape) >= p) * (1 / (1 - p)) if p else x


class GPTLayer(nn.Module):
    """x (b, s, h) → (b, s, h), all in bf16."""

    def __init__(self, hidden: int, heads: int, p: float, flash: bool):
        super().__init__()
        sizes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
        self.linear = nn.ModuleDict({name: nn.Linear(hidden * n, hidden * m) for name, (n, m) in sizes.items()})
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.core, self.p = Attention(heads, p, flash), p
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + drop(self.linear["out"](self.core(self.linear["qkv"](self.norms[0](x)))), self.p)
        return x + drop(self.linear["down"](functional.gelu(self.linear["up"](self.norms[1](x)))), self.p)


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
