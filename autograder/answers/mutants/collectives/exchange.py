"""Wrong answers to lesson 01, exercises 6 and 7."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

HALVING, ALL_TO_ALL = "01-ex6-halving-all-reduce", "01-ex7-all-to-all"


# ---- 6 · halving_all_reduce ----


@right(HALVING)
def _halving():
    """Right: the base of the edits below."""

    def halving_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size & (world_size - 1):
            raise ValueError(f"world_size must be a power of two, got {world_size}")
        total = tensor.reshape(-1).clone()
        part, kept = total, []
        distance = world_size // 2
        while distance:
            mine, theirs = part.tensor_split(2)
            if rank & distance:
                mine, theirs = theirs, mine
            incoming = torch.empty_like(mine)
            work = dist.isend(theirs, dst=rank ^ distance)
            dist.recv(incoming, src=rank ^ distance)
            work.wait()
            mine += incoming
            kept.append((distance, mine, theirs))
            part = mine
            distance //= 2
        for distance, mine, theirs in reversed(kept):
            work = dist.isend(mine, dst=rank ^ distance)
            dist.recv(theirs, src=rank ^ distance)
            work.wait()
        tensor.copy_(total.view(tensor.shape))


halving_fills_a_copy = edit(
    HALVING,
    """You worked on a copy of the vector, and the caller's tensor kept its old numbers. After the last round, write
    the sums back into `tensor`, in its shape.""",
    ("    tensor.copy_(total.view(tensor.shape))\n", "    return total.view(tensor.shape)\n"),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_trusts_a_view = edit(
    HALVING,
    """reshape(-1) shares the caller's memory only where that is possible. For a tensor that is not contiguous it made a
    copy, and the sums stayed there. Copy them back.""",
    ("total = tensor.reshape(-1).clone()", "total = tensor.reshape(-1)"),
    ("    tensor.copy_(total.view(tensor.shape))\n", ""),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_doubles_with_the_far_partner_first = edit(
    HALVING,
    """The second phase must run in reverse order: the partner with whom you halved *last* comes first, since only the
    two of you hold the two halves of the same part. You began with the first partner again, and sent numbers that were
    not summed yet.""",
    ("in reversed(kept)", "in kept"),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_both_keep_the_first_half = edit(
    HALVING,
    """Both partners kept the first half and gave away the second, so each added one half's numbers to the other half.
    One bit of the rank's number decides who keeps which half: give away the half that your partner keeps.""",
    ("        if rank & distance:\n            mine, theirs = theirs, mine\n", ""),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_without_doubling = edit(
    HALVING,
    """After log2 N rounds each rank holds one summed chunk; the rest of its tensor holds unfinished sums. You stopped
    there. The same partners have to give each other what they have completed, last partner first.""",
    ("in reversed(kept)", "in []"),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_overwrites = edit(
    HALVING,
    """What your partner sent replaced your own part instead of being added to it, so the result holds single ranks'
    numbers. Receive into a separate buffer, and add.""",
    ("        mine += incoming\n", "        mine.copy_(incoming)\n"),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_of_even_lengths = edit(
    HALVING,
    """You cut at half the length, rounded down, and made the second half just as long. With an odd length the last
    element belongs to neither half, and nobody adds it up. Let one half be longer by one.""",
    (
        "mine, theirs = part.tensor_split(2)",
        "half = len(part) // 2\n        mine, theirs = part[:half], part[half : 2 * half]",
    ),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_averages = edit(
    HALVING,
    """You halved the numbers as well: after each addition you divided by two, which gives the mean over all ranks. The
    exercise asks for the sum.""",
    ("mine += incoming\n", "mine.copy_((mine + incoming) / 2)\n"),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_adds_in_float32 = edit(
    HALVING,
    """You converted the numbers to float32 before you added them. Large integers and float64 lose digits there. Add
    tensors in their own dtype.""",
    ("tensor.reshape(-1).clone()", "tensor.reshape(-1).to(torch.float32, copy=True)"),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_sends_the_whole_on_the_way_back = edit(
    HALVING,
    """On the way back you sent your whole vector in each round, finished or not. Send only the part that you have
    completed: first one chunk, then two, then four.""",
    (
        "        work = dist.isend(mine, dst=rank ^ distance)\n"
        "        dist.recv(theirs, src=rank ^ distance)\n"
        "        work.wait()\n",
        "        incoming = torch.empty_like(total)\n"
        "        work = dist.isend(total, dst=rank ^ distance)\n"
        "        dist.recv(incoming, src=rank ^ distance)\n"
        "        work.wait()\n"
        "        start = theirs.storage_offset()\n"
        "        theirs.copy_(incoming[start : start + len(theirs)])\n",
    ),
    base=_halving,
    breaks=tests_of(HALVING),
)


@mutant(HALVING, breaks=tests_of(HALVING))
def halving_never_halves():
    """In every round you exchanged whole vectors with a partner. That takes only log2 N rounds, but each rank sends
    T·log2 N bytes. Exchange half of the vector first, then a quarter, and go on with the part that you have summed."""

    def halving_all_reduce(tensor):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if world_size & (world_size - 1):
            raise ValueError(f"world_size must be a power of two, got {world_size}")
        total = tensor.contiguous().clone()
        distance = 1
        while distance < world_size:
            incoming = torch.empty_like(total)
            work = dist.isend(total, dst=rank ^ distance)
            dist.recv(incoming, src=rank ^ distance)
            work.wait()
            total = total + incoming
            distance *= 2
        tensor.copy_(total)


@mutant(HALVING, breaks=tests_of(HALVING))
def halving_is_the_ring():
    """This is the ring again: the right bytes, but 2(N − 1) rounds. The point of halving is to need only 2 log2 N of
    them: exchange with one partner a round, at distances N/2, N/4, …, 1 and back."""

    def halving_all_reduce(tensor):
        if dist.get_world_size() & (dist.get_world_size() - 1):
            raise ValueError("world_size must be a power of two")
        all_reduce(tensor)


halving_takes_turns = edit(
    HALVING,
    """In each pair one rank sent and the other received, and then the other way round: each exchange takes two rounds
    instead of one. With isend both messages travel at the same time.""",
    (
        "        work = dist.isend(theirs, dst=rank ^ distance)\n"
        "        dist.recv(incoming, src=rank ^ distance)\n"
        "        work.wait()\n",
        "        if rank & distance:\n"
        "            dist.recv(incoming, src=rank ^ distance)\n"
        "        dist.send(theirs, dst=rank ^ distance)\n"
        "        if not rank & distance:\n"
        "            dist.recv(incoming, src=rank ^ distance)\n",
    ),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_sends_first = edit(
    HALVING,
    """Both partners wait in send until the other receives, so both wait forever. Use a send that does not wait (isend),
    receive, and then wait for the send.""",
    (
        "        work = dist.isend(theirs, dst=rank ^ distance)\n"
        "        dist.recv(incoming, src=rank ^ distance)\n"
        "        work.wait()\n",
        "        dist.send(theirs, dst=rank ^ distance)\n        dist.recv(incoming, src=rank ^ distance)\n",
    ),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_by_torch = edit(
    HALVING,
    """You called torch's own all_reduce. It gives the right sum, but this exercise asks you to build it yourself: use
    only sends and receives.""",
    ("    part, kept = total, []\n", "    dist.all_reduce(total)\n    part, kept = total, []\n"),
    ("distance = world_size // 2", "distance = 0"),
    base=_halving,
    breaks=tests_of(HALVING),
)

halving_refuses_odd_numbers_only = edit(
    HALVING,
    """You refused odd numbers of ranks only. 6 is even, but not a power of two: with 6 ranks, rank 5 has no partner at
    distance 2, and the ranks wait for each other. A power of two has a single 1 among its binary digits.""",
    ("if world_size & (world_size - 1):", "if world_size % 2 and world_size > 1:"),
    base=_halving,
    breaks=tests_of(HALVING),
    fails=["halving_refuses_other_numbers_of_ranks"],
)

halving_falls_back_on_the_ring = edit(
    HALVING,
    """For a number of ranks that is not a power of two, you silently used another algorithm. The statement asks for an
    error: a caller who chose this algorithm should learn that it does not apply.""",
    (
        'raise ValueError(f"world_size must be a power of two, got {world_size}")',
        "return all_reduce(tensor)",
    ),
    base=_halving,
    breaks=tests_of(HALVING),
    fails=["halving_refuses_other_numbers_of_ranks"],
)

halving_refuses_without_a_name = edit(
    HALVING,
    """Your ValueError does not say what is wrong. Name `world_size` in its text.""",
    ('f"world_size must be a power of two, got {world_size}"', '"not a power of two"'),
    base=_halving,
    breaks=tests_of(HALVING),
    fails=["halving_refuses_other_numbers_of_ranks"],
)

halving_refuses_one_rank = edit(
    HALVING,
    """You refused a single rank. 1 is 2⁰, a power of two: there is nothing to exchange, and the tensor is its own
    sum.""",
    ("if world_size & (world_size - 1):", "if world_size < 2 or world_size & (world_size - 1):"),
    base=_halving,
    breaks=tests_of(HALVING),
)


# ---- 7 · all_to_all ----


@right(ALL_TO_ALL)
def _all_to_all():
    """Right: the base of the edits below."""

    def all_to_all(tensor):
        if tensor.dim() != 1:
            raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        chunks = [chunk.contiguous() for chunk in tensor.tensor_split(world_size)]
        received = [torch.zeros_like(chunks[rank]) for _ in range(world_size)]
        received[rank] = chunks[rank].clone()
        for step in range(1, world_size):
            dst, src = (rank + step) % world_size, (rank - step) % world_size
            work = dist.isend(chunks[dst], dst=dst)
            dist.recv(received[src], src=src)
            work.wait()
        return torch.cat(received)


all_to_all_in_the_order_of_arrival = edit(
    ALL_TO_ALL,
    """You joined the chunks in the order in which they arrived: your own, then the left neighbor's, and so on. The
    result is in the order of the ranks: put what comes from rank q at place q.""",
    (
        "return torch.cat(received)",
        "return torch.cat([received[(rank - step) % world_size] for step in range(world_size)])",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_begins_with_rank_0 = edit(
    ALL_TO_ALL,
    """The result is right, but every rank sends to rank 0 first, then to rank 1. The messages queue up at one rank
    while the others get nothing, and the exchange takes nearly twice as many rounds. Let rank r begin with
    rank r + 1.""",
    (
        "    for step in range(1, world_size):\n"
        "        dst, src = (rank + step) % world_size, (rank - step) % world_size\n"
        "        work = dist.isend(chunks[dst], dst=dst)\n"
        "        dist.recv(received[src], src=src)\n"
        "        work.wait()\n",
        "    others = [other for other in range(world_size) if other != rank]\n"
        "    works = [dist.isend(chunks[other], dst=other) for other in others]\n"
        "    for other in others:\n"
        "        dist.recv(received[other], src=other)\n"
        "    for work in works:\n"
        "        work.wait()\n",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_sends_its_own_chunk = edit(
    ALL_TO_ALL,
    """You sent chunk `rank` of your vector to everybody, which is an all-gather. In an all-to-all each rank gets a
    different piece: send chunk d to rank d.""",
    ("dist.isend(chunks[dst], dst=dst)", "dist.isend(chunks[rank][: len(chunks[dst])].clone(), dst=dst)"),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_forgets_its_own_chunk = edit(
    ALL_TO_ALL,
    """The chunk that a rank keeps for itself is missing: place `rank` of the result holds zeros. No message brings this
    chunk, so copy it.""",
    ("    received[rank] = chunks[rank].clone()\n", ""),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_of_equal_chunks = edit(
    ALL_TO_ALL,
    """You cut into pieces of length // N and left the rest out. When N does not divide the length, the first chunks
    are one element longer: cut with tensor_split.""",
    (
        "tensor.tensor_split(world_size)]",
        "tensor[: len(tensor) // world_size * world_size].tensor_split(world_size)]",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_uses_torch_chunk = edit(
    ALL_TO_ALL,
    """torch.chunk cuts into pieces of ⌈length/N⌉, so the last ranks get short pieces or none. Use tensor_split instead:
    the lengths of its pieces differ by at most one.""",
    (
        "chunks = [chunk.contiguous() for chunk in tensor.tensor_split(world_size)]",
        "chunks = [chunk.contiguous() for chunk in tensor.chunk(world_size)]\n"
        "    chunks += [tensor.new_empty(0) for _ in range(world_size - len(chunks))]",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_adds_up = edit(
    ALL_TO_ALL,
    """You added up the chunks that arrived, which is a reduce-scatter. An all-to-all changes no number: return the
    chunks one after the other.""",
    ("return torch.cat(received)", "return torch.stack(received).sum(dim=0)"),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_returns_a_matrix = edit(
    ALL_TO_ALL,
    """You returned the chunks as rows of a matrix. The statement asks for a 1-D tensor: join them one after the
    other.""",
    ("torch.cat(received)", "torch.stack(received)"),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_returns_its_input = edit(
    ALL_TO_ALL,
    """With a single rank you returned the input itself: changing the result would then change the input. Return new
    memory in every case.""",
    ("    chunks = [", "    if world_size == 1:\n        return tensor\n    chunks = ["),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_receives_into_its_input = edit(
    ALL_TO_ALL,
    """You received into the input's own chunks, so the caller's tensor was changed. Receive into memory of your
    own.""",
    (
        "    return torch.cat(received)",
        "    result = torch.cat(received)\n"
        "    tensor.copy_(result[: len(tensor)]) if len(result) >= len(tensor) else None\n    return result",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)


@mutant(ALL_TO_ALL, breaks=tests_of(ALL_TO_ALL))
def all_to_all_passes_whole_vectors():
    """Your result is right, but each rank sent its whole vector to all others, who picked their chunk out of it: N
    times the bytes. Send each rank only the chunk that is meant for it."""

    def all_to_all(tensor):
        if tensor.dim() != 1:
            raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        whole = tensor.contiguous()
        received = [whole.clone() for _ in range(world_size)]
        for step in range(1, world_size):
            dst, src = (rank + step) % world_size, (rank - step) % world_size
            work = dist.isend(whole, dst=dst)
            dist.recv(received[src], src=src)
            work.wait()
        return torch.cat([vector.tensor_split(world_size)[rank] for vector in received])


all_to_all_sends_first = edit(
    ALL_TO_ALL,
    """Every rank waits in send until its partner receives, so no rank gets as far as receiving. Use a send that does
    not wait, receive, and then wait for the send.""",
    ("work = dist.isend(chunks[dst], dst=dst)", "dist.send(chunks[dst], dst=dst)"),
    ("        work.wait()\n", ""),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_by_torch = edit(
    ALL_TO_ALL,
    """You called torch's own all_to_all. It gives the right result, but this exercise asks you to build it yourself:
    use only sends and receives.""",
    (
        "    for step in range(1, world_size):\n"
        "        dst, src = (rank + step) % world_size, (rank - step) % world_size\n"
        "        work = dist.isend(chunks[dst], dst=dst)\n"
        "        dist.recv(received[src], src=src)\n"
        "        work.wait()\n",
        "    dist.all_to_all(received, chunks)\n",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
)

all_to_all_takes_any_shape = edit(
    ALL_TO_ALL,
    """You accepted a tensor that is not 1-D and cut it along its first axis. Raise the ValueError that the statement
    asks for, before anything is sent.""",
    (
        '    if tensor.dim() != 1:\n        raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")\n',
        "    tensor = tensor.reshape(-1)\n",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
    fails=["all_to_all_refuses_what_is_not_1d"],
)

all_to_all_checks_several_ranks_only = edit(
    ALL_TO_ALL,
    """With one rank you return before you look at the shape of `tensor`. The statement asks for the error on every
    rank, for any N: check first.""",
    (
        "    if tensor.dim() != 1",
        "    if dist.get_world_size() == 1:\n        return tensor.clone()\n    if tensor.dim() != 1",
    ),
    base=_all_to_all,
    breaks=tests_of(ALL_TO_ALL),
    fails=["all_to_all_refuses_what_is_not_1d"],
)
