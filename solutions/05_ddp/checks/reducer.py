"""Lesson 05, exercises 3 and 4: the all-reduce of one bucket, and a reducer that starts many in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import each_rank, expect_close, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    PATIENCE,
    SIZES,
    WORLD_SIZES,
    arrays_of,
    calls_inside,
    case_of,
    evidence_of,
    expect_error,
    expect_sent,
    in_words,
    sent_by,
    span_of,
)
from ranks.ledger import Ledger

# ---- gradients ----


def _gradients(seed: int, rank: int, shapes: list[tuple], dtype: str) -> list[np.ndarray]:
    """Whole numbers below 2**20: sums of four are exact in float32, but not in float16, where they would be off.

    In float16, odd multiples of its smallest number: sums are exact, and half of one is not.
    """
    rng = np.random.default_rng([seed, rank])
    if dtype == "float16":
        return [np.asarray((2 * rng.integers(2**7, 2**8, shape) + 1) * 2.0**-24, dtype) for shape in shapes]
    return [np.asarray(rng.integers(-(2**20), 2**20, shape), dtype) for shape in shapes]


def _bucket(
    seed: int, rank: int, shapes: list[tuple], dtype: str, absent: Iterable[int] = ()
) -> tuple[list[nn.Parameter], list[torch.Tensor | None]]:
    """Parameters with this rank's gradients; matrices lie transposed in memory; `absent` ones have none."""
    params, grads = [], []
    for number, array in enumerate(_gradients(seed, rank, shapes, dtype)):
        data, grad = torch.ones(array.shape, dtype=getattr(torch, dtype)), torch.from_numpy(array.copy())
        if data.ndim == 2:
            data, grad = data.t().contiguous().t(), grad.t().contiguous().t()
        params.append(nn.Parameter(data))
        if number not in absent:
            params[-1].grad = grad
        grads.append(params[-1].grad)
    return params, grads


def _mean(seed: int, world_size: int, shapes: list[tuple], dtype: str, absent: Callable[[int], Iterable[int]]) -> list:
    """The mean over the ranks of the gradients that `_bucket` gives them; absent ones count as zeros."""
    total = [np.zeros(shape, np.float64) for shape in shapes]
    for rank in range(world_size):
        for number, array in enumerate(_gradients(seed, rank, shapes, dtype)):
            if number not in absent(rank):
                total[number] = total[number] + array
    return [array / world_size for array in total]


def _expect_mean(case: str, got: list[list], expected: list[np.ndarray], rtol: float) -> None:
    """Every rank holds the mean gradients."""
    for rank, mine in each_rank(case, got, evidence=evidence_of):
        for number, (array, mean) in enumerate(zip(mine, expected, strict=True)):
            rank.expect(array is not None, f"the gradient of parameter {number} is None")
            rank.expect_close(array, mean, what=f"the gradient of parameter {number}", rtol=rtol)


# ---- 3 · start_bucket and finish_bucket ----

#: The division by N may come before the sum, and costs digits there that float16 does not have.
_RTOLS = {"float32": 1e-6, "float64": 1e-12, "float16": 2e-2}
#: Shapes, dtype, and which gradients are absent on which rank.
_Bucket = tuple[list[tuple], str, Callable[[int], tuple]]

#: Buckets with all their gradients, the simple ones first.
_WHOLE: tuple[_Bucket, ...] = (
    ([(3,), (2,)], "float32", lambda rank: ()),
    ([(5,)], "float32", lambda rank: ()),  # as large as the one before, on its way at the same time
    ([(2, 3), (), (4,)], "float64", lambda rank: ()),
    ([(3,), (0, 2), (2, 2)], "float64", lambda rank: ()),
    ([(3,), (2,)], "float16", lambda rank: ()),
)
#: Buckets in which some are missing.
_GAPS: tuple[_Bucket, ...] = (
    ([(5,), (3, 2), (2,)], "float32", lambda rank: (1,) if rank == 0 else ()),
    ([(4,), (0, 2), (2, 2)], "float64", lambda rank: (0, 2)),
    ([(3,), (2,)], "float64", lambda rank: (0, 1)),
)


