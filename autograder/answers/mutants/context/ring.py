"""Wrong answers to lesson 13, exercises 3 and 4."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

RING, BACKWARD = "13-ex3-ring", "13-ex4-backward"
TRAVEL = "blocks_travel_between_neighbors"

# ---- 3 · ring_forward ----

blocks_of_later_ranks_are_skipped = edit(
    RING,
    """You skip the blocks of ranks after this one. This is right where each rank has a contiguous piece. In the striped
    and zigzag layouts, those ranks have earlier positions, too: compare positions.""",
    (
        "        part = attend(q, block[0], block[1], positions[rank], positions[owner])\n"
        "        result = part if result is None else merge(*result, *part)\n",
        "        if owner <= rank:\n"
        "            part = attend(q, block[0], block[1], positions[rank], positions[owner])\n"
        "            result = part if result is None else merge(*result, *part)\n",
    ),
    breaks=tests_of(RING, BACKWARD),
)

blocks_are_skipped_by_their_first_positions = edit(
    RING,
    """You skip a block whose first position is later than this rank's first position. A later query of this rank may
    still see the block: compare with this rank's last position.""",
    (
        "        part = attend(q, block[0], block[1], positions[rank], positions[owner])\n"
        "        result = part if result is None else merge(*result, *part)\n",
        "        mine, theirs = positions[rank], positions[owner]\n"
        "        late = len(theirs) and len(mine) and theirs.min() > mine.min()\n"
        "        if result is None or not late:\n"
        "            part = attend(q, block[0], block[1], positions[rank], positions[owner])\n"
        "            result = part if result is None else merge(*result, *part)\n",
    ),
    breaks=tests_of(RING, BACKWARD),
)

powers_of_the_lse_are_added_up = edit(
    RING,
    """You add up e to the power of each block's lse. For large scores this power is infinite, and inf / inf is nan:
    merge the blocks.""",
    (
        "        result = part if result is None else merge(*result, *part)\n",
        "        power = part[1].exp()\n"
        "        out, total = (0.0, 0.0) if result is None else result\n"
        "        result = out + power[..., None] * part[0], total + power\n",
    ),
    ("    return result\n", "    return result[0] / result[1][..., None], result[1].log()\n"),
    breaks=tests_of(RING),
)

the_owner_is_counted_the_wrong_way = edit(
    RING,
    """Blocks come from the left, so after s hops you hold the block of rank − s. You use the positions of rank + s.""",
    ("owner, following = (rank - step) % world_size,", "owner, following = (rank + step) % world_size,"),
    breaks=tests_of(RING, BACKWARD),
)

equal_numbers_of_tokens = edit(
    RING,
    """You receive into a tensor that is as long as this rank's own block. Other ranks may have more or fewer tokens:
    positions says how many.""",
    ("len(positions[following]), k.shape[3])", "k.shape[2], k.shape[3])"),
    breaks=tests_of(RING, BACKWARD),
)

the_last_block_is_missing = edit(
    RING,
    """Your ring makes one step too few, so a rank never sees the block of its right neighbor.""",
    ("    for step in range(world_size):\n", "    for step in range(max(1, world_size - 1)):\n"),
    ("        if step < world_size - 1:\n", "        if step < world_size - 2:\n"),
    breaks=tests_of(RING, BACKWARD),
)

own_block_alone = edit(
    RING,
    """You compute with this rank's own keys in every step. Compute with the block that has arrived.""",
    ("block = coming if pending else block", "block = block"),
    breaks=tests_of(RING, BACKWARD),
)

lse_of_own_block = edit(
    RING,
    """You return the lse of this rank's own block. Backward needs the lse over all keys.""",
    ("    return result\n", "    return result[0], attend(q, k, v, positions[rank], positions[rank])[1]\n"),
    breaks=tests_of(RING, BACKWARD),
)

