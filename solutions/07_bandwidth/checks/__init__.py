"""Lesson 07: what cheaper gradients must still be, and what they may cost.

Compression is compared with numpy's sorting; error feedback with the sum of all gradients, in whole numbers bit for
bit; sums in 8 bits with the exact sum, up to what the roundings that are asked for can do; low rank with a projection
by singular vectors; DiLoCo with a copy of the weights for each rank in one process. The server's log is replayed. Bytes
are the ledger's.

Asynchronous runs differ from one to the next, so what is kept as evidence of them is what every run shares.
"""
