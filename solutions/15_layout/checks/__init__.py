"""Lesson 15: groups, two levels, the end of a step on a mesh, and the parts of a step's time.

Groups are compared with an array of ranks that numpy transposes, gradients with sums over all ranks in float64, sizes
and seconds with messages that are counted one by one, on machines whose links are drawn.
"""
