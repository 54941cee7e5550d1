"""Lesson 12: a layer that is split over ranks must be the unsplit one, in numbers, memory and communication.

The oracles run in this process: formulas over all ranks' inputs for the operators, torch's own autograd through an
unsplit block for the layers. The unsplit blocks are this package's own and have only the attributes that the
statements name; their attention goes head by head. Numbers of the operators are multiples of 1/8, so their sums
are exact. What was sent is read from the ledger between barriers: while a module is built, forward, backward.
"""
