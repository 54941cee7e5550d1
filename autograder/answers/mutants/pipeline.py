"""Wrong answers to lesson 11: the subtle ones first in each exercise."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

SCHEDULES, SIMULATE, PEAKS = "11-ex1-schedules", "11-ex2-simulate", "11-ex3-peaks"
INTERLEAVED, PARTITION, STEP = "11-ex4-interleaved", "11-ex5-partition", "11-ex6-pipeline-step"

# ---- 1 · GPipe and 1F1B ----

warmup_is_one_too_long = edit(
    SCHEDULES,
    """Your warm-up has one forward more than there are stages behind. With a forward at the head of each later pair
    the stage then keeps N − s + 1 activations: warm up with N − 1 − s, or let each pair begin with its backward.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stages - stage)"),
    breaks=tests_of(SCHEDULES),
)

warmup_is_the_same_everywhere = edit(
    SCHEDULES,
    """All stages warm up with N − 1 forwards. The bubble is right, but the later stages keep as many activations
    alive as stage 0. Stage s has N − 1 − s stages behind it, and needs no more forwards than that before its first
    pair.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stages - 1)"),
    breaks=tests_of(SCHEDULES),
)

warmup_is_not_capped = edit(
    SCHEDULES,
    """With fewer micro-batches than stages the warm-up asks for micro-batches that do not exist. It has at most M
    forwards.""",
    ("min(micro_batches, stages - 1 - stage)", "stages - 1 - stage"),
    breaks=tests_of(SCHEDULES),
)

warmup_grows_with_the_stage = edit(
    SCHEDULES,
    """You warmed up the last stage most. It is the first one that has to: its first backward comes last, since the
    micro-batch must pass all stages behind it and come back. The last stage has no warm-up at all.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stage)"),
    breaks=tests_of(SCHEDULES),
)

the_last_backwards_are_the_first_again = edit(
    SCHEDULES,
    """The backwards at the end belong to the last micro-batches. Yours begin at micro-batch 0 again, whose backward
    is done already.""",
    ("for m in range(micro_batches - warmup, micro_batches)]", "for m in range(warmup)]"),
    breaks=tests_of(SCHEDULES),
)

the_pipeline_is_not_drained = edit(
    SCHEDULES,
    """The backwards of the warm-up's micro-batches are lacking: when the forwards are used up, as many backwards
    are left as there were forwards in the warm-up.""",
    ('        entries += [("B", m) for m in range(micro_batches - warmup, micro_batches)]\n', ""),
    breaks=tests_of(SCHEDULES),
)

backwards_come_before_their_forwards = edit(
    SCHEDULES,
    """After a warm-up of N − 1 − s each pair begins with its forward. Yours begins with its backward: on the last
    stage that is the backward of a micro-batch which it has not seen.""",
    ('[("F", m), ("B", m - warmup)]', '[("B", m - warmup), ("F", m)]'),
    breaks=tests_of(SCHEDULES),
)

gpipe_waits_for_each_gradient = edit(
    SCHEDULES,
    """Each micro-batch goes all the way forth and back before the next one starts. Then one stage works at a time
    and there is no pipeline: in GPipe all forwards come first.""",
    ('kind in "FB" for m in range(micro_batches)', 'm in range(micro_batches) for kind in "FB"'),
    breaks=tests_of(SCHEDULES),
)

counts_below_one_pass = edit(
    SCHEDULES,
    """No stages, or no micro-batches, gave a schedule all the same. Raise a ValueError that names the argument.""",
    (
        "    require_at_least_one(stages=stages, micro_batches=micro_batches)\n    schedule = []\n",
        "    schedule = []\n",
    ),
    breaks=tests_of(SCHEDULES),
)

# ---- 2 · simulate and bubble_fraction ----

