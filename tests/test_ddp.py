"""What chapters 04 and 05 say of libraries and of bucket sizes, tried."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import ranks

COMPILE = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn.parallel import DistributedDataParallel

class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

def forward_graph(graph, inputs):
    graphs.append(graph)
    return graph

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for order in ("inside", "outside", "alone"):
    torch._dynamo.reset()
    graphs, model = [], Layers()
    backend = aot_autograd(fw_compiler=forward_graph, bw_compiler=lambda graph, inputs: graph)
    if order == "inside":
        model = DistributedDataParallel(torch.compile(model, backend=backend), bucket_cap_mb=1)
    else:
        model = model if order == "alone" else DistributedDataParallel(model, bucket_cap_mb=1)
        model = torch.compile(model, backend=backend)
    model(torch.randn(8, 512)).sum().backward()
    print(len(graphs))
"""


def test_compile_cuts_the_graph_at_buckets_whether_it_wraps_ddp_or_is_wrapped():
    environment = os.environ | {"TORCH_LOGS": "-all"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["6", "6", "1"], done.stderr[-2000:]


def divided(rank, world_size, factor):
    """The gradient of a weight whose own gradient is rank + 1, by FSDP2 with this divide factor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(1, world_size, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    if factor:
        model.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
        model.set_gradient_divide_factor(factor)
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    return model.weight.grad.full_tensor()[0, 0].item()


@pytest.mark.parametrize(("factor", "expected"), [(None, 1.5), (1.0, 3.0)])
def test_fsdp2_averages_unless_it_is_told_to_divide_by_one(factor, expected):
    assert list(ranks.run(divided, 2, (factor,), echo=False)) == [expected] * 2


def last_arrival(size, a, b, r, total):
    """Theorem 5.3."""
    return max(r * total + a + b * size, r * size + b * total + a * total / size)


@pytest.mark.parametrize("b", [0.3, 0.9, 0.99, 1.5])
def test_the_best_size_is_the_smaller_of_two(b):
    a = r = 1.0
    total = 30.0
    best = min(a / (r - b) if b < r else float("inf"), (a * total / r) ** 0.5)
    tried = min(last_arrival(size, a, b, r, total) for size in np.geomspace(0.1, 30, 3000))
    assert last_arrival(best, a, b, r, total) == pytest.approx(tried, rel=1e-4)


class Chain(torch.nn.Module):
    """An embedding, four layers and a head, which may be tied to the embedding."""

    def __init__(self, tied=False):
        super().__init__()
        self.embedding = torch.nn.Embedding(500, 16)
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(16, 16, bias=False) for _ in range(4)])
        self.head = torch.nn.Linear(16, 500, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


def buckets_of_ddp(rank, world_size, tied, views):
    """DDP's buckets after three steps, as the places of their parameters, and how many tensors hold the gradients."""
    model = Chain(tied)
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2000 / 2**20, gradient_as_bucket_view=views)
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.arange(7)).sum().backward()
    held = {param.grad.untyped_storage().data_ptr() for param in model.parameters()}
    return ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"], len(held)


@pytest.mark.parametrize(
    ("tied", "views", "expected"),
    [
        (False, False, ("5, 4 3, 2 1, 0", 6)),
        (False, True, ("5, 4 3, 2 1, 0", 4)),  # the gradients are parts of the buckets, and no second copy
        (True, True, ("4 3, 2 1, 0", 3)),  # the head's gradient is the embedding's, and comes last
    ],
)
def test_ddp_splits_no_gradient_and_sends_the_embeddings_last(tied, views, expected):
    [found] = ranks.run(buckets_of_ddp, 1, (tied, views), echo=False)
    assert tuple(found) == expected
