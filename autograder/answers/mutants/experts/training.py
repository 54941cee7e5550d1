"""Wrong answers to lesson 14, exercises 5 and 6."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

GRADIENTS, BALANCE = "14-ex5-gradients", "14-ex6-balance"

# ---- 5 · average_gradients ----

experts_are_not_divided = edit(
    GRADIENTS,
    """The experts' gradients stay sums over the ranks: they are N times too large. Adam hides it, SGD does not.""",
    ("if p.grad is not None:", "if id(p) not in own:"),
    breaks=tests_of(GRADIENTS),
)

experts_are_reduced_too = edit(
    GRADIENTS,
    """You all-reduce the experts' gradients, too. They belong to different experts on each rank: this mixes them.""",
    ("if id(p) not in own:", "if True:"),
    breaks=tests_of(GRADIENTS),
)

missing_gradients_are_skipped = edit(
    GRADIENTS,
    """You skip a parameter without a gradient. Another rank has one and waits in the all-reduce: contribute zeros.""",
    (
        "            p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n",
        "            if p.grad is None:\n                continue\n",
    ),
    breaks=tests_of(GRADIENTS),
)

sums_are_left = edit(
    GRADIENTS,
    """The shared gradients are sums over the ranks. Training minimizes the mean of the ranks' losses: divide.""",
    (
        "        if p.grad is not None:\n            p.grad /= world_size\n",
        "        if id(p) in own and p.grad is not None:\n            p.grad /= world_size\n",
    ),
    breaks=tests_of(GRADIENTS),
)

divided_by_those_who_had_one = edit(
    GRADIENTS,
    """You divide by the number of ranks that had a gradient. A missing gradient counts as zeros, so the divisor is
    always N.""",
    (
        "            p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n",
        "            had = torch.tensor(float(p.grad is not None), dtype=p.dtype)\n"
        "            dist.all_reduce(had)\n"
        "            p.grad = torch.zeros_like(p) if p.grad is None else p.grad * world_size / max(1.0, float(had))\n",
    ),
    breaks=tests_of(GRADIENTS),
)

frozen_parameters_get_zeros = edit(
    GRADIENTS,
    """Frozen parameters get a gradient of zeros, and it is sent. Leave them alone.""",
    ("        if not p.requires_grad:\n            continue\n", ""),
    breaks=tests_of(GRADIENTS),
)

frozen_gradients_are_averaged = edit(
    GRADIENTS,
    """You take every parameter that has a gradient. One that was frozen after a backward still has one; it is not
    trained, and its gradient is neither averaged nor divided.""",
    ("if not p.requires_grad:", "if not p.requires_grad and p.grad is None:"),
    breaks=tests_of(GRADIENTS),
)

frozen_local_gradients_are_divided = edit(
    GRADIENTS,
    """You leave frozen shared parameters alone, but you divide the gradients of frozen ones in `local`. Check for both
    kinds whether they are trained.""",
    ("if not p.requires_grad:", "if not p.requires_grad and id(p) not in own:"),
    breaks=tests_of(GRADIENTS),
)

missing_local_gradients_raise = edit(
    GRADIENTS,
    """You divide the gradient of a local parameter even where it is None. None should stay None.""",
    ("        if p.grad is not None:\n            p.grad /= world_size", "        p.grad /= world_size"),
    breaks=tests_of(GRADIENTS),
)

missing_local_gradients_become_zeros = edit(
    GRADIENTS,
    """A local parameter without a gradient gets zeros. No other rank has one to add: None stays None, so that an
    optimizer leaves the parameter alone.""",
    (
        "        if p.grad is not None:\n            p.grad",
        "        if p.grad is None:\n            p.grad = torch.zeros_like(p)\n        else:\n            p.grad",
    ),
    breaks=tests_of(GRADIENTS),
)

tied_parameters_are_divided_twice = edit(
    GRADIENTS,
    """You visit a tied parameter once for each module that has it, and divide its gradient each time. It is one
    parameter with one gradient.""",
    ("in module.parameters():", "in [p for part in module.modules() for p in part.parameters(recurse=False)]:"),
    breaks=tests_of(GRADIENTS),
)


@mutant(GRADIENTS, breaks=tests_of(GRADIENTS), fails=["shared_numbers_are_reduced_once"])
def tied_parameters_are_sent_twice():
    """You send the gradient of a tied parameter once for each of its names. The mean of equal means is right, but it
    costs the bytes a second time: take each parameter once."""

    def average_gradients(module, local):
        world_size, own = dist.get_world_size(), {id(p) for p in local}
        for _, p in module.named_parameters(remove_duplicate=False):
            if p.requires_grad and id(p) not in own:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
                p.grad /= world_size
        for p in local:
            if p.requires_grad and p.grad is not None:
                p.grad /= world_size


gradients_are_gathered = edit(
    GRADIENTS,
    """You gather all ranks' gradients and average them here: N times the bytes and the memory of an all-reduce.""",
    (
        "            dist.all_reduce(p.grad)\n",
        "            found = [torch.empty_like(p.grad) for _ in range(world_size)]\n"
        "            dist.all_gather(found, p.grad.contiguous())\n            p.grad = sum(found)\n",
    ),
    breaks=tests_of(GRADIENTS),
    fails=["shared_numbers_are_reduced_once"],
)

