"""Wrong answers to lesson 02: the subtle ones first in each exercise."""

# A mutant is read, not run: its names are those of the notebook, and its function is replaced by its source.
# ruff: noqa: F821

from __future__ import annotations

import math

import numpy as np

from autograder.answers.mutants import mutant, tests_of

TIMES, CROSSOVER, FIT = "02-ex1-ring-and-tree", "02-ex2-crossover", "02-ex3-fit"
AMDAHL, STEP, RATE = "02-ex4-amdahl", "02-ex5-step", "02-ex6-scaled-lr"


# ---- 1 · ring_time, tree_time ----


@mutant(TIMES, breaks=tests_of(TIMES, STEP))
def ring_with_whole_bytes():
    """You rounded the chunk to whole bytes, with // or int. The model takes T/N as it is: with 10 bytes on 4 ranks a
    chunk has 2.5. Divide with a single slash."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * (nbytes // n))

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES, STEP))
def ring_with_n_rounds():
    """Each half of your ring has N rounds; it needs N − 1. A chunk starts on one rank and must visit the N − 1
    others: it does not have to come back."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * n * (alpha + beta * nbytes / n) if n > 1 else 0.0

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES, STEP))
def ring_in_one_half():
    """You counted one half of the all-reduce. After N − 1 rounds every rank has its own chunk of the sum and nothing
    else; the all-gather takes N − 1 rounds more."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES, STEP))
def ring_starts_one_message():
    """Your ring pays alpha once, but every round starts a message of its own. Multiply the whole price of a message,
    alpha included, by the number of rounds."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return alpha + 2 * (n - 1) / n * beta * nbytes

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES, STEP))
def ring_of_whole_vectors():
    """Your ring sends the whole vector in every round. The point of the ring is that a message is one chunk, an N-th
    of the vector."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES, STEP))
def ring_of_2n_minus_1():
    """Your ring has 2N − 1 rounds. It has two halves of N − 1 rounds each: mind the brackets in 2(N − 1)."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return (2 * n - 1) * (alpha + beta * nbytes / n) if n > 1 else 0.0

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_without_rounding_up():
    """You used log2 of N as it is. There is no half round: for 5 ranks log2 gives 2.32, and three rounds are needed.
    Round up."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.log2(n) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_rounds_down():
    """You rounded log2 of N down. After k rounds at most 2^k ranks have been reached, so for a fifth rank two rounds
    are not enough. Round up."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * int(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_one_level_too_deep():
    """For powers of two your tree has a level too many: 4 ranks are reached in 2 rounds, since in each round the
    number of those that have the vector doubles. (N − 1).bit_length() would be right where N.bit_length() is not."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        levels = int(n).bit_length() if n > 1 else 0
        return 2 * levels * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_up_only():
    """You counted the tree once. After the way up only the root has the sum; the way down to the others takes as
    many rounds again."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_of_chunks():
    """Your tree sends chunks of T/N bytes. Chunks belong to the ring: here nothing is cut, every message is the
    whole vector."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes / n)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_starts_one_message_a_way():
    """Your tree pays alpha only twice, once up and once down. Every round starts a message: alpha is multiplied by
    the number of rounds, as the bytes are."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * alpha + 2 * math.ceil(math.log2(n)) * beta * nbytes if n > 1 else 0.0


