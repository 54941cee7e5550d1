"""Right answers to lesson 05, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("05-ex1-broadcast-parameters")
def broadcast_everything_in_one_message():
    """Joins the bytes of all tensors, broadcasts once, and cuts them up again."""

    @torch.no_grad()
    def broadcast_parameters(module, src=0):
        tensors = list(module.parameters()) + list(module.buffers())
        parts = [t.data.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in tensors]
        joined = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8)
        dist.broadcast(joined, src=src)
        for t, part in zip(tensors, joined.split([len(part) for part in parts])):
            t[...] = part.clone().view(t.dtype).reshape(t.shape)
        return module


@answer_to("05-ex1-broadcast-parameters")
def broadcast_by_send_and_receive():
    """The source sends every tensor to every other rank; prints what it does."""

    def broadcast_parameters(module, src=0):
        rank, n = dist.get_rank(), dist.get_world_size()
        seen = set()
        for group in (module.named_parameters(), module.named_buffers()):
            for name, tensor in group:
                if id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                print("broadcasting", name)
                data = tensor.detach().reshape(-1).clone()
                if rank == src:
                    for other in range(n):
                        if other != src:
                            dist.send(data.view(torch.uint8), other)
                else:
                    dist.recv(data.view(torch.uint8), src)
                    with torch.no_grad():
                        tensor.copy_(data.reshape(tensor.shape))


@answer_to("05-ex2-bucket-sizes")
def sizes_from_the_earliest_ends():
    """Computes only the earliest ends, and then looks for the largest last bucket that is in time."""

    def bucket_sizes(ready, start_up, per_gradient):
        n = len(ready)
        earliest = [0.0] * (n + 1)  # of the first k gradients, with any last bucket
        for k in range(1, n + 1):
            earliest[k] = min(max(ready[k - 1], earliest[i]) + start_up + per_gradient * (k - i) for i in range(k))
        end, sizes = earliest[n], []
        while n:  # the largest last bucket that is in time
            for first in range(n):
                cost = start_up + per_gradient * (n - first)
                if max(ready[n - 1], earliest[first]) + cost <= end + 1e-12:
                    break
            sizes.append(n - first)
            n, end = first, end - cost
        return tuple(reversed(sizes))


@answer_to("05-ex3-start-finish")
def average_by_the_backend():
    """Lets the backend divide (ReduceOp.AVG), fills a flat tensor piece by piece, and makes views of it gradients."""

    def start_bucket(bucket):
        flat = bucket[0].new_zeros(sum(p.numel() for p in bucket)).detach()
        place = 0
        for p in bucket:
            if p.grad is not None:
                flat[place : place + p.numel()] = p.grad.detach().flatten()
            place += p.numel()
        return flat, dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)

    def finish_bucket(bucket, flat, work):
        work.wait()
        place = 0
        for p in bucket:
            piece = flat.narrow(0, place, p.numel()).view(p.shape)
            place += p.numel()
            if p.grad is None:
                p.grad = piece
            else:
                p.grad[...] = piece


@answer_to("05-ex3-start-finish")
def average_divided_first():
    """Divides before the sum."""

    def start_bucket(bucket):
        pieces = []
        for p in bucket:
            grad = p.grad if p.grad is not None else torch.zeros(p.shape, dtype=p.dtype)
            pieces.append(grad.contiguous().view(-1) / dist.get_world_size())
        flat = torch.cat(pieces)
        work = dist.all_reduce(flat, dist.ReduceOp.SUM, None, True)
        return flat, work

    def finish_bucket(bucket, flat, work):
        work.wait()
        for p, piece in zip(bucket, torch.split(flat, [p.numel() for p in bucket])):
            piece = piece.reshape(p.shape)
            if p.grad is None:
                p.grad = piece.clone()
            else:
                p.grad.copy_(piece)


@answer_to("05-ex4-reducer")
def reducer_with_sets():
    """Keeps for each bucket the parameters that are still to come, and waits for the last bucket first."""

    class Reducer:
        def __init__(self, buckets):
            self.buckets = [list(bucket) for bucket in buckets]
            self.reset()

        def reset(self):
            self.to_come = [{id(p): p for p in bucket} for bucket in self.buckets]
            self.handles = {}

        def mark_ready(self, param):
            home = next(k for k, bucket in enumerate(self.buckets) if any(p is param for p in bucket))
            if self.to_come[home].pop(id(param), None) is None:
                raise RuntimeError("did you forget finish_gradient_sync()?")
            self.start(lambda k: not self.to_come[k])

        def start(self, condition):
            for k in range(len(self.handles), len(self.buckets)):
                if not condition(k):
                    return
                self.handles[k] = start_bucket(self.buckets[k])

        def finish(self):
            self.start(lambda k: True)
            for k in reversed(range(len(self.buckets))):
                finish_bucket(self.buckets[k], *self.handles[k])
            self.reset()


@answer_to("05-ex5-ddp")
def ddp_without_the_reducer():
    """Everything in one class: a small reducer of its own, bound methods as hooks, flat tensors that are kept."""

    class DistributedDataParallel(nn.Module):
        def __init__(self, module, bucket_bytes=25 * 2**20):
            super().__init__()
            self.module, self.reducer = module, self
            broadcast_parameters(module)
            self.buckets = make_buckets(module.parameters(), bucket_bytes)
            self.flats = [torch.cat([torch.zeros(p.numel(), dtype=p.dtype) for p in b]) for b in self.buckets]
            self.marked, self.works = set(), []
            for bucket in self.buckets:
                for p in bucket:
                    p.register_post_accumulate_grad_hook(self.on_gradient)

        def on_gradient(self, param):
            if id(param) in self.marked:
                raise RuntimeError("backward ran twice: finish_gradient_sync() comes after each")
            self.marked.add(id(param))
            while len(self.works) < len(self.buckets):
                if not all(id(p) in self.marked for p in self.buckets[len(self.works)]):
                    break
                self.launch(len(self.works))

        def launch(self, k):
            for p, piece in zip(self.buckets[k], self.flats[k].split([p.numel() for p in self.buckets[k]])):
                piece.copy_(torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1))
            self.flats[k] /= dist.get_world_size()
            self.works.append(dist.all_reduce(self.flats[k], async_op=True))

        def forward(self, *inputs, **named):
            return self.module(*inputs, **named)

        def finish_gradient_sync(self):
            for k in range(len(self.works), len(self.buckets)):
                self.launch(k)
            for bucket, flat, work in zip(self.buckets, self.flats, self.works):
                work.wait()
                for p, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
                    p.grad = mean.view(p.shape).clone()
            self.marked, self.works = set(), []


@answer_to("05-ex5-ddp")
def ddp_that_sends_nothing_alone():
    """A single rank needs nobody: it registers no reducer's hooks to send, and its gradients are the means."""
    import sys

    class DistributedDataParallel(nn.Module):
        def __init__(self, module, bucket_bytes=25 * 2**20):
            super().__init__()
            print("wrapping", type(module).__name__, file=sys.stderr)
            broadcast_parameters(module, 0)
            self.module = module
            self.alone = dist.get_world_size() == 1
            self.reducer = Reducer(make_buckets(list(module.parameters()), bucket_bytes))
            if self.alone:  # remembers who came, sends nothing
                self.came = set()
                self.reducer.mark_ready = lambda p: self.came.add(id(p))
            for p in filter(lambda p: p.requires_grad, module.parameters()):
                p.register_post_accumulate_grad_hook(lambda p: self.on_gradient(p))

        def on_gradient(self, param):
            self.reducer.mark_ready(param)

        def forward(self, *args, **kwargs):
            return self.module.forward(*args, **kwargs)

        def finish_gradient_sync(self):
            if not self.alone:
                return self.reducer.finish()
            self.came.clear()
            return None
