"""Exercise 3: a module whose graph keeps its inputs alone, against the same module without that."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import expect_close, expect_equal, fail
from autograder.checking.instruments.memory import LiveBytes
from autograder.checking.stage import call_inside
from autograder.checks.memory.layers import Counted, Scaled, Sines, bits

CHECKPOINT = "10-ex3-checkpoint"
#: What the graph may keep next to the output: a generator's state has 5 kB.
SLACK = 8192


class Pair(nn.Module):
    """Two inputs, two outputs, and a layer that is not used."""

    def __init__(self):
        super().__init__()
        self.one, self.spare, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple:
        mixed = self.drop(self.one(x)) * y
        return mixed, x.sin() + mixed.sum()


class Branches(nn.Module):
    """Two inputs and two outputs that have nothing in common. The loss uses only the first."""

    used = 1

    def __init__(self):
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple:
        return self.drop(self.one(x)), self.two(y)


class Half(nn.Module):
    """Two outputs, of which the second requires no gradient."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple:
        y = self.one(x)
        return y.tanh(), y.argmax(dim=1)


class Words(nn.Module):
    """Whole numbers in, with a frozen layer."""

    def __init__(self):
        super().__init__()
        self.table, self.frozen, self.drop = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Dropout(0.3)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.frozen(self.table(x)).tanh())


class Nested(nn.Module):
    """A module that itself calls `wrap` on a part of it."""

    def __init__(self, wrap: Callable):
        super().__init__()
        self.first, self.inner, self.drop, self.wrap = nn.Linear(6, 6), block(), nn.Dropout(0.5), wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.wrap(self.inner, self.first(x).tanh()))


def block(frozen: bool = False) -> nn.Module:
    """Two linear layers with dropout after each; frozen: no parameter requires a gradient."""
    layers = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 6), nn.Dropout(0.2))
    return layers.requires_grad_(not frozen)


#: Case → (the module, by what wraps its inner part; its inputs; which of these require a gradient).
_CASES: dict[str, tuple[Callable, str, tuple[bool, ...]]] = {
    "dropout": (lambda wrap: block(), "x", (True,)),
    "an input that needs no gradient": (lambda wrap: block(), "x", (False,)),
    "two inputs, two outputs": (lambda wrap: Pair(), "xx", (True, True)),
    "two inputs, one needs a gradient": (lambda wrap: Pair(), "xx", (False, True)),
    "two outputs, the loss uses one": (lambda wrap: Branches(), "xx", (True, True)),
    "frozen": (lambda wrap: block(frozen=True), "x", (True,)),
    "whole numbers, a frozen layer": (lambda wrap: Words(), "n", (False,)),
    "an output that needs no gradient": (lambda wrap: Half(), "x", (True,)),
    "one in another": (Nested, "x", (True,)),
    "no parameters": (lambda wrap: nn.Dropout(0.5), "x", (True,)),
    "nothing needs a gradient": (lambda wrap: block(frozen=True), "x", (False,)),
    "evaluated": (lambda wrap: block().eval(), "x", (True,)),
}


def plainly(module: nn.Module, *tensors: torch.Tensor) -> Any:
    """What checkpoint should compute."""
    return module(*tensors)


def _train(wrap: Callable, case: str, dtype: str, seed: int) -> list[dict]:
    """Two steps with all that could differ: outputs, gradients, and the generator's state."""
    make, kinds, needs = _CASES[case]
    torch.manual_seed(seed)
    module = make(wrap).to(getattr(torch, dtype))
    head, optimizer = torch.randn(6, dtype=getattr(torch, dtype)), None
    trained = [p for p in module.parameters() if p.requires_grad]
    if trained:
        optimizer = torch.optim.SGD(trained, lr=0.1)
    steps = []
    for _ in range(2):
        values = [torch.randint(9, (5,)) if k == "n" else torch.randn(5, 6, dtype=head.dtype) for k in kinds]
        tensors = [v.requires_grad_() if need else v for v, need in zip(values, needs, strict=True)]
        before = bits(tensors)
        output = wrap(module, *tensors)
        outputs = list(output) if isinstance(output, tuple) else [output]
        after_forward = bits(torch.get_rng_state())
        used = outputs[: getattr(module, "used", None)]
        summed = [(t * head).sum() for t in used if isinstance(t, torch.Tensor) and t.is_floating_point()]
        loss = torch.stack(summed).sum().sin()
        if loss.requires_grad:
            loss.backward()
        steps.append(
            {
                "the output": [type(output).__name__, bits(outputs)],
                "requires_grad of the output": [t.requires_grad for t in outputs],
                "the generator's state after forward": after_forward,
                "the generator's state after backward": bits(torch.get_rng_state()),
                "a gradient of an input": bits([t.grad for t in tensors]),
                "a gradient of a parameter": bits([p.grad for p in module.parameters()]),
                "an input": before == bits(tensors),
            }
        )
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    return steps


def _train_all(wrap: Callable, cases: list[tuple[str, str, int]]) -> list[list[dict]]:
    """Where the submission runs, and with `plainly` outside: the steps of each case."""
    with torch.random.fork_rng(devices=[]):
        return [_train(wrap, *case) for case in cases]


