"""Wrong answers to lesson 12, exercises 1 and 2."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

OPERATORS, PIECES, COLUMN = "12-ex1-operators", "12-ex2-pieces", "12-ex3-column"
ROW, BLOCK, ATTENTION = "12-ex4-row", "12-ex5-mlp", "12-ex6-attention"

#: What is built on each class.
ON_COPY, ON_REDUCE = (OPERATORS, COLUMN, BLOCK, ATTENTION), (OPERATORS, ROW, BLOCK, ATTENTION)
ON_GATHER, ON_CUT = (PIECES, COLUMN), (PIECES, ROW)


# ---- 1 · Copy and Reduce ----

CLONE_X = "        total = x.clone(memory_format=torch.contiguous_format)\n"
COPY_BACK = (
    "        total = grad.clone(memory_format=torch.contiguous_format)\n"
    "        dist.all_reduce(total)\n"
    "        return total\n"
)
REDUCE_FORTH = CLONE_X + "        dist.all_reduce(total)\n        return total\n"
REDUCE_BACK = "        return grad\n"

copy_writes_into_the_gradient = edit(
    OPERATORS,
    """You all-reduced the arriving gradient in place. Autograd may pass the same tensor to others, who then find the
    sum in it, and a gradient that is not contiguous is garbled. Reduce a contiguous copy.""",
    (COPY_BACK, "        dist.all_reduce(grad)\n        return grad\n"),
    breaks=tests_of(OPERATORS),
)

reduce_trusts_contiguous = edit(
    OPERATORS,
    """x.contiguous() makes a copy only where x is not contiguous; otherwise it is x itself, and the all-reduce then
    writes into your input. Make a copy in every case.""",
    (CLONE_X, "        total = x.contiguous()\n"),
    breaks=tests_of(OPERATORS),
)

reduce_keeps_gaps_in_memory = edit(
    OPERATORS,
    """You all-reduced a copy, but one with gaps in memory, as the input had. gloo adds up the memory of a tensor as if
    it were contiguous, so it added other numbers. Copy into contiguous memory.""",
    (
        CLONE_X,
        "        total = torch.as_strided(torch.zeros(4 * x.numel() + 16, dtype=x.dtype), x.shape, x.stride())\n"
        "        total = total.copy_(x) if 0 not in x.stride() else x.clone()\n",
    ),
    breaks=tests_of(OPERATORS),
)

a_clone_keeps_the_layout = edit(
    OPERATORS,
    """clone() keeps the layout: the clone of a transposed tensor is transposed. The all-reduce adds up memory, so where
    one rank's tensor is transposed and another's is not, it adds different elements. Ask clone for contiguous
    memory.""",
    (CLONE_X, "        total = x.clone()\n"),
    (COPY_BACK, COPY_BACK.replace("memory_format=torch.contiguous_format", "")),
    breaks=tests_of(OPERATORS),
)

reduce_adds_up_backward_too = edit(
    OPERATORS,
    """Your Reduce all-reduces in its backward as well, like torch's own differentiable all-reduce. All ranks compute
    the same loss, so each already has the whole gradient: adding them up makes it N times too large.""",
    (
        REDUCE_BACK,
        "        both = grad.clone(memory_format=torch.contiguous_format)\n"
        "        dist.all_reduce(both)\n"
        "        return both\n",
    ),
    breaks=tests_of(*ON_REDUCE),
)

reduce_rounds_to_float32 = edit(
    OPERATORS,
    """Your sum is float32, whatever the dtype of x is. Keep the dtype of the input in the buffer that is reduced.""",
    (CLONE_X, CLONE_X.replace("_format)\n", "_format).float()\n")),
    breaks=tests_of(*ON_REDUCE),
)

copy_passes_the_gradient = edit(
    OPERATORS,
    """Your Copy's backward passes on this rank's gradient alone. That is only the part that came through its own piece
    of the layer; the whole gradient is the sum of all ranks' parts.""",
    (COPY_BACK, "        return grad.clone()\n"),
    breaks=tests_of(*ON_COPY),
)

copy_averages = edit(
    OPERATORS,
    """You took the mean of the ranks' gradients, as data parallelism does. In tensor parallelism they are the terms of
    one sum, each through another piece of the same layer: nothing is divided by N.""",
    (COPY_BACK, COPY_BACK.replace("return total", "return total / dist.get_world_size()")),
    breaks=tests_of(*ON_COPY),
)

reduce_averages = edit(
    OPERATORS,
    """Your Reduce gives the mean of the ranks' parts. A matrix product that is cut along its inputs is the sum of the
    parts: nothing is divided by N.""",
    (REDUCE_FORTH, REDUCE_FORTH.replace("return total", "return total / dist.get_world_size()")),
    breaks=tests_of(*ON_REDUCE),
)