@mutant(TIMES, breaks=tests_of(TIMES))
def nothing_to_send_costs_nothing():
    """For 0 bytes you returned 0. A message without content must still be started: with T = 0 the rounds cost alpha
    each."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if nbytes == 0:
            return 0.0
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES, STEP))
def refuses_zero():
    """You refuse zeros. Only negative numbers are wrong: 0 bytes, a free start of messages and free bytes are border
    cases that the model can answer. Compare with <, not with <=."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value <= 0 or value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def ring_refuses_nothing():
    """You return a time for arguments that make no sense. Before anything else, raise a ValueError with the
    argument's name in its text for n below 1 and for a negative nbytes, alpha or beta."""

    def ring_time(nbytes, n, alpha, beta):
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES))
def tree_refuses_less_than_the_ring():
    """ring_time refuses wrong arguments, tree_time does not, or not all of them. Both must refuse the same: n below
    1, a negative nbytes, alpha or beta."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        return 2 * math.ceil(math.log2(n)) * (alpha + beta * nbytes) if n > 1 else 0.0


# ---- 2 · crossover_bytes ----


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def infinite_before_zero():
    """You return infinity for free bytes before you have looked at the rest. For N ≤ 3, and when starting a message
    is free as well, the ring is never slower than the tree, and the answer is 0.0. Ask the questions in the other
    order."""

    def crossover_bytes(n, alpha, beta):
        if n == 1:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def rounded_to_whole_bytes():
    """You rounded the crossover to whole bytes. It is a point on an axis of the model: leave it as the float that it
    is."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.ceil(math.log2(n))
        return round(alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n))


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def free_bytes_divide_by_zero():
    """With beta = 0 you divide by zero. If bytes are free only rounds count, and from 4 ranks on the ring has more
    of them: it never catches up, and the answer is math.inf."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def one_rank_divides_by_zero():
    """For one rank you divide by zero: L and (N − 1)/N are both 0. Nobody has to send anything, so the ring is never
    slower: return 0.0 for every N up to 3 before you divide."""

    def crossover_bytes(n, alpha, beta):
        if alpha == 0:
            return 0.0
        if beta == 0:
            return 0.0 if n <= 3 else math.inf
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def forgets_the_bytes_of_the_ring():
    """You left out the bytes that the ring sends, (N − 1)/N of a vector in each half. Both sides of the equation
    have a beta: bring them to one side."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / levels


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def prices_upside_down():
    """You divided beta by alpha. The dearer it is to start a message, the longer the tree stays ahead, so alpha
    belongs on top; the unit tells, too: seconds over seconds a byte are bytes."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.ceil(math.log2(n))
        return beta / alpha * (n - 1 - levels) / (levels - (n - 1) / n)


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def twice_the_rounds_of_the_ring():
    """You gave the ring 2(N − 1) rounds and the tree L. Both go through two halves: 2(N − 1) against 2L, and the
    twos cancel."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.ceil(math.log2(n))
        return alpha / beta * (2 * (n - 1) - levels) / (levels - (n - 1) / n)


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def levels_not_rounded():
    """You used log2 of N without rounding it up. For N = 5 the tree needs three rounds, not 2.32. Where N is a power
    of two you are right by luck."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.log2(n)
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


# ---- 3 · fit_alpha_beta ----


@mutant(FIT, breaks=tests_of(FIT))
def in_the_order_of_polyfit():
    """You returned (beta, alpha). np.polyfit gives the highest power first, so the slope comes before the constant;
    the exercise asks for alpha first."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta, alpha = np.polyfit(m, t, 1)
        return beta, alpha


@mutant(FIT, breaks=tests_of(FIT))
def errors_in_percent():
    """You weighted the points, so that errors count relative to the time. That is a sensible thing to do, and
    another line. Here every point counts alike and errors are in seconds."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta, alpha = np.polyfit(m, t, 1, w=1 / t)
        return alpha, beta


@mutant(FIT, breaks=tests_of(FIT))
def clipped_at_zero():
    """You clip a negative alpha to 0. A latency cannot be negative, but a best fit to noisy points can, and whoever
    called should see that. Return what least squares gives."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta, alpha = np.polyfit(m, t, 1)
        return max(0.0, alpha), beta


@mutant(FIT, breaks=tests_of(FIT))
def halves_again():
    """You halved the times. They are one way already: whoever timed the round trip has divided by two. Halving again
    makes both prices half of what they are."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta, alpha = np.polyfit(m, t / 2, 1)
        return alpha, beta


@mutant(FIT, breaks=tests_of(FIT))
def whole_numbers_overflow():
    """You calculated with whole numbers of numpy's. The square of 4 GB does not fit into 64 bits, and numpy wraps it
    round without a word. Convert the sizes to float64 first."""

    def fit_alpha_beta(sizes, seconds):
        with np.errstate(all="ignore"):
            m, t = np.array(sizes), np.array(seconds)
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta = (len(m) * np.sum(m * t) - np.sum(m) * np.sum(t)) / (len(m) * np.sum(m * m) - np.sum(m) ** 2)
        return np.mean(t) - beta * np.mean(m), beta


@mutant(FIT, breaks=tests_of(FIT))
def latency_is_the_smallest_message():
    """You took the time of the smallest message for alpha and fitted only beta. One point decides over alpha then,
    with all its noise. Let all points decide over both numbers at once."""

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
    """You drew the line through the smallest and the largest message. What lies between has no say then. Least
    squares listens to all points."""

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
    """You fitted a line to the logarithms. A straight line there is a power of the size, not a constant plus a
    slope: figures have logarithmic axes, the model does not."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        power, constant = np.polyfit(np.log(m), np.log(t), 1)
        return np.exp(constant), power


