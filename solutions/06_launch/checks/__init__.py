"""Lesson 06: what must hold of a run that is restarted, one function for each property.

The oracles know what happened, because they made it happen: an attempt is killed in the middle, a model sends its own
process a signal, and a job is played whose fault was planted. Training is compared with one process without an
optimizer object. All ranks are those of `ranks.run`.
"""
