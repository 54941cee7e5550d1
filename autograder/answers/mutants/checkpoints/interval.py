"""Wrong answers to lesson 16, exercise 5."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

INTERVAL = "16-ex5-interval"
BORDER, BEST = ["what_ends_with_a_failure_counts"], ["the_interval_loses_least"]
END = "            end = clock + (work - saved if is_last else interval + save_seconds)\n"
LAST = "    return low * mean_seconds_between_failures\n"
RATIO = "save_seconds / mean_seconds_between_failures"


# ---- simulate ----

a_save_that_ends_with_the_failure_is_lost = edit(
    INTERVAL,
    """A save that ends at the very moment of a failure is complete, and so is the work that it holds. Your simulation
    lost both.""",
    ("            if end > failure:\n", "            if end >= failure:\n"),
    breaks=tests_of(INTERVAL),
    fails=BORDER,
)

work_that_ends_with_the_failure_is_lost = edit(
    INTERVAL,
    """When the last second of work ends at the moment of a failure, the run is over. Yours restarted once more.""",
    ("            if end > failure:\n", "            if end > failure or (is_last and end == failure):\n"),
    breaks=tests_of(INTERVAL),
    fails=BORDER,
)

a_failure_as_something_ends_is_overlooked = edit(
    INTERVAL,
    """You passed over a failure that comes at the very moment when a save or a restart ends. What has ended is
    complete, but the failure still costs a restart.""",
    (
        "        clock = failure + restart_seconds\n",
        "        if failure != clock:\n            clock = failure + restart_seconds\n",
    ),
    breaks=tests_of(INTERVAL),
    fails=BORDER,
)

failures_are_taken_out_of_the_list = edit(
    INTERVAL,
    """Your simulate takes the failures out of the caller's list, so a second run with the same list sees none. Leave
    the list as it is.""",
    (
        "        clock = failure + restart_seconds\n",
        "        clock = failure + restart_seconds\n        del failures[:]\n",
    ),
    ("    for failure in [*failures, math.inf]:\n", "    for failure in (*failures, math.inf):\n"),
    breaks=tests_of(INTERVAL),
)

a_save_counts_before_it_ends = edit(
    INTERVAL,
    """You counted a save as soon as it had begun. A save that is killed halfway is not a checkpoint, and its interval
    is lost with it.""",
    (
        "            if end > failure:\n                break\n",
        "            if end > failure:\n"
        "                if not is_last and clock + interval <= failure:\n"
        "                    saved += interval\n"
        "                break\n",
    ),
    breaks=tests_of(INTERVAL),
)

failures_during_a_restart_are_overlooked = edit(
    INTERVAL,
    """You passed over a failure that comes during a restart. The restart begins anew at that moment.""",
    ("        while True:\n", "        if failure < clock:\n            continue\n        while True:\n"),
    breaks=tests_of(INTERVAL),
)

restarts_queue_up = edit(
    INTERVAL,
    """With a failure during a restart, you finished the first restart and then did the second. The failure breaks off
    the first restart: only the second takes its full time.""",
    ("        clock = failure + restart_seconds\n", "        clock = max(clock, failure) + restart_seconds\n"),
    breaks=tests_of(INTERVAL),
)

saves_after_the_last_piece = edit(
    INTERVAL,
    """You saved after the last piece of work as well. The run ends with the work.""",
    (END, "            end = clock + min(work - saved, interval) + save_seconds\n"),
    breaks=tests_of(INTERVAL),
)

saves_when_the_work_is_done = edit(
    INTERVAL,
    """When the work is a multiple of the interval, you saved once more at its end. The run ends with the work,
    without another save.""",
    ("            is_last = work - saved <= interval\n", "            is_last = work - saved < interval\n"),
    breaks=tests_of(INTERVAL),
)

trains_longer_than_the_work = edit(
    INTERVAL,
    """You trained a whole interval at the end, even where less work was left. The last piece may be shorter.""",
    (END, "            end = clock + (interval if is_last else interval + save_seconds)\n"),
    breaks=tests_of(INTERVAL),
)

begins_at_zero_after_a_failure = edit(
    INTERVAL,
    """After a failure you began with nothing. What the last complete save holds is not lost.""",
    (
        "        clock = failure + restart_seconds\n",
        "        clock, saved = failure + restart_seconds, 0.0\n",
    ),
    breaks=tests_of(INTERVAL),
)

nothing_is_lost = edit(
    INTERVAL,
    """You kept the work that was done since the last save. A failure loses it: only what is saved survives.""",
    (
        "        clock = failure + restart_seconds\n",
        "        saved += max(0.0, min(failure - clock, interval))\n        clock = failure + restart_seconds\n",
    ),
    breaks=tests_of(INTERVAL),
)

restarts_take_no_time = edit(
    INTERVAL,
    """You lost the work at a failure, but not the time of the restart.""",
    ("        clock = failure + restart_seconds\n", "        clock = max(clock, failure)\n"),
    breaks=tests_of(INTERVAL),
)

times_are_taken_for_gaps = edit(
    INTERVAL,
    """You took each failure time as the time since the last restart. Failure times count from the beginning of the
    run.""",
    ("            if end > failure:\n", "            if end > begin + failure:\n"),
    ("        while True:\n", "        begin = clock\n        while True:\n"),
    ("        clock = failure + restart_seconds\n", "        clock = begin + failure + restart_seconds\n"),
    breaks=tests_of(INTERVAL),
)


# ---- best_interval ----

one_term_too_few = edit(
    INTERVAL,
    """√(2δM) is the first term of the best interval. Where a save takes a tenth of the time between failures, it is
    off by a sixth: find the minimum itself.""",
    (LAST, "    return math.sqrt(2 * save_seconds * mean_seconds_between_failures)\n"),
    breaks=tests_of(INTERVAL),
    fails=BEST,
)

two_terms = edit(
    INTERVAL,
    """√(2δM) − ⅔δ is close where saves are cheap, but off by more than a thousandth where they are expensive: find the
    minimum itself.""",
    (
        LAST,
        "    return math.sqrt(2 * save_seconds * mean_seconds_between_failures) - 2 / 3 * save_seconds\n",
    ),
    breaks=tests_of(INTERVAL),
    fails=BEST,
)

the_save_is_subtracted = edit(
    INTERVAL,
    """√(2δM) − δ is only a first approximation of the time between the end of one save and the start of the next. Your
    result misses the minimum by more than a thousandth.""",
    (LAST, "    return math.sqrt(2 * save_seconds * mean_seconds_between_failures) - save_seconds\n"),
    breaks=tests_of(INTERVAL),
    fails=BEST,
)

the_restart_is_a_cost_of_saving = edit(
    INTERVAL,
    """You added the restart to the save. A restart costs the same after each failure, however often you save.""",
    (RATIO, "(save_seconds + restart_seconds) / mean_seconds_between_failures"),
    breaks=tests_of(INTERVAL),
    fails=BEST,
)

the_restart_moves_failures_apart = edit(
    INTERVAL,
    """You added the restart to the time between failures. It multiplies E by the same factor for every interval, so
    the best one does not depend on it.""",
    (RATIO, "save_seconds / (mean_seconds_between_failures + restart_seconds)"),
    (LAST, "    return low * (mean_seconds_between_failures + restart_seconds)\n"),
    breaks=tests_of(INTERVAL),
    fails=BEST,
)

the_save_is_counted_into_the_interval = edit(
    INTERVAL,
    """You returned the time from one save's beginning to the next one's. The interval is the training alone, without
    the save.""",
    (LAST, "    return low * mean_seconds_between_failures + save_seconds\n"),
    breaks=tests_of(INTERVAL),
    fails=BEST,
)

a_share_and_no_seconds = edit(
    INTERVAL,
    """You returned the interval as a share of the mean time between failures. Return it in seconds.""",
    (LAST, "    return low\n"),
    breaks=tests_of(INTERVAL),
    fails=BEST,
)
