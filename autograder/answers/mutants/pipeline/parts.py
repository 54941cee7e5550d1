"""Wrong answers to lesson 11, exercise 5."""

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

PARTS = "11-ex5-zero-bubble"

every_stage_puts_off_one_too_few = edit(
    PARTS,
    """Each of your stages after the first has room to put off one W more. The W that it runs too early delays a B, and
    the stage before waits for that B.""",
    ("if m >= stage:", "if m >= max(0, stage - 1):"),
    ('("W", m - stage)', '("W", m - max(0, stage - 1))'),
    ("max(0, micro_batches - stage)", "max(0, micro_batches - max(0, stage - 1))"),
    breaks=tests_of(PARTS),
)

every_stage_puts_off_one_too_many = edit(
    PARTS,
    """Each of your stages puts off one W more than it has room for, so it holds one activation more than 1F1B's peak. A
    stage with a warm-up of w forwards has room for N − w − 1 of them.""",
    ("if m >= stage:", "if m >= stage + 1:"),
    ('("W", m - stage)', '("W", m - stage - 1)'),
    ("max(0, micro_batches - stage)", "max(0, micro_batches - stage - 1)"),
    breaks=tests_of(PARTS),
)

the_first_stage_puts_off_most = edit(
    PARTS,
    """Your first stage puts off most, your last stage nothing. But the first stage has no room: its warm-up already
    holds N activations. The last stage has only one activation alive, so it can put off N − 1 entries W.""",
    ("if m >= stage:", "if m >= stages - 1 - stage:"),
    ('("W", m - stage)', '("W", m - (stages - 1 - stage))'),
    ("max(0, micro_batches - stage)", "max(0, micro_batches - (stages - 1 - stage))"),
    breaks=tests_of(PARTS),
)

all_stages_put_off_the_same = edit(
    PARTS,
    """All your stages put off N − 1 entries W. Only the last one has room for them. The others already hold the
    activations of their warm-up, and now exceed the peak of 1F1B.""",
    ("if m >= stage:", "if m >= stages - 1:"),
    ('("W", m - stage)', '("W", m - (stages - 1))'),
    ("max(0, micro_batches - stage)", "max(0, micro_batches - (stages - 1))"),
    breaks=tests_of(PARTS),
)

weights_come_at_once = edit(
    PARTS,
    """You run each W right after its B. Gradients already travel faster than in 1F1B, but at the end the early stages
    wait with nothing to do: put off some W of the later stages.""",
    ("if m >= stage:", "if True:"),
    ('("W", m - stage)', '("W", m)'),
    ("max(0, micro_batches - stage)", "micro_batches"),
    breaks=tests_of(PARTS),
)

weights_come_last = edit(
    PARTS,
    """You run all W at the end. Each stage waits where it could have run some of them, and holds the activations of all
    micro-batches. Put off only as many as there is room for.""",
    ("if m >= stage:", "if m < 0:"),
    ("max(0, micro_batches - stage)", "0"),
    breaks=tests_of(PARTS),
)

weights_come_first = edit(
    PARTS,
    """In each of your rounds W comes before B. On stage 0 that is the same micro-batch, so W waits for a B that stands
    after it: the schedule cannot run.""",
    (
        '            entries.append(("B", m))\n'
        "            if m >= stage:  # each stage puts off as many W as its warm-up is shorter than that of stage 0\n"
        '                entries.append(("W", m - stage))\n',
        "            if m >= stage:\n"
        '                entries.append(("W", m - stage))\n'
        '            entries.append(("B", m))\n',
    ),
    breaks=tests_of(PARTS),
)

weights_at_the_end_are_missing = edit(
    PARTS,
    """Your stages never run the W that they have put off, so the weights lack a part of their gradient. After all B,
    each stage still has to run as many W as it put off.""",
    ('        entries += [("W", m) for m in range(max(0, micro_batches - stage), micro_batches)]\n', ""),
    breaks=tests_of(PARTS),
)

every_stage_warms_up_like_the_first = edit(
    PARTS,
    """All your stages warm up with N − 1 forwards. The last stage could begin its first backward after one forward;
    yours runs N − 1 more first, so each of its backwards comes late, and all stages wait for them.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stages - 1)"),
    ("if m >= stage:", "if True:"),
    ('("W", m - stage)', '("W", m)'),
    ("max(0, micro_batches - stage)", "micro_batches"),
    breaks=tests_of(PARTS),
)

the_warmup_has_one_more = edit(
    PARTS,
    """Your warm-up has one forward too many: with the forward of the first round, stage 0 holds N + 1 activations.""",
    ("min(micro_batches, stages - 1 - stage)", "min(micro_batches, stages - stage)"),
    breaks=tests_of(PARTS),
)

backwards_stay_whole = edit(
    PARTS,
    """You returned 1F1B without entries W. Without W, B computes only the gradient of the input, and the weights get
    none: each micro-batch has a W on each stage.""",
    ("if m >= stage:", "if m < 0:"),
    ('        entries += [("W", m) for m in range(max(0, micro_batches - stage), micro_batches)]\n', ""),
    breaks=tests_of(PARTS),
)


@mutant(PARTS, breaks=tests_of(PARTS))
def backwards_come_one_by_one():
    """You let each micro-batch go all the way forward and back before the next one starts. Then the stages take turns,
    and no W is put off to fill their waiting."""

    def zero_bubble_schedule(stages, micro_batches):
        if stages < 1 or micro_batches < 1:
            raise ValueError(f"stages={stages} and micro_batches={micro_batches} must be at least 1")
        return [[(kind, m) for m in range(micro_batches) for kind in "FBW"] for _ in range(stages)]


the_warmup_of_few_is_not_capped = edit(
    PARTS,
    """With fewer micro-batches than stages your warm-up asks for micro-batches that do not exist. It has at most M
    forwards.""",
    ("min(micro_batches, stages - 1 - stage)", "stages - 1 - stage"),
    breaks=tests_of(PARTS),
    fails=["few_micro_batches_are_enough"],
)

the_rest_begins_below_zero = edit(
    PARTS,
    """With fewer micro-batches than stages, your last stages count the remaining W from a negative number: there is no
    micro-batch −1. They have put off all of theirs, which begin at 0.""",
    ("max(0, micro_batches - stage)", "micro_batches - stage"),
    breaks=tests_of(PARTS),
    fails=["few_micro_batches_are_enough"],
)

few_micro_batches_are_refused = edit(
    PARTS,
    """You refused fewer micro-batches than stages. Some libraries do, but this schedule can run with any number from 1
    on.""",
    (
        "    schedule = []\n",
        "    if micro_batches < stages:\n        raise ValueError('micro_batches')\n    schedule = []\n",
    ),
    breaks=tests_of(PARTS),
    fails=["few_micro_batches_are_enough"],
)

counts_below_one_pass_with_weights = edit(
    PARTS,
    """You returned a schedule for no stages or no micro-batches. Raise a ValueError that names the argument, as the
    other schedules do.""",
    ("    require_at_least_one(stages=stages, micro_batches=micro_batches)\n", ""),
    breaks=tests_of(PARTS),
    fails=["zero_bubble_refuses_counts_below_one"],
)

negative_micro_batches_pass = edit(
    PARTS,
    """You refused 0 micro-batches, but for a negative number you returned a schedule without entries. Every count below
    1 is a ValueError.""",
    ("micro_batches=micro_batches)\n", "micro_batches=abs(micro_batches))\n"),
    breaks=tests_of(PARTS),
    fails=["zero_bubble_refuses_counts_below_one"],
)
