"""Wrong answers to lesson 08, exercises 1, 2 and 3."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

BOUNDS, GRADIENT, STEP = "08-ex1-shard-bounds", "08-ex2-gradient", "08-ex3-step"
CLIP, STATE = "08-ex4-clip", "08-ex5-state"

#: What is built on each exercise.
ON_BOUNDS, ON_GRADIENT, ON_STEP = (BOUNDS, STEP, CLIP, STATE), (GRADIENT, STEP, CLIP, STATE), (STEP, CLIP, STATE)


# ---- 1 · shard_bounds and flatten ----


@right(BOUNDS)
def _bounds():
    """Right: the base of the edits below."""

    def shard_bounds(numel, rank, world_size):
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0…{world_size - 1}, got {rank}")
        if numel < 0:
            raise ValueError(f"numel must not be negative, got {numel}")
        size = -(-numel // world_size)
        return min(rank * size, numel), min((rank + 1) * size, numel)

    def flatten(tensors):
        if not tensors:
            return torch.zeros(0)
        return torch.cat([t.detach().reshape(-1).to(torch.float32) for t in tensors])


bounds_in_floating_point = edit(
    BOUNDS,
    """math.ceil(numel / world_size) divides in floating point, which has 53 bits: for very long vectors your shards are
    too short or too long. Round up in integers.""",
    ("size = -(-numel // world_size)", "size = math.ceil(numel / world_size)"),
    base=_bounds,
    breaks=tests_of(BOUNDS),
)

bounds_clip_the_end_only = edit(
    BOUNDS,
    """You clipped the end but not the start. Where a rank owns nothing, its start lies beyond the vector, so the end
    comes before the start and the length is negative. Clip both.""",
    ("min(rank * size, numel)", "rank * size"),
    base=_bounds,
    breaks=tests_of(BOUNDS),
)

bounds_as_tensor_split_cuts = edit(
    BOUNDS,
    """You cut as tensor_split does, with the first shards one longer than the rest. The collectives need shards of
    equal length: round all up, and put the padding at the very end.""",
    (
        "size = -(-numel // world_size)\n    return min(rank * size, numel), min((rank + 1) * size, numel)",
        "quotient, rest = divmod(numel, world_size)\n"
        "    start = rank * quotient + min(rank, rest)\n"
        "    return start, start + quotient + (rank < rest)",
    ),
    base=_bounds,
    breaks=tests_of(*ON_BOUNDS),
)

bounds_round_down = edit(
    BOUNDS,
    """You rounded the shard's length down, so the numbers at the end of the vector belong to no rank, or all to the
    last one. Round up, and let the last ranks have padding.""",
    ("size = -(-numel // world_size)", "size = numel // world_size"),
    (
        "return min(rank * size, numel), min((rank + 1) * size, numel)",
        "return rank * size, (rank + 1) * size if rank < world_size - 1 else numel",
    ),
    base=_bounds,
    breaks=tests_of(*ON_BOUNDS),
)

bounds_accept_any_rank = edit(
    BOUNDS,
    """You accepted a rank outside 0…N−1. A negative one silently gets another rank's numbers: raise a ValueError that
    names rank.""",
    (
        "    if not 0 <= rank < world_size:\n"
        '        raise ValueError(f"rank must be in 0…{world_size - 1}, got {rank}")\n',
        "",
    ),
    base=_bounds,
    breaks=tests_of(BOUNDS),
    fails=["bounds_refuse_what_makes_no_sense"],
)


flatten_gives_a_view_of_a_single_tensor = edit(
    BOUNDS,
    """For a list of one tensor you returned that tensor's own memory: reshape makes a view where it can. Writing into
    the flat vector then changes the parameter. Copy in every case.""",
    (
        "return torch.cat(",
        "if len(tensors) == 1:\n"
        "        return tensors[0].detach().reshape(-1).to(torch.float32)\n"
        "    return torch.cat(",
    ),
    base=_bounds,
    breaks=tests_of(BOUNDS),
    fails=["flatten_lays_numbers_end_to_end"],
)

flatten_keeps_the_dtype = edit(
    BOUNDS,
    """You left the numbers in the tensors' own dtype. The masters and the reduced gradients must be float32: in bf16
    the sums would lose the small updates that the masters are there to keep.""",
    ("(-1).to(torch.float32)", "(-1)"),
    base=_bounds,
    breaks=tests_of(BOUNDS),
    fails=["flatten_lays_numbers_end_to_end"],
)

flatten_follows_the_memory = edit(
    BOUNDS,
    """You laid out the numbers in the order in which they lie in memory. For a transposed tensor that is not the order
    of reshape(-1), and the numbers come back in the wrong places.""",
    ("t.detach().reshape(-1)", "t.detach().as_strided((t.numel(),), (1,))"),
    base=_bounds,
    breaks=tests_of(BOUNDS),
    fails=["flatten_lays_numbers_end_to_end"],
)

flatten_keeps_the_gradient = edit(
    BOUNDS,
    """Your flat vector is part of the graph of the parameters. It requires a gradient, and what you compute from it
    keeps their graph alive. Detach the numbers.""",
    ("t.detach().reshape(-1)", "t.reshape(-1)"),
    base=_bounds,
    breaks=tests_of(BOUNDS),
    fails=["flatten_lays_numbers_end_to_end"],
)

flatten_loses_the_empty_list = edit(
    BOUNDS,
    """torch.cat of an empty list is an error. An empty list of tensors must give a vector of length 0.""",
    ("    if not tensors:\n        return torch.zeros(0)\n", ""),
    base=_bounds,
    breaks=tests_of(BOUNDS),
    fails=["flatten_lays_numbers_end_to_end"],
)


# ---- 2 · ShardedGradient ----

gradients_are_summed = edit(
    GRADIENT,
    """The reduce-scatter adds up the ranks' gradients; the step needs their mean. Adam hides a constant factor, but SGD
    takes steps that are N times too long.""",
    ("            self.gradient /= world_size\n", ""),
    breaks=tests_of(*ON_GRADIENT),
)

all_reduces_then_cuts = edit(
    GRADIENT,
    """You all-reduced the whole gradient and cut out your shard. The numbers are right, but an all-reduce sends twice
    the bytes of a reduce-scatter, so with the all-gather the step costs half as much again as plain data
    parallelism.""",
    (
        "            dist.reduce_scatter_single(self.gradient, full)\n",
        "            dist.all_reduce(full)\n"
        "            self.gradient = full.view(world_size, -1)[dist.get_rank()].clone()\n",
    ),
    breaks=tests_of(*ON_GRADIENT[:3]),
)

every_call_reduces = edit(
    GRADIENT,
    """Each call reduces the gradient again. Clipping scales the first result, and the step then uses a second one that
    nobody has clipped. Keep the shard in self.gradient.""",
    ("        if self.gradient is None:\n", "        if True:\n"),
    breaks=tests_of(GRADIENT, CLIP),
    fails=["gradient_is_reduced_once"],
)

calls_return_copies = edit(
    GRADIENT,
    """You return a copy of the shard that self.gradient keeps. Clipping scales the copy that it was given. The step
    asks again, and gets a copy that is not clipped. Return the tensor itself.""",
    ("        return self.gradient\n", "        return self.gradient.clone()\n"),
    breaks=tests_of(GRADIENT, CLIP),
    fails=["gradient_is_reduced_once"],
)

missing_gradients_are_filled_in = edit(
    GRADIENT,
    """You gave zeros to the parameters that had no gradient. After the step the model then has gradients that nobody
    computed, and a wrapper cannot see which parameters were unused. Make the zeros for the flat vector only.""",
    (
        "            full = torch.zeros(self.size * world_size)\n",
        "            for p in self.params:\n"
        "                p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n"
        "            full = torch.zeros(self.size * world_size)\n",
    ),
    breaks=tests_of(GRADIENT, STEP),
)

missing_gradients_close_the_gap = edit(
    GRADIENT,
    """You left parameters without a gradient out of the flat vector, so all later ones moved forward and got each
    other's gradients. A missing gradient counts as zeros, in its place.""",
    (
        "full[: self.numel] = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])",
        "flat = flatten([p.grad for p in self.params if p.grad is not None])\n            full[: len(flat)] = flat",
    ),
    breaks=tests_of(GRADIENT, STEP),
)

