"""Wrong answers to lesson 06, exercises 3 and 4."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

TRAIN, LAUNCH = "06-ex3-train-ddp", "06-ex4-launch-distributed"


# ---- 3 · train_ddp ----


train_forgets_the_optimizer = edit(
    TRAIN,
    """After a restart your optimizer starts anew: SGD's momentum is zero again, and the run takes another course. The
    optimizer has a state_dict, too: save it with the model's, and load both.""",
    ('        optimizer.load_state_dict(saved["optimizer"])\n', ""),
    breaks=tests_of(TRAIN),
)

train_never_tells_the_epoch = edit(
    TRAIN,
    """All your epochs have the order of epoch 0. The sampler seeds its shuffle with seed + epoch, and it learns the
    epoch only from sampler.set_epoch(epoch).""",
    ("        sampler.set_epoch(epoch)\n", ""),
    breaks=tests_of(TRAIN),
)

train_counts_epochs_from_one = edit(
    TRAIN,
    """You gave the sampler the epoch counted from 1. Only the printed number is counted from 1; the sampler's first
    epoch is 0.""",
    ("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch + 1)"),
    breaks=tests_of(TRAIN),
)

train_takes_the_mean_of_batch_means = edit(
    TRAIN,
    """Your loss is the mean of the batches' means. The last batch of an epoch may be smaller, so that its examples
    count for more than the others. Add up each batch's loss times its examples, and divide once by all examples.""",
    ("[loss.item() * len(y), len(y)]", "[loss.item(), 1]"),
    breaks=tests_of(TRAIN),
)

train_reports_its_own_loss = edit(
    TRAIN,
    """Each rank returns the loss of its own examples only, so the ranks disagree. Add up the sums and the counts of
    all ranks before you divide.""",
    ("        dist.all_reduce(total)\n", ""),
    breaks=tests_of(TRAIN),
)

train_divides_by_the_datasets_length = edit(
    TRAIN,
    """You divided the sum of the losses by the length of the dataset. The sampler repeats examples until N divides
    their number, so some count twice: 101 become 104 on 4 ranks. Divide by the number of examples that were seen.""",
    ("(total[0] / total[1]).item()", "(total[0] / len(data)).item()"),
    breaks=tests_of(TRAIN),
)

train_repeats_the_last_epoch = edit(
    TRAIN,
    """You resumed one epoch too early and ran the last epoch of the checkpoint again. After k finished epochs the next
    one has the number k, counted from 0.""",
    ("range(len(losses), epochs)", 'range(saved["epoch"] - 1 if losses else 0, epochs)'),
    breaks=tests_of(TRAIN),
)

train_forgets_the_earlier_losses = edit(
    TRAIN,
    """After a restart your list of losses begins with the first epoch after it. Save the list with the rest of the
    state and extend it, so that it is complete at the end.""",
    ('losses = saved["losses"][: saved["epoch"]]', 'first = saved["epoch"]'),
    ("    losses = []\n", "    losses, first = [], 0\n"),
    ("range(len(losses), epochs)", "range(first, epochs)"),
    breaks=tests_of(TRAIN),
)

train_saves_in_place = edit(
    TRAIN,
    """You write the new checkpoint over the old one. A rank that dies while it writes leaves half a file and nothing to
    resume from. Write another file in the same folder, and rename the finished file over the old one.""",
    (
        '            torch.save({**state, "losses": losses}, f"{checkpoint}.tmp")\n',
        '            torch.save({**state, "losses": losses}, checkpoint)\n',
    ),
    ('            os.replace(f"{checkpoint}.tmp", checkpoint)\n', ""),
    breaks=tests_of(TRAIN),
)

train_removes_before_it_renames = edit(
    TRAIN,
    """You remove the old checkpoint before you give the new one its name. If the rank dies between the two, there is no
    checkpoint. os.replace puts the new file in the place of the old one in a single step.""",
    (
        "            os.replace(f",
        "            os.path.exists(checkpoint) and os.remove(checkpoint)\n            os.replace(f",
    ),
    breaks=tests_of(TRAIN),
)