@check(CHECKPOINT, points=3.25)
def training_is_the_same_bit_for_bit(checkpoint, *, rng):
    """Outputs, gradients and the generator's state are those of the module itself, bit for bit, in two steps."""
    cases = [(name, dtype, inputs.seed(rng)) for name in _CASES for dtype in ("float32", "float64")]
    pairs = zip(call_inside(_train_all, checkpoint, cases), _train_all(plainly, cases), strict=True)
    differing = [
        [[what for what in want if got[what] != want[what]] for got, want in zip(*both, strict=True)] for both in pairs
    ]
    for (name, dtype, _), steps in zip(cases, differing, strict=True):
        for number, what in enumerate(steps, start=1):
            if what:
                text = f"in step {number}, {what[0]} differs from that of the module without checkpoint"
                fail(text, f"{name}, {dtype}", differing)


def _autocast(wrap: Callable, dtype: str, seed: int) -> dict[str, Any]:
    """Where the submission runs, and with `plainly` outside: a forward under autocast, its backward after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, x = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)), torch.randn(5, 6)
        with torch.autocast("cpu", getattr(torch, dtype)):
            output = wrap(module, x.requires_grad_())
        try:
            output.float().sin().sum().backward()
            raised = ""
        except RuntimeError as error:
            raised = str(error).splitlines()[0]
        left = torch.is_autocast_enabled("cpu")
        grads = bits([x.grad, *(p.grad for p in module.parameters())])
        return {"output": bits(output), "gradients": grads, "raised": raised, "autocast": left}


@check(CHECKPOINT, points=0.5)
def autocast_is_as_in_the_forward(checkpoint, *, rng):
    """With autocast around the forward alone, to bfloat16 or float16, output and gradients are still the module's."""
    for dtype in ("bfloat16", "float16"):
        seed = inputs.seed(rng)
        got, want = call_inside(_autocast, checkpoint, dtype, seed), _autocast(plainly, dtype, seed)
        case, evidence = f"autocast to {dtype} around the forward", [got[what] == want[what] for what in got]
        if got["raised"]:
            fail(f"backward raised {got['raised']}", case, evidence)
        for what in ("output", "gradients"):
            if got[what] != want[what]:
                fail(f"the {what} under autocast differ from those of the module without checkpoint", case, evidence)
        if got["autocast"]:
            fail("autocast is still on after backward", case, evidence)


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


def _grown(checkpoint: Any, sizes: tuple[int, int], seed: int) -> list[list]:
    """Where the submission runs: live bytes that a forward adds, and those that are left when its graph has gone.

    For an input that needs a gradient, and for one that needs none; with each the output and a gradient of a parameter.
    """
    rows, width = sizes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, x = nn.Sequential(*[Sines(width) for _ in range(6)]), torch.randn(rows, width)
    gc.collect()
    meter, seen = LiveBytes(), []
    for needs in (True, False):
        x.requires_grad_(needs)
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
            seen.append([grown, meter.now() - before, shown, slope])
    return seen


@check(CHECKPOINT, veto=True)
def the_graph_keeps_the_inputs_alone(checkpoint, *, rng):
    """After the forward no more is alive than the inputs, the output and 8 kB; after backward nothing is left."""
    rows, width = 16 * int(rng.integers(30, 60)), 16
    output = 4 * rows * width
    seed = inputs.seed(rng)
    seen, right = call_inside(_grown, checkpoint, (rows, width), seed), _grown(plainly, (rows, width), seed)
    evidence = [[round((grown - output) / output), round(left / output)] for grown, left, *_ in seen]
    for (grown, left, *got), (*_, shown, slope), needs in zip(
        seen, right, ("", ", which need no gradient"), strict=True
    ):
        case = f"{rows} rows of {width}{needs}"
        # What is metered must be right as well: a module that is never called keeps nothing.
        expect_close(case, got[0], shown, what="the output", rtol=1e-5, evidence=evidence)
        expect_close(case, got[1], slope, what="a gradient of a parameter", rtol=1e-4, evidence=evidence)
        if grown > output + SLACK:
            text = f"after the forward {grown} bytes more are alive, expected at most the output's {output} and {SLACK}"
            fail(text, case, evidence)
        if left > SLACK:
            fail(f"{left} bytes are still alive after backward", case, evidence)


def _held(checkpoint: Any, rows: int, seed: int) -> list[tuple[int, bool]]:
    """Where the submission runs: live bytes after backward that were not there before, while the output is held.

    Also whether the module's weight got a gradient. For an input that needs one, and for an input that needs none; the
    graph alone holds the input.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, x = Sines(16), torch.randn(rows, 16)
    gc.collect()
    meter, seen = LiveBytes(), []
    for needs in (True, False):
        x.requires_grad_(needs)
        before = meter.now()
        with meter:
            output = checkpoint(module, x * 2)
            output.sum().backward()
        slope, x.grad, module.weight.grad = module.weight.grad, None, None
        reached = slope is not None
        del slope
        seen.append((meter.now() - before, reached))
        del output
    return seen


@check(CHECKPOINT, points=0.25)
def the_inputs_go_with_backward(checkpoint, *, rng):
    """After backward the inputs are no longer kept, though the output is still in use."""
    rows = 16 * int(rng.integers(30, 60))
    output = 4 * rows * 16
    seen = call_inside(_held, checkpoint, rows, inputs.seed(rng))
    evidence = [[round((held - output) / output), reached] for held, reached in seen]
    for (held, reached), needs in zip(seen, ("", ", an input that needs no gradient"), strict=True):
        case = f"{rows} rows of 16{needs}"
        if not reached:  # a module that is never called keeps nothing
            fail("the module's weight has no gradient", case, evidence)
        if held > output + SLACK:
            text = f"after backward {held} bytes more are alive, expected at most the output's {output} and {SLACK}"
            fail(text, case, evidence)
