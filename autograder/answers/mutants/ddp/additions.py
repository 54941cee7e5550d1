"""Wrong answers to lesson 05, exercises 6 and 7."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

QUIET, CHECKED = "05-ex6-no-sync", "05-ex7-unused"


# ---- 6 · QuietDataParallel ----


quiet_finishes_whatever_the_last_forward_was = edit(
    QUIET,
    """Your finish_gradient_sync() averaged after a silent backward. It does not matter whether it is called inside
    no_sync(): remember what the last forward was, and do nothing after a silent one.""",
    (
        "        if self.open:\n            super().finish_gradient_sync()\n",
        "        if self.loud:\n            super().finish_gradient_sync()\n",
    ),
    breaks=tests_of(QUIET),
    fails=["finishing_twice_sends_nothing", "looking_decides_nothing"],
)

quiet_stays_open_after_finish = edit(
    QUIET,
    """After finish_gradient_sync() your wrapper still considered the step open, so a second call sent everything
    again. Close the step when it is finished.""",
    ("            self.open = False\n", ""),
    breaks=tests_of(QUIET),
    fails=["finishing_twice_sends_nothing"],
)

quiet_complains_when_there_is_nothing = edit(
    QUIET,
    """Your finish_gradient_sync() raised an error where there was nothing to finish. A loop may call it after every
    micro-batch, silent ones included: then it does nothing.""",
    (
        "        if self.open:\n            super().finish_gradient_sync()\n",
        "        if not self.open:\n"
        '            raise RuntimeError("there is nothing to finish")\n'
        "        if self.open:\n"
        "            super().finish_gradient_sync()\n",
    ),
    breaks=tests_of(QUIET),
    fails=["finishing_twice_sends_nothing", "looking_decides_nothing"],
)

quiet_lets_every_forward_decide = edit(
    QUIET,
    """A forward under torch.no_grad() opened a step, and finish_gradient_sync() then sent gradients that nobody had
    computed. Such a forward has no backward: let only forwards with gradients enabled decide.""",
    ("        if torch.is_grad_enabled():\n            self.open", "        self.open"),
    breaks=tests_of(QUIET),
    fails=["looking_decides_nothing"],
)

quiet_is_silenced_by_a_look = edit(
    QUIET,
    """A forward under torch.no_grad(), between a forward and its backward, made that backward silent. Such a forward
    has no backward of its own: let only forwards with gradients enabled decide.""",
    (
        "        if torch.is_grad_enabled():\n            self.open = self.loud\n",
        "        self.open = self.loud and torch.is_grad_enabled()\n",
    ),
    breaks=tests_of(QUIET),
    fails=["looking_decides_nothing"],
)

quiet_without_finally = edit(
    QUIET,
    """After an exception inside no_sync() your wrapper stayed silent for ever. The code after the yield must run in
    any case: put it into a finally.""",
    (
        "        try:\n            yield\n        finally:\n            self.loud = before\n",
        "        yield\n        self.loud = before\n",
    ),
    breaks=tests_of(QUIET),
    fails=["no_sync_restores_what_was"],
)

quiet_always_ends_loud = edit(
    QUIET,
    """At its end your no_sync() switched synchronization on, even when it was nested in another no_sync(). Restore
    the value from before.""",
    ("        before, self.loud = self.loud, False\n", "        self.loud = False\n"),
    ("            self.loud = before\n", "            self.loud = True\n"),
    breaks=tests_of(QUIET),
    fails=["no_sync_restores_what_was"],
)

quiet_stays_silent = edit(
    QUIET,
    """After the first no_sync() your wrapper never sent anything again. Restore the value from before when no_sync()
    is left.""",
    ("            self.loud = before\n", "            pass\n"),
    breaks=tests_of(QUIET),
)

quiet_does_nothing = edit(
    QUIET,
    """Your no_sync() changes nothing: the hooks started all-reduces inside it. Inside no_sync() nothing is sent, and
    the gradients add up on each rank.""",
    ("        before, self.loud = self.loud, False\n", "        before = self.loud\n"),
    breaks=tests_of(QUIET),
)

quiet_silences_finish_only = edit(
    QUIET,
    """Inside no_sync() your hooks went on to mark gradients, so buckets started and the next backward met marks of
    this one. Override on_gradient: in a silent backward it does nothing.""",
    (
        "        if self.open:\n            super().on_gradient(param)\n",
        "        super().on_gradient(param)\n",
    ),
    breaks=tests_of(QUIET),
)

quiet_drops_silent_gradients = edit(
    QUIET,
    """You threw away the gradients of silent micro-batches. They stay in .grad, where the next ones are added to
    them.""",
    (
        "        if self.open:\n            super().on_gradient(param)\n",
        "        if self.open:\n            super().on_gradient(param)\n        else:\n            param.grad = None\n",
    ),
    breaks=tests_of(QUIET),
)

quiet_sends_when_it_is_left = edit(
    QUIET,
    """Your no_sync() averaged when it was left. That is one all-reduce for each silent micro-batch, which is what it
    should save: the next synchronized backward averages everything.""",
    (
        "            self.loud = before\n",
        "            self.loud = before\n            super().finish_gradient_sync()\n",
    ),
    breaks=tests_of(QUIET),
)

quiet_decides_in_backward = edit(
    QUIET,
    """You looked in backward whether no_sync() is open. The forward decides: what it has decided holds for its
    backward, also where no_sync() has been left in between.""",
    (
        "        if self.open:\n            super().on_gradient(param)",
        "        if self.loud:\n            self.open = True\n            super().on_gradient(param)",
    ),
    breaks=tests_of(QUIET),
)

quiet_decides_in_train_mode_only = edit(
    QUIET,
    """You let only forwards in train() mode decide. The mode says how dropout and BatchNorm compute; whether there
    will be a backward depends on whether gradients are enabled: torch.is_grad_enabled().""",
    ("if torch.is_grad_enabled():", "if torch.is_grad_enabled() and self.training:"),
    breaks=tests_of(QUIET),
)

quiet_swallows_exceptions = edit(
    QUIET,
    """Your no_sync() swallows an exception that is raised inside it, so that the caller goes on as if nothing had
    happened. Clean up in finally, and let the exception come out.""",
    ("        finally:\n", "        except Exception:\n            pass\n        finally:\n"),
    breaks=tests_of(QUIET),
    fails=["no_sync_restores_what_was"],
)

quiet_averages_the_last_one_only = edit(
    QUIET,
    """Your synchronized forward cleared the gradients, so that only the last micro-batch was averaged. Those of the
    silent ones belong to the batch: leave .grad alone.""",
    (
        "            self.open = self.loud\n",
        "            self.open = self.loud\n            if self.open:\n                self.module.zero_grad()\n",
    ),
    breaks=tests_of(QUIET),
)


# ---- 7 · CheckedDataParallel ----

ZEROS, NONE = "unused_gradients_count_as_zeros", "what_nobody_used_keeps_none"
NAMED, STOPS = "unused_parameters_are_named", "a_rank_that_skips_stops_the_step"
ASK = "            dist.all_reduce(has_grad, op=dist.ReduceOp.MAX)  # on every rank the last collective of the step\n"
FINISH = "        super().finish_gradient_sync()\n"

checked_asks_before_the_buckets = edit(
    CHECKED,
    """You sent the all-reduce about unused parameters before the remaining buckets. A rank where nothing is missing
    has started all its buckets during backward, so on it this call comes last, and on another rank first. Send it
    after the buckets, on every rank.""",
    (FINISH, "        if self.find_unused_parameters:\n" + ASK + FINISH),
    (
        "        if self.find_unused_parameters:\n" + ASK + "            for",
        "        if self.find_unused_parameters:\n            for",
    ),
    breaks=tests_of(CHECKED),
)

checked_asks_only_itself = edit(
    CHECKED,
    """You set every gradient back to None that was None on this rank. Other ranks used those parameters and keep a
    mean, so this rank skips an update that they make. Ask all ranks: only a gradient that is None everywhere stays
    None.""",
    (ASK, ""),
    breaks=tests_of(CHECKED),
)

checked_asks_for_each_parameter = edit(
    CHECKED,
    """You asked the ranks about each parameter with a message of its own. Each costs a start-up time; one call with a
    flag for each parameter tells the same.""",
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
    """Your finish_gradient_sync() returned at once on a rank where no gradient had arrived, while the other ranks
    wait for its zeros. This rank takes part in every step, whatever it used.""",
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
    """You set a gradient to None because its mean was zero. It may be zero although a rank had a gradient: ask who
    had one, not what the mean is.""",
    ("                if not anywhere:\n", "                if not anywhere or not p.grad.any():\n"),
    breaks=tests_of(CHECKED),
)

checked_counts_as_zeros_without_the_flag = edit(
    CHECKED,
    """Without the flag, you silently counted a parameter that got no gradient as zeros. That hides a mistake in the
    model: raise the RuntimeError that names it, and count zeros only with find_unused_parameters=True.""",
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
    fails=[NAMED, STOPS],
)

checked_names_all_parameters = edit(
    CHECKED,
    """Your error names every parameter, even those that got their gradients. Name only the missing ones; id(p) tells
    parameters apart.""",
    ("() if id(p) in unused", "()"),
    breaks=tests_of(CHECKED),
    fails=[NAMED, STOPS],
)

checked_names_the_first_only = edit(
    CHECKED,
    """Your error names one unused parameter and keeps quiet about the others. Name all of them, or the user mends one
    at a time.""",
    ('names = ", ".join(name for', "names = next(name for"),
    breaks=tests_of(CHECKED),
    fails=[NAMED, STOPS],
)

checked_takes_a_missing_grad_for_an_unused_parameter = edit(
    CHECKED,
    """You took the parameters whose .grad is None for the unused ones. A gradient left from before is not a gradient
    of this step: ask the reducer which parameters have not been marked.""",
    ("self.reducer.missing()}", "self.module.parameters() if p.grad is None}"),
    breaks=tests_of(CHECKED),
    fails=[NAMED],
)

checked_raises_after_sending_the_rest = edit(
    CHECKED,
    """You started the remaining buckets before you raised the error. If only one rank skips a parameter, the others
    then get means with its zeros and go on while it stops: check what is missing before you start anything more.""",
    (
        "        if unused and not self.find_unused_parameters:\n",
        "        if unused and not self.find_unused_parameters:\n            super().finish_gradient_sync()\n",
    ),
    breaks=tests_of(CHECKED),
    fails=[STOPS],
)

checked_names_them_as_the_wrapper_does = edit(
    CHECKED,
    """You took the names from self.named_parameters(), where each begins with "module.". The statement asks for the
    names that the module itself gives.""",
    ("in self.module.named_parameters() if", "in self.named_parameters() if"),
    breaks=tests_of(CHECKED),
    fails=[NAMED, STOPS],
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
