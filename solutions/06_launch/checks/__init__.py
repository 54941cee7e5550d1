"""Lesson 06: what must hold of a run that is restarted, one function for each property.

The oracles know what happened, because they made it happen: an attempt is killed in the middle, a model sends its own
process a signal, and a job is played whose fault was planted. Training is compared with one process without an
optimizer object. All ranks are those of `ranks.run`.
"""

from autograder.checks.launch.batches import (
    batches_follow_the_step,
    global_generator_stays,
)
from autograder.checks.launch.diagnosis import (
    differences_are_found,
    faults_are_named,
    groups_are_followed,
    slow_ranks_are_not_hung,
)
from autograder.checks.launch.names import (
    attempts_get_fresh_names,
    killed_attempts_do_no_harm,
)
from autograder.checks.launch.saving import (
    file_is_complete_at_every_moment,
    programs_in_a_file_do_not_run,
    resumed_run_goes_on,
    start_without_a_file_changes_nothing,
)
from autograder.checks.launch.setup import (
    setup_gives_each_attempt_keys_of_its_own,
    setup_refuses_what_cannot_work,
    setup_starts_what_the_environment_describes,
)
from autograder.checks.launch.stopping import (
    handler_is_put_back,
    no_rank_returns_before_the_file_is_there,
    signal_may_come_early,
    told_run_stops_and_resumes,
)

__all__ = [
    "attempts_get_fresh_names",
    "batches_follow_the_step",
    "differences_are_found",
    "faults_are_named",
    "file_is_complete_at_every_moment",
    "global_generator_stays",
    "groups_are_followed",
    "handler_is_put_back",
    "killed_attempts_do_no_harm",
    "no_rank_returns_before_the_file_is_there",
    "programs_in_a_file_do_not_run",
    "resumed_run_goes_on",
    "setup_gives_each_attempt_keys_of_its_own",
    "setup_refuses_what_cannot_work",
    "setup_starts_what_the_environment_describes",
    "signal_may_come_early",
    "slow_ranks_are_not_hung",
    "start_without_a_file_changes_nothing",
    "told_run_stops_and_resumes",
]
