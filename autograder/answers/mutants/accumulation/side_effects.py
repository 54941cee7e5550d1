"""Wrong answers to lesson 04, exercise 1, whose gradients are right: but that forget, keep or change something else."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of
from autograder.answers.mutants.accumulation.accumulate import _accumulate

ACCUMULATE = "04-ex1-accumulate-gradients"

accumulate_keeps_old_gradients_of_frozen_parameters = edit(
    ACCUMULATE,
    """You cleared .grad only where a gradient is computed. A parameter that was frozen after a step still holds the
    gradient of that step, and an optimizer applies it: clear .grad of all parameters.""",
    (
        "    model.zero_grad()\n",
        "    for p in model.parameters():\n        p.grad = None if p.requires_grad else p.grad\n",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_drops_what_was_there"],
)

accumulate_gives_all_modules_one_mode = edit(
    ACCUMULATE,
    """You set the model to the mode that it had. But model.train(mode) also sets all modules inside the model, so a
    module in eval() inside a model in train() loses its mode. Leave the modes alone.""",
    ("    model.zero_grad()\n", "    model.zero_grad()\n    model.train(model.training)\n"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_leaves_model_and_data_alone"],
)

accumulate_empties_the_list = edit(
    ACCUMULATE,
    """You took the micro-batches out of the caller's list, with pop() or the like. The next epoch needs the list, so it
    must stay as it is: iterate over it.""",
    (
        "    for x, y in micro_batches:\n",
        "    while micro_batches:\n        x, y = micro_batches.pop(0)\n",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_leaves_model_and_data_alone"],
)

accumulate_adds_up_losses_with_their_graphs = edit(
    ACCUMULATE,
    """You added up the losses as tensors, and each loss brings its graph along. All these graphs live until the
    function returns, although backward has freed what they had saved. Add up numbers: loss_sum.item() or
    loss_sum.detach().""",
    ("total += loss_sum.item()", "total = total + loss_sum"),
    ("return total / counted", "return (total / counted).item()"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_keeps_one_graph"],
)

accumulate_tries_the_first_micro_batch_before = edit(
    ACCUMULATE,
    """You ran the first micro-batch through the model three times, perhaps to look at a shape or a type. Two passes are
    allowed for each micro-batch.""",
    (
        "    for x, y in micro_batches:\n",
        "    with torch.no_grad():\n"
        "        for _ in range(2):\n"
        "            model(micro_batches[0][0])\n"
        "    for x, y in micro_batches:\n",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_keeps_one_graph"],
)

accumulate_keeps_the_graph_of_what_it_skips = edit(
    ACCUMULATE,
    """You skip backward() for a micro-batch in which nothing counts. Its loss then still holds the whole graph while
    the next micro-batch builds another, so two graphs are alive at once. Call backward() all the same, or delete the
    loss first.""",
    (
        "        loss_sum.backward()\n",
        "        if int(count) == 0:\n            continue\n        loss_sum.backward()\n",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_keeps_one_graph"],
)

accumulate_joins_small_micro_batches = edit(
    ACCUMULATE,
    """You joined small micro-batches to save forward passes. A forward pass may see at most one micro-batch: how the
    batch is cut is up to the caller.""",
    (
        "    for x, y in micro_batches:\n",
        "    most, joined = max(len(x) for x, _ in micro_batches), []\n"
        "    for x, y in micro_batches:\n"
        "        if joined and len(joined[-1][0]) + len(x) <= most:\n"
        "            x, y = torch.cat([joined[-1][0], x]), torch.cat([joined.pop()[1], y])\n"
        "        joined.append((x, y))\n"
        "    for x, y in joined:\n",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_keeps_one_graph"],
)

accumulate_asks_for_gradients_of_the_data = edit(
    ACCUMULATE,
    """You set requires_grad of the data. It stays set, and backward leaves a .grad on the data. The data must stay as
    they are.""",
    (
        "        loss_sum, count = loss_fn",
        "        if x.is_floating_point():\n            x.requires_grad_()\n        loss_sum, count = loss_fn",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_leaves_model_and_data_alone"],
)

accumulate_skips_losses_below_zero = edit(
    ACCUMULATE,
    """You skipped backward() where the loss is below zero. A loss may be below zero (the loss of a density can be), and
    its gradient counts like any other.""",
    ("        loss_sum.backward()\n", "        if loss_sum >= 0:\n            loss_sum.backward()\n"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)

accumulate_remembers_the_count = edit(
    ACCUMULATE,
    """You kept the count of an earlier call and used it again. Micro-batches of the same shape may count other items:
    take the counts of this call.""",
    (
        "    for p in model.parameters():\n        if p.grad is not None:\n",
        "    known = accumulate_gradients.__dict__.setdefault('known', {})\n"
        "    counted = known.setdefault((loss_fn, tuple(x.shape for x, _ in micro_batches)), counted)\n"
        "    for p in model.parameters():\n        if p.grad is not None:\n",
    ),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
)
