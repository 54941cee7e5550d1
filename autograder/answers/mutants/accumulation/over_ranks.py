"""Wrong answers to lesson 04, exercises 4 and 5."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

EVALUATE, NOISE = "04-ex4-evaluate", "04-ex5-noise-scale"


# ---- 4 · evaluate ----

evaluate_with_padding = edit(
    EVALUATE,
    """You dealt out the examples as the training sampler does, which repeats some examples so that all ranks have
    equally many. Here, no example is evaluated twice: let the last ranks have one example fewer.""",
    ("list(range(rank, length, world_size))", "shard_indices(length, rank, world_size, 0, shuffle=False)"),
    breaks=tests_of(EVALUATE),
)

evaluate_drops_the_rest = edit(
    EVALUATE,
    """You cut the examples to a multiple of the number of ranks, so the last ones are never evaluated. Let some ranks
    have one example more.""",
    ("list(range(rank, length, world_size))", "list(range(rank, length - length % world_size, world_size))"),
    ("(total[0] / total[1]).item()", "(total[0] / max(total[1], 1)).item()"),
    breaks=tests_of(EVALUATE),
)

evaluate_averages_the_means = edit(
    EVALUATE,
    """You averaged the ranks' means: a mean of means. A rank with fewer examples then has as much weight as the
    others. All-reduce the sum and the count, and divide once.""",
    ("total[0], total[1] = losses(mine).sum(), len(mine)", "total[0], total[1] = losses(mine).mean(), 1"),
    breaks=tests_of(EVALUATE),
)

evaluate_adds_in_float32 = edit(
    EVALUATE,
    """The sum and the count travelled in float32, the dtype that torch.tensor gives to Python floats. Only seven digits
    are left, and counts above 16,777,216 are not exact. Use float64.""",
    ("torch.zeros(2, dtype=torch.float64)", "torch.zeros(2)"),
    breaks=tests_of(EVALUATE),
)

evaluate_keeps_its_own_mean = edit(
    EVALUATE,
    """Each rank returned the mean over its own examples. All-reduce the sum and the count before you divide.""",
    ("    dist.all_reduce(total)\n", ""),
    ("(total[0] / total[1]).item()", "(total[0] / max(total[1], 1)).item()"),
    breaks=tests_of(EVALUATE),
)

evaluate_tells_rank_0_alone = edit(
    EVALUATE,
    """Only rank 0 has the result; the others return something else. A learning-rate schedule or early stopping needs
    the result on every rank: use an all-reduce, or return the result on every rank.""",
    ("dist.all_reduce(total)", "dist.reduce(total, 0)"),
    ("return (total[0] / total[1]).item()", "return (total[0] / total[1]).item() if rank == 0 else 0.0"),
    breaks=tests_of(EVALUATE),
)

evaluate_divides_by_its_own_count = edit(
    EVALUATE,
    """You all-reduced the sum of the losses and divided by your own number of examples. Divide by the number of all
    examples.""",
    ("(total[0] / total[1]).item()", "(total[0] / max(len(mine), 1)).item()"),
    breaks=tests_of(EVALUATE),
)

evaluate_returns_a_tensor = edit(
    EVALUATE,
    """You returned a tensor. Return a float: .item() turns a tensor into one.""",
    ("(total[0] / total[1]).item()", "total[0] / total[1]"),
    breaks=tests_of(EVALUATE),
)

evaluate_drops_losses_below_zero = edit(
    EVALUATE,
    """You left out losses below zero, perhaps as padding. A loss may be below zero (the loss of a density can be), and
    counts like any other loss.""",
    (
        "        total[0], total[1] = losses(mine).sum(), len(mine)\n",
        "        kept = losses(mine)\n"
        "        kept = kept[kept >= 0]\n"
        "        total[0], total[1] = kept.sum(), len(kept)\n",
    ),
    breaks=tests_of(EVALUATE),
)

evaluate_returns_the_last_result = edit(
    EVALUATE,
    """You kept the mean of an earlier call and returned it again for the same length. By now the losses come from
    another model: evaluate in every call.""",
    ("    mine = list", "    known = evaluate.__dict__\n    mine = list"),
    ("return (total[0] / total[1]).item()", "return known.setdefault(str(length), (total[0] / total[1]).item())"),
    breaks=tests_of(EVALUATE),
)

evaluate_returns_an_int_for_no_loss = edit(
    EVALUATE,
    """Where all losses are 0 you returned the int 0. Return a float in every case: 0.0.""",
    ("return (total[0] / total[1]).item()", "return (total[0] / total[1]).item() or 0"),
    breaks=tests_of(EVALUATE),
)

evaluate_everything_everywhere = edit(
    EVALUATE,
    """Every rank evaluated all examples. The mean is right, but no time is saved: deal the examples out.""",
    ("list(range(rank, length, world_size))", "list(range(length))"),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_asks_for_each_example_once"],
)

evaluate_gives_the_rest_to_the_last = edit(
    EVALUATE,
    """The last rank takes all that is left over, up to N − 1 examples more than the other ranks, which wait for it. The
    ranks' numbers of examples may differ by at most one.""",
    (
        "list(range(rank, length, world_size))",
        "list(range(rank * (length // world_size), length if rank == world_size - 1 "
        "else (rank + 1) * (length // world_size)))",
    ),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_asks_for_each_example_once"],
)

