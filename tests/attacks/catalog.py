"""All attacks, as data: see `attack.Attack`."""

from __future__ import annotations

from tests.attacks import capstone, kernel, ledger, notebook, order, outside, reads, system, values, wire
from tests.attacks.lessons import CAPSTONE, ON_RANKS, RING

ATTACKS = [
    *values.ATTACKS,
    *kernel.ATTACKS,
    *reads.ATTACKS,
    *system.ATTACKS,
    *notebook.ATTACKS,
    *ledger.ATTACKS,
    *wire.ATTACKS,
    *outside.ATTACKS,
    *capstone.ATTACKS,
    *order.ATTACKS,
]
#: Those on single functions, and those on ranks, which take a few seconds each.
QUICK = [attack for attack in ATTACKS if attack.lesson not in ON_RANKS]
RANKS = [attack for attack in ATTACKS if attack.lesson == RING]
RUNS = [attack for attack in ATTACKS if attack.lesson == CAPSTONE]
#: What `make test` tries: every fourth, so that there are some of each kind.
SAMPLE = QUICK[::4]


def find(name: str):
    """The attack of this name."""
    return next(attack for attack in ATTACKS if attack.name == name)
