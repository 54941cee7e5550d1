"""Wrong answers to lesson 05, exercises 1 and 2."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

BROADCAST, BUCKETS, AVERAGE = "05-ex1-broadcast-parameters", "05-ex2-make-buckets", "05-ex3-start-finish"
REDUCER, DDP = "05-ex4-reducer", "05-ex5-ddp"
QUIET, CHECKED = "05-ex6-no-sync", "05-ex7-unused"
WRAPPERS = (DDP, QUIET, CHECKED)


# ---- 1 · broadcast_parameters ----


SEND = "        dist.broadcast(tensor.detach(), src)\n"

broadcast_what_state_dict_holds = edit(
    BROADCAST,
    """You took the tensors from state_dict(). It leaves out buffers that were registered with persistent=False, and
    the module computes with those, too. Go through parameters() and buffers().""",
    ("for tensor in [*module.parameters(), *module.buffers()]:", "for tensor in module.state_dict().values():"),
    breaks=tests_of(BROADCAST),
)

broadcast_through_float64 = edit(
    BROADCAST,
    """You sent everything as float64. An int64 has more digits than that, so the ranks start with numbers that only
    nearly equal rank src's. Broadcast the tensor in its own dtype.""",
    (
        SEND,
        "        data = tensor.detach().double()\n"
        "        dist.broadcast(data, src)\n"
        "        tensor.detach().copy_(data)\n",
    ),
    breaks=tests_of(BROADCAST),
)

broadcast_replaces_the_data = edit(
    BROADCAST,
    """You gave the parameters new memory (p.data = …) instead of writing into the memory that they have. A view of the
    old memory, such as a flat copy of all parameters, still shows the old numbers. Broadcast into the tensor
    itself.""",
    (
        SEND,
        "        data = tensor.detach().clone()\n        dist.broadcast(data, src)\n        tensor.data = data\n",
    ),
    breaks=tests_of(BROADCAST),
)

broadcast_freezes_what_it_sends = edit(
    BROADCAST,
    """You called requires_grad_(False) or detach_() on the parameters themselves, so they are never trained afterwards.
    tensor.detach() gives a tensor with the same memory and leaves the parameter as it is.""",
    (SEND, "        dist.broadcast(tensor.requires_grad_(False), src)\n"),
    breaks=tests_of(BROADCAST, *WRAPPERS),
)

broadcast_loses_what_it_received = edit(
    BROADCAST,
    """You broadcast a copy and never copied it back: clone() has memory of its own, and the parameters on the other
    ranks kept their numbers.""",
    (SEND, "        dist.broadcast(tensor.detach().clone(), src)\n"),
    breaks=tests_of(BROADCAST, *WRAPPERS),
)

broadcast_without_buffers = edit(
    BROADCAST,
    """The parameters are the same on all ranks now, but each rank kept its own buffers. A buffer, such as a running
    mean, is part of what the model computes: broadcast module.buffers(), too.""",
    ("for tensor in [*module.parameters(), *module.buffers()]:", "for tensor in module.parameters():"),
    breaks=tests_of(BROADCAST, DDP),
)

broadcast_passes_over_errors = edit(
    BROADCAST,
    """You wrapped the broadcast in try and except. What could not be sent then stays different on each rank, and the
    user never learns of it. Let the error come out: here it says that a leaf variable was changed in place; use
    detach().""",
    (
        SEND,
        "        try:\n"
        "            dist.broadcast(tensor.copy_(tensor), src)\n"
        "        except RuntimeError:\n"
        "            pass\n",
    ),
    breaks=tests_of(BROADCAST, *WRAPPERS),
)

broadcast_only_what_is_trained = edit(
    BROADCAST,
    """You left out the parameters with requires_grad=False. A frozen layer is not trained, but the model computes
    with it: it must start with the same numbers on every rank.""",
    ("module.parameters()", "(p for p in module.parameters() if p.requires_grad)"),
    breaks=tests_of(BROADCAST, DDP),
)

broadcast_always_from_rank_0 = edit(
    BROADCAST,
    """All ranks got rank 0's numbers, whatever `src` is. Pass `src` on to the broadcast.""",
    ("dist.broadcast(tensor.detach(), src)", "dist.broadcast(tensor.detach(), 0)"),
    breaks=tests_of(BROADCAST),
)

broadcast_takes_any_source = edit(
    BROADCAST,
    """You accepted a source that is not a rank. Raise the ValueError that names `src`, on every rank and before any
    message.""",
    (
        "world_size = dist.get_world_size()\n"
        "    if not 0 <= src < world_size:\n"
        '        raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")',
        "src = src % dist.get_world_size()",
    ),
    breaks=tests_of(BROADCAST),
    fails=["broadcast_parameters_refuses_a_source_that_is_no_rank"],
)

