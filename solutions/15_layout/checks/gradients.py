"""Exercise 5: the end of a step on a mesh."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import between_barriers, each_rank
from autograder.checking.stage import run_ranks

FINISH = "15-ex5-finish"
MESHES = ((2, 2), (2, 1), (1, 2), (4, 1), (2, 3))
SPECS = (("sharded", (3, 2)), ("partial", (4,)), ("replicated", (2, 3)), ("sharded", (5,)), ("partial", (2, 2)),
         ("replicated", ()))  # fmt: skip
RTOL = 3e-6
#: More sharded weights than the numbers that may be sent over tp.
MANY = (*SPECS, *[("sharded", (2,))] * 4)
#: Added to eighths, so that no sum over fewer than eight ranks is 0: a check divides by the largest gradient.
OFFSET = 1 / 64


@dataclass(frozen=True)
class Case:
    """tp × dp ranks. grads[rank][i], loss_sums[j] and counts[j] of data-parallel place j; the bound of the norm.

    at_norm: the bound is the norm that the answer itself has returned for the case before.
    """

    name: str
    tp: int
    dp: int
    kinds: tuple[str, ...]
    grads: list[list[np.ndarray]]
    loss_sums: list[float]
    counts: list[int]
    max_norm: float = math.inf
    at_norm: bool = False

    def wanted(self, rank: int) -> list[np.ndarray]:
        """The gradients of the mean loss over all tokens, before they are clipped."""
        found = []
        for i, kind in enumerate(self.kinds):
            places = range(self.tp) if kind == "partial" else [rank % self.tp]
            found.append(sum(self.grads[j * self.tp + t][i] for j in range(self.dp) for t in places) / sum(self.counts))
        return found

    @property
    def norm(self) -> float:
        """The norm of the whole gradient: the pieces of all ranks of tp, and once what is whole on each rank."""
        squares = 0.0
        for i, kind in enumerate(self.kinds):
            for rank in range(self.tp if kind == "sharded" else 1):
                squares += float(np.square(self.wanted(rank)[i]).sum())
        return math.sqrt(squares)

    @property
    def loss(self) -> float:
        """The mean over all tokens that count."""
        return sum(self.loss_sums) / sum(self.counts)


def _case(
    rng: np.random.Generator, tp: int, dp: int, words: str = "", empty: bool = False, specs: tuple = SPECS
) -> Case:
    kinds = tuple(kind for kind, _ in specs)
    grads: list[list[np.ndarray]] = [[] for _ in range(tp * dp)]
    for kind, shape in specs:
        for j in range(dp):
            whole = rng.integers(-64, 65, shape) / 8 + OFFSET
            for t in range(tp):
                own = whole if kind == "replicated" else rng.integers(-64, 65, shape) / 8 + OFFSET
                grads[j * tp + t].append(np.array(own))
    counts = [int(n) for n in rng.permutation(np.arange(2, 2 + 3 * dp))[:dp]]
    loss_sums = [float(rng.integers(8, 800)) / 8 for _ in range(dp)]
    if empty:
        counts[0], loss_sums[0] = 0, 0.0
        for mine in grads[:tp]:
            for one in mine:
                one *= 0
    name = f"tp = {tp}, dp = {dp}, counts {counts}" + (f", {words}" if words else "")
    return Case(name, tp, dp, kinds, grads, loss_sums, counts)


def _drive(rank: int, world_size: int, function: Any, cases: list[Case]) -> list[dict[str, Any]]:
    """Inside a rank: one call for each case, between barriers; all cases are for the same mesh."""
    tp, dp = cases[0].tp, cases[0].dp
    groups = []
    for members in (
        *(list(range(j * tp, (j + 1) * tp)) for j in range(dp)),
        *(list(range(t, tp * dp, tp)) for t in range(tp)),
    ):
        group = dist.new_group(members)
        if rank in members:
            groups.append(group)
    seen = []
    for case in cases:
        params = []
        for grad in case.grads[rank]:
            p = nn.Parameter(torch.zeros(grad.shape))
            p.grad = torch.from_numpy(grad.copy()).float()
            params.append(p)
        j = rank // tp
        bound = seen[-1].get("norm", math.nan) if case.at_norm else case.max_norm
        dist.barrier()
        one: dict[str, Any] = {"error": None}
        try:
            found = function(params, list(case.kinds), case.loss_sums[j], case.counts[j], groups[0], groups[1], bound)
            pair = isinstance(found, tuple | list) and len(found) == 2
            one["kinds"] = [type(x).__name__ for x in found] if pair else type(found).__name__
            one["loss"], one["norm"] = (float(x) for x in found) if pair else (math.nan, math.nan)
        except ValueError as error:
            one["error"] = str(error)
        one["grads"] = [None if p.grad is None else p.grad.double().numpy().copy() for p in params]
        seen.append(one)
    dist.barrier()
    return seen


def _evidence(one: dict[str, Any]) -> list:
    numbers = [] if one["error"] is not None else [one["loss"], one["norm"]]
    return [*numbers, *("None" if grad is None else grad for grad in one["grads"])]


def _expect_means(case: Case, outcomes: list[dict]) -> None:
    """Each rank's gradients and loss are those of the mean over all tokens."""
    for rank, one in each_rank(case.name, outcomes, evidence=_evidence):
        rank.expect(one["error"] is None, f"raised a ValueError: {one['error']}")
        for i, (kind, want) in enumerate(zip(case.kinds, case.wanted(rank.rank), strict=True)):
            rank.expect(one["grads"][i] is not None, f"the gradient of parameter {i}, {kind}, is None")
            what = f"the gradient of parameter {i}, {kind},"
            rank.expect_close(one["grads"][i], want, what=what, rtol=RTOL, atol=1e-6)
        rank.expect_close(one["loss"], np.array(case.loss), what="the returned loss", rtol=1e-6)


