"""Wrong answers to lesson 15: the subtle ones first in each exercise."""
