"""Wrong answers to lesson 17, exercises 1, 2 and 4."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

BATCHES, TRAINER, TRAIN = "17-ex1-batches", "17-ex2-trainer", "17-ex4-train"
VERIFY, WATCHED = "17-ex5-verify", "17-ex7-watched"

#: What is built on the batches, on a step.
ON_BATCHES, ON_TRAINER = (BATCHES, TRAINER, TRAIN), (TRAINER, TRAIN)


# ---- 1 · corpus and batches ----

batches_stride_64 = edit(
    BATCHES,
    """You move on by 64 tokens from window to window. The cycle has then come round exactly once, so every rank gets
    the same batch in every step. A stride of 65 shifts each window by one place.""",
    ("rank) * (VOCAB + 1)", "rank) * VOCAB"),
    breaks=tests_of(*ON_BATCHES),
)

batches_offset_by_one_rank = edit(
    BATCHES,
    """Your windows are those of the next rank. Ranks count from 0, so rank 0 of step 1 starts at token 0.""",
    ("* world_size + rank)", "* world_size + rank + 1)"),
    breaks=tests_of(*ON_BATCHES),
)

batches_same_on_every_rank = edit(
    BATCHES,
    """Every rank gets the same batch, because the start of your window does not depend on the rank. N ranks then do the
    work of one.""",
    ("((step - 1) * world_size + rank)", "((step - 1) * world_size)"),
    breaks=tests_of(BATCHES, TRAINER, TRAIN),
)

batches_steps_from_zero = edit(
    BATCHES,
    """Your step 1 starts N windows into the corpus. Steps count from 1: subtract 1 before you multiply.""",
    ("(step - 1) * world_size", "step * world_size"),
    breaks=tests_of(*ON_BATCHES),
)

batches_seen_again = edit(
    BATCHES,
    """From step to step your windows move on by one, not by the number of ranks, so rank 0 sees in step 2 what rank 1
    saw in step 1.""",
    ("((step - 1) * world_size + rank)", "(step - 1 + rank)"),
    breaks=tests_of(BATCHES, TRAINER, TRAIN),
)

batches_targets_are_inputs = edit(
    BATCHES,
    """Your targets are the inputs themselves, so the model learns to copy. The target of a token is the token after
    it.""",
    ("tokens[1:].view", "tokens[:-1].view"),
    breaks=tests_of(*ON_BATCHES),
)

corpus_shuffled_anew_in_each_cycle = edit(
    BATCHES,
    """You drew a new permutation for every 64 tokens. A token then has many successors, and there is nothing to learn:
    repeat one cycle.""",
    ("    cycle = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))\n", ""),
    (
        "return cycle.repeat(total_tokens // VOCAB)",
        "g = torch.Generator().manual_seed(seed)\n"
        "    return torch.cat([torch.randperm(VOCAB, generator=g) for _ in range(total_tokens // VOCAB)])",
    ),
    breaks=tests_of(BATCHES, TRAIN, TRAINER, VERIFY, WATCHED),
    fails=["corpus_is_one_cycle_repeated"],
)

corpus_from_the_global_generator = edit(
    BATCHES,
    """torch.manual_seed changes the global random state, and with it everything that is drawn afterwards. Give randperm
    a generator of its own.""",
    (
        "cycle = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))",
        "torch.manual_seed(seed)\n    cycle = torch.randperm(VOCAB)",
    ),
    breaks=tests_of(BATCHES),
    fails=["corpus_is_one_cycle_repeated"],
)


# ---- 2 · Trainer ----

trainer_without_broadcast = edit(
    TRAINER,
    """Your ranks start from different models: the broadcast is missing. The first all-gather hides it by mixing all of
    them, so the loss falls and the ranks are equal, but it is a different run.""",
    ("        broadcast_parameters(self.model)\n", ""),
    breaks=tests_of(*ON_TRAINER, WATCHED),
)

trainer_optimizer_before_broadcast = edit(
    TRAINER,
    """You made the optimizer before the broadcast. It copied its masters from this rank's own parameters, and the first
    step brings those back: broadcast first.""",
    ("        broadcast_parameters(self.model)\n", ""),
    ("torch.optim.Adam, lr=lr)\n", "torch.optim.Adam, lr=lr)\n        broadcast_parameters(self.model)\n"),
    breaks=tests_of(*ON_TRAINER, WATCHED),
)

trainer_corpus_of_each_rank = edit(
    TRAINER,
    """Every rank made a corpus of its own. Different cycles have different transitions, so what one rank learns
    contradicts the others: seed + rank is for the model only.""",
    ("make_corpus(seed, CORPUS_TOKENS)", "make_corpus(seed + rank, CORPUS_TOKENS)"),
    breaks=tests_of(*ON_TRAINER),
)

trainer_sums_micro_batches = edit(
    TRAINER,
    """Your micro-batches' gradients add up to their sum, k times the mean: divide each micro-batch's loss by
    micro_batches. Adam hides the factor, since it divides by the gradient's own size; the gradient norm shows it.""",
    (" / self.micro_batches\n", "\n"),
    ("total += loss.detach()", "total += loss.detach() / self.micro_batches"),
    breaks=tests_of(*ON_TRAINER),
)