reduce_gathers_everything = edit(
    OPERATORS,
    """You gathered the parts of all ranks and added them up on each. The sum is right, but every rank then holds N
    parts and receives N − 1 of them, where an all-reduce on a ring receives fewer than two.""",
    (
        REDUCE_FORTH,
        "        parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(parts, x.contiguous())\n"
        "        return sum(parts)\n",
    ),
    breaks=tests_of(*ON_REDUCE),
)

the_operators_are_exchanged = edit(
    OPERATORS,
    """You exchanged Copy and Reduce. Copy stands where a split region begins: it adds nothing forward, and adds the
    ranks' gradients backward.""",
    ("class Copy(", "class Other("),
    ("class Reduce(", "class Copy("),
    ("class Other(", "class Reduce("),
    breaks=tests_of(OPERATORS, COLUMN, ROW, BLOCK, ATTENTION),
)


# ---- 2 · Gather and Cut ----

GATHER_BACK = "        return grad.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()]\n"
CUT_FORTH = "        return x.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].clone()\n"
CUT_BACK = (
    "        pieces = [torch.empty(grad.shape, dtype=grad.dtype) for _ in range(dist.get_world_size())]\n"
    "        dist.all_gather(pieces, grad.contiguous())\n"
    "        return torch.cat(pieces, dim=-1)\n"
)
PAD = (
    "        pieces = [torch.zeros(grad.shape, dtype=grad.dtype) for _ in range(dist.get_world_size())]\n"
    "        pieces[dist.get_rank()] = grad\n"
)

cut_adds_up_padded_gradients = edit(
    PIECES,
    """You padded each rank's gradient with zeros and all-reduced them. The numbers are right, but most of what you add
    is zeros: the pieces only need to be put side by side, which an all-gather does with half the bytes.""",
    (
        CUT_BACK,
        PAD + "        whole = torch.cat(pieces, dim=-1)\n        dist.all_reduce(whole)\n        return whole\n",
    ),
    breaks=tests_of(*ON_CUT),
)

gather_adds_up_backward = edit(
    PIECES,
    """In Gather's backward you added up the ranks' gradients. All ranks have the same gradient of the same loss, so the
    sum is N times too large: return this rank's part of it.""",
    (
        GATHER_BACK,
        "        total = grad.clone(memory_format=torch.contiguous_format)\n"
        "        dist.all_reduce(total)\n" + GATHER_BACK.replace("grad.", "total."),
    ),
    breaks=tests_of(*ON_GATHER),
)

gather_forgets_the_dtype = edit(
    PIECES,
    """Your buffers for the pieces have torch's default dtype, float32, whatever x has. Make them like x, dtype
    included.""",
    ("torch.empty(x.shape, dtype=x.dtype)", "torch.empty(x.shape)"),
    breaks=tests_of(*ON_GATHER),
)

cut_gives_back_its_own_part = edit(
    PIECES,
    """Your Cut's backward gives zeros for the columns that other ranks took. x is the same tensor on all ranks, so its
    gradient has the other ranks' columns, too: gather them.""",
    (CUT_BACK, PAD + "        return torch.cat(pieces, dim=-1)\n"),
    breaks=tests_of(*ON_CUT),
)

gather_gives_back_the_first_part = edit(
    PIECES,
    """Your Gather's backward gives every rank the first part of the gradient. Rank r's piece has place r in the
    gathered tensor.""",
    (GATHER_BACK, "        return grad.chunk(dist.get_world_size(), dim=-1)[0]\n"),
    breaks=tests_of(*ON_GATHER),
)

gather_stacks_along_the_first_dimension = edit(
    PIECES,
    """You joined the pieces along the first dimension, which holds the sequences of the batch. A layer's outputs are
    cut along the last dimension.""",
    (
        "        dist.all_gather(pieces, x.contiguous())\n        return torch.cat(pieces, dim=-1)\n",
        "        dist.all_gather(pieces, x.contiguous())\n        return torch.cat(pieces, dim=0)\n",
    ),
    breaks=tests_of(*ON_GATHER),
)

cut_deals_out_columns = edit(
    PIECES,
    """You dealt the columns out in turn: rank r got every N-th. The parts must be contiguous, with the first columns on
    the first rank, or they do not match the columns of the weight that rank r has.""",
    (CUT_FORTH, "        return x[..., dist.get_rank() :: dist.get_world_size()].clone()\n"),
    breaks=tests_of(*ON_CUT),
)
