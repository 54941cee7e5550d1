"""Wrong answers to lesson 12, exercises 1 and 2."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

OPERATORS, POSITIONS, COLUMN = "12-ex1-operators", "12-ex2-enter-leave", "12-ex3-column"
ROW, BLOCK, ATTENTION, LOSS = "12-ex4-row", "12-ex5-mlp", "12-ex6-attention", "12-ex7-loss"

#: What is built on each class.
ON_COPY, ON_REDUCE = (OPERATORS, COLUMN, BLOCK, ATTENTION), (OPERATORS, ROW, BLOCK, ATTENTION, LOSS)


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
    """You all-reduced the arriving gradient in place. Autograd may pass the same tensor to other functions, which then
    find the sum in it, and a gradient that is not contiguous is garbled. Reduce a contiguous copy.""",
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
    """You exchanged Copy and Reduce. Copy stands where a split region begins: in forward it adds nothing, and in
    backward it adds up the ranks' gradients.""",
    ("class Copy(", "class Other("),
    ("class Reduce(", "class Copy("),
    ("class Other(", "class Reduce("),
    breaks=tests_of(OPERATORS, COLUMN, ROW, BLOCK, ATTENTION, LOSS),
)


# ---- 2 · Enter and Leave ----

ENTER_FORTH, ENTER_BACK = "        return joined(x)\n", "        return summed(grad)\n"
LEAVE_FORTH, LEAVE_BACK = "        return summed(x)\n", "        return joined(grad)\n"
WHOLE = (
    "    whole = torch.empty(dist.get_world_size() * part.shape[0], *part.shape[1:], dtype=part.dtype)\n"
    "    dist.all_gather_single(whole, part.contiguous())\n"
    "    return whole\n"
)
PART = (
    "    part = torch.empty(whole.shape[0] // dist.get_world_size(), *whole.shape[1:], dtype=whole.dtype)\n"
    "    dist.reduce_scatter_single(part, whole.contiguous())\n"
    "    return part\n"
)
OWN = "chunk(dist.get_world_size())[dist.get_rank()]"

enter_keeps_its_own_term = edit(
    POSITIONS,
    """In Enter's backward you took this rank's rows of its own gradient. Every rank computed with these rows, each with
    its own part of the weights, so their gradient is the sum over the ranks: reduce-scatter it.""",
    (ENTER_BACK, f"        return grad.{OWN}.clone()\n"),
    breaks=tests_of(POSITIONS),
)

enter_adds_up_everything = edit(
    POSITIONS,
    """In Enter's backward you all-reduced the whole gradient and then took this rank's rows. The numbers are right, but
    an all-reduce sends twice the bytes of the reduce-scatter that leaves each rank only its rows.""",
    (
        ENTER_BACK,
        "        total = grad.clone(memory_format=torch.contiguous_format)\n"
        f"        dist.all_reduce(total)\n        return total.{OWN}.clone()\n",
    ),
    breaks=tests_of(POSITIONS),
)

leave_adds_up_everything = edit(
    POSITIONS,
    """Your Leave all-reduces the whole tensor and then takes this rank's rows. The numbers are right, but an all-reduce
    sends twice the bytes of a reduce-scatter, and every rank holds the whole sum for a moment.""",
    (
        LEAVE_FORTH,
        "        total = x.clone(memory_format=torch.contiguous_format)\n"
        f"        dist.all_reduce(total)\n        return total.{OWN}.clone()\n",
    ),
    breaks=tests_of(POSITIONS),
)

leave_keeps_its_own_term = edit(
    POSITIONS,
    """Your Leave takes this rank's rows of what this rank has. That is one term of the sum: the ranks have tensors of
    the same shape that must be added up.""",
    (LEAVE_FORTH, f"        return x.{OWN}.clone()\n"),
    breaks=tests_of(POSITIONS),
)

leave_pads_the_gradient = edit(
    POSITIONS,
    """Your Leave's backward has zeros in the rows that other ranks got. This rank's numbers are a term of those rows,
    too. Their gradients are those that the other ranks know: gather them.""",
    (
        LEAVE_BACK,
        "        whole = torch.zeros(dist.get_world_size(), *grad.shape, dtype=grad.dtype)\n"
        "        whole[dist.get_rank()] = grad\n"
        "        return whole.flatten(0, 1)\n",
    ),
    breaks=tests_of(POSITIONS),
)

