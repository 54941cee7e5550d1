"""Wrong answers to lesson 07: the subtle ones first in each exercise."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, right, tests_of

TOP_K, FEEDBACK, HOOK = "07-ex1-top-k", "07-ex2-error-feedback", "07-ex3-top-k-hook"
SERVER, SCALER, BENCHMARK = "07-ex4-parameter-server", "07-ex5-loss-scaler", "07-ex6-benchmark"


# ---- 1 · top_k_compress, top_k_decompress ----


_top_k = edit(
    TOP_K,
    """Right, with a shorter message: the base of the edits below.""",
    ("; got {indices.tolist()}", ""),
)

top_k_counts_in_memory_order = edit(
    TOP_K,
    """Your indices count the elements as they lie in memory. For a transposed matrix that is another order than that of
    grad.reshape(-1), which goes row by row, so decompressing puts the values in the wrong places.""",
    ("flat = grad.reshape(-1)", "flat = torch.as_strided(grad, (grad.numel(),), (1,))"),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK),
)

top_k_sends_magnitudes = edit(
    TOP_K,
    """The places are right, but you sent the magnitudes, without their signs. Choose by magnitude, then take the
    entries themselves from the gradient.""",
    (
        "indices = flat.abs().topk(k).indices\n    return flat[indices], indices  # indexing with a tensor copies",
        "values, indices = flat.abs().topk(k)\n    return values, indices",
    ),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK, BENCHMARK),
)

top_k_hands_out_a_view = edit(
    TOP_K,
    """When everything is sent, your values are a view of the gradient: when the optimizer zeroes the gradient, what you
    sent changes with it. reshape and slicing share memory with their source; make a copy.""",
    (
        "indices = flat.abs().topk(k).indices",
        "if k == flat.numel():\n        return flat, torch.arange(k)\n    indices = flat.abs().topk(k).indices",
    ),
    base=_top_k,
    breaks=tests_of(TOP_K),
)

top_k_rounds_up = edit(
    TOP_K,
    """You rounded ratio · numel up, which sends one entry too many wherever it is not a whole number. Round down, but
    never to less than one.""",
    (
        "k = min(flat.numel(), max(1, math.floor(ratio * flat.numel())))",
        "k = min(flat.numel(), math.ceil(ratio * flat.numel()))",
    ),
    base=_top_k,
    breaks=tests_of(TOP_K, BENCHMARK),
)

top_k_sends_nothing_of_a_small_gradient = edit(
    TOP_K,
    """For a small gradient ratio · numel is below 1, and you sent nothing at all: a bias vector would never be trained.
    Send at least one entry.""",
    (
        "k = min(flat.numel(), max(1, math.floor(ratio * flat.numel())))",
        "k = min(flat.numel(), math.floor(ratio * flat.numel()))",
    ),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK),
)

top_k_needs_an_entry = edit(
    TOP_K,
    """You asked for at least one entry of a gradient that has none. An empty gradient gives empty values and empty
    indices.""",
    ("k = min(flat.numel(), max(1, math.floor(ratio * flat.numel())))", "k = max(1, math.floor(ratio * flat.numel()))"),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK),
)

top_k_takes_the_most_positive = edit(
    TOP_K,
    """You took the largest numbers instead of those with the largest magnitude. A gradient of −100 matters as much as
    one of 100, and you would never send it.""",
    ("flat.abs().topk(k)", "flat.topk(k)"),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK, BENCHMARK),
)

top_k_views_its_input = edit(
    TOP_K,
    """view(-1) works only where the elements follow each other in memory; for a transposed matrix it raises an error.
    reshape(-1) copies where it must.""",
    ("flat = grad.reshape(-1)", "flat = grad.view(-1)"),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK),
)

top_k_with_short_indices = edit(
    TOP_K,
    """Your indices are int32. The statement asks for int64, which torch's indexing expects, too.""",
    ("return flat[indices], indices  # indexing with a tensor copies", "return flat[indices], indices.int()"),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK, BENCHMARK),
)

top_k_takes_ratio_zero = edit(
    TOP_K,
    """You accepted a ratio of 0. The interval (0, 1] contains 1, but not 0.""",
    ("not 0 < ratio", "not 0 <= ratio"),
    base=_top_k,
    breaks=tests_of(TOP_K),
)

decompress_in_float32 = edit(
    TOP_K,
    """torch.zeros makes float32 numbers: float64 values lose half of their digits in them, and float16 values come back
    in another dtype than the gradient's. Make the zeros in the dtype of the values.""",
    ("flat = values.new_zeros(numel)", "flat = torch.zeros(numel)"),
    ("flat[indices] = values", "flat[indices] = values.float()"),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK, HOOK, BENCHMARK),
)

