"""What the checks of lesson 02 share: prices of messages, all-reduces that are played, and how a number is compared."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from autograder.checks.cases import close


def near(expected: Fraction | float) -> close:
    """This number, up to the rounding of a few float64 operations on positive numbers, about 1e-15 of the result."""
    return close(float(expected), rtol=1e-9)


def ratio(function: Callable, first: tuple, second: tuple) -> float:
    """What the second arguments give, over what the first give; 0 if that is nothing. Runs next to the submission."""
    given = function(*first)
    return function(*second) / given if given else 0.0


def draw_prices(rng: np.random.Generator, nbytes: float) -> tuple[float, float]:
    """alpha and beta for which starting a message of `nbytes` costs about as much as its bytes do."""
    beta = float(10 ** rng.uniform(-11, -9))
    return float(beta * nbytes * rng.uniform(0.5, 2)), beta


def ring_seconds(nbytes: float | Fraction, n: int, alpha: float, beta: float | Fraction) -> Fraction:
    """Play a ring: in each round every rank passes on a chunk; each half ends when a chunk has visited every rank."""
    message = Fraction(alpha) + Fraction(beta) * Fraction(nbytes) / n
    rounds = 0
    for _half in ("reduce-scatter", "all-gather"):
        holder, visited = 0, {0}
        while len(visited) < n:
            holder = (holder + 1) % n
            visited.add(holder)
            rounds += 1
    return rounds * message


def halving_seconds(nbytes: float, n: int, alpha: float, beta: float) -> Fraction:
    """Play halving and doubling: a rank gives away half of what it holds until one chunk is left, then gets it back."""
    seconds, held = Fraction(0), Fraction(1)
    while held * n > 1:
        held /= 2
        there_and_back = 2 * (Fraction(alpha) + Fraction(beta) * Fraction(nbytes) * held)
        seconds += there_and_back
    return seconds


def two_level_seconds(nbytes: float, nodes: int, gpus: int, ports: int, inside: tuple, network: tuple) -> Fraction:
    """Play the three phases; in the second, count the bytes that leave a node in a round and the ports they take."""
    seconds = ring_seconds(nbytes, gpus, *inside)
    chunk = Fraction(nbytes) / gpus / nodes  # what one GPU sends in one round of the second phase
    through_one_port = chunk * gpus / min(ports, gpus)
    for _round in range(2 * (nodes - 1)):
        seconds += Fraction(network[0]) + Fraction(network[1]) * through_one_port
    return seconds
