"""Known wrong answers to lesson 03, one training step by hand; the subtle ones of each exercise first."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821, F841

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right

EX1 = "03-ex1-worker-gradient"
EX2 = "03-ex2-all-reduce-mean"
EX3 = "03-ex3-adam-update"
EX4 = "03-ex4-ema-update"
EX5 = "03-ex5-training-step"
STEP_TEST = f"{EX5}-test"

# --- exercise 1: one worker's gradient --------------------------------------------------------------------


@mutant(cell=EX1, breaks=[f"{EX1}-test", STEP_TEST])
def sums_the_micro_batches():
    """You added up the gradients of the micro-batches, so the result grows with their number.
    Accumulating is only half of it: the worker's gradient is their mean. Divide once more, after the
    loop. (Adam would hide this from the weights, since it cancels constant factors; m and v show it.)"""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        total = np.zeros(len(w))
        for micro_x, micro_y in zip(x, y, strict=True):
            total += 2 / len(micro_y) * micro_x.T @ (micro_x @ w - micro_y)
        return total


@mutant(cell=EX1, breaks=[f"{EX1}-test", STEP_TEST])
def forgets_the_two():
    """Your gradient is half of what it should be. The derivative of a square brings down a factor of 2;
    the convention with a loss of one half of the squares, where it vanishes, is not the loss of this
    lesson."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        grads = [mx.T @ (mx @ w - my) / len(my) for mx, my in zip(x, y, strict=True)]
        return np.mean(grads, axis=0)


@mutant(cell=EX1, breaks=[f"{EX1}-test", STEP_TEST])
def divides_by_accum_steps_twice():
    """You divided by the number of micro-batches twice: perhaps once inside the loop and once after it,
    or once as a mean and once more by hand. The mean over micro-batches needs that division exactly
    once."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        accum_steps, batch = y.shape
        grads = [2 / batch / accum_steps * mx.T @ (mx @ w - my) for mx, my in zip(x, y, strict=True)]
        return np.mean(grads, axis=0)


divides_by_features = edit(
    EX1,
    """You divided by the number of features, d, where the number of examples in a micro-batch, B,
    belongs. The loss is a mean over examples: look again at which axis of x counts them.""",
    ("mx.T @ (mx @ w - my) / len(my)", "2 / len(w) * mx.T @ (mx @ w - my)"),
    base=forgets_the_two,
    breaks=[f"{EX1}-test", STEP_TEST],
)

sums_the_examples = edit(
    EX1,
    """You averaged over the micro-batches but added up the examples inside each one, so the result grows
    with B. The loss of a micro-batch is the mean of its squares: the gradient has B in its
    denominator.""",
    ("2 / len(w) * mx.T", "2 * mx.T"),
    base=divides_by_features,
    breaks=[f"{EX1}-test", STEP_TEST],
)


@mutant(cell=EX1, breaks=[f"{EX1}-test", STEP_TEST])
def keeps_the_last_micro_batch():
    """Your result is the gradient of the last micro-batch alone: the loop overwrites what came before
    instead of adding to it. Start from zeros before the loop and accumulate inside it."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        for micro_x, micro_y in zip(x, y, strict=True):
            grad = 2 / len(micro_y) * micro_x.T @ (micro_x @ w - micro_y)
        return grad


keeps_the_last_divided = edit(
    EX1,
    """Your result is the gradient of the last micro-batch, divided by the number of micro-batches: the
    final division is there, but the loop overwrites the sum instead of adding to it.""",
    ("return grad", "return grad / len(x)"),
    base=keeps_the_last_micro_batch,
    breaks=[f"{EX1}-test", STEP_TEST],
)


@mutant(cell=EX1, breaks=[f"{EX1}-test", STEP_TEST])
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
    EX1,
    """Your gradient has the opposite sign: the residual is the prediction minus the target, and you took
    it the other way round. Squares do not care, their derivative does.""",
    ("(w) * mx.T @ (mx @ w - my)", "(my) * mx.T @ (my - mx @ w)"),
    base=divides_by_features,
    breaks=[f"{EX1}-test", STEP_TEST],
)


