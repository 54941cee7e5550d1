"""Wrong answers to lesson 02: the subtle ones first in each exercise."""

# A mutant is read, not run: its names are those of the notebook, and its function is replaced by its source.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

TIMES, CROSSOVER, FIT = "02-ex1-ring-and-tree", "02-ex2-crossover", "02-ex3-fit"
AMDAHL, STEP, RATE = "02-ex4-amdahl", "02-ex5-step", "02-ex6-scaled-lr"


# ---- 1 · ring_time, tree_time ----


@right(TIMES)
def _times():
    """Right: the base of the edits below."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


ring_with_whole_bytes = edit(
    TIMES,
    """You rounded the chunk to whole bytes, with // or int. The model takes T/N as it is: with 10 bytes on 4 ranks a
    chunk is 2.5 bytes. Divide with a single slash.""",
    ("nbytes / n", "(nbytes // n)"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_with_n_rounds = edit(
    TIMES,
    """Each half of your ring has N rounds; it needs N − 1. A chunk starts on one rank and must visit the N − 1
    others: it does not have to come back.""",
    (
        "return 2 * (n - 1) * (alpha + beta * nbytes / n)",
        "return 2 * n * (alpha + beta * nbytes / n) if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_in_one_half = edit(
    TIMES,
    """You counted only one half of the all-reduce. After the N − 1 rounds of the reduce-scatter each rank holds one
    chunk of the sum; the all-gather takes another N − 1 rounds.""",
    ("return 2 * (n - 1)", "return (n - 1)"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_starts_one_message = edit(
    TIMES,
    """Your ring pays alpha once, but every round starts a message of its own. Multiply the cost of a whole message,
    alpha included, by the number of rounds.""",
    ("return 2 * (n - 1) * (alpha + beta * nbytes / n)", "return alpha + 2 * (n - 1) / n * beta * nbytes"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_of_whole_vectors = edit(
    TIMES,
    """Your ring sends the whole vector in every round. The point of the ring is that a message is one chunk, one N-th
    of the vector.""",
    ("nbytes / n", "nbytes"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_of_2n_minus_1 = edit(
    TIMES,
    """Your ring has 2N − 1 rounds. It has two halves of N − 1 rounds each: check the brackets in 2(N − 1).""",
    (
        "return 2 * (n - 1) * (alpha + beta * nbytes / n)",
        "return (2 * n - 1) * (alpha + beta * nbytes / n) if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

tree_without_rounding_up = edit(
    TIMES,
    """You did not round log2 of N. There are no fractional rounds: 5 ranks have log2 N = 2.32 and need three rounds.
    Round up.""",
    ("math.ceil(math.log2(n))", "math.log2(n)"),
    base=_times,
    breaks=tests_of(TIMES),
)

tree_rounds_down = edit(
    TIMES,
    """You rounded log2 of N down. After k rounds at most 2^k ranks have been reached, so two rounds are not enough for
    five ranks. Round up.""",
    ("2 * math.ceil(math.log2(n))", "2 * int(math.log2(n))"),
    base=_times,
    breaks=tests_of(TIMES),
)

tree_one_level_too_deep = edit(
    TIMES,
    """For powers of two your tree has one level too many. The number of ranks that have the vector doubles in each
    round, so 4 ranks are reached in 2 rounds. If you count the bits of N, compare them with the bits of N − 1.""",
    (
        "return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)",
        "levels = int(n).bit_length() if n > 1 else 0\n    return 2 * levels * (alpha + beta * nbytes)",
    ),
    base=_times,
    breaks=tests_of(TIMES),
)

tree_up_only = edit(
    TIMES,
    """You counted the tree once. After the way up only the root has the sum; the way down to the other ranks takes as
    many rounds again.""",
    ("return 2 * math.ceil(math.log2(n))", "return math.ceil(math.log2(n))"),
    base=_times,
    breaks=tests_of(TIMES),
)

tree_of_chunks = edit(
    TIMES,
    """Your tree sends chunks of T/N bytes. Only the ring cuts the vector; every message of the tree is the whole
    vector.""",
    ("(alpha + beta * nbytes)", "(alpha + beta * nbytes / n)"),
    base=_times,
    breaks=tests_of(TIMES),
)

tree_starts_one_message_a_way = edit(
    TIMES,
    """Your tree pays alpha only twice, once up and once down. Every round starts a message: multiply alpha by the
    number of rounds, as you do with the bytes.""",
    (
        "return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)",
        "return 2 * alpha + 2 * math.ceil(math.log2(n)) * beta * nbytes if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES),
)

nothing_to_send_costs_nothing = edit(
    TIMES,
    """For 0 bytes you returned 0. A message without content must still be started: with T = 0 each round costs
    alpha.""",
    (
        "return 2 * (n - 1) * (alpha + beta * nbytes / n)",
        "if nbytes == 0:\n        return 0.0\n    return 2 * (n - 1) * (alpha + beta * nbytes / n)",
    ),
    base=_times,
    breaks=tests_of(TIMES),
)

refuses_zero = edit(
    TIMES,
    """You refuse zeros. Only negative numbers are wrong: the model still has an answer when nbytes, alpha or beta is 0.
    Compare with <, not with <=.""",
    (
        "if value < least:\n"
        '            raise ValueError(f"{name} must be at least {least}, got {value}")\n'
        "    return 2 * (n - 1) * (alpha + beta * nbytes / n)",
        "if value <= 0 or value < least:\n"
        '            raise ValueError(f"{name} must be at least {least}, got {value}")\n'
        "    return 2 * (n - 1) * (alpha + beta * nbytes / n)",
    ),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)


@mutant(TIMES, breaks=tests_of(TIMES))
def ring_refuses_nothing():
    """Your ring_time returns a time for impossible arguments. Before anything else, raise a ValueError that names the
    argument if n is below 1 or if nbytes, alpha or beta is negative."""

    def ring_time(nbytes, n, alpha, beta):
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_refuses_less_than_the_ring():
    """Your ring_time refuses wrong arguments; tree_time does not, or not all of them. Both must refuse the same ones: n
    below 1, and a negative nbytes, alpha or beta."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes) if n > 1 else 0.0