leave_gathers_by_adding = edit(
    POSITIONS,
    """In Leave's backward you padded each rank's gradient with zeros and all-reduced them. The numbers are right, but
    the rows need only to be joined, which an all-gather does with half the bytes.""",
    (
        LEAVE_BACK,
        "        whole = torch.zeros(dist.get_world_size(), *grad.shape, dtype=grad.dtype)\n"
        "        whole[dist.get_rank()] = grad\n"
        "        dist.all_reduce(whole)\n"
        "        return whole.flatten(0, 1)\n",
    ),
    breaks=tests_of(POSITIONS),
)

leave_averages = edit(
    POSITIONS,
    """You divided the sum by the number of ranks. The ranks' tensors are terms of one matrix product: they are added
    up, and nothing is divided by N.""",
    (PART, PART.replace("return part", "return part / dist.get_world_size()")),
    breaks=tests_of(POSITIONS),
)

enter_joins_the_last_dimension = edit(
    POSITIONS,
    """You joined the ranks' rows along the last dimension. Positions run along the first one.""",
    (
        WHOLE,
        "    pieces = [torch.empty(part.shape, dtype=part.dtype) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(pieces, part.contiguous())\n"
        "    return torch.cat(pieces, dim=-1)\n",
    ),
    breaks=tests_of(POSITIONS),
)

enter_forgets_the_dtype = edit(
    POSITIONS,
    """The tensor that you fill has torch's default dtype, float32, whatever the input has. Give it the input's
    dtype.""",
    (WHOLE, WHOLE.replace(", dtype=part.dtype", "").replace("part.contiguous()", "part.contiguous().float()")),
    breaks=tests_of(POSITIONS),
)

leave_deals_out_rows = edit(
    POSITIONS,
    """Your rank r gets every N-th row of the sum. Its rows must be consecutive, from r·T/N on, or the next Enter puts
    the positions into another order.""",
    (
        PART,
        PART.replace(
            "whole.contiguous()", "whole.unflatten(0, (-1, dist.get_world_size())).transpose(0, 1).flatten(0, 1)"
        ),
    ),
    breaks=tests_of(POSITIONS),
)

everyone_takes_the_first_rows = edit(
    POSITIONS,
    """Every rank returns the rows of rank 0. Rank r has the rows from r·T/N on.""",
    (
        PART,
        "    total = whole.clone(memory_format=torch.contiguous_format)\n"
        "    dist.all_reduce(total)\n"
        "    return total.chunk(dist.get_world_size())[0].clone()\n",
    ),
    breaks=tests_of(POSITIONS),
)

positions_trust_the_layout = edit(
    POSITIONS,
    """You handed the tensor to the reduce-scatter as it lies in memory. Where one rank's is transposed and another's is
    not, it adds different elements, without an error: make it contiguous first.""",
    (PART, PART.replace("whole.contiguous()", "whole")),
    breaks=tests_of(POSITIONS),
)

enter_and_leave_are_exchanged = edit(
    POSITIONS,
    """You exchanged Enter and Leave. Enter stands where a split region begins: it joins the rows of all ranks.""",
    ("class Enter(", "class Other("),
    ("class Leave(", "class Enter("),
    ("class Other(", "class Leave("),
    breaks=tests_of(POSITIONS),
)

buffers_are_float32 = edit(
    POSITIONS,
    """You handed gloo a buffer of torch's default dtype, float32, next to a tensor of another one, and it refuses the
    pair. Give the buffer the input's dtype.""",
    (WHOLE, WHOLE.replace(", dtype=part.dtype", "")),
    (PART, PART.replace(", dtype=whole.dtype", "")),
    breaks=tests_of(POSITIONS),
)

positions_have_two_dimensions = edit(
    POSITIONS,
    """Your buffer has two dimensions, whatever the input has. Only the first dimension counts positions: keep all that
    follow it, `*x.shape[1:]`.""",
    (WHOLE, WHOLE.replace("*part.shape[1:]", "part.shape[1]")),
    (PART, PART.replace("*whole.shape[1:]", "whole.shape[1]")),
    breaks=tests_of(POSITIONS),
)

leave_multiplies_the_gradient = edit(
    POSITIONS,
    """In Leave's backward you multiplied by the number of ranks. Each rank's number is one term of the sum, so it has
    the sum's gradient as it is: join the rows, and change no number.""",
    (LEAVE_BACK, "        return dist.get_world_size() * joined(grad)\n"),
    breaks=tests_of(POSITIONS),
)

the_backwards_are_exchanged = edit(
    POSITIONS,
    """You exchanged the two backwards. A backward goes the other way than its forward: where rows were joined, the
    gradients are summed and cut; where tensors were summed and cut, the gradients are joined.""",
    (ENTER_BACK, "        return other(grad)\n"),
    (LEAVE_BACK, ENTER_BACK),
    ("        return other(grad)\n", LEAVE_BACK),
    breaks=tests_of(POSITIONS),
)
