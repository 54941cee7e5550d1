"""Wrong answers to lesson 09, exercise 6."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

PREFETCH = "09-ex6-prefetch"
NUMBERS, PEAK = "prefetching_changes_no_number", "one_more_unit_is_whole"

FORWARD = "        self.gather()\n        if self.after:\n            self.after.start()\n"
COMPUTED = "        return super().forward(*inputs)\n"
BACKWARD = "        if self.whole and self.before:\n            self.before.start()\n"
FREE = "        if self.started:\n            self.started[1].wait()\n        self.whole = self.started = None\n"
WHOLE = "            self.whole, self.started = [full[: self.numels[0]], full[:0]], None\n"

old_numbers_are_used = edit(
    PREFETCH,
    """If a unit was started but never asked for, it still refers to the vector of its all-gather after it is freed. The
    next step would compute with that vector, whose numbers are those from before the optimizer's step. Wait for the
    all-gather that is under way, and forget its vector.""",
    (FREE, "        super().free()\n"),
    breaks=tests_of(PREFETCH),
    fails=[NUMBERS, PEAK],
)

forgotten_without_a_wait = edit(
    PREFETCH,
    """You forgot an all-gather that was still under way. A collective that is started must be waited for, even where
    its numbers are not needed: until then, the memory that it writes to must not be reused.""",
    (FREE, "        self.whole = self.started = None\n"),
    breaks=tests_of(PREFETCH),
    fails=[NUMBERS],
)

the_last_gathered_vector_is_kept = edit(
    PREFETCH,
    """After its all-gather your unit still refers to the gathered vector, so free() frees nothing and all units are
    whole at the end of the forward. Forget what was started, too.""",
    (WHOLE, "            self.kept = full\n" + WHOLE),
    breaks=tests_of(PREFETCH),
    fails=[PEAK],
)

a_whole_unit_is_started = edit(
    PREFETCH,
    """Your start() sends although the unit is whole, so nobody asks for the vector that it fills. Return at once if the
    unit is whole or its all-gather is under way.""",
    ("        if self.whole is None and self.started is None:\n", "        if self.started is None:\n"),
    ("        self.start()\n        if self.started:\n", "        if self.whole is None:\n            self.start()\n"),
    breaks=tests_of(PREFETCH),
    fails=[NUMBERS],
)

the_start_waits = edit(
    PREFETCH,
    """Your start() waits for its all-gather, so every unit is gathered earlier, but nothing is computed meanwhile. Call
    the collective with async_op=True, keep the Work, and wait in gather().""",
    (
        "            self.started = full, dist.all_gather_single(full, self.shard.detach(), async_op=True)\n",
        "            self.started = full, dist.all_gather_single(full, self.shard.detach(), async_op=True)\n"
        "            self.started[1].wait()\n",
    ),
    breaks=tests_of(PREFETCH),
)

started_after_the_forward = edit(
    PREFETCH,
    """You started the next unit after this one had computed, so its all-gather runs while nothing computes. Start it
    before super().forward.""",
    (
        FORWARD + COMPUTED,
        "        output = super().forward(*inputs)\n        if self.after:\n            self.after.start()\n"
        "        return output\n",
    ),
    breaks=tests_of(PREFETCH),
)

the_backward_waits = edit(
    PREFETCH,
    """In the backward, the all-gather of the unit before was not under way while this one computed. Start it as soon as
    this unit is asked for its weights.""",
    (BACKWARD, ""),
    breaks=tests_of(PREFETCH),
)

the_backward_goes_forward = edit(
    PREFETCH,
    """In the backward you started the unit after this one, whose backward is over. The units come in the opposite order
    there: start the one before.""",
    (BACKWARD, BACKWARD.replace("self.before", "self.after")),
    breaks=tests_of(PREFETCH),
)

two_units_ahead = edit(
    PREFETCH,
    """You started two units ahead, so three are whole or under way at once. One is enough while another computes: start
    only the next one.""",
    (FORWARD, FORWARD + "            if self.after.after:\n                self.after.after.start()\n"),
    breaks=tests_of(PREFETCH),
)

all_units_are_started_at_once = edit(
    PREFETCH,
    """You started units that do not compute next, so too many are whole or under way at once. Start only the neighbor
    that computes next: in the forward the one after, in the backward the one before.""",
    (
        FORWARD,
        "        self.gather()\n        unit = self.after\n        while unit:\n            unit.start()\n"
        "            unit = unit.after\n",
    ),
    breaks=tests_of(PREFETCH),
)

every_start_sends = edit(
    PREFETCH,
    """Your start() sends again even if the all-gather is already under way. In the backward each saved weight starts
    the neighbor, so a unit of two layers starts it twice: return at once if it was started already.""",
    ("        if self.whole is None and self.started is None:\n", "        if self.whole is None:\n"),
    breaks=tests_of(PREFETCH),
)

started_before_its_own = edit(
    PREFETCH,
    """In the backward you started the neighbor before this unit's own all-gather, which is needed now and has to wait
    for the other. Gather this unit first, then start its neighbor.""",
    (
        "        tensor = super().unpack(kept)\n" + BACKWARD + "        return tensor\n",
        "        if self.before:\n            self.before.start()\n        return super().unpack(kept)\n",
    ),
    breaks=tests_of(PREFETCH),
)

the_neighbor_is_started_first = edit(
    PREFETCH,
    """In the forward you started the neighbor before this unit's own all-gather, which is needed now and has to wait
    for the other. Gather this unit first, then start its neighbor.""",
    (FORWARD, "        if self.after:\n            self.after.start()\n        self.gather()\n"),
    breaks=tests_of(PREFETCH),
)

padding_is_kept = edit(
    PREFETCH,
    """Your whole vector still has the padding at its end, which the parameters' shapes do not cover. Take the first
    numels[0] numbers.""",
    ("full[: self.numels[0]]", "full"),
    breaks=tests_of(PREFETCH),
)

nothing_is_ahead_without_gradients = edit(
    PREFETCH,
    """Without gradients, as in an evaluation, you gather nothing ahead, so every unit waits for its own all-gather.
    Start the next unit in every forward, whether or not a backward follows.""",
    (FORWARD, FORWARD.replace("if self.after:", "if self.after and torch.is_grad_enabled():")),
    breaks=tests_of(PREFETCH),
)
