"""Wrong answers to lesson 07, exercises 1 and 2."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

TOP_K, FEEDBACK = "07-ex1-top-k", "07-ex2-error-feedback"


# ---- 1 · top_k_compress, top_k_decompress ----


_top_k = edit(
    TOP_K,
    """Right, with a shorter message: the base of the edits below.""",
    ("; got {indices.tolist()}", ""),
)

top_k_counts_in_memory_order = edit(
    TOP_K,
    """Your indices count the elements in memory order. For a transposed matrix, this order differs from that of
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
    breaks=tests_of(TOP_K, FEEDBACK),
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
    """You rounded ratio · numel up, which sends one entry too many wherever the product is not a whole number. Round
    down, but never to less than one.""",
    (
        "k = min(flat.numel(), max(1, math.floor(ratio * flat.numel())))",
        "k = min(flat.numel(), math.ceil(ratio * flat.numel()))",
    ),
    base=_top_k,
    breaks=tests_of(TOP_K),
)

top_k_rounds_to_the_nearest = edit(
    TOP_K,
    """You rounded ratio · numel to the nearest whole number, which sends one entry too many where the fraction
    is more than one half. Round down, but keep at least one.""",
    (
        "k = min(flat.numel(), max(1, math.floor(ratio * flat.numel())))",
        "k = min(flat.numel(), max(1, round(ratio * flat.numel())))",
    ),
    base=_top_k,
    breaks=tests_of(TOP_K),
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
    breaks=tests_of(TOP_K, FEEDBACK),
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
    breaks=tests_of(TOP_K, FEEDBACK),
)

top_k_takes_ratio_zero = edit(
    TOP_K,
    """You accepted a ratio of 0. The interval (0, 1] contains 1, but not 0.""",
    ("not 0 < ratio", "not 0 <= ratio"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["top_k_refuses_a_ratio"],
)


top_k_trusts_the_ratio_of_nothing = edit(
    TOP_K,
    """For an empty gradient you return before you look at the ratio, so a wrong ratio goes unnoticed. Check the
    arguments first.""",
    ("    if not 0 < ratio <= 1:", "    if grad.numel() and not 0 < ratio <= 1:"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["top_k_refuses_a_ratio"],
)

top_k_compares_in_float32 = edit(
    TOP_K,
    """You compared the magnitudes in float32. Float64 numbers that differ only in their later digits become equal in
    float32. Compare magnitudes in their own dtype.""",
    ("flat.abs().topk(k)", "flat.float().abs().topk(k)"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["top_k_takes_the_largest"],
)

top_k_compares_squares = edit(
    TOP_K,
    """You chose the entries by their squares. A square leaves the range of the dtype long before the number itself
    does: 300² is infinite in float16, and the square of 1e-30 is 0 in float32. Compare magnitudes.""",
    ("flat.abs().topk(k)", "flat.square().topk(k)"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["top_k_takes_the_largest"],
)

decompress_in_float32 = edit(
    TOP_K,
    """torch.zeros makes float32 zeros. Written into them, float64 values lose half of their digits, and float16 values
    come back in a dtype that is not the gradient's. Make the zeros in the dtype of the values.""",
    ("flat = values.new_zeros(numel)", "flat = torch.zeros(numel)"),
    ("flat[indices] = values", "flat[indices] = values.float()"),
    base=_top_k,
    breaks=tests_of(TOP_K, FEEDBACK),
    fails=["decompress_puts_values_back"],
)

decompress_counts_backwards = edit(
    TOP_K,
    """You accepted a negative index. Python and torch take −1 for the last element, but −1 lies outside 0…numel − 1,
    and it is a sign of an earlier mistake: raise the ValueError.""",
    ("0 <= indices.min() <= indices.max()", "indices.max()"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["decompress_refuses_what_does_not_fit"],
)

decompress_trusts_a_single_index = edit(
    TOP_K,
    """You checked the indices only where there are several of them. A single index can be wrong, too.""",
    ("(len(indices) and not", "(len(indices) > 1 and not"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["decompress_refuses_what_does_not_fit"],
)

decompress_counts_an_empty_dimension_as_one = edit(
    TOP_K,
    """For a shape with a dimension of 0 you counted at least one place, and accepted an index. Such a shape has no
    places.""",
    ("numel = math.prod(shape)", "numel = math.prod(max(length, 1) for length in shape)"),
    ("return flat.reshape(shape)", "return flat[: math.prod(shape)].reshape(shape)"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["decompress_refuses_what_does_not_fit"],
)

decompress_stretches_a_value = edit(
    TOP_K,
    """You wrote one value to several places: assigning a tensor with a single element fills all indexed places, so you
    did not notice that there were fewer values than indices. Compare the lengths.""",
    (
        "len(values) != len(indices) or (len(indices) and not 0 <= indices.min() <= indices.max() < numel)",
        "len(indices) and not 0 <= indices.min() <= indices.max() < numel",
    ),
    ("flat[indices] = values", "flat[indices[: len(values)] if len(values) > 1 else indices] = values[: len(indices)]"),
    base=_top_k,
    breaks=tests_of(TOP_K),
    fails=["decompress_refuses_what_does_not_fit"],
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
    breaks=tests_of(FEEDBACK),
)

feedback_forgets_what_is_older = edit(
    FEEDBACK,
    """Your residual is only the unsent part of this gradient, so the unsent rest of earlier steps is lost. Compute the
    residual from what you compressed: the gradient plus the old residual.""",
    ("self.residual[key] = corrected", "self.residual[key] = grad"),
    breaks=tests_of(FEEDBACK),
)

feedback_keeps_what_was_sent = edit(
    FEEDBACK,
    """You kept the part that was sent and forgot the rest; it should be the other way round. In your version the large
    entries are sent again and again, and grow.""",
    ("corrected - top_k_decompress(values, indices, grad.shape)", "top_k_decompress(values, indices, grad.shape)"),
    breaks=tests_of(FEEDBACK),
)

feedback_is_never_added = edit(
    FEEDBACK,
    """You store the residual, but never add it to the next gradient: this is plain top-k. Compress the gradient
    together with the residual.""",
    ("corrected = grad + self.residual.get(key, torch.zeros_like(grad))", "corrected = grad.clone()"),
    breaks=tests_of(FEEDBACK),
)

feedback_adds_only_after_choosing = edit(
    FEEDBACK,
    """You chose the entries by the gradient alone and added the residual to the chosen ones. An entry that is small in
    every gradient is then never sent, however large its residual becomes. Add first, then choose.""",
    (
        "        values, indices = top_k_compress(corrected, self.ratio)\n",
        "        _, indices = top_k_compress(grad, self.ratio)\n        values = corrected.reshape(-1)[indices]\n",
    ),
    breaks=tests_of(FEEDBACK),
)


@mutant(FEEDBACK, breaks=tests_of(FEEDBACK))
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
    breaks=tests_of(FEEDBACK),
)
