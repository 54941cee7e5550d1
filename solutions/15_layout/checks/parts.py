"""Exercises 6 and 7: the parts of a step's time.

Machines are drawn: their links, the size of a domain, and how many ports it has. `machines.cluster` gives the time of
one collective; how many there are, of how many bytes, and over which ranks, is counted here.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from autograder.checks.cases import Call, close
from autograder.checks.check import check
from machines.cluster import Cluster, find
from machines.model import LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, Model, parameters

COST, PORTS = "15-ex6-cost", "15-ex7-ports"
MODELS = (LLAMA3_8B, LLAMA3_70B, LLAMA3_405B)
RTOL = 1e-9
H100 = find("H100")


def _machine(rng: np.random.Generator, name: str = "H100") -> Cluster:
    """A machine whose links are faster or slower by up to a third."""
    machine = find(name)
    return replace(
        machine, nvlink=machine.nvlink * float(rng.uniform(0.7, 1.3)), port=machine.port * float(rng.uniform(0.7, 1.3))
    )


def _layout(rng: np.random.Generator, **given: Any) -> dict[str, Any]:
    drawn = {name: 2 ** int(rng.integers(0, 4)) for name in ("tp", "dp", "pp", "chunks")}
    return {**drawn, "micro": 1, "recompute": False, **given}


def _name(model: Model, machine: Cluster, layout: dict[str, Any]) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in layout.items() if name != "recompute")
    return f"{model.name} on {machine.name}s, {sizes}{', recomputed' * layout['recompute']}"


def _tensor(model: Model, machine: Cluster, layout: dict[str, Any]) -> float:
    """Walks through a layer: its two blocks, forward and backward."""
    activations = 2 * layout["micro"] * model.sequence * model.hidden
    passes = ("forward", "backward")
    return sum(machine.all_reduce_seconds(activations, layout["tp"]) for _pass in passes for _block in ("mixer", "mlp"))


@check(COST, points=1)
def a_layer_reduces_two_blocks_both_ways(tensor_seconds, *, rng):
    """Four all-reduces of a sequence's activations over tp, inside a domain and over several."""
    for model, name, tp in itertools.product(MODELS, ("H100", "GB200 NVL72"), (1, 4, 8, 16)):
        machine, layout = _machine(rng, name), _layout(rng, tp=tp)
        expected = close(_tensor(model, machine, layout), RTOL)
        case = _name(model, machine, layout)
        yield Call(tensor_seconds, model, machine, layout, gives=expected, name=case, what="the number of seconds")


def _values(function: Any, *calls: tuple) -> list[float]:
    return [float(function(*call)) for call in calls]


def _ratio(found: list[float], *_: Any) -> float:
    """The second value divided by the first; 0 if that is no positive number."""
    return found[1] / found[0] if found[0] > 0 else 0.0


@check(COST, points=0.25)
def a_micro_batch_may_have_several_sequences(tensor_seconds, *, rng):
    """A micro-batch of several sequences takes as long as one sequence that is as long as all of them."""
    for model, micro in itertools.product(MODELS, (2, int(rng.integers(3, 9)))):
        machine = _machine(rng)
        calls = [(model, machine, _layout(rng, tp=4, micro=count)) for count in (1, micro)]
        name = f"{model.name} on {machine.name}s, tp 4: {micro} sequences against one"
        how = {"name": name, "what": "whether the messages take longer"}
        yield Call(_values, tensor_seconds, *calls, sees=lambda found, *_: _ratio(found) > 1, gives=True, **how)


@check(COST, points=0.5)
def recomputing_reduces_again(tensor_seconds, *, rng):
    """With recomputation the forward's two all-reduces are repeated."""
    for model in MODELS:
        machine, layout = _machine(rng), _layout(rng, tp=8)
        calls = [(model, machine, {**layout, "recompute": recompute}) for recompute in (False, True)]
        sees = functools.partial(_repeated, _tensor(model, machine, layout) / 2)
        how = {"name": f"{_name(*calls[1])}, against none", "what": "whether two more are counted"}
        yield Call(_values, tensor_seconds, *calls, sees=sees, gives=True, **how)


def _repeated(twice: float, found: list[float], *_: Any) -> bool:
    """Are there half as many again, or two all-reduces more, whatever the answer counts without recomputation?"""
    one, two = found
    return bool(one > 0 and (abs(two / one - 1.5) < RTOL or abs(two - one - twice) < 1e-6 * twice))


def _bubble(p: int, micro_batches: int) -> float:
    """Plays the first rank in slots: forward and backward of each micro-batch, and the slots that it waits."""
    busy = sum(2 for _ in range(micro_batches))
    idle = sum(2 for _ in range(p - 1))  # the first backward, and the last, come this much later
    return idle / (busy + idle)


