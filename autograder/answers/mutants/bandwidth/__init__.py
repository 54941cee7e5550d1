"""Wrong answers to lesson 07: the subtle ones first in each exercise."""
