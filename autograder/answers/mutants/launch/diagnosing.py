"""Wrong answers to lesson 06, exercise 6: diagnose."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

DIAGNOSE = "06-ex6-diagnose"


# ---- 6 · diagnose ----


waits_by_the_last_call = edit(
    DIAGNOSE,
    """You judge by its last call whether a rank waits. An operation that it called earlier may still be open, while a
    later one, of another group, is completed. Such a rank waits, too: look at all its calls.""",
    (
        """            waiting |= {rank} if entry["state"] != "completed" else set()
""",
        """        last = dump["entries"][-1:] if dump else []
        waiting |= {rank for entry in last if entry["state"] != "completed"}
""",
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

only_scheduled_calls_excuse = edit(
    DIAGNOSE,
    """You count a rank as waiting only while its call is scheduled. A call that has started is not completed either,
    and its rank waits.""",
    ('if entry["state"] != "completed" else set()', 'if entry["state"] == "scheduled" else set()'),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

scheduled_is_not_called = edit(
    DIAGNOSE,
    """You leave out the calls that are only scheduled. Their rank has called the operation and waits in it, and others
    that are missing there keep it waiting: scheduled counts like started.""",
    (
        "            calls.setdefault(",
        """            if entry["state"] == "scheduled":
                waiting.add(rank)
                continue
            calls.setdefault(""",
    ),
    breaks=tests_of(DIAGNOSE),
)

by_the_last_call_of_the_operation = edit(
    DIAGNOSE,
    """You order the operations by the last call of each. The first one is the one whose first call is the earliest,
    however late the others came to it.""",
    (
        "sorted(stuck, key=first_call)",
        'sorted(stuck, key=lambda key: max(entry["time_created_ns"] for entry in calls[key].values()))',
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

the_dead_are_missing_everywhere = edit(
    DIAGNOSE,
    """For a rank without a dump you name the first operation that anybody waits in. The dead rank may not be in that
    group: name the first that it should have called itself.""",
    (
        "    for key in sorted(stuck, key=first_call):\n",
        """    for key in sorted(stuck, key=first_call):
        if None in dumps:
            return "dead", dumps.index(None), (*key, next(iter(calls[key].values()))["profiling_name"])
""",
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

silent_is_dead = edit(
    DIAGNOSE,
    """You call a rank dead that has called nothing. It has left a dump, so its process is there: it hangs before its
    first operation.""",
    ("if dumps[rank] is None:", 'if not dumps[rank] or not dumps[rank]["entries"]:'),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

silent_is_an_error = edit(
    DIAGNOSE,
    """You look for the longest of a rank's waits, and there is none: it has called nothing yet. Such a rank hangs.""",
    (", default=0)", ")"),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

lags_of_all_ranks = edit(
    DIAGNOSE,
    """You compare with the longest wait for any rank. That another rank was late once says nothing about this one: only
    the waits for the rank itself count.""",
    (
        "- first_call(one) for one, by in calls.items() if rank in by]",
        "- first_call(one) for one, by in calls.items() for rank in by]",
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

lags_where_all_are_seen = edit(
    DIAGNOSE,
    """You count an earlier wait only if all members' calls are still in their buffers. One buffer may have lost its
    entry, and the others' entries still show how long they waited.""",
    ("if rank in by]", "if rank in by and len(by) == len(members[one[0]])]"),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

lags_of_the_same_operation = edit(
    DIAGNOSE,
    """You look for earlier waits only in operations of the same name. All that the rank called count, of any group and
    any name.""",
    ("if rank in by]", 'if rank in by and by[rank]["profiling_name"] == operation[2]]'),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

sizes_of_the_first_tensor = edit(
    DIAGNOSE,
    """You compare the sizes of the first tensor only. An operation may take several: compare input_sizes as it
    stands.""",
    ('(entry["profiling_name"], entry["input_sizes"])', '(entry["profiling_name"], entry["input_sizes"][:1])'),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

all_must_have_come_to_differ = edit(
    DIAGNOSE,
    """You look for a difference only where all members have called. One may be missing because it waits for the rank at
    fault elsewhere: two others that agree are enough.""",
    ("if len(others) > 1 and", "if len(others) == len(members[key[0]]) - 1 > 1 and"),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

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

waiting_has_no_excuse = edit(
    DIAGNOSE,
    """You name a rank that waits in an operation of another group. It is missing because it waits there. The culprit is
    missing and waits for nobody: leave out each rank that has a call that is not completed, started or scheduled.""",
    (" - called.keys() - waiting", " - called.keys()"),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

only_started_calls_excuse = edit(
    DIAGNOSE,
    """You count a rank as waiting only when its call has started. A call that is scheduled is not completed either, and
    its rank waits.""",
    ('if entry["state"] != "completed" else set()', 'if entry["state"] == "started" else set()'),
    breaks=tests_of(DIAGNOSE),
    fails=["groups_are_followed"],
)

numbers_of_the_sizes_only = edit(
    DIAGNOSE,
    """You compare how many numbers the inputs have. Tensors of 2 × 4 and of 8 numbers differ, too: compare input_sizes
    as it stands.""",
    (
        '(entry["profiling_name"], entry["input_sizes"])',
        '(entry["profiling_name"], [torch.Size(size).numel() for size in entry["input_sizes"]])',
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

less_than_three_times = edit(
    DIAGNOSE,
    """You call a rank hung when the others have waited exactly three times as long as before. At most three times is
    slow: compare with <=.""",
    ("<= 3 * max(lags, default=0)", "< 3 * max(lags, default=0)"),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

twice_is_enough = edit(
    DIAGNOSE,
    """Your limit is less than three times the longest wait before.""",
    ("<= 3 * max(lags, default=0)", "<= 2 * max(lags, default=0)"),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

waits_since_the_last_call = edit(
    DIAGNOSE,
    """You count the wait from the last call of the others. It begins with the first call.""",
    ("now - first_call(key)", 'now - max(entry["time_created_ns"] for entry in calls[key].values())'),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

waits_since_its_own_last_call = edit(
    DIAGNOSE,
    """You count the wait from the last call of the rank that is missing. The others have not waited since then. Their
    wait begins with the first call of the operation that it did not call.""",
    (
        "now - first_call(key)",
        'now - max((by[rank]["time_created_ns"] for by in calls.values() if rank in by), default=first_call(key))',
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

lag_behind_the_last_one = edit(
    DIAGNOSE,
    """You measure earlier waits from the call that came last before the rank's own. The others have waited since the
    first call.""",
    (
        '[by[rank]["time_created_ns"] - first_call(one) for',
        '[by[rank]["time_created_ns"] - max([e["time_created_ns"] for r, e in by.items() if r != rank] or [now]) for',
    ),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

lags_of_this_group_only = edit(
    DIAGNOSE,
    """You look for earlier waits only in the group of the stuck operation. The others may have waited for this rank in
    another group: all operations that it called count.""",
    ("if rank in by]", "if rank in by and one[0] == key[0]] or [0]"),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

latest_lag_only = edit(
    DIAGNOSE,
    """You compare with the latest wait for this rank. The longest counts: the statement says, as long as they ever
    waited.""",
    ("3 * max(lags, default=0)", "3 * lags[-1]"),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

mean_lag = edit(
    DIAGNOSE,
    """You compare with the mean of the earlier waits. The longest counts: the statement says, as long as they ever
    waited.""",
    ("3 * max(lags, default=0)", "3 * sum(lags) / len(lags)"),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
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
    """For a rank that differs you return the operation that it called. Return the one that the others called, which it
    should have called, too.""",
    ('return "different", rank, (*key, others[0][0])', 'return "different", rank, (*key, mine[0])'),
    breaks=tests_of(DIAGNOSE),
    fails=["differences_are_found"],
)

patience_of_the_watchdog = edit(
    DIAGNOSE,
    """You call a rank hung when the others have waited for timeout_ms, the watchdog's limit. Before that, a rank that
    was never late and now is a minute behind is not slow but hung: compare with how late it was before.""",
    ("<= 3 * max(lags, default=0)", "<= 600_000 * 1_000_000"),
    breaks=tests_of(DIAGNOSE),
)

everybody_hangs = edit(
    DIAGNOSE,
    """You call every rank hung that is missing and not dead. If it has always been as late as it is now, it is slow: a
    thermal throttle or a bad disk, not a deadlock.""",
    ('return "slow" if now - first_call(key) <= 3 * max(lags, default=0) else "hung", rank', 'return "hung", rank'),
    breaks=tests_of(DIAGNOSE),
    fails=["slow_ranks_are_not_hung"],
)

a_second_is_slow = edit(
    DIAGNOSE,
    """You use a limit of your own, in seconds. How long a long wait is depends on the job: compare with how long the
    others have waited for this rank before.""",
    ("<= 3 * max(lags, default=0)", "<= 2_000_000_000"),
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
    fails=["groups_are_followed", "differences_are_found"],
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
    """You count an operation as stuck only when its state is started. An operation that is scheduled is not completed
    either.""",
    ('if any(entry["state"] != "completed" for', 'if all(entry["state"] == "started" for'),
    breaks=tests_of(DIAGNOSE),
)
