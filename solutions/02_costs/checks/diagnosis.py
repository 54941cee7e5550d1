"""Exercise 3: the fault of a cluster on which any experiment may be run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from autograder.checks.cases import Call, evidence, fact
from autograder.checks.check import check
from autograder.checks.stage import Oracle

DIAGNOSIS = "02-ex3-diagnosis"
#: Seconds to start a message, and bytes per second of a healthy port.
START, PORT = 14e-6, 50e9
#: A measurement is up to this much too long.
NOISE = 0.05


@dataclass
class Diagnosed:
    """What diagnose returned, and which experiments it made: that tells mistakes apart."""

    said: Any = fact("the diagnosis")
    long: bool = evidence()  # some message was so long that its start-up did not matter
    crowded: bool = evidence()  # once, more than half of the nodes sent
    alone: int = evidence()  # so many nodes sent alone, up to two


class _Cluster:
    """A cluster with a fault: a word, None, or the number of the bad node; and what experiments were made on it."""

    def __init__(self, nodes: int, fault: object, factor: float, noise: float, seed: int):
        self.nodes, self.fault, self.factor, self.noise = nodes, fault, factor, noise
        self.random, self.longest, self.senders = Random(seed), [0.0], [frozenset[int]()]

    def _bytes_per_second(self, port: tuple, node: int, messages: int) -> float:
        """What each of so many messages through a port gets."""
        bad = self.fault == "cards" or (self.fault == node and type(self.fault) is int)
        return PORT / (self.factor if bad else 1) / messages

    def _ports_of(self, pair: tuple) -> list[tuple]:
        """(direction, port) at both ends: a GPU's number, or its node's if the node has one port."""
        shared = self.fault == "ports"
        return [(way, gpu // 8 if shared else gpu) for way, gpu in zip(("out", "in"), pair, strict=True)]

    def seconds(self, messages: Any, nbytes: float) -> float:
        """What diagnose may ask: the seconds of messages that are sent at the same time."""
        crossing = [(int(a), int(b)) for a, b in messages if int(a) // 8 != int(b) // 8]
        if not crossing:
            return 3.4e-6 + nbytes / 450e9
        if bad := [gpu for pair in crossing for gpu in pair if not 0 <= gpu < 8 * self.nodes]:
            raise ValueError(f"there is no GPU {bad[0]}: the cluster has {8 * self.nodes}, numbered from 0")
        self.longest.append(nbytes)
        self.senders.append(frozenset(pair[0] // 8 for pair in crossing))
        through = Counter(port for pair in crossing for port in self._ports_of(pair))
        rates = [
            self._bytes_per_second(port, gpu // 8, through[port])
            for pair in crossing
            for port, gpu in zip(self._ports_of(pair), pair, strict=True)
        ]
        if self.fault == "switches":
            rates.append(8 * self.nodes * PORT / self.factor / len(crossing))
        return (START + nbytes / min(rates)) * self.random.uniform(1, 1 + self.noise)

    def diagnosed(self, said: Any) -> Diagnosed:
        """The facts about an answer; a whole number as one of Python's, to compare it."""
        alone = len({sent for sent in self.senders if len(sent) == 1})
        return Diagnosed(
            int(said) if hasattr(said, "__index__") and not isinstance(said, bool) else said,
            max(self.longest) > 1e7,
            max(map(len, self.senders)) > self.nodes / 2,
            min(alone, 2),
        )


def _case(diagnose, rng, fault, nodes, factor=None, noise=0.0):
    """A cluster with this fault: a word, None, or the number of the bad node. factor: drawn, if not given."""
    factor = float(rng.uniform(3, 4 if fault == "switches" else 10)) if factor is None else factor
    kind = f"node {fault} is bad" if type(fault) is int else f"{fault}" if fault else "nothing is wrong"
    slower = "" if fault in (None, "ports") else f", {factor:.3g} times slower"
    name, seed = f"a cluster of {nodes} nodes: {kind}{slower}", int(rng.integers(2**32))
    cluster = _Cluster(nodes, fault, factor, noise, seed)
    # The cluster answers on this side: diagnose could read its fault from a function of its own process.
    asks = Oracle(cluster.seconds)
    return Call(diagnose, asks, nodes, gives=Diagnosed(fault), sees=lambda said, *_: cluster.diagnosed(said), name=name)


@check(DIAGNOSIS, points=2)
def slow_cards_and_a_shared_port_are_told_apart(diagnose, *, rng):
    """Slow cards and a port that a node's GPUs share are told apart, on clusters of any size."""
    for nodes in (8, 4, int(rng.integers(5, 33))):
        for fault in ("cards", "ports"):
            yield _case(diagnose, rng, fault, nodes)


@check(DIAGNOSIS, points=0.75)
def slow_switches_are_found(diagnose, *, rng):
    """Switches that carry less than all ports send are found, on clusters of any size."""
    for nodes in (8, 4, int(rng.integers(5, 33))):
        yield _case(diagnose, rng, "switches", nodes)


@check(DIAGNOSIS, points=0.75)
def a_bad_node_is_found(diagnose, *, rng):
    """A single bad node is found, wherever it is: the first and the last one, too."""
    for nodes in (4, 8, int(rng.integers(9, 24))):
        for node in (0, 1, nodes - 1, int(rng.integers(2, nodes - 1))):
            yield _case(diagnose, rng, node, nodes)


@check(DIAGNOSIS, points=0.5)
def noise_is_no_fault_and_twice_the_time_is_one(diagnose, *, rng):
    """If all is well, None is returned, although measurements vary; a fault that just doubles the time is found."""
    for nodes in (4, 8, int(rng.integers(9, 33))):
        yield _case(diagnose, rng, None, nodes, noise=NOISE)
        yield _case(diagnose, rng, "cards", nodes, factor=2.0)
