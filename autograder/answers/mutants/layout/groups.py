"""Wrong answers to lesson 15, exercises 1 to 3."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

GROUPS, MAKE, LEVELS = "15-ex1-rank-groups", "15-ex2-make-groups", "15-ex3-two-levels"
FINISH = "15-ex5-finish"

# ---- 1 · rank_groups and crosses_nodes ----

last_name_fastest = edit(
    GROUPS,
    """You let the last name change fastest, as PyTorch's DeviceMesh does. Here the first name changes fastest: rank 1
    differs from rank 0 in the first name.""",
    (
        "        for name, size in sizes.items():\n            rest, coordinate",
        "        for name, size in reversed(sizes.items()):\n            rest, coordinate",
    ),
    breaks=tests_of(GROUPS, MAKE, FINISH),
)

only_the_first_of_several_names = edit(
    GROUPS,
    """When there are several names, you use only the first. Ranks of a group may differ in all of the names.""",
    (
        "names = (names,) if isinstance(names, str) else tuple(names)",
        "names = (names,) if isinstance(names, str) else tuple(names)[:1]",
    ),
    breaks=tests_of(GROUPS, MAKE),
)

a_name_is_taken_for_its_letters = edit(
    GROUPS,
    """tuple("tp") is ("t", "p"): you took a single name apart into its letters. Ask whether names is a str.""",
    ("names = (names,) if isinstance(names, str) else tuple(names)", "names = tuple(names)"),
    breaks=tests_of(GROUPS, MAKE, LEVELS, FINISH),
)

groups_are_those_of_the_other_names = edit(
    GROUPS,
    """Your groups hold ranks with the same coordinates in `names`. It is the other way round: ranks of a group differ
    in `names`, and have all other coordinates in common.""",
    ("if name not in names:", "if name in names:"),
    breaks=tests_of(GROUPS, MAKE, FINISH),
)

groups_descend = edit(
    GROUPS,
    """The ranks of your groups are in descending order. The statement asks for ascending lists.""",
    ("return list(groups.values())", "return [group[::-1] for group in groups.values()]"),
    breaks=tests_of(GROUPS),
)

blocks_of_neighbors = edit(
    GROUPS,
    """You cut the ranks into blocks of neighbors, each as long as a group. Only the first name's groups consist of
    neighbors. In the groups of a later name, ranks are as far apart as the product of the sizes before it.""",
    (
        "    return list(groups.values())",
        "    length = math.prod(sizes[name] for name in names)\n"
        "    everybody = list(range(math.prod(sizes.values())))\n"
        "    return [everybody[i : i + length] for i in range(0, len(everybody), length)]",
    ),
    breaks=tests_of(GROUPS, MAKE, LEVELS, FINISH),
)

unknown_names_make_groups_of_one = edit(
    GROUPS,
    """A name that does not exist gave groups of one rank each, so a misspelled axis would silently average nothing.
    Raise a ValueError that contains the name.""",
    (
        "    for name in names:\n        if name not in sizes:\n"
        '            raise ValueError(f"{name!r} is none of {list(sizes)}")\n',
        "",
    ),
    breaks=tests_of(GROUPS),
    fails=["unknown_names_and_empty_axes_are_refused"],
)

sizes_below_one_pass = edit(
    GROUPS,
    """A size of 0 gave no groups at all. Raise a ValueError that contains the name of the size.""",
    (
        "    for name, size in sizes.items():\n        if size < 1:\n"
        '            raise ValueError(f"the size of {name} must be at least 1, got {size}")\n',
        "",
    ),
    breaks=tests_of(GROUPS),
    fails=["unknown_names_and_empty_axes_are_refused"],
)

names_are_searched_as_text = edit(
    GROUPS,
    """You ask whether a name is in the text `names`. But "tp" is in "etp", too: put a single name into a tuple
    first.""",
    (
        "    names = (names,) if isinstance(names, str) else tuple(names)\n    for name in names:\n",
        "    for name in (names,) if isinstance(names, str) else names:\n",
    ),
    breaks=tests_of(GROUPS),
)

the_first_name_alone_is_checked = edit(
    GROUPS,
    """You check only the first of several names. Any of them may be misspelled: check them all.""",
    (
        "    for name in names:\n        if name not in sizes:\n",
        "    for name in names[:1]:\n        if name not in sizes:\n",
    ),
    breaks=tests_of(GROUPS),
    fails=["unknown_names_and_empty_axes_are_refused"],
)

only_the_first_group_is_looked_at = edit(
    GROUPS,
    """Your answer is right only for the first group, which begins where a node begins. A later group may begin anywhere
    in a node and reach into the next node: ask for the node of each rank of each group.""",
    ("for group in rank_groups(sizes, names))", "for group in rank_groups(sizes, names)[:1])"),
    breaks=tests_of(GROUPS),
    fails=["groups_of_two_nodes_are_found"],
)

only_the_first_two_ranks_are_looked_at = edit(
    GROUPS,
    """You compare the nodes of only the first two ranks of a group. A later rank may be on another node.""",
    ("for rank in group}", "for rank in group[:2]}"),
    breaks=tests_of(GROUPS),
    fails=["groups_of_two_nodes_are_found"],
)

nodes_begin_at_rank_one = edit(
    GROUPS,
    """You count the ranks from 1, so the last rank of each node counts as part of the next node. Ranks begin at 0: node
    0 has the ranks from 0 to per_node - 1.""",
    ("rank // per_node", "(rank + 1) // per_node"),
    breaks=tests_of(GROUPS),
    fails=["groups_of_two_nodes_are_found"],
)

large_groups_cross_nodes = edit(
    GROUPS,
    """You compare the size of a group with the size of a node. Two ranks that are far apart make a small group, but
    they are on two nodes.""",
    ("len({rank // per_node for rank in group}) > 1", "len(group) > per_node"),
    breaks=tests_of(GROUPS),
    fails=["groups_of_two_nodes_are_found"],
)

places_in_the_node = edit(
    GROUPS,
    """rank % per_node is the place of a rank within its node. The number of the node is rank // per_node.""",
    ("rank // per_node", "rank % per_node"),
    breaks=tests_of(GROUPS),
    fails=["groups_of_two_nodes_are_found"],
)

