"""Wrong answers to lesson 02, exercise 3: failed_assumptions."""

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

ASSUMPTIONS = "02-ex3-assumptions"


@right(ASSUMPTIONS)
def _assumptions():
    """Right: the base of the edits below."""

    def failed_assumptions(predicted, alone, both, everyone, adding):
        failed = []
        if everyone > 1.25 * both:
            failed.append(1)
        if both > 1.25 * alone:
            failed.append(2)
        if adding > 1.25 * everyone:
            failed.append(3)
        if alone > 1.25 * predicted:
            failed.append(4)
        return failed


all_against_the_prediction = edit(
    ASSUMPTIONS,
    """You compared every experiment with the prediction. Then one failure shows up in all experiments after it.
    Compare each with the experiment that differs from it in one thing.""",
    ("1.25 * both", "1.25 * predicted"),
    ("1.25 * alone", "1.25 * predicted"),
    ("1.25 * everyone", "1.25 * predicted"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

all_against_one_message = edit(
    ASSUMPTIONS,
    """You compared every experiment with the message that travels alone. `everyone` differs from it in two things:
    both directions and many ranks. Compare it with `both`.""",
    ("1.25 * both", "1.25 * alone"),
    ("1.25 * everyone", "1.25 * alone"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

directions_and_crowd_swapped = edit(
    ASSUMPTIONS,
    """You exchanged assumptions 1 and 2. `both` tests whether two directions cost as much as one, which is
    assumption 2; `everyone` tests whether many messages disturb each other, which is assumption 1.""",
    ("append(1)", "append(0)"),
    ("append(2)", "append(1)"),
    ("append(0)", "append(2)"),
    ("return failed", "return sorted(failed)"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

in_the_order_of_the_experiments = edit(
    ASSUMPTIONS,
    """Your list is in the order of the experiments. The statement asks for sorted numbers.""",
    ("return failed", "return sorted(failed, key=[4, 2, 1, 3].index)"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

only_the_first_failure = edit(
    ASSUMPTIONS,
    """You stop at the first failure. Several assumptions can fail at once; each experiment is judged by itself.""",
    ("return failed", "return failed[:1]"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

a_quarter_is_a_failure = edit(
    ASSUMPTIONS,
    """You count growth by exactly a quarter as a failure. The time must grow by more than that: compare with >.""",
    ("everyone > 1.25 * both", "everyone >= 1.25 * both"),
    ("both > 1.25 * alone", "both >= 1.25 * alone"),
    ("adding > 1.25 * everyone", "adding >= 1.25 * everyone"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

any_change_is_a_failure = edit(
    ASSUMPTIONS,
    """You count a time that shrinks as a failure. Only growth by more than a quarter is one: a shorter time is noise,
    or luck.""",
    ("everyone > 1.25 * both", "abs(everyone - both) > 0.25 * both"),
    ("both > 1.25 * alone", "abs(both - alone) > 0.25 * alone"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

growth_of_any_size = edit(
    ASSUMPTIONS,
    """You count every growth as a failure. Two measurements of the same thing differ: growth by up to a quarter is
    noise.""",
    ("1.25 * both", "both"),
    ("1.25 * alone", "alone"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

prices_are_never_wrong = edit(
    ASSUMPTIONS,
    """You never report assumption 4. If a single message takes longer than predicted although nothing else moves,
    the prices themselves are wrong for this size or this moment.""",
    (
        """    if alone > 1.25 * predicted:
        failed.append(4)
""",
        "",
    ),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

a_quarter_of_a_second = edit(
    ASSUMPTIONS,
    """You compare a difference in seconds with 0.25. The statement means a quarter of the time before, not a quarter of
    a second.""",
    ("everyone > 1.25 * both", "everyone - both > 0.25"),
    ("both > 1.25 * alone", "both - alone > 0.25"),
    ("adding > 1.25 * everyone", "adding - everyone > 0.25"),
    ("alone > 1.25 * predicted", "alone - predicted > 0.25"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

in_whole_percents = edit(
    ASSUMPTIONS,
    """You rounded the growth to whole percents, or to a few digits, before you compared it. Then growth by 25.3 % no
    longer counts as more than a quarter. Compare the times themselves.""",
    ("everyone > 1.25 * both", "round(100 * everyone / both) > 125"),
    ("both > 1.25 * alone", "round(100 * both / alone) > 125"),
    ("adding > 1.25 * everyone", "round(100 * adding / everyone) > 125"),
    ("alone > 1.25 * predicted", "round(100 * alone / predicted) > 125"),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)

in_whole_microseconds = edit(
    ASSUMPTIONS,
    """You rounded the times to microseconds. A message on a fast link takes less than that, so all the times
    become 0. Compare the times as they are.""",
    (
        "    failed = []\n",
        "    failed, times = [], (predicted, alone, both, everyone, adding)\n"
        "    predicted, alone, both, everyone, adding = (round(seconds, 6) for seconds in times)\n",
    ),
    base=_assumptions,
    breaks=tests_of(ASSUMPTIONS),
)
