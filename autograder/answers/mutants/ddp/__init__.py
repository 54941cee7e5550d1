"""Wrong answers to lesson 05: the subtle ones first in each exercise."""
