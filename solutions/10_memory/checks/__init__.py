"""Lesson 10: what a step keeps until backward, seen from outside.

The oracle of a function that recomputes or moves tensors is the same module without it, compared bit for bit. Bytes
that are predicted are compared with a list of the tensors; bytes that are alive are counted where the submission runs
(`instruments.memory.LiveBytes`), whoever holds them. Formats of few bits are compared with torch's own casts, and with
a table of all their numbers.
"""

from autograder.checks.memory.formats import (
    gradients_add_up_in_float32,
    no_cast_does_the_work,
    one_all_reduce_carries_all,
    other_formats_round_as_well,
    ranks_get_the_mean_gradient,
    rounding_is_torchs,
)
from autograder.checks.memory.offloading import (
    each_saved_tensor_is_put_once,
    gradients_stay_bit_for_bit,
    the_device_keeps_the_output_alone,
    the_host_is_empty_in_the_end,
    what_is_large_goes_to_the_host,
)
from autograder.checks.memory.predict import (
    a_layer_follows_its_formula,
    a_layer_refuses_what_makes_no_sense,
    a_stage_holds_its_micro_batches,
    a_stage_refuses_what_makes_no_sense,
)
from autograder.checks.memory.recompute import (
    autocast_is_as_in_the_forward,
    the_graph_keeps_the_inputs_alone,
    the_inputs_go_with_backward,
    the_module_runs_once_more_for_backward,
    training_is_the_same_bit_for_bit,
)
from autograder.checks.memory.saved import (
    a_layer_keeps_what_its_formula_says,
    each_storage_counts_once,
    the_function_runs_as_without_it,
)
from autograder.checks.memory.segments import (
    each_layer_runs_as_often_as_its_segment,
    memory_follows_the_plan,
    the_best_cut_has_the_least_peak,
    what_cannot_be_cut_is_refused,
)

__all__ = [
    "a_layer_follows_its_formula",
    "a_layer_keeps_what_its_formula_says",
    "a_layer_refuses_what_makes_no_sense",
    "a_stage_holds_its_micro_batches",
    "a_stage_refuses_what_makes_no_sense",
    "autocast_is_as_in_the_forward",
    "each_layer_runs_as_often_as_its_segment",
    "each_saved_tensor_is_put_once",
    "each_storage_counts_once",
    "gradients_add_up_in_float32",
    "gradients_stay_bit_for_bit",
    "memory_follows_the_plan",
    "no_cast_does_the_work",
    "one_all_reduce_carries_all",
    "other_formats_round_as_well",
    "ranks_get_the_mean_gradient",
    "rounding_is_torchs",
    "the_best_cut_has_the_least_peak",
    "the_device_keeps_the_output_alone",
    "the_function_runs_as_without_it",
    "the_graph_keeps_the_inputs_alone",
    "the_host_is_empty_in_the_end",
    "the_inputs_go_with_backward",
    "the_module_runs_once_more_for_backward",
    "training_is_the_same_bit_for_bit",
    "what_cannot_be_cut_is_refused",
    "what_is_large_goes_to_the_host",
]
