"""Right answers to lesson 09, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.variants import variant


@variant("09-ex1-partition")
def partition_by_owners():
    """Records for every place the unit that it is in, and detects records that collide."""

    def partition(module, units):
        if len(units) == 0 or not all(any(unit is sub for sub in module.modules()) for unit in units):
            raise ValueError(f"these units are not submodules: {len(units)} of them")
        owner = {}
        for index, unit in enumerate(units):
            for sub, name, p in places_of(unit):
                if owner.setdefault(id(p), index) != index or (id(sub), name) in owner:
                    raise ValueError("units overlap")
                owner[id(sub), name] = index
        if any((id(sub), name) not in owner for sub, name, _ in places_of(module)):
            raise ValueError("units do not cover the module")
        return [list(dict.fromkeys(p for _, p in unit.named_parameters())) for unit in units]


@variant("09-ex2-cut")
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


@variant("09-ex3-unit")
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


@variant("09-ex4-backward")
def backward_that_recomputes():
    """Keeps the unit's inputs and computes it again, with the random state and the buffers of the first time."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, unit, shard, *inputs):
            ctx.unit, ctx.random = unit, torch.get_rng_state()
            ctx.buffers = [b.clone() for b in unit.buffers()]
            ctx.save_for_backward(*inputs)
            return ShardedUnit.forward(unit, *inputs)

        @staticmethod
        def backward(ctx, gradient):
            unit, flats = ctx.unit, [flat.detach() for flat in ctx.unit.gather()]
            flats[0].requires_grad_()
            inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
            now = [b.clone() for b in unit.buffers()]
            for buffer, then in zip(unit.buffers(), ctx.buffers):
                buffer.copy_(then)
            with torch.random.fork_rng(), torch.enable_grad(), hung(unit.places, unit.views(flats)):
                torch.set_rng_state(ctx.random)
                output = unit.compute(*inputs)
            torch.autograd.backward(output, gradient)
            del output
            for buffer, then in zip(unit.buffers(), now):
                buffer.copy_(then)
            unit.free()
            return None, unit.reduce(flats[0].grad) if len(unit.shard) else None, *(x.grad for x in inputs)

    class TrainableUnit(ShardedUnit):
        def buffers(self):
            return [b for sub in dict.fromkeys(self.compute.__self__.modules(), 0) for b in sub._buffers.values()]

        def forward(self, *inputs):
            if torch.is_grad_enabled():
                return Again.apply(self, self.shard, *inputs)
            return super().forward(*inputs)

        def reduce(self, gradient):
            n = dist.get_world_size()
            full = nn.functional.pad(gradient.float() / n, (0, n * len(self.shard) - len(gradient)))
            shard = torch.empty(len(self.shard))
            dist.reduce_scatter(shard, list(full.chunk(n)))
            return shard


@variant("09-ex5-costs")
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


@variant("09-ex6-fsdp")
def storages_that_come_and_go():
    """As PyTorch does: the module keeps its parameters, whose storage is emptied and filled again; hooks on modules and
    tensors; a unit's backward ends when another one's begins, or at the end."""

    class FullyShardedDataParallel(nn.Module):
        def __init__(self, module, units, compute_dtype=None):
            super().__init__()
            parts = partition(module, units)
            for tensor in [*module.buffers(), *module.parameters()]:
                broadcast(tensor)
            self.module, self.dtype, self.active, self.records = module, compute_dtype, None, []
            for unit, params in zip(units, parts):
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
            if self.active is None:
                torch.autograd.Variable._execution_engine.queue_callback(self.finish)
            self.finish()
            self.active = record
            self.fill(record)

        def finish(self):
            record, self.active = self.active, None
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


@variant("09-ex7-hybrid")
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
