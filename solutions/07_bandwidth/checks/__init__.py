"""Lesson 07: what cheaper gradients must still be, and what they may cost.

Compression is compared entry for entry with numpy's sorting; error feedback with the sum of all gradients, in
small whole numbers bit for bit; PowerSGD with one process that projects the ranks' mean by a singular value
decomposition; eight-bit sums with the same rounding in float64; DiLoCo with a copy of the weights for each rank in one
process and the momentum summed anew in each round. The server's log is replayed. Bytes are the ledger's.

Asynchronous runs differ from one to the next, so what is kept as evidence of them is what every run shares:
with one worker everything, and with two workers what a schedule of gates forces.
"""
