"""Wrong answers to lesson 17, exercises 5 to 7."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

ROLLBACKS = "rollbacks_restore_the_last_snapshot"
VERIFY, WATCH, WATCHED = "17-ex5-verify", "17-ex6-watch", "17-ex7-watched"


# ---- 5 · verify_resume ----

verify_leaves_early = edit(
    VERIFY,
    """The rank whose digest differs returns at once, and the others wait for it in the resumed run. Let all ranks go
    on, and report the difference at the end.""",
    (
        "        again = train(",
        '        if tensors_digest(state) != checkpoint["sha256"]:\n'
        '            return {"ok": False, "first_difference": "the sha256 of the checkpoint"}\n        again = train(',
    ),
    breaks=tests_of(VERIFY),
)

verify_alone_without_a_checkpoint = edit(
    VERIFY,
    """If one rank has no checkpoint, your ranks do not all make the same decision: some leave, and the others wait for
    them. Every rank has the records of all ranks: let all leave, or none.""",
    ('if not all(run["checkpoints"] for run in uninterrupted):', 'if not mine["checkpoints"]:'),
    breaks=tests_of(VERIFY),
)

verify_catches_checkpoint_errors_alone = edit(
    VERIFY,
    """You catch the CheckpointError alone. A checkpoint can be intact and still not fit the model. The run that resumes
    from it then ends with another error, which is a difference to report, too.""",
    ("except Exception as error:", "except CheckpointError as error:"),
    breaks=tests_of(VERIFY),
)

verify_list_by_list = edit(
    VERIFY,
    """You compare one list after the other, so you do not report the earliest step that differs. Compare all lists step
    by step.""",
    (
        '        for place, step in enumerate(again["steps"]):\n'
        '            for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):',
        '        for name in ("losses", "hashes", "grad_norms", "norms", "state_bytes"):\n'
        '            for place, step in enumerate(again["steps"]):',
    ),
    breaks=tests_of(VERIFY),
)

verify_about_equal = edit(
    VERIFY,
    """You accept small differences. A resumed run is the same run: its numbers are equal to the last bit.""",
    (
        "again[name][place] != mine[name][done + place]:",
        "not (again[name][place] == mine[name][done + place] or name in ('losses', 'norms', 'grad_norms') and "
        "abs(again[name][place] - mine[name][done + place]) < 1e-6):",
    ),
    breaks=tests_of(VERIFY),
)

verify_parameters_by_value = edit(
    VERIFY,
    """You compared the parameters as numbers: 0.0 then equals −0.0, whose bytes differ. Compare the bytes.""",
    (
        'again["parameters"].tobytes() != mine["parameters"].tobytes()',
        '(again["parameters"] != mine["parameters"]).any()',
    ),
    breaks=tests_of(VERIFY),
)

verify_losses_first = edit(
    VERIFY,
    """You went through the losses of all steps before the other lists, so a later loss hides an earlier update that
    differs. The earliest step counts, whatever the list.""",
    (
        "                if difference is None and again[name][place] != mine[name][done + place]:\n",
        '                later = again["losses"] != mine["losses"][done:] and name != "losses"\n'
        "                if difference is None and not later and again[name][place] != mine[name][done + place]:\n",
    ),
    breaks=tests_of(VERIFY),
)

verify_only_the_end = edit(
    VERIFY,
    """You compare only what the runs end with. Compare hashes, losses and norms of all steps as well.""",
    ('place, step in enumerate(again["steps"])', "place, step in []"),
    breaks=tests_of(VERIFY),
)

verify_without_digest = edit(
    VERIFY,
    """You do not compare the recorded digest of the checkpoint with that of the loaded state.""",
    ('if tensors_digest(state) != checkpoint["sha256"]:', "if False:"),
    breaks=tests_of(VERIFY),
)

verify_from_the_start = edit(
    VERIFY,
    """You trained from the start instead of from the checkpoint, so the runs are equal whatever the checkpoint holds.
    Pass it as resume_from.""",
    (
        'again = train(rank, world_size, steps, None, None, resume_from=checkpoint["path"])',
        "again = train(rank, world_size, steps, None, None)\n"
        "        again = {n: v[checkpoint['step']:] if isinstance(v, list) else v for n, v in again.items()}",
    ),
    breaks=tests_of(VERIFY),
)

verify_compares_with_rank_0 = edit(
    VERIFY,
    """Every rank compares itself with rank 0's record. Rank r's record is uninterrupted[r].""",
    ("uninterrupted[rank]", "uninterrupted[0]"),
    breaks=tests_of(VERIFY),
)

verify_raises = edit(
    VERIFY,
    """You let a damaged checkpoint raise. It is a difference to report: catch the CheckpointError.""",
    ("except Exception as error:", "except KeyError as error:"),
    breaks=tests_of(VERIFY),
)


# ---- 6 · cadence and guard ----

cadence_by_each_clock = edit(
    WATCH,
    """Each of your ranks asks its own clock. When the clocks disagree, one rank begins a save alone: let rank 0's clock
    decide for all.""",
    ("        dist.broadcast(verdict, src=0)\n", ""),
    breaks=tests_of(WATCH),
    fails=["one_clock_decides_for_all"],
)

cadence_catches_up = edit(
    WATCH,
    """You add the interval to the time of the last True, so after a long pause your cadence is due several times in a
    row. Count from now.""",
    ("self.last = now", "self.last += self.seconds"),
    breaks=tests_of(WATCH),
    fails=["one_clock_decides_for_all"],
)

cadence_later_than_due = edit(
    WATCH,
    """Your cadence is not due when exactly `seconds` have passed. That is enough: compare with >=, not with >.""",
    ("now - self.last >= self.seconds", "now - self.last > self.seconds"),
    breaks=tests_of(WATCH),
    fails=["one_clock_decides_for_all"],
)

cadence_restarts_when_asked = edit(
    WATCH,
    """You record the time of every call, so a cadence that is asked often is never due. Record only the time of the
    last True.""",
    ("        if verdict:\n            self.last = now", "        self.last = now"),
    breaks=tests_of(WATCH),
    fails=["one_clock_decides_for_all"],
)


guard_snapshot_of_the_spoilt_state = edit(
    WATCH,
    """You take the snapshot before you judge the loss, so when it is refused, the snapshot holds the damaged
    parameters. Keep the snapshot of the last accepted step.""",
    ("        self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)\n", ""),
    (
        "        limit = 1.5",
        "        self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)\n        limit = 1.5",
    ),
    breaks=tests_of(WATCH, WATCHED),
)

guard_forgets_the_moments = edit(
    WATCH,
    """You restored the parameters, but left Adam's moments as they were, so the next steps differ. Restore the whole
    state.""",
    (
        "self.optimizer.load_state_dict(state)",
        'self.optimizer.load_state_dict({**self.optimizer.state_dict(), "master": state["master"]})',
    ),
    breaks=tests_of(WATCH, WATCHED),
)

guard_loss_counts_twice = edit(
    WATCH,
    """You kept the loss of the step that is run again, so it is counted twice. Forget it when you roll back.""",
    ("        self.losses = list(losses)\n", ""),
    breaks=tests_of(WATCH),
)

guard_by_the_mean = edit(
    WATCH,
    """You compare with the mean of the last losses. One outlier moves the mean, and the next outlier then passes: use
    the median.""",
    ("statistics.median", "statistics.mean"),
    breaks=tests_of(WATCH),
)

guard_by_all_losses = edit(
    WATCH,
    """You take the median of all losses since the start. It lags: late in training only an enormous loss would be
    noticed. Use the last five.""",
    ("self.losses[-5:]", "self.losses"),
    breaks=tests_of(WATCH),
)

guard_by_the_last_loss = edit(
    WATCH,
    """You compare with the last loss alone, so after one low value the guard refuses ordinary losses. Use the median of
    the last five.""",
    ("self.losses[-5:]", "self.losses[-1:]"),
    breaks=tests_of(WATCH),
)

guard_lets_nan_pass = edit(
    WATCH,
    """nan is not above any limit, so your guard accepts it. Ask first whether the loss is finite.""",
    ("not math.isfinite(loss) or loss > limit", "loss > limit"),
    breaks=tests_of(WATCH, WATCHED),
)

guard_refuses_the_limit = edit(
    WATCH,
    """You refuse a loss of exactly 1.5 times the median. Only a loss above it is refused.""",
    ("loss > limit", "loss >= limit"),
    breaks=tests_of(WATCH),
)

guard_says_the_wrong_step = edit(
    WATCH,
    """Your snapshot has the number of its own step. It is taken before that step's update, so it is the state after the
    step before: step − 1.""",
    ("self.snapshot = step - 1,", "self.snapshot = step,"),
    breaks=tests_of(WATCH, WATCHED),
)

guard_goes_back_for_ever = edit(
    WATCH,
    """If the loss never recovers, you roll back again and again, without end. Raise the error the fourth time.""",
    ("if self.count == 3:", "if self.count < 0:"),
    breaks=tests_of(WATCH, WATCHED),
    fails=[ROLLBACKS],
)

guard_counts_calls_that_it_refused = edit(
    WATCH,
    """You count a call that raises. It took nothing back: only rollbacks that are made count.""",
    ("        self.count += 1\n", ""),
    ("        if self.snapshot is None:", "        self.count += 1\n        if self.snapshot is None:"),
    ("if self.count == 3:", "if self.count > 3:"),
    breaks=tests_of(WATCH),
    fails=[ROLLBACKS],
)

guard_counts_from_the_last_accepted = edit(
    WATCH,
    """You begin to count anew when a loss is accepted. A run that goes back, accepts one loss and goes back again then
    never ends: count over the guard's whole life.""",
    ("        self.losses.append(loss)\n", "        self.losses.append(loss)\n        self.count = 0\n"),
    breaks=tests_of(WATCH),
    fails=[ROLLBACKS],
)

