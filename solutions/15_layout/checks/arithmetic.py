"""Exercise 4: operations of a model, and the sizes at which messages take as long."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import caught, expect_close, expect_equal, expect_raises

ARITHMETIC = "15-ex4-arithmetic"
#: name → (peak operations a second, bytes a second, bytes of a number).
MACHINES = {
    "H100, NVLink": (989e12, 450e9, 2),
    "H100, network": (989e12, 50e9, 2),
    "A100 in float32": (19.5e12, 25e9, 4),
    "a laptop": (1e11, 1e9, 8),
}


def _played(kind: str, n: int, peak: float, bandwidth: float, itemsize: int) -> float:
    """The size at which both times are equal, by adding up a ring's messages for one unit of the size.

    fsdp, for each weight: operations grow with the tokens, messages do not. tp and pp, for each token: operations grow
    with the square of the width (pp: times the layers), messages with the width.
    """
    chunk = Fraction(itemsize, n)  # of one number, cut over the ring
    rounds = range(n - 1)
    if kind == "fsdp":
        sent = sum(chunk for _ in range(3) for _ in rounds)
        operations = Fraction(6)
    elif kind == "tp":
        sent = sum(chunk for _ in range(4) for _ in range(2) for _ in rounds)
        operations = Fraction(6 * 12, n)
    else:
        sent, operations = Fraction(2 * itemsize), Fraction(6 * 12)
    return float(sent / Fraction(bandwidth) * Fraction(peak) / operations)


@check(ARITHMETIC, points=1.75)
def sizes_make_both_times_equal(critical, *, rng):
    """At the returned size, a float, messages of a ring take exactly as long as the operations, for each kind."""
    for machine, (peak, bandwidth, itemsize) in MACHINES.items():
        for kind in ("fsdp", "tp", "pp"):
            for n in (8, 1, 2, 3, 64, 1000):
                case = f"{kind!r}, n = {n}, {machine}"
                got = critical(kind, n, peak, bandwidth, itemsize)
                expect_equal(case, isinstance(got, float), True, what="whether a float is returned", evidence=str(got))
                want = _played(kind, n, peak, bandwidth, itemsize)
                expect_close(case, got, np.array(want), what="the size", rtol=1e-9, evidence=got)
    got, want = critical("tp", 8, 989e12, 450e9), _played("tp", 8, 989e12, 450e9, 2)
    expect_close("'tp', n = 8, without itemsize", got, np.array(want), what="the size", rtol=1e-9)


@check(ARITHMETIC, points=0.75)
def operations_are_those_of_the_model(flops_per_token, mfu, *, rng):
    """6P + 12Lhs operations a token, the second term halved if causal; mfu is their share of the peak. Both floats."""
    for _ in range(4):
        params, layers, hidden, seq = (int(n) for n in rng.integers(1, 1000, 4))
        for causal in (False, True):
            case = f"params = {params}, layers = {layers}, hidden = {hidden}, seq = {seq}, causal = {causal}"
            want = 6 * params + layers * hidden * seq * (6 if causal else 12)
            got = flops_per_token(params, layers, hidden, seq, causal)
            expect_equal(case, isinstance(got, float), True, what="whether a float is returned", evidence=str(got))
            expect_close(case, got, np.array(float(want)), what="the number of operations", rtol=1e-12)
        flops, tokens, seconds, peak = (float(x) for x in rng.uniform(1, 100, 4))
        gpus = int(rng.integers(1, 9))
        case = f"mfu({flops:.3g}, {tokens:.3g}, {seconds:.3g}, {gpus}, {peak:.3g})"
        want = tokens * flops / seconds / gpus / peak
        expect_close(case, mfu(flops, tokens, seconds, gpus, peak), np.array(want), what="the utilization", rtol=1e-12)
    got = flops_per_token(10, 2, 3, 5)
    expect_equal("without causal", math.isclose(got, 420.0), True, what="whether attention is whole", evidence=got)


@check(ARITHMETIC, points=0.5)
def other_kinds_and_no_ranks_are_refused(critical, *, rng):
    """Another kind, or n below 1, raises a ValueError that names `kind` or `n`."""
    cases = (
        ("dp", 2, "kind"),
        ("TP", 2, "kind"),
        ("tp2", 2, "kind"),
        ("sdp", 2, "kind"),
        ("tp", 2, ""),
        ("fsdp", 0, "n"),
        ("tp", -1, "n"),
        ("pp", 0, "n"),
    )
    # What every case raises: one kind alone does not tell one mistake from another.
    said = [caught(critical, kind, n, 1e12, 1e9)[0] for kind, n, _ in cases]
    for kind, n, named in cases:
        case = f"critical({kind!r}, {n}, …)"
        if named:
            expect_raises(case, critical, kind, n, 1e12, 1e9, error=ValueError, mentions=named, evidence=said)
        else:
            want = np.array(_played(kind, n, 1e12, 1e9, 2))
            expect_close(case, critical(kind, n, 1e12, 1e9), want, what="the size", rtol=1e-9)
