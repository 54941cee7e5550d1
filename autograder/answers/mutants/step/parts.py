"""Wrong answers to lesson 03, exercises 1 to 3."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821, F841

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

GRADIENT, MEAN, ADAM = "03-ex1-worker-gradient", "03-ex2-all-reduce-mean", "03-ex3-adam-update"
STEP, BUG = "03-ex5-training-step", "03-ex6-sum-bug"


# ---- 1 · worker_gradient ----


@right(GRADIENT)
def _worker_gradient():
    """Right: the base of the edits below."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        grads = [2 / len(my) * mx.T @ (mx @ w - my) for mx, my in zip(x, y, strict=True)]
        return np.mean(grads, axis=0)


@mutant(GRADIENT, breaks=tests_of(GRADIENT, STEP, BUG))
def sums_the_micro_batches():
    """You added up the gradients of the micro-batches, so the result grows with their number. The worker's gradient is
    their mean: divide once more, after the loop. Adam would hide this in the weights, where constant factors cancel; m
    and v show it."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        total = np.zeros(len(w))
        for micro_x, micro_y in zip(x, y, strict=True):
            total += 2 / len(micro_y) * micro_x.T @ (micro_x @ w - micro_y)
        return total


forgets_the_two = edit(
    GRADIENT,
    """Your gradient is half of what it should be. The derivative of a square brings down a factor of 2; it would cancel
    only in a loss with half the squares, which is not the loss of this lesson.""",
    ("2 / len(my) * mx.T @ (mx @ w - my)", "mx.T @ (mx @ w - my) / len(my)"),
    base=_worker_gradient,
    breaks=tests_of(GRADIENT, STEP, BUG),
)


@mutant(GRADIENT, breaks=tests_of(GRADIENT, STEP, BUG))
def divides_by_accum_steps_twice():
    """You divided by the number of micro-batches twice, for example inside the loop and again in a mean. The mean over
    micro-batches needs that division exactly once."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        accum_steps, batch = y.shape
        grads = [2 / batch / accum_steps * mx.T @ (mx @ w - my) for mx, my in zip(x, y, strict=True)]
        return np.mean(grads, axis=0)


divides_by_features = edit(
    GRADIENT,
    """You divided by the number of features, d, where the number of examples in a micro-batch, B, belongs. The loss is
    a mean over examples: check which axis of x counts them.""",
    ("2 / len(my)", "2 / len(w)"),
    base=_worker_gradient,
    breaks=tests_of(GRADIENT, STEP, BUG),
)

sums_the_examples = edit(
    GRADIENT,
    """You averaged over the micro-batches but added up the examples inside each one, so the result grows with B. The
    loss of a micro-batch is the mean of its squares: the gradient has B in its denominator.""",
    ("2 / len(my) *", "2 *"),
    base=_worker_gradient,
    breaks=tests_of(GRADIENT, STEP, BUG),
)


@mutant(GRADIENT, breaks=tests_of(GRADIENT, STEP, BUG))
def keeps_the_last_micro_batch():
    """Your result is the gradient of the last micro-batch alone: the loop overwrites the earlier ones instead of adding
    to them. Start from zeros before the loop and accumulate inside it."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        for micro_x, micro_y in zip(x, y, strict=True):
            grad = 2 / len(micro_y) * micro_x.T @ (micro_x @ w - micro_y)
        return grad


keeps_the_last_divided = edit(
    GRADIENT,
    """Your result is the gradient of the last micro-batch, divided by the number of micro-batches: the
    final division is there, but the loop overwrites the sum instead of adding to it.""",
    ("return grad", "return grad / len(x)"),
    base=keeps_the_last_micro_batch,
    breaks=tests_of(GRADIENT, STEP, BUG),
)


@mutant(GRADIENT, breaks=tests_of(GRADIENT, STEP, BUG))
def updates_between_micro_batches():
    """You moved the weights after each micro-batch and took the next gradient at the moved weights. In
    gradient accumulation all micro-batches see the same weights; the one update comes after the last of
    them."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        start, grads = w, []
        for micro_x, micro_y in zip(x, y, strict=True):
            grads.append(2 / len(micro_y) * micro_x.T @ (micro_x @ w - micro_y))
            w = w - 0.01 * grads[-1]
        return np.mean(grads, axis=0)


points_uphill = edit(
    GRADIENT,
    """Your gradient has the opposite sign: the residual is the prediction minus the target, and you took it the other
    way round. The square is the same either way, its derivative is not.""",
    ("(mx @ w - my)", "(my - mx @ w)"),
    base=_worker_gradient,
    breaks=tests_of(GRADIENT, STEP, BUG),
)


