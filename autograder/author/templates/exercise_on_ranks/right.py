import torch.distributed as dist

from autograder.answers.right import answer_to


@answer_to("NN-ex0-mean-over-ranks")
def mean_over_ranks_of_quotients():
    """Replace this. Divides its own tensor first, which makes the copy, and adds up the quotients."""

    def mean_over_ranks(x):
        part = x / dist.get_world_size()
        dist.all_reduce(part, op=dist.ReduceOp.SUM)
        return part
