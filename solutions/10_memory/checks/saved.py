"""Exercise 1: what a graph keeps, in bytes of storages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from autograder.checks import inputs
from autograder.checks.cases import Call, close, fact, sentence
from autograder.checks.check import check

from .layers import Counted

SAVED = "10-ex1-saved-bytes"

#: What is called, by its name.
FUNCTIONS: dict[str, Callable] = {
    "x.sin().exp() keeps x and the result": lambda x: x.sin().exp(),
    "x * x keeps x, once": lambda x: x * x,
    "x.sin() * x.cos() keeps x and both factors": lambda x: x.sin() * x.cos(),
    "x[:1] * w keeps the whole storage of x": lambda x, w: x[:1] * w,
    "two halves of one storage": lambda x: torch.mul(*x.exp().chunk(2)),
    "one number, expanded, has a storage of 4 bytes": lambda x, w: x.detach()[:1].clone().expand(len(w)) * w,
    "a mask has 1 byte per number": lambda x: x * (x.detach() > 0),
    "a linear layer": lambda x, w: functional.linear(x.view(-1, 4), w.view(-1, 4)),
    "three outputs": lambda x: (x.exp(), (x * 2).exp(), x + 1),
    "a sum keeps nothing": lambda x: x + 1,
    "an exp that is dropped": lambda x: (x.exp(), x * 2)[1],
    "an exp that is dropped, then another": lambda x: (x.exp(), x[: len(x) // 2].exp())[1],
    "a sin that is dropped, then cos": lambda x: (x.sin(), x.cos())[1],
    "sin, then a cos that is dropped": lambda x: (x.sin(), x.cos())[0],
}


@dataclass
class Kept:
    """What saved_bytes returned, and what backward through the output gives."""

    form: str = sentence()
    count: Any = fact("the number of bytes")
    calls: Any = fact("the number of calls of the function")
    outputs: Any = fact("the output")
    reached: Any = fact("whether backward through the output reaches the inputs")
    gradients: Any = fact("the gradient of input {} after a backward through the output")
    order: str = sentence()


def _call(saved_bytes: Any, name: str, sizes: list[int], ignore: str, seed: int, again: bool = False) -> Kept:
    """One call, and a backward. ignore: which storages, "" for none, "inputs", or "a view" of the first input.

    again: there was a call before, whose output is still held.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(size, generator=generator).requires_grad_() for size in sizes]
    function = Counted(FUNCTIONS[name])
    before = saved_bytes(FUNCTIONS[name], *tensors) if again else None
    result = saved_bytes(
        function, *tensors, ignore={"": (), "inputs": tensors, "a view": [tensors[0].detach()[1:3]]}[ignore]
    )
    if not (isinstance(result, tuple) and len(result) == 2):
        return Kept("saved_bytes should return a tuple of the output and the bytes", 0, 0, [], [], [])
    order = "the bytes come first, expected the output and then the bytes" if isinstance(result[0], int) else ""
    output, count = result[::-1] if order else result
    outputs = list(output) if isinstance(output, tuple) else [output]
    if not all(isinstance(y, torch.Tensor) for y in outputs):
        return Kept("the first thing returned is not the function's output", 0, 0, [], [], [])
    summed = [y.square().sum() for y in outputs if y.requires_grad]
    if summed:
        torch.stack(summed).sum().backward()
    grads = [torch.zeros_like(t) if t.grad is None else t.grad for t in tensors]
    values = [y.detach().reshape(-1) for y in outputs]
    reached = [t.grad is not None for t in tensors]
    del before
    return Kept("", count, function.calls, torch.cat(values), reached, grads, order)


def _plainly(function: Callable, *tensors: torch.Tensor, ignore: Any) -> tuple[Any, int]:
    """The function without being counted."""
    return function(*tensors), 0


