"""Wrong answers to lesson 04, exercise 2."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

SHARDS = "04-ex2-shard-indices"


# ---- 2 · shard_indices ----


@right(SHARDS)
def _shards():
    """Right: the base of the edits below."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        if world_size < 1 or length < 0 or not 0 <= rank < world_size:
            raise ValueError(f"bad length, rank or world_size: {length}, {rank}, {world_size}")
        order = list(range(length))
        if shuffle:
            order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        steps = length // world_size if drop_last else -(-length // world_size)
        return [order[i % length] for i in range(rank, steps * world_size, world_size)]


@mutant(SHARDS, breaks=tests_of(SHARDS))
def shards_padded_by_one_repetition_at_most():
    """You padded the order with at most one copy of itself. With fewer than half as many examples as ranks, one copy is
    not enough, and the shards differ in length: repeat the order as often as necessary."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        if world_size < 1 or length < 0 or not 0 <= rank < world_size:
            raise ValueError(f"bad length, rank or world_size: {length}, {rank}, {world_size}")
        order = list(range(length))
        if shuffle:
            order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        if drop_last:
            order = order[: length // world_size * world_size]
        else:
            order += order[: -length % world_size]
        return order[rank::world_size]


shards_padded_with_the_end = edit(
    SHARDS,
    """You padded the order with its last entries. The sampler repeats the order from its start.""",
    (
        "return [order[i % length] for i in range(rank, steps * world_size, world_size)]",
        "missing = steps * world_size - length\n"
        "    if missing > 0:\n"
        "        order = order + (order * (missing // length + 1))[-missing:]\n"
        "    return order[rank : steps * world_size : world_size]",
    ),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_padded_with_the_last_entry = edit(
    SHARDS,
    """You padded the order by repeating its last entry. The sampler repeats the order from its start.""",
    (
        "return [order[i % length] for i in range(rank, steps * world_size, world_size)]",
        "order = order + order[-1:] * max(steps * world_size - length, 0)\n"
        "    return order[rank : steps * world_size : world_size]",
    ),
    base=_shards,
    breaks=tests_of(SHARDS),
)


@mutant(SHARDS, breaks=tests_of(SHARDS))
def shards_padded_before_shuffling():
    """You padded 0…length−1 first and shuffled afterwards. The permutation is drawn for `length` examples; the repeated
    entries come after the permutation."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        if world_size < 1 or length < 0 or not 0 <= rank < world_size:
            raise ValueError(f"bad length, rank or world_size: {length}, {rank}, {world_size}")
        steps = length // world_size if drop_last else -(-length // world_size)
        order = [i % length for i in range(steps * world_size)]
        if shuffle:
            g = torch.Generator().manual_seed(seed + epoch)
            order = [order[i] for i in torch.randperm(len(order), generator=g).tolist()]
        return order[rank::world_size]


