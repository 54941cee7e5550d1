"""Lesson 08: a sharded optimizer must do what the unsharded one does, in a shard's memory, for an all-reduce's bytes.

The oracle is torch's own optimizer over whole float32 parameters, stepped in this process with the mean of the
gradients that the ranks are given. Gradients are small multiples of 1/8, so that their sums are exact and a
difference comes from the optimizer; the bound on what is left, `STEP_ERROR`, is a few roundings of float32 for each
step. What was sent is read from the ledger, what is held by walking over the student's object inside the rank.
"""
