"""Exercise 2: a sharded unit and its forward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking import inputs
from autograder.checking.cases import Case, close, complaint, fact
from autograder.checking.check import check
from autograder.checking.expect import expect_close, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.cut import wrong_gathers
from autograder.checks.fsdp.live import COUNTING, UNITS, WIDTH, UnitMeter, stack
from autograder.checks.fsdp.models import ERROR, Tied, Tokens, as_numpy, flat, freeze, groups, padded


def _own_forward() -> nn.Module:
    """A layer whose forward was set on the object, not in its class."""
    layer = nn.Linear(4, 3)
    layer.forward = lambda x: nn.functional.linear(x, layer.weight, layer.bias).tanh()
    return layer


class _Inputs(nn.Module):
    """Records the dtypes of its inputs, which differ."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        self.seen = [str(t.dtype)[6:] for t in (x, y, tokens)]
        return self.layer(x.to(self.layer.weight.dtype)) * y.float()


@dataclass
class _UnitCase:
    """A unit by name, called once with inputs that the driver makes."""

    name: str
    seed: int
    dtype: str = "float32"

    def unit(self) -> nn.Module:
        torch.manual_seed(self.seed)
        makers: dict[str, Callable[[], nn.Module]] = {
            "a layer with a frozen weight": lambda: freeze(nn.Linear(4, 3), "weight"),
            "a tied weight and a frozen vector": lambda: Tied(4),
            "a layer": lambda: nn.Linear(4, 5),
            "two inputs": lambda: nn.Bilinear(4, 4, 2),
            "tokens and buffers": Tokens,
            "a frozen layer": lambda: freeze(nn.Linear(4, 3), "all"),
            "an activation": nn.Tanh,
            "one parameter": lambda: nn.Linear(1, 1, bias=False),
            "a forward of its own": _own_forward,
            "inputs of three dtypes": _Inputs,
        }
        return makers[self.name]()

    def inputs(self) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(self.seed + 1)
        if self.name == "tokens and buffers":
            return [torch.randint(0, 9, (6,), generator=g)]
        if self.name == "inputs of three dtypes":
            x, y = torch.randn(5, 4, generator=g), torch.randn(5, 1, generator=g, dtype=torch.float64)
            return [x, y, torch.randint(0, 9, (6,), generator=g)]
        width = 1 if self.name == "one parameter" else 4
        count = 2 if self.name == "two inputs" else 1
        return [torch.randn(5, width, generator=g).to(getattr(torch, self.dtype)) for _ in range(count)]


def _unit_cases(rng: np.random.Generator) -> list[_UnitCase]:
    names = ["a tied weight and a frozen vector", "a layer with a frozen weight", "one parameter", "a layer"]
    names += ["two inputs", "tokens and buffers", "a frozen layer", "an activation", "a forward of its own"]
    cases = [_UnitCase(name, inputs.seed(rng)) for name in names]
    in_bf16 = ["a layer with a frozen weight", "tokens and buffers", "inputs of three dtypes"]
    cases.append(_UnitCase("inputs of three dtypes", inputs.seed(rng)))
    return [*cases, *(_UnitCase(name, inputs.seed(rng), "bfloat16") for name in in_bf16)]


@dataclass
class Made:
    """A unit before its first forward."""

    shard: Any = fact("shard")
    frozen: Any = fact("frozen_shard")
    odd: list[str] = complaint()


@dataclass
class Computed:
    """What a forward of the unit's module gave, and what was left of it. when: "in forward 1"."""

    when: str
    reached: list[str] = fact("the list of the dtypes that reach the unit")
    output: Any = fact("the output")
    odd: list[str] = complaint()


@dataclass
class Gathered:
    """What gather() returned, and what became of it."""

    flats: list[Any] = fact("vector {} of gather()")
    odd: list[str] = complaint()


def _drive_unit(rank: int, world_size: int, unit_class: Any, case: _UnitCase) -> list[Any]:
    """Make a unit; after a barrier each, compute with it, gather it twice and free it, and compute again."""
    module, inputs = case.unit(), case.inputs()
    buffers = [b.clone() for b in module.buffers()]
    unit = unit_class(module, *([getattr(torch, case.dtype)] if case.dtype != "float32" else []))

    def computed(number: int) -> Computed:
        dist.barrier()
        with torch.no_grad():
            output = module(*inputs)
        odd = [_odd(module, unit, buffers, f"after forward {number}")]
        return Computed(f"in forward {number}", getattr(module, "seen", []), output.clone(), odd)

    odd = [_odd_shard(unit), _odd(module, unit, buffers, "before the first forward")]
    made = Made(unit.shard.detach().clone(), unit.frozen_shard.detach().clone(), odd)
    first = computed(1)
    dist.barrier()
    flats, again = unit.gather(), unit.gather()
    odd = ["" if unit.whole is not None else "gather() should keep what it gathered in whole"]
    if len(flats) != 2 or any(a is not b for a, b in zip(flats, again, strict=True)):
        odd = ["a second gather() without a free() in between returned other tensors"]
    flats = [f.detach().clone() for f in flats]
    unit.free()
    odd.append("" if unit.whole is None else "whole should be None after free()")
    return [made, first, Gathered(flats, odd), computed(2)]


