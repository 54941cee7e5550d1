"""Wrong answers to lesson 01: the subtle ones first in each exercise."""
