"""Exercise 6: units that are gathered while their neighbors compute."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.cases import Case, close, fact
from autograder.checking.check import EVENTS, MEMORY, check
from autograder.checking.expect import ceil_div, count_of_ranks, each_rank, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.backward import expect_freed
from autograder.checks.fsdp.models import MODELS, as_numpy, flat
from autograder.checks.fsdp.steps import Training, steps_of

PREFETCH = "09-ex6-prefetch"
#: The units have different sizes, so that the bytes of an all-gather tell whose it is.
WIDTHS = (3, 8, 5, 9, 4)
UNITS = len(WIDTHS) - 1
STEPS = 2


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
    """A weight of (wide, wide') that marks when it computes. number: its place in the forward."""

    def __init__(self, number: int):
        super().__init__()
        self.number, self.step = number, 0
        self.weight = nn.Parameter(torch.randn(WIDTHS[number : number + 2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Marked.apply(x, self.weight, f"{self.number} in step {self.step}")


def _drive_ahead(rank: int, world_size: int, unit_class: Any, link: Any) -> None:
    """Two steps, and a forward without gradients, between barriers."""
    layers = [_Layer(number) for number in range(UNITS)]
    units = [unit_class(layer) for layer in layers]
    link(units)
    for step in range(STEPS + 1):
        dist.barrier()
        x = torch.randn(2, WIDTHS[0], requires_grad=True)
        with torch.set_grad_enabled(step < STEPS):
            for layer in layers:
                layer.step = step
                x = layer.train(step < STEPS)(x)
        if step < STEPS:
            x.square().sum().backward()
    dist.barrier()


@check(PREFETCH, points=1.5, fixed=EVENTS)
def neighbors_are_gathered_ahead(PrefetchingUnit, chain):
    """While a unit computes, only its neighbor's all-gather is under way; in backward, the neighbor is its `before`."""
    for world_size in (2, 3):
        results = run_ranks(_drive_ahead, world_size, (PrefetchingUnit, chain))
        for step in range(STEPS + 1):
            when = f"step {step}" if step < STEPS else "a forward without gradients"
            case = f"{count_of_ranks(world_size)}, {UNITS} units, {when}"
            seen = [_at_each_moment(results.ledger, rank, step, world_size) for rank in range(world_size)]
            for rank, moments in each_rank(case, seen, evidence=_as_lists):
                for (when, unit), (asked, there) in moments.items():
                    want_asked, want_there = _expected(when, unit)
                    for got, want, done in ((there, want_there, "ended"), (asked, want_asked, "started")):
                        if got != want:
                            text = f"when unit {unit} computed its {when}, rank {rank.rank} had {done} {_gathers(got)}"
                            fail(f"{text}; expected {_gathers(want)}", case, rank.evidence)


def _gathers(units: list[int]) -> str:
    """The all-gathers of these units, in words."""
    if not units:
        return "no all-gather"
    if len(units) == 1:
        return f"the all-gather of unit {units[0]}"
    return f"the all-gathers of units {', '.join(map(str, units))}, in this order"


def _at_each_moment(ledger: Any, rank: int, step: int, world_size: int) -> dict[tuple[str, int], tuple[list, list]]:
    """(forward or backward, unit) → the units whose all-gathers had been started in this step, and were over."""
    sizes = [4 * ceil_div(a * b, world_size) for a, b in pairwise(WIDTHS)]
    gathers = [m for m in ledger.of(rank).between_barriers()[step + 1] if m.call.startswith("all_gather")]
    for message in gathers:
        if message.bytes not in sizes:
            text = f"an all-gather of {message.bytes} bytes on rank {rank} fits none of the units, which need {sizes}"
            fail(text, count_of_ranks(world_size), ["size", message.bytes])
    moments, spans = {}, {span.name: span for span in ledger.spans if span.rank == rank}
    for when, order in (("forward", range(UNITS)), ("backward", reversed(range(UNITS if step < STEPS else 0)))):
        for unit in order:
            now = spans.get(f"{when} {unit} in step {step}")
            if now is None:
                text = f"unit {unit} did not compute its {when} on rank {rank}"
                fail(text, f"{count_of_ranks(world_size)}, step {step}", ["nothing", when, unit])
            asked = [sizes.index(m.bytes) for m in gathers if m.start < now.start]
            there = [sizes.index(m.bytes) for m in gathers if m.end is not None and m.end < now.end]
            moments[when, unit] = asked, there
    return moments


def _as_lists(moments: dict) -> list[list]:
    return [[when, unit, *lists] for (when, unit), lists in moments.items()]


def _expected(when: str, unit: int) -> tuple[list[int], list[int]]:
    """The units that have been started when a unit computes, and those that are there, in order."""
    order = [*range(UNITS), *reversed(range(UNITS))]
    place = unit if when == "forward" else 2 * UNITS - 1 - unit
    ahead = place + 2 if place != UNITS - 1 else place + 1  # the last unit has none after it
    return order[:ahead], order[: place + 1]


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


@check(PREFETCH, points=1)
def prefetching_changes_no_number(PrefetchingUnit, chain, *, rng):
    """Shards and gradients follow one process; a unit has at most two all-gathers; a needless start() sends nothing."""
    models = ("tokens, and an embedding as a unit", *MODELS[3:])
    for n in (3, 1, 2):
        for model in models:
            training = Training(model, "SGD with momentum", inputs.seed(rng))
            yield steps_of(PrefetchingUnit, training, n, bare=True, link=chain)
    seed = inputs.seed(rng)
    torch.manual_seed(seed)
    whole = close(flat(nn.Linear(3, 2).parameters()))
    expect = [Started(whole, whole)] * 2
    args = (PrefetchingUnit, seed)
    yield Case("start() called three times", 2, _drive_starts, args, expect, parts=6, judge=_more_than_one_start)


@check(PREFETCH, points=0.5, fixed=MEMORY)
def one_more_unit_is_whole(PrefetchingUnit, chain):
    """At the peak of a step at most 6 S more than the gradient shards are alive; after it nothing whole is left."""
    expect_freed(PrefetchingUnit, ["units", "units of two layers,"], room=6, link=chain)
