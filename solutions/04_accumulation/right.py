"""Right answers to lesson 04, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

from autograder.answers.right import answer_to

ACCUMULATE, DIVISOR = "04-ex1-accumulate-gradients", "04-ex2-divisor"
MAIN, EVALUATE, NOISE = "04-ex3-main-gradients", "04-ex4-evaluate", "04-ex5-noise-scale"


@answer_to(ACCUMULATE)
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
        warnings.warn("a warning is not a mistake", stacklevel=1)
        for p in model.parameters():
            p.grad = None
        for p, grad in zip(params, sums, strict=True):
            p.grad = grad.div(items)
        return loss / items


@answer_to(ACCUMULATE)
def accumulate_as_a_running_mean():
    """Keeps the gradient of the mean so far: each micro-batch scales it down and adds its own share, the last one
    first. Skips those in which nothing counts, and lets go of their graphs."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        params, so_far, mean = list(model.parameters()), 0, 0.0
        for p in params:
            if p.grad is not None:
                p.grad.zero_()
        for x, y in reversed(micro_batches):
            loss_sum, count = loss_fn(model(x), y)
            after = so_far + int(count)
            if after == so_far:
                del loss_sum
                continue
            for p in params:
                if p.grad is not None:
                    p.grad.mul_(so_far / after)
            loss_sum.backward(torch.full_like(loss_sum, 1 / after))
            mean, so_far = mean * so_far / after + loss_sum.item() / after, after
        return mean


@answer_to(ACCUMULATE)
def accumulate_means_with_weights():
    """Counts in a first pass without a graph, then weights each micro-batch's mean loss by its share of the counts."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        pairs, counts = list(micro_batches), []
        with torch.inference_mode():
            for x, y in pairs:
                counts.append(int(loss_fn(model(x), y)[1]))
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


@answer_to(ACCUMULATE)
def accumulate_with_recomputation():
    """Checkpoints the forward pass: the model runs again in each backward, and keeps even less."""

    def accumulate_gradients(model, loss_fn, micro_batches):
        from torch.utils.checkpoint import checkpoint

        model.zero_grad()
        loss, items = 0.0, 0
        for x, y in micro_batches:
            loss_sum, count = loss_fn(checkpoint(model, x, use_reentrant=False), y)
            loss_sum.backward()
            loss, items = loss + loss_sum.item(), items + int(count)
        for p in model.parameters():
            if p.grad is not None:
                p.grad = p.grad / items
        return loss / items


@answer_to(DIVISOR)
def divisor_by_one_question_each():
    """Asks one question for each fault, on batches of its own, and allows for a percent."""

    def find_divisor(gradient):
        def differs(batch, right, **how):
            got = gradient(batch, **how)
            return not abs(got - right) <= 0.01 * right  # NaN differs as well

        if differs([[[1.0]]], 1.0, tensor_parallel=4):
            return "processes"
        if differs([[[1.0, None]]], 1.0):
            return "masked"
        if differs([[[8.0], [2.0, 2.0, 2.0]]], 3.5):
            return "micro-batches"
        return "ranks" if differs([[[8.0]], [[2.0, 2.0, 2.0]]], 3.5) else None


@answer_to(DIVISOR)
def divisor_from_nan_and_ratios():
    """Lets a micro-batch, and then a rank, count nothing: whoever divides there by 0 returns NaN."""

    def find_divisor(gradient):
        import math

        if math.isnan(gradient([[[3.0], [None]]])):
            return "micro-batches"
        if math.isnan(gradient([[[3.0]], [[None]]])):
            return "ranks"
        ratio = gradient([[[3.0, None]], [[3.0, None]]], 3) / 3
        return "processes" if ratio > 2 else "masked" if ratio < 0.75 else None


@answer_to(MAIN)
def main_from_autograd_grad():
    """Asks autograd for the gradients instead of backward, in float64 sums that are rounded once; returns a tuple."""

    def main_gradients(model, loss_fn, micro_batches):
        parameters, count = list(model.parameters()), 0
        sums = [torch.zeros(p.shape, dtype=torch.float64) for p in parameters]
        places = [k for k, p in enumerate(parameters) if p.requires_grad]
        for x, y in micro_batches:
            loss_sum, counted = loss_fn(model(x), y)
            grads = torch.autograd.grad(loss_sum, [parameters[k] for k in places], allow_unused=True)
            for k, g in zip(places, grads, strict=True):
                sums[k] += 0 if g is None else g
            count += counted
        for p in parameters:
            p.grad = None
        return tuple((total / count).float() for total in sums)


@answer_to(EVALUATE)
def evaluate_blocks_without_the_dealer():
    """Deals whole blocks, in the order that tensor_split gives; sums in Python floats; two all-reduces."""

    def evaluate(rank, world_size, length, losses):
        mine = torch.arange(length).tensor_split(world_size)[rank].tolist()
        total = torch.tensor(sum(losses(mine).tolist()), dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / length


@answer_to(EVALUATE)
def evaluate_backwards():
    """Deals from the end, and asks for one example at a time."""

    def evaluate(rank, world_size, length, losses):
        total = torch.zeros(1, dtype=torch.float64)
        for i in range(length - 1 - rank, -1, -world_size):
            total += losses([i])
        dist.all_reduce(total)
        return float(total) / length


@answer_to(NOISE)
def noise_as_in_the_paper():
    """The paper's own form, with the squared lengths for a small and a large batch; returns a list."""

    def noise_and_signal(rank, world_size, grad, rows):
        mean, small = grad.clone().double(), grad.double().square().sum()
        dist.all_reduce(mean)
        dist.all_reduce(small)
        small, large = float(small) / world_size, float((mean / world_size).square().sum())
        b, n = rows, world_size * rows
        return [(small - large) / (1 / b - 1 / n), (n * large - b * small) / (n - b)]


@answer_to(NOISE)
def noise_by_distances():
    """Averages the gradients first, then all-reduces each rank's squared distance from the mean."""

    def noise_and_signal(rank, world_size, grad, rows):
        mean = grad.double() / world_size
        dist.all_reduce(mean)
        away = torch.dist(grad.double(), mean).square()
        dist.all_reduce(away)
        noise = rows * away.item() / (world_size - 1)
        return noise, torch.dot(mean, mean).item() - noise / rows / world_size
