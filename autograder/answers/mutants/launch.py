"""Wrong answers to lesson 06: the subtle ones first in each exercise.

The functions of this lesson are long and most mistakes are made in one place, so most answers are edits.
"""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

SETUP, CLEANUP = "06-ex1-setup-ddp", "06-ex2-cleanup-ddp"
TRAIN, LAUNCH = "06-ex3-train-ddp", "06-ex4-launch-distributed"


# ---- 1 · setup_ddp ----


setup_without_a_prefix = edit(
    SETUP,
    """Under torchrun the store belongs to the agent and outlives the ranks: your second attempt used the very keys
    under which the ranks of the first have left their addresses. Wrap the store in a PrefixStore whose prefix is
    another one in each attempt.""",
    ("""        store = dist.PrefixStore(f"attempt_{attempt}", store)\n""", "        pass\n"),
    breaks=tests_of(SETUP),
)


@mutant(SETUP, breaks=tests_of(SETUP))
def setup_leaves_the_store_to_torch():
    """You let torch make the store from the environment. Under torchrun that is the agent's store, which outlives
    the ranks: a second attempt uses the very keys under which the dead ranks have left their addresses. Connect to
    it yourself and wrap it in a PrefixStore whose prefix is another one in each attempt."""

    def setup_ddp(rank, world_size):
        if dist.is_initialized():
            return
        for name, expected in (("RANK", rank), ("WORLD_SIZE", world_size), ("MASTER_ADDR", ""), ("MASTER_PORT", "")):
            value = os.environ.get(name, "")
            if not value or (expected != "" and value != str(expected)):
                raise ValueError(f"{name}: got {value!r}")
        backend = choose_backend(rank, world_size)
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=60))
        except dist.DistNetworkError:
            raise RuntimeError("MASTER_PORT is in use") from None


setup_with_a_constant_prefix = edit(
    SETUP,
    """Your prefix is the same in every attempt, so a second attempt finds the keys of the first after all. Take
    something into it that changes with every restart: TORCHELASTIC_RESTART_COUNT.""",
    ("""f"attempt_{attempt}\"""", '"attempt"'),
    breaks=tests_of(SETUP),
)

setup_with_the_run_as_prefix = edit(
    SETUP,
    """TORCHELASTIC_RUN_ID names the run, and the run is the same after a restart: all attempts share your prefix.
    The variable that counts the attempts is TORCHELASTIC_RESTART_COUNT.""",
    ("""f"attempt_{attempt}\"""", '"run_" + os.environ["TORCHELASTIC_RUN_ID"]'),
    breaks=tests_of(SETUP),
)

setup_waits_for_half_an_hour = edit(
    SETUP,
    """Your group has torch's own timeout, 30 minutes for gloo. When a rank dies, the others may wait that long
    before anybody notices, on machines that cost money. Give init_process_group a timeout of at most 60 seconds.""",
    ("rank=rank, world_size=world_size, timeout=timeout)", "rank=rank, world_size=world_size)"),
    breaks=tests_of(SETUP),
)

setup_looks_at_the_environment_first = edit(
    SETUP,
    """When a group is up already, as in ranks.run, there may be no launcher and no MASTER_ADDR, and nothing is to
    be done. You looked at the environment before you asked whether there is a group: ask first.""",
    ("    if dist.is_initialized():\n        return\n", ""),
    ("    backend, timeout", "    if dist.is_initialized():\n        return\n    backend, timeout"),
    breaks=tests_of(SETUP),
)


@mutant(SETUP, breaks=tests_of(SETUP))
def setup_starts_a_second_group():
    """There was a group already, and you started another one: torch refuses that. Where a group is up, for example
    in ranks.run, setup_ddp has nothing to do; dist.is_initialized() tells."""

    def setup_ddp(rank, world_size):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")
        dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=60))


@mutant(SETUP, breaks=tests_of(SETUP))
def setup_falls_back_to_a_port():
    """Where the launcher had not said where the store is, you took an address and a port of your own. Then every rank
    that was started without a launcher is alone, or meets whoever else uses that port. Raise a ValueError that names
    what is missing."""

    def setup_ddp(rank, world_size):
        if dist.is_initialized():
            return
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ.setdefault("MASTER_PORT", "12355")
        dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=60))