def _drive_bucket_pair(
    rank: int, world_size: int, start_bucket: Any, finish_bucket: Any, seed: int, buckets: tuple[_Bucket, ...]
) -> list[dict]:
    """Inside a rank: start all buckets, then finish them, and look at each gradient in between and after."""
    made = [_bucket(seed + b, rank, shapes, dtype, absent(rank)) for b, (shapes, dtype, absent) in enumerate(buckets)]
    copies = [arrays_of(grads) for _, grads in made]
    views = [[None if g is None else g.detach() for g in grads] for _, grads in made]
    handles = []
    for b, (params, _) in enumerate(made):
        with record_function(f"start {b}"):
            pair = start_bucket(params)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"start_bucket should return the tuple (flat, work), got a {type(pair).__name__}")
        handles.append(pair)
    with record_function("all started"):
        pass
    observed = []
    for b, ((params, grads), (flat, work)) in enumerate(zip(made, handles, strict=True)):
        seen: dict[str, Any] = {"flat": (type(flat).__name__, str(flat.dtype), tuple(flat.shape))}
        pointer = flat.untyped_storage().data_ptr()
        seen["numbers"] = arrays_of([flat])[0] if world_size == 1 else None  # of several ranks they are on their way
        seen["shared"] = any(g is not None and g.numel() and g.untyped_storage().data_ptr() == pointer for g in grads)
        same = zip(arrays_of(p.grad for p in params), copies[b], strict=True)
        seen["early"] = [not _same(now, then) for now, then in same]
        seen["early"] += [p.grad is not g for p, g in zip(params, grads, strict=True)]
        with record_function(f"finish {b}"):
            finish_bucket(params, flat, work)
        seen["after"] = arrays_of(p.grad for p in params)
        pairs = list(zip(params, grads, strict=True))
        seen["replaced"] = [g is not None and p.grad is not g for p, g in pairs]
        seen["stale"] = [g is not None and not torch.equal(p.grad, g) for p, g in zip(params, views[b], strict=True)]
        observed.append(seen)
    return observed


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return (a is None) == (b is None) and (a is None or np.array_equal(a, b))


@check("05-ex3-start-finish", points=1.5)
def a_bucket_is_averaged_in_one_asynchronous_all_reduce(start_bucket, finish_bucket, *, rng):
    """start_bucket starts one all-reduce and returns at once; finish_bucket leaves the means in `.grad`."""
    _expect_means_of(_WHOLE, start_bucket, finish_bucket, rng)


@check("05-ex3-start-finish", points=0.5)
def missing_gradients_count_as_zeros(start_bucket, finish_bucket, *, rng):
    """A gradient that is None counts as zeros; finish_bucket makes it, and start_bucket leaves it None."""
    _expect_means_of(_GAPS, start_bucket, finish_bucket, rng)


def _expect_means_of(
    buckets: tuple[_Bucket, ...], start_bucket: Any, finish_bucket: Any, rng: np.random.Generator
) -> None:
    for world_size in WORLD_SIZES:
        seed = inputs.seed(rng)
        results = run_ranks(_drive_bucket_pair, world_size, (start_bucket, finish_bucket, seed, buckets))
        for b, (shapes, dtype, absent) in enumerate(buckets):
            numel = sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)
            case = case_of(world_size, f"{len(shapes)} gradients, {numel} {dtype} numbers")
            if world_size > 1:
                _expect_one_all_reduce(case, results.ledger, world_size, b, numel * SIZES[dtype])
            seen = [result[b] for result in results]
            for rank, mine in each_rank(case, seen):
                _, kind, shape = mine["flat"]
                if (kind, shape) != (f"torch.{dtype}", (numel,)):
                    wanted = f"torch.{dtype} of shape ({numel},)"
                    rank.fail(f"flat is {kind} of shape {shape}, expected {wanted}", mine["flat"])
                if mine["shared"]:
                    rank.fail("flat shares memory with a gradient", "shared")
                if any(mine["early"]):
                    rank.fail("start_bucket changed a gradient", "early")
            mean = _mean(seed + b, world_size, shapes, dtype, absent)
            if world_size == 1:
                whole = np.concatenate([array.reshape(-1) for array in mean])
                expect_close(case, seen[0]["numbers"], whole, what="flat", rtol=0.0)
            _expect_mean(case, [mine["after"] for mine in seen], mean, _RTOLS[dtype])
            for rank, mine in each_rank(case, seen):
                dtypes = sorted({str(array.dtype) for array in mine["after"]})
                if dtypes != [dtype]:
                    rank.fail(f"the gradients became {', '.join(dtypes)}, expected {dtype}", dtypes)
                if any(mine["replaced"]):
                    rank.fail("a gradient was replaced: write into the tensor that is there", "replaced")
                if any(mine["stale"]):
                    rank.fail("a gradient was given new memory: write into the memory that is there", "new memory")