evaluate_asks_with_a_range = edit(
    EVALUATE,
    """You passed a range, a tensor or numpy numbers to losses, which takes a list of ints: list(range(...)) makes
    one.""",
    ("losses(mine)", "losses(range(rank, length, world_size))"),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_asks_for_each_example_once"],
)

evaluate_refuses_zero_alone = edit(
    EVALUATE,
    """You refuse a length of 0, but accept a negative length, for which no rank has an example. Refuse every length
    below 1.""",
    ("if length < 1:", "if length == 0:"),
    ("return (total[0] / total[1]).item()", "return (total[0] / total[1].clamp(min=1)).item()"),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_refuses_an_empty_set"],
)

evaluate_divides_by_zero = edit(
    EVALUATE,
    """When there were no examples, you divided 0 by 0. Raise a ValueError that names length, on every rank.""",
    ('    if length < 1:\n        raise ValueError(f"length must be at least 1, got {length}")\n', ""),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_refuses_an_empty_set"],
)

# ---- 5 · noise_and_signal ----

noise_lifts_the_signal_to_zero = edit(
    NOISE,
    """You raised a negative signal to 0. An unbiased estimate must be allowed to fall below 0, or its mean over many
    steps is too large.""",
    (
        "return noise, length - noise / (world_size * rows)",
        "return noise, max(0.0, length - noise / (world_size * rows))",
    ),
    breaks=tests_of(NOISE),
)

noise_divides_by_n = edit(
    NOISE,
    """You divided the squared distances by N. These are distances from the ranks' own mean, which is nearer to the
    ranks than the true gradient is: divide by N − 1.""",
    ("rows / (world_size - 1)", "rows / world_size"),
    breaks=tests_of(NOISE),
)

noise_of_a_rank_for_that_of_an_example = edit(
    NOISE,
    """Your noise is the noise of a gradient over B examples. The noise scale is measured in examples: the scatter of
    single examples' gradients is B times as large.""",
    ("rows / (world_size - 1)", "1 / (world_size - 1)"),
    ("noise / (world_size * rows)", "noise / world_size"),
    breaks=tests_of(NOISE),
)

noise_stays_in_the_signal = edit(
    NOISE,
    """Your signal is the squared length of the mean gradient, which still contains the noise of N·B examples. Subtract
    this noise.""",
    ("length - noise / (world_size * rows)", "length"),
    breaks=tests_of(NOISE),
)

noise_subtracts_that_of_one_rank = edit(
    NOISE,
    """You subtracted the noise of one rank's batch from the squared length of the mean. The mean is over N·B examples,
    so its noise is N times smaller.""",
    ("noise / (world_size * rows)", "noise / rows"),
    breaks=tests_of(NOISE),
)

