"""Lesson 02: what must hold of the costs of communication, one function for each property.

No oracle evaluates the formula of a solution. Times come from playing the rounds, one after the other, in exact
rational arithmetic: who sends how many bytes, and through which port. Python's `Fraction` takes every float as the
exact number that it is, so a comparison has to allow for the student's own rounding only.
"""