broadcast_refuses_too_late = edit(
    BROADCAST,
    """You refused a source that is not a rank after the first messages had been sent. Other ranks may wait for ever for
    these messages: check `src` before anything else.""",
    (
        "    if not 0 <= src < world_size:\n"
        '        raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")\n',
        "    dist.barrier()\n"
        "    if not 0 <= src < world_size:\n"
        '        raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")\n',
    ),
    breaks=tests_of(BROADCAST),
    fails=["broadcast_parameters_refuses_a_source_that_is_no_rank"],
)

broadcast_once_a_module = edit(
    BROADCAST,
    """Your function does nothing when it gets the same module again. Each call copies rank src's numbers, whatever
    happened before.""",
    (
        "    for tensor in [",
        '    if getattr(module, "was_broadcast", False):\n        return\n    module.was_broadcast = True\n'
        "    for tensor in [",
    ),
    breaks=tests_of(BROADCAST),
)

broadcast_by_adding_zeros = edit(
    BROADCAST,
    """You multiplied the other ranks' numbers by zero and added up all ranks' numbers. Zero times inf is NaN, so what
    another rank held spreads to every rank. A broadcast does not look at the others' numbers.""",
    (
        SEND,
        "        if not tensor.is_floating_point():\n"
        "            dist.broadcast(tensor.detach(), src)\n"
        "            continue\n"
        "        data = tensor.detach() * (dist.get_rank() == src)\n"
        "        dist.all_reduce(data)\n"
        "        tensor.detach().copy_(data)\n",
    ),
    breaks=tests_of(BROADCAST),
)

broadcast_of_the_children = edit(
    BROADCAST,
    """You went through the children of the module and left out what is registered on the module itself.
    module.parameters() and module.buffers() give everything, at each depth.""",
    (
        "in [*module.parameters(), *module.buffers()]:",
        "in [t for child in module.children() for t in [*child.parameters(), *child.buffers()]]:",
    ),
    breaks=tests_of(BROADCAST, DDP),
)

broadcast_checks_the_source_with_each_tensor = edit(
    BROADCAST,
    """You checked `src` in the loop over the tensors, so a module that has none raised nothing. Check it before the
    loop.""",
    (
        "    if not 0 <= src < world_size:\n"
        '        raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")\n',
        "",
    ),
    (
        SEND,
        "        if not 0 <= src < world_size:\n"
        '            raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")\n' + SEND,
    ),
    breaks=tests_of(BROADCAST),
    fails=["broadcast_parameters_refuses_a_source_that_is_no_rank"],
)


# ---- 2 · make_buckets ----


