"""Wrong answers to lesson 04, exercises 3 to 5."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

MAIN, EVALUATE, NOISE = "04-ex3-main-gradients", "04-ex4-evaluate", "04-ex5-noise-scale"


# ---- 3 · main_gradients ----

main_adds_in_sixteen_bits = edit(
    MAIN,
    """You added the gradients up in the model's dtype and converted the sum: in bfloat16 it stands still while most
    addends are still to come. Convert each gradient, and add in float32.""",
    ("zeros_like(p, dtype=torch.float32)", "zeros_like(p)"),
    ("return [main / total_count for main in mains]", "return [main.float() / total_count for main in mains]"),
    breaks=tests_of(MAIN),
)

main_leaves_the_sum_to_backward = edit(
    MAIN,
    """You let backward add up the gradients in .grad, which has the model's dtype, and converted at the end. Take each
    micro-batch's gradient out of .grad before the next backward.""",
    (
        "        for main, parameter in zip(mains, model.parameters(), strict=True):\n"
        "            if parameter.grad is not None:\n"
        "                main += parameter.grad\n"
        "            parameter.grad = None\n",
        "    for main, parameter in zip(mains, model.parameters(), strict=True):\n"
        "        if parameter.grad is not None:\n"
        "            main += parameter.grad\n"
        "        parameter.grad = None\n",
    ),
    breaks=tests_of(MAIN),
)

main_counts_what_it_has_added_before = edit(
    MAIN,
    """Your .grad still holds the earlier micro-batches when you add it to the main gradient, so these count several
    times. Set it to None after each micro-batch.""",
    ("            parameter.grad = None\n", ""),
    ("    return [main", "    model.zero_grad(set_to_none=True)\n    return [main"),
    breaks=tests_of(MAIN),
)

main_is_a_mean_of_means = edit(
    MAIN,
    """You divided each micro-batch's gradient by its own count and then by their number: a mean of means. Add up the
    gradients of the sums, and divide once by all that counts.""",
    ("loss_sum.backward()", "(loss_sum / max(int(count), 1)).backward()"),
    ("main / total_count", "main / len(micro_batches)"),
    breaks=tests_of(MAIN),
)

main_leaves_frozen_parameters_out = edit(
    MAIN,
    """Your list has no entry for frozen parameters, so that it no longer fits model.parameters(): every entry after
    the first frozen one belongs to another parameter. Give them zeros.""",
    ("zeros_like(p, dtype=torch.float32) for p in model.parameters()]",
     "zeros_like(p, dtype=torch.float32) for p in model.parameters() if p.requires_grad]"),
    ("zip(mains, model.parameters(), strict=True)",
     "zip(mains, [p for p in model.parameters() if p.requires_grad], strict=True)"),
    breaks=tests_of(MAIN),
)  # fmt: skip

main_never_divides = edit(
    MAIN,
    """Your main gradients are those of the summed loss: the division by the number of items that count is missing.""",
    ("main / total_count", "main"),
    breaks=tests_of(MAIN),
)

main_divides_in_sixteen_bits = edit(
    MAIN,
    """You scaled each loss before its backward, so that the 16-bit gradients were rounded once more. Add up the
    gradients of the sums; divide the float32 sum.""",
    ("loss_sum.backward()", "(loss_sum / 3).backward()"),
    ("main / total_count", "main * 3 / total_count"),
    breaks=tests_of(MAIN),
)

main_skips_the_unused = edit(
    MAIN,
    """Your list lacks the parameters that the model does not use, so the others stand in the wrong places. There is
    one tensor for each parameter: zeros, where no gradient arrived.""",
    ("    mains = [", "    used = set()\n    mains = ["),
    (
        "                main += parameter.grad\n",
        "                main += parameter.grad\n                used.add(id(main))\n",
    ),
    ("for main in mains]", "for main in mains if id(main) in used]"),
    breaks=tests_of(MAIN),
)

