"""Exercise 7: gradients that are sharded bucket by bucket while backward runs, and the peak of their bytes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import ceil_div, count_of_ranks, expect_close, expect_equal, fail
from autograder.checking.inputs import eighths
from autograder.checking.instruments.memory import LiveBytes
from autograder.checking.stage import run_ranks
from autograder.checks.zero1.gradient import ROUNDING

BUCKETS = "08-ex7-buckets"
#: Shapes of the parameters of each bucket, in the order in which their gradients arrive.
LAYOUTS = {
    "3 buckets": [[(3, 2), (4,)], [(5,)], [(2, 2), (1,), (3,)]],
    "a bucket for each parameter": [[(4,)], [(3, 3)], [(1,)]],
    "1 bucket": [[(2, 3), (5,)]],
}
#: What the meter may see besides: scalars of the loss and of autograd.
SLACK = 512
#: Seconds in which gloo's threads let go of what they have sent, on a busy machine.
PATIENCE = 2.0


def _backward(params: list[nn.Parameter], gradients: list[torch.Tensor | None]) -> None:
    """A backward that gives the parameters these gradients, from the first one to the last."""
    used = [(p, g) for p, g in zip(params, gradients, strict=True) if g is not None]
    # Autograd begins with what was computed last.
    sum((p * g).sum() for p, g in reversed(used)).backward()


def _drive(rank: int, world_size: int, reducer_class: Any, layout: list, dtype: str, steps: list) -> list[dict]:
    """Each step's shards. steps[i][rank][j]: the j-th parameter's gradient in step i, or None."""
    kind = getattr(torch, dtype)
    buckets = [[nn.Parameter(torch.zeros(shape, dtype=kind)) for shape in shapes] for shapes in layout]
    params, seen = [p for bucket in buckets for p in bucket], []
    reducer = reducer_class(buckets)
    for gradients in steps:
        dist.barrier()
        _backward(params, [None if g is None else torch.tensor(g).to(kind) for g in gradients[rank]])
        shards = reducer.finish()
        dist.barrier()
        seen.append({"shards": [s.detach().clone() for s in shards], "gone": all(p.grad is None for p in params)})
    return seen


def _steps(rng: np.random.Generator, world_size: int, layout: list, count: int = 2) -> list:
    shapes = [shape for bucket in layout for shape in bucket]
    return [[[eighths(rng, shape) for shape in shapes] for _ in range(world_size)] for _ in range(count)]


def _expected(layout: list, gradients: list, world_size: int) -> list[np.ndarray]:
    """For each bucket the padded mean, (N, ⌈B/N⌉): row r is rank r's shard."""
    shapes, at, found = [shape for bucket in layout for shape in bucket], 0, []
    for bucket in layout:
        places = range(at, at + len(bucket))
        at += len(bucket)
        rows = [
            np.concatenate([np.zeros(shapes[i]).ravel() if mine[i] is None else mine[i].ravel() for i in places])
            for mine in gradients
        ]
        mean = np.mean(rows, axis=0, dtype=np.float64)
        size = ceil_div(len(mean), world_size)
        found.append(np.concatenate([mean, np.zeros(size * world_size - len(mean))]).reshape(world_size, size))
    return found


def _expect_steps(case: str, layout: list, steps: list, results: Any) -> None:
    """On each rank, in each step, the shards of the mean."""
    for step, gradients in enumerate(steps):
        want = _expected(layout, gradients, len(results))
        for rank, mine in enumerate(results):
            where, shards = f"{case}, backward {step + 1}, rank {rank}", mine[step]["shards"]
            evidence = [np.concatenate([s.double().numpy() for s in m[step]["shards"]] or [[]]) for m in results]
            expect_equal(where, len(shards), len(layout), what="the number of shards that finish() returns")
            for k, (shard, rows) in enumerate(zip(shards, want, strict=True)):
                what = f"the shard of bucket {k}"
                expect_close(where, shard, rows[rank], what=what, rtol=1e-6, atol=ROUNDING, evidence=evidence)
                expect_equal(where, str(shard.dtype), "torch.float32", what=f"the dtype of {what}")


