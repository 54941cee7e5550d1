"""Wrong answers to lesson 06, exercises 1 and 2: fresh_name, setup_ddp."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

NAME, SETUP = "06-ex1-fresh-name", "06-ex2-setup-ddp"


# ---- 1 · fresh_name ----


@mutant(NAME, breaks=tests_of(NAME), fails=["killed_attempts_do_no_harm"])
def tickets_counted_by_the_world():
    """Each rank draws a ticket, and you divide its number by world_size. An attempt of which some ranks never came has
    drawn fewer tickets than that, and from then on the ranks of one attempt get different quotients."""

    def fresh_name(store, rank, world_size):
        return f"attempt {(store.add('tickets', 1) - 1) // world_size}"


answers_one_question_only = edit(
    NAME,
    """Rank 0 answers the first question that it finds under a rank's key. That may be the question of a rank of an
    earlier attempt; the living rank then waits for ever. Go on answering until this rank has confirmed that it has the
    name.""",
    (
        """        while not store.check([f"{mine} heard by {other}"]):
            question = store.get(f"question of {other}").decode()
            store.set(f"answer to {question}", mine)
            time.sleep(0.01)
""",
        """        question = store.get(f"question of {other}").decode()
        store.set(f"answer to {question}", mine)
""",
    ),
    breaks=tests_of(NAME),
)


@mutant(NAME, breaks=tests_of(NAME))
def proposal_without_a_question():
    """The ranks confirm the name that they find, and rank 0 then says go. A rank that comes before rank 0 finds the
    name of the earlier attempt, and its go as well. Nothing in an answer says to which question it belongs."""

    def fresh_name(store, rank, world_size):
        if rank == 0:
            name = uuid.uuid4().hex
            store.set("proposal", name)
            for other in range(1, world_size):
                store.get(f"{name} seen by {other}")
            store.set(f"go {name}", "yes")
            return name
        name = store.get("proposal").decode()
        store.set(f"{name} seen by {rank}", "yes")
        store.get(f"go {name}")
        return name


@mutant(NAME, breaks=tests_of(NAME))
def name_under_a_fixed_key():
    """Rank 0 writes the name under a key that is the same in every attempt. A rank that comes before rank 0 reads what
    an earlier attempt has left there."""

    def fresh_name(store, rank, world_size):
        if rank == 0:
            store.set("name", uuid.uuid4().hex)
            return store.get("name").decode()
        return store.get("name").decode()


@mutant(NAME, breaks=tests_of(NAME))
def old_name_deleted_first():
    """Rank 0 deletes the old name before it writes the new one. That helps only the ranks that come after rank 0;
    a rank that is there before it has read the old name already."""

    def fresh_name(store, rank, world_size):
        if rank == 0:
            store.delete_key("the name")
            store.set("the name", uuid.uuid4().hex)
        name = store.get("the name").decode()
        return "" + name


@mutant(NAME, breaks=tests_of(NAME))
def counter_of_rank_0():
    """Rank 0 counts the attempts in the store, and the others read the counter. A rank that comes before rank 0 reads
    the number of the attempt before."""

    def fresh_name(store, rank, world_size):
        return f"attempt {store.add('attempts', 1 if rank == 0 else 0)}"


@mutant(NAME, breaks=tests_of(NAME))
def count_of_restarts():
    """TORCHELASTIC_RESTART_COUNT counts the restarts of one agent. When a node leaves or comes, the agents of the
    others do not count that, and a new agent begins at 0: the ranks get different names, or an old one."""

    def fresh_name(store, rank, world_size):
        return "attempt_" + os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


@mutant(NAME, breaks=tests_of(NAME))
def name_of_the_run():
    """The run's id is the same in all its attempts, so a later attempt gets a name that has been used."""

    def fresh_name(store, rank, world_size):
        return "run_" + os.environ.get("TORCHELASTIC_RUN_ID", "0")


@mutant(NAME, breaks=tests_of(NAME))
def name_from_the_clock():
    """The clock tells the ranks nothing about each other: they come seconds apart, and two attempts can come in one
    second. Names have to be agreed on in the store."""

    def fresh_name(store, rank, world_size):
        return f"minute_{int(time.time()) // 3600}"


