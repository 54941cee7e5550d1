"""Wrong answers to lesson 16, exercise 7."""

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

LOADER = "16-ex7-loader"
LAST, STATE = ["the_last_batch_is_what_is_left"], ["states_are_small_and_alike"]
END = "        end = min(start + self.batch, self.samples)\n"
OVER = "        if end == self.samples:\n"
SHARE = "        return whole[start:end][self.rank :: self.world_size]\n"
BEGIN = '{"epoch": 0, "position": 0, "seed": seed} if state is None else dict(state)'
NEW = '{"epoch": 0, "position": 0, "seed": seed} if state is None else '


# ---- the batches ----

a_rank_counts_its_own_samples = edit(
    LOADER,
    """Your state says how many samples this rank has read. With a different number of ranks, that count means a
    different position: count what all ranks together have been dealt.""",
    (
        "        return dict(self.place)\n",
        '        own = self.place["position"] // self.world_size\n        return {**self.place, "position": own}\n',
    ),
    (
        BEGIN,
        NEW + '{**state, "position": state["position"] * world_size}',
    ),
    breaks=tests_of(LOADER),
)

each_rank_has_samples_of_its_own = edit(
    LOADER,
    """You gave each rank its part of the epoch first, and cut that into batches. With a different number of ranks the
    parts differ, so some samples are lost and others come twice: cut the global batches first.""",
    (
        SHARE,
        "        count = -(-self.batch // self.world_size)\n"
        "        number = start // self.batch\n"
        "        return whole[self.rank :: self.world_size][number * count : (number + 1) * count]\n",
    ),
    breaks=tests_of(LOADER),
)

the_shares_are_neighbours = edit(
    LOADER,
    """You gave each rank consecutive samples of the batch. Deal them in turn: rank r gets those at positions r, r + N,
    r + 2N, ….""",
    (
        SHARE,
        "        size = -(-(end - start) // self.world_size)\n"
        "        return whole[start:end][self.rank * size : (self.rank + 1) * size]\n",
    ),
    breaks=tests_of(LOADER),
)

every_epoch_is_shuffled_alike = edit(
    LOADER,
    """Your epochs all have the same order. Give `order` the epoch.""",
    (', self.place["epoch"])', ", 0)"),
    breaks=tests_of(LOADER),
)

the_epoch_begins_again = edit(
    LOADER,
    """A loader that went on in the middle of an epoch began that epoch again, so its first samples come twice. The
    position belongs to the state, next to the epoch.""",
    (BEGIN, '{"epoch": 0, "position": 0, "seed": seed} if state is None else {**state, "position": 0}'),
    breaks=tests_of(LOADER),
)

the_epoch_is_forgotten = edit(
    LOADER,
    """A loader that went on after the first epoch dealt that epoch's order once more. The epoch belongs to the state,
    next to the position.""",
    (BEGIN, '{"epoch": 0, "position": 0, "seed": seed} if state is None else {**state, "epoch": 0}'),
    breaks=tests_of(LOADER),
)

the_seed_is_the_new_one = edit(
    LOADER,
    """A loader that went on took the seed of its call, not that of the state, so the rest of the epoch has another
    order: some samples are lost, and others come twice.""",
    (BEGIN, '{"epoch": 0, "position": 0, "seed": seed} if state is None else {**state, "seed": seed}'),
    breaks=tests_of(LOADER),
)

an_empty_batch_between_epochs = edit(
    LOADER,
    """Between two epochs you dealt a batch without a single sample. The next epoch follows at once.""",
    (OVER, "        if start == end:\n"),
    breaks=tests_of(LOADER),
)

a_new_epoch_at_every_resume = edit(
    LOADER,
    """A loader that went on began the next epoch. The rest of the epoch before is never seen.""",
    (
        BEGIN,
        NEW + '{**state, "epoch": state["epoch"] + 1, "position": 0}',
    ),
    breaks=tests_of(LOADER),
)


# ---- the last batch ----

the_rest_is_dropped = edit(
    LOADER,
    """You left out the last batch of an epoch when it was not full. Its samples are then never seen in this epoch.""",
    (OVER, "        if end + self.batch > self.samples:\n"),
    breaks=tests_of(LOADER),
    fails=LAST,
)

the_rest_is_filled_up = edit(
    LOADER,
    """You filled the last batch up with samples from the beginning of the order. They come twice in this epoch.""",
    (
        SHARE,
        "        filled = (whole[start:end] + whole * self.batch)[: self.batch]\n"
        "        return filled[self.rank :: self.world_size]\n",
    ),
    breaks=tests_of(LOADER),
    fails=LAST,
)

the_rest_is_cut_to_equal_shares = edit(
    LOADER,
    """You left samples out of the last batch, so that all ranks get equally many. A rank may get one sample more than
    another, or none.""",
    (
        SHARE,
        "        left = end - start\n"
        "        if left < self.batch:\n"
        "            end -= left % self.world_size\n" + SHARE,
    ),
    breaks=tests_of(LOADER),
    fails=LAST,
)


# ---- the state ----

the_state_goes_on_changing = edit(
    LOADER,
    """Your state is the loader's own dict. It changes with the next step, and a save in the background writes the
    wrong place: return a copy.""",
    ("        return dict(self.place)\n", "        return self.place\n"),
    breaks=tests_of(LOADER),
    fails=STATE,
)

the_state_is_one_dict = edit(
    LOADER,
    """Each call of your state fills the same dict anew. The state of an earlier call, which a save in the background
    may still be writing, changes with it: make a new dict in each call.""",
    (
        "        return dict(self.place)\n",
        '        self.given = getattr(self, "given", {})\n'
        "        self.given.update(self.place)\n        return self.given\n",
    ),
    breaks=tests_of(LOADER),
    fails=STATE,
)

the_state_names_the_rank = edit(
    LOADER,
    """Your state holds this rank's own number, so it differs from rank to rank. A checkpoint keeps plain values once,
    for all ranks.""",
    ("        return dict(self.place)\n", '        return {**self.place, "rank": self.rank}\n'),
    breaks=tests_of(LOADER),
    fails=STATE,
)

the_state_holds_the_order = edit(
    LOADER,
    """Your state holds the samples themselves. For a data set of billions it would be larger than the model: the seed
    and the epoch are enough to compute the order again.""",
    (
        "        return dict(self.place)\n",
        '        whole = order(self.samples, self.place["seed"], self.place["epoch"])\n'
        '        return {**self.place, "order": whole}\n',
    ),
    breaks=tests_of(LOADER),
    fails=STATE,
)