decompress_counts_backwards = edit(
    TOP_K,
    """You accepted a negative index. Python and torch take −1 for the last element, but it is not a place in 0…numel −
    1, and a sign of an earlier mistake: raise the ValueError.""",
    ("0 <= indices.min() <= indices.max()", "indices.max()"),
    base=_top_k,
    breaks=tests_of(TOP_K),
)

decompress_stretches_a_value = edit(
    TOP_K,
    """You wrote one value to several places: assigning a tensor with a single element fills all indexed places, so it
    went unnoticed that there were fewer values than indices. Compare the lengths.""",
    (
        "len(values) != len(indices) or (len(indices) and not 0 <= indices.min() <= indices.max() < numel)",
        "len(indices) and not 0 <= indices.min() <= indices.max() < numel",
    ),
    ("flat[indices] = values", "flat[indices[: len(values)] if len(values) > 1 else indices] = values[: len(indices)]"),
    base=_top_k,
    breaks=tests_of(TOP_K),
)


# ---- 2 · ErrorFeedback ----


feedback_zeroes_the_gradient = edit(
    FEEDBACK,
    """For a new key there was no residual to add, so you worked on the gradient itself. Writing zeros at the places
    that were sent then changed the caller's gradient, and your residual shares its memory. Copy it first.""",
    (
        "        corrected = grad + self.residual.get(key, torch.zeros_like(grad))\n",
        "        corrected = grad + self.residual[key] if key in self.residual else grad\n",
    ),
    (
        "        self.residual[key] = corrected - top_k_decompress(values, indices, grad.shape)\n",
        "        places = top_k_decompress(torch.ones_like(values), indices, grad.shape)\n"
        "        self.residual[key] = corrected.masked_fill_(places.bool(), 0)\n",
    ),
    breaks=tests_of(FEEDBACK, BENCHMARK),
)

feedback_forgets_what_is_older = edit(
    FEEDBACK,
    """Your residual is only what this gradient lacks after sending, so the rest from earlier steps is lost. Compute it
    from what you compressed: the gradient plus the old residual.""",
    ("self.residual[key] = corrected", "self.residual[key] = grad"),
    breaks=tests_of(FEEDBACK, BENCHMARK),
)

feedback_keeps_what_was_sent = edit(
    FEEDBACK,
    """You kept the part that was sent and forgot the rest; it should be the other way round. In your version the large
    entries are sent again and again, and grow.""",
    ("corrected - top_k_decompress(values, indices, grad.shape)", "top_k_decompress(values, indices, grad.shape)"),
    breaks=tests_of(FEEDBACK, BENCHMARK),
)

feedback_is_never_added = edit(
    FEEDBACK,
    """You store the residual, but never add it to the next gradient: this is plain top-k. Compress the gradient
    together with the residual.""",
    ("corrected = grad + self.residual.get(key, torch.zeros_like(grad))", "corrected = grad.clone()"),
    breaks=tests_of(FEEDBACK, BENCHMARK),
)

feedback_adds_only_after_choosing = edit(
    FEEDBACK,
    """You chose the entries by the gradient alone and added the residual to the chosen ones. An entry that is small in
    every gradient is then never sent, however large its residual becomes. Add first, then choose.""",
    (
        "        values, indices = top_k_compress(corrected, self.ratio)\n",
        "        _, indices = top_k_compress(grad, self.ratio)\n        values = corrected.reshape(-1)[indices]\n",
    ),
    breaks=tests_of(FEEDBACK, BENCHMARK),
)


@mutant(FEEDBACK, breaks=tests_of(FEEDBACK, BENCHMARK))
def feedback_shared_by_all_objects():
    """All your ErrorFeedback objects use the same dict: an attribute that is assigned in the class body belongs to the
    class. Objects with the same keys then mix their residuals. Make the dict in __init__."""

    class ErrorFeedback:
        residual = {}  # noqa: RUF012

        def __init__(self, ratio):
            self.ratio = ratio

        def compress(self, key, grad):
            corrected = grad + self.residual.get(key, torch.zeros_like(grad))
            values, indices = top_k_compress(corrected, self.ratio)
            self.residual[key] = corrected - top_k_decompress(values, indices, grad.shape)
            return values, indices


feedback_fades = edit(
    FEEDBACK,
    """You multiplied the residual by a factor below 1, so a part of what was not sent is lost in each step. What was
    sent plus the residual must be the sum of all gradients, without loss.""",
    (
        "        self.residual[key] = corrected - top_k_decompress(values, indices, grad.shape)\n",
        "        self.residual[key] = 0.9 * (corrected - top_k_decompress(values, indices, grad.shape))\n",
    ),
    breaks=tests_of(FEEDBACK, BENCHMARK),
)