blocks_are_averaged = edit(
    RING,
    """You add up the blocks' outputs. Each output counts as much as its keys weigh: merge them.""",
    (
        "result = part if result is None else merge(*result, *part)",
        "result = part if result is None else (result[0] + part[0], torch.logaddexp(result[1], part[1]))",
    ),
    breaks=tests_of(RING, BACKWARD),
)

out_alone_is_returned = edit(
    RING,
    """You return only out. Return the lse as well: backward needs it.""",
    ("    return result\n", "    return result[0]\n"),
    breaks=tests_of(RING, BACKWARD),
)

keys_and_values_are_gathered = edit(
    RING,
    """You bring the blocks to all ranks with collectives. The result is right, and Llama 3 does this where there are
    few key heads. Here, a block goes from neighbor to neighbor, and no rank may hold all of them.""",
    (
        "    for step in range(world_size):\n        owner, following = ",
        "    blocks = [torch.empty(2, *k.shape[:2], len(where), k.shape[3], dtype=k.dtype) for where in positions]\n"
        "    for owner, theirs in enumerate(blocks):\n"
        "        theirs.copy_(block) if owner == rank else None\n"
        "        dist.broadcast(theirs, owner)\n"
        "    for step in range(world_size):\n        owner, following = ",
    ),
    ("        if step < world_size - 1:\n", "        if False:\n"),
    ("        part = attend(q, block[0], block[1],", "        part = attend(q, *blocks[owner],"),
    breaks=tests_of(RING),
    fails=[TRAVEL, "the_next_block_is_on_its_way", "no_rank_holds_all_blocks"],
)

a_hop_too_many = edit(
    RING,
    """You send each block once more, back to its owner. Its owner does not need it: N − 1 hops are enough.""",
    ("        if step < world_size - 1:\n", "        if world_size > 1:\n"),
    breaks=tests_of(RING),
    fails=[TRAVEL],
)

blocks_are_padded = edit(
    RING,
    """You pad every block to the length of the longest one, and the padding is sent as well. Send only each block's own
    tokens.""",
    (
        "block, result = torch.stack([k, v]).contiguous(), None\n",
        "longest, result = max(map(len, positions)), None\n"
        "    block = torch.zeros(2, *k.shape[:2], longest, k.shape[3], dtype=k.dtype)\n"
        "    block[:, :, :, : k.shape[2]] = torch.stack([k, v])\n",
    ),
    ("len(positions[following]), k.shape[3])", "longest, k.shape[3])"),
    (
        "        part = attend(q, block[0], block[1],",
        "        keys, values = block[:, :, :, : len(positions[owner])]\n        part = attend(q, keys, values,",
    ),
    breaks=tests_of(RING),
    fails=[TRAVEL],
)

ranks_meet_at_a_barrier = edit(
    RING,
    """You call a barrier. All ranks then wait for the slowest one, and nothing requires that: a rank needs to wait only
    for its own send and receive.""",
    ("    for step in range(world_size):\n", "    for step in range(world_size):\n        dist.barrier()\n"),
    breaks=tests_of(RING),
    fails=[TRAVEL],
)

blocks_go_straight_to_everybody = edit(
    RING,
    """Each rank sends its own block to every other rank. The number of bytes is right, but most messages go to ranks
    that are not neighbors: pass on the block that came from the left.""",
    (
        "            pending.append(dist.isend(block, (rank + 1) % world_size))\n"
        "            pending.append(dist.irecv(coming, (rank - 1) % world_size))\n",
        "            own = torch.stack([k, v]).contiguous()\n"
        "            pending.append(dist.isend(own, (rank + step + 1) % world_size))\n"
        "            pending.append(dist.irecv(coming, (rank - step - 1) % world_size))\n",
    ),
    breaks=tests_of(RING),
    fails=[TRAVEL],
)

