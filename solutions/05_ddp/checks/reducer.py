"""Exercises 3 and 4: the all-reduce of one bucket, and a reducer that starts many in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from autograder.checks import inputs
from autograder.checks.cases import Case, close, fact, sentence
from autograder.checks.check import EVENTS, check
from autograder.checks.expect import caught
from ranks.ledger import Ledger

from .common import SIZES, grads_of, in_words


@dataclass
class _Bucket:
    """A bucket that is drawn: its shapes and dtype, and for each rank the parameters that have no gradient."""

    seed: int
    shapes: list[tuple]
    dtype: str
    absent: list[tuple[int, ...]]

    def gradients(self, rank: int) -> list[np.ndarray | None]:
        """Whole numbers below 2**20: sums of four are exact in float32."""
        rng = np.random.default_rng([self.seed, rank])
        arrays = [np.asarray(rng.integers(-(2**20), 2**20, shape), self.dtype) for shape in self.shapes]
        return [None if number in self.absent[rank] else array for number, array in enumerate(arrays)]

    def parameters(self, rank: int) -> list[nn.Parameter]:
        """Fresh ones, with this rank's gradients."""
        params = [nn.Parameter(torch.ones(shape, dtype=getattr(torch, self.dtype))) for shape in self.shapes]
        for p, array in zip(params, self.gradients(rank), strict=True):
            p.grad = None if array is None else torch.from_numpy(array)
        return params


def _numel(bucket: _Bucket) -> int:
    """How many numbers it has."""
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in bucket.shapes)


def _means(bucket: _Bucket) -> list[np.ndarray]:
    """The mean over the ranks; absent gradients count as zeros."""
    n = len(bucket.absent)
    of_ranks = zip(*map(bucket.gradients, range(n)), strict=True)
    return [
        sum((g.astype(np.float64) for g in each if g is not None), np.zeros(shape)) / n
        for shape, each in zip(bucket.shapes, of_ranks, strict=True)
    ]


# ---- 3 · start_bucket and finish_bucket ----

START = "05-ex3-start-finish"


@dataclass
class Averaged:
    """What a rank has after `finish_bucket`."""

    when: str = ""
    flat: str = fact("flat")
    missing: str = sentence()
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
        grads = grads_of(params)
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
        shares = {"shares": [close(share, rtol=tolerance, atol=tolerance) for share in _shares(_means(bucket))]}
        facts = {
            "shares": shares,
            "means": {"means": [close(mean, rtol=tolerance) for mean in _means(bucket)]},
            "missing": {"missing": "", "kinds": [kind] * len(bucket.shapes), **shares},
            "sent": {"flat": f"{kind} of shape ({_numel(bucket)},)", **shares},
        }[what]
        expect.append(Averaged(**facts))
    sends = None
    if what == "sent":
        sends = [("all_reduce", _numel(bucket) * SIZES[bucket.dtype], "the bucket's gradients") for bucket in buckets]
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


def _start_alone(rank: int, world_size: int, start_bucket: Any, finish_bucket: Any, bucket: _Bucket) -> Averaged:
    """Rank 1 starts its bucket only when it hears that rank 0's start_bucket has returned."""
    params = bucket.parameters(rank)
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    flat, work = _started(start_bucket, params)
    if rank == 0:
        dist.send(torch.zeros(1), 1)
    finish_bucket(params, flat, work)
    return Averaged(missing="")


@check(START, points=0.5)
def a_start_waits_for_nobody(start_bucket, finish_bucket, *, rng):
    """start_bucket returns although another rank has not started the bucket yet."""
    bucket = _drawn(rng, 2, "float32")  # of two gradients at least: each may have a call of its own
    must = "start_bucket must return without waiting. Here rank 1 starts its bucket only after rank 0's has returned."
    args = (start_bucket, finish_bucket, bucket)
    yield Case("rank 1 is late", 2, _start_alone, args, [Averaged(missing="")] * 2, must=must)


# ---- 4 · Reducer ----

REDUCER = "05-ex4-reducer"

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


def _step_buckets(seed: int, n: int, turn: int) -> list[_Bucket]:
    return [_Bucket(seed + 10 * turn + b, shapes, "float64", [()] * n) for b, shapes in enumerate(_STEP_SHAPES)]