bubble_is_relative_to_the_work = edit(
    SIMULATE,
    """You divided the idle time by the busy time. Some papers do, and get (N−1)/M; here the bubble is the share of
    the whole time, stages · makespan.""",
    (
        "    return 1 - sum(end - start for start, end in spans) / (len(schedule) * max(end for _, end in spans))\n",
        "    return len(schedule) * max(end for _, end in spans) / sum(end - start for start, end in spans) - 1\n",
    ),
    breaks=tests_of(SIMULATE),
)

forwards_do_not_come_round = edit(
    SIMULATE,
    """On stage 0 only chunk 0 needs nothing. Chunk c comes after chunk c − 1 of the last stage: follow the virtual
    stages, v = c·N + s, and v − 1.""",
    ('[("F", m, v - 1)] if v else []', '[("F", m, v - 1)] if stage else []'),
    breaks=tests_of(SIMULATE),
)

backwards_do_not_come_round = edit(
    SIMULATE,
    """On the last stage only the last chunk's backward starts from the loss. The others need the gradient that the
    next chunk, on stage 0, sends back.""",
    ("[: 2 if v < stages * chunks - 1 else 1]", "[: 2 if stage < stages - 1 else 1]"),
    breaks=tests_of(SIMULATE),
)

backwards_do_not_need_the_next_stage = edit(
    SIMULATE,
    """A backward started as soon as its own forward was over. It also needs the gradient of its output, which is
    what the next stage's backward computes.""",
    ("[: 2 if v < stages * chunks - 1 else 1]", "[:1]"),
    breaks=tests_of(SIMULATE),
)

backwards_do_not_need_their_forward = edit(
    SIMULATE,
    """A backward on the last stage needs nothing in your simulation, so one that stands before its forward goes
    unnoticed. It needs its own forward.""",
    (
        '[("F", m, v), ("B", m, v + 1)][: 2 if v < stages * chunks - 1 else 1]',
        '[("B", m, v + 1)] if v < stages * chunks - 1 else []',
    ),
    breaks=tests_of(SIMULATE),
)

one_stage_gives_all_times = edit(
    SIMULATE,
    """Each stage has times of its own when a list is given; you took the first stage's for all.""",
    ("over[kind, m, v] = start + seconds[kind][stage]", "over[kind, m, v] = start + seconds[kind][0]"),
    breaks=tests_of(SIMULATE),
)

a_stage_does_two_things_at_once = edit(
    SIMULATE,
    """Entries start when what they need is over, even while their stage is busy with another one. A stage runs its
    list one by one.""",
    ("max([free, *(over[need] for need in needs)])", "max([0.0, *(over[need] for need in needs)])"),
    breaks=tests_of(SIMULATE),
)

needs_are_waited_for_without_time = edit(
    SIMULATE,
    """You waited until what an entry needs was simulated, and then started it when its stage was free. It cannot
    start before that is over: take the later of the two times.""",
    ("max([free, *(over[need] for need in needs)])", "free"),
    breaks=tests_of(SIMULATE),
)

filling_and_draining_are_left_out = edit(
    SIMULATE,
    """You measured each stage from its first entry to its last. The time in which it waits for the pipeline to fill
    and to drain is most of the bubble: every stage counts from 0 to the makespan.""",
    (
        "    spans = [span for mine in simulate(schedule, forward_time, backward_time) for span in mine]\n",
        "    rows = simulate(schedule, forward_time, backward_time)\n"
        "    spans = [span for mine in rows for span in mine]\n",
    ),
    ("(len(schedule) * max(end for _, end in spans))", "sum(mine[-1][1] - mine[0][0] for mine in rows)"),
    breaks=tests_of(SIMULATE),
)

the_makespan_is_the_last_stages = edit(
    SIMULATE,
    """You took the end of the last stage for the end of all. Its last gradient still travels back through the other
    stages: the makespan is the latest end on any stage.""",
    ("max(end for _, end in spans))", "spans[-1][1])"),
    breaks=tests_of(SIMULATE),
)

