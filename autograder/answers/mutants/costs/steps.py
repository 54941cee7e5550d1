"""Wrong answers to lesson 02, exercises 4 to 6."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

STEP, TOKENS, RATE = "02-ex4-step", "02-ex5-tokens", "02-ex6-scaled-lr"


# ---- 4 · compute_time, step_time ----


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
)

backward_like_forward = edit(
    STEP,
    """You counted 4 operations per parameter and token, as if the backward pass took as many as the forward pass. It
    takes twice as many: 2 + 4.""",
    ("6.0", "4.0"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
)

eight_with_recomputation = edit(
    STEP,
    """You counted 8 operations per parameter and token. That is a step that computes its forward pass twice, to save
    memory. The statement asks for one forward and one backward pass: 6.""",
    ("6.0", "8.0"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
)

peak_is_reached = edit(
    STEP,
    """You divided by the peak. A program reaches only the part `mfu` of it.""",
    ("(flops * mfu)", "flops"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
)

mfu_upside_down = edit(
    STEP,
    """A lower utilization makes your step faster. The operations per second that are reached are the peak times mfu:
    divide by both.""",
    ("/ (flops * mfu)", "/ flops * mfu"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
)

mfu_of_zero_is_allowed = edit(
    STEP,
    """You accept mfu = 0, or divide by it. A program that reaches nothing of the peak never ends: raise a ValueError
    that names mfu.""",
    ("if not 0 < mfu <= 1:", "if not 0 <= mfu <= 1:"),
    base=_step,
    breaks=tests_of(STEP),
)

mfu_in_percent = edit(
    STEP,
    """You refuse an mfu of 1, or accept one above it. It is a part of the peak: above 0, and at most 1.""",
    ("if not 0 < mfu <= 1:", "if not 0 < mfu < 1:"),
    base=_step,
    breaks=tests_of(STEP, TOKENS),
)

any_mfu_will_do = edit(
    STEP,
    """You accept an mfu outside its range. Above 0 and at most 1, or a ValueError that names mfu.""",
    (
        """    if not 0 < mfu <= 1:
        raise ValueError(f"mfu must be in (0, 1], got {mfu}")