# ---- 2 · crossover_bytes ----


@right(CROSSOVER)
def _crossover():
    """Right: the base of the edits below."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


infinite_before_zero = edit(
    CROSSOVER,
    """You return infinity whenever beta is 0. For N ≤ 3, or when starting a message is free as well, the ring is never
    slower than the tree, and the answer is 0.0. Ask the two questions in the other order.""",
    ("if n <= 3 or alpha == 0:", "if n == 1:"),
    base=_crossover,
    breaks=tests_of(CROSSOVER),
)

rounded_to_whole_bytes = edit(
    CROSSOVER,
    """You rounded the crossover to whole bytes. It is the point where two lines of the model meet: return the float as
    it is.""",
    (
        "return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)",
        "return round(alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n))",
    ),
    base=_crossover,
    breaks=tests_of(CROSSOVER),
)


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def free_bytes_divide_by_zero():
    """With beta = 0 you divide by zero. When bytes are free only the rounds count, and from 4 ranks on the ring has
    more of them: it never catches up, and the answer is math.inf."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


one_rank_divides_by_zero = edit(
    CROSSOVER,
    """For one rank you divide by zero: L and (N − 1)/N are both 0. A single rank sends nothing, so the ring is not
    slower: return 0.0 for every N up to 3 before you divide.""",
    ("if n <= 3 or alpha == 0:", "if alpha == 0:"),
    ("return math.inf", "return 0.0 if n <= 3 else math.inf"),
    base=_crossover,
    breaks=tests_of(CROSSOVER),
)

forgets_the_bytes_of_the_ring = edit(
    CROSSOVER,
    """You left out the bytes that the ring sends, (N − 1)/N of a vector in each half. Both sides of the equation have a
    term with beta: bring them to one side.""",
    ("(levels - (n - 1) / n)", "levels"),
    base=_crossover,
    breaks=tests_of(CROSSOVER),
)

prices_upside_down = edit(
    CROSSOVER,
    """You divided beta by alpha. The more it costs to start a message, the longer the tree stays ahead, so alpha
    belongs in the numerator. The units say the same: seconds divided by seconds per byte are bytes.""",
    ("alpha / beta", "beta / alpha"),
    base=_crossover,
    breaks=tests_of(CROSSOVER),
)

twice_the_rounds_of_the_ring = edit(
    CROSSOVER,
    """You gave the ring 2(N − 1) rounds and the tree L. Both go through two halves: compare 2(N − 1) with 2L, and the
    twos cancel.""",
    ("beta * (n - 1 - levels)", "beta * (2 * (n - 1) - levels)"),
    base=_crossover,
    breaks=tests_of(CROSSOVER),
)

