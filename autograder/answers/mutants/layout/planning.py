"""Wrong answers to lesson 15, exercise 6."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

COST, PLAN = "15-ex6-cost", "15-ex7-plan"
MEMORY, REASON = "memory_is_weights_and_activations", "the_first_rule_that_fails_is_the_reason"

# ---- 6 · cost: seconds ----

ranks_of_the_axis_alone = edit(
    COST,
    """For the data-parallel all-reduce you ask whether d ranks fit into a node. Neighbors in dp are t · p ranks apart,
    so a group stays inside a node only if all t · p · d ranks fit into it.""",
    ("/ bandwidth(cluster, t * p * d, ports)", "/ bandwidth(cluster, d, ports)"),
    breaks=tests_of(COST, PLAN),
)

stages_are_neighbors = edit(
    COST,
    """For the pipeline's messages you ask whether p ranks fit into a node. Neighbors in pp are t ranks apart: ask
    whether t · p ranks fit.""",
    ("/ t / bandwidth(cluster, t * p)", "/ t / bandwidth(cluster, p)"),
    breaks=tests_of(COST, PLAN),
)

full_nodes_are_left = edit(
    COST,
    """You let tp groups of exactly per_node ranks cross nodes. Such a group fills one node and stays inside it.""",
    (
        '/ bandwidth(cluster, t, cluster["per_node"])\n',
        '/ bandwidth(cluster, t if t < cluster["per_node"] else cluster["per_node"] + 1, cluster["per_node"])\n',
    ),
    breaks=tests_of(COST, PLAN),
)

all_ranks_share_a_port = edit(
    COST,
    """You let a tp group that crosses nodes use one port of each node. The group fills its nodes, and each GPU has a
    port: pass per_node as ports.""",
    ('/ bandwidth(cluster, t, cluster["per_node"])\n', "/ bandwidth(cluster, t)\n"),
    breaks=tests_of(COST, PLAN),
)

replicas_share_a_port = edit(
    COST,
    """You let a dp group use one port of each node. If several ranks of the group are in a node, each of them has a
    port: per_node // (t · p) of them, and at least one.""",
    ('ports = max(1, cluster["per_node"] // (t * p))', "ports = 1"),
    breaks=tests_of(COST, PLAN),
)

replicas_use_the_ports_of_others = edit(
    COST,
    """You let a dp group use all ports of a node. The t · p groups that pass through a node share its ports, so only
    the ports of a group's own ranks work for it.""",
    ('ports = max(1, cluster["per_node"] // (t * p))', 'ports = cluster["per_node"]'),
    breaks=tests_of(COST, PLAN),
)

stages_use_all_ports = edit(
    COST,
    """You let a pipeline's message use all ports of a node. It goes from one GPU to one other GPU, through one
    port.""",
    ("/ t / bandwidth(cluster, t * p)", '/ t / bandwidth(cluster, t * p, cluster["per_node"])'),
    breaks=tests_of(COST, PLAN),
)

stage_2_sends_more = edit(
    COST,
    """At stage 2 you count more gradient bytes than at the other stages. The statement counts one all-reduce at every
    stage.""",
    ("data = 2 * (d - 1)", "data = (3 if stage == 2 else 2) * (d - 1)"),
    breaks=tests_of(COST, PLAN),
)

whole_weights_are_averaged = edit(
    COST,
    """You let every rank average all gradients. A rank holds P/(tp) of the weights, and sends only that many
    gradients.""",
    (
        '2 * model["params"] / (t * p) / bandwidth(cluster, t * p * d, ports)',
        '2 * model["params"] / bandwidth(cluster, t * p * d, ports)',
    ),
    breaks=tests_of(COST, PLAN),
)

utilization_counts_recomputation = edit(
    COST,
    """Your mfu counts the operations of recomputation. Recomputation is work, but not progress: with it, the number is
    called the hardware utilization.""",
    (
        '"mfu": operations / (seconds * peak)',
        '"mfu": operations * (4 / 3 if layout["recompute"] else 1) / (seconds * peak)',
    ),
    breaks=tests_of(COST),
)

