"""Right answers to lesson 07, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.variants import variant


@variant("07-ex1-top-k")
def top_k_by_sorting():
    """Sorts all magnitudes, returns the places in ascending order, and decompresses with scatter."""

    def top_k_compress(grad, ratio):
        if ratio <= 0 or ratio > 1:
            raise ValueError("ratio must lie in (0, 1]")
        flat = grad.detach().flatten().clone()
        if flat.numel() == 0:
            return flat, torch.empty(0, dtype=torch.long)
        k = max(1, int(ratio * flat.numel()))
        order = torch.argsort(flat.abs(), descending=True)[:k]
        order, _ = torch.sort(order)
        return flat.index_select(0, order), order

    def top_k_decompress(values, indices, shape):
        size = torch.Size(shape)
        if values.shape != indices.shape:
            raise ValueError("values and indices differ in length")
        if ((indices < 0) | (indices >= size.numel())).any():
            raise ValueError("indices outside the shape")
        return torch.zeros(size.numel(), dtype=values.dtype).scatter(0, indices, values).view(size)


@variant("07-ex1-top-k")
def top_k_in_numpy():
    """Uses numpy's argpartition, and warns on stderr."""
    import sys

    def top_k_compress(grad, ratio):
        if not (0.0 < ratio <= 1.0):
            raise ValueError(f"ratio={ratio}")
        print("compressing", file=sys.stderr)
        flat = grad.detach().cpu().numpy().reshape(-1)
        k = min(flat.size, max(1, math.floor(ratio * flat.size)))
        if k == flat.size:
            places = np.arange(flat.size)
        else:
            places = np.argpartition(np.abs(flat), flat.size - k)[flat.size - k :]
        return torch.tensor(flat[places], dtype=grad.dtype), torch.tensor(places, dtype=torch.int64)

    def top_k_decompress(values, indices, shape):
        numel = int(np.prod(shape))
        if len(values) != len(indices):
            raise ValueError("as many indices as values, please")
        out = torch.zeros(shape, dtype=values.dtype)
        for value, index in zip(values.tolist(), indices.tolist(), strict=True):
            if index not in range(numel):
                raise ValueError(f"indices: {index}")
            out.view(-1)[index] = value
        return out


@variant("07-ex2-error-feedback")
def feedback_in_place():
    """Keeps one buffer per key, to which gradients are added and in which sent entries are set to zero."""
    from collections import OrderedDict

    class ErrorFeedback:
        def __init__(self, ratio):
            self.ratio, self.residual = ratio, OrderedDict()

        def compress(self, key, grad):
            if key not in self.residual:
                self.residual[key] = torch.zeros(grad.shape, dtype=grad.dtype)
            owed = self.residual[key]
            owed += grad
            values, indices = top_k_compress(owed, self.ratio)
            owed.view(-1)[indices] = 0
            print("kept", float(owed.abs().sum()))
            return values, indices


@variant("07-ex3-top-k-hook")
def hook_with_one_gather_a_bucket():
    """Joins the values and indices of a bucket, gathers each once, and adds with index_add into a new buffer."""

    def top_k_hook(state, bucket):
        feedback, params = state
        n = dist.get_world_size()
        pieces, offset = [], 0
        for param, grad in zip(bucket.parameters(), bucket.gradients(), strict=True):
            key = next(number for number, candidate in enumerate(params) if candidate is param)
            values, indices = feedback.compress(key, grad)
            pieces.append((values, indices + offset))
            offset += grad.numel()
        values, indices = (torch.cat(part) for part in zip(*pieces, strict=True))
        all_values, all_indices = values.new_empty(n * len(values)), indices.new_empty(n * len(indices))
        dist.all_gather_single(all_values, values)
        dist.all_gather_single(all_indices, indices)
        mean = torch.zeros_like(bucket.buffer()).index_add_(0, all_indices, all_values / n)
        future = torch.futures.Future()
        future.set_result(mean)
        return future


