"""Wrong answers to lesson NN: the subtle ones first."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autograder.answers.mutants import edit, mutant, tests_of

MEAN = "NN-ex1-mean-over-ranks"


@mutant(MEAN, breaks=tests_of(MEAN), fails=["one_all_reduce_carries_the_mean"])
def gathers_every_tensor():
    """The mean is right, but every rank received every other rank's tensor to compute it. An all-reduce adds the
    tensors up on their way."""

    def mean_over_ranks(x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.stack(parts).mean(dim=0)


@mutant(MEAN, breaks=tests_of(MEAN))
def adds_into_its_input():
    """all_reduce works in place: the caller's tensor now holds the sum. Work on a copy."""

    def mean_over_ranks(x):
        dist.all_reduce(x)
        return x / dist.get_world_size()


forgets_to_divide = edit(
    MEAN,
    """all_reduce adds up. What you returned is the sum over the ranks; divide it by their number.""",
    (" / dist.get_world_size()", ""),
    breaks=tests_of(MEAN),
)
