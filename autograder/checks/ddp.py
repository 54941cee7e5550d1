"""Lesson 05: what a data-parallel wrapper must do, seen from outside.

The models, the drivers that run inside the ranks and the oracles are this module's own. Oracles: torch's
DistributedDataParallel on a group of its own, a single process that sees the whole batch, and sums in numpy.
What was sent, and when, is read from the ledger; the drivers mark places in it with named spans. Everything
runs in a fixed order on each rank, so "started before" is a matter of cause and never of luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

import ranks
from autograder.checking.check import check
from autograder.checking.expect import CheckFailed, count_of_ranks, expect_close, fail
from autograder.checking.stage import run_ranks
from ranks.ledger import Ledger, Message, Span

WORLD_SIZES = (1, 2, 3, 4)
#: Seconds for a launch in which mixed-up collectives may wait for ever; it needs less than one.
PATIENCE = 8.0
#: float64 sums of at most four ranks, in any order, through a few layers and optimizer steps.
RTOL = 1e-9
#: The same in float32, for one backward.
RTOL32 = 2e-5


def _case(world_size: int, *what: object) -> str:
    return ", ".join([count_of_ranks(world_size), *map(str, what)])


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _arrays(tensors: Iterable[torch.Tensor | None]) -> list[np.ndarray | None]:
    """Copies as numpy arrays; None stays None."""
    return [None if t is None else t.detach().clone(memory_format=torch.contiguous_format).numpy() for t in tensors]


def _evidence(arrays: Iterable[np.ndarray | None]) -> list:
    return ["None" if array is None else array for array in arrays]


# ---- 1 · broadcast_parameters ----


class _Assorted(nn.Module):
    """Parameters and buffers of many kinds, filled with numbers of their own on each rank."""

    def __init__(self, seed: int):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.first, self.second = nn.Module(), nn.Module()
        self.first.weight = nn.Parameter(torch.randn(3, 4, generator=g))
        self.second.weight = self.first.weight  # tied
        self.first.frozen = nn.Parameter(torch.randn(5, generator=g, dtype=torch.float64), requires_grad=False)
        self.first.scale = nn.Parameter(torch.randn((), generator=g))
        self.first.empty = nn.Parameter(torch.empty(0, 3))
        self.first.brain = nn.Parameter(torch.randn(6, generator=g).bfloat16())
        # Every second element of a longer vector, and a transposed matrix.
        self.memory = torch.randn(14, generator=g)
        self.second.strided = nn.Parameter(self.memory[::2])
        self.second.transposed = nn.Parameter(torch.randn(2, 3, generator=g).t())
        for name, dtype in [("wide", torch.int64), ("narrow", torch.int16), ("middling", torch.int32)]:
            bound = 2**60 if dtype == torch.int64 else 2**14
            numbers = torch.randint(-bound, bound, (4,), generator=g).to(dtype)
            self.second.register_buffer(name, numbers)
        self.first.register_buffer("count", torch.randint(2**40, (), generator=g))
        self.first.register_buffer("mask", torch.rand(9, generator=g) < 0.5)
        self.first.register_buffer("table", torch.randn(3, generator=g, dtype=torch.float64), persistent=False)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, a tied one once."""
        return dict(self.named_parameters()) | dict(self.named_buffers())


def _exact(tensor: torch.Tensor) -> Any:
    """Its numbers as nested lists, exactly, whatever the dtype."""
    return (tensor.detach().double() if tensor.is_floating_point() else tensor.long()).tolist()


def _drive_broadcast(rank: int, world_size: int, broadcast_parameters: Any, seed: int) -> list[dict]:
    """Inside a rank: one module for each source."""
    observed = []
    for src in range(world_size):
        module = _Assorted(seed + 1000 * src + rank)
        before = module.tensors()
        places = {name: tensor.data_ptr() for name, tensor in before.items()}
        between = module.memory[1::2].clone()
        broadcast_parameters(module, **({"src": src} if src else {}))
        after = module.tensors()
        moved = [
            name
            for name, tensor in before.items()
            if after.get(name) is not tensor or tensor.data_ptr() != places[name] or after[name].shape != tensor.shape
        ]
        flags = [name for name, p in module.named_parameters() if p.requires_grad == (name == "first.frozen")]
        values = {name: _exact(tensor) for name, tensor in after.items()}
        kept = torch.equal(between, module.memory[1::2])
        observed.append({"values": values, "moved": moved, "flags": flags, "kept": kept})
    return observed


@check("05-ex1-broadcast-parameters")
def broadcast_parameters_copies_all_parameters_and_buffers(broadcast_parameters, *, rng):
    """Every parameter and buffer of every rank becomes the source's, in place, whatever its dtype and layout."""
    for world_size in WORLD_SIZES:
        seed = _seed(rng)
        results = run_ranks(_drive_broadcast, world_size, (broadcast_parameters, seed))
        for src in range(world_size):
            case = _case(world_size, f"src = {src}")
            source = _Assorted(seed + 1000 * src + src).tensors()
            seen = [result[src] for result in results]
            wrong = [[name for name in source if mine["values"].get(name) != _exact(source[name])] for mine in seen]
            for rank, names in enumerate(wrong):
                if names:
                    what = source[names[0]]
                    kind = "parameter" if isinstance(what, nn.Parameter) else "buffer"
                    kind = f"{kind} {names[0]} ({what.dtype}, shape {tuple(what.shape)})"
                    fail(f"{kind} of rank {rank} is not rank {src}'s", case, wrong)
            for rank, mine in enumerate(seen):
                if mine["moved"]:
                    fail(f"rank {rank}'s {mine['moved'][0]} was replaced, not changed in place", case, mine["moved"])
                if mine["flags"]:
                    fail(f"requires_grad of rank {rank}'s {mine['flags'][0]} was changed", case, mine["flags"])
                if not mine["kept"]:
                    fail(f"rank {rank}: memory between a strided parameter's elements was written", case, "between")


def _drive_refusal(rank: int, world_size: int, broadcast_parameters: Any, sources: list[int]) -> list:
    said = []
    for src in sources:
        try:
            broadcast_parameters(nn.Linear(2, 2), src)
            said.append(None)
        except ValueError as error:
            said.append(str(error))
    return said


@check("05-ex1-broadcast-parameters")
def broadcast_parameters_refuses_a_source_that_is_no_rank(broadcast_parameters, *, rng):
    """`src` outside 0…N−1 is a ValueError that names it, on every rank, before any message."""
    for world_size in (1, 3):
        sources = [-1, world_size, world_size + 4]
        results = run_ranks(_drive_refusal, world_size, (broadcast_parameters, sources))
        for rank, said in enumerate(results):
            for src, text in zip(sources, said, strict=True):
                case = _case(world_size, f"src = {src}")
                if text is None:
                    fail(f"rank {rank} raised no ValueError", case, "nothing raised")
                if "src" not in text:
                    fail(f"rank {rank}'s ValueError should name 'src', it says {text!r}", case, "not named")
        if len(results.ledger):
            fail("messages were sent before the ValueError", _case(world_size), "sent first")


