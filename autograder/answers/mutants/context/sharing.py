"""Wrong answers to lesson 13, exercises 5 and 6."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

EXCHANGE, LOSS = "13-ex5-exchange", "13-ex6-loss"
ULYSSES, REFUSED = "heads_are_exchanged_for_positions", "what_cannot_be_shared_is_refused"

# ---- 5 · Exchange and ulysses_attention ----

causal_by_place = edit(
    EXCHANGE,
    """After the exchange the positions stand in the order of the ranks, not of the sequence. A causal mask by place
    is right for contiguous pieces only: pass the positions on.""",
    ("    everything = torch.cat(positions)\n", "    everything = torch.arange(sum(map(len, positions)))\n"),
    breaks=tests_of(EXCHANGE),
    fails=[ULYSSES],
)

backward_exchanges_the_same_way = edit(
    EXCHANGE,
    """Your backward cuts and joins along the same dimensions as the forward. What was gathered is now scattered: swap
    them.""",
    (
        "return Exchange.apply(grad, gather_dim, scatter_dim), None, None",
        "return Exchange.apply(grad, scatter_dim, gather_dim), None, None",
    ),
    breaks=tests_of(EXCHANGE),
)

backward_forgets_the_way = edit(
    EXCHANGE,
    """Your backward calls forward with its own ctx, and so writes over the dimensions that are kept there. A second
    backward through the same graph goes the wrong way.""",
    (
        "return Exchange.apply(grad, gather_dim, scatter_dim), None, None",
        "return Exchange.forward(ctx, grad, gather_dim, scatter_dim), None, None",
    ),
    breaks=tests_of(EXCHANGE),
)

gradients_are_averaged = edit(
    EXCHANGE,
    """You divide the gradient by the number of ranks. Each number went to one place, and its gradient comes back from
    there as it is.""",
    (
        "return Exchange.apply(grad, gather_dim, scatter_dim), None, None",
        "return Exchange.apply(grad, gather_dim, scatter_dim) / dist.get_world_size(), None, None",
    ),
    breaks=tests_of(EXCHANGE),
)

parts_in_reverse_order = edit(
    EXCHANGE,
    """You join the parts in the order from the last rank to the first.""",
    ("torch.cat(list(incoming), dim=gather_dim)", "torch.cat(list(incoming)[::-1], dim=gather_dim)"),
    breaks=tests_of(EXCHANGE),
)

stripes_are_sent = edit(
    EXCHANGE,
    """You deal the parts out like cards. Part d is the d-th of N pieces in a row.""",
    (
        "outgoing = torch.stack(x.chunk(world_size, dim=scatter_dim)).contiguous()",
        "places = [torch.arange(r, x.shape[scatter_dim], world_size) for r in range(world_size)]\n"
        "        outgoing = torch.stack([x.index_select(scatter_dim, p) for p in places]).contiguous()",
    ),
    breaks=tests_of(EXCHANGE),
)

memory_is_sent_as_it_lies = edit(
    EXCHANGE,
    """You cut x as it lies in memory. An expanded or transposed tensor has its numbers elsewhere: bring the parts
    into contiguous memory.""",
    (
        "        outgoing = torch.stack(x.chunk(world_size, dim=scatter_dim)).contiguous()\n",
        "        parts = x.chunk(world_size, dim=scatter_dim)\n"
        "        outgoing = torch.empty(world_size, *parts[0].shape, dtype=x.dtype)\n"
        "        for place, part in zip(outgoing, parts):\n"
        "            flat = torch.as_strided(part, (part.numel(),), (1,)) if part.stride()[-1] else part.flatten()\n"
        "            place.view(-1).copy_(flat)\n",
    ),
    breaks=tests_of(EXCHANGE),
)

everything_is_gathered = edit(
    EXCHANGE,
    """Your result is right, but every rank gets every other rank's whole tensor and cuts its part out: N times the
    bytes. An all-to-all sends each rank its part alone.""",
    (
        "        incoming = torch.empty_like(outgoing)\n        dist.all_to_all_single(incoming, outgoing)\n",
        "        whole = [torch.empty_like(outgoing) for _ in range(world_size)]\n"
        "        dist.all_gather(whole, outgoing)\n"
        "        incoming = torch.stack([theirs[dist.get_rank()] for theirs in whole])\n",
    ),
    breaks=tests_of(EXCHANGE),
    fails=["one_all_to_all_for_each_tensor"],
)

sizes_are_sent_first = edit(
    EXCHANGE,
    """You exchange the sizes before the numbers. All parts are equal, and every rank knows how large they are.""",
    (
        "        incoming = torch.empty_like(outgoing)\n",
        "        sizes = torch.full((world_size,), outgoing[0].numel())\n"
        "        dist.all_to_all_single(torch.empty_like(sizes), sizes)\n"
        "        incoming = torch.empty_like(outgoing)\n",
    ),
    breaks=tests_of(EXCHANGE),
    fails=["one_all_to_all_for_each_tensor"],
)

one_dimension_for_both = edit(
    EXCHANGE,
    """You return x itself if scatter_dim and gather_dim are the same. Parts still change their ranks then.""",
    (
        "        ctx.dims = scatter_dim, gather_dim\n",
        "        ctx.dims = scatter_dim, gather_dim\n"
        "        if scatter_dim == gather_dim:\n            return x.clone()\n",
    ),
    breaks=tests_of(EXCHANGE),
)

ranks_meet_before_an_exchange = edit(
    EXCHANGE,
    """You call a barrier before the all-to-all. The ranks meet in the all-to-all itself: leave the barrier out.""",
    ("        dist.all_to_all_single(incoming", "        dist.barrier()\n        dist.all_to_all_single(incoming"),
    breaks=tests_of(EXCHANGE),
    fails=["one_all_to_all_for_each_tensor"],
)

parts_may_differ = edit(
    EXCHANGE,
    """You do not ask whether N divides the size. The parts then differ in length, and torch's error does not say
    which argument is wrong: raise a ValueError that names scatter_dim.""",
    (
        "        if size % world_size:\n"
        '            raise ValueError(f"{world_size} ranks cannot share scatter_dim {scatter_dim} of size {size}")\n',
        "",
    ),
    breaks=tests_of(EXCHANGE),
    fails=[REFUSED],
)

outputs_stay_in_order = edit(
    EXCHANGE,
    """You sort queries, keys and values by position, and send the outputs back as they are sorted. Each belongs to the
    place of its query: undo the sort before the second exchange.""",
    (
        "    out, _ = attend(q, k, v, everything, everything)\n",
        "    everything, order = everything.sort()\n"
        "    out, _ = attend(q[:, :, order], k[:, :, order], v[:, :, order], everything, everything)\n",
    ),
    breaks=tests_of(EXCHANGE),
    fails=[ULYSSES],
)

heads_are_not_asked = edit(
    EXCHANGE,
    """You leave it to Exchange to notice that the heads cannot be shared. Its error names a dimension; the caller of
    the attention knows heads.""",
    (
        "    if q.shape[1] % dist.get_world_size():\n"
        '        raise ValueError(f"{dist.get_world_size()} ranks cannot share {q.shape[1]} heads")\n',
        "",
    ),
    breaks=tests_of(EXCHANGE),
    fails=[REFUSED],
)

outputs_stay_with_their_heads = edit(
    EXCHANGE,
    """You return the outputs of this rank's heads for all positions. Exchange them back: this rank's positions, all
    heads.""",
    ("    return Exchange.apply(out, 2, 1)\n", "    return out\n"),
    breaks=tests_of(EXCHANGE),
    fails=[ULYSSES, "one_all_to_all_for_each_tensor"],
)

values_stay_at_home = edit(
    EXCHANGE,
    """You detach what comes. The gradients of q, k and v then find no way back.""",
    (
        "q, k, v = (Exchange.apply(x, 1, 2) for x in (q, k, v))",
        "q, k, v = (Exchange.apply(x, 1, 2).detach() for x in (q, k, v))",
    ),
    breaks=tests_of(EXCHANGE),
    fails=[ULYSSES, "one_all_to_all_for_each_tensor"],
)

# ---- 6 · cut_batch and sequence_loss ----

nothing_counts_and_nothing_is_said = edit(
    LOSS,
    """You return a loss though no token counts. There is no mean of nothing: raise a ValueError that names y.""",
    (
        '    if count == 0:\n        raise ValueError("y has no token that counts, on any rank")\n',
        "    count = max(count, 1.0)\n",
    ),
    breaks=tests_of(LOSS),
    fails=["a_batch_without_targets_is_refused"],
)

targets_are_shifted_after_the_cut = edit(
    LOSS,
    """You cut first and shift then. The last token of each piece gets the first of the next one in memory, or none,
    for its target: shift first, then cut.""",
    (
        "    return tokens[:, where], tokens[:, where + 1]\n",
        "    x = tokens[:, where]\n    return x, torch.cat([x[:, 1:], x[:, :1]], dim=1)\n",
    ),
    breaks=tests_of(LOSS),
    fails=["targets_are_the_next_tokens"],
)

targets_are_the_inputs = edit(
    LOSS,
    """Your targets are the inputs. The target of a token is the one after it.""",
    ("tokens[:, where], tokens[:, where + 1]", "tokens[:, where], tokens[:, where]"),
    breaks=tests_of(LOSS),
    fails=["targets_are_the_next_tokens"],
)

tokens_in_a_float_tensor = edit(
    LOSS,
    """You copy the tokens into a tensor of floats. Tokens are indices, and stay int64.""",
    (
        "    return tokens[:, where], tokens[:, where + 1]\n",
        "    x, y = torch.zeros(2, len(tokens), len(where))\n"
        "    for place, position in enumerate(where):\n"
        "        x[:, place], y[:, place] = tokens[:, position], tokens[:, position + 1]\n"
        "    return x, y\n",
    ),
    breaks=tests_of(LOSS),
    fails=["targets_are_the_next_tokens"],
)

mean_of_means = edit(
    LOSS,
    """You averaged the ranks' means. Ranks with few tokens that count then weigh as much as the others: add up sums
    and counts, and divide once.""",
    (
        "    numbers = torch.tensor([total.item(), (y != -100).sum().item()], dtype=torch.float64)\n",
        "    total = total / max(int((y != -100).sum()), 1)\n"
        "    counts = 1.0 if (y != -100).any() else 0.0\n"
        "    numbers = torch.tensor([total.item(), counts], dtype=torch.float64)\n",
    ),
    breaks=tests_of(LOSS),
)

masked_tokens_count = edit(
    LOSS,
    """You divide by the number of all tokens. Those with y = −100 do not count.""",
    ("(y != -100).sum().item()]", "y.numel()]"),
    breaks=tests_of(LOSS),
)

own_count = edit(
    LOSS,
    """You divide by this rank's own count. The mean is over the tokens of all ranks.""",
    ("    return (total + others) / count\n", "    return (total + others) / max(int((y != -100).sum()), 1)\n"),
    breaks=tests_of(LOSS),
)