# ---- 3 · top_k_hook ----


hook_keyed_by_bucket = edit(
    HOOK,
    """You keyed the residual by the bucket's index and the place within the bucket. DDP rebuilds its buckets after the
    first step, so from the second step on a parameter gets another one's residual. Use a key that belongs to the
    parameter: its place in the list that came with the state.""",
    (
        "    feedback, params = state\n    place = {id(param): number for number, param in enumerate(params)}\n",
        "    feedback, _ = state\n"
        "    place = {id(param): (bucket.index(), number) for number, param in enumerate(bucket.parameters())}\n",
    ),
    breaks=tests_of(HOOK),
)

hook_keyed_by_shape = edit(
    HOOK,
    """You looked the parameter up by its shape, so layers of the same shape share a residual. Look for the parameter
    itself, with `is` or `id`.""",
    ("    place = {id(param): number for number, param in enumerate(params)}\n", ""),
    ("place[id(param)]", "[p.shape for p in params].index(param.shape)"),
    breaks=tests_of(HOOK),
)

hook_compresses_the_whole_bucket = edit(
    HOOK,
    """You compressed the bucket as one long vector. The parameter with the largest gradients then takes all the places,
    and the residual belongs to a bucket that DDP rebuilds after the first step. Compress each parameter by itself.""",
    ("for param, grad in zip(bucket.parameters(), bucket.gradients()):", "for grad in [bucket.buffer()]:"),
    ("place[id(param)]", "place[id(bucket.parameters()[0])]"),
    breaks=tests_of(HOOK),
)

hook_lets_the_last_rank_win = edit(
    HOOK,
    """Where several ranks sent the same entry, only one rank's value is left: you assigned the values of all ranks into
    one tensor, so later ones overwrite earlier ones. Add them up.""",
    (
        "        parts = zip(all_values, all_indices)\n"
        "        grad.copy_(sum(top_k_decompress(*part, grad.shape) for part in parts) / world_size)\n",
        "        total = torch.zeros_like(grad).view(-1)\n"
        "        total[torch.cat(all_indices)] = torch.cat(all_values)\n"
        "        grad.copy_(total.view_as(grad) / world_size)\n",
    ),
    breaks=tests_of(HOOK),
)

hook_returns_the_sum = edit(
    HOOK,
    """Your hook returns the sum over the ranks instead of the mean. Without a hook DDP divides by the number of ranks;
    with one it leaves that to the hook.""",
    ("for part in parts) / world_size)", "for part in parts))"),
    breaks=tests_of(HOOK),
)

hook_divides_twice = edit(
    HOOK,
    """Your result is too small by a factor of N: you divided what you sent by the number of ranks, and then the sum
    again. Keep one of the two divisions.""",
    ("        dist.all_gather(all_values, values)\n", "        dist.all_gather(all_values, values / world_size)\n"),
    breaks=tests_of(HOOK),
)

hook_averages_over_the_senders = edit(
    HOOK,
    """You divided each entry by the number of ranks that sent it. A rank that did not send an entry counts as 0, and
    its part follows later from its residual: divide by the number of all ranks.""",
    (
        "parts = zip(all_values, all_indices)\n"
        "        grad.copy_(sum(top_k_decompress(*part, grad.shape) for part in parts) / world_size)",
        "parts = list(zip(all_values, all_indices))\n"
        "        senders = sum(top_k_decompress(torch.ones_like(v), i, grad.shape) for v, i in parts)\n"
        "        grad.copy_(sum(top_k_decompress(*part, grad.shape) for part in parts) / senders.clamp(min=1))",
    ),
    breaks=tests_of(HOOK),
)


@right(HOOK)
def _hook():
    """Right: the base of the two edits below."""

    def top_k_hook(state, bucket):
        feedback, params = state
        place = {id(param): number for number, param in enumerate(params)}
        world_size = dist.get_world_size()
        for param, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            values, indices = feedback.compress(place[id(param)], grad)
            all_values = [torch.empty_like(values) for _ in range(world_size)]
            all_indices = [torch.empty_like(indices) for _ in range(world_size)]
            dist.all_gather(all_values, values)
            dist.all_gather(all_indices, indices)
            parts = zip(all_values, all_indices, strict=True)
            grad.copy_(sum(top_k_decompress(*part, grad.shape) for part in parts) / world_size)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future