setup_shows_torchs_own_error = edit(
    SETUP,
    """The port was in use and you let torch's own error through. It is written for torch's authors; who reads the
    log of a job wants one line that names MASTER_PORT. Catch dist.DistNetworkError where the store is made, and
    raise a RuntimeError of your own, `from None`.""",
    ("except dist.DistNetworkError:", "except KeyError:"),
    breaks=tests_of(SETUP),
)

setup_believes_any_world_size = edit(
    SETUP,
    """WORLD_SIZE in the environment was not the number that the script was called for, and you went on. With one
    rank fewer than planned everybody waits until the timeout; with one more, the batches are not those you think.
    Compare RANK and WORLD_SIZE with the arguments, and raise a ValueError that names the one that differs.""",
    ("if not value or (expected is not None and value != str(expected)):", "if not value:"),
    breaks=tests_of(SETUP),
)

setup_raises_a_key_error = edit(
    SETUP,
    """Where a variable is missing, os.environ[...] raises a KeyError with nothing but the variable's name. Look
    with os.environ.get, and raise a ValueError that says what is missing.""",
    ("value = os.environ.get(name)", "value = os.environ[name]"),
    breaks=tests_of(SETUP),
)

setup_always_takes_gloo = edit(
    SETUP,
    """NCCL was asked for, and you started gloo without a word. A job that was meant for GPUs would run on CPUs, and
    nobody would know why it is slow. Take the backend that choose_backend returns, and let its error through.""",
    ("choose_backend(rank, world_size)", '"gloo"'),
    breaks=tests_of(SETUP),
)

setup_opens_a_store_on_every_rank = edit(
    SETUP,
    """Without a launcher's store, every rank of yours tried to open one at the same port. Only one can: rank 0
    opens it, and the others are its clients.""",
    ("is None and rank == 0, timeout", "is None, timeout"),
    breaks=tests_of(SETUP),
)


# ---- 2 · cleanup_ddp ----


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_waits_at_a_barrier():
    """A barrier before the end waits for every rank. When one of them has failed, it never comes, and those that
    are well hang in their cleanup. End the group without waiting for anybody."""

    def cleanup_ddp():
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_only_once():
    """You remember that cleanup_ddp has run and do nothing the second time. But there may be a new group by then.
    Do not remember: ask torch whether there is a group."""

    def cleanup_ddp():
        if not getattr(cleanup_ddp, "done", False):
            cleanup_ddp.done = True
            dist.destroy_process_group()


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_fails_the_second_time():
    """Where there is no group, destroy_process_group raises an error. A cleanup often runs after something went
    wrong, perhaps before there was a group; its own error would then hide the real one. Ask dist.is_initialized()
    first. (dist.is_available() is another question: whether this torch was built with torch.distributed at all.)"""

    def cleanup_ddp():
        if dist.is_available():
            dist.destroy_process_group()


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_ends_nothing():
    """After your cleanup_ddp the group is still there: a barrier lets all ranks arrive, and ends nothing.
    dist.destroy_process_group() does."""

    def cleanup_ddp():
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.barrier()


# ---- 3 · train_ddp ----


train_forgets_the_optimizer = edit(
    TRAIN,
    """After a restart your optimizer starts anew: SGD's momentum is zero again, and the run goes another way from
    there. The optimizer has a state_dict too: save it with the model's, and load both.""",
    ('        optimizer.load_state_dict(saved["optimizer"])\n', ""),
    breaks=tests_of(TRAIN),
)

train_never_tells_the_epoch = edit(
    TRAIN,
    """Every epoch of yours has the order of epoch 0: the sampler seeds its shuffle with seed + epoch, and it learns
    the epoch only from sampler.set_epoch(epoch).""",
    ("        sampler.set_epoch(epoch)\n", ""),
    breaks=tests_of(TRAIN),
)

train_counts_epochs_from_one = edit(
    TRAIN,
    """You told the sampler the epoch counted from 1. The number that one prints may be counted from 1; the
    sampler's first epoch is 0.""",
    ("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch + 1)"),
    breaks=tests_of(TRAIN),
)

