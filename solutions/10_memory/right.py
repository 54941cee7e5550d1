"""Right answers to lesson 10, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

import torch
from torch import nn

from autograder.answers.right import answer_to


@answer_to("10-ex1-saved-bytes")
def saved_bytes_by_weak_storages():
    """Remembers storages by weak references, which do not keep them alive, and prints."""

    def saved_bytes(function, *inputs, ignore=()):
        found = {}
        ours = {StorageWeakRef(t.untyped_storage()).cdata for t in ignore}

        def pack(tensor):
            reference = StorageWeakRef(tensor.untyped_storage())
            found[reference.cdata] = reference
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda t: t):
            output = function(*inputs)
        total = 0
        for cdata in set(found) - ours:
            storage = torch.UntypedStorage._new_with_weak_ptr(cdata)
            total += 0 if storage is None else storage.nbytes()
        print("saved", total)
        return output, total


@answer_to("10-ex2-predict")
def bytes_from_a_list():
    """Adds up a list of tensors, and simulates the stage."""

    def activation_bytes(seq, batch, hidden, heads, tensor=1, sequence_parallel=False, keep="all", dropout=True):
        if keep not in {"all", "no scores", "flash", "input"} or tensor <= 0 or heads % tensor != 0:
            raise ValueError(f"no such layer: {keep}, {tensor} ranks")
        row = seq * batch * hidden
        outside = [2 * row] if keep == "input" else [2 * row] * 4 + [row, row] * dropout
        inside = [] if keep == "input" else [2 * row] * 4 + [8 * row] * 2
        if keep == "all":
            inside += [heads * seq * seq * batch * size for size in ([2, 1, 2] if dropout else [2])]
        elif keep == "flash":
            inside.append(4 * heads * seq * batch)
        return sum(inside) / tensor + sum(outside) / (tensor if sequence_parallel else 1)

    def stage_bytes(layer_bytes, layers, stages, micro_batches, stage):
        if stage not in range(stages) or layers % stages:
            raise ValueError("stage")
        held = [k for k in range(micro_batches) if k < stages - stage]
        return len(held) * layer_bytes * layers / stages


@answer_to("10-ex3-checkpoint")
def checkpoint_by_hooks():
    """Saves numbers in place of tensors, and fills in what a second run saves under the same numbers."""

    def checkpoint(module, *inputs):
        state, count, again = torch.get_rng_state(), itertools.count(), {}
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

        def recompute():
            order = itertools.count()

            def pack(tensor):
                number = next(order)
                again[number] = tensor.detach()
                return number

            before = torch.get_rng_state()
            torch.set_rng_state(state)
            hooks = saved_tensors_hooks(pack, lambda number: again[number])
            with torch.enable_grad(), torch.autocast("cpu", cast[1], cast[0]), hooks:
                module(*[t.detach().requires_grad_(t.requires_grad) for t in inputs])
            torch.set_rng_state(before)

        def unpack(number):
            if number not in again:
                recompute()
            return again.pop(number)

        with saved_tensors_hooks(lambda tensor: next(count), unpack):
            return module(*inputs)


@answer_to("10-ex3-checkpoint")
def checkpoint_that_runs_backward_inside():
    """Parameters are not inputs of the function; a number that requires a gradient is, and backward adds to .grad."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, module, ticket, *inputs):
            ctx.module, ctx.save = module, (torch.get_rng_state(), torch.is_autocast_enabled("cpu"))
            ctx.dtype = torch.get_autocast_dtype("cpu")
            ctx.save_for_backward(*inputs)
            ctx.set_materialize_grads(False)
            return module(*inputs)

        @staticmethod
        def backward(ctx, *gradients):
            state, enabled = ctx.save
            copies = []
            for t in ctx.saved_tensors:
                copies.append(t.detach())
                copies[-1].requires_grad = t.requires_grad
            now = torch.get_rng_state()
            torch.set_rng_state(state)
            with torch.enable_grad(), torch.autocast("cpu", dtype=ctx.dtype, enabled=enabled):
                result = ctx.module(*copies)
            torch.set_rng_state(now)
            result = result if isinstance(result, tuple) else (result,)
            pairs = [(y, g) for y, g in zip(result, gradients) if g is not None]
            torch.autograd.backward(*map(list, zip(*pairs)))
            return None, None, *(t.grad for t in copies)

    def checkpoint(module, *inputs):
        needs = any(t.requires_grad for t in (*inputs, *module.parameters()))
        return Again.apply(module, torch.zeros((), requires_grad=needs), *inputs)


