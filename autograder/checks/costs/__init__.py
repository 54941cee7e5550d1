"""Lesson 02: what must hold of the costs of communication, one function for each property.

No oracle evaluates the formula that a solution does. The times come from playing the rounds, one after the other,
in exact rational arithmetic; the crossover from two points of each of those lines; the fits from the conditions for
a minimum, in rational arithmetic too. Python's `Fraction` takes every float as the exact number that it is, so only
the student's own rounding is left to compare.
"""

from autograder.checks.costs.messages import (
    crossover_is_where_the_lines_meet,
    fit_minimizes_the_squared_errors,
    fit_refuses_what_has_no_line,
    ring_refuses_nonsense,
    ring_takes_its_rounds,
    tree_refuses_nonsense,
    tree_takes_its_rounds,
)
from autograder.checks.costs.speedup import (
    fraction_minimizes_the_squared_errors,
    fraction_refuses_what_has_no_fit,
    speedup_follows_amdahl,
    speedup_refuses_what_is_no_fraction,
)
from autograder.checks.costs.steps import (
    efficiency_is_relative_to_the_smallest_n,
    rate_climbs_in_a_straight_line,
    rate_refuses_nonsense,
    step_refuses_an_overlap_outside_0_to_1,
    step_shows_what_sticks_out,
)

__all__ = [
    "crossover_is_where_the_lines_meet",
    "efficiency_is_relative_to_the_smallest_n",
    "fit_minimizes_the_squared_errors",
    "fit_refuses_what_has_no_line",
    "fraction_minimizes_the_squared_errors",
    "fraction_refuses_what_has_no_fit",
    "rate_climbs_in_a_straight_line",
    "rate_refuses_nonsense",
    "ring_refuses_nonsense",
    "ring_takes_its_rounds",
    "speedup_follows_amdahl",
    "speedup_refuses_what_is_no_fraction",
    "step_refuses_an_overlap_outside_0_to_1",
    "step_shows_what_sticks_out",
    "tree_refuses_nonsense",
    "tree_takes_its_rounds",
]