@mutant(FIT, breaks=tests_of(FIT))
def bandwidth_for_beta():
    """Your second number is a bandwidth, bytes per second. beta is the other way up: seconds per byte."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(set(m.tolist())) < 2:
            raise ValueError("sizes must be as many as seconds, with two distinct ones")
        beta, alpha = np.polyfit(m, t, 1)
        return alpha, 1 / beta


@mutant(FIT, breaks=tests_of(FIT))
def means_of_neighbors():
    """You averaged the slopes between neighboring points. Two sizes that are close together then count as much as
    two that are far apart, and their noise is divided by a small number. Use all points in one least-squares fit."""

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
    """You sorted the arguments themselves, or changed them in another way. The caller's list is still needed, and
    sizes that were sorted alone no longer stand beside their times. Work on copies; a fit needs no order."""

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
    denominator is zero. Fewer than two different sizes are a ValueError."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(m) != len(t) or len(m) < 2:
            raise ValueError("sizes must be as many as seconds, and at least two")
        offset = m - m.mean()
        beta = offset @ t / max(offset @ offset, 1e-300)
        return t.mean() - beta * m.mean(), beta


@mutant(FIT, breaks=tests_of(FIT))
def lengths_may_differ():
    """Lists of different lengths went through. Somebody paired the wrong measurements: say so with a ValueError that
    names sizes, before numpy broadcasts or zip drops what is left over."""

    def fit_alpha_beta(sizes, seconds):
        m, t = (np.array(values, dtype=np.float64) for values in (sizes, seconds))
        if len(set(m.tolist())) < 2:
            raise ValueError("sizes must hold two distinct values")
        t = np.resize(t, len(m))
        beta, alpha = np.polyfit(m, t, 1)
        return alpha, beta


# ---- 4 · amdahl_speedup, fit_parallel_fraction ----


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def speedup_of_numbers_only():
    """Your speedup takes a number, but not an array or a list: an if or a float() cannot decide over many numbers at
    once. Use np.asarray and np.any."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or float(n) < 1:
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 / (1 - parallel_fraction + parallel_fraction / float(n))

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def arrays_but_no_lists():
    """You divide by n as it comes: an array can do that, a list or a tuple cannot. Make an array of it first."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 / (1 - parallel_fraction + parallel_fraction / n)

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def serial_for_parallel():
    """You divided the serial part by n. parallel_fraction is the part that is shared; what is left over, one minus
    it, stays whole."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 / (parallel_fraction + (1 - parallel_fraction) / np.asarray(n))

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def gustafson_for_amdahl():
    """That is Gustafson's formula: the speedup when the parallel work grows with n. Amdahl's keeps the work: the
    time is (1 − p) + p/n, and the speedup is one over it."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 - parallel_fraction + parallel_fraction * np.asarray(n)

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def time_for_speedup():
    """You returned the time that is left, as a part of the time on one process. The speedup is one over that."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 - parallel_fraction + parallel_fraction / np.asarray(n)

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def every_n_must_be_wrong():
    """You complain only if all n are below 1. A single one is enough: ask whether any is."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.all(np.asarray(n) < 1):
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


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def the_ends_are_refused():
    """You refuse 0 or 1 as a parallel fraction. Both make sense: nothing can be shared, and everything can. Only
    what lies outside is wrong."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 < parallel_fraction < 1 or np.any(np.asarray(n) < 1):
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


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def any_fraction_will_do():
    """A parallel fraction outside [0, 1] went through. 1.01 of a job is not a part of it: raise a ValueError that
    names parallel_fraction."""

    def amdahl_speedup(parallel_fraction, n):
        if np.any(np.asarray(n) < 1):
            raise ValueError(f"n must be at least 1, got {n}")
        return 1 / (1 - parallel_fraction + parallel_fraction / np.asarray(n))

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def serial_part_fitted_freely():
    """You fitted a line with a constant of its own to 1/S against 1/n. Amdahl's line has one number, not two: its
    constant is 1 − p, so that one process has the speedup 1. Minimize over p alone."""

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
        p = np.polyfit(1 / n, 1 / s, 1)[0] if len(set(ns)) > 1 else 0.0
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def mean_of_single_fits():
    """You solved for p at each point and took the mean. Where n is small, a little noise moves such a p far, and the
    mean counts it like the others. Minimize the sum of squares over all points instead."""

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
        p = np.mean((1 - 1 / s[n > 1]) / (1 - 1 / n[n > 1]))
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def ratio_of_sums():
    """You divided the sum of (1 − 1/S) by the sum of (1 − 1/n). That makes the errors add up to zero; it does not
    make their squares small. Each term has a further factor (1 − 1/n)."""

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
        p = np.sum(1 - 1 / s) / np.sum(1 - 1 / n)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def last_point_only():
    """You solved for p at the largest n. That is one measurement's p, with its noise; the fit listens to all of
    them."""

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
        last = np.argmax(n)
        p = (1 - 1 / s[last]) / (1 - 1 / n[last])
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def errors_in_the_speedup():
    """You made the errors of the speedup small. The sum in the exercise has the errors of 1/S, the relative time: a
    miss at a large speedup counts much less there."""

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
        grid = np.linspace(0, 1, 20_001)[:, None]
        errors = np.sum((s - 1 / (1 - grid + grid / n)) ** 2, axis=1)
        return float(grid[np.argmin(errors), 0])


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def fraction_not_clipped():
    """Your p can leave [0, 1]. If the measurement is better than linear, or slower than one process, the best p *in*
    [0, 1] is the nearer end."""

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
        return float(p)


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def one_process_divides_by_zero():
    """A measurement with n = 1 made you divide by zero: 1 − 1/n is 0 there. In the least-squares formula that is
    harmless, since only sums are divided; do not divide point by point."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 / (1 - parallel_fraction + parallel_fraction / np.asarray(n))

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        ns, speedups = [int(k) for k in ns], [float(speedup) for speedup in speedups]
        weights = [(1 - 1 / k) ** 2 for k in ns]
        single = [(1 - 1 / speedup) / (1 - 1 / k) for k, speedup in zip(ns, speedups, strict=True)]
        p = sum(w * x for w, x in zip(weights, single, strict=True)) / sum(weights)
        return min(1.0, max(0.0, p))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def fraction_from_any_lists():
    """Lists that do not fit went through: of different lengths, or without any n above 1. The first is a mistake in
    the caller's bookkeeping, the second leaves no p to be found. Both are a ValueError that names ns."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 / (1 - parallel_fraction + parallel_fraction / np.asarray(n))

    def fit_parallel_fraction(ns, speedups):
        if min(speedups) <= 0:
            raise ValueError("speedups must be positive")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        n, s = n[: min(len(n), len(s))], s[: min(len(n), len(s))]
        p = np.sum((1 - 1 / s) * (1 - 1 / n)) / max(np.sum((1 - 1 / n) ** 2), 1e-300)
        return float(np.clip(p, 0, 1))


