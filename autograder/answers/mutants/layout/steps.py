"""Wrong answers to lesson 15, exercises 4 and 5."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

ARITHMETIC, FINISH = "15-ex4-arithmetic", "15-ex5-finish"
COST, PLAN = "15-ex6-cost", "15-ex7-plan"
NORM, BOUND = "each_number_of_the_model_counts_once", "gradients_above_the_bound_are_scaled"

# ---- 4 · flops_per_token, mfu, critical ----

forward_messages_only = edit(
    ARITHMETIC,
    """For tensor parallelism you counted two all-reduces in each layer. There are two in the forward and two in the
    backward, and you compare them with the operations of both.""",
    ("8 * (n - 1) * ratio / 72", "4 * (n - 1) * ratio / 72"),
    breaks=tests_of(ARITHMETIC),
)

every_rank_does_all_products = edit(
    ARITHMETIC,
    """For tensor parallelism you compare with the operations of a whole layer. A rank computes one n-th of them.""",
    ("8 * (n - 1) * ratio / 72", "8 * (n - 1) / n * ratio / 72"),
    breaks=tests_of(ARITHMETIC),
)

no_parameters_for_backward = edit(
    ARITHMETIC,
    """For fsdp you counted one all-gather. The parameters are gathered once for the forward and once more for the
    backward.""",
    ("return 3 * (n - 1)", "return 2 * (n - 1)"),
    breaks=tests_of(ARITHMETIC),
)

a_ring_without_the_rank_itself = edit(
    ARITHMETIC,
    """For fsdp you let a rank send whole vectors. In a ring of n ranks, a rank sends (n − 1)/n of each vector, because
    it already has its own part.""",
    ("return 3 * (n - 1) / n * ratio / 6", "return 3 * ratio / 6"),
    breaks=tests_of(ARITHMETIC),
)

activations_without_gradients = edit(
    ARITHMETIC,
    """For the pipeline you counted only the activation. Its gradient comes back, with as many numbers.""",
    ("return 2 * ratio / 72", "return ratio / 72"),
    breaks=tests_of(ARITHMETIC),
)

numbers_always_have_two_bytes = edit(
    ARITHMETIC,
    """You counted 2 bytes for each number, whatever itemsize is.""",
    ("ratio = itemsize * peak", "ratio = 2 * peak"),
    breaks=tests_of(ARITHMETIC),
)

forward_operations_only = edit(
    ARITHMETIC,
    """You compared with the operations of the forward pass, 2 for each weight. Forward and backward together are 6.""",
    ("* ratio / 6", "* ratio / 2"),
    breaks=tests_of(ARITHMETIC),
)

a_single_rank_is_refused = edit(
    ARITHMETIC,
    """You refuse n = 1. A single rank sends nothing, so any size is large enough: 0.""",
    ("if n < 1:", "if n < 2:"),
    breaks=tests_of(ARITHMETIC),
)

causal_halves_everything = edit(
    ARITHMETIC,
    """A causal mask saves half of attention's products. You also halved the products with the weights.""",
    (
        "float(6 * params + (attention / 2 if causal else attention))",
        "float(6 * params + attention) / (2 if causal else 1)",
    ),
    breaks=tests_of(ARITHMETIC),
    fails=["operations_are_those_of_the_model"],
)

attention_is_counted_once = edit(
    ARITHMETIC,
    """You counted half of attention's operations. Attention has two products in the forward, queries with keys and
    probabilities with values, and four in the backward: 12 operations for each layer, width and position.""",
    ("attention = 12 *", "attention = 6 *"),
    breaks=tests_of(ARITHMETIC, COST, PLAN),
    fails=["operations_are_those_of_the_model"],
)

operations_are_an_int = edit(
    ARITHMETIC,
    """With whole numbers your flops_per_token returns an int. The statement asks for a float.""",
    ("return float(6 * params + (attention / 2 if causal else attention))",
     "return 6 * params + (attention // 2 if causal else attention)"),
    breaks=tests_of(ARITHMETIC),
    fails=["operations_are_those_of_the_model"],
)  # fmt: skip

utilization_of_one_gpu = edit(
    ARITHMETIC,
    """You compare the operations of all GPUs with the peak of one GPU. Divide by the number of GPUs.""",
    ("(seconds * gpus * peak)", "(seconds * peak)"),
    breaks=tests_of(ARITHMETIC),
    fails=["operations_are_those_of_the_model"],
)

other_kinds_are_pipelines = edit(
    ARITHMETIC,
    """You treat every other kind as a pipeline. Refuse a misspelled kind with an error that names kind.""",
    ('    if kind == "pp":\n        return 2 * ratio / 72\n'
     "    raise ValueError(f\"kind must be 'fsdp', 'tp' or 'pp', got {kind!r}\")",
     "    return 2 * ratio / 72"),
    breaks=tests_of(ARITHMETIC),
    fails=["other_kinds_and_no_ranks_are_refused"],
)  # fmt: skip

