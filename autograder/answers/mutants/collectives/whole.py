"""Wrong answers to lesson 01, exercises 4 and 5."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

ALL_REDUCE, TREE = "01-ex4-all-reduce", "01-ex5-tree-all-reduce"


# ---- 4 · all_reduce ----


@mutant(ALL_REDUCE, breaks=tests_of(ALL_REDUCE))
def all_reduce_fills_a_copy():
    """For a tensor that is not contiguous, reshape(-1) made a copy, and the sum went into that copy. Copy the result
    into the caller's tensor, in its own shape."""

    def all_reduce(tensor):
        flat = tensor.reshape(-1)
        flat.copy_(all_gather(reduce_scatter(flat), flat.numel()))


@mutant(ALL_REDUCE, breaks=tests_of(ALL_REDUCE))
def all_reduce_gives_the_tensor_other_memory():
    """You gave the tensor object other memory, with set_() or `.data`. Tensors that share the old memory, for example a
    gradient of which you were given a view, keep the old numbers. Copy the sum into the tensor."""

    def all_reduce(tensor):
        chunk = reduce_scatter(tensor.reshape(-1))
        tensor.data = all_gather(chunk, tensor.numel()).view(tensor.shape)


@mutant(ALL_REDUCE, breaks=tests_of(ALL_REDUCE))
def all_reduce_adds_memory_as_it_lies():
    """You added the elements in the order in which they lie in memory. Where one rank's matrix is transposed and
    another's is not, you added elements from different places. reshape(-1) puts them in the order of their indices."""

    def all_reduce(tensor):
        if tensor.dim() == 2 and not tensor.is_contiguous():
            tensor = tensor.t()
        chunk = reduce_scatter(tensor.reshape(-1))
        tensor.copy_(all_gather(chunk, tensor.numel()).view(tensor.shape))


@mutant(ALL_REDUCE, breaks=tests_of(ALL_REDUCE))
def all_reduce_returns_the_sum():
    """You returned the sum in a new tensor and left the caller's as it was. all_reduce works in place: write the
    result into `tensor`."""

    def all_reduce(tensor):
        chunk = reduce_scatter(tensor.reshape(-1))
        return all_gather(chunk, tensor.numel()).view(tensor.shape)


@mutant(ALL_REDUCE, breaks=tests_of(ALL_REDUCE))
def all_reduce_through_rank_0():
    """Your sums are right, but everything goes through one rank, which sends and receives N − 1 whole vectors and
    becomes the bottleneck. Use your two ring functions, in which all ranks carry the same load."""

    def all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        data = tensor.contiguous()
        if rank == 0:
            total, incoming = data.clone(), torch.empty_like(data)
            for src in range(1, world_size):
                dist.recv(incoming, src=src)
                total += incoming
            for dst in range(1, world_size):
                dist.send(total, dst=dst)
            tensor.copy_(total)
        else:
            dist.send(data, dst=0)
            dist.recv(data, src=0)
            tensor.copy_(data)


@mutant(ALL_REDUCE, breaks=tests_of(ALL_REDUCE))
def all_reduce_gathers_whole_vectors():
    """Every rank's vector went round the ring whole, and each rank added all of them up itself: (N − 1)·T bytes per
    rank. Reduce first, chunk by chunk, and gather only the finished chunks."""

    def all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total = tensor.clone().contiguous()
        passing = total.clone()
        for _ in range(world_size - 1):
            incoming = torch.empty_like(passing)
            work = dist.isend(passing, dst=(rank + 1) % world_size)
            dist.recv(incoming, src=(rank - 1) % world_size)
            work.wait()
            total, passing = total + incoming, incoming
        tensor.copy_(total)


@mutant(ALL_REDUCE, breaks=tests_of(ALL_REDUCE))
def all_reduce_averages():
    """You divided by the number of ranks, which gives the mean. all_reduce adds up; data-parallel training divides
    afterwards."""

    def all_reduce(tensor):
        chunk = reduce_scatter(tensor.reshape(-1))
        total = all_gather(chunk, tensor.numel()).view(tensor.shape)
        tensor.copy_(total / dist.get_world_size())


