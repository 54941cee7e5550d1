"""Right answers to lesson 09, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("09-ex1-cut")
def cut_and_gather_through_lists():
    """Pads with torch's pad, gathers into a list of tensors, and assembles one vector at a time."""

    def cut(tensors):
        n, r = dist.get_world_size(), dist.get_rank()
        flat = torch.cat([torch.zeros(0), *(t.detach().flatten() for t in tensors)])
        size = (len(flat) + n - 1) // n
        return nn.functional.pad(flat, (0, n * size - len(flat)))[r * size : (r + 1) * size].clone()

    def gather(shards, numels, dtype=torch.float32):
        mine = torch.cat([shard.detach() for shard in shards]).to(dtype)
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        if mine.numel() > 0:
            dist.all_gather(rows, mine)
        whole, at = [], 0
        for shard, numel in zip(shards, numels):
            pieces = [row[at : at + shard.numel()] for row in rows]
            whole.append(torch.cat(pieces)[:numel].clone())
            at += shard.numel()
        return whole


@answer_to("09-ex2-unit")
def unit_with_a_copy_of_its_places():
    """Walks over its parameters when it computes, and prints."""

    class ShardedUnit:
        def __init__(self, unit, compute_dtype=None):
            print("taking over", type(unit).__name__)
            self.dtype, self.whole, self.numels, self.shapes = compute_dtype, None, [], []
            self.places, order = [], []
            for wanted in (True, False):
                group = [p for p in unit.parameters() if p.requires_grad is wanted]
                shard = cut(group)
                if wanted:
                    self.shard = nn.Parameter(shard, requires_grad=True)
                else:
                    self.frozen_shard = shard
                self.numels.append(sum(map(torch.Tensor.numel, group)))
                self.shapes.append([p.size() for p in group])
                order.extend(group)
            for sub, name, p in places_of(unit):
                index = next(i for i, q in enumerate(order) if q is p)
                self.places.append((sub, name, index))
                sub._parameters[name] = None
            own = unit.forward
            self.compute = lambda *inputs: own(*inputs)
            unit.forward = self.forward

        def gather(self):
            if not self.whole:
                self.whole = gather([self.shard.data, self.frozen_shard], self.numels, self.dtype or torch.float32)
            return self.whole

        def views(self, flats):
            views = []
            for flat, shapes in zip(flats, self.shapes):
                at = 0
                for shape in shapes:
                    views.append(flat[at : at + shape.numel()].reshape(shape))
                    at += shape.numel()
            return views

        def free(self):
            self.whole = None

        def forward(self, *inputs):
            try:
                with hung(self.places, self.views(self.gather())):
                    return self.compute(*inputs)
            finally:
                self.free()


@answer_to("09-ex3-backward")
def backward_with_a_border_of_its_own():
    """Frees at a border that is a function of its own, notes places in dictionaries, and scatters a list of pieces."""

    class Border(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, unit):
            ctx.unit = unit
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            ctx.unit.free()
            return gradient, None

    class TrainableUnit(ShardedUnit):
        def forward(self, *inputs):
            if not torch.is_grad_enabled():
                return super().forward(*inputs)
            first, second = self.gather()
            if self.shard.numel():
                first = Gate.apply(self.shard, first, self)
            inputs = tuple(Border.apply(x, self) if x.requires_grad else x for x in inputs)
            with saved_tensors_hooks(self.pack, self.unpack), hung(self.places, self.views([first, second])):
                output = self.compute(*inputs)
            self.free()
            return output

        def pack(self, tensor):
            for which, flat in enumerate(self.whole):
                if flat.numel() and flat.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                    shape = {"size": tensor.size(), "stride": tensor.stride()}
                    return {"which": which, "storage_offset": tensor.storage_offset(), **shape}
            return tensor

        def unpack(self, kept):
            if not isinstance(kept, dict):
                return kept
            note = dict(kept)
            return torch.as_strided(self.gather()[note.pop("which")], **note)

        def reduce(self, gradient):
            self.free()
            n = dist.get_world_size()
            full = nn.functional.pad(gradient.float() / n, (0, n * len(self.shard) - len(gradient)))
            shard = torch.empty(len(self.shard))
            dist.reduce_scatter(shard, list(full.chunk(n)))
            return shard


