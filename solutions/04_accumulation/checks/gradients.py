"""Exercise 1: gradients of many small batches, and how many graphs are alive while they are computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Call, at_most, close, fact, sentence
from autograder.checks.check import check

ACCUMULATE = "04-ex1-accumulate-gradients"
#: Of the length of all gradients together; the package's docstring says why.
RTOL = 1e-12
#: The graphs that may be alive: that of the forward pass, and the one before, whose loss still has a name.
GRAPHS = 2
#: How many targets of each row count, micro-batch by micro-batch.
UNEQUAL = [(6, 1, 3), (1,), (2, 6, 6, 5, 6), (4, 1)]
MASKED = [(0, 0), (6, 1, 3), (1,), (0,), (4, 1)]

Batch = tuple[np.ndarray, np.ndarray]


class Alive:
    """Belongs to a node of a graph, and is deleted with it."""

    def __init__(self, model: Tokens):
        self.model = model
        model.alive += 1
        model.most_alive = max(model.most_alive, model.alive)

    def __del__(self):
        self.model.alive -= 1


class Node(torch.autograd.Function):
    """Passes a tensor on, with a node of its own in the graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, model: Tokens) -> torch.Tensor:
        ctx.alive = Alive(model)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Tokens(nn.Module):
    """x (B, T) of tokens below 11 → logits (B, T, 11). Counts the graphs that are alive, and which rows pass."""

    def __init__(self, seed: int, unused: bool):
        super().__init__()
        self.alive = self.most_alive = 0
        self.passes: Counter[bytes] = Counter()
        self.most_rows = 0
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.read, self.write = nn.Embedding(11, 6), nn.Linear(6, 11)
            if unused:
                self.spare = nn.Linear(3, 2)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        self.passes.update(row.tobytes() for row in x.numpy())
        self.most_rows = max(self.most_rows, len(x))
        return Node.apply(self.write(torch.tanh(self.read(x))), self)


def masked_loss(logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The sum of the cross-entropies where y is not -100, and how many these are."""
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten().clamp(min=0), reduction="none")
    counts = y.flatten() != -100
    return (losses * counts).sum(), int(counts.sum())  # a NaN times 0 would stay a NaN


def _tensors(batches: list[Batch]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())) for x, y in batches]


def _batches(rng: np.random.Generator, counts: list[tuple[int, ...]]) -> list[Batch]:
    """A micro-batch for each tuple of counts: row i has counts[i] targets that count, at drawn places."""
    batches = []
    for rows in counts:
        x, y = (rng.integers(0, 11, (len(rows), 6)) for _ in range(2))
        for row, count in zip(y, rows, strict=True):
            row[rng.permutation(6)[count:]] = -100
        batches.append((x, y))
    return batches


@dataclass
class Accumulated:
    """What is there after a call."""

    shares: Any = fact("the .grad of parameter {}, scaled so that all gradients together have length 1,")
    length: Any = fact("the length of all gradients together", "divide once by the number of all items that count")
    loss: Any = fact("the returned loss")
    kind: str = fact("the type of the returned loss")
    rows: Any = fact("the number of rows in one forward pass")
    passes: Any = fact("how often a row goes through the model")
    graphs: Any = fact("the number of forward passes whose graphs are alive", "whatever holds a loss holds its graph")


@dataclass
class Moved:
    """What micro-batches in which nothing counts change in an answer's own results."""

    by_masked: str = sentence()


def _beside_masked(function: Any, seed: int, batches: list[Batch]) -> Moved:
    """A call with and one without the micro-batches in which nothing counts, whatever it makes of the others."""
    found = []
    for part in (batches, [(x, y) for x, y in batches if (y != -100).any()]):
        model = Tokens(seed, unused=False)
        loss = function(model, masked_loss, _tensors(part))
        found.append([np.zeros(p.shape) if p.grad is None else p.grad.numpy() for p in model.parameters()])
        if np.isnan(float(loss)):
            return Moved("the loss is NaN")
    for (name, _), got, without in zip(Tokens(seed, unused=False).named_parameters(), *found, strict=True):
        if not without.any():
            return Moved(f"the .grad of parameter {name} is zero, with masked micro-batches and without")
        if not np.all(np.abs(got - without) <= RTOL * np.abs(without).max()):
            kind = "NaN" if np.isnan(got).any() else "another one"
            text = "with micro-batches in which nothing counts, but they change nothing"
            return Moved(f"the .grad of parameter {name} is {kind} {text}")
    return Moved("")


def _accumulate(function: Any, seed: int, batches: list[Batch], before: float | None, unused: bool) -> Accumulated:
    """A call. before: what every .grad holds then; None: there is none."""
    model = Tokens(seed, unused)
    for p in model.parameters():
        p.grad = None if before is None else torch.full_like(p, before)
    loss = function(model, masked_loss, _tensors(batches))
    shares, length = _scaled({name: p.grad for name, p in model.named_parameters()})
    return Accumulated(
        shares,
        length,
        float(loss) if isinstance(loss, float | torch.Tensor) and np.size(loss) == 1 else loss,
        "float" if isinstance(loss, float) else type(loss).__name__,
        model.most_rows,
        max(model.passes.values(), default=0),
        model.most_alive,
    )


def _scaled(grads: dict) -> tuple[dict, float]:
    """The gradients as parts of one vector of length 1, None for nothing or zeros; and the length that it had."""
    parts = {name: None if grad is None or not grad.any() else grad.numpy() for name, grad in grads.items()}
    length = float(np.sqrt(sum((part**2).sum() for part in parts.values() if part is not None)))
    return {name: None if part is None else part / length for name, part in parts.items()}, length


def _whole(seed: int, batches: list[Batch], unused: bool) -> tuple[dict, float, float]:
    """The gradients of all micro-batches at once, as in `_scaled`, and their loss."""
    model = Tokens(seed, unused)
    x, y = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*batches, strict=True))
    loss_sum, count = masked_loss(model(x), y)
    (loss_sum / count).backward()
    return *_scaled({name: p.grad for name, p in model.named_parameters()}), loss_sum.item() / count