train_takes_the_mean_of_batch_means = edit(
    TRAIN,
    """Your loss is the mean of the batches' means. The last batch of an epoch is smaller, so its examples count for
    more than the others. Sum up loss times examples and the examples, and divide once at the end.""",
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
    """You divided the sum of the losses by the length of the dataset. The sampler fills the examples up until they
    divide by N, and some count twice: 101 become 104 on 4 ranks. Divide by the number of examples that were
    seen.""",
    ("(total[0] / total[1]).item()", "(total[0] / len(data)).item()"),
    breaks=tests_of(TRAIN),
)

train_repeats_the_last_epoch = edit(
    TRAIN,
    """You resumed one epoch too early: the last epoch that the checkpoint holds was run again. After k epochs are
    done, the next one has the number k when one counts from 0.""",
    ("range(len(losses), epochs)", 'range(saved["epoch"] - 1 if losses else 0, epochs)'),
    breaks=tests_of(TRAIN),
)

train_forgets_the_earlier_losses = edit(
    TRAIN,
    """After a restart your list of losses begins with the epoch that was resumed. Save the list with the rest, and
    go on from it, so that it is whole at the end.""",
    ('losses = saved["losses"][: saved["epoch"]]', 'first = saved["epoch"]'),
    ("    losses = []\n", "    losses, first = [], 0\n"),
    ("range(len(losses), epochs)", "range(first, epochs)"),
    breaks=tests_of(TRAIN),
)

train_saves_in_place = edit(
    TRAIN,
    """You write the new checkpoint over the old one. A rank that dies while it writes leaves half a file and
    nothing to resume from. Write beside it, and rename the finished file over the old one.""",
    (
        '            torch.save({**state, "losses": losses}, f"{checkpoint}.tmp")\n',
        '            torch.save({**state, "losses": losses}, checkpoint)\n',
    ),
    ('            os.replace(f"{checkpoint}.tmp", checkpoint)\n', ""),
    breaks=tests_of(TRAIN),
)

train_removes_before_it_renames = edit(
    TRAIN,
    """You remove the old checkpoint before you give the new one its name. If the rank dies between the two there is
    none. os.replace puts the new file in the place of the old one in a single step.""",
    (
        "            os.replace(f",
        "            os.path.exists(checkpoint) and os.remove(checkpoint)\n            os.replace(f",
    ),
    breaks=tests_of(TRAIN),
)

train_renames_from_another_folder = edit(
    TRAIN,
    """Your temporary file is in the system's folder for such files, often another disk. Across file systems a
    rename is impossible, and where it is replaced by a copy it is not atomic. Write beside the checkpoint, in the
    same folder.""",
    ('}, f"{checkpoint}.tmp")', '}, tempfile.gettempdir() + f"/{os.getpid()}")'),
    ('f"{checkpoint}.tmp', 'tempfile.gettempdir() + f"/{os.getpid()}'),
    breaks=tests_of(TRAIN),
)

train_saves_only_at_the_end = edit(
    TRAIN,
    """You save when all epochs are done. A run that dies before that has nothing to resume from: save after each
    epoch.""",
    ("is not None:", "is not None and epoch == epochs - 1:"),
    breaks=tests_of(TRAIN),
)

train_trusts_the_checkpoint = edit(
    TRAIN,
    """With weights_only=False, loading a checkpoint runs whatever program somebody has put into it. Tensors,
    numbers, strings, lists and dicts are all that yours needs, and weights_only=True lets in nothing else.""",
    ("weights_only=True", "weights_only=False"),
    breaks=tests_of(TRAIN),
)

train_returns_ddps_names = edit(
    TRAIN,
    """Your state_dict has DDP's names, with `module.` before each, and a plain model does not accept them. Take the
    state_dict of the model inside: ddp.module, which is the model that you wrapped.""",
    ("in model.state_dict().items()}", "in ddp.state_dict().items()}"),
    breaks=tests_of(TRAIN),
)

train_returns_views = edit(
    TRAIN,
    """state_dict() returns the model's own tensors and no copies: whoever trains the model further changes what you
    have returned. Clone each tensor.""",
    ("{name: value.detach().cpu().clone() for name, value in model.state_dict().items()}", "model.state_dict()"),
    breaks=tests_of(TRAIN),
)