# ---- 2 · make_buckets ----

_SIZES = {"float32": 4, "float64": 8, "bfloat16": 2}


def _make_params(specs: list[tuple]) -> list[nn.Parameter]:
    """Parameters from (shape, dtype, trainable) or from ("again", index), the same object once more."""
    params: list[nn.Parameter] = []
    for spec in specs:
        if spec[0] == "again":
            params.append(params[spec[1]])
        else:
            shape, dtype, trainable = spec
            params.append(nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)), requires_grad=trainable))
    return params


def expected_buckets(specs: list[tuple], bucket_bytes: int) -> list[list[int]]:
    """The rules of the statement on sizes alone: indices into `specs`, bucket by bucket."""
    buckets: list[list[int]] = []
    dtype_now, room = "", 0
    for index in range(len(specs) - 1, -1, -1):
        if specs[index][0] == "again" or not specs[index][2]:
            continue
        shape, dtype, _ = specs[index]
        size = int(np.prod(shape, dtype=np.int64)) * _SIZES[dtype]
        if not buckets or dtype != dtype_now or size > room:
            buckets.append([])
            dtype_now, room = dtype, bucket_bytes
        buckets[-1].append(index)
        room -= size
    return buckets


def _drive_buckets(rank: int, world_size: int, make_buckets: Any, cases: list[tuple]) -> list:
    """Inside one rank: what each case gives, as indices of the parameters; -1 for something else."""
    observed = []
    for specs, bucket_bytes, as_iterator in cases:
        params = _make_params(specs)
        index: dict[int, int] = {}
        for number, p in enumerate(params):
            index.setdefault(id(p), number)
        try:
            got = make_buckets(iter(params) if as_iterator else params, bucket_bytes)
            observed.append([[index.get(id(p), -1) for p in bucket] for bucket in got])
        except ValueError as error:
            observed.append(str(error))
    return observed


def _random_specs(rng: np.random.Generator) -> list[tuple]:
    specs: list[tuple] = []
    dtype = "float32"
    for _ in range(int(rng.integers(1, 14))):
        if specs and rng.random() < 0.12:
            known = [number for number, spec in enumerate(specs) if spec[0] != "again"]
            specs.append(("again", int(rng.choice(known))))
            continue
        if rng.random() < 0.2:
            dtype = str(rng.choice(list(_SIZES)))
        shape = tuple(int(n) for n in rng.integers(1, 6, int(rng.integers(0, 3))))
        specs.append((shape, dtype, bool(rng.random() < 0.8)))
    return specs


@check("05-ex2-make-buckets")
def make_buckets_follows_its_rules(make_buckets, *, rng):
    """Trainable parameters, each once, last first; one dtype a bucket; closed before it would grow too large."""
    f32, f64 = "float32", "float64"
    plain = [((4,), f32, True), ((3,), f32, True), ((2,), f32, True), ((1,), f32, True)]
    named = {
        "four small ones, all fit": (plain, 1000),
        "an exact fit": (plain, 12),
        "one byte less than an exact fit": (plain, 11),
        "a large one between small ones": ([((2,), f32, True), ((50,), f32, True), ((2,), f32, True)], 16),
        "a large one at the end": ([((2,), f32, True), ((50,), f32, True)], 16),
        "bucket_bytes = 1": (plain, 1),
        "a frozen one": ([plain[0], ((3,), f32, False), plain[2]], 1000),
        "only frozen ones": ([((3,), f32, False)], 1000),
        "no parameters": ([], 1000),
        "a tied one": ([plain[0], plain[1], ("again", 0), plain[3]], 1000),
        "two dtypes": ([((2,), f32, True), ((2,), f64, True), ((3,), f64, True)], 1000),
        "dtypes that alternate": ([((2,), f32, True), ((2,), f64, True), ((2,), f32, True)], 1000),
        "after another dtype a bucket is empty": ([((3,), f32, True), ((2,), f32, True), ((2,), f64, True)], 24),
        "a number and an empty one": ([((), f32, True), ((0, 3), f32, True), ((5,), f32, True)], 20),
        "default size": ([((2**20,), f32, True)] * 9, 25 * 2**20),
    }
    cases = [(name, specs, most, False) for name, (specs, most) in named.items()]
    cases.append(("an iterator, as module.parameters() is one", plain, 12, True))
    for number in range(12):
        specs, most = _random_specs(rng), int(rng.integers(1, 120))
        cases.append((f"random list {number + 1}, bucket_bytes = {most}", specs, most, bool(number % 2)))
    results = run_ranks(_drive_buckets, 1, (make_buckets, [case[1:] for case in cases]))
    if len(results.ledger):
        fail("make_buckets sent messages", "1 rank", "messages")
    for (name, specs, most, _), got in zip(cases, results[0], strict=True):
        expected = expected_buckets(specs, most)
        if got != expected:
            said = f"raised ValueError: {got}" if isinstance(got, str) else f"gave {got}"
            fail(f"with parameters numbered from 0, make_buckets {said}, expected {expected}", name, got)


@check("05-ex2-make-buckets")
def make_buckets_refuses_a_size_below_one(make_buckets, *, rng):
    """`bucket_bytes` < 1 is a ValueError that names it."""
    cases = [([((2,), "float32", True)], most, False) for most in (0, -5)] + [([], 0, False)]
    results = run_ranks(_drive_buckets, 1, (make_buckets, cases))
    for (_, most, _), got in zip(cases, results[0], strict=True):
        if not isinstance(got, str):
            fail("no ValueError was raised", f"bucket_bytes = {most}", "nothing raised")
        if "bucket_bytes" not in got:
            fail(f"the ValueError should name 'bucket_bytes', it says {got!r}", f"bucket_bytes = {most}", "not named")


# ---- gradients for exercises 3 and 4 ----


def _gradients(seed: int, rank: int, shapes: list[tuple], dtype: str) -> list[np.ndarray]:
    """Whole numbers below 2**20: sums of four are exact even in float32, and float16 or a sum for a mean is seen."""
    rng = np.random.default_rng([seed, rank])
    return [np.asarray(rng.integers(-(2**20), 2**20, shape), dtype) for shape in shapes]


def _bucket(
    seed: int, rank: int, shapes: list[tuple], dtype: str, absent: Iterable[int] = ()
) -> tuple[list[nn.Parameter], list[torch.Tensor | None]]:
    """Parameters with this rank's gradients; matrices lie transposed in memory; `absent` ones have none."""
    params, grads = [], []
    for number, array in enumerate(_gradients(seed, rank, shapes, dtype)):
        data, grad = torch.zeros(array.shape, dtype=getattr(torch, dtype)), torch.from_numpy(array.copy())
        if data.ndim == 2:
            data, grad = data.t().contiguous().t(), grad.t().contiguous().t()
        params.append(nn.Parameter(data))
        if number not in absent:
            params[-1].grad = grad
        grads.append(params[-1].grad)
    return params, grads