hook_all_reduces_dense_vectors = edit(
    HOOK,
    """Your numbers are right, but you decompressed first and then all-reduced whole gradients, mostly zeros, which
    saves nothing. Send values and indices, and decompress on arrival.""",
    (
        "        all_values = [torch.empty_like(values) for _ in range(world_size)]\n"
        "        all_indices = [torch.empty_like(indices) for _ in range(world_size)]\n"
        "        dist.all_gather(all_values, values)\n"
        "        dist.all_gather(all_indices, indices)\n"
        "        parts = zip(all_values, all_indices, strict=True)\n"
        "        grad.copy_(sum(top_k_decompress(*part, grad.shape) for part in parts) / world_size)\n",
        "        total = top_k_decompress(values, indices, grad.shape)\n"
        "        dist.all_reduce(total)\n"
        "        grad.copy_(total / world_size)\n",
    ),
    base=_hook,
    breaks=tests_of(HOOK),
)

hook_with_another_second_name = edit(
    HOOK,
    """torch looks for a hook parameter named `bucket` and did not find one, so the hook could not be registered. Name
    the second parameter `bucket`.""",
    ("(state, bucket):", "(state, grad_bucket):\n    bucket = grad_bucket"),
    base=_hook,
    breaks=tests_of(HOOK),
)


# ---- 4 · parameter_server ----


@right(SERVER)
def _server():
    """Right: the base of the edits below."""

    def parameter_server(rank, world_size, weights, gradient, steps, lr, mode):
        if world_size < 2:
            raise ValueError(f"world_size must be at least 2, got {world_size}")
        if mode not in ("sync", "async"):
            raise ValueError(f"mode must be sync or async, got {mode!r}")
        if rank > 0:
            return work(rank, weights, gradient, steps)
        weights = weights.clone(memory_format=torch.contiguous_format)
        grad, log, workers = torch.empty_like(weights), [], range(1, world_size)
        if mode == "sync":
            for step in range(steps):
                total = torch.zeros_like(weights)
                for worker in workers:
                    dist.send(weights, dst=worker)
                for worker in workers:
                    dist.recv(grad, src=worker)
                    total += grad
                    log.append((worker, step, 0))
                weights -= lr * total / len(workers)
            return weights, log
        pushes, version = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
        for worker in workers:
            dist.send(weights, dst=worker)
        for update in range(steps * len(workers)):
            worker = dist.recv(grad)
            log.append((worker, pushes[worker], update - version[worker]))
            weights -= lr * grad
            pushes[worker] += 1
            version[worker] = update + 1
            if pushes[worker] < steps:
                dist.send(weights, dst=worker)
        return weights, log