train_returns_only_parameters = edit(
    TRAIN,
    """A state_dict holds the buffers too, such as BatchNorm's statistics; you returned the parameters alone, and
    load_state_dict misses the rest. Start from model.state_dict().""",
    ("in model.state_dict().items()}", "in model.named_parameters()}"),
    breaks=tests_of(TRAIN),
)

train_returns_on_rank_0_only = edit(
    TRAIN,
    """Only rank 0 returned the result. All ranks hold the same parameters and the same losses, and the statement
    asks for the dict on every rank.""",
    ('    return {"losses": losses', '    return None if rank else {"losses": losses'),
    breaks=tests_of(TRAIN),
)

train_prints_on_every_rank = edit(
    TRAIN,
    """Every rank prints its line, so the log has each epoch N times. Let rank 0 speak for all.""",
    ("        if rank == 0:\n            print", "        if True:\n            print"),
    breaks=tests_of(TRAIN),
)

train_without_momentum = edit(
    TRAIN,
    """Your SGD has no momentum; the statement asks for 0.9.""",
    (", momentum=0.9", ""),
    breaks=tests_of(TRAIN),
)

train_shuffles_without_the_seed = edit(
    TRAIN,
    """The sampler has a seed of its own, 0 unless you say otherwise: with seed 0 your run is right, with another it
    sees the examples in the order of seed 0. Hand `seed` to the sampler too.""",
    ("shuffle=True, seed=seed)", "shuffle=True)"),
    breaks=tests_of(TRAIN),
)

train_without_manual_seed = edit(
    TRAIN,
    """The model's first parameters came from whatever random numbers were next. Call torch.manual_seed(seed) before
    you make the model.""",
    ("    torch.manual_seed(seed)\n", ""),
    breaks=tests_of(TRAIN),
)

train_drops_examples = edit(
    TRAIN,
    """The sampler with drop_last=True leaves out the examples that do not divide by N, instead of filling up. No
    example of the dataset is to be left out.""",
    ("shuffle=True, seed=seed)", "shuffle=True, seed=seed, drop_last=True)"),
    breaks=tests_of(TRAIN),
)

train_divides_the_batch = edit(
    TRAIN,
    """batch_size is the number of examples that each rank takes in a step. You divided it by the number of ranks,
    as one does when it is the size of the batch of all ranks together.""",
    ("batch_size, sampler", "batch_size // world_size or 1, sampler"),
    breaks=tests_of(TRAIN),
)

train_without_the_sampler = edit(
    TRAIN,
    """Each rank went through the whole dataset in an order of its own. A DataLoader knows nothing of ranks: give it
    a DistributedSampler.""",
    ("DataLoader(data, batch_size, sampler=sampler)", "DataLoader(data, batch_size, shuffle=True)"),
    breaks=tests_of(TRAIN),
)

train_calls_the_plain_model = edit(
    TRAIN,
    """You wrapped the model but called the unwrapped one. DDP sets up the averaging of the gradients in its own
    forward, so the ranks drift apart. Call the wrapped one.""",
    ("cross_entropy(ddp(x.to(device))", "cross_entropy(model(x.to(device))"),
    breaks=tests_of(TRAIN),
)

train_never_clears_gradients = edit(
    TRAIN,
    """The gradients of all steps add up, since nobody sets them to zero. Call optimizer.zero_grad() in every
    step.""",
    ("            optimizer.zero_grad()\n", ""),
    breaks=tests_of(TRAIN),
)

train_ends_the_group = edit(
    TRAIN,
    """train_ddp ended the process group. Its caller started it and may still need it: leave that to cleanup_ddp.""",
    ("    state_dict = {", "    dist.destroy_process_group()\n    state_dict = {"),
    breaks=tests_of(TRAIN),
)


# ---- 4 · launch_distributed ----


