"""Right answers to lesson 11, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("11-ex1-schedules")
def schedules_by_what_is_alive():
    """1F1B from the rule "a backward once N − s are alive"; GPipe's backwards from last to first."""

    def gpipe_schedule(stages, micro_batches):
        forwards = [("F", m) for m in range(micro_batches)]
        return [forwards + [("B", m) for _, m in reversed(forwards)] for _ in range(stages)]

    def one_f_one_b_schedule(stages, micro_batches):
        schedule = []
        for room in range(stages, 0, -1):
            forward, backward, row = 0, 0, []
            while backward < micro_batches:
                if forward == micro_batches or forward - backward == room:
                    row.append(("B", backward))
                    backward += 1
                else:
                    row.append(("F", forward))
                    forward += 1
            schedule.append(row)
        return schedule


@answer_to("11-ex2-simulate")
def simulation_by_recursion():
    """Computes backwards when each entry was over; an entry that needs itself on the way waits on itself."""

    import functools
    import itertools

    def simulate(schedule, forward_time, backward_time, weight_time=1.0):
        n = len(schedule)
        lasts = {"F": seconds_per_stage(forward_time, n), "B": seconds_per_stage(backward_time, n)}
        lasts["W"] = seconds_per_stage(weight_time, n)
        names = [[(e[0], e[1], (e[2] if len(e) == 3 else 0) * n + s) for e in row] for s, row in enumerate(schedule)]
        depth = max(v for row in names for _, _, v in row) // n + 1
        before = {b: a for row in names for a, b in itertools.pairwise(row)}
        asked = set()

        @functools.cache
        def over(kind, m, v):
            if (kind, m, v) in asked:
                raise ValueError("schedule: its entries wait for one another")
            asked.add((kind, m, v))
            needs = [before[kind, m, v]] if (kind, m, v) in before else []
            if kind == "F" and v:
                needs.append(("F", m, v - 1))
            if kind == "B":
                needs.append(("F", m, v))
                if v + 1 < n * depth:
                    needs.append(("B", m, v + 1))
            if kind == "W":
                needs.append(("B", m, v))
            return max((over(*need) for need in needs), default=0.0) + lasts[kind][v % n]

        return [[(over(*name) - lasts[name[0]][s], over(*name)) for name in row] for s, row in enumerate(names)]

    def bubble_fraction(schedule, forward_time, backward_time, weight_time=1.0):
        rows = simulate(schedule, forward_time, backward_time, weight_time)
        makespan = max(row[-1][1] for row in rows)
        idle = [makespan - sum(end - start for start, end in row) for row in rows]
        return sum(idle) / (makespan * len(rows))


@answer_to("11-ex3-peaks")
def peaks_by_accumulation():
    """Uses running sums."""

    from itertools import accumulate

    def peak_activations(schedule):
        parted = {e[0] for entries in schedule for e in entries} > {"F", "B"}
        change = {"F": 1, "B": 0 if parted else -1, "W": -1}
        return [max(accumulate(change[e[0]] for e in entries)) for entries in schedule]


@answer_to("11-ex4-interleaved")
def interleaved_from_two_lists():
    """Zips the order of all forwards and of all backwards with an offset: one more forward for each later stage, which
    is enough while messages take no time."""

    import itertools

    def interleaved_schedule(stages, micro_batches, chunks):
        forwards, backwards = [], []
        for start in range(0, micro_batches, stages):
            for chunk in range(chunks):
                for m in range(start, start + stages):
                    forwards.append(["F", m, chunk])
                    backwards.append(["B", m, chunks - 1 - chunk])
        schedule = []
        for behind in range(stages - 1, -1, -1):
            ahead = min(behind + (chunks - 1) * stages, len(forwards))
            padded = [None] * ahead + backwards
            pairs = itertools.zip_longest(forwards, padded)
            schedule.append([tuple(entry) for pair in pairs for entry in pair if entry])
        return schedule


@answer_to("11-ex5-zero-bubble")
def zero_bubble_second_by_second():
    """Plays the pipeline second by second: each stage takes a forward if 1F1B would and there is room, else a backward
    if its gradient has come, else a weight gradient."""

    def zero_bubble_schedule(stages, micro_batches):
        done = [{"F": 0, "B": 0, "W": 0} for _ in range(stages)]
        schedule = [[] for _ in range(stages)]
        while any(counts["W"] < micro_batches for counts in done):
            before = [dict(counts) for counts in done]
            for s, now in enumerate(before):
                gradients = before[s + 1]["B"] if s + 1 < stages else now["F"]
                inputs = before[s - 1]["F"] if s else micro_batches
                if now["F"] < inputs and now["F"] - now["W"] < stages and now["F"] - now["B"] < stages - s:
                    kind = "F"
                elif now["B"] < min(gradients, now["F"]):
                    kind = "B"
                elif now["W"] < now["B"]:
                    kind = "W"
                else:
                    continue
                schedule[s].append((kind, now[kind]))
                done[s][kind] += 1
        return schedule