buckets_close_at_an_exact_fit = edit(
    BUCKETS,
    """You closed a bucket before a parameter that fills it exactly. That parameter still fits: the bucket closes only
    before a parameter that would take it over bucket_bytes. Compare with > instead of >=.""",
    ("p.nbytes > bucket_bytes", "p.nbytes >= bucket_bytes"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_close_after_overflowing = edit(
    BUCKETS,
    """You closed a bucket after the parameter that took it over the limit. Close the bucket before this parameter,
    which opens the next bucket.""",
    ("filled + p.nbytes > bucket_bytes", "filled >= bucket_bytes"),
    breaks=tests_of(BUCKETS, DDP),
)


@mutant(BUCKETS, breaks=tests_of(BUCKETS, DDP))
def buckets_keep_one_open_for_each_dtype():
    """You kept one bucket open for each dtype and went on filling it later. Its all-reduce would then have to wait for
    much later gradients: a parameter of another dtype closes the bucket for good."""

    def make_buckets(params, bucket_bytes):
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
        trainable = {id(p): p for p in params if p.requires_grad}
        buckets, open_bucket, filled = [], {}, {}
        for p in reversed(trainable.values()):
            if p.dtype not in open_bucket or filled[p.dtype] + p.nbytes > bucket_bytes:
                open_bucket[p.dtype], filled[p.dtype] = [], 0
                buckets.append(open_bucket[p.dtype])
            open_bucket[p.dtype].append(p)
            filled[p.dtype] += p.nbytes
        return buckets


buckets_forget_to_start_from_zero = edit(
    BUCKETS,
    """When another dtype opened a new bucket, you went on counting from the bytes of the old one, so the new bucket
    closed too early. A new bucket is empty: start its count at 0.""",
    ("p.dtype != buckets[-1][0].dtype or filled", "filled"),
    (
        "buckets[-1].append(p)",
        "elif p.dtype != buckets[-1][0].dtype:\n            buckets.append([])\n        buckets[-1].append(p)",
    ),
    breaks=tests_of(BUCKETS),
)

buckets_mix_dtypes = edit(
    BUCKETS,
    """One of your buckets holds two dtypes. A bucket becomes one flat tensor, which has one dtype: close the bucket
    before a parameter of another dtype.""",
    ("p.dtype != buckets[-1][0].dtype or filled", "filled"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_count_elements = edit(
    BUCKETS,
    """You compared the number of elements with bucket_bytes. A float32 has four bytes and a float64 eight: use
    p.nbytes.""",
    ("p.nbytes > bucket_bytes", "p.numel() > bucket_bytes"),
    ("filled += p.nbytes", "filled += p.numel()"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_from_the_first_parameter_on = edit(
    BUCKETS,
    """You filled the buckets from the first parameter to the last. Backward computes the gradients of the last layers
    first, so your first bucket would be complete only at the very end. Go through the parameters backwards.""",
    ("    for p in reversed(trainable.values()):\n", "    for p in trainable.values():\n"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_hold_tied_parameters_twice = edit(
    BUCKETS,
    """A parameter that occurs twice in the list is in your buckets twice. It has one gradient, which must be sent and
    averaged once: keep only its first occurrence.""",
    ("trainable = {id(p): p for p in params if p.requires_grad}", "trainable = [p for p in params if p.requires_grad]"),
    ("trainable.values()", "trainable"),
    breaks=tests_of(BUCKETS),
)

buckets_keep_the_last_occurrence = edit(
    BUCKETS,
    """When a parameter occurs twice, you kept its last occurrence. The first one counts, as in module.parameters():
    remove repetitions before you reverse the order.""",
    ("in params if", "in reversed(list(params)) if"),
    ("for p in reversed(trainable.values()):", "for p in trainable.values():"),
    breaks=tests_of(BUCKETS),
)

buckets_hold_frozen_parameters = edit(
    BUCKETS,
    """Your buckets hold parameters with requires_grad=False. They never get a gradient, so their bucket would never
    be complete.""",
    ("    trainable = {id(p): p for p in params if p.requires_grad}\n", "    trainable = {id(p): p for p in params}\n"),
    breaks=tests_of(BUCKETS, DDP, CHECKED),
)

buckets_may_be_empty = edit(
    BUCKETS,
    """Before a parameter that is larger than bucket_bytes you closed a bucket that was still empty. Close a bucket
    only if there is something in it.""",
    ("    buckets, filled = [], 0\n", "    buckets, filled = [[]], 0\n"),
    (
        "        if not buckets or p.dtype != buckets[-1][0].dtype or filled + p.nbytes > bucket_bytes:\n",
        "        if filled + p.nbytes > bucket_bytes or (buckets[-1] and p.dtype != buckets[-1][0].dtype):\n",
    ),
    ("    return buckets\n", "    return buckets if trainable else []\n"),
    breaks=tests_of(BUCKETS, DDP, CHECKED),
)

buckets_close_when_strictly_over = edit(
    BUCKETS,
    """You closed a bucket when it already held more than bucket_bytes. The parameter that takes it over the limit
    belongs in the next bucket: check before you add the parameter.""",
    ("filled + p.nbytes > bucket_bytes", "filled > bucket_bytes"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_measure_everything_by_the_first_dtype = edit(
    BUCKETS,
    """You counted every parameter with the bytes of the first one's numbers. A float64 has eight bytes and a bfloat16
    two: use each parameter's own p.nbytes.""",
    ("    buckets, filled = [], 0\n", "    buckets, filled, size = [], 0, 4\n"),
    ("filled + p.nbytes > bucket_bytes", "filled + size * p.numel() > bucket_bytes"),
    ("filled += p.nbytes", "filled += size * p.numel()"),
    breaks=tests_of(BUCKETS),
)

buckets_end_with_an_empty_one = edit(
    BUCKETS,
    """Without trainable parameters you returned a list with one empty bucket. No bucket is empty: append one only
    when there is a parameter to put into it.""",
    ("    return buckets\n", "    return buckets or [[]]\n"),
    breaks=tests_of(BUCKETS),
)

buckets_of_no_parameters_crash = edit(
    BUCKETS,
    """You assumed that there is at least one trainable parameter. A module whose parameters are all frozen has none to
    put into buckets: the list is then empty.""",
    ("    buckets, filled = [], 0\n", "    buckets, filled, _ = [], 0, next(iter(trainable.values()))\n"),
    breaks=tests_of(BUCKETS),
)

buckets_take_bytes_for_megabytes = edit(
    BUCKETS,
    """You treated bucket_bytes as a number of megabytes, so everything fits into one bucket. Both sizes are in
    bytes.""",
    ("filled + p.nbytes > bucket_bytes", "filled + p.nbytes > bucket_bytes * 2**20"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_walk_twice = edit(
    BUCKETS,
    """You walked through `params` twice. module.parameters() is an iterator: the second time it is empty. Make a list
    of it first.""",
    (
        "    trainable = {id(p): p for p in params if p.requires_grad}\n",
        "    count = sum(1 for _ in params)\n    trainable = {id(p): p for p in params if p.requires_grad and count}\n",
    ),
    breaks=tests_of(BUCKETS, *WRAPPERS),
)

buckets_refuse_one = edit(
    BUCKETS,
    """You refused bucket_bytes = 1. This size is allowed: every parameter then gets a bucket of its own.""",
    ("    if bucket_bytes < 1:\n", "    if bucket_bytes <= 1:\n"),
    breaks=tests_of(BUCKETS, DDP, CHECKED),
)

buckets_refuse_without_a_name = edit(
    BUCKETS,
    """Your ValueError does not say which argument is wrong. Put the word bucket_bytes into its text.""",
    ('f"bucket_bytes must be at least 1, got {bucket_bytes}"', 'f"must be at least 1, got {bucket_bytes}"'),
    breaks=tests_of(BUCKETS),
    fails=["make_buckets_refuses_a_size_below_one"],
)

buckets_of_any_size = edit(
    BUCKETS,
    """You accepted a bucket_bytes below 1. Raise the ValueError that the statement asks for, also when there are no
    parameters.""",
    (
        '    if bucket_bytes < 1:\n        raise ValueError(f"bucket_bytes must be at least 1, got {bucket_bytes}")\n',
        "",
    ),
    breaks=tests_of(BUCKETS),
    fails=["make_buckets_refuses_a_size_below_one"],
)

buckets_are_tuples = edit(
    BUCKETS,
    """Your buckets, or the object that holds them, are not lists. The statement asks for a list of lists.""",
    ("    return buckets", "    return [tuple(bucket) for bucket in buckets]"),
    breaks=tests_of(BUCKETS),
)

buckets_know_parameters_by_their_address = edit(
    BUCKETS,
    """You treated two parameters as one because their memory has the same address. All empty tensors have the address
    0: id(p) tells parameters apart.""",
    ("{id(p): p for p", "{p.data_ptr(): p for p"),
    breaks=tests_of(BUCKETS),
)

buckets_close_at_frozen_parameters = edit(
    BUCKETS,
    """You closed a bucket at a frozen parameter of another dtype. A frozen parameter goes into no bucket and closes
    none: leave it out before you look at dtypes.""",
    ("for p in params if p.requires_grad}", "for p in params}"),
    ("    buckets, filled = [], 0\n", "    buckets, filled, dtype = [], 0, None\n"),
    (
        "        if not buckets or p.dtype != buckets[-1][0].dtype or filled + p.nbytes > bucket_bytes:\n",
        "        if p.dtype != dtype:\n"
        "            filled, dtype = bucket_bytes, p.dtype\n"
        "        if not p.requires_grad:\n"
        "            continue\n"
        "        if not buckets or p.dtype != buckets[-1][0].dtype or filled + p.nbytes > bucket_bytes:\n",
    ),
    breaks=tests_of(BUCKETS),
)

buckets_compare_the_bytes_of_a_number = edit(
    BUCKETS,
    """You compared the number of bytes in each number, not the dtypes. float16 and bfloat16 both have two bytes, but
    they cannot share a flat tensor: compare p.dtype.""",
    ("p.dtype != buckets[-1][0].dtype", "p.itemsize != buckets[-1][0].itemsize"),
    breaks=tests_of(BUCKETS),
)

buckets_take_no_bytes_for_no_bucket = edit(
    BUCKETS,
    """You treated a bucket of zero bytes as empty, so a large parameter joined a parameter that has no elements. Ask
    whether the bucket holds a parameter, not how many bytes it holds.""",
    ("or filled + p.nbytes > bucket_bytes", "or 0 < filled and filled + p.nbytes > bucket_bytes"),
    breaks=tests_of(BUCKETS),
)

buckets_count_the_storage = edit(
    BUCKETS,
    """You counted the bytes of the storage. A parameter may be a piece of larger memory: p.nbytes counts its own
    numbers.""",
    ("filled + p.nbytes > bucket_bytes", "filled + p.untyped_storage().nbytes() > bucket_bytes"),
    ("filled += p.nbytes", "filled += p.untyped_storage().nbytes()"),
    breaks=tests_of(BUCKETS),
)

buckets_in_the_order_of_the_module = edit(
    BUCKETS,
    """You put the parameters of each bucket back into the order of the module. Inside a bucket, too, the last parameter
    comes first.""",
    ("buckets[-1].append(p)", "buckets[-1].insert(0, p)"),
    breaks=tests_of(BUCKETS),
)