""",
        "",
    ),
    base=_step,
    breaks=tests_of(STEP),
)

no_tokens_no_question = edit(
    STEP,
    """For 0 tokens you return 0.0 before you look at mfu, so that a wrong one goes unnoticed. Check the arguments
    first.""",
    (
        """    if not 0 < mfu <= 1:""",
        """    if tokens == 0:
        return 0.0
    if not 0 < mfu <= 1:""",
    ),
    base=_step,
    breaks=tests_of(STEP),
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
    """Your step gets shorter than its computation when the all-reduce is short. What is hidden completely costs
    nothing, but it saves nothing either: at least 0 sticks out.""",
    ("max(0.0, communication - overlap * compute)", "communication - overlap * compute"),
    base=_step,
    breaks=tests_of(STEP),
)

a_part_of_the_communication_is_hidden = edit(
    STEP,
    """You hid the part `overlap` of the all-reduce. It is the part of the *computation* during which messages can
    travel.""",
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
)

overlap_strictly_inside = edit(
    STEP,
    """You refuse an overlap of 0 or of 1. Both are allowed: nothing overlaps, or everything does.""",
    ("if not 0 <= overlap <= 1:", "if not 0 < overlap < 1:"),
    base=_step,
    breaks=tests_of(STEP),
)


# ---- 5 · tokens_to_hide ----


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
    """You always add a token. Where the all-reduce takes exactly as long as what can hide it, no further token is
    needed.""",
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
    """Without communication you ask for a token, or for infinitely many. There is nothing to hide: 0.""",
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
    """Without communication and without overlap you return infinity. There is nothing to hide, so no token is
    needed: ask for the communication first.""",
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


# ---- 6 · scaled_lr ----


@right(RATE)
def _rate():
    """Right: the base of the edits below."""

    def scaled_lr(base_lr, base_batch, batch, step, warmup_steps, rule="linear"):
        for name, value, least in (("base_batch", base_batch, 1), ("batch", batch, 1), ("step", step, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
        if rule not in ("linear", "sqrt"):
            raise ValueError(f"rule must be linear or sqrt, got {rule}")
        k = batch / base_batch
        factor = math.sqrt(k) if rule == "sqrt" else k
        target = base_lr * factor
        if step >= warmup_steps:
            return target
        return base_lr + (target - base_lr) * step / warmup_steps


no_warmup_before_the_arguments = edit(
    RATE,
    """Without warm-up you return the target before you look at the other arguments, so that a negative step or a
    batch size of 0 goes unnoticed there. Check the arguments first.""",
    (
        "    for name, value, least in",
        "    if warmup_steps == 0:\n        return base_lr * batch / max(1, base_batch)\n    for name, value, least in",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

one_step_ahead = edit(
    RATE,
    """Your warm-up is one step ahead: step 0 should have base_lr itself, and step warmup_steps is the first with the
    target. Steps are counted from 0.""",
    (
        "return base_lr + (target - base_lr) * step / warmup_steps",
        "return base_lr + (target - base_lr) * (step + 1) / warmup_steps",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

target_in_the_last_warmup_step = edit(
    RATE,
    """Your warm-up reaches the target one step too early: you divide by warmup_steps − 1. In the last warm-up step
    the rate is still one increment below the target.""",
    ("step / warmup_steps", "step / max(1, warmup_steps - 1)"),
    base=_rate,
    breaks=tests_of(RATE),
)

warms_up_from_zero = edit(
    RATE,
    """Your warm-up starts at 0. Other schedules do that; the gradual warm-up of Goyal et al. starts at base_lr,
    which is known to work, and climbs from there.""",
    ("base_lr + (target - base_lr)", "target"),
    base=_rate,
    breaks=tests_of(RATE),
)


no_warmup_divides_by_zero = edit(
    RATE,
    """With warmup_steps = 0 you divide by zero. No warm-up means the target at once: ask whether the warm-up is over
    before you divide.""",
    (
        """    if step >= warmup_steps:
        return target
    return base_lr + (target - base_lr) * step / warmup_steps""",
        "    return base_lr + (target - base_lr) * min(1.0, step / warmup_steps)",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

never_below_base_lr = edit(
    RATE,
    """You keep the learning rate from falling below base_lr. The rule works in both directions: a batch that is half
    as large gets half the learning rate.""",
    ("batch / base_batch", "max(1.0, batch / base_batch)"),
    base=_rate,
    breaks=tests_of(RATE),
)

whole_k_only = edit(
    RATE,
    """You divided the batch sizes with //. k need not be a whole number: 384 is one and a half times 256. Divide
    with a single slash.""",
    ("batch / base_batch", "(batch // base_batch)"),
    base=_rate,
    breaks=tests_of(RATE),
)

climbs_forever = edit(
    RATE,
    """Your learning rate goes on climbing after the warm-up. From step warmup_steps on it is the target and stays
    there.""",
    ("if step >= warmup_steps:", "if warmup_steps == 0:"),
    base=_rate,
    breaks=tests_of(RATE),
)

constant_warmup = edit(
    RATE,
    """You stay at base_lr during the warm-up and jump to the target at its end. That is the constant warm-up with
    which Goyal et al. compare; the gradual one climbs in equal increments.""",
    ("return base_lr + (target - base_lr) * step / warmup_steps", "return base_lr"),
    base=_rate,
    breaks=tests_of(RATE),
)

climbs_by_factors = edit(
    RATE,
    """You multiply by the same factor in each step. The warm-up adds the same amount in each step: a straight line,
    not an exponential.""",
    (
        "return base_lr + (target - base_lr) * step / warmup_steps",
        "return base_lr * factor ** (step / warmup_steps)",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

square_root_scaling = edit(
    RATE,
    """You scaled the learning rate by the square root of k. That is another rule; the linear one multiplies by k
    itself.""",
    ("batch / base_batch", "math.sqrt(batch / base_batch)"),
    base=_rate,
    breaks=tests_of(RATE),
)

k_upside_down = edit(
    RATE,
    """You divided base_batch by batch. A larger batch gets a larger learning rate: k is the new batch size over the
    old one.""",
    ("batch / base_batch", "base_batch / batch"),
    base=_rate,
    breaks=tests_of(RATE),
)


no_scaling = edit(
    RATE,
    """Your learning rate is base_lr in every step, whatever the batch. The linear target is k times base_lr.""",
    ("target = base_lr * factor", "target = base_lr"),
    base=_rate,
    breaks=tests_of(RATE),
)

zero_warmup_is_refused = edit(
    RATE,
    """You refuse warmup_steps = 0. It means that there is no warm-up: the rate is the target from step 0 on. Only a
    negative number is wrong.""",
    ("if warmup_steps < 0:", "if warmup_steps <= 0:"),
    base=_rate,
    breaks=tests_of(RATE),
)


refuses_no_batch = edit(
    RATE,
    """You accepted a batch size of 0 or less, or failed with another error. Raise a ValueError that names base_batch
    or batch for sizes below 1, before you divide.""",
    ('("base_batch", base_batch, 1), ("batch", batch, 1), ', ""),
    ('(("step", step, 0))', '(("step", step, 0),)'),
    base=_rate,
    breaks=tests_of(RATE),
)

refuses_no_step = edit(
    RATE,
    """You accepted a negative step or a negative number of warm-up steps. Raise a ValueError that names step or
    warmup_steps: training starts with step 0.""",
    (', ("step", step, 0))', ")"),
    (
        """    if warmup_steps < 0:
        raise ValueError(f"warmup_steps must not be negative, got {warmup_steps}")
