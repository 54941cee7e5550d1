"""Exercise 2: how many gradients each bucket takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from autograder.checks.cases import Call, at_most, fact, sentence
from autograder.checks.check import check

SIZES = "05-ex2-bucket-sizes"
#: How much more may be exposed than by the best sizes there are.
CLOSE = 1.02


@dataclass
class Exposed:
    """What the sizes of a student's buckets come to."""

    invalid: str = sentence()
    exposed: float = fact("the time from the last gradient to the arrival of the last bucket")


def _end(sizes: list[int], ready: list[float], start_up: float, per_gradient: float) -> float:
    """When the last bucket has arrived: the largest of the candidates of the chapter's theorem."""
    costs = [start_up + per_gradient * size for size in sizes]
    there = list(accumulate(sizes))
    return max(ready[there[k] - 1] + sum(costs[k:]) for k in range(len(sizes)))


def _exposed(sizes: Any, ready: list[float], start_up: float, per_gradient: float) -> Exposed:
    """What a student's sizes expose, or what is wrong with them."""
    numbers = sizes.tolist() if isinstance(sizes, np.ndarray) else sizes
    if not isinstance(numbers, (list, tuple)) or not all(isinstance(one, (int, np.integer)) for one in numbers):
        return Exposed(f"expected a list of whole numbers, got {numbers!r}")
    if sum(numbers) != len(ready) or min(numbers) < 1:
        return Exposed(
            f"{list(numbers)} does not divide {len(ready)} gradients: each size is at least 1, their sum that"
        )
    return Exposed("", _end([int(one) for one in numbers], ready, start_up, per_gradient) - ready[-1])


def _equal(ready: list[float], start_up: float, per_gradient: float) -> float:
    """The least that is exposed with buckets of one size, of which only the last may be smaller."""
    n = len(ready)
    splits = ([size] * (n // size) + [n % size] * (n % size > 0) for size in range(1, n + 1))
    return min(_end(split, ready, start_up, per_gradient) for split in splits) - ready[-1]


def _best(ready: list[float], start_up: float, per_gradient: float) -> float:
    """The least that is exposed with any sizes: ends[i] is the earliest end of the first i gradients."""
    ends = [0.0]
    for n in range(1, len(ready) + 1):
        ends.append(min(max(ready[n - 1], ends[i]) + start_up + per_gradient * (n - i) for i in range(n)))
    return ends[-1] - ready[-1]


def _network(rng: np.random.Generator, speed: str) -> tuple[list[float], float, float]:
    """ready, start_up, per_gradient. speed: of the network against backward, "fast" or "slow"; "any" is uneven, too."""
    n = int(rng.integers(50, 90))
    gaps = np.full(n, 1e-3) if speed != "any" else rng.uniform(0.2e-3, 1.8e-3, n)
    per_gradient = 1e-3 * float({"fast": rng.uniform(0.6, 0.9), "slow": rng.uniform(1.2, 2.0)}.get(speed, 0.95))
    return [float(one) for one in np.cumsum(gaps)], 1e-3 * float(rng.uniform(1.0, 3.0)), per_gradient


def _call(bucket_sizes: Any, network: tuple, most: float, name: str, because: str) -> Call:
    name = f"{len(network[0])} gradients, {name}"
    gives = Exposed("", at_most(most, 1e-9))
    return Call(bucket_sizes, *network, gives=gives, sees=_exposed, name=name, because=because)


@check(SIZES, points=1.25)
def no_equal_sizes_are_better(bucket_sizes, *, rng):
    """On a fast network the last bucket arrives no later than with equal buckets of the best size."""
    for speed in ("fast", "fast", "any"):
        network = _network(rng, speed)
        yield _call(bucket_sizes, network, _equal(*network), f"a {speed} network", "equal buckets do that")
    # Here the first bucket has to be larger than a single gradient.
    network = ([1.0 * (j + 1) for j in range(24)], 2.0, 0.5)
    yield _call(bucket_sizes, network, _equal(*network), "a fast network", "equal buckets do that")
    yield _call(bucket_sizes, ([1e-3], 1e-3, 1e-3), 2e-3, "a bucket of one", "there is only one split")


@check(SIZES, points=0.75)
def no_equal_sizes_are_better_on_slow_networks(bucket_sizes, *, rng):
    """On a network that sends more slowly than gradients come, it arrives no later than with equal buckets, either."""
    for _ in range(3):
        network = _network(rng, "slow")
        yield _call(bucket_sizes, network, _equal(*network), "a slow network", "equal buckets do that")


@check(SIZES, points=1)
def few_sizes_are_better(bucket_sizes, *, rng):
    """At most 2 % more is exposed than with the best sizes there are."""
    for speed in ("fast", "any", "any"):
        network = _network(rng, speed)
        most = CLOSE * _best(*network)
        yield _call(bucket_sizes, network, most, f"a {speed} network", "the best sizes expose 2 % less than that")
