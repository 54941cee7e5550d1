"""Wrong answers to lesson 16: the subtle ones first in each exercise."""
