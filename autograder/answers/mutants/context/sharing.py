"""Wrong answers to lesson 13, exercises 5 and 6."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

EXCHANGE, LOSS = "13-ex5-exchange", "13-ex6-loss"
ULYSSES, REFUSED = "heads_are_exchanged_for_positions", "what_cannot_be_shared_is_refused"

# ---- 5 · Exchange and ulysses_attention ----

causal_by_place = edit(
    EXCHANGE,
    """After the exchange, the positions are in the order of the ranks, not of the sequence. A causal mask by index is
    right for contiguous pieces only: pass the positions on.""",
    ("    everything = torch.cat(positions)\n", "    everything = torch.arange(sum(map(len, positions)))\n"),
    breaks=tests_of(EXCHANGE),
    fails=[ULYSSES],
)

backward_exchanges_the_same_way = edit(
    EXCHANGE,
    """Your backward cuts and joins along the same dimensions as the forward. The dimension that was gathered must now
    be scattered: swap them.""",
    (
        "return Exchange.apply(grad, gather_dim, scatter_dim), None, None",
        "return Exchange.apply(grad, scatter_dim, gather_dim), None, None",
    ),
    breaks=tests_of(EXCHANGE),
)

backward_forgets_the_way = edit(
    EXCHANGE,
    """Your backward calls forward with its own ctx, and so overwrites the dimensions that are saved there. A second
    backward through the same graph then goes the wrong way.""",
    (
        "return Exchange.apply(grad, gather_dim, scatter_dim), None, None",
        "return Exchange.forward(ctx, grad, gather_dim, scatter_dim), None, None",
    ),
    breaks=tests_of(EXCHANGE),
)

gradients_are_averaged = edit(
    EXCHANGE,
    """You divide the gradient by the number of ranks. Each number went to one place, and its gradient comes back from
    there unchanged.""",
    (
        "return Exchange.apply(grad, gather_dim, scatter_dim), None, None",
        "return Exchange.apply(grad, gather_dim, scatter_dim) / dist.get_world_size(), None, None",
    ),
    breaks=tests_of(EXCHANGE),
)

parts_in_reverse_order = edit(
    EXCHANGE,
    """You join the parts in the reverse order of the ranks.""",
    ("torch.cat(list(incoming), dim=gather_dim)", "torch.cat(list(incoming)[::-1], dim=gather_dim)"),
    breaks=tests_of(EXCHANGE),
)

stripes_are_sent = edit(
    EXCHANGE,
    """You deal the numbers out like cards. Part d should be the d-th of N contiguous pieces.""",
    (
        "outgoing = torch.stack(x.chunk(world_size, dim=scatter_dim)).contiguous()",
        "places = [torch.arange(r, x.shape[scatter_dim], world_size) for r in range(world_size)]\n"
        "        outgoing = torch.stack([x.index_select(scatter_dim, p) for p in places]).contiguous()",
    ),
    breaks=tests_of(EXCHANGE),
)

memory_is_sent_as_it_lies = edit(
    EXCHANGE,
    """You cut x in the order in which its numbers lie in memory. An expanded or transposed tensor has its numbers
    elsewhere: bring the parts into contiguous memory.""",
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
    """Your result is right, but every rank gets the whole tensor of every other rank and cuts out its own part: N times
    the bytes. An all-to-all sends each rank only its part.""",
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
    """You return x itself if scatter_dim and gather_dim are the same. Even then, parts move to other ranks.""",
    (
        "        ctx.dims = scatter_dim, gather_dim\n",
        "        ctx.dims = scatter_dim, gather_dim\n"
        "        if scatter_dim == gather_dim:\n            return x.clone()\n",
    ),
    breaks=tests_of(EXCHANGE),
)

ranks_meet_before_an_exchange = edit(
    EXCHANGE,
    """You call a barrier before the all-to-all. The ranks already wait for each other in the all-to-all: leave the
    barrier out.""",
    ("        dist.all_to_all_single(incoming", "        dist.barrier()\n        dist.all_to_all_single(incoming"),
    breaks=tests_of(EXCHANGE),
    fails=["one_all_to_all_for_each_tensor"],
)

parts_may_differ = edit(
    EXCHANGE,
    """You do not check whether N divides the size. If it does not, the parts differ in length, and torch's error does
    not say which argument is wrong: raise a ValueError that names scatter_dim.""",
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
    """You sort queries, keys and values by position, and send the outputs back in sorted order. Each output belongs to
    the place of its query: undo the sort before the second exchange.""",
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
    """You leave it to Exchange to notice that the heads cannot be shared. The error of Exchange names a dimension, but
    the caller of the attention thinks in heads.""",
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
    """You return the outputs of this rank's heads for all positions. Exchange them back, so that the rank has all heads
    for its own positions.""",
    ("    return Exchange.apply(out, 2, 1)\n", "    return out\n"),
    breaks=tests_of(EXCHANGE),
    fails=[ULYSSES, "one_all_to_all_for_each_tensor"],
)

values_stay_at_home = edit(
    EXCHANGE,
    """You detach what you receive, so no gradients get back to q, k and v.""",
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
    """You return a loss even though no token counts. A mean of no numbers does not exist: raise a ValueError that names
    y.""",
    (
        '    if count == 0:\n        raise ValueError("y has no token that counts, on any rank")\n',
        "    count = max(count, 1.0)\n",
    ),
    breaks=tests_of(LOSS),
    fails=["a_batch_without_targets_is_refused"],
)

targets_are_shifted_after_the_cut = edit(
    LOSS,
    """You cut first and shift afterwards. The last token of each piece then gets as its target the first token of the
    next piece in memory, or no target: shift first, then cut.""",
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
    """You copy the tokens into a tensor of floats. Tokens are indices, and must stay int64.""",
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
    """You averaged the ranks' means. Ranks with few counted tokens then weigh as much as the others: add up sums and
    counts, and divide once.""",
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
    """You divide by the number of all tokens. Tokens with y = −100 do not count.""",
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
    """Your gradients are N times too large, as if they were averaged over the ranks later. Here they are added up.""",
    ("    return (total + others) / count\n",
     "    return (total - total.detach()) * dist.get_world_size() / count + everything / count\n"),
    breaks=tests_of(LOSS),
)  # fmt: skip

own_part_of_the_mean = edit(
    LOSS,
    """Your loss is only this rank's part of the mean. The gradients are right, but the ranks report different losses,
    none of which is the mean: add the others' part.""",
    ("    return (total + others) / count\n", "    return total / count\n"),
    breaks=tests_of(LOSS),
)

