"""Exercise 5: how long to train between two saves.

The oracle of `simulate` goes through a run tick by tick, an eighth of a second each, in whole numbers. That of
`best_interval` solves u·exp(u) = −exp(−1 − δ/M), where u = τ/M − 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_unchanged

INTERVAL = "16-ex5-interval"
TICKS = 8  # in a second


def _played(interval: int, work: int, save: int, restart: int, failures: Sequence[int]) -> int:
    """Ticks until `work` ticks are trained: one tick after the other, all arguments in ticks."""
    now = safe = done = 0
    doing, left = "train", 0  # `left`: ticks until what is done now is over
    while True:
        if doing == "train" and done == work:
            return now
        if doing == "train" and done - safe == interval:
            doing, left = "save", save
        if doing == "save" and left == 0:
            doing, safe = "train", done
        if now in failures:
            doing, left, done = "restart", restart, safe
        if doing == "restart" and left == 0:
            doing = "train"
        now += 1
        if doing == "train":
            done += 1
        else:
            left -= 1


def _expect(simulate: Any, case: str, interval: int, work: int, save: int, restart: int, failures: list[int]) -> None:
    """`simulate` needs as long as the oracle; the list of failures stays as it is."""
    given = [tick / TICKS for tick in failures]
    before = np.array(given)
    got = simulate(interval / TICKS, work / TICKS, save / TICKS, restart / TICKS, given)
    want = _played(interval, work, save, restart, failures) / TICKS
    expect_close(case, got, np.array(want), what="the time", rtol=1e-9)
    expect_unchanged(case, before, np.array(given), what="the list of failures")


def _drawn(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Ticks of an interval, of the work (three intervals and a piece), of a save and of a restart."""
    interval = int(rng.integers(30, 60))
    return interval, 3 * interval + int(rng.integers(5, 25)), int(rng.integers(6, 14)), int(rng.integers(8, 20))


@check(INTERVAL, points=1.5)
def the_clock_runs_through_every_failure(simulate, *, rng):
    """The time is right without failures, and with failures inside an interval, a save or a restart, one or more."""
    interval, work, save, restart = _drawn(rng)
    period = interval + save
    for case, each, long, at in (
        ("no failure", interval, work, []),
        ("no failure, the interval divides the work", interval, 3 * interval, []),
        ("no failure, the interval is longer than the work", work + 9, work, []),
        ("no failure, the interval is as long as the work", work, work, []),
        ("a failure in the first interval", interval, work, [interval // 2]),
        ("a failure in the second interval", interval, work, [period + interval // 2]),
        ("a failure in the last piece", interval, work, [3 * period + 3]),
        ("a failure during the second save", interval, work, [2 * period - save // 2]),
        ("a failure during a restart", interval, work, [period + 9, period + 9 + restart // 2]),
        ("three failures during restarts", interval, work, [5, 3 + restart, 1 + 2 * restart]),
        ("two failures in one interval", interval, work, [4, 4 + restart + interval // 2]),
        ("the interval is longer than the work, a failure", work + 9, work, [work - 4]),
        ("a failure after the end", interval, work, [work + 3 * save + 1]),
    ):
        _expect(simulate, case, each, long, save, restart, at)
    for number in range(6):
        # All in multiples of 16 ticks, but the k-th failure k ticks later: nothing ends in the moment of a failure.
        interval, save, restart = (16 * int(rng.integers(1, most)) for most in (5, 3, 3))
        failures = (16 * np.cumsum(rng.integers(1, 8, 12)) + np.arange(1, 13)).tolist()
        _expect(simulate, f"many failures, run {number + 1}", interval, 400, save, restart, failures)


@check(INTERVAL, points=0.5)
def what_ends_with_a_failure_counts(simulate, *, rng):
    """Work or a save that ends at the moment of a failure is complete; two failures may come at the same moment."""
    interval, work, save, restart = _drawn(rng)
    restart += save  # so that the second failure of the first case comes before the third save, not in it
    period = interval + save
    for case, long, at in (
        # First, since here each mistake has a time of its own.
        ("a failure as the second save ends, and one later", work, [2 * period, 3 * period + 4]),
        ("a failure as the third save ends, and one later", work, [3 * period, 3 * period + restart + 2]),
        ("a failure as the first save ends", work, [period]),
        ("a failure as the work ends", work, [3 * period + work - 3 * interval]),
        ("a failure as a save begins", work, [interval]),
        ("a failure at the very beginning", work, [0]),
        ("a failure as a restart ends", work, [7, 7 + restart]),
        ("two failures in one moment", work, [period + 5, period + 5]),
    ):
        _expect(simulate, case, interval, long, save, restart, at)
    _expect(simulate, "restarts that take no time", interval, work, save, 0, [interval - 4, period, period + 4])


def _best(save: float, mean: float) -> float:
    """M (1 + u) with u·exp(u) = −exp(−1 − δ/M), u in (−1, 0), by halving."""
    low, high, target = -1.0, 0.0, -math.exp(-1 - save / mean)
    for _ in range(100):
        u = (low + high) / 2
        low, high = (u, high) if u * math.exp(u) < target else (low, u)
    return mean * (1 + low)


@check(INTERVAL, points=1)
def the_interval_loses_least(best_interval, *, rng):
    """`best_interval` is the minimum of $E(\\tau)/\\tau$ within a thousandth, for cheap and for expensive saves."""
    for ratio in (1e-3, 1e-2, 0.1, 0.5):
        mean = float(rng.uniform(1e3, 1e5))
        save = ratio * mean * float(rng.uniform(0.8, 1.25))
        restart = float(rng.uniform(0.1, 0.3)) * mean
        case = f"a save takes {save:.4g} s, failures are {mean:.0f} s apart, a restart takes {restart:.4g} s"
        expect_close(case, best_interval(save, mean, restart), np.array(_best(save, mean)), what="the interval",
                     rtol=1e-3)  # fmt: skip
