"""Wrong answers to lesson 09, exercise 7."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

HYBRID = "09-ex7-hybrid"
SENT, REFUSED = "only_shards_pass_between_copies", "sizes_that_do_not_divide_are_refused"

CHECK = (
    "    if size < 1 or world_size % size:\n"
    '        raise ValueError(f"size = {size} does not divide the {world_size} ranks")\n'
)
SHARDS = "    shards = [list(range(first, first + size)) for first in range(0, world_size, size)]\n"
COPIES = "    copies = [list(range(place, world_size, size)) for place in range(size)]\n"
PADDED = "    full = torch.zeros(size * len(shard))\n    full[: len(gradient)] = gradient\n"
SCATTER = "    dist.reduce_scatter_single(shard, full, group=shard_group)\n"
REDUCE = "    dist.all_reduce(shard, group=copy_group)\n"
RETURN = "    return shard / dist.get_world_size()\n"

hybrid_adds_up_everything_first = edit(
    HYBRID,
    """You all-reduced the whole gradient over the copy group and scattered it afterwards. The result is right, but all
    P numbers cross the network, although one shard of them is enough: reduce-scatter first.""",
    (SCATTER + REDUCE, "    dist.all_reduce(full, group=copy_group)\n" + SCATTER),
    breaks=tests_of(HYBRID),
    fails=[SENT],
)

hybrid_adds_up_within_first = edit(
    HYBRID,
    """You all-reduced the whole gradient within the shard group and took your piece of it. An all-reduce sends twice
    the bytes of the reduce-scatter that leaves each rank only its shard.""",
    (
        SCATTER,
        "    dist.all_reduce(full, group=shard_group)\n"
        "    shard = full.view(size, -1)[dist.get_rank(shard_group)].clone()\n",
    ),
    breaks=tests_of(HYBRID),
    fails=[SENT],
)

hybrid_gathers_the_copies = edit(
    HYBRID,
    """You gathered all copies of the shard and added them up on each rank. The result is right, but every rank receives
    all copies; an all-reduce on a ring receives fewer than two.""",
    (
        REDUCE,
        "    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size(copy_group))]\n"
        "    dist.all_gather(parts, shard, group=copy_group)\n"
        "    shard = sum(parts)\n",
    ),
    breaks=tests_of(HYBRID),
    fails=[SENT],
)

hybrid_averages_over_its_machine = edit(
    HYBRID,
    """You divided by the number of ranks in the shard group, though you added up over all ranks. The mean is over all
    of them.""",
    (RETURN, "    return shard / size\n"),
    breaks=tests_of(HYBRID),
)

hybrid_averages_over_the_copies = edit(
    HYBRID,
    """You divided by the number of copies only. The reduce-scatter has added up the gradients of the shard group, too:
    the mean is over all ranks.""",
    (RETURN, "    return shard / dist.get_world_size(copy_group)\n"),
    breaks=tests_of(HYBRID),
)

hybrid_adds_up_without_a_mean = edit(
    HYBRID,
    """You returned the shard of the sum over all ranks. Return that of their mean.""",
    (RETURN, "    return shard\n"),
    breaks=tests_of(HYBRID),
)

hybrid_forgets_the_copies = edit(
    HYBRID,
    """Your shard has the gradients of one machine only. The copies on other machines saw other data, and would drift
    apart: all-reduce the shard over the copy group.""",
    (REDUCE + RETURN, "    return shard / size\n"),
    breaks=tests_of(HYBRID),
)

hybrid_adds_up_over_everybody = edit(
    HYBRID,
    """Your last all-reduce goes over all ranks, so it adds up different shards. Only the ranks of the copy group hold
    the same shard.""",
    (REDUCE, "    dist.all_reduce(shard)\n"),
    breaks=tests_of(HYBRID),
)

hybrid_exchanges_the_groups = edit(
    HYBRID,
    """You returned the copy group first. The shard group comes first: the ranks of one machine.""",
    ("    return tuple(mine)\n", "    return tuple(reversed(mine))\n"),
    breaks=tests_of(HYBRID),
)

hybrid_deals_out_machines = edit(
    HYBRID,
    """Your shard groups consist of ranks that are far apart: every N/size-th rank. Ranks are numbered machine by
    machine, so a shard group is `size` consecutive ranks, which share the fast links.""",
    (
        SHARDS,
        "    shards = [list(range(first, world_size, world_size // size)) for first in range(world_size // size)]\n",
    ),
    (
        COPIES,
        "    steps = world_size // size\n"
        "    copies = [list(range(first, first + steps)) for first in range(0, world_size, steps)]\n",
    ),
    breaks=tests_of(HYBRID),
)

hybrid_drops_the_rest = edit(
    HYBRID,
    """Where `size` does not divide the length, the last numbers of the gradient are lost. Round the length of a shard
    up, and pad with zeros.""",
    ("    shard = torch.empty(-(-len(gradient) // size))\n", "    shard = torch.empty(len(gradient) // size)\n"),
    (PADDED, "    full = gradient[: size * len(shard)].clone()\n"),
    breaks=tests_of(HYBRID),
)

hybrid_leaves_the_padding_as_it_is = edit(
    HYBRID,
    """The padding at the end of your last shard is not zero. An optimizer would train it, and its norm would count
    it.""",
    (PADDED, "    full = torch.ones(size * len(shard))\n    full[: len(gradient)] = gradient\n"),
    breaks=tests_of(HYBRID),
)

hybrid_divides_the_gradient = edit(
    HYBRID,
    """You divided the given gradient in place. The caller may still need it: divide the shard.""",
    (PADDED, "    gradient /= dist.get_world_size()\n" + PADDED),
    (RETURN, "    return shard\n"),
    breaks=tests_of(HYBRID),
)

hybrid_takes_any_size = edit(
    HYBRID,
    """You made groups of a size that does not divide the ranks. Some ranks are then in smaller groups, or in none:
    raise a ValueError that names size.""",
    (CHECK, "    size = min(max(size, 1), world_size)\n"),
    breaks=tests_of(HYBRID),
    fails=[REFUSED],
)

hybrid_asserts = edit(
    HYBRID,
    """You checked the size with assert. Asserts are for your own mistakes, and python -O leaves them out: raise a
    ValueError that names size.""",
    (CHECK, '    assert size > 0 and world_size % size == 0, "size"\n'),
    breaks=tests_of(HYBRID),
    fails=[REFUSED],
)

hybrid_refuses_too_late = edit(
    HYBRID,
    """You made groups before you looked at the size. Refuse it first: a group stays once it is made.""",
    (CHECK, "    dist.new_group(list(range(world_size)))\n" + CHECK),
    breaks=tests_of(HYBRID),
    fails=[REFUSED],
)