@mutant(cell=EX1, breaks=[f"{EX1}-test", STEP_TEST])
def keeps_the_residual_alone():
    """Your result has one entry a micro-batch and no entry a weight: a residual was averaged, but never
    sent back through the examples. The chain rule multiplies it by the transposed examples, which brings
    the shape to (d,)."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        return 2 * np.mean(x @ w - y, axis=1)


@mutant(cell=EX1, breaks=[f"{EX1}-test"])
def calculates_in_the_dtype_that_comes_in():
    """You calculated in the dtype that came in. In float32 a small residual of large numbers keeps only a
    few right digits, and small integers wrap around. Convert x, y and w to float64 before the first
    operation."""

    def worker_gradient(x, y, w):
        total = 0
        for micro_x, micro_y in zip(x, y, strict=True):
            total = total + 2 / len(micro_y) * micro_x.T @ (micro_x @ w - micro_y)
        return total / len(x)


widens_only_the_result = edit(
    EX1,
    """The result is float64, but the calculation was not: it was converted at the end, when float32 had
    already rounded and integers had already wrapped around. Convert x, y and w before the first
    operation.""",
    ("return total / len(x)", "return np.asarray(total / len(x), dtype=np.float64)"),
    base=calculates_in_the_dtype_that_comes_in,
    breaks=[f"{EX1}-test"],
)


@mutant(cell=EX1, breaks=[f"{EX1}-test"])
def subtracts_in_place():
    """Your function changed its inputs: `np.asarray(y, dtype=np.float64)` copies only when the dtype
    differs, so an operator such as `-=` on it writes into the caller's array. Put the residual into a new
    array."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        total = np.zeros(len(w))
        for micro_x, micro_y in zip(x, y, strict=True):
            micro_y -= micro_x @ w
            total -= 2 / len(micro_y) * micro_x.T @ micro_y
        return total / len(x)


# --- exercise 2: the all-reduce ---------------------------------------------------------------------------


@mutant(cell=EX2, breaks=[f"{EX2}-test", STEP_TEST])
def sums_the_workers():
    """You added the workers' gradients, which is what an all-reduce does unless it is told otherwise.
    Here their mean is asked: the step must not grow with the number of workers. Adam hides the factor
    from the weights, m and v do not."""

    def all_reduce_mean(worker_grads):
        return np.sum(np.asarray(worker_grads, dtype=np.float64), axis=0)


@mutant(cell=EX2, breaks=[f"{EX2}-test", STEP_TEST])
def divides_by_workers_twice():
    """You divided by the number of workers twice: a mean has already done it once. Keep one of the two
    divisions."""

    def all_reduce_mean(worker_grads):
        worker_grads = np.asarray(worker_grads, dtype=np.float64)
        return worker_grads.mean(axis=0) / len(worker_grads)


@mutant(cell=EX2, breaks=[f"{EX2}-test", STEP_TEST])
def averages_over_the_weights():
    """You averaged along the wrong axis: the result has one entry a worker. The workers are what must
    disappear, so average along the axis that counts them, the first."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads, dtype=np.float64), axis=1)


@mutant(cell=EX2, breaks=[f"{EX2}-test", STEP_TEST])
def averages_everything_away():
    """You averaged over workers and weights together, which leaves a single number. A gradient keeps one
    entry a weight: tell the mean which axis to take."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads, dtype=np.float64))


@mutant(cell=EX2, breaks=[f"{EX2}-test", STEP_TEST])
def keeps_the_worker_axis():
    """Your mean still has an axis of length 1 where the workers were: the shape is (1, d). Later steps
    would broadcast it without a word. Let the averaged axis vanish, so that (d,) is left."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads, dtype=np.float64), axis=0, keepdims=True)


@mutant(cell=EX2, breaks=[f"{EX2}-test", STEP_TEST])
def takes_worker_0():
    """Your result is worker 0's gradient: the others had no say. Each worker has seen other examples, so
    all must enter the mean with the same weight."""

    def all_reduce_mean(worker_grads):
        return np.array(worker_grads[0], dtype=np.float64)


@mutant(cell=EX2, breaks=[f"{EX2}-test"])
def averages_in_the_dtype_that_comes_in():
    """The mean was taken in the dtype that came in: numpy averages float32 in float32. The mean of any
    dtype should be calculated and returned in float64; np.mean and np.asarray both take a dtype."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads), axis=0)


