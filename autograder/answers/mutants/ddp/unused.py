"""Wrong answers to lesson 05, exercise 7."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

CHECKED = "05-ex7-unused"


# ---- 7 · CheckedDataParallel ----

ZEROS, NONE = "unused_gradients_count_as_zeros", "what_nobody_used_keeps_none"
NAMED, STOPS = "unused_parameters_are_named", "a_rank_that_skips_stops_the_step"
ASK = "            dist.all_reduce(has_grad, op=dist.ReduceOp.MAX)  # on every rank the last collective of the step\n"
FINISH = "        super().finish_gradient_sync()\n"

checked_asks_before_the_buckets = edit(
    CHECKED,
    """You sent the all-reduce about unused parameters before the remaining buckets. A rank where nothing is missing has
    started all its buckets during backward, so this call comes last there, but first on another rank. Send it after the
    buckets, on every rank.""",
    (FINISH, "        if self.find_unused_parameters:\n" + ASK + FINISH),
    (
        "        if self.find_unused_parameters:\n" + ASK + "            for",
        "        if self.find_unused_parameters:\n            for",
    ),
    breaks=tests_of(CHECKED),
)

checked_asks_only_itself = edit(
    CHECKED,
    """If a gradient was None on this rank, you set it back to None. Other ranks used the parameter and keep a mean, so
    this rank skips an update that they make. Ask all ranks: only a gradient that is None everywhere stays None.""",
    (ASK, ""),
    breaks=tests_of(CHECKED),
)

checked_asks_for_each_parameter = edit(
    CHECKED,
    """You sent the ranks a separate message about each parameter. Each message costs a start-up time; one call with a
    flag for each parameter carries the same information.""",
    (ASK, "            for flag in has_grad.split(1):\n                dist.all_reduce(flag, op=dist.ReduceOp.MAX)\n"),
    breaks=tests_of(CHECKED),
)

checked_drops_what_unused_parameters_had = edit(
    CHECKED,
    """You counted an unused parameter as zeros even though its .grad held something. The last micro-batch may not
    have used it, but earlier ones may have: an unused parameter brings the .grad that it has.""",
    (FINISH, "        for p in self.reducer.missing():\n            p.grad = None\n" + FINISH),
    breaks=tests_of(CHECKED),
)

checked_skips_a_rank_without_gradients = edit(
    CHECKED,
    """Your finish_gradient_sync() returned at once on a rank where no gradient had arrived, while the other ranks wait
    for its zeros. Every rank takes part in every step, whichever parameters it used.""",
    (
        "        trainable =",
        "        if self.find_unused_parameters and not any(p.grad is not None for p in self.module.parameters()):\n"
        "            return\n"
        "        trainable =",
    ),
    breaks=tests_of(CHECKED),
)

checked_means_over_users_only = edit(
    CHECKED,
    """You divided by the number of ranks that used the parameter. The ranks that did not use it count as zeros: the
    mean is over all of them.""",
    (ASK, "            dist.all_reduce(has_grad)\n"),
    (
        "                if not anywhere:\n                    p.grad = None\n",
        "                if not anywhere:\n"
        "                    p.grad = None\n"
        "                else:\n"
        "                    p.grad *= dist.get_world_size() / anywhere\n",
    ),
    breaks=tests_of(CHECKED),
)

checked_gives_zeros_to_what_nobody_used = edit(
    CHECKED,
    """You gave a gradient of zeros to a parameter that no rank used. An optimizer with momentum or weight decay moves
    a parameter whose gradient is zero, but leaves it alone if the gradient is None. Set it back to None.""",
    ("                    p.grad = None\n", "                    pass\n"),
    breaks=tests_of(CHECKED),
    fails=[NONE],
)

checked_takes_zeros_for_none = edit(
    CHECKED,
    """You set a gradient to None because its mean was zero. The mean may be zero although a rank had a gradient: ask
    who had one, not what the mean is.""",
    ("                if not anywhere:\n", "                if not anywhere or not p.grad.any():\n"),
    breaks=tests_of(CHECKED),
)

checked_counts_as_zeros_without_the_flag = edit(
    CHECKED,
    """Without the flag, your finish_gradient_sync() said nothing about a parameter that got no gradient. That hides a
    mistake in the model: raise the RuntimeError there, and count zeros only with find_unused_parameters=True.""",
    ("        if unused and not self.find_unused_parameters:\n", "        if False:\n"),
    breaks=tests_of(CHECKED),
    fails=[NAMED, STOPS],
)

checked_does_not_name_the_unused = edit(
    CHECKED,
    """Your error says that a parameter was not used, but not which of hundreds. Put the names from
    module.named_parameters() into it.""",
    (
        'f"no gradient for {names}: use them, freeze them, or set find_unused_parameters=True"',
        'f"{len(unused)} parameters got no gradient"',
    ),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_names_all_parameters = edit(
    CHECKED,
    """Your error names every parameter, even those that got their gradients. Name only the missing ones; id(p) tells
    parameters apart.""",
    ("() if id(p) in unused", "()"),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_names_the_first_only = edit(
    CHECKED,
    """Your error names one unused parameter and leaves out the others. Name all of them, so that the user can fix them
    all at once.""",
    ('names = ", ".join(name for', "names = next(name for"),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_takes_a_missing_grad_for_an_unused_parameter = edit(
    CHECKED,
    """You treated the parameters whose .grad is None as the unused ones. A gradient left over from before is not a
    gradient of this step: ask the reducer which parameters have not been marked.""",
    ("self.reducer.missing()}", "self.module.parameters() if p.grad is None}"),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_raises_after_sending_the_rest = edit(
    CHECKED,
    """You started the remaining buckets before you raised the error. If only one rank skips a parameter, the other
    ranks then get means that contain its zeros, and go on while that rank stops: check what is missing before you start
    anything more.""",
    (
        "        if unused and not self.find_unused_parameters:\n",
        "        if unused and not self.find_unused_parameters:\n            super().finish_gradient_sync()\n",
    ),
    breaks=tests_of(CHECKED),
    fails=[STOPS],
)

checked_names_them_as_the_wrapper_does = edit(
    CHECKED,
    """You took the names from self.named_parameters(), where each name begins with "module.". The statement asks for
    the names that the module itself gives.""",
    ("in self.module.named_parameters() if", "in self.named_parameters() if"),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_names_frozen_parameters = edit(
    CHECKED,
    """You named frozen parameters, which never get a gradient. Only trainable ones can be unused.""",
    (
        "in self.module.named_parameters() if id(p) in unused",
        "in self.module.named_parameters() if id(p) in unused or not p.requires_grad",
    ),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_asks_without_the_flag = edit(
    CHECKED,
    """You also asked the ranks who has a gradient when the flag was not set. Without the flag no parameter may be
    unused, so each step pays for a call that says nothing new. Ask only with find_unused_parameters=True.""",
    ("        if self.find_unused_parameters:\n" + ASK, "        if True:\n" + ASK),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_asks_only_where_something_is_missing = edit(
    CHECKED,
    """You asked the other ranks only where a gradient was missing. A rank that has all gradients then does not take
    part, and the others wait for it: with the flag, each rank asks in each step.""",
    (
        "        if self.find_unused_parameters:\n" + ASK,
        "        if self.find_unused_parameters and not has_grad.all():\n" + ASK,
    ),
    breaks=tests_of(CHECKED),
)

checked_sends_a_flag_for_each_element = edit(
    CHECKED,
    """You sent a flag for each element of each parameter. One flag for each parameter is enough.""",
    (
        "torch.tensor([p.grad is not None for p in trainable], dtype=torch.uint8)",
        "torch.cat([torch.full((p.numel(),), p.grad is not None, dtype=torch.uint8) for p in trainable])",
    ),
    (
        "zip(trainable, has_grad.tolist())",
        "zip(trainable, [flags.any() for flags in has_grad.split([p.numel() for p in trainable])])",
    ),
    breaks=tests_of(CHECKED),
)

checked_sends_objects = edit(
    CHECKED,
    """You sent a Python object. That takes two calls, one of them for the object's length, and the number of bytes is
    not bounded: send one tensor with a flag for each parameter.""",
    (
        ASK,
        "            lists = [None] * dist.get_world_size()\n"
        "            dist.all_gather_object(lists, has_grad.tolist())\n"
        "            has_grad = torch.tensor(lists).amax(dim=0)\n",
    ),
    breaks=tests_of(CHECKED),
)

checked_looks_for_equal_numbers = edit(
    CHECKED,
    """You looked for the unused parameters by their numbers, and so also named parameters that only hold the same
    numbers, such as two biases of zeros. id(p) or `is` tells parameters apart.""",
    ("if id(p) in unused)", "if any(torch.equal(p, q) for q in self.reducer.missing()))"),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_gives_the_last_name = edit(
    CHECKED,
    """A parameter that two layers share has two names, and you gave the second one. module.named_parameters() gives
    the first.""",
    (
        "name for name, p in self.module.named_parameters() if id(p) in unused)",
        "{id(p): name for name, p in self.module.named_parameters(remove_duplicate=False) if id(p) in unused}"
        ".values())",
    ),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)
