"""Wrong answers to lesson 12: the subtle ones first in each exercise."""
