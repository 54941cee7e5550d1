"""Wrong answers to lesson 17, exercises 5 to 8."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

VERIFY, WATCH, GUARD, TENSOR = "17-ex5-verify", "17-ex6-watch", "17-ex7-guard", "17-ex8-tensor"


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
        'not np.array_equal(again["parameters"], mine["parameters"], equal_nan=True)',
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
    ("except CheckpointError as error:", "except KeyError as error:"),
    breaks=tests_of(VERIFY),
)


# ---- 6 · metrics and cadence ----

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

metrics_with_nan = edit(
    WATCH,
    """You wrote NaN or Infinity, which are not JSON although Python's json writes them, and other programs refuse the
    file. Write null.""",
    ("None if isinstance(v, float) and not math.isfinite(v) else v", "v"),
    ("allow_nan=False", "allow_nan=True"),
    breaks=tests_of(WATCH, GUARD),
)

metrics_overwritten = edit(
    WATCH,
    """Each of your rows replaces the file. Open it to append: a run that resumes continues it.""",
    ('.open("a")', '.open("w")'),
    breaks=tests_of(WATCH, GUARD),
)

metrics_infinity_forgotten = edit(
    WATCH,
    """You wrote nan as null, but not infinity. Neither is JSON: test for finite numbers.""",
    ("not math.isfinite(v)", "math.isnan(v)"),
    ("allow_nan=False", "allow_nan=True"),
    breaks=tests_of(WATCH),
    fails=["metrics_are_strict_json"],
)

plot_first_line_counts = edit(
    WATCH,
    """For a step that was run again you plot the first line, which was taken back. The last one counts.""",
    ('rows[row["step"]] = row', 'rows.setdefault(row["step"], row)'),
    breaks=tests_of(WATCH),
    fails=["plots_show_each_step_once"],
)

plot_in_the_order_of_the_file = edit(
    WATCH,
    """You plot the steps in the order of the file, so the line goes back and forth after a rollback. Sort them.""",
    ("for step in sorted(rows)]", "for step in rows]"),
    ("ax.plot(sorted(rows), values", "ax.plot(list(rows), values"),
    breaks=tests_of(WATCH),
    fails=["plots_show_each_step_once"],
)

plot_null_as_zero = edit(
    WATCH,
    """You plot a null as 0. It stands for a number that is not finite: plot nan, which leaves a gap.""",
    ("math.nan if rows", "0.0 if rows"),
    breaks=tests_of(WATCH),
    fails=["plots_show_each_step_once"],
)


# ---- 7 · guard ----

guard_snapshot_of_the_spoilt_state = edit(
    GUARD,
    """You take the snapshot before you judge the loss, so when it is refused, the snapshot holds the damaged
    parameters. Keep the snapshot of the last accepted step.""",
    ("        self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)\n", ""),
    (
        "        limit = 1.5",
        "        self.snapshot = step - 1, self.optimizer.state_dict(), list(self.losses)\n        limit = 1.5",
    ),
    breaks=tests_of(GUARD),
)

guard_forgets_the_moments = edit(
    GUARD,
    """You restored the parameters, but left Adam's moments as they were, so the next steps differ. Restore the whole
    state.""",
    (
        "self.optimizer.load_state_dict(state)",
        'self.optimizer.load_state_dict({**self.optimizer.state_dict(), "master": state["master"]})',
    ),
    breaks=tests_of(GUARD),
)

guard_loss_counts_twice = edit(
    GUARD,
    """You kept the loss of the step that is run again, so it is counted twice. Forget it when you roll back.""",
    ("        self.losses = list(losses)\n", ""),
    breaks=tests_of(GUARD),
    fails=["guard_judges_by_the_median"],
)

guard_by_the_mean = edit(
    GUARD,
    """You compare with the mean of the last losses. One outlier moves the mean, and the next outlier then passes: use
    the median.""",
    ("statistics.median", "statistics.mean"),
    breaks=tests_of(GUARD),
    fails=["guard_judges_by_the_median"],
)

guard_by_all_losses = edit(
    GUARD,
    """You take the median of all losses since the start. It lags: late in training only an enormous loss would be
    noticed. Use the last five.""",
    ("self.losses[-5:]", "self.losses"),
    breaks=tests_of(GUARD),
    fails=["guard_judges_by_the_median"],
)

guard_by_the_last_loss = edit(
    GUARD,
    """You compare with the last loss alone, so after one low value the guard refuses ordinary losses. Use the median of
    the last five.""",
    ("self.losses[-5:]", "self.losses[-1:]"),
    breaks=tests_of(GUARD),
    fails=["guard_judges_by_the_median"],
)

guard_lets_nan_pass = edit(
    GUARD,
    """nan is not above any limit, so your guard accepts it. Ask first whether the loss is finite.""",
    ("not math.isfinite(loss) or loss > limit", "loss > limit"),
    breaks=tests_of(GUARD),
)

guard_refuses_the_limit = edit(
    GUARD,
    """You refuse a loss of exactly 1.5 times the median. Only a loss above it is refused.""",
    ("loss > limit", "loss >= limit"),
    breaks=tests_of(GUARD),
    fails=["guard_judges_by_the_median"],
)

guard_says_the_wrong_step = edit(
    GUARD,
    """Your snapshot has the number of its own step. It is taken before that step's update, so it is the state after the
    step before: step − 1.""",
    ("self.snapshot = step - 1,", "self.snapshot = step,"),
    breaks=tests_of(GUARD),
)

guard_goes_back_for_ever = edit(
    GUARD,
    """You roll back a loss that never recovers again and again, without end. Raise the error at the fourth time.""",
    ("self.count > 3 or self.snapshot is None", "self.snapshot is None"),
    breaks=tests_of(GUARD),
    fails=["guard_judges_by_the_median", "a_hopeless_run_is_given_up"],
)


# ---- 8 · tensor parallel ----

tensor_with_own_batches = edit(
    TENSOR,
    """You gave each rank a batch of its own, as in data parallelism. The ranks share the heads of one attention: all of
    them must see the same tokens.""",
    ("make_batch(corpus, step, 0, 1)", "make_batch(corpus, step, dist.get_rank(), world_size)"),
    breaks=tests_of(TENSOR),
)

tensor_gradients_averaged = edit(
    TENSOR,
    """You averaged the gradients over the ranks. Each rank's qkv belongs to other heads, so their gradients have
    nothing to do with each other, and parameters that are whole already have the same gradient on every rank.""",
    (
        "        optimizer.step()\n",
        "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n            p.grad /= world_size\n"
        "        optimizer.step()\n",
    ),
    breaks=tests_of(TENSOR),
)

tensor_other_models = edit(
    TENSOR,
    """Every rank built another model. Each rank cuts its piece out of its own model, so the models must be equal: use
    the same seed.""",
    ("build_model(seed)", "build_model(seed + rank)"),
    breaks=tests_of(TENSOR),
)

tensor_only_one_block = edit(
    TENSOR,
    """You split only one of the two blocks. Replace the attention in each of them.""",
    ("in model.blocks:", "in model.blocks[:1]:"),
    breaks=tests_of(TENSOR),
)

tensor_stale_optimizer = edit(
    TENSOR,
    """You made the optimizer before you replaced the attention, so it updates parameters that are no longer in the
    model. Make it afterwards.""",
    ("    optimizer = torch.optim.Adam(model.parameters(), lr=lr)\n", ""),
    ("    for block in", "    optimizer = torch.optim.Adam(model.parameters(), lr=lr)\n    for block in"),
    breaks=tests_of(TENSOR),
)
