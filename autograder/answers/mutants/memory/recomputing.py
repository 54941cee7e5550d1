"""Wrong answers to lesson 10, exercises 3 and 4."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

CHECKPOINT, SEGMENTS = "10-ex3-checkpoint", "10-ex4-segments"
ON_CHECKPOINT = tests_of(CHECKPOINT, SEGMENTS)


# ---- 3 · checkpoint ----

the_generator_is_not_put_back = edit(
    CHECKPOINT,
    """You restore the generator for the second run and leave it there. The next step then draws the masks of this one
    again: after backward, restore the state that you found.""",
    ("torch.random.fork_rng(devices=[]), ", ""),
    breaks=tests_of(CHECKPOINT),
)

the_generator_is_not_restored = edit(
    CHECKPOINT,
    """The second run draws other random numbers than the first: its dropout masks differ, and the gradient belongs to
    another forward. Keep the generator's state of the first run and set it before the second.""",
    ("            torch.set_rng_state(ctx.state)\n", ""),
    breaks=tests_of(CHECKPOINT),
)

autocast_is_forgotten = edit(
    CHECKPOINT,
    """You run the module again without its autocast. Backward is called outside of it, so the second run computes in
    another dtype than the first: remember whether autocast was on, and with which dtype.""",
    (', torch.autocast("cpu", dtype, enabled)', ""),
    breaks=tests_of(CHECKPOINT),
    fails=["autocast_is_as_in_the_forward"],
)

autocast_loses_its_dtype = edit(
    CHECKPOINT,
    """You remember whether autocast was on, but not its dtype. Backward runs outside of it, where the dtype is the
    default one, bfloat16: after a forward in float16, the second run computes something else.""",
    ('torch.autocast("cpu", dtype, enabled)', 'torch.autocast("cpu", enabled=enabled)'),
    breaks=tests_of(CHECKPOINT),
    fails=["autocast_is_as_in_the_forward"],
)

inputs_stay_on_ctx = edit(
    CHECKPOINT,
    """You keep the inputs as an attribute of ctx. They then live as long as the output, also after backward. Backward
    frees what save_for_backward keeps, and autograd notices if such an input was changed in place in between.""",
    ("ctx.save_for_backward(*tensors)", "ctx.tensors = tensors"),
    ("ctx.saved_tensors, ctx.autocast", "ctx.tensors, ctx.autocast"),
    breaks=tests_of(CHECKPOINT),
    fails=["the_inputs_go_with_backward"],
)

autocast_is_always_on = edit(
    CHECKPOINT,
    """You run the module again under autocast whether or not the forward did. Remember whether it was on.""",
    ('torch.autocast("cpu", dtype, enabled)', 'torch.autocast("cpu", dtype)'),
    breaks=ON_CHECKPOINT,
)

parameters_are_not_inputs = edit(
    CHECKPOINT,
    """You pass only the inputs to apply. If none of them requires a gradient, PyTorch thinks that the output needs
    none either, and the parameters get no gradient: pass them as well.""",
    ("*inputs, *trained)", "*inputs)"),
    (
        "        sources = [*inputs, *tensors[ctx.count :]]\n",
        "        trained = [p for p in ctx.module.parameters() if p.requires_grad]\n"
        "        sources = [*inputs, *trained]\n",
    ),
    (
        "        return None, None, *[next(found) if t.requires_grad else None for t in sources]",
        "        result = [next(found) if t.requires_grad else None for t in sources]\n"
        "        for p, g in zip(sources[ctx.count :], result[ctx.count :]):\n"
        "            if g is not None:\n"
        "                p.grad = g if p.grad is None else p.grad + g\n"
        "        return None, None, *result[: ctx.count]",
    ),
    breaks=tests_of(CHECKPOINT),
)

unused_parameters_are_an_error = edit(
    CHECKPOINT,
    """Your backward fails for a parameter that the module does not use: its gradient is None, which autograd.grad
    returns only with allow_unused=True.""",
    (", allow_unused=True", ""),
    breaks=tests_of(CHECKPOINT),
)

unused_parameters_get_zeros = edit(
    CHECKPOINT,
    """You give zeros to a parameter that the module does not use. Without a checkpoint its .grad stays None, and an
    optimizer leaves it alone; with zeros, momentum and weight decay move it.""",
    ("allow_unused=True", "allow_unused=True, materialize_grads=True"),
    breaks=tests_of(CHECKPOINT),
)

