"""Wrong answers to lesson 14, exercises 3 and 4."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

import torch
import torch.distributed as dist

from autograder.answers.mutants import edit, mutant, tests_of

EXCHANGE, LAYER = "14-ex3-all-to-all", "14-ex4-layer"

# ---- 3 · all_to_all ----

the_same_splits_backward = edit(
    EXCHANGE,
    """Your backward uses the forward's splits as they are. What was received is now sent: exchange the two lists.""",
    ("ctx.splits = input_splits, output_splits", "ctx.splits = output_splits, input_splits"),
    breaks=tests_of(EXCHANGE, LAYER),
    fails=["gradients_go_back_where_rows_came_from"],
)

gradients_stay_here = edit(
    EXCHANGE,
    """Your backward returns the gradients of the rows that arrived. They belong to the ranks that sent them: send them
    back.""",
    (
        "return all_to_all(grad, *ctx.splits), None, None",
        "return grad.new_zeros(sum(ctx.splits[0]), *grad.shape[1:]), None, None",
    ),
    breaks=tests_of(EXCHANGE, LAYER),
    fails=["gradients_go_back_where_rows_came_from"],
)


@mutant(EXCHANGE, breaks=tests_of(EXCHANGE), fails=["nothing_else_is_sent"])
def partners_by_exclusive_or():
    """Your partner is rank ^ step. With 2, 4, 8 ranks all are busy in every round; with 3 or 5 some rounds are half
    empty, and there are more of them than N − 1."""

    def all_to_all(rows, output_splits, input_splits):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        parts = [part.contiguous() for part in rows.split(input_splits)]
        into = [rows.new_empty(count, *rows.shape[1:]) for count in output_splits]
        into[rank] = parts[rank]
        for step in range(1, 8):
            partner = rank ^ step
            if partner < world_size:
                sending = dist.isend(parts[partner], partner)
                dist.recv(into[partner], partner)
                sending.wait()
        return torch.cat(into)

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, output_splits, input_splits):
            ctx.splits = input_splits, output_splits
            return all_to_all(rows, output_splits, input_splits)

        @staticmethod
        def backward(ctx, grad):
            return all_to_all(grad, *ctx.splits), None, None


@mutant(EXCHANGE, breaks=tests_of(EXCHANGE), fails=["nothing_else_is_sent"])
def everybody_begins_with_rank_0():
    """All ranks send to rank 0 first, then to rank 1. Each receives from all others in turn while most wait: it takes
    about twice as many rounds as needed."""

    def all_to_all(rows, output_splits, input_splits):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        parts = [part.contiguous() for part in rows.split(input_splits)]
        into = [rows.new_empty(count, *rows.shape[1:]) for count in output_splits]
        into[rank] = parts[rank]
        others = [other for other in range(world_size) if other != rank]
        sending = [dist.isend(parts[other], other) for other in others]
        for other in others:
            dist.recv(into[other], other)
        for work in sending:
            work.wait()
        return torch.cat(into)

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, output_splits, input_splits):
            ctx.splits = input_splits, output_splits
            return all_to_all(rows, output_splits, input_splits)

        @staticmethod
        def backward(ctx, grad):
            return all_to_all(grad, *ctx.splits), None, None


@mutant(EXCHANGE, breaks=tests_of(EXCHANGE, LAYER), fails=["nothing_else_is_sent"])
def the_library_exchanges():
    """You call the library's all-to-all. The exercise is to write it with point-to-point messages."""

    def all_to_all(rows, output_splits, input_splits):
        result = rows.new_empty(sum(output_splits), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), output_splits, input_splits)
        return result

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, output_splits, input_splits):
            ctx.splits = input_splits, output_splits
            return all_to_all(rows, output_splits, input_splits)

        @staticmethod
        def backward(ctx, grad):
            return all_to_all(grad, *ctx.splits), None, None


two_messages_each = edit(
    EXCHANGE,
    """You send two messages to each rank. One holds all rows for it; each message costs a start-up time.""",
    (
        "        sending = dist.isend(parts[to], to)\n"
        "        dist.recv(into[source], source)\n"
        "        sending.wait()\n",
        "        for out, back in zip(parts[to].tensor_split(2), into[source].tensor_split(2)):\n"
        "            sending = dist.isend(out, to)\n            dist.recv(back, source)\n            sending.wait()\n",
    ),
    breaks=tests_of(EXCHANGE),
    fails=["gradients_go_back_where_rows_came_from", "nothing_else_is_sent"],
)

