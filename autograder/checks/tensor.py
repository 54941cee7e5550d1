"""Lesson 12: a layer that is split over ranks must be the unsplit one, in numbers, memory and communication.

The oracles run in this process: formulas over all ranks' inputs for the operators, torch's own autograd through an
unsplit block for the layers. The unsplit blocks are this module's own and have only the attributes that the
statements name; their attention goes head by head. Numbers of the operators are multiples of 1/8, so their sums
are exact. What was sent is read from the ledger between barriers: while a module is built, forward, backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, fail
from autograder.checking.stage import run_ranks

#: The world sizes of the syllabus; what goes wrong at all, goes wrong with two.
WORLD_SIZES = (2, 4, 1)
#: Of the largest entry: a few roundings, in another order of addition than the unsplit block's.
BOUNDS = {"float32": 5e-6, "float64": 1e-13}


def _array(tensor: torch.Tensor | None) -> np.ndarray | None:
    if tensor is None:
        return None
    return tensor.detach().to(torch.float64).clone(memory_format=torch.contiguous_format).numpy()


def _evidence(arrays: list[np.ndarray | None]) -> list:
    return ["None" if array is None else array for array in arrays]


def _own(array: np.ndarray, rank: int, world_size: int, axis: int) -> np.ndarray:
    return np.split(array, world_size, axis=axis)[rank]


# ---- 1 and 2 · the operators ----


@dataclass
class Passing:
    """One pass through an operator: what each rank puts in, and the gradient that comes back to it."""

    operator: str
    layout: str
    dtype: str
    x: list[np.ndarray]
    grad: list[np.ndarray]

    @property
    def name(self) -> str:
        """The case, for a message."""
        return f"{self.operator} of shape {self.x[0].shape}, {self.dtype}, {self.layout}"


#: Each rank has the same numbers' memory in another order.
MIXED = "transposed on every second rank"


def _laid_out(array: np.ndarray, layout: str, dtype: str, rank: int = 0) -> torch.Tensor:
    """The numbers in a memory layout; behind each there is memory enough for a write that ignores the layout."""
    numbers = torch.tensor(array, dtype=getattr(torch, dtype))
    if layout == MIXED:
        layout = "transposed" if rank % 2 else "contiguous"
    memory = torch.zeros(4 * numbers.numel() + 16, dtype=numbers.dtype)
    if layout == "contiguous":
        result = memory[: numbers.numel()].view(numbers.shape)
    elif layout == "transposed":
        result = memory[: numbers.numel()].view(*numbers.shape[:-2], numbers.shape[-1], numbers.shape[-2])
        result = result.transpose(-1, -2)
    elif layout == "every second column":
        result = memory[: 2 * numbers.numel()].view(*numbers.shape[:-1], -1)[..., ::2]
    else:  # expanded along the first dimension, of which all entries are equal
        result = memory[: numbers[0].numel()].view(1, *numbers.shape[1:]).expand(numbers.shape)
        result[0].copy_(numbers[0])
        return result
    result.copy_(numbers)
    return result


def _drive_operators(rank: int, world_size: int, operators: dict[str, Any], cases: list[Passing]) -> list[dict]:
    """Inside a rank: every case forward and backward, each between barriers."""
    seen = []
    for case in cases:
        x, grad = (_laid_out(arrays[rank], case.layout, case.dtype, rank) for arrays in (case.x, case.grad))
        before = [_array(t) for t in (x, grad)]
        x.requires_grad_()
        dist.barrier()
        y = operators[case.operator].apply(x)
        dist.barrier()
        y.backward(grad)
        dist.barrier()
        arrays = {"what comes out": _array(y), "the gradient that it gives back": _array(x.grad)}
        changed = [
            what
            for what, t, old in zip(("x", "the gradient"), (x, grad), before, strict=True)
            if not np.array_equal(_array(t), old)
        ]
        dtypes = [str(t.dtype).replace("torch.", "") for t in (y, x.grad)]
        seen.append({"arrays": arrays, "changed": changed, "dtypes": dtypes})
    return seen


def _eighths(rng: np.random.Generator, shape: tuple[int, ...], layout: str) -> np.ndarray:
    array = rng.integers(-64, 65, shape) / 8
    return np.broadcast_to(array[:1], shape).copy() if layout == "expanded" else array


def _passings(rng: np.random.Generator, world_size: int, operators: tuple[str, ...]) -> Iterator[Passing]:
    """Every operator on several shapes, dtypes and layouts."""
    kinds = [
        ("contiguous", "float32", (2, 3, 2)),
        ("every second column", "float32", (3, 4)),
        ("transposed", "float64", (2, 3, 2)),
        (MIXED, "float32", (3, 2)),
        ("expanded", "float32", (3, 2)),
        ("contiguous", "float64", (3,)),
        ("contiguous", "float32", ()),
        ("contiguous", "bfloat16", (2, 2)),
    ]
    for operator in operators:
        for layout, dtype, shape in kinds:
            wide = (*shape[:-1], world_size * shape[-1]) if shape else ()
            if operator in ("Copy", "Reduce"):
                takes = gives = shape
            elif not shape:
                continue
            else:
                takes, gives = (shape, wide) if operator == "Gather" else (wide, shape)
            x = [_eighths(rng, takes, layout) for _ in range(world_size)]
            grad = [_eighths(rng, gives, layout) for _ in range(world_size)]
            if dtype == "bfloat16":  # eight bits: sums of four such numbers are exact
                x, grad = ([np.round(a / 2) for a in arrays] for arrays in (x, grad))
            # What the statement calls equal on all ranks is.
            x = [x[0]] * world_size if operator == "Cut" else x
            grad = [grad[0]] * world_size if operator == "Gather" else grad
            yield Passing(operator, layout, dtype, x, grad)


def _operator_oracle(case: Passing, rank: int, world_size: int) -> dict[str, np.ndarray]:
    forward = {
        "Copy": lambda: case.x[rank],
        "Reduce": lambda: sum(case.x),
        "Gather": lambda: np.concatenate(case.x, axis=-1),
        "Cut": lambda: _own(case.x[rank], rank, world_size, -1),
    }
    backward = {
        "Copy": lambda: sum(case.grad),
        "Reduce": lambda: case.grad[rank],
        "Gather": lambda: _own(case.grad[rank], rank, world_size, -1),
        "Cut": lambda: np.concatenate(case.grad, axis=-1),
    }
    pair = forward[case.operator](), backward[case.operator]()
    return dict(zip(("what comes out", "the gradient that it gives back"), pair, strict=True))


#: operator → what it may send forward and backward.
_OPERATOR_CALLS = {
    "Copy": (None, "all_reduce"),
    "Reduce": ("all_reduce", None),
    "Gather": ("all_gather", None),
    "Cut": (None, "all_gather"),
}


def _try_operators(rng: np.random.Generator, operators: dict[str, Any]) -> None:
    for world_size in WORLD_SIZES:
        cases = list(_passings(rng, world_size, tuple(operators)))
        results = run_ranks(_drive_operators, world_size, (operators, cases))
        calls = _stretches(results, world_size, len(cases), 3)
        for number, case in enumerate(cases):
            name, seen = f"{count_of_ranks(world_size)}, {case.name}", [mine[number] for mine in results]
            for what in ("what comes out", "the gradient that it gives back"):
                got = [mine["arrays"][what] for mine in seen]
                for rank in range(world_size):
                    want = np.asarray(_operator_oracle(case, rank, world_size)[what])
                    _expect(name, f"{case.operator}: {what} on rank {rank}", got, rank, want, 0.0)
            for rank, mine in enumerate(seen):
                if mine["changed"]:
                    text = f"{case.operator} on rank {rank} changed {mine['changed'][0]} in place"
                    fail(text, name, [text_of["changed"] for text_of in seen])
                if set(mine["dtypes"]) != {case.dtype}:
                    fail(f"{case.operator} gave {mine['dtypes']}, expected {case.dtype}", name, mine["dtypes"])
            pair = _OPERATOR_CALLS[case.operator]
            sizes = [case.x[0].size if pair[0] else 0, case.grad[0].size if pair[1] else 0]
            for at, (direction, kind, size) in enumerate(zip(("forward", "backward"), pair, sizes, strict=True)):
                allowed = {} if kind is None else {kind: size}
                _expect_calls(name, f"{case.operator}, {direction}", calls, number, at, allowed, case.dtype)


@check("12-ex1-operators")
def operators_are_conjugate(Copy, Reduce, *, rng):  # noqa: N803
    """Copy passes forward and adds up backward, Reduce the other way round; any layout; nothing in place."""
    _try_operators(rng, {"Copy": Copy, "Reduce": Reduce})


@check("12-ex2-pieces")
def pieces_are_joined_and_cut(Gather, Cut, *, rng):  # noqa: N803
    """Gather joins in rank order and gives back its own part; Cut the other way round."""
    _try_operators(rng, {"Gather": Gather, "Cut": Cut})


# ---- what is compared, and how ----


def _expect(case: str, what: str, got: list, rank: int, want: np.ndarray, bound: float, scale: float = -1.0) -> None:
    """`got[rank]` is `want` within `bound` of its largest entry (or of `scale`); the evidence is all ranks'."""
    mine = got[rank]
    if mine is None:
        fail(f"{what} is None", case, _evidence(got))
    if mine.shape != want.shape:
        fail(f"{what} has shape {mine.shape}, expected {want.shape}", case, _evidence(got))
    allowed = bound * (float(np.max(np.abs(want), initial=0.0)) if scale < 0 else scale)
    off = np.abs(mine - want)
    if not np.all(off <= allowed):
        at = np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off))), off.shape)
        place = f" at index {tuple(int(i) for i in at)}" if off.ndim else ""
        fail(f"{what} is wrong{place}: got {mine[at]:.6g}, expected {want[at]:.6g}", case, _evidence(got))


