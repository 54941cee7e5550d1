"""Lesson 02: what must hold of the costs of communication, one function for each property.

No oracle evaluates the formula of a solution. The times come from playing the rounds, one after the other, in exact
rational arithmetic: who sends how many bytes, and through which port. Python's `Fraction` takes every float as the
exact number that it is, so a comparison has to allow for the student's own rounding only.
"""

from autograder.checks.costs.messages import (
    each_change_is_judged_by_itself,
    halving_needs_a_power_of_two,
    nonsense_is_refused,
    times_are_those_of_the_rounds,
    two_levels_are_played,
    two_levels_refuse_nonsense,
)
from autograder.checks.costs.steps import (
    computation_takes_six_operations,
    rate_climbs_in_a_straight_line,
    rate_refuses_nonsense,
    shares_outside_their_range_are_refused,
    square_root_rule_scales_by_the_root,
    step_shows_what_sticks_out,
    tokens_are_the_fewest_that_hide,
)

__all__ = [
    "computation_takes_six_operations",
    "each_change_is_judged_by_itself",
    "halving_needs_a_power_of_two",
    "nonsense_is_refused",
    "rate_climbs_in_a_straight_line",
    "rate_refuses_nonsense",
    "shares_outside_their_range_are_refused",
    "square_root_rule_scales_by_the_root",
    "step_shows_what_sticks_out",
    "times_are_those_of_the_rounds",
    "tokens_are_the_fewest_that_hide",
    "two_levels_are_played",
    "two_levels_refuse_nonsense",
]
