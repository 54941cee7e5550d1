"""Lesson 07, exercise 3: top-k with error feedback as a communication hook of DDP."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import count_of_ranks, each_rank, expect_close
from autograder.checking.stage import run_ranks
from autograder.checks.bandwidth.common import GATHERS, count_kept, residual_step


class _Feedback:
    """Error feedback of the check's own, so that this exercise does not depend on the one before it."""

    def __init__(self, ratio: float):
        self.ratio, self.residual, self.calls = ratio, {}, []

    def compress(self, key: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.append((key if isinstance(key, int | str) else repr(key), tuple(grad.shape)))
        flat = grad.detach().reshape(-1)
        corrected = flat + self.residual[key].reshape(-1) if key in self.residual else flat.clone()
        indices = corrected.abs().topk(count_kept(flat.numel(), self.ratio)).indices
        values = corrected[indices]
        corrected[indices] = 0
        self.residual[key] = corrected.view(grad.shape)
        return values, indices


class _Net(nn.Module):
    """Three layers of the same shape, used in another order than they are listed in; the first is frozen."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.last = nn.Linear(64, 64, dtype=dtype)
        self.frozen = nn.Linear(64, 64, dtype=dtype)
        self.first = nn.Linear(64, 64, bias=False, dtype=dtype)
        self.middle = nn.Linear(64, 64, dtype=dtype)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, 64) → (B, 64)."""
        return self.last(torch.tanh(self.middle(torch.tanh(self.frozen(torch.tanh(self.first(x)))))))


def _net(seed: int, dtype: torch.dtype) -> _Net:
    generator = torch.Generator().manual_seed(seed)
    net = _Net(dtype)
    with torch.no_grad():
        for param in net.parameters():
            param.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64) / 8)
    return net


def _step_gradients(net: nn.Module, x: np.ndarray, dtype: torch.dtype) -> list[np.ndarray | None]:
    for param in net.parameters():
        param.grad = None
    net(torch.from_numpy(x).to(dtype)).square().mean().mul(50).backward()
    return [None if param.grad is None else param.grad.numpy().copy() for param in _params(net)]


def _params(net: nn.Module) -> list[nn.Parameter]:
    return list((net.module if isinstance(net, DistributedDataParallel) else net).parameters())


def _descend(net: nn.Module, grads: list[np.ndarray | None]) -> None:
    with torch.no_grad():
        for param, grad in zip(_params(net), grads, strict=True):
            if grad is not None:
                param -= 0.1 * torch.from_numpy(grad).to(param.dtype)


def _drive_hook(rank, world_size, hook, seed, x, ratio, cap, dtype, plain) -> dict:
    """Inside a rank: train with DDP and the hook; the gradients of each step, the keys, and the residuals."""
    ddp = DistributedDataParallel(_net(seed, dtype), bucket_cap_mb=cap)
    feedback = _Feedback(ratio)
    if not plain:
        ddp.register_comm_hook((feedback, _params(ddp)), hook)
    steps, calls = [], []
    for batch in x[rank]:
        steps.append(_step_gradients(ddp, batch, dtype))
        _descend(ddp, steps[-1])
        calls.append(sorted(feedback.calls, key=repr))
        feedback.calls.clear()
    return {"steps": steps, "calls": calls}


def _expected_gradients(seed: int, x: np.ndarray, ratio: float, dtype: torch.dtype) -> list[list[np.ndarray | None]]:
    """One process that keeps N residuals for each parameter."""
    net, residuals, steps = _net(seed, dtype), defaultdict(float), []
    for step in range(x.shape[1]):
        means: list[np.ndarray | None] = [None] * len(_params(net))
        for rank in range(len(x)):
            for place, grad in enumerate(_step_gradients(net, x[rank, step], dtype)):
                if grad is None:
                    continue
                k = count_kept(grad.size, ratio)
                sent, residuals[rank, place] = residual_step(residuals[rank, place], grad.reshape(-1), k)
                share = sent.reshape(grad.shape) / len(x)
                means[place] = share if means[place] is None else means[place] + share
        _descend(net, means)
        steps.append(means)
    return steps