repeated_entries_pass = edit(
    SIMULATE,
    """An entry that comes twice was not noticed: as sets the two are equal. Compare the lists, or the lengths as
    well.""",
    ("any(sorted(entries) != wanted for entries in full)", "any(set(entries) != set(wanted) for entries in full)"),
    ("if len(over) < stages * len(wanted):", "if len(over) < len({(s, *e) for s in range(stages) for e in full[s]}):"),
    breaks=tests_of(SIMULATE),
)

entries_are_counted = edit(
    SIMULATE,
    """You compared how many entries a stage has, not which. One that comes twice in the place of another makes the
    number right and the schedule wrong.""",
    ("any(sorted(entries) != wanted for entries in full)", "any(len(entries) != len(wanted) for entries in full)"),
    ("if len(over) < stages * len(wanted):", "if len(over) < len({(s, *e) for s in range(stages) for e in full[s]}):"),
    breaks=tests_of(SIMULATE),
)

lacking_entries_pass = edit(
    SIMULATE,
    """A schedule that lacks entries was simulated as far as it goes. A stage without one of its backwards has no
    gradient for that micro-batch: every stage must have every entry.""",
    ("sorted(entries) != wanted", "len(set(entries)) != len(entries)"),
    ("stages * len(wanted)", "sum(map(len, full))"),
    breaks=tests_of(SIMULATE),
)

a_deadlock_is_not_reported = edit(
    SIMULATE,
    """When no stage could go on, you returned what had been simulated until then. A schedule that waits on itself
    is a ValueError.""",
    ('    if len(over) < stages * len(wanted):\n        raise ValueError("schedule waits on itself")\n', ""),
    breaks=tests_of(SIMULATE),
)

times_are_not_checked = edit(
    SIMULATE,
    """Times of zero or below, or a list of the wrong length, were taken as they are. The helper seconds_per_stage
    raises the error.""",
    (
        '    seconds["F"] = seconds_per_stage("forward_time", forward_time, stages)\n',
        '    seconds["F"] = forward_time if isinstance(forward_time, (list, tuple)) else [forward_time] * stages\n',
    ),
    breaks=tests_of(SIMULATE),
)

# ---- 3 · peak_activations ----


@mutant(PEAKS, breaks=tests_of(PEAKS))
def peaks_before_the_first_backward():
    """You counted the forwards before the first backward. For GPipe and 1F1B that is nearly the peak, but the most
    can be alive later: follow the count through the whole list."""

    def peak_activations(schedule):
        return [[*(entry[0] for entry in entries), "B"].index("B") for entries in schedule]


@mutant(PEAKS, breaks=tests_of(PEAKS))
def peaks_in_stages():
    """You divided by the number of chunks. The unit here is entries; that one of them is a part of a stage is for
    the reader to remember."""

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
    """You looked at the count only after backwards, when one activation has just been let go. The peak comes right
    after a forward."""

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
    """You counted the forwards, which is the peak only if none is let go before the last one is done. A backward
    takes one away."""

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
    """Your warm-up has one forward too many, and so has every stage's memory. 2(N−1−s) + (C−1)N forwards, and then
    each pair begins with its forward.""",
    ("2 * (stages - 1 - stage) + (chunks - 1) * stages)", "2 * (stages - 1 - stage) + (chunks - 1) * stages + 1)"),
    breaks=tests_of(INTERLEAVED),
)

one_group_is_all_warmup = edit(
    INTERLEAVED,
    """With as many micro-batches as stages you run all forwards first, as Megatron did for years. It has the same
    bubble, and keeps all entries alive on every stage, also where the usual warm-up needs fewer.""",
    ("        warmup = min(total, 2 *", "        warmup = total if micro_batches == stages else min(total, 2 *"),
    breaks=tests_of(INTERLEAVED),
)

interleaved_runs_all_forwards_first = edit(
    INTERLEAVED,
    """All forwards come first. The bubble is as small, but every stage keeps M·C activations alive, and that is
    what the alternation of forwards and backwards avoids.""",
    ("min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)", "total"),
    breaks=tests_of(INTERLEAVED),
)