def _expect_one_all_reduce(case: str, ledger: Ledger, world_size: int, b: int, nbytes: int) -> None:
    """start_bucket began one all-reduce and did not wait for it; finish_bucket sent nothing."""
    started = [calls_inside(ledger, rank, f"start {b}") for rank in range(world_size)]
    expect_sent(case, [sent_by(messages) for messages in started], [("all_reduce", nbytes)], "start_bucket")
    for rank, (call, *_) in each_rank(case, started, evidence=len):
        if call.end is None:
            rank.fail("wait() was never called on the all-reduce", "never waited")
        if call.end < span_of(ledger, rank.rank, "all started").start:
            rank.fail("start_bucket waited for the all-reduce, expected it to return at once", "waits")
    sent = [sent_by(calls_inside(ledger, rank, f"finish {b}")) for rank in range(world_size)]
    expect_sent(case, sent, [], "finish_bucket")


# ---- 4 · Reducer ----

#: Three buckets of equal size, then one of another size, so that neither a size nor a sum can hide a wrong order.
_STEP_SHAPES = [[(2,), (3,)], [(5,)], [(4,), (1,)], [(2, 2)]]
_ORDERS = (
    "all arrive in order",
    "equal buckets arrive out of order",
    "all arrive out of order",
    "some are missing",
    "none arrives on even ranks",
)
#: For each step and parity of the rank, the parameters that are marked, as (bucket, place), in order. In the second
#: step buckets of equal size complete in different orders: who starts them at once gets wrong sums. In the third the
#: sizes differ, too, and what gloo makes of that is not the same in every run.
_MARKS = (
    {0: [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)], 1: [(0, 1), (0, 0), (1, 0), (2, 1), (2, 0), (3, 0)]},
    {0: [(2, 1), (1, 0), (2, 0), (0, 1), (0, 0), (3, 0)], 1: [(1, 0), (0, 0), (2, 0), (0, 1), (2, 1), (3, 0)]},
    {0: [(2, 1), (1, 0), (2, 0), (0, 1), (3, 0), (0, 0)], 1: [(1, 0), (3, 0), (0, 0), (2, 0), (0, 1), (2, 1)]},
    {0: [(1, 0), (0, 0), (0, 1), (3, 0), (2, 0)], 1: [(0, 0), (0, 1), (2, 1), (2, 0)]},
    {0: [], 1: [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)]},
)


def _marks_that_start(marks: list[tuple[int, int]]) -> list[list[int]]:
    """For each mark, the buckets that it starts: those that are complete and have no unstarted bucket before them."""
    left = [len(shapes) for shapes in _STEP_SHAPES]
    starts, following = [], 0
    for bucket, _ in marks:
        left[bucket] -= 1
        now = []
        while following < len(left) and left[following] == 0:
            now.append(following)
            following += 1
        starts.append(now)
    return starts


def _step_buckets(seed: int, rank: int, step: int) -> list[list[np.ndarray]]:
    return [_gradients(seed + 10 * step + b, rank, shapes, "float64") for b, shapes in enumerate(_STEP_SHAPES)]


