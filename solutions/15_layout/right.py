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
        strides, product = {}, 1
        for name in sizes:
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
        print("making", len(axes), "axes")
        return {axis: dist.new_subgroups_by_enumeration(rank_groups(sizes, axis))[0] for axis in axes}


@answer_to("15-ex3-numbering")
def the_smallest_misfit():
    """Looks for the order whose worst axis is off least, and returns it if that is at most a fifth."""

    def find_order(sizes, measured, cluster):
        def misfit(order):
            offs = []
            for place, name in enumerate(order):
                stride = math.prod(sizes[faster] for faster in order[:place])
                offs.append(abs(measured[name] / cluster.bandwidth(sizes[name], stride) - 1))
            return max(offs)

        best = min(itertools.permutations(list(sizes)), key=misfit)
        return tuple(best) if misfit(best) <= 0.2 else None


@answer_to("15-ex4-arithmetic")
def arithmetic_by_seconds():
    """Writes both times down for a unit of the size, and divides one by the other."""

    def critical(kind, n, peak, bandwidth, itemsize=2):
        part = (n - 1) / n
        sent = {"fsdp": 3 * part, "tp": 4 * 2 * part, "pp": 2.0}
        work = {"fsdp": 6, "tp": 72 / n, "pp": 72}
        return (sent[kind] * itemsize / bandwidth) / (work[kind] / peak)


@answer_to("15-ex5-finish")
def gradients_in_one_vector():
    """Sends loss, count and gradients in one vector, replaces .grad, and clips by multiplying a flat vector."""

    def finish_gradients(params, kinds, loss_sum, count, tp, dp, max_norm):
        params, kinds = list(params), list(kinds)
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
def seconds_by_passes():
    """Adds up the passes through a layer one by one, and plays the bubble as one minus the share of work."""

    def tensor_seconds(model, cluster, layout):
        tokens = layout["micro"] * model.sequence
        once = cluster.all_reduce_seconds(tokens * model.hidden * 2.0, layout["tp"])
        forward = backward = 2 * once
        return forward + backward + (forward if layout["recompute"] else 0)

    def bubble_share(p, v, micro_batches):
        return 1 - micro_batches / (micro_batches + (p - 1) / v)


@answer_to("15-ex7-ports")
def data_by_name():
    """Takes the arguments by name."""

    def data_seconds(model, cluster, layout):
        per_rank = parameters(model).total / layout["pp"] / layout["tp"]
        group = {"group_size": layout["dp"], "stride": layout["tp"]}
        gradients = cluster.reduce_scatter_seconds(nbytes=4 * per_rank, **group)
        return gradients + cluster.all_gather_seconds(nbytes=2 * per_rank, **group)
