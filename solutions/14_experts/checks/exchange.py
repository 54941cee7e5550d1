"""Exercise 3: rows of unequal numbers go to their ranks, and gradients come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, fail
from autograder.checking.stage import picture, run_ranks
from ranks.ledger import Ledger

EXCHANGE = "14-ex3-all-to-all"
WORLD_SIZES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Case:
    """One exchange. counts[s][d]: rows from rank s to rank d. seed: of the rows and their gradients."""

    name: str
    counts: np.ndarray
    trailing: tuple[int, ...]
    dtype: str
    layout: str  # of the rows, and of the gradient: "", "transposed", "expanded"
    seed: int

    def rows(self, rank: int) -> np.ndarray:
        """What a rank sends: whole numbers that every dtype holds; float64 has more digits than float32 can hold."""
        shape = (int(self.counts[rank].sum()), *self.trailing)
        if self.layout == "expanded":
            shape = (*shape[:-1], 1)
        rng = np.random.default_rng([self.seed, rank])
        drawn = rng.integers(-120, 121, shape).astype(np.float64)
        if self.dtype == "float64":  # an odd number of 26 bits
            drawn += (2 * rng.integers(2**24, 2**25, shape) + 1) / 2**40
        return np.broadcast_to(drawn, (*shape[:-1], self.trailing[-1])) if self.layout == "expanded" else drawn

    def received(self, rank: int) -> np.ndarray:
        """What a rank should get."""
        return np.concatenate([self._part(s, rank) for s in range(len(self.counts))])

    def _part(self, source: int, to: int) -> np.ndarray:
        starts = np.concatenate([[0], np.cumsum(self.counts[source])])
        return self.rows(source)[starts[to] : starts[to + 1]]

    def back(self) -> Case:
        """The exchange of the gradients: the other way, with other numbers."""
        return Case(self.name, self.counts.T, self.trailing, self.dtype, self.layout, self.seed + 1)


def _cases(rng: np.random.Generator, world_size: int, floating: bool) -> list[Case]:
    full = [((), "float32", ""), ((3,), "float64", ""), ((2, 3), "float32", ""), ((3,), "bfloat16", "")]
    kinds = [(True, *one) for one in full] if world_size <= 3 else [(True, (3,), "float64", "")]
    kinds += [
        (False, (3,), "float32", ""),
        (False, (4,), "float64", "transposed"),
        (False, (4,), "float32", "expanded"),
    ]
    kinds += [] if floating else [(False, (), "int64", ""), (False, (2,), "int64", "transposed")]
    cases = []
    for all_send, trailing, dtype, layout in kinds:
        low = 1 if all_send else 0
        counts = rng.integers(low, 5, (world_size, world_size))
        if not all_send:  # somebody sends nothing, somebody gets nothing
            counts[rng.integers(world_size)] = 0
            counts[:, rng.integers(world_size)] = 0
        words = [count_of_ranks(world_size), f"rows of shape {trailing}", dtype, layout]
        name = ", ".join([word for word in words if word] + ([] if all_send else ["some splits 0"]))
        cases.append(Case(name, counts, trailing, dtype, layout, int(rng.integers(2**31))))
    return cases


# ---- inside a rank ----


def _laid_out(array: np.ndarray, dtype: str, layout: str) -> torch.Tensor:
    """The array as a tensor whose memory is laid out so."""
    if layout == "expanded":
        one = torch.from_numpy(array[..., :1].copy()).to(getattr(torch, dtype))
        return one.expand(array.shape)
    x = torch.from_numpy(array.copy()).to(getattr(torch, dtype))
    return x.t().contiguous().t() if layout == "transposed" else x


def _plain(t: Any) -> Any:
    """(dtype, numbers) of a tensor, or the name of what it is."""
    if not isinstance(t, torch.Tensor):
        return type(t).__name__, None
    return str(t.dtype)[6:], t.detach().to(torch.float64).numpy().copy()


def _drive(rank: int, world_size: int, exchange: Any, cases: list[Case]) -> list[dict[str, Any]]:
    """Inside a rank: one exchange for each case, between barriers."""
    seen = []
    for case in cases:
        rows = _laid_out(case.rows(rank), case.dtype, case.layout)
        dist.barrier()
        got = exchange(rows, case.counts[:, rank].tolist(), case.counts[rank].tolist())
        kind, numbers = _plain(got)
        shared = numbers is not None and got.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
        stays = np.array_equal(_plain(rows)[1], case.rows(rank))
        seen.append({"kind": kind, "got": numbers, "shared": shared and numbers.size > 0, "stays": stays})
    dist.barrier()
    return seen


def _drive_gradients(rank: int, world_size: int, function: Any, cases: list[Case]) -> list[dict[str, Any]]:
    """Inside a rank: an exchange, a barrier, and its backward, for each case."""
    seen = []
    for case in cases:
        rows = _laid_out(case.rows(rank), case.dtype, "").requires_grad_()
        dist.barrier()
        got = function.apply(rows, case.counts[:, rank].tolist(), case.counts[rank].tolist())
        dist.barrier()
        got.backward(_laid_out(case.back().rows(rank), case.dtype, case.layout))
        seen.append({"got": _plain(got), "grad": _plain(rows.grad)})
    dist.barrier()
    return seen


# ---- checks ----


@check(EXCHANGE, points=1.5)
def rows_arrive_in_the_order_of_ranks(all_to_all, *, rng):
    """Each rank gets the rows that all ranks have for it, in their order, in fresh memory, for any dtype and layout."""
    for world_size in WORLD_SIZES:
        cases = _cases(rng, world_size, floating=False)
        results = run_ranks(_drive, world_size, (all_to_all, cases))
        for c, case in enumerate(cases):
            _expect_arrived(case, [mine[c] for mine in results])


def _expect_arrived(case: Case, outcomes: list[dict]) -> None:
    """Each rank got the rows for it, in fresh memory."""
    for rank, one in each_rank(case.name, outcomes, evidence=lambda one: [one["kind"], one["got"]]):
        rank.expect_equal(one["kind"], case.dtype, what="the dtype of what is returned")
        rank.expect_close(one["got"], case.received(rank.rank), what="what arrives", rtol=0.0)
        rank.expect(not one["shared"], "the result shares memory with the rows", "shared")
        rank.expect(one["stays"], "the rows were changed", "changed")


@check(EXCHANGE, points=1)
def gradients_go_back_where_rows_came_from(AllToAll, *, rng):
    """AllToAll.apply is the same exchange, and its backward, one exchange, gives each row's gradient to its owner."""
    for world_size in WORLD_SIZES:
        cases = _cases(rng, world_size, floating=True)
        results = run_ranks(_drive_gradients, world_size, (AllToAll, cases))
        for c, case in enumerate(cases):
            outcomes = [mine[c] for mine in results]
            for rank, one in each_rank(case.name, outcomes, evidence=lambda one: [one["got"][1], one["grad"][1]]):
                rank.expect_equal(one["got"][0], case.dtype, what="the dtype of what is returned")
                rank.expect_close(one["got"][1], case.received(rank.rank), what="what arrives", rtol=0.0)
                rank.expect_close(one["grad"][1], case.back().received(rank.rank), what="the rows' gradient", rtol=0.0)
        parts = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for c, case in enumerate(cases):
            sent = [[m for m in mine[2 * c + 2] if m.is_send and m.bytes] for mine in parts]
            for rank, mine in each_rank(case.name, [len(one) for one in sent]):
                rank.expect(mine <= world_size - 1, f"{mine} messages were sent in backward, expected {world_size - 1}")


