"""Wrong answers to lesson 10, exercises 5 and 6."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.mutants import edit, mutant, tests_of

OFFLOAD, BITS = "10-ex5-offload", "10-ex6-few-bits"


# ---- 5 · offload ----

an_address_is_taken_for_a_tensor = edit(
    OFFLOAD,
    """You put a tensor only if its address is new, and use the old copy otherwise. An address is used again as soon as
    its tensor is gone, and views of one storage share addresses: the wrong tensor comes back.""",
    (
        "        return host.put(tensor)\n",
        "        if tensor.data_ptr() not in parked:\n            parked[tensor.data_ptr()] = host.put(tensor)\n"
        "        return parked[tensor.data_ptr()]\n",
    ),
    ("    def pack(tensor):\n", "    parked = {}\n\n    def pack(tensor):\n"),
    breaks=tests_of(OFFLOAD),
    fails=["gradients_stay_bit_for_bit"],
)

handles_are_listed = edit(
    OFFLOAD,
    """You keep every Parked in a list. Its memory is freed with the last reference to it, so the host is never empty
    again: let only the graph hold it.""",
    (
        "        return host.put(tensor)\n",
        "        host.handles = [*getattr(host, 'handles', []), host.put(tensor)]\n        return host.handles[-1]\n",
    ),
    breaks=tests_of(OFFLOAD),
    fails=["the_host_is_empty_in_the_end"],
)

what_came_back_is_gone = edit(
    OFFLOAD,
    """You hand each tensor out once. A retained graph can have a second backward, which asks again: leave the Parked
    where it is.""",
    (
        "        return kept if isinstance(kept, torch.Tensor) else host.get(kept)",
        "        if isinstance(kept, torch.Tensor):\n            return kept\n"
        "        back = host.get(kept)\n        kept.tensor.zero_()\n        return back",
    ),
    breaks=tests_of(OFFLOAD),
    fails=["gradients_stay_bit_for_bit"],
)

numbers_are_compared_with_bytes = edit(
    OFFLOAD,
    """You compare the number of elements with min_bytes. Multiply by the bytes of one element.""",
    ("tensor.numel() * tensor.element_size() < min_bytes", "tensor.numel() < min_bytes"),
    breaks=tests_of(OFFLOAD),
)

exactly_enough_stays = edit(
    OFFLOAD,
    """You keep a tensor of exactly min_bytes bytes on the device. Only those with fewer bytes should stay.""",
    ("< min_bytes", "<= min_bytes"),
    breaks=tests_of(OFFLOAD),
)

storages_are_compared_with_min_bytes = edit(
    OFFLOAD,
    """You compare the size of the storage with min_bytes. A small view of a large storage has few numbers of its
    own, and only these would be put.""",
    ("tensor.numel() * tensor.element_size() < min_bytes", "tensor.untyped_storage().nbytes() < min_bytes"),
    breaks=tests_of(OFFLOAD),
)

identical_tensors_alone_stay = edit(
    OFFLOAD,
    """You compare saved tensors with `ignore` by identity. What is saved is another view of the same memory: compare
    storages.""",
    ("tensor.untyped_storage().data_ptr() in stay", "any(tensor is t for t in ignore)"),
    breaks=tests_of(OFFLOAD),
)

what_came_back_is_kept = edit(
    OFFLOAD,
    """You keep what the host gave back for another backward. After a backward that retains the graph, everything lies
    on the device again: fetch it anew each time.""",
    (
        "        return kept if isinstance(kept, torch.Tensor) else host.get(kept)",
        "        if isinstance(kept, torch.Tensor):\n            return kept\n"
        "        if kept not in back:\n            back[kept] = host.get(kept)\n"
        "        return back[kept]",
    ),
    ("    def unpack(kept):\n", "    back = {}\n\n    def unpack(kept):\n"),
    breaks=tests_of(OFFLOAD),
    fails=["the_device_keeps_the_output_alone"],
)

saved_views_begin_elsewhere = edit(
    OFFLOAD,
    """You look for the address of a saved tensor's first number among the addresses of storages. A view such as w[4:]
    begins further on in its storage: ask for the address of the storage on both sides.""",
    ("tensor.untyped_storage().data_ptr() in stay", "tensor.data_ptr() in stay"),
    breaks=tests_of(OFFLOAD),
)

ignored_views_begin_elsewhere = edit(
    OFFLOAD,
    """You write down where the numbers of the tensors in `ignore` begin, and look for storages there. One of them may
    be a view that begins further on in its storage: write down where its storage begins.""",
    ("{tensor.untyped_storage().data_ptr() for tensor in ignore}", "{tensor.data_ptr() for tensor in ignore}"),
    breaks=tests_of(OFFLOAD),
)

first_addresses_are_compared = edit(
    OFFLOAD,
    """You compare the addresses of the first numbers. A tensor in `ignore`, or one that is saved, may be a view that
    begins elsewhere in the same storage: compare the addresses of the storages.""",
    ("{tensor.untyped_storage().data_ptr() for tensor in ignore}", "{tensor.data_ptr() for tensor in ignore}"),
    ("tensor.untyped_storage().data_ptr() in stay", "tensor.data_ptr() in stay"),
    breaks=tests_of(OFFLOAD),
)

one_class_alone_comes_back = edit(
    OFFLOAD,
    """You recognize what waits on the host by the class Parked. Another host's `put` returns an object of another
    class: ask whether it is a tensor.""",
    (
        "kept if isinstance(kept, torch.Tensor) else host.get(kept)",
        "host.get(kept) if isinstance(kept, Parked) else kept",
    ),
    breaks=tests_of(OFFLOAD),
    fails=["gradients_stay_bit_for_bit"],
)

everything_is_fetched_at_once = edit(
    OFFLOAD,
    """You bring everything back when the `with` ends, so that it lies in memory until backward. Fetch a tensor when
    unpack is called for it.""",
    ("        return host.put(tensor)\n", "        parked.append([host.put(tensor)])\n        return parked[-1]\n"),
    ("    def pack(tensor):\n", "    parked = []\n\n    def pack(tensor):\n"),
    ("host.get(kept)", "kept[0]"),
    (
        "        yield\n",
        "        yield\n    for one in parked:\n        one[0] = host.get(one[0])\n    parked.clear()\n",
    ),
    breaks=tests_of(OFFLOAD),
    fails=["each_saved_tensor_is_put_once", "the_device_keeps_the_output_alone"],
)

copies_stay_here = edit(
    OFFLOAD,
    """You put each tensor to the host and keep it in the graph as well. Nothing is freed: give the graph the Parked
    alone.""",
    ("        return host.put(tensor)\n", "        return tensor, host.put(tensor)\n"),
    ("host.get(kept)", "host.get(kept[1])"),
    breaks=tests_of(OFFLOAD),
    fails=["the_host_is_empty_in_the_end", "the_device_keeps_the_output_alone"],
)

everything_is_put_twice = edit(
    OFFLOAD,
    """You put each tensor two times. One copy is enough, for any number of backwards.""",
    ("        return host.put(tensor)\n", "        host.put(tensor)\n        return host.put(tensor)\n"),
    breaks=tests_of(OFFLOAD),
    fails=["each_saved_tensor_is_put_once"],
)


@mutant(OFFLOAD, breaks=tests_of(OFFLOAD))
def the_hooks_never_end():
    """Your hooks stay on after the `with`. What is saved later goes to the host as well: remove them when the block
    ends."""

    @contextmanager
    def offload(host, min_bytes=0, ignore=()):
        stay = {t.untyped_storage().data_ptr() for t in ignore}

        def pack(tensor):
            small = tensor.numel() * tensor.element_size() < min_bytes
            return tensor if small or tensor.untyped_storage().data_ptr() in stay else host.put(tensor)

        hooks = saved_tensors_hooks(pack, lambda kept: kept if isinstance(kept, torch.Tensor) else host.get(kept))
        hooks.__enter__()
        yield


# ---- 6 · round_to, MainGrads ----

halves_go_up = edit(
    BITS,
    """You round halves away from zero. Of two equally near numbers, take the one whose last bit is even: always
    rounding halves the same way adds a drift to long sums.""",
    ("torch.round(x.double() / step) * step", "torch.copysign(torch.floor(x.double().abs() / step + 0.5), x) * step"),
    breaks=tests_of(BITS),
)

bits_are_cut_off = edit(
    BITS,
    """You cut the bits off, which rounds towards zero. Go to the nearest number.""",
    ("torch.round(x", "torch.trunc(x"),
    breaks=tests_of(BITS),
)

subnormals_are_zero = edit(
    BITS,
    """You round everything below the smallest normal number to 0. Between that number and 0 there are the subnormals,
    with the step of the smallest exponent.""",
    (
        "    if finite:\n",
        "    rounded = torch.where(x.double().abs() < 2.0 ** (1 - bias), 0.0 * x.double(), rounded)\n    if finite:\n",
    ),
    breaks=tests_of(BITS),
)

steps_never_end = edit(
    BITS,
    """You let the step shrink with the number without a limit. Below the smallest exponent, 1 − B, the step stays what
    it is: there are no smaller exponents.""",
    ("exponent.clamp(min=1 - bias)", "exponent"),
    breaks=tests_of(BITS),
)

overflow_saturates = edit(
    BITS,
    """You stop at the largest number in every format. Without `finite`, what rounds past it is infinity.""",
    (
        "    return torch.where(overflow, torch.copysign(torch.tensor(math.inf), x), rounded.float())",
        "    return torch.where(x.isinf(), x, rounded.clamp(-largest, largest).float()).where(~x.isnan(), x)",
    ),
    breaks=tests_of(BITS),
)

overflow_is_judged_before_rounding = edit(
    BITS,
    """You compare x with the largest number before rounding. A number a little above it may still round to it.""",
    ("(rounded.abs() > largest)", "(x.double().abs() > largest)"),
    breaks=tests_of(BITS),
)

the_top_exponent_is_lost = edit(
    BITS,
    """With `finite` you leave the top exponent out. In these formats it counts like the others, except for its last
    mantissa: e4m3fn goes up to 448.""",
    ("largest = (2 - 2 * 2.0**-mantissa_bits) * 2.0 ** (bias + 1)", "largest = (2 - 2.0**-mantissa_bits) * 2.0**bias"),
    breaks=tests_of(BITS),
)

the_place_of_nan_is_a_number = edit(
    BITS,
    """With `finite` you use the whole top exponent. Its last mantissa stands for NaN: the largest number is one step
    lower.""",
    ("largest = (2 - 2 * 2.0**-mantissa_bits)", "largest = (2 - 2.0**-mantissa_bits)"),
    breaks=tests_of(BITS),
)

infinity_is_let_through = edit(
    BITS,
    """With `finite` you let infinity through. The format has no pattern for it: it becomes the largest number, with
    its sign.""",
    ("torch.where(x.isnan(), x, rounded", "torch.where(~x.isfinite(), x, rounded"),
    breaks=tests_of(BITS),
)

the_sign_of_zero_is_lost = edit(
    BITS,
    """You turn −0 into 0, and also small negative numbers that round to −0. Keep the sign.""",
    ("    if finite:\n", "    rounded = rounded + 0.0\n    if finite:\n"),
    breaks=tests_of(BITS),
)

a_cast_does_the_work = edit(
    BITS,
    """You leave the rounding to torch's casts. Compute it, so that it works for formats that torch does not have.""",
    (
        "    bias = 2 **",
        "    ready = {(5, 10): torch.float16, (8, 7): torch.bfloat16, (5, 2): torch.float8_e5m2}\n"
        "    if (exponent_bits, mantissa_bits) in ready and not finite:\n"
        "        return x.to(ready[exponent_bits, mantissa_bits]).float()\n    bias = 2 **",
    ),
    breaks=tests_of(BITS),
    fails=["no_cast_does_the_work"],
)

