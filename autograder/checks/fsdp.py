"""Lesson 09: sharded units and their wrapper, seen from outside.

The oracle is the plain module in one process: on the whole batch with torch's own optimizer for float32, on each
rank's part with the parameters cast for bf16. Shards are put together here, by the layout that the statement fixes.
What was sent is read from the ledger, cut at barriers; what is alive is counted inside a rank by a dispatch mode that
keeps weak references to the storages of all results, so it sees whatever anybody holds, autograd's graph included.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, expect_close, expect_raises, fail
from autograder.checking.stage import run_ranks

#: For each number of ranks the models, by their places in MODELS: all where most goes wrong, some elsewhere.
PLAN = {3: (0, 1, 2, 3, 4, 5), 1: (3, 1), 5: (4,), 2: (0,), 4: (4,)}
#: Of the largest parameter or gradient, at least 1: float32 through a few layers and steps.
ERROR = 1e-6


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**30))


def _size(numel: int, world_size: int) -> int:
    return -(numel // -world_size)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy that numpy can hold and compare."""
    other = {torch.bfloat16: torch.float32, torch.bool: torch.uint8}.get(tensor.dtype, tensor.dtype)
    return tensor.detach().to(other).clone().numpy()


# ---- models ----


class _Tied(nn.Module):
    """A weight that two layers share, and a frozen vector."""

    def __init__(self, width: int):
        super().__init__()
        self.last = nn.Linear(width, width, bias=False)
        self.first = nn.Linear(width, width)
        self.first.weight = self.last.weight
        self.gain = nn.Parameter(torch.rand(width), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x) * self.gain))


class _Counted(nn.Sequential):
    """Counts its forwards in a buffer."""

    def __init__(self, *layers: nn.Module):
        super().__init__(*layers)
        self.register_buffer("calls", torch.randint(1000, (), dtype=torch.int16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class _Tokens(nn.Module):
    """Integers in; buffers of several dtypes, one of which is not saved and one of which counts the forwards."""

    def __init__(self) -> None:
        super().__init__()
        # With LayerNorm's own ε, four numbers that happen to lie close together make one rounding a hundred.
        self.start = _Counted(nn.Embedding(9, 4), nn.LayerNorm(4, eps=0.1))
        self.head = nn.Linear(4, 3)
        self.register_buffer("scale", torch.rand(3) + 0.5)
        self.register_buffer("offset", torch.rand(3, dtype=torch.float64), persistent=False)
        self.register_buffer("mask", torch.rand(5) < 0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.head(self.start(tokens)) * self.scale + self.offset).float()


class _Gain(nn.Module):
    """A parameter of its own beside a layer, one that the forward does not use, and none that is last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.unused = nn.Parameter(torch.rand(2, 3))
        self.gain = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.gain


def _frozen(module: nn.Module, *names: str) -> nn.Module:
    for name, p in module.named_parameters():
        p.requires_grad_(not (name in names or "all" in names))
    return module


def _build(name: str, seed: int) -> tuple[nn.Module, list[nn.Module]]:
    """A small model and its units."""
    torch.manual_seed(seed)
    if name == "two layers, listed backwards":
        m = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))
        return m, [m[2], m[1], m[0]]
    if name == "the whole model as a unit":
        m = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
        return m, [m]
    if name == "tied and unused parameters":
        m = nn.Sequential(_Gain(), _Tied(4), nn.Linear(4, 3))
        return m, list(m)
    if name == "frozen parameters":
        first, last = _frozen(nn.Linear(4, 5), "bias"), _frozen(nn.Linear(5, 3), "weight")
        m = nn.Sequential(first, nn.Tanh(), _frozen(nn.Linear(5, 5), "all"), nn.Tanh(), last)
        return m, [m[2], m[0], m[4]]
    if name == "fewer elements than ranks":
        m = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 1), nn.Linear(1, 3, bias=False))
        return m, list(m)
    if name == "tokens and buffers":
        m = _Tokens()
        return m, [m.start, m.head]
    raise KeyError(name)


MODELS = (
    "two layers, listed backwards",
    "frozen parameters",
    "tied and unused parameters",
    "tokens and buffers",
    "fewer elements than ranks",
    "the whole model as a unit",
)
OPTIMIZERS: dict[str, Callable] = {
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    # ε so large that a rounding of a gradient near zero stays one of the step.
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-3),
}


def _batch(model: str, seed: int, step: int, rank: int, count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one rank in one step."""
    g = torch.Generator().manual_seed(seed + 1000 * step + rank)
    x = torch.randint(0, 9, (count,), generator=g) if "tokens" in model else torch.randn(count, 4, generator=g)
    return x, torch.randn(count, 3, generator=g)


def _groups(unit: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    params = list(unit.parameters())
    return [p for p in params if p.requires_grad], [p for p in params if not p.requires_grad]


def _flat(tensors: Iterable[torch.Tensor]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *(_numpy(t).reshape(-1) for t in tensors)])


def _padded(vector: np.ndarray, world_size: int) -> np.ndarray:
    full = np.zeros(_size(len(vector), world_size) * world_size, vector.dtype)
    full[: len(vector)] = vector
    return full


# ---- 1 · partition ----


def _partitions() -> dict[str, tuple[nn.Module, list[nn.Module], bool]]:
    """Models and units; whether they fit."""
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), nn.ReLU(), nn.Linear(3, 2))
    tied = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    tied[2].weight = tied[0].weight
    outside = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    outside[1].weight = outside[0].weight
    gain, half = nn.Sequential(_Gain(), nn.ReLU()), _frozen(nn.Linear(2, 2), "weight")
    return {
        "units in another order": (net, [net[2], net[0]], True),
        "a unit without parameters": (net, [net[0], net[1], net[2]], True),
        "the module itself": (net, [net], True),
        "units inside a block": (net, [net[2], net[0][1], net[0][0]], True),
        "a tie inside a unit": (tied, [tied], True),
        "a parameter beside a layer": (gain, [gain[0]], True),
        "frozen parameters": (half, [half], True),
        "a tie to a layer in no unit": (outside, [outside[0]], False),
        "a tie across two units": (tied, [tied[0], tied[2]], False),
        "a frozen layer that nobody listed": (nn.Sequential(net, half), [net], False),
        "a layer that nobody listed": (net, [net[2]], False),
        "a parameter of the model's own": (gain[0], [gain[0].layer], False),
        "a unit inside another": (net, [net[0], net[0][1], net[2]], False),
        "the same unit twice": (net, [net[0], net[2], net[0]], False),
        "a layer of another model": (net, [net[0], net[2], nn.Linear(2, 2)], False),
        "a foreign activation": (net, [net[0], net[2], nn.ReLU()], False),
        "no units": (net, [], False),
        "no units of a model without parameters": (nn.Sequential(nn.ReLU()), [], False),
    }