keys_and_values_travel_head_by_head = edit(
    RING,
    """You send a separate message for each head of k and of v. Each message costs a start-up time: one or two messages
    per hop are enough.""",
    (
        "            pending.append(dist.isend(block, (rank + 1) % world_size))\n"
        "            pending.append(dist.irecv(coming, (rank - 1) % world_size))\n",
        "            rows, places = block.flatten(0, 2).contiguous(), coming.flatten(0, 2)\n"
        "            for row, place in zip(block.flatten(0, 2), places):\n"
        "                pending.append(dist.irecv(place, (rank - 1) % world_size)) if len(place) else None\n"
        "            for row in rows:\n"
        "                pending.append(dist.isend(row, (rank + 1) % world_size)) if len(row) else None\n",
    ),
    ("        block = coming if pending else block\n", "        block = coming if step < world_size - 1 else block\n"),
    breaks=tests_of(RING),
    fails=[TRAVEL],
)

waits_before_it_computes = edit(
    RING,
    """You wait for the next block before you compute with the block you have. The network and the processor then take
    turns. Post the send and the receive, compute, then wait.""",
    (
        "        part = attend(q, block[0], block[1], positions[rank], positions[owner])\n",
        "        for work in pending:\n            work.wait()\n"
        "        part = attend(q, block[0], block[1], positions[rank], positions[owner])\n",
    ),
    (
        "        for work in pending:\n            work.wait()\n        block = coming if pending",
        "        block = coming if pending",
    ),
    breaks=tests_of(RING),
    fails=["the_next_block_is_on_its_way"],
)

sends_after_it_computed = edit(
    RING,
    """You send a block only after you have computed with it. Your neighbor waits for it all that time: post the send
    and the receive, compute, then wait.""",
    ("            pending.append(dist.isend(block, (rank + 1) % world_size))\n", ""),
    (
        "        for work in pending:\n",
        "        if pending:\n            pending.append(dist.isend(block, (rank + 1) % world_size))\n"
        "        for work in pending:\n",
    ),
    breaks=tests_of(RING),
    fails=["the_next_block_is_on_its_way"],
)

computes_before_it_sends = edit(
    RING,
    """You compute first, and post the send and the receive afterwards. Computing and sending then never overlap: post
    both before you compute.""",
    (
        "            pending.append(dist.isend(block, (rank + 1) % world_size))\n"
        "            pending.append(dist.irecv(coming, (rank - 1) % world_size))\n",
        "            pending = [True]\n",
    ),
    (
        "        for work in pending:\n            work.wait()\n        block = coming if pending else block\n",
        "        if pending:\n"
        "            work = dist.isend(block, (rank + 1) % world_size)\n"
        "            dist.recv(coming, (rank - 1) % world_size)\n"
        "            work.wait()\n"
        "        block = coming if pending else block\n",
    ),
    breaks=tests_of(RING),
    fails=["the_next_block_is_on_its_way"],
)

all_blocks_are_kept = edit(
    RING,
    """This rank has memory for the keys and values of the whole sequence at once, which is what the ring should avoid.
    Allocate a block just before it arrives, and release it when it has been passed on.""",
    (
        "    block, result = torch.stack([k, v]).contiguous(), None\n",
        "    block, result = torch.stack([k, v]).contiguous(), None\n    seen = [block]\n",
    ),
    (
        "        block = coming if pending else block\n",
        "        block = coming if pending else block\n        seen.append(block)\n",
    ),
    breaks=tests_of(RING),
    fails=["no_rank_holds_all_blocks"],
)

# ---- 4 · ring_backward ----

gradients_stop_a_hop_short = edit(
    BACKWARD,
    """The gradients of a block stop at the last rank that adds to them. They need one more hop than the block itself,
    back to its owner.""",
    ("        if world_size > 1:\n", "        if step < world_size - 1:\n"),
    breaks=tests_of(BACKWARD),
)

