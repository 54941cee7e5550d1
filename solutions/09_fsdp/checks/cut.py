"""Exercise 1: vectors cut into pieces, and gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import ceil_div, count_of_ranks, expect_close, expect_equal, fail
from autograder.checking.inputs import eighths
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.models import address, as_numpy, padded

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "tensors of 12, 1 and 5 numbers": [(3, 4), (), (5,)],
    "a transposed matrix of 6": [(3, 2)],
    "one number": [(1,)],
    "an empty tensor and 2 numbers": [(0, 3), (2,)],
    "no tensors": [],
}
VECTORS: dict[str, tuple[list[int], str]] = {
    "vectors of 7 and 4 numbers": ([7, 4], "float32"),
    "vectors of 5 and 8 numbers in bf16": ([5, 8], "bfloat16"),
    "three vectors, one empty": ([2, 0, 6], "float32"),
    "one vector of 10 numbers": ([10], "float32"),
    "only empty vectors": ([0, 0], "float32"),
}


def _drive_cut(rank: int, world_size: int, cut: Any, gather: Any, arrays: dict, vectors: dict) -> tuple[dict, dict]:
    pieces, wholes = {}, {}
    dist.barrier()
    for case, parts in arrays.items():
        tensors = [
            nn.Parameter(torch.tensor(a).t().contiguous().t() if "transposed" in case else torch.tensor(a))
            for a in parts
        ]
        shard = cut(tensors)
        kept = all(np.array_equal(as_numpy(t), a) for t, a in zip(tensors, parts, strict=True))
        shares = any(address(shard) == address(t) for t in tensors if t.numel())
        pieces[case] = {
            "shard": as_numpy(shard),
            "kind": f"{str(shard.dtype)[6:]}{', requires a gradient' if shard.requires_grad else ''}",
            "bytes": shard.untyped_storage().nbytes() - 4 * shard.numel(),
            "kept": kept and not shares,
        }
    for case, (whole, dtype) in vectors.items():
        mine = [torch.tensor(padded(w, world_size).reshape(world_size, -1)[rank] if len(w) else w) for w in whole]
        shards = [nn.Parameter(mine[0]), *mine[1:]]
        dist.barrier()
        got = gather(shards, [len(w) for w in whole], *([getattr(torch, dtype)] if dtype != "float32" else []))
        owners = {address(t) for t in shards if t.numel()}
        addresses = [address(t) for t in got if t.numel()]
        wholes[case] = {
            "whole": [as_numpy(t) for t in got],
            "kind": sorted({f"{str(t.dtype)[6:]}{', requires a gradient' if t.requires_grad else ''}" for t in got}),
            "shared": any(at in owners for at in addresses),
            "together": len(set(addresses)) < len(addresses),
        }
    dist.barrier()
    return pieces, wholes


@check("09-ex1-cut", points=3)
def cut_and_gather_are_inverse(cut, gather, *, rng):
    """`cut` copies a padded piece for each rank; `gather` brings the whole vectors back, with one all-gather."""
    arrays = {case: [eighths(rng, shape, limit=128) for shape in shapes] for case, shapes in SHAPES.items()}
    vectors = {case: ([eighths(rng, n, limit=128) for n in numels], dtype) for case, (numels, dtype) in VECTORS.items()}
    for world_size in (3, 1, 5):
        results = run_ranks(_drive_cut, world_size, (cut, gather, arrays, vectors))
        for name, parts in arrays.items():
            flat = np.concatenate([np.zeros(0, np.float32), *(a.reshape(-1) for a in parts)])
            case, size = f"{count_of_ranks(world_size)}, {name}", ceil_div(len(flat), world_size)
            for rank, (pieces, _) in enumerate(results):
                got, want = pieces[name], padded(flat, world_size)[rank * size : (rank + 1) * size]
                expect_close(f"{case}, rank {rank}", got["shard"], want, what="the shard", rtol=0.0)
                expect_equal(case, got["kind"], "float32", what=f"the kind of the shard on rank {rank}")
                if got["bytes"] > 0:
                    fail(f"rank {rank}'s shard keeps {got['bytes']} bytes alive besides its own", case, got["bytes"])
                if not got["kept"]:
                    fail("cut changed its tensors or shares their memory", case, "shares")
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for rank, parts in enumerate(calls):
            if any(m.bytes for m in parts[1]):
                fail(f"cut sent a message on rank {rank}", count_of_ranks(world_size), [m.call for m in parts[1]])
        for number, (name, (whole, dtype)) in enumerate(vectors.items()):
            case, itemsize = f"{count_of_ranks(world_size)}, {name}", 2 if dtype == "bfloat16" else 4
            for rank, (_, wholes) in enumerate(results):
                got = wholes[name]
                lengths = [len(w) for w in got["whole"]]
                what = f"the list of the lengths that rank {rank} gathered"
                expect_equal(case, lengths, [len(w) for w in whole], what=what)
                for index, want in enumerate(whole):
                    what = f"the whole vector {index} on rank {rank}"
                    expect_close(case, got["whole"][index], want, what=what, rtol=0.0)
                expect_equal(case, got["kind"], [dtype], what=f"the list of the kinds that rank {rank} gathered")
                if got["shared"]:
                    fail(f"a vector that rank {rank} gathered shares its memory with a shard", case, "shared")
                if got["together"]:
                    fail(f"two of the vectors that rank {rank} gathered share one memory", case, "together")
                sent = [(m.call, m.bytes) for m in calls[rank][2 + number] if m.bytes]
                limit = sum(ceil_div(len(w), world_size) for w in whole) * itemsize
                if wrong := wrong_gathers(rank, sent, [limit], world_size):
                    fail(wrong, case, sent)


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
