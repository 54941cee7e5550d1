"""Exercise 5: which gradients are averaged, and which only divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank
from autograder.checking.stage import run_ranks

GRADIENTS = "14-ex5-gradients"
#: name → (shape, whether only this rank has it, whether it is trained).
PARAMETERS = {
    "first": ((3, 2), False, True),
    "own": ((4,), True, True),
    "frozen": ((2,), False, False),
    "second": ((5,), False, True),
    "own too": ((2, 3), True, True),
    "own frozen": ((2,), True, False),
    "last": ((), False, True),
}
#: These have a second name in another part of the module.
TIED = ("first", "own")
SHARED = [name for name, (_, own, trained) in PARAMETERS.items() if trained and not own]


@dataclass(frozen=True)
class Case:
    """grads[r][name]: rank r's gradient, or None."""

    name: str
    dtype: str
    grads: list[dict[str, np.ndarray | None]]

    def of(self, name: str) -> list[np.ndarray | None]:
        """The gradients of one parameter, rank by rank."""
        return [one[name] for one in self.grads]

    def wanted(self, rank: int) -> dict[str, np.ndarray | None]:
        """What each parameter of a rank should have afterwards."""
        found: dict[str, np.ndarray | None] = {}
        for name, (shape, own, trained) in PARAMETERS.items():
            mine = self.grads[rank][name]
            if not trained or (own and mine is None):
                found[name] = mine
            elif own:
                found[name] = mine / len(self.grads)
            else:
                found[name] = np.mean([np.zeros(shape) if g is None else g for g in self.of(name)], axis=0)
        return found


def _cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    cases = []
    frozen = {name for name, (_, _, trained) in PARAMETERS.items() if not trained}
    last = world_size - 1
    for dtype, missing in (
        ("float64", ()),
        ("float32", ((0, "first"),)),
        ("float64", ((last, "second"),)),
        # On one rank, zeros in its place would not tell whether they were sent.
        *([("float64", ((0, "own"),))] if world_size > 1 else []),
    ):
        grads = [_drawn(rng, frozen | {name for r, name in missing if r == rank}) for rank in range(world_size)]
        words = [f"rank {rank} has no gradient of {name!r}" for rank, name in missing]
        cases.append(Case(", ".join([count_of_ranks(world_size), dtype, *words]), dtype, grads))
    words = f"{count_of_ranks(world_size)}, no rank has a gradient of 'last'"
    cases.append(Case(words, "float64", [_drawn(rng, frozen | {"last"}) for _ in range(world_size)]))
    words = f"{count_of_ranks(world_size)}, frozen parameters have a gradient from before"
    cases.append(Case(words, "float64", [_drawn(rng, set()) for _ in range(world_size)]))
    return cases


def _drawn(rng: np.random.Generator, missing: set[str]) -> dict[str, np.ndarray | None]:
    """Gradients of one rank, none of them 0: None for those that are missing."""
    return {
        name: None if name in missing else rng.choice([-1, 1], shape) * rng.integers(1, 65, shape) / 8
        for name, (shape, _, _) in PARAMETERS.items()
    }


def _drive(rank: int, world_size: int, average_gradients: Any, cases: list[Case]) -> list[dict[str, Any]]:
    """Inside a rank: one call for each case, between barriers: the gradients afterwards."""
    seen = []
    for case in cases:
        module, kind = nn.Module(), getattr(torch, case.dtype)
        for name, (shape, _, trained) in PARAMETERS.items():
            p = nn.Parameter(torch.zeros(shape, dtype=kind), requires_grad=trained)
            grad = case.grads[rank][name]
            p.grad = None if grad is None else torch.from_numpy(np.asarray(grad)).to(kind).clone()
            module.register_parameter(name.replace(" ", "_"), p)
        module.other = nn.Module()
        for name in TIED:
            module.other.register_parameter(name, getattr(module, name))
        own = [getattr(module, name.replace(" ", "_")) for name, (_, own, _) in PARAMETERS.items() if own]
        dist.barrier()
        average_gradients(module, own)
        dist.barrier()
        grads = {name: getattr(module, name.replace(" ", "_")).grad for name in PARAMETERS}
        seen.append({name: None if g is None else g.double().numpy().copy() for name, g in grads.items()})
    return seen


@check(GRADIENTS, points=1.5)
def gradients_are_those_of_the_mean_loss(average_gradients, *, rng):
    """Shared gradients become the mean over the ranks, None as zeros; local ones are divided by N; frozen ones stay."""
    for world_size in (1, 2, 3, 4):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (average_gradients, cases))
        for c, case in enumerate(cases):
            _expect_gradients(case, [one[c] for one in results])


def _expect_gradients(case: Case, outcomes: list[dict]) -> None:
    """Each rank's gradients are the wanted ones."""
    for rank, mine in each_rank(case.name, outcomes, evidence=_plain):
        for name, want in case.wanted(rank.rank).items():
            what = f"the gradient of {name!r}"
            if want is None:
                rank.expect(mine[name] is None, f"{what} is no longer None")
            else:
                rank.expect(mine[name] is not None, f"{what} is None")
                rtol = 1e-6 if case.dtype == "float32" else 1e-13
                rank.expect_close(mine[name], want, what=what, rtol=rtol)


def _plain(mine: dict[str, Any]) -> list:
    return ["None" if grad is None else grad for grad in mine.values()]


@check(GRADIENTS, points=0.5)
def shared_numbers_are_reduced_once(average_gradients, *, rng):
    """Each number of the shared gradients goes into an all-reduce once, tied or not, and nothing else is sent."""
    numel = sum(int(np.prod(PARAMETERS[name][0], dtype=int)) for name in SHARED)
    for world_size in (2, 3):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (average_gradients, cases))
        parts = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for c, case in enumerate(cases):
            sent = [[(m.call, m.bytes) for m in mine[2 * c + 1]] for mine in parts]
            for rank, mine in each_rank(case.name, sent):
                other = [call for call, _ in mine if call != "all_reduce"]
                rank.expect(not other, f"{(other or [''])[0]} was called, expected all-reduces only")
                want = numel * getattr(torch, case.dtype).itemsize
                rank.expect_equal(sum(n for _, n in mine), want, what="the number of bytes put into all-reduces")
            _expect_gradients(case, [one[c] for one in results])
