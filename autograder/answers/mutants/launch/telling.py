"""Wrong answers to lesson 06, exercises 5 and 6: train_until_told, diagnose."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

TRAIN, DIAGNOSE = "06-ex5-train-until-told", "06-ex6-diagnose"


# ---- 5 · train_until_told ----


only_rank_0_is_heard = edit(
    TRAIN,
    """Rank 0 decides and the others follow. A signal that reaches another rank is lost. Each rank must bring what it
    knows: add up the numbers of told ranks.""",
    ("dist.all_reduce(stop)", "dist.broadcast(stop, 0)"),
    breaks=tests_of(TRAIN),
)

only_the_told_rank_stops = edit(
    TRAIN,
    """Only the rank that got the signal stops. The others go on to the next all-reduce and wait there for it, until the
    cluster kills them all. After each step, the ranks must agree whether one of them has been told.""",
    ("            dist.all_reduce(stop)\n", ""),
    breaks=tests_of(TRAIN),
)

all_must_be_told = edit(
    TRAIN,
    """Your run stops when all ranks have been told. A cluster that takes one machine away tells only the ranks on it:
    one is enough.""",
    ("dist.all_reduce(stop)", "dist.all_reduce(stop, dist.ReduceOp.MIN)"),
    breaks=tests_of(TRAIN),
)

handler_leaves_at_once = edit(
    TRAIN,
    """Your handler ends the process. That is in the middle of a step: the other ranks wait in its all-reduce, and
    nothing is saved. Let the handler only note that the signal came, and look at the note after the step.""",
    ("lambda *_: told.append(True)", "lambda *_: (_ for _ in ()).throw(SystemExit(0))"),
    breaks=tests_of(TRAIN),
)

told_run_is_not_saved = edit(
    TRAIN,
    """You save only when all steps are done. A run that is told to stop loses all that it has done since the last
    checkpoint: save in both cases.""",
    ("        if rank == 0:\n", "        if rank == 0 and len(losses) == steps:\n"),
    breaks=tests_of(TRAIN),
)

finished_run_is_not_saved = edit(
    TRAIN,
    """You save only when the run was told to stop. When all steps are done, the result must be in the checkpoint,
    too.""",
    ("        if rank == 0:\n", "        if rank == 0 and stop:\n"),
    breaks=tests_of(TRAIN),
)

told_run_says_done = edit(
    TRAIN,
    """You return done = True whenever the loop has ended, also because of a signal. A launcher would then not start the
    run again. It is done when it has all its losses.""",
    ('"done": len(losses) == steps', '"done": True'),
    breaks=tests_of(TRAIN),
)

always_starts_anew = edit(
    TRAIN,
    """You never load the checkpoint, so each call begins with step 0. load returns the losses so far, and puts model
    and optimizer where they were.""",
    ("load(checkpoint, model, optimizer)", "[]"),
    breaks=tests_of(TRAIN),
)

only_rank_0_loads = edit(
    TRAIN,
    """Only rank 0 loads the checkpoint. It goes on at the next step, while the others begin with step 0: DDP gives them
    rank 0's parameters, but neither the momentum nor the position. Every rank loads.""",
    ("load(checkpoint, model, optimizer)", "load(checkpoint, model, optimizer) if rank == 0 else []"),
    breaks=tests_of(TRAIN),
)

counts_the_steps_of_this_call = edit(
    TRAIN,
    """After a resume you count the steps from 0 again, so the run trains on the batches of the beginning once more. The
    step is the number of all steps so far: len(losses).""",
    (
        "            losses.append(one_step(ddp, optimizer, data, len(losses), global_batch, seed))\n",
        """            losses.append(one_step(ddp, optimizer, data, len(losses) - begin, global_batch, seed))
""",
    ),
    (
        "        ddp = DistributedDataParallel(model)\n",
        "        ddp, begin = DistributedDataParallel(model), len(losses)\n",
    ),
    breaks=tests_of(TRAIN),
)

state_with_ddps_names = edit(
    TRAIN,
    """Your state_dict has DDP's names, with `module.` before each, and a plain model does not accept them. Take the
    state_dict of the model that you wrapped.""",
    ('"state_dict": model.state_dict()', '"state_dict": ddp.state_dict()'),
    breaks=tests_of(TRAIN),
)

handler_stays = edit(
    TRAIN,
    """Your handler is still installed after the call. A SIGTERM that comes later is then swallowed, and the process
    does not end. signal.signal returns the earlier handler: put it back.""",
    ("        signal.signal(signal.SIGTERM, before)\n", "        pass\n"),
    breaks=tests_of(TRAIN),
    fails=["handler_is_put_back"],
)

handler_becomes_the_default = edit(
    TRAIN,
    """At the end you install the default handler. Before the call there may have been another one, of a launcher or a
    logger: put back what signal.signal has returned.""",
    ("        signal.signal(signal.SIGTERM, before)\n", "        signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"),
    breaks=tests_of(TRAIN),
    fails=["handler_is_put_back"],
)

nobody_waits_for_the_disk = edit(
    TRAIN,
    """The other ranks return while rank 0 is still saving. They may end their processes, or read the old checkpoint at
    the next start. Let all ranks wait until the file is there.""",
    ("        dist.barrier()\n", ""),
    breaks=tests_of(TRAIN),
    fails=["no_rank_returns_before_the_file_is_there"],
)