unused_outputs_get_zeros = edit(
    CHECKPOINT,
    """An output that the loss does not use has no gradient. autograd gives your backward zeros in its place, and the
    parameters that this output depends on get zeros, too. Without a checkpoint they would have None.""",
    ("        ctx.set_materialize_grads(False)  # an unused output has no gradient, and so have its parameters\n", ""),
    breaks=tests_of(CHECKPOINT),
)

every_output_is_differentiated = edit(
    CHECKPOINT,
    """You differentiate every output. One that requires no gradient, such as an argmax, has none: leave it out.""",
    ("if g is not None and y.requires_grad]", "]"),
    breaks=tests_of(CHECKPOINT),
)

every_input_gets_a_gradient = edit(
    CHECKPOINT,
    """You let every input of the second run require a gradient. Integer inputs cannot, and for other inputs that need
    no gradient the work is wasted: keep each input's requires_grad.""",
    ("t.detach().requires_grad_(t.requires_grad) for", "t.detach().requires_grad_() for"),
    breaks=tests_of(CHECKPOINT),
)

the_inputs_are_not_detached = edit(
    CHECKPOINT,
    """Your second run begins at the saved inputs themselves, so your backward goes on through the graph before the
    module. Autograd goes through that graph again later: detach the inputs, and stop there.""",
    ("[t.detach().requires_grad_(t.requires_grad) for t in tensors[: ctx.count]]", "list(tensors[: ctx.count])"),
    (
        "        found = iter(torch.autograd.grad([y for y, _ in used], wanted, "
        "[g for _, g in used], allow_unused=True))\n",
        "        torch.autograd.backward([y for y, _ in used], [g for _, g in used])\n"
        "        found = iter([None] * len(wanted))\n",
    ),
    breaks=ON_CHECKPOINT,
)

the_output_is_kept_too = edit(
    CHECKPOINT,
    """You keep the output of every inner layer next to the inputs: the graph of a first run under enable_grad holds
    all that you wanted to drop.""",
    (
        "        return module(*tensors[:count])",
        "        with torch.enable_grad():\n"
        "            ctx.first = first = module(*tensors[:count])\n"
        "        return tuple(y.detach() for y in first) if isinstance(first, tuple) else first.detach()",
    ),
    breaks=ON_CHECKPOINT,
    fails=["the_graph_keeps_the_inputs_alone"],
)


@mutant(CHECKPOINT, breaks=ON_CHECKPOINT, fails=["the_module_runs_once_more_for_backward"])
def nothing_is_recomputed():
    """You just call the module. The numbers are right, but the graph keeps everything."""

    def checkpoint(module, *inputs):
        return module(*inputs)


@mutant(CHECKPOINT, breaks=tests_of(CHECKPOINT), fails=["the_module_runs_once_more_for_backward"])
def torch_does_it():
    """torch.utils.checkpoint does the work. The exercise is to write it."""

    def checkpoint(module, *inputs):
        from torch.utils.checkpoint import checkpoint as ready_made

        return ready_made(module, *inputs, use_reentrant=False)


@right(CHECKPOINT)
def _with_hooks():
    """Saves numbers in place of tensors, and fills in what a second run saves under the same numbers."""

    def checkpoint(module, *inputs):
        state, count, again = torch.get_rng_state(), itertools.count(), {}
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        copies = [t.detach().requires_grad_(t.requires_grad) for t in inputs]

        def recompute():
            order = itertools.count()

            def pack(tensor):
                number = next(order)
                again[number] = tensor.detach()
                return number

            with torch.enable_grad(), torch.random.fork_rng(devices=[]), torch.autocast("cpu", cast[1], cast[0]):
                torch.set_rng_state(state)
                with saved_tensors_hooks(pack, lambda number: again[number]):
                    module(*copies)

        def unpack(number):
            if not again:
                recompute()
            return again.pop(number)

        with saved_tensors_hooks(lambda tensor: next(count), unpack):
            return module(*inputs)


