"""Exercise 5: how long to train between two saves.

The oracle of `simulate` goes through a run tick by tick, an eighth of a second each, in whole numbers. That of
`best_interval` solves u·exp(u) = −exp(−1 − δ/M), where u = τ/M − 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autograder.checks.cases import Call, close
from autograder.checks.check import check

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


def _extra(simulate: Any, *args: Any) -> float:
    """What failures add to the time: a fault that shows without failures does not show here."""
    return simulate(*args) - simulate(*args[:-1], [])


def _run(simulate: Any, name: str, interval: int, work: int, save: int, restart: int, failures: list[int]) -> Call:
    args = [ticks / TICKS for ticks in (interval, work, save, restart)] + [[tick / TICKS for tick in failures]]
    gives = _played(interval, work, save, restart, failures) - bool(failures) * _played(
        interval, work, save, restart, []
    )
    about = {"name": name, "gives": close(gives / TICKS, atol=1e-9), "shows": f"simulate({', '.join(map(str, args))})"}
    if failures:
        return Call(_extra, simulate, *args, what="the time that failures add", **about)
    return Call(simulate, *args, what="the time", **about)


def _drawn(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Ticks of an interval, of the work (three intervals and a piece), of a save and of a restart."""
    interval = int(rng.integers(30, 60))
    return interval, 3 * interval + int(rng.integers(5, 25)), int(rng.integers(6, 14)), int(rng.integers(8, 20))


@check(INTERVAL, points=0.25)
def saves_take_their_time(simulate: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """Without failures, the time is the work and the saves between its pieces."""
    interval, work, save, restart = _drawn(rng)
    yield _run(simulate, "no failure", interval, work, save, restart, [])
    yield _run(simulate, "no failure, the interval divides the work", interval, 3 * interval, save, restart, [])
    yield _run(simulate, "no failure, the interval is longer than the work", work + 9, work, save, restart, [])


@check(INTERVAL, points=0.5)
def failures_lose_what_is_not_saved(simulate: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """A failure in an interval or in a save loses the work since the last complete save, and costs a restart."""
    interval, work, save, restart = _drawn(rng)
    period = interval + save
    for name, at in (
        ("a failure in the first interval", [interval // 2]),
        ("a failure in the second interval", [period + interval // 2]),
        ("a failure in the last piece", [3 * period + 3]),
        ("a failure during the second save", [2 * period - save // 2]),
        ("two failures in one interval", [4, 4 + restart + interval // 2]),
        ("a failure after the end", [work + 4 * save + 1]),
    ):
        yield _run(simulate, name, interval, work, save, restart, at)


@check(INTERVAL, points=0.25)
def restarts_begin_anew(simulate: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """A failure during a restart begins it anew, however often."""
    interval, work, save, restart = _drawn(rng)
    again = [interval + save + 9, interval + save + 9 + restart // 2]
    yield _run(simulate, "a failure during a restart", interval, work, save, restart, again)
    often = [5, 3 + restart, 1 + 2 * restart]
    yield _run(simulate, "two failures during restarts", interval, work, save, restart, often)


def _best(best_interval: Any, rng: np.random.Generator, *ratios: float) -> Iterator[Call]:
    """Saves that take about these parts of the mean time between failures."""
    for ratio in ratios:
        mean = float(rng.uniform(1e3, 1e5))
        save = ratio * mean * float(rng.uniform(0.8, 1.25))
        low, high, target = -1.0, 0.0, -math.exp(-1 - save / mean)
        for _ in range(100):
            u = (low + high) / 2
            low, high = (u, high) if u * math.exp(u) < target else (low, u)
        yield Call(best_interval, save, mean, gives=close(mean * (1 + low), rtol=1e-3), what="the interval")


@check(INTERVAL, points=0.5)
def the_interval_loses_least(best_interval: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """`best_interval` is the minimum of E(τ)/τ within a thousandth where a save takes at most a hundredth of M."""
    yield from _best(best_interval, rng, 1e-3, 8e-3)


@check(INTERVAL, points=0.5)
def expensive_saves_have_a_best_interval(best_interval: Any, *, rng: np.random.Generator) -> Iterator[Call]:
    """`best_interval` is the minimum of E(τ)/τ within a thousandth also where a save takes a tenth or half of M."""
    yield from _best(best_interval, rng, 0.1, 0.5)
