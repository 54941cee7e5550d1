"""Wrong answers to lesson 14, exercises 1 and 2."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

ROUTE, PLAN, LAYER = "14-ex1-route", "14-ex2-plan", "14-ex4-layer"

# ---- 1 · route ----

bias_in_the_gates = edit(
    ROUTE,
    """Your gates contain the bias. The bias is there only to move the choice: in a gate it changes what the layer
    computes.""",
    ("probabilities.gather(-1, chosen)", "scores.gather(-1, chosen)"),
    breaks=tests_of(ROUTE, LAYER),
)

gates_are_renormalised = edit(
    ROUTE,
    """You divided the gates by their sum. With k = 1 they are then always 1, and the router gets no gradient.""",
    (
        "    return probabilities, chosen, probabilities.gather(-1, chosen)",
        "    gates = probabilities.gather(-1, chosen)\n"
        "    return probabilities, chosen, gates / gates.sum(dim=-1, keepdim=True)",
    ),
    breaks=tests_of(ROUTE, LAYER),
)

softmax_over_the_chosen = edit(
    ROUTE,
    """Your gates are a softmax over the chosen scores only. They should be the probabilities among all experts.""",
    ("probabilities.gather(-1, chosen)", "wide.gather(-1, chosen).softmax(dim=-1)"),
    breaks=tests_of(ROUTE, LAYER),
)

computed_in_the_models_dtype = edit(
    ROUTE,
    """With 16-bit logits your softmax is computed in 16 bits. Convert them to float32 first: small differences between
    experts decide.""",
    ("wide = logits if logits.dtype == torch.float64 else logits.float()", "wide = logits"),
    breaks=tests_of(ROUTE),
)

always_in_float32 = edit(
    ROUTE,
    """You convert float64 logits to float32 as well. They should keep their precision.""",
    ("wide = logits if logits.dtype == torch.float64 else logits.float()", "wide = logits.float()"),
    breaks=tests_of(ROUTE, LAYER),
)

bias_is_ignored = edit(
    ROUTE,
    """Your choice does not look at the bias.""",
    ("scores = probabilities if bias is None else probabilities + bias", "scores = probabilities"),
    breaks=tests_of(ROUTE, LAYER),
)

bias_is_added_to_the_logits = edit(
    ROUTE,
    """You add the bias to the logits. It belongs to the probabilities: after the softmax, and for the choice alone.""",
    (
        "    scores = probabilities if bias is None else probabilities + bias\n",
        "    scores = wide if bias is None else wide + bias\n",
    ),
    breaks=tests_of(ROUTE, LAYER),
)

smallest_of_the_chosen_first = edit(
    ROUTE,
    """Your chosen experts are sorted from the lowest score up. The first choice should be the most probable expert:
    capacity serves first choices first.""",
    ("topk(k, dim=-1).indices", "topk(k, dim=-1).indices.flip(-1)"),
    breaks=tests_of(ROUTE, LAYER),
)

gates_are_detached = edit(
    ROUTE,
    """No gradient flows through your gates. The router learns through them alone.""",
    ("probabilities.gather(-1, chosen)", "probabilities.detach().gather(-1, chosen)"),
    breaks=tests_of(ROUTE, LAYER),
    fails=["gradients_flow_through_the_gates"],
)

probabilities_are_detached = edit(
    ROUTE,
    """No gradient flows through the probabilities that you return. A balance loss needs it.""",
    ("return probabilities, chosen", "return probabilities.detach(), chosen"),
    breaks=tests_of(ROUTE, LAYER),
    fails=["gradients_flow_through_the_gates"],
)

k_is_not_checked = edit(
    ROUTE,
    """You leave an impossible k to torch, whose error does not name k. Raise a ValueError that names k.""",
    ("if not 1 <= k <= logits.shape[-1]:", "if False:"),
    breaks=tests_of(ROUTE),
    fails=["a_k_out_of_range_is_refused"],
)

k_of_zero_passes = edit(
    ROUTE,
    """You accept a k of 0 or below. A token must go somewhere: k is at least 1.""",
    ("if not 1 <= k <= logits.shape[-1]:", "if k > logits.shape[-1]:"),
    breaks=tests_of(ROUTE),
    fails=["a_k_out_of_range_is_refused"],
)

# ---- 2 · plan ----

places_in_the_order_of_tokens = edit(
    PLAN,
    """You go token by token. A token's second choice then takes a place from a later token's first choice: all first
    choices come before all second ones.""",
    ("torch.arange(tokens * k).view(tokens, k).t().reshape(-1)  # first choices first", "torch.arange(tokens * k)"),
    ("chosen.t().reshape(-1)", "chosen.reshape(-1)"),
    breaks=tests_of(PLAN, LAYER),
)

places_as_if_transposed = edit(
    PLAN,
    """You number the places choice by choice. A place is token · k + choice, whatever the order in which you walk.""",
    ("torch.arange(tokens * k).view(tokens, k).t().reshape(-1)  # first choices first", "torch.arange(tokens * k)"),
    breaks=tests_of(PLAN, LAYER),
)

counts_before_dropping = edit(
    PLAN,
    """Your counts are those of all choices. They should count only what is kept: the ranks send exactly that many
    rows.""",
    (
        "torch.tensor([len(mine) for mine in kept])",
        "torch.bincount(experts, minlength=num_experts)",
    ),
    breaks=tests_of(PLAN, LAYER),
)

empty_experts_have_no_count = edit(
    PLAN,
    """An expert that nobody chose is missing from your counts. It needs a 0: an expert's count is found by its
    position.""",
    ("for mine in kept])", "for mine in kept if len(mine)])"),
    breaks=tests_of(PLAN, LAYER),
)

tokens_instead_of_places = edit(
    PLAN,
    """Your order lists tokens. It should list places, token · k + choice: the gate is found by the choice.""",
    ("return torch.cat(kept), ", "return torch.cat(kept) // k, "),
    breaks=tests_of(PLAN, LAYER),
)

the_last_ones_stay = edit(
    PLAN,
    """When an expert is full, you keep the last places. First come, first served: keep the first ones.""",
    ("[:capacity]", "[None if capacity is None else max(0, int((experts == number).sum()) - capacity):]"),
    breaks=tests_of(PLAN, LAYER),
)

no_capacity_at_all_keeps_everything = edit(
    PLAN,
    """A capacity of 0 keeps everything. 0 is a number like any other; only None means that there is no limit.""",
    ("[:capacity]", "[: capacity or None]"),
    breaks=tests_of(PLAN),
)

capacity_rounds_down = edit(
    PLAN,
    """You round the capacity down. With few tokens it is then 0, and everything is dropped: round up.""",
    ("math.ceil", "math.floor"),
    breaks=tests_of(PLAN, LAYER),
    fails=["capacity_is_rounded_up"],
)

capacity_without_k = edit(
    PLAN,
    """You forgot that each token makes k choices: there are k · tokens places to serve.""",
    ("factor * k * tokens", "factor * tokens"),
    breaks=tests_of(PLAN, LAYER),
    fails=["capacity_is_rounded_up"],
)

capacity_is_a_float = edit(
    PLAN,
    """Your capacity is a float. It counts places: return an int.""",
    (
        "return math.ceil(factor * k * tokens / num_experts)",
        "return float(math.ceil(factor * k * tokens / num_experts))",
    ),
    breaks=tests_of(PLAN, LAYER),
    fails=["capacity_is_rounded_up"],
)

a_factor_of_zero_passes = edit(
    PLAN,
    """You accept a factor of 0. It would silently drop every token.""",
    ("factor <= 0", "factor < 0"),
    breaks=tests_of(PLAN),
    fails=["a_factor_must_be_positive"],
)

a_negative_factor_passes = edit(
    PLAN,
    """You accept a negative factor. Raise a ValueError that names factor.""",
    ("factor <= 0", "factor == 0"),
    breaks=tests_of(PLAN),
    fails=["a_factor_must_be_positive"],
)