@mutant(cell=EX2, breaks=[f"{EX2}-test"])
def collects_in_worker_0():
    """You collected the sum in worker 0's own gradient, so an input was changed in place: a name given to
    an array is not a copy of it, and `+=` writes through it. Accumulate into a new array."""

    def all_reduce_mean(worker_grads):
        total = np.asarray(worker_grads[0], dtype=np.float64)
        for grad in worker_grads[1:]:
            total += grad
        return total / len(worker_grads)


@mutant(cell=EX2, breaks=[f"{EX2}-test"])
def returns_the_lone_input():
    """With a single worker you returned the input itself, or a view of it. Whoever writes to the result
    would then change that worker's gradient. Return a copy in this case, too."""

    def all_reduce_mean(worker_grads):
        worker_grads = np.asarray(worker_grads, dtype=np.float64)
        return worker_grads[0] if len(worker_grads) == 1 else worker_grads.mean(axis=0)


# --- exercise 3: Adam -------------------------------------------------------------------------------------


@right(EX3)
def _adam():
    """Right: the base of the edits below."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        return w - lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def corrects_after_epsilon():
    """You added epsilon to the root of v before v was corrected, so early in training it weighs too much.
    Some libraries do define Adam that way; here, as in Algorithm 1 of the paper, epsilon joins the root
    of the corrected v."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        rate = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
        return w - rate * m / (np.sqrt(v) + eps), m, v


epsilon_inside_the_root = edit(
    EX3,
    """You added epsilon inside the root. It belongs outside, to the root itself: inside, its own root
    counts, and the root of 1e-8 is 1e-4, ten thousand times as much.""",
    ("(np.sqrt(v / (1 - beta2**t)) + eps)", "np.sqrt(v / (1 - beta2**t) + eps)"),
    base=_adam,
    breaks=[f"{EX3}-test", STEP_TEST],
)


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def carries_the_corrected_moments():
    """You returned the corrected moments, so the next update starts from them and corrects them again.
    The correction is for this update's weights only: keep the plain averages m and v, and give the
    corrected ones other names."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = (beta1 * m + (1 - beta1) * g) / (1 - beta1**t)
        v = (beta2 * v + (1 - beta2) * g * g) / (1 - beta2**t)
        return w - lr * m / (np.sqrt(v) + eps), m, v


corrects_only_m = edit(
    EX3,
    """You corrected the bias of m but not of v. Both start at zero and both are too small at first; with
    v too small the first steps come out far too long.""",
    ("v / (1 - beta2**t)", "v"),
    base=_adam,
    breaks=[f"{EX3}-test", STEP_TEST],
)

corrects_nothing = edit(
    EX3,
    """The bias correction is missing. m and v start at zero, so for the first updates they are too small,
    and not by the same factor. Divide each by one minus its beta to the power t before it is used.""",
    ("(1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)", "(np.sqrt(v) + eps)"),
    base=_adam,
    breaks=[f"{EX3}-test", STEP_TEST],
)


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def counts_from_zero():
    """Your bias correction uses t - 1 as its exponent, as if updates were counted from 0. The first
    update has t = 1; with an exponent of 0 the correction would divide by zero."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1 ** (t - 1)), v / (1 - beta2 ** (t - 1))
        return w - lr * m_hat / (np.sqrt(v_hat) + eps), m, v


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def counts_one_too_far():
    """Your bias correction uses t + 1 as its exponent: t is already the number of this update, counted
    from 1. Do not advance it once more."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))
        return w - lr * m_hat / (np.sqrt(v_hat) + eps), m, v


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def multiplies_in_the_correction():
    """Your bias correction uses beta times t instead of beta to the power t. In the first update the two
    are the same, which is why it looks right there; after that they part."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1 * t), v / (1 - beta2 * t)
        return w - lr * m_hat / (np.sqrt(v_hat) + eps), m, v


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def squares_the_corrected_m():
    """v averages the squares of the gradient g. You squared the running average of the gradient instead,
    which loses the very noise that v is there to measure."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + (1 - beta1) * g
        m_hat = m / (1 - beta1**t)
        v = beta2 * v + (1 - beta2) * m_hat**2
        return w - lr * m_hat / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def steps_with_the_old_moments():
    """You moved the weights with the moments from before this update. First bring m and v up to date with
    g, then use the new ones; otherwise every gradient arrives one step late, and the first not at all."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        w = w - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        return w, beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def swaps_the_betas():
    """You swapped the two betas: beta1 is the memory of m, the average of the gradient; beta2 that of v,
    the average of its square. v has the longer memory."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        beta1, beta2 = beta2, beta1
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        return w - lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def swaps_old_and_new():
    """You swapped the shares of old and new in the moments: beta is the share of the past, one minus beta
    that of the new gradient. With beta near 1 the average should hardly move."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = (1 - beta1) * m + beta1 * g
        v = (1 - beta2) * v + beta2 * g * g
        return w - lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


