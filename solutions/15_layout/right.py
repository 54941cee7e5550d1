"""Right answers to lesson 15, written differently."""

# The names that an answer does not define are the notebook's.
# ruff: noqa: B905, F821

from __future__ import annotations

import itertools
import math

import torch
import torch.distributed as dist

from autograder.answers.right import answer_to


@answer_to("15-ex1-rank-groups")
def groups_by_strides():
    """Walks over the coordinates of the other names and adds up strides; compares a group's first and last node."""

    def rank_groups(sizes, names):
        inside = [names] if isinstance(names, str) else list(names)
        unknown = [name for name in inside if name not in sizes]
        if unknown:
            raise ValueError(f"unknown axis: {unknown[0]}")
        strides, product = {}, 1
        for name in sizes:
            if sizes[name] <= 0:
                raise ValueError(f"{name} has no ranks")
            strides[name] = product
            product *= sizes[name]

        def places(chosen):
            steps = [[i * strides[name] for i in range(sizes[name])] for name in chosen]
            return sorted(sum(one) for one in itertools.product(*steps))

        offsets = places([name for name in sizes if name in inside])
        starts = places([name for name in sizes if name not in inside])
        return [[start + offset for offset in offsets] for start in starts]

    def crosses_nodes(sizes, names, per_node):
        nodes = [(group[0] // per_node, group[-1] // per_node) for group in rank_groups(sizes, names)]
        return any(first != last for first, last in nodes)


@answer_to("15-ex2-make-groups")
def groups_by_enumeration():
    """Uses torch's new_subgroups_by_enumeration, which makes all groups of an axis at once, and prints."""

    def make_groups(sizes, axes):
        world = dist.get_world_size()
        if math.prod(sizes.values()) != world:
            raise ValueError(f"the product of sizes is {math.prod(sizes.values())}, there are {world} ranks")
        print("making", len(axes), "axes")
        return {axis: dist.new_subgroups_by_enumeration(rank_groups(sizes, axis))[0] for axis in axes}


@answer_to("15-ex3-two-levels")
def two_levels_with_lists():
    """Uses collectives over lists of tensors, pads with torch's pad, and writes back element by element."""

    def two_level_all_reduce(tensor, inner, outer):
        g = inner.size()
        flat = tensor.contiguous().flatten()
        short = -flat.numel() % g
        pieces = list(torch.nn.functional.pad(flat, (0, short)).chunk(g))
        mine = torch.zeros_like(pieces[0])
        dist.reduce_scatter(mine, pieces, group=inner)
        dist.all_reduce(mine, group=outer)
        whole = [torch.zeros_like(mine) for _ in range(g)]
        dist.all_gather(whole, mine, group=inner)
        total = torch.cat(whole)[: tensor.numel()]
        tensor[...] = total.reshape(tensor.shape)
        return "done"


@answer_to("15-ex3-two-levels")
def groups_of_one_are_left_out():
    """Calls no collective over a group that has this rank alone."""

    def two_level_all_reduce(tensor, inner, outer):
        g, nodes = dist.get_world_size(inner), dist.get_world_size(outer)
        flat = tensor.flatten()
        padded = torch.cat([flat, flat.new_zeros(-len(flat) % g)])
        part = padded
        if g > 1:
            part = padded.new_empty(len(padded) // g)
            dist.reduce_scatter_single(part, padded, group=inner)
        if nodes > 1:
            dist.all_reduce(part, group=outer)
        if g > 1:
            dist.all_gather_single(padded, part, group=inner)
        tensor.copy_(padded[: len(flat)].view_as(tensor))


@answer_to("15-ex4-arithmetic")
def arithmetic_by_seconds():
    """Writes both times down for a unit of the size, and divides one by the other."""

    def flops_per_token(params, layers, hidden, seq, causal=False):
        products = 2 * params + 2 * layers * hidden * seq * (1 if causal else 2)
        return 3.0 * products

    def mfu(flops, tokens, seconds, gpus, peak):
        per_gpu = flops * tokens / gpus
        return (per_gpu / seconds) / peak

    def critical(kind, n, peak, bandwidth, itemsize=2):
        if not n >= 1:
            raise ValueError("n is the number of ranks, at least one")
        part = (n - 1) / n
        sent = {"fsdp": 3 * part, "tp": 4 * 2 * part, "pp": 2.0}
        work = {"fsdp": 6, "tp": 72 / n, "pp": 72}
        if kind not in sent:
            raise ValueError(f"no such kind: {kind}")
        return (sent[kind] * itemsize / bandwidth) / (work[kind] / peak)


@answer_to("15-ex5-finish")
def gradients_in_one_vector():
    """Sends loss, count and gradients in one vector, replaces .grad, and clips by multiplying a flat vector."""

    def finish_gradients(params, kinds, loss_sum, count, tp, dp, max_norm):
        params, kinds = list(params), list(kinds)
        known = {"sharded": 0, "replicated": 1, "partial": 2}
        for kind in kinds:
            if kind not in known:
                raise ValueError(f"what is {kind}?")
        for p, kind in zip(params, kinds):
            if kind == "partial":
                total = p.grad.clone()
                dist.all_reduce(total, group=tp)
                p.grad = total
        flat = torch.cat([p.grad.flatten() for p in params] + [torch.tensor([float(loss_sum), float(count)])])
        dist.all_reduce(flat, group=dp)
        loss, tokens = float(flat[-2]), float(flat[-1])
        flat = flat[:-2] / tokens
        pieces = list(flat.split([p.numel() for p in params]))
        own = sum((one.double() ** 2).sum() for one, kind in zip(pieces, kinds) if kind == "sharded")
        rest = [one for one, kind in zip(pieces, kinds) if kind != "sharded"]
        whole = sum(float((one.double() ** 2).sum()) for one in rest)
        own = torch.as_tensor(own, dtype=torch.float64).reshape(1)
        dist.all_reduce(own, group=tp)
        norm = (own.item() + whole) ** 0.5
        scale = max_norm / (norm + 1e-6) if norm > max_norm else 1.0
        for p, one in zip(params, pieces):
            p.grad = (one * scale).reshape(p.shape)
        return [loss / tokens, norm]


@answer_to("15-ex5-finish")
def ranks_alone_send_nothing():
    """A call for each gradient, none in a group of one; whole weights count 1/t on each rank of tp."""

    def finish_gradients(params, kinds, loss_sum, count, tp, dp, max_norm):
        unknown = set(kinds) - {"sharded", "replicated", "partial"}
        if unknown:
            raise ValueError(f"these are no kinds: {sorted(unknown)}")
        ways, copies = dist.get_world_size(tp), dist.get_world_size(dp)
        totals = torch.tensor([loss_sum, count], dtype=torch.float64)
        for p, kind in zip(params, kinds):
            if kind == "partial" and ways > 1:
                dist.all_reduce(p.grad, group=tp)
            if copies > 1:
                dist.all_reduce(p.grad, group=dp)
        if copies > 1:
            dist.all_reduce(totals[:1], group=dp)
            dist.all_reduce(totals[1:], group=dp)
        square = torch.zeros(1, dtype=torch.float64)
        for p, kind in zip(params, kinds):
            p.grad.div_(totals[1])
            square += p.grad.double().pow(2).sum() / (1 if kind == "sharded" else ways)
        if ways > 1:
            dist.all_reduce(square, group=tp)
        norm = square.item() ** 0.5
        for p in params:
            p.grad.mul_(max_norm / (norm + 1e-6) if norm > max_norm else 1)
        return float(totals[0] / totals[1]), norm


@answer_to("15-ex6-cost")
def cost_by_slots():
    """One function without helpers: a list of rules, seconds of a slot times the number of slots."""

    def cost(model, cluster, layout, batch, stage=1):
        t, p, d = layout["tp"], layout["pp"], layout["dp"]
        b, v, again = layout["micro"], layout["chunks"], layout["recompute"]
        result = dict(layout) | dict.fromkeys(("reason", "memory", "seconds", "mfu", "bubble"))
        whole = batch % (d * b) == 0
        count = batch // (d * b)
        rules = [
            ("gpus", t * p * d == cluster["gpus"]),
            ("heads", model["heads"] % t == 0),
            ("layers", model["layers"] % (p * v) == 0 and not (v > 1 and p == 1)),
            ("batch", whole and (v == 1 or count % p == 0)),
        ]
        for name, holds in rules:
            if not holds:
                result["reason"] = name
                return result
        layers = model["layers"] // p
        each = model["seq"] * b * model["hidden"] / t
        state = 2 + (2 / d if stage == 2 else 2) + (12 if stage == 0 else 12 / d)
        held = min(count, p if v == 1 else p + (p - 1) / v)
        memory = model["params"] / t / p * state + (2 if again else model["saved"]) * each * layers * held
        memory += model["saved"] * each if again else 0
        result["memory"] = memory
        if memory > cluster["memory"]:
            result["reason"] = "memory"
            return result
        node, port = cluster["per_node"], cluster["inter"]
        own = node // (t * p) or 1  # ranks of a data-parallel group in a node
        speed = [
            cluster["intra"] if size <= node else min(cluster["intra"], ports * port)
            for size, ports in ((t, node), (t * p, 1), (t * p * d, own))
        ]
        flops = flops_per_token(model["params"], model["layers"], model["hidden"], model["seq"]) * model["seq"]
        slot = flops * b / (t * p) * (4 / 3 if again else 1) / cluster["peak"] / cluster["efficiency"]
        slot += layers * (6 if again else 4) * 2 * (t - 1) * 2 * each / speed[0]
        slot += v * 4 * each / speed[1] if p > 1 else 0
        seconds = slot * (count + (p - 1) / v) + 4 * (d - 1) / d * model["params"] / (t * p) / speed[2]
        result["seconds"] = seconds
        result["mfu"] = flops * batch / seconds / cluster["gpus"] / cluster["peak"]
        result["bubble"] = 1 - v * count / (v * count + p - 1)
        return result


@answer_to("15-ex7-plan")
def plan_in_loops():
    """Nested loops over all numbers, the lists filled on the way; sorts in place."""

    def plan(model, cluster, batch, stage=1):
        fits, out = [], []
        for pp in range(cluster["gpus"], 0, -1):
            for tp in range(1, cluster["gpus"] // pp + 1):
                if cluster["gpus"] % (pp * tp):
                    continue
                dp = cluster["gpus"] // pp // tp
                for recompute in (True, False):
                    for chunks in (8, 4, 2, 1):
                        for micro in (4, 2, 1):
                            one = {
                                "tp": tp,
                                "pp": pp,
                                "dp": dp,
                                "micro": micro,
                                "chunks": chunks,
                                "recompute": recompute,
                            }
                            priced = cost(model, cluster, one, batch, stage)
                            (out if priced["reason"] else fits).append(priced)
        fits.sort(key=lambda one: one["seconds"])
        return fits, out
