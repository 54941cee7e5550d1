"""Right answers to lesson 08, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.variants import variant


@variant("08-ex1-shard-bounds")
def bounds_with_divmod():
    """Rounds up with divmod and cuts a range."""

    def shard_bounds(numel, rank, world_size):
        if world_size <= 0 or numel < 0 or rank not in range(world_size):
            raise ValueError(f"world_size={world_size}, rank={rank}, numel={numel} do not fit")
        quotient, rest = divmod(numel, world_size)
        size = quotient + bool(rest)
        mine = range(numel)[rank * size : (rank + 1) * size]
        return mine.start, mine.stop


@variant("08-ex2-flatten")
def flatten_into_a_buffer():
    """Fills a vector piece by piece; writes back through .data, from last to first."""

    def flatten(params):
        flat, at = torch.empty(sum(p.numel() for p in params), dtype=torch.float32), 0
        for p in params:
            flat[at : at + p.numel()] = p.data.contiguous().view(-1)
            at += p.numel()
        return flat

    def unflatten_into(params, flat):
        end = flat.numel()
        if end != sum(p.numel() for p in params):
            raise ValueError("flat has another length than the parameters")
        for p in reversed(list(params)):
            p.data.copy_(flat[end - p.numel() : end].reshape(p.shape))
            end -= p.numel()


@variant("08-ex3-step")
def one_rank_needs_no_copy():
    """With one rank, float32 parameters become views of the master, which the object then does not hold twice."""

    class ShardedOptimizer(Wrapper):
        def __init__(self, params, optimizer_class=torch.optim.Adam, **kwargs):
            self.params = [p for p in dict.fromkeys(params) if p.requires_grad]
            self.numel = sum(p.numel() for p in self.params)
            self.size = math.ceil(self.numel / dist.get_world_size())
            self.alone = dist.get_world_size() == 1 and all(p.dtype == torch.float32 for p in self.params)
            padded = torch.zeros(self.size * dist.get_world_size())
            padded[: self.numel] = flatten(self.params)
            start = self.size * dist.get_rank()
            self.master = nn.Parameter(padded[start : start + self.size].clone())
            if self.alone:
                for p, piece in zip(self.params, self._pieces(self.master.data), strict=True):
                    p.data = piece
            self.optimizer = optimizer_class([self.master], **kwargs)
            self.gradient = None

        def _pieces(self, flat):
            cut = flat.split([p.numel() for p in self.params])
            return [piece.view(p.shape) for piece, p in zip(cut, self.params, strict=True)]

        def reduced_gradient(self):
            if self.gradient is None:
                full = torch.zeros(self.size * dist.get_world_size())
                full[: self.numel] = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in self.params])
                self.gradient = full if self.alone else torch.empty(self.size)
                if not self.alone:
                    dist.reduce_scatter_single(self.gradient, full)
                    self.gradient /= dist.get_world_size()
            return self.gradient

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


@variant("08-ex3-step")
def shards_through_lists():
    """Uses torch's collectives over lists of tensors, a plain tensor as master, and takes the mean before sending."""

    class ShardedOptimizer(Wrapper):
        def __init__(self, params, optimizer_class=torch.optim.Adam, **kwargs):
            self.params, self.gradient = [], None
            for p in params:
                if p.requires_grad and not any(p is known for known in self.params):
                    self.params.append(p)
            self.n, self.rank = dist.get_world_size(), dist.get_rank()
            self.count = sum(p.numel() for p in self.params)
            self.length = (self.count + self.n - 1) // self.n
            self.numel = self.count
            padded = torch.cat([flatten(self.params), torch.zeros(self.length * self.n - self.count)])
            self.master = nn.Parameter(padded.chunk(self.n)[self.rank].clone())
            self.optimizer = optimizer_class([self.master], **kwargs)

        def reduced_gradient(self):
            if self.gradient is None:
                flat = torch.zeros(self.length * self.n)
                at = 0
                for p in self.params:
                    if p.grad is not None:
                        flat[at : at + p.numel()] = p.grad.reshape(-1)
                    at += p.numel()
                self.gradient = torch.zeros(self.length)
                dist.reduce_scatter(self.gradient, list((flat / self.n).chunk(self.n)))
            return self.gradient

        def step(self):
            self.master.grad = self.reduced_gradient().clone()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.gradient = None
            self.gather_parameters()

        def gather_parameters(self):
            parts = [torch.empty(self.length) for _ in range(self.n)]
            dist.all_gather(parts, self.master.detach().clone())
            unflatten_into(self.params, torch.cat(parts)[: self.count])

        def state_bytes(self):
            tensors = [self.master.data]
            for state in self.optimizer.state.values():
                tensors += [value for value in state.values() if torch.is_tensor(value) and value.ndim > 0]
            return sum(tensor.element_size() * tensor.numel() for tensor in tensors)

        @property
        def size(self):
            return self.length


@variant("08-ex4-clip")
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


@variant("08-ex5-state")
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


@variant("08-ex6-memory")
def memory_part_by_part():
    """Adds up the three parts, rounded up in integers."""

    def memory_per_rank(parameters, world_size, stage):
        if stage not in range(4):
            raise ValueError(f"no such stage: {stage}")
        if parameters < 0 or world_size < 1:
            raise ValueError(f"parameters {parameters} or world_size {world_size} cannot be")
        piece = (parameters + world_size - 1) // world_size
        weights = 2 * (piece if stage == 3 else parameters)
        gradients = 2 * (piece if stage >= 2 else parameters)
        return weights + gradients + 12 * (piece if stage else parameters)
