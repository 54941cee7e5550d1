"""Exercise 3: the backward of sharded units."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import MEMORY, check
from autograder.checking.expect import count_of_ranks, expect_close, fail
from autograder.checking.stage import run_ranks
from autograder.checks.fsdp.live import COUNTING, UNITS, WIDTH, UnitMeter, expect_nothing_kept, stack
from autograder.checks.fsdp.models import MODELS, as_numpy, batch, flat, freeze, padded
from autograder.checks.fsdp.steps import PLAN, Training, steps_of


@check("09-ex3-backward", points=1)
def one_forward_is_seen(TrainableUnit, *, rng):
    """Dropout and BatchNorm see one forward and its own backward, and inputs get their own rank's gradient."""
    world_size, seed = 2, inputs.seed(rng)
    results = run_ranks(_drive_noisy, world_size, (TrainableUnit, seed))
    total: list[np.ndarray] = []
    case = f"{count_of_ranks(world_size)}, dropout and BatchNorm"
    for rank in range(world_size):
        module, units = _noisy(seed)
        x, y = batch("", seed, 0, rank, count=8)
        torch.manual_seed(seed + rank)
        (module(x) - y).square().mean().backward()
        grads = [flat(p.grad for p in unit.parameters()) for unit in units]
        total = [a + b for a, b in zip(total, grads, strict=True)] if total else grads
        for index, buffer in enumerate(module.buffers()):
            what = f"a BatchNorm buffer on rank {rank}"
            expect_close(case, results[rank]["buffers"][index], as_numpy(buffer), what=what, rtol=1e-5)
    for u, summed in enumerate(total):
        whole = np.concatenate([got["gradients"][u] for got in results])
        what = f"the gradient of unit {u}"
        expect_close(case, whole, padded(summed / world_size, world_size), what=what, rtol=1e-5)
    for rank, got in enumerate(results):
        module, leaf = _two_inputs(seed, rank)
        module(leaf, leaf * 2).square().sum().backward()
        case = f"{count_of_ranks(world_size)}, a frozen unit of two inputs"
        expect_close(case, got["input"], as_numpy(leaf.grad), what=f"the gradient of rank {rank}'s input", rtol=1e-5)


#: For the cases of the memory: are all but two units frozen, how many are trained, are units pairs of layers, do they
#: have two inputs?
STACKS = {
    "units": (False, UNITS, False, False),
    "units, 14 frozen": (True, 2, False, False),
    "units of two layers,": (False, UNITS, True, False),
    "units of two inputs, 14 frozen": (True, 2, False, True),
}


def _drive_memory(rank: int, world_size: int, unit_class: Any, stacks: list[str], room: int, link: Any) -> list[tuple]:
    """For each stack: alive at the peak, after forward, after backward; the loss; the gradients of the shards."""
    observed = []
    for frozen, trained, *kind in (STACKS[what] for what in stacks):
        model, x, gradients = stack(frozen, *kind), torch.randn(1, WIDTH), trained / world_size
        units = [unit_class(layer) for layer in model]
        if link:
            link(units)
        meter = UnitMeter(rank, gradients + room)
        with meter:
            loss = model(x).square().mean()
            between = meter.above(2)
            loss.backward()
            number = loss.item()
            del loss
            after = meter.above(gradients + 0.9)
        computed = [None if unit.shard.grad is None else as_numpy(unit.shard.grad) for unit in units]
        observed.append((meter.peak, between, after, number, computed))
        del units, model
    return observed


@check("09-ex3-backward", points=1, fixed=MEMORY)
def backward_frees_what_it_gathers(TrainableUnit):
    """No whole parameter is alive between forward and backward, nor afterwards; during it at most 5 S more are."""
    expect_freed(TrainableUnit, list(STACKS), room=5)
    expect_nothing_kept(TrainableUnit, units=True)