shards_of_one_seed_for_all_epochs = edit(
    SHARDS,
    """You seeded the generator with `seed` alone, so all epochs have the same order, as if set_epoch were never
    called. The sampler's seed is seed + epoch.""",
    ("seed + epoch", "seed"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_of_the_epoch_alone = edit(
    SHARDS,
    """You seeded the generator with `epoch` alone and ignored `seed`. The sampler's seed is seed + epoch.""",
    ("(seed + epoch)", "(epoch)"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_of_a_product_of_seeds = edit(
    SHARDS,
    """You multiplied seed and epoch, so with seed 0 every epoch has the same order. The sampler adds the two.""",
    ("seed + epoch", "seed * epoch"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_of_a_seed_a_rank = edit(
    SHARDS,
    """You included the rank in the seed, so each rank draws a different permutation and the shards overlap. All ranks
    must draw the same order and take different entries of it.""",
    ("seed + epoch)).tolist", "seed + epoch + rank)).tolist"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_in_contiguous_blocks = edit(
    SHARDS,
    """You gave each rank a contiguous block of the order. The sampler deals like cards: rank r takes every N-th entry,
    starting at entry r.""",
    ("rank, steps * world_size, world_size", "rank * steps, (rank + 1) * steps"),
    base=_shards,
    breaks=tests_of(SHARDS),
)


@mutant(SHARDS, breaks=tests_of(SHARDS))
def shards_dealt_before_shuffling():
    """You dealt out the examples first and then shuffled each rank's part. A rank then sees the same examples in every
    epoch, only in another order. Shuffle everything, then deal."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        if world_size < 1 or length < 0 or not 0 <= rank < world_size:
            raise ValueError(f"bad length, rank or world_size: {length}, {rank}, {world_size}")
        steps = length // world_size if drop_last else -(-length // world_size)
        mine = [i % length for i in range(rank, steps * world_size, world_size)]
        if shuffle:
            g = torch.Generator().manual_seed(seed + epoch)
            mine = [mine[i] for i in torch.randperm(len(mine), generator=g).tolist()]
        return mine


shards_that_never_drop = edit(
    SHARDS,
    """You ignored drop_last. With it, the end of the order is cut off until N divides its length, and nothing is
    repeated.""",
    ("length // world_size if drop_last else -(-length // world_size)", "-(-length // world_size)"),
    base=_shards,
    breaks=tests_of(SHARDS),
)


@mutant(SHARDS, breaks=tests_of(SHARDS))
def shards_that_always_drop():
    """You cut off the end of the order even without drop_last, so that up to N − 1 examples are missing from the
    epoch. The sampler repeats some instead."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        if world_size < 1 or length < 0 or not 0 <= rank < world_size:
            raise ValueError(f"bad length, rank or world_size: {length}, {rank}, {world_size}")
        order = list(range(length))
        if shuffle:
            order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        return order[: length // world_size * world_size][rank::world_size]


shards_of_unequal_length = edit(
    SHARDS,
    """You dealt out the order as it is, so some ranks get one example more than others. A rank with one more step would
    wait in its all-reduce for ranks that have finished: make the length a multiple of N first.""",
    ("    else:\n        order += order[: -length % world_size]\n", ""),
    base=shards_padded_by_one_repetition_at_most,
    breaks=tests_of(SHARDS),
)

shards_padded_though_it_divides = edit(
    SHARDS,
    """You pad the order even when N divides its length: N − length % N is then N, but it should be 0.""",
    ("else -(-length // world_size)", "else length // world_size + (length > 0)"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_that_are_always_shuffled = edit(
    SHARDS,
    """You shuffled although shuffle is False. In that case the order is 0…length−1.""",
    ("order = list(range(length))\n    if shuffle:\n        order =", "order ="),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_drawn_by_numpy = edit(
    SHARDS,
    """You drew the permutation with numpy. Its generators give other numbers than torch's for the same seed: use
    torch.randperm with a torch.Generator.""",
    (
        "order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()",
        "order = np.random.default_rng(seed + epoch).permutation(length).tolist()",
    ),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_that_seed_the_world = edit(
    SHARDS,
    """You seeded torch's global generator, which resets the random numbers of the whole program: in every epoch,
    dropout would draw the same numbers again. Make a torch.Generator of your own, and pass it to randperm.""",
    (
        "order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()",
        "torch.manual_seed(seed + epoch)\n        order = torch.randperm(length).tolist()",
    ),
    base=_shards,
    breaks=tests_of(SHARDS),
    fails=["shards_are_dealt_without_side_effects"],
)

shards_that_seed_the_world_again = edit(
    SHARDS,
    """You set torch's global generator back to its initial seed. That is the state in which the program began, not the
    state before the call, so dropout would repeat its numbers. Make a torch.Generator of your own.""",
    (
        "order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()",
        "before = torch.initial_seed()\n"
        "        torch.manual_seed(seed + epoch)\n"
        "        order = torch.randperm(length).tolist()\n"
        "        torch.manual_seed(before)",
    ),
    base=_shards,
    breaks=tests_of(SHARDS),
    fails=["shards_are_dealt_without_side_effects"],
)

shards_of_a_seed_without_sign = edit(
    SHARDS,
    """You took the absolute value of the seed. A generator accepts a negative seed, and draws another order for it than
    for the positive one: seed with seed + epoch as it is.""",
    ("seed + epoch", "abs(seed + epoch)"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_made_of_tensors = edit(
    SHARDS,
    """The entries of your list are tensors, not Python ints: list() of a tensor gives 0-dimensional tensors, which are
    of no use as keys or in JSON. Use tolist().""",
    ("order = list(range(length))", "order = torch.arange(length)"),
    ("epoch)).tolist()", "epoch))"),
    base=_shards,
    breaks=tests_of(SHARDS),
)


@mutant(SHARDS, breaks=tests_of(SHARDS))
def shards_from_the_sampler():
    """You called DistributedSampler. What it does fits into three lines, and this exercise is about them."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        from torch.utils.data import DistributedSampler

        if world_size < 1 or length < 0 or not 0 <= rank < world_size:
            raise ValueError(f"bad length, rank or world_size: {length}, {rank}, {world_size}")
        sampler = DistributedSampler(range(length), world_size, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        return list(sampler)


shards_for_any_rank = edit(
    SHARDS,
    """You did not check the rank. Rank N would get rank 0's shard without its first example: no error, only examples
    that are counted twice. Raise a ValueError that names rank.""",
    (" or not 0 <= rank < world_size", ""),
    (
        "bad length, rank or world_size: {length}, {rank}, {world_size}",
        "bad length or world_size: {length}, {world_size}",
    ),
    (
        "return [order[i % length] for i in range(rank, steps * world_size, world_size)]",
        "order = [order[i % length] for i in range(steps * world_size)]\n    return order[rank::world_size]",
    ),
    base=_shards,
    breaks=tests_of(SHARDS),
    fails=["shards_refuse_what_cannot_be_dealt"],
)

shards_for_rank_n = edit(
    SHARDS,
    """You accepted rank N. Ranks are counted from 0, so the last one is N − 1.""",
    ("rank < world_size", "rank <= world_size"),
    base=_shards,
    breaks=tests_of(SHARDS),
    fails=["shards_refuse_what_cannot_be_dealt"],
)

shards_of_a_negative_length = edit(
    SHARDS,
    """You did not check the length. A negative length gave an empty shard, or an error inside torch that does not name
    the argument. Raise a ValueError that names length.""",
    (" or length < 0", ""),
    ("bad length, rank or world_size: {length}, {rank}, {world_size}", "bad rank or world_size: {rank}, {world_size}"),
    ("randperm(length", "randperm(max(length, 0)"),
    base=_shards,
    breaks=tests_of(SHARDS),
    fails=["shards_refuse_what_cannot_be_dealt"],
)

shards_of_nothing_for_any_rank = edit(
    SHARDS,
    """For length 0 you return before you look at the rank. A rank outside 0…N−1 is wrong for length 0, too: check
    first.""",
    ("    if world_size < 1", "    if length == 0:\n        return []\n    if world_size < 1"),
    base=_shards,
    breaks=tests_of(SHARDS),
    fails=["shards_refuse_what_cannot_be_dealt"],
)
