"""Exercise 4: the layer over all ranks, against one process that holds all experts and goes token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import REFUSALS, check
from autograder.checking.expect import caught, count_of_ranks, each_rank, fail
from autograder.checking.stage import picture, run_ranks
from autograder.checks.experts.routing import APART, places
from ranks.ledger import Ledger

LAYER = "14-ex4-layer"
#: Of the largest entry: the layer adds in another order than one process.
BOUNDS = {"float32": 1e-5, "float64": 1e-12}


class Expert(nn.Module):
    """Two linear layers with a GELU in between; it lists how many rows it was called with."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, width + 2), nn.Linear(width + 2, width)
        self.calls: list[int] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """rows: (m, C) → (m, C)."""
        self.calls.append(len(rows))
        return self.down(nn.functional.gelu(self.up(rows)))


@dataclass(frozen=True)
class Case:
    """One forward and backward of a layer. sizes: how many tokens each rank has.

    pull: added to the router's bias for expert 0, so that it is chosen more often, or always. bias: for the layer's
    own buffer, or None. needs: does x require a gradient?
    """

    name: str
    each: int
    k: int
    sizes: tuple[int, ...]
    dtype: str
    seed: int
    factor: float | None = None
    pull: float = 0.0
    bias: tuple[float, ...] | None = None
    needs: bool = True
    width: int = 6

    @property
    def num_experts(self) -> int:
        """On all ranks together."""
        return self.each * len(self.sizes)

    def modules(self) -> tuple[nn.Linear, list[Expert]]:
        """The router and all experts, the same wherever this is called."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            router, experts = (
                nn.Linear(self.width, self.num_experts),
                [Expert(self.width) for _ in range(self.num_experts)],
            )
        kind = getattr(torch, self.dtype)
        with torch.no_grad():
            router.weight *= 1.5
            router.bias[0] += self.pull
        return router.to(kind), [expert.to(kind) for expert in experts]

    def tensors(self, rank: int) -> list[torch.Tensor]:
        """x of one rank, and what its outputs and probabilities are multiplied with in the loss."""
        g = torch.Generator().manual_seed(self.seed % 2**30 * 16 + rank)
        widths = (self.width, self.width, self.num_experts)
        return [
            torch.randn(self.sizes[rank], w, generator=g, dtype=torch.float64).to(getattr(torch, self.dtype))
            for w in widths
        ]

    def kept(self, rank: int) -> list[list[int]]:
        """By the definition: expert → the places of this rank that it keeps."""
        return self._keeps(self.routed(rank)[1])

    def _keeps(self, chosen: np.ndarray) -> list[list[int]]:
        most = None if self.factor is None else math.ceil(self.factor * self.k * len(chosen) / self.num_experts)
        return places(chosen, self.num_experts, most)

    def routed(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Probability + bias (n, E) and the chosen experts (n, k)."""
        router, _ = self.modules()
        with torch.no_grad():
            scores = router(self.tensors(rank)[0]).softmax(-1).double().numpy()
        scores = scores + (0.0 if self.bias is None else np.array(self.bias))
        return scores, np.argsort(-scores, axis=1)[:, : self.k]

    def is_useful(self, all_used: bool) -> bool:
        """Are the choices far from a tie, every expert used where that is asked for, and some place dropped?"""
        routes = [self.routed(rank) for rank in range(len(self.sizes))]
        scores = np.concatenate([mine for mine, _ in routes])
        best = -np.sort(-scores, axis=1)[:, : self.k + 1]
        if np.any(-np.diff(best, axis=1) <= APART):  # rounding could change the choice
            return False
        kept = np.sum([[len(mine) for mine in self._keeps(chosen)] for _, chosen in routes], axis=0)
        dropped = self.k * sum(self.sizes) - int(kept.sum())
        return (not all_used or bool(np.all(kept > 0))) and (self.factor is None or dropped > 0)


def make(
    rng: np.random.Generator,
    name: str,
    each: int,
    k: int,
    sizes: tuple[int, ...],
    dtype: str,
    all_used: bool = True,
    **more: Any,
) -> Case:
    """A fresh case, drawn again until it is useful."""
    words = f"{count_of_ranks(len(sizes))} with {each} experts each, k = {k}, tokens {list(sizes)}, {dtype}"
    for _ in range(2000):
        case = Case(f"{words}, {name}" if name else words, each, k, sizes, dtype, int(rng.integers(2**31)), **more)
        if case.is_useful(all_used):
            return case
    raise RuntimeError(f"no useful case was found: {words}, {name}")


