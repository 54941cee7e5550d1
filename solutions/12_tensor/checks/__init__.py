"""Lesson 12: a layer that is split over ranks must be the unsplit one, in numbers and communication.

The oracles run in this process: formulas over all ranks' inputs for the operators, torch's own autograd through an
unsplit block, in float64, for the layers. Numbers of the operators are multiples of 1/8, so their sums are exact.
"""