levels_not_rounded = edit(
    CROSSOVER,
    """You used log2 of N without rounding it up. For N = 5 the tree needs three rounds, not 2.32. Your result is right
    only where N is a power of two.""",
    ("levels = math.ceil(math.log2(n))", "levels = math.log2(n)"),
    base=_crossover,
    breaks=tests_of(CROSSOVER),
)


# ---- 3 · fit_alpha_beta ----


@right(FIT)
def _fit():
    """Right: the base of the edits below."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta, alpha = np.polyfit(m, t, 1)
        return alpha, beta


in_the_order_of_polyfit = edit(
    FIT,
    """You returned (beta, alpha). np.polyfit gives the highest power first, so the slope comes before the constant; the
    exercise asks for alpha first.""",
    ("return alpha, beta", "return beta, alpha"),
    base=_fit,
    breaks=tests_of(FIT),
)

errors_in_percent = edit(
    FIT,
    """You weighted the points, so that errors count relative to the time. That can be useful, but it is another line:
    in this exercise every point counts the same, and errors are in seconds.""",
    ("np.polyfit(m, t, 1)", "np.polyfit(m, t, 1, w=1 / t)"),
    base=_fit,
    breaks=tests_of(FIT),
)

clipped_at_zero = edit(
    FIT,
    """You clip a negative alpha to 0. A latency cannot be negative, but the best fit to noisy points can be, and the
    caller should see that. Return what least squares gives.""",
    ("return alpha, beta", "return max(0.0, alpha), beta"),
    base=_fit,
    breaks=tests_of(FIT),
)

halves_again = edit(
    FIT,
    """You halved the times. They are one-way times already: the measurement has divided the round trip by two. Halving
    them again halves both alpha and beta.""",
    ("np.polyfit(m, t, 1)", "np.polyfit(m, t / 2, 1)"),
    base=_fit,
    breaks=tests_of(FIT),
)


@mutant(FIT, breaks=tests_of(FIT))
def whole_numbers_overflow():
    """You calculated with numpy's integers. The square of 4 GB does not fit into 64 bits, and numpy wraps it around
    without an error. Convert the sizes to float64 first."""

    def fit_alpha_beta(sizes, seconds):
        with np.errstate(all="ignore"):
            m, t = np.array(sizes), np.array(seconds)
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta = (len(m) * np.sum(m * t) - np.sum(m) * np.sum(t)) / (len(m) * np.sum(m * m) - np.sum(m) ** 2)
        return np.mean(t) - beta * np.mean(m), beta


@mutant(FIT, breaks=tests_of(FIT))
def latency_is_the_smallest_message():
    """You took the time of the smallest message as alpha and fitted only beta. One noisy point then decides alpha. Let
    all points decide both numbers at once."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        first = np.argmin(m)
        alpha = t[first]
        rest = m - m[first]
        beta = rest @ (t - alpha) / (rest @ rest)
        return alpha, beta


@mutant(FIT, breaks=tests_of(FIT))
def line_through_the_ends():
    """You drew the line through the smallest and the largest message, so the points between them count for nothing.
    Least squares uses all points."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        low, high = np.argmin(m), np.argmax(m)
        beta = (t[high] - t[low]) / (m[high] - m[low])
        return t[low] - beta * m[low], beta


@mutant(FIT, breaks=tests_of(FIT))
def line_through_the_origin():
    """Your line passes through the origin, so alpha is always 0. A message of 0 bytes is not free: the constant must
    be fitted as well."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        return 0.0, m @ t / (m @ m)


@mutant(FIT, breaks=tests_of(FIT))
def on_logarithms():
    """You fitted a line to the logarithms. A straight line there is a power of the size, not a constant plus a slope:
    plots may have logarithmic axes, the model does not."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        power, constant = np.polyfit(np.log(m), np.log(t), 1)
        return np.exp(constant), power


bandwidth_for_beta = edit(
    FIT,
    """Your second number is a bandwidth, in bytes per second. beta is its reciprocal, in seconds per byte.""",
    ("return alpha, beta", "return alpha, 1 / beta"),
    base=_fit,
    breaks=tests_of(FIT),
)


@mutant(FIT, breaks=tests_of(FIT))
def means_of_neighbors():
    """You averaged the slopes between neighboring points. Two sizes that are close together then count as much as two
    that are far apart, although their small distance magnifies the noise. Use all points in one least-squares fit."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        order = np.argsort(m)
        steps = np.diff(m[order])
        keep = steps > 0
        beta = np.mean(np.diff(t[order])[keep] / steps[keep])
        return np.mean(t) - beta * np.mean(m), beta