trainer_ignores_micro_batches = edit(
    TRAINER,
    """You ran the model on the whole batch at once. The numbers are right, but micro-batches are there to save memory:
    take 4/k rows at a time.""",
    ("zip(x.chunk(self.micro_batches), y.chunk(self.micro_batches))", "zip([x], [y])"),
    ("targets) / self.micro_batches", "targets)"),
    breaks=tests_of(TRAINER),
)

trainer_reports_its_own_loss = edit(
    TRAINER,
    """You report this rank's own loss, so the ranks disagree. The loss of a step is the mean over all ranks.""",
    ("        dist.all_reduce(total)\n", ""),
    ("total.item() / self.world_size", "total.item()"),
    breaks=tests_of(*ON_TRAINER, WATCHED),
)

trainer_norm_of_its_own_gradient = edit(
    TRAINER,
    """You took the norm of this rank's own gradient. The step uses the mean over the ranks, whose norm the optimizer
    knows: clip_grad_norm_(math.inf).""",
    ("self.optimizer.clip_grad_norm_(math.inf)", "nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)"),
    breaks=tests_of(*ON_TRAINER),
)

trainer_clips = edit(
    TRAINER,
    """To read the norm you clipped the gradient as well. Pass math.inf as the bound.""",
    ("clip_grad_norm_(math.inf)", "clip_grad_norm_(1.0)"),
    breaks=tests_of(*ON_TRAINER),
)

trainer_keeps_the_reduced_gradient = edit(
    TRAINER,
    """You cleared the model's gradients, but not the gradient that the optimizer has reduced. When gradients is called
    twice before an update, the first one is then used: call the optimizer's zero_grad.""",
    ("self.optimizer.zero_grad()", "self.model.zero_grad()"),
    breaks=tests_of(TRAINER),
)

trainer_forgets_after_the_step = edit(
    TRAINER,
    """You clear the gradients in update, after the step. When gradients is called twice before an update, the second
    call then adds to what the first one left. Clear them where the new ones are computed.""",
    ("        self.optimizer.zero_grad()\n", ""),
    ("        self.optimizer.step()\n", "        self.optimizer.step()\n        self.optimizer.zero_grad()\n"),
    breaks=tests_of(TRAINER, WATCHED),
)

trainer_keeps_the_factor = edit(
    TRAINER,
    """You left the learning rate multiplied after the update. A spike then lasts forever and ends up in every
    checkpoint: restore the rate.""",
    ('        group["lr"] = lr\n', ""),
    breaks=tests_of(TRAINER),
)

trainer_describes_before_the_step = edit(
    TRAINER,
    """Your norm and digest describe the parameters before the step. Make the step first.""",
    ("        self.optimizer.step()\n", ""),
    (
        "        return flat.double().norm().item(), parameters_digest(self.model)\n",
        "        described = flat.double().norm().item(), parameters_digest(self.model)\n"
        "        self.optimizer.step()\n        return described\n",
    ),
    breaks=tests_of(TRAINER, TRAIN, VERIFY, WATCHED),
)