@mutant(GRADIENT, breaks=tests_of(GRADIENT, STEP, BUG))
def keeps_the_residual_alone():
    """Your result has one entry per micro-batch instead of one per weight: you averaged a residual but never multiplied
    it by the examples. The chain rule multiplies it by the transposed examples, which gives the shape (d,)."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        return 2 * np.mean(x @ w - y, axis=1)


@mutant(GRADIENT, breaks=tests_of(GRADIENT), fails=["gradient_is_computed_in_float64"])
def calculates_in_the_dtype_that_comes_in():
    """You calculated in the dtype of the inputs. In float32 a small residual of large numbers keeps only a few correct
    digits, and small integer types wrap around. Convert x, y and w to float64 before the first operation."""

    def worker_gradient(x, y, w):
        total = 0
        for micro_x, micro_y in zip(x, y, strict=True):
            total = total + 2 / len(micro_y) * micro_x.T @ (micro_x @ w - micro_y)
        return total / len(x)


widens_only_the_result = edit(
    GRADIENT,
    """Your result is float64, but the calculation was not: when you converted it, float32 had already rounded and
    integers had already wrapped around. Convert x, y and w before the first operation.""",
    ("return total / len(x)", "return np.asarray(total / len(x), dtype=np.float64)"),
    base=calculates_in_the_dtype_that_comes_in,
    breaks=tests_of(GRADIENT),
    fails=["gradient_is_computed_in_float64"],
)


@mutant(GRADIENT, breaks=tests_of(GRADIENT), fails=["gradient_leaves_its_inputs_alone"])
def subtracts_in_place():
    """Your function changed its inputs: `np.asarray(y, dtype=np.float64)` copies only when the dtype differs, so an
    operator such as `-=` writes into the caller's array. Put the residual into a new array."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        total = np.zeros(len(w))
        for micro_x, micro_y in zip(x, y, strict=True):
            micro_y -= micro_x @ w
            total -= 2 / len(micro_y) * micro_x.T @ micro_y
        return total / len(x)


# ---- 2 · all_reduce_mean ----


@mutant(MEAN, breaks=tests_of(MEAN, STEP))
def sums_the_workers():
    """You added the workers' gradients, which is what an all-reduce does by default. This one must return their mean,
    so that the step does not grow with the number of workers. Adam hides the factor in the weights; m and v show it."""

    def all_reduce_mean(worker_grads):
        return np.sum(np.asarray(worker_grads, dtype=np.float64), axis=0)


@mutant(MEAN, breaks=tests_of(MEAN, STEP))
def divides_by_workers_twice():
    """You divided by the number of workers twice: a mean has already divided by it. Keep one of the two divisions."""

    def all_reduce_mean(worker_grads):
        worker_grads = np.asarray(worker_grads, dtype=np.float64)
        return worker_grads.mean(axis=0) / len(worker_grads)


@mutant(MEAN, breaks=tests_of(MEAN, STEP))
def averages_over_the_weights():
    """You averaged along the wrong axis: your result has one entry per worker. The workers are what must disappear, so
    average along the axis that counts them, the first."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads, dtype=np.float64), axis=1)


@mutant(MEAN, breaks=tests_of(MEAN, STEP))
def averages_everything_away():
    """You averaged over workers and weights together, which leaves a single number. A gradient keeps one entry per
    weight: tell the mean which axis to take."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads, dtype=np.float64))


@mutant(MEAN, breaks=tests_of(MEAN, STEP))
def keeps_the_worker_axis():
    """Your mean still has an axis of length 1 where the workers were: its shape is (1, d), and later steps would
    broadcast it silently. Remove the averaged axis, so that (d,) is left."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads, dtype=np.float64), axis=0, keepdims=True)


@mutant(MEAN, breaks=tests_of(MEAN, STEP))
def takes_worker_0():
    """Your result is worker 0's gradient alone. Each worker has seen other examples, so all of them must enter the mean
    with the same weight."""

    def all_reduce_mean(worker_grads):
        return np.array(worker_grads[0], dtype=np.float64)


@mutant(MEAN, breaks=tests_of(MEAN), fails=["mean_is_computed_in_float64"])
def averages_in_the_dtype_that_comes_in():
    """You took the mean in the dtype of the inputs: numpy averages float32 in float32. Calculate and return the mean in
    float64 for every dtype; np.mean and np.asarray both take a dtype."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads), axis=0)


@mutant(MEAN, breaks=tests_of(MEAN), fails=["mean_leaves_its_inputs_alone"])
def collects_in_worker_0():
    """You collected the sum in worker 0's own gradient, so an input was changed in place: a new name for an array is
    not a copy of it, and `+=` writes into it. Accumulate into a new array."""

    def all_reduce_mean(worker_grads):
        total = np.asarray(worker_grads[0], dtype=np.float64)
        for grad in worker_grads[1:]:
            total += grad
        return total / len(worker_grads)


@mutant(MEAN, breaks=tests_of(MEAN), fails=["mean_leaves_its_inputs_alone"])
def returns_the_lone_input():
    """With a single worker you returned the input itself, or a view of it. Writing to the result would then change that
    worker's gradient. Return a copy in this case, too."""

    def all_reduce_mean(worker_grads):
        worker_grads = np.asarray(worker_grads, dtype=np.float64)
        return worker_grads[0] if len(worker_grads) == 1 else worker_grads.mean(axis=0)


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


epsilon_inside_the_root = edit(
    ADAM,
    """You added epsilon inside the root. It is added to the root itself: inside, its own root counts, and the root of
    1e-8 is 1e-4, ten thousand times as much.""",
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
    """The bias correction is missing. m and v start at zero, so in the first updates they are too small, and not by the
    same factor. Divide each by one minus its beta to the power t before you use it.""",
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
    """Your bias correction has the exponent t + 1. t is already the number of this update, counted from 1: use it as it
    is.""",
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
    """With integer inputs your new m was truncated: `copy()` and `zeros_like` keep the dtype, so what is assigned into
    such an array loses its fraction. Convert to float64 first."""

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