@mutant(AMDAHL, breaks=tests_of(AMDAHL))
def a_speedup_of_zero():
    """A speedup of 0 or less went through. It would mean that the job never ends, and 1/S has no value: raise a
    ValueError that names speedups."""

    def amdahl_speedup(parallel_fraction, n):
        if not 0 <= parallel_fraction <= 1 or np.any(np.asarray(n) < 1):
            raise ValueError(f"parallel_fraction in [0, 1] and n ≥ 1, please, not {parallel_fraction} and {n}")
        return 1 / (1 - parallel_fraction + parallel_fraction / np.asarray(n))

    def fit_parallel_fraction(ns, speedups):
        if len(ns) != len(speedups) or max(ns) <= 1:
            raise ValueError("ns must be as many as speedups, and not all 1")
        n, s = np.array(ns, dtype=float), np.array(speedups, dtype=float)
        with np.errstate(all="ignore"):
            p = np.sum((1 - 1 / s) * (1 - 1 / n)) / np.sum((1 - 1 / n) ** 2)
        return float(np.clip(p, 0, 1))


# ---- 5 · scaling_efficiency, step_time ----


@mutant(STEP, breaks=tests_of(STEP))
def relative_to_the_first():
    """You compared with the first measurement in the list. It need not be the one with the smallest n: look for that
    one."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[0] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def smallest_n_taken_for_one():
    """You compared n · t with t₀ alone, as if the smallest n were always 1. With n₀ processes perfect scaling would
    cost n₀ · t₀."""

    def scaling_efficiency(ns, seconds):
        n, t = np.array(ns, dtype=float), np.array(seconds, dtype=float)
        return t[np.argmin(n)] / (n * t)

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def in_the_order_of_n():
    """You sorted the result by n. It has to stand in the order in which the measurements were given, so that the
    caller can put the two side by side."""

    def scaling_efficiency(ns, seconds):
        order = np.argsort(ns)
        work = (np.array(ns, dtype=float) * np.array(seconds, dtype=float))[order]
        return work[0] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def writes_into_the_times():
    """You changed the arrays that were given. np.asarray makes no copy of an array of floats, so multiplying its
    result in place changes the caller's. Write a = a * b, not a *= b, or make a copy."""

    def scaling_efficiency(ns, seconds):
        n, t = np.asarray(ns, dtype=float), np.asarray(seconds, dtype=float)
        t *= n
        return t[np.argmin(n)] / t

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def never_above_one():
    """You cut efficiencies off at 1. Measurements can be better than linear, for example when the data of each
    process fits into its cache, and whoever reads them should see it."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return np.minimum(1.0, work[np.argmin(ns)] / work)

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def weak_for_strong_scaling():
    """You divided times only, t₀/t. That is a speedup, and in weak scaling the efficiency. In strong scaling the
    processes have to be counted as well: compare n · t."""

    def scaling_efficiency(ns, seconds):
        t = np.array(seconds, dtype=float)
        return t[np.argmin(ns)] / t

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def efficiency_upside_down():
    """Your efficiency is upside down: it grows as scaling gets worse. What perfect scaling would cost belongs on
    top, what was paid below."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work / work[np.argmin(ns)]

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def relative_to_the_slowest():
    """You compared with the longest time. The measurement to compare with is the one with the smallest n, whether it
    is the slowest or not."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work.max() / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, ring_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def less_than_nothing_sticks_out():
    """When the ring is shorter than the time in which it can hide, you subtract the difference from the step. A
    message cannot make the computation shorter: what sticks out is at least 0."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        ring = ring_time(nbytes, n, alpha, beta)
        return compute + ring - overlap * compute


