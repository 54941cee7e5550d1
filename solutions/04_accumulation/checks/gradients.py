"""Lesson 04, exercise 1: gradients of many small batches, and what autograd keeps while they are computed."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from autograder.checking.check import check
from autograder.checking.expect import digits_that_differ, fail
from autograder.checking.instruments.memory import SavedBytes
from autograder.checking.stage import call_inside

#: Of the largest entry of all gradients; the package's docstring says why.
RTOL = {"float64": 1e-12, "float32": 1e-5}
#: The most that autograd may keep, in units of what the largest micro-batch needs.
PEAK = 1.5
#: The most graphs that may be alive: that of the forward pass, and the one before, whose loss still has a name.
GRAPHS = 2

Batch = tuple[np.ndarray, np.ndarray]


class _Graphs:
    """How many graphs of forward passes are alive, and the most that were."""

    def __init__(self):
        self.alive = self.most = 0


class _Alive:
    """Belongs to a node of a graph, and is deleted with it."""

    def __init__(self, graphs: _Graphs):
        self.graphs = graphs
        graphs.alive += 1
        graphs.most = max(graphs.most, graphs.alive)

    def __del__(self):
        self.graphs.alive -= 1


class _Node(torch.autograd.Function):
    """Passes a tensor on, with a node of its own in the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, graphs: _Graphs) -> torch.Tensor:
        ctx.alive = _Alive(graphs)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _rows(x: torch.Tensor) -> set[bytes]:
    return {row.tobytes() for row in x.detach().cpu().numpy()}


class _Watched(nn.Module):
    """A model that records which rows go through it, how often each, and how many graphs are alive."""

    def __init__(self):
        super().__init__()
        self.rows: list[int] = []
        self.went: list[set[bytes]] = []
        self.passes: Counter[bytes] = Counter()
        self.graphs = _Graphs()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        self.went.append(_rows(x))
        self.passes.update(self.went[-1])
        return _Node.apply(self.compute(x), self.graphs)


class Tokens(_Watched):
    """x (B, T) of tokens below 11 → logits (B, T, 11)."""

    def __init__(self):
        super().__init__()
        self.compute = nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 11))


class Tied(_Watched):
    """Like Tokens, with one matrix for reading and writing, a frozen scale, and a layer that forward does not use."""

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
    """The sum over the targets that are not -100, and their number."""
    loss_sum = cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
    count = (y != -100).sum()
    return loss_sum, count if as_tensor else int(count)


def masked_squares(prediction: torch.Tensor, y: torch.Tensor, as_tensor: bool) -> tuple:
    """The sum of squared errors over the targets that are not -100, and their number."""
    counted = y != -100
    loss_sum = ((prediction[:, 0] - y) ** 2 * counted).sum()
    return loss_sum, counted.sum() if as_tensor else int(counted.sum())


def masked_squares_less_100(prediction: torch.Tensor, y: torch.Tensor, as_tensor: bool) -> tuple:
    """Like masked_squares, but each loss is 100 less: nearly all are below zero."""
    loss_sum, count = masked_squares(prediction, y, as_tensor)
    return loss_sum - 100 * count, count


LOSSES = {Tokens: masked_cross_entropy, Tied: masked_cross_entropy, Rows: masked_squares, Line: masked_squares}


#: (loss, as_tensor) → its `loss_fn`. A dict and not functools.cache, which cannot go into a jail.
_KEPT: dict[tuple[Callable, bool], Callable] = {}


def _loss(function: Callable, as_tensor: bool) -> Callable:
    """The same `loss_fn` for all calls, as in a training loop."""
    return _KEPT.setdefault((function, as_tensor), functools.partial(function, as_tensor=as_tensor))