guard_goes_further_back = edit(
    WATCH,
    """Your snapshots lie on a stack, and a second call in a row goes back one step more. Until another loss is
    accepted, the last snapshot is restored again.""",
    ("optimizer, [], None, 0", "optimizer, [], [], 0"),
    (
        "self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)",
        "self.snapshot.append((step - 1, self.optimizer.state_dict(), list(self.losses)))",
    ),
    ("if self.snapshot is None:", "if not self.snapshot:"),
    ("= self.snapshot\n", "= self.snapshot.pop()\n"),
    breaks=tests_of(WATCH),
    fails=[ROLLBACKS],
)

guard_forgets_a_loss_at_each_call = edit(
    WATCH,
    """Each call forgets one more loss. The second in a row restores the same state as the first, in which all earlier
    losses stand.""",
    ("self.losses = list(losses)", "self.losses = self.losses[:-1]"),
    breaks=tests_of(WATCH),
    fails=[ROLLBACKS],
)

guard_restores_a_snapshot_once = edit(
    WATCH,
    """You drop the snapshot when you restore it, so a second call in a row has none. Keep it until another loss is
    accepted.""",
    ("        self.losses = list(losses)\n", "        self.losses, self.snapshot = list(losses), None\n"),
    breaks=tests_of(WATCH),
    fails=[ROLLBACKS],
)

