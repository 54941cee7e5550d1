"""Wrong answers to lesson 03, exercises 4 and 5."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

EMA, STEP, BUG = "03-ex4-ema-update", "03-ex5-training-step", "03-ex6-sum-bug"


# ---- 4 · ema_update ----


@mutant(EMA, breaks=tests_of(EMA, STEP, BUG))
def keeps_too_little():
    """You swapped the two shares: decay is the share of the past average, one minus decay that of the new weights.
    With a decay of 0.999 your average is little more than the newest weights."""

    def ema_update(ema, w, decay):
        ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)
        return (1 - decay) * ema + decay * w


@mutant(EMA, breaks=tests_of(EMA, STEP, BUG))
def adds_all_of_the_new():
    """You added the new weights in full to the decayed average. The two shares must add up to one, or the average
    grows far beyond the weights."""

    def ema_update(ema, w, decay):
        return decay * np.asarray(ema, dtype=np.float64) + np.asarray(w, dtype=np.float64)


@mutant(EMA, breaks=tests_of(EMA, STEP, BUG))
def corrects_the_average():
    """You divided by one minus decay, as if the average had a bias to correct. It starts at the weights and not at
    zero, so there is nothing to correct."""

    def ema_update(ema, w, decay):
        ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)
        return (decay * ema + (1 - decay) * w) / (1 - decay if decay < 1 else 1)


@mutant(EMA, breaks=tests_of(EMA))
def copies_onto_zeros():
    """You replaced an average of zeros by the new weights. The statement asks for no special first step: the past keeps
    its share, even if it is zero."""

    def ema_update(ema, w, decay):
        ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)
        return decay * ema + (1 - decay) * w if ema.any() else w.copy()


@mutant(EMA, breaks=tests_of(EMA), fails=["ema_is_computed_in_float64"])
def averages_weights_in_their_dtype():
    """You calculated in the dtype of the inputs. A moving average adds tiny shares of the new weights to a large past,
    and float32 rounds them away. Convert ema and w to float64 first, and return float64."""

    def ema_update(ema, w, decay):
        return decay * ema + (1 - decay) * w


@mutant(EMA, breaks=tests_of(EMA), fails=["ema_leaves_its_inputs_alone"])
def decays_in_place():
    """Your function changed the average that it was given: `np.asarray` copies only when it must, so `*=` and `+=`
    write into the caller's array. Return a new array and leave ema alone."""

    def ema_update(ema, w, decay):
        ema = np.asarray(ema, dtype=np.float64)
        ema *= decay
        ema += (1 - decay) * np.asarray(w, dtype=np.float64)
        return ema


@mutant(EMA, breaks=tests_of(EMA), fails=["ema_leaves_its_inputs_alone"])
def returns_the_input_at_the_ends():
    """For a decay of 0 or 1 you returned one of the inputs itself. Writing to the result then changes the weights, or
    the old average: return a copy."""

    def ema_update(ema, w, decay):
        ema, w = np.asarray(ema, dtype=np.float64), np.asarray(w, dtype=np.float64)
        if decay in (0, 1):
            return ema if decay else w
        return decay * ema + (1 - decay) * w


# ---- 5 · distributed_training_step ----


