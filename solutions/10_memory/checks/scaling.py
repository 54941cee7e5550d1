"""Exercise 7: a scaled loss, and ranks that skip a step together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks.cases import Case, close, fact
from autograder.checks.check import check

SCALER = "10-ex7-loss-scaler"

SHAPES = [(3,), (2, 2)]


@dataclass
class Stepped:
    """What a rank has after a step."""

    when: str
    stepped: Any = fact("what step returns")
    scale: Any = fact("scale")
    masters: Any = fact("the master of parameter {}")
    params: Any = fact("parameter {}")
    grads: Any = fact("the list that says of each p.grad whether it is None")
    momentum: Any = fact("the optimizer's momentum of parameter {}")
    over_rank_0: Any = fact("scale, over that of rank 0,")


def _drive(rank: int, world_size: int, scaler_class: Any, how: dict, start: list, steps: list) -> list[Stepped]:
    """steps[i][rank]: the gradients of the scaled loss in step i."""
    params = [nn.Parameter(torch.tensor(value).half()) for value in start[rank]]
    masters = [nn.Parameter(p.detach().float()) for p in params]
    optimizer, scaler, seen = torch.optim.SGD(masters, lr=0.5, momentum=0.5), scaler_class(**how), []
    for number, grads in enumerate(steps, start=1):
        for p, grad in zip(params, grads[rank], strict=True):
            p.grad = torch.tensor(grad).half()
        stepped = scaler.step(params, masters, optimizer)
        values = [[t.detach().float().numpy().copy() for t in of] for of in (masters, params)]
        moved = [optimizer.state[m].get("momentum_buffer") for m in masters]
        momentum = [np.zeros(m.shape) if v is None else v.numpy().copy() for v, m in zip(moved, masters, strict=True)]
        absent = [p.grad is None for p in params]
        seen.append(Stepped(f"after step {number}", stepped, float(scaler.scale), *values, absent, momentum))
    return seen


def _played(how: dict, start: list, steps: list) -> list[list[Stepped]]:
    """What each rank should have: steps in float64 with the scale of the moment; momentum 0.5, a rate of 0.5."""
    masters = [[np.float64(np.float16(value)) for value in of_rank] for of_rank in start]
    momentum = [[np.zeros_like(value) for value in of_rank] for of_rank in masters]
    scale, clean, seen = how["scale"], 0, [[] for _ in start]
    for grads in steps:
        finite = all(np.isfinite(np.float16(grad)).all() for of_rank in grads for grad in of_rank)
        for rank, of_rank in enumerate(grads if finite else []):
            true = [np.float64(np.float16(grad)) / scale for grad in of_rank]
            momentum[rank] = [0.5 * v + g for v, g in zip(momentum[rank], true, strict=True)]
            masters[rank] = [m - 0.5 * v for m, v in zip(masters[rank], momentum[rank], strict=True)]
        clean = (clean + 1) % how["interval"] if finite else 0
        scale *= (2.0 if clean == 0 else 1.0) if finite else 0.5
        for rank, facts in enumerate(seen):
            numbers = [[close(v, rtol=1e-5) for v in of[rank]] for of in (masters, momentum)]
            params = [close(v, rtol=2e-3, atol=1e-7) for v in masters[rank]]
            facts.append(Stepped("", finite, scale, numbers[0], params, [True, True], numbers[1], 1.0))
    return seen


def _values(rng, n, size):
    """Of each rank, parameters or gradients of about this size, and at least a quarter of it."""
    return [[size * rng.uniform(0.25, 1, shape) * rng.choice([-1, 1], shape) for shape in SHAPES] for _ in range(n)]


def _infinite(grads: list, ranks: Any) -> list:
    """The same gradients, but all those of these ranks are infinite."""
    return [[g * np.inf if rank in ranks else g for g in of_rank] for rank, of_rank in enumerate(grads)]


def _with(grads: list, number: float, which: int, rng: Any) -> list:
    """The same gradients of one rank, with such a number somewhere in that of parameter `which`."""
    grads = [grad.copy() for grad in grads[0]]
    grads[which].flat[int(rng.integers(grads[which].size))] = number
    return [grads]


def _over_rank_0(found: list[list[Stepped]]) -> list[list[Stepped]]:
    """The same facts, with each scale over that of rank 0."""
    for of_rank in found:
        for one, first in zip(of_rank, found[0], strict=True):
            one.over_rank_0 = one.scale / first.scale if first.scale else 0.0
    return found


def _case(scaler, words, how, start, steps, *facts):
    """A case of which these facts are compared after every step."""
    played = _played(how, start, steps)
    expect = [[Stepped("", **{name: getattr(one, name) for name in facts}) for one in of_rank] for of_rank in played]
    return Case(f"{words}, {how}", len(start), _drive, (scaler, how, start, steps), expect)


@check(SCALER, points=0.5)
def small_gradients_survive(LossScaler, *, rng):
    """The masters step with the gradients of the unscaled loss, in float32, even where float16 has only zeros."""
    for n, scale in ((1, 2.0**16), (2, 2.0**20), (2, 2.0**16)):
        start = [[np.zeros(shape) for shape in SHAPES] for _ in range(n)]  # so that nothing is lost next to them
        how = {"scale": scale, "interval": 9}
        yield _case(LossScaler, "tiny gradients", how, start, [_values(rng, n, 0.01) for _ in range(2)], "masters")


@check(SCALER, points=0.75)
def all_ranks_skip_together(LossScaler, *, rng):
    """If the gradients of any rank are infinite, step returns False on all, no master moves, the scales stay alike."""
    for n in (2, 3):
        start, good = _values(rng, n, 1), _values(rng, n, 4)
        for rank in rng.permutation(n):
            steps, how = [_infinite(good, [rank]), good], {"scale": 8.0, "interval": 9}
            words = f"infinite gradients on rank {rank} in step 1"
            case = _case(LossScaler, words, how, start, steps, "stepped", "masters", "over_rank_0")
            case.sees = _over_rank_0
            for facts in case.expect:
                facts[-1].masters = ...  # which depend on the scale
            yield case


@check(SCALER, points=0.25)
def one_number_is_enough_to_skip(LossScaler, *, rng):
    """One infinity or NaN makes a rank skip the step, in whichever parameter and place it is."""
    for number in (np.inf, -np.inf, np.nan):
        start, good = _values(rng, 1, 1), _values(rng, 1, 4)
        for which in rng.permutation(2):
            steps, how = [good, _with(good, number, which, rng)], {"scale": 8.0, "interval": 9}
            words = f"{number} in the gradient of parameter {which} in step 2"
            yield _case(LossScaler, words, how, start, steps, "stepped")


@check(SCALER, points=0.25)
def the_scale_halves_and_doubles(LossScaler, *, rng):
    """scale is halved by every step that is skipped, and doubled after `interval` others in a row."""
    for n, interval in ((2, 2), (1, 3), (3, 2)):
        start, good = _values(rng, n, 1), _values(rng, n, 4)
        skips = [i in (1, 2, 4) or (i > 9 and rng.random() < 0.3) for i in range(18)]
        steps = [_infinite(good, range(n)) if skip else good for skip in skips]
        yield _case(
            LossScaler, "some steps are skipped", {"scale": 1024.0, "interval": interval}, start, steps, "scale"
        )


@check(SCALER, points=0.25)
def a_step_leaves_all_in_order(LossScaler, *, rng):
    """The parameters are copies of the masters, gradients are gone, a skipped step changes nothing that is kept."""
    for n in (2, 3):
        start, good = _values(rng, n, 1), _values(rng, n, 4)
        steps = [good, good, _infinite(good, range(n))]
        facts = "params", "grads", "momentum"
        case = _case(LossScaler, "infinities in step 3", {"scale": 1.0, "interval": 9}, start, steps, *facts)
        case.sends, case.scalars, case.because = [], len(steps), "one all-reduce of one number per step is enough"
        yield case