# ---- inside a rank ----


def _drive(rank: int, world_size: int, layer_class: Any, cases: list[Case]) -> list[dict[str, Any]]:
    """Inside a rank: each case built, forward, backward, with barriers around both."""
    return [_run(rank, layer_class, case) for case in cases]


def _run(rank: int, layer_class: Any, case: Case) -> dict[str, Any]:
    router, experts = case.modules()
    mine = experts[rank * case.each : (rank + 1) * case.each]
    x, slope, of_p = case.tensors(rank)
    x.requires_grad_(case.needs)
    layer = layer_class(router, mine, case.k) if case.factor is None else layer_class(router, mine, case.k, case.factor)
    if case.bias is not None:
        layer.bias.copy_(torch.tensor(case.bias))
    listed = {id(p) for p in layer.parameters()}
    dist.barrier()
    result = layer(x)
    dist.barrier()
    triple = isinstance(result, (tuple, list)) and len(result) == 3
    if triple:
        y, probabilities, chosen = result
        ((y * slope).sum() + (probabilities * of_p).sum()).backward()
    dist.barrier()
    if not triple:
        return {"triple": False}
    grads = {"the gradient of x": x.grad} if case.needs else {}
    grads |= {f"the gradient of the router's {name}": p.grad for name, p in router.named_parameters()}
    for number, expert in enumerate(mine):
        grads |= {f"the gradient of {name} of its expert {number}": p.grad for name, p in expert.named_parameters()}
    return {
        "triple": True,
        "arrays": {"y": _array(y), "the probabilities": _array(probabilities), "chosen": _array(chosen)},
        "grads": {name: _array(grad) for name, grad in grads.items()},
        "kind": str(y.dtype)[6:],
        "calls": [expert.calls for expert in mine],
        "listed": all(id(p) in listed for part in (router, *mine) for p in part.parameters()),
    }


def _array(t: torch.Tensor | None) -> np.ndarray | None:
    return None if t is None else t.detach().to(torch.float64).numpy().copy()


# ---- one process ----


def one_process(case: Case) -> list[dict[str, Any]]:
    """rank → outputs and gradients of a layer that holds all experts; each rank's loss is its own."""
    router, experts = case.modules()
    found, totals = [], []
    for rank in range(len(case.sizes)):
        x, slope, of_p = case.tensors(rank)
        x.requires_grad_()
        probabilities = router(x).softmax(-1)
        y = [torch.zeros(case.width, dtype=x.dtype) for _ in range(len(x))]
        for expert, mine in enumerate(case.kept(rank)):
            for place in mine:
                token = place // case.k
                y[token] = y[token] + probabilities[token, expert] * experts[expert](x[token][None])[0]
        whole = torch.stack(y) if y else torch.zeros(0, case.width, dtype=x.dtype)
        loss = (whole * slope).sum() + (probabilities * of_p).sum()
        router.zero_grad()
        loss.backward()
        arrays = {"y": _array(whole), "the probabilities": _array(probabilities)}
        arrays["chosen"] = case.routed(rank)[1].astype(np.float64)
        grads = {"the gradient of x": _array(x.grad)} if case.needs else {}
        grads |= {f"the gradient of the router's {name}": _array(p.grad) for name, p in router.named_parameters()}
        found.append({"arrays": arrays, "grads": grads})
        totals.append(experts[rank * case.each : (rank + 1) * case.each])
    for one, mine in zip(found, totals, strict=True):  # an expert's gradient is the sum over all ranks' tokens
        for number, expert in enumerate(mine):
            for name, p in expert.named_parameters():
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                one["grads"][f"the gradient of {name} of its expert {number}"] = _array(grad)
    return found


