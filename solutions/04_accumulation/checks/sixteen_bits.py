"""Exercise 3: gradients of a 16-bit model, added up in float32."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Call, at_most, close, evidence, fact
from autograder.checks.check import check

MAIN = "04-ex3-main-gradients"
#: Of a gradient's largest entry. Rounding a float32 sum to bfloat16 in the end changes it by 0.4 percent; in bfloat16,
#: the sum of `LONG` stops growing when a third of it is there.
RTOL = 1e-2
#: How many rows each micro-batch has, and how many of them count.
LONG = [(1, 1)] * 1000
UNEQUAL, EQUAL = [(4, 1), (4, 4)], [(4, 2), (4, 2)]
#: About what a row's entries are in the first `FADES` micro-batches, and in those after them. A sum that stalls is then
#: too small beside one that has stopped growing: its error shows in the proportions, whatever all are divided by.
SCALES, FADES = torch.tensor([[1, 1], [0.5, 0], [0.25, 0.25]]), 100
#: `Line` uses one more layer for rows above 4.
LATER = [(2, 2), (5, 2), (6, 2)]


class Line(nn.Module):
    """x (B, 3) → (B, 2) in bfloat16, with a layer that it uses for more than 4 rows, one without use, and a frozen one.

    Counts the gradients that are alive.
    """

    def __init__(self, seed: int):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.compute, self.more, self.spare, self.frozen = (nn.Linear(3, 2) for _ in range(4))
        self.frozen.requires_grad_(False)
        self.to(torch.bfloat16)
        self.grads: list[weakref.ref] = []
        self.most_alive = self.carried = 0
        self.compute.weight.register_post_accumulate_grad_hook(self._count)

    def _count(self, weight: torch.Tensor) -> None:
        self.grads.append(weakref.ref(weight.grad))
        self.most_alive = max(self.most_alive, len({id(grad) for ref in self.grads if (grad := ref()) is not None}))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        self.carried += self.compute.weight.grad is not None
        y = self.compute(x) + self.frozen(x)
        return y + self.more(x) if len(x) > 4 else y


def masked_sum(prediction: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The sum of the predictions where y is 1, and how many rows that are: a row's gradient is the row itself."""
    return (prediction * y[:, None]).sum(), int(y.sum())


def _micro_batches(seed: int, sizes: list[tuple[int, int]]) -> list[tuple]:
    """Rows near (1, 1/2, 1/4), so that they add up to sums that grow; the second entry only at the beginning."""
    g = torch.Generator().manual_seed(seed)
    batches = []
    for k, (rows, counted) in enumerate(sizes):
        x = SCALES[:, int(k >= FADES)] * (1 + 0.1 * torch.rand(rows, 3, generator=g))
        batches.append((x.bfloat16(), (torch.arange(rows) < counted).bfloat16()))
    return batches


@dataclass
class Main:
    """What main_gradients returned and left behind."""

    count: int = fact("the number of tensors")
    used: Any = fact("the gradient of parameter {}")
    unused: Any = fact("the gradient of parameter {}, which has none in .grad,")
    dtypes: Any = fact("the list of the gradients' dtypes")
    left: int = fact("the number of parameters with a .grad afterwards")
    alive: Any = fact("the number of micro-batches whose .grad are alive", "add each up before the next backward")
    carried: int = evidence()
    shares: Any = fact("the gradient of parameter {}, scaled so that all gradients together have length 1,")


def _main(main_gradients: Any, seed: int, sizes: list, before: float | None) -> Main:
    model = Line(seed)
    for p in model.parameters():
        p.grad = None if before is None else torch.full_like(p, before)
    got = list(main_gradients(model, masked_sum, _micro_batches(seed, sizes)))
    names = [name for name, _ in model.named_parameters()]
    values = {name: g.detach().double().numpy() for name, g in zip(names, got, strict=False)}
    used = {name: value for name, value in values.items() if _is_used(name, sizes)}
    return Main(
        len(got),
        used,
        {name: value for name, value in values.items() if name not in used},
        sorted({str(g.dtype).removeprefix("torch.") for g in got}),
        sum(p.grad is not None for p in model.parameters()),
        model.most_alive,
        model.carried,
        _shares(used),
    )