def _drive_partition(rank: int, world_size: int, partition: Any) -> dict[str, Any]:
    """Lists of places in `module.parameters()`, −1 for something else, or what a ValueError says."""
    observed = {}
    for case, (module, units, _) in _partitions().items():
        place = {id(p): i for i, p in enumerate(module.parameters())}
        try:
            observed[case] = [[place.get(id(p), -1) for p in params] for params in partition(module, list(units))]
        except ValueError as error:
            observed[case] = str(error)
        if place != {id(p): i for i, p in enumerate(module.parameters())}:
            observed[case] = "changed"
    return observed


@check("09-ex1-partition")
def partition_divides_the_model(partition, *, rng):
    """Each unit's parameters, each once, in order; what does not divide the model is a ValueError naming units."""
    got = run_ranks(_drive_partition, 1, (partition,))[0]
    for case, (module, units, fits) in _partitions().items():
        place = {id(p): i for i, p in enumerate(module.parameters())}
        expected = [[place[id(p)] for p in unit.parameters()] for unit in units] if fits else []
        if got[case] == "changed":
            fail("the module's parameters are no longer the same", case, got[case])
        if fits and isinstance(got[case], str):
            fail(f"these units divide the model, but a ValueError was raised: {got[case]}", case, "refused")
        if fits and got[case] != expected:
            text = f"expected the parameters {expected} (places in module.parameters()), got {got[case]}"
            fail(text, case, got[case])
        if not fits and not isinstance(got[case], str):
            fail("these units do not divide the model, but no ValueError was raised", case, got[case])
        if not fits and "units" not in got[case]:
            fail(f"the ValueError should name 'units', it says {got[case]!r}", case, "not named")


# ---- 2 · cut and gather ----

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


def _eighths(rng: np.random.Generator, shape: Any) -> np.ndarray:
    return np.asarray(rng.integers(-128, 128, shape) / 8, np.float32)


def _drive_cut(rank: int, world_size: int, cut: Any, gather: Any, arrays: dict, vectors: dict) -> tuple[dict, dict]:
    pieces, wholes = {}, {}
    dist.barrier()
    for case, parts in arrays.items():
        tensors = [
            nn.Parameter(torch.tensor(a).t().contiguous().t() if "transposed" in case else torch.tensor(a))
            for a in parts
        ]
        shard = cut(tensors)
        kept = all(np.array_equal(_numpy(t), a) for t, a in zip(tensors, parts, strict=True))
        shares = any(_address(shard) == _address(t) for t in tensors if t.numel())
        pieces[case] = {
            "shard": _numpy(shard),
            "kind": f"{str(shard.dtype)[6:]}{', requires a gradient' if shard.requires_grad else ''}",
            "bytes": shard.untyped_storage().nbytes() - 4 * shard.numel(),
            "kept": kept and not shares,
        }
    for case, (whole, dtype) in vectors.items():
        mine = [torch.tensor(_padded(w, world_size).reshape(world_size, -1)[rank] if len(w) else w) for w in whole]
        shards = [nn.Parameter(mine[0]), *mine[1:]]
        dist.barrier()
        got = gather(shards, [len(w) for w in whole], *([getattr(torch, dtype)] if dtype != "float32" else []))
        owners = {_address(t) for t in shards if t.numel()}
        wholes[case] = {
            "whole": [_numpy(t) for t in got],
            "kind": sorted({f"{str(t.dtype)[6:]}{', requires a gradient' if t.requires_grad else ''}" for t in got}),
            "shared": any(t.numel() and _address(t) in owners for t in got),
        }
    dist.barrier()
    return pieces, wholes


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@check("09-ex2-cut")
def cut_and_gather_are_inverse(cut, gather, *, rng):
    """Equal padded pieces in memory of their own; one all-gather, in the dtype asked for, brings whole vectors back."""
    arrays = {case: [_eighths(rng, shape) for shape in shapes] for case, shapes in SHAPES.items()}
    vectors = {case: ([_eighths(rng, n) for n in numels], dtype) for case, (numels, dtype) in VECTORS.items()}
    for world_size in (3, 1, 5):
        results = run_ranks(_drive_cut, world_size, (cut, gather, arrays, vectors))
        for name, parts in arrays.items():
            flat = np.concatenate([np.zeros(0, np.float32), *(a.reshape(-1) for a in parts)])
            case, size = f"{count_of_ranks(world_size)}, {name}", _size(len(flat), world_size)
            for rank, (pieces, _) in enumerate(results):
                got, want = pieces[name], _padded(flat, world_size)[rank * size : (rank + 1) * size]
                expect_close(f"{case}, rank {rank}", got["shard"], want, what="the shard", rtol=0.0)
                if got["kind"] != "float32":
                    fail(f"rank {rank}'s shard is {got['kind']}, expected plain float32", case, got["kind"])
                if got["bytes"] > 0:
                    fail(f"rank {rank}'s shard keeps {got['bytes']} bytes more than its own alive", case, got["bytes"])
                if not got["kept"]:
                    fail("cut changed its tensors or shares their memory", case, "shares")
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for rank, parts in enumerate(calls):
            if any(m.bytes for m in parts[1]):
                fail(f"cut sent something on rank {rank}", count_of_ranks(world_size), [m.call for m in parts[1]])
        for number, (name, (whole, dtype)) in enumerate(vectors.items()):
            case, itemsize = f"{count_of_ranks(world_size)}, {name}", 2 if dtype == "bfloat16" else 4
            for rank, (_, wholes) in enumerate(results):
                got = wholes[name]
                if [len(w) for w in got["whole"]] != [len(w) for w in whole]:
                    lengths = [len(w) for w in got["whole"]]
                    fail(f"rank {rank} gathered vectors of {lengths} numbers", case, lengths)
                for index, want in enumerate(whole):
                    what = f"the whole vector {index} on rank {rank}"
                    expect_close(case, got["whole"][index], want, what=what, rtol=0.0)
                if got["kind"] != [dtype]:
                    fail(f"what rank {rank} gathered is {got['kind']}, expected {dtype}", case, got["kind"])
                if got["shared"]:
                    fail("what was gathered shares its memory with a shard", case, "shared")
                sent = [(m.call, m.bytes) for m in calls[rank][2 + number] if m.bytes]
                limit = sum(_size(len(w), world_size) for w in whole) * itemsize
                _expect_gathers(case, rank, sent, [limit], world_size)