local_ones_are_sent_as_zeros = edit(
    GRADIENTS,
    """You all-reduce zeros in place of the local gradients. Nothing needs to be sent for them.""",
    (
        "        if p.grad is not None:\n            p.grad",
        "        if id(p) in own:\n            dist.all_reduce(torch.zeros_like(p))\n"
        "        if p.grad is not None:\n            p.grad",
    ),
    breaks=tests_of(GRADIENTS),
    fails=["shared_numbers_are_reduced_once"],
)

# ---- 6 · balance_loss and nudge ----

shares_of_this_rank = edit(
    BALANCE,
    """Your shares are those of this rank's choices. What is uneven here may be even over all ranks, and only that
    counts: add up the counts.""",
    (
        "    dist.all_reduce(counts)\n    shares",
        "    shares",
    ),
    (
        "tokens = counts.sum() // chosen.shape[1]  # of all ranks",
        "tokens = max(1, len(chosen)) * dist.get_world_size()",
    ),
    breaks=tests_of(BALANCE),
)

mean_probability_of_this_rank = edit(
    BALANCE,
    """You take the mean probability over this rank's tokens. With unequal numbers of tokens the mean of these means is
    not the mean over all tokens.""",
    ("probabilities.sum(0) * dist.get_world_size() / tokens", "probabilities.sum(0) / max(1, len(probabilities))"),
    breaks=tests_of(BALANCE),
)

the_sum_of_the_ranks_is_right = edit(
    BALANCE,
    """The *sum* of your ranks' results is the balance. Training averages the ranks' losses, so the *mean* must be.""",
    ("probabilities.sum(0) * dist.get_world_size() / tokens", "probabilities.sum(0) / tokens"),
    breaks=tests_of(BALANCE),
)

without_the_number_of_experts = edit(
    BALANCE,
    """The factor E is missing. With it an even router has a balance of 1, whatever the number of experts.""",
    ("return num_experts * (shares * means).sum()", "return (shares * means).sum()"),
    breaks=tests_of(BALANCE),
)

shares_of_tokens = edit(
    BALANCE,
    """Your shares are choices per token: with k choices they add up to k. They should be shares of all choices.""",
    ("probabilities.dtype) / counts.sum()", "probabilities.dtype) / (counts.sum() // chosen.shape[1])"),
    breaks=tests_of(BALANCE),
)

probabilities_as_shares = edit(
    BALANCE,
    """You square the mean probabilities. The shares come from what was chosen, and have no gradient.""",
    ("(shares * means).sum()", "(means * means).sum()"),
    breaks=tests_of(BALANCE),
)

probabilities_are_reduced_too = edit(
    BALANCE,
    """You all-reduce the probabilities as well. P enters linearly: each rank's own part is enough, and the mean of the
    ranks' results puts the parts together.""",
    (
        "    return num_experts * (shares * means).sum()\n",
        "    total = probabilities.detach().sum(0)\n    dist.all_reduce(total)\n"
        "    means = means + (total / tokens - means).detach()\n"
        "    return num_experts * (shares * means).sum()\n",
    ),
    breaks=tests_of(BALANCE),
    fails=["one_all_reduce_tells_the_counts"],
)

nudged_by_own_counts = edit(
    BALANCE,
    """nudge looks at this rank's counts. The ranks' biases then silently drift apart, and so do their routers.""",
    ("    dist.all_reduce(counts)\n    return bias", "    return bias"),
    breaks=tests_of(BALANCE),
    fails=["the_bias_follows_all_counts", "one_all_reduce_tells_the_counts"],
)

nudged_the_wrong_way = edit(
    BALANCE,
    """nudge raises the bias of the busiest experts. It should lower it.""",
    ("counts.double().mean() - counts", "counts - counts.double().mean()"),
    breaks=tests_of(BALANCE),
    fails=["the_bias_follows_all_counts"],
)

nudged_in_place = edit(
    BALANCE,
    """nudge changes the bias that it was given. Return a new one.""",
    ("    return bias + rate", "    bias += rate"),
    ("- counts).to(bias.dtype)\n", "- counts).to(bias.dtype)\n    return bias\n"),
    breaks=tests_of(BALANCE),
    fails=["the_bias_follows_all_counts"],
)

nudged_by_the_difference = edit(
    BALANCE,
    """nudge moves the bias by rate times the difference. The step is the rate itself, up or down.""",
    (
        "torch.sign(counts.double().mean() - counts).to(bias.dtype)",
        "(counts.double().mean() - counts).to(bias.dtype)",
    ),
    breaks=tests_of(BALANCE),
    fails=["the_bias_follows_all_counts"],
)

even_experts_are_lowered = edit(
    BALANCE,
    """nudge also moves the bias of an expert whose count is the mean. That bias should stay as it is.""",
    (
        "torch.sign(counts.double().mean() - counts).to(bias.dtype)",
        "torch.where(counts < counts.double().mean(), 1.0, -1.0).to(bias.dtype)",
    ),
    breaks=tests_of(BALANCE),
    fails=["the_bias_follows_all_counts"],
)
