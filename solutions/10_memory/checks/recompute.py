"""Exercise 3: a module whose graph keeps its inputs alone, against the same module without that."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checks import inputs
from autograder.checks.cases import Call, close, fact
from autograder.checks.check import check
from autograder.checks.expect import expect_close, expect_equal, fail
from autograder.checks.instruments.memory import LiveBytes
from autograder.checks.stage import call_inside

from .layers import Counted, Scaled, Sines

CHECKPOINT = "10-ex3-checkpoint"
#: What the graph may keep next to the output: a generator's state has 5 kB.
SLACK = 8192


class Gate(nn.Module):
    """One or two inputs, dropout, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.spare = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.two(self.drop(self.one(x)).tanh() * y)


class Words(nn.Module):
    """Whole numbers in."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear, self.drop = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.linear(self.table(x)).tanh())


def block() -> nn.Sequential:
    """Two linear layers with dropout after each."""
    return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.2))


def _used(module: nn.Module) -> nn.Module:
    """The module, with no parameter that is not used."""
    del module.spare
    return module


def _frozen(module: nn.Module, *which: str) -> nn.Module:
    """The module with these parts frozen, or all of it."""
    for name in which or ("",):
        module.get_submodule(name).requires_grad_(False)
    return module


#: Case → (makes the module; the letter of each input, n for whole numbers, X for one that requires a gradient).
_CASES: dict[str, tuple[Callable, str]] = {
    "dropout": (block, "X"),
    "evaluated": (lambda: block().eval(), "X"),
    "two inputs": (lambda: _used(Gate()), "XX"),
    "no parameters": (lambda: nn.Dropout(0.5), "X"),
    "an input that needs no gradient": (block, "x"),
    "two inputs, of which the first needs a gradient": (lambda: _used(Gate()), "Xx"),
    "two inputs, of which the second needs a gradient": (lambda: _used(Gate()), "xX"),
    "whole numbers": (Words, "n"),
    "a frozen layer": (lambda: _frozen(block(), "3"), "X"),
    "all frozen": (lambda: _frozen(block()), "X"),
    "a layer that is not used": (Gate, "XX"),
    "nothing needs a gradient": (lambda: _frozen(block()), "x"),
}


@dataclass
class Trained:
    """What there is after a forward and a backward; the generator after two."""

    output: Any = fact("the output")
    inputs: Any = fact("the gradient of input {}")
    reached: Any = fact("the list that says which parameters have a gradient")
    params: Any = fact("the gradient of parameter {}")
    draws: Any = fact("draw {} from the generator, one after each forward and each backward of two steps,")


def plainly(module: nn.Module, *tensors: torch.Tensor) -> Any:
    """What checkpoint should compute."""
    return module(*tensors)


def _train(checkpoint: Callable, case: str, seed: int) -> Trained:
    """Where the submission runs, and with `plainly` outside. A draw from a copy of the generator shows its state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        make, kinds = _CASES[case]
        module, draws, first = make(), [], None
        for _ in range(2):
            tensors = [torch.randint(9, (5,)) if kind == "n" else torch.randn(5, 6) for kind in kinds]
            tensors = [t.requires_grad_() if kind == "X" else t for t, kind in zip(tensors, kinds, strict=True)]
            output = checkpoint(module, *tensors)
            draws.append(_next_draw())
            head = torch.randn(6)  # a draw between forward and backward, as any other module would make it
            if output.requires_grad:
                (output * head).sum().sin().backward()
            draws.append(_next_draw())
            params = [p.grad for p in module.parameters()]
            reached, both = [g is not None for g in params], ([t.grad for t in tensors], params)
            grads = [[np.zeros(1) if g is None else g.numpy().copy() for g in some] for some in both]
            first = first or Trained(output.detach().numpy().copy(), grads[0], reached, grads[1])
    first.draws = draws
    return first


def _next_draw() -> float:
    """What the generator would draw next."""
    with torch.random.fork_rng(devices=[]):
        return float(torch.rand(()))


def _calls_of(checkpoint, rng, cases, *facts):
    """Two calls for each case, in which these facts are those of the module itself, bit for bit."""
    for case in cases:
        for _ in range(2):
            seed = inputs.seed(rng)
            plain, gives = _train(plainly, case, seed), Trained()
            for name in facts:
                value = getattr(plain, name)
                exactly = {"output": close, "reached": list}.get(name, lambda values: [close(v) for v in values])
                setattr(gives, name, exactly(value))
            yield Call(_train, checkpoint, case, seed, gives=gives, name=case)


@check(CHECKPOINT, points=2)
def numbers_are_the_modules(checkpoint, *, rng):
    """Output and gradients are those of the module itself, bit for bit, with the same dropout masks."""
    cases = ["dropout", "evaluated", "two inputs", "no parameters"]
    yield from _calls_of(checkpoint, rng, cases, "output", "inputs", "params")


@check(CHECKPOINT, points=0.5)
def the_generator_stands_where_it_would(checkpoint, *, rng):
    """After forward and after backward of two steps, the generator's state is that without a checkpoint."""
    yield from _calls_of(checkpoint, rng, ["dropout", "two inputs"], "draws")


@check(CHECKPOINT, points=0.5)
def inputs_may_need_no_gradient(checkpoint, *, rng):
    """Parameters get their gradients also if an input, or every input, needs none."""
    both = [f"two inputs, of which the {which} needs a gradient" for which in ("first", "second")]
    cases = ["an input that needs no gradient", *both, "whole numbers"]
    yield from _calls_of(checkpoint, rng, cases, "output", "reached", "params")