def _expect_gathers(case: str, rank: int, sent: list[tuple[str, int]], allowed: list[int], world_size: int) -> None:
    """Each all-gather must find a place among those allowed, by what this rank contributed; nothing else was sent."""
    if world_size == 1:
        return
    other = sorted({call for call, _ in sent if not call.startswith("all_gather")})
    if other:
        fail(f"rank {rank} called {', '.join(other)}", case, sent)
    places = sorted((limit for limit in allowed if limit), reverse=True)
    contributed = sorted((nbytes for _, nbytes in sent), reverse=True)
    if len(contributed) > len(places):
        fail(f"rank {rank} made {len(contributed)} all-gathers, at most {len(places)} are allowed", case, sent)
    if any(nbytes > limit for nbytes, limit in zip(contributed, places, strict=False)):
        text = f"rank {rank} put {contributed} bytes into its all-gathers, allowed are {places}"
        fail(text, case, sent)


# ---- what is alive ----


class _Live(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, whoever holds them; `peak` is the most after an operation.

    gloo's threads may hold a tensor for a moment after the collective is over. So a count above `limit` is taken
    again for as long as patience lasts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, StorageWeakRef] = {}
        self.peak, self.limit, self.patience = 0, math.inf, 0.6
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                self.note(thing)

    def note(self, tensor: torch.Tensor) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self.seen.setdefault(reference.cdata, reference)

    def now(self) -> int:
        total = 0
        for cdata in list(self.seen):
            storage = torch.UntypedStorage._new_with_weak_ptr(cdata)
            if storage is None:
                del self.seen[cdata]
            else:
                total += storage.nbytes()
        return total

    def settled(self, limit: float) -> int:
        """What is alive, once it is no more than the limit or patience is at its end."""
        total = self.now()
        while total > limit and self.patience > 0:
            started = time.monotonic()
            time.sleep(0.002)
            total = self.now()
            self.patience -= time.monotonic() - started
        return total

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        total = self.now()
        if total > self.peak:
            self.peak = max(self.peak, self.settled(max(self.peak, self.limit)))
        return result


UNITS, WIDTH = 16, 64
UNIT_BYTES = 4 * WIDTH * WIDTH
#: The rank that counts: the others do the same, and faster without.
COUNTING = 1


def _stack(frozen: bool, pairs: bool) -> nn.Sequential:
    """Units of one layer, or of two: then the second one's weight begins in the middle of the flat vector."""

    def pair() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH // 2, WIDTH, bias=False))

    torch.manual_seed(0)
    model = nn.Sequential(*[pair() if pairs else nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(UNITS)])
    if frozen:
        model[1:-1].requires_grad_(False)
    return model


class _Meter:
    """A `_Live` on the rank that counts, and nothing on the others; all in units' bytes.

    allowed: how much more than before may be alive at the peak.
    """

    def __init__(self, rank: int, allowed: float = math.inf):
        gc.collect()
        self.live = _Live() if rank == COUNTING else None
        self.before = self.live.now() if self.live else 0
        if self.live:
            self.live.limit = self.before + allowed * UNIT_BYTES

    def __enter__(self) -> None:
        if self.live:
            self.live.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.live:
            self.live.__exit__(*error)

    def above(self, allowed: float) -> float:
        """How much more than before is alive now; looked at again while it is more than allowed."""
        return self._units(self.live.settled(self.before + allowed * UNIT_BYTES)) if self.live else 0.0

    @property
    def peak(self) -> float:
        """How much more than before was alive after an operation, at the most."""
        return self._units(self.live.peak) if self.live else 0.0

    def _units(self, nbytes: int) -> float:
        return (nbytes - self.before) / UNIT_BYTES


# ---- 3 · the forward ----


def _own_forward() -> nn.Module:
    """A layer whose forward was set on the object, not in its class."""
    layer = nn.Linear(4, 3)
    layer.forward = lambda x: nn.functional.linear(x, layer.weight, layer.bias).tanh()
    return layer


@dataclass
class _UnitCase:
    """A unit by name, called once with inputs that the driver makes."""

    name: str
    seed: int
    dtype: str = "float32"

    def unit(self) -> nn.Module:
        torch.manual_seed(self.seed)
        makers: dict[str, Callable[[], nn.Module]] = {
            "a layer with a frozen weight": lambda: _frozen(nn.Linear(4, 3), "weight"),
            "a tied weight and a frozen vector": lambda: _Tied(4),
            "a layer": lambda: nn.Linear(4, 5),
            "two inputs": lambda: nn.Bilinear(4, 4, 2),
            "tokens and buffers": _Tokens,
            "a frozen layer": lambda: _frozen(nn.Linear(4, 3), "all"),
            "an activation": nn.Tanh,
            "one parameter": lambda: nn.Linear(1, 1, bias=False),
            "a forward of its own": _own_forward,
        }
        return makers[self.name]()

    def inputs(self) -> list[torch.Tensor]:
        g = torch.Generator().manual_seed(self.seed + 1)
        if self.name == "tokens and buffers":
            return [torch.randint(0, 9, (6,), generator=g)]
        width = 1 if self.name == "one parameter" else 4
        count = 2 if self.name == "two inputs" else 1
        return [torch.randn(5, width, generator=g).to(getattr(torch, self.dtype)) for _ in range(count)]


def _unit_cases(rng: np.random.Generator) -> list[_UnitCase]:
    names = ["a tied weight and a frozen vector", "a layer with a frozen weight", "one parameter", "a layer"]
    names += ["two inputs", "tokens and buffers", "a frozen layer", "an activation", "a forward of its own"]
    cases = [_UnitCase(name, _seed(rng)) for name in names]
    return [*cases, _UnitCase("a layer with a frozen weight", _seed(rng), "bfloat16")]


def _drive_unit(rank: int, world_size: int, unit_class: Any, cases: list[_UnitCase]) -> list[dict]:
    observed = []
    for case in cases:
        module, inputs = case.unit(), case.inputs()
        buffers = [b.clone() for b in module.buffers()]
        dtypes = [b.dtype for b in module.buffers()]
        dist.barrier()
        unit = unit_class(module, *([getattr(torch, case.dtype)] if case.dtype != "float32" else []))
        left, shards = len(list(module.parameters())), [unit.shard, unit.frozen_shard]
        kinds = [f"{type(s).__name__} {str(s.dtype)[6:]} {s.requires_grad}" for s in shards]
        kept = all(torch.equal(a, b) for a, b in zip(buffers, module.buffers(), strict=True))
        before = unit.whole
        dist.barrier()
        with torch.no_grad():
            output = module(*inputs)
        after, left_after = unit.whole, len(list(module.parameters()))
        dist.barrier()
        flats = unit.gather()
        again = unit.gather()
        same = len(flats) == 2 and all(a is b for a, b in zip(flats, again, strict=True))
        wholes, dtype = [_numpy(f) for f in flats], {str(f.dtype)[6:] for f in flats}
        remembered = unit.whole is not None
        unit.free()
        dist.barrier()
        with torch.no_grad():
            second = module(*inputs)
        dist.barrier()
        observed.append(
            {
                "shards": [_numpy(s) for s in shards],
                "kinds": kinds,
                "left": [left, left_after],
                "whole": [before is None, after is None, remembered, unit.whole is None],
                "outputs": [_numpy(output), _numpy(second)],
                "output dtype": str(output.dtype)[6:],
                "flats": wholes,
                "dtype": sorted(dtype),
                "same": same,
                "buffers": kept and dtypes == [b.dtype for b in module.buffers()],
            }
        )
    return observed


