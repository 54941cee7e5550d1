"""Wrong answers to lesson 02, exercises 1 and 2."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

TIMES, CROSSOVER = "02-ex1-ring-and-tree", "02-ex2-crossover"
STEP = "02-ex5-step"


# ---- 1 · ring_time, tree_time ----


@right(TIMES)
def _times():
    """Right: the base of the edits below."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2.0 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


one_rank_before_the_arguments = edit(
    TIMES,
    """You return 0.0 for one rank before you look at the other arguments, so that a negative nbytes, alpha or beta goes
    unnoticed there. Check the arguments first.""",
    (
        """def ring_time(nbytes, n, alpha, beta):
""",
        """def ring_time(nbytes, n, alpha, beta):
    if n == 1:
        return 0.0
""",
    ),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["ring_refuses_nonsense"],
)

logarithm_to_base_2 = edit(
    TIMES,
    """math.log(n, 2) divides two rounded logarithms, and for some powers of two the quotient is a little too large, so
    that ceil adds a round: 2**29 is the first. math.log2 is exact for powers of two.""",
    ("math.log2(n)", "math.log(n, 2)"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

whole_seconds_stay_whole = edit(
    TIMES,
    """With whole numbers for alpha and beta your tree_time returns an int, or for one rank both do. The statement asks
    for a float: multiply by 2.0.""",
    ("return 2.0 * math.ceil", "return 2 * math.ceil"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

ring_with_whole_bytes = edit(
    TIMES,
    """You rounded the chunk to whole bytes, with // or int. The model takes T/N as it is: with 10 bytes on 4 ranks a
    chunk is 2.5 bytes. Divide with a single slash.""",
    ("nbytes / n", "(nbytes // n)"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_with_n_rounds = edit(
    TIMES,
    """Each half of your ring has N rounds; it needs N − 1. A chunk starts on one rank and must visit the N − 1
    others: it does not have to come back.""",
    (
        "return 2.0 * (n - 1) * (alpha + beta * nbytes / n)",
        "return 2.0 * n * (alpha + beta * nbytes / n) if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_in_one_half = edit(
    TIMES,
    """You counted only one half of the all-reduce. After the N − 1 rounds of the reduce-scatter each rank holds one
    chunk of the sum; the all-gather takes another N − 1 rounds.""",
    ("return 2.0 * (n - 1)", "return (n - 1)"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_starts_one_message = edit(
    TIMES,
    """Your ring pays alpha once, but every round starts a message of its own. Multiply the cost of a whole message,
    alpha included, by the number of rounds.""",
    ("return 2.0 * (n - 1) * (alpha + beta * nbytes / n)", "return alpha + 2.0 * (n - 1) / n * beta * nbytes"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_of_whole_vectors = edit(
    TIMES,
    """Your ring sends the whole vector in every round. The point of the ring is that a message is one chunk, one N-th
    of the vector.""",
    ("nbytes / n", "nbytes"),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

ring_of_2n_minus_1 = edit(
    TIMES,
    """Your ring has 2N − 1 rounds. It has two halves of N − 1 rounds each: check the brackets in 2(N − 1).""",
    (
        "return 2.0 * (n - 1) * (alpha + beta * nbytes / n)",
        "return (2 * n - 1) * (alpha + beta * nbytes / n) if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)

tree_without_rounding_up = edit(
    TIMES,
    """You did not round log2 of N. There are no fractional rounds: 5 ranks have log2 N = 2.32 and need three rounds.
    Round up.""",
    ("math.ceil(math.log2(n))", "math.log2(n)"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

tree_rounds_down = edit(
    TIMES,
    """You rounded log2 of N down. After k rounds at most 2^k ranks have been reached, so two rounds are not enough for
    five ranks. Round up.""",
    ("2.0 * math.ceil(math.log2(n))", "2 * int(math.log2(n))"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

tree_one_level_too_deep = edit(
    TIMES,
    """For powers of two your tree has one level too many. The number of ranks that have the vector doubles in each
    round, so 4 ranks are reached in 2 rounds. If you count the bits of N, compare them with the bits of N − 1.""",
    (
        "return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)",
        "levels = int(n).bit_length() if n > 1 else 0\n    return 2 * levels * (alpha + beta * nbytes)",
    ),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

tree_up_only = edit(
    TIMES,
    """You counted the tree once. After the way up only the root has the sum; the way down to the other ranks takes as
    many rounds again.""",
    ("return 2.0 * math.ceil(math.log2(n))", "return math.ceil(math.log2(n))"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

tree_of_chunks = edit(
    TIMES,
    """Your tree sends chunks of T/N bytes. Only the ring cuts the vector; every message of the tree is the whole
    vector.""",
    ("(alpha + beta * nbytes)", "(alpha + beta * nbytes / n)"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

tree_starts_one_message_a_way = edit(
    TIMES,
    """Your tree pays alpha only twice, once up and once down. Every round starts a message: multiply alpha by the
    number of rounds, as you do with the bytes.""",
    (
        "return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)",
        "return 2 * alpha + 2.0 * math.ceil(math.log2(n)) * beta * nbytes if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["tree_takes_its_rounds"],
)

nothing_to_send_costs_nothing = edit(
    TIMES,
    """For 0 bytes you returned 0. A message without content must still be started: with T = 0 each round costs
    alpha.""",
    (
        "return 2.0 * (n - 1) * (alpha + beta * nbytes / n)",
        "if nbytes == 0:\n        return 0.0\n    return 2.0 * (n - 1) * (alpha + beta * nbytes / n)",
    ),
    base=_times,
    breaks=tests_of(TIMES),
)

refuses_zero = edit(
    TIMES,
    """You refuse zeros. Only negative numbers are wrong: the model still has an answer when nbytes, alpha or beta is 0.
    Compare with <, not with <=.""",
    (
        "if value < least:\n"
        '            raise ValueError(f"{name} must be at least {least}, got {value}")\n'
        "    return 2.0 * (n - 1) * (alpha + beta * nbytes / n)",
        "if value <= 0 or value < least:\n"
        '            raise ValueError(f"{name} must be at least {least}, got {value}")\n'
        "    return 2.0 * (n - 1) * (alpha + beta * nbytes / n)",
    ),
    base=_times,
    breaks=tests_of(TIMES, STEP),
)


@mutant(TIMES, breaks=tests_of(TIMES), fails=["ring_refuses_nonsense"])
def ring_refuses_nothing():
    """Your ring_time returns a time for impossible arguments. Before anything else, raise a ValueError that names the
    argument if n is below 1 or if nbytes, alpha or beta is negative."""

    def ring_time(nbytes, n, alpha, beta):
        return 2.0 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)


@mutant(TIMES, breaks=tests_of(TIMES), fails=["tree_refuses_nonsense"])
def tree_refuses_less_than_the_ring():
    """Your ring_time refuses wrong arguments; tree_time does not, or not all of them. Both must refuse the same ones: n
    below 1, and a negative nbytes, alpha or beta."""

    def ring_time(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        return 2.0 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes) if n > 1 else 0.0


# ---- 2 · crossover_bytes ----


nearly_free_is_free = edit(
    CROSSOVER,
    """You took a small beta for 0. At 1.8 TB/s a byte costs 5.6e-13 s, which is small and not 0. Compare with 0 itself:
    a tolerance needs a scale, and here there is none.""",
    ("if beta == 0:", "if math.isclose(beta, 0, abs_tol=1e-12):"),
    breaks=tests_of(CROSSOVER),
)

never_slower_from_a_whole_byte = edit(
    CROSSOVER,
    """Where the ring is never slower you return 0, an int. The statement asks for a float, 0.0: who divides or formats
    the result should not have to look which case it was.""",
    ("return 0.0", "return 0"),
    breaks=tests_of(CROSSOVER),
)


@right(CROSSOVER)
def _crossover():
    """Right: the base of the edits below."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        if beta == 0:
            return math.inf
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


infinite_before_zero = edit(
    CROSSOVER,
    """You return infinity whenever beta is 0. For N ≤ 3, or when starting a message is free as well, the ring is never
    slower than the tree, and the answer is 0.0. Ask the two questions in the other order.""",
    ("if n <= 3 or alpha == 0:", "if n == 1:"),
    breaks=tests_of(CROSSOVER),
)

rounded_to_whole_bytes = edit(
    CROSSOVER,
    """You rounded the crossover to whole bytes. It is the point where two lines of the model meet: return the float as
    it is.""",
    (
        "return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)",
        "return round(alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n))",
    ),
    breaks=tests_of(CROSSOVER),
)


@mutant(CROSSOVER, breaks=tests_of(CROSSOVER))
def free_bytes_divide_by_zero():
    """With beta = 0 you divide by zero. When bytes are free only the rounds count, and from 4 ranks on the ring has
    more of them: it never catches up, and the answer is math.inf."""

    def crossover_bytes(n, alpha, beta):
        if n <= 3 or alpha == 0:
            return 0.0
        levels = math.ceil(math.log2(n))
        return alpha / beta * (n - 1 - levels) / (levels - (n - 1) / n)


one_rank_divides_by_zero = edit(
    CROSSOVER,
    """For one rank you divide by zero: L and (N − 1)/N are both 0. A single rank sends nothing, so the ring is not
    slower: return 0.0 for every N up to 3 before you divide.""",
    ("if n <= 3 or alpha == 0:", "if alpha == 0:"),
    ("return math.inf", "return 0.0 if n <= 3 else math.inf"),
    breaks=tests_of(CROSSOVER),
)

forgets_the_bytes_of_the_ring = edit(
    CROSSOVER,
    """You left out the bytes that the ring sends, (N − 1)/N of a vector in each half. Both sides of the equation have a
    term with beta: bring them to one side.""",
    ("(levels - (n - 1) / n)", "levels"),
    breaks=tests_of(CROSSOVER),
)

prices_upside_down = edit(
    CROSSOVER,
    """You divided beta by alpha. The more it costs to start a message, the longer the tree stays ahead, so alpha
    belongs in the numerator. The units say the same: seconds divided by seconds per byte are bytes.""",
    ("alpha / beta", "beta / alpha"),
    breaks=tests_of(CROSSOVER),
)

twice_the_rounds_of_the_ring = edit(
    CROSSOVER,
    """You gave the ring 2(N − 1) rounds and the tree L. Both go through two halves: compare 2(N − 1) with 2L, and the
    twos cancel.""",
    ("beta * (n - 1 - levels)", "beta * (2.0 * (n - 1) - levels)"),
    breaks=tests_of(CROSSOVER),
)

levels_not_rounded = edit(
    CROSSOVER,
    """You used log2 of N without rounding it up. For N = 5 the tree needs three rounds, not 2.32. Your result is right
    only where N is a power of two.""",
    ("levels = math.ceil(math.log2(n))", "levels = math.log2(n)"),
    breaks=tests_of(CROSSOVER),
)
