"""Lesson 11: schedules that are complete, fast and small, and a pipeline of real ranks that runs them.

A schedule is laid out here as a graph (an entry waits for the one before it on its stage and for what its numbers
need) whose longest path gives the times; bounds on bubble and peaks are formulas. A pipeline's gradients are compared
with torch's own on the whole model and the whole batch. Whether its ranks work at the same time is read from the order
of what they did, with the seconds replaced by the schedule's: a loaded machine cannot change that. A pipeline has
failed only if it is late by this count, and then three times by the clock as well.
"""