gradients_of_an_average = edit(
    LOSS,
    """Your gradients are N times too large, as for gradients that will be averaged. Here they are added up.""",
    ("    return (total + others) / count\n",
     "    return (total - total.detach()) * dist.get_world_size() / count + everything / count\n"),
    breaks=tests_of(LOSS),
)  # fmt: skip

own_part_of_the_mean = edit(
    LOSS,
    """Your loss is this rank's part of the mean. The gradients are right, but ranks report different losses, none of
    which is the mean: add the others' part.""",
    ("    return (total + others) / count\n", "    return total / count\n"),
    breaks=tests_of(LOSS),
)

no_gradient_flows = edit(
    LOSS,
    """You return the mean as a number of its own. No gradient flows through an all-reduce: keep this rank's sum in
    it.""",
    (
        "    return (total + others) / count\n",
        "    return torch.tensor(everything / count, dtype=total.dtype).requires_grad_()\n",
    ),
    breaks=tests_of(LOSS),
)

an_all_reduce_that_differentiates = edit(
    LOSS,
    """Your all-reduce has a backward that all-reduces as well: the gradients come out N times too large, and messages
    are sent. The others' sums are numbers; only this rank's needs a graph.""",
    (
        "    others = everything - total.item()\n    return (total + others) / count\n",
        "    from torch.distributed.nn import functional as differentiable\n\n"
        "    return differentiable.all_reduce(total.clone()) / count\n",
    ),
    breaks=tests_of(LOSS),
)

