"""Wrong answers to lesson 17, exercise 8."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

FAULTS = "17-ex8-faults"
FIRST, HEALTHY = "the_first_moment_counts", "a_healthy_run_is_not_accused"

finds_by_rank_0 = edit(
    FAULTS,
    """You take rank 0's parameters for the right ones. When rank 0 is the one that changed, you accuse all others. Take
    what most ranks have.""",
    ("[statistics.mode(now)] * world_size", "[now[0]] * world_size"),
    breaks=tests_of(FAULTS),
)

finds_steps_from_0 = edit(
    FAULTS,
    """Your steps count from 0. The first row is that of step 1.""",
    ("return t + 1, rank, what", "return t, rank, what"),
    breaks=tests_of(FAULTS),
)

finds_with_equal_norms = edit(
    FAULTS,
    """You compare norms exactly. The ranks add in a different order than one process does, so the last digits differ
    even in a healthy run. Allow 0.1 %.""",
    ("abs(now[rank] - want[rank]) <= 1e-3 * want[rank]", "now[rank] == want[rank]"),
    breaks=tests_of(FAULTS),
)

finds_without_the_state = edit(
    FAULTS,
    """You do not look at state_in. If moments were lost between two steps, you report an update of the wrong size,
    which is only the consequence.""",
    ('"gradient", "state_in", "update"', '"gradient", "update"'),
    breaks=tests_of(FAULTS),
)

finds_the_losses_alone = edit(
    FAULTS,
    """You look at batches and gradients alone. They show what a rank was given and computed, not what became of its
    memory.""",
    (
        '("parameters_in", "batch", "gradient", "state_in", "update", "parameters_out")',
        '("batch", "gradient")',
    ),
    breaks=tests_of(FAULTS),
)

finds_the_last = edit(
    FAULTS,
    """You return the last entry that is wrong. What comes after a fault is its consequence: return the first.""",
    ("for t in range(len(log[0])):", "for t in reversed(range(len(log[0]))):"),
    breaks=tests_of(FAULTS),
)

finds_rank_by_rank = edit(
    FAULTS,
    """You go through the ranks first, and within a rank through its entries. A later entry of a low rank then hides an
    earlier one of a high rank. In a step, the order of the table comes first.""",
    (
        """    for t in range(len(log[0])):
        for what in ("parameters_in", "batch", "gradient", "state_in", "update", "parameters_out"):
""",
        """    order = ("parameters_in", "batch", "gradient", "state_in", "update", "parameters_out")
    for t, one, what in [(t, one, what) for t in range(len(log[0])) for one in range(world_size) for what in order]:
        if True:
""",
    ),
    ("for rank in range(world_size):", "for rank in (one,):"),
    breaks=tests_of(FAULTS),
)

finds_table_by_table = edit(
    FAULTS,
    """You search all steps for one kind of entry before you look at the next kind. A fault of an early step is then
    hidden by what follows from it later. Go step by step.""",
    (
        """    for t in range(len(log[0])):
        for what in ("parameters_in", "batch", "gradient", "state_in", "update", "parameters_out"):
""",
        """    for what in ("parameters_in", "batch", "gradient", "state_in", "update", "parameters_out"):
        for t in range(len(log[0])):
""",
    ),
    breaks=tests_of(FAULTS),
)

finds_no_nan = edit(
    FAULTS,
    """nan is not above any bound, so a gradient of nan passes. Ask whether the difference is within the bound, and
    negate that.""",
    ("abs(now[rank] - want[rank]) <= 1e-3 * want[rank]", "not abs(now[rank] - want[rank]) > 1e-3 * want[rank]"),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_only_too_much = edit(
    FAULTS,
    """You notice norms that are too large, and not those that are too small: take the absolute difference.""",
    ("abs(now[rank] - want[rank]) <= 1e-3 * want[rank]", "now[rank] - want[rank] <= 1e-3 * want[rank]"),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_with_one_per_cent = edit(
    FAULTS,
    """Your bound is wider than 0.1 %, and a small fault passes.""",
    ("1e-3 * want[rank]", "1e-2 * want[rank]"),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_with_an_absolute_bound = edit(
    FAULTS,
    """Your bound is a fixed number. Where norms are small, a fault of any size passes; where they are large, rounding
    alone is called a fault. 0.1 % means 0.1 % of the reference's norm.""",
    ("<= 1e-3 * want[rank]", "<= 1e-3"),
    breaks=tests_of(FAULTS),
    fails=[FIRST, HEALTHY],
)

finds_from_the_second_step = edit(
    FAULTS,
    """You begin with the second step. A rank that starts from another model, or from another batch, is seen in the
    first.""",
    ("for t in range(len(log[0])):", "for t in range(1, len(log[0])):"),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_nothing_in_the_first_model = edit(
    FAULTS,
    """In the first step there is no step before, and you accept whatever the ranks begin with. They begin with the same
    model: what most ranks have is right.""",
    (
        'elif what.startswith("parameters"):',
        'elif what == "parameters_in":\n                want = now\n            elif what.startswith("parameters"):',
    ),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_a_change_among_the_ranks = edit(
    FAULTS,
    """You compare the parameters before forward with those of the other ranks. If all have changed alike, you see
    nothing. Compare each rank with its own step before.""",
    ('if what.endswith("_in") and t > 0:', 'if what == "state_in" and t > 0:'),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_by_the_last_in_a_tie = edit(
    FAULTS,
    """Where two values are equally frequent, you take that of the higher rank. The statement says which one counts.""",
    ("[statistics.mode(now)]", "[statistics.mode(reversed(now))]"),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_by_the_order_of_digests = edit(
    FAULTS,
    """Where two values are equally frequent, you take the one that comes first when they are sorted. The statement says
    which one counts.""",
    ("[statistics.mode(now)]", "[statistics.mode(sorted(now))]"),
    breaks=tests_of(FAULTS),
    fails=[FIRST],
)

finds_a_fault_in_every_run = edit(
    FAULTS,
    """You accuse a healthy run: where nothing is wrong, the answer is None.""",
    ("    return None\n", '    return len(log[0]), 0, "parameters_out"\n'),
    breaks=tests_of(FAULTS),
    fails=[HEALTHY],
)
