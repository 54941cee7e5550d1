"""Wrong answers to lesson 08, exercises 4, 5 and 6."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

CLIP, STATE, MEMORY = "08-ex4-clip", "08-ex5-state", "08-ex6-memory"

# ---- 4 · clip_grad_norm_ ----

the_scale_has_no_small_number = edit(
    CLIP,
    """Your scale is max_norm / norm. torch adds 1e-6 to the norm, so that nothing is divided by a norm of almost zero.
    Where gradients are about as small as that, your steps are longer than torch's.""",
    ("max_norm / (norm + 1e-6)", "max_norm / norm"),
    breaks=tests_of(CLIP),
)

each_shard_has_its_own_norm = edit(
    CLIP,
    """You took the norm of this rank's shard alone. Every rank then scales by a different factor, which changes the
    direction of the gradient. Add up the squares of all shards first.""",
    ("        dist.all_reduce(norm)\n", ""),
    breaks=tests_of(CLIP),
)

norms_are_added = edit(
    CLIP,
    """You added up the norms of the shards. Norms do not add up, but their squares do: add the squares over the ranks,
    then take the root once.""",
    ("gradient.square().sum()", "gradient.square().sum().sqrt()"),
    ("        norm = norm.sqrt()\n", ""),
    breaks=tests_of(CLIP),
)

short_gradients_are_stretched = edit(
    CLIP,
    """You scaled every gradient to the norm max_norm. A shorter one must stay as it is: the factor is at most 1.""",
    ("torch.clamp(max_norm / (norm + 1e-6), max=1.0)", 'max_norm / (norm + 1e-6) if max_norm < float("inf") else 1.0'),
    breaks=tests_of(CLIP),
)

the_ranks_own_gradients_are_clipped = edit(
    CLIP,
    """You clipped each rank's own gradient before the mean over the ranks. The step uses the mean gradient, which has
    another, smaller norm: clip that one.""",
    ("gradient = self.reduced_gradient()", "return nn.utils.clip_grad_norm_(self.params, max_norm)"),
    breaks=tests_of(CLIP),
)

the_step_reduces_again = edit(
    CLIP,
    """After clipping you forgot the reduced gradient, so the step reduced the unclipped gradients again: the clipping
    had no effect, and the bytes were sent twice. Scale the shard that the step will use.""",
    ("        return norm\n", "        self.gradient = None\n        return norm\n"),
    breaks=tests_of(CLIP),
)

the_norm_after_clipping_is_returned = edit(
    CLIP,
    """You returned the norm after clipping, which is always max_norm when the gradient was clipped. Return the norm
    from before, which is the one to watch during training.""",
    ("        return norm\n", "        return norm * torch.clamp(max_norm / (norm + 1e-6), max=1.0)\n"),
    breaks=tests_of(CLIP),
)


# ---- 5 · state_dict and load_state_dict ----

state_is_a_view = edit(
    STATE,
    """Your state holds views of the optimizer's own tensors, so the next step changes what was saved. Make copies.""",
    ("value[: end - start].clone() if", "value[: end - start] if"),
    breaks=tests_of(STATE),
)

the_first_rate_is_saved = edit(
    STATE,
    """You saved the learning rate that the optimizer was built with. If a schedule has changed it since, the current
    one is in param_groups: save that one.""",
    ('{"lr": self.param_groups[0]["lr"]}', '{"lr": self.optimizer.defaults["lr"]}'),
    breaks=tests_of(STATE),
)

