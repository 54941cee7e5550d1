"""Wrong answers to lesson 06, exercises 1 and 2."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

SETUP, CLEANUP = "06-ex1-setup-ddp", "06-ex2-cleanup-ddp"


# ---- 1 · setup_ddp ----


setup_without_a_prefix = edit(
    SETUP,
    """Under torchrun the store belongs to the agent and outlives the ranks. Your second attempt used the same keys
    under which the ranks of the first attempt left their addresses: wrap the store in a PrefixStore whose prefix
    differs in each attempt.""",
    ("""        store = dist.PrefixStore(f"attempt_{attempt}", store)\n""", "        pass\n"),
    breaks=tests_of(SETUP),
)


@mutant(SETUP, breaks=tests_of(SETUP))
def setup_leaves_the_store_to_torch():
    """You let torch make the store from the environment. Under torchrun that is the agent's store, which still holds
    the addresses of the dead ranks when a second attempt starts. Connect to it yourself and wrap it in a PrefixStore
    whose prefix differs in each attempt."""

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
    """Your prefix is the same in every attempt, so a second attempt still finds the keys of the first. Use something
    that changes with every restart: TORCHELASTIC_RESTART_COUNT.""",
    ("""f"attempt_{attempt}\"""", '"attempt"'),
    breaks=tests_of(SETUP),
)

setup_with_the_run_as_prefix = edit(
    SETUP,
    """TORCHELASTIC_RUN_ID names the run, which is the same after a restart, so all attempts share your prefix. The
    variable that counts the attempts is TORCHELASTIC_RESTART_COUNT.""",
    ("""f"attempt_{attempt}\"""", '"run_" + os.environ["TORCHELASTIC_RUN_ID"]'),
    breaks=tests_of(SETUP),
)

setup_waits_for_half_an_hour = edit(
    SETUP,
    """Your group has torch's own timeout, 30 minutes for gloo. When a rank dies, the others may wait that long on
    machines that cost money. Give init_process_group a timeout of at most 60 seconds.""",
    ("rank=rank, world_size=world_size, timeout=timeout)", "rank=rank, world_size=world_size)"),
    breaks=tests_of(SETUP),
)

setup_looks_at_the_environment_first = edit(
    SETUP,
    """You read the environment before you asked whether there is a group. When a group is up already, as in ranks.run,
    there may be no launcher and no MASTER_ADDR: ask first, and then do nothing.""",
    ("    if dist.is_initialized():\n        return\n", ""),
    ("    backend, timeout", "    if dist.is_initialized():\n        return\n    backend, timeout"),
    breaks=tests_of(SETUP),
)


@mutant(SETUP, breaks=tests_of(SETUP))
def setup_starts_a_second_group():
    """A group was up already, and you started another one, which torch refuses. Where a group is up, for example in
    ranks.run, setup_ddp has nothing to do: ask dist.is_initialized()."""

    def setup_ddp(rank, world_size):
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")
        dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=60))


@mutant(SETUP, breaks=tests_of(SETUP))
def setup_falls_back_to_a_port():
    """MASTER_ADDR or MASTER_PORT was not set, and you chose a value yourself. A rank that was started without a
    launcher then waits alone, or meets another program that uses this port. Raise a ValueError that names the missing
    variable."""

    def setup_ddp(rank, world_size):
        if dist.is_initialized():
            return
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ.setdefault("MASTER_PORT", "12355")
        dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=60))


setup_shows_torchs_own_error = edit(
    SETUP,
    """The port was in use and you let torch's own error through, which is written for torch's authors. The log of a job
    needs one line that names MASTER_PORT: catch dist.DistNetworkError where the store is made, and raise a RuntimeError
    of your own, `from None`.""",
    ("except dist.DistNetworkError:", "except KeyError:"),
    breaks=tests_of(SETUP),
)

setup_believes_any_world_size = edit(
    SETUP,
    """WORLD_SIZE in the environment differs from the argument, and you went on. With one rank fewer than planned, all
    ranks wait until the timeout; with one more, the batches have another size. Compare RANK and WORLD_SIZE with the
    arguments, and raise a ValueError that names the one that differs.""",
    ("if not value or (expected is not None and value != str(expected)):", "if not value:"),
    breaks=tests_of(SETUP),
)

setup_raises_a_key_error = edit(
    SETUP,
    """For a missing variable, os.environ[...] raises a KeyError with nothing but its name. Use os.environ.get, and
    raise a ValueError that says what is missing.""",
    ("value = os.environ.get(name)", "value = os.environ[name]"),
    breaks=tests_of(SETUP),
)

setup_always_takes_gloo = edit(
    SETUP,
    """NCCL was asked for, and you silently started gloo. A job that is meant for GPUs would then run slowly on CPUs
    without any explanation. Use the backend that choose_backend returns, and let its error through.""",
    ("choose_backend(rank, world_size)", '"gloo"'),
    breaks=tests_of(SETUP),
)

setup_opens_a_store_on_every_rank = edit(
    SETUP,
    """Without a launcher's store, each of your ranks tried to open one at the same port. Only one can: rank 0 opens it,
    and the others are its clients.""",
    ("is None and rank == 0, timeout", "is None, timeout"),
    breaks=tests_of(SETUP),
)


# ---- 2 · cleanup_ddp ----


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_waits_at_a_barrier():
    """A barrier waits for every rank. A rank that has failed never reaches it, and the healthy ranks then hang in their
    cleanup. End the group without waiting for other ranks."""

    def cleanup_ddp():
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_only_once():
    """You remember that cleanup_ddp has run and do nothing the second time. By then there may be a new group: do not
    remember, but ask torch whether there is a group."""

    def cleanup_ddp():
        if not getattr(cleanup_ddp, "done", False):
            cleanup_ddp.done = True
            dist.destroy_process_group()


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_fails_the_second_time():
    """Where there is no group, destroy_process_group raises an error. A cleanup often runs after a failure, perhaps
    before there was a group, and its error would hide the real one. Ask dist.is_initialized() first;
    dist.is_available() only says whether torch was built with torch.distributed."""

    def cleanup_ddp():
        if dist.is_available():
            dist.destroy_process_group()


@mutant(CLEANUP, breaks=tests_of(CLEANUP))
def cleanup_ends_nothing():
    """After your cleanup_ddp the group is still there: a barrier waits for all ranks, but ends nothing.
    dist.destroy_process_group() does."""

    def cleanup_ddp():
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.barrier()