everybody_gets_everything = edit(
    EXCHANGE,
    """You send all your rows to everybody, and each rank picks its own. Send each rank its part only.""",
    (
        "    into[rank] = parts[rank]\n",
        "    into[rank] = parts[rank]\n    whole = rows.contiguous()\n",
    ),
    (
        "        sending = dist.isend(parts[to], to)\n"
        "        dist.recv(into[source], source)\n"
        "        sending.wait()\n",
        "        sending = dist.isend(parts[to], to)\n"
        "        dist.recv(into[source], source)\n"
        "        sending.wait()\n"
        "        size, other = torch.tensor(len(whole)), torch.empty((), dtype=torch.int64)\n"
        "        sending = dist.isend(size, to)\n        dist.recv(other, source)\n        sending.wait()\n"
        "        room = rows.new_empty(int(other), *rows.shape[1:])\n"
        "        sending = dist.isend(whole, to)\n        dist.recv(room, source)\n        sending.wait()\n",
    ),
    breaks=tests_of(EXCHANGE, LAYER),
    fails=["gradients_go_back_where_rows_came_from", "nothing_else_is_sent"],
)

alone_it_returns_its_input = edit(
    EXCHANGE,
    """With one rank you return the rows themselves. The result should have memory of its own.""",
    (
        "    parts = [part",
        "    if world_size == 1:\n        return rows\n    parts = [part",
    ),
    breaks=tests_of(EXCHANGE),
)

in_the_order_of_rounds = edit(
    EXCHANGE,
    """Your rows are in the order in which they arrived. They should be in the order of the ranks: the receiver finds
    them by their positions.""",
    (
        "    return torch.cat(into)\n",
        "    return torch.cat([into[(rank - step) % world_size] for step in range(world_size)])\n",
    ),
    breaks=tests_of(EXCHANGE, LAYER),
)

parts_are_not_contiguous = edit(
    EXCHANGE,
    """You send parts of a tensor that is not contiguous in memory. gloo refuses them, and the rank that waits for them
    waits in vain: call contiguous().""",
    ("part.contiguous() for part", "part for part"),
    breaks=tests_of(EXCHANGE),
)

gradients_become_float32 = edit(
    EXCHANGE,
    """Gradients travel as float32 in your backward. Those of float64 rows lose half of their digits on the way: send
    them as they are.""",
    ("all_to_all(grad, *ctx.splits)", "all_to_all(grad.float(), *ctx.splits).to(grad.dtype)"),
    breaks=tests_of(EXCHANGE, LAYER),
    fails=["gradients_go_back_where_rows_came_from"],
)

rows_become_float32 = edit(
    EXCHANGE,
    """What arrives has a different dtype from what was sent. Every dtype should travel as it is, int64 too.""",
    ("    parts = [part", "    rows = rows.float()\n    parts = [part"),
    breaks=tests_of(EXCHANGE, LAYER),
)

# ---- 4 · the layer ----

experts_without_rows_are_skipped = edit(
    LAYER,
    """You do not call an expert without rows. Its parameters then get no gradient, and the graph that leads back to the
    other ranks is broken. Call every expert, even with 0 rows.""",
    (
        "            results = expert(torch.cat(blocks[mine]))\n",
        "            joined = torch.cat(blocks[mine])\n"
        "            results = expert(joined) if len(joined) else joined\n",
    ),
    breaks=tests_of(LAYER),
    fails=["experts_without_rows_take_part", "rows_travel_four_times"],
)

ranks_without_tokens_leave = edit(
    LAYER,
    """A rank without tokens returns at once. The others wait for its counts and its rows: it must take part in every
    exchange, and its experts serve the others.""",
    (
        "        factor = self.capacity_factor\n",
        "        if not len(x):\n            return torch.zeros_like(x), probabilities, chosen\n"
        "        factor = self.capacity_factor\n",
    ),
    breaks=tests_of(LAYER),
    fails=["experts_without_rows_take_part"],
)

rows_as_if_by_expert = edit(
    LAYER,
    """You cut the rows that arrive as if they were ordered by expert. They are ordered by rank, and only within a rank
    by expert. With one expert per rank there is no difference.""",
    (
        "blocks.flatten().tolist())",
        "blocks.t().flatten().tolist())",
    ),
    (
        "            mine = slice(number, None, len(self.experts))\n",
        "            each = len(blocks) // len(self.experts)\n"
        "            mine = slice(number * each, (number + 1) * each)\n",
    ),
    breaks=tests_of(LAYER),
)

capacity_of_the_whole_batch = edit(
    LAYER,
    """Your capacity is computed from the tokens of all ranks, and each rank may fill it. Each rank's capacity follows
    from its own tokens.""",
    ("capacity(len(x), ", "capacity(len(x) * self.world_size, "),
    breaks=tests_of(LAYER),
    fails=["full_experts_drop_the_rest", "rows_travel_four_times"],
)

factors_below_one_are_raised = edit(
    LAYER,
    """You raise a capacity factor below 1 to 1. It is allowed: an expert then serves less than its even share.""",
    (
        "capacity(len(x), self.num_experts, self.k, factor)",
        "capacity(len(x), self.num_experts, self.k, max(1, factor))",
    ),
    breaks=tests_of(LAYER),
    fails=["full_experts_drop_the_rest"],
)