no_gradient_flows = edit(
    LOSS,
    """You return the mean as a new number without a graph. No gradient flows through an all-reduce: keep this rank's
    sum in the loss.""",
    (
        "    return (total + others) / count\n",
        "    return torch.tensor(everything / count, dtype=total.dtype).requires_grad_()\n",
    ),
    breaks=tests_of(LOSS),
)

an_all_reduce_that_differentiates = edit(
    LOSS,
    """Your all-reduce has a backward that all-reduces as well: the gradients come out N times too large, and backward
    sends messages. The others' sums are plain numbers; only this rank's sum needs a graph.""",
    (
        "    others = everything - total.item()\n    return (total + others) / count\n",
        "    from torch.distributed.nn import functional as differentiable\n\n"
        "    return differentiable.all_reduce(total.clone()) / count\n",
    ),
    breaks=tests_of(LOSS),
)

no_graph_without_targets = edit(
    LOSS,
    """A rank without counted tokens returns a number without a graph. Its backward then fails, and its logits get no
    gradient: keep this rank's sum, which is 0, in the loss.""",
    (
        "    return (total + others) / count\n",
        "    if not (y != -100).any():\n        return torch.tensor(everything / count, dtype=logits.dtype)\n"
        "    return (total + others) / count\n",
    ),
    breaks=tests_of(LOSS),
)

a_number_if_nothing_is_trained = edit(
    LOSS,
    """Where the logits need no gradient, you return a Python number. The loss is a scalar tensor there, too.""",
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
    """You add up in float32, in which float64 losses lose half of their digits.""",
    ("(y != -100).sum().item()], dtype=torch.float64)", "(y != -100).sum().item()])"),
    breaks=tests_of(LOSS),
)

ranks_without_targets_return_early = edit(
    LOSS,
    """A rank without counted tokens returns before the all-reduce, and the others wait for it there. Let it take part
    with zeros.""",
    (
        "    numbers = torch.tensor([total.item()",
        "    if not (y != -100).any():\n        return total\n    numbers = torch.tensor([total.item()",
    ),
    breaks=tests_of(LOSS),
)
