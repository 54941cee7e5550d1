# The cells of a new exercise on several ranks. Each begins with its id: statement, answer, example, test.
# They find the following in the lesson's setup cells.

import torch
import torch.distributed as dist

import ranks

# %% NN-ex0
# ### Exercise 0 · `mean_over_ranks(x)` (1 point)
#
# Replace this. Return the mean of all ranks' `x`: a tensor of its shape and dtype, with equal numbers on every rank.
#
# - `x` is a contiguous tensor of any shape, float32 or float64. Its shape and dtype are the same on all ranks.
# - `x` itself keeps its numbers.
# - **Budget**: one all-reduce of as many bytes as `x` has, and no other communication. One rank alone needs none.
#
# <details><summary>Hint: the copy</summary>
# <code>dist.all_reduce</code> changes the tensor that it is given, and <code>x</code> must stay as it is.
# </details>


# %% NN-ex0-mean-over-ranks
def mean_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """Replace this. The mean of the ranks' `x`, the same on every rank, by one all-reduce of `x.nbytes` bytes.

    x: any shape, contiguous, float32 or float64; it is not changed. Returns a tensor of the same shape and dtype.
    """
    ### BEGIN SOLUTION
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
    ### END SOLUTION


# %% NN-ex0-try
# Replace this. Four ranks with random numbers, and what each of them sends.
def use_mean(rank, world_size):
    torch.manual_seed(rank)
    x = torch.randn(3)
    return x.tolist(), mean_over_ranks(x).tolist()


results = ranks.run(use_mean, world_size=4)
for rank, (before, mean) in enumerate(results):
    print(f"rank {rank}: {before} -> {mean}")
print([(m.call, m.bytes) for m in results.ledger.of(0)])


# %% NN-ex0-mean-over-ranks-test
"""Replace this. Every rank returns the mean of all ranks' tensors, after one all-reduce, and keeps its own tensor."""


def trial(rank, world_size):
    x = torch.tensor([2.0, 4.0]) * rank
    return mean_over_ranks(x).tolist(), x.tolist()


for world_size in (1, 2, 4):
    results = ranks.run(trial, world_size, echo=False)
    expected = [world_size - 1, 2 * (world_size - 1)]
    for rank, (mean, after) in enumerate(results):
        assert mean == expected, f"N = {world_size}: rank {rank} has {mean}, not {expected}"
        kept = [2 * rank, 4 * rank]
        assert after == kept, f"N = {world_size}: on rank {rank}, x is {after}, expected {kept}: work on a copy"