train_renames_from_another_folder = edit(
    TRAIN,
    """Your temporary file is in the system's temporary folder, often on another disk. A rename across file systems
    fails, and a copy instead of it is not atomic. Write into the checkpoint's own folder.""",
    ('"losses": losses}, f"{checkpoint}.tmp")', '"losses": losses}, tempfile.gettempdir() + f"/{os.getpid()}")'),
    ('os.replace(f"{checkpoint}.tmp"', 'os.replace(tempfile.gettempdir() + f"/{os.getpid()}"'),
    breaks=tests_of(TRAIN),
)

train_saves_only_at_the_end = edit(
    TRAIN,
    """You save only when all epochs are done. A run that dies before that has nothing to resume from: save after each
    epoch.""",
    ("is not None:", "is not None and epoch == epochs - 1:"),
    breaks=tests_of(TRAIN),
)

train_trusts_the_checkpoint = edit(
    TRAIN,
    """With weights_only=False, loading a checkpoint runs any program that somebody has hidden in it. Yours needs only
    tensors, numbers, strings, lists and dicts, and weights_only=True lets in nothing else.""",
    ("weights_only=True", "weights_only=False"),
    breaks=tests_of(TRAIN),
)

train_returns_ddps_names = edit(
    TRAIN,
    """Your state_dict has DDP's names, with `module.` before each, and a plain model does not accept them. Take the
    state_dict of the model that you wrapped: ddp.module.""",
    ("in model.state_dict().items()}", "in ddp.state_dict().items()}"),
    breaks=tests_of(TRAIN),
)

train_returns_views = edit(
    TRAIN,
    """state_dict() returns the model's own tensors, not copies, so further training would change what you have
    returned. Clone each tensor.""",
    ("{name: value.detach().cpu().clone() for name, value in model.state_dict().items()}", "model.state_dict()"),
    breaks=tests_of(TRAIN),
)

train_returns_only_parameters = edit(
    TRAIN,
    """You returned only the parameters. A state_dict also holds the buffers, such as BatchNorm's statistics, and
    load_state_dict requires them. Start from model.state_dict().""",
    ("in model.state_dict().items()}", "in model.named_parameters()}"),
    breaks=tests_of(TRAIN),
)

train_returns_on_rank_0_only = edit(
    TRAIN,
    """Only rank 0 returned the result. All ranks hold the same parameters and the same losses: return the dict on every
    rank.""",
    ('    return {"losses": losses', '    return None if rank else {"losses": losses'),
    breaks=tests_of(TRAIN),
)

train_prints_on_every_rank = edit(
    TRAIN,
    """Every rank prints its line, so the log has each epoch N times. Print on rank 0 only.""",
    ("        if rank == 0:\n            print", "        if True:\n            print"),
    breaks=tests_of(TRAIN),
)

train_without_momentum = edit(
    TRAIN,
    """Your SGD has no momentum. The statement asks for 0.9.""",
    (", momentum=0.9", ""),
    breaks=tests_of(TRAIN),
)

train_shuffles_without_the_seed = edit(
    TRAIN,
    """You did not pass `seed` to the sampler. Its own default is 0, so with any other seed your run sees the examples
    in the order of seed 0.""",
    ("shuffle=True, seed=seed)", "shuffle=True)"),
    breaks=tests_of(TRAIN),
)

train_without_manual_seed = edit(
    TRAIN,
    """Your model started from whatever random numbers came next. Call torch.manual_seed(seed) before you make the
    model.""",
    ("    torch.manual_seed(seed)\n", ""),
    breaks=tests_of(TRAIN),
)

train_drops_examples = edit(
    TRAIN,
    """You gave the sampler drop_last=True. It then leaves out the examples that N does not divide, instead of repeating
    some. No example of the dataset may be left out.""",
    ("shuffle=True, seed=seed)", "shuffle=True, seed=seed, drop_last=True)"),
    breaks=tests_of(TRAIN),
)

