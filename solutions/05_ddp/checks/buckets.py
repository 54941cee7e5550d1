"""Lesson 05, exercise 2: parameters divided among buckets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import expect_equal, fail
from autograder.checking.stage import run_ranks
from autograder.checks.ddp.common import (
    SIZES,
    expected_buckets,
)


def _make_params(specs: list[tuple], spare: int) -> list[nn.Parameter]:
    """Parameters from (shape, dtype, trainable) or from ("again", index), the same object once more.

    spare: how many numbers the memory of each parameter holds after the parameter's own.
    """
    params: list[nn.Parameter] = []
    for spec in specs:
        if spec[0] == "again":
            params.append(params[spec[1]])
        else:
            shape, dtype, trainable = spec
            numel = int(np.prod(shape, dtype=np.int64))
            memory = torch.zeros(numel + spare, dtype=getattr(torch, dtype))
            params.append(nn.Parameter(memory[:numel].view(shape), requires_grad=trainable))
    return params


def _drive_buckets(rank: int, world_size: int, make_buckets: Any, cases: list[tuple]) -> list:
    """Inside one rank: the buckets of each case as indices of the parameters, -1 for any other object."""
    observed = []
    for specs, bucket_bytes, how in cases:
        params = _make_params(specs, 100 if how == "pieces" else 0)
        index: dict[int, int] = {}
        for number, p in enumerate(params):
            index.setdefault(id(p), number)
        try:
            got = make_buckets(iter(params) if how == "iterator" else params, bucket_bytes)
            odd = next((type(one).__name__ for one in (got, *got) if not isinstance(one, list)), "")
            observed.append([[index.get(id(p), -1) for p in bucket] for bucket in got] if not odd else {"odd": odd})
        except NotImplementedError:
            raise
        except ValueError as error:
            observed.append(str(error))
        except Exception as error:  # another case may show a simpler mistake
            observed.append((type(error).__name__, str(error)))
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
            dtype = str(rng.choice(list(SIZES)))
        shape = tuple(int(n) for n in rng.integers(1, 6, int(rng.integers(0, 3))))
        specs.append((shape, dtype, bool(rng.random() < 0.8)))
    return specs


@check("05-ex2-make-buckets", points=1.5)
def make_buckets_follows_its_rules(make_buckets, *, rng):
    """Each trainable parameter is in one bucket, last first; a bucket ends at another dtype or when it is full."""
    f32, f64 = "float32", "float64"
    plain = [((4,), f32, True), ((3,), f32, True), ((2,), f32, True), ((1,), f32, True)]
    named = {
        "ten equal ones, two fit": ([((1,), f32, True)] * 10, 8),
        "four small ones, all fit": (plain, 1000),
        "an exact fit": (plain, 12),
        "one byte less than an exact fit": (plain, 11),
        "a large one between small ones": ([((2,), f32, True), ((50,), f32, True), ((2,), f32, True)], 16),
        "a large one at the end": ([((2,), f32, True), ((50,), f32, True)], 16),
        "bucket_bytes = 1": (plain, 1),
        "a frozen one": ([plain[0], ((3,), f32, False), plain[2]], 1000),
        "a frozen one of another dtype": ([plain[0], ((3,), f64, False), plain[2]], 1000),
        "a tied one": ([plain[0], plain[1], ("again", 0), plain[3]], 1000),
        "two dtypes": ([((2,), f32, True), ((2,), f64, True), ((3,), f64, True)], 1000),
        "two dtypes of the same size": ([((2,), "bfloat16", True), ((3,), "float16", True)], 1000),
        "dtypes that alternate": ([((2,), f32, True), ((2,), f64, True), ((2,), f32, True)], 1000),
        "after another dtype there is room again": ([((3,), f32, True), ((2,), f32, True), ((2,), f64, True)], 24),
        "numbers of eight bytes": ([((2,), f64, True)] * 3, 40),
        "numbers of two bytes": ([((4,), "bfloat16", True)] * 3, 24),
        "a number and an empty one": ([((), f32, True), ((0, 3), f32, True), ((5,), f32, True)], 20),
        "two empty ones": ([((0,), f32, True), ((0, 3), f32, True)], 20),
        "a large one before an empty one": ([((50,), f32, True), ((0, 3), f32, True)], 16),
        "default size": ([((2**20,), f32, True)] * 9, 25 * 2**20),
        "only frozen ones": ([((3,), f32, False)], 1000),
        "no parameters": ([], 1000),
    }
    cases = [(name, specs, most, "list") for name, (specs, most) in named.items()]
    cases.append(("an iterator, as module.parameters() is one", plain, 12, "iterator"))
    cases.append(("parameters that are pieces of larger memory", plain, 12, "pieces"))
    for number in range(12):
        specs, most = _random_specs(rng), int(rng.integers(1, 120))
        cases.append(
            (f"random list {number + 1}, bucket_bytes = {most}", specs, most, ("list", "iterator")[number % 2])
        )
    results = run_ranks(_drive_buckets, 1, (make_buckets, [case[1:] for case in cases]))
    if len(results.ledger):
        fail("make_buckets sent messages", "1 rank", "messages")
    for (name, specs, most, _), got in zip(cases, results[0], strict=True):
        expected = expected_buckets(specs, most)
        if isinstance(got, dict):
            fail(f"make_buckets should return a list of lists, but there is a {got['odd']}", name, got["odd"])
        if got != expected:
            said = f"raised ValueError: {got}" if isinstance(got, str) else f"gave {got}"
            said = f"raised {got[0]}: {got[1]}" if isinstance(got, tuple) else said
            fail(f"with parameters numbered from 0, make_buckets {said}, expected {expected}", name, got)


@check("05-ex2-make-buckets", points=0.5)
def make_buckets_refuses_a_size_below_one(make_buckets, *, rng):
    """A `bucket_bytes` below 1 raises a ValueError that names it."""
    cases = [([((2,), "float32", True)], most, "list") for most in (0, 1, -5)] + [([], 0, "list")]
    results = run_ranks(_drive_buckets, 1, (make_buckets, cases))
    for (specs, most, _), got in zip(cases, results[0], strict=True):
        if most == 1:
            expect_equal("bucket_bytes = 1", got, expected_buckets(specs, most), what="what make_buckets gave")
            continue
        if isinstance(got, tuple):
            fail(f"expected a ValueError, got {got[0]}: {got[1]}", f"bucket_bytes = {most}", got[0])
        if not isinstance(got, str):
            fail("nothing was raised, expected a ValueError", f"bucket_bytes = {most}", "nothing raised")
        if "bucket_bytes" not in got:
            text = f"the ValueError should name 'bucket_bytes', but it says {got!r}"
            fail(text, f"bucket_bytes = {most}", "not named")