sums_in_sixteen_bits = edit(
    BITS,
    """You add gradients up in the dtype of the parameters. In bf16 a sum of ones stops at 256: `.grads` must be
    float32.""",
    ("torch.zeros(p.shape)", "torch.zeros(p.shape, dtype=p.dtype)"),
    breaks=tests_of(BITS),
    fails=["gradients_add_up_in_float32", "ranks_get_the_mean_gradient", "one_all_reduce_carries_all"],
)

gradients_are_left_there = edit(
    BITS,
    """You leave p.grad in place after you have added it. The next backward adds to it, so you count it twice, and
    meanwhile it takes memory. Set it to None.""",
    ("        p.grad = None\n", ""),
    breaks=tests_of(BITS),
    fails=["gradients_add_up_in_float32", "ranks_get_the_mean_gradient"],
)

frozen_parameters_are_listed = edit(
    BITS,
    """`.grads` has an entry for a frozen parameter, which never gets a gradient: keep those with requires_grad.""",
    ("if p.requires_grad]", "]"),
    ("            p.register", "            p.requires_grad and p.register"),
    breaks=tests_of(BITS),
    fails=["ranks_get_the_mean_gradient", "one_all_reduce_carries_all"],
)

tied_parameters_are_listed_twice = edit(
    BITS,
    """A parameter that is given twice has two entries in `.grads`. It is one parameter with one gradient.""",
    ("dict.fromkeys(params)", "params"),
    breaks=tests_of(BITS),
    fails=["ranks_get_the_mean_gradient", "one_all_reduce_carries_all"],
)