def _drive_reducer(rank: int, world_size: int, reducer_class: Any, seed: int, steps: tuple[int, ...]) -> list[list]:
    """Inside a rank: steps of one reducer, whose gradients arrive in the order of `_MARKS`."""
    buckets = [[nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes] for shapes in _STEP_SHAPES]
    with record_function("construction"):
        reducer = reducer_class(buckets)
        reducer_class([[nn.Parameter(torch.zeros(1))]])  # the reducer of another model: each remembers its own marks
    observed = []
    for step in steps:
        marks = _MARKS[step]
        for bucket, arrays in zip(buckets, _step_buckets(seed, rank, step), strict=True):
            for p, array in zip(bucket, arrays, strict=True):
                p.grad = torch.from_numpy(array.copy())
        for number, (b, k) in enumerate(marks[rank % 2]):
            with record_function(f"step {step} mark {number}"):
                reducer.mark_ready(buckets[b][k])
        with record_function(f"step {step} finish"):
            reducer.finish()
        observed.append(arrays_of(p.grad for b in buckets for p in b))
    return observed


@check("05-ex4-reducer", points=2.25)
def the_reducer_starts_buckets_in_their_order(Reducer, *, rng):  # noqa: N803  the notebook's name
    """A bucket starts once it is complete and all before it have started; finish starts the rest and averages."""
    for world_size in WORLD_SIZES:
        for steps in ((0, 1), (2, 3, 4)):
            seed = inputs.seed(rng)
            results = run_ranks(_drive_reducer, world_size, (Reducer, seed, steps), PATIENCE)
            ledger, each = results.ledger, range(world_size)
            if any(calls_inside(ledger, rank, "construction") for rank in each):
                fail("the reducer sent messages when it was made", case_of(world_size), "construction")
            for place, step in enumerate(steps):
                case = case_of(world_size, _ORDERS[step])
                if world_size > 1:
                    _expect_order(case, ledger, world_size, step)
                arrays = zip(*(_flat_step(seed, r, step) for r in each), strict=True)
                means = [np.mean(one, axis=0) for one in arrays]
                _expect_mean(case, [result[place] for result in results], means, 1e-12)


def _expect_order(case: str, ledger: Ledger, world_size: int, step: int) -> None:
    """In a step, each mark started what it had to, finish() started the rest, and no rank waited before."""
    sizes = [("all_reduce", 8 * sum(int(np.prod(s, dtype=np.int64)) for s in shapes)) for shapes in _STEP_SHAPES]
    marks, each = _MARKS[step], range(world_size)
    names = [[f"step {step} mark {n}" for n in range(len(marks[r % 2]))] for r in each]
    calls = [[calls_inside(ledger, r, name) for name in names[r]] for r in each]
    finishing = [calls_inside(ledger, r, f"step {step} finish") for r in each]
    sent = [[sent_by(messages) for messages in mine] for mine in calls]
    for rank, mine in each_rank(case, sent):
        of_rank = marks[rank.rank % 2]
        expected = [[sizes[b] for b in now] for now in _marks_that_start(of_rank)]
        for number, (got, wanted, (b, k)) in enumerate(zip(mine, expected, of_rank, strict=True)):
            which = f"mark {number + 1} (parameter {k} of bucket {b})"
            rank.expect(got == wanted, f"{which} sent {in_words(got)}, expected {in_words(wanted)}")
    for rank in each:
        sent_last, wanted = sent_by(finishing[rank]), sizes[sum(map(len, sent[rank])) :]
        if sent_last != wanted:
            text = f"on rank {rank}, finish() sent {in_words(sent_last)}, expected {in_words(wanted)}"
            fail(text, case, [sent, sent_last])
        early = span_of(ledger, rank, f"step {step} finish").start
        if any(m.end is not None and m.end < early for messages in calls[rank] for m in messages):
            text = f"on rank {rank}, mark_ready waited for an all-reduce, expected only finish() to wait"
            fail(text, case, "waits")
        all_of_it = [m for messages in calls[rank] for m in messages] + finishing[rank]
        if any(m.completed is not None and m.completed < all_of_it[-1].posted for m in all_of_it):
            text = f"on rank {rank}, finish() waited for a bucket before it had started all of them"
            fail(text, case, "waits between")


def _flat_step(seed: int, rank: int, step: int) -> list[np.ndarray]:
    return [array for arrays in _step_buckets(seed, rank, step) for array in arrays]


