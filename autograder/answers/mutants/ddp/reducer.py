"""Wrong answers to lesson 05, exercise 4."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

REDUCER, DDP = "05-ex4-reducer", "05-ex5-ddp"
QUIET, CHECKED = "05-ex6-no-sync", "05-ex7-unused"
WRAPPERS = (DDP, QUIET, CHECKED)


# ---- 4 · Reducer ----


reducer_starts_one_bucket_a_mark = edit(
    REDUCER,
    """When a mark completed a bucket that later buckets were waiting for, you started only that bucket. The complete
    buckets after it then wait for another mark, which may not come before finish(). Go on as long as the next bucket in
    line is complete: while, not if.""",
    ("while len(self._started) < len(self.buckets) and", "if len(self._started) < len(self.buckets) and"),
    breaks=tests_of(REDUCER),
)


@mutant(REDUCER, breaks=tests_of(REDUCER, DDP, CHECKED))
def reducer_starts_in_order_of_completion():
    """You started each bucket when it was complete, without looking at the buckets before it. Another rank may complete
    its buckets in another order, and the ranks then add up different buckets. Bucket k waits until buckets 0 to k − 1
    have started."""

    class Reducer:
        def __init__(self, buckets: list[list[nn.Parameter]]):
            self.buckets = buckets
            self._bucket_of = {id(p): number for number, bucket in enumerate(buckets) for p in bucket}
            self._begin_step()

        def _begin_step(self):
            self._marked = set()
            self._to_come = [len(bucket) for bucket in self.buckets]
            self._started = {}

        def mark_ready(self, param: nn.Parameter) -> None:
            if id(param) in self._marked:
                raise RuntimeError("a second gradient in one step: call finish_gradient_sync() after each backward")
            self._marked.add(id(param))
            number = self._bucket_of[id(param)]
            self._to_come[number] -= 1
            if self._to_come[number] == 0:
                self._started[number] = start_bucket(self.buckets[number])

        def missing(self) -> list[nn.Parameter]:
            return [p for bucket in self.buckets for p in bucket if id(p) not in self._marked]

        def finish(self) -> None:
            for number, bucket in enumerate(self.buckets):
                if number not in self._started:
                    self._started[number] = start_bucket(bucket)
            for number, bucket in enumerate(self.buckets):
                finish_bucket(bucket, *self._started[number])
            self._begin_step()


reducer_counts_marks_only = edit(
    REDUCER,
    """You counted the marks of each bucket and did not notice that one parameter was marked twice. The bucket then
    starts before its last gradient is there. Remember which parameters were marked, and refuse a second mark.""",
    (
        "        if id(param) in self._marked:\n"
        '            raise RuntimeError("a second gradient in one step: call finish_gradient_sync() after '
        'each backward")\n',
        "",
    ),
    breaks=tests_of(REDUCER),
    fails=["the_reducer_refuses_a_second_mark"],
)

reducer_ignores_a_second_mark = edit(
    REDUCER,
    """You silently dropped a second mark of the same parameter. A second mark means that backward has run twice, and
    that the bucket on its way holds only the first gradient; the second one would never be averaged. Raise the
    RuntimeError.""",
    ('raise RuntimeError("a second gradient in one step: call finish_gradient_sync() after each backward")', "return"),
    breaks=tests_of(REDUCER),
    fails=["the_reducer_refuses_a_second_mark"],
)

reducer_never_begins_a_new_step = edit(
    REDUCER,
    """After finish() your reducer still remembers the marks of the step before, and takes the next step's first
    gradient for a second one. Forget marks, counts and handles at the end of finish().""",
    (
        "            finish_bucket(bucket, flat, work)\n        self._begin_step()\n",
        "            finish_bucket(bucket, flat, work)\n",
    ),
    breaks=tests_of(REDUCER, *WRAPPERS),
)

reducer_waits_in_mark_ready = edit(
    REDUCER,
    """You finished each bucket in mark_ready as soon as it was started. Backward then stands still until the bucket
    has arrived, and nothing overlaps. Keep what start_bucket returns, and wait in finish().""",
    (
        "        self._started.append(start_bucket(self.buckets[len(self._started)]))\n",
        "        bucket = self.buckets[len(self._started)]\n"
        "        finish_bucket(bucket, *start_bucket(bucket))\n"
        "        self._started.append(None)\n",
    ),
    (
        "        for bucket, (flat, work) in zip(self.buckets, self._started):\n"
        "            finish_bucket(bucket, flat, work)\n",
        "",
    ),
    breaks=tests_of(REDUCER, DDP),
)

reducer_starts_everything_in_finish = edit(
    REDUCER,
    """All your all-reduces start in finish(), when backward has ended. Start a bucket in mark_ready, as soon as it is
    complete and its turn has come.""",
    (
        "        while len(self._started) < len(self.buckets) and self._to_come[len(self._started)] == 0:\n"
        "            self._start_next()\n",
        "",
    ),
    breaks=tests_of(REDUCER, DDP),
)

reducer_leaves_incomplete_buckets = edit(
    REDUCER,
    """Your finish() waits only for the buckets that had been started. A bucket with a missing gradient, and all
    buckets after it, were never averaged: start the rest in finish(), in their order.""",
    ("        while len(self._started) < len(self.buckets):\n            self._start_next()\n", ""),
    breaks=tests_of(REDUCER, DDP, CHECKED),
)

reducer_starts_the_rest_before_looking_in_order = edit(
    REDUCER,
    """Your finish() starts the complete buckets first and the others after them. A rank where nothing is missing starts
    its buckets in the order of their numbers, so the two ranks add up different buckets. Keep one order, whatever is
    missing.""",
    (
        "        while len(self._started) < len(self.buckets):\n"
        "            self._start_next()\n"
        "        for bucket, (flat, work) in zip(self.buckets, self._started):\n"
        "            finish_bucket(bucket, flat, work)\n",
        "        rest = range(len(self._started), len(self.buckets))\n"
        "        handles = dict(enumerate(self._started))\n"
        "        for number in sorted(rest, key=lambda number: self._to_come[number]):\n"
        "            handles[number] = start_bucket(self.buckets[number])\n"
        "        for number, bucket in enumerate(self.buckets):\n"
        "            finish_bucket(bucket, *handles[number])\n",
    ),
    breaks=tests_of(REDUCER, DDP, CHECKED),
)

reducer_misses_whole_buckets = edit(
    REDUCER,
    """Your missing() returns every parameter of the buckets that have not started. Some of these parameters have their
    gradients, and only their buckets wait: return the parameters that were not marked.""",
    ("self.buckets for p in bucket if id(p) not in self._marked", "self.buckets[len(self._started) :] for p in bucket"),
    breaks=tests_of(REDUCER, CHECKED),
    fails=["the_reducer_knows_what_is_missing"],
)

reducer_finishes_one_bucket_after_the_other = edit(
    REDUCER,
    """Your finish() started a bucket, waited for it, and only then started the next one, so the network is idle while
    you copy. First start everything that has not been started, then wait.""",
    (
        "        while len(self._started) < len(self.buckets):\n            self._start_next()\n"
        "        for bucket, (flat, work) in zip(self.buckets, self._started):\n"
        "            finish_bucket(bucket, flat, work)\n",
        "        for number, bucket in enumerate(self.buckets):\n"
        "            if number == len(self._started):\n"
        "                self._start_next()\n"
        "            finish_bucket(bucket, *self._started[number])\n",
    ),
    breaks=tests_of(REDUCER),
)

reducer_waits_for_one_trigger = edit(
    REDUCER,
    """You started a bucket when its last-listed parameter was marked. Gradients need not arrive in the order of the
    bucket: count the gradients that are still to come.""",
    (
        "self._to_come[len(self._started)] == 0:",
        "id(self.buckets[len(self._started)][-1]) in self._marked:",
    ),
    breaks=tests_of(REDUCER, DDP),
)

reducer_crashes_on_an_incomplete_bucket = edit(
    REDUCER,
    """Your finish() assumed that every bucket had been started, and failed where one had not. First start the remaining
    buckets, in their order.""",
    (
        "        while len(self._started) < len(self.buckets):\n            self._start_next()\n        for bucket",
        "        for bucket",
    ),
    ("zip(self.buckets, self._started)", "zip(self.buckets, self._started, strict=True)"),
    breaks=tests_of(REDUCER, DDP, CHECKED),
)

reducer_refuses_only_after_the_start = edit(
    REDUCER,
    """You noticed a second mark only when the parameter's bucket was complete. Before that, the second mark counts as
    another parameter's gradient, and the bucket starts too early.""",
    (
        "        if id(param) in self._marked:\n",
        "        if id(param) in self._marked and self._to_come[self._bucket_of[id(param)]] == 0:\n",
    ),
    breaks=tests_of(REDUCER),
    fails=["the_reducer_refuses_a_second_mark"],
)