main_returns_sixteen_bits = edit(
    MAIN,
    """You rounded the finished float32 sum back to the model's dtype. The optimizer should get the digits that you
    have kept: return float32.""",
    (
        "return [main / total_count for main in mains]",
        "return [(main / total_count).to(p.dtype) for main, p in zip(mains, model.parameters(), strict=True)]",
    ),
    breaks=tests_of(MAIN),
)

main_is_float64 = edit(
    MAIN,
    """Your main gradients are float64: twice the memory of float32, for digits that the 16-bit addends do not have.""",
    ("dtype=torch.float32", "dtype=torch.float64"),
    breaks=tests_of(MAIN),
    fails=["main_gradients_are_float32_whatever_the_model"],
)

main_keeps_old_gradients = edit(
    MAIN,
    """What was in .grad before the call went into the first micro-batch's gradient, because backward adds. Set every
    .grad to None before you begin.""",
    ("    model.zero_grad(set_to_none=True)\n", ""),
    breaks=tests_of(MAIN),
    fails=["main_gradients_leave_no_grad_behind"],
)

main_is_as_wide_as_the_model = edit(
    MAIN,
    """For a model in float64 your main gradients are float64. The statement asks for float32 tensors, whatever the
    model computes in.""",
    ("zeros_like(p, dtype=torch.float32)", "zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))"),
    breaks=tests_of(MAIN),
    fails=["main_gradients_are_float32_whatever_the_model"],
)

main_keeps_all_gradients_to_the_end = edit(
    MAIN,
    """You kept the 16-bit gradients of all micro-batches and added them up at the end. Each set takes as much memory as
    the model: add each up before the next one is computed, so that one is alive at a time.""",
    ("    total_count = 0\n", "    total_count, kept = 0, []\n"),
    ("                main += parameter.grad\n", "                kept.append((main, parameter.grad))\n"),
    ("    return [main /", "    for main, grad in kept:\n        main += grad\n    return [main /"),
    breaks=tests_of(MAIN),
    fails=["main_gradients_leave_no_grad_behind"],
)

main_leaves_the_last_gradient = edit(
    MAIN,
    """A gradient is still in .grad when you return: the 16-bit gradients stay alive next to the main ones. Set it to
    None after you have added it.""",
    ("            parameter.grad = None\n", ""),
    ("        loss_sum.backward()", "        model.zero_grad(set_to_none=True)\n        loss_sum.backward()"),
    breaks=tests_of(MAIN),
    fails=["main_gradients_leave_no_grad_behind"],
)

# ---- 4 · evaluate ----

evaluate_with_padding = edit(
    EVALUATE,
    """You dealt the examples as the training sampler does, which repeats some so that all ranks have equally many. Then
    these count twice. Let the last ranks have one example fewer.""",
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
    """Sum and count travelled in float32, which is what torch.tensor makes of Python floats: seven digits are left,
    and counts above 16,777,216 are not exact. Use float64.""",
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
    """Only rank 0 has the result; the others return something else. A learning-rate schedule or an early stop needs it
    everywhere: use an all-reduce, or return it on every rank.""",
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
    """You returned a tensor. Return a float: .item() makes one.""",
    ("(total[0] / total[1]).item()", "total[0] / total[1]"),
    breaks=tests_of(EVALUATE),
)

evaluate_everything_everywhere = edit(
    EVALUATE,
    """Every rank evaluated all examples. The mean is right, and no time is saved: deal the examples out.""",
    ("list(range(rank, length, world_size))", "list(range(length))"),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_asks_for_each_example_once"],
)

evaluate_gives_the_rest_to_the_last = edit(
    EVALUATE,
    """The last rank takes all that is left over, up to N − 1 examples more than the others, who wait for it. The
    ranks' numbers may differ by one.""",
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
    """You passed a range, a tensor or numbers of numpy to losses. It takes a list of ints: list(range(...)) makes
    one.""",
    ("losses(mine)", "losses(range(rank, length, world_size))"),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_asks_for_each_example_once"],
)

