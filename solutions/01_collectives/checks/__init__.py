"""Lesson 01: what the five collectives must do, and what they may cost.

The numbers that are added are small enough for their sums to be exact in float32, so that every order of addition gives
the same result, bit for bit. What was sent is read from the ledger: bytes, rounds and neighbors are compared with those
of the algorithm or, where chunks are unequal, with the most that the algorithm needs.
"""
