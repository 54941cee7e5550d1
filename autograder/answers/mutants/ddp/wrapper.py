"""Wrong answers to lesson 05, exercise 5."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

DDP, QUIET, CHECKED = "05-ex5-ddp", "05-ex6-no-sync", "05-ex7-unused"
WRAPPERS = (DDP, QUIET, CHECKED)

HOOK = "                p.register_post_accumulate_grad_hook(lambda param: self.on_gradient(param))\n"
MARK = "        self.reducer.mark_ready(param)\n"
FINISH = "        self.reducer.finish()\n"

ddp_is_one_gradient_late = edit(
    DDP,
    """You marked each gradient when the next one arrived. Every bucket then starts one gradient late, and the last
    bucket, whose communication nothing can hide, starts only in finish_gradient_sync(). A gradient is there when its
    hook is called: mark it at once.""",
    (HOOK, HOOK + "        self.late = None\n"),
    (
        MARK,
        "        if self.late is not None:\n"
        "            self.reducer.mark_ready(self.late)\n"
        "        self.late = param\n",
    ),
    (
        FINISH,
        "        if self.late is not None:\n"
        "            self.reducer.mark_ready(self.late)\n"
        "        self.late = None\n" + FINISH,
    ),
    breaks=tests_of(DDP, CHECKED),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_starts_at_the_end_of_backward = edit(
    DDP,
    """You let autograd call you once, at the end of backward (queue_callback). By then all gradients are there, and no
    computation is left that could hide the communication: mark each gradient in its own hook.""",
    (HOOK, HOOK + "        self.arrived = []\n"),
    (
        MARK,
        "        if not self.arrived:\n"
        "            torch.autograd.Variable._execution_engine.queue_callback(self.all_arrived)\n"
        "        self.arrived.append(param)\n\n"
        "    def all_arrived(self):\n"
        "        for param in self.arrived:\n"
        "            self.reducer.mark_ready(param)\n"
        "        self.arrived = []\n",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_without_hooks = edit(
    DDP,
    """You called on_gradient for all parameters in finish_gradient_sync(), when backward had ended. The numbers are
    right, but no communication overlaps with backward: register a hook on each parameter and mark it there.""",
    ("            if p.requires_grad:\n" + HOOK, "            pass\n"),
    (
        FINISH,
        "        for p in self.module.parameters():\n"
        "            if p.requires_grad:\n"
        "                self.on_gradient(p)\n" + FINISH,
    ),
    breaks=tests_of(DDP, CHECKED),
    fails=["ddp_sends_each_bucket_once_while_backward_runs", "ddp_hooks_call_on_gradient"],
)

ddp_hooks_call_the_reducer = edit(
    DDP,
    """Your hooks call the reducer directly and skip self.on_gradient. A subclass that overrides on_gradient, as
    exercise 6 does, then has no effect: let the hook look the method up on self.""",
    (HOOK, "                p.register_post_accumulate_grad_hook(self.reducer.mark_ready)\n"),
    breaks=tests_of(DDP, QUIET),
    fails=["ddp_hooks_call_on_gradient"],
)

ddp_hooks_call_its_own_on_gradient = edit(
    DDP,
    """Your hooks name the class, DistributedDataParallel.on_gradient(self, param). A subclass's own on_gradient is
    then never called: write self.on_gradient(param).""",
    ("lambda param: self.on_gradient(param)", "lambda param: DistributedDataParallel.on_gradient(self, param)"),
    breaks=tests_of(DDP, QUIET),
    fails=["ddp_hooks_call_on_gradient"],
)

ddp_hooks_on_tensors = edit(
    DDP,
    """register_hook calls your function before the gradient is added to p.grad, so the bucket was filled with None or
    with old numbers. Use register_post_accumulate_grad_hook, which calls it afterwards.""",
    (HOOK, "                p.register_hook(lambda grad, p=p: self.on_gradient(p))\n"),
    breaks=tests_of(*WRAPPERS),
)

ddp_takes_the_hooks_argument_for_the_gradient = edit(
    DDP,
    """You took what register_hook passes to your function for the whole gradient, and wrote it into .grad. It is only
    this backward's share, so what .grad held before is lost. Use register_post_accumulate_grad_hook, and leave .grad to
    autograd.""",
    (
        HOOK,
        "                p.register_hook(lambda grad, p=p: self.take(p, grad))\n\n"
        "    def take(self, param, grad):\n"
        "        param.grad = None  # autograd adds the same share again, afterwards\n"
        "        param.grad = grad.clone()\n"
        "        self.on_gradient(param)\n"
        "        param.grad = None\n",
    ),
    breaks=tests_of(DDP, QUIET),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_averages_the_parameters = edit(
    DDP,
    """Your hook averaged its argument, but register_post_accumulate_grad_hook passes the parameter. You averaged the
    parameters and never the gradients: the gradient is in param.grad.""",
    (
        MARK,
        "        dist.all_reduce(param.detach())\n        param.detach().div_(dist.get_world_size())\n",
    ),
    (FINISH, "        pass\n"),
    breaks=tests_of(*WRAPPERS),
)

ddp_forgets_what_was_there = edit(
    DDP,
    """You cleared the gradients in each forward, so what earlier micro-batches left in .grad is lost. The mean is of
    everything that .grad holds, and clearing is up to the caller.""",
    (
        "        return self.module(*args, **kwargs)\n",
        "        self.module.zero_grad()\n        return self.module(*args, **kwargs)\n",
    ),
    breaks=tests_of(*WRAPPERS),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_divides_once_more = edit(
    DDP,
    """You divided by the number of ranks once more, but finish() already leaves means.""",
    (
        FINISH,
        FINISH + "        for p in self.module.parameters():\n"
        "            if p.grad is not None:\n"
        "                p.grad /= dist.get_world_size()\n",
    ),
    breaks=tests_of(*WRAPPERS),
)

ddp_ignores_bucket_bytes = edit(
    DDP,
    """You did not make the buckets with bucket_bytes: you used the default, or treated the number as megabytes. Pass
    bucket_bytes on as it is.""",
    ("make_buckets(module.parameters(), bucket_bytes)", "make_buckets(module.parameters(), 25 * 2**20)"),
    breaks=tests_of(DDP),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_without_a_broadcast = edit(
    DDP,
    """Each rank kept its own random parameters. The gradients are averaged, but they belong to different models:
    broadcast parameters and buffers when the wrapper is made.""",
    ("        broadcast_parameters(module)\n", ""),
    breaks=tests_of(*WRAPPERS),
)

ddp_broadcasts_in_every_forward = edit(
    DDP,
    """You broadcast the parameters in each forward. Ranks that start equal and apply equal gradients stay equal, and
    each broadcast costs as much as half of the gradients' all-reduce. Once, at construction, is enough.""",
    (
        "        return self.module(*args, **kwargs)\n",
        "        broadcast_parameters(self.module)\n        return self.module(*args, **kwargs)\n",
    ),
    breaks=tests_of(*WRAPPERS),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_hooks_on_frozen_parameters = edit(
    DDP,
    """You registered a hook on a frozen parameter. torch refuses this, because the parameter never gets a gradient.
    Register hooks only on parameters with requires_grad.""",
    ("            if p.requires_grad:\n" + HOOK, HOOK.replace("                p", "            p")),
    breaks=tests_of(DDP, CHECKED),
)