@mutant(STEP, breaks=tests_of(STEP))
def a_part_of_the_ring_is_hidden():
    """You took overlap for the part of the *messages* that is hidden. It is the part of the *computation* behind
    which they can hide: of a ring that is longer than that, everything beyond sticks out; a shorter one is hidden
    completely."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        ring = ring_time(nbytes, n, alpha, beta)
        return compute + (1 - overlap) * ring


@mutant(STEP, breaks=tests_of(STEP))
def overlap_the_other_way_round():
    """You let messages hide behind 1 − overlap of the computation. 0 means that nothing can be hidden and 1 that all
    of the computation can hide messages."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        ring = ring_time(nbytes, n, alpha, beta)
        return compute + max(0.0, ring - (1 - overlap) * compute)


@mutant(STEP, breaks=tests_of(STEP))
def the_longer_of_the_two():
    """You took the longer of computation and communication. That is right if messages can travel during the whole
    computation, overlap = 1; for less, part of them must wait."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        ring = ring_time(nbytes, n, alpha, beta)
        return max(compute, ring)


@mutant(STEP, breaks=tests_of(STEP))
def no_overlap_at_all():
    """You added the ring to the computation whatever the overlap is. What can hide behind the computation costs
    nothing."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        ring = ring_time(nbytes, n, alpha, beta)
        return compute + ring


