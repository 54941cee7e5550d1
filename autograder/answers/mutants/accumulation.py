"""Wrong answers to lesson 04: the subtle ones first in each exercise."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

ACCUMULATE, SHARDS = "04-ex1-accumulate-gradients", "04-ex2-shard-indices"
LOCAL, STEP = "04-ex3-local-gradient", "04-ex4-data-parallel-step"


# ---- 1 · accumulate_gradients ----


@right(ACCUMULATE)
def _accumulate():
    """Right: the base of the edits below."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        model.zero_grad()
        total, counted = 0.0, 0
        for x, y in micro_batches:
            loss_sum, count = loss_fn(model(x), y)
            loss_sum.backward()
            total += loss_sum.item()
            counted += int(count)
        if counted == 0:
            raise ValueError("the count is 0")
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= counted
        return total / counted


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_weighs_by_rows():
    """You weighted each micro-batch by its number of rows. Its weight is the number of items that enter the loss, which
    loss_fn returns: a row with six unmasked tokens weighs six times as much as a row with one."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        model.zero_grad()
        rows, total, counted = sum(len(x) for x, _ in micro_batches), 0.0, 0
        for x, y in micro_batches:
            loss_sum, count = loss_fn(model(x), y)
            counted += int(count)
            loss = loss_sum / max(int(count), 1) * len(x) / rows
            loss.backward()
            total += loss.item()
        if counted == 0:
            raise ValueError("the count is 0")
        return total


accumulate_counts_a_masked_micro_batch_as_one = edit(
    ACCUMULATE,
    """You replaced each count of 0 with 1, and the 1 went into the total. A micro-batch in which nothing counts adds
    nothing to the total; only the total itself must not be 0.""",
    ("total, counted = 0.0, 0", "total, counted, anything = 0.0, 0, False"),
    (
        "counted += int(count)\n    if counted == 0:",
        "counted += max(int(count), 1)\n        anything = anything or int(count) > 0\n    if not anything:",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_meets_zero_by_zero():
    """Your weights are right, but you divide by the count of the micro-batch and then multiply by it again. For a count
    of 0 that is 0/0, and NaN times 0 is still NaN. Use the sum as it is."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        with torch.no_grad():
            counts = [int(loss_fn(model(x), y)[1]) for x, y in micro_batches]
        if sum(counts) == 0:
            raise ValueError("the count is 0")
        model.zero_grad()
        total = 0.0
        for (x, y), count in zip(micro_batches, counts, strict=True):
            loss_sum, _ = loss_fn(model(x), y)
            loss = (loss_sum / torch.tensor(count)) * (count / sum(counts))
            loss.backward()
            total += loss.item()
        return total


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_takes_a_mean_of_means():
    """You averaged the means of the micro-batches. That is the mean of the whole batch only if all counts are equal:
    otherwise an item in a micro-batch with few of them weighs more than the others. Add up the sums and divide once."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        model.zero_grad()
        total, parts = 0.0, 0
        for x, y in micro_batches:
            loss_sum, count = loss_fn(model(x), y)
            if int(count) == 0:
                continue
            loss = loss_sum / count
            loss.backward()
            total += loss.item()
            parts += 1
        if parts == 0:
            raise ValueError("the count is 0")
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= parts
        return total / parts


accumulate_divides_each_mean_by_the_number_of_micro_batches = edit(
    ACCUMULATE,
    """You divided each micro-batch's mean loss by the number of micro-batches, as many training loops do. Micro-batches
    with different counts then get the same weight, and one in which nothing counts makes the loss 0/0.""",
    (
        "loss_sum.backward()\n        total += loss_sum.item()",
        "loss = loss_sum / torch.as_tensor(count) / len(micro_batches)\n"
        "        loss.backward()\n"
        "        total += loss.item()",
    ),
    ("    for p in model.parameters():\n        if p.grad is not None:\n            p.grad /= counted\n", ""),
    ("total / counted", "total"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_returns_a_mean_of_means = edit(
    ACCUMULATE,
    """Your gradients are right, but you return the mean of the micro-batches' mean losses, which is another number when
    their counts differ. Add up the sums and the counts, and divide once.""",
    ("total, counted = 0.0, 0", "losses, counted = [], 0"),
    ("        total += loss_sum.item()\n", ""),
    (
        "    if counted == 0:",
        "        if int(count):\n            losses.append(loss_sum.item() / int(count))\n    if counted == 0:",
    ),
    ("return total / counted", "return sum(losses) / len(losses)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_returns_the_last_loss = edit(
    ACCUMULATE,
    """Your gradients are right, but you return the loss of the last micro-batch. Return the loss of the whole batch:
    the sum of all loss sums over the sum of all counts.""",
    ("total, counted = 0.0, 0", "counted = 0"),
    ("        total += loss_sum.item()\n", ""),
    ("return total / counted", "return loss_sum.item() / max(int(count), 1)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_returns_a_tensor = edit(
    ACCUMULATE,
    """You returned a tensor: where count is a tensor, a float divided by it is one, too. Return a Python float: convert
    what you add up with item(), int() or float().""",
    ("int(count)", "count"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_wants_counts_as_tensors = edit(
    ACCUMULATE,
    """You called a tensor's method on count. It may be a 0-dimensional tensor or a Python int, and an int has no
    item(): int(count) works for both.""",
    ("counted += int(count)", "counted += count.item()"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_wants_counts_as_ints = edit(
    ACCUMULATE,
    """You counted only Python ints. count may also be a 0-dimensional tensor: int(count) works for both.""",
    ("int(count)", "count if isinstance(count, int) else 0"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_divides_by_the_counts_so_far = edit(
    ACCUMULATE,
    """You divided each sum by the count so far. The total is known only after the last micro-batch, so the first ones
    get too much weight. Count before you start, or divide the gradients at the end.""",
    (
        "loss_sum.backward()\n        total += loss_sum.item()\n        counted += int(count)",
        "counted += int(count)\n        (loss_sum / max(counted, 1)).backward()\n        total += loss_sum.item()",
    ),
    ("    for p in model.parameters():\n        if p.grad is not None:\n            p.grad /= counted\n", ""),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_divides_by_the_last_count = edit(
    ACCUMULATE,
    """After the loop you divided by `count`, which by then is the count of the last micro-batch. Divide by the sum of
    all counts.""",
    ("p.grad /= counted", "p.grad /= max(int(count), 1)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_divides_inside_the_loop = edit(
    ACCUMULATE,
    """You divided the gradients inside the loop. What an earlier micro-batch left in .grad is then divided again with
    each later one. Divide once, after all gradients have been added up.""",
    (
        "    if counted == 0:",
        "        for p in model.parameters():\n"
        "            if p.grad is not None:\n"
        "                p.grad /= max(counted, 1)\n"
        "    if counted == 0:",
    ),
    ("    for p in model.parameters():\n        if p.grad is not None:\n            p.grad /= counted\n", ""),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_never_divides = edit(
    ACCUMULATE,
    """Your gradients are those of the summed loss. Divide them by the total count, as you did with the loss.""",
    ("    for p in model.parameters():\n        if p.grad is not None:\n            p.grad /= counted\n", ""),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_divides_by_the_number_of_micro_batches = edit(
    ACCUMULATE,
    """You divided the summed gradients by the number of micro-batches. The mean is taken over items: divide by the
    number of items that count in all micro-batches together.""",
    ("loss_sum.backward()", "(loss_sum / len(micro_batches)).backward()"),
    ("    for p in model.parameters():\n        if p.grad is not None:\n            p.grad /= counted\n", ""),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_divides_a_shared_parameter_twice = edit(
    ACCUMULATE,
    """Two modules share a parameter, and you divided its gradient once for each of them. model.parameters() lists it
    once; a walk over the modules, or over names with duplicates, meets it twice.""",
    (
        "for p in model.parameters():\n        if p.grad is not None:\n            p.grad /= counted",
        "for module in model.modules():\n"
        "        for p in module.parameters(recurse=False):\n"
        "            if p.grad is not None:\n"
        "                p.grad /= counted",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_expects_a_gradient_everywhere = edit(
    ACCUMULATE,
    """You divided p.grad of every parameter, but a parameter that the model did not use, or one with
    requires_grad=False, has no gradient: .grad is None. Skip those.""",
    ("if p.grad is not None:\n            p.grad /= counted", "p.grad /= counted"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_adds_to_old_gradients():
    """You did not clear the old gradients: backward() adds to what is in .grad. Clear them before the first
    micro-batch."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        with torch.no_grad():
            counted = sum(int(loss_fn(model(x), y)[1]) for x, y in micro_batches)
        if counted == 0:
            raise ValueError("the count is 0")
        total = 0.0
        for x, y in micro_batches:
            loss = loss_fn(model(x), y)[0] / counted
            loss.backward()
            total += loss.item()
        return total


