"""Stages that are watched, and the pipelines made of them."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import record_function


@dataclass
class Probe:
    """What one stage did, in order, as (what, examples), and how much it kept.

    What is "F", a call of the stage; "B", the gradient of its input; "W", the gradients of its weights. alive: saved
    activations, now. inputs: received ones that are held, now. peak and most_inputs: at most.
    """

    log: list[tuple[str, int]] = field(default_factory=list)
    alive: int = 0
    peak: int = 0
    inputs: int = 0
    most_inputs: int = 0

    def watch(self, received: torch.Tensor) -> None:
        """Count this input until nobody holds it, autograd included."""
        self.inputs += 1
        self.most_inputs = max(self.most_inputs, self.inputs)
        weakref.finalize(received, self._let_go)

    def _let_go(self) -> None:
        self.inputs -= 1


class _Token:
    """Stands for a tensor that a stage saved for its backward; autograd drops it when the tensor is let go."""

    def __init__(self, tensor: torch.Tensor, probe: Probe):
        self.tensor, self.probe = tensor, probe
        probe.alive += 1
        probe.peak = max(probe.peak, probe.alive)

    def __del__(self):
        self.probe.alive -= 1


class _Saves(torch.autograd.Function):
    """The identity; it saves one tensor."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(torch.ones(()))
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        (one,) = ctx.saved_tensors
        return gradient * one


class _Logs(torch.autograd.Function):
    """The identity on some tensors. autograd runs its backward only when one of their gradients is asked for."""

    @staticmethod
    def forward(ctx, probe, event, seconds, *tensors):
        ctx.probe, ctx.event, ctx.seconds = probe, event, seconds
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.probe.log.append(ctx.event)
        if ctx.seconds is not None:
            with record_function("B"):
                time.sleep(ctx.seconds)
        return None, None, None, *gradients


class Stage(nn.Module):
    """A layer with tanh (or an embedding) whose activations are `hidden` in shape, watched by a probe."""

    def __init__(self, weights: dict[str, np.ndarray], hidden: tuple[int, ...], sleep: tuple[float, float]):
        super().__init__()
        self.params = nn.ParameterDict({name: nn.Parameter(torch.tensor(w)) for name, w in weights.items()})
        self.hidden, self.sleep, self.probe = hidden, sleep, Probe()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x `(B, *hidden)`, or the first stage's input, to `(B, *hidden)`."""
        probe, size = self.probe, len(x)
        with record_function("F"):
            probe.log.append(("F", size))
            time.sleep(self.sleep[0])
            if x.requires_grad:
                probe.watch(x)
                (x,) = _Logs.apply(probe, ("B", size), None, x)
            names = list(self.params)
            weights = _Logs.apply(probe, ("W", size), self.sleep[1], *self.params.values())
            h = self.layer(x, dict(zip(names, weights, strict=True)))
            with torch.autograd.graph.saved_tensors_hooks(lambda t: _Token(t, probe), lambda token: token.tensor):
                return _Saves.apply(h)

    def layer(self, x: torch.Tensor, params: Any) -> torch.Tensor:
        """The layer itself, with these parameters."""
        h = params["table"][x] if "table" in params else x.reshape(len(x), -1) @ params["weight"] + params["bias"]
        return torch.tanh(h).reshape(len(x), *self.hidden)


@dataclass
class Pipeline:
    """One step of one pipeline. Its micro-batches differ in size, which tells them apart."""

    stages: list[dict[str, np.ndarray]]
    hidden: tuple[int, ...]
    schedule: list[list[tuple[str, int]]]
    batch: list[tuple[np.ndarray, np.ndarray]]
    sleep: tuple[float, float] = (0.0, 0.0)

    def build(self, stage: int) -> Stage:
        return Stage(self.stages[stage], self.hidden, self.sleep)

    def rows(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.tensor(x), torch.tensor(y)) for x, y in self.batch]


def loss_of(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean over examples of a squared distance; large enough for gradients of the order of 1."""
    return 4 * (output.reshape(len(output), -1) - y).square().sum(dim=1).mean()


def make_pipeline(
    rng: np.random.Generator, schedule: list, hidden: tuple[int, ...] = (5,), *, tokens=False, sizes: Sequence[int] = ()
) -> Pipeline:
    """A pipeline with fresh weights. sizes: of the micro-batches; if not given, 1, 2, 3, … in a drawn order."""
    stages, width = len(schedule), math.prod(hidden)
    sizes = sizes or [int(n) for n in rng.permutation(np.arange(1, 2 + max(m for _, m in schedule[0])))]

    def numbers(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    weights = [{"weight": numbers(width, width) / math.sqrt(width) * 2, "bias": numbers(width)} for _ in range(stages)]
    weights[0] = {"table": numbers(7, width)} if tokens else {"weight": numbers(3, width), "bias": numbers(width)}
    weights = [{key: w.astype(np.float32) for key, w in mine.items()} for mine in weights]
    inputs = [rng.integers(0, 7, n) if tokens else numbers(n, 3) for n in sizes]
    return Pipeline(weights, hidden, schedule, [(x, numbers(len(x), width)) for x in inputs])


def unsplit(pipeline: Pipeline) -> tuple[float, list[dict[str, np.ndarray]]]:
    """Loss and gradients, by stage, of the unsplit model on the whole batch."""
    stages = [pipeline.build(s) for s in range(len(pipeline.stages))]
    x, y = (torch.cat(parts) for parts in zip(*pipeline.rows(), strict=True))
    for stage in stages:
        x = stage.layer(x, stage.params)
    loss = loss_of(x, y)
    loss.backward()
    return loss.item(), [{name: p.grad.numpy() for name, p in stage.params.items()} for stage in stages]
