"""Wrong answers to lesson 11, exercise 6."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

STEP = "11-ex6-pipeline-step"


# ---- 6 · pipeline_step ----

all_micro_batches_weigh_the_same = edit(
    STEP,
    """You took the mean of the micro-batches' means. They differ in size: weight each mean by its share of the
    examples, len(x) / (all examples).""",
    ("(len(x) / examples)", "(1 / len(micro_batches))"),
    breaks=tests_of(STEP),
)

the_returned_loss_is_a_mean_of_means = edit(
    STEP,
    """Your gradients are weighted by size, but the loss that you return is not. Return the loss of the whole batch.""",
    (
        "output = loss_fn(output, y) * (len(x) / examples)\n                loss += output.item()",
        "output = loss_fn(output, y)\n"
        "                loss += output.item() / len(micro_batches)\n"
        "                output = output * (len(x) / examples)",
    ),
    breaks=tests_of(STEP),
)

losses_are_added_up = edit(
    STEP,
    """You added up the micro-batches' means without weights, so loss and gradients are too large by about the number of
    micro-batches. Weight each by its share of the examples.""",
    (" * (len(x) / examples)", ""),
    breaks=tests_of(STEP),
)

one_buffer_for_all_activations = edit(
    STEP,
    """You received every activation into the same memory. Several micro-batches are under way at once, and the layers
    still need the earlier inputs for their weights' gradients: the next message overwrites them.""",
    (
        "    under_way, pending, loss = {}, [], 0.0\n",
        "    under_way, pending, loss = {}, [], 0.0\n"
        "    buffer = torch.empty(max(len(x) for x, _ in micro_batches), *hidden_shape)\n",
    ),
    ("x = torch.empty(len(x), *hidden_shape)", "x = buffer[: len(x)].detach()"),
    breaks=tests_of(STEP),
)

activations_are_sent_with_gaps = edit(
    STEP,
    """You sent a stage's output as it is. It need not be contiguous in memory, for example after a transpose, and such
    a tensor cannot be sent: call contiguous().""",
    ("output.detach().contiguous()", "output.detach()"),
    breaks=tests_of(STEP),
)

gradient_buffer_is_like_the_output = edit(
    STEP,
    """empty_like copies the strides as well: for an output that is not contiguous, your buffer is not contiguous
    either, and nothing can be received into it. Make it from the shape.""",
    ("gradient = torch.empty(len(x), *hidden_shape)", "gradient = torch.empty_like(output)"),
    breaks=tests_of(STEP),
)

the_schedule_is_not_followed = edit(
    STEP,
    """You ran all forwards, then all backwards, whatever the schedule says. The gradients are right, but 1F1B is chosen
    for its memory, which you lose. Follow the entries in their order.""",
    ("in schedule[rank]:", 'in sorted(schedule[rank], key=lambda entry: entry[0] == "B"):'),
    breaks=tests_of(STEP),
)

sends_when_it_has_to_wait = edit(
    STEP,
    """You send what an entry has computed only when this stage itself has to wait. Until then the neighbor may have
    nothing to do: send as soon as the result is there.""",
    (
        "    under_way, pending, loss = {}, [], 0.0\n",
        "    under_way, pending, loss, outbox = {}, [], 0.0, []\n\n"
        "    def flush():\n"
        "        pending.extend(dist.isend(*message) for message in outbox)\n"
        "        outbox.clear()\n\n",
    ),
    (
        "pending.append(dist.isend(output.detach().contiguous(), dst=rank + 1))",
        "outbox.append((output.detach().contiguous(), rank + 1))",
    ),
    (
        "pending.append(dist.isend(x.grad.contiguous(), dst=rank - 1))",
        "outbox.append((x.grad.contiguous(), rank - 1))",
    ),
    ("                dist.recv(x,", "                flush()\n                dist.recv(x,"),
    ("                dist.recv(gradient,", "                flush()\n                dist.recv(gradient,"),
    ("    for work in pending:\n", "    flush()\n    for work in pending:\n"),
    breaks=tests_of(STEP),
    fails=["stages_work_at_the_same_time"],
)

