"""Exercise 1: one rank's parameters and buffers, copied to all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.cases import Case, complaint, fact
from autograder.checking.check import check

BROADCAST = "05-ex1-broadcast-parameters"


class _Parameters(nn.Module):
    """Parameters that are trained, frozen, tied and a module's own, with numbers drawn from `seed`."""

    def __init__(self, seed: int):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.first, self.second = nn.Module(), nn.Module()
        self.first.weight = nn.Parameter(torch.randn(3, 4, generator=g))
        self.second.weight = self.first.weight  # tied
        self.first.frozen = nn.Parameter(torch.randn(5, generator=g), requires_grad=False)
        self.scale = nn.Parameter(torch.randn((), generator=g))


class _Buffers(nn.Module):
    """Two buffers of an inner module, one of which is not in state_dict()."""

    def __init__(self, seed: int):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.inner = nn.Module()
        self.inner.register_buffer("mean", torch.randn(3, generator=g))
        self.inner.register_buffer("table", torch.randn(2, 2, generator=g), persistent=False)


class _Kinds(nn.Module):
    """Numbers of many dtypes, which a detour through another one would change."""

    def __init__(self, seed: int):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.brain = nn.Parameter(torch.randn(6, generator=g).bfloat16())
        self.wide = nn.Parameter(torch.randn(4, generator=g, dtype=torch.float64))
        numbers = {
            "count": torch.randint(-(2**60), 2**60, (4,), generator=g),  # more digits than float64 has
            "mask": torch.rand(9, generator=g) < 0.5,
            "bounds": torch.randn(2, generator=g).sign() * torch.inf,  # 0 * inf is no number
        }
        for name, tensor in numbers.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


_MODULES: dict[str, type[nn.Module]] = {
    "parameters": _Parameters,
    "buffers": _Buffers,
    "several dtypes": _Kinds,
}


@dataclass
class Held:
    """What a rank's module holds after a broadcast."""

    when: str
    replaced: str = complaint()
    values: dict[str, Any] = fact("{}")


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; a tied one occurs once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _numbers(module: nn.Module) -> dict[str, Any]:
    """The exact numbers of each tensor as nested lists, whatever its dtype."""
    return {name: tensor.detach().tolist() for name, tensor in _tensors(module).items()}


def _broadcast(rank: int, world_size: int, broadcast_parameters: Any, kind: str, seed: int) -> list[Held]:
    """One module, filled anew for each source."""
    held, module = [], _MODULES[kind](seed)
    flags = {name: p.requires_grad for name, p in module.named_parameters()}
    for src in range(world_size):
        before = _tensors(module)
        for name, tensor in _tensors(_MODULES[kind](seed + 1000 * src + rank)).items():
            before[name].detach().copy_(tensor)
        broadcast_parameters(module, **({"src": src} if src else {}))
        after = _tensors(module)
        replaced = [name for name, tensor in before.items() if after.get(name) is not tensor]
        changed = [name for name, p in module.named_parameters() if p.requires_grad != flags.get(name)]
        text = f"{replaced[0]} is another object than before" if replaced else ""
        text = text or (f"requires_grad of {changed[0]} was changed" if changed else "")
        held.append(Held(f"with src = {src}", text, _numbers(module)))
    return held


def _cases(broadcast_parameters: Any, rng: np.random.Generator, kind: str, sizes: tuple[int, ...]) -> Iterator[Case]:
    for n in sizes:
        seed = inputs.seed(rng)
        sources = [_numbers(_MODULES[kind](seed + 1000 * src + src)) for src in range(n)]
        expect = [Held("", "", source) for source in sources]
        yield Case(kind, n, _broadcast, (broadcast_parameters, kind, seed), [expect] * n)


@check(BROADCAST, points=1.25)
def all_parameters_become_the_sources(broadcast_parameters, *, rng):
    """On every rank, every parameter becomes the source's, also a frozen one and one that two layers share."""
    yield from _cases(broadcast_parameters, rng, "parameters", (1, 2, 3, 4))


@check(BROADCAST, points=0.5)
def all_buffers_become_the_sources(broadcast_parameters, *, rng):
    """Every buffer becomes the source's, also one that state_dict() leaves out."""
    yield from _cases(broadcast_parameters, rng, "buffers", (2, 3))


@check(BROADCAST, points=0.25)
def numbers_stay_exact(broadcast_parameters, *, rng):
    """The numbers are exactly the source's, whatever their dtype."""
    yield from _cases(broadcast_parameters, rng, "several dtypes", (2,))
