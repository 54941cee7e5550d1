"""Lesson 03: what must hold of one training step by hand, one function for each property.

The oracles are torch's own: autograd for the gradient, the functional form of `torch.optim.Adam`, and
`torch.optim.swa_utils.get_ema_avg_fn`, all in float64. They share no line with a solution in numpy. The student's own
test is tried on steps of ours, right ones and wrong ones.

Adam hides constant factors: ten times the gradient moves the weights just as far. So the moments are compared
too, and each small function is also tried by itself.
"""

from autograder.checks.step.parts import (
    adam_follows_torch,
    adam_is_computed_in_float64,
    adam_leaves_its_inputs_alone,
    ema_follows_torch,
    ema_is_computed_in_float64,
    ema_leaves_its_inputs_alone,
    gradient_is_computed_in_float64,
    gradient_is_that_of_the_mean_loss,
    gradient_leaves_its_inputs_alone,
    mean_is_computed_in_float64,
    mean_is_over_the_workers,
    mean_leaves_its_inputs_alone,
)
from autograder.checks.step.planted import (
    averaged_updates_are_caught,
    lost_examples_are_caught,
    planted_step_adds_the_workers,
    sum_is_told_from_mean,
    wrong_divisions_are_caught,
)
from autograder.checks.step.whole import (
    step_does_not_depend_on_the_deal,
    step_follows_torch,
    step_leaves_its_inputs_alone,
    step_rejects_what_does_not_fit,
    step_takes_lists_and_any_dtype,
)

__all__ = [
    "adam_follows_torch",
    "adam_is_computed_in_float64",
    "adam_leaves_its_inputs_alone",
    "averaged_updates_are_caught",
    "ema_follows_torch",
    "ema_is_computed_in_float64",
    "ema_leaves_its_inputs_alone",
    "gradient_is_computed_in_float64",
    "gradient_is_that_of_the_mean_loss",
    "gradient_leaves_its_inputs_alone",
    "lost_examples_are_caught",
    "mean_is_computed_in_float64",
    "mean_is_over_the_workers",
    "mean_leaves_its_inputs_alone",
    "planted_step_adds_the_workers",
    "step_does_not_depend_on_the_deal",
    "step_follows_torch",
    "step_leaves_its_inputs_alone",
    "step_rejects_what_does_not_fit",
    "step_takes_lists_and_any_dtype",
    "sum_is_told_from_mean",
    "wrong_divisions_are_caught",
]