@dataclass(frozen=True)
class Task:
    """One call: a model, filled with `values`, and its micro-batches."""

    name: str
    model: type[_Watched]
    values: dict[str, np.ndarray]
    batches: Sequence[Batch]
    dtype: str = "float64"
    as_tensor: bool = True
    stale: float | None = None  # what every .grad holds before the call; None: there is no .grad
    training: bool = False
    evaluated: str = ""  # the module that is in eval() mode all the same
    losses: Callable | None = None  # None: as LOSSES has it

    def build(self, dtype: str) -> _Watched:
        """The model in `dtype`, with this task's values."""
        model = self.model().to(getattr(torch, dtype))
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(torch.from_numpy(self.values[name]))
        for p in model.parameters():
            if self.stale is not None:
                p.grad = torch.full_like(p, self.stale)
        model.train(self.training)
        if self.evaluated:
            model.get_submodule(self.evaluated).eval()
        return model

    def tensors(self, dtype: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The micro-batches as tensors, floating ones in `dtype`."""
        return [tuple(_tensor(a, dtype) for a in batch) for batch in self.batches]

    def loss(self) -> Callable:
        """The function that is passed as `loss_fn`."""
        return _loss(self.losses or LOSSES[self.model], self.as_tensor)


def _tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


@dataclass
class Seen:
    """What one call of accumulate_gradients returned and did, as plain data."""

    loss: Any = None
    loss_type: str = ""
    grads: dict[str, np.ndarray | None] = field(default_factory=dict)
    frozen: dict[str, np.ndarray | None] = field(default_factory=dict)  # .grad of the parameters that get no gradient
    rows: list[int] = field(default_factory=list)
    joined: int = 0  # of how many micro-batches a forward pass saw rows, at most
    passes: int = 0  # how often the row went through the model that did so most often
    graphs: int = 0  # the most graphs of forward passes that were alive
    peak: float = 0.0  # the most that autograd kept, in units of what the largest micro-batch alone needs
    changed: str = ""  # what the call should have left alone and changed; "" if nothing
    error: tuple[str, str] | None = None


def _accumulate(function: Any, tasks: list[Task]) -> list[Seen]:
    """Where the submission runs: one call for each task."""
    with torch.random.fork_rng():  # a wrong answer that sets train() drops the same elements every time
        torch.manual_seed(0)
        return [_observe(function, task) for task in tasks]


def _observe(function: Any, task: Task) -> Seen:
    largest = max((x for x, _ in task.tensors(task.dtype)), key=len, default=None)
    alone = SavedBytes()
    if largest is not None:
        y = next(y for x, y in task.tensors(task.dtype) if len(x) == len(largest))
        model = task.build(task.dtype)
        loss_sum, _ = alone.measure(lambda: task.loss()(model(largest), y))
        loss_sum.backward()
    model, batches, seen, meter = task.build(task.dtype), task.tensors(task.dtype), Seen(), SavedBytes()
    try:
        given = list(batches)
        loss = meter.measure(function, model, task.loss(), given)
    except ValueError as error:
        seen.error = (type(error).__name__, str(error))
        return seen
    seen.loss_type = type(loss).__name__
    seen.loss = float(loss) if isinstance(loss, int | float | torch.Tensor) and np.size(loss) == 1 else None
    for name, p in model.named_parameters():
        grads = seen.grads if p.requires_grad else seen.frozen
        grads[name] = None if p.grad is None else p.grad.detach().double().numpy().copy()
    parts = [_rows(x) for x, _ in task.tensors(task.dtype)]
    seen.joined = max((sum(not part.isdisjoint(rows) for part in parts) for rows in model.went), default=0)
    seen.rows, seen.passes, seen.graphs = model.rows, max(model.passes.values(), default=0), model.graphs.most
    seen.peak = meter.peak / alone.peak if alone.peak else 0.0
    same = len(given) == len(batches) and all(now is then for now, then in zip(given, batches, strict=True))
    seen.changed = _changes(task, model, batches) if same else "the list of micro-batches"
    return seen


def _changes(task: Task, model: _Watched, batches: list) -> str:
    """The subject of a sentence: what the call changed in the task's model or data; "" if it changed nothing."""
    modes = zip(model.named_modules(), task.build(task.dtype).modules(), strict=True)
    for (name, module), before in modes:
        if module.training != before.training:
            return f"the mode of {name or 'the model'}, train() or eval(),"
    if [p.requires_grad for p in model.parameters()] != [p.requires_grad for p in task.model().parameters()]:
        return "requires_grad of a parameter"
    if any(p.grad is not None for p in model.parameters() if not p.requires_grad):
        return "the .grad of a parameter with requires_grad=False"
    for (name, p), before in zip(model.named_parameters(), task.build(task.dtype).parameters(), strict=True):
        if not torch.equal(p, before):
            return f"the parameter {name}"
    for k, (batch, before) in enumerate(zip(batches, task.tensors(task.dtype), strict=True)):
        for name, now, then in zip("xy", batch, before, strict=True):
            if not torch.equal(now, then):
                return f"{name} of micro-batch {k}"
            if now.requires_grad or now.grad is not None:
                return f"requires_grad or .grad of {name} of micro-batch {k}"
    return ""


# ---- inputs and oracle ----


def _values(rng: np.random.Generator, model: type[_Watched]) -> dict[str, np.ndarray]:
    """Parameters that float32 holds exactly, so that a model in float32 has the same ones."""
    shapes = {name: p.shape for name, p in model().named_parameters()}
    return {name: rng.normal(0, 0.7, shape).astype(np.float32).astype(np.float64) for name, shape in shapes.items()}


def _token_batches(rng: np.random.Generator, counts: Sequence[Sequence[int]], length: int = 6) -> list[Batch]:
    """One micro-batch for each list of counts: row i has counts[i] targets that are not masked, at drawn places."""
    batches = []
    for rows in counts:
        x, y = (rng.integers(0, 11, (len(rows), length)) for _ in range(2))
        for row, count in zip(y, rows, strict=True):
            row[rng.permutation(length)[count:]] = -100
        batches.append((x, y))
    return batches


def _row_batches(rng: np.random.Generator, sizes: Sequence[int], masked: int = 0) -> list[Batch]:
    """Micro-batches of `sizes` rows of 5 numbers; the first `masked` targets of each do not count."""
    batches = []
    for size in sizes:
        x, y = (rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in ((size, 5), (size,)))
        y[: min(masked, size)] = -100
        batches.append((x, y))
    return batches


def _whole(task: Task) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients of all micro-batches at once, in float64."""
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


def _run_tasks(function: Any, tasks: list[Task]) -> list[tuple[Task, Seen]]:
    return list(zip(tasks, call_inside(_accumulate, function, tasks), strict=True))


def _expect_gradients(task: Task, seen: Seen, rtol: float | None = None) -> None:
    """Every gradient and the loss are those of all micro-batches at once."""
    rtol = RTOL[task.dtype] if rtol is None else rtol
    if seen.error:
        fail(f"accumulate_gradients raised {seen.error[0]}: {seen.error[1]}", task.name, seen.error, seen.error[0])
    loss, grads = _whole(task)
    evidence = [seen.loss_type, *({} if g is None else g for g in seen.grads.values()), seen.loss]
    scale = max(np.max(np.abs(grad), initial=0.0) for grad in grads.values())
    for name, expected in grads.items():
        got = seen.grads.get(name, seen.frozen.get(name))  # should the call have frozen it
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
            one, other = digits_that_differ(got[at], expected[at])
            values = f"{one}, but {other} for the whole batch at once"
            fail(f"{place} is {values}; relative error {error / scale:.1e}", task.name, evidence)
    if seen.loss is None:
        fail(f"the returned loss should be a float, got {seen.loss_type}", task.name, evidence)
    if not abs(seen.loss - loss) <= rtol * abs(loss):
        one, other = digits_that_differ(seen.loss, loss)
        fail(f"the returned loss is {one}, but {other} for the whole batch at once", task.name, evidence)
    if seen.loss_type not in ("float", "float64"):  # numpy's float64 is a float
        fail(f"the returned loss should be a float, got {seen.loss_type}", task.name, evidence)


#: How many targets of each row are not masked, micro-batch by micro-batch; one micro-batch is wholly masked.
COUNTS = [(6, 1, 3), (1,), (2, 6, 6, 5, 6), (0, 0), (4, 1)]
#: Without that one, as many rows in each, and another total.
OTHER_COUNTS = [(2, 2, 2), (5,), (1, 1, 3, 1, 1), (6, 0)]


@check("04-ex1-accumulate-gradients", points=3)
def accumulation_gives_the_gradient_of_the_whole_batch(accumulate_gradients, *, rng):
    """The gradients and the loss are those of one forward and backward pass over all micro-batches at once."""
    tokens, rows, tied = (_values(rng, model) for model in (Tokens, Rows, Tied))
    unequal = _token_batches(rng, [counts for counts in COUNTS if any(counts)])
    tasks = [
        Task("4 micro-batches, unequal token counts", Tokens, tokens, unequal),
        Task("5 micro-batches, one wholly masked", Tokens, tokens, _token_batches(rng, COUNTS)),
        Task("the first micro-batch wholly masked", Tokens, tokens, _token_batches(rng, [(0, 0), (3,), (6, 2)])),
        Task("float32, one micro-batch wholly masked", Tokens, tokens, _token_batches(rng, COUNTS), "float32"),
        Task("the shapes of the first call, other counts", Tokens, tokens, _token_batches(rng, OTHER_COUNTS)),
        Task("count as an int", Tokens, tokens, unequal, as_tensor=False),
        Task("1 micro-batch", Rows, rows, _row_batches(rng, [6])),
        Task("micro-batches of 7, 1, 16 and 2 rows", Rows, rows, _row_batches(rng, [7, 1, 16, 2]), as_tensor=False),
        Task("losses below zero", Rows, rows, _row_batches(rng, [4, 2, 3]), losses=masked_squares_less_100),
        Task("40 micro-batches of 1 to 5 rows", Rows, rows, _row_batches(rng, [1, 5, 2, 3] * 10, masked=1)),
        Task("shared, frozen and unused parameters", Tied, tied, unequal),
    ]
    for task, seen in _run_tasks(accumulate_gradients, tasks):
        _expect_gradients(task, seen)

    # Small whole numbers, and counts that are powers of two: only an answer that rescales on its way rounds at all.
    whole = [
        (rng.integers(-9, 10, (n, 3)).astype(float), rng.integers(-9, 10, n).astype(float)) for n in (1, 1, 2, 4, 8)
    ]
    values = {"compute.weight": rng.integers(-9, 10, (1, 3)).astype(float)}
    [(task, seen)] = _run_tasks(accumulate_gradients, [Task("small whole numbers", Line, values, whole)])
    _expect_gradients(task, seen, rtol=1e-14)


@check("04-ex1-accumulate-gradients", points=0.5)
def accumulation_drops_what_was_there(accumulate_gradients, *, rng):
    """Gradients from before the call have no part in the result."""
    values = _values(rng, Tied)
    for stale in (1.0, np.nan):
        name = f"every .grad was {stale} before"
        task = Task(name, Tied, values, _token_batches(rng, COUNTS), stale=stale)
        [(_, seen)] = _run_tasks(accumulate_gradients, [task])
        _expect_gradients(task, seen)
        for parameter, grad in seen.frozen.items():
            if grad is not None and np.any(grad):  # NaN counts as well
                text = f"{parameter} is frozen, and its .grad holds {grad.flat[0]:.6g} afterwards"
                fail(text, name, ["frozen", str(grad.flat[0])])


@check("04-ex1-accumulate-gradients", points=0.5)
def accumulation_keeps_one_graph(accumulate_gradients, *, rng):
    """A forward pass sees at most one micro-batch, each has at most two passes, and autograd keeps one graph."""
    values = _values(rng, Rows)
    for sizes in ([16] * 8, [2, 3, 16, 16, 5, 16], [16] * 3):
        task = Task(f"micro-batches of {sizes} rows", Rows, values, _row_batches(rng, sizes))
        if len(sizes) == 3:
            task = replace(task, name=f"{task.name}, the second wholly masked")
            task.batches[1][1][:] = -100
        [(_, seen)] = _run_tasks(accumulate_gradients, [task])
        evidence = [seen.rows, seen.peak]
        if max(seen.rows, default=0) > max(sizes):
            text = f"a forward pass saw {max(seen.rows)} rows, but the largest micro-batch has {max(sizes)}"
            fail(text, task.name, evidence)
        if seen.joined > 1:
            text = f"a forward pass saw rows of {seen.joined} micro-batches, expected one at a time"
            fail(text, task.name, evidence)
        if sum(seen.rows) > 2 * sum(sizes):
            text = f"{sum(seen.rows)} rows went through the model, but two passes over all have {2 * sum(sizes)}"
            fail(text, task.name, evidence)
        if seen.passes > 2:
            text = f"a row went through the model {seen.passes} times, expected at most two"
            fail(text, task.name, evidence)
        if seen.graphs > GRAPHS:
            text = f"the graphs of {seen.graphs} forward passes were alive at once"
            fail(f"{text}: whatever holds a loss holds its graph", task.name, [*evidence, seen.graphs])
        if seen.peak > PEAK:
            text = (
                f"autograd kept {seen.peak:.2f} times what the largest micro-batch alone needs, expected at most {PEAK}"
            )
            fail(text, task.name, evidence)
        if len(seen.rows) > 2 * len(sizes):
            text = f"there were {len(seen.rows)} forward passes, expected at most two for each of {len(sizes)}"
            fail(f"{text} micro-batches", task.name, evidence)
        _expect_gradients(task, seen)


@check("04-ex1-accumulate-gradients", points=0.5)
def accumulation_leaves_model_and_data_alone(accumulate_gradients, *, rng):
    """Parameters, requires_grad, the data and the model's mode do not change, and the model computes in that mode."""
    tasks = [
        Task("eval()", Tied, _values(rng, Tied), _token_batches(rng, COUNTS)),
        Task("train()", Rows, _values(rng, Rows), _row_batches(rng, [3, 1, 4]), training=True),
    ]
    tasks.append(replace(tasks[1], name="train(), but its dropout in eval()", evaluated="compute.2"))
    for task, seen in _run_tasks(accumulate_gradients, tasks):
        if seen.error:
            fail(f"accumulate_gradients raised {seen.error[0]}: {seen.error[1]}", task.name, seen.error, seen.error[0])
        if seen.changed:
            fail(f"{seen.changed} was changed", task.name, seen.changed)
        if task.name != "train()":  # there no dropout draws
            _expect_gradients(task, seen)
    # Dropout draws anew for each micro-batch: in train() mode the gradients differ from those in eval() mode.
    task = Task("train() with dropout", Rows, tasks[1].values, tasks[1].batches, training=True)
    [(_, seen)] = _run_tasks(accumulate_gradients, [task])
    evaluated = _whole(Task("", Rows, task.values, task.batches))[1]
    if not any(grad is not None and np.any(grad) for grad in seen.grads.values()):
        fail("there are no gradients", task.name, "no gradients")
    if all(np.allclose(seen.grads[name], grad, rtol=1e-6) for name, grad in evaluated.items()):
        fail("the model is in train() mode, but its dropout did nothing", task.name, "no dropout")


@check("04-ex1-accumulate-gradients", points=0.5)
def accumulation_refuses_what_has_no_mean(accumulate_gradients, *, rng):
    """No micro-batches, or none with a target that counts, raise a ValueError that names micro_batches or count."""
    values = _values(rng, Tokens)
    cases = [
        ("micro_batches", Task("no micro-batches", Tokens, values, [])),
        ("", Task("one target counts", Tokens, values, _token_batches(rng, [(0, 0), (1,)]))),
        ("count", Task("everything masked", Tokens, values, _token_batches(rng, [(0, 0), (0,)]))),
        ("count", Task("everything masked, int", Tokens, values, _token_batches(rng, [(0,)]), as_tensor=False)),
    ]
    runs = _run_tasks(accumulate_gradients, [task for _, task in cases])
    for (word, task), (_, seen) in zip(cases, runs, strict=True):
        if not word:
            _expect_gradients(task, seen)
            continue
        if seen.error is None:
            fail("nothing was raised, expected a ValueError", task.name, ["nothing raised", seen.loss_type, seen.loss])
        if word not in seen.error[1]:
            fail(f"the ValueError should name {word!r}, but it says {seen.error[1]!r}", task.name, "not named")