@check(BUCKETS)
def shards_are_those_of_each_buckets_mean(GradientBuckets, *, rng):  # noqa: N803
    """After every backward, finish() returns each bucket's shard of the mean, in float32, and each p.grad is None."""
    for world_size, name in ((1, "3 buckets"), (2, "3 buckets"), (3, "3 buckets"), (4, "1 bucket"),
                             (5, "a bucket for each parameter")):  # fmt: skip
        for dtype in ("float32", "bfloat16") if world_size == 2 else ("float32",):
            steps = _steps(rng, world_size, LAYOUTS[name])
            case = f"{count_of_ranks(world_size)}, {name}, {dtype}"
            results = run_ranks(_drive, world_size, (GradientBuckets, LAYOUTS[name], dtype, steps))
            _expect_steps(case, LAYOUTS[name], steps, results)
            for rank, mine in enumerate(results):
                gone = [step["gone"] for step in mine]
                expect_equal(f"{case}, rank {rank}", gone, [True, True], what="whether each p.grad is None afterwards")


@check(BUCKETS)
def each_bucket_is_one_reduce_scatter(GradientBuckets, *, rng):  # noqa: N803
    """A backward sends only one reduce-scatter per bucket, of N⌈B/N⌉ float32 numbers, in the buckets' order."""
    for world_size, name in ((2, "3 buckets"), (3, "a bucket for each parameter")):
        steps = _steps(rng, world_size, LAYOUTS[name])
        results = run_ranks(_drive, world_size, (GradientBuckets, LAYOUTS[name], "float32", steps))
        sizes = [int(sum(np.prod(shape, dtype=int) for shape in bucket)) for bucket in LAYOUTS[name]]
        want = [4 * world_size * ceil_div(size, world_size) for size in sizes]
        for rank in range(world_size):
            case = f"{count_of_ranks(world_size)}, {name}, rank {rank}"
            for part in results.ledger.of(rank).between_barriers()[1::2]:
                calls = [(m.call, m.bytes) for m in part]
                if [n for c, n in calls if c.startswith("reduce_scatter")] != want or len(calls) != len(want):
                    fail(f"a backward made the calls {calls}, expected reduce_scatters of {want} bytes", case, calls)
        _expect_steps(f"{count_of_ranks(world_size)}, {name}", LAYOUTS[name], steps, results)


@check(BUCKETS)
def missing_gradients_keep_the_order(GradientBuckets, *, rng):  # noqa: N803
    """A gradient that is missing on some ranks counts as zeros, and a complete bucket waits for those before it."""
    layout = LAYOUTS["3 buckets"]
    for world_size in (2, 3):
        steps = _steps(rng, world_size, layout, count=3)
        for place in (1, 2):  # rank 0 never completes bucket 0 in the second backward, and has none of bucket 1
            steps[1][0][place] = None
        for rank in range(world_size):
            steps[2][rank][4] = None  # nobody has this one
        case = f"{count_of_ranks(world_size)}, gradients missing"
        results = run_ranks(_drive, world_size, (GradientBuckets, layout, "float32", steps))
        _expect_steps(case, layout, steps, results)


def _oracle(numels: list[list[int]], world_size: int) -> int:
    """The bytes moment by moment: each gradient with its bucket's buffer, each reduce-scatter with its shard."""
    moments = [0]
    shards = [ceil_div(sum(sizes), world_size) for sizes in numels]
    for k, sizes in enumerate(numels):
        moments += [sum(shards[:k]) + world_size * shards[k] + size for size in sizes]
        moments += [sum(shards[:k]) + world_size * shards[k] + shards[k]]
    return 4 * max(moments)


