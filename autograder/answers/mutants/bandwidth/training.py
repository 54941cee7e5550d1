"""Wrong answers to lesson 07, exercises 5 and 6."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

SCALER, BENCHMARK = "07-ex5-loss-scaler", "07-ex6-benchmark"


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
    fails=["scaler_keeps_small_gradients"],
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
    fails=["scaler_skips_whatever_is_not_finite"],
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
    fails=["scaler_passes_none_on"],
)

scaler_turns_none_into_zeros = edit(
    SCALER,
    """For a parameter without a gradient you gave its master a gradient of zeros. With momentum or weight decay the
    optimizer then still moves it: None must stay None.""",
    ("master.grad = None if", "master.grad = torch.zeros_like(master) if"),
    breaks=tests_of(SCALER),
    fails=["scaler_passes_none_on"],
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
    fails=["scaler_scales_in_fp32"],
)


# ---- 6 · benchmark ----


bytes_of_the_dense_vector = edit(
    BENCHMARK,
    """Your top-k reported the bytes of the whole gradient. Count what is sent: the values and the indices.""",
    ("(values.nbytes + indices.nbytes)", "grad.nbytes"),
    breaks=tests_of(BENCHMARK),
    fails=["top_k_exchange_is_a_mean_of_what_was_sent"],
)

bytes_without_indices = edit(
    BENCHMARK,
    """Your top-k reported the bytes of its values alone. The indices are sent, too, and with float32 values they make
    up two thirds.""",
    ("(values.nbytes + indices.nbytes)", "values.nbytes"),
    breaks=tests_of(BENCHMARK),
    fails=["top_k_exchange_is_a_mean_of_what_was_sent"],
)

bytes_of_int32_indices = edit(
    BENCHMARK,
    """You counted 4 bytes for each index. The indices that are sent are int64, 8 bytes each.""",
    ("indices.nbytes", "4 * len(indices)"),
    breaks=tests_of(BENCHMARK),
    fails=["top_k_exchange_is_a_mean_of_what_was_sent"],
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
    fails=["top_k_exchange_is_a_mean_of_what_was_sent"],
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
    fails=["all_reduce_exchange_is_a_mean"],
)

bytes_of_the_gradient_on_the_wire = edit(
    BENCHMARK,
    """Your all-reduce in 16 bits reported 4 bytes for each number. Count the dtype that is sent, not that of the
    gradient.""",
    ("sent.numel() * sent.itemsize", "grad.numel() * grad.itemsize"),
    breaks=tests_of(BENCHMARK),
    fails=["all_reduce_exchange_is_a_mean"],
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
    fails=["all_reduce_exchange_is_a_mean"],
)

all_reduces_the_gradient_itself = edit(
    BENCHMARK,
    """Your all-reduce wrote the mean into the gradient that it was given, which must stay as it was. Reduce a copy.""",
    ("grad.clone()", "grad"),
    breaks=tests_of(BENCHMARK),
    fails=["all_reduce_exchange_is_a_mean"],
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
    fails=["top_k_exchange_is_a_mean_of_what_was_sent", "feedback_ends_nearer"],
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
    fails=["benchmark_reports_bytes_and_loss"],
)

benchmark_asks_rank_0 = edit(
    BENCHMARK,
    """Your bytes_per_step is what rank 0 reported. Ranks may differ, and a step waits for the one that sends most: take
    the maximum.""",
    ("max(sent)", "sent[0]"),
    breaks=tests_of(BENCHMARK),
    fails=["benchmark_reports_bytes_and_loss"],
)

gap_to_the_start = edit(
    BENCHMARK,
    """Your loss_gap is how far the loss has come from the start. It should be how far it still has to go: the loss at
    the end minus the smallest possible one.""",
    ("rows, best = [], converged_loss(x, y)", "rows, first = [], logistic_loss(x, y, np.zeros(x.shape[1]))"),
    ("logistic_loss(x, y, weights[0]) - best", "first - logistic_loss(x, y, weights[0])"),
    breaks=tests_of(BENCHMARK),
    fails=["benchmark_reports_bytes_and_loss", "feedback_ends_nearer"],
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
    fails=["benchmark_reports_bytes_and_loss"],
)

auc_of_decisions = edit(
    BENCHMARK,
    """You computed the AUC of yes-or-no decisions. The AUC depends on the order of the scores: pass Xw itself.""",
    ("(y, x @ weights[0])", "(y, x @ weights[0] > 0)"),
    breaks=tests_of(BENCHMARK),
    fails=["benchmark_reports_bytes_and_loss"],
)