nothing_is_dropped = edit(
    LAYER,
    """Your layer ignores the capacity factor.""",
    ("most = None if factor is None else capacity(len(x), self.num_experts, self.k, factor)", "most = None"),
    breaks=tests_of(LAYER),
    fails=["full_experts_drop_the_rest", "rows_travel_four_times"],
)

dropped_gates_are_shared_out = edit(
    LAYER,
    """Where a place was dropped, you raise the gates of the token's other places. Gates stay as they are.""",
    (
        "        weighted = back",
        "        flat = gates.reshape(-1)\n"
        "        total = torch.zeros_like(flat).index_add(0, order, flat[order]).view_as(gates)\n"
        "        share = (gates.sum(1, keepdim=True) / total.sum(1, keepdim=True).clamp(min=1e-30)).expand_as(gates)\n"
        "        gates = torch.where(total.sum(1, keepdim=True) > 0, gates * share, gates)\n"
        "        weighted = back",
    ),
    breaks=tests_of(LAYER),
    fails=["full_experts_drop_the_rest", "rows_travel_four_times"],
)

gate_before_the_expert = edit(
    LAYER,
    """You multiply the rows by their gates before the expert. An expert is not linear: its *output* is multiplied.""",
    (
        "AllToAll.apply(x[tokens], received, sent)",
        "AllToAll.apply(x[tokens] * gates.reshape(-1)[order, None], received, sent)",
    ),
    ("        weighted = back * gates.reshape(-1)[order, None].to(back.dtype)\n", "        weighted = back\n"),
    breaks=tests_of(LAYER),
)

gates_are_left_out = edit(
    LAYER,
    """You add up the experts' outputs without their gates.""",
    ("back * gates.reshape(-1)[order, None].to(back.dtype)", "back"),
    breaks=tests_of(LAYER),
)

gates_of_other_places = edit(
    LAYER,
    """You multiply by the gates in the order of the tokens. The rows that come back stand in the order of the plan.""",
    ("gates.reshape(-1)[order, None]", "gates.reshape(-1)[: len(order), None]"),
    breaks=tests_of(LAYER),
)

the_token_passes_through = edit(
    LAYER,
    """You start from x and add the experts' outputs to it. y is the sum of the experts' outputs alone, and a dropped
    place adds 0.""",
    ("torch.zeros_like(x).index_add", "x.clone().index_add"),
    breaks=tests_of(LAYER),
)

the_router_reads_a_copy = edit(
    LAYER,
    """Your router gets x without its graph. x must get its gradient through the router, too.""",
    ("self.router(x)", "self.router(x.detach())"),
    breaks=tests_of(LAYER),
)

experts_in_a_plain_list = edit(
    LAYER,
    """Your experts are in a plain list: parameters() does not find them, and no optimizer trains them.""",
    ("nn.ModuleList(experts)", "list(experts)"),
    breaks=tests_of(LAYER),
)

the_bias_is_no_buffer = edit(
    LAYER,
    """Your bias is an ordinary attribute. As a buffer it is saved with the state and moves with the module.""",
    (
        'self.register_buffer("bias", torch.zeros(self.num_experts))',
        "self.bias = torch.zeros(self.num_experts)",
    ),
    breaks=tests_of(LAYER),
    fails=["the_bias_is_a_registered_buffer"],
)

counts_are_gathered = edit(
    LAYER,
    """Every rank gathers the counts for all experts. It needs those for its own: exchange them.""",
    (
        "        blocks = all_to_all(counts, each, each).view(self.world_size, -1)  # rows by rank and own expert\n",
        "        found = [torch.empty_like(counts) for _ in each]\n"
        "        dist.all_gather(found, counts)\n"
        "        blocks = torch.stack(found).view(self.world_size, self.world_size, -1)[:, dist.get_rank()]\n",
    ),
    breaks=tests_of(LAYER),
    fails=["rows_travel_four_times"],
)

experts_run_for_each_rank = edit(
    LAYER,
    """You call an expert once for each rank that has rows for it. One call on all its rows uses the machine better.""",
    (
        "            results = expert(torch.cat(blocks[mine]))\n"
        "            blocks[mine] = results.split(sizes[mine])\n",
        "            blocks[mine] = [expert(block) for block in blocks[mine]]\n",
    ),
    breaks=tests_of(LAYER),
    fails=["rows_travel_four_times"],
)

experts_are_not_counted = edit(
    LAYER,
    """You accept a router for a different number of experts. The exchange would then hang or mix up the rows.""",
    ("if self.num_experts != self.world_size * len(experts):", "if False:"),
    breaks=tests_of(LAYER),
    fails=["experts_must_fit_the_ranks"],
)

y_alone_is_returned = edit(
    LAYER,
    """Your forward returns y alone. The balance loss needs the probabilities and the choices.""",
    (", weighted), probabilities, chosen", ", weighted)"),
    breaks=tests_of(LAYER),
)