train_divides_the_batch = edit(
    TRAIN,
    """You divided batch_size by the number of ranks. It is the number of examples that each rank takes in a step, not
    that of all ranks together.""",
    ("batch_size, sampler", "batch_size // world_size or 1, sampler"),
    breaks=tests_of(TRAIN),
)

train_without_the_sampler = edit(
    TRAIN,
    """Each of your ranks went through the whole dataset in an order of its own. A DataLoader does not know about ranks:
    give it a DistributedSampler.""",
    ("DataLoader(data, batch_size, sampler=sampler)", "DataLoader(data, batch_size, shuffle=True)"),
    breaks=tests_of(TRAIN),
)

train_calls_the_plain_model = edit(
    TRAIN,
    """You wrapped the model but called the unwrapped one. DDP prepares the averaging of the gradients in its own
    forward, so without it the ranks drift apart. Call the wrapped model.""",
    ("cross_entropy(ddp(x.to(device))", "cross_entropy(model(x.to(device))"),
    breaks=tests_of(TRAIN),
)

train_never_clears_gradients = edit(
    TRAIN,
    """You never set the gradients to zero, so those of all steps add up. Call optimizer.zero_grad() in every step.""",
    ("            optimizer.zero_grad()\n", ""),
    breaks=tests_of(TRAIN),
)

train_ends_the_group = edit(
    TRAIN,
    """Your train_ddp ended the process group. The caller started it and may still need it: leave that to
    cleanup_ddp.""",
    ("    state_dict = {", "    dist.destroy_process_group()\n    state_dict = {"),
    breaks=tests_of(TRAIN),
)


# ---- 4 · launch_distributed ----


@mutant(LAUNCH, breaks=tests_of(LAUNCH))
def launch_returns_what_spawn_returns():
    """You returned what mp.spawn returns, which is None: the results of the function stay in its processes and end with
    them. Let rank 0 save its result in a file, and load it after mp.spawn."""

    def launch_distributed(world_size, **kwargs):
        if world_size < 1:
            raise ValueError("world_size must be at least 1")
        with tempfile.TemporaryDirectory() as folder:
            return mp.spawn(in_process, args=(world_size, folder, kwargs), nprocs=world_size)

    def in_process(rank, world_size, folder, kwargs):
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
        result = train_ddp(rank, world_size, **kwargs)
        cleanup_ddp()
        return result


@mutant(LAUNCH, breaks=tests_of(LAUNCH))
def launch_brings_the_result_through_a_queue():
    """You sent the result through a queue. A tensor in a queue is a handle to memory of the process that put it there,
    and that process has ended when you read it. Let rank 0 save the result in a file."""

    def launch_distributed(world_size, **kwargs):
        if world_size < 1:
            raise ValueError("world_size must be at least 1")
        queue = mp.get_context("spawn").SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(in_process, args=(world_size, folder, queue, kwargs), nprocs=world_size)
        return queue.get()

    def in_process(rank, world_size, folder, queue, kwargs):
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world_size)
        result = train_ddp(rank, world_size, **kwargs)
        if rank == 0:
            queue.put(result)
        cleanup_ddp()


launch_at_a_port = edit(
    LAUNCH,
    """Your ranks meet at a port that you picked. Two launches at the same time would meet each other, and another
    program may use the port. A new file in a new folder is never taken: init_method="file://…".""",
    ("file://{folder}/rendezvous", "tcp://127.0.0.1:{20000 + os.getppid() % 9000}"),
    breaks=tests_of(LAUNCH),
)

launch_meets_in_one_place = edit(
    LAUNCH,
    """All your launches meet in the same file. Two at the same time disturb each other, and one that was killed leaves
    its file to the next. Use a new folder for each launch.""",
    ('f"file://{folder}/rendezvous"', '"file://" + tempfile.gettempdir() + "/rendezvous"'),
    breaks=tests_of(LAUNCH),
)

