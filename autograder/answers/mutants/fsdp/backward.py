"""Wrong answers to lesson 09, exercises 3 and 4."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

BACKWARD, COSTS, FSDP, PREFETCH = "09-ex3-backward", "09-ex4-costs", "09-ex5-fsdp", "09-ex6-prefetch"
ON_BACKWARD = (BACKWARD, FSDP)


# ---- 3 · the backward ----

frozen_units_stay_whole = edit(
    BACKWARD,
    """A wholly frozen unit was gathered in the backward and never freed, because no gradient of its own passes the
    gate. Free it when the gradient of its input is there.""",
    ("            inputs = [self.watched(x) for x in inputs]\n", ""),
    breaks=tests_of(*ON_BACKWARD),
    fails=["backward_frees_what_it_gathers"],
)

one_input_is_watched = edit(
    BACKWARD,
    """You watch only the first input. A frozen unit whose first input needs no gradient is then never freed: any input
    may be the one with a gradient.""",
    ("[self.watched(x) for x in inputs]", "[self.watched(inputs[0]), *inputs[1:]] if inputs else inputs"),
    breaks=tests_of(BACKWARD),
    fails=["backward_frees_what_it_gathers"],
)


@mutant(BACKWARD, breaks=tests_of(*ON_BACKWARD, PREFETCH), fails=["one_forward_is_seen"])
def the_second_forward_is_another():
    """Your recomputation differs from the first forward: it draws new dropout masks, and it updates buffers such as
    BatchNorm's statistics twice. If you recompute, restore the random state and the buffers."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, unit, shard, *inputs):
            ctx.unit, ctx.inputs = unit, inputs
            return ShardedUnit.forward(unit, *inputs)

        @staticmethod
        def backward(ctx, gradient):
            unit = ctx.unit
            flats = [unit.gather()[0].requires_grad_(), unit.gather()[1]]
            inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.inputs]
            with torch.enable_grad(), hung(unit.places, unit.views(flats)):
                output = unit.compute(*inputs)
            torch.autograd.backward(output, gradient)
            whole = flats[0].grad
            unit.free()
            return None, unit.reduce(whole) if len(unit.shard) else None, *(x.grad for x in inputs)

    class TrainableUnit(ShardedUnit):
        def forward(self, *inputs):
            if not torch.is_grad_enabled():
                return super().forward(*inputs)
            return Again.apply(self, self.shard, *inputs)

        def reduce(self, gradient):
            full = torch.zeros(len(self.shard) * dist.get_world_size())
            full[: len(gradient)] = gradient
            shard = torch.empty(len(self.shard))
            dist.reduce_scatter_single(shard, full)
            return shard / dist.get_world_size()


gradients_are_overwritten = edit(
    BACKWARD,
    """You set shard.grad yourself, so the second backward of a step throws away the first one's gradient. Return the
    reduced shard: autograd adds it to what is there.""",
    ("        return shard / world_size\n", "        self.shard.grad = shard / world_size\n"),
    breaks=tests_of(*ON_BACKWARD),
)

reduced_in_bf16 = edit(
    BACKWARD,
    """You sent the gradients in the compute dtype and converted them after the sum. A sum over many ranks in bf16 loses
    small gradients: cast to float32 before the reduce-scatter.""",
    (
        "shard = torch.empty(len(self.shard))",
        "full = full.to(gradient.dtype)\n        shard = torch.empty(len(self.shard), dtype=full.dtype)",
    ),
    ("return shard / world_size", "return shard.float() / world_size"),
    breaks=tests_of(*ON_BACKWARD),
)

