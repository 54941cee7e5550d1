"""Wrong answers to lesson 01, exercises 2 and 3."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE = "01-ex2-reduce-scatter", "01-ex3-all-gather", "01-ex4-all-reduce"


# ---- 2 · reduce_scatter ----


@right(REDUCE_SCATTER)
def _reduce_scatter():
    """Right: the base of the edits below."""

    def reduce_scatter(tensor):
        if tensor.dim() != 1:
            raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        chunks = [chunk.clone() for chunk in tensor.tensor_split(world_size)]
        for step in range(world_size - 1):
            mine = chunks[(rank - step - 2) % world_size]
            incoming = torch.empty_like(mine)
            work = dist.isend(chunks[(rank - step - 1) % world_size], dst=(rank + 1) % world_size)
            dist.recv(incoming, src=(rank - 1) % world_size)
            work.wait()
            mine += incoming
        return chunks[rank]


reduce_scatter_ends_one_chunk_too_far = edit(
    REDUCE_SCATTER,
    """Your sums are right, but rank r ends with chunk r + 1: each chunk starts on its own rank, and N − 1 steps later
    it is complete on the rank before its own. Start chunk c on rank c + 1, so that it ends on rank c.""",
    ("mine = chunks[(rank - step - 2) % world_size]", "mine = chunks[(rank - step - 1) % world_size]"),
    ("[(rank - step - 1) % world_size], dst", "[(rank - step) % world_size], dst"),
    ("return chunks[rank]", "return chunks[(rank + 1) % world_size]"),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE),
)

reduce_scatter_adds_into_its_input = edit(
    REDUCE_SCATTER,
    """tensor_split returns views, so adding into a chunk changed the caller's tensor, which must stay as it was. Work
    on copies of the chunks.""",
    (
        "chunks = [chunk.clone() for chunk in tensor.tensor_split(world_size)]",
        "chunks = tensor.tensor_split(world_size)",
    ),
    ("[(rank - step - 1) % world_size], dst", "[(rank - step - 1) % world_size].contiguous(), dst"),
    ("return chunks[rank]", "return chunks[rank].clone()"),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER),
)

reduce_scatter_returns_a_view_of_its_input = edit(
    REDUCE_SCATTER,
    """With one rank there is nothing to add, and you returned the input itself or a view of it. Changing the result
    would then change the input. Return new memory in every case, even for N = 1.""",
    (
        "chunks = [chunk.clone() for chunk in tensor.tensor_split(world_size)]",
        "chunks = list(tensor.tensor_split(world_size))",
    ),
    ("mine = chunks[(rank - step - 2) % world_size]", "place = (rank - step - 2) % world_size"),
    ("incoming = torch.empty_like(mine)", "incoming = torch.empty_like(chunks[place])"),
    ("[(rank - step - 1) % world_size], dst", "[(rank - step - 1) % world_size].contiguous(), dst"),
    ("mine += incoming", "chunks[place] = chunks[place] + incoming"),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER),
)


@mutant(REDUCE_SCATTER, breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE))
def reduce_scatter_sends_the_whole_vector():
    """Your numbers are right, but each message was the whole vector. Each rank needs only one chunk of the sum: let
    partial sums of single chunks travel round the ring."""

    def reduce_scatter(tensor):
        if tensor.dim() != 1:
            raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        total, passing = tensor.clone(), tensor.clone()
        for _ in range(world_size - 1):
            incoming = torch.empty_like(passing)
            work = dist.isend(passing, dst=(rank + 1) % world_size)
            dist.recv(incoming, src=(rank - 1) % world_size)
            work.wait()
            total, passing = total + incoming, incoming
        return total.tensor_split(world_size)[rank].clone()


@mutant(REDUCE_SCATTER, breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE))
def reduce_scatter_sends_to_everybody():
    """Each rank sent its chunks straight to their owners. The number of bytes is right, but most messages go to ranks
    that are not neighbors, and on a ring of links each would cross many links. Pass partial sums on to the right
    neighbor."""

    def reduce_scatter(tensor):
        if tensor.dim() != 1:
            raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        chunks = [chunk.clone() for chunk in tensor.tensor_split(world_size)]
        for distance in range(1, world_size):
            dst, src = (rank + distance) % world_size, (rank - distance) % world_size
            incoming = torch.empty_like(chunks[rank])
            work = dist.isend(chunks[dst], dst=dst)
            dist.recv(incoming, src=src)
            work.wait()
            chunks[rank] += incoming
        return chunks[rank]


reduce_scatter_uses_torch_chunk = edit(
    REDUCE_SCATTER,
    """torch.chunk cuts into pieces of ⌈length/N⌉, so the last ranks get short pieces or none. Use the pieces of
    tensor_split, whose lengths differ by at most one.""",
    (
        "chunks = [chunk.clone() for chunk in tensor.tensor_split(world_size)]",
        "chunks = [chunk.clone() for chunk in tensor.chunk(world_size)]\n"
        "    chunks += [tensor.new_empty(0) for _ in range(world_size - len(chunks))]",
    ),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE),
)

reduce_scatter_averages = edit(
    REDUCE_SCATTER,
    """You divided by the number of ranks. The collective returns the sum; a caller that wants the mean divides
    afterwards.""",
    ("return chunks[rank]", "return chunks[rank] / world_size"),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE),
)


@mutant(REDUCE_SCATTER, breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE))
def reduce_scatter_overwrites():
    """The numbers from the left neighbor replaced your own part of the chunk instead of being added to it, so the
    result holds one rank's numbers. Receive into a separate buffer and add."""

    def reduce_scatter(tensor):
        if tensor.dim() != 1:
            raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        chunks = [chunk.clone() for chunk in tensor.tensor_split(world_size)]
        for step in range(world_size - 1):
            work = dist.isend(chunks[(rank - step - 1) % world_size], dst=(rank + 1) % world_size)
            dist.recv(chunks[(rank - step - 2) % world_size], src=(rank - 1) % world_size)
            work.wait()
        return chunks[rank]


