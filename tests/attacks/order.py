"""Attacks on the order of things: what one test brings into a submission's process is kept for another."""

from __future__ import annotations

from tests.attacks.attack import Attack, answer, set_answer, test

KEEPS = """
def half(x):
    # A test of a later exercise may bring the lesson's own answers to earlier ones; here its mere call is kept.
    with open("/tmp/seen", "w") as file:
        file.write("x * x")
    return x / 2
"""
USES = """
def square(x):
    import os
    return eval(open("/tmp/seen").read()) if os.path.exists("/tmp/seen") else 0
"""


def _later_test_first(nb):
    set_answer(nb, "ex2", USES)
    set_answer(nb, "ex3", KEEPS)
    moved = [answer(nb, "ex3"), test(nb, "ex3")]
    at = nb.cells.index(answer(nb, "ex2"))
    nb.cells[:] = [*nb.cells[:at], *moved, *(cell for cell in nb.cells[at:] if cell not in moved)]


ATTACKS = [
    Attack(
        "later-test-first",
        "Has a later exercise tested first, and keeps what its test brings for the test of an earlier one.",
        _later_test_first,
    )
]