@mutant(LAUNCH, breaks=tests_of(LAUNCH))
def launch_returns_what_spawn_returns():
    """mp.spawn waits for the processes and returns None: what the function returned in them is lost with them. Let
    rank 0 save it in a file, and load it when mp.spawn is back."""

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
    """The result came through a queue. A tensor in a queue is a handle to memory of the process that put it there,
    and that process has ended by the time you look. Let rank 0 save the result in a file."""

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
    """Your ranks meet at a port that you have picked. Two launches at the same time would meet each other, and some
    other program may have the port. A new file in a new folder is never taken: init_method="file://…".""",
    ("file://{folder}/rendezvous", "tcp://127.0.0.1:{20000 + os.getppid() % 9000}"),
    breaks=tests_of(LAUNCH),
)

launch_meets_in_one_place = edit(
    LAUNCH,
    """All your launches meet in the same file. Two at the same time would disturb each other, and one that was
    killed leaves its file to the next. Take a new folder for each launch.""",
    ('f"file://{folder}/rendezvous"', '"file://" + tempfile.gettempdir() + "/rendezvous"'),
    breaks=tests_of(LAUNCH),
)

launch_leaves_its_folder = edit(
    LAUNCH,
    """Every launch leaves a folder behind. tempfile.TemporaryDirectory() in a `with` statement takes it away again,
    also when something goes wrong.""",
    ("    with tempfile.TemporaryDirectory() as folder:\n", "    folder = tempfile.mkdtemp()\n    if True:\n"),
    breaks=tests_of(LAUNCH),
)

launch_drops_arguments = edit(
    LAUNCH,
    """The model, the data and the number of epochs arrive in train_ddp, the other arguments do not. Pass all of
    kwargs on.""",
    (
        "result = train_ddp(rank, world_size, **kwargs)",
        'result = train_ddp(rank, world_size, kwargs["model_class"], kwargs["data"], kwargs["epochs"])',
    ),
    breaks=tests_of(LAUNCH),
)

launch_starts_no_group = edit(
    LAUNCH,
    """mp.spawn starts processes and nothing else: there is no launcher's environment that setup_ddp could read.
    Start the group yourself in each process, over a file in the folder.""",
    (
        "    dist.init_process_group(backend, init_method=address, rank=rank, world_size=world_size)\n",
        "    setup_ddp(rank, world_size)\n",
    ),
    breaks=tests_of(LAUNCH),
)

launch_never_cleans_up = edit(
    LAUNCH,
    """The processes end with their group still open. Call cleanup_ddp() in each of them after training.""",
    ("    cleanup_ddp()\n", ""),
    breaks=tests_of(LAUNCH),
)

launch_hides_what_went_wrong = edit(
    LAUNCH,
    """A rank failed, and your error does not say why. mp.spawn raises an error that holds the rank's traceback: let
    it through.""",
    (
        "        mp.spawn(train_in_process, args=(world_size, folder, kwargs), nprocs=world_size)\n",
        "        try:\n            mp.spawn(train_in_process, args=(world_size, folder, kwargs), nprocs=world_size)\n"
        '        except Exception:\n            raise RuntimeError("training has failed") from None\n',
    ),
    breaks=tests_of(LAUNCH),
)

launch_does_not_wait = edit(
    LAUNCH,
    """With join=False mp.spawn returns at once, and the result is not there yet. Let it wait for the processes;
    then it also raises what went wrong in them.""",
    ("nprocs=world_size)\n        return", "nprocs=world_size, join=False)\n        return"),
    breaks=tests_of(LAUNCH),
)

launch_returns_the_last_ranks_dict = edit(
    LAUNCH,
    """The dict that you returned is the last rank's. The statement asks for rank 0's.""",
    ("    if rank == 0:\n", "    if rank == world_size - 1:\n"),
    breaks=tests_of(LAUNCH),
)

launch_takes_any_world_size = edit(
    LAUNCH,
    """With world_size = 0 nothing is started, and the error that follows is about a file that is missing. Raise a
    ValueError that names world_size before anything else.""",
    ('    if world_size < 1:\n        raise ValueError(f"world_size must be at least 1, got {world_size}")\n', ""),
    breaks=tests_of(LAUNCH),
)


@mutant(LAUNCH, breaks=tests_of(LAUNCH))
def launch_spawns_a_function_inside():
    """The function that you spawn is defined inside launch_distributed. A new process imports it by its name from
    the module, and inside a function it has none: move it to the top level of the cell."""

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