def _stretches(results: Any, world_size: int, cases: int, barriers: int) -> list[list[list]]:
    """rank → what it sent in each stretch between the driver's barriers."""
    calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
    if any(len(parts) != cases * barriers + 1 for parts in calls):
        fail("barrier was called, which nothing here needs", count_of_ranks(world_size), "barrier")
    return [[[parts[c * barriers + 1 + part] for part in range(barriers - 1)] for c in range(cases)] for parts in calls]


def _expect_calls(
    case: str, when: str, calls: list, number: int, part: int, allowed: dict[str, int], dtype: str
) -> None:
    """In one stretch every rank made exactly the collectives in `allowed` (kind → numbers put in), each once.

    With one rank they may be missing.
    """
    width = getattr(torch, dtype).itemsize
    for rank, mine in enumerate(calls):
        got = [(m.call, m.bytes) for m in mine[number][part]]
        for call, nbytes in got:
            kind = "all_gather" if call.startswith("all_gather") else call
            if kind not in allowed:
                fail(f"{when}: rank {rank} called {call}, which is not needed there", case, [when, got])
            if nbytes != allowed[kind] * width:
                text = f"{when}: rank {rank} put {nbytes} bytes into {call}, expected {allowed[kind] * width}"
                fail(f"{text} ({allowed[kind]} numbers)", case, [when, got])
        if len(got) > len(allowed) or (len(got) < len(allowed) and len(calls) > 1):
            text = f"{when}: rank {rank} made {len(got)} collectives, expected {len(allowed)}"
            fail(text, case, [when, got])


