"""Wrong answers to lesson 17, exercise 3."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

INVARIANTS, TRAIN = "17-ex3-invariants", "17-ex4-train"
VERIFY, WATCHED = "17-ex5-verify", "17-ex7-watched"


start_is_told_by_one_rank = edit(
    INVARIANTS,
    """Only the rank whose memory has changed raises. The others go on and wait for it in their next collective. Let all
    ranks know first.""",
    (
        '    if not all(same):\n        raise RuntimeError(f"the memory',
        '    if not same[rank]:\n        raise RuntimeError(f"the memory',
    ),
    breaks=tests_of(INVARIANTS, TRAIN, WATCHED),
    fails=["memory_is_compared_before_forward"],
)

start_compares_the_ranks = edit(
    INVARIANTS,
    """You compare the ranks with each other before forward. Where all have changed alike you see nothing, and the rank
    that you name may be a healthy one. Compare each rank with its own last step.""",
    (
        "    same = from_all_ranks(last is None or digest == last)\n",
        "    digests = from_all_ranks(digest)\n    same = [last is None or other == digests[0] for other in digests]\n",
    ),
    breaks=tests_of(INVARIANTS),
    fails=["memory_is_compared_before_forward"],
)

start_expects_a_step_before_the_first = edit(
    INVARIANTS,
    """In the first step there is no digest to compare with, and you report a change. None means that nothing is
    known.""",
    ("last is None or digest == last", "digest == last"),
    breaks=tests_of(INVARIANTS, TRAIN, VERIFY, WATCHED),
    fails=["memory_is_compared_before_forward"],
)


invariants_told_by_one_rank = edit(
    INVARIANTS,
    """Only the rank that sees its own wrong bytes raises. The others go on and wait for it in their next collective:
    all ranks must learn of it, and raise.""",
    ("for other, (_, _, held) in enumerate(everyone):", "for other, held in ((rank, state_bytes),):"),
    breaks=tests_of(INVARIANTS, TRAIN),
)

invariants_loss_told_by_one_rank = edit(
    INVARIANTS,
    """A rank whose loss does not fall raises before it has told the others. If the loss is wrong on that rank alone,
    they wait for it in their next collective: let all ranks know first.""",
    (
        "    everyone, expected = from",
        "    if falling and len(losses) > 1 and not losses[-1] < losses[-2]:\n"
        '        raise RuntimeError(f"(a) the loss of rank {rank} does not fall in step {step}")\n'
        "    everyone, expected = from",
    ),
    breaks=tests_of(INVARIANTS, TRAIN),
)

invariants_loss_names_each_rank = edit(
    INVARIANTS,
    """All ranks raise, but each names itself, so they disagree about whose loss is wrong. Name the lowest rank on which
    the loss does not fall.""",
    ("(a) the loss of rank {other}", "(a) the loss of rank {rank}"),
    breaks=tests_of(INVARIANTS, TRAIN),
)

invariants_loss_of_rank_0 = edit(
    INVARIANTS,
    """You look at rank 0's loss alone. A loss that does not fall on another rank goes unnoticed.""",
    (
        "    for other, (last, _, _) in enumerate(everyone):",
        "    for other, (last, _, _) in enumerate(everyone[:1]):",
    ),
    breaks=tests_of(INVARIANTS),
)

invariants_nan_falls = edit(
    INVARIANTS,
    """nan >= x is False, so your check takes a loss of nan for falling. Ask whether the loss is below the one before,
    and negate that.""",
    ("not last[1] < last[0]", "last[1] >= last[0]"),
    breaks=tests_of(INVARIANTS),
)

invariants_standing_still_falls = edit(
    INVARIANTS,
    """You accepted a loss that stays exactly the same, as after a step that did nothing. It must fall strictly.""",
    ("not last[1] < last[0]", "not last[1] <= last[0]"),
    breaks=tests_of(INVARIANTS),
)

invariants_nan_differs_from_nan = edit(
    INVARIANTS,
    """nan is unequal to itself, so you report ranks whose norm is nan as different although they hold the same bytes.
    Compare norms so that nan equals nan.""",
    ("(repr(norm), digest)", "(norm, digest)"),
    breaks=tests_of(INVARIANTS, WATCHED),
)

invariants_without_padding = edit(
    INVARIANTS,
    """You expect 12P/N bytes, which is not a whole number of shards where N does not divide P. A shard has ⌈P/N⌉
    numbers, rounded up.""",
    ("12 * -(numel // -world_size)", "12 * numel // world_size"),
    breaks=tests_of(INVARIANTS, TRAIN, VERIFY, WATCHED),
)

verified_against_itself = edit(
    INVARIANTS,
    """You compared the loaded state with itself, or only with the manifest, so a wrong byte that was written with a
    matching digest goes unnoticed. Compare with the state that was to be saved.""",
    ("described(loaded) == described(state)", "described(loaded) == described(load_sharded(path)[0])"),
    breaks=tests_of(INVARIANTS, TRAIN),
    fails=["checkpoints_are_read_back"],
)

verified_alone = edit(
    INVARIANTS,
    """The rank that reads a wrong byte raises alone, while the others go on. Let all ranks know first.""",
    (
        '    if not all(same):\n        raise RuntimeError(f"(d)',
        '    if not same[dist.get_rank()]:\n        raise RuntimeError(f"(d)',
    ),
    breaks=tests_of(INVARIANTS, TRAIN),
    fails=["checkpoints_are_read_back"],
)

verified_without_plain_values = edit(
    INVARIANTS,
    """You compared only the tensors. The step count and the learning rate belong to the state as well.""",
    (
        "v.dtype if isinstance(v, torch.Tensor) else v for n, v in state.items()}",
        "v.dtype for n, v in state.items() if isinstance(v, torch.Tensor)}",
    ),
    breaks=tests_of(INVARIANTS),
    fails=["checkpoints_are_read_back"],
)