def _counts(saved_bytes, rng, graphs, again=False):
    """Calls of which the bytes are known. graphs: name, bytes for each of the n numbers of x and the m of w, ignore."""
    for name, of_x, of_w, *ignore in graphs:
        n, m = 4 * int(rng.integers(20, 60)), 4 * int(rng.integers(3, 15))
        nbytes = int(n * of_x) + m * of_w
        which, text = (ignore[0], f", {ignore[0]} ignored") if ignore else ("", "")
        sizes = [n, m] if FUNCTIONS[name].__code__.co_argcount == 2 else [n]
        text += ", while the output of a call before is held" if again else ""
        arguments = saved_bytes, name, sizes, which, inputs.seed(rng), again
        of = f"{name}{text}; x of {n} numbers, w of {m}"
        yield Call(_call, *arguments, gives=Kept("", nbytes), name=of, shows=name)


@check(SAVED, points=0.5)
def the_bytes_are_those_of_this_graph(saved_bytes, *, rng):
    """The number is the bytes that the output's graph keeps, and none that the graph of an earlier call keeps."""
    graphs = [("x.sin().exp() keeps x and the result", 8, 0), ("a mask has 1 byte per number", 1, 0)]
    graphs += [("a linear layer", 4, 4), ("three outputs", 8, 0)]
    yield from _counts(saved_bytes, rng, [*graphs, ("a sum keeps nothing", 0, 0)])
    yield from _counts(saved_bytes, rng, graphs[:1], again=True)


@check(SAVED, points=0.5)
def each_storage_counts_once_and_whole(saved_bytes, *, rng):
    """Each storage counts once and whole, however many saved tensors are views of it."""
    graphs = [("x * x keeps x, once", 4, 0), ("x.sin() * x.cos() keeps x and both factors", 12, 0)]
    graphs += [("x[:1] * w keeps the whole storage of x", 4, 4), ("two halves of one storage", 4, 0)]
    yield from _counts(saved_bytes, rng, graphs)
    n, m = 4 * int(rng.integers(20, 60)), 4 * int(rng.integers(3, 15))
    name = "one number, expanded, has a storage of 4 bytes"
    yield Call(_call, saved_bytes, name, [n, m], "", inputs.seed(rng), gives=Kept("", 4), name=name, shows=name)


@check(SAVED, points=0.25)
def ignored_storages_do_not_count(saved_bytes, *, rng):
    """Storages of the tensors in `ignore` do not count, whatever view of them the graph keeps."""
    yield from _counts(saved_bytes, rng, [("a linear layer", 0, 0, "inputs"), ("a linear layer", 0, 4, "a view")])
    yield from _counts(saved_bytes, rng, [("x * x keeps x, once", 0, 0, "inputs")])


@check(SAVED, points=0.25)
def what_was_dropped_does_not_count(saved_bytes, *, rng):
    """What only a dropped result needed does not count; what another result needs as well does."""
    graphs = [("an exp that is dropped", 0, 0), ("an exp that is dropped, then another", 2, 0)]
    graphs += [("a sin that is dropped, then cos", 4, 0), ("sin, then a cos that is dropped", 4, 0)]
    yield from _counts(saved_bytes, rng, graphs)


@check(SAVED, points=0.5)
def the_function_runs_as_without_it(saved_bytes, *, rng):
    """The function is called once, its output is returned, and backward gives the same gradients as without it."""
    for name in ("two halves of one storage", "three outputs", "x[:1] * w keeps the whole storage of x"):
        n = 4 * int(rng.integers(20, 60))
        arguments = name, [n, 12][: FUNCTIONS[name].__code__.co_argcount], "", inputs.seed(rng)
        plain = _call(_plainly, *arguments)
        exactly = [close(gradient.numpy()) for gradient in plain.gradients]
        gives = Kept("", ..., 1, close(plain.outputs.numpy()), plain.reached, exactly, "")
        yield Call(_call, saved_bytes, *arguments, gives=gives, name=f"{name}; x of {n} numbers", shows=name)
