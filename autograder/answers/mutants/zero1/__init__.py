"""Wrong answers to lesson 08: the subtle ones first in each exercise."""
