"""Wrong answers to lesson 15, exercise 7."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

PLAN = "15-ex7-plan"

powers_of_two_only = edit(
    PLAN,
    """You try only powers of two. A cluster of 12 GPUs can be cut into three: try all divisors.""",
    ("if gpus % n == 0]", "if gpus % n == 0 and n & (n - 1) == 0]"),
    breaks=tests_of(PLAN),
)

replicas_have_a_sequence_each = edit(
    PLAN,
    """You leave out layouts with more replicas than sequences. These are layouts as well: cost says why they do not
    fit.""",
    ("if gpus % (tp * pp) == 0:", "if gpus % (tp * pp) == 0 and gpus // (tp * pp) <= batch:"),
    breaks=tests_of(PLAN),
)

stages_have_a_layer_each = edit(
    PLAN,
    """You leave out pipelines with more stages than layers. These are layouts, too: cost says why they do not fit.""",
    ("if gpus % (tp * pp) == 0:", 'if gpus % (tp * pp) == 0 and pp <= model["layers"]:'),
    breaks=tests_of(PLAN),
)

groups_of_tp_stay_in_a_node = edit(
    PLAN,
    """You limit tp to the size of a node. A larger tp is slow, or breaks a rule; let cost decide that.""",
    (
        "itertools.product(divisors, divisors)",
        'itertools.product([n for n in divisors if n <= cluster["per_node"]], divisors)',
    ),
    breaks=tests_of(PLAN),
)

chunks_need_a_pipeline = edit(
    PLAN,
    """You leave out chunks without a pipeline. They break a rule: such layouts belong to the second list, with their
    reason.""",
    (
        "                layout = {",
        "                if pp == 1 and chunks > 1:\n                    continue\n                layout = {",
    ),
    breaks=tests_of(PLAN),
)

recomputed_only_where_it_must_be = edit(
    PLAN,
    """You try recomputation only where a layout does not fit without it. With and without recomputation are two
    layouts, and both may fit.""",
    (
        "                found.append(",
        '                if recompute and found[-1]["reason"] is None:\n'
        "                    continue\n"
        "                found.append(",
    ),
    breaks=tests_of(PLAN),
)

the_second_list_has_everything = edit(
    PLAN,
    """Your second list has all layouts, including those that fit. Each layout belongs to only one of the lists.""",
    ('return feasible, [one for one in found if one["reason"] is not None]', "return feasible, found"),
    breaks=tests_of(PLAN),
)

the_cluster_loses_an_entry = edit(
    PLAN,
    """You changed a dict that you were given, so the next call with this dict finds something else. Only read it.""",
    ('gpus = cluster["gpus"]', 'gpus = cluster.pop("gpus")\n    cluster = {**cluster, "gpus": gpus}'),
    breaks=tests_of(PLAN),
    fails=["what_fits_comes_fastest_first"],
)

no_data_parallelism = edit(
    PLAN,
    """You leave dp at 1, so most of your layouts do not use all GPUs. dp must take the GPUs that tp and pp leave
    over.""",
    ('"dp": gpus // (tp * pp),', '"dp": 1,'),
    breaks=tests_of(PLAN),
)

the_stage_is_not_passed_on = edit(
    PLAN,
    """You do not pass the stage to cost, so cost uses its default.""",
    ("cost(model, cluster, layout, batch, stage)", "cost(model, cluster, layout, batch)"),
    breaks=tests_of(PLAN),
)

micro_batches_of_one = edit(
    PLAN,
    """You try only micro-batches of one sequence.""",
    ("itertools.product((1, 2, 4), (1, 2, 4, 8)", "itertools.product((1,), (1, 2, 4, 8)"),
    breaks=tests_of(PLAN),
)

chunks_up_to_four = edit(
    PLAN,
    """You try at most four chunks. Try 8 as well.""",
    ("(1, 2, 4, 8), (False, True)", "(1, 2, 4), (False, True)"),
    breaks=tests_of(PLAN),
)

never_recomputed = edit(
    PLAN,
    """You never try recomputation. Where memory is short, recomputation is what makes a layout fit.""",
    ("(1, 2, 4, 8), (False, True)", "(1, 2, 4, 8), (False,)"),
    breaks=tests_of(PLAN),
)

what_needs_too_much_memory_fits = edit(
    PLAN,
    """Your first list contains layouts that need too much memory. These layouts have a reason, too.""",
    ('(one for one in found if one["reason"] is None), key=lambda one: one["seconds"]',
     '(one for one in found if one["reason"] in (None, "memory")), key=lambda one: one["seconds"] or math.inf'),
    ('if one["reason"] is not None]', 'if one["reason"] not in (None, "memory")]'),
    breaks=tests_of(PLAN),
)  # fmt: skip

only_the_best_are_returned = edit(
    PLAN,
    """You return the ten fastest. The statement asks for all that fit.""",
    ("return feasible, [", "return feasible[:10], ["),
    breaks=tests_of(PLAN),
)

the_rest_is_left_out = edit(
    PLAN,
    """Your second list is empty. The layouts that do not fit belong there, with their reasons: the reasons say what to
    change.""",
    ('return feasible, [one for one in found if one["reason"] is not None]', "return feasible, []"),
    breaks=tests_of(PLAN),
)

in_the_order_of_trying = edit(
    PLAN,
    """Your first list is in the order in which you tried the layouts. The fastest layout comes first.""",
    ('feasible = sorted((one for one in found if one["reason"] is None), key=lambda one: one["seconds"])',
     'feasible = [one for one in found if one["reason"] is None]'),
    breaks=tests_of(PLAN),
    fails=["what_fits_comes_fastest_first"],
)  # fmt: skip

by_memory = edit(
    PLAN,
    """You sorted by memory. The statement asks for the fastest first.""",
    ('key=lambda one: one["seconds"]', 'key=lambda one: one["memory"]'),
    breaks=tests_of(PLAN),
    fails=["what_fits_comes_fastest_first"],
)

by_utilization_from_the_lowest = edit(
    PLAN,
    """Your slowest layout is at the top. Sort so that the fastest layout comes first.""",
    ('key=lambda one: one["seconds"]', 'key=lambda one: one["mfu"]'),
    breaks=tests_of(PLAN),
    fails=["what_fits_comes_fastest_first"],
)

replicas_are_a_float = edit(
    PLAN,
    """Your dp is a float, because / returns a float even for two whole numbers. The sizes are whole numbers: divide
    with //.""",
    ("gpus // (tp * pp)", "gpus / (tp * pp)"),
    breaks=tests_of(PLAN),
)
