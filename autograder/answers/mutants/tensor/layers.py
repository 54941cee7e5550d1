"""Wrong answers to lesson 12, exercises 3, 4, 5 and 6."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

COLUMN = "12-ex3-column"
ROW, BLOCK, ATTENTION = "12-ex4-row", "12-ex5-mlp", "12-ex6-attention"

#: What is built on each class.
ON_COLUMN, ON_ROW = (COLUMN, BLOCK, ATTENTION), (ROW, BLOCK, ATTENTION)


# ---- 3 · ColumnParallelLinear ----

COLUMN_WEIGHT = "        self.weight = nn.Parameter(linear.weight.detach().chunk(world_size)[rank].clone())\n"
COLUMN_BIAS = "            self.bias = nn.Parameter(linear.bias.detach().chunk(world_size)[rank].clone())\n"
COLUMN_CHECK = (
    "        if linear.out_features % world_size:\n"
    '            raise ValueError(f"out_features = {linear.out_features} must be a multiple '
    'of the {world_size} ranks")\n'
)
COLUMN_FORTH = "        return functional.linear(Copy.apply(x), self.weight, self.bias)\n"

column_keeps_a_whole_copy_alive = edit(
    COLUMN,
    """You cloned the whole weight and cut afterwards. A slice keeps the memory of the whole tensor alive, so every rank
    still holds all of it: cut first, then clone.""",
    (
        COLUMN_WEIGHT,
        COLUMN_WEIGHT.replace(".detach().chunk(world_size)[rank].clone()", ".detach().clone().chunk(world_size)[rank]"),
    ),
    breaks=tests_of(*ON_COLUMN),
)

column_weight_is_a_view = edit(
    COLUMN,
    """Your weight is a view of the layer's own, so an optimizer step on one changes the other, and all of it stays in
    memory. Clone the rows that you cut out.""",
    (COLUMN_WEIGHT, COLUMN_WEIGHT.replace(".clone()", "")),
    breaks=tests_of(*ON_COLUMN),
)

column_weight_and_bias_are_views = edit(
    COLUMN,
    """Your weight and your bias are views of the layer's own, so an optimizer step on one changes the other. Clone the
    rows that you cut out.""",
    (COLUMN_WEIGHT, COLUMN_WEIGHT.replace(".clone()", "")),
    (COLUMN_BIAS, COLUMN_BIAS.replace(".clone()", "")),
    breaks=tests_of(*ON_COLUMN),
)

column_bias_is_a_view = edit(
    COLUMN,
    """Your bias is a view of the layer's own, so an optimizer step on one changes the other. Clone the bias that you
    cut out, as you do with the weight.""",
    (COLUMN_BIAS, COLUMN_BIAS.replace(".clone()", "")),
    breaks=tests_of(*ON_COLUMN),
)

column_enters_without_copy = edit(
    COLUMN,
    """x enters your layer without Copy. That makes no difference in forward, but in backward each rank gets only the
    part of x's gradient that came through its own outputs.""",
    (COLUMN_FORTH, COLUMN_FORTH.replace("Copy.apply(x)", "x")),
    breaks=tests_of(*ON_COLUMN),
)

column_takes_any_size = edit(
    COLUMN,
    """You split a layer whose out_features is not a multiple of N into unequal parts, or into fewer parts than ranks.
    Raise a ValueError that names out_features.""",
    (COLUMN_CHECK, ""),
    breaks=tests_of(COLUMN),
)

column_asserts = edit(
    COLUMN,
    """You checked the size with assert. Asserts are for your own mistakes, and python -O leaves them out: raise a
    ValueError that names out_features.""",
    (COLUMN_CHECK, '        assert linear.out_features % world_size == 0, "out_features"\n'),
    breaks=tests_of(COLUMN),
)