interleaved_warms_up_as_plain_1f1b = edit(
    INTERLEAVED,
    """You warm up as plain 1F1B does. The last stage then wants a backward right after its first forward, but that
    was only chunk 0: (C − 1)N forwards come first, which bring the first micro-batches to the last chunk.""",
    ("min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)", "min(total, stages - 1 - stage)"),
    breaks=tests_of(INTERLEAVED),
)

the_warmup_does_not_see_who_is_behind = edit(
    INTERLEAVED,
    """Your warm-up brings the first micro-batches to the last chunk and ends there, on every stage. Their
    activations must still pass the stages behind, and the gradients come back: until then each stage needs more
    forwards, the more stages are behind it.""",
    ("min(total, 2 * (stages - 1 - stage) + (chunks - 1) * stages)", "min(total, (chunks - 1) * stages)"),
    breaks=tests_of(INTERLEAVED),
)

chunk_after_chunk = edit(
    INTERLEAVED,
    """All micro-batches go through chunk 0 before the first one enters chunk 1. Go in groups of N micro-batches:
    when the N-th has entered the pipeline, the first has come round and is ready for chunk 1.""",
    ("k, stages * chunks", "k, micro_batches * chunks"),
    ("(place, stages)", "(place, micro_batches)"),
    breaks=tests_of(INTERLEAVED),
)

groups_of_chunks = edit(
    INTERLEAVED,
    """Your chunk changes after C entries instead of N. In a group each chunk has N micro-batches, as many as there
    are stages.""",
    ("chunk, m = divmod(place, stages)", "m, chunk = divmod(place, chunks)"),
    breaks=tests_of(INTERLEAVED),
)

backward_chunks_from_first_to_last = edit(
    INTERLEAVED,
    """The backwards go through the chunks in the order of the forwards. The gradient starts at the last chunk: from
    last to first.""",
    ('chunk if kind == "F" else chunks - 1 - chunk', "chunk"),
    breaks=tests_of(INTERLEAVED),
)

one_chunk_has_two_parts = edit(
    INTERLEAVED,
    """For chunks=1 your entries have two parts. Whoever runs the schedule unpacks three; keep the chunk, 0.""",
    ("return schedule", "return schedule if chunks > 1 else [[entry[:2] for entry in mine] for mine in schedule]"),
    breaks=tests_of(INTERLEAVED),
)

one_chunk_takes_any_number = edit(
    INTERLEAVED,
    """With one chunk you let any number of micro-batches through. The order is made of groups of as many micro-
    batches as there are stages, with one chunk too.""",
    ("    if micro_batches % stages:", "    if chunks > 1 and micro_batches % stages:"),
    breaks=tests_of(INTERLEAVED),
)

any_number_of_micro_batches = edit(
    INTERLEAVED,
    """A number of micro-batches that the stages do not divide gave a schedule with a last group that is not full.
    Raise a ValueError that names micro_batches.""",
    ("    if micro_batches % stages:\n", "    if micro_batches < 0:\n"),
    breaks=tests_of(INTERLEAVED),
)

# ---- 5 · partition ----


@mutant(PARTITION, breaks=tests_of(PARTITION))
def partition_minimizes_the_squares():
    """You made the sum of the squares small, which balances all parts a little. The slowest stage sets the pace:
    make the largest sum small, whatever the others are."""

    def partition(costs, stages):
        layers = len(costs)
        if not 1 <= stages <= layers:
            raise ValueError(f"stages must be in 1…{layers}, got {stages}")
        if any(cost < 0 for cost in costs):
            raise ValueError("costs must not be negative")
        best = {j: (sum(costs[:j]) ** 2, [(0, j)]) for j in range(1, layers + 1)}
        for k in range(2, stages + 1):
            best = {
                j: min((best[i][0] + sum(costs[i:j]) ** 2, [*best[i][1], (i, j)]) for i in range(k - 1, j))
                for j in range(k, layers + 1)
            }
        return best[layers][1]


