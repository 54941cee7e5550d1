"""Exercises 3 and 4: the ring, and its backward."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.checking.check import check
from autograder.checking.expect import between_barriers, count_of_ranks, each_rank, fail
from autograder.checking.inputs import seed as seed_for_ranks
from autograder.checking.instruments.memory import LiveBytes
from autograder.checking.stage import run_ranks
from autograder.checks.context.blocks import RTOL, reference
from autograder.checks.context.layouts import NAMES, positions

RING, BACKWARD = "13-ex3-ring", "13-ex4-backward"
WORLD_SIZES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Case:
    """A sequence that is dealt out. shards[r]: rank r's positions. whole: q, k, v and grad, (4, B, H, T, D).

    large: are the scores so large that rounding shows?
    """

    name: str
    shards: list[list[int]]
    whole: np.ndarray
    dtype: str = "float64"
    strided: bool = False
    large: bool = False

    def mine(self, rank: int) -> list[torch.Tensor]:
        """A rank's q, k, v and grad, in the case's dtype and memory layout."""
        found = []
        for array in self.whole:
            part = torch.from_numpy(array[:, :, self.shards[rank]].copy()).to(getattr(torch, self.dtype))
            found.append(part.transpose(1, 2).contiguous().transpose(1, 2) if self.strided else part)
        return found

    def positions(self) -> list[torch.Tensor]:
        """Each rank's positions, as the exercises have them."""
        return [torch.tensor(shard, dtype=torch.int64) for shard in self.shards]

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """(out, lse) of the whole sequence in one process."""
        everything = np.arange(self.whole.shape[3])
        q, k, v, _ = self.rounded()
        return reference(q, k, v, everything, everything)

    def rounded(self) -> np.ndarray:
        """The numbers as the case's dtype holds them."""
        return torch.from_numpy(self.whole).to(getattr(torch, self.dtype)).double().numpy()

    def gradients(self) -> list[np.ndarray]:
        """dq, dk and dv of the whole sequence, by autograd in one process, float64."""
        q, k, v, grad = (torch.from_numpy(x).requires_grad_() for x in self.rounded())
        length = q.shape[2]
        if not length:
            return [np.zeros(q.shape)] * 3
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [g.numpy() for g in torch.autograd.grad((out * grad.detach()).sum(), (q, k, v))]


def _whole(rng: np.random.Generator, length: int, shape: tuple[int, int, int] = (2, 2, 4)) -> np.ndarray:
    batch, heads, width = shape
    return rng.standard_normal((4, batch, heads, length, width))


def _cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    name = count_of_ranks(world_size)
    cases = [
        Case(f"{name}, {length} positions, {layout}", positions(length, world_size, layout), _whole(rng, length))
        for length, layout in ((16, "contiguous"), (13, "zigzag"), (13, "striped"))
    ]
    cut = np.sort(rng.integers(0, 15, world_size - 1))
    mixed = [part.tolist() for part in np.split(rng.permutation(14), cut)]
    words = f"{name}, positions in any order, {list(map(len, mixed))} of them"
    cases.append(Case(words, mixed, _whole(rng, 14, (1, 6, 5))))
    few = positions(3, world_size, "contiguous")
    cases.append(Case(f"{name}, 3 positions, strided memory", few, _whole(rng, 3), strided=True))
    single = positions(16, world_size, "zigzag")
    cases.append(Case(f"{name}, 16 positions, zigzag, float32", single, _whole(rng, 16), "float32", strided=True))
    return cases


def _large(rng: np.random.Generator, world_size: int) -> Case:
    """Scores of thousands: e to the power of one, or of what a masked one is above the lse, is infinite."""
    whole = _whole(rng, 12)
    whole[0] *= 1000
    words = f"{count_of_ranks(world_size)}, 12 positions, striped, scores of thousands"
    return Case(words, positions(12, world_size, "striped"), whole, large=True)


def _drive(rank: int, world_size: int, function: Any, cases: list[Case]) -> list[Any]:
    """Inside a rank: (out, lse) for each case, between barriers."""
    seen = []
    for case in cases:
        q, k, v, _ = case.mine(rank)
        dist.barrier()
        seen.append(_plain(function(q, k, v, case.positions()), 2))
    dist.barrier()
    return seen