@right(STEP)
def _step():
    """Right: the base of the edits below."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        xs, ys, *state = (np.asarray(a) for a in (worker_xs, worker_ys, weights, ema_weights, m, v))
        fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)
        if t < 1 or not fits:
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v])


averages_the_old_weights = edit(
    STEP,
    """The EMA took in the weights from before this step. It should see the new ones: first Adam, then the average.
    Yours is one step late, although nothing raises an error.""",
    ("ema_weights, w, decay", "ema_weights, weights, decay"),
    base=_step,
    breaks=tests_of(STEP),
)

copies_in_the_first_step = edit(
    STEP,
    """In the first step you copied the new weights into the average. torch's AveragedModel does that; in this exercise
    t = 1 is a step like any other, and the given average counts with its full share.""",
    ("return np.concatenate(", "ema = w if t == 1 else ema_update(ema_weights, w, decay)\n    return np.concatenate("),
    ("[w, ema_update(ema_weights, w, decay), m, v]", "[w, ema, m, v]"),
    base=_step,
    breaks=tests_of(STEP),
)

forgets_the_state_in_the_first_step = edit(
    STEP,
    """In the first step you took m and v to be zero. They come as arguments: use what is passed, for t = 1 as for any
    other t.""",
    (
        "    g = all_reduce_mean(",
        "    m, v = (np.zeros(xs.shape[3]),) * 2 if t == 1 else (m, v)\n    g = all_reduce_mean(",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

averages_the_adam_updates = edit(
    STEP,
    """You gave each worker an Adam update of its own and averaged the results. Adam squares and divides, so the mean
    of the updates is not the update for the mean: average the gradients first, then update once.""",
    (
        "g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])\n"
        "    w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "updates = []\n"
        "    for x, y in zip(worker_xs, worker_ys, strict=True):\n"
        "        g = worker_gradient(x, y, weights)\n"
        "        updates.append(adam_update(weights, g, m, v, lr, beta1, beta2, eps, t))\n"
        "    w, m, v = np.mean(updates, axis=0)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

updates_for_each_worker = edit(
    STEP,
    """You made one Adam update for each worker, one after another, in a single step. All workers share one update:
    average their gradients, all taken at the same weights, and call Adam once.""",
    (
        "g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])\n"
        "    w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "w = weights\n"
        "    for x, y in zip(worker_xs, worker_ys, strict=True):\n"
        "        w, m, v = adam_update(w, worker_gradient(x, y, w), m, v, lr, beta1, beta2, eps, t)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

updates_for_each_micro_batch = edit(
    STEP,
    """You made an Adam update after each micro-batch. Micro-batches save memory; they are not meant to make more
    updates: accumulate over all of them first, and update once per step.""",
    (
        "    for x, y in zip(worker_xs, worker_ys, strict=True):\n"
        "        w, m, v = adam_update(w, worker_gradient(x, y, w), m, v, lr, beta1, beta2, eps, t)",
        "    for a in range(len(worker_xs[0])):\n"
        "        grads = [worker_gradient(x[a : a + 1], y[a : a + 1], w) for x, y in "
        "zip(worker_xs, worker_ys, strict=True)]\n"
        "        w, m, v = adam_update(w, all_reduce_mean(grads), m, v, lr, beta1, beta2, eps, t)",
    ),
    base=updates_for_each_worker,
    breaks=tests_of(STEP),
)

asks_worker_0_alone = edit(
    STEP,
    """Your step follows worker 0's gradient alone, so the other workers' examples have no effect. The all-reduce must
    take in every worker's gradient.""",
    (
        "all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])",
        "worker_gradient(worker_xs[0], worker_ys[0], weights)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

adds_the_workers = edit(
    STEP,
    """Adam got the sum of the workers' gradients, not their mean: m is N times too large, and v N² times. The weights
    hardly show it, because Adam cancels constant factors.""",
    (
        "g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])",
        "g = len(worker_xs) * all_reduce_mean(\n"
        "        [worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)]\n"
        "    )",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

divides_by_n_again = edit(
    STEP,
    """You divided by the number of workers twice: your all-reduce has already taken the mean. m is N times too small,
    and v N² times; the weights hardly show it, because Adam cancels constant factors.""",
    (
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "g = g / len(worker_xs)\n    w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

divides_by_accum_steps_again = edit(
    STEP,
    """You divided by accum_steps twice: the worker's gradient is already a mean over its micro-batches. The weights
    hardly show it, because Adam cancels constant factors; m and v do.""",
    (
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "g = g / len(worker_xs[0])\n    w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

takes_the_gradient_at_the_average = edit(
    STEP,
    """You took the gradients at the EMA weights. Take them at the weights that are being trained: the average follows
    the training and never feeds back into it.""",
    ("(x, y, weights)", "(x, y, ema_weights)"),
    base=_step,
    breaks=tests_of(STEP),
)

counts_t_up = edit(
    STEP,
    """You advanced t before the update. The t that you are given is already the number of this update, counted from
    1.""",
    (
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)",
        "w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t + 1)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

puts_the_average_first = edit(
    STEP,
    """The EMA weights come before the weights in your result. The order is: new weights, new EMA weights,
    new m, new v.""",
    ("w, ema_update(ema_weights, w, decay)", "ema_update(ema_weights, w, decay), w"),
    base=_step,
    breaks=tests_of(STEP),
)

puts_the_average_last = edit(
    STEP,
    """The EMA weights come last in your result. The order is: new weights, new EMA weights, new m, new
    v.""",
    ("ema_update(ema_weights, w, decay), m, v", "m, v, ema_update(ema_weights, w, decay)"),
    base=_step,
    breaks=tests_of(STEP),
)

puts_v_before_m = edit(
    STEP,
    """v comes before m in your result. The order is: new weights, new EMA weights, new m, new v.""",
    ("decay), m, v])", "decay), v, m])"),
    base=_step,
    breaks=tests_of(STEP),
)

stacks_the_parts = edit(
    STEP,
    """Your result has two axes, (4, d): the parts are stacked, or returned as four arrays. Join them end to end into
    one flat array, (4*d,).""",
    ("np.concatenate([", "np.stack(["),
    base=_step,
    breaks=tests_of(STEP),
)


@mutant(
    STEP,
    breaks=tests_of(STEP),
    fails=["step_takes_lists_and_any_dtype", "step_leaves_its_inputs_alone", "step_rejects_what_does_not_fit"],
)
def needs_arrays():
    """Your step works with arrays but not with lists of arrays, which have no `shape` and no `dtype`. Convert
    worker_xs and worker_ys to arrays first; numpy stacks a list for you."""

    def distributed_training_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        state = [weights, ema_weights, m, v]
        fits = len(worker_xs.shape) == 4 and np.shape(worker_ys) == worker_xs.shape[:3]
        if t < 1 or not fits or any(a.shape != worker_xs.shape[3:] for a in state):
            raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")
        g = all_reduce_mean([worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)])
        w, m, v = adam_update(weights, g, m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v])


truncates_the_result = edit(
    STEP,
    """Your result has an integer dtype and lost all fractions: an array with the dtype of the weights truncates what
    is written into it. Integer inputs must still give float64.""",
    (
        "return np.concatenate([w, ema_update(ema_weights, w, decay), m, v])",
        "d = len(weights)\n"
        "    out = np.empty(4 * d, dtype=state[0].dtype)\n"
        "    out[:d], out[d : 2 * d], out[2 * d : 3 * d], out[3 * d :] = w, ema_update(ema_weights, w, decay), m, v\n"
        "    return out",
    ),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_takes_lists_and_any_dtype"],
)

keeps_float32 = edit(
    STEP,
    """You returned an array in the dtype of the weights, or of the examples. The result is float64, whatever comes in:
    convert first, and never back.""",
    ("decay), m, v])", "decay), m, v]).astype(np.float32 if state[0].dtype == np.float32 else np.float64)"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_takes_lists_and_any_dtype"],
)


@mutant(STEP, breaks=tests_of(STEP), fails=["step_leaves_its_inputs_alone"])
def writes_into_the_state():
    """You wrote the new state into the arrays that you were given. The caller may still need the old one, to compare
    or to go back: return the new state and leave the old alone."""

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
        return flat


empties_the_lists = edit(
    STEP,
    """You changed a list that you were given: `pop`, `append` or an assignment to an entry changes the caller's list,
    too. Make an array of it and work on that.""",
    (
        "g = all_reduce_mean(",
        "if isinstance(worker_xs, list):\n"
        "        for r, worker in enumerate(worker_xs):\n"
        "            worker_xs[r] = np.stack(list(worker)).astype(np.float64)\n"
        "    g = all_reduce_mean(",
    ),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_leaves_its_inputs_alone"],
)

never_checks_t = edit(
    STEP,
    """You accepted t = 0. Updates are counted from 1, and for t = 0 the bias correction divides by zero, which numpy
    only warns about. Raise a ValueError for t below 1, before anything else.""",
    ("if t < 1 or not fits:", "if not fits:"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_rejects_what_does_not_fit"],
)

never_checks_shapes = edit(
    STEP,
    """You accepted a shape that does not fit, or let it fail inside numpy with a message that names no argument.
    Compare each array's shape with that of worker_xs before you calculate, and raise a ValueError that names the
    argument.""",
    (
        "fits = xs.ndim == 4 and ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)\n"
        "    if t < 1 or not fits:\n"
        '        raise ValueError("t, worker_xs, worker_ys, weights, ema_weights, m or v does not fit the others")',
        'if t < 1:\n        raise ValueError("t counts from 1")',
    ),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_rejects_what_does_not_fit"],
)

takes_a_number_for_an_array = edit(
    STEP,
    """You turned a plain number into an array of shape (1,) before you compared shapes, as atleast_1d does. With one
    feature, a number then passes for an array of shape (d,). Compare the shapes of what was passed.""",
    ("*state = (np.asarray(a) for a in", "*state = (np.atleast_1d(a) for a in"),
    ("worker_gradient(x, y, weights)", "worker_gradient(x, y, state[0])"),
    ("adam_update(weights, g, m, v, lr", "adam_update(state[0], g, state[2], state[3], lr"),
    ("ema_update(ema_weights, w, decay)", "ema_update(state[1], w, decay)"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_rejects_what_does_not_fit"],
)

takes_five_dimensions = edit(
    STEP,
    """You refuse a worker_xs with fewer than four dimensions, but not one with more. It must have exactly four: compare
    with !=.""",
    ("fits = xs.ndim == 4 and", "fits = xs.ndim >= 4 and"),
    ("all(a.shape == xs.shape[3:] for a in state)", "all(a.shape == xs.shape[3:4] for a in state)"),
    ("for x, y in zip(worker_xs, worker_ys", "for x, y in zip(xs.reshape(*xs.shape[:3], -1), worker_ys"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_rejects_what_does_not_fit"],
)

checks_only_the_examples = edit(
    STEP,
    """You checked worker_xs and worker_ys, but not the state. Weights, EMA weights, m and v of another shape are
    broadcast silently, or fail inside numpy with a message that names no argument: all four must be (d,).""",
    ("[:3] and all(a.shape == xs.shape[3:] for a in state)", "[:3]"),
    ("worker_xs, worker_ys, weights, ema_weights, m or v", "worker_xs or worker_ys"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_rejects_what_does_not_fit"],
)

checks_sizes_for_shapes = edit(
    STEP,
    """You compared sizes or lengths where shapes must agree. An array of shape (d, 1) or (1, d) has as many entries as
    one of shape (d,), and numpy broadcasts it to something else.""",
    (
        "ys.shape == xs.shape[:3] and all(a.shape == xs.shape[3:] for a in state)",
        "ys.size == xs[..., 0].size and all(a.size == xs.shape[3] for a in state)",
    ),
    base=_step,
    breaks=tests_of(STEP),
    fails=["step_rejects_what_does_not_fit"],
)