@answer_to("10-ex4-segments")
def segments_by_recursion():
    """Tries every cut by recursion, and keeps the layers of a segment in a module of its own."""

    def best_segments(saved, edges):
        if len(saved) == 0:
            raise ValueError("saved is empty")
        if len(edges) != len(saved):
            raise ValueError("edges does not fit saved")

        def best(start, before):
            """The least peak of the layers from start on, after segments whose inputs have `before` bytes."""
            options = []
            for end in range(start + 1, len(saved) + 1):
                mine = before + sum(saved[start:end])
                if end == len(saved):
                    options.append((mine, [start]))
                else:
                    rest, starts = best(end, before + edges[start])
                    options.append((max(mine, rest), [start, *starts]))
            return min(options, key=lambda option: option[0])

        peak, starts = best(0, 0)
        return starts, peak

    class Segment(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    def checkpoint_sequential(layers, x, starts):
        bounds = [*starts, len(layers)]
        for i in range(len(starts)):
            segment = Segment(layers[bounds[i] : bounds[i + 1]])
            x = segment(x) if i == len(starts) - 1 else checkpoint(segment, x)
        return x


@answer_to("10-ex5-offload")
def offload_as_a_class():
    """A class that is a context manager, and that puts a tensor once if it is saved twice while it lives."""

    class offload:  # noqa: N801
        def __init__(self, host, min_bytes=0, ignore=()):
            self.host, self.least = host, min_bytes
            self.ignored = [t.untyped_storage()._cdata for t in ignore]
            self.hooks = saved_tensors_hooks(self.pack, self.unpack)

        def pack(self, tensor):
            own = tensor.untyped_storage()._cdata in self.ignored
            return (tensor, None) if own or tensor.nbytes < self.least else (None, self.host.put(tensor))

        def unpack(self, kept):
            tensor, parked = kept
            return tensor if parked is None else self.host.get(parked)

        def __enter__(self):
            self.hooks.__enter__()
            return self

        def __exit__(self, *error):
            self.hooks.__exit__(*error)


@answer_to("10-ex6-few-bits")
def rounding_by_a_large_number():
    """Rounds by adding and subtracting 1.5 · 2⁵² steps in float64; walks over gradients with a dictionary."""

    def round_to(x, exponent_bits, mantissa_bits, finite=False):
        bias = 2 ** (exponent_bits - 1) - 1
        wide = x.to(torch.float64)
        power = torch.floor(torch.log2(wide.abs().clamp(2.0 ** (1 - bias), 2.0**200)))
        power = power - (torch.exp2(power) > wide.abs().clamp(2.0 ** (1 - bias))).double()
        big = 1.5 * 2.0**52 * torch.exp2(power - mantissa_bits)
        near = torch.where(wide.isfinite(), (wide + big) - big, wide)
        last = 2 * 2.0**-mantissa_bits if finite else 2.0**-mantissa_bits
        largest = (2 - last) * 2.0 ** (bias + finite)
        if finite:
            near = near.clamp(-largest, largest)
        else:
            near = torch.where(near.abs() > largest, near.sign() * float("inf"), near)
        return torch.copysign(near, wide).float()

    class MainGrads:
        def __init__(self, params):
            self.of = {p: torch.zeros_like(p, dtype=torch.float32) for p in params if p.requires_grad}
            for p in self.of:
                p.register_post_accumulate_grad_hook(self.collect)

        def collect(self, p):
            self.of[p] += p.grad.float()
            p.grad = None

        @property
        def grads(self):
            return list(self.of.values())

        def reduce(self):
            everything = torch.cat([g.flatten() / dist.get_world_size() for g in self.of.values()])
            dist.all_reduce(everything)
            at = 0
            for g in self.of.values():
                g.view(-1)[:] = everything[at : at + g.numel()]
                at += g.numel()


@answer_to("10-ex6-few-bits")
def rounding_by_the_exponents_bits():
    """Reads the exponent out of the bits of float64; `reduce` makes new tensors, which the hooks look up by number."""

    def round_to(x, exponent_bits, mantissa_bits, finite=False):
        bias = 2 ** (exponent_bits - 1) - 1
        wide = x.double()
        exponent = ((wide.view(torch.int64) >> 52) & 2047) - 1023
        size = 2.0 ** (torch.clamp(exponent, 1 - bias, 200).double() - mantissa_bits)
        near = (wide / size).round() * size
        largest = (2 - 2.0**-mantissa_bits * (1 + finite)) * 2.0 ** (bias + finite)
        over = near.abs() > largest
        near = torch.where(over, torch.full_like(near, largest if finite else float("inf")).copysign(wide), near)
        return near.float()

    class MainGrads:
        def __init__(self, params):
            params = [p for p in dict.fromkeys(params) if p.requires_grad]
            self.grads = [torch.zeros(p.size()) for p in params]
            for number, p in enumerate(params):
                p.register_post_accumulate_grad_hook(lambda p, number=number: self.take(p, number))

        def take(self, p, number):
            self.grads[number] = self.grads[number] + p.grad
            p.grad = None

        def reduce(self):
            vector = torch.nn.utils.parameters_to_vector(self.grads)
            dist.all_reduce(vector)
            pieces = (vector / dist.get_world_size()).split([g.numel() for g in self.grads])
            self.grads = [piece.reshape(g.shape) for piece, g in zip(pieces, self.grads)]


@answer_to("10-ex3-checkpoint")
def checkpoint_by_numbers():
    """Saves numbers in place of tensors, and fills in what a second run saves under the same numbers."""

    def checkpoint(module, *inputs):
        state, count, again = torch.get_rng_state(), itertools.count(), {}
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        copies = [t.detach().requires_grad_(t.requires_grad) for t in inputs]

        def recompute():
            order = itertools.count()

            def pack(tensor):
                number = next(order)
                again[number] = tensor.detach()
                return number

            with torch.enable_grad(), torch.random.fork_rng(devices=[]), torch.autocast("cpu", cast[1], cast[0]):
                torch.set_rng_state(state)
                with saved_tensors_hooks(pack, lambda number: again[number]):
                    module(*copies)

        def unpack(number):
            if not again:
                recompute()
            return again.pop(number)

        with saved_tensors_hooks(lambda tensor: next(count), unpack):
            return module(*inputs)