@answer_to("11-ex6-pipeline-step")
def receives_are_posted_ahead():
    """Posts the receive of the next entry before it works on the current one; takes gradients through
    autograd.backward."""

    def pipeline_step(stage_module, micro_batches, schedule, loss_fn, hidden_shape):
        rank, n = dist.get_rank(), dist.get_world_size()
        mine, rows = schedule[rank], [len(x) for x, _ in micro_batches]
        inputs, outputs, gradients, sends, losses, posted = {}, {}, {}, [], [], {}
        split = ("W", 0) in mine

        def post(k):
            if k < len(mine):
                kind, m = mine[k]
                source = {"F": rank - 1, "B": rank + 1, "W": -1}[kind]
                if 0 <= source < n:
                    buffer = torch.zeros((rows[m], *hidden_shape))
                    posted[k] = buffer, dist.irecv(buffer, source, tag=m)

        def arrived(k):
            buffer, work = posted.pop(k)
            work.wait()
            return buffer

        post(0)
        for k, (kind, m) in enumerate(mine):
            got = arrived(k) if k in posted else None
            post(k + 1)
            if kind == "F":
                inputs[m] = micro_batches[m][0] if rank == 0 else got.requires_grad_(True)
                outputs[m] = stage_module(inputs[m])
                if rank == n - 1:
                    outputs[m] = loss_fn(outputs[m], micro_batches[m][1]).mul(rows[m]).div(sum(rows))
                    losses.append(float(outputs[m].detach()))
                else:
                    message = outputs[m].detach().clone(memory_format=torch.contiguous_format)
                    sends.append((message, dist.isend(message, rank + 1, tag=m)))
                print(f"stage {rank} has done F{m}")
            elif kind == "W":
                inputs.pop(m)
                outputs.pop(m).backward(gradients.pop(m), inputs=list(stage_module.parameters()))
            else:
                if not split:
                    torch.autograd.backward([outputs.pop(m)], [got])
                    gone = inputs.pop(m)
                else:
                    gradients[m], gone = got, inputs[m]
                    if rank > 0:
                        outputs[m].backward(got, inputs=[gone], retain_graph=True)
                if rank > 0:
                    sends.append((gone.grad, dist.isend(gone.grad, rank - 1, tag=m)))
        for _, work in sends:
            work.wait()
        if rank == n - 1:
            return sum(losses)


@answer_to("11-ex6-pipeline-step")
def messages_go_into_a_mailbox():
    """Uses no tags: receives in the order in which the neighbor sends, and keeps early messages for later; uses
    autograd.grad."""

    def pipeline_step(stage_module, micro_batches, schedule, loss_fn, hidden_shape):
        rank, stages = dist.get_rank(), dist.get_world_size()
        total = float(sum(len(x) for x, _ in micro_batches))
        parameters = [p for p in stage_module.parameters() if p.requires_grad]
        split = any(kind == "W" for kind, _ in schedule[rank])
        orders, boxes = {}, {"F": {}, "B": {}}
        for kind, source in (("F", rank - 1), ("B", rank + 1)):
            if 0 <= source < stages:
                orders[kind] = source, iter([m for what, m in schedule[source] if what == kind])

        def fetch(kind, m):
            while m not in boxes[kind]:
                source, coming = orders[kind]
                other = next(coming)
                boxes[kind][other] = torch.empty(len(micro_batches[other][0]), *hidden_shape)
                dist.recv(boxes[kind][other], source)
            return boxes[kind].pop(m)

        alive, sending, mean = {}, [], 0.0
        for kind, m in schedule[rank]:
            if kind == "F":
                x = fetch("F", m).requires_grad_() if rank else micro_batches[m][0]
                y = stage_module(x)
                if rank + 1 < stages:
                    sending.append(dist.isend(y.contiguous().detach(), rank + 1))
                else:
                    y = loss_fn(y, micro_batches[m][1])
                    mean += y.item() * len(x) / total
                alive[m] = (x, y)
                del x, y
            else:
                later = split and kind == "B"  # the weights' gradients
                if kind == "B":
                    x, y = alive.pop(m)
                    upstream = fetch("B", m) if rank + 1 < stages else torch.tensor(len(x) / total)
                else:
                    x, y, upstream = alive.pop(m)
                wanted = [*([] if later else parameters), *([x] if rank and kind == "B" else [])]
                gradients = torch.autograd.grad(y, wanted, upstream, retain_graph=later) if wanted else []
                if later:
                    alive[m] = (x, y, upstream)
                else:
                    for p, g in zip(parameters, gradients):
                        p.grad = g.clone() if p.grad is None else p.grad + g
                if rank and kind == "B":
                    sending.append(dist.isend(gradients[-1].contiguous(), rank - 1))
                del x, y
        while sending:
            sending.pop().wait()
        return mean if rank == stages - 1 else None
