"""Wrong answers to lesson 03, exercise 6."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

BUG = "03-ex6-sum-bug"
DIVISIONS = "wrong_divisions_are_caught"
LOST, UPDATES, PLANTED = "lost_examples_are_caught", "averaged_updates_are_caught", "planted_step_adds_the_workers"


@right(BUG)
def _two_deals():
    """Right: the base of the edits below."""

    def summing_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        grads = [worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)]
        w, m, v = adam_update(weights, np.sum(grads, axis=0), m, v, lr, beta1, beta2, eps, t)
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v])

    def step_is_right(step):
        rng = np.random.default_rng(1)
        x, y, state = rng.normal(size=(24, 3)), rng.normal(size=24), rng.uniform(0.5, 2, size=(4, 3))
        results = []
        for shape in ((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1)):
            results.append(step(x.reshape(*shape, 3), y.reshape(shape), *state, 0.1, 0.9, 0.99, 1e-8, 0.9, 3))
        same = [np.allclose(result, results[0], rtol=1e-9, atol=0) for result in results]
        return all(same)


# ---- step_is_right ----

looks_at_the_weights_alone = edit(
    BUG,
    """Your test compares the weights alone. Adam hides every constant factor from them, because its quotient cancels
    the factor up to epsilon; m and v show it. Compare all four parts of the result.""",
    ("*state, 0.1, 0.9, 0.99, 1e-8, 0.9, 3", "*state[:2], 0 * state[2], 0 * state[3], 0.1, 0.9, 0.99, 1e-8, 0.9, 1"),
    ("np.allclose(result, results[0], rtol=1e-9, atol=0)", "np.allclose(result[:3], results[0][:3], rtol=1e-6)"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

looks_at_weights_and_average = edit(
    BUG,
    """Your test compares the weights and their average. Both come after Adam, which hides every constant factor. The
    second half of the result, m and v, shows the factor.""",
    ("*state, 0.1, 0.9, 0.99, 1e-8, 0.9, 3", "*state[:2], 0 * state[2], 0 * state[3], 0.1, 0.9, 0.99, 1e-8, 0.9, 1"),
    ("np.allclose(result, results[0], rtol=1e-9, atol=0)", "np.allclose(result[:6], results[0][:6], rtol=1e-5)"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

demands_equal_bits = edit(
    BUG,
    """Your test calls a right step wrong: it asks for equal bits. Another order of addition changes the last digits.
    Allow for rounding, about 1e-9 of the result, and no more.""",
    ("np.allclose(result, results[0], rtol=1e-9, atol=0)", "np.array_equal(result, results[0])"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

never_says_no = edit(
    BUG,
    """Your test returns True for everything: it never looks at what the step returns, or it is content as soon as one
    comparison holds. A test must be able to fail; try it on your summing_step.""",
    ("return all(same)", "return len(same) > 0"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

says_the_opposite = edit(
    BUG,
    """Your test says the opposite: True means that the step is right.""",
    ("return all(same)", "return not all(same)"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

raises_where_it_should_answer = edit(
    BUG,
    """Your test returns nothing, or raises, where the statement asks for an answer: return True or False.""",
    ("return all(same)", "assert True"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

starts_at_the_minimum = edit(
    BUG,
    """In your test the gradient is zero: the weights fit the targets already. Zero times any factor is zero, so no
    mistake in the gradient can show. Draw the targets at random.""",
    ("x, y, state = rng.normal(size=(24, 3)), rng.normal(size=24), rng.uniform(0.5, 2, size=(4, 3))",
     "x, state = rng.normal(size=(24, 3)), rng.uniform(0.5, 2, size=(4, 3))\n    y = x @ state[0]"),
    ("rtol=1e-9, atol=0", "rtol=1e-9"),
    base=_two_deals,
    breaks=tests_of(BUG),
)  # fmt: skip

keeps_the_number_of_workers = edit(
    BUG,
    """Your test deals the examples to the same number of workers every time, so the sum is wrong by the same factor
    every time. Compare with one worker, or with numbers that you know to be right.""",
    ("((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1))", "((4, 1, 6), (4, 2, 3), (4, 3, 2))"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

watches_a_loss_fall = edit(
    BUG,
    """Your test watches the weights approach their goal. They do so with almost any wrong factor, because Adam's steps
    keep their length. Compare one step with a step that is known to be right.""",
    ("        results.append(step(x.reshape(*shape, 3), y.reshape(shape), *state, 0.1, 0.9, 0.99, 1e-8, 0.9, 3))\n",
     "        z, goal = state * 0, x @ np.ones(3)\n"
     "        for t in range(1, 101):\n"
     "            out = step(x.reshape(*shape, 3), goal.reshape(shape), *z, 0.1, 0.9, 0.99, 1e-8, 0.9, t)\n"
     "            z = out.reshape(4, 3)\n"
     "        results.append(z[0])\n"),
    ("np.allclose(result, results[0], rtol=1e-9, atol=0)", "np.allclose(result, 1, atol=0.2)"),
    base=_two_deals,
    breaks=tests_of(BUG),
)  # fmt: skip

allows_for_too_much = edit(
    BUG,
    """Your test allows for far more than rounding. A wrong factor in the gradient changes m by less than you
    allow, because m is mostly its own past. 1e-9 of the result is plenty for float64.""",
    ("rtol=1e-9, atol=0", "rtol=10, atol=10"),
    base=_two_deals,
    breaks=tests_of(BUG),
)

one_deal_alone = edit(
    BUG,
    """Besides one worker alone, your test tries a single number of workers and a single number of micro-batches. A step
    that divides by a fixed number passes if that number happens to be yours. Deal the examples in several ways.""",
    ("((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1))", "((1, 1, 24), (4, 3, 2))"),
    ("same = [", "results[0] = distributed_training_step("
     "x.reshape(1, 1, 24, 3), y.reshape(1, 1, 24), *state, 0.1, 0.9, 0.99, 1e-8, 0.9, 3)\n    same = ["),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[DIVISIONS],
)  # fmt: skip

one_number_at_a_time = edit(
    BUG,
    """In your test N or accum_steps is 1 in every deal. A divisor can be right whenever one of the two is 1, and wrong
    where both are larger: deal the examples to several workers with several micro-batches, too.""",
    ("((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1))", "((1, 1, 24), (1, 3, 8), (1, 4, 6), (3, 1, 8), (4, 1, 6))"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[DIVISIONS],
)

the_same_examples_for_the_workers = edit(
    BUG,
    """Your test gives all workers the same examples, so it makes no difference whose gradient the step uses. Draw
    examples for each worker.""",
    ("rng.normal(size=(24, 3)), rng.normal(size=24),",
     "np.tile(rng.normal(size=(6, 3)), (4, 1)), np.tile(rng.normal(size=6), 4),"),
    ("((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1))", "((1, 1, 24), (2, 2, 6), (2, 4, 3), (4, 2, 3), (4, 6, 1))"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[LOST, UPDATES],
)  # fmt: skip

looks_at_m_alone = edit(
    BUG,
    """Your test compares m alone. The mean of the workers' moments has the right m, because m is linear in the
    gradient. Its v is wrong: the mean of squares is not the square of the mean. Compare the weights and v as well.""",
    ("np.allclose(result, results[0], rtol=1e-9, atol=0)",
     "np.allclose(result[6:9], results[0][6:9], rtol=1e-9, atol=0)"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[UPDATES],
)  # fmt: skip

one_micro_batch = edit(
    BUG,
    """In your test every worker has a single micro-batch, so no mistake with micro-batches can show. Let accum_steps be
    larger than 1, and try several values.""",
    ("((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1))", "((1, 1, 24), (2, 1, 12), (3, 1, 8), (8, 1, 3))"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[DIVISIONS, LOST, UPDATES],
)

# ---- summing_step ----

plants_nothing = edit(
    BUG,
    """Your summing_step averages: there is no bug in it. Adam must get the sum of the workers' gradients, which is N
    times the mean.""",
    ("np.sum(grads, axis=0)", "np.mean(grads, axis=0)"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[PLANTED],
)

plants_two_sums = edit(
    BUG,
    """Your summing_step adds the micro-batches as well as the workers. The bug to plant is one missing division, the
    one by the number of workers; each worker still averages.""",
    ("np.sum(grads, axis=0)", "np.sum(grads, axis=0) * len(worker_xs[0])"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[PLANTED],
)

plants_a_sum_of_examples = edit(
    BUG,
    """Your summing_step adds up the gradients of all examples. Each worker still averages over its own; only the
    workers' means are added.""",
    ("np.sum(grads, axis=0)", "np.sum(grads, axis=0) * np.size(worker_ys[0])"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[PLANTED],
)

