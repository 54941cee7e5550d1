"""Wrong answers to lesson 05, exercise 3."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

BROADCAST, BUCKETS, AVERAGE = "05-ex1-broadcast-parameters", "05-ex2-make-buckets", "05-ex3-start-finish"
REDUCER, DDP = "05-ex4-reducer", "05-ex5-ddp"
QUIET, CHECKED = "05-ex6-no-sync", "05-ex7-unused"
WRAPPERS = (DDP, QUIET, CHECKED)


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
    breaks=tests_of(AVERAGE, REDUCER, *WRAPPERS),
)

average_waits_at_the_start = edit(
    AVERAGE,
    """Your start_bucket waited until the all-reduce was over. Backward then stands still while the bucket travels,
    and no time is saved. Start it with async_op=True, and leave the wait to finish_bucket.""",
    (
        "    return flat, dist.all_reduce(flat, async_op=True)\n",
        "    work = dist.all_reduce(flat, async_op=True)\n    work.wait()\n    return flat, work\n",
    ),
    breaks=tests_of(AVERAGE, REDUCER, DDP),
)

average_in_the_gradients_own_memory = edit(
    AVERAGE,
    """When the bucket has a single gradient, your flat tensor is a view of it. The all-reduce then changes the gradient
    while backward and hooks may still read it. flat needs memory of its own, which torch.cat provides.""",
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
    breaks=tests_of(AVERAGE, REDUCER, *WRAPPERS),
)

average_is_a_sum = edit(
    AVERAGE,
    """You left the sum over the ranks in place. The gradient of the whole batch's mean loss is the mean of the ranks'
    gradients: divide by the number of ranks.""",
    ("    flat /= dist.get_world_size()\n", ""),
    breaks=tests_of(AVERAGE, REDUCER, *WRAPPERS),
)


@mutant(AVERAGE, breaks=tests_of(AVERAGE, CHECKED), fails=["missing_gradients_count_as_zeros"])
def average_leaves_out_missing_gradients():
    """You left a gradient that is None out of the flat tensor. The ranks then bring tensors of different lengths, and
    the pieces after the gap belong to other parameters. Count the missing gradient as zeros of its parameter's
    shape."""

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
    """Where this rank had no gradient, you did not write one. Other ranks may have had one, so there is a mean, and a
    rank that skips the update drifts away from the others: make the gradient.""",
    (
        "        if p.grad is None:\n"
        "            p.grad = torch.empty_like(p)\n"
        "        p.grad.copy_(mean.view(p.shape))\n",
        "        if p.grad is not None:\n            p.grad.copy_(mean.view(p.shape))\n",
    ),
    breaks=tests_of(AVERAGE, CHECKED),
    fails=["missing_gradients_count_as_zeros"],
)


@mutant(AVERAGE, breaks=tests_of(AVERAGE, REDUCER, DDP))
def average_sends_each_gradient_by_itself():
    """You started one all-reduce for each gradient. A bucket is meant to avoid exactly that: copy its gradients into
    one flat tensor and all-reduce this tensor."""

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


average_crashes_without_a_gradient = edit(
    AVERAGE,
    """You took p.grad.reshape(-1) of a gradient that is None. A parameter may have no gradient on this rank while
    others have one: put zeros of its shape in its place.""",
    ("torch.zeros_like(p) if p.grad is None else p.grad for p in bucket", "p.grad for p in bucket"),
    breaks=tests_of(AVERAGE, CHECKED),
    fails=["missing_gradients_count_as_zeros"],
)

average_views_what_is_not_contiguous = edit(
    AVERAGE,
    """You called view(-1) on a gradient whose memory is not contiguous, such as that of a transposed matrix.
    reshape(-1) copies where it has to.""",
    ("torch.cat([grad.reshape(-1) for grad in grads])", "torch.cat([grad.view(-1) for grad in grads])"),
    breaks=tests_of(AVERAGE),
)

average_writes_zeros_before_the_sum = edit(
    AVERAGE,
    """Your start_bucket gave a parameter a gradient of zeros where it had none. start_bucket leaves gradients as they
    are: finish_bucket makes the missing ones, once there is a mean.""",
    (
        "    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]\n",
        "    for p in bucket:\n"
        "        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n"
        "    grads = [p.grad for p in bucket]\n",
    ),
    breaks=tests_of(AVERAGE),
    fails=["missing_gradients_count_as_zeros"],
)

average_makes_the_gradient_a_view_early = edit(
    AVERAGE,
    """Your start_bucket made each .grad a view of flat while the all-reduce was still on its way. The backend writes
    into flat in the background, and code that holds the old gradient never sees the mean: write the mean back in
    finish_bucket.""",
    (
        "    return flat, dist.all_reduce(flat, async_op=True)\n",
        "    for p, piece in zip(bucket, flat.split([p.numel() for p in bucket])):\n"
        "        p.grad = piece.view(p.shape) if p.grad is not None else None\n"
        "    return flat, dist.all_reduce(flat, async_op=True)\n",
    ),
    breaks=tests_of(AVERAGE),
)

average_skips_means_of_zero = edit(
    AVERAGE,
    """You made a missing gradient only where its mean was not zero. A mean of zero is a mean, too, and an optimizer
    with momentum moves a parameter whose gradient is zero: always make the gradient.""",
    (
        "        if p.grad is None:\n",
        "        if p.grad is None and not mean.any():\n            continue\n        if p.grad is None:\n",
    ),
    breaks=tests_of(AVERAGE, CHECKED),
    fails=["missing_gradients_count_as_zeros"],
)

average_over_two_ranks = edit(
    AVERAGE,
    """You divided by 2, whatever the number of ranks. dist.get_world_size() is the number of ranks.""",
    ("flat /= dist.get_world_size()", "flat /= 2"),
    breaks=tests_of(AVERAGE, REDUCER, *WRAPPERS),
)

average_of_nothing = edit(
    AVERAGE,
    """Where a gradient was missing, your start_bucket sent nothing and returned None for the work. The other ranks wait
    for this bucket: send zeros in place of the missing gradient.""",
    (
        "    grads = [",
        "    if any(p.grad is None for p in bucket):\n        return torch.zeros(0), None\n    grads = [",
    ),
    breaks=tests_of(AVERAGE, CHECKED),
    fails=["missing_gradients_count_as_zeros"],
)

average_blocks_from_the_start = edit(
    AVERAGE,
    """You called dist.all_reduce without async_op=True. It then returns None, and only when the sum has arrived. With
    async_op=True it returns at once, with a work object to wait for.""",
    (
        "    return flat, dist.all_reduce(flat, async_op=True)\n",
        "    dist.all_reduce(flat)\n    return flat, None\n",
    ),
    ("    work.wait()\n", ""),
    breaks=tests_of(AVERAGE, REDUCER, DDP),
)

average_in_float32 = edit(
    AVERAGE,
    """You made the flat tensor float32, whatever the gradients are, and float64 gradients lose half of their digits.
    Keep the bucket's dtype.""",
    ("(-1) for grad", "(-1).float() for grad"),
    breaks=tests_of(AVERAGE, REDUCER, *WRAPPERS),
)

