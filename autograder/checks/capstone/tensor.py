"""Lesson 17, exercise 8: the heads of attention on several ranks."""

from __future__ import annotations

from typing import Any

from autograder.checking.check import check
from autograder.checking.expect import digits_that_differ, each_rank
from autograder.checks.capstone.common import LOSS_ERROR, corpus_of, equip, run_ranks, train_alone, what_it_says


def _drive_split(rank: int, world_size: int, train_tensor_parallel: Any, steps: int, seed: int) -> Any:
    """Inside a rank: the losses; on 3 ranks, which cannot share the heads, what was raised."""
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
        for rank, losses in each_rank(case, results):
            floats = isinstance(losses, list) and [type(loss) for loss in losses] == [float] * steps
            rank.expect(floats, f"no list of {steps} floats was returned", str(type(losses)))
            for step, (ours, theirs) in enumerate(zip(losses, want, strict=True), start=1):
                one, other = digits_that_differ(ours, theirs)
                difference = f"the loss of step {step} is {one}, one process has {other}"
                rank.expect(abs(ours - theirs) <= LOSS_ERROR, difference)
        sent = [[(m.call, m.bytes) for m in results.ledger.of(rank)] for rank in range(world_size)]
        for rank, calls in each_rank(case, sent, evidence=lambda calls: [len(calls), _kinds(calls)]):
            right = world_size == 1 or calls == [("all_reduce", 4 * 4 * 16 * 32)] * (4 * steps)
            surplus = f"{len(calls)} messages were sent in {steps} steps: {_kinds(calls)}"
            rank.expect(right, f"{surplus}; expected {4 * steps} all-reduces")
    refusals = run_ranks(_drive_split, 3, (train_tensor_parallel, 2, seed))
    for rank, (kind, text) in each_rank("N = 3", refusals, evidence=lambda said: said[0]):
        refused = kind == "ValueError" and "heads" in text
        rank.expect(refused, "there should be a ValueError about heads: 3 ranks cannot share 4")


def _kinds(calls: list[tuple[str, int]]) -> list[str]:
    """The different calls among (call, bytes)."""
    return sorted({call for call, _ in calls})
