"""Wrong answers to lesson 04, exercises 3 and 4."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

LOCAL, STEP = "04-ex3-local-gradient", "04-ex4-data-parallel-step"


# ---- 3 · local_gradient ----


@right(LOCAL)
def _local():
    """Right: the base of the edits below."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if x.ndim != 2 or len(x) == 0 or y.shape != x.shape[:1] or w.shape != x.shape[1:]:
            raise ValueError("x, y or w does not fit")
        return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)


_local_p = edit(
    LOCAL,
    """Right, with the probabilities on a line of their own.""",
    (
        "return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)",
        "p = 0.5 * (1 + np.tanh(0.5 * (x @ w)))\n    return x.T @ (p - y) / len(x)",
    ),
    base=_local,
)

local_overflows = edit(
    LOCAL,
    """For large positive z = Xw you computed exp(z) / (1 + exp(z)), which is inf/inf and hence NaN. 1 / (1 + exp(−z))
    is the same number, and when its exp overflows, 1/inf is 0, as it should be.""",
    ("p = 0.5 * (1 + np.tanh(0.5 * (x @ w)))", "e = np.exp(x @ w)"),
    ("(p - y)", "(e / (1 + e) - y)"),
    base=_local_p,
    breaks=tests_of(LOCAL),
    fails=["local_gradient_survives_large_logits"],
)

local_clips_probabilities = edit(
    LOCAL,
    """You kept the probability at least 1e-7 away from 0 and 1. That protects a logarithm, but the gradient has none,
    and each example far from the boundary adds a small error. Use the probability as it is.""",
    ("0.5 * (1 + np.tanh(0.5 * (x @ w)))", "np.clip(0.5 * (1 + np.tanh(0.5 * (x @ w))), 1e-7, 1 - 1e-7)"),
    base=_local_p,
    breaks=tests_of(LOCAL),
    fails=["local_gradient_is_computed_in_float64", "local_gradient_survives_large_logits"],
)

local_clips_logits = edit(
    LOCAL,
    """You clipped Xw to ±10 against the overflow. σ(10) is 0.99995 and not 1, which is a visible error. Clip only
    beyond ±40, where float64 cannot tell the difference, or write σ so that nothing overflows.""",
    ("0.5 * (1 + np.tanh(0.5 * (x @ w)))", "1 / (1 + np.exp(-np.clip(x @ w, -10, 10)))"),
    base=_local_p,
    breaks=tests_of(LOCAL),
)

local_keeps_float32 = edit(
    LOCAL,
    """You computed in the dtype of the inputs. From float32 arrays, too, the gradient must be computed and returned in
    float64: convert x, y and w first.""",
    ("np.asarray(a, dtype=np.float64)", "np.asarray(a)"),
    base=_local_p,
    breaks=tests_of(LOCAL),
    fails=["local_gradient_is_computed_in_float64"],
)

local_widens_only_the_result = edit(
    LOCAL,
    """You converted the result to float64, but computed it in float32, where the digits were already lost. Convert the
    inputs.""",
    ("return x.T @ (p - y) / len(x)", "return np.asarray(x.T @ (p - y) / len(x), dtype=np.float64)"),
    base=local_keeps_float32,
    breaks=tests_of(LOCAL),
    fails=["local_gradient_is_computed_in_float64"],
)


@mutant(LOCAL, breaks=tests_of(LOCAL), fails=["local_gradient_is_computed_in_float64"])
def local_lets_labels_wrap_around():
    """You computed with the labels in their own dtype. In uint8, 1 − 2·1 is 255, not −1: convert y to float64 first."""

    def local_gradient(x, y, w):
        x, w, y = np.asarray(x, dtype=np.float64), np.asarray(w, dtype=np.float64), np.asarray(y)
        if x.ndim != 2 or len(x) == 0 or y.shape != x.shape[:1] or w.shape != x.shape[1:]:
            raise ValueError("x, y or w does not fit")
        sign = 1 - 2 * y  # −1 for label 1, 1 for label 0
        return x.T @ (sign * 0.5 * (1 + np.tanh(0.5 * sign * (x @ w)))) / len(x)