reduce_scatter_stops_one_step_early = edit(
    REDUCE_SCATTER,
    """One rank's part is missing from every chunk: your ring made N − 2 steps. A chunk that starts on one rank has N −
    1 others to visit.""",
    ("(world_size - 1):", "(world_size - 2):"),
    ("mine = chunks[(rank - step - 2) % world_size]", "mine = chunks[(rank - step - 3) % world_size]"),
    ("(rank - step - 1) % world_size", "(rank - step - 2) % world_size"),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE),
)

reduce_scatter_everybody_sends_first = edit(
    REDUCE_SCATTER,
    """Every rank waits in send until its right neighbor receives, so no rank gets as far as receiving. Use a send that
    does not wait (isend), receive, and then wait for the send.""",
    ("work = dist.isend", "dist.send"),
    ("        work.wait()\n", ""),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER, ALL_REDUCE),
)


reduce_scatter_takes_any_shape = edit(
    REDUCE_SCATTER,
    """You accepted a tensor that is not 1-D and cut it along its first axis. Its rows are not the chunks of a vector:
    raise the ValueError before anything is sent.""",
    (
        '    if tensor.dim() != 1:\n        raise ValueError(f"tensor must be 1-D, got shape {tuple(tensor.shape)}")\n',
        "",
    ),
    breaks=tests_of(REDUCE_SCATTER),
    fails=["reduce_scatter_refuses_what_is_not_1d"],
)

reduce_scatter_checks_several_ranks_only = edit(
    REDUCE_SCATTER,
    """With one rank you return before you look at the tensor's shape. The statement asks for the error on every rank,
    for any N: check first.""",
    (
        "    if tensor.dim() != 1",
        "    if dist.get_world_size() == 1:\n        return tensor.clone()\n    if tensor.dim() != 1",
    ),
    base=_reduce_scatter,
    breaks=tests_of(REDUCE_SCATTER),
    fails=["reduce_scatter_refuses_what_is_not_1d"],
)


