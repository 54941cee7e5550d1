"""Lesson 04, exercise 3: gradients of a 16-bit model, added up in float32."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, fail
from autograder.checking.stage import call_inside

MAIN = "04-ex3-main-gradients"

#: Of a gradient's largest entry. 100 addends of one sign in float32 are off by at most 100·6·10⁻⁸ = 6·10⁻⁶ of their
#: sum; in bfloat16 the sum stands still long before.
RTOL = 2e-5

#: How many rows each micro-batch has, and how many of them count. `Line` uses one more layer for rows above 4.
CASES = {
    "2 micro-batches, unequal counts": [(4, 1), (4, 4)],
    "1 micro-batch": [(3, 3)],
    "100 micro-batches of 1 row": [(1, 1)] * 100,
    "4 micro-batches, two of them wholly masked": [(2, 0), (3, 2), (2, 0), (1, 1)],
    "3 micro-batches, the first of which does not use one layer": [(2, 2), (5, 3), (6, 6)],
}
#: The same, in a second call with the same model.
SECOND = "2 micro-batches, a second call with the same model"


class Line(nn.Module):
    """x (B, 3) → (B, 2), with a frozen parameter, one that two layers share, a layer that forward does not use, and one
    that it uses for more than 4 rows. Counts the gradients that are alive."""

    def __init__(self, seed: int, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(seed)
        self.compute, self.spare = nn.Linear(3, 2), nn.Linear(2, 2, bias=False)
        self.more, self.twin = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
        self.twin.weight = self.compute.weight
        self.shift = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.to(dtype)
        self.grads: list[weakref.ref] = []
        self.most_alive = 0
        self.carried = 0  # how many forward passes began with a .grad
        self.compute.weight.register_post_accumulate_grad_hook(self._count)

    def _count(self, weight: torch.Tensor) -> None:
        self.grads.append(weakref.ref(weight.grad))
        self.most_alive = max(self.most_alive, len({id(grad) for ref in self.grads if (grad := ref()) is not None}))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The prediction."""
        self.carried += self.compute.weight.grad is not None
        y = self.compute(x) + self.shift
        return y + self.more(x) + self.twin(x) if len(x) > 4 else y


def masked_sum(prediction: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The sum of the predictions where y is 1, and how many rows that are: a row's gradient is the row itself."""
    return (prediction * y[:, None]).sum(), int(y.sum())


def _micro_batches(seed: int, sizes: list[tuple[int, int]], dtype: torch.dtype) -> list[tuple]:
    """Rows near (1, 1, 1), so that they add up to a sum that grows."""
    g = torch.Generator().manual_seed(seed)
    batches = []
    for rows, counted in sizes:
        x = 1 + 0.1 * torch.rand(rows, 3, generator=g)
        batches.append((x.to(dtype), (torch.arange(rows) < counted).to(dtype)))
    return batches


def _main(
    main_gradients: Any, seed: int, cases: list[tuple[list, str]], stale: float | None, again: bool
) -> list[dict]:
    """Where the submission runs: what it returned for each case, and what it left behind. again: in a second call."""
    seen = []
    with torch.random.fork_rng():
        for sizes, name in cases:
            dtype = getattr(torch, name)
            model = Line(seed, dtype)
            for p in model.parameters():
                p.grad = None if stale is None else torch.full_like(p, stale)
            if again:
                main_gradients(model, masked_sum, _micro_batches(seed + 1, sizes, dtype))
            before = [p.detach().clone() for p in model.parameters()]
            got = main_gradients(model, masked_sum, _micro_batches(seed, sizes, dtype))
            kind = type(got).__name__
            got = list(got) if isinstance(got, (list, tuple)) else []
            seen.append(
                {
                    "kind": kind,
                    "values": [g.detach().double().numpy() if isinstance(g, torch.Tensor) else None for g in got],
                    "dtypes": [str(getattr(g, "dtype", type(g).__name__)) for g in got],
                    "left": sum(p.grad is not None for p in model.parameters()),
                    "alive": model.most_alive,
                    "carried": model.carried,
                    "same": all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)),
                }
            )
    return seen


