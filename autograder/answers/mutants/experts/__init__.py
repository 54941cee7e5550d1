"""Wrong answers to lesson 14, the subtle ones first in each exercise."""