guard_trains_its_snapshot = edit(
    WATCH,
    """You hand the snapshot's own tensors to the optimizer, and the next step changes them in place. When you restore
    that snapshot again, the moments are no longer what you saved: give the optimizer copies.""",
    (
        "        self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)\n",
        "        import copy\n\n"
        "        kept = self.optimizer.master.detach().clone(), copy.deepcopy(self.optimizer.optimizer.state_dict())\n"
        "        self.snapshot = step - 1, kept, list(self.losses)\n",
    ),
    (
        "        self.optimizer.load_state_dict(state)",
        "        self.optimizer.master.data.copy_(state[0])\n"
        "        self.optimizer.optimizer.load_state_dict(state[1])\n"
        "        self.optimizer.gather_parameters()\n"
        "        self.optimizer.zero_grad()",
    ),
    breaks=tests_of(WATCH),
    fails=[ROLLBACKS],
)


# ---- 7 · train_watched ----

train_checks_the_loss_in_spite_of_the_spike = edit(
    WATCHED,
    """You checked invariant (a) although a spike_step is given, with which the loss is meant to rise. Do not check (a)
    then.""",
    (
        'losses, falling = history.lists["losses"], spike_step is None',
        'losses, falling = history.lists["losses"], True',
    ),
    breaks=tests_of(WATCHED),
    fails=["a_watched_run_is_stopped_as_well", "training_is_watched_and_saved_by_the_clock"],
)


train_writes_on_every_rank = edit(
    WATCHED,
    """Every rank writes its lines to the metrics, so each step is there N times. Let only rank 0 write.""",
    (
        "writes, spiked = rank == 0 and metrics_path is not None, False",
        "writes, spiked = metrics_path is not None, False",
    ),
    breaks=tests_of(WATCHED),
)


train_asks_the_clock_on_rank_0 = edit(
    WATCHED,
    """Only your rank 0 calls due(), and waits there for the other ranks. All ranks must call it.""",
    ("cadence is not None and cadence.due()", "cadence is not None and rank == 0 and cadence.due()"),
    breaks=tests_of(WATCHED),
    fails=["training_is_watched_and_saved_by_the_clock"],
)


