"""Wrong answers to lesson 13, exercises 1 and 2."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

BLOCKS, LAYOUTS = "13-ex1-blocks", "13-ex2-layouts"
RING, BACKWARD, EXCHANGE = "13-ex3-ring", "13-ex4-backward", "13-ex5-exchange"
NOTHING = "a_part_without_keys_changes_nothing"

# ---- 1 · attend and merge ----

sigmoids_of_differences = edit(
    BLOCKS,
    """Where neither part has a key, your merge computes −∞ − (−∞). The result is nan, which spreads to the whole row.
    Replace an lse of −∞ before you subtract it.""",
    (
        "    finite = lse.masked_fill(lse == -math.inf, 0.0)\n"
        "    share_a, share_b = ((part - finite).exp()[..., None] for part in (lse_a, lse_b))\n",
        "    share_b = torch.sigmoid(lse_b - lse_a)[..., None]\n    share_a = 1 - share_b\n",
    ),
    breaks=tests_of(BLOCKS),
    fails=["merged_parts_are_the_whole", NOTHING],
)

masked_by_a_finite_number = edit(
    BLOCKS,
    """You mask with a finite number. The scores of allowed keys may be lower than this number, and then the masked keys
    win: mask with −∞.""",
    (
        "    scores = scores.masked_fill(~allowed, -math.inf)\n    lse = scores.logsumexp(dim=-1)\n",
        "    nobody = ~allowed.any(dim=-1)\n"
        "    scores = scores.masked_fill(~allowed, -1e4)\n"
        "    lse = scores.logsumexp(dim=-1).masked_fill(nobody, -math.inf)\n"
        "    scores = scores.masked_fill(nobody[:, None], -math.inf)\n",
    ),
    breaks=tests_of(BLOCKS),
)

rows_without_keys_are_nan = edit(
    BLOCKS,
    """Where no key is allowed, the lse is −∞, and score − lse is −∞ − (−∞), which is nan. The output should be 0
    there.""",
    ("    return (scores - finite[..., None]).exp() @ v, lse", "    return (scores - lse[..., None]).exp() @ v, lse"),
    breaks=tests_of(BLOCKS, RING, BACKWARD),
)

later_keys_by_index = edit(
    BLOCKS,
    """You mask by the indices of queries and keys in their tensors. Tokens may come in any order and from other ranks:
    compare positions.""",
    (
        "    allowed = k_positions[None, :] <= q_positions[:, None]\n"
        "    scores = scores.masked_fill(~allowed, -math.inf)\n    lse = scores.logsumexp",
        "    allowed = torch.arange(k.shape[2])[None, :] <= torch.arange(q.shape[2])[:, None]\n"
        "    scores = scores.masked_fill(~allowed, -math.inf)\n    lse = scores.logsumexp",
    ),
    breaks=tests_of(BLOCKS, RING, BACKWARD, EXCHANGE),
)

positions_as_floats = edit(
    BLOCKS,
    """You compare positions as floats. Large ones next to each other round to the same number, and a query sees the
    future: compare integers.""",
    (
        "k_positions[None, :] <= q_positions[:, None]",
        "k_positions.to(q.dtype)[None, :] <= q_positions.to(q.dtype)[:, None]",
    ),
    breaks=tests_of(BLOCKS),
)

late_blocks_by_their_ends = edit(
    BLOCKS,
    """You assume that a block is in the future if its first key is later than the last query. In another order the
    first position is not the earliest, nor is the last one the latest: compare min and max.""",
    (
        "    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n    allowed",
        "    if len(q_positions) and len(k_positions) and k_positions[0] > q_positions[-1]:\n"
        "        return torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)\n"
        "    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n    allowed",
    ),
    breaks=tests_of(BLOCKS, RING),
)

own_position_is_not_seen = edit(
    BLOCKS,
    """Your queries do not see the key of their own position. They should: allow every position up to the query's
    own.""",
    ("k_positions[None, :] <= q_positions[:, None]", "k_positions[None, :] < q_positions[:, None]"),
    breaks=tests_of(BLOCKS, RING, BACKWARD, EXCHANGE),
)

the_future_is_seen = edit(
    BLOCKS,
    """Your queries see later keys as well. In training the target is a later token, so the loss looks better than it
    is.""",
    ("    scores = scores.masked_fill(~allowed, -math.inf)\n", ""),
    breaks=tests_of(BLOCKS, RING, BACKWARD, EXCHANGE),
)

scores_are_not_scaled = edit(
    BLOCKS,
    """You did not divide the scores by the root of D.""",
    (" / math.sqrt(q.shape[-1])\n", "\n"),
    breaks=tests_of(BLOCKS, RING, BACKWARD, EXCHANGE),
)

scores_are_divided_by_width = edit(
    BLOCKS,
    """You divide the scores by D. Divide by the root of D.""",
    (" / math.sqrt(q.shape[-1])\n", " / q.shape[-1]\n"),
    breaks=tests_of(BLOCKS, RING, BACKWARD, EXCHANGE),
)

powers_overflow = edit(
    BLOCKS,
    """You compute e to the power of the scores. For scores above 700 the power is infinite, and inf / inf is nan. First
    subtract the lse, or the largest score.""",
    (
        "    lse = scores.logsumexp(dim=-1)\n    finite = lse.masked_fill(lse == -math.inf, 0.0)\n"
        "    return (scores - finite[..., None]).exp() @ v, lse",
        "    powers = scores.exp()\n    total = powers.sum(dim=-1)\n"
        "    return powers @ v / total.masked_fill(total == 0, 1.0)[..., None], total.log()",
    ),
    breaks=tests_of(BLOCKS, RING),
)

blocks_keep_their_sums = edit(
    BLOCKS,
    """You did not divide out by the sum of the weights.""",
    (
        "    return (scores - finite[..., None]).exp() @ v, lse",
        "    top = scores.amax(dim=-1, keepdim=True) if scores.shape[-1] else scores.sum(dim=-1, keepdim=True)\n"
        "    return (scores - top.masked_fill(top == -math.inf, 0.0)).exp() @ v, lse",
    ),
    breaks=tests_of(BLOCKS, RING, BACKWARD, EXCHANGE),
)

lse_of_the_largest_score = edit(
    BLOCKS,
    """Your lse is the largest score. It should be the logarithm of the sum of all powers: a merge needs the
    denominators of its parts.""",
    (
        "    return (scores - finite[..., None]).exp() @ v, lse",
        "    top = scores.amax(dim=-1) if scores.shape[-1] else lse\n"
        "    return (scores - finite[..., None]).exp() @ v, top",
    ),
    breaks=tests_of(BLOCKS, RING, BACKWARD),
)

no_part_is_quite_empty = edit(
    BLOCKS,
    """You keep the lse above some large negative number. A part without keys then counts as a part with a tiny weight.
    The lse of such a part is −∞, and stays −∞ when two of them are merged.""",
    ("    lse = torch.logaddexp(lse_a, lse_b)\n", "    lse = torch.logaddexp(lse_a, lse_b).clamp(min=-80.0)\n"),
    breaks=tests_of(BLOCKS, RING),
    fails=[NOTHING],
)

parts_are_averaged = edit(
    BLOCKS,
    """You average the two outputs. Each output counts as much as its keys weigh: multiply it by e to the power of its
    own lse minus the whole lse.""",
    ("return share_a * out_a + share_b * out_b, lse", "return (out_a + out_b) / 2, lse"),
    breaks=tests_of(BLOCKS, RING, BACKWARD),
    fails=["merged_parts_are_the_whole", NOTHING],
)

lse_is_added = edit(
    BLOCKS,
    """You add the lse of one part to that of the other. What adds up is their powers: logaddexp.""",
    (
        "    return share_a * out_a + share_b * out_b, lse",
        "    return share_a * out_a + share_b * out_b, lse_a + lse_b",
    ),
    breaks=tests_of(BLOCKS, RING, BACKWARD),
    fails=["merged_parts_are_the_whole", NOTHING],
)

the_first_lse_is_kept = edit(
    BLOCKS,
    """You return the first part's lse. When a third part is merged in, the weights are then wrong: return the whole
    lse.""",
    (
        "    return share_a * out_a + share_b * out_b, lse",
        "    kept = torch.where(lse_a == -math.inf, lse_b, lse_a)\n    return share_a * out_a + share_b * out_b, kept",
    ),
    breaks=tests_of(BLOCKS, RING, BACKWARD),
    fails=["merged_parts_are_the_whole"],
)

merging_in_the_linear_domain = edit(
    BLOCKS,
    """You compute e to the power of each lse. For a large lse this power is infinite. Subtract the whole lse first.""",
    (
        "    share_a, share_b = ((part - finite).exp()[..., None] for part in (lse_a, lse_b))\n",
        "    total = (lse_a.exp() + lse_b.exp())[..., None]\n"
        "    total = total.masked_fill(total == 0, 1.0)\n"
        "    share_a, share_b = (part.exp()[..., None] / total for part in (lse_a, lse_b))\n",
    ),
    breaks=tests_of(BLOCKS, RING),
    fails=["merged_parts_are_the_whole"],
)

# ---- 2 · layouts ----

chunks_instead_of_parts = edit(
    LAYOUTS,
    """torch.chunk cuts into pieces of ⌈length/N⌉, so the last ranks get short pieces or none. tensor_split makes
    pieces whose lengths differ by at most one.""",
    ("return everything.tensor_split(world_size)[rank]",
     "pieces = everything.chunk(world_size)\n        return pieces[rank] if rank < len(pieces) else everything[:0]"),
    breaks=tests_of(LAYOUTS),
)  # fmt: skip

the_last_part_takes_the_rest = edit(
    LAYOUTS,
    """Your parts all have length // (2N) positions, and the last part also takes the rest. tensor_split makes parts
    whose lengths differ by at most one.""",
    (
        "parts = everything.tensor_split(2 * world_size)\n",
        "size, count = length // (2 * world_size), 2 * world_size\n"
        "        parts = everything.split([size] * (count - 1) + [length - size * (count - 1)])\n",
    ),
    breaks=tests_of(LAYOUTS),
)

zigzag_with_the_next_part = edit(
    LAYOUTS,
    """Your zigzag takes parts r and r + N. The second part must be counted from the back: 2N − 1 − r. Otherwise the
    last rank has two late parts.""",
    ("parts[2 * world_size - 1 - rank]", "parts[world_size + rank]"),
    breaks=tests_of(LAYOUTS),
)

zigzag_with_neighbors = edit(
    LAYOUTS,
    """Your zigzag takes two neighboring parts, which is the contiguous layout again.""",
    ("torch.cat([parts[rank], parts[2 * world_size - 1 - rank]])", "torch.cat([parts[2 * rank], parts[2 * rank + 1]])"),
    breaks=tests_of(LAYOUTS),
)

zigzag_descends = edit(
    LAYOUTS,
    """Your zigzag puts the late part first. The positions should ascend.""",
    (
        "torch.cat([parts[rank], parts[2 * world_size - 1 - rank]])",
        "torch.cat([parts[2 * world_size - 1 - rank], parts[rank]])",
    ),
    breaks=tests_of(LAYOUTS),
)

stripes_are_blocks = edit(
    LAYOUTS,
    """Your stripes are blocks of N positions. Striped deals like cards: rank r gets r, r + N, r + 2N and so on.""",
    ("return everything[rank::world_size]", "return everything.tensor_split(world_size)[rank]"),
    breaks=tests_of(LAYOUTS),
)

negative_ranks_pass = edit(
    LAYOUTS,
    """You accept negative ranks, which Python counts from the end. Raise a ValueError that names rank.""",
    ("if not 0 <= rank < world_size:", "if rank >= world_size:"),
    breaks=tests_of(LAYOUTS),
    fails=["other_ranks_and_layouts_are_refused"],
)

nothing_to_deal_out_is_not_checked = edit(
    LAYOUTS,
    """If there are no positions, you return before you look at the layout. A misspelled layout should be refused for
    any length: check the arguments first.""",
    (
        "    everything = torch.arange(length)\n",
        "    everything = torch.arange(length)\n    if length == 0:\n        return everything\n",
    ),
    breaks=tests_of(LAYOUTS),
    fails=["other_ranks_and_layouts_are_refused"],
)

one_rank_takes_any_layout = edit(
    LAYOUTS,
    """If there is only one rank, you return before you look at the layout. A misspelled layout should be refused for
    any number of ranks: check the arguments first.""",
    (
        "    everything = torch.arange(length)\n",
        "    everything = torch.arange(length)\n    if world_size == 1:\n        return everything\n",
    ),
    breaks=tests_of(LAYOUTS),
    fails=["other_ranks_and_layouts_are_refused"],
)

unknown_layouts_are_zigzag = edit(
    LAYOUTS,
    """You treat every other layout as a zigzag. Refuse a misspelled layout with an error that names layout.""",
    ('    if layout == "zigzag":\n        parts', "    if True:\n        parts"),
    breaks=tests_of(LAYOUTS),
    fails=["other_ranks_and_layouts_are_refused"],
)

the_ring_turns_the_other_way = edit(
    LAYOUTS,
    """In step s you count the keys of rank r + s. Blocks come from the left: after s hops, rank r has the block of rank
    r − s.""",
    ("theirs = shards[(rank - step) % world_size]", "theirs = shards[(rank + step) % world_size]"),
    breaks=tests_of(LAYOUTS),
    fails=["pairs_are_those_that_causality_allows"],
)

own_keys_are_not_counted = edit(
    LAYOUTS,
    """You count only keys strictly before the query. A query looks at its own position as well.""",
    ("(theirs[None, :] <= mine[:, None])", "(theirs[None, :] < mine[:, None])"),
    breaks=tests_of(LAYOUTS),
    fails=["pairs_are_those_that_causality_allows"],
)

all_pairs_are_counted = edit(
    LAYOUTS,
    """You count all pairs. Causality forbids the pairs whose key is later than the query.""",
    ("counts[step, rank] = (theirs[None, :] <= mine[:, None]).sum()", "counts[step, rank] = len(theirs) * len(mine)"),
    breaks=tests_of(LAYOUTS),
    fails=["pairs_are_those_that_causality_allows"],
)

the_table_is_transposed = edit(
    LAYOUTS,
    """The rows of your table are ranks. Rows should be steps, and columns ranks.""",
    ("    return counts\n", "    return counts.t()\n"),
    breaks=tests_of(LAYOUTS),
    fails=["pairs_are_those_that_causality_allows"],
)

time_of_the_busiest_rank = edit(
    LAYOUTS,
    """You compare with the rank that has the most pairs in total. Ranks wait for the busiest rank in every step: add up
    the largest count of each step.""",
    ("int(pairs.max(dim=1).values.sum())", "int(pairs.sum(dim=0).max())"),
    breaks=tests_of(LAYOUTS),
    fails=["the_busiest_rank_sets_the_time"],
)

every_step_lasts_as_long_as_the_longest = edit(
    LAYOUTS,
    """You let every step last as long as the longest step. Each step lasts only as long as its own busiest rank
    needs.""",
    ("int(pairs.max(dim=1).values.sum())", "len(pairs) * int(pairs.max())"),
    breaks=tests_of(LAYOUTS),
    fails=["the_busiest_rank_sets_the_time"],
)

shares_of_steps_are_averaged = edit(
    LAYOUTS,
    """You average the idle shares of the steps. A long step takes more time than a short one: divide the sums.""",
    (
        "    available = len(pairs) * int(pairs.max(dim=1).values.sum())\n"
        "    return 1 - int(pairs.sum()) / available if available else 0.0",
        "    steps = [(int(row.sum()), len(row) * int(row.max())) for row in pairs if row.max() > 0]\n"
        "    return 1 - sum(busy / time for busy, time in steps) / len(steps) if steps else 0.0",
    ),
    breaks=tests_of(LAYOUTS),
    fails=["the_busiest_rank_sets_the_time"],
)

busy_share = edit(
    LAYOUTS,
    """You return the share of the time in which ranks work. Return the share in which they wait.""",
    (
        "return 1 - int(pairs.sum()) / available if available else 0.0",
        "return int(pairs.sum()) / available if available else 0.0",
    ),
    breaks=tests_of(LAYOUTS),
    fails=["the_busiest_rank_sets_the_time"],
)

no_pairs_is_an_error = edit(
    LAYOUTS,
    """When there are no pairs, you divide by zero. No rank waits then: return 0.0.""",
    ("return 1 - int(pairs.sum()) / available if available else 0.0", "return 1 - int(pairs.sum()) / available"),
    breaks=tests_of(LAYOUTS),
    fails=["the_busiest_rank_sets_the_time"],
)