def _plain(found: Any, count: int) -> Any:
    """(dtypes, arrays) of a tuple of tensors, or the name of what it is."""
    if not (isinstance(found, tuple | list) and len(found) == count):
        return type(found).__name__
    if not all(isinstance(x, torch.Tensor) for x in found):
        return f"{type(found).__name__} of {', '.join(type(x).__name__ for x in found)}"
    return [str(x.dtype)[6:] for x in found], [x.detach().double().numpy().copy() for x in found]


def _evidence(one: Any) -> Any:
    return one if isinstance(one, str) else [np.nan_to_num(x, neginf=-9e99, nan=7e99) for x in one[1]]


def _expect(rank: Any, one: Any, wanted: list[np.ndarray], names: tuple[str, ...], case: Case) -> None:
    """One rank's tensors are those wanted, within the bound of the case's dtype."""
    bound = 1e-9 if case.large else RTOL[case.dtype]
    rank.expect(not isinstance(one, str), f"expected {len(wanted)} tensors, got {one}")
    kinds, arrays = one
    rank.expect_equal(kinds, [case.dtype] * len(wanted), what=f"the list of the dtypes of {', '.join(names)}")
    for name, got, want in zip(names, arrays, wanted, strict=True):
        finite = np.where(np.isneginf(want), 0.0, want)
        rank.expect(np.array_equal(np.isneginf(got), np.isneginf(want)), f"{name} is -inf in the wrong places")
        rank.expect_close(np.where(np.isneginf(got), 0.0, got), finite, what=name, rtol=bound, atol=bound)


@check(RING, points=2)
def the_ring_sees_all_keys(ring_forward, *, rng):
    """out and lse are those of one process with the whole sequence, for any positions and lengths."""
    for world_size in WORLD_SIZES:
        cases = [*_cases(rng, world_size), _large(rng, world_size)]
        results = run_ranks(_drive, world_size, (ring_forward, cases))
        for c, case in enumerate(cases):
            _expect_attention(case, [mine[c] for mine in results])


def _expect_attention(case: Case, outcomes: list) -> None:
    """Each rank's out and lse are those of one process."""
    out, lse = case.forward()
    for rank, one in each_rank(case.name, outcomes, evidence=_evidence):
        where = case.shards[rank.rank]
        _expect(rank, one, [out[:, :, where], lse[:, :, where]], ("out", "lse"), case)