@check("09-ex3-unit")
def unit_computes_what_it_did(ShardedUnit, *, rng):  # noqa: N803
    """Shards as laid out, the plain unit's output, one all-gather of the shards in the compute dtype, nothing left."""
    for world_size in (3, 1, 5):
        cases = _unit_cases(rng)[: 3 if world_size == 5 else None]
        results = run_ranks(_drive_unit, world_size, (ShardedUnit, cases))
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        for number, unit_case in enumerate(cases):
            case = f"{count_of_ranks(world_size)}, {unit_case.name}, {unit_case.dtype}"
            for rank in range(world_size):
                # Five barriers a case: what comes after each of the first four.
                parts = calls[rank][1 + 5 * number : 5 + 5 * number]
                sent = [[(m.call, m.bytes) for m in part if m.bytes] for part in parts]
                _expect_unit(case, unit_case, rank, world_size, results[rank][number], sent)


def _expect_unit(case: str, unit_case: _UnitCase, rank: int, world_size: int, got: dict, sent: list) -> None:
    module = unit_case.unit()
    vectors = [_flat(group) for group in _groups(module)]
    sizes = [_size(len(v), world_size) for v in vectors]
    for name, shard, vector, size in zip(("shard", "frozen_shard"), got["shards"], vectors, sizes, strict=True):
        want = _padded(vector, world_size)[rank * size : (rank + 1) * size]
        expect_close(case, shard, want, what=f"{name} on rank {rank}", rtol=0.0)
    if got["kinds"][0] != "Parameter float32 True":
        fail(
            f"shard is a {got['kinds'][0]}, expected a float32 nn.Parameter that requires a gradient",
            case,
            got["kinds"],
        )
    if got["kinds"][1] not in ("Tensor float32 False", "Parameter float32 False"):
        fail("frozen_shard should be a float32 tensor that requires no gradient", case, got["kinds"])
    if any(got["left"]):
        when = "was taken over" if got["left"][0] else "has computed"
        fail(f"after the unit {when} it still has {max(got['left'])} parameters in its places", case, got["left"])
    if sent[0]:
        fail(f"the construction sent something on rank {rank}", case, sent[0])
    if unit_case.dtype == "bfloat16":
        for p in module.parameters():
            p.data = p.data.bfloat16()
    with torch.no_grad():
        for index in range(2):
            want = module(*unit_case.inputs())
            what = f"the output of forward {index + 1} on rank {rank}"
            expect_close(case, got["outputs"][index], _numpy(want), what=what, rtol=ERROR)
    if got["output dtype"] != str(want.dtype)[6:]:
        fail(f"the output is {got['output dtype']}, the plain unit's {str(want.dtype)[6:]}", case, got["output dtype"])
    for index, vector in enumerate(vectors):
        want = torch.tensor(vector).to(getattr(torch, unit_case.dtype)).float().numpy()
        expect_close(case, got["flats"][index], want, what=f"gather()[{index}]", rtol=0.0)
    if got["dtype"] != [unit_case.dtype]:
        fail(f"gather() gave {got['dtype']}, expected {unit_case.dtype}", case, got["dtype"])
    limit = sum(sizes) * (2 if unit_case.dtype == "bfloat16" else 4)
    for part in sent[1:]:
        _expect_gathers(case, rank, part, [limit], world_size)
    if not got["same"]:
        fail("a second gather() without a free() between gave other tensors", case, "gathered again")
    states = dict(zip(("before", "after its forward", "", "after free()"), got["whole"], strict=True))
    for when in ("before", "after its forward", "after free()"):
        if not states[when]:
            fail(f"whole should be None {when}", case, ["whole", when])
    if not got["whole"][2]:
        fail("gather() should keep what it gathered in whole", case, ["whole", "gather"])
    if not got["buffers"]:
        fail("the unit's buffers were changed when it was taken over", case, "buffers")


def _drive_forward_memory(rank: int, world_size: int, unit_class: Any) -> list[float]:
    """Units' bytes alive above the shards: after the construction, and after each unit's forward."""
    x, shards = torch.randn(1, WIDTH), UNITS / world_size
    start = _Meter(rank)
    with start:
        model = _stack(frozen=False, pairs=False)
        for layer in model:
            unit_class(layer)
    alive = [start.above(shards + 0.5) - shards]
    meter = _Meter(rank)
    with torch.no_grad(), meter:
        for layer in model:
            x = layer(x)
            alive.append(meter.above(0.5))
    return alive


@check("09-ex3-unit")
def unit_is_freed_after_its_forward(ShardedUnit, *, rng):  # noqa: N803
    """Neither after the construction nor after its forward is anything whole alive."""
    world_size = 2
    alive = run_ranks(_drive_forward_memory, world_size, (ShardedUnit,))[COUNTING]
    case = f"{world_size} ranks, {UNITS} units of S bytes"
    for number, extra in enumerate(alive):
        if extra > 0.5:
            when = f"the forward of layer {number}" if number else "the construction"
            fail(f"after {when}, {extra:.1f} S are alive beyond the shards", case, ["alive", number])


# ---- runs of steps, for units alone and for the wrapper ----


@dataclass
class _Case:
    """Some steps of a model. halves: two backwards a step, over halves of the batch."""

    model: str
    optimizer: str
    seed: int
    steps: int = 3
    halves: bool = False
    dtype: str = "float32"

    def named(self, world_size: int) -> str:
        more = [", two backwards a step"] if self.halves else []
        more += [f", {self.dtype}"] if self.dtype != "float32" else []
        return f"{count_of_ranks(world_size)}, {self.model}, {self.optimizer}{''.join(more)}"


class _Bare:
    """Units without a wrapper, for the exercise before it."""

    def __init__(self, unit_class: Any, module: nn.Module, units: list[nn.Module], *dtype: torch.dtype):
        self.module, self.units = module, [unit_class(unit, *dtype) for unit in units]

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)

    def parameters(self) -> list[nn.Parameter]:
        return [unit.shard for unit in self.units if unit.shard.numel()]