reducer_is_missing_what_has_arrived = edit(
    REDUCER,
    """Your missing() returns the parameters that were marked. Return the others.""",
    ("if id(p) not in self._marked]", "if id(p) in self._marked]"),
    breaks=tests_of(REDUCER, CHECKED),
    fails=["the_reducer_knows_what_is_missing"],
)

reducer_is_missing_what_has_no_grad = edit(
    REDUCER,
    """Your missing() returns the parameters whose .grad is None. A gradient may be left over from before this step:
    return the parameters that have not been marked.""",
    ("if id(p) not in self._marked]", "if p.grad is None]"),
    breaks=tests_of(REDUCER, CHECKED),
    fails=["the_reducer_knows_what_is_missing"],
)

reducer_refuses_without_a_name = edit(
    REDUCER,
    """Your error for a second mark does not say what to do. Put the name of the forgotten function into the error:
    finish_gradient_sync.""",
    ("a second gradient in one step: call finish_gradient_sync() after each backward", "a second gradient in one step"),
    breaks=tests_of(REDUCER),
    fails=["the_reducer_refuses_a_second_mark"],
)

reducer_is_missing_a_set = edit(
    REDUCER,
    """Your missing() returns a set, a generator or the like. The statement asks for a list.""",
    ("return [p for bucket in self.buckets for p in bucket if id(p) not in self._marked]",
     "return {p for bucket in self.buckets for p in bucket if id(p) not in self._marked}"),
    breaks=tests_of(REDUCER),
    fails=["the_reducer_knows_what_is_missing"],
)  # fmt: skip