weights_of_the_block_alone = edit(
    BACKWARD,
    """You normalize the weights over the keys of each block. The weights of all blocks are parts of one softmax over
    all keys: use the saved lse.""",
    ("return (scores - lse[..., None]).masked_fill(~allowed, -math.inf).exp()",
     "scores = scores.masked_fill(~allowed, -math.inf)\n"
     "    own = scores.logsumexp(dim=-1, keepdim=True)\n"
     "    return (scores - own.masked_fill(own == -math.inf, 0.0)).exp()"),
    breaks=tests_of(BACKWARD),
)  # fmt: skip

delta_is_missing = edit(
    BACKWARD,
    """Your dS lacks δ. A weight rises only at the expense of the others: subtract the sum of grad · out.""",
    (" - delta) / math.sqrt", ") / math.sqrt"),
    breaks=tests_of(BACKWARD),
)

delta_of_the_block = edit(
    BACKWARD,
    """You compute δ from this block alone. δ is a sum over all keys, which equals grad · out of the whole row.""",
    (
        "        scores = weights * (grad @ block[1].transpose(-2, -1) - delta) / math.sqrt(q.shape[-1])\n",
        "        slopes = grad @ block[1].transpose(-2, -1)\n"
        "        own = (weights * slopes).sum(dim=-1, keepdim=True)\n"
        "        scores = weights * (slopes - own) / math.sqrt(q.shape[-1])\n",
    ),
    breaks=tests_of(BACKWARD),
)

slopes_are_not_scaled = edit(
    BACKWARD,
    """The scores were divided by the root of D, so their gradients must be, too: this factor is missing in dq and
    dk.""",
    (" - delta) / math.sqrt(q.shape[-1])", " - delta)"),
    breaks=tests_of(BACKWARD),
)

the_future_in_backward = edit(
    BACKWARD,
    """You do not mask the weights in backward. Keys that the queries did not see in the forward then get gradients.""",
    ("(scores - lse[..., None]).masked_fill(~allowed, -math.inf).exp()", "(scores - lse[..., None]).exp()"),
    breaks=tests_of(BACKWARD),
)

masked_after_the_exponential = edit(
    BACKWARD,
    """You apply the mask after the exponential. Where a score is far above the lse, the exponential is infinite, and
    infinity times 0 is nan. Mask before the exponential.""",
    (
        "(scores - lse[..., None]).masked_fill(~allowed, -math.inf).exp()",
        "(scores - lse[..., None]).exp() * allowed",
    ),
    breaks=tests_of(BACKWARD),
)

values_get_the_slopes = edit(
    BACKWARD,
    """dV is the transposed weights times grad. You used dS in place of the weights.""",
    ("weights.transpose(-2, -1) @ grad", "scores.transpose(-2, -1) @ grad"),
    breaks=tests_of(BACKWARD),
)

queries_keep_the_last_part = edit(
    BACKWARD,
    """Your dq comes from the last block alone. It should be the sum over all blocks.""",
    ("dq += scores @ block[0]", "dq = scores @ block[0]"),
    breaks=tests_of(BACKWARD),
)

own_gradients_alone = edit(
    BACKWARD,
    """Your dk and dv hold only this rank's own part. Other ranks' queries saw these keys, too: each rank adds its part
    to a block's gradients before it sends them on.""",
    ("    return dq, gradient[0], gradient[1]\n",
     "    weights = block_weights(q, k, lse, positions[rank], positions[rank])\n"
     "    scores = weights * (grad @ v.transpose(-2, -1) - delta) / math.sqrt(q.shape[-1])\n"
     "    return dq, scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ grad\n"),
    breaks=tests_of(BACKWARD),
)  # fmt: skip

gradients_in_the_wrong_order = edit(
    BACKWARD,
    """You return dk, dv, dq. The order is dq, dk, dv.""",
    ("return dq, gradient[0], gradient[1]", "return gradient[0], gradient[1], dq"),
    breaks=tests_of(BACKWARD),
)

