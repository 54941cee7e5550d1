"""A split layer built, forward and backward in the ranks, and compared with the unsplit one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.expect import count_of_ranks, each_rank, fail
from autograder.checking.instruments.memory import reachable
from autograder.checking.stage import run_ranks
from autograder.checks.tensor.compare import (
    WORLD_SIZES,
    as_evidence,
    as_float64,
    expect_calls,
    expect_near,
    own_part,
    stretches,
)

#: Of the largest entry: a few roundings, in another order of addition than the unsplit block's.
BOUNDS = {"float32": 5e-6, "float64": 1e-13}

#: What the unsplit modules are called in a message.
KINDS = {"Linear": "layer", "MLP": "MLP", "Attention": "attention block"}


@dataclass
class Case:
    """One unsplit module, its input, and the gradient of its output.

    x and grad are whole; `cut_x` and `cut_grad` say whether each rank gets only its part of the last dimension.
    forward, backward: the collectives that may be made, kind → numbers put in, without the part for `cut`.
    axes: parameter → the dimension along which the ranks share it, None for whole, "heads" for qkv.
    """

    name: str
    module: nn.Module
    x: torch.Tensor
    grad: torch.Tensor
    axes: dict[str, Any]
    forward: dict[str, int]
    backward: dict[str, int]
    cut_x: bool = False
    cut_grad: bool = False
    needs_grad: bool = True

    @property
    def dtype(self) -> str:
        """torch's name of the numbers' type."""
        return str(self.x.dtype).replace("torch.", "")


@dataclass
class Refused:
    """Arguments that must raise a ValueError that names `mentions`."""

    name: str
    module: nn.Module
    mentions: str


# ---- inside a rank ----


def _parameters(module: nn.Module, names: Any) -> dict[str, torch.Tensor | None]:
    """The parameters of these dotted names."""
    return {name: attrgetter(name)(module) for name in names}


def _drive_layers(rank: int, world_size: int, layer_class: Any, cases: list[Case], wrong: list[Refused]) -> dict:
    """Inside a rank: every case built, forward, backward, each between barriers; then what must be refused."""
    seen = [_run(rank, world_size, layer_class, case) for case in cases]
    return {"seen": seen, "said": [_refusal(layer_class, case) for case in wrong]}


def _part(tensor: torch.Tensor, rank: int, world_size: int, cut: bool) -> torch.Tensor:
    """A copy of a tensor, or of a rank's part of its last dimension."""
    return (tensor.chunk(world_size, dim=-1)[rank] if cut else tensor).clone(memory_format=torch.contiguous_format)


def _run(rank: int, world_size: int, layer_class: Any, case: Case) -> dict:
    """One case built, forward, backward, each between barriers; what came of it."""
    before = [p.detach().clone() for p in case.module.parameters()]
    modules = dict(case.module.named_modules())
    dist.barrier()
    layer = layer_class(case.module)
    parameters = _parameters(layer, case.axes)
    foreign = _foreign_numbers(layer, case.module)
    x, grad = _part(case.x, rank, world_size, case.cut_x), _part(case.grad, rank, world_size, case.cut_grad)
    given = x.clone()
    x.requires_grad_(case.needs_grad)
    dist.barrier()
    y = layer(x)
    dist.barrier()
    loss = (y * grad).sum()
    loss.backward()
    dist.barrier()
    arrays = {"the output": as_float64(y), "the loss": as_float64(loss), "the gradient of x": as_float64(x.grad)}
    for name, p in parameters.items():
        arrays[f"{name}"] = as_float64(p)
        arrays[f"the gradient of {name}"] = as_float64(None if p is None else p.grad)
    observed = {
        "arrays": arrays,
        "x stays": torch.equal(x.detach(), given),
        "kinds": {name: _kind(p, layer) for name, p in parameters.items() if p is not None},
        "numel": sum(p.numel() for p in layer.parameters()),
        "foreign": foreign,
        "held": _held(layer, modules),
        "replaced": [name for name, one in modules.items() if one is not dict(case.module.named_modules()).get(name)],
        "used": [name for name, p in case.module.named_parameters() if p.grad is not None],
    }
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(1)
    old = zip(case.module.named_parameters(), before, strict=True)
    observed["changed"] = [name for (name, p), b in old if p.shape != b.shape or not torch.equal(p.detach(), b)]
    return observed


