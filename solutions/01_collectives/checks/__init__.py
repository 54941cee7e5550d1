"""Lesson 01: what the five collectives must do, and what they may cost.

The numbers that are added are small enough for their sums to be exact in their own dtype. So results are compared
with numpy's bit for bit: every order of addition gives the same sum, and addition in a smaller dtype gives another one.
What was sent is read from the ledger. Bytes and rounds are compared with those of the algorithm or, where chunks are
unequal, with the most that the algorithm needs.
"""