the_sum_is_not_divided = edit(
    BITS,
    """`reduce` leaves the sum of the ranks' gradients. Divide by their number.""",
    ("        flat /= dist.get_world_size()\n", ""),
    breaks=tests_of(BITS),
    fails=["ranks_get_the_mean_gradient"],
)

means_go_into_new_tensors = edit(
    BITS,
    """`reduce` puts new tensors into `.grads`, while your hooks still add to the old ones. The gradients of a later
    backward are lost: let the hooks and `.grads` use the same tensors.""",
    (
        "        for g, mean in zip(self.grads, flat.split([g.numel() for g in self.grads])):\n"
        "            g.copy_(mean.view_as(g))",
        "        means = flat.split([g.numel() for g in self.grads])\n"
        "        self.grads = [mean.view_as(g) for g, mean in zip(self.grads, means)]",
    ),
    breaks=tests_of(BITS),
    fails=["ranks_get_the_mean_gradient"],
)

each_tensor_is_sent_alone = edit(
    BITS,
    """You reduce one tensor at a time. Each all-reduce costs a start-up time: send all of them in one.""",
    (
        "        flat = torch.cat([g.reshape(-1) for g in self.grads])\n"
        "        dist.all_reduce(flat)\n"
        "        flat /= dist.get_world_size()\n"
        "        for g, mean in zip(self.grads, flat.split([g.numel() for g in self.grads])):\n"
        "            g.copy_(mean.view_as(g))",
        "        for g in self.grads:\n            dist.all_reduce(g)\n            g /= dist.get_world_size()",
    ),
    breaks=tests_of(BITS),
    fails=["one_all_reduce_carries_all"],
)

sixteen_bits_are_sent = edit(
    BITS,
    """You send the gradients in bf16. The sum over the ranks loses the bits that you had kept: send float32.""",
    ("for g in self.grads])\n        dist", "for g in self.grads]).bfloat16()\n        dist"),
    breaks=tests_of(BITS),
    fails=["ranks_get_the_mean_gradient", "one_all_reduce_carries_all"],
)

biases_are_looked_up = edit(
    BITS,
    """You wrote down the biases of the formats that torch has. The bias follows from the exponent's bits, in every
    format: 2 ** (exponent_bits - 1) - 1.""",
    ("bias = 2 ** (exponent_bits - 1) - 1", "bias = {4: 7, 5: 15, 8: 127}.get(exponent_bits, 15)"),
    breaks=tests_of(BITS),
    fails=["other_formats_round_as_well"],
)
