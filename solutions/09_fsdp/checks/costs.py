"""Exercise 4: bytes of memory and bytes on the wire."""

from __future__ import annotations

import numpy as np

from autograder.checking.check import check
from autograder.checking.expect import ceil_div, count_of_ranks, expect_raises, fail


@check("09-ex4-costs", points=2)
def costs_follow_the_formulas(memory_bytes, wire_bytes, *, rng):
    """Memory and messages are whole numbers of bytes, exact for any units; wrong arguments are a ValueError."""
    lists = [[], [1], [10, 4], [0, 7, 7], [int(n) for n in rng.integers(1, 10**6, 9)], [10**17 + 3, 10**17 - 5, 8]]
    for numels in lists:
        for world_size in (3, 1, 4, 64):
            case = f"units of {numels} on {count_of_ranks(world_size)}"
            sizes = [ceil_div(n, world_size) for n in numels]
            want = [12 * sum(sizes), 16 * sum(sizes) + 8 * max(numels, default=0)]
            got = list(memory_bytes(list(numels), world_size))
            if got != want or not all(isinstance(g, (int, np.integer)) for g in got):
                fail(f"memory_bytes returned {got}, expected {want}", case, [str(g) for g in got])
            for itemsize in (4, 2):
                sent = (world_size - 1) * sum(sizes) * (2 * itemsize + 4)
                got = wire_bytes(list(numels), world_size, *([] if itemsize == 4 else [itemsize]))
                if got != sent or not isinstance(got, (int, np.integer)):
                    text = f"wire_bytes with itemsize {itemsize} returned {got}, expected {sent}"
                    fail(text, case, [itemsize, str(got)])
    for function in (memory_bytes, wire_bytes):
        name = "memory_bytes" if function is memory_bytes else "wire_bytes"
        for arguments, what in ((([3], 0), "world_size"), (([3, -1], 2), "numels")):
            expect_raises(f"{name}{arguments}", function, *arguments, error=ValueError, mentions=what)
    expect_raises("wire_bytes([3], 2, 0)", wire_bytes, [3], 2, 0, error=ValueError, mentions="itemsize")