local_forgets_to_divide = edit(
    LOCAL,
    """You summed over the examples. The gradient of the mean loss is that sum divided by B.""",
    ("- y) / len(x)", "- y)"),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_divides_by_the_features = edit(
    LOCAL,
    """You divided by the number of features, or by the number of all entries of x. Divide by the number of examples,
    len(x).""",
    (
        "x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)",
        "np.mean(x * (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y)[:, None], axis=0) / x.shape[1]",
    ),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_takes_labels_of_plus_and_minus_one = edit(
    LOCAL,
    """You used the formula for labels −1 and 1. In this exercise the labels are 0 and 1.""",
    (
        "x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)",
        "-x.T @ (y * 0.5 * (1 + np.tanh(-0.5 * y * (x @ w)))) / len(x)",
    ),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_points_uphill = edit(
    LOCAL,
    """Your gradient has the wrong sign, so that subtracting it goes uphill. The residual is the prediction minus the
    label: σ(Xw) − y.""",
    ("(0.5 * (1 + np.tanh(0.5 * (x @ w))) - y)", "(y - 0.5 * (1 + np.tanh(0.5 * (x @ w))))"),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_is_a_linear_regression = edit(
    LOCAL,
    """You left out σ, which gives the gradient of a linear regression. The prediction is σ(Xw), a number between 0 and
    1.""",
    ("0.5 * (1 + np.tanh(0.5 * (x @ w)))", "x @ w"),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_is_that_of_squared_errors = edit(
    LOCAL,
    """You took the gradient of the squared error of σ(Xw), with its factor σ(1 − σ). In the gradient of the logistic
    loss that factor cancels.""",
    ("(p - y)", "(2 * (p - y) * p * (1 - p))"),
    base=_local_p,
    breaks=tests_of(LOCAL, STEP),
)


@mutant(LOCAL, breaks=tests_of(LOCAL, STEP), fails=["local_gradient_leaves_its_inputs_alone"])
def local_writes_into_x():
    """You changed an input in place: np.asarray does not copy an array that already has the right dtype, so `w *= …` or
    `x -= …` changes the caller's array, too."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if x.ndim != 2 or len(x) == 0 or y.shape != x.shape[:1] or w.shape != x.shape[1:]:
            raise ValueError("x, y or w does not fit")
        residual = 0.5 * (1 + np.tanh(0.5 * (x @ w))) - y
        x *= residual[:, None]
        return x.mean(axis=0)


@mutant(LOCAL, breaks=tests_of(LOCAL), fails=["local_gradient_refuses_what_does_not_fit"])
def local_checks_no_shapes():
    """You accepted a shape that does not fit, or let it fail inside numpy with a message that names no argument. Check
    before you compute: x must be (B, d) with B ≥ 1, y (B,), w (d,)."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if len(x) == 0:
            raise ValueError("x is empty")
        return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)


@mutant(LOCAL, breaks=tests_of(LOCAL), fails=["local_gradient_refuses_what_does_not_fit"])
def local_checks_only_lengths():
    """You compared lengths. A y of shape (B, 1) has length B as well, and numpy then silently broadcasts (B,) against
    (B, 1) to (B, B). Compare whole shapes."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if x.ndim != 2 or len(x) == 0:
            raise ValueError("x does not fit")
        if y.ndim == 0 or w.ndim == 0 or len(y) != len(x) or len(w) != x.shape[1]:
            raise ValueError("y or w does not fit")
        return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)


local_divides_by_no_rows = edit(
    LOCAL,
    """For B = 0 you returned NaN: 0/0, about which numpy only warns. There is no mean of nothing: raise a ValueError
    that names x.""",
    ("len(x) == 0 or ", ""),
    ("/ len(x)", "/ np.float64(len(x))"),
    base=_local,
    breaks=tests_of(LOCAL),
    fails=["local_gradient_refuses_what_does_not_fit"],
)


# ---- 4 · data_parallel_step ----


@right(STEP)
def _step():
    """Right: the base of the edits below."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        rows = sum(len(x) for x in xs)
        if rows == 0:
            raise ValueError("xs has no rows")
        total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))
        return w - lr * total / rows


_step_at_once = edit(
    STEP,
    """Right, without the name total.""",
    (
        "total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))\n"
        "    return w - lr * total / rows",
        "return w - lr * sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x)) / rows",
    ),
    base=_step,
)

step_counts_an_empty_shard = edit(
    STEP,
    """You computed a gradient for a shard without rows: 0/0, or an error. Such a shard has no part in the step: leave
    it out.""",
    ("len(x) * local_gradient", "len(x) / rows * local_gradient"),
    (" if len(x)) / rows", ")"),
    base=_step_at_once,
    breaks=tests_of(STEP),
)


@mutant(STEP, breaks=tests_of(STEP))
def step_averages_over_ranks():
    """You took the plain mean of the ranks' gradients, as data-parallel libraries do. It is right only when all shards
    have the same size: weight each gradient by its number of rows."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        grads = [local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x)]
        if not grads:
            raise ValueError("xs has no rows")
        return w - lr * np.mean(grads, axis=0)


step_averages_over_all_ranks = edit(
    STEP,
    """You divided the sum of the ranks' gradients by the number of all ranks, including those without rows, or averaged
    the weights after a step on each rank, which is the same. Weight each gradient by its number of rows.""",
    ("np.mean(grads, axis=0)", "sum(grads) / len(xs)"),
    base=step_averages_over_ranks,
    breaks=tests_of(STEP),
)

step_weighs_by_rows_and_divides_by_ranks = edit(
    STEP,
    """You weighted by rows but divided by the number of ranks. The weights must add up to 1: divide by the number of
    all rows.""",
    ("rows = sum(len(x) for x in xs)\n    if rows == 0:", "if sum(len(x) for x in xs) == 0:"),
    ("total / rows", "total / len(xs)"),
    base=_step,
    breaks=tests_of(STEP),
)


@mutant(STEP, breaks=tests_of(STEP))
def step_sums_over_ranks():
    """You added up the ranks' gradients without weights, so each further rank makes the step longer. Weight each
    gradient by its share of the rows."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        if sum(len(x) for x in xs) == 0:
            raise ValueError("xs has no rows")
        return w - lr * sum(local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))


step_goes_from_shard_to_shard = edit(
    STEP,
    """You updated w after each shard, so the next gradient was taken at other weights. In one data-parallel step all
    ranks compute at the same w, and then there is one update.""",
    (
        "return w - lr * sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x)) / rows",
        "for x, y in zip(xs, ys, strict=True):\n"
        "        if len(x):\n"
        "            w = w - lr * len(x) / rows * local_gradient(x, y, w)\n"
        "    return w",
    ),
    base=_step_at_once,
    breaks=tests_of(STEP),
)

step_climbs = edit(
    STEP,
    """You added the gradient. It points uphill: subtract it.""",
    ("w - lr", "w + lr"),
    base=_step_at_once,
    breaks=tests_of(STEP),
)

step_scales_the_rate = edit(
    STEP,
    """You multiplied the learning rate by the number of ranks. That is the linear scaling rule, and up to the caller:
    this step must equal that of a single process with the same lr.""",
    ("return w - lr * total / rows", "return w - lr * len(xs) * total / rows"),
    base=_step,
    breaks=tests_of(STEP),
)

step_writes_into_w = edit(
    STEP,
    """You changed w in place: `w -= …` writes into the caller's array. The other ranks and the caller still need the
    old weights: return a new array.""",
    ("return w - lr *", "w -= lr *"),
    (" / rows", " / rows\n    return w"),
    base=_step_at_once,
    breaks=tests_of(STEP),
)

step_empties_the_lists = edit(
    STEP,
    """You took entries out of the lists that were given, for example the empty shards. That changes the caller's lists,
    too: make lists of your own.""",
    (
        "total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))",
        "total = 0.0\n"
        "    while xs:\n"
        "        x, y = xs.pop(), ys.pop()\n"
        "        total = total + (len(x) * local_gradient(x, y, w) if len(x) else 0.0)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)


@mutant(STEP, breaks=tests_of(STEP), fails=["step_refuses_what_cannot_be_stepped"])
def step_cuts_the_longer_list():
    """You let zip cut off the longer list, so a rank whose labels are missing silently drops out of the step. Compare
    the lengths of xs and ys first, and raise a ValueError."""

    def data_parallel_step(xs, ys, w, lr):
        rows = sum(len(x) for x in xs)
        if rows == 0:
            raise ValueError("xs has no rows")
        return w - lr * sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys) if len(x)) / rows


@mutant(STEP, breaks=tests_of(STEP), fails=["step_refuses_what_cannot_be_stepped"])
def step_stands_still_without_rows():
    """Without any rows you returned w as if a step had been taken. There is no gradient of nothing: raise a ValueError
    that names xs."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        rows = sum(len(x) for x in xs)
        total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))
        return w - lr * total / max(rows, 1)


step_in_the_dtype_of_w = edit(
    STEP,
    """Your result has the dtype of w: float32 for a float32 w. Compute the step in float64 and return float64, whatever
    the inputs are.""",
    (
        "    return np.asarray(w, dtype=np.float64) - lr * total / rows\n",
        "    return (w - lr * total / rows).astype(w.dtype if w.dtype.kind == 'f' else np.float64)\n",
    ),
    breaks=tests_of(STEP),
)

step_converts_without_a_copy = edit(
    STEP,
    """np.asarray returns the caller's own array when it is float64 already, and your `w -= …` then changes it in place.
    Return a new array.""",
    (
        "    return np.asarray(w, dtype=np.float64) - lr * total / rows\n",
        "    w = np.asarray(w, dtype=np.float64)\n    w -= lr * total / rows\n    return w\n",
    ),
    breaks=tests_of(STEP),
    fails=["step_leaves_its_inputs_alone"],
)

step_cuts_integers = edit(
    STEP,
    """You wrote the new values into a copy of w. If w holds integers, everything after the point is lost. Compute a new
    array in float64.""",
    (
        "    return np.asarray(w, dtype=np.float64) - lr * total / rows\n",
        "    new = np.array(w)\n    new[...] = np.asarray(w, dtype=np.float64) - lr * total / rows\n"
        "    return new.astype(np.float64)\n",
    ),
    breaks=tests_of(STEP),
)

local_multiplies_in_eight_bits = edit(
    LOCAL,
    """You multiplied x and w in their own dtype, where eight bits hold nothing above 127: the logits wrap around.
    Convert to float64 first.""",
    (
        "    x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))\n",
        "    x, y, w = np.asarray(x), np.asarray(y, float), np.asarray(w)\n",
    ),
    base=_local,
    breaks=tests_of(LOCAL),
    fails=["local_gradient_is_computed_in_float64"],
)
