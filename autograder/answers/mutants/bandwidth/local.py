"""Wrong answers to lesson 07, exercise 6."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

DILOCO = "07-ex6-diloco"


# ---- 6 · diloco ----


diloco_steps_with_the_sum = edit(
    DILOCO,
    """You stepped with the sum of the ranks' outer gradients, not with their mean: with N ranks the step is N times too
    long.""",
    ("        outer /= dist.get_world_size()\n", ""),
    breaks=tests_of(DILOCO),
)

diloco_averages_gradients = edit(
    DILOCO,
    """Each rank took the gradient of every inner step at w. Take it at the weights that the rank reached in its
    previous step.""",
    ("gradient(local, step)", "gradient(shared, step)"),
    breaks=tests_of(DILOCO),
)

diloco_never_starts_again = edit(
    DILOCO,
    """Your ranks began each round at the weights where their own previous round had ended. After an exchange, all ranks
    begin at the shared weights again.""",
    ("    for start in range", "    local = weights.clone()\n    for start in range"),
    ("        local = shared.clone()\n        for step", "        for step"),
    breaks=tests_of(DILOCO),
)

diloco_counts_each_round_anew = edit(
    DILOCO,
    """You numbered the steps from 0 in each round, so a rank sees the same batches again and again. Let the numbers go
    on from round to round.""",
    ("gradient(local, step)", "gradient(local, step - start)"),
    breaks=tests_of(DILOCO),
)

diloco_walks_away = edit(
    DILOCO,
    """Your outer gradient has the wrong sign: local − w is the direction in which the rank moved, and a gradient points
    the other way.""",
    ("outer = shared - local", "outer = local - shared"),
    breaks=tests_of(DILOCO),
)

diloco_ignores_the_outer_rate = edit(
    DILOCO,
    """You ignored outer_lr: multiply the outer step by it.""",
    ("shared -= outer_lr * (outer", "shared -= 1.0 * (outer"),
    breaks=tests_of(DILOCO),
)

diloco_multiplies_both_rates = edit(
    DILOCO,
    """You multiplied the outer gradient by lr once more. The outer gradient already contains the inner learning
    rate.""",
    ("shared -= outer_lr * (outer", "shared -= outer_lr * lr * (outer"),
    breaks=tests_of(DILOCO),
)

diloco_returns_its_own_copy = edit(
    DILOCO,
    """You returned this rank's own copy from the last round instead of the shared weights. The copies differ from rank
    to rank.""",
    ("    return shared\n", "    return local\n"),
    breaks=tests_of(DILOCO),
)

diloco_with_heavy_ball = edit(
    DILOCO,
    """You used classical momentum: you stepped with v. Nesterov's momentum looks one step ahead: Δ + momentum · v.""",
    ("outer_lr * (outer + momentum * velocity)", "outer_lr * velocity"),
    breaks=tests_of(DILOCO),
    fails=["outer_steps_are_nesterov"],
)

diloco_looks_ahead_with_the_old_velocity = edit(
    DILOCO,
    """You stepped before you updated v, so the step uses the v of the previous round. Update v first.""",
    (
        "        velocity = momentum * velocity + outer\n        shared -= outer_lr * (outer + momentum * velocity)\n",
        "        shared -= outer_lr * (outer + momentum * velocity)\n        velocity = momentum * velocity + outer\n",
    ),
    breaks=tests_of(DILOCO),
    fails=["outer_steps_are_nesterov"],
)

diloco_forgets_its_velocity = edit(
    DILOCO,
    """Your v starts at 0 in each round. v is part of the outer optimizer's state: keep it from round to round.""",
    ("velocity = momentum * velocity + outer", "velocity = outer"),
    breaks=tests_of(DILOCO),
    fails=["outer_steps_are_nesterov"],
)

diloco_damps_the_outer_gradient = edit(
    DILOCO,
    """You multiplied Δ by 1 − momentum when you added it to v. The statement's v adds up the whole Δ.""",
    ("momentum * velocity + outer", "momentum * velocity + (1 - momentum) * outer"),
    breaks=tests_of(DILOCO),
    fails=["outer_steps_are_nesterov"],
)

diloco_gathers_the_copies = edit(
    DILOCO,
    """Your numbers are right, but an all-gather sent every rank's copy to every other rank, which costs more with each
    rank. Only the mean is needed: all-reduce it.""",
    (
        "        dist.all_reduce(outer)\n",
        "        every = [torch.empty_like(outer) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(every, outer)\n"
        "        outer = sum(every)\n",
    ),
    breaks=tests_of(DILOCO),
    fails=["one_all_reduce_a_round"],
)

diloco_meets_in_every_step = edit(
    DILOCO,
    """Your numbers are right, but your ranks exchange something in every inner step, so nothing is saved. One
    all-reduce in each round is enough.""",
    ("gradient(local, step)\n", "gradient(local, step)\n            dist.all_reduce(torch.zeros_like(local))\n"),
    breaks=tests_of(DILOCO),
    fails=["one_all_reduce_a_round"],
)

diloco_trains_what_it_was_given = edit(
    DILOCO,
    """You updated the tensor of weights that the caller passed in. The caller's tensor must stay as it was: train a
    copy.""",
    ("shared, velocity = weights.clone()", "shared, velocity = weights"),
    breaks=tests_of(DILOCO),
    fails=["start_stays_as_it_was"],
)

diloco_averages_the_start_when_the_rate_is_small = edit(
    DILOCO,
    """With a small learning rate you skipped the local steps, so nothing was learned. Small steps are steps, too.""",
    (
        "            local -= lr * gradient(local, step)\n",
        "            if lr > 0.05:\n                local -= lr * gradient(local, step)\n",
    ),
    breaks=tests_of(DILOCO),
    fails=["one_all_reduce_a_round"],
)

diloco_flattens_a_single_weight = edit(
    DILOCO,
    """A single weight comes back as a tensor of shape (1,), whatever its shape was. Keep the shape.""",
    ("    return shared", "    return shared.reshape(-1) if shared.numel() == 1 else shared"),
    breaks=tests_of(DILOCO),
)