def try_cases(layer_class: Any, cases: list[Case]) -> Any:
    """One launch; every number is that of one process. Returns the results, for what else is to be seen."""
    results = run_ranks(_drive, len(cases[0].sizes), (layer_class, cases))
    for c, case in enumerate(cases):
        outcomes, want = [mine[c] for mine in results], one_process(case)
        if not all(one["triple"] for one in outcomes):
            fail("forward should return a tuple of y, probabilities and chosen", case.name, "no triple")
        rtol = BOUNDS[case.dtype]
        seen = [[one["arrays"]["y"], one["grads"]] for one in outcomes]
        for rank, (one, right) in each_rank(
            case.name, zip(outcomes, want, strict=True), evidence=lambda _, seen=seen: seen
        ):
            rank.expect_equal(one["kind"], case.dtype, what="the dtype of y")
            for name, array in right["arrays"].items():
                rank.expect_close(one["arrays"][name], array, what=name, rtol=rtol)
            rank.expect(
                one["listed"], "the router and the experts are not all among the layer's parameters()", "listed"
            )
        for rank, (one, right) in each_rank(
            case.name, zip(outcomes, want, strict=True), evidence=lambda _, seen=seen: seen
        ):
            for name, array in right["grads"].items():
                rank.expect(one["grads"][name] is not None, f"{name} is None")
                rank.expect_close(one["grads"][name], array, what=name, rtol=rtol, atol=rtol)
    return results


# ---- checks ----


@check(LAYER, points=2.5)
def the_layer_equals_one_process(ExpertParallel, *, rng):
    """Outputs and all gradients are those of one process that holds all experts, for any number of ranks and tokens."""
    for world_size in (1, 2, 3, 4):
        sizes = (5, 3, 7, 4)[:world_size]
        biased = tuple(rng.integers(-4, 5, 2 * world_size) / 64)  # small: every expert is still chosen
        cases = [make(rng, "", 2, 2, sizes, "float64"), make(rng, "", 2, 1, sizes, "float32")]
        cases += [make(rng, "with a bias", 2, 2, sizes, "float64", bias=biased)]
        cases += [make(rng, "x needs no gradient", 3, 2, sizes, "float64", needs=False)] if world_size == 2 else []
        try_cases(ExpertParallel, cases)


@check(LAYER, points=0.5)
def full_experts_drop_the_rest(ExpertParallel, *, rng):
    """With a capacity factor, each rank drops by its own number of tokens; a dropped place adds 0, other gates stay."""
    for world_size in (2, 3):
        sizes = (9, 4, 6)[:world_size]
        cases = [
            make(rng, f"factor {factor:g}", 2, k, sizes, "float64", factor=factor, pull=1.0)
            for factor, k in ((1.0, 2), (0.5, 1), (1.25, 2))
        ]
        try_cases(ExpertParallel, cases)


@check(LAYER, points=0.75)
def experts_without_rows_take_part(ExpertParallel, *, rng):
    """Ranks without tokens and experts without rows make the calls that all others make; their gradients are 0."""
    cases = [
        make(rng, "some ranks without tokens", 2, 2, (5, 0, 9, 1), "float64", all_used=False),
        make(rng, "all tokens to one expert", 2, 1, (4, 6, 3, 2), "float64", all_used=False, pull=60.0),
        make(rng, "no tokens at all", 1, 1, (0, 0, 0, 0), "float64", all_used=False),
    ]
    try_cases(ExpertParallel, cases)


@check(LAYER, points=0.5)
def rows_travel_four_times(ExpertParallel, *, rng):
    """Only the counts and the kept rows travel, by send and receive; each expert is called once."""
    for world_size in (1, 2, 4):
        sizes = (6, 5, 8, 3)[:world_size]
        cases = [
            make(rng, "", 2, 2, sizes, "float64"),
            # On one rank with two experts, k = 2 would serve every token.
            make(rng, "factor 1", 2, min(2, world_size), sizes, "float64", factor=1.0, pull=1.0),
        ]
        cases += [make(rng, "", 1, 1, sizes, "float32")]
        cases += [make(rng, "all tokens to one expert", 2, 1, sizes, "float64", all_used=False, pull=60.0)]
        results = try_cases(ExpertParallel, cases)
        parts = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for c, case in enumerate(cases):
            _expect_calls(case, [mine[c]["calls"] for mine in results])
            _expect_bytes(case, [part[3 * c + 1 : 3 * c + 3] for part in parts])


def _expect_calls(case: Case, calls: list) -> None:
    kept = [case.kept(rank) for rank in range(len(case.sizes))]
    for rank, mine in each_rank(case.name, calls):
        first = rank.rank * case.each
        want = [[sum(len(one[first + e]) for one in kept)] for e in range(case.each)]
        rank.expect_equal(mine, want, what="the list of each expert's calls, by their rows,")


def _expect_bytes(case: Case, parts: list) -> None:
    """Forward: counts, rows, results. Backward: the same rows, both ways."""
    world_size = len(case.sizes)
    kept = [[len(mine) for mine in case.kept(rank)] for rank in range(world_size)]
    owner = [expert // case.each for expert in range(case.num_experts)]
    row = case.width * getattr(torch, case.dtype).itemsize
    for part, when in enumerate(("forward", "backward")):
        messages = [mine[part] for mine in parts]
        picture(Ledger([m for one in messages for m in one], world_size))
        for rank, mine in each_rank(case.name, messages, evidence=lambda one: [(m.call, m.bytes) for m in one]):
            other = [m.call for m in mine if m.is_collective]
            rank.expect(not other, f"{(other or [''])[0]} was called {when}: send with the exchange of exercise 3")
            r = rank.rank
            out = sum(count for expert, count in enumerate(kept[r]) if owner[expert] != r)
            back = sum(
                kept[s][e] for s in range(world_size) if s != r for e in range(case.num_experts) if owner[e] == r
            )
            want = row * (out + back) + (8 * case.each * (world_size - 1) if when == "forward" else 0)
            got = sum(m.bytes for m in mine if m.is_send)
            rank.expect_equal(got, want, what=f"the number of bytes sent {when}")


def _drive_refused(
    rank: int, world_size: int, layer_class: Any, counts: list[tuple[int, int]]
) -> list[tuple[str, str]]:
    return [
        caught(layer_class, nn.Linear(4, num_experts), [Expert(4) for _ in range(held)], 1)
        for num_experts, held in counts
    ]


@check(LAYER, points=0.25, fixed=REFUSALS)
def experts_must_fit_the_ranks(ExpertParallel):
    """A router for more or fewer experts than the ranks hold together is a ValueError that names `experts`."""
    for world_size, counts in ((1, [(4, 3), (4, 4), (4, 5)]), (3, [(4, 1), (4, 2), (3, 1), (6, 1), (3, 0)])):
        results = run_ranks(_drive_refused, world_size, (ExpertParallel, counts))
        for c, (num_experts, held) in enumerate(counts):
            case = f"{count_of_ranks(world_size)} with {held} experts each, a router for {num_experts}"
            for rank, (kind, text) in each_rank(case, [mine[c] for mine in results], evidence=lambda one: one[0]):
                if num_experts == held * world_size:
                    rank.expect(not kind, f"raised {kind}: {text}, expected no error", raised=kind)
                    continue
                rank.expect(kind == "ValueError", f"expected a ValueError, got {kind or 'none'}")
                rank.expect("experts" in text, f"the ValueError should name 'experts', but it says {text!r}", "unnamed")


def _drive_buffers(rank: int, world_size: int, layer_class: Any, num_experts: int) -> dict[str, Any]:
    """Inside a rank: what the layer has registered as `bias`."""
    layer = layer_class(nn.Linear(4, num_experts), [Expert(4) for _ in range(num_experts // world_size)], 1)
    bias = dict(layer.named_buffers()).get("bias")
    return {"registered": bias is not None, "bias": _array(bias)}


@check(LAYER, points=0.5)
def the_bias_is_a_registered_buffer(ExpertParallel, *, rng):
    """`bias` is among the layer's named_buffers(), with a 0 for each of the E experts."""
    world_size = 2
    num_experts = world_size * int(rng.integers(1, 5))
    results = run_ranks(_drive_buffers, world_size, (ExpertParallel, num_experts))
    for rank, one in each_rank(f"{num_experts} experts on {count_of_ranks(world_size)}", list(results)):
        rank.expect(one["registered"], "the layer's named_buffers() have no 'bias'")
        rank.expect_close(one["bias"], np.zeros(num_experts), what="the bias of a new layer", rtol=0.0)
