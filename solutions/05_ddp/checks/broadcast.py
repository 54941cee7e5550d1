"""Exercise 1: one rank's parameters and buffers, copied to all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks import inputs
from autograder.checks.cases import Case, fact, sentence
from autograder.checks.check import check

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
    trained: dict[str, Any] = fact("{}")
    frozen: dict[str, Any] = fact("{}")
    buffers: dict[str, Any] = fact("{}")
    replaced: str = sentence()
    inexact: str = sentence()


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; a tied one occurs once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _numbers(module: nn.Module) -> dict[str, Any]:
    """The exact numbers of each tensor as nested lists, whatever its dtype."""
    return {name: tensor.detach().tolist() for name, tensor in _tensors(module).items()}


def _broadcast(
    rank: int, world_size: int, broadcast_parameters: Any, kind: str, seed: int, sources: tuple[int, ...]
) -> list[Held]:
    """One module, filled anew for each source."""
    held, module = [], _MODULES[kind](seed)
    flags = {name: p.requires_grad for name, p in module.named_parameters()}
    for src in sources:
        before = _tensors(module)
        for name, tensor in _tensors(_MODULES[kind](seed + 1000 * src + rank)).items():
            before[name].detach().copy_(tensor)
        mine, right = _numbers(module), _numbers(_MODULES[kind](seed + 1000 * src + src))
        broadcast_parameters(module, **({"src": src} if src else {}))
        after, now = _tensors(module), _numbers(module)
        nothing = "nothing was broadcast" if rank != src and now == mine else ""
        replaced = [name for name, tensor in before.items() if after.get(name) is not tensor]
        changed = [name for name, p in module.named_parameters() if p.requires_grad != flags.get(name)]
        text = f"{replaced[0]} is another object than before" if replaced else nothing
        text = text or (f"requires_grad of {changed[0]} was changed" if changed else "")
        inexact = [name for name, value in now.items() if value not in (mine[name], right[name])]
        odd = f"{inexact[0]} is {now[inexact[0]]}, rank {src} had {right[inexact[0]]}" if inexact else nothing
        held.append(Held(f"with src = {src}", *_by_kind(now, flags), text, odd))
    return held


def _by_kind(numbers: dict[str, Any], flags: dict[str, bool]) -> list[dict[str, Any]]:
    """The numbers of trained parameters, of frozen ones and of buffers."""
    kinds = [{}, {}, {}]
    for name, value in numbers.items():
        kinds[0 if flags.get(name) else 1 if name in flags else 2][name] = value
    return kinds


def _cases(
    broadcast_parameters: Any,
    rng: np.random.Generator,
    kind: str,
    sizes: tuple[int, ...],
    what: str,
    others: bool = False,
) -> Iterator[Case]:
    """Modules of which `what` is compared, with rank 0 as the source, or with each of the others."""
    for n in sizes:
        seed, sources = inputs.seed(rng), tuple(range(1, n)) if others else (0,)
        expect = []
        for src in sources:
            module = _MODULES[kind](seed + 1000 * src + src)
            kinds = _by_kind(_numbers(module), {name: p.requires_grad for name, p in module.named_parameters()})
            right = dict(zip(("trained", "frozen", "buffers"), kinds, strict=True)) | {"replaced": "", "inexact": ""}
            expect.append(Held("", **{what: right[what]}))
        yield Case(kind, n, _broadcast, (broadcast_parameters, kind, seed, sources), [expect] * n)


@check(BROADCAST, points=0.5)
def all_parameters_become_the_sources(broadcast_parameters, *, rng):
    """On every rank, every trainable parameter becomes rank 0's, also one that two layers share."""
    yield from _cases(broadcast_parameters, rng, "parameters", (1, 2, 3, 4), "trained")


@check(BROADCAST, points=0.25)
def any_rank_can_be_the_source(broadcast_parameters, *, rng):
    """With another src, every trainable parameter becomes that rank's."""
    yield from _cases(broadcast_parameters, rng, "parameters", (2, 3), "trained", others=True)


@check(BROADCAST, points=0.25)
def frozen_parameters_become_the_sources(broadcast_parameters, *, rng):
    """On every rank, every frozen parameter becomes rank 0's."""
    yield from _cases(broadcast_parameters, rng, "parameters", (2, 3), "frozen")


@check(BROADCAST, points=0.25)
def parameters_stay_the_same_objects(broadcast_parameters, *, rng):
    """The tensors stay the same objects, and what is trained or frozen stays so."""
    yield from _cases(broadcast_parameters, rng, "parameters", (2,), "replaced")


@check(BROADCAST, points=0.5)
def all_buffers_become_the_sources(broadcast_parameters, *, rng):
    """Every buffer becomes rank 0's, also one that state_dict() leaves out."""
    yield from _cases(broadcast_parameters, rng, "buffers", (2, 3), "buffers")


@check(BROADCAST, points=0.25)
def numbers_stay_exact(broadcast_parameters, *, rng):
    """What is broadcast is exactly the source's, whatever its dtype."""
    yield from _cases(broadcast_parameters, rng, "several dtypes", (2,), "inexact")