def _meter(rank: int, world_size: int, reducer_class: Any, numels: list[list[int]], most: int) -> dict[str, Any]:
    """Bytes above what was there before the object was made: when it is made, at the peak, after backward and finish().

    The shards that are due then are not counted. most: bytes at the peak that are no mistake; the oracle itself stays
    outside, since this submission is asked for its numbers later. gradients: how many p.grad are left at the end.
    shards: what finish() returned. All gradients of rank r are r + 1.
    """
    buckets = [[nn.Parameter(torch.zeros(size)) for size in sizes] for sizes in numels]
    params = [p for bucket in buckets for p in bucket]
    numbers = [torch.full((p.numel(),), rank + 1.0) for p in params]
    dist.all_reduce(torch.zeros(1))  # a first collective prepares what later ones need
    gc.collect()
    meter = LiveBytes(views=False)
    before = meter.now()
    meter.limit = before + most + SLACK

    def settled(shards: int = 0) -> int:
        dist.all_reduce(torch.zeros(1))  # gloo's threads may hold a tensor until they have another
        gc.collect()
        meter.patience = PATIENCE  # whatever the peak has used up
        return meter.settled(before + shards + SLACK) - before - shards

    with meter:
        reducer = reducer_class(buckets)
    made, meter.patience = settled(), PATIENCE
    loss = sum((p * g).sum() for p, g in reversed(list(zip(params, numbers, strict=True))))
    with meter:
        loss.backward()
    backward = settled(4 * sum(ceil_div(sum(sizes), world_size) for sizes in numels))
    meter.patience = PATIENCE
    with meter:
        shards = reducer.finish()
    found = [shard.detach().numpy().copy() for shard in shards]  # the meter does not see these
    del shards
    left = sum(p.grad is not None for p in params)
    seen = {"made": made, "peak": meter.peak - before, "backward": backward, "after": settled(), "gradients": left}
    return seen | {"shards": [torch.from_numpy(shard) for shard in found]}


@check(BUCKETS)
def buckets_hold_no_more_than_predicted(GradientBuckets, *, rng):  # noqa: N803
    """In backward, at most the shards so far, a buffer and a gradient or new shard are alive; outside it, nothing."""
    for world_size, numels in (
        (2, [[3000, 1000], [2000], [2500, 500]]),
        (4, [[1000] * 2 for _ in range(6)]),
        (3, [[int(n)] for n in rng.integers(900, 3000, 5)]),
    ):
        most = _oracle(numels, world_size)
        results = run_ranks(_meter, world_size, (GradientBuckets, numels, most))
        for rank, bytes_alive in enumerate(results):
            case = f"{count_of_ranks(world_size)}, buckets of {numels} numbers, rank {rank}"
            for moment, text in (
                ("made", "bytes are alive before the first gradient: a buffer is made when it is needed"),
                ("after", "bytes besides the shards are alive after finish(), which must forget all of this backward"),
            ):
                if bytes_alive[moment] > SLACK:
                    # Most buffers or gradients still there at the end of backward are another mistake.
                    kept = [[mine["backward"] > 2 * sum(map(sum, numels)), mine["gradients"]] for mine in results]
                    seen = [moment, [mine[moment] // 512 for mine in results], kept if moment == "after" else []]
                    fail(f"{bytes_alive[moment]} {text}", case, seen)
            if bytes_alive["peak"] > most + SLACK:
                total, peak = 4 * sum(map(sum, numels)), bytes_alive["peak"]
                text = f"{peak} bytes were alive at the peak, expected at most {most}; all gradients have {total}"
                fail(text, case, ["peak", *(mine["peak"] // 512 for mine in results)])
        layout = [[(size,) for size in sizes] for sizes in numels]
        gradients = [[np.full(size, rank + 1.0) for sizes in numels for size in sizes] for rank in range(world_size)]
        case = f"{count_of_ranks(world_size)}, buckets of {numels} numbers"
        _expect_steps(case, layout, [gradients], [[mine] for mine in results])


@check(BUCKETS)
def the_peak_is_predicted(peak_bytes, *, rng):
    """peak_bytes gives the exact bytes of the worst moment, as an int, whichever bucket it is in."""
    some = [[int(n) for n in rng.integers(1, 60, rng.integers(1, 5))] for _ in range(5)]
    cases = [[[4], [2, 6]], [[7, 7], [1]], [[1], [1], [9]], [[10], [1, 1]], [[1], [2, 6], [1]], [[3] * 5] * 4, some]
    for numels in cases:
        for world_size in (1, 2, 3, 4, 64):
            got = peak_bytes([list(sizes) for sizes in numels], world_size)
            case = f"peak_bytes({numels}, {world_size})"
            expect_equal(case, got, _oracle(numels, world_size), what="the peak in bytes")