@mutant(FIT, breaks=tests_of(FIT))
def sorts_the_callers_sizes():
    """You changed the caller's arguments, for example by sorting them in place. The caller still needs them, and sizes
    sorted on their own no longer match their times. Work on copies; a fit needs no order."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        if isinstance(sizes, np.ndarray):
            seconds[:], sizes[:] = seconds[np.argsort(sizes)], np.sort(sizes)
        beta, alpha = np.polyfit(m, t, 1)
        return alpha, beta


@mutant(FIT, breaks=tests_of(FIT))
def two_points_of_one_size():
    """You counted points, not distinct sizes. Three messages of the same size say nothing about the slope: the
    denominator is zero. Raise a ValueError for fewer than two distinct sizes."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(m) < 2:
            raise ValueError("sizes must be as many as seconds, and at least two")
        offset = m - m.mean()
        beta = offset @ t / max(offset @ offset, 1e-300)
        return t.mean() - beta * m.mean(), beta


@mutant(FIT, breaks=tests_of(FIT))
def lengths_may_differ():
    """You accepted lists of different lengths. The measurements were then paired wrongly: raise a ValueError that names
    sizes, before numpy broadcasts or zip drops the surplus."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(set(m.tolist())) < 2:
            raise ValueError("sizes must hold two distinct values")
        t = np.resize(t, len(m))
        beta, alpha = np.polyfit(m, t, 1)
        return alpha, beta


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
)

ratio_of_sums = edit(
    AMDAHL,
    """You divided the sum of (1 − 1/S) by the sum of (1 − 1/n). That makes the errors add up to zero, but does not
    minimize their squares. Set the derivative of the sum of squares to zero: each term gets a further factor.""",
    ("p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)", "p = np.sum(1 - 1 / s) / np.sum(1 - 1 / n)"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
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
)

fraction_not_clipped = edit(
    AMDAHL,
    """Your p can leave [0, 1]. When the measurements are better than linear, or slower than one process, the best p in
    [0, 1] is the nearer end.""",
    ("np.clip(p, 0, 1)", "p"),
    base=_amdahl,
    breaks=tests_of(AMDAHL),
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
)


# ---- 5 · scaling_efficiency, step_time ----


@right(STEP)
def _step():
    """Right: the base of the edits of scaling_efficiency."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


_step_with_ring = edit(
    STEP,
    """Right: the base of the edits of step_time.""",
    (
        "return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)",
        "ring = ring_time(nbytes, n, alpha, beta)\n    return compute + max(0.0, ring - overlap * compute)",
    ),
    base=_step,
)

relative_to_the_first = edit(
    STEP,
    """You compared with the first measurement in the list. It need not be the one with the smallest n: look for that
    one.""",
    ("np.argmin(ns)", "0"),
    base=_step,
    breaks=tests_of(STEP),
)

smallest_n_taken_for_one = edit(
    STEP,
    """You compared n · t with t₀ alone, as if the smallest n were always 1. With n₀ processes, perfect scaling would
    keep the cost at n₀ · t₀.""",
    (
        "work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)",
        "n, t = np.array(ns, dtype=float), np.array(seconds, dtype=float)",
    ),
    ("return work[np.argmin(ns)] / work", "return t[np.argmin(n)] / (n * t)"),
    base=_step,
    breaks=tests_of(STEP),
)

