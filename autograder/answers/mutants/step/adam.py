"""Wrong answers to lesson 03, exercise 3."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

ADAM, STEP, BUG = "03-ex3-adam-update", "03-ex5-training-step", "03-ex6-sum-bug"


# ---- 3 · adam_update ----


@right(ADAM)
def _adam():
    """Right: the base of the edits below."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        return w - lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


@mutant(ADAM, breaks=tests_of(ADAM, STEP, BUG))
def corrects_after_epsilon():
    """You added epsilon to the root of v before correcting v, so epsilon weighs too much early in training. Some
    libraries define Adam that way; in Algorithm 1 of the paper, as in this exercise, epsilon is added to the root of
    the corrected v."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        rate = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
        return w - rate * m / (np.sqrt(v) + eps), m, v


forgets_the_moments_in_the_first_update = edit(
    ADAM,
    """For t = 1 you set m and v to zero. They come as arguments, and are usually zero then, but a caller may pass
    other numbers. t = 1 is an update like any other.""",
    ("    m = beta1 * m", "    m, v = (0 * m, 0 * v) if t == 1 else (m, v)\n    m = beta1 * m"),
    base=_adam,
    breaks=tests_of(ADAM, STEP),
)

skips_entries_without_a_gradient = edit(
    ADAM,
    """Where the gradient is 0 you leave m and v as they were. In Adam both decay all the same: a gradient of 0 is one
    of the numbers that they average. (torch.optim.SparseAdam does what you did.)""",
    ("    m = beta1 * m + (1 - beta1) * g\n", "    m = np.where(g == 0, m, beta1 * m + (1 - beta1) * g)\n"),
    ("    v = beta2 * v + (1 - beta2) * g * g\n", "    v = np.where(g == 0, v, beta2 * v + (1 - beta2) * g * g)\n"),
    base=_adam,
    breaks=tests_of(ADAM),
)

skips_updates_without_a_gradient = edit(
    ADAM,
    """If the whole gradient is 0 you change nothing. In Adam m and v decay all the same, and what is left of m still
    moves the weights.""",
    ("    m = beta1 * m", "    if not g.any():\n        return w.copy(), m.copy(), v.copy()\n    m = beta1 * m"),
    base=_adam,
    breaks=tests_of(ADAM),
)

stops_correcting_after_1000_updates = edit(
    ADAM,
    """From some t on you leave the bias correction out. With beta2 = 0.999 the correction still changes the root by a
    factor of 0.93 after 2,000 updates. Correct for every t: where nothing is left to correct, the formula divides by
    1.""",
    ("    m = beta1 * m", "    late = t > 1000\n    m = beta1 * m"),
    ("m / (1 - beta1**t)", "m / (1 if late else 1 - beta1**t)"),
    ("v / (1 - beta2**t)", "v / (1 if late else 1 - beta2**t)"),
    base=_adam,
    breaks=tests_of(ADAM),
)

returns_the_weights_themselves = edit(
    ADAM,
    """With a learning rate of 0 you returned the caller's own w. What you return is always new: writing into it must
    not change the input.""",
    ("    return w - lr", "    if lr == 0:\n        return w, m, v\n    return w - lr"),
    base=_adam,
    breaks=tests_of(ADAM),
    fails=["adam_leaves_its_inputs_alone"],
)

epsilon_inside_the_root = edit(
    ADAM,
    """You added epsilon inside the root. Add it to the root itself: inside, the root of epsilon is what counts, and the
    root of 1e-8 is 1e-4, ten thousand times as much.""",
    ("(np.sqrt(v / (1 - beta2**t)) + eps)", "np.sqrt(v / (1 - beta2**t) + eps)"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)


@mutant(ADAM, breaks=tests_of(ADAM, STEP, BUG))
def carries_the_corrected_moments():
    """You returned the corrected moments, so the next update starts from them and corrects them again. The correction
    is for this update's weights only: return the plain averages m and v, and give the corrected ones other names."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = (beta1 * m + (1 - beta1) * g) / (1 - beta1**t)
        v = (beta2 * v + (1 - beta2) * g * g) / (1 - beta2**t)
        return w - lr * m / (np.sqrt(v) + eps), m, v


