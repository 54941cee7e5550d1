"""Wrong answers to lesson 08, exercise 7."""

# The names that an answer does not define are the notebook's.

from __future__ import annotations

from autograder.answers.mutants import edit, tests_of

BUCKETS = "08-ex7-buckets"
PEAK, MEMORY, ORDER = "the_peak_is_predicted", "buckets_hold_no_more_than_predicted", "missing_gradients_keep_the_order"

means_are_sums = edit(
    BUCKETS,
    """Your shards are sums over the ranks. Divide by N: the optimizer steps with the mean.""",
    ("        shard /= self.n\n", ""),
    breaks=tests_of(BUCKETS),
)

shards_pile_up = edit(
    BUCKETS,
    """finish() returned the shards but kept them. In the next backward all buckets already count as reduced, and
    finish() returns the old gradients again. Forget the shards.""",
    ("        self.reset()\n        return shards\n", "        return shards\n"),
    breaks=tests_of(BUCKETS),
)

buffers_have_the_parameters_dtype = edit(
    BUCKETS,
    """Your buffers have the parameters' dtype. With bf16 parameters the sum over the ranks is rounded to 8 bits. Copy
    the gradients into float32 buffers.""",
    (
        "self.buffers[k] = torch.zeros(self.n * -(-sum(p.numel() for p in self.buckets[k]) // self.n))",
        "size = self.n * -(-sum(p.numel() for p in self.buckets[k]) // self.n)\n"
        "            self.buffers[k] = torch.zeros(size, dtype=self.buckets[k][0].dtype)",
    ),
    ("shard = torch.empty(len(full) // self.n)", "shard = torch.empty(len(full) // self.n, dtype=full.dtype)"),
    breaks=tests_of(BUCKETS),
)

gradients_stay_in_p_grad = edit(
    BUCKETS,
    """You copied the gradient, but p.grad still holds it. Then every gradient of the model is alive at the end of
    backward, next to your shards. Set p.grad to None.""",
    ("        p.grad = None\n", ""),
    breaks=tests_of(BUCKETS),
)

gradients_are_added_to_the_buffer_of_the_last_backward = edit(
    BUCKETS,
    """You keep the buffers for the next backward. If a parameter then gets no gradient, the old one is still in the
    buffer, and the memory of all buffers stays in use. Forget a buffer once it is reduced.""",
    ("        del self.buffers[len(self.shards)]\n", ""),
    ("self.shards, self.buffers, self.missing = [], {}, ", "self.shards, self.missing = [], "),
    ("        self.reset()\n\n    def reset", "        self.buffers = {}\n        self.reset()\n\n    def reset"),
    breaks=tests_of(BUCKETS),
    fails=[MEMORY, ORDER],
)

all_is_reduced_in_finish = edit(
    BUCKETS,
    """You reduced all buckets in finish(). The numbers are right, but at the end of backward all buffers are alive, and
    together they take as many bytes as all gradients. Reduce a bucket when its last gradient arrives.""",
    (
        "        while len(self.shards) < len(self.buckets) and not self.missing[len(self.shards)]:\n"
        "            self.reduce_next()\n"
        "\n",
        "\n",
    ),
    breaks=tests_of(BUCKETS),
    fails=[MEMORY],
)

all_buffers_are_made_at_once = edit(
    BUCKETS,
    """All buffers exist from the start of backward. Together they take as many bytes as all gradients. Make a bucket's
    buffer when its first gradient arrives.""",
    (
        "        self.buffer(k)[at",
        "        for j in range(len(self.shards), len(self.buckets)):\n"
        "            self.buffer(j)\n"
        "        self.buffer(k)[at",
    ),
    breaks=tests_of(BUCKETS),
    fails=[MEMORY],
)

buffers_are_made_with_the_object = edit(
    BUCKETS,
    """You made the buffers of all buckets when the object was built, and again in finish(). Together they take as many
    bytes as all gradients, and they stay alive during forward, too. Make a bucket's buffer when its first gradient
    arrives.""",
    (
        "[len(bucket) for bucket in self.buckets]\n",
        "[len(bucket) for bucket in self.buckets]\n"
        "        for index in range(len(self.buckets)):\n"
        "            self.buffer(index)\n",
    ),
    breaks=tests_of(BUCKETS),
    fails=[MEMORY],
)

buffers_for_the_next_backward_are_made_in_finish = edit(
    BUCKETS,
    """Your finish() already made the buffers for the next backward. Between two steps they take as many bytes as all
    gradients. Make a bucket's buffer when its first gradient arrives.""",
    (
        "        self.reset()\n        return shards\n",
        "        self.reset()\n"
        "        for index in range(len(self.buckets)):\n"
        "            self.buffer(index)\n"
        "        return shards\n",
    ),
    breaks=tests_of(BUCKETS),
    fails=[MEMORY],
)

shards_are_views_of_their_buffers = edit(
    BUCKETS,
    """Your shard is a slice of the bucket's buffer, and so the whole buffer stays alive as long as the shard. Give the
    shard memory of its own.""",
    ("        shard = torch.empty(len(full) // self.n)\n", "        shard = full[: len(full) // self.n]\n"),
    ("        dist.reduce_scatter_single(shard, full)\n", "        dist.reduce_scatter_single(shard, full.clone())\n"),
    breaks=tests_of(BUCKETS),
    fails=[MEMORY],
)