column_wants_a_bias = edit(
    COLUMN,
    """A layer without a bias has linear.bias = None, which cannot be cut. Set self.bias to None, too.""",
    ("        if linear.bias is not None:\n" + COLUMN_BIAS, COLUMN_BIAS[4:]),
    breaks=tests_of(*ON_COLUMN),
)

column_keeps_the_layer = edit(
    COLUMN,
    """You kept the unsplit layer as an attribute. nn.Module makes it a submodule: all its parameters stay in memory on
    every rank, and the optimizer gets them, too.""",
    (COLUMN_WEIGHT, COLUMN_WEIGHT + "        self.linear = linear\n"),
    breaks=tests_of(*ON_COLUMN),
)

column_cuts_torchs_columns = edit(
    COLUMN,
    """You cut the columns of PyTorch's weight. "Column-parallel" refers to A in Y = XA, and PyTorch stores A
    transposed: an output is a row of linear.weight.""",
    (COLUMN_WEIGHT, COLUMN_WEIGHT.replace("chunk(world_size)", "chunk(world_size, dim=1)")),
    breaks=tests_of(*ON_COLUMN),
)


# ---- 4 · RowParallelLinear ----

ROW_WEIGHT = "        self.weight = nn.Parameter(linear.weight.detach().chunk(world_size, dim=1)[rank].clone())\n"
ROW_BIAS = "        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())\n"
ROW_FORTH = (
    "        y = Reduce.apply(functional.linear(x, self.weight))\n"
    "        return y if self.bias is None else y + self.bias\n"
)

row_bias_is_the_layers_own = edit(
    ROW,
    """Your bias shares its memory with the layer's: detach makes no copy, so an optimizer step on one changes the
    other. Clone it.""",
    (ROW_BIAS, ROW_BIAS.replace(".clone()", "")),
    breaks=tests_of(*ON_ROW),
)

row_bias_in_equal_parts = edit(
    ROW,
    """Each of your ranks adds a part of the bias before the sum. The output is right, but the bias then gets only a
    part of its gradient. Add it once, after the all-reduce: its gradient is then whole on every rank without a
    message.""",
    (
        ROW_FORTH,
        "        share = None if self.bias is None else self.bias / dist.get_world_size()\n"
        "        return Reduce.apply(functional.linear(x, self.weight, share))\n",
    ),
    breaks=tests_of(*ON_ROW),
)

row_bias_on_the_first_rank = edit(
    ROW,
    """Only your rank 0 adds the bias. The output is right, but on the other ranks the bias gets no gradient, so after
    an optimizer step the ranks hold different biases. Let every rank add it after the sum.""",
    (
        ROW_FORTH,
        "        bias = self.bias if dist.get_rank() == 0 else None\n"
        "        return Reduce.apply(functional.linear(x, self.weight, bias))\n",
    ),
    breaks=tests_of(*ON_ROW),
)

row_weight_is_a_view = edit(
    ROW,
    """Your weight is a view of the layer's, which shares the memory of the whole and keeps it alive. Clone the columns
    that you cut out.""",
    (ROW_WEIGHT, ROW_WEIGHT.replace(".clone()", "")),
    breaks=tests_of(*ON_ROW),
)

row_weight_and_bias_are_the_layers_own = edit(
    ROW,
    """Your weight and your bias share the layer's memory, so an optimizer step on one changes the other. Clone what you
    take.""",
    (ROW_WEIGHT, ROW_WEIGHT.replace(".clone()", "")),
    (ROW_BIAS, ROW_BIAS.replace(".clone()", "")),
    breaks=tests_of(*ON_ROW),
)

row_takes_any_size = edit(
    ROW,
    """You split a layer whose in_features is not a multiple of N. Raise a ValueError that names in_features.""",
    ("        if linear.in_features % world_size:\n", "        if False:\n"),
    breaks=tests_of(ROW),
)

row_bias_before_the_sum = edit(
    ROW,
    """Every rank added the bias before the all-reduce, so the output contains it N times. Add it once, after the
    all-reduce.""",
    (ROW_FORTH, "        return Reduce.apply(functional.linear(x, self.weight, self.bias))\n"),
    breaks=tests_of(*ON_ROW),
)