def _mean(seed: int, world_size: int, shapes: list[tuple], dtype: str, absent: Callable[[int], Iterable[int]]) -> list:
    """The mean over the ranks of what `_bucket` gives them; absent ones count as zeros."""
    total = [np.zeros(shape, np.float64) for shape in shapes]
    for rank in range(world_size):
        for number, array in enumerate(_gradients(seed, rank, shapes, dtype)):
            if number not in absent(rank):
                total[number] = total[number] + array
    return [array / world_size for array in total]


def _inside(ledger: Ledger, rank: int, name: str) -> list[Message]:
    """The calls that a rank began inside its span `name`, in their order."""
    span = _span(ledger, rank, name)
    mine = [m for m in ledger if m.rank == rank and span.start <= m.start <= span.end]
    return sorted(mine, key=lambda m: m.posted)


def _span(ledger: Ledger, rank: int, name: str) -> Span:
    return next(span for span in ledger.spans if span.rank == rank and span.name == name)


def _sent(messages: list[Message]) -> list[tuple[str, int]]:
    return [(m.call, m.bytes) for m in messages]


def _told(sent: list[tuple[str, int]]) -> str:
    return ", ".join(f"{call} of {size} bytes" for call, size in sent) or "nothing"


def _expect_sent(case: str, sent: list[list[tuple[str, int]]], expected: list[tuple[str, int]], where: str) -> None:
    """Each rank made exactly these calls, in this order."""
    for rank, mine in enumerate(sent):
        if mine != expected:
            text = f"{where}, rank {rank} sent {_told(mine)}; expected {_told(expected)}"
            fail(text, case, sent)


def _expect_mean(case: str, got: list[list], expected: list[np.ndarray], rtol: float) -> None:
    """Every rank holds the mean gradients."""
    for rank, mine in enumerate(got):
        for number, (array, mean) in enumerate(zip(mine, expected, strict=True)):
            name = f"rank {rank}'s gradient of parameter {number}"
            if array is None:
                fail(f"{name} is None", case, [_evidence(arrays) for arrays in got])
            try:
                expect_close(case, array, mean, what=name, rtol=rtol)
            except CheckFailed as failure:
                evidence = [_evidence(arrays) for arrays in got]
                raise CheckFailed(failure.message, failure.case, evidence) from None


# ---- 3 · start_bucket and finish_bucket ----

#: Shapes, dtype, and which gradients are absent on which rank.
_BUCKETS: tuple[tuple[list[tuple], str, Callable[[int], tuple]], ...] = (
    ([(3,)], "float32", lambda rank: ()),
    ([(2, 3), (), (4,)], "float64", lambda rank: ()),
    ([(5,), (3, 2), (2,)], "float32", lambda rank: (1,) if rank == 0 else ()),
    ([(4,), (0, 2), (2, 2)], "float64", lambda rank: (0, 2)),
    ([(3,), (2,)], "float64", lambda rank: (0, 1)),
)


def _drive_bucket_pair(rank: int, world_size: int, start_bucket: Any, finish_bucket: Any, seed: int) -> list[dict]:
    """Inside a rank: start all buckets, then finish them, and look at each gradient in between and after."""
    made = [_bucket(seed + b, rank, shapes, dtype, absent(rank)) for b, (shapes, dtype, absent) in enumerate(_BUCKETS)]
    copies = [_arrays(grads) for _, grads in made]
    handles = []
    for b, (params, _) in enumerate(made):
        with record_function(f"start {b}"):
            flat, work = start_bucket(params)
        handles.append((flat, work))
    with record_function("all started"):
        pass
    observed = []
    for b, ((params, grads), (flat, work)) in enumerate(zip(made, handles, strict=True)):
        seen: dict[str, Any] = {"flat": (type(flat).__name__, str(flat.dtype), tuple(flat.shape))}
        pointer = flat.untyped_storage().data_ptr()
        seen["shared"] = any(g is not None and g.numel() and g.untyped_storage().data_ptr() == pointer for g in grads)
        same = zip(_arrays(p.grad for p in params), copies[b], strict=True)
        seen["early"] = [not _same(now, then) for now, then in same]
        with record_function(f"finish {b}"):
            finish_bucket(params, flat, work)
        seen["after"] = _arrays(p.grad for p in params)
        pairs = list(zip(params, grads, strict=True))
        seen["replaced"] = [g is not None and p.grad is not g for p, g in pairs]
        seen["stale"] = [g is not None and not torch.equal(p.grad, g) for p, g in pairs]
        observed.append(seen)
    return observed


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return (a is None) == (b is None) and (a is None or np.array_equal(a, b))


@check("05-ex3-start-finish")
def a_bucket_is_averaged_in_one_asynchronous_all_reduce(start_bucket, finish_bucket, *, rng):
    """start_bucket returns at once with one all-reduce under way; finish_bucket leaves the means in `.grad`."""
    for world_size in WORLD_SIZES:
        seed = _seed(rng)
        results = run_ranks(_drive_bucket_pair, world_size, (start_bucket, finish_bucket, seed))
        ledger = results.ledger
        for b, (shapes, dtype, absent) in enumerate(_BUCKETS):
            numel = sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)
            case = _case(world_size, f"{len(shapes)} gradients, {numel} {dtype} numbers")
            each = range(world_size)
            started = [_inside(ledger, rank, f"start {b}") for rank in each]
            sent = [_sent(messages) for messages in started]
            _expect_sent(case, sent, [("all_reduce", numel * _SIZES[dtype])], "in start_bucket")
            for rank in each:
                if started[rank][0].end is None:
                    fail(f"rank {rank} never waited for its all-reduce with wait()", case, "never waited")
                if started[rank][0].end < _span(ledger, rank, "all started").start:
                    fail(f"rank {rank}'s start_bucket waited for the all-reduce, it must return at once", case, "waits")
            sent = [_sent(_inside(ledger, rank, f"finish {b}")) for rank in each]
            _expect_sent(case, sent, [], "in finish_bucket")
            seen = [result[b] for result in results]
            for rank, mine in enumerate(seen):
                if mine["flat"][1:] != (f"torch.{dtype}", (numel,)):
                    text = f"rank {rank}'s flat is {mine['flat'][1]} of shape {mine['flat'][2]}, "
                    fail(text + f"expected torch.{dtype} of shape ({numel},)", case, mine["flat"])
                if mine["shared"] or any(mine["early"]):
                    fail(f"start_bucket changed rank {rank}'s gradients: flat must be memory of its own", case, "early")
            mean = _mean(seed + b, world_size, shapes, dtype, absent)
            _expect_mean(case, [mine["after"] for mine in seen], mean, 1e-6 if dtype == "float32" else 1e-12)
            for rank, mine in enumerate(seen):
                dtypes = {str(array.dtype) for array in mine["after"]}
                if dtypes != {dtype}:
                    fail(f"rank {rank}'s gradients became {sorted(dtypes)}, expected {dtype}", case, sorted(dtypes))
                if any(mine["replaced"]) or any(mine["stale"]):
                    fail(f"rank {rank}'s gradient was replaced: write into the tensor that is there", case, "replaced")