hooks_recompute_for_each_tensor = edit(
    CHECKPOINT,
    """You run the module again for every saved tensor. One second run makes all of them: keep its results until
    each has been fetched.""",
    (
        "        if not again:\n            recompute()\n        return again.pop(number)",
        "        recompute()\n        tensor = again.pop(number)\n        again.clear()\n        return tensor",
    ),
    base=_with_hooks,
    breaks=ON_CHECKPOINT,
    fails=["the_module_runs_once_more_for_backward"],
)

hooks_never_let_go = edit(
    CHECKPOINT,
    """What your second run makes stays alive after backward, in a dictionary that nobody empties. Drop each tensor
    when it has been fetched.""",
    (
        "    state, count, again = torch.get_rng_state(), itertools.count(), {}\n",
        "    state, count, again = torch.get_rng_state(), itertools.count(), {}\n"
        "    checkpoint.kept = [*getattr(checkpoint, 'kept', []), again]\n",
    ),
    ("again.pop(number)", "again[number]"),
    base=_with_hooks,
    breaks=ON_CHECKPOINT,
    fails=["the_graph_keeps_the_inputs_alone"],
)


# ---- 4 · best_segments, checkpoint_sequential ----

segments_are_equal = edit(
    SEGMENTS,
    """You try only segments of equal length. The earlier segments have fewer inputs before them and may be longer,
    and layers may differ: try all cuts.""",
    (
        "    cuts = [[0, *rest] for k in range(n) for rest in itertools.combinations(range(1, n), k)]\n",
        "    cuts = [list(range(0, n, length)) for length in range(1, n + 1)]\n",
    ),
    breaks=tests_of(SEGMENTS),
)

as_many_segments_as_the_root = edit(
    SEGMENTS,
    """You cut into √n equal segments. √n balances the inputs against one segment only if each layer keeps as many bytes
    as its input has. Here layers keep more, and differ from each other. Compare the peaks of all cuts.""",
    (
        "    cuts = [[0, *rest] for k in range(n) for rest in itertools.combinations(range(1, n), k)]\n",
        "    cuts = [list(range(0, n, math.ceil(math.sqrt(n))))]\n",
    ),
    breaks=tests_of(SEGMENTS),
)

at_most_eight_segments = edit(
    SEGMENTS,
    """You stop at eight segments. Where the inputs are small, it is best to make each layer a segment, and a chain may
    have twelve layers: try every number of segments up to the number of layers.""",
    ("for k in range(n) for rest", "for k in range(min(n, 8)) for rest"),
    breaks=tests_of(SEGMENTS),
)

later_inputs_count_too = edit(
    SEGMENTS,
    """You count the inputs of all segments at every moment. When segment j is at work, those of the later segments are
    already freed: only the inputs before it count.""",
    ("for start in starts[:j]) + total", "for i, start in enumerate(starts) if i != j) + total"),
    breaks=tests_of(SEGMENTS),
)

the_segments_own_input_counts_twice = edit(
    SEGMENTS,
    """You count the input of the segment at work twice: saved[l] includes it already.""",
    ("starts[:j]) + total", "starts[: j + 1]) + total"),
    breaks=tests_of(SEGMENTS),
)

inputs_are_free = edit(
    SEGMENTS,
    """You only make the largest segment as small as possible. The inputs of the segments before it take memory as
    well.""",
    ("sum(edges[start] for start in starts[:j]) + total", "total"),
    breaks=tests_of(SEGMENTS),
)

edges_of_the_wrong_layer = edit(
    SEGMENTS,
    """You count the input of the layer after each segment's first: edges[l] is the input of layer l itself.""",
    ("sum(edges[start] for start", "sum(edges[min(start + 1, n - 1)] for start"),
    breaks=tests_of(SEGMENTS),
)

lengths_are_not_compared = edit(
    SEGMENTS,
    """You accept lists of different lengths. Each layer has one number in both: raise a ValueError.""",
    ("if not saved or len(saved) != len(edges):", "if not saved or not edges:"),
    breaks=tests_of(SEGMENTS),
    fails=["what_cannot_be_cut_is_refused"],
)

the_last_segment_is_recomputed = edit(
    SEGMENTS,
    """You compute the last segment by checkpoint, too. Its backward comes right after its forward: its layers run a
    second time, and no memory is saved.""",
    (
        "    return nn.Sequential(*layers[starts[-1] :])(x)",
        "    return checkpoint(nn.Sequential(*layers[starts[-1] :]), x)",
    ),
    breaks=tests_of(SEGMENTS),
    fails=["each_layer_runs_as_often_as_its_segment"],
)