reducer_keeps_its_state_in_the_class = edit(
    REDUCER,
    """You keep marks, counts or handles in the class, where all reducers share them. A program may wrap two models:
    keep them in self.""",
    ("        self._marked = set()\n", "        Reducer._marked = set()\n"),
    ("        self._to_come = [", "        Reducer._to_come = ["),
    ("        self._started = []", "        Reducer._started = []"),
    breaks=tests_of(REDUCER),
)

reducer_begins_a_step_with_its_first_mark = edit(
    REDUCER,
    """Your next step begins only with its first mark. On a rank that marks nothing, finish() then still belongs to the
    previous step. Begin the next step at the end of finish().""",
    ("        self._marked = set()\n", "        self._marked, self._over = set(), False\n"),
    (
        "        if id(param) in self._marked:\n",
        "        if self._over:\n            self._begin_step()\n        if id(param) in self._marked:\n",
    ),
    (
        "            finish_bucket(bucket, flat, work)\n        self._begin_step()\n",
        "            finish_bucket(bucket, flat, work)\n        self._over = True\n",
    ),
    breaks=tests_of(REDUCER, CHECKED),
)

reducer_finishes_nothing_without_a_mark = edit(
    REDUCER,
    """Your finish() returned at once where nothing had been marked. The other ranks wait for this rank's buckets: start
    all of them, with the gradients as they are.""",
    (
        "        while len(self._started) < len(self.buckets):\n            self._start_next()\n        for",
        "        if not self._marked:\n"
        "            return\n"
        "        while len(self._started) < len(self.buckets):\n            self._start_next()\n        for",
    ),
    breaks=tests_of(REDUCER, CHECKED),
)