in_the_order_of_n = edit(
    STEP,
    """You sorted the result by n. Keep the order in which the measurements were given, so that the caller can match
    each efficiency with its measurement.""",
    (
        "work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)\n    return work[np.argmin(ns)] / work",
        "order = np.argsort(ns)\n"
        "    work = (np.array(ns, dtype=float) * np.array(seconds, dtype=float))[order]\n"
        "    return work[0] / work",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

writes_into_the_times = edit(
    STEP,
    """You changed the caller's arrays. np.asarray does not copy an array of floats, so multiplying its result in place
    changes the original. Write a = a * b, not a *= b, or make a copy.""",
    (
        "work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)\n    return work[np.argmin(ns)] / work",
        "n, t = np.asarray(ns, dtype=float), np.asarray(seconds, dtype=float)\n"
        "    t *= n\n"
        "    return t[np.argmin(n)] / t",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

never_above_one = edit(
    STEP,
    """You cut efficiencies off at 1. Measurements can be better than linear, for example when each process's data fits
    into its cache, and the reader should see it.""",
    ("return work[np.argmin(ns)] / work", "return np.minimum(1.0, work[np.argmin(ns)] / work)"),
    base=_step,
    breaks=tests_of(STEP),
)

weak_for_strong_scaling = edit(
    STEP,
    """You divided the times only, t₀/t. That is the efficiency of weak scaling, where the work grows with n. Here the
    total work stays the same, so the number of processes counts too: compare n · t.""",
    ("work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)", "t = np.array(seconds, dtype=float)"),
    ("return work[np.argmin(ns)] / work", "return t[np.argmin(ns)] / t"),
    base=_step,
    breaks=tests_of(STEP),
)

efficiency_upside_down = edit(
    STEP,
    """Your efficiency is upside down: it grows as scaling gets worse. Divide the cost of perfect scaling by the
    measured cost, not the other way round.""",
    ("return work[np.argmin(ns)] / work", "return work / work[np.argmin(ns)]"),
    base=_step,
    breaks=tests_of(STEP),
)

relative_to_the_slowest = edit(
    STEP,
    """You compared with the largest n · t. The reference is the measurement with the smallest n, whether it is the most
    expensive or not.""",
    ("work[np.argmin(ns)]", "work.max()"),
    base=_step,
    breaks=tests_of(STEP),
)

less_than_nothing_sticks_out = edit(
    STEP,
    """When the ring takes less time than it can hide behind, you subtract the difference from the step. Communication
    cannot shorten the computation: the part that stays visible is at least 0.""",
    ("return compute + max(0.0, ring - overlap * compute)", "return compute + ring - overlap * compute"),
    base=_step_with_ring,
    breaks=tests_of(STEP),
)

a_part_of_the_ring_is_hidden = edit(
    STEP,
    """You took overlap as the part of the *messages* that is hidden. It is the part of the *computation* behind which
    they can hide: a shorter ring is hidden completely, and of a longer one only the excess is visible.""",
    ("return compute + max(0.0, ring - overlap * compute)", "return compute + (1 - overlap) * ring"),
    base=_step_with_ring,
    breaks=tests_of(STEP),
)

overlap_the_other_way_round = edit(
    STEP,
    """You let messages hide behind 1 − overlap of the computation. An overlap of 0 means that nothing can be hidden, an
    overlap of 1 that messages can travel during the whole computation.""",
    ("ring - overlap * compute", "ring - (1 - overlap) * compute"),
    base=_step_with_ring,
    breaks=tests_of(STEP),
)

the_longer_of_the_two = edit(
    STEP,
    """You took the longer of computation and communication. That is right only for overlap = 1, when messages can
    travel during the whole computation; for less, part of the computation hides nothing.""",
    ("return compute + max(0.0, ring - overlap * compute)", "return max(compute, ring)"),
    base=_step_with_ring,
    breaks=tests_of(STEP),
)

no_overlap_at_all = edit(
    STEP,
    """You added the whole ring to the computation, whatever the overlap is. The part that can hide behind the
    computation takes no extra time.""",
    ("return compute + max(0.0, ring - overlap * compute)", "return compute + ring"),
    base=_step_with_ring,
    breaks=tests_of(STEP),
)

a_tree_for_the_ring = edit(
    STEP,
    """You used the tree's time. The step all-reduces its gradients with the ring: use ring_time.""",
    ("0.0, ring_time(nbytes, n, alpha, beta)", "0.0, tree_time(nbytes, n, alpha, beta)"),
    base=_step,
    breaks=tests_of(STEP),
)

only_what_sticks_out = edit(
    STEP,
    """You returned only the part of the communication that stays visible. The step takes the time of the computation,
    too.""",
    ("return compute + max(0.0, ring - overlap * compute)", "return max(0.0, ring - overlap * compute)"),
    base=_step_with_ring,
    breaks=tests_of(STEP),
)


@mutant(STEP, breaks=tests_of(STEP))
def any_overlap_will_do():
    """You accepted an overlap outside [0, 1]. It is a part of the computation, at most all of it: raise a ValueError
    that names overlap."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        ring = ring_time(nbytes, n, alpha, beta)
        return compute + max(0.0, ring - overlap * compute)


overlap_strictly_inside = edit(
    STEP,
    """You refuse an overlap of 0 or 1. Both are allowed: messages can hide behind none of the computation, or behind
    all of it.""",
    ("if not 0 <= overlap <= 1:", "if not 0 < overlap < 1:"),
    base=_step_with_ring,
    breaks=tests_of(STEP),
)


# ---- 6 · scaled_lr ----


@right(RATE)
def _rate():
    """Right: the base of the edits below."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


one_step_ahead = edit(
    RATE,
    """Your warm-up is one step ahead: step 0 should have base_lr itself, and step warmup_steps is the first with the
    target. Steps are counted from 0.""",
    (
        "return base_lr + (target - base_lr) * step / warmup_steps",
        "return base_lr + (target - base_lr) * (step + 1) / warmup_steps",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

target_in_the_last_warmup_step = edit(
    RATE,
    """Your warm-up reaches the target one step too early: you divide by warmup_steps − 1. In the last warm-up step the
    rate is still one increment below the target.""",
    ("step / warmup_steps", "step / max(1, warmup_steps - 1)"),
    base=_rate,
    breaks=tests_of(RATE),
)

warms_up_from_zero = edit(
    RATE,
    """Your warm-up starts at 0. Other schedules do that; the gradual warm-up of Goyal et al. starts at base_lr, which
    is known to work, and climbs from there.""",
    ("base_lr + (target - base_lr)", "target"),
    base=_rate,
    breaks=tests_of(RATE),
)


@mutant(RATE, breaks=tests_of(RATE))
def no_warmup_divides_by_zero():
    """With warmup_steps = 0 you divide by zero. No warm-up means the target at once: ask whether the warm-up is over
    before you divide."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        return base_lr + (target - base_lr) * min(1.0, step / warmup_steps)


never_below_base_lr = edit(
    RATE,
    """You keep the learning rate from falling below base_lr. The rule works in both directions: a batch that is half
    as large gets half the learning rate.""",
    ("batch / base_batch", "max(1.0, batch / base_batch)"),
    base=_rate,
    breaks=tests_of(RATE),
)

whole_k_only = edit(
    RATE,
    """You divided the batch sizes with //. k need not be a whole number: 384 is one and a half times 256. Divide with a
    single slash.""",
    ("batch / base_batch", "(batch // base_batch)"),
    base=_rate,
    breaks=tests_of(RATE),
)

climbs_forever = edit(
    RATE,
    """Your learning rate goes on climbing after the warm-up. From step warmup_steps on it is the target and stays
    there.""",
    ("if step >= warmup_steps:", "if warmup_steps == 0:"),
    base=_rate,
    breaks=tests_of(RATE),
)

constant_warmup = edit(
    RATE,
    """You stay at base_lr during the warm-up and jump to the target at its end. That is the constant warm-up with which
    Goyal et al. compare; the gradual one climbs in equal increments.""",
    ("return base_lr + (target - base_lr) * step / warmup_steps", "return base_lr"),
    base=_rate,
    breaks=tests_of(RATE),
)

climbs_by_factors = edit(
    RATE,
    """You multiply by the same factor in each step. The warm-up adds the same amount in each step: a straight line,
    not an exponential.""",
    (
        "return base_lr + (target - base_lr) * step / warmup_steps",
        "return base_lr * (batch / base_batch) ** (step / warmup_steps)",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

square_root_scaling = edit(
    RATE,
    """You scaled the learning rate by the square root of k. That is another rule; the linear one multiplies by k
    itself.""",
    ("batch / base_batch", "math.sqrt(batch / base_batch)"),
    base=_rate,
    breaks=tests_of(RATE),
)

k_upside_down = edit(
    RATE,
    """You divided base_batch by batch. A larger batch gets a larger learning rate: k is the new batch size over the old
    one.""",
    ("batch / base_batch", "base_batch / batch"),
    base=_rate,
    breaks=tests_of(RATE),
)


@mutant(RATE, breaks=tests_of(RATE))
def no_scaling():
    """Your learning rate is base_lr in every step, whatever the batch. The target is k times base_lr."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        return base_lr


zero_warmup_is_refused = edit(
    RATE,
    """You refuse warmup_steps = 0. It means that there is no warm-up: the rate is the target from step 0 on. Only a
    negative number is wrong.""",
    ("if warmup_steps < 0:", "if warmup_steps <= 0:"),
    base=_rate,
    breaks=tests_of(RATE),
)


@mutant(RATE, breaks=tests_of(RATE))
def refuses_no_batch():
    """You accepted a batch size of 0 or less, or failed with another error. Raise a ValueError that names base_batch or
    batch for sizes below 1, before you divide."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        if min(step, warmup_steps) < 0:
            raise ValueError(f"step and warmup_steps must not be negative: {step}, {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def refuses_no_step():
    """You accepted a negative step or a negative number of warm-up steps. Raise a ValueError that names step or
    warmup_steps: training starts with step 0."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps
