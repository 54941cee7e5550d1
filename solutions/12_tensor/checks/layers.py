"""Exercises 3 to 5: split layers, forward and backward in the ranks, beside the unsplit ones in one process."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import ANYTHING, Case, at_most, close, evidence, fact
from autograder.checks.check import check
from autograder.checks.expect import same

WORLD_SIZES = (2, 4, 1)
#: Of the largest entry: roundings of float32, in another order of addition than the unsplit block's.
RTOL = 3e-5
KEEP = "they are the caller's: work on copies"


@dataclass
class Run:
    """What a rank has after a pass forward and backward through a layer."""

    output: Any = fact("the output")
    x_gradient: Any = fact("the gradient of x")
    gradients: Any = fact("the gradient of {}")
    parameters: Any = fact(
        "the number of elements that parameters() hold in memory",
        "the layer has copies of its own pieces and nothing else: a view would keep the whole tensor",
    )
    added: Any = fact(
        "the gradient of {} after sum_partial_gradients(), minus the sum of the ranks' partial gradients,"
    )
    terms: Any = evidence()


def _run(
    rank: int, world_size: int, layer_class: Any, module: nn.Module, xs: list, grads: list, names: list, how: str
) -> Run:
    """names: of the parameters whose gradients are wanted. how: what is special about the pass."""
    layer = layer_class(module)
    x = torch.tensor(xs[rank], requires_grad=how != "x without a gradient")
    y = layer(x)
    y.backward(torch.tensor(grads[rank]))
    terms = {name: attrgetter(name)(layer).grad.clone() for name in names} if how == "terms" else {}
    if terms:
        layer.sum_partial_gradients()
    stored = [(p.untyped_storage(), p.element_size()) for p in layer.parameters()]
    held = {storage.data_ptr(): storage.nbytes() // size for storage, size in stored}
    found = {name: attrgetter(name)(layer).grad for name in names}
    gradients = {name: None if g is None else g.clone() for name, g in found.items()}
    return Run(y.detach(), x.grad, gradients, sum(held.values()), added={}, terms=terms)


@dataclass
class Kept:
    """Whether a layer left what it was given, though it was trained."""

    changed: Any = fact("the list of what changed in the arguments", KEEP, seen=lambda names: names[:1])
    reached: Any = fact("the number of elements of the layer's parameters whose gradient is not 0")


def _given(rank: int, world_size: int, layer_class: Any, module: nn.Module, xs: list, grads: list, *_how: Any) -> Kept:
    x = torch.tensor(xs[rank], requires_grad=True)
    before = copy.deepcopy(_state(module, x))
    layer = layer_class(module)
    layer(x).backward(torch.tensor(grads[rank]))
    after = _state(module, x)
    changed = [name for name, value in before.items() if not same(value, after.get(name))]
    return Kept(changed, sum(int(p.grad.count_nonzero()) for p in layer.parameters() if p.grad is not None))


def _state(module: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """By name: x, and the tensors and sizes of a module."""
    inside = {f"{name}." if name else "": one for name, one in module.named_modules()}
    sizes = {pre + key: size for pre, one in inside.items() for key, size in vars(one).items() if type(size) is int}
    return {"x": x.detach(), **module.state_dict(), **sizes}


def _kept(case: Case) -> Case:
    """The case, but it asks whether the layer leaves what it was given."""
    case.run, case.expect = _given, [Kept([], at_most(math.inf, least=1))] * case.ranks
    return case


def filled(rng: np.random.Generator, module: nn.Module) -> nn.Module:
    """A module with drawn parameters, small enough that no activation saturates."""
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.from_numpy(rng.standard_normal(p.shape)) / (p.shape[-1] ** 0.5 if p.dim() > 1 else 1))
    return module


def unsplit(module: nn.Module, forward: Callable, x: np.ndarray, grad: np.ndarray) -> tuple:
    """Output, gradient of x and gradients of the parameters by name, of forward(module, x) in float64."""
    exact, given = copy.deepcopy(module).double(), torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = forward(exact, given)
    y.backward(torch.tensor(grad, dtype=torch.float64))
    return y.detach().numpy(), given.grad.numpy(), {name: p.grad.numpy() for name, p in exact.named_parameters()}


def _near(whole: np.ndarray, pieces: list[np.ndarray]) -> list[close]:
    """Expectations of pieces of an array, each up to roundings of the whole."""
    return [close(piece, atol=RTOL * float(np.abs(whole).max())) for piece in pieces]


def cut(array: np.ndarray, n: int, axis: int | None) -> list[np.ndarray]:
    """The ranks' parts of an array, or all of it for each."""
    return [array] * n if axis is None else np.split(array, n, axis)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers, float32."""
    return rng.standard_normal(shape).astype(np.float32)


def pieces(found: dict[str, np.ndarray], n: int, axes: dict[str, Any]) -> list[dict[str, close]]:
    """Each rank's gradients; axes: parameter → where it is cut, None for whole, or a list of all ranks' rows."""

    def of_ranks(whole: np.ndarray, axis: Any) -> list[close]:
        return _near(whole, [whole[rows] for rows in axis] if isinstance(axis, list) else cut(whole, n, axis))

    of_all = {name: of_ranks(found[name], axis) for name, axis in axes.items()}
    return [{name: of_rank[rank] for name, of_rank in of_all.items()} for rank in range(n)]


# ---- linear layers ----


def _linear_case(
    rng: np.random.Generator, n: int, layer_class: Any, by: str, bias: bool, how: str = "", judged: str = "values"
) -> Case:
    """by: what is cut. judged: values, output, bias (alone: x is 0), parameters, or sends."""
    rows, columns = (int(rng.integers(2, 5)) * (n if by == which else 1) for which in ("outputs", "inputs"))
    linear = filled(rng, nn.Linear(columns, rows, bias=bias))
    lead = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    x, grad = normal(rng, *lead, columns) * (judged != "bias"), normal(rng, *lead, rows)
    y, x_grad, found = unsplit(linear, lambda module, x: module(x), x, grad)
    axes = {"weight": 0 if by == "outputs" else 1} | ({"bias": 0 if by == "outputs" else None} if bias else {})
    axes = {"bias": axes["bias"]} if judged == "bias" else axes
    cut_y, cut_x = (-1, None) if by == "outputs" else (None, -1)
    outputs, x_grads = _near(y, cut(y, n, cut_y)), _near(x_grad, cut(x_grad, n, cut_x))
    gradients = pieces(found, n, axes)
    own = linear.weight.numel() // n + (0 if not bias else rows // n if by == "outputs" else rows)
    runs = {
        "values": [Run(*facts) for facts in zip(outputs, x_grads, gradients, strict=True)],
        "output": [Run(output) for output in outputs],
        "bias": [Run(output, ANYTHING, found) for output, found in zip(outputs, gradients, strict=True)],
        "parameters": [Run(parameters=own)] * n,
        "sends": [Run()] * n,
    }
    size = x.size if by == "outputs" else y.size
    sent = [] if how else [("all_reduce", 4 * size)]
    name = "ColumnParallelLinear" if by == "outputs" else "RowParallelLinear"
    return Case(
        f"{name} of Linear({columns}, {rows}) {'with' if bias else 'without'} bias, x {x.shape}{how and ', ' + how}",
        n,
        _run,
        (layer_class, linear, cut(x, n, cut_x), cut(grad, n, cut_y), list(axes), how),
        runs[judged],
        sends=sent if judged == "sends" else None,
    )


@check("12-ex3-linear", points=1.25)
def column_layer_equals_the_unsplit_one(ColumnParallelLinear, *, rng):
    """ColumnParallelLinear with bias: outputs and all gradients are the unsplit layer's."""
    for n in WORLD_SIZES:
        yield _linear_case(rng, n, ColumnParallelLinear, "outputs", bias=True)