def _shares(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """These gradients as parts of one vector of length 1, so that no divisor matters; zeros stay zeros."""
    length = np.sqrt(sum((value**2).sum() for value in values.values()))
    return {name: value / (length or 1.0) for name, value in values.items()}


def _is_used(name: str, sizes: list) -> bool:
    return name.startswith("compute") or (name.startswith("more") and any(rows > 4 for rows, _ in sizes))


def _case(main_gradients: Any, rng, name: str, sizes: list, *facts: str, before: float | None = None) -> Call:
    """A call of which these facts are compared."""
    seed = int(rng.integers(2**31))
    model = Line(seed)
    totals, count = {name: np.zeros(p.shape) for name, p in model.named_parameters()}, 0
    for x, y in _micro_batches(seed, sizes):
        loss_sum, counted = masked_sum(model(x), y)
        wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
        grads = torch.autograd.grad(loss_sum, list(wanted.values()), allow_unused=True)
        for key, grad in zip(wanted, grads, strict=True):
            totals[key] += 0 if grad is None else grad.double().numpy()
        count += counted
    near = {key: close(total / count, rtol=RTOL, atol=1e-12) for key, total in totals.items()}
    used = {key: value for key, value in near.items() if _is_used(key, sizes)}
    shares = _shares({key: totals[key] for key in used})
    expected = {"count": len(near), "used": used, "dtypes": ["float32"], "left": 0, "alive": at_most(1)}
    expected["shares"] = {key: close(value, rtol=RTOL) for key, value in shares.items()}
    expected["unused"] = {key: value for key, value in near.items() if key not in used}
    gives = Main(**{fact: expected[fact] for fact in facts})
    return Call(_main, main_gradients, seed, sizes, before, gives=gives, name=name)


@check(MAIN, points=1.5)
def main_gradients_are_added_in_float32(main_gradients, *, rng):
    """The gradients of a bfloat16 model's micro-batches are added in float32."""
    yield _case(main_gradients, rng, "1,000 micro-batches of 1 row", LONG, "shares")


@check(MAIN, points=0.5)
def main_gradients_are_divided_once(main_gradients, *, rng):
    """The sum of the gradients is divided once by all that counts."""
    yield _case(main_gradients, rng, "2 micro-batches, unequal counts", UNEQUAL, "used")
    masked = [(2, 0), (3, 2), (2, 0), (1, 1)]
    yield _case(main_gradients, rng, "4 micro-batches, two of them wholly masked", masked, "used")


@check(MAIN, points=0.25)
def every_parameter_has_its_tensor(main_gradients, *, rng):
    """There is a tensor for each parameter, in order: zeros without a gradient, which may come late."""
    yield _case(main_gradients, rng, "a frozen parameter and a layer without use", UNEQUAL, "count", "unused")
    yield _case(main_gradients, rng, "3 micro-batches, the first of which does not use a layer", LATER, "shares")


@check(MAIN, points=0.25)
def main_gradients_are_float32(main_gradients, *, rng):
    """The returned tensors are float32."""
    yield _case(main_gradients, rng, "2 micro-batches", UNEQUAL, "dtypes")


@check(MAIN, points=0.25)
def earlier_gradients_do_not_count(main_gradients, *, rng):
    """What was in .grad before the call has no part in the result."""
    yield _case(main_gradients, rng, "2 micro-batches, every .grad was 7 before", EQUAL, "shares", before=7.0)


@check(MAIN, points=0.25)
def one_gradient_is_alive(main_gradients, *, rng):
    """One micro-batch's .grad is alive at a time, and none afterwards."""
    yield _case(main_gradients, rng, "8 micro-batches", [(2, 2)] * 8, "left", "alive")
