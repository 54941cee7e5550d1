"""Exercise 6: floats of few bits, and gradients that are added up in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, expect_close, fail
from autograder.checking.stage import call_inside, run_ranks
from autograder.checks.memory.layers import bits

FORMATS = "10-ex6-few-bits"

#: name → (exponent bits, mantissa bits, finite, torch's dtype).
_TORCH = {
    "float16": (5, 10, False, torch.float16),
    "bfloat16": (8, 7, False, torch.bfloat16),
    "float8_e5m2": (5, 2, False, torch.float8_e5m2),
    "float8_e4m3fn": (4, 3, True, torch.float8_e4m3fn),
}


def _numbers(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """float32 numbers, by what is special about them."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = np.unique(halves[np.isfinite(halves)])
    between = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
    bf16 = (rng.integers(0, 2**16, 4000).astype(np.uint32) << 16).view(np.float32)
    bf16 = bf16[np.isfinite(bf16) & (np.abs(bf16) < 1e38)]
    ties = (bf16.view(np.uint32) + np.uint32(1 << 15)).view(np.float32)
    scale = np.exp2(rng.uniform(-140, 127, 20000)).astype(np.float32)
    f8 = np.arange(256, dtype=np.uint8)
    eights = [torch.from_numpy(f8).view(d).float().numpy() for d in (torch.float8_e4m3fn, torch.float8_e5m2)]
    grid = [np.unique(e[np.isfinite(e)]) for e in eights]
    middles = [(e[:-1] + e[1:]) / 2 for e in grid]
    return {
        "zeros": np.array([0.0, -0.0], np.float32),
        "not a number": np.array([np.nan, -np.nan], np.float32),
        "numbers of the format": np.concatenate([halves, bf16, *grid]).astype(np.float32),
        "halfway between two": np.concatenate([between, ties, *middles]).astype(np.float32),
        "tiny numbers": np.float32([1e-45, -1e-45, 2e-8, 2.9e-8, 3e-8, -6e-8, 7e-6, 8e-6, 1e-3, 2e-3, 1e-39, 5e-41]),
        "random numbers": scale * rng.choice(np.float32([-1, 1]), len(scale)),
        "near the largest": np.float32(
            [65504, 65519.99, 65520, -65520, 57344, 61439, 61440, 448, 463.9, 464, 465, 479, 480, -1e9, 3.39e38, 3.4e38]
        ),
        "infinities": np.array([np.inf, -np.inf], np.float32),
    }


def _round(round_to: Any, numbers: dict[str, np.ndarray], how: tuple) -> dict[str, Any]:
    """Where the submission runs: what it makes of the numbers."""
    seen = {}
    for name, values in numbers.items():
        x = torch.from_numpy(values.copy())
        result = round_to(x, *how)
        kind = str(getattr(result, "dtype", type(result).__name__)).removeprefix("torch.")
        unchanged = np.array_equal(x.numpy(), values, equal_nan=True)
        seen[name] = {"kind": kind, "unchanged": unchanged}
        seen[name]["values"] = result.detach().numpy().copy() if kind == "float32" else None
    return seen


