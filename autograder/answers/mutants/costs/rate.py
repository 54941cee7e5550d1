"""Wrong answers to lesson 02, exercise 6: scaled_lr."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

RATE = "02-ex6-scaled-lr"


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
    """Without warm-up you return the target before you look at the other arguments, so a negative step or a batch size
    of 0 goes unnoticed there. Check the arguments first.""",
    (
        "    for name, value, least in",
        "    if warmup_steps == 0:\n        return base_lr * batch / max(1, base_batch)\n    for name, value, least in",
    ),
    base=_rate,
    breaks=tests_of(RATE),
    fails=["rate_refuses_nonsense", "square_root_rule_scales_by_the_root"],
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
    """You stay at base_lr during the warm-up and jump to the target at its end. That is the constant warm-up. Goyal et
    al. compare it with the gradual one, which climbs in equal increments.""",
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
    fails=["rate_refuses_nonsense"],
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
    fails=["rate_refuses_nonsense"],
)

every_rule_is_linear = edit(
    RATE,
    """You scale by k with the rule "sqrt", too. Adam's step does not grow with the gradient, so its learning rate is
    scaled by the square root of k.""",
    ('math.sqrt(k) if rule == "sqrt" else k', "k"),
    base=_rate,
    breaks=tests_of(RATE),
    fails=["square_root_rule_scales_by_the_root"],
)

root_of_the_target = edit(
    RATE,
    """You took the square root of base_lr as well. Only k is under the root: four times the batch doubles the
    learning rate.""",
    ("target = base_lr * factor", 'target = math.sqrt(base_lr * k) if rule == "sqrt" else base_lr * k'),
    base=_rate,
    breaks=tests_of(RATE),
    fails=["square_root_rule_scales_by_the_root"],
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
    fails=["square_root_rule_scales_by_the_root"],
)

any_rule_will_do = edit(
    RATE,
    """You treat an unknown rule as one of the two. A misspelled rule would train with the wrong rate: raise a
    ValueError that names rule.""",
    (
        """    if rule not in ("linear", "sqrt"):
        raise ValueError(f"rule must be linear or sqrt, got {rule}")
""",
        "",
    ),
    base=_rate,
    breaks=tests_of(RATE),
    fails=["rate_refuses_nonsense"],
)

looks_the_rule_up = edit(
    RATE,
    """If you look the rule up in a table, an unknown rule ends in a KeyError. Raise a ValueError that names rule
    instead.""",
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
    fails=["rate_refuses_nonsense"],
)

refuses_a_batch_of_one = edit(
    RATE,
    """You refuse a batch of one example. Only sizes below 1 are wrong.""",
    ("if value < least:", "if value < least or (value == 1 and 'batch' in name):"),
    base=_rate,
    breaks=tests_of(RATE),
)

rule_in_any_case = edit(
    RATE,
    """You accepted "Linear". Only "linear" and "sqrt" are rules; report any other to the caller.""",
    ("if rule not in", "if rule.lower() not in"),
    base=_rate,
    breaks=tests_of(RATE),
    fails=["rate_refuses_nonsense"],
)

rule_with_anything_behind_it = edit(
    RATE,
    """You compared only the beginning of the rule. Only "linear" and "sqrt" are rules; report any other to the
    caller.""",
    ('if rule not in ("linear", "sqrt"):', 'if not rule.startswith(("linear", "sqrt")):'),
    base=_rate,
    breaks=tests_of(RATE),
    fails=["rate_refuses_nonsense"],
)

first_rate_as_it_came = edit(
    RATE,
    """In step 0 you return base_lr as it was passed, which is an int if it is a whole number. The statement asks for a
    float.""",
    (
        "    k = batch / base_batch\n",
        "    if step == 0 < warmup_steps:\n        return base_lr\n    k = batch / base_batch\n",
    ),
    base=_rate,
    breaks=tests_of(RATE),
)