server_divides_by_all_ranks = edit(
    SERVER,
    """You divided by the number of ranks. The server is one of them and has no gradient: take the mean over the N − 1
    workers.""",
    ("total / len(workers)", "total / world_size"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_logs_by_arrival = edit(
    SERVER,
    """In synchronous mode you logged the pushes as they arrived. They all belong to the same update: log them in the
    order of the workers' ranks.""",
    (
        "for worker in workers:\n                dist.recv(grad, src=worker)",
        "for _ in workers:\n                worker = dist.recv(grad)",
    ),
    base=_server,
    breaks=tests_of(SERVER),
)

server_updates_within_a_round = edit(
    SERVER,
    """In synchronous mode you sent each worker weights that already contained the gradients of earlier workers of the
    same round. All workers must get the same weights, and the update comes when all gradients are there.""",
    ("            total = torch.zeros_like(weights)\n", ""),
    (
        "                dist.send(weights, dst=worker)\n            for worker in workers:\n",
        "                dist.send(weights, dst=worker)\n",
    ),
    ("total += grad", "weights -= lr * grad / len(workers)"),
    ("            weights -= lr * total / len(workers)\n", ""),
    base=_server,
    breaks=tests_of(SERVER),
)

staleness_counts_the_own_update = edit(
    SERVER,
    """From a worker's second push on, your staleness is too large by one: you recorded the version before that worker's
    last push, but the weights it got already contain that push. A lone worker's gradients are never stale.""",
    ("update + 1", "update"),
    base=_server,
    breaks=tests_of(SERVER),
)

staleness_counts_since_the_start = edit(
    SERVER,
    """You subtracted the worker's own pushes from the number of all updates. That counts the other workers' updates
    since the start, not only those since this worker's last pull: remember which version it was sent last.""",
    ("update - version[worker]", "update - pushes[worker]"),
    base=_server,
    breaks=tests_of(SERVER),
)

staleness_counts_a_push_itself = edit(
    SERVER,
    """You counted the update that the push itself makes. Staleness counts the updates between pull and push; the push's
    own comes after.""",
    ("[worker], update - version[worker]", "[worker], update + 1 - version[worker]"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_answers_everybody = edit(
    SERVER,
    """After each push you sent the new weights to all workers. The others did not ask: they find old weights in their
    queue at their next pull, and the server sends N − 1 times as much as it must. Answer only the worker that
    pushed.""",
    (
        "pushes, version = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)",
        "works = []\n    pushes, version = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)",
    ),
    (
        "if pushes[worker] < steps:\n            dist.send(weights, dst=worker)",
        "for other in workers:\n            works.append(dist.isend(weights.clone(), dst=other))",
    ),
    base=_server,
    breaks=tests_of(SERVER),
)

server_takes_turns = edit(
    SERVER,
    """In asynchronous mode you received from worker 1, then 2, then 3, so all workers wait for the slowest one again.
    Receive from any source; recv returns which one it was.""",
    ("worker = dist.recv(grad)", "worker = workers[update % len(workers)]\n        dist.recv(grad, src=worker)"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_is_never_asynchronous = edit(
    SERVER,
    """Your `mode="async"` did the same as "sync". In asynchronous mode a push is applied when it arrives, and no worker
    waits for another.""",
    ('if mode == "sync":', "if mode:"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_divides_single_pushes = edit(
    SERVER,
    """In asynchronous mode you divided each gradient by the number of workers. A push is one gradient and is applied by
    itself, with the whole learning rate.""",
    ("weights -= lr * grad", "weights -= lr * grad / len(workers)"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_trains_what_it_was_given = edit(
    SERVER,
    """You updated the tensor that the caller passed in. It must stay as it was: train a copy.""",
    ("    weights = weights.clone(memory_format=torch.contiguous_format)\n", ""),
    base=_server,
    breaks=tests_of(SERVER),
)

worker_starts_with_its_own_weights = edit(
    SERVER,
    """Your worker computed its first gradient from the weights it was called with, whose numbers may be anything. Only
    the server's weights count: begin every step with a pull.""",
    (
        "return work(rank, weights, gradient, steps)",
        "pulled = torch.empty_like(weights, memory_format=torch.contiguous_format)\n"
        "        for step in range(steps):\n"
        "            dist.recv(pulled, src=0)\n"
        "            dist.send(gradient(pulled if step else weights, rank, step).contiguous(), dst=0)\n"
        "        return None",
    ),
    base=_server,
    breaks=tests_of(SERVER),
)

server_by_broadcast = edit(
    SERVER,
    """You sent the weights by a broadcast, a collective in which all ranks take part together, which workers of an
    asynchronous server cannot. Use only sends and receives.""",
    (
        "return work(rank, weights, gradient, steps)",
        'if mode == "async":\n'
        "            return work(rank, weights, gradient, steps)\n"
        "        for step in range(steps):\n"
        "            pulled = torch.empty_like(weights, memory_format=torch.contiguous_format)\n"
        "            dist.broadcast(pulled, 0)\n"
        "            dist.send(gradient(pulled, rank, step).contiguous(), dst=0)\n"
        "        return None",
    ),
    ("for worker in workers:\n                dist.send(weights, dst=worker)", "dist.broadcast(weights, 0)"),
    base=_server,
    breaks=tests_of(SERVER),
)

server_takes_any_mode = edit(
    SERVER,
    """You accepted a mode that does not exist. Raise a ValueError that names `mode`, on every rank.""",
    (
        '    if mode not in ("sync", "async"):\n'
        '        raise ValueError(f"mode must be sync or async, got {mode!r}")\n',
        "",
    ),
    base=_server,
    breaks=tests_of(SERVER),
)


# ---- 5 · LossScaler ----


scaler_grows_one_step_late = edit(
    SCALER,
    """Your factor grew one step too late. It grows after growth_interval good steps in a row, not after the one that
    follows.""",
    ("        if self.good_steps == self.growth_interval:\n", "        if self.good_steps > self.growth_interval:\n"),
    breaks=tests_of(SCALER),
)

scaler_counts_on_after_a_skip = edit(
    SCALER,
    """After a skipped step you went on counting from where you were. The good steps must be in a row: a skip resets the
    count to 0.""",
    (
        "            self.value *= self.backoff_factor\n            self.good_steps = 0\n",
        "            self.value *= self.backoff_factor\n",
    ),
    breaks=tests_of(SCALER),
)

scaler_updates_before_it_unscales = edit(
    SCALER,
    """The factor had already grown when you divided by it, but the gradients were scaled with the old one. Update the
    factor after the step.""",
    (
        "            return False\n",
        "            return False\n"
        "        self.good_steps += 1\n"
        "        if self.good_steps == self.growth_interval:\n"
        "            self.value *= self.growth_factor\n"
        "            self.good_steps = 0\n",
    ),
    (
        "                param.copy_(master)\n"
        "        self.good_steps += 1\n"
        "        if self.good_steps == self.growth_interval:\n"
        "            self.value *= self.growth_factor\n"
        "            self.good_steps = 0\n",
        "                param.copy_(master)\n",
    ),
    breaks=tests_of(SCALER),
)

scaler_unscales_in_fp16 = edit(
    SCALER,
    """You divided in fp16 and converted afterwards, so small gradients became zero again, just what the factor is there
    to prevent. Convert to fp32 first, then divide.""",
    ("param.grad.float() / self.value", "(param.grad / self.value).float()"),
    breaks=tests_of(SCALER),
)

scaler_unscales_twice = edit(
    SCALER,
    """You divided the gradients by the factor twice, for example once in place and again on their way to the masters.
    Divide once.""",
    ("param.grad.float() / self.value", "param.grad.float() / self.value / self.value"),
    breaks=tests_of(SCALER),
)

scaler_overlooks_nan = edit(
    SCALER,
    """You looked for infinities only. An inf minus an inf is NaN, and one NaN in the gradients makes every later weight
    NaN: skip such a step as well.""",
    (
        "finite = all(bool(param.grad.isfinite().all()) for param in params if param.grad is not None)\n"
        "        if not finite:",
        "if any(bool(param.grad.isinf().any()) for param in params if param.grad is not None):",
    ),
    breaks=tests_of(SCALER),
)

scaler_looks_at_a_sum = edit(
    SCALER,
    """You checked the sum of each gradient. In fp16 a sum of finite numbers may be infinite, and the step is then
    skipped for nothing. Check every number.""",
    ("param.grad.isfinite().all()", "param.grad.sum().isfinite()"),
    breaks=tests_of(SCALER),
)

scaler_looks_at_the_first_gradient = edit(
    SCALER,
    """You checked only the first gradient. An overflow in any of them spoils the step: check all.""",
    ("in params if", "in params[:1] if"),
    breaks=tests_of(SCALER),
)

scaler_steps_on_infinity = edit(
    SCALER,
    """You halved the factor after an overflow, but took the step all the same, and the masters are inf or NaN from then
    on. Return before the optimizer steps.""",
    ("            self.good_steps = 0\n            return False\n", "            self.good_steps = -1\n"),
    ("        return True\n", "        return finite\n"),
    breaks=tests_of(SCALER),
)

scaler_zeroes_instead_of_skipping = edit(
    SCALER,
    """On an overflow you set the gradients to 0 and let the optimizer step. With momentum or Adam that is not a skipped
    step: the optimizer's state changes, and Adam's step count, too. Do not call the optimizer at all.""",
    (
        "return False",
        "for master in masters:\n"
        "                master.grad = torch.zeros_like(master)\n"
        "            optimizer.step()\n"
        "            return False",
    ),
    breaks=tests_of(SCALER),
)

scaler_trains_the_16_bit_weights = edit(
    SCALER,
    """You updated the 16-bit weights and copied them into the masters, which loses small updates. Let the optimizer
    train the masters, and copy these into the weights.""",
    ("optimizer.step()", "before = [master.detach().clone() for master in masters]\n        optimizer.step()"),
    (
        "param.copy_(master)",
        "change = (master - before.pop(0)).to(param.dtype)\n"
        "                param += change\n"
        "                master.copy_(param)",
    ),
    breaks=tests_of(SCALER),
)

scaler_keeps_old_gradients = edit(
    SCALER,
    """For a parameter without a gradient you left an earlier step's gradient in its master, and the optimizer applied
    it again. Set the master's gradient to None.""",
    (
        "            master.grad = None if param.grad is None else param.grad.float() / self.value\n",
        "            if param.grad is not None:\n                master.grad = param.grad.float() / self.value\n",
    ),
    breaks=tests_of(SCALER),
)

scaler_turns_none_into_zeros = edit(
    SCALER,
    """For a parameter without a gradient you gave its master a gradient of zeros. With momentum or weight decay the
    optimizer then still moves it: None must stay None.""",
    ("master.grad = None if", "master.grad = torch.zeros_like(master) if"),
    breaks=tests_of(SCALER),
)

scaler_adds_up_gradients = edit(
    SCALER,
    """You added the masters' gradients to those of the step before. Each step has gradients of its own: assign them
    anew.""",
    (
        "            master.grad = None if param.grad is None else param.grad.float() / self.value\n",
        "            old = 0 if master.grad is None else master.grad\n"
        "            master.grad = None if param.grad is None else old + param.grad.float() / self.value\n",
    ),
    breaks=tests_of(SCALER),
)

scaler_scales_in_half_precision = edit(
    SCALER,
    """You multiplied a half-precision loss by the factor, and the product is too large for fp16. Convert the loss to
    fp32 before you multiply.""",
    ("        return loss.float() * self.value\n", "        return (loss * self.value).float()\n"),
    breaks=tests_of(SCALER),
)


# ---- 6 · benchmark ----


bytes_of_the_dense_vector = edit(
    BENCHMARK,
    """Your top-k reported the bytes of the whole gradient. Count what is sent: the values and the indices.""",
    ("(values.nbytes + indices.nbytes)", "grad.nbytes"),
    breaks=tests_of(BENCHMARK),
)

bytes_without_indices = edit(
    BENCHMARK,
    """Your top-k reported the bytes of its values alone. The indices are sent, too, and with float32 values they make
    up two thirds.""",
    ("(values.nbytes + indices.nbytes)", "values.nbytes"),
    breaks=tests_of(BENCHMARK),
)

bytes_of_int32_indices = edit(
    BENCHMARK,
    """You counted 4 bytes for each index. The indices that are sent are int64, 8 bytes each.""",
    ("indices.nbytes", "4 * len(indices)"),
    breaks=tests_of(BENCHMARK),
)

bytes_to_oneself = edit(
    BENCHMARK,
    """You counted a message to the rank itself. In an all-gather, a rank's own part goes to N − 1 other ranks, not to
    N.""",
    (
        "        return total / n, (n - 1) * (values.nbytes + indices.nbytes)\n",
        "        return total / n, n * (values.nbytes + indices.nbytes)\n",
    ),
    breaks=tests_of(BENCHMARK),
)

bytes_of_two_whole_vectors = edit(
    BENCHMARK,
    """You counted two whole vectors for an all-reduce. That is the limit for many ranks; for N ranks it is 2(N − 1)/N
    vectors.""",
    (
        "        n = self.world_size\n"
        "        return sent.to(grad.dtype), 2 * (n - 1) / n * sent.numel() * sent.itemsize\n",
        "        return sent.to(grad.dtype), 2 * sent.numel() * sent.itemsize\n",
    ),
    breaks=tests_of(BENCHMARK),
)

bytes_of_the_gradient_on_the_wire = edit(
    BENCHMARK,
    """Your all-reduce in 16 bits reported 4 bytes for each number. Count the dtype that is sent, not that of the
    gradient.""",
    ("sent.numel() * sent.itemsize", "grad.numel() * grad.itemsize"),
    breaks=tests_of(BENCHMARK),
)

rounds_after_the_sum = edit(
    BENCHMARK,
    """You all-reduced the gradient in its own dtype and rounded it to 16 bits afterwards. That loses precision and
    saves nothing: convert before you send.""",
    (
        "        sent = grad.clone() if self.dtype is None else grad.to(self.dtype)\n"
        "        sent /= self.world_size  # before the sum, so that fp16 cannot overflow in it\n"
        "        dist.all_reduce(sent)\n"
        "        n = self.world_size\n",
        "        n, total = self.world_size, grad / self.world_size\n"
        "        dist.all_reduce(total)\n"
        "        sent = total.to(self.dtype or grad.dtype)\n",
    ),
    breaks=tests_of(BENCHMARK),
)

all_reduces_the_gradient_itself = edit(
    BENCHMARK,
    """Your all-reduce wrote the mean into the gradient that it was given, which must stay as it was. Reduce a copy.""",
    ("grad.clone()", "grad"),
    breaks=tests_of(BENCHMARK),
)

exchange_never_remembers = edit(
    BENCHMARK,
    """You made a new ErrorFeedback in every step, so nothing was ever carried over. Make one that lives as long as the
    exchange.""",
    (
        "values, indices = self.feedback.compress(0, grad) if self.feedback else top_k_compress(grad, self.ratio)",
        "values, indices = (\n"
        "            ErrorFeedback(self.ratio).compress(0, grad) if self.feedback else top_k_compress(grad, "
        "self.ratio)\n"
        "        )",
    ),
    breaks=tests_of(BENCHMARK),
)

benchmark_on_all_rows = edit(
    BENCHMARK,
    """Every rank computed the gradient on all rows, so all ranks do the same work and tell each other nothing new. Rank
    r has the rows r, r + N, r + 2N and so on.""",
    ("rank, None, world_size", "None"),
    breaks=tests_of(BENCHMARK),
)

benchmark_divides_again = edit(
    BENCHMARK,
    """You divided by the number of ranks although exchange had already averaged, which makes the learning rate N times
    too small. Use the mean as it is.""",
    ("mean.double().numpy()", "mean.double().numpy() / world_size"),
    breaks=tests_of(BENCHMARK),
)


@mutant(BENCHMARK, breaks=tests_of(BENCHMARK))
def benchmark_carries_weights_over():
    """Your second strategy started where the first one ended, so the last one always wins. Start every strategy at w =
    0."""

    class AllReduceExchange:
        def __init__(self, rank, world_size, dtype=None):
            self.world_size, self.dtype = world_size, dtype

        def __call__(self, grad):
            sent = grad.clone() if self.dtype is None else grad.to(self.dtype)
            sent /= self.world_size
            dist.all_reduce(sent)
            n = self.world_size
            return sent.to(grad.dtype), 2 * (n - 1) / n * sent.numel() * sent.itemsize

    class TopKExchange:
        def __init__(self, rank, world_size, ratio, feedback=True):
            self.world_size, self.ratio = world_size, ratio
            self.feedback = ErrorFeedback(ratio) if feedback else None

        def __call__(self, grad):
            n = self.world_size
            values, indices = self.feedback.compress(0, grad) if self.feedback else top_k_compress(grad, self.ratio)
            all_values, all_indices = ([torch.empty_like(own) for _ in range(n)] for own in (values, indices))
            dist.all_gather(all_values, values)
            dist.all_gather(all_indices, indices)
            total = sum(top_k_decompress(v, i, grad.shape) for v, i in zip(all_values, all_indices, strict=True))
            return total / n, (n - 1) * (values.nbytes + indices.nbytes)

    def benchmark(strategies, x, y, world_size=4, steps=60, lr=0.5):
        start = np.zeros(x.shape[1])

        def train(rank, world_size, factory):
            mine, exchange, w, sent = slice(rank, None, world_size), factory(rank, world_size), start, 0.0
            begin = perf_counter()
            for _ in range(steps):
                grad = torch.from_numpy(logistic_gradient(x[mine], y[mine], w)).float()
                mean, nbytes = exchange(grad)
                w, sent = w - lr * mean.double().numpy(), sent + nbytes
            return w, sent / steps, steps / (perf_counter() - begin)

        rows, best = [], converged_loss(x, y)
        for name, factory in strategies.items():
            weights, sent, speed = zip(*ranks.run(train, world_size, (factory,)), strict=True)
            start = weights[0]
            row = {"name": name, "bytes_per_step": max(sent), "steps_per_second": min(speed), "weights": weights[0]}
            gap, auc = logistic_loss(x, y, weights[0]) - best, roc_auc_score(y, x @ weights[0])
            rows.append({**row, "loss_gap": gap, "auc": auc})
        return rows


benchmark_counts_all_steps = edit(
    BENCHMARK,
    """Your bytes_per_step is the sum over all steps. Divide it by their number.""",
    ("sent / steps", "sent"),
    breaks=tests_of(BENCHMARK),
)

benchmark_asks_rank_0 = edit(
    BENCHMARK,
    """Your bytes_per_step is what rank 0 reported. Ranks may differ, and a step waits for the one that sends most: take
    the maximum.""",
    ("max(sent)", "sent[0]"),
    breaks=tests_of(BENCHMARK),
)

gap_to_the_start = edit(
    BENCHMARK,
    """Your loss_gap is how far the loss has come from the start. It should be how far it still has to go: the loss at
    the end minus the smallest possible one.""",
    ("rows, best = [], converged_loss(x, y)", "rows, first = [], logistic_loss(x, y, np.zeros(x.shape[1]))"),
    ("logistic_loss(x, y, weights[0]) - best", "first - logistic_loss(x, y, weights[0])"),
    breaks=tests_of(BENCHMARK),
)

gap_on_one_shard = edit(
    BENCHMARK,
    """You computed the loss gap on the rows of rank 0. Compute loss and AUC on all rows.""",
    (
        "        gap, auc = logistic_loss(x, y, weights[0]) - best, roc_auc_score(y, x @ weights[0])\n",
        "        gap, auc = (\n"
        "            logistic_loss(x[::world_size], y[::world_size], weights[0]) - best,\n"
        "            roc_auc_score(y, x @ weights[0]),\n"
        "        )\n",
    ),
    breaks=tests_of(BENCHMARK),
)

auc_of_decisions = edit(
    BENCHMARK,
    """You computed the AUC of yes-or-no decisions. The AUC depends on the order of the scores: pass Xw itself.""",
    ("(y, x @ weights[0])", "(y, x @ weights[0] > 0)"),
    breaks=tests_of(BENCHMARK),
)
