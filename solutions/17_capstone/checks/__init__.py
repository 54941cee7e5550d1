"""Lesson 17: the loop computes what one process computes, sees what breaks it, and resumes as if it had never stopped.

The oracle is a model of its own kind in this process: the notebook's given model, trained by torch's Adam on the
batches of all ranks together. What the student's loop is built from is always the reference solution's, whatever the
notebook says, unless a check breaks a piece on purpose to see whether the loop notices. Bounds are those that were
measured over seeds: losses 1e-5, norms of the gradient 1e-4 of themselves, parameters 1e-4. Whatever is resumed,
or rolled back and replayed, must be equal to the bit.
"""

from autograder.checks.capstone.batches import (
    batches_are_windows_of_the_corpus,
    corpus_is_one_cycle_repeated,
)
from autograder.checks.capstone.finding import (
    a_healthy_run_is_not_accused,
    each_fault_is_found,
    the_first_moment_counts,
)
from autograder.checks.capstone.guard import (
    a_hopeless_run_is_given_up,
    guard_judges_by_the_median,
    rollbacks_restore_the_last_snapshot,
    spikes_are_taken_back,
)
from autograder.checks.capstone.invariants import (
    checkpoints_are_read_back,
    memory_is_compared_before_forward,
    step_invariants_are_told_by_all_ranks,
)
from autograder.checks.capstone.train import (
    a_watched_run_is_stopped_as_well,
    broken_invariants_stop_every_rank,
    train_refuses_what_makes_no_sense,
    training_follows_one_process,
)
from autograder.checks.capstone.trainer import (
    steps_follow_one_process,
    steps_send_the_gradient_once,
    trainer_refuses_odd_micro_batches,
)
from autograder.checks.capstone.verify import (
    resume_is_verified_or_the_difference_told,
)
from autograder.checks.capstone.watch import (
    one_clock_decides_for_all,
    training_is_watched_and_saved_by_the_clock,
)

__all__ = [
    "a_healthy_run_is_not_accused",
    "a_hopeless_run_is_given_up",
    "a_watched_run_is_stopped_as_well",
    "batches_are_windows_of_the_corpus",
    "broken_invariants_stop_every_rank",
    "checkpoints_are_read_back",
    "corpus_is_one_cycle_repeated",
    "each_fault_is_found",
    "guard_judges_by_the_median",
    "memory_is_compared_before_forward",
    "one_clock_decides_for_all",
    "resume_is_verified_or_the_difference_told",
    "rollbacks_restore_the_last_snapshot",
    "spikes_are_taken_back",
    "step_invariants_are_told_by_all_ranks",
    "steps_follow_one_process",
    "steps_send_the_gradient_once",
    "the_first_moment_counts",
    "train_refuses_what_makes_no_sense",
    "trainer_refuses_odd_micro_batches",
    "training_follows_one_process",
    "training_is_watched_and_saved_by_the_clock",
]
