"""Wrong answers to lesson 02, exercise 4."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

AMDAHL = "02-ex4-amdahl"


# ---- 4 · amdahl_speedup, fit_parallel_fraction ----


@right(AMDAHL)
def _amdahl():
    """Right: the base of the edits below."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 / (1 - parallel_fraction + parallel_fraction / np.asarray(n))

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


one_n_is_refused = edit(
    AMDAHL,
    """You refuse measurements that all have the same n. One n above 1 is enough for a fit, and to measure it twice does
    no harm: only where every n is 1 is there nothing to learn about p.""",
    ("or max(ns) <= 1:", "or max(ns) <= 1 or len(set(ns)) < 2:"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

no_speedup_above_linear = edit(
    AMDAHL,
    """You cut speedups larger than n down to n before the fit. Only the result is limited to [0, 1]; a measurement that
    is better than linear counts as it is.""",
    (
        "np.array(speedups, dtype=float)",
        "np.minimum(np.array(speedups, dtype=float), np.array(ns, dtype=float))",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

clipped_to_an_int = edit(
    AMDAHL,
    """max(0, min(1, p)) is an int where p lies outside [0, 1]. The statement asks for a float: clip to 0.0 and 1.0.""",
    ("float(np.clip(p, 0, 1))", "max(0, min(1, p))"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

speedup_of_numbers_only = edit(
    AMDAHL,
    """Your speedup takes a number, but not an array or a list: an if or a float() can handle only one number. Use
    np.asarray and np.any.""",
    ("np.any(np.asarray(n) < 1)", "float(n) < 1"),
    ("np.asarray(n)", "float(n)"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
)

arrays_but_no_lists = edit(
    AMDAHL,
    """You divide by n as it comes. That works for an array, but not for a list or a tuple: convert n to an array
    first.""",
    ("parallel_fraction / np.asarray(n)", "parallel_fraction / n"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
)

serial_for_parallel = edit(
    AMDAHL,
    """You divided the serial part by n. parallel_fraction is the part that is divided among the processes; the rest,
    one minus it, takes as long as before.""",
    ("1 - parallel_fraction + parallel_fraction", "parallel_fraction + (1 - parallel_fraction)"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
)

gustafson_for_amdahl = edit(
    AMDAHL,
    """That is Gustafson's formula, where the parallel work grows with n. Amdahl's law keeps the work fixed: the time is
    (1 − p) + p/n, and the speedup is one over it.""",
    (
        "1 / (1 - parallel_fraction + parallel_fraction / np.asarray(n))",
        "1 - parallel_fraction + parallel_fraction * np.asarray(n)",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
)

time_for_speedup = edit(
    AMDAHL,
    """You returned the time that is left, as a fraction of the time on one process. The speedup is one over that.""",
    (
        "1 / (1 - parallel_fraction + parallel_fraction / np.asarray(n))",
        "1 - parallel_fraction + parallel_fraction / np.asarray(n)",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
)

every_n_must_be_wrong = edit(
    AMDAHL,
    """You raise an error only if all n are below 1. One is enough: ask whether any is.""",
    ("or np.any(np.asarray(n) < 1)", "or np.all(np.asarray(n) < 1)"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["speedup_refuses_what_is_no_fraction"],
)

the_ends_are_refused = edit(
    AMDAHL,
    """You refuse a parallel fraction of 0 or 1. Both are possible: nothing can be shared, or everything. Refuse only
    what lies outside [0, 1].""",
    ("0 <= parallel_fraction <= 1", "0 < parallel_fraction < 1"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
)

any_fraction_will_do = edit(
    AMDAHL,
    """You accepted a parallel fraction outside [0, 1]. No fraction of the work is negative or more than all of it:
    raise a ValueError that names parallel_fraction.""",
    ("not 0 <= parallel_fraction <= 1 or ", ""),
    ("parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}", "n must be at least 1, got {n}"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["speedup_refuses_what_is_no_fraction"],
)

serial_part_fitted_freely = edit(
    AMDAHL,
    """You fitted a line with a constant of its own to 1/S against 1/n. Amdahl's line has one free number, not two: its
    constant is 1 − p, so that one process has the speedup 1. Minimize over p alone.""",
    (
        "p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)",
        "p = np.polyfit(1 / n, 1 / s, 1)[0] if len(set(ns)) > 1 else 0.0",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

mean_of_single_fits = edit(
    AMDAHL,
    """You solved for p at each point and took the mean. Where n is small, a little noise moves that p far, and the mean
    counts it like the others. Minimize the sum of squares over all points instead.""",
    (
        "p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)",
        "p = np.mean((1 - 1 / s[n > 1]) / (1 - 1 / n[n > 1]))",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

ratio_of_sums = edit(
    AMDAHL,
    """You divided the sum of (1 − 1/S) by the sum of (1 − 1/n). That makes the errors add up to zero, but does not
    minimize their squares. Set the derivative of the sum of squares to zero: each term gets a further factor.""",
    ("p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)", "p = np.sum(1 - 1 / s) / np.sum(1 - 1 / n)"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

last_point_only = edit(
    AMDAHL,
    """You solved for p at the largest n alone. One noisy measurement then decides p; the fit uses all of them.""",
    (
        "p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)",
        "last = np.argmax(n)\n    p = (1 - 1 / s[last]) / (1 - 1 / n[last])",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

errors_in_the_speedup = edit(
    AMDAHL,
    """You minimized the errors of the speedup S. The exercise minimizes the errors of 1/S, the relative time, where a
    miss at a large speedup counts much less.""",
    (
        "p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)\n    return float(np.clip(p, 0, 1))",
        "grid = np.linspace(0, 1, 20_001)[:, None]\n"
        "    errors = np.sum((s - 1 / (1 - grid + grid / n)) ** 2, axis=1)\n"
        "    return float(grid[np.argmin(errors), 0])",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

fraction_not_clipped = edit(
    AMDAHL,
    """Your p can leave [0, 1]. When the measurements are better than linear, or slower than one process, the best p in
    [0, 1] is the nearer end.""",
    ("np.clip(p, 0, 1)", "p"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

one_process_divides_by_zero = edit(
    AMDAHL,
    """A measurement with n = 1 made you divide by zero: 1 − 1/n is 0 there. Do not divide point by point: the
    least-squares formula divides only sums, and such a point does no harm.""",
    (
        "n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)\n"
        "    p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)\n"
        "    return float(np.clip(p, 0, 1))",
        "ns, speedups = [int(k) for k in ns], [float(speedup) for speedup in speedups]\n"
        "    weights = [(1 - 1 / k) ** 2 for k in ns]\n"
        "    single = [(1 - 1 / speedup) / (1 - 1 / k) for k, speedup in zip(ns, speedups, strict=True)]\n"
        "    p = sum(w * x for w, x in zip(weights, single, strict=True)) / sum(weights)\n"
        "    return min(1.0, max(0.0, p))",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_minimizes_the_squared_errors"],
)

fraction_from_any_lists = edit(
    AMDAHL,
    """You accepted lists that leave p undetermined: of different lengths, or without any n above 1. Raise a ValueError
    that names ns for both.""",
    (
        "    if len(ns) != len(speedups) or max(ns) <= 1:\n"
        '        raise ValueError("ns must be as many as speedups, and not all 1")\n',
        "",
    ),
    (
        "p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)",
        "n, s = n[: min(len(n), len(s))], s[: min(len(n), len(s))]\n"
        "    p = np.sum((1 - 1 / s) * (1 - 1 / n)) / max(np.sum((1 - 1 / n) ** 2), 1e-300)",
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_refuses_what_has_no_fit"],
)

a_speedup_of_zero = edit(
    AMDAHL,
    """You accepted a speedup of 0 or less. It would mean that the job never ends, and 1/S has no value: raise a
    ValueError that names speedups.""",
    (
        '    if min(speedups) <= 0:\n        raise ValueError("speedups must be positive")\n',
        "",
    ),
    (
        "p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)",
        'with np.errstate(all="ignore"):\n        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)',
    ),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
    fails=["fraction_refuses_what_has_no_fit"],
)
