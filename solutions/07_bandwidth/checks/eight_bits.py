"""Exercise 3: sums whose terms travel in 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autograder.checks.cases import Call, Case, at_most, close, fact, sentence
from autograder.checks.check import check
from autograder.checks.expect import collective
from ranks.ledger import Ledger

from .forms import no_pair

INT8 = "07-ex3-int8"
#: float32 divides, multiplies and adds with errors that are small beside half a step of 1/127.
SLACK = 2e-3


@dataclass
class Quantized:
    """A vector in 8 bits."""

    odd: str = sentence()
    scales: Any = fact("a block's scale, as a multiple of its largest magnitude / 127,")
    off: float = fact("the largest error of an entry, in steps of its block's scale,", "rounding is off by half a step")


def _quantized(got: Any, x: np.ndarray, block: int) -> Quantized:
    if odd := no_pair(got, "(q, scales)"):
        return Quantized(odd, [], 0.0)
    q, scales = got
    kinds = [(str(part.dtype), tuple(part.shape)) for part in got]
    right = [("torch.int8", (len(x),)), ("torch.float32", (len(x) // block,))]
    if kinds != right:
        return Quantized(f"(q, scales) are {kinds}, expected {right}", [], 0.0)
    blocks = x.astype(np.float64).reshape(-1, block)
    steps = np.abs(blocks).max(axis=1) / 127
    # A scale of a block of zeros may be any.
    multiples = np.where(steps > 0, scales.numpy() / np.where(steps > 0, steps, 1.0), 1.0)
    own = np.where((steps > 0) & (multiples > 0), scales.numpy(), 1.0)
    return Quantized("", multiples, float(np.abs(q.numpy().reshape(-1, block) - blocks / own[:, None]).max()))


def _quantize(quantize: Any, x: np.ndarray, block: int, name: str, *facts: str) -> Call:
    right = {"scales": close(np.ones(len(x) // block), atol=1e-5), "off": at_most(0.5, slack=SLACK)}
    gives = Quantized("", **{fact_: right[fact_] for fact_ in facts})
    shows = f"{x.tolist()}, {block}" if len(x) < 10 else ""
    # Judged with x itself: the answer may have changed its copy.
    return Call(quantize, torch.from_numpy(x), block, gives=gives, name=name, shows=shows,
                sees=lambda got, *_: _quantized(got, x, block))  # fmt: skip


def _blocks(quantize: Any, rng: np.random.Generator, fact_: str) -> Iterator[Call]:
    for block, count in ((3, 2), (128, 3), (int(rng.integers(20, 60)), 5)):
        sizes = 10.0 ** rng.permutation(np.arange(count) - 2)[:, None]
        x = rng.normal(size=(count, block)) * sizes
        x[0, 0] = -8 * sizes[0, 0]  # its largest is negative
        x[-1] *= count < 5  # the last case ends with a block of zeros
        yield _quantize(quantize, x.reshape(-1).astype(np.float32), block, f"{count} blocks of {block} entries", fact_)


@check(INT8, points=0.25)
def each_block_has_its_scale(quantize, *, rng):
    """The scale of each block is its largest magnitude / 127."""
    yield from _blocks(quantize, rng, "scales")


@check(INT8, points=0.5)
def entries_are_rounded_to_the_nearest(quantize, *, rng):
    """Each entry is rounded to the nearest multiple of the scale that its block has."""
    yield from _blocks(quantize, rng, "off")


@check(INT8, points=0.25)
def small_numbers_keep_their_bits(quantize, *, rng):
    """Numbers of 1e-8 and 1e-30 are rounded as finely as large ones: a scale has no smallest value."""
    for exponent in (-33, int(rng.integers(-60, -40)), -106):
        x = _steps(rng, 3, 16) * np.float32(2.0**exponent)
        yield _quantize(quantize, x, 16, f"entries of about {2.0 ** (exponent + 6):.0e}", "scales", "off")


def _steps(rng: np.random.Generator, blocks: int, block: int) -> np.ndarray:
    """Whole numbers of which each block has a 127: 8 bits hold them, and multiples of them, exactly."""
    x = rng.integers(-126, 127, size=(blocks, block))
    x[np.arange(blocks), rng.integers(block, size=blocks)] = 127
    return x.reshape(-1).astype(np.float32)


@dataclass
class Summed:
    """What a rank got of a sum."""

    odd: str = sentence()
    sums: Any = fact("the result")
    same: bool = fact("whether this rank has the same numbers as rank 0, not all of them 0,")


def _flat(rank: int, world_size: int, function: Any, grads: list, block: int) -> Summed:
    return _summed(function(torch.from_numpy(grads[rank].copy()), block))


def _both(rank: int, world_size: int, functions: tuple, grads: list, block: int) -> Summed:
    _flat(rank, world_size, functions[0], grads, block)
    dist.barrier()
    return _flat(rank, world_size, functions[1], grads, block)


def _hops(rank: int, world_size: int, function: Any, grads: list, block: int, gpus: int) -> Summed:
    inside = [dist.new_group(list(range(first, first + gpus))) for first in range(0, world_size, gpus)]
    between = [dist.new_group(list(range(place, world_size, gpus))) for place in range(gpus)]
    grad = torch.from_numpy(grads[rank].copy())
    return _summed(function(grad, block, inside[rank // gpus], between[rank % gpus]))


def _summed(result: Any) -> Summed:
    if not isinstance(result, torch.Tensor):
        return Summed(f"the result is {type(result).__name__}, expected a tensor", 0, True)
    return Summed("", result.detach().clone(), True)


def _compared(results: list[Summed]) -> list[Summed]:
    first = results[0].sums
    for one in results:
        one.same = bool(np.asarray(first).any()) and np.array_equal(one.sums, first)
    return results


def _sum(function: Any, rng: np.random.Generator, n: int, block: int, judged: str = "sums", gpus: int = 0, **how: Any):
    """A sum over n ranks, of the whole gradient if `function` is an all-reduce, else of a chunk for each rank.

    judged: "sums", "same" or "", for what a judge in `how` says. The ranks' gradients are multiples of each other, by
    powers of two, so that no rounding changes their sum, whichever way `quantize` rounds.
    """
    numel, whole = 2 * n * block, how.pop("whole", False)
    sizes = 2.0 ** rng.permutation(np.arange(n) - 2)
    grads = [_steps(rng, 2 * n, block) * np.float32(size) for size in sizes]
    if judged == "sums":
        grads = [grads[0] / np.float32(sizes[0]) * np.float32(size) for size in sizes]
    right = np.sum(grads, axis=0) if whole else np.split(np.sum(grads, axis=0), n)
    facts = [{"sums": close(right if whole else right[rank], rtol=1e-5), "same": True} for rank in range(n)]
    expect = [Summed("", **({judged: one[judged]} if judged else {})) for one in facts]
    name = f"{numel} entries in blocks of {block}" + f", {n // (gpus or 1)} nodes of {gpus}" * bool(gpus)
    args = (function, grads, block, *([gpus] if gpus else []))
    run = _hops if gpus else _both if isinstance(function, tuple) else _flat
    return Case(name, n, run, args, expect, sees=_compared, **how)


@check(INT8, points=1.25)
def the_owner_adds_what_it_is_sent(reduce_scatter_int8, *, rng):
    """reduce_scatter_int8: each rank gets its chunk of the sum."""
    for n, block in ((2, 4), (3, int(rng.integers(3, 20))), (1, 8), (4, 16)):
        yield _sum(reduce_scatter_int8, rng, n, block)


@check(INT8, points=0.5)
def all_reduce_gives_the_sum(all_reduce_int8, *, rng):
    """all_reduce_int8: each rank gets the whole sum."""
    for n, block in ((2, 4), (3, int(rng.integers(3, 20))), (1, 8)):
        yield _sum(all_reduce_int8, rng, n, block, whole=True)


@check(INT8, points=0.25)
def all_ranks_have_the_same_sum(all_reduce_int8, *, rng):
    """All ranks return the same numbers, the owner of a chunk included, also where the sum has to be rounded."""
    for n in (2, 3):
        yield _sum(all_reduce_int8, rng, n, int(rng.integers(3, 20)), "same", whole=True)


@check(INT8, points=0.75)
def two_hops_end_at_the_ranks_chunk(reduce_scatter_two_hops, *, rng):
    """reduce_scatter_two_hops: rank r gets chunk r of the sum over all ranks."""
    for nodes, gpus in ((2, 2), (2, 3), (3, 2)):
        yield _sum(reduce_scatter_two_hops, rng, nodes * gpus, int(rng.integers(3, 20)), gpus=gpus)


def _spent(enough: dict[str, tuple[int, int]]) -> Callable[[int, list[Ledger]], str]:
    """A judge: how many bytes go into collectives of these kinds, at least and at most, and nothing else.

    Of more than one part, the last is judged, which may put into a kind what the first has put into it.
    """

    def judge(rank: int, parts: list[Ledger]) -> str:
        first, messages = ([(_kind(m.call), m) for m in part] for part in (parts[0], parts[-1]))
        if others := [m for kind, m in messages if kind not in enough]:
            return f"rank {rank} calls {others[0].call}, which is not needed"
        for kind, (least, most) in enough.items():
            put = sum(m.bytes for other, m in messages if other == kind)
            most = max(most, sum(m.bytes for other, m in first if other == kind and len(parts) > 1))
            if not least <= put <= most:
                what = f"rank {rank} puts {put} bytes into {kind.replace('_', '-')}s"
                return f"{what}, {most} are enough" if put > most else f"{what}, and there are {least} entries"
        return ""

    return judge


def _kind(call: str) -> str:
    return "all_to_all" if call.startswith("all_to_all") else collective(call)


@check(INT8, points=0.5)
def an_entry_is_a_byte(reduce_scatter_int8, *, rng):
    """reduce_scatter_int8: entries travel as a byte each, with a float32 scale per block, by all-to-alls alone."""
    for n, block in ((2, int(rng.integers(20, 60))), (3, 32)):
        exchanged = {"all_to_all": (2 * n * block, 2 * n * (block + 4))}
        yield _sum(reduce_scatter_int8, rng, n, block, "", judge=_spent(exchanged))


@check(INT8, points=0.25)
def a_sum_is_gathered_in_bytes(reduce_scatter_int8, all_reduce_int8, *, rng):
    """all_reduce_int8: beyond a reduce_scatter_int8, the sums travel as a byte per entry, by all-gathers alone."""
    for n, block in ((2, int(rng.integers(20, 60))), (3, 32)):
        spent = {"all_to_all": (2 * n * block, 2 * n * (block + 4)), "all_gather": (2 * block, 2 * (block + 4))}
        functions = (reduce_scatter_int8, all_reduce_int8)
        yield _sum(functions, rng, n, block, "", whole=True, parts=2, judge=_spent(spent))


def _across(n: int, gpus: int) -> Callable[[int, list[Ledger]], str]:
    """A judge of the bytes that go into groups inside a node, and into others."""

    def judge(rank: int, parts: list[Ledger]) -> str:
        inside = between = 0
        for message in (m for part in parts for m in part):
            nodes = {member // gpus for member in message.group or range(n)}
            inside, between = inside + message.bytes * (len(nodes) == 1), between + message.bytes * (len(nodes) > 1)
        if not 0 < between * gpus <= inside:
            put = f"rank {rank} puts {inside} bytes into collectives in its node and {between} into others"
            return f"{put}, where 1/{gpus} of the bytes should leave the node"
        return ""

    return judge


@check(INT8, points=0.5)
def only_sums_leave_a_node(reduce_scatter_two_hops, *, rng):
    """With G GPUs per node, 1/G of the bytes that are exchanged in a node go into collectives between nodes."""
    for nodes, gpus in ((2, 2), (2, 3)):
        block = int(rng.integers(20, 40))
        yield _sum(reduce_scatter_two_hops, rng, nodes * gpus, block, "", gpus, judge=_across(nodes * gpus, gpus))
