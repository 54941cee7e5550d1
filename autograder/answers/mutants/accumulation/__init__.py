"""Wrong answers to lesson 04: the subtle ones first in each exercise."""
