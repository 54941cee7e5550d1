"""Wrong answers to lesson 03: the subtle ones first in each exercise."""