@mutant(PARTITION, breaks=tests_of(PARTITION))
def partition_fills_up_to_the_mean():
    """You closed a part as soon as it reached the mean. Early parts then take too much or too little, and the last
    one gets the rest: the choice of each cut depends on the ones that follow."""

    def partition(costs, stages):
        layers = len(costs)
        if not 1 <= stages <= layers:
            raise ValueError(f"stages must be in 1…{layers}, got {stages}")
        if any(cost < 0 for cost in costs):
            raise ValueError("costs must not be negative")
        mean, cuts, start, load = sum(costs) / stages, [], 0, 0
        for j, cost in enumerate(costs):
            load += cost
            left = stages - len(cuts) - 1
            if left and (load >= mean or layers - j - 1 == left):
                cuts.append((start, j + 1))
                start, load = j + 1, 0
        return [*cuts, (start, layers)]


@mutant(PARTITION, breaks=tests_of(PARTITION))
def partition_leaves_parts_empty():
    """Filling each part up to the least possible sum can use up the layers before the parts: the last ones are
    empty. A stage without a layer is not allowed; leave one for each stage that follows."""

    def partition(costs, stages):
        layers = len(costs)
        if not 1 <= stages <= layers:
            raise ValueError(f"stages must be in 1…{layers}, got {stages}")
        if any(cost < 0 for cost in costs):
            raise ValueError("costs must not be negative")
        for most in sorted({sum(costs[i:j]) for i in range(layers) for j in range(i + 1, layers + 1)}):
            cuts, start = [], 0
            for _ in range(stages):
                end = start
                while end < layers and sum(costs[start : end + 1]) <= most:
                    end += 1
                cuts.append((start, end))
                start = end
            if start == layers:
                return cuts


