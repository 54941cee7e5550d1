"""Right answers to lesson 13, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821, RUF007

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.nn import functional

from autograder.answers.right import answer_to


@answer_to("13-ex1-blocks")
def blocks_by_the_largest_score():
    """Subtracts the largest score, divides by the sum, and merges by the larger lse; einsum for the products."""

    def attend(q, k, v, q_positions, k_positions):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        future = k_positions.unsqueeze(0) > q_positions.unsqueeze(1)
        scores = torch.where(future, torch.full_like(scores, -math.inf), scores)
        if scores.shape[-1] == 0:
            return torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
        top = scores.amax(dim=-1, keepdim=True)
        top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
        powers = torch.exp(scores - top)
        total = powers.sum(dim=-1, keepdim=True)
        out = torch.einsum("bhij,bhjd->bhid", powers, v) / torch.where(total == 0, torch.ones_like(total), total)
        return out, (top + total.log()).squeeze(-1)

    def merge(out_a, lse_a, out_b, lse_b):
        top = torch.maximum(lse_a, lse_b)
        top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
        a, b = torch.exp(lse_a - top), torch.exp(lse_b - top)
        lse = torch.where(b == 0, lse_a, torch.where(a == 0, lse_b, top + torch.log(a + b)))
        total = torch.where(a + b == 0, torch.ones_like(a), a + b)
        return (a / total).unsqueeze(-1) * out_a + (b / total).unsqueeze(-1) * out_b, lse


@answer_to("13-ex2-layouts")
def layouts_by_owner():
    """Finds bounds by division, counts pairs document by document, and mirrors the front of a document at its back."""

    def shard_positions(length, rank, world_size, layout):
        def part(i, parts):
            start = i * (length // parts) + min(i, length % parts)
            return list(range(start, start + length // parts + (i < length % parts)))

        if layout == "striped":
            found = list(range(rank, length, world_size))
        elif layout == "contiguous":
            found = part(rank, world_size)
        else:
            found = part(rank, 2 * world_size) + part(2 * world_size - rank - 1, 2 * world_size)
        return torch.tensor(found, dtype=torch.int64)

    def pair_counts(shards, cu_seqlens=None):
        ends = [0, 10**9] if cu_seqlens is None else cu_seqlens.tolist()

        def count(own, keys):
            total = 0
            for a, b in zip(ends, ends[1:]):
                queries, seen = (sorted(i for i in x.tolist() if a <= i < b) for x in (own, keys))
                total += sum(sum(k <= q for k in seen) for q in queries)
            return total

        return torch.tensor([[count(shards[r], shards[r - s]) for r in range(len(shards))] for s in range(len(shards))])

    def idle_fraction(pairs):
        slots = sum(max(row) for row in pairs.tolist()) * pairs.shape[1]
        return (slots - sum(sum(row) for row in pairs.tolist())) / slots if slots else 0.0

    def shard_documents(cu_seqlens, rank, world_size):
        found = []
        for a, b in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:]):
            size = (b - a) // (2 * world_size)
            front = range(a + rank * size, a + (rank + 1) * size)
            found += [*front, *sorted(a + b - 1 - i for i in front)]
        return torch.tensor(found)


@answer_to("13-ex3-ring")
def ring_to_the_left():
    """The ring turns left; keys and values are messages of their own, empty ones and masked blocks are left out."""

    def ring_forward(q, k, v, positions):
        rank, n = dist.get_rank(), dist.get_world_size()
        mine = positions[rank]
        k, v = k.contiguous(), v.contiguous()
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
        for step in range(n):
            owner, following = (rank + step) % n, (rank + step + 1) % n
            works, coming = [], []
            if step + 1 < n:
                shape = (*k.shape[:2], len(positions[following]), k.shape[3])
                coming = [k.new_empty(shape), k.new_empty(shape)]
                works = [dist.irecv(x, (rank + 1) % n) for x in coming if x.numel()]
                works += [dist.isend(x, (rank - 1) % n) for x in (k, v) if x.numel()]
            theirs = positions[owner]
            if len(mine) and len(theirs) and theirs.min() <= mine.max():
                out, lse = merge(out, lse, *attend(q, k, v, mine, theirs))
            for work in works:
                work.wait()
            if coming:
                k, v = coming
        return out, lse


@answer_to("13-ex4-backward")
def backward_begun_at_the_neighbor():
    """dK and dV begin at the owner's right neighbor and make N − 1 hops; the owner adds its own part at the end."""

    def ring_backward(grad, q, k, v, out, lse, positions):
        rank, n = dist.get_rank(), dist.get_world_size()
        scale = q.shape[-1] ** -0.5
        delta = torch.einsum("bhid,bhid->bhi", grad, out).unsqueeze(-1)

        def block(keys, values, where):
            scores = q @ keys.transpose(2, 3) * scale - lse.unsqueeze(-1)
            p = torch.where(where[None, :] <= positions[rank][:, None], scores, torch.tensor(-math.inf).to(q)).exp()
            ds = p * (grad @ values.transpose(2, 3) - delta) * scale
            return ds @ keys, ds.transpose(2, 3) @ q, p.transpose(2, 3) @ grad

        def hop(tensors, where):
            coming = [q.new_empty(*q.shape[:2], len(where), q.shape[3]) for _ in tensors]
            works = [dist.isend(x.contiguous(), (rank + 1) % n) for x in tensors]
            works += [dist.irecv(x, (rank - 1) % n) for x in coming]
            for work in works:
                work.wait()
            return coming

        dq, own_dk, own_dv = block(k, v, positions[rank])
        keys, values = k, v
        travelling = []
        for step in range(1, n):
            where = positions[(rank - step) % n]
            keys, values = hop((keys, values), where)
            if travelling:
                travelling = hop(travelling, where)
            more, dk, dv = block(keys, values, where)
            dq = dq + more
            travelling = [a + b for a, b in zip(travelling, (dk, dv))] if travelling else [dk, dv]
        if n > 1:
            travelling = hop(travelling, positions[rank])
            own_dk, own_dv = own_dk + travelling[0], own_dv + travelling[1]
        return dq, own_dk, own_dv