utilization_of_what_can_be_reached = edit(
    COST,
    """Your mfu is relative to the speed that matrix products can reach. mfu is relative to the peak, so that machines
    can be compared.""",
    ('"mfu": operations / (seconds * peak)', '"mfu": operations / (seconds * peak * cluster["efficiency"])'),
    breaks=tests_of(COST),
)

bubble_over_busy_time = edit(
    COST,
    """You divided the idle slots by the busy slots. The bubble is the idle share of all slots: (p − 1)/(vM + p −
    1).""",
    ("bubble = (p - 1) / (v * micro_batches + p - 1)", "bubble = (p - 1) / (v * micro_batches)"),
    breaks=tests_of(COST, PLAN),
)

chunks_leave_the_bubble = edit(
    COST,
    """Your bubble ignores the chunks. With v chunks, the pipeline fills in slots that are v times shorter.""",
    ("bubble = (p - 1) / (v * micro_batches + p - 1)", "bubble = (p - 1) / (micro_batches + p - 1)"),
    breaks=tests_of(COST, PLAN),
)

the_bubble_delays_the_all_reduce = edit(
    COST,
    """You put the data-parallel all-reduce into the bubble. It happens once, after the pipeline has ended.""",
    (
        "seconds = (compute + tensor + pipe) / (1 - bubble) + data",
        "seconds = (compute + tensor + pipe + data) / (1 - bubble)",
    ),
    breaks=tests_of(COST, PLAN),
)

all_layers_on_each_rank = edit(
    COST,
    """You counted the tensor-parallel all-reduces of all layers. A rank has L/p of the layers.""",
    ('model["layers"] / p * micro_batches', 'model["layers"] * micro_batches'),
    breaks=tests_of(COST, PLAN),
)

parts_of_activations_are_added_up = edit(
    COST,
    """You divided the vectors of the tensor-parallel all-reduces by t. Each rank contributes whole activations to the
    sum.""",
    ("2 * (t - 1) / t * activation / bandwidth", "2 * (t - 1) / t * activation / t / bandwidth"),
    breaks=tests_of(COST, PLAN),
)

recomputation_sends_nothing = edit(
    COST,
    """With recomputation the forward runs twice, and so do its two all-reduces in each layer: count 6, not 4.""",
    ('calls = (6 if layout["recompute"] else 4)', "calls = 4"),
    breaks=tests_of(COST, PLAN),
)

recomputation_is_free = edit(
    COST,
    """With recomputation you count no additional operations. The forward runs once more: count 4/3 of the
    operations.""",
    ('operations * (4 / 3 if layout["recompute"] else 1)', "operations"),
    breaks=tests_of(COST, PLAN),
)

backward_sends_nothing = edit(
    COST,
    """You counted two all-reduces in each layer, those of the forward. The backward has two as well.""",
    ('(6 if layout["recompute"] else 4)', '(4 if layout["recompute"] else 2)'),
    breaks=tests_of(COST, PLAN),
)

whole_activations_are_passed_on = edit(
    COST,
    """You send whole activations from stage to stage. The activations are cut over tp, so each rank sends one t-th.""",
    ("activation / t / bandwidth(cluster, t * p)", "activation / bandwidth(cluster, t * p)"),
    breaks=tests_of(COST, PLAN),
)

chunks_send_no_more = edit(
    COST,
    """With v chunks, an activation passes through each rank v times. You counted it once.""",
    ("pipe = 2 * v * micro_batches", "pipe = 2 * micro_batches"),
    breaks=tests_of(COST, PLAN),
)

a_single_stage_sends = edit(
    COST,
    """Without a pipeline, no rank sends activations. For p = 1 this part of the time is 0.""",
    (" if p > 1 else 0.0", ""),
    breaks=tests_of(COST, PLAN),
)

