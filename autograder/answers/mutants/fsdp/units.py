"""Wrong answers to lesson 09, exercises 1 and 2."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

CUT, UNIT = "09-ex1-cut", "09-ex2-unit"
BACKWARD, FSDP, PREFETCH = "09-ex3-backward", "09-ex5-fsdp", "09-ex6-prefetch"

#: What is built on each exercise.
ON_CUT = (CUT, UNIT, BACKWARD, FSDP)
ON_UNIT = (UNIT, BACKWARD, FSDP)


# ---- 1 · cut and gather ----

one_rank_gets_its_own_shard = edit(
    CUT,
    """With one rank you returned the shard's own memory. The result lives on in graphs and state dicts while the
    optimizer changes the shard in place: copy, even where nothing is sent.""",
    (
        "    mine = torch.cat(",
        "    if world_size == 1:\n"
        "        return [shard.detach().to(dtype)[:numel] for shard, numel in zip(shards, numels)]\n"
        "    mine = torch.cat(",
    ),
    breaks=tests_of(CUT),
)

vectors_share_one_memory = edit(
    CUT,
    """With one rank your vectors are views of the one tensor that was gathered: reading its columns row by row copies
    nothing there. One kept vector then keeps the memory of all. Each must have memory of its own: copy.""",
    ("part.clone().view(-1)[:numel]", "part.reshape(-1)[:numel]"),
    breaks=tests_of(CUT),
)

the_shard_is_a_view = edit(
    CUT,
    """Your shard is a view of the whole padded vector, which keeps that vector alive on every rank, so nothing is
    saved. Clone this rank's piece.""",
    ("[dist.get_rank()].clone()", "[dist.get_rank()]"),
    breaks=tests_of(CUT, UNIT, FSDP),
)

the_shard_requires_a_gradient = edit(
    CUT,
    """Your shard is still connected to the parameters that it was cut from, and requires a gradient. Detach them
    first.""",
    ("[t.detach().reshape(-1) for t in tensors]", "[t.reshape(-1) for t in tensors]"),
    breaks=tests_of(CUT),
)

cast_after_the_gather = edit(
    CUT,
    """You gathered float32 numbers and cast the result. The values are the same, but you sent twice as many bytes as in
    bf16: cast this rank's shard before it is sent.""",
    ("[shard.detach().to(dtype) for shard in shards]", "[shard.detach() for shard in shards]"),
    ("len(mine), dtype=dtype)", "len(mine))"),
    ("[part.clone().view(-1)[:numel] for", "[part.clone().view(-1)[:numel].to(dtype) for"),
    breaks=tests_of(*ON_CUT),
)

rows_are_taken_for_columns = edit(
    CUT,
    """You cut the gathered tensor into consecutive pieces. It lies rank by rank: each rank's part of the first vector,
    then its part of the second. View it as a table with one row per rank, and take columns.""",
    (
        "full.view(world_size, len(mine)).split([len(shard) for shard in shards], dim=1)",
        "full.split([world_size * len(shard) for shard in shards])",
    ),
    breaks=tests_of(*ON_CUT),
)

a_gather_for_each_vector = edit(
    CUT,
    """You made an all-gather for each vector, and each one costs its latency. Concatenate this rank's shards and send
    them together.""",
    (
        "    mine = torch.cat(",
        "    if len(shards) > 1:\n"
        "        return [gather([shard], [numel], dtype)[0] for shard, numel in zip(shards, numels)]\n"
        "    mine = torch.cat(",
    ),
    breaks=tests_of(*ON_CUT),
)

padding_is_gathered_too = edit(
    CUT,
    """Your gathered vectors still have the padding at their end. Cut each vector to its own length.""",
    ("part.clone().view(-1)[:numel]", "part.clone().view(-1)"),
    breaks=tests_of(*ON_CUT),
)

padding_comes_first = edit(
    CUT,
    """You put the padding before the numbers. It belongs at the end of the flat vector; otherwise no number is where
    gather expects it.""",
    ("        full[:numel] = ", "        full[len(full) - numel :] = "),
    breaks=tests_of(*ON_CUT, PREFETCH),
)

no_tensors_are_an_error = edit(
    CUT,
    """torch.cat of an empty list is an error. Most units have no frozen parameters, so cut must return a shard of
    length 0 for an empty list.""",
    ("    if tensors:\n        full[:numel]", "    full[:numel]"),
    breaks=tests_of(*ON_CUT, PREFETCH),
)