sends_wait_for_the_neighbor = edit(
    STEP,
    """You used a blocking send, which returns only when the neighbor receives. With 1F1B two neighbors then send to
    each other and wait forever: use isend, and wait at the end.""",
    (
        "pending.append(dist.isend(output.detach().contiguous(), dst=rank + 1))",
        "dist.send(output.detach().contiguous(), dst=rank + 1)",
    ),
    (
        "pending.append(dist.isend(x.grad.contiguous(), dst=rank - 1))",
        "dist.send(x.grad.contiguous(), dst=rank - 1)",
    ),
    breaks=tests_of(STEP),
)

sends_are_waited_for_before_the_next_entry = edit(
    STEP,
    """You waited for the pending sends before each entry. A send is over when the neighbor receives, and the neighbor
    may be waiting for a message from you: wait only after all entries.""",
    (
        "        x, y = micro_batches[m]\n",
        "        for work in pending:\n            work.wait()\n        pending = []\n"
        "        x, y = micro_batches[m]\n",
    ),
    breaks=tests_of(STEP),
)

each_send_waits_for_those_before = edit(
    STEP,
    """You waited for the earlier sends before each new one. A send is over when the neighbor receives. The neighbor may
    first wait in the same way for you to receive, and then both wait forever: wait only after all entries.""",
    (
        "                pending.append(dist.isend(output",
        "                for work in pending:\n                    work.wait()\n"
        "                pending.append(dist.isend(output",
    ),
    (
        "                pending.append(dist.isend(x.grad",
        "                for work in pending:\n                    work.wait()\n"
        "                pending.append(dist.isend(x.grad",
    ),
    breaks=tests_of(STEP),
)

gradients_wait_for_the_sends_before = edit(
    STEP,
    """You waited for the earlier sends before you sent a gradient. A send is over when the neighbor receives. The
    neighbor may first wait in the same way for you to receive, and then both wait forever: wait only after all
    entries.""",
    (
        "                pending.append(dist.isend(x.grad",
        "                for work in pending:\n                    work.wait()\n"
        "                pending.append(dist.isend(x.grad",
    ),
    breaks=tests_of(STEP),
)

graphs_are_retained = edit(
    STEP,
    """With retain_graph=True, what the forward saved stays after the backward, and your dictionary keeps the graph, so
    at the end all micro-batches are alive. Take each micro-batch out of the dictionary, and let backward free its
    graph.""",
    ("under_way.pop(m)", "under_way[m]"),
    ("output.backward(gradient)", "output.backward(gradient, retain_graph=True)"),
    breaks=tests_of(STEP),
    fails=["backwards_let_go_of_what_they_used"],
)

forwards_are_run_again = edit(
    STEP,
    """You called stage_module again in the backward. That is activation recomputation, which saves memory at the cost
    of time and is not part of this exercise: make one call for each F.""",
    (
        "            output.backward(gradient)\n",
        "            if not last:\n                output = stage_module(x)\n            output.backward(gradient)\n",
    ),
    breaks=tests_of(STEP),
)

gradients_are_dropped_first = edit(
    STEP,
    """You zeroed the gradients at the start of the step. That is the caller's decision: the step adds to what is
    there.""",
    (
        "    under_way, pending, loss = {}, [], 0.0\n",
        "    under_way, pending, loss = {}, [], 0.0\n    stage_module.zero_grad()\n",
    ),
    breaks=tests_of(STEP),
)

inputs_require_a_gradient = edit(
    STEP,
    """You made x require a gradient on the first stage. There x is the data: nobody needs its gradient, it is not yours
    to change, and integers cannot have one. Only a received tensor becomes a leaf that requires a gradient.""",
    ("                x.requires_grad_()\n", ""),
    ("            output = stage_module(x)\n", "            output = stage_module(x.requires_grad_())\n"),
    breaks=tests_of(STEP),
)

