"""Lesson 08: a sharded optimizer must do what the unsharded one does, in a shard's memory, for an all-reduce's bytes.

The oracle is torch's own optimizer over whole float32 parameters, stepped in this process with the mean of the
gradients that the ranks are given. Gradients are small multiples of 1/8, so that their sums are exact and a
difference comes from the optimizer; the bound on what is left, `STEP_ERROR`, is a few roundings of float32 for each
step. What was sent is read from the ledger, what is held by walking over the student's object inside the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import ceil_div, each_rank, expect_close, expect_raises, fail
from autograder.checking.inputs import eighths
from autograder.checking.instruments.memory import bytes_held
from autograder.checking.stage import call_inside, run_ranks

WORLD_SIZES = (1, 2, 3, 4, 5)
#: Of the largest parameter, after a few steps.
STEP_ERROR = 5e-6
#: bf16 has 8 significant bits.
BF16_ERROR = 2.0**-8
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"lr": 0.02}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.1}),
}
#: Tensors with a dimension that an optimizer keeps for each parameter, the master copy among them.
KEPT = {"SGD": 1, "SGD with momentum": 2, "Adam": 3, "AdamW": 3}


# ---- 1 · shard_bounds ----


@check("08-ex1-shard-bounds")
def bounds_cut_into_equal_shards(shard_bounds, *, rng):
    """Equal shards of ⌈numel/N⌉, one after the other, clipped to the vector; also where floats are too coarse."""
    # The last is 3 more than a multiple of 16: half of it, rounded up, is no float64.
    sizes = [0, 1, 2, 5, 10, 12, int(rng.integers(20, 5000)), 10**17 + 16 * int(rng.integers(1, 1000)) + 3]
    for world_size in (1, 2, 3, 4, 7, 16):
        for numel in sizes:
            size = ceil_div(numel, world_size)
            expected = [(min(r * size, numel), min((r + 1) * size, numel)) for r in range(world_size)]
            got = [_pair(shard_bounds(numel, rank, world_size)) for rank in range(world_size)]
            if got != expected:
                rank = next(r for r in range(world_size) if got[r] != expected[r])
                case = f"{numel} numbers on {world_size} ranks"
                fail(f"rank {rank} has {got[rank]}, expected {expected[rank]}", case, got)


def _pair(bounds: Any) -> Any:
    """Two whole numbers as a tuple; anything else as it would be shown."""
    try:
        start, end = bounds
        if start != int(start) or end != int(end):
            return repr(bounds)
        return int(start), int(end)
    except (TypeError, ValueError):
        return repr(bounds)


@check("08-ex1-shard-bounds")
def bounds_refuse_what_makes_no_sense(shard_bounds, *, rng):
    """A world size, a rank or a length that cannot be is a ValueError that names it."""
    wrong = [((10, 0, 0), "world_size"), ((10, -1, 4), "rank"), ((10, 4, 4), "rank"), ((-1, 0, 4), "numel")]
    for arguments, name in wrong:
        expect_raises(f"shard_bounds{arguments}", shard_bounds, *arguments, error=ValueError, mentions=name)


# ---- 2 · flatten and unflatten_into ----


def _tensors(rng: np.random.Generator) -> dict[str, list[torch.Tensor]]:
    """Lists of tensors of several shapes, dtypes and layouts, whose numbers bf16 holds exactly."""

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.from_numpy(np.asarray(rng.integers(-64, 64, shape) / 8)).to(dtype)

    return {
        "one tensor": [numbers(3, 2)],
        "parameters": [nn.Parameter(numbers(2, 3)), nn.Parameter(numbers(4)), nn.Parameter(numbers())],
        "a transposed matrix": [numbers(3, 4).t(), numbers(2)],
        "three dtypes": [numbers(5, dtype=torch.bfloat16), numbers(2, 2, dtype=torch.float64), numbers(3)],
        "an empty tensor": [numbers(0, 3), numbers(2)],
        "an empty list": [],
    }


@check("08-ex2-flatten")
def flatten_lays_numbers_end_to_end(flatten, *, rng):
    """1-D float32, in order, memory of its own, no gradient."""
    for case, tensors in _tensors(rng).items():
        before = [t.detach().clone() for t in tensors]
        got = flatten(tensors)
        parts = [t.detach().to(torch.float64).numpy().reshape(-1) for t in tensors]
        expect_close(case, got, np.concatenate([*parts, np.zeros(0)]), what="the flat vector", rtol=0.0)
        if not isinstance(got, torch.Tensor) or got.dtype != torch.float32:
            fail("the flat vector should be a float32 tensor", case, str(getattr(got, "dtype", type(got).__name__)))
        if got.requires_grad:
            fail("the flat vector requires a gradient", case, "requires_grad")
        got.add_(1)
        if any(not torch.equal(t.detach(), old) for t, old in zip(tensors, before, strict=True)):
            fail("the flat vector shares its memory with a tensor", case, "shared")


def _unflattened(unflatten_into: Callable, tensors: list[torch.Tensor], flat: torch.Tensor) -> list[dict]:
    """What became of each of the tensors, and of the flat vector at the end."""
    pointers, dtypes, needs = zip(*((t.data_ptr(), t.dtype, t.requires_grad) for t in [*tensors, flat]), strict=True)
    unflatten_into(list(tensors), flat)
    return [
        {
            "numbers": t.detach().clone(),
            "same": t.data_ptr() == pointers[index] and t.dtype == dtypes[index],
            "leaf": t.requires_grad == needs[index] and t.is_leaf,
        }
        for index, t in enumerate([*tensors, flat])
    ]


@check("08-ex2-flatten")
def unflatten_writes_in_place(unflatten_into, *, rng):
    """The tensors' own memory gets the numbers, in their dtypes; the flat vector stays; a wrong length is refused."""
    for case, tensors in _tensors(rng).items():
        numel = sum(t.numel() for t in tensors)
        flat = torch.from_numpy(rng.integers(-64, 64, numel) / 8).float()
        before, at = flat.clone(), 0
        *got, flat = call_inside(_unflattened, unflatten_into, tensors, flat)
        for index, (t, seen) in enumerate(zip(tensors, got, strict=True)):
            expected = before[at : at + t.numel()].view(t.shape).numpy().astype(np.float64)
            at += t.numel()
            expect_close(case, seen["numbers"].double(), expected, what=f"tensor {index}", rtol=0.0)
            if not seen["same"]:
                fail(f"tensor {index} is not the one it was: write into its memory", case, "replaced")
            if not seen["leaf"]:
                fail(f"tensor {index} is no longer a leaf that requires a gradient as before", case, "leaf")
        if not torch.equal(flat["numbers"], before):
            fail("flat was changed", case, "flat")
    for extra in (-1, 1):
        tensors = [torch.zeros(2, 3), torch.zeros(4)]
        flat, case = torch.ones(10 + extra), f"{10 + extra} numbers for 10 places"
        expect_raises(case, unflatten_into, tensors, flat, error=ValueError, mentions="flat")
        if any(t.any() for t in tensors):
            fail("numbers were written before the ValueError", case, "written")


# ---- a run of steps ----


@dataclass
class Case:
    """Some steps of one optimizer: `parameters[i]` is the i-th tensor, `gradients[step][rank][i]` what rank has for it.

    frozen: indices of parameters that do not require a gradient. repeated: indices given twice. dtypes: torch's
    names. rates: step → the learning rate from this step on. clip: the bounds, one a step, or None.
    """

    name: str
    optimizer: str
    parameters: list[np.ndarray]
    gradients: list[list[list[np.ndarray | None]]]
    frozen: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    rates: dict[int, float] = field(default_factory=dict)
    clip: list[float] | None = None

    @property
    def numel(self) -> int:
        """How many trainable numbers there are."""
        return sum(p.size for i, p in enumerate(self.parameters) if i not in self.frozen)

    def tensors(self) -> list[nn.Parameter]:
        """Fresh parameters."""
        dtypes = self.dtypes or ("float32",) * len(self.parameters)
        return [
            nn.Parameter(torch.tensor(p).to(getattr(torch, dtype)), requires_grad=i not in self.frozen)
            for i, (p, dtype) in enumerate(zip(self.parameters, dtypes, strict=True))
        ]


@dataclass
class Outcome:
    """What one rank held after each step of a case, and what it said of itself."""

    parameters: list[list[np.ndarray]]
    held: list[int]  # bytes found by walking over the object
    said: list[int]  # what state_bytes() returned
    norms: list[float]
    complaint: str = ""


def _drive(rank: int, world_size: int, optimizer_class: Any, cases: list[Case]) -> list[Outcome]:
    """Inside a rank: every case, with a barrier before each and one at the end."""
    outcomes = []
    for case in cases:
        dist.barrier()
        outcomes.append(_run(rank, optimizer_class, case))
    dist.barrier()
    return outcomes


def _run(rank: int, optimizer_class: Any, case: Case) -> Outcome:
    inner, kwargs = OPTIMIZERS[case.optimizer]
    tensors = case.tensors()
    given = (tensors[i] for i in [*range(len(tensors)), *case.repeated])
    optimizer, outcome = optimizer_class(given, inner, **kwargs), Outcome([], [], [], [])
    for step, gradients in enumerate(case.gradients):
        optimizer.zero_grad()
        if step in case.rates:
            optimizer.param_groups[0]["lr"] = case.rates[step]
        for p, g in zip(tensors, gradients[rank], strict=True):
            p.grad = None if g is None else torch.tensor(g).to(p.dtype)
        if case.clip:
            outcome.norms.append(float(optimizer.clip_grad_norm_(case.clip[step])))
        optimizer.step()
        outcome.parameters.append([p.detach().double().numpy().copy() for p in tensors])
        outcome.held.append(bytes_held(optimizer, besides=tensors))
        outcome.said.append(int(optimizer.state_bytes()))
        same = zip(tensors, gradients[rank], strict=True)
        kept = [p.grad is None if g is None else torch.equal(p.grad, torch.tensor(g).to(p.dtype)) for p, g in same]
        if not all(kept):
            outcome.complaint = "a parameter's .grad was changed"
    return outcome


def _expected(case: Case, world_size: int) -> list[list[np.ndarray]]:
    """The parameters after each step of torch's own optimizer on whole float32 parameters and mean gradients."""
    inner, kwargs = OPTIMIZERS[case.optimizer]
    masters = [nn.Parameter(p.detach().float()) for p in case.tensors()]
    trained = [p for i, p in enumerate(masters) if i not in case.frozen]
    optimizer, after = inner(trained, **kwargs), []
    for step, gradients in enumerate(case.gradients):
        optimizer.param_groups[0]["lr"] = case.rates.get(step, optimizer.param_groups[0]["lr"])
        for i, p in enumerate(masters):
            parts = [np.zeros(p.shape) if mine[i] is None else mine[i].astype(np.float64) for mine in gradients]
            p.grad = None if i in case.frozen else torch.tensor(np.mean(parts, axis=0)).float().reshape(p.shape)
        if case.clip:
            nn.utils.clip_grad_norm_(trained, case.clip[step])
        optimizer.step()
        after.append([p.detach().double().numpy().copy() for p in masters])
    return after


# ---- inputs ----


def _gradients(rng: np.random.Generator, world_size: int, shapes: list[tuple[int, ...]]) -> list[list[np.ndarray]]:
    """What each rank has for each parameter: of one sign in each element.

    Where the ranks' gradients cancelled, Adam would make a long step of whatever rounding left.
    """
    signs = [rng.choice([-1, 1], shape) for shape in shapes]
    return [[np.asarray(s * rng.integers(1, 33, s.shape) / 8, np.float32) for s in signs] for _ in range(world_size)]


def _case(rng, world_size: int, optimizer: str, shapes: list[tuple[int, ...]], steps: int = 4, **more: Any) -> Case:
    gradients = [_gradients(rng, world_size, shapes) for _ in range(steps)]
    parameters = [eighths(rng, shape) for shape in shapes]
    numel = sum(math.prod(shape) for shape in shapes)
    name = f"{world_size} ranks, {optimizer}, {numel} parameters"
    return Case(name, optimizer, parameters, gradients, **more)


def _cases(rng: np.random.Generator, world_size: int) -> list[Case]:
    """All optimizers on sizes that do not divide, tiny ones, and parameters of every kind."""
    usual = [(3, 4), (5,), (), (2, 1)]
    cases = [_case(rng, world_size, name, usual, rates={2: 0.01}) for name in OPTIMIZERS]
    cases += [_case(rng, world_size, "Adam", [(1,)]), _case(rng, world_size, "SGD with momentum", [(2,), (1,)])]
    mixed = _case(rng, world_size, "SGD with momentum", [(3, 3), (4,), (2,), (6,)], frozen=(1,), repeated=(0,))
    mixed.name += ", one frozen, one given twice, one sometimes without a gradient"
    for step, gradients in enumerate(mixed.gradients):
        for rank, mine in enumerate(gradients):
            mine[1] = None
            if step != 1 or rank == 0:
                mine[2] = None
    return [*cases, mixed]


# ---- running ----


def _try(optimizer_class: Any, cases: list[Case], world_size: int) -> list[tuple[Case, list[Outcome], list[list]]]:
    """One launch for all cases: for each case the outcomes by rank, and the messages by rank."""
    results = run_ranks(_drive, world_size, (optimizer_class, cases))
    calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
    if any(len(parts) != len(cases) + 2 for parts in calls):
        fail("barrier was called, which no step needs", "communication", "barrier")
    each = enumerate(cases, start=1)  # part 0 stands before the first case
    return [(case, [mine[c - 1] for mine in results], [parts[c] for parts in calls]) for c, case in each]


def _expect_steps(case: Case, outcomes: list[Outcome], world_size: int, rtol: float = STEP_ERROR) -> None:
    """On every rank, after every step, every parameter is the unsharded optimizer's."""
    for step, expected in enumerate(_expected(case, world_size)):
        got = [outcome.parameters[step] for outcome in outcomes]
        for i, want in enumerate(expected):
            for rank in range(world_size):
                bound = rtol * max(1.0, float(np.max(np.abs(want), initial=0.0)))
                off = np.abs(got[rank][i] - want)
                if not np.all(off <= bound):
                    at = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
                    values = f"is {got[rank][i][at]:.6g}, the unsharded optimizer's {want[at]:.6g}"
                    text = f"after step {step + 1}, on rank {rank}, an element of parameter {i} {values}"
                    flat = [np.concatenate([p.reshape(-1) for p in mine]) for mine in got]
                    fail(text, case.name, [step, *flat])
    for rank, outcome in each_rank(case.name, outcomes, evidence=lambda o: o.complaint):
        rank.expect(not outcome.complaint, outcome.complaint)


def _expect_wire(case: Case, calls: list[list], world_size: int) -> None:
    """A step is one reduce-scatter of the padded float32 vector and one all-gather; clipping adds one number."""
    size, steps = ceil_div(case.numel, world_size), len(case.gradients)
    if case.clip and size <= 2:
        return  # a shard as small as a norm: from outside they look alike
    wanted = {"reduce_scatter": 4 * size * world_size, "all_gather": 4 * size}
    for rank, mine in enumerate(calls):
        kinds = [_kind_of(message, bool(case.clip)) for message in mine]
        got = [(kind, m.bytes) for kind, m in zip(kinds, mine, strict=True)]
        for kind in kinds:
            if kind not in (*wanted, "number"):
                fail(f"rank {rank} called {kind}, which a sharded step does not need", case.name, got)
        for kind, nbytes in wanted.items():
            sizes = [n for k, n in got if k == kind]
            if len(sizes) > steps or (world_size > 1 and len(sizes) < steps):
                text = f"rank {rank} called {kind} {len(sizes)} times in {steps} steps, expected one a step"
                fail(text, case.name, got)
            if any(n != nbytes for n in sizes):
                text = f"rank {rank} put {sizes[0]} bytes into {kind}, expected {nbytes}: the padded vector in float32"
                fail(text, case.name, got)
        if kinds.count("number") > steps:
            text = f"rank {rank} made {kinds.count('number')} small collectives in {steps} steps, one a step is enough"
            fail(text, case.name, got)


def _kind_of(message: Any, clips: bool) -> str:
    """A collective by what it does; with clipping, one of at most a float64 is the norm's."""
    if clips and message.is_collective and message.bytes <= 8:
        return "number"
    return next((kind for kind in ("reduce_scatter", "all_gather") if message.call.startswith(kind)), message.call)


# ---- 3 · ShardedOptimizer ----


@check("08-ex3-step")
def steps_follow_the_unsharded_optimizer(ShardedOptimizer, *, rng):  # noqa: N803
    """After every step, on every rank, the parameters are the unsharded optimizer's, for one all-reduce's bytes."""
    for world_size in WORLD_SIZES:
        tried = _try(ShardedOptimizer, _cases(rng, world_size), world_size)
        for case, outcomes, _ in tried:
            _expect_steps(case, outcomes, world_size)
        for case, _, calls in tried:
            _expect_wire(case, calls, world_size)


@check("08-ex3-step")
def state_is_a_shard(ShardedOptimizer, *, rng):  # noqa: N803
    """After each step a rank holds the master shard and the optimizer's state for it, and says so."""
    for world_size in (3, 4, 1):
        cases = [_case(rng, world_size, name, [(7, 5), (2,)]) for name in OPTIMIZERS]
        for case, outcomes, _ in _try(ShardedOptimizer, cases, world_size):
            want = [4 * KEPT[case.optimizer] * ceil_div(case.numel, world_size)] * len(case.gradients)
            for rank, seen in each_rank(case.name, outcomes, evidence=lambda o: [o.held, o.said]):
                rank.expect_equal(seen.held, want, what="the number of bytes held after each step")
                rank.expect_equal(seen.said, want, what="what state_bytes() says after each step")


def _reduce_twice(rank: int, world_size: int, optimizer_class: Any, gradients: list[np.ndarray]) -> dict:
    p = nn.Parameter(torch.zeros(gradients[0].size))
    optimizer = optimizer_class([p], torch.optim.SGD, lr=1.0)
    p.grad = torch.tensor(gradients[rank])
    dist.barrier()
    first = optimizer.reduced_gradient()
    seen = first.clone().numpy()
    again = optimizer.reduced_gradient()
    dist.barrier()
    same = again is first
    optimizer.step()
    left = [name for name in ("gradient", "master") if _leftover(optimizer, name)]
    optimizer.zero_grad()
    p.grad = 2 * torch.tensor(gradients[rank])
    optimizer.reduced_gradient()
    optimizer.zero_grad()  # what was reduced is void
    p.grad = 4 * torch.tensor(gradients[rank])
    fresh = optimizer.reduced_gradient().clone().numpy()
    return {"seen": seen, "same": same, "left": left, "fresh": fresh, "dtype": str(first.dtype)}


def _leftover(optimizer: Any, name: str) -> bool:
    value = getattr(optimizer, name)
    return value is not None if name == "gradient" else value.grad is not None


@check("08-ex3-step")
def gradient_is_reduced_once(ShardedOptimizer, *, rng):  # noqa: N803
    """reduced_gradient() gives the padded mean's shard, sends once, and is fresh after a step or a zero_grad."""
    for world_size in (2, 3):
        gradients = [eighths(rng, (7,)) for _ in range(world_size)]
        results = run_ranks(_reduce_twice, world_size, (ShardedOptimizer, gradients))
        size = ceil_div(7, world_size)
        padded = np.zeros(size * world_size)
        padded[:7] = np.mean(gradients, axis=0, dtype=np.float64)
        for rank, got in enumerate(results):
            case, want = f"{world_size} ranks, 7 parameters, rank {rank}", padded[rank * size : (rank + 1) * size]
            expect_close(case, got["seen"], want, what="the reduced gradient", rtol=1e-6)
            if got["dtype"] != "torch.float32":
                fail(f"the reduced gradient is {got['dtype']}, expected float32", case, got["dtype"])
            if not got["same"]:
                fail("the second call gave another tensor", case, "another tensor")
            if got["left"]:
                what = {"gradient": "self.gradient", "master": "self.master.grad"}[got["left"][0]]
                fail(f"{what} is still there after the step", case, got["left"])
            expect_close(case, got["fresh"], 4 * want, what="the reduced gradient after zero_grad", rtol=1e-6)
            between = [m.call for m in results.ledger.of(rank).between_barriers()[1]]
            if len(between) != 1:
                fail(f"two calls of reduced_gradient() made {len(between)} collectives", case, between)


@check("08-ex3-step")
def masters_keep_what_bf16_loses(ShardedOptimizer, *, rng):  # noqa: N803
    """bf16 parameters are the float32 masters, rounded, after every step; small updates add up."""
    for world_size in (1, 3):
        shapes = [(3, 4), (5,), (3,)]
        dtypes = ("bfloat16", "float32", "bfloat16")
        cases = [_case(rng, world_size, name, shapes, dtypes=dtypes) for name in ("SGD with momentum", "AdamW")]
        tiny = Case(
            f"{world_size} ranks, 128 updates of 2^-10 to 1.0 in bf16",
            "SGD",
            [np.ones(5, np.float32)],
            [[[np.full(5, -(2.0**-10) / 0.1, np.float32)] for _ in range(world_size)] for _ in range(128)],
            dtypes=("bfloat16",),
        )
        for case, outcomes, calls in _try(ShardedOptimizer, [*cases, tiny], world_size):
            _expect_steps(case, outcomes, world_size, rtol=BF16_ERROR)
            _expect_wire(case, calls, world_size)


# ---- 4 · clipping ----


@check("08-ex4-clip")
def clipping_uses_the_global_norm(ClippingOptimizer, *, rng):  # noqa: N803
    """The norm of the whole mean gradient, equal on all ranks; the step is clipped by it; one more number is sent."""
    for world_size in WORLD_SIZES:
        cases = []
        for shapes in ([(3, 4), (5,)], [(2,)], [(5,), (2, 3), (1,)]):
            for optimizer in ("SGD", "Adam"):
                case = _case(rng, world_size, optimizer, shapes, steps=4, clip=[1.0, math.inf, 0.25, 1e4])
                case.name += ", clipped"
                cases.append(case)
        for case, outcomes, calls in _try(ClippingOptimizer, cases, world_size):
            for step, gradients in enumerate(case.gradients):
                mean = [np.mean(parts, axis=0, dtype=np.float64) for parts in zip(*gradients, strict=True)]
                norm = math.sqrt(sum(float(np.sum(g * g)) for g in mean))
                got = [outcome.norms[step] for outcome in outcomes]
                for rank in range(world_size):
                    if not math.isclose(got[rank], norm, rel_tol=1e-5, abs_tol=1e-7):
                        text = f"the norm on rank {rank} is {got[rank]:.6g}, expected {norm:.6g}"
                        fail(text, case.name, [step, *got])
            _expect_steps(case, outcomes, world_size)
            _expect_wire(case, calls, world_size)


# ---- 5 · state ----


def _save(rank: int, world_size: int, optimizer_class: Any, case: Case, when: int) -> dict:
    """Steps, takes a state after `when` of them, goes on, and looks whether the state stayed as it was."""
    inner, kwargs = OPTIMIZERS[case.optimizer]
    tensors = case.tensors()
    optimizer, state, taken = optimizer_class(tensors, inner, **kwargs), None, None
    for step in range(len(case.gradients) + 1):
        if step == when:
            state = optimizer.state_dict()
            taken = {name: _plain(value) for name, value in state.items()}
        if step < len(case.gradients):
            optimizer.param_groups[0]["lr"] = case.rates.get(step, optimizer.param_groups[0]["lr"])
            _set_gradients(tensors, case, step, rank)
            optimizer.step()
    return {
        "kinds": {name: _kind(value) for name, value in state.items()},
        "state": taken,
        "later": {name: _plain(value) for name, value in state.items()},
        "own": all(v.untyped_storage().nbytes() == v.nbytes for v in state.values() if isinstance(v, torch.Tensor)),
    }


def _set_gradients(tensors: list[torch.Tensor], case: Case, step: int, rank: int) -> None:
    optimizer_gradients = case.gradients[step][rank]
    for p, g in zip(tensors, optimizer_gradients, strict=True):
        p.grad = torch.tensor(g).to(p.dtype)


def _plain(value: Any) -> Any:
    return value.detach().numpy().copy() if isinstance(value, torch.Tensor) else value


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dim()}-D {value.dtype}".replace("torch.", "")
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


@check("08-ex5-state")
def state_is_unpadded_copies(ZeroOptimizer, *, rng):  # noqa: N803
    """Masters and moments without padding, in rank order the whole; plain numbers; nothing that changes later."""
    names = {"SGD": (), "SGD with momentum": ("momentum_buffer",), "Adam": ("exp_avg", "exp_avg_sq", "step")}
    for world_size, shapes in ((1, [(5,)]), (3, [(4,), (3,)]), (5, [(2,), (1,)])):
        for optimizer, inside in names.items():
            for when in (0, 2):
                case = _case(rng, world_size, optimizer, shapes, steps=3, rates={1: 0.03})
                case.name += f", state after {when} steps"
                expected = {"master", "lr", *(inside if when else ())}
                results = run_ranks(_save, world_size, (ZeroOptimizer, case, when))
                _expect_state(case, results, expected, when)


def _expect_state(case: Case, results: list[dict], expected: set[str], when: int) -> None:
    world_size = len(results)
    size = ceil_div(case.numel, world_size)
    for rank, got in enumerate(results):
        if set(got["state"]) != expected:
            text = f"rank {rank}'s state has {sorted(got['state'])}, expected {sorted(expected)}"
            fail(text, case.name, [sorted(mine["state"]) for mine in results])
        for name, kind in got["kinds"].items():
            wanted = "number" if name in ("lr", "step") else "1-D float32"
            if kind != wanted:
                fail(f"{name!r} on rank {rank} is a {kind}, expected a {wanted}", case.name, [name, kind])
        own = max(0, min(size, case.numel - rank * size))
        for name in set(got["state"]) - {"lr", "step"}:
            if len(got["state"][name]) != own:
                lengths = [len(mine["state"][name]) for mine in results]
                text = f"{name!r} on rank {rank} has {len(got['state'][name])} numbers, it owns {own}"
                fail(text, case.name, [name, lengths])
            if not np.array_equal(got["state"][name], got["later"][name]) or not got["own"]:
                fail(f"{name!r} shares its memory with the optimizer", case.name, ["shared", name])
    whole = np.concatenate([got["state"]["master"] for got in results])
    tensors = _expected(case, world_size)[when - 1] if when else [p.astype(np.float64) for p in case.parameters]
    want = np.concatenate([p.reshape(-1) for p in tensors])
    expect_close(case.name, whole, want, what="the masters of all ranks together", rtol=STEP_ERROR)
    rate = case.rates[1] if when == 2 else OPTIMIZERS[case.optimizer][1]["lr"]
    for rank, got in enumerate(results):
        if got["state"]["lr"] != rate:
            fail(f"'lr' on rank {rank} is {got['state']['lr']}, expected {rate}", case.name, got["state"]["lr"])
        if "step" in got["state"] and got["state"]["step"] != when:
            fail(f"'step' on rank {rank} is {got['state']['step']} after {when} steps", case.name, got["state"]["step"])


def _restore(rank: int, world_size: int, optimizer_class: Any, case: Case, when: int, others: int) -> dict:
    """One optimizer runs through; another, with `others` steps behind it, loads its state and goes on with it."""
    inner, kwargs = OPTIMIZERS[case.optimizer]
    whole, other = case.tensors(), case.tensors()
    with torch.no_grad():
        for p in other:
            p += 1
    first, second = (optimizer_class(tensors, inner, **kwargs) for tensors in (whole, other))
    for step in range(others):
        _set_gradients(other, case, step, rank)
        second.step()
    _set_gradients(other, case, 0, rank)
    second.reduced_gradient()  # of gradients that no step will use
    loaded = None
    for step in range(len(case.gradients)):
        if step == when:
            state = first.state_dict()
            before = {name: _plain(value) for name, value in state.items()}
            second.load_state_dict(state)
            loaded = [_plain(p) for p in other]
            at_load = [_plain(p) for p in whole]
        first.param_groups[0]["lr"] = case.rates.get(step, first.param_groups[0]["lr"])
        _set_gradients(whole, case, step, rank)
        first.step()
        if step >= when:
            second.param_groups[0]["lr"] = case.rates.get(step, second.param_groups[0]["lr"])
            _set_gradients(other, case, step, rank)
            second.step()
    same = all(np.array_equal(before[name], _plain(value)) for name, value in state.items())
    ends = [[_plain(p) for p in tensors] for tensors in (whole, other)]
    wrong = _load_wrong(second, state, world_size)
    return {"loaded": loaded, "at_load": at_load, "ends": ends, "state stays": same, "wrong": wrong}


def _load_wrong(optimizer: Any, state: dict, world_size: int) -> str:
    """What a master shard that is one number too long does."""
    dist.barrier()
    bad = {**state, "master": torch.zeros(len(state["master"]) + 1)}
    try:
        optimizer.load_state_dict(bad)
    except ValueError as error:
        return "" if "master" in str(error) else f"raised a ValueError that does not name master: {error}"
    return "raised nothing"


@check("08-ex5-state")
def restored_goes_on_bit_for_bit(ZeroOptimizer, *, rng):  # noqa: N803
    """What loads a state has its parameters at once, and ends with the bytes of what was saved."""
    runs = [(1, "Adam", 2, 0), (2, "Adam", 2, 0), (3, "SGD with momentum", 2, 1), (3, "AdamW", 2, 1), (2, "Adam", 0, 2)]
    for world_size, optimizer, when, others in runs:
        case = _case(rng, world_size, optimizer, [(3, 2), (4,)], steps=5, rates={1: 0.03})
        case.name += f", loaded after {when} steps into an optimizer with {others}"
        results = run_ranks(_restore, world_size, (ZeroOptimizer, case, when, others))
        for rank, got in enumerate(results):
            pairs = [("after loading", got["at_load"], got["loaded"]), ("at the end", *got["ends"])]
            for moment, want, have in pairs:
                if not all(np.array_equal(a, b) for a, b in zip(want, have, strict=True)):
                    flat = [np.concatenate([p.reshape(-1) for p in mine["ends"][1]]) for mine in results]
                    text = f"rank {rank}'s parameters {moment} are not those of the optimizer that was saved"
                    fail(text, case.name, [moment, *flat])
            if not got["state stays"]:
                fail(f"the state that was loaded on rank {rank} has changed", case.name, "state changed")
            if got["wrong"]:
                fail(f"a master that is one number too long {got['wrong']}", case.name, got["wrong"])


# ---- 6 · memory ----


@check("08-ex6-memory")
def memory_follows_the_table(memory_per_rank, *, rng):
    """2 + 2 + 12 bytes, each sharded from its stage on; exact for any size; wrong arguments refused."""
    sizes = [0, 1, 10, int(rng.integers(100, 10**6)), 7 * 10**9, 10**17 + 3]
    for parameters in sizes:
        for world_size in (1, 3, 4, 64):
            shard = ceil_div(parameters, world_size)
            table = [16 * parameters, 4 * parameters + 12 * shard, 2 * parameters + 14 * shard, 16 * shard]
            got = [memory_per_rank(parameters, world_size, stage) for stage in range(4)]
            for stage in range(4):
                if not isinstance(got[stage], (int, np.integer)) or got[stage] != table[stage]:
                    case, shown = f"{parameters} parameters, {world_size} ranks", [str(g) for g in got]
                    fail(f"stage {stage} takes {got[stage]} bytes, expected {table[stage]}", case, shown)
    wrong = [((-1, 2, 1), "parameters"), ((10, 0, 1), "world_size"), ((10, 2, 4), "stage"), ((10, 2, -1), "stage")]
    for arguments, name in wrong:
        expect_raises(f"memory_per_rank{arguments}", memory_per_rank, *arguments, error=ValueError, mentions=name)