no_graph_without_targets = edit(
    LOSS,
    """A rank without a token that counts returns a number without a graph. Its backward then fails, and the logits
    get no gradient: keep this rank's sum, which is 0, in the loss.""",
    (
        "    return (total + others) / count\n",
        "    if not (y != -100).any():\n        return torch.tensor(everything / count, dtype=logits.dtype)\n"
        "    return (total + others) / count\n",
    ),
    breaks=tests_of(LOSS),
)

a_number_if_nothing_is_trained = edit(
    LOSS,
    """Where the logits ask for no gradient, you return a number of Python. The loss is a scalar tensor there, too.""",
    (
        "    return (total + others) / count\n",
        "    if not logits.requires_grad:\n        return everything / count\n    return (total + others) / count\n",
    ),
    breaks=tests_of(LOSS),
)

losses_are_gathered = edit(
    LOSS,
    """You gather the losses of all tokens. Two numbers from each rank are enough.""",
    (
        "    dist.all_reduce(numbers)\n",
        "    dist.all_reduce(numbers)\n    shared = torch.zeros(64)\n    dist.all_reduce(shared)\n",
    ),
    breaks=tests_of(LOSS),
    fails=["two_numbers_are_all_reduced"],
)

sums_in_float32 = edit(
    LOSS,
    """You add up in float32. float64 losses lose half of their digits there.""",
    ("(y != -100).sum().item()], dtype=torch.float64)", "(y != -100).sum().item()])"),
    breaks=tests_of(LOSS),
)

ranks_without_targets_return_early = edit(
    LOSS,
    """A rank without a token that counts does not get to the all-reduce, and the others wait for it there: it takes
    part with zeros.""",
    (
        "    numbers = torch.tensor([total.item()",
        "    if not (y != -100).any():\n        return total\n    numbers = torch.tensor([total.item()",
    ),
    breaks=tests_of(LOSS),
)
