"""Wrong answers to lesson 11: the subtle ones first in each exercise."""