@answer_to("09-ex4-costs")
def costs_unit_by_unit():
    """Adds up unit by unit, in bytes of each part."""

    def check(numels, world_size):
        if not world_size > 0:
            raise ValueError("world_size")
        if min(numels, default=0) < 0:
            raise ValueError("numels")

    def memory_bytes(numels, world_size):
        check(numels, world_size)
        held, gradients, largest = 0, 0, 0
        for numel in numels:
            shard = (numel + world_size - 1) // world_size
            held += shard * (4 + 4 + 4)
            gradients += 4 * shard
            largest = max(largest, numel)
        return held, held + gradients + 4 * largest + 4 * largest

    def wire_bytes(numels, world_size, itemsize=4):
        check(numels, world_size)
        if itemsize <= 0:
            raise ValueError("itemsize")
        chunks = sum((numel + world_size - 1) // world_size for numel in numels)
        return 2 * (world_size - 1) * chunks * itemsize + (world_size - 1) * chunks * 4


@answer_to("09-ex5-fsdp")
def storages_that_come_and_go():
    """As PyTorch does: the module keeps its parameters, whose storage is emptied and filled again; hooks on modules and
    tensors; a unit's backward ends when another one's begins, or at the end."""

    class FullyShardedDataParallel(nn.Module):
        def __init__(self, module, units, compute_dtype=None):
            super().__init__()
            parts, rest = partition(module, units)
            for tensor in [*module.buffers(), *module.parameters()]:
                broadcast(tensor)
            self.module, self.dtype, self.active, self.records = module, compute_dtype, None, []
            for unit, params in zip([*units, module], [*parts, rest]):
                groups = [[p for p in params if p.requires_grad is wanted] for wanted in (True, False)]
                record = {"groups": groups, "shards": [nn.Parameter(cut(g), i == 0) for i, g in enumerate(groups)]}
                record["flats"] = [torch.zeros(sum(p.numel() for p in g), dtype=compute_dtype) for g in groups]
                for group, flat in zip(groups, record["flats"]):
                    for p, piece in zip(group, flat.split([p.numel() for p in group])):
                        p.data = piece.view(p.shape)
                self.records.append(record)
                self.resize(record, empty=True)
                unit.register_forward_pre_hook(lambda m, x, record=record: self.fill(record))
                unit.register_forward_hook(lambda m, x, y, record=record: self.leave(record, y))

        def parameters(self, recurse=True):
            return iter([s for record in self.records for s in record["shards"] if len(s)])

        def resize(self, record, empty):
            for flat in record["flats"]:
                flat.untyped_storage().resize_(0 if empty else flat.nbytes)

        def fill(self, record):
            self.resize(record, empty=False)
            numels = [len(flat) for flat in record["flats"]]
            for flat, whole in zip(record["flats"], gather(record["shards"], numels, self.dtype or torch.float32)):
                flat.data.copy_(whole)

        def leave(self, record, output):
            self.resize(record, empty=True)
            if output.requires_grad:
                output.register_hook(lambda gradient: self.enter(record))

        def enter(self, record):
            if record is self.records[-1]:  # the root's, whole until the end
                torch.autograd.Variable._execution_engine.queue_callback(self.end)
            else:
                self.finish(self.active)
                self.active = record
            self.fill(record)

        def end(self):
            self.finish(self.active)
            self.active = None
            self.finish(self.records[-1])

        def finish(self, record):
            if record is None:
                return
            self.resize(record, empty=True)
            shard, group, n = record["shards"][0], record["groups"][0], dist.get_world_size()
            if group:
                full, at = torch.zeros(n * len(shard)), 0
                for p in group:
                    if p.grad is not None:
                        full[at : at + p.numel()] = p.grad.reshape(-1)
                    at, p.grad = at + p.numel(), None
                piece = torch.empty(len(shard))
                dist.reduce_scatter_single(piece, full)
                shard.grad = piece / n if shard.grad is None else shard.grad + piece / n

        def forward(self, *inputs):
            return self.module(*[x.to(self.dtype) if self.dtype and x.is_floating_point() else x for x in inputs])

        def full_state_dict(self):
            whole = {}
            for record in self.records:
                flats = gather(record["shards"], [len(flat) for flat in record["flats"]])
                for group, flat in zip(record["groups"], flats):
                    for p, piece in zip(group, flat.split([p.numel() for p in group])):
                        whole[p] = piece.view(p.shape).clone()
            if dist.get_rank() != 0:
                return {}
            named = self.module.state_dict(keep_vars=True)
            return {name: whole[t] if t in whole else t.detach().clone() for name, t in named.items()}


@answer_to("09-ex6-prefetch")
def prefetch_by_watching_the_output():
    """Gathers into a list, keeps what is under way in a dictionary, and hooks the gradient of its output."""

    class PrefetchingUnit(TrainableUnit):
        before, after, under_way = None, None, {}

        def start(self):
            if self.whole or self in self.under_way:
                return
            rows = [torch.empty(len(self.shard)) for _ in range(dist.get_world_size())]
            work = dist.all_gather(rows, self.shard.data, async_op=True)
            self.under_way[self] = (work, rows)

        def gather(self):
            if not self.whole:
                self.start()
                work, rows = self.under_way.pop(self)
                work.wait()
                self.whole = [torch.cat(rows)[: self.numels[0]], torch.zeros(0)]
            return self.whole

        def forward(self, *inputs):
            self.gather()
            if self.after is not None:
                self.after.start()
            output = super().forward(*inputs)
            if output.requires_grad:
                output.register_hook(self.begin)
            return output

        def begin(self, gradient):
            self.gather()
            if self.before is not None:
                self.before.start()

        def reduce(self, gradient):
            self.free()
            return super().reduce(gradient)


@answer_to("09-ex7-hybrid")
def hybrid_by_a_table():
    """Looks the members up in a table of ranks, scatters a list of pieces, divides before anything is sent."""

    def hybrid_groups(size):
        n = dist.get_world_size()
        if size <= 0 or size * (n // size) != n:
            raise ValueError(f"{n} ranks cannot be divided: size {size}")
        table = torch.arange(n).view(-1, size)
        found = {}
        for name, lists in (("copies", table.t().tolist()), ("shards", table.tolist())):
            for members in lists:
                group = dist.new_group(ranks=members)
                if dist.get_rank() in members:
                    found[name] = group
        return [found["shards"], found["copies"]]

    def hybrid_reduce(gradient, shard_group, copy_group):
        size = dist.get_world_size(shard_group)
        padding = -len(gradient) % size
        pieces = functional_pad(gradient, padding) / dist.get_world_size()
        mine = torch.zeros(len(pieces) // size)
        dist.reduce_scatter(mine, [piece.clone() for piece in pieces.split(len(mine))], group=shard_group)
        work = dist.all_reduce(mine, group=copy_group, async_op=True)
        work.wait()
        return mine

    def functional_pad(gradient, padding):
        return torch.cat([gradient, gradient.new_zeros(padding)])
