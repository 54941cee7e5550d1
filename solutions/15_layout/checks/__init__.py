"""Lesson 15: groups, two levels, the end of a step on a mesh, and a planner on paper.

Groups are compared with an array of ranks that numpy transposes, gradients with sums over all ranks in float64, sizes
and seconds with messages that are counted one by one. What was sent is read from the ledger, between barriers of the
drivers.
"""

from autograder.checks.layout.arithmetic import (
    operations_are_those_of_the_model,
    other_kinds_and_no_ranks_are_refused,
    sizes_make_both_times_equal,
)
from autograder.checks.layout.gradients import (
    each_gradient_is_sent_once,
    each_number_of_the_model_counts_once,
    gradients_above_the_bound_are_scaled,
    gradients_are_those_of_the_mean_over_all_tokens,
    unknown_kinds_are_refused,
)
from autograder.checks.layout.groups import (
    a_mesh_must_fill_the_world,
    every_rank_gets_its_groups,
    groups_differ_in_their_names_alone,
    groups_of_two_nodes_are_found,
    unknown_names_and_empty_axes_are_refused,
)
from autograder.checks.layout.levels import both_levels_add_up, only_a_part_crosses_nodes
from autograder.checks.layout.planner import (
    every_layout_is_tried_once,
    memory_is_weights_and_activations,
    seconds_add_up_from_their_parts,
    the_first_rule_that_fails_is_the_reason,
    what_fits_comes_fastest_first,
)

__all__ = [
    "a_mesh_must_fill_the_world",
    "both_levels_add_up",
    "each_gradient_is_sent_once",
    "each_number_of_the_model_counts_once",
    "every_layout_is_tried_once",
    "every_rank_gets_its_groups",
    "gradients_above_the_bound_are_scaled",
    "gradients_are_those_of_the_mean_over_all_tokens",
    "groups_differ_in_their_names_alone",
    "groups_of_two_nodes_are_found",
    "memory_is_weights_and_activations",
    "only_a_part_crosses_nodes",
    "operations_are_those_of_the_model",
    "other_kinds_and_no_ranks_are_refused",
    "seconds_add_up_from_their_parts",
    "sizes_make_both_times_equal",
    "the_first_rule_that_fails_is_the_reason",
    "unknown_kinds_are_refused",
    "unknown_names_and_empty_axes_are_refused",
    "what_fits_comes_fastest_first",
]
