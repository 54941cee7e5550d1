"""Exercise 1: vectors cut into pieces, and gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Case, at_most, close, fact
from autograder.checks.check import check
from autograder.checks.expect import ceil_div
from autograder.checks.inputs import eighths

from .models import padded

CUT = "09-ex1-cut"


@dataclass
class Piece:
    """What cut returned."""

    shard: Any = fact("the shard")
    gradient: bool = fact("the shard's requires_grad")
    besides: int = fact("the number of bytes that the shard keeps alive besides its own")


def _drive_cut(rank: int, world_size: int, cut: Any, arrays: list, turned: bool) -> Piece:
    """turned: matrices lie in memory column by column."""
    tensors = [torch.tensor(a) for a in arrays]
    shard = cut([nn.Parameter(t.t().contiguous().t() if turned else t) for t in tensors])
    return Piece(shard.detach().clone(), shard.requires_grad, shard.untyped_storage().nbytes() - 4 * shard.numel())


def _cut_case(cut: Any, arrays: list, n: int, name: str, **expected: Any) -> Case:
    """expected: of the shard, if not its numbers."""
    flat = np.concatenate([np.zeros(0, np.float32), *(a.reshape(-1) for a in arrays)])
    pieces = padded(flat, n).reshape(n, -1)
    expect = [Piece(**(expected or {"shard": close(piece, dtype="float32")})) for piece in pieces]
    return Case(name, n, _drive_cut, (cut, arrays, "transposed" in name), expect)


@check(CUT, points=0.75)
def shards_are_pieces_of_the_padded_vector(cut, *, rng):
    """Each rank gets its piece of the padded flat vector."""
    for n in (1, 2, 3, 5):
        size = int(rng.integers(3, 9))
        for name, shapes in (("tensors", [(3, 4), (), (size,)]), ("a transposed matrix", [(3, size)])):
            yield _cut_case(cut, [eighths(rng, shape) for shape in shapes], n, f"{name} of shapes {shapes}")


@check(CUT, points=0.25)
def shards_may_be_empty_or_padding(cut, *, rng):
    """An empty list gives empty shards, and with fewer numbers than ranks some shards are padding alone."""
    for n in (2, 4, 5):
        yield _cut_case(cut, [eighths(rng, (n - 1,))], n, f"{n - 1} numbers")
        yield _cut_case(cut, [], n, "an empty list")


@check(CUT, points=0.25)
def a_shard_is_a_copy_without_gradient(cut, *, rng):
    """The shard keeps no other memory alive, and no gradient."""
    for n in (2, 3):
        arrays = [eighths(rng, (int(rng.integers(3, 9)), 4))]
        yield _cut_case(cut, arrays, n, f"{arrays[0].size} numbers", gradient=False, besides=at_most(0))


@dataclass
class Gathered:
    """What gather returned."""

    whole: list[Any] = fact("the whole vector {}")
    dtypes: list[str] = fact("the dtype of vector {}")


def _drive_gather(rank: int, world_size: int, gather: Any, pieces: list, numels: list, dtype: str) -> Gathered:
    """pieces[i][rank]: the rank's shard of vector i."""
    shards = [nn.Parameter(torch.tensor(of_ranks[rank])) for of_ranks in pieces]
    whole = gather(shards, numels, *([getattr(torch, dtype)] if dtype != "float32" else []))
    return Gathered([one.detach().clone() for one in whole], [str(one.dtype).removeprefix("torch.") for one in whole])


def _gather_case(gather: Any, rng: np.random.Generator, numels: list[int], n: int, dtype: str, judged: bool) -> Case:
    """judged: what is sent and the dtypes, or else the numbers."""
    vectors = [eighths(rng, numel) for numel in numels]
    pieces = [padded(vector, n).reshape(n, -1) for vector in vectors]
    sends = [("all_gather", sum(ceil_div(numel, n) for numel in numels) * (4 if dtype == "float32" else 2))]
    facts = Gathered(dtypes=[dtype] * len(vectors)) if judged else Gathered([close(vector) for vector in vectors])
    args = (gather, pieces, numels, dtype)
    name = f"vectors of {numels} numbers, in {dtype}"
    return Case(name, n, _drive_gather, args, [facts] * n, sends=sends if judged else None)


@check(CUT, points=1.25)
def gather_brings_the_vectors_back(gather, *, rng):
    """Every rank gets the whole vectors, without their padding."""
    for n in (3, 1, 5, 2):
        for numels in ([int(rng.integers(6, 12)), 4], [10], [2, 0, int(rng.integers(5, 9))]):
            yield _gather_case(gather, rng, numels, n, "float32", judged=False)


@check(CUT, points=0.5)
def one_gather_brings_all_vectors(gather, *, rng):
    """There is one all-gather for all vectors, whose numbers travel in the dtype that was asked for."""
    for n in (3, 2):
        numels = [int(rng.integers(6, 12)), int(rng.integers(3, 6))]
        for dtype in ("float32", "bfloat16"):
            yield _gather_case(gather, rng, numels, n, dtype, judged=True)


def wrong_gathers(rank: int, sent: list[tuple[str, int]], allowed: list[int], world_size: int) -> str:
    """In words: that something else was sent than all-gathers that each find a place among those allowed, or "".

    A place is what this rank may contribute, in bytes.
    """
    if world_size == 1:
        return ""
    other = sorted({call for call, _ in sent if not call.startswith("all_gather")})
    if other:
        return f"rank {rank} called {', '.join(other)}, expected only all-gathers"
    places = sorted((limit for limit in allowed if limit), reverse=True)
    contributed = sorted((nbytes for _, nbytes in sent), reverse=True)
    if len(contributed) > len(places):
        return f"rank {rank} made {len(contributed)} all-gathers, expected at most {len(places)}"
    if any(nbytes > limit for nbytes, limit in zip(contributed, places, strict=False)):
        return f"rank {rank} put {contributed} bytes into its all-gathers, expected at most {places}"
    return ""
