"""Wrong answers to lesson 11, exercises 1 to 4."""

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

SCHEDULES, SIMULATE, PEAKS = "11-ex1-schedules", "11-ex2-simulate", "11-ex3-peaks"
INTERLEAVED = "11-ex4-interleaved"


# ---- 1 · GPipe and 1F1B ----

warmup_is_one_too_long = edit(
    SCHEDULES,
    """Your warm-up has one forward more than there are stages after this one. Since each later pair begins with a
    forward, stage s then keeps N − s + 1 activations: warm up with N − 1 − s forwards, or let each pair begin with its
    backward.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stages - stage)"),
    breaks=tests_of(SCHEDULES),
    fails=["one_f_one_b_keeps_few_alive"],
)

warmup_is_the_same_everywhere = edit(
    SCHEDULES,
    """All your stages warm up with N − 1 forwards. The bubble is right, but the later stages keep as many activations
    alive as stage 0. Stage s has N − 1 − s stages after it, and needs only that many forwards before its first
    pair.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stages - 1)"),
    breaks=tests_of(SCHEDULES),
    fails=["one_f_one_b_keeps_few_alive"],
)

warmup_is_not_capped = edit(
    SCHEDULES,
    """With fewer micro-batches than stages your warm-up asks for micro-batches that do not exist. It has at most M
    forwards.""",
    ("min(micro_batches, stages - 1 - stage)", "stages - 1 - stage"),
    breaks=tests_of(SCHEDULES),
    fails=["one_f_one_b_keeps_few_alive"],
)

warmup_grows_with_the_stage = edit(
    SCHEDULES,
    """You warmed up the last stage most. The first stage needs the longest warm-up: its first backward comes last,
    after the micro-batch has passed all later stages and its gradient has come back. The last stage needs none.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stage)"),
    breaks=tests_of(SCHEDULES),
    fails=["one_f_one_b_keeps_few_alive"],
)

the_last_backwards_are_the_first_again = edit(
    SCHEDULES,
    """The backwards at the end belong to the last micro-batches. Yours begin at micro-batch 0 again, whose backward is
    done already.""",
    ("for m in range(micro_batches - warmup, micro_batches)]", "for m in range(warmup)]"),
    breaks=tests_of(SCHEDULES),
    fails=["one_f_one_b_keeps_few_alive"],
)

the_pipeline_is_not_drained = edit(
    SCHEDULES,
    """The backwards of the last micro-batches are missing. When the forwards are used up, as many backwards are left as
    there were forwards in the warm-up.""",
    ('        entries += [("B", m) for m in range(micro_batches - warmup, micro_batches)]\n', ""),
    breaks=tests_of(SCHEDULES),
    fails=["one_f_one_b_keeps_few_alive"],
)

backwards_come_before_their_forwards = edit(
    SCHEDULES,
    """Your pairs begin with their backward. After a warm-up of N − 1 − s forwards that is too early: the last stage
    would run the backward of a micro-batch that it has not seen. Begin each pair with its forward.""",
    ('[("F", m), ("B", m - warmup)]', '[("B", m - warmup), ("F", m)]'),
    breaks=tests_of(SCHEDULES),
    fails=["one_f_one_b_keeps_few_alive"],
)

gpipe_waits_for_each_gradient = edit(
    SCHEDULES,
    """Each of your micro-batches goes all the way forward and back before the next one starts. Then only one stage
    works at a time, which is no pipeline: in GPipe all forwards come first.""",
    ('kind in "FB" for m in range(micro_batches)', 'm in range(micro_batches) for kind in "FB"'),
    breaks=tests_of(SCHEDULES),
)

counts_below_one_pass = edit(
    SCHEDULES,
    """You returned a schedule for no stages or no micro-batches. Raise a ValueError that names the argument.""",
    (
        "    require_at_least_one(stages=stages, micro_batches=micro_batches)\n    schedule = []\n",
        "    schedule = []\n",
    ),
    breaks=tests_of(SCHEDULES),
    fails=["schedules_refuse_counts_below_one"],
)

only_no_micro_batches_are_refused = edit(
    SCHEDULES,
    """You refused 0 micro-batches, but for a negative number you returned a schedule without entries. Every count below
    1 is a ValueError.""",
    (
        "    require_at_least_one(stages=stages, micro_batches=micro_batches)\n    schedule = []\n",
        "    require_at_least_one(stages=stages, micro_batches=abs(micro_batches))\n    schedule = []\n",
    ),
    breaks=tests_of(SCHEDULES),
    fails=["schedules_refuse_counts_below_one"],
)

# ---- 2 · simulate and bubble_fraction ----

bubble_is_relative_to_the_work = edit(
    SIMULATE,
    """You divided the idle time by the busy time. Some papers do, and get (N−1)/M; in this exercise the bubble is the
    idle share of the whole time, stages · makespan.""",
    (
        "1 - busy / (len(schedule) * max(row[-1][1] for row in rows))",
        "len(schedule) * max(row[-1][1] for row in rows) / busy - 1",
    ),
    breaks=tests_of(SIMULATE),
    fails=["bubble_is_the_idle_share"],
)

forwards_do_not_come_round = edit(
    SIMULATE,
    """You let every forward on stage 0 start without needing anything. Only chunk 0 does: chunk c needs chunk c − 1 of
    the last stage. Follow the virtual stages: v = c·N + s needs v − 1.""",
    ('[("F", m, v - 1)] if v else []', '[("F", m, v - 1)] if stage else []'),
    breaks=tests_of(SIMULATE),
)

backwards_do_not_come_round = edit(
    SIMULATE,
    """You let every backward on the last stage start from the loss. Only the last chunk's does: the others need the
    gradient that the next chunk, on stage 0, sends back.""",
    ("if v < stages * chunks - 1 else []", "if stage < stages - 1 else []"),
    breaks=tests_of(SIMULATE),
)

backwards_do_not_need_the_next_stage = edit(
    SIMULATE,
    """Your backwards start as soon as their own forward is over. A backward also needs the gradient of its output,
    which the next stage's backward computes.""",
    ('[("F", m, v), *after]', '[("F", m, v)]'),
    breaks=tests_of(SIMULATE),
)

