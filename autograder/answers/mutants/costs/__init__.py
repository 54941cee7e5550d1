"""Wrong answers to lesson 02: the subtle ones first in each exercise."""
