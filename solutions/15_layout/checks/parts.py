"""Exercises 6 and 7: the parts of a step's time.

Machines are drawn: their links, the size of a domain, and how many ports it has. `ranks.cluster` gives the time of one
collective; how many there are, of how many bytes, and over which ranks, is counted here.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from autograder.checking.cases import Call, close
from autograder.checking.check import check
from ranks.cluster import Cluster, find
from ranks.model import LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, Model, parameters

COST, PORTS = "15-ex6-cost", "15-ex7-ports"
MODELS = (LLAMA3_8B, LLAMA3_70B, LLAMA3_405B)
RTOL = 1e-9


def _machine(rng: np.random.Generator, name: str = "H100") -> Cluster:
    """A machine whose links are faster or slower by up to a third."""
    machine = find(name)
    return replace(
        machine, nvlink=machine.nvlink * float(rng.uniform(0.7, 1.3)), port=machine.port * float(rng.uniform(0.7, 1.3))
    )


def _layout(rng: np.random.Generator, **given: Any) -> dict[str, Any]:
    drawn = {name: 2 ** int(rng.integers(0, 4)) for name in ("tp", "dp", "pp", "micro", "chunks")}
    return {**drawn, "recompute": False, **given}


def _name(model: Model, machine: Cluster, layout: dict[str, Any]) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in layout.items() if name != "recompute")
    return f"{model.name} on {machine.name}s, {sizes}{', recomputed' * layout['recompute']}"


def _tensor(model: Model, machine: Cluster, layout: dict[str, Any]) -> float:
    """Walks through a layer: its two blocks forward, once more if recomputed, and backward."""
    activations = 2 * layout["micro"] * model.sequence * model.hidden
    passes = ["forward", *["forward again"] * layout["recompute"], "backward"]
    return sum(machine.all_reduce_seconds(activations, layout["tp"]) for _pass in passes for _block in ("mixer", "mlp"))


def _tensor_case(function: Any, rng: np.random.Generator, model: Model, machine: str, layout: dict[str, Any]) -> Call:
    drawn = _machine(rng, machine)
    expected = close(_tensor(model, drawn, layout), RTOL)
    name = _name(model, drawn, layout)
    return Call(function, model, drawn, layout, gives=expected, name=name, what="the number of seconds")


@check(COST, points=1.5)
def a_layer_reduces_two_blocks_both_ways(tensor_seconds, *, rng):
    """Four all-reduces of a micro-batch's activations over tp, inside a domain and over several."""
    for model, machine, tp in itertools.product(MODELS, ("H100", "GB200 NVL72"), (1, 4, 8, 16)):
        yield _tensor_case(tensor_seconds, rng, model, machine, _layout(rng, tp=tp))


@check(COST, points=0.5)
def recomputing_reduces_again(tensor_seconds, *, rng):
    """With recomputation the forward's all-reduces are repeated."""
    for model in MODELS:
        yield _tensor_case(tensor_seconds, rng, model, "H100", _layout(rng, tp=8, recompute=True))


def _bubble(p: int, v: int, micro_batches: int) -> float:
    """Plays the first rank in slots of a chunk: forward and backward of each chunk, and the slots that it waits."""
    busy = sum(2 for _ in range(micro_batches) for _ in range(v))
    idle = sum(2 for _ in range(p - 1))  # the first backward, and the last, come this much later
    return idle / (busy + idle)


@check(COST, points=1)
def a_bubble_is_a_share_of_all_slots(bubble_share, *, rng):
    """A pipeline of p stages with v chunks waits (p - 1)/v micro-batches; its share is of work and waiting together."""
    for p, v in itertools.product((1, 2, int(rng.integers(3, 20))), (1, int(rng.integers(2, 9)))):
        count = int(rng.integers(p, 65))
        expected = close(_bubble(p, v, count), RTOL)
        yield Call(bubble_share, p, v, count, gives=expected, what="the share")


def _data_case(function: Any, rng: np.random.Generator, model: Model, machine: str, layout: dict[str, Any]) -> Call:
    """Each GPU's part of the model, in whole layers' worth, over a group of which every tp-th rank is a member."""
    drawn = _machine(rng, machine)
    held = parameters(model).total / layout["tp"] / layout["pp"]
    group = {"group_size": layout["dp"], "stride": layout["tp"]}
    seconds = drawn.all_gather_seconds(held * 4, **group) + drawn.all_gather_seconds(held * 2, **group)
    name = _name(model, drawn, layout)
    return Call(function, model, drawn, layout, gives=close(seconds, RTOL), name=name, what="the number of seconds")


@check(PORTS, points=1)
def gradients_and_parameters_travel_once(data_seconds, *, rng):
    """Of a rank's part of the model, 4 bytes per parameter are reduced and 2 gathered, inside an NVLink domain."""
    for model, (tp, dp) in itertools.product(MODELS, ((1, 8), (1, 4), (1, 1), (1, 2))):
        yield _data_case(data_seconds, rng, model, "GB200 NVL72", _layout(rng, tp=tp, dp=dp))
    # Neighbors or not, inside a domain links are alike.
    yield _data_case(data_seconds, rng, LLAMA3_70B, "GB200 NVL72", _layout(rng, tp=4, dp=16, pp=1))


@check(PORTS, points=1)
def a_group_has_the_ports_of_its_own_ranks(data_seconds, *, rng):
    """A group's ranks are tp apart, so that a node has 8/tp of them, at least one, and as many ports work for it."""
    for model, tp in itertools.product(MODELS, (1, 2, 4, 8, 16)):
        yield _data_case(data_seconds, rng, model, "H100", _layout(rng, tp=tp, dp=2 ** int(rng.integers(4, 8))))