kinds_are_searched_as_text = edit(
    ARITHMETIC,
    """You ask whether kind is in a text. ("fsdp") is not a tuple, and "sdp" is in this text: compare with ==.""",
    ('if kind == "fsdp":', 'if kind in ("fsdp"):'),
    breaks=tests_of(ARITHMETIC),
    fails=["other_kinds_and_no_ranks_are_refused"],
)

kinds_begin_as_they_should = edit(
    ARITHMETIC,
    """You look only at how kind begins. A misspelled kind that begins with "tp" is accepted: compare the whole
    text.""",
    ('if kind == "tp":', 'if kind.startswith("tp"):'),
    breaks=tests_of(ARITHMETIC),
    fails=["other_kinds_and_no_ranks_are_refused"],
)

no_ranks_pass = edit(
    ARITHMETIC,
    """You accept a group of no ranks. Raise a ValueError that names n.""",
    ('    if n < 1:\n        raise ValueError(f"n must be at least 1, got {n}")\n', ""),
    breaks=tests_of(ARITHMETIC),
    fails=["other_kinds_and_no_ranks_are_refused"],
)

# ---- 5 · finish_gradients ----

mean_of_means = edit(
    FINISH,
    """You averaged the ranks' means. Ranks with few tokens then count as much as the others: add up the gradients of
    the summed losses, and divide once by the number of all tokens.""",
    (
        "    reduce_together([p.grad for p in params], dp)\n",
        "    for p in params:\n        p.grad /= max(count, 1)\n    reduce_together([p.grad for p in params], dp)\n",
    ),
    ("p.grad /= tokens", "p.grad /= dist.get_world_size(dp)"),
    breaks=tests_of(FINISH),
)

partial_gradients_stay_partial = edit(
    FINISH,
    """You left the partial gradients as they are. Each rank of tp saw different tokens: add these gradients up over tp.
    The norm changes so little that only the gradients show the mistake.""",
    ('    reduce_together([p.grad for p, kind in zip(params, kinds) if kind == "partial"], tp)\n', ""),
    breaks=tests_of(FINISH),
)

partial_gradients_are_averaged = edit(
    FINISH,
    """You averaged the partial gradients over tp. They are parts of one sum: do not divide by the number of ranks of
    tp.""",
    (
        "    reduce_together([p.grad for p in params], dp)\n",
        "    for p, kind in zip(params, kinds):\n"
        '        if kind == "partial":\n'
        "            p.grad /= dist.get_world_size(tp)\n"
        "    reduce_together([p.grad for p in params], dp)\n",
    ),
    breaks=tests_of(FINISH),
)

replicated_gradients_are_added_up = edit(
    FINISH,
    """You added up the replicated gradients over tp as well. All ranks of tp computed the same gradient, so the sum is
    too large by a factor of their number.""",
    ('if kind == "partial"], tp)', 'if kind != "sharded"], tp)'),
    breaks=tests_of(FINISH),
)

divided_by_own_tokens = edit(
    FINISH,
    """You divide by this rank's own count. The mean is over the tokens of all ranks of dp: divide by the sum of their
    counts.""",
    ("p.grad /= tokens", "p.grad /= max(count, 1)"),
    breaks=tests_of(FINISH),
)

divided_by_ranks = edit(
    FINISH,
    """You divide by the number of ranks of dp. The gradients you added up are those of sums over tokens: divide by the
    number of tokens.""",
    ("p.grad /= tokens", "p.grad /= dist.get_world_size(dp)"),
    breaks=tests_of(FINISH),
)

tokens_of_all_ranks = edit(
    FINISH,
    """You added up the counts over all ranks. The ranks of one tp group saw the same sequence, so you counted each
    token once for each of these ranks: add up over dp.""",
    ("dist.all_reduce(totals, group=dp)", "dist.all_reduce(totals)"),
    breaks=tests_of(FINISH),
)

own_loss = edit(
    FINISH,
    """You return this rank's own mean loss. The loss of the batch is the sum of all losses divided by the sum of all
    counts.""",
    ("return loss / tokens, norm", "return loss_sum / max(count, 1), norm"),
    breaks=tests_of(FINISH),
)

gradients_are_not_added_up = edit(
    FINISH,
    """The gradients of the other ranks of dp are missing: add them up over dp.""",
    ("    reduce_together([p.grad for p in params], dp)\n", ""),
    breaks=tests_of(FINISH),
)