@dataclass
class Stepped:
    """A rank's gradients after the last step."""

    means: list = fact("the gradient of parameter {}")


def _steps(rank: int, world_size: int, reducer_class: Any, seed: int, name: str, steps: tuple[int, ...]) -> Stepped:
    """Steps of one reducer, in which gradients arrive as in `_MARKS`. The spans' names begin with the case's."""
    buckets = [bucket.parameters(rank) for bucket in _step_buckets(seed, world_size, 0)]
    with record_function(f"{name} construction"):
        reducer = reducer_class(buckets)
        reducer_class([[nn.Parameter(torch.zeros(1))]])  # the reducer of another model: each has marks of its own
    for turn, step in enumerate(steps):
        for bucket, drawn in zip(buckets, _step_buckets(seed, world_size, turn), strict=True):
            for p, array in zip(bucket, drawn.gradients(rank), strict=True):
                p.grad = torch.from_numpy(array)
        for number, (b, k) in enumerate(_MARKS[step][rank % 2]):
            with record_function(f"{name} turn {turn} mark {number}"):
                reducer.mark_ready(buckets[b][k])
        with record_function(f"{name} turn {turn} finish"):
            reducer.finish()
    return Stepped(grads_of(p for bucket in buckets for p in bucket))


@dataclass
class _Sent:
    """What a rank of a case sent in steps of a reducer."""

    rank: int
    ledger: Ledger
    name: str
    steps: tuple[int, ...]

    @property
    def marks(self) -> list[tuple[int, int]]:
        """The parameters that are marked in the last step."""
        return _MARKS[self.steps[-1]][self.rank % 2]

    def calls(self, turn: int = -1) -> tuple[list[Ledger], Ledger]:
        """What each mark of a step started, and what finish() did; by default of the last step."""
        span = f"{self.name} turn {turn % len(self.steps)}"
        count = len(_MARKS[self.steps[turn]][self.rank % 2])
        return [self.ledger.within(f"{span} mark {n}") for n in range(count)], self.ledger.within(f"{span} finish")


def _step_case(
    reducer_class: Any,
    rng: np.random.Generator,
    n: int,
    steps: tuple[int, ...],
    *rules: Callable[[_Sent], str],
    means: bool = True,
) -> Case:
    """Steps whose messages follow these rules, and which leave the means, if those count."""
    name, seed = _ORDERS[steps[-1]], inputs.seed(rng)
    buckets = _step_buckets(seed, n, len(steps) - 1)
    right = [close(mean, rtol=1e-12) for bucket in buckets for mean in _means(bucket)]

    def judge(rank: int, parts: list[Ledger]) -> Any:
        sent = _Sent(rank, parts[0], name, steps)
        text = next(filter(None, (rule(sent) for rule in rules)), "") if n > 1 else ""  # one rank may send nothing
        marks, finishing = sent.calls()
        return text and (f"on rank {rank}, {text}", [text, *map(in_words, marks), in_words(finishing)])

    expect = [Stepped(right) if means else Stepped()] * n
    return Case(name, n, _steps, (reducer_class, seed, name, steps), expect, judge=judge)


#: The bytes of the all-reduces of a step, in the order of buckets.
_BYTES = [8 * _numel(bucket) for bucket in _step_buckets(0, 1, 0)]


def _all(nbytes: list[int]) -> str:
    """All-reduces of so many bytes, as `in_words` has them."""
    return ", ".join(f"all_reduce of {one} bytes" for one in nbytes) or "nothing"


def _silence(sent: _Sent) -> str:
    """Nothing was sent when the reducer was made."""
    made = sent.ledger.within(f"{sent.name} construction")
    return f"the reducer sent {in_words(made)} when it was made" if made else ""


def _sequence(sent: _Sent) -> str:
    """All buckets were sent in their order, whenever they were."""
    marks, finishing = sent.calls()
    got = [message for messages in (*marks, finishing) for message in messages]
    return "" if in_words(got) == _all(_BYTES) else f"a step sent {in_words(got)}, expected {_all(_BYTES)}"


def _as_before(sent: _Sent) -> str:
    """Each mark of the last step started as much as in the first."""
    for number, (before, now) in enumerate(zip(sent.calls(0)[0], sent.calls()[0], strict=True)):
        if in_words(now) != in_words(before):
            return f"mark {number + 1} of the second step sent {in_words(now)}, in the first {in_words(before)}"
    return ""


