"""Wrong answers to lesson 03, exercises 1 and 2."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821, F841

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

GRADIENT, MEAN = "03-ex1-worker-gradient", "03-ex2-all-reduce-mean"
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
    """Your gradient is half of what it should be. The derivative of a square brings down a factor of 2; it would
    cancel only in a loss with half the squares, which is not the loss of this lesson.""",
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
    """You divided by the number of features, d, instead of the number of examples in a micro-batch, B. The loss is a
    mean over examples: check which axis of x counts them.""",
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
    """Your result is the gradient of the last micro-batch alone: the loop overwrites the earlier ones instead of
    adding to them. Start from zeros before the loop and accumulate inside it."""

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
    """Your result has one entry per micro-batch instead of one per weight: you averaged a residual but never
    multiplied it by the examples. The chain rule multiplies it by the transposed examples, which gives the shape
    (d,)."""

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


weights_in_the_dtype_of_the_examples = edit(
    GRADIENT,
    """You converted the weights to the dtype of the examples. With float32 examples, float64 weights lose half of
    their digits before the first operation. Convert all three arrays to float64.""",
    (
        "    x, y, w = (",
        "    dtype = np.asarray(x).dtype\n    w = w.astype(dtype) if dtype.kind == 'f' else w\n    x, y, w = (",
    ),
    base=_worker_gradient,
    breaks=tests_of(GRADIENT),
    fails=["gradient_is_computed_in_float64"],
)


@mutant(GRADIENT, breaks=tests_of(GRADIENT))
def flattens_in_the_order_of_memory():
    """You flattened y in the order in which it lies in memory, and x in the order of its indices. The two orders agree
    only as long as y lies in memory row by row. Flatten both with reshape(-1) or ravel() alone."""

    def worker_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        x, y = x.reshape(-1, len(w)), y.ravel("K")
        return 2 / len(y) * x.T @ (x @ w - y)


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
    """You averaged along the wrong axis: your result has one entry per worker. The worker axis must disappear: average
    along the axis that counts the workers, the first."""

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
    """Your result is worker 0's gradient alone. Each worker has seen other examples, so all of them must enter the
    mean with the same weight."""

    def all_reduce_mean(worker_grads):
        return np.array(worker_grads[0], dtype=np.float64)


@mutant(MEAN, breaks=tests_of(MEAN), fails=["mean_is_computed_in_float64"])
def averages_in_the_dtype_that_comes_in():
    """You took the mean in the dtype of the inputs: numpy averages float32 in float32. Calculate and return the mean
    in float64 for every dtype; np.mean and np.asarray both take a dtype."""

    def all_reduce_mean(worker_grads):
        return np.mean(np.asarray(worker_grads), axis=0)


@mutant(MEAN, breaks=tests_of(MEAN), fails=["mean_is_computed_in_float64"])
def adds_a_list_in_its_dtype():
    """You compute in float64 when you get one array, but you add up a list of arrays in their own dtype: float32 is
    rounded, int8 wraps around. Convert the list to one float64 array first."""

    def all_reduce_mean(worker_grads):
        if isinstance(worker_grads, list):
            return np.asarray(sum(worker_grads), dtype=np.float64) / len(worker_grads)
        return np.mean(worker_grads, axis=0, dtype=np.float64)


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
    """With a single worker you returned the input itself, or a view of it. Writing to the result would then change
    that worker's gradient. Return a copy in this case, too."""

    def all_reduce_mean(worker_grads):
        worker_grads = np.asarray(worker_grads, dtype=np.float64)
        return worker_grads[0] if len(worker_grads) == 1 else worker_grads.mean(axis=0)