@check(CHECKPOINT, points=0.5)
def parameters_may_be_frozen_or_unused(checkpoint, *, rng):
    """Frozen and unused parameters have no gradient, and all others theirs."""
    cases = ["a frozen layer", "all frozen", "a layer that is not used", "nothing needs a gradient"]
    yield from _calls_of(checkpoint, rng, cases, "output", "inputs", "reached", "params")


def _calls(checkpoint: Any) -> dict[str, list[int]]:
    """Where the submission runs: how often the module is called; and torch's own checkpoint."""
    used = 0

    def watch(frame: Any, event: str, _: Any) -> None:
        nonlocal used
        if event == "call" and frame.f_code.co_filename.replace("\\", "/").endswith("torch/utils/checkpoint.py"):
            used += 1

    counts, before = {}, sys.getprofile()
    sys.setprofile(watch)
    try:
        for grad in (True, False):
            module, x = Counted(block()), torch.ones(2, 6, requires_grad=True)
            with torch.set_grad_enabled(grad):
                output = checkpoint(module, x)
            forward = module.calls
            if grad:
                output.sum().backward()
            counts["with gradients" if grad else "under no_grad"] = [forward, module.calls]
    finally:
        sys.setprofile(before)
    return counts | {"torch": [used, 0]}


@check(CHECKPOINT, veto=True)
def the_module_runs_once_more_for_backward(checkpoint, *, rng):
    """The module is called once in forward and once more in backward, without `torch.utils.checkpoint`."""
    counts = call_inside(_calls, checkpoint)
    if counts["torch"][0]:
        fail("torch.utils.checkpoint was called: write your own", "calls", "torch.utils.checkpoint")
    wanted = {"with gradients": [1, 2], "under no_grad": [1, 1]}
    for case, want in wanted.items():
        expect_equal(
            case, counts[case], want, what="the list of calls of the module, after forward and after backward,"
        )
    x = torch.from_numpy(rng.standard_normal((5, 6)))
    slope, case = call_inside(_slope, checkpoint, x), "a module that becomes another one between forward and backward"
    if slope is not None and np.allclose(slope, np.cos(x.numpy())):
        fail("backward uses what the first run of the module computed, not what the second one does", case, "kept")


def _slope(checkpoint: Any, x: torch.Tensor) -> Any:
    """Where the submission runs: the gradient of x if the module doubles its number between forward and backward."""
    module, x = Scaled(), x.clone().requires_grad_()
    output = checkpoint(module, x)
    module.scale = 2.0
    output.sum().backward()
    return None if x.grad is None else x.grad.numpy().copy()


def _grown(checkpoint: Any, sizes: tuple[int, int], seed: int) -> list:
    """Where the submission runs: live bytes that a forward adds, and those that are left when its graph has gone.

    Also the output and a gradient of a parameter.
    """
    rows, width = sizes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, x = nn.Sequential(*[Sines(width) for _ in range(6)]), torch.randn(rows, width, requires_grad=True)
    gc.collect()
    meter = LiveBytes()
    before = meter.now()
    with meter:
        output = checkpoint(module, x)
        grown = meter.now() - before
        output.sum().backward()
        shown = output.detach().numpy().copy()  # numpy's memory is not metered
        del output
        x.grad = None
        slope = next(module.parameters()).grad
        slope = None if slope is None else slope.numpy().copy()
        module.zero_grad()
        return [grown, meter.now() - before, shown, slope]


@check(CHECKPOINT, veto=True)
def the_graph_keeps_the_inputs_alone(checkpoint, *, rng):
    """After the forward no more is alive than the inputs, the output and 8 kB; after backward nothing is left."""
    rows, width = 16 * int(rng.integers(30, 60)), 16
    output, seed = 4 * rows * width, inputs.seed(rng)
    grown, left, *got = call_inside(_grown, checkpoint, (rows, width), seed)
    *_, shown, slope = _grown(plainly, (rows, width), seed)
    evidence, case = [round((grown - output) / output), round(left / output)], f"{rows} rows of {width}"
    # What is metered must be right as well: a module that is never called keeps nothing.
    expect_close(case, got[0], shown, what="the output", rtol=1e-5, evidence=evidence)
    expect_close(case, got[1], slope, what="a gradient of a parameter", rtol=1e-4, evidence=evidence)
    if grown > output + SLACK:
        text = f"after the forward {grown} bytes more are alive, expected at most the output's {output} and {SLACK}"
        fail(text, case, evidence)
    if left > SLACK:
        fail(f"{left} bytes are still alive after backward", case, evidence)


def _held(checkpoint: Any, rows: int, seed: int) -> tuple[int, bool]:
    """Where the submission runs: live bytes after backward that were not there before, while the output is held.

    Also whether the module's weight got a gradient. The graph alone holds the input.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, x = Sines(16), torch.randn(rows, 16, requires_grad=True)
    gc.collect()
    meter = LiveBytes()
    before = meter.now()
    with meter:
        output = checkpoint(module, x * 2)
        output.sum().backward()
    reached = module.weight.grad is not None
    x.grad = module.weight.grad = None
    return meter.now() - before, reached


@check(CHECKPOINT, points=0.5)
def the_inputs_go_with_backward(checkpoint, *, rng):
    """After backward the inputs are no longer kept, though the output is still in use."""
    rows = 16 * int(rng.integers(30, 60))
    output, case = 4 * rows * 16, f"{rows} rows of 16"
    held, reached = call_inside(_held, checkpoint, rows, inputs.seed(rng))
    evidence = [round((held - output) / output), reached]
    if not reached:  # a module that is never called keeps nothing
        fail("the module's weight has no gradient", case, evidence)
    if held > output + SLACK:
        text = f"after backward {held} bytes more are alive, expected at most the output's {output} and {SLACK}"
        fail(text, case, evidence)