backwards_do_not_need_their_forward = edit(
    SIMULATE,
    """In your simulation a backward on the last stage needs nothing, so one that stands before its forward goes
    unnoticed. It needs its own forward.""",
    ('[("F", m, v), *after]', "after"),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

one_stage_gives_all_times = edit(
    SIMULATE,
    """You used the first stage's times for all stages. When a list is given, each stage has times of its own.""",
    ("over[kind, m, v] = start + seconds[kind][stage]", "over[kind, m, v] = start + seconds[kind][0]"),
    breaks=tests_of(SIMULATE),
)

a_stage_does_two_things_at_once = edit(
    SIMULATE,
    """Your entries start as soon as the entries that they need are over, even while their stage is busy. A stage runs
    its list one entry at a time.""",
    ("max([free, *(over[need] for need in needs)])", "max([0.0, *(over[need] for need in needs)])"),
    breaks=tests_of(SIMULATE),
)

needs_are_waited_for_without_time = edit(
    SIMULATE,
    """You waited until the entries that an entry needs had been simulated, but then started it as soon as its stage was
    free. It cannot start before they are over, either: take the later of the two times.""",
    ("max([free, *(over[need] for need in needs)])", "free"),
    breaks=tests_of(SIMULATE),
)

filling_and_draining_are_left_out = edit(
    SIMULATE,
    """You measured each stage from its first entry to its last. The time in which it waits for the pipeline to fill and
    to drain is most of the bubble: every stage counts from 0 to the makespan.""",
    ("(len(schedule) * max(row[-1][1] for row in rows))", "sum(row[-1][1] - row[0][0] for row in rows)"),
    breaks=tests_of(SIMULATE),
    fails=["bubble_is_the_idle_share"],
)

the_makespan_is_the_last_stages = edit(
    SIMULATE,
    """You took the end of the last stage for the end of the schedule. After it, the last gradient still travels back
    through the other stages: the makespan is the latest end on any stage.""",
    ("max(row[-1][1] for row in rows)", "rows[-1][-1][1]"),
    breaks=tests_of(SIMULATE),
    fails=["bubble_is_the_idle_share"],
)

the_makespan_is_the_first_stages = edit(
    SIMULATE,
    """You took the end of stage 0 for the end of the schedule. Without W, stage 0 is the last one to finish, but
    another stage may still have a W to run: the makespan is the latest end on any stage.""",
    ("max(row[-1][1] for row in rows)", "rows[0][-1][1]"),
    breaks=tests_of(SIMULATE),
    fails=["bubble_is_the_idle_share"],
)

the_makespan_begins_with_the_stage = edit(
    SIMULATE,
    """You measured the makespan on the stage that takes longest from its first entry to its last. The time begins at 0
    for all stages: the makespan is the latest end.""",
    ("max(row[-1][1] for row in rows)", "max(row[-1][1] - row[0][0] for row in rows)"),
    breaks=tests_of(SIMULATE),
    fails=["bubble_is_the_idle_share"],
)

times_are_rounded = edit(
    SIMULATE,
    """You rounded the times. The error adds up from entry to entry, and short entries may take no time at all: return
    the times as they are, and round only what you print.""",
    ("over[kind, m, v] = start + seconds[kind][stage]", "over[kind, m, v] = round(start + seconds[kind][stage], 4)"),
    breaks=tests_of(SIMULATE),
)

the_first_entry_speaks_for_all = edit(
    SIMULATE,
    """You looked at the first entry to see whether entries have two parts or three. An entry of two parts is one of
    chunk 0 wherever it stands: look at each entry.""",
    ("rest[0] if rest else 0)", "rest[0] if len(schedule[0][0]) == 3 else 0)"),
    breaks=tests_of(SIMULATE),
)

weight_gradients_need_nothing = edit(
    SIMULATE,
    """Your W can come before its own B. The gradient of the stage's output arrives with B, and W computes with it:
    ("W", m) needs ("B", m) on the same stage.""",
    ('"W": [("B", m, v)]', '"W": []'),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

gradients_wait_for_the_weights = edit(
    SIMULATE,
    """Your B waits until the next stage has done its W as well. The gradient that it needs is there when the next
    stage's B is over: not having to wait for W is what the two parts are for.""",
    ('after = [("B", m, v + 1)]', 'after = [("W" if "W" in kinds else "B", m, v + 1)]'),
    breaks=tests_of(SIMULATE),
)

weight_gradients_take_a_backwards_time = edit(
    SIMULATE,
    """Your W takes backward_time. It has a time of its own, weight_time, and backward_time is then that of B alone.""",
    ("start + seconds[kind][stage]", 'start + seconds["B" if kind == "W" else kind][stage]'),
    breaks=tests_of(SIMULATE),
)

lacking_weight_gradients_pass = edit(
    SIMULATE,
    """You did not check the entries W. If one micro-batch has a W on one stage, each has one on each stage: otherwise
    some weights lack a part of their gradient.""",
    (
        "any(sorted(entries) != wanted for entries in full)",
        'any(sorted(e for e in entries if e[0] != "W") != [e for e in wanted if e[0] != "W"] for entries in full)',
    ),
    ("len(over) < stages * len(wanted)", "len(over) < sum(map(len, full))"),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

repeated_entries_pass = edit(
    SIMULATE,
    """You accepted an entry that comes twice: you compared sets, which ignore repetitions. Compare sorted lists, or the
    lengths as well.""",
    ("any(sorted(entries) != wanted for entries in full)", "any(set(entries) != set(wanted) for entries in full)"),
    ("if len(over) < stages * len(wanted):", "if len(over) < len({(s, *e) for s in range(stages) for e in full[s]}):"),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

entries_are_counted = edit(
    SIMULATE,
    """You compared how many entries a stage has, not which ones. If one comes twice in place of another, the number is
    right and the schedule is wrong.""",
    ("any(sorted(entries) != wanted for entries in full)", "any(len(entries) != len(wanted) for entries in full)"),
    ("if len(over) < stages * len(wanted):", "if len(over) < len({(s, *e) for s in range(stages) for e in full[s]}):"),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

lacking_entries_pass = edit(
    SIMULATE,
    """You simulated a schedule with missing entries as far as it goes. A stage without one of its backwards has no
    gradient for that micro-batch: every stage must have every entry.""",
    ("sorted(entries) != wanted", "len(set(entries)) != len(entries)"),
    ("len(over) < stages * len(wanted)", "len(over) < sum(map(len, full))"),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

a_deadlock_is_not_reported = edit(
    SIMULATE,
    """When no stage could go on, you returned what had been simulated so far. Raise a ValueError for a schedule that
    waits on itself.""",
    ('    if len(over) < stages * len(wanted):\n        raise ValueError("schedule waits on itself")\n', ""),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

times_are_not_checked = edit(
    SIMULATE,
    """You accepted times that are not positive, or a list of the wrong length. The helper seconds_per_stage raises the
    error.""",
    (
        "kind: seconds_per_stage(name, times, stages)",
        "kind: times if isinstance(times, (list, tuple)) else [times] * stages",
    ),
    breaks=tests_of(SIMULATE),
    fails=["what_cannot_run_is_refused"],
)

# ---- 3 · peak_activations ----


@mutant(PEAKS, breaks=tests_of(PEAKS))
def peaks_before_the_first_backward():
    """You counted the forwards before the first backward. For GPipe and 1F1B that is nearly the peak, but another
    schedule can have more alive later: follow the count through the whole list."""

    def peak_activations(schedule):
        return [[*(entry[0] for entry in entries), "B"].index("B") for entries in schedule]


peaks_end_with_the_first_part = edit(
    PEAKS,
    """You let go of an activation at its B even where a W follows. W multiplies with what the forward saved: the
    activation is held until then.""",
    ("(kind == end)", '(kind == "B")'),
    breaks=tests_of(PEAKS),
)

both_parts_let_go = edit(
    PEAKS,
    """You released one activation at B and another one at W. A micro-batch has only one on each stage, which is
    released at the later of the two.""",
    ("(kind == end)", '(kind != "F")'),
    breaks=tests_of(PEAKS),
)


@mutant(PEAKS, breaks=tests_of(PEAKS))
def peaks_in_stages():
    """You divided by the number of chunks. The unit of this function is entries, even if an entry is only a part of a
    stage."""

    def peak_activations(schedule):
        peaks = []
        for entries in schedule:
            alive = peak = 0
            chunks = 1 + max((entry[2] if len(entry) > 2 else 0) for entry in entries)
            for kind, *_ in entries:
                alive += 1 if kind == "F" else -1
                peak = max(peak, alive)
            peaks.append(-(-peak // chunks))
        return peaks


@mutant(PEAKS, breaks=tests_of(PEAKS))
def peaks_after_each_backward():
    """You looked at the count only after backwards, which have just released an activation. The peak comes right after
    a forward."""

    def peak_activations(schedule):
        peaks = []
        for entries in schedule:
            alive = peak = 0
            for kind, *_ in entries:
                if kind == "F":
                    alive += 1
                else:
                    alive -= 1
                    peak = max(peak, alive)
            peaks.append(peak)
        return peaks


@mutant(PEAKS, breaks=tests_of(PEAKS))
def peaks_count_all_forwards():
    """You counted all forwards. That is the peak only if no backward comes before the last forward: each backward
    releases one."""

    def peak_activations(schedule):
        return [sum(entry[0] == "F" for entry in entries) for entries in schedule]


@mutant(PEAKS, breaks=tests_of(PEAKS))
def peaks_of_all_stages_in_one():
    """You returned one number, the largest of all stages. The stages differ: return one for each."""

    def peak_activations(schedule):
        peak = 0
        for entries in schedule:
            alive = 0
            for kind, *_ in entries:
                alive += 1 if kind == "F" else -1
                peak = max(peak, alive)
        return peak


# ---- 4 · interleaved ----

interleaved_warms_up_one_more = edit(
    INTERLEAVED,
    """Your warm-up has one forward too many, and every stage keeps one activation too many alive. Warm up with 2(N−1−s)
    + (C−1)N forwards, and then begin each pair with its forward.""",
    ("2 * (stages - 1 - stage) + (chunks - 1) * stages)", "2 * (stages - 1 - stage) + (chunks - 1) * stages + 1)"),
    breaks=tests_of(INTERLEAVED),
)

one_group_is_all_warmup = edit(
    INTERLEAVED,
    """With as many micro-batches as stages you run all forwards first, as Megatron did for years. The bubble is the
    same, but every stage keeps all entries alive, even where the usual warm-up needs fewer.""",
    ("        warmup = min(total, 2 *", "        warmup = total if micro_batches == stages else min(total, 2 *"),
    breaks=tests_of(INTERLEAVED),
)

interleaved_runs_all_forwards_first = edit(
    INTERLEAVED,
    """You run all forwards first. The bubble is as small, but every stage keeps M·C activations alive: alternating
    forwards and backwards avoids that.""",
    ("min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)", "total"),
    breaks=tests_of(INTERLEAVED),
)

interleaved_warms_up_as_plain_1f1b = edit(
    INTERLEAVED,
    """You warm up as plain 1F1B does. Your last stage then wants a backward right after its first forward, which was
    only chunk 0: another (C − 1)N forwards must first bring the first micro-batches to the last chunk.""",
    ("min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)", "min(total, stages - 1 - stage)"),
    breaks=tests_of(INTERLEAVED),
)

the_warmup_does_not_see_who_is_behind = edit(
    INTERLEAVED,
    """On every stage your warm-up ends when the first micro-batches reach the last chunk. Their activations must still
    pass the later stages, and the gradients come back: the more stages there are after it, the more forwards a stage
    needs.""",
    ("min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)", "min(total, (chunks - 1) * stages)"),
    breaks=tests_of(INTERLEAVED),
)

chunk_after_chunk = edit(
    INTERLEAVED,
    """You send all micro-batches through chunk 0 before the first one enters chunk 1. Go in groups of N micro-batches:
    when the N-th has entered the pipeline, the first has come round and is ready for chunk 1.""",
    ("k, stages * chunks", "k, micro_batches * chunks"),
    ("(place, stages)", "(place, micro_batches)"),
    breaks=tests_of(INTERLEAVED),
)

groups_of_chunks = edit(
    INTERLEAVED,
    """You change the chunk after C entries instead of N. In a group, each chunk handles N micro-batches, as many as
    there are stages.""",
    ("chunk, m = divmod(place, stages)", "m, chunk = divmod(place, chunks)"),
    breaks=tests_of(INTERLEAVED),
)

backward_chunks_from_first_to_last = edit(
    INTERLEAVED,
    """Your backwards go through the chunks in the order of the forwards. The gradient starts at the last chunk: go from
    the last to the first.""",
    ('chunk if kind == "F" else chunks - 1 - chunk', "chunk"),
    breaks=tests_of(INTERLEAVED),
)

one_chunk_has_two_parts = edit(
    INTERLEAVED,
    """For chunks=1 your entries have two parts. The code that runs the schedule unpacks three: keep the chunk, 0.""",
    ("return schedule", "return schedule if chunks > 1 else [[entry[:2] for entry in mine] for mine in schedule]"),
    breaks=tests_of(INTERLEAVED),
)

one_chunk_takes_any_number = edit(
    INTERLEAVED,
    """With one chunk you accepted any number of micro-batches. The order consists of groups of N micro-batches, one for
    each stage, even with one chunk: raise the ValueError.""",
    ("    if micro_batches % stages:", "    if chunks > 1 and micro_batches % stages:"),
    breaks=tests_of(INTERLEAVED),
    fails=["interleaved_refuses_what_does_not_fit"],
)

any_number_of_micro_batches = edit(
    INTERLEAVED,
    """You accepted a number of micro-batches that is not a multiple of the stages, so the last group is incomplete.
    Raise a ValueError that names micro_batches.""",
    ("    if micro_batches % stages:\n", "    if micro_batches < 0:\n"),
    breaks=tests_of(INTERLEAVED),
    fails=["interleaved_refuses_what_does_not_fit"],
)

only_zero_is_refused = edit(
    INTERLEAVED,
    """You refused counts of 0, but not negative ones. Every count below 1 is a ValueError.""",
    (
        "require_at_least_one(stages=stages, micro_batches=micro_batches, chunks=chunks)",
        "require_at_least_one(stages=abs(stages), micro_batches=abs(micro_batches), chunks=abs(chunks))",
    ),
    breaks=tests_of(INTERLEAVED),
    fails=["interleaved_refuses_what_does_not_fit"],
)