@mutant(cell=EX3, breaks=[f"{EX3}-test", STEP_TEST])
def adds_the_whole_gradient():
    """You added the whole gradient to the moments, as momentum in SGD does, without the factor one minus
    beta. Then they are sums, not averages. In the weights it nearly cancels; m and v are too large."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m = beta1 * m + g
        v = beta2 * v + g * g
        return w - lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps), m, v


forgets_the_root = edit(
    EX3,
    """You divided by v itself; Adam divides by its root. v has the unit of a squared gradient, and only
    its root cancels the unit of m.""",
    ("np.sqrt(v / (1 - beta2**t))", "v / (1 - beta2**t)"),
    base=_adam,
    breaks=[f"{EX3}-test", STEP_TEST],
)

climbs = edit(
    EX3,
    """You added the step to the weights. The gradient points uphill and training goes down: subtract
    it.""",
    ("return w - lr * m", "return w + lr * m"),
    base=_adam,
    breaks=[f"{EX3}-test", STEP_TEST],
)

returns_v_before_m = edit(
    EX3,
    """You returned v before m. The order is (w, m, v); whoever unpacks the tuple would take the one for
    the other.""",
    ("(np.sqrt(v / (1 - beta2**t)) + eps), m, v", "(np.sqrt(v / (1 - beta2**t)) + eps), v, m"),
    base=_adam,
    breaks=[f"{EX3}-test", STEP_TEST],
)

updates_in_the_dtype_that_comes_in = edit(
    EX3,
    """You calculated in the dtype that came in, so float32 arrays gave float32 moments. Convert w, g, m
    and v to float64 before the first operation.""",
    ("    w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))\n", ""),
    base=_adam,
    breaks=[f"{EX3}-test"],
)


@mutant(cell=EX3, breaks=[f"{EX3}-test"])
def truncates_into_integers():
    """Integer arrays came in and your new m was truncated: `copy()` and `zeros_like` keep the dtype, so
    what is assigned into such an array loses its fraction. Convert to float64 first."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        new_w, new_m, new_v = (np.empty(len(w), dtype=np.result_type(a.dtype, np.int64)) for a in (w, m, v))
        new_m[:] = beta1 * m + (1 - beta1) * g
        new_v[:] = beta2 * v + (1 - beta2) * g**2.0
        m_hat, v_hat = new_m / (1 - beta1**t), new_v / (1 - beta2**t)
        new_w[:] = w - lr * m_hat / (np.sqrt(v_hat) + eps)
        return new_w, new_m, new_v


@mutant(cell=EX3, breaks=[f"{EX3}-test"])
def updates_in_place():
    """Your function changed the arrays that it was given: `*=`, `+=` and `-=` write into the caller's w,
    m and v, also after `np.asarray`, which copies only when it must. Write the right-hand sides as new
    arrays."""

    def adam_update(w, g, m, v, lr, beta1, beta2, eps, t):
        w, g, m, v = (np.asarray(a, dtype=np.float64) for a in (w, g, m, v))
        m *= beta1
        m += (1 - beta1) * g
        v *= beta2
        v += (1 - beta2) * g * g
        w -= lr * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
        return w, m, v


# --- exercise 4: averaged weights -------------------------------------------------------------------------


@mutant(cell=EX4, breaks=[f"{EX4}-test", STEP_TEST])
def keeps_too_little():
    """You swapped the two shares: decay is the share of the past average, one minus decay that of the new
    weights. With a decay of 0.999 your average would be little else than the newest weights."""

    def ema_update(ema, w, decay):
        ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)
        return (1 - decay) * ema + decay * w