trainer_reduces_twice = edit(
    TRAINER,
    """You all-reduced the gradients before the optimizer reduced them. The numbers are the same, but far more is sent:
    leave the reduction to ZeroOptimizer.""",
    (
        "        dist.all_reduce(total)\n",
        "        for p in self.model.parameters():\n            dist.all_reduce(p.grad)\n"
        "            p.grad /= self.world_size\n"
        "        dist.all_reduce(total)\n",
    ),
    breaks=tests_of(TRAINER),
    fails=["steps_send_the_gradient_once"],
)


# ---- 4 · train ----

train_saves_before_the_step = edit(
    TRAIN,
    """You saved a step's checkpoint before that step's update, so it holds the parameters of the step before. A run
    that resumes from it misses one step.""",
    (
        "        norm, digest = trainer.update()\n",
        "        if checkpoint_dir is not None and step == checkpoint_step:\n"
        "            history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step))\n"
        "        norm, digest = trainer.update()\n",
    ),
    (
        "        if checkpoint_dir is not None and step == checkpoint_step:\n"
        "            history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step))\n"
        "    return",
        "    return",
    ),
    breaks=tests_of(TRAIN, VERIFY),
)

train_resumes_at_one = edit(
    TRAIN,
    """Your resumed run counts its steps from 1 again. Its state is that of the checkpoint, but its data and step
    numbers are not.""",
    ('        step = manifest["step"]\n', ""),
    breaks=tests_of(TRAIN, VERIFY),
)

train_repeats_the_saved_step = edit(
    TRAIN,
    """Your resumed run makes the checkpoint's step once more. The state already contains that step: go on with the next
    one.""",
    ('step = manifest["step"]\n', 'step = manifest["step"] - 1\n'),
    breaks=tests_of(TRAIN, VERIFY),
)

train_forgets_the_moments = edit(
    TRAIN,
    """You restored the parameters, but not Adam's moments and step count. The first loss is right, but from the second
    one on it is a different run.""",
    (
        "trainer.optimizer.load_state_dict(state)",
        'trainer.optimizer.load_state_dict({name: state[name] for name in ("master", "lr")})',
    ),
    breaks=tests_of(TRAIN, VERIFY),
)

train_forgets_the_step_count = edit(
    TRAIN,
    """Adam's step count starts anew in your resumed run. Its bias correction then divides the old moments by numbers
    that are too small.""",
    ("trainer.optimizer.load_state_dict(state)", 'trainer.optimizer.load_state_dict({**state, "step": 0})'),
    breaks=tests_of(TRAIN, VERIFY),
)

train_resumes_from_memory = edit(
    TRAIN,
    """You restored a global variable in which the run that saved left its state. A run that resumes is another process,
    where that variable is gone: read the checkpoint with load_sharded.""",
    ("def train(", "SAVED = {}\n\n\ndef train("),
    (
        "        state, manifest = load_sharded(resume_from)\n"
        "        trainer.optimizer.load_state_dict(state)\n"
        '        step = manifest["step"]\n',
        "        step = int(str(resume_from)[-8:])\n"
        "        if resume_from in SAVED:\n"
        "            trainer.optimizer.load_state_dict(SAVED[resume_from])\n",
    ),
    (
        "trainer.optimizer, checkpoint_dir, step))\n",
        "trainer.optimizer, checkpoint_dir, step))\n"
        "            state = trainer.optimizer.state_dict().items()\n"
        "            kept = {name: value.clone() if torch.is_tensor(value) else value for name, value in state}\n"
        '            SAVED[history.checkpoints[-1]["path"]] = kept\n',
    ),
    breaks=tests_of(TRAIN, VERIFY),
)

train_counts_steps = edit(
    TRAIN,
    """You took steps for the number of steps to make. It is the number of the last step: resumed after step 10, a run
    to 20 makes ten more.""",
    ("while step < steps:", 'while len(history.lists["steps"]) < steps:'),
    breaks=tests_of(TRAIN, VERIFY),
)

