"""Right answers to lesson 08, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("08-ex1-shard-bounds")
def bounds_with_divmod():
    """Rounds up with divmod and cuts a range; fills a vector piece by piece."""

    def shard_bounds(numel, rank, world_size):
        if world_size <= 0 or numel < 0 or rank not in range(world_size):
            raise ValueError(f"world_size={world_size}, rank={rank}, numel={numel} do not fit")
        quotient, rest = divmod(numel, world_size)
        size = quotient + bool(rest)
        mine = range(numel)[rank * size : (rank + 1) * size]
        return mine.start, mine.stop

    def flatten(tensors):
        flat, at = torch.empty(sum(t.numel() for t in tensors), dtype=torch.float32), 0
        for t in tensors:
            flat[at : at + t.numel()] = t.data.contiguous().view(-1)
            at += t.numel()
        return flat


@answer_to("08-ex2-gradient")
def gradient_through_a_list():
    """Takes the mean before it sends, and reduce-scatters a list of tensors."""

    class ShardedGradient:
        def __init__(self, params):
            self.params, self.gradient = [], None
            for p in params:
                if p.requires_grad and not any(p is known for known in self.params):
                    self.params.append(p)
            self.n, self.numel = dist.get_world_size(), sum(p.numel() for p in self.params)
            self.size = (self.numel + self.n - 1) // self.n

        def reduced_gradient(self):
            if self.gradient is None:
                flat, at = torch.zeros(self.size * self.n), 0
                for p in self.params:
                    if p.grad is not None:
                        flat[at : at + p.numel()] = p.grad.reshape(-1)
                    at += p.numel()
                self.gradient = torch.zeros(self.size)
                dist.reduce_scatter(self.gradient, list((flat / self.n).chunk(self.n)))
            return self.gradient

        def zero_grad(self):
            for p in self.params:
                p.grad = None
            self.gradient = None


@answer_to("08-ex3-step")
def one_rank_needs_no_copy():
    """With one rank, float32 parameters become views of the master, which the object then does not hold twice."""

    class ShardedOptimizer(ShardedGradient):
        def __init__(self, params, optimizer_class=torch.optim.Adam, **kwargs):
            super().__init__(params)
            self.alone = dist.get_world_size() == 1 and all(p.dtype == torch.float32 for p in self.params)
            padded = torch.zeros(self.size * dist.get_world_size())
            padded[: self.numel] = flatten(self.params)
            start = self.size * dist.get_rank()
            self.master = nn.Parameter(padded[start : start + self.size].clone())
            if self.alone:
                for p, piece in zip(self.params, self._pieces(self.master.data), strict=True):
                    p.data = piece
            self.optimizer = optimizer_class([self.master], **kwargs)

        def _pieces(self, flat):
            cut = flat.split([p.numel() for p in self.params])
            return [piece.view(p.shape) for piece, p in zip(cut, self.params, strict=True)]

        @property
        def param_groups(self):
            return self.optimizer.param_groups

        def step(self):
            self.master.grad = self.reduced_gradient()
            self.optimizer.step()
            self.master.grad = self.gradient = None
            self.gather_parameters()

        def gather_parameters(self):
            if self.alone:
                with torch.no_grad():  # does nothing, unless the parameters were given other memory since
                    for p, piece in zip(self.params, self._pieces(self.master.data), strict=True):
                        p.copy_(piece)
                return
            full = torch.empty(self.size * dist.get_world_size())
            dist.all_gather_single(full, self.master.detach())
            unflatten_into(self.params, full[: self.numel])

        def state_bytes(self):
            tensors = [self.master, *self.optimizer.state[self.master].values()]
            return sum(t.nbytes for t in tensors if torch.is_tensor(t) and t.dim())


@answer_to("08-ex3-step")
def groups_of_its_own():
    """Keeps groups of its own and hands their rates to the wrapped optimizer in each step; gathers a list."""

    class ShardedOptimizer(ShardedGradient):
        def __init__(self, params, optimizer_class=torch.optim.Adam, **kwargs):
            super().__init__(params)
            self.n = dist.get_world_size()
            padded = torch.cat([flatten(self.params), torch.zeros(self.size * self.n - self.numel)])
            self.master = nn.Parameter(padded.chunk(self.n)[dist.get_rank()].clone())
            self.optimizer = optimizer_class([self.master], **kwargs)
            self.groups = [{key: value for key, value in self.optimizer.param_groups[0].items() if key != "params"}]

        @property
        def param_groups(self):
            return self.groups

        def step(self):
            self.optimizer.param_groups[0].update(self.groups[0])
            self.master.grad = self.reduced_gradient().clone()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.gradient = None
            self.gather_parameters()

        def gather_parameters(self):
            parts = [torch.empty(self.size) for _ in range(self.n)]
            dist.all_gather(parts, self.master.detach().clone())
            unflatten_into(self.params, torch.cat(parts)[: self.numel])

        def state_bytes(self):
            tensors = [self.master.data]
            for state in self.optimizer.state.values():
                tensors += [value for value in state.values() if torch.is_tensor(value) and value.ndim > 0]
            return sum(tensor.element_size() * tensor.numel() for tensor in tensors)


@answer_to("08-ex4-clip")
def clips_with_an_all_gather_of_squares():
    """Gathers the ranks' squared norms in float64, and scales only where needed."""

    class ClippingOptimizer(ShardedOptimizer):
        def clip_grad_norm_(self, max_norm):
            shard = self.reduced_gradient()
            mine = (shard.double() ** 2).sum().reshape(1)
            everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, mine)
            norm = sum(part.item() for part in everyone) ** 0.5
            if norm > max_norm:
                shard.mul_(max_norm / (norm + 1e-6))
            return norm


@answer_to("08-ex5-state")
def state_through_torchs_own():
    """Saves and loads through the wrapped optimizer's own state_dict."""

    class ZeroOptimizer(ClippingOptimizer):
        def own(self):
            start, end = shard_bounds(self.numel, dist.get_rank(), dist.get_world_size())
            return end - start

        def state_dict(self):
            saved = {"master": self.master.data[: self.own()].clone(), "lr": float(self.param_groups[0]["lr"])}
            for name, value in self.optimizer.state_dict()["state"].get(0, {}).items():
                if torch.is_tensor(value) and value.dim():
                    saved[name] = value[: self.own()].clone()
                elif value is not None:
                    saved[name] = int(value)
            return saved

        def load_state_dict(self, state):
            if len(state["master"]) != self.own():
                raise ValueError(f"the master shard has {len(state['master'])} numbers, expected {self.own()}")
            whole = self.optimizer.state_dict()
            inner = {}
            for name, value in state.items():
                if name not in ("master", "lr"):
                    tensor = torch.is_tensor(value)
                    missing = self.size - self.own()
                    inner[name] = nn.functional.pad(value, (0, missing)) if tensor else torch.tensor(float(value))
            whole["state"] = {0: inner} if inner else {}
            whole["param_groups"][0]["lr"] = state["lr"]
            self.optimizer.load_state_dict(whole)
            with torch.no_grad():
                self.master[: self.own()] = state["master"]
            self.gradient = None
            self.gather_parameters()


@answer_to("08-ex6-sent")
def sent_collective_by_collective():
    """Adds up the collectives of a step, each from its chunks."""

    def sent_per_step(parameters, world_size, stage, micro_batches):
        piece = (parameters + world_size - 1) // world_size
        scatter, gather = 4 * piece * (world_size - 1), 2 * piece * (world_size - 1)
        if stage == 0:
            return 2 * scatter
        if stage == 1:
            return scatter + gather
        per_batch = scatter if stage == 2 else scatter + 2 * gather
        return micro_batches * per_batch + (gather if stage == 2 else 0)


@answer_to("08-ex7-buckets")
def buckets_with_counters():
    """Counts on the bucket's own object, divides before it sends, and writes through views of the buffer."""

    class Bucket:
        def __init__(self, params):
            self.params, self.shard, self.start = params, None, {}
            at = 0
            for p in params:
                self.start[p] = at
                at += p.numel()
            self.size = math.ceil(at / dist.get_world_size())
            self.begin()

        def begin(self):
            self.full, self.count, self.shard = None, 0, None

        def take(self, p):
            if self.full is None:
                self.full = torch.zeros(self.size * dist.get_world_size())
            self.full[self.start[p] :][: p.numel()].view(p.shape).copy_(p.grad)
            p.grad = None
            self.count += 1

        def reduce(self):
            full = torch.zeros(self.size * dist.get_world_size()) if self.full is None else self.full
            full /= dist.get_world_size()
            self.shard = torch.empty(self.size)
            dist.reduce_scatter_tensor(self.shard, full)
            self.full = None

    class GradientBuckets:
        def __init__(self, buckets):
            self.all = [Bucket(list(params)) for params in buckets]
            self.next = 0
            for bucket in self.all:
                for p in bucket.params:
                    p.register_post_accumulate_grad_hook(lambda p, bucket=bucket: self.take(bucket, p))

        def take(self, bucket, p):
            bucket.take(p)
            while self.next < len(self.all) and self.all[self.next].count == len(self.all[self.next].params):
                self.all[self.next].reduce()
                self.next += 1

        def finish(self):
            for bucket in self.all[self.next :]:
                bucket.reduce()
            shards = [bucket.shard for bucket in self.all]
            for bucket in self.all:
                bucket.begin()
            self.next = 0
            return shards

    def peak_bytes(numels, world_size):
        totals = [(sum(sizes) + world_size - 1) // world_size for sizes in numels]
        moments = [
            sum(totals[:k]) + world_size * totals[k] + max([totals[k], *sizes]) for k, sizes in enumerate(numels)
        ]
        return 4 * max(moments)
