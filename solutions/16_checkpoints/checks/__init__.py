"""Lesson 16: checkpoints that are whole or not there, and that load whole or not at all.

What is on the disk is read, and damaged checkpoints are written, by `format`, which shares no code with the answers.
Inside a rank a hook stands before every call that changes a folder (`instruments.filesystem`). There a process is
killed, a disk is full, a copy of the folder is taken, or a line is added to a log that all ranks share; `durability`
says what this log must show. A folder is looked at when all ranks have ended, by `Case.sees`, outside of them.
"""