grad_is_scaled_in_place = edit(
    BACKWARD,
    """You changed grad in place. Autograd may hand the same tensor to others: work on a copy.""",
    (
        "    delta, dq = (grad * out).sum(dim=-1, keepdim=True), torch.zeros_like(q)\n",
        "    delta, dq = (grad * out).sum(dim=-1, keepdim=True), torch.zeros_like(q)\n"
        "    kept = grad.clone()\n    grad *= 1.5\n    grad = kept\n",
    ),
    breaks=tests_of(BACKWARD),
)

queries_are_scaled_and_scaled_back = edit(
    BACKWARD,
    """You scale q in place and scale it back at the end. Both steps round, so q is not quite what it was: work on a
    copy.""",
    (
        "    delta, dq = (grad * out)",
        "    root = math.sqrt(q.shape[-1])\n    q /= root\n    delta, dq = (grad * out)",
    ),
    (" - delta) / math.sqrt(q.shape[-1])", " - delta)"),
    ("dq += scores @ block[0]", "dq += scores @ block[0] / root"),
    ("    return dq, gradient[0]", "    q *= root\n    return dq, gradient[0]"),
    ("    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])\n", "    scores = q @ k.transpose(-2, -1)\n"),
    breaks=tests_of(BACKWARD),
)

ranks_meet_at_a_barrier_in_backward = edit(
    BACKWARD,
    """You call a barrier in backward. All ranks then wait for the slowest one: a rank needs to wait only for its own
    sends and receives.""",
    ("    for step in range(world_size):\n", "    for step in range(world_size):\n        dist.barrier()\n"),
    breaks=tests_of(BACKWARD),
    fails=["gradients_travel_with_their_blocks"],
)

gradients_travel_head_by_head = edit(
    BACKWARD,
    """You send a separate message for the gradients of each head. Each message costs a start-up time: send all heads of
    a block in one.""",
    (
        "            works = [dist.isend(travelling, right), dist.irecv(coming, left)]\n",
        "            going = [x.contiguous() for x in travelling.unbind(dim=-3)]\n"
        "            heads = [x.contiguous() for x in coming.unbind(dim=-3)]\n"
        "            works = [dist.isend(x, right) for x in going] + [dist.irecv(x, left) for x in heads]\n",
    ),
    (
        "                work.wait()\n",
        "                work.wait()\n            coming = torch.stack(heads, dim=-3)\n",
    ),
    breaks=tests_of(BACKWARD),
    fails=["gradients_travel_with_their_blocks"],
)

everything_is_all_reduced = edit(
    BACKWARD,
    """Your gradients are right, but you all-reduce the gradients of the whole sequence, so every rank holds all of
    them. Let the gradients of each block travel with the block.""",
    (
        "        if world_size > 1:\n"
        "            travelling = torch.stack([block, gradient]) if step < world_size - 1 else gradient\n",
        "        if world_size > 1 and step < world_size - 1:\n"
        "            travelling = torch.stack([block, torch.zeros_like(gradient)])\n",
    ),
    (
        "            block, gradient = coming if step < world_size - 1 else (block, coming)\n",
        "            total[:, :, :, positions[owner]] += gradient\n"
        "            block, gradient = coming\n"
        "        else:\n"
        "            total[:, :, :, positions[owner]] += gradient\n",
    ),
    (
        "    gradient = torch.zeros_like(block)\n",
        "    gradient = torch.zeros_like(block)\n"
        "    shape = (*block.shape[:3], sum(map(len, positions)), q.shape[3])\n"
        "    total = torch.zeros(shape, dtype=q.dtype)\n",
    ),
    (
        "    return dq, gradient[0], gradient[1]\n",
        "    if world_size > 1:\n        dist.all_reduce(total)\n"
        "    return dq, total[0][:, :, positions[rank]], total[1][:, :, positions[rank]]\n",
    ),
    breaks=tests_of(BACKWARD),
    fails=["gradients_travel_with_their_blocks"],
)
