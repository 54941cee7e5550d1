"""Exercise 6: the bytes that a rank holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from autograder.checking.cases import Call, refused
from autograder.checking.check import check
from autograder.checking.expect import ceil_div


@check("08-ex6-memory", points=1)
def memory_follows_the_table(memory_per_rank, *, rng):
    """Each stage's bytes are exact for any size and any number of ranks; wrong arguments are a ValueError."""
    for parameters in (0, 1, 10, int(rng.integers(100, 10**6)), 7 * 10**9, 10**17 + 3):
        for n in (1, 3, 4, 64):
            shard = ceil_div(parameters, n)
            table = [16 * parameters, 4 * parameters + 12 * shard, 2 * parameters + 14 * shard, 16 * shard]
            for stage, nbytes in enumerate(table):
                what = f"the number of bytes at stage {stage}"
                yield Call(memory_per_rank, parameters, n, stage, sees=_as_int, gives=nbytes, what=what)
    right = {"parameters": 10, "world_size": 2, "stage": 1}
    wrong = [{"parameters": -1}, {"world_size": 0}, {"stage": 4}, {"stage": -1}]
    yield from refused(memory_per_rank, right, wrong=wrong, gives=100, sees=_as_int)


def _as_int(number: Any, *_: int) -> Any:
    """A whole number of numpy's as one of Python's; anything else as it is."""
    return int(number) if isinstance(number, np.integer) else number
