"""Exercise 7: gradients that are sharded bucket by bucket while backward runs, and the peak of their bytes."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checks.cases import Call, Case, at_most, close, evidence, fact
from autograder.checks.check import check
from autograder.checks.expect import ceil_div, collective
from autograder.checks.inputs import eighths
from autograder.checks.instruments.memory import LiveBytes
from ranks.ledger import Ledger

from .gradient import ROUNDING, mean_shards, scaled

BUCKETS = "08-ex7-buckets"
#: Shapes of the parameters of each bucket, in the order in which their gradients arrive.
LAYOUTS = {
    "3 buckets": [[(3, 2), (4,)], [(5,)], [(2, 2), (1,), (3,)]],
    "a bucket for each parameter": [[(4,)], [(3, 3)], [(1,)]],
    "1 bucket": [[(2, 3), (5,)]],
}
#: Slack for the small tensors of the loss and of autograd, in bytes.
SLACK = 512
#: How long to wait, in seconds, for gloo's threads to release sent tensors, on a busy machine.
PATIENCE = 2.0


@dataclass
class Finished:
    """What a rank has after a backward and finish()."""

    when: str
    shards: list[Any] = fact("the shard of bucket {}")
    directions: list[Any] = fact("the shard of bucket {}, with all shards of all ranks scaled to length 1,")


def _drive(rank: int, world_size: int, reducer_class: Any, layout: list, dtype: str, steps: list) -> list[Finished]:
    """steps[i][rank][j]: the j-th parameter's gradient in step i, or None."""
    kind = getattr(torch, dtype)
    buckets = [[nn.Parameter(torch.zeros(shape, dtype=kind)) for shape in shapes] for shapes in layout]
    params, found = [p for bucket in buckets for p in bucket], []
    reducer = reducer_class(buckets)
    for step, gradients in enumerate(steps):
        grads = [None if g is None else torch.tensor(g).to(kind) for g in gradients[rank]]
        used = [(p, g) for p, g in zip(params, grads, strict=True) if g is not None]
        # Autograd begins with what was computed last.
        sum((p * g).sum() for p, g in reversed(used)).backward()
        shards = [s.detach().clone() for s in reducer.finish()]
        dist.barrier()
        found.append(Finished(f"after backward {step + 1}", shards, scaled(shards)))
        dist.barrier()
    return found


def _steps(rng: np.random.Generator, n: int, name: str, count: int = 2) -> list:
    shapes = [shape for bucket in LAYOUTS[name] for shape in bucket]
    return [[[eighths(rng, shape) for shape in shapes] for _ in range(n)] for _ in range(count)]


def _case(reducer: Any, name: str, steps: list, scale=True, dtype="float32", also="", judge=None) -> Case:
    """A case: after every backward, each rank has the shards of the mean, or with `scale` of a multiple of it."""
    layout, n = LAYOUTS[name], len(steps[0])
    expect: list[list[Finished]] = [[] for _ in range(n)]
    for gradients in steps:
        means = _means(layout, gradients)
        length = math.sqrt(sum(float(np.square(rows).sum()) for rows in means))
        for rank in range(n):
            shards = [close(rows[rank] / (length if scale else 1.0), **ROUNDING) for rows in means]
            expect[rank].append(Finished("", directions=shards) if scale else Finished("", shards))
    name, parts = f"{name}, {dtype}{also}", 2 * len(steps) + 1
    return Case(name, n, _drive, (reducer, layout, dtype, steps), expect, judge=judge, parts=parts)


def _means(layout: list, gradients: list) -> list[np.ndarray]:
    """Of each bucket its padded mean, a row per rank."""
    found, first = [], 0
    for bucket in layout:
        places = range(first, first + len(bucket))
        zeros = dict(zip(places, map(np.zeros, bucket), strict=True))
        found.append(mean_shards([[zeros[i] if mine[i] is None else mine[i] for i in places] for mine in gradients]))
        first += len(bucket)
    return found


@check(BUCKETS, points=1.25)
def shards_are_parts_of_each_buckets_sum(GradientBuckets, *, rng):
    """After every backward, finish() returns each bucket's shard of the sum over the ranks, up to a common factor."""
    tried = [(1, "3 buckets"), (2, "3 buckets"), (3, "3 buckets"), (4, "1 bucket"), (5, "a bucket for each parameter")]
    for n, name in tried:
        yield _case(GradientBuckets, name, _steps(rng, n, name))


@check(BUCKETS, points=0.25)
def the_buckets_are_means(GradientBuckets, *, rng):
    """The shards are those of the mean over the ranks."""
    for n, name in ((2, "3 buckets"), (3, "1 bucket")):
        yield _case(GradientBuckets, name, _steps(rng, n, name), scale=False)


@check(BUCKETS, points=0.25)
def bf16_is_reduced_in_float32(GradientBuckets, *, rng):
    """Gradients in bf16 are summed in float32 buffers."""
    for n in (2, 3):
        yield _case(GradientBuckets, "3 buckets", _steps(rng, n, "3 buckets"), dtype="bfloat16")


def _one_per_bucket(n: int, layout: list) -> Callable[[int, list[Ledger]], str]:
    """A judge: each backward, up to its barrier, sends only one reduce-scatter per bucket, in the buckets' order."""
    sizes = [int(sum(np.prod(shape, dtype=int) for shape in bucket)) for bucket in layout]
    want = [("reduce_scatter", 4 * n * ceil_div(size, n)) for size in sizes]

    def judge(rank: int, parts: list[Ledger]) -> str:
        for part in parts[:-1:2]:
            if (sent := [(collective(m.call), m.bytes) for m in part]) != want:
                got, right = (", ".join(f"{kind} of {nbytes} bytes" for kind, nbytes in of) for of in (sent, want))
                return f"in one backward rank {rank} sends {got or 'nothing'}; expected {right}"
        return ""

    return judge