train_unchecked = edit(
    TRAIN,
    """You never check the invariants, so a fault in a step goes unnoticed. Call check_step after every update.""",
    ('        check_step(rank, world_size, step, history.lists["losses"], norm, digest, held, trainer.numel)\n', ""),
    breaks=tests_of(TRAIN),
    fails=["broken_invariants_stop_every_rank"],
)

train_checks_on_rank_0 = edit(
    TRAIN,
    """check_step is a collective, and only your rank 0 calls it, so it waits for the others forever. Call it on every
    rank.""",
    ("        check_step(", "        if rank == 0:\n            check_step("),
    breaks=tests_of(TRAIN, VERIFY),
)

train_saves_before_it_checks = edit(
    TRAIN,
    """You saved the checkpoint before `check_step`. When an invariant is broken in that step, the run ends with the
    broken state on the disk, ready to be resumed from. Check first.""",
    (
        '        check_step(rank, world_size, step, history.lists["losses"], norm, digest, held, trainer.numel)\n',
        "",
    ),
    (
        "            history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step))\n",
        "            history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step))\n"
        '        check_step(rank, world_size, step, history.lists["losses"], norm, digest, held, trainer.numel)\n',
    ),
    breaks=tests_of(TRAIN),
    fails=["broken_invariants_stop_every_rank"],
)

train_saves_unverified = edit(
    TRAIN,
    """You saved the checkpoint without reading it back. Use save_verified.""",
    (
        "history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step))",
        'state = trainer.optimizer.state_dict()\n            entry = {"step": step, "sha256": tensors_digest(state)}\n'
        '            history.checkpoints.append({**entry, "path": str(save_sharded(state, checkpoint_dir, step))})',
    ),
    breaks=tests_of(TRAIN),
    fails=["broken_invariants_stop_every_rank"],
)


train_never_looks_at_the_memory = edit(
    TRAIN,
    """You do not call check_start. A bit that flips in a rank's parameters between two steps is then gone after the
    next all-gather, but the run is a different one. Call it before each forward.""",
    ("        check_start(rank, world_size, step, parameters_digest(trainer.model), digest)\n", ""),
    breaks=tests_of(TRAIN),
    fails=["broken_invariants_stop_every_rank"],
)

train_compares_the_memory_with_nothing = edit(
    TRAIN,
    """You give check_start no digest to compare with, so it accepts everything. From the second step on, give it the
    one that the last update returned.""",
    ("parameters_digest(trainer.model), digest)", "parameters_digest(trainer.model), None)"),
    breaks=tests_of(TRAIN),
    fails=["broken_invariants_stop_every_rank"],
)

train_compares_the_memory_with_itself = edit(
    TRAIN,
    """You take the digest again before forward and compare it with itself, so check_start accepts everything. Give it
    the digest that the last update returned.""",
    (
        "parameters_digest(trainer.model), digest)",
        "parameters_digest(trainer.model), digest and parameters_digest(trainer.model))",
    ),
    breaks=tests_of(TRAIN),
    fails=["broken_invariants_stop_every_rank"],
)

train_saves_every_so_many_steps = edit(
    TRAIN,
    """You took checkpoint_step for an interval, and saved step 20 as well as step 10. It is a single step.""",
    ("and step == checkpoint_step:", "and checkpoint_step and step % checkpoint_step == 0:"),
    breaks=tests_of(TRAIN),
)


# ---- borders ----

trainer_takes_what_divides = edit(
    TRAINER,
    """You ask only whether the number divides the batch. A negative number does, and no batch has a negative number of
    pieces: refuse whatever is below 1 as well.""",
    ("if micro_batches < 1 or BATCH % micro_batches:", "if not micro_batches or BATCH % micro_batches:"),
    breaks=tests_of(TRAINER),
    fails=["trainer_refuses_odd_micro_batches"],
)

train_takes_any_number_of_steps = edit(
    TRAIN,
    """You accept a number of steps below 1 and do nothing. Refuse it, on every rank, as the statement asks.""",
    ('    if steps < 1:\n        raise ValueError(f"steps must be at least 1, got {steps}")\n', ""),
    breaks=tests_of(TRAIN),
    fails=["train_refuses_what_makes_no_sense"],
)