corrects_only_m = edit(
    ADAM,
    """You corrected the bias of m but not of v. Both start at zero and are too small at first; with v too small, the
    first steps are far too long.""",
    ("v / (1 - beta2**t)", "v"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)

corrects_nothing = edit(
    ADAM,
    """The bias correction is missing. m and v start at zero, so in the first updates they are too small, and not by
    the same factor. Divide each by one minus its beta to the power t before you use it.""",
    ("(1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)", "(np.sqrt(v) + eps)"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)


@mutant(ADAM, breaks=tests_of(ADAM, STEP, BUG))
def counts_from_zero():
    """Your bias correction has the exponent t − 1, as if updates were counted from 0. The first update has t = 1; with
    an exponent of 0 the correction divides by zero."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1 ** (t - 1)), v / (1 - beta2 ** (t - 1))
        return w - lr * m_hat / (np.sqrt(v_hat) + eps), m, v


counts_one_too_far = edit(
    ADAM,
    """Your bias correction has the exponent t + 1. t is already the number of this update, counted from 1: use it as
    it is.""",
    (
        "m_hat, v_hat = m / (1 - beta1 ** (t - 1)), v / (1 - beta2 ** (t - 1))",
        "m_hat, v_hat = m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))",
    ),
    base=counts_from_zero,
    breaks=tests_of(ADAM, STEP, BUG),
)

multiplies_in_the_correction = edit(
    ADAM,
    """Your bias correction uses beta times t instead of beta to the power t. In the first update the two are the same,
    so it looks right there; after that they differ.""",
    (
        "m_hat, v_hat = m / (1 - beta1 ** (t - 1)), v / (1 - beta2 ** (t - 1))",
        "m_hat, v_hat = m / (1 - beta1 * t), v / (1 - beta2 * t)",
    ),
    base=counts_from_zero,
    breaks=tests_of(ADAM, STEP, BUG),
)


@mutant(ADAM, breaks=tests_of(ADAM, STEP, BUG))
def squares_the_corrected_m():
    """You squared the running average of the gradient. v averages the squares of the gradient g itself: in the square
    of an average, the noise that v should measure is already gone."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        m_hat = m / (1 - beta1**t)
        v = beta2 * v + (1 - beta2) * m_hat**2
        return w - lr * m_hat / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


@mutant(ADAM, breaks=tests_of(ADAM, STEP, BUG))
def steps_with_the_old_moments():
    """You moved the weights with the moments from before this update. Update m and v with g first, then use the new
    ones; otherwise every gradient takes effect one step late."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        w = w - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        return w, beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g


swaps_the_betas = edit(
    ADAM,
    """You swapped the two betas. beta1 belongs to m, the average of the gradient, and beta2 to v, the average of its
    square; v has the longer memory.""",
    ("m = beta1 * m", "beta1, beta2 = beta2, beta1\n    m = beta1 * m"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)

swaps_old_and_new = edit(
    ADAM,
    """You swapped the shares of old and new in the moments: beta is the share of the past, one minus beta that of the
    new gradient. With a beta near 1 the average should hardly move.""",
    ("beta1 * m + (1 - beta1) * g", "(1 - beta1) * m + beta1 * g"),
    ("beta2 * v + (1 - beta2) * g * g", "(1 - beta2) * v + beta2 * g * g"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)

adds_the_whole_gradient = edit(
    ADAM,
    """You added the whole gradient to the moments, as momentum in SGD does, without the factor one minus beta. m and v
    are then sums, not averages, and too large; in the weights the factors nearly cancel.""",
    ("(1 - beta1) * g", "g"),
    ("(1 - beta2) * g * g", "g * g"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)

forgets_the_root = edit(
    ADAM,
    """You divided by v itself; Adam divides by its root. v has the unit of a squared gradient, and only
    its root cancels the unit of m.""",
    ("np.sqrt(v / (1 - beta2**t))", "v / (1 - beta2**t)"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)

climbs = edit(
    ADAM,
    """You added the step to the weights. The gradient points uphill and training goes downhill: subtract the step.""",
    ("return w - lr * m", "return w + lr * m"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)

returns_v_before_m = edit(
    ADAM,
    """You returned v before m. The order is (w, m, v): a caller that unpacks the tuple would take one for the
    other.""",
    ("(np.sqrt(v / (1 - beta2**t)) + eps), m, v", "(np.sqrt(v / (1 - beta2**t)) + eps), v, m"),
    base=_adam,
    breaks=tests_of(ADAM, STEP, BUG),
)

updates_in_the_dtype_that_comes_in = edit(
    ADAM,
    """You calculated in the dtype of the inputs, so float32 arrays gave float32 moments. Convert w, g, m and v to
    float64 before the first operation.""",
    ("    w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))\n", ""),
    base=_adam,
    breaks=tests_of(ADAM),
    fails=["adam_is_computed_in_float64"],
)


@mutant(ADAM, breaks=tests_of(ADAM), fails=["adam_is_computed_in_float64"])
def truncates_into_integers():
    """With integer inputs your new m was truncated: `copy()` and `zeros_like` keep the dtype, so numbers that are
    assigned into such an array lose their fractions. Convert to float64 first."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        new_w, new_m, new_v = (np.empty(len(w), dtype=np.result_type(a.dtype, np.int64)) for a in (w, m, v))
        new_m[:] = beta1 * m + (1 - beta1) * g
        new_v[:] = beta2 * v + (1 - beta2) * g**2.0
        m_hat, v_hat = new_m / (1 - beta1**t), new_v / (1 - beta2**t)
        new_w[:] = w - lr * m_hat / (np.sqrt(v_hat) + eps)
        return new_w, new_m, new_v


@mutant(ADAM, breaks=tests_of(ADAM), fails=["adam_leaves_its_inputs_alone"])
def updates_in_place():
    """Your function changed the arrays that it was given: `*=`, `+=` and `-=` write into the caller's w, m and v, even
    after `np.asarray`, which copies only when it must. Put the results into new arrays."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m *= beta1
        m += (1 - beta1) * g
        v *= beta2
        v += (1 - beta2) * g * g
        w -= lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
        return w, m, v