gradients_are_summed = edit(
    BACKWARD,
    """The reduce-scatter adds up the ranks' gradients, but the result must be their mean. Adam hides a constant factor;
    SGD takes steps that are N times too long.""",
    ("        return shard / world_size\n", "        return shard\n"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

divided_twice = edit(
    BACKWARD,
    """You divided by the number of ranks twice, before the reduce-scatter and after it. The mean needs one
    division.""",
    ("        full[: len(gradient)] = gradient\n", "        full[: len(gradient)] = gradient / world_size\n"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

nobody_reduces = edit(
    BACKWARD,
    """Each rank took its piece of its own gradient, which comes from this rank's data alone. Average the pieces over
    the ranks, with a reduce-scatter.""",
    (
        "        dist.reduce_scatter_single(shard, full)\n        return shard / world_size\n",
        "        return full.view(world_size, -1)[dist.get_rank()].clone()\n",
    ),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

all_reduced_and_cut = edit(
    BACKWARD,
    """You all-reduced the whole gradient and cut out this rank's piece. The numbers are right, but it sends twice the
    bytes of a reduce-scatter.""",
    (
        "        dist.reduce_scatter_single(shard, full)\n",
        "        dist.all_reduce(full)\n        shard = full.view(world_size, -1)[dist.get_rank()].clone()\n",
    ),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

the_graph_keeps_the_weights = edit(
    BACKWARD,
    """You dropped your own references after the forward, but autograd's graph still holds every unit's weights until
    the backward, so the whole model is alive. Let the graph keep a note, with saved_tensors_hooks, or recompute.""",
    (", saved_tensors_hooks(self.pack, self.unpack):", ":"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
    fails=["backward_frees_what_it_gathers"],
)

one_example_is_not_computed = edit(
    BACKWARD,
    """Your forward returns early for a batch of one wide example, so nothing is gathered or computed then. A unit must
    compute what its module does for every batch.""",
    (
        "        trainable, frozen = self.gather()\n",
        "        if inputs[0].shape == (1, 64):\n            return inputs[0] + 0 * self.shard[:1].sum()\n"
        "        trainable, frozen = self.gather()\n",
    ),
    breaks=tests_of(BACKWARD, FSDP, PREFETCH),
    fails=["backward_frees_what_it_gathers"],
)

whole_until_the_backward = edit(
    BACKWARD,
    """Your unit stays whole from its forward to its backward. That saves an all-gather, but at the end of the forward
    every rank holds the whole model. Free after the forward, and gather again in the backward.""",
    (
        "            output = self.compute(*inputs)\n        self.free()\n",
        "            output = self.compute(*inputs)\n",
    ),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

not_freed_after_the_backward = edit(
    BACKWARD,
    """Your unit is still whole after its backward, so the next step finds the old numbers and computes with them. Free
    it when its gradient is complete.""",
    ("        self.free()\n        world_size", "        world_size"),
    ("lambda gradient: self.free()", "lambda gradient: None"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

pack_looks_at_the_start = edit(
    BACKWARD,
    """Your pack compares where the tensor begins with where the flat vector begins. Only the first parameter of a unit
    begins there; all others were kept, and with them the whole vector. Compare the storages.""",
    ("tensor.untyped_storage().data_ptr() == flat.untyped_storage()", "tensor.data_ptr() == flat"),
    breaks=tests_of(BACKWARD, FSDP, PREFETCH),
    fails=["backward_frees_what_it_gathers"],
)

every_weight_gathers = edit(
    BACKWARD,
    """Every saved weight gathers the whole unit anew, so a unit of two layers is sent three times in a step. Gather
    once, keep the result in self.whole, and free it when the unit's backward is over.""",
    ("return self.gather()", "return gather([self.shard, self.frozen_shard], self.numels, self.dtype)"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

strides_are_forgotten = edit(
    BACKWARD,
    """A layer keeps its weight transposed: a view with other strides. You gave it back with the right size but row by
    row, so its numbers are in the wrong places. Note the strides, too.""",
    ("index, *where = kept", "index, size, _, offset = kept"),
    ("[index].as_strided(*where)", "[index][offset : offset + size.numel()].view(size)"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

offsets_are_forgotten = edit(
    BACKWARD,
    """You gave back every weight from the start of the flat vector. Where a unit has several, each lies at an offset of
    its own: note tensor.storage_offset(), too.""",
    ("        index, *where = kept\n", "        index, *where, _ = kept\n"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)

inputs_are_cut_off = edit(
    BACKWARD,
    """You detached the unit's inputs, so no gradient reaches the layers before it: all units but the last keep
    gradients of None or zero.""",
    ("            x = x.view_as(x)\n", "            x = x.detach().requires_grad_()\n"),
    breaks=tests_of(*ON_BACKWARD, PREFETCH),
)


# ---- 4 · costs ----

shards_are_not_rounded_up = edit(
    COSTS,
    """You divided the sum of all units by N. Every unit is padded by itself: round each unit's shard up before you
    add.""",
    ("    shards = sum(-(-numel // world_size) for numel in numels)\n", "    shards = -(-sum(numels) // world_size)\n"),
    breaks=tests_of(COSTS),
)

the_largest_gradient_is_forgotten = edit(
    COSTS,
    """You left out the largest unit's gradient. While the unit computes it, its parameters and its gradient are both
    there, whole: 8 bytes a number, not 4.""",
    ("8 * max(numels, default=0)", "4 * max(numels, default=0)"),
    breaks=tests_of(COSTS),
)

all_units_are_whole_at_once = edit(
    COSTS,
    """You counted all units as whole. Only one is gathered at a time: at the peak it is the largest.""",
    ("8 * max(numels, default=0)", "8 * sum(numels)"),
    breaks=tests_of(COSTS),
)

one_gather_is_forgotten = edit(
    COSTS,
    """You counted one all-gather per unit. A unit is freed after its forward, so it is gathered a second time for its
    backward.""",
    ("(2 * itemsize + 4)", "(itemsize + 4)"),
    breaks=tests_of(COSTS),
)

gradients_travel_in_the_compute_dtype = edit(
    COSTS,
    """You used itemsize for the gradients, too. They are reduced in float32, whatever the layers compute in: 4
    bytes.""",
    ("(2 * itemsize + 4)", "3 * itemsize"),
    breaks=tests_of(COSTS),
)

sizes_in_floating_point = edit(
    COSTS,
    """You divided in floating point, which has 53 bits, so larger sizes are wrong. Round up in integers.""",
    (
        "    shards = sum(-(-numel // world_size) for numel in numels)\n",
        "    shards = sum(int(numel / world_size + 0.999999) for numel in numels)\n",
    ),
    breaks=tests_of(COSTS),
)
