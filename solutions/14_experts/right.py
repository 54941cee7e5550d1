"""Right answers to lesson 14, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: F821

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from autograder.answers.right import answer_to


@answer_to("14-ex1-route")
def route_by_sorting():
    """Sorts all experts, computes the softmax from its definition, and picks gates by a one-hot product."""

    def route(logits, k, bias=None):
        count = logits.shape[1]
        wide = logits if logits.dtype == torch.float64 else logits.to(torch.float32)
        powers = (wide - wide.amax(dim=1, keepdim=True).detach()).exp()
        probabilities = powers / powers.sum(dim=1, keepdim=True)
        scores = probabilities.detach() + (torch.zeros(count) if bias is None else bias)
        chosen = torch.sort(scores, dim=1, descending=True).indices[:, :k]
        hot = nn.functional.one_hot(chosen, count).to(probabilities.dtype)
        return probabilities, chosen, (hot * probabilities[:, None, :]).sum(dim=2)


@answer_to("14-ex1-route")
def route_in_float32_always():
    """Computes in float32 whatever the logits are, as many models' code does, and sorts."""

    def route(logits, k, bias=None):
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        scores = probabilities if bias is None else probabilities + bias
        chosen = scores.argsort(dim=-1, descending=True)[:, :k]
        return probabilities, chosen, probabilities.gather(-1, chosen)


@answer_to("14-ex2-plan")
def plan_by_a_stable_sort():
    """Sorts the transposed choices stably by expert, and finds what is over capacity by ranks within an expert."""

    def plan(chosen, num_experts, capacity=None):
        n, k = chosen.shape
        flat = chosen.T.flatten()
        by_expert = flat.argsort(stable=True)
        experts = flat[by_expert]
        starts = torch.searchsorted(experts, torch.arange(num_experts))
        within = torch.arange(n * k) - starts[experts]
        keep = within < (n * k + 1 if capacity is None else capacity)
        token, choice = by_expert % max(n, 1), by_expert // max(n, 1)
        return (token * k + choice)[keep], torch.bincount(experts[keep], minlength=num_experts)


@answer_to("14-ex3-all-to-all")
def exchange_with_saved_tensors():
    """Saves its splits as tensors, and calls the library itself."""

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, output_splits, input_splits):
            ctx.save_for_backward(torch.tensor(input_splits), torch.tensor(output_splits))
            received = torch.empty((sum(output_splits), *rows.shape[1:]), dtype=rows.dtype)
            dist.all_to_all_single(received, rows.contiguous(), output_splits, input_splits)
            return received

        @staticmethod
        def backward(ctx, grad):
            there, here = (splits.tolist() for splits in ctx.saved_tensors)
            return all_to_all(grad, there, here), None, None


@answer_to("14-ex4-layer")
def layer_by_a_permutation():
    """Sorts the received rows by expert with one permutation, undoes it afterwards, and adds up by a matrix product."""

    class ExpertParallel(nn.Module):
        def __init__(self, router, experts, k, capacity_factor=None):
            super().__init__()
            self.router, self.k, self.factor = router, k, capacity_factor
            self.experts = nn.ModuleList(experts)
            self.register_buffer("bias", torch.zeros(router.weight.shape[0]))

        def forward(self, x):
            n, total, each = dist.get_world_size(), len(self.bias), len(self.experts)
            probabilities, chosen, gates = route(self.router(x), self.k, self.bias)
            limit = capacity(x.shape[0], total, self.k, self.factor) if self.factor is not None else None
            order, counts = plan(chosen, total, limit)
            incoming = all_to_all(counts[:, None], [each] * n, [each] * n).flatten()
            there, here = counts.view(n, each).sum(1).tolist(), incoming.view(n, each).sum(1).tolist()
            rows = AllToAll.apply(x.index_select(0, order.div(self.k, rounding_mode="floor")), here, there)
            expert_of = torch.arange(each).repeat(n).repeat_interleave(incoming)
            by_expert = expert_of.argsort(stable=True)
            pieces = rows[by_expert].split(torch.bincount(expert_of, minlength=each).tolist())
            done = torch.cat([expert(piece) for expert, piece in zip(self.experts, pieces, strict=True)])
            back = AllToAll.apply(done[by_expert.argsort()], there, here)
            mixing = torch.zeros(len(x), len(order), dtype=back.dtype)
            mixing = mixing.index_put(
                (order // self.k, torch.arange(len(order))), gates.flatten()[order].to(back.dtype)
            )
            return mixing @ back, probabilities, chosen


@answer_to("14-ex4-layer")
def layer_with_a_row_for_each_place():
    """Keeps results, in the default dtype, by place, and multiplies them by the gates at the end."""

    class ExpertParallel(nn.Module):
        def __init__(self, router, experts, k, capacity_factor=None):
            super().__init__()
            self.router, self.experts, self.k, self.capacity_factor = router, nn.ModuleList(experts), k, capacity_factor
            self.register_buffer("bias", torch.zeros(router.out_features))

        def forward(self, x):
            n, total, each = dist.get_world_size(), self.router.out_features, len(self.experts)
            probabilities, chosen, gates = route(self.router(x), self.k, self.bias)
            most = None
            if self.capacity_factor is not None:
                most = capacity(len(x), total, self.k, self.capacity_factor)
            order, counts = plan(chosen, total, most)
            incoming = torch.empty_like(counts)
            dist.all_to_all_single(incoming, counts)
            there, here = counts.view(n, each).sum(1).tolist(), incoming.view(n, each).sum(1).tolist()
            rows = AllToAll.apply(x.repeat_interleave(self.k, dim=0)[order], here, there)
            expert_of = torch.arange(each).repeat(n).repeat_interleave(incoming)
            results = torch.zeros(len(rows), x.shape[1])
            for number, expert in enumerate(self.experts):
                mine = (expert_of == number).nonzero().flatten()
                results = results.index_copy(0, mine, expert(rows[mine]))
            back = AllToAll.apply(results, there, here)
            places = torch.zeros(len(x) * self.k, x.shape[1]).index_copy(0, order, back)
            return (places.view(len(x), self.k, x.shape[1]) * gates[..., None]).sum(1), probabilities, chosen


@answer_to("14-ex5-gradients")
def gradients_in_one_vector():
    """Averages in one vector; for the norm, counts an N-th of the shared squares on each rank."""

    def average_gradients(module, local):
        n, mine = dist.get_world_size(), set(map(id, local))
        shared = [p for p in module.parameters() if id(p) not in mine]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in shared])
        dist.all_reduce(flat)
        for p, piece in zip(shared, (flat / n).split([p.numel() for p in shared]), strict=True):
            p.grad = piece.view(p.shape).clone()
        for p in local:
            if p.grad is not None:
                p.grad = p.grad / n

    def clip_gradients(module, local, max_norm):
        mine, n = set(map(id, local)), dist.get_world_size()
        total = torch.zeros(1, dtype=torch.float64)
        for p in module.parameters():
            if p.grad is not None:
                total += p.grad.double().pow(2).sum() / (1 if id(p) in mine else n)
        dist.all_reduce(total)
        norm = float(total) ** 0.5
        for p in module.parameters():
            if p.grad is not None:
                p.grad.mul_(min(1.0, max_norm / norm))
        return norm


