"""Exercise 4: what to recompute, at the least cost. The oracle adds one layer after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from autograder.checks.cases import Call, close, fact, sentence
from autograder.checks.check import check

PRICES = "10-ex4-cheapest"


def _least(freed, costs, layers, needed):
    """The least cost at which `needed` bytes are freed; infinite if they cannot be."""
    reached = {0: 0.0}  # bytes freed so far, no more than needed, and the least cost of that
    for _ in range(layers):
        longer = dict(reached)
        for nbytes, cost in reached.items():
            for more, price in zip(freed, costs, strict=True):
                sum_ = min(nbytes + more, needed)
                longer[sum_] = min(longer.get(sum_, math.inf), cost + price)
        reached = longer
    return reached.get(needed, math.inf)


@dataclass
class Chosen:
    """What cheapest returned."""

    form: str = sentence()
    cost: Any = fact("the cost of the choice")


def _chosen(counts, freed, costs, layers, needed):
    """The facts about a choice."""
    try:
        counts = None if counts is None else [int(n) for n in counts if int(n) == n >= 0]
    except (TypeError, ValueError, OverflowError):
        return Chosen(f"cheapest should return a list of whole numbers or None, it returns {counts!r:.60}", 0)
    if counts is None:
        return Chosen("cheapest returns None, though there is a choice that frees enough", 0)
    if len(counts) != len(freed):
        return Chosen(f"cheapest should return a whole number of layers for each of {len(freed)} ways", 0)
    if sum(counts) > layers:
        return Chosen(f"{counts} are {sum(counts)} layers, and there are {layers}: each in one way at most", 0)
    if (nbytes := sum(f * n for f, n in zip(freed, counts, strict=True))) < needed:
        return Chosen(f"{counts} layers free {nbytes} bytes, needed are {needed}", 0)
    return Chosen("", sum(c * n for c, n in zip(costs, counts, strict=True)))


def _call(cheapest, *problem):
    """A call whose choice has to free enough at the least cost."""
    gives = Chosen("", close(_least(*problem), rtol=1e-9))
    return Call(cheapest, *problem, gives=gives, sees=_chosen)


def _ways(rng, number):
    """Bytes, even ones, and costs of so many ways, in about the same ratio."""
    freed = [int(f) for f in rng.choice(range(3, 40), number, replace=False)]
    return [2 * f for f in freed], [f + int(rng.integers(1, 12)) for f in freed]


@check(PRICES, points=0.75)
def the_cheapest_choice_is_found(cheapest, *, rng):
    """`cheapest` frees enough at the least cost, with one way, two or three, where there are layers enough."""
    nbytes, price = (int(factor) for factor in rng.integers(2, 50, 2))
    # Two layers of the first way and one of the second are the best; three of the first, or six of the second, are not.
    yield _call(cheapest, [10 * nbytes, 4 * nbytes], [9 * price, 4 * price], 40, 24 * nbytes - 1)
    for number, layers in ((2, 40), (1, 12), (2, 30), (3, 20), (2, 25), (3, 22)):
        freed, costs = _ways(rng, number)
        # No choice has to take all layers, and none frees exactly an odd number.
        needed = 2 * int(rng.integers(max(freed) // 2 + 1, min(freed) // 2 * (layers - 1))) - 1
        yield _call(cheapest, freed, costs, layers, needed)


@check(PRICES, points=0.25)
def a_layer_is_recomputed_in_one_way(cheapest, *, rng):
    """A layer is recomputed in one way at most, so some must be recomputed in a dearer way if layers are few."""
    for layers in (32, 12, int(rng.integers(5, 20))):
        cheap = int(rng.integers(20, 40))
        much = cheap + int(rng.integers(10, 30))
        needed = cheap * layers + (much - cheap) * int(rng.integers(1, layers)) - 1
        ways = [(cheap, 2), (much, 7)][:: int(rng.choice([1, -1]))]
        yield _call(cheapest, *map(list, zip(*ways, strict=True)), layers, needed)


@check(PRICES, points=0.5)
def there_may_be_no_choice(cheapest, *, rng):
    """`cheapest` returns None if recomputing all layers does not free enough, and only then: exactly enough will do."""
    for _ in range(2):
        (freed, costs), layers = _ways(rng, 1), int(rng.integers(3, 20))
        yield Call(cheapest, freed, costs, layers, freed[0] * layers + 1, gives=None)
        yield _call(cheapest, freed, costs, layers, freed[0] * layers - 1)
        yield _call(cheapest, freed, costs, layers, freed[0] * (layers - 1))


def _greedy(freed, costs, layers, needed):
    """The cost of the plan that takes the best price per byte first; infinite if it does not free enough."""
    counts = [0] * len(freed)
    for way in sorted(range(len(freed)), key=lambda way: costs[way] / freed[way]):
        missing = needed - sum(f * n for f, n in zip(freed, counts, strict=True))
        counts[way] = max(0, min(math.ceil(missing / freed[way]), layers - sum(counts)))
    enough = sum(f * n for f, n in zip(freed, counts, strict=True)) >= needed
    return sum(c * n for c, n in zip(costs, counts, strict=True)) if enough else math.inf


@dataclass
class Example:
    """What greedy_loses returned."""

    form: str = sentence()


def _found(greedy_loses, cheapest):
    """The example, and what cheapest chooses there."""
    example = greedy_loses()
    try:
        return example, cheapest(*example)
    except Exception:
        return example, None


def _example(returned, *_):
    """Is this an example in which greedy is too dear? At least by what cheapest says: that has checks of its own."""
    returned, counts = returned
    try:
        freed, costs, layers, needed = returned
        freed, costs = [float(f) for f in freed], [float(c) for c in costs]
        layers, needed = int(layers), float(needed)
    except (TypeError, ValueError, OverflowError):
        return Example("greedy_loses should return a tuple (freed, costs, layers, needed)")
    numbers = all(0 < one < math.inf for one in (*freed, *costs, needed))
    if not (len(freed) == len(costs) in (1, 2, 3) and 0 < layers <= 40 and numbers):
        return Example("there are one to three ways and at most 40 layers, and all numbers are above 0")
    greedy, least = _greedy(freed, costs, layers, needed), _least(freed, costs, layers, needed)
    if math.isinf(greedy):
        return Example("greedy returns None for this example, and not a choice that is too dear")
    own = _chosen(counts, freed, costs, math.inf, needed)
    if greedy < 1.2 * min(least, least if own.form else own.cost) * (1 - 1e-9):
        return Example(f"greedy's choice costs {greedy:g}, the least is {least:g}: not 1.2 times as much")
    return Example("")


@check(PRICES, points=0.5, fixed="it is the student who chooses the example")
def greedy_can_be_too_dear(greedy_loses, cheapest):
    """`greedy_loses` is an example in which greedy's choice costs at least 1.2 times what `cheapest` finds."""
    yield Call(_found, greedy_loses, cheapest, gives=Example(""), sees=_example, name="greedy_loses()")