def _case(function: Any, rng: np.random.Generator, name: str, counts: list, *facts, before=None, unused=False) -> Call:
    """A call of which these facts are compared."""
    seed, batches = int(rng.integers(2**31)), _batches(rng, counts)
    shares, length, loss = _whole(seed, batches, unused)
    expected = {"length": close(length, rtol=RTOL), "loss": close(loss, rtol=RTOL), "kind": "float"}
    expected |= {"rows": at_most(max(map(len, counts)), least=1), "passes": at_most(2), "graphs": at_most(GRAPHS)}
    expected["shares"] = {key: None if part is None else close(part, atol=RTOL) for key, part in shares.items()}
    gives = Accumulated(**{fact: expected[fact] for fact in facts})
    return Call(_accumulate, function, seed, batches, before, unused, gives=gives, name=name)


@check(ACCUMULATE, points=1.75)
def gradients_weigh_all_items_alike(accumulate_gradients, *, rng):
    """The gradients are in proportion to those of one forward and backward pass over all micro-batches at once."""
    drawn = [tuple(rng.integers(1, 7, int(rng.integers(1, 6)))) for _ in range(int(rng.integers(5, 9)))]
    for name, counts in {
        "4 micro-batches, unequal token counts": UNEQUAL,
        "1 micro-batch": UNEQUAL[:1],
        "the same shapes, other counts": [tuple(6 - count for count in rows) for rows in UNEQUAL[2:]],
        f"{len(drawn)} micro-batches of 1 to 5 rows": drawn,
    }.items():
        yield _case(accumulate_gradients, rng, name, counts, "shares")


@check(ACCUMULATE, points=0.5)
def gradients_are_divided_by_all_items(accumulate_gradients, *, rng):
    """The gradients are as large as those of the whole batch: their sum is divided by the number of all items."""
    yield _case(accumulate_gradients, rng, "4 micro-batches, unequal token counts", UNEQUAL, "length")
    yield _case(accumulate_gradients, rng, "3 micro-batches, other counts", [(6, 2), (5, 5, 5), (1,)], "length")


@check(ACCUMULATE, points=0.25)
def loss_is_that_of_the_whole_batch(accumulate_gradients, *, rng):
    """The returned loss is a float, the mean over all items that count."""
    yield _case(accumulate_gradients, rng, "4 micro-batches, unequal token counts", UNEQUAL, "loss", "kind")
    counts = [tuple(rng.integers(1, 7, 2)) for _ in range(5)]
    yield _case(accumulate_gradients, rng, "5 micro-batches of 2 rows", counts, "loss", "kind")


@check(ACCUMULATE, points=0.25)
def nothing_may_count_in_a_micro_batch(accumulate_gradients, *, rng):
    """Micro-batches in which nothing counts change nothing."""
    for name, counts in (
        ("5 micro-batches, two of them wholly masked", MASKED),
        ("the last micro-batch is wholly masked", [*UNEQUAL, (0,)]),
    ):
        seed, batches = int(rng.integers(2**31)), _batches(rng, counts)
        yield Call(_beside_masked, accumulate_gradients, seed, batches, gives=Moved(""), name=name)


@check(ACCUMULATE, points=0.25)
def old_gradients_do_not_count(accumulate_gradients, *, rng):
    """What was in .grad before the call has no part in the result."""
    yield _case(accumulate_gradients, rng, "1 micro-batch, every .grad was 1 before", UNEQUAL[:1], "shares", before=1.0)


@check(ACCUMULATE, points=0.25)
def unused_parameters_get_no_gradient(accumulate_gradients, *, rng):
    """A parameter that the model does not use has no gradient afterwards, or zeros."""
    yield _case(accumulate_gradients, rng, "1 micro-batch, an unused layer", UNEQUAL[:1], "shares", unused=True)


@check(ACCUMULATE, points=0.75)
def one_graph_is_alive(accumulate_gradients, *, rng):
    """A forward pass sees one micro-batch, each has at most two passes, and no graphs pile up."""
    for sizes in ([3] * 8, [1, 2, 5, 5, 1], [int(n) for n in rng.integers(2, 6, 6)]):
        counts = [tuple(rng.integers(1, 7, n)) for n in sizes]
        name = f"micro-batches of {sizes} rows"
        yield _case(accumulate_gradients, rng, name, counts, "rows", "passes", "graphs")
