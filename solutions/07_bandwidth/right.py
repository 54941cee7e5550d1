"""Right answers to lesson 07, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("07-ex1-top-k")
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


@answer_to("07-ex1-top-k")
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


@answer_to("07-ex2-error-feedback")
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


@answer_to("07-ex5-parameter-server")
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


@answer_to("07-ex5-parameter-server")
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


@answer_to("07-ex3-power-sgd")
def power_by_singular_vectors():
    """Takes singular vectors as the basis, averages before each all-reduce, and sends P as a flat vector."""

    class PowerSGD:
        def __init__(self, q):
            self.start, self.owed = q.detach().numpy().copy(), None

        def mean(self, grad):
            n, c = dist.get_world_size(), grad.detach().numpy().copy()
            if self.owed is not None:
                c += self.owed
            p = torch.from_numpy(c @ self.start / n).reshape(-1).contiguous()
            dist.all_reduce(p)
            basis = np.linalg.svd(p.numpy().reshape(c.shape[0], -1), full_matrices=False)[0]
            q = torch.from_numpy(np.ascontiguousarray(basis.T @ c) / n)
            dist.all_reduce(q)
            self.start = q.numpy().T.copy()
            result = basis @ q.numpy()
            self.owed = c - result
            return torch.from_numpy(result)


@answer_to("07-ex4-int8")
def int8_by_lists():
    """Sends lists of chunks, divides by N last, multiplies by 127 over the largest, and clamps."""

    def quantize(x):
        largest = float(x.abs().max())
        if largest == 0.0:
            return torch.zeros(len(x), dtype=torch.int8), torch.zeros(1)
        return (x * (127 / largest)).round().clamp(-127, 127).to(torch.int8), torch.tensor([largest / 127])

    def all_reduce_int8(grad):
        n = dist.get_world_size()
        pairs = [quantize(part) for part in grad.view(n, -1)]
        received = []
        for which in (0, 1):
            mine = torch.stack([pair[which] for pair in pairs])
            theirs = torch.empty_like(mine)
            dist.all_to_all_single(theirs, mine)
            received.append(theirs)
        total = torch.zeros(grad.numel() // n)
        for q, scale in zip(*received, strict=True):
            total += q.float() * scale
        q, scale = quantize(total / n)
        out = []
        for part in (q, scale):
            rows = [torch.empty_like(part) for _ in range(n)]
            dist.all_gather(rows, part)
            out.append(torch.stack(rows))
        return (out[0].float() * out[1]).reshape(-1)


@answer_to("07-ex6-diloco")
def diloco_with_two_optimizers_of_torch():
    """Uses torch's SGD for the inner and the outer steps."""

    def diloco(weights, gradient, rounds, inner_steps, lr, outer_lr=1.0, momentum=0.0):
        shared = torch.nn.Parameter(weights.detach().clone())
        outer = torch.optim.SGD([shared], lr=outer_lr, momentum=momentum, nesterov=momentum > 0)
        step = 0
        for _ in range(rounds):
            local = torch.nn.Parameter(shared.detach().clone())
            inner = torch.optim.SGD([local], lr=lr)
            for _ in range(inner_steps):
                local.grad = gradient(local.detach(), step)
                inner.step()
                step += 1
            delta = (shared.detach() - local.detach()) / dist.get_world_size()
            dist.all_reduce(delta)
            shared.grad = delta
            outer.step()
        return shared.detach()


@answer_to("07-ex3-power-sgd")
def power_owes_against_its_own_product():
    """Each rank remembers what its own product lacks; the mean of the residuals is the same."""

    class PowerSGD:
        def __init__(self, q):
            self.q, self.owed = q.clone(), torch.zeros(1, dtype=q.dtype)

        def mean(self, grad):
            corrected, n = self.owed + grad, dist.get_world_size()
            p = corrected @ self.q / n
            dist.all_reduce(p)
            basis, _ = torch.linalg.qr(p)
            own = corrected.T @ basis
            self.owed = corrected - basis @ own.T
            self.q = own / n
            dist.all_reduce(self.q)
            return basis @ self.q.T


@answer_to("07-ex5-parameter-server")
def server_in_one_function():
    """Serves both ways in parameter_server itself, without the class."""

    def parameter_server(rank, world_size, weights, gradient, steps, lr, mode):
        if world_size < 2:
            raise ValueError(f"world_size must be at least 2, got {world_size}")
        if mode not in ("sync", "async"):
            raise ValueError(f"mode must be sync or async, got {mode!r}")
        if rank > 0:
            return work(rank, weights, gradient, steps)
        weights = weights.clone(memory_format=torch.contiguous_format)
        grad, log, workers = torch.empty_like(weights), [], range(1, world_size)
        if mode == "sync":
            for step in range(steps):
                total = torch.zeros_like(weights)
                for worker in workers:
                    dist.send(weights, dst=worker)
                for worker in workers:
                    dist.recv(grad, src=worker)
                    total += grad
                    log.append((worker, step, 0))
                weights -= lr * total / len(workers)
            return weights, log
        pushes, version = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
        for worker in workers:
            dist.send(weights, dst=worker)
        for update in range(steps * len(workers)):
            worker = dist.recv(grad)
            log.append((worker, pushes[worker], update - version[worker]))
            weights -= lr * grad
            pushes[worker] += 1
            version[worker] = update + 1
            if pushes[worker] < steps:
                dist.send(weights, dst=worker)
        return weights, log