def _held(layer: nn.Module, unsplit: dict[str, nn.Module]) -> list[str]:
    """The names of those of the unsplit module's modules that are among a layer's; "" is the unsplit module itself."""
    own = set(map(id, layer.modules()))
    return [name for name, module in unsplit.items() if id(module) in own]


def _kind(p: Any, layer: nn.Module) -> str:
    """What is wrong with a parameter, or ""."""
    if not isinstance(p, nn.Parameter):
        return f"is a {type(p).__name__}, not an nn.Parameter"
    if not p.requires_grad:
        return "does not require a gradient"
    return "" if any(p is q for q in layer.parameters()) else "is not among the module's parameters()"


def _foreign_numbers(layer: nn.Module, unsplit: nn.Module) -> int:
    """How many numbers of other ranks' pieces are in memory that can be reached from a module.

    The unsplit module's numbers are drawn at random, so they can be recognized.
    """
    own, whole = (np.concatenate([as_float64(p).reshape(-1) for p in m.parameters()]) for m in (layer, unsplit))
    others, found = np.setdiff1d(whole, own), {}
    for t in filter(torch.is_floating_point, reachable(layer)):
        found[t.untyped_storage().data_ptr()] = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
    return sum(int(np.isin(as_float64(memory), others).sum()) for memory in found.values())


def _refusal(layer_class: Any, case: Refused) -> str:
    """What a layer did instead of raising the ValueError, or ""."""
    try:
        layer_class(case.module)
    except ValueError as error:
        return "" if case.mentions in str(error) else f"raised a ValueError that does not name {case.mentions}"
    except NotImplementedError:
        raise
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return "raised nothing"


# ---- the comparison ----


def _oracle(case: Case) -> dict[str, Any]:
    """Output, loss and gradients of the unsplit module, whole."""
    module, x = case.module, case.x.clone().requires_grad_()
    y = module.unsplit(x) if hasattr(module, "unsplit") else module(x)
    named = {name: p for name, p in _parameters(module, case.axes).items() if p is not None}
    loss = (y * case.grad).sum()
    gradients = torch.autograd.grad(loss, [x, *named.values()])
    whole = {"the output": y, "the loss": loss, "the gradient of x": gradients[0]}
    for (name, p), gradient in zip(named.items(), gradients[1:], strict=True):
        whole |= {name: p, f"the gradient of {name}": gradient}
    return {what: as_float64(t) for what, t in whole.items()}


def _piece(array: np.ndarray, axis: Any, rank: int, world_size: int) -> np.ndarray:
    """This rank's piece of a whole parameter or of its gradient."""
    if axis is None:
        return array
    if axis == "heads":
        return np.concatenate([own_part(third, rank, world_size, 0) for third in np.split(array, 3)])
    return own_part(array, rank, world_size, axis)


def try_layers(layer_class: Any, make: Callable[[int], tuple[list[Case], list[Refused]]]) -> None:
    """Run and judge the cases that `make` gives for each world size, and those that must be refused."""
    for world_size in WORLD_SIZES:
        cases, wrong = make(world_size)
        results = run_ranks(_drive_layers, world_size, (layer_class, cases, wrong))
        calls = stretches(results, world_size, len(cases), 4)
        for number, case in enumerate(cases):
            _judge(case, [mine["seen"][number] for mine in results], calls, number)
        for number, case in enumerate(wrong):
            said = [mine["said"][number] for mine in results]
            if any(said):
                rank = next(rank for rank in range(world_size) if said[rank])
                text = f"rank {rank} {said[rank]}, expected a ValueError that names {case.mentions}"
                fail(text, case.name, said)