@check("12-ex3-linear", points=0.25)
def column_layer_needs_no_bias(ColumnParallelLinear, *, rng):
    """ColumnParallelLinear without bias: outputs are the unsplit layer's."""
    for n in WORLD_SIZES:
        yield _linear_case(rng, n, ColumnParallelLinear, "outputs", bias=False, judged="output")


@check("12-ex3-linear", points=0.25)
def column_layer_has_its_rows_alone(ColumnParallelLinear, *, rng):
    """ColumnParallelLinear's parameters hold as many elements as its rows of weight and bias have, and no more."""
    yield _linear_case(rng, 2, ColumnParallelLinear, "outputs", bias=True, judged="parameters")


@check("12-ex3-linear", points=0.25)
def column_layer_sends_what_it_must(ColumnParallelLinear, *, rng):
    """Backward, ColumnParallelLinear sends one all-reduce as large as x if x needs a gradient; forward, nothing."""
    for n in (2, 3):
        for how in ("", "x without a gradient"):
            yield _linear_case(rng, n, ColumnParallelLinear, "outputs", bias=True, how=how, judged="sends")


@check("12-ex3-linear", points=1.5)
def row_layer_equals_the_unsplit_one(RowParallelLinear, *, rng):
    """RowParallelLinear without bias: outputs and gradients are the unsplit layer's."""
    for n in WORLD_SIZES:
        yield _linear_case(rng, n, RowParallelLinear, "inputs", bias=False)