masked_attention = edit(
    COST,
    """You counted attention as causal. The statement counts all of its products, as published runs do.""",
    ('model["hidden"], model["seq"])\n    operations', 'model["hidden"], model["seq"], causal=True)\n    operations'),
    breaks=tests_of(COST, PLAN),
)

one_sequence_a_micro_batch = edit(
    COST,
    """You counted the activations of one sequence. A micro-batch has b sequences.""",
    ('activation = 2 * b * model["seq"]', 'activation = 2 * model["seq"]'),
    breaks=tests_of(COST, PLAN),
)

# ---- 6 · cost: memory ----

the_state_is_never_cut = edit(
    COST,
    """You ignore the stage. At stage 1, the optimizer's 12 bytes for each weight are cut over dp; at stage 2, the
    gradient's 2 bytes as well.""",
    ("{0: 2 + 2 + 12, 1: 2 + 2 + 12 / d, 2: 2 + (2 + 12) / d}[stage]", "2 + 2 + 12"),
    breaks=tests_of(COST, PLAN),
    fails=[MEMORY],
)

weights_are_cut_at_stage_2 = edit(
    COST,
    """At stage 2 you cut the weights, too. They stay whole until stage 3.""",
    ("2: 2 + (2 + 12) / d}", "2: (2 + 2 + 12) / d}"),
    breaks=tests_of(COST),
    fails=[MEMORY],
)

all_micro_batches_are_kept = edit(
    COST,
    """You keep the activations of all micro-batches. Under 1F1B, at most p micro-batches are under way on the first
    stage.""",
    ("under_way = min(micro_batches, p if v == 1 else p + (p - 1) / v)", "under_way = micro_batches"),
    breaks=tests_of(COST, PLAN),
    fails=[MEMORY],
)

chunks_keep_no_more = edit(
    COST,
    """With chunks you keep p micro-batches. An interleaved schedule warms up longer: p + (p − 1)/v.""",
    ("p if v == 1 else p + (p - 1) / v)", "p)"),
    breaks=tests_of(COST, PLAN),
    fails=[MEMORY],
)

more_than_there_are = edit(
    COST,
    """You keep p micro-batches even where there are fewer. At most M micro-batches are under way.""",
    (
        "under_way = min(micro_batches, p if v == 1 else p + (p - 1) / v)",
        "under_way = p if v == 1 else p + (p - 1) / v",
    ),
    breaks=tests_of(COST),
    fails=[MEMORY],
)

nothing_is_at_work = edit(
    COST,
    """With recomputation you count only the inputs of the layers. The layer that is being recomputed also holds all of
    its activations: add one A.""",
    (' + (whole if layout["recompute"] else 0)', ""),
    breaks=tests_of(COST),
    fails=[MEMORY],
)

activations_are_whole = edit(
    COST,
    """You did not cut the activations over tp. Each of the t ranks keeps one t-th.""",
    (
        'whole = model["saved"] * model["seq"] * b * model["hidden"] / t',
        'whole = model["saved"] * model["seq"] * b * model["hidden"]',
    ),
    breaks=tests_of(COST, PLAN),
    fails=[MEMORY],
)

inputs_are_whole = edit(
    COST,
    """With recomputation you keep whole inputs. The inputs are cut over tp as well: 2sbh/t.""",
    ('kept = 2 * model["seq"] * b * model["hidden"] / t if', 'kept = 2 * model["seq"] * b * model["hidden"] if'),
    breaks=tests_of(COST),
    fails=[MEMORY],
)

activations_of_all_layers = edit(
    COST,
    """You keep the activations of all layers. A rank has only L/p of the layers.""",
    ('activations = kept * model["layers"] / p * under_way', 'activations = kept * model["layers"] * under_way'),
    breaks=tests_of(COST, PLAN),
    fails=[MEMORY],
)

the_last_byte_is_left_free = edit(
    COST,
    """You refuse a layout that needs exactly as much memory as a GPU has. This layout fits: only a layout that needs
    more is out.""",
    ('if found["memory"] > cluster["memory"]:', 'if found["memory"] >= cluster["memory"]:'),
    breaks=tests_of(COST),
    fails=[MEMORY],
)

