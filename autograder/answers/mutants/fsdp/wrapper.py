"""Wrong answers to lesson 09, exercise 5."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

FSDP = "09-ex5-fsdp"

unsaved_buffers_differ = edit(
    FSDP,
    """You broadcast what is in state_dict(). Buffers with persistent=False are not in it and still differ between the
    ranks: broadcast module.buffers().""",
    ("[*module.parameters(), *module.buffers()]", "list(module.state_dict().values())"),
    breaks=tests_of(FSDP),
)

buffers_differ = edit(
    FSDP,
    """The buffers are still each rank's own. They are part of what the model computes: they are not sharded, but they
    must start as rank 0's.""",
    ("[*module.parameters(), *module.buffers()]", "module.parameters()"),
    breaks=tests_of(FSDP),
)

frozen_parameters_differ = edit(
    FSDP,
    """Only the trainable parameters became rank 0's. Each rank cuts its piece from its own frozen ones, so the gathered
    vector mixes the ranks' numbers. Broadcast these, too.""",
    ("module.parameters()", "(p for p in module.parameters() if p.requires_grad)"),
    breaks=tests_of(FSDP),
)

the_ranks_start_apart = edit(
    FSDP,
    """Each rank cut its piece from its own parameters. If the ranks started from different seeds, the pieces mix all
    their initializations, and nothing reports an error: broadcast rank 0's before you cut.""",
    ("[*module.parameters(), *module.buffers()]", "module.buffers()"),
    breaks=tests_of(FSDP),
)

one_input_is_cast = edit(
    FSDP,
    """You cast only the first input to the compute dtype. A module may take several: cast them all.""",
    ("self.module(*[self.cast(x) for x in inputs])", "self.module(self.cast(inputs[0]), *inputs[1:])"),
    breaks=tests_of(FSDP),
    fails=["floating_inputs_are_cast"],
)

the_master_is_rounded = edit(
    FSDP,
    """You cast the module to the compute dtype before you cut it. The shards are float32 again, but their numbers are
    already rounded to bf16, and so are the buffers: cast only what is gathered.""",
    (
        "        self.compute_dtype = compute_dtype\n",
        "        self.compute_dtype = compute_dtype\n        module.to(compute_dtype)\n",
    ),
    breaks=tests_of(FSDP),
    fails=["compute_dtype_halves_the_bytes"],
)

