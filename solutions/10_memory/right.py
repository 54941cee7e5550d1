"""Right answers to lesson 10, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

import torch

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


@answer_to("10-ex1-saved-bytes")
def saved_bytes_in_a_list_of_the_notebook():
    """Its list of weak references stands above the function, and each call empties it."""
    handles = []

    class Handle:
        def __init__(self, tensor):
            self.tensor = tensor.detach()

    def pack(tensor):
        handle = Handle(tensor)
        handles.append(weakref.ref(handle))
        return handle

    def saved_bytes(function, *inputs, ignore=()):
        handles.clear()
        with saved_tensors_hooks(pack, lambda handle: handle.tensor):
            output = function(*inputs)
        alive = [handle().tensor.untyped_storage() for handle in handles if handle()]
        skipped = {t.untyped_storage().data_ptr() for t in ignore}
        sizes = {s.data_ptr(): s.nbytes() for s in alive if s.data_ptr() not in skipped}
        return output, sum(sizes.values())


@answer_to("10-ex2-predict")
def bytes_from_a_list():
    """Adds up a list of tensors in fractions of their sizes, and counts the micro-batches of a stage one by one."""

    def layer_bytes(tokens, hidden, heads, kv_heads, ffn, tensor=1, sequence_parallel=False, keep="all"):
        bf16, head = 2, hidden / heads
        whole = [hidden * bf16] * {"all": 4, "cheap": 2, "input": 1}[keep] + [4, 4] * (keep == "all")
        cut = [head * (2 * heads + 2 * kv_heads) * bf16, 4 * heads] + [ffn * bf16] * (4 if keep == "all" else 2)
        if keep == "input":
            cut = []
        return tokens * (sum(cut) + sum(whole) * (1 if sequence_parallel else tensor)) / tensor

    def stage_bytes(layer, layers, stages, micro_batches, stage, logits=0):
        held = [k for k in range(micro_batches) if k < stages - stage]
        return len(held) * layer * layers / stages + logits * (stage + 1 == stages)


@answer_to("10-ex3-checkpoint")
def checkpoint_that_runs_backward_inside():
    """Parameters are not inputs of the function; a number that requires a gradient is, and backward adds to .grad."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, module, ticket, *inputs):
            ctx.module, ctx.generator = module, torch.get_rng_state()
            ctx.save_for_backward(*inputs)
            return module(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            copies = []
            for t in ctx.saved_tensors:
                copies.append(t.detach())
                copies[-1].requires_grad = t.requires_grad
            now = torch.get_rng_state()
            torch.set_rng_state(ctx.generator)
            with torch.enable_grad():
                result = ctx.module(*copies)
            torch.set_rng_state(now)
            torch.autograd.backward(result, gradient)
            return None, None, *(t.grad for t in copies)

    def checkpoint(module, *inputs):
        needs = any(t.requires_grad for t in (*inputs, *module.parameters()))
        return Again.apply(module, torch.zeros((), requires_grad=needs), *inputs)


@answer_to("10-ex4-cheapest")
def choices_by_recursion():
    """Decides way by way, by recursion; its example has one layer too much of a way that frees much."""

    def cheapest(freed, costs, layers, needed):
        def rest(way, left, missing):
            """The least cost and the counts of the ways from `way` on."""
            if way == len(freed):
                return (0, []) if missing <= 0 else (float("inf"), [])
            options = []
            for n in range(left + 1):
                cost, counts = rest(way + 1, left - n, missing - n * freed[way])
                options.append((cost + n * costs[way], [n, *counts]))
                if missing - n * freed[way] <= 0:
                    break
            return min(options)

        cost, counts = rest(0, layers, needed)
        return None if cost == float("inf") else counts

    def greedy_loses():
        return (1.0, 100.0), (1.0, 99.0), 3, 1


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
            return (tensor.detach(), None) if own or tensor.nbytes < self.least else (None, self.host.put(tensor))

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
    """Rounds by adding and subtracting 1.5 · 2⁵² steps in float64."""

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


@answer_to("10-ex7-loss-scaler")
def scaler_that_counts_down():
    """Adds up the ranks' flags, and counts down."""

    class LossScaler:
        def __init__(self, scale=2.0**16, interval=2000):
            self.scale, self.wait, self.left = scale, interval, interval

        def step(self, params, masters, optimizer):
            bad = sum(int((~p.grad.isfinite()).sum()) for p in params)
            flag = torch.tensor(float(bad > 0))
            dist.all_reduce(flag)  # the sum is above 0 as well
            for p, master in zip(params, masters):
                if not flag:
                    master.grad = p.grad.to(torch.float32) * (1 / self.scale)
                p.grad = None
            if flag:
                self.scale, self.left = self.scale * 0.5, self.wait
                return False
            optimizer.step()
            with torch.no_grad():
                for p, master in zip(params, masters):
                    p.copy_(master)
            self.left -= 1
            if not self.left:
                self.scale, self.left = 2 * self.scale, self.wait
            return True


@answer_to("10-ex6-few-bits")
def rounding_by_the_exponents_bits():
    """Reads the exponent out of the bits of float64."""

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


@answer_to("10-ex7-loss-scaler")
def scaler_with_a_history():
    """Keeps the scale's exponent and a history, and asks whether all gradients are finite."""

    class LossScaler:
        def __init__(self, scale=2.0**16, interval=2000):
            self.exponent, self.interval, self.history = torch.tensor(float(scale)).log2().item(), interval, []

        @property
        def scale(self):
            return 2.0**self.exponent

        def step(self, params, masters, optimizer):
            grads = [p.grad.double() for p in params]
            largest = torch.stack([g.abs().max() for g in grads]).max()
            finite = torch.tensor([int(largest.isfinite())])
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
            self.history.append(bool(finite.item()))
            if self.history[-1]:
                for master, g in zip(masters, grads):
                    master.grad = (g / self.scale).float()
                optimizer.step()
                for p, master in zip(params, masters):
                    p.data = master.detach().half()
            for p in params:
                p.grad = None
            if not self.history[-1]:
                self.exponent, self.history = self.exponent - 1, []
                return False
            if len(self.history) == self.interval:
                self.exponent, self.history = self.exponent + 1, []
            return True


@answer_to("10-ex3-checkpoint")
def checkpoint_by_numbers():
    """Saves numbers in place of tensors, and fills in what a second run saves under the same numbers."""

    def checkpoint(module, *inputs):
        state, count, again = torch.get_rng_state(), itertools.count(), {}
        copies = [t.detach().requires_grad_(t.requires_grad) for t in inputs]

        def recompute():
            order = itertools.count()

            def pack(tensor):
                number = next(order)
                again[number] = tensor.detach()
                return number

            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                with saved_tensors_hooks(pack, lambda number: again[number]):
                    module(*copies)

        def unpack(number):
            if not again:
                recompute()
            return again.pop(number)

        with saved_tensors_hooks(lambda tensor: next(count), unpack):
            return module(*inputs)
