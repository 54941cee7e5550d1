"""Exercises 3 and 4: the all-reduce of one bucket, and a reducer that starts many in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checking import inputs
from autograder.checking.cases import Case, close, complaint, fact
from autograder.checking.check import EVENTS, check
from autograder.checking.expect import each_rank, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    PATIENCE,
    SIZES,
    arrays_of,
    calls_inside,
    case_of,
    evidence_of,
    expect_error,
    in_words,
    sent_by,
    span_of,
)
from ranks.ledger import Message

# ---- gradients ----


def _gradients(seed: int, rank: int, shapes: list[tuple], dtype: str) -> list[np.ndarray]:
    """Whole numbers below 2**20: sums of four are exact in float32."""
    rng = np.random.default_rng([seed, rank])
    return [np.asarray(rng.integers(-(2**20), 2**20, shape), dtype) for shape in shapes]


def _expect_mean(case: str, got: list[list], expected: list[np.ndarray], rtol: float) -> None:
    """Every rank holds the mean gradients."""
    for rank, mine in each_rank(case, got, evidence=evidence_of):
        for number, (array, mean) in enumerate(zip(mine, expected, strict=True)):
            rank.expect(array is not None, f"the gradient of parameter {number} is None")
            rank.expect_close(array, mean, what=f"the gradient of parameter {number}", rtol=rtol)


# ---- 3 · start_bucket and finish_bucket ----

START = "05-ex3-start-finish"


@dataclass
class _Bucket:
    """A bucket that is drawn: its shapes and dtype, and for each rank the parameters that have no gradient."""

    seed: int
    shapes: list[tuple]
    dtype: str
    absent: list[tuple[int, ...]]

    def parameters(self, rank: int) -> list[nn.Parameter]:
        """Fresh ones, with this rank's gradients."""
        params = []
        for number, array in enumerate(_gradients(self.seed, rank, self.shapes, self.dtype)):
            params.append(nn.Parameter(torch.ones(array.shape, dtype=getattr(torch, self.dtype))))
            if number not in self.absent[rank]:
                params[-1].grad = torch.from_numpy(array.copy())
        return params

    @property
    def nbytes(self) -> int:
        """Of all its gradients."""
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes) * SIZES[self.dtype]

    @property
    def means(self) -> list[np.ndarray]:
        """The mean over the ranks; absent gradients count as zeros."""
        total = [np.zeros(shape, np.float64) for shape in self.shapes]
        for rank, absent in enumerate(self.absent):
            for number, array in enumerate(_gradients(self.seed, rank, self.shapes, self.dtype)):
                if number not in absent:
                    total[number] = total[number] + array
        return [array / len(self.absent) for array in total]


@dataclass
class Averaged:
    """What a rank has after `finish_bucket`."""

    when: str
    flat: str = fact("flat")
    missing: str = complaint()
    kinds: list[str] = fact("the dtype of gradient {}")
    means: list[Any] = fact("gradient {}")
    shares: list[Any] = fact("gradient {}, scaled so that all of its bucket together have length 1,")


def _average(rank: int, world_size: int, start_bucket: Any, finish_bucket: Any, buckets: list[_Bucket]) -> list:
    """Start all buckets, then finish them."""
    made = [bucket.parameters(rank) for bucket in buckets]
    handles = []
    for params in made:
        with mock.patch.object(dist, "barrier"):  # that start_bucket waits is judged by a_start_waits_for_nobody
            handles.append(_started(start_bucket, params))
    found = []
    for number, (params, (flat, work)) in enumerate(zip(made, handles, strict=True)):
        kind = f"{flat.dtype} of shape {tuple(flat.shape)}" if isinstance(flat, torch.Tensor) else type(flat).__name__
        finish_bucket(params, flat, work)
        absent = [i for i, p in enumerate(params) if p.grad is None]
        missing = f"gradient {absent[0]} is None" if absent else ""
        grads = [torch.zeros(0) if p.grad is None else p.grad.detach().clone() for p in params]
        dtypes = [str(g.dtype) for g in grads]
        found.append(Averaged(f"bucket {number}", kind, missing, dtypes, grads, _shares([g.numpy() for g in grads])))
    return found


