"""Exercise 4: the layer over all ranks, against one process that holds all experts and goes token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.inputs import seed

from .routing import APART, places

LAYER = "14-ex4-layer"
WIDTH = 6
#: The layer computes in float32, the oracle in float64. Sums have some dozens of terms, each rounded to 6e-8 of itself.
ERROR = 2e-5


class Expert(nn.Module):
    """Two linear layers with a GELU in between; it lists how many rows it was called with."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH + 2), nn.Linear(WIDTH + 2, WIDTH)
        self.calls: list[int] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """rows: (m, C) → (m, C)."""
        self.calls.append(len(rows))
        return self.down(nn.functional.gelu(self.up(rows)))


@dataclass(frozen=True)
class Layer:
    """One forward and backward. sizes: how many tokens each rank has. each: experts per rank.

    pull: added to the router's bias for expert 0, so that it is chosen more often, or always. bias: for the layer's
    own buffer, or None.
    """

    each: int
    k: int
    sizes: tuple[int, ...]
    factor: float | None = None
    pull: float = 0.0
    bias: tuple[float, ...] | None = None
    seed: int = 0

    @property
    def experts(self) -> int:
        """On all ranks together."""
        return self.each * len(self.sizes)

    def modules(self) -> tuple[nn.Linear, list[Expert]]:
        """The router and all experts, the same wherever this is called."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            router = nn.Linear(WIDTH, self.experts)
            with torch.no_grad():
                router.weight *= 1.5
                router.bias[0] += self.pull
            return router, [Expert() for _ in range(self.experts)]

    def tensors(self, rank: int) -> list[torch.Tensor]:
        """x of one rank, and what its outputs and probabilities are multiplied with in the loss."""
        g = torch.Generator().manual_seed(16 * self.seed + rank)
        return [torch.randn(self.sizes[rank], width, generator=g) for width in (WIDTH, WIDTH, self.experts)]


def _routed(layer: Layer, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Probability + bias (n, E) and the chosen experts (n, k)."""
    with torch.no_grad():
        logits = layer.modules()[0].double()(layer.tensors(rank)[0].double())
        scores = logits.softmax(-1).numpy() + np.array(layer.bias or 0.0)
    return scores, np.argsort(-scores, axis=1)[:, : layer.k]


def _kept(layer: Layer, rank: int) -> list[list[int]]:
    """By the definition: expert → the places of this rank that it keeps."""
    chosen = _routed(layer, rank)[1]
    most = None if layer.factor is None else math.ceil(layer.factor * layer.k * len(chosen) / layer.experts)
    return places(chosen, layer.experts, most)


def _is_useful(layer: Layer, all_used: bool) -> bool:
    """Are the choices far from a tie, every expert used where that is asked for, and some place dropped?"""
    best = -np.sort(-np.concatenate([_routed(layer, r)[0] for r in range(len(layer.sizes))]), axis=1)[:, : layer.k + 1]
    if np.any(-np.diff(best, axis=1) <= APART):
        return False
    kept = np.sum([[len(mine) for mine in _kept(layer, rank)] for rank in range(len(layer.sizes))], axis=0)
    return (not all_used or bool(np.all(kept > 0))) and (
        layer.factor is None or kept.sum() < layer.k * sum(layer.sizes)
    )


def make(rng: np.random.Generator, layer: Layer, all_used: bool = True) -> Layer:
    """This layer with fresh weights and tokens, drawn again until it is useful."""
    for _ in range(2000):
        if _is_useful(drawn := replace(layer, seed=seed(rng)), all_used):
            return drawn
    raise RuntimeError(f"no useful case was found: {layer}")


@dataclass
class Passed:
    """What a rank has after a forward and backward."""

    y: Any = fact("y")
    probabilities: Any = fact("the table of probabilities")
    chosen: Any = fact("the table of chosen experts")
    missing: str = sentence()
    gradients: Any = fact("the gradient of {}")
    calls: Any = fact("the list of each expert's calls, by their rows,")


