"""Wrong answers to lesson 05, exercise 6."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

QUIET = "05-ex6-no-sync"


# ---- 6 · QuietDataParallel ----


quiet_finishes_whatever_the_last_forward_was = edit(
    QUIET,
    """Your finish_gradient_sync() averaged after a silent backward. Whether the call is inside no_sync() does not
    matter: remember what the last forward was, and do nothing after a silent one.""",
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
    micro-batch, including silent ones: then it should do nothing.""",
    (
        "        if self.open:\n            super().finish_gradient_sync()\n",
        "        if not self.open:\n"
        '            raise RuntimeError("there is nothing to finish")\n'
        "        if self.open:\n"
        "            super().finish_gradient_sync()\n",
    ),
    breaks=tests_of(QUIET),
    fails=["finishing_twice_sends_nothing", "looking_decides_nothing", "no_sync_restores_what_was"],
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
    """Inside no_sync() your hooks still marked gradients, so buckets started, and the next backward met the marks of
    the silent one. Override on_gradient: in a silent backward it does nothing.""",
    (
        "        if self.open:\n            super().on_gradient(param)\n",
        "        super().on_gradient(param)\n",
    ),
    breaks=tests_of(QUIET),
)

quiet_drops_silent_gradients = edit(
    QUIET,
    """You threw away the gradients of silent micro-batches. They should stay in .grad, where the next gradients are
    added to them.""",
    (
        "        if self.open:\n            super().on_gradient(param)\n",
        "        if self.open:\n            super().on_gradient(param)\n        else:\n            param.grad = None\n",
    ),
    breaks=tests_of(QUIET),
)

quiet_sends_when_it_is_left = edit(
    QUIET,
    """Your wrapper averaged when no_sync() was left. This makes one all-reduce for each silent micro-batch, which is
    what no_sync() should save: the next synchronized backward averages everything.""",
    (
        "            self.loud = before\n",
        "            self.loud = before\n            super().finish_gradient_sync()\n",
    ),
    breaks=tests_of(QUIET),
)

quiet_decides_in_backward = edit(
    QUIET,
    """You checked in backward whether no_sync() was active. The forward decides: its decision holds for its backward,
    even if no_sync() has been left in between.""",
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
    """Your synchronized forward cleared the gradients, so only the last micro-batch was averaged. The gradients of the
    silent micro-batches belong to the batch: leave .grad alone.""",
    (
        "            self.open = self.loud\n",
        "            self.open = self.loud\n            if self.open:\n                self.module.zero_grad()\n",
    ),
    breaks=tests_of(QUIET),
)

quiet_finishes_always = edit(
    QUIET,
    """Your finish_gradient_sync() averaged after a silent backward. After a silent backward it should do nothing,
    inside no_sync() and outside.""",
    (
        "        if self.open:\n            super().finish_gradient_sync()\n            self.open = False\n",
        "        super().finish_gradient_sync()\n        self.open = False\n",
    ),
    breaks=tests_of(QUIET),
    fails=["finishing_twice_sends_nothing", "looking_decides_nothing", "no_sync_restores_what_was"],
)

quiet_starts_with_something_to_finish = edit(
    QUIET,
    """Your wrapper assumed before any forward that there is something to finish. Only after a forward with gradients
    enabled is there something to finish.""",
    ("self.loud, self.open = True, False", "self.loud, self.open = True, True"),
    breaks=tests_of(QUIET),
    fails=["looking_decides_nothing"],
)

quiet_switches_back_and_forth = edit(
    QUIET,
    """Entering no_sync() switched your flag to its opposite, so a no_sync() inside another one was synchronized. Set
    the flag, and restore what it was.""",
    ("        before, self.loud = self.loud, False\n", "        self.loud = not self.loud\n"),
    ("            self.loud = before\n", "            self.loud = not self.loud\n"),
    breaks=tests_of(QUIET),
    fails=["no_sync_restores_what_was"],
)

quiet_keeps_its_flag_in_the_class = edit(
    QUIET,
    """You keep the flag in the class, so no_sync() of one wrapper silences all others. Keep it in self.""",
    ("self.loud, self.open = True, False", "QuietDataParallel.loud, self.open = True, False"),
    ("        before, self.loud = self.loud, False\n", "        before, QuietDataParallel.loud = self.loud, False\n"),
    ("            self.loud = before\n", "            QuietDataParallel.loud = before\n"),
    breaks=tests_of(QUIET),
    fails=["no_sync_restores_what_was"],
)

quiet_restores_after_some_exceptions = edit(
    QUIET,
    """You restored the flag only after an Exception. A KeyboardInterrupt, raised when somebody stops the cell, is not
    an Exception. Code in finally runs in any case.""",
    (
        "        finally:\n            self.loud = before\n",
        "        except Exception:\n            self.loud = before\n            raise\n        self.loud = before\n",
    ),
    breaks=tests_of(QUIET),
    fails=["no_sync_restores_what_was"],
)

quiet_asks_the_output = edit(
    QUIET,
    """You checked whether the output requires a gradient. A module may return a tuple or a dict, which has no
    requires_grad: ask torch.is_grad_enabled().""",
    (
        "        if torch.is_grad_enabled():\n"
        "            self.open = self.loud\n"
        "        return super().forward(*args, **kwargs)\n",
        "        out = super().forward(*args, **kwargs)\n"
        "        if out.requires_grad:\n"
        "            self.open = self.loud\n"
        "        return out\n",
    ),
    breaks=tests_of(QUIET),
)