frozen_parameters_are_stepped = edit(
    GRADIENT,
    """You included the frozen parameters. Their missing gradient counts as zeros, but weight decay moves them all the
    same, and they take memory in every shard. Leave them out.""",
    ("[p for p in dict.fromkeys(params) if p.requires_grad]", "list(dict.fromkeys(params))"),
    breaks=tests_of(GRADIENT, STEP),
)

tied_parameters_count_twice = edit(
    GRADIENT,
    """A parameter that was given twice is in your flat vector twice. Two masters then step with the same gradient, and
    it takes twice the memory: keep each parameter once.""",
    ("[p for p in dict.fromkeys(params) if p.requires_grad]", "[p for p in params if p.requires_grad]"),
    breaks=tests_of(GRADIENT, STEP),
)

sums_are_taken_in_bf16 = edit(
    GRADIENT,
    """You sent the gradients in bf16. The sum of many ranks is then rounded to 8 bits, and the shard is no longer what
    a float32 mean would be. Send float32.""",
    ("full = torch.zeros(self.size * world_size)", "full = torch.zeros(self.size * world_size, dtype=torch.bfloat16)"),
    ("self.gradient = torch.empty(self.size)", "self.gradient = torch.empty(self.size, dtype=torch.bfloat16)"),
    ("            self.gradient /= world_size\n", "            self.gradient = self.gradient.float() / world_size\n"),
    breaks=tests_of(*ON_GRADIENT[:3]),
)


