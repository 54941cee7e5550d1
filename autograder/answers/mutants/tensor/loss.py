"""Wrong answers to lesson 12, exercise 7."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

LOSS = "12-ex7-loss"
FINITE, SENT = "loss_stays_finite", "loss_sends_a_few_numbers_a_token"

LARGEST = "    largest = logits.detach().amax(dim=1)\n"
SHARED = "    dist.all_reduce(largest, op=dist.ReduceOp.MAX)\n"
COLUMN = "    column = targets - dist.get_rank() * logits.shape[1]\n"
MINE = "    mine = (column >= 0) & (column < logits.shape[1])\n"
PICKED = "    picked = shifted.gather(1, column.where(mine, 0)[:, None])[:, 0].where(mine, 0)\n"
SUMS = "    sums, right = Reduce.apply(torch.stack([shifted.exp().sum(dim=1), picked]))\n"
RETURN = "    return (sums.log() - right).mean()\n"

loss_follows_the_maximum = edit(
    LOSS,
    """Autograd follows your maximum on the rank that has it, and there it changes the gradient of the largest logit.
    The loss does not depend on the number that is subtracted: take it from logits.detach().""",
    (LARGEST, "    largest = logits.amax(dim=1)\n"),
    breaks=tests_of(LOSS),
)

loss_subtracts_each_ranks_own_maximum = edit(
    LOSS,
    """Each rank subtracted the maximum of its own columns, so the ranks added up numbers of different scales. All must
    subtract the same one, the largest of all ranks.""",
    (SHARED, ""),
    breaks=tests_of(LOSS),
)

loss_subtracts_the_sum_of_the_maxima = edit(
    LOSS,
    """Your ranks subtract the sum of their maxima. For ordinary logits any number that all share will do, but only the
    largest of all keeps the exponentials from overflowing, or from vanishing together.""",
    (SHARED, "    dist.all_reduce(largest)\n"),
    breaks=tests_of(LOSS),
    fails=[FINITE],
)

loss_subtracts_one_maximum_for_all_tokens = edit(
    LOSS,
    """You subtracted the largest logit of all tokens from every token. Where the logits of another token are smaller
    by thousands, all its exponentials vanish, and the logarithm of their sum is −inf. Each needs its own maximum.""",
    (LARGEST, "    largest = logits.detach().max().expand(len(logits)).contiguous()\n"),
    breaks=tests_of(LOSS),
    fails=[FINITE],
)

loss_adds_up_in_float32 = edit(
    LOSS,
    """You sent the sums in float32, also where the logits are float64. Your loss is then right to 7 digits only, and so
    is the gradient. Give the tensor that is all-reduced the dtype of the logits.""",
    (SUMS, SUMS.replace("picked]))", "picked]).float())")),
    breaks=tests_of(LOSS),
)

loss_without_a_maximum = edit(
    LOSS,
    """You took the exponentials of the logits themselves. They overflow from about 710 on, in float32 from 89. Subtract
    the largest logit of all ranks first: the loss stays the same.""",
    (LARGEST + SHARED, "    largest = torch.zeros(len(logits), dtype=logits.dtype)\n"),
    breaks=tests_of(LOSS),
    fails=[FINITE],
)

loss_clamps_the_sum = edit(
    LOSS,
    """You added a small number to the sum of the exponentials. After the largest logit is subtracted the sum is at
    least 1, so nothing needs protection, and the loss is wrong by that number.""",
    (RETURN, "    return ((sums + 1e-6).log() - right).mean()\n"),
    breaks=tests_of(LOSS),
)

loss_gathers_the_logits = edit(
    LOSS,
    """You gathered the logits of all ranks. The loss is right, but every rank then holds all columns, V numbers for
    each token, which the split was to avoid. A maximum, a sum and one logit a token are enough.""",
    (
        LARGEST + SHARED + "    shifted = logits - largest[:, None]\n" + COLUMN + MINE + PICKED + SUMS + RETURN,
        "    pieces = [torch.empty(logits.shape, dtype=logits.dtype) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(pieces, logits.detach().contiguous())\n"
        "    pieces[dist.get_rank()] = logits\n"
        "    return functional.cross_entropy(torch.cat(pieces, dim=1), targets)\n",
    ),
    breaks=tests_of(LOSS),
    fails=[SENT],
)

loss_adds_up_all_exponentials = edit(
    LOSS,
    """You padded the exponentials to the whole vocabulary and all-reduced them. Add up your own columns first: one
    number a token is left to be sent.""",
    (
        SUMS,
        "    padded = torch.zeros(len(logits), dist.get_world_size(), logits.shape[1], dtype=logits.dtype)\n"
        "    padded = padded.index_copy(1, torch.tensor([dist.get_rank()]), shifted.exp()[:, None])\n"
        "    sums, right = Reduce.apply(padded).sum(dim=(1, 2)), Reduce.apply(picked)\n",
    ),
    breaks=tests_of(LOSS),
    fails=[SENT],
)

loss_sends_backward = edit(
    LOSS,
    """Your backward sends something. The gradient of a rank's logits follows from what the rank has and from the sum
    that it already knows.""",
    (
        RETURN,
        "    class Wait(torch.autograd.Function):\n"
        "        @staticmethod\n"
        "        def forward(ctx, x):\n"
        "            return x.view_as(x)\n\n"
        "        @staticmethod\n"
        "        def backward(ctx, grad):\n"
        "            dist.all_reduce(torch.zeros(1))\n"
        "            return grad\n\n"
        "    return Wait.apply((sums.log() - right).mean())\n",
    ),
    breaks=tests_of(LOSS),
    fails=[SENT],
)

loss_uses_torchs_all_reduce = edit(
    LOSS,
    """You added up with torch's differentiable all-reduce, whose backward adds up again. All ranks compute the same
    loss, so your gradient is N times too large: use Reduce.""",
    (
        SUMS,
        "    import torch.distributed.nn.functional\n"
        "    import warnings\n\n"
        "    with warnings.catch_warnings(action='ignore'):\n"
        "        both = torch.stack([shifted.exp().sum(dim=1), picked])\n"
        "        sums, right = torch.distributed.nn.functional.all_reduce(both)\n",
    ),
    breaks=tests_of(LOSS),
)

loss_keeps_the_target_at_home = edit(
    LOSS,
    """Only the rank that has a target's column knows its logit; on the others you took 0. Add up the ranks' numbers, of
    which all but one are 0.""",
    (SUMS, "    sums, right = Reduce.apply(shifted.exp().sum(dim=1)), picked\n"),
    breaks=tests_of(LOSS),
)

loss_takes_foreign_targets = edit(
    LOSS,
    """For a target of another rank you added the logit of one of your own columns. Only the rank that has the target's
    column may add its logit; the others add 0.""",
    (PICKED, "    picked = shifted.gather(1, column.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]\n"),
    breaks=tests_of(LOSS),
)

loss_wraps_targets = edit(
    LOSS,
    """You took each target modulo V/N, so every rank added a logit for every token. A target belongs to one rank: the
    others add 0.""",
    (COLUMN, "    column = targets % logits.shape[1]\n"),
    breaks=tests_of(LOSS),
)

loss_adds_up_the_tokens = edit(
    LOSS,
    """You returned the sum over the tokens. The loss is their mean.""",
    (RETURN, RETURN.replace("mean", "sum")),
    breaks=tests_of(LOSS),
)

loss_averages_over_the_ranks = edit(
    LOSS,
    """You divided the sum of the exponentials by the number of ranks. The ranks have different columns of one sum:
    nothing is divided by N.""",
    (RETURN, "    return ((sums / dist.get_world_size()).log() - right).mean()\n"),
    breaks=tests_of(LOSS),
)

loss_of_its_own_columns = edit(
    LOSS,
    """Each rank normalized over its own columns only. The probabilities of all columns of all ranks add up to 1: the
    sum of the exponentials needs every rank.""",
    (SUMS, "    sums, right = shifted.exp().sum(dim=1), Reduce.apply(picked)\n"),
    breaks=tests_of(LOSS),
)

loss_subtracts_in_place = edit(
    LOSS,
    """You subtracted the maximum from the given logits themselves. The caller still needs them: work on a new
    tensor.""",
    ("    shifted = logits - largest[:, None]\n", "    logits.data -= largest[:, None]\n    shifted = logits * 1\n"),
    breaks=tests_of(LOSS),
)

loss_subtracts_from_the_targets = edit(
    LOSS,
    """You subtracted your first column from the given targets themselves. The caller still needs them, and the other
    exercises of a step take the same tensor: make a new one.""",
    (COLUMN, "    column = targets\n    column -= dist.get_rank() * logits.shape[1]\n"),
    breaks=tests_of(LOSS),
)

loss_misses_the_first_column = edit(
    LOSS,
    """One end of your range of columns is off by one. A rank has the targets from r·V/N up to, but not including, (r +
    1)·V/N: the first of them is column 0.""",
    (MINE, MINE.replace(">= 0", "> 0")),
    breaks=tests_of(LOSS),
)

loss_takes_one_column_too_many = edit(
    LOSS,
    """Your range of columns ends one too late. A rank has the targets up to, but not including, (r + 1)·V/N: the next
    one is column 0 of the next rank.""",
    (MINE, MINE.replace("< logits.shape[1]", "<= logits.shape[1]")),
    (PICKED, PICKED.replace("column.where(mine, 0)", "column.where(mine, 0).clamp(max=logits.shape[1] - 1)")),
    breaks=tests_of(LOSS),
)

loss_shifts_the_sum_only = edit(
    LOSS,
    """You subtracted the largest logit in the sum of the exponentials, but not from the target's logit. The loss is
    then off by exactly that number.""",
    (PICKED, PICKED.replace("shifted.gather", "logits.gather")),
    breaks=tests_of(LOSS),
)

loss_detaches_the_sum = edit(
    LOSS,
    """Your loss is right, but your gradient lacks the probabilities: the sum of the exponentials was detached, so
    autograd sees only the target's logit.""",
    (SUMS, SUMS.replace("shifted.exp()", "shifted.detach().exp()")),
    breaks=tests_of(LOSS),
)