def expect_freed(unit_class: Any, stacks: list[str], room: int, link: Any = None) -> None:
    """On two ranks, stacks of units peak at no more than their gradients and `room` units more, and end without them.

    link: called with the units in the order of the forward.
    """
    world_size = 2
    got = run_ranks(_drive_memory, world_size, (unit_class, stacks, room, link))[COUNTING]
    for what, (peak, between, after, *computed) in zip(stacks, got, strict=True):
        gradients = STACKS[what][1] / world_size
        case = f"{world_size} ranks, {UNITS} {what} of S bytes"
        _expect_work(case, STACKS[what], world_size, *computed)
        # Which bounds are broken, and not by how much: a thread may hold one tensor for longer. After a peak that is
        # too high no patience is left to wait for that thread, so `after` says nothing then.
        most = gradients + room
        evidence = [what, peak > most, between > 2, peak <= most and after > gradients + 0.9]
        if peak > most:
            text = f"live bytes peak at {peak:.1f} S above those before, expected at most {most:.1f} S"
            fail(text, case, evidence)
        if between > 2:
            text = f"between forward and backward {between:.1f} S more are alive than before, expected at most 2 S"
            fail(text, case, evidence)
        if after > gradients + 0.9:
            extra = after - gradients
            fail(f"after the backward {extra:.1f} S are alive besides the gradient shards", case, evidence)


def _expect_work(case: str, stacked: tuple, world_size: int, loss: float, gradients: list) -> None:
    """The step whose memory counts has the loss and the gradients of the unsplit model; all ranks have one batch."""
    frozen, _, *kind = stacked
    model, x = stack(frozen, *kind), torch.randn(1, WIDTH)
    want = model(x).square().mean()
    want.backward()
    expect_close(case, loss, as_numpy(want), what="the loss", rtol=1e-4)
    for number, (unit, got) in enumerate(zip(model, gradients, strict=True)):
        whole = flat(p.grad for p in unit.parameters() if p.requires_grad)
        if not len(whole):
            continue
        what = f"the gradient of unit {number}'s shard on rank {COUNTING}"
        if got is None:
            fail(f"{what} is None", case, ["gradient", number])
        piece = padded(whole, world_size).reshape(world_size, -1)[COUNTING]
        expect_close(case, got, piece, what=what, rtol=1e-3)


def _noisy(seed: int) -> tuple[nn.Module, list[nn.Module]]:
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 5))
    m = nn.Sequential(first, nn.Dropout(0.3), nn.Linear(5, 3))
    return m, [first, m[2]]


def _two_inputs(seed: int, rank: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    return freeze(nn.Bilinear(4, 4, 3), "all"), batch("", seed, 0, rank)[0].requires_grad_()


def _drive_noisy(rank: int, world_size: int, unit_class: Any, seed: int) -> dict:
    module, units = _noisy(seed)
    units = [unit_class(unit) for unit in units]
    x, y = batch("", seed, 0, rank, count=8)
    torch.manual_seed(seed + rank)
    (module(x) - y).square().mean().backward()
    frozen, leaf = _two_inputs(seed, rank)
    unit_class(frozen)
    frozen(leaf, leaf * 2).square().sum().backward()
    return {
        "gradients": [as_numpy(unit.shard.grad) for unit in units],
        "buffers": [as_numpy(b) for b in module.buffers()],
        "input": as_numpy(leaf.grad),
    }


@check("09-ex3-backward", points=3)
def shards_get_the_mean_gradient(TrainableUnit, *, rng):
    """After backward() each shard has its piece of the mean gradient, and no rank sent more than allowed."""
    for n, models in PLAN.items():
        trainings = [Training(MODELS[k], "SGD with momentum", inputs.seed(rng), steps=2) for k in models]
        trainings[0].halves = True
        if n == 3:
            bf16 = {"steps": 1, "dtype": "bfloat16"}
            trainings += [Training(MODELS[k], "SGD with momentum", inputs.seed(rng), **bf16) for k in (0, 2)]
        for training in trainings:
            yield steps_of(TrainableUnit, training, n, bare=True)