inputs_do_not_require_a_gradient = edit(
    STEP,
    """Your received tensor does not require a gradient, so backward leaves none for the left neighbor. Make it a leaf
    that does: requires_grad_().""",
    ("                x.requires_grad_()\n", ""),
    breaks=tests_of(STEP),
)

everybody_returns_a_loss = edit(
    STEP,
    """Ranks without a loss returned 0, which would falsify a mean over the ranks. Return None there.""",
    ("    return loss if last else None\n", "    return loss\n"),
    breaks=tests_of(STEP),
)

nobody_returns_a_loss = edit(
    STEP,
    """Your last rank returned nothing. It should return the loss of the whole batch.""",
    ("    return loss if last else None\n", "    return None\n"),
    breaks=tests_of(STEP),
)

the_step_ends_with_a_barrier = edit(
    STEP,
    """Your barrier at the end makes every stage wait for the slowest. A stage is done when its own entries and sends
    are: no collective is needed.""",
    ("    return loss if last else None\n", "    dist.barrier()\n    return loss if last else None\n"),
    breaks=tests_of(STEP),
    fails=["only_neighbors_get_messages"],
)

sizes_travel_first = edit(
    STEP,
    """Before each activation you send its size. The receiver knows it: all ranks have the list of micro-batches, and an
    activation has the shape (len(x), *hidden_shape).""",
    (
        "                dist.recv(x, src=rank - 1)\n",
        "                dist.recv(torch.zeros(1, dtype=torch.int64), src=rank - 1)\n"
        "                dist.recv(x, src=rank - 1)\n",
    ),
    (
        "                pending.append(dist.isend(output.detach().contiguous(), dst=rank + 1))",
        "                pending.append(dist.isend(torch.tensor([len(x)]), dst=rank + 1))\n"
        "                pending.append(dist.isend(output.detach().contiguous(), dst=rank + 1))",
    ),
    breaks=tests_of(STEP),
    fails=["only_neighbors_get_messages"],
)

the_loss_is_shared = edit(
    STEP,
    """You broadcast the loss to ranks that return None anyway. A collective makes every stage wait for the last one:
    only neighbors exchange messages in this step.""",
    (
        "    return loss if last else None\n",
        "    shared = torch.tensor([loss])\n    dist.broadcast(shared, src=stages - 1)\n"
        "    return loss if last else None\n",
    ),
    breaks=tests_of(STEP),
    fails=["only_neighbors_get_messages"],
)

the_loss_is_a_tensor = edit(
    STEP,
    """You returned the loss as a tensor. The exercise asks for a float: item() gives it.""",
    ("loss += output.item()", "loss = loss + output.detach()"),
    breaks=tests_of(STEP),
    fails=["pipeline_equals_the_unsplit_model"],
)

received_inputs_are_kept = edit(
    STEP,
    """You kept every received activation to the end of the step. Once the backward of a micro-batch is over, its input
    is not needed any more: keep it only in the entry that you take out of the dictionary.""",
    ("    under_way, pending, loss = {}, [], 0.0\n", "    under_way, pending, received, loss = {}, [], [], 0.0\n"),
    (
        "                x.requires_grad_()\n",
        "                x.requires_grad_()\n                received.append(x)\n",
    ),
    breaks=tests_of(STEP),
    fails=["backwards_let_go_of_what_they_used"],
)

many_micro_batches_are_skipped = edit(
    STEP,
    """With many micro-batches your step returns at once, without a loss and without gradients. It must do its work for
    any number of them.""",
    (
        "    under_way, pending, loss = {}, [], 0.0\n",
        "    under_way, pending, loss = {}, [], 0.0\n    if len(micro_batches) > 7:\n        return None\n",
    ),
    breaks=tests_of(STEP),
    fails=["stages_work_at_the_same_time"],
)
