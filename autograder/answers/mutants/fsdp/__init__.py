"""Wrong answers to lesson 09: the subtle ones first in each exercise."""