# ---- 2 · make_groups ----

tuples_are_kept_under_their_first_name = edit(
    MAKE,
    """You store the group of several names under the first of these names. The keys of the dict are the entries of
    `axes`.""",
    ("groups[axis] = group", "groups[axis if isinstance(axis, str) else axis[0]] = group"),
    breaks=tests_of(MAKE),
)

the_last_group_is_kept = edit(
    MAKE,
    """You keep the last group of each axis, whether or not this rank is in it. Keep the group whose members include
    this rank.""",
    (
        "            if dist.get_rank() in members:\n                groups[axis] = group",
        "            groups[axis] = group",
    ),
    breaks=tests_of(MAKE, LEVELS, FINISH),
)

axes_of_one_are_left_out = edit(
    MAKE,
    """You leave out an axis of size 1. Its group contains only this rank, but callers look it up, too.""",
    (
        "            group = dist.new_group",
        "            if len(members) == 1:\n                continue\n            group = dist.new_group",
    ),
    breaks=tests_of(MAKE),
)

axes_of_one_are_none = edit(
    MAKE,
    """You give None for an axis of size 1. To a collective, None means all ranks: make a group that contains only this
    rank.""",
    ("group = dist.new_group(members)  #", "group = dist.new_group(members) if len(members) > 1 else None  #"),
    breaks=tests_of(MAKE),
)

lists_of_members_instead_of_groups = edit(
    MAKE,
    """You return the members of the groups. A collective needs the process group that new_group makes of them.""",
    ("groups[axis] = group", "groups[axis] = members"),
    breaks=tests_of(MAKE, LEVELS, FINISH),
)

a_mesh_may_have_any_size = edit(
    MAKE,
    """You did not compare the product of the sizes with the number of ranks. A smaller mesh leaves ranks without a
    group, and these ranks fail or wait later.""",
    (
        "    if math.prod(sizes.values()) != dist.get_world_size():\n"
        '        raise ValueError(f"sizes {sizes} do not make up the {dist.get_world_size()} ranks")\n',
        "",
    ),
    breaks=tests_of(MAKE),
    fails=["a_mesh_must_fill_the_world"],
)

only_the_axes_fill_the_world = edit(
    MAKE,
    """You multiply only the sizes of the axes that were asked for. A mesh may have names that no entry of axes uses,
    and their sizes count all the same: multiply all sizes.""",
    (
        "    if math.prod(sizes.values()) != dist",
        "    used = {name for axis in axes for name in ((axis,) if isinstance(axis, str) else axis)}\n"
        "    if math.prod(sizes[name] for name in used) != dist",
    ),
    breaks=tests_of(MAKE),
    fails=["a_mesh_must_fill_the_world"],
)

a_mesh_may_be_smaller = edit(
    MAKE,
    """You refuse a mesh that is too large, but accept one that is too small. Ranks that are in no group would wait, or
    fail later: the product must equal the number of ranks.""",
    ("if math.prod(sizes.values()) != dist", "if math.prod(sizes.values()) > dist"),
    breaks=tests_of(MAKE),
    fails=["a_mesh_must_fill_the_world"],
)

# ---- 3 · two_level_all_reduce ----

the_copy_is_not_written_back = edit(
    LEVELS,
    """reshape(-1) of a tensor that is not contiguous makes a copy, and you wrote the sum into that copy. Copy the sum
    into the tensor, in the tensor's own shape.""",
    ("tensor.copy_(padded[:n].view(tensor.shape))", "tensor.reshape(-1).copy_(padded[:n])"),
    breaks=tests_of(LEVELS),
)

sums_in_float32 = edit(
    LEVELS,
    """Your buffers have torch's default dtype, not the tensor's. Large integers lose digits in float32 and float64, and
    float64 numbers lose digits in float32: use the tensor's dtype.""",
    ("torch.zeros(size * length, dtype=tensor.dtype)", "torch.zeros(size * length)"),
    ("torch.empty(length, dtype=tensor.dtype)", "torch.empty(length)"),
    breaks=tests_of(LEVELS),
)