question_that_was_asked_before = edit(
    NAME,
    """Your question is the same in each attempt, so a rank takes the answer that an earlier attempt has left. Ask a
    question that nobody has asked before.""",
    (
        "    mine = uuid.uuid4().hex\n",
        "    mine = uuid.uuid4().hex if rank == 0 else f\"{os.environ.get('TORCHELASTIC_RUN_ID')}/{rank}\"\n",
    ),
    breaks=tests_of(NAME),
)

confirmation_without_the_name = edit(
    NAME,
    """The key under which a rank confirms is the same in each attempt. Rank 0 finds the confirmation of an earlier
    attempt and leaves before the living rank has its answer.""",
    ('f"{mine} heard by {other}"', 'f"heard by {other}"'),
    ('f"{name} heard by {rank}"', 'f"heard by {rank}"'),
    breaks=tests_of(NAME),
)

questions_deleted_first = edit(
    NAME,
    """Rank 0 deletes the questions that it finds at the beginning. A rank that came before rank 0 has asked already,
    and waits for ever. Answer old questions, too: nobody reads those answers, and they do no harm.""",
    (
        "    for other in range(1, world_size):\n",
        """    for other in range(1, world_size):
        store.delete_key(f"question of {other}")
    for other in range(1, world_size):
""",
    ),
    breaks=tests_of(NAME),
)

rank_0_gives_up = edit(
    NAME,
    """Rank 0 stops answering after a second. Ranks may come seconds apart, and one that comes later waits for ever. Go
    on until each rank has confirmed.""",
    (
        "    for other in range(1, world_size):\n        while not store",
        """    end = time.time() + 1
    for other in range(1, world_size):
        while time.time() < end and not store""",
    ),
    (
        "            question = store.get",
        """            if not store.check([f"question of {other}"]):
                time.sleep(0.01)
                continue
            question = store.get""",
    ),
    breaks=tests_of(NAME),
)

name_from_torchs_generator = edit(
    NAME,
    """You draw the name from torch's generator. It has the same seed in each new process, so a later attempt draws the
    name of an earlier one. uuid draws from the system.""",
    (
        "    mine = uuid.uuid4().hex\n",
        "    mine = uuid.uuid4().hex if rank else str(torch.randint(2**62, (1,)).item())\n",
    ),
    breaks=tests_of(NAME),
)

each_its_own_name = edit(
    NAME,
    """Each rank returns a name that it has made up itself. They are fresh, but the ranks do not share them: the others
    have to take the name of rank 0.""",
    ('        name = store.get(f"answer to {mine}").decode()\n', "        name = mine\n"),
    ('        store.set(f"{name} heard by {rank}", "yes")\n', ""),
    ("    for other in range(1, world_size):\n", "    for other in range(0):\n"),
    breaks=tests_of(NAME),
)

bytes_for_a_name = edit(
    NAME,
    """store.get returns bytes, and on some ranks you return them as they are. The statement asks for a text: decode()
    makes one.""",
    (
        """        store.set(f"{name} heard by {rank}", "yes")
        return name
""",
        """        store.set(f"{name} heard by {rank}", "yes")
        return name.encode()
""",
    ),
    breaks=tests_of(NAME),
)

alone_is_always_alone = edit(
    NAME,
    """A single rank has nobody to ask, but its attempts follow each other on one store like all others. Give it a fresh
    name, too.""",
    ("    mine = uuid.uuid4().hex\n", '    mine = uuid.uuid4().hex if world_size > 1 else "alone"\n'),
    breaks=tests_of(NAME),
)


# ---- 2 · setup_ddp ----


setup_knows_torchrun_by_its_job = edit(
    SETUP,
    """You ask whether torchrun has started you, not whether its agent has opened the store. It may leave that to rank 0
    and says so in TORCHELASTIC_USE_AGENT_STORE: compare its text with "True".""",
    ('os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"', '"TORCHELASTIC_RUN_ID" not in os.environ'),
    breaks=tests_of(SETUP),
    fails=["setup_gives_each_attempt_keys_of_its_own"],
)

