"""Wrong answers to lesson 02, exercise 1: ring_time, tree_time, halving_time."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, right, tests_of

TIMES, TWO = "02-ex1-all-reduce-times", "02-ex2-two-level"


@right(TIMES)
def _times():
    """Right: the base of the edits below."""

    def check(nbytes, n, alpha, beta):
        for name, value, least in (("n", n, 1), ("nbytes", nbytes, 0), ("alpha", alpha, 0), ("beta", beta, 0)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def ring_time(nbytes, n, alpha, beta):
        check(nbytes, n, alpha, beta)
        return 2.0 * (n - 1) * (alpha + beta * nbytes / n)

    def tree_time(nbytes, n, alpha, beta):
        check(nbytes, n, alpha, beta)
        return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)

    def halving_time(nbytes, n, alpha, beta):
        check(nbytes, n, alpha, beta)
        if n & (n - 1):
            raise ValueError(f"n = {n} is no power of two")
        rounds = 2.0 * (n.bit_length() - 1)
        return rounds * alpha + 2.0 * beta * nbytes * (n - 1) / n


one_rank_before_the_arguments = edit(
    TIMES,
    """You return 0.0 for one rank before you look at the other arguments, so a negative nbytes, alpha or beta goes
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
    fails=["nonsense_is_refused"],
)

logarithm_to_base_2 = edit(
    TIMES,
    """math.log(n, 2) divides two rounded logarithms. For some powers of two, 2**29 being the first, the quotient is a
    little too large and ceil adds a round. math.log2 is exact for powers of two.""",
    ("math.log2(n)", "math.log(n, 2)"),
    base=_times,
    breaks=tests_of(TIMES),
)

whole_seconds_stay_whole = edit(
    TIMES,
    """With whole numbers for alpha and beta, your tree_time returns an int, or tree_time and ring_time both do for one
    rank. The statement asks for a float: multiply by 2.0.""",
    ("return 2.0 * math.ceil", "return 2 * math.ceil"),
    base=_times,
    breaks=tests_of(TIMES),
)

ring_with_whole_bytes = edit(
    TIMES,
    """You rounded the chunk to whole bytes, with // or int. The model takes T/N as it is: with 10 bytes on 4 ranks a
    chunk is 2.5 bytes. Divide with a single slash.""",
    ("nbytes / n", "(nbytes // n)"),
    base=_times,
    breaks=tests_of(TIMES, TWO),
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
    breaks=tests_of(TIMES, TWO),
)

ring_in_one_half = edit(
    TIMES,
    """You counted only one half of the all-reduce. After the N − 1 rounds of the reduce-scatter each rank holds one
    chunk of the sum; the all-gather takes another N − 1 rounds.""",
    ("return 2.0 * (n - 1)", "return (n - 1)"),
    base=_times,
    breaks=tests_of(TIMES, TWO),
)

ring_starts_one_message = edit(
    TIMES,
    """Your ring pays alpha once, but every round starts a message of its own. Multiply the cost of a whole message,
    alpha included, by the number of rounds.""",
    ("return 2.0 * (n - 1) * (alpha + beta * nbytes / n)", "return alpha + 2.0 * (n - 1) / n * beta * nbytes"),
    base=_times,
    breaks=tests_of(TIMES, TWO),
)

ring_of_whole_vectors = edit(
    TIMES,
    """Your ring sends the whole vector in every round. The point of the ring is that a message is one chunk, one
    N-th of the vector.""",
    ("nbytes / n", "nbytes"),
    base=_times,
    breaks=tests_of(TIMES, TWO),
)

ring_of_2n_minus_1 = edit(
    TIMES,
    """Your ring has 2N − 1 rounds. It has two halves of N − 1 rounds each: check the brackets in 2(N − 1).""",
    (
        "return 2.0 * (n - 1) * (alpha + beta * nbytes / n)",
        "return (2 * n - 1) * (alpha + beta * nbytes / n) if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES, TWO),
)

tree_without_rounding_up = edit(
    TIMES,
    """You did not round log2 of N. There are no fractional rounds: 5 ranks have log2 N = 2.32 and need three rounds.
    Round up.""",
    ("math.ceil(math.log2(n))", "math.log2(n)"),
    base=_times,
    breaks=tests_of(TIMES),
)

tree_rounds_down = edit(
    TIMES,
    """You rounded log2 of N down. After k rounds at most 2^k ranks have been reached, so two rounds are not enough
    for five ranks. Round up.""",
    ("2.0 * math.ceil(math.log2(n))", "2 * int(math.log2(n))"),
    base=_times,
    breaks=tests_of(TIMES),
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
)

tree_up_only = edit(
    TIMES,
    """You counted the tree once. After the way up only the root has the sum; the way down to the other ranks takes
    as many rounds again.""",
    ("return 2.0 * math.ceil(math.log2(n))", "return math.ceil(math.log2(n))"),
    base=_times,
    breaks=tests_of(TIMES),
)

tree_of_chunks = edit(
    TIMES,
    """Your tree sends chunks of T/N bytes. Only the ring cuts the vector; every message of the tree is the whole
    vector.""",
    ("(alpha + beta * nbytes)", "(alpha + beta * nbytes / n)"),
    base=_times,
    breaks=tests_of(TIMES),
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
    breaks=tests_of(TIMES, TWO),
)

refuses_zero = edit(
    TIMES,
    """You refuse zeros. Only negative numbers are wrong: the model still has an answer when nbytes, alpha or beta is
    0. Compare with <, not with <=.""",
    ("if value < least:", "if value <= 0 or value < least:"),
    base=_times,
    breaks=tests_of(TIMES, TWO),
)

ring_refuses_nothing = edit(
    TIMES,
    """Your ring_time returns a time for impossible arguments. Before anything else, raise a ValueError that names
    the argument if n is below 1 or if nbytes, alpha or beta is negative.""",
    (
        """    check(nbytes, n, alpha, beta)
    return 2.0 * (n - 1)""",
        "    return 2.0 * (n - 1)",
    ),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["nonsense_is_refused"],
)

tree_refuses_less_than_the_ring = edit(
    TIMES,
    """Your ring_time refuses wrong arguments; tree_time does not, or not all of them. Both must refuse the same
    ones: n below 1, and a negative nbytes, alpha or beta.""",
    (
        """    check(nbytes, n, alpha, beta)
    return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes)""",
        "    return 2.0 * math.ceil(math.log2(n)) * (alpha + beta * nbytes) if n > 1 else 0.0",
    ),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["nonsense_is_refused"],
)

halving_refuses_only_other_sizes = edit(
    TIMES,
    """Your halving_time refuses an n that is not a power of two, but lets a negative nbytes, alpha or beta through. It
    must refuse what the other two refuse, too.""",
    (
        """    check(nbytes, n, alpha, beta)
    if n & (n - 1):""",
        "    if n < 1 or n & (n - 1):",
    ),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["nonsense_is_refused"],
)

halving_with_any_number = edit(
    TIMES,
    """Your halving_time returns a time for an n that is not a power of two. With 6 ranks, the distances N/2, N/4, ...
    do not give every rank a partner in each round: raise a ValueError that names n.""",
    (
        """    if n & (n - 1):
        raise ValueError(f"n = {n} is no power of two")
""",
        "",
    ),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["halving_needs_a_power_of_two"],
)

odd_is_not_the_test = edit(
    TIMES,
    """You refuse odd numbers only. 6 and 12 are even, but they are not powers of two: half of 6 is 3, which cannot be
    halved.""",
    ("if n & (n - 1):", "if n > 1 and n % 2:"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["halving_needs_a_power_of_two"],
)

halving_one_way = edit(
    TIMES,
    """You counted halving and doubling once. After log2 N rounds each rank holds one summed chunk; getting the other
    chunks back takes the same messages again.""",
    (
        "rounds = 2.0 * (n.bit_length() - 1)\n    return rounds * alpha + 2.0 * beta",
        "rounds = 1.0 * (n.bit_length() - 1)\n    return rounds * alpha + beta",
    ),
    base=_times,
    breaks=tests_of(TIMES),
)

halving_sends_whole_vectors = edit(
    TIMES,
    """Your halving_time sends the whole vector in each round, as a tree does. The first message is half of the
    vector, and each round after it sends half of the message before.""",
    ("2.0 * beta * nbytes * (n - 1) / n", "rounds * beta * nbytes"),
    base=_times,
    breaks=tests_of(TIMES),
)

halving_sends_half_each_time = edit(
    TIMES,
    """Every message of your halving_time is half of the vector. Only the first one is: after it a rank works on the
    half that it has summed, and sends half of that.""",
    ("2.0 * beta * nbytes * (n - 1) / n", "rounds * beta * nbytes / 2"),
    base=_times,
    breaks=tests_of(TIMES),
)

halving_sends_chunks = edit(
    TIMES,
    """Every message of your halving_time is one chunk of T/N bytes, as in a ring. Halving has fewer rounds than a
    ring, so its messages must be larger: T/2, T/4, ... down to T/N.""",
    ("2.0 * beta * nbytes * (n - 1) / n", "rounds * beta * nbytes / n"),
    base=_times,
    breaks=tests_of(TIMES),
)

halving_forgets_the_last_round = edit(
    TIMES,
    """Your halving_time takes T/2 + T/4 + ... to be the whole T. The last term is T/N, so the sum is T minus T/N.""",
    ("nbytes * (n - 1) / n\n", "nbytes * (n > 1)\n"),
    base=_times,
    breaks=tests_of(TIMES),
)

halving_with_the_rounds_of_the_ring = edit(
    TIMES,
    """Your halving_time starts 2(N − 1) messages, as a ring does. Each round halves what a rank holds, so log2 N
    rounds are enough on each way.""",
    ("rounds = 2.0 * (n.bit_length() - 1)", "rounds = 2.0 * (n - 1)"),
    base=_times,
    breaks=tests_of(TIMES),
)

halving_of_nothing_takes_any_number = edit(
    TIMES,
    """With 0 bytes your halving_time takes any n. Rank 5 of 6 has no partner in that case either: refuse an n that is
    not a power of two, whatever the other arguments are.""",
    ("if n & (n - 1):", "if n & (n - 1) and nbytes:"),
    base=_times,
    breaks=tests_of(TIMES),
    fails=["halving_needs_a_power_of_two"],
)

halving_knows_a_few_powers = edit(
    TIMES,
    """You look n up in a list of powers of two, and the list ends. The statement has no largest n: ask whether n has a
    single 1 among its binary digits.""",
    ("if n & (n - 1):", "if n not in [2**k for k in range(13)]:"),
    base=_times,
    breaks=tests_of(TIMES),
)
