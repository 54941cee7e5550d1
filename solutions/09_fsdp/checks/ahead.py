"""Exercise 6: units that are gathered while their neighbors compute."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checks import inputs
from autograder.checks.cases import Case, close, fact
from autograder.checks.check import MEMORY, check
from autograder.checks.expect import ceil_div

from .live import freed
from .models import FEW, ONE_UNIT, TIED, TOKENS, as_numpy, flat
from .steps import Training, only_what_is_needed, steps_of

PREFETCH = "09-ex6-prefetch"
UNITS, STEPS = 4, 2


class _Marked(torch.autograd.Function):
    """A product whose forward and backward, the weight at hand, are marked on the timeline."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, name: str) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.name = name
        with record_function(f"forward {name}"):
            return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        with record_function(f"backward {ctx.name}"):
            return gradient @ weight.t(), x.t() @ gradient, None


class _Layer(nn.Module):
    """A weight that marks when it computes. number: its place in the forward."""

    def __init__(self, number: int, widths: tuple[int, int]):
        super().__init__()
        self.number, self.step = number, 0
        self.weight = nn.Parameter(torch.ones(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Marked.apply(x, self.weight, f"{self.number} in step {self.step}")


@dataclass
class Ran:
    """What two steps of the units computed: all weights and inputs are 1."""

    outputs: list[float] = fact("the output in step {}")


def _drive_ahead(rank: int, world_size: int, unit_class: Any, link: Any, widths: list[int]) -> Ran:
    """Two steps between barriers."""
    layers = [_Layer(number, pair) for number, pair in enumerate(pairwise(widths))]
    units, outputs = [unit_class(layer) for layer in layers], []
    link(units)
    for step in range(STEPS):
        dist.barrier()
        x = torch.ones(2, widths[0], requires_grad=True)
        for layer in layers:
            layer.step = step
            x = layer(x)
        x.sum().backward()
        outputs.append(x[0, 0].item())
    dist.barrier()
    return Ran(outputs)


def _widths(rng: np.random.Generator, n: int) -> list[int]:
    """So that the units have shards of different sizes: the bytes of an all-gather tell whose it is."""
    while True:
        widths = rng.integers(2, 12, UNITS + 1).tolist()
        if len({ceil_div(a * b, n) for a, b in pairwise(widths)}) == UNITS:
            return widths


def _ahead(unit_class: Any, link: Any, rng: np.random.Generator, when: str) -> Iterator[Case]:
    for n in (2, 3):
        widths = _widths(rng, n)
        output = float(np.prod(widths[:-1], dtype=float))
        judge = functools.partial(_out_of_order, when, [4 * ceil_div(a * b, n) for a, b in pairwise(widths)])
        args, expect = (unit_class, link, widths), [Ran([close(output, 1e-5)] * STEPS)] * n
        yield Case(f"{UNITS} units", n, _drive_ahead, args, expect, parts=STEPS + 2, judge=judge)


def _gathers(units: list[int]) -> str:
    """The all-gathers of these units, in words."""
    if not units:
        return "no all-gather"
    if len(units) == 1:
        return f"the all-gather of unit {units[0]}"
    return f"the all-gathers of units {', '.join(map(str, units))}, in this order"


def _out_of_order(when: str, sizes: list[int], rank: int, parts: list) -> str | tuple[str, Any]:
    """What is wrong with a rank's all-gathers when a unit computes, in the forward or in the backward."""
    first = ""
    seen = []
    for step, part in enumerate(parts[1 : STEPS + 1]):
        gathers = [m for m in part if m.call.startswith("all_gather")]
        if odd := [m.bytes for m in gathers if m.bytes not in sizes]:
            return f"an all-gather of {odd[0]} bytes on rank {rank} fits none of the units, which need {sizes}"
        spans = {span.name: span for span in part.spans}
        for unit in range(UNITS) if when == "forward" else reversed(range(UNITS)):
            now = spans.get(f"{when} {unit} in step {step}")
            if now is None:
                return f"unit {unit} did not compute its {when} on rank {rank}"
            asked = [sizes.index(m.bytes) for m in gathers if m.start < now.start]
            there = [sizes.index(m.bytes) for m in gathers if m.end is not None and m.end < now.end]
            want_asked, want_there = _expected(when, unit)
            if when == "backward":  # how the forward gathers is another property
                asked, there = (_after_forward(one) for one in (asked, there))
                want_asked, want_there = (_after_forward(one) for one in (want_asked, want_there))
            seen.append([step, unit, asked, there])
            for got, want, done in ((there, want_there, "ended"), (asked, want_asked, "started")):
                if got != want and not first:
                    first = f"when unit {unit} computed its {when} in step {step + 1}, rank {rank} had {done} "
                    first += f"{_gathers(got)}; expected {_gathers(want)}"
    return (first, ["order", rank, seen]) if first else ""


def _after_forward(units: list[int]) -> list[int]:
    """The all-gathers of the backward: those after the first one of each unit."""
    return [unit for place, unit in enumerate(units) if unit in units[:place]]


def _expected(when: str, unit: int) -> tuple[list[int], list[int]]:
    """The units that have been started when a unit computes, and those that are there, in order."""
    order = [*range(UNITS), *reversed(range(UNITS))]
    place = unit if when == "forward" else 2 * UNITS - 1 - unit
    ahead = place + 2 if place != UNITS - 1 else place + 1  # the last unit has none after it
    return order[:ahead], order[: place + 1]


@check(PREFETCH, points=0.75)
def the_forward_gathers_ahead(PrefetchingUnit, chain, *, rng):
    """In the forward, a unit starts its own all-gather and then its neighbor's, and computes when its own is over."""
    yield from _ahead(PrefetchingUnit, chain, rng, "forward")


@check(PREFETCH, points=0.75)
def the_backward_gathers_ahead(PrefetchingUnit, chain, *, rng):
    """So it is in the backward, with the unit before it."""
    yield from _ahead(PrefetchingUnit, chain, rng, "backward")


def _all_waited_for(training: Training, want: dict, n: int, rank: int, parts: list) -> str:
    if any(m.end is None for part in parts for m in part):
        return f"rank {rank} never waited for an all-gather that it had started"
    return ""


@check(PREFETCH, points=0.75)
def prefetching_changes_no_number(PrefetchingUnit, chain, *, rng):
    """Shards and gradients follow one process, step after step, also after a unit that nobody asked for."""
    for n, models in {3: (TOKENS, TIED, FEW), 1: (TOKENS,), 2: (ONE_UNIT, TOKENS)}.items():
        for model in models:
            training = Training(model, inputs.seed(rng), steps=3)
            yield steps_of(PrefetchingUnit, training, n, link=chain, wire=only_what_is_needed)


@check(PREFETCH, points=0.25)
def what_was_started_is_waited_for(PrefetchingUnit, chain, *, rng):
    """No all-gather is forgotten, not even of a unit that nobody asked for."""
    for n in (2, 3):
        training = Training(TOKENS, inputs.seed(rng), steps=1)
        yield steps_of(PrefetchingUnit, training, n, "directions", link=chain, wire=_all_waited_for)


@dataclass
class Started:
    """What a unit gathered that was started, and started again when it was whole."""

    first: Any = fact("gather()[0]")
    again: Any = fact("gather()[0] after another start()")


def _drive_starts(rank: int, world_size: int, unit_class: Any, seed: int) -> Started:
    """One unit that is started twice, gathered, and started again, with a barrier after each."""
    torch.manual_seed(seed)
    unit = unit_class(nn.Linear(3, 2))
    dist.barrier()
    for _ in range(2):
        unit.start()
        dist.barrier()
    whole = unit.gather()[0]
    dist.barrier()
    unit.start()
    again = unit.gather()[0]
    dist.barrier()
    unit.free()
    return Started(as_numpy(whole), as_numpy(again))


def _more_than_one_start(rank: int, parts: list) -> str:
    """In words: that only the first start() may gather."""
    moments = ("the first start()", "the second", "gather()", "a start() of the whole unit")
    counts = [sum(m.call.startswith("all_gather") for m in part) for part in parts[1:5]]
    text = ", ".join(f"{n} at {when}" for n, when in zip(counts, moments, strict=True))
    return "" if counts == [1, 0, 0, 0] else f"on rank {rank}, all-gathers: {text}; expected 1 at the first, then 0"


@check(PREFETCH, points=0.25)
def a_needless_start_sends_nothing(PrefetchingUnit, *, rng):
    """A start() of a unit that is whole or under way sends nothing, and gather() returns what was started."""
    seed = inputs.seed(rng)
    torch.manual_seed(seed)
    whole = close(flat(nn.Linear(3, 2).parameters()))
    expect, args = [Started(whole, whole)] * 2, (PrefetchingUnit, seed)
    yield Case("start() called three times", 2, _drive_starts, args, expect, parts=6, judge=_more_than_one_start)


@check(PREFETCH, points=0.25, fixed=MEMORY)
def one_more_unit_is_whole(PrefetchingUnit, chain):
    """The peak of a step is at most one vector as long as a unit higher; after it nothing whole is left."""
    yield from freed(PrefetchingUnit, ["units", "units of two layers,"], room=6, link=chain)
