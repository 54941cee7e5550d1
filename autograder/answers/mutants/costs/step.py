"""Wrong answers to lesson 02, exercise 4: compute_time, step_time."""

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

STEP, TOKENS = "02-ex4-step", "02-ex5-tokens"


@right(STEP)
def _step():
    """Right: the base of the edits below."""

    def compute_time(parameters, tokens, flops, mfu):
        if not 0 < mfu <= 1:
            raise ValueError(f"mfu must be in (0, 1], got {mfu}")
        return 6.0 * parameters * tokens / (flops * mfu)

    def step_time(compute, communication, overlap):
        if not 0 <= overlap <= 1:
            raise ValueError(f"overlap must be in [0, 1], got {overlap}")
        return float(compute + max(0.0, communication - overlap * compute))


two_operations_only = edit(
    STEP,
    """You counted 2 operations per parameter and token. That is the forward pass; the backward pass takes twice as
    many, for the gradients of the inputs and of the weights.""",
    ("6.0", "2.0"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
    fails=["computation_takes_six_operations"],
)

backward_like_forward = edit(
    STEP,
    """You counted 4 operations per parameter and token, as if the backward pass took as many as the forward pass. It
    takes twice as many: 2 + 4.""",
    ("6.0", "4.0"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
    fails=["computation_takes_six_operations"],
)

eight_with_recomputation = edit(
    STEP,
    """You counted 8 operations per parameter and token. That is a step that computes its forward pass twice, to save
    memory. The statement asks for one forward and one backward pass: 6.""",
    ("6.0", "8.0"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
    fails=["computation_takes_six_operations"],
)

peak_is_reached = edit(
    STEP,
    """You divided by the peak. A program reaches only the part `mfu` of it.""",
    ("(flops * mfu)", "flops"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
    fails=["computation_takes_six_operations"],
)

mfu_upside_down = edit(
    STEP,
    """A lower utilization makes your step faster. The operations per second that are reached are the peak times mfu:
    divide by both.""",
    ("/ (flops * mfu)", "/ flops * mfu"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
    fails=["computation_takes_six_operations"],
)

mfu_of_zero_is_allowed = edit(
    STEP,
    """You accept mfu = 0, or divide by it. A program that reaches nothing of the peak never ends: raise a ValueError
    that names mfu.""",
    ("if not 0 < mfu <= 1:", "if not 0 <= mfu <= 1:"),
    base=_step,
    breaks=tests_of(STEP),
    fails=["shares_outside_their_range_are_refused"],
)

mfu_in_percent = edit(
    STEP,
    """You refuse an mfu of 1, or accept one above it. It is a part of the peak: above 0, and at most 1.""",
    ("if not 0 < mfu <= 1:", "if not 0 < mfu < 1:"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
    fails=["computation_takes_six_operations"],
)

any_mfu_will_do = edit(
    STEP,
    """You accept an mfu outside its range. It must be above 0 and at most 1: raise a ValueError that names mfu for any
    other.""",
    (
        """    if not 0 < mfu <= 1:
        raise ValueError(f"mfu must be in (0, 1], got {mfu}")
""",
        "",
    ),
    base=_step,
    breaks=tests_of(STEP),
    fails=["shares_outside_their_range_are_refused"],
)

no_tokens_no_question = edit(
    STEP,
    """For 0 tokens you return 0.0 before you look at mfu, so a wrong mfu goes unnoticed. Check the arguments first.""",
    (
        """    if not 0 < mfu <= 1:""",
        """    if tokens == 0:
        return 0.0
    if not 0 < mfu <= 1:""",
    ),
    base=_step,
    breaks=tests_of(STEP),
    fails=["shares_outside_their_range_are_refused"],
)

whole_seconds = edit(
    STEP,
    """With whole numbers your step_time returns an int. The statement asks for a float.""",
    (
        "float(compute + max(0.0, communication - overlap * compute))",
        "compute + max(0, communication - overlap * compute)",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

less_than_nothing_sticks_out = edit(
    STEP,
    """Your step gets shorter than its computation when the all-reduce is short. An all-reduce that is hidden completely
    costs nothing, but it saves nothing either: what sticks out is never below 0.""",
    ("max(0.0, communication - overlap * compute)", "communication - overlap * compute"),
    base=_step,
    breaks=tests_of(STEP),
)

a_part_of_the_communication_is_hidden = edit(
    STEP,
    """You hid the part `overlap` of the all-reduce. `overlap` is the part of the *computation* during which messages
    can travel.""",
    ("max(0.0, communication - overlap * compute)", "(1.0 - overlap) * communication"),
    base=_step,
    breaks=tests_of(STEP),
)

overlap_the_other_way_round = edit(
    STEP,
    """You hid messages during 1 − overlap of the computation. With overlap = 0 nothing can be hidden.""",
    ("overlap * compute)", "(1 - overlap) * compute)"),
    base=_step,
    breaks=tests_of(STEP),
)

the_longer_of_the_two = edit(
    STEP,
    """You took the longer of computation and all-reduce. That is right only if messages can travel during the whole
    computation, overlap = 1.""",
    ("compute + max(0.0, communication - overlap * compute)", "max(compute, communication)"),
    base=_step,
    breaks=tests_of(STEP),
)

no_overlap_at_all = edit(
    STEP,
    """You added the whole all-reduce. What fits into the part `overlap` of the computation is hidden, and costs
    nothing.""",
    ("max(0.0, communication - overlap * compute)", "communication * 1.0"),
    base=_step,
    breaks=tests_of(STEP),
)

only_what_sticks_out = edit(
    STEP,
    """You returned only what sticks out. A step also computes: add compute.""",
    ("compute + max(", "max("),
    base=_step,
    breaks=tests_of(STEP),
)

any_overlap_will_do = edit(
    STEP,
    """You accept an overlap outside 0 to 1. Raise a ValueError that names overlap.""",
    (
        """    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap must be in [0, 1], got {overlap}")
""",
        "",
    ),
    base=_step,
    breaks=tests_of(STEP),
    fails=["shares_outside_their_range_are_refused"],
)

overlap_strictly_inside = edit(
    STEP,
    """You refuse an overlap of 0 or of 1. Both are allowed: nothing overlaps, or everything does.""",
    ("if not 0 <= overlap <= 1:", "if not 0 < overlap < 1:"),
    base=_step,
    breaks=tests_of(STEP),
)