@mutant(cell=EX4, breaks=[f"{EX4}-test", STEP_TEST])
def adds_all_of_the_new():
    """You added all of the new weights to the decayed average. The two shares must add up to one, or the
    average grows far beyond the weights: what the past gives up is what the new weights get."""

    def ema_update(ema, w, decay):
        return decay * np.asarray(ema, dtype=np.float64) + np.asarray(w, dtype=np.float64)


@mutant(cell=EX4, breaks=[f"{EX4}-test", STEP_TEST])
def corrects_the_average():
    """You divided by one minus decay, as if the average had a bias to correct. It starts at the weights
    and not at zero, so there is nothing to correct."""

    def ema_update(ema, w, decay):
        ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)
        return (decay * ema + (1 - decay) * w) / (1 - decay if decay < 1 else 1)


@mutant(cell=EX4, breaks=[f"{EX4}-test"])
def averages_weights_in_their_dtype():
    """You calculated in the dtype that came in. A moving average adds tiny shares of the new weights to a
    large past, which float32 rounds away. Convert ema and w to float64 first, and return float64."""

    def ema_update(ema, w, decay):
        return decay * ema + (1 - decay) * w


@mutant(cell=EX4, breaks=[f"{EX4}-test"])
def decays_in_place():
    """Your function changed the average that it was given. `np.asarray` copies only when it must, so `*=`
    and `+=` write into the caller's array. Return a new array and leave ema alone."""

    def ema_update(ema, w, decay):
        ema = np.asarray(ema, dtype=np.float64)
        ema *= decay
        ema += (1 - decay) * np.asarray(w, dtype=np.float64)
        return ema


@mutant(cell=EX4, breaks=[f"{EX4}-test"])
def returns_the_input_at_the_ends():
    """For a decay of 0 or 1 you returned one of the inputs itself instead of a copy. Whoever writes to
    the result then changes the weights, or the old average."""

    def ema_update(ema, w, decay):
        ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)
        if decay in (0, 1):
            return ema if decay else w
        return decay * ema + (1 - decay) * w


# --- exercise 5: the whole step ---------------------------------------------------------------------------


@right(EX5)
def _step():
    """Right: the base of the edits below."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(
            np.result_type(xs, ys, *state, np.float32)
        )


averages_the_old_weights = edit(
    EX5,
    """The EMA took in the weights from before this step. It should see the new ones: first Adam, then the
    average. Your average is one step late, and nothing raises an error.""",
    ("ema_weights, w, decay", "ema_weights, weights, decay"),
    base=_step,
    breaks=[STEP_TEST],
)

copies_in_the_first_step = edit(
    EX5,
    """In the first step you copied the new weights into the average. torch's AveragedModel does that;
    here t = 1 is a step like any other, and the average that was given counts with its full share.""",
    (
        "return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(\n"
        "        np.result_type(xs, ys, *state, np.float32)\n"
        "    )",
        "ema = w if t == 1 else ema_update(ema_weights, w, decay)\n"
        "    return np.concatenate([w, ema, m, v]).astype(np.result_type(xs, ys, *state, np.float32))",
    ),
    base=_step,
    breaks=[STEP_TEST],
)


@mutant(cell=EX5, breaks=[STEP_TEST])
def averages_the_adam_updates():
    """You gave each worker an Adam update of its own and averaged the results. Adam squares and divides,
    so the mean of the updates is not the update of the mean: average the gradients first, then update
    once."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        updates = []
        for x, y in zip(worker_xs, worker_ys, strict=True):
            g = worker_gradient(x, y, weights)
            updates.append(adam_update(weights, g, m, v, lr, beta1, beta2, eps, t))
        w, m, v = np.mean(updates, axis=0)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(
            np.result_type(xs, ys, *state, np.float32)
        )


updates_for_each_worker = edit(
    EX5,
    """You made one Adam update after another, one for each worker, inside a single step. All workers
    share one update: average their gradients, all taken at the same weights, and call Adam once.""",
    (
        "g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])\n"
        "    w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "w = weights\n"
        "    for x, y in zip(worker_xs, worker_ys, strict=True):\n"
        "        w, m, v = adam_update(w, worker_gradient(x, y, w), m, v, lr, beta1, beta2, eps, t)",
    ),
    base=_step,
    breaks=[STEP_TEST],
)


