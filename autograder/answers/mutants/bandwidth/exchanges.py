"""Wrong answers to lesson 07, exercises 3 and 4."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

POWER, INT8 = "07-ex3-power-sgd", "07-ex4-int8"


# ---- 3 · PowerSGD ----


power_forgets_what_it_owes = edit(
    POWER,
    """You did not add the residual to the next gradient. What the thin matrices cannot hold is then lost in each
    step.""",
    ("        corrected = grad + self.residual\n", "        corrected = grad.clone()\n"),
    breaks=tests_of(POWER),
)

power_owes_the_last_gradient_only = edit(
    POWER,
    """Your residual is only what M lacks of this gradient, without what was owed before. Subtract M from the gradient
    plus the old residual.""",
    ("self.residual = corrected - mean", "self.residual = grad - mean"),
    breaks=tests_of(POWER),
)

power_owes_what_it_has_returned = edit(
    POWER,
    """You keep the M that you return, and subtract it only in the next call. A caller that scales M in place then
    changes what you owe. Subtract M at once, or keep a copy.""",
    ("corrected = grad + self.residual", "corrected = grad + (self.residual[0] - self.residual[1])"),
    ("self.residual = 0.0", "self.residual = 0.0, 0.0"),
    ("self.residual = corrected - mean", "self.residual = corrected, mean"),
    breaks=tests_of(POWER),
)

power_starts_cold = edit(
    POWER,
    """You began each step with the first q. The Q of the previous step is the better start: it points to where the
    gradient was large.""",
    (
        "        self.q = corrected.T @ p\n        dist.all_reduce(self.q)\n        self.q /= n\n",
        "        q = corrected.T @ p\n        dist.all_reduce(q)\n        q /= n\n",
    ),
    ("mean = p @ self.q.T", "mean = p @ q.T"),
    breaks=tests_of(POWER),
)

power_is_not_orthonormal = edit(
    POWER,
    """You multiplied by P without making its columns orthonormal. P Pᵀ C is then not a projection of C: it is too large
    by the squared lengths of the columns.""",
    ("p = torch.linalg.qr(p / n).Q", "p = p / n"),
    breaks=tests_of(POWER),
)

power_normalizes_the_columns_only = edit(
    POWER,
    """You gave the columns of P length 1, but left them at an angle. What lies in two of them is then counted twice.
    They must be orthogonal, too.""",
    ("p = torch.linalg.qr(p / n).Q", "p = p / p.norm(dim=0)"),
    breaks=tests_of(POWER),
)

power_makes_a_basis_of_its_own = edit(
    POWER,
    """Each rank made its own P orthonormal before the mean was taken. The mean of orthonormal matrices is not
    orthonormal, and it is not the product of the mean gradient with q: all-reduce first.""",
    (
        "        dist.all_reduce(p)\n        p = torch.linalg.qr(p / n).Q\n",
        "        p = torch.linalg.qr(p).Q\n        dist.all_reduce(p)\n        p /= n\n",
    ),
    breaks=tests_of(POWER),
)

power_returns_the_sum = edit(
    POWER,
    """You did not divide Q by the number of ranks, so your result is the sum of the ranks' gradients, not their
    mean.""",
    ("        self.q /= n\n", ""),
    breaks=tests_of(POWER),
)

power_keeps_q_to_itself = edit(
    POWER,
    """You did not all-reduce Q. P is then the same on all ranks, but each rank has its own Q, and so its own
    result.""",
    ("        dist.all_reduce(self.q)\n        self.q /= n\n", ""),
    breaks=tests_of(POWER),
)

power_sends_the_whole_gradient = edit(
    POWER,
    """Your numbers are right, but you all-reduced the whole gradient, which saves nothing. The products are linear:
    send the products, not the gradient.""",
    (
        "        p = corrected @ self.q\n"
        "        dist.all_reduce(p)\n"
        "        p = torch.linalg.qr(p / n).Q\n"
        "        self.q = corrected.T @ p\n"
        "        dist.all_reduce(self.q)\n"
        "        self.q /= n\n",
        "        total = corrected.clone()\n"
        "        dist.all_reduce(total)\n"
        "        p = torch.linalg.qr(total @ self.q).Q\n"
        "        self.q = total.T @ p / n\n",
    ),
    breaks=tests_of(POWER),
    fails=["low_rank_sends_thin_matrices"],
)

power_adds_into_the_gradient = edit(
    POWER,
    """You added the residual to the caller's gradient in place. The caller's gradient must stay as it was: make a new
    tensor.""",
    ("        corrected = grad + self.residual\n", "        grad += self.residual\n        corrected = grad.clone()\n"),
    breaks=tests_of(POWER),
    fails=["low_rank_leaves_inputs_alone"],
)

power_writes_into_q = edit(
    POWER,
    """You kept the caller's q and wrote the new Q into it. Keep a copy.""",
    ("self.q = q.clone()", "self.q = q"),
    ("        self.q = corrected.T @ p\n", "        self.q.copy_(corrected.T @ p)\n"),
    breaks=tests_of(POWER),
    fails=["low_rank_leaves_inputs_alone"],
)


