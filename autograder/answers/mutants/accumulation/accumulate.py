"""Wrong answers to lesson 04, exercise 1."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

ACCUMULATE = "04-ex1-accumulate-gradients"


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
    """You weighted each micro-batch by its number of rows. Its weight is the number of items that enter the loss,
    which loss_fn returns: a row with six unmasked tokens weighs six times as much as a row with one."""

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
    of 0 the division is 0/0, which is NaN, and NaN times 0 is still NaN. Use the sum as it is."""

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
    """You averaged the means of the micro-batches. This is the mean of the whole batch only if all counts are equal.
    Otherwise, an item in a micro-batch with a small count weighs more than the others. Add up the sums and divide
    once."""

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
    """You divided each micro-batch's mean loss by the number of micro-batches, as many training loops do. Then
    micro-batches with different counts get the same weight, and a micro-batch in which nothing counts has a mean of
    0/0.""",
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
    """Your gradients are right, but you return the mean of the micro-batches' mean losses, which differs from the loss
    of the batch when the counts differ. Add up the sums and the counts, and divide once.""",
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
    """You returned a tensor: where count is a tensor, a float divided by count is a tensor, too. Return a Python float:
    convert what you add up with item(), int() or float().""",
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
    """You divided each sum by the count so far. The total is known only after the last micro-batch, so the first
    micro-batches get too much weight. Count before you start, or divide the gradients at the end.""",
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
    """You divided p.grad of every parameter. A parameter that the model did not use, or one with requires_grad=False,
    has no gradient: its .grad is None. Skip such parameters.""",
    ("if p.grad is not None:\n            p.grad /= counted", "p.grad /= counted"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE), fails=["accumulation_drops_what_was_there"])
def accumulate_adds_to_old_gradients():
    """You did not clear the old gradients, and backward() adds to what is in .grad. Clear the gradients before the
    first micro-batch."""

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
    """You compute with the old gradients instead of dropping them. NaN times 0 is NaN, and so is NaN minus NaN: after
    a single bad step the gradients would stay NaN forever. Overwrite them, or set them to None.""",
    ("model.zero_grad()", "for p in model.parameters():\n        if p.grad is not None:\n            p.grad *= 0"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_drops_what_was_there"],
)

accumulate_clears_between_micro_batches = edit(
    ACCUMULATE,
    """You cleared the gradients inside the loop, so only the gradients of the last micro-batch are left. Clear them
    once, before the first micro-batch.""",
    ("    model.zero_grad()\n", ""),
    ("loss_sum, count = loss_fn(model(x), y)", "model.zero_grad()\n        loss_sum, count = loss_fn(model(x), y)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE), fails=["accumulation_keeps_one_graph"])
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


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE), fails=["accumulation_keeps_one_graph"])
def accumulate_lets_losses_wait_in_a_list():
    """You kept the losses in a list until the total count was known. Each loss holds the graph of its micro-batch, so
    all graphs are alive at once. Count without a graph first, or divide the gradients at the end."""

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
    """Two whole graphs are alive at once: the graph of a micro-batch is still there when the next micro-batch builds
    its own. Call backward() before the next forward pass, without retain_graph, so that it frees the graph.""",
    ("loss_sum.backward()", "loss_sum.backward(retain_graph=True)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_keeps_one_graph"],
)


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE), fails=["accumulation_keeps_one_graph"])
def accumulate_counts_with_a_graph():
    """You counted in a separate pass, but without torch.no_grad(). That pass builds graphs that nothing needs, and its
    last graph is still alive when the next forward pass begins."""

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


@mutant(ACCUMULATE, breaks=tests_of(ACCUMULATE), fails=["accumulation_keeps_one_graph"])
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
    """You switched the model to eval(). That makes batch normalization harmless, but it also turns dropout off, and
    the mode is the caller's decision: leave it as it is.""",
    ("model.zero_grad()", "model.eval()\n    model.zero_grad()"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_leaves_model_and_data_alone"],
)

accumulate_switches_to_train = edit(
    ACCUMULATE,
    """You computed in train() mode. A caller that passes a model in eval() mode wants it in that mode: leave the mode
    as it is.""",
    (
        "model.zero_grad()",
        "modes = [(m, m.training) for m in model.modules()]\n    model.train()\n    model.zero_grad()",
    ),
    ("if counted == 0:", "for m, mode in modes:\n        m.training = mode\n    if counted == 0:"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_takes_a_step = edit(
    ACCUMULATE,
    """You changed the parameters. This function only computes gradients; the optimizer's step is up to the caller.""",
    ("    return total / counted", "            p.data -= 0.1 * p.grad\n    return total / counted"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_leaves_model_and_data_alone"],
)

accumulate_lets_nothing_through_silently = edit(
    ACCUMULATE,
    """You returned a number or NaN although there were no micro-batches, or although nothing in them counted. No items
    have no mean: raise a ValueError that says what is missing, micro_batches or a count.""",
    ('    if not micro_batches:\n        raise ValueError("micro_batches is empty")\n', ""),
    ('    if counted == 0:\n        raise ValueError("the count is 0")\n', ""),
    ("p.grad /= counted", "p.grad /= max(counted, 1)"),
    ("total / counted", "total / max(counted, 1)"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_refuses_what_has_no_mean"],
)

accumulate_only_refuses_an_empty_list = edit(
    ACCUMULATE,
    """You refused an empty list, but not micro-batches in which nothing counts. They have no mean either, and a
    ZeroDivisionError or a NaN is no answer: raise a ValueError about the count.""",
    ('    if counted == 0:\n        raise ValueError("the count is 0")\n', ""),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_refuses_what_has_no_mean"],
)

accumulate_gives_frozen_parameters_a_gradient = edit(
    ACCUMULATE,
    """You set .grad of every parameter, including those with requires_grad=False. A frozen parameter gets no gradient:
    with one, an optimizer with weight decay would move it.""",
    (
        "    for p in model.parameters():\n        if p.grad is not None:\n",
        "    for p in model.parameters():\n        if p.grad is None:\n            p.grad = torch.zeros_like(p)\n"
        "        if p.grad is not None:\n",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_leaves_model_and_data_alone"],
)
