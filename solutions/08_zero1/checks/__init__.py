"""Lesson 08: a sharded optimizer must do what the unsharded one does, in a shard's memory, for an all-reduce's bytes.

The oracle is torch's own optimizer over whole float32 parameters, stepped in this process with the mean of the
gradients that the ranks are given. Gradients are small multiples of 1/8, so that their sums are exact and a
difference comes from the optimizer; the bound on what is left, `STEP_ERROR`, is a few roundings of float32 for each
step. What was sent is read from the ledger, what is held by walking over the student's object inside the rank.
"""

from autograder.checks.zero1.buckets import (
    buckets_hold_no_more_than_predicted,
    each_bucket_is_one_reduce_scatter,
    missing_gradients_keep_the_order,
    shards_are_those_of_each_buckets_mean,
    the_peak_is_predicted,
)
from autograder.checks.zero1.flat import (
    bounds_cut_into_equal_shards,
    bounds_refuse_what_makes_no_sense,
    flatten_lays_numbers_end_to_end,
)
from autograder.checks.zero1.gradient import gradient_is_reduced_once, shards_are_those_of_the_mean_gradient
from autograder.checks.zero1.memory import memory_follows_the_table
from autograder.checks.zero1.state import restored_goes_on_bit_for_bit, state_is_unpadded_copies
from autograder.checks.zero1.step import (
    a_changed_rate_holds_from_the_next_step,
    clipping_uses_the_global_norm,
    gradients_stay_as_they_were,
    masters_keep_what_bf16_loses,
    state_is_a_shard,
    steps_follow_the_unsharded_optimizer,
)

__all__ = [
    "a_changed_rate_holds_from_the_next_step",
    "bounds_cut_into_equal_shards",
    "bounds_refuse_what_makes_no_sense",
    "buckets_hold_no_more_than_predicted",
    "clipping_uses_the_global_norm",
    "each_bucket_is_one_reduce_scatter",
    "flatten_lays_numbers_end_to_end",
    "gradient_is_reduced_once",
    "gradients_stay_as_they_were",
    "masters_keep_what_bf16_loses",
    "memory_follows_the_table",
    "missing_gradients_keep_the_order",
    "restored_goes_on_bit_for_bit",
    "shards_are_those_of_each_buckets_mean",
    "shards_are_those_of_the_mean_gradient",
    "state_is_a_shard",
    "state_is_unpadded_copies",
    "steps_follow_the_unsharded_optimizer",
    "the_peak_is_predicted",
]