def _expect_rounded(case: str, seen: dict, numbers: dict, expected: dict) -> None:
    same = {}
    for name, want in expected.items():
        got = seen[name]["values"]
        if seen[name]["kind"] != "float32" or got.shape != want.shape:
            fail(
                f"round_to should return float32 in the shape of x, got {seen[name]['kind']}", case, seen[name]["kind"]
            )
        equal = np.equal(got, want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
        same[name] = equal
    evidence = [case, [int(np.sum(~equal)) for equal in same.values()]]
    for name, equal in same.items():
        if not seen[name]["unchanged"]:
            fail("x was changed in place: work on a copy", f"{case}, {name}", evidence)
        if not equal.all():
            at = int(np.argmin(equal))
            text = f"{numbers[name][at]!r} becomes {seen[name]['values'][at]!r}, expected {expected[name][at]!r}"
            fail(text.replace("np.float32(", "").replace(")", ""), f"{case}, {name}", evidence)


@check(FORMATS, points=1.5)
def rounding_is_torchs(round_to, *, rng):
    """`round_to` gives what torch's casts to float16, bfloat16, float8_e5m2 and float8_e4m3fn give, bit for bit."""
    numbers = _numbers(rng)
    for name, (exponent, mantissa, finite, dtype) in _TORCH.items():
        seen = call_inside(_round, round_to, numbers, (exponent, mantissa, finite))
        expected = {kind: torch.from_numpy(values).to(dtype).float().numpy() for kind, values in numbers.items()}
        _expect_rounded(name, seen, numbers, expected)


@check(FORMATS, points=0.25)
def other_formats_round_as_well(round_to, *, rng):
    """Formats that torch does not have follow the same rules: 8 and 10 bits (TF32), 3 and 2, 2 and 1, finite or not."""
    numbers = {
        name: values for name, values in _numbers(rng).items() if name in ("zeros", "infinities", "random numbers")
    }
    numbers["small numbers"] = (rng.integers(-4000, 4001, 4000) / 128).astype(np.float32)
    for exponent, mantissa, finite in ((8, 10, False), (3, 2, False), (3, 2, True), (2, 1, True), (4, 3, False)):
        seen = call_inside(_round, round_to, numbers, (exponent, mantissa, finite))
        expected = {kind: _nearest(values, exponent, mantissa, finite) for kind, values in numbers.items()}
        case = f"{exponent} exponent bits, {mantissa} mantissa bits{', finite' if finite else ''}"
        _expect_rounded(case, seen, numbers, expected)


def _nearest(values: np.ndarray, exponent: int, mantissa: int, finite: bool) -> np.ndarray:
    """The nearest number of a format, found in the list of all its numbers; of two equally near ones the even one."""
    bias = 2 ** (exponent - 1) - 1
    patterns = np.arange(2 ** (exponent + mantissa))
    powers, fractions = patterns >> mantissa, patterns & (2**mantissa - 1)
    with np.errstate(over="ignore"):
        normal = np.ldexp(1 + fractions / 2**mantissa, powers - bias)
        table = np.where(powers == 0, np.ldexp(fractions / 2**mantissa, np.int64(1 - bias)), normal)
    # Above the largest there is one more number, which stands for overflow.
    count = len(table) - 1 if finite else int(np.sum(powers < 2**exponent - 1)) + 1
    largest, table = (table[count - 1], table[:count])
    size = np.abs(values.astype(np.float64))
    upper = np.clip(np.searchsorted(table, size), 1, count - 1)
    down, up = size - table[upper - 1], table[upper] - size
    nearest = np.where((down < up) | ((down == up) & (upper % 2 == 1)), upper - 1, upper)
    result = table[nearest]
    if not finite:
        result = np.where(nearest == count - 1, np.inf, result)
    else:
        result = np.minimum(result, largest)
    return np.copysign(np.where(np.isnan(values), np.nan, result), values).astype(np.float32)


class _Dtypes(TorchDispatchMode):
    """The dtypes that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found |= {str(t.dtype)[6:] for t in tree_leaves(result) if isinstance(t, torch.Tensor)}
        return result


def _dtypes(round_to: Any, x: torch.Tensor) -> tuple[list[str], list]:
    """Where the submission runs: the dtypes that were made, and x rounded to each format."""
    seen = _Dtypes()
    with seen:
        rounded = [round_to(x.clone(), *how) for *how, _ in _TORCH.values()]
    return sorted(seen.found), [None if y is None else y.numpy().copy() for y in rounded]


@check(FORMATS, veto=True)
def no_cast_does_the_work(round_to, *, rng):
    """`round_to` makes no tensor of a floating type of 16 or 8 bits."""
    x = torch.from_numpy(rng.standard_normal(99)).float()
    names, rounded = call_inside(_dtypes, round_to, x)
    found = [name for name in names if name.startswith(("float16", "bfloat16", "float8", "half"))]
    if found:
        fail(f"round_to casts to {', '.join(found)}: compute the rounding", "dtypes", found)
    for (name, (*_, dtype)), got in zip(_TORCH.items(), rounded, strict=True):
        expect_close(name, got, x.to(dtype).float().numpy(), what="what round_to returns", rtol=0.0)


# ---- gradients that are added up ----

#: How many backwards are added up: their factors of 1, 2 and 4 sum to 10.
STEPS = 5


def _main_grads(rank: int, world_size: int, main_grads: Any, values: list[np.ndarray], steps: int) -> dict[str, Any]:
    """Inside a rank: backwards over three parameters, of which one is frozen and one is used in some steps only."""
    import torch.distributed as dist

    params = [torch.nn.Parameter(torch.from_numpy(v[rank]).to(torch.bfloat16)) for v in values]
    params[1].requires_grad_(False)
    kept = main_grads([*params, params[0]])
    trained = [params[0], params[2]]
    kinds = [[str(g.dtype)[6:], list(g.shape), bool((g == 0).all())] for g in kept.grads]
    left = []
    for step in range(steps):
        loss = (params[0] * params[1].sum()).float().sum() * 2.0 ** (step % 3)
        if step % 2 == 0 and rank == 0:
            loss = loss + (params[2] * params[2].detach()).float().sum()
        loss.backward()
        left.append(all(p.grad is None for p in trained))
    own = [g.detach().double().numpy().copy() for g in kept.grads]
    dist.barrier()
    kept.reduce()
    dist.barrier()
    mean = [g.detach().double().numpy().copy() for g in kept.grads]
    ((params[0] * params[1].sum()).float().sum() + params[2].float().sum()).backward()
    return {
        "kinds": kinds,
        "left": all(left),
        "own": own,
        "mean": mean,
        "later": [g.detach().double().numpy().copy() for g in kept.grads],
        "dtypes": [str(g.dtype)[6:] for g in kept.grads],
    }


def _ones(main_grads: Any, count: int) -> list[Any]:
    """Where the submission runs: `count` gradients of 1, added up."""
    p = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.bfloat16))
    kept = main_grads([p])
    for _ in range(count):
        p.sum().backward()
    return [bits(g) for g in kept.grads], [float(g.max()) for g in kept.grads]


@check(FORMATS, points=0.5, fixed="it is one sum that stops at 256 in bfloat16; others are drawn in the core")
def gradients_add_up_in_float32(MainGrads):
    """1,000 gradients of 1 add up to 1,000, where bfloat16 stops at 256."""
    _, sums = call_inside(_ones, MainGrads, 1000)
    if sums != [1000.0]:
        fail(f"1,000 gradients of 1 should add up to 1000, .grads has {sums}", "1,000 gradients of 1", sums)


@check(FORMATS, points=0.5)
def ranks_get_the_mean_gradient(MainGrads, *, rng):
    """`.grads` are those of the trainable parameters; `reduce` averages them; later gradients add to the means."""
    for world_size in (1, 2, 3, 4):
        case, steps = count_of_ranks(world_size), STEPS
        values = _values(rng, world_size)
        results = run_ranks(_main_grads, world_size, (MainGrads, values, steps))
        first, second = _gradients(values, steps)
        for rank, seen in each_rank(case, list(results), evidence=_plain):
            shapes_of = [["float32", [2, 3], True], ["float32", [5], True]]
            rank.expect_equal(seen["kinds"], shapes_of, what="the dtype, shape and zeros of .grads at first")
            rank.expect(seen["left"], "p.grad is not None after a backward")
            for index, want in enumerate((first, second)):
                what = f".grads[{index}] before reduce"
                rank.expect_close(seen["own"][index], np.float64(want[rank.rank]), what=what, rtol=0.0)
            for index, own in enumerate((first, second)):
                what = f".grads[{index}] after reduce"
                rank.expect_close(seen["mean"][index], np.mean(own, axis=0), what=what, rtol=1e-6)
                later = np.mean(own, axis=0) + (1.0 if index else float(values[1][rank.rank].sum()))
                what = f".grads[{index}] after reduce and another backward"
                rank.expect_close(seen["later"][index], later, what=what, rtol=1e-6)
            rank.expect_equal(seen["dtypes"], ["float32"] * 2, what="the dtypes of .grads after reduce")


def _plain(one: dict[str, Any]) -> list:
    """What tells mistakes of one rank apart."""
    return [one["kinds"], one["left"], one["mean"], one["later"]]


def _values(rng: np.random.Generator, world_size: int) -> list[np.ndarray]:
    """What the three parameters of each rank hold.

    The sum of the second one is an odd number of eighths above 64. Ten times that needs at least nine bits: a gradient
    that was sent in bfloat16, which has eight, is a different number.
    """
    values = [inputs.eighths(rng, (world_size, *shape), limit=8) for shape in ((2, 3), (4,), (5,))]
    sums = (2 * rng.integers(32, 64, world_size) + 1) / 8
    values[1][:, 0] += (sums - values[1].sum(axis=1)).astype(values[1].dtype)
    return values


def _gradients(values: list[np.ndarray], steps: int) -> tuple[list, list]:
    """What `_main_grads` adds up: the gradients of its two trainable parameters, rank by rank."""
    world_size = len(values[0])
    factors = [sum(2.0 ** (k % 3) for k in range(steps)), float(len(range(0, steps, 2)))]
    first = [np.full((2, 3), float(values[1][r].sum()) * factors[0]) for r in range(world_size)]
    return first, [values[2][r] * factors[1] * (r == 0) for r in range(world_size)]


@check(FORMATS, points=0.25)
def one_all_reduce_carries_all(MainGrads, *, rng):
    """`reduce` makes one all-reduce, of four bytes a number, and no other communication."""
    for world_size in (2, 3):
        # A run as those whose numbers are compared: an answer cannot save messages here and send them there.
        results = run_ranks(_main_grads, world_size, (MainGrads, _values(rng, world_size), STEPS))
        calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
        sent = [[[(m.call, m.bytes) for m in part] for part in mine] for mine in calls]
        for rank, mine in each_rank(count_of_ranks(world_size), sent):
            rank.expect_equal(
                mine, [[], [("all_reduce", 44)], []], what="the list of calls, before, in and after reduce,"
            )