# ---- 4 · quantize, all_reduce_int8 ----


int8_keeps_its_own_chunk_exact = edit(
    INT8,
    """The owner of a chunk used the exact mean, the others used the rounded one. The ranks' weights then drift apart.
    Use the rounded mean everywhere.""",
    (
        "    return torch.cat([q * scale for q, scale in zip(all_q, all_scales)])\n",
        "    chunks = [q * scale for q, scale in zip(all_q, all_scales)]\n"
        "    chunks[dist.get_rank()] = mean\n"
        "    return torch.cat(chunks)\n",
    ),
    breaks=tests_of(INT8),
)

int8_one_scale_for_all_chunks = edit(
    INT8,
    """You quantized the whole gradient with one scale. A chunk of small numbers next to a chunk of large ones is then
    rounded to nothing: each chunk needs its own scale.""",
    ("(torch.cat(parts) for parts in zip(*(quantize(chunk) for chunk in grad.chunk(n))))", "quantize(grad)"),
    ("    got, got_scales", "    scales = scales.repeat(n)\n    got, got_scales"),
    breaks=tests_of(INT8),
)

int8_adds_steps_of_different_sizes = edit(
    INT8,
    """You averaged the integers and multiplied by the mean scale. A step of one rank is not as large as a step of
    another: multiply each rank's integers by its own scale, then add.""",
    (
        "(got.view(n, -1) * got_scales.view(n, 1)).mean(dim=0)",
        "got.view(n, -1).float().mean(dim=0) * got_scales.mean()",
    ),
    breaks=tests_of(INT8),
)

int8_adds_in_eight_bits = edit(
    INT8,
    """You added the integers as int8, where 100 + 100 is −56. Convert to float32 before you add.""",
    (
        "(got.view(n, -1) * got_scales.view(n, 1)).mean(dim=0)",
        "got.view(n, -1).sum(dim=0, dtype=torch.int8) * got_scales.mean() / n",
    ),
    breaks=tests_of(INT8),
)

int8_returns_the_sum = edit(
    INT8,
    """You returned the sum over the ranks, not the mean.""",
    (".mean(dim=0)\n", ".sum(dim=0)\n"),
    breaks=tests_of(INT8),
)

int8_takes_the_wrong_scales = edit(
    INT8,
    """You multiplied what came from the others by the scales of your own chunks. Each rank's integers belong to that
    rank's scale, so the scales have to travel, too.""",
    ("got_scales.view(n, 1)", "scales.view(n, 1)"),
    breaks=tests_of(INT8),
)

int8_gathers_the_exact_mean = edit(
    INT8,
    """The second half sent the mean in float32, four bytes for each number. Quantize the mean again, and send the
    integers.""",
    (
        "    q, scale = quantize(mean)\n"
        "    all_q, all_scales = ([torch.empty_like(own) for _ in range(n)] for own in (q, scale))\n"
        "    dist.all_gather(all_q, q)\n"
        "    dist.all_gather(all_scales, scale)\n"
        "    return torch.cat([q * scale for q, scale in zip(all_q, all_scales)])\n",
        "    chunks = [torch.empty_like(mean) for _ in range(n)]\n"
        "    dist.all_gather(chunks, mean)\n"
        "    return torch.cat(chunks)\n",
    ),
    breaks=tests_of(INT8),
)