whole_weights_count_often = edit(
    FINISH,
    """You added up the squares of all gradients over tp. Replicated and partial weights are whole on every rank, so you
    counted them once for each rank: add up only the squares of the sharded gradients.""",
    ('squares[kind == "sharded"] +=', "squares[True] +="),
    breaks=tests_of(FINISH),
    fails=[NORM, BOUND],
)

partial_weights_count_often = edit(
    FINISH,
    """You counted the squares of partial gradients on every rank of tp. After the sum over tp, these gradients are
    whole on each rank: count them once, like the replicated ones.""",
    ('squares[kind == "sharded"] +=', 'squares[kind != "replicated"] +='),
    breaks=tests_of(FINISH),
    fails=[NORM, BOUND],
)

norm_of_own_pieces = edit(
    FINISH,
    """Your norm contains only the squares of this rank's pieces, so the ranks of tp scale by different factors. Add up
    the squares of the sharded gradients over tp.""",
    ("    dist.all_reduce(squares[True], group=tp)  # the other pieces; what is whole is here already\n", ""),
    breaks=tests_of(FINISH),
    fails=[NORM, BOUND],
)

norm_of_the_largest_rank = edit(
    FINISH,
    """You took the largest of the ranks' squares. The pieces belong to one vector: add their squares up.""",
    ("dist.all_reduce(squares[True], group=tp)", "dist.all_reduce(squares[True], dist.ReduceOp.MAX, group=tp)"),
    breaks=tests_of(FINISH),
    fails=[NORM, BOUND],
)

norm_of_the_summed_loss = edit(
    FINISH,
    """You took the norm of the gradient before you divided it by the tokens. The bound is for the gradient of the
    mean.""",
    ("        p.grad /= tokens\n", ""),
    ("    if norm > max_norm:\n", "    for p in params:\n        p.grad /= tokens\n    if norm > max_norm:\n"),
    breaks=tests_of(FINISH),
    fails=[NORM, BOUND],
)

norm_after_clipping = edit(
    FINISH,
    """You return the norm after clipping, which does not show how long the gradient was. Return the norm from before
    clipping.""",
    ("return loss / tokens, norm", "return loss / tokens, min(norm, max_norm)"),
    breaks=tests_of(FINISH),
    fails=[BOUND],
)

the_bound_itself_is_too_much = edit(
    FINISH,
    """You scale a gradient whose norm is exactly max_norm. This norm does not exceed the bound: leave the gradient as
    it is.""",
    ("if norm > max_norm:", "if norm >= max_norm:"),
    breaks=tests_of(FINISH),
    fails=[BOUND],
)

a_bound_of_zero_is_none = edit(
    FINISH,
    """You treat a max_norm of 0 as no bound, since 0 counts as false. Every gradient that is not zero exceeds this
    bound.""",
    ("if norm > max_norm:", "if max_norm and norm > max_norm:"),
    breaks=tests_of(FINISH),
    fails=[BOUND],
)

short_gradients_grow = edit(
    FINISH,
    """You scale every gradient to the norm max_norm. A shorter gradient should stay as it is.""",
    ("if norm > max_norm:", "if max_norm < math.inf:"),
    breaks=tests_of(FINISH),
    fails=[BOUND],
)

nothing_is_added_to_the_norm = edit(
    FINISH,
    """You divide by the norm alone. The statement adds 1e-6 to the norm, which matters where gradients are tiny.""",
    ("max_norm / (norm + 1e-6)", "max_norm / norm"),
    breaks=tests_of(FINISH),
    fails=[BOUND],
)

bounds_are_reached_from_below = edit(
    FINISH,
    """You multiply by min(1, max_norm / (norm + 1e-6)), as torch does. That also shortens gradients just below the
    bound: multiply only if the norm exceeds it.""",
    ("    if norm > max_norm:\n", "    if norm + 1e-6 > max_norm:\n"),
    breaks=tests_of(FINISH),
    fails=["gradients_above_the_bound_are_scaled"],
)

a_tensor_is_returned = edit(
    FINISH,
    """You return the norm as a tensor. The statement asks for floats: item() turns a tensor into one.""",
    ("norm = math.sqrt(squares[True] + squares[False])", "norm = (squares[True] + squares[False]).sqrt()"),
    breaks=tests_of(FINISH),
    fails=[NORM],
)