launch_leaves_its_folder = edit(
    LAUNCH,
    """Every launch leaves a folder behind. tempfile.TemporaryDirectory() in a `with` statement removes it, even when
    something fails.""",
    ("    with tempfile.TemporaryDirectory() as folder:\n", "    folder = tempfile.mkdtemp()\n    if True:\n"),
    breaks=tests_of(LAUNCH),
)

launch_drops_arguments = edit(
    LAUNCH,
    """You passed only the model, the data and the number of epochs to train_ddp. Pass all of kwargs on.""",
    (
        "result = train_ddp(rank, world_size, **kwargs)",
        'result = train_ddp(rank, world_size, kwargs["model_class"], kwargs["data"], kwargs["epochs"])',
    ),
    breaks=tests_of(LAUNCH),
)

launch_starts_no_group = edit(
    LAUNCH,
    """You called setup_ddp, but mp.spawn only starts processes: there is no launcher's environment to read. Start the
    group yourself in each process, over a file in the folder.""",
    (
        "    dist.init_process_group(backend, init_method=address, rank=rank, world_size=world_size)\n",
        "    setup_ddp(rank, world_size)\n",
    ),
    breaks=tests_of(LAUNCH),
)

launch_never_cleans_up = edit(
    LAUNCH,
    """Your processes end with their group still open. Call cleanup_ddp() in each of them after training.""",
    ("    cleanup_ddp()\n", ""),
    breaks=tests_of(LAUNCH),
)

launch_hides_what_went_wrong = edit(
    LAUNCH,
    """A rank failed, and your error does not say why. mp.spawn raises an error that holds the rank's traceback: let it
    through.""",
    (
        "        mp.spawn(train_in_process, args=(world_size, folder, kwargs), nprocs=world_size)\n",
        "        try:\n            mp.spawn(train_in_process, args=(world_size, folder, kwargs), nprocs=world_size)\n"
        '        except Exception:\n            raise RuntimeError("training has failed") from None\n',
    ),
    breaks=tests_of(LAUNCH),
)

launch_does_not_wait = edit(
    LAUNCH,
    """With join=False, mp.spawn returns at once, before the result is there. Let it wait for the processes; then it
    also raises their errors.""",
    ("nprocs=world_size)\n        return", "nprocs=world_size, join=False)\n        return"),
    breaks=tests_of(LAUNCH),
)

launch_returns_the_last_ranks_dict = edit(
    LAUNCH,
    """You returned the last rank's dict. The statement asks for rank 0's.""",
    ("    if rank == 0:\n", "    if rank == world_size - 1:\n"),
    breaks=tests_of(LAUNCH),
)

launch_takes_any_world_size = edit(
    LAUNCH,
    """With world_size = 0 you started nothing and then failed over a missing file. Raise a ValueError that names
    world_size before anything else.""",
    ('    if world_size < 1:\n        raise ValueError(f"world_size must be at least 1, got {world_size}")\n', ""),
    breaks=tests_of(LAUNCH),
)


@mutant(LAUNCH, breaks=tests_of(LAUNCH))
def launch_spawns_a_function_inside():
    """You spawn a function that is defined inside launch_distributed. A new process imports it by name from the module,
    where only top-level functions have one: move it to the top level of the cell."""

    def launch_distributed(world_size, **kwargs):
        if world_size < 1:
            raise ValueError("world_size must be at least 1")
        with tempfile.TemporaryDirectory() as folder:

            def in_process(rank):
                dist.init_process_group("gloo", init_method=f"file://{folder}/m", rank=rank, world_size=world_size)
                result = train_ddp(rank, world_size, **kwargs)
                if rank == 0:
                    torch.save(result, f"{folder}/result")
                cleanup_ddp()

            mp.spawn(in_process, nprocs=world_size)
            return torch.load(f"{folder}/result", weights_only=True)
