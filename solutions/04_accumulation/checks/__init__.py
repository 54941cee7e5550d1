"""Lesson 04: many small batches are one big batch, in the memory of a small one.

The oracles are one forward and backward over everything in float64, sums of 16-bit gradients in float64, the mean of
all losses in one process, and the sample variance of the ranks' gradients. What a trainer of exercise 2 divides by is
written anew here.

Tolerances. Two sums of the same n terms, added in different orders, differ by at most 2·(n−1)·u·Σ|terms| or a
little more, with u = 1.1e-16 in float64 (the chapter's theorem). Here n ≤ 100, and Σ|terms| is less than 10 times the
largest gradient entry, so that 2·100·10·u = 2.2e-13, and 1e-12 is allowed.
"""