def _expect_messages(case: Case, calls: list[list], numbers: list[list[int]], most: int, exact: bool) -> None:
    """Only sends and receives between neighbors; the numbers sent are one list in `numbers`, or at most that."""
    world_size = len(case.shards)
    itemsize = 4 if case.dtype == "float32" else 8
    sent = []
    for rank, mine in each_rank(case.name, calls, evidence=lambda one: [list(call) for call in one]):
        for call, peer, _ in mine:
            rank.expect(call in ("send", "isend", "recv", "irecv"), f"{call} was called, expected sends and receives")
            near = {(rank.rank - 1) % world_size, (rank.rank + 1) % world_size}
            rank.expect(peer in near, f"a message went to or came from rank {peer}, which is not a neighbor")
        own = [nbytes for call, _, nbytes in mine if call in ("send", "isend")]
        rank.expect(len(own) <= most, f"{len(own)} messages were sent, expected at most {most}")
        sent.append(sum(own) // itemsize)
    if exact and sent not in numbers:
        fail(f"the ranks sent {sent} numbers, expected {numbers[0]}", case.name, sent)
    if not exact and not any(all(a <= b for a, b in zip(sent, one, strict=True)) for one in numbers):
        fail(f"the ranks sent {sent} numbers, expected at most {numbers[0]}", case.name, sent)


def _calls(parts: list[list], place: int) -> list[list[tuple[str, Any, int]]]:
    return [[(m.call, m.peer, m.bytes) for m in mine[place]] for mine in parts]


@check(RING, points=1)
def blocks_travel_between_neighbors(ring_forward, *, rng):
    """Only neighbors exchange messages, at most 2(N−1) per rank, 2BHD numbers for each token of all ranks but one."""
    for world_size in (1, 2, 4, 5):
        cases = _cases(rng, world_size)
        results = run_ranks(_drive, world_size, (ring_forward, cases))
        parts = between_barriers(results, world_size, len(cases) + 1, "expected sends and receives")
        for c, case in enumerate(cases):
            sizes = [len(shard) for shard in case.shards]
            each, total = 2 * int(np.prod(case.whole.shape[1:3])) * case.whole.shape[4], sum(sizes)
            turns = [[each * (total - sizes[(r + to) % world_size]) for r in range(world_size)] for to in (1, -1)]
            calls = _calls(parts, c + 1)
            if world_size == 1:
                turns = [[0]]
            _expect_messages(case, calls, turns, 2 * (world_size - 1), exact=True)
            _expect_attention(case, [mine[c] for mine in results])


class Products(TorchDispatchMode):
    """Marks each product of matrices as a stretch in the ledger."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if any(part in name for part in ("mm", "matmul", "attention", "einsum", "mv", "dot")):
            with record_function("product"):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _drive_watched(rank: int, world_size: int, function: Any, case: Case) -> list[float]:
    q, k, v, _ = case.mine(rank)
    dist.barrier()
    with Products():
        out, _ = function(q, k, v, case.positions())
    dist.barrier()
    return out.double().numpy().ravel().tolist()


@check(RING, points=0.5)
def the_next_block_is_on_its_way(ring_forward, *, rng):
    """Each step posts its send and its receive, then computes with the block at hand, and only then waits."""
    for world_size in (3, 5):
        layout = NAMES[1 + world_size % 2]
        case = Case(
            f"{count_of_ranks(world_size)}, 20 positions, {layout}", positions(20, world_size, layout), _whole(rng, 20)
        )
        results = run_ranks(_drive_watched, world_size, (ring_forward, case))
        seen = []
        for rank in range(world_size):
            mine = results.ledger.of(rank)
            starts = [span.start for span in mine.spans if span.name == "product"]
            receives = [(m.start, m.end) for m in mine if m.is_receive and m.bytes]
            sends = [m.start for m in mine if m.is_send and m.bytes]
            # Was a block computed before anything was received? This tells who computes first from who waits first.
            first = bool(receives) and any(s < receives[0][0] for s in starts)
            overlapped = [any(a <= s <= (b or a) for s in starts) for a, b in receives]
            early = [any(a <= s <= (b or a) for s in starts) for a, (_, b) in zip(sends, receives, strict=False)]
            seen.append((overlapped, first, early))
        for rank, (overlapped, _, early) in each_rank(case.name, seen):
            rank.expect(bool(overlapped), "received nothing")
            text = "waited for a block before it computed with the one at hand: post the receive, compute, then wait"
            rank.expect(all(overlapped), text)
            text = "sent a block only after it had computed with it: post the send, compute, then wait"
            rank.expect(all(early), text)
        # The result must be right as well: an answer that computes nothing never waits.
        out, _ = case.forward()
        for rank, numbers in each_rank(case.name, [list(one) for one in results]):
            want = out[:, :, case.shards[rank.rank]].ravel()
            rank.expect_close(np.array(numbers), want, what="out", rtol=1e-12)


#: The tokens of each of 8 ranks. Rank 1 is metered; it has few tokens, so what it computes from a block is small.
_SHARDS = [[20, 45] if r == 1 else [t for t in range(58) if t not in (20, 45)][r - (r > 1) :: 7] for r in range(8)]


def _drive_metered(rank: int, world_size: int, function: Any, seed: int) -> tuple[float, list[float]]:
    """How many blocks (keys and values of eight tokens) more than the inputs were alive at the most."""
    g = torch.Generator().manual_seed(seed)
    shards = [torch.tensor(shard) for shard in _SHARDS]
    whole = torch.randn(3, 1, 1, 58, 64, generator=g, dtype=torch.float64)
    q, k, v = (x[:, :, shards[rank]].clone() for x in whole)
    del whole
    gc.collect()
    live = LiveBytes() if rank == 1 else None
    dist.barrier()
    if live is None:
        out, _ = function(q, k, v, shards)
        return 0.0, out.flatten().tolist()
    before, block = live.now(), 2 * len(shards[0]) * k.shape[3] * k.itemsize
    live.limit = before + _MOST_BLOCKS * block
    with live:
        out, _ = function(q, k, v, shards)
    return (live.peak - before) / block, out.flatten().tolist()


#: Blocks of keys and values that may be alive above the inputs; those of all seven others would be more.
_MOST_BLOCKS = 6


@check(RING, points=0.5)
def no_rank_holds_all_blocks(ring_forward, *, rng):
    """With 8 ranks, one with few tokens has at most 6 blocks of keys and values in memory besides its inputs."""
    seed = seed_for_ranks(rng)
    results = run_ranks(_drive_metered, 8, (ring_forward, seed))
    case = "8 ranks, 2 positions on rank 1 and 8 on the others, D = 64"
    peak = results[1][0]
    g = torch.Generator().manual_seed(seed)
    whole = torch.randn(3, 1, 1, 58, 64, generator=g, dtype=torch.float64).numpy()
    out, _ = reference(*whole, np.arange(58), np.arange(58))
    for rank, (_, numbers) in each_rank(case, list(results), evidence=lambda one: one[1]):
        want = out[:, :, _SHARDS[rank.rank]].ravel()
        rank.expect_close(np.array(numbers), want, what="out", rtol=1e-12)
    if peak > _MOST_BLOCKS:
        others = any(not (m.is_send or m.is_receive or m.call == "barrier") for m in results.ledger.of(1))
        fail(
            f"{peak:.1f} blocks were alive on rank 1 above its inputs, expected at most {_MOST_BLOCKS}",
            case,
            ["too many", "collectives" if others else "sends and receives"],
        )


# ---- 4 · ring_backward ----


def _drive_backward(rank: int, world_size: int, function: Any, cases: list[Case], forwards: list) -> list[Any]:
    """Inside a rank: (dq, dk, dv) for each case, between barriers, and whether an argument changed."""
    seen = []
    for case, (out, lse) in zip(cases, forwards, strict=True):
        q, k, v, grad = case.mine(rank)
        kind, where = getattr(torch, case.dtype), case.shards[rank]
        arguments = [grad, q, k, v, *(torch.from_numpy(x[:, :, where].copy()).to(kind) for x in (out, lse))]
        before = [x.clone() for x in arguments]
        dist.barrier()
        found = _plain(function(*arguments, case.positions()), 3)
        changed = [name for name, a, b in zip(_NAMES, arguments, before, strict=True) if not torch.equal(a, b)]
        seen.append((found, changed))
    dist.barrier()
    return seen


_NAMES = ("grad", "q", "k", "v", "out", "lse")


@check(BACKWARD, points=3)
def gradients_come_home(ring_backward, *, rng):
    """dq, dk and dv are those of one process, for any positions, numbers of tokens and memory layout; inputs stay."""
    for world_size in WORLD_SIZES:
        cases = [*_cases(rng, world_size), _large(rng, world_size)]
        forwards = [case.forward() for case in cases]
        results = run_ranks(_drive_backward, world_size, (ring_backward, cases, forwards))
        for c, case in enumerate(cases):
            _expect_gradients(case, [mine[c] for mine in results])


def _expect_gradients(case: Case, outcomes: list) -> None:
    """Each rank's dq, dk and dv are those of one process, and its arguments stay as they were."""
    whole = case.gradients()
    for rank, (one, changed) in each_rank(case.name, outcomes, evidence=lambda pair: [_evidence(pair[0]), pair[1]]):
        where = case.shards[rank.rank]
        scale = max(float(np.abs(x).max(initial=1.0)) for x in whole)
        bound = (1e-9 if case.large else 4 * RTOL[case.dtype]) * scale
        rank.expect(not isinstance(one, str), f"expected (dq, dk, dv), got {one}")
        rank.expect_equal(one[0], [case.dtype] * 3, what="the list of the dtypes of dq, dk and dv")
        for name, got, want in zip(("dq", "dk", "dv"), one[1], whole, strict=True):
            rank.expect_close(got, want[:, :, where], what=name, rtol=0.0, atol=bound)
        rank.expect(not changed, f"{', '.join(changed)} was changed: work on copies")


@check(BACKWARD, points=1)
def gradients_travel_with_their_blocks(ring_backward, *, rng):
    """Only neighbors exchange messages, at most 5N per rank, of at most 4BHD numbers for each token of all ranks."""
    for world_size in (1, 2, 4, 5):
        cases = _cases(rng, world_size)
        forwards = [case.forward() for case in cases]
        results = run_ranks(_drive_backward, world_size, (ring_backward, cases, forwards))
        parts = between_barriers(results, world_size, len(cases) + 1, "expected sends and receives")
        for c, case in enumerate(cases):
            each = 2 * int(np.prod(case.whole.shape[1:3])) * case.whole.shape[4]
            total = 2 * each * case.whole.shape[3]
            numbers = [[total if world_size > 1 else 0] * world_size]
            _expect_messages(case, _calls(parts, c + 1), numbers, 5 * world_size, exact=False)
            _expect_gradients(case, [mine[c] for mine in results])
