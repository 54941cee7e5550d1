"""Wrong answers to lesson 02, exercise 3."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

FIT = "02-ex3-fit"


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


distinct_at_the_ends = edit(
    FIT,
    """You compare the first size with the last to see whether there are two distinct ones. A measurement that ends with
    the size with which it began has others in between: compare all of them.""",
    ("len(set(m.tolist())) < 2", "len(m) < 2 or m[0] == m[-1]"),
    base=_fit,
    breaks=tests_of(FIT),
)

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


@mutant(FIT, breaks=tests_of(FIT), fails=["fit_refuses_what_has_no_line"])
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


@mutant(FIT, breaks=tests_of(FIT), fails=["fit_refuses_what_has_no_line"])
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