def _drive_steps(rank: int, world_size: int, subject: Any, cases: list[_Case], bare: bool) -> list[dict]:
    """Two barriers around each step; a rank's shards and gradients in each."""
    observed = []
    for case in cases:
        module, units = _build(case.model, case.seed + (0 if bare else 7 * rank))
        dtype = [getattr(torch, case.dtype)] if case.dtype != "float32" else []
        wrapped = _Bare(subject, module, units, *dtype) if bare else subject(module, units, *dtype)
        params = list(wrapped.parameters())
        trained = [p for p in params if p.requires_grad]
        optimizer = OPTIMIZERS[case.optimizer](wrapped.parameters())
        seen: dict[str, Any] = {
            "kinds": [[f"{p.dim()}-D {str(p.dtype)[6:]}", p.numel()] for p in trained],
            "frozen": sum(p.numel() for p in params if not p.requires_grad),
            "gradients": [],
            "shards": [],
        }
        for step in range(case.steps):
            x, y = _batch(case.model, case.seed, step, rank)
            if bare and x.is_floating_point():
                x = x.to(*dtype) if dtype else x
            parts = [(x, y)] if not case.halves else list(zip(x.chunk(2), y.chunk(2), strict=True))
            dist.barrier()
            for part, target in parts:
                loss = (wrapped(part).float() - target).square().mean() / len(parts)
                loss.backward()
            seen["gradients"].append([None if p.grad is None else _numpy(p.grad) for p in trained])
            seen.setdefault("gradient dtypes", [str(p.grad.dtype)[6:] for p in trained if p.grad is not None])
            optimizer.step()
            dist.barrier()
            seen["shards"].append([_numpy(p) for p in trained])
            optimizer.zero_grad()
        x, _ = _batch(case.model, case.seed, case.steps, 0)
        with torch.no_grad():
            out = wrapped(x.to(*dtype) if bare and dtype and x.is_floating_point() else x)
        seen["output"] = _numpy(out)
        seen["left whole"] = [u for u, unit in enumerate(wrapped.units) if unit.whole is not None] if bare else []
        seen["buffers"] = [_numpy(b) for b in module.buffers()]
        seen["buffer dtypes"] = [str(b.dtype)[6:] for b in module.buffers()]
        observed.append(seen)
    return observed


def _follow(case: _Case, world_size: int) -> dict:
    """The plain module in this process, on all ranks' batches together (bf16: on each, cast, and added up)."""
    module, units = _build(case.model, case.seed)
    trained = [p for p in dict.fromkeys(p for unit in units for p in unit.parameters()) if p.requires_grad]
    optimizer, want = OPTIMIZERS[case.optimizer](trained), {"gradients": [], "shards": []}
    for step in range(case.steps):
        batches = [_batch(case.model, case.seed, step, rank) for rank in range(world_size)]
        optimizer.zero_grad()
        if case.dtype == "float32":
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            (module(x) - y).square().mean().backward()
        else:
            _sum_of_casts(module, trained, batches)
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        grads = [[p.grad for p in _groups(unit)[0]] for unit in units]
        want["gradients"].append([_flat(g) for g in grads if g])
        optimizer.step()
        want["shards"].append([_flat(_groups(unit)[0]) for unit in units if _groups(unit)[0]])
    x, _ = _batch(case.model, case.seed, case.steps, 0)
    if case.dtype == "float32":
        with torch.no_grad():
            want["output"] = _numpy(module(x))
    want["frozen"] = [sum(p.numel() for p in _groups(unit)[1]) for unit in units]
    want["trained"] = [sum(p.numel() for p in _groups(unit)[0]) for unit in units]
    want["buffers"], want["module"] = [_numpy(b) for b in module.buffers()], module
    want["buffer dtypes"] = [str(b.dtype)[6:] for b in module.buffers()]
    return want


def _sum_of_casts(module: nn.Module, trained: list[nn.Parameter], batches: list) -> None:
    """p.grad = the mean over ranks of the cast module's gradients, each cast to float32 before they are added."""
    masters, params = {}, list(module.parameters())
    for p in params:
        masters[p], p.data, p.grad = p.data, p.data.bfloat16(), None
    sums = {p: torch.zeros(p.shape) for p in trained}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a rank: more of them round sums in bf16 otherwise
    for x, y in batches:
        out = module(x.bfloat16() if x.is_floating_point() else x)
        (out.float() - y).square().mean().backward()
        for p in trained:
            if p.grad is not None:
                sums[p] += p.grad.float()
            p.grad = None
    torch.set_num_threads(threads)
    for p in params:
        p.data = masters[p]
    for p in trained:
        p.grad = sums[p] / len(batches)


def _expect_run(case: _Case, results: Any, number: int, calls: list, first_part: int) -> None:
    """Shards, gradients and messages of one case on all ranks."""
    world_size = len(results)
    want, name, seen = _follow(case, world_size), case.named(world_size), [mine[number] for mine in results]
    sizes = [_size(n, world_size) for n in want["trained"] if n]
    for rank, got in enumerate(seen):
        kinds = [["1-D float32", size] for size in sizes]
        if got["kinds"] != kinds:
            text = f"rank {rank}'s trainable shards are {got['kinds']}, expected {kinds}"
            fail(text, name, got["kinds"])
        most = sum(_size(n, world_size) for n in want["frozen"])
        if got["frozen"] > most:
            fail(f"parameters() has {got['frozen']} frozen numbers, at most {most}", name, got["frozen"])
    for step in range(case.steps):
        for what in ("gradients", "shards"):
            for u, vector in enumerate(want[what][step]):
                pieces = [got[what][step][u] for got in seen]
                if any(piece is None for piece in pieces):
                    fail(f"a trainable shard has no .grad after backward() in step {step + 1}", name, ["none", u])
                whole, full = np.concatenate(pieces), _padded(vector, world_size)
                off = np.abs(whole - full)
                bound = ERROR * max(1.0, float(np.max(np.abs(full), initial=0.0)))
                if not np.all(off <= bound):
                    at = int(np.nanargmax(np.where(np.isnan(off), np.inf, off)))
                    thing = "gradient of element" if what == "gradients" else "element"
                    text = f"in step {step + 1}, on rank {at // len(pieces[0])}, the {thing} {at % len(pieces[0])}"
                    text += f" of trainable shard {u} is {whole[at]:.6g}, expected {full[at]:.6g}"
                    text += " (padding)" if at >= len(vector) else ""
                    fail(text, name, [what, step, *pieces])
        for rank in range(world_size):
            _expect_wire(case, name, rank, calls[rank][first_part + 2 * step], want, world_size)
    for rank, got in enumerate(seen):
        if set(got["gradient dtypes"]) != {"float32"}:
            fail(f"the gradients are {got['gradient dtypes']}, expected float32", name, got["gradient dtypes"])
        if got["left whole"]:
            fail(f"after a forward under no_grad, unit {got['left whole'][0]} is whole", name, got["left whole"])
        if "output" in want:
            what = f"the output under no_grad on rank {rank}"
            expect_close(name, got["output"], want["output"], what=what, rtol=5 * ERROR, atol=ERROR)


def _expect_wire(case: _Case, name: str, rank: int, part: Iterable, want: dict, world_size: int) -> None:
    """Two all-gathers and one reduce-scatter of each unit, for each backward."""
    if world_size == 1:
        return
    sent = [(m.call, m.bytes, m.dtype) for m in part if m.bytes]
    times, itemsize = 2 if case.halves else 1, 2 if case.dtype == "bfloat16" else 4
    reduced = sorted(nbytes for call, nbytes, _ in sent if call.startswith("reduce_scatter"))
    rest = [(call, nbytes) for call, nbytes, _ in sent if not call.startswith("reduce_scatter")]
    expected = sorted(4 * world_size * _size(n, world_size) for n in want["trained"] if n for _ in range(times))
    if reduced != expected:
        text = f"rank {rank} put {reduced} bytes into reduce-scatters, expected {expected}"
        fail(text, name, [list(map(str, entry)) for entry in sent])
    wrong = {dtype for call, _, dtype in sent if call.startswith("reduce_scatter")} - {"torch.float32"}
    if wrong:
        fail(f"gradients were reduced as {wrong.pop()}, expected float32", name, [list(map(str, e)) for e in sent])
    pairs = zip(want["trained"], want["frozen"], strict=True)
    units = [(_size(p, world_size) + _size(f, world_size)) * itemsize for p, f in pairs]
    _expect_gathers(name, rank, rest, 2 * times * units, world_size)


def _expect_all(subject: Any, cases: list[_Case], world_size: int, bare: bool) -> list[list[dict]]:
    results = run_ranks(_drive_steps, world_size, (subject, cases, bare))
    calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
    part = 1
    for number, case in enumerate(cases):
        _expect_run(case, results, number, calls, part)
        part += 2 * case.steps
    return results


# ---- 4 · the backward ----


@check("09-ex4-backward")
def shards_get_the_mean_gradient(TrainableUnit, *, rng):  # noqa: N803
    """Mean gradients in the shards, also in bf16, with frozen, tied and unused parameters; the collectives allowed."""
    for world_size, models in PLAN.items():
        cases = [_Case(MODELS[k], "SGD with momentum", _seed(rng), steps=2) for k in models]
        cases[0].halves = True
        if world_size == 3:
            cases += [_Case(MODELS[k], "SGD with momentum", _seed(rng), 1, dtype="bfloat16") for k in (0, 2)]
        _expect_all(TrainableUnit, cases, world_size, bare=True)


def _drive_backward_memory(rank: int, world_size: int, unit_class: Any) -> list[list[float]]:
    """For all units trainable, all but two frozen, pairs: alive at the peak, after forward, after backward."""
    observed = []
    for frozen, trained, pairs in ((False, UNITS, False), (True, 2, False), (False, UNITS, True)):
        model, x, gradients = _stack(frozen, pairs), torch.randn(1, WIDTH), trained / world_size
        units = [unit_class(layer) for layer in model]
        meter = _Meter(rank, gradients + 5)
        with meter:
            loss = model(x).square().mean()
            between = meter.above(2)
            loss.backward()
            del loss
            after = meter.above(gradients + 0.9)
        observed.append([meter.peak, between, after])
        del units, model
    return observed


@check("09-ex4-backward")
def backward_frees_what_it_gathers(TrainableUnit, *, rng):  # noqa: N803
    """Nothing whole between a unit's forward and backward, nor after; at most 5 S above the gradient shards."""
    world_size = 2
    got = run_ranks(_drive_backward_memory, world_size, (TrainableUnit,))[COUNTING]
    cases = ("units", "units, 14 frozen", "units of two layers,"), (UNITS, 2, UNITS)
    for what, trained, (peak, between, after) in zip(*cases, got, strict=True):
        case, gradients = f"{world_size} ranks, {UNITS} {what} of S bytes", trained / world_size
        # Which bounds are broken, and not by how much: a thread may hold one tensor for longer. After a peak that is
        # too high no patience is left to wait for that thread, so `after` says nothing then.
        evidence = [what, peak > gradients + 5, between > 2, peak <= gradients + 5 and after > gradients + 0.9]
        if peak > gradients + 5:
            text = f"live bytes peak at {peak:.1f} S above those before, allowed are {gradients + 5:.1f} S"
            fail(text, case, evidence)
        if between > 2:
            fail(f"between forward and backward {between:.1f} S more are alive than before", case, evidence)
        if after > gradients + 0.9:
            extra = after - gradients
            fail(f"after the backward {extra:.1f} S more are alive than the gradient shards", case, evidence)


def _noisy(seed: int) -> tuple[nn.Module, list[nn.Module]]:
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5))
    m = nn.Sequential(first, nn.Dropout(0.3), nn.Linear(5, 3))
    return m, [first, m[2]]


def _two_inputs(seed: int, rank: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return _frozen(nn.Bilinear(4, 4, 3), "all"), _batch("", seed, 0, rank)[0].requires_grad_()


def _drive_noisy(rank: int, world_size: int, unit_class: Any, seed: int) -> dict:
    module, units = _noisy(seed)
    units = [unit_class(unit) for unit in units]
    x, y = _batch("", seed, 0, rank, count=8)
    torch.manual_seed(seed + rank)
    (module(x) - y).square().mean().backward()
    frozen, leaf = _two_inputs(seed, rank)
    unit_class(frozen)
    frozen(leaf, leaf * 2).square().sum().backward()
    return {
        "gradients": [_numpy(unit.shard.grad) for unit in units],
        "buffers": [_numpy(b) for b in module.buffers()],
        "input": _numpy(leaf.grad),
    }


@check("09-ex4-backward")
def one_forward_is_seen(TrainableUnit, *, rng):  # noqa: N803
    """Dropout's masks are those of the forward, BatchNorm counts once, and inputs get their own rank's gradient."""
    world_size, seed = 2, _seed(rng)
    results = run_ranks(_drive_noisy, world_size, (TrainableUnit, seed))
    total: list[np.ndarray] = []
    case = f"{count_of_ranks(world_size)}, dropout and BatchNorm"
    for rank in range(world_size):
        module, units = _noisy(seed)
        x, y = _batch("", seed, 0, rank, count=8)
        torch.manual_seed(seed + rank)
        (module(x) - y).square().mean().backward()
        grads = [_flat(p.grad for p in unit.parameters()) for unit in units]
        total = [a + b for a, b in zip(total, grads, strict=True)] if total else grads
        for index, buffer in enumerate(module.buffers()):
            what = f"a BatchNorm buffer on rank {rank}"
            expect_close(case, results[rank]["buffers"][index], _numpy(buffer), what=what, rtol=1e-5)
    for u, summed in enumerate(total):
        whole = np.concatenate([got["gradients"][u] for got in results])
        what = f"the gradient of unit {u}"
        expect_close(case, whole, _padded(summed / world_size, world_size), what=what, rtol=1e-5)
    for rank, got in enumerate(results):
        module, leaf = _two_inputs(seed, rank)
        module(leaf, leaf * 2).square().sum().backward()
        case = f"{count_of_ranks(world_size)}, a frozen unit of two inputs"
        expect_close(case, got["input"], _numpy(leaf.grad), what=f"the gradient of rank {rank}'s input", rtol=1e-5)


# ---- 5 · costs ----


@check("09-ex5-costs")
def costs_follow_the_formulas(memory_bytes, wire_bytes, *, rng):
    """Exact integers for any units, any number of ranks, any dtype on the wire; wrong arguments refused."""
    lists = [[], [1], [10, 4], [0, 7, 7], [int(n) for n in rng.integers(1, 10**6, 9)], [10**17 + 3, 10**17 - 5, 8]]
    for numels in lists:
        for world_size in (3, 1, 4, 64):
            case = f"units of {numels} on {count_of_ranks(world_size)}"
            sizes = [_size(n, world_size) for n in numels]
            want = [12 * sum(sizes), 16 * sum(sizes) + 8 * max(numels, default=0)]
            got = list(memory_bytes(list(numels), world_size))
            if got != want or not all(isinstance(g, (int, np.integer)) for g in got):
                fail(f"memory_bytes gave {got}, expected {want}", case, [str(g) for g in got])
            for itemsize in (4, 2):
                sent = (world_size - 1) * sum(sizes) * (2 * itemsize + 4)
                got = wire_bytes(list(numels), world_size, *([] if itemsize == 4 else [itemsize]))
                if got != sent or not isinstance(got, (int, np.integer)):
                    fail(f"wire_bytes with itemsize {itemsize} gave {got}, expected {sent}", case, [itemsize, str(got)])
    for function in (memory_bytes, wire_bytes):
        name = "memory_bytes" if function is memory_bytes else "wire_bytes"
        for arguments, what in ((([3], 0), "world_size"), (([3, -1], 2), "numels")):
            expect_raises(f"{name}{arguments}", function, *arguments, error=ValueError, mentions=what)
    expect_raises("wire_bytes([3], 2, 0)", wire_bytes, [3], 2, 0, error=ValueError, mentions="itemsize")


# ---- 6 · the wrapper ----


def _drive_refusals(rank: int, world_size: int, wrapper: Any) -> dict[str, Any]:
    observed = {}
    torch.manual_seed(rank)
    for case, (module, units, fits) in _partitions().items():
        if fits:
            continue
        places = [(sub, name, p) for sub in module.modules() for name, p in sub._parameters.items()]
        before = [_numpy(p) for p in module.parameters()]
        try:
            wrapper(module, list(units))
            observed[case] = None
        except ValueError as error:
            observed[case] = str(error)
        intact = all(sub._parameters.get(name) is p for sub, name, p in places)
        after = [_numpy(p) for p in module.parameters()]
        if not intact or not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            observed[case] = "changed" if observed[case] is not None else None
    return observed


@check("09-ex6-fsdp")
def wrapper_refuses_what_is_no_partition(FullyShardedDataParallel, *, rng):  # noqa: N803
    """Units that do not divide the module are a ValueError that names them, on every rank, before anything happens."""
    results = run_ranks(_drive_refusals, 2, (FullyShardedDataParallel,))
    for rank, observed in enumerate(results):
        for case, said in observed.items():
            if said is None:
                fail(f"rank {rank} raised no ValueError", case, "nothing raised")
            if said == "changed":
                fail("the module was changed before the ValueError", case, said)
            if "units" not in said:
                fail(f"the ValueError should name 'units', it says {said!r}", case, "not named")
    if len(results.ledger):
        fail("something was sent before the ValueError", "2 ranks", [m.call for m in results.ledger.of(0)])


@check("09-ex6-fsdp")
def steps_follow_one_process(FullyShardedDataParallel, *, rng):  # noqa: N803
    """After every step the shards are one process's parameters, cut; two all-gathers, one reduce-scatter a unit."""
    for world_size, models in PLAN.items():
        cases = [_Case(MODELS[k], "SGD with momentum", _seed(rng)) for k in models]
        cases[-1].halves = True
        cases += [_Case(MODELS[k], "Adam", _seed(rng)) for k in models[:2]]
        _expect_all(FullyShardedDataParallel, cases, world_size, bare=False)


@check("09-ex6-fsdp")
def compute_dtype_halves_the_bytes(FullyShardedDataParallel, *, rng):  # noqa: N803
    """bf16 on the wire and in the layers; float32 shards and gradients, which are the float32 sum of bf16 gradients."""
    for world_size in (3, 1):
        cases = [_Case(m, "SGD with momentum", _seed(rng), 1, dtype="bfloat16") for m in MODELS]
        _expect_all(FullyShardedDataParallel, cases, world_size, bare=False)


class _Noting(nn.Module):
    """Remembers the dtypes of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen = [str(t.dtype)[6:] for t in (x, tokens, y)]
        return self.layer((x + y).to(torch.bfloat16))


def _drive_inputs(rank: int, world_size: int, wrapper: Any) -> list[str]:
    module = _Noting()
    wrapper(module, [module.layer], torch.bfloat16)(torch.ones(1, 2), torch.zeros(3, dtype=torch.int64), torch.ones(2))
    return module.seen


@check("09-ex6-fsdp")
def floating_inputs_are_cast(FullyShardedDataParallel, *, rng):  # noqa: N803
    """All floating inputs reach the module in the compute dtype, the others in their own."""
    got, expected = run_ranks(_drive_inputs, 1, (FullyShardedDataParallel,))[0], ["bfloat16", "int64", "bfloat16"]
    if got != expected:
        case = "compute_dtype=torch.bfloat16, inputs float32, int64, float32"
        fail(f"the module was given inputs of {got}, expected {expected}", case, got)


def _drive_state(rank: int, world_size: int, wrapper: Any, cases: list[_Case]) -> list[dict]:
    observed = []
    for case in cases:
        module, units = _build(case.model, case.seed + 7 * rank)
        dtype = [getattr(torch, case.dtype)] if case.dtype != "float32" else []
        wrapped = wrapper(module, units, *dtype)
        started = [[_numpy(b), str(b.dtype)[6:]] for b in module.buffers()]
        optimizer = OPTIMIZERS[case.optimizer](wrapped.parameters())
        states, taken = [], {}
        for step in range(2):
            x, y = _batch(case.model, case.seed, step, rank)
            (wrapped(x).float() - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            states.append(wrapped.full_state_dict())
            taken = taken or {name: _numpy(t) for name, t in states[0].items()}
        first = states[0]
        plain, loads = _build(case.model, 0)[0], "loaded"
        try:
            plain.load_state_dict(first, strict=True) if rank == 0 else None
        except RuntimeError as error:
            loads = str(error)
        wrapped.eval()
        modes = [m.training for m in module.modules()]
        wrapped.train()
        own = {n: t.untyped_storage().nbytes() == t.nbytes and not t.requires_grad for n, t in first.items()}
        memory = {_address(t): n for n, t in first.items() if t.numel()}
        live = {_address(t) for t in [*module.buffers(), *wrapped.parameters()]}
        shared = [n for n, fine in own.items() if not fine] + [memory[a] for a in live & set(memory)]
        observed.append(
            {
                "states": [{n: _numpy(t) for n, t in s.items()} for s in states],
                "taken": taken,
                "dtypes": {n: str(t.dtype)[6:] for n, t in first.items()},
                "shared": sorted(shared),
                "loads": loads,
                "started": started,
                "modes": any(modes) or not module.training,
            }
        )
    torch.manual_seed(7)
    pair, inputs = nn.Bilinear(2, 3, 2), (torch.ones(1, 2), torch.arange(3.0).view(1, 3))
    expected = _numpy(pair(*inputs))
    observed[0]["pair"] = [expected, _numpy(wrapper(pair, [pair])(*inputs))]
    return observed


@check("09-ex6-fsdp")
def full_state_is_the_plain_modules(FullyShardedDataParallel, *, rng):  # noqa: N803
    """Rank 0's state has the plain module's names and values, fresh and whole; buffers started as rank 0's."""
    for world_size in (3, 1):
        cases = [_Case(model, "SGD with momentum", _seed(rng), 2) for model in MODELS[:4]]
        cases.append(_Case(MODELS[0], "SGD with momentum", _seed(rng), 2, dtype="bfloat16"))
        results = run_ranks(_drive_state, world_size, (FullyShardedDataParallel, cases))
        for number, case in enumerate(cases):
            _expect_state(case, case.named(world_size), [mine[number] for mine in results], world_size)
        want, got = results[0][0]["pair"]
        expect_close(f"{count_of_ranks(world_size)}, a module of two inputs", got, want, what="the output", rtol=1e-5)


def _expect_state(case: _Case, name: str, seen: list[dict], world_size: int) -> None:
    fresh = _build(case.model, case.seed)[0]
    for rank, got in enumerate(seen):
        for buffer, (values, dtype) in zip(fresh.buffers(), got["started"], strict=True):
            if dtype != str(buffer.dtype)[6:]:
                fail(f"a {str(buffer.dtype)[6:]} buffer is {dtype} on rank {rank}", name, [dtype])
            if not np.array_equal(values, _numpy(buffer)):
                text = f"a {dtype} buffer on rank {rank} did not start as rank 0's"
                fail(text, name, ["buffer", *(mine["started"][0][0] for mine in seen)])
        if rank and got["states"] != [{}, {}]:
            fail(f"rank {rank} got a state with {len(got['states'][0])} entries, expected {{}}", name, "not empty")
        if got["modes"]:
            fail("eval() and train() of the wrapper do not reach the module", name, "modes")
    got, reference = seen[0], _follow(case, world_size)["module"]
    plain = reference.state_dict()
    if set(got["states"][1]) != set(plain):
        missing, more = sorted(set(plain) - set(got["states"][1])), sorted(set(got["states"][1]) - set(plain))
        fail(f"the state lacks {missing} and has {more} that a plain module has not", name, [missing, more])
    for key, tensor in plain.items():
        if got["dtypes"][key] != str(tensor.dtype)[6:]:
            fail(f"{key} is {got['dtypes'][key]}, expected {str(tensor.dtype)[6:]}", name, [key, got["dtypes"][key]])
        want, have = _numpy(tensor), got["states"][1][key]
        if case.dtype != "float32":
            # Two steps of bf16 can round apart; values that are all bf16 numbers did not come from the shards.
            rounded = have.size > 6 and np.array_equal(torch.tensor(have).bfloat16().float().numpy(), have)
            if rounded or not np.allclose(have, want, atol=0.02):
                fail(f"{key} is not the float32 parameter of the shards", name, [key, bool(rounded)])
        elif "calls" in key:
            if int(have) != int(fresh.start.calls) + 2:
                fail(f"the buffer {key} is {int(have)}, expected {int(fresh.start.calls) + 2}", name, int(have))
        else:
            expect_close(name, have, want, what=key, rtol=5 * ERROR, atol=ERROR)
    if got["shared"]:
        fail(f"{got['shared'][0]} is not a tensor of its own of its own size", name, got["shared"])
    for key in plain:
        if not np.array_equal(got["taken"][key], got["states"][0][key]):
            fail(f"{key} of a state that was taken changed with a later step", name, ["changed", key])
    if got["loads"] != "loaded":
        fail(f"a plain module does not load the state: {got['loads']}", name, "not loaded")


def _drive_memory(rank: int, world_size: int, wrapper: Any) -> list[list[float]]:
    """For all units trainable, and for all but two frozen: alive between steps, at the peak, after a step."""
    observed = []
    for frozen, trained in ((False, UNITS), (True, 2)):
        start, x = _Meter(rank), torch.randn(1, WIDTH)
        model = _stack(frozen, pairs=True)
        wrapped = wrapper(model, list(model))
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
        for step in range(2):
            gc.collect()
            meter = _Meter(rank, trained / world_size + 5)
            if meter.live:
                most = start.before + _held(trained, world_size) * UNIT_BYTES
                held = (meter.live.settled(most) - start.before) / UNIT_BYTES
            with meter if step else nullcontext():
                wrapped(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        observed.append([held if meter.live else 0.0, meter.peak, meter.above(2)])
        del wrapped, optimizer, model
    return observed


def _held(trained: int, world_size: int) -> float:
    """Units' bytes that may be alive between steps: shards, the momentum of those trained, and 2 S."""
    return (UNITS + trained) / world_size + 2


@check("09-ex6-fsdp")
def memory_stays_within_a_unit(FullyShardedDataParallel, *, rng):  # noqa: N803
    """Between steps only shards; in a step at most the gradient shards and 5 S more."""
    world_size = 2
    got = run_ranks(_drive_memory, world_size, (FullyShardedDataParallel,))[COUNTING]
    for what, trained, (held, peak, after) in zip(("units", "units, 14 frozen"), (UNITS, 2), got, strict=True):
        case, allowed = f"{world_size} ranks, {UNITS} {what} of S bytes", trained / world_size + 5
        evidence = [what, held > _held(trained, world_size), peak > allowed, peak <= allowed and after > 2]
        if held > _held(trained, world_size):
            text = f"{held:.1f} S are alive between steps, at most {_held(trained, world_size):.1f} S for shards, "
            fail(text + "momentum and 2 S besides", case, evidence)
        if peak > allowed:
            text = f"live bytes peak at {peak:.1f} S above those before the step, allowed are {allowed:.1f} S"
            fail(text, case, evidence)
        if after > 2:
            fail(f"after a step {after:.1f} S more are alive than before it", case, evidence)