all_gradients_are_gathered = edit(
    FINISH,
    """You gather the gradients of all ranks of dp on each rank and add them up there, which multiplies the memory by
    the number of ranks. An all-reduce adds them up on the way.""",
    (
        "    reduce_together([p.grad for p in params], dp)\n",
        "    flat = torch.cat([p.grad.reshape(-1) for p in params])\n"
        "    pieces = [torch.empty_like(flat) for _ in range(dist.get_world_size(dp))]\n"
        "    dist.all_gather(pieces, flat, group=dp)\n"
        "    total = torch.stack(pieces).sum(dim=0).split([p.numel() for p in params])\n"
        "    for p, one in zip(params, total):\n"
        "        p.grad.copy_(one.view(p.shape))\n",
    ),
    breaks=tests_of(FINISH),
    fails=["each_gradient_is_sent_once"],
)

each_rank_sends_its_squares_of_everything = edit(
    FINISH,
    """You send partial gradients over tp twice. Send them once over tp and once over dp.""",
    (
        "    reduce_together([p.grad for p in params], dp)\n",
        '    again = [p.grad.clone() for p, kind in zip(params, kinds) if kind == "partial"]\n'
        "    reduce_together(again, tp)\n"
        "    reduce_together([p.grad for p in params], dp)\n",
    ),
    breaks=tests_of(FINISH),
    fails=["each_gradient_is_sent_once"],
)

squares_of_each_weight_are_sent = edit(
    FINISH,
    """You send the squares of each sharded weight over tp separately. A model has many weights, and at most four
    numbers are allowed: add the squares up on each rank first, and send their sum.""",
    (
        '        squares[kind == "sharded"] += p.grad.double().square().sum()\n'
        "    dist.all_reduce(squares[True], group=tp)  # the other pieces; what is whole is here already\n",
        "        square = p.grad.double().square().sum()\n"
        '        if kind == "sharded":\n'
        "            dist.all_reduce(square, group=tp)\n"
        '        squares[kind == "sharded"] += square\n',
    ),
    breaks=tests_of(FINISH),
    fails=["each_gradient_is_sent_once"],
)

ranks_of_tp_meet_on_wide_meshes = edit(
    FINISH,
    """With more than two ranks of tp you call a barrier. The ranks already wait for each other in the all-reduces:
    leave the barrier out.""",
    (
        "    norm = math.sqrt",
        "    if dist.get_world_size(tp) > 2:\n        dist.barrier(group=tp)\n    norm = math.sqrt",
    ),
    breaks=tests_of(FINISH),
    fails=["each_gradient_is_sent_once"],
)

ranks_meet_before_they_clip = edit(
    FINISH,
    """You call a barrier before you clip. All ranks already know the norm: scale, and send nothing.""",
    ("    if norm > max_norm:\n", "    if norm > max_norm:\n        dist.barrier(group=dp)\n"),
    breaks=tests_of(FINISH),
    fails=["each_gradient_is_sent_once"],
)

empty_ranks_are_announced = edit(
    FINISH,
    """You send one more number over dp to announce ranks without a token. A count of 0 adds nothing to the sums: these
    ranks need no message of their own.""",
    (
        "    loss, tokens = totals.tolist()\n",
        "    counts = torch.tensor([float(count == 0)])\n"
        "    dist.all_reduce(counts, group=dp)\n"
        "    loss, tokens = totals.tolist()\n",
    ),
    breaks=tests_of(FINISH),
    fails=["each_gradient_is_sent_once"],
)

kinds_are_parts_of_a_text = edit(
    FINISH,
    """You ask whether a kind is in a text. But "part" is in "partial", too: compare with each of the three kinds as a
    whole.""",
    ('if kind not in ("sharded", "replicated", "partial"):', 'if kind not in "sharded replicated partial":'),
    breaks=tests_of(FINISH),
    fails=["unknown_kinds_are_refused"],
)

unknown_kinds_are_replicated = edit(
    FINISH,
    """You treat an unknown kind as replicated. A misspelled kind would silently leave wrong gradients: raise a
    ValueError that contains the kind.""",
    (
        '    for kind in kinds:\n        if kind not in ("sharded", "replicated", "partial"):\n'
        '            raise ValueError(f"unknown kind {kind!r}")\n',
        "",
    ),
    breaks=tests_of(FINISH),
    fails=["unknown_kinds_are_refused"],
)

kinds_are_checked_too_late = edit(
    FINISH,
    """You check the kinds after the first all-reduce. Find a wrong kind before you send any message.""",
    (
        '    for kind in kinds:\n        if kind not in ("sharded", "replicated", "partial"):\n'
        '            raise ValueError(f"unknown kind {kind!r}")\n',
        "",
    ),
    (
        "    loss, tokens = totals.tolist()\n",
        "    loss, tokens = totals.tolist()\n"
        '    for kind in kinds:\n        if kind not in ("sharded", "replicated", "partial"):\n'
        '            raise ValueError(f"unknown kind {kind!r}")\n',
    ),
    breaks=tests_of(FINISH),
    fails=["unknown_kinds_are_refused"],
)