def _hook_runs(rng, top_k_hook, world_size: int, ratio: float, cap: float, dtype: torch.dtype, steps: int = 6, **kind):
    """Train with DDP and the hook: (the arguments that the oracle needs, too; the ranks' results)."""
    seed, x = inputs.seed(rng), rng.normal(size=(world_size, steps, 4, 64))
    arguments = (seed, x, ratio, cap, dtype)
    return arguments, run_ranks(_drive_hook, world_size, (top_k_hook, *arguments, kind.get("plain", False)))


@check("07-ex3-top-k-hook")
def hook_follows_one_process(top_k_hook, *, rng):
    """Six steps with N ranks give the gradients of one process with N residuals, with one bucket and with many."""
    for world_size, cap, ratio in [(2, 25, 0.0625), (3, 0.05, 0.25), (1, 0.05, 0.125), (2, 0.05, 2.0**-13)]:
        case = f"{count_of_ranks(world_size)}, bucket_cap_mb = {cap}, ratio {ratio}"
        (seed, x, *_), results = _hook_runs(rng, top_k_hook, world_size, ratio, cap, torch.float64)
        expected = _expected_gradients(seed, x, ratio, torch.float64)
        places = [place for place, grad in enumerate(expected[0]) if grad is not None]
        wanted = sorted([(place, expected[0][place].shape) for place in places], key=repr)
        for step in range(x.shape[1]):
            compressed = [result["calls"][step] for result in results]
            for rank, calls in each_rank(case, compressed, evidence=repr):
                rank.expect_equal(calls, wanted, what=f"the list of (key, shape of the gradient) in step {step}")
            # Evidence is the start of each gradient: comparing all 16,000 entries in each of 6 steps is slow.
            grads = [result["steps"][step] for result in results]
            for rank, means in each_rank(case, grads, evidence=_starts):
                for place in places:
                    # float64: six steps of sums over at most 64 products round by less than 1e-12 of the largest.
                    what = f"the gradient of parameter {place} in step {step}"
                    rank.expect_close(means[place], expected[step][place], what=what, rtol=1e-10)


def _starts(grads: list[np.ndarray | None]) -> list[np.ndarray]:
    """The first 256 entries of each gradient that is there."""
    return [grad.reshape(-1)[:256] for grad in grads if grad is not None]


@check("07-ex3-top-k-hook")
def hook_sends_only_what_it_must(top_k_hook, *, rng):
    """At most the values and indices of each parameter go into all-gathers, and nothing else is called."""
    for world_size, ratio in [(2, 0.0625), (3, 2.0**-13)]:
        case = f"{count_of_ranks(world_size)}, ratio {ratio}"
        for dtype in (torch.float32, torch.float64):
            (seed, *_), results = _hook_runs(rng, top_k_hook, world_size, ratio, 0.05, dtype, steps=3)
            trained = [param for param in _net(seed, dtype).parameters() if param.requires_grad]
            most = 3 * sum(count_kept(param.numel(), ratio) * (param.itemsize + 8) for param in trained)
            messages = [list(results.ledger.of(rank)) for rank in range(world_size)]
            sent = [[sum(m.bytes for m in mine), sorted({m.call for m in mine})] for mine in messages]
            for rank, (spent, calls) in each_rank(case, sent):
                others = [call for call in calls if call not in GATHERS]
                rank.expect(not others, f"{', '.join(others)} was called, only all-gathers are allowed", calls)
                put = f"{spent} bytes of {dtype} gradients were put into all-gathers in 3 steps"
                rank.expect(spent <= most, f"{put}, {most} are enough")


@check("07-ex3-top-k-hook")
def hook_that_sends_everything_is_plain_ddp(top_k_hook, *, rng):
    """With ratio 1 the gradients are those of DDP without a hook, in float32 within 1e-6 of the largest."""
    for world_size in (1, 2):
        case = f"{count_of_ranks(world_size)}, ratio 1"
        seed = rng.bit_generator.state
        _, hooked = _hook_runs(rng, top_k_hook, world_size, 1.0, 25, torch.float32, steps=3)
        rng.bit_generator.state = seed
        _, plain = _hook_runs(rng, None, world_size, 1.0, 25, torch.float32, steps=3, plain=True)
        for rank, result in enumerate(plain):
            for step, grads in enumerate(result["steps"]):
                for place, grad in enumerate(grads):
                    if grad is not None:
                        what = f"the gradient of parameter {place} in step {step} on rank {rank}"
                        expect_close(case, hooked[rank]["steps"][step][place], grad, what=what, rtol=1e-6)
