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
from autograder.checks.ddp.reducer import (
    a_bucket_is_averaged_in_one_asynchronous_all_reduce,
    the_reducer_starts_buckets_in_their_order,
)
from autograder.checks.ddp.syncing import (
    ddp_sends_each_bucket_once_while_backward_runs,
    ddp_syncs_once_for_many_micro_batches,
)
from autograder.checks.ddp.training import (
    ddp_trains_like_one_process_and_like_torch,
)
from autograder.checks.ddp.unused import (
    ddp_counts_unused_parameters_as_zeros,
    ddp_never_leaves_a_mystery,
)

__all__ = [
    "a_bucket_is_averaged_in_one_asynchronous_all_reduce",
    "broadcast_parameters_copies_all_parameters_and_buffers",
    "broadcast_parameters_refuses_a_source_that_is_no_rank",
    "ddp_counts_unused_parameters_as_zeros",
    "ddp_never_leaves_a_mystery",
    "ddp_sends_each_bucket_once_while_backward_runs",
    "ddp_syncs_once_for_many_micro_batches",
    "ddp_trains_like_one_process_and_like_torch",
    "make_buckets_follows_its_rules",
    "make_buckets_refuses_a_size_below_one",
    "the_reducer_starts_buckets_in_their_order",
]