@check(FINISH, points=2.5)
def gradients_are_those_of_the_mean_over_all_tokens(finish_gradients, *, rng):
    """Every .grad and the loss are those of all losses over all counts, also with unequal counts and a count of 0."""
    for tp, dp in MESHES:
        cases = [_case(rng, tp, dp)] + ([_case(rng, tp, dp, "one of 0", empty=True)] if dp > 1 else [])
        results = run_ranks(_drive, tp * dp, (finish_gradients, cases))
        for c, case in enumerate(cases):
            _expect_means(case, [mine[c] for mine in results])


@check(FINISH, points=1)
def each_number_of_the_model_counts_once(finish_gradients, *, rng):
    """The norm is that of the whole gradient, each number of the model counted once; loss and norm are floats."""
    for tp, dp in MESHES:
        cases = [_case(rng, tp, dp)]
        results = run_ranks(_drive, tp * dp, (finish_gradients, cases))
        for c, case in enumerate(cases):
            for rank, one in each_rank(case.name, [mine[c] for mine in results], evidence=_evidence):
                kinds = [mine[c]["kinds"] for mine in results]
                what = "the list of the types returned"
                rank.expect_equal(one["kinds"], ["float", "float"], what=what, evidence=kinds)
                rank.expect_close(one["norm"], np.array(case.norm), what="the returned norm", rtol=1e-5)


@check(FINISH, points=0.5)
def gradients_above_the_bound_are_scaled(finish_gradients, *, rng):
    """If the norm is above max_norm, every .grad is multiplied by max_norm / (norm + 1e-6); otherwise it stays."""
    for tp, dp in ((2, 2), (1, 2), (4, 1)):
        drawn = [_case(rng, tp, dp) for _ in range(4)]
        for mine in (*drawn[2].grads, *drawn[3].grads):  # so small that the 1e-6 counts
            for grad in mine:
                grad *= 2.0**-22
        bounds = [(drawn[0].norm * 0.3, "0.3 times the norm"), (drawn[1].norm * 2, "twice the norm")]
        bounds += [(drawn[2].norm * 0.6, "0.6 times a tiny norm"), (drawn[3].norm * 1.05, "1.05 times a tiny norm")]
        cases = [_bounded(one, f"max_norm {words}", bound) for one, (bound, words) in zip(drawn, bounds, strict=True)]
        cases += [_bounded(drawn[3], "max_norm exactly the norm that you returned before", math.inf, at_norm=True)]
        cases += [_bounded(drawn[0], "max_norm 0", 0.0)]
        results = run_ranks(_drive, tp * dp, (finish_gradients, cases))
        for c, case in enumerate(cases):
            scale = case.max_norm / (case.norm + 1e-6) if case.norm > case.max_norm else 1.0
            for rank, one in each_rank(case.name, [mine[c] for mine in results], evidence=_evidence):
                for i, (kind, want) in enumerate(zip(case.kinds, case.wanted(rank.rank), strict=True)):
                    got = one["grads"][i]
                    rank.expect(got is not None, f"the gradient of parameter {i}, {kind}, is None")
                    bound = np.abs(want).max() * (scale or 1.0)
                    what = f"the gradient of parameter {i}, {kind},"
                    rank.expect_close(got / bound, want * scale / bound, what=what, rtol=2e-5)
                rank.expect_close(one["norm"], np.array(case.norm), what="the returned norm", rtol=1e-5)