loss_ignores_what_comes_back = edit(
    LOSS,
    """Your own backward returns the gradient of the loss, and ignores the gradient that arrives. Where the loss is
    scaled or added to another one, that is not 1: multiply by it.""",
    (
        RETURN,
        "    class One(torch.autograd.Function):\n"
        "        @staticmethod\n"
        "        def forward(ctx, loss):\n"
        "            return loss.view_as(loss)\n\n"
        "        @staticmethod\n"
        "        def backward(ctx, grad):\n"
        "            return torch.ones_like(grad)\n\n"
        "    return One.apply((sums.log() - right).mean())\n",
    ),
    breaks=tests_of(LOSS),
)

loss_is_divided_by_the_ranks = edit(
    LOSS,
    """You divided the mean by the number of ranks. Every rank has the loss of all tokens already: nothing is left to
    average.""",
    (RETURN, RETURN.replace(".mean()", ".mean() / dist.get_world_size()")),
    breaks=tests_of(LOSS),
)

loss_of_its_own_targets = edit(
    LOSS,
    """You averaged over the tokens whose target is among this rank's columns, so the ranks return different losses. The
    mean is over all n tokens, on every rank.""",
    (RETURN, "    return ((sums.log() - right) * mine).sum() / mine.sum().clamp(min=1)\n"),
    breaks=tests_of(LOSS),
)

loss_keeps_a_dimension = edit(
    LOSS,
    """Your loss has shape (1,). A loss is a scalar, of shape (): the mean over all tokens.""",
    (RETURN, RETURN.replace(".mean()", ".mean()[None]")),
    breaks=tests_of(LOSS),
)