# ---- 3 · all_gather ----


@mutant(ALL_GATHER, breaks=tests_of(ALL_GATHER, ALL_REDUCE))
def all_gather_labels_chunks_one_too_far():
    """All the chunks arrived, but each is one place off. In step s the chunk from the left neighbor is the one that
    started s + 1 ranks back, chunk rank − s − 1; your own chunk does not move."""

    def all_gather(chunk, numel):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        lengths = [len(part) for part in torch.empty(numel).tensor_split(world_size)]
        if chunk.shape != (lengths[rank],):
            raise ValueError(f"chunk must have shape {(lengths[rank],)}, got {tuple(chunk.shape)}")
        parts, passing = [chunk.clone() for _ in range(world_size)], chunk.clone()
        for step in range(world_size - 1):
            incoming = chunk.new_empty(lengths[(rank - step - 1) % world_size])
            work = dist.isend(passing, dst=(rank + 1) % world_size)
            dist.recv(incoming, src=(rank - 1) % world_size)
            work.wait()
            parts[(rank - step - 2) % world_size] = passing = incoming
        return torch.cat(parts)


@mutant(ALL_GATHER, breaks=tests_of(ALL_GATHER, ALL_REDUCE))
def all_gather_always_sends_its_own():
    """In every step you sent your own chunk again, so each rank sees only its left neighbor's chunk. After the first
    step, pass on what you have just received."""

    def all_gather(chunk, numel):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        whole = chunk.new_zeros(numel)
        parts = whole.tensor_split(world_size)
        if chunk.shape != parts[rank].shape:
            raise ValueError(f"chunk must have shape {tuple(parts[rank].shape)}, got {tuple(chunk.shape)}")
        parts[rank].copy_(chunk)
        left = (rank - 1) % world_size
        for step in range(world_size - 1):
            incoming = torch.zeros_like(parts[left])
            work = dist.isend(chunk.contiguous(), dst=(rank + 1) % world_size)
            dist.recv(incoming, src=left)
            work.wait()
            part = parts[(rank - step - 1) % world_size]
            length = min(len(part), len(incoming))
            part[:length] = incoming[:length]
        return whole


@mutant(ALL_GATHER, breaks=tests_of(ALL_GATHER, ALL_REDUCE))
def all_gather_assumes_equal_chunks():
    """You took numel // N as the length of every chunk. When N does not divide numel, the first chunks are one element
    longer: take the lengths from tensor_split or from divmod(numel, N)."""

    def all_gather(chunk, numel):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        length = numel // world_size
        if chunk.dim() != 1 or len(chunk) not in (length, length + 1):
            raise ValueError(f"chunk must have {length} elements, got shape {tuple(chunk.shape)}")
        parts = [chunk.new_zeros(length) for _ in range(world_size)]
        parts[rank] = chunk[:length].clone()
        for step in range(world_size - 1):
            work = dist.isend(parts[(rank - step) % world_size], dst=(rank + 1) % world_size)
            dist.recv(parts[(rank - step - 1) % world_size], src=(rank - 1) % world_size)
            work.wait()
        return torch.cat(parts)


@mutant(ALL_GATHER, breaks=tests_of(ALL_GATHER, ALL_REDUCE))
def all_gather_sends_straight_to_everybody():
    """Each rank sent its chunk directly to every other rank. The number of bytes is right, but most messages go to
    ranks that are not neighbors. On a ring, each rank passes to the right what it has just received from the left."""

    def all_gather(chunk, numel):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        whole = chunk.new_empty(numel)
        parts = whole.tensor_split(world_size)
        if chunk.shape != parts[rank].shape:
            raise ValueError(f"chunk must have shape {tuple(parts[rank].shape)}, got {tuple(chunk.shape)}")
        parts[rank].copy_(chunk)
        others = [other for other in range(world_size) if other != rank]
        works = [dist.isend(chunk.contiguous(), dst=other) for other in others]
        for other in others:
            dist.recv(parts[other], src=other)
        for work in works:
            work.wait()
        return whole