too_much_memory_is_not_said = edit(
    COST,
    """You return None for the memory of a layout that needs too much. The number tells the caller by how much it is too
    large: keep it.""",
    ('return {**found, "reason": "memory"}', 'return {**found, "reason": "memory", "memory": None}'),
    breaks=tests_of(COST),
    fails=[MEMORY],
)

memory_is_never_full = edit(
    COST,
    """You compute the memory, but never compare it with the GPU's. A layout that needs more than a GPU has is out.""",
    ('    if found["memory"] > cluster["memory"]:\n        return {**found, "reason": "memory"}\n', ""),
    breaks=tests_of(COST, PLAN),
    fails=[MEMORY, REASON],
)

# ---- 6 · cost: reasons ----

memory_is_always_told = edit(
    COST,
    """You give the memory for every layout that is out. Give the number only where memory is the reason.""",
    (
        '    found["reason"] = broken_rule(model, cluster, layout, batch)\n',
        '    found["reason"] = broken_rule(model, cluster, layout, batch)\n'
        '    found["memory"] = bytes_needed(model, layout, max(1, batch // (d * b)), stage)\n',
    ),
    breaks=tests_of(COST),
    fails=[REASON],
)

the_given_layout_is_filled_in = edit(
    COST,
    """You wrote the result into the layout that you were given. Return a new dict.""",
    (
        '    found = {**layout, "reason": None, "memory": None, "seconds": None, "mfu": None, "bubble": None}\n',
        "    found = layout\n"
        '    found.update({"reason": None, "memory": None, "seconds": None, "mfu": None, "bubble": None})\n',
    ),
    ('return {**found, "reason": "memory"}', 'found.update(reason="memory")\n        return found'),
    ('    return {**found, "seconds": seconds,', '    return {**found, "seconds": seconds,'),
    breaks=tests_of(COST),
    fails=[REASON],
)

a_stage_has_more_than_one_layer = edit(
    COST,
    """You refuse a pipeline in which each chunk has one layer. pv divides L when the two are equal, too.""",
    (
        '    found["reason"] = broken_rule(model, cluster, layout, batch)\n',
        '    found["reason"] = broken_rule(model, cluster, layout, batch)\n'
        '    if p * v >= model["layers"]:\n'
        '        found["reason"] = found["reason"] or "layers"\n',
    ),
    breaks=tests_of(COST, PLAN),
)

all_heads_are_too_many = edit(
    COST,
    """You refuse a tp group with as many ranks as there are heads. t divides the number of heads: each rank has one
    head.""",
    (
        '    found["reason"] = broken_rule(model, cluster, layout, batch)\n',
        '    found["reason"] = broken_rule(model, cluster, layout, batch)\n'
        '    if t >= model["heads"]:\n'
        '        found["reason"] = found["reason"] or "heads"\n',
    ),
    breaks=tests_of(COST),
)

rules_are_not_asked = edit(
    COST,
    """You never check whether a rule is broken. A layout whose sizes do not divide has no step, and so no seconds.""",
    ('    found["reason"] = broken_rule(model, cluster, layout, batch)\n', ""),
    breaks=tests_of(COST, PLAN),
    fails=[REASON],
)

too_little_memory_is_asked_first = edit(
    COST,
    """You check the memory before the other rules. The reason is the first broken rule in the order of the table.""",
    ('    found["reason"] = broken_rule(model, cluster, layout, batch)\n', ""),
    (
        '        return {**found, "reason": "memory"}\n',
        '        return {**found, "reason": "memory"}\n'
        "    if broken_rule(model, cluster, layout, batch):\n"
        '        return {**found, "memory": None, "reason": broken_rule(model, cluster, layout, batch)}\n',
    ),
    breaks=tests_of(COST, PLAN),
    fails=[REASON],
)