def _expected(seed: int, sizes: list[tuple[int, int]], dtype: str) -> list[np.ndarray]:
    """Each micro-batch's gradient in the model's dtype, by autograd; added up and divided in float64."""
    with torch.random.fork_rng():
        model = Line(seed, getattr(torch, dtype))
    totals, count = [np.zeros(p.shape) for p in model.parameters()], 0
    for x, y in _micro_batches(seed, sizes, getattr(torch, dtype)):
        loss_sum, counted = masked_sum(model(x), y)
        wanted = [p for p in model.parameters() if p.requires_grad]
        found = iter(torch.autograd.grad(loss_sum, wanted, allow_unused=True))
        grads = [next(found) if p.requires_grad else None for p in model.parameters()]
        totals = [t if g is None else t + g.double().numpy() for t, g in zip(totals, grads, strict=True)]
        count += counted
    return [total / count for total in totals]


def _expect(
    main_gradients: Any,
    rng: np.random.Generator,
    cases: dict[str, tuple],
    stale: float | None = None,
    again: bool = False,
) -> list[dict]:
    """In each case, a list of float32 gradients, one a parameter, with the expected numbers. What was seen there."""
    seed = inputs.seed(rng)
    runs = call_inside(_main, main_gradients, seed, list(cases.values()), stale, again)
    for (case, (sizes, dtype)), seen in zip(cases.items(), runs, strict=True):
        expected = _expected(seed, sizes, dtype)
        evidence = [seen["kind"], seen["dtypes"], seen["carried"], *(v for v in seen["values"] if v is not None)]
        if len(seen["values"]) != len(expected):
            text = f"expected a list of {len(expected)} tensors, one for each parameter"
            fail(f"{text}, got {seen['kind']} with {len(seen['values'])}", case, evidence)
        for k, (got, want) in enumerate(zip(seen["values"], expected, strict=True)):
            if got is None:
                fail(f"gradient {k} is {seen['dtypes'][k]}, expected a float32 tensor", case, evidence)
            expect_close(case, got, want, what=f"gradient {k}", rtol=RTOL, atol=1e-12, evidence=evidence)
    return runs


@check(MAIN, points=2)
def main_gradients_are_added_in_float32(main_gradients, *, rng):
    """The gradients of a bfloat16 model's micro-batches are added in float32, then divided once by all that counts."""
    _expect(main_gradients, rng, {name: (sizes, "bfloat16") for name, sizes in CASES.items()})
    _expect(main_gradients, rng, {SECOND: ([(4, 1), (4, 4)], "bfloat16")}, again=True)


@check(MAIN, points=0.5)
def main_gradients_are_float32_whatever_the_model(main_gradients, *, rng):
    """The returned tensors are float32, whatever the model, and those of unused or frozen parameters are zero."""
    cases = {f"{dtype}, 2 micro-batches": ([(4, 1), (4, 4)], dtype) for dtype in ("bfloat16", "float32", "float64")}
    for case, seen in zip(cases, _expect(main_gradients, rng, cases), strict=True):
        expect_equal(case, seen["dtypes"], ["torch.float32"] * 5, what="the list of dtypes")


@check(MAIN, points=0.5)
def main_gradients_leave_no_grad_behind(main_gradients, *, rng):
    """What was in .grad before does not count; one .grad is alive at a time, none afterwards; no parameter changes."""
    name = "2 micro-batches, every .grad was 7 before"
    cases = {name: ([(4, 1), (4, 4)], "bfloat16"), f"{name}, float32": ([(4, 1), (4, 4)], "float32")}
    for case, seen in zip(cases, _expect(main_gradients, rng, cases, stale=7.0), strict=True):
        if seen["left"]:
            fail(f"{seen['left']} of 5 parameters have a .grad afterwards, expected None", case, seen["left"])
        if not seen["same"]:
            fail("a parameter was changed", case, "changed")
    many = "8 micro-batches"
    [seen] = _expect(main_gradients, rng, {many: ([(2, 2)] * 8, "bfloat16")})
    if seen["alive"] > 1:
        text = f"the .grad of {seen['alive']} micro-batches were alive at once: add each up and drop it before the next"
        fail(text, many, ["alive", seen["alive"]])