def _started(start_bucket: Any, params: list) -> tuple:
    """The pair that start_bucket returns. A list of two parameters, which came back as it was, is none."""
    pair = start_bucket(params)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"start_bucket should return the tuple (flat, work), got a {type(pair).__name__}")
    return pair


def _shares(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """These arrays as parts of one vector of length 1, so that no divisor matters; zeros stay zeros."""
    length = np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in arrays))
    return [array.astype(np.float64) / (length or 1.0) for array in arrays]


def _averages(start_bucket: Any, finish_bucket: Any, buckets: list[_Bucket], name: str, n: int, what: str) -> Case:
    """A case of which `what` is compared on each rank: the gradients up to a factor, their means, or what is sent."""
    expect = []
    for bucket in buckets:
        kind, tolerance = f"torch.{bucket.dtype}", 1e-6 if bucket.dtype == "float32" else 1e-12
        shares = {"shares": [close(share, rtol=tolerance, atol=tolerance) for share in _shares(bucket.means)]}
        facts = {
            "shares": shares,
            "means": {"means": [close(mean, rtol=tolerance) for mean in bucket.means]},
            "missing": {"missing": "", "kinds": [kind] * len(bucket.means), **shares},
            "sent": {"flat": f"{kind} of shape ({bucket.nbytes // SIZES[bucket.dtype]},)", **shares},
        }[what]
        expect.append(Averaged("", **facts))
    sends = [("all_reduce", bucket.nbytes, "the bucket's gradients") for bucket in buckets] if what == "sent" else None
    judge = _never_waited if what == "shares" else None
    return Case(name, n, _average, (start_bucket, finish_bucket, buckets), [expect] * n, sends, judge=judge)


def _never_waited(rank: int, parts: list) -> str:
    open_ones = [message for message in parts[0] if message.end is None]
    return f"on rank {rank}, wait() was never called on an all-reduce" if open_ones else ""


def _shapes(rng: np.random.Generator) -> list[tuple]:
    """One to four shapes of up to two dimensions."""
    return [tuple(int(d) for d in rng.integers(1, 5, int(rng.integers(0, 3)))) for _ in range(int(rng.integers(1, 5)))]


def _drawn(rng: np.random.Generator, n: int, dtype: str) -> _Bucket:
    return _Bucket(inputs.seed(rng), [(3, 2), *_shapes(rng)], dtype, [()] * n)


@check(START, points=0.75)
def buckets_are_reduced_and_written_back(start_bucket, finish_bucket, *, rng):
    """After finish_bucket each `.grad` holds its part of the sum over the ranks, up to a factor."""
    for n in (1, 2, 3, 4):
        for dtype in ("float64", "float32"):
            yield _averages(start_bucket, finish_bucket, [_drawn(rng, n, dtype)], f"a bucket in {dtype}", n, "shares")


@check(START, points=0.25)
def gradients_are_means(start_bucket, finish_bucket, *, rng):
    """The sum is divided once, by the number of ranks."""
    for n in (2, 3, 4):
        yield _averages(start_bucket, finish_bucket, [_drawn(rng, n, "float64")], "a bucket", n, "means")


@check(START, points=0.25)
def each_bucket_has_one_all_reduce(start_bucket, finish_bucket, *, rng):
    """start_bucket makes a new flat tensor of the bucket's dtype and starts one all-reduce of it."""
    for n in (2, 3):
        # Two of equal size, on their way at the same time, and one that is drawn.
        kinds = [([(3,), (2,)], "float32"), ([(5,)], "float32"), (_shapes(rng), "float64")]
        buckets = [_Bucket(inputs.seed(rng), shapes, dtype, [()] * n) for shapes, dtype in kinds]
        yield _averages(start_bucket, finish_bucket, buckets, "three buckets that are on their way together", n, "sent")


