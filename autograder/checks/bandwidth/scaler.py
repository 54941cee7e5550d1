"""Lesson 07, exercise 5: loss scaling for sixteen-bit gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, expect_type, fail, same
from autograder.checking.stage import call_inside
from autograder.checks.bandwidth.feedback import copied


class _Scaled:
    """A LossScaler with 16-bit parameters, their fp32 masters and an optimizer, as a training program has them."""

    def __init__(self, LossScaler: Any, settings: dict, start: list[torch.Tensor], dtype: torch.dtype, make: Any):  # noqa: N803
        self.scaler = LossScaler(**settings)
        self.masters = [nn.Parameter(master.clone()) for master in start]
        self.params = [nn.Parameter(master.detach().to(dtype)) for master in self.masters]
        self.optimizer = make(self.masters)

    def value(self) -> Any:
        """The factor."""
        return copied(getattr(self.scaler, "value", None))

    def state(self) -> list:
        """Parameters, masters, and what the optimizer keeps."""
        return copy.deepcopy([[p.detach() for p in self.params + self.masters], self.optimizer.state_dict()])

    def step(self, grads: list[torch.Tensor | None]) -> tuple:
        """What step returned with these gradients, the gradients then, masters, parameters; the state before."""
        before = self.state()
        for param, grad in zip(self.params, grads, strict=True):
            param.grad = None if grad is None else grad.clone()
        stepped = copied(self.scaler.step(self.optimizer, self.params, self.masters))
        masters = [m.detach().numpy().copy() for m in self.masters]
        return stepped, [copied(p.grad) for p in self.params], masters, [copied(p) for p in self.params], before


def _scale(LossScaler: Any, settings: dict, number: float, dtype: torch.dtype, half: bool) -> tuple:  # noqa: N803
    """A scaler's factor; `scale` of a loss `number` in `dtype`, or of half of it; the gradient through the half."""
    scaler = LossScaler(**settings)
    x = torch.tensor(number, dtype=dtype, requires_grad=True)
    factor = copied(getattr(scaler, "value", None))
    scaled = scaler.scale(x * 0.5 if half else x)
    if half:
        scaled.backward()
    return factor, copied(scaled), copied(x.grad)


def _start(rng: np.random.Generator, shapes: tuple) -> list[torch.Tensor]:
    """Masters to start from."""
    return [torch.from_numpy(np.asarray(rng.normal(size=shape), np.float32)) for shape in shapes]


def _value(case: str, value: Any) -> float:
    """The factor as a float; it may be any kind of number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    expect_type(case, value, (int, float, np.number), what=".value")
    return float(value)


def _stepped(case: str, result: Any) -> bool:
    """What step returned as a bool; numpy's or torch's will do."""
    if not isinstance(result, bool | np.bool_ | torch.Tensor):
        fail(f"step must return True or False, got {type(result).__name__}", case, ["returned", type(result).__name__])
    return bool(result)


@check("07-ex5-loss-scaler")
def scaler_scales_in_fp32(LossScaler, *, rng):  # noqa: N803
    """scale converts to fp32 first, so that a half-precision loss cannot overflow, and lets gradients through."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        case = f"a loss in {dtype}"
        loss = float(rng.integers(2, 9))
        factor, wide, _ = call_inside(_scale, LossScaler, {}, loss, dtype, False)
        first = _value(case, factor)
        expect_equal(case, first, 65536.0, what="the factor at the start", evidence=["start", first])
        if not isinstance(wide, torch.Tensor) or wide.dtype != torch.float32 or wide.shape != ():
            fail("scale must return a 0-dim float32 tensor", case, ["kind", str(getattr(wide, "dtype", type(wide)))])
        _, scaled, through = call_inside(_scale, LossScaler, {"init_scale": 4096.0}, loss, dtype, True)
        what = f"a loss of {loss} times 65536, and half of it times 4096,"
        expect_equal(case, [wide.item(), scaled.item()], [65536.0 * loss, 2048.0 * loss], what=what)
        slope = None if through is None else through.item()
        expect_equal(case, slope, 2048.0, what="the gradient through scale", evidence=["gradient", repr(slope)])


