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
def unit_that_frees_in_any_case():
    """Keeps a frozen parameter instead of a tensor, and frees at the end of a try."""

    class ShardedUnit(Hanging):
        def __init__(self, unit, compute_dtype=None):
            print("taking over", type(unit).__name__)
            groups = self.take_over(unit)
            self.shard = nn.Parameter(cut(groups[0]), requires_grad=True)
            self.frozen_shard = nn.Parameter(cut(groups[1]), requires_grad=False)
            self.settings, self.whole = {} if compute_dtype is None else {"dtype": compute_dtype}, None

        def gather(self):
            if not self.whole:
                self.whole = gather([self.shard.data, self.frozen_shard.data], self.numels, **self.settings)
            return self.whole

        def free(self):
            self.whole = None

        def forward(self, *inputs):
            try:
                with self.hung(self.gather()):
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
            with saved_tensors_hooks(self.pack, self.unpack), self.hung([first, second]):
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


@answer_to("09-ex4-initialize")
def initialize_by_what_is_filled():
    """Counts how much of the shard is filled, and lets go of each tensor before the next one is drawn."""

    def initialize(shapes, draw, seed):
        numel = sum(torch.Size(shape).numel() for shape in shapes)
        size = (numel + dist.get_world_size() - 1) // dist.get_world_size()
        generator, start, at, filled = torch.Generator(), dist.get_rank() * size, 0, 0
        generator.manual_seed(seed)
        shard = torch.zeros(size)
        for shape in shapes:
            numbers = draw(shape, generator).flatten()
            own = numbers[max(start - at, 0) : max(start + size - at, 0)]
            shard[filled : filled + len(own)] = own
            filled, at = filled + len(own), at + len(numbers)
            del numbers, own
        return shard


@answer_to("09-ex5-fsdp")
def wrapper_that_names_what_it_gathers():
    """Makes the shards a ParameterList, looks for what the module still has, names tensors itself."""

    class FullyShardedDataParallel(WrapperBase):
        def sharded(self, units):
            found = []
            for unit in units:
                found.append(TrainableUnit(unit, compute_dtype=self.compute_dtype))
            if list(self.module.parameters()):
                found += [TrainableUnit(self.module, self.compute_dtype)]
            self.trained = nn.ParameterList([unit.shard for unit in found if unit.shard.numel()])
            return found

        def parameters(self, recurse=True):
            yield from self.trained

        def full_state_dict(self):
            names = {id(sub): f"{name}." if name else "" for name, sub in self.module.named_modules()}
            state = {name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}
            for unit in self.units:
                with unit.hung(gather([unit.shard.data, unit.frozen_shard], unit.numels)):
                    if dist.get_rank() == 0:
                        for sub, name, _ in unit.places:
                            state[names[id(sub)] + name] = sub._parameters[name].detach().clone()
            return state if dist.get_rank() == 0 else {}


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
    """Looks the members up in a table of ranks, scatters a list of pieces, divides first, gathers its own digests."""

    def hybrid_groups(size):
        n = dist.get_world_size()
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

    def copies_agree(shard, copy_group):
        digest = hashlib.blake2b(shard.contiguous().numpy().tobytes(), digest_size=8).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(dist.get_world_size(copy_group))]
        dist.all_gather(found, mine, group=copy_group)
        return all(torch.equal(one, found[0]) for one in found)