@check(START, points=0.25)
def missing_gradients_count_as_zeros(start_bucket, finish_bucket, *, rng):
    """A gradient that is None counts as zeros, and is there afterwards."""
    for n in (2, 3):
        shapes = [(3, 2), *_shapes(rng)]
        some = _Bucket(inputs.seed(rng), shapes, "float32", [(0,), *[()] * (n - 1)])
        none = _Bucket(inputs.seed(rng), shapes, "float64", [tuple(range(len(shapes)))] * n)
        for bucket, name in ((some, "rank 0 has no gradient of the first parameter"), (none, "no rank has a gradient")):
            yield _averages(start_bucket, finish_bucket, [bucket], name, n, "missing")


@dataclass
class Returned:
    """Whether start_bucket returned on a rank whose peer had not started."""

    waits: str = complaint()


def _start_alone(rank: int, world_size: int, start_bucket: Any, finish_bucket: Any, bucket: _Bucket) -> Returned:
    """Rank 1 starts its bucket only when it hears that rank 0's start_bucket has returned."""
    params = bucket.parameters(rank)
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    flat, work = _started(start_bucket, params)
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    finish_bucket(params, flat, work)
    return Returned("")


@check(START, points=0.5)
def a_start_waits_for_nobody(start_bucket, finish_bucket, *, rng):
    """start_bucket returns although another rank has not started the bucket yet."""
    bucket = _drawn(rng, 2, "float32")  # of two gradients at least: each may have a call of its own
    must = "start_bucket must return without waiting. Here rank 1 starts its bucket only after rank 0's has returned."
    args = (start_bucket, finish_bucket, bucket)
    yield Case("rank 1 is late", 2, _start_alone, args, [Returned("")] * 2, must=must)


# ---- 4 · Reducer ----

#: Three buckets of equal size, then one of another size, so that neither a size nor a sum can hide a wrong order.
_STEP_SHAPES = [[(2,), (3,)], [(5,)], [(4,), (1,)], [(2, 2)]]
_ORDERS = (
    "all arrive in order",
    "equal buckets arrive out of order",
    "all arrive out of order",
    "some are missing",
    "none arrives on even ranks",
    "one of the first bucket is missing",
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
    {0: [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)], 1: [(0, 0), (1, 0), (2, 1), (2, 0), (3, 0)]},
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


def _step_buckets(seed: int, rank: int, turn: int) -> list[list[np.ndarray]]:
    return [_gradients(seed + 10 * turn + b, rank, shapes, "float64") for b, shapes in enumerate(_STEP_SHAPES)]


def _drive_reducer(rank: int, world_size: int, reducer_class: Any, seed: int, runs: list[tuple]) -> list[list]:
    """Inside a rank: runs, each of one reducer, in whose turns gradients arrive in the order of `_MARKS` for a step."""
    observed = []
    for run, steps in enumerate(runs):
        buckets = [[nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes] for shapes in _STEP_SHAPES]
        with record_function(f"run {run} construction"):
            reducer = reducer_class(buckets)
            reducer_class([[nn.Parameter(torch.zeros(1))]])  # the reducer of another model: each has marks of its own
        for turn, step in enumerate(steps):
            for bucket, arrays in zip(buckets, _step_buckets(seed, rank, turn), strict=True):
                for p, array in zip(bucket, arrays, strict=True):
                    p.grad = torch.from_numpy(array.copy())
            for number, (b, k) in enumerate(_MARKS[step][rank % 2]):
                with record_function(f"run {run} turn {turn} mark {number}"):
                    reducer.mark_ready(buckets[b][k])
            with record_function(f"run {run} turn {turn} finish"):
                reducer.finish()
        observed.append(arrays_of(p.grad for b in buckets for p in b))
    return observed


