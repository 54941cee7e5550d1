"""Lesson 16: checkpoints that are whole or not there, and that load whole or not at all.

What is on the disk is read by a reader of this package's own, and damaged checkpoints come from a writer of its own
(`format`). Inside a rank a hook stands before every call that changes a folder (`instruments.filesystem`). There a
process is killed, a disk is full, a copy of the folder is taken, or a line is added to a log that all ranks share,
whose order is the order of events; `durability` says what this log must show.
"""
