"""Exercise 2: a sharded unit and its forward."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autograder.checks import inputs
from autograder.checks.cases import ANYTHING, Case, at_most, close, fact, sentence
from autograder.checks.check import MEMORY, check

from .cut import wrong_gathers
from .live import COUNTING, UNITS, WIDTH, UnitMeter, stack
from .models import ERROR, Tied, as_numpy, flat, freeze, groups, padded

UNIT = "09-ex2-unit"
LAYER, TIE, PAIR, HALF, ALL = "a layer", "a tied weight", "a layer of two inputs", "a frozen weight", "a frozen layer"


def _unit(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return {
        LAYER: lambda: nn.Linear(4, 5),
        TIE: lambda: Tied(4, frozen=False),
        PAIR: lambda: nn.Bilinear(4, 4, 2),
        HALF: lambda: freeze(nn.Linear(4, 3), "weight"),
        ALL: lambda: freeze(nn.Linear(4, 3), "all"),
    }[name]()


def _inputs(name: str, seed: int, dtype: str) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed + 1)
    return [torch.randn(5, 4, generator=g).to(getattr(torch, dtype)) for _ in range(2 if name == PAIR else 1)]


@dataclass
class Made:
    """A unit before its first forward."""

    shard: Any = fact("shard")
    frozen: Any = fact("frozen_shard")


@dataclass
class Computed:
    """What a forward of the unit's module gave. when: "in forward 1"."""

    when: str
    output: Any = fact("the output")
    whole: str = sentence()


@dataclass
class Gathered:
    """What gather() returned, twice."""

    flats: list[Any] = fact("vector {} of gather()")
    again: str = sentence()


def _drive(rank: int, world_size: int, unit_class: Any, name: str, seed: int, dtype: str) -> list[Any]:
    """Make a unit; after a barrier each, compute with it, gather it twice and free it, and compute again."""
    module, inputs = _unit(name, seed), _inputs(name, seed, dtype)
    unit = unit_class(module, *([getattr(torch, dtype)] if dtype != "float32" else []))

    def computed(number: int) -> Computed:
        dist.barrier()
        with torch.no_grad():
            output = module(*inputs)
        left = "" if unit.whole is None else f"after forward {number} whole is not None"
        return Computed(f"in forward {number}", output.clone(), left)

    made = Made(unit.shard.detach().clone(), unit.frozen_shard.detach().clone())
    first = computed(1)
    dist.barrier()
    flats, again = list(unit.gather()), unit.gather()
    same = all(a is b for a, b in zip(flats, again, strict=True))
    text = "" if same else "a second gather() without a free() in between returned other tensors"
    gathered = Gathered([one.detach().clone() for one in flats], text)
    unit.free()
    return [made, first, gathered, computed(2)]


def _case(unit_class: Any, name: str, seed: int, n: int, dtype: str = "float32", once: bool = False) -> Case:
    """once: what is judged is how often it gathers, and that it frees."""
    module = _unit(name, seed)
    vectors = [flat(group) for group in groups(module.parameters())]
    pieces = [padded(vector, n).reshape(n, -1) for vector in vectors]
    module.to(getattr(torch, dtype))
    with torch.no_grad():
        output = module(*_inputs(name, seed, dtype))
    numbers = close(as_numpy(output), rtol=ERROR, dtype=str(output.dtype)[6:])
    computed = Computed("", numbers, "") if once else Computed("", numbers)
    wholes = [close(torch.tensor(v).to(output.dtype).float().numpy(), dtype=dtype) for v in vectors]
    gathered = Gathered(ANYTHING, "") if once else Gathered(wholes if dtype != "float32" else ANYTHING)
    made = [Made(*(close(piece[rank], dtype="float32") for piece in pieces)) for rank in range(n)]
    expect = [[Made() if once else made[rank], computed, gathered, computed] for rank in range(n)]
    limit = sum(piece.shape[1] for piece in pieces) * output.element_size()
    wire = _too_much if once else _too_wide if dtype != "float32" else None
    judge = functools.partial(wire, limit, n) if wire else None
    return Case(f"{name}, {dtype}", n, _drive, (unit_class, name, seed, dtype), expect, parts=4, judge=judge)


def _too_much(limit: int, n: int, rank: int, parts: list) -> str:
    """In words: what was sent besides one all-gather of the shards in each part after the construction."""
    sent = [[(m.call, m.bytes) for m in part if m.bytes] for part in parts]
    if n > 1 and not all(sent[1:]):
        return f"rank {rank} gathered nothing where the unit was not whole"
    return next(filter(None, (wrong_gathers(rank, part, [limit], n) for part in sent[1:])), "")


def _too_wide(limit: int, n: int, rank: int, parts: list) -> str:
    """In words: that an all-gather has more bytes than the shards in the compute dtype."""
    widest = max((m.bytes for part in parts for m in part), default=0)
    return f"rank {rank} puts {widest} bytes into an all-gather, expected {limit}" if n > 1 and widest > limit else ""


@check(UNIT, points=1)
def a_unit_computes_what_it_did(ShardedUnit, *, rng):
    """A unit keeps the shard of its parameters, and computes what it did before."""
    for n in (3, 1, 2, 5):
        for name in (LAYER, TIE, PAIR):
            yield _case(ShardedUnit, name, inputs.seed(rng), n)


@check(UNIT, points=0.25)
def frozen_parameters_have_their_own_shard(ShardedUnit, *, rng):
    """Frozen parameters are in the other shard, and the unit computes with them."""
    for n in (3, 2):
        for name in (HALF, ALL):
            yield _case(ShardedUnit, name, inputs.seed(rng), n)


@check(UNIT, points=0.25)
def a_unit_computes_in_its_dtype(ShardedUnit, *, rng):
    """With a compute dtype, this is what is gathered and what the unit computes in."""
    for n in (3, 1):
        for name in (LAYER, TIE):
            yield _case(ShardedUnit, name, inputs.seed(rng), n, "bfloat16")


@check(UNIT, points=0.25)
def a_whole_unit_is_not_gathered_again(ShardedUnit, *, rng):
    """A unit that is whole sends nothing, and one that was freed gathers once."""
    for n in (3, 2):
        yield _case(ShardedUnit, LAYER, inputs.seed(rng), n, once=True)


@dataclass
class Left:
    """Units' bytes alive besides the shards."""

    output: Any = fact("the output of all units")
    alive: list[float] = fact("the S alive besides the shards after {} forwards", seen=lambda s: [x > 0.5 for x in s])


def _drive_forward(rank: int, world_size: int, unit_class: Any, x: torch.Tensor) -> Left:
    start = UnitMeter(rank)
    with start:
        model = stack()
        for layer in model:
            unit_class(layer)
    alive = [start.above(UNITS / world_size + 0.5) - UNITS / world_size]
    meter = UnitMeter(rank)
    with torch.no_grad(), meter:
        for layer in model:
            x = layer(x)
            alive.append(meter.above(0.5))
    return Left(x.clone(), alive)


@check(UNIT, points=0.25, fixed=MEMORY)
def nothing_whole_is_left(ShardedUnit):
    """No whole parameter is alive after the construction of a unit, nor after its forward."""
    n, x = 2, torch.linspace(-1, 1, WIDTH).view(1, WIDTH)
    with torch.no_grad():
        want = close(stack()(x).numpy(), rtol=1e-4)
    expect = [Left(want, [at_most(0.5)] * (UNITS + 1)) if rank == COUNTING else Left(want) for rank in range(n)]
    yield Case(f"{UNITS} units of S bytes", n, _drive_forward, (ShardedUnit, x), expect)
