"""The ring attention of diffusers on CPU processes, with exact blocks of attention in place of the GPU's kernels.

    pip install diffusers==0.42.1
    python benchmarks/diffusers_ring.py

Prints the relative errors of dq, dk and dv on rank 0 against attention in one process. With diffusers 0.40.0 and
0.42.1, torch 2.13 and gloo, on 1 and 2 ranks all are below 1e-15; on 3 ranks dk and dv are off by 0.80 and 0.74, on 4
by 0.65 and 0.60, and dq by nothing. Keys and values are all-gathered in both directions; only gradients travel.
"""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LENGTH = 12


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(B, H, i, j) of queries and keys of shape (B, L, H, D)."""
    return torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5


def forward(ctx: Any, q: Any, k: Any, v: Any, *_: Any, _save_ctx: bool = True, **__: Any) -> tuple:
    """(out, lse) of a block, as diffusers calls it."""
    if _save_ctx:
        ctx.save_for_backward(q, k, v)
    s = scores(q, k)
    lse = s.logsumexp(-1)
    return torch.einsum("bhij,bjhd->bihd", (s - lse[..., None]).exp(), v), lse.transpose(1, 2)


def backward(ctx: Any, grad: Any, *, query: Any, key: Any, value: Any, out: Any, lse: Any) -> tuple:
    """The parts of dq, dk and dv of a block, given out and lse over all keys."""
    p = (scores(query, key) - lse.transpose(1, 2)[..., None]).exp()
    delta = (grad * out).sum(-1).transpose(1, 2)[..., None]
    ds = p * (torch.einsum("bihd,bjhd->bhij", grad, value) - delta) / query.shape[-1] ** 0.5
    dv = torch.einsum("bhij,bihd->bjhd", p, grad)
    return torch.einsum("bhij,bjhd->bihd", ds, key), torch.einsum("bhij,bihd->bjhd", ds, query), dv


def compare(rank: int, n: int, port: int) -> None:
    """Run forward and backward on this rank, and print how far it is from one process."""
    # By name, since nothing else needs it: it is installed for this one measurement.
    version = importlib.import_module("diffusers").__version__
    ring_attention = importlib.import_module("diffusers.models.attention_dispatch").TemplatedRingAttention

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=n)
    ring = SimpleNamespace(
        _ring_mesh=dist.device_mesh.init_device_mesh("cpu", (n,)), _ring_local_rank=rank, ring_degree=n,
        convert_to_fp32=False,
    )  # fmt: skip
    torch.manual_seed(0)
    q, k, v, grad = torch.randn(4, 1, LENGTH, 2, 8, dtype=torch.float64)
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in whole)).transpose(1, 2)
    right = torch.autograd.grad(out, whole, grad)
    own = slice(rank * LENGTH // n, (rank + 1) * LENGTH // n)
    parts = [x[:, own].clone().requires_grad_() for x in (q, k, v)]
    how = (None, 0.0, False, None, False, False, forward, backward, SimpleNamespace(context_parallel_config=ring))
    ring_attention.apply(*parts, *how).backward(grad[:, own])
    if rank == 0:
        pairs = zip(parts, right, strict=True)
        off = [((x.grad - y[:, own]).norm() / y[:, own].norm()).item() for x, y in pairs]
        print(f"diffusers {version}, {n} ranks, dq dk dv:", *(f"{one:.1e}" for one in off), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for count in (1, 2, 3, 4):
        mp.spawn(compare, (count, 29600 + count), nprocs=count)