lengths_must_divide = edit(
    LEVELS,
    """Your parts have n // g numbers, so if g does not divide the length, the remaining numbers are in no part. Round
    up, and fill up with zeros.""",
    ("length = -(-n // size)", "length = n // size"),
    breaks=tests_of(LEVELS),
)

nodes_keep_their_own_sums = edit(
    LEVELS,
    """The second step is missing: every node ends with its own sum. All-reduce the part over outer.""",
    ("    dist.all_reduce(part, group=outer)\n", ""),
    breaks=tests_of(LEVELS),
)

the_mean_of_all_ranks = edit(
    LEVELS,
    """You divided by the number of all ranks. The statement asks for the sum.""",
    ("tensor.copy_(padded[:n].view", "tensor.copy_((padded[:n] / dist.get_world_size()).view"),
    breaks=tests_of(LEVELS),
)

the_result_is_returned = edit(
    LEVELS,
    """You return the sum in a new tensor. The sum should be in the caller's tensor.""",
    ("tensor.copy_(padded[:n].view(tensor.shape))", "return padded[:n].view(tensor.shape)"),
    breaks=tests_of(LEVELS),
)

the_tensor_gets_other_memory = edit(
    LEVELS,
    """You give the tensor new memory. Other views of it, a bucket for example, keep the old numbers: copy into it.""",
    ("tensor.copy_(padded[:n].view(tensor.shape))", "tensor.data = padded[:n].view(tensor.shape)"),
    breaks=tests_of(LEVELS),
)

ranks_meet_between_the_levels = edit(
    LEVELS,
    """You call a barrier between the steps. Each collective waits for its own group already: leave the barrier out.""",
    ("    dist.all_reduce(part", "    dist.barrier()\n    dist.all_reduce(part"),
    breaks=tests_of(LEVELS),
    fails=["only_a_part_crosses_nodes"],
)

large_nodes_meet = edit(
    LEVELS,
    """In nodes of more than three ranks you call a barrier at the end. The all-gather has already waited for these
    ranks: leave the barrier out.""",
    ("    tensor.copy_", "    if size > 3:\n        dist.barrier(group=inner)\n    tensor.copy_"),
    breaks=tests_of(LEVELS),
    fails=["only_a_part_crosses_nodes"],
)

short_vectors_are_padded_too_far = edit(
    LEVELS,
    """When there are fewer numbers than ranks in a node, your parts are as long as the whole tensor. ⌈n/g⌉ is 1 in this
    case.""",
    ("length = -(-n // size)", "length = -(-n // size) if n >= size else n"),
    breaks=tests_of(LEVELS),
    fails=["only_a_part_crosses_nodes"],
)

whole_vectors_on_both_levels = edit(
    LEVELS,
    """Your numbers are right, but every rank of a node sends a whole vector across the network: g times as many bytes
    as needed. Reduce-scatter inside the node first, so that each rank sends a part.""",
    (
        "    dist.reduce_scatter_single(part, padded, group=inner)\n"
        "    dist.all_reduce(part, group=outer)\n"
        "    dist.all_gather_single(padded, part, group=inner)\n",
        "    dist.all_reduce(padded, group=inner)\n    dist.all_reduce(padded, group=outer)\n",
    ),
    breaks=tests_of(LEVELS),
    fails=["only_a_part_crosses_nodes"],
)

one_level_over_all_ranks = edit(
    LEVELS,
    """You called one all-reduce over all ranks. The sum is right, but the exercise is to build it from three
    collectives over inner and outer.""",
    (
        "    dist.reduce_scatter_single(part, padded, group=inner)\n"
        "    dist.all_reduce(part, group=outer)\n"
        "    dist.all_gather_single(padded, part, group=inner)\n",
        "    dist.all_reduce(padded)\n",
    ),
    breaks=tests_of(LEVELS),
    fails=["only_a_part_crosses_nodes"],
)

leaders_of_nodes = edit(
    LEVELS,
    """One rank of each node gets the node's sum, talks to the other nodes, and distributes the result. The sum is
    right, but the other ranks' ports stay idle while the leader sends everything. Give each rank a part.""",
    (
        "    dist.reduce_scatter_single(part, padded, group=inner)\n"
        "    dist.all_reduce(part, group=outer)\n"
        "    dist.all_gather_single(padded, part, group=inner)\n",
        "    leader = dist.get_process_group_ranks(inner)[0]\n"
        "    dist.reduce(padded, dst=leader, group=inner)\n"
        "    if dist.get_rank() == leader:\n"
        "        dist.all_reduce(padded, group=outer)\n"
        "    dist.broadcast(padded, src=leader, group=inner)\n",
    ),
    breaks=tests_of(LEVELS),
    fails=["only_a_part_crosses_nodes"],
)

inner_and_outer_are_exchanged = edit(
    LEVELS,
    """You reduce-scatter over outer and all-reduce over inner. The sum is right, but now the long vectors cross the
    network, and the short ones stay inside.""",
    ("    size, n = ", "    inner, outer = outer, inner\n    size, n = "),
    breaks=tests_of(LEVELS),
    fails=["only_a_part_crosses_nodes"],
)