average_fills_in_float32 = edit(
    AVERAGE,
    """You made the zeros for a missing gradient in torch's default dtype. In a bucket of float64 parameters, the flat
    tensor or the new gradient then has the wrong dtype: zeros_like(p) has the parameter's.""",
    ("torch.zeros_like(p) if p.grad is None", "torch.zeros(p.shape) if p.grad is None"),
    breaks=tests_of(AVERAGE, CHECKED),
    fails=["missing_gradients_count_as_zeros"],
)

average_uses_one_flat_tensor_again = edit(
    AVERAGE,
    """You kept a flat tensor and used it again for each bucket of its size. Two such buckets then overwrite each other
    on their way: make a new flat tensor each time.""",
    (
        "    flat = torch.cat([grad.reshape(-1) for grad in grads])\n",
        "    numbers = torch.cat([grad.reshape(-1) for grad in grads])\n"
        "    kept = vars(start_bucket).setdefault(f'{numbers.dtype} {numbers.numel()}', torch.empty_like(numbers))\n"
        "    flat = kept.copy_(numbers)\n",
    ),
    breaks=tests_of(AVERAGE, REDUCER, *WRAPPERS),
)

average_gives_gradients_new_memory = edit(
    AVERAGE,
    """You gave the gradient new memory (p.grad.data = …). Code that holds a view of the old memory goes on seeing this
    rank's own numbers: write into the old memory with copy_().""",
    ("        p.grad.copy_(mean.view(p.shape))\n", "        p.grad.data = mean.view(p.shape)\n"),
    breaks=tests_of(AVERAGE),
)

average_goes_backwards = edit(
    AVERAGE,
    """You put the gradients into flat from the last to the first. Keep the order of the bucket.""",
    ("p.grad for p in bucket]", "p.grad for p in reversed(bucket)]"),
    (
        "zip(bucket, flat.split([p.numel() for p in bucket]))",
        "zip(bucket[::-1], flat.split([p.numel() for p in bucket[::-1]]))",
    ),
    breaks=tests_of(AVERAGE),
)

average_divides_gradients_and_multiplies_them_back = edit(
    AVERAGE,
    """You divided the gradients themselves and multiplied them back afterwards. Small numbers do not survive this,
    least of all in float16: divide the copy.""",
    (
        "    flat = torch.cat([grad.reshape(-1) for grad in grads])\n",
        "    for grad in grads:\n"
        "        grad /= dist.get_world_size()\n"
        "    flat = torch.cat([grad.reshape(-1) for grad in grads])\n"
        "    for grad in grads:\n"
        "        grad *= dist.get_world_size()\n",
    ),
    ("    flat /= dist.get_world_size()\n", ""),
    breaks=tests_of(AVERAGE),
)

average_sends_halves_in_float32 = edit(
    AVERAGE,
    """You sent 16-bit gradients in float32, which costs twice the bytes. flat should have the bucket's dtype.""",
    (
        "    return flat, dist",
        "    flat = flat.float() if flat.itemsize == 2 else flat\n    return flat, dist",
    ),
    breaks=tests_of(AVERAGE),
)