# ---- 4 · Reducer ----

#: Three buckets of equal size, then one of another, so that neither a size nor a sum can hide a wrong order.
_STEP_SHAPES = [[(2,), (3,)], [(5,)], [(4,), (1,)], [(2, 2)]]
#: For each step and parity of the rank, the parameters that are marked, as (bucket, place), in order.
_MARKS = (
    {0: [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)], 1: [(0, 1), (0, 0), (1, 0), (2, 1), (2, 0), (3, 0)]},
    {0: [(2, 1), (1, 0), (2, 0), (0, 1), (3, 0), (0, 0)], 1: [(1, 0), (3, 0), (0, 0), (2, 0), (0, 1), (2, 1)]},
    {0: [(1, 0), (0, 0), (0, 1), (3, 0), (2, 0)], 1: [(0, 0), (0, 1), (2, 1), (2, 0)]},
)


def _marks_that_start(marks: list[tuple[int, int]]) -> list[list[int]]:
    """For each mark, the buckets that start at once: complete, and all before them started."""
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


def _drive_reducer(rank: int, world_size: int, reducer_class: Any, seed: int) -> list[dict]:
    """Inside a rank: three steps of one reducer, whose gradients arrive in the order of `_MARKS`."""
    buckets = [[nn.Parameter(torch.zeros(s, dtype=torch.float64)) for s in shapes] for shapes in _STEP_SHAPES]
    place = {id(p): (b, k) for b, bucket in enumerate(buckets) for k, p in enumerate(bucket)}
    with record_function("construction"):
        reducer = reducer_class(buckets)
    observed = []
    for step, marks in enumerate(_MARKS):
        for bucket, arrays in zip(buckets, _step_buckets(seed, rank, step), strict=True):
            for p, array in zip(bucket, arrays, strict=True):
                p.grad = torch.from_numpy(array.copy())
        for number, (b, k) in enumerate(marks[rank % 2]):
            with record_function(f"step {step} mark {number}"):
                reducer.mark_ready(buckets[b][k])
        with record_function(f"step {step} missing"):
            missing = [place.get(id(p), (-1, -1)) for p in reducer.missing()]
        with record_function(f"step {step} finish"):
            reducer.finish()
        observed.append({"missing": sorted(missing), "after": _arrays(p.grad for b in buckets for p in b)})
    return observed


@check("05-ex4-reducer")
def the_reducer_starts_buckets_in_their_order(Reducer, *, rng):  # noqa: N803  the notebook's name
    """A bucket starts when it is complete and those before it have started; finish starts the rest and averages."""
    sizes = [("all_reduce", 8 * sum(int(np.prod(s, dtype=np.int64)) for s in shapes)) for shapes in _STEP_SHAPES]
    for world_size in WORLD_SIZES:
        seed = _seed(rng)
        results = run_ranks(_drive_reducer, world_size, (Reducer, seed), PATIENCE)
        ledger, each = results.ledger, range(world_size)
        if any(_inside(ledger, rank, "construction") for rank in each):
            fail("the reducer sent messages when it was made", _case(world_size), "construction")
        for step, marks in enumerate(_MARKS):
            case = _case(world_size, ("all arrive in order", "all arrive out of order", "some are missing")[step])
            names = [[f"step {step} mark {n}" for n in range(len(marks[r % 2]))] for r in each]
            calls = [[_inside(ledger, r, name) for name in names[r]] for r in each]
            sent = [[_sent(messages) for messages in mine] for mine in calls]
            for rank in each:
                expected = [[sizes[b] for b in now] for now in _marks_that_start(marks[rank % 2])]
                for number, (got, wanted) in enumerate(zip(sent[rank], expected, strict=True)):
                    if got != wanted:
                        b, k = marks[rank % 2][number]
                        which = f"on rank {rank}, mark {number + 1} (parameter {k} of bucket {b}) sent {_told(got)}"
                        fail(f"{which}, expected {_told(wanted)}", case, sent)
            for rank in each:
                got = _sent(_inside(ledger, rank, f"step {step} finish"))
                wanted = sizes[sum(map(len, sent[rank])) :]
                if got != wanted:
                    fail(f"on rank {rank}, finish() sent {_told(got)}, expected {_told(wanted)}", case, [sent, got])
                early = _span(ledger, rank, f"step {step} finish").start
                if any(m.end is not None and m.end < early for messages in calls[rank] for m in messages):
                    fail(f"on rank {rank}, mark_ready waited for an all-reduce: waiting is for finish()", case, "waits")
                mine = [m for messages in calls[rank] for m in messages] + _inside(ledger, rank, f"step {step} finish")
                if any(m.completed is not None and m.completed < mine[-1].posted for m in mine):
                    text = f"on rank {rank}, finish() waited for a bucket before it had started all of them"
                    fail(text, case, "waits between")
                missing = sorted(
                    {(b, k) for b, s in enumerate(_STEP_SHAPES) for k in range(len(s))} - set(marks[rank % 2])
                )
                got = results[rank][step]["missing"]
                if got != missing:
                    fail(f"on rank {rank}, missing() gave {got}, expected {missing} (bucket, place)", case, got)
            means = [np.mean(arrays, axis=0) for arrays in zip(*(_flat_step(seed, r, step) for r in each), strict=True)]
            _expect_mean(case, [result[step]["after"] for result in results], means, 1e-12)
    _expect_refused_second_mark(Reducer)


def _flat_step(seed: int, rank: int, step: int) -> list[np.ndarray]:
    return [array for arrays in _step_buckets(seed, rank, step) for array in arrays]


def _drive_second_mark(rank: int, world_size: int, reducer_class: Any) -> list:
    said = []
    for marks in ([0, 1, 0], [0, 0]):  # before and after the bucket is complete
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


def _expect_refused_second_mark(reducer_class: Any) -> None:
    """A parameter that is marked twice in one step is a RuntimeError that names finish_gradient_sync."""
    results = run_ranks(_drive_second_mark, 1, (reducer_class,))
    for text, when in zip(results[0], ("after its bucket was complete", "before its bucket was complete"), strict=True):
        _expect_error(f"1 rank, a parameter is marked twice, {when}", text, ["finish_gradient_sync"])


def _expect_error(case: str, text: str | None, names: Iterable[str], others: Iterable[str] = ()) -> None:
    """A RuntimeError was raised whose text holds each of `names` and none of `others`."""
    if text is None:
        fail("expected a RuntimeError, but nothing was raised", case, "nothing raised")
    lacking = [name for name in names if name not in text]
    if lacking:
        fail(f"the RuntimeError should name {', '.join(lacking)}; it says {text!r}", case, ("lacks", lacking))
    surplus = [name for name in others if name in text]
    if surplus:
        fail(f"the RuntimeError names {', '.join(surplus)}, which had a gradient", case, ("surplus", surplus))


