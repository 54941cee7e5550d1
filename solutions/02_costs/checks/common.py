"""What the checks of lesson 02 share: calls, comparisons, prices of messages, all-reduces that are played."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from autograder.checking.expect import as_array, digits_that_differ, fail

#: A few float64 operations on positive numbers are off by about 1e-15 of the result.
RTOL = 1e-9


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


def tree_seconds(nbytes: float, n: int, alpha: float, beta: float) -> Fraction:
    """Play a tree: up, each round halves the ranks that hold a partial sum; down, it doubles those with the result."""
    message = Fraction(alpha) + Fraction(beta) * Fraction(nbytes)
    seconds, holding = Fraction(0), n
    while holding > 1:
        holding = (holding + 1) // 2
        seconds += message
    while holding < n:
        holding = min(2 * holding, n)
        seconds += message
    return seconds


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


def result_of(case: str, call: str, function: Callable, *arguments: Any) -> Any:
    """What the function returns; an exception is a failed property, and the message shows the call that raised it."""
    try:
        return function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        kind = type(error).__name__
        fail(f"{call} raised {kind}: {error}", case, f"raised {kind}", kind)


def expect_value_error(case: str, name: str, function: Callable, *arguments: Any) -> None:
    """A ValueError is raised whose text contains `name`. Raising another error or none counts as the same mistake."""
    try:
        function(*arguments)
    except NotImplementedError:
        raise
    except ValueError as error:
        if not re.search(rf"\b{name}\b", str(error)):
            fail(f"the ValueError should name {name}, but it says {str(error)!r}", case, "not named")
    except Exception as error:
        fail(f"expected a ValueError that names {name}, got {type(error).__name__}: {error}", case, "not refused")
    else:
        fail(f"expected a ValueError that names {name}, but nothing was raised", case, "not refused")


def number_of(case: str, got: Any, what: str) -> float:
    array = as_array(case, got, what)
    if array.shape != () or np.iscomplexobj(array):
        fail(f"{what} should be one number, got {array.dtype} of shape {array.shape}", case, array)
    return float(array)


def expect_number(
    case: str,
    got: Any,
    expected: Fraction | float,
    what: str,
    because: str,
    *,
    scale: float | None = None,
    evidence: Any = None,
) -> None:
    """`got` must be `expected` up to rounding, and a float: Python's own or numpy's float64, which is one."""
    number, wanted = number_of(case, got, what), float(expected)
    bound = RTOL * (abs(wanted) if scale is None else scale)
    good = number == wanted if math.isinf(wanted) else abs(number - wanted) <= bound
    if not good:
        one, other = digits_that_differ(number, wanted)
        fail(f"{what}: got {one}, expected {other}; {because}", case, evidence or [number])
    if not isinstance(got, float):
        fail(f"{what} should be a float, got {got!r}, of type {type(got).__name__}", case, type(got).__name__)
