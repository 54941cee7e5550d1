"""Wrong answers to lesson 02, exercise 5: tokens_to_hide."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

TOKENS = "02-ex5-tokens"


@right(TOKENS)
def _tokens():
    """Right: the base of the edits below."""

    def tokens_to_hide(parameters, communication, flops, mfu, overlap):
        if communication == 0:
            return 0
        if overlap == 0:
            return math.inf
        hides = overlap * compute_time(parameters, 1, flops, mfu)
        return math.ceil(communication / hides)


one_token_too_few = edit(
    TOKENS,
    """You rounded down. The computation for that many tokens is a little too short to hide the all-reduce: round up.
    """,
    ("math.ceil(communication / hides)", "int(communication / hides)"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

rounded_to_the_nearest = edit(
    TOKENS,
    """You rounded to the nearest whole number, which is too few tokens in half of the cases. Round up.""",
    ("math.ceil(communication / hides)", "round(communication / hides)"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

always_one_more = edit(
    TOKENS,
    """You always add a token. Where the tokens hide the all-reduce exactly, no further token is needed.""",
    ("math.ceil(communication / hides)", "int(communication / hides) + 1"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

the_whole_computation_hides = edit(
    TOKENS,
    """You hid messages during the whole computation. They can travel only during the part `overlap` of it.""",
    ("hides = overlap * compute_time", "hides = compute_time"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

less_overlap_helps = edit(
    TOKENS,
    """With less overlap you need fewer tokens. The part that hides messages is overlap times the computation: divide
    by it.""",
    (
        "hides = overlap * compute_time(parameters, 1, flops, mfu)",
        "hides = compute_time(parameters, 1, flops, mfu) / overlap",
    ),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

nothing_to_send_needs_a_token = edit(
    TOKENS,
    """Without communication you ask for a token, or for infinitely many. There is nothing to hide, so the answer is
    0.""",
    (
        """    if communication == 0:
        return 0
""",
        "",
    ),
    ("math.ceil(communication / hides)", "max(1, math.ceil(communication / hides))"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

no_overlap_before_no_communication = edit(
    TOKENS,
    """Without communication and without overlap you return infinity. There is nothing to hide, so no token is needed:
    look at the communication first.""",
    (
        """    if communication == 0:
        return 0
    if overlap == 0:
        return math.inf
""",
        """    if overlap == 0:
        return math.inf
    if communication == 0:
        return 0
""",
    ),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

no_overlap_divides_by_zero = edit(
    TOKENS,
    """Without overlap you divide by zero. No number of tokens hides anything then: return math.inf.""",
    (
        """    if overlap == 0:
        return math.inf
""",
        "",
    ),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

a_float_of_tokens = edit(
    TOKENS,
    """You returned a float. A number of tokens is an int: math.ceil gives one, np.ceil does not.""",
    ("math.ceil(communication / hides)", "np.ceil(communication / hides)"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

tokens_not_rounded = edit(
    TOKENS,
    """You returned a fraction of a token. The answer is the smallest whole number that suffices: round up.""",
    ("math.ceil(communication / hides)", "communication / hides"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

forward_pass_only = edit(
    TOKENS,
    """You counted 2 operations per parameter and token. Messages travel during a part of the whole step, which takes
    6: use compute_time.""",
    ("compute_time(parameters, 1, flops, mfu)", "2.0 * parameters / (flops * mfu)"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

at_the_peak = edit(
    TOKENS,
    """You computed at the peak. The program reaches only the part `mfu` of it, so each token takes longer and hides
    more.""",
    ("compute_time(parameters, 1, flops, mfu)", "compute_time(parameters, 1, flops, 1)"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

rounds_before_it_rounds_up = edit(
    TOKENS,
    """You rounded to a few digits before you rounded up. An all-reduce that is a little too long for 5 tokens needs a
    sixth.""",
    ("math.ceil(communication / hides)", "math.ceil(round(communication / hides, 3))"),
    base=_tokens,
    breaks=tests_of(TOKENS),
)

searches_up_to_a_bound = edit(
    TOKENS,
    """You tried the numbers one after another and gave up at a bound. A slow network can need more tokens: compute the
    number.""",
    (
        "return math.ceil(communication / hides)",
        "return next((n for n in range(10**5) if n * hides >= communication), math.inf)",
    ),
    base=_tokens,
    breaks=tests_of(TOKENS),
)
