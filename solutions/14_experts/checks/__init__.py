"""Lesson 14: a layer whose experts are spread over ranks must be the layer with all experts in one process.

The oracles run in this process: numpy for the router and the plan, torch's own autograd through a layer that holds all
experts and goes token by token for everything else. Probabilities are drawn so that no two that are compared for a
choice come near each other. What was sent is read from the ledger, between barriers of the drivers.
"""

from autograder.checks.experts.balance import (
    one_all_reduce_tells_the_counts,
    the_balance_is_that_of_all_tokens,
    the_bias_follows_all_counts,
)
from autograder.checks.experts.exchange import (
    gradients_go_back_where_rows_came_from,
    nothing_else_is_sent,
    rows_arrive_in_the_order_of_ranks,
)
from autograder.checks.experts.gradients import gradients_are_those_of_the_mean_loss, shared_numbers_are_reduced_once
from autograder.checks.experts.layer import (
    experts_must_fit_the_ranks,
    experts_without_rows_take_part,
    full_experts_drop_the_rest,
    rows_travel_four_times,
    the_bias_is_a_registered_buffer,
    the_layer_equals_one_process,
)
from autograder.checks.experts.routing import (
    a_factor_must_be_positive,
    a_k_out_of_range_is_refused,
    capacity_is_rounded_up,
    gradients_flow_through_the_gates,
    places_are_kept_in_order,
    the_most_probable_are_chosen,
)

__all__ = [
    "a_factor_must_be_positive",
    "a_k_out_of_range_is_refused",
    "capacity_is_rounded_up",
    "experts_must_fit_the_ranks",
    "experts_without_rows_take_part",
    "full_experts_drop_the_rest",
    "gradients_are_those_of_the_mean_loss",
    "gradients_flow_through_the_gates",
    "gradients_go_back_where_rows_came_from",
    "nothing_else_is_sent",
    "one_all_reduce_tells_the_counts",
    "places_are_kept_in_order",
    "rows_arrive_in_the_order_of_ranks",
    "rows_travel_four_times",
    "shared_numbers_are_reduced_once",
    "the_balance_is_that_of_all_tokens",
    "the_bias_follows_all_counts",
    "the_bias_is_a_registered_buffer",
    "the_layer_equals_one_process",
    "the_most_probable_are_chosen",
]
