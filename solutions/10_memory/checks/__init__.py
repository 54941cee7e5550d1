"""Lesson 10: what a step keeps until backward, seen from outside.

The oracle of a function that recomputes or moves tensors is the same module without it, compared bit for bit. Bytes
that are predicted are compared with a list of the tensors; bytes that are alive are counted where the submission runs
(`instruments.memory.LiveBytes`), whoever holds them. The cheapest plan comes from adding one layer after the other, and
a scaled step from one in float64. Formats of few bits are compared with torch's own casts, and with a table of all
their numbers.
"""
