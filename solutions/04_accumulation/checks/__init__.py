"""Lesson 04: many small batches are one big batch, in the memory of a small one.

`accumulate_gradients` and `shard_indices` run where their calls can be watched: how many rows go through the model,
what autograd keeps, whether the random state changes. The oracles are one forward and backward over everything in
float64, torch's own `DistributedSampler`, sums of 16-bit gradients in float64, the mean of all losses in one process,
and the sample variance of the ranks' gradients.

Tolerances. Two sums of the same n terms, added in different orders, differ by at most 2·(n−1)·u·Σ|terms| or a
little more, with u = 1.1e-16 in float64 and 6.0e-8 in float32 (the chapter's theorem). Here n ≤ 100, and Σ|terms| is
less than 10 times the largest gradient entry, so 2·100·10·u = 2.2e-13 in float64. In float32 the same bound is 1.2e-4;
roundings are of either sign, so that what occurs is nearer to √n·u: 5e-7 was the most in measurements, and the
1e-5 that is allowed leaves room for a factor of 20.
"""
