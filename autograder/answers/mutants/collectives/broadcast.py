"""Wrong answers to lesson 01, exercise 1."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

BROADCAST, TREE = "01-ex1-broadcast", "01-ex5-tree-all-reduce"


# ---- 1 · broadcast ----


@right(BROADCAST)
def _broadcast():
    """Right: the base of the edits below."""

    def broadcast(tensor, src):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if not 0 <= src < world_size:
            raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")
        number = (rank - src) % world_size
        data = tensor.contiguous()
        reach = 1
        while reach < world_size:
            if number < reach and number + reach < world_size:
                dist.send(data, dst=(rank + reach) % world_size)
            elif reach <= number < 2 * reach:
                dist.recv(data, src=(rank - reach) % world_size)
            reach *= 2
        tensor.copy_(data)


broadcast_fills_a_copy = edit(
    BROADCAST,
    """For a tensor that is not contiguous, contiguous() made a copy. You received into that copy, so the caller's
    tensor kept its old numbers: after the last message, write the copy back into the tensor.""",
    ("    tensor.copy_(data)\n", ""),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)

broadcast_gives_the_tensor_other_memory = edit(
    BROADCAST,
    """You gave the tensor object other memory, with set_() or `.data`. Tensors that share the old memory, for example a
    matrix whose transpose you were given, keep the old numbers. In place means into the tensor's own memory:
    copy_().""",
    ("tensor.copy_(data)", "tensor.data = data"),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)

broadcast_sends_memory_as_it_lies = edit(
    BROADCAST,
    """You sent the elements in the order in which they lie in memory. Where one rank's matrix is transposed and
    another's is not, the elements arrive in the wrong places. contiguous() puts them in the order of their indices.""",
    (
        "    data = tensor.contiguous()\n",
        "    if tensor.dim() == 2 and not tensor.is_contiguous():\n"
        "        tensor = tensor.t()\n"
        "    data = tensor.contiguous()\n",
    ),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)

broadcast_swaps_ranks_instead_of_turning = edit(
    BROADCAST,
    """You numbered the ranks from the source, but passed these numbers to send and recv, which expect real ranks.
    Translate back: number m is rank (m + src) mod N.""",
    ("(rank + reach) % world_size", "number + reach"),
    ("(rank - reach) % world_size", "number - reach"),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)

broadcast_only_for_powers_of_two = edit(
    BROADCAST,
    """When N is not a power of two, the last round has more senders than ranks that still lack the tensor, and you sent
    to ranks that have it already or do not exist. A rank sends only if its partner's number is below N.""",
    ("if number < reach and number + reach < world_size:", "if number < reach:"),
    base=_broadcast,
    breaks=tests_of(BROADCAST, TREE),
)


@mutant(BROADCAST, breaks=tests_of(BROADCAST, TREE))
def broadcast_from_the_source_to_each():
    """The source sends every message itself, one after the other, which takes N − 1 rounds. A rank that has the tensor
    can pass it on, too: let the number of ranks that have it double in each round."""

    def broadcast(tensor, src):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if not 0 <= src < world_size:
            raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")
        data = tensor.contiguous()
        if rank == src:
            for dst in range(world_size):
                if dst != src:
                    dist.send(data, dst=dst)
        else:
            dist.recv(data, src=src)
        tensor.copy_(data)


@mutant(BROADCAST, breaks=tests_of(BROADCAST, TREE))
def broadcast_along_a_chain():
    """Each rank passes the tensor on to the next, so the last one waits for N − 1 messages in a row. That is a chain,
    not a tree: in each round, let every rank that has the tensor send it to one that does not."""

    def broadcast(tensor, src):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if not 0 <= src < world_size:
            raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")
        number = (rank - src) % world_size
        data = tensor.contiguous()
        if number > 0:
            dist.recv(data, src=(rank - 1) % world_size)
        if number < world_size - 1:
            dist.send(data, dst=(rank + 1) % world_size)
        tensor.copy_(data)


broadcast_takes_any_source = edit(
    BROADCAST,
    """You accepted a source that is not a rank, and took it modulo N. A wrong rank is the caller's mistake and should
    be reported: raise the ValueError that the statement asks for, before anything is sent.""",
    (
        "    if not 0 <= src < world_size:\n"
        '        raise ValueError(f"src must be in 0…{world_size - 1}, got {src}")\n',
        "",
    ),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
    fails=["broadcast_refuses_a_source_that_is_no_rank"],
)

broadcast_always_from_rank_0 = edit(
    BROADCAST,
    """All ranks got rank 0's tensor, whatever `src` is. Build the tree from the source: number the ranks starting at
    `src`.""",
    ("    number = (rank - src) % world_size\n", ""),
    ("number < reach and number", "rank < reach and rank"),
    ("(rank + reach) % world_size", "rank + reach"),
    ("reach <= number < 2", "reach <= rank < 2"),
    ("(rank - reach) % world_size", "rank - reach"),
    base=_broadcast,
    breaks=tests_of(BROADCAST),
)


@mutant(BROADCAST, breaks=tests_of(BROADCAST, TREE))
def broadcast_by_torch():
    """You called torch's own broadcast. It gives the right numbers, but this exercise asks you to build it yourself:
    use only sends and receives."""

    def broadcast(tensor, src):
        if not 0 <= src < dist.get_world_size():
            raise ValueError(f"src must be in 0…{dist.get_world_size() - 1}, got {src}")
        data = tensor.contiguous()
        dist.broadcast(data, src)
        tensor.copy_(data)
