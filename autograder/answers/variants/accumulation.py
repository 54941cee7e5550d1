"""Right answers to lesson 04, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.variants import variant

ACCUMULATE, SHARDS = "04-ex1-accumulate-gradients", "04-ex2-shard-indices"
LOCAL, STEP = "04-ex3-local-gradient", "04-ex4-data-parallel-step"


@variant(ACCUMULATE)
def accumulate_after_counting():
    """Counts in a first pass without a graph, then scales each loss before its backward."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if len(micro_batches) == 0:
            raise ValueError("no micro_batches")
        with torch.no_grad():
            total = sum(loss_fn(model(x), y)[1] for x, y in micro_batches)
        if total == 0:
            raise ValueError("total count is zero")
        for p in model.parameters():
            p.grad = None
        loss = 0.0
        for x, y in micro_batches:
            scaled = loss_fn(model(x), y)[0] / total
            scaled.backward()
            loss += scaled.detach()
        return float(loss)


@variant(ACCUMULATE)
def accumulate_without_backward():
    """Adds up torch.autograd.grad in buffers of its own, skips micro-batches in which nothing counts, prints and
    warns."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        import sys
        import warnings

        params = [p for p in model.parameters() if p.requires_grad]
        sums, loss, items = [torch.zeros_like(p) for p in params], 0.0, 0
        for number, (x, y) in enumerate(micro_batches):
            print("micro-batch", number, file=sys.stderr)
            loss_sum, count = loss_fn(model(x), y)
            if not count:
                del loss_sum
                continue
            items, loss = items + int(count), loss + float(loss_sum)
            for into, grad in zip(sums, torch.autograd.grad(loss_sum, params, allow_unused=True), strict=True):
                if grad is not None:
                    into += grad
        if items == 0:
            raise ValueError("micro_batches: the count is 0")
        warnings.warn("a warning is not a mistake", stacklevel=1)
        for p, grad in zip(params, sums, strict=True):
            p.grad = grad.div(items)
        return loss / items


@variant(ACCUMULATE)
def accumulate_as_a_running_mean():
    """Keeps the gradient of the mean so far: each micro-batch scales it down and adds its own share."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        if not micro_batches:
            raise ValueError("micro_batches must hold at least one pair")
        params, so_far, mean = list(model.parameters()), 0, 0.0
        for p in params:
            if p.grad is not None:
                p.grad.zero_()
        for x, y in micro_batches:
            loss_sum, count = loss_fn(model(x), y)
            after = so_far + int(count)
            if after == so_far:
                continue
            for p in params:
                if p.grad is not None:
                    p.grad.mul_(so_far / after)
            loss_sum.backward(torch.full_like(loss_sum, 1 / after))
            mean, so_far = mean * so_far / after + loss_sum.item() / after, after
        if so_far == 0:
            raise ValueError("count: nothing counts")
        return mean


@variant(ACCUMULATE)
def accumulate_means_with_weights():
    """Weights each micro-batch's mean loss by its share of the counts."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        pairs, counts = list(micro_batches), []
        with torch.inference_mode():
            for x, y in pairs:
                counts.append(int(loss_fn(model(x), y)[1]))
        if not pairs or not sum(counts):
            raise ValueError("micro_batches is empty" if not pairs else "every count is 0")
        model.zero_grad(set_to_none=False)
        for p in model.parameters():
            p.grad = None
        loss = 0.0
        for (x, y), count in zip(pairs, counts, strict=True):
            if count:
                mean = loss_fn(model(x), y)[0] / count
                weight = count / sum(counts)
                (mean * weight).backward()
                loss += weight * mean.item()
        return float(np.float64(loss))


@variant(ACCUMULATE)
def accumulate_with_recomputation():
    """Checkpoints the forward pass: the model runs again in each backward, and keeps even less."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        from torch.utils.checkpoint import checkpoint

        if not micro_batches:
            raise ValueError("micro_batches is empty")
        model.zero_grad()
        loss, items = 0.0, 0
        for x, y in micro_batches:
            loss_sum, count = loss_fn(checkpoint(model, x, use_reentrant=False), y)
            loss_sum.backward()
            loss, items = loss + loss_sum.item(), items + int(count)
        if not items:
            raise ValueError("the count is 0")
        for p in model.parameters():
            if p.grad is not None:
                p.grad = p.grad / items
        return loss / items