# ---- 5 · DistributedDataParallel: equality ----


class _Zoo(nn.Module):
    """Small, with everything that goes wrong: tied, frozen, used twice, a single number, a buffer, another order."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.head = nn.Linear(6, 3)  # registered first, used last
        self.embed = nn.Linear(4, 6)
        self.twice = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.rand(()) + 0.5)
        self.tied = nn.Linear(6, 4, bias=False)
        self.tied.weight = nn.Parameter(torch.randn(4, 6) / 2)
        self.back = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(6, 4, bias=False)
        self.again.weight = self.tied.weight
        self.out = nn.Linear(4, 6)
        self.register_buffer("shift", torch.randn(6))
        self.frozen.requires_grad_(False)
        with torch.no_grad():  # LayerNorm starts with ones and zeros everywhere
            for p in self.norm.parameters():
                p += 0.3 * torch.randn(6)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 4) → (B, 3)"""
        h = torch.tanh(self.embed(x) + self.shift)
        h = self.twice(torch.tanh(self.twice(h)))
        h = self.norm(h) + self.frozen(h)
        h = self.tied(h) * self.scale + self.again(torch.tanh(h))
        return self.head(torch.tanh(self.out(self.back(h))))


STEPS, ROWS = 4, 5  # rows a rank
#: Optimizer, bucket_bytes (None: the default), and whether zero_grad leaves zeros instead of None.
_OPTIMIZERS: dict[str, tuple[Callable, int | None, bool]] = {
    "SGD": (lambda params: torch.optim.SGD(params, lr=0.1), 1, False),
    "momentum": (lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), 400, True),
    "Adam": (lambda params: torch.optim.Adam(params, lr=0.01), None, False),
}


def _batch(seed: int, step: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step, for all ranks together."""
    g = torch.Generator().manual_seed(seed + step)
    rows = ROWS * world_size
    return (
        torch.randn(rows, 4, generator=g, dtype=torch.float64),
        torch.randn(rows, 3, generator=g, dtype=torch.float64),
    )


def _train(model: nn.Module, name: str, seed: int, world_size: int, rank: int | None, finish: Callable) -> list[dict]:
    """Four steps; what is there after each. rank None: one process sees the whole batch."""
    make, _, zeros = _OPTIMIZERS[name]
    inner = getattr(model, "module", model)
    optimizer = make(model.parameters())
    history = []
    for step in range(STEPS):
        x, y = _batch(seed, step, world_size)
        if rank is not None:
            x, y = x[rank::world_size], y[rank::world_size]
        optimizer.zero_grad(set_to_none=not zeros)
        loss = (model(x) - y).square().mean()
        loss.backward()
        finish()
        grads = _arrays(p.grad for p in inner.parameters())
        optimizer.step()
        state = optimizer.state
        slots = [state[p][key] for p in inner.parameters() if p in state for key in sorted(state[p])]
        slots = _arrays(torch.as_tensor(slot) for slot in slots if slot is not None)
        params = _arrays([*inner.parameters(), *inner.buffers()])
        history.append({"loss": loss.item(), "gradient": grads, "parameter": params, "optimizer state": slots})
    return history


def _drive_training(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: for each optimizer, the student's wrapper and torch's on a group of its own."""
    group = dist.new_group()
    results = {}
    for name, (_, bucket_bytes, _) in _OPTIMIZERS.items():
        ours = ddp_class(_Zoo(seed + rank), **({} if bucket_bytes is None else {"bucket_bytes": bucket_bytes}))
        mine = _train(ours, name, seed, world_size, rank, ours.finish_gradient_sync)
        theirs = nn.parallel.DistributedDataParallel(_Zoo(seed + rank), process_group=group)
        results[name] = (mine, _train(theirs, name, seed, world_size, rank, lambda: None))
    return results


@check("05-ex5-ddp")
def ddp_trains_like_one_process_and_like_torch(DistributedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """At each step: losses, gradients, parameters and optimizer state of one process, and of torch's DDP."""
    for world_size in WORLD_SIZES:
        seed = _seed(rng)
        results = run_ranks(_drive_training, world_size, (DistributedDataParallel, seed))
        for name in _OPTIMIZERS:
            one = _train(_Zoo(seed), name, seed, world_size, None, lambda: None)
            for step in range(STEPS):
                case = _case(world_size, name, f"step {step + 1}")
                mine = [result[name][0][step] for result in results]
                _expect_loss(case, [seen["loss"] for seen in mine], one[step]["loss"])
                for what in ("gradient", "parameter", "optimizer state"):
                    _expect_same(case, what, [seen[what] for seen in mine], one[step][what], "one process has")
                    theirs = results[0][name][1][step][what]
                    _expect_same(case, what, [seen[what] for seen in mine], theirs, "torch's DDP has")


def _expect_loss(case: str, losses: list[float], expected: float) -> None:
    """The mean of the ranks' losses is that of the whole batch."""
    if not abs(float(np.mean(losses)) - expected) <= RTOL * abs(expected):
        text = f"the ranks' losses {losses} have the mean {np.mean(losses):.9g}, but the whole batch has {expected:.9g}"
        fail(f"{text}: the ranks' parameters are not the same as those of one process", case, [*losses])


def _expect_same(case: str, what: str, got: list[list], expected: list, whose: str, rtol: float = RTOL) -> None:
    """Every rank's arrays are the expected ones, within `rtol` of the largest entry; None where None is expected."""
    evidence = [_evidence(arrays) for arrays in got]
    for rank, arrays in enumerate(got):
        if len(arrays) != len(expected):
            fail(f"rank {rank} has {len(arrays)} tensors ({what}), {whose} {len(expected)}", case, evidence)
        for number, (array, right) in enumerate(zip(arrays, expected, strict=True)):
            name = f"rank {rank}'s {what} {number}"
            if (array is None) != (right is None):
                has, wanted = ("None", "numbers") if array is None else ("numbers", "None")
                fail(f"{name} is {has}, {whose} {wanted}", case, evidence)
            if array is None:
                continue
            if array.shape != right.shape or array.dtype != right.dtype:
                fail(f"{name} is {array.dtype} {array.shape}, {whose} {right.dtype} {right.shape}", case, evidence)
            bound = rtol * max(float(np.max(np.abs(right), initial=0.0)), 1e-3)
            off = np.abs(array.astype(np.float64) - right)
            if not np.all(off <= bound):
                at = np.unravel_index(int(np.argmax(np.where(np.isnan(off), np.inf, off))), off.shape)
                fail(f"{name} is wrong: it holds {array[at]:.9g} where {whose} {right[at]:.9g}", case, evidence)


# ---- 5 · DistributedDataParallel: what is sent, and when ----


class _Mark(torch.autograd.Function):
    """The identity; its backward leaves a span in the ledger, before the backward of the layer that it follows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name = name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        with record_function(ctx.name):
            return grad, None


class _Stack(nn.Module):
    """Layers in a row with a mark behind each: layer k's span begins before its gradients exist."""

    def __init__(self, seed: int, layers: int, dtypes: list[str]):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=getattr(torch, dtypes[k])) for k in range(layers))
        self.prefix = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3) → (B, 3)"""
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
            x = _Mark.apply(x, f"{self.prefix} layer {number}")
        return x


class _Towers(nn.Module):
    """Two towers of the same size, of which even and odd ranks use another one first."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.left, self.right = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()

    def forward(self, x: torch.Tensor, left_first: bool) -> torch.Tensor:
        """(B, 3) → (B, 3)"""
        if left_first:
            return torch.tanh(self.left(x)) - self.right(x).square()
        right = self.right(x).square()
        return torch.tanh(self.left(x)) - right


