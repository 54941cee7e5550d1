"""Lesson 06, exercise 3: which examples a rank trains on in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autograder.checking.check import check
from autograder.checking.expect import expect_equal, expect_type, fail
from autograder.checking.stage import call_inside


def deal(steps: int, world_size: int, length: int, global_batch: int, seed: int) -> list[list[list[int]]]:
    """The oracle: deal out one epoch after the other, card by card. [step][rank] → indices."""
    dealt: list[list[list[int]]] = []
    epoch = 0
    while len(dealt) < steps:
        cards = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch)).tolist()[::-1]
        while cards:
            hands: list[list[int]] = [[] for _ in range(world_size)]
            for number in range(min(global_batch, len(cards))):
                hands[number % world_size].append(cards.pop())
            dealt.append(hands)
        epoch += 1
    return dealt[:steps]


def _call(function: Callable, case: str, *arguments: int) -> list[int]:
    try:
        got = function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        kind = type(error).__name__
        fail(f"indices_of{arguments} raised {kind}: {error}", case, f"raised {kind}", kind)
    expect_type(case, got, list, what=f"indices_of{arguments}")
    return got


@check("06-ex3-indices-of", points=1.5)
def batches_follow_the_step(indices_of: Callable, *, rng: np.random.Generator) -> None:
    """Each step has the global batch that its number says, dealt to any number of ranks; no example twice or never."""
    seed = int(rng.integers(1, 2**20)) | 3  # so that no seed + e is seed ^ e or seed | e
    for length, batch, sizes in (
        (12, 4, (2, 1, 4)),
        (10, 4, (3, 2, 1)),
        (7, 3, (4, 2)),
        (101, 16, (4, 3, 5)),
        (5, 8, (2, 6)),
    ):
        steps_per_epoch = -(length // -batch)
        name = f"{length} examples, global batches of {batch}"
        for n in sizes:
            case = f"{name}, {n} rank{'s' * (n > 1)}"
            for step, hands in enumerate(deal(3 * steps_per_epoch + 1, n, length, batch, seed)):
                place = f"{case}, step {step}"
                got = [_call(indices_of, place, step, rank, n, length, batch, seed) for rank in range(n)]
                _expect_whole(place, [i for mine in got for i in mine], hands)
                expect_equal(
                    place, got, hands, what="the ranks' indices", because="a rank gets every N-th of the batch"
                )
        for epoch in range(2):
            changing = [sizes[step % len(sizes)] for step in range(steps_per_epoch)]
            case = f"{name}, epoch {epoch}, and after each step another number of ranks"
            read = []
            for step, n in enumerate(changing, start=epoch * steps_per_epoch):
                read += [i for rank in range(n) for i in _call(indices_of, case, step, rank, n, length, batch, seed)]
            expect_equal(case, sorted(read), list(range(length)), what="what the epoch reads, sorted,")
    [hands] = deal(1, 1, 12, 4, seed + 4)
    case = "12 examples, global batches of 4, 1 rank, a call with another seed"
    expect_equal(case, _call(indices_of, case, 0, 0, 1, 12, 4, seed + 4), hands[0], what="the rank's indices")


def _expect_whole(place: str, read: list, hands: list[list[int]]) -> None:
    """All ranks together read the global batch, in any order."""
    wanted = sorted(i for hand in hands for i in hand)
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in read):
        fail("the indices are not Python ints", place, [type(i).__name__ for i in read[:1]])
    if sorted(read) != wanted:
        twice, missing = sorted({i for i in read if read.count(i) > 1}), sorted(set(wanted) - set(read))
        text = f"all ranks together read {sorted(read)}, the global batch is {wanted}"
        fail(text + (f"; twice: {twice}" if twice else ""), place, [read, twice, missing])


#: (step, rank, N, length, global batch)
MID_EPOCH = (3, 0, 2, 10, 4)


def _state_around(indices_of: Callable, seed: int) -> dict[str, Any]:
    """Next to the answer: torch's global generator before and after a call."""
    torch.manual_seed(seed)
    torch.rand(3)  # a model has been made since
    before = torch.get_rng_state()
    got = indices_of(*MID_EPOCH, seed)
    return {"same": bool(torch.equal(before, torch.get_rng_state())), "got": got}


@check("06-ex3-indices-of", points=0.5)
def global_generator_stays(indices_of: Callable, *, rng: np.random.Generator) -> None:
    """torch's global generator is as it was before the call."""
    seed = int(rng.integers(1, 2**20))
    seen = call_inside(_state_around, indices_of, seed)
    if not seen["same"]:
        text = "torch's global generator has moved on: dropout would draw other numbers on each rank"
        fail(text, "a call in mid-epoch", "moved")
    step, rank, *job = MID_EPOCH
    expect_equal("a call in mid-epoch", seen["got"], deal(step + 1, *job, seed)[step][rank], what="the rank's indices")
