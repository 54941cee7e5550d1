"""Wrong answers to lesson 06, exercise 5: train_until_told."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

TRAIN = "06-ex5-train-until-told"


# ---- 5 · train_until_told ----


handler_goes_before_the_others_wait = edit(
    TRAIN,
    """Your other ranks put the earlier handler back and then wait for rank 0 to save. A second signal in this time
    ends them, and rank 0 waits for them forever. Put it back at the very end.""",
    ("        dist.barrier()\n", "        signal.signal(signal.SIGTERM, before)\n        dist.barrier()\n"),
    breaks=tests_of(TRAIN),
    fails=["handler_is_put_back"],
)

handler_for_one_signal = edit(
    TRAIN,
    """Your handler puts the earlier one back at the first signal. A second one that comes before all is saved then ends
    the process. Put it back at the very end.""",
    (
        "    before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))\n",
        """    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: (told.append(True), signal.signal(signal.SIGTERM, before)))
""",
    ),
    breaks=tests_of(TRAIN),
    fails=["handler_is_put_back"],
)

second_signal_ends_it = edit(
    TRAIN,
    """Your handler ends the process at a second signal. Some clusters send it again and again until the process is
    gone: the save is then cut off. Note it like the first.""",
    (
        "    before = signal.signal(signal.SIGTERM, lambda *_: told.append(True))\n",
        """
    def handler(*_):
        if told:
            raise SystemExit(1)
        told.append(True)

    before = signal.signal(signal.SIGTERM, handler)
""",
    ),
    breaks=tests_of(TRAIN),
    fails=["handler_is_put_back"],
)

handler_stays_once_told = edit(
    TRAIN,
    """When a rank was told to stop, your handler stays installed after the call. Put the earlier one back in each
    case.""",
    (
        "        signal.signal(signal.SIGTERM, before)\n",
        "        if not told:\n            signal.signal(signal.SIGTERM, before)\n",
    ),
    breaks=tests_of(TRAIN),
    fails=["handler_is_put_back"],
)

any_file_will_do = edit(
    TRAIN,
    """Your ranks wait until there is a file. In a run that goes on, the old checkpoint is there already, and they
    return while rank 0 is still saving. Let them wait for rank 0.""",
    ("        dist.barrier()\n", "        while not os.path.exists(checkpoint):\n            time.sleep(0.01)\n"),
    breaks=tests_of(TRAIN),
    fails=["no_rank_returns_before_the_file_is_there"],
)

no_step_no_file = edit(
    TRAIN,
    """You save only if a step was trained in this call. When all is done from the start, the file that the statement
    promises may be missing: save in each case.""",
    ("        ddp = Dist", "        had = len(losses)\n        ddp = Dist"),
    ("        if rank == 0:\n", "        if rank == 0 and len(losses) > had:\n"),
    breaks=tests_of(TRAIN),
    fails=["no_rank_returns_before_the_file_is_there"],
)

seed_of_the_rank = edit(
    TRAIN,
    """Each of your ranks has a seed of its own. DDP gives all of them rank 0's parameters, but the statement asks for
    torch.manual_seed(seed) on every rank.""",
    ("torch.manual_seed(seed)", "torch.manual_seed(seed + rank)"),
    breaks=tests_of(TRAIN),
)

seeds_before_each_step = edit(
    TRAIN,
    """You seed torch again before each step. A model with dropout then leaves out the same units in every step. Seed
    once, before the model is made.""",
    ("            losses.append(one_step", "            torch.manual_seed(seed)\n            losses.append(one_step"),
    breaks=tests_of(TRAIN),
)

done_in_this_call = edit(
    TRAIN,
    """You compare steps with the number of steps of this call. After a resume, those that were done before count, too:
    compare with all losses.""",
    ("        ddp = Dist", "        had = len(losses)\n        ddp = Dist"),
    ('"done": len(losses) == steps', '"done": len(losses) - had == steps'),
    breaks=tests_of(TRAIN),
)

only_rank_0_is_heard = edit(
    TRAIN,
    """Rank 0 decides and the others follow. A signal that reaches another rank is lost. Each rank must contribute what
    it knows: count the ranks that got the signal.""",
    ("dist.all_reduce(stop)", "dist.broadcast(stop, 0)"),
    breaks=tests_of(TRAIN),
)

only_the_told_rank_stops = edit(
    TRAIN,
    """Only the rank that got the signal stops. The others go on to the next all-reduce and wait there for it, until the
    cluster kills them all. After each step, the ranks must agree whether one of them got the signal.""",
    ("            dist.all_reduce(stop)\n", ""),
    breaks=tests_of(TRAIN),
)

all_must_be_told = edit(
    TRAIN,
    """Your run stops only when every rank got the signal. A cluster that takes one machine away sends it only to the
    ranks on that machine: one is enough.""",
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

every_rank_saves = edit(
    TRAIN,
    """All your ranks save. They write and rename the same file at the same time, and one of them renames what another
    is still writing. Only rank 0 saves.""",
    ("        if rank == 0:\n            save", "        if True:\n            save"),
    breaks=tests_of(TRAIN),
    fails=["no_rank_returns_before_the_file_is_there"],
)

last_rank_saves = edit(
    TRAIN,
    """Another rank than rank 0 saves. Its node may lack the disk that holds the checkpoints: rank 0 saves, and no
    other.""",
    ("        if rank == 0:\n", "        if rank == world_size - 1:\n"),
    breaks=tests_of(TRAIN),
    fails=["no_rank_returns_before_the_file_is_there"],
)

handler_goes_before_the_save = edit(
    TRAIN,
    """You put the earlier handler back before rank 0 saves. A second signal that comes while it writes then ends the
    process, and the steps since the last checkpoint are lost. Put it back at the very end.""",
    ("        if rank == 0:\n", "        signal.signal(signal.SIGTERM, before)\n        if rank == 0:\n"),
    breaks=tests_of(TRAIN),
    fails=["handler_is_put_back"],
)

told_in_the_last_step_is_not_done = edit(
    TRAIN,
    """You return done = False whenever a signal came. If it comes in the last step, all steps are done, and a launcher
    would start a run that has nothing to do. Count the losses.""",
    ('"done": len(losses) == steps', '"done": not stop.item()'),
    breaks=tests_of(TRAIN),
)

note_of_the_last_call = edit(
    TRAIN,
    """You keep the note that a signal came from one call to the next. A later call in the same process then stops after
    its first step, although no signal has come. Begin each call without a note.""",
    ("    told = []\n", "    told = signal.__dict__.setdefault('_told', [])\n"),
    breaks=tests_of(TRAIN),
)

asks_every_third_step = edit(
    TRAIN,
    """Your ranks do not agree after every step, so a signal is noticed steps later. It must stop the run after the step
    that is running, or the next.""",
    (
        "            stop += bool(told)\n",
        """            if len(losses) % 3 and len(losses) < steps:
                continue
            stop += bool(told)