@check(COST, points=0.75)
def a_bubble_is_a_share_of_all_slots(bubble_share, *, rng):
    """A pipeline of p stages waits p - 1 micro-batches; its share is of work and waiting together."""
    for p in (1, 2, 4, int(rng.integers(5, 20))):
        count = int(rng.integers(p, 65))
        expected = close(_bubble(p, count), RTOL)
        yield Call(bubble_share, p, 1, count, gives=expected, what="the share")


@check(COST, points=0.5)
def chunks_shorten_the_bubble(bubble_share, *, rng):
    """With v chunks a rank waits a v-th as long: as if it had v times the micro-batches."""
    for p, v in itertools.product((2, int(rng.integers(3, 20))), (2, int(rng.integers(3, 9)))):
        count = int(rng.integers(p, 65))
        calls = (p, 1, v * count), (p, v, count)
        how = {
            "name": f"{p} stages, {v} chunks, {count} micro-batches, against one chunk and {v * count}",
            "what": "the ratio of the shares",
        }
        yield Call(_values, bubble_share, *calls, sees=_ratio, gives=close(1.0, RTOL), **how)
        calls = (p, 1, count), (p, v, count)
        how = {
            "name": f"{p} stages, {count} micro-batches, one chunk against {v}",
            "what": "whether the bubble gets shorter",
        }
        yield Call(_values, bubble_share, *calls, sees=lambda found, *_: found[1] < found[0], gives=True, **how)


# ---- 7 · data_seconds ----


def _probed(function: Any, model: Model, machine: Cluster, *calls: tuple) -> list[float]:
    """Seconds where a collective takes a second per GB. calls: (layout, gather, by_group).

    gather: how many times as long a gather takes. by_group: a collective also takes as many times longer as a made-up
    function of the group says.
    """

    def seconds(layout: dict[str, Any], gather: float, by_group: bool) -> float:
        class Probe(Cluster):
            def reduce_scatter_seconds(self, nbytes, group_size, stride=1):
                return nbytes / 1e9 * (group_size + 100 * stride if by_group else 1.0)

            def all_gather_seconds(self, nbytes, group_size, stride=1):
                return gather * self.reduce_scatter_seconds(nbytes, group_size, stride)

        return float(function(model, Probe(**vars(machine)), layout))

    return [seconds(*call) for call in calls]


@check(PORTS, points=0.75)
def a_group_has_the_ports_of_its_own_ranks(data_seconds, *, rng):
    """A collective runs over dp ranks that are tp apart, whatever it carries."""
    for model in MODELS:
        for tp, dp, pp in ((1, 4, 1), (8, 4, 2), (2, 16, 1), (4, 64, 4)):
            layout = _layout(rng, tp=tp, dp=dp, pp=pp)
            calls = [(layout, 1.0, by_group) for by_group in (False, True)]
            how = {"name": _name(model, H100, layout), "what": "the weight of the collectives' groups"}
            yield Call(_probed, data_seconds, model, H100, *calls, sees=_ratio, gives=close(dp + 100 * tp, RTOL), **how)


@check(PORTS, points=0.5)
def a_rank_has_a_part_of_the_model(data_seconds, *, rng):
    """A rank reduces and gathers one part of tp · pp of the model."""
    for model in MODELS:
        sizes = [(1, 1), (2, 1), (1, 4), (int(rng.integers(2, 9)), int(rng.integers(2, 9)))]
        calls = [(_layout(rng, tp=tp, dp=8, pp=pp), 1.0, False) for tp, pp in sizes]
        expected = [close(1 / (tp * pp), RTOL) for tp, pp in sizes[1:]]
        name = f"{model.name}, tp and pp {', '.join(f'{tp} and {pp}' for tp, pp in sizes[1:])}, against 1 and 1"
        how = {"name": name, "what": "the part {} of the seconds"}
        yield Call(_probed, data_seconds, model, H100, *calls, sees=_quotients, gives=expected, **how)


def _quotients(found: list[float], *_: Any) -> list[float]:
    return [_ratio([found[0], other]) for other in found[1:]]


@check(PORTS, points=0.75)
def gradients_and_parameters_travel_once(data_seconds, *, rng):
    """Per parameter 4 bytes are reduced and 2 gathered."""
    for model in MODELS:
        gather, layout, machine = float(rng.uniform(0.2, 5)), _layout(rng, tp=1, dp=8, pp=1), _machine(rng)
        held = parameters(model).total
        name = f"{model.name}, dp 8, where a gather takes {gather:.2f} times as long as a reduction"
        how = {"gives": close(held / 1e9 * (4 + 2 * gather), RTOL), "name": name, "what": "the number of seconds"}
        yield Call(_probed, data_seconds, model, H100, (layout, gather, False), sees=lambda found, *_: found[0], **how)
        seconds = machine.reduce_scatter_seconds(4 * held, 8, 1) + machine.all_gather_seconds(2 * held, 8, 1)
        how = {"name": _name(model, machine, layout), "what": "the number of seconds"}
        yield Call(data_seconds, model, machine, layout, gives=close(seconds, RTOL), **how)