loaded_tensors_are_not_copied = edit(
    STATE,
    """load_state_dict() took the given tensors themselves into the optimizer, so the next steps change the dict that
    the caller still has. Copy their numbers.""",
    (
        "        padded = torch.zeros(self.size)\n",
        "        if len(value) == self.size:\n            return value\n        padded = torch.zeros(self.size)\n",
    ),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

padding_is_saved = edit(
    STATE,
    """You saved the padding, too. Joined end to end, the pieces are then longer than the model, and when they are cut
    for another number of ranks, every number after the first padding is in the wrong place.""",
    ("value[: end - start].clone() if", "value.clone() if"),
    ('state["master"].shape != (end - start,)', 'state["master"].shape != (self.size,)'),
    breaks=tests_of(STATE),
)

step_count_starts_anew = edit(
    STATE,
    """You restored the moments, but not the step count. Adam divides by 1 − β^t: with t = 1 again, the first steps
    after loading are far too long.""",
    ("            return torch.tensor(float(value))", "            return torch.tensor(0.0)"),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

moments_are_forgotten = edit(
    STATE,
    """You restored only the master. Momentum and Adam then continue with the new optimizer's state, and every step
    differs, from the first one on: restore that state, too.""",
    ("        self.optimizer.state[self.master] = restored\n", ""),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

old_moments_survive = edit(
    STATE,
    """You updated the entries that the state has, and left the others. After loading a state from before the first
    step, the old moments and step count are still there: replace the whole entry.""",
    ("[self.master] = restored", "[self.master].update(restored)"),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

parameters_are_not_gathered = edit(
    STATE,
    """You restored the masters, but not the parameters, so until the first step the model computes with its old
    numbers. Gather after loading.""",
    ("        self.gather_parameters()\n", ""),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

learning_rate_is_forgotten = edit(
    STATE,
    """You did not restore the learning rate. It may have been changed since the optimizer was built, and training must
    continue with the saved one.""",
    ('        self.param_groups[0]["lr"] = state["lr"]\n', ""),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

step_is_saved_as_a_tensor = edit(
    STATE,
    """You saved Adam's step count as a 0-dim tensor. In a saved state, tensors are pieces of a larger vector;
    everything else must be a plain number, equal on all ranks.""",
    ("if value.dim() else value.item()", "if value.dim() else value.clone()"),
    ("        if not isinstance(value, torch.Tensor):\n", "        if not value.dim():\n"),
    breaks=tests_of(STATE),
)

what_was_reduced_outlives_the_load = edit(
    STATE,
    """A gradient that was reduced before the load was still there, and the next step used it. Loading must also forget
    self.gradient.""",
    ("        self.gradient = None\n", ""),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

the_length_is_compared_with_the_padded_one = edit(
    STATE,
    """You refused only a master that is longer than a padded shard. A rank with padding then accepts a master that is
    slightly too long, and waits in the all-gather for the ranks that have refused theirs. Require exactly this rank's
    count of real numbers, end − start.""",
    ('state["master"].shape != (end - start,)', 'len(state["master"]) > self.size'),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

a_short_master_is_accepted = edit(
    STATE,
    """You refused a master that is too long, but loaded one that is too short, with zeros for what is missing. Any
    length but the right one is a ValueError that names master.""",
    ('state["master"].shape != (end - start,)', 'len(state["master"]) > end - start'),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)

a_wrong_length_is_cut = edit(
    STATE,
    """You silently cut or padded a master shard of the wrong length. The state of another number of ranks then loads
    with every number in the wrong place: raise a ValueError that names master.""",
    (
        '        if state["master"].shape != (end - start,):\n',
        '        state = {**state, "master": state["master"][: end - start]}\n'
        '        if state["master"].shape != (end - start,):\n',
    ),
    breaks=tests_of(STATE),
    fails=["restored_goes_on_bit_for_bit"],
)


# ---- 6 · memory_per_rank ----


@right(MEMORY)
def _memory():
    """Right: the base of the edits below."""

    def memory_per_rank(parameters, world_size, stage):
        if parameters < 0:
            raise ValueError(f"parameters must not be negative, got {parameters}")
        if world_size < 1:
            raise ValueError(f"world_size must be at least 1, got {world_size}")
        if stage not in (0, 1, 2, 3):
            raise ValueError(f"stage must be 0, 1, 2 or 3, got {stage}")
        shard = -(-parameters // world_size)
        whole, sharded = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
        return whole * parameters + sharded * shard


memory_without_padding = edit(
    MEMORY,
    """You divided by N without rounding up. The last shards are padded, so every rank stores ⌈P/N⌉ numbers.""",
    ("    shard = -(-parameters // world_size)\n", ""),
    ("sharded * shard", "sharded * parameters // world_size"),
    base=_memory,
    breaks=tests_of(MEMORY),
)

memory_in_floating_point = edit(
    MEMORY,
    """You computed the sizes in floating point, which has 53 bits. Stay with integers, and round up with integer
    division.""",
    ("shard = -(-parameters // world_size)", "shard = math.ceil(parameters / world_size)"),
    base=_memory,
    breaks=tests_of(MEMORY),
)

memory_without_masters = edit(
    MEMORY,
    """You counted 8 bytes for the optimizer, the two moments. In mixed precision it also keeps a float32 master copy, 4
    bytes more.""",
    ("(16, 0), (4, 12), (2, 14), (0, 16)", "(12, 0), (4, 8), (2, 10), (0, 12)"),
    base=_memory,
    breaks=tests_of(MEMORY),
)

stages_are_one_off = edit(
    MEMORY,
    """Your stages are shifted by one. Stage 0 shards nothing, stage 1 the optimizer, stage 2 the gradients as well, and
    stage 3 the parameters, too.""",
    ("(16, 0), (4, 12), (2, 14)", "(4, 12), (2, 14), (0, 16)"),
    base=_memory,
    breaks=tests_of(MEMORY),
)

stage_two_shards_the_parameters = edit(
    MEMORY,
    """You sharded the parameters at stage 2 already. Stage 2 shards the optimizer and the gradients; the parameters
    stay whole until stage 3.""",
    ("(4, 12), (2, 14), (0, 16)", "(4, 12), (0, 16), (0, 16)"),
    base=_memory,
    breaks=tests_of(MEMORY),
)