@check(BUCKETS, points=0.25)
def each_bucket_is_one_reduce_scatter(GradientBuckets, *, rng):
    """A backward sends only one reduce-scatter per bucket, of N⌈B/N⌉ float32 numbers, in the buckets' order."""
    for n, name in ((2, "3 buckets"), (3, "a bucket for each parameter")):
        yield _case(GradientBuckets, name, _steps(rng, n, name), judge=_one_per_bucket(n, LAYOUTS[name]))


@check(BUCKETS, points=0.5)
def missing_gradients_keep_the_order(GradientBuckets, *, rng):
    """A gradient that is missing on some ranks counts as zeros, and a complete bucket waits for those before it."""
    for n in (2, 3):
        steps = _steps(rng, n, "3 buckets", count=3)
        for place in (1, 2):  # rank 0 never completes bucket 0 in the second backward, and has none of bucket 1
            steps[1][0][place] = None
        for rank in range(n):
            steps[2][rank][4] = None  # nobody has this one
        yield _case(GradientBuckets, "3 buckets", steps, also=", gradients missing")


def _oracle(numels: list[list[int]], world_size: int) -> int:
    """The bytes moment by moment: each gradient with its bucket's buffer, each reduce-scatter with its shard."""
    moments = [0]
    shards = [ceil_div(sum(sizes), world_size) for sizes in numels]
    for k, sizes in enumerate(numels):
        moments += [sum(shards[:k]) + world_size * shards[k] + size for size in sizes]
        moments += [sum(shards[:k]) + world_size * shards[k] + shards[k]]
    return 4 * max(moments)


@dataclass
class Metered:
    """Bytes above those that were there before the object was made, without the shards that are due, and the shards."""

    made: int = fact(
        "the number of bytes alive before the first gradient",
        "a buffer is made when it is needed",
        seen=lambda nbytes: nbytes // SLACK,
    )
    after: int = fact(
        "the number of bytes alive after finish(), besides the shards,",
        "it must forget all of this backward",
        seen=lambda nbytes: nbytes // SLACK,
    )
    peak: int = fact("the number of bytes alive at the peak", seen=lambda nbytes: nbytes // SLACK)
    shards: list[Any] = fact("the length of the shard of bucket {}, where it is not all zeros,")
    kept: list[Any] = evidence()  # most buffers or gradients still there at the end of backward are another mistake


def _meter(rank: int, world_size: int, reducer_class: Any, numels: list[list[int]], most: int) -> Metered:
    """Meter one backward. most: bytes at the peak that are no mistake. All gradients of rank r are r + 1.

    The oracle stays outside, since this submission is asked for its numbers later.
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
    found = [len(shard) * bool(shard[0] != 0) for shard in shards]
    del shards
    kept = [backward > 2 * sum(map(sum, numels)), sum(p.grad is not None for p in params)]
    after, peak = settled(), meter.peak - before
    return Metered(made, after, peak, found, kept)


@check(BUCKETS, points=1)
def buckets_hold_no_more_than_predicted(GradientBuckets, *, rng):
    """In backward, at most the shards so far, a buffer and a gradient or new shard are alive; outside it, nothing."""
    for n, numels in (
        (2, [[3000, 1000], [2000], [2500, 500]]),
        (4, [[1000] * 2 for _ in range(6)]),
        (3, [[int(size)] for size in rng.integers(900, 3000, 5)]),
    ):
        most = _oracle(numels, n)
        none, peak = at_most(0, slack=SLACK), at_most(most, slack=SLACK)
        lengths = [ceil_div(sum(sizes), n) for sizes in numels]
        expect = [Metered(none, none, peak, lengths)] * n
        name = f"buckets of {numels} numbers, {4 * sum(map(sum, numels))} bytes of gradients"
        yield Case(name, n, _meter, (GradientBuckets, numels, most), expect, judge=_sent_too_late)


def _sent_too_late(rank: int, parts: list[Ledger]) -> str:
    """What is wrong if a rank has all gradients of a backward, and finish() still sends something.

    `_meter` itself makes an all-reduce before the object is made, after that, after backward and at the end.
    """
    calls = [collective(message.call) for part in parts for message in part]
    after = [place for place, call in enumerate(calls) if call == "all_reduce"][2:3]
    late = calls[after[0] :].count("reduce_scatter") if after else 0
    return f"rank {rank} starts {late} reduce-scatters only in finish(), when all gradients are there" if late else ""


@check(BUCKETS, points=0.5)
def the_peak_is_predicted(peak_bytes, *, rng):
    """peak_bytes gives the exact bytes of the worst moment, as an int, whichever bucket it is in."""
    some = [[int(n) for n in rng.integers(1, 60, rng.integers(1, 5))] for _ in range(5)]
    cases = [[[4], [2, 6]], [[7, 7], [1]], [[1], [1], [9]], [[10], [1, 1]], [[1], [2, 6], [1]], [[3] * 5] * 4, some]
    for numels in cases:
        for n in (1, 2, 3, 4, 64):
            yield Call(peak_bytes, list(map(list, numels)), n, gives=_oracle(numels, n), what="the peak in bytes")