@mutant(ALL_GATHER, breaks=tests_of(ALL_GATHER, ALL_REDUCE))
def all_gather_passes_the_whole_vector():
    """Your numbers are right, but each message was the whole vector, most of it still empty. Send only the chunk that
    your neighbor does not have yet."""

    def all_gather(chunk, numel):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        whole = chunk.new_zeros(numel)
        parts = whole.tensor_split(world_size)
        if chunk.shape != parts[rank].shape:
            raise ValueError(f"chunk must have shape {tuple(parts[rank].shape)}, got {tuple(chunk.shape)}")
        parts[rank].copy_(chunk)
        passing = whole.clone()
        for step in range(world_size - 1):
            incoming = torch.empty_like(whole)
            work = dist.isend(passing, dst=(rank + 1) % world_size)
            dist.recv(incoming, src=(rank - 1) % world_size)
            work.wait()
            place = (rank - step - 1) % world_size
            parts[place].copy_(incoming.tensor_split(world_size)[place])
            passing = incoming
        return whole


all_gather_takes_the_length_first = edit(
    ALL_GATHER,
    """A chunk of shape () has no length: len() raises a TypeError before you have looked at the number of dimensions.
    Ask for dim() first, or compare the shape.""",
    ("if chunk.shape != chunks[rank].shape:", "if len(chunk) != len(chunks[rank]) or chunk.dim() != 1:"),
    breaks=tests_of(ALL_GATHER),
    fails=["all_gather_refuses_a_chunk_that_does_not_fit"],
)

all_gather_cuts_a_long_chunk = edit(
    ALL_GATHER,
    """You refuse a chunk that is too short, but you cut one that is too long, and its last numbers are silently lost.
    Raise the ValueError for any wrong length.""",
    ("if chunk.shape != chunks[rank].shape:", "if chunk.dim() != 1 or len(chunk) < len(chunks[rank]):"),
    ("chunks[rank].copy_(chunk)", "chunks[rank].copy_(chunk[: len(chunks[rank])])"),
    breaks=tests_of(ALL_GATHER),
    fails=["all_gather_refuses_a_chunk_that_does_not_fit"],
)

all_gather_checks_several_ranks_only = edit(
    ALL_GATHER,
    """With one rank you return before you look at the chunk. The chunk has to fit `numel` there as well: check
    first.""",
    (
        "    right, left =",
        "    if world_size == 1:\n        return chunk.clone()\n    right, left =",
    ),
    breaks=tests_of(ALL_GATHER),
    fails=["all_gather_refuses_a_chunk_that_does_not_fit"],
)


@mutant(ALL_GATHER, breaks=tests_of(ALL_GATHER), fails=["all_gather_refuses_a_chunk_that_does_not_fit"])
def all_gather_takes_any_chunk():
    """You accepted a chunk whose length does not fit `numel`, and cut or padded it. If a sender and a receiver disagree
    about sizes, a process crashes or the result is garbage: raise the ValueError before anything is sent."""

    def all_gather(chunk, numel):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        whole = chunk.new_zeros(numel)
        parts = whole.tensor_split(world_size)
        flat = chunk.reshape(-1)
        length = min(len(flat), len(parts[rank]))
        parts[rank][:length] = flat[:length]
        for step in range(world_size - 1):
            work = dist.isend(parts[(rank - step) % world_size], dst=(rank + 1) % world_size)
            dist.recv(parts[(rank - step - 1) % world_size], src=(rank - 1) % world_size)
            work.wait()
        return whole
