"""Lesson 04: many small batches are one big batch, in the memory of a small one.

`accumulate_gradients` and `shard_indices` run inside a rank of their own, where their calls can be watched:
what goes through the model, what autograd keeps, what happens to the random state. The oracles are one
forward and backward over everything in float64, torch's own `DistributedSampler`, and autograd through torch's
logistic loss.

Tolerances. Two sums of the same n terms, added in different orders, differ by at most 2·(n−1)·u·Σ|terms| or a
little more, with u = 1.1e-16 in float64 and 6.0e-8 in float32 (the chapter's theorem). Here n ≤ 100, and Σ|terms| is
less than 10 times the largest gradient entry, so 2·100·10·u = 2.2e-13 in float64. In float32 the same bound is 1.2e-4;
roundings are of either sign, so that what occurs is nearer to √n·u: 5e-7 was the most in measurements, and the
1e-5 that is allowed leaves room for a factor of 20.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.utils.data.distributed as sampling
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from autograder.checking.check import check
from autograder.checking.expect import CheckFailed, as_array, expect_close, expect_unchanged, fail
from autograder.checking.stage import call_inside, run_ranks

RTOL = {"float64": 1e-12, "float32": 1e-5}
#: Peak of what autograd keeps, in units of what the largest micro-batch needs.
PEAK = 1.5

Batch = tuple[np.ndarray, np.ndarray]


# ---- 1 · accumulate_gradients: models and losses ----


class _Watched(nn.Module):
    """A model that writes down how many rows go through it."""

    def __init__(self):
        super().__init__()
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        return self.compute(x)


class Tokens(_Watched):
    """x (B, T) of tokens below 11 → logits (B, T, 11)."""

    def __init__(self):
        super().__init__()
        self.compute = nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 11))


class Tied(_Watched):
    """As Tokens, with one matrix for reading and writing, a frozen scale, and a layer that nobody uses."""

    def __init__(self):
        super().__init__()
        self.read, self.mix, self.write = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11)
        self.write.weight = self.read.weight
        self.scale = nn.Parameter(torch.full((6,), 1.5), requires_grad=False)
        self.spare = nn.Linear(3, 2)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, 11)."""
        return self.write(torch.tanh(self.mix(self.read(x))) * self.scale)


class Rows(_Watched):
    """x (B, 5) → (B, 1)."""

    def __init__(self):
        super().__init__()
        self.compute = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 1))


class Line(_Watched):
    """x (B, 3) → (B, 1), without an intercept."""

    def __init__(self):
        super().__init__()
        self.compute = nn.Linear(3, 1, bias=False)


def masked_cross_entropy(logits: torch.Tensor, y: torch.Tensor, as_tensor: bool) -> tuple:
    """Sum over the targets that are not -100, and how many they are."""
    loss_sum = cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
    count = (y != -100).sum()
    return loss_sum, count if as_tensor else int(count)


def masked_squares(prediction: torch.Tensor, y: torch.Tensor, as_tensor: bool) -> tuple:
    """Sum of squared errors over the targets that are not -100, and how many they are."""
    counted = y != -100
    loss_sum = ((prediction[:, 0] - y) ** 2 * counted).sum()
    return loss_sum, counted.sum() if as_tensor else int(counted.sum())


LOSSES = {Tokens: masked_cross_entropy, Tied: masked_cross_entropy, Rows: masked_squares, Line: masked_squares}


