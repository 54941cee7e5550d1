"""Lesson 11: schedules that are complete, fast and small, and a pipeline of real ranks that runs them.

A schedule is laid out here as a graph (an entry waits for the one before it on its stage and for what its numbers
need) whose longest path gives the times; bounds on bubble and peaks are formulas. A pipeline's gradients are compared
with torch's own on the whole model and the whole batch. Whether its ranks work at the same time is read from the order
of what they did, with the seconds replaced by the schedule's: a loaded machine cannot change that. A pipeline has
failed only if it is late by this count, and then three times by the clock as well.
"""

from autograder.checks.pipeline.order import (
    gpipe_fills_and_drains,
    interleaved_divides_the_bubble,
    interleaved_refuses_what_does_not_fit,
    one_f_one_b_keeps_few_alive,
    schedules_refuse_counts_below_one,
)
from autograder.checks.pipeline.overlap import stages_work_at_the_same_time
from autograder.checks.pipeline.parts import (
    few_micro_batches_are_enough,
    weight_gradients_fill_the_bubble,
    zero_bubble_refuses_counts_below_one,
)
from autograder.checks.pipeline.simulation import (
    bubble_is_the_idle_share,
    peaks_count_what_is_alive,
    simulation_starts_each_entry_at_once,
    what_cannot_run_is_refused,
)
from autograder.checks.pipeline.step import (
    backwards_let_go_of_what_they_used,
    only_neighbors_get_messages,
    pipeline_equals_the_unsplit_model,
)

__all__ = [
    "backwards_let_go_of_what_they_used",
    "bubble_is_the_idle_share",
    "few_micro_batches_are_enough",
    "gpipe_fills_and_drains",
    "interleaved_divides_the_bubble",
    "interleaved_refuses_what_does_not_fit",
    "one_f_one_b_keeps_few_alive",
    "only_neighbors_get_messages",
    "peaks_count_what_is_alive",
    "pipeline_equals_the_unsplit_model",
    "schedules_refuse_counts_below_one",
    "simulation_starts_each_entry_at_once",
    "stages_work_at_the_same_time",
    "weight_gradients_fill_the_bubble",
    "what_cannot_run_is_refused",
    "zero_bubble_refuses_counts_below_one",
]