int8_sends_floats = edit(
    INT8,
    """Your numbers are right, but the rounded numbers travelled as float32: four bytes each. Send int8.""",
    ("torch.empty_like(q), torch.empty_like(scales)", "torch.empty(q.shape), torch.empty_like(scales)"),
    ("dist.all_to_all_single(got, q)", "dist.all_to_all_single(got, q.float())"),
    breaks=tests_of(INT8),
    fails=["int8_sends_bytes"],
)

quantize_cuts_off = edit(
    INT8,
    """You cut the fraction off instead of rounding to the nearest. Every number then moves towards zero: a bias, which
    does not average out.""",
    ("steps.round().to(torch.int8)", "steps.to(torch.int8)"),
    breaks=tests_of(INT8),
)

quantize_ignores_negative_numbers = edit(
    INT8,
    """You took the largest number, not the largest magnitude. A large negative number then needs more than 127 steps,
    and wraps around.""",
    ("x.abs().max()", "x.max()"),
    breaks=tests_of(INT8),
)

quantize_by_128 = edit(
    INT8,
    """You divided by 128. The largest number is then 128 steps, and int8 ends at 127: it wraps around to −128.""",
    ("/ 127", "/ 128"),
    breaks=tests_of(INT8),
)

int8_gathers_everything = edit(
    INT8,
    """You gathered everybody's whole gradient instead of sending each chunk to its owner. In a ring each byte of an
    all-gather travels N − 1 times, in an all-to-all at most once.""",
    (
        "    dist.all_to_all_single(got, q)\n    dist.all_to_all_single(got_scales, scales)\n",
        "    for mine, part in ((got, q), (got_scales, scales)):\n"
        "        rows = [torch.empty_like(part) for _ in range(n)]\n"
        "        dist.all_gather(rows, part)\n"
        "        mine.copy_(torch.cat([row.view(n, -1)[dist.get_rank()] for row in rows]))\n",
    ),
    breaks=tests_of(INT8),
    fails=["int8_sends_bytes"],
)

quantize_has_a_smallest_scale = edit(
    INT8,
    """You gave the scale a smallest value, to avoid dividing by 0. Gradients of 1e-8 are common, and with your smallest
    scale all their entries become zeros. Treat only a scale of exactly 0 separately.""",
    ("x.abs().max().reshape(1) / 127", "(x.abs().max().reshape(1) / 127).clamp(min=1e-6)"),
    breaks=tests_of(INT8),
    fails=["quantize_is_within_half_a_step"],
)

quantize_takes_tiny_scales_for_zero = edit(
    INT8,
    """You treated every scale below a bound as 0, so tiny gradients become zeros. float32 reaches down to 1e-38: treat
    only a scale of exactly 0 separately.""",
    ("scale > 0", "scale > 1e-12"),
    breaks=tests_of(INT8),
    fails=["quantize_is_within_half_a_step"],
)

quantize_returns_a_number = edit(
    INT8,
    """Your scale has no dimension, so scales cannot be joined by torch.cat. The statement asks for shape (1,).""",
    ("x.abs().max().reshape(1) / 127", "x.abs().max() / 127"),
    breaks=tests_of(INT8),
)

power_leaves_large_gradients_alone = edit(
    POWER,
    """You returned large gradients unchanged, without sending anything. The ranks' weights then drift apart: average
    every gradient.""",
    (
        "        n = dist.get_world_size()\n        corrected",
        "        n = dist.get_world_size()\n"
        "        if grad.numel() > 100:\n            return grad.clone()\n        corrected",
    ),
    breaks=tests_of(POWER),
    fails=["low_rank_sends_thin_matrices"],
)

int8_leaves_long_gradients_alone = edit(
    INT8,
    """You returned long gradients unchanged, without sending anything. The ranks' weights then drift apart: average
    every gradient.""",
    (
        "    n = dist.get_world_size()\n    q, scales",
        "    n = dist.get_world_size()\n    if len(grad) > 1000:\n        return grad.clone()\n    q, scales",
    ),
    breaks=tests_of(INT8),
    fails=["int8_sends_bytes"],
)