def _drive_missing(rank: int, world_size: int, reducer_class: Any) -> tuple[list, list]:
    """Inside a rank: what missing() says after each mark of two steps and after each finish, as sorted (bucket, place).

    And the gradients.
    """
    buckets = [[nn.Parameter(torch.zeros(s)) for s in shapes] for shapes in _STEP_SHAPES]
    place = {id(p): (b, k) for b, bucket in enumerate(buckets) for k, p in enumerate(bucket)}
    reducer, observed = reducer_class(buckets), []
    for marks in (_MARKS[3][rank % 2], _MARKS[2][rank % 2]):
        for p in (p for bucket in buckets for p in bucket):
            p.grad = torch.full_like(p, rank + 1.0)
        for mark in [*marks, None]:
            reducer.finish() if mark is None else reducer.mark_ready(buckets[mark[0]][mark[1]])
            with record_function("missing"):
                missing = reducer.missing()
            known = isinstance(missing, list)
            observed.append(sorted(place.get(id(p), (-1, -1)) for p in missing) if known else type(missing).__name__)
    return observed, arrays_of(p.grad for bucket in buckets for p in bucket)


@check("05-ex4-reducer", points=0.25)
def the_reducer_knows_what_is_missing(Reducer, *, rng):  # noqa: N803
    """missing() gives the parameters that have not been marked in this step, and sends nothing."""
    places = {(b, k) for b, shapes in enumerate(_STEP_SHAPES) for k in range(len(shapes))}
    for world_size in (1, 2):
        results = run_ranks(_drive_missing, world_size, (Reducer,), PATIENCE)
        for rank, (said, _) in enumerate(results):
            steps = [_MARKS[3][rank % 2], _MARKS[2][rank % 2]]
            expected = []
            for number, marks in enumerate(steps, start=1):
                after = f"step {number}, after mark"
                expected += [(f"{after} {n}", sorted(places - set(marks[:n]))) for n in range(1, len(marks) + 1)]
                expected.append((f"step {number}, after finish()", sorted(places)))
            for (when, wanted), got in zip(expected, said, strict=True):
                case = case_of(world_size, f"rank {rank}, {when}")
                if isinstance(got, str):
                    fail(f"missing() should give a list, it gave a {got}", case, got)
                if got != wanted:
                    fail(f"missing() gave {got}, expected {wanted} (bucket, place)", case, got)
            inside = [span for span in results.ledger.spans if span.rank == rank and span.name == "missing"]
            if any(s.start <= m.start <= s.end for s in inside for m in results.ledger if m.rank == rank):
                fail(f"missing() sent a message on rank {rank}", case_of(world_size), "sent")
        means = [np.full(shape, (world_size + 1) / 2) for shapes in _STEP_SHAPES for shape in shapes]
        _expect_mean(case_of(world_size, "after two steps"), [grads for _, grads in results], means, 1e-6)


def _drive_second_mark(rank: int, world_size: int, reducer_class: Any) -> list:
    """Inside a rank: the text of the RuntimeError for a second mark; None where there was none."""
    said = []
    # The second mark comes after its bucket is complete, in the next step (None: finish) and before it is complete.
    for marks in ([0, 1, 0], [0, 1, None, 1, 0], [0, 0]):
        bucket = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        for p in bucket:
            p.grad = torch.ones(2)
        reducer = reducer_class([bucket])
        try:
            for number in marks:
                reducer.finish() if number is None else reducer.mark_ready(bucket[number])
            said.append(None)
        except RuntimeError as error:
            said.append(str(error))
    return said


@check("05-ex4-reducer", points=0.5)
def the_reducer_refuses_a_second_mark(Reducer, *, rng):  # noqa: N803
    """A parameter that is marked twice in one step raises a RuntimeError that names finish_gradient_sync."""
    [(after, between, before)] = run_ranks(_drive_second_mark, 1, (Reducer,))
    for text, when in ((after, "after its bucket was complete"), (before, "before its bucket was complete")):
        expect_error(f"1 rank, a parameter is marked twice, {when}", text, ["finish_gradient_sync"])
    if between is not None:
        text = f"a parameter that is marked again in the next step raised a RuntimeError: {between}"
        fail(text, "1 rank, two steps", "raised")