_LAYERS = 5
#: dtype of each layer and bucket_bytes: a layer has 48 bytes in float32, 96 in float64.
_STACKS: dict[str, tuple[list[str], int]] = {
    "a bucket a layer": (["float32"] * _LAYERS, 48),
    "two layers a bucket": (["float32"] * _LAYERS, 100),
    "a bucket a parameter": (["float64"] * _LAYERS, 1),
    "two dtypes": (["float32", "float32", "float64", "float64", "float32"], 2**20),
}


def _rows(seed: int, rank: int, step: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + 17 * rank + 1013 * step)
    return torch.randn(4, 3, generator=g, dtype=torch.float64)


def _drive_stacks(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: two steps of each stack, with spans for the construction, each step and each layer."""
    gradients = {}
    for name, (dtypes, bucket_bytes) in _STACKS.items():
        stack = _Stack(seed + rank, _LAYERS, dtypes)
        with record_function(f"{name} made"):
            ddp = ddp_class(stack, bucket_bytes=bucket_bytes)
        for step in range(2):
            stack.prefix = f"{name} step {step}"
            ddp.zero_grad()
            with record_function(stack.prefix):
                ddp(_rows(seed, rank, step)).square().sum().backward()
                with record_function(f"{stack.prefix} finish"):
                    ddp.finish_gradient_sync()
        gradients[name] = _arrays(p.grad for p in stack.parameters())
    return gradients


def _stack_specs(dtypes: list[str]) -> list[tuple]:
    return [spec for dtype in dtypes for spec in (((3, 3), dtype, True), ((3,), dtype, True))]


def _spec_bytes(spec: tuple) -> int:
    return int(np.prod(spec[0], dtype=np.int64)) * _SIZES[spec[1]]


@check("05-ex5-ddp")
def ddp_sends_each_bucket_once_while_backward_runs(DistributedDataParallel, *, rng):  # noqa: N803
    """One all-reduce a bucket, in bucket order, started as soon as it can be, waited for at the end."""
    for world_size in (1, 2, 3):
        seed = _seed(rng)
        results = run_ranks(_drive_stacks, world_size, (DistributedDataParallel, seed))
        ledger, each = results.ledger, range(world_size)
        for name, (dtypes, bucket_bytes) in _STACKS.items():
            specs = _stack_specs(dtypes)
            buckets = expected_buckets(specs, bucket_bytes)
            expected = [("all_reduce", sum(_spec_bytes(specs[i]) for i in bucket)) for bucket in buckets]
            for step in range(2):
                case = _case(world_size, name, f"step {step + 1}")
                span = f"{name} step {step}"
                calls = [_inside(ledger, rank, span) for rank in each]
                _expect_sent(case, [_sent(messages) for messages in calls], expected, "from forward to finish")
                for rank in each:
                    _expect_overlap(case, ledger, rank, span, calls[rank], buckets)
            _expect_stack_gradients(_case(world_size, name), results, name, dtypes, seed)
    for world_size in (2, 3):
        _expect_order_kept(DistributedDataParallel, world_size, _seed(rng))


def _expect_overlap(
    case: str, ledger: Ledger, rank: int, span: str, calls: list[Message], buckets: list[list[int]]
) -> None:
    """A bucket starts before the backward of the layer after next; nobody waits before the end of backward."""
    late = []
    for number, (bucket, message) in enumerate(zip(buckets, calls, strict=True)):
        layer = min(bucket) // 2  # the last of its layers to get gradients
        if layer >= 2 and message.start > _span(ledger, rank, f"{span} layer {layer - 2}").start:
            late.append(number)
    if late:
        when = "could have started" if len(late) < len(buckets) else "started"
        text = f"on rank {rank}, bucket {late[0]} started late: it {when} while backward was at earlier layers"
        fail(text if len(late) < len(buckets) else f"on rank {rank}, no bucket started during backward", case, late)
    begin = _span(ledger, rank, f"{span} layer 0").start
    if any(message.end is None for message in calls):
        fail(f"rank {rank} never waited for an all-reduce with wait()", case, "never waited")
    if calls[0].end < begin and len(calls) > 1:
        text = f"rank {rank} waited for an all-reduce while gradients were still to come: start it asynchronously"
        fail(text, case, "waits")


def _expect_stack_gradients(case: str, results: list, name: str, dtypes: list[str], seed: int) -> None:
    model = _Stack(seed, _LAYERS, dtypes)
    for rank in range(len(results)):
        (model(_rows(seed, rank, 1)).square().sum() / len(results)).backward()
    expected = _arrays(p.grad for p in model.parameters())
    got = [result[name] for result in results]
    _expect_same(case, "gradient", got, expected, "the mean over the ranks is", RTOL32)


def _drive_towers(rank: int, world_size: int, ddp_class: Any, seed: int) -> list[list]:
    gradients = []
    for bucket_bytes in (1, 100):
        towers = _Towers(seed + rank)
        ddp = ddp_class(towers, bucket_bytes=bucket_bytes)
        ddp(_rows(seed, rank), left_first=rank % 2 == 0).sum().backward()
        ddp.finish_gradient_sync()
        gradients.append(_arrays(p.grad for p in towers.parameters()))
    return gradients


def _expect_order_kept(ddp_class: Any, world_size: int, seed: int) -> None:
    """Ranks whose gradients arrive in another order still add up the same buckets."""
    results = run_ranks(_drive_towers, world_size, (ddp_class, seed), PATIENCE)
    model = _Towers(seed)
    for rank in range(world_size):
        (model(_rows(seed, rank), rank % 2 == 0).sum() / world_size).backward()
    expected = _arrays(p.grad for p in model.parameters())
    for number, bucket_bytes in enumerate((1, 100)):
        case = _case(world_size, f"bucket_bytes = {bucket_bytes}", "gradients arrive in different orders")
        got = [result[number] for result in results]
        _expect_same(case, "gradient", got, expected, "the mean over the ranks is")


# ---- 5 · DistributedDataParallel: no_sync ----


class _Interrupt(Exception):
    """Raised by a driver inside no_sync()."""


def _drive_no_sync(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: micro-batches with and without no_sync, each told by its span."""
    stack = _Towers(seed + rank)
    ddp = ddp_class(stack, bucket_bytes=80)

    def micro_batch(name: str, number: int, silent: bool = False, finish: bool = True) -> list:
        with record_function(name), ddp.no_sync() if silent else nullcontext():
            loss = ddp(_rows(seed, rank, number), True).sum()
            with torch.no_grad():  # looking at the model in between changes nothing
                ddp(_rows(seed, rank, number), True)
            loss.backward()
        with record_function(f"{name} finish"):
            if finish:
                ddp.finish_gradient_sync()
        return _arrays(p.grad for p in stack.parameters())

    seen = {}
    for k in range(2):
        seen[f"k3 silent {k}"] = micro_batch(f"k3 silent {k}", k, silent=True)
    seen["k3 last"] = micro_batch("k3 last", 2)
    with record_function("again"):
        ddp.finish_gradient_sync()
    ddp.zero_grad()
    for k in range(2):  # finish is only called after the last one
        micro_batch(f"rare silent {k}", k, silent=True, finish=False)
    seen["rare last"] = micro_batch("rare last", 2)
    ddp.zero_grad()
    try:
        with ddp.no_sync():
            raise _Interrupt
    except _Interrupt:
        pass
    seen["interrupted"] = micro_batch("interrupted", 3)
    ddp.zero_grad()
    with ddp.no_sync():
        with ddp.no_sync():
            pass
        seen["nested"] = micro_batch("nested", 4)
    seen["kept up"] = micro_batch("kept up", 5)  # without zero_grad: local gradients of micro-batch 4 and these
    seen["added"] = micro_batch("added", 6)  # added to means
    return seen


#: What each span of `_drive_no_sync` should leave: the micro-batches that were added up, and whether as a mean.
_NO_SYNC = {
    "k3 silent 0": ([0], False),
    "k3 silent 1": ([0, 1], False),
    "k3 last": ([0, 1, 2], True),
    "rare last": ([0, 1, 2], True),
    "interrupted": ([3], True),
    "nested": ([4], False),
    "kept up": ([4, 5], True),
    "added": ([4, 5, 6], True),
}
_NO_SYNC_TOLD = {
    "k3 silent 0": "the first of two micro-batches inside no_sync",
    "k3 silent 1": "the second of two micro-batches inside no_sync",
    "k3 last": "the last of three micro-batches, outside no_sync",
    "rare last": "the last of three micro-batches, finish_gradient_sync called only after it",
    "interrupted": "a synchronized step after an exception left no_sync",
    "nested": "a micro-batch after an inner no_sync has ended, inside the outer one",
    "kept up": "a synchronized step after a silent one",
    "added": "a second synchronized step without zero_grad",
}


@check("05-ex5-ddp")
def ddp_syncs_once_for_many_micro_batches(DistributedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """Inside no_sync nothing is sent and gradients add up; the next synchronized backward averages them all."""
    specs = [((3, 3), "float64", True), ((3,), "float64", True)] * 2
    one_step = [("all_reduce", sum(_spec_bytes(specs[i]) for i in bucket)) for bucket in expected_buckets(specs, 80)]
    for world_size in (1, 2, 3):
        seed = _seed(rng)
        results = run_ranks(_drive_no_sync, world_size, (DistributedDataParallel, seed))
        ledger, each = results.ledger, range(world_size)
        for name, (numbers, is_mean) in _NO_SYNC.items():
            case = _case(world_size, _NO_SYNC_TOLD[name])
            sent = [_sent(_inside(ledger, r, name) + _inside(ledger, r, f"{name} finish")) for r in each]
            _expect_sent(case, sent, one_step if is_mean else [], "from forward to finish")
            model = _Towers(seed)
            local = []
            for rank in each:
                model.zero_grad()
                for number in numbers:
                    model(_rows(seed, rank, number), True).sum().backward()
                local.append(_arrays(p.grad for p in model.parameters()))
            mean = [np.mean(arrays, axis=0) for arrays in zip(*local, strict=True)]
            got = [result[name] for result in results]
            whose = "the mean over the ranks is" if is_mean else "this rank's own sum is"
            for rank in each:
                _expect_same(case, "gradient", [got[rank]], mean if is_mean else local[rank], whose)
        for rank in each:
            if again := _sent(_inside(ledger, rank, "again")):
                fail(f"a second finish_gradient_sync() sent {_told(again)}", _case(world_size), again)


# ---- 5 · DistributedDataParallel: unused parameters ----


class _Branches(nn.Module):
    """Three layers, of which a call names those that it uses."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.middle, self.last = (nn.Linear(3, 3).double() for _ in range(3))

    def forward(self, x: torch.Tensor, use: str) -> torch.Tensor:
        """(B, 3) → (B, 3); `use` holds the initials of the layers."""
        for name in ("first", "middle", "last"):
            if name[0] in use:
                x = torch.tanh(getattr(self, name)(x))
        return x


#: Steps: the initials of the layers that rank 0, the other ranks use; "" is a forward without a backward.
_USES = (("fml", "fml"), ("fm", "f"), ("l", "f"), ("fm", ""), ("ml", "ml"))


def _use(step: int, rank: int) -> str:
    return _USES[step][min(rank, 1)]


def _drive_unused(rank: int, world_size: int, ddp_class: Any, seed: int) -> dict[str, list]:
    """Inside a rank: steps in which ranks use different layers, the student's wrapper and torch's."""
    seen: dict[str, list] = {"ours": [], "torch": []}
    module = _Branches(seed + rank)
    ddp = ddp_class(module, bucket_bytes=100, find_unused_parameters=True)
    for step in range(len(_USES)):
        ddp.zero_grad()
        with record_function(f"step {step}"):
            out = ddp(_rows(seed, rank, step), _use(step, rank))
            if out.requires_grad:
                out.sum().backward()
            ddp.finish_gradient_sync()
        seen["ours"].append(_arrays(p.grad for p in module.parameters()))
    ddp.zero_grad()  # rank 0 uses the last layer only in a silent micro-batch
    with record_function("accumulated"):
        with ddp.no_sync():
            ddp(_rows(seed, rank, 7), "fl" if rank == 0 else "f").sum().backward()
        ddp(_rows(seed, rank, 8), "f").sum().backward()
        ddp.finish_gradient_sync()
    seen["ours"].append(_arrays(p.grad for p in module.parameters()))
    module = _Branches(seed + rank)
    theirs = nn.parallel.DistributedDataParallel(
        module, process_group=dist.new_group(), find_unused_parameters=True, bucket_cap_mb=25
    )
    for step in range(3):
        theirs.zero_grad()
        theirs(_rows(seed, rank, step), _use(step, rank)).sum().backward()
        seen["torch"].append(_arrays(p.grad for p in module.parameters()))
    return seen


def _unused_oracle(seed: int, world_size: int, calls: list[Callable[[int], list[tuple[int, str]]]]) -> list[list]:
    """The mean of what the ranks' calls give, zeros for None; None where it is None on every rank."""
    steps = []
    for of_rank in calls:
        local = []
        for rank in range(world_size):
            model = _Branches(seed)
            for number, use in of_rank(rank):
                if use:
                    model(_rows(seed, rank, number), use).sum().backward()
            local.append(_arrays(p.grad for p in model.parameters()))
        columns = zip(*local, strict=True)
        steps.append([_mean_of_some(column, world_size) for column in columns])
    return steps


def _mean_of_some(arrays: tuple, world_size: int) -> np.ndarray | None:
    there = [array for array in arrays if array is not None]
    return np.sum(there, axis=0) / world_size if there else None


@check("05-ex5-ddp")
def ddp_counts_unused_parameters_as_zeros(DistributedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """With find_unused_parameters=True: means with zeros, None where no rank used it, one small all-reduce more."""
    specs = [((3, 3), "float64", True), ((3,), "float64", True)] * 3
    buckets = [("all_reduce", sum(_spec_bytes(specs[i]) for i in b)) for b in expected_buckets(specs, 100)]
    for world_size in (1, 2, 3):
        seed = _seed(rng)
        results = run_ranks(_drive_unused, world_size, (DistributedDataParallel, seed), PATIENCE)
        steps = [lambda rank, step=step: [(step, _use(step, rank))] for step in range(len(_USES))]
        steps.append(lambda rank: [(7, "fl" if rank == 0 else "f"), (8, "f")])
        expected = _unused_oracle(seed, world_size, steps)
        for number, right in enumerate(expected):
            if number < len(_USES):
                used = [_use(number, rank) or "nothing" for rank in range(world_size)]
                case, span = _case(world_size, f"used layers (initials) {used}"), f"step {number}"
            else:
                case, span = _case(world_size, "rank 0 used the last layer inside no_sync only"), "accumulated"
            got = [result["ours"][number] for result in results]
            if number < len(results[0]["torch"]):
                _expect_same(case, "gradient", got, results[0]["torch"][number], "torch's DDP has")
            _expect_same(case, "gradient", got, right, "the mean over the ranks is")
            for rank in range(world_size):
                sent = _sent(_inside(results.ledger, rank, span))
                allowed = [sent[:i] + sent[i + 1 :] for i, (_, size) in enumerate(sent) if size <= 8 * len(specs)]
                if buckets not in [sent, *allowed]:
                    text = f"rank {rank} sent {_told(sent)}; expected {_told(buckets)} and at most one small call more"
                    fail(text, case, sent)


def _drive_names(rank: int, world_size: int, ddp_class: Any, seed: int, cases: list[tuple], caught: bool) -> list:
    """Inside a rank: one wrapper a case, without the flag; the text of its RuntimeError, or None."""
    said = []
    for bucket_bytes, use_of_0, use_of_others, *silent in cases:
        ddp = ddp_class(_Branches(seed), bucket_bytes=bucket_bytes)
        for use in silent:  # leaves gradients, which are not this step's
            with ddp.no_sync():
                ddp(_rows(seed, rank), use).sum().backward()
        out = ddp(_rows(seed, rank), use_of_others if rank else use_of_0)
        if out.requires_grad:
            out.sum().backward()
        try:
            ddp.finish_gradient_sync()
            said.append(None)
        except RuntimeError as error:
            if not caught:
                raise
            said.append(str(error))
    return said


_LAYER_PARAMS = {name[0]: [f"{name}.weight", f"{name}.bias"] for name in ("first", "middle", "last")}


@check("05-ex5-ddp")
def ddp_never_leaves_a_mystery(DistributedDataParallel, *, rng):  # noqa: N803  the notebook's name
    """Skipped parameters without the flag and a forgotten finish_gradient_sync() are errors that say what is wrong."""
    _expect_names_when_all_skip(DistributedDataParallel, rng)
    _expect_no_mystery_when_one_skips(DistributedDataParallel, _seed(rng))
    _expect_second_backward_refused(DistributedDataParallel, _seed(rng))


def _expect_names_when_all_skip(ddp_class: Any, rng: np.random.Generator) -> None:
    """finish_gradient_sync() raises a RuntimeError that names the parameters without a gradient."""
    cases: list[tuple] = [(size, use, use) for size in (1, 100, 2**20) for use in ("fl", "ml", "fm", "m", "")]
    cases += [(size, "fl", "fl", "fml") for size in (1, 2**20)]
    for world_size in (1, 2):
        results = run_ranks(_drive_names, world_size, (ddp_class, _seed(rng), cases, True))
        for rank, said in enumerate(results):
            for (bucket_bytes, use, _, *silent), text in zip(cases, said, strict=True):
                before = ", after all of them in a silent backward" if silent else ""
                used = f"rank {rank} used layers {use or 'none'!r}{before}"
                case = _case(world_size, f"bucket_bytes = {bucket_bytes}, {used}")
                skipped = [name for initial in "fml" if initial not in use for name in _LAYER_PARAMS[initial]]
                others = [name for initial in use for name in _LAYER_PARAMS[initial]]
                _expect_error(case, text, skipped, others)


def _expect_no_mystery_when_one_skips(ddp_class: Any, seed: int) -> None:
    """The rank that skips a layer says so; if it goes on all the same, the others are found waiting for it."""
    arguments = (ddp_class, seed, [(100, "fl", "fml")])
    case = "2 ranks, only rank 0 skips the middle layer"
    try:
        ranks.run(_drive_names, 2, (*arguments, False), timeout=20, echo=False)
        fail("nothing was raised, so ranks went on with different gradients", case, "nothing raised")
    except ranks.RankError as error:
        if error.type_name != "RuntimeError":
            raise CheckFailed(f"{error.headline} (case: {case})", case, error.evidence) from error
        _expect_error(case, error.headline, _LAYER_PARAMS["m"], _LAYER_PARAMS["f"] + _LAYER_PARAMS["l"])
    except ranks.HangError as error:
        text = f"rank 0 should have raised a RuntimeError. {error} (case: {case})"
        raise CheckFailed(text, case, error.evidence) from error
    try:
        ranks.run(_drive_names, 2, (*arguments, True), timeout=20, echo=False)
        text = "rank 0 raised, and still rank 1 got means: finish_gradient_sync() must not start more before it raises"
        fail(text, case, "went on")
    except ranks.HangError:
        pass
    except ranks.RankError as error:
        raise CheckFailed(f"{error.headline} (case: {case})", case, error.evidence) from error


def _drive_twice(rank: int, world_size: int, ddp_class: Any, seed: int) -> str | None:
    ddp = ddp_class(_Branches(seed), bucket_bytes=100)
    try:
        for step in range(2):
            ddp(_rows(seed, rank, step), "fml").sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


def _expect_second_backward_refused(ddp_class: Any, seed: int) -> None:
    """Two synchronized backwards without finish_gradient_sync() in between are a RuntimeError that names it."""
    for world_size in (1, 2):
        results = run_ranks(_drive_twice, world_size, (ddp_class, seed))
        for rank, text in enumerate(results):
            case = _case(world_size, f"rank {rank}, two backwards without finish_gradient_sync()")
            _expect_error(case, text, ["finish_gradient_sync"])