row_gives_its_own_part = edit(
    ROW,
    """You returned this rank's part of the sum. Every output depends on all inputs: add up the parts with Reduce.""",
    (
        ROW_FORTH,
        ROW_FORTH.replace("Reduce.apply(functional.linear(x, self.weight))", "functional.linear(x, self.weight)"),
    ),
    breaks=tests_of(*ON_ROW),
)

row_cuts_torchs_rows = edit(
    ROW,
    """You cut the rows of PyTorch's weight. "Row-parallel" refers to A in Y = XA, and PyTorch stores A transposed: an
    input is a column of linear.weight.""",
    (ROW_WEIGHT, ROW_WEIGHT.replace("chunk(world_size, dim=1)", "chunk(world_size)")),
    breaks=tests_of(*ON_ROW),
)


# ---- 5 · ParallelMLP ----

BOTH = "        self.fc = ColumnParallelLinear(mlp.fc)\n        self.out = RowParallelLinear(mlp.out)\n"
MLP_FORTH = "        return self.out(functional.gelu(self.fc(x)))\n"

mlp_adds_up_twice = edit(
    BLOCK,
    """You added up the result of the row-parallel layer once more. It is already the sum, equal on all ranks, so it
    became N times too large. The layers already contain their operators.""",
    (
        MLP_FORTH,
        MLP_FORTH.replace(
            "return self.out(functional.gelu(self.fc(x)))", "return Reduce.apply(self.out(functional.gelu(self.fc(x))))"
        ),
    ),
    breaks=tests_of(BLOCK),
)

mlp_adds_up_the_hidden_numbers = edit(
    BLOCK,
    """You added up the hidden numbers of the ranks before GELU. They are different hidden numbers, not terms of one
    sum: each rank goes on with its own.""",
    (MLP_FORTH, MLP_FORTH.replace("self.fc(x)", "Reduce.apply(self.fc(x))")),
    breaks=tests_of(BLOCK),
)

mlp_enters_twice = edit(
    BLOCK,
    """x passes through Copy twice, once in your forward and once in the column-parallel layer. Its gradient is then
    summed twice, N times too large, with a second all-reduce. The layers already contain their operators.""",
    (MLP_FORTH, MLP_FORTH.replace("self.fc(x)", "self.fc(Copy.apply(x))")),
    breaks=tests_of(BLOCK),
)

mlp_keeps_the_mlp = edit(
    BLOCK,
    """You kept the given MLP as an attribute. nn.Module makes it a submodule: all its parameters stay in memory on
    every rank, and the optimizer gets them, too.""",
    (BOTH, "        self.mlp = mlp\n" + BOTH),
    breaks=tests_of(BLOCK),
)

mlp_approximates_gelu = edit(
    BLOCK,
    """You used the tanh approximation of GELU. The unsplit block uses the exact one: functional.gelu with its default
    arguments.""",
    (MLP_FORTH, MLP_FORTH.replace("gelu(self.fc(x))", 'gelu(self.fc(x), approximate="tanh")')),
    breaks=tests_of(BLOCK),
)

mlp_forgets_gelu = edit(
    BLOCK,
    """GELU is missing between your two layers. Without it the two layers are no more than one linear layer.""",
    (MLP_FORTH, "        return self.out(self.fc(x))\n"),
    breaks=tests_of(BLOCK),
)


# ---- 6 · ParallelAttention ----

ATTEND = "        return self.proj(causal_attention(self.qkv(x), self.heads))\n"
ORDER = "        order = rows.transpose(0, 1).flatten()  # q, k, v of rank 0's heads, q, k, v of rank 1's, …\n"

