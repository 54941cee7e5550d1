"""All attacks, as data: see `kinds.Attack`."""

from __future__ import annotations

import attacks_kernel
import attacks_ledger
import attacks_notebook
import attacks_reads
import attacks_system
import attacks_values
import attacks_wire
from lessons import RING

ATTACKS = [
    *attacks_values.ATTACKS,
    *attacks_kernel.ATTACKS,
    *attacks_reads.ATTACKS,
    *attacks_system.ATTACKS,
    *attacks_notebook.ATTACKS,
    *attacks_ledger.ATTACKS,
    *attacks_wire.ATTACKS,
]
#: Those on single functions, and those on ranks, which take a few seconds each.
QUICK = [attack for attack in ATTACKS if attack.lesson != RING]
RANKS = [attack for attack in ATTACKS if attack.lesson == RING]


def find(name: str):
    """The attack of this name."""
    return next(attack for attack in ATTACKS if attack.name == name)
