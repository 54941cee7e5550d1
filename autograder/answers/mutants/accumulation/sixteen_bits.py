"""Wrong answers to lesson 04, exercise 3."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

MAIN = "04-ex3-main-gradients"


# ---- 3 · main_gradients ----

main_adds_in_sixteen_bits = edit(
    MAIN,
    """You added the gradients up in the model's dtype. In bfloat16 the sum stops growing while most of the numbers are
    still to come. Convert each gradient, and add in float32.""",
    ("zeros_like(p, dtype=torch.float32)", "zeros_like(p)"),
    ("return [main / total_count for main in mains]", "return [main.float() / total_count for main in mains]"),
    breaks=tests_of(MAIN),
)

main_leaves_the_sum_to_backward = edit(
    MAIN,
    """You let backward add up the gradients of several micro-batches in .grad, which has the model's dtype. Take each
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
    """Your .grad still holds the earlier micro-batches when you add it to the main gradient, so the earlier ones count
    several times. Set .grad to None after each micro-batch.""",
    ("            parameter.grad = None\n", ""),
    ("    return [main", "    model.zero_grad(set_to_none=True)\n    return [main"),
    breaks=tests_of(MAIN),
)

main_is_a_mean_of_means = edit(
    MAIN,
    """You divided each micro-batch's gradient by its own count, and then their sum by the number of micro-batches: a
    mean of means. Add up the gradients of the sums, and divide once by the number of items that count.""",
    ("loss_sum.backward()", "(loss_sum / max(int(count), 1)).backward()"),
    ("main / total_count", "main / len(micro_batches)"),
    breaks=tests_of(MAIN),
)

main_leaves_frozen_parameters_out = edit(
    MAIN,
    """Your list has no entry for frozen parameters, so it no longer matches model.parameters(): every entry after the
    first frozen parameter belongs to another parameter. Give the frozen parameters zeros.""",
    ("zeros_like(p, dtype=torch.float32) for p in model.parameters()]",
     "zeros_like(p, dtype=torch.float32) for p in model.parameters() if p.requires_grad]"),
    ("zip(mains, model.parameters(), strict=True)",
     "zip(mains, [p for p in model.parameters() if p.requires_grad], strict=True)"),
    breaks=tests_of(MAIN),
)  # fmt: skip

main_never_divides = edit(
    MAIN,
    """Your main gradients are those of the summed loss: you did not divide them by the number of items that count.""",
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
    """Your list lacks the parameters that the model does not use, so the entries of the others are in the wrong places.
    Return one tensor for each parameter: zeros, where no gradient arrived.""",
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
    kept: return float32.""",
    (
        "return [main / total_count for main in mains]",
        "return [(main / total_count).to(p.dtype) for main, p in zip(mains, model.parameters(), strict=True)]",
    ),
    breaks=tests_of(MAIN),
)

main_is_float64 = edit(
    MAIN,
    """Your main gradients are float64. This takes twice the memory of float32, for digits that the 16-bit gradients do
    not have.""",
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
    the model: add each set up before the next one is computed, so that only one is alive at a time.""",
    ("    total_count = 0\n", "    total_count, kept = 0, []\n"),
    ("                main += parameter.grad\n", "                kept.append((main, parameter.grad))\n"),
    ("    return [main /", "    for main, grad in kept:\n        main += grad\n    return [main /"),
    breaks=tests_of(MAIN),
    fails=["main_gradients_leave_no_grad_behind"],
)

main_leaves_the_last_gradient = edit(
    MAIN,
    """A gradient is still in .grad when you return, so the 16-bit gradients stay alive next to the main ones. Set .grad
    to None after you have added it.""",
    ("            parameter.grad = None\n", ""),
    ("        loss_sum.backward()", "        model.zero_grad(set_to_none=True)\n        loss_sum.backward()"),
    breaks=tests_of(MAIN),
    fails=["main_gradients_leave_no_grad_behind"],
)