@check(EXCHANGE, points=0.5)
def nothing_else_is_sent(all_to_all, *, rng):
    """Only sends and receives: at most one message to each other rank, nothing to oneself, in at most N − 1 rounds."""
    for world_size in WORLD_SIZES[1:]:
        cases = _cases(rng, world_size, floating=False)
        results = run_ranks(_drive, world_size, (all_to_all, cases), recorded=True)
        parts = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for c, case in enumerate(cases):
            mine = [part[c + 1] for part in parts]
            picture(Ledger([m for one in mine for m in one], world_size))
            for rank, messages in each_rank(case.name, mine, evidence=lambda one: [(m.call, m.bytes) for m in one]):
                other = [m.call for m in messages if m.is_collective]
                rank.expect(not other, f"{(other or [''])[0]} was called: send and receive point to point")
                _expect_messages(rank, [m for m in messages if m.is_send and m.bytes], case)
            if np.all(case.counts > 0):
                rounds = Ledger([m for one in mine for m in one], world_size).rounds()
                if rounds > world_size - 1:
                    text = f"the messages took {rounds} rounds, expected at most {world_size - 1}"
                    fail(text, case.name, [rounds, [[m.peer for m in one if m.is_send] for one in mine]])
            _expect_arrived(case, [one[c] for one in results])


def _expect_messages(rank: Any, sends: list, case: Case) -> None:
    """One message for each other rank, of that rank's rows."""
    peers = [m.peer for m in sends]
    rank.expect(rank.rank not in peers, "rows were sent to the rank itself")
    rank.expect(len(set(peers)) == len(peers), f"the messages go to ranks {peers}, expected at most one to each")
    row = getattr(torch, case.dtype).itemsize * int(np.prod(case.trailing, dtype=int))
    want = row * int(case.counts[rank.rank].sum() - case.counts[rank.rank, rank.rank])
    rank.expect_equal(sum(m.bytes for m in sends), want, what="the number of bytes sent")