evaluate_refuses_zero_alone = edit(
    EVALUATE,
    """You refuse a length of 0 and accept a negative one, for which no rank has an example. Refuse every length
    below 1.""",
    ("if length < 1:", "if length == 0:"),
    ("return (total[0] / total[1]).item()", "return (total[0] / total[1].clamp(min=1)).item()"),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_refuses_an_empty_set"],
)

evaluate_divides_by_zero = edit(
    EVALUATE,
    """Without examples you divided 0 by 0. Raise a ValueError that names length, on every rank.""",
    ('    if length < 1:\n        raise ValueError(f"length must be at least 1, got {length}")\n', ""),
    breaks=tests_of(EVALUATE),
    fails=["evaluation_refuses_an_empty_set"],
)

# ---- 5 · noise_and_signal ----

noise_lifts_the_signal_to_zero = edit(
    NOISE,
    """You replaced a negative signal by 0. An estimate without bias must be allowed to fall below 0, or the mean over
    many steps is too large.""",
    (
        "return noise, length - noise / (world_size * rows)",
        "return noise, max(0.0, length - noise / (world_size * rows))",
    ),
    breaks=tests_of(NOISE),
)

noise_divides_by_n = edit(
    NOISE,
    """You divided the squared distances by N. They are distances from the ranks' own mean, which lies nearer to them
    than the true gradient does: divide by N − 1.""",
    ("rows / (world_size - 1)", "rows / world_size"),
    breaks=tests_of(NOISE),
)

noise_of_a_rank_for_that_of_an_example = edit(
    NOISE,
    """Your noise is that of a gradient over B examples. The noise scale counts in examples: the scatter of single
    examples' gradients is B times as large.""",
    ("rows / (world_size - 1)", "1 / (world_size - 1)"),
    ("noise / (world_size * rows)", "noise / world_size"),
    breaks=tests_of(NOISE),
)

noise_stays_in_the_signal = edit(
    NOISE,
    """Your signal is the squared length of the mean gradient, which still holds the noise of N·B examples. Subtract
    it.""",
    ("length - noise / (world_size * rows)", "length"),
    breaks=tests_of(NOISE),
)

noise_subtracts_that_of_one_rank = edit(
    NOISE,
    """From the squared length of the mean you subtracted the noise of one rank's batch. The mean is over N·B examples,
    and N times less noisy.""",
    ("noise / (world_size * rows)", "noise / rows"),
    breaks=tests_of(NOISE),
)

noise_measures_from_the_sum = edit(
    NOISE,
    """You took the sum of the gradients where their mean belongs: an all-reduce adds. Divide by N.""",
    ("message[:-1] / world_size", "message[:-1]"),
    breaks=tests_of(NOISE),
)

noise_squares_the_mean_once = edit(
    NOISE,
    """The mean's squared length is subtracted once where N gradients were squared: it is N times the mean's square
    that belongs there.""",
    ("squares - world_size * length", "squares - length"),
    breaks=tests_of(NOISE),
)

noise_of_this_rank_alone = edit(
    NOISE,
    """Each rank used the squared length of its own gradient alone, so that every rank has another result. That square
    must be summed over the ranks.""",
    ("message[-1].item()", "world_size * grad.square().sum().item()"),
    breaks=tests_of(NOISE),
)

noise_comes_second = edit(
    NOISE,
    """The pair is the other way round: noise first, then signal.""",
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

noise_gathers_all_gradients = edit(
    NOISE,
    """You gathered all gradients on every rank: N times the memory and the bytes. The sum of squares needs no gradient
    but the mean; each rank squares its own.""",
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
    """You all-reduced two vectors as long as the gradient, the mean and the squares. Of the squares only the sum is
    needed: one number.""",
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
    """You all-reduced the gradient that you were given, so the caller's gradient is now the sum. Work on a copy.""",
    ("    grad = grad.double()\n", "    given, grad = grad, grad.double()\n"),
    ("    mean, squares", "    given.copy_(message[:-1])\n    mean, squares"),
    breaks=tests_of(NOISE),
    fails=["noise_leaves_the_gradient_alone"],
)
