"""Lesson 06: a script that starts its group, trains, resumes and can be launched.

Most properties are tried inside `ranks.run`: a launcher is nothing but an environment and a store, and both
can be played there in a tenth of a second. What only the real thing shows is tried with the real thing: one
run of torchrun's own agent with forked ranks, one real `torchrun` whose rank 1 is killed, one real `mp.spawn`.

Each function is graded alone: for a script, the others come from the solution (`script_with`).
"""

from autograder.checks.launch.cleanup import (
    cleanup_ends_the_group,
)
from autograder.checks.launch.setup import (
    setup_gives_each_attempt_keys_of_its_own,
    setup_refuses_what_cannot_work,
    setup_starts_what_the_environment_describes,
    setup_survives_a_restart,
)
from autograder.checks.launch.spawning import (
    launching_brings_back_what_rank_0_returns,
    launching_works_with_fresh_processes,
)
from autograder.checks.launch.training import (
    training_equals_one_process,
    training_resumes,
    training_survives_torchrun_and_a_kill,
)

__all__ = [
    "cleanup_ends_the_group",
    "launching_brings_back_what_rank_0_returns",
    "launching_works_with_fresh_processes",
    "setup_gives_each_attempt_keys_of_its_own",
    "setup_refuses_what_cannot_work",
    "setup_starts_what_the_environment_describes",
    "setup_survives_a_restart",
    "training_equals_one_process",
    "training_resumes",
    "training_survives_torchrun_and_a_kill",
]
