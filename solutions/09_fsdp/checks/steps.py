"""Runs of training steps, for units alone and for the wrapper, and the plain module that they must follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from autograder.checking.expect import ceil_div, count_of_ranks, digits_that_differ, expect_close, expect_equal, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.cut import expect_gathers
from autograder.checks.fsdp.models import ERROR, OPTIMIZERS, as_numpy, batch, build, divide, flat, groups, padded

#: For each number of ranks the models, by their places in MODELS: all where most goes wrong, some elsewhere.
PLAN = {3: (0, 1, 2, 3, 4, 5), 1: (3, 1), 5: (4,), 2: (0,), 4: (4,)}


@dataclass
class Training:
    """Some steps of a model. halves: two backwards a step, over halves of the batch."""

    model: str
    optimizer: str
    seed: int
    steps: int = 3
    halves: bool = False
    dtype: str = "float32"

    def named(self, world_size: int) -> str:
        more = [", two backwards a step"] if self.halves else []
        more += [f", {self.dtype}"] if self.dtype != "float32" else []
        return f"{count_of_ranks(world_size)}, {self.model}, {self.optimizer}{''.join(more)}"


class _Bare:
    """Units without a wrapper, for the exercise before it."""

    def __init__(self, unit_class: Any, module: nn.Module, units: list[nn.Module], *dtype: torch.dtype):
        self.module, self.units = module, [unit_class(unit, *dtype) for unit in units]

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.module(*inputs)

    def parameters(self) -> list[nn.Parameter]:
        return [unit.shard for unit in self.units if unit.shard.numel()]


def _drive_steps(
    rank: int, world_size: int, subject: Any, cases: list[Training], bare: bool, link: Any = None
) -> list[dict]:
    """Two barriers around each step; a rank's shards and gradients in each."""
    observed = []
    for case in cases:
        module, units = build(case.model, case.seed + (0 if bare else 7 * rank))
        dtype = [getattr(torch, case.dtype)] if case.dtype != "float32" else []
        wrapped = _Bare(subject, module, units, *dtype) if bare else subject(module, units, *dtype)
        if link:
            link(wrapped.units)
        params = list(wrapped.parameters())
        # Empty ones have a check of their own: `only_what_trains_has_a_trainable_shard`.
        trained = [p for p in params if p.requires_grad and p.numel()]
        optimizer = OPTIMIZERS[case.optimizer](wrapped.parameters())
        seen: dict[str, Any] = {
            "kinds": [[f"{p.dim()}-D {str(p.dtype)[6:]}", p.numel()] for p in trained],
            "frozen": sum(p.numel() for p in params if not p.requires_grad),
            "gradients": [],
            "shards": [],
        }
        for step in range(case.steps):
            x, y = batch(case.model, case.seed, step, rank)
            if bare and x.is_floating_point():
                x = x.to(*dtype) if dtype else x
            parts = [(x, y)] if not case.halves else list(zip(x.chunk(2), y.chunk(2), strict=True))
            dist.barrier()
            for part, target in parts:
                loss = (wrapped(part).float() - target).square().mean() / len(parts)
                loss.backward()
            seen["gradients"].append([None if p.grad is None else as_numpy(p.grad) for p in trained])
            seen.setdefault("gradient dtypes", [str(p.grad.dtype)[6:] for p in trained if p.grad is not None])
            optimizer.step()
            dist.barrier()
            seen["shards"].append([as_numpy(p) for p in trained])
            optimizer.zero_grad()
        x, _ = batch(case.model, case.seed, case.steps, 0)
        with torch.no_grad():
            out = wrapped(x.to(*dtype) if bare and dtype and x.is_floating_point() else x)
        seen["output"] = as_numpy(out)
        seen["left whole"] = [u for u, unit in enumerate(wrapped.units) if unit.whole is not None] if bare else []
        seen["buffer dtypes"] = [str(b.dtype)[6:] for b in module.buffers()]
        observed.append(seen)
    return observed


def follow(case: Training, world_size: int) -> dict:
    """The plain module in this process, on all ranks' batches together (bf16: on each, cast, and added up)."""
    module, units = build(case.model, case.seed)
    parts = [groups(params) for params in divide(module, units)]
    trained = [p for trainable, _ in parts for p in trainable]
    optimizer, want = OPTIMIZERS[case.optimizer](trained), {"gradients": [], "shards": []}
    for step in range(case.steps):
        batches = [batch(case.model, case.seed, step, rank) for rank in range(world_size)]
        optimizer.zero_grad()
        if case.dtype == "float32":
            x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
            (module(x) - y).square().mean().backward()
        else:
            _sum_of_casts(module, trained, batches)
        for p in trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        want["gradients"].append([flat(p.grad for p in trainable) for trainable, _ in parts if trainable])
        optimizer.step()
        want["shards"].append([flat(trainable) for trainable, _ in parts if trainable])
    x, _ = batch(case.model, case.seed, case.steps, 0)
    if case.dtype == "float32":
        with torch.no_grad():
            want["output"] = as_numpy(module(x))
    want["frozen"] = [sum(p.numel() for p in frozen) for _, frozen in parts]
    want["trained"] = [sum(p.numel() for p in trainable) for trainable, _ in parts]
    want["module"] = module
    want["buffer dtypes"] = [str(b.dtype)[6:] for b in module.buffers()]
    return want