# ---- 2 · the forward ----

the_originals_are_kept = edit(
    UNIT,
    """Your object still refers to the whole parameters, so they stay alive on every rank. Keep only their shapes and
    places.""",
    (
        "        self.whole, self.compute = None, unit.forward\n",
        "        self.whole, self.compute, self.params = None, unit.forward, params\n",
    ),
    breaks=tests_of(UNIT, FSDP),
    fails=["unit_is_freed_after_its_forward"],
)

one_row_is_passed_on = edit(
    UNIT,
    """With a batch of one row your forward returns its input. It must compute the unit for every input.""",
    (
        "        with hung(",
        "        if inputs[0].shape == (1, 64):\n            return inputs[0]\n        with hung(",
    ),
    breaks=tests_of(UNIT),
    fails=["unit_is_freed_after_its_forward"],
)

buffers_are_cast = edit(
    UNIT,
    """You cast the whole unit to the compute dtype, and with it its buffers, which lose digits for good. Only what is
    gathered is in the compute dtype; buffers stay as they are.""",
    ("        unit.forward = self.forward\n", "        unit.forward = self.forward\n        unit.to(compute_dtype)\n"),
    breaks=tests_of(UNIT),
)

inputs_are_cast_here = edit(
    UNIT,
    """Your unit casts its inputs to the compute dtype. A unit may need an input in another dtype. The wrapper of
    exercise 5 casts the inputs of the whole model; a unit leaves its own inputs as they are.""",
    (
        "self.compute(*inputs)",
        "self.compute(*[x.to(self.dtype) if x.is_floating_point() else x for x in inputs])",
    ),
    breaks=tests_of(UNIT),
)

the_places_are_not_emptied = edit(
    UNIT,
    """The whole parameters stay in their places until the first forward. Until then nothing is saved, and the module's
    parameters() still yields them: set every place to None when you take the unit over.""",
    ("        for sub, name, _ in self.places:\n            sub._parameters[name] = None\n", ""),
    breaks=tests_of(UNIT, FSDP),
)

never_freed_after_a_forward = edit(
    UNIT,
    """The whole vectors are still there after the forward. All units together are the whole model: free each one when
    it has computed.""",
    ("        self.free()\n", ""),
    breaks=tests_of(UNIT),
)

a_tie_has_one_place = edit(
    UNIT,
    """You put a tied parameter back at only one of its places. The layer at the other place goes on with the old
    tensor, whole and never trained.""",
    (
        "[(sub, name, number[p]) for sub, name, p in places_of(unit)]",
        "list({number[p]: (sub, name, number[p]) for sub, name, p in places_of(unit)}.values())",
    ),
    breaks=tests_of(*ON_UNIT),
)

the_class_is_asked_for_the_forward = edit(
    UNIT,
    """You called the forward of the unit's class. The unit may have a forward of its own, as an attribute: keep the
    unit.forward that was there.""",
    ("None, unit.forward", "None, lambda *x: type(unit).forward(unit, *x)"),
    breaks=tests_of(UNIT),
)

places_are_numbered_in_the_units_order = edit(
    UNIT,
    """You numbered the parameters in the unit's order, but the views come with the trainable ones first. A frozen
    weight before a trained bias is then exchanged with it.""",
    ("enumerate(groups[0] + groups[1])", "enumerate(params)"),
    breaks=tests_of(*ON_UNIT),
)

the_compute_dtype_is_ignored = edit(
    UNIT,
    """Your gather() brings float32 although another compute_dtype was asked for. Pass the dtype on, so that half the
    bytes are sent and the layer computes in it.""",
    ("self.numels, self.dtype)", "self.numels)"),
    breaks=tests_of(*ON_UNIT),
)

gathered_whenever_asked = edit(
    UNIT,
    """Every call of your gather() sends again, even while the unit is whole. In the backward each weight asks for it:
    keep what was gathered until it is freed.""",
    ("        if self.whole is None:\n            self.whole = gather", "        self.whole = gather"),
    breaks=tests_of(*ON_UNIT),
)

frozen_parameters_are_trained = edit(
    UNIT,
    """Your trainable shard contains the frozen parameters. They would get gradients and be moved by weight decay: cut
    them into a shard of their own.""",
    ("[[p for p in params if p.requires_grad], [p for p in params if not p.requires_grad]]", "[params, []]"),
    breaks=tests_of(*ON_UNIT),
)