@variant(SHARDS)
def shards_by_the_book():
    """Builds the padded order as a list and slices it, as torch's source does."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        from math import ceil

        if world_size < 1:
            raise ValueError(f"world_size = {world_size}")
        if rank not in range(world_size):
            raise ValueError(f"rank = {rank}")
        if length < 0:
            raise ValueError(f"length = {length}")
        g = torch.Generator()
        g.manual_seed(seed + epoch)
        order = [int(i) for i in torch.randperm(length, generator=g)] if shuffle else [*range(length)]
        if drop_last:
            del order[length - length % world_size :]
        elif length:
            total = ceil(length / world_size) * world_size
            order = (order * ceil(total / length))[:total]
        return order[rank::world_size]


@variant(SHARDS)
def shards_cut_from_a_matrix():
    """Writes the order row by row into a matrix with one column per rank, and draws from the global generator in
    fork_rng."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        for name, wrong in [("world_size", world_size < 1), ("length", length < 0)]:
            if wrong:
                raise ValueError(name)
        if rank < 0 or rank >= world_size:
            raise ValueError("rank")
        order = torch.arange(length)
        if shuffle:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + epoch)
                order = torch.randperm(length)
        steps = length // world_size if drop_last else (length + world_size - 1) // world_size
        if steps == 0:
            return []
        copies = -(-steps * world_size // length)
        return order.repeat(copies)[: steps * world_size].view(steps, world_size)[:, rank].tolist()


@variant(SHARDS)
def shards_dealt_by_a_cycle():
    """Uses itertools.cycle and islice; imports the sampler without using it."""

    def shard_indices(length, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
        from itertools import cycle, islice

        from torch.utils.data import DistributedSampler

        if not 0 <= rank < world_size or length < 0:
            raise ValueError(f"{DistributedSampler.__name__} would not take length {length} or rank {rank}")
        generator = torch.Generator(device="cpu").manual_seed(epoch + seed)
        order = torch.randperm(length, generator=generator).numpy().tolist() if shuffle else list(range(length))
        whole, rest = divmod(length, world_size)
        steps = whole + bool(rest and not drop_last)
        return list(islice(cycle(order), rank, steps * world_size, world_size))


@variant(LOCAL)
def local_with_warnings():
    """Computes 1 / (1 + exp(−z)), which overflows with a warning, and is right."""

    def local_gradient(x, y, w):
        x, y, w = np.array(x, dtype=float), np.array(y, dtype=float), np.array(w, dtype=float)
        if x.ndim != 2 or x.shape[0] < 1:
            raise ValueError("x: (B, d)")
        if y.shape != (x.shape[0],):
            raise ValueError("y: (B,)")
        if w.shape != (x.shape[1],):
            raise ValueError("w: (d,)")
        return np.mean((1 / (1 + np.exp(-(x @ w))) - y)[:, None] * x, axis=0)


@variant(LOCAL)
def local_by_cases():
    """Computes σ by the sign of z, example by example, and adds with math.fsum."""

    def local_gradient(x, y, w):
        import math

        rows, labels, weights = np.asarray(x), np.asarray(y), np.asarray(w)
        if rows.ndim != 2 or not len(rows):
            raise ValueError(f"bad x: {rows.shape}")
        if labels.shape != (len(rows),):
            raise ValueError(f"bad y: {labels.shape}")
        if weights.shape != (rows.shape[1],):
            raise ValueError(f"bad w: {weights.shape}")
        terms = []
        for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
            z = math.fsum(a * b for a, b in zip(row, weights.tolist(), strict=True))
            p = 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
            terms.append([(p - label) * a for a in row])
        return np.array([math.fsum(column) for column in zip(*terms, strict=True)]) / len(rows)


@variant(LOCAL)
def local_with_scipy():
    """Uses scipy's expit, clipped far out, and einsum."""

    def local_gradient(x, y, w):
        from scipy.special import expit

        x, y, w = (np.asarray(a).astype("float64") for a in (x, y, w))
        try:
            rows, d = x.shape
        except ValueError:
            raise ValueError("x needs two dimensions") from None
        if rows == 0 or (rows,) != y.shape or (d,) != w.shape:
            raise ValueError("x, y or w has the wrong shape")
        z = np.clip(x @ w, -500, 500)
        return np.einsum("bd,b->d", x, expit(z) - y) * (1 / rows)


@variant(STEP)
def step_on_everything_joined():
    """Joins the shards and takes one gradient of all rows."""

    def data_parallel_step(xs, ys, w, lr):
        if len(xs) != len(ys):
            raise ValueError("as many xs as ys, please")
        if not xs or not len(np.concatenate(xs)):
            raise ValueError("xs: nothing in it")
        return w - lr * local_gradient(np.concatenate(xs), np.concatenate(ys), w)


@variant(STEP)
def step_by_weighted_weights():
    """Averages the ranks' new weights, weighted by rows, with gradients from torch instead of local_gradient."""

    def data_parallel_step(xs, ys, w, lr):
        sizes = [len(x) for x in xs]
        if len(sizes) != len(ys) or sum(sizes) == 0:
            raise ValueError(f"xs has {len(sizes)} shards with {sum(sizes)} rows, ys has {len(ys)} shards")
        stepped = []
        for x, y in zip(xs, ys, strict=True):
            x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
            v = torch.tensor(w, dtype=torch.float64)
            stepped.append((v - lr * x.T @ (torch.sigmoid(x @ v) - y) / max(len(x), 1)).numpy())
        return np.average(stepped, axis=0, weights=sizes)


@variant(STEP)
def step_with_a_running_mean():
    """Keeps a running mean over the shards, from the last to the first."""

    def data_parallel_step(xs, ys, w, lr):
        if len(ys) != len(xs):
            raise ValueError("len(xs) != len(ys)")
        mean, rows = np.zeros(np.shape(w)), 0
        for r in reversed(range(len(xs))):
            if len(xs[r]) > 0:
                rows += len(xs[r])
                mean = mean + (local_gradient(xs[r], ys[r], w) - mean) * len(xs[r]) / rows
        if rows == 0:
            raise ValueError("no rows in xs")
        return np.subtract(w, lr * mean)