def _walk(case, rng, LossScaler, settings, make, grads_of, steps, dtype=torch.float16) -> None:  # noqa: N803
    """A scaler against torch's GradScaler on fp32 copies: factors, skips, masters, params and optimizer state."""
    start = _start(rng, ((3, 2), (4,)))
    twins = [nn.Parameter(master.clone()) for master in start]
    oracle_optimizer = make(twins)
    scaled = call_inside(_Scaled, LossScaler, settings, start, dtype, make)
    oracle = torch.amp.GradScaler("cpu", **settings)
    oracle.scale(torch.zeros(()))  # makes its scale
    history: list = []
    for step in range(steps):
        given = []
        for twin, grad in zip(twins, grads_of(step), strict=True):
            given.append(torch.from_numpy(np.asarray(grad * oracle.get_scale(), np.float32)).to(dtype))
            twin.grad = given[-1].float()
        finite = all(bool(grad.isfinite().all()) for grad in given)
        result, grads, masters, params, before = scaled.step(given)
        stepped = _stepped(case, result)
        oracle.step(oracle_optimizer)
        oracle.update()
        value = _value(case, scaled.value())
        history += [stepped, value, *masters, *(_floats(p) for p in params)]
        why = f"the gradients are {'' if finite else 'not '}finite"
        expect_equal(case, stepped, finite, what=f"what step {step} returns", because=why, evidence=history)
        right = np.asarray(oracle.get_scale())
        expect_close(case, value, right, what=f"the factor after step {step}", rtol=1e-6, evidence=history)
        for number, (param, got, twin) in enumerate(zip(params, masters, twins, strict=True)):
            what = f"master {number} after step {step}"
            # fp32: dividing by the factor and multiplying by its reciprocal differ by an ulp a step.
            expect_close(case, got, twin.detach().numpy(), what=what, rtol=1e-5, atol=1e-6, evidence=history)
            if not torch.equal(param, torch.from_numpy(got).to(dtype)):
                fail(f"{what} and its parameter do not agree: a parameter is its master, rounded", case, history)
            if finite and not torch.equal(grads[number], given[number]):
                fail(f"step {step} changed the gradient of parameter {number}", case, history)
        if not finite and not same(before, scaled.state()):
            fail(f"step {step} must be skipped, but masters, params or optimizer state changed", case, history)