def _judge(case: Case, seen: list[dict], calls: list, number: int) -> None:
    """One case: the pieces, the numbers, what is held, what was sent."""
    world_size, whole, bound = len(seen), _oracle(case), BOUNDS[case.dtype]
    name = f"{count_of_ranks(world_size)}, {case.name}, {case.dtype}"

    def compare(what: str, axis: Any, bound: float, scale: float = -1.0) -> None:
        got = [mine["arrays"][what] for mine in seen]
        for rank in range(world_size):
            expect_near(
                name, f"{what} on rank {rank}", got, rank, _piece(whole[what], axis, rank, world_size), bound, scale
            )

    for parameter, axis in case.axes.items():
        if parameter not in whole:
            got = [mine["arrays"][parameter] for mine in seen]
            if any(array is not None for array in got):
                fail(f"{parameter} should be None: the unsplit layer has none", name, as_evidence(got))
            continue
        compare(parameter, axis, 0.0)
        for rank, mine in enumerate(seen):
            if mine["kinds"][parameter]:
                text = f"{parameter} on rank {rank} {mine['kinds'][parameter]}"
                fail(text, name, [other["kinds"] for other in seen])
    compare("the output", -1 if case.cut_grad else None, bound, float(np.max(np.abs(whole["the output"]))))
    if not case.cut_grad:
        compare("the loss", None, bound, float(np.sum(np.abs(whole["the output"] * as_float64(case.grad)))))
    if case.needs_grad:
        compare("the gradient of x", -1 if case.cut_x else None, bound, float(np.abs(whole["the gradient of x"]).max()))
    for parameter, axis in case.axes.items():
        if parameter in whole:
            gradient = f"the gradient of {parameter}"
            compare(gradient, axis, bound, float(np.max(np.abs(whole[gradient]))))
    _judge_what_is_held(case, seen, name, whole)
    directions = (("while it is built", {}), ("in forward", case.forward), ("in backward", case.backward))
    for part, (when, allowed) in enumerate(directions):
        expect_calls(name, when, calls, number, part, allowed, case.dtype)


def _judge_what_is_held(case: Case, seen: list[dict], name: str, whole: dict[str, np.ndarray]) -> None:
    """x and the unsplit module stay as they were; a rank has its own pieces and no other."""
    for rank, mine in each_rank(name, seen, evidence=lambda s: s["numel"]):
        if not mine["x stays"]:
            rank.fail("x was changed in place", "x was changed")
        kind = KINDS[type(case.module).__name__]
        if mine["replaced"]:
            text = f"the given {kind} has another {mine['replaced'][0]} than before: leave the caller's block as it is"
            rank.fail(text, ["replaced", *mine["replaced"]])
        if mine["held"]:
            text = f"the module still holds the unsplit {mine['held'][0] or kind}: it must hold its own pieces alone"
            rank.fail(text, ["held", *mine["held"]])
        for what, names in (("changed with the module's", mine["changed"]), ("got a gradient", mine["used"])):
            if names:
                text = f"the given {kind}'s {' and '.join(names)} {what}: the pieces must be copies, used in its place"
                rank.fail(text, ["unsplit", mine["changed"], mine["used"]])
        pieces = [_piece(whole[p], axis, rank.rank, len(seen)) for p, axis in case.axes.items() if p in whole]
        numel = sum(piece.size for piece in pieces)
        rank.expect_equal(mine["numel"], numel, what="the number of numbers in parameters()")
        if mine["foreign"]:
            text = f"the layer holds {mine['foreign']} numbers of other ranks' pieces, behind a view or in a copy"
            rank.fail(text, [other["foreign"] for other in seen])


# ---- inputs ----


FLOAT32, FLOAT64 = torch.float32, torch.float64


def draw(rng: np.random.Generator, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers."""
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def fill(rng: np.random.Generator, module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Fresh numbers for every parameter, small enough that no output saturates."""
    module.to(dtype)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(draw(rng, *p.shape, dtype=dtype) / (math.sqrt(p.shape[-1]) if p.dim() > 1 else 1))
    return module