setup_takes_the_agents_word_away = edit(
    SETUP,
    """You take TORCHELASTIC_USE_AGENT_STORE out of the environment when you have read it. A library that looks for it
    later finds nothing. Only read it.""",
    ('os.environ.get("TORCHELASTIC_USE_AGENT_STORE")', 'os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)'),
    breaks=tests_of(SETUP),
    fails=["setup_gives_each_attempt_keys_of_its_own"],
)

setup_fills_in_the_local_rank = edit(
    SETUP,
    """You write what is missing into the environment. Leave it as it is: what you need, keep in a variable.""",
    (
        "        return\n",
        """        return
    os.environ.setdefault("LOCAL_RANK", str(rank))
""",
    ),
    breaks=tests_of(SETUP),
)

setup_checks_on_rank_0_only = edit(
    SETUP,
    """Only your rank 0 calls check_environment. Each node has an environment of its own, and each rank may have a wrong
    one.""",
    (
        "    backend, timeout = check_environment(rank, world_size), timedelta(seconds=60)\n",
        """    backend, timeout = "gloo", timedelta(seconds=60)
    if rank == 0:
        backend = check_environment(rank, world_size)
""",
    ),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)

setup_starts_a_smaller_one = edit(
    SETUP,
    """A group is up, but it has another size than you were asked for, and you start a new one. The statement says: do
    nothing. Somebody may be using it.""",
    (
        "        return\n",
        """        if dist.get_world_size() == world_size:
            return
        dist.destroy_process_group()
""",
    ),
    breaks=tests_of(SETUP),
)

setup_returns_the_backend = edit(
    SETUP,
    """You return the backend. Nothing was asked for: whoever needs it calls dist.get_backend().""",
    ("timeout=timeout)\n", "timeout=timeout)\n    return backend\n"),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)

setup_lets_torch_choose = edit(
    SETUP,
    """You start the group without the backend that check_environment returns. torch then chooses by itself, whatever
    DDP_BACKEND says.""",
    ("init_process_group(backend, ", "init_process_group("),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)


@mutant(SETUP, breaks=tests_of(SETUP), fails=["setup_gives_each_attempt_keys_of_its_own"])
def setup_leaves_the_store_to_torch():
    """You let torch make the store from the environment. Under torchrun that is the agent's store, which still holds
    the addresses of the dead ranks when a second attempt starts. Connect to it yourself and wrap it in a PrefixStore
    whose prefix is a fresh name."""

    def setup_ddp(rank, world_size):
        if dist.is_initialized():
            return
        backend = check_environment(rank, world_size)
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=60))
        except dist.DistNetworkError:
            raise RuntimeError("MASTER_PORT is in use") from None


setup_without_a_prefix = edit(
    SETUP,
    """Your group uses the store as it is. Under torchrun the store outlives the ranks, and a second attempt would read
    the addresses that the first has left. Wrap it in a PrefixStore with a fresh name.""",
    ("    store = dist.PrefixStore(fresh_name(store, rank, world_size), store)\n", ""),
    breaks=tests_of(SETUP),
    fails=["setup_gives_each_attempt_keys_of_its_own"],
)

setup_with_the_count_of_restarts = edit(
    SETUP,
    """Your prefix contains TORCHELASTIC_RESTART_COUNT, which each agent counts for itself. Where the counts of two
    nodes differ, their ranks look for each other under different keys. Use fresh_name.""",
    (
        "fresh_name(store, rank, world_size)",
        'os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")',
    ),
    ("seconds=60", "seconds=4"),
    breaks=tests_of(SETUP),
    fails=["setup_gives_each_attempt_keys_of_its_own"],
)

setup_waits_for_half_an_hour = edit(
    SETUP,
    """Your group has torch's own timeout, 30 minutes for gloo. When a rank hangs, the others wait that long on
    machines that cost money. Give init_process_group a timeout of at most 60 seconds.""",
    ("rank=rank, world_size=world_size, timeout=timeout)", "rank=rank, world_size=world_size)"),
    breaks=tests_of(SETUP),
)

setup_looks_at_the_environment_first = edit(
    SETUP,
    """You read the environment before you asked whether there is a group. When a group is up already, as in ranks.run,
    there may be no launcher and no MASTER_ADDR: ask first, and then do nothing.""",
    ("    if dist.is_initialized():\n        return\n", ""),
    ("timedelta(seconds=60)\n", "timedelta(seconds=60)\n    if dist.is_initialized():\n        return\n"),
    breaks=tests_of(SETUP),
)

