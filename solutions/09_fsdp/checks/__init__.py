"""Lesson 09: sharded units and their wrapper, seen from outside.

The oracle is the plain module in one process: on the whole batch with torch's own optimizer for float32, on each
rank's part with the parameters cast for bf16. Shards are put together here, by the layout that the statement fixes.
What was sent is read from the ledger, cut at barriers; what is alive is counted inside a rank
(`instruments.memory.LiveBytes`), so it does not matter who holds it.
"""
