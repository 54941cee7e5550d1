"""Lesson 05: what a data-parallel wrapper must do, seen from outside.

The models, the drivers that run inside the ranks and the oracles are the checks' own. Oracles: torch's
DistributedDataParallel on a group of its own, a single process that sees the whole batch, and sums in numpy.
What was sent, and when, is read from the ledger; the drivers mark places in it with named spans. Each rank does
everything in a fixed order, so that "started before" follows from what the code does and never from luck.
"""
