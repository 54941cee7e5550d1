"""Right answers to lesson NN, written differently."""

from __future__ import annotations

import torch.distributed as dist

from autograder.answers.right import answer_to


@answer_to("NN-ex1-mean-over-ranks")
def divides_before_it_adds():
    """Divides its own tensor first, which makes the copy, and adds up the quotients."""

    def mean_over_ranks(x):
        part = x / dist.get_world_size()
        dist.all_reduce(part, op=dist.ReduceOp.SUM)
        return part
