"""Wrong answers to lesson 10, the subtle ones first in each exercise."""
