"""Lesson 17: the loop computes what one process computes, sees what breaks it, and resumes as if it had never stopped.

The oracle is a model of its own kind in this process: the notebook's given model, trained by torch's Adam on the
batches of all ranks together. What the student's loop is built from is always the reference solution's, whatever the
notebook says, unless a check breaks a piece on purpose to see whether the loop notices. Bounds are those that were
measured over seeds: losses 1e-5, norms of the gradient 1e-4 of themselves, parameters 1e-4. Whatever is resumed,
or rolled back and replayed, must be equal to the bit.
"""