@check("12-ex3-linear", points=0.75)
def row_layer_adds_its_bias_once(RowParallelLinear, *, rng):
    """RowParallelLinear adds its bias once, which has its whole gradient on every rank (tried with x = 0)."""
    for n in WORLD_SIZES:
        yield _linear_case(rng, n, RowParallelLinear, "inputs", bias=True, judged="bias")


@check("12-ex3-linear", points=0.25)
def row_layer_has_its_columns_alone(RowParallelLinear, *, rng):
    """RowParallelLinear's parameters hold as many elements as its columns of the weight and the bias, and no more."""
    yield _linear_case(rng, 2, RowParallelLinear, "inputs", bias=True, judged="parameters")


@check("12-ex3-linear", points=0.25)
def row_layer_sends_one_all_reduce(RowParallelLinear, *, rng):
    """Forward, RowParallelLinear sends one all-reduce as large as the output; backward, nothing."""
    for n in (2, 3):
        yield _linear_case(rng, n, RowParallelLinear, "inputs", bias=False, judged="sends")


@check("12-ex3-linear", points=0.25)
def linear_layers_leave_their_arguments(ColumnParallelLinear, RowParallelLinear, *, rng):
    """Both leave the linear layer that they are given, and x, as they were."""
    for layer_class, by in ((ColumnParallelLinear, "outputs"), (RowParallelLinear, "inputs")):
        for n in (2, 3):
            yield _kept(_linear_case(rng, n, layer_class, by, bias=True))


# ---- the MLP ----


def _mlp(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gate = module.gate(x)
    return module.down(gate * torch.sigmoid(gate) * module.up(x))


def _mlp_case(rng: np.random.Generator, n: int, layer_class: Any, judged: str) -> Case:
    """judged: weights (output and the weights' gradients), x (its gradient), or sends."""
    width, hidden = int(rng.integers(2, 6)), n * int(rng.integers(2, 5))
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    mlp = filled(rng, nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()}))
    lead = (int(rng.integers(2, 5)), int(rng.integers(1, 4)))
    x, grad = normal(rng, *lead, width), normal(rng, *lead, width)
    y, x_grad, found = unsplit(mlp, _mlp, x, grad)
    axes = {"gate.weight": 0, "up.weight": 0, "down.weight": 1}
    runs = {
        "weights": [Run(*_near(y, [y]), gradients=own) for own in pieces(found, n, axes)],
        "x": [Run(x_gradient=_near(x_grad, [x_grad])[0])] * n,
        "sends": [Run()] * n,
    }
    return Case(
        f"C = {width}, F = {hidden}, x {x.shape}",
        n,
        _run,
        (layer_class, mlp, [x] * n, [grad] * n, list(axes), ""),
        runs[judged],
        sends=[("all_reduce", 4 * x.size)] * 2 if judged == "sends" else None,
    )