""",
    ),
    breaks=tests_of(TRAIN),
    fails=["signal_may_come_early"],
)

state_on_rank_0_only = edit(
    TRAIN,
    """Only your rank 0 returns the model's state. The statement asks for it on every rank.""",
    ('"state_dict": model.state_dict()', '"state_dict": {} if rank else model.state_dict()'),
    breaks=tests_of(TRAIN),
)

momentum_of_rank_0_only = edit(
    TRAIN,
    """Only rank 0 loads the checkpoint, and you hand its losses to the others. They are at the right step, but their
    momentum is zero, and the models drift apart. Every rank loads.""",
    (
        "        losses = load(checkpoint, model, optimizer)\n",
        """        box = [load(checkpoint, model, optimizer) if rank == 0 else None]
        dist.broadcast_object_list(box)
        losses = box[0]
""",
    ),
    breaks=tests_of(TRAIN),
)

seed_for_the_model_only = edit(
    TRAIN,
    """You do not hand your seed on to one_step, so the batches come in the order of seed 0.""",
    ("global_batch, seed))", "global_batch, 0))"),
    breaks=tests_of(TRAIN),
)

seed_for_the_batches_only = edit(
    TRAIN,
    """You make the model without torch.manual_seed(seed), so each new run begins with other parameters.""",
    ("        torch.manual_seed(seed)\n", ""),
    breaks=tests_of(TRAIN),
)

batch_of_16 = edit(
    TRAIN,
    """You do not hand global_batch on to one_step: your global batches have 16 examples, whatever the caller asks
    for.""",
    ("len(losses), global_batch,", "len(losses), 16,"),
    breaks=tests_of(TRAIN),
)

rate_of_a_tenth = edit(
    TRAIN,
    """You do not hand lr on to SGD: your rate is another one than the caller asks for.""",
    ("lr=lr", "lr=0.01"),
    breaks=tests_of(TRAIN),
)

early_note_is_thrown_away = edit(
    TRAIN,
    """You clear the note before a step, so a signal that came while the model was made or loaded is forgotten. Clear
    nothing: a note that is there stops the run.""",
    ("            losses.append(one_step", "            told.clear()\n            losses.append(one_step"),
    breaks=tests_of(TRAIN),
    fails=["signal_may_come_early"],
)

told_ranks_do_not_wait = edit(
    TRAIN,
    """Your ranks wait for the file only when all steps are done. When the run is told to stop, they return while rank 0
    is still saving: wait in both cases.""",
    ("        dist.barrier()\n", "        if len(losses) == steps:\n            dist.barrier()\n"),
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
