"""Lesson 17, exercise 1: the corpus, and each rank's windows of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import as_array, expect_close, expect_raises, fail
from autograder.checking.stage import call_inside

from .common import window


def _beside_a_state(make_corpus: Any, seed: int, total: int, noise: int) -> tuple[Any, bool]:
    """A corpus that is made while torch's global random state is some state, and whether it still is that one."""
    before = torch.get_rng_state()
    torch.manual_seed(noise)
    state = torch.get_rng_state()
    try:
        return make_corpus(seed, total), torch.equal(state, torch.get_rng_state())
    finally:
        torch.set_rng_state(before)


@check("17-ex1-batches", points=1)
def corpus_is_one_cycle_repeated(make_corpus, *, rng):
    """A permutation of the tokens, repeated; the seed alone decides which; wrong lengths are refused."""
    cycles = []
    for seed in (int(s) for s in rng.integers(0, 10**6, 3)):
        for total in (64, 192, 4096):
            case = f"seed {seed}, {total} tokens"
            got, same_state = call_inside(_beside_a_state, make_corpus, seed, total, int(rng.integers(10**6)))
            tokens = as_array(case, got, "the corpus")
            if not same_state:
                fail("the global random state was changed: use a torch.Generator", "global state", "global state")
            if tokens.shape != (total,) or not isinstance(got, torch.Tensor) or got.dtype != torch.int64:
                shown = [list(tokens.shape), str(getattr(got, "dtype", type(got).__name__))]
                fail(f"expected ({total},) of int64, got {shown[0]} of {shown[1]}", f"{total} tokens", shown)
            if sorted(tokens[:64]) != list(range(64)):
                fail("the first 64 tokens are not a permutation of 0 … 63", "one cycle", len(set(tokens[:64].tolist())))
            if not np.array_equal(tokens, np.resize(tokens[:64], total)):
                same = int(np.argmax(tokens != np.resize(tokens[:64], total)))
                fail(f"the cycle is not repeated: token {same} differs", f"{total} tokens", [total, same // 64])
            cycles.append((seed, np.roll(tokens[:64], -int(np.argmax(tokens[:64] == 0)))))
        if any(not np.array_equal(cycle, cycles[-1][1]) for other, cycle in cycles if other == seed):
            fail("the same seed gave another cycle", "same seed", "differs")
    if len({cycle.tobytes() for _, cycle in cycles}) < 3:
        fail("different seeds gave the same cycle", "different seeds", "same")
    for total in (0, -64, 63, 100):
        expect_raises(f"{total} tokens", make_corpus, 0, total, error=ValueError, mentions="total_tokens")


@check("17-ex1-batches", points=2)
def batches_are_windows_of_the_corpus(make_batch, *, rng):
    """x and y are the windows that the formula names, for any corpus, step, rank and number of ranks."""
    cases = [(4096, 1, 0, 1), (4096, 1, 0, 4), (4096, 1, 3, 4), (4096, 2, 0, 4), (4096, 7, 2, 3), (4096, 20, 1, 2)]
    cases += [(100, 3, 1, 2), (40, 5, 2, 3), (192, 10**6, 1, 4)]
    cases += [(int(length), int(length) // 7, int(length) % 3, 3) for length in rng.integers(200, 4000, 3)]
    for length, step, rank, world_size in cases:
        case = f"a corpus of {length}, step {step}, rank {rank} of {world_size}"
        corpus = np.arange(length) * 3 + 5  # every place has a token of its own
        given = torch.from_numpy(corpus.copy())
        got = make_batch(given, step, rank, world_size)
        want = window(corpus, step, rank, world_size)
        if not isinstance(got, (tuple, list)) or len(got) != 2:
            fail(f"expected (x, y), got {type(got).__name__}", case, type(got).__name__)
        for name, mine, expected in zip(("x", "y"), got, want, strict=True):
            expect_close(case, mine, expected, what=name, rtol=0.0, show_expected=False)
            if not isinstance(mine, torch.Tensor) or mine.dtype != torch.int64:
                fail(f"{name} should be an int64 tensor", case, str(getattr(mine, "dtype", type(mine).__name__)))
        if not np.array_equal(given.numpy(), corpus):
            fail("the corpus was changed", case, "changed")
    wrong = [((0, 0, 2), "step"), ((-3, 0, 2), "step"), ((1, 2, 2), "rank"), ((1, -1, 2), "rank")]
    for (step, rank, world_size), name in wrong:
        case = f"step {step}, rank {rank} of {world_size}"
        corpus = torch.arange(128)
        expect_raises(case, make_batch, corpus, step, rank, world_size, error=ValueError, mentions=name)
