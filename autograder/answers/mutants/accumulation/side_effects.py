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
    """You set the model to the mode that it had: model.train(mode) sets all modules inside it as well. A module
    that was in eval() inside a model in train() loses its mode. Leave the modes alone.""",
    ("    model.zero_grad()\n", "    model.zero_grad()\n    model.train(model.training)\n"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_leaves_model_and_data_alone"],
)

accumulate_empties_the_list = edit(
    ACCUMULATE,
    """You took the micro-batches out of the caller's list, with pop() or the like. The data stay as they are: the next
    epoch needs them. Iterate over the list.""",
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
    """You added up the losses as tensors, and each brings its graph along: all of them live until the function
    returns, although backward has freed what they had saved. Add up numbers: loss_sum.item() or loss_sum.detach().""",
    ("total += loss_sum.item()", "total = total + loss_sum"),
    ("return total / counted", "return (total / counted).item()"),
    base=_accumulate,
    breaks=tests_of(ACCUMULATE),
    fails=["accumulation_keeps_one_graph"],
)

accumulate_tries_the_first_micro_batch_before = edit(
    ACCUMULATE,
    """You ran the first micro-batch through the model three times, perhaps to look at a shape or a type. Two passes
    are allowed for each.""",
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
