"""Wrong answers to lesson 06: the subtle ones first in each exercise."""
