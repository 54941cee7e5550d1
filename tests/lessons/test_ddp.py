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
import torch, torch.distributed as dist
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn.parallel import DistributedDataParallel

class Block(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)

class Layers(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x

def forward_graph(graph, inputs):
    graphs.append(graph)
    return graph

def backward_graph(graph, inputs):
    def run(*inputs):
        events.append("backward")
        return graph(*inputs)
    return run

def send(state, bucket):
    events.append("send")
    sent = torch.futures.Future()
    sent.set_result(bucket.buffer())
    return sent

def built(kind, order, optimize=True):
    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = optimize
    graphs.clear()
    model = kind(*[(Block if order == "blocks" else nn.Linear)(512, 512) for _ in range(6)])
    if order == "inside":
        return DistributedDataParallel(torch.compile(model, backend=backend), bucket_cap_mb=1)
    if order == "blocks":
        for layer in model:
            layer.compile(backend=backend)
        return DistributedDataParallel(model, bucket_cap_mb=1)
    model = model if order == "alone" else DistributedDataParallel(model, bucket_cap_mb=1)
    return torch.compile(model, backend=backend)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
graphs, events, backend = [], [], aot_autograd(fw_compiler=forward_graph, bw_compiler=backward_graph)
for kind in (Layers, nn.Sequential):
    for order in ("inside", "outside", "alone"):
        built(kind, order)(torch.randn(8, 512)).sum().backward()
        print(len(graphs))
for order in ("inside", "blocks"):
    model = built(Layers, order, optimize=False)
    model.register_comm_hook(None, send)
    for _ in range(2):
        events.clear()
        model(torch.randn(8, 512)).sum().backward()
    print(len(events) - 1 - events[::-1].index("backward") > events.index("send"))
"""


def test_where_the_compiler_cuts_graphs_at_buckets_and_where_sends_overlap_without_cuts():
    environment = os.environ | {"TORCH_LOGS": "-all"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    own, bare, overlaps = ["6", "6", "1"], ["6", "0", "1"], ["False", "True"]
    assert done.stdout.split() == own + bare + overlaps, done.stderr[-2000:]


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


def gradient_of_ddp(rank, world_size, kept, autocast, asked):
    model = torch.nn.Linear(8, 8).to(kept)
    if asked:
        model.weight.grad_dtype = asked
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = ddp(torch.ones(2, 8, dtype=kept))
    out.sum().backward()
    return model.weight.grad.dtype


@pytest.mark.parametrize(("kept", "autocast"), [(torch.bfloat16, False), (torch.float32, True)])
def test_ddps_gradients_have_the_dtype_of_their_parameters(kept, autocast):
    assert list(ranks.run(gradient_of_ddp, 1, (kept, autocast, None), echo=False)) == [kept]


def test_ddp_keeps_no_float32_gradient_of_a_bf16_parameter():
    with pytest.raises(Exception, match="Expected BFloat16, got Float"):
        ranks.run(gradient_of_ddp, 1, (torch.bfloat16, False, torch.float32), echo=False)


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