setup_falls_back_to_a_port = edit(
    SETUP,
    """MASTER_ADDR or MASTER_PORT was not set, and you chose a value yourself. A rank that was started without a
    launcher then waits alone, or meets another program that uses this port. Leave the environment as it is.""",
    (
        "    backend, timeout =",
        """    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "0")
    backend, timeout =""",
    ),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)

setup_shows_torchs_own_error = edit(
    SETUP,
    """The port was in use and you let torch's own error through, which is written for torch's authors. The log of a job
    needs one line that names MASTER_PORT: catch dist.DistNetworkError where the store is made, and raise a RuntimeError
    of your own, `from None`.""",
    ("except dist.DistNetworkError:", "except KeyError:"),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)

setup_names_no_variable = edit(
    SETUP,
    """Your error says that the port is in use, but not which variable says the port. The person who reads the log has
    to change MASTER_PORT: name it.""",
    ('f"MASTER_PORT {port} on', 'f"Port {port} on'),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)

setup_checks_too_late = edit(
    SETUP,
    """You call check_environment only when you have read the environment and made the store. A rank that cannot start
    would wait there, or fail with an error that does not say why. Call it first.""",
    ("    backend, timeout = check_environment(rank, world_size), timedelta", "    timeout = timedelta"),
    ("    store = dist.Prefix", "    backend = check_environment(rank, world_size)\n    store = dist.Prefix"),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)

setup_takes_any_text_for_true = edit(
    SETUP,
    """You ask whether TORCHELASTIC_USE_AGENT_STORE is set. It may be set to "False": then rank 0 opens the store.
    Compare the text with "True".""",
    ('os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"', 'not os.environ.get("TORCHELASTIC_USE_AGENT_STORE")'),
    ("seconds=60", "seconds=4"),
    breaks=tests_of(SETUP),
    fails=["setup_gives_each_attempt_keys_of_its_own"],
)

setup_lets_the_store_wait = edit(
    SETUP,
    """Your store has torch's own timeout, 5 minutes. A rank whose partners do not come waits there before the group has
    begun. Give TCPStore a timeout of at most 60 seconds.""",
    ("world_size, opens, timeout)", "world_size, opens)"),
    breaks=tests_of(SETUP),
)

setup_prefix_under_an_agent_only = edit(
    SETUP,
    """You use a prefix only with the agent's store. The statement asks for it in every store: all keys of the group
    begin with a fresh_name.""",
    (
        "    store = dist.PrefixStore(",
        '    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":\n        store = dist.PrefixStore(',
    ),
    breaks=tests_of(SETUP),
    fails=["setup_gives_each_attempt_keys_of_its_own"],
)

setup_local_rank_0_opens = edit(
    SETUP,
    """The rank whose LOCAL_RANK is 0 opens the store. Each node has such a rank, and there is one store:
    rank 0 opens it.""",
    ("opens = rank == 0 and", 'opens = int(os.environ.get("LOCAL_RANK", rank)) == 0 and'),
    breaks=tests_of(SETUP),
)

setup_stays_on_this_machine = edit(
    SETUP,
    """You connect to localhost. The store may be on another machine: MASTER_ADDR says where.""",
    ('address, port = os.environ["MASTER_ADDR"], int', 'address, port = "localhost", int'),
    breaks=tests_of(SETUP),
)

setup_always_takes_gloo = edit(
    SETUP,
    """You started gloo without asking check_environment. A job that is meant for GPUs would then run slowly on CPUs
    without any explanation, and a rank that cannot start would wait. Use the backend that it returns, and let its
    errors through.""",
    ("check_environment(rank, world_size), timedelta", '"gloo", timedelta'),
    breaks=tests_of(SETUP),
    fails=["setup_refuses_what_cannot_work"],
)

setup_opens_a_store_on_every_rank = edit(
    SETUP,
    """Without an agent's store, each of your ranks tried to open one at the same port. Only one can: rank 0 opens it,
    and the others are its clients.""",
    ("opens = rank == 0 and os", "opens = os"),
    breaks=tests_of(SETUP),
)