@mutant(cell=EX5, breaks=[STEP_TEST])
def updates_for_each_micro_batch():
    """You made an Adam update after each micro-batch. Micro-batches exist to save memory, not to make
    more updates: accumulate first, over all of them, and update once a step."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        w = weights
        for a in range(len(worker_xs[0])):
            grads = [worker_gradient(x[a : a + 1], y[a : a + 1], w) for x, y in zip(worker_xs, worker_ys, strict=True)]
            w, m, v = adam_update(w, all_reduce_mean(grads), m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(
            np.result_type(xs, ys, *state, np.float32)
        )


asks_worker_0_alone = edit(
    EX5,
    """Your step follows worker 0's gradient alone. The others' examples have no effect: the all-reduce
    must take in every worker's gradient.""",
    (
        "all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])",
        "worker_gradient(worker_xs[0], worker_ys[0], weights)",
    ),
    base=_step,
    breaks=[STEP_TEST],
)

adds_the_workers = edit(
    EX5,
    """Adam got the sum of the workers' gradients, not their mean: m is N times too large and v N squared
    times. The weights hardly show it, because Adam cancels constant factors.""",
    (
        "g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])",
        "g = len(worker_xs) * all_reduce_mean(\n"
        "        [worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)]\n"
        "    )",
    ),
    base=_step,
    breaks=[STEP_TEST],
)

divides_by_n_again = edit(
    EX5,
    """You divided by the number of workers twice: your all-reduce has already taken the mean. m is N
    times too small and v N squared times; the weights hardly show it, because Adam cancels constant
    factors.""",
    (
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "g = g / len(worker_xs)\n    w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
    ),
    base=_step,
    breaks=[STEP_TEST],
)

divides_by_accum_steps_again = edit(
    EX5,
    """You divided by accum_steps twice: the worker's gradient is already a mean over its micro-batches.
    The weights hardly show it, because Adam cancels constant factors; m and v do.""",
    (
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "g = g / len(worker_xs[0])\n    w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
    ),
    base=_step,
    breaks=[STEP_TEST],
)

takes_the_gradient_at_the_average = edit(
    EX5,
    """You took the gradients at the EMA weights. The average only watches: gradients are taken at the
    weights that are being trained, and the average never flows back.""",
    ("(x, y, weights)", "(x, y, ema_weights)"),
    base=_step,
    breaks=[STEP_TEST],
)

counts_t_up = edit(
    EX5,
    """You advanced t before the update. It is given as the number of this very update, counted from 1.""",
    (
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t + 1)",
    ),
    base=_step,
    breaks=[STEP_TEST],
)

puts_the_average_first = edit(
    EX5,
    """The EMA weights come before the weights in your result. The order is: new weights, new EMA weights,
    new m, new v.""",
    ("w, ema_update(ema_weights, w, decay)", "ema_update(ema_weights, w, decay), w"),
    base=_step,
    breaks=[STEP_TEST],
)

puts_the_average_last = edit(
    EX5,
    """The EMA weights come last in your result. The order is: new weights, new EMA weights, new m, new
    v.""",
    ("ema_update(ema_weights, w, decay), m, v", "m, v, ema_update(ema_weights, w, decay)"),
    base=_step,
    breaks=[STEP_TEST],
)

puts_v_before_m = edit(
    EX5,
    """v comes before m in your result. The order is: new weights, new EMA weights, new m, new v.""",
    (
        "return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(",
        "return np.concatenate([w, ema_update(ema_weights, w, decay), v, m]).astype(",
    ),
    base=_step,
    breaks=[STEP_TEST],
)


@mutant(cell=EX5, breaks=[STEP_TEST])
def stacks_the_parts():
    """Your result has two axes, (4, d): the parts are stacked, or returned as four arrays. They should
    stand end to end in one flat array (4*d,)."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.stack([w, ema_update(ema_weights, w, decay), m, v]).astype(np.result_type(xs, ys, *state, np.float32))


@mutant(cell=EX5, breaks=[STEP_TEST])
def needs_arrays():
    """Your step works with arrays but not with lists of arrays, which have no `shape` and no `dtype`.
    Turn worker_xs and worker_ys into arrays first; numpy stacks a list for you."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        state = [weights, ema_weights, m, v]
        fits = len(worker_xs.shape) == 4 and np.shape(worker_ys) == worker_xs.shape[:3]
        if t < 1 or not fits or any(a.shape != worker_xs.shape[3:] for a in state):
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(
            np.result_type(worker_xs, worker_ys, *state, np.float32)
        )