def _drive(rank: int, world_size: int, layer_class: Any, case: Layer) -> Passed:
    router, experts = case.modules()
    mine = experts[rank * case.each : (rank + 1) * case.each]
    x, slope, of_p = case.tensors(rank)
    x.requires_grad_()
    more = () if case.factor is None else (case.factor,)
    layer = layer_class(router, mine, case.k, *more)
    if case.bias is not None:
        layer.bias.copy_(torch.tensor(case.bias))
    y, probabilities, chosen = layer(x)
    if case.bias is not None:  # the choice alone is compared: a backward that hangs is for other checks
        return Passed(chosen=chosen)
    ((y * slope).sum() + (probabilities * of_p).sum()).backward()
    found = _gradients(x, router, mine)
    missing = [name for name, grad in found.items() if grad is None]
    text = f"there is no gradient of {missing[0]}" if missing else ""
    gradients = {name: grad for name, grad in found.items() if grad is not None}
    return Passed(y, probabilities, chosen, text, gradients, [expert.calls for expert in mine])


def _gradients(x: torch.Tensor, router: nn.Linear, experts: list[Expert]) -> dict[str, torch.Tensor | None]:
    found = {"x": x.grad} | {f"the router's {name}": p.grad for name, p in router.named_parameters()}
    for number, expert in enumerate(experts):
        found |= {f"{name} of its expert {number}": p.grad for name, p in expert.named_parameters()}
    return found


