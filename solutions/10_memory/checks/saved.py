"""Exercise 1: what a graph keeps, in bytes of storages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from autograder.checking import inputs
from autograder.checking.check import check
from autograder.checking.expect import expect_equal, expect_type, fail
from autograder.checking.stage import call_inside
from autograder.checks.memory.layers import Counted, GPTLayer, bits

SAVED = "10-ex1-saved-bytes"


@dataclass(frozen=True)
class _Graph:
    """A function of tensors, what it is called with, and the bytes of the storages that its graph keeps."""

    name: str
    function: str
    sizes: tuple[int, ...]
    bytes: int
    ignore: str = ""  # "inputs", "a view": of the first input


def _functions() -> dict[str, Callable]:
    return {
        "x.exp()": torch.exp,
        "x * x": lambda x: x * x,
        "x.sin() * x.cos()": lambda x: x.sin() * x.cos(),
        "x[:1] * w": lambda x, w: x[:1] * w,
        "the halves of x.exp()": lambda x: torch.mul(*x.exp().chunk(2)),
        "one number for a row": lambda x, w: x.detach()[:1].clone().expand(len(w)) * w,
        "a mask": lambda x: x * (x.detach() > 0),
        "an exp that is dropped": lambda x: (x.exp(), x * 2)[1],
        "an exp that is dropped, then another": lambda x: (x.exp(), x[: len(x) // 2].exp())[1],
        "a sin that is dropped, then cos": lambda x: (x.sin(), x.cos())[1],
        "sin, then a cos that is dropped": lambda x: (x.sin(), x.cos())[0],
        "a linear layer": lambda x, w: functional.linear(x.view(-1, 4), w.view(-1, 4)),
        "three outputs": lambda x: (x.exp(), (x * 2).exp(), x + 1),
        "nothing": lambda x: x + 1,
        "no gradient": lambda x: x.detach().exp(),
    }


def _graphs(rng: np.random.Generator) -> list[_Graph]:
    n = 4 * int(rng.integers(20, 60))
    m = 4 * int(rng.integers(3, 15))
    return [
        _Graph("x.exp() of n numbers keeps its result", "x.exp()", (n,), 4 * n),
        _Graph("x * x keeps x, once", "x * x", (n,), 4 * n),
        _Graph("x.sin() * x.cos() keeps x and both factors", "x.sin() * x.cos()", (n,), 12 * n),
        _Graph("x[:1] * w keeps the whole storage of x", "x[:1] * w", (n, m), 4 * n + 4 * m),
        _Graph("two halves of one storage", "the halves of x.exp()", (n,), 4 * n),
        _Graph("an expanded number has a storage of 4 bytes", "one number for a row", (n, m), 4),
        _Graph("a mask has 1 byte a number", "a mask", (n,), n),
        _Graph("what was dropped does not count", "an exp that is dropped", (n,), 0),
        _Graph("one was dropped, one was kept", "an exp that is dropped, then another", (n,), 2 * n),
        _Graph("x is saved by what is dropped, then by what is kept", "a sin that is dropped, then cos", (n,), 4 * n),
        _Graph("x is saved by what is kept, then by what is dropped", "sin, then a cos that is dropped", (n,), 4 * n),
        _Graph("a linear layer without ignore", "a linear layer", (n, m), 4 * n + 4 * m),
        _Graph("a linear layer, inputs ignored", "a linear layer", (n, m), 0, "inputs"),
        _Graph("a linear layer, a view of x ignored", "a linear layer", (n, m), 4 * m, "a view"),
        _Graph("x * x in a list of ignored tensors", "x * x", (n,), 0, "inputs"),
        _Graph("three outputs, the results of two kept", "three outputs", (n,), 8 * n),
        _Graph("a sum keeps nothing", "nothing", (n,), 0),
        _Graph("nothing requires a gradient", "no gradient", (n,), 0),
    ]


def _count(saved_bytes: Any, graphs: list[_Graph], seed: int) -> list[dict]:
    """Where the submission runs, and with `_plainly` outside: one call for each graph, and a backward."""
    generator, seen = torch.Generator().manual_seed(seed), []
    for graph in graphs:
        tensors = [torch.randn(size, generator=generator).requires_grad_() for size in graph.sizes]
        function = Counted(_functions()[graph.function])
        ignore = {"": (), "inputs": tensors, "a view": [tensors[0].detach()[1:3]]}[graph.ignore]
        result = saved_bytes(function, *tensors, ignore=ignore)
        pair = isinstance(result, tuple) and len(result) == 2
        output, number = result if pair else (None, None)
        outputs = list(output) if isinstance(output, tuple) else [output]
        summed = [t.square().sum() for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
        if summed:
            torch.stack(summed).sum().backward()
        told = bits(outputs) if all(isinstance(t, torch.Tensor) for t in outputs) else type(output).__name__
        grads = bits([t.grad for t in tensors])
        seen.append({"bytes": number, "output": told, "grads": grads, "calls": function.calls, "pair": pair})
    return seen


def _plainly(function: Callable, *tensors: torch.Tensor, ignore: Any) -> tuple[Any, None]:
    """The function without being counted."""
    return function(*tensors), None


def _each(saved_bytes: Any, rng: np.random.Generator) -> list[tuple[_Graph, dict, dict]]:
    graphs = _graphs(rng)
    asked = [replace(graph, name="", bytes=0) for graph in graphs]  # what is expected stays here
    seed = inputs.seed(rng)
    seen, plain = call_inside(_count, saved_bytes, asked, seed), _count(_plainly, asked, seed)
    for graph, got in zip(graphs, seen, strict=True):
        if not got["pair"]:
            fail("saved_bytes should return a tuple of the output and the bytes", graph.name, "no pair")
    return list(zip(graphs, seen, plain, strict=True))


@check(SAVED, points=1.25)
def each_storage_counts_once(saved_bytes, *, rng):
    """The number is the bytes of the storages that the graph keeps: each once and whole, ignored ones not at all."""
    everything = _each(saved_bytes, rng)
    evidence = [got["bytes"] - graph.bytes if isinstance(got["bytes"], int) else "?" for graph, got, _ in everything]
    for graph, got, _ in everything:
        expect_type(graph.name, got["bytes"], int, what="the number of bytes")
        expect_equal(graph.name, got["bytes"], graph.bytes, what="the number of bytes", evidence=evidence)


@check(SAVED, points=0.5)
def the_function_runs_as_without_it(saved_bytes, *, rng):
    """The function is called once, its output is returned, and backward gives the same gradients as without it."""
    for graph, got, plain in _each(saved_bytes, rng):
        expect_equal(graph.name, got["calls"], 1, what="the number of calls of the function")
        missing = [one is None and want is not None for one, want in zip(got["grads"], plain["grads"], strict=True)]
        evidence = [got["output"] == plain["output"], got["grads"] == plain["grads"], missing]
        if not evidence[0]:
            fail("the first thing returned is not the function's output", graph.name, evidence)
        if any(missing):
            fail("backward through the output does not reach the inputs: they have no gradient", graph.name, evidence)
        if not evidence[1]:
            fail("backward does not give the gradients that it gives without saved_bytes", graph.name, evidence)


def _layer(saved_bytes: Any, sizes: tuple[int, ...], p: float, flash: bool) -> Any:
    s, b, h, a = sizes
    with torch.random.fork_rng(devices=[]):
        layer = GPTLayer(h, a, p, flash)
        x = torch.randn(b, s, h).to(torch.bfloat16).requires_grad_()
        result = saved_bytes(layer, x, ignore=list(layer.parameters()))
    return result[1] if isinstance(result, tuple) else type(result).__name__


@check(SAVED, points=0.25)
def a_layer_keeps_what_its_formula_says(saved_bytes, *, rng):
    """A GPT layer in bf16 keeps 34sbh + 5as²b bytes, and 8sb for two norms; with fused attention 34sbh + 4asb + 8sb."""
    for s, b, h, a in ((64, 2, 32, 4), (33, 1, 48, 3), (16, 3, 64, 1), (8 * int(rng.integers(2, 9)), 2, 24, 2)):
        for flash in (False, True):
            for p in (0.1, 0.0):
                case = f"s = {s}, b = {b}, h = {h}, a = {a}{', fused' if flash else ''}{'' if p else ', no dropout'}"
                core = 4 * a * s * b if flash else (5 if p else 2) * a * s * s * b
                expected = (34 if p else 32) * s * b * h + core + 8 * s * b
                got = call_inside(_layer, saved_bytes, (s, b, h, a), p, flash)
                if got != expected:
                    fail(f"the layer keeps {expected} bytes, saved_bytes says {got}", case, got)