def _sum_of_casts(module: nn.Module, trained: list[nn.Parameter], batches: list) -> None:
    """p.grad = the mean over ranks of the cast module's gradients, each cast to float32 before they are added."""
    masters, params = {}, list(module.parameters())
    for p in params:
        masters[p], p.data, p.grad = p.data, p.data.bfloat16(), None
    sums = {p: torch.zeros(p.shape) for p in trained}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a rank: more of them round sums in bf16 otherwise
    for x, y in batches:
        out = module(x.bfloat16() if x.is_floating_point() else x)
        (out.float() - y).square().mean().backward()
        for p in trained:
            if p.grad is not None:
                sums[p] += p.grad.float()
            p.grad = None
    torch.set_num_threads(threads)
    for p in params:
        p.data = masters[p]
    for p in trained:
        p.grad = sums[p] / len(batches)


def _expect_run(case: Training, results: Any, number: int, calls: list, first_part: int) -> None:
    """Shards, gradients and messages of one case on all ranks."""
    world_size = len(results)
    want, name, seen = follow(case, world_size), case.named(world_size), [mine[number] for mine in results]
    sizes = [ceil_div(n, world_size) for n in want["trained"] if n]
    for rank, got in enumerate(seen):
        what = f"the list of the dtypes of the buffers on rank {rank}"
        expect_equal(name, got["buffer dtypes"], want["buffer dtypes"], what=what)
        kinds = [["1-D float32", size] for size in sizes]
        expect_equal(name, got["kinds"], kinds, what=f"the list of the trainable shards on rank {rank}")
        most = sum(ceil_div(n, world_size) for n in want["frozen"])
        if got["frozen"] > most:
            text = f"parameters() on rank {rank} has {got['frozen']} frozen numbers, expected at most {most}"
            fail(text, name, got["frozen"])
    for step in range(case.steps):
        for what in ("gradients", "shards"):
            for u, vector in enumerate(want[what][step]):
                pieces = [got[what][step][u] for got in seen]
                if any(piece is None for piece in pieces):
                    fail(f"a trainable shard has no .grad after backward() in step {step + 1}", name, ["none", u])
                whole, full = np.concatenate(pieces), padded(vector, world_size)
                off = np.abs(whole - full)
                bound = ERROR * max(1.0, float(np.max(np.abs(full), initial=0.0)))
                if not np.all(off <= bound):
                    at = int(np.nanargmax(np.where(np.isnan(off), np.inf, off)))
                    thing = "gradient of element" if what == "gradients" else "element"
                    text = f"in step {step + 1}, on rank {at // len(pieces[0])}, the {thing} {at % len(pieces[0])}"
                    one, other = digits_that_differ(whole[at], full[at])
                    text += f" of trainable shard {u} is {one}, expected {other}"
                    text += " (padding)" if at >= len(vector) else ""
                    fail(text, name, [what, step, *pieces])
        for rank in range(world_size):
            _expect_wire(case, name, rank, calls[rank][first_part + 2 * step], want, world_size)
    for rank, got in enumerate(seen):
        if set(got["gradient dtypes"]) != {"float32"}:
            text = f"the gradients on rank {rank} are {got['gradient dtypes']}, expected float32"
            fail(text, name, got["gradient dtypes"])
        if got["left whole"]:
            fail(f"after a forward under no_grad, unit {got['left whole'][0]} is still whole", name, got["left whole"])
        if "output" in want:
            what = f"the output under no_grad on rank {rank}"
            expect_close(name, got["output"], want["output"], what=what, rtol=5 * ERROR, atol=ERROR)


def _expect_wire(case: Training, name: str, rank: int, part: Iterable, want: dict, world_size: int) -> None:
    """Two all-gathers and one reduce-scatter of each unit, for each backward."""
    if world_size == 1:
        return
    sent = [(m.call, m.bytes, m.dtype) for m in part if m.bytes]
    times, itemsize = 2 if case.halves else 1, 2 if case.dtype == "bfloat16" else 4
    reduced = sorted(nbytes for call, nbytes, _ in sent if call.startswith("reduce_scatter"))
    rest = [(call, nbytes) for call, nbytes, _ in sent if not call.startswith("reduce_scatter")]
    expected = sorted(4 * world_size * ceil_div(n, world_size) for n in want["trained"] if n for _ in range(times))
    evidence = [list(map(str, entry)) for entry in sent]
    if reduced != expected:
        fail(f"rank {rank} put {reduced} bytes into its reduce-scatters, expected {expected}", name, evidence)
    wrong = {dtype for call, _, dtype in sent if call.startswith("reduce_scatter")} - {"torch.float32"}
    if wrong:
        fail(f"rank {rank} reduced gradients as {wrong.pop()}, expected torch.float32", name, evidence)
    pairs = zip(want["trained"], want["frozen"], strict=True)
    units = [(ceil_div(p, world_size) + ceil_div(f, world_size)) * itemsize for p, f in pairs]
    expect_gathers(name, rank, rest, 2 * times * units, world_size)


def expect_all(subject: Any, cases: list[Training], world_size: int, bare: bool, link: Any = None) -> list[list[dict]]:
    """Run all cases in one launch and judge each; the launch's results.

    bare: `subject` is the class of a unit, not of a wrapper. link: called with the units.
    """
    results = run_ranks(_drive_steps, world_size, (subject, cases, bare, link))
    calls = [results.ledger.of(rank).between_barriers() for rank in range(world_size)]
    part = 1
    for number, case in enumerate(cases):
        _expect_run(case, results, number, calls, part)
        part += 2 * case.steps
    return results
