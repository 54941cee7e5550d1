"""Wrong answers to lesson 02, exercises 5 and 6."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

STEP, RATE = "02-ex5-step", "02-ex6-scaled-lr"


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
    fails=["efficiency_is_relative_to_the_smallest_n"],
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
    fails=["efficiency_is_relative_to_the_smallest_n"],
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
    fails=["efficiency_is_relative_to_the_smallest_n"],
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
    fails=["efficiency_is_relative_to_the_smallest_n"],
)

never_above_one = edit(
    STEP,
    """You cut efficiencies off at 1. Measurements can be better than linear, for example when each process's data fits
    into its cache, and the reader should see it.""",
    ("return work[np.argmin(ns)] / work", "return np.minimum(1.0, work[np.argmin(ns)] / work)"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["efficiency_is_relative_to_the_smallest_n"],
)

weak_for_strong_scaling = edit(
    STEP,
    """You divided the times only, t₀/t. That is the efficiency of weak scaling, where the work grows with n. Here the
    total work stays the same, so the number of processes counts too: compare n · t.""",
    ("work = np.array(ns, dtype=float) * np.array(seconds, dtype=float)", "t = np.array(seconds, dtype=float)"),
    ("return work[np.argmin(ns)] / work", "return t[np.argmin(ns)] / t"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["efficiency_is_relative_to_the_smallest_n"],
)

efficiency_upside_down = edit(
    STEP,
    """Your efficiency is upside down: it grows as scaling gets worse. Divide the cost of perfect scaling by the
    measured cost, not the other way round.""",
    ("return work[np.argmin(ns)] / work", "return work / work[np.argmin(ns)]"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["efficiency_is_relative_to_the_smallest_n"],
)

relative_to_the_slowest = edit(
    STEP,
    """You compared with the largest n · t. The reference is the measurement with the smallest n, whether it is the most
    expensive or not.""",
    ("work[np.argmin(ns)]", "work.max()"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["efficiency_is_relative_to_the_smallest_n"],
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


@mutant(STEP, breaks=tests_of(STEP), fails=["step_refuses_an_overlap_outside_0_to_1"])
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


no_warmup_before_the_arguments = edit(
    RATE,
    """Without warm-up you return the target before you look at the other arguments, so that a negative step or a batch
    size of 0 goes unnoticed there. Check the arguments first.""",
    (
        "    for name, value, least in",
        "    if warmup_steps == 0:\n        return base_lr * batch / max(1, base_batch)\n    for name, value, least in",
    ),
    base=_rate,
    breaks=tests_of(RATE),
    fails=["rate_refuses_nonsense"],
)

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


@mutant(RATE, breaks=tests_of(RATE), fails=["rate_refuses_nonsense"])
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


@mutant(RATE, breaks=tests_of(RATE), fails=["rate_refuses_nonsense"])
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