@dataclass
class _Run:
    """A run of a reducer: its case's name, its number in its launch, its steps, the seed, and what the ranks gave."""

    case: str
    number: int
    steps: tuple[int, ...]
    seed: int
    results: Any

    @property
    def ranks(self) -> range:
        """The ranks; none if there is one rank alone, which may send nothing."""
        return range(len(self.results)) if len(self.results) > 1 else range(0)

    def calls(self, rank: int, turn: int = -1) -> tuple[list[list[Message]], list[Message]]:
        """What each mark of a turn started on a rank, and what finish() did; by default of the last turn."""
        turn %= len(self.steps)
        span, marks = f"run {self.number} turn {turn}", len(_MARKS[self.steps[turn]][rank % 2])
        started = [calls_inside(self.results.ledger, rank, f"{span} mark {n}") for n in range(marks)]
        return started, calls_inside(self.results.ledger, rank, f"{span} finish")


def _try_runs(reducer_class: Any, rng: np.random.Generator, runs: list[tuple], *judges: Any, sizes=(2, 3)) -> None:
    """Runs of reducers, each of which is judged by each of these."""
    for world_size in sizes:
        seed = inputs.seed(rng)
        results = run_ranks(_drive_reducer, world_size, (reducer_class, seed, runs), PATIENCE)
        for number, steps in enumerate(runs):
            for judge in judges:
                judge(_Run(case_of(world_size, _ORDERS[steps[-1]]), number, steps, seed, results))


@check("05-ex4-reducer", points=1.25)
def the_reducer_keeps_the_order_of_buckets(Reducer, *, rng):
    """Buckets start in their order, in mark_ready if all are complete in that order; finish leaves the means."""
    _try_runs(Reducer, rng, [(0,)], _expect_silence, _expect_each_mark, _expect_means, sizes=(1, 2, 4))
    for step in (1, 2):
        _try_runs(Reducer, rng, [(step,)], _expect_sequence, _expect_means)


@check("05-ex4-reducer", points=0.75)
def a_bucket_starts_when_its_turn_comes(Reducer, *, rng):
    """If buckets are complete out of order, each mark starts all whose turn has come."""
    _try_runs(Reducer, rng, [(1,), (2,)], _expect_each_mark)


@check("05-ex4-reducer", points=0.75)
def the_reducer_serves_every_step(Reducer, *, rng):
    """After finish the next step begins: its marks start what they started before, and finish leaves its means."""
    _try_runs(Reducer, rng, [(0, 0)], _expect_sequence, _expect_as_before, _expect_means)


@check("05-ex4-reducer", points=0.5)
def finish_starts_what_is_left(Reducer, *, rng):
    """Buckets that are not complete are sent after all, in their order, with the gradients that there are."""
    _try_runs(Reducer, rng, [(3,), (4,)], _expect_sequence, _expect_means)


@check("05-ex4-reducer", points=0.5)
def nothing_is_waited_for_before_all_have_started(Reducer, *, rng):
    """mark_ready waits for nothing, and finish waits only after it has started all buckets."""
    _try_runs(Reducer, rng, [(0,), (5,)], _expect_no_wait)


#: The all-reduces of a step, in the order of buckets.
_SENT = [("all_reduce", 8 * sum(int(np.prod(s, dtype=np.int64)) for s in shapes)) for shapes in _STEP_SHAPES]


def _expect_silence(run: _Run) -> None:
    """Nothing was sent when the reducer was made."""
    if any(calls_inside(run.results.ledger, rank, f"run {run.number} construction") for rank in run.ranks):
        fail("the reducer sent messages when it was made", run.case, "construction")


def _expect_means(run: _Run) -> None:
    """The gradients are the means over the ranks."""
    arrays = zip(*(_flat_step(run.seed, rank, len(run.steps) - 1) for rank in range(len(run.results))), strict=True)
    means = [np.mean(one, axis=0) for one in arrays]
    _expect_mean(run.case, [result[run.number] for result in run.results], means, 1e-12)


def _expect_sequence(run: _Run) -> None:
    """All buckets were sent in their order, whenever they were."""
    for rank in run.ranks:
        marks, finishing = run.calls(rank)
        sent = sent_by([message for messages in (*marks, finishing) for message in messages])
        if sent != _SENT:
            fail(f"rank {rank} sent {in_words(sent)}, expected {in_words(_SENT)}", run.case, sent)


