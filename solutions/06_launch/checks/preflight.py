"""Lesson 06, exercise 2: which nodes of a cluster are slow, from a test that the slowest member decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from autograder.checks.cases import Call, at_most, evidence, fact
from autograder.checks.check import check
from autograder.checks.stage import Oracle

PREFLIGHT = "06-ex2-preflight"


@dataclass
class Found:
    """What slow_nodes returned and what it asked for: that tells mistakes apart."""

    nodes: Any = fact("the list of slow nodes")
    rounds: Any = fact("the number of rounds")
    alone: bool = evidence()  # some node was tested in a group of its own
    kinds: int = evidence()  # how many sizes of groups there were, up to 3


class _Cluster:
    """A cluster of n nodes whose bad nodes are slow only where they talk to others; and what was tested on it."""

    def __init__(self, n: int, slow: list[int], factor: float, seed: int):
        self.n, self.slow, self.factor, self.random = n, set(slow), factor, Random(seed)
        self.seconds, self.rounds, self.sizes = self.random.uniform(0.5, 20), 0, set[int]()

    def measure(self, groups: Any) -> list[float]:
        """What slow_nodes may ask: a round of tests, and the seconds of each group."""
        groups = [[int(node) for node in group] for group in groups]
        tested = Counter(node for group in groups for node in group)
        if wrong := [node for node in tested if not 0 <= node < self.n]:
            raise ValueError(f"there is no node {wrong[0]}: the cluster has {self.n}, numbered from 0")
        if twice := [node for node, count in tested.items() if count > 1]:
            raise ValueError(f"node {twice[0]} is in two groups of one round")
        self.rounds += 1
        self.sizes.update(map(len, groups))
        hit = [len(group) > 1 and not self.slow.isdisjoint(group) for group in groups]
        return [self.seconds * (self.factor if one else 1) * self.random.uniform(1, 1.05) for one in hit]

    def found(self, got: Any) -> Found:
        """The facts about an answer."""
        nodes = sorted(int(node) for node in got) if isinstance(got, (list, tuple, set)) else got
        return Found(nodes, self.rounds, 1 in self.sizes, min(len(self.sizes), 3))


def _case(slow_nodes: Callable, rng: np.random.Generator, n: int, slow: list[int], factor=0.0, **more: Any) -> Call:
    """A cluster of n nodes with these slow ones, of which the right answer is expected, and `more` of the facts."""
    factor, seed = factor or float(rng.uniform(2, 6)), int(rng.integers(2**32))
    kind = f"{', '.join(map(str, slow))} slow, {factor:.3g} times" if slow else "all healthy"
    expected = Found(**{"nodes": sorted(slow), **more})
    cluster = _Cluster(n, slow, factor, seed)
    # The cluster answers on this side: slow_nodes could read which nodes are slow from a function of its own process.
    asks, sees = Oracle(cluster.measure), lambda got, *_: cluster.found(got)
    return Call(slow_nodes, asks, n, gives=expected, sees=sees, name=f"a cluster of {n} nodes, {kind}")


def _some(rng: np.random.Generator, n: int, count: int) -> list[int]:
    return sorted(int(node) for node in rng.choice(n, count, replace=False))


@check(PREFLIGHT, points=1)
def a_slow_node_is_found(slow_nodes, *, rng) -> Iterator[Call]:
    """On a cluster with an even number of nodes, the one slow node is found, wherever it is."""
    for n in (8, 12, 2 * int(rng.integers(5, 33))):
        for node in (0, n - 1, 1, int(rng.integers(2, n - 1))):
            yield _case(slow_nodes, rng, n, [node])


@check(PREFLIGHT, points=0.75)
def several_slow_nodes_are_found(slow_nodes, *, rng) -> Iterator[Call]:
    """Of an even number of nodes, up to a quarter may be slow: neighbors, too, and one of four."""
    for node in (1, 3, int(rng.integers(4))):
        yield _case(slow_nodes, rng, 4, [node])
    for n in (8, 16, 4 * int(rng.integers(3, 17))):
        for slow in ([0, 1], [n - 3, n - 2], _some(rng, n, 2), _some(rng, n, n // 4), list(range(1, n // 2, 2))):
            yield _case(slow_nodes, rng, n, slow)


@check(PREFLIGHT, points=0.75)
def two_rounds_are_enough(slow_nodes, *, rng) -> Iterator[Call]:
    """However many nodes there are, and however many of them are slow, two rounds are enough if n is even."""
    for n in (8, 4 * int(rng.integers(3, 17)), 512):
        for slow in ([0], [n - 1], [int(rng.integers(n))], [0, 1], list(range(1, n // 2, 2))):
            yield _case(slow_nodes, rng, n, slow, nodes=..., rounds=at_most(2, least=1))


@check(PREFLIGHT, points=0.25)
def odd_clusters_are_tested_whole(slow_nodes, *, rng) -> Iterator[Call]:
    """Of an odd number of nodes, one slow node is found as well, the last and the first, too."""
    for n in (7, 9, 2 * int(rng.integers(5, 33)) + 1):
        for node in (n - 1, 0, int(rng.integers(n))):
            yield _case(slow_nodes, rng, n, [node])


@check(PREFLIGHT, points=0.25)
def times_may_vary(slow_nodes, *, rng) -> Iterator[Call]:
    """Times vary by 5 %, which makes no node slow; one that takes 1.5 times as long is."""
    for n in (8, 12, 2 * int(rng.integers(5, 33))):
        yield _case(slow_nodes, rng, n, [])
        for slow in ([int(rng.integers(n))], list(range(1, n // 2, 2))):
            yield _case(slow_nodes, rng, n, slow, factor=1.5)