# ---- 3 · ShardedOptimizer ----

parameters_are_pointed_at_the_gathered_vector = edit(
    STEP,
    """You let the parameters point into the gathered float32 vector (p.data = …). A bf16 parameter becomes a float32
    one, its numbers are not rounded, and it takes twice the memory. Write into each parameter's own memory.""",
    (
        "        unflatten_into(self.params, full[: self.numel])\n",
        "        for p, piece in zip(self.params, full[: self.numel].split([p.numel() for p in self.params])):\n"
        "            p.data = piece.view(p.shape)\n",
    ),
    breaks=tests_of(STEP),
    fails=["masters_keep_what_bf16_loses"],
)

masters_are_read_back_from_the_parameters = edit(
    STEP,
    """You copied the parameters back into the master shard at each step. In bf16 that throws away updates smaller than
    a parameter's rounding, which the master had kept. Continue from the master's own value.""",
    (
        "        self.master.grad = self.reduced_gradient()\n",
        "        start, end = shard_bounds(self.numel, dist.get_rank(), dist.get_world_size())\n"
        "        self.master.data[: end - start] = flatten(self.params)[start:end]\n"
        "        self.master.grad = self.reduced_gradient()\n",
    ),
    breaks=tests_of(STEP),
    fails=["masters_keep_what_bf16_loses"],
)

the_first_gradient_is_kept = edit(
    STEP,
    """After the step self.gradient still held its gradient, so every later step used it again. The step uses the
    reduced gradient up: set it to None there.""",
    ("        self.master.grad = self.gradient = None\n", "        self.master.grad = None\n"),
    breaks=tests_of(*ON_STEP[::2]),
    fails=["state_is_a_shard"],
)

both_gradients_are_kept = edit(
    STEP,
    """After the step the shard's gradient is still there, as self.gradient and as self.master.grad. It is memory that
    nobody needs, and without a zero_grad() the next step uses it again. Set both to None at the end of step().""",
    ("        self.master.grad = self.gradient = None\n", ""),
    breaks=tests_of(*ON_STEP[::2]),
    fails=["state_is_a_shard"],
)

the_master_keeps_its_gradient = edit(
    STEP,
    """After the step the master still has its .grad, a further copy of the shard, 4 more bytes for each of its numbers.
    The step uses the gradient up: set it to None there.""",
    ("        self.master.grad = self.gradient = None\n", "        self.gradient = None\n"),
    breaks=tests_of(STEP),
    fails=["state_is_a_shard"],
)

the_master_is_a_view = edit(
    STEP,
    """Your master shard is a slice of a longer vector, which keeps the memory of the whole vector alive on every rank.
    Give it memory of its own: clone it, or copy into a tensor of the shard's length.""",
    (
        "        self.master = nn.Parameter(torch.zeros(self.size))\n",
        "        whole = torch.zeros(self.size * dist.get_world_size())\n"
        "        self.master = nn.Parameter(whole[start : start + self.size])\n",
    ),
    breaks=tests_of(STEP),
    fails=["state_is_a_shard"],
)

padding_is_ones = edit(
    STEP,
    """The numbers of your master shard beyond the end of the flat vector are not zeros. They are padding that belongs
    to no parameter: make the tensor with zeros before you write the real numbers into it.""",
    ("nn.Parameter(torch.zeros(self.size))", "nn.Parameter(torch.ones(self.size))"),
    breaks=tests_of(STEP),
    fails=["state_is_a_shard"],
)

the_full_vector_stays = edit(
    STEP,
    """You kept the gathered vector of all parameters as an attribute. It is as large as the model in float32 and stays
    alive between the steps. Use a local variable, which is freed when the step ends.""",
    (
        "        unflatten_into(self.params, full[: self.numel])\n",
        "        unflatten_into(self.params, full[: self.numel])\n        self.full = full\n",
    ),
    breaks=tests_of(STEP),
    fails=["state_is_a_shard"],
)

