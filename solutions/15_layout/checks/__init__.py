"""Lesson 15: groups, two levels, the end of a step on a mesh, and a planner on paper.

Groups are compared with an array of ranks that numpy transposes, gradients with sums over all ranks in float64, sizes
and seconds with messages that are counted one by one. What was sent is read from the ledger, between barriers of the
drivers.
"""