plants_in_arrays_only = edit(
    BUG,
    """Your summing_step reads the `shape` of its first argument. The arguments are those of exercise 5, and the first
    two may be lists of lists of arrays: convert them first.""",
    (
        "worker_gradient(x, y, weights) for x, y in zip(worker_xs, worker_ys, strict=True)",
        "worker_gradient(worker_xs[r], worker_ys[r], weights) for r in range(worker_xs.shape[0])",
    ),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[PLANTED],
)

multiplies_the_learning_rate = edit(
    BUG,
    """Your summing_step takes an N times longer step. That is what the sum does to SGD. With Adam, the step stays as
    long as it was, but m and v come out wrong: the sum goes in where the gradient does.""",
    ("np.sum(grads, axis=0), m, v, lr", "np.mean(grads, axis=0), m, v, len(grads) * lr"),
    base=_two_deals,
    breaks=tests_of(BUG),
    fails=[PLANTED],
)


@mutant(BUG, breaks=tests_of(BUG), fails=[PLANTED])
def sums_the_updates():
    """Your summing_step adds the workers' Adam updates. The sum belongs one step earlier: one update, with the sum of
    the gradients."""

    def summing_step(worker_xs, worker_ys, weights, ema_weights, m, v, lr, beta1, beta2, eps, decay, t):
        total = np.zeros((3, len(weights)))
        for x, y in zip(worker_xs, worker_ys, strict=True):
            total += adam_update(weights, worker_gradient(x, y, weights), m, v, lr, beta1, beta2, eps, t)
        w, m, v = total[0] - (len(worker_xs) - 1) * np.asarray(weights), total[1], total[2]
        return np.concatenate([w, ema_update(ema_weights, w, decay), m, v])

    def step_is_right(step):
        rng = np.random.default_rng(1)
        x, y, state = rng.normal(size=(24, 3)), rng.normal(size=24), rng.uniform(0.5, 2, size=(4, 3))
        results = []
        for shape in ((1, 1, 24), (2, 3, 4), (3, 2, 4), (4, 6, 1)):
            results.append(step(x.reshape(*shape, 3), y.reshape(shape), *state, 0.1, 0.9, 0.99, 1e-8, 0.9, 3))
        return all(np.allclose(result, results[0], rtol=1e-9, atol=0) for result in results)
