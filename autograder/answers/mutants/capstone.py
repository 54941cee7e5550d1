"""Wrong answers to lesson 17: the subtle ones first in each exercise, most of them in the composition."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

BATCHES, TRAINER, INVARIANTS, TRAIN = "17-ex1-batches", "17-ex2-trainer", "17-ex3-invariants", "17-ex4-train"
VERIFY, WATCH, GUARD, TENSOR = "17-ex5-verify", "17-ex6-watch", "17-ex7-guard", "17-ex8-tensor"

#: What is built on the batches, on a step.
ON_BATCHES, ON_TRAINER = (BATCHES, TRAINER, TRAIN, TENSOR), (TRAINER, TRAIN)


# ---- 1 · corpus and batches ----

batches_stride_64 = edit(
    BATCHES,
    "You move on by 64 tokens from window to window. The cycle has come round exactly once then: every rank gets the "
    "same batch in every step. 65 shifts each window by one place.",
    ("rank) * (VOCAB + 1)", "rank) * VOCAB"),
    breaks=tests_of(*ON_BATCHES),
)
batches_offset_by_one_rank = edit(
    BATCHES,
    "Your windows are those of the next rank: ranks count from 0, so rank 0 of step 1 starts at token 0.",
    ("* world_size + rank)", "* world_size + rank + 1)"),
    breaks=tests_of(*ON_BATCHES),
)
batches_same_on_every_rank = edit(
    BATCHES,
    "Every rank gets the same batch: the start of the window does not depend on the rank, and N ranks do the work of "
    "one.",
    ("((step - 1) * world_size + rank)", "((step - 1) * world_size)"),
    breaks=tests_of(BATCHES, TRAINER, TRAIN),
)
batches_steps_from_zero = edit(
    BATCHES,
    "Your step 1 starts N windows into the corpus: steps count from 1, so subtract 1 before you multiply.",
    ("(step - 1) * world_size", "step * world_size"),
    breaks=tests_of(*ON_BATCHES),
)
batches_seen_again = edit(
    BATCHES,
    "From step to step your windows move on by one, not by the number of ranks: what rank 1 sees in step 1, rank 0 "
    "sees again in step 2.",
    ("((step - 1) * world_size + rank)", "(step - 1 + rank)"),
    breaks=tests_of(BATCHES, TRAINER, TRAIN),
)
batches_targets_are_inputs = edit(
    BATCHES,
    "Your targets are the inputs themselves: the model learns to copy. The target of a token is the one after it.",
    ("tokens[1:].view", "tokens[:-1].view"),
    breaks=tests_of(*ON_BATCHES),
)
corpus_shuffled_anew_in_each_cycle = edit(
    BATCHES,
    "You drew a new permutation for each 64 tokens. Then a token has many successors, and there is nothing to learn: "
    "one cycle, repeated.",
    ("    cycle = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))\n", ""),
    ("return cycle.repeat(total_tokens // VOCAB)",
     "g = torch.Generator().manual_seed(seed)\n"
     "    return torch.cat([torch.randperm(VOCAB, generator=g) for _ in range(total_tokens // VOCAB)])"),
    breaks=tests_of(BATCHES, TRAIN, TRAINER, VERIFY, WATCH, GUARD),
)  # fmt: skip
corpus_from_the_global_generator = edit(
    BATCHES,
    "torch.manual_seed changes the state of everybody's random numbers: whatever is drawn afterwards is another. Give"
    " randperm a generator of its own.",
    ("cycle = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))",
     "torch.manual_seed(seed)\n    cycle = torch.randperm(VOCAB)"),
    breaks=tests_of(BATCHES),
)  # fmt: skip


# ---- 2 · Trainer ----

trainer_without_broadcast = edit(
    TRAINER,
    "The ranks start from different models: the broadcast is missing. The first all-gather hides it, by making a "
    "mixture of all of them; the loss falls, the ranks are equal, and the run is another one.",
    ("        broadcast_parameters(self.model)\n", ""),
    breaks=tests_of(*ON_TRAINER, GUARD),
)
trainer_optimizer_before_broadcast = edit(
    TRAINER,
    "You made the optimizer before the broadcast. It copied its masters from this rank's own parameters, and the "
    "first step brings them back: broadcast first.",
    ("        broadcast_parameters(self.model)\n", ""),
    ("torch.optim.Adam, lr=lr)\n", "torch.optim.Adam, lr=lr)\n        broadcast_parameters(self.model)\n"),
    breaks=tests_of(*ON_TRAINER, GUARD),
)
trainer_corpus_of_each_rank = edit(
    TRAINER,
    "Every rank made a corpus of its own: seed + rank is for the model only. Other cycles have other transitions, and"
    " what one rank learns contradicts the others.",
    ("make_corpus(seed, CORPUS_TOKENS)", "make_corpus(seed + rank, CORPUS_TOKENS)"),
    breaks=tests_of(*ON_TRAINER),
)
trainer_sums_micro_batches = edit(
    TRAINER,
    "The gradients of the micro-batches add up to their sum, k times the mean: divide each micro-batch's loss by "
    "micro_batches. Adam hides it, since it divides by the gradient's own size; the gradient norm shows it.",
    (" / self.micro_batches\n", "\n"),
    ("total += loss.detach()", "total += loss.detach() / self.micro_batches"),
    breaks=tests_of(*ON_TRAINER),
)
trainer_ignores_micro_batches = edit(
    TRAINER,
    "The whole batch went through the model at once. The numbers are right, but micro-batches are there to save "
    "memory: 4/k rows at a time.",
    ("zip(x.chunk(self.micro_batches), y.chunk(self.micro_batches))", "zip([x], [y])"),
    ("targets) / self.micro_batches", "targets)"),
    breaks=tests_of(TRAINER),
)
trainer_reports_its_own_loss = edit(
    TRAINER,
    "You report this rank's own loss: each rank says something else. The loss of a step is the mean over all ranks.",
    ("        dist.all_reduce(total)\n", ""),
    ("total.item() / self.world_size", "total.item()"),
    breaks=tests_of(*ON_TRAINER, GUARD),
)
trainer_norm_of_its_own_gradient = edit(
    TRAINER,
    "This is the norm of this rank's own gradient. The one that matters is that of the mean over the ranks; the "
    "optimizer knows it: clip_grad_norm_(math.inf).",
    ("self.optimizer.clip_grad_norm_(math.inf)", "nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)"),
    breaks=tests_of(*ON_TRAINER),
)
trainer_clips = edit(
    TRAINER,
    "To read the norm you clipped the gradient as well: give math.inf as the bound.",
    ("clip_grad_norm_(math.inf)", "clip_grad_norm_(1.0)"),
    breaks=tests_of(*ON_TRAINER),
)
trainer_keeps_the_reduced_gradient = edit(
    TRAINER,
    "You cleared the model's gradients, and not what the optimizer had reduced: called twice before an update, the "
    "first gradient is used. Call the optimizer's zero_grad.",
    ("self.optimizer.zero_grad()", "self.model.zero_grad()"),
    breaks=tests_of(TRAINER),
)
trainer_keeps_the_factor = edit(
    TRAINER,
    "The learning rate stays multiplied after the update: put it back. A spike would last for ever, and end up in "
    "every checkpoint.",
    ('        group["lr"] = lr\n', ""),
    breaks=tests_of(TRAINER),
)
trainer_describes_before_the_step = edit(
    TRAINER,
    "Norm and digest are of the parameters before the step: make the step first.",
    ("        self.optimizer.step()\n", ""),
    ("        return flat.double()", "        self.optimizer.step()\n        return flat.double()"),
    breaks=tests_of(TRAINER, TRAIN, GUARD),
)
trainer_reduces_twice = edit(
    TRAINER,
    "You all-reduced the gradients before the optimizer reduced them: the numbers are the same, and twice as much is "
    "sent. ZeroOptimizer does the reduction.",
    ("        dist.all_reduce(total)\n",
     "        for p in self.model.parameters():\n            dist.all_reduce(p.grad)\n"
     "            p.grad /= self.world_size\n"
     "        dist.all_reduce(total)\n"),
    breaks=tests_of(TRAINER),
)  # fmt: skip


# ---- 3 · invariants ----

invariants_told_by_one_rank = edit(
    INVARIANTS,
    "Only the rank that sees its own wrong bytes raises. The others go on and wait for it in their next collective: "
    "all ranks must hear of it, and raise.",
    ("for other, (_, _, held) in enumerate(everyone):", "for other, held in ((rank, state_bytes),):"),
    breaks=tests_of(INVARIANTS, TRAIN),
)
invariants_nan_falls = edit(
    INVARIANTS,
    "nan >= x is False, so a loss that is nan passes for falling. Ask whether it is below, and negate that.",
    ("not losses[-1] < losses[-2]", "losses[-1] >= losses[-2]"),
    breaks=tests_of(INVARIANTS),
)
invariants_standing_still_falls = edit(
    INVARIANTS,
    "A loss that stays exactly the same passes: it must fall strictly. A step that did nothing looks like that.",
    ("not losses[-1] < losses[-2]", "not losses[-1] <= losses[-2]"),
    breaks=tests_of(INVARIANTS),
)
invariants_nan_differs_from_nan = edit(
    INVARIANTS,
    "nan is unequal to itself, so ranks whose norm is nan count as different although they hold the same bytes.",
    ("(repr(norm), digest, state_bytes)", "(norm, digest, state_bytes)"),
    breaks=tests_of(INVARIANTS, WATCH, GUARD),
)
invariants_without_padding = edit(
    INVARIANTS,
    "12P/N is not a whole number of shards where N does not divide P: a shard has ⌈P/N⌉ numbers, rounded up.",
    ("12 * -(numel // -world_size)", "12 * numel // world_size"),
    breaks=tests_of(INVARIANTS, TRAIN, VERIFY),
)
verified_against_itself = edit(
    INVARIANTS,
    "You compare what was loaded with itself, or only with what the manifest says: a wrong byte that was written with"
    " a right digest goes unnoticed. Compare with the state that was to be saved.",
    ("described(loaded) == described(state)", "described(loaded) == described(load_sharded(path)[0])"),
    breaks=tests_of(INVARIANTS, TRAIN),
)
verified_alone = edit(
    INVARIANTS,
    "The rank that reads a wrong byte raises alone, and the others go on: let all ranks know first.",
    ("    if not all(everyone):", "    if not everyone[dist.get_rank()]:"),
    breaks=tests_of(INVARIANTS, TRAIN),
)
verified_without_plain_values = edit(
    INVARIANTS,
    "You compare the tensors only. The step count and the learning rate belong to the state as well.",
    ("values, tensors_digest(tensors)", "tensors_digest(tensors)"),
    breaks=tests_of(INVARIANTS),
)


# ---- 4 · train ----

train_saves_before_the_step = edit(
    TRAIN,
    "The checkpoint of a step is saved before that step's update: it holds the parameters of the step before. A run "
    "that resumes from it misses one step.",
    ("        spikes = step == spike_step",
     "        if checkpoint_dir is not None and step == checkpoint_step:\n"
     "            history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step))\n"
     "        spikes = step == spike_step"),
    ("(due or step == checkpoint_step)", "due"),
    breaks=tests_of(TRAIN, VERIFY, WATCH),
)  # fmt: skip
train_resumes_at_one = edit(
    TRAIN,
    "Resumed, your run counts its steps from 1 again: the state is that of the checkpoint, the data and the numbers "
    "are not.",
    ('        step = manifest["step"]\n', ""),
    breaks=tests_of(TRAIN, VERIFY, WATCH),
)
train_repeats_the_saved_step = edit(
    TRAIN,
    "Resumed, your run makes the checkpoint's step once more. That step is in the state already: go on with the next.",
    ('step = manifest["step"]\n', 'step = manifest["step"] - 1\n'),
    breaks=tests_of(TRAIN, VERIFY, WATCH),
)
train_forgets_the_moments = edit(
    TRAIN,
    "You restored the parameters and not Adam's moments and step count. The first loss is right, and from the second "
    "on the run is another one.",
    ("trainer.optimizer.load_state_dict(state)",
     'trainer.optimizer.load_state_dict({name: state[name] for name in ("master", "lr")})'),
    breaks=tests_of(TRAIN, VERIFY),
)  # fmt: skip
train_forgets_the_step_count = edit(
    TRAIN,
    "Adam's step count started anew: its bias correction then divides the old moments by numbers that are too small.",
    ("trainer.optimizer.load_state_dict(state)", 'trainer.optimizer.load_state_dict({**state, "step": 0})'),
    breaks=tests_of(TRAIN, VERIFY),
)
train_counts_steps = edit(
    TRAIN,
    "steps is the number of the last step, not how many to make: resumed after step 10, a run to 20 makes ten more.",
    ("while step < steps:", 'while len(history.lists["steps"]) < steps:'),
    breaks=tests_of(TRAIN, VERIFY, WATCH),
)
train_unchecked = edit(
    TRAIN,
    "The invariants are not checked: a fault in a step goes unnoticed.",
    ("        check_step(rank, world_size, step, losses, norm, digest, held, trainer.numel, falling)\n", ""),
    breaks=tests_of(TRAIN),
)
train_checks_on_rank_0 = edit(
    TRAIN,
    "check_step is a collective: rank 0 alone waits in it for the others for ever.",
    ("        check_step(", "        if rank == 0:\n            check_step("),
    breaks=tests_of(TRAIN, VERIFY, WATCH, GUARD),
)
train_checks_the_loss_in_spite_of_the_spike = edit(
    TRAIN,
    "With a spike_step the loss is meant to rise: invariant (a) must not be checked then.",
    ("falling, losses = spike_step is None,", "falling, losses = True,"),
    breaks=tests_of(TRAIN, WATCH),
)
train_saves_unverified = edit(
    TRAIN,
    "The checkpoint is saved, and nobody reads it back: use save_verified.",
    ("history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step))",
     'state = trainer.optimizer.state_dict()\n            entry = {"step": step, "sha256": tensors_digest(state)}\n'
     "            history.checkpoints.append({**entry, \"path\": str(save_sharded(state, checkpoint_dir, step))})"),
    breaks=tests_of(TRAIN),
)  # fmt: skip
train_saves_every_so_many_steps = edit(
    TRAIN,
    "checkpoint_step is one step, not an interval: step 20 was saved as well as step 10.",
    ("(due or step == checkpoint_step)", "(due or (checkpoint_step and step % checkpoint_step == 0))"),
    breaks=tests_of(TRAIN),
)
train_writes_on_every_rank = edit(
    TRAIN,
    "Every rank writes its lines to the metrics, so each step is there N times: only rank 0 writes.",
    ("writes = rank == 0 and metrics_path is not None", "writes = metrics_path is not None"),
    breaks=tests_of(WATCH, GUARD),
)
train_asks_the_clock_on_rank_0 = edit(
    TRAIN,
    "Only rank 0 asks whether it is due, and waits for the others in the question: all ranks must ask.",
    ("cadence is not None and cadence.due()", "cadence is not None and rank == 0 and cadence.due()"),
    breaks=tests_of(WATCH),
)
train_spikes_again = edit(
    TRAIN,
    "After the rollback the step is run again, and your spike strikes again: once only.",
    ("step == spike_step and not spiked", "step == spike_step"),
    breaks=tests_of(GUARD),
)
train_keeps_rejected_steps = edit(
    TRAIN,
    "After a rollback the steps that were taken back are still in the lists: history.forget_after(to, rank).",
    ("            history.forget_after(to, rank)\n", ""),
    breaks=tests_of(GUARD),
)


# ---- 5 · verify_resume ----

verify_leaves_early = edit(
    VERIFY,
    "The rank whose digest differs leaves, and the others wait for it in the resumed run: go on with everybody, and "
    "tell the difference at the end.",
    ("        again = train(",
     '        if tensors_digest(state) != checkpoint["sha256"]:\n'
     '            return {"ok": False, "first_difference": "the sha256 of the checkpoint"}\n        again = train('),
    breaks=tests_of(VERIFY),
)  # fmt: skip
verify_list_by_list = edit(
    VERIFY,
    "You go through list after list, so what you report is not the earliest step that differs.",
    ('        for place, step in enumerate(again["steps"]):\n'
     '            for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):',
     '        for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):\n'
     '            for place, step in enumerate(again["steps"]):'),
    breaks=tests_of(VERIFY),
)  # fmt: skip
verify_about_equal = edit(
    VERIFY,
    "You forgive small differences. A resumed run is the same run: its numbers are equal to the last bit.",
    ("again[name][place] != mine[name][done + place]:",
     "not (again[name][place] == mine[name][done + place] or name in ('losses', 'norms', 'grad_norms') and "
     "abs(again[name][place] - mine[name][done + place]) < 1e-6):"),
    breaks=tests_of(VERIFY),
)  # fmt: skip
verify_only_the_end = edit(
    VERIFY,
    "You compare only what the runs end with: hashes of all steps, losses and norms belong to it as well.",
    ('place, step in enumerate(again["steps"])', "place, step in []"),
    breaks=tests_of(VERIFY),
)
verify_without_digest = edit(
    VERIFY,
    "The digest of the checkpoint that was recorded is not compared with that of the state that was loaded.",
    ('if tensors_digest(state) != checkpoint["sha256"]:', "if False:"),
    breaks=tests_of(VERIFY),
)
verify_from_the_start = edit(
    VERIFY,
    "You trained from the start and not from the checkpoint: whatever is in the checkpoint, this comes out equal.",
    ("again = train(rank, world_size, steps, None, None, resume_from=checkpoint[\"path\"])",
     "again = train(rank, world_size, steps, None, None)\n"
     "        again = {n: v[checkpoint['step']:] if isinstance(v, list) else v for n, v in again.items()}"),
    breaks=tests_of(VERIFY),
)  # fmt: skip
verify_compares_with_rank_0 = edit(
    VERIFY,
    "Every rank compares itself with rank 0's record: rank r's is uninterrupted[rank].",
    ("uninterrupted[rank]", "uninterrupted[0]"),
    breaks=tests_of(VERIFY),
)
verify_raises = edit(
    VERIFY,
    "A damaged checkpoint is a difference to report: catch the CheckpointError.",
    ("except CheckpointError as error:", "except KeyError as error:"),
    breaks=tests_of(VERIFY),
)


# ---- 6 · metrics and cadence ----

cadence_by_each_clock = edit(
    WATCH,
    "Each rank asks its own clock. They disagree now and then, and one rank begins a save in which it is alone: rank "
    "0's clock decides for all.",
    ("        dist.broadcast(verdict, src=0)\n", ""),
    breaks=tests_of(WATCH),
)
cadence_catches_up = edit(
    WATCH,
    "You add the interval to the time of the last True. After a long pause your cadence is due several times in a "
    "row: count from now.",
    ("self.last = now", "self.last += self.seconds"),
    breaks=tests_of(WATCH),
)
cadence_later_than_due = edit(
    WATCH,
    "Exactly so many seconds are enough: >=, not >.",
    ("now - self.last >= self.seconds", "now - self.last > self.seconds"),
    breaks=tests_of(WATCH),
)
cadence_restarts_when_asked = edit(
    WATCH,
    "You note the time of every question. Asked often enough, it is never due: note that of the last True.",
    ("        if verdict:\n            self.last = now", "        self.last = now"),
    breaks=tests_of(WATCH),
)
metrics_with_nan = edit(
    WATCH,
    "NaN and Infinity are not JSON, though Python's json writes them: other programs refuse the file. Write null.",
    ("None if isinstance(v, float) and not math.isfinite(v) else v", "v"),
    ("allow_nan=False", "allow_nan=True"),
    breaks=tests_of(WATCH, GUARD),
)
metrics_overwritten = edit(
    WATCH,
    "Each row replaces the file. Open it to append: a run that resumes goes on with it.",
    ('.open("a")', '.open("w")'),
    breaks=tests_of(WATCH, GUARD),
)
metrics_infinity_forgotten = edit(
    WATCH,
    "nan becomes null, and infinity does not: neither is JSON.",
    ("not math.isfinite(v)", "math.isnan(v)"),
    ("allow_nan=False", "allow_nan=True"),
    breaks=tests_of(WATCH),
)
plot_first_line_counts = edit(
    WATCH,
    "A step that was run again has two lines, and you plot the first, which was taken back. The last one counts.",
    ('rows[row["step"]] = row', 'rows.setdefault(row["step"], row)'),
    breaks=tests_of(WATCH),
)
plot_in_the_order_of_the_file = edit(
    WATCH,
    "The steps are drawn in the order in which they stand in the file, so the line goes back and forth: sort them.",
    ("for step in sorted(rows)]", "for step in rows]"),
    ("ax.plot(sorted(rows), values", "ax.plot(list(rows), values"),
    breaks=tests_of(WATCH),
)
plot_null_as_zero = edit(
    WATCH,
    "A null is drawn as 0. It is no number: nan leaves a gap.",
    ("math.nan if rows", "0.0 if rows"),
    breaks=tests_of(WATCH),
)


# ---- 7 · guard ----

guard_snapshot_of_the_spoilt_state = edit(
    GUARD,
    "You take the snapshot before you judge the loss: when it is refused, the snapshot holds the spoilt parameters. "
    "Keep that of the last accepted step.",
    ("        self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)\n", ""),
    (
        "        limit = 1.5",
        "        self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)\n        limit = 1.5",
    ),
    breaks=tests_of(GUARD),
)
guard_forgets_the_moments = edit(
    GUARD,
    "You went back with the parameters and left Adam's moments as they were: the next steps are others.",
    ("self.optimizer.load_state_dict(state)",
     'self.optimizer.load_state_dict({**self.optimizer.state_dict(), "master": state["master"]})'),
    breaks=tests_of(GUARD),
)  # fmt: skip
guard_loss_counts_twice = edit(
    GUARD,
    "The loss of the step that is run again stays in the list, and comes in a second time: forget it when you go back.",
    ("        self.losses = list(losses)\n", ""),
    breaks=tests_of(GUARD),
)
guard_by_the_mean = edit(
    GUARD,
    "You compare with the mean of the last losses. One outlier moves it, and then the next one passes: take the "
    "median.",
    ("statistics.median", "statistics.mean"),
    breaks=tests_of(GUARD),
)
guard_by_all_losses = edit(
    GUARD,
    "You take the median of all losses since the start. It lags behind: late in training a loss must be enormous to "
    "be noticed. The last five count.",
    ("self.losses[-5:]", "self.losses"),
    breaks=tests_of(GUARD),
)
guard_by_the_last_loss = edit(
    GUARD,
    "You compare with the last loss alone: one low value makes the guard refuse its neighbors.",
    ("self.losses[-5:]", "self.losses[-1:]"),
    breaks=tests_of(GUARD),
)
guard_lets_nan_pass = edit(
    GUARD,
    "nan is not above any limit, so it passes: ask first whether the loss is finite.",
    ("not math.isfinite(loss) or loss > limit", "loss > limit"),
    breaks=tests_of(GUARD),
)
guard_refuses_the_limit = edit(
    GUARD,
    "A loss of exactly 1.5 times the median is not above it.",
    ("loss > limit", "loss >= limit"),
    breaks=tests_of(GUARD),
)
guard_says_the_wrong_step = edit(
    GUARD,
    "The snapshot is from before the update of the step, so it is the state after the step before: step - 1.",
    ("self.snapshot = step - 1,", "self.snapshot = step,"),
    breaks=tests_of(GUARD),
)
guard_goes_back_for_ever = edit(
    GUARD,
    "A loss that never comes back is rolled back for ever: the fourth time is an error.",
    ("self.count > 3 or self.snapshot is None", "self.snapshot is None"),
    breaks=tests_of(GUARD),
)


# ---- 8 · tensor parallel ----

tensor_with_own_batches = edit(
    TENSOR,
    "Each rank has a batch of its own, as in data parallelism. The ranks share the heads of one attention: all of "
    "them must see the same tokens.",
    ("make_batch(corpus, step, 0, 1)", "make_batch(corpus, step, dist.get_rank(), world_size)"),
    breaks=tests_of(TENSOR),
)
tensor_gradients_averaged = edit(
    TENSOR,
    "You averaged the gradients over the ranks. Each rank's qkv belongs to other heads: their gradients have nothing "
    "to do with each other, and what is whole has the same gradient everywhere already.",
    ("        optimizer.step()\n",
     "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n            p.grad /= world_size\n"
     "        optimizer.step()\n"),
    breaks=tests_of(TENSOR),
)  # fmt: skip
tensor_other_models = edit(
    TENSOR,
    "Every rank built another model: here they must be equal, since each rank cuts its piece out of its own.",
    ("build_model(seed)", "build_model(seed + rank)"),
    breaks=tests_of(TENSOR),
)
tensor_only_one_block = edit(
    TENSOR,
    "Only one of the two blocks is split.",
    ("in model.blocks:", "in model.blocks[:1]:"),
    breaks=tests_of(TENSOR),
)
tensor_stale_optimizer = edit(
    TENSOR,
    "The optimizer was made before the attention was replaced: it steps parameters that are no longer in the model.",
    ("    optimizer = torch.optim.Adam(model.parameters(), lr=lr)\n", ""),
    ("    for block in", "    optimizer = torch.optim.Adam(model.parameters(), lr=lr)\n    for block in"),
    breaks=tests_of(TENSOR),
)
