"""Lesson 13: a sequence that is dealt out to ranks must be the sequence in one process.

Attention is compared with a loop over queries in float64, its gradients with torch's own attention on the whole
sequence, losses with sums over tokens. That a block is computed while the next one travels is read from stretches that
mark each product of matrices; what is alive, from a count of storages.
"""
