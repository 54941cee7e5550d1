"""Small models with everything that goes wrong in them, their batches, and vectors cut from them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from autograder.checks.expect import ceil_div

#: Of the largest parameter or gradient, at least 1: float32 through a few layers and steps, where sums in another order
#: differ by up to 1.1e-6 here.
ERROR = 1e-5


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy that numpy can hold and compare."""
    other = {torch.bfloat16: torch.float32, torch.bool: torch.uint8}.get(tensor.dtype, tensor.dtype)
    return tensor.detach().to(other).clone().numpy()


# ---- models ----


class Tied(nn.Module):
    """A weight that two layers share, and perhaps a frozen vector."""

    def __init__(self, width: int, frozen: bool = True):
        super().__init__()
        self.last = nn.Linear(width, width, bias=False)
        self.first = nn.Linear(width, width)
        self.first.weight = self.last.weight
        self.gain = nn.Parameter(torch.rand(width), requires_grad=not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x) * self.gain))


class Gain(nn.Module):
    """A parameter of its own next to a layer, and one that the forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.rand(2, 3))
        self.gain = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.gain


def freeze(module: nn.Module, *names: str) -> nn.Module:
    """Parameters of these names no longer require a gradient ("all": none does); the module."""
    for name, p in module.named_parameters():
        p.requires_grad_(not (name in names or "all" in names))
    return module


class Ends(nn.Module):
    """What is in no unit: an embedding that is also the output layer, and a frozen factor."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.out = nn.Linear(4, 9, bias=False)
        self.out.weight = self.table.weight
        self.factor = nn.Parameter(torch.rand(9) + 0.5, requires_grad=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return (self.out(x) * self.factor)[:, :3]


def build(name: str, seed: int) -> tuple[nn.Module, list[nn.Module]]:
    """A small model and its units."""
    torch.manual_seed(seed)
    if name == LAYERS:
        m = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))
        return m, [m[2], m[0]]
    if name == ONE_UNIT:
        m = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
        return m, [m]
    if name == TIED:
        m = nn.Sequential(Gain(), Tied(4, frozen=False), nn.Linear(4, 3))
        return m, list(m)
    if name == FROZEN:
        first, last = freeze(nn.Linear(4, 5), "bias"), freeze(nn.Linear(5, 3), "weight")
        m = nn.Sequential(first, nn.Tanh(), freeze(nn.Linear(5, 5), "all"), nn.Tanh(), last)
        return m, [m[2], m[0], m[4]]
    if name == FEW:
        m = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 1), nn.Linear(1, 3, bias=False))
        return m, list(m)
    if name == ROOT:
        m = Ends()
        return m, [m.blocks[1], m.blocks[0]]
    if name == ONLY_ROOT:
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)), []
    if name == NORMED:
        m = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        return m, [m[0], m[1], m[2]]
    assert name == TOKENS, name
    m = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return m, [m[0], m[1], m[3]]


#: The names of the models.
LAYERS, ONE_UNIT, TIED = "two layers, listed backwards", "the whole model as a unit", "tied and unused parameters"
FROZEN, FEW, NORMED = "frozen parameters", "fewer elements than ranks", "layers and BatchNorm"
ROOT, ONLY_ROOT = "tokens, and parameters in no unit", "no units"
TOKENS = "tokens, and an embedding as a unit"


def optimizer_of(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def batch(model: str, seed: int, step: int, rank: int, count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one rank in one step."""
    g = torch.Generator().manual_seed(seed + 1000 * step + rank)
    x = torch.randint(0, 9, (count,), generator=g) if "tokens" in model else torch.randn(count, 4, generator=g)
    return x, torch.randn(count, 3, generator=g)


# ---- vectors ----


def divide(module: nn.Module, units: list[nn.Module]) -> list[list[nn.Parameter]]:
    """Each unit's parameters, then the root's, if there are any."""
    lists = [list(unit.parameters()) for unit in units]
    rest = [p for p in module.parameters() if all(p is not q for params in lists for q in params)]
    return [*lists, rest] if rest else lists


def groups(params: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable ones of a unit's parameters, and the frozen ones."""
    params = list(params)
    return [p for p in params if p.requires_grad], [p for p in params if not p.requires_grad]


def flat(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    """The numbers of tensors, end to end."""
    return np.concatenate([np.zeros(0, np.float32), *(as_numpy(t).reshape(-1) for t in tensors)])


def padded(vector: np.ndarray, world_size: int) -> np.ndarray:
    """A vector with zeros after it, so that it divides into equal pieces."""
    full = np.zeros(ceil_div(len(vector), world_size) * world_size, vector.dtype)
    full[: len(vector)] = vector
    return full
