"""Right answers to lesson 07, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to


@answer_to("07-ex1-top-k")
def top_k_by_sorting():
    """Sorts all magnitudes, returns the places in ascending order, and decompresses with scatter."""

    def top_k_compress(grad, ratio):
        flat = grad.detach().flatten()
        order = torch.argsort(flat.abs(), descending=True)[: max(1, int(ratio * len(flat)))]
        order, _ = torch.sort(order)
        return flat.index_select(0, order), order

    def top_k_decompress(values, indices, shape):
        size = torch.Size(shape)
        return torch.zeros(size.numel(), dtype=values.dtype).scatter(0, indices, values).view(size)


@answer_to("07-ex1-top-k")
def top_k_in_numpy():
    """Uses numpy's argpartition, returns a list of two tensors, and warns on stderr."""
    import sys

    def top_k_compress(grad, ratio):
        print("compressing", file=sys.stderr)
        flat = grad.numpy().reshape(-1)
        k = max(1, math.floor(ratio * flat.size))
        places = np.argpartition(np.abs(flat), flat.size - k)[flat.size - k :]
        return [torch.tensor(flat[places]), torch.tensor(places, dtype=torch.int64)]

    def top_k_decompress(values, indices, shape):
        out = torch.zeros(shape)
        for value, index in zip(values.tolist(), indices.tolist(), strict=True):
            out.view(-1)[index] = value
        return out


@answer_to("07-ex2-error-feedback")
def feedback_in_place():
    """Keeps one buffer per key, to which gradients are added and in which sent entries are set to zero."""
    from collections import defaultdict

    class ErrorFeedback:
        def __init__(self, ratio):
            self.ratio, self.residual = ratio, defaultdict(float)

        def compress(self, key, grad):
            self.residual[key] = owed = self.residual[key] + grad.clone()
            values, indices = top_k_compress(owed, self.ratio)
            owed.view(-1)[indices] = 0
            print("kept", float(owed.abs().sum()))
            return values, indices


@answer_to("07-ex3-int8")
def int8_in_one_message():
    """Sends integers and scales as the bytes of one message, clamps, and multiplies by 127 over the largest."""

    def quantize(x, block):
        pieces, scales = [], []
        for piece in x.split(block):
            largest = piece.abs().max()
            scales.append(largest / 127)
            pieces.append((piece * (127 / largest)).round().clamp(-127, 127) if largest > 0 else piece)
        return torch.cat(pieces).to(torch.int8), torch.stack(scales)

    def packed(x, block, parts):
        q, scales = quantize(x, block)
        return torch.cat([q.view(parts, -1), scales.view(parts, -1).view(torch.int8)], dim=1).contiguous()

    def unpacked(rows, numel, block):
        q, scales = rows.split([numel, rows.shape[1] - numel], dim=1)
        return dequantize(q.reshape(-1), scales.contiguous().view(torch.float32).reshape(-1)).view(len(rows), -1)

    def reduce_scatter_int8(grad, block, group=None):
        n = dist.get_world_size(group)
        sent = packed(grad, block, n)
        got = [torch.empty_like(sent[0]) for _ in range(n)]
        dist.all_to_all(got, list(sent), group=group)
        return unpacked(torch.stack(got), len(grad) // n, block).sum(dim=0)

    def all_reduce_int8(grad, block):
        n = dist.get_world_size()
        own = packed(reduce_scatter_int8(grad, block), block, 1)[0]
        rows = [torch.empty_like(own) for _ in range(n)]
        dist.all_gather(rows, own)
        return unpacked(torch.stack(rows), len(grad) // n, block).reshape(-1)

    def reduce_scatter_two_hops(grad, block, inside, between):
        gpus = dist.get_world_size(inside)
        chunks = grad.chunk(dist.get_world_size())
        ordered = torch.cat([chunk for place in range(gpus) for chunk in chunks[place::gpus]])
        return reduce_scatter_int8(reduce_scatter_int8(ordered, block, inside), block, between)


@answer_to("07-ex4-rounds")
def rounds_by_what_a_ring_loses():
    """Asks first whether anything varies, and places the large number on one rank after the other."""

    def where_it_rounds(reduce):
        rank, n = dist.get_rank(), dist.get_world_size()
        odd = reduce(torch.full((64,), -3.0 - 2**-8))
        if len(set(odd.tolist())) > 1:
            return "at random"
        for large in range(n):
            if reduce(torch.tensor([1024.0 if rank == large else 1.0])).item() != 1023 + n:
                return "in every hop"
        return "nowhere" if odd[0] == n * (-3.0 - 2**-8) else "once"


@answer_to("07-ex5-diloco")
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


@answer_to("07-ex6-power-sgd")
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


@answer_to("07-ex6-power-sgd")
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


@answer_to("07-ex7-parameter-server")
def server_with_a_version_per_worker():
    """Sends by isend, counts down what each worker still owes, and computes staleness from the length of the log."""

    def serve_async(weights, world_size, steps, lr):
        state, left = weights.detach().clone(), dict.fromkeys(range(1, world_size), steps)
        sent_at, log, pending = dict.fromkeys(left, 0), [], []
        pending += [dist.isend(state.clone(), dst=worker) for worker in left]
        while any(left.values()):
            push = torch.zeros_like(state)
            who = dist.recv(push)
            log.append((who, steps - left[who], len(log) - sent_at[who]))
            state = state - lr * push
            left[who] -= 1
            if left[who]:
                sent_at[who] = len(log)
                pending.append(dist.isend(state.clone(), dst=who))
        for sending in pending:
            sending.wait()
        return state, log