accumulate_multiplies_old_gradients_by_zero = edit(
    ACCUMULATE,
    """You cleared the old gradients by multiplying them by 0. NaN times 0 is NaN, so after a single bad step the
    gradients would stay NaN forever. Overwrite them, or set them to None.""",
    ("model.zero_grad()", "for p in model.parameters():\n        if p.grad is not None:\n            p.grad *= 0"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_clears_between_micro_batches = edit(
    ACCUMULATE,
    """You cleared the gradients inside the loop, so only those of the last micro-batch are left. Clear them once,
    before the first.""",
    ("    model.zero_grad()\n", ""),
    ("loss_sum, count = loss_fn(model(x), y)", "model.zero_grad()\n        loss_sum, count = loss_fn(model(x), y)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_calls_backward_once():
    """You added up the losses and called backward() once, at the end. The numbers are right, but until then the graph
    of every micro-batch stays alive, in as much memory as the big batch takes. Call backward() for each micro-batch."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        model.zero_grad()
        pairs = [loss_fn(model(x), y) for x, y in micro_batches]
        counted = sum(int(count) for _, count in pairs)
        if counted == 0:
            raise ValueError("the count is 0")
        loss = sum(loss_sum for loss_sum, _ in pairs) / counted
        loss.backward()
        return loss.item()


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_lets_losses_wait_in_a_list():
    """You kept the losses in a list until the total count was known. Each of them holds the graph of its micro-batch,
    so all graphs are alive at once. Count without a graph first, or divide the gradients at the end."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        model.zero_grad()
        waiting = [loss_fn(model(x), y) for x, y in micro_batches]
        counted, total = sum(int(count) for _, count in waiting), 0.0
        if counted == 0:
            raise ValueError("the count is 0")
        while waiting:
            loss = waiting.pop()[0] / counted
            loss.backward()
            total += loss.item()
        return total


accumulate_retains_the_graph = edit(
    ACCUMULATE,
    """You called backward(retain_graph=True). The old graph then lives as long as its loss, while the next micro-batch
    builds its own: two are alive at once. Nothing needs the old graph; let backward() free it.""",
    ("loss_sum.backward()", "loss_sum.backward(retain_graph=True)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_counts_with_a_graph():
    """You counted in a pass of its own, but without torch.no_grad(). That pass builds graphs that nothing needs, and
    the last one is still alive when the next forward pass begins."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        counted = 0
        for x, y in micro_batches:
            loss_sum, count = loss_fn(model(x), y)
            counted += int(count)
        if counted == 0:
            raise ValueError("the count is 0")
        model.zero_grad()
        total = 0.0
        for x, y in micro_batches:
            loss_sum, count = loss_fn(model(x), y)
            (loss_sum / counted).backward()
            total += loss_sum.item()
        return total / counted


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE))
def accumulate_joins_the_micro_batches():
    """You joined the micro-batches and ran the model on all of them at once. That is the big batch that did not fit
    into memory. Run the model on one micro-batch at a time."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches is empty")
        model.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
        loss_sum, count = loss_fn(model(x), y)
        if int(count) == 0:
            raise ValueError("the count is 0")
        (loss_sum / count).backward()
        return (loss_sum / count).item()


accumulate_switches_to_eval = edit(
    ACCUMULATE,
    """You switched the model to eval(). That makes batch normalization harmless, but it also turns dropout off, and the
    mode is the caller's decision: leave it as it is.""",
    ("model.zero_grad()", "model.eval()\n    model.zero_grad()"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_switches_to_train = edit(
    ACCUMULATE,
    """You switched the model to train(). A caller that passes a model in eval() wants it so: leave the mode as it
    is.""",
    ("model.zero_grad()", "mode = model.training\n    model.train()\n    model.zero_grad()"),
    ("if counted == 0:", "model.train(mode)\n    if counted == 0:"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_takes_a_step = edit(
    ACCUMULATE,
    """You changed the parameters. This function only computes gradients; the optimizer's step is up to the caller.""",
    ("    return total / counted", "            p.data -= 0.1 * p.grad\n    return total / counted"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_lets_nothing_through_silently = edit(
    ACCUMULATE,
    """You returned a number or NaN although there were no micro-batches, or although nothing in them counted. There is
    no mean of nothing: raise a ValueError that says what is missing, micro_batches or a count.""",
    ('    if not micro_batches:\n        raise ValueError("micro_batches is empty")\n', ""),
    ('    if counted == 0:\n        raise ValueError("the count is 0")\n', ""),
    ("p.grad /= counted", "p.grad /= max(counted, 1)"),
    ("total / counted", "total / max(counted, 1)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_only_refuses_an_empty_list = edit(
    ACCUMULATE,
    """You refused an empty list, but not micro-batches in which nothing counts. They have no mean either, and a
    ZeroDivisionError or a NaN is no answer: raise a ValueError about the count.""",
    ('    if counted == 0:\n        raise ValueError("the count is 0")\n', ""),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)


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
    not enough, and the shards differ in length: repeat the order as often as it takes."""

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
    """You padded the order with its last entries. The sampler repeats it from its start.""",
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
    entries come after it."""

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
    """You seeded the generator with `seed` alone, so all epochs have the same order, as if set_epoch were never called.
    The sampler's seed is seed + epoch.""",
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
    """You multiplied seed and epoch, so with seed 0 every epoch has the same order. The sampler adds them.""",
    ("seed + epoch", "seed * epoch"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_of_a_seed_a_rank = edit(
    SHARDS,
    """You put the rank into the seed, so each rank draws another permutation and the shards overlap. All ranks must
    draw the same order and take different entries of it.""",
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
    """You dealt first and shuffled each rank's part. A rank then sees the same examples in every epoch, only in another
    order. Shuffle everything, then deal."""

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
    """You cut off the end of the order even without drop_last, so that up to N − 1 examples are missing from the epoch.
    The sampler repeats some instead."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        if world_size < 1 or length < 0 or not 0 <= rank < world_size:
            raise ValueError(f"bad length, rank or world_size: {length}, {rank}, {world_size}")
        order = list(range(length))
        if shuffle:
            order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        return order[: length // world_size * world_size][rank::world_size]


shards_of_unequal_length = edit(
    SHARDS,
    """You dealt the order as it is, so some ranks get one example more than others. A rank with one step more would
    wait in its all-reduce for ranks that have finished: make the length a multiple of N first.""",
    ("    else:\n        order += order[: -length % world_size]\n", ""),
    base=shards_padded_by_one_repetition_at_most,
    breaks=tests_of(SHARDS),
)

shards_padded_though_it_divides = edit(
    SHARDS,
    """You pad the order even when N divides its length: N − length % N is then N, not 0.""",
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
    """You called torch.manual_seed, which resets the random numbers of the whole program: in every epoch, dropout would
    draw the same numbers again. Make a torch.Generator of your own, and pass it to randperm.""",
    (
        "order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()",
        "torch.manual_seed(seed + epoch)\n        order = torch.randperm(length).tolist()",
    ),
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
)

shards_for_rank_n = edit(
    SHARDS,
    """You accepted rank N. Ranks are counted from 0, so the last one is N − 1.""",
    ("rank < world_size", "rank <= world_size"),
    base=_shards,
    breaks=tests_of(SHARDS),
)

shards_of_a_negative_length = edit(
    SHARDS,
    """You did not check the length. A negative one gave an empty shard, or an error inside torch that does not name it.
    Raise a ValueError that names length.""",
    (" or length < 0", ""),
    ("bad length, rank or world_size: {length}, {rank}, {world_size}", "bad rank or world_size: {rank}, {world_size}"),
    ("randperm(length", "randperm(max(length, 0)"),
    base=_shards,
    breaks=tests_of(SHARDS),
)


# ---- 3 · local_gradient ----


@right(LOCAL)
def _local():
    """Right: the base of the edits below."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if x.ndim != 2 or len(x) == 0 or y.shape != x.shape[:1] or w.shape != x.shape[1:]:
            raise ValueError("x, y or w does not fit")
        return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)


_local_p = edit(
    LOCAL,
    """Right, with the probabilities on a line of their own.""",
    (
        "return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)",
        "p = 0.5 * (1 + np.tanh(0.5 * (x @ w)))\n    return x.T @ (p - y) / len(x)",
    ),
    base=_local,
)

local_overflows = edit(
    LOCAL,
    """For large positive z = Xw you computed exp(z) / (1 + exp(z)), which is inf/inf and hence NaN. 1 / (1 + exp(−z))
    is the same number, and when its exp overflows, 1/inf is 0, as it should be.""",
    ("p = 0.5 * (1 + np.tanh(0.5 * (x @ w)))", "e = np.exp(x @ w)"),
    ("(p - y)", "(e / (1 + e) - y)"),
    base=_local_p,
    breaks=tests_of(LOCAL),
)

local_clips_probabilities = edit(
    LOCAL,
    """You kept the probability at least 1e-7 away from 0 and 1. That protects a logarithm, but the gradient has none,
    and each example far from the boundary adds a small error. Use the probability as it is.""",
    ("0.5 * (1 + np.tanh(0.5 * (x @ w)))", "np.clip(0.5 * (1 + np.tanh(0.5 * (x @ w))), 1e-7, 1 - 1e-7)"),
    base=_local_p,
    breaks=tests_of(LOCAL),
)

local_clips_logits = edit(
    LOCAL,
    """You clipped Xw to ±10 against the overflow. σ(10) is 0.99995 and not 1, which is a visible error. Clip only
    beyond ±40, where float64 cannot tell the difference, or write σ so that nothing overflows.""",
    ("0.5 * (1 + np.tanh(0.5 * (x @ w)))", "1 / (1 + np.exp(-np.clip(x @ w, -10, 10)))"),
    base=_local_p,
    breaks=tests_of(LOCAL),
)

local_keeps_float32 = edit(
    LOCAL,
    """You computed in the dtype of the inputs. From float32 arrays, too, the gradient must be computed and returned in
    float64: convert x, y and w first.""",
    ("np.asarray(a, dtype=np.float64)", "np.asarray(a)"),
    base=_local_p,
    breaks=tests_of(LOCAL),
)

local_widens_only_the_result = edit(
    LOCAL,
    """You converted the result to float64, but computed it in float32, where the digits were already lost. Convert the
    inputs.""",
    ("return x.T @ (p - y) / len(x)", "return np.asarray(x.T @ (p - y) / len(x), dtype=np.float64)"),
    base=local_keeps_float32,
    breaks=tests_of(LOCAL),
)


@mutant(LOCAL, breaks=tests_of(LOCAL))
def local_lets_labels_wrap_around():
    """You computed with the labels in their own dtype. In uint8, 1 − 2·1 is 255, not −1: convert y to float64 first."""

    def local_gradient(x, y, w):
        x, w, y = np.asarray(x, dtype=np.float64), np.asarray(w, dtype=np.float64), np.asarray(y)
        if x.ndim != 2 or len(x) == 0 or y.shape != x.shape[:1] or w.shape != x.shape[1:]:
            raise ValueError("x, y or w does not fit")
        sign = 1 - 2 * y  # −1 for label 1, 1 for label 0
        return x.T @ (sign * 0.5 * (1 + np.tanh(0.5 * sign * (x @ w)))) / len(x)


local_forgets_to_divide = edit(
    LOCAL,
    """You summed over the examples. The gradient of the mean loss is that sum divided by B.""",
    ("- y) / len(x)", "- y)"),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_divides_by_the_features = edit(
    LOCAL,
    """You divided by the number of features, or by the number of all entries of x. Divide by the number of examples,
    len(x).""",
    (
        "x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)",
        "np.mean(x * (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y)[:, None], axis=0) / x.shape[1]",
    ),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_takes_labels_of_plus_and_minus_one = edit(
    LOCAL,
    """You used the formula for labels −1 and 1. In this exercise the labels are 0 and 1.""",
    (
        "x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)",
        "-x.T @ (y * 0.5 * (1 + np.tanh(-0.5 * y * (x @ w)))) / len(x)",
    ),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_points_uphill = edit(
    LOCAL,
    """Your gradient has the wrong sign, so that subtracting it goes uphill. The residual is the prediction minus the
    label: σ(Xw) − y.""",
    ("(0.5 * (1 + np.tanh(0.5 * (x @ w))) - y)", "(y - 0.5 * (1 + np.tanh(0.5 * (x @ w))))"),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_is_a_linear_regression = edit(
    LOCAL,
    """You left out σ, which gives the gradient of a linear regression. The prediction is σ(Xw), a number between 0 and
    1.""",
    ("0.5 * (1 + np.tanh(0.5 * (x @ w)))", "x @ w"),
    base=_local,
    breaks=tests_of(LOCAL, STEP),
)

local_is_that_of_squared_errors = edit(
    LOCAL,
    """You took the gradient of the squared error of σ(Xw), with its factor σ(1 − σ). In the gradient of the logistic
    loss that factor cancels.""",
    ("(p - y)", "(2 * (p - y) * p * (1 - p))"),
    base=_local_p,
    breaks=tests_of(LOCAL, STEP),
)


@mutant(LOCAL, breaks=tests_of(LOCAL, STEP))
def local_writes_into_x():
    """You changed an input in place: np.asarray does not copy an array that already has the right dtype, so `w *= …` or
    `x -= …` changes the caller's array, too."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if x.ndim != 2 or len(x) == 0 or y.shape != x.shape[:1] or w.shape != x.shape[1:]:
            raise ValueError("x, y or w does not fit")
        residual = 0.5 * (1 + np.tanh(0.5 * (x @ w))) - y
        x *= residual[:, None]
        return x.mean(axis=0)


@mutant(LOCAL, breaks=tests_of(LOCAL))
def local_checks_no_shapes():
    """You accepted a shape that does not fit, or let it fail inside numpy with a message that names no argument. Check
    before you compute: x must be (B, d) with B ≥ 1, y (B,), w (d,)."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if len(x) == 0:
            raise ValueError("x is empty")
        return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)


@mutant(LOCAL, breaks=tests_of(LOCAL))
def local_checks_only_lengths():
    """You compared lengths. A y of shape (B, 1) has length B as well, and numpy then silently broadcasts (B,) against
    (B, 1) to (B, B). Compare whole shapes."""

    def local_gradient(x, y, w):
        x, y, w = (np.asarray(a, dtype=np.float64) for a in (x, y, w))
        if x.ndim != 2 or len(x) == 0:
            raise ValueError("x does not fit")
        if y.ndim == 0 or w.ndim == 0 or len(y) != len(x) or len(w) != x.shape[1]:
            raise ValueError("y or w does not fit")
        return x.T @ (0.5 * (1 + np.tanh(0.5 * (x @ w))) - y) / len(x)


local_divides_by_no_rows = edit(
    LOCAL,
    """For B = 0 you returned NaN: 0/0, about which numpy only warns. There is no mean of nothing: raise a ValueError
    that names x.""",
    ("len(x) == 0 or ", ""),
    ("/ len(x)", "/ np.float64(len(x))"),
    base=_local,
    breaks=tests_of(LOCAL),
)


# ---- 4 · data_parallel_step ----


@right(STEP)
def _step():
    """Right: the base of the edits below."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        rows = sum(len(x) for x in xs)
        if rows == 0:
            raise ValueError("xs has no rows")
        total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))
        return w - lr * total / rows


_step_at_once = edit(
    STEP,
    """Right, without the name total.""",
    (
        "total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))\n"
        "    return w - lr * total / rows",
        "return w - lr * sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x)) / rows",
    ),
    base=_step,
)

step_counts_an_empty_shard = edit(
    STEP,
    """You computed a gradient for a shard without rows: 0/0, or an error. Such a shard has no part in the step: leave
    it out.""",
    ("len(x) * local_gradient", "len(x) / rows * local_gradient"),
    (" if len(x)) / rows", ")"),
    base=_step_at_once,
    breaks=tests_of(STEP),
)


@mutant(STEP, breaks=tests_of(STEP))
def step_averages_over_ranks():
    """You took the plain mean of the ranks' gradients, as data-parallel libraries do. It is right only when all shards
    have the same size: weight each gradient by its number of rows."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        grads = [local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x)]
        if not grads:
            raise ValueError("xs has no rows")
        return w - lr * np.mean(grads, axis=0)


step_averages_over_all_ranks = edit(
    STEP,
    """You divided the sum of the ranks' gradients by the number of all ranks, including those without rows, or averaged
    the weights after a step on each rank, which is the same. Weight each gradient by its number of rows.""",
    ("np.mean(grads, axis=0)", "sum(grads) / len(xs)"),
    base=step_averages_over_ranks,
    breaks=tests_of(STEP),
)

step_weighs_by_rows_and_divides_by_ranks = edit(
    STEP,
    """You weighted by rows but divided by the number of ranks. The weights must add up to 1: divide by the number of
    all rows.""",
    ("rows = sum(len(x) for x in xs)\n    if rows == 0:", "if sum(len(x) for x in xs) == 0:"),
    ("total / rows", "total / len(xs)"),
    base=_step,
    breaks=tests_of(STEP),
)


@mutant(STEP, breaks=tests_of(STEP))
def step_sums_over_ranks():
    """You added up the ranks' gradients without weights, so each further rank makes the step longer. Weight each
    gradient by its share of the rows."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        if sum(len(x) for x in xs) == 0:
            raise ValueError("xs has no rows")
        return w - lr * sum(local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))


step_goes_from_shard_to_shard = edit(
    STEP,
    """You updated w after each shard, so the next gradient was taken at other weights. In one data-parallel step all
    ranks compute at the same w, and then there is one update.""",
    (
        "return w - lr * sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x)) / rows",
        "for x, y in zip(xs, ys, strict=True):\n"
        "        if len(x):\n"
        "            w = w - lr * len(x) / rows * local_gradient(x, y, w)\n"
        "    return w",
    ),
    base=_step_at_once,
    breaks=tests_of(STEP),
)

step_climbs = edit(
    STEP,
    """You added the gradient. It points uphill: subtract it.""",
    ("w - lr", "w + lr"),
    base=_step_at_once,
    breaks=tests_of(STEP),
)

step_scales_the_rate = edit(
    STEP,
    """You multiplied the learning rate by the number of ranks. That is the linear scaling rule, and up to the caller:
    this step must equal that of a single process with the same lr.""",
    ("return w - lr * total / rows", "return w - lr * len(xs) * total / rows"),
    base=_step,
    breaks=tests_of(STEP),
)

step_writes_into_w = edit(
    STEP,
    """You changed w in place: `w -= …` writes into the caller's array. The other ranks and the caller still need the
    old weights: return a new array.""",
    ("return w - lr *", "w -= lr *"),
    (" / rows", " / rows\n    return w"),
    base=_step_at_once,
    breaks=tests_of(STEP),
)

step_empties_the_lists = edit(
    STEP,
    """You took entries out of the lists that were given, for example the empty shards. That changes the caller's lists,
    too: make lists of your own.""",
    (
        "total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))",
        "total = 0.0\n"
        "    while xs:\n"
        "        x, y = xs.pop(), ys.pop()\n"
        "        total = total + (len(x) * local_gradient(x, y, w) if len(x) else 0.0)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)


@mutant(STEP, breaks=tests_of(STEP))
def step_cuts_the_longer_list():
    """You let zip cut off the longer list, so a rank whose labels are missing silently drops out of the step. Compare
    the lengths of xs and ys first, and raise a ValueError."""

    def data_parallel_step(xs, ys, w, lr):
        rows = sum(len(x) for x in xs)
        if rows == 0:
            raise ValueError("xs has no rows")
        return w - lr * sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys) if len(x)) / rows


@mutant(STEP, breaks=tests_of(STEP))
def step_stands_still_without_rows():
    """Without any rows you returned w as if a step had been taken. There is no gradient of nothing: raise a ValueError
    that names xs."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("xs and ys differ in length")
        rows = sum(len(x) for x in xs)
        total = sum(len(x) * local_gradient(x, y, w) for x, y in zip(xs, ys, strict=True) if len(x))
        return w - lr * total / max(rows, 1)
