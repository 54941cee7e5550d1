"""Lesson 05, exercise 1: one rank's parameters and buffers, copied to all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import each_rank, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    WORLD_SIZES,
    calls_inside,
    case_of,
)


class _Assorted(nn.Module):
    """Parameters and buffers of many kinds, with numbers drawn from `seed`, which differs on each rank."""

    def __init__(self, seed: int):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.first, self.second = nn.Module(), nn.Module()
        self.first.weight = nn.Parameter(torch.randn(3, 4, generator=g))
        self.second.weight = self.first.weight  # tied
        self.first.frozen = nn.Parameter(torch.randn(5, generator=g, dtype=torch.float64), requires_grad=False)
        self.scale = nn.Parameter(torch.randn((), generator=g))  # of the outer module itself
        self.first.empty = nn.Parameter(torch.empty(0, 3))
        self.first.brain = nn.Parameter(torch.randn(6, generator=g).bfloat16())
        numbers = torch.randint(-(2**60), 2**60, (4,), generator=g)  # more digits than a float64 has
        self.second.register_buffer("wide", numbers)
        self.second.register_buffer("middling", (numbers >> 32).to(torch.int32))
        self.first.register_buffer("count", torch.randint(2**40, (), generator=g))
        self.first.register_buffer("mask", torch.rand(9, generator=g) < 0.5)
        self.first.register_buffer("table", torch.randn(3, generator=g, dtype=torch.float64), persistent=False)
        self.second.register_buffer("bounds", torch.randn(2, generator=g).sign() * torch.inf)  # 0 * inf is no number

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name; a tied one occurs once."""
        return dict(self.named_parameters()) | dict(self.named_buffers())


def _exact(tensor: torch.Tensor) -> Any:
    """A tensor's exact numbers as nested lists, whatever its dtype."""
    return (tensor.detach().double() if tensor.is_floating_point() else tensor.long()).tolist()


def _drive_broadcast(rank: int, world_size: int, broadcast_parameters: Any, seed: int) -> list[dict]:
    """Inside a rank: one module, filled anew for each source."""
    observed = []
    module = _Assorted(seed + rank)
    for src in range(world_size):
        before = module.tensors()
        for name, tensor in _Assorted(seed + 1000 * src + rank).tensors().items():
            before[name].detach().copy_(tensor)
        places = {name: tensor.data_ptr() for name, tensor in before.items()}
        broadcast_parameters(module, **({"src": src} if src else {}))
        after = module.tensors()
        moved = [
            name
            for name, tensor in before.items()
            if after.get(name) is not tensor or tensor.data_ptr() != places[name] or after[name].shape != tensor.shape
        ]
        flags = [name for name, p in module.named_parameters() if p.requires_grad == (name == "first.frozen")]
        values = {name: _exact(tensor) for name, tensor in after.items()}
        observed.append({"values": values, "moved": moved, "flags": flags})
    return observed


@check("05-ex1-broadcast-parameters", points=1.5)
def broadcast_parameters_copies_all_parameters_and_buffers(broadcast_parameters, *, rng):
    """On every rank, every parameter and buffer becomes the source's, in place, whatever its dtype."""
    for world_size in WORLD_SIZES:
        seed = inputs.seed(rng)
        results = run_ranks(_drive_broadcast, world_size, (broadcast_parameters, seed))
        for src in range(world_size):
            case = case_of(world_size, f"src = {src}")
            source = _Assorted(seed + 1000 * src + src).tensors()
            seen = [result[src] for result in results]
            wrong = [[name for name in source if mine["values"].get(name) != _exact(source[name])] for mine in seen]
            for rank, names in each_rank(case, wrong):
                if names:
                    what = source[names[0]]
                    kind = "parameter" if isinstance(what, nn.Parameter) else "buffer"
                    rank.fail(f"{kind} {names[0]} ({what.dtype}, shape {tuple(what.shape)}) is not rank {src}'s")
            for rank, mine in each_rank(case, seen):
                if mine["moved"]:
                    rank.fail(f"{mine['moved'][0]} was replaced, expected a change in place", mine["moved"])
                if mine["flags"]:
                    rank.fail(f"requires_grad of {mine['flags'][0]} was changed", mine["flags"])


def _drive_refusal(rank: int, world_size: int, broadcast_parameters: Any, sources: list[int]) -> list[dict]:
    """Inside a rank, for each source: the text of the ValueError, None where there was none, and the numbers then.

    After these, the same for a module that has no parameters, with the first of the sources.
    """
    seen = []
    for number, src in enumerate([*sources, sources[0]]):
        module, text = nn.Linear(2, 1, bias=False), None
        nn.init.constant_(module.weight, rank + 1)
        with record_function(f"src = {src}"):
            try:
                broadcast_parameters(module if number < len(sources) else nn.Identity(), src)
            except ValueError as error:
                text = str(error)
        seen.append({"text": text, "numbers": _exact(module.weight)})
    return seen


@check("05-ex1-broadcast-parameters", points=0.5)
def broadcast_parameters_refuses_a_source_that_is_no_rank(broadcast_parameters, *, rng):
    """A `src` outside 0…N−1 raises a ValueError that names `src`, on every rank, before any message."""
    for world_size in (1, 3):
        last = world_size - 1
        sources = [-1, world_size, last, world_size + 4]
        results = run_ranks(_drive_refusal, world_size, (broadcast_parameters, sources))
        for rank, seen in enumerate(results):
            cases = [*((src, f"src = {src}") for src in sources), (-1, "src = -1, a module without parameters")]
            for (src, name), one in zip(cases, seen, strict=True):
                case, text = case_of(world_size, name), one["text"]
                if src == last:
                    continue
                if text is None:
                    fail(f"rank {rank} raised nothing, expected a ValueError", case, "nothing raised")
                if "src" not in text:
                    fail(f"rank {rank}'s ValueError should name 'src', but it says {text!r}", case, "not named")
        for rank in range(world_size):
            if any(calls_inside(results.ledger, rank, f"src = {src}") for src in sources if src != last):
                fail("messages were sent before the ValueError", case_of(world_size), "sent first")
        valid = [seen[sources.index(last)] for seen in results]
        for rank, one in each_rank(case_of(world_size, f"src = {last}"), valid):
            rank.expect(one["text"] is None, f"a ValueError was raised: {one['text']}")
            rank.expect_equal(one["numbers"], [[float(world_size)] * 2], what="the weight")
