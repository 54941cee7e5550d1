"""Exercise 3: the order of the axes, from the bandwidth of their groups."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.checks.cases import Call, fact
from autograder.checks.check import check
from machines.cluster import Cluster, find

NUMBERING = "15-ex3-numbering"


def _expected(order: tuple[str, ...], sizes: dict[str, int], machine: Cluster) -> dict[str, float]:
    """Axis → the bandwidth of its groups, from two neighbors' ranks on a line of all ranks."""
    place = {name: int(np.prod([sizes[other] for other in order[:i]], dtype=int)) for i, name in enumerate(order)}
    return {name: machine.bandwidth(sizes[name], place[name]) for name in sizes}


def _fitting(measured: dict[str, float], sizes: dict[str, int], machine: Cluster, slack: float) -> list[tuple]:
    """All orders whose bandwidths are within `slack` of the measured ones."""
    return [
        order
        for order in itertools.permutations(sizes)
        if all(abs(measured[n] / e - 1) <= slack for n, e in _expected(order, sizes, machine).items())
    ]


#: Where not the order is judged, but what is made of it: on two axes every stride is the size before.
TWO = ("tp", "dp")


def _drawn(
    rng: np.random.Generator, broken: bool, noise: float = 0.01, axes: tuple[str, ...] = ("tp", "dp", "pp")
) -> tuple[dict, dict, Cluster, Any]:
    """Sizes, a measurement, the machine, and the one order that explains it; None where a link is broken."""
    machine = find("H100" if rng.integers(3) else "GB200 NVL72")
    while True:
        sizes = {name: 2 ** int(rng.integers(1, 6)) for name in rng.permutation(axes).tolist()}
        order = tuple(rng.permutation(list(sizes)).tolist())
        expected = _expected(order, sizes, machine)
        measured = {name: e * float(rng.uniform(1 - noise, 1 + noise)) for name, e in expected.items()}
        if broken:
            measured[str(rng.choice(list(sizes)))] *= float(rng.uniform(0.35, 0.6))
            if not _fitting(measured, sizes, machine, 0.25):
                return sizes, measured, machine, None
        elif _fitting(measured, sizes, machine, 0.25) == [order]:
            return sizes, measured, machine, order


@dataclass
class Orders:
    """What find_order says to each measurement."""

    said: dict[str, Any] = fact("the order for {}")
    explained: dict[str, bool] = fact("whether there is an order for {}")
    kinds: dict[str, str] = fact("the type of the order for {}")


def _ask(find_order: Any, questions: dict[str, tuple]) -> Orders:
    answers = {words: find_order(*question) for words, question in questions.items()}
    said = {words: None if found is None else tuple(found) for words, found in answers.items()}
    kinds = {words: type(found).__name__ for words, found in answers.items()}
    return Orders(said, {words: isinstance(found, (list, tuple)) for words, found in answers.items()}, kinds)


def _asked(find_order: Any, drawn: list[tuple], which: str) -> Call:
    """All measurements in one call: a single wrong answer does not tell one mistake from another."""
    questions, right = {}, {}
    for sizes, measured, machine, order in drawn:
        speeds = ", ".join(f"{name} {size} at {measured[name] / 1e9:.1f} GB/s" for name, size in sizes.items())
        words = f"{speeds} on {machine.name}"
        questions[words] = sizes, measured, machine
        right[words] = {"said": order, "explained": order is not None, "kinds": "tuple"}[which]
    return Call(_ask, find_order, questions, gives=Orders(**{which: right}), name=f"{len(right)} measurements")


@check(NUMBERING, points=1)
def the_order_explains_the_measurement(find_order, *, rng):
    """The order whose groups have the measured bandwidths, all within 4 %, fastest-changing first."""
    yield _asked(find_order, [_drawn(rng, broken=False, noise=0.04) for _ in range(10)], "said")


def _near(rng: np.random.Generator, factor: float) -> tuple[dict, dict, Cluster, Any]:
    """A measurement of which one axis is at `factor` of its nominal bandwidth, and the others at theirs."""
    while True:
        sizes, _, machine, order = _drawn(rng, broken=False, axes=TWO)
        measured = _expected(order, sizes, machine)
        measured[str(rng.choice(list(sizes)))] *= factor
        others = [_expected(other, sizes, machine) for other in itertools.permutations(sizes) if other != order]
        if all(any(abs(measured[n] / e - 1) > 0.3 for n, e in one.items()) for one in others):
            return sizes, measured, machine, order if abs(factor - 1) <= 0.2 else None


@check(NUMBERING, points=0.5)
def a_broken_link_is_no_order(find_order, *, rng):
    """None where no order explains all bandwidths, also if one is 21 % too low or 26 % too high, and only there."""
    broken = [_drawn(rng, broken=True, axes=TWO) for _ in range(4)]
    broken += [_near(rng, factor) for factor in (0.78, 0.79, 1.26, 1.27)]
    yield _asked(find_order, [*broken, _drawn(rng, broken=False, axes=TWO)], "explained")


@check(NUMBERING, points=0.25)
def up_to_a_fifth_is_explained(find_order, *, rng):
    """A bandwidth 18 or 19 % below or above the nominal one is explained."""
    yield _asked(find_order, [_near(rng, factor) for factor in (0.81, 0.82, 1.18, 1.19)], "explained")


@check(NUMBERING, points=0.25)
def the_order_is_a_tuple(find_order, *, rng):
    """An order is a tuple of names."""
    yield _asked(find_order, [_drawn(rng, broken=False, axes=TWO) for _ in range(3)], "kinds")
