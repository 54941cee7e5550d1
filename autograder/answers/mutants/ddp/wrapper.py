"""Wrong answers to lesson 05, exercises 4 and 5."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

AVERAGE = "05-ex3-start-finish"
REDUCER, DDP = "05-ex4-reducer", "05-ex5-ddp"


# ---- 4 · Reducer ----


reducer_starts_one_bucket_a_mark = edit(
    REDUCER,
    """When a mark completed the bucket for which others had been waiting, you started only that one. The complete
    buckets after it then wait for another mark, which may not come before finish(). Go on as long as the next bucket in
    line is complete: while, not if.""",
    ("while len(self._started) < len(self.buckets) and", "if len(self._started) < len(self.buckets) and"),
    breaks=tests_of(REDUCER),
)


@mutant(REDUCER, breaks=tests_of(REDUCER, DDP))
def reducer_starts_in_order_of_completion():
    """You started a bucket when it was complete, without looking at the buckets before it. Another rank may complete
    them in another order, and the ranks then add up different buckets. Bucket k waits until buckets 0 to k − 1 have
    started."""

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
    breaks=tests_of(REDUCER, DDP),
)

reducer_ignores_a_second_mark = edit(
    REDUCER,
    """You silently dropped a second mark of the same parameter. It means that backward has run twice and that the
    bucket on its way holds only the first gradient; the second would never be averaged. Raise the RuntimeError.""",
    ('raise RuntimeError("a second gradient in one step: call finish_gradient_sync() after each backward")', "return"),
    breaks=tests_of(REDUCER, DDP),
)

reducer_never_begins_a_new_step = edit(
    REDUCER,
    """After finish() your reducer still remembers the marks of the step before, and takes the next step's first
    gradient for a second one. Forget marks, counts and handles at the end of finish().""",
    (
        "            finish_bucket(bucket, flat, work)\n        self._begin_step()\n",
        "            finish_bucket(bucket, flat, work)\n",
    ),
    breaks=tests_of(REDUCER, DDP),
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
    """Your finish() waits only for the buckets that had been started. A bucket with a missing gradient, and all buckets
    after it, were never averaged: start the rest in finish(), in their order.""",
    ("        while len(self._started) < len(self.buckets):\n            self._start_next()\n", ""),
    breaks=tests_of(REDUCER, DDP),
)

reducer_starts_the_rest_before_looking_in_order = edit(
    REDUCER,
    """Your finish() starts the complete buckets first and the others after them. A rank where nothing is missing starts
    them in the order of their numbers, so the two ranks add up different buckets. Keep one order, whatever is
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
    breaks=tests_of(REDUCER, DDP),
)

reducer_misses_whole_buckets = edit(
    REDUCER,
    """Your missing() returns every parameter of the buckets that have not started. Some of these have their gradients
    and only wait for others: return those that were not marked.""",
    ("self.buckets for p in bucket if id(p) not in self._marked", "self.buckets[len(self._started) :] for p in bucket"),
    breaks=tests_of(REDUCER, DDP),
)


# ---- 5 · DistributedDataParallel ----