def _each_mark(sent: _Sent) -> str:
    """Each mark started what it had to, and finish() the rest."""
    marks, finishing = sent.calls()
    for number, (got, now, (b, k)) in enumerate(zip(marks, _marks_that_start(sent.marks), sent.marks, strict=True)):
        if in_words(got) != (wanted := _all([_BYTES[bucket] for bucket in now])):
            return f"mark {number + 1} (parameter {k} of bucket {b}) sent {in_words(got)}, expected {wanted}"
    if in_words(finishing) != (left := _all(_BYTES[sum(map(len, marks)) :])):
        return f"finish() sent {in_words(finishing)}, expected {left}"
    return ""


def _no_wait(sent: _Sent) -> str:
    """No rank waited for a bucket before it had started all of them."""
    marks, finishing = sent.calls()
    marked = [message for messages in marks for message in messages]
    begin = next(span.start for span in sent.ledger.spans if span.name == f"{sent.name} turn 0 finish")
    if any(m.end is not None and m.end < begin for m in marked):
        return "mark_ready waited for an all-reduce, expected only finish() to wait"
    started = [*marked, *finishing]
    if sent.steps == (0,) and not started:  # all gradients come in step 0; what others leave is another check's
        return "no bucket was started"
    if any(m.completed is not None and m.completed < started[-1].posted for m in started):
        return "finish() waited for a bucket before it had started all of them"
    return ""


@check(REDUCER, points=1.25)
def the_reducer_keeps_the_order_of_buckets(Reducer, *, rng):
    """Buckets start in their order, in mark_ready if all are complete in that order; finish leaves the means."""
    for n in (1, 2, 4):
        yield _step_case(Reducer, rng, n, (0,), _silence, _each_mark)
    for step in (1, 2):
        for n in (2, 3):
            yield _step_case(Reducer, rng, n, (step,), _sequence)


@check(REDUCER, points=0.75)
def a_bucket_starts_when_its_turn_comes(Reducer, *, rng):
    """If buckets are complete out of order, each mark starts all whose turn has come."""
    for n in (2, 3):
        for step in (1, 2):
            yield _step_case(Reducer, rng, n, (step,), _each_mark, means=False)


@check(REDUCER, points=0.75)
def the_reducer_serves_every_step(Reducer, *, rng):
    """After finish the next step begins: its marks start what they started before, and finish leaves its means."""
    for n in (2, 3):
        yield _step_case(Reducer, rng, n, (0, 0), _sequence, _as_before)


@check(REDUCER, points=0.5)
def finish_starts_what_is_left(Reducer, *, rng):
    """Buckets that are not complete are sent after all, in their order, with the gradients that there are."""
    for n in (2, 3):
        for step in (3, 4):
            yield _step_case(Reducer, rng, n, (step,), _sequence)


@check(REDUCER, points=0.5)
def nothing_is_waited_for_before_all_have_started(Reducer, *, rng):
    """mark_ready waits for nothing, and finish waits only after it has started all buckets."""
    for n in (2, 3):
        for step in (0, 5):
            yield _step_case(Reducer, rng, n, (step,), _no_wait, means=False)


@dataclass
class Refused:
    """What came of a second mark."""

    wrong: str = sentence()


def _mark_twice(rank: int, world_size: int, reducer_class: Any, marks: list[int], when: str) -> Refused:
    bucket = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    for p in bucket:
        p.grad = torch.ones(2)
    reducer = reducer_class([bucket])
    error, text = caught(lambda: [reducer.mark_ready(bucket[number]) for number in marks])
    if error == "RuntimeError" and "finish_gradient_sync" in text:
        return Refused("")
    came = f"a {error}: {text}" if error else "no error"
    return Refused(f"a second mark {when} gave {came}; expected a RuntimeError that names finish_gradient_sync")


@check(REDUCER, points=0.25, fixed=EVENTS)
def the_reducer_refuses_a_second_mark(Reducer):
    """A parameter that is marked twice in one step raises a RuntimeError that names finish_gradient_sync."""
    for marks, when in (([0, 1, 0], "after its bucket was complete"), ([0, 0], "before its bucket was complete")):
        yield Case(f"a parameter is marked twice, {when}", 1, _mark_twice, (Reducer, marks, when), [Refused("")])
