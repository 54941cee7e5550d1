"""Wrong answers to lesson 17: the subtle ones first in each exercise."""