waits_before_it_saves = edit(
    TRAIN,
    """Your ranks wait for each other before rank 0 saves. They should do it after that, so that none returns before the
    file is there.""",
    ("        dist.barrier()\n", ""),
    ("        if rank == 0:\n", "        dist.barrier()\n        if rank == 0:\n"),
    breaks=tests_of(TRAIN),
    fails=["no_rank_returns_before_the_file_is_there"],
)

handler_comes_late = edit(
    TRAIN,
    """You install the handler after the model was made and loaded. On a big job that takes minutes, and a signal in
    that time ends the process. Install it before anything else.""",
    ("    before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))\n", "    before = signal.SIG_DFL\n"),
    (
        "        stop = torch.zeros(1)\n",
        """        stop = torch.zeros(1)
        before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))
""",
    ),
    breaks=tests_of(TRAIN),
    fails=["signal_may_come_early"],
)


# ---- 6 · diagnose ----


everybody_is_in_every_group = edit(
    DIAGNOSE,
    """You expect every rank in every operation. A rank that is not in a group is not missing in its operations: the
    members stand in pg_config.""",
    ("set(members[key[0]]) - called.keys() - waiting", "set(range(len(dumps))) - called.keys() - waiting"),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

missing_is_guilty = edit(
    DIAGNOSE,
    """You name the first rank that is missing in some operation of the world. It may wait in an operation of another
    group, for the rank that is really at fault. Look at the earliest stuck operation, and leave out who waits
    elsewhere.""",
    ("for key in sorted(stuck, key=first_call):", "for key in sorted(stuck):"),
    (" - called.keys() - waiting", " - called.keys()"),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

groups_share_their_numbers = edit(
    DIAGNOSE,
    """You know an operation by its number alone. Each group counts its own operations: take the group's name and the
    number together.""",
    (
        '(entry["process_group"][0], entry["collective_seq_id"])',
        '("0", entry["collective_seq_id"])',
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

sizes_do_not_matter = edit(
    DIAGNOSE,
    """You compare the names of the operations only. An all-reduce of 8 numbers does not fit one of 9: compare
    input_sizes as well.""",
    ('(entry["profiling_name"], entry["input_sizes"])', '(entry["profiling_name"],)'),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

names_do_not_matter = edit(
    DIAGNOSE,
    """You compare the sizes only. A rank that gathers does not fit one that adds up, however many numbers they have:
    compare profiling_name as well.""",
    (
        "            others = [theirs for other, theirs in called.items() if other != rank]\n",
        """            others = [theirs for other, theirs in called.items() if other != rank]
            if [theirs[1] for theirs in others] == [mine[1]] * len(others):
                continue
""",
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

rank_0_is_always_right = edit(
    DIAGNOSE,
    """You compare all ranks with rank 0, and name the first that differs. If rank 0 itself differs from all others,
    it is the one.""",
    (
        "            others = [theirs for other, theirs in called.items() if other != rank]\n",
        """            others = [called.get(0, mine)] * 2 if rank else [mine]
""",
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

the_culprits_own_operation = edit(
    DIAGNOSE,
    """For a rank that differs you return the operation that it called. Asked for is the one that the others called,
    which it should have called.""",
    ('return "different", rank, (*key, others[0][0])', 'return "different", rank, (*key, mine[0])'),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

patience_of_the_watchdog = edit(
    DIAGNOSE,
    """You call a rank hung when the others have waited for timeout_ms, the watchdog's limit. Before that, a rank that
    was never late and now is a minute behind is not slow but hung: compare with how late it was before.""",
    ("<= 3 * max(lags)", "<= 600_000 * 1_000_000"),
    breaks=tests_of(DIAGNOSE),
)

everybody_hangs = edit(
    DIAGNOSE,
    """You call every rank hung that is missing and not dead. If it has always been as late as it is now, it is slow: a
    thermal throttle or a bad disk, not a deadlock.""",
    ('return "slow" if now - first_call(key) <= 3 * max(lags) else "hung", rank', 'return "hung", rank'),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

a_second_is_slow = edit(
    DIAGNOSE,
    """You use a limit of your own, in seconds. What is a long wait depends on the job: compare with how long the others
    have waited for this rank before.""",
    ("<= 3 * max(lags)", "<= 2_000_000_000"),
    breaks=tests_of(DIAGNOSE),
)

the_dead_hang = edit(
    DIAGNOSE,
    """You call a rank hung that left no dump. Its process is gone: it is dead, and its node's log says why.""",
    ('return "dead", rank, operation', 'return "hung", rank, operation'),
    breaks=tests_of(DIAGNOSE),
)

the_last_stuck_operation = edit(
    DIAGNOSE,
    """You look at the latest of the stuck operations. The fault lies in the first: what comes after waits because of
    it.""",
    ("sorted(stuck, key=first_call)", "sorted(stuck, key=first_call, reverse=True)"),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

place_in_the_buffer = edit(
    DIAGNOSE,
    """You match operations by record_id or by their place in the buffer. Ring buffers have lost different numbers of
    old operations, and ranks are in different groups: match by group and collective_seq_id.""",
    (
        'for entry in dump["entries"] if dump else ():',
        'for number, entry in enumerate(dump["entries"] if dump else ()):',
    ),
    ('(entry["process_group"][0], entry["collective_seq_id"])', '("0", number)'),
    breaks=tests_of(DIAGNOSE),
)

only_started_waits = edit(
    DIAGNOSE,
    """You take an operation for stuck only if its state is started. One that is scheduled is not completed
    either.""",
    ('if any(entry["state"] != "completed" for', 'if all(entry["state"] == "started" for'),
    breaks=tests_of(DIAGNOSE),
)