the_step_clears_the_gradients = edit(
    STEP,
    """Your step() also cleared the parameters' own p.grad, as zero_grad() does. When they are cleared is the caller's
    decision, who may want to read them after the step. Forget only what was made for the shard.""",
    (
        "        self.master.grad = self.gradient = None\n",
        "        self.master.grad = None\n        self.zero_grad()\n",
    ),
    breaks=tests_of(STEP),
    fails=["gradients_stay_as_they_were"],
)

the_step_zeroes_the_gradients = edit(
    STEP,
    """Your step() filled the parameters' own gradients with zeros. They must keep their numbers: the caller may want to
    read them after the step. Forget only what was made for the shard.""",
    (
        "        self.master.grad = self.gradient = None\n",
        "        self.master.grad = self.gradient = None\n"
        "        for p in self.params:\n"
        "            if p.grad is not None:\n"
        "                p.grad.zero_()\n",
    ),
    breaks=tests_of(STEP),
    fails=["gradients_stay_as_they_were"],
)

nobody_gathers = edit(
    STEP,
    """Each rank wrote only its own shard into the parameters, so the ranks drift apart. Every rank needs all parameters
    for its next forward: all-gather the shards after the step.""",
    (
        "        full = torch.empty(self.size * dist.get_world_size())\n"
        "        dist.all_gather_single(full, self.master.detach())\n",
        "        start, end = shard_bounds(self.numel, dist.get_rank(), dist.get_world_size())\n"
        "        full = flatten(self.params)\n"
        "        full[start:end] = self.master.detach()[: end - start]\n",
    ),
    breaks=tests_of(*ON_STEP),
)

arguments_do_not_arrive = edit(
    STEP,
    """You did not pass the keyword arguments (lr, momentum, weight_decay, …) to the wrapped optimizer, so it ran with
    its defaults. Pass **kwargs on.""",
    ("optimizer_class([self.master], **kwargs)", "optimizer_class([self.master])"),
    breaks=tests_of(*ON_STEP),
)

state_bytes_counts_all_parameters = edit(
    STEP,
    """Your state_bytes() reports the whole model's state. Count what this rank holds: the tensors of its own shard.""",
    ("sum(t.nbytes for", "sum(4 * self.numel for"),
    breaks=tests_of(STEP),
    fails=["state_is_a_shard"],
)

every_rank_keeps_everything = edit(
    STEP,
    """Every rank holds masters and moments for all parameters, as in the unsharded optimizer. The results are right,
    but nothing is saved: keep, and step, only this rank's shard.""",
    ("        start, end = shard_bounds(self.numel, dist.get_rank(), dist.get_world_size())\n", ""),
    ("        self.master = nn.Parameter(torch.zeros(self.size))\n", ""),
    (
        "        self.master.data[: end - start] = flatten(self.params)[start:end]\n",
        "        self.master = nn.Parameter(flatten(self.params))\n",
    ),
    (
        "        self.master.grad = self.reduced_gradient()\n",
        "        full = torch.empty(self.size * dist.get_world_size())\n"
        "        dist.all_gather_single(full, self.reduced_gradient())\n"
        "        self.master.grad = full[: self.numel]\n",
    ),
    (
        "        full = torch.empty(self.size * dist.get_world_size())\n"
        "        dist.all_gather_single(full, self.master.detach())\n"
        "        unflatten_into(self.params, full[: self.numel])\n",
        "        unflatten_into(self.params, self.master.detach())\n",
    ),
    breaks=tests_of(STEP, STATE),
    fails=["state_is_a_shard"],
)

groups_are_copies = edit(
    STEP,
    """param_groups hands out copies of the wrapped optimizer's groups. A schedule that sets a new learning rate changes
    a copy, and training goes on with the old rate. Return the groups themselves.""",
    ("return self.optimizer.param_groups", "return [dict(group) for group in self.optimizer.param_groups]"),
    breaks=tests_of(STEP, STATE),
    fails=["a_changed_rate_holds_from_the_next_step"],
)

groups_are_a_deep_copy_made_once = edit(
    STEP,
    """You keep groups of your own, made when the optimizer was built. They remember a new learning rate, but the
    wrapped optimizer, which takes the steps, never reads them. Return its own groups.""",
    (
        "        return self.optimizer.param_groups\n",
        '        if not hasattr(self, "groups"):\n'
        '            self.groups = [{**group, "params": self.params} for group in self.optimizer.param_groups]\n'
        "        return self.groups\n",
    ),
    breaks=tests_of(STEP, STATE),
    fails=["a_changed_rate_holds_from_the_next_step"],
)