ddp_asks_who_used_what_before_the_buckets = edit(
    DDP,
    """You sent the all-reduce about unused parameters before the remaining buckets. A rank where nothing is missing has
    started all its buckets during backward, so on it this call comes last, and on another rank first. Send it after the
    reducer's finish(), on every rank.""",
    (
        "        has_grad = torch.tensor([p.grad is not None for p in self._params], dtype=torch.uint8)\n",
        "        has_grad = torch.tensor([p.grad is not None for p in self._params], dtype=torch.uint8)\n"
        "        if self.find_unused_parameters:\n"
        "            dist.all_reduce(has_grad, op=dist.ReduceOp.MAX)\n",
    ),
    (
        "            dist.all_reduce(has_grad, op=dist.ReduceOp.MAX)  # on every rank the last collective "
        "of the step\n",
        "",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_counts_unused_parameters_as_zeros"],
)

ddp_asks_only_itself_who_used_what = edit(
    DDP,
    """You set every gradient back to None that was None on this rank. Other ranks used those parameters and keep a
    mean, so this rank skips an update that they make. Ask all ranks: only a gradient that is None everywhere stays
    None.""",
    (
        "            dist.all_reduce(has_grad, op=dist.ReduceOp.MAX)  # on every rank the last collective "
        "of the step\n",
        "",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_counts_unused_parameters_as_zeros"],
)

ddp_gives_zeros_to_what_nobody_used = edit(
    DDP,
    """You gave a gradient of zeros to a parameter that no rank used. An optimizer with momentum or weight decay moves a
    parameter whose gradient is zero, but leaves it alone if the gradient is None. Set it back to None.""",
    ("        has_grad = torch.tensor([p.grad is not None for p in self._params], dtype=torch.uint8)\n", ""),
    (
        "        if self.find_unused_parameters:\n"
        "            dist.all_reduce(has_grad, op=dist.ReduceOp.MAX)  # on every rank the last collective "
        "of the step\n"
        "            for p, anywhere in zip(self._params, has_grad.tolist()):\n"
        "                if not anywhere:\n"
        "                    p.grad = None\n",
        "",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_counts_unused_parameters_as_zeros"],
)

ddp_drops_what_unused_parameters_had = edit(
    DDP,
    """You counted an unused parameter as zeros even though its .grad held something. The last micro-batch may not have
    used it, but earlier ones inside no_sync() may have: an unused parameter brings the .grad that it has.""",
    (
        "self._reducer.finish()",
        "for p in self._reducer.missing():\n            p.grad = None\n        self._reducer.finish()",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_counts_unused_parameters_as_zeros"],
)

ddp_skips_a_rank_without_gradients = edit(
    DDP,
    """Your finish_gradient_sync() returned at once on a rank where no gradient had arrived, while the other ranks wait
    for its zeros. Decide by whether a forward outside no_sync() has begun a step, not by whether gradients came.""",
    (
        "if not self._open:",
        "if not self._open or (self.find_unused_parameters and len(self._reducer.missing()) == len(self._params)):",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_counts_unused_parameters_as_zeros"],
)

ddp_syncs_in_finish_whatever_no_sync_said = edit(
    DDP,
    """Your finish_gradient_sync() averaged even after a silent backward. It does not matter whether it is called inside
    no_sync(): remember what the last forward was, and do nothing after a silent one.""",
    (
        "            self._open = self._sync\n",
        "            self._open = self._sync\n            self._silent = not self._sync\n",
    ),
    ("        if not self._open:\n", "        if not self._sync:\n"),
    breaks=tests_of(DDP),
    fails=["ddp_syncs_once_for_many_micro_batches"],
)

ddp_lets_no_grad_forwards_decide = edit(
    DDP,
    """A forward under torch.no_grad(), between a forward and its backward, changed what that backward does. Such a
    forward has no backward of its own: let only forwards with gradients enabled decide.""",
    (
        "        if torch.is_grad_enabled():\n            self._open = self._sync\n",
        "        self._open = self._sync and torch.is_grad_enabled()\n",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_syncs_once_for_many_micro_batches"],
)

ddp_no_sync_without_finally = edit(
    DDP,
    """After an exception inside no_sync() your wrapper stayed silent forever. The code after the yield must run in any
    case: put it into a finally.""",
    (
        "        try:\n            yield\n        finally:\n            self._sync = before\n",
        "        yield\n        self._sync = before\n",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_syncs_once_for_many_micro_batches"],
)

ddp_no_sync_always_ends_in_sync = edit(
    DDP,
    """At its end your no_sync() switched synchronization on, even when it was nested in another no_sync(). Restore the
    value from before.""",
    ("        before, self._sync = self._sync, False\n", "        self._sync = False\n"),
    ("            self._sync = before\n", "            self._sync = True\n"),
    breaks=tests_of(DDP),
    fails=["ddp_syncs_once_for_many_micro_batches"],
)

ddp_no_sync_does_nothing = edit(
    DDP,
    """Your no_sync() changes nothing: every micro-batch was averaged by itself, which costs k times the communication.
    Inside no_sync() nothing is sent, and the gradients add up on each rank.""",
    ("        before, self._sync = self._sync, False\n", "        before = self._sync\n"),
    breaks=tests_of(DDP),
    fails=[
        "ddp_syncs_once_for_many_micro_batches",
        "ddp_counts_unused_parameters_as_zeros",
        "ddp_never_leaves_a_mystery",
    ],
)

ddp_hooks_on_tensors = edit(
    DDP,
    """register_hook calls your function before the gradient is added to p.grad, so the bucket was filled with None or
    with old numbers. Use register_post_accumulate_grad_hook, which calls it afterwards.""",
    (
        "            p.register_post_accumulate_grad_hook(self._on_gradient)\n",
        "            p.register_hook(lambda grad, p=p: self._on_gradient(p))\n",
    ),
    breaks=tests_of(DDP),
)

ddp_without_hooks = edit(
    DDP,
    """You marked all parameters in finish_gradient_sync(), when backward had ended. The numbers are right, but no
    communication overlaps with backward: register a hook on each parameter and mark it there.""",
    (
        "        for p in self._params:\n"
        "            p.register_post_accumulate_grad_hook(self._on_gradient)\n"
        "\n"
        "    def _on_gradient(self, param):\n"
        "        if self._open:\n"
        "            self._reducer.mark_ready(param)\n",
        "",
    ),
    ("self._reducer.missing()", "self._params if p.grad is None"),
    breaks=tests_of(DDP),
    fails=["ddp_sends_each_bucket_once_while_backward_runs", "ddp_never_leaves_a_mystery"],
)

ddp_counts_unused_as_zeros_without_the_flag = edit(
    DDP,
    """Without the flag, you silently counted a parameter that got no gradient as zeros. That hides a mistake in the
    model: raise the RuntimeError that names it, and count zeros only with find_unused_parameters=True.""",
    (
        "        unused = {id(p) for p in self._reducer.missing()}\n"
        "        if unused and not self.find_unused_parameters:\n"
        '            names = ", ".join(name for name, p in self.module.named_parameters() if id(p) in unused)\n'
        '            raise RuntimeError(f"no gradient for {names}: use them, freeze them, or set '
        'find_unused_parameters=True")\n',
        "",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_never_leaves_a_mystery"],
)

ddp_does_not_name_the_unused = edit(
    DDP,
    """Your error says that a parameter was not used, but not which of hundreds. Put the names from
    module.named_parameters() into it.""",
    (
        'names = ", ".join(name for name, p in self.module.named_parameters() if id(p) in unused)\n'
        '            raise RuntimeError(f"no gradient for {names}: use them, freeze them, or set '
        'find_unused_parameters=True")',
        'raise RuntimeError(f"{len(unused)} parameters got no gradient")',
    ),
    breaks=tests_of(DDP),
    fails=["ddp_never_leaves_a_mystery"],
)

ddp_names_all_parameters = edit(
    DDP,
    """Your error names every parameter, even those that got their gradients. Name only the missing ones; id(p) tells
    parameters apart.""",
    ("() if id(p) in unused", "()"),
    breaks=tests_of(DDP),
    fails=["ddp_never_leaves_a_mystery"],
)

ddp_raises_after_sending_the_rest = edit(
    DDP,
    """You started the remaining buckets before you raised the error. If only one rank skips a parameter, the others
    then get means with its zeros and go on while it stops: check what is missing before you start anything more.""",
    (
        "        if unused and not self.find_unused_parameters:\n",
        "        if unused and not self.find_unused_parameters:\n            self._reducer.finish()\n",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_never_leaves_a_mystery"],
)

ddp_without_a_broadcast = edit(
    DDP,
    """Each rank kept its own random parameters. The gradients are averaged, but they belong to different models:
    broadcast parameters and buffers when the wrapper is made.""",
    ("        broadcast_parameters(module)\n", ""),
    breaks=tests_of(DDP),
)

ddp_broadcasts_in_every_forward = edit(
    DDP,
    """You broadcast the parameters in each forward. Ranks that start equal and apply equal gradients stay equal, and
    each broadcast costs as much as half of the gradients' all-reduce. Once, at construction, is enough.""",
    (
        "            self._open = self._sync\n",
        "            self._open = self._sync\n        broadcast_parameters(self.module)\n",
    ),
    breaks=tests_of(DDP),
    fails=[
        "ddp_sends_each_bucket_once_while_backward_runs",
        "ddp_syncs_once_for_many_micro_batches",
        "ddp_counts_unused_parameters_as_zeros",
    ],
)

ddp_hooks_on_frozen_parameters = edit(
    DDP,
    """You registered a hook on a frozen parameter, which torch refuses because it never gets a gradient. Register hooks
    only on parameters with requires_grad.""",
    ("        for p in self._params:\n", "        for p in module.parameters():\n"),
    breaks=tests_of(DDP),
)

ddp_hands_on_positional_arguments_only = edit(
    DDP,
    """Your forward dropped the keyword arguments. Pass everything on: *args and **kwargs.""",
    ("    def forward(self, *args, **kwargs):\n", "    def forward(self, *args):\n"),
    ("        return self.module(*args, **kwargs)\n", "        return self.module(*args)\n"),
    breaks=tests_of(DDP),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_stays_open_after_finish = edit(
    DDP,
    """After finish_gradient_sync() your wrapper still considered the step open, so a second call sent everything again,
    or complained about missing gradients. Close the step when it is finished.""",
    ("        self._open = False\n", ""),
    breaks=tests_of(DDP),
    fails=["ddp_syncs_once_for_many_micro_batches"],
)

average_fills_in_float32 = edit(
    AVERAGE,
    """You made the zeros for a missing gradient in torch's default dtype. In a bucket of float64 parameters, the flat
    tensor or the new gradient then has the wrong dtype: zeros_like(p) has the parameter's.""",
    ("torch.zeros_like(p) if p.grad is None", "torch.zeros(p.shape) if p.grad is None"),
    breaks=tests_of(AVERAGE, DDP),
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

ddp_takes_a_missing_grad_for_an_unused_parameter = edit(
    DDP,
    """You took the parameters whose .grad is None for the unused ones. A gradient left from an earlier, silent backward
    is not a gradient of this step: ask the reducer which parameters have not been marked.""",
    ("self._reducer.missing()", "self._params if p.grad is None"),
    breaks=tests_of(DDP),
    fails=["ddp_never_leaves_a_mystery"],
)