# ---- 3 to 6 · layers and blocks ----


class _MLP(nn.Module):
    """An unsplit MLP, with no more than the statement names."""

    def __init__(self, width: int):
        super().__init__()
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def unsplit(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x @ self.fc.weight.T + (0 if self.fc.bias is None else self.fc.bias)
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return hidden @ self.out.weight.T + (0 if self.out.bias is None else self.out.bias)


class _Attention(nn.Module):
    """An unsplit attention block, with no more than the statement names."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def unsplit(self, x: torch.Tensor) -> torch.Tensor:
        mixed, size = [], x.shape[-1] // self.heads
        earlier = torch.ones(x.shape[1], x.shape[1]).tril() > 0
        q, k, v = torch.split(self.qkv(x), x.shape[-1], dim=-1)
        for head in range(self.heads):
            mine = slice(head * size, (head + 1) * size)
            scores = q[..., mine] @ k[..., mine].transpose(1, 2) / math.sqrt(size)
            mixed.append(torch.softmax(scores.masked_fill(~earlier, -math.inf), -1) @ v[..., mine])
        return self.proj(torch.cat(mixed, dim=-1))


@dataclass
class Case:
    """One unsplit module, the arguments with which it is split, its input, and the gradient of its output.

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
    options: dict[str, Any] = field(default_factory=dict)
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


def _parameters(module: nn.Module, names: Any) -> dict[str, torch.Tensor | None]:
    return {name: attrgetter(name)(module) for name in names}


def _drive_layers(rank: int, world_size: int, layer_class: Any, cases: list[Case], wrong: list[Refused]) -> dict:
    """Inside a rank: every case built, forward, backward, each between barriers; then what must be refused."""
    seen = [_run(rank, world_size, layer_class, case) for case in cases]
    return {"seen": seen, "said": [_refusal(layer_class, case) for case in wrong]}


def _part(tensor: torch.Tensor, rank: int, world_size: int, cut: bool) -> torch.Tensor:
    return (tensor.chunk(world_size, dim=-1)[rank] if cut else tensor).clone(memory_format=torch.contiguous_format)


def _run(rank: int, world_size: int, layer_class: Any, case: Case) -> dict:
    before = [p.detach().clone() for p in case.module.parameters()]
    dist.barrier()
    layer = layer_class(case.module, **case.options)
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
    arrays = {"the output": _array(y), "the loss": _array(loss), "the gradient of x": _array(x.grad)}
    for name, p in parameters.items():
        arrays[f"{name}"] = _array(p)
        arrays[f"the gradient of {name}"] = _array(None if p is None else p.grad)
    observed = {
        "arrays": arrays,
        "x stays": torch.equal(x.detach(), given),
        "kinds": {name: _kind(p, layer) for name, p in parameters.items() if p is not None},
        "numel": sum(p.numel() for p in layer.parameters()),
        "foreign": foreign,
        "unsplit has a gradient": any(p.grad is not None for p in case.module.parameters()),
    }
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(1)
    old = zip(case.module.parameters(), before, strict=True)
    observed["unsplit stays"] = all(p.shape == b.shape and torch.equal(p.detach(), b) for p, b in old)
    return observed


def _kind(p: Any, layer: nn.Module) -> str:
    """What is wrong with a parameter, or ''."""
    if not isinstance(p, nn.Parameter):
        return f"is a {type(p).__name__}, not an nn.Parameter"
    if not p.requires_grad:
        return "does not require a gradient"
    return "" if any(p is q for q in layer.parameters()) else "is not among the module's parameters()"


def _foreign_numbers(layer: nn.Module, unsplit: nn.Module) -> int:
    """How many numbers of other ranks' pieces lie in memory that can be reached from a module.

    The unsplit module's numbers are drawn at random, so they can be recognized.
    """
    own, whole = (np.concatenate([_array(p).reshape(-1) for p in m.parameters()]) for m in (layer, unsplit))
    others, found = np.setdiff1d(whole, own), {}
    for t in _reachable(layer, set()):
        found[t.untyped_storage().data_ptr()] = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
    return sum(int(np.isin(_array(memory), others).sum()) for memory in found.values())


def _reachable(thing: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        if thing.is_floating_point():
            yield thing
    elif isinstance(thing, dict):
        for part in [*thing.keys(), *thing.values()]:
            yield from _reachable(part, seen)
    elif isinstance(thing, (list, tuple, set, frozenset)):
        for part in thing:
            yield from _reachable(part, seen)
    elif not callable(thing) or isinstance(thing, nn.Module):
        yield from _reachable(getattr(thing, "__dict__", {}), seen)


def _refusal(layer_class: Any, case: Refused) -> str:
    try:
        layer_class(case.module)
    except ValueError as error:
        return "" if case.mentions in str(error) else f"raised a ValueError that does not name {case.mentions}"
    except NotImplementedError:
        raise
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return "raised nothing"


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
    return {what: _array(t) for what, t in whole.items()}


def _piece(array: np.ndarray, axis: Any, rank: int, world_size: int) -> np.ndarray:
    """This rank's piece of a whole parameter or of its gradient."""
    if axis is None:
        return array
    if axis == "heads":
        return np.concatenate([_own(third, rank, world_size, 0) for third in np.split(array, 3)])
    return _own(array, rank, world_size, axis)


def _try_layers(layer_class: Any, make: Callable[[int], tuple[list[Case], list[Refused]]]) -> None:
    for world_size in WORLD_SIZES:
        cases, wrong = make(world_size)
        results = run_ranks(_drive_layers, world_size, (layer_class, cases, wrong))
        calls = _stretches(results, world_size, len(cases), 4)
        for number, case in enumerate(cases):
            _judge(case, [mine["seen"][number] for mine in results], calls, number)
        for number, case in enumerate(wrong):
            said = [mine["said"][number] for mine in results]
            if any(said):
                rank = next(rank for rank in range(world_size) if said[rank])
                fail(f"rank {rank} {said[rank]}; a ValueError should name {case.mentions}", case.name, said)


def _judge(case: Case, seen: list[dict], calls: list, number: int) -> None:
    """One case: the pieces, the numbers, what is held, what was sent."""
    world_size, whole, bound = len(seen), _oracle(case), BOUNDS[case.dtype]
    name = f"{count_of_ranks(world_size)}, {case.name}, {case.dtype}"

    def compare(what: str, axis: Any, bound: float, scale: float = -1.0) -> None:
        got = [mine["arrays"][what] for mine in seen]
        for rank in range(world_size):
            _expect(
                name, f"{what} on rank {rank}", got, rank, _piece(whole[what], axis, rank, world_size), bound, scale
            )

    for parameter, axis in case.axes.items():
        if parameter not in whole:
            got = [mine["arrays"][parameter] for mine in seen]
            if any(array is not None for array in got):
                fail(f"{parameter} should be None: the unsplit layer has none", name, _evidence(got))
            continue
        compare(parameter, axis, 0.0)
        for rank, mine in enumerate(seen):
            if mine["kinds"][parameter]:
                text = f"{parameter} on rank {rank} {mine['kinds'][parameter]}"
                fail(text, name, [other["kinds"] for other in seen])
    compare("the output", -1 if case.cut_grad else None, bound, float(np.max(np.abs(whole["the output"]))))
    if not case.cut_grad:
        compare("the loss", None, bound, float(np.sum(np.abs(whole["the output"] * _array(case.grad)))))
    if case.needs_grad:
        compare("the gradient of x", -1 if case.cut_x else None, bound, float(np.abs(whole["the gradient of x"]).max()))
    for parameter, axis in case.axes.items():
        if parameter in whole:
            gradient = f"the gradient of {parameter}"
            compare(gradient, axis, bound, float(np.max(np.abs(whole[gradient]))))
    _judge_what_is_held(case, seen, name, whole)
    directions = (("while it is built", {}), ("forward", case.forward), ("backward", case.backward))
    for part, (when, allowed) in enumerate(directions):
        _expect_calls(name, when, calls, number, part, allowed, case.dtype)


def _judge_what_is_held(case: Case, seen: list[dict], name: str, whole: dict[str, np.ndarray]) -> None:
    """x and the unsplit module stay as they were; a rank has its own pieces and no other."""
    for rank, mine in enumerate(seen):
        if not mine["x stays"]:
            fail(f"x was changed in place on rank {rank}", name, "x was changed")
        if not mine["unsplit stays"] or mine["unsplit has a gradient"]:
            got = ["unsplit", mine["unsplit stays"], mine["unsplit has a gradient"]]
            fail("the layer that was given has changed: the pieces must be copies, and used instead of it", name, got)
        pieces = [_piece(whole[p], axis, rank, len(seen)) for p, axis in case.axes.items() if p in whole]
        expected = sum(piece.size for piece in pieces)
        if mine["numel"] != expected:
            text = f"parameters() on rank {rank} have {mine['numel']} numbers, its pieces have {expected}"
            fail(text, name, [other["numel"] for other in seen])
        if mine["foreign"]:
            text = f"rank {rank} holds {mine['foreign']} numbers of other ranks' pieces, behind a view or in a copy"
            fail(text, name, [other["foreign"] for other in seen])


# ---- cases ----


def _tensor(rng: np.random.Generator, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def _fill(rng: np.random.Generator, module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Fresh numbers for every parameter, of a size at which no output is flat."""
    module.to(dtype)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(_tensor(rng, *p.shape, dtype=dtype) / (math.sqrt(p.shape[-1]) if p.dim() > 1 else 1))
    return module


_FLOAT32, _FLOAT64 = torch.float32, torch.float64


def _column_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    cases = []
    for leading, bias, gather, dtype, needs_grad in (
        ((2, 3), True, False, _FLOAT64, True),
        ((2,), True, True, _FLOAT64, True),
        ((2, 3), False, False, _FLOAT32, True),
        ((), False, True, _FLOAT32, True),
        ((2, 1, 3), True, False, _FLOAT64, False),
    ):
        linear = _fill(rng, nn.Linear(5, 8, bias=bias), dtype)
        words = [f"Linear(5, 8) {'with' if bias else 'without'} bias", f"x {(*leading, 5)}"]
        words += ["gather_output=True"] if gather else []
        words += [] if needs_grad else ["x without a gradient"]
        x, grad = _tensor(rng, *leading, 5, dtype=dtype), _tensor(rng, *leading, 8, dtype=dtype)
        forward = {"all_gather": grad.numel() // world_size} if gather else {}
        backward = {"all_reduce": x.numel()} if needs_grad else {}
        options = {"gather_output": True} if gather else {}
        axes = {"weight": 0, "bias": 0}
        cases.append(Case(", ".join(words), linear, x, grad, axes, forward, backward, options, False, not gather))
        cases[-1].needs_grad = needs_grad
    wrong = [
        Refused(f"{count_of_ranks(n)}, Linear(8, {size})", nn.Linear(8, size), "out_features")
        for n, size in ((2, 7), (4, 6), (4, 3))
        if n == world_size
    ]
    return cases, wrong


def _row_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    cases = []
    for leading, bias, parallel, dtype in (
        ((2, 3), True, True, _FLOAT64),
        ((2,), True, False, _FLOAT64),
        ((2, 3), False, True, _FLOAT32),
        ((), False, False, _FLOAT32),
        ((2, 1, 3), True, True, _FLOAT32),
    ):
        linear = _fill(rng, nn.Linear(8, 5, bias=bias), dtype)
        words = [f"Linear(8, 5) {'with' if bias else 'without'} bias", f"x {(*leading, 8)}"]
        words += [] if parallel else ["input_is_parallel=False"]
        x, grad = _tensor(rng, *leading, 8, dtype=dtype), _tensor(rng, *leading, 5, dtype=dtype)
        backward = {} if parallel else {"all_gather": x.numel() // world_size}
        options = {} if parallel else {"input_is_parallel": False}
        axes, forward = {"weight": 1, "bias": None}, {"all_reduce": grad.numel()}
        cases.append(Case(", ".join(words), linear, x, grad, axes, forward, backward, options, parallel, False))
    wrong = [
        Refused(f"{count_of_ranks(n)}, Linear({size}, 8)", nn.Linear(size, 8), "in_features")
        for n, size in ((2, 7), (4, 6), (4, 3))
        if n == world_size
    ]
    return cases, wrong


def _block_case(
    rng: np.random.Generator, module: nn.Module, x_shape: tuple, without: str, dtype: torch.dtype, axes: dict, name: str
) -> Case:
    for layer in without.split():
        getattr(module, layer).bias = None
    _fill(rng, module, dtype)
    x, grad = _tensor(rng, *x_shape, dtype=dtype), _tensor(rng, *x_shape, dtype=dtype)
    name += f", x {x_shape}" + (f", no bias in {' and '.join(without.split())}" if without else "")
    sends = {"all_reduce": x.numel()}
    return Case(name, module, x, grad, axes, sends, sends)


def _mlp_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    axes = {"fc.weight": 0, "fc.bias": 0, "out.weight": 1, "out.bias": None}
    kinds = [
        (6, (2, 3, 6), "", _FLOAT64),
        (3, (1, 4, 3), "out", _FLOAT32),
        (4, (3, 1, 4), "fc", _FLOAT64),
        (5, (2, 2, 5), "fc out", _FLOAT32),
    ]
    return [_block_case(rng, _MLP(c), shape, none, dtype, axes, f"width {c}") for c, shape, none, dtype in kinds], []


def _attention_cases(rng: np.random.Generator, world_size: int) -> tuple[list[Case], list[Refused]]:
    axes = {"qkv.weight": "heads", "qkv.bias": "heads", "proj.weight": 1, "proj.bias": None}
    kinds = [
        (12, 4, (2, 3, 12), "", _FLOAT64),
        (16, 8, (1, 5, 16), "proj", _FLOAT32),
        (8, 4, (2, 4, 8), "qkv", _FLOAT64),
        (4, 4, (3, 1, 4), "qkv proj", _FLOAT32),
    ]
    cases = [
        _block_case(rng, _Attention(c, h), shape, none, dtype, axes, f"width {c}, {h} heads")
        for c, h, shape, none, dtype in kinds
    ]
    # The width can be divided, the heads cannot.
    wrong = [
        Refused(f"{count_of_ranks(n)}, width {12 * h}, {h} heads", _Attention(12 * h, h), "heads")
        for n, h in ((2, 3), (4, 6), (4, 1), (2, 1))
        if n == world_size
    ]
    return cases, wrong


@check("12-ex3-column")
def column_layer_equals_the_unsplit_one(ColumnParallelLinear, *, rng):  # noqa: N803
    """This rank's rows, outputs and gradients; one all-reduce backward; sizes that do not divide refused."""
    _try_layers(ColumnParallelLinear, lambda world_size: _column_cases(rng, world_size))


@check("12-ex4-row")
def row_layer_equals_the_unsplit_one(RowParallelLinear, *, rng):  # noqa: N803
    """This rank's columns, the whole output on every rank, the bias once; one all-reduce forward."""
    _try_layers(RowParallelLinear, lambda world_size: _row_cases(rng, world_size))


@check("12-ex5-mlp")
def mlp_equals_the_unsplit_block(ParallelMLP, *, rng):  # noqa: N803
    """Output, loss and every gradient of the unsplit MLP; one all-reduce forward, one backward, nothing else."""
    _try_layers(ParallelMLP, lambda world_size: _mlp_cases(rng, world_size))


@check("12-ex6-attention")
def attention_equals_the_unsplit_block(ParallelAttention, *, rng):  # noqa: N803
    """Whole heads on each rank; output, loss and every gradient; one all-reduce forward, one backward."""
    _try_layers(ParallelAttention, lambda world_size: _attention_cases(rng, world_size))