main_adds_one_step_late = edit(
    MAIN,
    """You kept a micro-batch's 16-bit gradients until after the next backward, so two sets of gradients are alive at
    once. Add each set up, and drop it, before the next backward.""",
    ("    total_count = 0\n", "    total_count, late = 0, {}\n"),
    (
        "            if parameter.grad is not None:\n                main += parameter.grad\n",
        "            if late.get(parameter) is not None:\n                main += late[parameter]\n"
        "            late[parameter] = parameter.grad\n",
    ),
    (
        "    return [main /",
        "    for main, parameter in zip(mains, model.parameters(), strict=True):\n"
        "        if late[parameter] is not None:\n            main += late[parameter]\n"
        "    return [main /",
    ),
    breaks=tests_of(MAIN),
    fails=["main_gradients_leave_no_grad_behind"],
)

main_starts_with_the_last_call = edit(
    MAIN,
    """You keep the float32 sums with the parameters, and a second call adds to those of the first. Begin each call with
    zeros.""",
    (
        "    mains = [torch.zeros_like(p, dtype=torch.float32) for p in model.parameters()]\n",
        "    for p in model.parameters():\n"
        "        p.main = getattr(p, 'main', torch.zeros_like(p, dtype=torch.float32))\n"
        "    mains = [p.main for p in model.parameters()]\n",
    ),
    ("[main / total_count for main in mains]", "[main.div_(total_count) for main in mains]"),
    breaks=tests_of(MAIN),
)

main_leaves_its_hooks = edit(
    MAIN,
    """Your hooks stay on the parameters after the call. The hooks of an earlier call then take each gradient first, and
    every later backward of the model loses its .grad. Remove the hooks before you return.""",
    (
        "    total_count = 0\n",
        "    total_count, main_of = 0, dict(zip(model.parameters(), mains, strict=True))\n\n"
        "    def move(p):\n"
        "        if p.grad is not None:\n"
        "            main_of[p] += p.grad\n"
        "            p.grad = None\n\n"
        "    for p in model.parameters():\n"
        "        if p.requires_grad:\n"
        "            p.register_post_accumulate_grad_hook(move)\n",
    ),
    (
        "        for main, parameter in zip(mains, model.parameters(), strict=True):\n"
        "            if parameter.grad is not None:\n"
        "                main += parameter.grad\n"
        "            parameter.grad = None\n",
        "",
    ),
    breaks=tests_of(MAIN),
)

main_misses_what_is_used_later = edit(
    MAIN,
    """You decide after the first micro-batch which parameters get a gradient. A parameter that only a later micro-batch
    uses then stays at zero: look at each .grad after each backward.""",
    ("    total_count = 0\n", "    total_count, used = 0, None\n"),
    (
        "        for main, parameter in zip(mains, model.parameters(), strict=True):\n"
        "            if parameter.grad is not None:\n",
        "        used = used or {p for p in model.parameters() if p.grad is not None}\n"
        "        for main, parameter in zip(mains, model.parameters(), strict=True):\n"
        "            if parameter in used and parameter.grad is not None:\n",
    ),
    breaks=tests_of(MAIN),
)

main_lists_a_shared_parameter_twice = edit(
    MAIN,
    """Your list has two entries for a parameter that two layers share. model.parameters() lists it once, but a walk
    over the modules meets it twice.""",
    ("    model.zero_grad(set_to_none=True)\n",
     "    model.zero_grad(set_to_none=True)\n"
     "    parameters = [p for module in model.modules() for p in module.parameters(recurse=False)]\n"),
    ("dtype=torch.float32) for p in model.parameters()]", "dtype=torch.float32) for p in parameters]"),
    ("zip(mains, model.parameters(), strict=True)", "zip(mains, parameters, strict=True)"),
    breaks=tests_of(MAIN),
)  # fmt: skip

main_empties_float32_parameters = edit(
    MAIN,
    """You made your zeros from p.float(). For a float32 parameter, p.float() is the parameter itself, not a copy, so
    zero_() emptied the parameter. torch.zeros_like(p, dtype=torch.float32) is always new.""",
    ("torch.zeros_like(p, dtype=torch.float32)", "p.detach().float().zero_()"),
    breaks=tests_of(MAIN),
    fails=["main_gradients_leave_no_grad_behind"],
)