@mutant(STEP, breaks=tests_of(STEP))
def a_tree_for_the_ring():
    """You used the tree's time. The gradients of the step go round the ring: ring_time."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return compute + max(0.0, tree_time(nbytes, n, alpha, beta) - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def only_what_sticks_out():
    """You returned only the part of the communication that stays visible. The step takes the computation, too."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        ring = ring_time(nbytes, n, alpha, beta)
        return max(0.0, ring - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def any_overlap_will_do():
    """An overlap outside [0, 1] went through. More than the whole computation cannot hide anything: raise a
    ValueError that names overlap."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        ring = ring_time(nbytes, n, alpha, beta)
        return compute + max(0.0, ring - overlap * compute)


@mutant(STEP, breaks=tests_of(STEP))
def overlap_strictly_inside():
    """You refuse an overlap of 0 or 1. Both are allowed: nothing can be hidden, or everything."""

    def scaling_efficiency(ns, seconds):
        work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)
        return work[np.argmin(ns)] / work

    def step_time(compute, nbytes, n, alpha, beta, overlap):
        if not 0 < overlap < 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        ring = ring_time(nbytes, n, alpha, beta)
        return compute + max(0.0, ring - overlap * compute)


# ---- 6 · scaled_lr ----


@mutant(RATE, breaks=tests_of(RATE))
def one_step_ahead():
    """Your warm-up is one step ahead: step 0 should have base_lr itself, and step warmup_steps is the first with the
    target. Steps are counted from 0."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * (step + 1) / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def target_in_the_last_warmup_step():
    """Your warm-up reaches the target one step too early: you divide by warmup_steps − 1. The last of the warm-up
    steps is still one increment below the target."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / max(1, warmup_steps - 1)


@mutant(RATE, breaks=tests_of(RATE))
def warms_up_from_zero():
    """Your warm-up starts at 0. Other schedules do that; the gradual warm-up of Goyal et al. starts at base_lr,
    which is known to work, and climbs from there."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return target * step / warmup_steps


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


@mutant(RATE, breaks=tests_of(RATE))
def never_below_base_lr():
    """You keep the learning rate from falling below base_lr. The rule works in both directions: a batch that is half
    as large gets half the learning rate."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * max(1.0, batch / base_batch)
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def whole_k_only():
    """You divided the batch sizes without remainder. k need not be a whole number: 384 is one and a half times 256.
    Divide with a single slash."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * (batch // base_batch)
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def climbs_forever():
    """Your learning rate goes on climbing when the warm-up is over. From step warmup_steps on it is the target and
    stays there."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if warmup_steps == 0:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def constant_warmup():
    """You stay at base_lr during the warm-up and jump to the target at its end. That is the constant warm-up, which
    Goyal et al. compare with; the gradual one climbs in equal increments."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr


@mutant(RATE, breaks=tests_of(RATE))
def climbs_by_factors():
    """You multiply by the same factor in each step. The warm-up adds the same amount in each step: a straight line,
    not an exponential."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr * (batch / base_batch) ** (step / warmup_steps)


@mutant(RATE, breaks=tests_of(RATE))
def square_root_scaling():
    """You scaled the learning rate with the square root of k. That is another rule; the linear one multiplies by k
    itself."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * math.sqrt(batch / base_batch)
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def k_upside_down():
    """You divided base_batch by batch. A larger batch gets a larger learning rate: k is the new batch over the old."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * base_batch / batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


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


@mutant(RATE, breaks=tests_of(RATE))
def zero_warmup_is_refused():
    """You refuse warmup_steps = 0. It is allowed, and means that there is no warm-up: the target from step 0 on.
    Only a negative number is wrong."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps <= 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def refuses_no_batch():
    """A batch size of 0 or less went through, or failed with another error. Raise a ValueError that names base_batch
    or batch for sizes below 1, before you divide."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        if min(step, warmup_steps) < 0:
            raise ValueError(f"step and warmup_steps must not be negative: {step}, {warmup_steps}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


@mutant(RATE, breaks=tests_of(RATE))
def refuses_no_step():
    """A negative step, or a negative number of warm-up steps, went through. Raise a ValueError that names step or
    warmup_steps: training starts with step 0."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        target = base_lr * batch / base_batch
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps
