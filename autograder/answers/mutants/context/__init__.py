"""Wrong answers to lesson 13: the subtle ones first in each exercise."""