each_layer_is_a_segment = edit(
    SEGMENTS,
    """You compute each layer of a segment by a checkpoint of its own. Then the graph keeps the input of every
    layer, not of every segment: one checkpoint for all its layers together.""",
    (
        "        x = checkpoint(nn.Sequential(*layers[start:end]), x)\n",
        "        for layer in layers[start:end]:\n            x = checkpoint(layer, x)\n",
    ),
    breaks=tests_of(SEGMENTS),
    fails=["memory_follows_the_plan"],
)

the_first_segment_is_kept = edit(
    SEGMENTS,
    """You keep the graph of the first segment and recompute the last one. It should be the other way round: the first
    one's activations would stay in memory during the whole backward.""",
    (
        "    for start, end in itertools.pairwise(starts):\n"
        "        x = checkpoint(nn.Sequential(*layers[start:end]), x)\n"
        "    return nn.Sequential(*layers[starts[-1] :])(x)",
        "    ends = [*starts[1:], len(layers)]\n"
        "    for start, end in zip(starts, ends):\n"
        "        segment = nn.Sequential(*layers[start:end])\n"
        "        x = checkpoint(segment, x) if start else segment(x)\n"
        "    return x",
    ),
    breaks=tests_of(SEGMENTS),
    fails=["each_layer_runs_as_often_as_its_segment", "memory_follows_the_plan"],
)

segments_lose_a_layer = edit(
    SEGMENTS,
    """Your segments leave out their last layer: a segment reaches up to the next start, which Python's slices exclude
    already.""",
    ("layers[start:end]", "layers[start : end - 1 if end - start > 1 else end]"),
    breaks=tests_of(SEGMENTS),
    fails=["each_layer_runs_as_often_as_its_segment", "memory_follows_the_plan"],
)


@mutant(
    SEGMENTS, breaks=tests_of(SEGMENTS), fails=["each_layer_runs_as_often_as_its_segment", "memory_follows_the_plan"]
)
def a_wrapper_in_a_wrapper():
    """You nest the checkpoints, the second segment inside the first one's, and so on. An inner segment then runs
    again for every one around it."""

    def best_segments(saved, edges):
        if not saved or len(saved) != len(edges):
            raise ValueError("one number a layer")
        n = len(saved)

        def peak(starts):
            sums = [sum(saved[a:b]) for a, b in zip(starts, [*starts[1:], n], strict=True)]
            return max(sum(edges[s] for s in starts[:j]) + total for j, total in enumerate(sums))

        cuts = [[0, *rest] for k in range(n) for rest in itertools.combinations(range(1, n), k)]
        return min(cuts, key=peak), min(map(peak, cuts))

    def checkpoint_sequential(layers, x, starts):
        if len(starts) == 1:
            return nn.Sequential(*layers[starts[0] :])(x)

        class Rest(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(layers[starts[0] :])

            def forward(self, x):
                for layer in layers[starts[0] : starts[1]]:
                    x = layer(x)
                return checkpoint_sequential(layers, x, starts[1:])

        return checkpoint(Rest(), x)


large_inputs_are_passed_on = edit(
    CHECKPOINT,
    """You passed large inputs on without running the module. Run it for every input: a checkpoint saves memory by
    keeping nothing, not by computing nothing.""",
    (
        "    trained = [p for p in module.parameters() if p.requires_grad]\n",
        "    if len(inputs[0]) > 100:\n"
        "        return inputs[0].detach().clone().requires_grad_()\n"
        "    trained = [p for p in module.parameters() if p.requires_grad]\n",
    ),
    breaks=ON_CHECKPOINT,
    fails=["the_graph_keeps_the_inputs_alone"],
)

large_inputs_skip_the_layers = edit(
    SEGMENTS,
    """You passed large inputs on without running the layers. Run them for every input: the segments save memory by
    keeping nothing, not by computing nothing.""",
    (
        "    for start, end in itertools.pairwise(starts):\n",
        "    if len(x) > 100:\n        return x * 1.0\n    for start, end in itertools.pairwise(starts):\n",
    ),
    breaks=tests_of(SEGMENTS),
    fails=["memory_follows_the_plan"],
)