ddp_hands_on_positional_arguments_only = edit(
    DDP,
    """Your forward dropped the keyword arguments. Pass everything on: *args and **kwargs.""",
    ("    def forward(self, *args, **kwargs):\n", "    def forward(self, *args):\n"),
    ("        return self.module(*args, **kwargs)\n", "        return self.module(*args)\n"),
    breaks=tests_of(DDP),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_takes_one_argument = edit(
    DDP,
    """Your forward takes a single input. A module may have several, and keyword arguments, too: pass on *args and
    **kwargs.""",
    ("    def forward(self, *args, **kwargs):\n", "    def forward(self, x):\n"),
    ("        return self.module(*args, **kwargs)\n", "        return self.module(x)\n"),
    breaks=tests_of(*WRAPPERS),
    fails=["ddp_sends_each_bucket_once_while_backward_runs", "ddp_hooks_call_on_gradient"],
)

ddp_broadcasts_buffers_in_every_forward = edit(
    DDP,
    """You sent the buffers in each forward, as torch's wrapper does. Here the ranks get them once, at construction: a
    step sends the buckets and nothing else.""",
    (
        "        return self.module(*args, **kwargs)\n",
        "        for buffer in self.module.buffers():\n"
        "            dist.broadcast(buffer, 0)\n"
        "        return self.module(*args, **kwargs)\n",
    ),
    breaks=tests_of(DDP),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_marks_only_what_is_not_zero = edit(
    DDP,
    """You did not mark gradients of zeros, so their buckets, and all buckets after these, waited for
    finish_gradient_sync(). A zero gradient is a gradient, too: mark each one that arrives.""",
    (MARK, "        if param.grad.any():\n    " + MARK),
    breaks=tests_of(DDP),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_drops_what_was_not_used = edit(
    DDP,
    """You removed the gradient of a parameter that got none in this backward. Its .grad may hold what earlier backwards
    left there, on this rank or on others: after finish_gradient_sync() it should be the mean.""",
    (
        FINISH,
        "        missing = self.reducer.missing()\n"
        + FINISH
        + "        for p in missing:\n            p.grad = None\n",
    ),
    breaks=tests_of(DDP, CHECKED),
    fails=["ddp_sends_each_bucket_once_while_backward_runs"],
)

ddp_returns_the_first_output = edit(
    DDP,
    """Your forward returned only the first output. Return what the module returns, even if it is a tuple or a dict.""",
    (
        "        return self.module(*args, **kwargs)\n",
        "        out = self.module(*args, **kwargs)\n        return out[0] if isinstance(out, tuple) else out\n",
    ),
    breaks=tests_of(DDP, QUIET),
    fails=["ddp_sends_each_bucket_once_while_backward_runs", "ddp_hooks_call_on_gradient"],
)
