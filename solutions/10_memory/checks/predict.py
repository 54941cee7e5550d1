"""Exercise 2: bytes of a layer and of a pipeline stage, against a list of the tensors that are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_raises

PREDICT = "10-ex2-predict"

#: A tensor that a layer keeps: its numbers in units of sbh, bytes a number, whether a tensor rank holds only its share.
_KEPT = {
    "norm 1, in": (1, 2, False),
    "qkv, in": (1, 2, False),
    "queries": (1, 2, True),
    "keys": (1, 2, True),
    "values": (1, 2, True),
    "projection, in": (1, 2, True),
    "dropout mask 1": (1, 1, False),
    "norm 2, in": (1, 2, False),
    "up, in": (1, 2, False),
    "gelu, in": (4, 2, True),
    "down, in": (4, 2, True),
    "dropout mask 2": (1, 1, False),
}
#: What the core of attention keeps, bytes for each of the as²b scores.
_SCORES = {"softmax, out": 2, "dropout mask": 1, "dropped, times values": 2}


def _expected(s: int, b: int, h: int, a: int, t: int, parallel: bool, keep: str, dropout: bool) -> float:
    if keep == "input":
        return 2 * s * b * h / (t if parallel else 1)
    total = 0.0
    for name, (numbers, nbytes, shared) in _KEPT.items():
        if dropout or "mask" not in name:
            total += numbers * nbytes * s * b * h / (t if shared or parallel else 1)
    scores = _SCORES.items() if keep == "all" else []
    total += sum(a * s * s * b * nbytes / t for name, nbytes in scores if dropout or name == "softmax, out")
    return total + (4 * a * s * b / t if keep == "flash" else 0)


@check(PREDICT, points=1)
def a_layer_follows_its_formula(activation_bytes, *, rng):
    """`activation_bytes` adds up a layer's tensors for each `keep`, with or without dropout, on any number of ranks."""
    for keep in ("all", "no scores", "flash", "input"):
        for t, parallel in ((1, False), (1, True), (4, False), (4, True), (3, True)):
            for dropout in (True, False):
                s, b = int(rng.integers(7, 3000)), int(rng.integers(1, 9))
                a = t * int(rng.integers(1, 9))
                h = a * int(rng.integers(1, 129))
                case = f"activation_bytes({s}, {b}, {h}, {a}, tensor={t}, sequence_parallel={parallel}, keep={keep!r}, "
                case += f"dropout={dropout})"
                got = activation_bytes(s, b, h, a, t, parallel, keep, dropout)
                expected = np.float64(_expected(s, b, h, a, t, parallel, keep, dropout))
                expect_close(
                    case, got, expected, what="the number of bytes", rtol=1e-9, evidence=_factors(got, s, b, h, a)
                )
    default = activation_bytes(128, 2, 64, 8)
    expected = np.float64(_expected(128, 2, 64, 8, 1, False, "all", True))
    expect_close("only four arguments", default, expected, what="the number of bytes", rtol=1e-9)


def _factors(got: Any, s: int, b: int, h: int, a: int) -> Any:
    """The bytes for each of the sbh numbers and for each score: what tells formulas apart."""
    try:
        return [float(got), float(got) / (s * b * h), float(got) / (a * s * s * b)]
    except (TypeError, ValueError):
        return type(got).__name__


@check(PREDICT, points=0.25)
def a_layer_refuses_what_makes_no_sense(activation_bytes, *, rng):
    """`activation_bytes` raises ValueError if `tensor` is below 1 or does not divide `heads`, or `keep` is unknown."""
    s = int(rng.integers(8, 99))
    cases = {
        "6 heads on 4 ranks": (s, 1, 24, 6, 4),
        "6 heads on 4 ranks, recomputed": (s, 1, 24, 6, 4, True, "input"),
        "6 heads on 6 ranks": (s, 1, 24, 6, 6),
        "tensor = 0": (s, 1, 24, 6, 0),
        "tensor = -1": (s, 1, 24, 6, -1),
        "keep = 'scores'": (s, 1, 24, 6, 1, False, "scores"),
        "keep = None": (s, 1, 24, 6, 2, False, None),
    }
    for case, args in cases.items():
        if args[3:] == (6, 6):
            expected = np.float64(_expected(*args, False, "all", True))
            expect_close(case, activation_bytes(*args), expected, what="the number of bytes", rtol=1e-9)
        else:
            expect_raises(case, activation_bytes, *args, error=ValueError)


@check(PREDICT, points=0.5)
def a_stage_holds_its_micro_batches(stage_bytes, *, rng):
    """`stage_bytes` counts the micro-batches that a stage holds at once under 1F1B: min(M, stages − stage)."""
    # Stages, one of them, micro-batches: fewer and more than the stage could hold, the last stage, one stage alone.
    cases = [(6, 1, 3), (6, 1, 9), (5, 4, 7), (4, 0, 4), (1, 0, 2)]
    for _ in range(30):
        stages = int(rng.integers(1, 9))
        cases.append((stages, int(rng.integers(0, stages)), int(rng.integers(1, 12))))
    for stages, stage, micro_batches in cases:
        per_stage = int(rng.integers(1, 5))
        layer = float(rng.integers(1, 10**6))
        case = f"stage_bytes({layer:.0f}, {stages * per_stage}, {stages}, {micro_batches}, {stage})"
        # One forward at a time enters a stage before its first backward; then they alternate.
        alive = most = done = 0
        first_backward = stages - stage
        for started in range(1, micro_batches + 1):
            alive += 1
            most = max(most, alive)
            if started >= first_backward:
                done += 1
                alive -= 1
        got = stage_bytes(layer, stages * per_stage, stages, micro_batches, stage)
        expected = np.float64(layer * per_stage * most)
        evidence = float(got) / (layer * per_stage) if isinstance(got, int | float) else type(got).__name__
        expect_close(case, got, expected, what="the number of bytes", rtol=1e-9, evidence=evidence)
        whole = stage_bytes(layer, stages * per_stage, stages, stages + 3, 0)
        expected = np.float64(layer * stages * per_stage)
        expect_close(f"stage 0 of {stages}, many micro-batches", whole, expected, what="the number of bytes", rtol=1e-9)


@check(PREDICT, points=0.25)
def a_stage_refuses_what_makes_no_sense(stage_bytes, *, rng):
    """`stage_bytes` raises ValueError if `stages` is below 1 or does not divide `layers`, or `stage` does not exist."""
    layer = int(rng.integers(1, 99))
    cases = {
        "7 layers in 2 stages": (layer, 7, 2, 4, 0),
        "1 layer in 2 stages": (layer, 1, 2, 4, 1),
        "2 layers in 2 stages": (layer, 2, 2, 4, 1),
        "stage 0 of 0": (layer, 8, 0, 4, 0),
        "stage 0 of -2": (layer, 8, -2, 4, 0),
        "stage 2 of 2": (layer, 8, 2, 4, 2),
        "stage -1": (layer, 8, 2, 4, -1),
    }
    for case, args in cases.items():
        if case.startswith("2 layers"):
            stage_bytes(*args)
        else:
            expect_raises(case, stage_bytes, *args, error=ValueError)