@dataclass(frozen=True)
class Task:
    """One call: a model, filled with `values`, and its micro-batches."""

    name: str
    model: type[_Watched]
    values: dict[str, np.ndarray]
    batches: Sequence[Batch]
    dtype: str = "float64"
    as_tensor: bool = True
    stale: float | None = None  # what every .grad holds before the call; None: nothing
    training: bool = False

    def build(self, dtype: str) -> _Watched:
        """The model in `dtype`, with this task's values."""
        model = self.model().to(getattr(torch, dtype))
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(torch.from_numpy(self.values[name]))
        for p in model.parameters():
            if self.stale is not None and p.requires_grad:
                p.grad = torch.full_like(p, self.stale)
        return model.train(self.training)

    def tensors(self, dtype: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The micro-batches as tensors, floating ones in `dtype`."""
        return [tuple(_tensor(a, dtype) for a in batch) for batch in self.batches]

    def loss(self) -> Callable:
        """What is passed as `loss_fn`."""
        return functools.partial(LOSSES[self.model], as_tensor=self.as_tensor)


def _tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


@dataclass
class Seen:
    """What one call did, as plain data."""

    loss: Any = None
    loss_type: str = ""
    grads: dict[str, np.ndarray | None] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    peak: float = 0.0  # in units of what the largest micro-batch alone needs
    changed: str = ""  # what should have stayed as it was and did not
    error: tuple[str, str] | None = None


class _Kept:
    """A tensor that autograd keeps."""

    def __init__(self, tensor: torch.Tensor, meter: _Meter):
        # Detached: an output that is kept would otherwise keep its own graph alive for ever.
        self.tensor, self.meter, self.bytes = tensor.detach(), meter, tensor.numel() * tensor.element_size()
        meter.alive += self.bytes
        meter.peak = max(meter.peak, meter.alive)

    def __del__(self):
        self.meter.alive -= self.bytes


class _Meter:
    """How many bytes autograd keeps alive for a backward pass, and the most of it."""

    def __init__(self):
        self.alive = self.peak = 0

    def measure(self, function: Callable, *args: Any) -> Any:
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Kept(tensor, self), lambda kept: kept.tensor)
        with hooks:
            return function(*args)


def _accumulate(function: Any, tasks: list[Task]) -> list[Seen]:
    """Where the submission runs: one call a task."""
    with torch.random.fork_rng():  # a model that should not be in training mode drops the same for everybody
        torch.manual_seed(0)
        return [_observe(function, task) for task in tasks]


def _observe(function: Any, task: Task) -> Seen:
    largest = max((x for x, _ in task.tensors(task.dtype)), key=len, default=None)
    alone = _Meter()
    if largest is not None:
        y = next(y for x, y in task.tensors(task.dtype) if len(x) == len(largest))
        model = task.build(task.dtype)
        loss_sum, _ = alone.measure(lambda: task.loss()(model(largest), y))
        loss_sum.backward()
    model, batches, seen, meter = task.build(task.dtype), task.tensors(task.dtype), Seen(), _Meter()
    try:
        loss = meter.measure(function, model, task.loss(), list(batches))
    except ValueError as error:
        seen.error = (type(error).__name__, str(error))
        return seen
    seen.loss_type = type(loss).__name__
    seen.loss = float(loss) if isinstance(loss, int | float | torch.Tensor) and np.size(loss) == 1 else None
    for name, p in model.named_parameters():
        if p.requires_grad:
            seen.grads[name] = None if p.grad is None else p.grad.detach().double().numpy().copy()
    seen.rows = model.rows
    seen.peak = meter.peak / alone.peak if alone.peak else 0.0
    seen.changed = _changes(task, model, batches)
    return seen


def _changes(task: Task, model: _Watched, batches: list) -> str:
    """What of the model and the data is no longer as the task has it; '' if all is."""
    if any(module.training != task.training for module in model.modules()):
        return "the model's mode, train() or eval(),"
    if [p.requires_grad for p in model.parameters()] != [p.requires_grad for p in task.model().parameters()]:
        return "requires_grad of a parameter"
    for (name, p), before in zip(model.named_parameters(), task.build(task.dtype).parameters(), strict=True):
        if not torch.equal(p, before):
            return f"the parameter {name}"
    for k, (batch, before) in enumerate(zip(batches, task.tensors(task.dtype), strict=True)):
        for name, now, then in zip("xy", batch, before, strict=True):
            if not torch.equal(now, then):
                return f"{name} of micro-batch {k}"
    return ""


# ---- inputs and oracle ----


def _values(rng: np.random.Generator, model: type[_Watched]) -> dict[str, np.ndarray]:
    """Float32 numbers, so that a model in float32 has the same parameters."""
    shapes = {name: p.shape for name, p in model().named_parameters()}
    return {name: rng.normal(0, 0.7, shape).astype(np.float32).astype(np.float64) for name, shape in shapes.items()}


def _token_batches(rng: np.random.Generator, counts: Sequence[Sequence[int]], length: int = 6) -> list[Batch]:
    """One micro-batch for each list of counts: row i has counts[i] targets that are not masked, anywhere."""
    batches = []
    for rows in counts:
        x, y = (rng.integers(0, 11, (len(rows), length)) for _ in range(2))
        for row, count in zip(y, rows, strict=True):
            row[rng.permutation(length)[count:]] = -100
        batches.append((x, y))
    return batches


def _row_batches(rng: np.random.Generator, sizes: Sequence[int], masked: int = 0) -> list[Batch]:
    """Micro-batches of these many rows of 5 numbers; the first `masked` targets of each do not count."""
    batches = []
    for size in sizes:
        x, y = (rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in ((size, 5), (size,)))
        y[: min(masked, size)] = -100
        batches.append((x, y))
    return batches


def _whole(task: Task) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of everything at once, in float64."""
    model = task.build("float64")
    x, y = (torch.cat(parts) for parts in zip(*task.tensors("float64"), strict=True))
    loss_sum, count = task.loss()(model(x), y)
    loss = loss_sum / count
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return loss.item(), {
        name: np.zeros(p.shape) if grad is None else grad.numpy()
        for (name, p), grad in zip(named.items(), grads, strict=True)
    }


def _try(function: Any, tasks: list[Task]) -> list[tuple[Task, Seen]]:
    return list(zip(tasks, call_inside(_accumulate, function, tasks), strict=True))


def _expect_gradients(task: Task, seen: Seen, rtol: float | None = None) -> None:
    """Every gradient and the loss are those of the whole batch."""
    rtol = RTOL[task.dtype] if rtol is None else rtol
    if seen.error:
        fail(f"accumulate_gradients raised {seen.error[0]}: {seen.error[1]}", task.name, seen.error)
    loss, grads = _whole(task)
    evidence = [seen.loss_type, *({} if g is None else g for g in seen.grads.values()), seen.loss]
    scale = max(np.max(np.abs(grad), initial=0.0) for grad in grads.values())
    for name, expected in grads.items():
        got = seen.grads[name]
        if got is None and np.any(expected):
            fail(f"{name}.grad is None", task.name, evidence)
        if got is None:
            continue
        if not np.all(np.isfinite(got)):
            fail(f"{name}.grad contains {got[~np.isfinite(got)][0]}", task.name, evidence)
        error = np.max(np.abs(got - expected), initial=0.0)
        if error > rtol * scale:
            at = np.unravel_index(int(np.argmax(np.abs(got - expected))), got.shape)
            place = f"{name}.grad{[int(i) for i in at]}"
            values = f"{got[at]:.6g}, with the whole batch at once it is {expected[at]:.6g}"
            fail(f"{place} is {values}; relative error {error / scale:.1e}", task.name, evidence)
    if seen.loss is None:
        fail(f"the loss should be a float, got {seen.loss_type}", task.name, evidence)
    if not abs(seen.loss - loss) <= rtol * abs(loss):
        fail(f"it returned the loss {seen.loss:.6g}, with the whole batch it is {loss:.6g}", task.name, evidence)
    if seen.loss_type not in ("float", "float64"):  # numpy's float64 is a float
        fail(f"it returned a {seen.loss_type}, expected a float", task.name, evidence)


#: Unmasked targets of each row, micro-batch by micro-batch: unequal rows, unequal tokens, one wholly masked.
COUNTS = [(6, 1, 3), (1,), (2, 6, 6, 5, 6), (0, 0), (4, 1)]


@check("04-ex1-accumulate-gradients")
def accumulation_gives_the_gradient_of_the_whole_batch(accumulate_gradients, *, rng):
    """Equal to one forward and backward over everything, in float64 and in float32, however it is cut."""
    tokens, rows, tied = (_values(rng, model) for model in (Tokens, Rows, Tied))
    unequal = _token_batches(rng, [counts for counts in COUNTS if any(counts)])
    tasks = [
        Task("4 micro-batches, unequal token counts", Tokens, tokens, unequal),
        Task("5 micro-batches, one wholly masked", Tokens, tokens, _token_batches(rng, COUNTS)),
        Task("the first micro-batch wholly masked", Tokens, tokens, _token_batches(rng, [(0, 0), (3,), (6, 2)])),
        Task("float32, one micro-batch wholly masked", Tokens, tokens, _token_batches(rng, COUNTS), "float32"),
        Task("count as an int", Tokens, tokens, unequal, as_tensor=False),
        Task("1 micro-batch", Rows, rows, _row_batches(rng, [6])),
        Task("micro-batches of 7, 1, 16 and 2 rows", Rows, rows, _row_batches(rng, [7, 1, 16, 2]), as_tensor=False),
        Task("40 micro-batches of 1 to 5 rows", Rows, rows, _row_batches(rng, [1, 5, 2, 3] * 10, masked=1)),
        Task("shared, frozen and unused parameters", Tied, tied, unequal),
    ]
    for task, seen in _try(accumulate_gradients, tasks):
        _expect_gradients(task, seen)

    # Small whole numbers, counts and totals that are powers of two: nothing is ever rounded, so nothing may differ.
    whole = [
        (rng.integers(-9, 10, (n, 3)).astype(float), rng.integers(-9, 10, n).astype(float)) for n in (1, 1, 2, 4, 8)
    ]
    values = {"compute.weight": rng.integers(-9, 10, (1, 3)).astype(float)}
    [(task, seen)] = _try(accumulate_gradients, [Task("small whole numbers, bit for bit", Line, values, whole)])
    _expect_gradients(task, seen, rtol=0.0)


@check("04-ex1-accumulate-gradients")
def accumulation_drops_what_was_there(accumulate_gradients, *, rng):
    """Gradients from before the call have no part in the result."""
    values = _values(rng, Tied)
    for stale in (1.0, np.nan):
        name = f"every .grad was {stale} before"
        task = Task(name, Tied, values, _token_batches(rng, COUNTS), stale=stale)
        _expect_gradients(*_try(accumulate_gradients, [task])[0])


@check("04-ex1-accumulate-gradients")
def accumulation_keeps_one_graph(accumulate_gradients, *, rng):
    """No forward sees more rows than the largest micro-batch, and autograd keeps no more than one graph."""
    values = _values(rng, Rows)
    for sizes in ([16] * 8, [2, 16, 16, 3, 16]):
        task = Task(f"micro-batches of {sizes} rows", Rows, values, _row_batches(rng, sizes))
        [(_, seen)] = _try(accumulate_gradients, [task])
        evidence = [seen.rows, seen.peak]
        if max(seen.rows, default=0) > max(sizes):
            text = f"a forward pass saw {max(seen.rows)} rows, the largest micro-batch has {max(sizes)}"
            fail(text, task.name, evidence)
        if sum(seen.rows) > 2 * sum(sizes):
            text = f"{sum(seen.rows)} rows went through the model in all, two passes have {2 * sum(sizes)}"
            fail(text, task.name, evidence)
        if seen.peak > PEAK:
            text = f"autograd kept {seen.peak:.1f} times what the largest micro-batch alone needs, {PEAK} are allowed"
            fail(text, task.name, evidence)
        if len(seen.rows) > 2 * len(sizes):
            text = f"{len(seen.rows)} forward passes for {len(sizes)} micro-batches, at most two for each are allowed"
            fail(text, task.name, evidence)


@check("04-ex1-accumulate-gradients")
def accumulation_leaves_model_and_data_alone(accumulate_gradients, *, rng):
    """Parameters, their requires_grad, the data and the model's mode are as they were."""
    tasks = [
        Task("eval()", Tied, _values(rng, Tied), _token_batches(rng, COUNTS)),
        Task("train()", Rows, _values(rng, Rows), _row_batches(rng, [3, 1, 4]), training=True),
    ]
    for task, seen in _try(accumulate_gradients, tasks):
        if seen.error:
            fail(f"accumulate_gradients raised {seen.error[0]}: {seen.error[1]}", task.name, seen.error)
        if seen.changed:
            fail(f"{seen.changed} was changed", task.name, seen.changed)
    # Dropout draws for each micro-batch: in train() mode no two rows' outputs agree with eval() mode's.
    task, seen = Task("train() with dropout", Rows, tasks[1].values, tasks[1].batches, training=True), None
    [(_, seen)] = _try(accumulate_gradients, [task])
    evaluated = _whole(Task("", Rows, task.values, task.batches))[1]
    if all(np.allclose(seen.grads[name], grad, rtol=1e-6) for name, grad in evaluated.items()):
        fail("the model is in train() mode, but its dropout did nothing", task.name, "no dropout")


@check("04-ex1-accumulate-gradients")
def accumulation_refuses_what_has_no_mean(accumulate_gradients, *, rng):
    """No micro-batch, or none in which anything counts, is a ValueError that says so."""
    values = _values(rng, Tokens)
    cases = [
        ("micro_batches", Task("no micro-batches", Tokens, values, [])),
        ("count", Task("everything masked", Tokens, values, _token_batches(rng, [(0, 0), (0,)]))),
        ("count", Task("everything masked, int", Tokens, values, _token_batches(rng, [(0,)]), as_tensor=False)),
    ]
    for (word, task), (_, seen) in zip(cases, _try(accumulate_gradients, [task for _, task in cases]), strict=True):
        if seen.error is None:
            fail("no ValueError was raised", task.name, ["nothing raised", seen.loss_type, seen.loss])
        if word not in seen.error[1]:
            fail(f"the ValueError should contain {word!r}, it says {seen.error[1]!r}", task.name, "not named")


# ---- 2 · shard_indices ----


class _SamplerUsedError(Exception):
    """The sampler itself was called."""


@dataclass
class Dealt:
    """What one call of shard_indices returned or raised."""

    got: Any = None
    error: tuple[str, str] | None = None
    sampler: bool = False  # was the sampler used?
    random: bool = False  # is torch's global random state another than before?


def _deal(rank: int, world_size: int, function: Any, calls: list[dict]) -> list[Dealt]:
    """Inside a rank, where the sampler does not work."""
    used = []

    def forbidden(*args: Any, **kwargs: Any) -> None:
        used.append(True)
        raise _SamplerUsedError("DistributedSampler was used")

    # The class itself stays what it is: to import it or to ask for its signature is no mistake.
    sampling.DistributedSampler.__init__ = forbidden
    sampling.DistributedSampler.__iter__ = forbidden
    dealt = []
    for call in calls:
        before, one = torch.get_rng_state(), Dealt()
        try:
            one.got = _plain(function(**call))
        except ValueError as error:
            one.error = (type(error).__name__, str(error))
        except _SamplerUsedError:
            pass
        one.sampler, one.random = bool(used), not torch.equal(before, torch.get_rng_state())
        dealt.append(one)
    return dealt


def _plain(got: Any) -> Any:
    """A list of Python ints as it is; of anything else, what it is."""
    if isinstance(got, list) and all(type(entry) is int for entry in got):
        return got
    if isinstance(got, list):
        odd = next(entry for entry in got if type(entry) is not int)
        return f"a list with a {type(odd).__name__} in it"
    return f"a {type(got).__name__}"


def _calls(rng: np.random.Generator, count: int) -> list[dict]:
    """Drawn calls: small lengths, so that all ways to be left over or left out occur."""
    calls = [
        {
            "length": int(rng.integers(0, 24)),
            "world_size": (n := int(rng.integers(1, 9))),
            "rank": int(rng.integers(0, n)),
            "epoch": int(rng.integers(0, 50)),
            "seed": int(rng.integers(0, 50)),
            "shuffle": bool(rng.integers(0, 3)),
            "drop_last": bool(rng.integers(0, 2)),
        }
        for _ in range(count)
    ]
    for call in calls[: count // 4]:  # far fewer examples than ranks: the order is repeated more than once
        call["length"] = int(rng.integers(0, max(1, call["world_size"] // 2)))
    return calls


def _say(call: dict) -> str:
    return ", ".join(f"{name} = {value}" for name, value in call.items())


def _sampled(call: dict) -> list[int]:
    """What torch's sampler deals."""
    given = {name: call[name] for name in ("rank", "shuffle", "seed", "drop_last") if name in call}
    sampler = sampling.DistributedSampler(range(call["length"]), num_replicas=call["world_size"], **given)
    sampler.set_epoch(call["epoch"])
    return list(sampler)


def _expect_dealt(function: Any, calls: list[dict]) -> None:
    [dealt] = run_ranks(_deal, 1, (function, calls))
    evidence = [str(one.error or one.got) for one in dealt[:40]]
    for call, one in zip(calls, dealt, strict=True):
        if one.sampler:
            fail("DistributedSampler itself was used: write down what it does", "sampler", "sampler")
        if one.error:
            fail(f"{one.error[0]}: {one.error[1]}", _say(call), evidence)
        if isinstance(one.got, str):
            fail(f"it returned {one.got}, expected a list of ints", _say(call), evidence)
        expected = _sampled(call)
        if len(one.got) != len(expected):
            fail(f"{len(one.got)} examples, expected {len(expected)}", _say(call), evidence)
        if one.got != expected:
            at = next(i for i, pair in enumerate(zip(one.got, expected, strict=True)) if pair[0] != pair[1])
            fail(f"entry {at} is {one.got[at]}, the sampler has {expected[at]}", _say(call), evidence)


@check("04-ex2-shard-indices")
def shards_are_those_of_the_sampler(shard_indices, *, rng):
    """Element by element what torch's sampler deals, over many drawn calls."""
    plain = [
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 0, "shuffle": False},
        {"length": 10, "rank": 3, "world_size": 4, "epoch": 0, "shuffle": False},
        {"length": 10, "rank": 1, "world_size": 4, "epoch": 0, "shuffle": False, "drop_last": True},
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 0},
        {"length": 12, "rank": 1, "world_size": 4, "epoch": 5, "seed": 3},
        {"length": 10, "rank": 3, "world_size": 4, "epoch": 2, "seed": 7},
        {"length": 10, "rank": 3, "world_size": 4, "epoch": 2, "seed": 7, "drop_last": True},
        {"length": 2, "rank": 4, "world_size": 7, "epoch": 1},
        {"length": 1009, "rank": 2, "world_size": 3, "epoch": 4, "seed": 11},
    ]
    _expect_dealt(shard_indices, plain + _calls(rng, 400))


@check("04-ex2-shard-indices")
def shards_are_dealt_without_side_effects(shard_indices, *, rng):
    """The sampler is not used, and torch's global random state is as it was."""
    calls = _calls(rng, 20)
    [dealt] = run_ranks(_deal, 1, (shard_indices, calls))
    for call, one in zip(calls, dealt, strict=True):
        if one.sampler:
            fail("DistributedSampler itself was used: write down what it does", "sampler", "sampler")
        if one.random:
            fail("torch's global random state is another than before", _say(call), [one.random, str(one.got)])


@check("04-ex2-shard-indices")
def shards_refuse_what_cannot_be_dealt(shard_indices, *, rng):
    """A rank that there is not, no ranks, and a negative length are ValueErrors that name the argument."""
    right = {"length": 10, "rank": 1, "world_size": 4, "epoch": 0}
    wrong = [
        ({"rank": 4}, "rank"),
        ({"rank": -1}, "rank"),
        ({"rank": 9, "drop_last": True}, "rank"),
        ({"world_size": 0, "rank": 0}, "world_size|rank"),
        ({"world_size": -2, "rank": 0}, "world_size|rank"),
        ({"length": -1}, "length"),
        ({"length": -4, "shuffle": False, "rank": 0}, "length"),
    ]
    calls = [right | change for change, _ in wrong]
    [dealt] = run_ranks(_deal, 1, (shard_indices, calls))
    for (change, word), one in zip(wrong, dealt, strict=True):
        if one.error is None:
            fail("no ValueError was raised", _say(change), ["nothing raised", str(one.got)])
        if not re.search(word, one.error[1]):
            fail(f"the ValueError should name {word.split('|')[0]}, it says {one.error[1]!r}", _say(change), "unnamed")


# ---- 3 · local_gradient ----


def _examples(rng: np.random.Generator, rows: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rng.normal(size=(rows, d)), rng.integers(0, 2, rows).astype(float), rng.normal(size=d)


def _autograd(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The gradient of torch's own logistic loss, in float64."""
    x, y, w = (torch.from_numpy(np.array(a, dtype=np.float64)) for a in (x, y, w))
    w.requires_grad_()
    binary_cross_entropy_with_logits(x @ w, y).backward()
    return w.grad.numpy()


def _expect_gradient(case: str, function: Any, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
    """Equal within 1e-12 of the largest |x|, which bounds every entry: |σ − y| is at most 1."""
    expected = _autograd(x, y, w)
    atol = 1e-12 * float(np.max(np.abs(np.asarray(x, dtype=np.float64)), initial=0.0))
    got = as_array(case, function(x.copy(), y.copy(), w.copy()), "the gradient")
    if got.dtype != np.float64:
        fail(f"the gradient is {got.dtype}, expected float64", case, str(got.dtype))
    try:
        expect_close(case, got, expected, what="the gradient", rtol=0.0, atol=atol)
    except CheckFailed as failure:
        # Small errors look alike beside the numbers that they are in: the difference tells mistakes apart.
        failure.got = [got, got - expected] if got.shape == expected.shape else got
        raise


@check("04-ex3-local-gradient")
def local_gradient_follows_the_formula(local_gradient, *, rng):
    """The gradient of torch's mean logistic loss."""
    for rows, d in [(8, 3), (1, 4), (5, 1), (1, 1), (300, 20)]:
        _expect_gradient(f"B = {rows}, d = {d}", local_gradient, *_examples(rng, rows, d))
    for label in (0.0, 1.0):
        x, y, w = _examples(rng, 6, 2)
        _expect_gradient(f"B = 6, d = 2, every label {label:.0f}", local_gradient, x, np.full_like(y, label), w)


@check("04-ex3-local-gradient")
def local_gradient_is_computed_in_float64(local_gradient, *, rng):
    """float32 and integers come in, float64 comes out, and nothing was rounded or wrapped on the way."""
    x, y, w = _examples(rng, 50, 4)
    for dtype in ("int64", "uint8"):
        _expect_gradient(f"float64 x and w, {dtype} y", local_gradient, x, y.astype(dtype), w)
    single = [a.astype(np.float32) for a in (x + 100, y, w)]
    _expect_gradient("all float32", local_gradient, *single)
    x, w = rng.integers(-5, 6, (9, 3)), rng.integers(-2, 3, 3)
    _expect_gradient("all int64", local_gradient, x, rng.integers(0, 2, 9), w)


@check("04-ex3-local-gradient")
def local_gradient_survives_large_logits(local_gradient, *, rng):
    """|Xw| up to 10⁴, of either sign, with either label, far beyond where exp overflows."""
    for size in (30.0, 800.0, 1e4):
        z = np.array([size, -size, size, -size, 0.3, -1.2, 7.0, -7.0])
        x = np.stack([z, rng.normal(size=8)], axis=1)
        y, w = np.array([0.0, 1, 1, 0, 1, 0, 1, 0]), np.array([1.0, 0.0])
        _expect_gradient(f"|Xw| up to {size:g}", local_gradient, x, y, w)
        _expect_gradient(f"|Xw| up to {size:g}, labels on the right side", local_gradient, x[2:], y[2:], w)


@check("04-ex3-local-gradient")
def local_gradient_leaves_its_inputs_alone(local_gradient, *, rng):
    """x, y and w hold the same bytes afterwards."""
    inputs = dict(zip(("x", "y", "w"), _examples(rng, 6, 3), strict=True))
    before = {name: array.copy() for name, array in inputs.items()}
    local_gradient(*inputs.values())
    for name, array in inputs.items():
        expect_unchanged("B = 6, d = 3", before[name], array, what=name)


@check("04-ex3-local-gradient")
def local_gradient_refuses_what_does_not_fit(local_gradient, *, rng):
    """No rows, and shapes that numpy would broadcast or reject in words of its own."""
    x, y, w = _examples(rng, 4, 3)
    for case, word, args in [
        ("B = 0", "x", (x[:0], y[:0], w)),
        ("x of shape (3,)", "x", (x[0], y[:3], w)),
        ("x of shape (2, 4, 3)", "x", (np.stack([x, x]), y, w)),
        ("y of shape (4, 1)", "y", (x, y[:, None], w)),
        ("y of shape (1, 4)", "y", (x, y[None], w)),
        ("y of shape (1,) for B = 4", "y", (x, y[:1], w)),
        ("y of shape () for B = 4", "y", (x, np.array(1.0), w)),
        ("w of shape (3, 1)", "w", (x, y, w[:, None])),
        ("w of shape (2,) for d = 3", "w", (x, y, w[:2])),
        ("w of shape () for d = 3", "w", (x, y, np.array(1.0))),
    ]:
        _expect_value_error(case, local_gradient, args, word)


def _expect_value_error(case: str, function: Any, args: tuple, *words: str) -> None:
    """A ValueError whose text has one of the words, as a word."""
    try:
        function(*args)
    except ValueError as error:
        if not any(re.search(rf"\b{word}\b", str(error)) for word in words):
            fail(f"the ValueError should name {' or '.join(words)}, it says {str(error)!r}", case, "unnamed")
        return
    except NotImplementedError:
        raise
    except Exception as error:
        fail(f"expected ValueError, got {type(error).__name__}: {error}", case, type(error).__name__)
    fail("expected ValueError, but nothing was raised", case, "nothing raised")


# ---- 4 · data_parallel_step ----

#: Rows of each shard.
CUTS = [(40,), (3, 3, 3), (5, 0, 1, 4), (1, 2, 9), (0, 7), (1,) * 7, (0, 0, 3, 0, 2, 6, 1)]
LARGE_CUT = (100, 4_900, 1, 14_999)


def _shards(rng: np.random.Generator, sizes: Sequence[int], d: int) -> tuple[list, list, np.ndarray]:
    """Shards whose gradients differ a lot: shard r lies round a point of its own."""
    xs = [rng.normal(size=(n, d)) + 2 * rng.normal(size=d) for n in sizes]
    ys = [rng.integers(0, 2, n).astype(float) for n in sizes]
    return xs, ys, 0.15 * rng.normal(size=d)


@check("04-ex4-data-parallel-step")
def step_is_one_step_on_all_rows(data_parallel_step, *, rng):
    """w − lr times torch's gradient on all rows, within 1e-12, for equal, unequal and empty shards."""
    for sizes in [*CUTS, LARGE_CUT]:
        xs, ys, w = _shards(rng, sizes, 20 if sizes is LARGE_CUT else 3)
        expected = w - 0.7 * _autograd(np.concatenate(xs), np.concatenate(ys), w)
        case = f"shards of {', '.join(map(str, sizes))} rows"
        got = data_parallel_step([x.copy() for x in xs], [y.copy() for y in ys], w.copy(), 0.7)
        expect_close(case, got, expected, what="the new w", rtol=1e-12, atol=1e-12)
    xs, ys, w = _shards(rng, (2, 3), 2)
    steps = [w]
    for _ in range(3):
        expected = steps[-1] - 0.2 * _autograd(np.concatenate(xs), np.concatenate(ys), steps[-1])
        got = data_parallel_step(xs, ys, steps[-1].copy(), 0.2)
        expect_close(f"3 steps in a row, number {len(steps)}", got, expected, what="the new w", rtol=1e-12, atol=1e-12)
        steps.append(expected)


@check("04-ex4-data-parallel-step")
def step_leaves_its_inputs_alone(data_parallel_step, *, rng):
    """w, the lists and their arrays are as they were, and the result is an array of its own, even for lr = 0."""
    for lr in (0.5, 0.0):
        xs, ys, w = _shards(rng, (4, 0, 2), 3)
        kept = [w.copy(), *(a.copy() for a in xs + ys)]
        given_xs, given_ys = list(xs), list(ys)
        got = data_parallel_step(given_xs, given_ys, w, lr)
        case = f"shards of 4, 0, 2 rows, lr = {lr}"
        if len(given_xs) != 3 or len(given_ys) != 3:
            fail("the list xs or ys was changed", case, "list changed")
        if any(a is not b for a, b in zip(given_xs + given_ys, xs + ys, strict=True)):
            fail("an entry of xs or ys was replaced", case, "entry replaced")
        for name, before, after in zip(["w", *["xs"] * 3, *["ys"] * 3], kept, [w, *xs, *ys], strict=True):
            expect_unchanged(case, before, after, what=name)
        if isinstance(got, np.ndarray) and np.shares_memory(got, w):
            fail("the result shares its memory with w", case, "shared")


@check("04-ex4-data-parallel-step")
def step_refuses_what_cannot_be_stepped(data_parallel_step, *, rng):
    """Lists of different lengths, and no rows at all."""
    xs, ys, w = _shards(rng, (4, 2), 3)
    for case, words, args in [
        ("two shards in xs, one in ys", ("xs", "ys"), (xs, ys[:1])),
        ("one shard in xs, two in ys", ("xs", "ys"), (xs[:1], ys)),
        ("no shards", ("xs",), ([], [])),
        ("two shards of 0 rows", ("xs",), ([xs[0][:0], xs[1][:0]], [ys[0][:0], ys[1][:0]])),
    ]:
        _expect_value_error(case, data_parallel_step, (*args, w, 0.1), *words)