the_last_gradient_waits_in_a_list = edit(
    BUCKETS,
    """You kept the gradients of a bucket until it was complete, and only then copied them into the buffer. All
    gradients of a bucket and its buffer are then alive together. Copy each gradient into the buffer when it
    arrives.""",
    (
        "        self.buffer(k)[at : at + p.numel()] = p.grad.reshape(-1)\n        p.grad = None\n",
        '        self.waiting = getattr(self, "waiting", {})\n'
        "        self.waiting[k, at] = p.grad\n"
        "        p.grad = None\n",
    ),
    (
        "        full = self.buffer(len(self.shards))\n",
        "        full = self.buffer(len(self.shards))\n"
        '        for k, at in [place for place in getattr(self, "waiting", {}) if place[0] == len(self.shards)]:\n'
        "            full[at : at + self.waiting[k, at].numel()] = self.waiting[k, at].reshape(-1)\n"
        '        for place in [place for place in getattr(self, "waiting", {}) if place[0] == len(self.shards)]:\n'
        "            del self.waiting[place]\n",
    ),
    breaks=tests_of(BUCKETS),
    fails=[MEMORY],
)

complete_buckets_do_not_wait = edit(
    BUCKETS,
    """You reduced a complete bucket at once, although an earlier bucket was not yet reduced. On a rank where a gradient
    is missing, the reduce-scatters then come in a different order than on the other ranks, and gradients of different
    buckets are added up. A bucket must wait for those before it.""",
    (
        "self.shards, self.buffers, self.missing = [], {}, ",
        "self.shards, self.buffers, self.missing, self.done = [], {}, ",
    ),
    ("[len(bucket) for bucket in self.buckets]\n", "[len(bucket) for bucket in self.buckets], {}\n"),
    (
        "        while len(self.shards) < len(self.buckets) and not self.missing[len(self.shards)]:\n"
        "            self.reduce_next()\n",
        "        if not self.missing[k]:\n            self.reduce_next(k)\n",
    ),
    (
        "    def reduce_next(self):\n        full = self.buffer(len(self.shards))\n",
        "    def reduce_next(self, k):\n        full = self.buffer(k)\n",
    ),
    (
        "        del self.buffers[len(self.shards)]\n        self.shards.append(shard)\n",
        "        del self.buffers[k]\n        self.done[k] = shard\n",
    ),
    (
        "        while len(self.shards) < len(self.buckets):\n"
        "            self.reduce_next()\n"
        "        shards = self.shards\n",
        "        for k in range(len(self.buckets)):\n"
        "            if k not in self.done:\n"
        "                self.reduce_next(k)\n"
        "        shards = [self.done[k] for k in range(len(self.buckets))]\n",
    ),
    breaks=tests_of(BUCKETS),
    fails=[ORDER],
)

unfinished_buckets_are_left_out = edit(
    BUCKETS,
    """finish() returned only what backward had reduced. A bucket with a missing gradient is never complete, so its
    shard is missing, and so are those of all later buckets. Reduce what is left, with zeros for the missing
    gradients.""",
    ("        while len(self.shards) < len(self.buckets):\n            self.reduce_next()\n", ""),
    breaks=tests_of(BUCKETS),
    fails=[ORDER],
)

whole_buckets_are_all_reduced = edit(
    BUCKETS,
    """You all-reduced each bucket and cut out your shard. The shard is right, but each bucket costs twice the bytes of
    a reduce-scatter.""",
    (
        "        dist.reduce_scatter_single(shard, full)\n",
        "        dist.all_reduce(full)\n        shard.copy_(full.view(self.n, -1)[dist.get_rank()])\n",
    ),
    breaks=tests_of(BUCKETS),
    fails=["each_bucket_is_one_reduce_scatter"],
)

the_peak_has_no_shards = edit(
    BUCKETS,
    """peak_bytes leaves out the shards of the buckets that were reduced before. With few ranks they are a large part of
    the peak.""",
    ("        kept += shard\n", ""),
    breaks=tests_of(BUCKETS),
    fails=[PEAK],
)

the_peak_has_no_padding = edit(
    BUCKETS,
    """peak_bytes counts only B numbers for a bucket's buffer. The buffer is padded to N⌈B/N⌉ numbers, which is much
    more where a bucket is smaller than the number of ranks.""",
    ("kept + world_size * shard + max(*sizes, shard)", "kept + sum(sizes) + max(*sizes, shard)"),
    breaks=tests_of(BUCKETS),
    fails=[PEAK],
)

the_peak_has_no_gradient = edit(
    BUCKETS,
    """peak_bytes leaves out the gradient that autograd has just made. While it is copied, it is alive next to the
    buffer.""",
    ("kept + world_size * shard + max(*sizes, shard)", "kept + world_size * shard + shard"),
    breaks=tests_of(BUCKETS),
    fails=[PEAK],
)

the_peak_has_all_gradients_of_a_bucket = edit(
    BUCKETS,
    """peak_bytes counts all gradients of a bucket next to its buffer. Each is gone before the next one is there: only
    the largest counts.""",
    ("max(*sizes, shard)", "max(sum(sizes), shard)"),
    breaks=tests_of(BUCKETS),
    fails=[PEAK],
)

the_peak_is_that_of_the_last_bucket = edit(
    BUCKETS,
    """peak_bytes looks only at the moment of the last bucket. If an earlier bucket is large, the peak comes earlier:
    take the maximum over all buckets.""",
    (
        "peak = max(peak, kept + world_size * shard + max(*sizes, shard))",
        "peak = kept + world_size * shard + max(*sizes, shard)",
    ),
    breaks=tests_of(BUCKETS),
    fails=[PEAK],
)
