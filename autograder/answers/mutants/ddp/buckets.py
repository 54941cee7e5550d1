"""Wrong answers to lesson 05, exercises 1 to 3."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

BROADCAST, BUCKETS, AVERAGE = "05-ex1-broadcast-parameters", "05-ex2-make-buckets", "05-ex3-start-finish"
REDUCER, DDP = "05-ex4-reducer", "05-ex5-ddp"


# ---- 1 · broadcast_parameters ----


@right(BROADCAST)
def _broadcast():
    """Right: the base of the edits below."""

    def broadcast_parameters(module: nn.Module, src: int = 0) -> None:
        world_size = dist.get_world_size()
        if not 0 <= src < world_size:
            raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor = tensor.detach()
            flat = tensor.contiguous().view(-1)
            dist.broadcast(flat.view(torch.uint8), src)
            tensor.copy_(flat.view(tensor.shape))


broadcast_what_state_dict_holds = edit(
    BROADCAST,
    """You took the tensors from state_dict(). It leaves out buffers that were registered with persistent=False, and the
    module computes with those, too. Go through parameters() and buffers().""",
    ("for tensor in [*module.parameters(), *module.buffers()]:", "for tensor in module.state_dict().values():"),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)


@mutant(BROADCAST, breaks=tests_of(BROADCAST))
def broadcast_takes_strided_memory_for_contiguous():
    """You passed each tensor to dist.broadcast as it is. It copies memory from the first element on, whatever the
    strides: a strided parameter gets wrong numbers, and its neighbors in memory are overwritten. Broadcast a contiguous
    copy and copy it back."""

    def broadcast_parameters(module, src=0):
        world_size = dist.get_world_size()
        if not 0 <= src < world_size:
            raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")
        for tensor in [*module.parameters(), *module.buffers()]:
            data = tensor.detach()
            if data.dtype == torch.int16:
                wide = data.int()
                dist.broadcast(wide, src)
                data.copy_(wide)
            else:
                dist.broadcast(data, src)


broadcast_forgets_to_copy_back = edit(
    BROADCAST,
    """For a tensor that is not contiguous, contiguous() made a copy. You broadcast into that copy and left the
    parameter as it was: copy the result back into the tensor.""",
    ("        tensor.copy_(flat.view(tensor.shape))\n", ""),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)


@mutant(BROADCAST, breaks=tests_of(BROADCAST))
def broadcast_through_float32():
    """You sent everything as float32. Large integers and float64 numbers lose digits on the way, so the ranks start
    with numbers that only nearly equal rank src's. Send the bytes as they are."""

    def broadcast_parameters(module, src=0):
        world_size = dist.get_world_size()
        if not 0 <= src < world_size:
            raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")
        for tensor in [*module.parameters(), *module.buffers()]:
            data = tensor.detach().float().contiguous()
            dist.broadcast(data, src)
            tensor.detach().copy_(data)


broadcast_each_tensor_as_it_is = edit(
    BROADCAST,
    """gloo's broadcast has no int16, so a buffer of that dtype raised "Invalid scalar type". A broadcast does not
    calculate: every tensor can travel as bytes.""",
    ("().float().contiguous()", "().contiguous()"),
    base=broadcast_through_float32,
    breaks=tests_of(BROADCAST),
)

broadcast_replaces_the_data = edit(
    BROADCAST,
    """You gave the parameters new memory (p.data = …) instead of writing into the memory that they have. A view of it,
    such as a flat copy of all parameters, still shows the old numbers. Use copy_().""",
    ("tensor = tensor.detach()\n        flat = tensor.contiguous()", "flat = tensor.detach().contiguous()"),
    ("tensor.copy_(flat.view(tensor.shape))", "tensor.data = flat.view(tensor.shape).clone()"),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)

broadcast_without_buffers = edit(
    BROADCAST,
    """The parameters are the same on all ranks now, but each rank kept its own buffers. A buffer, such as a running
    mean, is part of what the model computes: broadcast module.buffers(), too.""",
    ("for tensor in [*module.parameters(), *module.buffers()]:", "for tensor in module.parameters():"),
    base=_broadcast,
    breaks=tests_of(BROADCAST, DDP),
)