all_reduce_needs_contiguous_memory = edit(
    ALL_REDUCE,
    """view(-1) raises an error for a tensor that is not contiguous. reshape(-1) can flatten it, if you copy the result
    back into the tensor afterwards.""",
    ("tensor.reshape(-1)", "tensor.view(-1)"),
    base=all_reduce_fills_a_copy,
    breaks=tests_of(ALL_REDUCE),
)


# ---- 5 · tree_all_reduce ----


@mutant(TREE, breaks=tests_of(TREE))
def tree_loses_ranks_beyond_a_power_of_two():
    """When N is not a power of two, some ranks' numbers are missing from the sum: your tree covers only as many ranks
    as the largest power of two below N, and never asks the others. Go on until the distance reaches N."""

    def tree_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total = tensor.contiguous()
        incoming = torch.empty_like(total)
        inside = 1 << (world_size.bit_length() - 1)
        distance = 1
        while distance < inside:
            if rank < inside and rank % (2 * distance) == distance:
                dist.send(total, dst=rank - distance)
            elif rank < inside and rank % (2 * distance) == 0:
                dist.recv(incoming, src=rank + distance)
                total += incoming
            distance *= 2
        broadcast(total, 0)
        tensor.copy_(total)


@mutant(TREE, breaks=tests_of(TREE))
def tree_adds_integers_in_float64():
    """You added integers in float64, which holds whole numbers exactly only up to 2⁵³. Larger sums are rounded. Add
    tensors in their own dtype."""

    def tree_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total = tensor.contiguous() if tensor.is_floating_point() else tensor.double().contiguous()
        incoming = torch.empty_like(total)
        distance = 1
        while distance < world_size:
            if rank % (2 * distance) == distance:
                dist.send(total, dst=rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < world_size:
                dist.recv(incoming, src=rank + distance)
                total += incoming
            distance *= 2
        broadcast(total, 0)
        tensor.copy_(total)


@mutant(TREE, breaks=tests_of(TREE))
def tree_all_send_to_the_root():
    """All ranks send to the root, which receives their messages one after the other: N − 1 rounds on the way up. Let
    pairs of ranks add at the same time, then pairs of pairs."""

    def tree_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total = tensor.contiguous()
        if rank == 0:
            incoming = torch.empty_like(total)
            for src in range(1, world_size):
                dist.recv(incoming, src=src)
                total += incoming
        else:
            dist.send(total, dst=0)
        broadcast(total, 0)
        tensor.copy_(total)


@mutant(TREE, breaks=tests_of(TREE))
def tree_is_the_ring():
    """This is the ring again: right numbers, few bytes, but 2(N − 1) rounds of small messages. The point of the tree is
    to need fewer rounds, with whole vectors: reduce to a root along a tree, then broadcast."""

    def tree_all_reduce(tensor):
        all_reduce(tensor)


@mutant(TREE, breaks=tests_of(TREE))
def tree_exchanges_in_every_round():
    """In every round you exchanged whole vectors in both directions with a partner. That needs only ⌈log2 N⌉ rounds
    when N is a power of two, but sends N·log2 N messages, more than the 2(N − 1) of a tree. First send only upward,
    then broadcast down."""

    def tree_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        rounds = ceil(log2(world_size))
        if 2**rounds != world_size:
            all_reduce(tensor)
            return
        total = tensor.contiguous().clone()
        for k in range(rounds):
            incoming = torch.empty_like(total)
            work = dist.isend(total, dst=rank ^ (1 << k))
            dist.recv(incoming, src=rank ^ (1 << k))
            work.wait()
            total = total + incoming
        tensor.copy_(total)


@mutant(TREE, breaks=tests_of(TREE))
def tree_forgets_the_way_down():
    """Only the root has the sum; the other ranks kept what they had on the way up. After the reduction, broadcast the
    root's tensor."""

    def tree_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total = tensor.contiguous()
        incoming = torch.empty_like(total)
        distance = 1
        while distance < world_size:
            if rank % (2 * distance) == distance:
                dist.send(total, dst=rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < world_size:
                dist.recv(incoming, src=rank + distance)
                total += incoming
            distance *= 2
        tensor.copy_(total)