@mutant(PARTITION, breaks=tests_of(PARTITION))
def partition_counts_layers():
    """You gave every stage equally many layers. What counts is what they cost."""

    def partition(costs, stages):
        layers = len(costs)
        if not 1 <= stages <= layers:
            raise ValueError(f"stages must be in 1…{layers}, got {stages}")
        if any(cost < 0 for cost in costs):
            raise ValueError("costs must not be negative")
        return [(layers * s // stages, layers * (s + 1) // stages) for s in range(stages)]


partition_gives_lengths = edit(
    PARTITION,
    """You returned where a part starts and how long it is. The second number is where it ends.""",
    ("    return best[layers][1]\n", "    return [(start, end - start) for start, end in best[layers][1]]\n"),
    breaks=tests_of(PARTITION),
)

negative_costs_pass = edit(
    PARTITION,
    """A negative cost was taken as it is. No layer takes less than no time: raise a ValueError that names costs.""",
    ("    if any(cost < 0 for cost in costs):\n", "    if not costs:\n"),
    breaks=tests_of(PARTITION),
)

too_many_stages_pass = edit(
    PARTITION,
    """More stages than layers, or none, must be a ValueError that names stages: some stage would have no layer.""",
    ("    if not 1 <= stages <= layers:\n", "    if layers < 0:\n"),
    ("    return best[layers][1]\n", "    return best[layers][1] if best else []\n"),
    breaks=tests_of(PARTITION),
)

# ---- 6 · pipeline_step ----

all_micro_batches_weigh_the_same = edit(
    STEP,
    """You took the mean of the micro-batches' means. They differ in size: a micro-batch's mean counts with its
    share of the examples, len(x) / (all examples).""",
    ("(len(x) / examples)", "(1 / len(micro_batches))"),
    breaks=tests_of(STEP),
)

the_returned_loss_is_a_mean_of_means = edit(
    STEP,
    """The gradients are weighted by size, the loss that you return is not. It should be that of the whole batch.""",
    (
        "output = loss_fn(output, y) * (len(x) / examples)\n                loss += output.item()",
        "output = loss_fn(output, y)\n"
        "                loss += output.item() / len(micro_batches)\n"
        "                output = output * (len(x) / examples)",
    ),
    breaks=tests_of(STEP),
)

losses_are_added_up = edit(
    STEP,
    """The micro-batches' means were added up without weights: loss and gradients are too large by about the number
    of micro-batches.""",
    (" * (len(x) / examples)", ""),
    breaks=tests_of(STEP),
)

one_buffer_for_all_activations = edit(
    STEP,
    """You received every activation into the same memory. Several micro-batches are under way at once, and the
    layers still need the earlier inputs for their weights' gradients: the next message overwrites them.""",
    (
        "    under_way, pending, loss = {}, [], 0.0\n",
        "    under_way, pending, loss = {}, [], 0.0\n"
        "    buffer = torch.empty(max(len(x) for x, _ in micro_batches), *hidden_shape)\n",
    ),
    ("x = torch.empty(len(x), *hidden_shape)", "x = buffer[: len(x)].detach()"),
    breaks=tests_of(STEP),
)

messages_have_no_tags = edit(
    STEP,
    """Messages without a tag are matched in the order in which they were sent. Where two stages go through the
    micro-batches in different orders, one gets another's activation: label each message with tag=m.""",
    ("dist.recv(x, src=rank - 1, tag=m)", "dist.recv(x, src=rank - 1)"),
    (
        "dist.isend(output.detach().contiguous(), dst=rank + 1, tag=m)",
        "dist.isend(output.detach().contiguous(), dst=rank + 1)",
    ),
    ("dist.recv(gradient, src=rank + 1, tag=m)", "dist.recv(gradient, src=rank + 1)"),
    ("dist.isend(x.grad.contiguous(), dst=rank - 1, tag=m)", "dist.isend(x.grad.contiguous(), dst=rank - 1)"),
    breaks=tests_of(STEP),
)

activations_are_sent_with_gaps = edit(
    STEP,
    """A stage's output need not be contiguous in memory, for instance after a transpose, and such a tensor cannot
    be sent. Call contiguous().""",
    ("output.detach().contiguous()", "output.detach()"),
    breaks=tests_of(STEP),
)

gradient_buffer_is_like_the_output = edit(
    STEP,
    """empty_like copies the strides as well: for an output that is not contiguous the buffer is not either, and
    nothing can be received into it. Make it from the shape.""",
    ("gradient = torch.empty(len(x), *hidden_shape)", "gradient = torch.empty_like(output)"),
    breaks=tests_of(STEP),
)

the_schedule_is_not_followed = edit(
    STEP,
    """You ran all forwards, then all backwards, whatever the schedule says. The gradients are right, but with 1F1B
    that throws away what it was chosen for: the memory.""",
    ("in schedule[rank]:", 'in sorted(schedule[rank], key=lambda entry: entry[0] == "B"):'),
    breaks=tests_of(STEP),
)

sends_when_it_has_to_wait = edit(
    STEP,
    """What a forward or backward has computed is sent only when this stage itself has to wait. Until then the
    neighbor has nothing to do: send as soon as it is there.""",
    (
        "    under_way, pending, loss = {}, [], 0.0\n",
        "    under_way, pending, loss, outbox = {}, [], 0.0, []\n\n"
        "    def flush():\n"
        "        pending.extend(dist.isend(*message) for message in outbox)\n"
        "        outbox.clear()\n\n",
    ),
    (
        "pending.append(dist.isend(output.detach().contiguous(), dst=rank + 1, tag=m))",
        "outbox.append((output.detach().contiguous(), rank + 1, None, m))",
    ),
    (
        "pending.append(dist.isend(x.grad.contiguous(), dst=rank - 1, tag=m))",
        "outbox.append((x.grad.contiguous(), rank - 1, None, m))",
    ),
    ("                dist.recv(x,", "                flush()\n                dist.recv(x,"),
    ("                dist.recv(gradient,", "                flush()\n                dist.recv(gradient,"),
    ("    for work in pending:\n", "    flush()\n    for work in pending:\n"),
    breaks=tests_of(STEP),
)

sends_wait_for_the_neighbor = edit(
    STEP,
    """A blocking send returns only when the neighbor receives. With 1F1B two neighbors then send to each other and
    wait for ever: use isend, and wait at the end.""",
    (
        "pending.append(dist.isend(output.detach().contiguous(), dst=rank + 1, tag=m))",
        "dist.send(output.detach().contiguous(), dst=rank + 1, tag=m)",
    ),
    (
        "pending.append(dist.isend(x.grad.contiguous(), dst=rank - 1, tag=m))",
        "dist.send(x.grad.contiguous(), dst=rank - 1, tag=m)",
    ),
    breaks=tests_of(STEP),
)

sends_are_waited_for_before_the_next_entry = edit(
    STEP,
    """You waited for the pending sends before each entry. A send is over when the neighbor receives, and it may be
    waiting for you to receive: wait when all the work is done.""",
    (
        "        x, y = micro_batches[m]\n",
        "        for work in pending:\n            work.wait()\n        pending = []\n"
        "        x, y = micro_batches[m]\n",
    ),
    breaks=tests_of(STEP),
)

graphs_are_retained = edit(
    STEP,
    """retain_graph=True keeps what the forward saved after the backward is over, and the dictionary keeps the
    graph: at the end all micro-batches are alive. Take a micro-batch out of it, and let backward free its graph.""",
    ("under_way.pop(m)", "under_way[m]"),
    ("output.backward(gradient)", "output.backward(gradient, retain_graph=True)"),
    breaks=tests_of(STEP),
)

forwards_are_run_again = edit(
    STEP,
    """You called stage_module again in the backward. That is activation recomputation: it saves memory for time,
    and is not asked here. One call for each F.""",
    (
        "            output.backward(gradient)\n",
        "            if not last:\n                output = stage_module(x)\n            output.backward(gradient)\n",
    ),
    breaks=tests_of(STEP),
)

gradients_are_dropped_first = edit(
    STEP,
    """You zeroed the gradients at the start of the step. The caller does that, and may have reasons not to:
    gradients add up.""",
    (
        "    under_way, pending, loss = {}, [], 0.0\n",
        "    under_way, pending, loss = {}, [], 0.0\n    stage_module.zero_grad()\n",
    ),
    breaks=tests_of(STEP),
)

inputs_require_a_gradient = edit(
    STEP,
    """On the first stage x is the data: nobody needs its gradient, it is not yours to change, and integers cannot
    have one. Only what was received becomes a leaf that requires a gradient.""",
    ("                x.requires_grad_()\n", ""),
    ("            output = stage_module(x)\n", "            output = stage_module(x.requires_grad_())\n"),
    breaks=tests_of(STEP),
)

inputs_do_not_require_a_gradient = edit(
    STEP,
    """What was received does not require a gradient, so backward leaves none for the left neighbor. Make it a leaf
    that does: requires_grad_().""",
    ("                x.requires_grad_()\n", ""),
    breaks=tests_of(STEP),
)

everybody_returns_a_loss = edit(
    STEP,
    """Ranks that have no loss returned 0. Whoever logs the mean over ranks is misled: return None there.""",
    ("    return loss if last else None\n", "    return loss\n"),
    breaks=tests_of(STEP),
)

nobody_returns_a_loss = edit(
    STEP,
    """The last rank should return the loss of the whole batch. Yours returns nothing.""",
    ("    return loss if last else None\n", "    return None\n"),
    breaks=tests_of(STEP),
)

the_step_ends_with_a_barrier = edit(
    STEP,
    """The barrier at the end makes every stage wait for the slowest. Each is done when its own work and sends are:
    no collective is needed.""",
    ("    return loss if last else None\n", "    dist.barrier()\n    return loss if last else None\n"),
    breaks=tests_of(STEP),
)