broadcast_only_what_is_trained = edit(
    BROADCAST,
    """You left out the parameters with requires_grad=False. A frozen layer is not trained, but the model computes with
    it: it must start with the same numbers on every rank.""",
    ("module.parameters()", "(p for p in module.parameters() if p.requires_grad)"),
    base=_broadcast,
    breaks=tests_of(BROADCAST, DDP),
)

broadcast_always_from_rank_0 = edit(
    BROADCAST,
    """All ranks got rank 0's numbers, whatever `src` is. Pass `src` on to the broadcast.""",
    ("dist.broadcast(flat.view(torch.uint8), src)", "dist.broadcast(flat.view(torch.uint8), 0)"),
    base=_broadcast,
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
    base=_broadcast,
    breaks=tests_of(BROADCAST),
    fails=["broadcast_parameters_refuses_a_source_that_is_no_rank"],
)


# ---- 2 · make_buckets ----


buckets_close_at_an_exact_fit = edit(
    BUCKETS,
    """You closed a bucket before a parameter that fills it exactly. That parameter still fits: the bucket closes only
    before one that would take it over bucket_bytes. Compare with > instead of >=.""",
    ("p.nbytes > bucket_bytes", "p.nbytes >= bucket_bytes"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_close_after_overflowing = edit(
    BUCKETS,
    """You closed a bucket after the parameter that took it over the limit. Close it before: that parameter opens the
    next bucket.""",
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
    """One of your buckets holds two dtypes. A bucket becomes one flat tensor, which has one dtype: close it before a
    parameter of another dtype.""",
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
    """Of a parameter that occurs twice you kept the last occurrence. The first one counts, as in module.parameters():
    remove repetitions before you reverse the order.""",
    ("in params if", "in reversed(list(params)) if"),
    ("for p in reversed(trainable.values()):", "for p in trainable.values():"),
    breaks=tests_of(BUCKETS),
)

buckets_hold_frozen_parameters = edit(
    BUCKETS,
    """Your buckets hold parameters with requires_grad=False. They never get a gradient, so their bucket would never be
    complete.""",
    ("    trainable = {id(p): p for p in params if p.requires_grad}\n", "    trainable = {id(p): p for p in params}\n"),
    breaks=tests_of(BUCKETS, DDP),
)

buckets_may_be_empty = edit(
    BUCKETS,
    """Before a parameter that is larger than bucket_bytes you closed a bucket that was still empty. Close a bucket only
    if there is something in it.""",
    ("    buckets, filled = [], 0\n", "    buckets, filled = [[]], 0\n"),
    (
        "        if not buckets or p.dtype != buckets[-1][0].dtype or filled + p.nbytes > bucket_bytes:\n",
        "        if filled + p.nbytes > bucket_bytes or (buckets[-1] and p.dtype != buckets[-1][0].dtype):\n",
    ),
    ("    return buckets\n", "    return buckets if trainable else []\n"),
    breaks=tests_of(BUCKETS, DDP),
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


# ---- 3 · start_bucket and finish_bucket ----


average_replaces_the_gradient = edit(
    AVERAGE,
    """You put a new tensor in the place of an existing gradient. Code that holds the old tensor goes on seeing this
    rank's own numbers: write the mean into it with copy_().""",
    (
        "        if p.grad is None:\n"
        "            p.grad = torch.empty_like(p)\n"
        "        p.grad.copy_(mean.view(p.shape))\n",
        "        p.grad = mean.view(p.shape).clone()\n",
    ),
    breaks=tests_of(AVERAGE),
)

average_without_waiting = edit(
    AVERAGE,
    """You wrote the gradients back without work.wait(). The numbers may be right when the network is fast, and a
    mixture of old and new when it is not: read nothing from the flat tensor before the wait has returned.""",
    ("    work.wait()\n", ""),
    breaks=tests_of(AVERAGE, REDUCER, DDP),
)

average_waits_at_the_start = edit(
    AVERAGE,
    """Your start_bucket waited until the all-reduce was over. Backward then stands still while the bucket travels, and
    no time is saved. Start it with async_op=True, and leave the wait to finish_bucket.""",
    (
        "    return flat, dist.all_reduce(flat, async_op=True)\n",
        "    work = dist.all_reduce(flat, async_op=True)\n    work.wait()\n    return flat, work\n",
    ),
    breaks=tests_of(AVERAGE, REDUCER, DDP),
)

average_in_the_gradients_own_memory = edit(
    AVERAGE,
    """With a single gradient in the bucket, your flat tensor was a view of it. The all-reduce then changes the gradient
    while backward and hooks may still read it: flat needs memory of its own, as torch.cat gives it.""",
    ("flat = torch.cat", "flat = grads[0].view(-1) if len(grads) == 1 else torch.cat"),
    breaks=tests_of(AVERAGE),
)

average_divides_twice = edit(
    AVERAGE,
    """You divided by the number of ranks twice: once before the all-reduce and once after it. Keep one of the two
    divisions.""",
    (
        "    flat = torch.cat([grad.reshape(-1) for grad in grads])\n",
        "    flat = torch.cat([grad.reshape(-1) for grad in grads])\n    flat /= dist.get_world_size()\n",
    ),
    breaks=tests_of(AVERAGE, REDUCER, DDP),
)

average_is_a_sum = edit(
    AVERAGE,
    """You left the sum over the ranks in place. The gradient of the whole batch's mean loss is the mean of the ranks'
    gradients: divide by the number of ranks.""",
    ("    flat /= dist.get_world_size()\n", ""),
    breaks=tests_of(AVERAGE, REDUCER, DDP),
)


@mutant(AVERAGE, breaks=tests_of(AVERAGE, DDP))
def average_leaves_out_missing_gradients():
    """You left a gradient that is None out of the flat tensor. The ranks then bring tensors of different lengths, and
    the pieces after the gap belong to other parameters. Count it as zeros of its parameter's shape."""

    def start_bucket(bucket):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket if p.grad is not None] or [torch.zeros(0)])
        return flat, dist.all_reduce(flat, async_op=True)

    def finish_bucket(bucket, flat, work):
        work.wait()
        flat /= dist.get_world_size()
        there = [p for p in bucket if p.grad is not None]
        for p, mean in zip(there, flat.split([p.numel() for p in there])):
            p.grad.copy_(mean.view(p.shape))


average_leaves_missing_gradients_none = edit(
    AVERAGE,
    """Where this rank had no gradient you wrote none. Other ranks may have had one, so there is a mean, and a rank that
    skips the update drifts away from the others: make the gradient.""",
    (
        "        if p.grad is None:\n"
        "            p.grad = torch.empty_like(p)\n"
        "        p.grad.copy_(mean.view(p.shape))\n",
        "        if p.grad is not None:\n            p.grad.copy_(mean.view(p.shape))\n",
    ),
    breaks=tests_of(AVERAGE, DDP),
)


@mutant(AVERAGE, breaks=tests_of(AVERAGE, REDUCER, DDP))
def average_sends_each_gradient_by_itself():
    """You started one all-reduce for each gradient. A bucket is there to avoid just that: copy its gradients into one
    flat tensor and all-reduce that."""

    def start_bucket(bucket):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flats = [grad.reshape(-1).clone() for grad in grads]
        works = [dist.all_reduce(flat, async_op=True) for flat in flats]
        return torch.cat(flats), (flats, works)

    def finish_bucket(bucket, flat, handles):
        for p, mean, work in zip(bucket, *handles):
            work.wait()
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(mean.view(p.shape) / dist.get_world_size())


average_in_float32 = edit(
    AVERAGE,
    """You made the flat tensor float32, whatever the gradients are, and float64 gradients lose half of their digits.
    Keep the bucket's dtype.""",
    ("(-1) for grad", "(-1).float() for grad"),
    breaks=tests_of(AVERAGE, REDUCER, DDP),
)