def one_process(case: Layer) -> list[Passed]:
    """The facts of each rank, from a layer in float64 that holds all experts; each rank's loss is its own."""
    router, experts = case.modules()
    for module in (router, *experts):
        module.double()
    found = []
    kept = [_kept(case, rank) for rank in range(len(case.sizes))]
    for rank, of_rank in enumerate(kept):
        x, slope, of_p = (tensor.double() for tensor in case.tensors(rank))
        x.requires_grad_()
        probabilities = router(x).softmax(-1)
        y = torch.zeros_like(x)
        for expert, mine in enumerate(of_rank):
            tokens = [place // case.k for place in mine]
            for token in tokens:
                row = probabilities[token, expert] * experts[expert](x[token][None])
                y = y.index_add(0, torch.tensor([token]), row)
        router.zero_grad()
        ((y * slope).sum() + (probabilities * of_p).sum()).backward()
        grads = _near(_gradients(x, router, []))
        found.append(Passed(_near(y), _near(probabilities), close(_routed(case, rank)[1]), "", grads))
    for rank, one in enumerate(found):  # an expert's gradient is the sum over all ranks' tokens
        own = range(rank * case.each, (rank + 1) * case.each)
        for number, expert in enumerate(own):
            for name, p in experts[expert].named_parameters():
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                one.gradients[f"{name} of its expert {number}"] = _near(grad)
        one.calls = [[sum(len(of_rank[expert]) for of_rank in kept)] for expert in own]
    return found


def _near(numbers: Any) -> Any:
    if isinstance(numbers, dict):
        return {name: _near(one) for name, one in numbers.items()}
    return close(numbers.detach().numpy().copy(), rtol=ERROR, atol=ERROR)


#: The facts of outputs and gradients.
EQUAL = ("y", "probabilities", "chosen", "missing", "gradients")


def _case(layer_class: Any, layer: Layer, name: str = "", facts: tuple = EQUAL, **more: Any) -> Case:
    """These facts are those of one process."""
    words = f"{layer.each} expert{'s' * (layer.each > 1)} each, k = {layer.k}, tokens {list(layer.sizes)}"
    expect = [Passed(**{fact: getattr(one, fact) for fact in facts}) for one in one_process(layer)]
    return Case(f"{words}, {name}" if name else words, len(layer.sizes), _drive, (layer_class, layer), expect, **more)


@check(LAYER, points=2.25)
def the_layer_equals_one_process(ExpertParallel, *, rng):
    """Outputs and all gradients are those of one process that holds all experts, for any number of ranks and tokens."""
    for n in (2, 3, 4, 1):
        sizes = (5, 3, 7, 4)[:n]
        for each, k in ((2, 2), (1, 1), (3, 2)):
            if k <= each * n:
                yield _case(ExpertParallel, make(rng, Layer(each, k, sizes)))


@check(LAYER, points=0.5)
def the_bias_moves_the_choice(ExpertParallel, *, rng):
    """The layer's bias is added to the probabilities for the choice."""
    for n in (2, 3, 1):
        bias = tuple((rng.permutation(2 * n) - n) / (2 * n))
        layer = make(rng, Layer(2, 2 if n > 1 else 1, (6, 4, 7)[:n], bias=bias), all_used=False)
        yield _case(ExpertParallel, layer, "with a bias", ("chosen",))


@check(LAYER, points=0.5)
def full_experts_drop_the_rest(ExpertParallel, *, rng):
    """With a capacity factor, each rank drops by its own number of tokens; a dropped place adds 0, other gates stay."""
    for n in (2, 3):
        for factor, k in ((1.0, 2), (0.5, 1), (1.25, 2)):
            layer = make(rng, Layer(2, k, (9, 4, 6)[:n], factor, pull=1.0))
            yield _case(ExpertParallel, layer, f"capacity factor {factor:g}", ("y",))


@check(LAYER, points=1)
def experts_without_rows_take_part(ExpertParallel, *, rng):
    """Ranks without tokens and experts without rows make the calls that all others make, and get gradients."""
    for name, layer in {
        "some ranks without tokens": Layer(2, 2, (5, 0, 9, 1)),
        "all tokens to one expert": Layer(2, 1, (4, 6, 3, 2), pull=60.0),
        "no tokens at all": Layer(1, 1, (0, 0, 0, 0)),
    }.items():
        yield _case(ExpertParallel, make(rng, layer, all_used=False), name, ("missing",))


@check(LAYER, points=0.5)
def rows_travel_four_times(ExpertParallel, *, rng):
    """One exchange of the counts and one of the kept rows each way, in backward as well; each expert is called once."""
    for n in (2, 4):
        layer = make(rng, Layer(2, 2, (6, 5, 8, 7)[:n]))
        yield _case(ExpertParallel, layer, facts=("calls",), judge=_expect_exchanges(layer))


def _expect_exchanges(layer: Layer) -> Callable:
    kept = [[len(mine) for mine in _kept(layer, rank)] for rank in range(len(layer.sizes))]
    row, counts, each = 4 * WIDTH, 8 * layer.experts, layer.each

    def judge(rank: int, parts: list) -> str:
        sent = [message for part in parts for message in part]
        if other := [m.call for m in sent if not m.call.startswith("all_to_all")]:
            return f"rank {rank} called {other[0]}; expected all-to-alls only"
        own, theirs = sum(kept[rank]), sum(sum(mine[rank * each : (rank + 1) * each]) for mine in kept)
        want = [counts, row * own, row * theirs, row * own, row * theirs]
        got = [m.bytes for m in sent]
        return "" if got == want else f"rank {rank} put {got} bytes into all-to-alls, expected {want}"

    return judge


@dataclass
class Registered:
    """What a new layer has registered."""

    lacks: str = sentence()
    bias: Any = fact("the bias of a new layer")


def _register(rank: int, world_size: int, layer_class: Any, experts: int) -> Registered:
    router, mine = nn.Linear(WIDTH, experts), [Expert() for _ in range(experts // world_size)]
    layer = layer_class(router, mine, 1)
    listed, buffers = {id(p) for p in layer.parameters()}, dict(layer.named_buffers())
    if not all(id(p) in listed for part in (router, *mine) for p in part.parameters()):
        return Registered("the router and the experts are not all among the layer's parameters()")
    return Registered("" if "bias" in buffers else "the layer's named_buffers() have no 'bias'", buffers.get("bias"))


@check(LAYER, points=0.25)
def what_is_saved_is_registered(ExpertParallel, *, rng):
    """The layer's parameters() are the router's and its experts', and `bias` is a buffer with a 0 for each expert."""
    experts = 2 * int(rng.integers(1, 5))
    expect = [Registered("", close(np.zeros(experts)))] * 2
    yield Case(f"{experts} experts", 2, _register, (ExpertParallel, experts), expect)