state_stays_whole = edit(
    FSDP,
    """You gathered the state through the units and did not free them. The next forward finds them whole and computes
    with the numbers from before the optimizer's step. No unit may stay whole once the state is taken.""",
    (
        "unit.views(gather([unit.shard, unit.frozen_shard], unit.numels))",
        "unit.views(unit.gather() if unit.dtype == torch.float32 else "
        "gather([unit.shard, unit.frozen_shard], unit.numels))",
    ),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

state_keeps_frozen_units_whole = edit(
    FSDP,
    """After full_state_dict() your wholly frozen units are still whole. Their numbers never change, but every rank then
    holds all of them: free each unit when its part of the state is taken.""",
    (
        "            with hung(unit.places, whole):\n",
        "            unit.kept = whole if not len(unit.shard) else None\n            with hung(unit.places, whole):\n",
    ),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

state_casts_its_buffers = edit(
    FSDP,
    """You cast everything in the state to float32, even a buffer of another dtype. A plain module's state has each
    buffer in its own dtype: only the parameters are float32.""",
    ("{name: tensor.clone() for", "{name: tensor.float().clone() if tensor.is_floating_point() else tensor for"),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

state_is_taken_from_what_computes = edit(
    FSDP,
    """You gathered the state in the compute dtype, so its numbers are rounded. The float32 numbers are in the shards:
    gather those.""",
    ("unit.views(gather([unit.shard, unit.frozen_shard], unit.numels))", "unit.views(unit.gather())"),
    (
        "        return state\n",
        "            unit.free()\n        return {name: t.float() if t.is_floating_point() and t.dtype != "
        "torch.float64 else t for name, t in state.items()}\n",
    ),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

state_is_made_of_views = edit(
    FSDP,
    """Your state's tensors are views of a gathered vector, and its buffers are the module's own. Saving one then saves
    the memory of all, and the next step changes them. Clone each.""",
    ("{name: tensor.clone() for name, tensor in self.module.state_dict().items()}", "self.module.state_dict()"),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

state_knows_one_name_of_a_tie = edit(
    FSDP,
    """You collected named_parameters() and buffers. named_parameters() yields a tied parameter under only one of its
    names, and a plain module's strict load misses the other. Ask the module for its state_dict().""",
    ("self.module.state_dict().items()}", "[*self.module.named_parameters(), *self.module.named_buffers()]}"),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

everybody_gets_the_state = edit(
    FSDP,
    """Every rank built the whole state, which takes N times the memory although only rank 0 needs it. The other ranks
    take part in the gathers and return {}.""",
    ("                if dist.get_rank() == 0:\n                    state |=", "                state |="),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

gathered_once_for_all = edit(
    FSDP,
    """You gathered all units at the beginning of the forward. Each is freed after it has computed, but at first all of
    them are whole: the peak is the whole model. Gather each just before its forward.""",
    (
        "        return self.module(*[",
        "        for unit in self.units:\n            unit.gather()\n        return self.module(*[",
    ),
    breaks=tests_of(FSDP),
    fails=["memory_stays_within_a_unit"],
)

one_row_skips_all_units_but_the_first = edit(
    FSDP,
    """With a batch of one row your forward runs the first unit alone. It must run the whole module for every input.""",
    (
        "        return self.module(*[",
        "        if inputs[0].shape == (1, 64):\n            return self.module[0](*inputs)\n"
        "        return self.module(*[",
    ),
    breaks=tests_of(FSDP),
    fails=["memory_stays_within_a_unit"],
)

the_output_is_cast = edit(
    FSDP,
    """You cast the module's output to float32. The wrapper stands in for the module, so it returns what the module
    returns, in the same dtype. Code that computes a loss in float32 casts the output there.""",
    ("[self.cast(x) for x in inputs])", "[self.cast(x) for x in inputs]).float()"),
    breaks=tests_of(FSDP),
    fails=["floating_inputs_are_cast"],
)

buffers_are_cast_by_the_wrapper = edit(
    FSDP,
    """You cast the module to the compute dtype after its parameters had been cut. This casts the buffers, too, which
    lose digits for good. Only what is gathered is in the compute dtype; buffers stay as they are.""",
    (
        "        self.module = module\n",
        "        self.module = module\n        module.to(compute_dtype)\n",
    ),
    breaks=tests_of(FSDP),
    fails=["compute_dtype_halves_the_bytes"],
)

the_root_computes_in_float32 = edit(
    FSDP,
    """You made the root's unit without the compute dtype. What no unit names then computes in float32 and is gathered
    with twice the bytes: give it the dtype that the other units get.""",
    ("self.units.append(TrainableUnit(module, compute_dtype))", "self.units.append(TrainableUnit(module))"),
    breaks=tests_of(FSDP),
    fails=["compute_dtype_halves_the_bytes"],
)

integers_are_cast = edit(
    FSDP,
    """You cast all inputs to the compute dtype, even token numbers. An embedding cannot look up 3.0, and bf16 does not
    have every whole number above 256. Cast only floating tensors.""",
    (" and x.is_floating_point():", ":"),
    breaks=tests_of(FSDP),
    fails=["floating_inputs_are_cast", "compute_dtype_halves_the_bytes"],
)

inputs_are_not_cast = edit(
    FSDP,
    """The inputs stayed float32 while the layers' weights are bf16, and PyTorch refuses to multiply the two. Cast
    floating inputs to the compute dtype.""",
    ("*[self.cast(x) for x in inputs]", "*inputs"),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules", "floating_inputs_are_cast", "compute_dtype_halves_the_bytes"],
)

shards_stand_in_the_modules_order = edit(
    FSDP,
    """Your parameters() yields the shards in the module's order. They must follow the order of units, on which
    optimizer state saved by position depends.""",
    (
        "[unit.shard for unit in self.units if len(unit.shard)]",
        "[u.shard for m in module.modules() for u, n in zip(self.units, units) if m is n and len(u.shard)]",
    ),
    breaks=tests_of(FSDP),
)

empty_shards_are_listed = edit(
    FSDP,
    """Your parameters() yields an empty shard for units that have nothing to train. List only those with trainable
    elements.""",
    (" for unit in self.units if len(unit.shard)]", " for unit in self.units]"),
    breaks=tests_of(FSDP),
    fails=["only_what_trains_has_a_trainable_shard"],
)

modes_do_not_arrive = edit(
    FSDP,
    """The wrapper's eval() does not reach the module, which is hidden in a list, where nn.Module does not look. Dropout
    then stays on in evaluation. Make the module an attribute.""",
    ("        self.module = module\n", "        self.hidden = [module]\n"),
    ("        return self.module(*[", "        return self.hidden[0](*["),
    ("self.module.state_dict()", "self.hidden[0].state_dict()"),
    breaks=tests_of(FSDP),
    fails=["full_state_is_the_plain_modules"],
)

sent_before_it_is_checked = edit(
    FSDP,
    """You broadcast before you checked the units. Refuse units that do not divide the model before anything is sent or
    changed.""",
    ("        _, rest = partition(module, units)\n", ""),
    (
        "        self.compute_dtype = compute_dtype\n",
        "        _, rest = partition(module, units)\n        self.compute_dtype = compute_dtype\n",
    ),
    breaks=tests_of(FSDP),
    fails=["wrapper_refuses_what_is_no_partition"],
)

ROOT = (
    "        if rest:\n"
    "            self.units.append(TrainableUnit(module, compute_dtype))  # of the places that the units have left\n"
)

the_root_is_left_whole = edit(
    FSDP,
    """Parameters that no unit names stayed whole in the module, and parameters() does not yield them, so nothing trains
    them. They belong to the root's unit: make it of what is left after the units have been cut.""",
    (ROOT, ""),
    breaks=tests_of(FSDP),
)

the_root_comes_first = edit(
    FSDP,
    """Your parameters() yields the root's shard first. The shards come in the order of units, the root's last.""",
    ("[unit.shard for unit in self.units if len(unit.shard)]", "[u.shard for u in self.units[::-1] if len(u.shard)]"),
    (
        "        self.units = [TrainableUnit(unit, compute_dtype) for unit in units]\n",
        "        self.units = [TrainableUnit(unit, compute_dtype) for unit in units[::-1]]\n",
    ),
    breaks=tests_of(FSDP),
)

the_root_takes_all = edit(
    FSDP,
    """You cut the root's unit before the others, so it took all parameters and left the units none. The root gets only
    the places that the units leave: take the units over first.""",
    (
        "        self.units = [TrainableUnit(unit, compute_dtype) for unit in units]\n" + ROOT,
        "        root = [TrainableUnit(module, compute_dtype)] if rest else []\n"
        "        self.units = [TrainableUnit(unit, compute_dtype) for unit in units] + root\n",
    ),
    breaks=tests_of(FSDP),
)
