"""Exercise 6: the bytes that a rank holds."""

from __future__ import annotations

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import ceil_div, count_of_ranks, expect_raises, fail


@check("08-ex6-memory")
def memory_follows_the_table(memory_per_rank, *, rng):
    """Each stage's bytes are exact for any size and any number of ranks; wrong arguments are a ValueError."""
    sizes = [0, 1, 10, int(rng.integers(100, 10**6)), 7 * 10**9, 10**17 + 3]
    for parameters in sizes:
        for world_size in (1, 3, 4, 64):
            shard = ceil_div(parameters, world_size)
            table = [16 * parameters, 4 * parameters + 12 * shard, 2 * parameters + 14 * shard, 16 * shard]
            got = [memory_per_rank(parameters, world_size, stage) for stage in range(4)]
            for stage in range(4):
                if not isinstance(got[stage], (int, np.integer)) or got[stage] != table[stage]:
                    case, shown = f"{parameters} parameters, {count_of_ranks(world_size)}", [str(g) for g in got]
                    text = f"memory_per_rank returned {got[stage]} for stage {stage}, expected {table[stage]}"
                    fail(text, case, shown)
    wrong = [((-1, 2, 1), "parameters"), ((10, 0, 1), "world_size"), ((10, 2, 4), "stage"), ((10, 2, -1), "stage")]
    for arguments, name in wrong:
        expect_raises(f"memory_per_rank{arguments}", memory_per_rank, *arguments, error=ValueError, mentions=name)
