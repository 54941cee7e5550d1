"""Lesson 16: checkpoints that are whole or not there, and that load whole or not at all.

What is on the disk is read by a reader of this package's own, and damaged checkpoints come from a writer of its own
(`format`). Inside a rank a hook stands before every call that changes a folder (`instruments.filesystem`). There a
process is killed, a disk is full, a copy of the folder is taken, or a line is added to a log that all ranks share,
whose order is the order of events; `durability` says what this log must show.
"""

from autograder.checks.checkpoints.background import background_errors_are_told_once, saving_goes_on_in_the_background
from autograder.checks.checkpoints.format import draw, put_manifest, scratch_folder, write_checkpoint
from autograder.checks.checkpoints.interval import (
    the_clock_runs_through_every_failure,
    the_interval_loses_least,
    what_ends_with_a_failure_counts,
)
from autograder.checks.checkpoints.kills import (
    a_killed_save_leaves_the_last_checkpoint,
    kill_driver,
    leftovers_of_a_killed_save_are_cleared,
    what_is_left,
)
from autograder.checks.checkpoints.loader import (
    other_ranks_go_on_with_the_next_batch,
    states_are_small_and_alike,
    the_last_batch_is_what_is_left,
)
from autograder.checks.checkpoints.loads import (
    loads_what_was_saved,
    manifests_are_verified,
    refuses_damage_on_every_rank,
)
from autograder.checks.checkpoints.reshard import resharding_keeps_every_byte, resharding_refuses_damage
from autograder.checks.checkpoints.rotation import rotation_keeps_one_that_loads
from autograder.checks.checkpoints.saves import (
    commits_durably_by_one_rename,
    saves_what_the_manifest_says,
    saving_fails_on_all_ranks,
)
from autograder.checks.checkpoints.shards import damaged_shards_are_refused, shard_files_hold_the_bytes

__all__ = [
    "a_killed_save_leaves_the_last_checkpoint",
    "background_errors_are_told_once",
    "commits_durably_by_one_rename",
    "damaged_shards_are_refused",
    "draw",
    "kill_driver",
    "leftovers_of_a_killed_save_are_cleared",
    "loads_what_was_saved",
    "manifests_are_verified",
    "other_ranks_go_on_with_the_next_batch",
    "put_manifest",
    "refuses_damage_on_every_rank",
    "resharding_keeps_every_byte",
    "resharding_refuses_damage",
    "rotation_keeps_one_that_loads",
    "saves_what_the_manifest_says",
    "saving_fails_on_all_ranks",
    "saving_goes_on_in_the_background",
    "scratch_folder",
    "shard_files_hold_the_bytes",
    "states_are_small_and_alike",
    "the_clock_runs_through_every_failure",
    "the_interval_loses_least",
    "the_last_batch_is_what_is_left",
    "what_ends_with_a_failure_counts",
    "what_is_left",
    "write_checkpoint",
]