noise_measures_from_the_sum = edit(
    NOISE,
    """You used the sum of the gradients where their mean belongs: an all-reduce adds up. Divide by N.""",
    ("message[:-1] / world_size", "message[:-1]"),
    breaks=tests_of(NOISE),
)

noise_squares_the_mean_once = edit(
    NOISE,
    """You subtracted the mean's squared length once, although you squared N gradients. Subtract N times the mean's
    squared length.""",
    ("squares - world_size * length", "squares - length"),
    breaks=tests_of(NOISE),
)

noise_of_this_rank_alone = edit(
    NOISE,
    """Each rank used the squared length of its own gradient alone, so every rank has a different result. The squared
    lengths must be summed over the ranks.""",
    ("message[-1].item()", "world_size * grad.square().sum().item()"),
    breaks=tests_of(NOISE),
)

noise_comes_second = edit(
    NOISE,
    """Your pair is in the wrong order: noise comes first, then signal.""",
    ("return noise, length - noise / (world_size * rows)", "return length - noise / (world_size * rows), noise"),
    breaks=tests_of(NOISE),
)

noise_returns_the_quotient = edit(
    NOISE,
    """You returned the quotient. Return the pair: the two estimates are averaged over steps before the
    division.""",
    ("return noise, length - noise / (world_size * rows)", "return noise / (length - noise / (world_size * rows))"),
    breaks=tests_of(NOISE),
)

noise_squares_in_float32 = edit(
    NOISE,
    """You squared a float32 gradient in float32, and converted the square too late. Where the ranks nearly agree, the
    noise is a small difference of large squares, and their rounding is as large as the noise: convert first.""",
    ("    grad = grad.double()\n", "    squared, grad = grad.square().sum().double(), grad.double()\n"),
    ("grad.square().sum().reshape(1)", "squared.reshape(1)"),
    breaks=tests_of(NOISE),
)

noise_gathers_lists = edit(
    NOISE,
    """You gathered the gradients as Python objects, so every rank holds all of them, and they are pickled as well.
    All-reduce the gradients: the noise needs no gradient except the mean.""",
    (
        "    dist.all_reduce(message)\n",
        "    parts = [None] * world_size\n"
        "    dist.all_gather_object(parts, message.tolist())\n"
        "    message = torch.tensor(parts, dtype=torch.float64).sum(dim=0)\n",
    ),
    breaks=tests_of(NOISE),
    fails=["noise_costs_one_all_reduce"],
)

noise_gathers_all_gradients = edit(
    NOISE,
    """You gathered all gradients on every rank, which takes N times the memory and the bytes. The sum of squares needs
    no gradient except the mean; each rank squares its own gradient.""",
    (
        "    dist.all_reduce(message)\n",
        "    parts = [torch.empty_like(message) for _ in range(world_size)]\n"
        "    dist.all_gather(parts, message)\n"
        "    message = torch.stack(parts).sum(dim=0)\n",
    ),
    breaks=tests_of(NOISE),
    fails=["noise_costs_one_all_reduce"],
)

noise_reduces_the_gradient_twice = edit(
    NOISE,
    """You all-reduced two vectors as long as the gradient, one for the mean and one for the squares. Only the sum of
    the squares is needed: one number.""",
    (
        "    dist.all_reduce(message)\n",
        "    dist.all_reduce(message)\n"
        "    away = (grad - message[:-1] / world_size).square()\n"
        "    dist.all_reduce(away)\n",
    ),
    breaks=tests_of(NOISE),
    fails=["noise_costs_one_all_reduce"],
)

noise_reduces_in_place = edit(
    NOISE,
    """You changed the caller's gradient: you all-reduced it in place, or wrote the result into it. Work on a copy.""",
    ("    grad = grad.double()\n", "    given, grad = grad, grad.double()\n"),
    ("    mean, squares", "    given.copy_(message[:-1])\n    mean, squares"),
    breaks=tests_of(NOISE),
    fails=["noise_leaves_the_gradient_alone"],
)