@mutant(cell=EX5, breaks=[STEP_TEST])
def truncates_the_result():
    """Your result took on an integer dtype and lost all fractions: an array made with the dtype of the
    weights truncates what is written into it. Integers that come in still give float64."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        d = len(weights)
        out = np.empty(4 * d, dtype=state[0].dtype)
        out[:d], out[d : 2 * d], out[2 * d : 3 * d], out[3 * d :] = w, ema_update(ema_weights, w, decay), m, v
        return out


@mutant(cell=EX5, breaks=[STEP_TEST])
def never_returns_float32():
    """You returned float64 although every array that came in was float32. In just that case the result is
    rounded to float32, once, at the end."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v])


@mutant(cell=EX5, breaks=[STEP_TEST])
def narrows_for_the_examples():
    """You returned float32 because some of the arrays were float32. It takes all six of them: a single
    float64 array among them, the average for instance, makes the result float64."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        dtype = np.float32 if xs.dtype == ys.dtype == np.float32 else np.float64
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(dtype)


@mutant(cell=EX5, breaks=[STEP_TEST])
def writes_into_the_state():
    """You wrote the new state into the arrays that were given. The caller may still need the old one, to
    compare or to go back: return the new state and leave the old alone."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, new_m, new_v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        ema = ema_update(ema_weights, w, decay)
        flat = np.concatenate([w, ema, new_m, new_v])
        weights[:], ema_weights[:], m[:], v[:] = w, ema, new_m, new_v
        return flat.astype(np.result_type(xs, ys, *state, np.float32))


@mutant(cell=EX5, breaks=[STEP_TEST])
def empties_the_lists():
    """You changed a list that was given: `pop`, `append` or an assignment to an entry changes the
    caller's list, too. Make an array of it and work on that."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        if isinstance(worker_xs, list):
            for r, worker in enumerate(worker_xs):
                worker_xs[r] = np.stack(list(worker)).astype(np.float64)
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v]).astype(
            np.result_type(xs, ys, *state, np.float32)
        )


never_checks_t = edit(
    EX5,
    """t = 0 went through. Updates are counted from 1, and for t = 0 the bias correction divides by zero,
    which numpy only warns about. Raise a ValueError for t below 1, before anything else.""",
    ("if t < 1 or not fits:", "if not fits:"),
    base=_step,
    breaks=[STEP_TEST],
)

never_checks_shapes = edit(
    EX5,
    """A shape that does not fit went through, or failed somewhere inside numpy with a message that names
    no argument. Compare each array's shape with those of worker_xs before you calculate, and raise a
    ValueError with the argument's name.""",
    (
        "fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)\n"
        "    if t < 1 or not fits:\n"
        '        raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")',
        'if t < 1:\n        raise ValueError("t counts from 1")',
    ),
    base=_step,
    breaks=[STEP_TEST],
)

checks_only_the_examples = edit(
    EX5,
    """You checked worker_xs and worker_ys, but not the state. Weights, EMA weights, m and v of another
    shape are broadcast without a word, or fail inside numpy with a message that names no argument: all
    four must be (d,).""",
    ("[:3] and all(a.shape == xs.shape[3:] for a in state)", "[:3]"),
    ("worker_xs, worker_ys, weights, ema_weights, m or v", "worker_xs or worker_ys"),
    base=_step,
    breaks=[STEP_TEST],
)

checks_sizes_for_shapes = edit(
    EX5,
    """You compared sizes, or lengths, where shapes must agree: an array (d, 1) or (1, d) has as many
    entries as (d,), and numpy broadcasts it to something else.""",
    (
        "ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)",
        "ys.size == xs[..., 0].size and all(a.size == xs.shape[3] for a in state)",
    ),
    base=_step,
    breaks=[STEP_TEST],
)
