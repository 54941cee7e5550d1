"""Exercise 2: a sharded unit and its forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import ceil_div, count_of_ranks, expect_close, expect_equal, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.cut import expect_gathers
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


def _drive_unit(rank: int, world_size: int, unit_class: Any, cases: list[_UnitCase]) -> list[dict]:
    observed = []
    for case in cases:
        module, inputs = case.unit(), case.inputs()
        buffers = [b.clone() for b in module.buffers()]
        dtypes = [b.dtype for b in module.buffers()]
        dist.barrier()
        unit = unit_class(module, *([getattr(torch, case.dtype)] if case.dtype != "float32" else []))
        left, shards = len(list(module.parameters())), [unit.shard, unit.frozen_shard]
        kinds = [
            f"{type(s).__name__} {str(s.dtype)[6:]}{', requires a gradient' if s.requires_grad else ''}" for s in shards
        ]
        kept = dtypes == [b.dtype for b in module.buffers()]
        kept = kept and all(torch.equal(a, b) for a, b in zip(buffers, module.buffers(), strict=True))
        before = unit.whole
        dist.barrier()
        with torch.no_grad():
            output = module(*inputs)
        after, left_after = unit.whole, len(list(module.parameters()))
        dist.barrier()
        flats = unit.gather()
        again = unit.gather()
        same = len(flats) == 2 and all(a is b for a, b in zip(flats, again, strict=True))
        wholes, dtype = [as_numpy(f) for f in flats], {str(f.dtype)[6:] for f in flats}
        remembered = unit.whole is not None
        unit.free()
        dist.barrier()
        with torch.no_grad():
            second = module(*inputs)
        dist.barrier()
        observed.append(
            {
                "shards": [as_numpy(s) for s in shards],
                "kinds": kinds,
                "left": [left, left_after],
                "whole": [before is None, after is None, remembered, unit.whole is None],
                "outputs": [as_numpy(output), as_numpy(second)],
                "output dtype": str(output.dtype)[6:],
                "flats": wholes,
                "dtype": sorted(dtype),
                "same": same,
                "seen": getattr(module, "seen", []),
                "buffers": kept and dtypes == [b.dtype for b in module.buffers()],
            }
        )
    return observed


@check("09-ex2-unit")
def unit_computes_what_it_did(ShardedUnit, *, rng):  # noqa: N803
    """A unit keeps its shards, computes what it did, sends its shards once, and holds nothing whole afterwards."""
    for world_size in (3, 1, 5):
        cases = _unit_cases(rng)[: 3 if world_size == 5 else None]
        results = run_ranks(_drive_unit, world_size, (ShardedUnit, cases))
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for number, unit_case in enumerate(cases):
            case = f"{count_of_ranks(world_size)}, {unit_case.name}, {unit_case.dtype}"
            for rank in range(world_size):
                # Five barriers a case: what comes after each of the first four.
                parts = calls[rank][1 + 5 * number : 5 + 5 * number]
                sent = [[(m.call, m.bytes) for m in part if m.bytes] for part in parts]
                _expect_unit(case, unit_case, rank, world_size, results[rank][number], sent)


def _expect_unit(case: str, unit_case: _UnitCase, rank: int, world_size: int, got: dict, sent: list) -> None:
    module = unit_case.unit()
    vectors = [flat(group) for group in groups(module.parameters())]
    sizes = [ceil_div(len(v), world_size) for v in vectors]
    for name, shard, vector, size in zip(("shard", "frozen_shard"), got["shards"], vectors, sizes, strict=True):
        want = padded(vector, world_size)[rank * size : (rank + 1) * size]
        expect_close(case, shard, want, what=f"{name} on rank {rank}", rtol=0.0)
    if got["kinds"][0] != "Parameter float32, requires a gradient":
        text = f"shard is a {got['kinds'][0]}, expected a float32 nn.Parameter that requires a gradient"
        fail(text, case, got["kinds"])
    if got["kinds"][1] not in ("Tensor float32", "Parameter float32"):
        text = f"frozen_shard is a {got['kinds'][1]}, expected a float32 tensor that requires no gradient"
        fail(text, case, got["kinds"])
    if any(got["left"]):
        when = "the unit was made" if got["left"][0] else "its forward"
        fail(f"after {when} the module still has {max(got['left'])} parameters", case, got["left"])
    if sent[0]:
        fail(f"the construction sent a message on rank {rank}", case, sent[0])
    if unit_case.dtype == "bfloat16":
        for p in module.parameters():
            p.data = p.data.bfloat16()
    if not got["buffers"]:
        fail("the unit's buffers are no longer what they were, or have another dtype", case, "buffers")
    with torch.no_grad():
        for index in range(2):
            want = module(*unit_case.inputs())
            seen = getattr(module, "seen", [])
            expect_equal(case, got["seen"], seen, what="the list of the dtypes that reach the unit")
            what = f"the output of forward {index + 1} on rank {rank}"
            expect_close(case, got["outputs"][index], as_numpy(want), what=what, rtol=ERROR)
    expect_equal(case, got["output dtype"], str(want.dtype)[6:], what="the output's dtype")
    for index, vector in enumerate(vectors):
        want = torch.tensor(vector).to(getattr(torch, unit_case.dtype)).float().numpy()
        expect_close(case, got["flats"][index], want, what=f"gather()[{index}]", rtol=0.0)
    expect_equal(case, got["dtype"], [unit_case.dtype], what="the list of the dtypes that gather() returned")
    limit = sum(sizes) * (2 if unit_case.dtype == "bfloat16" else 4)
    for part in sent[1:]:
        expect_gathers(case, rank, part, [limit], world_size)
    if not got["same"]:
        fail("a second gather() without a free() in between returned other tensors", case, "gathered again")
    states = dict(zip(("before", "after its forward", "", "after free()"), got["whole"], strict=True))
    for when in ("before", "after its forward", "after free()"):
        if not states[when]:
            fail(f"whole should be None {when}", case, ["whole", when])
    if not got["whole"][2]:
        fail("gather() should keep what it gathered in whole", case, ["whole", "gather"])


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


@check("09-ex2-unit")
def unit_is_freed_after_its_forward(ShardedUnit, *, rng):  # noqa: N803
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