def _floats(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().numpy().copy()


@check("07-ex5-loss-scaler")
def scaler_follows_torch(LossScaler, *, rng):  # noqa: N803
    """Factors, skips, masters and optimizer state over many steps, as `torch.amp.GradScaler` has them."""
    makers = {
        "SGD": lambda params: torch.optim.SGD(params, lr=0.125),
        "Adam": lambda params: torch.optim.Adam(params, lr=0.05),
        "momentum": lambda params: torch.optim.SGD(params, lr=0.125, momentum=0.75),
    }
    patterns = {"growth": "......", "one overflow": "..x.....", "many": "x..xx.....x..."}
    for name, make in makers.items():
        for pattern, marks in patterns.items():
            case = f"{name}, growth_interval 3, {pattern}: {marks}"
            settings = {"init_scale": 256.0, "growth_interval": 3}
            if pattern == "many":
                settings |= {"growth_factor": 4.0, "backoff_factor": 0.25}

            def grads_of(step, marks=marks):
                grads = [np.round(rng.normal(size=shape) * 16) / 16 for shape in ((3, 2), (4,))]
                if marks[step] == "x":
                    grads[int(rng.integers(2))].flat[int(rng.integers(4))] = rng.choice([np.inf, -np.inf, np.nan])
                return grads

            dtype = torch.bfloat16 if pattern == "growth" else torch.float16
            _walk(case, rng, LossScaler, settings, make, grads_of, len(marks), dtype)


@check("07-ex5-loss-scaler")
def scaler_keeps_small_gradients(LossScaler, *, rng):  # noqa: N803
    """Gradients are divided in fp32, where what fp16 has no number for still counts; small updates add up."""
    case = "fp16 gradients of 2⁻²⁶ times a factor of 2¹⁶"
    [start] = _start(rng, ((5,),))
    whole = torch.from_numpy(rng.integers(1, 9, 5).astype(np.float32))
    scaled = call_inside(
        _Scaled, LossScaler, {}, [start], torch.float16, lambda masters: torch.optim.SGD(masters, lr=2.0**10)
    )
    for _ in range(4):
        _, _, [got], _, _ = scaled.step([(whole * 2.0**-10).half()])
    expected = start - 4 * whole * 2.0**-16
    # Four fp32 subtractions of numbers of order 1: at most 4 · 2⁻²⁴ · 4.
    expect_close(case, got, expected.numpy(), what="the master", rtol=0.0, atol=2e-6)


@check("07-ex5-loss-scaler")
def scaler_skips_whatever_is_not_finite(LossScaler, *, rng):  # noqa: N803
    """inf, −inf and NaN, in whichever gradient; and nothing else, though a sum of finite numbers may overflow."""
    for name, numbers, finite in [
        ("an inf in the first gradient", ([np.inf, 1.0], [1.0, 1.0]), False),
        ("a −inf in the last gradient", ([1.0, 1.0], [1.0, -np.inf]), False),
        ("a NaN in the first gradient", ([1.0, np.nan], [1.0, 1.0]), False),
        ("a NaN in the last gradient", ([1.0, 1.0], [np.nan, 1.0]), False),
        ("inf and −inf", ([np.inf, -np.inf], [1.0, 1.0]), False),
        ("the largest fp16 numbers, all positive", ([65504.0, 65504.0], [65504.0, 65504.0]), True),
        ("zeros", ([0.0, 0.0], [0.0, 0.0]), True),
    ]:
        start, grads = _start(rng, ((2,), (2,))), [torch.tensor(grad, dtype=torch.float16) for grad in numbers]
        settings = {"init_scale": 65536.0}
        scaled = call_inside(
            _Scaled, LossScaler, settings, start, torch.float16, lambda masters: torch.optim.SGD(masters, lr=0.5)
        )
        expected = [m - 0.5 * g.float() / 65536.0 if finite else m for m, g in zip(start, grads, strict=True)]
        result, _, got, _, _ = scaled.step(grads)
        stepped = _stepped(name, result)
        value = _value(name, scaled.value())
        evidence = [stepped, value, *got]
        factor = 65536.0 if finite else 32768.0
        expect_equal(name, stepped, finite, what="what step returns", evidence=evidence)
        expect_equal(name, value, factor, what="the factor after the step", evidence=evidence)
        for number, (mine, wanted) in enumerate(zip(got, expected, strict=True)):
            how = {"rtol": 1e-6, "atol": 1e-7, "evidence": evidence}
            expect_close(name, mine, wanted.numpy(), what=f"master {number}", **how)


@check("07-ex5-loss-scaler")
def scaler_passes_none_on(LossScaler, *, rng):  # noqa: N803
    """A parameter without a gradient leaves its master without one, so that the optimizer does not touch it."""
    for name, make in {
        "SGD with momentum": lambda masters: torch.optim.SGD(masters, lr=0.5, momentum=0.5),
        "SGD with weight decay": lambda masters: torch.optim.SGD(masters, lr=0.5, weight_decay=0.5),
    }.items():
        start = _start(rng, ((2,), (3,)))
        scaled, before = call_inside(_Scaled, LossScaler, {"init_scale": 8.0}, start, torch.float16, make), None
        for step in range(3):
            case = f"{name}, step {step}: {'both have gradients' if step == 0 else 'the second has none'}"
            grads = [torch.from_numpy(rng.normal(size=size)).half() for size in (2, 3)]
            result, _, masters, _, _ = scaled.step([grads[0], grads[1] if step == 0 else None])
            stepped = _stepped(case, result)
            got = [stepped, *masters]
            if not stepped:
                fail("the step was skipped, although every gradient that is there is finite", case, got)
            if step and not np.array_equal(before, got[2]):
                fail("the master of the parameter without a gradient was changed", case, got)
            before = masters[1]