def _expect_as_before(run: _Run) -> None:
    """Each mark of the last turn started as much as in the first."""
    for rank in run.ranks:
        first, last = ([sent_by(messages) for messages in run.calls(rank, turn)[0]] for turn in (0, -1))
        for number, (before, now) in enumerate(zip(first, last, strict=True)):
            if before != now:
                text = f"mark {number + 1} of the second step sent {in_words(now)}, in the first {in_words(before)}"
                fail(f"on rank {rank}, {text}", run.case, [first, last])


def _expect_each_mark(run: _Run) -> None:
    """Each mark started what it had to, and finish() the rest."""
    if not run.ranks:
        return
    each = [run.calls(rank) for rank in run.ranks]
    sent = [[sent_by(messages) for messages in marks] for marks, _ in each]
    for rank, mine in each_rank(run.case, sent):
        of_rank = _MARKS[run.steps[-1]][rank.rank % 2]
        expected = [[_SENT[b] for b in now] for now in _marks_that_start(of_rank)]
        for number, (got, wanted, (b, k)) in enumerate(zip(mine, expected, of_rank, strict=True)):
            which = f"mark {number + 1} (parameter {k} of bucket {b})"
            rank.expect(got == wanted, f"{which} sent {in_words(got)}, expected {in_words(wanted)}")
    for rank, (_, finishing) in enumerate(each):
        sent_last, wanted = sent_by(finishing), _SENT[sum(map(len, sent[rank])) :]
        if sent_last != wanted:
            text = f"on rank {rank}, finish() sent {in_words(sent_last)}, expected {in_words(wanted)}"
            fail(text, run.case, [sent, sent_last])


def _expect_no_wait(run: _Run) -> None:
    """No rank waited for a bucket before it had started all of them."""
    for rank in run.ranks:
        marks, finishing = run.calls(rank)
        begin = span_of(run.results.ledger, rank, f"run {run.number} turn 0 finish").start
        if any(m.end is not None and m.end < begin for messages in marks for m in messages):
            text = f"on rank {rank}, mark_ready waited for an all-reduce, expected only finish() to wait"
            fail(text, run.case, "waits")
        all_of_it = [m for messages in marks for m in messages] + finishing
        if run.steps == (0,) and not all_of_it:  # all gradients come in step 0; what others leave is another check's
            fail(f"on rank {rank}, no bucket was started", run.case, "none")
        if all_of_it and any(m.completed is not None and m.completed < all_of_it[-1].posted for m in all_of_it):
            text = f"on rank {rank}, finish() waited for a bucket before it had started all of them"
            fail(text, run.case, "waits between")


def _flat_step(seed: int, rank: int, turn: int) -> list[np.ndarray]:
    return [array for arrays in _step_buckets(seed, rank, turn) for array in arrays]


def _drive_second_mark(rank: int, world_size: int, reducer_class: Any) -> list:
    """Inside a rank: the text of the RuntimeError for a second mark; None where there was none."""
    said = []
    for marks in ([0, 1, 0], [0, 0]):  # the second mark comes after its bucket is complete, or before
        bucket = [nn.Parameter(torch.ones(2)) for _ in range(2)]
        for p in bucket:
            p.grad = torch.ones(2)
        reducer = reducer_class([bucket])
        try:
            for number in marks:
                reducer.mark_ready(bucket[number])
            said.append(None)
        except RuntimeError as error:
            said.append(str(error))
    return said


@check("05-ex4-reducer", points=0.25, fixed=EVENTS)
def the_reducer_refuses_a_second_mark(Reducer):
    """A parameter that is marked twice in one step raises a RuntimeError that names finish_gradient_sync."""
    [(after, before)] = run_ranks(_drive_second_mark, 1, (Reducer,))
    for text, when in ((after, "after its bucket was complete"), (before, "before its bucket was complete")):
        expect_error(f"1 rank, a parameter is marked twice, {when}", text, ["finish_gradient_sync"])
