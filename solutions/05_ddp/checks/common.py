"""What the checks share: sizes, inputs, gradients as a rank returns them, and messages in words."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ranks.ledger import Message

#: float64 sums of at most four ranks, in any order, through a few layers and optimizer steps.
RTOL = 1e-9
#: Bytes of a number of each dtype.
SIZES = {"float32": 4, "float64": 8}


def rows_of(seed: int, rank: int, step: int = 0) -> torch.Tensor:
    """A rank's batch in a step, (4, 3), float64."""
    g = torch.Generator().manual_seed(seed + 17 * rank + 1013 * step)
    return torch.randn(4, 3, generator=g, dtype=torch.float64)


def grads_of(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Copies of the gradients; an empty tensor where there is none."""
    return [torch.zeros(0) if p.grad is None else p.grad.detach().clone() for p in parameters]


def in_words(messages: Iterable[Message]) -> str:
    """What was sent, as a sentence has it."""
    return ", ".join(f"{m.call} of {m.bytes} bytes" for m in messages) or "nothing"