attention_bias_keeps_its_order = edit(
    ATTENTION,
    """Your weight has the rows of this rank's heads, but the bias was cut in its original order. Its numbers belong to
    the rows: bring both into the same order.""",
    (
        "            for p in by_rank.parameters():\n                p.copy_(p[order])\n",
        "            by_rank.weight.copy_(by_rank.weight[order])\n",
    ),
    breaks=tests_of(ATTENTION),
)

attention_reorders_the_given_block = edit(
    ATTENTION,
    """You reordered the rows of the given block itself, which then computes something else for the caller. Work on a
    copy.""",
    ("copy.deepcopy(attention.qkv)", "attention.qkv"),
    breaks=tests_of(ATTENTION),
)

attention_keeps_the_block = edit(
    ATTENTION,
    """You kept the given block as an attribute. nn.Module makes it a submodule: all its numbers stay in memory on
    every rank, and the optimizer gets them, too.""",
    (
        "        self.qkv = ColumnParallelLinear",
        "        self.attention = attention\n        self.qkv = ColumnParallelLinear",
    ),
    breaks=tests_of(ATTENTION),
)

attention_enters_three_times = edit(
    ATTENTION,
    """In your block q, k and v each have a Copy of their own, which makes three all-reduces in backward. Let x enter
    the split region once: autograd adds up the three gradients on the rank, before the all-reduce.""",
    (
        ATTEND,
        "        biases = [None] * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)\n"
        "        parts = zip(self.qkv.weight.chunk(3), biases)\n"
        "        qkv = torch.cat([functional.linear(Copy.apply(x), w, b) for w, b in parts], dim=-1)\n"
        "        return self.proj(causal_attention(qkv, self.heads))\n",
    ),
    breaks=tests_of(ATTENTION),
)

attention_checks_the_width = edit(
    ATTENTION,
    """You checked that N divides the width, not the number of heads. A head is never cut: raise a ValueError that names
    heads when N does not divide their number.""",
    ("        if attention.heads % world_size:\n", "        if attention.proj.in_features % world_size:\n"),
    breaks=tests_of(ATTENTION),
)

attention_deals_out_heads = edit(
    ATTENTION,
    """Your rank r has the heads r, r + N, r + 2N, …. Rank r's columns of proj belong to consecutive heads: give it the
    heads r·H/N to (r+1)·H/N − 1.""",
    (
        ".view(3, world_size, -1)\n" + ORDER,
        ".view(3, self.heads, world_size, -1)\n        order = rows.permute(2, 0, 1, 3).flatten()\n",
    ),
    breaks=tests_of(ATTENTION),
)

attention_goes_head_by_head = edit(
    ATTENTION,
    """Your rows go head by head, with q, k and v of one head together. The unsplit block has another layout: all q rows
    of this rank first, then all k rows, then all v rows.""",
    (".view(3, world_size, -1)\n", ".view(3, attention.heads, -1)\n"),
    breaks=tests_of(ATTENTION),
)

attention_counts_all_heads = edit(
    ATTENTION,
    """Each rank computes with the total number of heads, which divides its part of the width into too many heads that
    are too narrow. A rank has H/N heads.""",
    ("attention.heads // world_size", "attention.heads"),
    breaks=tests_of(ATTENTION),
)

attention_cuts_a_third = edit(
    ATTENTION,
    """You cut the fused qkv as it is, so the first ranks get q rows and the last ones v rows. Cut the three parts one
    by one, so that every rank has q, k and v of its own heads.""",
    ("ColumnParallelLinear(by_rank)", "ColumnParallelLinear(attention.qkv)"),
    breaks=tests_of(ATTENTION),
)

attention_looks_ahead = edit(
    ATTENTION,
    """Your attention has no mask, so positions attend to later ones. It must be causal, as in the unsplit block.""",
    (
        ATTEND,
        "        batch, length, _ = x.shape\n"
        "        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)\n"
        "        mixed = functional.scaled_dot_product_attention(q, k, v)\n"
        "        return self.proj(mixed.transpose(1, 2).flatten(2))\n",
    ),
    breaks=tests_of(ATTENTION),
)
