"""Lesson 17, exercise 8: the heads of attention on several ranks."""

from __future__ import annotations

from typing import Any

from autograder.checking.check import check
from autograder.checking.expect import digits_that_differ, fail
from autograder.checks.capstone.common import LOSS_ERROR, corpus_of, equip, run_ranks, train_alone, what_it_says


def _drive_split(rank: int, world_size: int, train_tensor_parallel: Any, steps: int, seed: int) -> Any:
    equip(train_tensor_parallel)
    if world_size == 3:
        return what_it_says(lambda: train_tensor_parallel(rank, world_size, steps, seed, 3e-3))
    return train_tensor_parallel(rank, world_size, steps, seed, 3e-3)


@check("17-ex8-tensor")
def split_attention_trains_alike(train_tensor_parallel, make_corpus, *, rng):
    """The losses are one process's on the same batches; two all-reduces a block and step."""
    seed, steps = int(rng.integers(100)), 5
    want = train_alone(corpus_of(make_corpus, seed), 1, steps, seed)["losses"]
    for world_size in (2, 4, 1):
        case = f"N = {world_size}"
        results = run_ranks(_drive_split, world_size, (train_tensor_parallel, steps, seed))
        for rank, losses in enumerate(results):
            if not isinstance(losses, list) or [type(loss) for loss in losses] != [float] * steps:
                fail(f"rank {rank} returned no list of {steps} floats", case, str(type(losses)))
            for step, (ours, theirs) in enumerate(zip(losses, want, strict=True), start=1):
                if not abs(ours - theirs) <= LOSS_ERROR:
                    one, other = digits_that_differ(ours, theirs)
                    fail(f"rank {rank}, step {step}: the loss is {one}, one process has {other}", case, losses)
            sent = [(m.call, m.bytes) for m in results.ledger.of(rank)]
            if world_size > 1 and sent != [("all_reduce", 4 * 4 * 16 * 32)] * (4 * steps):
                kinds = sorted({call for call, _ in sent})
                text = (
                    f"rank {rank} sent {len(sent)} messages in {steps} steps: {kinds}; expected {4 * steps} all-reduces"
                )
                fail(text, case, [len(sent), kinds])
    for rank, (kind, text) in enumerate(run_ranks(_drive_split, 3, (train_tensor_parallel, 2, seed))):
        if kind != "ValueError" or "heads" not in text:
            fail(f"3 ranks cannot share 4 heads: rank {rank} should raise a ValueError about heads", "N = 3", kind)