def _odd_shard(unit: Any) -> str:
    """In words: that a shard is not of the kind that it should be, or ""."""
    kinds = [
        f"{type(s).__name__} {str(s.dtype)[6:]}{', requires a gradient' if s.requires_grad else ''}"
        for s in (unit.shard, unit.frozen_shard)
    ]
    if kinds[0] != "Parameter float32, requires a gradient":
        return f"shard is a {kinds[0]}, expected a float32 nn.Parameter that requires a gradient"
    if kinds[1] not in ("Tensor float32", "Parameter float32"):
        return f"frozen_shard is a {kinds[1]}, expected a float32 tensor that requires no gradient"
    return ""


def _odd(module: nn.Module, unit: Any, buffers: list[torch.Tensor], when: str) -> str:
    """In words: what is left of the whole parameters, or has become of the buffers, or ""."""
    if left := len(list(module.parameters())):
        return f"{when} the module still has {left} parameters"
    if unit.whole is not None:
        return f"whole should be None {when}"
    kept = [b.dtype for b in buffers] == [b.dtype for b in module.buffers()]
    if "before" in when:  # a forward may count in a buffer
        kept = kept and all(torch.equal(a, b) for a, b in zip(buffers, module.buffers(), strict=True))
    return "" if kept else f"{when} the unit's buffers are no longer what they were, or have another dtype"


@check("09-ex2-unit", points=2)
def unit_computes_what_it_did(ShardedUnit, *, rng):
    """A unit keeps its shards, computes what it did, sends its shards once, and holds nothing whole afterwards."""
    for n in (3, 1, 5):
        for case in _unit_cases(rng)[: 3 if n == 5 else None]:
            yield _case(ShardedUnit, case, n)


def _case(unit_class: Any, case: _UnitCase, n: int) -> Case:
    module = case.unit()
    vectors = [flat(group) for group in groups(module.parameters())]
    pieces = [padded(vector, n).reshape(n, -1) for vector in vectors]
    if case.dtype == "bfloat16":
        for p in module.parameters():
            p.data = p.data.bfloat16()
    forwards = []
    for _ in range(2):
        with torch.no_grad():
            output = module(*case.inputs())
        numbers = close(as_numpy(output), rtol=ERROR, dtype=str(output.dtype)[6:])
        forwards.append(Computed("", getattr(module, "seen", []), numbers, ""))
    wholes = [torch.tensor(vector).to(getattr(torch, case.dtype)).float().numpy() for vector in vectors]
    gathered = Gathered([close(whole, dtype=case.dtype) for whole in wholes], "")
    first, second = forwards
    expect = [[Made(*(close(piece[rank]) for piece in pieces), ""), first, gathered, second] for rank in range(n)]
    limit = sum(piece.shape[1] for piece in pieces) * (2 if case.dtype == "bfloat16" else 4)
    judge = functools.partial(_too_much, limit, n)
    return Case(f"{case.name}, {case.dtype}", n, _drive_unit, (unit_class, case), expect, parts=4, judge=judge)


def _too_much(limit: int, n: int, rank: int, parts: list) -> str:
    """In words: what was sent besides one all-gather of the shards in each part after the construction."""
    sent = [[(m.call, m.bytes) for m in part if m.bytes] for part in parts]
    if sent[0]:
        return f"the construction sent a message on rank {rank}"
    return next(filter(None, (wrong_gathers(rank, part, [limit], n) for part in sent[1:])), "")


def _drive_forward_memory(
    rank: int, world_size: int, unit_class: Any, x: torch.Tensor
) -> tuple[list[float], np.ndarray]:
    """Units' bytes alive above the shards: after the construction, and after each unit's forward. And the output."""
    shards = UNITS / world_size
    start = UnitMeter(rank)
    with start:
        model = stack(frozen=False, pairs=False)
        for layer in model:
            unit_class(layer)
    alive = [start.above(shards + 0.5) - shards]
    meter = UnitMeter(rank)
    with torch.no_grad(), meter:
        for layer in model:
            x = layer(x)
            alive.append(meter.above(0.5))
    return alive, as_numpy(x)


@check("09-ex2-unit", points=1)
def unit_is_freed_after_its_forward(ShardedUnit, *, rng):
    """No whole parameter is alive after the construction of a unit, nor after its forward."""
    world_size = 2
    x = torch.from_numpy(rng.standard_normal((1, WIDTH)).astype(np.float32))
    alive, output = run_ranks(_drive_forward_memory, world_size, (ShardedUnit, x))[COUNTING]
    case = f"{world_size} ranks, {UNITS} units of S bytes"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        want = stack(frozen=False, pairs=False)(x)
    # What is metered must be right as well: a layer that is skipped holds nothing.
    expect_close(case, output, as_numpy(want), what="the output of all units", rtol=1e-4)
    for number, extra in enumerate(alive):
        if extra > 0.5:
            when = f"the forward of layer {number}" if number else "the construction"
            fail(f"after {when}, {extra:.1f} S are alive besides the shards", case, ["alive", number])
