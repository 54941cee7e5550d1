"""All attacks, as data: see `attack.Attack`."""

from __future__ import annotations

from tests.attacks import kernel, ledger, notebook, outside, reads, system, values, wire
from tests.attacks.lessons import RING

ATTACKS = [
    *values.ATTACKS,
    *kernel.ATTACKS,
    *reads.ATTACKS,
    *system.ATTACKS,
    *notebook.ATTACKS,
    *ledger.ATTACKS,
    *wire.ATTACKS,
    *outside.ATTACKS,
]
#: Those on single functions, and those on ranks, which take a few seconds each.
QUICK = [attack for attack in ATTACKS if attack.lesson != RING]
RANKS = [attack for attack in ATTACKS if attack.lesson == RING]
#: What `make test` tries: every fourth, so that there are some of each kind.
SAMPLE = QUICK[::4]


def find(name: str):
    """The attack of this name."""
    return next(attack for attack in ATTACKS if attack.name == name)