def _bounded(case: Case, words: str, max_norm: float, at_norm: bool = False) -> Case:
    """The case with another bound; the words name this bound."""
    return replace(case, name=f"{case.name}, {words}", max_norm=max_norm, at_norm=at_norm)


def _numbers(message: Any) -> int:
    """How many numbers a rank put into a collective."""
    kind = getattr(torch, (message.dtype or "").removeprefix("torch."), None)
    return message.bytes // (kind.itemsize if isinstance(kind, torch.dtype) else 4)


@check(FINISH, points=0.5)
def each_gradient_is_sent_once(finish_gradients, *, rng):
    """Only all-reduces: over dp the gradients once and two numbers, over tp the partial ones and four at most."""
    numel = {
        kind: sum(int(np.prod(s, dtype=int)) for k, s in MANY if kind in (k, "all")) for kind in ("partial", "all")
    }
    for tp, dp in ((2, 2), (2, 3), (4, 1), (1, 2)):
        cases = [_case(rng, tp, dp, specs=MANY), _case(rng, tp, dp, "one of 0" if dp > 1 else "", dp > 1, MANY)]
        cases += [_bounded(cases[0], "max_norm half the norm", cases[0].norm / 2)]
        results = run_ranks(_drive, tp * dp, (finish_gradients, cases))
        sizes = f"tp = {tp}, dp = {dp}"
        parts = between_barriers(results, tp * dp, len(cases) + 1, "expected all-reduces only", sizes)
        for c, case in enumerate(cases):
            calls = [[(m.call, _numbers(m), m.group) for m in mine[c + 1]] for mine in parts]
            for rank, mine in each_rank(case.name, calls, evidence=lambda one: [list(call[:2]) for call in one]):
                over = {"tp": 0, "dp": 0}
                for call, numbers, members in mine:
                    rank.expect(call == "all_reduce", f"{call} was called, expected all-reduces only")
                    first = rank.rank // tp * tp
                    axes = {tuple(range(first, first + tp)): "tp", tuple(range(rank.rank % tp, tp * dp, tp)): "dp"}
                    rank.expect(members in axes, "an all-reduce went over other ranks than those of tp or of dp")
                    over[axes[members]] += numbers
                most = {"dp": numel["all"] + 2, "tp": numel["partial"] + 4}
                for axis in ("dp", "tp"):
                    text = f"{over[axis]} numbers were put into all-reduces over {axis}, expected at most {most[axis]}"
                    rank.expect(over[axis] <= most[axis], text)
            if case.max_norm == math.inf:
                _expect_means(case, [mine[c] for mine in results])


@check(FINISH, points=0.5)
def unknown_kinds_are_refused(finish_gradients, *, rng):
    """An unknown kind is a ValueError that contains it, on every rank, before any message."""
    drawn = _case(rng, 2, 1)
    wrong, cases = {0: "shared", 2: "Sharded", 3: "part"}, [drawn] * 4
    for c, place in ((0, 0), (2, 5), (3, 1)):
        kinds = tuple(wrong[c] if i == place else one for i, one in enumerate(drawn.kinds))
        name = f"tp = 2, dp = 1, parameter {place} is {wrong[c]!r}"
        cases[c] = Case(name, 2, 1, kinds, drawn.grads, drawn.loss_sums, drawn.counts)
    results = run_ranks(_drive, 2, (finish_gradients, cases))
    for c, kind in wrong.items():
        sent = [len(results.ledger.of(rank).between_barriers()[c + 1]) for rank in range(2)]
        for rank, (one, messages) in each_rank(
            cases[c].name,
            list(zip((mine[c] for mine in results), sent, strict=True)),
            evidence=lambda pair: [str(pair[0]["error"]), pair[1]],
        ):
            rank.expect(one["error"] is not None, "raised no ValueError")
            rank.expect(kind in one["error"], f"the ValueError should contain {kind!r}, but it says {one['error']!r}")
            rank.expect(not messages, "called a collective before the ValueError")
    _expect_means(drawn, [mine[1] for mine in results])