@answer_to("14-ex6-balance")
def balance_by_one_hot():
    """Counts with one-hot vectors in floating point, and compares by two comparisons."""

    def counted(chosen, experts):
        counts = nn.functional.one_hot(chosen, experts).sum(dim=(0, 1)).double()
        dist.all_reduce(counts)
        return counts

    def balance_loss(probabilities, chosen):
        n, experts = dist.get_world_size(), probabilities.size(1)
        counts = counted(chosen, experts)
        weights = (counts / counts.sum()).to(probabilities.dtype)
        tokens = float(counts.sum()) / chosen.size(1)
        return experts * n / tokens * (probabilities @ weights).sum()

    def nudge(bias, chosen, rate):
        counts = counted(chosen, bias.numel())
        few, many = counts < counts.mean(), counts > counts.mean()
        return bias + rate * (few.to(bias.dtype) - many.to(bias.dtype))


@answer_to("14-ex6-balance")
def balance_in_float32():
    """Counts in the default dtype; a rank without tokens returns a constant zero after the all-reduce."""

    def counted(chosen, experts):
        counts = torch.zeros(experts)
        for expert in chosen.flatten().tolist():
            counts[expert] += 1
        dist.all_reduce(counts)
        return counts

    def balance_loss(probabilities, chosen):
        experts = probabilities.shape[1]
        counts = counted(chosen, experts)
        if not len(chosen):
            return torch.zeros(())
        tokens = counts.sum() / chosen.shape[1]
        return experts * torch.dot(counts / counts.sum(), probabilities.sum(0) / tokens) * dist.get_world_size()

    def nudge(bias, chosen, rate):
        counts, moved = counted(chosen, len(bias)), bias.clone()
        moved[counts < counts.mean()] += rate
        moved[counts > counts.mean()] -= rate
        return moved


@answer_to("14-ex7-replicas")
def replicas_by_swaps_alone():
    """Deals replicas out in turn and then exchanges pairs between any two GPUs while that evens them."""

    def place_replicas(loads, gpus, slots):
        copies = [1] * len(loads)
        for _ in range(gpus * slots - len(loads)):
            shares = [load / count for load, count in zip(loads, copies, strict=True)]
            copies[shares.index(max(shares))] += 1
        share = [load / count for load, count in zip(loads, copies, strict=True)]
        replicas = [expert for expert, count in enumerate(copies) for _ in range(count)]
        placed, better = [replicas[gpu::gpus] for gpu in range(gpus)], True
        while better:
            better = False
            for a in placed:
                for b in placed:
                    gap = sum(share[e] for e in a) - sum(share[e] for e in b)
                    for i in range(slots):
                        for j in range(slots):
                            gain = share[a[i]] - share[b[j]]
                            if 1e-9 < gain < gap - 1e-9:
                                a[i], b[j] = b[j], a[i]
                                gap, better = gap - 2 * gain, True
        return placed


@answer_to("14-ex7-replicas")
def replicas_exchanged_with_the_lightest():
    """The greedy rules, and then the best exchange between the busiest GPU and the one with the smallest load."""

    def place_replicas(loads, gpus, slots):
        copies = [1] * len(loads)
        for _ in range(gpus * slots - len(loads)):
            shares = [load / count for load, count in zip(loads, copies, strict=True)]
            copies[shares.index(max(shares))] += 1
        share = [load / count for load, count in zip(loads, copies, strict=True)]
        placed = [[] for _ in range(gpus)]
        for expert in sorted(range(len(loads)), key=lambda e: -share[e]):
            for _ in range(copies[expert]):
                free = [mine for mine in placed if len(mine) < slots]
                min(free, key=lambda mine: sum(share[e] for e in mine)).append(expert)
        for _ in range(1000):
            placed.sort(key=lambda mine: sum(share[e] for e in mine))
            low, high = placed[0], placed[-1]
            gap = sum(share[e] for e in high) - sum(share[e] for e in low)
            pairs = [(abs(gap - 2 * (share[a] - share[b])), a, b) for a in high for b in low]
            left, a, b = min(pairs)
            if left > gap - 1e-9:
                break
            high[high.index(a)], low[low.index(b)] = b, a
        return placed
