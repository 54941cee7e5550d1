"""Lesson 04: many small batches are one big batch, in the memory of a small one.

`accumulate_gradients` and `shard_indices` run where their calls can be watched: how many rows go through the model,
what autograd keeps, whether the random state changes. The oracles are one forward and backward over everything in
float64, torch's own `DistributedSampler`, sums of 16-bit gradients in float64, the mean of all losses in one process,
and the sample variance of the ranks' gradients.

Tolerances. Two sums of the same n terms, added in different orders, differ by at most 2·(n−1)·u·Σ|terms| or a
little more, with u = 1.1e-16 in float64 and 6.0e-8 in float32 (the chapter's theorem). Here n ≤ 100, and Σ|terms| is
less than 10 times the largest gradient entry, so 2·100·10·u = 2.2e-13 in float64. In float32 the same bound is 1.2e-4;
roundings are of either sign, so that what occurs is nearer to √n·u: 5e-7 was the most in measurements, and the
1e-5 that is allowed leaves room for a factor of 20.
"""

from autograder.checks.accumulation.gradients import (
    accumulation_drops_what_was_there,
    accumulation_gives_the_gradient_of_the_whole_batch,
    accumulation_keeps_one_graph,
    accumulation_leaves_model_and_data_alone,
    accumulation_refuses_what_has_no_mean,
)
from autograder.checks.accumulation.over_ranks import (
    evaluation_asks_for_each_example_once,
    evaluation_is_the_mean_over_all_examples,
    evaluation_refuses_an_empty_set,
    noise_and_signal_are_unbiased,
    noise_costs_one_all_reduce,
    noise_leaves_the_gradient_alone,
)
from autograder.checks.accumulation.shards import (
    shards_are_dealt_without_side_effects,
    shards_are_those_of_the_sampler,
    shards_refuse_what_cannot_be_dealt,
)
from autograder.checks.accumulation.sixteen_bits import (
    main_gradients_are_added_in_float32,
    main_gradients_are_float32_whatever_the_model,
    main_gradients_leave_no_grad_behind,
)

__all__ = [
    "accumulation_drops_what_was_there",
    "accumulation_gives_the_gradient_of_the_whole_batch",
    "accumulation_keeps_one_graph",
    "accumulation_leaves_model_and_data_alone",
    "accumulation_refuses_what_has_no_mean",
    "evaluation_asks_for_each_example_once",
    "evaluation_is_the_mean_over_all_examples",
    "evaluation_refuses_an_empty_set",
    "main_gradients_are_added_in_float32",
    "main_gradients_are_float32_whatever_the_model",
    "main_gradients_leave_no_grad_behind",
    "noise_and_signal_are_unbiased",
    "noise_costs_one_all_reduce",
    "noise_leaves_the_gradient_alone",
    "shards_are_dealt_without_side_effects",
    "shards_are_those_of_the_sampler",
    "shards_refuse_what_cannot_be_dealt",
]