@answer_to("13-ex5-exchange")
def exchange_with_lists():
    """Sends lists of tensors, writes backward out, and uses torch's own attention with a mask."""

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scatter_dim, gather_dim):
            n = dist.get_world_size()
            ctx.a, ctx.b = scatter_dim, gather_dim
            parts = [part.contiguous() for part in x.detach().tensor_split(n, dim=scatter_dim)]
            places = [torch.zeros_like(parts[0]) for _ in range(n)]
            dist.all_to_all(places, parts)
            return torch.cat(places, dim=gather_dim)

        @staticmethod
        def backward(ctx, grad):
            parts = [part.contiguous() for part in grad.tensor_split(dist.get_world_size(), dim=ctx.b)]
            places = [torch.zeros_like(part) for part in parts]
            dist.all_to_all(places, parts)
            return torch.cat(places, dim=ctx.a), None, None

    def ulysses_attention(q, k, v, positions):
        where = torch.cat(list(positions))
        together = Exchange.apply(torch.stack([q, k, v]), 2, 3)
        mask = where[None, :] <= where[:, None]
        out = functional.scaled_dot_product_attention(*together, attn_mask=mask)
        return Exchange.apply(out, 2, 1)


@answer_to("13-ex6-loss")
def loss_by_log_softmax():
    """Takes log-softmax and gathers by hand, and makes two all-reduces; cuts with index_select."""

    def cut_batch(tokens, where):
        return tokens[:, :-1].index_select(1, where), tokens[:, 1:].index_select(1, where)

    def sequence_loss(logits, y):
        counted = y.ne(-100)
        logs = logits.log_softmax(dim=-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        mine = -(logs * counted).sum()
        total, count = mine.detach().clone(), counted.sum()
        dist.all_reduce(total)
        dist.all_reduce(count)
        value = total / count
        return value + (mine - mine.detach()) / count
