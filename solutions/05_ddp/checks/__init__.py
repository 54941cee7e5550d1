"""Lesson 05: what a data-parallel wrapper must do, seen from outside.

The models, the drivers that run inside the ranks and the oracles are the checks' own. Oracles: torch's
DistributedDataParallel on a group of its own, a single process that sees the whole batch, and sums in numpy.
What was sent, and when, is read from the ledger; the drivers mark places in it with named spans. Each rank does
everything in a fixed order, so that "started before" follows from what the code does and never from luck.
"""

from autograder.checks.ddp.broadcast import (
    broadcast_parameters_copies_all_parameters_and_buffers,
    broadcast_parameters_refuses_a_source_that_is_no_rank,
)
from autograder.checks.ddp.buckets import (
    make_buckets_follows_its_rules,
    make_buckets_refuses_a_size_below_one,
)
from autograder.checks.ddp.quiet import (
    finishing_twice_sends_nothing,
    looking_decides_nothing,
    no_sync_restores_what_was,
    no_sync_sends_nothing_and_adds_up,
)
from autograder.checks.ddp.reducer import (
    a_bucket_is_averaged_in_one_asynchronous_all_reduce,
    missing_gradients_count_as_zeros,
    the_reducer_knows_what_is_missing,
    the_reducer_refuses_a_second_mark,
    the_reducer_starts_buckets_in_their_order,
)
from autograder.checks.ddp.syncing import (
    ddp_hooks_call_on_gradient,
    ddp_sends_each_bucket_once_while_backward_runs,
)
from autograder.checks.ddp.training import (
    ddp_trains_like_one_process_and_like_torch,
)
from autograder.checks.ddp.unused import (
    a_rank_that_skips_stops_the_step,
    unused_gradients_count_as_zeros,
    unused_parameters_are_named,
    what_nobody_used_keeps_none,
)

__all__ = [
    "a_bucket_is_averaged_in_one_asynchronous_all_reduce",
    "a_rank_that_skips_stops_the_step",
    "broadcast_parameters_copies_all_parameters_and_buffers",
    "broadcast_parameters_refuses_a_source_that_is_no_rank",
    "ddp_hooks_call_on_gradient",
    "ddp_sends_each_bucket_once_while_backward_runs",
    "ddp_trains_like_one_process_and_like_torch",
    "finishing_twice_sends_nothing",
    "looking_decides_nothing",
    "make_buckets_follows_its_rules",
    "make_buckets_refuses_a_size_below_one",
    "missing_gradients_count_as_zeros",
    "no_sync_restores_what_was",
    "no_sync_sends_nothing_and_adds_up",
    "the_reducer_knows_what_is_missing",
    "the_reducer_refuses_a_second_mark",
    "the_reducer_starts_buckets_in_their_order",
    "unused_gradients_count_as_zeros",
    "unused_parameters_are_named",
    "what_nobody_used_keeps_none",
]