@variant("07-ex3-top-k-hook")
def hook_that_returns_before_it_is_done():
    """Starts asynchronous all-gathers, adds up in a callback when they are done, and has type annotations."""

    def top_k_hook(state: tuple, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        feedback, params = state
        n = dist.get_world_size()
        parts, futures, views = [], [], list(bucket.gradients())
        for param, grad in zip(bucket.parameters(), views, strict=True):
            place = [id(p) for p in params].index(id(param))
            for own in feedback.compress(place, grad):
                everybody = [torch.empty_like(own) for _ in range(n)]
                futures.append(dist.all_gather(everybody, own, async_op=True).get_future())
                parts.append(everybody)

        def finish(_):
            for number, grad in enumerate(views):
                total = torch.zeros_like(grad)
                for values, indices in zip(parts[2 * number], parts[2 * number + 1], strict=True):
                    total += top_k_decompress(values, indices, grad.shape)
                grad.copy_(total).div_(n)
            return bucket.buffer()

        return torch.futures.collect_all(futures).then(finish)


@variant("07-ex4-parameter-server")
def server_on_request():
    """Workers ask before they get weights, and send their step with the gradient; the server counts nothing."""

    def parameter_server(rank, world_size, weights, gradient, steps, lr, mode):
        if mode not in {"sync", "async"}:
            raise ValueError("mode: sync or async")
        if world_size <= 1:
            raise ValueError("world_size: a server needs a worker")
        numel = weights.numel()
        if rank != 0:
            for step in range(steps):
                mine = torch.empty(numel + 1, dtype=weights.dtype)
                dist.recv(mine, src=0)
                pulled, version = mine[:-1].view(weights.shape), mine[-1]
                push = torch.cat([gradient(pulled, rank, step).reshape(-1), torch.stack([version])])
                dist.send(push, dst=0)
            return None
        w, n, log, updates = weights.detach().clone().reshape(-1), world_size - 1, [], 0
        step_of = [0] * world_size

        def answer(worker):
            dist.send(torch.cat([w, torch.tensor([float(updates)], dtype=w.dtype)]), dst=worker)

        for worker in range(1, world_size):
            answer(worker)
        waiting = []
        while len(log) + len(waiting) < n * steps:
            push = torch.empty(numel + 1, dtype=w.dtype)
            worker = dist.recv(push)
            if mode == "async":
                log.append((worker, step_of[worker], updates - int(push[-1])))
                w = w - lr * push[:-1]
                updates += 1
            else:
                waiting.append((worker, push[:-1]))
                if len(waiting) < n:
                    continue
                waiting.sort(key=lambda pair: pair[0])
                log += [(who, step_of[who], 0) for who, _ in waiting]
                w = w - lr * torch.stack([g for _, g in waiting]).mean(dim=0)
            for who in [worker] if mode == "async" else range(1, world_size):
                step_of[who] += 1
                if step_of[who] < steps:
                    answer(who)
            waiting = []
        return w.view(weights.shape), log


@variant("07-ex4-parameter-server")
def server_that_also_answers_the_last_push():
    """Sends weights by isend, once more after the last push, and makes log entries from lists."""

    def parameter_server(rank, world_size, weights, gradient, steps, lr, mode):
        if world_size < 2 or mode not in ("sync", "async"):
            raise ValueError(f"world_size={world_size}, mode={mode}")
        if rank:
            local = torch.zeros(weights.shape, dtype=weights.dtype)
            dist.recv(local, src=0)
            for step in range(steps):
                dist.isend(gradient(local, rank, step).contiguous(), dst=0).wait()
                dist.irecv(local, src=0).wait()
            return None
        state, workers = weights.detach().contiguous().clone(), list(range(1, world_size))
        log, sent, count = [], dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
        pending = [dist.isend(state.clone(), dst=worker) for worker in workers]
        while len(log) < steps * len(workers):
            if mode == "sync":
                buffers = {worker: torch.empty_like(state) for worker in workers}
                for worker in workers:
                    dist.recv(buffers[worker], src=worker)
                for worker in workers:
                    state -= lr / len(workers) * buffers[worker]
                    log.append((worker, count[worker], 0))
                answered = workers
            else:
                buffer = torch.empty_like(state)
                answered = [dist.recv(buffer)]
                log.append((answered[0], count[answered[0]], len(log) - sent[answered[0]]))
                state -= lr * buffer
            for worker in answered:
                count[worker] += 1
                sent[worker] = len(log)
                pending.append(dist.isend(state.clone(), dst=worker))
        for work_of_send in pending:
            work_of_send.wait()
        return state, log


@variant("07-ex5-loss-scaler")
def scaler_in_other_words():
    """Multiplies by the reciprocal, copies through .data, decides in numpy, and keeps the factor in a property."""

    class LossScaler:
        def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
            self._factor, self._up, self._down = float(init_scale), growth_factor, backoff_factor
            self._every, self._left = growth_interval, growth_interval

        @property
        def value(self):
            return self._factor

        def scale(self, loss):
            return loss.to(torch.float32).mul(self._factor)

        def step(self, optimizer, params, masters):
            grads = [None if p.grad is None else p.grad.detach().to(torch.float32) for p in params]
            if not all(np.isfinite(g.numpy()).all() for g in grads if g is not None):
                self._factor, self._left = self._factor * self._down, self._every
                return False
            optimizer.zero_grad(set_to_none=True)
            for master, grad in zip(masters, grads, strict=True):
                if grad is not None:
                    master.grad = grad * (1.0 / self._factor)
            optimizer.step()
            for param, master in zip(params, masters, strict=True):
                param.data = master.detach().to(param.dtype)
            self._left -= 1
            if self._left == 0:
                self._factor, self._left = self._factor * self._up, self._every
            return True


@variant("07-ex6-benchmark")
def benchmark_in_one_launch():
    """Makes one launch for all strategies, uses torch throughout, all_gather_single for top-k, and the median's
    speed."""

    class AllReduceExchange:
        def __init__(self, rank, world_size, dtype=None):
            self.n, self.wire = world_size, dtype

        def __call__(self, grad):
            buffer = torch.empty(grad.shape, dtype=self.wire or grad.dtype).copy_(grad)
            dist.all_reduce(buffer, op=dist.ReduceOp.SUM)
            mean = buffer.to(grad.dtype).div(self.n)
            return mean, 2 * buffer.nbytes * (self.n - 1) / self.n

    class TopKExchange:
        def __init__(self, rank, world_size, ratio, feedback=True):
            self.n, self.ratio, self.memory = world_size, ratio, ErrorFeedback(ratio) if feedback else None

        def __call__(self, grad):
            pair = self.memory.compress("grad", grad) if self.memory else top_k_compress(grad, self.ratio)
            mean, spent = torch.zeros_like(grad), 0
            gathered = []
            for own in pair:
                everybody = own.new_empty(self.n * len(own))
                dist.all_gather_single(everybody, own)
                gathered.append(everybody)
                spent += (self.n - 1) * own.nbytes
            mean.index_add_(0, gathered[1], gathered[0] / self.n)
            return mean, spent

    def benchmark(strategies, x, y, world_size=4, steps=60, lr=0.5):
        def everything(rank, n):
            own_x, own_y, out = x[rank::n], y[rank::n], []
            for make in strategies.values():
                exchange, w, counts = make(rank, n), torch.zeros(x.shape[1], dtype=torch.float64), []
                dist.barrier()
                start = perf_counter()
                for _ in range(steps):
                    slope = logistic_gradient(own_x, own_y, w.numpy())
                    mean, count = exchange(torch.tensor(slope, dtype=torch.float32))
                    counts.append(count)
                    w = w - lr * mean.to(torch.float64)
                out.append((w.numpy(), float(np.mean(counts)), perf_counter() - start))
            return out

        per_rank, least, rows = ranks.run(everything, world_size=world_size), converged_loss(x, y), []
        for number, name in enumerate(strategies):
            mine = [result[number] for result in per_rank]
            w = mine[0][0]
            rows.append(
                {
                    "weights": np.array(w),
                    "auc": np.float64(roc_auc_score(y, x @ w)),
                    "loss_gap": logistic_loss(x, y, w) - least,
                    "steps_per_second": float(steps / np.median([result[2] for result in mine])),
                    "bytes_per_step": max(result[1] for result in mine),
                    "name": name,
                }
            )
        return rows