train_does_not_ask_when_it_saves = edit(
    WATCHED,
    """In a step that is saved anyway you did not ask due(). The cadence then counts from an older save, and the next
    one comes too soon: ask once in every step.""",
    (
        "due = cadence is not None and cadence.due()",
        "due = step != checkpoint_step and cadence is not None and cadence.due()",
    ),
    breaks=tests_of(WATCHED),
    fails=["training_is_watched_and_saved_by_the_clock"],
)


train_asks_the_clock_first = edit(
    WATCHED,
    """You ask due() before you know whether the step stands. In a step whose loss is refused the question is then
    wasted: if the answer is yes, nothing is saved for a whole interval. Ask only in steps that are not taken back.""",
    ("        step += 1\n", "        step += 1\n        due = cadence is not None and cadence.due()\n"),
    ("        due = cadence is not None and cadence.due()\n        if checkpoint_dir", "        if checkpoint_dir"),
    breaks=tests_of(WATCHED),
    fails=["training_is_watched_and_saved_by_the_clock"],
)


train_writes_before_it_checks = edit(
    WATCHED,
    """You wrote the step's metrics before check_step. A step that broke an invariant then stands among the good ones.
    Check first.""",
    ("        check_step(rank, world_size, step, losses, norm, digest, held, trainer.numel, falling)\n", ""),
    (
        '"grad_norm": grad_norm, "step_seconds": seconds})\n',
        '"grad_norm": grad_norm, "step_seconds": seconds})\n'
        "        check_step(rank, world_size, step, losses, norm, digest, held, trainer.numel, falling)\n",
    ),
    breaks=tests_of(WATCHED),
    fails=["a_watched_run_is_stopped_as_well"],
)


train_spikes_again = edit(
    WATCHED,
    """After the rollback the step is run again, and your spike comes again. It must come only once.""",
    ("step == spike_step and not spiked", "step == spike_step"),
    breaks=tests_of(WATCHED),
)


train_keeps_rejected_steps = edit(
    WATCHED,
    """After a rollback your lists still hold the steps that were taken back. Call history.forget_after(to, rank).""",
    ("            history.forget_after(to, rank)\n", ""),
    breaks=tests_of(WATCHED),
)

watched_remembers_a_digest_that_was_taken_back = edit(
    WATCHED,
    """After a rollback you compare the parameters with the digest of the update that was taken back. The parameters
    differ from it, as they should, and check_start ends the run. Forget the digest.""",
    ("            step, digest = to, None\n", "            step = to\n"),
    breaks=tests_of(WATCHED),
)

watched_is_not_stopped = edit(
    WATCHED,
    """With the options your loop no longer checks its steps. The options come on top of the invariants: call
    check_step.""",
    ("        check_step(rank, world_size, step, losses, norm, digest, held, trainer.numel, falling)\n", ""),
    breaks=tests_of(WATCHED),
    fails=["a_watched_run_is_stopped_as_well"],
)

watched_without_check_start = edit(
    WATCHED,
    """With the options your loop no longer compares its memory before forward. Call check_start here, too.""",
    ("        check_start(rank, world_size, step, parameters_digest(trainer.model), digest)\n", ""),
    breaks=tests_of(WATCHED),
    fails=["a_watched_run_is_stopped_as_well"],
)

watched_compares_the_memory_with_nothing = edit(
    WATCHED,
    """With the options your loop gives check_start no digest to compare with, so it accepts everything. None is for the
    first step, and for the one after a rollback.""",
    ("parameters_digest(trainer.model), digest)", "parameters_digest(trainer.model), None)"),
    breaks=tests_of(WATCHED),
    fails=["a_watched_run_is_stopped_as_well"],
)

watched_asks_the_clock_when_it_goes_back = edit(
    WATCHED,
    """You save a step that was taken back: its state is the one before. Go on at once after a rollback.""",
    (
        "            step, digest = to, None\n            continue\n",
        "            step, digest = to, None\n"
        "            if checkpoint_dir is not None and step + 1 == checkpoint_step:\n"
        "                history.checkpoints.append(save_verified(trainer.optimizer, checkpoint_dir, step + 1))\n"
        "            continue\n",
    ),
    breaks=tests_of(WATCHED),
)

watched_events_without_a_name = edit(
    WATCHED,
    """A rollback's line in the metrics has no `event`, so a plot takes it for a step. Write "event": "rollback".""",
    ('{"event": "rollback", **history.rollbacks[-1]}', "dict(history.rollbacks[-1])"),
    breaks=tests_of(WATCHED),
)