""",
        "",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

every_rule_is_linear = edit(
    RATE,
    """You scale by k with the rule "sqrt", too. Adam's step does not grow with the gradient, so its learning rate is
    scaled by the square root of k.""",
    ('math.sqrt(k) if rule == "sqrt" else k', "k"),
    base=_rate,
    breaks=tests_of(RATE),
)

root_of_the_target = edit(
    RATE,
    """You took the square root of base_lr as well. Only k is under the root: four times the batch doubles the
    learning rate.""",
    ("target = base_lr * factor", 'target = math.sqrt(base_lr * k) if rule == "sqrt" else base_lr * k'),
    base=_rate,
    breaks=tests_of(RATE),
)

root_by_default = edit(
    RATE,
    """Without a rule you scale by the square root. The default is "linear".""",
    ('rule="linear"', 'rule="sqrt"'),
    base=_rate,
    breaks=tests_of(RATE),
)

roots_warm_up_by_factors = edit(
    RATE,
    """With the rule "sqrt" your warm-up follows a square root. Both rules warm up on a straight line; only the target
    differs.""",
    ("* step / warmup_steps", '* (step / warmup_steps) ** (0.5 if rule == "sqrt" else 1)'),
    base=_rate,
    breaks=tests_of(RATE),
)

any_rule_will_do = edit(
    RATE,
    """You take every other rule for one of the two. A misspelled rule would train with the wrong rate: raise a
    ValueError that names rule.""",
    (
        """    if rule not in ("linear", "sqrt"):
        raise ValueError(f"rule must be linear or sqrt, got {rule}")
""",
        "",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)

looks_the_rule_up = edit(
    RATE,
    """A rule that you do not know ends in a KeyError. Raise a ValueError that names rule instead.""",
    (
        """    if rule not in ("linear", "sqrt"):
        raise ValueError(f"rule must be linear or sqrt, got {rule}")
""",
        """    power = {"linear": 1, "sqrt": 0.5}[rule]
""",
    ),
    ('math.sqrt(k) if rule == "sqrt" else k', "k**power"),
    base=_rate,
    breaks=tests_of(RATE),
)
