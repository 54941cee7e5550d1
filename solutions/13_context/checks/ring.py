"""Exercises 3 and 4: the ring, and its backward."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.checks.cases import Case, at_most, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.instruments.memory import LiveBytes

from .blocks import ERROR, attention, finite, no_overflow
from .layouts import NAMES, positions

RING, BACKWARD = "13-ex3-ring", "13-ex4-backward"


@dataclass
class Sequence:
    """A sequence that is dealt out. shards[r]: rank r's positions. whole: q, k, v, grad, (4, B, H, T, D), float32."""

    shards: list[list[int]]
    whole: np.ndarray

    def of(self, rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """q, k, v and grad of a rank, and all ranks' positions."""
        own = [torch.from_numpy(x[:, :, self.shards[rank]].copy()) for x in self.whole]
        return own, [torch.tensor(shard, dtype=torch.int64) for shard in self.shards]


def whole_forward(given: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """(out, lse) of the whole sequence in one process."""
    everything = np.arange(given.whole.shape[3])
    return attention(*given.whole[:3], everything, everything)


def _whole_gradients(given: Sequence) -> list[np.ndarray]:
    """dq, dk and dv of the whole sequence, by autograd in one process, in float64."""
    q, k, v, grad = (torch.from_numpy(x).double().requires_grad_() for x in given.whole)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return [g.numpy() for g in torch.autograd.grad((out * grad.detach()).sum(), (q, k, v))]


def sequence(rng: np.random.Generator, shards: list[list[int]], shape: tuple = (2, 2, 4), scale: float = 1) -> Sequence:
    """Fresh q, k, v and grad for these positions; scale: of q."""
    batch, heads, width = shape
    whole = rng.standard_normal((4, batch, heads, sum(map(len, shards)), width)).astype(np.float32)
    whole[0] *= scale
    return Sequence(shards, whole)


def even(rng: np.random.Generator, n: int) -> dict[str, Sequence]:
    """By name: four positions on each rank."""
    found = {f"{4 * n} positions, {name}": positions(4 * n, n, name) for name in NAMES}
    found["positions in any order"] = rng.permutation(4 * n).reshape(n, 4).tolist()
    return {name: sequence(rng, shards) for name, shards in found.items()}


def uneven(rng: np.random.Generator, n: int) -> dict[str, Sequence]:
    """By name: lengths that do not divide, and ranks without tokens."""
    cut = np.sort(rng.integers(0, 15, n - 1))
    mixed = [part.tolist() for part in np.split(rng.permutation(14), cut)]
    found = {"13 positions, zigzag": positions(13, n, "zigzag"), "2 positions": positions(2, n, "contiguous")}
    found[f"positions in any order, {list(map(len, mixed))} of them"] = mixed
    return {name: sequence(rng, shards) for name, shards in found.items()}


@dataclass
class Attended:
    """What `ring_forward` returns on a rank."""

    form: str = sentence()
    out: Any = fact("out", seen=finite)
    lse: Any = fact("lse", seen=finite)


def _forward(rank: int, world_size: int, ring_forward: Callable, given: Sequence) -> Attended:
    (q, k, v, _), where = given.of(rank)
    found = ring_forward(q, k, v, where)
    if not (isinstance(found, tuple | list) and len(found) == 2):
        return Attended(f"expected (out, lse), got {type(found).__name__}", None, None)
    return Attended("", *found)


def _attended(given: Sequence) -> list[Attended]:
    """What is expected on each rank."""
    out, lse = whole_forward(given)
    return [
        Attended("", close(out[:, :, own], ERROR, ERROR), close(lse[:, :, own], ERROR, ERROR)) for own in given.shards
    ]


def _ring(name: str, ring_forward: Callable, given: Sequence, judge: Callable | None = None) -> Case:
    expect = [Attended("")] * len(given.shards) if judge else _attended(given)
    return Case(name, len(given.shards), _forward, (ring_forward, given), expect, judge=judge)


@check(RING, points=1.5)
def the_ring_sees_all_keys(ring_forward, *, rng):
    """out and lse are those of one process with the whole sequence, for any positions."""
    for n in (2, 3, 4):
        for name, given in even(rng, n).items():
            yield _ring(name, ring_forward, given)


def _between_neighbors(n: int, most: int, allowed: Callable[[int], list[int]], exact: bool) -> Callable:
    """Only sends and receives between neighbors, at most so many sends, of so many bytes."""

    def judge(rank: int, parts: list) -> str:
        messages = [message for part in parts for message in part]
        near = {(rank - 1) % n, (rank + 1) % n}
        for m in messages:
            if m.is_collective:
                return f"rank {rank} called {m.call}, expected sends and receives"
            if m.peer not in near:
                return f"a message went to or came from rank {m.peer}, which is no neighbor of rank {rank}"
        sent = [m.bytes for m in messages if m.is_send and m.bytes]
        if len(sent) > most:
            return f"rank {rank} sent {len(sent)} messages, expected at most {most}"
        wanted = allowed(rank)
        if (exact and sum(sent) not in wanted) or not 0 < sum(sent) <= max(wanted):
            how = "expected" if exact else "expected at most"
            return f"rank {rank} sent {sum(sent) // 4} numbers, {how} {wanted[0] // 4}"
        return ""

    return judge


def _all_but_the_neighbors(given: Sequence) -> Callable:
    """The blocks of keys and values that a rank passes on; the ring may turn either way."""
    sizes = list(map(len, given.shards))
    n, each = len(sizes), 4 * 2 * 2 * 2 * 4
    bytes_of = lambda rank: [each * (sum(sizes) - sizes[(rank + to) % n]) for to in (1, -1)]  # noqa: E731
    return _between_neighbors(n, 2 * (n - 1), bytes_of, True)


@check(RING, points=1)
def blocks_travel_between_neighbors(ring_forward, *, rng):
    """Only neighbors exchange messages, at most 2(N−1) per rank, 2BHD numbers for each token of all ranks but one."""
    for n in (2, 4, 5):
        for name, given in even(rng, n).items():
            yield _ring(name, ring_forward, given, judge=_all_but_the_neighbors(given))


@check(RING, points=0.5)
def ranks_have_any_number_of_tokens(ring_forward, *, rng):
    """The result is right with different numbers of tokens, with none, and on one rank alone."""
    for n, draw in ((3, uneven), (4, uneven), (1, even)):
        for name, given in draw(rng, n).items():
            yield _ring(name, ring_forward, given)


class Products(TorchDispatchMode):
    """Marks each product of matrices as a stretch in the ledger."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(part in func.overloadpacket.__name__ for part in ("mm", "matmul", "attention", "einsum", "mv", "dot")):
            with record_function("product"):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _forward_watched(rank: int, world_size: int, ring_forward: Callable, given: Sequence) -> Attended:
    with Products():
        return _forward(rank, world_size, ring_forward, given)


def _overlaps(rank: int, parts: list) -> tuple[str, Any] | str:
    """Each block is computed after the next one's receive and its own send were posted, and before the receive ends."""
    (part,) = parts
    starts = [span.start for span in part.spans if span.name == "product"]
    receives = [(m.start, m.end) for m in part if m.is_receive and m.bytes]
    sends = [m.start for m in part if m.is_send and m.bytes]
    posted = [any(a <= s <= (b or a) for s in starts) for a, b in receives]
    sent = [any(a <= s <= (b or a) for s in starts) for a, (_, b) in zip(sends, receives, strict=False)]
    first = bool(receives) and any(s < receives[0][0] for s in starts)  # tells who computes first from who waits first
    if not receives:
        return f"rank {rank} received nothing", "nothing"
    if not all(posted):
        text = "waited for a block before it computed with the one at hand: post the receive, compute, then wait"
        return f"rank {rank} {text}", ["receive", first]
    if not all(sent):
        return f"rank {rank} sent a block only after it had computed with it: post the send, compute, then wait", "send"
    return ""


@check(RING, points=0.5)
def the_next_block_is_on_its_way(ring_forward, *, rng):
    """Each step posts its send and its receive, then computes with the block at hand, and only then waits."""
    for n, layout in ((3, "zigzag"), (4, "striped")):
        given = sequence(rng, positions(6 * n, n, layout))
        name, expect = f"{6 * n} positions, {layout}", [Attended("")] * n
        yield Case(name, n, _forward_watched, (ring_forward, given), expect, judge=_overlaps)


#: Blocks of keys and values that may be alive above the inputs, those of all seven others being more; and room for
#: what is computed from a block.
_MOST, _SCRATCH = 6, 2


@dataclass
class Held:
    """What was alive on a rank."""

    blocks: Any = fact(
        "the number of blocks of keys and values alive at the most, besides the inputs,",
        seen=lambda value: value > _MOST + _SCRATCH,
    )


def _forward_metered(rank: int, world_size: int, ring_forward: Callable, whole: np.ndarray) -> Held:
    """whole: q, k and v of all ranks, striped, in one head; rank 1 is metered."""
    where = [torch.arange(r, whole.shape[3], world_size) for r in range(world_size)]
    q, k, v = (torch.from_numpy(x[:, :, rank::world_size].copy()) for x in whole)
    if rank != 1:
        ring_forward(q, k, v, where)
        return Held(0.0)
    gc.collect()
    live = LiveBytes()
    before, block = live.now(), 2 * k.numel() * 4
    live.limit = before + (_MOST + _SCRATCH) * block
    with live:
        ring_forward(q, k, v, where)
    return Held(round((live.peak - before) / block, 1))


@check(RING, points=0.5)
def no_rank_holds_all_blocks(ring_forward, *, rng):
    """With 8 ranks, one has at most 6 blocks of keys and values in memory besides its inputs."""
    expect = [Held(at_most(_MOST, slack=_SCRATCH, least=1) if rank == 1 else 0.0) for rank in range(8)]
    args = (ring_forward, rng.standard_normal((3, 1, 1, 64, 64)).astype(np.float32))
    yield Case("8 positions on each rank, D = 64", 8, _forward_metered, args, expect)


# ---- 4 · ring_backward ----


@dataclass
class Gradients:
    """What `ring_backward` returns on a rank."""

    form: str = sentence()
    dq: Any = fact("dq", seen=finite)
    dk: Any = fact("dk", seen=finite)
    dv: Any = fact("dv", seen=finite)


def _backward(
    rank: int, world_size: int, ring_backward: Callable, given: Sequence, whole: tuple[np.ndarray, np.ndarray]
) -> Gradients:
    (q, k, v, grad), where = given.of(rank)
    out, lse = (torch.from_numpy(x[:, :, given.shards[rank]]).float() for x in whole)
    found = ring_backward(grad, q, k, v, out, lse, where)
    if not (isinstance(found, tuple | list) and len(found) == 3):
        return Gradients(f"expected (dq, dk, dv), got {type(found).__name__}", None, None, None)
    return Gradients("", *found)


def _without_overflow(of_ranks: list[Gradients]) -> list[Gradients]:
    """The facts, with a sentence where one is nan or infinite."""
    return [one if one.form else replace(one, form=no_overflow(dq=one.dq, dk=one.dk, dv=one.dv)) for one in of_ranks]


def _backwards(
    name: str, ring_backward: Callable, given: Sequence, error: float = 4 * ERROR, judge: Callable | None = None
) -> Case:
    gradients = _whole_gradients(given)
    scale = max(1.0, *(float(np.abs(x).max()) for x in gradients))
    expect = [Gradients("", *(close(x[:, :, own], atol=error * scale) for x in gradients)) for own in given.shards]
    if judge:
        expect = [Gradients("")] * len(expect)
    args = (ring_backward, given, whole_forward(given))
    return Case(name, len(given.shards), _backward, args, expect, judge=judge)


@check(BACKWARD, points=1.5)
def gradients_come_home(ring_backward, *, rng):
    """dk and dv are those of one process, for any positions."""
    for n in (3, 2, 4):
        for name, given in even(rng, n).items():
            yield _only(("dk", "dv"), _backwards(name, ring_backward, given))


@check(BACKWARD, points=0.5)
def queries_get_their_gradient(ring_backward, *, rng):
    """dq is that of one process, for any positions."""
    for n in (3, 2):
        for name, given in even(rng, n).items():
            yield _only(("dq",), _backwards(name, ring_backward, given))


def _only(names: tuple[str, ...], case: Case) -> Case:
    """The case, of which these gradients alone are compared."""
    case.expect = [Gradients("", **{name: getattr(one, name) for name in names}) for one in case.expect]
    return case


@check(BACKWARD, points=0.5)
def gradients_have_any_length(ring_backward, *, rng):
    """Ranks may have different numbers of tokens, or none, and there may be one rank alone."""
    for n, draw in ((3, uneven), (4, uneven), (1, even)):
        for name, given in draw(rng, n).items():
            yield _only(("dv",), _backwards(name, ring_backward, given))  # the others have their own checks


@check(BACKWARD, points=0.5)
def forbidden_scores_may_be_large(ring_backward, *, rng):
    """Scores of thousands, of which masked ones exceed the lse by far, give no inf and no nan."""
    for length in (8, 12):
        given = sequence(rng, positions(length, 2, "striped"), scale=1000)
        case = _backwards(f"{length} positions, scores of thousands", ring_backward, given)
        case.sees, case.expect = _without_overflow, [Gradients(""), Gradients("")]
        yield case


@check(BACKWARD, points=1)
def gradients_travel_with_their_blocks(ring_backward, *, rng):
    """Only neighbors exchange messages, at most 4N − 2 per rank, of at most 4BHD numbers for each token."""
    for n in (2, 4, 5):
        for name, of_two_heads in even(rng, n).items():
            given = sequence(rng, of_two_heads.shards, (1, 5, 2))
            most = 4 * 4 * 5 * 2 * given.whole.shape[3]
            judge = _between_neighbors(n, 4 * n - 2, lambda rank, most=most: [most], False)
            yield _backwards(name, ring_backward, given, judge=judge)
