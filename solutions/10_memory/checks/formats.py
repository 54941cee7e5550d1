"""Exercise 6: floats of few bits. Compared by hand: of thousands of numbers, one is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograder.checks.check import check
from autograder.checks.expect import fail
from autograder.checks.stage import call_inside

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


def _expect_rounded(case: str, seen: dict, numbers: dict, expected: dict, signs: bool = False) -> None:
    """signs: whether the sign of 0 matters."""
    same = {}
    for name, want in expected.items():
        got = seen[name]["values"]
        if seen[name]["kind"] != "float32" or got.shape != want.shape:
            fail(
                f"round_to should return float32 in the shape of x, got {seen[name]['kind']}", case, seen[name]["kind"]
            )
        equal = np.equal(got, want) | (np.isnan(got) & np.isnan(want))
        if signs:
            equal &= (np.signbit(got) == np.signbit(want)) | np.isnan(want)
        same[name] = equal
    evidence = [case, [int(np.sum(~equal)) for equal in same.values()]]
    for name, equal in same.items():
        if not seen[name]["unchanged"]:
            fail("x was changed in place: work on a copy", f"{case}, {name}", evidence)
        if not equal.all():
            at = int(np.argmin(equal))
            text = f"{numbers[name][at]!r} becomes {seen[name]['values'][at]!r}, expected {expected[name][at]!r}"
            fail(text.replace("np.float32(", "").replace(")", ""), f"{case}, {name}", evidence)


#: What is no number like others.
SPECIAL = ("zeros", "not a number", "infinities")


def _kinds(values: np.ndarray, exponent: int, mantissa: int, finite: bool) -> dict[str, np.ndarray]:
    """Of numbers in the range of float64, by what must be known to round them: where each kind is."""
    size, bias = np.abs(values.astype(np.float64)), 2 ** (exponent - 1) - 1
    power = np.maximum(np.frexp(size)[1] - 1, 1 - bias)
    steps = np.ldexp(np.where(np.isinf(size), 0, size), mantissa - power)
    largest = np.ldexp(2 - 2.0**-mantissa * (1 + finite), bias + finite)
    over = (size > largest) | np.isinf(size)
    small, tie = size < np.ldexp(1.0, 1 - bias), steps - np.floor(steps) == 0.5
    return {"ties": tie & ~small & ~over, "small": small & ~tie, "over": over, "others": ~small & ~tie & ~over}


def _expect_torchs(round_to: Any, numbers_for: Callable, signs: bool = False) -> None:
    """What torch's casts give. numbers_for: the numbers to round to (exponent, mantissa, finite), by group."""
    for name, (*how, dtype) in _TORCH.items():
        numbers = {group: values for group, values in numbers_for(*how).items() if len(values)}
        seen = call_inside(_round, round_to, numbers, tuple(how))
        expected = {group: torch.from_numpy(values).to(dtype).float().numpy() for group, values in numbers.items()}
        _expect_rounded(name, seen, numbers, expected, signs)


def _special(finite: bool) -> tuple[str, ...]:
    """The groups of what is no number like others; with `finite`, infinities overflow as large numbers do."""
    return SPECIAL[:-1] if finite else SPECIAL


def _expect_kind(round_to: Any, rng: np.random.Generator, kind: str) -> None:
    """What torch's casts give for numbers of such a kind."""
    numbers = _numbers(rng)

    def groups(*how):
        return {name: v[_kinds(v, *how)[kind]] for name, v in numbers.items() if name not in _special(how[-1])}

    _expect_torchs(round_to, groups)


@check(FORMATS, points=0.75)
def numbers_go_to_the_nearest(round_to, *, rng):
    """Numbers go to the nearest number of the format, as in torch's casts to two formats of 16 bits and two of 8."""
    _expect_kind(round_to, rng, "others")


@check(FORMATS, points=0.25)
def of_two_equally_near_the_even_one_wins(round_to, *, rng):
    """A number halfway between two goes to the even multiple of the step."""
    _expect_kind(round_to, rng, "ties")


@check(FORMATS, points=0.25)
def below_the_smallest_exponent_the_step_stays(round_to, *, rng):
    """Numbers below the smallest exponent go to the nearest subnormal, or to 0."""
    _expect_kind(round_to, rng, "small")


@check(FORMATS, points=0.25)
def what_rounds_past_the_largest_overflows(round_to, *, rng):
    """What rounds past the largest number becomes infinity; with `finite`, it and infinity become that number."""
    _expect_kind(round_to, rng, "over")


@check(FORMATS, points=0.25)
def nan_infinity_and_signs_are_torchs(round_to, *, rng):
    """NaN, infinities without `finite`, and the sign of 0 are those of torch's casts, also for what rounds to −0."""
    numbers = _numbers(rng) | {"numbers that round to 0": np.float32([-1e-45, 1e-45, -1e-44])}

    def groups(*how):
        return {name: numbers[name] for name in (*_special(how[-1]), "numbers that round to 0")}

    _expect_torchs(round_to, groups, signs=True)


@check(FORMATS, points=0.25)
def other_formats_round_as_well(round_to, *, rng):
    """Formats that torch does not have follow the same rules: 8 and 10 bits (TF32), 6 and 9, 3 and 2, 2 and 1."""
    numbers = {name: values for name, values in _numbers(rng).items() if name == "random numbers"}
    numbers["small numbers"] = (rng.integers(-4000, 4001, 4000) / 128).astype(np.float32)
    for how in ((8, 10, False), (6, 9, False), (3, 2, False), (3, 2, True), (2, 1, True), (4, 3, False)):
        there = {name: values[_kinds(values, *how)["others"]] for name, values in numbers.items()}
        seen = call_inside(_round, round_to, there, how)
        expected = {name: _nearest(values, *how) for name, values in there.items()}
        case = f"{how[0]} exponent bits, {how[1]} mantissa bits{', finite' if how[2] else ''}"
        _expect_rounded(case, seen, there, expected)


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


def _dtypes(round_to: Any, x: torch.Tensor) -> list[str]:
    """Where the submission runs: the dtypes that were made while x was rounded to each format."""
    seen = _Dtypes()
    with seen:
        for *how, _ in _TORCH.values():
            round_to(x.clone(), *how)
    return sorted(seen.found)


@check(FORMATS, veto=True)
def no_cast_does_the_work(round_to, *, rng):
    """`round_to` makes no tensor of a floating type of 16 or 8 bits."""
    names = call_inside(_dtypes, round_to, torch.from_numpy(rng.standard_normal(99)).float())
    found = [name for name in names if name.startswith(("float16", "bfloat16", "float8", "half"))]
    if found:
        fail(f"round_to casts to {', '.join(found)}: compute the rounding", "dtypes", found)
