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
        if k < 1 or k > count:
            raise ValueError(f"no k experts can be chosen: k = {k} of {count}")
        wide = logits.double() if logits.dtype == torch.float64 else logits.to(torch.float32)
        powers = (wide - wide.amax(dim=1, keepdim=True).detach()).exp()
        probabilities = powers / powers.sum(dim=1, keepdim=True)
        scores = probabilities.detach() + (torch.zeros(count) if bias is None else bias)
        chosen = torch.sort(scores, dim=1, descending=True).indices[:, :k]
        hot = nn.functional.one_hot(chosen, count).to(probabilities.dtype)
        return probabilities, chosen, (hot * probabilities[:, None, :]).sum(dim=2)


@answer_to("14-ex2-plan")
def plan_by_a_stable_sort():
    """Sorts the transposed choices stably by expert, and finds what is over capacity by ranks within an expert."""

    def capacity(tokens, num_experts, k, factor):
        if not factor > 0:
            raise ValueError("the capacity factor must be positive")
        return int(-((-factor * k * tokens) // num_experts))

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
def exchange_with_posted_receives():
    """Posts all receives at once, leaves out empty messages, and saves its splits as tensors."""

    def all_to_all(rows, output_splits, input_splits):
        me, n = dist.get_rank(), dist.get_world_size()
        result = torch.empty((sum(output_splits), *rows.shape[1:]), dtype=rows.dtype)
        room, parts = result.split(output_splits), rows.detach().split(input_splits)
        room[me].copy_(parts[me])
        pending = []
        for step in range(1, n):
            source, to = (me - step) % n, (me + step) % n
            if output_splits[source] and rows[0:0].numel() == 0:
                pending.append(dist.irecv(room[source], source))
            if input_splits[to]:
                pending.append(dist.isend(parts[to].clone(memory_format=torch.contiguous_format), to))
        for work in pending:
            work.wait()
        return result

    class AllToAll(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows, output_splits, input_splits):
            ctx.save_for_backward(torch.tensor(input_splits), torch.tensor(output_splits))
            return all_to_all(rows, output_splits, input_splits)

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
            n, total = dist.get_world_size(), router.weight.shape[0]
            if total != n * len(experts):
                raise ValueError(f"{len(experts)} experts on each of {n} ranks do not fit a router for {total}")
            self.router, self.k, self.factor = router, k, capacity_factor
            self.experts = nn.ModuleList(experts)
            self.register_buffer("bias", torch.zeros(total))

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


@answer_to("14-ex5-gradients")
def gradients_in_one_vector():
    """Joins the shared gradients into one vector for a single all-reduce."""

    def average_gradients(module, local):
        n, mine = dist.get_world_size(), set(map(id, local))
        shared = [p for p in module.parameters() if p.requires_grad and id(p) not in mine]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in shared])
        dist.all_reduce(flat)
        for p, piece in zip(shared, (flat / n).split([p.numel() for p in shared]), strict=True):
            p.grad = piece.view(p.shape).clone()
        for p in local:
            if p.requires_grad and p.grad is not None:
                p.grad = p.grad / n


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
def balance_by_the_whole_value():
    """Returns the whole balance on every rank; only the gradient is of the rank's own part."""

    def balance_loss(probabilities, chosen):
        experts = probabilities.shape[1]
        counts = torch.zeros(experts, dtype=torch.float64)
        counts.index_add_(0, chosen.reshape(-1), torch.ones(chosen.numel(), dtype=torch.float64))
        dist.all_reduce(counts)
        shares = (counts / counts.sum()).to(probabilities.dtype)
        own = probabilities.sum(dim=0) * (dist.get_world_size() * chosen.shape[1] / float(counts.sum()))
        return (experts * shares * own).sum()

    def nudge(bias, chosen, rate):
        counts = torch.zeros(len(bias), dtype=torch.int64).index_add(
            0, chosen.flatten(), torch.ones_like(chosen.flatten())
        )
        dist.all_reduce(counts)
        difference = counts.sum() - counts * len(bias)
        return bias.clone() + rate * difference.sign().to(bias.dtype)