@check("12-ex4-mlp", points=0.75)
def mlp_equals_the_unsplit_one(ParallelMLP, *, rng):
    """Output and the gradients of the weights are the unsplit MLP's."""
    for n in WORLD_SIZES:
        yield _mlp_case(rng, n, ParallelMLP, "weights")


@check("12-ex4-mlp", points=0.5)
def mlp_gives_x_its_whole_gradient(ParallelMLP, *, rng):
    """The gradient of x is the unsplit MLP's, on every rank."""
    for n in WORLD_SIZES:
        yield _mlp_case(rng, n, ParallelMLP, "x")


@check("12-ex4-mlp", points=0.5)
def mlp_enters_and_leaves_once(ParallelMLP, *, rng):
    """Forward sends one all-reduce as large as x, and backward one."""
    for n in (2, 3):
        yield _mlp_case(rng, n, ParallelMLP, "sends")


@check("12-ex4-mlp", points=0.25)
def mlp_leaves_its_arguments(ParallelMLP, *, rng):
    """It leaves the MLP that it is given, and x, as they were."""
    for n in (2, 3):
        yield _kept(_mlp_case(rng, n, ParallelMLP, "x"))


# ---- attention ----


def _attention(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Head by head; x (T, B, C)."""
    size, share, mixed = module.size, module.heads // module.kv_heads, []
    later = torch.ones(len(x), len(x)).triu(1) > 0
    q, k, v = (one(x).transpose(0, 1).split(size, -1) for one in (module.q, module.k, module.v))
    for head, query in enumerate(q):
        scores = query @ k[head // share].mT / size**0.5
        mixed.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v[head // share])
    return module.proj(torch.cat(mixed, -1).transpose(0, 1))


def _attention_case(
    rng: np.random.Generator, n: int, layer_class: Any, heads: int, kv_heads: int, judged: str = "values"
) -> Case:
    """judged: values, output (both without bias), bias (x is 0), terms (after sum_partial_gradients()), or sends."""
    size, positions, batch = 2 * int(rng.integers(1, 3)), n * int(rng.integers(2, 4)), int(rng.integers(1, 4))
    width = heads * size
    shapes = {"q": width, "k": kv_heads * size, "v": kv_heads * size, "proj": width}
    linears = {name: nn.Linear(width, out, bias=name == "proj") for name, out in shapes.items()}
    block = filled(rng, nn.ModuleDict(linears))
    block.heads, block.kv_heads, block.size = heads, kv_heads, size
    if judged in ("values", "output"):
        nn.init.zeros_(block.proj.bias)
    x, grad = normal(rng, positions, batch, width) * (judged != "bias"), normal(rng, positions, batch, width)
    y, x_grad, found = unsplit(block, _attention, x, grad)
    own = max(kv_heads // n, 1) * size
    rows = [slice(rank * kv_heads // n * size, rank * kv_heads // n * size + own) for rank in range(n)]
    axes: dict[str, Any] = {"q.weight": 0, "k.weight": rows, "v.weight": rows, "proj.weight": 1, "proj.bias": None}
    if judged == "values":
        del axes["proj.bias"]  # it has a partial gradient
    if judged == "terms":
        axes = {"proj.bias": None} if kv_heads >= n else {"k.weight": rows, "v.weight": rows}
    outputs = _near(y, np.split(y, n))
    shapes_of = {name: found[name][rows[0] if axis else slice(None)].shape for name, axis in axes.items()}
    values = zip(outputs, _near(x_grad, np.split(x_grad, n)), pieces(found, n, axes), strict=True)
    runs = {
        "values": [Run(*one) for one in values],
        "output": [Run(one) for one in outputs],
        "bias": [Run(one) for one in outputs],
        "terms": [Run(added={name: close(np.zeros(shape), atol=1e-4) for name, shape in shapes_of.items()})] * n,
        "sends": [Run()] * n,
    }

    def added_up(runs: list[Run]) -> list[Run]:
        """With the gradients after sum_partial_gradients() minus the sum of those of the ranks that hold the same."""
        copies = n if kv_heads >= n else n // kv_heads
        return [
            replace(run, added={name: run.gradients[name] - sum(same.terms[name] for same in group) for name in axes})
            for first in range(0, n, copies)
            for group in [runs[first : first + copies]]
            for run in group
        ]

    part, whole = 4 * x.size // n, 4 * x.size
    return Case(
        f"{heads} query heads and {kv_heads} KV heads, of size {size}, x {x.shape}",
        n,
        _run,
        (layer_class, block, np.split(x, n), np.split(grad, n), list(axes), "terms" if judged == "terms" else ""),
        runs[judged],
        sends=[("all_gather", part), ("reduce_scatter", whole)] * 2 if judged == "sends" else None,
        sees=added_up if judged == "terms" else None,
    )


@check("12-ex5-attention", points=1.5)
def attention_equals_the_unsplit_one(ParallelAttention, *, rng):
    """At least as many KV heads as ranks, no bias: output, gradients of x and of the split weights."""
    for n, heads, kv_heads in ((2, 4, 4), (2, 8, 2), (4, 8, 4), (1, 4, 2)):
        yield _attention_case(rng, n, ParallelAttention, heads, kv_heads)


@check("12-ex5-attention", points=0.5)
def ranks_share_a_head_of_keys_and_values(ParallelAttention, *, rng):
    """With fewer KV heads than ranks, and no bias, the output is the unsplit block's, too."""
    for n, heads, kv_heads in ((2, 4, 1), (4, 8, 2), (4, 4, 1)):
        yield _attention_case(rng, n, ParallelAttention, heads, kv_heads, judged="output")


@check("12-ex5-attention", points=0.5)
def attention_adds_its_bias_once(ParallelAttention, *, rng):
    """The bias counts once in the output (tried with x = 0)."""
    for n, heads, kv_heads in ((2, 4, 2), (4, 8, 4), (1, 2, 1)):
        yield _attention_case(rng, n, ParallelAttention, heads, kv_heads, judged="bias")


@check("12-ex5-attention", points=0.25)
def terms_of_the_bias_are_added_up(ParallelAttention, *, rng):
    """After sum_partial_gradients() the bias of proj has its whole gradient on every rank."""
    for n, heads, kv_heads in ((2, 4, 2), (4, 8, 4)):
        yield _attention_case(rng, n, ParallelAttention, heads, kv_heads, judged="terms")


@check("12-ex5-attention", points=0.5)
def terms_of_copies_are_added_up(ParallelAttention, *, rng):
    """After sum_partial_gradients() copies of KV heads have the whole gradient."""
    for n, heads, kv_heads in ((2, 4, 1), (4, 8, 2), (4, 4, 1)):
        yield _attention_case(rng, n, ParallelAttention, heads, kv_heads, judged="terms")


@check("12-ex5-attention", points=0.5)
def attention_gathers_and_scatters_once(ParallelAttention, *, rng):
    """Forward and backward send one all-gather of this rank's positions and one reduce-scatter of all."""
    for n, heads, kv_heads in ((2, 4, 2), (4, 8, 2)):
        yield _attention_case(rng, n, ParallelAttention, heads, kv_heads, judged="sends")


@check("12-ex5-attention", points=0.25)
def attention_leaves_its_arguments(ParallelAttention, *, rng):
    """It leaves the attention that it is given, and x, as they were."""
    for n, heads, kv_heads in ((2, 4, 2), (4, 8, 4)):
        yield _kept(_attention_case(rng, n, ParallelAttention, heads, kv_heads, judged="output"))
